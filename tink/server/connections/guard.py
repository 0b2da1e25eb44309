"""Closes the connections that may not stay: measures gRPC's sockets, asks `accounts`, and logs the reason.

**Sockets.** gRPC's core owns its sockets and has no API for them, but they are file descriptors of this process. None
of the following needs a privilege:

- find: `Sockets` lists /proc/self/fd and selects the sockets that are bound to the server's port;
- measure: the kernel counts the received bytes (TCP_INFO);
- close: connect(2) with AF_UNSPEC on a duplicate of the descriptor resets the connection and drops the unread bytes.
  After shutdown(2), gRPC would still read them. The duplicate's inode is compared first, because gRPC may close the
  descriptor at any moment and the kernel may reuse its number. gRPC then finds a broken connection and closes it;
- reject: a filter on the listening socket (SO_ATTACH_FILTER, classic BPF) drops the packets of blocked networks before
  a connection exists. This costs nothing, and an honest client tries again by itself.

**When.** A measurement costs system calls for each connection, so it is made only if it can show something. New
connections are listed if the kernel has counted some (on the whole host) and the number of this process's descriptors
has changed, or if an unknown connection has made a call. Bytes are read while this process is busy: a flood makes it
busy. Everything is read every few seconds at least. This takes a few percent of the time, whatever the number of
connections.

**Memory** of this process is measured many times a second, because a header block of 4 kB can become 16 MB
(`accounts`). The sender is closed before the process uses too much. Afterwards the memory is returned to the system.
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

from tink.errors import TinkedgeError
from tink.limits import OncePer
from tink.net.addresses import Block
from tink.net.bytes_received import bytes_received
from tink.server.connections.accounts import Accepted, Alarm, Connections, Eviction, MemoryWatch, Peer, PortLimits
from tink.server.peer import peer_of, spelled

log = logging.getLogger(__name__)

_DESCRIPTORS: Final = "/proc/self/fd"
_COUNTERS: Final = Path("/proc/self/net/snmp")
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
_NOWHERE: Final = struct.pack("=H14x", socket.AF_UNSPEC)
"""struct sockaddr."""
_connect: Final = ctypes.CDLL(None).connect
"""connect(2). Python's socket.connect does not accept AF_UNSPEC."""


class Sockets:
    """The sockets of this process that are bound to `port`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, tuple[tuple[int, int], Accepted | None]] = {}
        self._listening: list[tuple[int, tuple[int, int]]] = []
        self._away: frozenset[Block] = frozenset()

    def accepted(self) -> Iterator[Accepted | None]:
        """Yield all accepted sockets, and None for any other descriptor, so that the caller can pause in between."""
        found = [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - faster than paths
        for gone in self._known.keys() - set(found):
            del self._known[gone]
        for fd in found:
            yield self._measure_if_due(fd)

    def _measure_if_due(self, fd: int) -> Accepted | None:
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
        """Return an accepted socket, or None for other sockets. Raises OSError if the connection has ended."""
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
        """Reject new connections from `blocks` until the next call. Raises OSError if the kernel refuses the filter."""
        self._away = blocks
        for fd, identity in [*self._listening]:
            try:
                with _duplicate(fd, identity) as sock:
                    _attach(sock, blocks)
            except StaleError:
                self._listening.remove((fd, identity))

    def received(self, accepted: Accepted) -> int:
        """Return the number of bytes that a connection has received so far; 0 if it has ended.

        This reads the descriptor without a duplicate, so it may be another connection's already. `end` checks that.
        """
        with contextlib.suppress(OSError):
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=accepted.fd)
            try:
                return bytes_received(sock)
            finally:
                sock.detach()
        return 0

    def end(self, accepted: Accepted, at_least: int = 0) -> bool:
        """Reset a connection. Return False if it has ended, or has received fewer bytes than `at_least`."""
        with contextlib.suppress(OSError), _duplicate(accepted.fd, accepted.identity) as sock:
            if at_least and bytes_received(sock) < at_least:
                return False
            return bool(_connect(sock.fileno(), _NOWHERE, len(_NOWHERE)) == 0)
        return False


class StaleError(TinkedgeError, OSError):
    """A descriptor belongs to another file by now."""


@contextlib.contextmanager
def _duplicate(fd: int, identity: tuple[int, int]) -> Iterator[socket.socket]:
    """Yield a duplicate of a socket. Raises OSError; StaleError if the descriptor belongs to another file."""
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
    """Return the number of connections accepted so far in this network namespace; -1 if it can't be read."""
    try:
        lines = [line.split() for line in _COUNTERS.read_text().splitlines() if line.startswith("Tcp:")]
        return int(lines[1][lines[0].index("PassiveOpens")])
    except (OSError, ValueError, IndexError):
        return -1


