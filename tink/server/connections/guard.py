"""The sockets that gRPC has accepted, as the kernel knows them: found, measured, ended, and kept away.

gRPC's core owns them and tells nothing of them, but they are file descriptors of this very process. They are found in
/proc/self/fd by the port that they are bound to; how much has come in, the kernel counts (TCP_INFO). A socket is ended
by connect(2) to nowhere (AF_UNSPEC) on a duplicate of its descriptor: that resets the connection, and drops what has
come in and was not read yet, which after a shutdown(2) would still be read. Whether the duplicate is what was meant can
be looked at before, so that nobody else is hit when gRPC closes it in this moment and the number is somebody else's.
gRPC finds the connection broken, which happens to it all day, and closes it. What may not come in is dropped by a
filter of the listening socket (SO_ATTACH_FILTER, classic BPF), before there is a connection: that costs nothing, and a
client tries again by itself.

All of it needs no privilege.

What gRPC itself bounds before a call reaches us, and how many connections this process can have.

The least that an attacker may cost is in options of gRPC's core: handshakes in time, streams of a connection, calls
that wait, bytes of a message and of its metadata. What it has no option for is the `guard`'s.

Ends the connections that may not stay: measures them, asks `accounts`, and logs the reason.

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
import contextlib
import ctypes
import logging
import os
import socket
import stat
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from tink.limits.once_per import OncePer
from tink.net.blocks import Block
from tink.net.bytes_received import bytes_received
from tink.server.connections.accounts import Accepted, Alarm, Connections, Eviction, Limits, MemoryWatch, Peer
from tink.server.peer import peer_of, spelled

log = logging.getLogger(__name__)

_DESCRIPTORS: Final = "/proc/self/fd"
_COUNTERS: Final = Path("/proc/self/net/snmp")
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
_NOWHERE: Final = struct.pack("=H14x", socket.AF_UNSPEC)
"""struct sockaddr."""
_connect: Final = ctypes.CDLL(None).connect
"""connect(2); Python's own knows no such address."""


class Sockets:
    """Those of this process that are bound to `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, tuple[tuple[int, int], Accepted | None]] = {}
        self._listening: list[tuple[int, tuple[int, int]]] = []
        self._away: frozenset[Block] = frozenset()

    def accepted(self) -> Iterator[Accepted | None]:
        """All connections; None for any other descriptor, so that the caller can pause on its way."""
        found = [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - numbers are enough
        for gone in self._known.keys() - set(found):
            del self._known[gone]
        for fd in found:
            yield self._look(fd)

    def _look(self, fd: int) -> Accepted | None:
        try:
            state = os.fstat(fd)
        except OSError:
            self._known.pop(fd, None)
            return None
        identity = state.st_dev, state.st_ino
        known = self._known.get(fd)
        if known is not None and known[0] == identity:
            return known[1]
        self._known.pop(fd, None)
        if not stat.S_ISSOCK(state.st_mode):
            self._known[fd] = identity, None
            return None
        with contextlib.suppress(OSError), _duplicate(fd, identity) as sock:
            self._known[fd] = identity, self._meet(fd, identity, sock)
            return self._known[fd][1]
        return None

    def _meet(self, fd: int, identity: tuple[int, int], sock: socket.socket) -> Accepted | None:
        """Raises OSError if it has ended."""
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return None
        if sock.getsockname()[1] != self._port:
            return None
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._listening.append((fd, identity))
            if self._away:
                _attach(sock, self._away)
            return None
        address, port = sock.getpeername()[:2]
        return Accepted(fd, identity, Peer(spelled(address), port))

    def keep_away(self, blocks: frozenset[Block]) -> None:
        """No new connections from there, until this is called again. Raises OSError where the kernel won't have it."""
        self._away = blocks
        for fd, identity in [*self._listening]:
            try:
                with _duplicate(fd, identity) as sock:
                    _attach(sock, blocks)
            except StaleError:
                self._listening.remove((fd, identity))

    def received(self, accepted: Accepted) -> int:
        """How many bytes have come in on a connection so far; 0 if it has ended.

        It is asked by the descriptor as it is, which may be another connection's since a moment: a hint, that `end`
        confirms.
        """
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=accepted.fd)
        except OSError:
            return 0
        try:
            return bytes_received(sock)
        except OSError:
            return 0
        finally:
            sock.detach()

    def end(self, accepted: Accepted, at_least: int = 0) -> bool:
        """Break a connection; False if it is not there any more, or has received fewer bytes than `at_least`."""
        with contextlib.suppress(OSError), _duplicate(accepted.fd, accepted.identity) as sock:
            if at_least and bytes_received(sock) < at_least:
                return False
            return bool(_connect(sock.fileno(), _NOWHERE, len(_NOWHERE)) == 0)
        return False


