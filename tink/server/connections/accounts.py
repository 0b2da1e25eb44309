"""Decides which connections of agents may stay, by comparing the bytes of each connection with its calls. Pure.

gRPC's core accepts connections and reads HTTP/2 in threads of its own, and this program sees only the resulting calls.
So `tink.net.connection_limit` can't be used here. gRPC's own options (`tink.server.settings`) limit the size and
number of calls, but do not stop these attacks of `tests/interop/attacks/test_grpc.py`. This module does:

- floods of cheap frames: calls that are reset at once (CVE-2023-44487), frames that belong to no call (SETTINGS, PING,
  a header block without an end), calls that are never finished;
- connections that come and go, or stay without a call, until no place is left for agents;
- header blocks that expand in memory.

All of this arrives as bytes, and the kernel counts bytes. So each connection has an account:

    received    the bytes that the kernel has counted (`tink.server.connections.guard`)
    explained   the bytes of the observed calls and messages, and of the start of a connection
    stray       the rest, which leaks away at `stray_per_second`; an honest agent sends some pings

A connection with too many stray bytes is closed. The rate of calls is limited, too. Both limits apply to a connection
and to a *block*: an IPv4 address, or an IPv6 /64 network, behind which there may be several agents. New connections of
a block are rejected for a while if several of its connections were closed, or if it connects too often.

The number of connections is limited separately. A connection that makes no call in `first_call` seconds is closed. Of
more than `per_address` connections the longest idle ones are closed, and of more than `connections` those of the block
with the most. A connection with an open command stream is never idle. Unknown clients can't open one, so they make room
for agents.

Memory: gRPC's core expands header blocks (HPACK, RFC 7541) as they arrive. `grpc.absolute_max_metadata_size` becomes
SETTINGS_MAX_HEADER_LIST_SIZE, which the core applies when the peer has acknowledged it (RFC 9113 section 6.5.3). A peer
that acknowledges nothing may use 16 MB for each block, of which 4 kB come over the wire. `MemoryWatch` detects memory
that the connections do not account for. Then the connections of the blocks that sent most stray bytes in the last
seconds are closed at once, and these blocks are rejected for longer. Bytes that were read are expanded even after their
connection was closed, so the memory limit of the process has to bound a single burst.

Loopback is the operator: it has no limit. The caller reports sockets, times and calls.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from tink.limits import Newest, TokenBuckets
from tink.net.addresses import Block, block_of

SUDDEN_BYTES: Final = 32 << 20
WINDOW_SECONDS: Final = 2.0
CONNECTION_BYTES: Final = 64 << 10
"""Bytes that an honest connection with its calls may use: memory also grows when 10,000 agents connect at once."""
PRESSED: Final = 0.75
"""The share of the memory limit above which smaller growth counts as well."""
PRESSED_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Alarm:
    """Memory grew by `grown` bytes within WINDOW_SECONDS. `pressed` is True if little is left below the limit."""

    grown: int
    pressed: bool


class MemoryWatch:
    """Watches the memory of a process with a `limit` in bytes; with None, only sudden growth counts."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        # Times, each with the memory that connections do not account for. The memory increases from first to last.
        self._samples: deque[tuple[float, int]] = deque()

    def look(self, resident: int, connections: int, now: float) -> Alarm | None:
        """Record the memory in bytes at a monotonic time. Return an alarm if it grows too much."""
        own = resident - connections * CONNECTION_BYTES
        samples = self._samples
        while samples and samples[-1][1] >= own:
            samples.pop()
        samples.append((now, own))
        while now - samples[0][0] > WINDOW_SECONDS:
            samples.popleft()
        grown = own - samples[0][1]
        pressed = self._limit is not None and resident > PRESSED * self._limit
        if grown < (PRESSED_BYTES if pressed else SUDDEN_BYTES):
            return None
        samples.clear()
        samples.append((now, own))
        return Alarm(grown, pressed)


