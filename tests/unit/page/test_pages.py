"""The pages as a browser gets them: what is on them, boots drawn to scale, and that what machines say stays text."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser

import pytest

from edge.artifacts.artifact import ArtifactError
from edge.artifacts.cache import ArtifactCache
from edge.journey.events import SWITCHING_REASONS, Milestone, Outcome, Step
from edge.journey.expectations import read
from edge.journey.expectations.limits import LIMITS
from edge.page import About, Api, Health, Osie
from edge.page.feed import machine_json
from edge.page.live import TimeSlice
from edge.page.pages import RackSource
from edge.page.query import Query
from edge.page.render import STATIC, plain, size, span
from edge.page.timeline import Timeline, chains
from edge.page.words import POWER_STEPS, Phase
from tests.page_site import BY_BMC, IN_ACTION, INSTALLATION, T0, PageSite, cut, played, populate, workflow
from tests.support.discovery import Site as ExpectedSite
from tests.support.discovery import mac as expected_mac
from tests.support.virtual_time import turns
from tink.bmc.boot import BootReason

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
CONTROLS = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x00\x08\u202egnp.exe\u2066"
STRANGER = "02:00:00:00:00:09"


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


class Browser:
    """A page site that is served, and what is asked of it."""

    def __init__(self, session) -> None:
        self.session = session

    async def html(self, path: str, status: int = 200) -> str:
        async with self.session.get(path) as response:
            assert response.status == status
            assert response.headers["Content-Type"] == "text/html; charset=utf-8"
            return await response.text()

    async def words(self, path: str, status: int = 200) -> str:
        return " ".join(" ".join(Parsed(await self.html(path, status)).text).split())


@pytest.fixture
def site() -> PageSite:
    return PageSite(T0)


@pytest.fixture
async def browser(site: PageSite) -> AsyncIterator[Browser]:
    async with site.served() as session:
        yield Browser(session)


async def test_rack_shows_machines_what_is_awaited_and_what_is_wrong(site, browser):
    assert "No machine is registered, and none was heard" in await browser.words("/")
    macs = populate(site, T0 + 1000)
    page = await browser.words("/")
    assert "49 machines" in page
    assert "NoTFTPRequest" in page
    assert re.search(re.escape(LIMITS[Milestone.LEASED].awaited) + r" \(1\d s overdue\)", page)
    assert "action 2 of 3: grow-partition" in page
    assert "hook Supermicro X12STH" in page
    assert "most urgent first" in page
    assert "seen (UEFI x86-64 PXE ROM), not registered" in page
    assert all(name in page for name in ("node-1", "node-48", macs["stranger"]))


async def test_machine_shows_its_boot_workflow_actions_and_output(site, browser):
    macs = populate(site, T0 + 1000)
    page = await browser.words(f"/machine/{macs['node-38'].upper().replace(':', '-')}")
    for shown in (
        "Workflow install-node-38",
        "1. stream-image",
        "NonZeroExit: exit status 1: no such device: /dev/nvme1n1",
        "stream-image: no such device: /dev/nvme1n1",
        "kernel boots",
        "Supermicro X12STH",
        "rack=c, role=compute",
    ):
        assert shown in page


async def test_rack_shows_who_was_expected_and_has_not_come(site, browser):
    assert "Expected and not here yet" not in await browser.html("/")
    expected = ExpectedSite(103)
    lists = expected.config_map({1: f"rack-0001,{EVIL.replace(',', ' ')},,,,,,,,,,,,", 2: "rack-0002,,,,,,,,,,,,,"})
    lists["metadata"]["creationTimestamp"] = "2026-11-30T08:00:00Z"
    site.expected.apply(lists)
    site.hardware("rack-0000", 1)
    site.at += 10
    page = await browser.words("/")
    assert "Expected and not here yet: 101 of 102" in page
    assert "1 line of lists can't be used. ConfigMap default/rack, rack.csv line 4" in page
    assert f"default/rack-0003 SN00003, {expected_mac(3, 9)}, {expected_mac(3)}, {expected_mac(3, 1)} ConfigMap" in page
    assert "rack.csv line 5 2026-11-30 08:00:00 UTC" in page
    assert "default/rack-0000" not in page
    assert "default/rack-0101" in page
    assert "default/rack-0102" not in page
    assert "and 1 more" in page
    assert "<script>alert" not in await browser.html("/")
    for number in range(1, 103):
        site.hardware(f"rack-{number:04}", number + 1)
    site.at += 10
    page = await browser.words("/")
    assert "Expected and not here yet: 0 of 102" in page
    assert "Identified by" not in page


async def test_live_rack_gets_the_expected_machines_when_they_change(site):
    source = RackSource(site.pages, Query())
    assert "expected" not in (await source.news(TimeSlice())).get("parts", {})
    site.expected.apply(ExpectedSite(2).config_map())
    site.at += 10
    assert "2 of 2" in (await source.news(TimeSlice()))["parts"]["expected"]
    site.at += 10
    assert "expected" not in (await source.news(TimeSlice())).get("parts", {})
    site.hardware("rack-0000", 1)
    site.at += 10
    assert "1 of 2" in (await source.news(TimeSlice()))["parts"]["expected"]


def fields(html: str) -> dict[str, str]:
    """The names and values of the lists on a page."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html)
    return {name: " ".join(" ".join(Parsed(value).text).split()) for name, value in found}


