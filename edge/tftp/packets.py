"""TFTP packets: parses requests, negotiates options, builds answers. Pure.

RFC 1350 (the protocol), 2347 (options), 2348 (blksize), 2349 (timeout, tsize), 7440 (windowsize). The server parses a
request with `parse_request`, opens the file, and passes the file's size to `negotiate`. `edge.tftp.transfer` carries
out the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from tink.errors import TinkedgeError
from tink.printable import printable

DEFAULT_BLOCK_BYTES: Final = 512  # RFC 1350 section 2
MIN_BLOCK_BYTES: Final = 8  # RFC 2348
MAX_BLOCK_BYTES: Final = 65464  # RFC 2348
MAX_WINDOW_BLOCKS: Final = 64
"""Number of blocks that are sent before an acknowledgement.

Clients ask for 4 (EDK2) to 64. The end of a larger window might be lost: a Linux client's default receive buffer of
212,992 bytes holds 92 packets of Ethernet size.
"""

MAX_REQUEST_BYTES: Final = 512  # RFC 2347, "Packet Formats"
_MAX_MESSAGE = 120
_MAX_SHOWN_NAME = 80
_OPTION_NAMES = ("blksize", "timeout", "tsize", "windowsize")


class Opcode(IntEnum):
    """RFC 1350 section 5; RFC 2347 for OACK."""

    RRQ = 1
    WRQ = 2
    DATA = 3
    ACK = 4
    ERROR = 5
    OACK = 6


class ErrorCode(IntEnum):
    """RFC 1350, "Error Codes"; RFC 2347 for the last."""

    UNDEFINED = 0
    NOT_FOUND = 1
    ACCESS_VIOLATION = 2
    DISK_FULL = 3
    ILLEGAL_OPERATION = 4
    UNKNOWN_TRANSFER = 5
    FILE_EXISTS = 6
    NO_SUCH_USER = 7
    OPTION_REFUSED = 8


class Garbage(TinkedgeError):  # noqa: N818 - a stranger's packet, not an error
    """A packet on port 69 that is no TFTP request."""


class RequestError(TinkedgeError):
    """A well-formed request that is refused. `code` and the message go to the client."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A client's request for a file. `options` keep the client's spelling because the answer repeats it.

    `size_bytes` is the size of the datagram. It limits the bytes that an unverified client gets.
    """

    name: str
    netascii: bool
    options: Mapping[str, str]
    size_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Agreed:
    """The negotiated parameters: bytes per block, blocks per window, seconds before a retransmission (None: adaptive).

    `accepted` has the options for the OACK (RFC 2347) in the client's spelling. Without any there is no OACK.
    """

    block_bytes: int = DEFAULT_BLOCK_BYTES
    window_blocks: int = 1
    timeout: float | None = None
    accepted: Mapping[str, str] = field(default_factory=dict)


def parse_request(datagram: bytes) -> ReadRequest:
    """Parse a datagram that arrived on port 69. Raises Garbage (no answer) and RequestError (a refusal)."""
    if len(datagram) < 4 or len(datagram) > MAX_REQUEST_BYTES:
        raise Garbage(f"{len(datagram)} bytes")
    opcode = int.from_bytes(datagram[:2], "big")
    if opcode not in (Opcode.RRQ, Opcode.WRQ):
        raise Garbage(f"opcode {opcode}")
    if datagram[-1] != 0:
        raise Garbage("its last string has no end")
    # Some firmware reads DHCP option 67 one byte too far and appends the end option (255) to the name.
    name, *more = datagram[2:-1].split(b"\0")
    # surrogateescape keeps names in an old encoding unchanged. No file here has such a name.
    strings = [part.decode("utf-8", "surrogateescape") for part in (name.rstrip(b"\xff"), *more)]
    if len(strings) < 2 or not strings[0]:
        raise Garbage("no file name or no mode")
    if opcode == Opcode.WRQ:
        raise RequestError(ErrorCode.ACCESS_VIOLATION, "this server is read-only")
    mode = strings[1].lower()
    if mode not in ("octet", "netascii"):
        raise RequestError(ErrorCode.ILLEGAL_OPERATION, "only the modes octet and netascii are served")
    # Some ROMs fill the packet with NULs after the last string: a pair with an empty name ends the list.
    options: dict[str, str] = {}
    for option, value in zip(strings[2::2], strings[3::2], strict=False):
        if not option:
            break
        options.setdefault(option, value)
    return ReadRequest(strings[0], mode == "netascii", options, size_bytes=len(datagram))


def negotiate(request: ReadRequest, size: int | None, max_block_bytes: int) -> Agreed:
    """Return the parameters of a transfer of `size` bytes (None: unknown before its end)."""
    # Unknown options and values out of range are left out of the answer, so the client ignores them (RFC 2347). No
    # value exceeds the requested one: EDK2 would abort (Mtftp4RrqOackValid).
    asked: dict[str, tuple[str, int]] = {}
    for name, value in request.options.items():
        known = name.lower()
        if known in _OPTION_NAMES and known not in asked and value.isascii() and value.isdigit() and len(value) <= 10:
            asked[known] = (name, int(value))
    accepted: dict[str, str] = {}
    block_bytes, window_blocks, timeout = DEFAULT_BLOCK_BYTES, 1, None
    for known, (name, number) in asked.items():
        if known == "blksize" and number >= MIN_BLOCK_BYTES:
            block_bytes = min(number, max_block_bytes, MAX_BLOCK_BYTES)
            accepted[name] = str(block_bytes)
        elif known == "windowsize" and 1 <= number <= 65535:
            window_blocks = min(number, MAX_WINDOW_BLOCKS)
            accepted[name] = str(window_blocks)
        elif known == "timeout" and 1 <= number <= 255:
            timeout = float(number)  # RFC 2349: accepted unchanged or not at all
            accepted[name] = str(number)
        elif known == "tsize" and size is not None:
            accepted[name] = str(size)
    return Agreed(block_bytes, window_blocks, timeout, accepted)


def oack(accepted: Mapping[str, str]) -> bytes:
    """Return the option acknowledgement (RFC 2347)."""
    strings = "".join(f"{name}\0{value}\0" for name, value in accepted.items())
    return Opcode.OACK.to_bytes(2, "big") + strings.encode("utf-8", "surrogateescape")


def error(code: ErrorCode, message: str) -> bytes:
    """Return an ERROR packet. The message is shortened to a line on the machine's screen, in printable ASCII."""
    text = printable(message[:_MAX_MESSAGE], ascii_only=True).encode("ascii")
    return Opcode.ERROR.to_bytes(2, "big") + code.to_bytes(2, "big") + text + b"\0"


def parse_error(datagram: bytes) -> tuple[int, str]:
    """Return code and message of an ERROR packet, the message in printable ASCII."""
    text = datagram[4 : 4 + _MAX_MESSAGE].partition(b"\0")[0].decode("ascii", "replace")
    return int.from_bytes(datagram[2:4], "big"), printable(text, ascii_only=True)


def shown_name(name: str) -> str:
    """Return a client's file name for a log line or a screen: printable and short."""
    shown = printable(name[:_MAX_SHOWN_NAME], ascii_only=True)
    return shown if len(name) <= _MAX_SHOWN_NAME else f"{shown}..."


def to_netascii(content: bytes) -> bytes:
    """Translate text to netascii: LF becomes CR LF, CR becomes CR NUL (RFC 764, cited by RFC 1350 section 1)."""
    return content.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")
