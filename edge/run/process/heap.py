"""What the memory of an edge with very many machines needs, once they are known.

A packet of one of 100,000 machines touches a dozen objects that lie anywhere in some hundred megabytes. What that costs
is two things: the processor finds an address by tables, which are as far away as the objects themselves, and the
garbage collector would look at each object again and again (0.7 s each time).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_HUGE_BYTES: Final = 2 * 1024 * 1024
_WORTH_BYTES: Final = 64 * 1024 * 1024
"""A smaller heap is found by the processor's own tables."""

_MADV_COLLAPSE: Final = 25  # linux/mman.h, since 6.1
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?\n")
_MAPS: Final = Path("/proc/self/maps")
_POLICY: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def settle(*, huge_pages: bool) -> None:
    """Call when what is known by now will stay: it is not looked at for garbage again, and gets `huge_pages`, if they
    are wanted. What was needed on the way goes back to the system.

    Huge pages are for Linux from 6.1 on, where the administrator does not forbid them, and for a heap that is large.
    What lies between its objects becomes resident with them.
    """
    gc.collect()
    gc.freeze()
    _give_back()
    if huge_pages:
        _collapse()


async def read_up() -> None:
    """Call in the event loop when more has become known that will stay, while machines are served: no machine waits for
    what this takes, which is why garbage is not looked for before."""
    gc.freeze()
    await asyncio.to_thread(_give_back)
    await asyncio.to_thread(_collapse)


def _collapse() -> None:
    ranges = list(_ranges())
    size = sum(end - start for start, end in ranges)
    if size < _WORTH_BYTES or not _allowed():
        return
    advise = ctypes.PyDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    # Piece by piece, for one that can't be had ends the call. Whatever is refused stays as it is, which does no harm.
    pieces = [piece for start, end in ranges for piece in range(start, end, _HUGE_BYTES)]
    for start, end in ranges:
        advise(start, end - start, mmap.MADV_HUGEPAGE)
    got = sum(advise(piece, _HUGE_BYTES, _MADV_COLLAPSE) == 0 for piece in pieces)
    log.debug("memory: %d of %d MiB are in huge pages", 2 * got, size // 1024 // 1024)


def _give_back() -> None:
    """What lists took while they were read, and nobody needs any more: the C library keeps it otherwise."""
    try:
        ctypes.PyDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library than GNU's
        return


def _allowed() -> bool:
    try:
        return "[never]" not in _POLICY.read_text()
    except OSError:  # a kernel without them
        return False


def _ranges() -> Iterator[tuple[int, int]]:
    """Where private memory lies that no file stands behind: whole huge pages of it, as start and end."""
    try:
        maps = _MAPS.read_text()
    except OSError:
        return
    for found in _MAPPING.finditer(maps):
        start, end = (int(text, 16) for text in found.group(1, 2))
        start, end = -(-start // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
        if start < end:
            yield start, end
