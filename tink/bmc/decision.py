"""Decide the next request to a BMC: a pure function of what is wanted, what the BMC reports, and what was sent so far.

    wanted + observation + attempts + quirks + clock -> Send | Wait | Done | GiveUp

The caller (`operation`) observes the BMC, asks `decide`, does it, and repeats:

1. The observation fulfils what is wanted: Done. A BMC's answer to a request never counts, only what it reports later.
2. The BMC accepted the last request, and the effect may still come: Wait.
3. The BMC was busy, or the machine in a state that forbids the request: Wait, each time longer, and Send it again.
4. The BMC refused or ignored the request: Send the next form of it. A form has one or more requests (steps); the
   first step whose effect is not there is sent. The order of the forms is a table, and quirks shorten it.
5. No form or no time is left: GiveUp, with the cause and a sentence that names the request, the report and the remedy.

Each kind of wanted thing has one function that returns its plan; `_follow` does the rest for all of them.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Final, NamedTuple
from urllib.parse import unquote

from tink.bmc.model import (
    LOGIN_CAUSES,
    BmcError,
    Boot,
    BootDevice,
    BootMode,
    Cause,
    ClearedBoot,
    EjectMedium,
    Enabled,
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
from tink.bmc.quirks import Area, Quirks, row
from tink.net.urls import redacted, shown

MAX_SECONDS: Final = 600.0
"""Time limit of a boot device, a medium, and of the action soft."""
MAX_POWER_SECONDS: Final = 300.0
"""Time limit of the other power actions."""
MAX_REQUESTS: Final = 60
"""Maximum number of requests to reach one wanted thing."""
MAX_LOST_ANSWERS: Final = 5
"""Maximum number of attempts in a row whose answer got lost."""
MAX_UNREADABLE_SECONDS: Final = 60.0
"""Seconds for which a BMC may be unreachable or answer nonsense before the operation fails."""

_READS: Final = 3
"""Reads without the effect of an accepted request before it counts as ignored."""
_READ_SECONDS: Final = 3.0
"""Longest pause between two reads."""
_TRANSITION_SECONDS: Final = 20.0
"""Seconds for which a power state that is neither On nor Off is awaited before the first request."""
_CONFLICTS: Final = 4
"""Conflicting answers to one form before the next form is tried."""
_FIRST_PAUSE: Final = 2.0
_MAX_PAUSE: Final = 60.0
_MAX_ANSWER_LENGTH: Final = 300
"""Maximum number of characters of a BMC's answer in a message."""
_MAX_VALUE_LENGTH: Final = 200
_MAX_LISTED: Final = 12

_LATER: Final = frozenset({Cause.BUSY, Cause.CONFLICT})
"""The same request may be accepted later."""
_LOST: Final = frozenset({Cause.UNREACHABLE, Cause.BAD_ANSWER})
"""The BMC may have accepted the request; its answer got lost."""
_FATAL: Final = frozenset({*LOGIN_CAUSES, Cause.CERTIFICATE})
"""No other request can succeed."""


# --- input and output -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request that was sent.

    at: time of the answer in seconds of the caller's clock.
    error: None if the BMC accepted the request.
    form: copied from the decision `Send`.
    before: the observation that led to the request.
    reads: number of observations since the answer.
    """

    request: Request
    at: float
    error: BmcError | None = None
    form: str = ""
    before: Observation | None = None
    reads: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """Send this request. `form` names the form that it belongs to."""

    request: Request
    form: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Observe the BMC again after these seconds. `reason` is a clause for logs and status."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The BMC reports what is wanted. `message` is a clause for the status."""

    message: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The BMC can't be made to do it. `message` names the request, the report of the BMC, and the remedy."""

    cause: Cause
    message: str


Decision = Send | Wait | Done | GiveUp


@dataclass(frozen=True, slots=True)
class _Case:
    """The arguments of `decide`."""

    seen: Observation
    attempts: Sequence[Attempt]
    quirks: Quirks
    now: float
    started: float

    @property
    def reports(self) -> str:
        """The verb of a message about what the BMC reports."""
        return "the BMC reports" if self.attempts else "the BMC already reports"

    @property
    def accepted(self) -> list[Request]:
        """The requests that the BMC accepted."""
        return [each.request for each in self.attempts if each.error is None]


