"""The gRPC server: builds its parts, opens its ports, and handles changes of Hardware and Workflows.

The caller runs the informers of Hardware and Workflows. Every change of a Workflow's status goes through the state
machine, as a patch on top of the version that the decision was based on. `service` contains the calls.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from proto import inventory_pb2, metadata, output_pb2
from proto import workflow_pb2 as pb
from proto.inventory_pb2_grpc import add_InventoryServiceServicer_to_server
from proto.output_pb2_grpc import add_OutputServiceServicer_to_server
from proto.workflow_pb2_grpc import add_WorkflowServiceServicer_to_server
from tink.api.v1alpha2 import Raw
from tink.kube.cache import AWAY_SECONDS, Informer
from tink.kube.client import KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.runtime import EventRecorder
from tink.metrics.families import counter, gauge, histogram
from tink.server.activity import ActivityObserver, never_raising
from tink.server.auth import AgentAuth, AgentAuthorizer, AgentDirectory, OlderAgentAuth, OtherHost, TokenKeys
from tink.server.callers import Callers
from tink.server.connections.calls import ConcurrencyLimiter
from tink.server.connections.guard import Guard
from tink.server.events import EventStore
from tink.server.inventory import InventoryKeeper, InventoryService
from tink.server.older.service import HELD, AttributesKeeper, OlderAgents, Sessions
from tink.server.older.service import SERVICES as OLDER_SERVICES
from tink.server.service import HealthAndReflection, OutputService, WorkflowService
from tink.server.settings import ServerSettings, channel_options, connection_limits
from tink.server.streams import AgentStreams, ServerParts
from tink.server.tls import Certificates
from tink.server.workflows import WorkflowIndex
from tink.waiting import log_failure

log = logging.getLogger(__name__)

_COMPONENT = "tinkedge-server"
"""The name of the server in Events."""
_LOOK_SECONDS, _LOOK_SOON_SECONDS = 1.0, 0.2
"""Interval of the readiness check: while agents can be served, and while they can't."""
_DAY_SECONDS = 86400.0
_SWEEP_SECONDS = 30.0
"""Interval of the sweep that removes older agents whose connection is closed."""

_SERVICES = [
    pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
    output_pb2.DESCRIPTOR.services_by_name["OutputService"].full_name,
    inventory_pb2.DESCRIPTOR.services_by_name["InventoryService"].full_name,
]


