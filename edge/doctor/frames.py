"""Frames in words: the conversation of one machine with the servers, one line for each packet that decides something.

    bytes of `edge.doctor.capture` -> `parse` (Ethernet, VLAN, ARP, IP) -> `Conversation` (TFTP, HTTP) and
    `describe_dhcp` -> lines for a terminal

Pure: a frame and its time go in, lines come out.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any, Final, NamedTuple

from edge.dhcp.wire import Message, MessageType, codec, options
from ipxe.binaries import architecture_name, declared_architectures
from tink.limits import Newest
from tink.net.addresses import join_host_port

IPV4, IPV6, ARP = 0x0800, 0x86DD, 0x0806
_VLAN_TAGS = (0x8100, 0x88A8)
TCP, UDP = 6, 17


class Packet(NamedTuple):
    """An IP packet with TCP or UDP: `payload` as far as it was captured, and `length`, that of the whole payload."""

    protocol: int
    source: str
    source_port: int
    destination: str
    destination_port: int
    payload: bytes
    length: int


class ArpPacket(NamedTuple):
    """An ARP packet (RFC 826): a request or a reply."""

    is_reply: bool
    sender_mac: str
    sender: str
    target: str


def parse(frame: bytes) -> Packet | ArpPacket | None:
    """Parse a frame, which may be cut off. Return None if it is of another kind or too short."""
    at = 12
    kind = int.from_bytes(frame[at : at + 2], "big")
    while kind in _VLAN_TAGS:
        at += 4
        kind = int.from_bytes(frame[at : at + 2], "big")
    body = frame[at + 2 :]
    parsers: dict[int, Callable[[bytes], Packet | ArpPacket | None]] = {ARP: _parse_arp, IPV6: _ipv6, IPV4: _ipv4}
    try:
        return parsers[kind](body) if kind in parsers else None
    except struct.error:
        return None


def _ipv4(body: bytes) -> Packet | None:
    version, total, fragment, protocol, source, destination = struct.unpack_from("!BxHxxHxBxx4s4s", body)
    if version >> 4 != 4 or fragment & 0x1FFF or protocol not in (TCP, UDP):
        return None
    return _packet(body, (version & 15) * 4, total, protocol, options.dotted(source), options.dotted(destination))


def _ipv6(body: bytes) -> Packet | None:
    """Parse a packet without extension headers: a machine that boots sends none before UDP and TCP."""
    version, length, protocol, source, destination = struct.unpack_from("!B3xHBx16s16s", body)
    if version >> 4 != 6 or protocol not in (TCP, UDP):
        return None
    return _packet(body, 40, 40 + length, protocol, str(IPv6Address(source)), str(IPv6Address(destination)))


def _packet(body: bytes, at: int, total: int, protocol: int, source: str, destination: str) -> Packet:
    source_port, destination_port = struct.unpack_from("!HH", body, at)
    payload_at = at + (8 if protocol == UDP else (struct.unpack_from("!12xB", body, at)[0] >> 4) * 4)
    payload, length = body[payload_at:total], max(total - payload_at, 0)
    return Packet(protocol, source, source_port, destination, destination_port, payload, length)


def _parse_arp(body: bytes) -> ArpPacket | None:
    hardware, protocol, operation, sender_mac, sender, target = struct.unpack_from("!HHxxH6s4s6x4s", body)
    if (hardware, protocol) != (1, IPV4) or operation not in (1, 2):
        return None
    return ArpPacket(operation == 2, sender_mac.hex(":"), options.dotted(sender), options.dotted(target))


# --- TFTP, HTTP and ARP -----------------------------------------------------------------------------------------------


_DHCP_PORTS: Final = frozenset({67, 68, 4011})
_TFTP_PORT: Final = 69
_RRQ, _WRQ, _DATA, _ACK, _ERROR, _OACK = 1, 2, 3, 4, 5, 6
_MAX_TRANSFERS = 64
_MAX_SHOWN = 200

_HTTP_HEADERS = re.compile(
    rb"\r\n(Content-Length|Content-Type|Content-Range|Range|Location|User-Agent): *([^\r\n]{0,100})", re.IGNORECASE
)
_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT) [^\r\n]*|HTTP/1\.[^\r\n]*")

_Endpoint = tuple[str, int]


@dataclass(slots=True)
class _Transfer:
    """A TFTP transfer, as far as it was captured. `acknowledged` is a number of blocks, which may exceed 65535."""

    name: str
    began: float
    block_bytes: int = 512
    acknowledged: int = 0
    blocks: int = 0
    size: int = 0


class Conversation:
    """Describes the frames of one machine, each packet that decides something with one line. Pure.

    Of a TFTP transfer it describes the request, the agreed options, the first and the last block, and errors; of HTTP
    the requests and the heads of the responses.
    """

    def __init__(self, other: Callable[[bytes], str] = lambda _: "") -> None:
        """`other` describes a frame of any other kind, or returns an empty string to skip it."""
        self._other = other
        self._transfers: Newest[_Endpoint, _Transfer] = Newest(_MAX_TRANSFERS)

    def lines(self, time: float, frame: bytes) -> list[str]:
        """Describe a frame that was captured at `time` (seconds), often with no line. No content raises an error."""
        match parse(frame):
            case ArpPacket() as arp:
                return [_arp(arp)]
            case Packet() as packet if packet.protocol == UDP:
                found = self._udp(time, packet)
            case Packet() as packet:
                found = _tcp(packet)
            case _:
                found = None
        if found is None:
            line = self._other(frame)
            return [line] if line else []
        return found

    def _udp(self, time: float, packet: Packet) -> list[str] | None:
        if packet.source_port in _DHCP_PORTS or packet.destination_port in _DHCP_PORTS:
            return [f"{_from_to(packet)} {describe_dhcp(packet.payload)}"]
        if len(packet.payload) < 4:
            return None
        operation = int.from_bytes(packet.payload[:2], "big")
        if packet.destination_port == _TFTP_PORT and operation in (_RRQ, _WRQ):
            return [self._request(time, packet, operation)]
        for place, by_client in (
            ((packet.source, packet.source_port), True),
            ((packet.destination, packet.destination_port), False),
        ):
            transfer = self._transfers.get(place)
            if transfer is not None:
                return [f"{_from_to(packet)} {line}" for line in self._part(time, packet, place, transfer, by_client)]
        return None

    def _request(self, time: float, packet: Packet, operation: int) -> str:
        name, _mode, *asked = [_text(part) for part in packet.payload[2:].removesuffix(b"\0").split(b"\0")] + [""] * 2
        place = packet.source, packet.source_port
        self._transfers[place] = _Transfer(name, time)
        return f'{_from_to(packet)} TFTP {"reads" if operation == _RRQ else "WRITES"} "{name}"{_pairs(asked)}'

    def _part(self, time: float, packet: Packet, place: _Endpoint, transfer: _Transfer, by_client: bool) -> list[str]:
        operation, number = (int.from_bytes(packet.payload[at : at + 2], "big") for at in (0, 2))
        if operation == _ERROR:
            del self._transfers[place]
            return [f'TFTP error {number} "{_text(packet.payload[4:].partition(bytes(1))[0])}", {transfer.name}']
        if operation == _OACK:
            agreed = [_text(part) for part in packet.payload[2:].removesuffix(b"\0").split(b"\0")]
            for option, value in zip(agreed[::2], agreed[1::2], strict=False):
                if option.lower() == "blksize" and value.isdigit():
                    transfer.block_bytes = max(int(value), 1)
            return [f"TFTP agrees to{_pairs(agreed)}"]
        if operation == _DATA and not by_client:
            return _block(packet, transfer, number)
        if operation == _ACK and by_client:
            advance = (number - transfer.acknowledged) & 0xFFFF
            if advance < 0x8000:
                transfer.acknowledged += advance
            if transfer.blocks and transfer.acknowledged >= transfer.blocks:
                del self._transfers[place]
                took = time - transfer.began
                return [f"TFTP has all of {transfer.name}: {transfer.size} bytes in {took:.3f} s"]
        return []


def _block(packet: Packet, transfer: _Transfer, number: int) -> list[str]:
    """Describe the first and the last block. A window that the kernel segments later is captured in one piece."""
    whole = transfer.block_bytes + 4
    if packet.length % whole and packet.length < 65000:
        short = max(packet.length % whole - 4, 0)
        # The number is that of the first block in this piece; it continues the count of acknowledged blocks.
        first = transfer.acknowledged + ((number - transfer.acknowledged) & 0xFFFF)
        again = transfer.blocks > 0
        transfer.blocks = first + packet.length // whole
        transfer.size = (transfer.blocks - 1) * transfer.block_bytes + short
        return [f"TFTP last block {transfer.blocks}, {short} bytes{' (again)' if again else ''}"]
    if number == 1 and transfer.acknowledged == 0:
        return [f"TFTP first block, {transfer.block_bytes} bytes"]
    return []


def _tcp(packet: Packet) -> list[str] | None:
    if packet.payload.startswith(b"PRI * HTTP/2"):
        return [f"{_from_to(packet)} HTTP/2 connection (gRPC)"]
    found = _HTTP.match(packet.payload)
    if found is None:
        return None
    head = packet.payload.partition(b"\r\n\r\n")[0]
    details = [f"{_text(name).lower()} {_text(value)}" for name, value in _HTTP_HEADERS.findall(head)]
    return [f"{_from_to(packet)} {_text(found[0])}" + (f" ({', '.join(details)})" if details else "")]


def _arp(packet: ArpPacket) -> str:
    if packet.is_reply:
        return f"ARP {packet.sender} is at {packet.sender_mac}"
    if packet.sender == "0.0.0.0":  # noqa: S104 - RFC 5227 section 1.1
        return f"ARP probe: who has {packet.target}? ({packet.sender_mac})"
    if packet.sender == packet.target:
        return f"ARP {packet.sender_mac} announces {packet.sender}"
    return f"ARP who has {packet.target}? asks {packet.sender} ({packet.sender_mac})"


def _from_to(packet: Packet) -> str:
    ends = (packet.source, packet.source_port), (packet.destination, packet.destination_port)
    return " > ".join(join_host_port(*end) for end in ends)


def _pairs(words: list[str]) -> str:
    return "".join(f" {name}={value}" for name, value in zip(words[::2], words[1::2], strict=False) if name)


def _text(value: bytes) -> str:
    shown = re.sub(rb"[^ -~]", b"?", value[:_MAX_SHOWN]).decode()
    return shown if len(value) <= _MAX_SHOWN else f"{shown}..."


# --- DHCP -------------------------------------------------------------------------------------------------------------


_SHOWN_BYTES = 100

# PXE 2.1 table 2-1; 116 is what UEFI's and some BIOS ROMs take as the VLAN to boot on.
_PXE: Final = {
    1: "multicast", 2: "mtftp-client-port", 3: "mtftp-server-port", 4: "mtftp-timeout", 5: "mtftp-delay",
    6: "discovery-control", 7: "discovery-multicast", 8: "boot-servers", 9: "boot-menu", 10: "menu-prompt",
    71: "boot-item", 116: "vlan",
}  # fmt: skip
# Etherboot's encapsulated options, as iPXE numbers its features (src/include/ipxe/features.h).
_IPXE: Final = {
    16: "pxe-ext", 17: "iscsi", 18: "aoe", 19: "http", 20: "https", 21: "tftp", 22: "ftp", 23: "dns", 24: "bzimage",
    25: "multiboot", 26: "slam", 27: "srp", 32: "nbi", 33: "pxe", 34: "elf", 35: "comboot", 36: "efi", 37: "fcoe",
    38: "vlan", 39: "menu", 40: "sdi", 41: "nfs",
}  # fmt: skip
_IPXE_NO_PXEDHCP, _IPXE_BUS_ID, _IPXE_VERSION = 176, 177, 235
_RELAY: Final = {1: "circuit", 2: "remote", 5: "link-selection", 6: "subscriber", 11: "server-override"}
_RELAY_ADDRESSES = (5, 11)


def describe_dhcp(payload: bytes) -> str:
    """Describe a DHCP message in one line: `DHCPOFFER to 52:54:00:cc:00:01 xid 1f2e3d4c yiaddr 10.0.0.5 ...`."""
    try:
        message = codec.parse(payload)
    except codec.ParseError as error:
        return f"DHCP, malformed: {error}"
    kind = int.from_bytes(message.options.get(options.MESSAGE_TYPE, b""), "big")
    try:
        name = f"DHCP{MessageType(kind).name}"
    except ValueError:
        name = f"DHCP message of type {kind}" if kind else "BOOTP message"
    way = "of" if message.op == codec.BOOTREQUEST else "to"
    head = f"{name} {way} {message.chaddr.hex(':')} xid {message.xid.hex()}"
    return " ".join([head, *_fields(message)])


def _fields(message: Message) -> Iterator[str]:
    """Yield the fields of the header that are not zero, and the options."""
    if message.flags & codec.BROADCAST_FLAG:
        yield "broadcast"
    shown: dict[str, Callable[[Any], str]] = {"hops": str, "secs": str}
    shown |= dict.fromkeys(("ciaddr", "yiaddr", "siaddr", "giaddr"), options.dotted)
    shown |= {"sname": _quoted, "file": _quoted}
    for name, word in shown.items():
        value = getattr(message, name)
        if any(value) if isinstance(value, bytes) else value:
            yield f"{name} {word(value)}"
    for code, value in message.options.items():
        if code in _WORDS:
            name, words = _WORDS[code]
            yield f"{name} {words(value)}"
        elif code not in (options.MESSAGE_TYPE, options.OVERLOAD):
            yield f"{code}={_hex(value)}"


def _quoted(value: bytes) -> str:
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


def _identifier(value: bytes) -> str:
    return value[1:].hex(":") if len(value) == 7 and value[0] == 1 else _hex(value)


def _architectures(value: bytes) -> str:
    return ",".join(f"{code} ({architecture_name(code)})" for code in declared_architectures(value)) or _hex(value)


def _uuid(value: bytes) -> str:
    return value[1:].hex() if len(value) == 17 and value[0] == 0 else f"{_hex(value)} (not 17 bytes of type 0)"


def _braced(word: Callable[[int, bytes], str]) -> Callable[[bytes], str]:
    """Return a function that describes the options inside an option with `word`, or in hex if there are none."""

    def words(value: bytes) -> str:
        found = options.suboptions(value)
        if found is None:
            return _hex(value)
        return "{" + " ".join(filter(None, (word(code, part) for code, part in found.items()))) + "}"

    return words


def _vendor_value(code: int, value: bytes) -> str:
    if code in (6, 116):
        return _number(value)
    if code == 9:  # type (2), length of the text (1), text; repeated
        items, at = [], 0
        while at + 3 <= len(value):
            text, end = value[at + 3 : at + 3 + value[at + 2]], at + 3 + value[at + 2]
            items.append(f"{int.from_bytes(value[at : at + 2], 'big')}:{_quoted(text)}")
            at = end
        return ",".join(items)
    if code == 10 and value:
        return f"{value[0]}s {_quoted(value[1:])}"
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
    words = _quoted if re.fullmatch(rb"[ -~]+", part) else _hex
    return f"{_RELAY.get(code, code)}={_addresses(part) if code in _RELAY_ADDRESSES else words(part)}"


def _user_class(value: bytes) -> str:
    """Describe the list with lengths of RFC 3004, or the bare string that iPXE sends."""
    classes, at = [], 0
    while at < len(value) and value[at] and at + 1 + value[at] <= len(value):
        classes.append(value[at + 1 : at + 1 + value[at]])
        at += 1 + value[at]
    return ",".join(map(_quoted, classes)) if classes and at == len(value) else _quoted(value)


_WORDS: Final[dict[int, tuple[str, Callable[[bytes], str]]]] = {
    options.SUBNET_MASK: ("mask", _addresses),
    options.ROUTER: ("router", _addresses),
    options.DOMAIN_NAME_SERVER: ("dns", _addresses),
    options.HOST_NAME: ("hostname", _quoted),
    15: ("domain", _quoted),
    26: ("mtu", _number),
    options.BROADCAST_ADDRESS: ("broadcast-address", _addresses),
    options.NTP_SERVERS: ("ntp", _addresses),
    options.VENDOR_SPECIFIC: (
        "vendor(43)",
        _braced(lambda code, value: f"{_PXE.get(code, code)}={_vendor_value(code, value)}"),
    ),
    options.REQUESTED_ADDRESS: ("requested", _addresses),
    options.LEASE_TIME: ("lease", _seconds),
    options.SERVER_IDENTIFIER: ("server", _addresses),
    options.PARAMETER_REQUEST_LIST: ("asks-for", lambda value: ",".join(map(str, value))),
    options.MESSAGE: ("message", _quoted),
    options.MAX_MESSAGE_SIZE: ("max-size", _number),
    options.RENEWAL_TIME: ("t1", _seconds),
    options.REBINDING_TIME: ("t2", _seconds),
    options.VENDOR_CLASS: ("class(60)", _quoted),
    options.CLIENT_IDENTIFIER: ("client-id", _identifier),
    options.TFTP_SERVER_NAME: ("tftp(66)", _quoted),
    options.BOOTFILE_NAME: ("bootfile(67)", _quoted),
    options.USER_CLASS: ("user-class(77)", _user_class),
    options.RELAY_AGENT_INFORMATION: ("relay(82)", _braced(_relay_word)),
    options.CLIENT_ARCHITECTURE: ("arch(93)", _architectures),
    94: ("nic(94)", _hex),
    options.CLIENT_UUID: ("uuid(97)", _uuid),
    options.IPXE: ("ipxe(175)", _braced(_ipxe_word)),
}