@dataclass(frozen=True, slots=True)
class _Form:
    """One way to ask for what is wanted: its requests, in order."""

    name: str
    steps: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to reach what is wanted.

    asked: what is missing, and the BMC is asked for.
    forms: the ways to ask, in order.
    has_effect: returns True if the effect of a request is in the observation.
    concerns: returns True if a request asks for what is missing.
    accepted_but: what the BMC accepted, and reports instead; empty if it accepted nothing of what is missing.
    remedy: what the operator can do.
    """

    area: Area
    asked: str
    forms: tuple[_Form, ...]
    has_effect: Callable[[Request], bool]
    concerns: Callable[[Request], bool]
    accepted_but: str
    remedy: str


def limit_of(wanted: Wanted) -> float:
    """Return the time limit for what is wanted, in seconds."""
    is_quick = isinstance(wanted, WantedPower) and wanted.action is not PowerAction.SOFT
    return MAX_POWER_SECONDS if is_quick else MAX_SECONDS


def decide(
    wanted: Wanted, seen: Observation, attempts: Sequence[Attempt], quirks: Quirks, now: float, started: float
) -> Decision:
    """Return what to do next.

    `seen` is the newest observation, made after the last of `attempts`. `now` and `started` (the time of the first
    call) are seconds of the same clock as in `attempts`.
    """
    case = _Case(seen, attempts, quirks, now, started)
    match wanted:
        case WantedPower():
            plan = _power(wanted.action, case)
        case WantedBoot():
            plan = _boot(wanted, case)
        case ClearedBoot():
            plan = _cleared_boot(case)
        case WantedMedium():
            plan = _medium(wanted, case)
    return _follow(plan, case, started + limit_of(wanted)) if isinstance(plan, _Plan) else plan


def after_failed_read(
    error: BmcError, failures: int, failing_since: float, now: float, deadline: float
) -> Wait | GiveUp:
    """Return what to do after the BMC could not be observed `failures` times in a row, since `failing_since`."""
    end, pause = min(deadline, failing_since + MAX_UNREADABLE_SECONDS), _pause(min(failures, 3), "", error)
    if error.cause in _LATER:
        end, pause = deadline, _pause(failures, "", error)
    is_final = error.cause in _FATAL or (error.cause not in _LATER | _LOST and failures >= _READS)
    if is_final or now >= end:
        return GiveUp(error.cause, _answer(error))
    return Wait(min(pause, end - now), f"the BMC can't be read: {_answer(error)}")


# --- the same for all -------------------------------------------------------------------------------------------------


def _follow(plan: _Plan, case: _Case, deadline: float) -> Decision:
    """Return the next step of a plan whose wanted thing the observation does not fulfil."""
    last = case.attempts[-1] if case.attempts else None
    if last and last.error and last.error.cause in _FATAL:
        return GiveUp(last.error.cause, _answer(last.error))
    is_over = case.now >= deadline or len(case.attempts) >= MAX_REQUESTS
    if is_over or _failures_in_a_row(case.attempts, _LOST) >= MAX_LOST_ANSWERS:
        return _give_up(plan, case)
    if last and not plan.has_effect(last.request) and (wait := _wait_after(last, plan, case)):
        return replace(wait, seconds=min(wait.seconds, deadline - case.now))
    steps = ((form, next((step for step in form.steps if not plan.has_effect(step)), None)) for form in plan.forms)
    sends = [Send(step, form.name) for form, step in steps if step and not _is_spent(form, step, case.attempts)]
    # 409 may be a refusal of this form: after some conflicts in one form, the others have their turn.
    conflicts = Counter(each.form for each in case.attempts if each.error and each.error.cause is Cause.CONFLICT)
    return min(sends, key=lambda send: conflicts[send.form] // _CONFLICTS, default=None) or _give_up(plan, case)


def _wait_after(last: Attempt, plan: _Plan, case: _Case) -> Wait | None:
    """Return the wait that the last attempt needs, whose effect is not there; None if it is over."""
    error, asked = last.error, describe(last.request)
    seconds = _patience(last.request).seconds * sum(each.request == last.request for each in case.attempts)
    may_be_done = error is None or (case.quirks.refusal_may_lie and isinstance(last.request, SetBoot))
    if error is not None and error.cause in _LATER | _LOST:
        pause = _pause(_failures_in_a_row(case.attempts, _LATER | _LOST), case.seen.identity.serial, error)
        if error.cause in _LOST and last.request in _RESTARTS:  # it may have begun; a second one would hit the boot
            pause = max(pause, seconds)
        if case.now < last.at + pause:
            return Wait(last.at + pause - case.now, f"the BMC was asked for {asked} and answered: {_answer(error)}")
    elif may_be_done and (last.reads < _READS or case.now < last.at + seconds):
        reason = f"the BMC refused {asked}: {_answer(error)}" if error else plan.accepted_but or _accepted(asked)
        return Wait(min(max(last.reads, 1.0), _READ_SECONDS), reason)
    return None


def _is_spent(form: _Form, step: Request, attempts: Sequence[Attempt]) -> bool:
    """Return True if the BMC refused a step of the form, or accepted this one too often without the effect."""
    if isinstance(step, EjectMedium):  # a step of several forms: what failed in one fails in all
        own = [each for each in attempts if each.request == step]
    else:
        own = [each for each in attempts if each.form == form.name]
    accepted = sum(each.request == step and each.error is None for each in own)
    return accepted >= _patience(step).tries or any(map(_is_refused, own))


def _is_refused(attempt: Attempt) -> bool:
    return attempt.error is not None and attempt.error.cause not in _LATER | _LOST


def _failures_in_a_row(attempts: Sequence[Attempt], causes: Collection[Cause]) -> int:
    """Return the number of the last attempts that failed with one of these causes."""
    failed = takewhile(lambda each: each.error is not None and each.error.cause in causes, reversed(attempts))
    return sum(1 for _ in failed)


def _pause(failures: int, serial: str, error: BmcError) -> float:
    """Return the seconds to wait after this many failures in a row; the serial number spreads the BMCs of a site."""
    pause = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 10), _MAX_PAUSE)
    jitter = 0.5 + 0.5 * zlib.crc32(f"{serial[:64]} {failures}".encode(errors="replace")) / 0xFFFFFFFF
    return max(pause * jitter, min(error.retry_after, _MAX_PAUSE))


class _Patience(NamedTuple):
    """The seconds in which the effect of an accepted request must show, and the number of tries of a form.

    The second try has twice as many seconds, the third three times.
    """

    seconds: float
    tries: int


def _patience(request: Request) -> _Patience:
    match request:
        case Reset(type=ResetType.ON | ResetType.FORCE_OFF):
            return _Patience(20.0, 3)
        case Reset(type=ResetType.GRACEFUL_SHUTDOWN):
            return _Patience(MAX_SECONDS, 1)
        case Reset():
            return _Patience(60.0, 1)
        case SetBoot():
            return _Patience(5.0, 1)
        case InsertMedium():
            return _Patience(10.0, 1)
        case EjectMedium():
            return _Patience(10.0, 3)  # quirk 35


def _give_up(plan: _Plan, case: _Case) -> GiveUp:
    """Return the end of a plan: what the BMC did with the requests, and what helps."""
    own = [each for each in case.attempts if plan.concerns(each.request)]
    errors = [each.error for each in own if each.error is not None]
    # What a BMC does not offer counts only if it refused nothing else.
    errors = [error for error in errors if error.cause is not Cause.UNSUPPORTED] or errors
    remedy = "; ".join([plan.remedy, *_known(plan.area, case.quirks)])
    if not own:
        return GiveUp(Cause.UNSUPPORTED, f"the BMC offers no request for {plan.asked}; {remedy}")
    if (last := own[-1].error) is not None and not _is_refused(own[-1]):
        text = f"the BMC was asked {len(own)} times for {plan.asked}, and answered last: {_answer(last)}"
        return GiveUp(last.cause, f"{text}; {remedy}")
    if accepted := [each.request for each in own if each.error is None]:
        return GiveUp(Cause.IGNORED, f"{plan.accepted_but or _accepted(describe(accepted[-1]))}; {remedy}")
    cause = errors[0].cause if len({error.cause for error in errors}) == 1 else Cause.REFUSED
    forms = f" in {len(errors)} forms" if len(errors) > 1 else ""
    return GiveUp(cause, f"the BMC refused {plan.asked}{forms}: {_answer(errors[0])}; {remedy}")


def _accepted(asked: str) -> str:
    return f"the BMC accepted {asked}, and does not report its effect"


def _known(area: Area, quirks: Quirks) -> Iterator[str]:
    """Yield what is known of this BMC in this area."""
    for known in map(row, quirks.rows):
        if known.area is area and known.is_advice:
            yield f"known of this model: {known.symptom}: {known.remedy} (quirk {known.number})"


# --- power ------------------------------------------------------------------------------------------------------------

_RESTARTS: Final = (Reset(ResetType.FORCE_RESTART), Reset(ResetType.POWER_CYCLE))
_TYPES: Final = {
    PowerAction.ON: ResetType.ON,
    PowerAction.OFF: ResetType.FORCE_OFF,
    PowerAction.SOFT: ResetType.GRACEFUL_SHUTDOWN,
}
_STATES: Final = {
    ResetType.ON: PowerState.ON,
    ResetType.FORCE_OFF: PowerState.OFF,
    ResetType.GRACEFUL_SHUTDOWN: PowerState.OFF,
}
"""The power state that each reset type leads to; a restart is seen by LastResetTime."""
_REPORTED: Final = {PowerState.ON: "On", PowerState.OFF: "Off", PowerState.UNKNOWN: "neither On nor Off"}
_POWER_REMEDIES: Final = {
    ResetType.ON: "look at the BMC's event log and the power supplies, or reset the BMC",
    ResetType.FORCE_OFF: "look at the BMC's event log, or reset the BMC",
    ResetType.GRACEFUL_SHUTDOWN: "the operating system may not listen to the power button; use off",
    ResetType.FORCE_RESTART: "use cycle",
    ResetType.POWER_CYCLE: "use cycle",
}


def _power(action: PowerAction, case: _Case) -> _Plan | Wait | Done | GiveUp:
    match action:
        case PowerAction.STATUS:
            return _power_status(case)
        case PowerAction.CYCLE:
            return _cycle(case)
        case PowerAction.RESET:
            return _restart(case)
        case _:
            return _power_state(_TYPES[action], case)


def _power_status(case: _Case) -> Wait | Done | GiveUp:
    reported = f"the BMC reports {_REPORTED[case.seen.power]}"
    if case.seen.power is not PowerState.UNKNOWN:
        return Done(reported)
    if case.now < case.started + _TRANSITION_SECONDS:
        return Wait(_READ_SECONDS, reported)
    return GiveUp(Cause.BAD_ANSWER, f"{reported}; reset the BMC")


def _power_state(kind: ResetType, case: _Case) -> _Plan | Wait | Done | GiveUp:
    """Plan to reach the power state that a reset type leads to."""
    power = case.seen.power
    if power is _STATES[kind]:
        return Done(f"{case.reports} {_REPORTED[power]}")
    # The machine may be on its way: PoweringOn and PoweringOff are unknown states.
    if power is PowerState.UNKNOWN and not case.attempts and case.now < case.started + _TRANSITION_SECONDS:
        return Wait(_READ_SECONDS, f"the BMC reports {_REPORTED[power]}")
    return _reset_plan((kind,), case.seen, _REPORTED[power])


def _cycle(case: _Case) -> _Plan | Wait | Done | GiveUp:
    """Plan to reach Off, then On. Off was read if the BMC was asked for On."""
    if case.seen.power is PowerState.OFF or any(each.request == Reset(ResetType.ON) for each in case.attempts):
        return _power_state(ResetType.ON, case)
    return _reset_plan((ResetType.FORCE_OFF,), case.seen, _REPORTED[case.seen.power])


def _restart(case: _Case) -> _Plan | Done | GiveUp:
    """Plan to restart a running machine once: LastResetTime changes if the machine restarts.

    A request whose answer got lost is sent again only if LastResetTime shows that the machine did not restart.
    """
    seen, first = case.seen, next(iter(case.attempts), None)
    before = first.before.last_reset if first and first.before else seen.last_reset
    if seen.last_reset != before and seen.power is PowerState.ON:
        return Done(f"the BMC reports On and LastResetTime {_shown(seen.last_reset)}")
    begun = next((each for each in case.attempts if each.error is None or each.error.cause in _LOST), None)
    if begun is not None:
        return _begun_restart(begun, before, case)
    if seen.power is PowerState.OFF:
        return GiveUp(Cause.CONFLICT, "the BMC reports Off, and reset needs a machine that is on; use on")
    return _reset_plan((ResetType.FORCE_RESTART, ResetType.POWER_CYCLE), seen, "")


def _begun_restart(begun: Attempt, before: str, case: _Case) -> _Plan | Done | GiveUp:
    """Plan the rest of a restart that the BMC accepted, or may have. `before`: LastResetTime before it."""
    seen, asked, error = case.seen, describe(begun.request), begun.error
    if not before and not seen.last_reset:
        if error is not None:
            text = f"the BMC was asked for {asked}, the answer got lost, and the BMC reports no LastResetTime"
            return GiveUp(error.cause, f"{text}; the machine may have restarted: {_answer(error)}")
        if seen.power is PowerState.ON and begun.reads >= _READS:
            return Done(f"the BMC accepted {asked} and reports On; it reports no LastResetTime")
    is_unchanged = bool(before) and seen.last_reset == before
    reported = "the same LastResetTime as before" if is_unchanged else _REPORTED[seen.power]
    plan = _reset_plan(tuple(kind for kind in ResetType if Reset(kind) == begun.request), seen, reported)
    # Off: within a power cycle, or for another reason. A restart would be refused.
    return replace(plan, forms=()) if isinstance(plan, _Plan) and seen.power is PowerState.OFF else plan


def _reset_plan(kinds: tuple[ResetType, ...], seen: Observation, reported: str) -> _Plan | GiveUp:
    """Plan a change of power by the first of the reset types that the BMC accepts. `reported`: what it reports now."""
    allowed = [kind for kind in kinds if not seen.allowed_resets or kind in seen.allowed_resets]
    if not allowed:
        text = f"the BMC allows {_listed(seen.allowed_resets)}, not {' or '.join(kinds)}"
        return GiveUp(Cause.UNSUPPORTED, f"{text}; {_POWER_REMEDIES[kinds[0]]}")
    requests = [Reset(kind) for kind in allowed]
    asked = describe(requests[0])
    return _Plan(
        area=Area.POWER,
        asked=asked,
        forms=tuple(_Form(str(request.type), (request,)) for request in requests),
        has_effect=lambda sent: isinstance(sent, Reset) and _STATES.get(sent.type) is seen.power,
        concerns=lambda sent: sent in requests,
        accepted_but=f"the BMC accepted {asked} and reports {reported}" if reported else "",
        remedy=_POWER_REMEDIES[kinds[0]],
    )


# --- boot devices -----------------------------------------------------------------------------------------------------

TARGETS: Final = {
    BootDevice.PXE: ("Pxe",),
    BootDevice.DISK: ("Hdd",),
    BootDevice.BIOS: ("BiosSetup",),
    BootDevice.CDROM: ("Cd", "UsbCd"),
    BootDevice.SAFE: ("Safe",),
    BootDevice.HTTP: ("UefiHttp",),
}
"""The BootSourceOverrideTarget of each device, best first. Redfish has no Safe; the IPMI client lists it."""
_OFF_FIRST: Final = "power the machine off and try again, or "
_BOOT_REMEDIES: Final = {
    "mode": "set this boot mode in the firmware's setup (CSM)",
    "enabled": f"{_OFF_FIRST}set the boot order in the firmware's setup",
    "target": f"{_OFF_FIRST}set the boot order in the firmware's setup",
    "http_uri": "set the URI in the firmware's setup",
}
"""The remedy for each field that stays wrong; the first wrong one counts."""
_BOOT_PROPERTIES: Final = {
    "target": "BootSourceOverrideTarget",
    "enabled": "BootSourceOverrideEnabled",
    "mode": "BootSourceOverrideMode",
    "http_uri": "HttpBootUri",
}
"""The Redfish property of each field of `SetBoot` and `Boot`."""


def _boot(wanted: WantedBoot, case: _Case) -> _Plan | Done | GiveUp:
    """Plan to set a boot override."""
    boot, quirks = case.seen.boot, case.quirks
    if boot is None or boot.target is None or boot.enabled is None:
        return GiveUp(Cause.UNSUPPORTED, f"the BMC reports no boot override; {row(43).remedy}")
    targets = allowed_targets(wanted.device, boot, quirks)
    if unsupported := _boot_unsupported(wanted, targets, boot, case):
        return GiveUp(Cause.UNSUPPORTED, unsupported)
    enabled = Enabled.CONTINUOUS if wanted.persistent else Enabled.ONCE
    requests = [SetBoot(target, enabled, wanted.mode, wanted.http_uri or None) for target in targets]
    remark = ""
    if quirks.pending_target and quirks.pending_target == boot.target and case.accepted:
        remark = f" as pending ({boot.target})"  # quirk 16: its name for a target that it was asked for
        boot = replace(boot, target=requests[0].target)
    for request in requests:
        if done := _boot_done(request, boot, case):
            return replace(done, message=done.message + remark)
    forms = [form for each in requests for form in _boot_forms(each, boot, quirks)]
    # The sentence of a failure is about the target that the BMC reports, or else accepted last.
    accepted = [sent.target for sent in case.accepted if isinstance(sent, SetBoot)]
    request = min(requests, key=lambda each: (each.target != boot.target, each.target not in accepted[-1:]))
    return _boot_plan(request, forms, boot, case)


def allowed_targets(device: BootDevice, boot: Boot, quirks: Quirks) -> list[str]:
    """Return the targets for a device that the BMC allows, the best first."""
    targets = [each for each in TARGETS[device] if not boot.allowed_targets or each in boot.allowed_targets]
    if device is BootDevice.CDROM and quirks.cd_target in targets:  # quirk 12: Cd is accepted, and does not boot
        return [quirks.cd_target]
    return targets


def _boot_unsupported(wanted: WantedBoot, targets: list[str], boot: Boot, case: _Case) -> str:
    """Return the reason why the BMC can't do this; empty if it can, as far as it reports."""
    quirks, is_redfish = case.quirks, bool(case.seen.identity.redfish)
    if wanted.http_uri and boot.http_uri is None and quirks.http_boot_by_bios:
        return f"the BMC reports no HttpBootUri for UEFI HTTP boot; {row(23).remedy}"
    if not targets or (wanted.device is BootDevice.SAFE and not boot.allowed_targets and is_redfish):
        names = " or ".join(TARGETS[wanted.device])
        return f"the BMC allows the boot targets {_listed(boot.allowed_targets)}, not {names}; use another boot device"
    lists_no_continuous = bool(boot.allowed_enabled) and Enabled.CONTINUOUS not in boot.allowed_enabled
    if wanted.persistent and (lists_no_continuous or (quirks.no_continuous and is_redfish)):
        return f"the BMC does not allow BootSourceOverrideEnabled Continuous; {row(24).remedy}"
    if wanted.mode is BootMode.UEFI and boot.mode is None and quirks.uefi_boot_by_ipmi and is_redfish:
        return f"{row(11).symptom}; {row(11).remedy}"
    return ""


