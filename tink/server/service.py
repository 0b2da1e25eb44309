"""The gRPC services for agents: commands, events, output of actions; and gRPC's health and reflection services.

An event is acknowledged after the status is stored, so an agent that repeats unacknowledged events loses none.

Status codes that agents receive:
    NOT_FOUND            the event's Workflow does not exist; with AgentAuth.NONE: no Hardware (or several) has this
                         agent id
    UNAUTHENTICATED      the agent sends no token or certificate although one is required (`auth`)
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
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from proto import metadata, output_pb2, output_pb2_grpc
from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tink.limits import TokenBuckets
from tink.printable import printable
from tink.server.activity import ActivityKind, AgentActivity
from tink.server.auth import MAX_AGENT_ID, credentials_of
from tink.server.callers import Callers, abort
from tink.server.events import WorkflowGoneError
from tink.server.peer import read_call_metadata
from tink.server.workflows import MalformedEventError, event_of
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, action_name, actions_of, name_of, status_of

Context = grpc.aio.ServicerContext[Any, Any]

# --- Output of actions ---
#
# The gRPC service that receives the output of actions and reports it as AgentActivity. It stores nothing.
#
# Agents send output in pieces at a low rate (`tink.agent.output`). The limits here only affect foreign programs: pieces
# above the rate are acknowledged, dropped, and counted in the next piece.


MAX_LINES: Final = 100
MAX_LINE_CHARACTERS: Final = 400
MAX_PIECE_CHARACTERS: Final = 3900
"""Limits of one piece; the rest is counted as dropped."""

PIECES_PER_SECOND: Final = 5.0
MAX_PIECES_AT_ONCE: Final = 50.0
"""Rate limit of one machine."""

MAX_MACHINES: Final = 20_000
"""Maximum number of machines whose rate is tracked, most recent first."""

_CALL_SECONDS: Final = 60.0
_MANY: Final = 1 << 40


class OutputService(output_pb2_grpc.OutputServiceServicer):
    """The methods of proto/output.proto. `clock` returns monotonic seconds."""

    def __init__(self, callers: Callers, clock: Callable[[], float] = time.monotonic) -> None:
        self._callers = callers
        self._clock = clock
        self._buckets = TokenBuckets(MAX_PIECES_AT_ONCE, PIECES_PER_SECOND, MAX_MACHINES)
        # dropped lines by Hardware, in the order in which their senders exceeded the limit
        self._left_out: dict[str, int] = {}

    async def WriteOutput(  # noqa: N802 - name of the proto
        self, request_iterator: AsyncIterator[output_pb2.WriteOutputRequest], context: Context
    ) -> output_pb2.WriteOutputResponse:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                async for piece in request_iterator:
                    await self._take(piece, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the call took too long; open another one")
        return output_pb2.WriteOutputResponse()

    async def _take(self, piece: output_pb2.WriteOutputRequest, context: Context) -> None:
        """Report a piece of output; abort the call if the caller is not the Workflow's agent."""
        workflow, credentials = await self._callers.workflow(piece.workflow_id, context), credentials_of(context)
        key, agent_id = await self._callers.agent_of(workflow, credentials, context)
        for each in actions_of(status_of(workflow)):
            if str(each.get("id")) == piece.action_id:
                action = action_name(each)
                break
        else:
            return  # the Workflow has no such action, so the journey has no place for its output
        hardware, count = str(key), len(piece.lines) + min(piece.dropped, _MANY)
        if not self._buckets.allows(hardware, self._clock()):
            self._left_out[hardware] = self._left_out.get(hardware, 0) + count
            if len(self._left_out) > MAX_MACHINES:
                del self._left_out[next(iter(self._left_out))]
            return
        lines = fitting(piece.lines)
        dropped = count - len(lines) + self._left_out.pop(hardware, 0)
        self._callers.parts.observe(
            AgentActivity(
                agent_id,
                credentials.peer,
                ActivityKind.OUTPUT,
                f"action {action}: {lines[-1] if lines else f'{dropped} lines of output left out'}",
                hardware,
                name_of(workflow),
                action=action,
                lines=lines,
                dropped=dropped,
                elsewhere=credentials.peer not in self._callers.parts.agents.addresses(key),
            )
        )


def fitting(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the newest of `lines` that fit, oldest first, without terminal control characters."""
    kept, room = [], MAX_PIECE_CHARACTERS
    for line in reversed(lines[-MAX_LINES:]):
        text = printable(line[:MAX_LINE_CHARACTERS], keep="\t")
        room -= len(text) + 1
        if room < 0:
            break
        kept.append(text)
    return tuple(reversed(kept))


# --- Commands and events ---


_STREAMS_AT_ONCE, _STREAMS_PER_SECOND = 20, 1.0
"""Rate limit for opening the stream of one machine: each time adds a line to the log and the journey."""


class WorkflowService(pb_grpc.WorkflowServiceServicer):
    """The methods of proto/workflow.proto."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._openings = TokenBuckets(_STREAMS_AT_ONCE, _STREAMS_PER_SECOND)

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
        with self._callers.streams.opened(agent_id, credentials, key, holds) as (stream, token):
            # Headers at once, so that an agent for which there is nothing to do knows that it was accepted.
            await context.send_initial_metadata(((metadata.TOKEN, token),) if token else ())
            ending = await stream.run(context.write)
        await abort(context, ending.code, ending.message)

    async def PublishEvent(  # noqa: N802 - name of the proto
        self, request: pb.PublishEventRequest, context: Context
    ) -> pb.PublishEventResponse:
        message, credentials = request.event, credentials_of(context)
        try:
            event = event_of(message)
        except MalformedEventError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._callers.synced(context)
        workflows = self._callers.parts.workflows
        if workflows.get(message.workflow_id) is None and workflows.name_of_gone(message.workflow_id) is not None:
            return pb.PublishEventResponse()  # the Workflow ended and was deleted, so the event changes nothing
        workflow = await self._callers.workflow(message.workflow_id, context)
        try:
            await self._callers.take(workflow, event, credentials, context)
        except WorkflowGoneError:
            return pb.PublishEventResponse()
        except UnknownActionError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InvalidStatusError as error:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PublishEventResponse()


# --- Health and reflection ---
#
# gRPC's standard services: health (for probes and load balancers) and reflection (for grpcurl).
#
# Health is NOT_SERVING until the first `set_serving(True)`, and after `draining`; for the server as a whole (the empty
# name) and for each service.


_NOTIFY_SECONDS = 1.0
"""Seconds to notify the watchers of health: a watcher that does not read must not delay the server's stop."""


class HealthAndReflection:
    """The health and reflection services of a server. `services` are the full names of its other services."""

    def __init__(self, services: Sequence[str]) -> None:
        self._services = services
        self._health = health.aio.HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add both services to a server that has not started; several servers can share them."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection([*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME], server)

    async def set_serving(self, serving: bool) -> None:
        """Report SERVING or NOT_SERVING."""
        states = health_pb2.HealthCheckResponse
        for name in ("", *self._services):
            await self._health.set(name, states.SERVING if serving else states.NOT_SERVING)

    async def draining(self) -> None:
        """Report NOT_SERVING for good."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_NOTIFY_SECONDS):
                await self._health.enter_graceful_shutdown()
