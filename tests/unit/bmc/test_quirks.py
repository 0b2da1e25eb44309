"""The table of quirks: which rows apply to a BMC, the comparison of firmware versions, and operations by IPMI."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bmc import USER, FakeBmc, Fault
from tests.unit.bmc.rig import HOST, PXE, Ipmi, IpmiRig, power, secret
from tink.api.v1alpha2 import PowerState
from tink.bmc.connections import BmcConnections, bmc_of
from tink.bmc.credentials import RefusedLogins
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
from tink.kube.objects import NamespacedName
from tink.kube.resources import MACHINE

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
            "The next login by IPMI is tried when Secret default/bmc-auth changes"
        )
        await rig.end_of("on", power("on"))
        rig.hanging.add(HOST)  # Redfish no longer answers: IPMI would be next
        lost = await rig.until_condition(MACHINE, "bmc1", "Contactable", "False")
        assert rig.ipmi.calls == 1
        assert lost["reason"] == "BmcUnreachable"
        assert "wrong for IPMI" in lost["message"]
        rig.hanging.clear()
        rig.api.put(secret("changed"))
        rig.ipmi.errors.clear()
        rig.bmc.accounts = {USER: "changed"}
        await rig.until_condition(MACHINE, "bmc1", "Contactable")
        await rig.end_of("third", PXE)


@virtual
async def test_login_refused_by_redfish_is_not_tried_by_ipmi() -> None:
    ipmi, refused = Ipmi(), RefusedLogins()
    connections = BmcConnections(refused, clients={"ipmi": lambda *_: ipmi})
    credentials = BmcCredentials("u", "p", "v")
    async with connections.open(NamespacedName("default", "m"), BmcConnection(HOST), credentials) as session:
        client = session.by_ipmi()
        assert (await client.observe()).power is PowerState.ON
        refused.add(bmc_of(BmcConnection(HOST)), credentials, "wrong password")
        with pytest.raises(BmcError, match="wrong password"):
            await client.send(Reset(ResetType.ON))
    assert ipmi.calls == 1
