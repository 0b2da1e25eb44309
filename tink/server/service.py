"""The gRPC services for agents: commands, events, output of actions; and gRPC's health and reflection services.

An event is acknowledged after the status is stored, so an agent that repeats unacknowledged events loses none.

Status codes that agents receive:
    NOT_FOUND            the event's Workflow does not exist; with AgentAuth.NONE: no Hardware (or several) has this
                         agent id
    UNAUTHENTICATED      the agent shows no token or certificate although one is required (`auth`)
    PERMISSION_DENIED    the credentials (by default the address) belong to another machine, or there is no such machine
    INVALID_ARGUMENT     no id, no event, or no such action
    FAILED_PRECONDITION  the Workflow's status was edited by hand and can't be read
    UNAVAILABLE          the API does not answer, this server is stopping, the token must be renewed, or the Workflow is
                         being moved to another API: try again
    RESOURCE_EXHAUSTED   too many calls, of this address or in total (`connections.concurrency`), or too large a message
    ABORTED              try again at once; for a stream: another agent with the same id replaced it
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
# Stores, logs and reports the events of current and older agents.


Context = grpc.aio.ServicerContext[Any, Any]


class Reports:
    """Stores the events of agents that `callers` admits."""

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
        """Store an event of a Workflow. Aborts the call if the caller may not report it, or if trying again may help.

        Raises WorkflowGoneError, UnknownActionError and InvalidStatusError if trying again is useless.
        """
        key, agent_id = await self._callers.agent_of(workflow, credentials, context)
        if await self._store(workflow, event, key, context):
            self._tell(workflow, event, key, agent_id, credentials.peer)
        stream = self._streams.of(key)
        if stream is not None:
            stream.heard(uid_of(workflow), event)

    async def _store(self, workflow: Raw, event: AgentEvent, key: NamespacedName, context: Context) -> bool:
        """Store the event and return whether it changed the Workflow."""
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
            story += f" (so says {peer})"  # the agent was admitted by a token or a certificate, or without credentials
        fields = {"workflow": name, "agent": agent_id, "hardware": str(key), "address": peer}
        log.info("Workflow %s: agent %s: %s", name, agent_id, story, extra={"fields": fields})
        kind = ActivityKind.EVENT
        self._observe(AgentActivity(agent_id, peer, kind, story, str(key), name, elsewhere=elsewhere))


# --- Output of actions ---
#
# The gRPC service that receives the output of actions and reports it as AgentActivity. It stores nothing.
#
# Agents send output in pieces at a low rate (`tink.agent.output`). The limits here only affect foreign programs: pieces
# above the rate are acknowledged, dropped, and counted in the next piece.


LINES: Final = 100
LINE_CHARACTERS: Final = 400
PIECE_CHARACTERS: Final = 3900
"""Limits of one piece; the rest is counted as dropped."""

PIECES_PER_SECOND: Final = 5.0
PIECES_AT_ONCE: Final = 50.0
"""Rate limit of one machine."""

MACHINES: Final = 20_000
"""Maximum number of machines whose rate is tracked, most recent first."""

_CALL_SECONDS: Final = 60.0
_MANY: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Speaker:
    """The sender of output.

    `hardware` and `workflow` are `namespace/name`. `actions` are the names of the Workflow's actions by id.
    `elsewhere`: `peer` is not an address of the Hardware.
    """

    agent_id: str
    peer: str
    hardware: str
    workflow: str
    actions: dict[str, str]
    elsewhere: bool = False


Authorise = Callable[[str, Context], Awaitable[Speaker]]
"""`authorise(workflow_id, context)` returns the sender if it may report on that Workflow, or aborts the call."""


class OutputService(output_pb2_grpc.OutputServiceServicer):
    """The methods of proto/output.proto."""

    def __init__(
        self, authorise: Authorise, observe: ActivityObserver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._authorise = authorise
        self._observe = observe
        self._clock = clock
        self._buckets = TokenBuckets(PIECES_AT_ONCE, PIECES_PER_SECOND, MACHINES)
        # dropped lines by Hardware, in the order in which their senders exceeded the limit
        self._left_out: dict[str, int] = {}

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
            return  # the Workflow has no such action, so the journey has no place for its output
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
    """Return the newest of `lines` that fit, oldest first, without terminal control characters."""
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
"""Rate limit for opening the stream of one machine: each time adds a line to the log and the journey."""


class WorkflowService(pb_grpc.WorkflowServiceServicer):
    """The methods of proto/workflow.proto, and `speaker` for OutputService."""

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
            return pb.PublishEventResponse()  # the Workflow ended and was deleted, so the event changes nothing
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
        """Return the sender of a Workflow's output; abort the call if the caller is not its agent."""
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
# gRPC's standard services: health (for probes and load balancers) and reflection (for grpcurl).
#
# Health is NOT_SERVING until `ready`, between `not_ready` and the next `ready`, and after `draining`; for the server as
# a whole (the empty name) and for each service.


_NOTIFY_SECONDS = 1.0
"""Seconds to notify the watchers of health: a watcher that does not read must not delay the server's stop."""


class HealthAndReflection:
    """The health and reflection services at every address of a server. `services` are the full names of its other
    services.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self._health = health.aio.HealthServicer()

    async def begin(self) -> None:
        """Report NOT_SERVING until `ready`."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add both services to a server that has not started; several servers can share them."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)

    async def ready(self) -> None:
        """Report SERVING."""
        await self._say(health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        """Report NOT_SERVING until the next `ready`."""
        await self._say(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def draining(self) -> None:
        """Report NOT_SERVING for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_SECONDS):
                await self._health.enter_graceful_shutdown()

    async def _say(self, status: Any) -> None:
        for name in ("", *self._services):
            await self._health.set(name, status)
