"""Room for a directory: bytes and inodes (statvfs(3)). A file system that counts no inodes has as many as it needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge.doctor.checks.findings import Finding, warning

LEAST_BYTES: Final = 64 * 2**20
"""With less, the database soon can't be written."""
CACHE_BYTES: Final = 2**30
"""Below that (and a twentieth of the disk) the cache of kernels keeps nothing: `edge.artifacts.storage`."""
LEAST_INODES: Final = 1000


def check_space(directory: Path) -> Iterator[Finding]:
    """What is wrong with the room there; nothing, if nothing is. Raises OSError."""
    state = os.statvfs(directory)
    free = state.f_bavail * state.f_frsize
    remedy = "free some space, or give another --data-dir"
    name = "data directory's space"
    if free < LEAST_BYTES:
        yield Finding(name, ok=False, seen=f"{free // 10**6} MB free", remedy=remedy)
    elif free < max(CACHE_BYTES, state.f_blocks * state.f_frsize // 20):
        seen = f"{free // 10**6} MB free: kernels are fetched for each machine anew, for there is no room to keep them"
        yield warning(name, seen, remedy)
    if state.f_files and state.f_favail < LEAST_INODES:
        seen = f"{state.f_favail} of {state.f_files} inodes are free"
        remedy = "delete files, or make the file system with more (mkfs -N)"
        if state.f_favail:
            yield warning("data directory's inodes", seen, remedy)
        else:
            yield Finding("data directory's inodes", ok=False, seen=seen, remedy=remedy)
