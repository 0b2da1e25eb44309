"""The closed loop of BMC control and an edge: a boot by BMC is done when the edge has seen the machine's DISCOVER.

BMC control runs over a fake BMC. The edge has its own journey, boot watch and writer of states. Both meet in the API.
All of it is in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import BootProblem, BootProblemWriter, Inventory, PendingWorkflows, StateWriter
from edge.run.boot_watch import BootWatch
from edge.run.machine_work import WorkflowJourney
from edge.run.networks.follow import HostNetworks
from tests.support.bmc import FakeBmc
from tests.support.virtual_time import elapse
from tests.unit.bmc.rig import MAC, NETBOOT, NOW, Rig, computer, machine, secret, workflow
from tink.api.v1alpha2 import Raw
from tink.kube.resources import HARDWARE, WORKFLOW
from tink.workflow.status import parse_timestamp

pytestmark = pytest.mark.looptime


class Edge:
    """An edge with one machine. It sweeps once a second."""

    def __init__(self, rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        self.clock = lambda: NOW + loop.time()
        self.journey = Journey(self.clock)
        self.problems: list[str] = []
        """The reason of each problem of the machine; empty when a problem has ended."""
        inventory, pending = Inventory(), PendingWorkflows()
        hardware, workflows = rig.api.informer(HARDWARE), rig.api.informer(WORKFLOW)
        hardware.add_event_handler(lambda new, _: inventory.apply(new), inventory.remove)
        journey = WorkflowJourney(self.journey, inventory)
        workflows.add_event_handler(journey.on_change, journey.on_delete)
        workflows.add_event_handler(pending.apply, pending.remove)
        self.states = StateWriter(rig.api, hardware, self.clock, loop.time)  # type: ignore[arg-type] # as in the rig
        problems = cast(BootProblemWriter, SimpleNamespace(found=self._found, found_of_another=self._found))
        networks = cast(HostNetworks, SimpleNamespace(states=()))
        self.watch = BootWatch(
            self.journey, inventory, pending, networks, tuple, problems, (7080, 42113), self.clock, str, self.states
        )

    def _found(self, _machine: Any, problem: BootProblem | None) -> None:
        reason = problem.reason if problem is not None else ""
        if reason != (self.problems or [""])[-1]:
            self.problems.append(reason)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.states.run())
            while True:
                await elapse(1)
                for work in (self.watch.find_boots, self.watch.expectations.sweep, self.watch.place):
                    list(work())

    def receives(self, stage: str = "PXE ROM", what: str = "offer") -> float:
        """Record a packet of the machine; return its time."""
        client = {"stage": stage, "dhcp": what, "client": stage}
        self.journey.record(MAC, Step.DHCP, Outcome.OK, f"DHCP{what.upper()} to {stage}", **client)
        return self.clock()

    def power(self) -> list[tuple[str, str]]:
        """Return the outcome and the reason, or the state of the power, of each step of BMC control."""
        steps = [each for each in self.journey.events(MAC) if each.step is Step.POWER]
        return [(each.outcome.value, str(each.detail.get("reason", each.detail.get("power")))) for each in steps]

    def warnings(self) -> set[Step]:
        """Return the steps of the warnings."""
        return {each.step for each in self.journey.events(MAC) if each.outcome is Outcome.WARNING}


@contextlib.asynccontextmanager
async def running(rig: Rig, **settings: Any) -> AsyncIterator[Edge]:
    edge = Edge(rig)
    task = asyncio.create_task(edge.run())
    try:
        async with rig.running(**settings):
            yield edge
    finally:
        task.cancel()
        await asyncio.wait([task])


def status(rig: Rig) -> Raw:
    return cast(Raw, (rig.api.read(HARDWARE, "m1") or {}).get("status", {}))


async def until_on_again(rig: Rig) -> None:
    await rig.until(lambda: rig.bmc.resets == ["ForceOff", "On"])


def new_rig() -> Rig:
    return Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=5.0))


async def test_first_discover_after_power_on_is_the_boot_though_the_machine_has_sent_discovers_before() -> None:
    rig = new_rig()
    async with running(rig) as edge:
        await rig.until(lambda: status(rig).get("power") == "on")
        # Firmware that takes no offer: DISCOVERs with growing pauses.
        for pause in (4, 8, 16, 5):
            edge.receives()
            await elapse(pause)
        before = status(rig)["lastBoot"]["at"]
        rig.api.put(workflow(options=NETBOOT))
        await until_on_again(rig)
        assert status(rig)["lastBoot"]["at"] == before
        await elapse(12)
        first = edge.receives()
        prepared = await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert prepared["reason"] == "Booted"
        assert parse_timestamp(status(rig)["lastBoot"]["at"]) == pytest.approx(first, abs=0.001)
        assert {key: status(rig)["lastBoot"][key] for key in ("client", "mac")} == {"client": "Netboot", "mac": MAC}
        await elapse(2)
        reasons = [reason for _, reason in edge.power() if reason not in ("on", "off")]
        assert [*dict.fromkeys(reasons)] == ["PoweringOff", "OverrideSet", "PoweringOn", "WaitingForDiscover", "Booted"]
        assert edge.power()[-1][0] == "ok"
        assert edge.warnings() <= {Step.DHCP}, "its offers of the time before were not taken"
        assert edge.problems[-1:] in ([""], [])


async def test_machine_that_sends_nothing_has_the_cause_as_its_problem_until_it_boots_late() -> None:
    rig = new_rig()
    async with running(rig, boot_named_after=60.0, boot_next_after=120.0) as edge:
        rig.api.put(workflow(options=NETBOOT))
        await until_on_again(rig)
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "NoDiscover", within=90)
        await elapse(2)
        assert edge.power()[-1] == ("warning", "NoDiscover")
        assert edge.problems == ["NoDiscover"]
        await elapse(1800)
        assert edge.warnings() == {Step.POWER}
        edge.receives()
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        edge.receives(what="ack")
        await elapse(5)
        assert edge.problems[-1] == ""


async def test_disk_that_boots_instead_is_seen_as_an_installed_system() -> None:
    rig = new_rig()
    async with running(rig) as edge:
        for _ in range(2):  # its system runs, and renews
            edge.receives("operating system")
            edge.receives("operating system", "ack")
            await elapse(40)
        rig.api.put(workflow(options=NETBOOT))
        await until_on_again(rig)
        await elapse(5)
        edge.receives("operating system", "ack")  # INIT-REBOOT
        await rig.until(
            lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "OverrideLost", within=90
        )
        assert status(rig)["lastBoot"]["client"] == "OperatingSystem"
        await elapse(2)
        assert edge.problems[-1] == "OverrideLost"
