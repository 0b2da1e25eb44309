"""A machine's reservation, compiled: the parts of its replies that do not depend on the packet. Pure.

It is made from a Hardware's `spec.networkInterfaces[mac].dhcp` when the Hardware changes. Machines with equal network
settings (mask, router, servers, lease) share one `Subnet`. So a hundred thousand reservations stay small, and options
that depend on the kind of client (`Subnet.plan`) are compiled once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from edge.dhcp.wire import options
from edge.dhcp_common import DhcpSite
from edge.machines import Machine
from ipxe.binaries import BootPath
from tink.api.v1alpha2 import DHCP

log = logging.getLogger(__name__)

MAX_ADDRESSES: Final = 63
"""Maximum number of addresses in one option, which has at most 255 bytes."""

ADDRESSES_FOR_SMALL_CLIENTS: Final = 2
DEFAULT_LEASE_SECONDS: Final = 86400

# These are sent even if the client does not request them: the Raspberry Pi's ROM needs the mask and requests none.
_INDISPENSABLE = (options.SUBNET_MASK, options.ROUTER, options.DOMAIN_NAME_SERVER)

_USUAL_ORDER = (
    options.SUBNET_MASK,
    options.ROUTER,
    options.DOMAIN_NAME_SERVER,
    options.HOST_NAME,
    options.DOMAIN_NAME,
    options.BROADCAST_ADDRESS,
    options.NTP_SERVERS,
)
_MAX_LINKS = 64
_NO_LINKS: Final = frozenset({b"", bytes(4)})


class OptionPlan(NamedTuple):
    """The network options for one kind of client: encoded, before and behind its host name (option 12)."""

    # `codes` are all codes in the client's order; if the reply is too large, the last ones are left out first.

    before: bytes
    names_host: bool
    behind: bytes
    codes: list[int]


class Subnet:
    """The options that machines of one subnet with equal settings share."""

    __slots__ = ("__weakref__", "_options", "_subnet", "is_here", "lease", "links")

    def __init__(
        self, encoded: dict[int, bytes], lease: bytes, subnet: tuple[int, int] | None, *, is_here: bool = True
    ) -> None:
        """Create the network from whole options by code, and options 51, 58 and 59.

        subnet: number and mask; None if the Hardware states no mask.
        is_here: it may be the network of the interface, so that machines need no relay.
        """
        self.is_here = is_here
        self._options = encoded
        self._subnet = subnet
        self.lease = lease
        self.links: set[bytes] = set(_NO_LINKS) if is_here else set()
        """The relay links known to be on this subnet, and the two values that mean "no relay"."""

    def plan(self, requested: bytes | None) -> OptionPlan:
        """Return the options for a client with this parameter request list (option 55), or None if it sent none."""
        # RFC 2132 section 9.8: in the client's order; but section 3.3: the mask comes before the router.
        have = self._options.keys() | {options.HOST_NAME}
        wanted = _USUAL_ORDER if requested is None else (*dict.fromkeys(requested), *_INDISPENSABLE)
        codes = list(filter(have.__contains__, dict.fromkeys((options.SUBNET_MASK, *wanted))))
        names_host = options.HOST_NAME in codes
        at = codes.index(options.HOST_NAME) if names_host else len(codes)
        encoded = self._options.__getitem__
        before, behind = map(encoded, codes[:at]), map(encoded, codes[at + 1 :])
        return OptionPlan(b"".join(before), names_host, b"".join(behind), codes)

    def fewer(self, plan: OptionPlan, hostname: bytes) -> Iterator[bytes]:
        """Yield the options of `plan` with one less each time, and finally the indispensable ones in a short form."""
        encoded = self._options | {options.HOST_NAME: hostname}
        codes = list(plan.codes)
        for code in reversed(plan.codes):
            if code not in _INDISPENSABLE:
                codes.remove(code)
                yield b"".join(encoded[code] for code in codes)
        few = encoded.get(options.DOMAIN_NAME_SERVER, b"")[2:][: 4 * ADDRESSES_FOR_SMALL_CLIENTS]
        yield (
            encoded.get(options.SUBNET_MASK, b"")
            + encoded.get(options.ROUTER, b"")
            + (options.option(options.DOMAIN_NAME_SERVER, few) if few else b"")
        )

    def has_link(self, link: bytes) -> bool:
        """Return True if `link`, an address of the client's link, is of this subnet or the subnet is unknown."""
        if link in self.links:
            return True
        if self._subnet is not None:
            number, mask = self._subnet
            if int.from_bytes(link, "big") & mask != number:
                return False
        # A subnet has one or two relays, but any host can invent others.
        if len(self.links) >= _MAX_LINKS:
            self.links &= _NO_LINKS
        self.links.add(link)
        return True

    def holds(self, address: bytes) -> bool:
        """Return True if `address` is known to be of this subnet."""
        if self._subnet is None or len(address) != 4:
            return False
        number, mask = self._subnet
        return int.from_bytes(address, "big") & mask == number


