"""gRPC over HTTP/2 for one agent, in some 15 kilobytes: calls with one request, and one answer or a stream of them.

grpcio needs a hundred kilobytes per connection and can't bind a source address. `h2` has the protocol's state; this
module writes one message per call, and reads messages, the token and the status. The server's windows are respected.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError

PING_SECONDS: Final = 20.0
"""The agent's keepalive interval."""
UNKNOWN: Final = 2
UNAVAILABLE: Final = 14
_COMMON: Final = ((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"user-agent", b"tinkedge-fleet"))
# The checks of h2 are for clients and servers under test; without them a call costs two thirds of the time.
_CONFIGURATION: Final = H2Configuration(
    client_side=True, header_encoding="latin-1", validate_outbound_headers=False, normalize_outbound_headers=False,
    validate_inbound_headers=False, normalize_inbound_headers=False,
)  # fmt: skip

Field = tuple[bytes, bytes]


@dataclass(eq=False, slots=True)
class Call:
    """A running call.

    `ended(status, message)` is called once at its end, with gRPC's status; `message(bytes)` with each answer;
    `opened(fields)` with the first headers.
    """

    ended: Callable[[int, str], None]
    message: Callable[[bytes], None] | None = None
    opened: Callable[[dict[str, str]], None] | None = None
    _answers: bytes = field(default=b"", init=False)

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


class GrpcConnection(asyncio.Protocol):
    """An HTTP/2 connection to a gRPC server.

    authority: host and port, as in the URL.
    connected: called when the connection is established (and with TLS, verified).
    lost: called with the reason when the connection is lost, after all calls have ended with UNAVAILABLE.
    clock_check: gets the server's certificate (TLS) and returns why it is invalid, or "".
    """

    __slots__ = (
        "_authority", "_calls", "_clock_check", "_connected", "_http2", "_lost", "_ping", "_transport", "_unsent",
    )  # fmt: skip

    def __init__(
        self,
        authority: str,
        connected: Callable[[], None],
        lost: Callable[[str], None],
        clock_check: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        self._authority = authority.encode()
        self._connected = connected
        self._lost: Callable[[str], None] | None = lost
        self._clock_check = clock_check
        self._http2 = H2Connection(_CONFIGURATION)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, Call] = {}
        self._unsent: deque[tuple[int, bytes]] = deque()
        """Streams and the rest of their messages, which the server's window does not admit yet."""
        self._ping: asyncio.TimerHandle | None = None

    # --- the connection ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and the settings; part of asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        if self._clock_check is not None:
            tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
            if tls is not None and (why := self._clock_check(cast(dict[str, Any], tls.getpeercert() or {}))):
                self._end_all(why)
                return
        self._http2.initiate_connection()
        self._flush()
        self._ping = asyncio.get_running_loop().call_later(PING_SECONDS, self._send_ping)
        self._connected()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls; part of asyncio.Protocol."""
        self._end_all(f"the connection was closed{f': {exc}' if exc else ''}")

    def close(self) -> None:
        """Close the connection without further callbacks."""
        self._lost = None
        self._calls.clear()
        self._end_all("")

    def _end_all(self, why: str) -> None:
        if self._ping is not None:
            self._ping.cancel()
            self._ping = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.ended(UNAVAILABLE, why)
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(why)

    def _send_ping(self) -> None:
        self._http2.ping(bytes(8))
        self._flush()
        self._ping = asyncio.get_running_loop().call_later(PING_SECONDS, self._send_ping)

    # --- calls ---

    def call(self, method: bytes, message: bytes, fields: Iterable[Field], call: Call) -> None:
        """Start a call and send its message; `method` is /package.Service/Method."""
        if self._transport is None:
            call.ended(UNAVAILABLE, "there is no connection")
            return
        stream = self._http2.get_next_available_stream_id()
        self._calls[stream] = call
        head = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", method), (b":authority", self._authority))
        self._http2.send_headers(stream, (*head, *_COMMON, *fields))
        self._unsent.append((stream, b"\0" + len(message).to_bytes(4, "big") + message))
        self._flush()

    def _flush(self) -> None:
        """Write what the server's windows admit (RFC 9113 section 5.2)."""
        if self._transport is None:
            return
        while self._unsent:
            stream, rest = self._unsent.popleft()
            if stream not in self._calls:
                continue  # the server has ended the call before it read the whole message
            room = min(self._http2.local_flow_control_window(stream), self._http2.max_outbound_frame_size)
            if room > 0:
                self._http2.send_data(stream, rest[:room], end_stream=len(rest) <= room)
            if len(rest) > room:
                self._unsent.appendleft((stream, rest[max(room, 0) :]))
            if room <= 0:
                break
        self._transport.write(self._http2.data_to_send())

    # --- answers ---

    def data_received(self, data: bytes) -> None:
        """Process received bytes; part of asyncio.Protocol."""
        try:
            for event in self._http2.receive_data(data):
                self._take(event)
        except ProtocolError as error:
            self._end_all(f"the server violates HTTP/2: {error}")
        self._flush()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if (call := self._calls.get(event.stream_id)) is not None:
                call.take(event.data)
        elif isinstance(event, events.ResponseReceived | events.TrailersReceived):
            found = cast(dict[str, str], dict(event.headers))
            call = self._calls.get(event.stream_id)
            if event.stream_ended is not None:
                status = found.get("grpc-status", "")
                self._end(
                    event.stream_id, int(status) if status.isdecimal() else UNKNOWN, found.get("grpc-message", "")
                )
            elif call is not None and call.opened is not None:
                call.opened(found)
        elif isinstance(event, events.StreamEnded):
            self._end(event.stream_id, UNKNOWN, "the stream ended without a status")  # unless headers have ended it
        elif isinstance(event, events.StreamReset):
            self._end(event.stream_id, UNAVAILABLE, f"the stream was reset ({event.error_code:d})")
        elif isinstance(event, events.ConnectionTerminated):
            self._end_all("the server is going away")

    def _end(self, stream: int, status: int, message: str) -> None:
        call = self._calls.pop(stream, None)
        if call is not None:
            call.ended(status, message)