def _boot_done(request: SetBoot, boot: Boot, case: _Case) -> Done | None:
    """Return Done if the BMC reports the boot override, or reports it as pending."""
    pending, text = case.seen.pending_boot, f"{case.reports} {describe(request)}"
    is_replaced = pending is not None and is_override(pending) and bool(_wrong_fields(request, pending))
    if not _wrong_fields(request, boot) and not is_replaced:
        return Done(f"{text}; it reports no boot mode" if request.mode and boot.mode is None else text)
    if pending is not None and not _wrong_fields(request, _merged(pending, boot)):
        return Done(f"{text} as pending until the next restart")
    return None


def _boot_forms(request: SetBoot, boot: Boot, quirks: Quirks) -> list[_Form]:
    """Return the forms of a boot override in the order in which they are tried. Quirks shorten and reorder them."""
    modeless = replace(request, mode=None)
    forms = {
        "as wanted": request,
        "mode by itself": SetBoot(mode=request.mode),
        "without mode": modeless,
        "only what differs": _only(request, _wrong_fields(request, boot)),
        "without enabled": replace(modeless, enabled=None),
        "complete": replace(request, mode=request.mode or boot.mode),
    }
    if quirks.full_request or quirks.mode_required:
        names = ["complete"]
    elif quirks.mode_read_only:
        names = ["without mode", "only what differs", "without enabled", "mode by itself"]
    elif quirks.mode_by_itself:
        names = ["mode by itself", "only what differs", "without mode", "without enabled", "as wanted"]
    elif quirks.only_changes:
        names = ["only what differs", "mode by itself", "without mode", "without enabled", "as wanted"]
    else:
        names = list(forms)
    if quirks.enabled_required:
        names = [name for name in names if name not in ("only what differs", "without enabled")]
    if not _wrong_fields(forms["mode by itself"], boot):
        names = [name for name in names if name != "mode by itself"]
    return [_Form(f"{name} ({request.target})", (forms[name],)) for name in names]


