"""Who is at the other end of a call: gRPC's names of peers, read."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import unquote

_PEER = re.compile(r"ipv[46]:(?:\[(?P<v6>[^\]]*)\]|(?P<v4>[^:\[\]]*)):(?P<port>\d+)")


@lru_cache(16384)
def peer_of(peer: str) -> tuple[str, int]:
    """Address and port in gRPC's name of a peer (`ipv4:192.0.2.1:4711`, `ipv6:%5B2001:db8::1%5D:4711`).

    An IPv4 address that came in through an IPv6 socket is given as IPv4. Any other kind of peer is returned as it is,
    with the port 0.
    """
    match = _PEER.fullmatch(unquote(peer))
    if match is None:
        return peer, 0
    try:
        return spelled(match["v6"] or match["v4"]), int(match["port"])
    except ValueError:
        return peer, 0


def peer_address(peer: str) -> str:
    """The IP address alone."""
    return peer_of(peer)[0]


def spelled(address: str) -> str:
    """An IP address as Hardware spells it, without a zone. Raises ValueError."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
