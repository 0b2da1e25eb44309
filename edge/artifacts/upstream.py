"""HTTP requests for artifacts: to upstream servers, and to the caches of the other edges of the site.

`Upstream.get` sends one GET, bounded in time and memory. Each error of aiohttp becomes an `ArtifactError`, so that the
machine's screen, the log and the journey give the same reason for the same problem.

`PeerCaches` is the interface to the other edges, which `edge.peers` implements. An edge only sends a peer what it has,
and fetches nothing for it (RFC 9111 section 5.2.1.7, `only-if-cached`; RFC 2187 calls it a sibling). So no request goes
in a circle. Only an upstream edge fetches for others (`edge.peers.upstream_edge`). A peer's body ends with a trailer of
`TRAILER_BYTES`: the SHA-256 of the whole file with its signature.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Protocol
from urllib.parse import urlsplit

import aiohttp

from edge.artifacts.artifact import (
    ArtifactError,
    BadUrlError,
    NotFoundError,
    PeerError,
    RefusedUpstreamError,
    Source,
    UpstreamError,
    UpstreamTimeoutError,
    WrongContentError,
    foreign,
)
from edge.artifacts.checksum import MAX_SIDECAR_BYTES, sidecar_url
from tink.net.outbound import Reach, UnusableProxyError, WastefulAnswerError, refusal, session, target

READ_BYTES = 1 << 20
"""Bytes that are read and written at once. A download holds a few times as many in memory."""

MAX_REDIRECTS = 5

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_STRONG = re.compile(r'"[^"]*"')
_SURE_AFTER = timedelta(seconds=60)
"""Minimum age of a file whose Last-Modified is a strong validator. A younger file may change again within the same
second (RFC 9110 section 8.8.2.2)."""

_WASTEFUL = "no usable answer: most of what the upstream sends is no file, but headers and the like"

_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<")
_SURELY_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype html|html)[\s>]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The limits of requests to an upstream, in seconds.

    connect: for the connection.
    silence: for the answer, and between two pieces of the body.
    total: for a download with all its retries.
    patience: for the answer if a stored file is still valid; after that the machine gets the stored file.
    slowest, slow_window: less than `slowest` bytes a second over `slow_window` of waiting counts as silence.
    sidecar: for the file with the checksum.
    retries, pause: an interrupted download is resumed at most `retries` times without progress, the first time after
        `pause`, then after twice as long each time.
    """

    connect: float = 5.0
    silence: float = 30.0
    total: float = 3600.0
    patience: float = 3.0
    slowest: float = 1024.0
    slow_window: float = 60.0
    sidecar: float = 10.0
    retries: int = 4
    pause: float = 0.5


@dataclass(frozen=True, slots=True)
class Known:
    """The part of a file that is on disk already: all of it (`offset` 0), or its start up to `offset`.

    `validator` goes into If-Range (RFC 9110 section 13.1.5). `size` is the expected size of the whole file.
    """

    etag: str = ""
    last_modified: str = ""
    validator: str = ""
    offset: int = 0
    size: int | None = None

    @property
    def conditions(self) -> dict[str, str]:
        """The headers of a conditional request (RFC 9110 sections 13 and 14)."""
        if self.offset:
            return {"Range": f"bytes={self.offset}-", "If-Range": self.validator}
        conditions = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in conditions.items() if value}


class RangeError(UpstreamError):
    """The upstream can't resume a download, or not reliably: the whole file has to be fetched again."""


