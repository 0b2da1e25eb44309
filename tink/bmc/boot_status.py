"""One Workflow whose machine is booted by its BMC: what its objects show, and the writes of BMC control to them.

`BootCase` is a Workflow with its Hardware in one reconciliation. `BootWriter` writes `status.boot`, the conditions, the
finalizer, and `disableNetboot` of the Hardware. Each write is on top of the newest version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tink.api.annotations import V1ALPHA1_ANNOTATION
from tink.api.v1alpha2 import BOOT_FINALIZER, BootWay, ConditionStatus, Raw, WorkflowState, as_mapping
from tink.bmc.boot import PROGRESS_REASONS, BootReason, Rung
from tink.bmc.connections import BmcContext
from tink.bmc.model import LOGIN_CAUSES, BmcError, Cause, Observation
from tink.bmc.status import bounded
from tink.errors import TinkedgeError
from tink.kube.client import ConflictError, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, WORKFLOW
from tink.kube.runtime import Event
from tink.timestamps import rfc3339
from tink.workflow.guards import awaits_boot, boot_begun, held, paused
from tink.workflow.status import (
    ConditionType,
    InvalidStatusError,
    Status,
    condition,
    deleted,
    parse_timestamp,
    set_condition,
    state_of,
    status_of,
    status_patch,
    summary,
)

log = logging.getLogger(__name__)

_CONFLICTS = 5
"""Number of times that a status is written, each on top of a newer version."""
SOON_SECONDS = 0.1
"""Shortest pause: timers are inexact, and a pause of nanoseconds would be repeated again and again."""
RETRY_SECONDS = 30.0
"""Pause after the first failed attempt; it doubles up to `MAX_RETRY_SECONDS`."""
MAX_RETRY_SECONDS = 300.0
CREDENTIAL_CAUSES: Final = (*LOGIN_CAUSES, Cause.CREDENTIALS_MISSING)
"""Causes that only a change of the Secret removes. It is read again after `secret_interval`, which costs no login."""
_ACTIVE_STATES = (WorkflowState.SCHEDULED, WorkflowState.RUNNING, WorkflowState.CANCELLING)


MAX_FORMER: Final = 8
"""Maximum number of Machines whose BMCs are cleaned up for a Workflow beside that of its present Machine."""


class SupersededError(TinkedgeError):
    """The Workflow has ended, is held, or was replaced by another of the same name, while its boot was going on."""


@dataclass(slots=True)
class BootMemory:
    """The memory of a process about the boot of one Workflow. All times are those of the event loop."""

    ladder: tuple[Rung, ...] = ()
    """The ladder of the BMC while it is climbed."""
    failed_rungs: set[Rung] = field(default_factory=set)
    """The ways that could not be carried out."""
    reading: tuple[Rung, float, Observation | BmcError] | None = None
    """The last reading of the BMC while the machine booted, its attempt and its time."""
    lost_since: tuple[Rung, float] | None = None
    """The attempt in which OverrideLost was shown, and the time at which it was first shown."""
    ending_since: float | None = None
    """The time at which the clean-up after the Workflow's end began."""
    is_undone: bool = False
    """True if the clean-up of the present Machine's BMC has ended."""
    failures: int = 0
    """Number of failed attempts in a row."""
    not_before: float = 0.0
    """The time before which nothing is tried again."""
    is_corrected: bool = False
    """True if the Machine has changed since the last reconciliation began: the next attempt is due at once."""

    def forget_bmc(self) -> None:
        """Forget the ladder, readings and failures: another BMC boots the machine from now on."""
        self.ladder, self.failed_rungs, self.reading, self.lost_since = (), set(), None, None
        self.failures, self.not_before = 0, 0.0

    def count_failure(self) -> float:
        """Count a failed attempt. Return the seconds until the next one, which double up to five minutes."""
        self.failures += 1
        return float(min(RETRY_SECONDS * 2 ** min(self.failures - 1, 10), MAX_RETRY_SECONDS))

    def pause_for(self, seconds: float) -> None:
        """Try nothing again for this time."""
        self.not_before = elapsed() + seconds

    def seconds_left(self) -> float:
        """Return the seconds until the next attempt; 0 if it is due."""
        left = self.not_before - elapsed()
        return max(left, SOON_SECONDS) if left > 0 else 0.0


@dataclass(frozen=True, slots=True)
class FormerBmc:
    """A Machine that the Hardware named before, whose BMC is not cleaned up yet (`status.boot.former`).

    `medium` is the kind of medium that was inserted, or empty. `since` is in Unix seconds; 0 if it is not known.
    """

    machine: NamespacedName
    medium: str
    since: float


