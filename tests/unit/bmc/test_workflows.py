"""Boots of Workflows by BMC: the whole controller over the in-process API and a fake BMC, in virtual time.

`Machine` stands for the machine and its edge: after power-on it sends a DISCOVER, and `status.lastBoot` changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.bmc import FakeBmc, Fault
from tests.support.virtual_time import elapse
from tests.unit.bmc.rig import HOST, MAC, NETBOOT, NOW, Ipmi, IpmiRig, Rig, computer, machine, secret, workflow
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import BOOT_FINALIZER, Raw
from tink.bmc.model import BmcError, Cause
from tink.kube.client import ApiError
from tink.kube.resources import HARDWARE, MACHINE, SECRET, WORKFLOW
from tink.timestamps import rfc3339
from tink.versions import NEW, OLD, convert
from tink.workflow.guards import boot_begun, has_post_actions

virtual = pytest.mark.looptime


class Urls:
    """The URLs of an edge."""

    def http_boot(self, mac: str) -> str:
        return f"http://192.0.2.1:7080/ipxe/binary/{mac}/ipxe.efi"

    def medium(self, mac: str) -> str:
        return "http://192.0.2.1:7080/iso/token/boot.iso"


class Machine:
    """Reports each boot of the fake BMC's machine as an edge does, if its boot target is one of `netboots_by`."""

    def __init__(self, rig: Rig, *, netboots_by: tuple[str, ...] = ("Pxe", "UefiHttp", "Cd"), client: str = "") -> None:
        self._rig = rig
        self._netboots_by = netboots_by
        self._client = client

    async def run(self) -> None:
        reported = 0
        while True:
            await elapse(1)
            self._rig.bmc.run_until(asyncio.get_running_loop().time())
            boots = self._rig.bmc.boots
            for target in boots[reported:]:
                client = "Netboot" if target in self._netboots_by else self._client
                if client:
                    at = rfc3339(NOW + asyncio.get_running_loop().time(), "milliseconds")
                    last = {"at": at, "client": client, "mac": MAC}
                    self._rig.api.change(HARDWARE, "m1", status={"lastBoot": last})
            reported = len(boots)


@contextlib.asynccontextmanager
async def running(rig: Rig, machine: Machine | None = None, **settings: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(machine.run()) if machine is not None else None
    try:
        async with rig.running(**settings):
            yield
    finally:
        if task is not None:
            task.cancel()


def boot(rig: Rig, name: str = "w1") -> Raw:
    found: Raw = (rig.api.read(WORKFLOW, name) or {}).get("status", {}).get("boot", {})
    return found


def reasons(rig: Rig) -> list[str]:
    """The reasons of BootPrepared that were written, in order, without repetitions."""
    found: list[str] = []
    for body in rig.api.bodies("patch", of=WORKFLOW):
        for each in body.get("status", {}).get("conditions", ()):
            if each["type"] == "BootPrepared" and each["reason"] not in found[-1:]:
                found.append(each["reason"])
    return found


@virtual
async def test_machine_is_switched_off_set_to_pxe_switched_on_and_prepared_when_its_discover_arrives() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=5.0, post_seconds=20.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        prepared = await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert rig.bmc.resets == ["ForceOff", "On"]
    assert rig.bmc.boots == ["Pxe"]
    assert prepared["reason"] == "Booted"
    assert reasons(rig) == ["PoweringOff", "OverrideSet", "PoweringOn", "WaitingForDiscover", "Booted"]
    assert (boot(rig)["way"], boot(rig)["attempt"]) == ("pxe", 1)
    assert "tinkerbell.org/boot" in rig.api.read(WORKFLOW, "w1")["metadata"]["finalizers"]  # type: ignore[index]


@virtual
@pytest.mark.parametrize(("uefi", "mode"), [(True, "UEFI"), (False, "Legacy"), (None, "UEFI")])
async def test_hardware_of_v1alpha1_sets_the_firmware_mode_of_the_boot(uefi: bool | None, mode: str) -> None:
    dhcp = {"mac": MAC, "ip": {"address": "192.0.2.7", "netmask": "255.255.255.0"}, "arch": "x86_64"}
    interface = {"dhcp": dhcp | ({} if uefi is None else {"uefi": uefi}), "netboot": {"allowPXE": True}}
    metadata = {"name": "m1", "namespace": "default"}
    old = {"metadata": metadata, "spec": {"interfaces": [interface], "bmcRef": {"kind": "Machine", "name": "bmc1"}}}
    stored = convert({"apiVersion": OLD, "kind": "Hardware", **old}, NEW)
    rig = Rig(stored, machine(), secret(), bmc=FakeBmc(power="On", power_seconds=5.0, post_seconds=20.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    sent = [body["Boot"] for _, _, body in rig.bmc.bodies if "BootSourceOverrideMode" in body.get("Boot", {})]
    assert {each["BootSourceOverrideMode"] for each in sent} == {mode}


@virtual
async def test_workflow_without_boot_options_leaves_the_bmc_alone() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow())
        await elapse(600)
    assert rig.bmc.resets == []
    assert not rig.condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_cause_is_named_a_minute_after_power_on_and_a_late_discover_still_prepares_the_workflow() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "WaitingForDiscover")
        await elapse(62)
        named = rig.condition(WORKFLOW, "w1", "BootPrepared")
        assert named["status"] == "False"
        assert named["reason"] == "NoDiscover"
        assert MAC in named["message"]
        assert rig.api.read(WORKFLOW, "w1")["status"]["message"].startswith("boot: ")  # type: ignore[index]
        last = {"at": "2027-01-15T08:05:00.000Z", "client": "Netboot", "mac": MAC}
        rig.api.change(HARDWARE, "m1", status={"lastBoot": last})
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_step_whose_task_never_ends_on_the_bmc_is_a_warning_after_the_naming_time() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(faults=[Fault.TASK_NEVER_ENDS], power="On"))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await elapse(58)
        waiting = rig.condition(WORKFLOW, "w1", "BootPrepared")
        assert waiting["reason"] == "PoweringOff"
        assert "has not ended after 45 s (TaskState Running)" in waiting["message"]
        await elapse(10)
        overdue = rig.condition(WORKFLOW, "w1", "BootPrepared")
        waiting_since = rig.api.read(WORKFLOW, "w1")
    assert overdue["reason"] == "StepOverdue"
    assert "switching the machine off takes longer than 60 s: " in overdue["message"]
    assert "has not ended after 45 s (TaskState Running)" in overdue["message"]
    assert waiting_since is not None
    assert boot_begun(waiting_since), "the server sends no other Workflow of the machine"


