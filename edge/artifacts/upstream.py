"""Asking an upstream HTTP server for an artifact: one GET, its errors in our words, and bounded in time.

Used by `edge.artifacts.cache` alone. What aiohttp raises becomes one of `edge.artifacts.errors`, so that a machine's
screen, the log and the journey say the same thing about the same trouble.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from edge.artifacts.errors import ArtifactError, BadUrlError, NotFoundError, UpstreamError, UpstreamTimeoutError

READ_SIZE = 1 << 20
"""Bytes that are read, and written to disk, in one go."""

MAX_REDIRECTS = 5


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds: for the connection, for silence while bytes are expected, and for the whole transfer."""

    connect: float = 5.0
    silence: float = 30.0
    total: float = 3600.0


class Answer:
    """The headers of an upstream's answer; the body can be read once."""

    def __init__(self, url: str, response: aiohttp.ClientResponse) -> None:
        self._url = url
        self._response = response
        self.not_modified = response.status == 304
        self.etag = response.headers.get("ETag", "")
        self.last_modified = response.headers.get("Last-Modified", "")
        self.size: int | None = response.content_length
        """Bytes of the body; None if the upstream did not say (chunked)."""

    async def body(self) -> AsyncIterator[bytes]:
        """The bytes, as they arrive. Raises UpstreamError if the upstream stops before the end."""
        received = 0
        try:
            while chunk := await self._response.content.read(READ_SIZE):
                received += len(chunk)
                yield chunk
        except aiohttp.SocketTimeoutError as error:
            raise UpstreamTimeoutError(self._url, f"stopped sending after {received} bytes") from error
        except TimeoutError as error:
            raise UpstreamTimeoutError(self._url, f"too slow: only {received} bytes when time was up") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamError(self._url, f"connection broke after {received} bytes") from error
        if self.size is not None and received != self.size:
            raise UpstreamError(self._url, f"sent {received} bytes, having announced {self.size}")


class Upstream:
    """An HTTP client for artifacts."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(
                total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.silence
            ),
            # Bytes are kept as they are named: an upstream that compresses on the fly would change size and checksum.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "tinkedge"},
            read_bufsize=READ_SIZE,
        )

    async def close(self) -> None:
        """Close idle connections."""
        await self._session.close()

    @asynccontextmanager
    async def get(self, url: str, *, etag: str = "", last_modified: str = "") -> AsyncIterator[Answer]:
        """Ask for `url`, unless it still is the version named by `etag` and `last_modified` (RFC 9110 section 13).

        Raises NotFoundError, UpstreamTimeoutError, UpstreamError, BadUrlError.
        """
        condition = {}
        if etag:
            condition["If-None-Match"] = etag
        if last_modified:
            condition["If-Modified-Since"] = last_modified
        try:
            response = await self._session.get(url, headers=condition, max_redirects=MAX_REDIRECTS)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._translated(url, error) from error
        async with response:
            _check(url, response, conditional=bool(condition))
            yield Answer(url, response)

    def _translated(self, url: str, error: Exception) -> ArtifactError:
        """What an operator should read about a request that got no answer."""
        if isinstance(error, (aiohttp.ConnectionTimeoutError, aiohttp.ServerTimeoutError, TimeoutError)):
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                return UpstreamTimeoutError(url, f"no connection within {self._timeouts.connect:g} s")
            return UpstreamTimeoutError(url, f"no answer within {self._timeouts.silence:g} s")
        if isinstance(error, aiohttp.TooManyRedirects):
            return UpstreamError(url, f"more than {MAX_REDIRECTS} redirects")
        if isinstance(error, (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)):
            return BadUrlError(url, "not an http or https URL that can be fetched")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return UpstreamError(url, f"host name {error.host} can't be resolved")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return UpstreamError(url, "its TLS certificate is not trusted by this host")
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno
            return UpstreamError(url, f"no connection: {os.strerror(number) if number else error.os_error}")
        if isinstance(error, (aiohttp.ClientError, OSError)):
            return UpstreamError(url, f"no usable answer: {error or type(error).__name__}")
        return BadUrlError(url, f"can't be fetched: {error}")


def _check(url: str, response: aiohttp.ClientResponse, *, conditional: bool) -> None:
    if response.status in (404, 410):
        raise NotFoundError(url, f"{response.status} {response.reason}")
    if response.status == 304 and conditional:
        return
    if response.status != 200:
        raise UpstreamError(url, f"{response.status} {response.reason}")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise UpstreamError(url, f"sent Content-Encoding {encoding} though identity was asked for")
    if response.content_length == 0:
        raise UpstreamError(url, "an empty file")
