"""Decides which connections of agents may stay, by comparing the bytes of each connection with its calls.

gRPC's core reads HTTP/2 in threads of its own, and this program sees only the resulting calls. Some traffic costs the
core as much as a call and is invisible here: calls that are reset at once (CVE-2023-44487), frames that belong to no
call (SETTINGS, PING, a header block without an end), and calls that are never finished. But all of it arrives as bytes,
and the kernel counts bytes. So each connection has an account:

    received    the bytes that the kernel has counted (`tink.server.connections.sockets`)
    explained   the bytes of the observed calls and messages, and of the start of a connection
    stray       the rest, which leaks away at `stray_per_second`; an honest agent sends some pings

A connection with too many stray bytes is ended, whatever they were. The rate of calls is limited, too. Both limits hold
for a connection and for a *block*: an IPv4 address, or an IPv6 /64 network, behind which there may be several agents. A
block is kept away for a while if several of its connections were ended, or if it connects too often.

The number of connections is limited separately. A connection that makes no call in `first_call` seconds is ended. Of
more than `per_address` connections the longest idle ones are ended, and of more than `connections` those of the block
with the most. A connection with an open command stream is never idle. Unknown clients can't open one, so they make room
for agents.

Bytes that belong to no call can become 4,000 times as many in memory (`memory`). If memory grows, the blocks that sent
most of these bytes in the last seconds are ended at once, and kept away for longer.

Loopback is the operator: it has no limit. Pure bookkeeping: the caller reports sockets, times and calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from tink.limits.newest import Newest
from tink.limits.token_bucket import TokenBuckets
from tink.net.addresses import Block, block_of
from tink.server.connections.memory import PRESSED_BYTES, Alarm
from tink.server.connections.sockets import MOST_BLOCKS, Accepted, Peer

_CONNECTION_BYTES: Final = 8 << 10
"""Bytes that a connection may begin with: TLS with a chain of certificates, and HTTP/2's preface."""
_CALL_BYTES: Final = 512
"""Bytes of a call's headers and its end. Ours have 200, the largest token included 600."""
_MESSAGE_BYTES: Final = 128
"""Bytes of a message beside itself: frames, window updates, TLS records."""
_REST_SECONDS: Final = 1.0
"""Seconds without a call after which a connection makes room for another one of its block."""
_SNAPSHOT_SECONDS: Final = 5.0
_EXPANSION: Final = 8192
"""Growth factor: a byte of a header block can name an entry of HPACK's table of 4 kB (RFC 9113 section 6.5.2)."""
_LEAST_SUSPICIOUS: Final = 1 << 10
"""Stray bytes of a connection in some seconds that are no suspicion while memory grows.

A ping has 17 bytes. An entry that fills HPACK's table has 2,500, Huffman coded (RFC 7541 section 5.2).
"""
_GUILTY: Final = 0.75
"""The share of the stray bytes whose senders are ended in one step. Other senders follow if memory goes on growing."""
_MOST_LEFT: Final = 4096
"""Maximum number of ended connections whose bytes are remembered."""
_LEFT_SECONDS: Final = 10.0
_FORGET_SECONDS: Final = 2.0
"""Seconds after which a connection that made a call, and that no socket was found for, is forgotten."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`connections` in all and `per_address`. Times in seconds, sizes in bytes.

    A message may be 256 kB, and is heard of when it is whole: `stray` is more. `stray_before` is for a connection that
    has made no call yet.
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
    """Calls of one connection that the caller takes back; an agent does so when it ends, or loses patience."""
    strikes: int = 5
    """How often a block's connections may be ended within a minute before it is kept away."""
    away: float = 30.0
    """How long a block is kept away."""
    away_for_memory: float = 300.0
    """Time for which a block is kept away after its header blocks used much memory."""
    beginning: int = 1 << 10
    """Initial bytes of a connection that are no suspicion when memory grows; more with TLS."""
    full: float = 3.0
    """How long it is kept away when it merely has all of its places."""

    @property
    def stray_of_all(self) -> int:
        """What all connections of a block may have: 2 MB for 512 of them."""
        return max(2 * self.stray, self.per_address * (4 << 10))

    @property
    def stray_of_all_per_second(self) -> int:
        """256 kB for 512 connections."""
        return max(self.stray_per_second, self.per_address * 512)


