"""Idle connections from one place must not keep the others out of our HTTPS listeners."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp import web

from tests.waiting import until
from tink.kubeapi.apiserver import credentials
from tink.net.connection_limit import (
    Connection,
    ConnectionLimiter,
    ConnectionLimits,
    LimitedSite,
    OpenConnections,
    _idlest,
)

Listen = Callable[..., Awaitable[tuple[str, ssl.SSLContext]]]
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def listen(tmp_path: Path) -> AsyncIterator[Listen]:
    async with AsyncExitStack() as closing:

        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path == "/watch":
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b"begun\n")
                await asyncio.Event().wait()
            return web.Response(text="ok")

        async def begin(host: str = "127.0.0.1", **limits: float) -> tuple[str, ssl.SSLContext]:
            now = datetime.now(UTC)
            authority = credentials.load_authority(tmp_path / "pki", now)
            context = credentials.server_context(authority, host, now)
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", answer)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            closing.push_async_callback(runner.cleanup)
            site = LimitedSite(runner, host, 0, context, "test", ConnectionLimits(**limits))
            await site.start()
            trust = ssl.create_default_context(cafile=str(tmp_path / "pki" / "ca.crt"))
            return f"https://{host}:{site.port}", trust

        yield begin


async def _idle(url: str, count: int) -> list[Pair]:
    host, port = url.removeprefix("https://").split(":")
    return [await asyncio.open_connection(host, int(port)) for _ in range(count)]


async def _get(url: str, trust: ssl.SSLContext) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trust) as answer:
        return await answer.text()


async def _until_closed(connections: list[Pair], at_least: int) -> None:
    """Wait until the server has closed so many of these, and close them all."""
    ended: list[None] = []

    async def ends(reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            assert await reader.read() == b""
        ended.append(None)

    waiting = [asyncio.create_task(ends(reader)) for reader, _ in connections]
    await until(lambda: len(ended) >= at_least)
    for task, (_, writer) in zip(waiting, connections, strict=True):
        task.cancel()
        writer.close()


class Open:
    """A connection of `OpenConnections`."""

    def __init__(self, address: str, connections: OpenConnections[Open]) -> None:
        self.address = address
        self.is_aborted = False
        self._connections = connections

    def abort(self) -> None:
        self.is_aborted = True
        self._connections.remove(self)


def test_longest_idle_connection_is_aborted_for_a_new_one_and_a_busy_one_never() -> None:
    warnings: list[tuple[str, str]] = []
    connections: OpenConnections[Open] = OpenConnections(
        4,
        2,
        has_share=lambda address: address != "proxy",
        choose=lambda idle: next(iter(idle), None),
        warn=lambda whose, what: warnings.append((whose, what)),
    )

    def connect(address: str) -> Open | None:
        new = Open(address, connections)
        return new if connections.admit(new) else None

    first, second = connect("a"), connect("a")
    assert first
    assert second
    connections.set_busy(second)
    connections.set_idle(second)
    third = connect("a")
    assert third
    assert first.is_aborted, "the address had its share, and this one was idle for longest"
    for each in (second, third):
        connections.set_busy(each)
    assert connect("a") is None
    assert warnings[-1] == ("a", "too many connections, none of them idle: a new one is closed")
    proxied = [connect("proxy") for _ in range(3)]
    assert None not in proxied
    assert connections.count_of("proxy") == 2, "a proxy has no share, but all places were taken"
    assert [each.is_aborted for each in proxied if each] == [True, False, False]
    assert len(connections.all) == 4


def test_one_address_has_a_share_and_another_keeps_its_own() -> None:
    limiter = ConnectionLimiter(
        asyncio.Protocol, ssl.create_default_context(), "test", ConnectionLimits(connections=40, per_address=10)
    )
    greedy = [Connection(limiter, "192.0.2.1") for _ in range(30)]
    assert all(limiter.admit(each) for each in greedy)
    assert limiter.open.count_of("192.0.2.1") == 10
    modest = Connection(limiter, "192.0.2.2")
    assert limiter.admit(modest)
    assert limiter.open.count_of("192.0.2.2") == 1
    # Loopback is one address for all of this machine, and may have all places.
    local = [Connection(limiter, "127.0.0.1") for _ in range(25)]
    assert all(limiter.admit(each) for each in local)
    assert limiter.open.count_of("127.0.0.1") == 25
    for each in (*greedy, modest, *local):
        limiter.open.remove(each)
    assert limiter.open.count_of("192.0.2.1") == 0


def test_network_that_reconnects_too_often_is_rejected_before_the_handshake(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limits = ConnectionLimits(at_once=20, per_second=2)
    limiter = ConnectionLimiter(asyncio.Protocol, ssl.create_default_context(), "test", limits, clock=lambda: now)

    def come_and_go(address: str, count: int) -> int:
        admitted = 0
        for _ in range(count):
            one = Connection(limiter, address)
            admitted += limiter.admit(one)
            limiter.open.remove(one)
        return admitted

    assert come_and_go("192.0.2.1", 1000) == 20
    assert come_and_go("2001:db8::1", 15) + come_and_go("2001:db8::2%eth0", 15) == 20, "64 bits are one subscriber's"
    assert come_and_go("192.0.2.2", 20) == 20
    assert come_and_go("127.0.0.1", 1000) == come_and_go("::1", 1000) == 1000
    now = 5.0
    assert come_and_go("192.0.2.1", 1000) == 10
    assert limiter.open.count_of("192.0.2.1") == 0
    assert caplog.messages[0] == "test: 192.0.2.1: more than 20 connections, and then 2 a second: closed"
    assert len(caplog.messages) == 2, "each once a minute"


async def test_connection_in_the_tls_handshake_stays_while_others_send_nothing(listen: Listen) -> None:
    """He is in the middle of a handshake while connections come by the hundred: `tinkedge up` itself was, and ended."""
    url, trust = await listen(connections=20, handshake=600, first=600)
    host = url.removeprefix("https://").split(":")[0]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trust.wrap_bio(incoming, outgoing, server_hostname=host)
    reader, writer = (await _idle(url, 1))[0]
    before = await _idle(url, 5)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    writer.write(outgoing.read())
    idle = await _idle(url, 60)
    assert await _get(url, trust) == "ok"

    async def through_tls(step: Callable[[], bytes | None]) -> bytes | None:
        while True:
            with suppress(ssl.SSLWantReadError):
                return step()
            incoming.write(await reader.readexactly(1))

    await through_tls(tls.do_handshake)
    tls.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
    writer.write(outgoing.read())
    assert (await through_tls(tls.read) or b"").startswith(b"HTTP/1.1 200 OK")
    await _until_closed([*before, *idle], at_least=46)
    writer.close()


@pytest.mark.parametrize(
    ("there", "goes"),
    [
        ("bbb" + 9 * "s", 3),  # an idle flood, while some are in the middle of TLS
        (20 * "b" + "s", 0),  # a flood that speaks: who has come just now is about to
        (20 * "b" + 8 * "s", 0),
        (9 * "s" + "bbb", 0),
        (70 * "b" + 20 * "s", 0),  # no more is looked at
        ("wwaab", 4),
        ("wwaa", 2),
        ("ww", None),
    ],
)
def test_connection_that_loses_least_is_closed_first(there: str, goes: int | None) -> None:
    """s: has sent nothing, b: has begun with TLS, a: has asked and is idle, w: watches."""
    kinds = {"s": (False, True, False), "b": (False, False, False), "a": (True, False, False), "w": (True, False, True)}
    found = [SimpleNamespace(**dict(zip(("asked", "silent", "busy"), kinds[kind], strict=True))) for kind in there]
    assert _idlest(cast(list[Connection], found)) is (None if goes is None else found[goes])


async def test_idle_connections_give_way_to_a_client_and_watches_do_not(listen: Listen) -> None:
    url, trust = await listen(connections=10, handshake=600, first=600)
    async with aiohttp.ClientSession() as session, session.get(f"{url}/watch", ssl=trust) as watch:
        assert await watch.content.readline() == b"begun\n"
        idle = await _idle(url, 50)
        assert await _get(url, trust) == "ok"
        await _until_closed(idle, at_least=41)
        assert not watch.content.at_eof()


async def test_connection_that_never_asks_is_closed(listen: Listen) -> None:
    url, _ = await listen(handshake=0.1, first=0.1)
    await _until_closed(await _idle(url, 3), at_least=3)


async def test_connection_that_asks_only_half_is_closed(listen: Listen) -> None:
    url, trust = await listen(first=0.5)
    host, port = url.removeprefix("https://").split(":")
    with suppress(OSError):  # a busy machine is late, and cut off in its handshake
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        writer.write(b"GET / HTTP/1.1\r\nHost: ")
        await writer.drain()
        await _until_closed([(reader, writer)], at_least=1)


async def test_garbage_instead_of_tls_ends_and_others_are_served(listen: Listen) -> None:
    url, trust = await listen()
    (connection,) = await _idle(url, 1)
    connection[1].write(b"GET / HTTP/1.1\r\n\r\n")
    await _until_closed([connection], at_least=1)
    assert await _get(url, trust) == "ok"
