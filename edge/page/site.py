"""The pages on the operators' port, and access to them: by the operators' token, or a session that it has started.

    tinkedge page --token--> a code, good once and for two minutes --in a URL--> a session, in a cookie, for half a day

The token itself is in no URL, no cookie and no history. Codes and sessions are signed with it and stored nowhere, so a
session survives a restart of the edge, and ends when the token is changed. Cookies have no ports (RFC 6265 section
8.5): where several edges are reached at one host name, each has a cookie of its own name.

    /                       the rack: ?q= ?show= ?sort= ?group= ?in= ?page=
    /machine/MAC            one machine: ?boot=N, counted back from the last
    /edge                   the edge itself and its artifact cache
    /live...                changes of these pages, as Server-Sent Events
    /live/rows, /api/v1/machines/MAC    the same for programs: `edge.page.feed`
    /enter?code=            lets a browser in: `edge.page.site`
    /static/...             style, script, icon

Three things protect a browser from other sites: a cookie for this site only (SameSite=Strict), a policy that allows the
one script alone (Content-Security-Policy), and no page may frame this one. `edge.http.admin` checks the Host.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import orjson
from aiohttp import web

from edge.page.feed import RowsSource, machine_json
from edge.page.live import Live, News
from edge.page.pages import EdgeSource, MachineSource, Pages, RackSource
from edge.page.query import read_query
from edge.page.render import STATIC
from tink.files.key_file import KeyFile
from tink.limits import OncePer
from tink.mac import from_any

CODE_SECONDS: Final = 120
SESSION_SECONDS: Final = 12 * 3600
MAX_USED: Final = 1024  # maximum number of codes that may be used within CODE_SECONDS
_MAX_CHARACTERS: Final = 200
_CODE, _SESSION = "page code", "page session"


class Access:
    """Issues codes and sessions, and checks them. Belongs to one event loop."""

    def __init__(self, keys: KeyFile, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since the epoch."""
        self._keys = keys
        self._clock = clock
        self._run = secrets.token_hex(8)
        """A code of an earlier run of this edge might have been used already: it is none here."""
        self._used: dict[str, float] = {}

    def code(self) -> str:
        """Return a code that lets one browser in, once."""
        return self._issue(_CODE, CODE_SECONDS, self._run)

    def enter(self, code: str) -> str | None:
        """Return the session for a code; None if the code is wrong, too old, or was used."""
        expires = self._checked(_CODE, code, self._run)
        now = self._clock()
        self._used = {used: until for used, until in self._used.items() if until > now}
        if expires is None or code in self._used or len(self._used) >= MAX_USED:
            return None
        self._used[code] = expires
        return self._issue(_SESSION, SESSION_SECONDS)

    def holds(self, session: str) -> bool:
        """Return True if this is a session that has not ended."""
        return self._checked(_SESSION, session) is not None

    def _issue(self, label: str, seconds: int, run: str = "") -> str:
        claims = f"{int(self._clock()) + seconds}.{secrets.token_urlsafe(12)}"
        return f"{claims}.{self._keys.sign(label, claims + run)}"

    def _checked(self, label: str, shown: str, run: str = "") -> float | None:
        """Return the time of its end; None if it is not ours, or has ended."""
        claims, _, signature = shown.rpartition(".")
        expires = claims.partition(".")[0]
        if len(shown) > _MAX_CHARACTERS or not shown.isascii() or not expires.isdigit():
            return None
        if not self._keys.signed(label, claims + run, signature) or int(expires) <= self._clock():
            return None
        return float(expires)


def cookie_name(host: str) -> str:
    """Return the name of the session's cookie at this Host: another one for each port."""
    port = host.rpartition(":")[2]
    return f"tinkedge-{port}" if port.isascii() and port.isdigit() else "tinkedge"


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
        mac = from_any(spelled)
        html = await self._pages.machine_page(mac, _number(request)) if mac else None
        if html is None:
            return _html(await self._pages.not_found_page(spelled[:64]), status=404)
        return _html(html)

    async def _machine_json(self, spelled: str, request: web.Request, known: bool) -> web.StreamResponse:
        if not self._may(request, known):
            return _plain("this needs the token, as 'Authorization: Bearer TOKEN'", 401)
        mac = from_any(spelled)
        found = machine_json(self._pages.machines, mac) if mac else None
        if found is None:
            return _plain("the edge has received no packet from this MAC address, and no Hardware has it", 404)
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
        news = self._news(request)
        if news is None:
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
            await self._live.follow(news, write, lambda: self._may(request, known) and not self._has_ended(request))
        return response

    def _news(self, request: web.Request) -> News | None:
        match request.rel_url.path.rstrip("/").split("/"):
            case ["", "live"]:
                return RackSource(self._pages, read_query(request.query)).news
            case ["", "live", "rows"]:
                return RowsSource(self._pages.rack, self._pages.status).news
            case ["", "live", "edge"]:
                return EdgeSource(self._pages).news
            case ["", "live", "machine", spelled] if mac := from_any(spelled):
                return MachineSource(self._pages, mac, _number(request)).news
        return None


def _plain(body: str, status: int) -> web.Response:
    return web.Response(text=f"{body}\n", status=status, headers=HEADERS)


def _html(body: str, *, status: int = 200) -> web.Response:
    return web.Response(text=body, status=status, content_type="text/html", headers=HEADERS)


def _number(request: web.Request) -> int:
    text = request.query.get("boot", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
