"""Which edges there are besides this one, which of them live, and who decides about what. Pure; the clock is given.

An edge lives as long as it has said hello, signed, within the last `LIVING_SECONDS`; one that does not listen any more
is known to be gone at once. One that is gone is remembered for `REMEMBERED_SECONDS`: machines that began their boot
with it are still about.

What needs one edge to decide (which of them asks an upstream) is decided by rendezvous hashing: of all that live, the
one whose name makes the highest hash with what it is about. Edges that see the same others agree without a word, and
when one goes, only what was its own moves. Where they do not see the same for a moment, a file is fetched twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final

from edge.peers.messages import Edge, Place, Place6

LIVING_SECONDS: Final = 3.5
REMEMBERED_SECONDS: Final = 600.0
MAX_EDGES: Final = 32
MAX_ALTERNATIVES: Final = 3
"""Other edges that a machine is told of: its kernel's command line has room for so much."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Where another edge has the same: its address, the port of its HTTP, and of its gRPC server (0: none there)."""

    address: str
    http_port: int
    server_port: int = 0


@dataclass(slots=True)
class _Known:
    edge: Edge
    heard: float
    authority: str = ""
    lost: bool = False
    said_living: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """An edge has come, or has gone."""

    edge: Edge
    living: bool


@dataclass(slots=True)
class Peer:
    """An edge that lives, and the `address:port` where it was reached."""

    edge: Edge
    authority: str

    @property
    def id(self) -> str:
        """Its name."""
        return self.edge.id


@dataclass(slots=True)
class Membership:
    """The edges that this one, `own`, knows of. `clock` gives monotonic seconds."""

    own: str
    clock: Callable[[], float]
    _known: dict[str, _Known] = field(default_factory=dict)

    # --- what is heard ---

    def heard(self, edge: Edge, authority: str = "") -> None:
        """It has said hello; `authority` is where it was asked, empty if it was the one who asked."""
        if edge.id == self.own:
            return
        known = self._known.get(edge.id)
        if known is None:
            if len(self._known) >= MAX_EDGES and not self._make_room():
                return
            known = self._known[edge.id] = _Known(edge, self.clock())
        if not authority and known.lost:
            known.lost = False
        known.edge, known.heard = edge, self.clock()
        if authority:
            known.authority, known.lost = authority, False
            # An edge that was started again has another name, and is no other one.
            for name in [name for name, other in self._known.items() if name != edge.id]:
                if self._known[name].authority == authority:
                    del self._known[name]

    def lost(self, authority: str) -> None:
        """Nobody listens there any more."""
        for known in self._known.values():
            if known.authority == authority:
                known.lost = True

    def changes(self) -> list[Change]:
        """Who has come or gone since this was last asked. To be asked often; forgets those who are gone for long."""
        now, changes = self.clock(), []
        for known in self._known.values():
            living = self._lives(known)
            if living != known.said_living:
                known.said_living = living
                changes.append(Change(known.edge, living))
        self._known = {name: known for name, known in self._known.items() if now - known.heard < REMEMBERED_SECONDS}
        return changes

    # --- who there is ---

    @property
    def living(self) -> list[Peer]:
        """Those that can be asked."""
        return [Peer(known.edge, known.authority) for known in self._known.values() if self._can_be_asked(known)]

    @property
    def authorities(self) -> set[str]:
        """Where hello should be said, besides where the operator or a Lease says: who called us is there, too."""
        found = set()
        for known in self._known.values():
            if known.authority:
                found.add(known.authority)
            elif known.edge.http_port:
                found.update(known.edge.authorities)
        return found

    def lives(self, name: str) -> bool:
        """Whether the edge of this name is there."""
        known = self._known.get(name)
        return name == self.own or (known is not None and self._lives(known))

    @property
    def addresses(self) -> tuple[frozenset[str], frozenset[str]]:
        """Where edges answer DHCP that live, and where there was one that is gone."""
        living: set[str] = set()
        gone: set[str] = set()
        for known in self._known.values():
            if known.edge.dhcp:
                (living if self._lives(known) else gone).update(place.address for place in known.edge.places)
        return frozenset(living), frozenset(gone - living)

    # --- who does what ---

    def arbiter(self, key: str) -> str:
        """The name of the edge that says who fetches `key`: this one's, or that of one that can be asked."""
        return max([self.own, *(peer.id for peer in self.living)], key=lambda name: _weight(name, key))

    def alternatives(self, own: Edge, address: str, key: str) -> tuple[Alternative, ...]:
        """Where the machine `key`, which has reached this edge, `own`, at `address`, can go on with another one.

        That is an address of the same network, or one of an edge that has no network with this one in common, so that
        there are routers in between anyway; always one of the family that the machine has come by. Machines begin with
        different ones.
        """
        found = []
        for peer in sorted(self.living, key=lambda peer: _weight(peer.id, key), reverse=True):
            there = _address(peer.edge, own, address)
            if there:
                found.append(Alternative(there, peer.edge.http_port, peer.edge.server_port))
        return tuple(found[:MAX_ALTERNATIVES])

    def _lives(self, known: _Known) -> bool:
        return not known.lost and self.clock() - known.heard < LIVING_SECONDS

    def _can_be_asked(self, known: _Known) -> bool:
        return bool(known.authority) and self._lives(known)

    def _make_room(self) -> bool:
        gone = next((name for name, known in self._known.items() if not self._lives(known)), None)
        if gone is not None:
            del self._known[gone]
        return gone is not None


def _address(edge: Edge, own: Edge, address: str) -> str:
    ours: tuple[Place | Place6, ...] = own.places6 if ":" in address else own.places
    theirs: tuple[Place | Place6, ...] = edge.places6 if ":" in address else edge.places
    here = {ip_network(place.network) for place in ours if place.address == address}
    for place in theirs:
        if place.address != address and any(ip_address(place.address) in network for network in here):
            return place.address
    is_routed = bool(here) and {place.network for place in theirs}.isdisjoint(place.network for place in ours)
    return theirs[0].address if is_routed and theirs else ""


def _weight(name: str, key: str) -> bytes:
    return hashlib.sha256(f"{name}\0{key}".encode()).digest()
