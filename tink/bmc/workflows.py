"""Boots the machine of a Workflow by its BMC before the Workflow is sent to an agent, and cleans up after its end.

A Pending Workflow with `spec.bootOptions` is reconciled in these steps. Each is derived from the objects as they are,
so a restart of the process continues where it was:

    finalizer    `tinkerbell.org/boot` is set, so that no Workflow disappears before the clean-up
    toggle       toggleAllowNetboot: `disableNetboot` of all interfaces becomes false
    attempt      off, boot device, on: each is read back from the BMC (`tink.bmc.operation`)
    wait         until the edge has seen the machine's DISCOVER (`status.lastBoot` of the Hardware)
    next         without it, the next way of the ladder (`tink.bmc.boot`); after the last, the cause is named
    prepared     the condition BootPrepared is True: the server sends the Workflow

After the end of the Workflow, in whatever state: `disableNetboot` becomes true again, the medium is ejected, a boot
device that is still set is cleared, or the post actions of a custom boot are executed. Then the finalizer is removed.

`status.boot` has the progress, and BootPrepared the reason while it is False. The Workflow stays Pending, also after
the last way: a machine that boots after a person has corrected the cause gets its Workflow.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.bounds import MAX_URL_CHARACTERS
from tink.api.v1alpha2 import BOOT_FINALIZER, BootMode, BootWay, ConditionStatus, Raw, WorkflowState, as_mapping
from tink.bmc.boot import (
    PROGRESS_REASONS,
    Booted,
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
from tink.bmc.connections import BmcContext, BmcSession, bmc_of, connection_of
from tink.bmc.credentials import login_of
from tink.bmc.jobs import stages_of
from tink.bmc.model import BmcConnection, BmcCredentials, BmcError, Cause, Observation, Wanted, WantedMedium
from tink.bmc.status import bounded
from tink.kube.cache import Index, Informer
from tink.kube.client import ApiError, ConflictError, NotFoundError, UnreachableError
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, WORKFLOW
from tink.kube.runtime import DONE, Controller, Event, LeadershipLostError, Result, while_leading
from tink.metrics.families import counter, gauge
from tink.template import TemplateError, render_text
from tink.timestamps import rfc3339
from tink.waiting import cancel_once
from tink.workflow.guards import awaits_boot, boot_begun, held, paused
from tink.workflow.status import (
    ConditionType,
    InvalidStatusError,
    Status,
    condition,
    creation_order,
    deleted,
    parse_timestamp,
    set_condition,
    state_of,
    status_of,
    status_patch,
    summary,
)

log = logging.getLogger(__name__)

_MACHINE_SECONDS = 30.0
"""Pause before a missing Machine or another Workflow of the machine is looked for again. Changes are noticed sooner."""
_READ_SECONDS = 20.0
"""Time for which a reading of the BMC counts while its machine boots."""
_SOON_SECONDS = 0.1
"""Shortest pause: timers are inexact, and a pause of nanoseconds would be repeated again and again."""
_STALE_SECONDS = 0.5
"""Pause if the informer's copy is not the newest version. Its change is usually noticed sooner."""
_CONFLICTS = 5
"""Number of times that a status is written, each on top of a newer version."""
_PROGRESS_SECONDS = 5.0
"""Time between two reports of what an operation waits for."""
_RETRY_SECONDS = 30.0
"""Pause after the first failed attempt; it doubles up to `_MAX_RETRY_SECONDS`."""
_MAX_RETRY_SECONDS = 300.0
_REFUSED_SECONDS = 3600.0
"""Pause before an action of a custom boot is repeated that the BMC has refused or ignored."""
_LADDER_PAUSE_SECONDS = 600.0
"""Pause before the ladder begins again, if no way of the BMC could be carried out."""
_INSTALLED_SECONDS = 60.0
"""Pause before the image of isoURL is ejected after a success: the last action may still be restarting the machine."""
_CLEAN_UP_SECONDS = 3600.0
"""Time after the end of a Workflow for which a failing clean-up is repeated."""
_CONCERNS_BMC = (Cause.CREDENTIALS_REFUSED, Cause.CREDENTIALS_MISSING, Cause.CERTIFICATE, Cause.UNREACHABLE, Cause.BUSY)
"""Causes that concern the BMC and not the way: another way would fail as well."""
_ANNOUNCED_SECONDS = 2.0
"""Pause between the write that a boot begins and the first request, if the machine has other Workflows."""
_PREPARING_SECONDS = 10.0
"""Time for which a new Workflow that is not prepared yet goes before younger ones (`tink.server.decision`)."""
_CLOCK_SECONDS = 5.0
"""Difference between clocks from which a time in the future is an error."""
_ACTIVE_STATES = (WorkflowState.SCHEDULED, WorkflowState.RUNNING, WorkflowState.CANCELLING)
_STEP_TEXTS: Mapping[BootReason, str] = {
    BootReason.POWERING_OFF: "switching the machine off",
    BootReason.OVERRIDE_SET: "setting the boot device",
    BootReason.INSERTING_MEDIUM: "inserting the virtual medium",
    BootReason.POWERING_ON: "switching the machine on",
}


class BootUrls(Protocol):
    """The URLs of the edge that BMCs and firmware fetch from. A method returns an empty string without such a URL."""

    def http_boot(self, mac: str) -> str:
        """Return the URL of a boot program for UEFI HTTP boot (UEFI 2.10 section 24.7)."""
        ...

    def medium(self, mac: str) -> str:
        """Return the signed URL of the machine's boot medium."""
        ...


class _NoUrls:
    """For a process that knows no edge."""

    def http_boot(self, _mac: str) -> str:
        return ""

    def medium(self, _mac: str) -> str:
        return ""


class _SupersededError(Exception):
    """The Workflow has ended, is held, or was replaced by another of the same name, while its boot was going on."""


