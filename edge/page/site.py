"""The pages on the operators' port: paths, headers, and who may have them. They show and copy, and change nothing.

    /                       the rack: ?q= ?show= ?sort= ?group= ?in= ?page=
    /machine/MAC            one machine: ?boot=N, counted back from the last
    /edge                   the edge itself and its artifact cache
    /live...                what changes on them, as Server-Sent Events
    /live/rows, /api/v1/machines/MAC    the same for programs: `edge.page.feed`
    /enter?code=            lets a browser in: `edge.page.access`
    /static/...             style, script, icon

A browser has three keepers from mischief of others: a cookie that is sent to pages of this site only (SameSite=Strict),
a Content-Security-Policy under which nothing runs but the one script, and no page may frame this one. That the Host is
ours is looked at by who asks here (`edge.http.admin`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import orjson
from aiohttp import web

from edge.page.access import CODE_SECONDS, SESSION_SECONDS, Access, cookie_name
from edge.page.feed import RowsSource, machine_json
from edge.page.live import Live, Source
from edge.page.pages import EdgeSource, MachineSource, Pages, RackSource
from edge.page.query import read_query
from edge.page.render import STATIC
from tink.limits.once_per import OncePer
from tink.mac import from_any

log = logging.getLogger(__name__)

PageHandler = Callable[[web.Request, bool], Awaitable[web.StreamResponse]]
"""Called with the request, and True if it has the operators' token."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_TYPES: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_SAY_AGAIN_SECONDS: Final = 60.0


class Site:
    """Answers requests for pages."""

    def __init__(
        self,
        pages: Pages,
        access: Access,
        live: Live | None = None,
        has_ended: Callable[[web.Request], bool] = lambda _request: False,
    ) -> None:
        """`has_ended(request)` returns True if the client has gone."""
        self._pages = pages
        self._access = access
        self._live = live if live is not None else Live()
        self._has_ended = has_ended
        self._refused = OncePer(_SAY_AGAIN_SECONDS, 256)
        self._static = {name: (STATIC / name).read_bytes() for name in _TYPES}

    def find(self, path: str) -> PageHandler | None:
        """Return the handler of a path; None if it is no page."""
        match path.split("/"):
            case ["", ""]:
                return self._rack
            case ["", "edge"]:
                return self._edge
            case ["", "enter"]:
                return self._enter
            case ["", "machine", mac]:
                return partial(self._machine, mac)
            case ["", "live", *_]:
                return self._follow
            case ["", "api", "v1", "machines", mac]:
                return partial(self._machine_json, mac)
            case ["", "static", name] if name in _TYPES:
                return partial(self._asset, name)
        return None

    async def code(self, _request: web.Request) -> web.Response:
        """GET /api/v1/page-code, with the token: return a code that lets one browser in."""
        body = orjson.dumps({"code": self._access.code(), "seconds": CODE_SECONDS})
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    def close(self) -> None:
        """End the streams."""
        self._live.close()
        self._pages.rack.close()

    # --- who ------------------------------------------------------------------------------------------------------

    def _may(self, request: web.Request, known: bool) -> bool:
        return known or self._access.holds(request.cookies.get(cookie_name(request.headers.get("Host", "")), ""))

    async def _closed(self, request: web.Request, why: str = "") -> web.Response:
        who = request.remote or "an unknown address"
        if self._refused.due(who, time.monotonic()):
            log.warning("%s: refused on the operators' page: %s", who, why or "without a session")
        response = _html(await self._pages.closed_page(why), status=401)
        response.headers["WWW-Authenticate"] = 'Bearer realm="tinkedge"'
        return response

    async def _enter(self, request: web.Request, known: bool) -> web.StreamResponse:  # noqa: ARG002
        if request.method != "GET":  # who looks without coming in uses no code up
            return _html("")
        session = self._access.enter(request.query.get("code", ""))
        if session is None:
            return await self._closed(request, "this link was used already, or is too old")
        # No redirect: if the link was on a page of another site, the redirected request would come without the cookie.
        response = _html(await self._pages.entered_page())
        response.set_cookie(
            cookie_name(request.headers.get("Host", "")),
            session,
            max_age=SESSION_SECONDS,
            path="/",
            httponly=True,
            samesite="Strict",
        )
        return response

    # --- what -----------------------------------------------------------------------------------------------------

    async def _rack(self, request: web.Request, known: bool) -> web.StreamResponse:
        if not self._may(request, known):
            return await self._closed(request)
        return _html(await self._pages.rack_page(read_query(request.query)))

    async def _machine(self, spelled: str, request: web.Request, known: bool) -> web.StreamResponse:
        if not self._may(request, known):
            return await self._closed(request)
        mac = _mac(spelled)
        html = await self._pages.machine_page(mac, _number(request)) if mac else None
        if html is None:
            return _html(await self._pages.not_found_page(spelled[:64]), status=404)
        return _html(html)

    async def _machine_json(self, spelled: str, request: web.Request, known: bool) -> web.StreamResponse:
        if not self._may(request, known):
            return _plain("this needs the token, as 'Authorization: Bearer TOKEN'", 401)
        mac = _mac(spelled)
        found = machine_json(self._pages.machines, mac) if mac else None
        if found is None:
            return _plain("no machine with this MAC address was heard, and no Hardware has it", 404)
        body = orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    async def _edge(self, request: web.Request, known: bool) -> web.StreamResponse:
        if not self._may(request, known):
            return await self._closed(request)
        return _html(await self._pages.edge_page())

    async def _asset(self, name: str, request: web.Request, known: bool) -> web.StreamResponse:  # noqa: ARG002
        headers = HEADERS | {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(body=self._static[name], content_type=_TYPES[name], headers=headers)

    async def _follow(self, request: web.Request, known: bool) -> web.StreamResponse:
        if not self._may(request, known):
            return web.Response(text="no session\n", status=401, headers=HEADERS)
        source = self._source(request)
        if source is None:
            return web.Response(text="not found\n", status=404, headers=HEADERS)
        if request.method != "GET":
            return web.Response(headers=HEADERS)
        if self._live.is_full:
            return web.Response(text=f"{len(self._live)} pages are followed already\n", status=503, headers=HEADERS)
        await self._pages.templates.compile()
        response = web.StreamResponse(headers=HEADERS | {"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def write(data: bytes) -> None:
            if self._has_ended(request):
                raise ConnectionResetError
            await response.write(data)

        async with self._pages.rack.looked_at():
            await self._live.follow(source, write, lambda: self._may(request, known) and not self._has_ended(request))
        return response

    def _source(self, request: web.Request) -> Source | None:
        match request.rel_url.path.rstrip("/").split("/"):
            case ["", "live"]:
                return RackSource(self._pages, read_query(request.query))
            case ["", "live", "rows"]:
                return RowsSource(self._pages.rack, self._pages.status)
            case ["", "live", "edge"]:
                return EdgeSource(self._pages)
            case ["", "live", "machine", spelled] if mac := _mac(spelled):
                return MachineSource(self._pages, mac, _number(request))
        return None


def _plain(body: str, status: int) -> web.Response:
    return web.Response(text=f"{body}\n", status=status, headers=HEADERS)


def _html(body: str, *, status: int = 200) -> web.Response:
    return web.Response(text=body, status=status, content_type="text/html", headers=HEADERS)


def _mac(spelled: str) -> str:
    """Return a MAC as the journey spells it; empty if the text is none."""
    return from_any(spelled) or ""


def _number(request: web.Request) -> int:
    text = request.query.get("boot", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