@dataclass(slots=True)
class BootCase:
    """One Workflow with its objects in one reconciliation.

    `workflow` is the newest version that BMC control has written. `hardware` is empty if it does not exist.
    """

    key: NamespacedName
    workflow: Raw
    hardware: Raw
    memory: BootMemory

    @property
    def options(self) -> Raw:
        """The boot options in the Workflow's spec."""
        return options_of(self.workflow)

    @property
    def uid(self) -> str:
        """The uid of the Workflow."""
        return str(self.workflow["metadata"]["uid"])

    @property
    def boot(self) -> Raw:
        """`status.boot` of the Workflow."""
        return as_mapping(status_of(self.workflow).get("boot"))

    @property
    def mode(self) -> str:
        """The `bootMode`; empty if there is none."""
        return str(self.options.get("bootMode") or "")

    @property
    def macs(self) -> tuple[str, ...]:
        """The MAC addresses of the Hardware."""
        return tuple(as_mapping(as_mapping(self.hardware.get("spec")).get("networkInterfaces")))

    @property
    def is_uefi(self) -> bool | None:
        """The firmware mode in a Hardware that was written in v1alpha1 (`dhcp.uefi`); None if it has none."""
        if V1ALPHA1_ANNOTATION not in as_mapping(as_mapping(self.hardware.get("metadata")).get("annotations")):
            return None
        from tink.versions import is_uefi  # few sites have such Hardware

        return is_uefi(self.hardware)

    @property
    def machine(self) -> NamespacedName | None:
        """The Machine that the Hardware names now."""
        name = machine_of(self.hardware)
        return NamespacedName(self.key.namespace, name) if name else None

    @property
    def prepared_machine(self) -> NamespacedName | None:
        """The Machine whose BMC was changed for the Workflow; None if no boot has begun."""
        return prepared_machine_of(self.workflow)

    @property
    def rung(self) -> Rung | None:
        """The present attempt; None before the first."""
        way, attempt = self.boot.get("way"), self.boot.get("attempt")
        known = {each.value: each for each in BootWay}
        if not isinstance(way, str) or way not in known or not isinstance(attempt, int) or isinstance(attempt, bool):
            return None
        return Rung(known[way], attempt)


