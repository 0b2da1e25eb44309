"""The pages as a browser gets them: what is on them, and that whatever machines say stays text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.steps import Milestone
from edge.page import Health
from edge.page.render import STATIC, plain, size, span
from tests.page_site import PageSite, cut, populate, workflow

T0 = 1_700_000_000.0
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
CONTROLS = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x00\x08\u202egnp.exe\u2066"


class Parsed(HTMLParser):
    """Elements, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
async def client() -> AsyncIterator[tuple[PageSite, Any]]:
    site = PageSite(T0)
    async with site.served() as client:
        yield site, client


async def html(client: Any, path: str, status: int = 200) -> str:
    async with client.get(path) as response:
        assert response.status == status
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        text: str = await response.text()
        return text


def words(page: str) -> str:
    return " ".join(" ".join(Parsed(page).text).split())


async def test_rack_shows_machines_what_is_awaited_and_what_is_wrong(client: tuple[PageSite, Any]) -> None:
    site, session = client
    macs = populate(site, T0 + 1000)
    page = words(await html(session, "/"))
    assert "49 machines" in page
    assert "NoTFTPRequest" in page
    assert "it asks for its boot program" in page
    assert "seen (UEFI x86-64 PXE ROM), not registered" in page
    assert all(name in page for name in ("node-1", "node-48", macs["stranger"]))


async def test_rack_without_machines_says_what_to_do(client: tuple[PageSite, Any]) -> None:
    assert "No machine is registered, and none was heard" in words(await html(client[1], "/"))


async def test_machine_shows_its_boot_workflow_actions_and_output(client: tuple[PageSite, Any]) -> None:
    site, session = client
    macs = populate(site, T0 + 1000)
    page = words(await html(session, f"/machine/{macs['node-38'].upper().replace(':', '-')}"))
    assert "Workflow install-node-38" in page
    assert "1. stream-image" in page
    assert "NonZeroExit: exit status 1: no such device: /dev/nvme1n1" in page
    assert "stream-image: no such device: /dev/nvme1n1" in page
    assert "kernel boots" in page
    assert "Supermicro X12STH" in page
    assert "rack=c, role=compute" in page


async def test_unknown_machine_shows_the_manifest_to_copy(client: tuple[PageSite, Any]) -> None:
    site, session = client
    mac = "02:00:00:00:00:09"
    site.journey.record(mac, Step.SEEN, Outcome.INFO, "seen", manifest="kind: Hardware\nmetadata:\n  name: m\n")
    page = await html(session, f"/machine/{mac}")
    assert "kind: Hardware\nmetadata:\n  name: m\n</pre>" in page
    assert "Nobody knows this machine" in words(await html(session, "/machine/02:00:00:00:00:0a", 404))


@pytest.mark.parametrize("spelled", ["x", "%3Cscript%3E", "52:54:00:00:00:01:02", "a" * 500])
async def test_machine_that_is_no_mac_is_said_to_be_unknown(client: tuple[PageSite, Any], spelled: str) -> None:
    page = await html(client[1], f"/machine/{spelled}", 404)
    assert "<script>" not in page


async def test_edge_shows_why_it_is_not_ready(client: tuple[PageSite, Any]) -> None:
    site, session = client
    assert "Machines are served." in words(await html(session, "/edge"))
    site.health = Health("eth1 has no address", ("the API does not answer",))
    page = words(await html(session, "/edge"))
    assert "eth1 has no address" in page
    assert "the API does not answer" in page
    assert "not ready: eth1 has no address" in words(await html(session, "/"))


# --- bad input --------------------------------------------------------------------------------------------------


async def test_whatever_machines_and_the_api_say_stays_text(client: tuple[PageSite, Any]) -> None:
    site, session = client
    mac = site.hardware(EVIL, 1, namespace=EVIL, labels={EVIL: EVIL, "x": EVIL}, osie=EVIL)
    site.play(mac, cut(Milestone.ACTION_BEGUN), T0, EVIL)
    detail = {"action": EVIL, "state": "Running", "model": EVIL, "client": EVIL, "uuid": EVIL}
    site.journey.record(mac, Step.ACTION, Outcome.INFO, EVIL, **detail)
    site.journey.record(mac, Step.ACTION, Outcome.INFO, EVIL, output=f"{EVIL}\n</pre>{CONTROLS}", action=EVIL)
    site.journey.record(mac, Step.LOG, Outcome.INFO, EVIL, lines=EVIL)
    raw = workflow("m", T0)
    raw["metadata"]["name"] = raw["status"]["state"] = raw["status"]["message"] = EVIL
    raw["status"]["actions"][0] = {
        "id": EVIL, "state": EVIL, "failureReason": EVIL, "rendered": {"name": EVIL, "image": EVIL}
    }  # fmt: skip
    site.workflows[EVIL] = raw
    stranger = "02:00:00:00:00:09"
    site.journey.record(stranger, Step.SEEN, Outcome.INFO, EVIL, manifest=EVIL + "</pre>", client=EVIL)
    site.health = Health(EVIL, (EVIL,))
    site.sweep(T0 + 500)
    asked = "/?q=%3Cscript%3Ealert(1)%3C/script%3E%22'%3E&group=%22%3E%3Cscript%3E"
    racks = ("/", "/?group=x", "/?group=osie", "/?group=namespace", asked)
    for path in (*racks, "/edge", f"/machine/{mac}", f"/machine/{stranger}"):
        page = await html(session, path)
        assert "alert(1)" in page, path
        parsed = Parsed(page)
        scripts = [attributes for tag, attributes in parsed.elements if tag == "script"]
        assert len(scripts) == 1, path
        assert str(scripts[0]["src"]).startswith("/static/page.js?v=")
        assert not [tag for tag, _ in parsed.elements if tag == "img"]
        assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
        assert not [name for _, attributes in parsed.elements for name in attributes if name == "style"]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)


