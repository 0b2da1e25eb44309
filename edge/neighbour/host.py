"""The networks that this host serves: their interfaces and addresses, and the problem that keeps one from serving."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

from edge.neighbour.links import HostLink, look
from edge.neighbour.route import is_own
from tink.errors import TinkedgeError


class HostError(TinkedgeError):
    """An interface, address or route of this host is missing. The message names it."""


@dataclass(frozen=True, slots=True)
class Network:
    """An interface that faces machines, as the operator has configured it.

    address: this host's IPv4 address there, in dotted form; empty: the interface's current one.
    ipv6: machines are served over IPv6, too.
    address6: the same as `address` for IPv6.
    """

    interface: str
    address: str = ""
    ipv6: bool = False
    address6: str = ""


@dataclass(frozen=True, slots=True)
class NetworkState:
    """The current state of a network.

    address: the IPv4 address (dotted) at which machines reach this host; empty: machines can't be served.
    index: the interface's number; 0: there is no interface.
    networks: the IPv4 networks of the interface's addresses.
    problem: one line that says why machines are not served; empty: they are.
    address6, networks6: the same for IPv6; empty if machines are not served over IPv6.
    mac: the interface's hardware address; empty without IPv6.
    """

    interface: str
    address: str = ""
    index: int = 0
    carrier: bool = False
    networks: tuple[IPv4Network, ...] = ()
    problem: str = ""
    address6: str = ""
    networks6: tuple[IPv6Network, ...] = ()
    mac: bytes = b""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses at which machines are served."""
        return tuple(filter(None, (self.address, self.address6)))


IsOwn = Callable[[IPv4Address | IPv6Address], bool]
"""A function that returns whether packets to an address stay on this host: `edge.neighbour.route.is_own`."""


def state_of(
    network: Network, link: HostLink | None, before: str = "", is_owned: IsOwn = is_own, before6: str = ""
) -> NetworkState:
    """Return the state of a network whose interface is `link` now (None: it is missing).

    `before` and `before6` are the addresses that it was served with: each stays as long as the interface has it. Raises
    OSError if the kernel does not answer.
    """
    name = network.interface
    if link is None:
        there = ", ".join(sorted(each for _, each in socket.if_nameindex()))
        return NetworkState(name, problem=f"there is no interface {name} (there are: {there})")
    own = [str(one.ip) for one in link.addresses]
    own6 = [str(one.ip) for one in link.addresses6] if network.ipv6 else []
    address = _chosen(network.address, own, before, is_owned)
    address6 = _chosen(network.address6, own6, before6, is_owned)
    problem = "" if link.up else f"{name} is down ('ip link set {name} up')"
    if network.address and not address:
        has = f"{name} has {', '.join(own)}" if own else f"{name} has none"
        problem = f"{network.address} is no address of this host ({has})"
    elif not address and not address6:
        problem = problem or f"{name} has no {'IP' if network.ipv6 else 'IPv4'} address"
    networks = tuple(dict.fromkeys(one.network for one in link.addresses))
    networks6 = tuple(dict.fromkeys(one.network for one in link.addresses6)) if network.ipv6 else ()
    mac = link.mac if network.ipv6 else b""
    return NetworkState(name, address, link.index, link.carrier, networks, problem, address6, networks6, mac)


def _chosen(configured: str, own: list[str], before: str, is_owned: IsOwn) -> str:
    """Return the configured address, or else one of the interface's own; empty if there is none."""
    if configured:
        # It may be on another interface: an anycast address of several hosts is on lo.
        return configured if configured in own or is_owned(ip_address(configured)) else ""
    return before if before in own else next(iter(own), "")


def default_interface(routes: Path = Path("/proc/net/route")) -> str:
    """Return the interface of the IPv4 default route (proc(5), /proc/net/route). Raises HostError if there is none."""
    for line in routes.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and int(fields[3], 16) & 1:
            return fields[0]
    raise HostError("no interface was named and there is no default route: give --interface")


def interface_address(name: str) -> str:
    """Return the first IPv4 address of an interface, in dotted form. Raises HostError."""
    try:
        state = state_of(Network(name), look(name))
    except OSError as error:
        raise HostError(f"the kernel does not describe interface {name}: {error.strerror}") from error
    if not state.address:
        raise HostError(state.problem)
    return state.address


def addresses_of(interfaces: Sequence[tuple[str, str]], public_ip: str | None) -> list[str]:
    """Return the addresses of this host's edge; `interfaces` and `public_ip` as in the options. Raises HostError."""
    wanted = interfaces or [(default_interface(), "")]
    return [address or public_ip or interface_address(name) for name, address in wanted]
