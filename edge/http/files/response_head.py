"""The head of an answer that has a file's bytes, or the answer in place of it (304, 412, 416)."""

from __future__ import annotations

from aiohttp import web

from edge.http.context import text
from edge.http.files.ranges import ChangedError, NotModifiedError, Span, UnsatisfiableError, select


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