async def test_card_of_a_machine_says_state_workflow_last_output_and_when_it_was_heard(site, browser):
    mac = site.hardware("m1", 1, osie="hook")
    site.play(mac, IN_ACTION, T0, "m1")
    site.workflows["m1"] = workflow("m1", site.at)
    site.at += 5
    html = await browser.html(f"/machine/{mac}")
    card = fields(html)
    assert "action 2 of 3: grow-partition</p>" in html.partition('class="where"')[0]
    assert card["Workflow"] == "Running action 2 of 3: grow-partition"
    assert card["Last output"] == "grow-partition: resizing /dev/nvme0n1p1 to 1.8 TiB ( 5 s ago )"
    assert card["Waiting for:"] == f"{LIMITS[Milestone.ACTION_BEGUN].awaited} (due in 55 s)"
    assert card["Last heard:"] == "5 s ago"
    assert "18 s ago" in card["In this state since"]
    site.journey.record(mac, Step.LOG, Outcome.INFO, "x", lines="x")
    assert fields(await browser.html(f"/machine/{mac}"))["Last heard:"] == "now"


@pytest.mark.parametrize(
    ("power", "words", "actions"),
    [
        ("on", "on", ["off", "cycle"]),
        ("off", "off", ["on"]),
        ("unknown", "unknown, because its BMC could not be read", ["on", "off", "cycle"]),
        ("", "not read yet", ["on", "off", "cycle"]),
    ],
)
async def test_power_of_a_machine_is_shown_with_the_commands_to_copy(site, browser, power, words, actions):
    html = await browser.html(f"/machine/{site.hardware('m1', 1, power=power)}")
    assert f"Power: {words}</h2>" in html
    commands = re.findall(r'<code id="(command-\w+)">(.*?)</code> <button type="button" data-copy="(.*?)"', html)
    assert [text for _, text, _ in commands] == [
        *(f"tinkedge power m1 {each}" for each in actions),
        "tinkedge bmc check m1",
    ]
    assert all(name == copied for name, _, copied in commands)
    html = await browser.html(f"/machine/{site.hardware('m2', 2, power=power, namespace='lab')}")
    assert f"tinkedge power m2 {actions[0]} -n lab<" in html
    assert "tinkedge bmc check m2 -n lab<" in html


