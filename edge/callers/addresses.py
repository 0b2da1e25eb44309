"""Addresses of senders, as sockets and proxies spell them. Pure."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Sequence

from tink.errors import TinkedgeError

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

FORWARDED = "X-Forwarded-For"
MAX_HOPS = 32
"""Maximum number of addresses in X-Forwarded-For that are read."""

_HOP = re.compile(r"\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9a-fA-F:.]+)", re.ASCII)
"""An address, with a port or without: some load balancers add it."""


class ForwardedError(TinkedgeError, ValueError):
    """A trusted proxy sends an X-Forwarded-For that is no list of addresses."""


def forwarded_for(lines: Sequence[str], proxies: Networks) -> str | None:
    """Return the sender by X-Forwarded-For of a trusted proxy; None if it names none. Raises ForwardedError."""
    # Each proxy appends the address that it sees. The last one that is no trusted proxy is the sender's. The sender may
    # have written the entries before it, so they are not read.
    hops = (hop for line in reversed(lines) for entry in reversed(line.split(",")) if (hop := entry.strip(" \t")))
    for number, hop in enumerate(hops):
        match = _HOP.fullmatch(hop) if number < MAX_HOPS else None
        try:
            address = dotted(str(ipaddress.ip_address(match[match.lastindex or 0]))) if match is not None else None
        except ValueError:
            address = None
        if address is None:
            raise ForwardedError(f"{FORWARDED}: what the proxy adds must be IP addresses, at most {MAX_HOPS}")
        if not inside(address, proxies):
            return address
    return None


@functools.lru_cache(maxsize=4096)
def inside(address: str, networks: Networks) -> bool:
    """Return True if the address is in one of the networks."""
    if not networks:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


@functools.lru_cache(maxsize=4096)
def dotted(text: str) -> str:
    """Return an address as the inventory spells it; another text is returned unchanged."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    # A socket that serves both families has IPv4 addresses as ::ffff:a.b.c.d.
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