def descriptors() -> int:
    """Return the number of open descriptors of this process; -1 before Linux 6.2."""
    try:
        return os.stat(_DESCRIPTORS).st_size or -1  # noqa: PTH116 - many times a second
    except OSError:
        return -1


# --- the filter -------------------------------------------------------------------------------------------------------

_NETWORK_HEADER: Final = -0x100000  # SKF_NET_OFF in linux/filter.h: offsets are relative to the IP header
_LOAD_WORD, _LOAD_BYTE, _SHIFT_RIGHT, _EQUAL, _ALWAYS, _RETURN = 0x20, 0x30, 0x74, 0x15, 0x05, 0x06
_DROP, _TAKE = 0, 0xFFFFFFFF
_SOURCE_V4, _SOURCE_V6 = 12, 8

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false (numbers of skipped instructions), constant."""


def program(blocks: Iterable[Block]) -> list[Instruction]:
    """Return a classic BPF program that drops packets from `blocks`: IPv4 addresses, and IPv6 /64 networks.

    An IPv4 connection to an IPv6 socket has an IPv4 header here.
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
        (_ALWAYS, 0, 0, len(v4) + 1),  # skip the IPv4 part; a conditional jump does not reach that far
    ]
    return [*head, *v4, take, *v6, take]


def _load(size: int, offset: int) -> Instruction:
    return size, 0, 0, _NETWORK_HEADER + offset & 0xFFFFFFFF


def _attach(sock: socket.socket, blocks: frozenset[Block]) -> None:
    if not blocks:
        with contextlib.suppress(FileNotFoundError):  # no filter is attached
            sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    code = b"".join(struct.pack("=HBBI", *each) for each in program(blocks))
    kept = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(code) // 8, ctypes.addressof(kept)))


_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_EVERY_SECONDS, _EVERY_SECONDS_WHEN_BUSY = 0.1, 0.02
_AT_LEAST_EVERY_SECONDS: Final = 5.0
_SETTLES_SECONDS: Final = 1.0
"""Time after the last new connection during which to list sockets: gRPC needs a moment to accept one."""
_TURNOVER_SECONDS: Final = 1.0
"""Interval of listing nevertheless while the host has new connections: one may have replaced another one."""
_MEMORY_SECONDS: Final = 0.05
"""Interval of memory measurements: gRPC expands at most 50 MB in that time."""
_GIVE_BACK_SECONDS: Final = 0.1
"""Pause after connections were closed: gRPC needs a moment to free their memory."""
_BUSY: Final = 0.25
"""Share of a core from which on this process counts as busy."""
_MEASURING_SHARE: Final = 0.05
"""Maximum share of the time for measurements."""
_PIECE: Final = 500
"""Number of descriptors that are handled at once. DHCP may be on the same event loop."""
_LOG_INTERVAL_SECONDS: Final = 60.0
_OVER_SECONDS: Final = 2.0
"""Time without a closed connection after which an attack is over."""