class WorkflowServer(Collector):
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
        tokens = TokenKeys(settings.tokens) if settings.tokens is not None else None
        index, agents = WorkflowIndex(workflows.get), AgentDirectory(scope)
        self._parts = ServerParts(
            settings,
            agents,
            AgentAuthorizer(agents, settings.agent_auth, tokens, clock, other_host),
            index,
            EventStore(
                client,
                index,
                clock,
                rejection_first=settings.rejection_first,
                rejection_longest=settings.rejection_longest,
            ),
            never_raising(observe) if observe is not None else lambda _: None,
            self._spawn,
            clock,
        )
        limits = connection_limits(settings.connections_per_address, tls=settings.tls is not None)
        self._guard = Guard(limits, settings.memory, kept_away)
        self._guard.keep_away(away)
        self._sessions = Sessions(self._parts, self._guard.is_open)
        self._streams = AgentStreams(self._parts, self._sessions.connected)
        self._callers = Callers(self._parts, self._streams, self._informers)
        # Older agents have no token and no certificate, so an operator can let them in by their address alone.
        by_address = settings.older_agents is OlderAgentAuth.ADDRESS
        older = AgentAuthorizer(agents, AgentAuth.ADDRESS, None, clock, other_host) if by_address else None
        older_parts = replace(self._parts, authorizer=older or self._parts.authorizer)
        self._older_callers = Callers(older_parts, self._streams, self._informers)
        self._recorder = EventRecorder(client, _COMPONENT, now=clock)
        self._inventories = InventoryKeeper(client, hardware.get, self._spawn, self._recorder, now=clock)
        self._attributes = AttributesKeeper(client, hardware.get, self._spawn, self._inventories)
        self._older = OlderAgents(self._older_callers, self._sessions, self._attributes)
        self._service = WorkflowService(self._callers)
        self._output = OutputService(self._callers)
        self._inventory = InventoryService(self._callers, self._inventories)
        self._health = HealthAndReflection(_SERVICES)
        self._limiter = ConcurrencyLimiter(
            settings.calls,
            settings.calls_per_address,
            self._guard,
            time.monotonic,
            busy=[_SERVICES[0], *OLDER_SERVICES],
            held=HELD,
            unknown=self._callers.unknown_method,
        )
        self._background: set[asyncio.Task[None]] = set()
        self._servers: dict[str, grpc.aio.Server] = {}
        """The servers by address. A running grpc.aio.Server accepts no further port, so each address has its own."""
        self._certificates: Certificates | None = None
        self._guarding: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._serving = False
        workflows.add_event_handler(self._workflow_changed, self._workflow_gone)
        hardware.add_event_handler(self._hardware_changed, self._hardware_gone)

    async def start(self) -> None:
        """Open the ports. Calls wait until the informers have listed all objects.

        Raises OSError if an address is not available, TlsError if the certificate can't be used.
        """
        files = self._settings.tls
        self._certificates = Certificates(files) if files is not None else None
        await self._health.set_serving(False)
        try:
            await self.listen_at(self._addresses)
        except BaseException:
            await self._end_servers([*self._servers])
            raise
        self._recording = asyncio.create_task(self._recorder.run())
        self._spawn(self._follow_readiness())
        if self._certificates is not None:
            self._spawn(self._follow_certificates(self._certificates))
        self._sweep_sessions()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a server that has started, for prometheus_client's registry."""
        # The names of the first three are those of gRPC's interceptors for Prometheus.
        calls, method = self._limiter.counts, ["grpc_type", "grpc_service", "grpc_method"]
        yield counter("grpc_server_started", "Calls that have begun.", method, calls.started)
        yield counter("grpc_server_handled", "Calls that have ended, by code.", [*method, "grpc_code"], calls.handled)
        yield histogram("grpc_server_handling_seconds", "How long calls took, but for streams.", method, calls.seconds)
        agents = {(): len(self._streams)}
        yield gauge("tinkedge_agents_connected", "Agents whose command stream is open here.", [], agents)
        served = {(): self._serving}
        yield gauge("tinkedge_agents_served", "Whether agents are served: the gRPC health service.", [], served)
        endings = self._certificates.endings() if self._certificates is not None else {}
        yield gauge(
            "tinkedge_certificate_expiration_timestamp_seconds",
            "Unix time until which certificates are valid, by the option that names their file.",
            ["option"],
            {(flag.removeprefix("--"),): end.timestamp() for flag, end in endings.items()},
        )

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
        server = grpc.aio.server(options=channel_options(self._settings.keepalive), interceptors=[self._limiter])
        add_WorkflowServiceServicer_to_server(self._service, server)
        add_OutputServiceServicer_to_server(self._output, server)
        add_InventoryServiceServicer_to_server(self._inventory, server)
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
            log_failure(self._guarding, log, "gRPC server: the guard of its connections has failed")
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
        self._inventories.close()
        self._attributes.close()
        if self._background:
            await asyncio.wait(self._background, timeout=self._settings.stop_grace)
        for task in self._background:
            task.cancel()
        if self._recording is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.stop_grace):
                    await self._recorder.flush()
            self._recording.cancel()

    async def _follow_readiness(self) -> None:
        """Report SERVING while the informers have listed all objects and the API answers: events are stored there."""
        while not self._stopping.is_set():
            serving = all(informer.has_synced and informer.failing_for < AWAY_SECONDS for informer in self._informers)
            if serving != self._serving:
                self._serving = serving
                await self._health.set_serving(serving)
                if not serving:
                    log.warning(
                        "gRPC server: not serving: the Kubernetes API does not answer; agents continue by themselves"
                    )
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS if serving else _LOOK_SOON_SECONDS):
                    await self._stopping.wait()

    async def _follow_certificates(self, certificates: Certificates) -> None:
        """Log expiring certificates once a day. The check of the settings does so at the start."""
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_DAY_SECONDS):
                    await self._stopping.wait()
                    return
            await asyncio.to_thread(certificates.say_what_ends)

    def _sweep_sessions(self) -> None:
        self._sessions.sweep()
        self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep_sessions)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- changed objects --------------------------------------------------------------------------------------------

    def _workflow_changed(self, new: Raw, old: Raw | None) -> None:
        self._parts.workflows.apply(new)
        self._streams.workflow_changed(new, old)

    def _workflow_gone(self, old: Raw) -> None:
        self._parts.workflows.remove(old)
        self._streams.workflow_gone(old)

    def _hardware_changed(self, new: Raw, _: Raw | None) -> None:
        self._parts.agents.apply(new)
        self._streams.hardware_changed(NamespacedName.of(new))

    def _hardware_gone(self, old: Raw) -> None:
        key = NamespacedName.of(old)
        self._parts.agents.remove(old)
        self._attributes.forget(key)
        self._inventories.forget(key)
        self._streams.hardware_changed(key)


def _listen_error(address: str) -> OSError:
    """Return the OSError for an address (HOST:PORT) that gRPC can't listen on."""
    # gRPC raises without an errno, so ask the kernel again.
    host, _, port = address.rpartition(":")
    text, family = f"gRPC server: can't listen on {address}", socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family, reuse_port=False).close()
    except OSError as error:
        return OSError(error.errno or errno.EADDRINUSE, text)
    return OSError(errno.EADDRINUSE, text)  # the address was in use when gRPC tried, and is free now
