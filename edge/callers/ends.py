"""Who is at the other end of a socket, spelled as the inventory and the neighbour table know it."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from edge.callers.addresses import dotted


def other_end(name: Sequence[object]) -> str:
    """The address of a socket's other end, of its name as the socket gives it (IPv6: address, port, flow, scope).

    A link-local address keeps its link as its zone (RFC 4007 section 11), `fe80::1%eth1`: on another link it is another
    host's.
    """
    address = dotted(str(name[0]))
    scope = name[3] if len(name) > 3 and ":" in address else 0
    if not isinstance(scope, int) or not scope:
        return address
    try:
        return f"{address}%{socket.if_indextoname(scope)}"
    except OSError:
        return f"{address}%{scope}"  # the link has gone at this moment: nobody is known there