def _cleared_boot(case: _Case) -> _Plan | Done | GiveUp:
    """Plan to clear the boot override, so that the machine boots by its own order."""
    boot, pending = case.seen.boot, case.seen.pending_boot
    if boot is None or not (is_override(boot) or (pending and is_override(pending))):
        return Done(f"{case.reports} no boot override")
    if pending and not is_override(_merged(pending, boot)):
        return Done(f"{case.reports} no boot override after the next restart")
    requests = {
        "disabled": SetBoot(enabled=Enabled.DISABLED),
        "disabled, no target": SetBoot("None", Enabled.DISABLED),
        "disabled, same target": SetBoot(boot.target, Enabled.DISABLED),
        "disabled, same target and mode": SetBoot(boot.target, Enabled.DISABLED, boot.mode),
    }
    if case.quirks.clear_keeps_target:
        del requests["disabled, no target"]
    forms = [_Form(name, (request,)) for name, request in requests.items()]
    return _boot_plan(requests["disabled"], forms, boot, case)


def _boot_plan(request: SetBoot, forms: list[_Form], boot: Boot, case: _Case) -> _Plan:
    """Return the plan for a boot override; `request` has all that is wanted, `boot` what the BMC reports."""
    pending = case.seen.pending_boot
    after_restart = boot if pending is None else _merged(pending, boot)
    reported = after_restart if pending and is_override(pending) else boot
    wrong = _wrong_fields(request, reported)
    if case.seen.identity.redfish and not _lacks_settings(case.attempts):
        at_settings = [_at_settings(form) for form in forms]
        forms = at_settings + forms if case.quirks.at_settings else forms + at_settings

    def has_effect(sent: Request) -> bool:
        return isinstance(sent, SetBoot) and not _wrong_fields(sent, after_restart if sent.at_settings else boot)

    remedy = next((text for field, text in _BOOT_REMEDIES.items() if field in wrong), "restart the machine")
    return _Plan(
        area=Area.BOOT,
        asked=describe(_only(request, wrong)),
        forms=_distinct(forms),
        has_effect=has_effect,
        concerns=lambda sent: any(getattr(sent, field, None) is not None for field in wrong),
        accepted_but=_boot_accepted_but(request, wrong, reported, case.accepted),
        remedy=remedy.removeprefix(_OFF_FIRST) if case.seen.power is PowerState.OFF else remedy,
    )


