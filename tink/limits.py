"""Limiters: shares, rates, delays between attempts, and places. The caller passes the clock.

Allowance                 a limit for each key and a limit in all, in an interval
TokenBuckets              a rate and a burst, by key
OncePer, Tally            each key once in an interval; a maximum number of keys, in all and of one owner
LimitedLog                log lines at a bounded rate
Backoff                   growing delays between attempts
Newest                    a mapping of bounded size that drops old entries
RecentlyUsed              a cache of a bounded number of bytes
shrink_to_fit             bytes in memory of exactly their size, for caches that count it
FairQueue, FairSemaphore  serve namespaces in turn
PrioritySemaphore         serves waiters by priority

Any host on the network can send requests with the source address of another host, which then gets the answers. Where a
protocol does not authenticate the sender, the number of answers is limited (`Allowance`). Any host can also send a
thousand bad packets a second. Each kind should be reported, but must not fill the disk or push the history of other
machines out of memory (`OncePer`, `LimitedLog`).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Final, Generic, TypeVar

from tink.printable import printable

T = TypeVar("T")
S = TypeVar("S")

# --- rates, by key ----------------------------------------------------------------------------------------------------


class Allowance:
    """Allows `each` passes of a key in an interval, and `in_all` passes of all keys together.

    A refused key may pass in the next interval. At most `in_all` keys are stored.
    """

    def __init__(self, each: int, in_all: int, seconds: float = 1.0) -> None:
        self._each = each
        self._in_all = in_all
        self._seconds = seconds
        self._since = float("-inf")
        self._passed: dict[Hashable, int] = {}
        self._total = 0

    def take(self, key: Hashable, now: float) -> bool:
        """Return True if a key may pass at `now` (seconds), and count the pass."""
        if not 0 <= now - self._since < self._seconds:  # a clock that was set back starts an interval, too
            self._since = now
            self._passed.clear()
            self._total = 0
        passed = self._passed.get(key, 0)
        if passed >= self._each or self._total >= self._in_all:
            return False
        self._passed[key] = passed + 1
        self._total += 1
        return True

    def give_back(self, key: Hashable) -> None:
        """Cancel the last pass of a key in this interval."""
        passed = self._passed.get(key, 0)
        if passed > 1:
            self._passed[key] = passed - 1
        elif passed:
            del self._passed[key]
        self._total -= 1 if passed else 0


_ROUNDING_SECONDS = 1e-6


class TokenBuckets:
    """A bucket for each key: it may pass `burst` times at once, and then `per_second` times a second.

    Full buckets are dropped. If there are more than `capacity` (None: no limit), the one that was unused for longest is
    dropped.
    """

    def __init__(self, burst: float, per_second: float, capacity: int | None = None) -> None:
        self._burst = burst
        self._per_second = per_second
        self._capacity = capacity
        # The time at which a key's whole burst is available again. The order is that of the last pass. A dict would
        # keep the order, too, but finding its first key is slow after many keys were removed at its front.
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def allows(self, key: Hashable, now: float) -> bool:
        """Return True if a key may pass at `now` (monotonic seconds), and count the pass."""
        while self._full_at and self._full_at[first := next(iter(self._full_at))] <= now:
            del self._full_at[first]
        full_at = max(self._full_at.get(key, now), now) + 1 / self._per_second
        if full_at - now > self._burst / self._per_second + _ROUNDING_SECONDS:
            return False
        self._full_at.pop(key, None)
        self._full_at[key] = full_at
        if self._capacity is not None and len(self._full_at) > self._capacity:
            del self._full_at[next(iter(self._full_at))]
        return True


class OncePer:
    """Allows one pass of each key in `interval` seconds, and of at most `capacity` keys, `share` of them of one owner.

    Without a `share`, one owner may have all. `capacity` limits the memory and the number of passes. The caller passes
    the time.
    """

    def __init__(self, interval: float, capacity: int, share: int | None = None) -> None:
        self._interval = interval
        self._capacity = capacity
        self._share = capacity if share is None else share
        self._passed: set[Hashable] = set()
        # The time, key and owner of each pass, in the order of time. A dict would keep the order, too, but finding its
        # first key is slow after many keys were removed at its front.
        self._order: deque[tuple[float, Hashable, Hashable]] = deque()
        self._of_owner: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._passed)

    def __contains__(self, key: Hashable) -> bool:
        """Return True if the key has passed in the interval that ended with the last call of `due`."""
        return key in self._passed

    def due(self, key: Hashable, now: float, owner: Hashable = None) -> bool:
        """Return True if a key of `owner` (None: no owner) may pass at `now` (seconds), and count the pass."""
        order = self._order
        while order:
            since, oldest, its_owner = order[0]
            # After a clock was set back, entries seem to be from the future; they are removed, too.
            if 0 <= now - since < self._interval:
                break
            order.popleft()
            self._passed.remove(oldest)
            if its_owner is not None:
                self._of_owner[its_owner] -= 1
                if not self._of_owner[its_owner]:
                    del self._of_owner[its_owner]
        if key in self._passed or len(order) >= self._capacity:
            return False
        if owner is not None:
            if self._of_owner[owner] >= self._share:
                return False
            self._of_owner[owner] += 1
        self._passed.add(key)
        order.append((now, key, owner))
        return True


class Tally:
    """Like OncePer, and counts how often each key was refused since its last pass."""

    def __init__(self, interval: float, capacity: int) -> None:
        self._once = OncePer(interval, capacity)
        self._capacity = capacity
        self._refused: dict[Hashable, int] = {}

    def due(self, key: Hashable, now: float) -> int | None:
        """Return how often a key was refused before, if it may pass at `now` (seconds); None if it may not."""
        if self._once.due(key, now):
            return self._refused.pop(key, 0)
        count = self._refused.pop(key, 0)  # it moves behind the others
        if len(self._refused) >= self._capacity:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = count + 1
        return None


def times(refused: int) -> str:
    """Return the part of a log line about the omitted lines of its kind; empty if there are none."""
    return f" ({refused} more times since this was last said)" if refused else ""


# --- a log with a limited rate ----------------------------------------------------------------------------------------
#
# A repeated problem, or one of all machines at once, does not fill the disk:
#
#     repetition   a line with a `key` is written once in an interval
#     flood        a maximum number of lines in an interval, and of these a share for each owner (a namespace, say)
#     omission     the number of omitted lines is written with the first line of a later interval, with the owner of
#                  most of them


_OWNERS: Final = 64
"""Maximum number of owners whose omitted lines are counted separately."""
_NAMED: Final = 3
_MAX_NAME: Final = 64


class LimitedLog:
    """Writes at most `capacity` lines to `log` in `interval` seconds of `clock`, `share` of them of one owner."""

    def __init__(
        self,
        log: logging.Logger,
        clock: Callable[[], float],
        *,
        capacity: int,
        interval: float = 60.0,
        share: int | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._interval = interval
        self._once = OncePer(interval, capacity, share)
        self._omitted = 0
        self._omitted_by_owner: Counter[Hashable] = Counter()
        self._omitted_since = 0.0

    def log(
        self,
        level: int,
        message: str,
        *args: object,
        key: Hashable = None,
        owner: Hashable = None,
        exc_info: bool = False,
        fields: Mapping[str, object] | None = None,
    ) -> bool:
        """Write a line unless one with its `key` was written in the interval, or there are too many; return True if it
        was written.

        `fields` are structured fields for programs that read the log.
        """
        now = self._clock()
        if key is None:
            key = object()
        due = self._once.due(key, now, owner)
        self._report(now)
        if due:
            self._log.log(level, message, *args, exc_info=exc_info, extra={"fields": fields} if fields else None)
        elif key not in self._once:
            self._omitted_since = self._omitted_since if self._omitted else now
            self._omitted += 1
            if owner is not None and (owner in self._omitted_by_owner or len(self._omitted_by_owner) < _OWNERS):
                self._omitted_by_owner[owner] += 1
        return due

    def report_left_out(self) -> None:
        """Log the number of omitted lines of an interval that has ended."""
        if self._omitted:
            self._report(self._clock())

    def _report(self, now: float) -> None:
        if not self._omitted or 0 <= now - self._omitted_since < self._interval:
            return
        most = [f"{_short(owner)} {count}" for owner, count in self._omitted_by_owner.most_common(_NAMED)]
        by_owner = f" (most of them: {', '.join(most)})" if most else ""
        self._log.warning("%d more lines like the last ones were left out%s", self._omitted, by_owner)
        self._omitted = 0
        self._omitted_by_owner.clear()

    def warning(
        self,
        message: str,
        *args: object,
        key: Hashable = None,
        owner: Hashable = None,
        fields: Mapping[str, object] | None = None,
    ) -> bool:
        """Call `log` with the level WARNING."""
        return self.log(logging.WARNING, message, *args, key=key, owner=owner, fields=fields)


def _short(owner: Hashable) -> str:
    return printable(str(owner))[:_MAX_NAME]


# --- delays and sizes -------------------------------------------------------------------------------------------------


class Backoff:
    """Delays that double from `first` to `longest` (seconds), each shortened at random by up to a half.

    Without this jitter, all clients of a server that was away would come back at the same moment.
    """

    def __init__(self, first: float, longest: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._first = first
        self._longest = longest
        self._uniform = uniform
        self._next = first

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        delay = self._next
        self._next = min(self._next * 2, self._longest)
        return delay * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the first delay, after a successful attempt."""
        self._next = self._first


