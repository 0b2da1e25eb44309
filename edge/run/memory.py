"""The memory of this process, and the default of --grpc-memory that follows from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

LEAST_SERVER_BYTES: Final = 400_000_000
MOST_SERVER_BYTES: Final = 4_000_000_000
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def default_server_memory(*, alone: bool, total: int | None = None) -> int:
    """Return the default of `--grpc-memory` in bytes.

    That is all memory (`total`) for a process that is `alone`, such as the only one of a container; else a quarter,
    within bounds.
    """
    total = memory() if total is None else total
    return total if alone else min(max(total // 4, LEAST_SERVER_BYTES), MOST_SERVER_BYTES)


def memory(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """Return the memory that this process may use, in bytes.

    That is the host's memory or the limit of a control group, if that is lower (memory.max, Kubernetes'
    `limits.memory`).
    """
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for group in _groups(cgroups, own):
        with suppress(OSError, ValueError):  # "max" stands for no limit.
            found = min(found, int((group / "memory.max").read_text()))
    return found


def _groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """Yield the control groups of this process, the innermost first (version 2, cgroups(7))."""
    with suppress(OSError):
        name = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
        group = cgroups / name.lstrip("/")
        for each in (group, *group.parents):
            yield each
            if each == cgroups:
                break
