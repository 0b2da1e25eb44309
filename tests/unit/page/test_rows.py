"""One machine in one row, which rows a page shows, and pages that follow what happens, at a bounded rate."""

from __future__ import annotations

import asyncio
import gc
import json
from itertools import count
from urllib.parse import parse_qsl, urlsplit

import pytest

from edge.journey.events import Milestone, Note, Outcome, Step
from edge.journey.expectations.limits import LIMITS
from edge.page.feed import RowsSource
from edge.page.live import INTERVAL_SECONDS, Live, LoopLoad, TimeSlice
from edge.page.query import PAGE_ROWS, Query, Selection, read_query, select
from edge.page.rack import LINGER_SECONDS
from edge.page.rows import Row, natural
from edge.page.words import RANKS, RowKind
from tests.page_site import IN_ACTION, T0, PageSite, cut, played
from tests.support.virtual_time import elapse, turns
from tests.waiting import until

STRANGER = "02:00:00:aa:bb:cc"


async def rows(site: PageSite) -> dict[str, Row]:
    await site.rack.update()
    return {mac: Row._make(packed) for mac, packed in site.rack.rows.items()}


async def test_machine_that_progresses_shows_the_next_step_and_its_deadline():
    site, mac = played(cut(Milestone.LEASED))
    row = (await rows(site))[mac]
    assert (row.name, row.kind, row.state) == ("default/m1", RowKind.BOOTING, "has an address")
    assert row.awaited == LIMITS[Milestone.LEASED].awaited
    assert (row.until, row.since) == (pytest.approx(T0 + 4.9 + 8), pytest.approx(T0 + 4.9))
    # Ten thousand objects more for the garbage collector would hold the event loop for tens of milliseconds each time.
    gc.collect()
    assert [gc.is_tracked(each) for each in (site.rack.rows[mac], site.rack._named[mac])] == [False, False]
    # It does not get on: why, and since when it is silent.
    for second in range(20):
        site.sweep(T0 + 5 + second)
    row = (await rows(site))[mac]
    assert (row.kind, row.reason, row.warning) == (RowKind.TROUBLE, "NoTFTPRequest", True)
    assert "no TFTP" in row.wrong
    assert row.heard == pytest.approx(T0 + 4.9)  # a diagnosis of the edge is no sign of life
    assert row.message.startswith("DHCPACK")


async def test_registered_machine_that_was_never_switched_on_is_never_heard_whatever_happens_to_its_workflow():
    site = PageSite(T0)
    mac = site.hardware("m1", 1)
    site.journey.record(mac, Step.WORKFLOW, Outcome.INFO, "workflow default/w: Pending", state="Pending")
    site.sweep(T0 + 1)
    row = (await rows(site))[mac]
    assert (row.kind, row.state, row.heard) == (RowKind.SILENT, "never seen", 0.0)
    site.journey.record(mac, Step.WORKFLOW, Outcome.FAILED, "workflow default/w: Failed", state="Failed")
    site.sweep(T0 + 2)
    row = (await rows(site))[mac]
    assert (row.kind, row.state, row.reason, row.warning) == (RowKind.TROUBLE, "never seen", "WorkflowFailed", True)


async def test_machine_whose_hardware_is_deleted_is_in_trouble_no_more():
    site, mac = played(cut(Milestone.LEASED))
    site.journey.record(mac, Step.KERNEL, Outcome.FAILED, "the upstream answers 404")
    site.sweep(T0 + 6)
    assert (await rows(site))[mac].kind is RowKind.TROUBLE
    site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    site.expectations.forget(mac)
    row = (await rows(site))[mac]
    assert (row.kind, row.state, row.wrong, row.warning) == (RowKind.UNREGISTERED, "no longer registered", "", False)


async def test_event_is_seen_before_the_next_sweep():
    site, mac = played(cut(Milestone.PROGRAM_BEGUN))
    await site.rack.update()
    site.journey.record(mac, Step.TFTP, Outcome.OK, "sent")
    assert (await rows(site))[mac].state == "has its boot program"
    site.journey.record(mac, Step.KERNEL, Outcome.FAILED, "the upstream answers 404")
    row = (await rows(site))[mac]
    assert (row.kind, row.reason, row.wrong) == (RowKind.TROUBLE, "KernelFailed", "the upstream answers 404")


