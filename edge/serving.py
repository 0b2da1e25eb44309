"""What machines talk to, put together: DHCP, TFTP and HTTP on every network that is served, and the operators' HTTP.

    inventory, work -> policy, callers -> for each network: responder and DHCP sockets, TFTP socket, advertisements
                                       -> one HTTP application, which listens on each network's address

`edge.stack` starts it when the inventory is filled: a machine that asks a moment earlier would be told that nobody
knows it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from aiohttp import web

from edge.artifacts.cache import ArtifactCache
from edge.callers import Callers
from edge.dhcp.responder import DhcpSettings, Responder
from edge.dhcp.server import DhcpServer
from edge.host import Network
from edge.http.admin import build_admin_app
from edge.http.app import build_app, machine_runner
from edge.inventory import Inventory
from edge.journey.recorder import Journey
from edge.neighbour.router_advertisement import RouterAdvertiser
from edge.policy import DhcpMode, NetbootPolicy
from edge.settings import EdgeSettings, Service, StackSettings
from edge.tftp.files import BootFiles
from edge.tftp.server import TftpServer
from ipxe.binaries import BootBinaries
from ipxe.scripts import BootSettings
from tink.kube.informer import Informer

log = logging.getLogger(__name__)


class ServingError(Exception):
    """A service can't start; says which, why and what to do."""


class Serving:
    """Starts the edge's services, each of which `exit_stack` will stop."""

    def __init__(
        self,
        settings: StackSettings,
        exit_stack: AsyncExitStack,
        *,
        inventory: Inventory,
        journey: Journey,
        not_ready: Callable[[], str],
    ) -> None:
        """`not_ready()` says why machines can't be served yet; empty: they can."""
        self._settings = settings
        self._exit = exit_stack
        self._inventory = inventory
        self._journey = journey
        self._not_ready = not_ready
        self._policy = NetbootPolicy(settings.edge.dhcp_mode, settings.edge.netboot_when)
        self._callers = Callers(inventory, settings.edge.dhcp_mode)

    async def start(self, osies: Informer | None) -> None:
        """Start those that the settings name. `osies` is needed for HTTP and TFTP. Raises each part's own error."""
        edge, wanted = self._settings.edge, self._settings.services
        binaries = BootBinaries(edge.ipxe_dir)
        if Service.HTTP in wanted and osies is not None:
            await self._start_http(osies, binaries)
        for network in self._settings.networks:
            if Service.TFTP in wanted:
                await self._start_tftp(network, binaries)
            if Service.DHCP in wanted and edge.dhcp_mode is not DhcpMode.OFF:
                await self._start_dhcp(network, binaries)
            if edge.router_advertisements:
                await self._serve(RouterAdvertiser(network.interface))
        if Service.ADMIN in wanted:
            app = build_admin_app(self._journey, self._inventory)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await self._listen(runner, [edge.admin_address], edge.admin_port, "admin HTTP", "--admin-port")

    async def _start_tftp(self, network: Network, binaries: BootBinaries) -> None:
        files = BootFiles(binaries, self._inventory, self._callers, self._policy)
        await self._serve(TftpServer(files, self._journey.record, host=network.address, interface=network.interface))

    async def _start_dhcp(self, network: Network, binaries: BootBinaries) -> None:
        dhcp = DhcpSettings(
            server_ip=network.address,
            tftp_ip=network.address,
            http_base_url=f"http://{network.address}:{self._settings.edge.http_port}",
        )
        responder = Responder(self._inventory, dhcp, self._journey.record, time.monotonic, binaries, self._policy)
        await self._serve(DhcpServer(responder, network.interface))

    async def _start_http(self, osies: Informer, binaries: BootBinaries) -> None:
        cache = await self._start_cache(self._settings.edge)
        first = self._settings.networks[0].address
        boot = BootSettings(
            http_url=f"http://{first}:{self._settings.edge.http_port}",
            grpc_authority=self._settings.edge.grpc_authority or f"{first}:{self._settings.grpc_port}",
            insecure_registries=self._settings.edge.insecure_registries,
        )
        app = build_app(
            inventory=self._inventory,
            callers=self._callers,
            policy=self._policy,
            osie=osies.get,
            cache=cache,
            binaries=binaries,
            record=self._journey.record,
            settings=boot,
            ready=self._not_ready,
        )
        addresses = [network.address for network in self._settings.networks]
        await self._listen(machine_runner(app), addresses, self._settings.edge.http_port, "HTTP", "--http-port")

    async def _start_cache(self, edge: EdgeSettings) -> ArtifactCache:
        data_dir = self._settings.data_dir
        cache = ArtifactCache(data_dir / "artifacts", file_root=edge.osie_dir or data_dir / "osie")
        await cache.start()
        self._exit.push_async_callback(cache.stop)
        return cache

    # --- how a part is started ----------------------------------------------------------------------------------------

    async def _serve(self, server: DhcpServer | TftpServer | RouterAdvertiser) -> None:
        await server.start()
        self._exit.push_async_callback(server.stop)

    async def _listen(self, runner: web.AppRunner, addresses: list[str], port: int, what: str, flag: str) -> None:
        await runner.setup()
        self._exit.push_async_callback(runner.cleanup)
        for address in addresses:
            try:
                await web.TCPSite(runner, address, port, reuse_address=True).start()
            except OSError as error:
                where = f"{what} can't listen on {address}:{port}"
                raise ServingError(f"{where}: {tcp_advice(error, port, flag)}") from error
            log.info("%s on %s:%d", what, address, port)


def tcp_advice(error: OSError, port: int, flag: str) -> str:
    """Why a TCP port can't be had, and what to do."""
    match error.errno:
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
