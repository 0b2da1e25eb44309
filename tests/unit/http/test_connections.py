"""x"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from aiohttp import web

from edge.http.files import body
from edge.http.metadata import full
from edge.http.transport import connections
from edge.http.transport.connections import BoundedServer, Limits, Runner
from tests.unit.http.conftest import IP, STRANGER, Rack

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
KERNEL = b"GET /osie/lab/kernel HTTP/1.1\r\nHost: x\r\n\r\n"

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


_OPEN: list[Connection] = []


@pytest.fixture(autouse=True)
async def all_closed() -> AsyncIterator[None]:
    yield
    for _, writer in _OPEN:
        writer.transport.abort()
    _OPEN.clear()
    await asyncio.sleep(0.01)


async def connect(rack: Rack, ip: str = STRANGER, *, receive_buffer: int = 0) -> Connection:
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.bind((ip, 0))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", rack.port))
    _OPEN.append(await asyncio.open_connection(sock=sock, limit=4096))
    return _OPEN[-1]


async def asked(connection: Connection, request: bytes = HEALTH) -> bytes:
    connection[1].write(request)
    async with asyncio.timeout(20):
        head = await connection[0].readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await connection[0].readexactly(length)


async def closed(connection: Connection) -> bool:
    """Whether the server has closed it, or does within a moment.

    A moment is turns of the loop that the server runs in too: time may pass without any on a busy machine."""
    for _ in range(20):
        if connection[0].at_eof() or connection[0].exception() is not None:
            return True
        await asyncio.sleep(0.005)
    return False


async def test_flood_from_one_address_takes_its_own_places_only(other_rack):
    async with other_rack(limits=Limits(connections=100, per_address=3)) as rack:
        rack.register()
        machine = await connect(rack, IP)
        await asked(machine)
        flood = [await connect(rack) for _ in range(20)]
        assert [await closed(one) for one in flood] == [True] * 17 + [False] * 3
        assert b"ok" in await asked(machine)


async def test_flood_from_many_addresses_keeps_no_machine_out(other_rack, caplog):
    async with other_rack(limits=Limits(connections=10, per_address=4)) as rack:
        rack.register()
        flood = [await connect(rack, f"127.0.2.{number + 1}") for number in range(25)]
        machine = await connect(rack, IP)
        assert b"ok" in await asked(machine)
        assert sum([not await closed(one) for one in flood]) == 9
        lines = [record for record in caplog.records if "idle ones are closed" in record.message]
        assert len(lines) == 1


async def test_machine_that_was_reset_again_and_again_gets_in(other_rack):
    async with other_rack(limits=Limits(per_address=3)) as rack:
        for _ in range(10):  # each boot leaves a connection behind that nobody closes
            connection = await connect(rack, IP)
            assert b"ok" in await asked(connection)


async def test_connection_that_is_used_is_not_closed_for_a_new_one(other_rack, caplog):
    async with other_rack(limits=Limits(connections=4, per_address=2)) as rack:
        rack.register()
        busy = [await connect(rack, IP, receive_buffer=4096) for _ in range(2)]
        for connection in busy:
            connection[1].write(KERNEL)
            await connection[0].readexactly(100)
        assert await closed(await connect(rack, IP))
        idle = [await connect(rack) for _ in range(2)]
        another = await connect(rack, "127.0.0.98")
        assert b"ok" in await asked(another)
        assert [await closed(one) for one in idle] == [True, False]
        assert not any([await closed(one) for one in busy])
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_connection_that_was_reset_before_anybody_looked_takes_no_place(other_rack):
    async with other_rack() as rack:
        connection = rack.runner.server()
        transport = mock.create_autospec(asyncio.Transport)
        transport.get_extra_info.return_value = None  # nobody is at the other end
        connection.connection_made(transport)
        transport.abort.assert_called_once_with()
        connection.connection_lost(None)


async def test_connection_that_was_used_last_is_closed_last(other_rack):
    for limits in (Limits(connections=3), Limits(per_address=3)):
        async with other_rack(limits=limits) as rack:
            connections = [await connect(rack, IP) for _ in range(3)]
            for number in (1, 0):
                await asked(connections[number])
            await connect(rack, IP)
            await connect(rack, IP)
            assert [await closed(one) for one in connections] == [False, True, True]


async def test_connection_with_an_answer_on_its_way_is_not_idle(other_rack):
    async with other_rack(limits=Limits(per_address=1)) as rack:
        rack.register()
        rack.binaries["big.efi"] = type("Big", (), {"content": b"b" * 8_000_000, "etag": '"big"'})()
        slow = await connect(rack, IP, receive_buffer=4096)
        slow[1].write(b"GET /ipxe/binary/big.efi HTTP/1.1\r\nHost: x\r\n\r\n")
        await slow[0].readuntil(b"\r\n\r\n")
        assert await closed(await connect(rack, IP))
        async with asyncio.timeout(20):
            assert await slow[0].readexactly(8_000_000) == b"b" * 8_000_000


async def test_places_come_free_when_connections_end(other_rack):
    async with other_rack(limits=Limits(connections=2, per_address=2)) as rack:
        for _ in range(10):
            connection = await connect(rack)
            assert b"ok" in await asked(connection)
            connection[1].close()
            await connection[1].wait_closed()
        server = rack.runner.server
        async with asyncio.timeout(20):
            while server._open or server._by_address or server._idle:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("start", [b"", b"GET /heal", HEALTH + b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_head_that_never_ends_is_not_waited_for(other_rack, start):
    async with other_rack(limits=Limits(idle=0.3)) as rack:
        connection = await connect(rack)
        connection[1].write(start)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            while True:
                connection[1].write(b"a" if start else b"")
                try:
                    if not await asyncio.wait_for(connection[0].read(1000), 0.05):
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
        assert asyncio.get_running_loop().time() - began >= 0.2


async def test_answer_that_nobody_takes_is_not_kept(other_rack, caplog):
    async with other_rack(limits=Limits(unread=2.0)) as rack:
        rack.register()
        rack.binaries["big.efi"] = type("Big", (), {"content": b"b" * 8_000_000, "etag": '"big"'})()
        stuck = await connect(rack, IP, receive_buffer=4096)
        stuck[1].write(b"GET /ipxe/binary/big.efi HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            while rack.runner.server._open:
                await asyncio.sleep(0.02)
        assert f"{IP}: took no byte of an answer" in caplog.text


async def test_slow_reader_of_a_buffered_answer_gets_all_of_it(other_rack):
    async with other_rack(limits=Limits(unread=2.0)) as rack:
        rack.register()
        rack.binaries["big.efi"] = type("Big", (), {"content": b"b" * 8_000_000, "etag": '"big"'})()
        slow = await connect(rack, IP, receive_buffer=65536)
        slow[1].write(b"GET /ipxe/binary/big.efi HTTP/1.1\r\nHost: x\r\n\r\n")
        await slow[0].readuntil(b"\r\n\r\n")
        for _ in range(10):
            await slow[0].readexactly(800_000)
            await asyncio.sleep(0.25)


@pytest.mark.parametrize(
    ("request_bytes", "status", "line"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad request: Received HTTPS"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "bad request: "),
        (b"GET /a b c HTTP/1.1\r\n\r\n", 400, "bad request: "),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "bad request: "),
        (b"HELO mail\r\n\r\n", 400, "bad request: "),
        (b"\x00\xff garbage HTTP/1.1\r\n\r\n", 400, "bad request: "),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, "bad request: "),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad request: "),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 501, "no such method"),
        (b"get /latest/user-data HTTP/1.0\r\n\r\n", 501, "no such method"),
        (b"GET /" + b"a" * 2100 + b" HTTP/1.1\r\n\r\n", 414, "the request line is longer than 2048 bytes"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431, "a header is longer than 4096 bytes"),
        (b"GET / HTTP/1.1\r\nX" + b"a" * 5000 + b": x\r\n\r\n", 431, "a header is longer than 4096 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 5000 + b"\r\n", 431, "more than 64 headers"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
async def test_what_is_no_http_is_answered_in_one_line_and_logged_once(rack, caplog, request_bytes, status, line):
    for _ in range(5):
        connection = await connect(rack)
        connection[1].write(request_bytes)
        async with asyncio.timeout(20):
            answer = await connection[0].read()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.0 %d " % status, b"HTTP/1.1 %d " % status))
        assert body.startswith(line.encode())
        assert body.count(b"\n") == 1
        assert len(body) < 160
        assert all(32 <= byte < 127 for byte in body[:-1])
    bad = [record for record in caplog.records if record.name.startswith("edge")]
    assert len(bad) == 1
    assert bad[0].getMessage().startswith(f"{STRANGER}: a bad request: ")
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("pause", [0, 0.05])
async def test_body_that_is_not_what_its_headers_say_is_given_up_in_time(rack, caplog, monkeypatch, pause):
    monkeypatch.setattr(full, "PHONE_HOME_SECONDS", 0.3)
    rack.register()
    connection = await connect(rack, IP)
    form = b"Content-Type: application/x-www-form-urlencoded\r\n"
    connection[1].write(b"POST /phone-home/m1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + form + b"\r\n")
    await asyncio.sleep(pause)  # a handler may be reading already
    connection[1].write(b"zz\r\nabc\r\n")
    async with asyncio.timeout(20):
        assert (await connection[0].read(1000)).startswith((b"HTTP/1.1 408 ", b"HTTP/1.0 400 "))
        await connection[0].read()
    assert "Traceback" not in caplog.text


async def test_mistake_of_ours_is_a_500_with_its_trace_in_the_log(rack, caplog, monkeypatch):
    def broken() -> str:
        raise RuntimeError("no idea")

    monkeypatch.setattr(type(rack), "problem", property(lambda _: broken()), raising=False)
    reply = await rack.ask("/readyz")
    assert (reply.status, reply.text) == (500, "internal error: see the log of the edge\n")
    assert "RuntimeError: no idea" in caplog.text
    caplog.clear()
    logging.getLogger("edge").debug("-")
    assert (await rack.ask("/healthz")).status == 200


async def test_stop_is_quick_while_machines_are_served(rack):
    rack.register()
    rack.register("m2", "52:54:00:00:00:02", "127.0.0.6")
    stuck = await connect(rack, IP, receive_buffer=4096)
    stuck[1].write(KERNEL)
    await stuck[0].readexactly(1000)
    rack.upstream.gate.clear()
    waiting = await connect(rack, "127.0.0.6")
    waiting[1].write(KERNEL.replace(b"kernel", b"initrd"))
    await waiting[0].readexactly(1000)
    await connect(rack)
    async with asyncio.timeout(20):
        await rack.runner.cleanup()
    assert rack.lines()[0][2].endswith("the edge is stopping")


# --- what firmware and old clients do ---


async def talk(rack: Rack, request: bytes, *, half_close: bool = False) -> bytes:
    connection = await connect(rack, IP)
    connection[1].write(request)
    if half_close:
        connection[1].write_eof()
    async with asyncio.timeout(20):
        return await connection[0].read()


async def test_client_of_http_1_0_gets_the_file_and_the_end_of_the_connection(rack):
    rack.register()
    head, _, body = (await talk(rack, b"GET /osie/lab/kernel HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
    assert body == rack.upstream.content
    assert b"content-length: 4194304" in head.lower()
    assert b"chunked" not in head.lower()


FORM = b"POST /phone-home/m1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "answers"),
    [
        (b"GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n", 1),
        (b"GET /latest/user-data HTTP/1.1\r\nHost: x\r\nX-Anything: x\r\n\r\n", 1),
        (b"GET /latest/user-data HTTP/1.0\r\n\r\n", 1),
        (KERNEL, 1),
        (HEALTH * 100, 100),  # more than aiohttp takes at once
        (FORM + b"Content-Length: 12\r\n\r\nhostname=abc", 1),
        (HEALTH + FORM + b"Content-Length: 12\r\n\r\nhostname=abc", 2),
        (FORM + b"Content-Length: 12\r\n\r\nhost", 0),
        (HEALTH[:-2], 0),
        (b"", 0),
    ],
)
async def test_client_that_closes_its_side_after_the_request_gets_its_answers_and_the_end(rack, request_bytes, answers):
    rack.register(instance={"userdata": "u"})
    await rack.ask("/osie/lab/kernel")
    async with asyncio.timeout(20):
        answer = await talk(rack, request_bytes, half_close=True)
    assert answer.count(b" 200 OK\r\n") == answers
    if request_bytes == KERNEL:
        assert answer.endswith(rack.upstream.content)


async def test_client_that_closes_its_side_gets_the_end_where_aiohttp_shows_no_requests(rack, monkeypatch):
    monkeypatch.setattr(connections, "_SHOWS_REQUESTS", False)
    for request in (KERNEL, HEALTH[:-2], FORM + b"Content-Length: 12\r\n\r\nhost"):
        async with asyncio.timeout(20):
            await talk(rack, request, half_close=True)
    assert (await talk(rack, HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).endswith(b"ok\n")


async def test_client_that_closes_its_side_gets_an_answer_that_takes_its_time(rack):
    async def slow(namespace: str, name: str) -> Any:
        await asyncio.sleep(0.2)
        return {"data": {"userData": "c2VjcmV0"}}

    rack.secret_reader = slow
    rack.inventory.apply(
        {
            "metadata": {"name": "m1", "namespace": "default", "annotations": {"tinkerbell.org/userdata-secret": "s"}},
            "spec": {"networkInterfaces": {"52:54:00:00:00:01": {"dhcp": {"ip": IP}}}},
        }
    )
    request = b"GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n"
    async with asyncio.timeout(20):  # it is not waited for the rest of a second request, which won't come
        await talk(rack, request + FORM + b"Content-Length: 12\r\n\r\nhost", half_close=True)
    assert (await talk(rack, request, half_close=True)).endswith(b"\r\n\r\nsecret")


async def test_machine_that_is_gone_is_not_waited_for_until_its_kernel_has_come(rack, monkeypatch):
    monkeypatch.setattr(body, "GONE_SECONDS", 0.05)
    rack.register()
    rack.upstream.gate.clear()
    async with asyncio.timeout(4):
        answer = await talk(rack, KERNEL, half_close=True)
    assert len(answer) < len(rack.upstream.content)
    assert rack.lines()[-1][2].endswith("it closed the connection")


async def test_connection_close_is_obeyed_after_the_last_byte(rack):
    rack.register()
    answer = await talk(rack, b"GET /osie/lab/kernel HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.partition(b"\r\n\r\n")[2] == rack.upstream.content


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1",
        b"GET /healthz HTTP/1.1\r\nHost:",
        b"GET //healthz HTTP/1.1\r\nHost: x",
        b"GET http://10.0.0.1/healthz HTTP/1.1\r\nHost: 10.0.0.1",
        b"GET http://10.0.0.1:7080//healthz?x=%zz HTTP/1.1\r\nHost: x",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: 100-continue",
    ],
)
async def test_spellings_of_real_clients_are_understood(rack, request_line):
    connection = await connect(rack, IP)
    answer = await asked(connection, request_line + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert answer.endswith(b"ok\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"CONNECT \r\n\r\n", 404),  # no target at all: aiohttp's parser has no URL then
        (b"CONNECT h:443 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /healthz HTTP/2.0\r\n\r\n", 200),
        (b"GET /healthz\r\n\r\n", 200),
    ],
)
async def test_odd_request_lines_are_answered_in_a_version_that_we_speak(rack, caplog, request_bytes, status):
    answer = await asked(await connect(rack, IP), request_bytes)
    assert answer.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.0 %d " % status))
    assert "Traceback" not in caplog.text


async def test_many_pipelined_requests_are_answered_in_order(rack):
    rack.register()
    connection = await connect(rack, IP)
    connection[1].write(HEALTH * 300)
    for _ in range(300):
        assert (await asked(connection, b"")).endswith(b"ok\n")


async def _served(name: str, hand_on: object = None) -> tuple[Runner, int]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=f"{name} {request.remote} {await request.text()}")

    runner = Runner(BoundedServer(handle, Limits(), time.monotonic, hand_on=hand_on), lambda: None)
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


async def test_connection_of_another_edge_is_the_main_process_s(worker):
    reader, writer = await asyncio.open_connection("127.0.0.1", worker)
    assert await ask(reader, writer, HELLO, b"hello") == b"main 127.0.0.1 hello", "its body comes later"
    assert await ask(reader, writer, HELLO + b"again") == b"main 127.0.0.1 again", "and it stays there"
    writer.close()


async def test_connections_of_machines_stay_with_the_worker(worker):
    reader, writer = await asyncio.open_connection("127.0.0.1", worker)
    assert await ask(reader, writer, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b"worker 127.0.0.1 "
    writer.close()
