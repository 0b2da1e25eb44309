"""The gRPC service: opens a command stream for each agent, and writes what agents report into their Workflows.

Reads Hardware and Workflows from informers that somebody else runs; writes the status of Workflows through the state
machine, each write on top of the version that it was decided from. An event is answered when the status is stored, so
an agent that repeats what was not answered loses nothing.

What agents are told:
    NOT_FOUND            no Hardware (or several) has this agent id; an event's Workflow does not exist
    PERMISSION_DENIED    the agent calls from an address that is not its machine's
    INVALID_ARGUMENT     nonsense: no id, no event, no such action
    FAILED_PRECONDITION  the Workflow's status was edited by hand and can't be read
    UNAVAILABLE          the API is away, or this server is stopping: try again
    ABORTED              try again at once; for a stream: another one with the same id took its place
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Never

import grpc
import grpc.aio

from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient
from tink.kube.informer import Informer
from tink.server import wire
from tink.server.agents import (
    MAX_AGENT_ID,
    AgentDirectory,
    ForeignAgentError,
    HardwareKey,
    UnknownAgentError,
    peer_address,
)
from tink.server.dispatch import Rejections, Start, Stop
from tink.server.events import EventStore, StaleError, WorkflowGoneError
from tink.server.hello import Hello, hello_of
from tink.server.observation import AgentObservation, ObservationKind, Observe, harmless
from tink.server.settings import ServerSettings
from tink.server.streams import Stream
from tink.server.workflows import WorkflowIndex, hardware_of, uid_of
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, name_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_EVENT_BYTES = 256 << 10
_MAX_DETAILS = 1000
_SYNC_PATIENCE = 10.0
"""Seconds that an agent is kept waiting for the server's first look at the API."""


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    keepalive_ms = int(settings.keepalive * 1000)
    return [
        # With gRPC's own bounds a rack that powers on together loses some of its streams (CANCELLED at once).
        ("grpc.server.max_pending_requests", 100_000),
        ("grpc.server.max_pending_requests_hard_limit", 200_000),
        # A machine that loses power says nothing: ask, and let agents ask as often as they do.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", _MAX_EVENT_BYTES),
        # A second server on the same port must fail, not share the agents at random.
        ("grpc.so_reuseport", 0),
    ]


