"""Who may see the pages, and what browsers are told to keep others from."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from edge.page.access import CODE_SECONDS, MAX_USED, SESSION_SECONDS, Access, cookie_name
from tests.page_site import BEARER, TOKEN, FixedKeys, PageSite

T0 = 1_700_000_000.0
PATHS = ["/", "/edge", "/machine/52:54:00:00:00:01", "/live", "/live/edge", "/live/machine/52:54:00:00:00:01"]
NOBODY = {"X-Nobody": "1"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "given",
    [NOBODY, {"Authorization": "Bearer wrong"}, {"Cookie": "tinkedge=x"}, {"Cookie": f"tinkedge={TOKEN}"}],
    ids=["nothing", "wrong", "made-up", "token"],
)
async def test_page_is_closed_without_token_or_session(path, given):
    site = PageSite(T0)
    site.hardware("secret-name", 1)
    async with site.served(**given) as client, client.get(path) as response:
        assert response.status == 401
        assert "secret-name" not in await response.text()


async def test_code_lets_one_browser_in_once():
    site = PageSite(T0)
    site.hardware("m1", 1)
    async with site.served() as operator, operator.get("/api/v1/page-code") as response:
        code = (await response.json())["code"]
    async with site.served(**NOBODY) as browser:
        async with browser.head(f"/enter?code={code}") as response:  # some look at links before people do
            assert "Set-Cookie" not in response.headers
        async with browser.get(f"/enter?code={code}", allow_redirects=False) as response:
            assert response.status == 200
            cookie = response.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert f"Max-Age={SESSION_SECONDS}" in cookie
            assert code not in cookie
            assert TOKEN not in cookie + await response.text()
        async with browser.get("/") as response:
            assert response.status == 200
            assert "m1" in await response.text()
        async with browser.get("/api/v1/machines") as response:  # it is for pages only
            assert response.status == 401
    async with site.served(**NOBODY) as other, other.get(f"/enter?code={code}") as response:
        assert response.status == 401
        assert "used already" in await response.text()


async def test_code_needs_the_token():
    async with PageSite(T0).served(**NOBODY) as client, client.get("/api/v1/page-code") as response:
        assert response.status == 401


def test_code_and_session_end():
    now = T0
    access = Access(FixedKeys(TOKEN), lambda: now)
    code, late = access.code(), access.code()
    now += CODE_SECONDS - 1
    session = access.enter(code)
    assert session is not None
    now += 1
    assert access.enter(late) is None
    assert access.holds(session)
    now += SESSION_SECONDS
    assert not access.holds(session)


def test_session_lasts_over_a_restart_and_ends_with_the_token_while_a_code_ends_with_the_edge():
    access = Access(FixedKeys(TOKEN), lambda: T0)
    session, code = access.enter(access.code()), access.code()
    assert session is not None
    again = Access(FixedKeys(TOKEN), lambda: T0)
    assert again.holds(session)
    assert again.enter(code) is None
    assert not Access(FixedKeys("b" * 64), lambda: T0).holds(session)


def test_code_is_no_session_and_session_is_no_code():
    access = Access(FixedKeys(TOKEN), lambda: T0)
    code = access.code()
    assert not access.holds(code)
    session = access.enter(code)
    assert session is not None
    assert access.enter(session) is None


@pytest.mark.parametrize(
    "made", ["", ".", "..", "1.2.3", "9" * 400, "²²²²².x.y", "9999999999.x.", "\x00.\x00.\x00", "é"]
)
def test_what_is_no_session_is_none(made):
    access = Access(FixedKeys(TOKEN), lambda: T0)
    assert not access.holds(made)
    assert access.enter(made) is None


def test_used_codes_take_bounded_memory():
    access = Access(FixedKeys(TOKEN), lambda: T0)
    given = [access.enter(access.code()) for _ in range(MAX_USED + 5)]
    assert given[MAX_USED - 1] is not None
    assert given[MAX_USED:] == [None] * 5


def test_edges_behind_one_host_name_have_a_cookie_each():
    assert cookie_name("localhost:7081") != cookie_name("localhost:7082")
    assert cookie_name("edge.example") == cookie_name("x\r\nSet-Cookie: a") == "tinkedge"


@pytest.mark.parametrize("path", [*PATHS, "/enter?code=x", "/static/page.css"])
async def test_name_of_somebody_else_leads_nowhere(path):
    """DNS rebinding: a page elsewhere gets its own name to lead to loopback, and asks with its visitor's browser."""
    site = PageSite(T0)
    session = site.access.enter(site.access.code())
    async with site.served(**NOBODY) as client:
        headers = {"Host": "evil.example", "Cookie": f"tinkedge={session}"}
        async with client.get(path, headers=headers) as response:
            assert response.status == 403


@pytest.mark.parametrize("path", [*PATHS[:3], "/enter?code=x", "/static/page.js", "/machine/x"])
async def test_page_may_not_be_framed_and_runs_no_foreign_script(path):
    for given in (BEARER, NOBODY):
        async with PageSite(T0).served(**given) as client, client.get(path) as response:
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Frame-Options"] == "DENY"
            assert response.headers["Referrer-Policy"] == "no-referrer"
            assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(method):
    async with PageSite(T0).served() as client:
        for path in PATHS:
            async with client.request(method, path) as response:
                assert response.status == 405


async def test_stream_ends_when_the_token_is_another_one():
    site = PageSite(T0)
    keys: Any = site.access._keys
    async with site.served(**NOBODY) as client:
        async with client.get(f"/enter?code={site.access.code()}") as response:
            assert response.status == 200
        timeout = aiohttp.ClientTimeout(total=20)
        async with client.get("/live", timeout=timeout) as response:
            assert response.status == 200
            await response.content.readuntil(b"\n\n")
            keys.key = "b" * 64
            while await response.content.readany():
                pass