class UpstreamResponse:
    """An upstream's answer: its headers, and its body, which can be read once.

    `start` is the offset of the body's first byte, `length` the size of the body, and `size` that of the whole file
    (None: unknown). `span` has the numbers of Content-Range.
    """

    def __init__(self, url: str, response: aiohttp.ClientResponse, timeouts: Timeouts) -> None:
        headers = response.headers
        self._url = url
        self._response = response
        self._timeouts = timeouts
        self._first = b""
        self.not_modified = response.status == 304
        self.etag = headers.get("ETag", "")
        self.last_modified = headers.get("Last-Modified", "")
        self.validator = strong_validator(self.etag, self.last_modified, headers.get("Date", ""))
        self.start = 0
        self.size = self.length = response.content_length
        found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", "")) if response.status == 206 else None
        self.span = (int(found[1]), int(found[2]), int(found[3])) if found is not None else None
        if self.span is not None:
            self.start, _, self.size = self.span

    async def first(self) -> None:
        """Wait for the body's first bytes, and check that they are not a web page. Raises UpstreamError."""
        self._first = await self._read(0)
        if self.start:
            return
        if not self._first:
            raise WrongContentError(self._url, "an empty file")
        kind = self._response.content_type
        if _SURELY_PAGE.match(self._first) or (kind in _PAGE_TYPES and _PAGE.match(self._first)):
            raise WrongContentError(self._url, f"the upstream answered with a web page ({foreign(kind)}), not a file")

    async def body(self, clock: Callable[[], float] = time.monotonic) -> AsyncGenerator[bytes, None]:
        """Yield the bytes as they arrive. Raises UpstreamError if they end too early or arrive too slowly."""
        received, waited, of_window = 0, 0.0, 0
        chunk, self._first = self._first, b""
        while received != self.length:
            if not chunk:
                asked = clock()
                chunk = await self._read(received)
                waited += clock() - asked
                if not chunk:
                    break
            received += len(chunk)
            of_window += len(chunk)
            yield chunk
            chunk = b""
            if waited > self._timeouts.slow_window:
                if of_window < self._timeouts.slowest * waited:
                    raise UpstreamTimeoutError(self._url, f"too slow: {of_window} bytes in {waited:.0f} s")
                waited, of_window = 0.0, 0
        if self.length is not None and received != self.length:
            raise UpstreamError(self._url, f"sent {received} bytes, having announced {self.length}")

    async def _read(self, received: int) -> bytes:
        try:
            return await self._response.content.read(READ_BYTES)
        except WastefulAnswerError as error:
            raise WrongContentError(self._url, _WASTEFUL) from error
        except aiohttp.SocketTimeoutError as error:
            raise UpstreamTimeoutError(self._url, f"stopped sending after {received} bytes") from error
        except TimeoutError as error:
            raise UpstreamTimeoutError(self._url, f"too slow: only {received} bytes when time was up") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(self._url, f"connection broke after {received} bytes") from error


_PAGE_TYPES = ("text/html", "application/xhtml+xml")


class Upstream:
    """An HTTP client for artifacts."""

    def __init__(self, timeouts: Timeouts, reach: Reach) -> None:
        """`reach` decides which addresses may be connected to, also after name resolution and redirects."""
        self._timeouts = timeouts
        self._session = session(
            reach,
            trust_env=True,  # HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as for other programs of this host
            # Store the file's own bytes: compression on the fly would change size and checksum.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "tinkedge"},
            read_bufsize=READ_BYTES,
        )

    async def close(self) -> None:
        """Close idle connections."""
        await self._session.close()

    @asynccontextmanager
    async def get(self, url: str, known: Known, *, seconds: float | None = None) -> AsyncIterator[UpstreamResponse]:
        """Request `url` if it differs from the `known` version, or the missing rest of it.

        `seconds` limits the whole request. Raises NotFoundError, UpstreamTimeoutError, UpstreamError, BadUrlError;
        RangeError if the file has to be requested from the start.
        """
        if not url.startswith(("http://", "https://")):
            raise UpstreamError(url, "no other edge that can be asked has it, and it has no origin")
        timeouts = self._timeouts
        limits = aiohttp.ClientTimeout(
            total=timeouts.total if seconds is None else seconds,
            sock_connect=timeouts.connect,
            sock_read=timeouts.silence,
        )
        try:
            asked = target(url, known.conditions)
            response = await self._session.get(**asked, max_redirects=MAX_REDIRECTS, timeout=limits)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._translated(url, error) from error
        async with response:
            _check(url, response, known)
            answer = UpstreamResponse(url, response, timeouts)
            if response.status == 206:
                _check_range(url, answer, known)
            yield answer

    async def sidecar(self, url: str) -> bytes:
        """Return the file with the checksum of `url`; empty if there is none. Raises UpstreamError."""
        try:
            async with asyncio.timeout(self._timeouts.sidecar):
                async with self._session.get(**target(sidecar_url(url)), max_redirects=MAX_REDIRECTS) as response:
                    # Any 4xx means that there is none: some upstreams answer 403 for all missing files.
                    if 400 <= response.status < 500:
                        return b""
                    if response.status != 200:
                        raise UpstreamError(url, f"its checksum file: {response.status}")
                    content = b""
                    while chunk := await response.content.read(MAX_SIDECAR_BYTES - len(content)):
                        content += chunk
                    return content
        except TimeoutError as error:
            raise UpstreamTimeoutError(url, "its checksum file does not come") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UpstreamError(url, f"its checksum file: {type(error).__name__}") from error

    def _translated(self, url: str, error: Exception) -> ArtifactError:
        """Return the error for a failed request, in words for an operator."""
        # The library's own text is never used: it may contain the URL with its secrets.
        if isinstance(error, WastefulAnswerError):
            return WrongContentError(url, _WASTEFUL)
        if (refused := refusal(error)) is not None:
            allow = (
                f", from which nothing is fetched; the edge's operator may allow that with --allow-upstream "
                f"{refused.allowable}, or put the file into --osie-dir"
            )
            return RefusedUpstreamError(url, f"{refused}{allow if refused.allowable else ''}")
        if isinstance(error, UnusableProxyError):
            return UpstreamError(url, str(error))
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return UpstreamError(url, f"no connection to the proxy {error.host}:{error.port}: {_strerror(error)}")
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return UpstreamError(url, f"the proxy refuses to connect: {error.status} {foreign(error.message)}")
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return UpstreamTimeoutError(url, f"no connection within {self._timeouts.connect:g} s")
        if isinstance(error, TimeoutError):
            return UpstreamTimeoutError(url, f"no answer within {self._timeouts.silence:g} s")
        if isinstance(error, aiohttp.TooManyRedirects):
            return UpstreamError(url, f"more than {MAX_REDIRECTS} redirects")
        if isinstance(error, (aiohttp.InvalidUrlRedirectClientError, aiohttp.NonHttpUrlRedirectClientError)):
            return UpstreamError(url, "redirects to what is not an http or https URL")
        if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
            return BadUrlError(url, "not an http or https URL that can be fetched")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return UpstreamError(url, f"host name {error.host} can't be resolved")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return UpstreamError(url, "its TLS certificate is not trusted by this host")
        if isinstance(error, aiohttp.ClientSSLError):
            return UpstreamError(url, "no TLS connection: it does not speak TLS, or not a version of it that we do")
        if isinstance(error, aiohttp.ClientConnectorError):
            return UpstreamError(url, f"no connection: {_strerror(error)}")
        if isinstance(error, aiohttp.ClientResponseError):
            return UpstreamError(url, f"no usable answer: {foreign(' '.join(error.message.split()))}")
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return UpstreamError(url, "no usable answer: it closed the connection")
        if isinstance(error, (aiohttp.ClientError, OSError)):
            number = error.errno if isinstance(error, OSError) else None
            return UpstreamError(url, f"no usable answer: {os.strerror(number) if number else type(error).__name__}")
        return BadUrlError(url, f"can't be fetched: {type(error).__name__}")