@virtual
async def test_ladder_goes_on_to_http_and_to_the_medium_until_one_way_works() -> None:
    rig = Rig(computer(), machine(), secret())
    rig.urls = Urls()
    async with running(rig, Machine(rig, netboots_by=("Cd",))):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert rig.bmc.boots[:2] == ["Pxe", "Pxe"]
    assert rig.bmc.boots[-1] == "Cd"
    assert boot(rig)["way"] == "cd"
    assert boot(rig)["medium"] == "CD"


@virtual
async def test_after_the_last_way_the_workflow_stays_pending_with_the_cause_and_the_machine_on() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await elapse(3000)
        status = rig.api.read(WORKFLOW, "w1")["status"]  # type: ignore[index]
        resets = list(rig.bmc.resets)
        await elapse(3000)
    assert status["state"] == "Pending"
    assert rig.condition(WORKFLOW, "w1", "BootPrepared")["reason"] == "NoDiscover"
    assert rig.bmc.power == "On"
    assert rig.bmc.resets == resets  # it is not restarted again and again


@virtual
async def test_machine_that_boots_its_disk_is_reported_as_override_lost() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(faults=[Fault.BOOT_LOST]))
    async with running(rig, Machine(rig, client="OperatingSystem")):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: "OverrideLost" in reasons(rig))


@virtual
async def test_refused_password_costs_one_login_and_the_workflow_names_the_secret() -> None:
    rig = Rig(computer(), machine(), secret("wrong"))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "CredentialsRefused")
        await elapse(900)
        assert "Secret default/bmc-auth" in rig.condition(WORKFLOW, "w1", "BootPrepared")["message"]
        assert rig.bmc.failed_logins == 1
        rig.api.put(secret())
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert rig.bmc.failed_logins == 1


@virtual
async def test_unreachable_bmc_is_named_and_tried_again() -> None:
    rig = Rig(computer(), machine(), secret())
    rig.hanging.add(HOST)
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == Cause.UNREACHABLE)
        rig.hanging.clear()
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_hardware_without_a_machine_is_named_and_the_boot_begins_when_it_has_one() -> None:
    obj = computer()
    del obj["spec"]["bmcRef"]
    rig = Rig(obj, machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "NoBmc")
        assert not boot(rig)  # the server may send other Workflows
        rig.api.change(HARDWARE, "m1", spec={"bmcRef": {"name": "bmc1"}})
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_restart_of_the_process_while_the_machine_boots_does_not_switch_it_off_again() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(post_seconds=100.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "WaitingForDiscover")
    async with running(rig, Machine(rig)):
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert rig.bmc.resets == ["On"]


@virtual
async def test_boot_waits_for_the_workflow_that_runs_on_the_machine() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow("w0", state="Running"))
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "OtherWorkflow")
        await elapse(600)
        assert rig.bmc.resets == []
        rig.api.change(WORKFLOW, "w0", status={"state": "Succeeded"})
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_discover_prepares_the_workflow_while_the_bmc_does_not_answer() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "WaitingForDiscover")
        rig.hanging.add(HOST)
        await elapse(200)
        last = {"at": "2027-01-15T08:05:00.000Z", "client": "Netboot", "mac": MAC}
        rig.api.change(HARDWARE, "m1", status={"lastBoot": last})
        # An observation of the BMC that has begun ends first, after 30 s without an answer.
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared")["reason"] == "Booted", within=60)
    assert rig.bmc.resets == ["On"]


