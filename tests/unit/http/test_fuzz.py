"""Bytes that strangers might send to the machines' port: never a 500, a traceback, a hanging connection, or a crash."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.http.transport.connections import Limits

IP = "127.0.0.5"
SECONDS = 3.0
# Of long headers hypothesis has to make a long text, should something be wrong with them.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

METHODS = st.sampled_from(b"GET GET GET HEAD POST PUT OPTIONS CONNECT TRACE get PRI".split())
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
REQUESTS = st.builds(
    lambda method, path, version, headers, end, body: (
        method + b" " + path + b" " + version + b"".join(b"\r\n" + header for header in headers) + end + body
    ),
    *(METHODS, PATHS, VERSIONS, HEADERS, ENDS, BODIES),
)
CONVERSATIONS = st.one_of(st.lists(REQUESTS, min_size=1, max_size=3).map(b"".join), st.binary(max_size=200))


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
        assert self._loop is not None
        assert self._stop is not None
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


def test_nothing_that_is_sent_breaks_the_server(served: Served, heard: list[logging.LogRecord]) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(CONVERSATIONS, st.booleans())
    def check(sent: bytes, half_close: bool) -> None:
        answer = served.say(sent, half_close=half_close)
        for status in re.findall(rb"^HTTP/1\.[01] (\d+) ", answer, re.M):
            assert status[:1] != b"5" or status == b"501", (sent, answer[:500])  # 501: no such method
        assert answer == b"" or answer.startswith(b"HTTP/1."), (sent, answer[:500])
        assert heard == [], (sent, heard[0].getMessage())

    check()
    assert served.say(b"GET /healthz HTTP/1.0\r\n\r\n", half_close=False).endswith(b"ok\n")