def _boot_accepted_but(request: SetBoot, wrong: list[str], boot: Boot, accepted: list[Request]) -> str:
    """Return the clause about the fields that the BMC accepted and reports otherwise; empty if there are none."""
    fields = [
        field for field in wrong if any(getattr(sent, field, None) == getattr(request, field) for sent in accepted)
    ]
    values, reported = ([shown(_shown(getattr(each, field))) for field in fields] for each in (request, boot))
    names = ", ".join(_BOOT_PROPERTIES[field] for field in fields)
    return f"the BMC accepted {', '.join(values)} and reports {', '.join(reported)} ({names})" if fields else ""


def _wrong_fields(request: SetBoot, boot: Boot) -> list[str]:
    """Return the fields of a request that the BMC reports otherwise. A mode that it does not report is not wrong."""
    found = []
    for field in _BOOT_PROPERTIES:
        wanted, reported = getattr(request, field), getattr(boot, field)
        if wanted is None or (field == "mode" and reported is None):
            continue
        if reported is None or wanted.casefold() != reported.casefold():
            found.append(field)
    return found


def _only(request: SetBoot, fields: list[str]) -> SetBoot:
    """Return a request with only these fields."""
    return SetBoot(**{field: getattr(request, field) for field in fields})


def _merged(pending: Boot, boot: Boot) -> Boot:
    """Return the boot override after the next restart: the pending fields, and the present ones for the rest."""
    fields = {field: getattr(pending, field) for field in _BOOT_PROPERTIES if getattr(pending, field) is not None}
    return replace(boot, **fields)


