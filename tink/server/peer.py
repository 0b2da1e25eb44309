"""The caller of a gRPC call: its address, and the metadata that it sends beside the message."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from proto import metadata

_PEER = re.compile(r"ipv[46]:(?:\[(?P<v6>[^\]]*)\]|(?P<v4>[^:\[\]]*)):(?P<port>\d+)")


@lru_cache(16384)
def peer_of(peer: str) -> tuple[str, int]:
    """Return the address and the port in gRPC's name of a peer.

    Names look like `ipv4:192.0.2.1:4711` and `ipv6:%5B2001:db8::1%5D:4711`. An IPv4 address that came through an IPv6
    socket is returned as IPv4. The name of any other kind of peer is returned unchanged, with port 0.
    """
    match = _PEER.fullmatch(unquote(peer))
    if match is None:
        return peer, 0
    try:
        return spelled(match["v6"] or match["v4"]), int(match["port"])
    except ValueError:
        return peer, 0


def peer_address(peer: str) -> str:
    """Return the IP address in gRPC's name of a peer."""
    return peer_of(peer)[0]


def spelled(address: str) -> str:
    """Return an IP address as Hardware spells it, without a zone. Raises ValueError."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


MAX_HELD = 64
"""Maximum number of Workflow uids that are read; an agent runs one and has unsent events of a few."""


@dataclass(frozen=True, slots=True)
class CallMetadata:
    """The metadata that an agent sends with a call.

    `token` is empty if the agent sends none. `holds` are the uids of the Workflows that the agent runs or has
    unacknowledged events of; None if the agent does not send them.
    """

    token: str = ""
    holds: frozenset[str] | None = None


def read_call_metadata(sent: Iterable[tuple[str, str | bytes]] | None) -> CallMetadata:
    """Read the metadata of a call. Never raises.

    An agent that names MAX_HELD Workflows may hold more, so `holds` is None then.
    """
    token, held, says = "", set[str](), False
    for key, value in sent or ():
        if not isinstance(value, str):
            continue
        if key == metadata.AUTHORIZATION:
            scheme, _, rest = value.partition(" ")
            token = rest.strip() if scheme.lower() == "bearer" else ""
        elif key == metadata.WORKFLOW:
            says = True
            if value and len(held) < MAX_HELD:
                held.add(value)
    return CallMetadata(token, frozenset(held) if says and len(held) < MAX_HELD else None)
