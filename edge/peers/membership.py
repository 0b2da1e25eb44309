"""The other edges of the site: which of them live, and which one decides about a file. Pure; the clock is an argument.

An edge lives if its last signed hello is younger than `LIVING_SECONDS`. If its port refuses connections, it counts as
gone at once. An edge that has gone is remembered for `REMEMBERED_SECONDS`, for machines that began their boot with it.

Rendezvous hashing selects the edge that decides about a file: of all living edges, the one whose id and the file's key
have the highest hash. Edges that see the same members agree without messages, and if one goes, only its own files
move. While two edges see different members, a file may be fetched twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Final

from edge.peers.messages import Edge, Place, Place6
from tink.limits import Newest

LIVING_SECONDS: Final = 3.5
REMEMBERED_SECONDS: Final = 600.0
MAX_EDGES: Final = 32
CLAIM_SECONDS: Final = 15.0
"""Lifetime of a claim: longer than an edge waits for another one (`edge.peers.caches.PATIENCE_SECONDS`)."""
MAX_CLAIMS: Final = 1024
MAX_ALTERNATIVES: Final = 3
"""Maximum number of other edges on a machine's kernel command line, whose length is limited."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another edge that a machine can use: address, HTTP port, and port of the gRPC server (0: it has none)."""

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
    """An edge has appeared (`living`) or gone."""

    edge: Edge
    living: bool


@dataclass(slots=True)
class Peer:
    """A living edge, and the `address:port` where it was reached."""

    edge: Edge
    authority: str

    @property
    def id(self) -> str:
        """The id of the edge."""
        return self.edge.id


@dataclass(slots=True)
class Membership:
    """The edges that this one, `own`, knows of. `clock` returns monotonic seconds."""

    own: str
    clock: Callable[[], float]
    _known: dict[str, _Known] = field(default_factory=dict)
    _claims: Newest[str, tuple[str, float]] = field(default_factory=lambda: Newest(MAX_CLAIMS))
    """By file: the edge that may fetch it, and the time until which it has the claim."""

    # --- hellos ---

    def heard(self, edge: Edge, authority: str = "") -> None:
        """Record a hello of an edge. `authority` is where this edge called it, empty if it called here."""
        if edge.id == self.own:
            return
        known = self._known.get(edge.id)
        if known is None:
            if len(self._known) >= MAX_EDGES:
                gone = next((name for name, known in self._known.items() if not self._lives(known)), None)
                if gone is None:
                    return
                del self._known[gone]
            known = self._known[edge.id] = _Known(edge, self.clock())
        if not authority and known.lost:
            known.lost = False
        known.edge, known.heard = edge, self.clock()
        if authority:
            known.authority, known.lost = authority, False
            # An edge that was restarted has a new id at the same address.
            for name in [name for name, other in self._known.items() if name != edge.id]:
                if self._known[name].authority == authority:
                    del self._known[name]

    def lost(self, authority: str) -> None:
        """Record that no process listens at `authority` any more."""
        for known in self._known.values():
            if known.authority == authority:
                known.lost = True

    def changes(self) -> list[Change]:
        """Return the edges that appeared or went since the last call, and forget the edges that went long ago."""
        now, changes = self.clock(), []
        for known in self._known.values():
            living = self._lives(known)
            if living != known.said_living:
                known.said_living = living
                changes.append(Change(known.edge, living))
        self._known = {name: known for name, known in self._known.items() if now - known.heard < REMEMBERED_SECONDS}
        return changes

    # --- the living edges ---

    @property
    def living(self) -> list[Peer]:
        """The living edges that this one can reach."""
        return [
            Peer(known.edge, known.authority)
            for known in self._known.values()
            if known.authority and self._lives(known)
        ]

    @property
    def authorities(self) -> set[str]:
        """The addresses to send hello to, besides those of the operator and of Leases: edges that called here."""
        found = set()
        for known in self._known.values():
            if known.authority:
                found.add(known.authority)
            elif known.edge.http_port:
                found.update(known.edge.authorities)
        return found

    @property
    def addresses(self) -> tuple[frozenset[str], frozenset[str]]:
        """The IPv4 addresses of living edges that answer DHCP, and those of edges that have gone."""
        living: set[str] = set()
        gone: set[str] = set()
        for known in self._known.values():
            if known.edge.dhcp:
                (living if self._lives(known) else gone).update(place.address for place in known.edge.places)
        return frozenset(living), frozenset(gone - living)

    # --- the use of the edges ---

    def arbiter(self, key: str) -> str:
        """Return the id of the edge that decides which edge fetches `key`: this one, or one that it can reach."""
        return max([self.own, *(peer.id for peer in self.living)], key=lambda name: _weight(name, key))

    def claim(self, key: str, edge: str) -> str:
        """Return the edge that may fetch the file `key`, which no edge has: `edge`, or another living one.

        The first edge that asks the arbiter of the file gets the claim. It ends with its time or with its edge.
        """
        now = self.clock()
        holder, until = self._claims.get(key, ("", now))
        known = self._known.get(holder)
        if holder != edge and now < until and (holder == self.own or (known is not None and self._lives(known))):
            return holder
        self._claims[key] = (edge, now + CLAIM_SECONDS)
        return edge

    def alternatives(self, own: Edge, address: str, key: str) -> tuple[Alternative, ...]:
        """Return where the machine `key`, which has reached this edge, `own`, at `address`, can use another edge.

        The address is in the same network; or its edge has no network in common with this one, so that there are
        routers in between anyway. It is of the same family. The order differs from machine to machine.
        """
        found = []
        for peer in sorted(self.living, key=lambda peer: _weight(peer.id, key), reverse=True):
            there = _address(peer.edge, own, address)
            if there:
                found.append(Alternative(there, peer.edge.http_port, peer.edge.server_port))
        return tuple(found[:MAX_ALTERNATIVES])

    def _lives(self, known: _Known) -> bool:
        return not known.lost and self.clock() - known.heard < LIVING_SECONDS


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
