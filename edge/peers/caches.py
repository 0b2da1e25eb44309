"""Files from the caches of other edges (`edge.artifacts.PeerCaches`), and this edge's answers to their queries.

A miss in the own cache queries all living edges at once. One of them is the arbiter of the file (rendezvous hashing):
it decides which edge may fetch a file that no edge has.

    an edge has a fresh copy                      this edge copies it from there
    no edge has one, and this edge has the claim  this edge fetches it from the upstream
    no edge has one, another edge has the claim   this edge waits up to `PATIENCE_SECONDS` for the copy of that edge,
                                                  then fetches the file from the upstream

No edge fetches a file at the request of another one, and no URL is sent. An error here delays a file, and never
prevents its delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Final

from edge.artifacts.artifact import PeerError
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.upstream import Copy, Offer, PeerResponse
from edge.peers.calls import CallError, Calls
from edge.peers.membership import Membership, Peer
from edge.peers.messages import ASK, CacheQuery, CacheReply, HeldCopy
from tink.limits import Newest

PATIENCE_SECONDS: Final = 10.0
"""How long this edge waits for another one that fetches the file."""
PAUSE_SECONDS: Final = 0.1
DISTRUST_SECONDS: Final = 600.0
"""How long an edge is not asked again for a file whose copy from there was damaged."""
MAX_DISTRUSTED: Final = 1024


class Caches:
    """The caches of the edges that `membership` knows."""

    def __init__(self, membership: Membership, calls: Calls) -> None:
        self._membership = membership
        self._calls = calls
        self._distrusted: Newest[tuple[str, str], float] = Newest(MAX_DISTRUSTED)

    # --- asking ---

    async def find(self, key: str, _url: str, pin: str, avoided: Collection[str]) -> Offer | None:
        """See `edge.artifacts.PeerCaches`."""
        clock = self._membership.clock
        deadline = clock() + PATIENCE_SECONDS
        is_settled = False
        while True:
            peers = [peer for peer in self._membership.living if peer.id not in avoided]
            if not peers:
                return None
            answers, claimed = await self._ask(peers, key, pin)
            now = clock()
            offers = [
                Offer(peer.id, peer.authority.partition(":")[0], Copy(**answer.held.model_dump()))
                for peer, answer in answers
                if answer.held is not None and now >= self._distrusted.get((peer.id, key), now)
            ]
            offer = max(offers, key=_worth, default=None)
            if offer is not None and offer.copy.fresh > 0:
                self._calls.counts.hits += 1
                return offer
            # The claimant may have started to fetch between its answer and the arbiter's: query it once more.
            waits = not is_settled and claimed not in ("", self._membership.own)
            waits |= any(peer.id == claimed and answer.fetching for peer, answer in answers)
            is_settled = True
            if not waits or clock() >= deadline:
                self._calls.counts.misses += 1
                return offer
            await asyncio.sleep(PAUSE_SECONDS)

    def get(self, offer: Offer, url: str, key: str, pin: str, offset: int) -> AbstractAsyncContextManager[PeerResponse]:
        """See `edge.artifacts.PeerCaches`. Raises PeerError."""
        authority = next((peer.authority for peer in self._membership.living if peer.id == offer.peer), "")
        if not authority:
            raise PeerError(url, f"the edge {offer.address} is gone", offer.peer)
        return self._calls.get(authority, offer, url, key, pin, offset)

    def distrust(self, offer: Offer, key: str) -> None:
        """See `edge.artifacts.PeerCaches`."""
        self._calls.counts.damaged += 1
        self._distrusted[(offer.peer, key)] = self._membership.clock() + DISTRUST_SECONDS

    async def _ask(self, peers: list[Peer], key: str, pin: str) -> tuple[list[tuple[Peer, CacheReply]], str]:
        """Return the answers of `peers`, and the edge that may fetch the file (empty if unknown)."""
        arbiter = self._membership.arbiter(key)

        async def ask(peer: Peer) -> CacheReply | None:
            try:
                query = CacheQuery(key=key, pin=pin, claim=peer.id == arbiter)
                return await self._calls.send(peer.authority, ASK, query, CacheReply)
            except CallError:
                return None

        own = self._membership.own
        claimed = self._membership.claim(key, own) if arbiter == own else ""
        answered = await asyncio.gather(*map(ask, peers))
        answers = [(peer, answer) for peer, answer in zip(peers, answered, strict=True) if answer is not None]
        return answers, next((answer.claimed for peer, answer in answers if peer.id == arbiter), claimed)


def reply(question: CacheQuery, edge: str, cache: ArtifactCache | None, membership: Membership) -> CacheReply:
    """Return this edge's answer to a query of the edge `edge`."""
    copy, fetching = cache.held(question.key, question.pin) if cache is not None else (None, False)
    return CacheReply(
        held=HeldCopy.model_validate(asdict(copy)) if copy is not None else None,
        fetching=fetching,
        claimed=membership.claim(question.key, edge) if question.claim else "",
    )


def _worth(offer: Offer) -> tuple[bool, bool, float]:
    """Return the rank of an offer: the freshest one is the best, and a complete one is preferred."""
    return offer.copy.fresh > 0, bool(offer.copy.sha256), offer.copy.fresh
