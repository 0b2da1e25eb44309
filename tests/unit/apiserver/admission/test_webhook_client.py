"""Calls to webhooks: what a bad or slow server, or a wrong certificate, may not do to us."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.waiting import until
from tink.apiserver import credentials
from tink.apiserver.webhooks.client import WebhookCallError, WebhookClient
from tink.schema.client_config import ClientConfig, check_client


@pytest.fixture
async def webhook_client() -> AsyncIterator[WebhookClient]:
    made = WebhookClient()
    yield made
    await made.close()


LIMIT = 60
"""Seconds that a call may take: nothing here takes as long."""
Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[ClientConfig]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serve a handler over TLS and give where it is."""
    runners: list[web.AppRunner] = []
    authority = credentials.load_authority(tmp_path / "hooks", datetime.now(UTC))

    async def begin(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> ClientConfig:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        runners.append(runner)
        context = credentials.server_context(authority, "127.0.0.1", datetime.now(UTC))
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        return ClientConfig(f"https://127.0.0.1:{runner.addresses[0][1]}/x", authority.pem())

    yield begin
    for runner in runners:
        await runner.cleanup()


async def test_connection_is_used_again_without_the_cookies_of_the_last_answer_and_may_be_closed(
    webhook_client: WebhookClient, serve: Serve
) -> None:
    peers, cookies = [], []

    async def answer(request: web.Request) -> web.Response:
        peers.append(request.transport.get_extra_info("peername"))
        cookies.append(request.headers.get("Cookie"))
        response = web.json_response([1])
        response.set_cookie("a", "b")
        return response

    where = await serve(answer)
    named = ClientConfig(where.url.replace("127.0.0.1", "localhost"), where.trust)
    for _ in range(3):
        assert await webhook_client.post(named, b"{}", LIMIT) == [1]
    assert len({*peers}) == 1
    for _ in range(2):
        await webhook_client.close()
    assert await webhook_client.post(named, b"{}", LIMIT) == [1]
    assert cookies == [None] * 4


@pytest.mark.parametrize("packed", [False, True])
async def test_answer_without_end_is_cut_off_instead_of_filling_memory(webhook_client, serve, packed) -> None:
    small = gzip.compress(bytes(200_000_000)) if packed else b""

    async def answer(request: web.Request) -> web.StreamResponse:
        if packed:
            return web.Response(body=small, headers={"Content-Encoding": "gzip"})
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 65536)
        return response

    where = await serve(answer)
    tracemalloc.start()
    try:
        with pytest.raises(WebhookCallError, match="larger than 1000000 bytes"):
            await webhook_client.post(where, b"{}", LIMIT, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("169.254.169.254", "169.254.169.254 is a link-local address"),
        ("[fd00:ec2::254]", "fd00:ec2::254 is a cloud's metadata address"),
        ("0.0.0.0", "0.0.0.0 is an unspecified address"),
    ],
)
async def test_webhook_is_never_a_clouds_metadata_service(webhook_client: WebhookClient, host: str, why: str) -> None:
    """Loopback is where tinkedge's own webhooks are, and may be asked."""
    with pytest.raises(WebhookCallError) as caught:
        await webhook_client.post(ClientConfig(f"https://{host}:8443/latest"), b"{}", LIMIT)
    assert str(caught.value) == f'Post "https://{host}:8443/latest?timeout=60s": {why}'


@pytest.mark.parametrize(
    ("status", "header", "times", "seconds", "said", "asked"),
    [
        pytest.param(307, {"Location": "/elsewhere"}, 99, LIMIT, "it answered with HTTP status 307", 1, id="redirect"),
        pytest.param(429, {"Retry-After": "0"}, 2, LIMIT, None, 3, id="asks for a moment"),
        pytest.param(503, {"Retry-After": "0"}, 99, LIMIT, "HTTP status 503", 11, id="asks for it too often"),
        pytest.param(429, {"Retry-After": "3600"}, 99, 1, "no answer within", 1, id="asks for an hour"),
    ],
)
async def test_webhook_is_asked_again_only_when_it_asks_for_a_moment(
    webhook_client: WebhookClient,
    serve: Serve,
    status: int,
    header: Any,
    times: int,
    seconds: int,
    said: Any,
    asked: int,
) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(status=status, headers=header) if len(seen) <= times else web.json_response({"a": 1})

    where = await serve(answer)
    if said is None:
        assert await webhook_client.post(where, b"{}", seconds) == {"a": 1}
    else:
        with pytest.raises(WebhookCallError, match=said):
            await webhook_client.post(where, b"{}", seconds)
    assert seen == ["/x"] * asked


async def test_answer_that_trickles_ends_with_the_timeout(webhook_client: WebhookClient, serve: Serve) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        for tick in itertools.count(loop.time(), 0.05):
            await until(lambda tick=tick: loop.time() > tick)
            await response.write(b" ")
        return response

    with pytest.raises(WebhookCallError, match="no answer within"):
        await webhook_client.post(await serve(answer), b"{}", 1)


async def test_certificate_of_another_host_is_refused(webhook_client, serve, monkeypatch) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    where = await serve(answer)

    async def found(_: str, port: int, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    named = ClientConfig(where.url.replace("127.0.0.1", "other.example.org"), where.trust)
    with pytest.raises(WebhookCallError, match="not valid for 'other"):
        await webhook_client.post(named, b"{}", LIMIT)


def test_configured_urls_and_bundles_are_read_as_in_kubernetes() -> None:
    for url, called in (
        ("https://a.b", "https://a.b/"),
        ("https://a.b:8443/x//y/../z/", "https://a.b:8443/x/z"),
        ("https://[::1]:1/../x", "https://[::1]:1/x"),
    ):
        assert ClientConfig.of({"url": url}).url == called
    for bundle in ("", base64.b64encode(b" \n").decode()):  # nothing but space trusts the system
        assert ClientConfig.of({"url": "https://a.b", "caBundle": bundle}).trust == b""
    for url in ("https://a.b/%zz", "https://a\x00b/", "https://[::1/", "https://a<b/"):  # Go cannot parse these
        (error,) = check_client({"url": url}, "clientConfig")
        assert str(error).startswith("clientConfig.url: Required value: url must be a valid URL;")