@virtual
async def test_boot_that_has_not_changed_the_machine_does_not_hold_up_its_other_workflows() -> None:
    rig = Rig(computer(), machine(), secret())
    rig.hanging.add(HOST)
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == Cause.UNREACHABLE)
        unreachable = rig.api.read(WORKFLOW, "w1")
        assert unreachable is not None
        assert not boot_begun(unreachable)
        rig.hanging.clear()
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "WaitingForDiscover")
        waiting = rig.api.read(WORKFLOW, "w1")
        assert waiting is not None
        assert boot_begun(waiting)


@virtual
async def test_workflow_that_is_moved_to_another_api_is_left_alone_at_once() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=60.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "PoweringOff")
        rig.api.change(WORKFLOW, "w1", metadata={"annotations": {PAUSED_ANNOTATION: "moving"}})
        await elapse(600)
    assert rig.bmc.resets == ["ForceOff"]


@virtual
async def test_write_of_another_program_during_the_boot_is_kept_and_does_not_repeat_the_boot() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=20.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "PoweringOff")
        rig.api.change(WORKFLOW, "w1", metadata={"labels": {"team": "blue"}})
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert rig.bmc.resets == ["ForceOff", "On"]
    assert rig.api.read(WORKFLOW, "w1")["metadata"]["labels"] == {"team": "blue"}  # type: ignore[index]


# --- netboot on and off -----------------------------------------------------------------------------------------------


def netboot_disabled(rig: Rig) -> bool | None:
    obj = rig.api.read(HARDWARE, "m1") or {}
    value: bool | None = obj["spec"]["networkInterfaces"][MAC].get("disableNetboot")
    return value


@virtual
@pytest.mark.parametrize("end", ["Succeeded", "Failed", "Canceled"])
async def test_netbooting_is_permitted_before_and_forbidden_after_the_workflow(end: str) -> None:
    rig = Rig(computer(disableNetboot=True), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options={"toggleAllowNetboot": True}))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert netboot_disabled(rig) is False
        assert rig.bmc.resets == []  # the power is left alone without bootMode
        rig.api.change(WORKFLOW, "w1", status={"state": end})
        await rig.until(lambda: not rig.api.read(WORKFLOW, "w1")["metadata"].get("finalizers"))  # type: ignore[index]
    assert netboot_disabled(rig) is True


# --- the end ----------------------------------------------------------------------------------------------------------


@virtual
async def test_medium_is_ejected_after_the_end_and_a_deleted_workflow_disappears_only_then() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        image = "http://192.0.2.1/{{ (index .Hardware.StorageDevices 0) }}.iso"
        obj = rig.api.read(HARDWARE, "m1")
        assert obj is not None
        rig.api.change(HARDWARE, "m1", spec={"storageDevices": ["/dev/sda"]})
        rig.api.put(workflow(options={"bootMode": "isoboot", "isoURL": image}))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert [slot.image for slot in rig.bmc.slots if slot.inserted] == ["http://192.0.2.1//dev/sda.iso"]
        assert rig.bmc.boots == ["Cd"]
        await rig.api.delete(WORKFLOW, "w1", "default")
        rig.api.change(WORKFLOW, "w1", status={"state": "Canceled"})
        await rig.until(lambda: rig.api.read(WORKFLOW, "w1") is None)
    assert [slot for slot in rig.bmc.slots if slot.inserted] == []


@virtual
async def test_cancel_while_the_machine_is_switched_ends_the_operation_and_clears_the_boot_device() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=60.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "PoweringOff")
        rig.api.change(WORKFLOW, "w1", status={"state": "Canceled"})
        await rig.until(lambda: not rig.api.read(WORKFLOW, "w1")["metadata"].get("finalizers"))  # type: ignore[index]
        await elapse(600)
    assert rig.bmc.resets == ["ForceOff"]
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"


@virtual
async def test_session_with_a_slow_bmc_is_closed_when_the_workflow_is_deleted_in_the_middle() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    rig.seconds = 1.0
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "PoweringOff")
        # The deletion and the writes of the other controller are several events in a moment.
        await rig.api.delete(WORKFLOW, "w1", "default")
        rig.api.change(WORKFLOW, "w1", status={"state": "Canceled"})
        rig.api.change(WORKFLOW, "w1", metadata={"labels": {"a": "b"}})
        await rig.until(lambda: rig.api.read(WORKFLOW, "w1") is None)
        await elapse(60)
    assert rig.bmc.open_sessions == 0


@virtual
async def test_refused_login_of_a_boot_is_not_repeated_after_a_restart_before_the_next_poll() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        rig.api.put(secret("wrong"))
        await elapse(30)  # the former password is no longer in memory
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "CredentialsRefused")
    async with running(rig, Machine(rig)):
        await elapse(900)
    assert rig.bmc.failed_logins == 1


