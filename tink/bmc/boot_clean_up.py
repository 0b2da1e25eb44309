"""Undoes the boot of a Workflow after its end, in whatever state, and releases the Workflow.

`disableNetboot` becomes true again, the medium is ejected, a boot device that is still set is cleared, or the post
actions of a custom boot are executed. The BMC is that of the Machine in `status.boot.machine`, whichever Machine the
Hardware names now. A BMC that does not answer is tried again for an hour. The condition BootCleanedUp has the result.

If `spec.bmcRef` is corrected during the boot, the BMC of the former Machine is cleaned up at once. After a failure its
Machine is in `status.boot.former`, and it is tried again for an hour as well, while the boot goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tink.api.v1alpha2 import BootMode, WorkflowState, as_mapping
from tink.bmc.boot import BootReason, clean_up
from tink.bmc.boot_operations import BmcReach, BootOperations
from tink.bmc.boot_order import BootOrder
from tink.bmc.boot_status import (
    CREDENTIAL_CAUSES,
    MAX_RETRY_SECONDS,
    RETRY_SECONDS,
    SOON_SECONDS,
    BootCase,
    BootWriter,
    SupersededError,
    elapsed,
    former_of,
    hardware_of,
)
from tink.bmc.connections import BmcContext
from tink.bmc.model import BmcError, Cause
from tink.errors import TinkedgeError
from tink.kube.cache import Informer
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.workflow.status import parse_timestamp, state_of, status_of

_INSTALLED_SECONDS = 60.0
"""Pause before the image of isoURL is ejected after a success: the last action may still be restarting the machine."""
_CLEAN_UP_SECONDS = 3600.0
"""Time after the end of a Workflow for which a failing clean-up is repeated."""
_CLOCK_SECONDS = 5.0
"""Difference between clocks from which a time in the future is an error."""
_FORMER_SECONDS = 30.0
"""Pause before an ended Workflow is looked at again that waits for a former BMC. Its clean-up is noticed sooner."""
_CLEANED_UP = "CleanedUp"
"""The reason of the condition BootCleanedUp if everything is undone."""


class _MachineGoneError(TinkedgeError):
    """The Machine whose BMC has to be cleaned up does not exist any more."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A part of the clean-up that has failed: a reason, a sentence, and the error of the API if that is the cause."""

    reason: str
    message: str
    error: ApiError | None = None


