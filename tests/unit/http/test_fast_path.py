"""x"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.callers import TrustedNetworks
from edge.http.transport import fast_path
from edge.http.transport.connections import BoundedServer, Limits
from edge.http.transport.fast_path import MAX_HEAD_BYTES, MAX_HEADS, KnownHeads, PreparedResponse
from edge.journey.events import Outcome, Step
from tests.unit.http.conftest import IP, STRANGER, Rack

ID = b"/2009-04-04/meta-data/instance-id"
USER_DATA = b"/2009-04-04/user-data"
SCRIPT = b"/ipxe/script/52:54:00:00:00:01/auto.ipxe"
HEAD = (
    b" HTTP/1.1\r\nHost: 10.0.0.1:7080\r\nUser-Agent: Cloud-Init/22.4.2\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Accept: */*\r\nConnection: keep-alive\r\n\r\n"
)
LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
"""Whatever comes before it, this ends the conversation."""


def get(target: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: x", *lines]) + b"\r\n\r\n"


PLAIN = b"GET " + ID + HEAD


class Edges:
    """Two edges with the same machine, in a thread of their own: one with the fast path, one without."""

    def __init__(self, open_rack: Callable[..., Any], tmp_path: Path) -> None:
        self._open_rack = open_rack
        self._places = tmp_path / "fast", tmp_path / "slow"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(20)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        limits = Limits(idle=0.4, unread=0.8)
        for place in self._places:
            place.mkdir()
        racks = [self._open_rack(place, limits=limits, fast_path=place is self._places[0]) for place in self._places]
        async with racks[0] as fast, racks[1] as slow:
            for rack in (fast, slow):
                rack.register(instance={"userdata": "#cloud-config\n" + "#" * 3000})
            self.fast, self.slow = fast, slow
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def both(self, parts: list[bytes], ip: str = IP, *, half_close: bool = False) -> tuple[bytes, bytes]:
        """What both answer to the same parts, each a segment of its own."""
        fast, slow = (_said(rack.port, parts, ip, half_close) for rack in (self.fast, self.slow))
        return fast, slow


def _said(port: int, parts: list[bytes], ip: str, half_close: bool = False) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5, (ip, 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        try:
            for part in parts:
                sock.sendall(part)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            while more := sock.recv(65536):
                answer += more
        except ConnectionError:
            pass
        return re.sub(rb"\r\nDate: [^\r]+", b"\r\nDate: now", answer)


@pytest.fixture
def edges(other_rack: Any, tmp_path: Path) -> Iterator[Edges]:
    found = Edges(other_rack.func, tmp_path)
    yield found
    found.stop()


TARGETS = [
    ID,
    USER_DATA,
    b"/2009-04-04/meta-data/",
    b"/2009-04-04/meta-data",
    b"/2009-04-04/",
    b"/2009-04-04",
    b"/latest/meta-data/local-ipv4",
    b"/latest/vendor-data",
    b"/2021-03-23/meta-data/instance-id",
    b"/2018-09-24/meta-data/instance-id",
    b"/2016-09-02/meta-data/instance-id",
    b"/2009-04-04/meta-data/none",
    b"/nocloud/m1/user-data",
    b"/nocloud/52:54:00:00:00:01/meta-data",
    b"/nocloud/m2/user-data",
    b"/metadata",
    b"/2009-04-04/meta-data/instance%2did",
    b"//2009-04-04/meta-data/instance-id",
    b"/2009-04-04/meta-data/instance-id/",
    b"/2009-04-04/meta-data/instance-id?x=1",
    b"/2009-04-04/meta-data/instance-id#x",
    b"http://h" + ID,
    SCRIPT,
    b"/auto.ipxe",
    b"/52:54:00:00:00:01/auto.ipxe",
    b"/ipxe/script/auto.ipxe",
    b"/ipxe/script/52-54-00-00-00-01/auto.ipxe",
    b"/ipxe/script/52:54:00:00:00:02/auto.ipxe",
    b"/ipxe/script/52:54:00:00:00:01/auto.ipxe?failed",
    b"/ipxe/script/52:54:00:00:00:01/auto.ipxe/",
    b"/healthz",
    b"/",
    b"*",
]
CORPUS = [
    *[b"GET " + target + HEAD for target in TARGETS],
    get(ID, b"User-Agent: "),
    get(ID, b"Connection: close"),
    get(ID, b"Connection: keep-alive, Upgrade", b"Upgrade: h2c"),
    get(ID, b"Content-Length: 0"),
    get(ID, b"Content-Length: 5") + b"abcde",
    get(ID, b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
    get(ID, b"Expect: 100-continue"),
    get(ID, b"Range: bytes=0-2"),
    get(ID, b"If-None-Match: *"),
    get(ID, b"X-Forwarded-For: 127.0.0.6"),
    get(ID, b"X-aws-ec2-metadata-token: x"),
    get(ID, b"Host: y"),
    get(ID, b"Accept: a", b" b"),
    get(ID, b"Accept : a"),
    get(ID, b"Acc\x00ept: a"),
    get(ID, b"Accept: \x00"),
    get(ID, b"Accept: " + b"a" * 5000),
    get(ID, *[b"Accept: a"] * 70),
    get(ID, *[b"Accept: " + b"a" * 4000] * 25),
    b"GET " + ID + b" HTTP/1.1\r\n\r\n",
    b"GET " + ID + b" HTTP/1.0\r\n\r\n",
    b"GET " + ID + b" HTTP/1.2\r\nHost: x\r\n\r\n",
    b"GET " + ID + b" HTTP/2.0\r\nHost: x\r\n\r\n",
    b"GET " + ID + b"\r\n\r\n",
    b"GET " + ID + b" http/1.1\r\nHost: x\r\n\r\n",
    b"GET  " + ID + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET " + ID + b"  HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET\t" + ID + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"get " + ID + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD " + ID + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PUT /latest/api/token HTTP/1.1\r\nHost: x\r\n\r\n",
    b"BREW " + ID + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    PLAIN.replace(b"\r\n", b"\n"),
    b"GET " + ID + b" HTTP/1.1\nHost: x\r\n\r\n",
    b"\r\n" + PLAIN,
    PLAIN * 3,
    PLAIN + b"\x00\xff garbage\r\n\r\n",
    PLAIN + get(b"/healthz") + PLAIN,
    PLAIN + get(SCRIPT) + PLAIN,
    get(SCRIPT) * 3,
    b"HEAD " + SCRIPT + HEAD,
    PLAIN + b"GET " + USER_DATA + HEAD + b"HEAD " + ID + HEAD + PLAIN,
    PLAIN + get(ID, b"Content-Length: 3") + b"abc" + PLAIN,
    b"GET " + USER_DATA + HEAD + PLAIN * 100,
]


def test_every_answer_is_what_aiohttp_would_say(edges):
    for request in CORPUS:
        for ip in (IP, STRANGER):
            fast, slow = edges.both([request + LAST], ip)
            assert fast == slow, (request, ip)
            assert fast.startswith(b"HTTP/1."), request


def test_who_closes_its_side_after_a_request_is_answered_as_by_aiohttp(edges):
    for request in CORPUS:
        fast, slow = edges.both([request], half_close=True)
        assert fast == slow, request
        assert fast.startswith(b"HTTP/1.") or not request.startswith(PLAIN), request


def test_request_that_comes_byte_by_byte_is_answered_the_same(edges):
    sent = PLAIN + b"GET " + USER_DATA + HEAD + LAST
    fast, slow = edges.both([bytes([byte]) for byte in sent])
    assert fast == slow
    assert fast.count(b"HTTP/1.1 200 ") == 3
    for cut in range(1, len(sent), 7):
        assert edges.both([sent[:cut], sent[cut:]])[0] == slow


LINES = st.sampled_from(
    b"Host: x|Host: y|Accept: */*|Accept:|User-Agent: a b|User-Agent: \xff|Connection: keep-alive|Connection: close|"
    b"Connection: x|Content-Length: 0|Content-Length: 4|Transfer-Encoding: chunked|Expect: 100-continue|Upgrade: x|"
    b" fold|Range: bytes=0-1|If-Match: *|X-Forwarded-For: 127.0.0.6|Cache-Control: no-cache|: x|nonsense|Accept : x|"
    b"X:\x00".split(b"|")
)
REQUESTS = st.builds(
    lambda method, target, version, lines, end, body: (
        method + b" " + target + b" " + version + b"".join(b"\r\n" + line for line in lines) + end + body
    ),
    st.sampled_from(b"GET GET GET GET GET HEAD get POST".split()),
    st.one_of(st.sampled_from(TARGETS), st.binary(max_size=20)),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.10", b""]),
    st.lists(LINES, max_size=4),
    st.sampled_from([b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b"\r\n\n"]),
    st.sampled_from([b"", b"", b"abcd", b"0\r\n\r\n", b"\r\n", b"\x00"]),
)
CONVERSATIONS = st.lists(st.one_of(st.just(PLAIN), REQUESTS), min_size=1, max_size=4)


def test_no_conversation_tells_that_there_is_a_lane(edges):
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(CONVERSATIONS)
    def check(requests: list[bytes]) -> None:
        fast, slow = edges.both([b"".join(requests) + LAST])
        assert fast == slow

    check()


# --- answers that are ready ---


@pytest.mark.parametrize(
    "response",
    [
        lambda: web.Response(body=b"m1", content_type="text/plain", charset="utf-8"),
        lambda: web.Response(body=b"", content_type="text/plain"),
        lambda: web.Response(text="not found\n", status=404, headers={"Cache-Control": "no-store"}),
        lambda: web.Response(body=b"b" * 40_000),
        lambda: web.Response(),
    ],
)
async def test_ready_answer_is_the_one_aiohttp_sends(response):
    async def answer(_request: web.Request) -> web.Response:
        return response()

    said = []
    for prepared in ({b"/": PreparedResponse.of(response())}, None):
        loop = asyncio.get_running_loop()
        server = BoundedServer(answer, Limits(), loop.time, {"": prepared, "127.0.0.1": prepared}.get)
        listening = await loop.create_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        request = get(b"/") + get(b"/", b"Connection: close")
        try:
            said.append(await asyncio.to_thread(_said, port, [request], "127.0.0.1"))
        finally:  # uvloop waits for what is open, for ever
            listening.close()
            await server.shutdown(1)
    assert said[0] == said[1]
    assert said[0].count(b"HTTP/1.1 ") == 2


def test_answer_that_is_no_bytes_is_not_taken_for_ready():
    with pytest.raises(TypeError):
        PreparedResponse.of(web.Response(body=bytearray(b"x")))


async def test_plain_request_needs_no_aiohttp_and_is_on_the_journey(rack, monkeypatch):
    rack.register()
    monkeypatch.setattr(rack.runner.server, "handler", None)  # whoever goes there breaks
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    for _ in range(3):
        writer.write(PLAIN)
        assert b"200 OK" in await reader.readuntil(b"m1")
    writer.close()
    await writer.wait_closed()
    lines = [message for step, _, message in rack.lines() if step is Step.METADATA]
    assert lines == ["instance-id to Cloud-Init/22.4.2"]


async def test_script_needs_no_aiohttp_and_each_one_is_on_the_journey(rack, monkeypatch):
    rack.register()
    monkeypatch.setattr(rack.runner.server, "handler", None)  # whoever goes there breaks
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    for target in (SCRIPT, b"/auto.ipxe", b"/52:54:00:00:00:01/auto.ipxe", b"/ipxe/script/auto.ipxe"):
        writer.write(get(target, b"User-Agent: iPXE/1.21.1"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200 OK" in head
        length = int(re.findall(rb"Content-Length: (\d+)", head)[0])
        body = await reader.readexactly(length)
        assert body.startswith(b"#!ipxe\n")
        assert b"kernel http://127.0.0.1:7080/osie/lab/kernel " in body
    writer.close()
    await writer.wait_closed()
    scripts = [event for event in rack.journey.events("52:54:00:00:00:01") if event.step is Step.SCRIPT]
    assert [event.message for event in scripts] == ["script sent: OSIE default/lab"] * 4
    assert scripts[0].detail == {"client": "iPXE/1.21.1", "boots": "osie", "osie": "default/lab"}


async def test_script_of_an_open_connection_is_decided_on_each_time(rack):
    rack.register()
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))

    async def script() -> bytes:
        writer.write(get(SCRIPT))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        return await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)", head)[0]))

    try:
        assert b"/osie/lab/kernel " in await script()
        lab = rack.osies.pop(("default", "lab"))
        assert b"OSIE default/lab" in await script()
        rack.osies["default", "lab"] = lab
        assert b"/osie/lab/kernel " in await script()
        rack.register(interface={"disableNetboot": True})
        assert b"/osie/lab/kernel " not in await script()
        rack.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
        assert b"no Hardware has this MAC address" in await script()
    finally:
        writer.close()
        await writer.wait_closed()
    outcomes = [outcome for step, outcome, _ in rack.lines() if step is Step.SCRIPT]
    assert outcomes == [Outcome.OK, Outcome.FAILED, Outcome.OK, Outcome.REFUSED]


async def test_script_of_a_mac_that_two_hardware_claim_is_left_to_aiohttp(rack):
    rack.register()
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    writer.write(get(SCRIPT))
    await asyncio.wait_for(reader.readuntil(b"/osie/lab/kernel "), 20)
    interfaces = {"52:54:00:00:00:01": {"dhcp": {"ip": "127.0.0.6"}}}
    other = {"metadata": {"name": "m9", "namespace": "default"}, "spec": {"networkInterfaces": interfaces}}
    rack.inventory.apply(other)
    assert not any(b"auto.ipxe" in target for target in rack.runner.server.responses(IP) or ())
    writer.close()
    await writer.wait_closed()


async def test_change_of_the_hardware_is_seen_on_an_open_connection(rack):
    rack.register()
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    writer.write(PLAIN)
    await reader.readuntil(b"\r\n\r\nm1")
    rack.register(instance={"userdata": "changed"})
    writer.write(b"GET " + USER_DATA + HEAD)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\nchanged"), 20)
    writer.close()
    await writer.wait_closed()


# --- heads ---


async def test_heads_that_are_kept_are_few_and_short():
    heads = KnownHeads(asyncio.get_running_loop(), {})
    for number in range(3 * MAX_HEADS):
        assert heads.client(b" HTTP/1.1\r\nHost: x\r\nUser-Agent: %d x\r\n\r\n" % number) == str(number)
    assert len(heads.known) == MAX_HEADS
    assert heads.client(b" HTTP/1.1\r\nUser-Agent: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n") is None


@pytest.mark.parametrize(
    "head",
    [
        b" HTTP/1.0\r\nHost: h\r\n\r\n",
        b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b" HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b" HTTP/1.1\r\nHost: h\r\nX-Anything: x\r\n\r\n",
        b" HTTP/1.1\r\nHost: h\r\nHost : x\r\n\r\n",
        b" x HTTP/1.1\r\nHost: h\r\n\r\n",
        b"x HTTP/1.1\r\nHost: h\r\n\r\n",
        b" HTTP/1.1\r\nHost: h\r\nAccept: x",
        b" HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
)
async def test_head_that_could_change_an_answer_is_left_to_aiohttp(head):
    heads = KnownHeads(asyncio.get_running_loop(), {})
    assert heads.client(b" HTTP/1.1\r\nHost: h\r\n\r\n") is not None
    assert heads.client(head) is None
    assert heads.client(head) is None


# --- floods ---


async def _waits(rack: Rack, seconds: float) -> float:
    """What the loop's thread does, in seconds, until a machine has its document, each on a connection of its own.

    Of the processor, not by the clock, which says how busy the machine is that tests; the median."""
    loop = asyncio.get_running_loop()
    took, end = [], loop.time() + seconds
    while loop.time() < end:
        began = time.thread_time()
        reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=("127.0.0.6", 0))
        writer.write(PLAIN)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\nm2"), 20)
        writer.close()
        took.append(time.thread_time() - began)
        await asyncio.sleep(0.01)
    return statistics.median(took)


FLOODS = {
    "requests whose answers nobody reads": b"GET " + USER_DATA + HEAD,
    "small requests": PLAIN,
    "requests of changing clients": b"",
    "garbage": b"\x00\xff\r\n\r\n",
    "unknown methods": b"BREW / HTTP/1.1\r\n\r\n",
    "endless heads": b"GET / HTTP/1.1\r\nAccept: " + b"a" * 100_000,
}


@pytest.mark.parametrize("what", list(FLOODS))
async def test_flood_keeps_no_other_machine_waiting_and_takes_no_memory(other_rack, what):
    async with other_rack(limits=Limits(per_address=4)) as rack:
        rack.register(instance={"userdata": "u" * 60_000})
        rack.register("m2", "52:54:00:00:00:02", "127.0.0.6")
        stop = threading.Event()
        threads = [threading.Thread(target=_flood, args=(rack.port, FLOODS[what], stop)) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            assert await _waits(rack, 0.7) < 0.5
            for connection in rack.runner.server._open:
                assert connection.transport.get_write_buffer_size() < 512 * 1024
        finally:
            stop.set()
            for thread in threads:
                await asyncio.to_thread(thread.join)


def _flood(port: int, request: bytes, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.001):
        number += 1
        many = request * 50 or get(ID, b"User-Agent: %d" % number) * 50
        try:
            with socket.create_connection(("127.0.0.1", port), 1, (IP, 0)) as sock:
                sock.settimeout(0.1)
                for _ in range(20):
                    sock.sendall(many)
        except OSError:
            continue


@pytest.mark.parametrize("count", [20, 2000])  # in one segment, which is plain to its end, and in many
async def test_answers_that_nobody_reads_do_not_pile_up(other_rack, count):
    async with other_rack() as rack:
        rack.register(instance={"userdata": "u" * 30_000})
        reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0), limit=2**20)
        reader._transport.pause_reading()
        writer.write((b"GET " + USER_DATA + HEAD) * count)
        await asyncio.sleep(0.4)
        (connection,) = rack.runner.server._open
        assert connection.transport.get_write_buffer_size() < 4 * fast_path.MAX_AT_ONCE_BYTES
        assert not connection.on_fast_path
        reader._transport.resume_reading()
        for _ in range(count):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n" + b"u" * 30_000), 20)
        writer.close()
        await writer.wait_closed()


# --- what connections promise, in the connection ---


async def test_lane_that_is_idle_is_closed_in_time_and_one_in_use_is_not(other_rack):
    async with other_rack(limits=Limits(idle=2.0)) as rack:
        rack.register()
        loop = asyncio.get_running_loop()
        idle, other = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
        used, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
        began = loop.time()
        closing = asyncio.create_task(idle.read())
        async with asyncio.timeout(20):
            while not closing.done() or loop.time() < began + 2.5:
                writer.write(PLAIN)
                await used.readuntil(b"\r\n\r\nm1")
                await asyncio.sleep(0.02)
            assert await closing == b""
            assert await used.read() == b""
        other.close()
        writer.close()


async def test_machine_that_goes_at_once_leaves_no_line_in_the_log(rack, caplog):
    def hit_and_run() -> None:
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", rack.port), 1, (IP, 0)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(b"BREW / HTTP/1.1\r\n\r\n")

    await asyncio.to_thread(hit_and_run)
    async with asyncio.timeout(20):
        while rack.runner.server._open:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 1


async def _open(rack: Rack, count: int) -> None:
    """Return when the server has looked at all connections, and `count` of them are left."""
    async with asyncio.timeout(20):
        while len(rack.runner.server._open) != count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(rack.runner.server._open) == count


async def test_flood_from_one_address_leaves_a_lane_its_own_places_only(other_rack):
    async with other_rack(limits=Limits(per_address=2)) as rack:
        rack.register()
        streams = [await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0)) for _ in range(5)]
        await _open(rack, 2)
        streams[-1][1].write(PLAIN)
        await asyncio.wait_for(streams[-1][0].readuntil(b"\r\n\r\nm1"), 20)
        for _, writer in streams:
            writer.close()


async def test_proxy_has_as_many_connections_as_it_needs(other_rack):
    async with other_rack(
        limits=Limits(per_address=2), trusted=TrustedNetworks(proxies=(ip_network("127.0.0.5/32"),))
    ) as rack:
        streams = [await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0)) for _ in range(5)]
        await _open(rack, 5)
        for _, writer in streams:
            writer.close()


async def test_stop_ends_lanes_too(rack):
    rack.register()
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    writer.write(PLAIN)
    await reader.readuntil(b"\r\n\r\nm1")
    async with asyncio.timeout(20):
        await rack.runner.cleanup()
        assert await reader.read() == b""
    writer.close()


async def test_table_that_fails_is_in_the_log_and_harms_nobody_else(rack, monkeypatch, caplog):
    rack.register()
    monkeypatch.setattr(rack.runner.server, "responses", lambda _: 1 / 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(IP, 0))
    writer.write(PLAIN)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    assert "an answer from a table failed" in caplog.text
    monkeypatch.undo()
    assert (await rack.ask("/healthz")).status == 200


SECONDS = 3.0
# Of long headers hypothesis has to make a long text, should something be wrong with them.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

WILD_METHODS = st.sampled_from(b"GET GET GET HEAD POST PUT OPTIONS CONNECT TRACE get PRI".split())
WORDS = st.sampled_from(
    b"osie lab kernel initrd ipxe script binary auto.ipxe latest meta-data nocloud user-data m1 phone-home "
    b"52:54:00:00:00:01 snponly.efi .. %2e%2e %00 %ff ?failed \xff".split()
)
PATHS = st.one_of(
    st.lists(WORDS, max_size=6).map(lambda words: b"/" + b"/".join(words)),
    st.sampled_from(b"/osie/lab/kernel /phone-home/m1 /ipxe/binary/snponly.efi /nocloud/m1/user-data".split()),
    st.sampled_from(b"* http://h:1/osie/lab/kernel http://[::1/x // h:443 http://h:99999999/ #x".split()),
    st.binary(max_size=60),
)
NAMES = st.sampled_from(
    b"Range If-Match If-None-Match If-Range Connection Upgrade Expect Accept Content-Length Transfer-Encoding Host "
    b"Content-Type Content-Encoding User-Agent X,Y \x00".split()
)
VALUES = st.one_of(
    st.sampled_from(
        b'bytes=0- bytes=-5 bytes=9999999- bytes=1-0,3- close keep-alive upgrade chunked 5 -1 99999999999999999999 " * '
        b"gzip websocket 100-continue application/x-www-form-urlencoded multipart/form-data;boundary=x".split()
    ),
    st.just(b"a" * 9000),
    st.binary(max_size=30),
)
HEADERS = st.lists(st.tuples(NAMES, VALUES).map(b": ".join), max_size=8)
VERSIONS = st.sampled_from([b"HTTP/1.1\r\nHost: x", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.", b""])
ENDS = st.sampled_from([b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b""])
BODIES = st.one_of(st.just(b""), st.binary(max_size=60), st.sampled_from([b"0\r\n\r\n", b"5\r\nabcde\r\n", b"zz\r\n"]))
WILD_REQUESTS = st.builds(
    lambda method, path, version, headers, end, body: (
        method + b" " + path + b" " + version + b"".join(b"\r\n" + header for header in headers) + end + body
    ),
    *(WILD_METHODS, PATHS, VERSIONS, HEADERS, ENDS, BODIES),
)
WILD_CONVERSATIONS = st.one_of(st.lists(WILD_REQUESTS, min_size=1, max_size=3).map(b"".join), st.binary(max_size=200))


class Served:
    """The server, in a thread of its own: hypothesis calls the test again and again without a loop."""

    def __init__(self, open_rack: Any) -> None:
        self.port = 0
        self._open_rack = open_rack
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        self._stop, self._loop = asyncio.Event(), asyncio.get_running_loop()
        async with self._open_rack(limits=Limits(idle=0.3, unread=0.6)) as rack:
            rack.register()
            rack.upstream.content = rack.upstream.content[:5000]
            await rack.ask("/osie/lab/kernel")
            self.port = rack.port
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def say(self, sent: bytes, *, half_close: bool) -> bytes:
        """What comes back until the server closes. Raises TimeoutError."""
        with socket.create_connection(("127.0.0.1", self.port), SECONDS, (IP, 0)) as sock:
            answer = b""
            try:
                sock.sendall(sent)
                if half_close:
                    sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65536):
                    answer += part
            except ConnectionError:
                pass
            return answer


@pytest.fixture(scope="module")
def heard() -> Iterator[list[logging.LogRecord]]:
    """Everything that is logged as a mistake of ours, or with what strangers sent as they sent it."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR or record.exc_info or not record.getMessage().isprintable():
                records.append(record)

    handler = Keep()
    logging.getLogger().addHandler(handler)
    yield records
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def served(tmp_path: Path, other_rack: Any) -> Iterator[Served]:
    server = Served(other_rack)
    yield server
    server.stop()


def test_nothing_that_is_sent_breaks_the_server(served, heard):
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(WILD_CONVERSATIONS, st.booleans())
    def check(sent: bytes, half_close: bool) -> None:
        answer = served.say(sent, half_close=half_close)
        for status in re.findall(rb"^HTTP/1\.[01] (\d+) ", answer, re.M):
            assert status[:1] != b"5" or status == b"501", (sent, answer[:500])  # 501: no such method
        assert answer == b"" or answer.startswith(b"HTTP/1."), (sent, answer[:500])
        assert heard == [], (sent, heard[0].getMessage())

    check()
    assert served.say(b"GET /healthz HTTP/1.0\r\n\r\n", half_close=False).endswith(b"ok\n")
