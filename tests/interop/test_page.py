"""The operators' web page in a real browser: Debian's chromium, without a screen, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import edge.page
from edge.journey.events import Outcome, Step
from tests.page_site import PageSite, populate
from tests.waiting import PATIENCE_SECONDS, until, wait_until

PROGRAM = "chromium-headless-shell"
_MESSAGE_BYTES = 64 << 20
STATIC = Path(edge.page.__file__).parent / "static"
ON_PURPOSE = "the server responded with a status of 401"
OF_COLOURS = ["color-contrast"]
"""The rule of axe-core that only dark pages may break, since they differ only in colours."""
SIZES = pytest.mark.parametrize("width", [1280, 360], ids=["desk", "phone"])


class BrowserError(Exception):
    """An exception of the page's script, or a command that the browser rejects."""


class Page:
    """A tab of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, base: str) -> None:
        self._socket = socket
        self._base = base
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.troubles: list[str] = []
        """The browser's complaints: errors of scripts, and violations of the content security policy."""
        self.received: dict[str, int] = {}
        """Size of each response in bytes."""

    async def read(self) -> None:
        """Read the browser's messages until it ends."""
        async for message in self._socket:
            answer = json.loads(message.data)
            waiting = self._waiting.pop(answer.get("id", 0), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
            match answer.get("method"):
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Runtime.exceptionThrown":
                    self.troubles.append(str(answer["params"]["exceptionDetails"].get("exception", {})))
                case "Log.entryAdded":
                    self.troubles.append(answer["params"]["entry"]["text"])
                case "Network.loadingFinished":
                    self.received[answer["params"]["requestId"]] = answer["params"]["encodedDataLength"]

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self._number += 1
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": params}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await waiting
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def go(self, path: str) -> None:
        """Open a page, as if its address were typed."""
        self._loaded.clear()
        self.received.clear()
        await self.send("Page.navigate", url=self._base + path)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """Run a script and return its value."""
        answer = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"]["exception"].get("description", script))
        return answer["result"].get("value")

    async def press(self, key: str) -> None:
        """Press a key."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                            **({"text": text} if text and kind == "keyDown" else {}))  # fmt: skip

    async def look(self, *, dark: bool = False, width: int = 1280, mobile: bool = False) -> None:
        """Set the colour scheme and the size of the screen."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.send("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": mobile}
        await self.send("Emulation.setDeviceMetricsOverride", **size)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start chromium once for all tests, since its start is slow; yield the address of its DevTools."""
    program = shutil.which(PROGRAM)
    assert program is not None, f"there is no {PROGRAM}: deploy/setup.sh packages test"
    directory = tmp_path_factory.mktemp("chromium")
    process = subprocess.Popen(
        [program, "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={directory}",
         "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port = directory / "DevToolsActivePort"
        wait_until(lambda: port.exists() and port.read_text().count("\n") >= 1, "chromium does not start")
        yield "http://127.0.0.1:" + port.read_text().partition("\n")[0]
    finally:
        # Debian's program is a shell script; chromium is another process with child processes.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)


@asynccontextmanager
async def tab(chromium: str, base: str) -> AsyncIterator[Page]:
    """Open an empty tab with a new browser profile. `base` is the site, as http://ADDRESS:PORT."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"{chromium}/json/new?about:blank") as response:
            target = await response.json()
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=_MESSAGE_BYTES) as socket:
            page = Page(socket, base)
            reading = asyncio.create_task(page.read())
            for command in ("Page.enable", "Runtime.enable", "Log.enable", "Network.enable"):
                await page.send(command)
            await page.send("Network.clearBrowserCookies")
            await page.send("Network.clearBrowserCache")
            await page.look()
            try:
                yield page
            finally:
                reading.cancel()
        async with session.put(f"{chromium}/json/close/{target['id']}"):
            pass


class Desk:
    """The site, and a browser that is logged in."""

    def __init__(self, site: PageSite, page: Page, macs: dict[str, str]) -> None:
        self.site = site
        self.page = page
        self.macs = macs


@pytest.fixture(scope="module")
def rules() -> str:
    """Return the rules of axe-core as a script."""
    package = importlib.util.find_spec("axe_core_python")
    assert package is not None
    assert package.submodule_search_locations
    return (Path(next(iter(package.submodule_search_locations))) / "axe.min.js").read_text()


@pytest.fixture
async def desk(chromium: str) -> AsyncIterator[Desk]:
    site = PageSite()
    macs = populate(site, time.time())
    site.follows_time = True
    async with site.served() as operator:
        async with operator.get("/api/v1/page-code") as response:
            code = (await response.json())["code"]
        async with tab(chromium, str(operator._base_url).rstrip("/")) as page:
            await page.go(f"/enter?code={code}")
            await becomes(page, "document.getElementById('rows') !== null && document.readyState === 'complete'")
            yield Desk(site, page, macs)
            assert [each for each in page.troubles if ON_PURPOSE not in each] == []