@pytest.mark.parametrize(
    ("until", "state", "kind"),
    [
        (Milestone.WORKFLOW_RUNNING, "Workflow runs", RowKind.WORKING),
        (Milestone.ACTION_BEGUN, "action 1 of 3: stream-image", RowKind.WORKING),
        (Milestone.ACTION_ENDED, "action 1 of 3 ended", RowKind.WORKING),
        (Milestone.WORKFLOW_ENDED, "Workflow succeeded", RowKind.DONE),
        (Milestone.METADATA_READ, "installed system is up", RowKind.DONE),
        (Milestone.AGENT_CONNECTED, "agent connected", RowKind.IDLE),
    ],
)
async def test_state_is_shown_in_words(until, state, kind):
    site, mac = played(cut(until))
    row = (await rows(site))[mac]
    assert (row.state, row.kind) == (state, kind)


async def test_hardware_that_comes_and_goes_is_followed_and_unknown_machines_have_rows_too():
    site = PageSite(T0)
    assert await rows(site) == {}
    mac = site.hardware("m1", 1)
    site.journey.record(STRANGER, Step.SEEN, Outcome.INFO, "seen, not registered")
    kinds = {mac: row.kind for mac, row in (await rows(site)).items()}
    assert kinds == {mac: RowKind.SILENT, STRANGER: RowKind.UNREGISTERED}
    site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
    assert list(await rows(site)) == [STRANGER]


async def test_action_that_prints_is_not_overdue_however_long_it_runs():
    site, mac = played(cut(Milestone.ACTION_BEGUN))
    began = site.at
    for second in range(5, 300, 5):
        site.at = began + second
        site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output=f"{second} MiB", action="stream-image")
        site.sweep()
        row = (await rows(site))[mac]
        assert row.until == pytest.approx(site.at + 60), "a minute after the last line"
        assert (row.kind, row.wrong, row.state) == (RowKind.WORKING, "", "action 1 of 3: stream-image")
    # It prints no more: overdue a minute after its last line, and by as long as it has been silent since.
    silent = site.at
    for second in range(1, 100):
        site.sweep(silent + second)
        row = (await rows(site))[mac]
        assert (row.until, row.heard) == (pytest.approx(silent + 60), silent), "what the edge notes is no output"
    assert row.reason == "ActionSilent"
    # Its next line gives it a whole minute again.
    site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output="more", action="stream-image")
    site.sweep()
    assert (await rows(site))[mac].until == pytest.approx(site.at + 60)


async def test_step_that_may_take_longer_over_ipv6_is_due_later():
    over_ipv6 = [
        (0.0, Step.DHCP, Outcome.OK, "ADVERTISE", {"stage": "PXE ROM", "dhcp": "advertise"}),
        (1.0, Step.DHCP, Outcome.OK, "REPLY", {"stage": "PXE ROM", "dhcp": "reply"}),
        (2.0, Step.LOG, Outcome.WARNING, "looked at", {}),
    ]
    site, mac = played(over_ipv6)
    site.expectations.look_at(mac)
    site.sweep(T0 + 3)
    assert (await rows(site))[mac].until > T0 + 1 + LIMITS[Milestone.LEASED].usual


async def test_row_says_the_osie_the_model_and_how_many_actions_there_are():
    site, mac = played(IN_ACTION)
    row = (await rows(site))[mac]
    assert (row.osie, row.model, row.number, row.of) == ("hook", "Supermicro X12STH", 2, 3)
    assert row.state == "action 2 of 3: grow-partition", "though its last event is a line of output"
    for number in range(150):
        site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output=f"{number}", action="grow-partition")
    site.rack.close()
    row = (await rows(site))[mac]
    assert (row.osie, row.model, row.number, row.of) == ("hook", "Supermicro X12STH", 2, 3)
    assert [found.mac for _, found in (await site.rack.select(read_query({"q": "x12sth"}))).rows] == [mac]
    # The next boot has neither until it says so.
    site.play(mac, cut(Milestone.LEASED), T0 + 9000, "m1")
    assert ((await rows(site))[mac].number, (await rows(site))[mac].of) == (0, 0)


