"""What machines talk to, put together: DHCP, TFTP and HTTP on every network that is served, and the operators' HTTP.

    inventory, work -> policy, callers -> for each network: responder and DHCP sockets, TFTP socket, advertisements
                                       -> one HTTP application, which listens on each network's address

`edge.stack` starts it when the inventory is filled: a machine that asks a moment earlier would be told that nobody
knows it.
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

from edge import admin_token
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.metrics import CacheMetrics
from edge.callers import Callers
from edge.dhcp import Changed, DhcpServer, DhcpSettings, Quarantine, Responder
from edge.host import Network
from edge.http.admin import AdminApp, admin_runner
from edge.http.app import build_app, machine_runner
from edge.http.asking import Rules
from edge.http.metadata import MetadataSettings
from edge.inventory import Inventory
from edge.journey.recorder import Journey
from edge.machine_scripts import MachineScripts
from edge.metadata_tokens import MetadataTokens, token_keys
from edge.neighbour.meeting import Meeting
from edge.neighbour.route import is_own
from edge.neighbour.router_advertisement import RouterAdvertiser
from edge.osie_files import OsieFiles
from edge.policy import DhcpMode, NetbootPolicy
from edge.secret_documents import ReadSecret
from edge.settings import EdgeSettings, Service, StackSettings
from edge.tftp.files import BootFiles
from edge.tftp.server import TftpServer
from edge.work import Work
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings, Scripts
from tink.kube.cache import Informer
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
        work: Work,
        journey: Journey,
        declined: Changed,
        not_ready: Callable[[], str],
        read_secret: ReadSecret,
    ) -> None:
        """`declined` hears when an address goes into quarantine and comes out of it.

        `not_ready()` says why machines can't be served yet; empty: they can. `read_secret` asks the Kubernetes API.
        Raises BinariesError, SettingsError, KeyFileError.
        """
        self._settings = settings
        self._exit = exit_stack
        self._inventory = inventory
        self._journey = journey
        self._not_ready = not_ready
        self._metrics = CollectorRegistry()
        edge = settings.edge
        self._policy = NetbootPolicy(edge.dhcp_mode, edge.netboot_when, work.has_work, work.why_none)
        self._callers = callers
        self._quarantine = Quarantine(time.time, edge.decline_quarantine, declined)
        self._metadata = _metadata_settings(settings, read_secret) if Service.HTTP in settings.services else None
        self._boot = _boot_settings(settings, self._metadata)
        self._binaries = BootBinaries(edge.ipxe_dir)
        # Before the inventory is filled, so that a reservation is compiled while its Hardware is at hand.
        self._dhcp: list[DhcpServer] = []
        if Service.DHCP in settings.services and edge.dhcp_mode is not DhcpMode.OFF:
            self._dhcp = [self._dhcp_server(network) for network in settings.networks]

    async def start(self, osies: Informer | None) -> None:
        """Start those that the settings name. `osies` is needed for HTTP and TFTP. Raises each part's own error."""
        edge, wanted = self._settings.edge, self._settings.services
        cache = await self._start_cache(edge) if osies is not None else None
        if self._metadata is not None and osies is not None and cache is not None:
            await self._start_http(osies, cache, self._metadata)
        for network in self._settings.networks:
            if Service.TFTP in wanted and osies is not None and cache is not None:
                await self._start_tftp(network, osies, cache)
            if edge.router_advertisements:
                await self._serve(RouterAdvertiser(network.interface))
        for server in self._dhcp:
            await self._serve(server)
        if Service.ADMIN in wanted:
            tokens = admin_token.accepted(self._settings.data_dir, edge.admin_token_file)
            app = AdminApp(self._journey, self._inventory, tokens.holds, registry=self._metrics)
            await self._listen(admin_runner(app), [edge.admin_address], edge.admin_port, "admin HTTP", "--admin-port")

    async def run(self) -> None:
        """What has to be done now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            self._quarantine.expire()

    async def _start_tftp(self, network: Network, osies: Informer, cache: ArtifactCache) -> None:
        edge = self._settings.edge
        scripts = MachineScripts(
            self._inventory, self._policy, osies.get, Scripts(self._boot), self._journey.record, edge.default_osie
        )
        files = BootFiles(
            self._binaries,
            self._inventory,
            self._callers,
            self._policy,
            address=network.address,
            scripts=scripts,
            osie_files=OsieFiles(osies.get, cache),
            default_osie=edge.default_osie,
            extra=edge.tftp_dir,
            meeting=Meeting(self._callers.is_hidden),
        )
        server = TftpServer(
            files,
            self._journey.record,
            host=network.address,
            interface=network.interface,
            single_port=edge.tftp_single_port,
        )
        await self._serve(server)

    def _dhcp_server(self, network: Network) -> DhcpServer:
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
        )
        self._inventory.on_change(responder.machine_changed)
        return DhcpServer(responder, network.interface)

    async def _start_http(self, osies: Informer, cache: ArtifactCache, metadata: MetadataSettings) -> None:
        app = build_app(
            inventory=self._inventory,
            callers=self._callers,
            policy=self._policy,
            osie=osies.get,
            cache=cache,
            binaries=self._binaries,
            record=self._journey.record,
            settings=self._boot,
            metadata=metadata,
            default_osie=self._settings.edge.default_osie,
            ready=self._not_ready,
        )
        addresses = [network.address for network in self._settings.networks]
        await self._listen(machine_runner(app), addresses, self._settings.edge.http_port, "HTTP", "--http-port")

    async def _start_cache(self, edge: EdgeSettings) -> ArtifactCache:
        data_dir = self._settings.data_dir
        cache = ArtifactCache(
            data_dir / "artifacts",
            budget=edge.cache_bytes,
            file_root=edge.osie_dir or data_dir / "osie",
            reach=_reach(self._settings),
        )
        await cache.start()
        self._exit.push_async_callback(cache.stop)
        self._metrics.register(CacheMetrics(cache))
        return cache

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
        rules=Rules(proxies=edge.trusted_proxies, nat=edge.metadata_nat),
        token_lifetime=edge.metadata_token_lifetime,
        imds_required=edge.imds_required,
    )


def _boot_settings(settings: StackSettings, metadata: MetadataSettings | None = None) -> BootSettings:
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
