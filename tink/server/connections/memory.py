"""Detects memory of this process that its connections do not account for.

gRPC's core expands header blocks (HPACK, RFC 7541) as they arrive. `grpc.absolute_max_metadata_size` becomes
SETTINGS_MAX_HEADER_LIST_SIZE, which the core applies when the peer has acknowledged it (RFC 9113 section 6.5.3). A peer
that acknowledges nothing may use 16 MB for each block, of which 4 kB come over the wire. Two consequences reveal it:
memory that grows, and bytes that belong to no call (`accounts`). Bytes that were read are expanded even if their
connection is ended, so the limit of the process has to bound a single burst. Pure, except for `resident_bytes`.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Final

SUDDEN_BYTES: Final = 32 << 20
WINDOW_SECONDS: Final = 2.0
CONNECTION_BYTES: Final = 64 << 10
"""Bytes that an honest connection with its calls may use: memory also grows when 10,000 agents connect at once."""
PRESSED: Final = 0.75
"""The share of the memory limit above which smaller growth counts as well."""
PRESSED_BYTES: Final = 4 << 20
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Alarm:
    """Memory grew by `grown` bytes within WINDOW_SECONDS. `pressed`: little is left below the limit."""

    grown: int
    pressed: bool


class MemoryWatch:
    """Watches the memory of a process with a `limit` in bytes; with None, only sudden growth counts."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._samples: deque[tuple[float, int]] = deque()
        """Times, each with the memory that connections do not account for; the smallest first, later ones larger."""

    def look(self, resident: int, connections: int, now: float) -> Alarm | None:
        """Record the memory in bytes at a monotonic time. Return an alarm if it grows too much."""
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
    """Return the memory of this process in bytes, from a descriptor of /proc/self/statm (proc(5))."""
    return int(os.pread(statm, 100, 0).split()[1]) * _PAGE_BYTES
