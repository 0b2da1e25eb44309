"""A connection that another edge makes to a worker goes on in the main process: the same one, with what it has sent."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from edge.http.transport.connections import BoundedServer, Limits, Runner


async def _served(name: str, hand_on: object = None) -> tuple[Runner, int]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=f"{name} {request.remote} {await request.text()}")

    runner = Runner(BoundedServer(handle, Limits(), time.monotonic, hand_on=hand_on), lambda: None)  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


@pytest.fixture
async def worker() -> AsyncIterator[int]:
    """The port of a process that hands such connections on to another one."""
    main, _ = await _served("main")
    tasks = []

    def hand_on(fd: int, received: bytes) -> None:
        sock = socket.socket(fileno=os.dup(fd))
        tasks.append(asyncio.ensure_future(main.bounded.take_over(sock, received)))

    worker, port = await _served("worker", hand_on)
    yield port
    await worker.cleanup()
    await main.cleanup()
    assert all(task.done() for task in tasks)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *pieces: bytes) -> bytes:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return await reader.readexactly(length)


HELLO = b"POST /peers/hello HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


async def test_connection_of_another_edge_is_the_main_process_s(worker: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker)
    assert await ask(reader, writer, HELLO, b"hello") == b"main 127.0.0.1 hello", "its body comes later"
    assert await ask(reader, writer, HELLO + b"again") == b"main 127.0.0.1 again", "and it stays there"
    writer.close()


async def test_connections_of_machines_stay_with_the_worker(worker: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker)
    assert await ask(reader, writer, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b"worker 127.0.0.1 "
    writer.close()
