"""The ladder of a netboot: which ways of a BMC are tried, in which order, and how each is judged. Pure.

A machine has netbooted when its DISCOVER has arrived (`status.lastBoot` of its Hardware, which the edge writes), not
when the BMC has accepted a request. If none arrives, the next way is tried:

    pxe 1    off, boot device PXE for one boot, on
    pxe 2    the same again: a power cycle helps BMCs that lose the boot device at the first start
    http     UEFI HTTP boot from the URL of the edge
    cd       the machine's own boot medium as a virtual CD
    ipmi     boot device PXE by IPMI, of a BMC that was used by Redfish so far

`rungs` leaves out the ways that the BMC does not offer. If only IPMI can set the boot device (`quirks.needs_ipmi`),
ipmi and pxe change places. After the last way the cause is named, and the machine is left on: it still netboots when a
person has corrected the cause. `tink.bmc.workflows` carries the ladder out:

    rungs -> parts of the first rung -> judge, until it is Booted, or NextRung: the parts of the next one
    clean_up -> after the end of the Workflow

What an observation proves, and what it does not:

- A DHCP packet of firmware or iPXE proves the netboot, from whichever interface of the machine.
- A DHCP packet of an installed operating system proves that the machine started from its disk. It does not prove that
  the firmware never tried the network: without a link, it tries and sends nothing.
- A boot override that is gone was used by the firmware or lost by the BMC. One that is still there was ignored, or is
  not used yet, or the BMC clears it late.
- On proves nothing about the firmware: OpenBMC reports On for a host that has stopped (quirk 44).
- A BMC that can't be read proves nothing: the machine may boot meanwhile.

So a sentence has the reports first, and then the possible causes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final

from tink.api.v1alpha2 import BootClient, BootWay, PowerState, Raw
from tink.bmc.decision import TARGETS, allowed_targets, is_override, slots_of
from tink.bmc.model import (
    BmcError,
    Boot,
    BootDevice,
    BootMode,
    Cause,
    ClearedBoot,
    Enabled,
    Observation,
    PowerAction,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.quirks import needs_ipmi, quirks_for, row
from tink.net.urls import redacted
from tink.workflow.status import REASON_OTHER_WORKFLOW, parse_timestamp

MEDIUM_KIND: Final = "CD"
"""Kind of the virtual medium that the ways cd and iso insert: a MediaType of Redfish."""
LOOK_SECONDS: Final = 30.0
"""Longest pause between two looks at a machine whose DISCOVER is overdue."""
LOST_SECONDS: Final = 20.0
"""Seconds from the first sign of an installed operating system to the next rung.

The packet of the system that ran before the power-off may be reported late; the DISCOVER of the netboot follows it.
"""

_MAX_SHOWN: Final = 64
_MAX_ERROR_LENGTH: Final = 300
_MAX_MACS: Final = 4
_MIN_SECONDS: Final = 1.0
_DEVICES: Final = {
    BootWay.PXE: BootDevice.PXE,
    BootWay.HTTP: BootDevice.HTTP,
    BootWay.CD: BootDevice.CDROM,
    BootWay.IPMI: BootDevice.PXE,
    BootWay.ISO: BootDevice.CDROM,
}
"""The boot device of each way. `custom` has none: its actions are in the Workflow."""
_OWN_SYSTEM: Final = (BootWay.ISO, BootWay.CUSTOM)
"""Ways that may start a system of the user's, whose DHCP client looks like that of an installed one."""


class BootReason(StrEnum):
    """The reasons of the condition BootPrepared. A failure of the BMC has a `tink.bmc.model.Cause` instead."""

    POWERING_OFF = "PoweringOff"
    INSERTING_MEDIUM = "InsertingMedium"
    OVERRIDE_SET = "OverrideSet"
    POWERING_ON = "PoweringOn"
    STEP_OVERDUE = "StepOverdue"
    """A step or an action goes on for longer than the time after which causes are named."""
    WAITING_FOR_DISCOVER = "WaitingForDiscover"
    NO_DISCOVER = "NoDiscover"
    """The BMC did what was wanted, and no DHCP packet of the machine arrived."""
    OVERRIDE_LOST = "OverrideLost"
    """The machine has started its installed operating system, not the boot device that was set."""
    BOOTED = "Booted"
    RUNNING_ACTIONS = "RunningActions"
    ACTIONS_DONE = "ActionsDone"
    NO_BMC = "NoBmc"
    OTHER_WORKFLOW = REASON_OTHER_WORKFLOW


