"""The work queue, controllers and leader election: one leader at a time, and no error stops the other work."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from prometheus_client import CollectorRegistry

from tests.support.api import InProcessApi
from tests.support.virtual_time import elapse, pause, turns
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.kube.metrics import controller_metrics, queue_metrics
from tink.kube.objects import NamespacedName
from tink.kube.resources import LEASE
from tink.kube.runtime import (
    DONE,
    Controller,
    LeaderElectionConfig,
    LeaderElector,
    LeadershipLostError,
    Result,
    WorkQueue,
    pod_namespace,
    while_leading,
)
from tink.kube.runtime.controller import Reconcile
from tink.metrics.families import Scraped

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
        registry.register(Scraped(lambda: controller_metrics({"thing": controller})))
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


def test_key_is_queued_once_after_two_delays_that_uvloop_rounds_to_zero() -> None:
    async def queue_twice() -> int:
        queue: WorkQueue[str] = WorkQueue(0.001, 0.002)
        for seconds in (0.0002, 0.0001):
            queue.add_after("a", seconds)
        assert await queue.get() == "a"
        queue.done("a")
        return queue.counts.adds

    assert uvloop.run(queue_twice()) == 1


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
    registry.register(Scraped(lambda: queue_metrics({"q": q}, lambda: now[0])))

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


# --- leader election: replicas, each with its own way to one API, in virtual time

CONFIG = LeaderElectionConfig("l", "d")


def moment() -> float:
    return asyncio.get_running_loop().time()


class Way:
    """The connection of one replica to the API, which may stall, lose answers or return errors."""

    def __init__(self, api: InProcessApi) -> None:
        self.api = api
        self.stalled = self.deaf = False
        self.brief = False  # watches end as soon as they have begun
        self.takes = 0.002
        self.slow = 0.0
        self.error: ApiError | None = None
        self.may_watch = True
        self.calls = 0

    async def _there(self) -> None:
        self.calls += 1
        if self.takes:
            await elapse(self.takes)
        await self._passable()

    async def _passable(self) -> None:
        if self.stalled:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def _back(self, answer: Raw) -> Raw:
        if self.deaf:
            await asyncio.Event().wait()
        if self.slow:
            await elapse(self.slow)
        return answer

    async def get(self, *arguments: Any) -> Raw:
        await self._there()
        return await self.api.get(*arguments)

    async def create(self, *arguments: Any) -> Raw:
        await self._there()
        return await self._back(await self.api.create(*arguments))

    async def patch(self, *arguments: Any) -> Raw:
        await self._there()
        return await self._back(await self.api.patch(*arguments))

    @asynccontextmanager
    async def watch(self, *arguments: Any, name: str) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._there()
        if not self.may_watch:
            raise ApiError(403, "Forbidden", name)
        async with self.api.watch(*arguments, name=name) as stream:
            yield self._events(stream)

    async def _events(self, stream: Any) -> AsyncIterator[bytes]:
        async for event in stream:
            if self.brief:
                return
            await self._passable()
            yield event


class Site:
    """Replicas, and the times at which each was the leader."""

    def __init__(self) -> None:
        self.api = InProcessApi({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d"}})
        self.writes: list[Raw] = []
        """Every spec of the Lease, in order."""
        self.api.informer(LEASE).add_event_handler(lambda new, _: self.writes.append(new["spec"]))
        self.ways: dict[str, Way] = {}
        self.leaders: dict[str, LeaderElector] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.acts: list[tuple[float, str, str]] = []
        self.acting: set[str] = set()
        self.reluctance = 0.0

    @property
    def holder(self) -> str | None:
        lease = self.api.read(LEASE, "l", "d")
        return lease["spec"].get("holderIdentity") if lease is not None else None

    @property
    def actors(self) -> list[str]:
        return [name for _, name, _ in self.acts]

    def put(self, **spec: Any) -> None:
        metadata = {"name": "l", "namespace": "d", "uid": "u"}
        self.api.put({"apiVersion": LEASE.api_version, "kind": "Lease", "metadata": metadata, "spec": spec})

    def replica(self, name: str, config: LeaderElectionConfig = CONFIG, **options: Any) -> LeaderElector:
        way: Any = Way(self.api)
        self.ways[name] = way
        self.leaders[name] = LeaderElector(way, config, identity=name, **{"clock": moment, **options})
        return self.leaders[name]

    def begin(self, *names: str) -> None:
        for name in names:
            if name not in self.leaders:
                self.replica(name)
            self.tasks[name] = asyncio.create_task(self.leaders[name].run(lambda name=name: self.act(name)))  # type: ignore[misc]

    async def act(self, name: str) -> None:
        assert not self.acting, f"{name} acts while {self.acting} does"
        self.acting.add(name)
        self.acts.append((moment(), name, "begins"))
        try:
            while True:
                await pause(0.1)
                assert self.acting == {name}
        finally:
            if self.reluctance:
                await pause(self.reluctance)
            self.acting.discard(name)
            self.acts.append((moment(), name, "ends"))

    async def until(self, name: str, what: str = "begins") -> float:
        """Wait for a change of the leader, and return its last time."""
        async with asyncio.timeout(120):
            while not (found := [at for at, *rest in self.acts if rest == [name, what]]):
                for task in self.tasks.values():
                    if task.done() and not task.cancelled():
                        task.result()
                await elapse(0.02)
        return found[-1]

    def cut(self, name: str) -> float:
        """Cut the connection of a replica, and return the time."""
        self.ways[name].stalled = True
        return moment()

    async def stop(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])

    async def close(self) -> None:
        for name, task in self.tasks.items():
            self.ways[name].stalled, self.ways[name].takes = False, 0.0  # fixtures end in real time
            task.cancel()
        for task in self.tasks.values():
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()
        await self.api.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    yield made
    await made.close()


async def lead(site: Site, *others: str) -> None:
    """Let `a` lead while the others wait."""
    site.begin("a")
    await site.until("a")
    site.begin(*others)
    await elapse(3)


async def test_of_three_replicas_that_start_at_once_one_acts(site: Site) -> None:
    site.begin("a", "b", "c")
    await elapse(60)
    assert len(site.acts) == 1
    assert site.holder == site.acts[0][1]
    assert [elector.is_leader for elector in site.leaders.values()].count(True) == 1


async def test_lease_shows_holder_acquire_time_and_transitions_and_a_leader_that_stops_releases_it(site: Site) -> None:
    await lead(site, "b")
    await elapse(6)
    first, *_, last = site.writes
    assert first == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": first["renewTime"],
        "renewTime": first["renewTime"],
        "leaseTransitions": 0,
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", first["renewTime"])
    assert last["acquireTime"] == first["acquireTime"]
    assert last["renewTime"] > first["renewTime"]
    await site.stop("a")
    assert await site.until("b") - await site.until("a", "ends") <= 0.1, "at once"
    assert site.writes[-1]["leaseTransitions"] == 1
    assert site.writes[-1]["acquireTime"] > first["acquireTime"]


@pytest.mark.parametrize("phase", [0.0, 0.7, 1.3, 1.9])
async def test_a_leader_that_is_killed_is_replaced_when_its_lease_has_run_out(site: Site, phase: float) -> None:
    await lead(site, "b")
    renewed = len(site.writes)
    while len(site.writes) == renewed:
        await elapse(0.01)
    await elapse(phase)
    cut = site.cut("a")
    begun = await site.until("b")
    assert CONFIG.lease_duration - phase - 0.1 <= begun - cut <= CONFIG.lease_duration - phase + 0.1


async def test_replica_without_the_right_to_watch_polls_and_logs_it_once(site, caplog) -> None:
    caplog.set_level(logging.INFO)
    site.replica("b")
    site.ways["b"].may_watch = False
    await lead(site, "b")
    await elapse(60)
    cut = site.cut("a")
    assert await site.until("b") - cut <= CONFIG.lease_duration + CONFIG.retry_period + 0.1
    lines = [record.getMessage() for record in caplog.records if "the verb watch is missing" in record.getMessage()]
    assert lines == [
        "Lease d/l is read every 2 s instead of watched, because the verb watch is missing: l (Forbidden, 403)"
    ]


async def test_the_lease_is_given_back_only_when_the_work_has_ended(site: Site) -> None:
    await lead(site, "b")
    site.reluctance = 1
    site.tasks["a"].cancel()
    await elapse(0.9)
    assert site.holder == "a"
    assert await site.until("b") > await site.until("a", "ends")


@pytest.mark.parametrize("apart", [0.0, 3e8], ids=["clocks agree", "clocks are years apart"])
async def test_a_leader_that_is_cut_off_stops_before_another_begins(site: Site, apart: float) -> None:
    site.replica("a", now=lambda: time.time() - apart)
    site.replica("b", now=lambda: time.time() + apart)
    await lead(site, "b")
    await elapse(60)
    assert site.actors == ["a"]
    cut = site.cut("a")
    ended = await site.until("a", "ends")
    assert ended - cut <= CONFIG.renew_deadline + 0.1
    begun = await site.until("b")
    assert begun - ended >= CONFIG.lease_duration - CONFIG.renew_deadline
    assert begun - cut <= CONFIG.lease_duration + 0.1
    site.ways["a"].stalled = False
    await elapse(10)
    assert site.acting == {"b"}, "who comes back waits"


async def test_the_time_that_a_renewal_takes_is_not_added_to_the_lease(site: Site) -> None:
    await lead(site, "b")
    site.ways["a"].slow = 4  # it counts from when it arrived, but the leader hears of it late
    await elapse(10)
    site.ways["a"].stalled = True
    assert await site.until("b") - await site.until("a", "ends") >= CONFIG.lease_duration - CONFIG.renew_deadline


async def test_short_absence_lost_answers_and_deletions_of_the_lease_change_no_leader(site: Site) -> None:
    await lead(site, "b")
    for error in (UnreachableError("away"), ApiError(500, "InternalError", "oh")):
        site.ways["a"].error = error
        await elapse(5)
        site.ways["a"].error = None
        await elapse(5)
    site.ways["a"].deaf = True
    await elapse(CONFIG.renew_deadline * 0.7)
    site.ways["a"].deaf = False
    await elapse(60)
    for _ in range(3):
        site.api.remove(LEASE, "l", "d")
        await elapse(10)
    assert (site.actors, site.holder) == (["a"], "a")


async def test_a_leader_that_comes_back_in_time_leads_again_after_it_stopped(site: Site) -> None:
    await lead(site)
    site.ways["a"].error = UnreachableError("away")
    await site.until("a", "ends")
    site.ways["a"].error = None
    await elapse(5)
    assert [what for _, _, what in site.acts] == ["begins", "ends", "begins"]
    assert site.writes[-1]["leaseTransitions"] == 0


async def test_a_replica_writes_while_it_leads_and_for_no_longer_than_it_may(site: Site) -> None:
    frozen = 0.0
    elector = site.replica("a", clock=lambda: moment() + frozen)
    written = []

    async def write(seconds: float = 0.0) -> str:
        await elapse(seconds)
        written.append(seconds)
        return "written"

    with pytest.raises(LeadershipLostError):
        await while_leading(elector, write)
    await lead(site)
    assert await while_leading(elector, write) == "written"
    with pytest.raises(UnreachableError, match="no answer within 4 s"):
        await while_leading(elector, lambda: write(elector.write_timeout + 0.1))
    frozen = CONFIG.renew_deadline
    assert not elector.is_leader
    with pytest.raises(LeadershipLostError):
        await while_leading(elector, write)
    assert written == [0.0]
    assert await while_leading(None, lambda: write(60.0)) == "written", "the only replica"


def test_a_write_has_ended_before_a_successor_begins_and_identities_differ_on_one_host() -> None:
    client: Any = None
    one, other = (LeaderElector(client, LeaderElectionConfig("l")) for _ in range(2))
    assert one.write_timeout == pytest.approx(4)
    assert not one.is_leader
    assert one.identity != other.identity


async def test_a_lease_given_to_another_by_hand_stops_the_leader_and_is_not_released_by_it(site: Site) -> None:
    await lead(site)
    site.api.change(LEASE, "l", "d", spec={"holderIdentity": "x", "leaseDurationSeconds": 1})
    edited = moment()
    assert await site.until("a", "ends") - edited < CONFIG.retry_period + 0.1
    site.api.change(LEASE, "l", "d", spec={"holderIdentity": "a"})
    await site.stop("a")
    site.begin("b")
    await site.until("b")
    site.api.change(LEASE, "l", "d", spec={"holderIdentity": "x"})
    await site.stop("b")
    assert site.holder == "x"


async def test_of_two_that_see_the_lease_run_out_at_the_same_moment_one_gets_it(site: Site) -> None:
    for name in "bc":
        site.replica(name, uniform=lambda _, high: high)
    site.put(holderIdentity="x")
    site.begin("b", "c")
    await elapse(60)
    assert len(site.acts) == 1
    assert site.writes[1]["leaseTransitions"] == 0
    assert {write["holderIdentity"] for write in site.writes[1:]} == {site.acts[0][1]}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"holderIdentity": ""},
        {"holderIdentity": "x", "leaseDurationSeconds": 1},
        {"holderIdentity": "x", "leaseDurationSeconds": -5, "leaseTransitions": "many"},
        {"holderIdentity": "x", "leaseDurationSeconds": 10**9, "renewTime": "2999-01-01T00:00:00Z"},
    ],
)
async def test_a_lease_with_nonsense_in_it_is_taken_within_our_own_duration(site: Site, spec: Any) -> None:
    site.put(**spec)
    begun = moment()
    site.begin("a")
    waited = await site.until("a") - begun
    assert waited <= CONFIG.lease_duration + CONFIG.retry_period + 0.1
    assert waited >= (CONFIG.lease_duration if spec.get("holderIdentity") else 0)
    assert site.holder == "a"


async def test_a_leader_with_longer_times_is_waited_for(site: Site) -> None:
    site.replica("a", LeaderElectionConfig("l", "d", lease_duration=60, renew_deadline=50, retry_period=5))
    await lead(site, "b")
    site.ways["a"].stalled = True
    await elapse(40)
    assert site.acting == {"a"}
    ended = await site.until("a", "ends")
    assert await site.until("b") > ended


async def test_work_that_fails_ends_the_leader_with_its_error_and_frees_the_lease(site: Site) -> None:
    async def broken() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await site.replica("a").run(broken)
    assert site.holder is None


async def test_missing_permission_is_logged_once_with_the_needed_verbs(site, caplog) -> None:
    site.replica("a")
    site.ways["a"].error = ApiError(403, "Forbidden", "leases is forbidden")
    site.begin("a")
    await elapse(60)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "Lease d/l can't be taken" in lines[0]
    assert "get, create and patch on leases.coordination.k8s.io" in lines[0]


async def test_neither_an_absent_api_nor_brief_watches_are_asked_more_often_than_agreed(site: Site) -> None:
    site.replica("a")
    site.ways["a"].error = UnreachableError("away")
    site.begin("a")
    await elapse(60)
    assert 60 / CONFIG.retry_period <= site.ways["a"].calls <= 60 / (0.75 * CONFIG.retry_period) + 1
    site.ways["a"].error = None
    site.replica("b")
    site.ways["b"].brief = True
    await site.until("a")
    site.begin("b")
    await elapse(3)
    before = site.ways["b"].calls
    await elapse(60)
    assert site.ways["b"].calls - before <= 2 * 60 / (0.75 * CONFIG.retry_period) + 2


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_that_can_not_work_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="Lease default/l: the duration"):
        LeaderElectionConfig("l", lease_duration=times[0], renew_deadline=times[1], retry_period=times[2])


def test_the_lease_of_a_pod_is_in_its_namespace(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    assert pod_namespace("x", file) == "x"
    file.write_text("tink-system\n")
    assert pod_namespace("x", file) == "tink-system"
