"""Machines of a fleet whose BMCs power them on, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import orjson
import pytest

from edge.fleet.bmc import FleetBmcs, PowerSupply
from edge.fleet.boot import live
from edge.fleet.machine import SimulatedMachine, Surroundings
from edge.fleet.population import Identity, Profile, draw, identity
from edge.fleet.results import FleetStep, Question, Recorder, numbers
from edge.lab.bmc import ENABLED, RESET, SESSIONS, SYSTEM, TARGET, SimulatedBmc
from tests.support.virtual_time import elapse

pytestmark = pytest.mark.looptime

PROFILE = Profile.model_validate({"post": 60})


def of_fleet() -> Identity:
    return identity("fleet", IPv4Network("192.0.2.0/24"), 0)


class Bench:
    """One machine with its BMC, which has no delays, and the machine's life as a task."""

    def __init__(self) -> None:
        self.supply, self.recorder = PowerSupply(), Recorder(1)
        self.bmc = SimulatedBmc(accounts={"root": "secret"}, machine=self.supply, slots=(), post_seconds=1.0)
        self.supply.connect(self.bmc)
        around = Surroundings(PROFILE, 1, None, self.recorder, lambda _address: False)  # type: ignore[arg-type] # no packet is sent
        traits = replace(draw(PROFILE, 1, 0), cut_at=None, hangs_at=None)
        self.machine = SimulatedMachine(around, of_fleet(), traits, self.supply)
        self.life = asyncio.create_task(live(self.machine))
        self.token = ""
        login = self.send("POST", SESSIONS, {"UserName": "root", "Password": "secret"})
        self.token = login.headers["X-Auth-Token"]

    def send(self, method: str, path: str, document: dict[str, Any]) -> Any:
        """Send a request to the BMC."""
        now = asyncio.get_running_loop().time()
        answer = self.bmc.handle(method, path, {"X-Auth-Token": self.token}, orjson.dumps(document), now)
        assert answer.status < 300, answer
        return answer

    def set_boot(self, enabled: str = "Once") -> None:
        self.send("PATCH", SYSTEM, {"Boot": {TARGET: "Pxe", ENABLED: enabled}})

    def reset(self, kind: str) -> None:
        self.send("POST", RESET, {"ResetType": kind})

    async def close(self) -> None:
        self.life.cancel()
        await asyncio.wait([self.life])


async def test_machine_is_off_until_its_bmc_starts_it_from_the_network() -> None:
    bench = Bench()
    await elapse(600)
    assert bench.machine.step is FleetStep.OFF
    bench.set_boot()
    bench.reset("On")
    await elapse(5)
    assert (bench.machine.step, bench.supply.boot_device) == (FleetStep.FIRMWARE, "Pxe")
    assert bench.bmc.power == "On"
    await bench.close()


async def test_machine_that_its_bmc_starts_from_its_empty_disk_has_failed() -> None:
    bench = Bench()
    bench.reset("On")
    await bench.life
    (failure,) = bench.recorder.failures
    assert "its BMC started it with the boot device None" in failure.cause
    assert not failure.injected


async def test_power_cut_by_the_bmc_ends_the_boot_and_the_next_start_begins_a_new_one() -> None:
    bench = Bench()
    bench.set_boot()
    bench.reset("On")
    await elapse(5)
    bench.reset("ForceOff")
    await elapse(5)
    assert (bench.machine.step, bench.bmc.power) == (FleetStep.OFF, "Off")
    bench.set_boot()
    bench.reset("On")
    await elapse(40)
    bench.set_boot()
    bench.reset("ForceRestart")
    await elapse(40)  # the first DISCOVER would come 60 s after a start
    assert (bench.machine.step, bench.supply.boot_device, bench.supply.starts) == (FleetStep.FIRMWARE, "Pxe", 3)
    assert bench.recorder.failures == []
    await bench.close()


async def test_time_from_the_request_to_the_first_start_is_measured_once() -> None:
    bench = Bench()
    bench.supply.requested_at = 0.0
    bench.set_boot()
    bench.reset("On")
    await elapse(5)
    bench.set_boot()
    bench.reset("ForceRestart")
    await elapse(5)
    assert len(bench.recorder.seconds[Question.POWER_ON]) == 1
    assert numbers(bench.recorder, 1.0)["powered-on"] == 1
    await bench.close()


@pytest.mark.parametrize(("enabled", "device"), [("Once", "None"), ("Continuous", "Pxe")])
async def test_restart_of_the_system_uses_the_boot_device_that_the_bmc_still_has(enabled: str, device: str) -> None:
    bench = Bench()
    bench.set_boot(enabled)
    bench.reset("On")
    await elapse(5)
    bench.bmc.run_until(asyncio.get_running_loop().time())
    assert bench.supply.restart() == device
    await bench.close()


async def test_bmcs_have_one_account_and_certificate_for_all_and_no_password_in_their_description() -> None:
    machines = [identity("fleet", IPv4Network("192.0.2.0/24"), number) for number in range(2)]
    bmcs = FleetBmcs(machines, [draw(PROFILE, 1, number) for number in range(2)], "fleet-bmc")
    specs = [bmcs.access.machine_spec(each, "default")["connection"] for each in machines]
    assert [each["host"] for each in specs] == [each.address for each in machines]
    assert len({each["certificateFingerprint"] for each in specs}) == 1
    assert specs[0]["authSecretRef"] == {"name": "fleet-bmc", "namespace": "default"}
    assert bmcs.access.account["password"] not in repr(bmcs.access) + bmcs.summary()
