"""The fast path: the same bytes as aiohttp's, whatever is asked; floods that keep no one else out; and fuzzing.

Bytes that strangers might send to the machines' port: never a 500, a traceback, a hanging connection, or a crash.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.http import connections
from edge.http.connections import BoundedServer, HttpLimits
from edge.http.fast_path import MAX_HEAD_BYTES, MAX_HEADS, KnownHeads, PreparedResponse
from edge.journey.events import Outcome, Step
from tests.support.objects import MAC, OTHER_MAC, hardware
from tests.support.virtual_time import elapse, turns
from tests.unit.http.conftest import IP, OTHER_IP, STRANGER, at_once
from tests.waiting import PATIENCE_SECONDS, until

# Of long headers hypothesis has to make a long text, should something be wrong with them.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Generating overly large repr")]
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
    """Two edges with the same machine, in a thread of their own: one with the fast path, one without.

    Hypothesis calls a test again and again without a loop.
    """

    def __init__(self, open_rack: Callable[..., Any], tmp_path: Path, limits: HttpLimits) -> None:
        self._open_rack, self._limits = open_rack, limits
        self._places = tmp_path / "fast", tmp_path / "slow"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(PATIENCE_SECONDS)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        for place in self._places:
            place.mkdir()
        async with (
            self._open_rack(self._places[0], limits=self._limits) as self.fast,
            self._open_rack(self._places[1], limits=self._limits, fast_path=False) as self.slow,
        ):
            for rack in (self.fast, self.slow):
                rack.register(instance={"userdata": "#cloud-config\n" + "#" * 3000})
                rack.upstream.content = rack.upstream.content[:5000]
                await rack.ask("/osie/lab/kernel")
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def both(self, parts: list[bytes], ip: str = IP, *, half_close: bool = False) -> tuple[bytes, bytes]:
        """Return both servers' answers to the same parts. Each part is a segment of its own."""
        fast, slow = (_answer_to(rack.port, parts, ip, half_close) for rack in (self.fast, self.slow))
        return fast, slow


