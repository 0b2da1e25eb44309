"""The table of quirks: which rows apply to a BMC, the comparison of firmware versions, and operations by IPMI."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bmc import CREDENTIALS, USER, FakeBmc, Fault, serve
from tests.unit.bmc.rig import HOST, PXE, Ipmi, IpmiRig, Rig, job, machine, power, secret
from tink.api.v1alpha2 import PowerState
from tink.bmc.connections import BmcConnections, bmc_of
from tink.bmc.credentials import LoginMemory
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    Boot,
    BootDevice,
    BootMode,
    Cause,
    ClearedBoot,
    Identity,
    Observation,
    PowerAction,
    Reset,
    ResetType,
    SetBoot,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.quirks import QUIRKS, Handler, Quirks, in_range, needs_ipmi, quirks_for, row, rows_for, version_of
from tink.bmc.redfish import RedfishClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, JOB, MACHINE

virtual = pytest.mark.looptime(start=0)

SWITCHES = {field.name for field in fields(Quirks)} - {"rows"}


def test_the_table_has_all_numbers_in_order() -> None:
    assert [each.number for each in QUIRKS] == list(range(1, 54))


def test_rows_are_complete_and_plain() -> None:
    for each in QUIRKS:
        assert each.symptom, each.number
        assert each.remedy, each.number
        assert each.source, each.number
        assert not (each.symptom + each.remedy).endswith("."), each.number
        assert not each.sets.rows
        assert each.vendors or each.sets == Quirks(), f"row {each.number} is for all BMCs, and sets a switch"
        for text in (*each.vendors, *each.models, *each.except_models):
            assert text == text.lower(), "names are compared in lower case"


def test_each_switch_is_set_by_a_row_or_waits_for_one() -> None:
    default = Quirks()
    used = {name for name in SWITCHES for each in QUIRKS if getattr(each.sets, name) != getattr(default, name)}
    # No source names the BMC of quirk 50.
    assert SWITCHES - used == {"connection_close"}


def test_rows_of_the_client_set_nothing_for_the_decision() -> None:
    for each in QUIRKS:
        if each.handled_by in (Handler.REDFISH, Handler.INVENTORY, Handler.CONNECTIONS):
            assert each.sets == Quirks(), each.number


@pytest.mark.parametrize(
    ("identity", "numbers"),
    [
        (Identity("Supermicro", "AS-1015CS-TNR-EU"), {1, 2, 3, 12, 14, 37}),
        (Identity("Super Micro Computer Inc.", "X10DRT-P"), {2, 3, 11, 12, 14, 37}),
        (Identity("Supermicro", "ARS-111GL-NHR"), {2, 3, 14, 37}),
        (Identity("Supermicro", "X11DSC+"), {2, 3, 12, 14, 15, 37}),
        (Identity("Dell Inc.", "PowerEdge R640", "3.32.32.32"), {4, 5, 16, 18, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R640", "4.00.00.00"), {4, 5, 18, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R730xd", "2.83"), {4, 5, 17, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R650", "5.10.10.05"), {4, 5, 18, 19, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R650", "5.10.30.00"), {4, 5, 18, 23, 29, 31, 32, 35}),
        (Identity("Dell Inc.", "PowerEdge R670"), {4, 5, 20, 21, 23, 29, 31, 32, 34, 35}),
        (Identity("HPE", "ProLiant DL380 Gen10 Plus", "iLO 5 v2.30"), {7, 8, 9, 10, 39, 48}),
        (Identity("HPE", "ProLiant DL380 Gen11"), {8, 9, 10, 39}),
        (Identity("Hewlett Packard Enterprise", "ProLiant DL160 Gen9"), {7, 8, 9, 10, 39}),
        (Identity("Lenovo", "ThinkSystem SR630 V2"), {24, 25, 26, 27, 30, 38, 51, 52}),
        (Identity("Lenovo", "ThinkSystem SR650 V4"), {24, 25, 26, 27, 30, 45, 51, 52}),
        (Identity("ASRockRack", "X570D4U"), {6, 22, 26}),
        (Identity("GIGABYTE", "R292-4S0"), {6, 22, 26, 28}),
        (Identity("IBM", "9105-22A"), {28, 43, 44}),
        (Identity("Contoso", "3500"), set()),
        (Identity(), set()),
    ],
)
def test_rows_apply_by_vendor_model_and_firmware(identity: Identity, numbers: set[int]) -> None:
    assert {each.number for each in rows_for(identity)} == numbers
    assert quirks_for(identity).rows == tuple(sorted(numbers))


def test_switches_of_all_rows_are_set_together() -> None:
    quirks = quirks_for(Identity("Supermicro", "X10DRT-P"))
    assert quirks == Quirks(
        rows=(2, 3, 11, 12, 14, 37), mode_required=True, enabled_required=True, uefi_boot_by_ipmi=True,
        cd_target="UsbCd", insert_image_alone=True,
    )  # fmt: skip
    assert quirks_for(Identity("Contoso")) == Quirks()


def test_vendor_is_compared_by_words() -> None:
    assert rows_for(Identity("Dellwood Computers")) == []
    assert rows_for(Identity("Miami Systems")) == []


def test_row_of_an_unknown_number_is_an_error() -> None:
    assert row(24).number == 24
    with pytest.raises(KeyError):
        row(54)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.32.32.32", (3, 32, 32, 32)),
        ("iLO 5 v2.30", (2, 30)),
        ("XCC CDI3A4E 1.89", (1, 89)),
        ("1.45.455b66-rev4", (1, 45, 455)),
        ("build 7", (7,)),
        ("", ()),
        ("unknown", ()),
        ("1." * 30, (1,) * 8),
        ("²³.٣", ()),
        ("9" * 64, (999_999_999,)),
    ],
)
def test_version_is_the_first_dotted_number(text: str, version: tuple[int, ...]) -> None:
    assert version_of(text) == version


@pytest.mark.parametrize(
    ("firmware", "since", "until", "expected"),
    [
        ("3.32.32.32", "3.21", "3.32", True),
        ("3.21", "3.21", "3.32", True),
        ("3.20.99", "3.21", "3.32", False),
        ("3.33", "3.21", "3.32", False),
        ("10.1", "9.2", "", True),
        ("3.2", "3.10", "", False),
        ("3", "3.0", "3.0", True),
        ("", "", "", True),
        ("", "1", "", False),
        ("unknown", "", "9", False),
    ],
)
def test_firmware_ranges_include_their_bounds(firmware: str, since: str, until: str, expected: bool) -> None:
    assert in_range(firmware, since, until) is expected


@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_no_identity_is_an_error(vendor: str, model: str, firmware: str) -> None:
    for name in (vendor, "Dell Inc.", "Supermicro", "Lenovo"):
        assert quirks_for(Identity(name, model, firmware)) is not None
    in_range(firmware, vendor, model)


# --- operations whose remedy is IPMI, although Redfish works ----------------------------------------------------------

X10 = Identity("Supermicro", "X10DRT-P", redfish="1.0")
SR650 = Identity("Lenovo", "ThinkSystem SR650 V4", redfish="1.15")
MODELESS = Boot("None", "Disabled")
UEFI_PXE = WantedBoot(BootDevice.PXE, mode=BootMode.UEFI)
RESET, CYCLE = WantedPower(PowerAction.RESET), WantedPower(PowerAction.CYCLE)


@pytest.mark.parametrize(
    ("wanted", "identity", "boot", "expected"),
    [
        (UEFI_PXE, X10, MODELESS, True),
        (UEFI_PXE, X10, replace(MODELESS, mode="UEFI"), False),
        (WantedBoot(BootDevice.PXE), X10, MODELESS, False),
        (WantedBoot(BootDevice.PXE, mode=BootMode.LEGACY), X10, MODELESS, False),
        (replace(UEFI_PXE, device=BootDevice.HTTP), X10, MODELESS, False),
        (UEFI_PXE, replace(X10, redfish=""), MODELESS, False),
        (UEFI_PXE, Identity("Contoso", redfish="1.15"), MODELESS, False),
        (UEFI_PXE, Identity("IBM", redfish="1.15"), None, True),
        (WantedBoot(BootDevice.DISK), Identity("Contoso", redfish="1.15"), Boot(), True),
        (RESET, SR650, None, True),
        (CYCLE, SR650, None, False),
        (RESET, replace(SR650, redfish=""), None, False),
        (RESET, replace(SR650, model="ThinkSystem SR650 V3"), None, False),
        (ClearedBoot(), Identity("IBM", redfish="1.15"), None, False),
        (WantedMedium("CD"), SR650, None, False),
    ],
)
def test_ipmi_is_needed_by_model_and_by_what_redfish_lacks(
    wanted: Wanted, identity: Identity, boot: Boot | None, expected: bool
) -> None:
    assert needs_ipmi(wanted, Observation(PowerState.ON, boot, identity=identity)) is expected


def supermicro_x10() -> FakeBmc:
    return FakeBmc(vendor="Supermicro", model="X10DRT-P", faults={Fault.NO_MODE})


@virtual
async def test_quirk_11_task_sets_the_boot_device_by_ipmi() -> None:
    rig = IpmiRig(supermicro_x10(), Ipmi())
    async with rig.running():
        done = await rig.end_of("j", PXE)
    assert rig.ipmi.sent == [SetBoot("Pxe", "Once", "UEFI")]
    assert done["message"] == "by IPMI: the BMC reports boot target Pxe, enabled Once, mode UEFI"
    assert not [write for write in rig.bmc.writes() if write[0] == "PATCH"]
    assert rig.bmc.failed_logins == 0


@virtual
async def test_quirk_45_task_resets_by_ipmi() -> None:
    rig = IpmiRig(FakeBmc(vendor="Lenovo", model="ThinkSystem SR650 V4", power="On"), Ipmi())
    async with rig.running():
        done = await rig.end_of("j", power("reset"))
    assert (rig.ipmi.sent, rig.bmc.resets) == ([Reset(ResetType.FORCE_RESTART)], [])
    assert done["message"].startswith("by IPMI: the BMC accepted Reset ForceRestart and reports On")


@virtual
async def test_other_tasks_of_such_a_bmc_use_redfish() -> None:
    rig = IpmiRig(supermicro_x10(), Ipmi())
    async with rig.running():
        await rig.end_of("on", power("on"))
        await rig.end_of("disk", {"bootDevice": {"device": "disk"}})
    assert (rig.ipmi.calls, rig.bmc.resets) == (0, ["On"])


@virtual
async def test_machine_without_ipmi_among_its_protocols_never_uses_it() -> None:
    rig = IpmiRig(supermicro_x10(), Ipmi(), providerOptions={"preferredOrder": ["gofish"]})
    async with rig.running():
        failed = await rig.end_of("j", PXE, "Failed")
    assert (rig.ipmi.calls, failed["reason"]) == (0, "NotSupported")
    assert (
        "set the boot device by IPMI; by IPMI: this needs IPMI, and providerOptions.preferredOrder" in failed["message"]
    )


@virtual
async def test_reset_is_done_by_redfish_if_ipmi_does_not_answer() -> None:
    ipmi = Ipmi(BmcError(Cause.UNREACHABLE, "no answer on port 623"))
    rig = IpmiRig(FakeBmc(vendor="Lenovo", model="ThinkSystem SR650 V4", power="On"), ipmi)
    async with rig.running():
        done = await rig.end_of("j", power("reset"))
    assert (ipmi.sent, ipmi.calls, rig.bmc.resets) == ([], 1, ["ForceRestart"])
    assert done["message"].endswith("; by Redfish, because IPMI can't be used: no answer on port 623")


@virtual
async def test_busy_ipmi_is_waited_for() -> None:
    rig = IpmiRig(supermicro_x10(), Ipmi(*[BmcError(Cause.BUSY, "no session left")] * 3))
    async with rig.running():
        await rig.end_of("j", PXE)
    assert rig.ipmi.sent == [SetBoot("Pxe", "Once", "UEFI")]


@virtual
async def test_login_refused_by_ipmi_is_not_repeated_and_redfish_goes_on() -> None:
    refusal = BmcError(Cause.CREDENTIALS_REFUSED, "the password in the Secret is wrong for IPMI")
    rig = IpmiRig(supermicro_x10(), Ipmi(*[refusal] * 9))
    async with rig.running():
        failed = await rig.end_of("first", PXE, "Failed")
        again = await rig.end_of("second", PXE, "Failed")
        assert rig.ipmi.calls == 1
        assert failed["message"] == again["message"]
        assert failed["message"].endswith(
            "by IPMI: the password in the Secret is wrong for IPMI. "
            "The next login by IPMI is tried when Secret default/bmc-auth changes, or the Machine's annotation "
            "tinkerbell.org/retry-login gets a new value"
        )
        await rig.end_of("on", power("on"))
    async with rig.running():
        after_restart = await rig.end_of("after-restart", PXE, "Failed")
        assert "IPMI: the BMC 192.0.2.10 has refused the user or the password" in after_restart["message"]
        rig.hanging.add(HOST)  # Redfish no longer answers: IPMI would be next
        lost = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert rig.ipmi.calls == 1
        assert lost["reason"] == "BmcUnreachable"
        assert "The next login by IPMI is tried when" in lost["message"]
        rig.hanging.clear()
        rig.api.put(secret("changed"))
        rig.ipmi.errors.clear()
        rig.bmc.accounts = {USER: "changed"}
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        await rig.end_of("third", PXE)


@virtual
async def test_login_refused_by_redfish_is_not_tried_by_ipmi() -> None:
    ipmi, logins = Ipmi(), LoginMemory()
    connections = BmcConnections(logins, clients={"ipmi": lambda *_: ipmi})
    credentials = BmcCredentials("u", "p", "v")
    async with connections.open(NamespacedName("default", "m"), BmcConnection(HOST), credentials) as session:
        client = session.by_ipmi()
        assert (await client.observe()).power is PowerState.ON
        logins.refuse(bmc_of(BmcConnection(HOST)), credentials, "wrong password", "redfish")
        with pytest.raises(BmcError, match="wrong password"):
            await client.send(Reset(ResetType.ON))
    assert ipmi.calls == 1


# --- rows whose remedy is in the Redfish client -----------------------------------------------------------------------

DELL, HPE = {"vendor": "Dell Inc.", "model": "PowerEdge R660"}, {"vendor": "HPE", "model": "ProLiant DL380 Gen10 Plus"}
LENOVO, GIGABYTE = {"vendor": "Lenovo", "model": "ThinkSystem SR655"}, {"vendor": "GIGABYTE", "model": "R292-4S0"}


@virtual
@pytest.mark.parametrize(
    ("number", "identity", "faults"),
    [
        (26, LENOVO, {Fault.ETAG_REQUIRED}),
        (27, LENOVO, {Fault.ETAG_REFUSED}),
        (28, GIGABYTE, {Fault.ETAG_WEAK}),
        (28, GIGABYTE, {Fault.ETAG_EMPTY}),
        (28, {"vendor": "OpenBMC"}, {Fault.ETAG_WEAK, Fault.ETAG_REQUIRED}),
        (30, LENOVO, {Fault.TASKS, Fault.TASK_MONITOR_DELETES}),
        (30, LENOVO, {Fault.TASKS, Fault.TASK_MONITOR_ONLY, Fault.TASK_MONITOR_DELETES}),
        (31, DELL, {Fault.STORM_503}),
        (31, DELL, {Fault.SYS518}),
        (32, DELL, {Fault.TASKS, Fault.TASK_404_FIRST}),
        (39, HPE, {Fault.EJECT_BODY_REQUIRED}),
        (42, {"vendor": "Huawei", "model": "1288H"}, {Fault.NO_MANAGED_BY}),
        (49, {}, {Fault.TRAILING_SLASH}),
        (49, {}, {Fault.REDIRECT_SAME}),
    ],
)
async def test_job_reaches_its_effect_in_spite_of_a_fault_of_the_service(
    number: int, identity: dict[str, str], faults: set[Fault]
) -> None:
    bmc = FakeBmc(**identity, faults=faults, fault_seconds=120.0)
    known = Identity(identity.get("vendor", ""), identity.get("model", ""), redfish="1.15")
    assert number in {each.number for each in rows_for(known)} or not row(number).vendors
    rig = Rig(machine(), secret(), bmc=bmc)
    url = "http://192.0.2.1/boot.iso"
    insert, eject = ({"virtualMediaAction": {"kind": "CD", "mediaURL": each}} for each in (url, ""))
    async with rig.running():
        rig.api.put(job("j", PXE, insert, eject, power("on")))
        await rig.until_condition(JOB, "j", "Completed")
        await rig.until(lambda: bmc.boots == ["Pxe"])
    assert not any(slot.inserted for slot in bmc.slots)
    assert [body["Image"] for _, _, body in bmc.writes() if "Image" in body] == [url]
    assert (bmc.failed_logins, bmc.open_sessions) == (0, 0)


@virtual
async def test_quirk_29_bmc_without_a_free_session_is_waited_for_and_its_503_is_no_refused_password() -> None:
    bmc = FakeBmc(**DELL, faults={Fault.LIMIT_REACHED})
    rig = Rig(machine(), secret(), bmc=bmc)
    async with rig.running():
        rig.api.put(job("j", power("on")))
        busy = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert busy["reason"] == "BmcBusy"
        bmc.faults.clear()
        await rig.until_condition(JOB, "j", "Completed")
    assert (bmc.failed_logins, bmc.open_sessions, bmc.power) == (0, 0, "On")


@virtual
async def test_quirk_33_account_that_a_failed_login_locks_gets_one_until_the_secret_changes() -> None:
    bmc = FakeBmc(faults={Fault.LOCK_OUT})
    rig = Rig(machine(), secret("mistyped"), bmc=bmc)
    async with rig.running(secret_interval=60.0):
        rig.api.put(job("j", power("on")))
        await rig.until_condition(JOB, "j", "Failed")
        refused = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert refused["reason"] == "CredentialsRefused"
        bmc.locked.clear()
        rig.api.put(secret())
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
    assert bmc.failed_logins == 1


async def test_quirk_48_request_over_https_accepts_gzip() -> None:
    async with serve(FakeBmc(**HPE, faults={Fault.GZIP_REQUIRED})) as served:
        async with RedfishClient(served.connection(), CREDENTIALS) as client:
            assert (await client.observe()).power == "off"
        assert 48 in {each.number for each in rows_for(Identity(**HPE))}


@virtual
async def test_quirk_53_part_that_is_not_served_leaves_the_rest_of_the_inventory() -> None:
    bmc = FakeBmc(vendor="NVIDIA", model="BlueField-3 DPU", faults={Fault.ETHERNET_404})
    about = {"metadata": {"name": "dpu", "namespace": "default"}, "spec": {"bmcRef": {"name": "bmc1"}}}
    about |= {"apiVersion": HARDWARE.api_version, "kind": HARDWARE.kind}
    rig = Rig(machine(), secret(), about, bmc=bmc)
    async with rig.running():
        found = await rig.until(
            lambda: (rig.api.read(HARDWARE, "dpu") or {}).get("status", {}).get("inventory", {}).get("outOfBand")
        )
    assert found["product"]["serialNumber"] == bmc.serial
    assert {"memory", "cpu", "bios"} <= set(found)


# --- a test for each row ----------------------------------------------------------------------------------------------

BY_ANOTHER_NAME = {
    15: "test_board_that_ignores_bootdev_gets_the_bytes_and_its_answer_counts",
    18: "test_machine_that_boots_its_disk_is_reported_as_override_lost",
    25: "test_clean_up_undoes_what_the_ladder_has_left_and_nothing_else",
    36: "test_cd_is_inserted_between_off_and_on_after_an_ejection",
    44: "test_sentence_about_a_missing_packet_has_the_report_then_the_causes",
    46: "test_boot_flags_are_set_by_name_or_by_their_bytes_after_the_60_seconds_are_lifted",
    47: "test_boot_flags_are_set_by_name_or_by_their_bytes_after_the_60_seconds_are_lifted",
    50: "test_kept_connection_that_breaks_is_not_kept_again",
    51: "test_inventory_of_lenovo_has_the_mac_of_the_adapters_port",
    52: "test_placeholder_is_no_serial_number",
} | dict.fromkeys(
    (26, 27, 28, 30, 31, 32, 39, 42, 49), "test_job_reaches_its_effect_in_spite_of_a_fault_of_the_service"
)
WITHOUT = {
    13: "FixedBootOrder is an attribute of one vendor's firmware; tinkedge writes no firmware settings",
    14: "the lockdown is a property of one vendor, and ends in its licensed tools alone",
}
"""Rows that tinkedge can only name to the operator."""


def test_each_row_has_a_test_or_the_reason_why_it_has_none() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = set(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))
    numbered = {int(number) for name in names for number in re.findall(r"_quirk_(\d+)_", name)}
    assert set(BY_ANOTHER_NAME.values()) <= names
    assert numbered | set(BY_ANOTHER_NAME) | set(WITHOUT) == {each.number for each in QUIRKS}
    assert not (numbered | set(BY_ANOTHER_NAME)) & set(WITHOUT)