async def test_rows_cost_no_look_at_the_journey_per_second(monkeypatch):
    site, mac = played(IN_ACTION)
    await rows(site)
    looks = 0
    after = site.journey.after

    def counted(*given):
        nonlocal looks
        looks += 1
        return after(*given)

    monkeypatch.setattr(site.journey, "after", counted)
    for second in range(50):
        site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output=f"{second}", action="grow-partition")
        await rows(site)
    assert looks == 0


async def test_machine_whose_hardware_is_deleted_is_in_trouble_no_more_and_the_counts_and_feed_follow():
    failed = (58.4, Step.ACTION, Outcome.FAILED, "action failed", {"action": "a", "state": "Failed"})
    site, mac = played([*cut(Milestone.ACTION_BEGUN), failed])
    site.sweep(T0 + 60)
    feed = RowsSource(site.rack, site.status)
    assert (await feed.news(TimeSlice()))["rows"][0]["kind"] == "trouble"
    async with site.served() as client, client.get("/live") as response:
        assert "in trouble" in (await message(response))["parts"]["counts"]
        site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
        reported = await message(response)
        assert "no longer registered" in reported["rows"]["html"][element(mac)]
        assert "in trouble" not in reported["parts"]["counts"]
        assert "not registered" in reported["parts"]["counts"]
    (row,) = (await feed.news(TimeSlice()))["rows"]
    assert (row["kind"], row["wrong"], row["reason"], row["waiting_for"]) == ("unregistered", None, None, None)
    assert site.pages.machines.shown(mac).wrong is None
    # Registered again, it is what it was.
    site.hardware("m1", 1)
    assert (await rows(site))[mac].kind is RowKind.TROUBLE


async def test_machine_that_was_never_switched_on_stays_so_when_it_gets_a_workflow():
    site, mac = played([(0.0, Step.WORKFLOW, Outcome.INFO, "workflow default/m1: Pending", {"state": "Pending"})])
    row = (await rows(site))[mac]
    assert (row.kind, row.state, row.heard) == (RowKind.SILENT, "never seen", 0.0)
    assert site.pages.machines.shown(mac).row.kind is RowKind.SILENT
    site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER", **OFFER)
    assert (await rows(site))[mac].kind is RowKind.BOOTING


async def test_made_up_machines_do_not_fill_the_rows_of_a_page_that_is_open():
    site = PageSite(T0)
    await site.rack.update()
    for number in range(5000):
        site.journey.record(f"02:00:00:00:{number >> 8:02x}:{number & 255:02x}", Step.SEEN, Outcome.INFO, "seen")
        if number % 100 == 0:
            await site.rack.update()
    assert len(await rows(site)) <= 256 + 512 + 100


# --- which of them ---------------------------------------------------------------------------------------------


def row(name: str, kind: RowKind = RowKind.DONE, wrong: str = "", ip: str = "") -> Row:
    return Row(RANKS[kind], 0, 0.0, 0.0, f"mac-{name}", natural(name), f"default/{name}", ip, "", wrong=wrong)


def chosen(found: list[Row], **asked: str) -> Selection:
    by_name = [each.mac for each in sorted(found, key=lambda each: each.order)]
    *_, selection = select(by_name, {each.mac: each for each in found}, read_query(asked), lambda each: each.ip)
    return selection


def names(selection: Selection) -> list[str]:
    return [each.name.removeprefix("default/") for _, each in selection.rows]


def test_search_sort_and_filter_find_the_rows():
    found = [row("node-10"), row("node-9"), row("node-11", RowKind.TROUBLE), row("node-2", RowKind.SILENT)]
    assert names(chosen(found)) == ["node-11", "node-9", "node-10", "node-2"], "who needs somebody comes first"
    assert names(chosen(found, sort="name")) == ["node-2", "node-9", "node-10", "node-11"]
    found = [row("a", wrong="udp/69 is blocked"), row("b", ip="10.0.0.7"), row("BC")]
    assert names(chosen(found, q="UDP/69")) == ["a"]
    assert names(chosen(found, q="0.0.7")) == ["b"]
    assert names(chosen(found, q="bc")) == ["BC"]
    assert chosen(found, q="nobody").total == 0
    selection = chosen([row("a", RowKind.TROUBLE), row("b"), row("c")], show="trouble")
    assert names(selection) == ["a"]
    assert selection.counts == {RowKind.TROUBLE: 1, RowKind.DONE: 2}, "of all that the search finds"
    query = Query(text="a&b=#", kind=RowKind.TROUBLE, sort="heard", group="a/b", within="<x>", number=3)
    assert read_query(dict(parse_qsl(urlsplit(query.url).query, keep_blank_values=True))) == query
    assert "page" not in query.with_(kind=None)


