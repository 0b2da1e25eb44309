"""Operations on the BMC of a Workflow's machine, with reports of their progress.

The controllers of the boot (`tink.bmc.workflows`) and of the clean-up after it (`tink.bmc.boot_clean_up`) share this.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tink.api.bounds import MAX_URL_CHARACTERS
from tink.api.v1alpha2 import BootMode, Raw, as_mapping
from tink.bmc.boot import BootReason
from tink.bmc.boot_status import BootCase, BootWriter, SupersededError, elapsed
from tink.bmc.connections import BmcContext, BmcSession, bmc_of, connection_of
from tink.bmc.jobs import stages_of
from tink.bmc.model import BmcConnection, BmcCredentials, BmcError, Cause, Wanted
from tink.bmc.status import bounded
from tink.kube.client import ApiError
from tink.kube.resources import MACHINE
from tink.kube.runtime import LeadershipLostError
from tink.template import TemplateError, render_text
from tink.waiting import cancel_once

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0
"""Time between two reports of what an operation waits for."""


class BootUrls(Protocol):
    """The URLs of the edge that BMCs and firmware fetch from. A method returns an empty string without such a URL."""

    def http_boot(self, mac: str) -> str:
        """Return the URL of a boot program for UEFI HTTP boot (UEFI 2.10 section 24.7)."""
        ...

    def medium(self, mac: str) -> str:
        """Return the signed URL of the machine's boot medium."""
        ...


@dataclass(frozen=True, slots=True)
class BmcReach:
    """How to reach the BMC of a Machine."""

    machine: Raw
    connection: BmcConnection
    credentials: BmcCredentials

    @property
    def bmc(self) -> str:
        """The identity of the BMC (`bmc_of`)."""
        return bmc_of(self.connection)


@dataclass(frozen=True, slots=True)
class BootStep:
    """A step of a boot, as it is reported while it goes on."""

    reason: BootReason
    message: str


