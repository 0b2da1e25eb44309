"""The gRPC service: opens a command stream for each agent, and writes what agents report into their Workflows.

Reads Hardware and Workflows from informers that somebody else runs; writes the status of Workflows through the state
machine, each write on top of the version that it was decided from. An event is answered when the status is stored, so
an agent that repeats what was not answered loses nothing.

What agents are told:
    NOT_FOUND            an event's Workflow does not exist; where anybody may speak for any machine
                         (AgentAuth.NONE), no Hardware (or several) has this agent id
    UNAUTHENTICATED      the agent shows nothing where a token or a certificate is asked for (`tink.server.auth`)
    PERMISSION_DENIED    what it shows (its address, by default) is not its machine's, or there is no such machine
    INVALID_ARGUMENT     nonsense: no id, no event, no such action
    FAILED_PRECONDITION  the Workflow's status was edited by hand and can't be read
    UNAVAILABLE          the API is away, or this server is stopping, or the token wants to be renewed: try again
    RESOURCE_EXHAUSTED   too many calls, of this address or of all (`tink.server.crowd`), or too large a message
    ABORTED              try again at once; for a stream: another one with the same id took its place
"""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Never

import grpc
import grpc.aio

from proto import metadata, output_pb2
from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from proto.output_pb2_grpc import add_OutputServiceServicer_to_server
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient
from tink.kube.informer import Informer
from tink.limits.once_per import OncePer
from tink.server import wire
from tink.server.agents import MAX_AGENT_ID, AgentDirectory, HardwareKey, UnknownAgentError
from tink.server.auth import Door, ForeignAgentError, HiddenAgentError, Shown, Stranger, shown_by
from tink.server.connections import Limits
from tink.server.crowd import Crowd
from tink.server.dispatch import Start, Stop
from tink.server.events import BusyError, EventStore, StaleError, WorkflowGoneError
from tink.server.guard import Guard
from tink.server.hello import Hello, hello_of
from tink.server.observation import AgentObservation, ObservationKind, Observe, harmless
from tink.server.output import OutputService, Speaker
from tink.server.pace import Pace
from tink.server.reboots import RebootWatch
from tink.server.settings import ServerSettings
from tink.server.standard import StandardServices
from tink.server.streams import Stream
from tink.server.tls import Certificates
from tink.server.tokens import TokenError, TokenKeys
from tink.server.workflows import WorkflowIndex, hardware_of
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, action_name, actions_of, name_of, status_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_EVENT_BYTES = 256 << 10
_MAX_DETAILS = 1000
_SAY_AGAIN = 60.0
"""Seconds after which the same refusal is worth another line, in the log and on the journey."""
_STREAMS_AT_ONCE, _STREAMS_PER_SECOND = 20, 1.0
"""How often one machine's agent may open its stream: each time is a line in the log and on the journey."""
_SERVICES = [
    pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
    output_pb2.DESCRIPTOR.services_by_name["OutputService"].full_name,
]
_STREAMS = 100
"""Calls that one connection may have at once: the least that RFC 9113 section 6.5.2 recommends. An agent has ten, and a
proxy that brings many agents opens more connections."""
_PENDING = 1_500
"""Calls of a method that wait for us, from which on some are turned away, and at twice as many all. They have 40 MB,
or 90 where each has a connection of its own. Of 10,000 agents that come in one moment most have to try again, once or
twice: all of them are in within 14 s on two cores."""
_WAITED = 10
"""Seconds for which a call waits for us."""
_METADATA_BYTES = 16 << 10
_SHARE, _SMALLEST_SHARE = 512, 16
"""Connections of one address, where the operator does not say and there are many files, or very few."""
_SYNC_PATIENCE = 10.0
"""Seconds that an agent is kept waiting for the server's first look at the API."""


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    keepalive_ms = int(settings.keepalive * 1000)
    return [
        # A call that waits for us costs 13 kB, also when it was cancelled: a connection has few of them, and all
        # together have bounded memory. With gRPC's own bound a rack that powers on together loses some of its streams.
        ("grpc.max_concurrent_streams", _STREAMS),
        ("grpc.server.max_pending_requests", _PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _PENDING),
        # What waited for longer is not waited for any more. (The name in seconds, and gRPC's own, for once.)
        ("grpc.server_max_unrequested_time_in_server", _WAITED),
        # No call of ours has more: a table of one connection's headers, and what is read of it at once.
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.experimental.tcp_max_read_chunk_size", 64 << 10),
        ("grpc.tcp_receive_buffer_size", 128 << 10),
        # A machine that loses power says nothing: ask, and let agents ask as often as they do.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
        # gRPC measures the answer to a keepalive's ping by this one, which is a minute otherwise.
        ("grpc.http2.ping_timeout_ms", keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", _MAX_EVENT_BYTES),
        # Whoever connects and says nothing, or no HTTP/2, or has no call open, does not stay.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 300_000),
        # The rest of our files are for DHCP, TFTP and HTTP, which have to go on. The guard makes room before.
        ("grpc.max_allowed_incoming_connections", _affordable()),
        # A second server on the same port must fail, not share the agents at random.
        ("grpc.so_reuseport", 0),
    ]


def _affordable() -> int:
    """Connections for which there are files."""
    return max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 * 3)


