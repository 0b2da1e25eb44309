"""Whether an IPv6 address is of its link alone: fe80::/10 (RFC 4291 section 2.5.6), as text and as bytes.

For addresses that sockets have given, on hot paths: nothing is parsed.
"""

from __future__ import annotations


def is_link_local(address: str) -> bool:
    """Of a text, with or without its zone (`fe80::1%eth1`). What is no IPv6 address gives False."""
    return address[4:5] == ":" != address[3] and address[:2] in ("fe", "FE") and address[2] in "89abAB"


def is_link_local_packed(address: bytes) -> bool:
    """Of the address's sixteen bytes; the four of one of IPv4 give False."""
    return len(address) == 16 and address[0] == 0xFE and address[1] & 0xC0 == 0x80