_PREAMBLE_BYTES: Final = 8 << 10
"""Bytes at the start of a connection: TLS with a chain of certificates, and HTTP/2's preface."""
_CALL_BYTES: Final = 512
"""Bytes of a call's headers and its end. Agents' calls have 200, with the largest token 600."""
_MESSAGE_BYTES: Final = 128
"""Overhead of a message: frames, window updates, TLS records."""
_REST_SECONDS: Final = 1.0
"""Seconds without a call after which a connection makes room for another one of its block."""
_SNAPSHOT_SECONDS: Final = 5.0
_EXPANSION: Final = 8192
"""Growth factor: a byte of a header block can name an entry of HPACK's table of 4 kB (RFC 9113 section 6.5.2)."""
_MIN_SUSPICIOUS_BYTES: Final = 1 << 10
"""Stray bytes of a connection in some seconds that are no suspicion while memory grows.

A ping has 17 bytes. An entry that fills HPACK's table has 2,500, Huffman coded (RFC 7541 section 5.2).
"""
_GUILTY_SHARE: Final = 0.75
"""The share of the stray bytes whose senders are ended in one step. Other senders follow if memory goes on growing."""
_MAX_CLOSED: Final = 4096
"""Maximum number of ended connections whose bytes are remembered."""
_CLOSED_SECONDS: Final = 10.0
_FORGET_SECONDS: Final = 2.0
"""Seconds after which a connection that made a call, and that no socket was found for, is forgotten."""


MAX_BLOCKS: Final = 128
"""Number of blocks that are rejected at once. A filter has room for 4,096 instructions, in some kernels for half of
that."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The client's end of a connection: an IP address (IPv4 addresses in IPv4 notation on any socket) and a port."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.address} port {self.port}"


@dataclass(frozen=True, slots=True)
class Accepted:
    """A socket that gRPC has accepted: its descriptor, and its device and inode when it was found."""

    fd: int
    identity: tuple[int, int]
    peer: Peer


@dataclass(frozen=True, slots=True)
class PortLimits:
    """The limits of the gRPC port: `connections` in all and `per_address`. Times in seconds, sizes in bytes.

    `stray` is more than the largest message (272 kB), because a message is reported only when it is complete.
    `stray_before` is the limit before the first call of a connection.
    """

    connections: int
    per_address: int
    first_call: float = 60.0
    stray: int = 320 << 10
    stray_before: int = 32 << 10
    stray_per_second: int = 8 << 10
    calls_at_once: int = 2000
    calls_per_second: float = 200.0
    aborts_at_once: int = 200
    aborts_per_second: float = 2.0
    """Number of calls that one connection may cancel. An agent cancels calls when it ends, or after a timeout."""
    strikes: int = 5
    """Number of a block's connections that may be closed within a minute before the block is rejected."""
    away: float = 30.0
    """Time for which a block is rejected."""
    away_for_memory: float = 300.0
    """Time for which a block is rejected after its header blocks used much memory."""
    beginning: int = 1 << 10
    """Initial bytes of a connection that cause no suspicion when memory grows; more with TLS."""
    full: float = 3.0
    """Time for which a block is rejected that only has too many connections."""

    @property
    def stray_of_all(self) -> int:
        """Stray bytes of all connections of a block: 2 MB for 512 connections."""
        return max(2 * self.stray, self.per_address * (4 << 10))

    @property
    def stray_of_all_per_second(self) -> int:
        """Rate of these bytes per second: 256 kB for 512 connections."""
        return max(self.stray_per_second, self.per_address * 512)


@dataclass(slots=True)
class _LeakyBucket:
    """A level that falls at a given rate, down to 0."""

    level: float = 0.0
    at: float = 0.0

    def add(self, more: float, per_second: float, now: float) -> float:
        leaked = max(0.0, self.level - per_second * max(0.0, now - self.at))
        self.level = max(0.0, leaked + more)
        self.at = now
        return self.level


Snapshot = tuple[int, int]
"""The bytes of a connection so far: all bytes, and stray bytes."""


@dataclass(slots=True)
class _Recent:
    """The bytes of a connection since a snapshot (`base`) that is 5 to 10 seconds old. `at`: the last measurement."""

    at: float
    since: float
    base: Snapshot
    next_base: Snapshot
    last: Snapshot = (0, 0)

    @property
    def stray_lately(self) -> int:
        return max(0, self.last[1] - self.base[1])

    @property
    def received_lately(self) -> int:
        return self.last[0] - self.base[0]

    def measured(self, last: Snapshot, now: float) -> None:
        self.at, self.last = now, last
        if now - self.since >= _SNAPSHOT_SECONDS:
            self.since, self.base, self.next_base = now, self.next_base, last


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection. `since`: when it was found. `rests`: when its last call ended. `busy`: number of agents' calls."""

    peer: Peer
    block: _BlockAccount
    since: float
    rests: float
    accepted: Accepted | None = None
    begun: int = 0
    open: int = 0
    busy: int = 0
    explained: int = 0
    unexplained: int = 0
    """Received minus explained bytes at the last measurement."""
    stray: _LeakyBucket = field(default_factory=_LeakyBucket)
    recent: _Recent | None = None
    doomed: str = ""
    """The reason why it will be closed as soon as its socket is found, or an empty string."""