def test_groups_stand_together_and_those_without_come_last():
    found = [row("a", ip=""), row("b", ip="y"), row("c", ip="x"), row("d", ip="y")]
    selection = chosen(found, group="rack")
    reported = [(group, each.name.removeprefix("default/")) for group, each in selection.rows]
    assert reported == [("x", "c"), ("y", "b"), ("y", "d"), ("", "a")]
    assert selection.groups == {"x": 1, "y": 2, "": 1}
    assert names(chosen(found, **{"group": "rack", "in": "y"})) == ["b", "d"]
    assert names(chosen(found, **{"group": "rack", "in": ""})) == ["a"]


def test_pages_have_a_hundred_rows_and_a_page_too_far_is_the_last():
    found = [row(f"n{number}") for number in range(1005)]
    first, last = chosen(found), chosen(found, page="99999")
    assert (len(first.rows), first.pages) == (PAGE_ROWS, 11)
    assert names(first)[0] == "n0"
    assert (names(last), last.number) == (["n1000", "n1001", "n1002", "n1003", "n1004"], 11)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("page", value) for value in ("-1", "٣", "9" * 40)),
        *(("sort", "drop table"), ("show", "<script>"), ("in", "x"), ("q", "\x00")),
    ],
)
def test_invalid_parameters_of_a_url_are_ignored(name, value):
    query = read_query({name: value})
    assert (query.sort, query.kind, query.within, query.number) == ("attention", None, None, 1)


async def test_grouping_by_osie_and_by_label_reads_hardware():
    site = PageSite(T0)

    async def groups(by: str) -> list[str]:
        await site.rack.update()
        return [group for group, _ in (await site.rack.select(read_query({"group": by}))).rows]

    site.hardware("m1", 1, labels={"rack": "a"}, osie="hook")
    site.hardware("m2", 2, labels={"rack": "b"})
    assert await groups("osie") == ["hook", ""]
    assert await groups("rack") == ["a", "b"]
    assert await site.rack.labels() == ["rack"]
    site.hardware("m1", 1, labels={"rack": "c"})
    assert await groups("rack") == ["b", "c"]


async def test_ten_thousand_machines_are_looked_at_in_turns(monkeypatch):
    """DHCP is served by the same event loop: none of its turns is long."""
    monkeypatch.setattr("edge.page.live.TURN_SECONDS", 0.0)  # each step is long enough for a turn
    site = PageSite(T0)
    for number in range(1, 2001):
        site.journey.record(site.hardware(f"m{number}", number), Step.DHCP, Outcome.OK, "offer")
    working = asyncio.create_task(site.rack.update())
    others = 0
    while not working.done():
        await turns()
        others += 1
    assert others >= 2000 // 25
    working, others = asyncio.create_task(site.rack.select(Query())), 0
    while not working.done():
        await turns()
        others += 1
    assert others >= 3


async def test_machine_that_an_earlier_run_saw_is_shown_as_it_was_and_nothing_is_awaited():
    site, mac = played(began=T0 + 5000)
    site.journey.began = site.at
    for after, step, outcome, message, detail in [*cut(Milestone.INITRD_SENT), (18.1, Step.LOG, Outcome.INFO, "l", {})]:
        assert site.journey.take_in(mac, T0 + after, Note(step, outcome, message, detail), now=False)
    site.sweep()
    row = (await rows(site))[mac]
    assert (row.state, row.kind, row.since) == ("has kernel and initrd", RowKind.IDLE, T0 + 18.0)
    assert (row.awaited, row.wrong) == ("", "")
    site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER", stage="PXE ROM", dhcp="offer")
    site.sweep()
    row = (await rows(site))[mac]
    assert (row.state, row.kind, row.awaited) == (
        "was offered an address",
        RowKind.BOOTING,
        LIMITS[Milestone.OFFERED].awaited,
    )


