"""Pages that follow what happens: soon, and whatever happens at a bounded rate and in bounded memory."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.steps import Milestone
from edge.page.live import Live
from edge.page.rows import Row
from edge.page.time_slice import LoopLoad, TimeSlice
from edge.page.words import Kind
from tests.page_site import PageSite, cut
from tests.waiting import until

T0 = 1_700_000_000.0


async def message(response: Any) -> dict[str, Any]:
    """The next one."""
    async with asyncio.timeout(15):
        while True:
            block = (await response.content.readuntil(b"\n\n")).decode().strip()
            if block.startswith("data: "):
                told: dict[str, Any] = json.loads(block[6:])
                return told


async def test_what_happens_to_a_machine_changes_its_row_alone():
    site = PageSite(T0)
    one, other = site.hardware("m1", 1), site.hardware("m2", 2)
    async with site.served() as client, client.get("/live") as response:
        first = await message(response)
        assert set(first["rows"]["html"]) == {"m" + mac.replace(":", "") for mac in (one, other)}
        site.journey.record(one, Step.DHCP, Outcome.OK, "DHCPOFFER", stage="PXE ROM", dhcp="offer")
        told = await message(response)
        assert list(told["rows"]["html"]) == ["m" + one.replace(":", "")]
        assert "was offered an address" in told["rows"]["html"]["m" + one.replace(":", "")]
        assert "health" not in told.get("parts", {})


async def test_page_that_is_filtered_hears_of_machines_that_come_and_go():
    site = PageSite(T0)
    mac = site.hardware("m1", 1)
    async with site.served() as client, client.get("/live?show=booting") as response:
        assert (await message(response))["parts"]["empty"]
        site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER", stage="PXE ROM", dhcp="offer")
        assert (await message(response))["rows"]["order"] == ["m" + mac.replace(":", "")]
        site.inventory.remove({"metadata": {"name": "m1", "namespace": "default"}})
        site.journey.record(mac, Step.WORKFLOW, Outcome.OK, "ended", state="Succeeded")
        assert (await message(response))["rows"]["order"] == []


async def test_machine_page_hears_output_and_a_new_state_of_its_workflow():
    site = PageSite(T0)
    mac = site.hardware("m1", 1)
    site.play(mac, cut(Milestone.ACTION_BEGUN), T0, "m1")
    async with site.served() as client, client.get(f"/live/machine/{mac}") as response:
        assert set((await message(response))["parts"]) >= {"summary", "timeline", "workflow", "output", "events"}
        site.journey.record(mac, Step.ACTION, Outcome.INFO, "x", output="640 MiB written", action="stream-image")
        told = await message(response)
        assert "640 MiB written" in told["parts"]["output"]
        assert "workflow" not in told["parts"]


async def test_thousands_of_events_are_a_few_messages():
    site = PageSite(T0)
    macs = [site.hardware(f"m{number}", number) for number in range(1, 201)]
    async with site.served() as client, client.get("/live") as response:
        await message(response)
        for turn in range(50):
            for mac in macs:
                site.journey.record(mac, Step.TFTP, Outcome.INFO, f"{turn}", phase="progress")
            await asyncio.sleep(0.005)
        messages = 1
        while True:
            told = await message(response)
            if any(">49<" in html for html in told.get("rows", {}).get("html", {}).values()):
                break
            messages += 1
        assert messages < 15


class Slow:
    """A reader who takes nothing, and a page that has something new each time."""

    def __init__(self) -> None:
        self.asked = 0
        self.wrote = 0
        self.taken = asyncio.Event()

    async def news(self, _turns: TimeSlice) -> dict[str, object]:
        self.asked += 1
        return {"parts": {"x": str(self.asked)}}

    async def write(self, _data: bytes) -> None:
        self.wrote += 1
        if self.wrote > 1:
            await self.taken.wait()


async def test_browser_that_takes_nothing_is_made_no_second_message():
    live, slow = Live(interval=0.001), Slow()
    following = asyncio.create_task(live.follow(slow, slow.write, lambda: True))
    await until(lambda: slow.wrote == 2)
    await asyncio.sleep(0.05)
    assert slow.asked == 1
    slow.taken.set()
    await until(lambda: slow.asked > 1)
    live.close()
    await following


async def test_page_that_is_dear_is_looked_at_more_seldom_the_more_are_open():
    now = 0.0

    class Dear:
        asked = 0

        async def news(self, _turns: TimeSlice) -> dict[str, object]:
            nonlocal now
            now += 0.02
            self.asked += 1
            return {}

    async def write(_data: bytes) -> None:
        pass

    live, pages = Live(interval=0.01, spent=lambda: now), [Dear(), Dear()]
    following = [asyncio.create_task(live.follow(page, write, lambda: True)) for page in pages]
    await asyncio.sleep(0.5)
    assert sum(page.asked for page in pages) <= 10  # 4 times 20 ms for each of two: about every 160 ms
    live.close()
    await asyncio.gather(*following)


async def test_silence_has_a_heartbeat():
    written: list[bytes] = []

    class Silent:
        async def news(self, _turns: TimeSlice) -> dict[str, object]:
            return {}

    async def write(data: bytes) -> None:
        written.append(data)

    live = Live(interval=0.005, heartbeat=0.02)
    following = asyncio.create_task(live.follow(Silent(), write, lambda: True))
    await until(lambda: b": heartbeat\n\n" in written)
    live.close()
    await following


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


async def test_page_that_is_closed_leaves_nothing_behind():
    site = PageSite(T0)
    async with site.served() as client:
        response = await client.get("/live")
        await message(response)
        assert len(site.live) == 1
        response.close()
        await until(lambda: len(site.live) == 0)
        assert site.rack._lookers == 0
        assert site.rack._closing is not None


async def test_edge_that_stops_does_not_wait_for_pages():
    site = PageSite(T0)
    async with asyncio.timeout(12), site.served() as client:
        response = await client.get("/live")
        await message(response)
        site.site.close()
        assert await response.content.read() is not None


@pytest.mark.parametrize("path", ["/live/x", "/live/machine/x", "/live/machine/", "/live/edge/x"])
async def test_stream_of_nothing_is_not_found(path):
    async with PageSite(T0).served() as client, client.get(path) as response:
        assert response.status == 404


def test_others_are_busy_when_they_take_most_of_a_processor():
    now = spent = 0.0
    others = LoopLoad(lambda: now, lambda: spent)
    now, spent = 1.0, 0.7
    assert others.is_high(0.0)
    now, spent = 2.0, 1.4
    assert not others.is_high(0.2)
    now, spent = 3.0, 1.5
    assert not others.is_high(0.0)


async def all_booting() -> tuple[PageSite, list[str]]:
    """Rows of a thousand machines that have booted since they were made; the last one has failed."""
    site = PageSite(T0)
    macs = [site.hardware(f"m{number}", number) for number in range(1, 1001)]
    await site.rack.update()
    for mac in macs:
        site.journey.record(mac, Step.DHCP, Outcome.OK, "DHCPOFFER", stage="PXE ROM", dhcp="offer")
    site.journey.record(macs[-1], Step.KERNEL, Outcome.FAILED, "the upstream answers 404")
    site.sweep()
    return site, macs


async def test_others_who_begin_to_be_busy_while_it_is_worked_are_noticed_and_what_may_wait_is_put_off():
    site, macs = await all_booting()
    # By this clock, all of the time in which it pauses is others'.
    await site.rack.update(TimeSlice(look_seconds=0.0, elapsed=time.perf_counter))
    done = [mac for mac in macs if Row._make(site.rack.rows[mac]).kind is not Kind.SILENT]
    assert macs[-1] in done
    assert len(done) < 1000


async def test_idle_event_loop_is_found_idle_however_often_it_is_looked():
    turns = TimeSlice(look_seconds=0.0)
    for _ in range(5):
        hash(tuple(range(300_000)))
        await turns.rest()
    assert not turns.is_busy


async def test_where_others_are_busy_what_is_shown_and_who_is_in_trouble_comes_first():
    site, macs = await all_booting()
    times = iter(range(10_000))
    busy = TimeSlice(busy=True, elapsed=lambda: float(next(times)))
    await site.rack.update(busy, [macs[-2]])
    done = [mac for mac in macs if Row._make(site.rack.rows[mac]).kind is not Kind.SILENT]
    assert {macs[-1], macs[-2]} <= set(done)
    assert len(done) < 100
    await site.rack.update()
    assert all(Row._make(packed).kind is not Kind.SILENT for packed in site.rack.rows.values())
