"""DHCP over InfiniBand (RFC 4390): which port a message is of, as the MAC that names it in a Hardware. Pure.

A port's address has 20 bytes (RFC 4391 section 9.1.1): flags and queue pair, which change with each driver, and the
GID, whose last eight bytes are the port's GUID. That does not fit into `chaddr`, so clients leave it empty and put the
GUID into option 61. There is no one way in which they do:

    FlexBoot, dhclient of MLNX_OFED     ff, IAID 0, DUID-EN of enterprise 713 with 00 and the GUID
    NetworkManager, FlexBoot's option   20 (the hardware type) and the GUID; gPXE: 20 and the whole address
    RFC 4361, as dhcpcd                 ff, IAID, DUID-LL or DUID-LLT of hardware type 32 with GUID or address
    old iPXE                            the GUID in `chaddr` (hlen 8)
    Linux' ip=dhcp                      the whole address in `chaddr` and, behind it, the field of `sname` (hlen 20)
    FlexBoot                            the MAC that is made of the GUID in `chaddr` (hlen 6)

iPXE since 2016 says that it is an Ethernet, with that MAC; `tink.mac.guid_mac` makes it.
"""

from __future__ import annotations

from typing import Final

from edge.dhcp.wire import options
from edge.dhcp.wire.codec import INFINIBAND, Message
from tink.mac import guid_mac

_HARDWARE_TYPE: Final = INFINIBAND.to_bytes(2, "big")
_MELLANOX: Final = bytes.fromhex("0002 000002c9 00")  # DUID-EN, the enterprise's number, and what precedes the GUID
_KNOWN_DUIDS: Final = frozenset(range(1, 5))  # RFC 8415 section 11, RFC 6355


def port_macs(message: Message) -> tuple[bytes, ...]:
    """Return the MACs (six bytes) that an InfiniBand client's message may be of, the most likely one first."""
    found = [*_in_identifier(message.options.get(options.CLIENT_IDENTIFIER, b""))]
    if len(message.chaddr) in (8, 20):
        found += _of_port(message.chaddr)
    elif len(message.chaddr) == 6:
        found.append(message.chaddr)
    return tuple(dict.fromkeys(found))


def _in_identifier(identifier: bytes) -> tuple[bytes, ...]:
    kind, value = identifier[:1], identifier[1:]
    if kind in (b"\0", bytes((INFINIBAND,))):
        return _of_port(value)
    if kind != b"\xff":
        return ()
    duid = value[4:]  # RFC 4361 section 6.1: behind the IAID
    if duid.startswith(_MELLANOX):
        return _of_port(duid[len(_MELLANOX) :])
    duid_type, hardware_type = int.from_bytes(duid[:2], "big"), duid[2:4]
    if duid_type in (1, 3) and hardware_type == _HARDWARE_TYPE:
        return _of_port(duid[8 if duid_type == 1 else 4 :])
    if duid_type in _KNOWN_DUIDS or len(duid) < 8:
        return ()  # of the machine, or of another card
    return guid_mac(duid[-8:]), duid[-6:]


def _of_port(address: bytes) -> tuple[bytes, ...]:
    """The MAC of a GUID, alone or at the end of a whole address."""
    return (guid_mac(address[-8:]),) if len(address) in (8, 20) else ()