_NOWHERE: Final = Subnet({}, b"", None)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The reservation of one machine.

    unserved: one line with the reason if the machine gets no reply; else empty.
    may_netboot: the policy's decision, valid unless it depends on Workflows.
    hostname: option 12, encoded; may be empty.
    vlan: option 43 for iPXE, encoded; may be empty.
    boot_path: None for the usual one.
    """

    # All that the fast path needs of the machine is in this one object: with 100,000 machines, each further object is
    # one more access to memory that is not cached.

    machine: Machine
    mac: str
    unserved: str = ""
    may_netboot: bool = False
    yiaddr: bytes = b""
    hostname: bytes = b""
    vlan: bytes = b""
    network: Subnet = _NOWHERE
    boot_path: BootPath | None = None


class Compiler:
    """Compiles reservations for the machines of one server; equal parts are shared."""

    def __init__(self, site: DhcpSite, server_ip: str, networks: Sequence[IPv4Network]) -> None:
        """`networks` are those of the interface; if there are none, every network may be on it."""
        self._path = site.boot_path
        self._policy = site.policy
        self._here = [(int(network.network_address), int(network.netmask)) for network in networks]
        self._server_ip = server_ip
        self._networks: WeakValueDictionary[tuple[object, ...], Subnet] = WeakValueDictionary()

    def compile(self, machine: Machine, *, is_sole: bool) -> Reservation:
        """Return the reservation; log mistakes in the Hardware. `is_sole`: no other Hardware claims the address."""
        where = f"Hardware {machine.namespace}/{machine.name}: spec.networkInterfaces[{machine.mac}]"
        if machine.disable_dhcp:
            return Reservation(machine, machine.mac, f"{where}.disableDhcp is true")
        if machine.ip is None:
            return Reservation(machine, machine.mac, f"{where}.dhcp.ip is not set")
        if not is_sole:
            return Reservation(
                machine, machine.mac, f"IP {machine.ip} is claimed by several Hardware, so none is served"
            )
        yiaddr = options.ipv4(machine.ip)
        if not options.is_host_address(yiaddr) or machine.ip == self._server_ip:
            whose = "this server's own address" if machine.ip == self._server_ip else "no address of a host"
            log.error("%s.dhcp.ip: %s is %s; the machine gets no DHCP answer", where, machine.ip, whose)
            return Reservation(machine, machine.mac, f"{where}.dhcp.ip: {machine.ip} is {whose}")
        dhcp = machine.interface.dhcp or DHCP()
        hostname, domain = _names(dhcp.hostname, where)
        return Reservation(
            machine,
            machine.mac,
            may_netboot=self._policy.decide(machine).allowed,
            yiaddr=yiaddr,
            hostname=hostname,
            vlan=_vlan(dhcp.vlan_id) if dhcp.vlan_id is not None else b"",
            network=self._network(dhcp, yiaddr, domain, where),
            boot_path=self._path(machine),
        )

    def _network(self, dhcp: DHCP, yiaddr: bytes, domain: bytes, where: str) -> Subnet:
        mask = options.ipv4(dhcp.netmask) if dhcp.netmask is not None else b""
        mask_number = int.from_bytes(mask, "big")
        subnet = int.from_bytes(yiaddr, "big") & mask_number
        nameservers = _addresses(dhcp.nameservers, f"{where}.dhcp.nameservers")
        timeservers = _addresses(dhcp.timeservers, f"{where}.dhcp.timeservers")
        router = options.ipv4(dhcp.gateway) if dhcp.gateway is not None else b""
        seconds = dhcp.lease_time_seconds
        if seconds == 0:
            seconds = DEFAULT_LEASE_SECONDS
            text = "%s.dhcp.leaseTimeSeconds is 0, a lease that ends before it begins; %d is served instead"
            log.warning(text, where, seconds)
        number = int.from_bytes(yiaddr, "big")
        is_here = not self._here or not mask or any(number & theirs == here for here, theirs in self._here)
        key = (is_here, mask, subnet, router, nameservers, timeservers, domain, seconds)
        network = self._networks.get(key)
        if network is None:
            values = {
                options.SUBNET_MASK: mask,
                options.ROUTER: router,
                options.DOMAIN_NAME_SERVER: nameservers,
                options.DOMAIN_NAME: domain,
                options.BROADCAST_ADDRESS: (subnet | ~mask_number & 0xFFFFFFFF).to_bytes(4, "big") if mask else b"",
                options.NTP_SERVERS: timeservers,
            }
            encoded = {code: options.option(code, value) for code, value in values.items() if value}
            times = {options.LEASE_TIME: seconds}
            # RFC 2131 section 4.4.5: a half, and seven eighths. An infinite lease is never renewed.
            if seconds != options.INFINITE_LEASE:
                times |= {options.RENEWAL_TIME: seconds // 2, options.REBINDING_TIME: seconds * 7 // 8}
            lease = b"".join(options.option(code, time.to_bytes(4, "big")) for code, time in times.items())
            network = Subnet(encoded, lease, (subnet, mask_number) if mask else None, is_here=is_here)
            self._networks[key] = network
        return network


@lru_cache(maxsize=4094)
def _vlan(vlan_id: str) -> bytes:
    """Return option 43 for iPXE, encoded."""
    return options.option(options.VENDOR_SPECIFIC, options.encapsulated({options.VLAN_ID: options.text(vlan_id)}))


def _names(hostname: str | None, where: str) -> tuple[bytes, bytes]:
    """Return option 12, encoded, and the value of option 15: the part of the host name behind its first dot."""
    if hostname is None:
        return b"", b""
    # RFC 2132 section 3.14 allows a host name with its domain, and clients set it as they receive it.
    name = options.text(hostname)
    if len(name) > 255:
        log.warning("%s.dhcp.hostname is left out: %d bytes, DHCP can carry 255", where, len(name))
        return b"", b""
    return options.option(options.HOST_NAME, name), name.partition(b".")[2]


def _addresses(servers: list[str] | None, field: str) -> bytes:
    """Return the encoded addresses of `servers`. Options 6 and 42 hold no names, so names are left out."""
    addresses = []
    for server in servers or ():
        try:
            addresses.append(options.ipv4(server))
        except options.OptionError:
            log.warning("%s: %s is left out of DHCP replies: not an IPv4 address", field, server)
    # PXE clients read only the first instance of an option, so a second one would not help.
    if len(addresses) > MAX_ADDRESSES:
        log.warning("%s: only the first %d of %d are served", field, MAX_ADDRESSES, len(addresses))
    return b"".join(addresses[:MAX_ADDRESSES])
