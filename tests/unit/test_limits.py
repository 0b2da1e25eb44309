"""Limiters: rates, numbers at once, bounded mappings, and fair order."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.virtual_time import turns
from tink.limits import (
    Allowance,
    FairQueue,
    FairSemaphore,
    LimitedLog,
    OncePer,
    PrioritySemaphore,
    RecentlyUsed,
    Tally,
    TokenBuckets,
    Waiter,
    times,
)

# --- allowances -------------------------------------------------------------------------------------------------------


def test_each_has_its_share_and_all_have_theirs() -> None:
    allowance = Allowance(2, 5)
    assert [allowance.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert [allowance.take("b", 0.5) for _ in range(3)] == [True, True, False]
    assert [allowance.take("c", 0.9) for _ in range(2)] == [True, False]
    assert allowance.take("a", 1.0)


def test_memory_is_bounded_and_a_clock_set_back_stops_no_key() -> None:
    allowance = Allowance(2, 100)
    assert sum(allowance.take(number, 5.0) for number in range(10_000)) == 100
    assert len(allowance._passed) == 100
    assert allowance.take("a", -5.0)


# --- token buckets ----------------------------------------------------------------------------------------------------


def test_key_that_passes_seldom_always_passes_and_is_dropped() -> None:
    buckets = TokenBuckets(3, 1.0)
    assert [buckets.allows("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert buckets.allows("b", 0.0)
    assert [buckets.allows("a", 1.0), buckets.allows("a", 1.0)] == [True, False]
    assert len(buckets) == 1, "b has all of its burst again"
    assert all(buckets.allows("c", float(second)) for second in range(10, 40))
    assert len(buckets) == 1


def test_capacity_keeps_the_keys_that_passed_last() -> None:
    buckets = TokenBuckets(1, 1.0, capacity=10)
    assert all(buckets.allows(number, 0.0) for number in range(50))
    assert len(buckets) == 10
    assert not buckets.allows(49, 0.0)


# --- once in an interval ----------------------------------------------------------------------------------------------


def test_a_key_passes_once_in_the_interval_and_again_after_it() -> None:
    once = OncePer(60, 10)
    assert [once.due("a", 0), once.due("a", 59), once.due("b", 59), once.due("a", 60)] == [True, False, True, True]


def test_more_keys_than_the_capacity_are_silent_until_time_has_passed() -> None:
    once = OncePer(60, 2)
    assert [once.due(key, 0) for key in "abc"] == [True, True, False]
    assert once.due("c", 60)
    assert len(once) == 1


def test_clock_that_was_set_back_does_not_refuse_keys_without_end() -> None:
    once = OncePer(60, 2)
    assert [once.due("a", now) for now in (1000, 10)] == [True, True]


def test_one_owner_has_its_share_and_has_it_again_when_its_time_is_up() -> None:
    once = OncePer(60, 10, share=2)
    assert [once.due(key, 0, "greedy") for key in "abc"] == [True, True, False]
    assert once.due("d", 0, "modest")
    assert once.due("e", 0)
    assert [once.due(key, 60, "greedy") for key in "cde"] == [True, True, False]
    assert once._of_owner == {"greedy": 2}, "owners that have no entry take no room"


def test_a_key_that_was_refused_has_not_passed() -> None:
    once = OncePer(60, 1)
    assert [once.due(key, 0) for key in "ab"] == [True, False]
    assert ["a" in once, "b" in once] == [True, False]


def test_tally_returns_how_often_a_key_was_refused() -> None:
    tally = Tally(60.0, 10)
    assert [tally.due("a", now) for now in (0.0, 1.0, 2.0, 60.0, 61.0)] == [0, None, None, 2, None]
    assert times(2) == " (2 more times since this was last said)"
    assert times(0) == ""


def test_tally_of_invented_keys_is_bounded() -> None:
    tally = Tally(60.0, 10)
    for number in range(2000):
        tally.due(number // 2, 0.0)
    assert len(tally._refused) <= 10


# --- a log at a bounded rate, of which no tenant takes all ------------------------------------------------------------

log = logging.getLogger("test.limited")


def test_lines_of_one_tenant_leave_room_for_those_of_others(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    limited = LimitedLog(log, lambda: now, capacity=20, interval=10.0, share=5)
    for number in range(100):
        limited.warning("hostile %d", number, owner="hostile")
    limited.warning("victim", owner="victim")
    limited.warning("nobody's")
    assert caplog.messages == [*(f"hostile {number}" for number in range(5)), "victim", "nobody's"]
    now = 10.0
    limited.warning("hostile again", owner="hostile")
    left_out = "95 more lines like the last ones were left out (most of them: hostile 95)"
    assert caplog.messages[-2:] == [left_out, "hostile again"]


def test_lines_are_bounded_in_all(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(log, lambda: 0.0, capacity=20)
    written = [limited.warning("%d", number, owner=number) for number in range(100)]
    assert written == [True] * 20 + [False] * 80
    assert len(caplog.messages) == 20


def test_repeated_line_is_logged_once_and_not_counted_as_omitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    limited = LimitedLog(log, lambda: now, capacity=2, interval=60.0)
    for second in (0.0, 1.0, 59.0, 60.0):
        now = second
        limited.warning("the API is away", key="API")
    assert caplog.messages == ["the API is away"] * 2


def test_what_is_left_out_all_the_time_is_one_line_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 0
    limited = LimitedLog(log, lambda: now, capacity=1, interval=60.0)
    for now in range(120):
        limited.warning("%d", now, key=now)
    assert caplog.messages == ["0", "60", "59 more lines like the last ones were left out"]


def test_a_level_and_a_stack_trace_reach_the_log(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(log, lambda: 0.0, capacity=1)
    try:
        raise ValueError("boom")
    except ValueError:
        limited.log(logging.ERROR, "failed", exc_info=True)
    assert caplog.records[0].levelno == logging.ERROR
    assert "boom" in caplog.text


# --- turns: each line stays in order, and none waits for another's whole line -----------------------------------------


@given(st.lists(st.tuples(st.integers(0, 4), st.integers())))
def test_everything_comes_out_in_the_order_of_its_line(items: list[tuple[int, int]]) -> None:
    queue: FairQueue[tuple[int, int]] = FairQueue()
    for item in items:
        queue.append(item[0], item)
    assert len(queue) == len(items)
    out = [queue.popleft() for _ in items]
    for flow in range(5):
        assert [each for each in out if each[0] == flow] == [each for each in items if each[0] == flow]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.popleft()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_no_flow_is_served_twice_while_another_waits(flows: list[int]) -> None:
    queue: FairQueue[int] = FairQueue()
    for flow in flows:
        queue.append(flow, flow)
    left = {flow: flows.count(flow) for flow in flows}
    while left:
        turn = [queue.popleft() for _ in left]
        assert sorted(turn) == sorted(left)
        left = {flow: count - 1 for flow, count in left.items() if count > 1}


def test_drop_removes_the_last_item_of_the_longest_flow() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "b1", "b2", "b3"):
        queue.append(item[0], item)
    queue.drop()
    assert [queue.popleft() for _ in range(3)] == ["a1", "b1", "b2"]
    queue.append("a", "a1")
    queue.drop()
    assert len(queue) == 0


async def test_so_many_are_in_at_once_and_flows_come_in_by_turns() -> None:
    semaphore, inside, came = FairSemaphore(2), set[str](), list[str]()
    leave = asyncio.Event()

    async def go(name: str) -> None:
        async with semaphore.held(name[0]):
            inside.add(name)
            came.append(name)
            assert len(inside) <= 2
            await leave.wait()
            await turns()
            inside.discard(name)

    tasks = [asyncio.create_task(go(name)) for name in ("a1", "a2", "a3", "a4", "a5", "b1")]
    await turns(10)
    assert came == ["a1", "a2"]
    tasks[2].cancel()
    leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert came == ["a1", "a2", "b1", "a4", "a5"]
    async with semaphore.held("a"), semaphore.held("b"):
        pass


async def test_one_that_is_cancelled_as_it_is_called_lets_the_next_one_in() -> None:
    semaphore = FairSemaphore(1)
    entered = semaphore.held("a")
    await entered.__aenter__()

    async def go() -> None:
        async with semaphore.held("b"):
            pass

    called, after = asyncio.create_task(go()), asyncio.create_task(go())
    await turns(10)
    await entered.__aexit__(None, None, None)
    called.cancel()
    await asyncio.gather(called, after, return_exceptions=True)
    assert called.cancelled()
    assert after.exception() is None


# --- slots with priorities --------------------------------------------------------------------------------------------


class Bench:
    """Tasks that wait for a slot, by number; each holds its slot until `go`."""

    def __init__(self, most: int) -> None:
        self.semaphore = PrioritySemaphore(most)
        self.had: list[int] = []
        self.now = 0
        self.most = 0
        self.waiters: dict[int, Waiter] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.go = asyncio.Event()

    async def _wait(self, number: int) -> None:
        async with self.semaphore.slot(self.waiters[number]):
            self.had.append(number)
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await self.go.wait()
                await turns()
            finally:
                self.now -= 1

    async def come(self, number: int, time: float) -> None:
        self.waiters[number] = Waiter(time)
        self.tasks[number] = asyncio.create_task(self._wait(number))
        await turns()


async def test_waiter_with_the_earliest_time_is_next_and_then_the_first_that_came() -> None:
    bench = Bench(1)
    for number, time in enumerate((5.0, 3.0, 1.0, 1.0, 2.0)):
        await bench.come(number, time)
    assert bench.had == [0]
    bench.semaphore.expedite(bench.waiters[1], 0.5)
    standing = len(bench.semaphore._heap)
    bench.semaphore.expedite(bench.waiters[2], 4.0)
    bench.semaphore.expedite(bench.waiters[1], 0.5)
    bench.semaphore.expedite(bench.waiters[0], 0.0)
    assert len(bench.semaphore._heap) == standing, "what changes nothing takes no memory"
    bench.go.set()
    await asyncio.gather(*bench.tasks.values())
    assert bench.had == [0, 1, 2, 3, 4]
    assert bench.most == 1


async def test_slot_of_a_waiter_that_is_cancelled_when_it_comes_goes_to_the_next() -> None:
    bench = Bench(1)
    for number in range(3):
        await bench.come(number, 0.0)
    bench.tasks[0].cancel()
    await turns()  # 1 is called; it has not had it yet
    assert bench.waiters[1].called.done()
    bench.tasks[1].cancel()
    bench.go.set()
    with pytest.raises(asyncio.CancelledError):
        await bench.tasks[1]
    await bench.tasks[2]
    assert bench.had == [0, 2]


STEP = st.tuples(st.sampled_from(["come", "expedite", "leave"]), st.integers(0, 9), st.floats(0, 5))


@given(st.integers(1, 3), st.lists(STEP, max_size=40))
@settings(max_examples=60, deadline=None)
def test_after_any_coming_and_leaving_all_slots_are_free_again(most: int, steps: list[tuple[str, int, float]]) -> None:
    async def play() -> None:
        bench = Bench(most)
        for what, number, time in steps:
            if what == "come" and number not in bench.tasks:
                await bench.come(number, time)
            elif what == "expedite" and number in bench.waiters:
                bench.semaphore.expedite(bench.waiters[number], time)
            elif what == "leave" and number in bench.tasks:
                bench.tasks[number].cancel()
                if time > 2:
                    await turns()
        bench.go.set()
        await asyncio.gather(*bench.tasks.values(), return_exceptions=True)
        assert bench.most <= most
        assert len(bench.had) == len(set(bench.had))
        assert all(task.cancelled() or number in bench.had for number, task in bench.tasks.items())
        assert bench.semaphore._semaphore._free == most

    asyncio.run(play())


def test_recently_used_entries_are_kept_up_to_a_number_of_bytes() -> None:
    cache = RecentlyUsed[str, int](80)
    for number in range(8):
        cache.put(f"k{number}", number, 10)
    assert cache.get("k0") == 0
    cache.put("new", 9, 10)
    assert (cache.get("k0"), cache.get("k1"), cache.get("new")) == (0, None, 9)
    assert (len(cache), cache.size_bytes) == (8, 80)


def test_entry_that_would_displace_many_others_is_not_kept() -> None:
    cache = RecentlyUsed[str, int](80)
    cache.put("large", 1, 11)
    assert (cache.get("large"), len(cache), cache.size_bytes) == (None, 0, 0)


def test_entry_that_may_not_displace_others_is_kept_while_there_is_room() -> None:
    cache = RecentlyUsed[str, int](80)
    for number in range(9):
        cache.put(f"k{number}", number, 10, displaces=False)
    assert [cache.get(f"k{number}") for number in (0, 7, 8)] == [0, 7, None]


def test_replaced_entry_counts_once() -> None:
    cache = RecentlyUsed[str, int](80)
    cache.put("k", 1, 10)
    cache.put("k", 2, 5)
    assert (cache.get("k"), cache.size_bytes) == (2, 5)
    cache.clear()
    assert (cache.get("k"), cache.size_bytes) == (None, 0)
