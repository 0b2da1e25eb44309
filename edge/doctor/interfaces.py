"""The interfaces that face machines: state, addresses, MTU, two of them on one Ethernet, and what `--ipv6` needs."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Collection, Iterator
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Final

from edge.doctor.findings import Finding, passed, problem, warning
from edge.doctor.ports import bind_error
from edge.neighbour.host import Network, state_of
from edge.neighbour.links import HostLink, look, other_ethernets
from edge.neighbour.table import Neighbours4, neighbours4

ETHERNET_MTU: Final = 1500  # firmware sends packets of this size, whatever MTU this host has
DHCPV6_PORT: Final = 547
_IPV4_SETTINGS: Final = Path("/proc/sys/net/ipv4/conf")
IPV6_SETTINGS: Final = Path("/proc/sys/net/ipv6/conf")


def setting_of(file: Path) -> str:
    """Return a setting of the kernel; empty if the kernel does not have it."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def check_interface(network: Network) -> Iterator[Finding]:
    """Examine the state, the addresses and the MTU of one interface. Raises OSError if the kernel does not answer."""
    link = look(network.interface)
    state = state_of(network, link)
    if link is None:
        yield problem("interface", state.problem, "give the machines' interface with --interface")
        return
    if not link.up:
        yield problem("interface", f"{link.name} is down", f"ip link set {link.name} up")
    elif state.problem:
        remedy = f"give it one (ip address add ADDRESS/PREFIX dev {link.name}), or name another with --interface"
        yield problem("interface", state.problem, remedy)
    else:
        yield passed("interface", f"{link.name} has {' and '.join(state.addresses)}")
    if link.up and not link.carrier:
        seen = f"{link.name} has no carrier: nothing is connected to it"
        yield warning("link", seen, "see the cable and the switch; a bridge needs a port that is up")
    if link.mtu < ETHERNET_MTU:
        seen = f"{link.name} takes packets of {link.mtu} bytes: larger ones, as firmware sends them, are lost"
        yield warning("MTU", seen, f"ip link set {link.name} mtu {ETHERNET_MTU}, if the network takes that")


def check_ethernets(
    served: Collection[str],
    *,
    look_up: Callable[[str], HostLink | None] = look,
    other_interfaces: Callable[[Collection[str]], list[str]] = other_ethernets,
    neighbours: Callable[[], Neighbours4] = neighbours4,
    settings: Path = _IPV4_SETTINGS,
) -> Iterator[Finding]:
    """Warn about each interface of this host that answers ARP for the address of a `served` one.

    Linux answers ARP for an address of this host on every interface (ip-sysctl, arp_ignore 0). If two interfaces are on
    one Ethernet, machines may send to the wrong one, and the server that is bound to the other receives nothing.
    Raises OSError if the kernel does not answer.
    """
    known = neighbours()
    candidates = [*served, *other_interfaces(served)]
    for name in served:
        link = look_up(name)
        if link is None or not link.addresses:
            continue
        for candidate in candidates:
            other = look_up(candidate) if candidate != name else None
            if other is None or not other.up or _ignores_arp(settings, candidate):
                continue
            if (reason := _sign_of_one_ethernet(link, other, known)) is not None:
                seen = (
                    f"{name} and {candidate} of this host seem to be on one Ethernet ({reason}): "
                    f"{candidate} answers ARP for {link.addresses[0].ip}, and machines lose packets there"
                )
                remedy = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
                yield warning(f"ARP on {name}", seen, f"{remedy}, or take one of them off that network")


def _sign_of_one_ethernet(one: HostLink, other: HostLink, neighbours: Neighbours4) -> str | None:
    """Return the reason to believe that both interfaces are on one Ethernet, or None."""
    for address in one.addresses:
        same = next((each for each in other.addresses if _overlap(address, each)), None)
        if same is not None:
            return f"{address} and {same} are of one network"
    near_one, near_other = neighbours.get(one.index, frozenset()), neighbours.get(other.index, frozenset())
    for ip, mac in sorted(near_one & near_other):
        return f"{ip}, {mac}, is a neighbour of both"
    for link, near in ((other, near_one), (one, near_other)):
        if one.mac != other.mac and any(mac == link.mac.hex(":") for _, mac in near):
            return f"{link.name} itself is a neighbour of the other"
    return None


def _overlap(one: IPv4Interface, other: IPv4Interface) -> bool:
    return max(one.network.prefixlen, other.network.prefixlen) < 31 and one.network.overlaps(other.network)


def _ignores_arp(settings: Path, interface: str) -> bool:
    # The kernel takes the larger of the two values.
    values = [setting_of(settings / name / "arp_ignore") for name in ("all", interface)]
    return any(value.isdecimal() and int(value) > 0 for value in values)


def check_ipv6(
    interface: str,
    *,
    is_router: bool = False,
    serves_dhcp: bool = True,
    look_up: Callable[[str], HostLink | None] = look,
    settings: Path = IPV6_SETTINGS,
) -> Iterator[Finding]:
    """Examine address, forwarding (`is_router`) and DHCPv6 port (`serves_dhcp`) of one interface. Raises OSError."""
    name = f"IPv6 on {interface}"
    link = look_up(interface)
    if link is None:
        return  # `check_interface` has reported it.
    if setting_of(settings / interface / "disable_ipv6") == "1":
        yield problem(name, "it is switched off", f"sysctl -w net.ipv6.conf.{interface}.disable_ipv6=0")
        return
    if not link.addresses6:
        remedy = f"give it one of the machines' network: ip address add 2001:db8::1/64 dev {interface}"
        yield problem(name, "it has no address that machines can use", remedy)
    else:
        others = f" (and {len(link.addresses6) - 1} more)" if len(link.addresses6) > 1 else ""
        yield passed(name, f"machines use {link.addresses6[0].ip}{others}")
    if is_router and setting_of(settings / "all" / "forwarding") != "1":
        seen = "this host advertises itself as a router, and it forwards nothing"
        yield warning(name, seen, "sysctl -w net.ipv6.conf.all.forwarding=1, or leave --ipv6-router out")
    if serves_dhcp:
        yield _check_dhcpv6_port(interface)


def _check_dhcpv6_port(interface: str) -> Finding:
    """Bind the port as the DHCPv6 server does."""
    name = f"port {DHCPV6_PORT}/udp (DHCPv6) on {interface}"
    only_ipv6 = (socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    error = bind_error(socket.SOCK_DGRAM, ("::", DHCPV6_PORT), interface, only_ipv6)
    if error is None:
        return passed(name, "free")
    if error.errno == errno.EADDRINUSE:
        remedy = f"if that is not tinkedge, stop the program ('ss -lunp sport = :{DHCPV6_PORT}' names it)"
        return warning(name, "a program listens there already", remedy)
    remedy = "run it as root, or with CAP_NET_BIND_SERVICE and CAP_NET_RAW"
    return problem(name, os.strerror(error.errno or 0), remedy)
