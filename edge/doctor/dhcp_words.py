"""A DHCP message in one line: what a client asks and what it is told, with the options that decide a netboot. Pure.

Our own codec reads it, as the server does: what is shown is what the server saw. A message that it refuses is shown
with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from edge.dhcp.wire import Message, MessageType, codec, options
from ipxe.binaries import architecture_name, declared_architectures

_SHOWN_BYTES = 100

# PXE 2.1 table 2-1; 116 is what UEFI's and some BIOS ROMs take as the VLAN to boot on.
_PXE: Final = {
    1: "multicast",
    2: "mtftp-client-port",
    3: "mtftp-server-port",
    4: "mtftp-timeout",
    5: "mtftp-delay",
    6: "discovery-control",
    7: "discovery-multicast",
    8: "boot-servers",
    9: "boot-menu",
    10: "menu-prompt",
    71: "boot-item",
    116: "vlan",
}
# Etherboot's encapsulated options, as iPXE numbers its features (src/include/ipxe/features.h).
_IPXE: Final = {
    16: "pxe-ext", 17: "iscsi", 18: "aoe", 19: "http", 20: "https", 21: "tftp", 22: "ftp", 23: "dns", 24: "bzimage",
    25: "multiboot", 26: "slam", 27: "srp", 32: "nbi", 33: "pxe", 34: "elf", 35: "comboot", 36: "efi", 37: "fcoe",
    38: "vlan", 39: "menu", 40: "sdi", 41: "nfs",
}  # fmt: skip
_IPXE_NO_PXEDHCP, _IPXE_BUS_ID, _IPXE_VERSION = 176, 177, 235
_RELAY: Final = {1: "circuit", 2: "remote", 5: "link-selection", 6: "subscriber", 11: "server-override"}
_RELAY_ADDRESSES = (5, 11)


def describe(payload: bytes) -> str:
    """One line, e.g. `DHCPOFFER to 52:54:00:cc:00:01 xid 1f2e3d4c yiaddr 10.0.0.5 ... server 10.0.0.1`."""
    try:
        message = codec.parse(payload)
    except codec.ParseError as error:
        return f"DHCP, malformed: {error}"
    return " ".join([_head(message), *_fields(message), *_options(message)])


def _head(message: Message) -> str:
    kind = int.from_bytes(message.options.get(options.MESSAGE_TYPE, b""), "big")
    try:
        name = f"DHCP{MessageType(kind).name}"
    except ValueError:
        name = f"DHCP message of type {kind}" if kind else "BOOTP message"
    way = "of" if message.op == codec.BOOTREQUEST else "to"
    return f"{name} {way} {message.chaddr.hex(':')} xid {message.xid.hex()}"


def _fields(message: Message) -> Iterator[str]:
    """What the header says, where it says anything."""
    if message.flags & codec.BROADCAST_FLAG:
        yield "broadcast"
    if message.hops:
        yield f"hops {message.hops}"
    if message.secs:
        yield f"secs {message.secs}"
    for name in ("ciaddr", "yiaddr", "siaddr", "giaddr"):
        address = getattr(message, name)
        if any(address):
            yield f"{name} {options.dotted(address)}"
    if message.sname:
        yield f"sname {_text(message.sname)}"
    if message.file:
        yield f"file {_text(message.file)}"


def _options(message: Message) -> Iterator[str]:
    for code, value in message.options.items():
        if code in _WORDS:
            name, words = _WORDS[code]
            yield f"{name} {words(value)}"
        elif code not in (options.MESSAGE_TYPE, options.OVERLOAD):
            yield f"{code}={_hex(value)}"


def _text(value: bytes) -> str:
    shown = re.sub(rb"[^ -~]", b"?", value[:_SHOWN_BYTES].rstrip(b"\0")).decode()
    return f'"{shown}"' + ("..." if len(value) > _SHOWN_BYTES else "")


def _hex(value: bytes) -> str:
    return value[:32].hex() + ("..." if len(value) > 32 else "")


def _number(value: bytes) -> str:
    return str(int.from_bytes(value, "big")) if len(value) <= 4 else _hex(value)


def _seconds(value: bytes) -> str:
    return "infinite" if value == b"\xff\xff\xff\xff" else f"{_number(value)}s"


def _addresses(value: bytes) -> str:
    if not value or len(value) % 4:
        return _hex(value)
    found = [options.dotted(value[at : at + 4]) for at in range(0, len(value), 4)]
    return ",".join(found[:4]) + ("..." if len(found) > 4 else "")


def _codes(value: bytes) -> str:
    return ",".join(map(str, value))


def _identifier(value: bytes) -> str:
    return value[1:].hex(":") if len(value) == 7 and value[0] == 1 else _hex(value)


def _architectures(value: bytes) -> str:
    return ",".join(f"{code} ({architecture_name(code)})" for code in declared_architectures(value)) or _hex(value)


def _uuid(value: bytes) -> str:
    return value[1:].hex() if len(value) == 17 and value[0] == 0 else f"{_hex(value)} (not 17 bytes of type 0)"


def _braced(word: Callable[[int, bytes], str]) -> Callable[[bytes], str]:
    """The options inside an option, each as `word` says it, where it says anything; in hex where there are none."""

    def words(value: bytes) -> str:
        found = options.suboptions(value)
        if found is None:
            return _hex(value)
        return "{" + " ".join(filter(None, (word(code, part) for code, part in found.items()))) + "}"

    return words


def _vendor_word(code: int, value: bytes) -> str:
    return f"{_PXE.get(code, code)}={_vendor_value(code, value)}"


def _vendor_value(code: int, value: bytes) -> str:
    if code in (6, 116):
        return _number(value)
    if code == 9:  # type (2), length of the text (1), text; repeated
        items = []
        at = 0
        while at + 3 <= len(value):
            items.append(f"{int.from_bytes(value[at : at + 2], 'big')}:{_text(value[at + 3 : at + 3 + value[at + 2]])}")
            at += 3 + value[at + 2]
        return ",".join(items)
    if code == 10 and value:
        return f"{value[0]}s {_text(value[1:])}"
    return _hex(value)


def _ipxe_word(code: int, part: bytes) -> str:
    if code in _IPXE:
        return _IPXE[code] if part != b"\0" else ""  # a feature's value is the version of its interface
    if code == _IPXE_NO_PXEDHCP:
        return f"no-pxedhcp={_number(part)}"
    if code == _IPXE_VERSION:
        return "version=" + ".".join(map(str, part))
    return f"{'bus-id' if code == _IPXE_BUS_ID else code}={_hex(part)}"


def _relay_word(code: int, part: bytes) -> str:
    return f"{_RELAY.get(code, code)}={_addresses(part) if code in _RELAY_ADDRESSES else _printable(part)}"


def _printable(value: bytes) -> str:
    return _text(value) if re.fullmatch(rb"[ -~]+", value) else _hex(value)


def _user_class(value: bytes) -> str:
    """RFC 3004's list with lengths, or the bare string that iPXE sends."""
    classes = []
    at = 0
    while at < len(value) and value[at] and at + 1 + value[at] <= len(value):
        classes.append(value[at + 1 : at + 1 + value[at]])
        at += 1 + value[at]
    return ",".join(map(_text, classes)) if classes and at == len(value) else _text(value)


