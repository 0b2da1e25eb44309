"""Header blocks of HTTP/2 (RFC 7541), for a client whose SETTINGS disable the dynamic table. Pure.

Such a client receives indexes into the static table, and literals. Huffman-coded names and values are read as empty.
gRPC's C core, the base of our server, sends none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tink.errors import TinkedgeError

_STATUS: Final = ("200", "204", "206", "304", "400", "404", "500")
_STATIC_NAMES: Final = (
    "", ":authority", ":method", ":method", ":path", ":path", ":scheme", ":scheme", *(":status",) * 7,
    "accept-charset", "accept-encoding", "accept-language", "accept-ranges", "accept",
    "access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition",
    "content-encoding", "content-language", "content-length", "content-location", "content-range",
    "content-type", "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match",
    "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified", "link",
    "location", "max-forwards", "proxy-authenticate", "proxy-authorization", "range", "referer", "refresh",
    "retry-after", "server", "set-cookie", "strict-transport-security", "transfer-encoding", "user-agent",
    "vary", "via", "www-authenticate",
)  # fmt: skip
"""RFC 7541 appendix A."""


class HpackError(TinkedgeError):
    """A header block is malformed."""


def literal(name: bytes, value: bytes) -> bytes:
    """Encode a field that the receiver does not add to its table (RFC 7541 section 6.2.2)."""
    return b"\0" + _string(name) + _string(value)


def request(method_path: bytes, authority: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the header block of a gRPC call: POST, and the headers that gRPC requires."""
    head = b"\x83\x86\x04" + _string(method_path) + b"\x01" + _string(authority)
    return head + b"".join(literal(name, value) for name, value in fields)


def fields(block: bytes) -> dict[str, str]:
    """Decode a header block; the last of equal names wins. Raises HpackError."""
    found: dict[str, str] = {}
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _integer(block, at, 7)
            if 8 <= index < 15:
                found[":status"] = _STATUS[index - 8]
            continue
        if first & 0xE0 == 0x20:  # a change of the table's size
            _, at = _integer(block, at, 5)
            continue
        index, at = _integer(block, at, 6 if first & 0x40 else 4)
        if index:
            name = _STATIC_NAMES[index] if index < len(_STATIC_NAMES) else ""
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        if name:
            found[name] = value
    return found


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Decode an integer with a prefix of `bits` bits; return it and the next position (RFC 7541 section 5.1)."""
    most = (1 << bits) - 1
    try:
        value, at = block[at] & most, at + 1
        if value < most:
            return value, at
        shift = 0
        while True:
            byte = block[at]
            at += 1
            value += (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value, at
            if shift > 28:
                raise HpackError("an integer beyond 32 bits")
    except IndexError:
        raise HpackError("cut off") from None


def _text(block: bytes, at: int) -> tuple[str, int]:
    coded = at < len(block) and bool(block[at] & 0x80)
    length, at = _integer(block, at, 7)
    if at + length > len(block):
        raise HpackError("cut off")
    return "" if coded else block[at : at + length].decode("latin-1"), at + length


def _string(value: bytes) -> bytes:
    length = len(value)
    if length < 127:
        return bytes((length,)) + value
    head, rest = bytearray(b"\x7f"), length - 127
    while rest >= 128:
        head.append(rest & 0x7F | 0x80)
        rest >>= 7
    head.append(rest)
    return bytes(head) + value
