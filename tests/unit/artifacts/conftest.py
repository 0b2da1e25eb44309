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

from edge.artifacts import checksum
from edge.artifacts.artifact import Artifact, DownloadProgress, Source
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.upstream import Timeouts
from tests.waiting import until
from tink.net.outbound import Reach

THIS_HOST = Reach(allowed=(ip_network("127.0.0.0/8"), ip_network("::1/128")))
"""The upstreams of these tests are on loopback."""

MIB = 1 << 20
UpstreamResponse = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self, now: float = 50.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def for_ever() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


class Upstream:
    """Serves `content` under every path, and `sidecar` under every path that ends in .sha256 (empty: 404).

    `mode` says how to misbehave; `answers` what to do instead, a request each. `headers_gate` holds the answer back,
    `gate` its second half. `ranges`: whether it knows Range. `whole` and `unchanged` count its answers.
    """

    def __init__(self) -> None:
        self.content = bytes(range(256)) * 4096  # 1 MiB
        self.mode = ""
        self.answers: list[UpstreamResponse] = []
        self.etag = '"v1"'
        self.modified = 0.0
        self.ranges = True
        self.kind = "application/octet-stream"
        self.encoding = ""
        self.sidecar = b""
        self.sidecar_status = 200
        self.gate, self.headers_gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.headers_gate.set()
        self.requests: list[web.Request] = []
        self.whole = self.unchanged = 0
        self.sidecar_paths: list[str] = []
        self.sent = 0
        self.url = ""
        self.downloads: Callable[[], Sequence[DownloadProgress]] = tuple

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(".sha256"):
            self.sidecar_paths.append(request.raw_path)
            if self.mode == "sidecar silent":
                await for_ever()
            if self.mode == "sidecar breaks" and request.transport is not None:
                request.transport.abort()
            return web.Response(status=self.sidecar_status if self.sidecar else 404, body=self.sidecar)
        self.requests.append(request)
        if self.answers:
            return await self.answers.pop(0)(request)
        if self.mode.isdigit():
            return web.Response(status=int(self.mode), text="sorry")
        is_same = bool(self.etag) and request.headers.get("If-None-Match") == self.etag
        self.whole += not is_same
        self.unchanged += is_same
        await self.headers_gate.wait()
        if self.mode == "silent":
            await for_ever()
        if self.mode == "empty":
            return web.Response(body=b"")
        if is_same:
            return web.Response(status=304)
        return await self.send(request)

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

    async def begun(self, request: web.Request, length: int | None = None) -> tuple[web.StreamResponse, bytes]:
        """As `begin`, with the headers sent; `length` is announced instead of the right one."""
        response, body = self.begin(request)
        response.content_length = len(body) if length is None else length
        await response.prepare(request)
        return response, body

    async def send(self, request: web.Request) -> web.StreamResponse:
        response, body = self.begin(request)
        if self.encoding:
            response.headers["Content-Encoding"] = self.encoding
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
            await for_ever()
        await self.write(response, body[half:])
        return response

    async def write(self, response: web.StreamResponse, body: bytes) -> None:
        self.sent += len(body)
        await response.write(body)

    def breaks_after(self, count: int) -> UpstreamResponse:
        """An answer of which `count` bytes come, then the connection breaks."""

        async def answer(request: web.Request) -> web.StreamResponse:
            response, body = await self.begun(request)
            await self.write(response, body[:count])
            there = len(self.content) - len(body) + count
            # What the cache has not read yet goes with the connection.
            await until(lambda: any(one.received >= there for one in self.downloads() if one.url == str(request.url)))
            assert request.transport is not None
            request.transport.close()
            return response

        return answer

    def changes_to(self, content: bytes, etag: str = '"v2"', then: UpstreamResponse | None = None) -> UpstreamResponse:
        """An answer with another version of the file, which is the upstream's from then on."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.content, self.etag = content, etag
            return await (then or self.send)(request)

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
    upstream.headers_gate.set()
    await server.close()


@pytest.fixture
def make_cache(tmp_path: Path, clock: Clock) -> Callable[..., ArtifactCache]:
    """Makes caches over one directory; `timeouts` are changes of those that suit tests."""

    def make(timeouts: dict[str, Any] | None = None, **settings: Any) -> ArtifactCache:
        # None of them is met but by a test that asks for less: the machine that tests may be busy for a while.
        suited = Timeouts(connect=120.0, silence=120.0, total=600.0, sidecar=120.0, retries=0, pause=0.01)
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
async def start_cache(
    make_cache: Callable[..., ArtifactCache], upstream: Upstream
) -> AsyncIterator[Callable[..., Awaitable[ArtifactCache]]]:
    """As `make_cache`, started, after the one before was stopped."""
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
    """Yield the bytes of an artifact as they become available."""
    start = 0
    while start < artifact.size:
        chunk = os.pread(artifact.fd, await artifact.filled(start) - start, start)
        assert chunk
        yield chunk
        start += len(chunk)


async def read(artifact: Artifact) -> bytes:
    """Read a whole artifact, and close it."""
    with artifact:
        return b"".join([chunk async for chunk in chunks(artifact)])


async def fetch(cache: ArtifactCache, url: str, sha256: str = "") -> tuple[Source, bytes]:
    """Open and read the whole, and wait until the cache has put it away (the last byte comes before the fsync)."""
    artifact = await cache.open(url, sha256=sha256)
    content = await read(artifact)
    await until(lambda: not cache.downloads())
    return artifact.source, content


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of the cache."""
    return tmp_path / "artifacts"


@pytest.fixture
def files(directory: Path) -> Callable[[], list[str]]:
    """Returns the suffixes of the files in the cache's directory."""
    return lambda: sorted(path.suffix for path in directory.iterdir() if path.name != ".lock")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the files that were read for their checksum."""
    sizes: list[int] = []
    real = checksum.hash_file
    monkeypatch.setattr(checksum, "hash_file", lambda fd, size: (sizes.append(size), real(fd, size))[1])
    return sizes
