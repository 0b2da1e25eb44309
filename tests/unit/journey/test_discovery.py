"""Changes of Hardware by discovery as steps of a machine's journey, which outlives the name of its Hardware."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from edge.journey.discovery import DiscoveryJourney
from edge.journey.events import Note, Outcome, Step
from edge.journey.recorder import Journey
from tests.support import objects
from tests.support.api import InProcessApi
from tests.support.discovery import Site, mac, name
from tests.support.virtual_time import elapse
from tink.api.v1alpha2 import Raw
from tink.discovery.controller import DiscoveryController
from tink.discovery.expected import ExpectedMachines
from tink.discovery.model import discovered_name
from tink.kube.objects import NamespacedName
from tink.kube.resources import CONFIG_MAP, HARDWARE, WORKFLOW
from tink.timestamps import rfc3339

MAC = mac(0)
NAME = discovered_name(MAC)
INTRODUCED = (
    "has introduced itself: Dell Inc. PowerEdge R650, serial number SN00000, 32 cores, 256 GiB of memory, "
    "3 disks (480 GB, 3.84 TB), 2 network ports"
)


class Clock:
    """Seconds since the epoch."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Edge:
    """A journey and what turns changes of Hardware into its events."""

    def __init__(self, *, is_live: bool = True, journey: Journey | None = None) -> None:
        self.clock = Clock()
        self.journey = journey or Journey(self.clock, began=self.clock.now)
        self.is_live = is_live
        self.approved: list[str] = []
        self.expected = ExpectedMachines()
        self.discoveries = DiscoveryJourney(
            self.journey, is_live=lambda: self.is_live, line_of=self._line_of, on_approved=self.approved.append
        )

    def _line_of(self, key: NamespacedName) -> str:
        line = self.expected.named(key)
        return line.source if line is not None else ""

    def lines(self) -> list[tuple[str, str]]:
        found = self.journey.events(MAC)
        return [(each.outcome.value, each.message) for each in found if each.step is Step.DISCOVERY]


def discovered(facts: bool = True, **metadata: Any) -> Raw:
    found = Site(1).hardware(0)
    found["metadata"] |= metadata
    return found if facts else found | {"status": {}}


def approved(key: str = "rack-0000", **metadata: Any) -> Raw:
    found = Site(1, discovered=False).hardware(0)
    annotations = {"tinkerbell.org/discovered-as": NAME}
    found["metadata"] |= {"name": key, "annotations": annotations, **metadata}
    return found


def judged(hardware: Raw, status: str, reason: str, message: str) -> Raw:
    condition = {"type": "AsExpected", "status": status, "reason": reason, "message": message}
    return hardware | {"status": {**hardware["status"], "conditions": [condition]}}


def test_first_inventory_is_an_introduction_and_a_later_one_is_none() -> None:
    edge = Edge()
    edge.discoveries.on_change(discovered(facts=False), None)
    assert edge.lines() == []
    edge.discoveries.on_change(discovered(), discovered(facts=False))
    edge.discoveries.on_change(discovered(), discovered())
    assert edge.lines() == [("ok", INTRODUCED)]
    (event,) = edge.journey.events(MAC)
    assert event.detail == {"discovery": "introduced", "hardware": f"default/{NAME}"}
    assert edge.journey.last_sign(MAC) is None, "the API reports it: the machine has sent this edge nothing"
    assert not edge.journey.was_heard(MAC)


def test_hostile_inventory_is_one_bounded_line() -> None:
    edge, evil = Edge(), discovered()
    evil["status"]["inventory"]["inBand"] = {
        "product": {"vendor": "x\n\x1b[31m" * 400, "model": ["a"], "serialNumber": 7},
        "cpu": {"totalCores": True},
        "memory": {"totalBytes": -1},
        "blockDevices": [7, {"sizeBytes": "x"}, None],
        "networkInterfaces": "many",
    }
    edge.discoveries.on_change(evil, discovered(facts=False))
    ((_, line),) = edge.lines()
    assert line.isprintable()
    assert len(line) <= 500


@pytest.mark.parametrize(
    ("annotations", "is_listed", "source"),
    [
        ({"tinkerbell.org/approve": "rack-0000"}, False, " by annotation tinkerbell.org/approve"),
        ({}, True, " by ConfigMap default/rack, rack.csv line 2"),
        ({}, False, " by a list of expected machines"),
    ],
    ids=["annotation", "line", "list-that-this-edge-does-not-follow"],
)
def test_approval_names_what_approved_the_machine_and_both_names(
    annotations: dict[str, str], is_listed: bool, source: str
) -> None:
    edge = Edge()
    if is_listed:
        edge.expected.apply(Site(1).config_map())
    annotations = annotations | {"tinkerbell.org/approved-as": "default/rack-0000"}
    edge.discoveries.on_change(discovered(annotations=annotations), discovered())
    assert edge.discoveries.is_moving(MAC)
    edge.discoveries.on_change(approved(), None)
    edge.discoveries.on_delete(discovered(annotations=annotations))
    assert edge.lines() == [("ok", f"approved{source}: it is Hardware default/rack-0000 now (it was {NAME})")]
    assert not edge.discoveries.is_moving(MAC)
    assert edge.approved == [MAC]


