"""The fast path of connections: plain requests, answered with prepared responses and without aiohttp.

cloud-init makes a connection for each of the dozen documents that it reads, sends a request in one segment, and closes
when it has the answer. aiohttp's parser, request, response and two tasks are most of what that would cost. So every
connection begins in a `FastPathConnection`: what is plain is looked up in what is prepared for that address (by
`edge.http.metadata.fast_path`) and written at once. With the first segment that holds anything else the connection
becomes aiohttp's, and stays so.

    GET <a target that is prepared> HTTP/1.1, and a known head  -> the response, and the next request
    the same, and the response is made for each asking (scripts) -> it is made; the request must come alone
    anything else; half a request; too much at once             -> aiohttp (`edge.http.transport.connections`)

Plain is no judgement of ours on HTTP: a head is known when aiohttp's own parser has taken it, and nothing is in it that
an answer could depend on. So no request gets another answer here than there, but for the date.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE, HttpProcessingError, HttpRequestParser

from edge.callers import dotted
from edge.http.context import agent_name
from tink.limits.newest import Newest
from tink.net.addresses import is_link_local

if TYPE_CHECKING:
    from edge.http.transport.connections import BoundedServer

log = logging.getLogger(__name__)

MAX_AT_ONCE_BYTES: Final = 64 * 1024
"""Bytes of bodies that are written for requests that come together: aiohttp takes its time for more."""
MAX_HEADS: Final = 256
MAX_HEAD_BYTES: Final = 1024
"""Known heads, and bytes of one: they differ by client, hardly by machine."""
_COPIED_BYTES: Final = 16 * 1024
"""A larger body is not copied for each machine that takes its time."""

_END: Final = b"\r\n\r\n"
_HARMLESS: Final = frozenset(
    name.lower()
    for name in (
        hdrs.ACCEPT,
        hdrs.ACCEPT_CHARSET,
        hdrs.ACCEPT_ENCODING,  # nothing is compressed on this port
        hdrs.ACCEPT_LANGUAGE,
        hdrs.CACHE_CONTROL,
        hdrs.CONNECTION,  # what it asks for is seen by what the parser makes of it
        hdrs.HOST,
        hdrs.PRAGMA,
        hdrs.USER_AGENT,
    )
)


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """An answer that can be sent as it stands: everything before the Date, and the body.

    `on_sent` is called with the client's name, `Cloud-Init/22.4.2`, each time that it is sent; it must be quick.
    """

    head: bytes
    body: bytes
    on_sent: Callable[[str], None] | None = None

    @staticmethod
    def of(response: web.Response, on_sent: Callable[[str], None] | None = None) -> PreparedResponse:
        """The same bytes as aiohttp makes of `response`, whose body must be bytes, or none. Raises TypeError."""
        body = response.body or b""
        if not isinstance(body, bytes):
            raise TypeError(f"a body of {type(body).__name__} can't be sent as it stands")
        headers = [*response.headers.items(), (hdrs.CONTENT_LENGTH, str(len(body)))]
        if body and hdrs.CONTENT_TYPE not in response.headers:
            headers.append((hdrs.CONTENT_TYPE, "application/octet-stream"))
        return PreparedResponse(_head(response.status, response.reason or "", tuple(headers)), body, on_sent)

    def with_body(self, body: bytes) -> PreparedResponse:
        """The same with another body; neither is empty."""
        head = self.head.replace(_length(len(self.body)), _length(len(body)))
        return PreparedResponse(head, body, self.on_sent)


@dataclass(frozen=True, slots=True)
class LiveResponse:
    """An answer that is made, and told of, each time that it is asked for.

    `make(client, local)` is called with the client's name and the address of ours that the connection came to; it must
    be quick, and say what the full path would.
    """

    make: Callable[[str, str], PreparedResponse]


def _length(size: int) -> bytes:
    return b"\r\n%s: %d\r\n" % (hdrs.CONTENT_LENGTH.encode(), size)


@functools.lru_cache(maxsize=1024)
def _head(status: int, reason: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Most answers of all machines share theirs."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, f"{hdrs.DATE}: "]).encode()


Responses = Mapping[bytes, PreparedResponse | LiveResponse]

ResponseLookup = Callable[[str], Responses | None]
"""`responses(address)`: what plain requests from there get, by target of the request line; None: nothing is plain."""


HandOn = Callable[[int, bytes], None]
"""`hand_on(fd, received)`: another process goes on with this connection, which has sent that. `fd` stays ours."""

_OF_PEERS: Final = (b"POST /peers/", b"GET /peers/")
"""How the connections of other edges begin (`edge.peers.messages`)."""


class KnownHeads:
    """The heads that are known: ` HTTP/1.1`, the header lines and the empty line, byte for byte."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Mapping[str, Any]) -> None:
        """`limits` are those of aiohttp's parser."""
        self._loop = loop
        self._limits = limits
        self.known: Newest[bytes, str] = Newest(MAX_HEADS)
        """Their clients."""

    def client(self, head: bytes) -> str | None:
        """The name of the client, if this head is harmless; None if it is not, or can't be told."""
        client = self.known.get(head)
        return client if client is not None else self._learn(head)

    def _learn(self, head: bytes) -> str | None:
        if len(head) > MAX_HEAD_BYTES or (client := self._judge(head)) is None:
            return None
        self.known[head] = client
        return client

    def _judge(self, head: bytes) -> str | None:
        # A parser of its own for each: what an earlier head did to it must not matter.
        parser = HttpRequestParser(BaseProtocol(self._loop), self._loop, 2**16, **self._limits)
        try:
            messages, upgraded, tail = parser.feed_data(b"GET /" + head)
        except HttpProcessingError:
            return None
        if len(messages) != 1 or upgraded or tail:
            return None
        message = messages[0][0]
        asks_for_more = message.should_close or message.upgrade or message.chunked or message.compression
        if asks_for_more or message.version != HttpVersion11 or message.path != "/":
            return None
        if not all(name.lower() in _HARMLESS for name in message.headers):
            return None
        return agent_name(message.headers.get(hdrs.USER_AGENT, ""))


