"""The requests of a connection, as aiohttp's `RequestHandler` counts them.

aiohttp has no public name for this. All uses of its private attributes are here, and `tests/unit/net` checks that they
still mean the same (aiohttp 3.14, `web_protocol.py`).
"""

from __future__ import annotations

from aiohttp import web


def received_requests(handler: web.RequestHandler) -> int:
    """Return the number of requests that a connection has received since it began."""
    return handler._request_count  # noqa: SLF001


def current_request(handler: web.RequestHandler) -> web.BaseRequest | None:
    """Return the request that is being answered, or None if the connection is idle."""
    return handler._current_request  # noqa: SLF001


def has_whole_request(handler: web.RequestHandler) -> bool:
    """Return True if the last request of a connection has arrived with all of its body."""
    if handler._messages:  # noqa: SLF001 - requests that wait for the current one
        return bool(handler._messages[-1][1].is_eof())  # noqa: SLF001
    request = current_request(handler)
    return request is None or request.content.is_eof()