PROGRESS_REASONS: Final = frozenset(
    {
        BootReason.POWERING_OFF,
        BootReason.INSERTING_MEDIUM,
        BootReason.OVERRIDE_SET,
        BootReason.POWERING_ON,
        BootReason.RUNNING_ACTIONS,
        BootReason.WAITING_FOR_DISCOVER,
        BootReason.OTHER_WORKFLOW,
    }
)
"""The reasons of a boot that goes on, or waits for its turn: they are no problem."""


# --- the ladder -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rung:
    """One attempt of the ladder. `attempt` counts the attempts of this way from 1."""

    way: BootWay
    attempt: int


@dataclass(frozen=True, slots=True)
class BootPart:
    """One operation of an attempt (`tink.bmc.connections.BmcSession.perform`).

    reason: shown while it runs.
    protocol: `ipmi`: by IPMI alone, although Redfish works; empty: by the protocol that the operation needs.
    """

    reason: BootReason
    wanted: Wanted
    protocol: str = ""


def rungs(
    seen: Observation,
    protocols: Collection[str],
    *,
    has_http_url: bool,
    has_medium: bool,
    is_uefi: bool | None = None,
) -> tuple[Rung, ...]:
    """Return the ladder of a BMC, from what it reports. Never empty.

    `seen` was read with `boot` and `media`. `protocols` are those of the Machine. `has_http_url` and `has_medium`: the
    edge has a boot URL, and a boot medium, for this machine. `is_uefi`: the firmware mode in the Hardware, if it has
    one.
    """
    main, other = BootWay.PXE, BootWay.IPMI
    by_ipmi = [BootWay.IPMI] if seen.identity.redfish and "ipmi" in protocols else []
    if by_ipmi and needs_ipmi(_wanted_boot(BootWay.PXE, seen, is_uefi=is_uefi), seen):
        main, other = BootWay.IPMI, BootWay.PXE
    offered = {
        BootWay.PXE: _offers(BootDevice.PXE, seen),
        BootWay.HTTP: has_http_url and is_uefi is not False and _offers_http(seen),
        BootWay.CD: has_medium and _offers_cd(seen),
        BootWay.IPMI: bool(by_ipmi),
    }
    ladder = [Rung(main, 1), Rung(main, 2), Rung(BootWay.HTTP, 1), Rung(BootWay.CD, 1), Rung(other, 1)]
    # Without any way, the boot order of the firmware decides, and a power cycle may netboot (quirk 43).
    return tuple(rung for rung in ladder if offered[rung.way]) or (Rung(BootWay.PXE, 1), Rung(BootWay.PXE, 2))


def parts(
    rung: Rung,
    seen: Observation,
    *,
    http_url: str,
    medium_url: str,
    protocols: Collection[str] = (),
    is_uefi: bool | None = None,
) -> tuple[BootPart, ...]:
    """Return the operations of a rung, in order; none for the way `custom`.

    `seen` was read with `boot`, before this rung. `protocols` are those of the Machine. `medium_url` is the URL of the
    boot medium, or of the image for the way `iso`.

    The boot mode is the one in the Hardware (`is_uefi`), else the one that the BMC reports, else UEFI; UEFI HTTP boot
    is always in mode UEFI. Without a boot override of the BMC, the machine is only switched off and on.
    """
    if rung.way is BootWay.CUSTOM:
        return ()
    protocol = "ipmi" if rung.way is BootWay.IPMI else ""
    off = BootPart(BootReason.POWERING_OFF, WantedPower(PowerAction.OFF), protocol)
    start = BootPart(BootReason.POWERING_ON, WantedPower(PowerAction.ON), protocol)
    boot: tuple[BootPart, ...] = ()
    if protocol or _offers(_DEVICES[rung.way], seen):
        wanted, is_pxe = _wanted_boot(rung.way, seen, http_url, is_uefi=is_uefi), rung.way is BootWay.PXE
        if needs_ipmi(wanted, seen) and not protocol and (is_pxe or "ipmi" not in protocols):
            wanted = WantedBoot(wanted.device)  # quirk 11: by Redfish, the firmware keeps its own mode
        boot = (BootPart(BootReason.OVERRIDE_SET, wanted, protocol),)
    if rung.way in (BootWay.CD, BootWay.ISO):
        # Off comes first: an ejection under a running system corrupts its file system (quirk 36).
        media = (WantedMedium(MEDIUM_KIND), WantedMedium(MEDIUM_KIND, medium_url))
        return (off, *(BootPart(BootReason.INSERTING_MEDIUM, each) for each in media), *boot, start)
    restart = WantedPower(PowerAction.RESET)
    if boot and seen.power is PowerState.ON and "ipmi" in protocols and needs_ipmi(restart, seen):
        # Off would cut the power of the DPU, whose PXE then starts too late (quirk 45).
        return (*boot, BootPart(BootReason.POWERING_ON, restart))
    return (off, *boot, start)


