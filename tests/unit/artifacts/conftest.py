"""A cache in a temporary directory, and an upstream on loopback that can misbehave in every way that upstreams do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from edge.artifacts.cache import ArtifactCache, Timeouts

Make = Callable[..., ArtifactCache]


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Upstream:
    """Serves `content` under every path. `mode` says how to misbehave.

    `headers_gate` holds the answer back, `gate` its second half.
    """

    def __init__(self) -> None:
        self.content = bytes(range(256)) * 4096  # 1 MiB
        self.mode = ""
        self.etag = '"v1"'
        self.gate = asyncio.Event()
        self.gate.set()
        self.headers_gate = asyncio.Event()
        self.headers_gate.set()
        self.requests: list[web.Request] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
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

    async def _send(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": self.etag} if self.etag else {})
        if self.mode == "gzip":
            response.headers["Content-Encoding"] = "gzip"
        if self.mode == "chunked":
            response.enable_chunked_encoding()
        else:
            response.content_length = len(self.content)
        await response.prepare(request)
        half = len(self.content) // 2
        await response.write(self.content[:half])
        await self.gate.wait()
        if self.mode == "dies" and request.transport is not None:
            request.transport.abort()
            return response
        if self.mode == "stalls":
            await asyncio.sleep(30)
        await response.write(self.content[half:])
        return response


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
    def make() -> ArtifactCache:
        return ArtifactCache(
            tmp_path / "artifacts",
            clock=clock,
            timeouts=Timeouts(connect=0.5, silence=0.3, total=5.0),
            file_root=tmp_path,
        )

    return make


@pytest.fixture
async def cache(make_cache: Make) -> AsyncIterator[ArtifactCache]:
    cache = make_cache()
    await cache.start()
    yield cache
    await cache.stop()
