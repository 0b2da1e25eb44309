"""What serves one network: DHCP, TFTP, syslog and router advertisements on its interface, HTTP at its addresses; made
anew when the network is another one. What there is of both IPv4 and IPv6 is two services, each at its own address.

What each is bound to decides what it has to follow. DHCP says this host's address in every answer and its sockets are
bound to the interface: another address or another interface of the same name needs new sockets, and without an address
it is silent. TFTP's sockets are bound to both; they can be moved to a new interface, so that transfers go on. A TCP
socket that listens at an address that goes and comes back hears again by itself, and so do its connections.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from aiohttp import web

from edge.dhcp import DhcpServer, Responder
from edge.dhcp6 import Dhcp6Server, Responder6
from edge.neighbour.host import NetworkState
from edge.neighbour.router_advertisement import ROUTER_LIFETIME_SECONDS, Advertised, RouterAdvertiser
from edge.syslog import SyslogServer, SyslogServerError
from edge.tftp import BootFiles
from tink.net.addresses import join_host_port

log = logging.getLogger(__name__)

_BACKLOG = 1024  # connections that may wait: a rack of machines asks at the same moment


class ServingError(Exception):
    """A service can't start; says which, why and what to do."""


MakeResponder = Callable[[NetworkState], Responder]
MakeResponder6 = Callable[[NetworkState], Responder6]


class Tftp(Protocol):
    """A TFTP server, or what has workers be one."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def move_to_interface(self) -> bool: ...


class Site(Protocol):
    """Where an HTTP server listens, as with `web.TCPSite`. `start` raises OSError."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


MakeTftp = Callable[[NetworkState, str], tuple[BootFiles | None, Tftp]]
"""At this address; without files where they are another process's."""
MakeSite = Callable[[str, int], Site]
"""At this address and port."""
MakeSyslog = Callable[[NetworkState, str], SyslogServer]
"""At this address."""


class _Service(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=_Service)


class _Slot(Generic[S]):
    """The place of one service, which is made anew when what it is bound to is something else."""

    def __init__(self) -> None:
        self.make: Callable[[NetworkState], S] | None = None
        self.service: S | None = None
        self.bound_to: tuple[object, ...] = ()

    async def follow(self, state: NetworkState, *bound_to: object, possible: bool = True) -> None:
        """Have it serve the network as it is now, or no more where that is not `possible`. Raises the part's error."""
        if self.make is None or (self.service is not None and bound_to == self.bound_to):
            return
        await self.stop()
        if possible:
            service = self.make(state)
            await service.start()
            self.service, self.bound_to = service, bound_to

    async def stop(self) -> None:
        """Serve no more."""
        service, self.service = self.service, None
        if service is not None:
            await service.stop()