def clean_up(seen: Observation, *, medium: str, has_installed: bool) -> tuple[Wanted, ...]:
    """Return what is to be undone on a BMC after the end of a Workflow, in order.

    `seen` was read with `boot` and `media`. `medium` is the kind of the medium that was inserted; empty: none.
    `has_installed`: the Workflow may have installed an operating system; False if its first action never began.

    Undone are a boot override of the ladder that is still pending, and the medium. A boot override of another target,
    such as the disk, stays. Nothing is undone on a BMC whose boot must not be changed after an installation (quirk 25).
    Call it when the installation environment no longer runs (quirk 36), and not for the actions of `custom`.
    """
    quirks = quirks_for(seen.identity)
    if has_installed and quirks.untouched_after_installation:
        return ()
    own = {target for device in _DEVICES.values() for target in TARGETS[device]} | {quirks.pending_target}
    overrides = [each for each in (seen.boot, seen.pending_boot) if each is not None and is_override(each)]
    boot = (ClearedBoot(),) if any(each.target in own for each in overrides) else ()
    # Slots that were not read, such as by IPMI, may be full: the operation reads them, or reports that it can't.
    is_full = seen.slots is None or any(slot.inserted for slot in slots_of(medium, seen.slots, quirks))
    return (*boot, WantedMedium(medium)) if medium and is_full else boot


def _wanted_boot(way: BootWay, seen: Observation, http_url: str = "", *, is_uefi: bool | None = None) -> WantedBoot:
    """Return the boot device of a way, for one boot, in the mode of the Hardware, else the reported one, else UEFI."""
    device, boot = _DEVICES[way], seen.boot
    if device is BootDevice.HTTP:
        # Without HttpBootUri, the firmware gets the URL by DHCP (class HTTPClient).
        has_no_uri = quirks_for(seen.identity).http_boot_by_bios and (boot is None or boot.http_uri is None)
        return WantedBoot(device, mode=BootMode.UEFI, http_uri="" if has_no_uri else http_url)
    if is_uefi is not None:
        return WantedBoot(device, mode=BootMode.UEFI if is_uefi else BootMode.LEGACY)
    reported = [each.mode for each in (boot, seen.pending_boot) if each is not None and each.mode]
    is_legacy = bool(reported) and str(reported[0]).casefold() == BootMode.LEGACY.casefold()
    return WantedBoot(device, mode=BootMode.LEGACY if is_legacy else BootMode.UEFI)


def _has_override(seen: Observation) -> bool:
    """Return True if the BMC reports a boot override at all, with or without a target that is set."""
    return seen.boot is not None and seen.boot.target is not None and seen.boot.enabled is not None


def _offers(device: BootDevice, seen: Observation) -> bool:
    """Return True if the BMC can set this boot device, as far as it reports."""
    if not _has_override(seen) or seen.boot is None:
        return False
    return bool(allowed_targets(device, seen.boot, quirks_for(seen.identity)))


def _offers_http(seen: Observation) -> bool:
    """Return True if the BMC lists UEFI HTTP boot; if it lists no targets, if it reports HttpBootUri. IPMI has none."""
    boot = seen.boot
    if not seen.identity.redfish or boot is None or not _offers(BootDevice.HTTP, seen):
        return False
    has_uefi = boot.mode is not None or not quirks_for(seen.identity).uefi_boot_by_ipmi
    return has_uefi and (bool(boot.allowed_targets) or boot.http_uri is not None)


