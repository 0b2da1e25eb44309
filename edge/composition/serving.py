"""What machines talk to, put together: DHCP, TFTP and HTTP on every network that is served, and the operators' HTTP.

    inventory, pending workflows -> policy, callers -> for each network: DHCP responder and sockets, TFTP socket
                                                    -> one HTTP application, which listens on each network's address

`edge.composition.stack` starts it when the inventory is filled: a machine that asks a moment earlier would be told that
nobody knows it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from aiohttp import web
from prometheus_client import CollectorRegistry

from edge.artifacts import ArtifactCache, CacheMetrics
from edge.callers import Callers, MetadataTokens, TrustedNetworks, token_keys
from edge.composition import admin_token
from edge.composition.host import Network
from edge.composition.settings import Service, StackSettings
from edge.dhcp import Changed, DhcpServer, DhcpSettings, Quarantine, Responder
from edge.http import AdminApp, MachineApp, MetadataSettings, admin_runner, build_app, machine_runner
from edge.journey.recorder import Journey
from edge.machines import (
    DhcpMode,
    Inventory,
    MachineScripts,
    NetbootPolicy,
    OsieFiles,
    OsieLookup,
    PendingWorkflows,
    ReadSecret,
)
from edge.neighbour.resolution import AddressResolution
from edge.neighbour.route import is_own
from edge.neighbour.router_advertisement import RouterAdvertiser
from edge.tftp import BootFiles, TftpServer
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tink.net.outbound import Reach
from tink.server import TokenKeys, authority_of

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_BACKLOG = 1024  # connections that may wait: a rack of machines asks at the same moment


class ServingError(Exception):
    """A service can't start; says which, why and what to do."""