def is_override(boot: Boot) -> bool:
    """Return True if the override has a target and is not Disabled."""
    return boot.target not in (None, "", "None") and boot.enabled not in (None, "", "Disabled")


def _lacks_settings(attempts: Sequence[Attempt]) -> bool:
    """Return True if the BMC has no settings resource for the boot override."""
    at_settings = (each for each in attempts if isinstance(each.request, SetBoot) and each.request.at_settings)
    return any(each.error is not None and each.error.cause is Cause.UNSUPPORTED for each in at_settings)


def _at_settings(form: _Form) -> _Form:
    steps = tuple(replace(step, at_settings=True) for step in form.steps if isinstance(step, SetBoot))
    return _Form(f"{form.name}, in the settings resource", steps)


def _distinct(forms: Iterable[_Form]) -> tuple[_Form, ...]:
    """Return the forms, each set of requests once."""
    found: dict[tuple[Request, ...], _Form] = {}
    for form in forms:
        found.setdefault(form.steps, form)
    return tuple(found.values())


# --- virtual media ----------------------------------------------------------------------------------------------------

_SIMILAR_KINDS: Final = {"cd": ("cd", "dvd"), "dvd": ("dvd", "cd")}
"""Kinds whose slots take an image as well (quirk 41: slots for DVD only)."""
_NAMED_PROPERTIES: Final = ("TransferProtocolType", "TransferMethod", "UserName", "Password")
"""Properties that are sent after a refusal names them (quirk 40)."""
_INSERTED: Final = (("Inserted", True), ("WriteProtected", True))


