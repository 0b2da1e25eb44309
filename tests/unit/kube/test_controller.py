"""The work queue hands out no key twice at a time and loses none; a controller goes on after any mistake about one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from tests.support.virtual_time import elapse, turns
from tink.kube.client import ApiError, ConflictError
from tink.kube.metrics import ControllerMetrics, QueueMetrics
from tink.kube.objects import NamespacedName
from tink.kube.runtime import DONE, Controller, LeadershipLostError, Result, WorkQueue
from tink.kube.runtime.controller import Reconcile

pytestmark = pytest.mark.looptime
A, B = NamespacedName("d", "a"), NamespacedName("d", "b")


@asynccontextmanager
async def running(reconcile: Reconcile, **options: object) -> AsyncIterator[Controller]:
    controller = Controller("Thing", reconcile, retry_first=0.001, retry_longest=0.002, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.wait([task])
        controller.queue.shut_down()


async def test_a_key_comes_again_when_its_time_has_come_and_not_after_that() -> None:
    looks: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        looks.append(key)
        return Result(requeue_after=0.001) if looks.count(key) < 3 else DONE

    async with running(reconcile) as controller:
        controller.queue.add(A)
        await elapse(10)
    assert looks == [A, A, A]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("a mistake of ours"), "Thing d/a: trying again in"),
        (ApiError(500, "InternalError", "oh"), "Thing d/a: oh (InternalError, 500); trying again in"),
        (ConflictError(409, "Conflict", "changed"), None),
        (LeadershipLostError(), None),
    ],
)
async def test_failed_key_is_retried_and_others_go_on(error, line, caplog) -> None:
    looks: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        looks.append(key)
        if key == A and looks.count(A) < 3:
            raise error
        return DONE

    async with running(reconcile) as controller:
        controller.queue.add(A)
        controller.queue.add(B)
        await elapse(1)
        assert looks.count(A) == 3
        assert B in looks
        assert controller.queue.num_requeues(A) == 0, "it went well in the end"
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [line is not None and warning.startswith(line) for warning in warnings] == [True] * (2 if line else 0)


async def test_error_handled_by_on_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    said: list[tuple[NamespacedName, str]] = []

    async def reconcile(key: NamespacedName) -> Result:
        if not said:
            raise RuntimeError("no")
        return DONE

    def on_error(key: NamespacedName, error: Exception, delay: float) -> bool:
        assert delay > 0
        said.append((key, str(error)))
        return True

    async with running(reconcile, on_error=on_error) as controller:
        controller.queue.add(A)
        await elapse(1)
        assert controller.queue.num_requeues(A) == 0
    assert said == [(A, "no")]
    assert caplog.records == []


async def test_interrupted_key_is_reconciled_again_by_the_next_run() -> None:
    begun, finished = asyncio.Event(), asyncio.Event()

    async def reconcile(_: NamespacedName) -> Result:
        if begun.is_set():
            finished.set()
            return DONE
        begun.set()
        return await asyncio.Future()

    controller = Controller("Thing", reconcile, retry_first=1, retry_longest=1)
    controller.queue.add(A)
    for event in (begun, finished):
        task = asyncio.create_task(controller.run())
        await event.wait()
        task.cancel()
        await asyncio.wait([task])


async def test_low_priority_keys_leave_workers_free_for_new_ones() -> None:
    looks: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        looks.append(key)
        return DONE if key == B else await asyncio.Future()

    async with running(reconcile, workers=3, low_priority_workers=1) as controller:
        for number in range(5):
            controller.queue.add(NamespacedName("d", f"troubled{number}"), low_priority=True)
        await elapse(1)
        controller.queue.add(B)
        await elapse(1)
    assert len(looks) == 2
    assert B in looks


async def test_reconciles_are_counted_by_result() -> None:
    ended: list[NamespacedName] = []

    async def reconcile(key: NamespacedName) -> Result:
        ended.append(key)
        if ended.count(key) == 1:
            raise ApiError(500, "InternalError", "out of order")
        return Result(requeue_after=60.0) if key == A else DONE

    registry = CollectorRegistry()
    async with running(reconcile, workers=3) as controller:
        registry.register(ControllerMetrics({"thing": controller}))
        controller.queue.add(A)
        controller.queue.add(B)
        await elapse(1)
        assert len(ended) == 4

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"controller_runtime_{name}", {"controller": "thing", **labels})

        found = {result: value("reconcile_total", result=result) for result in ("success", "error", "requeue_after")}
        assert found == {"success": 1, "error": 2, "requeue_after": 1}
        assert value("reconcile_errors_total") == 2
        assert value("reconcile_time_seconds_count") == 4
        assert (value("max_concurrent_reconciles"), value("active_workers")) == (3, 0)
    assert registry.get_sample_value("workqueue_retries_total", {"name": "thing"}) == 2


# --- the queue


def queue() -> WorkQueue[str]:
    return WorkQueue(0.01, 0.04, uniform=lambda low, high: high)


async def nothing_waits(q: WorkQueue[str]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(q.get(), 0.03)


async def timers_run_out(q: WorkQueue[str], *keys: str) -> None:
    for key in keys:
        q.add_after(key, 0)
    await elapse(0.01)


async def test_a_key_waits_once_however_often_it_is_added_and_each_worker_gets_another() -> None:
    q = queue()
    workers = [asyncio.create_task(q.get()) for _ in range(2)]
    await turns()
    for key in ("a", "b", "a", "c", "d", "c", "c"):
        q.add(key)
    assert sorted(await asyncio.gather(*workers)) == ["a", "b"]
    assert [await q.get(), await q.get()] == ["c", "d"]
    await nothing_waits(q)


@pytest.mark.parametrize("promoted", [False, True])
async def test_a_key_added_while_it_is_worked_on_comes_again_when_that_is_done(promoted: bool) -> None:
    q = queue()
    if promoted:
        await timers_run_out(q, "a")
    q.add("a")
    assert await q.get() == "a"
    if promoted:
        await timers_run_out(q, "a")
    else:
        q.add("a")
    getting = asyncio.create_task(q.get())
    await elapse(0.01)
    assert not getting.done(), "two workers on one object"
    q.done("a")
    assert await getting == "a"


async def test_the_earliest_of_several_timers_counts_and_an_add_overtakes_it() -> None:
    q = queue()
    for key, seconds in (("a", 30), ("a", 0.01), ("a", 20), ("b", 0.02)):
        q.add_after(key, seconds)
    assert [await q.get() for _ in range(2)] == ["a", "b"]
    q.done("a")
    q.add_after("a", 0.01)
    q.add("a")
    assert await q.get() == "a"
    q.done("a")
    await nothing_waits(q)  # the timer went with the look
    q.add_after("c", -5)
    assert await q.get() == "c"
    q.shut_down()


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


async def test_added_keys_and_expired_timers_take_turns() -> None:
    q = queue()
    await timers_run_out(q, *(f"waits{number}" for number in range(100)))
    q.add("news1")
    q.add("news2")
    assert {"news1", "news2"} <= {await q.get() for _ in range(4)}
    for number in range(100):
        q.add(f"news{number}")
    await timers_run_out(q, "waits")
    assert any([(await q.get()).startswith("waits") for _ in range(2)])


async def test_high_priority_worker_takes_added_keys_only_also_if_their_timer_expired() -> None:
    q = queue()
    getting = asyncio.create_task(q.get(high_priority_only=True))
    await timers_run_out(q, "waits")
    assert not getting.done()
    assert await q.get() == "waits"
    q.add("news")
    assert await getting == "news"
    q.add("a")
    await timers_run_out(q, "a")
    await timers_run_out(q, "b")
    assert await q.get(high_priority_only=True) == "a"
    assert await q.get() == "b"


async def test_key_added_after_its_timer_expired_is_handed_out_once_and_first() -> None:
    q = queue()
    await timers_run_out(q, "x", "y", "z", "a")
    q.add("a")
    got = [await q.get() for _ in range(4)]
    assert sorted(got) == ["a", "x", "y", "z"]
    assert got.index("a") < 2, got
    await nothing_waits(q)


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


@pytest.mark.parametrize("low_priority", [False, True])
async def test_flows_take_turns_however_much_one_of_them_has_waiting(low_priority: bool) -> None:
    q: WorkQueue[tuple[str, int]] = WorkQueue(0.01, 0.04, flow_of=lambda key: key[0])
    for number in range(1000):
        q.add(("hostile", number), low_priority=low_priority)
    q.add(("victim", 0), low_priority=low_priority)
    q.add(("victim", 1), low_priority=low_priority)
    got = [await q.get() for _ in range(5)]
    assert [owner for owner, _ in got].count("victim") == 2
    assert [number for owner, number in got if owner == "hostile"] == [0, 1, 2], "each one's own stay in order"


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
