"""Short answers of the HTTP servers, and the words in which they describe a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from edge.callers import dotted
from tink.printable import printable


def text(body: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with a line of plain text."""
    return web.Response(text=body + "\n", status=status, content_type="text/plain", headers=headers)


def uncached(response: web.Response) -> web.Response:
    """Forbid proxies to cache an answer: the same path has another answer for each machine."""
    response.headers["Cache-Control"] = "no-store"
    return response


def not_found() -> web.Response:
    """Return the answer for an unknown path."""
    return text("not found", status=404)


def for_people(request: web.Request, here: str, instead: str) -> web.Response:
    """Return the answer for an unknown path: people read where the page is, programs `not found`."""
    if "text/html" in request.headers.get("Accept", ""):
        html = f"<!doctype html><title>tinkedge</title><p>{here}<p>{instead}\n"
        headers = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}
        return web.Response(text=html, status=404, content_type="text/html", headers=headers)
    # A client without a browser's Accept header is for people if it asks for `/`, such as curl.
    return text(f"not found: {here} {instead}", status=404) if request.rel_url.raw_path == "/" else not_found()


def not_allowed(methods: Sequence[str]) -> web.Response:
    """Return the answer to a request with the wrong method."""
    return text(f"the method must be {' or '.join(methods)}", status=405, headers={"Allow": ", ".join(methods)})


def local_address(request: web.Request) -> str:
    """Return the edge's address on the connection; empty if the connection is closed already."""
    # The next URLs for the machine contain this address: it may be unable to reach the other ones.
    name = request.protocol.sockname
    return dotted(str(name[0])) if isinstance(name, tuple) else ""


def client_name(request: web.Request) -> str:
    """Return the first word of the User-Agent for a log line, such as `Cloud-Init/22.4.2`."""
    return agent_name(request.headers.get("User-Agent", ""))


def agent_name(user_agent: str) -> str:
    """Return the first word of a User-Agent."""
    return printable((user_agent.split() or ["an unnamed client"])[0], ascii_only=True)[:60]


def size_text(size: int) -> str:
    """Return a size as people write it: `850 B`, `14.2 kB`, `14.2 MB`."""
    if size < 1000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 1e6 else f"{size / 1e6:.1f} MB"
