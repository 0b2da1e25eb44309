"""Run large requests in a thread beside the event loop, one at a time, so small requests and DHCP do not wait.

The work is Python code that holds the interpreter's lock in turns (`sys.getswitchinterval`, TURN_SECONDS in a process
that serves machines). With one thread, the event loop waits for at most one turn when it needs the lock. Small requests
are nearly all requests and run on the event loop: a change of threads would cost more than it saves.

Tenants control the size of their requests, so their namespaces take turns (`flow`): a tenant with forty large requests
delays another tenant's request by one of them at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, partial
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from tink.limits import FairSemaphore

LARGE: Final = 8 << 10
"""Bytes of JSON that take at most 3 ms to walk, complete and check."""
YAML_WEIGHT: Final = 4
"""Time to parse YAML, as a multiple of that of JSON."""
TURN_SECONDS: Final = 0.001
"""Time for which a thread keeps the interpreter's lock while the event loop waits: for `sys.setswitchinterval`."""

flow: ContextVar[str] = ContextVar("flow", default="")
"""The namespace whose request is served."""

P = ParamSpec("P")
T = TypeVar("T")

_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, FairSemaphore]] = WeakKeyDictionary()


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="large")


def weight(raw: bytes) -> int:
    """Return the time to parse a body, in bytes of JSON. With aliases, a few bytes of YAML may repeat others."""
    if raw[:1] == b"{" or raw[:1] == b"[":
        return len(raw)
    return LARGE + 1 if b"*" in raw else len(raw) * YAML_WEIGHT


def is_large(size: int) -> bool:
    """Return True if work that takes as long as `size` bytes of JSON belongs beside the event loop."""
    return size > LARGE


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function whose time is that of `size` bytes of JSON: here if it is short, else in the thread.

    Raises the exceptions of `work`. A cancelled caller does not wait for its end, so `work` must not share objects.
    """
    if not is_large(size):
        return work(*args, **kwargs)
    loop = asyncio.get_running_loop()
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = FairSemaphore(1)
    async with turns.held(flow.get()):
        return await loop.run_in_executor(_thread(), partial(work, *args, **kwargs))