@virtual
async def test_clean_up_is_given_up_after_an_hour_if_the_bmc_does_not_answer() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        rig.hanging.add(HOST)
        now = rfc3339(NOW + asyncio.get_running_loop().time())
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed", "lastTransitioned": now})
        await elapse(1800)
        assert rig.api.read(WORKFLOW, "w1")["metadata"]["finalizers"]  # type: ignore[index]
        await rig.until(
            lambda: not rig.api.read(WORKFLOW, "w1")["metadata"].get("finalizers"),  # type: ignore[index]
            within=3600,
        )


# --- custom boot ------------------------------------------------------------------------------------------------------


@virtual
async def test_custom_actions_are_executed_before_and_after_the_workflow() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    config = {
        "preparingActions": [
            {"powerAction": "off"},
            {"virtualMediaAction": {"kind": "CD", "mediaURL": "http://192.0.2.1/{{ .Hardware.BMCRef.Name }}.iso"}},
            {"bootDevice": {"device": "cdrom", "efiBoot": True}},
            {"powerAction": "on"},
        ],
        "postActions": [{"virtualMediaAction": {"kind": "CD"}}],
    }
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options={"bootMode": "customboot", "custombootConfig": config}))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert [slot.image for slot in rig.bmc.slots if slot.inserted] == ["http://192.0.2.1/bmc1.iso"]
        assert rig.bmc.resets == ["ForceOff", "On"]
        rig.api.change(WORKFLOW, "w1", status={"state": "Succeeded"})
        await rig.until(lambda: not rig.api.read(WORKFLOW, "w1")["metadata"].get("finalizers"))  # type: ignore[index]
    assert [slot for slot in rig.bmc.slots if slot.inserted] == []


@virtual
async def test_template_error_in_a_url_is_named_with_its_field() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options={"bootMode": "isoboot", "isoURL": "http://x/{{ .Hardware.Nothing }}"}))
        await rig.until(lambda: rig.condition(WORKFLOW, "w1", "BootPrepared").get("reason") == "NotSupported")
        assert "spec.bootOptions.isoURL" in rig.condition(WORKFLOW, "w1", "BootPrepared")["message"]
    assert rig.bmc.resets == []


@virtual
async def test_nothing_of_a_secret_or_a_signed_url_is_written() -> None:
    rig = Rig(computer(), machine(), secret())
    rig.urls = Urls()
    async with running(rig, Machine(rig, netboots_by=("Cd",))):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    written = rig.everything_written()
    assert "iso/token" not in written
    assert rig.api.read(SECRET, "bmc-auth") is not None


@virtual
@pytest.mark.parametrize("cause", [Cause.UNREACHABLE, Cause.CREDENTIALS_REFUSED])
async def test_way_by_ipmi_that_fails_is_followed_by_the_next_one_by_redfish(cause: Cause) -> None:
    ipmi = Ipmi(*[BmcError(cause, "no IPMI")] * 99)
    bmc = FakeBmc(vendor="Supermicro", model="X10DRT-P", faults={Fault.NO_MODE}, post_seconds=20.0)
    rig = IpmiRig(bmc, ipmi, computer())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert boot(rig)["way"] == "pxe"
    assert reasons(rig).count(cause.value) >= 1
    assert (ipmi.sent, bmc.boots) == ([], ["Pxe"])
    assert ipmi.calls == 1 or cause is Cause.UNREACHABLE, "a refused login is not repeated"


@virtual
async def test_restart_that_needs_ipmi_is_done_by_redfish_without_it() -> None:
    ipmi = Ipmi(*[BmcError(Cause.UNREACHABLE, "no IPMI")] * 99)
    bmc = FakeBmc(vendor="Lenovo", model="ThinkSystem SR650 V4", power="On", post_seconds=20.0)
    rig = IpmiRig(bmc, ipmi, computer())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert (bmc.resets, bmc.boots) == (["ForceRestart"], ["Pxe"])


# --- changes in the middle of a boot ----------------------------------------------------------------------------------


def booted(rig: Rig, at: str = "2027-01-15T08:05:00.000Z", client: str = "Netboot") -> None:
    """Write a boot of the machine as an edge does."""
    rig.api.change(HARDWARE, "m1", status={"lastBoot": {"at": at, "client": client, "mac": MAC}})


def reason(rig: Rig, name: str = "w1") -> str:
    return str(rig.condition(WORKFLOW, name, "BootPrepared").get("reason"))


def finalizers(rig: Rig, name: str = "w1") -> list[str]:
    found: list[str] = (rig.api.read(WORKFLOW, name) or {"metadata": {}})["metadata"].get("finalizers") or []
    return found


def hold(rig: Rig, name: str, reason: str | None) -> None:
    rig.api.change(WORKFLOW, name, metadata={"annotations": {HOLD_ANNOTATION: reason} if reason else {}})


