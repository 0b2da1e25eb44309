"""The gRPC server: builds its parts, opens its ports, and handles changes of Hardware and Workflows.

The caller runs the informers of Hardware and Workflows. Every change of a Workflow's status goes through the state
machine, as a patch on top of the version that the decision was based on. `service` contains the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from proto import metadata, output_pb2
from proto import workflow_pb2 as pb
from proto.output_pb2_grpc import add_OutputServiceServicer_to_server
from proto.workflow_pb2_grpc import add_WorkflowServiceServicer_to_server
from tink.api.v1alpha2 import Raw, WorkflowState
from tink.kube.cache import AWAY_SECONDS, Informer
from tink.kube.client import ApiError, KubeClient
from tink.kube.objects import NamespacedName
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity, never_raising
from tink.server.auth import AgentAuth, AgentAuthorizer, AgentDirectory, OlderAgentAuth, OtherHost, TokenKeys
from tink.server.callers import Callers
from tink.server.connections.calls import ConcurrencyLimiter
from tink.server.connections.guard import Guard
from tink.server.connections.options import channel_options, connection_limits
from tink.server.events import BusyError, EventStore, StaleError, WorkflowGoneError
from tink.server.metrics import ServerMetrics
from tink.server.older.service import HELD, AttributesKeeper, OlderAgents, Polls, Sessions, refusal
from tink.server.older.service import SERVICES as OLDER_SERVICES
from tink.server.service import HealthAndReflection, OutputService, Reports, WorkflowService
from tink.server.settings import ServerSettings
from tink.server.streams import AgentStreams
from tink.server.tls import Certificates
from tink.server.workflows import WorkflowIndex, hardware_of
from tink.waiting import failure_is_said
from tink.workflow.events import AgentRefused
from tink.workflow.guards import under_way
from tink.workflow.status import InvalidStatusError, name_of, state_of

log = logging.getLogger(__name__)

_LOOK_SECONDS, _LOOK_SOON_SECONDS = 1.0, 0.2
"""Interval of the readiness check: while agents can be served, and while they can't."""
_DAY_SECONDS = 86400.0
_SWEEP_SECONDS = 30.0
"""Interval of the sweep that removes older agents whose connection is closed."""

_SERVICES = [
    pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
    output_pb2.DESCRIPTOR.services_by_name["OutputService"].full_name,
]