@dataclass(slots=True)
class _Case:
    """One Workflow with its objects in one reconciliation. `workflow` is the newest version that this has written."""

    key: NamespacedName
    workflow: Raw
    hardware: Raw
    options: Raw

    @property
    def uid(self) -> str:
        return str(self.workflow["metadata"]["uid"])

    @property
    def boot(self) -> Raw:
        return as_mapping(status_of(self.workflow).get("boot"))

    @property
    def mode(self) -> str:
        return str(self.options.get("bootMode") or "")

    @property
    def macs(self) -> tuple[str, ...]:
        return tuple(as_mapping(as_mapping(self.hardware.get("spec")).get("networkInterfaces")))

    @property
    def last_boot(self) -> Raw:
        return as_mapping(as_mapping(self.hardware.get("status")).get("lastBoot"))

    @property
    def rung(self) -> Rung | None:
        """The present attempt; None before the first."""
        way, attempt = self.boot.get("way"), self.boot.get("attempt")
        known = {each.value: each for each in BootWay}
        if not isinstance(way, str) or way not in known or not isinstance(attempt, int) or isinstance(attempt, bool):
            return None
        return Rung(known[way], attempt)


@dataclass(frozen=True, slots=True)
class _Reach:
    """How to reach the BMC of a machine."""

    connection: BmcConnection
    credentials: BmcCredentials