@virtual
async def test_cancelled_boot_ends_although_the_watch_of_workflows_is_slow() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=60.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: reason(rig) == "PoweringOff")
        rig.informers[WORKFLOW].hold()
        rig.api.change(WORKFLOW, "w1", status={"state": "Canceled"})
        await elapse(600)
        assert rig.bmc.resets == ["ForceOff"]
        rig.informers[WORKFLOW].release()
        await rig.until(lambda: not finalizers(rig))


@virtual
async def test_boot_of_a_deleted_workflow_does_not_prepare_the_new_one_of_the_same_name() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: reason(rig) == "WaitingForDiscover")
        rig.informers[WORKFLOW].hold()
        rig.api.remove(WORKFLOW, "w1")
        rig.api.put(workflow(options=NETBOOT))
        booted(rig)
        await elapse(10)
        assert not rig.condition(WORKFLOW, "w1", "BootPrepared")
        rig.informers[WORKFLOW].release()
        await rig.until(lambda: reason(rig) == "WaitingForDiscover")


@virtual
async def test_held_workflow_is_left_alone_until_the_hold_is_released() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=60.0))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: reason(rig) == "PoweringOff")
        hold(rig, "w1", "a person looks at the machine")
        await elapse(600)
        assert rig.bmc.resets == ["ForceOff"]
        hold(rig, "w1", None)
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_workflow_that_is_being_deleted_is_not_booted() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    obj = workflow(options=NETBOOT)
    obj["metadata"] |= {"finalizers": [BOOT_FINALIZER], "deletionTimestamp": "2027-01-15T08:00:00Z"}
    async with running(rig, Machine(rig)):
        rig.api.put(obj)
        await elapse(600)
    assert rig.bmc.resets == []


@virtual
async def test_discover_that_arrives_while_the_bmc_is_read_prepares_the_workflow() -> None:
    rig = Rig(computer(), machine(), secret())
    loop, open_client = asyncio.get_running_loop(), rig.client

    def client(*arguments: Any) -> Any:
        if loop.time() > 295:
            booted(rig)
        return open_client(*arguments)

    rig.client = client  # type: ignore[method-assign]
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    assert rig.bmc.resets == ["On"]


@virtual
async def test_boot_before_the_power_off_is_not_taken_for_the_one_after_it_if_the_watch_is_slow() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On", power_seconds=5.0))
    async with running(rig):
        rig.informers[HARDWARE].hold()
        booted(rig)
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: reason(rig) == "WaitingForDiscover")
        rig.informers[HARDWARE].release()
        await elapse(30)
        assert reason(rig) == "WaitingForDiscover"
        booted(rig, "2027-01-15T08:06:00.000Z")
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_cause_is_named_although_the_clock_was_set_back() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: reason(rig) == "WaitingForDiscover")
        rig.api.change(WORKFLOW, "w1", status={"boot": {**boot(rig), "since": "2031-01-01T00:00:00Z"}})
        await elapse(70)
        assert reason(rig) == "NoDiscover"


@virtual
async def test_template_of_a_url_gives_one_of_bounded_length() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options={"bootMode": "isoboot", "isoURL": 'http://x/{{ repeat 9999 "a" }}'}))
        await rig.until(lambda: reason(rig) == "NotSupported")
        assert "more than 2048 characters" in rig.condition(WORKFLOW, "w1", "BootPrepared")["message"]
    assert rig.bmc.resets == []


# --- several Workflows of one machine ---------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("other", [{"state": "Running"}, {"state": "Nonsense"}])
async def test_machine_of_a_workflow_that_another_api_may_run_is_not_switched_off(other: Raw) -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    obj = workflow("w0", **other)
    obj["metadata"]["annotations"] = {PAUSED_ANNOTATION: "moving"}
    async with running(rig, Machine(rig)):
        rig.api.put(obj)
        rig.api.put(workflow(options=NETBOOT))
        await elapse(600)
        assert reason(rig) == "OtherWorkflow"
    assert rig.bmc.resets == []


@virtual
async def test_workflow_that_a_server_claims_while_the_boot_begins_is_not_interrupted() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    async with running(rig, Machine(rig)):
        held = workflow(options=NETBOOT, creationVersion="1")  # the older one
        held["metadata"]["annotations"] = {HOLD_ANNOTATION: "not yet"}
        rig.api.put(held)
        rig.api.put(workflow("w2"))
        hold(rig, "w1", None)
        await rig.until(lambda: boot(rig).get("way"))
        rig.api.change(WORKFLOW, "w2", status={"state": "Scheduled"})
        await elapse(600)
        assert rig.bmc.resets == []
        assert reason(rig) == "OtherWorkflow"
        waiting = rig.api.read(WORKFLOW, "w1")
        assert waiting is not None
        assert not boot_begun(waiting)
        rig.api.change(WORKFLOW, "w2", status={"state": "Succeeded"})
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
@pytest.mark.parametrize("options", [None, NETBOOT])
async def test_boot_that_has_begun_is_finished_before_an_older_workflow_that_was_held(options: Raw | None) -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig):
        older = workflow("w0", options=options, creationVersion="1")
        older["metadata"]["annotations"] = {HOLD_ANNOTATION: "not yet"}
        rig.api.put(older)
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: reason(rig) == "WaitingForDiscover")
        resets = list(rig.bmc.resets)
        hold(rig, "w0", None)
        await elapse(30)
        booted(rig)
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        await elapse(100)
        assert rig.bmc.resets == resets  # the agent that boots now gets w1
        for state in ("Running", "Succeeded"):
            rig.api.change(WORKFLOW, "w1", status={"state": state})
        if options:
            await rig.until(lambda: reason(rig, "w0") == "WaitingForDiscover")


