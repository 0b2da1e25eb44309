"""Boots the machine of a Workflow by its BMC before the Workflow is sent to an agent.

A Pending Workflow with `spec.bootOptions` is reconciled in these steps. Each is derived from the objects as they are,
so a restart of the process continues where it was:

    finalizer    `tinkerbell.org/boot` is set, so that no Workflow disappears before the clean-up
    toggle       toggleAllowNetboot: `disableNetboot` of all interfaces becomes false
    attempt      off, boot device, on: each is read back from the BMC (`tink.bmc.operation`)
    wait         until the edge has seen the machine's DISCOVER (`status.lastBoot` of the Hardware)
    next         without it, the next way of the ladder (`tink.bmc.boot`); after the last, the cause is named
    prepared     the condition BootPrepared is True: the server sends the Workflow
    clean-up     after the end of the Workflow, in whatever state (`tink.bmc.boot_clean_up`); then the finalizer goes

A BMC that the Hardware no longer names is cleaned up beside the boot with the present one (`status.boot.former`).

`status.boot` has the progress, and BootPrepared the reason while it is False. The Workflow stays Pending, also after
the last way: a machine that boots after a person has corrected the cause gets its Workflow.

    boot_status       a Workflow with its objects, and the writes to them
    boot_order        which Workflow of a machine is booted next
    boot_operations   what is done on a BMC, and the report of its progress
    boot_clean_up     the end
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.v1alpha2 import BootMode, BootWay, ConditionStatus, Raw, as_mapping
from tink.bmc.boot import (
    Booted,
    BootPart,
    BootReason,
    Exhausted,
    NextRung,
    Rung,
    Waiting,
    Watch,
    judge,
    parts,
    rungs,
)
from tink.bmc.boot_clean_up import BootCleanUp
from tink.bmc.boot_operations import BmcReach, BootOperations, BootStep, BootUrls
from tink.bmc.boot_order import BootOrder
from tink.bmc.boot_status import (
    CREDENTIAL_CAUSES,
    SOON_SECONDS,
    BootCase,
    BootMemory,
    BootWriter,
    SupersededError,
    elapsed,
    former_of,
    hardware_of,
    is_due,
    is_over,
    is_protected,
    is_stopped,
    last_boot_of,
    machine_of,
    occupies,
    options_of,
)
from tink.bmc.connections import BmcContext, BmcSession
from tink.bmc.model import LOGIN_CAUSES, BmcError, Cause, Observation, WantedMedium
from tink.kube.cache import Index, Informer
from tink.kube.client import NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import WORKFLOW
from tink.kube.runtime import DONE, Controller, Result
from tink.metrics.families import counter, gauge
from tink.timestamps import rfc3339
from tink.waiting import cancel_once
from tink.workflow.guards import paused
from tink.workflow.status import parse_timestamp

_MACHINE_SECONDS = 30.0
"""Pause before a missing Machine or another Workflow of the machine is looked for again. Changes are noticed sooner."""
_READ_SECONDS = 20.0
"""Time for which a reading of the BMC counts while its machine boots."""
_STALE_SECONDS = 0.5
"""Pause if the informer's copy is not the newest version. Its change is usually noticed sooner."""
_REFUSED_SECONDS = 3600.0
"""Pause before an action of a custom boot is repeated that the BMC has refused or ignored."""
_LADDER_PAUSE_SECONDS = 600.0
"""Pause before the ladder begins again, if no way of the BMC could be carried out."""
_CONCERNS_BMC = (*LOGIN_CAUSES, Cause.CREDENTIALS_MISSING, Cause.CERTIFICATE, Cause.UNREACHABLE, Cause.BUSY)
"""Causes that concern the BMC and not the way: another way would fail as well."""
_ANNOUNCED_SECONDS = 2.0
"""Pause between the write that a boot begins and the first request, if the machine has other Workflows."""
_CLOCK_SECONDS = 5.0
"""Difference between clocks from which a time in the future is an error."""
_STEP_TEXTS: Mapping[BootReason, str] = {
    BootReason.POWERING_OFF: "switching the machine off",
    BootReason.OVERRIDE_SET: "setting the boot device",
    BootReason.INSERTING_MEDIUM: "inserting the virtual medium",
    BootReason.POWERING_ON: "switching the machine on",
}


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
        self._workflows, self._hardware, self._machines = workflows, hardware, machines
        self._on_used = on_used
        self._writer = BootWriter(context)
        self._order = BootOrder(workflows, context.now)
        self._operations = BootOperations(context, self._writer, urls)
        self._clean_up = BootCleanUp(context, self._writer, self._operations, self._order, machines)
        self._running: dict[NamespacedName, asyncio.Task[Result]] = {}
        """The operations on BMCs, by Workflow."""
        self._memories: dict[str, BootMemory] = {}
        """By the uid of the Workflow."""
        self._on_machine: Index[NamespacedName, NamespacedName] = Index()
        """Workflows that wait for a boot or for their clean-up, by its Machine."""
        self._on_former: Index[NamespacedName, NamespacedName] = Index()
        """Workflows with a former Machine whose BMC is not cleaned up (`status.boot.former`), by that Machine."""
        self._results: Counter[str] = Counter(Booted=0)
        self.runtime = Controller(
            "Workflow boot",
            self._reconcile,
            retry_first=settings.retry_first,
            retry_longest=settings.retry_longest,
            limited_log=context.limited_log,
            workers=settings.task_workers,
        )
        self.former = Controller(
            "Clean-up of former BMCs",
            self._clean_former,
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
        yield gauge("tinkedge_bmc_running_boots", text, [], {(): len(self._running)})

    @property
    def remembered(self) -> int:
        """Number of Workflows about whose boot anything is in memory."""
        return len(self._memories)

    def _changed(self, new: Raw, old: Raw | None) -> None:
        key = NamespacedName.of(new)
        if old is not None and old["metadata"].get("uid") != new["metadata"].get("uid"):
            self._gone(old)  # it was deleted, and created again with the same name
        if key in self._running and is_stopped(new):
            cancel_once(self._running[key])
        self._order.follow(new)
        if is_over(new):
            self._queue_others(new)
        if is_protected(new) or (options_of(new) and not is_over(new)):
            self.runtime.queue.add(key)
        former = former_of(new)
        if former and (old is None or former != former_of(old) or paused(old) != paused(new)):
            self.former.queue.add(key)

    def _gone(self, old: Raw) -> None:
        key = NamespacedName.of(old)
        if key in self._running:
            cancel_once(self._running[key])
        self._memories.pop(str(old["metadata"].get("uid")), None)
        self._on_machine.set(key, ())
        self._on_former.set(key, ())
        self._order.forget(key)
        self._queue_others(old)

    def _queue_others(self, workflow: Raw) -> None:
        for other in self._order.workflows_on(hardware_of(workflow)):
            self.runtime.queue.add(other)

    def _hardware_changed(self, new: Raw, old: Raw | None) -> None:
        self._order.follow_hardware(new)
        has_other_machine = old is not None and machine_of(old) != machine_of(new)
        if old is None or has_other_machine or last_boot_of(old) != last_boot_of(new):
            for key in self._order.workflows_on(NamespacedName.of(new)):
                if has_other_machine and key in self._running:
                    cancel_once(self._running[key])
                workflow = self._workflows.get(*key)
                if workflow is not None and options_of(workflow):
                    self.runtime.queue.add(key)

    def _hardware_gone(self, old: Raw) -> None:
        self._order.forget_hardware(NamespacedName.of(old))

    def _machine_changed(self, new: Raw, old: Raw | None) -> None:
        """Try again at once: its address, its Secret's name or the annotation about a refused login has changed."""
        annotations = [as_mapping(each["metadata"].get("annotations")) for each in (new, old or new)]
        if old is None or old.get("spec") != new.get("spec") or annotations[0] != annotations[1]:
            for key in self._on_machine.keys(NamespacedName.of(new)):
                workflow = self._workflows.get(*key)
                memory = self._memories.get(str(workflow["metadata"]["uid"])) if workflow is not None else None
                if memory is not None:
                    memory.is_corrected = True
                self.runtime.queue.add(key)
            for key in self._on_former.keys(NamespacedName.of(new)):
                self.former.queue.add(key)

    # --- one reconciliation -------------------------------------------------------------------------------------------

    async def _reconcile(self, key: NamespacedName) -> Result:
        workflow = self._workflows.get(*key)
        self._on_machine.set(key, ())
        if workflow is None or paused(workflow) or not (options_of(workflow) or is_protected(workflow)):
            return DONE
        uid = str(workflow["metadata"]["uid"])
        memory = self._memories.setdefault(uid, BootMemory())
        if memory.is_corrected:
            memory.is_corrected, memory.not_before = False, 0.0
        case = BootCase(key, workflow, self._hardware.get(*hardware_of(workflow)) or {}, memory)
        try:
            if is_over(workflow):
                return await self._finish(case) if is_protected(workflow) else DONE
            if not is_due(workflow) or not case.hardware:
                return DONE  # the controller of Workflows reports an invalid status
            if not is_protected(workflow):
                await self._writer.set_finalizer(case, present=True)
                return DONE  # the informer reports the write
            if other := self._order.first(case):
                return await self._step_back(case, other)
            return await self._prepare(case)
        except SupersededError:
            return Result(_STALE_SECONDS)
        finally:
            present = self._workflows.get(*key)
            is_gone = present is None or present["metadata"].get("uid") != uid
            if is_gone or memory == BootMemory():
                self._memories.pop(uid, None)

    async def _finish(self, case: BootCase) -> Result:
        """Clean up after the end of the Workflow."""
        machine = case.prepared_machine or case.machine
        self._on_machine.set(case.key, (machine,) if machine is not None else ())
        if pause := await self._clean_up.finish(case):
            return Result(pause)
        self._memories.pop(case.uid, None)
        self._on_machine.set(case.key, ())
        self._order.forget(case.key)
        return DONE

    async def _clean_former(self, key: NamespacedName) -> Result:
        """Clean up BMCs of Machines that the Hardware named before, while the boot goes on with another one."""
        workflow = self._workflows.get(*key)
        former = former_of(workflow) if workflow is not None and not paused(workflow) else ()
        self._on_former.set(key, [each.machine for each in former])
        if workflow is None or not former:
            return DONE
        case = BootCase(key, workflow, self._hardware.get(*hardware_of(workflow)) or {}, BootMemory())
        try:
            pause = await self._clean_up.retry_former(case)
        except SupersededError:
            return Result(_STALE_SECONDS)
        return Result(pause) if pause else DONE

    async def _prepare(self, case: BootCase) -> Result:
        """Boot the machine of a Pending Workflow."""
        if case.options.get("toggleAllowNetboot") is True:
            await self._writer.set_netboot(case, is_allowed=True)
        if not case.mode:
            message = "netbooting is permitted; the power is left alone"
            await self._writer.report(case, ConditionStatus.TRUE, BootReason.BOOTED, message)
            return DONE
        rung = case.rung
        is_on = rung is not None and rung.way is not BootWay.CUSTOM and bool(case.boot.get("since"))
        if rung is not None and is_on and isinstance(booted := judge(self._view(case, rung)), Booted):
            await self._set_prepared(case, BootReason.BOOTED, f"{_way(rung)}: {booted.message}")
            return DONE
        self._on_machine.set(case.key, (case.machine,) if case.machine is not None else ())
        if case.machine is not None and case.prepared_machine not in (None, case.machine):
            return await self._change_machine(case)
        if left := case.memory.seconds_left():
            return Result(left)
        machine = self._machines.get(*case.machine) if case.machine is not None else None
        if machine is None:
            hardware = hardware_of(case.workflow)
            message = f"Hardware {hardware} has no BMC: set spec.bmcRef.name to a Machine"
            if case.machine is not None:
                message = f"Machine {case.machine} (spec.bmcRef of Hardware {hardware}) does not exist: create it"
            await self._writer.wait_for(case, BootReason.NO_BMC, message)
            return Result(_MACHINE_SECONDS)
        if case.mode == BootMode.CUSTOMBOOT:
            return await self._operate(case, machine, self._carry_out_actions)
        if rung is None or not is_on:
            return await self._operate(case, machine, partial(self._attempt, rung=rung))
        return await self._operate(case, machine, partial(self._watch, rung=rung))

    async def _change_machine(self, case: BootCase) -> Result:
        """Begin again with the Machine that the Hardware names now, after the clean-up of the former one."""
        former = case.prepared_machine
        if former is not None and not await self._clean_up.leave(case, former):
            await self._writer.add_former(case, former, str(case.boot.get("medium") or ""))
        if case.machine is not None:
            await self._writer.drop_former(case, case.machine)
        case.memory.forget_bmc()
        fields = dict.fromkeys(("way", "attempt", "machine", "since", "lastBoot", "medium", "done"))
        message = f"begins again, because Hardware {hardware_of(case.workflow)} now names Machine {case.machine}"
        await self._writer.wait_for(case, BootReason.POWERING_OFF, message, **fields)
        return DONE  # the informer reports the write

    async def _set_prepared(self, case: BootCase, reason: BootReason, message: str, **boot: Any) -> None:
        """Write that the Workflow may be sent."""
        self._memories.pop(case.uid, None)
        if await self._writer.report(case, ConditionStatus.TRUE, reason, message, **boot):
            self._results[reason] += 1

    async def _step_back(self, case: BootCase, other: NamespacedName) -> Result:
        """Wait for another Workflow of the machine. Its boot counts no longer: the other may restart the machine."""
        message = f"waits for Workflow {other} of the same machine"
        fields = dict.fromkeys(("since", "lastBoot")) if case.boot else {}
        await self._writer.wait_for(case, BootReason.OTHER_WORKFLOW, message, **fields)
        return Result(_MACHINE_SECONDS)

    # --- operations on the BMC ----------------------------------------------------------------------------------------

    async def _operate(
        self, case: BootCase, machine: Raw, run: Callable[[BootCase, BmcReach], Awaitable[Result]]
    ) -> Result:
        """Run an operation that ends when the Workflow is over, deleted or moved."""
        reach: BmcReach | None = None
        try:
            reach = await self._operations.reach(case, machine)
            operation = self._running[case.key] = asyncio.ensure_future(run(case, reach))
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
                await self._operations.record_login(reach)
            return await self._failed(case, error)
        finally:
            self._running.pop(case.key, None)
            if reach is not None:
                self._on_used(reach.bmc)

    async def _failed(self, case: BootCase, error: BmcError) -> Result:
        """Report that the BMC can't be used now. Return when it is tried again."""
        pause = max(case.memory.count_failure(), error.retry_after)
        if error.cause in CREDENTIAL_CAUSES:
            pause = self._context.settings.secret_interval  # it costs no login until the Secret changes
        elif case.mode == BootMode.CUSTOMBOOT and error.cause not in (*_CONCERNS_BMC, Cause.CONFLICT):
            pause = _REFUSED_SECONDS
        case.memory.pause_for(pause)
        await self._writer.wait_for(case, error.cause, str(error))
        return Result(pause)

    async def _announced(
        self, case: BootCase, reason: BootReason, message: str, **fields: Any
    ) -> NamespacedName | None:
        """Write that the power or boot device is about to be changed. Return another Workflow that goes first.

        From this write on, the server sends no other Workflow of the machine. A server whose copy is older may send one
        a moment later: then its claim is seen here after a pause.
        """
        await self._writer.wait_for(case, reason, message, **fields)
        others = [key for key in self._order.workflows_on(hardware_of(case.workflow)) if key != case.key]
        if others:
            await asyncio.sleep(_ANNOUNCED_SECONDS)
        for key in others:
            with suppress(NotFoundError):  # the watch may be slow
                if occupies(await self._context.client.get(WORKFLOW, key.name, key.namespace)):
                    return key
        return self._order.first(case)

    async def _carry_out_actions(self, case: BootCase, reach: BmcReach) -> Result:
        """Carry out the preparing actions of a custom boot that are not done. Raises BmcError."""
        if not await self._writer.is_current(case):
            return Result(_STALE_SECONDS)
        other: NamespacedName | None = None

        async def is_next(step: BootStep) -> bool:
            nonlocal other
            other = await self._announced(
                case, step.reason, step.message, way="custom", attempt=1, **_machine_fields(case)
            )
            return other is None

        await self._operations.carry_out(case, reach, "preparingActions", offset=0, before_each=is_next)
        if other is not None:
            return await self._step_back(case, other)
        count = len(as_mapping(case.options.get("custombootConfig")).get("preparingActions") or ())
        await self._set_prepared(case, BootReason.ACTIONS_DONE, f"{count} actions are done", done=count, way="custom")
        return DONE

    # --- one attempt of the ladder ------------------------------------------------------------------------------------

    async def _attempt(self, case: BootCase, reach: BmcReach, *, rung: Rung | None) -> Result:
        """Carry out one way: off, boot device, on. Raises BmcError if the BMC can't be used."""
        http_url, medium_url = await self._operations.urls(case)
        if not await self._writer.is_current(case):
            return Result(_STALE_SECONDS)
        failure: BmcError | None = None
        async with self._operations.open(case, reach) as session:
            seen = await session.observe(boot=True, media=True)
            ladder = case.memory.ladder = self._ladder(case, reach, seen, http_url, medium_url)
            rung = rung if rung in ladder else ladder[0]
            if not await self._writer.is_current(case):  # the BMC may have been in use for minutes
                return Result(_STALE_SECONDS)
            if other := self._order.first(case):  # it was claimed meanwhile
                return await self._step_back(case, other)
            case.memory.reading = None
            protocols = reach.connection.protocols
            todo = parts(
                rung,
                seen,
                http_url=http_url,
                medium_url=medium_url,
                protocols=protocols,
                is_uefi=case.is_uefi,
            )
            before = ""
            try:
                for part in todo:
                    if other := await self._begin(case, rung, part, is_first=part is todo[0]):
                        return await self._step_back(case, other)
                    before = await self._writer.last_boot_at(case)
                    await self._perform(case, session, rung, part)
            except BmcError as error:
                # By IPMI, the BMC may refuse the login or not answer, although Redfish works.
                if error.cause in _CONCERNS_BMC and part.protocol != "ipmi":
                    raise
                failure = error
        if failure is not None:
            return await self._advance(case, ladder, rung, failure.cause, f"{_way(rung)}: {failure}")
        case.memory.failures = 0
        if case.mode == BootMode.ISOBOOT and case.options.get("isoURL"):
            message = "the machine is on, with the image in isoURL as its boot device"
            await self._set_prepared(case, BootReason.BOOTED, message)
            return DONE
        message = f"{_way(rung)}: the machine is on, waiting for its DISCOVER"
        since = rfc3339(self._context.now(), "milliseconds")
        fields = {"since": since, "lastBoot": before or None, "attempt": rung.attempt}
        await self._writer.wait_for(case, BootReason.WAITING_FOR_DISCOVER, message, **fields)
        return DONE  # the informer reports the write, and then `_watch` begins

    async def _begin(self, case: BootCase, rung: Rung, part: BootPart, *, is_first: bool) -> NamespacedName | None:
        """Write that a part of an attempt begins. Return another Workflow of the machine that goes before it."""
        fields: dict[str, Any] = _rung_fields(rung) | _machine_fields(case)
        if isinstance(part.wanted, WantedMedium) and part.wanted.url:
            fields["medium"] = part.wanted.kind
        if is_first:
            return await self._announced(case, part.reason, _step_text(rung, part), **fields)
        await self._writer.wait_for(case, part.reason, _step_text(rung, part), **fields)
        return None

    async def _perform(self, case: BootCase, session: BmcSession, rung: Rung, part: BootPart) -> None:
        step = BootStep(part.reason, _step_text(rung, part))
        await self._operations.perform(case, session, part.wanted, protocol=part.protocol, step=step)

    def _ladder(
        self, case: BootCase, reach: BmcReach, seen: Observation, http_url: str, medium_url: str
    ) -> tuple[Rung, ...]:
        if case.mode == BootMode.ISOBOOT:
            return (Rung(BootWay.ISO, 1),)
        ladder = rungs(
            seen,
            reach.connection.protocols,
            has_http_url=bool(http_url),
            has_medium=bool(medium_url),
            is_uefi=case.is_uefi,
        )
        return tuple(each for each in ladder if each not in case.memory.failed_rungs) or ladder

    async def _advance(
        self,
        case: BootCase,
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
        failed = case.memory.failed_rungs
        if not is_on:
            failed.add(rung)
        place = ladder.index(rung) if rung in ladder else len(ladder) - 1
        left = [each for each in ladder if each not in failed]
        later = [each for each in ladder[place + 1 :] if each not in failed]
        if is_on and not later:
            await self._writer.wait_for(case, reason, message)
            return DONE
        following = later[0] if later else left[-1] if left else ladder[0]
        fields = _rung_fields(following)
        if left:
            await self._writer.wait_for(case, reason, f"{message}; next: {_way(following)}", **fields)
            return DONE
        # The BMC may accept later what it refuses now.
        failed.clear()
        case.memory.pause_for(_LADDER_PAUSE_SECONDS)
        message = f"{message}; tried again in {_LADDER_PAUSE_SECONDS / 60:.0f} minutes"
        await self._writer.wait_for(case, reason, message, **fields)
        return Result(_LADDER_PAUSE_SECONDS)

    # --- while the machine boots --------------------------------------------------------------------------------------

    async def _watch(self, case: BootCase, reach: BmcReach, *, rung: Rung) -> Result:
        """Wait for the machine's DISCOVER, and name the cause if it does not arrive."""
        since = parse_timestamp(case.boot.get("since"))
        if since is None or since > self._context.now() + _CLOCK_SECONDS:  # the clock was set back
            await self._writer.set_boot(case, since=rfc3339(self._context.now(), "milliseconds"))
        watch, ladder = self._view(case, rung), case.memory.ladder
        verdict = judge(watch)
        if not isinstance(verdict, Booted) and (not isinstance(verdict, Waiting) or verdict.reads_bmc):
            reading = await self._read(case, reach, rung)
            seen, error = (reading, None) if isinstance(reading, Observation) else (None, reading)
            if isinstance(verdict, NextRung) and not ladder:
                ladder = await self._read_ladder(case, reach)
            # The DISCOVER may have arrived while the BMC was read.
            case.hardware = self._hardware.get(*hardware_of(case.workflow)) or case.hardware
            watch = self._view(case, rung)
            verdict = judge(replace(watch, seen=seen, error=error))
        match verdict:
            case Booted():
                await self._set_prepared(case, BootReason.BOOTED, f"{_way(rung)}: {verdict.message}")
                return DONE
            case Waiting():
                if verdict.reason is BootReason.OVERRIDE_LOST and not watch.lost_for:
                    case.memory.lost_since = rung, elapsed()
                await self._writer.wait_for(case, verdict.reason, f"{_way(rung)}: {verdict.message}")
                return Result(max(verdict.seconds, SOON_SECONDS))
            case NextRung():
                ladder = ladder or await self._read_ladder(case, reach)
                return await self._advance(case, ladder, rung, verdict.reason, verdict.message, is_on=True)
            case Exhausted():
                if await self._writer.wait_for(case, verdict.reason, verdict.message):
                    self._results[verdict.reason] += 1
                return DONE

    def _view(self, case: BootCase, rung: Rung) -> Watch:
        """Return what is known of a machine that was switched on, without a reading of its BMC."""
        now, settings, ladder = self._context.now(), self._context.settings, case.memory.ladder
        lost_rung, lost_since = case.memory.lost_since or (None, 0.0)
        return Watch(
            rung,
            is_last=bool(ladder) and rung == ladder[-1],
            macs=case.macs,
            waited=max(0.0, now - (parse_timestamp(case.boot.get("since")) or now)),
            last_boot_before=str(case.boot.get("lastBoot") or ""),
            last_boot=last_boot_of(case.hardware),
            named_after=settings.boot_named_after,
            next_after=settings.boot_next_after,
            lost_for=elapsed() - lost_since if lost_rung == rung else 0.0,
        )

    async def _read(self, case: BootCase, reach: BmcReach, rung: Rung) -> Observation | BmcError:
        """Return what the BMC reports, or why it can't be read. It is read at most every `_READ_SECONDS`."""
        read_rung, read_at, reading = case.memory.reading or (None, 0.0, None)
        if reading is not None and read_rung == rung and elapsed() - read_at < _READ_SECONDS:
            return reading
        try:
            async with self._operations.open(case, reach) as session:
                reading = await session.observe(boot=True)
        except BmcError as error:
            reading = error
        case.memory.reading = rung, elapsed(), reading
        return reading

    async def _read_ladder(self, case: BootCase, reach: BmcReach) -> tuple[Rung, ...]:
        """Return the ladder of the BMC after a restart of this process. Raises BmcError."""
        http_url, medium_url = await self._operations.urls(case)
        async with self._operations.open(case, reach) as session:
            seen = await session.observe(boot=True, media=True)
        ladder = case.memory.ladder = self._ladder(case, reach, seen, http_url, medium_url)
        return ladder


def _way(rung: Rung) -> str:
    return f"{rung.way.value}, attempt {rung.attempt}"


def _step_text(rung: Rung, part: BootPart) -> str:
    return f"{_way(rung)}: {_STEP_TEXTS.get(part.reason, '')}"


def _rung_fields(rung: Rung) -> dict[str, Any]:
    """Return the fields of `status.boot` at the beginning of an attempt."""
    return {"way": rung.way.value, "attempt": rung.attempt, "since": None, "lastBoot": None}


def _machine_fields(case: BootCase) -> dict[str, Any]:
    """Return the field of `status.boot` with the Machine whose BMC is about to be changed."""
    return {"machine": case.machine.name} if case.machine is not None else {}
