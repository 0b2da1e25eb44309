"""What a machine's older agent is to do next, or a wait for that.

A poll is a command stream that lasts until there is something to do: the dispatch sees an agent that holds nothing, for
an older agent asks only when it has nothing under way. Between two actions it does not dispatch anything: the Workflow
that is under way goes on, and where it is stands in its status. So any server can answer, also one that was started a
moment ago.

An action that runs while its agent asks for work has lost its agent: that, or the machine, was restarted. It is not run
a second time, for nobody knows what it has done to a disk: the Workflow fails with the reason AgentLost, unless it was
to reboot the machine. Only where the agent cannot have begun, because it took back its report that it begins, is the
action offered again. Before a Workflow is given up the API itself is asked: another server may have taken the action's
end a moment ago.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from proto import workflow_pb2
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.server.agents.auth import Credentials
from tink.server.dispatch.stream import CommandStream
from tink.server.dispatch.streams import AgentStreams
from tink.server.events import BusyError, EventStore, StaleError, WorkflowGoneError
from tink.server.older.messages import REASON_NOT_EXPRESSIBLE, inexpressible, next_action, running_action
from tink.server.workflows import WorkflowIndex, uid_of
from tink.workflow.events import ActionFailed, AgentEvent, Rejected
from tink.workflow.guards import paused
from tink.workflow.reasons import REASON_UNKNOWN_WORKFLOW
from tink.workflow.status import InvalidStatusError, name_of, state_of

log = logging.getLogger(__name__)

HOLD_SECONDS = 86_400.0
"""How long an agent that has nothing to do is kept waiting: as one of today's, but for a day at most. None of them sets
a deadline, pings show whether it is still there, and who may no longer speak for a machine is sent away at once.
Tinkerbell's own server keeps them for up to a minute; a poll costs as much as some minutes of waiting."""

Command = workflow_pb2.GetWorkflowsResponse
Record = Callable[[Raw, str], None]
"""Called with a Workflow and what became of it, for the journey."""


@dataclass(frozen=True, slots=True)
class Poller:
    """An agent that asks for work: its id as it gave it, and what it may speak for."""

    agent_id: str
    credentials: Credentials
    key: NamespacedName


class _Poll:
    """The command stream of one poll: it ends with the first Workflow that the agent can be told of, or after a while.
    It runs in the call's own task, and a poll that waits has little more than that."""

    __slots__ = ("_key", "_obey", "_stream", "_streams", "found")

    def __init__(
        self, streams: AgentStreams, key: NamespacedName, obey: Callable[[Command], Awaitable[Raw | None]]
    ) -> None:
        self.found: Raw | None = None
        self._streams = streams
        self._key = key
        self._obey = obey
        self._stream: CommandStream | None = None

    async def send_initial_metadata(self, _: object) -> None:
        """Older agents read none; the stream is open now."""
        self._stream = self._streams.of(self._key)

    async def write(self, command: Command) -> None:
        """What the dispatch sends."""
        self.found = await self._obey(command)
        if self.found is not None:
            self.end()

    def end(self) -> None:
        """The agent has its answer, or is to ask again."""
        if self._stream is not None:
            self._stream.end(grpc.StatusCode.OK, "")


class Polls:
    """Answers polls from `workflows`, through `events` and `streams`. `hold` is in seconds."""

    def __init__(
        self,
        workflows: WorkflowIndex,
        events: EventStore,
        streams: AgentStreams,
        record: Record,
        *,
        hold: float = HOLD_SECONDS,
    ) -> None:
        self._workflows = workflows
        self._events = events
        self._streams = streams
        self._record = record
        self._hold = hold
        self._unanswered: dict[NamespacedName, tuple[str, str]] = {}

    def unanswered(self, key: NamespacedName, uid: str, action_id: str) -> None:
        """The agent has taken back its report that it begins an action: it does not run it."""
        self._unanswered[key] = uid, action_id

    def answered(self, key: NamespacedName) -> None:
        """The agent has the answer to its report."""
        self._unanswered.pop(key, None)

    async def next(self, poller: Poller) -> Raw | None:
        """A Workflow whose next action the agent is to run; None: there is none for now. Raises ApiError."""
        under_way = await self._under_way(poller.key)
        if under_way is not None:
            return under_way
        poll = _Poll(self._streams, poller.key, self._obey)
        timer = asyncio.get_running_loop().call_later(self._hold, poll.end)
        try:
            await self._streams.serve(poller.agent_id, poller.credentials, poller.key, frozenset(), poll, quiet=True)
        finally:
            timer.cancel()
        return poll.found

    async def _under_way(self, key: NamespacedName) -> Raw | None:
        """The machine's Workflow that is between two actions."""
        for workflow in self._workflows.of(key):
            with contextlib.suppress(InvalidStatusError):  # the dispatch says what is wrong
                if paused(workflow) or state_of(workflow) is not WorkflowState.RUNNING:
                    continue
                if self._goes_on(key, workflow):
                    return workflow
                fresh = await self._fresh(workflow)
                if fresh is not None and self._goes_on(key, fresh):
                    return fresh
        return None

    def _goes_on(self, key: NamespacedName, workflow: Raw) -> bool:
        """Whether the agent that asks can go on with it. Raises InvalidStatusError."""
        if state_of(workflow) is not WorkflowState.RUNNING or next_action(workflow) is None:
            return False
        running = running_action(workflow)
        return running is None or self._unanswered.get(key) == (uid_of(workflow), running)

    async def _fresh(self, workflow: Raw) -> Raw | None:
        try:
            return await self._events.fresh(workflow)
        except WorkflowGoneError:
            return None

    async def _obey(self, command: Command) -> Raw | None:
        """The Workflow to run by this command, if it is one that the agent can be told of."""
        if command.WhichOneof("cmd") == "stop_workflow":
            workflow = self._workflows.get(command.stop_workflow.workflow_id)
            if workflow is not None:
                await self._report(workflow, Rejected(REASON_UNKNOWN_WORKFLOW, "the agent asks for work"))
            return None
        workflow = self._workflows.get(command.start_workflow.workflow.workflow_id)
        problem = inexpressible(workflow) if workflow is not None else None
        if workflow is None or problem is None:
            return workflow
        action_id, why = problem
        if await self._report(workflow, ActionFailed(action_id, REASON_NOT_EXPRESSIBLE, why)):
            log.warning("Workflow %s: %s", name_of(workflow), why)
            self._record(workflow, why)
        return None

    async def _report(self, workflow: Raw, event: AgentEvent) -> bool:
        """What an agent of today would report; if it can't be stored now, the next poll comes to the same."""
        try:
            return await self._events.take(workflow, event)
        except WorkflowGoneError:
            return False
        except (ApiError, BusyError, StaleError, InvalidStatusError) as error:
            log.warning("Workflow %s: %s", name_of(workflow), error)
            return False
