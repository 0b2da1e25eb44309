"""The command streams of all connected agents, one for each machine; and what it means when an agent has none.

If two agents connect for one machine, the newest is served. A stream ends when its agent may no longer act for the
machine, and in time for its token to be renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

import grpc

from proto import workflow_pb2 as pb
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.limits import Backoff
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.auth import AgentAuthorizer, AgentDirectory, Credentials, RefusedCallerError, TokenError
from tink.server.decision import AgentView, ClaimAndSend, GiveBack, Move, Recall, Start, Stop, Wait, next_move
from tink.server.events import BusyError, EventStore, StaleError, WorkflowGoneError
from tink.server.settings import ServerSettings
from tink.server.workflows import UnsendableError, WorkflowIndex, hardware_of, start_command, stop_command, uid_of
from tink.workflow import events
from tink.workflow.events import AgentAway, AgentSeen
from tink.workflow.guards import paused, rebooting
from tink.workflow.status import InvalidStatusError, agent_seen, check_states, name_of, state_of, status_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The objects that all calls of one server share.

    `observe` receives what agents do. `spawn` runs coroutines that outlive a call. `clock` returns Unix seconds.
    """

    settings: ServerSettings
    agents: AgentDirectory
    authorizer: AgentAuthorizer
    workflows: WorkflowIndex
    events: EventStore
    observe: ActivityObserver
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    clock: Callable[[], float]


# --- Reboots ---
#
# Detects agents that a reboot has ended: the last action reboots the machine, so no agent reports its end.
#
# If such an action runs and the agent has had no stream for a grace period, the action and the Workflow have succeeded.
# (An agent that comes back reports what it holds.)
#
# Only one server knows that it has the stream, so it records in the Workflow's status that it sees the agent: at once
# if the agent connects while the action runs, then several times in each grace period. An action that reboots soon,
# which is usual, causes no such write. Every other server waits for its grace period, restarts it when another server
# has seen the agent, and decides on the basis of the status; if that has changed, the decision is void
# (`events.AgentAway`).
#
# The server whose stream broke waits for one grace period. The others wait longer, because they do not know when that
# was: they may have restarted, or the server with the stream may have been killed. The only state is running timers,
# which are set again from the Workflows that the informer lists. Clocks are not compared, but all servers need about
# the same grace period.


ELSEWHERE_GRACES = 3
"""Number of grace periods that a server waits that did not see the stream end."""

REPORT_PART = 1 / 3
"""Fraction of the grace period after which a server records again that it sees the agent."""

_RETRY_SECONDS = 5.0
"""Seconds until a failed write is tried again."""


@dataclass(slots=True, eq=False)
class _Watch:
    """The timer of one Workflow.

    `here`: the agent is connected to this server, which records that when the timer fires. Otherwise the agent counts
    as gone when it fires, if the status contained `seen` for all of `seconds`.
    """

    here: bool
    seconds: float
    seen: str
    timer: asyncio.TimerHandle


