"""A machine's address and network, compiled when its Hardware changes. Pure.

Every IA_NA of a MAC gets the one reserved address, whatever its IAID and DUID, because one boot takes up to five
leases. No lease is stored, so any edge can renew the lease of another one (RFC 8156 needs state for that).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network
from typing import Final

from edge.dhcp6.wire import INFINITY, Option, address, domain, option
from edge.machines import Machine

log = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS = 86400
_NO_ADDRESS = IPv6Address(0)
_LOCAL: Final = tuple(map(IPv6Network, ("::/16", "fe80::/10", "ff00::/8")))
"""Networks that contain every address for which `edge.dhcp6.wire.is_local` is True; no host is in the first one."""


class Network6:
    """The options that machines of one subnet with equal settings share; `network` returns the one object of them."""

    __slots__ = ("_number", "_options", "_shift", "is_plain", "subnet")

    def __init__(self, subnet: IPv6Network, configuration: tuple[tuple[int, bytes], ...]) -> None:
        """`configuration` has code and value of the options that clients may request."""
        self.subnet = subnet
        self._options = [(code, option(code, value)) for code, value in configuration]
        self._shift = subnet.max_prefixlen - subnet.prefixlen
        self._number = int(subnet.network_address) >> self._shift
        self.is_plain = not any(subnet.overlaps(each) for each in _LOCAL)
        """True if all its addresses are global unicast: not local, and no group's."""

    def holds(self, address: bytes) -> bool:
        """Return True if the address (sixteen bytes) is in this network."""
        return int.from_bytes(address, "big") >> self._shift == self._number

    def requested(self, requested: tuple[int, ...]) -> bytes:
        """Return the options for a client with this Option Request option (RFC 8415 section 18.3.2)."""
        return b"".join(value for code, value in self._options if code in requested)


@lru_cache(maxsize=4096)
def network(subnet: IPv6Network, configuration: tuple[tuple[int, bytes], ...]) -> Network6:
    """Return the network of this subnet and configuration, the same object for equal arguments."""
    return Network6(subnet, configuration)


_NO_NETWORK: Final = network(IPv6Network("::/128"), ())


@dataclass(frozen=True, slots=True)
class Reservation6:
    """The reservation of one machine.

    unserved: one line with the reason if the machine gets no reply; else empty.
    silent: that is no mistake, so it is not reported.
    packed: `ip` in sixteen bytes.
    lease: T1, T2 and the IA Address option, which follow the IAID in an IA_NA.
    """

    machine: Machine
    unserved: str = ""
    silent: bool = False
    ip: IPv6Address = _NO_ADDRESS
    packed: bytes = b""
    network: Network6 = _NO_NETWORK
    lease: bytes = b""


def compile_reservation(machine: Machine, own: IPv6Address, *, is_sole: bool) -> Reservation6:
    """Return the reservation; log mistakes in the Hardware. `is_sole`: no other Hardware claims the address."""
    where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}]"
    if machine.ipv6 is None:
        # Most machines of a site with IPv4 have no IPv6 address, and send requests nevertheless.
        return Reservation6(machine, f"{where}.dhcp.ipv6 is not set", silent=machine.ip is not None)
    if machine.disable_dhcp:
        return Reservation6(machine, f"{where}.disableDhcp is true")
    if not is_sole:
        return Reservation6(machine, f"IP {machine.ipv6} is claimed by several Hardware, so none is served")
    ip, dhcp = IPv6Address(machine.ipv6), machine.interface.dhcp
    if ip == own or ip.is_multicast or ip.is_unspecified or ip.is_link_local or ip.is_loopback or dhcp is None:
        whose = "this server's own address" if ip == own else "no address of a host"
        log.error("%s.dhcp.ipv6.address: %s is %s; the machine gets no DHCPv6 answer", where, ip, whose)
        return Reservation6(machine, f"{where}.dhcp.ipv6.address: {ip} is {whose}")
    prefix = dhcp.ipv6.prefix_length if dhcp.ipv6 is not None else 64
    lifetime = dhcp.lease_time_seconds or DEFAULT_LEASE_SECONDS
    renew, rebind = (INFINITY, INFINITY) if lifetime == INFINITY else (lifetime // 2, lifetime // 5 * 4)
    servers = [IPv6Address(each) for each in (dhcp.ipv6.nameservers or [] if dhcp.ipv6 is not None else [])]
    configuration: list[tuple[int, bytes]] = []
    if servers:
        configuration.append((Option.DNS_SERVERS, b"".join(each.packed for each in servers)))
    _, _, search = (dhcp.hostname or "").partition(".")
    if search and (encoded := domain(search)):
        configuration.append((Option.DOMAIN_LIST, encoded))
    return Reservation6(
        machine,
        ip=ip,
        packed=ip.packed,
        network=network(IPv6Network((ip, prefix), strict=False), tuple(configuration)),
        lease=renew.to_bytes(4, "big") + rebind.to_bytes(4, "big") + address(ip, lifetime, lifetime),
    )
