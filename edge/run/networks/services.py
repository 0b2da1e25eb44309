"""The services of one network: DHCP, TFTP, syslog and router advertisements on its interface, HTTP at its addresses.

A service is replaced when the network changes. A service of both IPv4 and IPv6 has one instance for each. The binding
of a service decides which changes it follows:

- DHCP names this host's address in every answer, and its sockets are bound to the interface. Another address, or a new
  interface of the same name, needs new sockets. Without an address it is silent.
- TFTP's sockets are bound to address and interface. They can move to a new interface, so transfers continue.
- A TCP socket at an address that goes and returns works again by itself, and so do its connections.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from aiohttp import web

from edge.dhcp import DhcpServer, Responder
from edge.dhcp6 import Dhcp6Server, Responder6
from edge.neighbour.host import NetworkState
from edge.neighbour.router_advertisement import RouterAdvertiser
from edge.run.errors import ServingError
from edge.syslog import SyslogServer, SyslogServerError
from edge.tftp import BootFiles, TftpServer
from tink.net.addresses import join_host_port

log = logging.getLogger(__name__)

_FAMILIES: Final = ("address", "address6")  # the fields of NetworkState with the addresses of IPv4 and IPv6
_BACKLOG = 1024  # waiting connections: a rack of machines connects at the same moment

MakeSite = Callable[[str, int], web.TCPSite]  # makes an HTTP site at an address and port
MakeSyslog = Callable[[NetworkState, str], SyslogServer]  # makes the syslog server for an address


@dataclass(frozen=True, slots=True)
class ServiceMakers:
    """Make the services of a network in its current state; None: the service is not served.

    `tftp` makes the server for one address, with its files.
    """

    responder: Callable[[NetworkState], Responder | None] = lambda _state: None
    responder6: Callable[[NetworkState], Responder6 | None] = lambda _state: None
    tftp: Callable[[NetworkState, str], tuple[BootFiles, TftpServer] | None] = lambda _state, _address: None
    advertiser: Callable[[NetworkState], RouterAdvertiser | None] = lambda _state: None


S = TypeVar("S", DhcpServer, Dhcp6Server, TftpServer, SyslogServer, RouterAdvertiser)


@dataclass(eq=False)
class _Slot(Generic[S]):
    """Holds one service, and replaces it when its binding changes."""

    make: Callable[[NetworkState], S | None] | None = None
    service: S | None = None
    bound_to: tuple[object, ...] = ()

    async def follow(self, state: NetworkState, *bound_to: object, possible: bool = True) -> None:
        """Serve the network in its current state, or stop if that is not `possible`. Raises the service's error."""
        if self.make is None or (self.service is not None and bound_to == self.bound_to):
            return
        await self.stop()
        service = self.make(state) if possible else None
        if service is not None:
            await service.start()
            self.service, self.bound_to = service, bound_to

    async def stop(self) -> None:
        """Stop the service."""
        service, self.service = self.service, None
        if service is not None:
            await service.stop()


