"""The calls of agents: who asks is checked, what they ask is done, and what went wrong is said in gRPC's words.

An event is answered when the status is stored, so an agent that repeats what was not answered loses nothing.

What agents are told:
    NOT_FOUND            an event's Workflow does not exist; where anybody may speak for any machine
                         (AgentAuth.NONE), no Hardware (or several) has this agent id
    UNAUTHENTICATED      the agent shows nothing where a token or a certificate is asked for (`agents.auth`)
    PERMISSION_DENIED    what it shows (its address, by default) is not its machine's, or there is no such machine
    INVALID_ARGUMENT     nonsense: no id, no event, no such action
    FAILED_PRECONDITION  the Workflow's status was edited by hand and can't be read
    UNAVAILABLE          the API is away, or this server is stopping, or the token wants to be renewed, or the Workflow
                         is being moved to another API: try again
    RESOURCE_EXHAUSTED   too many calls, of this address or of all (`connections.concurrency`), or too large a message
    ABORTED              try again at once; for a stream: another one with the same id took its place
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proto import output_pb2, output_pb2_grpc
from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.limits.token_bucket import TokenBuckets
from tink.printable import printable
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.auth import MAX_AGENT_ID, AgentDirectory, Credentials, credentials_of
from tink.server.callers import Callers, abort, abort_unknown
from tink.server.events import BusyError, EventStore, PausedError, StaleError, WorkflowGoneError
from tink.server.peer import read_call_metadata
from tink.server.streams import AgentStreams
from tink.server.workflows import MalformedEventError, WorkflowIndex, describe, event_of, uid_of
from tink.workflow.events import AgentEvent
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, action_name, actions_of, name_of, status_of

log = logging.getLogger(__name__)

# --- Reports of agents ---
#
# What agents report, whatever they speak: stored, logged, and told to who watches.


Context = grpc.aio.ServicerContext[Any, Any]


class Reports:
    """Takes events of agents that `callers` lets in, into `events`."""

    def __init__(
        self,
        callers: Callers,
        agents: AgentDirectory,
        events: EventStore,
        streams: AgentStreams,
        *,
        observe: ActivityObserver,
    ) -> None:
        self._callers = callers
        self._agents = agents
        self._events = events
        self._streams = streams
        self._observe = observe

    async def take(self, workflow: Raw, event: AgentEvent, credentials: Credentials, context: Context) -> None:
        """Store what an agent reports of a Workflow; ends the call of who may not, and where to try again may help.

        Raises WorkflowGoneError, UnknownActionError and InvalidStatusError, where it does not.
        """
        key, agent_id = await self._callers.agent_of(workflow, credentials, context)
        if await self._store(workflow, event, key, context):
            self._tell(workflow, event, key, agent_id, credentials.peer)
        stream = self._streams.of(key)
        if stream is not None:
            stream.heard(uid_of(workflow), event)

    async def _store(self, workflow: Raw, event: AgentEvent, key: NamespacedName, context: Context) -> bool:
        """Whether the event changes the Workflow."""
        try:
            return await self._events.take(workflow, event)
        except InvalidStatusError as error:
            self._callers.of_machines.log(logging.ERROR, "event refused: %s", error, key=("status", key))
            raise
        except PausedError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except StaleError as error:
            await abort(context, grpc.StatusCode.ABORTED, str(error))
        except BusyError as error:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ApiError as error:
            text = "Workflow %s: an event could not be stored: %s"
            self._callers.of_strangers.warning(text, name_of(workflow), error, key="API")  # for all agents alike
            await abort(context, grpc.StatusCode.UNAVAILABLE, f"the event could not be stored: {error}")

    def _tell(self, workflow: Raw, event: AgentEvent, key: NamespacedName, agent_id: str, peer: str) -> None:
        story, name = describe(workflow, event), name_of(workflow)
        elsewhere = peer not in self._agents.addresses(key)
        if elsewhere:
            story += f" (so says {peer})"  # it has shown something else, or nothing is asked
        fields = {"workflow": name, "agent": agent_id, "hardware": str(key), "address": peer}
        log.info("Workflow %s: agent %s: %s", name, agent_id, story, extra={"fields": fields})
        kind = ActivityKind.EVENT
        self._observe(AgentActivity(agent_id, peer, kind, story, str(key), name, elsewhere=elsewhere))


# --- Output of actions ---
#
# The gRPC service that takes what actions print, and tells it to the floor above as what agents do (`activity`).
#
# Nothing of it is kept here. Agents send it in pieces, seldom (`tink.agent.output`), so what is refused is what no
# agent of ours sends: pieces that come faster than that are answered and left out, and counted in the next one.


LINES: Final = 100
LINE_CHARACTERS: Final = 400
PIECE_CHARACTERS: Final = 3900
"""What of one piece is told; the rest is counted as dropped."""

PIECES_PER_SECOND: Final = 5.0
PIECES_AT_ONCE: Final = 50.0
"""For one machine."""

MACHINES: Final = 20_000
"""So many machines' rates are remembered, those that were heard last."""

