"""A machine's DHCP reservation, compiled: everything of its replies that can be known before it asks.

Made from a Hardware's `spec.networkInterfaces[mac].dhcp` when the Hardware changes (`DESIGN.md`, decision 3), so that
answering a packet is a dictionary access and the joining of prepared bytes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from edge.dhcp import options
from edge.inventory import Machine

log = logging.getLogger(__name__)

MAX_ADDRESSES = 63
"""Addresses in one option of at most 255 bytes; PXE clients read only the first instance of an option."""

ADDRESSES_FOR_SMALL_CLIENTS = 2
DEFAULT_LEASE_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one machine is served.

    `unserved` says in one line why the machine gets no answer at all; empty: it is served. `lease` are options 51, 58
    and 59; `network` all others of its configuration, `small_network` those without which it can't work.
    """

    machine: Machine
    unserved: str
    yiaddr: bytes = b""
    lease: bytes = b""
    network: bytes = b""
    small_network: bytes = b""


def is_host_address(address: bytes) -> bool:
    """Whether four bytes can be the address of one host: no network 0, loopback, multicast or broadcast address."""
    return 0 < address[0] < 224 and address[0] != 127


def compile_reservation(machine: Machine, server_ip: str) -> Reservation:
    """The reservation of `machine`. What is wrong with the Hardware is logged here, once per change."""
    where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}]"
    dhcp = machine.interface.dhcp
    if machine.interface.disable_dhcp:
        return Reservation(machine, unserved=f"{where}.disableDhcp is true")
    if dhcp is None or machine.ip is None:
        return Reservation(machine, unserved=f"{where}.dhcp.ip is not set")
    yiaddr = options.ipv4(machine.ip)
    if not is_host_address(yiaddr) or machine.ip == server_ip:
        whose = "this server's own address" if machine.ip == server_ip else "no address of a host"
        log.error("%s.dhcp.ip: %s is %s; the machine gets no DHCP answer", where, machine.ip, whose)
        return Reservation(machine, unserved=f"{where}.dhcp.ip: {machine.ip} is {whose}")

    core = b""
    if dhcp.netmask is not None:
        # RFC 2132 section 3.3: the mask stands before the router.
        mask = options.ipv4(dhcp.netmask)
        broadcast = bytes(octet | ~m & 0xFF for octet, m in zip(yiaddr, mask, strict=True))
        core += options.option(options.SUBNET_MASK, mask) + options.option(options.BROADCAST_ADDRESS, broadcast)
    if dhcp.gateway is not None:
        core += options.option(options.ROUTER, options.ipv4(dhcp.gateway))
    nameservers = _addresses(dhcp.nameservers, f"{where}.dhcp.nameservers")
    timeservers = _addresses(dhcp.timeservers, f"{where}.dhcp.timeservers")
    network = core + _list_option(options.DOMAIN_NAME_SERVER, nameservers)
    if dhcp.hostname is not None:
        hostname = options.text(dhcp.hostname)
        if len(hostname) <= 255:
            network += options.option(options.HOST_NAME, hostname)
        else:
            log.warning("%s.dhcp.hostname is left out: %d bytes, DHCP can carry 255", where, len(hostname))
    network += _list_option(options.NTP_SERVERS, timeservers)
    return Reservation(
        machine,
        unserved="",
        yiaddr=yiaddr,
        lease=_lease(dhcp.lease_time_seconds, where),
        network=network,
        small_network=core + _list_option(options.DOMAIN_NAME_SERVER, nameservers[:ADDRESSES_FOR_SMALL_CLIENTS]),
    )


def _lease(seconds: int, where: str) -> bytes:
    """Options 51, 58 (half) and 59 (seven eighths): RFC 2131 section 4.4.5."""
    if seconds == 0:
        log.warning(
            "%s.dhcp.leaseTimeSeconds is 0, a lease that ends before it begins; %d is served instead",
            where,
            DEFAULT_LEASE_SECONDS,
        )
        seconds = DEFAULT_LEASE_SECONDS
    lease = options.option(options.LEASE_TIME, options.uint32(seconds))
    if seconds == options.INFINITE_LEASE:
        return lease  # nothing to renew
    return (
        lease
        + options.option(options.RENEWAL_TIME, options.uint32(seconds // 2))
        + options.option(options.REBINDING_TIME, options.uint32(seconds * 7 // 8))
    )


def _addresses(servers: list[str] | None, field: str) -> list[str]:
    """Those of `servers` that DHCP can carry: options 6 and 42 hold addresses, never names."""
    addresses = []
    for server in servers or ():
        if options.is_ipv4(server):
            addresses.append(server)
        else:
            log.warning("%s: %s is left out of DHCP replies: not an IPv4 address", field, server)
    if len(addresses) > MAX_ADDRESSES:
        log.warning("%s: only the first %d of %d are served", field, MAX_ADDRESSES, len(addresses))
    return addresses[:MAX_ADDRESSES]


def _list_option(code: int, addresses: list[str]) -> bytes:
    return options.option(code, options.ipv4_list(addresses)) if addresses else b""