async def test_discovered_machine_has_the_command_that_approves_it_and_its_difference(site, browser):
    mac = site.hardware("discovery-1", 1, labels={"tinkerbell.org/auto-discovered": "true"})
    html = await browser.html(f"/machine/{mac}")
    assert "Discovered: waits for approval</h2>" in html
    assert 'data-copy="command-approve"' in html
    assert "tinkedge discover approve discovery-1 NEW-NAME<" in html
    assert machine_json(site.pages.machines, mac)["approve_command"] == "tinkedge discover approve discovery-1 NEW-NAME"
    known = site.pages.machines.state(mac)
    condition = {"type": "AsExpected", "status": "False", "reason": "MemoryShort", "message": "it has <240> GiB"}
    site.hardware("discovery-1", 1, labels={"tinkerbell.org/auto-discovered": "true"}, conditions=[condition])
    assert site.pages.machines.state(mac) != known, "an open page of it is drawn again"
    assert "MemoryShort: it has &lt;240&gt; GiB" in await browser.html(f"/machine/{mac}")
    site.inventory.remove({"metadata": {"name": "discovery-1", "namespace": "default"}})
    site.hardware("m1", 1, conditions=[condition])
    html = await browser.html(f"/machine/{mac}")
    assert "Not as expected</h2>" in html
    assert "tinkedge discover" not in html
    site.hardware("m1", 1)
    assert '<div id="discovery"></div>' in await browser.html(f"/machine/{mac}")


async def test_machine_without_a_bmc_has_no_power(site, browser):
    html = await browser.html(f"/machine/{site.hardware('m1', 1)}")
    assert '<div id="power"></div>' in html
    assert "tinkedge power" not in html


async def test_machine_that_is_off_has_a_mark_in_the_list_as_soon_as_its_bmc_reports_it(site, browser):
    mac = site.hardware("m1", 1, power="on")
    site.hardware("m2", 2, power="unknown")
    async with site.rack.looked_at():
        assert "off</b>" not in await browser.html("/")
        known = site.pages.machines.state(mac)
        site.hardware("m1", 1, power="off")
        assert site.pages.machines.state(mac) != known, "an open page of it is drawn again"
        html = await browser.html("/")
        assert html.count(">off</b>") == 1
        assert "m1" in html.partition(">off</b>")[0]
        assert ">off</b>" in await browser.html("/?q=power+off")


async def test_problem_of_a_machine_has_a_cause_a_remedy_and_a_beginning(site, browser):
    macs = populate(site, T0 + 1000)
    page = await browser.words(f"/machine/{macs['node-37']}")
    began = site.journey.events(macs["node-37"])[1].time
    assert re.search(r"NoTFTPRequest since \S+ \S+ .*Has 10.0.0.37 and the name of its boot program", page)
    assert "Likely causes: udp/69 is blocked" in page
    assert "'tinkedge doctor' checks this host's firewall" in page.partition("What to do: ")[2]
    wrong = site.pages.machines.shown(macs["node-37"]).wrong
    assert wrong.began == pytest.approx(began)
    page = await browser.words(f"/machine/{macs['node-38']}")
    assert "Failed at action 1 of 3: stream-image NonZeroExit: exit status 1: no such device: /dev/nvme1n1" in page
    assert "kubectl describe workflow -n default install-node-38" in page
    failed = next(event for event in site.journey.events(macs["node-38"]) if event.step is Step.WORKFLOW
                  and event.outcome is Outcome.FAILED)  # fmt: skip
    assert site.pages.machines.shown(macs["node-38"]).wrong.began == pytest.approx(failed.time)


async def test_failure_that_is_repeated_began_with_the_first_one():
    site, mac = played(cut(Milestone.KERNEL_BEGUN))
    for second in (1, 2, 3):
        site.at = T0 + 20 + second
        site.journey.record(mac, Step.KERNEL, Outcome.FAILED, "the upstream answers 404")
        site.sweep()
    wrong = site.pages.machines.shown(mac).wrong
    assert (wrong.reason, wrong.began) == ("KernelFailed", T0 + 21)


@pytest.mark.parametrize(
    ("events", "number", "folded"),
    [(INSTALLATION, 0, True), (INSTALLATION, 1, False), (IN_ACTION, 0, False), (cut(Milestone.LEASED), 0, False)],
)
async def test_boot_that_is_over_is_folded_unless_it_was_chosen(site, browser, events, number, folded):
    mac = site.hardware("m1", 1)
    site.play(mac, INSTALLATION, T0 - 5000, "m1")
    site.play(mac, events, T0, "m1")
    html = await browser.html(f"/machine/{mac}?boot={number}")
    ((_, attributes),) = [each for each in Parsed(html).elements if each[0] == "details"]
    assert ("open" not in attributes) is folded


