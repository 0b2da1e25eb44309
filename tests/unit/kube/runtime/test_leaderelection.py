"""Leader election: one acts, never two, and soon another when it is gone."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kube.runtime.elections import CONFIG, Client, Leases, Site, hurried, led, moment
from tink.kube.client import ApiError, UnreachableError
from tink.kube.runtime import LeaderElectionConfig, LeaderElector, LeadershipLostError, pod_namespace, while_leading


@pytest.fixture
def site() -> Site:
    return Site()


@hurried
async def test_of_three_replicas_that_start_at_once_one_acts(site: Site) -> None:
    site.begin("a", "b", "c")
    await asyncio.sleep(60)
    assert len(site.acts) == 1
    assert site.leases.holder == site.acts[0][1]
    assert [elector.is_leader for elector in site.leaders.values()].count(True) == 1


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
        assert await site.until("b") - ended <= 0.1


@pytest.mark.parametrize("phase", [0.0, 0.7, 1.3, 1.9])
@hurried
async def test_a_leader_that_is_killed_is_replaced_when_its_lease_has_run_out(site: Site, phase: float) -> None:
    async with led(site):
        renewed = len(site.leases.writes)
        while len(site.leases.writes) == renewed:
            await asyncio.sleep(0.01)
        await asyncio.sleep(phase)
        site.clients["a"].stalled = True
        cut = moment()
        begun = await site.until("b")
        assert CONFIG.lease_duration - phase - 0.1 <= begun - cut <= CONFIG.lease_duration - phase + 0.1


@hurried
async def test_a_replica_that_may_not_watch_looks_often_enough_and_says_so_once(site, caplog) -> None:
    caplog.set_level(logging.INFO)
    site.replica("b")
    site.clients["b"].may_watch = False
    async with led(site):
        await asyncio.sleep(60)
        site.clients["a"].stalled = True
        cut = moment()
        assert await site.until("b") - cut <= CONFIG.lease_duration + CONFIG.retry_period + 0.1
    lines = [record.getMessage() for record in caplog.records if "takes the verb watch" in record.getMessage()]
    assert lines == [
        "Lease d/l is looked at every 2 s, and not watched, which it takes the verb watch for: l (Forbidden, 403)"
    ]


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
        assert ended - cut <= CONFIG.renew_deadline + 0.1
        begun = await site.until("b")
        assert begun - ended >= CONFIG.lease_duration - CONFIG.renew_deadline
        assert begun - cut <= CONFIG.lease_duration + 0.1
        site.clients["a"].stalled = False
        await asyncio.sleep(10)
        assert site.acting == {"b"}, "who comes back waits"


@hurried
async def test_the_time_that_a_renewal_takes_is_not_added_to_the_lease(site: Site) -> None:
    async with led(site):
        site.clients["a"].slow = 4  # it counts from when it arrived, but the leader hears of it late
        await asyncio.sleep(10)
        site.clients["a"].stalled = True
        assert await site.until("b") - await site.until("a", "ends") >= CONFIG.lease_duration - CONFIG.renew_deadline


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
        await asyncio.sleep(CONFIG.renew_deadline * 0.7)
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
        assert CONFIG.renew_deadline < await site.until("b") - cut <= CONFIG.lease_duration + 0.1


@hurried
async def test_a_process_that_was_frozen_knows_before_it_writes_that_it_leads_no_more(site: Site) -> None:
    frozen = 0.0
    elector = site.replica("a", clock=lambda: moment() + frozen)
    site.begin("a")
    await site.until("a")
    assert elector.is_leader
    frozen = CONFIG.renew_deadline
    assert not elector.is_leader


@hurried
async def test_a_replica_writes_while_it_leads_and_for_no_longer_than_it_may(site: Site) -> None:
    frozen = 0.0
    elector = site.replica("a", clock=lambda: moment() + frozen)
    written = []

    async def write(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        written.append(seconds)
        return "written"

    with pytest.raises(LeadershipLostError):
        await while_leading(elector, write)
    site.begin("a")
    await site.until("a")
    assert await while_leading(elector, write) == "written"
    with pytest.raises(UnreachableError, match="no answer within 4 s"):
        await while_leading(elector, lambda: write(elector.write_timeout + 0.1))
    frozen = CONFIG.renew_deadline
    with pytest.raises(LeadershipLostError):
        await while_leading(elector, write)
    assert written == [0.0]
    assert await while_leading(None, lambda: write(60.0)) == "written", "the only replica"


def test_a_write_has_ended_before_a_successor_begins() -> None:
    elector = LeaderElector(Client(Leases()), LeaderElectionConfig("l"))  # type: ignore[arg-type]
    assert elector.write_timeout == pytest.approx(4)
    assert not elector.is_leader


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
    assert await site.until("a", "ends") - edited < CONFIG.retry_period + 0.1


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
    assert await site.until("a") - begun <= CONFIG.lease_duration + CONFIG.retry_period + 0.1
    assert site.leases.holder == "a"


@hurried
async def test_a_leader_with_longer_times_is_waited_for(site: Site) -> None:
    site.replica("a", LeaderElectionConfig("l", "d", lease_duration=60, renew_deadline=50, retry_period=5))
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
    assert await site.until("a") - seen >= CONFIG.lease_duration


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
    assert 60 / CONFIG.retry_period <= site.clients["a"].calls <= 60 / (0.75 * CONFIG.retry_period) + 1


@hurried
async def test_watches_that_end_at_once_are_not_begun_again_at_once(site: Site) -> None:
    site.replica("b")
    site.clients["b"].brief = True
    async with led(site):
        before = site.clients["b"].calls
        await asyncio.sleep(60)
        assert site.clients["b"].calls - before <= 2 * 60 / (0.75 * CONFIG.retry_period) + 2


@pytest.mark.parametrize("times", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_times_that_can_not_work_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="Lease default/l: the duration"):
        LeaderElectionConfig("l", lease_duration=times[0], renew_deadline=times[1], retry_period=times[2])


def test_identities_differ_even_on_one_host() -> None:
    client: Any = None
    assert LeaderElector(client, CONFIG).identity != LeaderElector(client, CONFIG).identity


def test_the_lease_of_a_pod_is_in_its_namespace(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    assert pod_namespace("x", file) == "x"
    file.write_text("tink-system\n")
    assert pod_namespace("x", file) == "tink-system"