def test_approval_under_the_present_name_is_recorded_once() -> None:
    edge = Edge()
    before = discovered(annotations={"tinkerbell.org/approve": "true"})
    edge.discoveries.on_change(approved(NAME), before)
    edge.discoveries.on_change(approved(NAME), approved(NAME))
    line = f"approved by annotation tinkerbell.org/approve: it stays Hardware default/{NAME}"
    assert edge.lines() == [("ok", line)]


def test_approval_that_does_not_hold_any_more_moves_nothing() -> None:
    edge = Edge()
    marked = discovered(annotations={"tinkerbell.org/approved-as": "default/rack-0000"})
    edge.discoveries.on_change(marked, discovered())
    edge.discoveries.on_change(discovered(), marked)
    assert not edge.discoveries.is_moving(MAC)


def test_deletion_without_an_approval_is_recorded_and_the_machine_may_introduce_itself_again() -> None:
    edge = Edge()
    for _ in range(2):
        edge.discoveries.on_change(discovered(), discovered(facts=False))
        edge.discoveries.on_delete(discovered())
    edge.discoveries.on_delete(approved())
    removed = ("info", f"its discovered Hardware default/{NAME} was deleted without an approval")
    assert edge.lines() == [("ok", INTRODUCED), removed] * 2


def test_difference_is_a_warning_once_and_its_end_is_recorded() -> None:
    edge = Edge()
    wrong = judged(approved(), "False", "WrongPort", "eno1 is at switch-0/9: move the cable")
    other = judged(approved(), "False", "DiskMissing", "2 of 3 disks: look for a drive")
    right = judged(approved(), "True", "Matches", "fits ConfigMap default/rack, rack.csv line 2")
    for new, old in ((wrong, approved()), (wrong, wrong), (other, wrong), (right, other), (right, right)):
        edge.discoveries.on_change(new, old)
    assert edge.lines() == [
        ("warning", "not as expected: eno1 is at switch-0/9: move the cable"),
        ("warning", "not as expected: 2 of 3 disks: look for a drive"),
        ("ok", "as expected now: fits ConfigMap default/rack, rack.csv line 2"),
    ]


def test_first_list_after_a_restart_repeats_nothing_and_adds_what_is_missing_at_its_own_time() -> None:
    clock = Clock()
    journey = Journey(clock, began=clock.now)
    began = clock.now
    journey.take_in(MAC, began - 100, Note(Step.DHCP, Outcome.OK, "DHCPOFFER"), now=False)
    edge = Edge(is_live=False, journey=journey)
    seen = discovered()
    seen["status"]["inventory"]["inBand"]["lastUpdated"] = rfc3339(began - 60)
    ready = approved(creationTimestamp=rfc3339(began - 30))
    for _ in range(2):
        edge.discoveries.on_change(seen, None)
    edge.discoveries.on_change(ready, None)
    edge.discoveries.on_change(ready, None)
    times = [(each.time - began, each.message.split(":")[0]) for each in journey.events(MAC)]
    assert times == [(-100, "DHCPOFFER"), (-60, "has introduced itself"), (-30, "approved")]


def test_first_list_tells_nothing_of_the_time_before_the_journey() -> None:
    edge = Edge(is_live=False)
    edge.discoveries.on_change(approved(creationTimestamp=rfc3339(edge.clock.now - 30)), None)
    assert edge.journey.events(MAC) == []
    edge.journey.record(MAC, Step.DHCP, Outcome.OK, "DHCPOFFER")
    edge.discoveries.on_change(approved(creationTimestamp=rfc3339(edge.clock.now - 30)), None)
    assert edge.lines() == []


# --- with the real controller -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def controlled(api: InProcessApi) -> AsyncIterator[Edge]:
    """Run the discovery controller, with an edge that follows the same API."""
    informers = {each: api.informer(each) for each in (CONFIG_MAP, WORKFLOW, HARDWARE)}
    edge = Edge()
    informers[CONFIG_MAP].add_event_handler(lambda new, _: edge.expected.apply(new), edge.expected.remove)
    informers[HARDWARE].add_event_handler(edge.discoveries.on_change, edge.discoveries.on_delete)
    controller = DiscoveryController(api, informers, expected=edge.expected)  # type: ignore[arg-type]
    task = asyncio.create_task(controller.run())
    try:
        yield edge
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(holds: Callable[[], object]) -> None:
    for _ in range(300):
        if holds():
            return
        await elapse(1.0)
    raise AssertionError("it did not happen")


@pytest.mark.looptime
async def test_machine_of_a_list_is_on_one_journey_from_its_introduction_to_its_own_name() -> None:
    site = Site(1)
    api = InProcessApi()
    api.put(site.config_map())
    found = site.hardware(0)
    found["metadata"]["finalizers"] = ["tinkerbell.org/discovery"]
    inventory = found.pop("status")
    api.put(found)
    async with controlled(api) as edge:
        await api.patch(HARDWARE, NAME, "default", {"status": inventory}, subresource="status")
        await until(lambda: api.read(HARDWARE, name(0), "default") and not api.read(HARDWARE, NAME, "default"))
    line = "approved by ConfigMap default/rack, rack.csv line 2"
    assert edge.lines() == [
        ("ok", INTRODUCED),
        ("ok", f"{line}: it is Hardware default/{name(0)} now (it was {NAME})"),
    ]
    assert objects.MAC not in edge.journey.macs()