class WorkflowServer:
    """Serves agents at `addresses` (host:port each; port 0: any free one, see `port`)."""

    def __init__(
        self,
        client: KubeClient,
        *,
        workflows: Informer,
        hardware: Informer,
        addresses: Sequence[str],
        settings: ServerSettings | None = None,
        observe: Observe | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._addresses = addresses
        self.port = 0
        self._workflows = workflows
        self._hardware = hardware
        self._settings = settings or ServerSettings()
        self._observe = harmless(observe) if observe is not None else lambda _: None
        self._clock = clock
        self._agents = AgentDirectory()
        self._index = WorkflowIndex()
        self._rejections = Rejections(self._settings.rejection_first, self._settings.rejection_longest)
        self._events = EventStore(client, self._index, self._rejections, clock)
        self._streams: dict[HardwareKey, Stream] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._stopping = False
        workflows.on_change(self._workflow_changed)
        workflows.on_delete(self._workflow_gone)
        hardware.on_change(self._hardware_changed)
        hardware.on_delete(self._hardware_gone)

    async def start(self) -> None:
        """Listen. Agents are answered when the informers have listed everything, which may be later.

        Raises OSError if an address can't be had.
        """
        server = grpc.aio.server(options=_options(self._settings))
        pb_grpc.add_WorkflowServiceServicer_to_server(_Service(self), server)
        for address in self._addresses:
            try:
                self.port = server.add_insecure_port(address)
            except RuntimeError as error:
                raise OSError(f"gRPC server: can't listen on {address}: is another server running there?") from error
        await server.start()
        self._server = server
        log.info("gRPC server: listening on %s (port %d)", ", ".join(self._addresses), self.port)

    async def stop(self) -> None:
        """Close all streams so that agents look for another server, and end within a few seconds."""
        self._stopping = True
        for stream in list(self._streams.values()):
            stream.end(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if self._server is not None:
            await self._server.stop(self._settings.stop_grace)
            self._server = None
        if self._background:
            await asyncio.wait(self._background, timeout=self._settings.stop_grace)
        for task in self._background:
            task.cancel()

    # --- what changes -----------------------------------------------------------------------------------------------

    def _workflow_changed(self, new: Raw, old: Raw | None) -> None:
        self._index.apply(new)
        self._wake(new)
        if old is not None and hardware_of(old) != hardware_of(new):
            self._wake(old)

    def _workflow_gone(self, old: Raw) -> None:
        self._index.remove(old)
        self._rejections.forget(uid_of(old))
        stream = self._stream_of(old)
        if stream is not None:
            stream.gone(old)

    def _wake(self, workflow: Raw) -> None:
        stream = self._stream_of(workflow)
        if stream is not None:
            stream.wake()

    def _stream_of(self, workflow: Raw) -> Stream | None:
        key = hardware_of(workflow)
        return self._streams.get(key) if key is not None else None

    def _hardware_changed(self, new: Raw, _: Raw | None) -> None:
        self._agents.apply(new)
        self._check_stream(new)

    def _hardware_gone(self, old: Raw) -> None:
        self._agents.remove(old)
        self._check_stream(old)

    def _check_stream(self, hardware: Raw) -> None:
        """End the stream of an agent that may no longer speak for its machine."""
        stream = self._streams.get((hardware["metadata"].get("namespace", ""), hardware["metadata"]["name"]))
        if stream is None:
            return
        try:
            self._admit(stream.agent_id, stream.peer)
        except UnknownAgentError as error:
            stream.end(grpc.StatusCode.NOT_FOUND, str(error))
        except ForeignAgentError as error:
            stream.end(grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def _ready(self, context: Context) -> None:
        """Wait until it is known what there is: before that, nothing can be said to be unknown."""
        if self._stopping:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        try:
            async with asyncio.timeout(_SYNC_PATIENCE):
                await self._hardware.wait_synced()
                await self._workflows.wait_synced()
        except TimeoutError:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server can't reach the Kubernetes API yet")

    # --- command streams --------------------------------------------------------------------------------------------

    def _admit(self, agent_id: str, peer: str) -> HardwareKey:
        """The machine that the agent speaks for. Raises UnknownAgentError, ForeignAgentError."""
        key = self._agents.find(agent_id)
        self._agents.authorise(key, peer, self._settings.agent_auth)
        return key

    async def serve_stream(self, agent_id: str, context: Context) -> Never:
        """Send commands to an agent until one side ends the stream."""
        peer = peer_address(context.peer())
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "agent_id is missing or too long")
        await self._ready(context)
        try:
            key = self._admit(agent_id, peer)
        except (UnknownAgentError, ForeignAgentError) as error:
            await self._refuse(context, agent_id, peer, error)
        stream = self._open(agent_id, peer, key, hello_of(context.invocation_metadata()))
        try:
            # Headers at once, so that an agent for which there is nothing to do knows that it was accepted.
            await context.send_initial_metadata(())
            ending = await stream.run(context.write)
        finally:
            self._closed(stream)
        await _abort(context, ending.code, ending.message)

    def _open(self, agent_id: str, peer: str, key: HardwareKey, hello: Hello) -> Stream:
        stream = Stream(
            agent_id,
            peer,
            key,
            holds=hello.holds,
            workflows=self._index,
            rejections=self._rejections,
            claims=self._events,
            spawn=self._spawn,
            sent=self._sent,
            clock=self._clock,
        )
        older = self._streams.get(key)
        if older is not None:
            message = f"another agent connected as {agent_id!r} from {peer}; only the newest is served"
            older.end(grpc.StatusCode.ABORTED, message)
        self._streams[key] = stream
        log.info("agent %s connected from %s, for Hardware %s/%s", agent_id, peer, *key)
        self._tell(stream, ObservationKind.CONNECTED, f"agent connected from {peer}")
        return stream

    def _closed(self, stream: Stream) -> None:
        log.info("agent %s at %s disconnected", stream.agent_id, stream.peer)
        if self._streams.get(stream.key) is not stream:
            return  # a newer stream speaks for the machine
        del self._streams[stream.key]
        self._tell(stream, ObservationKind.DISCONNECTED, f"agent at {stream.peer} disconnected")

    def _sent(self, stream: Stream, command: Start | Stop) -> None:
        if isinstance(command, Start):
            name = name_of(command.workflow)
            log.info("Workflow %s: sent to agent %s", name, stream.agent_id)
            self._tell(stream, ObservationKind.STARTED, f"workflow {name} sent to the agent", name)
        else:
            log.info("Workflow %s: agent %s told to stop it", command.name, stream.agent_id)
            self._tell(stream, ObservationKind.STOPPED, f"agent told to stop workflow {command.name}", command.name)

    def _tell(self, stream: Stream, kind: ObservationKind, message: str, workflow: str = "") -> None:
        hardware = "/".join(stream.key)
        self._observe(AgentObservation(stream.agent_id, stream.peer, kind, message, hardware, workflow))

    async def _refuse(
        self, context: Context, agent_id: str, peer: str, error: UnknownAgentError | ForeignAgentError
    ) -> Never:
        known = isinstance(error, ForeignAgentError)
        code = grpc.StatusCode.PERMISSION_DENIED if known else grpc.StatusCode.NOT_FOUND
        hardware = "/".join(self._agents.find(agent_id)) if known else ""
        log.warning("agent %r at %s refused: %s", agent_id, peer, error)
        self._observe(AgentObservation(agent_id, peer, ObservationKind.REFUSED, str(error), hardware))
        await _abort(context, code, str(error))

    # --- events -----------------------------------------------------------------------------------------------------

    async def take_event(self, message: pb.Event, context: Context) -> pb.PublishEventResponse:
        """Write an agent's event into its Workflow; answered when it is stored."""
        peer = peer_address(context.peer())
        try:
            event = wire.event_of(message)
        except wire.MalformedEventError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._ready(context)
        workflow = self._index.get(message.workflow_id)
        if workflow is None:
            if self._index.is_gone(message.workflow_id):
                return pb.PublishEventResponse()  # it ended, and was deleted: nothing changes any more
            await _abort(context, grpc.StatusCode.NOT_FOUND, f"there is no Workflow {message.workflow_id[:64]!r}")
        key = hardware_of(workflow) or ("", "")
        stream = self._streams.get(key)
        agent_id = stream.agent_id if stream is not None else self._agents.id_of(key)
        try:
            self._agents.authorise(key, peer, self._settings.agent_auth)
        except ForeignAgentError as error:
            log.warning("event for Workflow %s from %s refused: %s", name_of(workflow), peer, error)
            self._observe(AgentObservation(agent_id, peer, ObservationKind.REFUSED, str(error), "/".join(key)))
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, str(error))
        try:
            changed = await self._events.take(workflow, event)
        except WorkflowGoneError:
            return pb.PublishEventResponse()
        except UnknownActionError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InvalidStatusError as error:
            log.error("event refused: %s", error)
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except StaleError as error:
            await _abort(context, grpc.StatusCode.ABORTED, str(error))
        except ApiError as error:
            log.warning("Workflow %s: an event could not be stored: %s", name_of(workflow), error)
            await _abort(context, grpc.StatusCode.UNAVAILABLE, f"the event could not be stored: {error}")
        if changed:
            story = wire.describe(workflow, event)
            log.info("Workflow %s: agent %s: %s", name_of(workflow), agent_id, story)
            self._observe(
                AgentObservation(agent_id, peer, ObservationKind.EVENT, story, "/".join(key), name_of(workflow))
            )
        self._wake(workflow)
        return pb.PublishEventResponse()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class _Service(pb_grpc.WorkflowServiceServicer):
    """The methods by their names in the proto."""

    def __init__(self, server: WorkflowServer) -> None:
        self._server = server

    async def GetWorkflows(  # type: ignore[override] # noqa: N802 - the stub types the generator form; name of the proto
        self, request: pb.GetWorkflowsRequest, context: Context
    ) -> None:
        await self._server.serve_stream(request.agent_id, context)

    async def PublishEvent(  # noqa: N802 - name of the proto
        self, request: pb.PublishEventRequest, context: Context
    ) -> pb.PublishEventResponse:
        return await self._server.take_event(request.event, context)


async def _abort(context: Context, code: grpc.StatusCode, message: str) -> Never:
    await context.abort(code, message[:_MAX_DETAILS])
    raise AssertionError("unreachable: abort raises")
