"""Find mistakes in a Hardware or an OSIE that a schema can't find: valid objects that can't work.

The webhooks warn the user about them, and the edge shows them on the Hardware, as the condition `Misconfigured`. Pure.
Unreadable values are left to the schema.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property, lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, NetmaskValueError
from itertools import islice
from typing import Any, Final

from tink.api import user_data
from tink.api.annotations import (
    ANNOTATIONS,
    BOOT_PATH_ANNOTATION,
    INITRD_SHA256_ANNOTATION,
    KERNEL_SHA256_ANNOTATION,
    UKI_SHA256_ANNOTATION,
)
from tink.api.v1alpha2 import GROUP, as_mapping

_CHECKSUMS: Final = (KERNEL_SHA256_ANNOTATION, INITRD_SHA256_ANNOTATION, UKI_SHA256_ANNOTATION)
_BOOT_PATHS: Final = ("ipxe", "grub", "auto", "uki")
_CLOSE: Final = 0.8
"""The similarity of two names of which one may be a misspelling of the other (difflib's ratio)."""
_MAX_NAME_CHARACTERS: Final = 63
_MAX_UNKNOWN: Final = 20
"""The most names that are compared with ours: each takes half a millisecond."""
_POINT_TO_POINT: Final = 31
"""The prefix length from which on a network has no network and no broadcast address (RFC 3021)."""
_SHA256: Final = re.compile(r"\s*(sha256:)?[0-9a-fA-F]{64}\s*|\s*")


class Reason(StrEnum):
    """The reasons of the condition `Misconfigured`, the worst first."""

    SERVER_ADDRESS = "ServerAddress"
    GATEWAY_OUTSIDE_NETWORK = "GatewayOutsideNetwork"
    NO_ADDRESS = "NoAddress"
    UNUSABLE_ADDRESS = "UnusableAddress"
    OSIE_NOT_FOUND = "OSIENotFound"
    INVALID_CHECKSUM = "InvalidChecksum"
    INVALID_USER_DATA = "InvalidUserData"
    UNKNOWN_BOOT_PATH = "UnknownBootPath"
    IGNORED_FIELDS = "IgnoredFields"
    """Fields of Tinkerbell's v1alpha1 that have no effect here (`tink.versions`)."""
    NETWORK_NOT_SERVED = "NetworkNotServed"
    """A relay that has sent nothing yet may serve the network, so this is only a mistake if all relays are known."""


_ORDER: Final = {reason: place for place, reason in enumerate(Reason)}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in `field` of an object. `message` is a sentence that continues after the field's name."""

    reason: Reason
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class NetworkSet:
    """A set of IPv4 networks for look-ups of an address or a network. A look-up compares with at most 33 of them."""

    def __init__(self, networks: Iterable[IPv4Network]) -> None:
        self._starts: list[int] = []
        self._by_length: dict[int, set[int]] = {}
        """The leading bits of each network, by the number of bits."""
        for network in networks:
            start = int(network.network_address)
            self._starts.append(start)
            self._by_length.setdefault(network.prefixlen, set()).add(start >> (32 - network.prefixlen))
        self._starts.sort()

    def __contains__(self, address: IPv4Address) -> bool:
        """Return True if a network holds the address."""
        number = int(address)
        return any(number >> (32 - length) in found for length, found in self._by_length.items())

    def overlaps(self, network: IPv4Network) -> bool:
        """Return True if a network holds `network` or a part of it."""
        first, last = int(network.network_address), int(network.broadcast_address)
        index = bisect_left(self._starts, first)
        return (index < len(self._starts) and self._starts[index] <= last) or network.network_address in self


@dataclass(frozen=True)
class Site:
    """The DHCP server that gives machines their addresses.

    `networks` are the server's own networks; without any, networks are not checked. `relayed` are those of relays that
    it has received packets from. `addresses` are its own addresses, and `name` is its name in messages. Without
    `gives_addresses`, another DHCP server gives the addresses.
    """

    networks: Sequence[IPv4Network] = ()
    relayed: Sequence[IPv4Network] = ()
    addresses: frozenset[str] = frozenset()
    name: str = "the edge"
    gives_addresses: bool = True

    @cached_property
    def reachable(self) -> NetworkSet:
        """The server's own networks and those behind relays."""
        return NetworkSet((*self.networks, *self.relayed))

    @cached_property
    def own_networks(self) -> str:
        """The server's own networks in messages."""
        return ", ".join(map(str, self.networks))


ELSEWHERE: Final = Site(gives_addresses=False)
"""The Site where nothing is known about the DHCP server."""


def hardware_mistakes(hardware: Any, site: Site, osie: Callable[[str, str], Any] | None = None) -> list[Mistake]:
    """Return the mistakes of a Hardware, the worst first.

    `osie(namespace, name)` returns the OSIE or None. Without that function, OSIEs are not checked. An invalid checksum
    in the OSIE is a mistake of the Hardware, too: its machine does not get that file.
    """
    found = [*_interface_mistakes(hardware, site)] if site.gives_addresses else []
    found += [
        Mistake(
            Reason.INVALID_CHECKSUM,
            f"metadata.annotations[{name}]",
            "nothing reads it on a Hardware: put it on the OSIE whose file it is of",
        )
        for name in _CHECKSUMS
        if name in _annotations(hardware)
    ]
    path = _annotations(hardware).get(BOOT_PATH_ANNOTATION)
    if path is not None and str(path).strip() not in _BOOT_PATHS:
        where, message = (
            f"metadata.annotations[{BOOT_PATH_ANNOTATION}]",
            f"is none of {', '.join(_BOOT_PATHS)}, and ignored",
        )
        found.append(Mistake(Reason.UNKNOWN_BOOT_PATH, where, message))
    reference = as_mapping(as_mapping(as_mapping(hardware).get("spec")).get("osie")).get("name")
    if osie is not None and isinstance(reference, str) and reference:
        namespace = str(as_mapping(as_mapping(hardware).get("metadata")).get("namespace", ""))
        boots = osie(namespace, reference)
        if boots is None:
            message = f"there is no OSIE {namespace}/{reference} yet: the machine netboots nothing"
            found.append(Mistake(Reason.OSIE_NOT_FOUND, "spec.osie.name", message))
        else:
            found += [
                Mistake(one.reason, "spec.osie.name", f"OSIE {namespace}/{reference}: {one}")
                for one in osie_mistakes(boots)
            ]
    return worst_first(found)


def worst_first(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Return mistakes in the order of their reasons."""
    return sorted(mistakes, key=lambda one: _ORDER[one.reason])


def osie_mistakes(osie: Any) -> list[Mistake]:
    """Return the mistakes of an OSIE: invalid checksums, whose files are not served."""
    annotations = _annotations(osie)
    return [
        Mistake(
            Reason.INVALID_CHECKSUM,
            f"metadata.annotations[{name}]",
            "a SHA-256 checksum is 64 hexadecimal digits; the file is not served",
        )
        for name in _CHECKSUMS
        if name in annotations and not _SHA256.fullmatch(str(annotations[name]))
    ]


def network_of(dhcp: Any) -> IPv4Interface | None:
    """Return the reserved address and network of an interface's `dhcp`; None if either can't be read."""
    given = as_mapping(dhcp)
    ip, netmask = given.get("ip"), given.get("netmask")
    if not isinstance(ip, str) or not isinstance(netmask, str) or "." not in netmask:
        return None
    return _interface(ip, netmask)


@lru_cache(maxsize=256)  # a check and the conditions that follow from it need the same ones
def _interface(ip: str, netmask: str) -> IPv4Interface | None:
    try:
        return IPv4Interface(f"{ip}/{netmask}")
    except (AddressValueError, NetmaskValueError, ValueError):
        return None


def user_data_mistakes(hardware: Any) -> Iterator[Mistake]:
    """Yield the mistakes in a Hardware's user-data and vendor-data, which take longer to find than all others."""
    instance = as_mapping(as_mapping(as_mapping(hardware).get("spec")).get("instance"))
    for name in ("userdata", "vendordata"):
        text = instance.get(name)
        if isinstance(text, str) and (wrong := user_data.problem(text)):
            yield Mistake(Reason.INVALID_USER_DATA, f"spec.instance.{name}", wrong)


def _interface_mistakes(hardware: Any, site: Site) -> Iterator[Mistake]:
    interfaces = as_mapping(as_mapping(as_mapping(hardware).get("spec")).get("networkInterfaces"))
    for mac, interface in interfaces.items():
        if not isinstance(interface, dict) or interface.get("disableDhcp") is True:
            continue
        dhcp = as_mapping(interface.get("dhcp"))
        path, ip = f"spec.networkInterfaces[{mac}].dhcp", dhcp.get("ip")
        yield from _ipv6_mistakes(as_mapping(dhcp.get("ipv6")), f"{path}.ipv6", site)
        if not ip and dhcp.get("ipv6"):
            continue
        if not ip:
            yield Mistake(
                Reason.NO_ADDRESS, f"{path}.ip", "is not set: this card gets no DHCP answer (disableDhcp says so, too)"
            )
            continue
        if ip in site.addresses:
            yield Mistake(Reason.SERVER_ADDRESS, f"{path}.ip", f"{ip} is the address of {site.name} itself")
        at = network_of(dhcp)
        if at is None:
            continue
        gateway = _address(dhcp.get("gateway"))
        yield from _unusable_address(at, gateway, path)
        if gateway is not None and at.network.prefixlen < 32 and gateway not in at.network:
            message = f"{gateway} is not in the network {at.network} of this address"
            yield Mistake(Reason.GATEWAY_OUTSIDE_NETWORK, f"{path}.gateway", message)
        if site.networks and (own := at.ip) not in site.reachable:
            where = f"{own} is in {at.network}, and {site.name} is on {site.own_networks}"
            yield Mistake(Reason.NETWORK_NOT_SERVED, f"{path}.ip", f"{where}: only machines behind a relay can use it")


def _unusable_address(at: IPv4Interface, gateway: IPv4Address | None, path: str) -> Iterator[Mistake]:
    own = at.ip
    is_first = own == at.network.network_address
    if at.network.prefixlen < _POINT_TO_POINT and (is_first or own == at.network.broadcast_address):
        message = f"{own} is the {'network' if is_first else 'broadcast'} address of {at.network}: no host can have it"
        yield Mistake(Reason.UNUSABLE_ADDRESS, f"{path}.ip", message)
    if gateway == own:
        message = f"{gateway} is the address of this machine itself: name the router, or leave it out"
        yield Mistake(Reason.UNUSABLE_ADDRESS, f"{path}.gateway", message)


def unused_fields(hardware: Any) -> Iterator[str]:
    """Yield a sentence for each field of a Hardware that is stored and that nothing uses."""
    spec = as_mapping(as_mapping(hardware).get("spec"))
    for mac, interface in as_mapping(spec.get("networkInterfaces")).items():
        dhcp = as_mapping(as_mapping(interface).get("dhcp"))
        for field in ("nameservers", "timeservers"):
            servers = dhcp.get(field)
            for index, server in enumerate(servers if isinstance(servers, list) else ()):
                if isinstance(server, str) and _address(server) is None:
                    where = f"spec.networkInterfaces[{mac}].dhcp.{field}[{index}]"
                    yield f"{where}: {server} is a name, and DHCP carries addresses only: machines are not told of it"


def misspelled_annotations(obj: Any) -> Iterator[str]:
    """Yield a sentence for each annotation of an object that is nearly one of ours, so that nothing reads it."""
    prefix = f"{GROUP}/"
    known = [each.removeprefix(prefix) for each in ANNOTATIONS]
    unknown = (name for name in _annotations(obj) if name.startswith(prefix) and name not in ANNOTATIONS)
    for name in islice(unknown, _MAX_UNKNOWN):
        for close in get_close_matches(name.removeprefix(prefix)[:_MAX_NAME_CHARACTERS], known, n=1, cutoff=_CLOSE):
            yield f"metadata.annotations[{name}]: nothing reads it: is {prefix}{close} meant?"


def _ipv6_mistakes(ipv6: dict[str, Any], path: str, site: Site) -> Iterator[Mistake]:
    try:
        address = str(IPv6Address(str(ipv6.get("address"))))
    except ValueError:
        return
    if address in site.addresses:
        yield Mistake(Reason.SERVER_ADDRESS, f"{path}.address", f"{address} is the address of {site.name} itself")


def _address(value: Any) -> IPv4Address | None:
    return _parsed(value) if isinstance(value, str) else None


@lru_cache(maxsize=256)  # many Hardware have the same gateway
def _parsed(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except AddressValueError:
        return None


def _annotations(obj: Any) -> dict[str, Any]:
    return as_mapping(as_mapping(as_mapping(obj).get("metadata")).get("annotations"))