class WorkflowServer:
    """The gRPC server for agents at `addresses` (HOST:PORT each; port 0 selects a free port, see `port`)."""

    def __init__(
        self,
        client: KubeClient,
        *,
        workflows: Informer,
        hardware: Informer,
        addresses: Sequence[str],
        settings: ServerSettings | None = None,
        observe: ActivityObserver | None = None,
        clock: Callable[[], float] = time.time,
        other_host: OtherHost = lambda _address, _macs: None,
        scope: str = "",
        kept_away: Callable[[list[tuple[str, float]]], None] = lambda _: None,
        away: Iterable[tuple[str, float]] = (),
    ) -> None:
        """`clock` returns Unix seconds. `other_host` finds another host that uses a machine's address.

        `scope` describes for people which Hardware the informer lists, if not all. `kept_away` receives the networks
        (CIDR) that attacked, each with the end of its block (monotonic seconds). `away` are networks that are blocked
        from the start.
        """
        self._addresses = tuple(addresses)
        self.port = 0
        self._informers = hardware, workflows
        self._settings = settings = settings or ServerSettings()
        self._observe = never_raising(observe) if observe is not None else lambda _: None
        self._agents = AgentDirectory(scope)
        tokens = TokenKeys(settings.tokens) if settings.tokens is not None else None
        authorizer = AgentAuthorizer(self._agents, settings.agent_auth, tokens, clock, other_host)
        self._health = HealthAndReflection(_SERVICES)
        self._index = WorkflowIndex(workflows.get)
        events = EventStore(
            client,
            self._index,
            clock,
            rejection_first=settings.rejection_first,
            rejection_longest=settings.rejection_longest,
        )
        self._streams = AgentStreams(
            self._index,
            self._agents,
            authorizer,
            events,
            settings=settings,
            observe=self._observe,
            older=lambda key: self._sessions.connected(key),
            spawn=self._spawn,
            clock=clock,
        )
        self._callers = Callers(
            self._agents, authorizer, self._streams, informers=self._informers, observe=self._observe
        )
        reports = Reports(self._callers, self._agents, events, self._streams, observe=self._observe)
        self._service = WorkflowService(self._callers, reports, self._index, self._agents, self._streams)
        self._sessions = Sessions(self._is_open, self._at_work, self._observe)
        self._sweep: asyncio.TimerHandle | None = None
        self._older_callers = Callers(
            self._agents,
            _older_authorizer(authorizer, settings, self._agents, clock, other_host),
            self._streams,
            informers=self._informers,
            observe=self._observe,
        )
        self._attributes = AttributesKeeper(client, hardware.get, self._spawn, time.monotonic)
        self._older = OlderAgents(
            self._older_callers,
            Reports(self._older_callers, self._agents, events, self._streams, observe=self._observe),
            Polls(self._index, events, self._streams, self._record_on_journey),
            self._sessions,
            self._index,
            self._agents,
            self._attributes,
            refusal=refusal(settings.older_agents, settings.agent_auth),
            refused=functools.partial(_note_on_pending, self._index, events),
        )
        self._background: set[asyncio.Task[None]] = set()
        self._servers: dict[str, grpc.aio.Server] = {}
        """The servers by address. A running grpc.aio.Server accepts no further port, so each address has its own."""
        self._certificates: Certificates | None = None
        self._kept_away = kept_away
        self._away = tuple(away)
        self._guard: Guard | None = None
        self._limiter: ConcurrencyLimiter | None = None
        self._guarding: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._serving = False
        workflows.add_event_handler(self._workflow_changed, self._workflow_gone)
        hardware.add_event_handler(self._hardware_changed, self._hardware_gone)

    async def start(self) -> None:
        """Open the ports. Calls wait until the informers have listed all objects.

        Raises OSError if an address is not available, TlsError if the certificate can't be used.
        """
        settings = self._settings
        self._certificates = Certificates(settings.tls) if settings.tls is not None else None
        limits = connection_limits(settings.connections_per_address, tls=settings.tls is not None)
        self._guard = guard = Guard(limits, settings.memory, self._kept_away)
        guard.keep_away(self._away)
        self._limiter = ConcurrencyLimiter(
            settings.calls,
            settings.calls_per_address,
            guard,
            time.monotonic,
            busy=[_SERVICES[0], *OLDER_SERVICES],
            held=HELD,
            unknown=self._callers.unknown_method,
        )
        await self._health.begin()
        try:
            await self.listen_at(self._addresses)
        except BaseException:
            await self._end_servers([*self._servers])
            raise
        self._spawn(self._follow_readiness())
        if self._certificates is not None:
            self._spawn(self._follow_certificates(self._certificates))
        self._sweep_sessions()

    def metrics(self) -> ServerMetrics:
        """Return the metrics of a server that has started."""
        if self._limiter is None:
            raise RuntimeError("the server has not been started")
        ends = self._certificates.endings if self._certificates is not None else dict
        return ServerMetrics(self._limiter.counts, self._streams.__len__, lambda: self._serving, ends)

    async def listen_at(self, addresses: Collection[str]) -> None:
        """Listen at exactly these addresses (HOST:PORT each). Raises OSError.

        Agents that are connected at any other address are disconnected and look for another server.
        """
        for address in dict.fromkeys(addresses):
            if address not in self._servers:
                await self._open(address)
        gone = self._servers.keys() - set(addresses)
        if gone:
            self._spawn(self._end_servers(gone))

    async def _open(self, address: str) -> None:
        if self._limiter is None or self._guard is None:
            raise RuntimeError("the server has not been started")
        server = grpc.aio.server(options=channel_options(self._settings.keepalive), interceptors=[self._limiter])
        add_WorkflowServiceServicer_to_server(self._service, server)
        add_OutputServiceServicer_to_server(OutputService(self._service.speaker, self._observe), server)
        self._older.add_to(server)
        self._health.add_to(server)
        certificates = self._certificates
        try:
            if certificates is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, certificates.credentials())
        except RuntimeError as error:
            raise _listen_error(address) from error
        self._guard.listens(self.port)  # The kernel accepts connections already; gRPC accepts them after its start.
        await server.start()
        self._servers[address] = server
        if self._guarding is None:
            self._guarding = asyncio.create_task(self._guard.run())
            failure_is_said(self._guarding, log, "gRPC server: the guard of its connections has failed")
        encrypted = "with TLS" if certificates is not None else "without TLS"
        log.info("gRPC server: listening on %s (port %d), %s", address, self.port, encrypted)
        if certificates is not None:
            for host in certificates.lacking([address.rpartition(":")[0].strip("[]")]):
                log.warning("gRPC server: its certificate does not name %s: agents won't trust it there", host)

    async def _end_servers(self, addresses: Iterable[str]) -> None:
        servers = [self._servers.pop(address) for address in [*addresses]]
        await asyncio.gather(*(server.stop(self._settings.stop_grace) for server in servers))

    async def stop(self) -> None:
        """Send agents to another server, and stop within a few seconds.

        First the connections: GOAWAY (RFC 9113 section 6.8) makes each agent open a new connection, to another server,
        for its next call, while running calls finish here. Then the command streams, which would not end by themselves.
        """
        self._stopping.set()
        if self._sweep is not None:
            self._sweep.cancel()
        self._streams.close()
        await self._health.draining()
        ending = asyncio.ensure_future(self._end_servers([*self._servers]))
        await asyncio.sleep(0)  # lets _end_servers start: GOAWAY goes out before the streams end
        self._streams.end_all(grpc.StatusCode.UNAVAILABLE, metadata.STOPPING)
        await ending
        self._callers.close()
        self._older_callers.close()
        if self._guarding is not None:
            self._guarding.cancel()
        if self._background:
            await asyncio.wait(self._background, timeout=self._settings.stop_grace)
        for task in self._background:
            task.cancel()

    async def _follow_readiness(self) -> None:
        """Keep the health service up to date: SERVING while the informers have listed all objects and the API answers,
        because events are stored there.
        """
        while not self._stopping.is_set():
            serving = all(informer.has_synced and informer.failing_for < AWAY_SECONDS for informer in self._informers)
            if serving != self._serving:
                self._serving = serving
                await (self._health.ready() if serving else self._health.not_ready())
                if not serving:
                    log.warning(
                        "gRPC server: not serving: the Kubernetes API does not answer; agents continue by themselves"
                    )
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS if serving else _LOOK_SOON_SECONDS):
                    await self._stopping.wait()

    async def _follow_certificates(self, certificates: Certificates) -> None:
        """Report expiring certificates once a day until the server stops. The check of the settings does so at
        the start.
        """
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_DAY_SECONDS):
                    await self._stopping.wait()
                    return
            await asyncio.to_thread(certificates.say_what_ends)

    # --- older agents -----------------------------------------------------------------------------------------------

    def _is_open(self, peer: str) -> bool:
        return self._guard is not None and self._guard.is_open(peer)

    def _at_work(self, key: NamespacedName) -> bool:
        return any(under_way(workflow) for workflow in self._index.of(key))

    def _sweep_sessions(self) -> None:
        self._sessions.sweep()
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep_sessions)

    def _record_on_journey(self, workflow: Raw, story: str) -> None:
        key = hardware_of(workflow) or NamespacedName("", "")
        agent_id = self._agents.id_of(key)
        self._observe(AgentActivity(agent_id, "", ActivityKind.EVENT, story, str(key), name_of(workflow)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- what changes -----------------------------------------------------------------------------------------------

    def _workflow_changed(self, new: Raw, old: Raw | None) -> None:
        self._index.apply(new)
        self._streams.workflow_changed(new, old)

    def _workflow_gone(self, old: Raw) -> None:
        self._index.remove(old)
        self._streams.workflow_gone(old)

    def _hardware_changed(self, new: Raw, _: Raw | None) -> None:
        self._agents.apply(new)
        self._streams.hardware_changed(NamespacedName.of(new))

    def _hardware_gone(self, old: Raw) -> None:
        self._agents.remove(old)
        self._attributes.forget(NamespacedName.of(old))
        self._streams.hardware_changed(NamespacedName.of(old))


def _older_authorizer(
    current: AgentAuthorizer,
    settings: ServerSettings,
    agents: AgentDirectory,
    clock: Callable[[], float],
    other_host: OtherHost,
) -> AgentAuthorizer:
    """Return the authorizer for older agents."""
    if settings.older_agents is OlderAgentAuth.ADDRESS:
        return AgentAuthorizer(agents, AgentAuth.ADDRESS, None, clock, other_host)
    return current


async def _note_on_pending(index: WorkflowIndex, events: EventStore, key: NamespacedName, why: str) -> None:
    """Record on the machine's next Pending Workflow why its agent is refused, for `kubectl describe workflow`."""
    for workflow in index.of(key):
        with contextlib.suppress(ApiError, BusyError, StaleError, WorkflowGoneError, InvalidStatusError):
            if state_of(workflow) is WorkflowState.PENDING:
                await events.take(workflow, AgentRefused(why))
                return


def _listen_error(address: str) -> OSError:
    """Return the OSError for an address (HOST:PORT) that gRPC can't listen on."""
    # gRPC raises without an errno, so ask the kernel again.
    host, _, port = address.rpartition(":")
    text = f"gRPC server: can't listen on {address}"
    try:
        socket.create_server((host.strip("[]"), int(port)), family=_family(host), reuse_port=False).close()
    except OSError as error:
        return OSError(error.errno or errno.EADDRINUSE, text)
    return OSError(errno.EADDRINUSE, text)  # the address was in use when gRPC tried, and is free now


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