class FastPathConnection(asyncio.Protocol):
    """A connection. It remains the name of the connection when aiohttp has taken over.

    `address` is the peer's. `unread` and `since` are the server's: bytes that were in its buffer when it was looked at
    last, and since when it is idle (seconds of the loop's clock). `on_fast_path`: aiohttp has not taken over.
    """

    __slots__ = ("_local", "_paused", "_server", "address", "on_fast_path", "since", "transport", "unread")

    def __init__(self, server: BoundedServer) -> None:
        self._server = server
        self._paused = False
        self._local: str | None = None  # our address, as soon as somebody wants to know
        self.address = ""
        self.on_fast_path = True
        self.since = 0.0
        self.unread = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        """It begins."""
        self.transport = transport
        if not self._server.admit(self):
            transport.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        """It has ended, before aiohttp took over."""
        self._server.release(self)

    def pause_writing(self) -> None:
        """The machine does not take its answers as fast as it asks."""
        self._paused = True

    def resume_writing(self) -> None:
        """It has taken them."""
        self._paused = False

    def data_received(self, data: bytes) -> None:
        """Answer `data` if it is plain requests and nothing else, or leave all of it to aiohttp."""
        if self._server.hand_on is not None and data.startswith(_OF_PEERS):
            self._hand_on(data, self._server.hand_on)
            return
        try:
            answers = self._plain(data)
            for response, client in answers:
                if isinstance(response, LiveResponse):
                    self._send(response.make(client, self._local_address()))
                    continue
                self._send(response)
                if response.on_sent is not None:
                    response.on_sent(client)
        except Exception:
            log.exception("an answer from a table failed")
            self.transport.abort()
            return
        if answers:
            self._server.idle(self)
        else:
            self._hand_over(data)

    def _plain(self, data: bytes) -> list[tuple[PreparedResponse | LiveResponse, str]]:
        """The answers to all requests in `data`, and who asks; none if one of them is not plain.

        All or none, for aiohttp does not answer a good request either if what comes with it can't be read.
        """
        found: list[tuple[PreparedResponse | LiveResponse, str]] = []
        prepared = self._server.responses(self.address)
        if prepared is None or self._paused:
            return found
        # What nearly all is: one request, of which a known head is the rest.
        space = data.find(b" ", 4)
        client = self._server.heads.known.get(data[space:])
        if client is not None and data.startswith(b"GET "):
            response = prepared.get(data[4:space])
            if isinstance(response, PreparedResponse):
                return [(response, client)]
        start = size = 0
        while start < len(data):
            space = data.find(b" ", start + 4)
            end = data.find(_END, space) + 4
            if space < 0 or end < 4 or not data.startswith(b"GET ", start):
                return []
            response = prepared.get(data[start + 4 : space])
            if response is None or (client := self._server.heads.client(data[space:end])) is None:
                return []
            found.append((response, client))
            if isinstance(response, LiveResponse):
                alone = len(found) == 1 and end == len(data)
                return found if alone and not is_link_local(self._local_address()) else []
            size += len(response.body)
            if size > MAX_AT_ONCE_BYTES and len(found) > 1:
                return []
            start = end
        return found

    def _send(self, response: PreparedResponse) -> None:
        if len(response.body) < _COPIED_BYTES:
            self.transport.write(b"".join((response.head, _rest_of_head(rfc822_formatted_time()), response.body)))
        else:
            self.transport.write(response.head + _rest_of_head(rfc822_formatted_time()))
            self.transport.write(response.body)

    def _local_address(self) -> str:
        if self._local is None:
            name = self.transport.get_extra_info("sockname")
            self._local = dotted(str(name[0])) if isinstance(name, tuple) else ""
        return self._local

    def _hand_on(self, data: bytes, hand_on: HandOn) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None and not self.transport.get_write_buffer_size():
            hand_on(sock.fileno(), data)
        self.transport.abort()  # of this process's descriptor: the connection stays

    def _hand_over(self, data: bytes) -> None:
        self.on_fast_path = False
        handler = self._server.handler(self)
        self.transport.set_protocol(handler)
        handler.connection_made(self.transport)
        if self._paused:
            handler.pause_writing()
        handler.data_received(data)


@functools.lru_cache(maxsize=2)
def _rest_of_head(date: str) -> bytes:
    """From the value of the Date on: aiohttp writes it and the Server last."""
    return f"{date}\r\n{hdrs.SERVER}: {SERVER_SOFTWARE}\r\n\r\n".encode()


class HandedOnConnection(FastPathConnection):
    """One that began in another process, which has received this of it."""

    __slots__ = ("_received",)

    def __init__(self, server: BoundedServer, received: bytes) -> None:
        super().__init__(server)
        self._received = received

    def connection_made(self, transport: Any) -> None:
        """It goes on here."""
        super().connection_made(transport)
        if not transport.is_closing():
            self.data_received(self._received)
