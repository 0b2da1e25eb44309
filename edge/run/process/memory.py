"""The memory of this process: its limit, and how an edge with very many machines uses it.

A packet of one of 100,000 machines touches a dozen objects that lie anywhere in some hundred megabytes. That has two
costs. The processor finds an address by page tables, which are as far away as the objects themselves; huge pages make
these tables short. And the garbage collector would look at each object again and again, for 0.7 s each time.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MIN_SERVER_BYTES: Final = 400_000_000
MAX_SERVER_BYTES: Final = 4_000_000_000
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUP: Final = Path("/proc/self/cgroup")
_HUGE_PAGE_BYTES: Final = 2 * 1024 * 1024
_WORTH_BYTES: Final = 64 * 1024 * 1024
"""Minimum size of a heap for huge pages: the processor's own tables find a smaller one."""
_MADV_COLLAPSE: Final = 25  # linux/mman.h, since 6.1
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?\n")
_MAPS: Final = Path("/proc/self/maps")
_POLICY: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def default_server_memory(*, alone: bool, total: int | None = None) -> int:
    """Return the default of `--grpc-memory` in bytes: all memory (`total`) for a process that is `alone`, else a
    quarter.
    """
    total = memory() if total is None else total
    return total if alone else min(max(total // 4, MIN_SERVER_BYTES), MAX_SERVER_BYTES)


def memory(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Return the memory that this process may use, in bytes: the host's, or the lower limit of a control group."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError):
        # cgroups(7), version 2: the innermost group, and those around it. Kubernetes' `limits.memory` is memory.max.
        name = next((line[3:] for line in own.read_text().splitlines() if line.startswith("0::")), "/")
        group = cgroups / name.lstrip("/")
        for each in (group, *group.parents):
            with suppress(OSError, ValueError):  # "max" stands for no limit.
                found = min(found, int((each / "memory.max").read_text()))
            if each == cgroups:
                break
    return found


def settle(*, huge_pages: bool) -> None:
    """Exclude all present objects from garbage collection, and return unused memory to the system, at the end of the
    start.

    With `huge_pages` a large heap moves to huge pages, on Linux 6.1 and newer, unless the administrator forbids them.
    The gaps between the objects then become resident too.
    """
    gc.collect()
    gc.freeze()
    _trim()
    if huge_pages:
        _collapse()


async def read_up() -> None:
    """Do as `settle` when more objects have been read, in threads: machines are served meanwhile."""
    gc.freeze()
    await asyncio.to_thread(_trim)
    await asyncio.to_thread(_collapse)


def _collapse() -> None:
    """Move the heap to huge pages."""
    ranges = list(_anonymous_ranges())
    size = sum(end - start for start, end in ranges)
    if size < _WORTH_BYTES or not _is_allowed():
        return
    advise = ctypes.PyDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Page by page, because the first one that fails ends a call. A page that is refused stays as it is.
    pieces = [piece for start, end in ranges for piece in range(start, end, _HUGE_PAGE_BYTES)]
    for start, end in ranges:
        advise(start, end - start, mmap.MADV_HUGEPAGE)
    got = sum(advise(piece, _HUGE_PAGE_BYTES, _MADV_COLLAPSE) == 0 for piece in pieces)
    log.debug("memory: %d of %d MiB are in huge pages", 2 * got, size // 1024 // 1024)


def _trim() -> None:
    """Return freed memory to the system, such as that of the lists; the C library keeps it otherwise."""
    try:
        ctypes.PyDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library than GNU's
        return


def _is_allowed() -> bool:
    try:
        return "[never]" not in _POLICY.read_text()
    except OSError:  # a kernel without huge pages
        return False


def _anonymous_ranges() -> Iterator[tuple[int, int]]:
    """Yield the start and end of each range of private memory without a file, in whole huge pages."""
    try:
        maps = _MAPS.read_text()
    except OSError:
        return
    for found in _MAPPING.finditer(maps):
        start, end = (int(text, 16) for text in found.group(1, 2))
        start, end = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if start < end:
            yield start, end