def _medium(wanted: WantedMedium, case: _Case) -> _Plan | Done | GiveUp:
    slots = slots_of(wanted.kind, case.seen.slots or (), case.quirks)
    if case.seen.slots is None:  # an empty drive can't be read either: by IPMI, it would be reported without a look
        return GiveUp(Cause.UNSUPPORTED, "the BMC was read by IPMI, which has no virtual media; use Redfish, or PXE")
    if not wanted.url:
        return _without_medium(wanted.kind, slots, case)
    if not slots:
        kinds = _listed(sorted({kind for slot in case.seen.slots or () for kind in slot.kinds})) or "no virtual media"
        return GiveUp(Cause.UNSUPPORTED, f"the BMC has {kinds}, and no slot for {wanted.kind[:32]}; use PXE")
    return _with_medium(wanted.url, slots, case)


def slots_of(kind: str, slots: Sequence[Slot], quirks: Quirks) -> list[Slot]:
    """Return the slots for a kind of medium: first exact matches, then similar kinds, then slots that list no kinds."""
    names = _SIMILAR_KINDS.get(kind.casefold(), (kind.casefold(),))

    def place(slot: Slot) -> int:
        kinds = [each.casefold() for each in slot.kinds]
        return next((number for number, name in enumerate(names) if name in kinds), len(names) + bool(kinds))

    fitting = sorted((slot for slot in slots if place(slot) <= len(names)), key=place)
    working = [slot for slot in fitting if any(fnmatchcase(_name_of(slot.path), each) for each in quirks.slots)]
    return working or fitting


def _without_medium(kind: str, slots: Sequence[Slot], case: _Case) -> _Plan | Done:
    """Plan to empty all slots of a kind, one after the other."""
    full = [slot.path for slot in slots if slot.inserted]
    if not full:
        return Done(f"{case.reports} no medium of the kind {kind[:32]}")
    slot = next(slot for slot in slots if slot.path == full[0])
    asked = describe(EjectMedium(slot.path))
    return _Plan(
        area=Area.MEDIA,
        asked=asked,
        forms=tuple(_Form(f"eject {way.slot}{_by_patch(way)}", (way,)) for way in _ejections(slot, case.quirks)),
        has_effect=lambda sent: isinstance(sent, EjectMedium) and sent.slot not in full,
        concerns=lambda sent: isinstance(sent, EjectMedium) and sent.slot == slot.path,
        accepted_but=f"the BMC accepted {asked} and reports the medium inserted",
        remedy="power the machine off and try again, or reset the BMC",
    )


