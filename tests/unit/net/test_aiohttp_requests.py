"""aiohttp's private count of requests still means what `tink.net.aiohttp_requests` reads from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.waiting import until
from tink.net.aiohttp_requests import current_request, has_whole_request, received_requests

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


class Server(web.Server):
    """A server whose handler waits for `gate`."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.gate = asyncio.Event()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        await self.gate.wait()
        return web.Response(text="ok")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner = web.ServerRunner(made, shutdown_timeout=0.1)
    await runner.setup()
    yield made
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[asyncio.StreamWriter]:
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    await until(lambda: bool(server.connections))
    yield writer
    writer.close()
    listening.close()


async def test_requests_are_counted_when_they_arrive(server: Server, client: asyncio.StreamWriter) -> None:
    (handler,) = server.connections
    assert received_requests(handler) == 0
    assert current_request(handler) is None
    client.write(REQUEST * 3)
    await until(lambda: received_requests(handler) == 3 and current_request(handler) is not None)
    server.gate.set()
    await until(lambda: current_request(handler) is None)
    assert received_requests(handler) == 3


async def test_request_is_whole_when_its_body_has_arrived(server: Server, client: asyncio.StreamWriter) -> None:
    (handler,) = server.connections
    client.write(POST + b"ab")
    await until(lambda: current_request(handler) is not None)
    assert not has_whole_request(handler)
    client.write(b"cd")
    await until(lambda: has_whole_request(handler))
    client.write(POST + b"ab")  # waits behind the first request
    await until(lambda: received_requests(handler) == 2)
    assert not has_whole_request(handler)
    client.write(b"cd")
    await until(lambda: has_whole_request(handler))