async def test_edge_describes_itself_its_api_its_osies_and_what_it_could_not_fetch(site, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "vmlinuz").write_bytes(b"kernel")
    cache = ArtifactCache(tmp_path / "cache", file_root=tmp_path / "files", wall_clock=lambda: T0)
    await cache.start()
    site = PageSite(T0, cache=cache)
    there, missing, remote = (
        f"file://{tmp_path}/files/vmlinuz",
        f"file://{tmp_path}/files/initrd",
        "http://user:secret@images.example/initrd?token=secret",
    )
    site.osies = [Osie("b/rescue", (("initrd", remote),)), Osie("a/hook", (("kernel", there), ("initrd", missing)))]
    api = Api("cluster", "https://10.0.0.9:6443", "the Kubernetes API has not answered since noon")
    site.about = About("1.2.3", "edge-1", T0 - 60, "/var/lib/tinkedge", 10**9, 10**11, False, api)
    site.journey.record("02:00:00:00:00:01", Step.DHCP, Outcome.REFUSED, "no")
    try:
        for _ in range(2):
            with pytest.raises(ArtifactError):
                await cache.open(missing)
        (await cache.open(there)).close()
        async with site.served() as session:
            html = await Browser(session).html("/edge")
    finally:
        await cache.stop()
    card, words = fields(html), " ".join(" ".join(Parsed(html).text).split())
    assert (card["Version"], card["Host"]) == ("1.2.3", "edge-1")
    assert card["API"] == (
        "cluster, https://10.0.0.9:6443 not reachable the Kubernetes API has not answered since noon"
    )
    assert card["Data directory"] == "/var/lib/tinkedge 1.0 GB free of 100.0 GB nearly full"
    assert card["Clock"].startswith("not synchronised run an NTP client")
    assert card["Up since"] == "2023-11-14 22:12:20 UTC"
    assert "clock 2023-11-14 22:13:20 UTC" in words
    assert re.search(r"dhcp 0 1 0 tftp 0 0 0", words)
    assert re.search(
        rf"a/hook kernel {there} a file of this host initrd {missing} last fetch failed at \S+ \S+:", words
    )
    assert "b/rescue initrd http://images.example/initrd?… not fetched yet" in words
    assert "secret" not in html
    assert re.search(rf"Files whose last fetch failed File Last at Times Why {missing} \S+ \S+ 2 ", words)


async def test_unknown_machine_shows_the_manifest_to_copy(site, browser):
    manifest = "kind: Hardware\nmetadata:\n  name: m\n"
    site.journey.record(STRANGER, Step.SEEN, Outcome.INFO, "seen", manifest=manifest)
    assert f"{manifest}</pre>" in await browser.html(f"/machine/{STRANGER}")
    assert "Unknown machine" in await browser.words("/machine/02:00:00:00:00:0a", 404)
    for spelled in ("x", "%3Cscript%3E", "52:54:00:00:00:01:02", "a" * 500):
        assert "<script>" not in await browser.html(f"/machine/{spelled}", 404)
    for spelled in ("52:54:00:00:00:99", "nonsense"):
        async with browser.session.get(f"/api/v1/machines/{spelled}") as response:
            assert (response.status, response.content_type) == (404, "text/plain")
    mangled = ({}, {"status": None}, {"status": {"actions": "x"}}, {"status": {"actions": [1, None]}})
    for broken in (*mangled, {"metadata": {}, "spec": 7, "status": {"startedAt": "yesterday"}}):
        site.workflows["m1"] = broken
        await browser.html(f"/machine/{site.hardware('m1', 1)}")