def _strerror(error: aiohttp.ClientConnectorError) -> str:
    number = error.os_error.errno
    return os.strerror(number) if number else str(error.os_error)


def strong_validator(etag: str, last_modified: str, date: str) -> str:
    """Return the validator for If-Range (RFC 9110 sections 8.8.1, 8.8.2.2, 13.1.5), or an empty string."""
    if etag:
        return etag if _STRONG.fullmatch(etag) else ""
    try:
        sure = parsedate_to_datetime(date) - parsedate_to_datetime(last_modified) >= _SURE_AFTER
    except (TypeError, ValueError):  # no date, or one with and one without a time zone
        return ""
    return last_modified if sure else ""


def _check(url: str, response: aiohttp.ClientResponse, known: Known) -> None:
    if response.status in (404, 410):
        raise NotFoundError(url, _status(response))
    if response.status == 304 and not known.offset and (known.etag or known.last_modified):
        return
    if response.status == 416 and known.offset:
        raise RangeError(url, _status(response))
    if response.status != 200 and not (response.status == 206 and known.offset):
        raise UpstreamError(url, _status(response))
    for encoding in map(str.strip, ",".join(response.headers.getall("Content-Encoding", ())).split(",")):
        if not _is_of_the_file(encoding, url):
            raise WrongContentError(url, f"sent Content-Encoding {foreign(encoding)} though identity was asked for")
    if response.content_length == 0:
        raise WrongContentError(url, "an empty file")


def _is_of_the_file(encoding: str, url: str) -> bool:
    """Return True if a Content-Encoding describes the file itself, whose bytes are stored unchanged.

    Apache sets `x-gzip` by a file's name (AddEncoding) or its first bytes (mod_mime_magic), for example for initrd.img.
    S3 and others repeat the value of the upload. Compression on the fly is `gzip`, for any file.
    """
    name = encoding.lower()
    endings = {"gzip": (".gz", ".tgz"), "zstd": (".zst",), "xz": (".xz",), "bzip2": (".bz2",)}
    path = urlsplit(url).path.lower()
    return name in ("", "identity", "none", "x-gzip", "x-xz", "x-bzip2") or path.endswith(endings.get(name, ("\0",)))


def _check_range(url: str, answer: UpstreamResponse, known: Known) -> None:
    """Check that a 206 continues the known bytes (RFC 9110 sections 14.4, 15.3.7). Raises RangeError."""
    if answer.span is None:
        raise RangeError(url, "sent a part of the file, and not which")
    first, last, size = answer.span
    if (first, last) != (known.offset, size - 1) or answer.length not in (None, size - first):
        raise RangeError(url, f"sent bytes {first}-{last} of {size} when all from {known.offset} on were asked for")
    if size != known.size:
        raise RangeError(url, f"the file has {size} bytes now, not {known.size}")
    # Some upstreams ignore If-Range.
    if (answer.etag and answer.etag != known.etag) or (
        not answer.etag and answer.last_modified and answer.last_modified != known.last_modified
    ):
        raise RangeError(url, "the file has changed")


