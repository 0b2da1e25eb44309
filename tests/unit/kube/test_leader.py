"""Leader election: one acts, never two, and soon another when it is gone.

The event loop's time is made up: it jumps to the next timer whenever nothing else is to be done. So the real periods
can be used, and every run is alike.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import re
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, NotFoundError, UnreachableError
from tink.kube.leader import DeposedError, Leader, LeaseSettings, pod_namespace, while_leading

SETTINGS = LeaseSettings("l", "d")


class _Hurried(selectors.DefaultSelector):  # type: ignore[misc,valid-type] # chosen by the platform
    """Waits for nothing; what it would have waited for is added to the time."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.passed += timeout or 0.0
        return super().select(0 if timeout is not None else None)


class _HurriedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.selector = _Hurried()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.passed


def hurried(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run in a loop of that kind; what it left is put away."""

    @functools.wraps(test)
    def run(*, site: Site, **others: Any) -> None:
        async def all_of_it() -> None:
            await test(site=site, **others)
            await site.close()

        with asyncio.Runner(loop_factory=_HurriedLoop) as runner:
            runner.run(all_of_it())

    return run


def moment() -> float:
    return asyncio.get_running_loop().time()


class Leases:
    """One Lease, with optimistic concurrency."""

    def __init__(self) -> None:
        self.lease: Raw | None = None
        self.version = 0
        self.writes: list[Raw] = []

    def put(self, lease: Raw) -> Raw:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        self.writes.append(copy.deepcopy(lease["spec"]))
        return copy.deepcopy(lease)

    def edit(self, **spec: Any) -> None:
        assert self.lease is not None
        self.put({**copy.deepcopy(self.lease), "spec": {**self.lease["spec"], **spec}})

    @property
    def holder(self) -> str | None:
        return self.lease["spec"].get("holderIdentity") if self.lease is not None else None


class Client:
    """One replica's way to the Leases: it may stall, lose answers, or get errors."""

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.stalled = False
        self.deaf = False
        self.slow = 0.0
        self.error: ApiError | None = None
        self.calls = 0

    async def _way(self) -> None:
        self.calls += 1
        await asyncio.sleep(0.002)
        if self.stalled:
            await asyncio.sleep(3600)
        if self.error is not None:
            raise self.error

    async def _back(self, answer: Raw) -> Raw:
        if self.deaf:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.slow)
        return answer

    async def get(self, _: Any, name: str, namespace: str) -> Raw:
        await self._way()
        if self.leases.lease is None:
            raise NotFoundError(404, "NotFound", name)
        return copy.deepcopy(self.leases.lease)

    async def create(self, _: Any, obj: Raw, namespace: str | None = None) -> Raw:
        await self._way()
        if self.leases.lease is not None:
            raise ConflictError(409, "AlreadyExists", "l")
        assert (obj["metadata"]["namespace"], obj["metadata"]["name"]) == ("d", "l")
        return await self._back(self.leases.put(copy.deepcopy(obj)))

    async def patch(self, _: Any, name: str, namespace: str, patch: Raw) -> Raw:
        await self._way()
        lease = self.leases.lease
        if lease is None:
            raise NotFoundError(404, "NotFound", name)
        if patch["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", name)
        spec = {k: v for k, v in {**lease["spec"], **patch["spec"]}.items() if v is not None}
        return await self._back(self.leases.put({**copy.deepcopy(lease), "spec": spec}))