class Guard:
    """Closes connections of one server. `run` does the work."""

    def __init__(
        self,
        limits: PortLimits,
        memory: int | None = None,
        kept_away: Callable[[list[tuple[str, float]]], None] = lambda _: None,
    ) -> None:
        """`memory` is the limit of this process in bytes, or None.

        `kept_away` is called after each newly rejected network with all of them (CIDR), each with the end of that time
        (monotonic seconds).
        """
        self._memory = MemoryWatch(memory)
        self._on_kept_away = kept_away
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
        """True if a connection has made a call before its socket was found."""
        self._listed = -_AT_LEAST_EVERY_SECONDS
        self._measured = -_AT_LEAST_EVERY_SECONDS
        self._used = time.process_time()
        self._looked = self._clock()
        self._away: frozenset[Block] = frozenset()
        self._ended: dict[str, Counter[str]] = {}
        self._logged = OncePer(_LOG_INTERVAL_SECONDS, 64)
        self._attacked = 0.0

    # --- calls; `peer` is gRPC's name of the caller -------------------------------------------------------------------

    def begun(self, peer: str, *, busy: bool) -> str:
        """Record the start of a call. Return why it must not be served, or an empty string. `busy`: an agent's call."""
        caller = Peer(*peer_of(peer))
        self._called = self._called or caller not in self.connections
        return self._close_at_once(self.connections.begun(caller, self._clock(), busy=busy))

    def message(self, peer: str, size: int, *, first: bool) -> str:
        """Record a message. Return why its call must be ended, or an empty string."""
        return self._close_at_once(self.connections.message(Peer(*peer_of(peer)), size, self._clock(), first=first))

    def aborted(self, peer: str) -> None:
        """Record a cancelled call."""
        self._close_at_once(self.connections.aborted(Peer(*peer_of(peer)), self._clock()))

    def ended(self, peer: str, *, busy: bool) -> None:
        """Record the end of a call."""
        self.connections.ended(Peer(*peer_of(peer)), self._clock(), busy=busy)

    def _close_at_once(self, why: str) -> str:
        """Close connections without waiting for `run`, whose next turn may be late during a flood of calls."""
        if self.connections.kept_away != self._kept_away:
            self._keep_away()
        if why and self._sockets is not None:
            for eviction in [*self.connections.doomed()]:
                self._end(self._sockets, eviction)
        return why

    def is_open(self, peer: str) -> bool:
        """Return True if the caller's connection exists, as far as is known."""
        return Peer(*peer_of(peer)) in self.connections

    # --- connections --------------------------------------------------------------------------------------------------

    def keep_away(self, blocks: Iterable[tuple[str, float]]) -> None:
        """Reject these networks (CIDR), each until the given time (monotonic seconds)."""
        for name, until in blocks:
            self.connections.bar(ip_network(name), until)

    def listens(self, port: int) -> None:
        """Apply the filter to the listening sockets of a port. Call it again after the server listens at one more
        address."""
        sockets = self._sockets = self._sockets or Sockets(port)
        for _ in sockets.accepted():
            pass
        self._keep_away()

    async def run(self) -> None:
        """Measure until cancelled. Raises RuntimeError if `listens` was not called before."""
        if (sockets := self._sockets) is None:
            raise RuntimeError("listens() was not called")
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
        """Close the connections that made this process grow, and return their memory to the system."""
        async with self._looking:
            await self._list(sockets)
            await self._measure(sockets)
            evictions = [*self.connections.expanded(alarm, self._clock())]
        for eviction in evictions:
            self._end(sockets, eviction)
        self._keep_away()
        self._log_closed()
        if evictions:
            await asyncio.sleep(_GIVE_BACK_SECONDS)
            await asyncio.to_thread(_return_memory)

    async def _watch(self, sockets: Sockets) -> None:
        while True:
            async with self._looking:
                spent = await self._measure_if_due(sockets)
            shortest = _EVERY_SECONDS_WHEN_BUSY if self._busy else _EVERY_SECONDS
            await asyncio.sleep(min(max(shortest, spent / _MEASURING_SHARE), _AT_LEAST_EVERY_SECONDS))

    async def _measure_if_due(self, sockets: Sockets) -> float:
        """List and measure sockets once, as far as necessary. Return the processor time in seconds."""
        begin, paused = time.thread_time(), 0.0
        used, now = time.process_time(), self._clock()
        share = (used - self._used) / max(now - self._looked, 0.001)
        self._used, self._looked, self._busy = used, now, share > _BUSY
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
        self._log_closed()
        if self._attacked and self._clock() - self._attacked > _OVER_SECONDS:
            self._attacked = 0.0
            await asyncio.to_thread(_return_memory)
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

    async def _list(self, sockets: Sockets) -> float:
        paused = 0.0
        for index, accepted in enumerate(sockets.accepted()):
            if accepted is not None:
                self.connections.listed(accepted, self._clock())
                self._close_at_once("")
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
            self._on_kept_away([(str(block), until) for block, until in barred])
        for block in away - self._away:
            if self._logged.due(block, self._clock()):
                log.warning("gRPC server: no new connections from %s for a while", block)
        self._away = away
        try:
            self._sockets.keep_away(away)
        except OSError as error:
            if self._logged.due("filter", self._clock()):
                log.warning("gRPC server: can't keep addresses away (%s): they are ended one by one", error)

    def _log_closed(self) -> None:
        """Log the closed connections of each address, at most once a minute. The rest is logged later."""
        for address in [*self._ended]:
            if self._logged.due(address, self._clock()):
                counts = self._ended.pop(address)
                why, _ = counts.most_common(1)[0]
                log.warning("gRPC server: %s: %d connections ended: %s", address, counts.total(), why)
        while len(self._ended) > 256:
            del self._ended[next(iter(self._ended))]


async def _pause() -> float:
    begin = time.thread_time()
    await asyncio.sleep(0)
    return time.thread_time() - begin


def _return_memory() -> None:
    """Return free memory to the system. glibc does not return free pieces between used ones by itself."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)


def resident_bytes(statm: int) -> int:
    """Return the memory of this process in bytes, from a descriptor of /proc/self/statm (proc(5))."""
    return int(os.pread(statm, 100, 0).split()[1]) * _PAGE_BYTES
