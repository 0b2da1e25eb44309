"""How many processors this process has, and how many workers an edge is given for them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge.composition.settings import EDGE, Service

SMALL: Final = 4
"""Fewer processors than that are kept busy by one process, and the programs beside it."""
MOST: Final = 4
"""Workers that an edge is given by itself: each has a copy of what is known of all machines."""


def default_workers(services: frozenset[Service], count: int | None = None) -> int:
    """What `--workers` is where nobody says it: on small machines, and where other services run in the same process, 1;
    else one for each processor (`count` of them; None: as this machine has) but the main process's.
    """
    found = processors() if count is None else count
    return 1 if found < SMALL or not services <= EDGE else min(found - 1, MOST)


def processors(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """That this process may use, by its affinity (sched_setaffinity(2)) and by the limits of its control groups
    (cpu.max, Kubernetes' `limits.cpu`); at least 1.
    """
    found = float(len(os.sched_getaffinity(0)))
    with suppress(OSError):
        name = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
        group = cgroups / name.lstrip("/")
        for each in (group, *group.parents):
            found = min(found, _limit(each / "cpu.max"))
            if each == cgroups:
                break
    return max(1, int(found))


def _limit(file: Path) -> float:
    """Processors, of `QUOTA PERIOD` in microseconds."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = file.read_text().split()
        if quota != "max":
            return int(quota) / int(period)
    return float("inf")
