"""The head of an answer that has a file's bytes, or the answer in place of it (HEAD, 304, 412, 416)."""

from __future__ import annotations

from aiohttp import web

from edge.http.context import text
from edge.http.files.ranges import ChangedError, NotModifiedError, Span, UnsatisfiableError, select


async def begun(
    request: web.Request, headers: dict[str, str], size: int
) -> tuple[web.StreamResponse, Span] | web.StreamResponse:
    """The answer for a file of `size` bytes, and which of them are to follow; or an answer that is whole.

    `headers` must hold the ETag.
    """
    part = requested(request, headers, size)
    if isinstance(part, web.Response):
        return part
    response = web.StreamResponse(status=206 if part.partial else 200, headers=headers)
    response.content_length = part.length
    if request.method == "HEAD":
        await response.prepare(request)
        return response
    return response, part


def break_off(request: web.Request) -> None:
    """The promised length can't be kept any more; only a broken connection tells the machine so."""
    if request.transport is not None:
        request.transport.abort()


def requested(request: web.Request, headers: dict[str, str], size: int) -> Span | web.Response:
    """The bytes of a file of `size` bytes that a request asks for, or the answer if it asks for none of them.

    `headers` must hold the ETag; Accept-Ranges, and Content-Range where it belongs, are put into it.
    """
    headers["Accept-Ranges"] = "bytes"
    try:
        part = select(request.method, request.headers, headers["ETag"], size)
    except ChangedError:
        return text("the file has changed", status=412)
    except NotModifiedError:
        return web.Response(status=304, headers={"ETag": headers["ETag"]})
    except UnsatisfiableError:
        response = text(f"the file has {size} bytes", status=416)
        response.headers["Content-Range"] = f"bytes */{size}"
        return response
    if part.partial:
        headers["Content-Range"] = part.content_range
    return part
