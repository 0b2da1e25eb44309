"""The caches of the other edges of a site, as a flight sees them: who has a file, and its bytes from there.

`edge.peers` finds the edges and speaks with them; what it has to offer here is `PeerCaches`. A peer is asked for what
it has and never made to fetch anything (RFC 9111 section 5.2.1.7, `only-if-cached`; RFC 2187 calls it a sibling), so no
question goes in a circle: what it has is whole, or comes to it from the upstream itself at this moment. The one edge
that fetches for this one, a parent, is `edge.peers.upstream_edge`.

The body that a peer sends ends with a trailer of `TRAILER_BYTES`: its signature of the SHA-256 of the whole file.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp

from edge.artifacts.errors import PeerError
from edge.artifacts.fetch.upstream import Timeouts, UpstreamResponse, strong_validator

DIGEST_CHARACTERS: Final = 64
TRAILER_BYTES: Final = DIGEST_CHARACTERS + 43
"""The SHA-256 in hexadecimal digits, and its signature (HMAC-SHA256, base64url)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """What an edge has of an artifact. `version` names these bytes there, `size` is in bytes.

    `etag` and `last_modified` are the upstream's; `sha256` is empty as long as it is not whole. For `fresh` seconds the
    upstream need not be asked whether it is still the right one; 0: it should be.
    """

    version: str
    size: int
    etag: str = ""
    last_modified: str = ""
    fresh: float = 0.0
    sha256: str = ""

    def same_as(self, etag: str, last_modified: str, size: int | None) -> bool:
        """Whether these are surely the bytes that an upstream named so (RFC 9110 section 8.8.3.2, strongly)."""
        if size is not None and size != self.size:
            return False
        if etag or self.etag:
            return bool(strong_validator(etag, "", "")) and etag == self.etag
        return bool(last_modified) and last_modified == self.last_modified and size == self.size


@dataclass(frozen=True, slots=True)
class Offer:
    """The copy of the edge `peer`, which is shown as `address` to people. `is_parent`: that edge fetches what it has
    not (`--upstream-edge`), so it may be sending while it receives."""

    peer: str
    address: str
    copy: Copy
    is_parent: bool = False


class PeerResponse(UpstreamResponse):
    """A peer's answer, which is read as that of an upstream. `sha256` is there when the body has been read."""

    def __init__(
        self,
        url: str,
        response: aiohttp.ClientResponse,
        timeouts: Timeouts,
        offer: Offer,
        start: int,
        signed: Callable[[str, str], bool],
    ) -> None:
        """`signed(sha256, signature)` says whether the trailer is the peer's. Raises PeerError."""
        super().__init__(url, response, timeouts)
        copy = offer.copy
        self._peer = offer.peer
        self._signed = signed
        self.sha256 = ""
        self.not_modified = False
        self.etag, self.last_modified = copy.etag, copy.last_modified
        self.validator = strong_validator(copy.etag, "", "")
        self.start, self.size, self._length = start, copy.size, copy.size - start
        if response.content_length != self._length + TRAILER_BYTES:
            raise PeerError(url, f"the edge {offer.address} sends another length than it offered", offer.peer)

    async def first(self) -> None:
        """Nothing is to be looked at: the peer has."""

    async def body(self, clock: Callable[[], float] = time.monotonic) -> AsyncGenerator[bytes, None]:
        """The file's bytes; at their end, `sha256` is known. Raises UpstreamError."""
        left = self._length or 0
        tail = b""
        self._length = left + TRAILER_BYTES
        async for chunk in super().body(clock):
            file, tail = chunk[:left], tail + chunk[left:]
            left -= len(file)
            if file:
                yield file
        sha256, signature = tail[:DIGEST_CHARACTERS].decode("latin-1"), tail[DIGEST_CHARACTERS:].decode("latin-1")
        if not self._signed(sha256, signature):
            raise PeerError(self._url, "another edge has not signed what it sent", self._peer)
        self.sha256 = sha256


class PeerCaches(Protocol):
    """The other edges."""

    async def find(self, key: str, url: str, pin: str, avoided: Collection[str]) -> Offer | None:
        """Return the best copy of the artifact `key` that a peer outside `avoided` has.

        `key` belongs to `url` and the checksum `pin` (may be empty). A file that another URL brought to the peer does
        not count. If the result is None or a copy that is not fresh, this edge has to ask the upstream. The call may
        take a while if another edge is about to have the file.
        """

    def get(self, offer: Offer, url: str, key: str, pin: str, offset: int) -> AbstractAsyncContextManager[PeerResponse]:
        """The bytes from `offset` on. Raises PeerError. `url` is for messages, and not told to the peer."""

    def distrust(self, offer: Offer, key: str) -> None:
        """What came was not what it said: ask that peer for it no more, for a while."""
