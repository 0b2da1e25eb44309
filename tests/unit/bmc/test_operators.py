"""`tinkedge power` and `tinkedge bmc check`: the Job, its outcome, and the table about a BMC."""

from __future__ import annotations

import pytest

from tests.support.bmc import PASSWORD, USER, FakeBmc, Fault
from tests.support.objects import hardware
from tests.support.virtual_time import elapse
from tests.unit.bmc.rig import HOST, Rig, machine, secret
from tink.bmc.model import PowerAction
from tink.bmc.operators import PowerError, Verdict, change_power, check, find_machine, power_status
from tink.kube.resources import JOB, MACHINE, SECRET

virtual = pytest.mark.looptime


async def power(rig: Rig, action: PowerAction, *, seconds: float = 900.0) -> tuple[str, list[str]]:
    shown: list[str] = []
    found = await find_machine(rig.api, "m1", "default")  # type: ignore[arg-type]
    done = await change_power(rig.api, found, "m1", action, seconds=seconds, progress=shown.append)  # type: ignore[arg-type]
    return done, shown


@virtual
async def test_power_of_a_hardware_waits_for_the_effect_and_its_job_is_deleted_later() -> None:
    rig = Rig(machine(), secret(), hardware(bmcRef={"name": "bmc1"}), bmc=FakeBmc(power_seconds=10.0))
    async with rig.running():
        done, shown = await power(rig, PowerAction.ON)
        assert "On" in done or "on" in done
        assert rig.bmc.power == "On"
        assert shown[0].startswith("Job default/power-m1-")
        assert "running" in shown
        done, shown = await power(rig, PowerAction.CYCLE)
        assert any(each.startswith("running, off is done") for each in shown)
        assert rig.bmc.power == "On"
        assert len(rig.api.objects(JOB)) == 2
        await elapse(3700)
        assert rig.api.objects(JOB) == []
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        assert power_status(rig.api.read(MACHINE, "bmc1") or {}) == "on"


@virtual
async def test_power_names_the_cause_of_a_failure_and_a_control_that_does_not_run() -> None:
    rig = Rig(machine(), secret("wrong"), hardware(bmcRef={"name": "bmc1"}))
    with pytest.raises(PowerError, match="no BMC control has taken the Job") as raised:
        await power(rig, PowerAction.ON, seconds=60)
    assert "It goes on" in str(raised.value)
    async with rig.running():
        with pytest.raises(PowerError, match="CredentialsRefused"):
            await power(rig, PowerAction.ON)
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        with pytest.raises(PowerError, match="unknown: CredentialsRefused"):
            power_status(rig.api.read(MACHINE, "bmc1") or {})
    assert rig.bmc.failed_logins == 1


@virtual
@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([], "there is no Hardware and no Machine m1 in namespace default"),
        ([hardware()], "refers to no Machine: set spec.bmcRef.name"),
        ([hardware(bmcRef={"name": "gone"})], r"refers to Machine gone \(spec.bmcRef\), which does not exist"),
    ],
)
async def test_machine_that_can_not_be_found_is_named_with_the_remedy(objects: list[object], message: str) -> None:
    rig = Rig(*objects)  # type: ignore[arg-type]
    with pytest.raises(PowerError, match=message):
        await find_machine(rig.api, "m1", "default")  # type: ignore[arg-type]


async def table(rig: Rig, *, again: bool = False) -> dict[str, tuple[Verdict, str]]:
    found = rig.api.read(MACHINE, "bmc1") or {}
    clients = {"redfish": rig.client, "ipmi": rig.ipmi_client}
    findings = await check(rig.api, found, again=again, clients=clients)  # type: ignore[arg-type]
    assert PASSWORD not in str(findings)
    return {each.subject: (each.verdict, each.text) for each in findings}


@virtual
async def test_check_reads_every_part_of_a_bmc_and_changes_nothing() -> None:
    bmc = FakeBmc(vendor="Dell Inc.", model="PowerEdge R650", firmware="5.10.10.05", power="On")
    rig = Rig(machine(), secret(), bmc=bmc)
    found = await table(rig)
    assert found["reachable"] == (Verdict.OK, "by Redfish")
    assert found["login"] == (Verdict.OK, "accepted")
    assert found["certificate"][0] is Verdict.WARNING
    assert found["power"][1].startswith("on; resets: On, ForceOff")
    assert found["boot device"] == (
        Verdict.OK,
        "None, Disabled, UEFI; can be set: None, Pxe, Cd, Hdd, BiosSetup, Diags, Utilities",
    )
    assert found["virtual media"][1] == "CD (CD, DVD), USB (USBStick, Floppy)"
    assert "Dell Inc. PowerEdge R650, BMC 5.10.10.05" in found["firmware"][1]
    assert found["quirk 19"][0] is Verdict.WARNING
    assert "update the iDRAC to 5.10.30" in found["quirk 19"][1]
    assert bmc.writes() == []
    assert bmc.open_sessions == 0


@virtual
async def test_check_of_a_refused_login_tries_it_once_more_only_if_asked() -> None:
    rig = Rig(machine(), secret("wrong"))
    async with rig.running():
        await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        await elapse(1)
    for again, logins in ((False, 1), (False, 1), (True, 2)):
        found = await table(rig, again=again)
        assert found["login"][0] is Verdict.FAILED
        assert rig.bmc.failed_logins == logins
    rig.bmc.accounts = {USER: "wrong"}
    assert (await table(rig, again=True))["login"] == (
        Verdict.OK,
        "accepted; tinkedge itself logs in again after: kubectl annotate --overwrite -n default "
        'machines.bmc.tinkerbell.org/bmc1 tinkerbell.org/retry-login="$(date)"',
    )
    assert rig.bmc.failed_logins == 2


@virtual
async def test_check_does_not_try_a_login_whose_result_is_unknown() -> None:
    rig = Rig(machine(), secret())
    version = (rig.api.read(SECRET, "bmc-auth") or {})["metadata"]["resourceVersion"]
    begun = {"version": f"{HOST}:443:623 default/bmc-auth@{version}", "redfish": "Begun"}
    rig.api.change(MACHINE, "bmc1", status={"login": begun})
    found = await table(rig)
    assert found["reachable"] == (Verdict.UNKNOWN, "not tried")
    assert found["login"][0] is Verdict.FAILED
    assert "does not know the result" in found["login"][1]
    assert rig.tried == []


@virtual
async def test_check_names_a_host_that_does_not_answer_and_a_bmc_without_a_boot_override() -> None:
    rig = Rig(machine(), secret(), bmc=FakeBmc(faults=[Fault.NO_BOOT_OVERRIDE]))
    assert (await table(rig))["boot device"][0] is Verdict.FAILED
    rig.hanging.add(HOST)
    found = await table(rig)
    assert found["reachable"] == (Verdict.FAILED, "no answer within 30 s; ipmitool is not installed")
    assert found["login"][0] is Verdict.UNKNOWN


@virtual
async def test_check_names_settings_that_can_not_work_without_a_connection() -> None:
    rig = Rig(machine(providerOptions={"preferredOrder": ["IntelAMT"]}), secret())
    found = await table(rig)
    assert list(found) == ["settings"]
    assert "IntelAMT" in found["settings"][1]
    assert rig.tried == []
