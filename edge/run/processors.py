"""The processors and the memory of this process, and the default settings that follow from them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge.settings.model import EDGE, Service

SMALL: Final = 4
"""Fewer processors than that are kept busy by one process, and the programs beside it."""
MOST: Final = 4
"""Workers that an edge is given by itself: each has a copy of what is known of all machines."""
LEAST_SERVER_BYTES: Final = 400_000_000
MOST_SERVER_BYTES: Final = 4_000_000_000
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def default_workers(services: frozenset[Service], count: int | None = None) -> int:
    """What `--workers` is where nobody says it: on small machines, and where other services run in the same process, 1;
    else one for each processor (`count` of them; None: as this machine has) but the main process's.
    """
    found = processors() if count is None else count
    return 1 if found < SMALL or not services <= EDGE else min(found - 1, MOST)


def default_server_memory(*, alone: bool, total: int | None = None) -> int:
    """Return the default of `--grpc-memory` in bytes.

    That is all memory (`total`) for a process that is `alone`, such as the only one of a container; else a quarter,
    within bounds.
    """
    total = memory() if total is None else total
    return total if alone else min(max(total // 4, LEAST_SERVER_BYTES), MOST_SERVER_BYTES)


def processors(cgroups: Path = _CGROUPS, own: Path = _OWN) -> int:
    """That this process may use, by its affinity (sched_setaffinity(2)) and by the limits of its control groups
    (cpu.max, Kubernetes' `limits.cpu`); at least 1.
    """
    found = float(len(os.sched_getaffinity(0)))
    for group in _groups(cgroups, own):
        found = min(found, _limit(group / "cpu.max"))
    return max(1, int(found))


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


def _limit(file: Path) -> float:
    """Processors, of `QUOTA PERIOD` in microseconds."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = file.read_text().split()
        if quota != "max":
            return int(quota) / int(period)
    return float("inf")
