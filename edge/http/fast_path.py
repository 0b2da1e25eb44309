"""The tables of the fast path: prepared responses, and the request heads that are known to be harmless.

cloud-init opens a connection for each of the dozen documents that it reads, sends a request in one segment, and closes
after the answer. aiohttp's parser, request, response and two tasks are most of the cost of such a request. So
`edge.http.connections` first looks for a prepared response, and passes the connection to aiohttp only if there is none:

    GET <prepared target> HTTP/1.1, and a known head  -> write the response, read the next request
    the same, with a live response (scripts)          -> make the response; the request must arrive alone
    anything else; half a request; too many at once   -> aiohttp

A head is known if aiohttp's own parser has accepted it, and if it has no header that could change an answer. So a
request gets the same answer on both paths, except for the date.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import SERVER_SOFTWARE, HttpProcessingError, HttpRequestParser

from edge.http.answers import agent_name
from tink.limits import Newest

MAX_HEADS: Final = 256
MAX_HEAD_BYTES: Final = 1024
"""Number of known heads, and bytes of one. Heads differ between clients, hardly between machines."""

_HARMLESS: Final = frozenset(
    name.lower()
    for name in (
        hdrs.ACCEPT,
        hdrs.ACCEPT_CHARSET,
        hdrs.ACCEPT_ENCODING,  # this port compresses nothing
        hdrs.ACCEPT_LANGUAGE,
        hdrs.CACHE_CONTROL,
        hdrs.CONNECTION,  # checked in the parser's result (should_close, upgrade)
        hdrs.HOST,
        hdrs.PRAGMA,
        hdrs.USER_AGENT,
    )
)


@dataclass(frozen=True, slots=True)
class PreparedResponse:
    """An answer whose bytes are ready: everything before the Date, and the body.

    `on_sent` is called with the client's name (`Cloud-Init/22.4.2`) for each answer that is sent; it must be quick.
    """

    head: bytes
    body: bytes
    on_sent: Callable[[str], None] | None = None

    @staticmethod
    def of(response: web.Response, on_sent: Callable[[str], None] | None = None) -> PreparedResponse:
        """Return the bytes that aiohttp would send for `response`. Raises TypeError if its body is not bytes."""
        body = response.body or b""
        if not isinstance(body, bytes):
            raise TypeError(f"a body of {type(body).__name__} can't be sent as it stands")
        headers = [*response.headers.items(), (hdrs.CONTENT_LENGTH, str(len(body)))]
        if body and hdrs.CONTENT_TYPE not in response.headers:
            headers.append((hdrs.CONTENT_TYPE, "application/octet-stream"))
        return PreparedResponse(_head(response.status, response.reason or "", tuple(headers)), body, on_sent)

    def with_body(self, body: bytes) -> PreparedResponse:
        """Return the same answer with another body. Neither body may be empty."""
        head = self.head.replace(_length(len(self.body)), _length(len(body)))
        return PreparedResponse(head, body, self.on_sent)


@dataclass(frozen=True, slots=True)
class LiveResponse:
    """An answer that is made for each request.

    `make(client, local)` gets the client's name and our own address on the connection. It must be quick, and must give
    the same answer as the full path.
    """

    make: Callable[[str, str], PreparedResponse]


def _length(size: int) -> bytes:
    return b"\r\n%s: %d\r\n" % (hdrs.CONTENT_LENGTH.encode(), size)


@functools.lru_cache(maxsize=1024)
def _head(status: int, reason: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return the bytes before the Date. Most answers of all machines have the same ones."""
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, f"{hdrs.DATE}: "]).encode()


Responses = Mapping[bytes, PreparedResponse | LiveResponse]

ResponseLookup = Callable[[str], Responses | None]
"""`responses(address)` returns the answers to plain requests by target of the request line; None: use aiohttp."""


class KnownHeads:
    """Known request heads: the bytes of ` HTTP/1.1`, the header lines and the empty line."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Mapping[str, Any]) -> None:
        """`limits` are the arguments of aiohttp's parser."""
        self._loop = loop
        self._limits = limits
        self.known: Newest[bytes, str] = Newest(MAX_HEADS)
        """The client's name by head."""

    def client(self, head: bytes) -> str | None:
        """Return the client's name if no answer depends on this head, or None."""
        client = self.known.get(head)
        if client is None and len(head) <= MAX_HEAD_BYTES and (client := self._judge(head)) is not None:
            self.known[head] = client
        return client

    def _judge(self, head: bytes) -> str | None:
        # A new parser for each head: an earlier head may have changed the state of the parser.
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


@functools.lru_cache(maxsize=2)
def rest_of_head(date: str) -> bytes:
    """Return the head from the value of Date on. aiohttp writes Date and Server last."""
    return f"{date}\r\n{hdrs.SERVER}: {SERVER_SOFTWARE}\r\n\r\n".encode()