@virtual
async def test_older_workflow_that_is_never_prepared_does_not_hold_up_a_boot() -> None:
    rig = Rig(computer(), machine(), secret())
    obj = workflow("w0")
    del obj["status"]
    async with running(rig, Machine(rig)):
        rig.api.put(obj)
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


@virtual
async def test_boot_waits_for_the_workflow_of_another_hardware_with_the_same_machine() -> None:
    other = computer()
    other["metadata"]["name"] = "m2"
    other["spec"]["networkInterfaces"] = {"52:54:00:00:00:02": {}}
    rig = Rig(computer(), other, machine(), secret(), bmc=FakeBmc(power="On"))
    working = workflow("w0", state="Running")
    working["spec"]["hardwareRef"] = {"name": "m2"}
    async with running(rig, Machine(rig)):
        rig.api.put(working)
        rig.api.put(workflow(options=NETBOOT))
        await elapse(600)
        assert rig.bmc.resets == []
        rig.api.change(WORKFLOW, "w0", status={"state": "Succeeded"})
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")


# --- the end comes in time --------------------------------------------------------------------------------------------


@virtual
async def test_clean_up_is_given_up_after_an_hour_although_the_end_is_in_the_future() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        rig.hanging.add(HOST)
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed", "lastTransitioned": "2031-01-01T00:00:00Z"})
        await elapse(3000)
        assert finalizers(rig)
        await elapse(1500)
        assert not finalizers(rig)


@virtual
async def test_workflow_is_released_after_an_hour_although_the_hardware_can_not_be_changed() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options={"toggleAllowNetboot": True}))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        refused = ApiError(403, "Forbidden", "an admission webhook refuses it")
        rig.api.fail("patch", *[refused] * 9999, of=HARDWARE)
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed"})
        await elapse(3000)
        assert finalizers(rig)
        await elapse(1500)
        assert not finalizers(rig)


@virtual
async def test_post_actions_wait_while_another_workflow_runs_on_the_machine() -> None:
    rig = Rig(computer(), machine(), secret(), bmc=FakeBmc(power="On"))
    actions = [{"powerAction": "on"}]
    config = {"preparingActions": actions, "postActions": [{"powerAction": "off"}]}
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options={"bootMode": "customboot", "custombootConfig": config}))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        rig.api.put(workflow("w2", state="Running"))
        now = rfc3339(NOW + asyncio.get_running_loop().time())
        rig.api.change(WORKFLOW, "w1", status={"state": "Succeeded", "lastTransitioned": now})
        await elapse(300)
        assert rig.bmc.resets == []
        ended = rig.api.read(WORKFLOW, "w1")
        assert ended is not None
        assert has_post_actions(ended)  # the server sends nothing else
        rig.api.change(WORKFLOW, "w2", status={"state": "Succeeded"})
        await rig.until(lambda: not finalizers(rig))
    assert rig.bmc.resets == ["ForceOff"]


# --- another BMC meanwhile --------------------------------------------------------------------------------------------

OTHER_HOST = "192.0.2.11"
LEFT = {"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}


def name_machine(rig: Rig, name: str) -> None:
    rig.api.change(HARDWARE, "m1", spec={"bmcRef": {"name": name}})


def cleaned_up(rig: Rig) -> tuple[str, str, str]:
    found = rig.condition(WORKFLOW, "w1", "BootCleanedUp")
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


@virtual
async def test_clean_up_is_done_on_the_bmc_that_was_changed_whichever_the_hardware_names_then() -> None:
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT | {"toggleAllowNetboot": True}))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert boot(rig)["machine"] == "bmc1"
        rig.bmc.boot |= LEFT
        name_machine(rig, "bmc2")
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed"})
        await rig.until(lambda: not finalizers(rig))
        assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"
        assert cleaned_up(rig)[:2] == ("True", "CleanedUp")
        assert "netbooting is forbidden again" in cleaned_up(rig)[2]
    assert rig.bmcs[OTHER_HOST].resets == []


@virtual
async def test_clean_up_is_done_although_the_hardware_was_deleted() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        rig.bmc.boot |= LEFT
        await rig.api.delete(HARDWARE, "m1", "default")
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed"})
        await rig.until(lambda: not finalizers(rig))
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"