class NetworkServices:
    """DHCP, TFTP, syslog and router advertisements on one interface. A service whose maker is None is none of ours."""

    def __init__(
        self,
        state: NetworkState,
        make_responder: MakeResponder | None = None,
        make_tftp: MakeTftp | None = None,
        make_responder6: MakeResponder6 | None = None,
        *,
        advertise: bool | None = False,
        routes: bool = False,
        is_ipxe: Callable[[str], bool] = lambda _mac: False,
        solicited: Callable[[str], None] | None = None,
    ) -> None:
        """`state` is what the network is at the start: what machines are told is made of it before it is served.

        `advertise`: router solicitations are answered; None: those of machines of which `is_ipxe(mac)` says that they
        are an iPXE that waits, unless DHCPv6 is served here. `routes`: answered as by a router. `solicited(mac)` is
        called for each solicitation.
        """
        self.responder: Responder | None = None
        self._state = state
        self._files: dict[str, BootFiles] = {}
        self._dhcp: _Slot[DhcpServer] = _Slot()
        self._dhcp6: _Slot[Dhcp6Server] = _Slot()
        self._responder6: Responder6 | None = None
        self._tftp: _Slot[Tftp] = _Slot()
        self._tftp6: _Slot[Tftp] = _Slot()
        self._syslog: _Slot[SyslogServer] = _Slot()
        self._syslog6: _Slot[SyslogServer] = _Slot()
        self._advertiser: _Slot[RouterAdvertiser] = _Slot()
        if make_responder is not None:
            self._dhcp.make = lambda state: DhcpServer(self._compiled(make_responder, state), state.interface)
            if state.address:
                self._compiled(make_responder, state)
        if make_responder6 is not None:
            self._dhcp6.make = lambda state: self._dhcp6_server(make_responder6(state), state)
        if make_tftp is not None:
            self._tftp.make = lambda state: self._tftp_server("4", *make_tftp(state, state.address))
            self._tftp6.make = lambda state: self._tftp_server("6", *make_tftp(state, state.address6))
        if advertise or routes:
            lifetime = ROUTER_LIFETIME_SECONDS if routes else 0
            self._advertiser.make = lambda state: RouterAdvertiser(
                state.interface,
                Advertised(self._dhcp6.make is not None, lifetime, state.networks6, state.mac),
                heard=solicited,
            )
        elif advertise is None and make_responder is not None and make_responder6 is None:
            self._advertiser.make = lambda state: RouterAdvertiser(state.interface, only=is_ipxe, heard=solicited)

    def machine_changed(self, mac: str) -> None:
        """A Hardware has come, changed or gone: for the inventory, which calls it after each change."""
        if self.responder is not None:
            self.responder.machine_changed(mac)
        if self._responder6 is not None:
            self._responder6.machine_changed(mac)
        for files in self._files.values():
            files.machine_changed(mac)

    async def follow(self, state: NetworkState) -> None:
        """Serve the network as it is now; nothing happens if it is as it was. Raises the parts' own errors."""
        self._state = state
        served, served6 = bool(state.address and state.index), bool(state.address6 and state.index)
        for slot, address in ((self._tftp, state.address), (self._tftp6, state.address6)):
            # Without an address transfers wait: it may be back in time.
            if address and state.index and not self._move_tftp(slot, address, state):
                await slot.follow(state, address, state.index)
        await self._follow_with_syslog(state)
        told = (state.index, state.networks6, state.mac)
        await self._advertiser.follow(state, *told, possible=bool(state.index))
        await self._dhcp6.follow(state, state.address6, state.index, state.networks6, state.mac, possible=served6)
        told4 = (state.address, state.index, state.networks, bool(state.address6))
        await self._dhcp.follow(state, *told4, possible=served)

    @property
    def unprobed(self) -> list[str]:
        """Return the services, such as `DHCP on eth0`, that can't probe a declined address."""
        servers = (("DHCP", self._dhcp.service), ("DHCPv6", self._dhcp6.service))
        return [f"{name} on {self._state.interface}" for name, each in servers if each is not None and each.is_unprobed]

    async def receive_logs(self, make_syslog: MakeSyslog) -> None:
        """From now on hear what machines log. Raises SyslogServerError; then it is not heard."""
        self._syslog.make = lambda state: make_syslog(state, state.address)
        self._syslog6.make = lambda state: make_syslog(state, state.address6)
        try:
            await self._follow_with_syslog(self._state)
        except SyslogServerError:
            self._syslog.make = self._syslog6.make = None
            raise

    async def stop(self) -> None:
        """Serve no more."""
        for slot in (self._dhcp, self._dhcp6, self._syslog, self._syslog6, self._advertiser, self._tftp, self._tftp6):
            await slot.stop()

    async def _follow_with_syslog(self, state: NetworkState) -> None:
        if state.address and state.index:
            await self._syslog.follow(state, state.address, state.index)
        if state.address6 and state.index:
            await self._syslog6.follow(state, state.address6, state.index)

    def _compiled(self, make: MakeResponder, state: NetworkState) -> Responder:
        """Another address: other answers. Each is made when its machine asks, or its Hardware changes."""
        responder = self.responder
        wanted = (state.address, state.networks, bool(state.address6))
        told = responder.settings if responder is not None else None
        if responder is None or told is None or (told.server_ip, told.networks, told.ipv6) != wanted:
            responder = self.responder = make(state)
        return responder

    def _dhcp6_server(self, responder: Responder6, state: NetworkState) -> Dhcp6Server:
        self._responder6 = responder
        return Dhcp6Server(responder, state.interface)

    def _tftp_server(self, family: str, files: BootFiles | None, server: Tftp) -> Tftp:
        if files is not None:
            self._files[family] = files
        return server

    @staticmethod
    def _move_tftp(slot: _Slot[Tftp], address: str, state: NetworkState) -> bool:
        """Whether it goes on, with its transfers, on an interface of the same name that was made anew."""
        bound_to = (address, state.index)
        if slot.service is None or slot.bound_to[0] != address or slot.bound_to == bound_to:
            return False
        moved = slot.service.move_to_interface()
        slot.bound_to = bound_to if moved else slot.bound_to
        return moved


class Sites:
    """Where one HTTP server listens: at each network's addresses; where one has gone, there until it has another."""

    def __init__(self, make_site: MakeSite, port: int, what: str, flag: str) -> None:
        """`what` it is and the `flag` of its port, for log lines and errors."""
        self._make_site = make_site
        self._port = port
        self._what = what
        self._flag = flag
        self._wanted: dict[tuple[str, bool], str] = {}
        self._open: dict[str, Site] = {}

    async def follow(self, interface: str, address: str) -> None:
        """Listen at this address for the network of `interface`; empty: as before. Raises ServingError."""
        if not address:
            return
        self._wanted[interface, ":" in address] = address
        if address not in self._open:
            self._open[address] = await self._listen(address)
        for gone in self._open.keys() - set(self._wanted.values()):
            await self._open.pop(gone).stop()  # connections go on, if the address does

    async def _listen(self, address: str) -> Site:
        site = self._make_site(address, self._port)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            where = f"{self._what} can't listen on {join_host_port(address, self._port)}"
            raise ServingError(f"{where}: {tcp_advice(error, self._port, self._flag)}") from error
        log.info("%s on %s", self._what, join_host_port(address, self._port))
        return site


def sites_of(runner: web.BaseRunner) -> MakeSite:
    """Of a server in this process."""
    return lambda address, port: web.TCPSite(runner, address, port, backlog=_BACKLOG, reuse_address=True)


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
