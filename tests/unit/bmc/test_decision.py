"""The decision as a pure function: pauses, limits, lost answers; and any BMC at all, for thousands of seeds."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from tink.bmc.decision import (
    MAX_POWER_SECONDS,
    MAX_REQUESTS,
    MAX_SECONDS,
    Attempt,
    Decision,
    Done,
    GiveUp,
    Send,
    Wait,
    after_failed_read,
    decide,
    describe,
    limit_of,
)
from tink.bmc.model import (
    BmcError,
    Boot,
    BootDevice,
    BootMode,
    Cause,
    ClearedBoot,
    EjectMedium,
    Identity,
    InsertMedium,
    Observation,
    PowerAction,
    PowerState,
    Request,
    Reset,
    ResetType,
    SetBoot,
    Slot,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.quirks import QUIRKS, Quirks, quirks_for

REDFISH = Identity(redfish="1.15.0", serial="S1")
OFF = Observation(PowerState.OFF, identity=REDFISH)
ON = Observation(PowerState.ON, identity=REDFISH, last_reset="2026-11-30T18:00:00Z")
UNKNOWN = Observation(PowerState.UNKNOWN, identity=REDFISH)
NO_QUIRKS: Final = Quirks()
POWER_ON, RESTART = WantedPower(PowerAction.ON), WantedPower(PowerAction.RESET)
SIGNED = "https://user:hush@192.0.2.1/boot.iso?signature=hush"


def failed(request: Request, at: float, cause: Cause, *, text: str = "no", retry_after: float = 0.0) -> Attempt:
    return Attempt(request, at, BmcError(cause, text, retry_after=retry_after), "On", OFF, reads=1)


def next_of(
    wanted: Wanted, seen: Observation, *attempts: Attempt, now: float = 0.0, quirks: Quirks = NO_QUIRKS
) -> Decision:
    return decide(wanted, seen, attempts, quirks, now, 0.0)


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [Cause.BUSY, Cause.CONFLICT, Cause.UNREACHABLE])
def test_pauses_grow_after_each_failure(cause: Cause) -> None:
    attempts: list[Attempt] = []
    waits = []
    for _ in range(4):
        attempts.append(failed(Reset(ResetType.ON), 0.0, cause))
        decision = next_of(POWER_ON, OFF, *attempts)
        assert isinstance(decision, Wait)
        assert decision.reason == "the BMC was asked for Reset On and answered: no"
        waits.append(decision.seconds)
        assert next_of(POWER_ON, OFF, *attempts, now=decision.seconds) == Send(Reset(ResetType.ON), "On")
    assert all(2.0 * 2**number * 0.5 <= wait <= 2.0 * 2**number for number, wait in enumerate(waits))


def test_pauses_of_two_bmcs_differ_and_are_repeatable() -> None:
    attempt = failed(Reset(ResetType.ON), 0.0, Cause.BUSY)
    other = replace(OFF, identity=replace(REDFISH, serial="S2"))
    first = next_of(POWER_ON, OFF, attempt)
    assert first == next_of(POWER_ON, OFF, attempt)
    assert first != next_of(POWER_ON, other, attempt)


def test_pause_is_as_long_as_the_bmc_asks_for_up_to_a_minute() -> None:
    for retry_after, seconds in ((30.0, 30.0), (1e9, 60.0)):
        decision = next_of(POWER_ON, OFF, failed(Reset(ResetType.ON), 0.0, Cause.BUSY, retry_after=retry_after))
        assert isinstance(decision, Wait)
        assert decision.seconds == seconds


def test_power_state_between_on_and_off_is_awaited_then_the_request_is_sent() -> None:
    assert isinstance(next_of(POWER_ON, UNKNOWN, now=10.0), Wait)
    assert next_of(POWER_ON, UNKNOWN, now=25.0) == Send(Reset(ResetType.ON), "On")
    status = WantedPower(PowerAction.STATUS)
    assert isinstance(next_of(status, UNKNOWN, now=10.0), Wait)
    ended = next_of(status, UNKNOWN, now=25.0)
    assert isinstance(ended, GiveUp)
    assert ended.cause is Cause.BAD_ANSWER


def test_effect_counts_although_the_request_was_refused() -> None:
    assert isinstance(next_of(POWER_ON, ON, failed(Reset(ResetType.ON), 0.0, Cause.REFUSED)), Done)


def test_answers_that_get_lost_end_the_operation_after_five() -> None:
    attempts = [failed(Reset(ResetType.ON), 0.0, Cause.BAD_ANSWER)] * 5
    ended = next_of(POWER_ON, OFF, *attempts, now=200.0)
    assert isinstance(ended, GiveUp)
    assert (ended.cause, "5 times for Reset On" in ended.message) == (Cause.BAD_ANSWER, True)
    assert isinstance(next_of(POWER_ON, OFF, *attempts[:4], now=200.0), Send)


@pytest.mark.parametrize("cause", [Cause.CREDENTIALS_REFUSED, Cause.CERTIFICATE])
def test_refused_credentials_end_the_operation_at_once(cause: Cause) -> None:
    attempt = failed(Reset(ResetType.ON), 0.0, cause, text="the password is refused")
    assert next_of(POWER_ON, OFF, attempt) == GiveUp(cause, "the password is refused")


def test_reset_type_that_the_bmc_does_not_list_is_not_sent() -> None:
    seen = replace(ON, allowed_resets=("On", "ForceOff", "PowerCycle"))
    assert next_of(RESTART, seen) == Send(Reset(ResetType.POWER_CYCLE), "PowerCycle")
    ended = next_of(WantedPower(PowerAction.SOFT), seen)
    assert isinstance(ended, GiveUp)
    assert ended.message == (
        "the BMC allows On, ForceOff, PowerCycle, not GracefulShutdown; "
        "the operating system may not listen to the power button; use off"
    )


def test_refused_restart_is_tried_as_a_power_cycle() -> None:
    refused = Attempt(Reset(ResetType.FORCE_RESTART), 0.0, BmcError(Cause.REFUSED, "no"), "ForceRestart", ON, 1)
    assert next_of(RESTART, ON, refused) == Send(Reset(ResetType.POWER_CYCLE), "PowerCycle")


def lost_restart(before: Observation) -> Attempt:
    return Attempt(Reset(ResetType.FORCE_RESTART), 0.0, BmcError(Cause.UNREACHABLE, "gone"), "ForceRestart", before, 1)


def test_restart_whose_answer_got_lost_is_repeated_only_if_it_did_not_happen() -> None:
    restarted = replace(ON, last_reset="2026-11-30T18:01:00Z")
    assert isinstance(next_of(RESTART, restarted, lost_restart(ON)), Done)
    assert isinstance(next_of(RESTART, ON, lost_restart(ON), now=30.0), Wait)
    assert next_of(RESTART, ON, lost_restart(ON), now=61.0) == Send(Reset(ResetType.FORCE_RESTART), "ForceRestart")
    silent = replace(ON, last_reset="")
    ended = next_of(RESTART, silent, lost_restart(silent))
    assert isinstance(ended, GiveUp)
    assert "the machine may have restarted" in ended.message


def test_forms_take_turns_after_four_conflicts() -> None:
    seen = Observation(PowerState.OFF, Boot("None", "Disabled", "Legacy"), identity=REDFISH)
    attempts: list[Attempt] = []
    forms = []
    for _ in range(12):
        decision = next_of(WantedBoot(BootDevice.PXE, mode=BootMode.UEFI), seen, *attempts, now=len(attempts) * 60.0)
        if not isinstance(decision, Send):
            break
        error = BmcError(Cause.CONFLICT, "409")
        attempts.append(Attempt(decision.request, len(attempts) * 60.0, error, decision.form, seen, 1))
        forms.append(decision.form)
    assert forms == ["as wanted (Pxe)"] * 4 + ["mode by itself (Pxe)"] * 4 + ["without mode (Pxe)"] * 2
    assert isinstance(decision, GiveUp)
    assert decision.cause is Cause.CONFLICT


def test_limits() -> None:
    assert limit_of(WantedPower(PowerAction.ON)) == MAX_POWER_SECONDS
    assert limit_of(WantedPower(PowerAction.SOFT)) == MAX_SECONDS
    assert limit_of(WantedBoot(BootDevice.PXE)) == MAX_SECONDS


# --- boot devices of IPMI, and messages -------------------------------------------------------------------------------


def test_ipmi_has_no_settings_resource_and_may_know_safe() -> None:
    seen = Observation(PowerState.ON, Boot("None", "Disabled", "Legacy"))
    assert isinstance(next_of(WantedBoot(BootDevice.SAFE), seen), Send)
    requests, _ = refuse_all(WantedBoot(BootDevice.PXE), seen)
    assert requests == [SetBoot("Pxe", "Once"), SetBoot("Pxe"), SetBoot("Pxe", "Once", "Legacy")]


def refuse_all(wanted: Wanted, seen: Observation, quirks: Quirks = NO_QUIRKS) -> tuple[list[Request], GiveUp]:
    """Refuse each request, and return all of them and the end."""
    attempts: list[Attempt] = []
    while isinstance(decision := next_of(wanted, seen, *attempts, quirks=quirks), Send):
        attempts.append(Attempt(decision.request, 0.0, BmcError(Cause.REFUSED, "no"), decision.form, seen, 1))
    assert isinstance(decision, GiveUp)
    return [each.request for each in attempts], decision


def test_redfish_without_a_list_of_targets_has_no_safe() -> None:
    seen = Observation(PowerState.ON, Boot("None", "Disabled", "UEFI"), identity=REDFISH)
    requests, ended = refuse_all(WantedBoot(BootDevice.SAFE), seen)
    assert (requests, ended.cause) == ([], Cause.UNSUPPORTED)
    assert refuse_all(WantedBoot(BootDevice.SAFE), replace(seen, identity=Identity()))[0]


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        ((Cause.UNSUPPORTED, Cause.UNSUPPORTED), Cause.UNSUPPORTED),
        ((Cause.UNSUPPORTED, Cause.PRECONDITION), Cause.PRECONDITION),
        ((Cause.PRECONDITION, Cause.BAD_ANSWER, Cause.REFUSED), Cause.REFUSED),
    ],
)
def test_cause_of_several_refusals(causes: tuple[Cause, ...], expected: Cause) -> None:
    attempts = [
        Attempt(Reset(kind), 0.0, BmcError(cause, f"{cause}"), str(kind), ON, 1)
        for cause, kind in zip(causes, (ResetType.FORCE_RESTART, ResetType.POWER_CYCLE), strict=False)
    ]
    if len(causes) > len(attempts):
        attempts.append(replace(attempts[-1], error=BmcError(causes[-1], "no")))
    ended = next_of(RESTART, ON, *attempts, now=90.0)
    assert isinstance(ended, GiveUp)
    assert ended.cause is expected


def test_forms_of_a_boot_override_in_their_order() -> None:
    seen = Observation(PowerState.ON, Boot("None", "Disabled", "Legacy"), identity=REDFISH)
    requests, ended = refuse_all(WantedBoot(BootDevice.PXE, mode=BootMode.UEFI), seen)
    forms = [
        SetBoot("Pxe", "Once", "UEFI"),
        SetBoot(mode="UEFI"),
        SetBoot("Pxe", "Once"),
        SetBoot("Pxe"),
    ]
    assert requests == [*forms, *(replace(each, at_settings=True) for each in forms)]
    assert ended.message.startswith("the BMC refused boot target Pxe, enabled Once, mode UEFI in 8 forms: no; ")


def test_settings_resource_that_is_missing_is_asked_for_once() -> None:
    seen = Observation(PowerState.ON, Boot("None", "Disabled", "UEFI"), identity=REDFISH)
    missing = BmcError(Cause.UNSUPPORTED, "the System has no @Redfish.Settings")
    quirks = Quirks(at_settings=True)
    first = next_of(WantedBoot(BootDevice.PXE), seen, quirks=quirks)
    assert isinstance(first, Send)
    assert first.request == SetBoot("Pxe", "Once", at_settings=True)
    attempt = Attempt(first.request, 0.0, missing, first.form, seen, 1)
    second = next_of(WantedBoot(BootDevice.PXE), seen, attempt, quirks=quirks)
    assert isinstance(second, Send)
    assert second.request == SetBoot("Pxe", "Once")


@pytest.mark.parametrize("is_alone", [True, False])
def test_forms_of_an_insertion_in_their_order(is_alone: bool) -> None:
    seen = Observation(PowerState.ON, slots=(Slot("/s/CD", ("CD",)), Slot("/s/DVD", ("DVD",))), identity=REDFISH)
    url, inserted = "http://192.0.2.1/a.iso", (("Inserted", True), ("WriteProtected", True))
    requests, _ = refuse_all(WantedMedium("CD", url), seen, Quirks(insert_image_alone=is_alone))
    assert requests == [
        request
        for slot in ("/s/CD", "/s/DVD")
        for request in (
            InsertMedium(slot, url),
            *(() if is_alone else (InsertMedium(slot, url, inserted),)),
            InsertMedium(slot, url, inserted, by_patch=True),
        )
    ]


@pytest.mark.parametrize("reported", ["None", "UsbCd"])
def test_sentence_is_about_the_target_that_was_accepted(reported: str) -> None:
    seen = Observation(PowerState.ON, Boot(reported, "Disabled", "UEFI", None, ("Cd", "UsbCd")), identity=REDFISH)
    attempts: list[Attempt] = []
    while isinstance(decision := next_of(WantedBoot(BootDevice.CDROM), seen, *attempts, now=30.0), Send):
        is_usb = isinstance(decision.request, SetBoot) and decision.request.target == "UsbCd"
        error = None if is_usb else BmcError(Cause.REFUSED, "no")
        attempts.append(Attempt(decision.request, 0.0, error, decision.form, seen, 9))
    assert isinstance(decision, GiveUp)
    target = "" if reported == "UsbCd" else "UsbCd, "
    assert decision.message.startswith(f"the BMC accepted {target}Once and reports ")


@pytest.mark.parametrize("url", ["", "http://192.0.2.1/boot.iso"])
def test_medium_by_ipmi_is_an_error_and_not_an_empty_drive(url: str) -> None:
    ended = next_of(WantedMedium("CD", url), Observation(PowerState.ON))
    assert ended == GiveUp(
        Cause.UNSUPPORTED, "the BMC was read by IPMI, which has no virtual media; use Redfish, or PXE"
    )


def test_medium_that_the_bmc_names_in_another_way_is_ours_only_after_it_was_accepted() -> None:
    slot = Slot("/s/CD", ("CD",), "boot.iso", inserted=True)
    seen = Observation(PowerState.ON, slots=(slot,), identity=REDFISH)
    wanted = WantedMedium("CD", "http://192.0.2.1/boot.iso")
    assert next_of(wanted, seen) == Send(EjectMedium("/s/CD"), "insert /s/CD, Image alone")
    assert isinstance(next_of(wanted, seen, Attempt(InsertMedium("/s/CD", wanted.url), 0.0)), Done)
    escaped = replace(seen, slots=(replace(slot, image="http://192.0.2.1/%62oot.iso"),))
    assert isinstance(next_of(wanted, escaped), Done)


def test_override_is_not_cleared_where_there_is_none() -> None:
    for boot in (None, Boot(), Boot("None", "Once"), Boot("Pxe", "Disabled")):
        assert isinstance(next_of(ClearedBoot(), Observation(PowerState.ON, boot)), Done)
    assert isinstance(next_of(ClearedBoot(), Observation(PowerState.ON, Boot("Pxe", "Once"))), Send)


def test_no_message_has_the_password_or_the_signature_of_a_url() -> None:
    assert describe(InsertMedium("/redfish/v1/Managers/1/VirtualMedia/CD/", SIGNED)) == (
        "insertion of https://192.0.2.1/boot.iso?… into CD"
    )
    assert describe(SetBoot("UefiHttp", http_uri=SIGNED)) == "boot target UefiHttp, URI https://192.0.2.1/boot.iso?…"
    seen = Observation(PowerState.OFF, slots=(Slot("/s/CD", ("CD",)),), identity=REDFISH)
    attempt = failed(InsertMedium("/s/CD", SIGNED), 0.0, Cause.CONFLICT, text=f"can't load {SIGNED} now")
    for now in (0.0, MAX_SECONDS):
        decision = next_of(WantedMedium("CD", SIGNED), seen, attempt, now=now)
        assert isinstance(decision, Wait | GiveUp)
        assert "hush" not in str(decision)


# --- a BMC that can't be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "failures", "now", "is_over"),
    [
        (Cause.CREDENTIALS_REFUSED, 1, 0.0, True),
        (Cause.CERTIFICATE, 1, 0.0, True),
        (Cause.UNREACHABLE, 3, 59.0, False),
        (Cause.UNREACHABLE, 3, 60.0, True),
        (Cause.BUSY, 9, 299.0, False),
        (Cause.BUSY, 9, 300.0, True),
        (Cause.REFUSED, 2, 1.0, False),
        (Cause.REFUSED, 3, 1.0, True),
    ],
)
def test_failed_reads_are_repeated_for_a_while(cause: Cause, failures: int, now: float, is_over: bool) -> None:
    decision = after_failed_read(BmcError(cause, "no answer"), failures, 0.0, now, 300.0)
    if is_over:
        assert decision == GiveUp(cause, "no answer")
    else:
        assert isinstance(decision, Wait)
        assert 0 < decision.seconds <= 60
        assert decision.reason == "the BMC can't be read: no answer"


# --- any BMC ----------------------------------------------------------------------------------------------------------

WANTED: Final = (
    *(WantedPower(action) for action in PowerAction),
    WantedBoot(BootDevice.PXE, mode=BootMode.UEFI),
    WantedBoot(BootDevice.CDROM, persistent=True),
    WantedBoot(BootDevice.DISK, mode=BootMode.LEGACY),
    WantedBoot(BootDevice.HTTP, mode=BootMode.UEFI, http_uri=SIGNED),
    ClearedBoot(),
    WantedMedium("CD", SIGNED),
    WantedMedium("CD"),
)
ANSWERS: Final = (None, None, None, None, *(cause for cause in Cause if cause is not Cause.IGNORED))
OTHER_IMAGE: Final = "http://192.0.2.9/old.iso"


@dataclass
class AnyBmc:
    """A BMC that does anything: it refuses, ignores, applies a part or late, and changes by itself.

    habit: probability that it answers and acts as it did to the last request of the same kind.
    """

    chance: random.Random
    now: float = 0.0
    pending: list[tuple[float, Request]] = field(default_factory=list)
    habits: dict[type, tuple[Cause | None, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pick = self.chance.choice
        self.habit = pick([0.0, 0.5, 0.9, 1.0])
        boot = Boot(
            pick(["None", "Pxe", "Hdd", "UefiTarget", None]), pick(["Disabled", "Once", "Continuous", None]),
            pick(["UEFI", "Legacy", None]), pick(["", None, "http://192.0.2.7/"]),
            pick([(), ("None", "Pxe", "Hdd"), ("Pxe", "Cd", "UsbCd", "Hdd", "UefiHttp")]),
            pick([(), ("Disabled", "Once"), ("Disabled", "Once", "Continuous")]),
        )  # fmt: skip
        slots = tuple(
            Slot(
                f"/slots/EXT{number}", pick([("CD", "DVD"), ("DVD",), ("USBStick",), ()]),
                pick(["", OTHER_IMAGE, SIGNED]), pick([True, False]), pick([True, False]),
            )
            for number in range(self.chance.randrange(4))
        )  # fmt: skip
        self.seen = Observation(
            pick(list(PowerState)), pick([boot, boot, boot, None]), pick([slots, slots, None]),
            Identity(redfish=pick(["", "1.15.0"]), serial=pick(["", "S1"])),
            pick([(), (), ("On", "ForceOff")]), pick(["", "then"]), pick([None, None, boot, Boot("Pxe", "Once")]),
        )  # fmt: skip
        rows = self.chance.sample(QUIRKS, 3)
        self.quirks = quirks_for(Identity(pick(rows[0].vendors or ("",)), pick(rows[1].models or ("",)), "5.10.10"))

    def send(self, request: Request) -> BmcError | None:
        cause, effect = self.habits.get(type(request), (None, ""))
        if not effect or self.chance.random() > self.habit:
            cause, effect = self.chance.choice(ANSWERS), self.chance.choice(["all", "part", "late", "none"])
            self.habits[type(request)] = cause, effect
        is_done = cause is None or self.chance.random() < 0.2
        if is_done and effect in ("all", "part"):
            self._apply(request, self.chance.random() if effect == "part" else 0.0)
        elif is_done and effect == "late":
            self.pending.append((self.now + self.chance.uniform(0, 120), request))
        if cause is None:
            return None
        names = tuple(self.chance.sample(["TransferMethod", "UserName", "Inserted"], 2))
        text = self.chance.choice(["no", f"no {SIGNED}", "x" * 5000])
        return BmcError(cause, text, properties=names, retry_after=self.chance.choice([0.0, 0.0, 1e6]))

    def observe(self) -> Observation:
        for due, request in list(self.pending):
            if due <= self.now:
                self.pending.remove((due, request))
                self._apply(request, 0.0)
        if self.chance.random() < 0.03:  # an operator at its web page
            power = self.chance.choice(list(PowerState))
            self.seen = replace(self.seen, power=power, boot=self.seen.boot and replace(self.seen.boot, mode="Legacy"))
        return self.seen

    def _apply(self, request: Request, share_lost: float) -> None:
        seen = self.seen
        match request:
            case Reset(type=ResetType.ON):
                self.seen = replace(seen, power=PowerState.ON)
            case Reset(type=ResetType.FORCE_OFF | ResetType.GRACEFUL_SHUTDOWN):
                self.seen = replace(seen, power=PowerState.OFF)
            case Reset():
                self.seen = replace(seen, last_reset=seen.last_reset and f"at {self.now}")
            case SetBoot():
                names = [
                    name for name in ("target", "enabled", "mode", "http_uri") if getattr(request, name) is not None
                ]
                kept = {name: getattr(request, name) for name in names if self.chance.random() >= share_lost}
                if request.at_settings:
                    self.seen = replace(seen, pending_boot=replace(seen.pending_boot or Boot(), **kept))
                elif seen.boot is not None:
                    self.seen = replace(seen, boot=replace(seen.boot, **kept))
            case InsertMedium():
                self._set_slot(request.slot, self.chance.choice([request.url, "", "boot.iso"]), inserted=True)
            case EjectMedium():
                self._set_slot(request.slot, self.chance.choice(["", "boot.iso"]), inserted=False)

    def _set_slot(self, path: str, image: str, *, inserted: bool) -> None:
        slots = tuple(
            replace(slot, image=image, inserted=inserted) if slot.path == path else slot
            for slot in self.seen.slots or ()
        )
        self.seen = replace(self.seen, slots=slots)


def fields_of(boot: SetBoot | Boot) -> dict[str, str | None]:
    return {"target": boot.target, "enabled": boot.enabled, "mode": boot.mode, "http_uri": boot.http_uri}


def holds(request: SetBoot, boot: Boot | None) -> bool:
    """Return True if each field of the request has its value in the boot override; an unreported mode has any."""
    if boot is None:
        return False
    reported = fields_of(boot)
    return all(
        value is None or reported[name] == value or (name == "mode" and boot.mode is None)
        for name, value in fields_of(request).items()
    )


def after_restart(seen: Observation) -> Boot | None:
    """Return the boot override that the pending one makes of the present one."""
    if seen.boot is None or seen.pending_boot is None:
        return seen.boot
    pending = {name: value for name, value in fields_of(seen.pending_boot).items() if value is not None}
    return replace(seen.boot, **pending)


def is_override(boot: Boot | None) -> bool:
    return boot is not None and boot.target not in (None, "None") and boot.enabled not in (None, "Disabled")


def boots_of(seen: Observation) -> list[Boot | None]:
    """Return the present boot override, and the one after the next restart; the latter alone if it is another one."""
    return [after_restart(seen)] if is_override(seen.pending_boot) else [seen.boot, after_restart(seen)]


def fitting_slots(seen: Observation) -> list[Slot]:
    return [slot for slot in seen.slots or () if not slot.kinds or {"CD", "DVD"} & set(slot.kinds)]


def is_superfluous(request: Request, seen: Observation) -> bool:
    """Return True if the observation has all that the request asks for."""
    match request:
        case Reset(type=ResetType.ON):
            return seen.power is PowerState.ON
        case Reset(type=ResetType.FORCE_OFF | ResetType.GRACEFUL_SHUTDOWN):
            return seen.power is PowerState.OFF
        case Reset():
            return seen.power is PowerState.OFF
        case SetBoot():
            return holds(request, after_restart(seen) if request.at_settings else seen.boot)
        case InsertMedium():
            own = [slot for slot in seen.slots or () if slot.path == request.slot]
            return any(slot.inserted and slot.image == request.url for slot in own)
        case EjectMedium():
            return not any(slot.inserted for slot in seen.slots or () if slot.path == request.slot)


def is_fulfilled(wanted: Wanted, seen: Observation, attempts: list[Attempt], quirks: Quirks) -> bool:
    """Return True if the observation fulfils what is wanted, after these attempts."""
    match wanted:
        case WantedPower(action=PowerAction.STATUS):
            return seen.power is not PowerState.UNKNOWN
        case WantedPower(action=PowerAction.ON):
            return seen.power is PowerState.ON
        case WantedPower(action=PowerAction.OFF | PowerAction.SOFT):
            return seen.power is PowerState.OFF
        case WantedPower(action=PowerAction.CYCLE):
            was_off = any(each.before is not None and each.before.power is PowerState.OFF for each in attempts)
            return seen.power is PowerState.ON and was_off
        case WantedPower():
            before = attempts[0].before if attempts else None
            is_changed = before is not None and (before.last_reset != seen.last_reset or not seen.last_reset)
            return seen.power is PowerState.ON and is_changed
        case WantedBoot():
            targets = {"pxe": ["Pxe"], "disk": ["Hdd"], "cdrom": ["Cd", "UsbCd"], "http": ["UefiHttp"]}[wanted.device]
            targets += [quirks.pending_target] if quirks.pending_target and attempts else []
            enabled = "Continuous" if wanted.persistent else "Once"
            requests = [SetBoot(target, enabled, wanted.mode, wanted.http_uri or None) for target in targets]
            return any(holds(each, boot) for each in requests for boot in boots_of(seen))
        case ClearedBoot():
            return not all(is_override(boot) for boot in boots_of(seen))
        case WantedMedium(url=""):
            return not any(slot.inserted for slot in fitting_slots(seen))
        case WantedMedium():
            tried = {
                each.request.slot for each in attempts if isinstance(each.request, InsertMedium) and not each.error
            }
            slots = [slot for slot in fitting_slots(seen) if slot.inserted]
            return any(slot.image == wanted.url or (slot.path in tried and "://" not in slot.image) for slot in slots)


REPORTED: Final = re.compile(r"the BMC accepted (\S+(?:, \S+)*) and reports (\S+(?:, \S+)*) \((\w+(?:, \w+)*)\); ")
NAMED: Final = re.compile(r"the BMC (accepted|refused) (Reset \w+|insertion of \S+ into \w+|ejection from \w+)\b")
FIELDS: Final = {
    "BootSourceOverrideTarget": "target",
    "BootSourceOverrideEnabled": "enabled",
    "BootSourceOverrideMode": "mode",
}


def assert_true(ended: GiveUp, seen: Observation, attempts: list[Attempt]) -> None:
    """Assert that the cause and the sentence say what happened."""
    accepted = [each.request for each in attempts if each.error is None]
    if match := NAMED.match(ended.message):
        is_accepted = match[1] == "accepted"
        assert match[2] in [describe(each.request) for each in attempts if (each.error is None) is is_accepted], ended
    if ended.message.startswith("the BMC refused"):
        assert any(each.error is not None for each in attempts), ended
    if ended.cause is Cause.IGNORED:
        assert accepted, ended
    if match := REPORTED.match(ended.message):
        for value, reported, name in zip(*(group.split(", ") for group in match.groups()), strict=True):
            if field := FIELDS.get(name):
                assert any(getattr(request, field, None) == value for request in accepted), ended
                assert reported in [fields_of(boot)[field] or "nothing" for boot in boots_of(seen) if boot], (
                    ended,
                    seen,
                )


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_any_bmc_leads_to_a_true_end_within_the_bounds(wanted: Wanted) -> None:
    ends = set()
    for seed in range(300):
        bmc = AnyBmc(random.Random(f"{wanted} {seed}"))
        attempts: list[Attempt] = []
        for _ in range(1000):
            seen = bmc.observe()
            if attempts:
                attempts[-1] = replace(attempts[-1], reads=attempts[-1].reads + 1)
            decision = decide(wanted, seen, attempts, bmc.quirks, bmc.now, 0.0)
            assert "hush" not in str(getattr(decision, "message", "")) + getattr(decision, "reason", ""), seed
            if isinstance(decision, Wait):
                assert 0 < decision.seconds <= MAX_SECONDS, seed
                assert decision.reason, seed
                bmc.now += decision.seconds
            elif isinstance(decision, Send):
                assert not is_superfluous(decision.request, seen), (seed, decision, seen)
                error = bmc.send(decision.request)
                attempts.append(Attempt(decision.request, bmc.now, error, decision.form, seen))
                assert len(attempts) <= MAX_REQUESTS, seed
            else:
                break
        else:
            pytest.fail(f"seed {seed} has no end: {attempts[-3:]}")
        assert bmc.now <= limit_of(wanted), seed
        assert decision.message, seed
        assert len(decision.message) < 2500, seed
        fulfilled = is_fulfilled(wanted, seen, attempts, bmc.quirks)
        if isinstance(decision, Done):
            assert fulfilled, (seed, decision, seen, attempts)
        elif decision.cause not in (Cause.UNSUPPORTED, Cause.CREDENTIALS_REFUSED, Cause.CERTIFICATE):
            # Without LastResetTime, nothing shows if a restart happened whose answer got lost.
            assert not fulfilled or (wanted == RESTART and not seen.last_reset), (seed, decision, seen)
            assert_true(decision, seen, attempts)
        ends.add(type(decision))
    assert ends == {Done, GiveUp}
