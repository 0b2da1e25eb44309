"""Operations on a fake BMC that behaves as a known one: the effect is there, or the sentence is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.bmc import (
    CONNECTION,
    CREDENTIALS,
    ENABLED,
    MODE,
    RESET,
    SYSTEM,
    TARGET,
    FakeBmc,
    Fault,
    MemoryTransport,
)
from tests.support.virtual_time import elapse
from tink.bmc.decision import MAX_POWER_SECONDS, MAX_REQUESTS, MAX_SECONDS
from tink.bmc.model import (
    BmcError,
    BootDevice,
    BootMode,
    Cause,
    ClearedBoot,
    PowerAction,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.operation import perform
from tink.bmc.redfish import RedfishClient

pytestmark = pytest.mark.looptime

PXE = WantedBoot(BootDevice.PXE, mode=BootMode.UEFI)
ISO = "http://192.0.2.1:7080/iso/52-54-00-00-00-01/boot.iso?signature=hush-hush"
MEDIUM = WantedMedium("CD", ISO)
EMPTY = WantedMedium("CD")
SUPERMICRO = {"vendor": "Supermicro", "model": "SYS-121H-TNR"}
DELL = {"vendor": "Dell Inc.", "model": "PowerEdge R660"}
HPE = {"vendor": "HPE", "model": "ProLiant DL380 Gen10", "firmware": "iLO 5 v2.30"}
LENOVO = {"vendor": "Lenovo", "model": "ThinkSystem SR650"}
AMI = {"vendor": "ASRockRack", "model": "X570D4U"}


class Outcome:
    """The end of an operation: its message or its error, the seconds that it took, and the progress."""

    def __init__(self) -> None:
        self.message = ""
        self.error: BmcError | None = None
        self.seconds = 0.0
        self.progress: list[str] = []

    @property
    def cause(self) -> Cause | None:
        return self.error.cause if self.error else None


async def run(bmc: FakeBmc, wanted: Wanted) -> Outcome:
    """Perform an operation through the Redfish client."""
    outcome = Outcome()
    clock = asyncio.get_running_loop().time
    started = clock()
    async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc)) as client:
        try:
            outcome.message = await perform(client, wanted, clock=clock, sleep=elapse, progress=outcome.progress.append)
        except BmcError as error:
            outcome.error, outcome.message = error, str(error)
    outcome.seconds = clock() - started
    bmc.run_until(clock())
    assert "hush-hush" not in f"{outcome.message} {outcome.progress}"
    assert len(bmc.writes()) <= MAX_REQUESTS
    return outcome


def power(action: str) -> WantedPower:
    return WantedPower(PowerAction(action))


def boots(bmc: FakeBmc) -> list[Any]:
    """Return the boot overrides that the BMC was sent."""
    return [body["Boot"] for _, _, body in bmc.writes() if "Boot" in body]


# --- power ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "state"), [("on", "On"), ("off", "Off"), ("soft", "Off")])
async def test_power_state_that_holds_needs_no_request(action: str, state: str) -> None:
    bmc = FakeBmc(power=state)
    assert (await run(bmc, power(action))).message == f"the BMC already reports {state}"
    assert bmc.resets == []


@pytest.mark.parametrize(
    ("action", "before", "resets", "after"),
    [
        ("on", "Off", ["On"], "On"),
        ("off", "On", ["ForceOff"], "Off"),
        ("soft", "On", ["GracefulShutdown"], "Off"),
        ("cycle", "On", ["ForceOff", "On"], "On"),
        ("cycle", "Off", ["On"], "On"),
        ("reset", "On", ["ForceRestart"], "On"),
    ],
)
async def test_power_action_ends_when_its_effect_is_read(
    action: str, before: str, resets: list[str], after: str
) -> None:
    bmc = FakeBmc(power=before, power_seconds=5, shutdown_seconds=30)
    outcome = await run(bmc, power(action))
    assert outcome.cause is None
    assert (bmc.resets, bmc.power) == (resets, after)
    assert outcome.seconds >= 5


async def test_status_reads_and_sends_nothing() -> None:
    bmc = FakeBmc(power="On")
    assert (await run(bmc, power("status"))).message == "the BMC reports On"
    assert bmc.writes() == []


async def test_late_power_state_is_awaited() -> None:
    bmc = FakeBmc(power="On", faults={Fault.POWER_LATE}, fault_seconds=40)
    assert (await run(bmc, power("cycle"))).cause is None
    assert bmc.power == "On"


async def test_accepted_and_ignored_power_action_fails_with_both_states() -> None:
    bmc = FakeBmc(faults={Fault.RESET_IGNORED})
    outcome = await run(bmc, power("on"))
    assert outcome.cause is Cause.IGNORED
    assert outcome.message.startswith("the BMC accepted Reset On and reports Off; look at")
    assert bmc.resets == ["On"] * 3
    assert "the BMC accepted Reset On and reports Off" in outcome.progress


async def test_soft_fails_after_its_limit_if_the_operating_system_does_not_listen() -> None:
    bmc = FakeBmc(power="On", shutdown_seconds=None)
    outcome = await run(bmc, power("soft"))
    assert outcome.cause is Cause.IGNORED
    assert "the BMC accepted Reset GracefulShutdown and reports On" in outcome.message
    assert "use off" in outcome.message
    assert bmc.resets == ["GracefulShutdown"], "it is asked for once"
    assert outcome.seconds == pytest.approx(MAX_SECONDS, abs=5)


async def test_reset_of_a_machine_that_is_off_names_the_remedy() -> None:
    bmc = FakeBmc()
    outcome = await run(bmc, power("reset"))
    assert (outcome.cause, bmc.resets) == (Cause.CONFLICT, [])
    assert "use on" in outcome.message


async def test_reset_without_last_reset_time_reads_the_power_state() -> None:
    bmc = FakeBmc(power="On", faults={Fault.NO_LAST_RESET})
    outcome = await run(bmc, power("reset"))
    assert outcome.message == "the BMC accepted Reset ForceRestart and reports On; it reports no LastResetTime"
    sent = [method for method, path, _ in bmc.requests if path in (SYSTEM, RESET)]
    assert sent == ["GET", "POST", "GET", "GET", "GET"], "the state before the restart does not count"


async def test_ignored_reset_is_seen_by_last_reset_time_and_not_repeated() -> None:
    bmc = FakeBmc(power="On", faults={Fault.RESET_IGNORED})
    outcome = await run(bmc, power("reset"))
    assert (outcome.cause, bmc.resets) == (Cause.IGNORED, ["ForceRestart"])
    assert "reports the same LastResetTime as before" in outcome.message


async def test_quirk_10_ilo_that_is_not_ready_after_a_change_of_power() -> None:
    bmc = FakeBmc(**HPE, power="On", faults={Fault.NOT_READY}, fault_seconds=60)
    outcome = await run(bmc, power("cycle"))
    assert (outcome.cause, bmc.power) == (None, "On")
    assert any("InvalidOperationForSystemState" in each for each in outcome.progress)


async def test_quirk_19_first_on_is_ignored() -> None:
    bmc = FakeBmc(**DELL, faults={Fault.FIRST_ON_IGNORED})
    assert (await run(bmc, power("on"))).cause is None
    assert bmc.resets == ["On", "On"]


async def test_quirk_19_failure_names_the_firmware_that_is_known() -> None:
    bmc = FakeBmc(vendor="Dell Inc.", model="PowerEdge R650", firmware="5.10.10.05", faults={Fault.RESET_IGNORED})
    outcome = await run(bmc, power("on"))
    assert outcome.message.endswith("update the iDRAC to 5.10.30 (quirk 19)")


async def test_quirk_20_on_conflicts_for_a_while_after_off() -> None:
    bmc = FakeBmc(vendor="Dell Inc.", model="PowerEdge R670", power="On", faults={Fault.ON_CONFLICT}, fault_seconds=90)
    outcome = await run(bmc, power("cycle"))
    assert (outcome.cause, bmc.power) == (None, "On")


async def test_conflict_without_end_fails_at_the_limit_with_the_last_answer() -> None:
    bmc = FakeBmc(power="On", faults={Fault.ON_CONFLICT}, fault_seconds=10_000)
    outcome = await run(bmc, power("cycle"))
    assert outcome.cause is Cause.CONFLICT
    assert "for Reset On, and answered last: " in outcome.message
    assert "ActionParameterValueConflict" in outcome.message
    assert outcome.seconds == pytest.approx(MAX_POWER_SECONDS, abs=5)
    assert len(bmc.writes()) < 20, "the pauses grow"


@pytest.mark.parametrize("fault", [Fault.STORM_503, Fault.SYS518])
async def test_quirk_31_bmc_that_is_busy_for_a_while_is_asked_again(fault: Fault) -> None:
    bmc = FakeBmc(**DELL, fault_seconds=60)
    async with RedfishClient(CONNECTION, CREDENTIALS, transport=MemoryTransport(bmc)) as client:
        await client.observe()
        bmc.faults.add(fault)
        await perform(client, power("on"), clock=asyncio.get_running_loop().time, sleep=elapse)
    assert bmc.power == "On"


# --- boot devices -----------------------------------------------------------------------------------------------------


def expect_boot(bmc: FakeBmc, target: str = "Pxe", enabled: str = "Once", mode: str = "UEFI") -> None:
    assert (bmc.boot[TARGET], bmc.boot[ENABLED], bmc.boot[MODE]) == (target, enabled, mode)


async def test_boot_device_that_holds_needs_no_request() -> None:
    bmc = FakeBmc()
    bmc.boot |= {TARGET: "Pxe", ENABLED: "Once"}
    outcome = await run(bmc, PXE)
    assert outcome.message == "the BMC already reports boot target Pxe, enabled Once, mode UEFI"
    assert bmc.writes() == []


async def test_boot_device_takes_one_request_from_a_bmc_that_keeps_the_standard() -> None:
    bmc = FakeBmc()
    outcome = await run(bmc, PXE)
    assert boots(bmc) == [{TARGET: "Pxe", ENABLED: "Once", MODE: "UEFI"}]
    assert outcome.message == "the BMC reports boot target Pxe, enabled Once, mode UEFI"
    assert outcome.progress == ["the BMC is asked for boot target Pxe, enabled Once, mode UEFI"]


@pytest.mark.parametrize(
    ("device", "target"), [("pxe", "Pxe"), ("disk", "Hdd"), ("bios", "BiosSetup"), ("cdrom", "Cd")]
)
@pytest.mark.parametrize("persistent", [True, False])
async def test_each_device_has_its_target(device: str, target: str, persistent: bool) -> None:
    bmc = FakeBmc()
    assert (await run(bmc, WantedBoot(BootDevice(device), persistent))).cause is None
    expect_boot(bmc, target, "Continuous" if persistent else "Once")


async def test_legacy_mode_is_set_and_without_a_wish_the_mode_stays() -> None:
    bmc = FakeBmc()
    await run(bmc, WantedBoot(BootDevice.PXE, mode=BootMode.LEGACY))
    expect_boot(bmc, mode="Legacy")
    await run(bmc, WantedBoot(BootDevice.DISK))
    expect_boot(bmc, "Hdd", mode="Legacy")


async def test_uefi_http_boot_has_its_uri() -> None:
    bmc = FakeBmc(faults={Fault.HTTP_URI})
    wanted = WantedBoot(BootDevice.HTTP, mode=BootMode.UEFI, http_uri="http://192.0.2.1/ipxe.efi")
    assert (await run(bmc, wanted)).cause is None
    expect_boot(bmc, "UefiHttp")
    assert bmc.boot["HttpBootUri"] == "http://192.0.2.1/ipxe.efi"


async def test_safe_is_not_a_device_of_redfish() -> None:
    bmc = FakeBmc()
    outcome = await run(bmc, WantedBoot(BootDevice.SAFE))
    assert (outcome.cause, bmc.writes()) == (Cause.UNSUPPORTED, [])
    assert "not Safe" in outcome.message


@pytest.mark.parametrize(
    ("power", "remedy"),
    [
        ("On", "power the machine off and try again, or set the boot order in the firmware's setup"),
        ("Off", "set the boot order in the firmware's setup"),
    ],
)
async def test_remedy_for_an_ignored_boot_device_is_no_power_off_of_a_machine_that_is_off(
    power: str, remedy: str
) -> None:
    outcome = await run(FakeBmc(faults={Fault.BOOT_IGNORED}, power=power), PXE)
    assert outcome.message.endswith(f"BootSourceOverrideEnabled); {remedy}")


@pytest.mark.parametrize("faults", [{Fault.BOOT_IGNORED}, {Fault.BOOT_IGNORED, Fault.TASKS}])
async def test_ignored_boot_device_fails_with_what_the_bmc_reports(faults: set[Fault]) -> None:
    bmc = FakeBmc(faults=faults)
    outcome = await run(bmc, PXE)
    assert outcome.cause is Cause.IGNORED
    assert outcome.message.startswith(
        "the BMC accepted Pxe, Once and reports None, Disabled (BootSourceOverrideTarget, BootSourceOverrideEnabled); "
    )
    assert outcome.seconds < 60


async def test_once_that_becomes_continuous_is_named() -> None:
    bmc = FakeBmc(faults={Fault.WRONG_ENABLED})
    outcome = await run(bmc, PXE)
    assert outcome.cause is Cause.IGNORED
    assert outcome.message.startswith("the BMC accepted Once and reports Continuous (BootSourceOverrideEnabled); ")
    assert outcome.seconds < 60


async def test_quirk_1_bmc_that_keeps_only_the_target() -> None:
    bmc = FakeBmc(vendor="Supermicro", model="AS-1015CS-TNR-EU", faults={Fault.ONLY_TARGET_KEPT})
    outcome = await run(bmc, PXE)
    assert outcome.cause is Cause.IGNORED
    assert "the BMC accepted Once, UEFI and reports Disabled, Legacy" in outcome.message
    assert "disable CSM" in outcome.message
    assert "(quirk 1)" in outcome.message


@pytest.mark.parametrize("vendor", [SUPERMICRO, {}])
async def test_quirk_2_mode_falls_back_unless_it_is_sent(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.MODE_FALLS_BACK})
    assert (await run(bmc, PXE)).cause is None
    expect_boot(bmc)


async def test_quirk_2_supermicro_keeps_its_mode_without_a_wish() -> None:
    bmc = FakeBmc(**SUPERMICRO, faults={Fault.MODE_FALLS_BACK})
    assert (await run(bmc, WantedBoot(BootDevice.PXE))).cause is None
    expect_boot(bmc)


@pytest.mark.parametrize("fault", [Fault.ENABLED_FALLS_BACK, Fault.ENABLED_REQUIRED])
@pytest.mark.parametrize("vendor", [SUPERMICRO, {}])
async def test_quirk_3_enabled_is_sent_with_each_target(vendor: dict[str, str], fault: Fault) -> None:
    bmc = FakeBmc(**vendor, faults={fault})
    bmc.boot |= {TARGET: "Hdd", ENABLED: "Continuous"}
    assert (await run(bmc, WantedBoot(BootDevice.PXE, persistent=True))).cause is None
    expect_boot(bmc, enabled="Continuous")


@pytest.mark.parametrize("vendor", [DELL, {}])
async def test_quirk_4_enabled_that_is_so_already_is_left_out(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.ENABLED_SAME_REFUSED})
    bmc.boot |= {TARGET: "Hdd", ENABLED: "Once"}
    assert (await run(bmc, PXE)).cause is None
    expect_boot(bmc)
    if vendor:
        assert boots(bmc) == [{TARGET: "Pxe"}]


@pytest.mark.parametrize("vendor", [DELL, {}])
async def test_quirk_5_mode_goes_in_a_request_of_its_own(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.MODE_ALONE})
    bmc.boot |= {MODE: "Legacy"}
    assert (await run(bmc, PXE)).cause is None
    expect_boot(bmc)
    if vendor:
        assert boots(bmc) == [{MODE: "UEFI"}, {TARGET: "Pxe", ENABLED: "Once"}]


@pytest.mark.parametrize("vendor", [AMI, {}])
async def test_quirk_6_target_enabled_and_mode_are_sent_each_time(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.FULL_REQUEST_REQUIRED})
    assert (await run(bmc, WantedBoot(BootDevice.PXE))).cause is None
    expect_boot(bmc)


@pytest.mark.parametrize("vendor", [HPE, {}])
async def test_quirk_7_mode_that_is_not_writable_is_left_out(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.MODE_REFUSED})
    assert (await run(bmc, PXE)).cause is None
    expect_boot(bmc)
    if vendor:
        assert boots(bmc) == [{TARGET: "Pxe", ENABLED: "Once"}]


@pytest.mark.parametrize("vendor", [HPE, {}])
async def test_quirk_7_wrong_mode_that_is_not_writable_fails_with_the_refusal(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.MODE_REFUSED})
    bmc.boot |= {MODE: "Legacy"}
    outcome = await run(bmc, PXE)
    assert outcome.cause is Cause.REFUSED
    assert "the BMC refused mode UEFI" in outcome.message
    assert "PropertyNotWritable" in outcome.message
    assert "set this boot mode in the firmware's setup" in outcome.message


@pytest.mark.parametrize("vendor", [HPE, {}])
async def test_quirk_8_override_is_cleared_with_its_target_kept(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.TARGET_NONE_REFUSED, Fault.ENABLED_REQUIRED})
    bmc.boot |= {TARGET: "Pxe", ENABLED: "Continuous"}
    assert (await run(bmc, ClearedBoot())).message == "the BMC reports no boot override"
    assert bmc.boot[ENABLED] == "Disabled"
    assert (await run(bmc, ClearedBoot())).cause is None
    assert len(boots(bmc)) == 1, "a cleared override needs no request"


async def test_quirk_9_boot_change_during_post_is_sent_again() -> None:
    bmc = FakeBmc(**HPE, faults={Fault.POST_LOCK}, post_seconds=120)
    assert (await run(bmc, power("on"))).cause is None
    outcome = await run(bmc, PXE)
    assert outcome.cause is None
    assert any("UnableToModifyDuringSystemPOST" in each for each in outcome.progress)
    expect_boot(bmc)


async def test_quirk_11_x10_without_a_mode_needs_ipmi_for_uefi() -> None:
    bmc = FakeBmc(vendor="Supermicro", model="X10DRT-P", faults={Fault.NO_MODE})
    outcome = await run(bmc, PXE)
    assert (outcome.cause, bmc.writes()) == (Cause.UNSUPPORTED, [])
    assert "set the boot device by IPMI" in outcome.message


async def test_mode_that_is_not_reported_is_remarked() -> None:
    bmc = FakeBmc(faults={Fault.NO_MODE})
    outcome = await run(bmc, PXE)
    assert outcome.cause is None
    assert outcome.message.endswith("; it reports no boot mode")
    assert bmc.boot[TARGET] == "Pxe"


async def test_quirk_12_usb_cd_boots_the_virtual_cd() -> None:
    bmc = FakeBmc(**SUPERMICRO, faults={Fault.CD_IS_USB_CD})
    assert (await run(bmc, WantedBoot(BootDevice.CDROM))).cause is None
    expect_boot(bmc, "UsbCd")


async def test_quirk_16_uefi_target_is_the_name_of_a_pending_pxe() -> None:
    known = FakeBmc(vendor="Dell Inc.", model="PowerEdge R640", firmware="3.21.21.21", faults={Fault.READS_UEFI_TARGET})
    outcome = await run(known, PXE)
    assert outcome.cause is None
    assert "UefiTarget" in outcome.message
    other = await run(FakeBmc(faults={Fault.READS_UEFI_TARGET}), PXE)
    assert other.cause is Cause.IGNORED
    assert other.message.startswith("the BMC accepted Pxe and reports UefiTarget (BootSourceOverrideTarget)")


@pytest.mark.parametrize("vendor", [{"vendor": "Dell Inc.", "model": "PowerEdge R730xd"}, {}])
async def test_quirk_17_refusal_of_a_boot_change_that_was_made(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.ERROR_THOUGH_DONE})
    assert (await run(bmc, PXE)).cause is None
    assert len(boots(bmc)) == 1


async def test_quirk_21_allowable_values_in_the_settings_resource() -> None:
    bmc = FakeBmc(vendor="Dell Inc.", model="PowerEdge R670", faults={Fault.ALLOWED_AT_SETTINGS})
    assert (await run(bmc, PXE)).cause is None
    expect_boot(bmc)


@pytest.mark.parametrize("vendor", [AMI, {}])
async def test_quirk_22_boot_override_in_the_settings_resource_counts_as_pending(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.SETTINGS_RESOURCE})
    outcome = await run(bmc, PXE)
    assert outcome.message.endswith("as pending until the next restart")
    assert (await run(bmc, power("on"))).cause is None
    assert bmc.boots == ["Pxe"]
    if vendor:
        assert len(boots(bmc)) == 1


async def test_pending_override_of_another_device_is_replaced() -> None:
    bmc = FakeBmc(**AMI, faults={Fault.SETTINGS_RESOURCE})
    bmc.boot |= {TARGET: "Hdd", ENABLED: "Continuous"}
    bmc.pending_boot |= {TARGET: "Pxe", ENABLED: "Once"}
    assert (await run(bmc, WantedBoot(BootDevice.DISK, persistent=True))).cause is None
    assert (bmc.pending_boot[TARGET], bmc.pending_boot[ENABLED]) == ("Hdd", "Continuous")


async def test_quirk_23_dell_without_http_boot_uri() -> None:
    bmc = FakeBmc(**DELL)
    outcome = await run(bmc, WantedBoot(BootDevice.HTTP, http_uri="http://192.0.2.1/ipxe.efi"))
    assert (outcome.cause, bmc.writes()) == (Cause.UNSUPPORTED, [])
    assert "HttpDev1Uri" in outcome.message


@pytest.mark.parametrize("vendor", [LENOVO, {}])
async def test_quirk_24_continuous_is_never_asked_for(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.NO_CONTINUOUS})
    outcome = await run(bmc, WantedBoot(BootDevice.PXE, persistent=True))
    assert (outcome.cause, bmc.writes()) == (Cause.UNSUPPORTED, [])
    assert "Continuous; set a persistent boot device by the boot order" in outcome.message


async def test_quirk_43_bmc_without_boot_override() -> None:
    bmc = FakeBmc(vendor="IBM", faults={Fault.NO_BOOT_OVERRIDE})
    outcome = await run(bmc, PXE)
    assert outcome.cause is Cause.UNSUPPORTED
    assert "set the boot device by IPMI" in outcome.message


async def test_task_that_never_ends_is_named() -> None:
    bmc = FakeBmc(faults={Fault.TASK_NEVER_ENDS})
    outcome = await run(bmc, PXE)
    assert outcome.cause is Cause.CONFLICT
    assert "has not ended" in outcome.message
    assert any("again, because" in each and "has not ended" in each for each in outcome.progress)


# --- virtual media ----------------------------------------------------------------------------------------------------


async def test_image_is_inserted_once_and_ejected_once() -> None:
    bmc = FakeBmc()
    outcome = await run(bmc, MEDIUM)
    assert outcome.message == "the BMC reports http://192.0.2.1:7080/iso/52-54-00-00-00-01/boot.iso?… in CD"
    assert bmc.slots[0].image == ISO
    assert [body for _, _, body in bmc.writes()] == [{"Image": ISO}]
    assert (await run(bmc, MEDIUM)).message.startswith("the BMC already reports")
    assert (await run(bmc, EMPTY)).cause is None
    assert (await run(bmc, EMPTY)).message == "the BMC already reports no medium of the kind CD"
    assert len(bmc.writes()) == 2
    assert not bmc.slots[0].inserted


async def test_other_image_is_ejected_first() -> None:
    bmc = FakeBmc()
    bmc.slots[0].image, bmc.slots[0].inserted = "http://192.0.2.9/old.iso", True
    assert (await run(bmc, MEDIUM)).cause is None
    assert bmc.slots[0].image == ISO


async def test_ignored_insertion_is_named_without_the_signature() -> None:
    bmc = FakeBmc(faults={Fault.MEDIA_IGNORED, Fault.ECHO})
    outcome = await run(bmc, MEDIUM)
    assert outcome.cause is Cause.IGNORED
    assert outcome.message.startswith(
        "the BMC accepted insertion of http://192.0.2.1:7080/iso/52-54-00-00-00-01/boot.iso?… into CD "
        "and reports no medium; "
    )
    assert outcome.seconds < 60


async def test_ignored_ejection_is_named() -> None:
    bmc = FakeBmc(faults={Fault.MEDIA_IGNORED})
    bmc.slots[0].image, bmc.slots[0].inserted = ISO, True
    outcome = await run(bmc, EMPTY)
    assert outcome.cause is Cause.IGNORED
    assert outcome.message.startswith("the BMC accepted ejection from CD and reports the medium inserted; ")
    replaced = await run(bmc, WantedMedium("CD", "http://192.0.2.1/other.iso"))
    assert replaced.cause is Cause.IGNORED
    assert "ejection from CD" in replaced.message


async def test_kind_without_a_slot_names_the_kinds() -> None:
    bmc = FakeBmc(slots=(("USB", ("USBStick",)),))
    outcome = await run(bmc, MEDIUM)
    assert outcome.cause is Cause.UNSUPPORTED
    assert "the BMC has USBStick, and no slot for CD" in outcome.message


async def test_quirk_34_idrac10_uses_slot_1() -> None:
    bmc = FakeBmc(
        vendor="Dell Inc.", model="PowerEdge R670", faults={Fault.MEDIA_AT_SYSTEM},
        slots=(("2", ("CD", "DVD")), ("1", ("CD", "DVD"))),
    )  # fmt: skip
    assert (await run(bmc, MEDIUM)).cause is None
    assert [slot.inserted for slot in bmc.slots] == [False, True]


async def test_quirk_35_ejection_is_awaited_before_the_insertion() -> None:
    bmc = FakeBmc(**DELL, faults={Fault.EJECT_LATE}, fault_seconds=30)
    bmc.slots[0].image, bmc.slots[0].inserted = "http://192.0.2.9/old.iso", True
    assert (await run(bmc, MEDIUM)).cause is None
    assert bmc.slots[0].image == ISO


@pytest.mark.parametrize("vendor", [SUPERMICRO, {}])
async def test_quirk_37_image_alone(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.INSERTED_REFUSED, Fault.IMAGE_STAYS})
    assert (await run(bmc, MEDIUM)).cause is None
    assert (await run(bmc, EMPTY)).cause is None
    assert not bmc.slots[0].inserted
    assert len(bmc.writes()) == 2


@pytest.mark.parametrize("vendor", [{"vendor": "Lenovo", "model": "ThinkSystem SD530"}, {}])
async def test_quirk_38_media_by_patch_in_slots_ext(vendor: dict[str, str]) -> None:
    bmc = FakeBmc(**vendor, faults={Fault.MEDIA_BY_PATCH}, slots=(("RDOC1", ("CD",)), ("EXT1", ("CD",))))
    assert (await run(bmc, MEDIUM)).cause is None
    assert [slot.inserted for slot in bmc.slots] == [not vendor, bool(vendor)]
    assert (await run(bmc, EMPTY)).cause is None
    assert not any(slot.inserted for slot in bmc.slots)


async def test_quirk_40_properties_that_the_refusal_names_are_added() -> None:
    bmc = FakeBmc(vendor="Nokia", faults={Fault.TRANSFER_REQUIRED})
    assert (await run(bmc, MEDIUM)).cause is None
    assert bmc.slots[0].properties == {"TransferProtocolType": "HTTP", "TransferMethod": "Stream"}


async def test_quirk_41_next_slot_and_slots_for_dvd_only() -> None:
    bmc = FakeBmc(
        vendor="Cisco Systems Inc", faults={Fault.FIRST_SLOT_BROKEN}, slots=(("0", ("DVD",)), ("1", ("DVD",)))
    )
    assert (await run(bmc, MEDIUM)).cause is None
    assert [slot.inserted for slot in bmc.slots] == [False, True]


# --- failures to read, and cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Fault.HANG, Cause.UNREACHABLE), (Fault.CUT_JSON, Cause.BAD_ANSWER), (Fault.XML, Cause.BAD_ANSWER)],
)
async def test_bmc_that_can_not_be_read_fails_within_two_minutes(fault: Fault, cause: Cause) -> None:
    outcome = await run(FakeBmc(faults={fault}), power("on"))
    assert outcome.cause is cause
    assert outcome.seconds < 120


async def test_reads_that_fail_in_between_are_repeated() -> None:
    bmc = FakeBmc(faults={Fault.POWER_LATE}, fault_seconds=100)

    async def disturb() -> None:
        for seconds in (5, 40, 20, 35):
            await elapse(seconds)
            bmc.faults ^= {Fault.CUT_JSON}

    disturbing = asyncio.create_task(disturb())
    outcome = await run(bmc, power("on"))
    await disturbing
    assert outcome.cause is None
    assert len([each for each in outcome.progress if each.startswith("the BMC can't be read")]) >= 2


async def test_bmc_that_answers_nonsense_fails_after_a_minute() -> None:
    outcome = await run(FakeBmc(faults={Fault.CUT_JSON}), power("on"))
    assert outcome.seconds == pytest.approx(60, abs=1)


async def test_session_that_ended_is_no_refused_password() -> None:
    bmc = FakeBmc(faults={Fault.LATE_401})
    outcome = await run(bmc, power("on"))
    assert outcome.cause is Cause.BUSY
    assert bmc.failed_logins == 0


async def test_cancellation_ends_the_operation_at_once() -> None:
    bmc = FakeBmc(faults={Fault.RESET_IGNORED})
    task = asyncio.create_task(run(bmc, power("on")))
    await asyncio.wait([task], timeout=5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bmc.open_sessions == 0
    assert bmc.resets == ["On"]
