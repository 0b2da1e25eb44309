"""Connections of strangers: they can't lock out machines, fill the log, or stay open without end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest import mock

import pytest

from edge.http import files, metadata
from edge.http.connections import HttpLimits
from tests.support.objects import OTHER_MAC
from tests.support.virtual_time import elapse, turns
from tests.unit.http.conftest import HEALTH, IP, KERNEL, OTHER_IP, STRANGER, Rack, at_once, secret
from tests.waiting import until

BIG = b"GET /ipxe/binary/big.efi HTTP/1.1\r\nHost: x\r\n\r\n"


def serve_big(rack: Rack, size: int = 8_000_000) -> None:
    rack.register()
    rack.binaries["big.efi"] = SimpleNamespace(content=b"b" * size, etag='"big"')


async def test_flood_from_one_address_takes_its_own_places_only(other_rack):
    async with other_rack(limits=HttpLimits(connections=100, per_address=3)) as rack:
        rack.register()
        machine = await rack.connect()
        await machine.ask()
        flood = [await rack.connect(STRANGER) for _ in range(20)]
        assert [await one.is_closed() for one in flood] == [True] * 17 + [False] * 3
        assert b"ok" in await machine.ask()
        for _ in range(10):  # each boot leaves an open connection behind
            assert b"ok" in await (await rack.connect()).ask()


async def test_flood_from_many_addresses_keeps_no_machine_out(other_rack, caplog):
    async with other_rack(limits=HttpLimits(connections=10, per_address=4)) as rack:
        rack.register()
        flood = [await rack.connect(f"127.0.2.{number + 1}") for number in range(25)]
        assert b"ok" in await (await rack.connect()).ask()
        assert sum([not await one.is_closed() for one in flood]) == 9
        assert sum("idle ones are closed" in record.message for record in caplog.records) == 1


async def test_connection_that_is_used_is_not_closed_for_a_new_one(other_rack, caplog):
    async with other_rack(limits=HttpLimits(connections=4, per_address=2)) as rack:
        rack.register()
        busy = [await rack.connect(receive_buffer=4096) for _ in range(2)]
        for connection in busy:
            connection.write(KERNEL)
            await connection.read(100)
        assert await (await rack.connect()).is_closed()
        idle = [await rack.connect(STRANGER) for _ in range(2)]
        assert b"ok" in await (await rack.connect("127.0.0.98")).ask()
        assert [await one.is_closed() for one in (*idle, *busy)] == [True, False, False, False]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_connection_that_was_reset_at_once_takes_no_place(rack):
    connection = rack.runner.server()
    transport = mock.create_autospec(asyncio.Transport)
    transport.get_extra_info.return_value = None  # the client is gone
    connection.connection_made(transport)
    transport.abort.assert_called_once_with()
    connection.connection_lost(None)


async def test_connection_that_was_used_last_is_closed_last(other_rack):
    for limits in (HttpLimits(connections=3), HttpLimits(per_address=3)):
        async with other_rack(limits=limits) as rack:
            opened = [await rack.connect() for _ in range(3)]
            for number in (1, 0):
                await opened[number].ask()
            for _ in range(2):
                await rack.connect()
            assert [await one.is_closed() for one in opened] == [False, True, True]


async def test_connection_with_an_answer_on_its_way_is_not_idle(other_rack):
    async with other_rack(limits=HttpLimits(per_address=1)) as rack:
        serve_big(rack)
        slow = await rack.connect(receive_buffer=4096)
        slow.write(BIG)
        await slow.head()
        assert await (await rack.connect()).is_closed()
        assert await slow.read(8_000_000) == b"b" * 8_000_000


async def test_places_come_free_when_connections_end(other_rack):
    async with other_rack(limits=HttpLimits(connections=2, per_address=2)) as rack:
        for _ in range(10):
            connection = await rack.connect(STRANGER)
            assert b"ok" in await connection.ask()
            connection.writer.close()
        await until(lambda: not rack.open)


@pytest.mark.parametrize("start", [b"", b"GET /heal", HEALTH + b"GET /healthz HTTP/1.1\r\nHost:"])
async def test_head_that_never_ends_is_not_waited_for(other_rack, start):
    async with other_rack(limits=HttpLimits(idle=0.05)) as rack:
        connection = await rack.connect(STRANGER)
        connection.write(start)
        ending = asyncio.create_task(connection.rest())

        def ended() -> bool:
            if not connection.writer.is_closing():  # uvloop refuses to write then
                connection.write(b"a" if start else b"")
            return ending.done()

        await until(ended, every=0.01)


@pytest.mark.looptime
async def test_unread_answer_is_dropped_and_a_slow_reader_gets_all_of_its_answer(other_rack, caplog):
    size, taken = 16_000_000, 0
    async with other_rack(limits=HttpLimits(unread=60.0)) as rack:
        serve_big(rack, size)
        stuck, slow = await rack.connect(receive_buffer=4096), await rack.connect(receive_buffer=65536)
        for connection in (stuck, slow):
            connection.write(BIG)
        await at_once(slow.head())
        while len(rack.open) == 2:
            taken += len(await at_once(slow.read(min(1_000_000, size - taken))))
            await elapse(10)
        assert len(await at_once(slow.read(size - taken))) == size - taken
        assert f"{IP}: took no byte of an answer" in caplog.text


@pytest.mark.parametrize(
    ("request_bytes", "status", "line"),
    [
        *(
            (request, 400, "bad request: ")
            for request in (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
                b"GET /a b c HTTP/1.1\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"HELO mail\r\n\r\n",
                b"\x00\xff garbage HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                b"GET / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            )
        ),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 501, "no such method"),
        (b"get /latest/user-data HTTP/1.0\r\n\r\n", 501, "no such method"),
        (b"GET /" + b"a" * 2100 + b" HTTP/1.1\r\n\r\n", 414, "the request line is longer than 2048 bytes"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", 431, "a header is longer than 4096 bytes"),
        (b"GET / HTTP/1.1\r\nX" + b"a" * 5000 + b": x\r\n\r\n", 431, "a header is longer than 4096 bytes"),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 5000 + b"\r\n", 431, "more than 64 headers"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
async def test_input_that_is_not_http_gets_one_line_and_is_logged_once(rack, caplog, request_bytes, status, line):
    if request_bytes.startswith(b"\x16"):
        line += "Received HTTPS"
    for _ in range(5):
        head, _, body = (await rack.exchange(request_bytes, STRANGER)).partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.0 %d " % status, b"HTTP/1.1 %d " % status))
        assert body.startswith(line.encode())
        assert (body.count(b"\n"), len(body) < 160) == (1, True)
        assert all(32 <= byte < 127 for byte in body[:-1])
    (bad,) = [record for record in caplog.records if record.name.startswith("edge")]
    assert bad.getMessage().startswith(f"{STRANGER}: a bad request: ")
    assert "Traceback" not in caplog.text
    assert (await rack.ask("/healthz")).status == 200


@pytest.mark.parametrize("loop_turns", [0, 50])
async def test_body_that_contradicts_its_headers_is_aborted_in_time(rack, caplog, monkeypatch, loop_turns):
    monkeypatch.setattr(metadata, "PHONE_HOME_SECONDS", 0.3)
    rack.register()
    connection = await rack.connect()
    connection.write(FORM + b"Transfer-Encoding: chunked\r\n\r\n")
    await turns(loop_turns)  # a handler may be reading already
    connection.write(b"zz\r\nabc\r\n")
    assert (await connection.rest()).startswith((b"HTTP/1.1 408 ", b"HTTP/1.0 400 "))
    assert "Traceback" not in caplog.text


async def test_internal_error_is_a_500_with_its_traceback_in_the_log(rack, caplog, monkeypatch):
    def broken() -> str:
        raise RuntimeError("no idea")

    monkeypatch.setattr(type(rack), "problem", property(lambda _: broken()), raising=False)
    reply = await rack.ask("/readyz")
    assert (reply.status, reply.text) == (500, "internal error: see the log of the edge\n")
    assert "RuntimeError: no idea" in caplog.text
    caplog.clear()
    assert (await rack.ask("/healthz")).status == 200


async def test_stop_is_quick_while_machines_are_served(rack):
    rack.register()
    rack.register("m2", OTHER_MAC, OTHER_IP)
    stuck = await rack.connect(receive_buffer=4096)
    stuck.write(KERNEL)
    await stuck.read(1000)
    rack.upstream.gate.clear()
    waiting = await rack.connect(OTHER_IP)
    waiting.write(KERNEL.replace(b"kernel", b"initrd"))
    await waiting.read(1000)
    on_fast_path = await rack.connect()
    assert b"m1" in await on_fast_path.ask(b"GET /latest/meta-data/instance-id HTTP/1.1\r\nHost: x\r\n\r\n")
    unused = await rack.connect(STRANGER)
    await rack.runner.cleanup()
    assert rack.lines()[-1][2].endswith("the edge is stopping")
    assert [await one.rest() for one in (on_fast_path, unused)] == [b"", b""]


# --- what firmware and old clients do ---


async def test_client_of_http_1_0_or_that_wants_the_connection_closed_gets_the_file_and_the_end(rack):
    rack.register()
    close = KERNEL.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for request in (b"GET /osie/lab/kernel HTTP/1.0\r\n\r\n", close):
        head, _, body = (await rack.exchange(request)).partition(b"\r\n\r\n")
        assert body == rack.upstream.content
        assert b"content-length: 4194304" in head.lower()
        assert b"chunked" not in head.lower()


FORM = b"POST /phone-home/m1 HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
HALF_A_FORM = FORM + b"Content-Length: 12\r\n\r\nhost"


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
        (HALF_A_FORM, 0),
        (HEALTH[:-2], 0),
        (b"", 0),
    ],
)
async def test_client_that_closes_its_side_after_the_request_gets_its_answers_and_the_end(rack, request_bytes, answers):
    rack.register(instance={"userdata": "u"})
    await rack.ask("/osie/lab/kernel")
    answer = await rack.exchange(request_bytes, half_close=True)
    assert answer.count(b" 200 OK\r\n") == answers
    if request_bytes == KERNEL:
        assert answer.endswith(rack.upstream.content)


async def test_client_that_closes_its_side_gets_an_answer_that_takes_its_time(rack):
    rack.api.put(secret("s", b"secret"))
    rack.register(annotations={"tinkerbell.org/userdata-secret": "s"})
    gate = rack.api.hold("get")
    request = b"GET /latest/user-data HTTP/1.1\r\nHost: x\r\n\r\n"
    # It is not waited for the rest of a second request, which won't come.
    await rack.exchange(request + HALF_A_FORM, half_close=True)
    asking = asyncio.create_task(rack.exchange(request, half_close=True))
    await turns(50)
    assert not asking.done()
    gate.open()
    assert (await asking).endswith(b"\r\n\r\nsecret")


async def test_machine_that_is_gone_is_not_waited_for_until_its_kernel_has_come(rack, monkeypatch):
    monkeypatch.setattr(files, "GONE_SECONDS", 0.05)
    rack.register()
    rack.upstream.gate.clear()
    assert len(await rack.exchange(KERNEL, half_close=True)) < len(rack.upstream.content)
    assert rack.lines()[-1][2].endswith("it closed the connection")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", 200),
        (b"GET //healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET http://10.0.0.1/healthz HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", 200),
        (b"GET http://10.0.0.1:7080//healthz?x=%zz HTTP/1.1\r\nHost: x\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nConnection: Upgrade\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"CONNECT \r\n\r\n", 404),  # no target at all: aiohttp's parser has no URL then
        (b"CONNECT h:443 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /healthz HTTP/2.0\r\n\r\n", 200),
        (b"GET /healthz\r\n\r\n", 200),
    ],
)
async def test_odd_request_lines_of_real_clients_are_answered_in_a_version_that_we_speak(
    rack, caplog, request_bytes, status
):
    answer = await (await rack.connect()).ask(request_bytes)
    assert answer.startswith((b"HTTP/1.1 %d " % status, b"HTTP/1.0 %d " % status))
    assert answer.endswith(b"ok\n") is (status == 200)
    assert "Traceback" not in caplog.text