def _offers_cd(seen: Observation) -> bool:
    """Return True if the BMC has a virtual CD drive, and can boot from it."""
    has_slot = bool(slots_of(MEDIUM_KIND, seen.slots or (), quirks_for(seen.identity)))
    return has_slot and _offers(BootDevice.CDROM, seen)


# --- while the machine boots ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch:
    """All that is known while the machine boots.

    macs: MAC addresses of the Hardware, for sentences.
    waited: seconds since the BMC reported On.
    last_boot_before: `status.lastBoot.at` of the Hardware after the power-off, before the power-on; empty: none.
    last_boot: `status.lastBoot` of the Hardware now.
    seen: the BMC, read for this look with `boot`; None: not read.
    error: why that read failed.
    named_after: seconds after which the cause is named.
    next_after: seconds after which the next way is tried.
    lost_for: seconds since the caller has first shown OVERRIDE_LOST for this rung; 0: it has not.
    """

    rung: Rung
    is_last: bool
    macs: tuple[str, ...]
    waited: float
    last_boot_before: str
    last_boot: Raw
    seen: Observation | None = None
    error: BmcError | None = None
    named_after: float = 60.0
    next_after: float = 300.0
    lost_for: float = 0.0


@dataclass(frozen=True, slots=True)
class Booted:
    """The machine boots as wanted."""

    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The machine may still boot.

    seconds: time until the next look, if the Hardware does not change before.
    reads_bmc: True: read the BMC now, and call `judge` again with `seen` or `error`.
    """

    seconds: float
    reason: BootReason | Cause
    message: str
    reads_bmc: bool = False


@dataclass(frozen=True, slots=True)
class NextRung:
    """This rung has failed, for this reason. There is another one."""

    reason: BootReason | Cause
    message: str


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The last rung has failed: the cause and the remedy. The caller keeps waiting for a late DISCOVER."""

    reason: BootReason | Cause
    message: str


def judge(watch: Watch) -> Booted | Waiting | NextRung | Exhausted:
    """Return how the boot stands. From `watch.next_after` on, the answer is never Waiting.

    Read the BMC before the call that ends a rung, or its message lacks the report of the BMC.
    """
    client, mac = _new_boot(watch)
    if client is BootClient.NETBOOT:
        return Booted(f"the machine netboots: its DHCP packet came from {mac}")
    if client is BootClient.OPERATING_SYSTEM and watch.rung.way in _OWN_SYSTEM:
        text = f"a system has started and sent a DHCP packet from {mac}"
        return Booted(f"{text}; DHCP does not show if it is of the medium or of the disk")
    is_lost = client is BootClient.OPERATING_SYSTEM
    is_over = watch.waited >= watch.next_after or (is_lost and watch.lost_for >= LOST_SECONDS)
    if not is_over and not is_lost and watch.waited < watch.named_after:
        seconds = min(watch.named_after, watch.next_after) - watch.waited
        text = f"the BMC reported On; the DISCOVER of {_named(watch.macs)} is awaited"
        return Waiting(max(seconds, _MIN_SECONDS), BootReason.WAITING_FOR_DISCOVER, text)
    reason, message = _lost(watch, mac) if is_lost else _silent(watch)
    if not is_over:
        pause = LOST_SECONDS - watch.lost_for if is_lost else LOOK_SECONDS
        seconds = max(min(pause, watch.next_after - watch.waited), _MIN_SECONDS)
        return Waiting(seconds, reason, message, reads_bmc=watch.seen is None and watch.error is None)
    message = f"{watch.rung.way.value}, attempt {watch.rung.attempt}: {message}"
    if watch.is_last:
        return Exhausted(reason, f"{message}. No other way is left: correct this, and netboot the machine once")
    return NextRung(reason, message)


