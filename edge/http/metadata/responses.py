"""Responses with metadata: the same on the full path (`full`) and on the fast one (`fast_path`)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from edge.http.context import text

TEXT: Final = "text/plain"
JSON: Final = "application/json"
NOCLOUD: Final = " (NoCloud)"
"""What the journey adds to a document that was asked for in this way."""


def document(body: bytes, content_type: str = TEXT) -> web.Response:
    """A document of a machine."""
    charset = "utf-8" if content_type == TEXT else None
    return web.Response(body=body, content_type=content_type, charset=charset)


def missing(name: str, path: str) -> web.Response:
    """For a machine that asks for what its Hardware, `name`, does not have."""
    return text(f"the Hardware {name} has no {path}", status=404)


def not_to_keep(response: web.Response) -> web.Response:
    """One path has another answer for each machine: a proxy in between must keep none of them."""
    response.headers["Cache-Control"] = "no-store"
    return response
