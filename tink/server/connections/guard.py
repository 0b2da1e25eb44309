"""Ends the connections that may not stay: measures them, asks `accounts`, and logs the reason.

A measurement costs system calls for each connection, so it is made only when it can show something. New connections are
read when the kernel has counted some and this process has other descriptors than before (the kernel's count is that of
the whole host), or when an unknown connection has made a call. Bytes are read when this process is busy: a flood makes
it busy. Everything is read every few seconds at least. However many connections there are, this takes a few percent of
the time.

The memory of this process is measured many times a second, because a header block of 4 kB can become 16 MB (`memory`).
The sender is ended and kept away before the process uses too much memory.

Memory that an attack used is returned to the system after the attack.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Final

from tink.limits.once_per import OncePer
from tink.net.addresses import Block
from tink.server.connections.accounts import Connections, Eviction, Limits
from tink.server.connections.memory import Alarm, MemoryWatch, resident_bytes
from tink.server.connections.sockets import Peer, Sockets, descriptors, opened
from tink.server.peer import peer_of

log = logging.getLogger(__name__)

_EVERY_SECONDS, _EVERY_SECONDS_WHEN_BUSY = 0.1, 0.02
_AT_LEAST_EVERY_SECONDS: Final = 5.0
_SETTLES_SECONDS: Final = 1.0
"""Seconds after the last new connection for which to look: gRPC takes a moment to accept one."""
_TURNOVER_SECONDS: Final = 1.0
"""How often to look nevertheless while the host has new connections: one of ours may have taken another's place."""
_MEMORY_SECONDS: Final = 0.05
"""Interval of memory measurements: gRPC expands at most some 50 MB in that time."""
_GIVE_BACK_SECONDS: Final = 0.1
"""Pause after connections were ended: gRPC takes a moment to free their memory."""
_BUSY: Final = 0.25
_SHARE: Final = 0.05
"""Of the time, for looking; and the share of a core that makes a process busy."""
_PIECE: Final = 500
"""Descriptors that are looked at in one go: DHCP is on the same loop."""
_LOG_INTERVAL_SECONDS: Final = 60.0
_OVER_SECONDS: Final = 2.0
"""Seconds without a connection to end after which an attack is over."""