OFFER = {"stage": "PXE ROM", "dhcp": "offer"}


def element(mac: str) -> str:
    return "m" + mac.replace(":", "")


async def message(response) -> dict:
    """The next one."""
    while True:
        block = (await response.content.readuntil(b"\n\n")).decode().strip()
        if block.startswith("data: "):
            return json.loads(block[6:])


async def test_what_happens_to_a_machine_changes_its_row_alone():
    site = PageSite(T0)
    one, other = site.hardware("m1", 1), site.hardware("m2", 2)
    async with site.served() as client, client.get("/live") as response:
        assert set((await message(response))["rows"]["html"]) == {element(one), element(other)}
        site.journey.record(one, Step.DHCP, Outcome.OK, "DHCPOFFER", **OFFER)
        reported = await message(response)
        assert list(reported["rows"]["html"]) == [element(one)]
        assert "was offered an address" in reported["rows"]["html"][element(one)]
        assert "health" not in reported.get("parts", {})


async def test_page_that_is_filtered_hears_of_machines_that_come_and_go():
    site, mac = played()
    async with site.served() as client, client.get("/live?show=booting") as response:
        assert (await message(response))["parts"]["empty"]
        site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER", **OFFER)
        assert (await message(response))["rows"]["order"] == [element(mac)]
        site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
        site.journey.record(mac, Step.WORKFLOW, Outcome.OK, "ended", state="Succeeded")
        assert (await message(response))["rows"]["order"] == []


async def test_machine_page_hears_output_and_a_new_state_of_its_workflow():
    site, mac = played(cut(Milestone.ACTION_BEGUN))
    async with site.served() as client:
        async with client.get(f"/live/machine/{mac}") as response:
            assert set((await message(response))["parts"]) >= {"summary", "timeline", "workflow", "output", "events"}
            site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output="640 MiB written", action="stream-image")
            reported = await message(response)
            assert "640 MiB written" in reported["parts"]["output"]
            assert "workflow" not in reported["parts"]
            assert len(site.live) == 1
            response.close()
        await until(lambda: len(site.live) == 0)  # a page that is closed is followed no more
        response = await client.get("/live")
        await message(response)
        site.site.close()  # an edge that stops does not wait for pages
        assert await response.content.read() is not None


class Reader:
    """A browser; its pages have something new each time, for `cost` seconds of a processor."""

    def __init__(self, *, cost: float = 0.0, silent: bool = False) -> None:
        self.asked, self.spent = 0, 0.0
        self.written: list[bytes] = []
        self.taken = asyncio.Event()
        self.taken.set()
        self._cost, self._silent = cost, silent

    async def news(self, _turns: TimeSlice) -> dict[str, object]:
        self.asked += 1
        self.spent += self._cost
        return {} if self._silent else {"parts": {"x": str(self.asked)}}

    async def write(self, data: bytes) -> None:
        self.written.append(data)
        if data.startswith(b"data: "):
            await self.taken.wait()

    def live(self, **times: float) -> Live:
        """Streams of which nothing else has the loop, whose time is the loop's."""
        return Live(elapsed=asyncio.get_running_loop().time, spent=lambda: self.spent, **times)

    def follow(self, live: Live, source=None) -> asyncio.Task:
        return asyncio.create_task(live.follow((source or self).news, self.write, lambda: True))


@pytest.mark.looptime
async def test_thousands_of_events_are_a_few_messages():
    site = PageSite(T0)
    macs = [site.hardware(f"m{number}", number) for number in range(1, 201)]
    reader = Reader()
    live = reader.live()
    following = reader.follow(live, RowsSource(site.rack, site.status))
    for turn in range(50):
        await elapse(0.01)
        for mac in macs:
            site.journey.record(mac, Step.TFTP, Outcome.INFO, f"{turn}", phase="progress")
    await elapse(2 * INTERVAL_SECONDS)
    live.close()
    await following
    messages = [json.loads(data[6:]) for data in reader.written if data.startswith(b"data: ")]
    assert {row["message"] for row in messages[-1]["rows"]} == {"49"}
    assert len(messages) == 3  # at the beginning, after 0.3 s and at the end


