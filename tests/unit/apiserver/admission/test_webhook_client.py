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


async def test_connection_is_used_again_by_the_next_call(webhook_client: WebhookClient, serve: Serve) -> None:
    peers = set()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response({})

    where = await serve(answer)
    for _ in range(5):
        assert await webhook_client.post(where, b"{}", 5) == {}
    assert len(peers) == 1


async def test_answer_without_end_is_cut_off_instead_of_filling_memory(
    webhook_client: WebhookClient, serve: Serve
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 65536)
        return response

    with pytest.raises(WebhookCallError, match="larger than 1000000 bytes"):
        await webhook_client.post(await serve(answer), b"{}", 10, 1_000_000)


async def test_answer_that_grows_when_it_is_unpacked_fills_no_memory(
    webhook_client: WebhookClient, serve: Serve
) -> None:
    packed = gzip.compress(bytes(200_000_000))

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    where = await serve(answer)
    tracemalloc.start()
    try:
        with pytest.raises(WebhookCallError, match="larger than 1000000 bytes"):
            await webhook_client.post(where, b"{}", 10, 1_000_000)
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
        await webhook_client.post(ClientConfig(f"https://{host}:8443/latest"), b"{}", 5)
    assert str(caught.value) == f'Post "https://{host}:8443/latest?timeout=5s": {why}'


async def test_redirect_is_not_followed(webhook_client: WebhookClient, serve: Serve) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    with pytest.raises(WebhookCallError, match="it answered with HTTP status 307"):
        await webhook_client.post(await serve(answer), b"{}", 5)
    assert asked == ["/x"]


async def test_webhook_that_asks_for_a_moment_is_asked_again(webhook_client: WebhookClient, serve: Serve) -> None:
    asked = []

    async def answer(_: web.Request) -> web.Response:
        asked.append(1)
        if len(asked) < 3:
            return web.Response(status=429, headers={"Retry-After": "0"})
        return web.json_response({"asked": len(asked)})

    assert await webhook_client.post(await serve(answer), b"{}", 5) == {"asked": 3}


async def test_webhook_that_asks_for_a_moment_too_often_is_given_up(
    webhook_client: WebhookClient, serve: Serve
) -> None:
    asked = []

    async def answer(_: web.Request) -> web.Response:
        asked.append(1)
        return web.Response(status=503, headers={"Retry-After": "0"})

    with pytest.raises(WebhookCallError, match="HTTP status 503"):
        await webhook_client.post(await serve(answer), b"{}", 5)
    assert len(asked) == 11


async def test_waiting_for_a_webhook_that_asks_for_an_hour_ends_with_the_timeout(
    webhook_client: WebhookClient, serve: Serve
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "3600"})

    with pytest.raises(WebhookCallError, match="no answer within"):
        await webhook_client.post(await serve(answer), b"{}", 1)


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


async def test_cookies_of_one_webhook_are_not_sent_anywhere(webhook_client: WebhookClient, serve: Serve) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Cookie"))
        response = web.json_response({})
        response.set_cookie("a", "b")
        return response

    where = await serve(answer)
    named = ClientConfig(where.url.replace("127.0.0.1", "localhost"), where.trust)
    await webhook_client.post(named, b"{}", 5)
    await webhook_client.post(named, b"{}", 5)
    assert seen == [None, None]


async def test_certificate_of_another_host_is_refused(
    webhook_client: WebhookClient, serve: Serve, monkeypatch: Any
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    where = await serve(answer)

    async def found(_: str, port: int, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    named = ClientConfig(where.url.replace("127.0.0.1", "other.example.org"), where.trust)
    with pytest.raises(WebhookCallError, match="not valid for 'other"):
        await webhook_client.post(named, b"{}", 5)


async def test_service_is_not_found_as_on_a_cluster_without_it(webhook_client: WebhookClient) -> None:
    where = ClientConfig.of({"service": {"name": "hooks", "namespace": "ns", "path": "/a/"}})
    with pytest.raises(
        WebhookCallError, match=r'Post "https://hooks\.ns\.svc:443/a\?timeout=5s": service "hooks" not found'
    ):
        await webhook_client.post(where, b"{}", 5)


async def test_closing_twice_and_calling_after_it_works(webhook_client: WebhookClient, serve: Serve) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response([1])

    where = await serve(answer)
    assert await webhook_client.post(where, b"{}", 5) == [1]
    await webhook_client.close()
    await webhook_client.close()
    assert await webhook_client.post(where, b"{}", 5) == [1]


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("https://a.b", "https://a.b/"),
        ("https://a.b:8443/x//y/../z/", "https://a.b:8443/x/z"),
        ("https://[::1]:1/../x", "https://[::1]:1/x"),
    ],
)
def test_url_is_cleaned_as_in_kubernetes(url: str, called: str) -> None:
    assert ClientConfig.of({"url": url}).url == called


@pytest.mark.parametrize("bundle", ["", base64.b64encode(b" \n").decode()])
def test_bundle_of_nothing_but_space_trusts_the_system(bundle: str) -> None:
    assert ClientConfig.of({"url": "https://a.b", "caBundle": bundle}).trust == b""


@pytest.mark.parametrize("url", ["https://a.b/%zz", "https://a\x00b/", "https://[::1/", "https://a<b/"])
def test_url_that_go_cannot_parse_is_refused_when_it_is_stored(url: str) -> None:
    found = check_client({"url": url}, "clientConfig")
    assert [str(error).partition(";")[0] for error in found] == [
        "clientConfig.url: Required value: url must be a valid URL"
    ]


async def test_bundle_that_is_no_certificate_fails_the_call_and_not_the_server(webhook_client: WebhookClient) -> None:
    for bundle in ("a", base64.b64encode(b"nonsense").decode(), base64.b64encode(b"\xff\xfe").decode()):
        where = ClientConfig.of({"url": "https://127.0.0.1:1/", "caBundle": bundle})
        with pytest.raises(WebhookCallError, match="unable to load root certificates"):
            await webhook_client.post(where, b"{}", 5)