class RebootWatch:
    """Waits for agents that do not come back. For one event loop.

    `connected` returns True if a machine's agent has a stream here.
    """

    def __init__(self, parts: ServerParts, connected: Callable[[NamespacedName], bool]) -> None:
        self._parts = parts
        self._connected = connected
        self._grace = parts.settings.reboot_grace
        self._watches: dict[str, _Watch] = {}

    def look(self, workflow: Raw) -> None:
        """Set or cancel the timer of a Workflow that was added or changed."""
        uid, key = uid_of(workflow), hardware_of(workflow)
        if key is None or not _rebooting(workflow):
            self.cancel(uid)
            return
        watch, seen = self._watches.get(uid), agent_seen(status_of(workflow))
        if self._connected(key):
            if watch is None or not watch.here:
                self._set(uid, self._grace * REPORT_PART, seen, here=True)
        elif watch is None or watch.here or watch.seen != seen:
            self._set(uid, self._grace * ELSEWHERE_GRACES, seen)

    def opened(self, key: NamespacedName, holds: Collection[str] | None) -> None:
        """Handle a new stream of a machine's agent that holds these Workflows (None: it did not report them)."""
        for workflow in self._parts.workflows.of(key):
            if _rebooting(workflow):
                uid = uid_of(workflow)
                # A Workflow that the agent does not hold has ended (`CommandStream._account`), so nothing is recorded
                # at once.
                delay = 0.0 if holds is None or uid in holds else self._grace * REPORT_PART
                self._set(uid, delay, agent_seen(status_of(workflow)), here=True)

    def closed(self, key: NamespacedName) -> None:
        """Handle the end of a machine's stream."""
        for workflow in self._parts.workflows.of(key):
            if _rebooting(workflow):
                self._set(uid_of(workflow), self._grace, agent_seen(status_of(workflow)))

    def close(self) -> None:
        """Cancel all timers."""
        for uid in list(self._watches):
            self.cancel(uid)

    def cancel(self, uid: str) -> None:
        """Cancel the timer of a Workflow."""
        watch = self._watches.pop(uid, None)
        if watch is not None:
            watch.timer.cancel()

    def _set(self, uid: str, seconds: float, seen: str, *, here: bool = False) -> None:
        self.cancel(uid)
        timer = asyncio.get_running_loop().call_later(seconds, self._due, uid)
        self._watches[uid] = _Watch(here, seconds, seen, timer)

    def _due(self, uid: str) -> None:
        # The watch stays until its task is done, so that no two tasks run for one Workflow.
        watch, workflow = self._watches[uid], self._parts.workflows.get(uid)
        key = hardware_of(workflow) if workflow is not None else None
        if workflow is None or key is None or not _rebooting(workflow):
            self.cancel(uid)
        elif self._connected(key) is not watch.here:
            self.cancel(uid)
            self.look(workflow)
        else:
            self._parts.spawn(self._record_seen(workflow, watch) if watch.here else self._conclude(workflow, watch))

    async def _record_seen(self, workflow: Raw, watch: _Watch) -> None:
        """Record in the status that the agent is connected here."""
        try:
            await self._parts.events.take(workflow, AgentSeen())
        except WorkflowGoneError:
            return
        except (ApiError, BusyError, StaleError, InvalidStatusError) as error:
            log.debug("Workflow %s: that its agent is here could not be stored: %s", name_of(workflow), error)
        self._look_again(workflow, watch)

    async def _conclude(self, workflow: Raw, watch: _Watch) -> None:
        """End the Workflow because its agent has been gone for the grace period."""
        uid = uid_of(workflow)
        try:
            if await self._parts.events.take(workflow, AgentAway(watch.seconds, watch.seen)):
                now = self._parts.workflows.get(uid) or workflow
                name, key = name_of(now), hardware_of(now) or NamespacedName("", "")
                log.info("Workflow %s: its last action reboots the machine, whose agent is gone", name)
                self.cancel(uid)
                story = f"agent is gone with the last action of workflow {name}, which reboots the machine"
                agent_id = self._parts.agents.id_of(key)
                self._parts.observe(AgentActivity(agent_id, "", ActivityKind.EVENT, story, str(key), name))
            self._look_again(workflow, watch)
        except WorkflowGoneError:
            return
        except (ApiError, BusyError, StaleError) as error:
            log.warning("Workflow %s: its success could not be stored, trying again: %s", name_of(workflow), error)
            if self._watches.get(uid) is watch:
                watch.timer = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._due, uid)
        except InvalidStatusError as error:
            log.error("%s", error)

    def _look_again(self, workflow: Raw, watch: _Watch) -> None:
        """Set the next timer, unless another one was set meanwhile."""
        uid = uid_of(workflow)
        if self._watches.get(uid) is watch:
            self.cancel(uid)
            now = self._parts.workflows.get(uid)
            if now is not None:
                self.look(now)


def _rebooting(workflow: Raw) -> bool:
    try:
        return rebooting(workflow) and not paused(workflow)
    except InvalidStatusError:
        return False  # the agent's stream logs the error


# --- One stream ---
#
# One agent's command stream: sends the next command whenever there is one.
#
# A stream is level based. It looks at the Workflows of its machine, makes the one next move (`decision.next_move`), and
# repeats; if there is nothing to do it sleeps until something about its machine changes. It never polls.
#
# It begins with the Workflows that the agent holds: those that it runs or has unsent events of. A Workflow that is
# Running or Cancelling then and not held is lost: no agent will report its end. A Workflow that begins to run later may
# run on this agent through another server. If it is neither held nor was sent here, the stream ends, and what the agent
# holds when it connects again decides (`decision.Recall`).
#
# A Workflow is claimed before it is sent: its status becomes Scheduled, unless another writer has changed it. If the
# stream ends between the claim and the sending, the claim is undone. A Workflow that another server claimed is claimed
# again before it is sent, so that the other server does not undo its claim.
#
# A Workflow with an invalid status is skipped, with a line in the log; the machine's other Workflows go on.