class BootOperations:
    """Operations on the BMCs of Workflows' machines. `urls` None: this process knows no edge."""

    def __init__(self, context: BmcContext, writer: BootWriter, urls: BootUrls | None) -> None:
        self._context = context
        self._writer = writer
        self._urls = urls

    async def reach(self, case: BootCase, machine: Raw) -> BmcReach:
        """Return how to reach the BMC of a Machine. Raises BmcError, ApiError."""
        spec, reader = as_mapping(machine["spec"].get("connection")), self._context.reader
        connection = connection_of(spec, await reader.authority(spec, case.key.namespace))
        credentials = await reader.credentials(spec, case.key.namespace)
        self._context.connections.logins.restore(MACHINE.kind, machine, bmc_of(connection), credentials)
        return BmcReach(machine, connection, credentials)

    async def record_login(self, reach: BmcReach) -> None:
        """Write to the Machine that its BMC has refused the login, if it has. Raises ApiError."""
        if self._context.connections.logins.is_refused(reach.bmc, reach.credentials):
            keeper = self._context.keeper(MACHINE, reach.machine)
            await self._context.record_login(keeper, reach.bmc, reach.credentials)

    def open(self, case: BootCase, reach: BmcReach) -> AbstractAsyncContextManager[BmcSession]:
        """Open a session with a BMC. Entering raises BmcError."""
        keeper = self._context.keeper(MACHINE, reach.machine)
        return self._context.connections.open(case.key, reach.connection, reach.credentials, keeper=keeper)

    async def perform(
        self,
        case: BootCase,
        session: BmcSession,
        wanted: Wanted,
        *,
        protocol: str = "",
        step: BootStep | None = None,
    ) -> str:
        """Make the BMC do what is wanted, and return a clause that says what it reports. Raises BmcError.

        `protocol`: use this one alone. `step`: write what the operation waits for to the Workflow meanwhile; the
        calling task is cancelled if the Workflow is superseded.
        """
        progress: list[str] = []

        def note(text: str) -> None:
            elector = self._context.elector
            if elector is not None and not elector.is_leader:
                raise LeadershipLostError  # after a pause of the process, another replica may have gone on
            log.debug("Workflow %s: %s", case.key, bounded(text))
            progress.append(text)

        operation = session.perform(wanted, protocol=protocol, progress=note)
        if step is None:
            return await operation
        reporting = asyncio.create_task(self._report_progress(case, step, progress, asyncio.current_task()))
        try:
            return await operation
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])

    async def _report_progress(
        self, case: BootCase, step: BootStep, progress: Sequence[str], caller: asyncio.Task[Any] | None
    ) -> None:
        """Write what an operation waits for, at most every five seconds, until cancelled.

        A BMC may take minutes, such as one whose task never ends. The message shows the cause meanwhile, and after
        `boot_named_after` the reason is STEP_OVERDUE, a warning.
        """
        begun, limit = elapsed(), self._context.settings.boot_named_after
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            reason, message = step.reason, step.message
            if elapsed() - begun >= limit:
                reason, message = BootReason.STEP_OVERDUE, f"{message} takes longer than {limit:g} s"
            elif not progress:
                continue
            try:
                # Unchanged: no write.
                await self._writer.wait_for(case, reason, ": ".join([message, *progress[-1:]]))
            except (ApiError, LeadershipLostError) as error:
                log.debug("Workflow %s: its progress is not written: %s", case.key, error)
            except SupersededError:
                if caller is not None:
                    cancel_once(caller)
                return

    async def carry_out(
        self,
        case: BootCase,
        reach: BmcReach,
        field: str,
        *,
        offset: int,
        before_each: Callable[[BootStep], Awaitable[bool]] | None = None,
    ) -> bool:
        """Carry out the actions in `custombootConfig` of a field from `status.boot.done` on. Raises BmcError, ApiError.

        `offset` is the number of actions in the lists before. `before_each` is called before each action, and returns
        False if the actions must not go on. Return True after the last action, else False.
        """
        actions = as_mapping(case.options.get("custombootConfig")).get(field) or ()
        done = case.boot.get("done")
        first = max(0, (done if isinstance(done, int) else 0) - offset)
        async with self.open(case, reach) as session:
            for number, action in enumerate(actions[first:], first):
                step = BootStep(BootReason.RUNNING_ACTIONS, f"action {number + 1} of {len(actions)}")
                if before_each is not None and not await before_each(step):
                    return False
                name = f"spec.bootOptions.custombootConfig.{field}[{number}]"
                for stage in stages_of(await self._rendered_action(case, action, name)):
                    await self.perform(case, session, stage.wanted, step=step if before_each is not None else None)
                await self._writer.set_boot(case, done=offset + number + 1)
        return True

    async def _rendered_action(self, case: BootCase, action: Raw, name: str) -> Raw:
        medium = as_mapping(action.get("virtualMediaAction"))
        url = str(medium.get("mediaURL") or "")
        if "{{" not in url:
            return action
        rendered = await self._rendered(case, url, f"{name}.virtualMediaAction.mediaURL")
        return {"virtualMediaAction": {**medium, "mediaURL": rendered}}

    async def urls(self, case: BootCase) -> tuple[str, str]:
        """Return the URL for UEFI HTTP boot and that of the medium. Raises BmcError."""
        mac = case.macs[0] if case.macs else ""
        if case.options.get("isoURL"):
            return "", await self._rendered(case, str(case.options["isoURL"]), "spec.bootOptions.isoURL")
        urls = self._urls if mac else None
        medium = urls.medium(mac) if urls is not None else ""
        if case.mode == BootMode.ISOBOOT and not medium:
            raise BmcError(
                Cause.UNSUPPORTED,
                "spec.bootOptions.isoURL is missing, and this process knows no edge with a boot medium: set isoURL, or "
                "start BMC control with --bmc-edge-url",
            )
        return (urls.http_boot(mac) if urls is not None else ""), medium

    async def _rendered(self, case: BootCase, text: str, name: str) -> str:
        """Return a text after its templates are executed. Raises BmcError (UNSUPPORTED)."""
        if "{{" not in text:
            return text
        params = as_mapping(as_mapping(case.workflow.get("spec")).get("templateParams"))
        try:
            rendered = await asyncio.to_thread(render_text, text, case.hardware, params, name)
        except TemplateError as error:
            raise BmcError(Cause.UNSUPPORTED, str(error)) from None
        if len(rendered) > MAX_URL_CHARACTERS:
            text = f"{name}: the template gives more than {MAX_URL_CHARACTERS} characters"
            raise BmcError(Cause.UNSUPPORTED, text)
        if re.fullmatch(r"https?://[!-~]+", rendered) is None:
            text = f"{name}: the template gives no http:// or https:// URL of printable ASCII characters"
            raise BmcError(Cause.UNSUPPORTED, text)
        return rendered