async def text(page: Page) -> str:
    return str(await page.run("document.body.innerText"))


async def becomes(page: Page, script: str) -> None:
    """Wait until a script returns true, also while another page loads."""

    async def holds() -> str | None:
        with suppress(BrowserError):
            return "yes" if await page.run(script) else None
        return None

    _held: str = await until(holds, f"it did not become so: {script}")


@pytest.mark.smoke
async def test_browser_logs_in_by_the_link_only(desk: Desk) -> None:
    assert "49 machines" in " ".join((await text(desk.page)).split())
    assert await desk.page.run("location.pathname + location.search") == "/"  # the address bar does not show the code
    assert await desk.page.run("document.cookie") == ""  # no script can read the session
    await desk.page.send("Network.clearBrowserCookies")
    await desk.page.go("/")
    assert "tinkedge page" in await text(desk.page)


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
    desk.page.troubles = [each for each in desk.page.troubles if "404" not in each]  # the page of an unknown machine


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
async def test_events_appear_on_the_page_without_a_reload(desk: Desk) -> None:
    page, mac = desk.page, desk.macs["node-48"]
    row = f"m{mac.replace(':', '')}"
    await becomes(page, "document.getElementById('live').textContent === 'live'")
    await page.run(f"document.getElementById('{row}').dataset.same = 'yes'; window.same = 'yes'")
    desk.site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER to it", stage="PXE ROM", dhcp="offer")
    await becomes(page, f"document.getElementById('{row}').innerText.includes('was offered an address')")
    assert await page.run("window.same") == "yes"
    assert await page.run("document.title") == "2 in trouble, 49 machines · tinkedge"
    desk.site.journey.record(mac, Step.KERNEL, Outcome.FAILED, "the upstream answers 404")
    await becomes(page, "document.title.startsWith('3 in trouble, ')")
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
    row = f"document.getElementById('m{mac.replace(':', '')}')"
    await page.run(f"{row}.dataset.old = 'yes'")
    desk.site.journey.record(mac, Step.LOG, Outcome.INFO, "something else", lines="x")
    await becomes(page, f"!{row}.dataset.old")  # the page has replaced the row
    assert "WorkflowFailed" in await page.run(f"{row}.innerText")
    assert await page.run("document.activeElement.getAttribute('href')") == link
    await page.press("Enter")
    await becomes(page, f"location.pathname === '{link}'")


async def test_filter_search_and_sort_work_without_javascript(desk: Desk) -> None:
    page = desk.page
    await page.send("Emulation.setScriptExecutionDisabled", value=True)
    for path, there, absent in (
        ("/?q=node-38", "node-38", "node-37"),
        ("/?show=unregistered", desk.macs["stranger"], "node-38"),
        ("/?group=rack&in=a", "rack=a", "rack=b"),
    ):
        await page.go(path)
        shown = await html(page)
        assert (there in shown, absent in shown, "reload" in shown) == (True, False, True)
    await page.go(f"/machine/{desk.macs['stranger']}")
    assert "kind: Hardware" in await html(page)


async def html(page: Page) -> str:
    """Return the HTML of the page as the browser has it, without the scripts."""
    for left in (2, 1, 0):
        answer = await page.send("DOM.getDocument")
        try:
            outer = await page.send("DOM.getOuterHTML", nodeId=answer["root"]["nodeId"])
            break
        except BrowserError as error:  # another document may have loaded meanwhile
            if not left or "Could not find node" not in str(error):
                raise
    return str(outer["outerHTML"]).partition("<main")[2] + str(outer["outerHTML"]).partition("<header")[2][:3000]


async def test_whole_page_weighs_less_than_100_kb_and_loads_nothing_from_other_hosts(desk: Desk) -> None:
    page = desk.page
    await page.send("Network.setCacheDisabled", cacheDisabled=True)
    origins: list[Any] = []
    for path in ("/", f"/machine/{desk.macs['node-20']}", "/edge"):
        await page.go(path)
        assert 5_000 < sum(page.received.values()) < 100_000
        origins += await page.run("performance.getEntriesByType('resource').map((each) => new URL(each.name).origin)")
    assert set(origins) == {await page.run("location.origin")}


