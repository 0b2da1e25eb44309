"""gRPC over HTTP/2 (RFC 9113) for one agent, in a few kilobytes: calls with one answer, and one stream of answers.

grpcio needs a hundred kilobytes per connection and can't bind a source address. Here a call is two frames. Of the
answer, messages, the token and the status are read. The server's flow-control windows are respected; ours are as wide
as possible. The owner of a connection gets these calls:

    connected()                        the connection is established (and with TLS, verified)
    lost(why)                          the connection is lost, and all calls have ended
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from edge.fleet.protocols import hpack

PING_SECONDS: Final = 20.0
"""The agent's keepalive interval."""
UNKNOWN: Final = 2
UNAVAILABLE: Final = 14
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
_PADDED, _PRIORITY = 0x8, 0x20
_WIDE: Final = (1 << 31) - 1
_FIRST_WINDOW: Final = 65_535
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4
_MAX_FRAME_BYTES: Final = 16_384
"""Our maximum frame size; messages of agents are smaller."""
_COMMON: Final = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"tinkedge-fleet"))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


_PREFACE: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(
        _SETTINGS, 0, 0,
        _HEADER_TABLE_SIZE.to_bytes(2, "big") + bytes(4)
        + _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + _WIDE.to_bytes(4, "big"),
    )
    + _frame(_WINDOW_UPDATE, 0, 0, (_WIDE - _FIRST_WINDOW).to_bytes(4, "big"))
)  # fmt: skip

Field = tuple[bytes, bytes]


class Owner(Protocol):
    """The owner of a connection."""

    def connected(self) -> None:
        """The connection is established."""

    def lost(self, why: str) -> None:
        """The connection is lost. Its calls have ended with UNAVAILABLE before."""


class Call:
    """A running call.

    `ended(status, message)` is called once at its end, with gRPC's status; `message(bytes)` with each answer;
    `opened(fields)` with the first headers.
    """

    __slots__ = ("_answers", "ended", "message", "opened")

    def __init__(
        self,
        ended: Callable[[int, str], None],
        message: Callable[[bytes], None] | None = None,
        opened: Callable[[dict[str, str]], None] | None = None,
    ) -> None:
        self.ended = ended
        self.message = message
        self.opened = opened
        self._answers = b""

    def take(self, payload: bytes) -> None:
        """Process a piece of the answers (gRPC's Length-Prefixed-Message)."""
        if self.message is None:
            return
        self._answers += payload
        while len(self._answers) >= 5:
            end = 5 + int.from_bytes(self._answers[1:5], "big")
            if len(self._answers) < end:
                return
            answer, self._answers = self._answers[5:end], self._answers[end:]
            self.message(answer)


