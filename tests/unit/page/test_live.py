"""Pages that follow what happens: soon, and whatever happens at a bounded rate and in bounded memory."""

from __future__ import annotations

import asyncio
import json
from itertools import count

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.steps import Milestone
from edge.page.feed import RowsSource
from edge.page.live import INTERVAL_SECONDS, Live
from edge.page.rack import LINGER_SECONDS
from edge.page.rows import Row
from edge.page.time_slice import LoopLoad, TimeSlice
from edge.page.words import Kind
from tests.page_site import T0, PageSite, cut, played
from tests.support.virtual_time import elapse
from tests.waiting import until

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
        told = await message(response)
        assert list(told["rows"]["html"]) == [element(one)]
        assert "was offered an address" in told["rows"]["html"][element(one)]
        assert "health" not in told.get("parts", {})


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
            told = await message(response)
            assert "640 MiB written" in told["parts"]["output"]
            assert "workflow" not in told["parts"]
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
        return asyncio.create_task(live.follow(source or self, self.write, lambda: True))


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
async def test_browser_that_takes_nothing_is_made_no_second_message():
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
async def test_page_that_is_dear_is_looked_at_more_seldom_the_more_are_open():
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


async def test_more_pages_than_there_may_be_are_told_so():
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
async def test_rows_are_kept_a_while_after_the_last_look_and_then_no_more():
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
    return {mac for mac, packed in site.rack.rows.items() if Row._make(packed).kind is not Kind.SILENT}


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