@pytest.mark.looptime
async def test_no_second_message_is_made_for_a_browser_that_reads_nothing():
    reader = Reader()
    live = reader.live()
    reader.taken.clear()
    following = reader.follow(live)
    await elapse(600)
    assert reader.asked == 1
    reader.taken.set()
    await elapse(1.5 * INTERVAL_SECONDS)
    assert reader.asked == 2
    live.close()
    await following


@pytest.mark.looptime
async def test_expensive_page_is_updated_less_often_the_more_are_open():
    for pages, seconds in ((1, 0.32), (2, 0.64)):  # 4 times 80 ms for each that is open
        reader = Reader(cost=0.08)
        live = reader.live()
        following = [reader.follow(live) for _ in range(pages)]
        await elapse(64)
        assert reader.asked == pytest.approx(pages * 64 / seconds, rel=0.02)
        live.close()
        await asyncio.gather(*following)


@pytest.mark.looptime
async def test_silence_has_a_heartbeat():
    reader = Reader(silent=True)
    live = reader.live(heartbeat=15.0)
    following = reader.follow(live)
    await elapse(31)
    live.close()
    await following
    assert reader.written[1:] == [b": heartbeat\n\n"] * 2


async def test_page_beyond_the_limit_gets_the_reason():
    site = PageSite(T0, live=Live(most=2))
    async with site.served() as client:
        open_pages = [await client.get("/live") for _ in range(2)]
        async with client.get("/live") as response:
            assert response.status == 503
        open_pages[0].close()
        await until(lambda: not site.live.is_full)
        async with client.get("/live/edge") as response:
            assert response.status == 200
        for each in open_pages:
            each.close()


@pytest.mark.looptime
async def test_rows_are_dropped_a_while_after_the_last_request():
    site, _ = played()
    async with site.rack.looked_at():
        await site.rack.update()
    assert site.rack.is_open
    await elapse(LINGER_SECONDS)
    assert (site.rack.rows, site.rack.is_open) == ({}, False)


@pytest.mark.parametrize("path", ["/live/x", "/live/machine/x", "/live/machine/", "/live/edge/x"])
async def test_stream_of_nothing_is_not_found(path):
    assert (await PageSite(T0).ask(path))[0] == 404


def test_others_are_busy_when_they_take_most_of_a_processor():
    now = spent = 0.0
    others = LoopLoad(lambda: now, lambda: spent)
    for now, spent, ours, high in ((1.0, 0.7, 0.0, True), (2.0, 1.4, 0.2, False), (3.0, 1.5, 0.0, False)):  # noqa: B007
        assert others.is_high(ours) is high


async def all_booting() -> tuple[PageSite, list[str]]:
    """Rows of a thousand machines that have booted since they were made; the last one has failed."""
    site = PageSite(T0)
    macs = [site.hardware(f"m{number}", number) for number in range(1, 1001)]
    await site.rack.update()
    for mac in macs:
        site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER", **OFFER)
    site.journey.record(macs[-1], Step.KERNEL, Outcome.FAILED, "the upstream answers 404")
    site.sweep()
    return site, macs


def up_to_date(site: PageSite) -> set[str]:
    return {mac for mac, packed in site.rack.rows.items() if Row._make(packed).kind is not RowKind.SILENT}


@pytest.mark.parametrize("busy", [False, True])
async def test_where_others_are_busy_what_is_shown_and_who_is_in_trouble_comes_first(busy):
    site, macs = await all_booting()
    # By these clocks, each look takes long, and so does each pause, in which the others work.
    times = count()
    look = None if busy else 0.0
    await site.rack.update(TimeSlice(busy=busy, elapsed=lambda: float(next(times)), look_seconds=look), [macs[-2]])
    assert {macs[-1], macs[-2]} <= up_to_date(site)
    assert len(up_to_date(site)) < 100
    await site.rack.update()
    assert up_to_date(site) == set(macs)


async def test_idle_event_loop_is_found_idle_however_often_it_is_looked():
    spent = 0.0
    turns = TimeSlice(look_seconds=0.0, elapsed=lambda: spent)
    for _ in range(5):
        spent += 1.0  # of its own work; the loop has nothing else to do meanwhile
        await turns.rest()
    assert not turns.is_busy