@virtual
async def test_workflow_is_released_with_the_reason_if_the_changed_machine_is_gone() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        await rig.api.delete(MACHINE, "bmc1", "default")
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed"})
        await rig.until(lambda: not finalizers(rig), within=60)
    assert cleaned_up(rig)[:2] == ("False", "NoBmc")
    assert "Machine default/bmc1 does not exist" in cleaned_up(rig)[2]


@virtual
async def test_boot_begins_again_with_the_machine_that_the_hardware_names_now() -> None:
    """An operator corrects bmcRef, because the DISCOVER does not arrive."""
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret(), bmc=FakeBmc(power="On"))
    rig.bmcs[OTHER_HOST] = FakeBmc(power="On")
    async with running(rig):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until(lambda: boot(rig).get("since"))
        rig.bmc.boot |= LEFT
        name_machine(rig, "bmc2")
        await rig.until(lambda: boot(rig).get("machine") == "bmc2" and boot(rig).get("since"))
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"
    assert rig.bmcs[OTHER_HOST].resets[:2] == ["ForceOff", "On"]
    assert boot(rig)["attempt"] == 1


@virtual
async def test_custom_actions_begin_again_on_the_bmc_that_the_hardware_names_now() -> None:
    rig = Rig(
        computer(), machine(), machine("bmc2", OTHER_HOST), secret(), bmc=FakeBmc(power="On", power_seconds=600.0)
    )
    rig.bmcs[OTHER_HOST] = FakeBmc(power="On")
    config = {
        "preparingActions": [{"bootDevice": {"device": "pxe", "efiBoot": True}}, {"powerAction": "off"}],
        "postActions": [{"powerAction": "on"}],
    }
    async with running(rig):
        rig.api.put(workflow(options={"bootMode": "customboot", "custombootConfig": config}))
        await rig.until(lambda: boot(rig).get("done") == 1)
        name_machine(rig, "bmc2")
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        assert boot(rig)["machine"] == "bmc2"
        other = rig.bmcs[OTHER_HOST]
        assert (other.boot["BootSourceOverrideTarget"], other.resets) == ("Pxe", ["ForceOff"])
    assert "On" not in rig.bmc.resets, "post actions are for the end"


@virtual
async def test_failing_clean_up_is_shown_while_it_is_repeated() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        rig.api.put(workflow(options=NETBOOT))
        await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
        rig.hanging.add(HOST)
        rig.api.change(WORKFLOW, "w1", status={"state": "Failed"})
        await rig.until(lambda: cleaned_up(rig)[:2] == ("False", "BmcUnreachable"))
        assert finalizers(rig)
        rig.hanging.clear()
        await rig.until(lambda: not finalizers(rig))


async def until_ended_and_failing(rig: Rig, cause: Cause, seconds: float) -> None:
    """Boot the machine, end its Workflow, and let its clean-up fail for some time."""
    rig.api.put(workflow(options=NETBOOT))
    await rig.until_condition(WORKFLOW, "w1", "BootPrepared")
    rig.bmc.boot |= LEFT
    if cause is Cause.UNREACHABLE:
        rig.hanging.add(HOST)
    else:
        rig.api.put(secret("wrong"))
        await elapse(30)  # the former password is no longer in memory
    now = rfc3339(NOW + asyncio.get_running_loop().time())
    rig.api.change(WORKFLOW, "w1", status={"state": "Failed", "lastTransitioned": now})
    await rig.until(lambda: cleaned_up(rig)[:2] == ("False", cause.value))
    await elapse(seconds)
    assert finalizers(rig)


@virtual
async def test_corrected_secret_is_used_for_a_failing_clean_up_within_a_minute() -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig)):
        await until_ended_and_failing(rig, Cause.CREDENTIALS_REFUSED, 800)
        rig.api.put(secret())
        await rig.until(lambda: not finalizers(rig), within=60)
    assert cleaned_up(rig)[0] == "True"
    assert rig.bmc.failed_logins == 1


@virtual
@pytest.mark.parametrize("seconds", [5, 60], ids=["during a try", "between two tries"])
async def test_corrected_machine_is_used_for_a_failing_clean_up_at_once(seconds: int) -> None:
    rig = Rig(computer(), machine(), secret())
    async with running(rig, Machine(rig), poll_interval=100_000.0):
        await until_ended_and_failing(rig, Cause.UNREACHABLE, 1000)
        tries = len(rig.tried)
        await rig.until(lambda: len(rig.tried) > tries)
        await elapse(seconds)
        rig.bmcs[OTHER_HOST] = rig.bmc
        rig.api.put(machine(host=OTHER_HOST))
        await rig.until(lambda: not finalizers(rig), within=35)
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"


def former(rig: Rig) -> list[str]:
    """The Machines whose BMCs are not cleaned up yet after a correction of bmcRef."""
    return [each["machine"] for each in boot(rig).get("former", ())]