async def test_text_from_a_machine_runs_no_script(desk: Desk) -> None:
    evil = "<img src=x onerror='window.evil=1'><script>window.evil=1</script>"
    mac = desk.site.hardware(evil, 60, labels={"x": evil})
    for page in ("/", f"/machine/{mac}"):
        await desk.page.go(page)
        desk.site.journey.record(mac, Step.ACTION, Outcome.INFO, evil, output=f"</pre>{evil}", action=evil)
        await becomes(desk.page, "document.body.innerText.includes('<img src=x')")
        assert await desk.page.run("window.evil") is None
    await desk.page.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.evil=1\">')")
    # The image fails to load, and the browser reports that it did not run the handler.
    await until(lambda: any("inline" in each for each in desk.page.troubles), lambda: desk.page.troubles)
    assert await desk.page.run("window.evil") is None  # also checks text that was inserted as HTML
    desk.page.troubles = [each for each in desk.page.troubles if "onerror" not in each and "inline" not in each
                          and "404" not in each]  # fmt: skip


async def test_hidden_page_sends_no_requests_and_updates_when_shown(desk: Desk) -> None:
    page, live = desk.page, desk.site.live
    await until(lambda: len(live) == 1)
    await page.go("/enter")
    await until(lambda: len(live) == 0)
    await page.go("/")
    await until(lambda: len(live) == 1)


async def phone(desk: Desk) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    await desk.page.send("Emulation.setDeviceMetricsOverride", **size)


async def boxes(page: Page, *selectors: str) -> list[dict[str, float]]:
    """Return where elements are, in pixels from the top left corner of the page, all at the same moment."""
    each = "selector => document.querySelector(selector).getBoundingClientRect()"
    boxes_by_selector: list[dict[str, float]] = json.loads(
        await page.run(f"JSON.stringify({json.dumps(selectors)}.map({each}))")
    )
    return boxes_by_selector


async def test_phone_shows_the_most_urgent_machine_near_the_top_and_filters_on_request(desk: Desk) -> None:
    page = desk.page
    await phone(desk)
    await page.go("/")
    (row,) = await boxes(page, "#rows tr")
    assert row["top"] < 844 / 4
    assert "NoTFTPRequest" in str(await page.run("document.querySelector('#rows tr').textContent"))
    assert "waiting for: " in str(
        await page.run("getComputedStyle(document.querySelector('#rows td:nth-child(4)'), '::before').content")
    )
    visible = "document.querySelector('input[type=search]').checkVisibility({contentVisibilityAuto: true})"
    await becomes(page, f"!{visible}")
    await page.run("document.querySelector('#filters summary').click()")
    await becomes(page, visible)
    await page.go("/?q=node-3")  # a search that is active is shown
    await becomes(page, visible)
    await page.look()
    await page.go("/")
    await becomes(page, visible)  # on a wide screen, though folded
    (summary,) = await boxes(page, "#filters summary")
    assert summary["height"] == 0


async def test_copy_button_covers_no_text(desk: Desk) -> None:
    page = desk.page
    for small in (True, False):
        await page.look()
        if small:
            await phone(desk)
        await page.go(f"/machine/{desk.macs['stranger']}")
        await becomes(page, "!document.querySelector('[data-copy]').hidden")
        button, manifest = await boxes(page, "[data-copy]", "#manifest-text")
        assert button["height"] > 20
        assert button["bottom"] <= manifest["top"]


async def test_unfolded_sections_stay_unfolded_while_the_page_is_live(desk: Desk) -> None:
    page, mac = desk.page, desk.macs["node-20"]
    await page.go(f"/machine/{mac}")
    unfolded = "document.querySelector('#timeline details').open"
    assert await page.run(unfolded) is False
    await page.run("document.querySelector('#timeline summary').click()")
    assert await page.run(unfolded) is True
    desk.site.journey.record(mac, Step.LOG, Outcome.INFO, "x", lines="something new")
    await becomes(page, "document.getElementById('output').innerText.includes('something new')")
    assert await page.run(unfolded) is True


async def test_page_counts_seconds_in_the_servers_format(desk: Desk) -> None:
    page = desk.page
    await page.go(f"/machine/{desk.macs['node-37']}")
    await becomes(page, "/^\\(\\d+ s overdue\\)$/.test(document.querySelector('[data-until]').textContent)")
    before = await page.run("document.querySelector('[data-until]').textContent")
    await becomes(page, f"document.querySelector('[data-until]').textContent !== {json.dumps(before)}")
    shown = str(await page.run("document.getElementById('summary').innerText"))
    assert re.search(r"Last heard:\s+\d+ s ago", shown)
    await page.go("/edge")
    at = "document.querySelector('[data-utc]').textContent"
    before = await page.run(at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", before)
    await becomes(page, f"{at} !== {json.dumps(before)}")
