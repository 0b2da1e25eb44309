"""The ladder of a netboot as a pure function: its rungs, their parts, and the sentences while the machine boots."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.api.v1alpha2 import BootClient, BootWay, PowerState
from tink.bmc.boot import (
    LOOK_SECONDS,
    LOST_SECONDS,
    Booted,
    BootPart,
    BootReason,
    Exhausted,
    NextRung,
    Rung,
    Waiting,
    Watch,
    clean_up,
    judge,
    parts,
    rungs,
)
from tink.bmc.decision import Done, decide
from tink.bmc.model import (
    BmcError,
    Boot,
    BootDevice,
    BootMode,
    Cause,
    ClearedBoot,
    Identity,
    Observation,
    PowerAction,
    Slot,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.quirks import QUIRKS, Quirks

TARGETS: Final = ("None", "Pxe", "Hdd", "Cd", "UefiHttp")
IDLE: Final = Boot("None", "Disabled", "UEFI", "", TARGETS, ("Disabled", "Once", "Continuous"))
CD: Final = Slot("/redfish/v1/Managers/1/VirtualMedia/CD", ("CD", "DVD"))
REDFISH: Final = Identity("Contoso", "3500", redfish="1.15.0")
FULL: Final = Observation(PowerState.OFF, IDLE, (CD,), REDFISH)
"""A BMC that offers every way."""
BY_IPMI: Final = Observation(PowerState.OFF, Boot("None", "Disabled", None, None, ("None", "Pxe", "Hdd", "Cd")))
BOTH: Final = ("redfish", "ipmi")
URL: Final = "http://192.0.2.1:7080/ipxe.efi"
ISO: Final = "http://192.0.2.1:7080/iso/52-54-00-00-00-01/boot.iso"
OFF, ON = WantedPower(PowerAction.OFF), WantedPower(PowerAction.ON)
MAC, OTHER_MAC = "52:54:00:00:00:01", "52:54:00:00:00:02"
BEFORE, AFTER = "2026-11-30T18:00:00Z", "2026-11-30T18:05:00Z"
PXE_1: Final = Rung(BootWay.PXE, 1)


def of(vendor: str, model: str = "", boot: Boot | None = IDLE, power: PowerState = PowerState.OFF) -> Observation:
    return Observation(power, boot, (CD,), Identity(vendor, model, redfish="1.15.0"))


def ladder(
    seen: Observation, protocols: Collection[str] = BOTH, *, http: bool = True, medium: bool = True
) -> list[str]:
    found = rungs(seen, protocols, has_http_url=http, has_medium=medium)
    return [f"{rung.way.value} {rung.attempt}" for rung in found]


def wanted_of(rung: Rung, seen: Observation, protocols: Collection[str] = BOTH) -> list[tuple[Wanted, str]]:
    found = parts(rung, seen, http_url=URL, medium_url=ISO, protocols=protocols)
    return [(part.wanted, part.protocol) for part in found]


# --- rungs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "found", "expected"),
    [
        ("all ways in the order of the ladder", ladder(FULL), ["pxe 1", "pxe 2", "http 1", "cd 1", "ipmi 1"]),
        ("the edge has no URL for HTTP boot", ladder(FULL, http=False), ["pxe 1", "pxe 2", "cd 1", "ipmi 1"]),
        ("the edge has no boot medium", ladder(FULL, medium=False), ["pxe 1", "pxe 2", "http 1", "ipmi 1"]),
        ("the Machine excludes IPMI", ladder(FULL, ["redfish"]), ["pxe 1", "pxe 2", "http 1", "cd 1"]),
        ("the BMC was read by IPMI", ladder(BY_IPMI), ["pxe 1", "pxe 2"]),
        (
            "no virtual drive",
            ladder(replace(FULL, slots=())),
            ["pxe 1", "pxe 2", "http 1", "ipmi 1"],
        ),
        (
            "a drive for floppies alone",
            ladder(replace(FULL, slots=(replace(CD, kinds=("Floppy",)),))),
            ["pxe 1", "pxe 2", "http 1", "ipmi 1"],
        ),
        (
            "the BMC does not list UefiHttp and Cd",
            ladder(replace(FULL, boot=replace(IDLE, allowed_targets=("None", "Pxe")))),
            ["pxe 1", "pxe 2", "ipmi 1"],
        ),
        (
            "the BMC does not list Pxe",
            ladder(replace(FULL, boot=replace(IDLE, allowed_targets=("UefiHttp",)))),
            ["http 1", "ipmi 1"],
        ),
        (
            "the BMC lists no targets, and no HttpBootUri",
            ladder(replace(FULL, boot=replace(IDLE, allowed_targets=(), http_uri=None))),
            ["pxe 1", "pxe 2", "cd 1", "ipmi 1"],
        ),
        (
            "the BMC lists no targets, and HttpBootUri",
            ladder(replace(FULL, boot=replace(IDLE, allowed_targets=()))),
            ["pxe 1", "pxe 2", "http 1", "cd 1", "ipmi 1"],
        ),
        (
            "quirk 11: only IPMI boots in UEFI mode",
            ladder(of("Supermicro", "X10DRT-P", replace(IDLE, mode=None))),
            ["ipmi 1", "ipmi 2", "cd 1", "pxe 1"],
        ),
        (
            "quirk 11 without IPMI: the firmware's own mode",
            ladder(of("Supermicro", "X10DRT-P", replace(IDLE, mode=None)), ["redfish"]),
            ["pxe 1", "pxe 2", "cd 1"],
        ),
        ("quirk 43: no boot override", ladder(of("IBM", "9105-22A", None)), ["ipmi 1", "ipmi 2"]),
        (
            "quirk 43 without IPMI: a power cycle, and the boot order decides",
            ladder(of("IBM", "9105-22A", None), ["redfish"]),
            ["pxe 1", "pxe 2"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ladder_has_the_ways_that_the_bmc_offers(case: str, found: list[str], expected: list[str]) -> None:
    assert found == expected


# --- parts ------------------------------------------------------------------------------------------------------------


def test_pxe_is_off_then_boot_device_once_then_on() -> None:
    assert parts(PXE_1, FULL, http_url=URL, medium_url=ISO) == (
        BootPart(BootReason.POWERING_OFF, OFF),
        BootPart(BootReason.OVERRIDE_SET, WantedBoot(BootDevice.PXE, mode=BootMode.UEFI)),
        BootPart(BootReason.POWERING_ON, ON),
    )


def test_cd_is_inserted_between_off_and_on_after_an_ejection() -> None:
    for way in (BootWay.CD, BootWay.ISO):
        assert parts(Rung(way, 1), FULL, http_url=URL, medium_url=ISO) == (
            BootPart(BootReason.POWERING_OFF, OFF),
            BootPart(BootReason.INSERTING_MEDIUM, WantedMedium("CD")),
            BootPart(BootReason.INSERTING_MEDIUM, WantedMedium("CD", ISO)),
            BootPart(BootReason.OVERRIDE_SET, WantedBoot(BootDevice.CDROM, mode=BootMode.UEFI)),
            BootPart(BootReason.POWERING_ON, ON),
        )


def test_ipmi_does_the_whole_rung() -> None:
    boot = WantedBoot(BootDevice.PXE, mode=BootMode.UEFI)
    assert wanted_of(Rung(BootWay.IPMI, 1), FULL) == [(OFF, "ipmi"), (boot, "ipmi"), (ON, "ipmi")]


def test_custom_has_no_parts_of_its_own() -> None:
    assert parts(Rung(BootWay.CUSTOM, 1), FULL, http_url=URL, medium_url=ISO) == ()


@pytest.mark.parametrize(
    ("reported", "pending", "mode"),
    [
        ("UEFI", None, BootMode.UEFI),
        ("Legacy", None, BootMode.LEGACY),
        ("LEGACY", None, BootMode.LEGACY),
        (None, None, BootMode.UEFI),
        (None, "Legacy", BootMode.LEGACY),
        ("UEFI", "Legacy", BootMode.UEFI),
        ("something", None, BootMode.UEFI),
    ],
)
def test_mode_is_the_reported_one_else_uefi(reported: str | None, pending: str | None, mode: BootMode) -> None:
    seen = replace(FULL, boot=replace(IDLE, mode=reported), pending_boot=Boot(mode=pending) if pending else None)
    assert (WantedBoot(BootDevice.PXE, mode=mode), "") in wanted_of(PXE_1, seen)
    assert (WantedBoot(BootDevice.CDROM, mode=mode), "") in wanted_of(Rung(BootWay.CD, 1), seen)
    http = WantedBoot(BootDevice.HTTP, mode=BootMode.UEFI, http_uri=URL)
    assert (http, "") in wanted_of(Rung(BootWay.HTTP, 1), seen), "HTTP boot is in mode UEFI always"


@pytest.mark.parametrize("reported", ["UEFI", "Legacy", None])
@pytest.mark.parametrize(("is_uefi", "mode"), [(True, BootMode.UEFI), (False, BootMode.LEGACY)])
def test_mode_of_the_hardware_goes_before_the_reported_one(reported: str | None, is_uefi: bool, mode: BootMode) -> None:
    seen = replace(FULL, boot=replace(IDLE, mode=reported))
    for way, device in ((BootWay.PXE, BootDevice.PXE), (BootWay.CD, BootDevice.CDROM), (BootWay.ISO, BootDevice.CDROM)):
        found = parts(Rung(way, 1), seen, http_url=URL, medium_url=ISO, is_uefi=is_uefi)
        assert WantedBoot(device, mode=mode) in [part.wanted for part in found]
    ladder = rungs(seen, BOTH, has_http_url=True, has_medium=True, is_uefi=is_uefi)
    assert (Rung(BootWay.HTTP, 1) in ladder) is is_uefi, "UEFI HTTP boot needs UEFI"


def test_http_without_httpbooturi_leaves_the_url_to_dhcp() -> None:
    rung = Rung(BootWay.HTTP, 1)
    dell = of("Dell Inc.", "PowerEdge R660", replace(IDLE, http_uri=None))
    assert (WantedBoot(BootDevice.HTTP, mode=BootMode.UEFI), "") in wanted_of(rung, dell)
    null = replace(FULL, boot=replace(IDLE, http_uri=None))
    assert (WantedBoot(BootDevice.HTTP, mode=BootMode.UEFI, http_uri=URL), "") in wanted_of(rung, null)


@pytest.mark.parametrize(
    "boot", [None, Boot(), replace(IDLE, enabled=None), replace(IDLE, allowed_targets=("None", "Hdd"))]
)
def test_bmc_that_cannot_set_the_boot_device_is_only_switched_off_and_on(boot: Boot | None) -> None:
    assert wanted_of(PXE_1, replace(FULL, boot=boot)) == [(OFF, ""), (ON, "")]


def test_quirk_11_asks_for_no_mode_by_redfish() -> None:
    seen = of("Supermicro", "X10DRT-P", replace(IDLE, mode=None))
    assert (WantedBoot(BootDevice.PXE), "") in wanted_of(PXE_1, seen)
    assert (WantedBoot(BootDevice.CDROM, mode=BootMode.UEFI), "") in wanted_of(Rung(BootWay.CD, 1), seen)
    assert (WantedBoot(BootDevice.CDROM), "") in wanted_of(Rung(BootWay.CD, 1), seen, ["redfish"])
    assert (WantedBoot(BootDevice.PXE, mode=BootMode.UEFI), "ipmi") in wanted_of(Rung(BootWay.IPMI, 1), seen, [])


def test_quirk_45_restarts_a_running_machine_and_cuts_no_power() -> None:
    seen = of("Lenovo", "ThinkSystem SR650 V4", power=PowerState.ON)
    boot, restart = WantedBoot(BootDevice.PXE, mode=BootMode.UEFI), WantedPower(PowerAction.RESET)
    assert wanted_of(PXE_1, seen) == [(boot, ""), (restart, "")]
    assert wanted_of(PXE_1, seen, ["redfish"]) == [(OFF, ""), (boot, ""), (ON, "")]
    assert wanted_of(PXE_1, replace(seen, power=PowerState.OFF)) == [(OFF, ""), (boot, ""), (ON, "")]
    assert wanted_of(Rung(BootWay.CD, 1), seen)[0] == (OFF, ""), "media are changed while the machine is off"


# --- judge: the machine boots -----------------------------------------------------------------------------------------

ONCE: Final = replace(IDLE, target="Pxe", enabled="Once")
RUNNING: Final = replace(FULL, power=PowerState.ON, boot=ONCE)
USED: Final = replace(RUNNING, boot=IDLE)


def watch(waited: float, seen: Observation | None = None, /, **changes: Any) -> Watch:
    fields: dict[str, Any] = {
        "rung": PXE_1,
        "is_last": False,
        "macs": (MAC,),
        "waited": waited,
        "last_boot_before": BEFORE,
        "last_boot": {"at": BEFORE, "client": "Netboot", "mac": MAC},
        "seen": seen,
    }
    return Watch(**(fields | changes))


def boot_of(client: str, at: str = AFTER, mac: str = MAC) -> dict[str, str]:
    return {"at": at, "client": client, "mac": mac}


def test_machine_has_booted_when_its_dhcp_packet_has_arrived_whatever_the_bmc_reports() -> None:
    expected = Booted(f"the machine netboots: its DHCP packet came from {MAC}")
    netboot = boot_of("Netboot")
    assert judge(watch(0.0, last_boot=netboot)) == expected
    assert judge(watch(1e6, last_boot=netboot, is_last=True)) == expected
    assert judge(watch(90.0, replace(USED, power=PowerState.OFF), last_boot=netboot)) == expected
    assert judge(watch(90.0, error=BmcError(Cause.UNREACHABLE, "no answer"), last_boot=netboot)) == expected


def test_first_boot_ever_counts() -> None:
    assert isinstance(judge(watch(5.0, last_boot=boot_of("Netboot"), last_boot_before="")), Booted)


def test_packet_from_another_interface_of_the_hardware_counts() -> None:
    judged = judge(watch(5.0, last_boot=boot_of("Netboot", mac=OTHER_MAC)))
    assert judged == Booted(f"the machine netboots: its DHCP packet came from {OTHER_MAC}")


@pytest.mark.parametrize(
    "last_boot",
    [
        boot_of("Netboot", BEFORE),
        boot_of("Netboot", "2026-11-30T19:00:00+01:00"),  # the same moment
        boot_of("Netboot", "2026-11-30T17:59:59Z"),
        boot_of("Netboot", "soon"),
        boot_of("Other"),
        {"client": "Netboot"},
        {},
        None,
    ],
)
def test_what_is_no_later_boot_does_not_count(last_boot: Any) -> None:
    judged = judge(watch(5.0, last_boot=last_boot))
    assert judged == Waiting(
        55.0, BootReason.WAITING_FOR_DISCOVER, f"the BMC reported On; the DISCOVER of {MAC} is awaited"
    )


@pytest.mark.parametrize("way", [BootWay.ISO, BootWay.CUSTOM])
def test_system_of_the_users_own_image_counts_as_booted(way: BootWay) -> None:
    judged = judge(watch(90.0, RUNNING, rung=Rung(way, 1), last_boot=boot_of("OperatingSystem")))
    assert judged == Booted(
        f"a system has started and sent a DHCP packet from {MAC}; "
        "DHCP does not show if it is of the medium or of the disk"
    )


# --- judge: no packet arrives -----------------------------------------------------------------------------------------


def test_bmc_is_read_after_a_minute_then_the_cause_is_named_and_the_rung_ends_after_five() -> None:
    quiet = judge(watch(59.0))
    assert isinstance(quiet, Waiting)
    assert (quiet.reason, quiet.reads_bmc, quiet.seconds) == (BootReason.WAITING_FOR_DISCOVER, False, 1.0)
    unread = judge(watch(60.0))
    assert isinstance(unread, Waiting)
    assert (unread.reason, unread.reads_bmc) == (BootReason.NO_DISCOVER, True)
    named = judge(watch(60.0, RUNNING))
    assert isinstance(named, Waiting)
    assert (named.reason, named.reads_bmc, named.seconds) == (BootReason.NO_DISCOVER, False, LOOK_SECONDS)
    late = judge(watch(290.0, RUNNING))
    assert isinstance(late, Waiting)
    assert (late.message, late.seconds) == (named.message, 10.0), "a sentence that stays is not written again"
    assert judge(watch(300.0, RUNNING)) == NextRung(BootReason.NO_DISCOVER, f"pxe, attempt 1: {named.message}")
    assert judge(watch(300.0, RUNNING, is_last=True, rung=Rung(BootWay.PXE, 2))) == Exhausted(
        BootReason.NO_DISCOVER,
        f"pxe, attempt 2: {named.message}. No other way is left: correct this, and netboot the machine once",
    )


MISSING = f"no DISCOVER from {MAC}"
CAUSES = f"no DISCOVER from {MAC}; possible causes: cable, VLAN, or wrong MAC"
POWER = "possible causes: the machine switched itself off, was switched off, or lost its power"
SETUP = "network boot disabled in the firmware's setup"
CONSOLE = "a self-test that is not over (look at the console)"


@pytest.mark.parametrize(
    ("case", "seen", "way", "sentence"),
    [
        (
            "override pending",
            RUNNING,
            "pxe",
            f"the BMC reports On, boot target Pxe (Once, UEFI), {CAUSES}; {SETUP}; {CONSOLE}",
        ),
        (
            "accepted Once, reports Continuous",
            replace(RUNNING, boot=replace(ONCE, enabled="Continuous")),
            "pxe",
            f"the BMC reports On, boot target Pxe (Continuous instead of Once, UEFI), {CAUSES}; {SETUP}; {CONSOLE}",
        ),
        (
            "override used or lost",
            USED,
            "pxe",
            f"the BMC reports On, no boot override any more, {CAUSES}; {SETUP}; "
            "the installed system started and sent no DHCP packet",
        ),
        (
            "override replaced",
            replace(RUNNING, boot=replace(ONCE, target="Hdd")),
            "pxe",
            f"the BMC reports On, boot target Hdd (Once, UEFI) instead of Pxe, {CAUSES}; "
            f"a boot device that another program, or the BMC, has replaced; {SETUP}; {CONSOLE}",
        ),
        (
            "override kept for the next restart",
            replace(USED, pending_boot=ONCE),
            "pxe",
            f"the BMC reports On, boot target Pxe (Once, UEFI) for the next restart, {CAUSES}; "
            f"a boot device that the BMC has not applied yet; {SETUP}; {CONSOLE}",
        ),
        (
            "no boot override at all",
            replace(RUNNING, boot=None),
            "pxe",
            f"the BMC reports On, no boot override at all, {CAUSES}; "
            f"a boot order of the firmware without the network; {CONSOLE}",
        ),
        (
            "power off again",
            replace(RUNNING, power=PowerState.OFF),
            "pxe",
            f"the BMC reports Off again, {MISSING}; {POWER}; "
            "look at the BMC's event log and the power supplies",
        ),
        (
            "power between on and off",
            replace(RUNNING, power=PowerState.UNKNOWN),
            "pxe",
            f"the BMC reports neither On nor Off, {MISSING}; look at the BMC's event log, or reset the BMC",
        ),
        (
            "UEFI HTTP boot",
            replace(RUNNING, boot=replace(ONCE, target="UefiHttp")),
            "http",
            f"the BMC reports On, boot target UefiHttp (Once, UEFI), {CAUSES}; {SETUP}; {CONSOLE}",
        ),
        (
            "virtual CD as UsbCd",
            replace(RUNNING, boot=replace(ONCE, target="UsbCd")),
            "cd",
            f"the BMC reports On, boot target UsbCd (Once, UEFI), {CAUSES}; "
            f"the BMC has not fetched the medium (the journey shows its download); {CONSOLE}",
        ),
        (
            "image of the user",
            replace(RUNNING, boot=replace(ONCE, target="Cd")),
            "iso",
            f"the BMC reports On, boot target Cd (Once, UEFI), {CAUSES}; "
            f"the BMC can't fetch the image, or the image sends no DHCP packet; {CONSOLE}",
        ),
        (
            "flags of IPMI, which Redfish may not report",
            USED,
            "ipmi",
            f"the BMC reports On, {CAUSES}; {SETUP}; {CONSOLE}",
        ),
        (
            "flags of IPMI, and no boot override by Redfish",
            replace(RUNNING, boot=None),
            "ipmi",
            f"the BMC reports On, {CAUSES}; {SETUP}; {CONSOLE}",
        ),
        (
            "a pending target that is disabled",
            replace(USED, pending_boot=replace(ONCE, target="Cd", enabled="Disabled")),
            "cd",
            f"the BMC reports On, no boot override any more, {CAUSES}; the BMC has not fetched the medium (the journey "
            "shows its download); the installed system started and sent no DHCP packet",
        ),
        (
            "quirk 45: the power of a DPU was cut",
            replace(RUNNING, identity=Identity("Lenovo", "ThinkSystem SR650 V4", redfish="1.15")),
            "pxe",
            f"the BMC reports On, boot target Pxe (Once, UEFI), {CAUSES}; {SETUP}; {CONSOLE}; known of this model: "
            "ForceRestart cuts the power of a DPU, and its PXE fails: restart by the chassis reset of IPMI (quirk 45)",
        ),
        (
            "quirk 16: UefiTarget stands for Pxe",
            replace(
                RUNNING,
                boot=replace(ONCE, target="UefiTarget"),
                identity=Identity("Dell Inc.", "PowerEdge R640", "3.32", redfish="1.6"),
            ),
            "pxe",
            f"the BMC reports On, boot target UefiTarget (Once, UEFI), {CAUSES}; {SETUP}; {CONSOLE}",
        ),
        (
            "quirk 44: On does not mean that the host runs",
            replace(RUNNING, identity=Identity("OpenBMC", redfish="1.9")),
            "pxe",
            f"the BMC reports On, boot target Pxe (Once, UEFI), {CAUSES}; {SETUP}; {CONSOLE}; "
            "this BMC may report On for a host that has stopped (quirk 44): look at its event log",
        ),
        (
            "quirk 19: accepts On and stays off",
            replace(
                RUNNING,
                power=PowerState.OFF,
                identity=Identity("Dell Inc.", "PowerEdge R650", "5.10.10.05", redfish="1.6"),
            ),
            "pxe",
            f"the BMC reports Off again, {MISSING}; {POWER}; "
            "look at the BMC's event log and the power supplies; known of this model: the BMC accepts On, and the "
            "machine stays off: update the iDRAC to 5.10.30 (quirk 19)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else "",
)  # fmt: skip
def test_sentence_about_a_missing_packet_has_the_report_then_the_causes(
    case: str, seen: Observation, way: str, sentence: str
) -> None:
    judged = judge(watch(60.0, seen, rung=Rung(BootWay(way), 1)))
    assert isinstance(judged, Waiting)
    assert judged.message == sentence
    assert judged.reason is BootReason.NO_DISCOVER


def test_several_macs_are_named_four_at_most() -> None:
    macs = tuple(f"52:54:00:00:00:0{number}" for number in range(6))
    assert f"no DISCOVER from {', '.join(macs[:4])} and 2 more;" in judge(watch(60.0, RUNNING, macs=macs)).message
    assert "the machine, whose Hardware has no interface;" in judge(watch(60.0, RUNNING, macs=())).message


@pytest.mark.parametrize("cause", Cause)
def test_bmc_that_cannot_be_read_is_the_reason_and_the_machine_is_waited_for(cause: Cause) -> None:
    error = BmcError(cause, "BMC http://u:hush@192.0.2.9/x?token=hush:\nno answer " + "x" * 1000)
    judged = judge(watch(60.0, error=error))
    assert isinstance(judged, Waiting)
    assert (judged.reason, judged.reads_bmc) == (cause, False)
    assert judged.message.startswith(f"no DISCOVER from {MAC}, and the BMC can't be read: BMC http://192.0.2.9/x?…")
    assert judged.message.endswith("…; the machine may boot")
    assert "hush" not in judged.message
    assert "\n" not in judged.message
    assert len(judged.message) < 500
    ended = judge(watch(300.0, error=error, is_last=True))
    assert isinstance(ended, Exhausted)
    assert ended.reason is cause


# --- judge: the installed system starts instead -----------------------------------------------------------------------

DISK = f"the last boot seen by DHCP is of the installed operating system (from {MAC}), no netboot"
REMEDY = "check the link, and put the network first in the boot order"


def test_installed_system_is_named_at_once_and_ends_the_rung_after_a_grace() -> None:
    lost = boot_of("OperatingSystem")
    first = judge(watch(40.0, last_boot=lost))
    assert first == Waiting(
        LOST_SECONDS,
        BootReason.OVERRIDE_LOST,
        f"{DISK}; put the network first in the firmware's boot order",
        reads_bmc=True,
    )
    read = judge(watch(40.0, USED, last_boot=lost))
    assert isinstance(read, Waiting)
    assert (read.reads_bmc, read.seconds) == (False, LOST_SECONDS)
    assert read.message == (
        f"{DISK}; the BMC reports no boot override any more; possible causes: it was lost, or the firmware used it and "
        f"found no network; {REMEDY}"
    )
    later = judge(watch(45.0, USED, last_boot=lost, lost_for=5.0))
    assert isinstance(later, Waiting)
    assert (later.message, later.seconds) == (read.message, LOST_SECONDS - 5.0)
    ended = judge(watch(60.0, USED, last_boot=lost, lost_for=LOST_SECONDS))
    assert ended == NextRung(BootReason.OVERRIDE_LOST, f"pxe, attempt 1: {read.message}")
    assert isinstance(judge(watch(60.0, last_boot=boot_of("Netboot"), lost_for=LOST_SECONDS)), Booted)


@pytest.mark.parametrize(
    ("case", "seen", "way", "sentence"),
    [
        (
            "override still there",
            RUNNING,
            "pxe",
            f"{DISK}; the BMC reports boot target Pxe (Once, UEFI); possible causes: the firmware ignored it, or "
            f"found no network; {REMEDY}",
        ),
        (
            "another override",
            replace(RUNNING, boot=replace(ONCE, target="Hdd", enabled="Continuous")),
            "pxe",
            f"{DISK}; the BMC reports boot target Hdd (Continuous, UEFI) instead of Pxe; possible causes: it was "
            f"replaced, or the firmware found no network and the earlier one was restored; {REMEDY}",
        ),
        (
            "override for the next restart",
            replace(USED, pending_boot=ONCE),
            "pxe",
            f"{DISK}; the BMC reports boot target Pxe (Once, UEFI) for the next restart; possible causes: it was not "
            f"applied at this start; {REMEDY}",
        ),
        (
            "no override at all",
            replace(RUNNING, boot=None),
            "pxe",
            f"{DISK}; the BMC reports no boot override at all; possible causes: the firmware did not try the network, "
            f"or did not find it; {REMEDY}",
        ),
        (
            "flags of IPMI",
            USED,
            "ipmi",
            f"{DISK}; possible causes: the firmware did not try the network, or did not find it; {REMEDY}",
        ),
        (
            "virtual CD",
            USED,
            "cd",
            f"{DISK}; the BMC reports no boot override any more; possible causes: it was lost, or the firmware used it "
            "and found no medium; check the virtual CD, and put the medium first in the boot order",
        ),
        (
            "quirk 18: Once is set, and the disk boots",
            replace(USED, identity=Identity("Dell Inc.", "PowerEdge R660", redfish="1.6")),
            "pxe",
            f"{DISK}; the BMC reports no boot override any more; possible causes: it was lost, or the firmware used it "
            f"and found no network; {REMEDY}; known of this model: Once is set, and the machine boots from its disk: "
            "set it while the machine is off, and power-cycle once more (quirk 18)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 60 else "",
)
def test_sentence_about_the_installed_system_has_the_report_then_the_causes(
    case: str, seen: Observation, way: str, sentence: str
) -> None:
    judged = judge(watch(40.0, seen, rung=Rung(BootWay(way), 1), last_boot=boot_of("OperatingSystem")))
    assert isinstance(judged, Waiting)
    assert judged.message == sentence


@pytest.mark.parametrize(
    ("identity", "way", "number"),
    [
        (Identity("Supermicro", "X11DSC+", redfish="1.6"), "ipmi", 15),
        (Identity("Dell Inc.", "PowerEdge R760", redfish="1.6"), "http", 23),
    ],
)
def test_known_fault_is_named_in_the_way_that_it_concerns(identity: Identity, way: str, number: int) -> None:
    seen, lost = replace(USED, identity=identity), boot_of("OperatingSystem")
    assert f"(quirk {number})" in judge(watch(40.0, seen, rung=Rung(BootWay(way), 1), last_boot=lost)).message
    assert f"(quirk {number})" not in judge(watch(40.0, seen, last_boot=lost)).message


def test_installed_system_is_named_although_the_bmc_cannot_be_read() -> None:
    error = BmcError(Cause.UNREACHABLE, "no answer")
    judged = judge(watch(40.0, error=error, last_boot=boot_of("OperatingSystem")))
    assert isinstance(judged, Waiting)
    assert (judged.reason, judged.reads_bmc) == (BootReason.OVERRIDE_LOST, False)
    assert f"{DISK}; the BMC can't be read: no answer; " in judged.message


# --- after the end ----------------------------------------------------------------------------------------------------

CLEAR, EJECT = ClearedBoot(), WantedMedium("CD")
FULL_CD: Final = replace(CD, image=ISO, inserted=True)
LENOVO: Final = Identity("Lenovo", "ThinkSystem SR630", redfish="1.15")


@pytest.mark.parametrize(
    ("case", "seen", "medium", "has_installed", "expected"),
    [
        ("nothing pending, nothing inserted", replace(FULL, power=PowerState.ON), "CD", True, ()),
        ("override pending", RUNNING, "", False, (CLEAR,)),
        ("override pending after an installation", RUNNING, "", True, (CLEAR,)),
        ("override pending in the settings", replace(USED, pending_boot=ONCE), "", True, (CLEAR,)),
        ("override Continuous", replace(FULL, boot=replace(ONCE, enabled="Continuous")), "", True, (CLEAR,)),
        ("override of UEFI HTTP boot", replace(FULL, boot=replace(ONCE, target="UefiHttp")), "", True, (CLEAR,)),
        ("override of the disk, by another program", replace(FULL, boot=replace(ONCE, target="Hdd")), "", True, ()),
        ("target without an override", replace(FULL, boot=replace(ONCE, enabled="Disabled")), "", True, ()),
        ("no override at all", replace(FULL, boot=None), "", True, ()),
        ("medium inserted", replace(FULL, slots=(CD, FULL_CD)), "CD", True, (EJECT,)),
        ("medium of another program", replace(FULL, slots=(FULL_CD,)), "", True, ()),
        ("medium and override", replace(RUNNING, slots=(FULL_CD,)), "CD", False, (CLEAR, EJECT)),
        ("slots not read", replace(FULL, slots=None), "CD", True, (EJECT,)),
        (
            "quirk 25: nothing after an installation",
            replace(RUNNING, slots=(FULL_CD,), identity=LENOVO),
            "CD",
            True,
            (),
        ),
        (
            "quirk 25: all if nothing was installed",
            replace(RUNNING, slots=(FULL_CD,), identity=LENOVO),
            "CD",
            False,
            (CLEAR, EJECT),
        ),
        (
            "quirk 16: UefiTarget stands for Pxe",
            replace(
                FULL,
                boot=replace(ONCE, target="UefiTarget"),
                identity=Identity("Dell Inc.", "PowerEdge R640", "3.32", redfish="1.6"),
            ),
            "",
            True,
            (CLEAR,),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) > 2 else "",
)
def test_clean_up_undoes_what_the_ladder_has_left_and_nothing_else(
    case: str, seen: Observation, medium: str, has_installed: bool, expected: tuple[Wanted, ...]
) -> None:
    assert clean_up(seen, medium=medium, has_installed=has_installed) == expected


def test_nothing_is_left_after_the_clean_up() -> None:
    dirty = replace(RUNNING, slots=(FULL_CD,))
    assert clean_up(dirty, medium="CD", has_installed=True) == (CLEAR, EJECT)
    for wanted in (CLEAR, EJECT):
        assert not isinstance(decide(wanted, dirty, [], Quirks(), 0.0, 0.0), Done)
        assert isinstance(decide(wanted, replace(FULL, power=PowerState.ON), [], Quirks(), 0.0, 0.0), Done)


# --- properties -------------------------------------------------------------------------------------------------------

_TEXTS = st.one_of(st.none(), st.text(max_size=80), st.sampled_from([*TARGETS, "UsbCd", "UefiTarget", "Once", "UEFI"]))
_BOOTS = st.one_of(
    st.none(),
    st.builds(
        Boot,
        target=_TEXTS,
        enabled=_TEXTS,
        mode=_TEXTS,
        http_uri=_TEXTS,
        allowed_targets=st.sampled_from([(), TARGETS, ("Hdd",)]),
    ),
)
_IDENTITIES = st.builds(
    Identity,
    vendor=st.sampled_from(["", *sorted({vendor for each in QUIRKS for vendor in each.vendors})]),
    model=st.sampled_from(["", "X10DRT-P", "ThinkSystem SR650 V4", "PowerEdge R640", "X11DSC+"]),
    firmware=st.sampled_from(["", "3.30"]),
    redfish=st.sampled_from(["", "1.9"]),
)
_SLOTS = st.sampled_from([None, (), (CD,), (Slot("/s/1"),)])
_SEEN = st.builds(
    Observation,
    power=st.sampled_from(PowerState),
    boot=_BOOTS,
    slots=_SLOTS,
    identity=_IDENTITIES,
    pending_boot=_BOOTS,
)
_TIMES = st.sampled_from(["", BEFORE, AFTER, "2026-11-30T18:05:00.5Z", "soon", "9" * 80])
_ERRORS = st.one_of(st.none(), st.builds(BmcError, st.sampled_from(Cause), st.text(max_size=400)))
_SECONDS = st.floats(0.0, 1e6)
_WATCHES = st.builds(
    Watch,
    rung=st.builds(Rung, st.sampled_from(BootWay), st.integers(1, 9)),
    is_last=st.booleans(),
    macs=st.sampled_from([(), (MAC,), (MAC, OTHER_MAC)]),
    waited=_SECONDS,
    last_boot_before=_TIMES,
    last_boot=st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {"at": _TIMES, "client": st.sampled_from([*BootClient, "", None]), "mac": st.one_of(st.none(), st.text())}
        ),
    ),
    seen=st.one_of(st.none(), _SEEN),
    error=_ERRORS,
    named_after=_SECONDS,
    next_after=_SECONDS,
    lost_for=_SECONDS,
)


@given(_WATCHES)
def test_judge_ends_each_rung_in_time_and_never_raises(given_watch: Watch) -> None:
    judged = judge(given_watch)
    if given_watch.waited >= given_watch.next_after:
        assert not isinstance(judged, Waiting)
    match judged:
        case Waiting():
            assert judged.seconds >= 1.0
            assert judged.seconds <= max(given_watch.next_after - given_watch.waited, 1.0)
            assert not judged.reads_bmc or (given_watch.seen is None and given_watch.error is None)
        case NextRung():
            assert not given_watch.is_last
        case Exhausted():
            assert given_watch.is_last
    assert 0 < len(judged.message) < 3000


@given(_WATCHES)
def test_no_sentence_says_more_than_was_read(given_watch: Watch) -> None:
    message = judge(given_watch).message
    if given_watch.seen is None:
        assert not re.search("the BMC reports", message)
    elif given_watch.seen.power is not PowerState.ON:
        assert "the BMC reports On" not in message


@given(_SEEN, st.sampled_from([(), ("redfish",), ("ipmi",), BOTH]), st.booleans(), st.booleans())
def test_each_ladder_has_rungs_and_each_rung_ends_with_the_machine_on(
    seen: Observation, protocols: tuple[str, ...], http: bool, medium: bool
) -> None:
    found = rungs(seen, protocols, has_http_url=http, has_medium=medium)
    assert 1 <= len(found) <= 5
    assert len(set(found)) == len(found)
    for rung in found:
        operations = parts(rung, seen, http_url=URL, medium_url=ISO, protocols=protocols)
        assert operations[-1].reason is BootReason.POWERING_ON
        assert operations[-1].wanted in (ON, WantedPower(PowerAction.RESET))
        assert all((part.protocol == "ipmi") == (rung.way is BootWay.IPMI) for part in operations)
        assert "ipmi" in protocols or rung.way is not BootWay.IPMI
