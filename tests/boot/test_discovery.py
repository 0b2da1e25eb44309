"""Machines that no Hardware names, from power-on to Succeeded: admitted, introduced, approved and compared with a list.

`tinkedge lab --discover` runs as a user runs it. The Hardware at its end is in the lab's logs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.building.builder import default_cache
from edge.lab.discovery import DISKS_MIB, PORT, SECOND_MAC, SECOND_PORT, SWITCH
from edge.lab.machine import Firmware, MachineSettings
from edge.lab.run import MAC
from tests.boot.conftest import Run
from tests.boot.test_lab import BOOT, in_order, matching_sentences, steps
from tink.workflow.status import parse_timestamp

pytestmark = [pytest.mark.long, pytest.mark.timeout(880)]

GIVEN = MachineSettings(MAC, "machine0", Firmware.BIOS, more_disks_mib=DISKS_MIB[1:], disk_mib=DISKS_MIB[0])
"""The machine as QEMU gets it."""
LLDP_SECONDS, PROCESSING_SECONDS = 35, 5


def hardware() -> Any:
    """Return the Hardware of the last lab's machine."""
    return json.loads((default_cache() / "lab-logs" / "hardware.json").read_text())


def condition(machine: Any) -> Any:
    (found,) = (each for each in machine["status"]["conditions"] if each["type"] == "AsExpected")
    return found


def reported(machine: Any) -> dict[str, Any]:
    """Return the inventory of a machine, in the shape of `given`."""
    facts = machine["status"]["inventory"]["inBand"]
    ports = [port for adapter in facts["networkInterfaces"] for port in adapter["ports"]]
    return {
        "firmware": facts["firmware"]["mode"],
        "product": {name: facts["product"][name] for name in ("vendor", "model", "serialNumber", "uuid")},
        "memory": facts["memory"]["totalBytes"],
        "disks": [(each["name"], each["sizeBytes"], each["serialNumber"]) for each in facts["blockDevices"]],
        "cables": {each["mac"]: (each["lldp"]["systemName"], each["lldp"]["portID"]) for each in ports},
    }


def given(firmware: str, port: str = PORT) -> dict[str, Any]:
    """Return what the machine must report: the values that QEMU and lldpd were started with."""
    sizes = enumerate(GIVEN.disks_mib)
    return {
        "firmware": firmware,
        "product": {"vendor": "tinkedge", "model": "lab", "serialNumber": GIVEN.serial, "uuid": GIVEN.uuid},
        "memory": GIVEN.memory_mib << 20,
        "disks": [(f"/dev/vd{'ab'[at]}", size << 20, GIVEN.disk_serial(at)) for at, size in sizes],
        "cables": {MAC: (SWITCH, port), SECOND_MAC: (SWITCH, SECOND_PORT)},
    }


def test_unknown_machine_is_admitted_by_rule_approved_by_its_operator_installed_and_boots_from_its_disk(
    lab: Run,
) -> None:
    outcome = lab("--discover", "rule", "--full", "--patience", 300, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "admitted by rule lab: Hardware default/discovery-52-54-00-12-34-56 created",
        "agent connected from 172.31.77.1",
        "tinkedge discover approve discovery-52-54-00-12-34-56 lab-machine: Hardware default/lab-machine is approved",
        "NoExpectations: ",
        "workflow.tinkerbell.org/install created",
        "Succeeded after",
        "cloud-init finished on lab-machine, instance lab-machine",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert in_order(("power", *BOOT[:5], "approve", "verdict", "workflow", "metadata"), steps(outcome.shown))
    assert "tinkedge discover approve discovery-52-54-00-12-34-56 NEW-NAME -n default" in outcome.shown
    assert reported(hardware()) == given("BIOS")
    print(outcome.shown)


def test_unknown_uefi_machine_is_approved_by_the_list_with_its_serial_number_and_matches_it(lab: Run) -> None:
    outcome = lab("--discover", "list", "--firmware", "uefi", "--patience", 200)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "tinkedge discover import lab.csv: ConfigMap default/lab: 1 machines",
        "admitted by rule lab: Hardware default/discovery-52-54-00-12-34-56 created",
        "Hardware discovery-52-54-00-12-34-56 is now lab-machine",
        "Matches: the machine is as ConfigMap default/lab, lab.csv line 2 describes it",
        "workflow.tinkerbell.org/install created",
        "Succeeded after",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    assert in_order(("power", *BOOT[:5], "approved", "verdict", *BOOT[5:], "disk"), steps(outcome.shown))
    found = hardware()
    assert reported(found) == given("UEFI")
    assert (condition(found)["status"], condition(found)["reason"]) == ("True", "Matches")
    assert list(found["spec"]["networkInterfaces"]) == [MAC]
    print(outcome.shown)


def test_machine_at_another_port_of_the_switch_is_reported_with_both_ports(lab: Run) -> None:
    outcome = lab("--discover", "list", "--switch-port", "Ethernet1/9", "--patience", 200)
    assert outcome.status == 0, outcome.shown + outcome.error
    assert "WrongPort: " in outcome.shown
    found = hardware()
    assert reported(found) == given("BIOS", "Ethernet1/9")
    assert (condition(found)["status"], condition(found)["reason"]) == ("False", "WrongPort")
    assert all(port in condition(found)["message"] for port in (f"{SWITCH}/Ethernet1/9", f"{SWITCH}/{PORT}"))
    # The Hardware is created with the first inventory of the machine, which knows no cable yet.
    created = parse_timestamp(found["metadata"]["creationTimestamp"])
    noticed = parse_timestamp(condition(found)["lastTransitionTime"])
    assert created is not None
    assert noticed is not None
    assert noticed - created <= LLDP_SECONDS + PROCESSING_SECONDS


def test_unknown_machine_with_a_bmc_is_powered_on_approved_by_the_list_installed_and_back_to_its_disk(
    lab: Run,
) -> None:
    outcome = lab("--discover", "list", "--bmc", "--patience", 200, timeout=840)
    assert outcome.status == 0, outcome.shown + outcome.error
    in_order_of_boot = (
        "tinkedge discover import lab.csv: ConfigMap default/lab: 1 machines, 1 Secrets",
        "job.bmc.tinkerbell.org/first-boot created",
        "starts, boot device Pxe by its BMC",
        "admitted by rule lab: Hardware default/discovery-52-54-00-12-34-56 created",
        "Hardware discovery-52-54-00-12-34-56 is now lab-machine",
        "Matches: the machine is as ConfigMap default/lab, lab.csv line 2 describes it",
        "workflow.tinkerbell.org/install created",
        "starts, boot device Pxe by its BMC",
        "agent connected from 172.31.77.50",
        "Succeeded after",
        "52:54:00:12:34:56 is off",
        "starts, in its own boot order",
        "instance-id to Wget",
        "netbooting is disabled again, and no boot device is set",
    )
    assert in_order(in_order_of_boot, matching_sentences(outcome.shown, in_order_of_boot)), outcome.shown
    found = hardware()
    assert reported(found) == given("BIOS")
    assert found["spec"]["bmcRef"] == {"name": "lab-machine"}
    assert "tinkerbell.org/discovery-address" not in found["metadata"]["annotations"], "it has booted since"
    print(outcome.shown)
