"""The work queue: never one key twice at a time, never a key lost."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from tests.support.virtual_time import elapse, turns
from tink.kube.metrics import QueueMetrics
from tink.kube.runtime import WorkQueue

pytestmark = pytest.mark.looptime


def queue() -> WorkQueue[str]:
    return WorkQueue(0.01, 0.04, uniform=lambda low, high: high)


async def nothing_waits(q: WorkQueue[str]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(q.get(), 0.03)


async def timers_run_out(q: WorkQueue[str], *keys: str) -> None:
    for key in keys:
        q.add_after(key, 0)
    await elapse(0.01)


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    q = queue()
    for key in ("a", "b", "a", "a"):
        q.add(key)
    assert [await q.get(), await q.get()] == ["a", "b"]
    await nothing_waits(q)


async def test_a_key_added_while_it_is_worked_on_comes_again_when_that_is_done() -> None:
    q = queue()
    q.add("a")
    assert await q.get() == "a"
    q.add("a")
    getting = asyncio.create_task(q.get())
    await elapse(0.01)
    assert not getting.done(), "two workers on one object"
    q.done("a")
    assert await getting == "a"


async def test_each_waiting_worker_gets_a_key() -> None:
    q = queue()
    workers = [asyncio.create_task(q.get()) for _ in range(3)]
    await turns()
    for key in "abc":
        q.add(key)
    assert sorted(await asyncio.gather(*workers)) == ["a", "b", "c"]


async def test_the_earliest_of_several_timers_counts_and_an_add_overtakes_it() -> None:
    q = queue()
    q.add_after("a", 30)
    q.add_after("a", 0.01)
    q.add_after("a", 20)
    q.add_after("b", 0.02)
    assert [await q.get() for _ in range(2)] == ["a", "b"]
    q.done("a")
    q.add_after("a", 30)
    q.add("a")
    assert await q.get() == "a"
    q.done("a")
    q.add_after("c", -5)
    assert await q.get() == "c"
    q.shut_down()


async def test_handing_out_a_key_cancels_its_timer() -> None:
    q = queue()
    q.add("a")
    q.add_after("a", 0.01)
    assert await q.get() == "a"
    q.done("a")
    await nothing_waits(q)  # no timer from before the look has fired


async def test_delays_of_a_key_grow_until_its_failures_are_forgotten() -> None:
    q = queue()
    assert [q.add_rate_limited("a") for _ in range(4)] == [0.01, 0.02, 0.04, 0.04]
    assert q.add_rate_limited("b") == 0.01
    assert (q.num_requeues("a"), q.num_requeues("b"), q.num_requeues("c")) == (4, 1, 0)
    q.forget("a")
    assert q.num_requeues("a") == 0
    assert q.add_rate_limited("a") == 0.01
    q.forget("a")
    assert {await q.get() for _ in range(2)} == {"a", "b"}, "what is forgotten is not dropped"
    q.shut_down()


async def test_expired_timers_do_not_delay_added_keys() -> None:
    q = queue()
    await timers_run_out(q, *(f"waits{number}" for number in range(100)))
    q.add("news1")
    q.add("news2")
    assert {"news1", "news2"} <= {await q.get() for _ in range(4)}


async def test_expired_timers_get_every_other_turn() -> None:
    q = queue()
    for number in range(100):
        q.add(f"news{number}")
    await timers_run_out(q, "waits")
    assert "waits" in [await q.get() for _ in range(2)]


async def test_high_priority_worker_takes_added_keys_only() -> None:
    q = queue()
    getting = asyncio.create_task(q.get(high_priority_only=True))
    await timers_run_out(q, "waits")
    assert not getting.done()
    assert await q.get() == "waits"
    q.add("news")
    assert await getting == "news"


async def test_key_added_after_its_timer_expired_is_handed_out_once_and_first() -> None:
    q = queue()
    await timers_run_out(q, "x", "y", "z", "a")
    q.add("a")
    got = [await q.get() for _ in range(4)]
    assert sorted(got) == ["a", "x", "y", "z"]
    assert got.index("a") < 2, got
    await nothing_waits(q)


async def test_expired_timer_does_not_lower_the_priority_of_an_added_key() -> None:
    q = queue()
    q.add("a")
    await timers_run_out(q, "a")
    await timers_run_out(q, "b")
    assert await q.get(high_priority_only=True) == "a"
    assert await q.get() == "b"


async def test_lower_priority_moves_a_key_behind_others_once() -> None:
    q = queue()
    q.add("lost")
    q.add("good")
    assert await q.get() == "lost"
    assert q.lower_priority("lost")
    q.done("lost")
    assert await q.get() == "good"
    q.done("good")
    assert await q.get() == "lost"
    assert not q.lower_priority("lost")
    q.done("lost")


async def test_key_is_never_handed_to_two_workers_after_it_was_promoted() -> None:
    q = queue()
    await timers_run_out(q, "a")
    q.add("a")
    assert await q.get() == "a"
    await timers_run_out(q, "a")
    getting = asyncio.create_task(q.get())
    await elapse(0.01)
    assert not getting.done()
    q.done("a")
    assert await getting == "a"


async def test_a_key_added_with_low_priority_waits_for_no_timer_that_is_set_later() -> None:
    q = queue()
    q.add("a", low_priority=True)
    assert await q.get() == "a"
    q.add("a", low_priority=True)  # while it is worked on
    q.add_after("a", 300)
    q.done("a")
    assert await q.get() == "a"
    q.done("a")
    q.add("b", low_priority=True)
    q.add("c")
    assert await q.get(high_priority_only=True) == "c"
    q.shut_down()


# --- flows --------------------------------------------------------------------------------------------------------


async def test_flows_take_turns_however_much_one_of_them_has_waiting() -> None:
    q: WorkQueue[tuple[str, int]] = WorkQueue(0.01, 0.04, flow_of=lambda key: key[0])
    for number in range(1000):
        q.add(("hostile", number))
    q.add(("victim", 0))
    q.add(("victim", 1))
    got = [await q.get() for _ in range(5)]
    assert [owner for owner, _ in got].count("victim") == 2
    assert [number for owner, number in got if owner == "hostile"] == [0, 1, 2], "each one's own stay in order"


async def test_flows_take_turns_among_expired_timers() -> None:
    q: WorkQueue[tuple[str, int]] = WorkQueue(0.01, 0.04, flow_of=lambda key: key[0])
    for number in range(100):
        q.add(("hostile", number), low_priority=True)
    q.add(("victim", 0), low_priority=True)
    assert ("victim", 0) in [await q.get(), await q.get()]


async def test_metrics_show_waiting_and_hanging_work() -> None:
    now = [100.0]
    q: WorkQueue[str] = WorkQueue(60, 60, clock=lambda: now[0])
    registry = CollectorRegistry()
    registry.register(QueueMetrics({"q": q}, lambda: now[0]))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"workqueue_{name}", {"name": "q", **labels})

    for key in ("a", "a", "b", "c"):
        q.add(key)
    assert (value("adds_total"), value("depth")) == (3, 3)
    now[0] += 2.0
    assert await q.get() == "a"
    assert (value("depth"), value("queue_duration_seconds_sum")) == (2, 2.0)
    assert value("queue_duration_seconds_bucket", le="1") == 0
    assert value("queue_duration_seconds_bucket", le="10") == 1
    q.add("a")
    assert value("depth") == 2, "it waits for its worker, and for nobody else"
    now[0] += 0.5
    assert await q.get() == "b"
    now[0] += 1.0
    assert (value("unfinished_work_seconds"), value("longest_running_processor_seconds")) == (2.5, 1.5)
    q.done("b")
    q.add_rate_limited("b")
    assert (value("retries_total"), value("work_duration_seconds_sum")) == (1, 1.0)
    q.shut_down()