@dataclass(slots=True, eq=False)
class _BlockAccount:
    """A block and its connections."""

    name: Block | None
    local: bool
    stray: _LeakyBucket = field(default_factory=_LeakyBucket)
    connections: dict[Peer, _Connection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A connection that has to be closed, and the reason. Not if it has received fewer than `unless` bytes."""

    accepted: Accepted
    why: str
    unless: int = 0


class Connections:
    """All connections of one server. Times are monotonic seconds."""

    def __init__(self, limits: PortLimits) -> None:
        self.limits = limits
        self._all: dict[Peer, _Connection] = {}
        self._silent: dict[Peer, _Connection] = {}  # connections without a call, oldest first
        self._blocks: dict[Block | str, _BlockAccount] = {}
        self._away: dict[Block, float] = {}
        self._barred: dict[Block, float] = {}  # those of `_away` that have attacked
        self.kept_away = 0
        """Number of times that a block was newly rejected."""
        self._listed: set[Accepted] = set()
        self._ended: set[Accepted] = set()  # reset, but not closed by gRPC yet
        self._crowded: dict[Block | str, _BlockAccount] = {}
        self._doomed: list[_Connection] = []
        # End time and stray bytes of recently closed connections: gRPC may still expand these bytes.
        self._closed: Newest[tuple[Block, Peer], tuple[float, int]] = Newest(_MAX_CLOSED)
        share = limits.per_address
        self._calls = TokenBuckets(limits.calls_at_once, limits.calls_per_second)
        self._aborts = TokenBuckets(limits.aborts_at_once, limits.aborts_per_second)
        self._calls_of_block = TokenBuckets(max(limits.calls_at_once, 4 * share), max(limits.calls_per_second, share))
        self._arrivals = TokenBuckets(share + share // 2 + 64, share / 16 + 8)
        self._strikes = TokenBuckets(limits.strikes, limits.strikes / 60)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._all

    # --- calls --------------------------------------------------------------------------------------------------------

    def begun(self, peer: Peer, now: float, *, busy: bool) -> str:
        """Record the start of a call. Return why it must not be served, or "". In any case, call `ended` later."""
        connection = self._all.get(peer) or self._begin(peer, now)
        if not connection.begun:
            del self._silent[peer]
        connection.begun += 1
        connection.open += 1
        connection.busy += busy
        connection.explained += _CALL_BYTES
        return self._paced(connection, now)

    def message(self, peer: Peer, size: int, now: float, *, first: bool) -> str:
        """Record a message of `size` bytes, which counts as a call unless it is its first. Returns as `begun` does."""
        connection = self._all.get(peer)
        if connection is None:
            return ""
        connection.explained += size + size // 8 + _MESSAGE_BYTES
        return "" if first else self._paced(connection, now)

    def ended(self, peer: Peer, now: float, *, busy: bool) -> None:
        """Record the end of a call."""
        connection = self._all.get(peer)
        if connection is not None:
            connection.open = max(0, connection.open - 1)
            connection.busy = max(0, connection.busy - busy)
            if not connection.open:
                connection.rests = now

    def aborted(self, peer: Peer, now: float) -> str:
        """Record a cancelled call. Return why that was one too many, or an empty string."""
        connection = self._all.get(peer)
        if connection is None or connection.doomed or self._aborts.allows(peer, now):
            return ""
        self._strike(connection.block, now)
        return self._doom(connection, f"took back more than {self.limits.aborts_at_once} calls")

    def _paced(self, connection: _Connection, now: float) -> str:
        if connection.doomed:
            return connection.doomed
        limits, block = self.limits, connection.block
        if not self._calls.allows(connection.peer, now):
            why = f"more than {limits.calls_at_once} calls, and then {limits.calls_per_second:g} a second"
        elif not block.local and not self._calls_of_block.allows(block.name, now):
            why = "too many calls from this address"
        else:
            return ""
        self._strike(block, now)
        return self._doom(connection, why)

    def _doom(self, connection: _Connection, why: str) -> str:
        connection.doomed = why
        self._doomed.append(connection)
        return why

    # --- sockets ------------------------------------------------------------------------------------------------------

    def listed(self, accepted: Accepted, now: float) -> None:
        """Record that a socket exists. Call `rest_is_gone` after all of them."""
        peer = accepted.peer
        self._listed.add(accepted)
        if accepted in self._ended:
            return
        connection = self._all.get(peer)
        if connection is not None and connection.accepted not in (None, accepted):
            self._forget(connection)  # an earlier connection from the same port
            connection = None
        connection = connection or self._begin(peer, now)
        connection.accepted = connection.accepted or accepted

    def rest_is_gone(self, now: float) -> None:
        """Forget the connections that were not listed since the last call: they have ended."""
        listed, self._listed = self._listed, set()
        self._ended &= listed
        for connection in [each for each in self._all.values() if each.accepted not in listed]:
            if connection.accepted is not None or (not connection.open and now - connection.since > _FORGET_SECONDS):
                self._forget(connection)
        for key, block in [*self._blocks.items()]:
            if not block.connections and not block.stray.add(0, self.limits.stray_of_all_per_second, now):
                del self._blocks[key]

    def sockets(self) -> list[Accepted]:
        """Return the sockets that can be measured."""
        return [each.accepted for each in self._all.values() if each.accepted is not None]

    def measured(self, accepted: Accepted, received: int, now: float) -> Eviction | None:
        """Record the number of bytes that a connection has received so far. Return the eviction if that is too much."""
        connection = self._all.get(accepted.peer)
        if connection is None or connection.accepted is not accepted or not received:
            return None
        limits, block = self.limits, connection.block
        if connection.recent is None:
            connection.recent = _Recent(now, now, (0, limits.beginning), (0, limits.beginning))
        connection.recent.measured((received, received - connection.explained), now)
        unexplained = max(0, received - connection.explained - _PREAMBLE_BYTES)
        more, connection.unexplained = unexplained - connection.unexplained, unexplained
        stray = connection.stray.add(more, limits.stray_per_second, now)
        of_all = block.stray.add(more, limits.stray_of_all_per_second, now)
        if stray > (limits.stray if connection.begun else limits.stray_before):
            why = f"sent {_size(stray)} that belong to no call"
        elif not block.local and of_all > limits.stray_of_all and stray > _PREAMBLE_BYTES:
            why = f"with others of its address, sent {_size(of_all)} that belong to no call"
        else:
            return None
        self._strike(block, now)
        return self._end(connection, accepted, why, received)

    # --- memory -------------------------------------------------------------------------------------------------------

    def expanded(self, alarm: Alarm, now: float) -> Iterator[Eviction]:
        """Yield the connections of the blocks that caused growing memory, and reject these blocks from now on.

        Call it after all connections were measured. Yields nothing if no block has sent enough bytes: then memory grows
        for another reason.
        """
        found, pace = self._strays(now), self.limits.away_for_memory
        if not found and alarm.pressed and alarm.grown >= PRESSED_BYTES:
            # Calls that are cheap to make can hide stray bytes.
            sizes = ((block, recent.received_lately) for block, recent in self._recent())
            found, pace = _sum(sizes, _PREAMBLE_BYTES), self.limits.full
        total = sum(found.values())
        if total * _EXPANSION < alarm.grown:
            return
        sent = 0
        for name, size in sorted(found.items(), key=lambda each: each[1], reverse=True):
            if sent >= _GUILTY_SHARE * total:
                return
            sent += size
            block = self._blocks.get(name)
            if block is None or not block.local:
                self.bar(name, now + pace)
            why = f"sent {_size(size)} that belong to no call while memory grew by {_size(alarm.grown)}"
            for connection in [*block.connections.values()] if block is not None else ():
                if connection.accepted is not None:
                    yield self._end(connection, connection.accepted, why)

    def _strays(self, now: float) -> Counter[Block]:
        """Return the recent stray bytes by block, of connections that have sent many."""
        sizes = [(block, recent.stray_lately) for block, recent in self._recent()]
        sizes += [(block, size) for (block, _), (end, size) in self._closed.items() if now - end < _CLOSED_SECONDS]
        return _sum(sizes, _MIN_SUSPICIOUS_BYTES)

    def _recent(self) -> Iterator[tuple[Block, _Recent]]:
        for connection in self._all.values():
            if connection.block.name is not None and connection.recent is not None:
                yield connection.block.name, connection.recent

    def bar(self, name: Block, until: float) -> None:
        """Reject a block until then, and close its later connections: they began earlier, or there is no filter."""
        self._barred[name] = max(until, self._barred.get(name, until))
        self._keep_away(name, until)

    def barred(self) -> list[tuple[Block, float]]:
        """Return the blocks that are rejected for an attack, each with the end of that time."""
        return [*self._barred.items()]

    # --- connections that have to be closed ---------------------------------------------------------------------------

    def excess(self, now: float) -> Iterator[Eviction]:
        """Yield the connections to close, apart from those that `measured` returned."""
        yield from self.doomed()
        for connection in [*self._silent.values()]:
            if now - connection.since < self.limits.first_call:
                break
            if connection.accepted is not None:
                yield self._end(connection, connection.accepted, f"made no call for {self.limits.first_call:g} s")
        yield from self._beyond_share(now)
        yield from self._beyond_all()

    def doomed(self) -> Iterator[Eviction]:
        """Yield the connections with too many calls, as far as their sockets are known."""
        doomed, self._doomed = self._doomed, []
        for connection in doomed:
            if connection.accepted is not None:
                yield self._end(connection, connection.accepted, connection.doomed)
            elif self._all.get(connection.peer) is connection:
                self._doomed.append(connection)

    def _beyond_share(self, now: float) -> Iterator[Eviction]:
        """Yield idle connections of blocks that have reached their share, and any that exceed it."""
        share = self.limits.per_address
        for key, block in [*self._crowded.items()]:
            count = len(block.connections)
            if count < share:
                del self._crowded[key]
                continue
            if block.name is not None:
                self._keep_away(block.name, now + self.limits.full)
            first = _by_worth(block)
            rested = sum(not each.open and now - each.rests >= _REST_SECONDS for each in first)
            room = min(rested, count - share + max(1, share // 8))
            for connection in first[: max(room, count - share)]:
                if connection.accepted is not None:
                    why = f"{share} connections of one address are the most"
                    yield self._end(connection, connection.accepted, why)

    def _beyond_all(self) -> Iterator[Eviction]:
        surplus = len(self._all) - self.limits.connections
        if surplus <= 0:
            return
        ranked = []
        for block in self._blocks.values():
            resting = [each for each in _by_worth(block) if not each.busy]
            ranked += [(rank, -each.rests, each) for rank, each in enumerate(reversed(resting))]
        ranked.sort(key=lambda each: each[:2], reverse=True)
        for _, _, connection in ranked[:surplus]:
            if connection.accepted is not None:
                why = f"{self.limits.connections} connections in all are the most"
                yield self._end(connection, connection.accepted, why)

    def away(self, now: float) -> frozenset[Block]:
        """Return the blocks that are rejected now."""
        for block in [block for block, until in self._away.items() if until <= now]:
            del self._away[block]
            self._barred.pop(block, None)
        return frozenset(self._away)

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _begin(self, peer: Peer, now: float) -> _Connection:
        try:
            name: Block | None = block_of(peer.address)
            local = ip_address(peer.address).is_loopback
        except ValueError:  # no IP
            name, local = None, True
        key = name or peer.address
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _BlockAccount(name, local)
        connection = _Connection(peer, block, now, now)
        self._all[peer] = self._silent[peer] = block.connections[peer] = connection
        if not block.local:
            if len(block.connections) >= self.limits.per_address:
                self._crowded[key] = block
            if name is not None and not self._arrivals.allows(name, now):
                self.bar(name, now + self.limits.away)
            if name in self._barred:
                self._doom(connection, "its address is kept away")
        return connection

    def _forget(self, connection: _Connection) -> None:
        peer, block = connection.peer, connection.block
        if self._all.get(peer) is not connection:
            return
        del self._all[peer], block.connections[peer]
        self._silent.pop(peer, None)
        if block.name is not None and connection.recent is not None and (stray := connection.recent.stray_lately):
            self._closed[block.name, peer] = connection.recent.at, stray
        if not block.connections and not block.stray.level:
            self._blocks.pop(block.name or peer.address, None)

    def _end(self, connection: _Connection, accepted: Accepted, why: str, unless: int = 0) -> Eviction:
        self._forget(connection)
        self._ended.add(accepted)
        return Eviction(accepted, why, unless)

    def _strike(self, block: _BlockAccount, now: float) -> None:
        if block.name is not None and not block.local and not self._strikes.allows(block.name, now):
            self.bar(block.name, now + self.limits.away)

    def _keep_away(self, name: Block, until: float) -> None:
        self.kept_away += name not in self._away
        until = max(until, self._away.pop(name, 0.0))
        while len(self._away) >= MAX_BLOCKS:
            oldest = next(iter(self._away))
            del self._away[oldest]
            self._barred.pop(oldest, None)
        self._away[name] = until


def _sum(sizes: Iterable[tuple[Block, int]], least: int) -> Counter[Block]:
    """Return the sum of each block's sizes that are not below `least`."""
    found: Counter[Block] = Counter()
    for block, size in sizes:
        found[block] += size if size >= least else 0
    return +found


def _by_worth(block: _BlockAccount) -> list[_Connection]:
    """Return the connections in the order in which they are closed: idle before busy, the longest idle first."""
    return sorted(block.connections.values(), key=lambda each: (bool(each.busy), bool(each.open), each.rests))


def _size(count: float) -> str:
    return f"{count / 1000:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
