"""Access to the pages, and the headers that protect them in browsers."""

from __future__ import annotations

import pytest

from edge.page.site import CODE_SECONDS, MAX_USED, SESSION_SECONDS, Access, cookie_name
from tests.page_site import BEARER, T0, TOKEN, FixedKeys, PageSite

PATHS = ["/", "/edge", "/machine/52:54:00:00:00:01", "/live", "/live/edge", "/live/machine/52:54:00:00:00:01"]
NOBODY = {"X-Nobody": "1"}
GIVEN = [NOBODY, {"Authorization": "Bearer wrong"}, {"Cookie": "tinkedge=x"}, {"Cookie": f"tinkedge={TOKEN}"}]


@pytest.fixture
def access() -> Access:
    return Access(FixedKeys(TOKEN), lambda: T0)


@pytest.mark.parametrize("path", [*PATHS, "/live/rows", "/api/v1/machines/52:54:00:00:00:01", "/api/v1/page-code"])
@pytest.mark.parametrize("given", GIVEN, ids=["nothing", "wrong", "made-up", "token"])
async def test_page_is_closed_without_token_or_session(path, given):
    site = PageSite(T0)
    site.hardware("secret-name", 1)
    status, _, text = await site.ask(path, **given)
    assert (status, "secret-name" in text) == (401, False)


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
            assert {"HttpOnly", "SameSite=Strict", f"Max-Age={SESSION_SECONDS}"} <= set(cookie.split("; "))
            assert code not in cookie
            assert TOKEN not in cookie + await response.text()
        async with browser.get("/") as response:
            assert response.status == 200
            assert "m1" in await response.text()
        async with browser.get("/api/v1/machines") as response:  # it is for pages only
            assert response.status == 401
    status, _, text = await site.ask(f"/enter?code={code}", **NOBODY)
    assert (status, "used already" in text) == (401, True)


def test_session_outlasts_the_edge_and_ends_with_its_time_or_the_token_while_a_code_ends_with_the_edge():
    now = T0
    access = Access(FixedKeys(TOKEN), lambda: now)
    code, late = access.code(), access.code()
    assert not access.holds(code), "a code is no session"
    now += CODE_SECONDS - 1
    session = access.enter(code)
    assert access.enter(session) is None, "nor is a session a code"
    again = Access(FixedKeys(TOKEN), lambda: now)
    assert again.holds(session)
    assert again.enter(late) is None
    assert not Access(FixedKeys("b" * 64), lambda: now).holds(session)
    now += 1
    assert access.enter(late) is None
    assert access.holds(session)
    now += SESSION_SECONDS
    assert not access.holds(session)


@pytest.mark.parametrize(
    "made", ["", ".", "..", "1.2.3", "9" * 400, "²²²²².x.y", "9999999999.x.", "\x00.\x00.\x00", "é"]
)
def test_invalid_session_is_rejected(access, made):
    assert not access.holds(made)
    assert access.enter(made) is None


def test_used_codes_take_bounded_memory(access):
    given = [access.enter(access.code()) for _ in range(MAX_USED + 5)]
    assert given[MAX_USED - 1] is not None
    assert given[MAX_USED:] == [None] * 5


def test_edges_behind_one_host_name_have_a_cookie_each():
    assert cookie_name("localhost:7081") != cookie_name("localhost:7082")
    assert cookie_name("edge.example") == cookie_name("x\r\nSet-Cookie: a") == "tinkedge"


@pytest.mark.parametrize("path", [*PATHS, "/enter?code=x", "/static/page.css"])
async def test_foreign_host_name_is_refused(path):
    """DNS rebinding: a page elsewhere gets its own name to lead to loopback, and asks with its visitor's browser."""
    site = PageSite(T0)
    session = site.access.enter(site.access.code())
    assert (await site.ask(path, Host="evil.example", Cookie=f"tinkedge={session}"))[0] == 403


@pytest.mark.parametrize("path", [*PATHS[:3], "/enter?code=x", "/static/page.js", "/machine/x"])
async def test_page_may_not_be_framed_and_runs_no_foreign_script(path):
    for given in (BEARER, NOBODY):
        _, headers, _ = await PageSite(T0).ask(path, **given)
        policy = headers["Content-Security-Policy"]
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
        assert "unsafe" not in policy
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_changed(method):
    async with PageSite(T0).served() as client:
        for path in PATHS:
            async with client.request(method, path) as response:
                assert response.status == 405


async def test_stream_ends_when_the_token_changes():
    site = PageSite(T0)
    async with site.served(**NOBODY) as client:
        async with client.get(f"/enter?code={site.access.code()}") as response:
            assert response.status == 200
        async with client.get("/live") as response:
            assert response.status == 200
            await response.content.readuntil(b"\n\n")
            site.keys.key = "b" * 64
            while await response.content.readany():
                pass