class NetworkServices:
    """DHCP, TFTP, syslog and router advertisements on one interface."""

    def __init__(self, state: NetworkState, makers: ServiceMakers) -> None:
        """`state` is the state at the start: DHCP answers are compiled from it before the network is served."""
        self.responder: Responder | None = None
        self._state = state
        self._makers = makers
        self._files: dict[str, BootFiles] = {}
        self._dhcp: _Slot[DhcpServer] = _Slot(self._dhcp_server)
        self._dhcp6: _Slot[Dhcp6Server] = _Slot(self._dhcp6_server)
        self._responder6: Responder6 | None = None
        self._tftp: dict[str, _Slot[TftpServer]] = {
            family: _Slot(partial(self._tftp_server, family)) for family in _FAMILIES
        }
        self._syslog: dict[str, _Slot[SyslogServer]] = {family: _Slot() for family in _FAMILIES}
        self._advertiser: _Slot[RouterAdvertiser] = _Slot(makers.advertiser)
        if state.address:
            self._compiled(state)

    def machine_changed(self, mac: str) -> None:
        """Discard the answers for a machine. The inventory calls this after each change of its Hardware."""
        if self.responder is not None:
            self.responder.machine_changed(mac)
        if self._responder6 is not None:
            self._responder6.machine_changed(mac)
        for files in self._files.values():
            files.machine_changed(mac)

    async def follow(self, state: NetworkState) -> None:
        """Serve the network in its current state. The same state again has no effect. Raises the services' errors."""
        self._state = state
        served, served6 = bool(state.address and state.index), bool(state.address6 and state.index)
        for family, slot in self._tftp.items():
            # Without an address, transfers wait: it may return in time.
            if (address := getattr(state, family)) and state.index and not self._move_tftp(slot, address, state):
                await slot.follow(state, address, state.index)
        await self._follow_with_syslog(state)
        advertised = (state.index, state.networks6, state.mac)
        await self._advertiser.follow(state, *advertised, possible=bool(state.index))
        await self._dhcp6.follow(state, state.address6, state.index, state.networks6, state.mac, possible=served6)
        bound_to = (state.address, state.index, state.networks, bool(state.address6))
        await self._dhcp.follow(state, *bound_to, possible=served)

    @property
    def unprobed(self) -> list[str]:
        """Return the services, such as `DHCP on eth0`, that can't probe a declined address."""
        servers = (("DHCP", self._dhcp.service), ("DHCPv6", self._dhcp6.service))
        return [f"{name} on {self._state.interface}" for name, each in servers if each is not None and each.is_unprobed]

    async def receive_logs(self, make_syslog: MakeSyslog) -> None:
        """Receive machines' log lines from now on. Raises SyslogServerError if that is not possible."""
        for family, slot in self._syslog.items():
            slot.make = lambda state, family=family: make_syslog(state, getattr(state, family))
        try:
            await self._follow_with_syslog(self._state)
        except SyslogServerError:
            for slot in self._syslog.values():
                slot.make = None
            raise

    async def stop(self) -> None:
        """Stop all services."""
        await self._dhcp.stop()
        await self._dhcp6.stop()
        await self._advertiser.stop()
        for family in _FAMILIES:
            await self._syslog[family].stop()
            await self._tftp[family].stop()

    async def _follow_with_syslog(self, state: NetworkState) -> None:
        for family, slot in self._syslog.items():
            if (address := getattr(state, family)) and state.index:
                await slot.follow(state, address, state.index)

    def _compiled(self, state: NetworkState) -> Responder | None:
        """Return the responder for the current state; a new one if the address or the networks have changed."""
        responder = self.responder
        wanted = (state.address, state.networks, bool(state.address6))
        used = responder.settings if responder is not None else None
        if responder is None or used is None or (used.server_ip, used.networks, used.ipv6) != wanted:
            responder = self.responder = self._makers.responder(state)
        return responder

    def _dhcp_server(self, state: NetworkState) -> DhcpServer | None:
        responder = self._compiled(state)
        return DhcpServer(responder, state.interface) if responder is not None else None

    def _dhcp6_server(self, state: NetworkState) -> Dhcp6Server | None:
        responder = self._responder6 = self._makers.responder6(state)
        return Dhcp6Server(responder, state.interface) if responder is not None else None

    def _tftp_server(self, family: str, state: NetworkState) -> TftpServer | None:
        made = self._makers.tftp(state, getattr(state, family))
        if made is None:
            return None
        self._files[family], server = made
        return server

    @staticmethod
    def _move_tftp(slot: _Slot[TftpServer], address: str, state: NetworkState) -> bool:
        """Move TFTP with its transfers to a new interface of the same name. Return False if it can't move."""
        bound_to = (address, state.index)
        if slot.service is None or slot.bound_to[0] != address or slot.bound_to == bound_to:
            return False
        moved = slot.service.move_to_interface()
        slot.bound_to = bound_to if moved else slot.bound_to
        return moved


@dataclass(eq=False)
class Sites:
    """The addresses of one HTTP server: those of each network. One that has gone is kept until there is another.

    `server` is the name of the server and `flag` the option of its port, for log lines and errors.
    """

    make_site: MakeSite
    port: int
    server: str
    flag: str

    def __post_init__(self) -> None:
        self._wanted: dict[tuple[str, bool], str] = {}
        self._open: dict[str, web.TCPSite] = {}

    async def follow(self, interface: str, address: str) -> None:
        """Listen at the address of an interface. An empty address changes nothing. Raises ServingError."""
        if not address:
            return
        self._wanted[interface, ":" in address] = address
        if address not in self._open:
            self._open[address] = await self._listen(address)
        for gone in self._open.keys() - set(self._wanted.values()):
            await self._open.pop(gone).stop()  # open connections continue

    async def _listen(self, address: str) -> web.TCPSite:
        site, authority = self.make_site(address, self.port), join_host_port(address, self.port)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            advice = tcp_advice(error, self.port, self.flag)
            raise ServingError(f"{self.server} can't listen on {authority}: {advice}") from error
        log.info("%s on %s", self.server, authority)
        return site


async def sites_of(runner: web.BaseRunner, exit_stack: AsyncExitStack) -> MakeSite:
    """Set up an HTTP server, which `exit_stack` stops, and return the maker of its sites."""
    await runner.setup()
    exit_stack.push_async_callback(runner.cleanup)
    return lambda address, port: web.TCPSite(runner, address, port, backlog=_BACKLOG, reuse_address=True)


def tcp_advice(error: OSError, port: int, flag: str) -> str:
    """Return why a TCP port can't be opened, with the remedy."""
    number = error.errno
    if number is None and "could not bind on any address" in str(error):
        number = errno.EADDRNOTAVAIL  # asyncio omits the number since Python 3.13
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
