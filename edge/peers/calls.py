"""Calls to other edges: signed, and bounded in time and size. A call that fails raises CallError or PeerError."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import aiohttp

from edge.artifacts.artifact import PeerError
from edge.artifacts.upstream import Offer, PeerResponse, Timeouts
from edge.peers.messages import (
    ARTIFACTS,
    HEADER,
    MAX_MESSAGE_BYTES,
    MessageError,
    PeerMessage,
    Signatures,
    SignedRequest,
    StrangerReason,
)
from tink.errors import TinkedgeError
from tink.printable import printable


@dataclass(slots=True)
class Counts:
    """Counters of the traffic with other edges since the start; `edge.peers.site` makes metrics of them.

    `hits` and `misses` count files that other edges were queried for; `refused` counts requests that were not from an
    edge of this site.
    """

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    parent_hits: int = 0
    parent_misses: int = 0
    """Requested files that the upstream edge could not get; `parent_hits`: files that it had."""
    served: int = 0
    served_bytes: int = 0
    sent: int = 0
    """Events sent to other edges, counted for each receiver."""
    failed_batches: int = 0
    """Batches that an edge did not accept."""
    received: int = 0
    """New events received from other edges and servers."""
    refused: Counter[StrangerReason] = field(default_factory=Counter)


CALL_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 1.0
CONNECTIONS: Final = 16
"""Maximum number of connections to one edge; an edge accepts 64 from one address."""
SILENCE_SECONDS: Final = 10.0
"""Maximum pause during the transfer of a file. A machine waits meanwhile, and other edges may have the file."""
READ_BYTES: Final = 1 << 20
_MAX_REASON: Final = 200

T = TypeVar("T", bound=PeerMessage)


class CallError(TinkedgeError):
    """A call to another edge failed, or its answer is not valid; the message says why."""


class NotListeningError(CallError):
    """No process listens at the address."""


class Calls:
    """The client side of the messages between edges. Call `start` before use and `stop` after."""

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures
        self.counts = Counts()
        self._timeouts = Timeouts()
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the HTTP session; needs a running event loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": "tinkedge", "Accept-Encoding": "identity"},
            read_bufsize=READ_BYTES,
        )

    async def stop(self) -> None:
        """Close connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def get(
        self, authority: str, offer: Offer, url: str, key: str, pin: str, offset: int
    ) -> AsyncIterator[PeerResponse]:
        """Open the bytes of a copy from `offset` on. Raises PeerError."""
        target = f"{ARTIFACTS}/{key}/{offer.copy.version}" + (f"?sha256={pin}" if pin else "")
        span = f"bytes={offset}-" if offset else ""
        request = SignedRequest("GET", authority, target, range=span)
        header, nonce = self.signatures.request(request)
        headers = {HEADER: header} | ({"Range": span} if span else {})
        limits = aiohttp.ClientTimeout(
            total=self._timeouts.total, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        )
        try:
            response = await self._open().get(
                f"http://{authority}{target}", headers=headers, timeout=limits, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError) as error:
            raise PeerError(url, f"the edge {offer.address} gives nothing: {_why(error)}", offer.peer) from error
        async with response:
            if response.status != (206 if span else 200):
                raise PeerError(url, f"the edge {offer.address} has it no more ({response.status})", offer.peer)
            head = f"{response.content_length}".encode()
            if not self.signatures.is_response(nonce, response.status, head, response.headers.get(HEADER, "")):
                raise PeerError(url, f"the answer of {offer.address} is not signed by an edge of this site", offer.peer)
            is_signed = partial(self.signatures.is_digest, nonce)
            yield PeerResponse(url, response, self._timeouts, offer, offset, is_signed)

    async def send(
        self, authority: str, target: str, message: PeerMessage | bytes, reply: type[T], extra_seconds: float = 0.0
    ) -> T:
        """Send a message to the edge at `authority` (`address:port`), and return its reply. Raises CallError."""
        body = message if isinstance(message, bytes) else message.encoded()
        header, nonce = self.signatures.request(SignedRequest("POST", authority, target, body))
        limits = aiohttp.ClientTimeout(total=CALL_SECONDS + extra_seconds, sock_connect=CONNECT_SECONDS)
        headers = {HEADER: header, "Content-Type": "application/json"}
        try:
            async with self._open().post(
                f"http://{authority}{target}", data=body, headers=headers, timeout=limits, allow_redirects=False
            ) as response:
                content = b""
                while chunk := await response.content.read(MAX_MESSAGE_BYTES + 1 - len(content)):
                    content += chunk
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                raise NotListeningError("nothing listens there") from error
            raise CallError(_why(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise CallError(_why(error)) from error
        if response.status != 200:
            reason = printable(content[:_MAX_REASON].decode("utf-8", "replace").strip())
            raise CallError(f"it answers {response.status}: {reason}")
        if not self.signatures.is_response(nonce, response.status, content, response.headers.get(HEADER, "")):
            raise CallError("its answer is not signed by an edge of this site: is its --metadata-token-key another?")
        try:
            return reply.read(content)
        except MessageError as error:
            raise CallError(f"its answer is of another version: {error}") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise OSError("this edge is stopping")
        return self._session


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or "no connection"
    return "the connection broke"
