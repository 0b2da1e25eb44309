"""One agent's command stream: sends the next command whenever there is one.

A stream is level based. It looks at the Workflows of its machine, does the one next thing (`dispatch.next_move`), and
looks again; when there is nothing to do it sleeps until something about its machine changes. Nothing is polled.

It begins with what the agent says that it holds: the Workflows that it runs or has something to report of. One that is
Running or Cancelling at that moment and not held is lost, and no agent will ever report its end. Of one that begins to
run later that can't be said: the agent may have gone on to another server, and run it there. If it is neither held nor
sent here, the stream ends, and what the agent says when it comes again decides (`dispatch.Recall`).

A Workflow is claimed before it is sent: the status says Scheduled, if nobody changed it meanwhile. If the stream ends
between the claim and the sending, the claim is taken back. One that was claimed by others is claimed anew before it is
sent, so that they do not take it back.

A Workflow whose status no program wrote is left alone, with a line in the log; the machine's others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc

from proto import workflow_pb2 as pb
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.limits.backoff import Backoff
from tink.server.dispatch.decision import AgentView, Claim, GiveBack, Move, Recall, Start, Stop, Wait, next_move
from tink.server.events import BusyError, EventStore, StaleError, WorkflowGoneError
from tink.server.messages import UnsendableError, start_command, stop_command
from tink.server.workflows import WorkflowIndex, uid_of
from tink.workflow import events
from tink.workflow.guards import paused
from tink.workflow.status import InvalidStatusError, check_states, name_of, state_of

log = logging.getLogger(__name__)

Write = Callable[[pb.GetWorkflowsResponse], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine that outlives the stream."""

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.5, 15.0
"""Seconds before a call to the API that failed is tried again, if nothing changed before."""
_ACCOUNT_SECONDS = 5.0
"""Seconds that storing what the agent has lost may take. It would get no command before: it is asked to come again."""

_UNDER_WAY = (WorkflowState.RUNNING, WorkflowState.CANCELLING)


@dataclass(frozen=True, slots=True)
class Ending:
    """How the server ends a stream."""

    code: grpc.StatusCode
    message: str


