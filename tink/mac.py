"""MAC addresses in the form of Hardware: six octets in lowercase hexadecimal with colons.

An InfiniBand port has none; the MAC derived from its GUID identifies it (`guid_mac`).
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final

PATTERN: Final = r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}"
"""The regular expression of a MAC address, without anchors."""
_MAC = re.compile(PATTERN)
_WRITTEN = re.compile(
    r"[0-9a-f]{12}|[0-9a-f]{2}(?:([:.-])[0-9a-f]{2})(?:\1[0-9a-f]{2}){4}|[0-9a-f]{4}([.:-])[0-9a-f]{4}\2[0-9a-f]{4}"
)


def is_mac(text: str) -> bool:
    """Return True if `text` is a MAC address in this form."""
    return _MAC.fullmatch(text) is not None


def from_any(text: str) -> str | None:
    """Return the MAC address in `text`, which may have any of the usual forms, or None.

    These are pairs of digits with colons, dashes or dots (iPXE's `hexhyp`), fours with dots or dashes (switches), and
    digits alone (iPXE's `hexraw`), in either case.
    """
    lowered = text.lower()
    if not _WRITTEN.fullmatch(lowered):
        return None
    digits = re.sub(r"[:.-]", "", lowered)
    return ":".join(digits[at : at + 2] for at in range(0, 12, 2))


def from_path(segments: list[str]) -> tuple[str | None, list[str]]:
    """Split the path of a URL or file into the MAC that its first directory names (None: it names none) and the rest.

    The last segment is never taken for a MAC: it is the name of the file.
    """
    mac = from_any(segments[0]) if len(segments) > 1 else None
    return mac, segments[1:] if mac is not None else segments


def octets(mac: str) -> bytes:
    """The six bytes of a MAC address in this form. Raises ValueError if it has other digits."""
    return bytes.fromhex(mac.replace(":", ""))


def guid_mac(guid: bytes) -> bytes:
    """Return the six bytes of the MAC for an InfiniBand port's GUID (eight bytes): its first three and its last three.

    So do iPXE (ipoib.h, IPOIB_GUID_MASK), NVIDIA's FlexBoot and OpenStack's Ironic.
    """
    return guid[:3] + guid[5:8]


def eui64_mac(address: IPv6Address) -> str | None:
    """Return the MAC that an IPv6 address was made from (RFC 4291 appendix A), or None if it was made otherwise."""
    packed = address.packed
    if packed[11:13] != b"\xff\xfe" or packed[8] & 1:  # A group MAC belongs to no interface; bit 1 is inverted
        return None
    return (bytes((packed[8] ^ 2,)) + packed[9:11] + packed[13:16]).hex(":")


def mac_in(address: str) -> str | None:
    """Return the same for an address as text in its canonical form (RFC 5952); None also for other text."""
    if "ff:fe" not in address:
        return None
    try:
        return eui64_mac(IPv6Address(address))
    except ValueError:
        return None