def _with_medium(url: str, slots: Sequence[Slot], case: _Case) -> _Plan | Done:
    """Plan to insert an image into the first slot that takes it. Another image in that slot is ejected first."""
    sent_to = [request.slot for request in case.accepted if isinstance(request, InsertMedium)]
    for slot in slots:
        if slot.inserted and _is_image(slot.image, url, is_sent=slot.path in sent_to):
            return Done(f"{case.reports} {shown(url)} in {_name_of(slot.path)}")
    full = [slot.path for slot in slots if slot.inserted]
    inserts: list[Request] = [each.request for each in case.attempts if isinstance(each.request, InsertMedium)]
    # Without an insertion, an ejection failed.
    own = inserts or [each.request for each in case.attempts] or [InsertMedium(slots[0].path, url)]
    asked = describe(InsertMedium(sent_to[-1], url) if sent_to else own[0])
    reported = "another" if sent_to and sent_to[-1] in full else "no"
    return _Plan(
        area=Area.MEDIA,
        asked=asked,
        forms=tuple(form for slot in slots for form in _insertions(slot, url, case)),
        # An insertion has no effect: the image is in no slot.
        has_effect=lambda sent: isinstance(sent, EjectMedium) and sent.slot not in full,
        concerns=lambda sent: sent in own,
        accepted_but=f"the BMC accepted {asked} and reports {reported} medium" if sent_to else "",
        remedy="check that the BMC reaches the URL and supports its scheme",
    )


def _insertions(slot: Slot, url: str, case: _Case) -> Iterator[_Form]:
    """Yield the forms of an insertion into one slot in the order in which they are tried."""
    named = _named_properties(url, case.attempts)
    requests = [InsertMedium(slot.path, url), InsertMedium(slot.path, url, named)]
    if not case.quirks.insert_image_alone:
        requests.append(InsertMedium(slot.path, url, _INSERTED + named))
    patch = InsertMedium(slot.path, url, _INSERTED, by_patch=True)
    if not slot.has_insert_action:
        requests = [patch]
    else:
        requests = [patch, *requests] if case.quirks.insert_by_patch else [*requests, patch]
    for request in dict.fromkeys(requests):
        properties = ", ".join(name for name, _ in request.properties) or "Image alone"
        name = f"insert {slot.path}, {properties}{_by_patch(request)}"
        yield _Form(name, (_ejections(slot, case.quirks)[0], request))


def _ejections(slot: Slot, quirks: Quirks) -> list[EjectMedium]:
    """Return the ways to empty a slot, the best first."""
    ways = [EjectMedium(slot.path), EjectMedium(slot.path, by_patch=True)]
    return ways[::-1] if quirks.insert_by_patch or not slot.has_insert_action else ways


def _by_patch(request: InsertMedium | EjectMedium) -> str:
    return ", by PATCH" if request.by_patch else ""


def _named_properties(url: str, attempts: Sequence[Attempt]) -> tuple[tuple[str, str | bool], ...]:
    """Return the properties that refusals of an insertion name, with their values."""
    values = dict(zip(_NAMED_PROPERTIES, (url.partition(":")[0][:16].upper(), "Stream", "", ""), strict=True))
    errors = [each.error for each in attempts if each.error is not None and isinstance(each.request, InsertMedium)]
    named = [name for name in values if any(name in error.properties or name in str(error) for error in errors)]
    return tuple((name, values[name]) for name in named)


def _is_image(image: str, url: str, *, is_sent: bool) -> bool:
    """Return True if the image of a full slot is the one of a URL. `is_sent`: the slot accepted it.

    Some BMCs report only a name, or nothing, as the image (quirk 37). That counts if the slot accepted the image: it
    was empty then.
    """
    return unquote(image) == unquote(url) or (is_sent and "://" not in image)


# --- texts ------------------------------------------------------------------------------------------------------------


def describe(request: Request) -> str:
    """Return a request in words for logs and status, in Redfish's spelling; URLs without their query and password."""
    match request:
        case Reset():
            return f"Reset {request.type}"
        case SetBoot():
            names = {"boot target": request.target, "enabled": request.enabled, "mode": request.mode}
            parts = [f"{name} {value}" for name, value in names.items() if value is not None]
            return ", ".join([*parts, *([f"URI {shown(request.http_uri)}"] if request.http_uri else [])])
        case InsertMedium():
            return f"insertion of {shown(request.url)} into {_name_of(request.slot)}"
        case EjectMedium():
            return f"ejection from {_name_of(request.slot)}"


def _answer(error: BmcError) -> str:
    """Return the message of an error, shortened, with URLs that have no user, password and query."""
    text = redacted(str(error)[: 2 * _MAX_ANSWER_LENGTH])
    return text if len(text) <= _MAX_ANSWER_LENGTH else f"{text[: _MAX_ANSWER_LENGTH - 1]}…"


def _shown(text: str | None) -> str:
    """Return a value that a BMC reports, at most 200 characters; `nothing` if it is empty."""
    return text[:_MAX_VALUE_LENGTH] if text else "nothing"


def _listed(values: Sequence[str]) -> str:
    """Return values that a BMC lists, at most 12 of them."""
    return ", ".join(_shown(value) for value in values[:_MAX_LISTED])


def _name_of(path: str) -> str:
    """Return the last segment of a slot's path."""
    return path.rstrip("/").rpartition("/")[2][:_MAX_VALUE_LENGTH]