@dataclass(slots=True)
class _LeakyBucket:
    """A level that falls by itself, and at most to 0."""

    level: float = 0.0
    at: float = 0.0

    def add(self, more: float, per_second: float, now: float) -> float:
        leaked = max(0.0, self.level - per_second * max(0.0, now - self.at))
        self.level = max(0.0, leaked + more)
        self.at = now
        return self.level


@dataclass(slots=True)
class _Recent:
    """The bytes of a connection since a snapshot that is 5 to 10 seconds old: all bytes, and stray bytes."""

    at: float
    """The time of the last measurement."""
    since: float
    received: int = 0
    stray: int = 0
    base_received: int = 0
    base_stray: int = 0
    next_received: int = 0
    next_stray: int = 0

    @property
    def stray_lately(self) -> int:
        return max(0, self.stray - self.base_stray)

    @property
    def received_lately(self) -> int:
        return self.received - self.base_received

    def measured(self, received: int, stray: int, now: float) -> None:
        self.at, self.received, self.stray = now, received, stray
        if now - self.since >= _SNAPSHOT_SECONDS:
            self.since = now
            self.base_received, self.base_stray = self.next_received, self.next_stray
            self.next_received, self.next_stray = received, stray


@dataclass(slots=True, eq=False)
class _Connection:
    """`since` it is known; `rests` since no call was open. `busy` counts the calls that only agents can have open."""

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
    """Received less explained, when it was measured last."""
    stray: _LeakyBucket = field(default_factory=_LeakyBucket)
    recent: _Recent | None = None
    doomed: str = ""
    """Why it is to be ended, as soon as its socket is found."""