_WORDS: Final[dict[int, tuple[str, Callable[[bytes], str]]]] = {
    options.SUBNET_MASK: ("mask", _addresses),
    options.ROUTER: ("router", _addresses),
    options.DOMAIN_NAME_SERVER: ("dns", _addresses),
    options.HOST_NAME: ("hostname", _text),
    15: ("domain", _text),
    26: ("mtu", _number),
    options.BROADCAST_ADDRESS: ("broadcast-address", _addresses),
    options.NTP_SERVERS: ("ntp", _addresses),
    options.VENDOR_SPECIFIC: ("vendor(43)", _braced(_vendor_word)),
    options.REQUESTED_ADDRESS: ("requested", _addresses),
    options.LEASE_TIME: ("lease", _seconds),
    options.SERVER_IDENTIFIER: ("server", _addresses),
    options.PARAMETER_REQUEST_LIST: ("asks-for", _codes),
    options.MESSAGE: ("message", _text),
    options.MAX_MESSAGE_SIZE: ("max-size", _number),
    options.RENEWAL_TIME: ("t1", _seconds),
    options.REBINDING_TIME: ("t2", _seconds),
    options.VENDOR_CLASS: ("class(60)", _text),
    options.CLIENT_IDENTIFIER: ("client-id", _identifier),
    options.TFTP_SERVER_NAME: ("tftp(66)", _text),
    options.BOOTFILE_NAME: ("bootfile(67)", _text),
    options.USER_CLASS: ("user-class(77)", _user_class),
    options.RELAY_AGENT_INFORMATION: ("relay(82)", _braced(_relay_word)),
    options.CLIENT_ARCHITECTURE: ("arch(93)", _architectures),
    94: ("nic(94)", _hex),
    options.CLIENT_UUID: ("uuid(97)", _uuid),
    options.IPXE: ("ipxe(175)", _braced(_ipxe_word)),
}