def _new_boot(watch: Watch) -> tuple[BootClient | None, str]:
    """Return the client and the MAC of a boot that is later than the one before the power-on; None without one.

    Both times are of edges, whose clocks may differ from this one.
    """
    last = watch.last_boot or {}
    at, before = parse_timestamp(last.get("at")), parse_timestamp(watch.last_boot_before)
    if at is None or (before is not None and at <= before):
        return None, ""
    client = next((each for each in BootClient if each.value == last.get("client")), None)
    return client, str(last.get("mac") or "an unknown address")[:_MAX_SHOWN]


# --- sentences --------------------------------------------------------------------------------------------------------


class _Override(Enum):
    """The boot override, compared with the one that was set."""

    UNKNOWN = auto()
    """The BMC has none, or it is not the one that was set."""
    PENDING = auto()
    NEXT_RESTART = auto()
    """The BMC keeps it for the next restart (@Redfish.Settings)."""
    OTHER = auto()
    GONE = auto()


_NETWORK: Final = "cable, VLAN, or wrong MAC"
_CONSOLE: Final = "a self-test that is not over (look at the console)"
_FIRMWARE: Final = "network boot disabled in the firmware's setup"
_MEDIUM: Final = "the BMC has not fetched the medium (the journey shows its download)"
_OWN_MEDIUM: Final = "the BMC can't fetch the image, or the image sends no DHCP packet"
_ORDER: Final = "a boot order of the firmware without the network"
_STATIC: Final = "the installed system started and sent no DHCP packet"
_LOST_ROWS: Final = (1, 14, 18)
"""Known faults that may explain a lost boot device."""


def _silent(watch: Watch) -> tuple[BootReason | Cause, str]:
    """Return the reason and the sentence about a machine that has sent no DHCP packet."""
    missing = f"no DISCOVER from {_named(watch.macs)}"
    if watch.error is not None:
        return watch.error.cause, f"{missing}, and the BMC can't be read: {_answer(watch.error)}; the machine may boot"
    seen = watch.seen
    if seen is None:
        return BootReason.NO_DISCOVER, f"{missing}; possible causes: {_NETWORK}"
    if seen.power is PowerState.OFF:
        text = f"the BMC reports Off again, {missing}"
        causes = "possible causes: the machine switched itself off, was switched off, or lost its power"
        remedy = "look at the BMC's event log and the power supplies"
        return BootReason.NO_DISCOVER, "; ".join([text, causes, remedy, *_known(seen, (19,))])
    if seen.power is PowerState.UNKNOWN:
        text = f"the BMC reports neither On nor Off, {missing}; look at the BMC's event log, or reset the BMC"
        return BootReason.NO_DISCOVER, text
    causes = "; ".join([*_causes(watch.rung.way, seen), *_known(seen, (45,))])
    return BootReason.NO_DISCOVER, f"the BMC reports On{_boot_clause(watch.rung, seen)}, {missing}; {causes}"


def _causes(way: BootWay, seen: Observation) -> Iterator[str]:
    """Yield the possible causes of a missing DISCOVER of a machine that is on, the first with a heading."""
    yield f"possible causes: {_NETWORK}"
    override = _override(way, seen)
    if override is _Override.NEXT_RESTART:
        yield "a boot device that the BMC has not applied yet"
    if override is _Override.OTHER:
        yield "a boot device that another program, or the BMC, has replaced"
    if way in _OWN_SYSTEM:
        yield _OWN_MEDIUM
    elif way is BootWay.CD:
        yield _MEDIUM
    elif _has_override(seen) or way is BootWay.IPMI:
        yield _FIRMWARE
    else:
        yield _ORDER
    yield _STATIC if override is _Override.GONE else _CONSOLE
    if 44 in quirks_for(seen.identity).rows:
        yield "this BMC may report On for a host that has stopped (quirk 44): look at its event log"