async def test_what_is_sent_to_a_page_that_is_open_stays_text_too(client: tuple[PageSite, Any]) -> None:
    site, session = client
    mac = site.hardware(EVIL, 1)
    site.journey.record(mac, Step.DHCP, Outcome.OK, EVIL)
    for path in ("/live", f"/live/machine/{mac}"):
        async with session.get(path) as response, asyncio.timeout(10):
            await response.content.readuntil(b"\n\n")
            told = (await response.content.readuntil(b"\n\n")).decode()
            assert "alert(1)" in told
            assert "<script" not in told
            assert "<img" not in told


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand tab", "two\nlines\tand tab"),
        (CONTROLS, "red \ufffd\ufffd\ufffdgnp.exe\ufffd"),
        ("überraschend 机器", "überraschend 机器"),
        ("\u2028\u2029", "\ufffd\ufffd"),
    ],
)
def test_control_characters_are_shown_as_such(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"status": None},
        {"status": {"actions": "x"}},
        {"status": {"actions": [1, None]}},
        {"metadata": {}, "spec": 7, "status": {"startedAt": "yesterday"}},
    ],
)
async def test_workflow_that_somebody_has_mangled_does_not_break_the_page(
    client: tuple[PageSite, Any], broken: dict[str, Any]
) -> None:
    site, session = client
    mac = site.hardware("m1", 1)
    site.workflows["m1"] = broken
    await html(session, f"/machine/{mac}")


# --- size ---------------------------------------------------------------------------------------------------------


async def test_page_of_a_full_rack_weighs_less_than_100_kb(client: tuple[PageSite, Any]) -> None:
    site, session = client
    for number in range(1, 301):
        mac = site.hardware(f"compute-node-{number}.rack-17.example.org", number)
        site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPACK to UEFI x86-64 PXE ROM, boot file snponly.efi",
                            stage="PXE ROM", dhcp="ack")  # fmt: skip
    page = await html(session, "/")
    assets = sum(len((STATIC / name).read_bytes()) for name in ("page.css", "page.js", "icon.svg"))
    assert len(page.encode()) + assets < 100_000


async def test_output_and_events_that_are_shown_are_bounded(client: tuple[PageSite, Any]) -> None:
    site, session = client
    mac = site.hardware("m1", 1)
    for number in range(500):
        site.journey.record(mac, Step.ACTION, Outcome.INFO, "x" * 500, output="line\n" * 800, action=f"a{number}")
    page = await html(session, f"/machine/{mac}")
    assert len(page) < 130_000
    assert "The last lines." in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.04, "40 ms"),
        (4.24, "4.2 s"),
        (59.4, "59 s"),
        (65, "1:05 min"),
        (11_400, "3:10 h"),
        (1e6, "11 days"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_sizes_are_said_as_people_do() -> None:
    assert [size(each) for each in (0, 850, 14_200, 14.2e6, 1.4e9)] == ["0 B", "850 B", "14.2 kB", "14.2 MB", "1.4 GB"]


async def test_edge_page_lists_the_edges_and_servers_that_tell_what_they_see(client: tuple[PageSite, Any]) -> None:
    page = words(await html(client[1], "/edge"))
    assert "Others of this site" in page
    assert "10.0.0.2 edge 12,345" in page
    assert "server-0<b> server 7" in page


@pytest.mark.parametrize("path", ["/live/rows", "/api/v1/machines/52:54:00:00:00:01"])
async def test_what_programs_are_told_is_for_those_who_have_the_token(path: str) -> None:
    site = PageSite(T0)
    site.hardware("m1", 1)
    async with site.served(Authorization="Bearer wrong") as client, client.get(path) as response:
        assert response.status == 401
        assert "m1" not in await response.text()


async def test_machine_that_nobody_knows_is_none_for_programs(client: tuple[PageSite, Any]) -> None:
    for spelled in ("52:54:00:00:00:99", "nonsense"):
        async with client[1].get(f"/api/v1/machines/{spelled}") as response:
            assert response.status == 404
            assert response.content_type == "text/plain"
