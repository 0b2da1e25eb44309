"""Files from the caches of other edges: `edge.artifacts.PeerCaches`, and what this edge's own cache answers others.

    a file is wanted -> all that live are asked at once whether they have it, and one of them, which rendezvous hashing
                        names, whether this edge may fetch it if nobody does
        somebody has it, and knows that it is fresh     from there
        nobody, and this edge may                       from the upstream
        nobody, and another one may                     it is waited for, for `PATIENCE_SECONDS`; then from the upstream

Nobody is asked to fetch anything, or told a URL. Whatever fails here costs a moment, and never a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from typing import Final

from edge.artifacts import ArtifactCache, Copy, Offer, PeerError, PeerResponse
from edge.peers.calls import CallError, Calls
from edge.peers.claims import Claims
from edge.peers.counts import Counts
from edge.peers.membership import Membership, Peer
from edge.peers.messages import CacheQuery, CacheReply, HeldCopy
from tink.limits.newest import Newest

PATIENCE_SECONDS: Final = 10.0
"""How long another edge is waited for that is about to have the file."""
PAUSE_SECONDS: Final = 0.1
DISTRUST_SECONDS: Final = 600.0
"""For how long an edge is not asked for a file that was damaged when it came from there."""
MAX_DISTRUSTED: Final = 1024


class Caches:
    """Those of the edges that `membership` knows."""

    def __init__(self, membership: Membership, claims: Claims, calls: Calls, counts: Counts) -> None:
        self._membership = membership
        self._claims = claims
        self._calls = calls
        self._counts = counts
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
            offer = self._best(answers, key)
            if offer is not None and offer.copy.fresh > 0:
                self._counts.hits += 1
                return offer
            # Who has the claim may have begun after it was asked, and before that was decided: then it is asked again.
            waits = not is_settled and claimed not in ("", self._membership.own)
            waits |= any(peer.id == claimed and answer.fetching for peer, answer in answers)
            is_settled = True
            if not waits or clock() >= deadline:
                self._counts.misses += 1
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
        self._counts.damaged += 1
        self._distrusted[(offer.peer, key)] = self._membership.clock() + DISTRUST_SECONDS

    async def _ask(self, peers: list[Peer], key: str, pin: str) -> tuple[list[tuple[Peer, CacheReply]], str]:
        """What they have, and who may fetch it."""
        arbiter = self._membership.arbiter(key)

        async def ask(peer: Peer) -> CacheReply | None:
            try:
                return await self._calls.ask(peer.authority, CacheQuery(key=key, pin=pin, claim=peer.id == arbiter))
            except CallError:
                return None

        own = self._membership.own
        claimed = self._claims.claim(key, own) if arbiter == own else ""
        answered = await asyncio.gather(*map(ask, peers))
        answers = [(peer, answer) for peer, answer in zip(peers, answered, strict=True) if answer is not None]
        return answers, next((answer.claimed for peer, answer in answers if peer.id == arbiter), claimed)

    def _best(self, answers: Iterable[tuple[Peer, CacheReply]], key: str) -> Offer | None:
        """The freshest; of those the one that is whole."""
        now = self._membership.clock()
        offers = [
            Offer(peer.id, peer.authority.partition(":")[0], Copy(**answer.held.model_dump()))
            for peer, answer in answers
            if answer.held is not None and now >= self._distrusted.get((peer.id, key), now)
        ]
        return max(offers, key=_worth, default=None)


def reply(question: CacheQuery, edge: str, cache: ArtifactCache | None, claims: Claims) -> CacheReply:
    """What this edge answers the edge `edge`."""
    copy, fetching = cache.held(question.key, question.pin) if cache is not None else (None, False)
    return CacheReply(
        held=HeldCopy.model_validate(asdict(copy)) if copy is not None else None,
        fetching=fetching,
        claimed=claims.claim(question.key, edge) if question.claim else "",
    )


def _worth(offer: Offer) -> tuple[bool, bool, float]:
    return offer.copy.fresh > 0, bool(offer.copy.sha256), offer.copy.fresh
