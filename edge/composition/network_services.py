"""What serves one network: DHCP, TFTP, syslog and router advertisements on its interface, HTTP at its address; made
anew when the network is another one.

What each is bound to decides what it has to follow. DHCP says this host's address in every answer and its sockets are
bound to the interface: another address or another interface of the same name needs new sockets, and without an address
it is silent. TFTP's sockets are bound to both; they can be moved to a new interface, so that transfers go on. A TCP
socket that listens at an address that goes and comes back hears again by itself, and so do its connections.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from aiohttp import web

from edge.composition.host import NetworkState
from edge.dhcp import DhcpServer, Responder
from edge.neighbour.router_advertisement import RouterAdvertiser
from edge.syslog import SyslogServer, SyslogServerError
from edge.tftp import BootFiles, TftpServer

log = logging.getLogger(__name__)

_BACKLOG = 1024  # connections that may wait: a rack of machines asks at the same moment


class ServingError(Exception):
    """A service can't start; says which, why and what to do."""


MakeResponder = Callable[[NetworkState], Responder]
MakeTftp = Callable[[NetworkState], tuple[BootFiles, TftpServer]]
MakeSyslog = Callable[[NetworkState], SyslogServer]


class NetworkServices:
    """DHCP, TFTP, syslog and router advertisements on one interface. A service whose maker is None is none of ours."""

    def __init__(
        self,
        state: NetworkState,
        make_responder: MakeResponder | None = None,
        make_tftp: MakeTftp | None = None,
        *,
        advertise: bool = False,
    ) -> None:
        """`state` is what the network is at the start: what machines are told is made of it before it is served."""
        self._make_responder = make_responder
        self._make_tftp = make_tftp
        self._advertise = advertise
        self._state = state
        self._make_syslog: MakeSyslog | None = None
        self._syslog: SyslogServer | None = None
        self._syslog_on: tuple[str, int] = ("", 0)
        self.responder: Responder | None = None
        self._compile(state)
        self._dhcp: DhcpServer | None = None
        self._dhcp_on: tuple[object, ...] = ()
        self._tftp: tuple[BootFiles, TftpServer] | None = None
        self._tftp_on: tuple[str, int] = ("", 0)
        self._advertiser: RouterAdvertiser | None = None
        self._advertised_on = 0

    def machine_changed(self, mac: str) -> None:
        """A Hardware has come, changed or gone: for the inventory, which calls it after each change."""
        if self.responder is not None:
            self.responder.machine_changed(mac)
        if self._tftp is not None:
            self._tftp[0].machine_changed(mac)

    async def follow(self, state: NetworkState) -> None:
        """Serve the network as it is now; nothing happens if it is as it was. Raises the parts' own errors."""
        self._state = state
        await self._follow_with_tftp(state)
        await self._follow_with_syslog(state)
        await self._follow_with_advertisements(state)
        await self._follow_with_dhcp(state)

    async def receive_logs(self, make_syslog: MakeSyslog) -> None:
        """From now on hear what machines log. Raises SyslogServerError; then it is not heard."""
        self._make_syslog = make_syslog
        try:
            await self._follow_with_syslog(self._state)
        except SyslogServerError:
            self._make_syslog = None
            raise

    async def stop(self) -> None:
        """Serve no more."""
        await self._stop_dhcp()
        if self._syslog is not None:
            await self._syslog.stop()
            self._syslog = None
        if self._advertiser is not None:
            await self._advertiser.stop()
            self._advertiser = None
        if self._tftp is not None:
            await self._tftp[1].stop()
            self._tftp = None

    # --- DHCP -----------------------------------------------------------------------------------------------------

    def _compile(self, state: NetworkState) -> None:
        """Another address: other answers. Each is made when its machine asks, or its Hardware changes."""
        if self._make_responder is None or not state.address:
            return
        settings = self.responder.settings if self.responder is not None else None
        if settings is None or (settings.server_ip, settings.networks) != (state.address, state.networks):
            self.responder = self._make_responder(state)

    async def _follow_with_dhcp(self, state: NetworkState) -> None:
        wanted = (state.address, state.index, state.networks)
        if self._make_responder is None or (self._dhcp is not None and wanted == self._dhcp_on):
            return
        await self._stop_dhcp()
        self._compile(state)
        if self.responder is None or not (state.address and state.index):
            return
        server = DhcpServer(self.responder, state.interface)
        await server.start()
        self._dhcp, self._dhcp_on = server, wanted

    async def _stop_dhcp(self) -> None:
        if self._dhcp is not None:
            await self._dhcp.stop()
            self._dhcp = None

    # --- TFTP and router advertisements ---------------------------------------------------------------------------

    async def _follow_with_tftp(self, state: NetworkState) -> None:
        """Without an address transfers wait: it may be back before their machines give up."""
        wanted = (state.address, state.index)
        if self._make_tftp is None or not all(wanted) or (self._tftp is not None and wanted == self._tftp_on):
            return
        if self._tftp is not None:
            moved = state.address == self._tftp_on[0] and self._tftp[1].move_to_interface()
            if moved:
                self._tftp_on = wanted
                return
            await self._tftp[1].stop()
            self._tftp = None
        tftp = self._make_tftp(state)
        await tftp[1].start()
        self._tftp, self._tftp_on = tftp, wanted

    async def _follow_with_syslog(self, state: NetworkState) -> None:
        wanted = (state.address, state.index)
        if self._make_syslog is None or not all(wanted) or (self._syslog is not None and wanted == self._syslog_on):
            return
        if self._syslog is not None:
            await self._syslog.stop()
            self._syslog = None
        syslog = self._make_syslog(state)
        await syslog.start()
        self._syslog, self._syslog_on = syslog, wanted

    async def _follow_with_advertisements(self, state: NetworkState) -> None:
        if not self._advertise or state.index == self._advertised_on:
            return
        if self._advertiser is not None:
            await self._advertiser.stop()
        self._advertiser, self._advertised_on = None, 0
        if state.index:
            advertiser = RouterAdvertiser(state.interface)
            await advertiser.start()
            self._advertiser, self._advertised_on = advertiser, state.index


class Sites:
    """Where one HTTP server listens: at each network's address, and where one has gone, there until it has another."""

    def __init__(self, runner: web.BaseRunner, port: int, what: str, flag: str) -> None:
        """`what` it is and the `flag` of its port, for log lines and errors."""
        self._runner = runner
        self._port = port
        self._what = what
        self._flag = flag
        self._wanted: dict[str, str] = {}
        self._open: dict[str, web.TCPSite] = {}

    async def follow(self, interface: str, address: str) -> None:
        """Listen at this address for the network of `interface`; empty: as before. Raises ServingError."""
        if not address:
            return
        self._wanted[interface] = address
        if address not in self._open:
            self._open[address] = await self._listen(address)
        for gone in self._open.keys() - set(self._wanted.values()):
            await self._open.pop(gone).stop()  # connections go on, if the address does

    async def _listen(self, address: str) -> web.TCPSite:
        site = web.TCPSite(self._runner, address, self._port, backlog=_BACKLOG, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            where = f"{self._what} can't listen on {address}:{self._port}"
            raise ServingError(f"{where}: {tcp_advice(error, self._port, self._flag)}") from error
        log.info("%s on %s:%d", self._what, address, self._port)
        return site


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