Write = Callable[[pb.GetWorkflowsResponse], Awaitable[None]]

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 15.0
"""First and last delay before a failed API call is tried again, unless something changes before."""
_ACCOUNT_SECONDS = 5.0
"""Maximum seconds for recording lost Workflows. The agent gets no command before, so after that it must reconnect."""

_UNDER_WAY = (WorkflowState.RUNNING, WorkflowState.CANCELLING)


@dataclass(frozen=True, slots=True)
class Ending:
    """The status with which the server ends a stream."""

    code: grpc.StatusCode
    message: str


class CommandStream:
    """The command stream of one agent, which acts for the Hardware `key`."""

    def __init__(
        self,
        parts: ServerParts,
        agent_id: str,
        credentials: Credentials,
        key: NamespacedName,
        holds: frozenset[str] | None,
    ) -> None:
        """`holds` are the uids of the Workflows that the agent holds; None if it did not report them."""
        self._parts = parts
        self.agent_id = agent_id
        self.credentials = credentials
        self.key = key
        self._holds = holds
        self._view = AgentView(says=holds is not None)
        self._reported: dict[str, str] = {}
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        self._changed = asyncio.Event()
        self._ending: Ending | None = None
        # The Workflows that were Running or Cancelling when the agent connected, and that it did not hold.
        self._missing = (
            []
            if holds is None
            else [
                each
                for each in self._readable()
                if not paused(each) and uid_of(each) not in holds and state_of(each) in _UNDER_WAY
            ]
        )

    def wake(self) -> None:
        """Look again, because the machine's Workflows have changed."""
        self._changed.set()

    def gone(self, workflow: Raw) -> None:
        """Stop a Workflow of the machine that was deleted."""
        self._reported.pop(uid_of(workflow), None)
        with contextlib.suppress(InvalidStatusError):
            self._view.see([workflow])  # this stream may not have seen the Workflow yet
        try:
            self._view.forget(workflow)
        except InvalidStatusError as error:
            log.warning("agent %s may still run a Workflow that is gone: %s", self.agent_id, error)
        self._changed.set()

    def note_report(self, uid: str, event: events.AgentEvent) -> None:
        """Note that the agent reported `event`: it runs the Workflow, even if that has ended according to the API."""
        if isinstance(event, events.ActionStarted | events.ActionSucceeded) and uid not in self._view.started:
            self._view.runs([uid])
            self._changed.set()

    def end(self, code: grpc.StatusCode, message: str) -> None:
        """Close the stream; the first call counts."""
        self._ending = self._ending or Ending(code, message)
        self._changed.set()

    async def run(self, write: Write) -> Ending:
        """Send commands with `write` until `end` is called, and return how."""
        await self._account()
        while self._ending is None:
            self._changed.clear()
            workflows = self._readable()
            self._view.see(workflows)
            longest = self._parts.settings.rejection_longest
            await self._carry_out(next_move(workflows, self._view, self._parts.clock(), longest), write)
        return self._ending

    async def _carry_out(self, move: Move, write: Write) -> None:
        match move:
            case Stop(uid):
                # Before the write: if the Workflow changes during the write, that change must not be overwritten.
                self._view.orphans.pop(uid, None)
                self._view.stopped.add(uid)
                await write(stop_command(uid))
                log.info("Workflow %s: agent %s told to stop it", move.name, self.agent_id)
                self.report(ActivityKind.STOPPED, f"agent told to stop workflow {move.name}", move.name)
            case Start(workflow):
                await self._pause_unless(await self._send_again(workflow, write))
            case GiveBack(workflow):
                await self._pause_unless(await self._parts.events.give_back(workflow))
            case ClaimAndSend(workflow):
                await self._pause_unless(await self._dispatch(workflow, write))
            case Recall(workflow):
                log.info("agent %s is asked whether it runs Workflow %s", self.agent_id, name_of(workflow))
                message = "connect again, and say whether you run what is Running"
                self.end(grpc.StatusCode.UNAVAILABLE, message)
            case Wait(until):
                await self._sleep(None if until is None else until - self._parts.clock())

    async def _pause_unless(self, done: bool) -> None:
        if done:
            self._backoff.reset()
        else:
            await self._sleep(self._backoff.next())

    def _readable(self) -> list[Raw]:
        """Return the machine's Workflows with a valid state, oldest first. Log each invalid one once.

        An invalid Workflow is neither sent nor stopped. An agent that runs it rejects others by itself.
        """
        readable = []
        for workflow in self._parts.workflows.of(self.key):
            try:
                check_states(workflow)
            except InvalidStatusError as error:
                self._log_problem(workflow, str(error))
            else:
                readable.append(workflow)
        return readable

    def _log_problem(self, workflow: Raw, problem: str) -> None:
        if self._reported.get(uid_of(workflow)) != problem:
            self._reported[uid_of(workflow)] = problem
            log.error("%s; agent %s does not receive it until that is corrected", problem, self.agent_id)

    # --- what the agent holds ---------------------------------------------------------------------------------------

    async def _account(self) -> None:
        """Record the loss of Workflows that the agent does not hold; end the stream if that takes too long."""
        if self._holds is None:
            return
        self._view.runs(self._holds)
        for uid in self._holds:
            name = self._parts.workflows.name_of_gone(uid)
            if name is not None:
                self._view.orphans[uid] = name
        try:
            async with asyncio.timeout(_ACCOUNT_SECONDS):
                for workflow in self._missing:
                    if self._ending is None:
                        await self._lose(workflow)
        except (TimeoutError, ApiError, BusyError, StaleError) as error:
            log.warning("agent %s is asked to come again: %s", self.agent_id, error or "the API takes too long")
            message = "what became of this agent's Workflows can't be found out yet: connect again"
            self.end(grpc.StatusCode.UNAVAILABLE, message)

    async def _lose(self, workflow: Raw) -> None:
        """Record that the agent lost a Workflow that was Running or Cancelling."""
        try:
            if not await self._parts.events.take(workflow, events.AgentLost()):
                return
        except WorkflowGoneError:
            return
        except InvalidStatusError as error:
            self._log_problem(workflow, str(error))
            return
        now = self._parts.workflows.get(uid_of(workflow)) or workflow
        story = f"agent came back without workflow {name_of(now)}, which is {status_of(now).get('state')}"
        log.warning("Workflow %s: %s", name_of(now), story)
        self.report(ActivityKind.EVENT, story, name_of(now))

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _dispatch(self, workflow: Raw, write: Write) -> bool:
        """Claim and send a Workflow. Return False if it can't be claimed now."""
        command = self._command(workflow)
        if command is None:
            return True
        # The claim must not be cancelled with the stream: a cancelled API call may still have taken effect.
        claim = asyncio.ensure_future(self._parts.events.claim(workflow))
        sent = False
        try:
            claimed = await asyncio.shield(claim)
            if claimed is None:
                return False
            if self._ending is None:
                sent = True
                await self._send(claimed, command, write)
        finally:
            if not sent:
                self._parts.spawn(self._take_back(claim, workflow))
        return True

    async def _take_back(self, claim: asyncio.Future[Raw | None], before: Raw) -> None:
        claimed = await claim
        if claimed is not None:
            log.info("Workflow %s: agent %s went before it could be sent", name_of(claimed), self.agent_id)
            await self._parts.events.take_back(claimed, before)

    async def _send_again(self, workflow: Raw, write: Write) -> bool:
        """Send a Workflow that is already claimed, perhaps for an earlier stream. Return False if that fails now.

        If the stream ends before the sending, the claim stays: another server may have sent the Workflow.
        """
        command = self._command(workflow)
        if command is None:
            return True
        claimed = await self._parts.events.reclaim(workflow)
        if claimed is None:
            return False
        if self._ending is None:
            await self._send(claimed, command, write)
        return True

    def _command(self, workflow: Raw) -> pb.GetWorkflowsResponse | None:
        """Return StartWorkflow, or None and skip this version of the Workflow if it can't be expressed as a message."""
        try:
            return start_command(workflow)
        except UnsendableError as error:
            self._view.set_aside(workflow)
            self._log_problem(workflow, str(error))
            return None

    async def _send(self, workflow: Raw, command: pb.GetWorkflowsResponse, write: Write) -> None:
        self._view.sent(workflow, self._parts.clock())
        await write(command)
        name = name_of(workflow)
        log.info("Workflow %s: sent to agent %s", name, self.agent_id)
        self.report(ActivityKind.STARTED, f"workflow {name} sent to the agent", name)

    def report(self, kind: ActivityKind, message: str, workflow: str = "") -> None:
        """Report an activity of the agent to the server's observer."""
        activity = AgentActivity(self.agent_id, self.credentials.peer, kind, message, str(self.key), workflow)
        self._parts.observe(activity)

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until something changes, at most for `seconds` (None: without limit)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