def _status(response: aiohttp.ClientResponse) -> str:
    return f"{response.status} {foreign(response.reason or '')}".rstrip()


DIGEST_CHARACTERS: Final = 64
TRAILER_BYTES: Final = DIGEST_CHARACTERS + 43
"""The SHA-256 in hexadecimal digits, and its signature (HMAC-SHA256, base64url)."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Another edge's copy of an artifact.

    version: identifies the bytes at that edge.
    size: in bytes.
    etag, last_modified: from the upstream.
    fresh: seconds for which the upstream need not be asked if the file has changed.
    sha256: empty while the copy is incomplete.
    """

    version: str
    size: int
    etag: str = ""
    last_modified: str = ""
    fresh: float = 0.0
    sha256: str = ""

    def same_as(self, etag: str, last_modified: str, size: int | None) -> bool:
        """Return True if the copy certainly has the bytes of an upstream's version (strong comparison, RFC 9110 section
        8.8.3.2)."""
        if size is not None and size != self.size:
            return False
        if etag or self.etag:
            return bool(strong_validator(etag, "", "")) and etag == self.etag
        return bool(last_modified) and last_modified == self.last_modified and size == self.size


@dataclass(frozen=True, slots=True)
class Offer:
    """The copy of the edge `peer`, shown to people as `address`.

    `is_parent` is True for an upstream edge (`--upstream-edge`), which fetches missing files, so it may still be
    receiving the file that it sends.
    """

    peer: str
    address: str
    copy: Copy
    is_parent: bool = False

    @property
    def source(self) -> Source:
        """The source of the bytes."""
        return Source.UPSTREAM_EDGE if self.is_parent else Source.PEER


class PeerResponse(UpstreamResponse):
    """A peer's answer, which is read like that of an upstream. `sha256` is set after the body was read."""

    def __init__(
        self,
        url: str,
        response: aiohttp.ClientResponse,
        timeouts: Timeouts,
        offer: Offer,
        start: int,
        signed: Callable[[str, str], bool],
    ) -> None:
        """`signed(sha256, signature)` returns True if the peer has signed the trailer. Raises PeerError."""
        super().__init__(url, response, timeouts)
        copy = offer.copy
        self._peer = offer.peer
        self._signed = signed
        self.sha256 = ""
        self.not_modified = False
        self.etag, self.last_modified = copy.etag, copy.last_modified
        self.validator = strong_validator(copy.etag, "", "")
        self.start, self.size, self.length = start, copy.size, copy.size - start
        if response.content_length != self.length + TRAILER_BYTES:
            raise PeerError(url, f"the edge {offer.address} sends another length than it offered", offer.peer)

    async def first(self) -> None:
        """Do nothing: the peer has checked the first bytes."""

    async def body(self, clock: Callable[[], float] = time.monotonic) -> AsyncGenerator[bytes, None]:
        """Yield the file's bytes, and set `sha256` at the end. Raises UpstreamError."""
        left = self.length or 0
        tail = b""
        self.length = left + TRAILER_BYTES
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
    """The caches of the other edges."""

    async def find(self, key: str, url: str, pin: str, avoided: Collection[str]) -> Offer | None:
        """Return the best copy of the artifact `key` that a peer outside `avoided` has.

        `key` belongs to `url` and the checksum `pin` (may be empty). A file that another URL brought to the peer does
        not count. If the result is None or a copy that is not fresh, this edge has to ask the upstream. The call may
        take a while if another edge is about to have the file.
        """

    def get(self, offer: Offer, url: str, key: str, pin: str, offset: int) -> AbstractAsyncContextManager[PeerResponse]:
        """Request the bytes from `offset` on. Raises PeerError. `url` is for messages and is not sent to the peer."""

    def distrust(self, offer: Offer, key: str) -> None:
        """Do not ask that peer for this artifact for a while: its bytes did not match its offer."""


class NoPeers(PeerCaches):
    """The caches of an edge without others."""

    async def find(self, _key: str, _url: str, _pin: str, _avoided: Collection[str]) -> None:
        """Return None."""

    def get(self, _offer: Offer, url: str, *_: object) -> AbstractAsyncContextManager[PeerResponse]:
        """Raise PeerError."""
        raise PeerError(url, "there is no other edge")

    def distrust(self, _offer: Offer, _key: str) -> None:
        """Do nothing."""
        return