async def until_corrected(rig: Rig) -> None:
    """Begin a boot, and name another Machine in the Hardware while the BMC of the former one does not answer."""
    rig.bmcs[OTHER_HOST] = FakeBmc(power="On")
    rig.api.put(workflow(options=NETBOOT))
    await rig.until(lambda: boot(rig).get("since"))
    rig.bmc.boot |= LEFT
    rig.hanging.add(HOST)
    name_machine(rig, "bmc2")
    await rig.until(lambda: boot(rig).get("machine") == "bmc2" and boot(rig).get("since"))
    assert former(rig) == ["bmc1"]


@virtual
async def test_former_bmc_is_cleaned_up_as_soon_as_it_answers_while_the_boot_goes_on() -> None:
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig):
        await until_corrected(rig)
        await elapse(600)
        resets = list(rig.bmcs[OTHER_HOST].resets)
        rig.hanging.clear()
        await rig.until(lambda: not former(rig), within=301)
        assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"
        assert rig.bmcs[OTHER_HOST].resets[: len(resets)] == resets
        assert rig.bmc.resets == ["On"]


@virtual
async def test_former_bmc_is_cleaned_up_after_a_restart_and_after_the_end_of_the_workflow() -> None:
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig):
        await until_corrected(rig)
        rig.api.change(WORKFLOW, "w1", status={"state": "Canceled"})
        await elapse(120)
        assert finalizers(rig)
    async with running(rig):
        await elapse(120)
        assert finalizers(rig)
        rig.hanging.clear()
        await rig.until(lambda: not finalizers(rig), within=301)
        assert rig.manager.remembered_boots == 0
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"
    assert not former(rig)


@virtual
async def test_corrected_machine_is_used_for_the_clean_up_of_a_former_bmc() -> None:
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig):
        await until_corrected(rig)
        await elapse(1000)
        rig.bmcs["192.0.2.12"] = rig.bmc
        rig.api.put(machine(host="192.0.2.12"))
        await rig.until(lambda: not former(rig), within=35)
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"


@virtual
async def test_clean_up_of_a_former_bmc_is_given_up_after_an_hour() -> None:
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig):
        await until_corrected(rig)
        await elapse(3400)
        assert former(rig) == ["bmc1"]
        await elapse(700)
        assert not former(rig)
        rig.api.change(WORKFLOW, "w1", status={"state": "Canceled"})
        await rig.until(lambda: not finalizers(rig), within=60)


@virtual
async def test_machine_that_the_hardware_names_again_is_no_former_one_any_more() -> None:
    rig = Rig(computer(), machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig):
        await until_corrected(rig)
        name_machine(rig, "bmc1")
        await rig.until(lambda: boot(rig).get("machine") is None)
        assert not former(rig)
        rig.hanging.clear()
        await rig.until(lambda: boot(rig).get("machine") == "bmc1" and boot(rig).get("since"))
        assert rig.bmc.boots[-1] == "Pxe"


@virtual
async def test_former_bmc_is_left_alone_while_the_workflow_of_another_hardware_uses_it() -> None:
    other = computer()
    other["metadata"]["name"] = "m2"
    other["spec"]["networkInterfaces"] = {"52:54:00:00:00:02": {}}
    rig = Rig(computer(), other, machine(), machine("bmc2", OTHER_HOST), secret())
    async with running(rig):
        await until_corrected(rig)
        working = workflow("w2", state="Running")
        working["spec"]["hardwareRef"] = {"name": "m2"}
        rig.api.put(working)
        rig.hanging.clear()
        await elapse(700)
        assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Once"
        rig.api.change(WORKFLOW, "w2", status={"state": "Succeeded"})
        await rig.until(lambda: not former(rig), within=301)
    assert rig.bmc.boot["BootSourceOverrideEnabled"] == "Disabled"


@virtual
async def test_clean_up_of_a_former_bmc_that_waits_for_a_boot_by_it_does_not_undo_that_boot() -> None:
    other = computer()
    other["metadata"]["name"] = "m2"
    other["spec"]["networkInterfaces"] = {"52:54:00:00:00:02": {}}
    rig = Rig(computer(), other, machine(), machine("bmc2", OTHER_HOST), secret(), bmc=FakeBmc(post_seconds=200.0))
    async with running(rig, poll_interval=100_000.0):
        await until_corrected(rig)
        rig.bmc.power, rig.seconds = "Off", 1.0
        rig.hanging.clear()
        tries = len(rig.tried)
        second = workflow("w2", options=NETBOOT)
        second["spec"]["hardwareRef"] = {"name": "m2"}
        rig.api.put(second)
        await rig.until(lambda: HOST in [host for _, _, host in rig.tried[tries:]])
        rig.api.change(MACHINE, "bmc1", metadata={"annotations": {"site": "changed"}})  # the clean-up is tried now
        await rig.until(lambda: reason(rig, "w2") == "WaitingForDiscover")
        await elapse(300)
        rig.bmc.run_until(asyncio.get_running_loop().time())
    assert rig.bmc.boots[-1] == "Pxe"