class Connection(asyncio.Protocol):
    """An HTTP/2 connection to a gRPC server. `authority`: as in the URL."""

    __slots__ = (
        "_authority", "_buffer", "_calls", "_next", "_owner", "_ping", "_transport", "_waiting", "_window",
        "clock_check",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, authority: str, clock_check: Callable[[dict[str, Any]], str] | None = None
    ) -> None:
        """Create a connection.

        `clock_check` gets the server's certificate (TLS) and returns why it is invalid, or "".
        """
        self._owner: Owner | None = owner
        self._authority = authority.encode()
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._calls: dict[int, Call] = {}
        self._next = 1
        self._window = _FIRST_WINDOW
        self._waiting: deque[tuple[int, bytes, int]] = deque()
        """Data blocked by the server's window: stream, message, flags."""
        self._ping: asyncio.TimerHandle | None = None
        self.clock_check = clock_check

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the settings; part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        if self.clock_check is not None:
            tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
            if tls is not None and (why := self.clock_check(cast(dict[str, Any], tls.getpeercert() or {}))):
                self._lost(why)
                return
        self._transport.write(_PREFACE)
        self._ping = asyncio.get_running_loop().call_later(PING_SECONDS, self._send_ping)
        if self._owner is not None:
            self._owner.connected()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls; part of asyncio.Protocol."""
        self._lost(f"the connection was closed{f': {exc}' if exc else ''}")

    def close(self) -> None:
        """Close the connection without further callbacks."""
        self._owner = None
        self._calls.clear()
        self._lost("")

    def _lost(self, why: str) -> None:
        if self._ping is not None:
            self._ping.cancel()
            self._ping = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        calls, self._calls = self._calls, {}
        self._waiting.clear()
        for call in calls.values():
            call.ended(UNAVAILABLE, why)
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.lost(why)

    def _send_ping(self) -> None:
        if self._transport is not None:
            self._transport.write(_frame(_PING, 0, 0, bytes(8)))
            self._ping = asyncio.get_running_loop().call_later(PING_SECONDS, self._send_ping)

    # --- calls ---

    def call(self, method: bytes, messages: tuple[bytes, ...], fields: tuple[Field, ...], call: Call) -> None:
        """Start a call and send all its messages; `method` is /package.Service/Method."""
        if self._transport is None:
            call.ended(UNAVAILABLE, "there is no connection")
            return
        stream, self._next = self._next, self._next + 2
        self._calls[stream] = call
        block = hpack.request(method, self._authority, (*_COMMON, *fields))
        self._transport.write(_frame(_HEADERS, _END_HEADERS, stream, block))
        for number, message in enumerate(messages, 1):
            body = b"\0" + len(message).to_bytes(4, "big") + message
            last = number == len(messages)
            for at in range(0, len(body), _MAX_FRAME_BYTES):
                piece = body[at : at + _MAX_FRAME_BYTES]
                self._waiting.append((stream, piece, _END_STREAM if last and at + len(piece) == len(body) else 0))
        self._send_waiting()

    def _send_waiting(self) -> None:
        pieces = []
        while self._waiting and len(self._waiting[0][1]) <= self._window:
            stream, piece, flags = self._waiting.popleft()
            self._window -= len(piece)
            pieces.append(_frame(_DATA, flags, stream, piece))
        if pieces and self._transport is not None:
            self._transport.write(b"".join(pieces))

    # --- frames ---

    def data_received(self, data: bytes) -> None:
        """Process received bytes; part of asyncio.Protocol."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        try:
            while len(buffer) - at >= 9 and self._transport is not None:
                end = at + 9 + int.from_bytes(buffer[at : at + 3], "big")
                if end > len(buffer):
                    break
                stream = int.from_bytes(buffer[at + 5 : at + 9], "big") & _WIDE
                self._take(buffer[at + 3], buffer[at + 4], stream, buffer[at + 9 : end])
                at = end
        except (hpack.HpackError, ValueError) as error:
            self._lost(f"the server sends what is no gRPC: {error}")
        self._buffer = buffer[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            if (call := self._calls.get(stream)) is not None:
                call.take(payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload)
                if flags & _END_STREAM:
                    self._end(stream, UNKNOWN, "the stream ended without a status")
        elif kind == _HEADERS:
            self._headers(flags, stream, payload)
        elif kind == _SETTINGS and not flags & _ACK:
            self._write(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload[:4], "big") & _WIDE
            self._send_waiting()
        elif kind == _RESET:
            self._end(stream, UNAVAILABLE, f"the stream was reset ({int.from_bytes(payload[:4], 'big')})")
        elif kind == _GOAWAY:
            self._lost("the server is going away")

    def _write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & _PRIORITY:
            payload = payload[5:]
        found = hpack.fields(payload) if flags & _END_HEADERS else {}
        if flags & _END_STREAM:
            status = found.get("grpc-status", "")
            self._end(stream, int(status) if status.isdecimal() else UNKNOWN, found.get("grpc-message", ""))
        elif call.opened is not None:
            call.opened(found)

    def _end(self, stream: int, status: int, message: str) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.ended(status, message)