def _limits(settings: ServerSettings) -> Limits:
    most = _affordable() * 7 // 8
    return Limits(most, settings.connections_per_address or min(_SHARE, max(_SMALLEST_SHARE, most // 4)))


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
        stranger: Stranger = lambda _address, _macs: None,
    ) -> None:
        """`clock` gives Unix seconds; `stranger` sees who has a machine's address without being it."""
        self._addresses = addresses
        self.port = 0
        self._workflows = workflows
        self._hardware = hardware
        self._settings = settings or ServerSettings()
        self._observe = harmless(observe) if observe is not None else lambda _: None
        self._clock = clock
        self._agents = AgentDirectory()
        tokens = TokenKeys(self._settings.tokens) if self._settings.tokens is not None else None
        self._door = Door(self._agents, self._settings.agent_auth, tokens, clock, stranger)
        self._standard = StandardServices(_SERVICES)
        self._pace = Pace(_STREAMS_AT_ONCE, _STREAMS_PER_SECOND)
        self._refused = OncePer(_SAY_AGAIN, 1024)
        self._unknown = OncePer(_SAY_AGAIN, 256)
        self._index = WorkflowIndex()
        self._events = EventStore(
            client,
            self._index,
            clock,
            rejection_first=self._settings.rejection_first,
            rejection_longest=self._settings.rejection_longest,
        )
        self._streams: dict[HardwareKey, Stream] = {}
        self._reboots = RebootWatch(
            self._index,
            take=self._events.take,
            connected=self._streams.__contains__,
            spawn=self._spawn,
            rebooted=self._rebooted,
            grace=self._settings.reboot_grace,
        )
        self._shown: dict[HardwareKey, Shown] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        self._guarding: asyncio.Task[None] | None = None
        self._stopping = False
        workflows.on_change(self._workflow_changed)
        workflows.on_delete(self._workflow_gone)
        hardware.on_change(self._hardware_changed)
        hardware.on_delete(self._hardware_gone)

    async def start(self) -> None:
        """Listen. Agents are answered when the informers have listed everything, which may be later.

        Raises OSError if an address can't be had, TlsError if the certificate can't be used.
        """
        settings = self._settings
        certificates = Certificates(settings.tls) if settings.tls is not None else None
        guard = Guard(_limits(settings))
        crowd = Crowd(settings.calls, settings.calls_per_address, guard, time.monotonic, busy=_SERVICES[0])
        server = grpc.aio.server(options=_options(settings), interceptors=[crowd])
        pb_grpc.add_WorkflowServiceServicer_to_server(_Service(self), server)
        add_OutputServiceServicer_to_server(OutputService(self._speaker, self._observe), server)
        await self._standard.add_to(server)
        for address in self._addresses:
            try:
                if certificates is None:
                    self.port = server.add_insecure_port(address)
                else:
                    self.port = server.add_secure_port(address, certificates.credentials())
            except RuntimeError as error:
                raise OSError(f"gRPC server: can't listen on {address}: is another server running there?") from error
        await server.start()
        self._server = server
        self._spawn(self._say_when_ready())
        self._guard = guard
        self._guarding = asyncio.create_task(guard.run(self.port))
        self._guarding.add_done_callback(_say_why)
        encrypted = "with TLS" if certificates is not None else "without TLS"
        log.info("gRPC server: listening on %s (port %d), %s", ", ".join(self._addresses), self.port, encrypted)
        if certificates is not None:
            for host in certificates.lacking(address.rpartition(":")[0].strip("[]") for address in self._addresses):
                log.warning("gRPC server: its certificate does not name %s: agents told that won't trust it", host)

    async def stop(self) -> None:
        """Close all streams so that agents look for another server, and end within a few seconds."""
        self._stopping = True
        self._reboots.close()
        await self._standard.draining()
        for stream in list(self._streams.values()):
            stream.end(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if self._server is not None:
            await self._server.stop(self._settings.stop_grace)
            self._server = None
        if self._guarding is not None:
            self._guarding.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=self._settings.stop_grace)
        for task in self._background:
            task.cancel()

    async def _say_when_ready(self) -> None:
        waiting = asyncio.gather(self._hardware.wait_synced(), self._workflows.wait_synced())
        while not self._stopping and not waiting.done():
            await asyncio.wait([waiting], timeout=0.2)
        waiting.cancel()
        if not self._stopping:
            await self._standard.ready()

    # --- what changes -----------------------------------------------------------------------------------------------

    def _workflow_changed(self, new: Raw, old: Raw | None) -> None:
        self._index.apply(new)
        self._reboots.look(new)
        self._wake(new)
        if old is not None and hardware_of(old) != hardware_of(new):
            self._wake(old)

    def _workflow_gone(self, old: Raw) -> None:
        self._index.remove(old)
        self._reboots.forget(old)
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
        key = (hardware["metadata"].get("namespace", ""), hardware["metadata"]["name"])
        stream = self._streams.get(key)
        if stream is None:
            return
        try:
            self._door.admit(stream.agent_id, self._shown[key])
        except (UnknownAgentError, ForeignAgentError) as error:
            stream.end(_code(error), _told(error))

    async def _ready(self, context: Context) -> None:
        """Wait until it is known what there is: before that, nothing can be said to be unknown."""
        if self._stopping:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if self._hardware.synced and self._workflows.synced:
            return
        try:
            async with asyncio.timeout(_SYNC_PATIENCE):
                await self._hardware.wait_synced()
                await self._workflows.wait_synced()
        except TimeoutError:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server can't reach the Kubernetes API yet")

    # --- command streams --------------------------------------------------------------------------------------------

    async def serve_stream(self, agent_id: str, context: Context) -> Never:
        """Send commands to an agent until one side ends the stream."""
        shown = shown_by(context)
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "agent_id is missing or too long")
        await self._ready(context)
        try:
            key = self._door.admit(agent_id, shown)
        except (UnknownAgentError, ForeignAgentError) as error:
            await self._refuse(context, agent_id, shown.peer, error)
        if not self._pace.allows(key, time.monotonic()):
            hurry = "connects too often; are there two agents of this machine?"
            self._note_refusal(agent_id, key, shown.peer, f"{shown.peer} {hurry}")
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent {agent_id!r} {hurry}")
        stream = self._open(agent_id, shown, key, hello_of(context.invocation_metadata()))
        token, renewal = self._renewal(stream, shown)
        try:
            # Headers at once, so that an agent for which there is nothing to do knows that it was constraints.
            await context.send_initial_metadata(((metadata.TOKEN, token),) if token else ())
            ending = await stream.run(context.write)
        finally:
            if renewal is not None:
                renewal.cancel()
            self._closed(stream)
        await _abort(context, ending.code, ending.message)

    def _renewal(self, stream: Stream, shown: Shown) -> tuple[str, asyncio.TimerHandle | None]:
        """A new token for the agent, and the end of its stream when it is time for the next."""
        try:
            renewed = self._door.renewed(shown)
        except TokenError:
            return "", None  # its time ended a moment ago; the agent is told when it calls again
        if renewed is None:
            return "", None
        token, seconds = renewed
        self._shown[stream.key] = replace(shown, token=token)  # the one that was shown may end before the stream does
        again = (grpc.StatusCode.UNAVAILABLE, "connect again, and the token is renewed")
        spread = seconds * random.uniform(0.8, 1.0)  # noqa: S311 - a rack that booted together need not come together
        return token, asyncio.get_running_loop().call_later(spread, stream.end, *again)

    def _open(self, agent_id: str, shown: Shown, key: HardwareKey, hello: Hello) -> Stream:
        peer = shown.peer
        stream = Stream(
            agent_id,
            peer,
            key,
            holds=hello.holds,
            workflows=self._index,
            records=self._events,
            spawn=self._spawn,
            sent=self._sent,
            lost=self._lost,
            clock=self._clock,
            rejection_longest=self._settings.rejection_longest,
        )
        older = self._streams.get(key)
        if older is not None:
            message = f"another agent connected as {agent_id!r} from {peer}; only the newest is served"
            older.end(grpc.StatusCode.ABORTED, message)
        self._streams[key] = stream
        self._shown[key] = shown
        self._reboots.opened(key, hello.holds)
        log.info("agent %s connected from %s, for Hardware %s/%s", agent_id, peer, *key)
        self._tell(stream, ObservationKind.CONNECTED, f"agent connected from {peer}")
        return stream

    def _closed(self, stream: Stream) -> None:
        log.info("agent %s at %s disconnected", stream.agent_id, stream.peer)
        if self._streams.get(stream.key) is not stream:
            return  # a newer stream speaks for the machine
        del self._streams[stream.key], self._shown[stream.key]
        if not self._stopping:
            self._reboots.closed(stream.key)
        self._tell(stream, ObservationKind.DISCONNECTED, f"agent at {stream.peer} disconnected")

    def _sent(self, stream: Stream, command: Start | Stop) -> None:
        if isinstance(command, Start):
            name = name_of(command.workflow)
            log.info("Workflow %s: sent to agent %s", name, stream.agent_id)
            self._tell(stream, ObservationKind.STARTED, f"workflow {name} sent to the agent", name)
        else:
            log.info("Workflow %s: agent %s told to stop it", command.name, stream.agent_id)
            self._tell(stream, ObservationKind.STOPPED, f"agent told to stop workflow {command.name}", command.name)

    def _lost(self, stream: Stream, workflow: Raw) -> None:
        name = name_of(workflow)
        story = f"agent came back without workflow {name}, which is {status_of(workflow).get('state')}"
        log.warning("Workflow %s: %s", name, story)
        self._tell(stream, ObservationKind.EVENT, story, name)

    def _rebooted(self, workflow: Raw) -> None:
        name, key = name_of(workflow), hardware_of(workflow) or ("", "")
        story = f"agent is gone with the last action of workflow {name}, which reboots the machine"
        kind = ObservationKind.EVENT
        self._observe(AgentObservation(self._agents.id_of(key), "", kind, story, "/".join(key), name))

    def _tell(self, stream: Stream, kind: ObservationKind, message: str, workflow: str = "") -> None:
        hardware = "/".join(stream.key)
        self._observe(AgentObservation(stream.agent_id, stream.peer, kind, message, hardware, workflow))

    async def _refuse(
        self, context: Context, agent_id: str, peer: str, error: UnknownAgentError | ForeignAgentError
    ) -> Never:
        known = isinstance(error, ForeignAgentError)
        key = self._agents.find(agent_id) if known else ("", "")
        self._note_refusal(agent_id, key, peer, str(error))
        await _abort(context, _code(error), _told(error))

    def _note_refusal(self, agent_id: str, key: HardwareKey, peer: str, why: str) -> None:
        """Into the log and onto the journey, once a while for each address; of machines and of strangers apart.

        A journey is that of the machine which was named: so `why` says who asked.
        """
        why = why if peer in why else f"{peer} asked as {agent_id!r}: {why}"
        said, what = (self._refused, (key, peer)) if any(key) else (self._unknown, peer)
        if said.due(what, time.monotonic()):
            log.warning("agent %r at %s refused: %s", agent_id, peer, why)
            hardware = "/".join(key) if any(key) else ""
            self._observe(AgentObservation(agent_id, peer, ObservationKind.REFUSED, why, hardware))

    # --- events -----------------------------------------------------------------------------------------------------

    async def take_event(self, message: pb.Event, context: Context) -> pb.PublishEventResponse:
        """Write an agent's event into its Workflow; answered when it is stored."""
        shown = shown_by(context)
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
        key, agent_id = await self._agent_of(workflow, shown, context)
        try:
            changed = await self._events.take(workflow, event)
        except WorkflowGoneError:
            return pb.PublishEventResponse()
        except UnknownActionError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InvalidStatusError as error:
            if self._refused.due(("status", key), time.monotonic()):
                log.error("event refused: %s", error)
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except StaleError as error:
            await _abort(context, grpc.StatusCode.ABORTED, str(error))
        except BusyError as error:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ApiError as error:
            if self._unknown.due("API", time.monotonic()):  # for all agents alike
                log.warning("Workflow %s: an event could not be stored: %s", name_of(workflow), error)
            await _abort(context, grpc.StatusCode.UNAVAILABLE, f"the event could not be stored: {error}")
        if changed:
            story = wire.describe(workflow, event)
            elsewhere = shown.peer not in self._agents.addresses(key)
            if elsewhere:
                story += f" (so says {shown.peer})"  # it has shown something else, or nothing is asked
            log.info("Workflow %s: agent %s: %s", name_of(workflow), agent_id, story)
            names = ("/".join(key), name_of(workflow))
            self._observe(
                AgentObservation(agent_id, shown.peer, ObservationKind.EVENT, story, *names, elsewhere=elsewhere)
            )
        stream = self._streams.get(key)
        if stream is not None:
            stream.heard(message.workflow_id, event)
        return pb.PublishEventResponse()

    async def _agent_of(self, workflow: Raw, shown: Shown, context: Context) -> tuple[HardwareKey, str]:
        """The machine that a Workflow is for, and its agent's id; ends the call of anybody else."""
        key = hardware_of(workflow) or ("", "")
        stream = self._streams.get(key)
        agent_id = stream.agent_id if stream is not None else self._agents.id_of(key)
        try:
            self._door.authorise(key, shown)
        except ForeignAgentError as error:
            self._note_refusal(agent_id, key, shown.peer, str(error))
            await _abort(context, _code(error), _told(error))
        return key, agent_id

    async def _speaker(self, workflow_id: str, context: Context) -> Speaker:
        """Who sends what the actions of a Workflow print; ends the call of anybody who may not."""
        await self._ready(context)
        workflow = self._index.get(workflow_id)
        if workflow is None:
            await _abort(context, grpc.StatusCode.NOT_FOUND, f"there is no Workflow {workflow_id[:64]!r}")
        shown = shown_by(context)
        key, agent_id = await self._agent_of(workflow, shown, context)
        actions = {str(action.get("id")): action_name(action) for action in actions_of(status_of(workflow))}
        elsewhere = shown.peer not in self._agents.addresses(key)
        return Speaker(agent_id, shown.peer, "/".join(key), name_of(workflow), actions, elsewhere)

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


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("gRPC server: nobody looks after its connections any more", exc_info=task.exception())


def _code(error: UnknownAgentError | ForeignAgentError) -> grpc.StatusCode:
    return error.code if isinstance(error, ForeignAgentError | HiddenAgentError) else grpc.StatusCode.NOT_FOUND


def _told(error: UnknownAgentError | ForeignAgentError) -> str:
    """What whoever calls is told: nothing of a machine that it can't speak for."""
    return error.told if isinstance(error, ForeignAgentError | HiddenAgentError) else str(error)


async def _abort(context: Context, code: grpc.StatusCode, message: str) -> Never:
    await context.abort(code, message[:_MAX_DETAILS])
    raise AssertionError("unreachable: abort raises")
