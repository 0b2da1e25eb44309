"""The operators' web page in a real browser: Debian's chromium, without a screen."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import edge.page
from edge.journey.events import Outcome, Step
from tests.interop.browser import BrowserError, Page, browser
from tests.page_site import PageSite, populate
from tests.waiting import until

STATIC = Path(edge.page.__file__).parent / "static"
ON_PURPOSE = "the server responded with a status of 401"
OF_COLOURS = ["color-contrast"]
"""The rule of axe-core that a dark page, which differs in its colours alone, may break where a light one does not."""
SIZES = pytest.mark.parametrize("width", [1280, 360], ids=["desk", "phone"])


class Desk:
    """The site, and a browser that was let in."""

    def __init__(self, site: PageSite, page: Page, macs: dict[str, str]) -> None:
        self.site = site
        self.page = page
        self.macs = macs

    async def text(self, of: str = "document.body") -> str:
        return str(await self.page.run(f"{of}.innerText"))


@pytest.fixture(scope="module")
def rules() -> str:
    """axe-core's, as a script."""
    found = importlib.util.find_spec("axe_core_python")
    assert found is not None
    assert found.submodule_search_locations
    return (Path(next(iter(found.submodule_search_locations))) / "axe.min.js").read_text()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    site = PageSite()
    macs = populate(site, time.time())
    site.follows_time = True
    async with site.served() as operator:
        async with operator.get("/api/v1/page-code") as response:
            code = (await response.json())["code"]
        async with browser(tmp_path, str(operator._base_url).rstrip("/")) as page:
            await page.go(f"/enter?code={code}")
            await becomes(page, "document.getElementById('rows') !== null && document.readyState === 'complete'")
            yield Desk(site, page, macs)
            assert [each for each in page.troubles if ON_PURPOSE not in each] == []


async def becomes(page: Page, what: str) -> None:
    """Wait until a script gives true: it does not while another page comes."""

    async def holds() -> str | None:
        with suppress(BrowserError):
            return "yes" if await page.run(what) else None
        return None

    _held: str = await until(holds, f"it did not become so: {what}")


@pytest.mark.smoke
async def test_link_lets_the_browser_in_and_nobody_without(desk: Desk) -> None:
    assert "49 machines" in " ".join((await desk.text()).split())
    assert await desk.page.run("location.pathname + location.search") == "/"  # the code is in no address bar
    assert await desk.page.run("document.cookie") == ""  # nor the session within reach of a script
    await desk.page.send("Network.clearBrowserCookies")
    await desk.page.go("/")
    assert "tinkedge page" in await desk.text()


@SIZES
async def test_pages_break_no_rule_of_accessibility(desk: Desk, rules: str, width: int) -> None:
    paths = ["/", "/?group=rack", "/?q=nobody-has-this", "/edge", "/machine/02:00:00:00:00:01"]
    paths += [f"/machine/{desk.macs[name]}" for name in ("node-20", "node-36", "node-38", "node-48", "stranger")]
    for path in paths:
        await desk.page.go(path)
        await desk.page.run(rules)
        for dark in (False, True):
            await desk.page.look(dark=dark, width=width, mobile=width < 800)
            options = {"resultTypes": ["violations"]} | ({"runOnly": OF_COLOURS} if dark else {})
            found = await desk.page.run(f"axe.run({json.dumps(options)}).then((found) => found.violations)")
            broken = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found]
            assert broken == [], f"{path}, {'dark' if dark else 'light'}"
        overflow = await desk.page.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is {overflow} pixels too wide"
    desk.page.troubles = [each for each in desk.page.troubles if "404" not in each]  # the machine that nobody knows


def test_dark_pages_differ_in_their_colours_alone() -> None:
    (dark,) = re.findall(
        r"^@media [^\n]*dark[^\n]*\{\n(.*?)^\}", (STATIC / "page.css").read_text(), re.MULTILINE | re.DOTALL
    )
    head, _, rest = dark.partition("{")
    assert head.strip() == ":root"
    named = re.findall(r"(\S+): ([^;]+);", rest)
    assert len(named) > 20
    for name, value in named:
        assert name.startswith("--"), name
        assert re.fullmatch(r"#[0-9a-f]{6}|none", value), (name, value)


