"""Notices that this process takes memory that its connections do not account for.

gRPC's core expands header blocks (HPACK, RFC 7541) as they come in. `grpc.absolute_max_metadata_size` becomes
SETTINGS_MAX_HEADER_LIST_SIZE, which the core applies when the peer has acknowledged it (RFC 9113 section 6.5.3). A peer
that acknowledges nothing may have 16 MB for each block, of which 4 kB come over the wire. It is found by what follows:
memory that grows, and bytes that belong to no call (`accounts`). What was read is expanded even if its connection is
ended: how much one burst may take is for the limit of the process. Pure, but for `resident_bytes`.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Final

SUDDEN_BYTES: Final = 32 << 20
WINDOW_SECONDS: Final = 2.0
CONNECTION_BYTES: Final = 64 << 10
"""Bytes that an honest connection with its calls may take: of 10,000 agents that come at once, memory grows, too."""
PRESSED: Final = 0.75
"""The share of the limit from which on less growth counts, too."""
PRESSED_BYTES: Final = 4 << 20
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Alarm:
    """So many bytes came within WINDOW_SECONDS. `pressed`: little is left below the limit."""

    grown: int
    pressed: bool


class MemoryWatch:
    """`limit` in bytes; None: sudden growth alone counts."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._samples: deque[tuple[float, int]] = deque()
        """Times, and the memory then that connections do not account for: the smallest first, later ones larger."""

    def look(self, resident: int, connections: int, now: float) -> Alarm | None:
        """Take a look at the memory, in bytes, at a monotonic time; an alarm if it grows too much."""
        own = resident - connections * CONNECTION_BYTES
        samples = self._samples
        while samples and samples[-1][1] >= own:
            samples.pop()
        samples.append((now, own))
        while now - samples[0][0] > WINDOW_SECONDS:
            samples.popleft()
        grown = own - samples[0][1]
        pressed = self._limit is not None and resident > PRESSED * self._limit
        if grown < (PRESSED_BYTES if pressed else SUDDEN_BYTES):
            return None
        samples.clear()
        samples.append((now, own))
        return Alarm(grown, pressed)


def resident_bytes(statm: int) -> int:
    """The memory of this process, from a descriptor of /proc/self/statm (proc(5))."""
    return int(os.pread(statm, 100, 0).split()[1]) * _PAGE_BYTES
