"""The channel between `tinkedge up` and its child process, the gRPC server: messages over a pair of Unix sockets.

    parent -> child    Reread, Ping
    child -> parent    Up, Failed, Pong, AgentActivity, ServerState, KeptAway, LogLine

A message is a frozen dataclass of plain values. It is sent as its length (4 bytes, big-endian) and a JSON array: the
name of its class, then its fields. Both sides are the same program, so only the shape of a message is checked.

Sending never blocks. Bytes that the other side does not read wait in memory, and senders check `waiting_bytes` to keep
that small.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Self, cast, get_args

import orjson

from edge.run.errors import MessageError
from edge.run.logs import log_with
from tink.server import ActivityKind, AgentActivity

log = logging.getLogger(__name__)

MAX_FRAME_BYTES: Final = 64 << 20
MAX_WAITING_LOG_BYTES: Final = 4 << 20  # number of waiting bytes from which on the child drops its log lines
_LENGTH: Final = struct.Struct(">I")
_BUFFER_BYTES: Final = 1 << 20
_CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Reread:
    """SIGHUP: read keys and certificates again and log the result from `log_level` on (0: as before)."""

    log_level: int = 0


@dataclass(frozen=True, slots=True)
class Ping:
    """Request a Pong with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a Ping."""

    number: int


@dataclass(frozen=True, slots=True)
class Up:
    """The gRPC server listens."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The child can't start, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class ServerState:
    """The gRPC server's `note` for operators, and its metrics in the text format of Prometheus."""

    note: str
    metrics: str


@dataclass(frozen=True, slots=True)
class KeptAway:
    """The networks (CIDR) that the gRPC server blocks, each with the end of its block (CLOCK_MONOTONIC)."""

    blocks: list[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A record of the child's log; `trace` is the text of its exception, or empty."""

    logger: str
    level: int
    text: str
    fields: dict[str, Any]
    trace: str = ""


Message = Reread | Ping | Pong | Up | Failed | AgentActivity | ServerState | KeptAway | LogLine

_KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(Message)}
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in _KINDS.values()}


def encoded(message: Message) -> bytes:
    """Return a message as JSON. Text that is no Unicode is sent with question marks in the place of its bytes."""
    kind = type(message)
    values = [kind.__name__, *[getattr(message, name) for name in _FIELDS[kind]]]
    try:
        return orjson.dumps(values, default=str)
    except TypeError:  # a lone surrogate (PEP 383), from a name that a remote host has sent
        return orjson.dumps(_valid_unicode(values), default=str)


def decoded(content: bytes) -> Message:
    """Return the message that `encoded` has written. Raises MessageError."""
    try:
        name, *values = orjson.loads(content)
        message: Message = _KINDS[name](*values)
        if isinstance(message, AgentActivity):  # JSON has no enumerations and no tuples
            message = replace(message, kind=ActivityKind(message.kind), lines=tuple(message.lines))
    except (ValueError, TypeError, KeyError) as error:
        raise MessageError(f"{content[:80]!r} is no message: {error}") from None
    return message


def _valid_unicode(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_valid_unicode(key): _valid_unicode(each) for key, each in value.items()}
    return [_valid_unicode(each) for each in value] if isinstance(value, (list, tuple)) else value


class Channel(asyncio.Protocol):
    """One end of the channel; `open` makes it. Belongs to the running event loop."""

    def __init__(self, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._is_lost = False
        self._closed = asyncio.Event()

    @classmethod
    async def open(cls, sock: socket.socket, receive: Callable[[Message], None], lost: Callable[[], None]) -> Self:
        """Take over `sock`. `receive` gets each message; `lost` is called once, at the end or at a wrong message."""
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        return (await loop.create_unix_connection(lambda: cls(receive, lost), sock=sock))[1]

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that the other end has not read and the kernel has no room for."""
        return self._transport.get_write_buffer_size()

    def finish(self) -> None:
        """Tell the other end that no more messages follow. Messages from there are still received."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close this end, after the bytes that are still waiting."""
        self._transport.close()

    async def closed(self) -> None:
        """Return when this end is closed, or after a second: the other end may not read."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._closed.wait()

    def send(self, message: Message) -> None:
        """Send a message now, or as soon as the other end reads. Does nothing after `close`."""
        if not self._transport.is_closing():
            content = encoded(message)
            self._transport.write(_LENGTH.pack(len(content)) + content)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def eof_received(self) -> bool:
        """Called by asyncio. Messages can still be sent."""
        self._report_loss()
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        """Called by asyncio."""
        self._closed.set()
        self._report_loss()

    def data_received(self, data: bytes) -> None:
        """Pass on all messages that are complete. Called by asyncio."""
        self._received += data
        at = 0
        while len(self._received) - at >= _LENGTH.size and not self._transport.is_closing():
            (size,) = _LENGTH.unpack_from(self._received, at)
            end = at + _LENGTH.size + size
            if size > MAX_FRAME_BYTES:
                self._transport.abort()
            if len(self._received) < end:
                break
            content, at = bytes(self._received[at + _LENGTH.size : end]), end
            try:
                self._receive(decoded(content))
            except MessageError as error:
                log.error("the channel to the gRPC server's process: %s", error)
                self._transport.abort()
            except Exception:
                log.exception("internal error at a message of the gRPC server's process: %s", content[:80])
        del self._received[:at]

    def _report_loss(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._lost()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a channel, with kernel buffers that take a burst of messages."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return ends


class ChannelHandler(logging.Handler):
    """Sends log records to the parent. The root logger's only handler while it is entered; any thread may log."""

    def __init__(self, channel: Channel, level: int) -> None:
        super().__init__()
        self._channel = channel
        self._root_level = level
        self._loop = asyncio.get_running_loop()
        self._traces = logging.Formatter()

    def __enter__(self) -> Self:
        log_with(self, self._root_level)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().handlers[:] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record. It is dropped if the parent does not read."""
        trace = self._traces.formatException(record.exc_info) if record.exc_info else ""
        line = LogLine(record.name, record.levelno, record.getMessage(), getattr(record, "fields", {}), trace)
        try:
            in_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            in_loop = False
        if in_loop:
            self._send(line)
        else:
            self._loop.call_soon_threadsafe(self._send, line)

    def _send(self, line: LogLine) -> None:
        if self._channel.waiting_bytes < MAX_WAITING_LOG_BYTES:
            self._channel.send(line)


def log_line(line: LogLine) -> None:
    """Log a record of the child in this process."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        more = line.fields | ({"exception": line.trace} if line.trace else {})
        record = logger.makeRecord(line.logger, line.level, "", 0, line.text, (), None, extra={"fields": more})
        record.stack_info = line.trace or None
        logger.handle(record)