async def test_edge_shows_why_it_is_not_ready_and_the_edges_and_servers_that_tell_what_they_see(site, browser):
    page = await browser.words("/edge")
    for shown in ("Machines are served.", "Other edges and servers", "10.0.0.2 edge 12,345", "server-0<b> server 7"):
        assert shown in page
    site.health = Health("eth1 has no address", ("the API does not answer",))
    page = await browser.words("/edge")
    assert "eth1 has no address" in page
    assert "the API does not answer" in page
    assert "not ready: eth1 has no address" in await browser.words("/")


# --- bad input --------------------------------------------------------------------------------------------------


async def test_text_of_machines_and_the_api_is_escaped(site, browser):
    mac = site.hardware(EVIL, 1, namespace=EVIL, labels={EVIL: EVIL, "x": EVIL}, osie=EVIL)
    site.play(mac, cut(Milestone.ACTION_BEGUN), T0, EVIL)
    detail = {"action": EVIL, "state": "Running", "model": EVIL, "client": EVIL, "uuid": EVIL}
    site.journey.record(mac, Step.ACTION, Outcome.INFO, EVIL, **detail)
    site.journey.record(mac, Step.ACTION, Outcome.INFO, EVIL, output=f"{EVIL}\n</pre>{CONTROLS}", action=EVIL)
    site.journey.record(mac, Step.LOG, Outcome.INFO, EVIL, lines=EVIL)
    raw = workflow("m", T0)
    raw["metadata"]["name"] = raw["status"]["state"] = raw["status"]["message"] = EVIL
    rendered = {"name": EVIL, "image": EVIL}
    raw["status"]["actions"][0] = {"id": EVIL, "state": EVIL, "failureReason": EVIL, "rendered": rendered}
    site.workflows[EVIL] = raw
    site.journey.record(STRANGER, Step.SEEN, Outcome.INFO, EVIL, manifest=EVIL + "</pre>", client=EVIL)
    site.health = Health(EVIL, (EVIL,))
    site.sweep(T0 + 500)
    asked = "/?q=%3Cscript%3Ealert(1)%3C/script%3E%22'%3E&group=%22%3E%3Cscript%3E"
    racks = ("/", "/?group=x", "/?group=osie", "/?group=namespace", asked)
    for path in (*racks, "/edge", f"/machine/{mac}", f"/machine/{STRANGER}"):
        page = await browser.html(path)
        assert "alert(1)" in page, path
        parsed = Parsed(page)
        (script,) = [attributes for tag, attributes in parsed.elements if tag == "script"]
        assert str(script["src"]).startswith("/static/page.js?v=")
        assert not [tag for tag, _ in parsed.elements if tag == "img"]
        names = [name for _, attributes in parsed.elements for name in attributes]
        assert not [name for name in names if name.startswith("on") or name == "style"]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page)
    for path in ("/live", f"/live/machine/{mac}"):  # and what is sent to a page that is open
        async with browser.session.get(path) as response:
            await response.content.readuntil(b"\n\n")
            reported = (await response.content.readuntil(b"\n\n")).decode()
            assert "alert(1)" in reported
            assert "<script" not in reported
            assert "<img" not in reported


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
def test_control_characters_are_shown_as_such(text, shown):
    assert plain(text) == shown


# --- size ---------------------------------------------------------------------------------------------------------


async def test_page_of_a_full_rack_weighs_less_than_100_kb(site, browser):
    message = "DHCPACK to UEFI x86-64 PXE ROM, boot file snponly.efi"
    for number in range(1, 301):
        mac = site.hardware(f"compute-node-{number}.rack-17.example.org", number)
        detail = {"osie": "default/debian-13-hook", "model": "Supermicro SYS-221H-TNR"}
        site.journey.record(mac, Step.DHCP, Outcome.OK, message, stage="PXE ROM", dhcp="ack", **detail)
    site.sweep()
    assets = sum(len((STATIC / name).read_bytes()) for name in ("page.css", "page.js", "icon.svg"))
    page = await browser.html("/")
    assert "Supermicro SYS-221H-TNR" in page
    assert "due in" in page
    assert len(page.encode()) + assets < 100_000