class BootCleanUp:
    """Cleans up after Workflows that have ended."""

    def __init__(
        self,
        context: BmcContext,
        writer: BootWriter,
        operations: BootOperations,
        order: BootOrder,
        machines: Informer,
    ) -> None:
        self._context = context
        self._writer, self._operations, self._order = writer, operations, order
        self._machines = machines

    async def finish(self, case: BootCase) -> float:
        """Undo after the end of a Workflow what was done before it, and release it, after an hour in any case.

        Return the seconds until the next try; 0 if the Workflow is released. Raises ApiError.
        """
        if not case.memory.is_undone and (pause := await self._undo(case)):
            return pause
        case.memory.is_undone = True
        if former_of(case.workflow):
            return _FORMER_SECONDS
        await self._writer.set_finalizer(case, present=False)
        return 0.0

    async def _undo(self, case: BootCase) -> float:
        """Forbid netbooting again, and clean up the BMC. Return the seconds until the next try; 0 if it has ended.

        Raises ApiError.
        """
        memory = case.memory
        if memory.ending_since is None:
            memory.ending_since = elapsed()
        ended = parse_timestamp(status_of(case.workflow).get("lastTransitioned"))
        # The clock that wrote the end may be wrong, or the status edited by hand.
        age = max(self._context.now() - ended if ended is not None else 0.0, elapsed() - memory.ending_since)
        is_last_try = age >= _CLEAN_UP_SECONDS
        failures: list[_Failure] = []
        undone: list[str] = []
        if case.options.get("toggleAllowNetboot") is True and case.hardware:
            try:
                await self._writer.set_netboot(case, is_allowed=False)
                undone.append("netbooting is forbidden again")
            except (ConflictError, UnreachableError):
                raise
            except ApiError as error:
                if not is_last_try and not case.boot.get("way"):
                    raise
                message = f"netbooting of Hardware {hardware_of(case.workflow)} is still permitted: {error}"
                failures.append(_Failure("NetbootPermitted", message, error))
        if case.boot.get("way"):
            if pause := _pause_before(case, age):
                return pause
            try:
                medium = str(case.boot.get("medium") or "")
                undone += await self._clean_bmc(case, case.prepared_machine or case.machine, medium)
            except _MachineGoneError as error:
                # No later try would succeed.
                failures.append(_Failure(BootReason.NO_BMC.value, str(error)))
            except BmcError as error:
                failure = _Failure(error.cause.value, f"the BMC is not cleaned up: {error}")
                if not is_last_try:
                    return await self._try_later(case, failure, error)
                failures.append(failure)
            except ApiError as error:
                if isinstance(error, ConflictError | UnreachableError) or not is_last_try:
                    raise
                failures.append(_Failure("ApiError", f"the BMC is not cleaned up: {error}"))
        if failures and failures[0].error is not None and not is_last_try:
            raise failures[0].error
        await self._report_end(case, undone, failures)
        return 0.0

    async def leave(self, case: BootCase, former: NamespacedName) -> bool:
        """Clean up the BMC of a Machine that the Hardware no longer names. The boot goes on with another.

        Return False if it has to be tried again. The post actions of a custom boot are for the end of the Workflow, on
        the other BMC. Raises ApiError if the API is away.
        """
        if case.mode == BootMode.CUSTOMBOOT:
            text = (
                f"the preparing actions that the BMC of Machine {former} has done are not undone: look at its machine"
            )
            self._writer.announce(case, "BmcNotCleanedUp", text, is_warning=True)
            return True
        return await self._clean_former(case, former, str(case.boot.get("medium") or "")) is None

    async def retry_former(self, case: BootCase) -> float:
        """Clean up the BMCs of the Machines in `status.boot.former`, each for an hour after it was left.

        Return the seconds until the next try; 0 if none is left. Raises ApiError, and SupersededError if the Workflow
        has changed meanwhile.
        """
        pauses = []
        for former in former_of(case.workflow):
            age = self._context.now() - former.since
            if age < -_CLOCK_SECONDS:  # the clock was set back
                await self._writer.add_former(case, former.machine, former.medium)
            failure = await self._clean_former(case, former.machine, former.medium, is_retry=True)
            if failure is not None and age < _CLEAN_UP_SECONDS:
                # The time since the first try doubles, as the pauses of `BootMemory.count_failure` do.
                pauses.append(self._pause_after(failure, min(max(age, RETRY_SECONDS), MAX_RETRY_SECONDS)))
            else:
                await self._writer.drop_former(case, former.machine)
        return min(pauses, default=0.0)

    async def _clean_former(
        self, case: BootCase, former: NamespacedName, medium: str, *, is_retry: bool = False
    ) -> BmcError | None:
        """Clean up the BMC of a Machine that the Hardware no longer names. Return the failure if it may be repeated."""
        try:
            undone = await self._clean_bmc(case, former, medium, is_retry=is_retry)
        except (BmcError, _MachineGoneError) as error:
            text = f"the BMC of Machine {former}, which Hardware {hardware_of(case.workflow)} named before"
            self._writer.announce(case, "BmcNotCleanedUp", f"{text}, is not cleaned up: {error}", is_warning=True)
            return error if isinstance(error, BmcError) else None
        text = "; ".join(undone) or "nothing was left to undo"
        self._writer.announce(case, _CLEANED_UP, f"the former BMC, of Machine {former}: {text}", is_warning=False)
        return None

    def _pause_after(self, error: BmcError, pause: float) -> float:
        """Return the seconds until the next try after a failure of a BMC."""
        if error.cause in CREDENTIAL_CAUSES:
            return self._context.settings.secret_interval  # it costs no login until the Secret changes
        return max(pause, error.retry_after)

    async def _try_later(self, case: BootCase, failure: _Failure, error: BmcError) -> float:
        """Report a failure of the BMC, and return the seconds until the next try."""
        pause = self._pause_after(error, case.memory.count_failure())
        case.memory.pause_for(pause)
        await self._writer.report_clean_up(case, failure.reason, failure.message, is_done=False)
        return pause

    async def _report_end(self, case: BootCase, undone: list[str], failures: list[_Failure]) -> None:
        """Report the result of the last try."""
        if failures:
            message = "; ".join(each.message for each in failures)
            await self._writer.report_clean_up(case, failures[0].reason, message, is_done=False)
        elif undone:
            await self._writer.report_clean_up(case, _CLEANED_UP, "; ".join(undone), is_done=True)

    async def _clean_bmc(
        self, case: BootCase, key: NamespacedName | None, medium: str, *, is_retry: bool = False
    ) -> list[str]:
        """Eject the medium and clear the boot device, or carry out the post actions. Return what was done.

        `is_retry`: the Machine is in `status.boot.former`. Raises _MachineGoneError, BmcError, ApiError, and
        SupersededError if it no longer is.
        """
        machine = self._machines.get(*key) if key is not None else None
        if machine is None or key is None:
            raise _MachineGoneError(f"Machine {key or '(none)'} does not exist: look at its machine's boot device")
        self._require_unused(case, key)
        reach = await self._operations.reach(case, machine)
        # An action that has begun may have written an operating system.
        has_installed = bool(status_of(case.workflow).get("startedAt"))
        try:
            if case.mode == BootMode.CUSTOMBOOT:
                return await self._post_actions(case, reach)
            async with self._operations.open(case, reach) as session:
                # Another Workflow may have used the BMC while this one waited for it.
                self._require_unused(case, key)
                if is_retry and not self._order.is_former(case, key):
                    raise SupersededError  # the Hardware names this Machine again, and its boot may have begun
                seen = await session.observe(boot=True, media=bool(medium))
                wanted = clean_up(seen, medium=medium, has_installed=has_installed)
                return [await self._operations.perform(case, session, each) for each in wanted]
        except BmcError:
            await self._operations.record_login(reach)
            raise

    def _require_unused(self, case: BootCase, machine: NamespacedName) -> None:
        """Raise BmcError (BUSY) if a Workflow of another Hardware uses the machine of a Machine."""
        if other := self._order.user_of(case, machine):
            raise BmcError(Cause.BUSY, f"Workflow {other} uses the machine")

    async def _post_actions(self, case: BootCase, reach: BmcReach) -> list[str]:
        config = as_mapping(case.options.get("custombootConfig"))
        actions = config.get("postActions") or ()
        if not actions:
            return []
        if other := self._order.occupant(case):
            raise BmcError(Cause.BUSY, f"Workflow {other} runs on the machine")
        count = len(config.get("preparingActions") or ())
        await self._operations.carry_out(case, reach, "postActions", offset=count)
        return [f"the {len(actions)} post actions are done"]


def _pause_before(case: BootCase, age: float) -> float:
    """Return the seconds until the BMC may be cleaned up; 0 if it may now. `age`: seconds since the end."""
    has_image = case.boot.get("medium") and case.options.get("isoURL")
    has_succeeded = state_of(case.workflow) is WorkflowState.SUCCEEDED
    if has_image and has_succeeded and age < _INSTALLED_SECONDS:
        return max(_INSTALLED_SECONDS - age, SOON_SECONDS)
    return case.memory.seconds_left()