_CALL_SECONDS: Final = 60.0
_MANY: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who sends output. `hardware` and `workflow` are `namespace/name`; `actions` has the names of the Workflow's
    actions by their ids. `elsewhere`: `peer` is none of the Hardware's addresses."""

    agent_id: str
    peer: str
    hardware: str
    workflow: str
    actions: dict[str, str]
    elsewhere: bool = False


Authorise = Callable[[str, Context], Awaitable[Speaker]]
"""`authorise(workflow_id, context)`: who speaks, if they may speak of that Workflow; else it aborts the call."""


class OutputService(output_pb2_grpc.OutputServiceServicer):
    """The methods by their names in the proto."""

    def __init__(
        self, authorise: Authorise, observe: ActivityObserver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds that never go back."""
        self._authorise = authorise
        self._observe = observe
        self._clock = clock
        self._buckets = TokenBuckets(PIECES_AT_ONCE, PIECES_PER_SECOND, MACHINES)
        self._left_out: dict[str, int] = {}  # lines, by Hardware; those who began to lose some last come last

    async def WriteOutput(  # noqa: N802 - name of the proto
        self, request_iterator: AsyncIterator[output_pb2.WriteOutputRequest], context: Context
    ) -> output_pb2.WriteOutputResponse:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                async for piece in request_iterator:
                    speaker = await self._authorise(piece.workflow_id, context)
                    self._take(speaker, piece)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call took too long; open another one")
        return output_pb2.WriteOutputResponse()

    def _take(self, speaker: Speaker, piece: output_pb2.WriteOutputRequest) -> None:
        action = speaker.actions.get(piece.action_id)
        if action is None:
            return  # an action that the Workflow does not have prints nothing that anybody looks for
        if not self._buckets.allows(speaker.hardware, self._clock()):
            self._leave_out(speaker.hardware, len(piece.lines) + min(piece.dropped, _MANY))
            return
        lines = fitting(piece.lines)
        left_out = self._left_out.pop(speaker.hardware, 0)
        dropped = len(piece.lines) - len(lines) + min(piece.dropped, _MANY) + left_out
        self._observe(
            AgentActivity(
                speaker.agent_id,
                speaker.peer,
                ActivityKind.OUTPUT,
                f"action {action}: {lines[-1] if lines else f'{dropped} lines of output left out'}",
                speaker.hardware,
                speaker.workflow,
                action=action,
                lines=lines,
                dropped=dropped,
                elsewhere=speaker.elsewhere,
            )
        )

    def _leave_out(self, hardware: str, lines: int) -> None:
        self._left_out[hardware] = self._left_out.get(hardware, 0) + lines
        if len(self._left_out) > MACHINES:
            del self._left_out[next(iter(self._left_out))]


def fitting(lines: Sequence[str]) -> tuple[str, ...]:
    """The newest of `lines` that fit, oldest first; nothing in them moves a terminal's cursor."""
    kept, room = [], PIECE_CHARACTERS
    for line in reversed(lines[-LINES:]):
        text = printable(line[:LINE_CHARACTERS], keep="\t")
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return tuple(reversed(kept))


# --- Commands and events ---


_STREAMS_AT_ONCE, _STREAMS_PER_SECOND = 20, 1.0
"""How often one machine's agent may open its stream: each time is a line in the log and on the journey."""


class WorkflowService(pb_grpc.WorkflowServiceServicer):
    """The methods by their names in the proto, and `speaker` for the service of output."""

    def __init__(
        self,
        callers: Callers,
        reports: Reports,
        workflows: WorkflowIndex,
        agents: AgentDirectory,
        streams: AgentStreams,
    ) -> None:
        self._callers = callers
        self._reports = reports
        self._workflows = workflows
        self._agents = agents
        self._streams = streams
        self._openings = TokenBuckets(_STREAMS_AT_ONCE, _STREAMS_PER_SECOND)

    # --- command streams --------------------------------------------------------------------------------------------

    async def GetWorkflows(  # type: ignore[override] # noqa: N802 - the stub types the generator form; name of the proto
        self, request: pb.GetWorkflowsRequest, context: Context
    ) -> None:
        credentials, agent_id = credentials_of(context), request.agent_id
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "agent_id is missing or too long")
        await self._callers.synced(context)
        key = await self._callers.admit(agent_id, credentials, context)
        if not self._openings.allows(key, time.monotonic()):
            hurry = "connects too often; are there two agents of this machine?"
            self._callers.note_refusal(agent_id, key, credentials.peer, f"{credentials.peer} {hurry}")
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent {agent_id!r} {hurry}")
        holds = read_call_metadata(context.invocation_metadata()).holds
        ending = await self._streams.serve(agent_id, credentials, key, holds, context)
        await abort(context, ending.code, ending.message)

    # --- events -----------------------------------------------------------------------------------------------------

    async def PublishEvent(  # noqa: N802 - name of the proto
        self, request: pb.PublishEventRequest, context: Context
    ) -> pb.PublishEventResponse:
        message, credentials = request.event, credentials_of(context)
        try:
            event = event_of(message)
        except MalformedEventError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._callers.synced(context)
        workflow = self._workflows.get(message.workflow_id)
        if workflow is None and self._workflows.name_of_gone(message.workflow_id) is not None:
            return pb.PublishEventResponse()  # it ended, and was deleted: nothing changes any more
        if workflow is None:
            await abort_unknown(context, message.workflow_id)
        try:
            await self._reports.take(workflow, event, credentials, context)
        except WorkflowGoneError:
            return pb.PublishEventResponse()
        except UnknownActionError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InvalidStatusError as error:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PublishEventResponse()

    # --- output -----------------------------------------------------------------------------------------------------

    async def speaker(self, workflow_id: str, context: Context) -> Speaker:
        """Who sends what the actions of a Workflow print; ends the call of anybody who may not."""
        await self._callers.synced(context)
        workflow = self._workflows.get(workflow_id)
        if workflow is None:
            await abort_unknown(context, workflow_id)
        credentials = credentials_of(context)
        key, agent_id = await self._callers.agent_of(workflow, credentials, context)
        actions = {str(action.get("id")): action_name(action) for action in actions_of(status_of(workflow))}
        elsewhere = credentials.peer not in self._agents.addresses(key)
        return Speaker(agent_id, credentials.peer, str(key), name_of(workflow), actions, elsewhere)


# --- Health and reflection ---
#
# What gRPC's own tools ask any server: the health service (probes, load balancers) and reflection (grpcurl).
#
# Health is NOT_SERVING until `ready`, from `not_ready` until the next `ready`, and from `draining` on; for the server
# as a whole (the empty name) and for the service of the agents alike.


_NOTIFY_SECONDS = 1.0
"""Seconds for telling those who watch: one that does not read must not hold up the end of the server."""


class HealthAndReflection:
    """The two services, at every address of a server. `services` are the full names of what it serves otherwise."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self._health = health.aio.HealthServicer()

    async def begin(self) -> None:
        """Agents can't be served yet."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Before the server starts, of which there may be several."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)

    async def ready(self) -> None:
        """Agents can be served."""
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        """Agents can't be served at the moment."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def draining(self) -> None:
        """No more of them, for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_SECONDS):
                await self._health.enter_graceful_shutdown()

    async def _say(self, status: Any) -> None:
        for name in ("", *self._services):
            await self._health.set(name, status)