async def test_output_and_events_that_are_shown_are_bounded(site, browser):
    mac = site.hardware("m1", 1)
    for number in range(500):
        site.journey.record(mac, Step.ACTION, Outcome.INFO, "x" * 500, output="line\n" * 800, action=f"a{number}")
    page = await browser.html(f"/machine/{mac}")
    assert len(page) < 130_000
    assert "The last lines." in page


def test_durations_and_sizes_have_readable_units():
    durations = {0: "0 s", 0.04: "40 ms", 4.24: "4.2 s", 59.4: "59 s", 65: "1:05 min", 11_400: "3:10 h", 1e6: "11 days"}
    assert {seconds: span(seconds) for seconds in durations} == durations
    assert [size(each) for each in (0, 850, 14_200, 14.2e6, 1.4e9)] == ["0 B", "850 B", "14.2 kB", "14.2 MB", "1.4 GB"]


# --- a boot drawn to scale ----------------------------------------------------------------------------------------


def drawn(site: PageSite, mac: str, number: int = 0) -> Timeline:
    return site.pages.machines.shown(mac, number).timeline


def test_installation_is_one_line_from_dhcp_to_cloud_init_to_scale_and_without_gaps():
    site, mac = played(INSTALLATION)
    line = drawn(site, mac)
    assert (line.began, line.reached) == (T0, "installed system is up")
    assert line.seconds == pytest.approx(131.5)
    labels = [bar.label for bar in line.bars]
    assert (labels[0], labels[-1]) == ("takes the address", "system comes up")
    actions = [label.removeprefix("action ") for label in labels if label.startswith("action")]
    assert actions == ["stream-image", "grow-partition", "reboot"]
    assert len(chains(read(mac, site.journey.events(mac)))) == 1
    assert sum(bar.seconds for bar in line.bars) == pytest.approx(line.seconds)
    assert sum(bar.width for bar in line.bars) == pytest.approx(100, abs=0.1)
    for bar, after in zip(line.bars, line.bars[1:], strict=False):
        assert bar.x + bar.width == pytest.approx(after.x, abs=0.01)
    image = line.bars[labels.index("action stream-image")]
    assert image.width == pytest.approx(100 * 43.5 / 131.5, abs=0.01)
    assert image.phase is Phase.INSTALLING
    assert all(0 <= tick.x <= 100 for tick in line.ticks)


POWER_LABELS = ["is switched off", "gets its boot device", "is switched on", "firmware starts"]


def power_steps(line: Timeline) -> list[tuple[str, float]]:
    return [(bar.label, round(bar.seconds, 3)) for bar in line.bars if bar.phase is Phase.POWER]


def test_boot_by_bmc_control_begins_with_its_first_step_up_to_the_discover():
    site, mac = played(BY_BMC)
    line = drawn(site, mac)
    assert line.began == T0
    assert power_steps(line) == list(zip(POWER_LABELS, [6.1, 1.3, 1.8, 24.8], strict=True))
    assert line.bars[4].label == "takes the address"
    assert sum(bar.width for bar in line.bars) == pytest.approx(100, abs=0.1)


def test_machine_that_bmc_control_switches_has_a_boot_before_its_first_packet():
    site, mac = played(INSTALLATION)
    site.play(mac, BY_BMC[:3], T0 + 5000, "m1")
    site.at += 3.0
    line = drawn(site, mac)
    assert power_steps(line) == list(zip(POWER_LABELS[:3], [6.1, 1.3, 3.0], strict=True))
    assert [bar.open for bar in line.bars] == [False, False, True]
    assert (line.reached, line.began) == ("is switched on", T0 + 5000)
    assert not site.pages.machines.shown(mac).is_over
    assert drawn(site, mac, 1).reached == "installed system is up"
    for after, *event in BY_BMC[3:6]:
        site.play(mac, [(after, *event)], T0 + 5000, "m1")
    assert [label for label, _ in power_steps(drawn(site, mac))] == POWER_LABELS
    assert len(site.pages.machines.shown(mac).earlier) == 2


def test_late_report_that_the_discover_is_awaited_begins_no_boot():
    site, mac = played([*BY_BMC[:5], (35.0, *BY_BMC[3][1:])])
    assert len(chains(read(mac, site.journey.events(mac)))) == 1