# --- All streams ---


class AgentStreams:
    """Opens and ends the streams of one server. `older` returns True if a machine's older agent is connected."""

    def __init__(self, parts: ServerParts, older: Callable[[NamespacedName], bool]) -> None:
        self._parts = parts
        self._streams: dict[NamespacedName, CommandStream] = {}
        self._closed = False
        self._reboots = RebootWatch(parts, lambda key: key in self._streams or older(key))

    def of(self, key: NamespacedName) -> CommandStream | None:
        """Return the stream of a machine's agent, or None."""
        return self._streams.get(key)

    def __len__(self) -> int:
        """Return the number of connected agents."""
        return len(self._streams)

    def close(self) -> None:
        """Ignore streams that end from now on: the server stops, not the agents."""
        self._closed = True
        self._reboots.close()

    def end_all(self, code: grpc.StatusCode, message: str) -> None:
        """End every stream."""
        for stream in [*self._streams.values()]:
            stream.end(code, message)

    # --- what changes -----------------------------------------------------------------------------------------------

    def workflow_changed(self, new: Raw, old: Raw | None) -> None:
        """Handle a Workflow that was added or changed, after the index."""
        self._reboots.look(new)
        for workflow in (new,) if old is None or hardware_of(old) == hardware_of(new) else (new, old):
            if (stream := self._of_workflow(workflow)) is not None:
                stream.wake()

    def workflow_gone(self, old: Raw) -> None:
        """Handle a Workflow that was deleted, after the index."""
        self._reboots.cancel(uid_of(old))
        if (stream := self._of_workflow(old)) is not None:
            stream.gone(old)

    def hardware_changed(self, key: NamespacedName) -> None:
        """End the stream of an agent that may no longer act for its machine, or whose machine is another Hardware now.

        The machine of a discovered Hardware becomes another one when it is approved.
        """
        stream = self._streams.get(key)
        if stream is None:
            return
        try:
            present = self._parts.authorizer.admit(stream.agent_id, stream.credentials)
        except RefusedCallerError as error:
            stream.end(error.code, error.public_message)
        else:
            if present != key:
                stream.end(grpc.StatusCode.UNAVAILABLE, "connect again: this machine has another Hardware now")

    def _of_workflow(self, workflow: Raw) -> CommandStream | None:
        key = hardware_of(workflow)
        return self._streams.get(key) if key is not None else None

    # --- one stream -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(
        self,
        agent_id: str,
        credentials: Credentials,
        key: NamespacedName,
        holds: frozenset[str] | None,
        *,
        quiet: bool = False,
    ) -> Iterator[tuple[CommandStream, str]]:
        """Open the stream of an admitted agent while the context lasts; yield it, and a new token if there is one.

        `quiet`: do not log or report the stream; for older agents, which open one for each poll.
        """
        stream, peer = CommandStream(self._parts, agent_id, credentials, key, holds), credentials.peer
        previous = self._streams.get(key)
        if previous is not None:
            message = f"another agent connected as {agent_id!r} from {peer}; only the newest is served"
            previous.end(grpc.StatusCode.ABORTED, message)
        self._streams[key] = stream
        self._reboots.opened(key, holds)
        if not quiet:
            log.info("agent %s connected from %s, for Hardware %s", agent_id, peer, key)
            stream.report(ActivityKind.CONNECTED, f"agent connected from {peer}")
        token, renewal = self._renewal(stream)
        try:
            yield stream, token
        finally:
            if renewal is not None:
                renewal.cancel()
            if not quiet:
                log.info("agent %s at %s disconnected", agent_id, peer)
            if self._streams.get(key) is stream:  # else a newer stream speaks for the machine
                del self._streams[key]
                if not self._closed:
                    self._reboots.closed(key)
                if not quiet:
                    stream.report(ActivityKind.DISCONNECTED, f"agent at {peer} disconnected")

    def _renewal(self, stream: CommandStream) -> tuple[str, asyncio.TimerHandle | None]:
        """Return a new token for the agent, and the timer that ends its stream in time for the next renewal."""
        try:
            renewed = self._parts.authorizer.renewed(stream.credentials)
        except TokenError:
            return "", None  # the token has just expired; the agent's next call is rejected
        if renewed is None:
            return "", None
        token, seconds = renewed
        # The previous token may expire before the stream ends.
        stream.credentials = replace(stream.credentials, token=token)
        again = (grpc.StatusCode.UNAVAILABLE, "connect again, and the token is renewed")
        spread = seconds * random.uniform(0.8, 1.0)  # noqa: S311 - a rack that booted together need not come together
        return token, asyncio.get_running_loop().call_later(spread, stream.end, *again)