def _lost(watch: Watch, mac: str) -> tuple[BootReason, str]:
    """Return the reason and the sentence about a machine that has started its installed operating system."""
    seen, way = watch.seen, watch.rung.way
    source = "medium" if way is BootWay.CD else "network"
    text = f"the last boot seen by DHCP is of the installed operating system (from {mac}), no netboot"
    if watch.error is not None:
        text += f"; the BMC can't be read: {_answer(watch.error)}"
    if seen is None:
        return BootReason.OVERRIDE_LOST, f"{text}; put the {source} first in the firmware's boot order"
    causes = {
        _Override.UNKNOWN: f"the firmware did not try the {source}, or did not find it",
        _Override.PENDING: f"the firmware ignored it, or found no {source}",
        _Override.NEXT_RESTART: "it was not applied at this start",
        _Override.OTHER: f"it was replaced, or the firmware found no {source} and the earlier one was restored",
        _Override.GONE: f"it was lost, or the firmware used it and found no {source}",
    }
    if reported := _boot_clause(watch.rung, seen).removeprefix(", "):
        text += f"; the BMC reports {reported}"
    text += f"; possible causes: {causes[_override(way, seen)]}"
    rows = (*_LOST_ROWS, *((15,) if way is BootWay.IPMI else ()), *((23,) if way is BootWay.HTTP else ()))
    remedy = f"check the {'virtual CD' if way is BootWay.CD else 'link'}, and put the {source} first in the boot order"
    return BootReason.OVERRIDE_LOST, "; ".join([text, remedy, *_known(seen, rows)])


def _override(way: BootWay, seen: Observation) -> _Override:
    """Compare the boot override that the BMC reports with that of a way."""
    device, boot = _DEVICES.get(way), seen.boot
    # Redfish does not report the boot flags of IPMI on all BMCs.
    if device is None or boot is None or not _has_override(seen) or (way is BootWay.IPMI and seen.identity.redfish):
        return _Override.UNKNOWN
    own = (*TARGETS[device], quirks_for(seen.identity).pending_target)
    if is_override(boot):
        return _Override.PENDING if boot.target in own else _Override.OTHER
    pending = seen.pending_boot
    is_kept = pending is not None and is_override(pending) and pending.target in own
    return _Override.NEXT_RESTART if is_kept else _Override.GONE


def _boot_clause(rung: Rung, seen: Observation) -> str:
    """Return what the BMC reports about the boot device, with a comma before; empty if nothing can be concluded."""
    override, boot, pending = _override(rung.way, seen), seen.boot, seen.pending_boot
    if override in (_Override.PENDING, _Override.OTHER) and boot is not None:
        if override is _Override.OTHER:
            return f", boot target {_shown(boot)} instead of {TARGETS[_DEVICES[rung.way]][0]}"
        return f", boot target {_shown(boot, Enabled.ONCE)}"
    if override is _Override.NEXT_RESTART and pending is not None:
        return f", boot target {_shown(pending, Enabled.ONCE)} for the next restart"
    if override is _Override.GONE:
        return ", no boot override any more"
    return "" if _has_override(seen) or rung.way is BootWay.IPMI else ", no boot override at all"


def _shown(boot: Boot, wanted: Enabled | None = None) -> str:
    """Return the target of a boot override, and in brackets how long it holds, and its mode.

    `wanted`: how long it was to hold, if that is to be compared.
    """
    details = [each[:_MAX_SHOWN] for each in (boot.enabled, boot.mode) if each]
    if wanted is not None and boot.enabled and boot.enabled.casefold() != wanted.casefold():
        details[0] += f" instead of {wanted}"
    return f"{str(boot.target)[:_MAX_SHOWN]}" + (f" ({', '.join(details)})" if details else "")


def _named(macs: Sequence[str]) -> str:
    """Return the MAC addresses of a machine for a sentence, at most four of them."""
    if not macs:
        return "the machine, whose Hardware has no interface"
    others = f" and {len(macs) - _MAX_MACS} more" if len(macs) > _MAX_MACS else ""
    return ", ".join(macs[:_MAX_MACS]) + others


def _answer(error: BmcError) -> str:
    """Return the message of an error on one line, shortened, with URLs that have no user, password and query."""
    text = " ".join(redacted(str(error)[: 2 * _MAX_ERROR_LENGTH]).split())
    return text if len(text) <= _MAX_ERROR_LENGTH else f"{text[: _MAX_ERROR_LENGTH - 1]}…"


def _known(seen: Observation, numbers: Collection[int]) -> Iterator[str]:
    """Yield the known faults of this BMC that may be the cause."""
    for number in quirks_for(seen.identity).rows:
        if number in numbers:
            known = row(number)
            yield f"known of this model: {known.symptom}: {known.remedy} (quirk {number})"