class BootWriter:
    """Writes what BMC control has to report about the boot of a Workflow. All methods raise ApiError."""

    def __init__(self, context: BmcContext) -> None:
        self._context = context

    async def set_finalizer(self, case: BootCase, *, present: bool) -> None:
        """Set the finalizer that keeps the Workflow until the clean-up is done, or remove it."""
        metadata = case.workflow["metadata"]
        others = [each for each in metadata.get("finalizers") or () if each != BOOT_FINALIZER]
        finalizers = [*others, BOOT_FINALIZER] if present else others
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        with suppress(NotFoundError):
            await self._context.patch(WORKFLOW, case.key, body)

    async def set_netboot(self, case: BootCase, *, is_allowed: bool) -> None:
        """Set `disableNetboot` of all interfaces of the Hardware."""
        interfaces = as_mapping(as_mapping(case.hardware.get("spec")).get("networkInterfaces"))
        changes = {
            mac: {"disableNetboot": not is_allowed}
            for mac, interface in interfaces.items()
            if (as_mapping(interface).get("disableNetboot") is True) == is_allowed
        }
        if not changes:
            return
        hardware, version = NamespacedName.of(case.hardware), case.hardware["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"networkInterfaces": changes}}
        with suppress(NotFoundError):
            await self._context.patch(HARDWARE, hardware, body)
        state = "permitted" if is_allowed else "forbidden"
        log.info("Workflow %s: netbooting of Hardware %s is %s", case.key, hardware, state)

    async def wait_for(self, case: BootCase, reason: BootReason | Cause, message: str, **boot: Any) -> bool:
        """Write why the machine has not booted yet. Return False if nothing changes.

        `boot` are fields of `status.boot`; None removes one.
        """
        return await self.report(case, ConditionStatus.FALSE, reason, message, **boot)

    async def report(self, case: BootCase, value: ConditionStatus, reason: str, message: str, **boot: Any) -> bool:
        """Write BootPrepared and fields of `status.boot`, and record an Event. Return False if nothing changes."""
        text, now = bounded(message), self._context.now()

        def change(status: Status) -> None:
            set_condition(status, ConditionType.BOOT_PREPARED, value, now, str(reason), text)
            if reason not in (BootReason.NO_BMC, BootReason.OTHER_WORKFLOW) or status.get("boot"):
                _set_boot(status, message=text, **boot)

        before = condition(status_of(case.workflow), ConditionType.BOOT_PREPARED)
        if not await self.update(case, change):
            return False
        if before.get("reason") == reason:
            return True
        is_warning = value is ConditionStatus.FALSE and reason not in PROGRESS_REASONS
        self.announce(case, str(reason), text, is_warning=is_warning)
        return True

    async def report_clean_up(self, case: BootCase, reason: str, message: str, *, is_done: bool) -> None:
        """Write the condition BootCleanedUp, and record an Event."""
        text, now = bounded(message), self._context.now()
        value = ConditionStatus.TRUE if is_done else ConditionStatus.FALSE
        self.announce(case, reason, text, is_warning=not is_done)
        await self.update(
            case, lambda status: set_condition(status, ConditionType.BOOT_CLEANED_UP, value, now, reason, text)
        )

    def announce(self, case: BootCase, reason: str, message: str, *, is_warning: bool) -> None:
        """Record an Event of the Workflow, and log the same."""
        event, level = Event(reason, message, warning=is_warning), logging.WARNING if is_warning else logging.INFO
        self._context.recorder.event(case.workflow, WORKFLOW, event)
        self._context.limited_log.log(
            level, "Workflow %s: %s: %s", case.key, reason, bounded(message), owner=case.key.namespace
        )

    async def set_boot(self, case: BootCase, **fields: Any) -> None:
        """Write fields of `status.boot`; None removes one."""
        await self.update(case, partial(_set_boot, **fields))

    async def add_former(self, case: BootCase, machine: NamespacedName, medium: str) -> None:
        """Write that the BMC of a Machine, which the Hardware named before, has to be cleaned up from now on.

        `medium` is the kind of medium that was inserted, or empty.
        """
        entry = {"machine": machine.name, "since": rfc3339(self._context.now()), "medium": medium}
        entry = {field: value for field, value in entry.items() if value}

        def change(status: Status) -> None:
            _set_boot(status, former=[*_without(status, machine), entry][-MAX_FORMER:])

        await self.update(case, change)

    async def drop_former(self, case: BootCase, machine: NamespacedName) -> None:
        """Write that the BMC of a Machine is no longer to be cleaned up as a former one."""
        await self.update(case, lambda status: _set_boot(status, former=_without(status, machine) or None))

    async def update(self, case: BootCase, change: Callable[[Status], None]) -> bool:
        """Write a change of the status, on top of the newest version. Return False if it changes nothing.

        Raises ConflictError if others change the Workflow all the time, SupersededError if its boot has become
        pointless.
        """
        for tries_left in reversed(range(_CONFLICTS)):
            status: Status = dict(status_of(case.workflow))
            change(status)
            status["message"] = summary(status)
            if status == status_of(case.workflow):
                return False
            body = status_patch(case.workflow, status)
            if "boot" in body["status"]:
                # A merge patch removes only the keys that it names.
                body["status"]["boot"] = dict.fromkeys(case.boot) | status["boot"]
            try:
                case.workflow = await self._context.patch(WORKFLOW, case.key, body, subresource="status")
            except ConflictError:
                if not tries_left:
                    raise
                case.workflow = await self._newest(case)
            except NotFoundError:
                return False
            else:
                return True
        return False

    async def _newest(self, case: BootCase) -> Raw:
        """Return the newest version of the Workflow. Raises SupersededError, and NotFoundError."""
        newest = await self._context.client.get(WORKFLOW, case.key.name, case.key.namespace)
        is_same = newest["metadata"].get("uid") == case.workflow["metadata"].get("uid")
        if not is_same or paused(newest) or is_due(newest) != is_due(case.workflow):
            raise SupersededError
        return newest

    async def is_current(self, case: BootCase) -> bool:
        """Return True if the informer's copy of the Workflow is the newest version.

        An older copy may lack what this process has written last, and the machine would be switched off a second time.
        """
        try:
            current = await self._context.client.get(WORKFLOW, case.key.name, case.key.namespace)
        except NotFoundError:
            return False
        return bool(current["metadata"]["resourceVersion"] == case.workflow["metadata"]["resourceVersion"])

    async def last_boot_at(self, case: BootCase) -> str:
        """Return when the last boot of the machine began, as an edge has written it; empty if it has none.

        It is read from the API: in an older copy, the boot before the power-off would look like the one after it.
        """
        try:
            hardware = await self._context.client.get(HARDWARE, *reversed(hardware_of(case.workflow)))
        except NotFoundError:
            return ""
        return str(last_boot_of(hardware).get("at") or "")


def _set_boot(status: Status, **fields: Any) -> None:
    """Set fields of `status.boot`; None removes one."""
    boot = {**as_mapping(status.get("boot")), **fields}
    status["boot"] = {field: value for field, value in boot.items() if value is not None}


def _without(status: Status, machine: NamespacedName) -> list[Raw]:
    """Return the entries of `status.boot.former` without that of a Machine."""
    former = as_mapping(status.get("boot")).get("former")
    entries = [as_mapping(each) for each in former] if isinstance(former, list) else []
    return [each for each in entries if each.get("machine") not in (None, machine.name)]


# --- what a Workflow and a Hardware show ------------------------------------------------------------------------------


def options_of(workflow: Raw) -> Raw:
    """Return `spec.bootOptions` of a Workflow; empty if there are none."""
    return as_mapping(as_mapping(workflow.get("spec")).get("bootOptions"))


def is_protected(workflow: Raw) -> bool:
    """Return True if the Workflow has the finalizer of BMC control."""
    return BOOT_FINALIZER in (workflow["metadata"].get("finalizers") or ())


def is_over(workflow: Raw) -> bool:
    """Return True if the Workflow has ended, or was deleted before it was prepared."""
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return False
    return state.terminal if state is not None else deleted(workflow)


def is_stopped(workflow: Raw) -> bool:
    """Return True if a boot for the Workflow must not go on: it is over, deleted, held, paused, or has a bad status."""
    try:
        return paused(workflow) or deleted(workflow) or is_over(workflow) or held(workflow)
    except InvalidStatusError:
        return True


def is_due(workflow: Raw) -> bool:
    """Return True if the machine is to be booted for the Workflow."""
    if is_stopped(workflow) or not awaits_boot(workflow):
        return False
    return state_of(workflow) is WorkflowState.PENDING


def occupies(workflow: Raw) -> bool:
    """Return True if an agent may have the Workflow: it is under way, moved to another API, or has an invalid state.

    So may it if its machine was booted for it.
    """
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return True
    if state is WorkflowState.PENDING and options_of(workflow).get("bootMode") and not awaits_boot(workflow):
        return True
    return state in _ACTIVE_STATES or (paused(workflow) and not is_over(workflow))


def has_begun_boot(workflow: Raw) -> bool:
    """Return True if the machine is being booted for the Workflow (`boot_begun`); False if its status is invalid."""
    try:
        return boot_begun(workflow)
    except InvalidStatusError:
        return False


def hardware_of(workflow: Raw) -> NamespacedName:
    """Return the Hardware that a Workflow names."""
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName.of(workflow)._replace(name=str(name or ""))


def machine_of(hardware: Raw) -> str:
    """Return the name of the Machine that a Hardware names (`spec.bmcRef`); empty if it names none."""
    return str(as_mapping(as_mapping(hardware.get("spec")).get("bmcRef")).get("name") or "")


def prepared_machine_of(workflow: Raw) -> NamespacedName | None:
    """Return the Machine whose BMC was changed for a Workflow (`status.boot.machine`); None if there is none."""
    name = as_mapping(status_of(workflow).get("boot")).get("machine")
    return NamespacedName.of(workflow)._replace(name=name) if isinstance(name, str) and name else None


def former_of(workflow: Raw) -> tuple[FormerBmc, ...]:
    """Return the Machines in `status.boot.former` of a Workflow."""
    former = as_mapping(status_of(workflow).get("boot")).get("former")
    entries = [as_mapping(each) for each in former] if isinstance(former, list) else []
    return tuple(
        FormerBmc(
            NamespacedName.of(workflow)._replace(name=str(each["machine"])),
            str(each.get("medium") or ""),
            parse_timestamp(each.get("since")) or 0.0,
        )
        for each in entries[:MAX_FORMER]
        if each.get("machine")
    )


def last_boot_of(hardware: Raw) -> Raw:
    """Return `status.lastBoot` of a Hardware; empty if there is none."""
    return as_mapping(as_mapping(hardware.get("status")).get("lastBoot"))


def elapsed() -> float:
    """Return the monotonic seconds of the event loop."""
    return asyncio.get_running_loop().time()