def test_step_of_bmc_control_that_is_reported_again_with_its_progress_is_one_bar():
    again = [(after + 3.0, *event[:2], f"{event[2]}: not yet", event[3]) for after, *event in BY_BMC[:4]]
    site, mac = played(sorted([*BY_BMC[:6], *again[:1], *again[3:]], key=lambda each: each[0]))
    assert power_steps(drawn(site, mac)) == list(zip(POWER_LABELS, [6.1, 1.3, 1.8, 24.8], strict=True))


def test_step_of_bmc_control_that_takes_too_long_has_a_bar_from_its_warning_to_the_next_step():
    detail = {"reason": "StepOverdue", "way": "pxe", "attempt": 1}
    message = "pxe, attempt 1: switching the machine off takes longer than 4 s"
    overdue = (4.0, Step.POWER, Outcome.WARNING, message, detail)
    site, mac = played([BY_BMC[0], overdue])
    site.at += 1.5
    line = drawn(site, mac)
    assert (line.reached, line.bars[-1].open) == ("its BMC takes too long", True)
    site, mac = played([BY_BMC[0], overdue, *BY_BMC[1:6]])
    steps = [("is switched off", 4.0), ("its BMC takes too long", 2.1), ("gets its boot device", 1.3)]
    assert power_steps(drawn(site, mac))[:3] == steps


def test_each_reason_of_a_boot_by_bmc_that_goes_on_has_words():
    assert POWER_STEPS.keys() > SWITCHING_REASONS
    assert POWER_STEPS.keys() <= {*BootReason}


def test_usual_time_of_a_power_step_is_that_of_the_earlier_boots():
    site, mac = played(BY_BMC)
    site.play(mac, BY_BMC[:8], T0 + 5000, "m1")
    bar = next(bar for bar in drawn(site, mac).bars if bar.label == "firmware starts")
    assert bar.usual == pytest.approx(24.8)


def test_boot_that_bmc_control_gives_up_ends_with_a_failed_step():
    given_up = (20.0, Step.POWER, Outcome.FAILED, "BMC control has given up: no answer", {"reason": "BmcUnreachable"})
    site, mac = played([*BY_BMC[:3], given_up])
    bar = drawn(site, mac).bars[-1]
    assert (bar.label, bar.open, bar.failed) == ("is switched on", False, True)


@pytest.mark.parametrize("detail", [{}, {"state": "Canceled"}], ids=["deleted", "cancelled"])
def test_boot_of_a_workflow_that_ends_first_goes_on_no_longer(detail):
    name = {"workflow": "default/m1"}
    reports = [(after, *event[:-1], {**event[-1], **name}) for after, *event in BY_BMC[:3]]
    site, mac = played([*reports, (20.0, Step.WORKFLOW, Outcome.INFO, "workflow default/m1: ended", name | detail)])
    assert [bar.open for bar in drawn(site, mac).bars] == [False] * 3
    site.play(mac, reports[:1], T0 + 5000, "m1")
    assert drawn(site, mac).began == T0 + 5000, "the time between two boots belongs to neither"


def test_installed_system_that_starts_after_bmc_control_switched_the_machine_is_no_part_of_its_installation():
    site, mac = played([event for event in BY_BMC if event[0] <= 131.0])
    site.play(mac, BY_BMC[:4], site.at + 10, "m1")
    site.play(mac, [event for event in INSTALLATION if event[0] in (127.0, 127.2)], site.at - 120, "m1")
    first, second = chains(read(mac, site.journey.newest(mac, 150)))
    assert [len(each.boots) for each in (first, second)] == [1, 1]
    assert power_steps(drawn(site, mac))[0] == ("is switched off", 6.1)


async def test_legend_has_power_if_the_boot_has_it(site, browser):
    site.play(mac := site.hardware("m1", 1, power="on"), BY_BMC[:6], T0, "m1")
    assert '<i class="swatch power"' in await browser.html(f"/machine/{mac}")
    site.play(mac := site.hardware("m2", 2), INSTALLATION[:6], T0, "m2")
    assert '<i class="swatch power"' not in await browser.html(f"/machine/{mac}")