class Newest(OrderedDict[T, S]):
    """A dictionary of at most `most` entries. Setting a key makes it the newest, and drops the oldest if it is full."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: T, value: S) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class RecentlyUsed(Generic[T, S]):
    """A cache of entries of at most `most` bytes together. It drops the least recently used entry first.

    An entry of more than an eighth of that is not kept, because it would displace many others. All threads may use it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[T, tuple[S, int]] = OrderedDict()
        self._lock = Lock()
        self.size_bytes = 0
        """The bytes of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: T) -> S | None:
        """Return the value of a key, and mark it as recently used; None if it is not kept."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: T, value: S, size: int, *, displaces: bool = True) -> None:
        """Keep a value. `size` is the memory of key and value, in bytes.

        With `displaces=False`, the value is kept only if there is room for it.
        """
        if size > self._most // 8:
            return
        with self._lock:
            if not displaces and self.size_bytes + size > self._most:
                return
            if key in self._entries:
                self.size_bytes -= self._entries.pop(key)[1]
            self._entries[key] = value, size
            self.size_bytes += size
            while self.size_bytes > self._most:
                self.size_bytes -= self._entries.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self.size_bytes = 0


def shrink_to_fit(text: bytes) -> bytes:
    """Return a copy of the bytes in memory of exactly their size, for a cache."""
    # orjson usually returns its whole buffer, which is up to eight times as long as the text: 8,152 bytes for 1,039
    # (orjson 3.13, glibc's malloc). That is fast for an answer that is sent and dropped, but a cache that counts bytes
    # by `len` would use eight times its maximum.
    return bytes(memoryview(text))