class Site:
    """Replicas, and who acted when."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.clients: dict[str, Client] = {}
        self.leaders: dict[str, Leader] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.acts: list[tuple[float, str, str]] = []
        self.acting: set[str] = set()
        self.reluctance = 0.0

    def replica(self, name: str, settings: LeaseSettings = SETTINGS, **options: Any) -> Leader:
        self.clients[name] = Client(self.leases)
        leader = self.leaders[name] = Leader(
            self.clients[name], settings, identity=name, **{"clock": moment, **options}
        )  # type: ignore[arg-type]
        return leader

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
                await asyncio.sleep(0.1)
                assert self.acting == {name}
        finally:
            if self.reluctance:
                await asyncio.sleep(self.reluctance)
            self.acting.discard(name)
            self.acts.append((moment(), name, "ends"))

    async def until(self, name: str, what: str = "begins") -> float:
        """When that happened last."""
        async with asyncio.timeout(120):
            while not (found := [at for at, *rest in self.acts if rest == [name, what]]):
                for task in self.tasks.values():
                    if task.done() and not task.cancelled():
                        task.result()
                await asyncio.sleep(0.02)
        return found[-1]

    async def stop(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])

    async def close(self) -> None:
        for name, task in self.tasks.items():
            self.clients[name].stalled = False
            await self.stop(name)
            assert task.cancelled(), task.exception()


@pytest.fixture
def site() -> Site:
    return Site()


@asynccontextmanager
async def led(site: Site) -> AsyncIterator[None]:
    """`a` leads, `b` waits."""
    site.begin("a")
    await site.until("a")
    site.begin("b")
    await asyncio.sleep(3)
    yield


@hurried
async def test_of_three_replicas_that_start_at_once_one_acts(site: Site) -> None:
    site.begin("a", "b", "c")
    await asyncio.sleep(60)
    assert len(site.acts) == 1
    assert site.leases.holder == site.acts[0][1]
    assert [leader.leading for leader in site.leaders.values()].count(True) == 1


@hurried
async def test_the_lease_tells_readers_who_leads_since_when_and_how_often_that_changed(site: Site) -> None:
    async with led(site):
        await asyncio.sleep(6)
        first, *_, last = site.leases.writes
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
        await site.until("b")
    assert site.leases.writes[-1]["leaseTransitions"] == 1
    assert site.leases.writes[-1]["acquireTime"] > first["acquireTime"]


@hurried
async def test_a_leader_that_stops_lets_the_next_begin_at_once(site: Site) -> None:
    async with led(site):
        await site.stop("a")
        ended = await site.until("a", "ends")
        assert await site.until("b") - ended <= SETTINGS.retry + 0.1


@hurried
async def test_the_lease_is_given_back_only_when_the_work_has_ended(site: Site) -> None:
    async with led(site):
        site.reluctance = 1
        site.tasks["a"].cancel()
        await asyncio.sleep(0.9)
        assert site.leases.holder == "a"
        assert await site.until("b") > await site.until("a", "ends")


@hurried
async def test_a_leader_that_is_cut_off_stops_before_another_begins(site: Site) -> None:
    async with led(site):
        site.clients["a"].stalled = True
        cut = moment()
        ended = await site.until("a", "ends")
        assert ended - cut <= SETTINGS.renew + 0.1
        begun = await site.until("b")
        assert begun - ended >= SETTINGS.duration - SETTINGS.renew
        # The other looks once each period: it may see the last renewal that much later, and that the Lease ran out.
        assert begun - cut <= SETTINGS.duration + 2 * SETTINGS.retry + 0.1
        site.clients["a"].stalled = False
        await asyncio.sleep(10)
        assert site.acting == {"b"}, "who comes back waits"


@hurried
async def test_the_time_that_a_renewal_takes_is_not_added_to_the_lease(site: Site) -> None:
    async with led(site):
        site.clients["a"].slow = 4  # it counts from when it arrived, but the leader hears of it late
        await asyncio.sleep(10)
        site.clients["a"].stalled = True
        assert await site.until("b") - await site.until("a", "ends") >= SETTINGS.duration - SETTINGS.renew


@hurried
async def test_a_short_absence_of_the_api_changes_nothing(site: Site) -> None:
    async with led(site):
        for error in (UnreachableError("away"), ApiError(500, "InternalError", "oh")):
            site.clients["a"].error = error
            await asyncio.sleep(5)
            site.clients["a"].error = None
            await asyncio.sleep(5)
        assert [who for _, who, _ in site.acts] == ["a"]


@hurried
async def test_a_leader_that_comes_back_in_time_leads_again_after_it_stopped(site: Site) -> None:
    site.begin("a")
    await site.until("a")
    site.clients["a"].error = UnreachableError("away")
    await site.until("a", "ends")
    site.clients["a"].error = None
    await asyncio.sleep(5)
    assert [what for _, _, what in site.acts] == ["begins", "ends", "begins"]
    assert site.leases.writes[-1]["leaseTransitions"] == 0


@hurried
async def test_a_renewal_whose_answer_is_lost_does_not_confuse_anybody(site: Site) -> None:
    async with led(site):
        site.clients["a"].deaf = True
        await asyncio.sleep(SETTINGS.renew * 0.7)
        site.clients["a"].deaf = False
        await asyncio.sleep(60)
        assert [who for _, who, _ in site.acts] == ["a"]


@hurried
async def test_clocks_that_are_years_apart_make_no_difference(site: Site) -> None:
    site.replica("a", now=lambda: time.time() - 3e8)
    site.replica("b", now=lambda: time.time() + 3e8)
    async with led(site):
        await asyncio.sleep(60)
        assert [who for _, who, _ in site.acts] == ["a"]
        site.clients["a"].stalled = True
        cut = moment()
        assert SETTINGS.renew < await site.until("b") - cut <= SETTINGS.duration + 2 * SETTINGS.retry + 0.1


@hurried
async def test_a_process_that_was_frozen_knows_before_it_writes_that_it_leads_no_more(site: Site) -> None:
    frozen = 0.0
    leader = site.replica("a", clock=lambda: moment() + frozen)
    site.begin("a")
    await site.until("a")
    assert leader.leading
    frozen = SETTINGS.renew
    assert not leader.leading


@hurried
async def test_a_replica_writes_while_it_leads_and_for_no_longer_than_it_may(site: Site) -> None:
    frozen = 0.0
    leader = site.replica("a", clock=lambda: moment() + frozen)
    written = []

    async def write(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        written.append(seconds)
        return "written"

    with pytest.raises(DeposedError):
        await while_leading(leader, write)
    site.begin("a")
    await site.until("a")
    assert await while_leading(leader, write) == "written"
    with pytest.raises(UnreachableError, match="no answer within 4 s"):
        await while_leading(leader, lambda: write(leader.write_timeout + 0.1))
    frozen = SETTINGS.renew
    with pytest.raises(DeposedError):
        await while_leading(leader, write)
    assert written == [0.0]
    assert await while_leading(None, lambda: write(60.0)) == "written", "the only replica"


def test_a_write_has_ended_before_a_successor_begins() -> None:
    leader = Leader(Client(Leases()), LeaseSettings("l"))  # type: ignore[arg-type]
    assert leader.write_timeout == pytest.approx(4)
    assert not leader.leading


@hurried
async def test_a_deleted_lease_does_not_make_two_leaders(site: Site) -> None:
    async with led(site):
        for _ in range(3):
            site.leases.lease = None
            await asyncio.sleep(10)
        assert [who for _, who, _ in site.acts] == ["a"]
        assert site.leases.holder == "a"


@hurried
async def test_a_lease_given_to_another_by_hand_stops_the_leader(site: Site) -> None:
    site.begin("a")
    await site.until("a")
    site.leases.edit(holderIdentity="x", leaseDurationSeconds=1)
    edited = moment()
    assert await site.until("a", "ends") - edited < SETTINGS.retry + 0.1


@hurried
async def test_who_stops_does_not_give_away_what_is_another_s_by_now(site: Site) -> None:
    site.begin("a")
    await site.until("a")
    site.leases.edit(holderIdentity="x")
    await site.stop("a")
    assert site.leases.holder == "x"


@hurried
async def test_of_two_that_see_the_lease_run_out_at_the_same_moment_one_gets_it(site: Site) -> None:
    for name in "bc":
        site.replica(name, uniform=lambda _, high: high)
    site.leases.put({"metadata": {"name": "l", "namespace": "d"}, "spec": {"holderIdentity": "x"}})
    site.begin("b", "c")
    await asyncio.sleep(60)
    assert len(site.acts) == 1
    assert site.leases.writes[1]["leaseTransitions"] == 0
    assert {write["holderIdentity"] for write in site.leases.writes[1:]} == {site.acts[0][1]}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"holderIdentity": ""},
        {"holderIdentity": "x", "leaseDurationSeconds": -5, "leaseTransitions": "many"},
        {"holderIdentity": "x", "leaseDurationSeconds": 10**9, "renewTime": "2999-01-01T00:00:00Z"},
        None,
    ],
)
@hurried
async def test_a_lease_with_nonsense_in_it_is_taken_within_our_own_duration(site: Site, spec: Any) -> None:
    site.leases.put({"metadata": {"name": "l", "namespace": "d"}, "spec": spec or {}})
    if spec is None:
        assert site.leases.lease is not None
        site.leases.lease["spec"] = {}
    begun = moment()
    site.begin("a")
    assert await site.until("a") - begun <= SETTINGS.duration + SETTINGS.retry + 0.1
    assert site.leases.holder == "a"


@hurried
async def test_a_leader_with_longer_times_is_waited_for(site: Site) -> None:
    site.replica("a", LeaseSettings("l", "d", duration=60, renew=50, retry=5))
    async with led(site):
        site.clients["a"].stalled = True
        await asyncio.sleep(40)
        assert site.acting == {"a"}
        ended = await site.until("a", "ends")
        assert await site.until("b") > ended


@hurried
async def test_a_holder_that_says_it_needs_less_is_not_overtaken_between_two_renewals(site: Site) -> None:
    spec = {"holderIdentity": "x", "leaseDurationSeconds": 1}
    site.leases.put({"metadata": {"name": "l", "namespace": "d"}, "spec": spec})
    seen = moment()
    site.begin("a")
    assert await site.until("a") - seen >= SETTINGS.duration


@hurried
async def test_work_that_fails_ends_the_leader_with_its_error_and_frees_the_lease(site: Site) -> None:
    async def broken() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await site.replica("a").run(broken)
    assert site.leases.holder is None


@hurried
async def test_missing_permission_is_said_once_with_what_it_takes(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.replica("a")
    site.clients["a"].error = ApiError(403, "Forbidden", "leases is forbidden")
    site.begin("a")
    await asyncio.sleep(60)
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(lines) == 1
    assert "Lease d/l can't be taken" in lines[0]
    assert "get, create and patch on leases.coordination.k8s.io" in lines[0]


@hurried
async def test_an_api_that_is_away_is_not_asked_more_often_than_agreed(site: Site) -> None:
    site.replica("a")
    site.clients["a"].error = UnreachableError("away")
    site.begin("a")
    await asyncio.sleep(60)
    assert 60 / SETTINGS.retry <= site.clients["a"].calls <= 60 / (0.75 * SETTINGS.retry) + 1


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_that_can_not_work_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="Lease default/l: the duration"):
        LeaseSettings("l", duration=times[0], renew=times[1], retry=times[2])


def test_identities_differ_even_on_one_host() -> None:
    client: Any = None
    assert Leader(client, SETTINGS).identity != Leader(client, SETTINGS).identity


def test_the_lease_of_a_pod_is_in_its_namespace(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    assert pod_namespace("x", file) == "x"
    file.write_text("tink-system\n")
    assert pod_namespace("x", file) == "tink-system"
