"""What one machine is told of its address and network, compiled when its Hardware changes. Pure.

The one reserved address of the MAC is the answer to every IA_NA, whatever its IAID and whatever the DUID: one boot is
up to five leases, and none is remembered here. So any edge can renew what another one has given (RFC 8156 needs state
for that; this needs none).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network

from edge.dhcp6.wire import INFINITY, Option, address, domain, option
from edge.machines import Machine

log = logging.getLogger(__name__)

DEFAULT_LEASE_SECONDS = 86400
_NO_ADDRESS, _NO_NETWORK = IPv6Address(0), IPv6Network("::/128")


@dataclass(frozen=True, slots=True)
class Reservation6:
    """`unserved` says in one line why the machine gets no answer; empty: it is served.

    `silent`: and that is no mistake, so that nobody is told. `times` are T1 and T2, encoded; `given` is the IA Address
    option; `configuration` are the other options by code, encoded.
    """

    machine: Machine
    unserved: str = ""
    silent: bool = False
    ip: IPv6Address = _NO_ADDRESS
    network: IPv6Network = _NO_NETWORK
    times: bytes = b""
    given: bytes = b""
    configuration: dict[int, bytes] = field(default_factory=dict)

    def told(self, requested: tuple[int, ...]) -> bytes:
        """The configuration that a client with this Option Request option gets (RFC 8415 section 18.3.2)."""
        return b"".join(value for code, value in self.configuration.items() if code in requested)

    def taken(self, ip: IPv6Address) -> bytes:
        """Another address that the client has: it is to use it no more (lifetimes 0)."""
        return address(ip, 0, 0)


def compile_reservation(machine: Machine, own: IPv6Address, *, is_sole: bool) -> Reservation6:
    """The reservation of `machine`; `own` is this edge's address, and `is_sole` whether nobody else claims it."""
    where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}]"
    if machine.ipv6 is None:
        # Most machines of a site with IPv4 have none, and ask all the same.
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
    configuration = {}
    if servers:
        value = b"".join(each.packed for each in servers)
        configuration[int(Option.DNS_SERVERS)] = option(Option.DNS_SERVERS, value)
    _, _, search = (dhcp.hostname or "").partition(".")
    if search and (encoded := domain(search)):
        configuration[int(Option.DOMAIN_LIST)] = option(Option.DOMAIN_LIST, encoded)
    return Reservation6(
        machine,
        ip=ip,
        network=IPv6Network((ip, prefix), strict=False),
        times=renew.to_bytes(4, "big") + rebind.to_bytes(4, "big"),
        given=address(ip, lifetime, lifetime),
        configuration=configuration,
    )