@dataclass(slots=True, eq=False)
class _BlockAccount:
    """A block, and its connections."""

    name: Block | None
    local: bool
    stray: _LeakyBucket = field(default_factory=_LeakyBucket)
    connections: dict[Peer, _Connection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Eviction:
    """A connection to be ended, and why. `unless`: only if so many bytes have come in on it."""

    accepted: Accepted
    why: str
    unless: int = 0


class Connections:
    """All of one server. Times are monotonic seconds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._all: dict[Peer, _Connection] = {}
        self._silent: dict[Peer, _Connection] = {}  # in the order of their beginning
        self._blocks: dict[Block | str, _BlockAccount] = {}
        self._away: dict[Block, float] = {}
        self._barred: dict[Block, float] = {}  # of these, the ones that have done something
        self.kept_away = 0
        """How often a block was kept away that was not."""
        self._listed: set[Accepted] = set()
        self._ended: set[Accepted] = set()  # gRPC may take a moment to close them
        self._crowded: dict[Block | str, _BlockAccount] = {}
        self._doomed: list[_Connection] = []
        self._left: Newest[tuple[Block, Peer], tuple[float, int]] = Newest(_MOST_LEFT)
        """End time and size of connections that had sent stray bytes shortly before: gRPC may still expand these."""
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
        """A call has begun. Why it is not to be served; empty if it is. `ended` is to follow in either case."""
        connection = self._all.get(peer) or self._begin(peer, now)
        if not connection.begun:
            del self._silent[peer]
        connection.begun += 1
        connection.open += 1
        connection.busy += busy
        connection.explained += _CALL_BYTES
        return self._paced(connection, now)

    def heard(self, peer: Peer, size: int, now: float, *, first: bool) -> str:
        """A message of a call has come in, with `size` bytes. All but the first count as calls do."""
        connection = self._all.get(peer)
        if connection is None:
            return ""
        connection.explained += size + size // 8 + _MESSAGE_BYTES
        return "" if first else self._paced(connection, now)

    def ended(self, peer: Peer, now: float, *, busy: bool) -> None:
        """A call has ended."""
        connection = self._all.get(peer)
        if connection is not None:
            connection.open = max(0, connection.open - 1)
            connection.busy = max(0, connection.busy - busy)
            if not connection.open:
                connection.rests = now

    def aborted(self, peer: Peer, now: float) -> str:
        """The caller took a call back. Why that is too much; empty if it is not."""
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
        """This connection is there. After all of them, `rest_is_gone`."""
        peer = accepted.peer
        self._listed.add(accepted)
        if accepted in self._ended:
            return
        connection = self._all.get(peer)
        if connection is not None and connection.accepted not in (None, accepted):
            self._forget(connection)  # another one by the same name
            connection = None
        if connection is None:
            connection = self._begin(peer, now)
        if connection.accepted is not None:
            return
        connection.accepted = accepted

    def rest_is_gone(self, now: float) -> None:
        """Those that were not listed since this was called last have ended."""
        listed, self._listed = self._listed, set()
        self._ended &= listed
        for connection in [each for each in self._all.values() if each.accepted not in listed]:
            if connection.accepted is not None or (not connection.open and now - connection.since > _FORGET_SECONDS):
                self._forget(connection)
        for key, block in [*self._blocks.items()]:
            if not block.connections and not block.stray.add(0, self.limits.stray_of_all_per_second, now):
                del self._blocks[key]

    def sockets(self) -> list[Accepted]:
        """Those that can be measured."""
        return [each.accepted for each in self._all.values() if each.accepted is not None]

    def measured(self, accepted: Accepted, received: int, now: float) -> Eviction | None:
        """So many bytes have come in on a connection so far."""
        connection = self._all.get(accepted.peer)
        if connection is None or connection.accepted is not accepted or not received:
            return None
        limits, block = self.limits, connection.block
        if connection.recent is None:
            begun = limits.beginning
            connection.recent = _Recent(now, now, base_stray=begun, next_stray=begun)
        connection.recent.measured(received, received - connection.explained, now)
        unexplained = max(0, received - connection.explained - _CONNECTION_BYTES)
        more, connection.unexplained = unexplained - connection.unexplained, unexplained
        stray = connection.stray.add(more, limits.stray_per_second, now)
        of_all = block.stray.add(more, limits.stray_of_all_per_second, now)
        if stray > (limits.stray if connection.begun else limits.stray_before):
            why = f"sent {_size(stray)} that belong to no call"
        elif not block.local and of_all > limits.stray_of_all and stray > _CONNECTION_BYTES:
            why = f"with others of its address, sent {_size(of_all)} that belong to no call"
        else:
            return None
        self._strike(block, now)
        return self._end(connection, accepted, why, received)

    # --- memory -------------------------------------------------------------------------------------------------------

    def expanded(self, alarm: Alarm, now: float) -> Iterator[Eviction]:
        """End the connections of the blocks that caused growing memory, and keep these blocks away from now on.

        Call it after all connections were measured. Yields nothing if no block has sent enough bytes: then memory grows
        for another reason.
        """
        found, pace = self._strays(now), self.limits.away_for_memory
        if not found and alarm.pressed and alarm.grown >= PRESSED_BYTES:
            # Calls that are cheap to make can hide stray bytes.
            found, pace = self._received(), self.limits.full
        total = sum(found.values())
        if total * _EXPANSION < alarm.grown:
            return
        sent = 0
        for name, size in sorted(found.items(), key=lambda each: each[1], reverse=True):
            if sent >= _GUILTY * total:
                return
            sent += size
            block = self._blocks.get(name) or _BlockAccount(name, local=False)
            if not block.local:
                self._bar(block, now, pace)
            why = f"sent {_size(size)} that belong to no call while memory grew by {_size(alarm.grown)}"
            for connection in [*block.connections.values()]:
                if connection.accepted is not None:
                    yield self._end(connection, connection.accepted, why)

    def _strays(self, now: float) -> Counter[Block]:
        """Return the recent stray bytes by block, of connections that have sent many."""
        found: Counter[Block] = Counter()
        for connection in self._all.values():
            if connection.block.name is not None and connection.recent is not None:
                size = connection.recent.stray_lately
                found[connection.block.name] += size if size >= _LEAST_SUSPICIOUS else 0
        for (name, _), (when, size) in self._left.items():
            found[name] += size if size >= _LEAST_SUSPICIOUS and now - when < _LEFT_SECONDS else 0
        return +found

    def _received(self) -> Counter[Block]:
        """Return all recent bytes by block, of connections that have sent many."""
        found: Counter[Block] = Counter()
        for connection in self._all.values():
            if connection.block.name is not None and connection.recent is not None:
                size = connection.recent.received_lately
                found[connection.block.name] += size if size >= _CONNECTION_BYTES else 0
        return +found

    def bar(self, name: Block, until: float) -> None:
        """Keep this block away until then. An earlier process of this server decided that."""
        self._bar(_BlockAccount(name, local=False), until, 0.0)

    def barred(self) -> list[tuple[Block, float]]:
        """Return the blocks that are kept away for an attack, each with the end of that time."""
        return [*self._barred.items()]

    # --- who goes -----------------------------------------------------------------------------------------------------

    def excess(self, now: float) -> Iterator[Eviction]:
        """Those that have to go now, beside the ones that were measured."""
        yield from self.doomed()
        for connection in [*self._silent.values()]:
            if now - connection.since < self.limits.first_call:
                break
            if connection.accepted is not None:
                yield self._end(connection, connection.accepted, f"made no call for {self.limits.first_call:g} s")
        yield from self._beyond_share(now)
        yield from self._beyond_all()

    def doomed(self) -> Iterator[Eviction]:
        """Those whose calls are too many, as far as their sockets are known."""
        doomed, self._doomed = self._doomed, []
        for connection in doomed:
            if connection.accepted is not None:
                yield self._end(connection, connection.accepted, connection.doomed)
            elif self._all.get(connection.peer) is connection:
                self._doomed.append(connection)

    def _beyond_share(self, now: float) -> Iterator[Eviction]:
        """Of a block that has all of its places, some that rest; and whatever is too much."""
        share = self.limits.per_address
        for key, block in [*self._crowded.items()]:
            count = len(block.connections)
            if count < share:
                del self._crowded[key]
                continue
            self._keep_away(block, now + self.limits.full)
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
        """From where no connection is taken now."""
        for block in [block for block, until in self._away.items() if until <= now]:
            del self._away[block]
            self._barred.pop(block, None)
        return frozenset(self._away)

    # --- how ----------------------------------------------------------------------------------------------------------

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
            if not self._arrivals.allows(name, now):
                self._bar(block, now)
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
            self._left[block.name, peer] = connection.recent.at, stray
        if not block.connections and not block.stray.level:
            self._blocks.pop(block.name or peer.address, None)

    def _end(self, connection: _Connection, accepted: Accepted, why: str, unless: int = 0) -> Eviction:
        self._forget(connection)
        self._ended.add(accepted)
        return Eviction(accepted, why, unless)

    def _strike(self, block: _BlockAccount, now: float) -> None:
        if not block.local and not self._strikes.allows(block.name, now):
            self._bar(block, now)

    def _bar(self, block: _BlockAccount, now: float, seconds: float | None = None) -> None:
        """Keep it away, and end what comes nevertheless: it had begun before, or there is no filter."""
        if block.name is not None:
            until = now + (self.limits.away if seconds is None else seconds)
            self._barred[block.name] = max(until, self._barred.get(block.name, until))
            self._keep_away(block, until)

    def _keep_away(self, block: _BlockAccount, until: float) -> None:
        name = block.name
        if name is None:
            return
        self.kept_away += name not in self._away
        until = max(until, self._away.pop(name, 0.0))
        while len(self._away) >= MOST_BLOCKS:
            oldest = next(iter(self._away))
            del self._away[oldest]
            self._barred.pop(oldest, None)
        self._away[name] = until


def _by_worth(block: _BlockAccount) -> list[_Connection]:
    """The one that goes first, first: those that rest before those that have calls, those that rest longest before."""
    return sorted(block.connections.values(), key=lambda each: (bool(each.busy), bool(each.open), each.rests))


def _size(count: float) -> str:
    return f"{count / 1000:.0f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