class BootController(Collector):
    """Reconciles the boots of Workflows. Its caller runs the informers."""

    def __init__(
        self,
        context: BmcContext,
        *,
        workflows: Informer,
        hardware: Informer,
        machines: Informer,
        on_used: Callable[[str], None],
        urls: BootUrls | None = None,
    ) -> None:
        """`on_used` is called with the BMC (`bmc_of`) after each operation. `urls` None: this process knows no edge."""
        settings = context.settings
        self._context = context
        self._client = context.client
        self._workflows, self._hardware, self._machines = workflows, hardware, machines
        self._reader, self._connections = context.reader, context.connections
        self._elector, self._recorder = context.elector, context.recorder
        self._limited_log = context.limited_log
        self._now = context.now
        self._settings = settings
        self._on_used = on_used
        self._urls = urls or _NoUrls()
        self._operations: dict[NamespacedName, asyncio.Task[Result]] = {}
        self._ladders: dict[str, tuple[Rung, ...]] = {}
        """The ladder of a Workflow's BMC, by uid, while it is climbed."""
        self._failed_rungs: dict[str, set[Rung]] = {}
        """The ways that could not be carried out, by uid."""
        self._readings: dict[str, tuple[Rung, float, Observation | BmcError]] = {}
        """The last reading of the BMC while its machine booted, and its time (`_elapsed`), by uid."""
        self._lost_since: dict[str, tuple[Rung, float]] = {}
        """The time (`_elapsed`) at which OverrideLost was first shown in an attempt, by uid."""
        self._ending_since: dict[str, float] = {}
        """The time (`_elapsed`) at which the clean-up after a Workflow's end began, by uid."""
        self._failures: Counter[str] = Counter()
        """Failed attempts in a row, by uid."""
        self._not_before: dict[str, float] = {}
        """The time (`_elapsed`) before which nothing is tried again, by uid."""
        self._on_machine: Index[NamespacedName, NamespacedName] = Index()
        """Workflows that wait for a boot, by the Machine of their Hardware."""
        self._on_hardware: Index[NamespacedName, NamespacedName] = Index()
        """Workflows that have not ended, or are not cleaned up, by their Hardware."""
        self._of_machine: Index[NamespacedName, NamespacedName] = Index()
        """Hardware, by the Machine that they name."""
        self._results: Counter[str] = Counter(Booted=0)
        self.runtime = Controller(
            "Workflow boot",
            self._reconcile,
            retry_first=settings.retry_first,
            retry_longest=settings.retry_longest,
            limited_log=context.limited_log,
            workers=settings.task_workers,
        )
        workflows.add_event_handler(self._changed, self._gone)
        hardware.add_event_handler(self._hardware_changed, self._hardware_gone)
        machines.add_event_handler(self._machine_changed)

    # --- events -------------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        results = {(name,): count for name, count in self._results.items()}
        text = "Ways of booting by BMC that have ended: Booted, ActionsDone, or the reason why a way failed."
        yield counter("tinkedge_bmc_boots", text, ["result"], results)
        text = "Workflows whose machine is being switched or whose boot device is being set now."
        yield gauge("tinkedge_bmc_running_boots", text, [], {(): len(self._operations)})

    @property
    def remembered(self) -> set[str]:
        """The uids of the Workflows about which anything is in memory."""
        memories: tuple[dict[str, Any], ...] = (self._ladders, self._failed_rungs, self._readings, self._lost_since)
        return set().union(*memories, self._not_before, self._ending_since, self._failures)

    def _changed(self, new: Raw, old: Raw | None) -> None:
        key = NamespacedName.of(new)
        if old is not None and old["metadata"].get("uid") != new["metadata"].get("uid"):
            self._gone(old)  # it was deleted, and created again with the same name
        if key in self._operations and _is_stopped(new):
            cancel_once(self._operations[key])
        if _is_over(new):
            self._on_hardware.set(key, (_hardware_of(new),) if _is_protected(new) else ())
            for other in list(self._on_hardware.keys(_hardware_of(new))):
                self.runtime.queue.add(other)
        else:
            self._on_hardware.set(key, (_hardware_of(new),))
        if _is_protected(new) or (_options_of(new) and not _is_over(new)):
            self.runtime.queue.add(key)

    def _gone(self, old: Raw) -> None:
        key, uid = NamespacedName.of(old), str(old["metadata"].get("uid"))
        if key in self._operations:
            cancel_once(self._operations[key])
        self._forget(uid)
        self._on_machine.set(key, ())
        self._on_hardware.set(key, ())
        for other in list(self._on_hardware.keys(_hardware_of(old))):
            self.runtime.queue.add(other)

    def _hardware_changed(self, new: Raw, old: Raw | None) -> None:
        machine = _machine_of(new)
        self._of_machine.set(
            NamespacedName.of(new), (NamespacedName.of(new)._replace(name=machine),) if machine else ()
        )
        if old is None or _machine_of(old) != _machine_of(new) or _last_boot(old) != _last_boot(new):
            for key in self._on_hardware.keys(NamespacedName.of(new)):
                workflow = self._workflows.get(*key)
                if workflow is not None and _options_of(workflow):
                    self.runtime.queue.add(key)

    def _hardware_gone(self, old: Raw) -> None:
        self._of_machine.set(NamespacedName.of(old), ())

    def _machine_changed(self, new: Raw, old: Raw | None) -> None:
        """Try again at once: its address, its Secret's name or the annotation about a refused login has changed."""
        annotations = [as_mapping(each["metadata"].get("annotations")) for each in (new, old or new)]
        if old is None or old.get("spec") != new.get("spec") or annotations[0] != annotations[1]:
            for key in self._on_machine.keys(NamespacedName.of(new)):
                workflow = self._workflows.get(*key)
                if workflow is not None:
                    self._not_before.pop(str(workflow["metadata"]["uid"]), None)
                self.runtime.queue.add(key)

    def _forget(self, uid: str) -> None:
        memories: tuple[dict[str, Any], ...] = (self._ladders, self._failed_rungs, self._readings, self._lost_since)
        for memory in (*memories, self._not_before, self._ending_since, self._failures):
            memory.pop(uid, None)

    # --- one reconciliation -------------------------------------------------------------------------------------------

    async def _reconcile(self, key: NamespacedName) -> Result:
        workflow = self._workflows.get(*key)
        self._on_machine.set(key, ())
        if workflow is None or paused(workflow) or not (_options_of(workflow) or _is_protected(workflow)):
            return DONE
        hardware = self._hardware.get(*_hardware_of(workflow))
        case = _Case(key, workflow, hardware or {}, _options_of(workflow))
        try:
            if _is_over(workflow):
                return await self._finish(case) if _is_protected(workflow) else DONE
            if not _is_due(workflow) or hardware is None:
                return DONE  # the controller of Workflows reports an invalid status
            if not _is_protected(workflow):
                await self._set_finalizer(case, present=True)
                return DONE  # the informer reports the write
            if other := self._other(case):
                return await self._step_back(case, other)
            return await self._prepare(case)
        except _SupersededError:
            return Result(_STALE_SECONDS)
        finally:
            present = self._workflows.get(*key)
            if present is None or present["metadata"].get("uid") != workflow["metadata"].get("uid"):
                self._forget(case.uid)  # it was deleted meanwhile

    async def _prepare(self, case: _Case) -> Result:
        """Boot the machine of a Pending Workflow."""
        if case.options.get("toggleAllowNetboot") is True:
            await self._set_netboot(case, is_allowed=True)
        if not case.mode:
            message = "netbooting is permitted; the power is left alone"
            await self._report(case, ConditionStatus.TRUE, BootReason.BOOTED, message, {})
            return DONE
        rung = case.rung
        is_on = rung is not None and rung.way is not BootWay.CUSTOM and bool(case.boot.get("since"))
        if rung is not None and is_on and isinstance(booted := judge(self._view(case, rung)), Booted):
            await self._set_prepared(case, BootReason.BOOTED, f"{_way(rung)}: {booted.message}")
            return DONE
        keys = self._machine_key(case)
        self._on_machine.set(case.key, keys)
        if (left := self._not_before.get(case.uid, 0.0) - _elapsed()) > 0:
            return Result(max(left, _SOON_SECONDS))
        machine = self._machines.get(*keys[0]) if keys else None
        if machine is None:
            hardware = _hardware_of(case.workflow)
            message = f"Hardware {hardware} has no BMC: set spec.bmcRef.name to a Machine"
            if keys:
                message = f"Machine {keys[0]} (spec.bmcRef of Hardware {hardware}) does not exist: create it"
            await self._wait_for(case, BootReason.NO_BMC, message)
            return Result(_MACHINE_SECONDS)
        if case.mode == BootMode.CUSTOMBOOT:
            return await self._operate(case, machine, self._carry_out_actions)
        if rung is None or not is_on:
            return await self._operate(case, machine, partial(self._attempt, rung=rung))
        return await self._operate(case, machine, partial(self._watch, rung=rung))

    async def _operate(self, case: _Case, machine: Raw, run: Callable[[_Case, _Reach], Awaitable[Result]]) -> Result:
        """Run an operation that ends when the Workflow is over, deleted or moved."""
        reach: _Reach | None = None
        try:
            reach = await self._reach(case, machine)
            operation = self._operations[case.key] = asyncio.ensure_future(run(case, reach))
            try:
                return await operation
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    cancel_once(operation)
                    await asyncio.wait([operation])
                    raise  # this replica no longer leads, or the process ends
                self.runtime.queue.add(case.key)
                return DONE
        except BmcError as error:
            if reach is not None:
                await self._record_refusal(machine, reach)
            return await self._failed(case, error)
        finally:
            self._operations.pop(case.key, None)
            if reach is not None:
                self._on_used(bmc_of(reach.connection))

    async def _record_refusal(self, machine: Raw, reach: _Reach) -> None:
        """Write to the Machine that its BMC has refused the login, if it has. Raises ApiError."""
        bmc = bmc_of(reach.connection)
        if self._connections.refused.is_refused(bmc, reach.credentials):
            await self._context.record_refusal(machine, login_of(bmc, reach.credentials))

    def _other(self, case: _Case) -> str:
        """Return another Workflow of the machine that goes before this one's boot; empty if there is none.

        A boot that has begun is finished before older Workflows that have not: the machine is off, or about to boot.
        """
        own, hardware = case.workflow, _hardware_of(case.workflow)
        own_order, is_begun = creation_order(own), boot_begun(own)
        for key in self._on_hardware.keys(hardware):
            other = self._workflows.get(*key)
            if other is None or key == case.key:
                continue
            is_older = creation_order(other) < own_order
            if _occupies(other) or (_is_over(other) and _is_protected(other) and not paused(other)):
                return str(key)
            if _has_begun_boot(other) and (is_older or not is_begun):
                return str(key)
            if is_older and not is_begun and self._is_next(other):
                return str(key)
        for machine in self._machine_key(case):
            for each in self._of_machine.keys(machine):  # several Hardware may name one Machine
                for key in self._on_hardware.keys(each) if each != hardware else ():
                    other = self._workflows.get(*key)
                    if other is not None and (
                        _occupies(other)
                        or (_has_begun_boot(other) and (creation_order(other) < own_order or not is_begun))
                    ):
                        return str(key)
        return ""

    def _occupant(self, case: _Case) -> str:
        """Return another Workflow that an agent of the machine may have; empty if there is none."""
        for key in self._on_hardware.keys(_hardware_of(case.workflow)):
            other = self._workflows.get(*key)
            if other is not None and key != case.key and _occupies(other):
                return str(key)
        return ""

    def _is_next(self, workflow: Raw) -> bool:
        """Return True if the server sends a Workflow before those created after it (`tink.server.decision`)."""
        try:
            if deleted(workflow) or _is_over(workflow) or held(workflow):
                return False
            if state_of(workflow) is not None:
                return True
        except InvalidStatusError:
            return False
        created = parse_timestamp(workflow["metadata"].get("creationTimestamp"))
        return created is not None and abs(self._now() - created) <= _PREPARING_SECONDS

    async def _step_back(self, case: _Case, other: str) -> Result:
        """Wait for another Workflow of the machine. Its boot counts no longer: the other may restart the machine."""
        message = f"waits for Workflow {other} of the same machine"
        fields = dict.fromkeys(("since", "lastBoot")) if case.boot else {}
        await self._wait_for(case, BootReason.OTHER_WORKFLOW, message, **fields)
        return Result(_MACHINE_SECONDS)

    async def _announced(self, case: _Case, reason: BootReason, message: str, **fields: Any) -> str:
        """Write that the power or boot device is about to be changed. Return another Workflow that goes first.

        From this write on, the server sends no other Workflow of the machine. A server whose copy is older may send one
        a moment later: then its claim is seen here after a pause.
        """
        await self._wait_for(case, reason, message, **fields)
        others = [key for key in self._on_hardware.keys(_hardware_of(case.workflow)) if key != case.key]
        if others:
            await asyncio.sleep(_ANNOUNCED_SECONDS)
        for key in others:
            with suppress(NotFoundError):
                if _occupies(await self._client.get(WORKFLOW, key.name, key.namespace)):  # the watch may be slow
                    return str(key)
        return self._other(case)

    def _machine_key(self, case: _Case) -> tuple[NamespacedName, ...]:
        name = _machine_of(case.hardware)
        return (NamespacedName(case.key.namespace, name),) if name else ()

    async def _reach(self, case: _Case, machine: Raw) -> _Reach:
        """Return how to reach the BMC of a Machine. Raises BmcError, ApiError."""
        spec = as_mapping(machine["spec"].get("connection"))
        connection = connection_of(spec, await self._reader.authority(spec, case.key.namespace))
        credentials = await self._reader.credentials(spec, case.key.namespace)
        self._connections.refused.restore(machine, bmc_of(connection), credentials)
        return _Reach(connection, credentials)

    async def _failed(self, case: _Case, error: BmcError) -> Result:
        """Report that the BMC can't be used now. Return when it is tried again."""
        uid = case.uid
        count = self._failures[uid] = self._failures[uid] + 1
        if error.cause in (Cause.CREDENTIALS_REFUSED, Cause.CREDENTIALS_MISSING):
            pause = self._settings.secret_interval  # it costs no login until the Secret changes
        elif case.mode == BootMode.CUSTOMBOOT and error.cause not in (*_CONCERNS_BMC, Cause.CONFLICT):
            pause = _REFUSED_SECONDS
        else:
            pause = max(_retry_after(count), error.retry_after)
        self._not_before[uid] = _elapsed() + pause
        await self._wait_for(case, error.cause, str(error))
        return Result(pause)

    # --- the ladder ---------------------------------------------------------------------------------------------------

    async def _attempt(self, case: _Case, reach: _Reach, *, rung: Rung | None) -> Result:
        """Carry out one way: off, boot device, on. Raises BmcError if the BMC can't be used."""
        http_url, medium_url = await self._boot_urls(case)
        if not await self._is_current(case):
            return Result(_STALE_SECONDS)
        failure: BmcError | None = None
        async with self._connections.open(case.key, reach.connection, reach.credentials) as session:
            seen = await session.observe(boot=True, media=True)
            ladder = self._ladders[case.uid] = self._ladder(case, reach, seen, http_url, medium_url)
            rung = rung if rung in ladder else ladder[0]
            if not await self._is_current(case):  # the BMC may have been in use for minutes
                return Result(_STALE_SECONDS)
            if other := self._other(case):  # it was claimed meanwhile
                return await self._step_back(case, other)
            self._readings.pop(case.uid, None)
            protocols = reach.connection.protocols
            todo = parts(rung, seen, http_url=http_url, medium_url=medium_url, protocols=protocols)
            before = ""
            try:
                for part in todo:
                    medium = part.wanted.kind if isinstance(part.wanted, WantedMedium) and part.wanted.url else ""
                    message = f"{_way(rung)}: {_STEP_TEXTS.get(part.reason, '')}"
                    fields = {"way": rung.way.value, "attempt": rung.attempt, "since": None, "lastBoot": None}
                    fields |= {"medium": medium} if medium else {}
                    if part is not todo[0]:
                        await self._wait_for(case, part.reason, message, **fields)
                    elif other := await self._announced(case, part.reason, message, **fields):
                        return await self._step_back(case, other)
                    before = await self._last_boot_at(case)
                    progress: list[str] = []
                    reporting = asyncio.create_task(self._report_progress(case, part.reason, message, progress))
                    try:
                        await self._perform(session, case.key, part.wanted, part.protocol, progress)
                    finally:
                        reporting.cancel()
                        await asyncio.wait([reporting])
            except BmcError as error:
                # By IPMI, the BMC may refuse the login or not answer, although Redfish works.
                if error.cause in _CONCERNS_BMC and part.protocol != "ipmi":
                    raise
                failure = error
        if failure is not None:
            return await self._advance(case, ladder, rung, failure.cause, f"{_way(rung)}: {failure}")
        self._failures.pop(case.uid, None)
        if case.mode == BootMode.ISOBOOT and case.options.get("isoURL"):
            await self._set_prepared(
                case, BootReason.BOOTED, "the machine is on, with the image in isoURL as its boot device"
            )
            return DONE
        since = rfc3339(self._now(), "milliseconds")
        message = f"{_way(rung)}: the machine is on, waiting for its DISCOVER"
        await self._wait_for(
            case, BootReason.WAITING_FOR_DISCOVER, message, since=since, lastBoot=before or None, attempt=rung.attempt
        )
        return DONE  # the informer reports the write, and then `_watch` begins

    def _ladder(
        self, case: _Case, reach: _Reach, seen: Observation, http_url: str, medium_url: str
    ) -> tuple[Rung, ...]:
        if case.mode == BootMode.ISOBOOT:
            return (Rung(BootWay.ISO, 1),)
        ladder = rungs(seen, reach.connection.protocols, has_http_url=bool(http_url), has_medium=bool(medium_url))
        failed = self._failed_rungs.get(case.uid, ())
        return tuple(each for each in ladder if each not in failed) or ladder

    async def _perform(
        self,
        session: BmcSession,
        key: NamespacedName,
        wanted: Wanted,
        protocol: str = "",
        progress: list[str] | None = None,
    ) -> None:
        """Make the BMC do what is wanted, by a protocol if one is named. Raises BmcError.

        `progress`: a list that gets a clause at each step of the operation.
        """

        def note(text: str) -> None:
            if self._elector is not None and not self._elector.is_leader:
                raise LeadershipLostError  # after a pause of the process, another replica may have gone on
            log.debug("Workflow %s: %s", key, bounded(text))
            if progress is not None:
                progress.append(text)

        await session.perform(wanted, protocol=protocol, progress=note)

    async def _report_progress(self, case: _Case, reason: BootReason, message: str, progress: Sequence[str]) -> None:
        """Write what an operation waits for, at most every five seconds, until cancelled.

        A BMC may take minutes, such as one whose task never ends. The message shows the cause meanwhile.
        """
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            if not progress:
                continue
            try:
                await self._wait_for(case, reason, f"{message}: {progress[-1]}")  # unchanged: no write
            except (ApiError, LeadershipLostError) as error:
                log.debug("Workflow %s: its progress is not written: %s", case.key, error)
            except _SupersededError:
                if case.key in self._operations:
                    cancel_once(self._operations[case.key])
                return

    async def _watch(self, case: _Case, reach: _Reach, *, rung: Rung) -> Result:
        """Wait for the machine's DISCOVER, and name the cause if it does not arrive."""
        since = parse_timestamp(case.boot.get("since"))
        if since is None or since > self._now() + _CLOCK_SECONDS:  # the clock was set back
            await self._update(case, partial(_set_boot, since=rfc3339(self._now(), "milliseconds")))
        watch, ladder = self._view(case, rung), self._ladders.get(case.uid, ())
        verdict = judge(watch)
        if not isinstance(verdict, Booted) and (not isinstance(verdict, Waiting) or verdict.reads_bmc):
            reading = await self._read(case, reach, rung)
            seen, error = (reading, None) if isinstance(reading, Observation) else (None, reading)
            if isinstance(verdict, NextRung) and not ladder:
                ladder = await self._read_ladder(case, reach)
            # The DISCOVER may have arrived while the BMC was read.
            case.hardware = self._hardware.get(*_hardware_of(case.workflow)) or case.hardware
            watch = self._view(case, rung)
            verdict = judge(replace(watch, seen=seen, error=error))
        match verdict:
            case Booted():
                self.runtime.queue.add(case.key)  # the Hardware has changed meanwhile
                return DONE
            case Waiting():
                if verdict.reason is BootReason.OVERRIDE_LOST and not watch.lost_for:
                    self._lost_since[case.uid] = rung, _elapsed()
                await self._wait_for(case, verdict.reason, f"{_way(rung)}: {verdict.message}")
                return Result(max(verdict.seconds, 0.1))
            case NextRung():
                ladder = ladder or await self._read_ladder(case, reach)
                return await self._advance(case, ladder, rung, verdict.reason, verdict.message, is_on=True)
            case Exhausted():
                if await self._wait_for(case, verdict.reason, verdict.message):
                    self._results[verdict.reason] += 1
                return DONE

    def _view(self, case: _Case, rung: Rung) -> Watch:
        """Return what is known of a machine that was switched on, without a reading of its BMC."""
        now, ladder = self._now(), self._ladders.get(case.uid, ())
        lost_rung, lost_since = self._lost_since.get(case.uid, (None, 0.0))
        return Watch(
            rung,
            is_last=bool(ladder) and rung == ladder[-1],
            macs=case.macs,
            waited=max(0.0, now - (parse_timestamp(case.boot.get("since")) or now)),
            last_boot_before=str(case.boot.get("lastBoot") or ""),
            last_boot=case.last_boot,
            named_after=self._settings.boot_named_after,
            next_after=self._settings.boot_next_after,
            lost_for=_elapsed() - lost_since if lost_rung == rung else 0.0,
        )

    async def _read(self, case: _Case, reach: _Reach, rung: Rung) -> Observation | BmcError:
        """Return what the BMC reports, or why it can't be read. It is read at most every `_READ_SECONDS`."""
        read_rung, read_at, reading = self._readings.get(case.uid, (None, 0.0, None))
        if reading is not None and read_rung == rung and _elapsed() - read_at < _READ_SECONDS:
            return reading
        try:
            async with self._connections.open(case.key, reach.connection, reach.credentials) as session:
                reading = await session.observe(boot=True)
        except BmcError as error:
            reading = error
        self._readings[case.uid] = rung, _elapsed(), reading
        return reading

    async def _read_ladder(self, case: _Case, reach: _Reach) -> tuple[Rung, ...]:
        """Return the ladder of the BMC after a restart of this process. Raises BmcError."""
        http_url, medium_url = await self._boot_urls(case)
        async with self._connections.open(case.key, reach.connection, reach.credentials) as session:
            seen = await session.observe(boot=True, media=True)
        ladder = self._ladders[case.uid] = self._ladder(case, reach, seen, http_url, medium_url)
        return ladder

    async def _advance(
        self,
        case: _Case,
        ladder: Sequence[Rung],
        rung: Rung,
        reason: BootReason | Cause,
        message: str,
        *,
        is_on: bool = False,
    ) -> Result:
        """Go on with the way after `rung`. `is_on`: the machine was switched on, and its DISCOVER did not arrive.

        A way that could not be carried out is left out from then on. If it was the last one, the last way that was
        carried out is repeated, because the machine may be off now.
        """
        self._results[reason] += 1
        failed = self._failed_rungs.setdefault(case.uid, set())
        if not is_on:
            failed.add(rung)
        place = ladder.index(rung) if rung in ladder else len(ladder) - 1
        left = [each for each in ladder if each not in failed]
        later = [each for each in ladder[place + 1 :] if each not in failed]
        if is_on and not later:
            await self._wait_for(case, reason, message)
            return DONE
        following = later[0] if later else left[-1] if left else ladder[0]
        fields = {"way": following.way.value, "attempt": following.attempt, "since": None, "lastBoot": None}
        if left:
            await self._wait_for(case, reason, f"{message}; next: {_way(following)}", **fields)
            return DONE
        # The BMC may accept later what it refuses now.
        failed.clear()
        self._not_before[case.uid] = _elapsed() + _LADDER_PAUSE_SECONDS
        await self._wait_for(
            case, reason, f"{message}; tried again in {_LADDER_PAUSE_SECONDS / 60:.0f} minutes", **fields
        )
        return Result(_LADDER_PAUSE_SECONDS)

    async def _boot_urls(self, case: _Case) -> tuple[str, str]:
        """Return the URL for UEFI HTTP boot and that of the medium. Raises BmcError."""
        mac = case.macs[0] if case.macs else ""
        if case.options.get("isoURL"):
            return "", await self._rendered(case, str(case.options["isoURL"]), "spec.bootOptions.isoURL")
        medium = self._urls.medium(mac) if mac else ""
        if case.mode == BootMode.ISOBOOT and not medium:
            raise BmcError(
                Cause.UNSUPPORTED,
                "spec.bootOptions.isoURL is missing, and this process knows no edge with a boot medium: set isoURL, or "
                "start BMC control with --bmc-edge-url",
            )
        return (self._urls.http_boot(mac) if mac else ""), medium

    async def _rendered(self, case: _Case, text: str, name: str) -> str:
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

    # --- actions of a custom boot -------------------------------------------------------------------------------------

    async def _carry_out_actions(self, case: _Case, reach: _Reach) -> Result:
        """Carry out the preparing actions that are not done. Raises BmcError."""
        config = as_mapping(case.options.get("custombootConfig"))
        if not await self._is_current(case):
            return Result(_STALE_SECONDS)
        if other := await self._carry_out(case, reach, "preparingActions", 0):
            return await self._step_back(case, other)
        count = len(config.get("preparingActions") or ())
        await self._set_prepared(case, BootReason.ACTIONS_DONE, f"{count} actions are done", done=count, way="custom")
        return DONE

    async def _carry_out(self, case: _Case, reach: _Reach, field: str, offset: int) -> str:
        """Carry out the actions in `custombootConfig` of a field from `status.boot.done` on. Raises BmcError.

        Return another Workflow of the machine that goes before the next preparing action; empty after the last action.
        """
        actions = as_mapping(case.options.get("custombootConfig")).get(field) or ()
        done = case.boot.get("done")
        first = max(0, (done if isinstance(done, int) else 0) - offset)
        async with self._connections.open(case.key, reach.connection, reach.credentials) as session:
            for number, action in enumerate(actions[first:], first):
                name = f"spec.bootOptions.custombootConfig.{field}[{number}]"
                message = f"action {number + 1} of {len(actions)}"
                if field == "preparingActions":
                    fields = {"way": "custom", "attempt": 1}
                    if other := await self._announced(case, BootReason.RUNNING_ACTIONS, message, **fields):
                        return other
                for stage in stages_of(await self._rendered_action(case, action, name)):
                    await self._perform(session, case.key, stage.wanted)
                await self._update(case, partial(_set_boot, done=offset + number + 1))
        return ""

    async def _rendered_action(self, case: _Case, action: Raw, name: str) -> Raw:
        medium = as_mapping(action.get("virtualMediaAction"))
        url = str(medium.get("mediaURL") or "")
        if "{{" not in url:
            return action
        rendered = await self._rendered(case, url, f"{name}.virtualMediaAction.mediaURL")
        return {"virtualMediaAction": {**medium, "mediaURL": rendered}}

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _finish(self, case: _Case) -> Result:
        """Undo after the end of a Workflow what was done before it, and release it, after an hour in any case."""
        uid = case.uid
        ended = parse_timestamp(status_of(case.workflow).get("lastTransitioned"))
        # The clock that wrote the end may be wrong, or the status edited by hand.
        first = self._ending_since.setdefault(uid, _elapsed())
        age = max(self._now() - ended if ended is not None else 0.0, _elapsed() - first)
        is_last_try = age >= _CLEAN_UP_SECONDS
        failure: ApiError | None = None
        if case.options.get("toggleAllowNetboot") is True and case.hardware:
            try:
                await self._set_netboot(case, is_allowed=False)
            except (ConflictError, UnreachableError):
                raise
            except ApiError as error:
                failure = error
        if case.boot.get("way") and case.hardware:
            pause = await self._clean_up(case, age, is_last_try=is_last_try)
            if pause > 0:
                return Result(pause)
        if failure is not None:
            if not is_last_try:
                raise failure
            message = f"netbooting of Hardware {_hardware_of(case.workflow)} is still permitted: {failure}"
            self._report_unclean(case, "NetbootPermitted", message)
        await self._set_finalizer(case, present=False)
        self._forget(uid)
        self._on_hardware.set(case.key, ())
        return DONE

    async def _clean_up(self, case: _Case, age: float, *, is_last_try: bool) -> float:
        """Clean up the BMC. Return the seconds until the next try; 0 after the last. `age`: seconds since the end."""
        uid = case.uid
        has_image = case.boot.get("medium") and case.options.get("isoURL")
        has_succeeded = state_of(case.workflow) is WorkflowState.SUCCEEDED
        if has_image and has_succeeded and age < _INSTALLED_SECONDS:
            return max(_INSTALLED_SECONDS - age, _SOON_SECONDS)
        if (left := self._not_before.get(uid, 0.0) - _elapsed()) > 0:
            return max(left, _SOON_SECONDS)
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
        count = self._failures[uid] = self._failures[uid] + 1
        pause = _retry_after(count)
        self._not_before[uid] = _elapsed() + pause
        return pause

    def _report_unclean(self, case: _Case, reason: str, message: str) -> None:
        self._recorder.event(case.workflow, WORKFLOW, Event(reason, message, warning=True))
        self._limited_log.log(logging.WARNING, "Workflow %s: %s", case.key, bounded(message), owner=case.key.namespace)

    async def _clean_bmc(self, case: _Case, *, has_installed: bool) -> None:
        """Eject the medium and clear the boot device, or carry out the post actions. Raises BmcError, ApiError."""
        keys = self._machine_key(case)
        machine = self._machines.get(*keys[0]) if keys else None
        if machine is None:
            return
        reach = await self._reach(case, machine)
        if case.mode == BootMode.CUSTOMBOOT:
            config = as_mapping(case.options.get("custombootConfig"))
            if config.get("postActions"):
                if other := self._occupant(case):
                    raise BmcError(Cause.BUSY, f"Workflow {other} runs on the machine")
                await self._carry_out(case, reach, "postActions", len(config.get("preparingActions") or ()))
            return
        try:
            async with self._connections.open(case.key, reach.connection, reach.credentials) as session:
                medium = str(case.boot.get("medium") or "")
                seen = await session.observe(boot=True, media=bool(medium))
                for wanted in clean_up(seen, medium=medium, has_installed=has_installed):
                    await self._perform(session, case.key, wanted)
        except BmcError:
            await self._record_refusal(machine, reach)
            raise

    # --- writes -------------------------------------------------------------------------------------------------------

    async def _set_finalizer(self, case: _Case, *, present: bool) -> None:
        metadata = case.workflow["metadata"]
        others = [each for each in metadata.get("finalizers") or () if each != BOOT_FINALIZER]
        finalizers = [*others, BOOT_FINALIZER] if present else others
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": finalizers}}
        with suppress(NotFoundError):
            await while_leading(
                self._elector, lambda: self._client.patch(WORKFLOW, case.key.name, case.key.namespace, body)
            )

    async def _set_netboot(self, case: _Case, *, is_allowed: bool) -> None:
        """Set `disableNetboot` of all interfaces of the Hardware."""
        interfaces = as_mapping(as_mapping(case.hardware.get("spec")).get("networkInterfaces"))
        changes = {
            mac: {"disableNetboot": not is_allowed}
            for mac, interface in interfaces.items()
            if (as_mapping(interface).get("disableNetboot") is True) == is_allowed
        }
        if not changes:
            return
        metadata = case.hardware["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "spec": {"networkInterfaces": changes},
        }
        with suppress(NotFoundError):
            await while_leading(
                self._elector,
                lambda: self._client.patch(HARDWARE, metadata["name"], metadata["namespace"], body),
            )
        log.info(
            "Workflow %s: netbooting of Hardware %s is %s",
            case.key,
            NamespacedName.of(case.hardware),
            "permitted" if is_allowed else "forbidden",
        )

    async def _wait_for(self, case: _Case, reason: BootReason | Cause, message: str, **boot: Any) -> bool:
        """Write why the machine has not booted yet. Return False if nothing changes.

        `boot` are fields of `status.boot`; None removes one.
        """
        return await self._report(case, ConditionStatus.FALSE, reason, message, boot)

    async def _set_prepared(self, case: _Case, reason: BootReason, message: str, **boot: Any) -> None:
        """Write that the Workflow may be sent."""
        self._forget(case.uid)
        if await self._report(case, ConditionStatus.TRUE, reason, message, boot):
            self._results[reason] += 1

    async def _report(
        self, case: _Case, value: ConditionStatus, reason: str, message: str, boot: Mapping[str, Any]
    ) -> bool:
        """Write the condition and fields of `status.boot`, and record an Event. Return False if nothing changes."""
        text, now = bounded(message), self._now()

        def change(status: Status) -> None:
            set_condition(status, ConditionType.BOOT_PREPARED, value, now, str(reason), text)
            if reason not in (BootReason.NO_BMC, BootReason.OTHER_WORKFLOW) or status.get("boot"):
                _set_boot(status, message=text, **boot)

        before = condition(status_of(case.workflow), ConditionType.BOOT_PREPARED)
        if not await self._update(case, change):
            return False
        if before.get("reason") == reason:
            return True
        is_warning = value is ConditionStatus.FALSE and reason not in PROGRESS_REASONS
        self._recorder.event(case.workflow, WORKFLOW, Event(str(reason), text, warning=is_warning))
        level = logging.WARNING if is_warning else logging.INFO
        self._limited_log.log(level, "Workflow %s: %s: %s", case.key, reason, text, owner=case.key.namespace)
        return True

    async def _update(self, case: _Case, change: Callable[[Status], None]) -> bool:
        """Write a change of the status, on top of the newest version. Return False if it changes nothing.

        Raises ConflictError if others change the Workflow all the time, _SupersededError if its boot has become
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
                case.workflow = await while_leading(self._elector, partial(self._write, case, body))
            except ConflictError:
                if not tries_left:
                    raise
                case.workflow = await self._newest(case)
            except NotFoundError:
                return False
            else:
                return True
        return False

    async def _newest(self, case: _Case) -> Raw:
        """Return the newest version of the Workflow. Raises _SupersededError, and NotFoundError."""
        newest = await self._client.get(WORKFLOW, case.key.name, case.key.namespace)
        is_same = newest["metadata"].get("uid") == case.workflow["metadata"].get("uid")
        if not is_same or paused(newest) or _is_due(newest) != _is_due(case.workflow):
            raise _SupersededError
        return newest

    async def _write(self, case: _Case, body: Raw) -> Raw:
        return await self._client.patch(WORKFLOW, case.key.name, case.key.namespace, body, subresource="status")

    async def _is_current(self, case: _Case) -> bool:
        """Return True if the informer's copy of the Workflow is the newest version.

        An older copy may lack what this process has written last, and the machine would be switched off a second time.
        """
        try:
            current = await self._client.get(WORKFLOW, case.key.name, case.key.namespace)
        except NotFoundError:
            return False
        return bool(current["metadata"]["resourceVersion"] == case.workflow["metadata"]["resourceVersion"])

    async def _last_boot_at(self, case: _Case) -> str:
        """Return when the last boot of the machine began, as an edge has written it; empty if it has none.

        It is read from the API: in an older copy, the boot before the power-off would look like the one after it.
        """
        try:
            hardware = await self._client.get(HARDWARE, *reversed(_hardware_of(case.workflow)))
        except NotFoundError:
            return ""
        return str(_last_boot(hardware).get("at") or "")


def _set_boot(status: Status, **fields: Any) -> None:
    """Set fields of `status.boot`; None removes one."""
    boot = {**as_mapping(status.get("boot")), **fields}
    status["boot"] = {field: value for field, value in boot.items() if value is not None}


def _retry_after(failures: int) -> float:
    """Return the seconds until the next try after this many failures in a row."""
    return float(min(_RETRY_SECONDS * 2 ** min(failures - 1, 10), _MAX_RETRY_SECONDS))


def _way(rung: Rung) -> str:
    return f"{rung.way.value}, attempt {rung.attempt}"


def _options_of(workflow: Raw) -> Raw:
    return as_mapping(as_mapping(workflow.get("spec")).get("bootOptions"))


def _is_protected(workflow: Raw) -> bool:
    return BOOT_FINALIZER in (workflow["metadata"].get("finalizers") or ())


def _is_over(workflow: Raw) -> bool:
    """Return True if the Workflow has ended, or was deleted before it was prepared."""
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return False
    return state.terminal if state is not None else deleted(workflow)


def _is_stopped(workflow: Raw) -> bool:
    """Return True if a boot for the Workflow must not go on: it is over, deleted, held, paused, or has a bad status."""
    try:
        return paused(workflow) or deleted(workflow) or _is_over(workflow) or held(workflow)
    except InvalidStatusError:
        return True


def _is_due(workflow: Raw) -> bool:
    """Return True if the machine is to be booted for the Workflow."""
    if _is_stopped(workflow) or not awaits_boot(workflow):
        return False
    return state_of(workflow) is WorkflowState.PENDING


def _occupies(workflow: Raw) -> bool:
    """Return True if an agent may have the Workflow: it is under way, moved to another API, or has an invalid state.

    So may it if its machine was booted for it.
    """
    try:
        state = state_of(workflow)
    except InvalidStatusError:
        return True
    if state is WorkflowState.PENDING and _options_of(workflow).get("bootMode") and not awaits_boot(workflow):
        return True
    return state in _ACTIVE_STATES or (paused(workflow) and not _is_over(workflow))


def _has_begun_boot(workflow: Raw) -> bool:
    try:
        return boot_begun(workflow)
    except InvalidStatusError:
        return False


def _elapsed() -> float:
    """Return monotonic seconds."""
    return asyncio.get_running_loop().time()


def _hardware_of(workflow: Raw) -> NamespacedName:
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return NamespacedName.of(workflow)._replace(name=str(name or ""))


def _machine_of(hardware: Raw) -> str:
    return str(as_mapping(as_mapping(hardware.get("spec")).get("bmcRef")).get("name") or "")


def _last_boot(hardware: Raw) -> Raw:
    return as_mapping(as_mapping(hardware.get("status")).get("lastBoot"))