@pytest.mark.smoke
async def test_what_happens_is_on_the_page_without_a_reload(desk: Desk) -> None:
    page, mac = desk.page, desk.macs["node-48"]
    row = f"m{mac.replace(':', '')}"
    await becomes(page, "document.getElementById('live').textContent === 'live'")
    await page.run(f"document.getElementById('{row}').dataset.same = 'yes'; window.same = 'yes'")
    desk.site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER to it", stage="PXE ROM", dhcp="offer")
    await becomes(page, f"document.getElementById('{row}').innerText.includes('was offered an address')")
    assert await page.run("window.same") == "yes"
    await page.go(f"/machine/{mac}")
    for number in range(3):
        desk.site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output=f"line {number}", action="disk")
    await becomes(page, "document.getElementById('output').innerText.includes('disk: line 2')")
    await page.go("/edge")
    desk.site.health = type(desk.site.health)("eth1 has no address")
    await becomes(page, "document.getElementById('health').innerText.includes('eth1 has no address')")


async def test_keyboard_leads_to_a_machine_and_focus_stays_while_rows_change(desk: Desk) -> None:
    page, mac = desk.page, desk.macs["node-38"]
    await page.press("Tab")
    assert await page.run("document.activeElement.textContent") == "To the content"
    link = f"/machine/{mac}"
    for _ in range(60):
        await page.press("Tab")
        if await page.run("document.activeElement.getAttribute('href')") == link:
            break
    assert await page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    desk.site.journey.record(mac, Step.LOG, Outcome.INFO, "something else", lines="x")
    row = f"m{mac.replace(':', '')}"
    await becomes(page, f"document.getElementById('{row}').innerText.includes('Workflow failed')")
    await asyncio.sleep(1)
    assert await page.run("document.activeElement.getAttribute('href')") == link
    await page.press("Enter")
    await becomes(page, f"location.pathname === '{link}'")


async def test_filter_search_and_sort_work_without_javascript(desk: Desk) -> None:
    page = desk.page
    await page.send("Emulation.setScriptExecutionDisabled", value=True)
    for path, there, gone in (
        ("/?q=node-38", "node-38", "node-37"),
        ("/?show=unregistered", desk.macs["stranger"], "node-38"),
        ("/?group=rack&in=a", "rack=a", "rack=b"),
    ):
        await page.go(path)
        text = await html(page)
        assert there in text
        assert gone not in text
        assert "reload" in text
    await page.go(f"/machine/{desk.macs['stranger']}")
    assert "kind: Hardware" in await html(page)


async def html(page: Page) -> str:
    """What the browser has made of the page, without a script in it."""
    for left in (2, 1, 0):
        told = await page.send("DOM.getDocument")
        try:
            outer = await page.send("DOM.getOuterHTML", nodeId=told["root"]["nodeId"])
            break
        except BrowserError as error:  # it may have become another document meanwhile
            if not left or "Could not find node" not in str(error):
                raise
    return str(outer["outerHTML"]).partition("<main")[2] + str(outer["outerHTML"]).partition("<header")[2][:3000]


async def test_whole_page_weighs_less_than_100_kb_and_asks_nobody_else(desk: Desk) -> None:
    page = desk.page
    await page.send("Network.setCacheDisabled", cacheDisabled=True)
    asked: list[Any] = []
    for path in ("/", f"/machine/{desk.macs['node-20']}", "/edge"):
        await page.go(path)
        assert 5_000 < sum(page.received.values()) < 100_000
        asked += await page.run("performance.getEntriesByType('resource').map((each) => new URL(each.name).origin)")
    assert set(asked) == {await page.run("location.origin")}


async def test_what_a_machine_says_runs_nothing(desk: Desk) -> None:
    evil = "<img src=x onerror='window.evil=1'><script>window.evil=1</script>"
    mac = desk.site.hardware(evil, 60, labels={"x": evil})
    for page in ("/", f"/machine/{mac}"):
        await desk.page.go(page)
        desk.site.journey.record(mac, Step.ACTION, Outcome.INFO, evil, output=f"</pre>{evil}", action=evil)
        await becomes(desk.page, "document.body.innerText.includes('<img src=x')")
        assert await desk.page.run("window.evil") is None
    await desk.page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.evil=1\">')")
    await asyncio.sleep(0.3)
    assert await desk.page.run("window.evil") is None  # not even if something got through
    desk.page.troubles = [each for each in desk.page.troubles if "onerror" not in each and "inline" not in each
                          and "404" not in each]  # fmt: skip


async def test_page_that_nobody_looks_at_costs_nothing_and_comes_back(desk: Desk) -> None:
    page, live = desk.page, desk.site.live
    await until(lambda: len(live) == 1)
    await page.go("/enter")
    await until(lambda: len(live) == 0)
    await page.go("/")
    await until(lambda: len(live) == 1)