# --- fair order -------------------------------------------------------------------------------------------------------
#
# Each item belongs to a flow (the word of Kubernetes' API Priority and Fairness), mostly a namespace, and keeps its
# order there. The flows are served round robin, one item of each. So a tenant with thousands of objects that change or
# fail all the time delays its own objects, and an object of another tenant waits for one of them at most.
#
# Each object belongs to one event loop.


class FairQueue(Generic[T]):
    """Items in flows, served round robin. An empty flow takes no memory."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, deque[T]] = {}  # in the order in which they are served
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, flow: Hashable, item: T) -> None:
        """Append an item to a flow; a new flow is served after all others."""
        self._flows.setdefault(flow, deque()).append(item)
        self._length += 1

    def popleft(self) -> T:
        """Remove and return the first item of the next flow. Raises IndexError if there is none."""
        if not self._flows:
            raise IndexError("nothing waits")
        flow = next(iter(self._flows))
        items = self._flows.pop(flow)
        item = items.popleft()
        if items:
            self._flows[flow] = items  # after all others
        self._length -= 1
        return item

    def drop(self) -> None:
        """Drop the last item of the longest flow. Raises ValueError if there is none."""
        flow, items = max(self._flows.items(), key=lambda each: len(each[1]))
        items.pop()
        if not items:
            del self._flows[flow]
        self._length -= 1

    def clear(self) -> None:
        """Drop all items."""
        self._flows.clear()
        self._length = 0


class QueueSemaphore:
    """A semaphore of `limit` slots whose order is that of the caller's queue.

    `next_waiter` removes and returns the next waiter of the queue; it raises IndexError if the queue is empty.
    """

    def __init__(self, limit: int, next_waiter: Callable[[], asyncio.Future[None]]) -> None:
        self._free = limit
        self._next_waiter = next_waiter

    @asynccontextmanager
    async def slot(self, called: asyncio.Future[None], enqueue: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a slot until the end of the block. If none is free, `enqueue` must put `called` into the queue."""
        if self._free:
            self._free -= 1
            called.set_result(None)
        else:
            enqueue()
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():
                self._release()  # it got its slot at the moment of the cancellation
            raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while True:
            try:
                called = self._next_waiter()
            except IndexError:
                self._free += 1
                return
            if not called.done():
                called.set_result(None)
                return


@dataclass(slots=True, eq=False)
class Waiter:
    """A waiter or holder of a slot; `time` is its deadline."""

    time: float
    called: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class PrioritySemaphore:
    """A semaphore of `limit` slots that serves the waiter with the earliest time first.

    An urgent waiter has an earlier time than one that can wait. No waiter waits without end, because later urgent ones
    have later times.
    """

    def __init__(self, limit: int) -> None:
        self._semaphore = QueueSemaphore(limit, lambda: heapq.heappop(self._heap)[2].called)
        self._heap: list[tuple[float, int, Waiter]] = []
        self._count = 0

    def slot(self, waiter: Waiter) -> AbstractAsyncContextManager[None]:
        """Wait for a slot with a new waiter, and hold it until the end of the block."""
        return self._semaphore.slot(waiter.called, partial(self._push, waiter))

    def expedite(self, waiter: Waiter, time: float) -> None:
        """Give a waiter an earlier time; a later one changes nothing."""
        if time < waiter.time and not waiter.called.done():
            waiter.time = time
            self._push(waiter)  # its earlier place is skipped

    def _push(self, waiter: Waiter) -> None:
        self._count += 1
        heapq.heappush(self._heap, (waiter.time, self._count, waiter))


class FairSemaphore:
    """A semaphore whose waiters are served round robin by their flows."""

    def __init__(self, value: int) -> None:
        """Create a semaphore with `value` slots."""
        self._waiters: FairQueue[asyncio.Future[None]] = FairQueue()
        self._semaphore = QueueSemaphore(value, self._waiters.popleft)

    def held(self, flow: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold a slot as a part of `flow` until the end of the block."""
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self._semaphore.slot(acquired, partial(self._waiters.append, flow, acquired))
