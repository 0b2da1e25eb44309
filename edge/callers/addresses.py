"""Addresses of senders, as the sockets and the proxies in front of us spell them. Pure.

`edge.callers.by_request` uses it to tell who asks, `edge.http.connections` to count what each sender takes.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Sequence

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

FORWARDED = "X-Forwarded-For"
MAX_HOPS = 32
"""Addresses of X-Forwarded-For that are looked at: no request has passed more proxies than that."""

_HOP = re.compile(r"\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9a-fA-F:.]+)", re.ASCII)
"""An address, with a port or without: some load balancers add it."""


class ForwardedError(ValueError):
    """A trusted proxy sends an X-Forwarded-For that can't be read."""


def forwarded_for(lines: Sequence[str], proxies: Networks) -> str | None:
    """The address that a request comes from, of all lines of X-Forwarded-For that a trusted proxy has sent.

    Each proxy adds the address that it sees at the right: the last one that is no trusted proxy itself is the sender's;
    what stands before it was written by the sender, and is not even read. None if there is none. Raises ForwardedError.
    """
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
    """Whether an address is in one of the networks."""
    if not networks:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


@functools.lru_cache(maxsize=4096)
def dotted(text: str) -> str:
    """An address as the inventory spells it."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = getattr(address, "ipv4_mapped", None)  # of a socket that serves IPv4 and IPv6 alike
    return str(mapped or address)
