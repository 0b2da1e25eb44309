"""Hears from the kernel that an entry of its neighbour table has changed (RTNLGRP_NEIGH): what it said is forgotten.

Whoever takes an address over on a link of ours must first let the kernel know its MAC, and the kernel tells so before
it hands on what comes from there. So nobody is taken for the one who had the address a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from edge.neighbour.netlink import Multicast
from edge.neighbour.table import changed_address

_RTMGRP_NEIGH: Final = 4  # linux/rtnetlink.h


class NeighbourChanges:
    """Calls `changed(ip)` for each change, `changed(None)` when some were missed. Needs a running loop."""

    def __init__(self, changed: Callable[[str | None], None]) -> None:
        """Raises OSError where the kernel has no such messages."""
        self._changed = changed
        self._multicast = Multicast(_RTMGRP_NEIGH, self._heard)

    def close(self) -> None:
        """Hear no more."""
        self._multicast.close()

    def _heard(self, message: bytes | None) -> None:
        if message is None:
            self._changed(None)
            return
        ip = changed_address(message)
        if ip is not None:
            self._changed(ip)