class CommandStream:
    """The command stream of one agent, which speaks for the Hardware `key` from the address `peer`."""

    def __init__(
        self,
        agent_id: str,
        peer: str,
        key: NamespacedName,
        *,
        holds: frozenset[str] | None,
        workflows: WorkflowIndex,
        writer: EventStore,
        spawn: Spawn,
        sent: Callable[[CommandStream, Start | Stop], None],
        lost: Callable[[CommandStream, Raw], None],
        clock: Callable[[], float],
        rejection_longest: float,
    ) -> None:
        self.agent_id = agent_id
        self.peer = peer
        self.key = key
        self._holds = holds
        self._workflows = workflows
        self._writer = writer
        self._spawn = spawn
        self._sent = sent
        self._lost = lost
        self._clock = clock
        self._rejection_longest = rejection_longest
        self._view = AgentView(says=holds is not None)
        self._reported: dict[str, str] = {}
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
        self._changed = asyncio.Event()
        self._ending: Ending | None = None
        self._missing = self._not_held()
        """What is under way and was not held when the agent came."""

    def wake(self) -> None:
        """Something about the machine's Workflows changed."""
        self._changed.set()

    def gone(self, workflow: Raw) -> None:
        """A Workflow of the machine is gone from the API."""
        self._reported.pop(uid_of(workflow), None)
        with contextlib.suppress(InvalidStatusError):
            self._view.see([workflow])  # this stream may not have had a look at it yet
        try:
            self._view.forget(workflow)
        except InvalidStatusError as error:
            log.warning("agent %s may still run a Workflow that is gone: %s", self.agent_id, error)
        self._changed.set()

    def heard(self, uid: str, event: events.AgentEvent) -> None:
        """The agent reported `event` of the Workflow with that uid: it runs what it says it has begun, even if the
        Workflow has ended for everybody else."""
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
            await self._carry_out(next_move(workflows, self._view, self._clock(), self._rejection_longest), write)
        return self._ending

    async def _carry_out(self, move: Move, write: Write) -> None:
        match move:
            case Stop(uid):
                # Before the write: what becomes of the Workflow while it lasts is not forgotten.
                self._view.orphans.pop(uid, None)
                self._view.stopped.add(uid)
                await write(stop_command(uid))
                self._sent(self, move)
            case Start(workflow):
                await self._pause_unless(await self._send_again(workflow, write))
            case GiveBack(workflow):
                await self._pause_unless(await self._writer.give_back(workflow))
            case Claim(workflow):
                await self._pause_unless(await self._dispatch(workflow, write))
            case Recall(workflow):
                log.info("agent %s is asked whether it runs Workflow %s", self.agent_id, name_of(workflow))
                message = "connect again, and say whether you run what is Running"
                self.end(grpc.StatusCode.UNAVAILABLE, message)
            case Wait(until):
                await self._sleep(None if until is None else until - self._clock())

    async def _pause_unless(self, done: bool) -> None:
        if done:
            self._backoff.reset()
        else:
            await self._sleep(self._backoff.next())

    def _readable(self) -> list[Raw]:
        """The machine's Workflows whose state can be read, oldest first; of the others it is said once what is wrong.

        Left out, such a Workflow is neither sent nor stopped. If the agent runs it, the agent itself refuses others.
        """
        readable = []
        for workflow in self._workflows.of(self.key):
            try:
                check_states(workflow)
            except InvalidStatusError as error:
                self._report(workflow, str(error))
            else:
                readable.append(workflow)
        return readable

    def _report(self, workflow: Raw, problem: str) -> None:
        if self._reported.get(uid_of(workflow)) != problem:
            self._reported[uid_of(workflow)] = problem
            log.error("%s; agent %s does without it until that is mended", problem, self.agent_id)

    # --- what the agent holds ---------------------------------------------------------------------------------------

    async def _account(self) -> None:
        """Draw the conclusions from what the agent holds; end the stream if that can't be done in time."""
        if self._holds is None:
            return
        self._view.runs(self._holds)
        for uid in self._holds:
            name = self._workflows.name_of_gone(uid)
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

    def _not_held(self) -> list[Raw]:
        if self._holds is None:
            return []
        readable = self._readable()
        mine = [each for each in readable if not paused(each)]
        return [each for each in mine if uid_of(each) not in self._holds and state_of(each) in _UNDER_WAY]

    async def _lose(self, workflow: Raw) -> None:
        """The agent does not hold a Workflow that was under way."""
        try:
            if await self._writer.take(workflow, events.AgentLost()):
                self._lost(self, self._workflows.get(uid_of(workflow)) or workflow)
        except WorkflowGoneError:
            return
        except InvalidStatusError as error:
            self._report(workflow, str(error))

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _dispatch(self, workflow: Raw, write: Write) -> bool:
        """Claim and send; False if the Workflow can't be had now."""
        command = self._command(workflow)
        if command is None:
            return True
        # The claim outlives the stream: a call that is cancelled half-way may have been carried out all the same.
        claim = asyncio.ensure_future(self._writer.claim(workflow))
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
                self._spawn(self._take_back(claim, workflow))
        return True

    async def _take_back(self, claim: asyncio.Future[Raw | None], before: Raw) -> None:
        claimed = await claim
        if claimed is not None:
            log.info("Workflow %s: agent %s went before it could be sent", name_of(claimed), self.agent_id)
            await self._writer.take_back(claimed, before)

    async def _send_again(self, workflow: Raw, write: Write) -> bool:
        """Send what somebody else claimed, perhaps for this agent's stream of a while ago; False: not now.

        If the stream ends before it is sent nothing is taken back: the other may have sent it.
        """
        command = self._command(workflow)
        if command is None:
            return True
        claimed = await self._writer.reclaim(workflow)
        if claimed is None:
            return False
        if self._ending is None:
            await self._send(claimed, command, write)
        return True

    def _command(self, workflow: Raw) -> pb.GetWorkflowsResponse | None:
        """StartWorkflow; None, and the Workflow is set aside as it is now, if no message can be made of it."""
        try:
            return start_command(workflow)
        except UnsendableError as error:
            self._view.set_aside(workflow)
            self._report(workflow, str(error))
            return None

    async def _send(self, workflow: Raw, command: pb.GetWorkflowsResponse, write: Write) -> None:
        self._view.sent(workflow, self._clock())
        await write(command)
        self._sent(self, Start(workflow))

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until something changes, at most for `seconds` (None: for ever)."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
