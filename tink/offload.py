"""Large requests beside the event loop, one piece of work at a time: small ones, and DHCP, need not wait for them.

What is done here is Python that holds the interpreter's lock in turns (`sys.getswitchinterval`, TURN_SECONDS in a
process that serves machines); with one thread, the event loop waits for one turn at most when it wants the lock. Small
requests, which are nearly all, are served where they are: a change of threads would cost them more than it saves.

Tenants choose how large their requests are, so their namespaces take turns (`flow`): a tenant with forty large requests
keeps another's waiting for one of them at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, partial
from typing import Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from tink.limits.fairness import FairSemaphore

LARGE: Final = 8 << 10
"""Bytes of JSON that take 3 ms at most to walk, complete and check."""
YAML_WEIGHT: Final = 4
"""So many times as long takes YAML."""
TURN_SECONDS: Final = 0.001
"""How long a thread keeps the interpreter's lock while the event loop waits for it: for `sys.setswitchinterval`."""

flow: ContextVar[str] = ContextVar("flow", default="")
"""Whose request is served: the namespace."""

P = ParamSpec("P")
T = TypeVar("T")

_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, FairSemaphore]] = WeakKeyDictionary()


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="large")


def weight(raw: bytes) -> int:
    """Tell how long a body takes to read, in bytes of JSON. A few bytes of YAML may repeat others by aliases."""
    if raw[:1] == b"{" or raw[:1] == b"[":
        return len(raw)
    return LARGE + 1 if b"*" in raw else len(raw) * YAML_WEIGHT


def is_large(size: int) -> bool:
    """Return True if work that takes as long as `size` bytes of JSON belongs beside the event loop."""
    return size > LARGE


async def offload(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do what takes as long as `size` bytes of JSON do: here when it is little, beside the event loop when it is much.

    Raises what `work` raises. Who is cancelled does not wait for its end; what it changes must be its own.
    """
    if not is_large(size):
        return work(*args, **kwargs)
    loop = asyncio.get_running_loop()
    if (turns := _turns.get(loop)) is None:
        turns = _turns[loop] = FairSemaphore(1)
    async with turns.held(flow.get()):
        return await loop.run_in_executor(_thread(), partial(work, *args, **kwargs))
