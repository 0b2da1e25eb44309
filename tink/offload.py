"""Large requests beside the event loop, one piece of work at a time: small ones, and DHCP, need not wait for them.

What is done here is Python that holds the interpreter's lock in turns of some milliseconds (`sys.getswitchinterval`);
with one thread, whoever else wants the lock waits for one turn at most. Small requests, which are nearly all, are
served where they are: a change of threads would cost them more than it saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ParamSpec, TypeVar

LARGE = 32 << 10
"""Bytes of JSON that take some milliseconds to walk, complete and check."""

P = ParamSpec("P")
T = TypeVar("T")


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="large")


def weight(raw: bytes) -> int:
    """How dear a body is to read: as YAML a few bytes may repeat others by aliases."""
    return LARGE + 1 if b"*" in raw and raw[:1] != b"{" else len(raw)


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do what takes as long as `size` bytes of JSON do: here when it is little, beside the event loop when it is much.

    Raises what `work` raises. Who is cancelled does not wait for its end; what it changes must be its own.
    """
    if size <= LARGE:
        return work(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_thread(), partial(work, *args, **kwargs))
