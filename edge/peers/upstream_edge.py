"""The upstream edge: an edge of another site that this one fetches kernels and initrds through (`--upstream-edge`).

    no edge of this site has the file         the upstream edge sends it: from its cache, or from the OSIE's URL,
                                              which it fetches once for all edges that ask
    the upstream edge is away or can't        this edge fetches the file from the origin at once

The upstream edge is a parent (RFC 2187 section 2): it gets a URL and fetches it. Edges that have the key may request
that from an edge with `--downstream-edges`, within the limits of that edge.

Loops: each edge reports the edges that it fetches through, itself first (like BGP's AS_PATH, RFC 4271 section 9.1.2).
An edge that finds itself in that list uses the origin, and no edge fetches for an edge that it fetches through. A
request that is sent before the list is known waits `PATIENCE_SECONDS`, then the origin is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Final

from edge.artifacts.artifact import ArtifactError, NotFoundError, PeerError
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.shared import SCHEME
from edge.artifacts.store import key_of
from edge.artifacts.upstream import Copy, Offer, PeerCaches, PeerResponse
from edge.peers.calls import CallError, Calls
from edge.peers.messages import (
    CHAIN,
    FETCH,
    MAX_CHAIN,
    FetchQuery,
    FetchReply,
    HeldCopy,
    MessageError,
    Signatures,
    UpstreamChain,
)
from tink.files.key_file import KeyFile

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
"""Interval of the calls that check whether the upstream edge answers."""
PATIENCE_SECONDS: Final = 10.0
"""Maximum time until the upstream edge has the first bytes of a file; then the origin is used."""
DISTRUST_SECONDS: Final = 600.0
_PARENT: Final = "upstream edge"
"""The id of the upstream edge. The ids of peers are hexadecimal."""
_PAUSE_SECONDS: Final = 0.1


@dataclass(eq=False)
class UpstreamEdge:
    """Fetches through the edge at `authority` (`address:port`), after `siblings`, the edges of this site."""

    authority: str
    calls: Calls
    siblings: PeerCaches
    _: KW_ONLY
    clock: Callable[[], float]
    announce: Callable[[bool, str, str], None]
    """`announce(well, line, authority)` is called when the upstream edge appears, goes or loops."""
    _beyond: tuple[str, ...] = field(default=(), init=False)
    _trouble: str | None = field(default="it has not been asked yet", init=False)
    _distrusted: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def chain(self) -> tuple[str, ...]:
        """The edges that this one fetches through; this one is first."""
        return (self.calls.signatures.edge, *self._beyond)[:MAX_CHAIN]

    @property
    def is_used(self) -> bool:
        """True while files are fetched through the upstream edge."""
        return self._trouble is None

    # --- the checks of the upstream edge ---

    async def run(self) -> None:
        """Check the upstream edge until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Check the upstream edge once."""
        trouble: str | None = None
        try:
            self._beyond = (await self.calls.send(self.authority, CHAIN, UpstreamChain(), UpstreamChain)).edges
        except CallError as error:
            trouble = str(error)
        else:
            if self.calls.signatures.edge in self._beyond:
                trouble = "it fetches through this edge itself: one of them must not have --upstream-edge"
        self._set(trouble)

    def _set(self, trouble: str | None) -> None:
        before, self._trouble = self._trouble, trouble
        if trouble == before:
            return
        line = f"the upstream edge at {self.authority} is not used, files come from their origins: {trouble}"
        if trouble is None:
            line = f"the upstream edge at {self.authority} is there: files are fetched through it"
        self.announce(trouble is None, line, self.authority)

    # --- `edge.artifacts.PeerCaches` ---

    async def find(self, key: str, url: str, pin: str, avoided: Collection[str]) -> Offer | None:
        """Return a copy of this site, or else the upstream edge's, which may have to fetch it first.

        Raises NotFoundError for a file that only edges have, if the upstream edge does not have it either.
        """
        offer = await self.siblings.find(key, url, pin, avoided)
        if (offer is not None and offer.copy.fresh > 0) or not self.is_used or _PARENT in avoided:
            return offer
        if self.clock() < self._distrusted.get(key, 0.0):
            return offer
        query = FetchQuery(url=url, pin=pin)
        try:
            reply = await self.calls.send(self.authority, FETCH, query, FetchReply, PATIENCE_SECONDS)
        except CallError as error:
            self._set(str(error))
            return offer
        if reply.missing:
            raise NotFoundError(url, f"the edge at {self.authority} has no such file either")
        if reply.held is None:
            log.info("the upstream edge at %s can't fetch a file: %s", self.authority, reply.trouble or "not yet")
            self.calls.counts.parent_misses += 1
            return offer
        self.calls.counts.parent_hits += 1
        address = self.authority.partition(":")[0]
        return Offer(_PARENT, address, Copy(**reply.held.model_dump()), is_parent=True)

    def get(self, offer: Offer, url: str, key: str, pin: str, offset: int) -> AbstractAsyncContextManager[PeerResponse]:
        """Open the bytes of the offered copy. Raises PeerError."""
        if not offer.is_parent:
            return self.siblings.get(offer, url, key, pin, offset)
        if not self.is_used:
            raise PeerError(url, f"the upstream edge {offer.address} is gone", offer.peer)
        return self.calls.get(self.authority, offer, url, key, pin, offset)

    def distrust(self, offer: Offer, key: str) -> None:
        """Use the origin for this file for a while: the copy did not match its checksum."""
        if not offer.is_parent:
            self.siblings.distrust(offer, key)
            return
        self.calls.counts.damaged += 1
        now = self.clock()
        self._distrusted = {name: until for name, until in self._distrusted.items() if until > now}
        self._distrusted[key] = now + DISTRUST_SECONDS


async def probe(authority: str, keys: KeyFile, now: Callable[[], float]) -> None:
    """Check that the edge at `authority` fetches for an edge with these keys. Raises CallError, KeyFileError."""
    calls = Calls(Signatures(keys, now))
    await calls.start()
    try:
        await calls.send(authority, CHAIN, UpstreamChain(), UpstreamChain)
    finally:
        await calls.stop()


# --- its own side -----------------------------------------------------------------------------------------------------


async def fetched(
    question: FetchQuery,
    asked_by: str,
    own_chain: Collection[str],
    has_upstream: bool,
    cache: ArtifactCache,
    clock: Callable[[], float],
) -> FetchReply:
    """Fetch a file for the edge `asked_by` and return the answer: the file is here, or in transfer.

    `own_chain` are the edges that this one fetches through. `has_upstream`: this edge has an upstream edge, even if
    that one does not answer.

    Raises MessageError for a URL that no edge may request.
    """
    of_edges = question.url.startswith(SCHEME)
    if not of_edges and not question.url.startswith(("http://", "https://")):
        raise MessageError("url: only http and https are fetched for other edges")
    if of_edges:
        try:
            lent = await cache.lend(question.url, question.pin)
        except ArtifactError as error:
            return FetchReply(trouble=error.reason[:200])
        if lent is not None:
            return FetchReply(held=HeldCopy.model_validate(asdict(lent)))
        if not has_upstream:
            return FetchReply(missing=True, trouble="there is no such file")
    if asked_by in own_chain:
        return FetchReply(trouble="that edge is one which this one fetches through itself")
    deadline = clock() + PATIENCE_SECONDS
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with await cache.open(question.url, sha256=question.pin):
                key = key_of(question.url, question.pin)
                while True:
                    copy, _ = cache.held(key, question.pin)
                    if copy is not None or clock() >= deadline:
                        break
                    await asyncio.sleep(_PAUSE_SECONDS)  # Another edge sends it, so it is complete in a moment.
    except ArtifactError as error:
        missing = of_edges and isinstance(error, NotFoundError)
        return FetchReply(missing=missing, trouble=error.reason[:200])
    except TimeoutError:
        return FetchReply(trouble=f"no answer from its origin within {PATIENCE_SECONDS:g} s")
    return FetchReply(held=HeldCopy.model_validate(asdict(copy)) if copy is not None else None)
