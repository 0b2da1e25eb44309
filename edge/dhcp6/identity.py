"""Whose message it is: the MAC of a client, which DHCPv6 does not say in so many words. Pure.

One boot has several DUIDs and IAIDs (firmware and iPXE even write the machine's UUID in different orders of bytes), so
neither can tell a machine. In the order of what can be trusted:

1. what the first relay says of the client's link-layer address (RFC 6939, option 79);
2. the link-local address that the client asks from, if it is made of its MAC (RFC 4291 appendix A): the packet's source
   or, through relays, the `peer-address` of the first of them. All boot programs have such a one;
3. the neighbour table: who answers for that link-local address, for systems that make theirs up (RFC 7217);
4. a DUID with a link-layer address (RFC 8415 section 11.2 and 11.4), which may be another card's.

An InfiniBand port has no MAC: it is known by the one that is made of its GUID, which is the end of its address.
"""

from __future__ import annotations

from collections.abc import Callable

from edge.dhcp6.datagram import Received6
from edge.dhcp6.wire import Message6, Option, Relay
from tink.mac import eui64_mac, guid_mac

_ETHERNET = b"\x00\x01"
_INFINIBAND = b"\x00\x20"

Neighbour6 = Callable[[str], str | None]
"""The MAC of who answers for a link-local address on the interface; None: not known."""


def mac_of(
    message: Message6, relays: tuple[Relay, ...], received: Received6, neighbour: Neighbour6 = lambda _: None
) -> str | None:
    """The MAC of the client, in lower case with colons; None: it can't be told."""
    at = received.source
    if relays:
        first = relays[-1]
        if (mac := _mac_of_address(first.link_layer)) is not None:
            return mac
        at = first.peer
    if at.is_link_local:
        mac = eui64_mac(at) or (None if relays else neighbour(str(at)))
        if mac is not None:
            return mac
    return of_duid(message.get(Option.CLIENTID) or b"")


def is_mac(link_layer: bytes) -> bool:
    """Whether that is the value of an option 79 with a MAC."""
    return len(link_layer) == 8 and link_layer[:2] == _ETHERNET


def of_duid(duid: bytes) -> str | None:
    """The MAC in a DUID that was made of one; None: it was not."""
    if duid[:2] == b"\x00\x03":
        return _mac_of_address(duid[2:])
    if duid[:2] == b"\x00\x01":
        return _mac_of_address(duid[2:4] + duid[8:])
    return None


def is_of_infiniband(link_layer: bytes) -> bool:
    """Return True if that is a hardware type and address of an InfiniBand port: a GUID, or what ends with one."""
    return link_layer[:2] == _INFINIBAND and len(link_layer) in (10, 22)


def _mac_of_address(link_layer: bytes) -> str | None:
    """Return the MAC of a hardware type (two bytes) and address; None if it is of another kind of network."""
    if is_of_infiniband(link_layer):
        return guid_mac(link_layer[-8:]).hex(":")
    return link_layer[2:].hex(":") if is_mac(link_layer) else None