class Serving:
    """Starts the edge's services, each of which `exit_stack` will stop. Made before the inventory is filled."""

    def __init__(
        self,
        settings: StackSettings,
        exit_stack: AsyncExitStack,
        *,
        inventory: Inventory,
        callers: Callers,
        workflows: PendingWorkflows,
        journey: Journey,
        osie: OsieLookup,
        declined: Changed,
        not_ready: Callable[[], str],
        read_secret: ReadSecret,
    ) -> None:
        """`osie(namespace, name)` looks an OSIE up. `declined` hears of addresses going into quarantine, and out of it.

        `not_ready()` says why machines can't be served yet; empty: they can. `read_secret` asks the Kubernetes API.
        Raises BinariesError, SettingsError, KeyFileError.
        """
        self._settings = settings
        self._exit = exit_stack
        self._inventory = inventory
        self._callers = callers
        self._journey = journey
        edge, wanted = settings.edge, settings.services
        self._policy = NetbootPolicy(edge.dhcp_mode, edge.netboot_when, workflows.has_pending, workflows.why_none)
        self._quarantine = Quarantine(time.time, edge.decline_quarantine, declined)
        metadata = _metadata_settings(settings, read_secret) if Service.HTTP in wanted else None
        boot = _boot_settings(settings, metadata)
        self._binaries = BootBinaries(edge.ipxe_dir)
        self._scripts = MachineScripts(inventory, self._policy, osie, Scripts(boot), journey.record, edge.default_osie)
        self._cache = self._artifact_cache() if wanted & {Service.HTTP, Service.TFTP} else None
        self._dhcp: list[tuple[Responder, DhcpServer]] = []
        if Service.DHCP in wanted and edge.dhcp_mode is not DhcpMode.OFF:
            self._dhcp = [self._dhcp_server(network) for network in settings.networks]
        self._tftp: list[tuple[BootFiles, TftpServer]] = []
        self._app: MachineApp | None = None
        if self._cache is not None:
            osie_files = OsieFiles(osie, self._cache)
            if Service.TFTP in wanted:
                self._tftp = [self._tftp_server(network, osie_files) for network in settings.networks]
            if metadata is not None:
                self._app = self._machine_app(osie_files, metadata, boot.tls_ca, not_ready)
        self._subscribe()

    def _subscribe(self) -> None:
        """All who keep what they made of a machine hear of its changes.

        Before the inventory is filled, so that a reservation is compiled while its Hardware is at hand.
        """
        self._inventory.on_change(self._scripts.machine_changed)
        for responder, _ in self._dhcp:
            self._inventory.on_change(responder.machine_changed)
        for files, _ in self._tftp:
            self._inventory.on_change(files.machine_changed)
        if self._app is not None:
            self._inventory.on_change(self._app.machine_changed)
            self._callers.on_change(self._app.callers_changed)

    async def start(self) -> None:
        """Start the services. Raises each part's own error."""
        settings, edge = self._settings, self._settings.edge
        metrics = CollectorRegistry()
        if self._cache is not None:
            await self._cache.start()
            self._exit.push_async_callback(self._cache.stop)
            metrics.register(CacheMetrics(self._cache))
        if self._app is not None:
            addresses = [network.address for network in settings.networks]
            await self._listen(machine_runner(self._app), addresses, edge.http_port, "HTTP", "--http-port")
        for _, tftp in self._tftp:
            await self._serve(tftp)
        if edge.router_advertisements:
            for network in settings.networks:
                await self._serve(RouterAdvertiser(network.interface))
        for _, dhcp in self._dhcp:
            await self._serve(dhcp)
        if Service.ADMIN in settings.services:
            tokens = admin_token.accepted(settings.data_dir, edge.admin_token_file)
            app = AdminApp(self._journey, self._inventory, tokens.holds, registry=metrics)
            await self._listen(admin_runner(app), [edge.admin_address], edge.admin_port, "admin HTTP", "--admin-port")

    async def run(self) -> None:
        """What has to be done now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._quarantine.expire()

    # --- the parts ----------------------------------------------------------------------------------------------------

    def _artifact_cache(self) -> ArtifactCache:
        edge, data_dir = self._settings.edge, self._settings.data_dir
        return ArtifactCache(
            data_dir / "artifacts",
            budget=edge.cache_bytes,
            file_root=edge.osie_dir or data_dir / "osie",
            reach=_reach(self._settings),
        )

    def _dhcp_server(self, network: Network) -> tuple[Responder, DhcpServer]:
        dhcp = DhcpSettings(
            server_ip=network.address,
            tftp_ip=network.address,
            http_base_url=f"http://{network.address}:{self._settings.edge.http_port}",
            peers=frozenset(other.address for other in self._settings.networks if other is not network),
        )
        responder = Responder(
            self._inventory,
            dhcp,
            self._journey.record,
            time.monotonic,
            self._binaries,
            self._policy,
            take=self._journey.note,
            quarantine=self._quarantine,
            learn=self._callers.learn,
            fast_path=self._settings.edge.fast_path,
        )
        return responder, DhcpServer(responder, network.interface)

    def _tftp_server(self, network: Network, osie_files: OsieFiles) -> tuple[BootFiles, TftpServer]:
        edge = self._settings.edge
        files = BootFiles(
            self._binaries,
            self._inventory,
            self._callers,
            self._policy,
            address=network.address,
            scripts=self._scripts,
            osie_files=osie_files,
            default_osie=edge.default_osie,
            extra=edge.tftp_dir,
            resolution=AddressResolution(self._callers.is_hidden),
        )
        server = TftpServer(
            files,
            self._journey.record,
            host=network.address,
            interface=network.interface,
            single_port=edge.tftp_single_port,
        )
        return files, server

    def _machine_app(
        self, osie_files: OsieFiles, metadata: MetadataSettings, agent_ca: bytes, not_ready: Callable[[], str]
    ) -> MachineApp:
        app = build_app(
            inventory=self._inventory,
            callers=self._callers,
            policy=self._policy,
            scripts=self._scripts,
            osie_files=osie_files,
            binaries=self._binaries,
            record=self._journey.record,
            metadata=metadata,
            agent_ca=agent_ca,
            default_osie=self._settings.edge.default_osie,
            ready=not_ready,
            fast_path=self._settings.edge.fast_path,
        )
        self._exit.callback(app.close)
        return app

    # --- how a part is started ----------------------------------------------------------------------------------------

    async def _serve(self, server: DhcpServer | TftpServer | RouterAdvertiser) -> None:
        await server.start()
        self._exit.push_async_callback(server.stop)

    async def _listen(self, runner: web.BaseRunner, addresses: list[str], port: int, what: str, flag: str) -> None:
        await runner.setup()
        self._exit.push_async_callback(runner.cleanup)
        for address in addresses:
            try:
                await web.TCPSite(runner, address, port, backlog=_BACKLOG, reuse_address=True).start()
            except OSError as error:
                where = f"{what} can't listen on {address}:{port}"
                raise ServingError(f"{where}: {tcp_advice(error, port, flag)}") from error
            log.info("%s on %s:%d", what, address, port)


def _reach(settings: StackSettings) -> Reach:
    """Where OSIEs may lead: not to this host, unless that was allowed, and never to what it serves itself."""
    edge = settings.edge
    own_ports = frozenset({edge.http_port, edge.admin_port, settings.grpc_port, settings.api_port})
    return Reach(edge.allowed_upstreams, is_own, own_ports)


def _metadata_settings(settings: StackSettings, read_secret: ReadSecret) -> MetadataSettings:
    """How metadata is served. Raises KeyFileError."""
    edge = settings.edge
    return MetadataSettings(
        keys=token_keys(settings.data_dir, edge.metadata_token_key, create=True),
        read_secret=read_secret,
        trusted=TrustedNetworks(proxies=edge.trusted_proxies, nat=edge.metadata_nat),
        token_lifetime=edge.metadata_token_lifetime,
        imds_required=edge.imds_required,
    )


def _boot_settings(settings: StackSettings, metadata: MetadataSettings | None) -> BootSettings:
    """What all machines are told. Raises TlsError, KeyFileError."""
    edge, server = settings.edge, settings.server
    tokens = MetadataTokens(metadata.keys, metadata.token_lifetime) if metadata is not None else None
    authority = authority_of(server.tls, server.tls_ca)
    keys = TokenKeys(server.tokens) if server.tokens is not None else None
    return BootSettings(
        http_port=edge.http_port,
        grpc_port=settings.grpc_port,
        grpc_authority=edge.grpc_authority,
        tinkerbell_tls=bool(authority),
        tls_ca=authority,
        token=(lambda mac: keys.mint(mac, time.time())) if keys is not None else None,
        metadata_token=tokens.mint if tokens is not None and edge.metadata_tokens else None,
        insecure_registries=edge.insecure_registries,
    )


def tcp_advice(error: OSError, port: int, flag: str) -> str:
    """Why a TCP port can't be had, and what to do."""
    number = error.errno
    if number is None and "could not bind on any address" in str(error):
        number = errno.EADDRNOTAVAIL  # asyncio keeps it to itself since Python 3.13
    match number:
        case errno.EADDRINUSE:
            return (
                f"another program has the port ('ss -ltnp sport = :{port}' names it): stop it, "
                f"or choose another port with {flag}"
            )
        case errno.EADDRNOTAVAIL:
            return "no interface of this host has that address ('ip -brief address' lists them)"
        case errno.EACCES:
            return f"not permitted: run as root, or with CAP_NET_BIND_SERVICE, or choose a port above 1023 with {flag}"
        case _:
            return error.strerror or str(error)