class Guard:
    """Looks after the connections of one server, from `run` on."""

    def __init__(
        self,
        limits: Limits,
        memory: int | None = None,
        kept_away: Callable[[list[tuple[str, float]]], None] = lambda _: None,
    ) -> None:
        """`memory` is the limit of this process in bytes. `kept_away` receives the blocked networks (CIDR) after each
        new one.

        Each network comes with the end of its block (monotonic seconds).
        """
        self._memory = MemoryWatch(memory)
        self._tell_kept_away = kept_away
        self._looking = asyncio.Lock()
        self.connections = Connections(limits)
        self._clock = time.monotonic
        self._sockets: Sockets | None = None
        self._busy = False
        self._kept_away = 0
        self._opened = -1
        self._moved = 0.0
        self._descriptors = -1
        self._called = False
        """Whether a connection has made a call that was not found before."""
        self._listed = -_AT_LEAST_EVERY_SECONDS
        self._measured = -_AT_LEAST_EVERY_SECONDS
        self._used = time.process_time()
        self._looked = self._clock()
        self._away: frozenset[Block] = frozenset()
        self._ended: dict[str, Counter[str]] = {}
        self._said = OncePer(_LOG_INTERVAL_SECONDS, 64)
        self._attacked = 0.0

    # --- calls, as they come; `peer` is gRPC's name of the caller -----------------------------------------------------

    def begun(self, peer: str, *, busy: bool) -> str:
        """A call has begun: why it is not to be served, empty if it is. `busy`: only agents have it open for long."""
        caller = Peer(*peer_of(peer))
        self._called = self._called or caller not in self.connections
        return self._at_once(self.connections.begun(caller, self._clock(), busy=busy))

    def heard(self, peer: str, size: int, *, first: bool) -> str:
        """A message has come in: why its call is to be ended, empty if it is not."""
        return self._at_once(self.connections.heard(Peer(*peer_of(peer)), size, self._clock(), first=first))

    def aborted(self, peer: str) -> None:
        """The caller has taken a call back."""
        self._at_once(self.connections.aborted(Peer(*peer_of(peer)), self._clock()))

    def ended(self, peer: str, *, busy: bool) -> None:
        """A call has ended."""
        self.connections.ended(Peer(*peer_of(peer)), self._clock(), busy=busy)

    def _at_once(self, why: str) -> str:
        """Where calls or connections come too fast, it may be long until it is the turn of what else `run` does."""
        if self.connections.kept_away != self._kept_away:
            self._keep_away()
        if why and self._sockets is not None:
            for eviction in [*self.connections.doomed()]:
                self._end(self._sockets, eviction)
        return why

    def is_open(self, peer: str) -> bool:
        """Whether the connection of that caller is there, as far as has been seen."""
        return Peer(*peer_of(peer)) in self.connections

    # --- connections --------------------------------------------------------------------------------------------------

    def keep_away(self, blocks: Iterable[tuple[str, float]]) -> None:
        """Keep these networks (CIDR) away, each until the given time (monotonic seconds)."""
        for name, until in blocks:
            self.connections.bar(ip_network(name), until)

    def listens(self, port: int) -> None:
        """Filter a port that the server listens on, perhaps at one more address: blocked networks can't connect to
        it."""
        sockets = self._sockets = self._sockets or Sockets(port)
        for _ in sockets.accepted():
            pass
        self._keep_away()

    async def run(self) -> None:
        """Measure until cancelled. Raises RuntimeError if `listens` was not called before."""
        if (sockets := self._sockets) is None:
            raise RuntimeError("the guard was not told of a port")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(sockets))
            tasks.create_task(self._watch_memory(sockets))

    async def _watch_memory(self, sockets: Sockets) -> None:
        statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while True:
                await asyncio.sleep(_MEMORY_SECONDS)
                alarm = self._memory.look(resident_bytes(statm), len(self.connections), self._clock())
                if alarm is not None:
                    await self._expanded(sockets, alarm)
        finally:
            os.close(statm)

    async def _expanded(self, sockets: Sockets, alarm: Alarm) -> None:
        """End the connections that made this process grow, and return their memory to the system."""
        async with self._looking:
            await self._list(sockets)
            await self._measure(sockets)
            evictions = [*self.connections.expanded(alarm, self._clock())]
        for eviction in evictions:
            self._end(sockets, eviction)
        self._keep_away()
        self._say()
        if evictions:
            await asyncio.sleep(_GIVE_BACK_SECONDS)
            await asyncio.to_thread(_give_back)

    async def _watch(self, sockets: Sockets) -> None:
        while True:
            async with self._looking:
                spent = await self._look(sockets)
            shortest = _EVERY_SECONDS_WHEN_BUSY if self._busy else _EVERY_SECONDS
            await asyncio.sleep(min(max(shortest, spent / _SHARE), _AT_LEAST_EVERY_SECONDS))

    async def _look(self, sockets: Sockets) -> float:
        """Look once; how many seconds of the processor that took."""
        begin = time.thread_time()
        paused = 0.0
        now = self._clock()
        self._busy = self._is_busy()
        work = []
        if self._has_moved(now) or now - self._listed >= _AT_LEAST_EVERY_SECONDS:
            self._listed = now
            work.append(self._list)
        if self._busy or now - self._measured >= _AT_LEAST_EVERY_SECONDS:
            self._measured = now
            work.append(self._measure)
        for step in work:
            paused += await step(sockets)
        for index, eviction in enumerate([*self.connections.excess(self._clock())]):
            self._end(sockets, eviction)
            if index % _PIECE == _PIECE - 1:
                paused += await _pause()
        self._keep_away()
        self._say()
        if self._attacked and self._clock() - self._attacked > _OVER_SECONDS:
            self._attacked = 0.0
            await asyncio.to_thread(_give_back)
        return time.thread_time() - begin - paused

    def _has_moved(self, now: float) -> bool:
        count = opened()
        if count != self._opened or count < 0:
            self._opened, self._moved = count, now
        if now - self._moved > _SETTLES_SECONDS:
            return False
        here = descriptors()
        if self._called or here < 0 or here != self._descriptors or now - self._listed >= _TURNOVER_SECONDS:
            self._called, self._descriptors = False, here
            return True
        return False

    def _is_busy(self) -> bool:
        used, now = time.process_time(), self._clock()
        share = (used - self._used) / max(now - self._looked, 0.001)
        self._used, self._looked = used, now
        return share > _BUSY

    async def _list(self, sockets: Sockets) -> float:
        paused = 0.0
        for index, accepted in enumerate(sockets.accepted()):
            if accepted is not None:
                self.connections.listed(accepted, self._clock())
                self._at_once("")
            if index % _PIECE == _PIECE - 1:
                paused += await _pause()
        self.connections.rest_is_gone(self._clock())
        return paused

    async def _measure(self, sockets: Sockets) -> float:
        paused = 0.0
        for index, accepted in enumerate(self.connections.sockets()):
            eviction = self.connections.measured(accepted, sockets.received(accepted), self._clock())
            if eviction is not None:
                self._end(sockets, eviction)
            if index % _PIECE == _PIECE - 1:
                paused += await _pause()
        return paused

    def _end(self, sockets: Sockets, eviction: Eviction) -> None:
        if sockets.end(eviction.accepted, eviction.unless):
            self._attacked = self._clock()
            self._ended.setdefault(eviction.accepted.peer.address, Counter())[eviction.why] += 1

    def _keep_away(self) -> None:
        self._kept_away = self.connections.kept_away
        away = self.connections.away(self._clock())
        if away == self._away or self._sockets is None:
            return
        self._attacked = self._clock()
        barred = self.connections.barred()
        if any(block not in self._away for block, _ in barred):
            self._tell_kept_away([(str(block), until) for block, until in barred])
        for block in away - self._away:
            if self._said.due(block, self._clock()):
                log.warning("gRPC server: no new connections from %s for a while", block)
        self._away = away
        try:
            self._sockets.keep_away(away)
        except OSError as error:
            if self._said.due("filter", self._clock()):
                log.warning("gRPC server: can't keep addresses away (%s): they are ended one by one", error)

    def _say(self) -> None:
        """Of each address once a while, with how often; what is not said yet is kept until then, of some of them."""
        for address in [*self._ended]:
            if self._said.due(address, self._clock()):
                counts = self._ended.pop(address)
                why, _ = counts.most_common(1)[0]
                log.warning("gRPC server: %s: %d connections ended: %s", address, counts.total(), why)
        while len(self._ended) > 256:
            del self._ended[next(iter(self._ended))]


async def _pause() -> float:
    begin = time.thread_time()
    await asyncio.sleep(0)
    return time.thread_time() - begin


def _give_back() -> None:
    """Memory that is free, to the system. It is in pieces between what is in use, which glibc does not look at."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