def test_steps_that_took_no_time_have_no_row_but_actions_and_what_failed_do():
    instant = [
        (0.0, Step.WORKFLOW, Outcome.INFO, "Running", {"state": "Running"}),
        (0.0, Step.ACTION, Outcome.INFO, "begun", {"action": "a", "state": "Running"}),
        (0.004, Step.ACTION, Outcome.OK, "ended", {"action": "a", "state": "Succeeded"}),
        (0.004, Step.ACTION, Outcome.INFO, "begun", {"action": "b", "state": "Running"}),
        (0.004, Step.ACTION, Outcome.FAILED, "failed", {"action": "b", "state": "Failed"}),
        (2.0, Step.WORKFLOW, Outcome.FAILED, "Failed", {"state": "Failed"}),
    ]
    line = drawn(*played(instant))
    assert [(bar.label, span(bar.seconds)) for bar in line.bars] == [
        ("action a", "4 ms"), ("action b", "0 s"), ("Workflow ends", "2.0 s"),
    ]  # fmt: skip
    assert [bar.failed for bar in line.bars] == [False, True, False]


def test_step_that_lasts_grows_and_is_late_after_its_limit():
    site, mac = played(cut(Milestone.LEASED))
    site.at = T0 + 4.9 + 5
    bar = drawn(site, mac).bars[-1]
    assert (bar.label, bar.open, bar.late) == ("asks for its boot program", True, False)
    assert bar.seconds == pytest.approx(5)
    site.at = T0 + 4.9 + 30
    bar = drawn(site, mac).bars[-1]
    assert (bar.open, bar.late, bar.limit) == (True, True, 8)


def test_earlier_boots_are_listed_and_say_what_is_usual_for_this_machine():
    site, mac = played(INSTALLATION)
    site.play(mac, INSTALLATION, T0 + 5000, "m1")
    assert [at for at, _ in site.pages.machines.shown(mac, 0).earlier] == [0, 1]
    first = next(bar for bar in drawn(site, mac).bars if bar.label == "takes the address")
    assert first.usual == pytest.approx(4.9)
    before = drawn(site, mac, 1)
    assert (before.began, before.bars[0].usual) == (T0, None)
    assert site.pages.machines.shown(mac, 999).number == 1, "the oldest"


def test_machine_that_boots_again_and_again_has_bounded_bars():
    many = [
        (100.0 + number, Step.ACTION, Outcome.INFO, "begun", {"action": f"a{number}", "state": "Running"})
        for number in range(200)
    ]
    line = drawn(*played([*cut(Milestone.ACTION_BEGUN), *many]))
    assert len(line.bars) <= 80
    assert len(line.ticks) <= 10
    failed = (60.0, Step.ACTION, Outcome.FAILED, "failed", {"action": "stream-image", "state": "Failed"})
    line = drawn(*played([*cut(Milestone.ACTION_BEGUN), failed]))
    assert [bar.failed for bar in line.bars if bar.label == "action stream-image"] == [True]
    site, mac = played()
    assert drawn(site, mac) is None, "it was never heard"
    assert site.pages.machines.shown("02:00:00:00:00:01", 0) is None


async def test_osies_are_read_in_turns_and_seldom(monkeypatch):
    """Each has to be unpacked, and DHCP is served by the same event loop."""
    monkeypatch.setattr("edge.page.live.TURN_SECONDS", 0.0)  # each step is long enough for a turn
    site = PageSite(T0)
    site.osies = [Osie(f"d/o{number:03}", (("kernel", f"http://x/{number}"),)) for number in range(150)]
    reading, others = asyncio.create_task(site.status.update(TimeSlice())), 0
    while not reading.done():
        await turns()
        others += 1
    assert others >= 150 // 10
    shown = site.status.shown()
    assert (len(shown.osies), shown.more_osies, shown.osies[0][0]) == (100, 50, "d/o000")
    site.osies = []
    await site.status.update(TimeSlice())
    assert site.status.shown().osies, "it was read a moment ago"
