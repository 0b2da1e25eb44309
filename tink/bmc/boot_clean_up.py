"""Undoes the boot of a Workflow after its end, in whatever state, and releases the Workflow.

`disableNetboot` becomes true again, the medium is ejected, a boot device that is still set is cleared, or the post
actions of a custom boot are executed. A BMC that does not answer is tried again for an hour.
"""

from __future__ import annotations

from tink.api.v1alpha2 import BootMode, WorkflowState, as_mapping
from tink.bmc.boot import clean_up
from tink.bmc.boot_operations import BootOperations
from tink.bmc.boot_order import BootOrder
from tink.bmc.boot_status import SOON_SECONDS, BootCase, BootWriter, elapsed, hardware_of
from tink.bmc.connections import BmcContext
from tink.bmc.model import BmcError, Cause
from tink.kube.cache import Informer
from tink.kube.client import ApiError, ConflictError, UnreachableError
from tink.workflow.status import parse_timestamp, state_of, status_of

_INSTALLED_SECONDS = 60.0
"""Pause before the image of isoURL is ejected after a success: the last action may still be restarting the machine."""
_CLEAN_UP_SECONDS = 3600.0
"""Time after the end of a Workflow for which a failing clean-up is repeated."""


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
        memory = case.memory
        if memory.ending_since is None:
            memory.ending_since = elapsed()
        ended = parse_timestamp(status_of(case.workflow).get("lastTransitioned"))
        # The clock that wrote the end may be wrong, or the status edited by hand.
        age = max(self._context.now() - ended if ended is not None else 0.0, elapsed() - memory.ending_since)
        is_last_try = age >= _CLEAN_UP_SECONDS
        failure: ApiError | None = None
        if case.options.get("toggleAllowNetboot") is True and case.hardware:
            try:
                await self._writer.set_netboot(case, is_allowed=False)
            except (ConflictError, UnreachableError):
                raise
            except ApiError as error:
                failure = error
        if case.boot.get("way") and case.hardware:
            pause = await self._clean_up(case, age, is_last_try=is_last_try)
            if pause > 0:
                return pause
        if failure is not None:
            if not is_last_try:
                raise failure
            message = f"netbooting of Hardware {hardware_of(case.workflow)} is still permitted: {failure}"
            self._report_unclean(case, "NetbootPermitted", message)
        await self._writer.set_finalizer(case, present=False)
        return 0.0

    async def _clean_up(self, case: BootCase, age: float, *, is_last_try: bool) -> float:
        """Clean up the BMC. Return the seconds until the next try; 0 after the last. `age`: seconds since the end."""
        has_image = case.boot.get("medium") and case.options.get("isoURL")
        has_succeeded = state_of(case.workflow) is WorkflowState.SUCCEEDED
        if has_image and has_succeeded and age < _INSTALLED_SECONDS:
            return max(_INSTALLED_SECONDS - age, SOON_SECONDS)
        if left := case.memory.seconds_left():
            return left
        try:
            # An action that has begun may have written an operating system.
            await self._clean_bmc(case, has_installed=bool(status_of(case.workflow).get("startedAt")))
        except BmcError as error:
            self._report_unclean(case, error.cause.value, f"the BMC is not cleaned up: {error}")
        except ApiError as error:
            if isinstance(error, ConflictError | UnreachableError) or not is_last_try:
                raise
            self._report_unclean(case, "ApiError", f"the BMC is not cleaned up: {error}")
        else:
            return 0.0
        if is_last_try:
            return 0.0
        pause = case.memory.count_failure()
        case.memory.pause_for(pause)
        return pause

    def _report_unclean(self, case: BootCase, reason: str, message: str) -> None:
        self._writer.announce(case, reason, message, is_warning=True)

    async def _clean_bmc(self, case: BootCase, *, has_installed: bool) -> None:
        """Eject the medium and clear the boot device, or carry out the post actions. Raises BmcError, ApiError."""
        machine = self._machines.get(*case.machine) if case.machine is not None else None
        if machine is None:
            return
        reach = await self._operations.reach(case, machine)
        if case.mode == BootMode.CUSTOMBOOT:
            config = as_mapping(case.options.get("custombootConfig"))
            if config.get("postActions"):
                if other := self._order.occupant(case):
                    raise BmcError(Cause.BUSY, f"Workflow {other} runs on the machine")
                count = len(config.get("preparingActions") or ())
                await self._operations.carry_out(case, reach, "postActions", offset=count)
            return
        try:
            async with self._operations.open(case, reach) as session:
                medium = str(case.boot.get("medium") or "")
                seen = await session.observe(boot=True, media=bool(medium))
                for wanted in clean_up(seen, medium=medium, has_installed=has_installed):
                    await self._operations.perform(case, session, wanted)
        except BmcError:
            await self._operations.record_refusal(reach)
            raise
