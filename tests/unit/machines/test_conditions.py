"""The condition AddressConflict: an operator sees it while it is so, whatever edges and APIs go through."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from edge.machines import ConditionWriter, Inventory, Machine, conditions, status
from edge.machines.conditions import GRACE_SECONDS
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType

MAC, OTHER = "52:54:00:12:34:56", "52:54:00:12:34:57"
NOW = 1_790_000_000.0
UNTIL = "2026-09-21T14:23:20Z"  # NOW + 600
SAYS = f"10.0.0.5 is used by another host: {MAC} declined it; it is not offered until {UNTIL}"


class Api:
    """Hardware objects with optimistic concurrency; tells whoever follows it of every change."""

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.patches: list[Raw] = []
        self.failures: list[ApiError] = []
        """Of the next patches."""
        self.before_patch: Callable[[], None] = lambda: None
        self.followers: list[ConditionWriter] = []
        self._version = 0

    def put(self, name: str, *given: Raw) -> None:
        metadata = {"name": name, "namespace": "default"}
        self._store(name, {"metadata": metadata, "status": {"conditions": list(given)}})

    async def get(self, _resource: ResourceType, name: str, _namespace: str) -> Raw:
        await asyncio.sleep(0)
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", "no")
        return copy.deepcopy(self.objects[name])

    async def patch(self, _resource: ResourceType, name: str, _namespace: str, patch: Raw, *, subresource: str) -> Raw:
        self.before_patch()
        await asyncio.sleep(0)
        assert subresource == "status"
        self.patches.append(patch)
        if self.failures:
            raise self.failures.pop(0)
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", "no")
        obj = copy.deepcopy(self.objects[name])
        if patch["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "changed")
        obj["status"] |= patch["status"]
        self._store(name, obj)
        return obj

    def _store(self, name: str, obj: Raw) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.objects[name] = obj
        for follower in self.followers:
            follower.apply(copy.deepcopy(obj), None)

    def condition(self, name: str = "a") -> Raw:
        found = [c for c in self.objects[name]["status"]["conditions"] if c["type"] == "AddressConflict"]
        assert len(found) <= 1
        return found[0] if found else {}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def api() -> Api:
    made = Api()
    made.put("a")
    return made


@pytest.fixture
def clock() -> Clock:
    return Clock()


def machine(name: str = "a", mac: str = MAC) -> Machine:
    inventory = Inventory()
    spec = {"networkInterfaces": {mac: {"dhcp": {"ip": "10.0.0.5"}}}}
    inventory.apply({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    found = inventory.by_mac(mac)
    assert found is not None
    return found


@asynccontextmanager
async def edge(api: Api, clock: Clock) -> AsyncIterator[ConditionWriter]:
    """An edge that follows the API: its informer lists first."""
    writer = ConditionWriter(cast(KubeClient, api), clock, retry_first=0.001, retry_longest=0.002)
    api.followers.append(writer)
    for obj in api.objects.values():
        writer.apply(copy.deepcopy(obj), None)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        api.followers.remove(writer)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0.001)


async def test_operator_sees_the_conflict_and_that_it_is_over(api: Api, clock: Clock) -> None:
    async with edge(api, clock) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(api.condition()))
        assert api.condition() == {
            "type": "AddressConflict",
            "status": "True",
            "reason": "DeclinedByClient",
            "message": SAYS,
        }
        writer.changed(machine(), "10.0.0.5", None)
        await until(lambda: api.condition()["status"] == "False")
        assert api.condition()["reason"] == "QuarantineEnded"
        assert api.condition()["message"] == "the quarantine of 10.0.0.5 is over"
        await settled()
    assert len(api.patches) == 2


async def test_conditions_of_others_are_kept(api: Api, clock: Clock) -> None:
    ready, odd = {"type": "Ready", "status": "True"}, {"type": "Odd", "status": "Unknown"}
    api.put("a", ready, {"type": "AddressConflict", "status": "False"}, odd)
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: api.condition()["status"] == "True")
    assert [c["type"] for c in api.objects["a"]["status"]["conditions"]] == ["Ready", "AddressConflict", "Odd"]
    assert ready in api.objects["a"]["status"]["conditions"]
    assert odd in api.objects["a"]["status"]["conditions"]


async def test_change_by_somebody_else_meanwhile_is_not_overwritten(api: Api, clock: Clock) -> None:
    ready = {"type": "Ready", "status": "True"}

    def interfere() -> None:
        api.before_patch = lambda: None
        api.put("a", ready)

    api.before_patch = interfere
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(api.condition()))
    assert ready in api.objects["a"]["status"]["conditions"]
    assert len(api.patches) == 2


async def test_api_that_is_away_for_a_while_gets_what_is_true_then(api: Api, clock: Clock) -> None:
    api.failures = [UnreachableError("away"), ApiError(503, "x", "busy"), ApiError(429, "x", "slow down")]
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 300)
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(api.condition()))
        assert api.condition()["message"] == SAYS
    assert len(api.patches) == 4


async def test_api_that_stays_away_is_given_up_with_one_line(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    api.failures = [UnreachableError("away") for _ in range(100)]
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(caplog.records))
        await settled()
        assert len(api.patches) == status.ATTEMPTS
        assert len(caplog.records) == 1
        assert "Hardware default/a" in caplog.text
        api.failures.clear()
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(api.condition()))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ApiError(403, "Forbidden", "no"), "patch hardware/status"),
        (NotFoundError(404, "NotFound", "no"), "tinkedge crds"),
        (ApiError(422, "Invalid", "odd"), "odd"),
    ],
)
async def test_refusal_is_not_asked_for_again_and_says_what_to_do(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture, error: ApiError, advice: str
) -> None:
    api.failures = [error]
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(caplog.records))
        await settled()
    assert len(api.patches) == 1
    assert advice in caplog.text


async def test_hardware_that_is_gone_is_forgotten_silently(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    del api.objects["a"]
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await settled()
        assert not writer._declined
    assert api.patches == []
    assert caplog.records == []


async def test_condition_of_an_earlier_process_is_ended_at_the_start(api: Api, clock: Clock) -> None:
    api.put("a", {"type": "AddressConflict", "status": "True", "message": SAYS})
    clock.now = NOW + 600 + GRACE_SECONDS
    async with edge(api, clock):
        await until(lambda: api.condition()["status"] == "False")


async def test_condition_of_another_edge_that_is_not_over_is_left_alone(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "GRACE_SECONDS", 0.05)
    api.put("a", {"type": "AddressConflict", "status": "True", "message": SAYS})
    clock.now = NOW + 599.9
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", clock.now)
        await settled()
        writer.cleared(machine(), "10.0.0.5")
        await settled()
        assert api.patches == []
        assert api.condition()["message"] == SAYS
        clock.now = NOW + 601
        await until(lambda: api.condition()["status"] == "False")


async def test_conflict_of_another_interface_is_added_to_what_another_edge_says(api: Api, clock: Clock) -> None:
    api.put("a", {"type": "AddressConflict", "status": "True", "message": SAYS})
    async with edge(api, clock) as writer:
        writer.conflict(machine(mac=OTHER), "10.0.0.6", NOW + 300)
        await until(lambda: "10.0.0.6" in api.condition()["message"])


async def test_what_stands_there_already_is_not_written_again(api: Api, clock: Clock) -> None:
    async with edge(api, clock) as writer:
        for _ in range(3):
            writer.conflict(machine(), "10.0.0.5", NOW + 600)
            await until(lambda: bool(api.condition()))
            await settled()
    assert len(api.patches) == 1


async def test_edges_that_see_the_same_conflict_write_it_once_and_end_it_once(api: Api, clock: Clock) -> None:
    async with edge(api, clock) as one, edge(api, clock) as two:
        for writer in (one, two):
            writer.conflict(machine(), "10.0.0.5", NOW + 600)
        await until(lambda: bool(api.condition()))
        await settled()
        written = [p for p in api.patches if p["status"]["conditions"][0]["status"] == "True"]
        assert len(written) <= 2, "one of them may have lost a race"
        clock.now = NOW + 600
        for writer in (one, two):
            writer.cleared(machine(), "10.0.0.5")
        await until(lambda: api.condition()["status"] == "False")
        await settled()
        assert api.condition()["status"] == "False"
    assert len(api.patches) <= 4


async def test_condition_of_an_edge_that_died_is_ended_by_another(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "GRACE_SECONDS", 0.05)
    async with edge(api, clock):
        api.put("a", {"type": "AddressConflict", "status": "True", "message": SAYS})
        await settled()
        assert api.patches == []
        clock.now = NOW + 599.9
        api.put("a", {"type": "AddressConflict", "status": "True", "message": SAYS})
        await asyncio.sleep(0.05)
        assert api.patches == []
        clock.now = NOW + 600.1
        await until(lambda: api.condition()["status"] == "False")


async def test_quarantine_whose_end_nobody_told_is_ended_all_the_same(
    api: Api, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "GRACE_SECONDS", 0.05)
    async with edge(api, clock) as writer:
        writer.conflict(machine(), "10.0.0.5", NOW + 0.05)
        await until(lambda: bool(api.condition()))
        clock.now = NOW + 1
        await until(lambda: api.condition()["status"] == "False")
        assert not writer._declined


async def test_condition_set_by_hand_is_left_alone(api: Api, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    api.put("a", {"type": "AddressConflict", "status": "True", "message": "I saw it"})
    async with edge(api, clock) as writer:
        writer._queue.add(NamespacedName("default", "a"))
        await settled()
    assert api.patches == []
    assert caplog.records == []


async def test_addresses_of_both_families_of_one_interface_have_one_condition(api: Api, clock: Clock) -> None:
    async with edge(api, clock) as writer:
        writer.changed(machine(), "10.0.0.5", NOW + 600)
        writer.changed(machine(), "fd00:77::50", NOW + 700)
        await until(lambda: "fd00:77::50 is used by another host" in api.condition().get("message", ""))
        assert "10.0.0.5 is used by another host" in api.condition()["message"]
        writer.changed(machine(), "fd00:77::50", None)
        await until(lambda: api.condition()["message"] == SAYS)
        writer.changed(machine(), "10.0.0.5", None)
        await until(lambda: api.condition()["status"] == "False")


async def test_two_interfaces_of_one_machine_have_one_condition_until_both_are_well(api: Api, clock: Clock) -> None:
    async with edge(api, clock) as writer:
        writer.conflict(machine(mac=MAC), "10.0.0.5", NOW + 600)
        writer.conflict(machine(mac=OTHER), "10.0.0.6", NOW + 700)
        await until(lambda: "10.0.0.6" in api.condition().get("message", ""))
        assert "10.0.0.5" in api.condition()["message"]
        writer.cleared(machine(mac=OTHER), "10.0.0.6")
        await until(lambda: api.condition()["message"] == SAYS)
        assert api.condition()["status"] == "True"
        writer.cleared(machine(mac=MAC), "10.0.0.5")
        await until(lambda: api.condition()["status"] == "False")


async def test_clearing_what_was_never_in_conflict_asks_nobody(api: Api, clock: Clock) -> None:
    async with edge(api, clock) as writer:
        writer.cleared(machine(), "10.0.0.5")
        await settled()
        assert not writer._queue._dirty
    assert api.patches == []


async def test_many_conflicts_at_once_are_bounded_and_said_once(
    api: Api, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "MAX_CONFLICTS", 3)
    caplog.set_level(logging.INFO)
    writer = ConditionWriter(cast(KubeClient, api), clock)
    for number in range(10):
        writer.conflict(machine(f"m-{number}"), "10.0.0.5", NOW + 600)
    assert len(writer._declined) == 3
    assert len(caplog.records) == 1
    writer.conflict(machine("m-0"), "10.0.0.5", NOW + 700)
    assert [one.until for one in writer._declined["default", "m-0"].values()] == [NOW + 700]