def _answer_to(port: int, parts: list[bytes], ip: str, half_close: bool = False) -> bytes:
    """Return all bytes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, (ip, 0)) as sock:
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
        return re.sub(rb"\r\n(Date|ETag): [^\r]+", rb"\r\n\1: any", answer)  # each has an upstream of its own


@pytest.fixture
def edges(other_rack: Any, tmp_path: Path) -> Iterator[Edges]:
    found = Edges(other_rack.func, tmp_path, HttpLimits(idle=10.0, unread=PATIENCE_SECONDS))
    yield found
    found.stop()


TARGETS = [
    *(ID, USER_DATA, b"/2009-04-04/meta-data/", b"/2009-04-04/meta-data", b"/2009-04-04/", b"/2009-04-04"),
    *(b"/latest/meta-data/local-ipv4", b"/latest/vendor-data", b"/2009-04-04/meta-data/none"),
    *(b"/%s/meta-data/instance-id" % version for version in (b"2021-03-23", b"2018-09-24", b"2016-09-02")),
    *(b"/nocloud/m1/user-data", b"/nocloud/52:54:00:00:00:01/meta-data", b"/nocloud/m2/user-data", b"/metadata"),
    *(b"/2009-04-04/meta-data/instance%2did", b"/" + ID, ID + b"/", ID + b"?x=1", ID + b"#x", b"http://h" + ID),
    *(SCRIPT, SCRIPT + b"?failed", SCRIPT + b"/", b"/auto.ipxe", b"/52:54:00:00:00:01/auto.ipxe"),
    *(b"/ipxe/script/auto.ipxe", b"/ipxe/script/52-54-00-00-00-01/auto.ipxe"),
    *(b"/ipxe/script/52:54:00:00:00:02/auto.ipxe", b"/healthz", b"/", b"*"),
]
CORPUS = [
    *[b"GET " + target + HEAD for target in TARGETS],
    *[
        get(ID, line)
        for line in (
            *(b"User-Agent: ", b"Connection: close", b"Content-Length: 0", b"Expect: 100-continue"),
            *(b"Range: bytes=0-2", b"If-None-Match: *", b"X-Forwarded-For: 127.0.0.6", b"Host: y"),
            *(b"X-aws-ec2-metadata-token: x", b"Accept : a", b"Acc\x00ept: a", b"Accept: \x00"),
            b"Accept: " + b"a" * 5000,
        )
    ],
    get(ID, b"Connection: keep-alive, Upgrade", b"Upgrade: h2c"),
    get(ID, b"Content-Length: 5") + b"abcde",
    get(ID, b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
    get(ID, b"Accept: a", b" b"),
    get(ID, *[b"Accept: a"] * 70),
    get(ID, *[b"Accept: " + b"a" * 4000] * 25),
    *[
        line % ID
        for line in (
            *(b"GET %s HTTP/1.1\r\n\r\n", b"GET %s HTTP/1.0\r\n\r\n", b"GET %s\r\n\r\n"),
            *(b"GET %s HTTP/1.2\r\nHost: x\r\n\r\n", b"GET %s HTTP/2.0\r\nHost: x\r\n\r\n"),
            *(b"GET %s http/1.1\r\nHost: x\r\n\r\n", b"GET  %s HTTP/1.1\r\nHost: x\r\n\r\n"),
            *(b"GET %s  HTTP/1.1\r\nHost: x\r\n\r\n", b"GET\t%s HTTP/1.1\r\nHost: x\r\n\r\n"),
            *(b"get %s HTTP/1.1\r\nHost: x\r\n\r\n", b"HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n"),
            *(b"BREW %s HTTP/1.1\r\nHost: x\r\n\r\n", b"GET %s HTTP/1.1\nHost: x\r\n\r\n"),
        )
    ],
    b"PUT /latest/api/token HTTP/1.1\r\nHost: x\r\n\r\n",
    PLAIN.replace(b"\r\n", b"\n"),
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


def test_every_answer_equals_that_of_aiohttp(edges):
    for request in CORPUS:
        for ip in (IP, STRANGER):
            fast, slow = edges.both([request + LAST], ip, half_close=b"h2c" in request)  # nothing comes after that
            assert fast == slow, (request, ip)
            assert fast.startswith(b"HTTP/1."), request
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


# --- whatever is sent ---


def choice(words: bytes, separator: bytes | None = None) -> st.SearchStrategy[bytes]:
    return st.sampled_from(words.split(separator))


WORDS = choice(
    b"osie lab kernel initrd ipxe script binary auto.ipxe latest meta-data nocloud user-data m1 phone-home "
    b"52:54:00:00:00:01 snponly.efi .. %2e%2e %00 %ff ?failed \xff"
)
PATHS = st.one_of(
    st.sampled_from(TARGETS),
    st.lists(WORDS, max_size=6).map(lambda words: b"/" + b"/".join(words)),
    choice(b"/osie/lab/kernel /phone-home/m1 /ipxe/binary/snponly.efi /nocloud/m1/user-data"),
    choice(b"* http://h:1/osie/lab/kernel http://[::1/x // h:443 http://h:99999999/ #x"),
    st.binary(max_size=60),
)
LINES = choice(
    b"Host: x|Host: y|Accept: */*|Accept:|User-Agent: a b|User-Agent: \xff|Connection: keep-alive|Connection: close|"
    b"Connection: x|Content-Length: 0|Content-Length: 4|Transfer-Encoding: chunked|Expect: 100-continue|Upgrade: x|"
    b" fold|Range: bytes=0-1|If-Match: *|X-Forwarded-For: 127.0.0.6|Cache-Control: no-cache|: x|nonsense|Accept : x|"
    b"X:\x00",
    b"|",
)
NAMES = choice(
    b"Range If-Match If-None-Match If-Range Connection Upgrade Expect Accept Content-Length Transfer-Encoding Host "
    b"Content-Type Content-Encoding User-Agent X,Y \x00"
)
VALUES = st.one_of(
    choice(
        b'bytes=0- bytes=-5 bytes=9999999- bytes=1-0,3- close keep-alive upgrade chunked 5 -1 99999999999999999999 " * '
        b"gzip websocket 100-continue application/x-www-form-urlencoded multipart/form-data;boundary=x"
    ),
    st.just(b"a" * 9000),
    st.binary(max_size=30),
)


def conversations(methods: bytes, paths: Any, lines: Any, bodies: Any) -> st.SearchStrategy[bytes]:
    requests = st.builds(
        lambda method, path, version, headers, end, body: (
            method + b" " + path + b" " + version + b"".join(b"\r\n" + header for header in headers) + end + body
        ),
        choice(methods),
        paths,
        choice(b"HTTP/1.1\r\nHost: x|HTTP/1.1|HTTP/1.1|HTTP/1.0|HTTP/1.10|HTTP/2.0|HTTP/1.|", b"|"),
        st.lists(lines, max_size=6),
        st.sampled_from([b"\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b"\r\n\n", b""]),
        bodies,
    )
    return st.lists(st.one_of(st.just(PLAIN), requests), min_size=1, max_size=4).map(b"".join)


BODIES = choice(b"||abcd|0\r\n\r\n|\r\n|\x00", b"|")
TAME = conversations(b"GET GET GET GET GET HEAD get POST", st.sampled_from(TARGETS), LINES, BODIES)
WILD = conversations(
    b"GET GET GET GET HEAD get POST PUT OPTIONS CONNECT TRACE PRI",
    PATHS,
    LINES | st.tuples(NAMES, VALUES).map(b": ".join),
    st.one_of(BODIES, choice(b"5\r\nabcde\r\n|zz\r\n", b"|"), st.binary(max_size=60)),
)


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
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


@pytest.mark.parametrize("tame", [True, False])
def test_no_conversation_breaks_the_server_or_reveals_the_fast_path(edges, log_records, tame):
    @settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(TAME if tame else st.one_of(WILD, st.binary(max_size=200)))
    def check(sent: bytes) -> None:
        fast, slow = edges.both([sent + LAST] if tame else [sent], half_close=not tame)
        assert fast == slow or not tame  # an answer may be lost where a request is not whole when its sender closes
        for answer in (fast, slow):
            for status in re.findall(rb"^HTTP/1\.[01] (\d+) ", answer, re.M):
                assert status[:1] != b"5" or status == b"501", (sent, answer[:500])  # 501: no such method
            assert answer == b"" or answer.startswith(b"HTTP/1."), (sent, answer[:500])
        assert log_records == [], (sent, log_records[0].getMessage())

    check()
    assert edges.both([b"GET /healthz HTTP/1.0\r\n\r\n"])[0].endswith(b"ok\n")


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

    reported = []
    for prepared in ({b"/": PreparedResponse.of(response())}, None):
        loop = asyncio.get_running_loop()
        server = BoundedServer(answer, HttpLimits(), loop.time, {"": prepared, "127.0.0.1": prepared}.get)
        listening = await loop.create_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        request = get(b"/") + get(b"/", b"Connection: close")
        try:
            reported.append(await asyncio.to_thread(_answer_to, port, [request], "127.0.0.1"))
        finally:  # otherwise uvloop would wait without end
            listening.close()
            await server.shutdown(1)
    assert reported[0] == reported[1]
    assert reported[0].count(b"HTTP/1.1 ") == 2


def test_answer_that_is_no_bytes_is_not_taken_for_ready():
    with pytest.raises(TypeError):
        PreparedResponse.of(web.Response(body=bytearray(b"x")))


async def test_plain_requests_and_scripts_need_no_aiohttp_and_are_on_the_journey(rack, monkeypatch):
    rack.register()
    monkeypatch.setattr(rack.runner.server, "handler", None)  # a request that leaves the fast path fails
    connection = await rack.connect()
    for _ in range(3):
        assert (await connection.ask(PLAIN)).endswith(b"\r\n\r\nm1")
    for target in (SCRIPT, b"/auto.ipxe", b"/52:54:00:00:00:01/auto.ipxe", b"/ipxe/script/auto.ipxe"):
        head, _, body = (await connection.ask(get(target, b"User-Agent: iPXE/1.21.1"))).partition(b"\r\n\r\n")
        assert b"200 OK" in head
        assert body.startswith(b"#!ipxe\n")
        assert b"kernel http://127.0.0.1:7080/osie/lab/kernel " in body
    assert [message for _, _, message in rack.lines()] == [
        "instance-id to Cloud-Init/22.4.2",
        *["script sent: OSIE default/lab"] * 4,
    ]
    assert rack.ends()[1].detail == {"client": "iPXE/1.21.1", "boots": "osie", "osie": "default/lab"}


async def test_script_of_an_open_connection_is_decided_on_each_time(rack):
    rack.register()
    connection = await rack.connect()
    assert b"/osie/lab/kernel " in await connection.ask(get(SCRIPT))
    lab = rack.osies.pop(("default", "lab"))
    assert b"OSIE default/lab" in await connection.ask(get(SCRIPT))
    rack.osies["default", "lab"] = lab
    assert b"/osie/lab/kernel " in await connection.ask(get(SCRIPT))
    rack.register(interface={"disableNetboot": True})
    assert b"/osie/lab/kernel " not in await connection.ask(get(SCRIPT))
    rack.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    assert b"no Hardware has this MAC address" in await connection.ask(get(SCRIPT))
    outcomes = [outcome for step, outcome, _ in rack.lines() if step is Step.SCRIPT]
    assert outcomes == [Outcome.OK, Outcome.FAILED, Outcome.OK, Outcome.REFUSED]


async def test_change_of_the_hardware_is_seen_on_an_open_connection(rack):
    rack.register()
    connection = await rack.connect()
    assert (await connection.ask(PLAIN)).endswith(b"\r\n\r\nm1")
    rack.register(instance={"userdata": "changed"})
    assert (await connection.ask(b"GET " + USER_DATA + HEAD)).endswith(b"\r\n\r\nchanged")
    assert b"/osie/lab/kernel " in await connection.ask(get(SCRIPT))
    rack.inventory.apply(hardware("m9", MAC, OTHER_IP))  # two claim the MAC: its script is left to aiohttp
    assert not any(b"auto.ipxe" in target for target in rack.runner.server.responses(IP) or ())


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


FLOODS = {
    "answers nobody reads": b"GET " + USER_DATA + HEAD,
    "small requests": PLAIN,
    "changing clients": b"",
    "garbage": b"\x00\xff\r\n\r\n",
    "unknown methods": b"BREW / HTTP/1.1\r\n\r\n",
    "endless heads": b"GET / HTTP/1.1\r\nAccept: " + b"a" * 100_000,
}


async def test_flood_keeps_no_other_machine_out_and_takes_no_memory(other_rack):
    async with other_rack(limits=HttpLimits(per_address=4)) as rack:
        rack.register(instance={"userdata": "u" * 60_000})
        rack.register("m2", OTHER_MAC, OTHER_IP)
        stop = threading.Event()
        floods = [asyncio.to_thread(_flood, rack.port, [*FLOODS.values()], stop) for _ in range(4)]
        flooding = asyncio.gather(*floods)
        try:
            for _ in range(12):
                machine = await rack.connect(OTHER_IP)
                assert (await machine.ask(PLAIN)).endswith(b"\r\n\r\nm2")
                machine.writer.close()
                for connection in rack.open:
                    assert connection.transport.get_write_buffer_size() < 512 * 1024
        finally:
            stop.set()
            await flooding


def _flood(port: int, requests: list[bytes], stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.001):
        number += 1
        many = requests[number % len(requests)] * 50 or get(ID, b"User-Agent: %d" % number) * 50
        try:
            with socket.create_connection(("127.0.0.1", port), 1, (IP, 0)) as sock:
                sock.settimeout(0.1)
                for _ in range(20):
                    sock.sendall(many)
        except OSError:
            continue


@pytest.mark.parametrize("count", [20, 500])  # in one segment, which is plain to its end, and in many
async def test_unread_answers_do_not_accumulate(other_rack, count):
    async with other_rack() as rack:
        rack.register(instance={"userdata": "u" * 30_000})
        client = await rack.connect()
        client.writer.transport.pause_reading()
        client.write((b"GET " + USER_DATA + HEAD) * count)
        await until(lambda: [each.on_fast_path for each in rack.open] == [False])
        await turns(100)
        (connection,) = rack.open
        assert connection.transport.get_write_buffer_size() < 4 * connections.MAX_AT_ONCE_BYTES
        client.writer.transport.resume_reading()
        for _ in range(count):
            assert (await client.ask(b"")).endswith(b"\r\n\r\n" + b"u" * 30_000)


# --- what connections promise, in the connection ---


@pytest.mark.looptime
async def test_lane_that_is_idle_is_closed_in_time_and_one_in_use_is_not(other_rack):
    async with other_rack(limits=HttpLimits(idle=30.0)) as rack:
        rack.register()
        idle, used = await rack.connect(), await rack.connect()
        for _ in range(2):
            assert (await at_once(used.ask(PLAIN))).endswith(b"\r\n\r\nm1")
            assert len(rack.open) == 2
            await elapse(16)
        assert await at_once(idle.rest()) == b""
        assert (await at_once(used.ask(PLAIN))).endswith(b"\r\n\r\nm1")
        await elapse(33)
        assert await at_once(used.rest()) == b""


async def test_machine_that_goes_at_once_leaves_no_line_in_the_log(rack, caplog):
    def hit_and_run() -> None:
        for _ in range(100):
            with socket.create_connection(("127.0.0.1", rack.port), 1, (IP, 0)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(b"BREW / HTTP/1.1\r\n\r\n")

    await asyncio.to_thread(hit_and_run)
    assert (await rack.ask("/healthz")).status == 200  # accepted after all of them
    await until(lambda: len(rack.open) == 1)
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 1


async def test_table_that_fails_is_logged_and_other_connections_go_on(rack, monkeypatch, caplog):
    rack.register()
    monkeypatch.setattr(rack.runner.server, "responses", lambda _: 1 / 0)
    assert await rack.exchange(PLAIN) == b""
    assert "an answer from a table failed" in caplog.text
    monkeypatch.undo()
    assert (await rack.ask("/healthz")).status == 200
