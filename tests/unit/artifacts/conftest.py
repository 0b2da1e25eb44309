"""A cache in a temporary directory, and an upstream on loopback that can misbehave in every way that upstreams do."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from email.utils import formatdate
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from edge.artifacts import Artifact, ArtifactCache, Progress, Source, Timeouts
from tink.net.outbound import Reach

THIS_HOST = Reach(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
"""The upstreams of these tests are on loopback."""

Make = Callable[..., ArtifactCache]
UpstreamResponse = Callable[[web.Request], Awaitable[web.StreamResponse]]

CHANGED = 1_700_000_000.0
"""When the upstream's file was last modified."""


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Upstream:
    """Serves `content` under every path, and `sidecar` under every path that ends in .sha256 (empty: 404).

    `mode` says how to misbehave; `answers` what to do instead, a request each. `headers_gate` holds the answer back,
    `gate` its second half. `ranges`: whether it knows Range; `lie`: what is added to the length.
    """

    def __init__(self) -> None:
        self.content = bytes(range(256)) * 4096  # 1 MiB
        self.mode = ""
        self.answers: list[UpstreamResponse] = []
        self.etag = '"v1"'
        self.modified = 0.0
        self.ranges = True
        self.kind = "application/octet-stream"
        self.sidecar = b""
        self.sidecar_status = 200
        self.gate = asyncio.Event()
        self.gate.set()
        self.headers_gate = asyncio.Event()
        self.headers_gate.set()
        self.requests: list[web.Request] = []
        self.sidecars = 0
        self.sent = 0
        self.url = ""
        self.downloads: Callable[[], Sequence[Progress]] = tuple

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(".sha256"):
            self.sidecars += 1
            if self.mode == "sidecar silent":
                await asyncio.sleep(30)
            return web.Response(status=self.sidecar_status if self.sidecar else 404, body=self.sidecar)
        self.requests.append(request)
        if self.answers:
            return await self.answers.pop(0)(request)
        if self.mode.isdigit():
            return web.Response(status=int(self.mode), text="sorry")
        await self.headers_gate.wait()
        if self.mode == "silent":
            await asyncio.sleep(30)
        if self.mode == "empty":
            return web.Response(body=b"")
        if self.etag and request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304)
        return await self._send(request)

    def begin(self, request: web.Request) -> tuple[web.StreamResponse, bytes]:
        """The headers, and the bytes that are asked for."""
        response = web.StreamResponse()
        response.content_type = self.kind
        if self.etag:
            response.headers["ETag"] = self.etag
        if self.modified:
            response.headers["Last-Modified"] = formatdate(self.modified, usegmt=True)
        span = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        validators = (self.etag, formatdate(self.modified, usegmt=True))
        if span is None or not self.ranges or request.headers.get("If-Range") not in validators:
            return response, self.content
        start = int(span[1])
        response.set_status(206)
        response.headers["Content-Range"] = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
        return response, self.content[start:]

    async def _send(self, request: web.Request) -> web.StreamResponse:
        response, body = self.begin(request)
        if self.mode == "gzip":
            response.headers["Content-Encoding"] = "gzip"
        if self.mode == "chunked":
            response.enable_chunked_encoding()
        else:
            response.content_length = len(body)
        await response.prepare(request)
        half = len(body) // 2
        await self.write(response, body[:half])
        await self.gate.wait()
        if self.mode == "dies" and request.transport is not None:
            request.transport.abort()
            return response
        if self.mode == "stalls":
            await asyncio.sleep(30)
        await self.write(response, body[half:])
        return response

    async def write(self, response: web.StreamResponse, body: bytes) -> None:
        self.sent += len(body)
        await response.write(body)

    async def _taken(self, url: str, count: int) -> None:
        """The cache has what was sent: what it has not read yet goes with the connection."""
        await asyncio.sleep(0.02)
        for _ in range(1000):
            if all(progress.received >= count for progress in self.downloads() if progress.url == url):
                break
            await asyncio.sleep(0.005)

    def breaks_after(self, count: int) -> UpstreamResponse:
        """An answer of which `count` bytes come, then the connection breaks."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response, body = self.begin(request)
            response.content_length = len(body)
            await response.prepare(request)
            await self.write(response, body[:count])
            await self._taken(str(request.url), len(self.content) - len(body) + count)
            assert request.transport is not None
            request.transport.close()
            return response

        return answer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", upstream.answer)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.05)
    upstream.url = str(server.make_url("/kernel"))
    yield upstream
    upstream.gate.set()
    await server.close()


@pytest.fixture
def make_cache(tmp_path: Path, clock: Clock) -> Make:
    """Makes caches over one directory; `timeouts` are changes of those that suit tests."""

    def make(timeouts: dict[str, Any] | None = None, **settings: Any) -> ArtifactCache:
        # None of them is met but by a test that asks for less: the machine that tests may be busy for a while.
        suited = Timeouts(connect=20.0, silence=20.0, total=60.0, sidecar=20.0, retries=0, pause=0.01)
        return ArtifactCache(
            tmp_path / "artifacts",
            clock=clock,
            timeouts=replace(suited, **(timeouts or {})),
            file_root=tmp_path,
            reach=THIS_HOST,
            **{"remember_failures": 0.0} | settings,
        )

    return make


@pytest.fixture
async def start_cache(make_cache: Make, upstream: Upstream) -> AsyncIterator[Callable[..., Awaitable[ArtifactCache]]]:
    """As `make_cache`, started; stopped in the end."""
    started: list[ArtifactCache] = []

    async def start(*args: Any, **settings: Any) -> ArtifactCache:
        for other in started:
            await other.stop()
        started[:] = [make_cache(*args, **settings)]
        await started[0].start()
        upstream.downloads = started[0].downloads
        return started[0]

    yield start
    for each in started:
        await each.stop()


@pytest.fixture
async def cache(start_cache: Any) -> ArtifactCache:
    cache: ArtifactCache = await start_cache()
    return cache


async def chunks(artifact: Artifact) -> AsyncIterator[bytes]:
    """What comes of it, as it comes."""
    start = 0
    while start < artifact.size:
        chunk = os.pread(artifact.fd, await artifact.filled(start) - start, start)
        assert chunk
        yield chunk
        start += len(chunk)


async def _read(artifact: Artifact) -> bytes:
    with artifact:
        return b"".join([chunk async for chunk in chunks(artifact)])


@pytest.fixture
def read() -> Callable[[Artifact], Awaitable[bytes]]:
    """Read a whole artifact, and close it."""
    return _read


@pytest.fixture
def fetch() -> Callable[..., Awaitable[tuple[Source, bytes]]]:
    """Open and read the whole, and wait until the cache has put it away (the last byte comes before the fsync)."""

    async def fetch(cache: ArtifactCache, url: str, sha256: str = "") -> tuple[Source, bytes]:
        artifact = await cache.open(url, sha256=sha256)
        content = await _read(artifact)
        while cache.downloads():
            await asyncio.sleep(0.001)
        return artifact.source, content

    return fetch


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], list[str]]:
    """What kinds of files are in the cache's directory."""

    def files() -> list[str]:
        return sorted(path.suffix for path in (tmp_path / "artifacts").iterdir() if path.name != ".lock")

    return files