class StaleError(OSError):
    """A descriptor is another file by now."""


@contextlib.contextmanager
def _duplicate(fd: int, identity: tuple[int, int]) -> Iterator[socket.socket]:
    """The socket that a descriptor was. Raises OSError."""
    try:
        copy = os.dup(fd)
    except OSError as error:
        raise StaleError(*error.args) from error
    try:
        state = os.fstat(copy)
        if (state.st_dev, state.st_ino) != identity:
            raise StaleError(f"descriptor {fd} is another file by now")
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        yield sock


def opened() -> int:
    """How many connections have come in so far on any port of this network namespace; -1 where that can't be read."""
    try:
        lines = [line.split() for line in _COUNTERS.read_text().splitlines() if line.startswith("Tcp:")]
        return int(lines[1][lines[0].index("PassiveOpens")])
    except (OSError, ValueError, IndexError):
        return -1


def descriptors() -> int:
    """How many descriptors this process has open; -1 where the kernel does not say (before Linux 6.2)."""
    try:
        return os.stat(_DESCRIPTORS).st_size or -1  # noqa: PTH116 - many times a second
    except OSError:
        return -1


# --- the filter -------------------------------------------------------------------------------------------------------

_NETWORK_HEADER: Final = -0x100000  # SKF_NET_OFF in linux/filter.h: where loads are counted from the IP header
_LOAD_WORD, _LOAD_BYTE, _SHIFT_RIGHT, _EQUAL, _ALWAYS, _RETURN = 0x20, 0x30, 0x74, 0x15, 0x05, 0x06
_DROP, _TAKE = 0, 0xFFFFFFFF
_SOURCE_V4, _SOURCE_V6 = 12, 8

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false (both in instructions that are passed over), constant."""


def program(blocks: Iterable[Block]) -> list[Instruction]:
    """Classic BPF that drops packets from `blocks`: IPv4 addresses, and IPv6 networks of 64 bits.

    A connection that came in over IPv4 to a socket of IPv6 has an IPv4 header here.
    """
    v4 = [_load(_LOAD_WORD, _SOURCE_V4)]
    v6: list[Instruction] = []
    for block in sorted(blocks, key=str):
        number = int(block.network_address)
        if block.version == 4:
            v4 += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DROP)]
        else:
            v6 += [
                _load(_LOAD_WORD, _SOURCE_V6),
                (_EQUAL, 0, 3, number >> 96),
                _load(_LOAD_WORD, _SOURCE_V6 + 4),
                (_EQUAL, 0, 1, number >> 64 & 0xFFFFFFFF),
                (_RETURN, 0, 0, _DROP),
            ]
    take: Instruction = (_RETURN, 0, 0, _TAKE)
    head = [
        _load(_LOAD_BYTE, 0),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_EQUAL, 1, 0, 4),
        (_ALWAYS, 0, 0, len(v4) + 1),  # past what is for IPv4 and its end; a conditional jump does not reach that far
    ]
    return [*head, *v4, take, *v6, take]


def _load(size: int, offset: int) -> Instruction:
    return size, 0, 0, _NETWORK_HEADER + offset & 0xFFFFFFFF


def _attach(sock: socket.socket, blocks: frozenset[Block]) -> None:
    if not blocks:
        with contextlib.suppress(FileNotFoundError):  # there is none
            sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    code = b"".join(struct.pack("=HBBI", *each) for each in program(blocks))
    kept = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(code) // 8, ctypes.addressof(kept)))


_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
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


def resident_bytes(statm: int) -> int:
    """Return the memory of this process in bytes, from a descriptor of /proc/self/statm (proc(5))."""
    return int(os.pread(statm, 100, 0).split()[1]) * _PAGE_BYTES
