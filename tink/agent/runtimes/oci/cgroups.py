"""The processes of a container by its control group, which no process leaves by accident.

A container that shares the machine's PID namespace ends with its first process; the others stay where the runtime does
not look for them: crun 1.8 does not. Works with cgroup v1, v2 and a mixture, whichever is mounted.
Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/cgroups.rst (cgroup.procs).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

MOUNTED = Path("/sys/fs/cgroup")

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.02


async def kill_all(group: str, mounted: Path = MOUNTED) -> int:
    """Kill what runs in the control group `group` (its path in each hierarchy), until nothing does, and remove it.

    Gives how many processes are left after two seconds: those that the kernel holds.
    """
    found = _directories(group, mounted)
    left = _processes(found)
    for _ in range(_ATTEMPTS):
        if not left:
            break
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        await asyncio.sleep(_PAUSE_SECONDS)
        left = _processes(found)
    for directory in reversed(found):
        with contextlib.suppress(OSError):  # busy for a moment: an empty one costs nothing
            directory.rmdir()
    return len(left)


def _directories(group: str, mounted: Path) -> list[Path]:
    """The directories of the group and of the groups within it, in every hierarchy; those within come last."""
    try:
        hierarchies = [mounted, *(each for each in mounted.iterdir() if each.is_dir() and not each.is_symlink())]
    except OSError:
        return []  # no control groups here
    found: list[Path] = []
    for hierarchy in hierarchies:
        for directory, _, _ in os.walk(hierarchy / group):
            found.append(Path(directory))
    return found


def _processes(directories: list[Path]) -> set[int]:
    found: set[int] = set()
    for directory in directories:
        with contextlib.suppress(OSError):
            found |= {int(number) for number in (directory / "cgroup.procs").read_text().split()}
    return found - {0, os.getpid()}  # 0: of a PID namespace that is not seen from here
