"""Whose message it is: the MAC of a client, which DHCPv6 does not say in so many words. Pure.

One boot has several DUIDs and IAIDs (firmware and iPXE even write the machine's UUID in different orders of bytes), so
neither can tell a machine. In the order of what can be trusted:

1. what the first relay says of the client's link-layer address (RFC 6939, option 79);
2. the link-local address that the client asks from, if it is made of its MAC (RFC 4291 appendix A): the packet's source
   or, through relays, the `peer-address` of the first of them. All boot programs have such a one;
3. the neighbour table: who answers for that link-local address, for systems that make theirs up (RFC 7217);
4. a DUID with a link-layer address (RFC 8415 section 11.2 and 11.4), which may be another card's.
"""

from __future__ import annotations

from collections.abc import Callable

from edge.dhcp6.datagram import Received6
from edge.dhcp6.wire import Message6, Option, Relay
from tink.mac import eui64_mac

_ETHERNET = b"\x00\x01"

Neighbour6 = Callable[[str], str | None]
"""The MAC of who answers for a link-local address on the interface; None: not known."""


def mac_of(
    message: Message6, relays: tuple[Relay, ...], received: Received6, neighbour: Neighbour6 = lambda _: None
) -> str | None:
    """The MAC of the client, in lower case with colons; None: it can't be told."""
    at = received.source
    if relays:
        first = relays[-1]
        if is_mac(first.link_layer):
            return first.link_layer[2:].hex(":")
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
    if duid[:4] == b"\x00\x03" + _ETHERNET and len(duid) == 10:
        return duid[4:].hex(":")
    if duid[:4] == b"\x00\x01" + _ETHERNET and len(duid) == 14:
        return duid[8:].hex(":")
    return None
