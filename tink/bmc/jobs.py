"""Jobs and Tasks: what a user wants of a BMC, in order, each step read back before the next one begins.

A Job makes one Task at a time, `JOB-task-N`, and the next one when that is Completed. A Task is one operation
(`tink.bmc.operation`); it is Completed when the BMC reports the effect.

Before a Task begins, its status has `startTime`; after each part of it (`off` of a power cycle, `sent` of a reset),
`status.stage` has the name of that part. So a restart of the process continues a Task, and repeats no part that is
done. The deletion of a Task ends its operation.

One Task of a BMC runs at a time; the others wait without a worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.annotations import JOB_TTL_ANNOTATION
from tink.api.bmc import OWNER_LABEL, is_ended
from tink.api.v1alpha2 import Raw, as_mapping
from tink.bmc.connections import BmcContext, LoginKeeper, bmc_of, connection_of
from tink.bmc.model import (
    BmcConnection,
    BmcCredentials,
    BmcError,
    BootDevice,
    BootMode,
    Cause,
    PowerAction,
    Wanted,
    WantedBoot,
    WantedMedium,
    WantedPower,
)
from tink.bmc.status import bounded, condition, is_true, with_condition
from tink.kube.cache import Index, Informer
from tink.kube.client import ApiError, ConflictError, NotFoundError
from tink.kube.objects import NamespacedName
from tink.kube.resources import JOB, MACHINE, TASK
from tink.kube.runtime import (
    DONE,
    Controller,
    Event,
    LeadershipLostError,
    Result,
    while_leading,
)
from tink.metrics.families import counter, gauge
from tink.timestamps import rfc3339
from tink.waiting import cancel_once
from tink.workflow.status import parse_timestamp

log = logging.getLogger(__name__)

_MACHINE_SECONDS = 30.0
"""Pause before a Job looks for its Machine again, if the informer does not follow the Machine's namespace."""
_NEVER_ACCEPTED = (400, 403, 404, 413, 422)
"""Answers to the creation of a Task after which the same request is useless: the Job fails."""
_SENT = "sent"
"""The stage of a reset after the BMC has accepted it."""
_PROGRESS_SECONDS = 5.0
_JOB_WORKERS = 8
"""Number of Jobs that are reconciled at once. None of them waits for a BMC."""


# --- from a task to operations ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a task: its name in `status.stage` once it is done, and the operation."""

    name: str
    wanted: Wanted


def stages_of(task: Raw) -> tuple[Stage, ...]:
    """Return the parts of a task (`spec.task` of a Task). Raises BmcError (UNSUPPORTED) if it has no known action."""
    if (power := task.get("powerAction")) is not None:
        action = _known(PowerAction, power, "powerAction")
        if action is PowerAction.CYCLE:
            return Stage("off", WantedPower(PowerAction.OFF)), Stage("on", WantedPower(PowerAction.ON))
        return (Stage(action.value, WantedPower(action)),)
    once, boot = as_mapping(task.get("oneTimeBootDeviceAction")), as_mapping(task.get("bootDevice"))
    if once or boot:
        devices = once.get("device") or ()
        device = _known(BootDevice, devices[0] if once and devices else boot.get("device"), "device")
        mode = BootMode.UEFI if (once or boot).get("efiBoot") is True else None
        return (Stage("boot", WantedBoot(device, boot.get("persistent") is True, mode)),)
    if medium := as_mapping(task.get("virtualMediaAction")):
        return (Stage("media", WantedMedium(str(medium.get("kind") or "CD"), _rendered(medium.get("mediaURL")))),)
    raise BmcError(Cause.UNSUPPORTED, "the task has no action")


def _rendered(url: object) -> str:
    """Return the URL of a medium. The schema admits an expression, because Workflows have the same actions."""
    text = str(url or "")
    if "{{" in text:
        raise BmcError(
            Cause.UNSUPPORTED,
            "mediaURL has a template expression, which is rendered in bootOptions of a Workflow only: write the URL",
        )
    return text


E = TypeVar("E", bound=StrEnum)


def _known(words: type[E], value: object, field: str) -> E:
    try:
        return words(str(value))
    except ValueError:
        named = ", ".join(each.value for each in words)
        raise BmcError(Cause.UNSUPPORTED, f"{field}: {value!r} is none of {named}") from None


# --- Jobs -------------------------------------------------------------------------------------------------------------


class JobController:
    """Reconciles Jobs. Its caller runs the informers."""

    def __init__(
        self,
        context: BmcContext,
        *,
        jobs: Informer,
        tasks: Informer,
        machines: Informer,
    ) -> None:
        settings = context.settings
        self._context = context
        self._jobs, self._tasks, self._machines = jobs, tasks, machines
        self._waiting: Index[NamespacedName, NamespacedName] = Index()
        """Jobs, by the Machine that they wait for."""
        self._deleted: dict[str, str] = {}
        """The name of a Task that was deleted before its end, by the uid of its Job."""
        self.runtime = Controller(
            "Job",
            self._reconcile,
            retry_first=settings.retry_first,
            retry_longest=settings.retry_longest,
            limited_log=context.limited_log,
            workers=_JOB_WORKERS,
        )
        queue = self.runtime.queue
        jobs.add_event_handler(lambda new, _: queue.add(NamespacedName.of(new)), self._gone)
        tasks.add_event_handler(lambda new, _: self._task_changed(new), self._task_gone)
        machines.add_event_handler(lambda new, old: self._appeared(new) if old is None else None)

    def _gone(self, old: Raw) -> None:
        self._waiting.set(NamespacedName.of(old), ())
        self._deleted.pop(str(old["metadata"].get("uid")), None)

    def _task_gone(self, task: Raw) -> None:
        owner = _owner_of(task)
        job = self._jobs.get(*owner[0]) if owner is not None else None
        if owner is not None and job is not None and job["metadata"].get("uid") == owner[1] and not is_ended(task):
            self._deleted[owner[1]] = NamespacedName.of(task).name
        self._task_changed(task)

    def _task_changed(self, task: Raw) -> None:
        if (owner := _owner_of(task)) is not None:
            self.runtime.queue.add(owner[0])

    def _appeared(self, machine: Raw) -> None:
        for key in self._waiting.keys(NamespacedName.of(machine)):
            self.runtime.queue.add(key)

    async def _reconcile(self, key: NamespacedName) -> Result:
        job = self._jobs.get(*key)
        if job is None or job["metadata"].get("deletionTimestamp"):
            return DONE
        if is_ended(job):
            return await self._remove(key, job)
        if (deleted := self._deleted.get(job["metadata"]["uid"])) is not None:
            message = f"task {key.namespace}/{deleted} was deleted before its end"
            await self._write(job, "Failed", "TaskDeleted", message)
            return DONE
        machine = await self._machine(job)
        if machine is None:
            return await self._wait_for_machine(key, job)
        self._waiting.set(key, ())
        if not is_true(job, "Running"):
            await self._write(job, "Running", "TasksRunning", "", startTime=rfc3339(self._context.now()))
            return DONE  # the informer reports the write
        for number, action in enumerate(job["spec"]["tasks"]):
            name = f"{key.name}-task-{number}"
            task = await self._task(job, machine, name, action)
            if task is None:
                return DONE
            if is_true(task, "Failed"):
                why = condition(task, "Failed").get("message") or "it gives no reason"
                reason = condition(task, "Failed").get("reason") or "TaskFailed"
                await self._write(job, "Failed", reason, f"task {key.namespace}/{name} failed: {why}")
                return DONE
            if not is_true(task, "Completed"):
                return DONE  # it is queued again when its Task changes
        count = len(job["spec"]["tasks"])
        done = "the task is completed" if count == 1 else f"{count} tasks are completed"
        await self._write(job, "Completed", "TasksCompleted", done, completionTime=rfc3339(self._context.now()))
        return DONE

    async def _machine(self, job: Raw) -> Raw | None:
        reference = as_mapping(job["spec"].get("machineRef"))
        name = NamespacedName(str(reference.get("namespace")), str(reference.get("name")))
        machine = self._machines.get(*name)
        if machine is None and not self._machines.covers({"metadata": {"namespace": name.namespace}}):
            with suppress(NotFoundError):
                machine = await self._context.client.get(MACHINE, name.name, name.namespace)
        return machine

    async def _wait_for_machine(self, key: NamespacedName, job: Raw) -> Result:
        """Report that the Machine of a Job does not exist. The Job begins when it does, as with Rufio."""
        reference = as_mapping(job["spec"].get("machineRef"))
        machine = NamespacedName(str(reference.get("namespace")), str(reference.get("name")))
        self._waiting.set(key, (machine,))
        message = f"Machine {machine} does not exist; the Job begins when it does"
        if not condition(job, "Running"):
            await self._write(job, "Running", "MachineNotFound", message, is_true=False)
        return Result(_MACHINE_SECONDS)

    async def _task(self, job: Raw, machine: Raw, name: str, action: Raw) -> Raw | None:
        """Return a Task of the Job, and create it if necessary. Return None if the Job has failed for that."""
        key, uid = NamespacedName.of(job), job["metadata"]["uid"]
        task = self._tasks.get(key.namespace, name)
        if task is None:
            try:
                return await self._create(job, machine, name, action)
            except ConflictError:  # the informer does not know it yet
                task = await self._context.client.get(TASK, name, key.namespace)
            except ApiError as error:
                if error.status not in _NEVER_ACCEPTED:
                    raise
                await self._write(job, "Failed", "TaskRefused", f"the API refuses Task {name}: {error}")
                return None
        owner = _owner_of(task)
        if owner == (key, uid):
            return task
        if owner is not None and owner[0] == key:
            # It is of an earlier Job of this name, and will be removed with that.
            raise ConflictError(409, "AlreadyExists", f"Task {name} of an earlier Job of this name still exists")
        message = f"Task {key.namespace}/{name} exists and is not of this Job: delete it, and create the Job again"
        await self._write(job, "Failed", "TaskExists", message)
        return None

    async def _create(self, job: Raw, machine: Raw, name: str, action: Raw) -> Raw:
        """Create a Task. Raises ConflictError if one of its name exists."""
        key = NamespacedName.of(job)
        owner = {"apiVersion": JOB.api_version, "kind": JOB.kind, "name": key.name, "uid": job["metadata"]["uid"]}
        body = {
            "apiVersion": TASK.api_version,
            "kind": TASK.kind,
            "metadata": {
                "name": name,
                "namespace": key.namespace,
                "labels": {OWNER_LABEL: key.name},
                # Without blockOwnerDeletion: where Kubernetes checks it, it needs a right on the Job's finalizers.
                "ownerReferences": [owner | {"controller": True}],
            },
            "spec": {"task": action, "connection": _copied(machine)},
        }
        return await while_leading(self._context.elector, lambda: self._context.client.create(TASK, body))

    async def _remove(self, key: NamespacedName, job: Raw) -> Result:
        """Delete an ended Job whose annotation limits its life after that."""
        self._waiting.set(key, ())
        value = str(as_mapping(job["metadata"].get("annotations")).get(JOB_TTL_ANNOTATION, ""))
        if not (value.isascii() and value.isdecimal() and len(value) < 9):
            return DONE
        ended = next(each for each in ("Completed", "Failed") if is_true(job, each))
        since = parse_timestamp(condition(job, ended).get("lastTransitionTime")) or self._context.now()
        if (left := since + int(value) - self._context.now()) > 0:
            return Result(max(left, 0.1))  # timers are inexact
        metadata = job["metadata"]
        seen = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        with suppress(NotFoundError):
            await while_leading(
                self._context.elector,
                lambda: self._context.client.delete(JOB, key.name, key.namespace, preconditions=seen),
            )
        return DONE

    async def _write(
        self, job: Raw, kind: str, reason: str, message: str, *, is_true: bool = True, **fields: str
    ) -> None:
        """Write a condition of a Job and further fields of its status, with an Event."""
        key = NamespacedName.of(job)
        conditions = with_condition(job, kind, is_true=is_true, reason=reason, message=message, now=self._context.now())
        body = {
            "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions, **fields},
        }
        with suppress(NotFoundError):
            await self._context.patch(JOB, key, body, subresource="status")
        is_warning = kind == "Failed" or not is_true
        self._context.recorder.event(job, JOB, Event(reason, message or "the first task begins", warning=is_warning))
        level = logging.WARNING if is_warning else logging.INFO
        log.log(level, "Job %s: %s: %s", key, kind if is_true else reason, message, extra={"fields": {"job": str(key)}})


def _owner_of(task: Raw) -> tuple[NamespacedName, str] | None:
    """Return the key and the uid of the Job that controls a Task."""
    for each in task["metadata"].get("ownerReferences") or ():
        if each.get("kind") == JOB.kind and each.get("controller") and each.get("apiVersion") == JOB.api_version:
            return NamespacedName(task["metadata"].get("namespace", ""), str(each.get("name"))), str(each.get("uid"))
    return None


def _copied(machine: Raw) -> Raw:
    """Return the connection of a Machine for a Task, which may be in another namespace."""
    connection = dict(machine["spec"]["connection"])
    for field in ("authSecretRef", "caSecretRef"):
        reference = as_mapping(connection.get(field))
        if reference and not reference.get("namespace"):
            connection[field] = reference | {"namespace": NamespacedName.of(machine).namespace}
    return connection


# --- Tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The end of a Task, until it is written."""

    kind: str
    """`Completed` or `Failed`."""
    reason: str
    message: str


class TaskController(Collector):
    """Reconciles Tasks. Its caller runs the informers."""

    def __init__(
        self,
        context: BmcContext,
        *,
        jobs: Informer,
        tasks: Informer,
        machines: Informer,
        on_used: Callable[[str], None],
    ) -> None:
        """`on_used` is called with the BMC (`bmc_of`) after each operation."""
        settings = context.settings
        self._context = context
        self._jobs, self._tasks, self._machines = jobs, tasks, machines
        self._on_used = on_used
        self._operations: dict[NamespacedName, asyncio.Task[str]] = {}
        self._progress: dict[NamespacedName, str] = {}
        """The clause about what the operation of a Task does or waits for now."""
        self._running: dict[str, NamespacedName] = {}
        """The Task that runs, by its BMC."""
        self._waiting: Index[NamespacedName, str] = Index()
        """The Tasks that wait for a BMC."""
        self._outcomes: dict[str, _Outcome] = {}
        """Ends of Tasks that are not written yet, by uid."""
        self._stages: dict[str, str] = {}
        """The last stage of a Task, by uid, until its end is written: the API may have missed the write."""
        self._ended: Counter[str] = Counter(Completed=0)
        self.runtime = Controller(
            "Task",
            self._reconcile,
            retry_first=settings.retry_first,
            retry_longest=settings.retry_longest,
            limited_log=context.limited_log,
            workers=settings.task_workers,
        )
        tasks.add_event_handler(self._changed, self._gone)
        jobs.add_event_handler(None, self._job_gone)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        text = "Tasks that have ended: Completed, or the cause of their failure."
        yield counter("tinkedge_bmc_tasks", text, ["result"], {(name,): count for name, count in self._ended.items()})
        yield gauge("tinkedge_bmc_running_tasks", "Tasks that run now.", [], {(): len(self._operations)})

    def _changed(self, new: Raw, old: Raw | None) -> None:
        key = NamespacedName.of(new)
        if new["metadata"].get("deletionTimestamp") and key in self._operations:
            cancel_once(self._operations[key])
        if old is None or old["metadata"]["uid"] != new["metadata"]["uid"]:
            self.runtime.queue.add(key)  # everything else in it is what this controller has written

    def _gone(self, old: Raw) -> None:
        key, uid = NamespacedName.of(old), str(old["metadata"].get("uid"))
        self._waiting.set(key, ())
        self._outcomes.pop(uid, None)
        self._stages.pop(uid, None)
        if key in self._operations:
            log.info("Task %s: deleted, its operation ends", key)
            cancel_once(self._operations[key])

    def _job_gone(self, job: Raw) -> None:
        """End the operations of a deleted Job at once: the garbage collector deletes its Tasks later."""
        owner = NamespacedName.of(job), job["metadata"].get("uid")
        for key, operation in self._operations.items():
            task = self._tasks.get(*key)
            if task is not None and _owner_of(task) == owner:
                log.info("Task %s: its Job was deleted, its operation ends", key)
                cancel_once(operation)

    async def _reconcile(self, key: NamespacedName) -> Result:
        task = self._tasks.get(*key)
        self._waiting.set(key, ())
        if task is None or is_ended(task) or task["metadata"].get("deletionTimestamp"):
            return DONE
        uid = str(task["metadata"]["uid"])
        if uid not in self._outcomes:
            try:
                stages = stages_of(as_mapping(task["spec"].get("task")))
                connection, credentials = await self._reach(task)
            except BmcError as error:
                self._outcomes[uid] = _Outcome("Failed", error.cause.value, str(error))
            else:
                bmc = bmc_of(connection)
                if self._running.get(bmc, key) != key:
                    self._waiting.set(key, (bmc,))
                    return DONE
                outcome = await self._operate(key, task, bmc, partial(self._run, task, stages, connection, credentials))
                if self._context.connections.logins.is_refused(bmc, credentials):
                    await self._context.record_login(self._keeper(task), bmc, credentials)
                if outcome is None:
                    return DONE
                self._outcomes[uid] = outcome
        await self._end(key, task, self._outcomes[uid])
        return DONE

    async def _operate(
        self, key: NamespacedName, task: Raw, bmc: str, run: Callable[[], Coroutine[Any, Any, str]]
    ) -> _Outcome | None:
        """Run the operation of a Task, and then wake the Tasks that wait for the BMC. Return None if it was deleted."""
        self._running[bmc] = key
        try:
            if not as_mapping(task.get("status")).get("startTime"):
                status: Raw = {
                    "startTime": rfc3339(self._context.now()),
                    "conditions": self._running_condition(task, ""),
                }
                await self._patch(task, status)
            operation = self._operations[key] = asyncio.create_task(run(), name=f"Task {key}")
            reporting = asyncio.create_task(self._report_progress(key), name=f"progress of Task {key}")
            try:
                return _Outcome("Completed", "ReadBack", await operation)
            finally:
                reporting.cancel()
                await asyncio.wait([reporting])
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise  # this replica no longer leads, or the process ends: the Task is continued
            return None
        except BmcError as error:
            return _Outcome("Failed", error.cause.value, str(error))
        except NotFoundError:
            return None
        except (ApiError, LeadershipLostError):
            raise
        except Exception:
            # A mistake in this program must not send requests to a BMC without end.
            log.exception("Task %s: this should not have happened; please report it", key)
            return _Outcome("Failed", "InternalError", "a mistake in tinkedge ended the Task; its log has the details")
        finally:
            del self._running[bmc]
            self._operations.pop(key, None)
            self._progress.pop(key, None)
            self._on_used(bmc)
            for waiting in list(self._waiting.keys(bmc)):
                self.runtime.queue.add(waiting)

    async def _run(
        self, task: Raw, stages: Sequence[Stage], connection: BmcConnection, credentials: BmcCredentials
    ) -> str:
        """Carry out the stages that are not done. Return the message of the last. Raises BmcError, ApiError."""
        key, uid = NamespacedName.of(task), str(task["metadata"]["uid"])
        done = self._stages.get(uid) or str(as_mapping(task.get("status")).get("stage") or "")
        names = [stage.name for stage in stages]
        left = stages[names.index(done) + 1 :] if done in names else stages
        async with self._context.connections.open(key, connection, credentials, keeper=self._keeper(task)) as session:
            if done == _SENT:
                seen = await session.observe()
                return f"the BMC had accepted the restart before tinkedge restarted; the power is {seen.power.value}"
            message = "done before tinkedge restarted"
            for stage in left:
                if stage.wanted == WantedPower(PowerAction.STATUS):
                    message = f"the power is {(await session.observe()).power.value}"
                    continue
                message = await session.perform(
                    stage.wanted,
                    on_restart=partial(self._reached, task, _SENT),
                    progress=partial(self._progress.__setitem__, key),
                )
                if stage is not stages[-1]:
                    await self._reached(task, stage.name)
            return message

    async def _report_progress(self, key: NamespacedName) -> None:
        """Write to the status what the operation waits for, at most every five seconds, until cancelled."""
        shown = ""
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            text, task = self._progress.get(key, ""), self._tasks.get(*key)
            if text == shown or task is None:
                continue
            shown = text
            log.debug("Task %s: %s", key, bounded(text))
            try:
                await self._patch(task, {"conditions": self._running_condition(task, text)})
            except (ApiError, LeadershipLostError) as error:
                log.debug("Task %s: its progress is not written: %s", key, error)

    def _running_condition(self, task: Raw, message: str) -> list[Raw]:
        """Return the conditions of a Task that runs. Rufio has Running for Jobs alone."""
        return with_condition(
            task, "Running", is_true=True, reason="InProgress", message=message, now=self._context.now()
        )

    async def _reached(self, task: Raw, stage: str) -> None:
        """Note that a stage is done, here and in the status."""
        self._stages[str(task["metadata"]["uid"])] = stage
        key = NamespacedName.of(task)
        self._progress.pop(key, None)
        conditions = self._running_condition(self._tasks.get(*key) or task, "")
        await self._patch(task, {"stage": stage, "conditions": conditions})

    async def _end(self, key: NamespacedName, task: Raw, outcome: _Outcome) -> None:
        """Write the end of a Task."""
        task = self._tasks.get(*key) or task  # with the progress that was written meanwhile
        conditions = with_condition(
            task, outcome.kind, is_true=True, reason=outcome.reason, message=outcome.message, now=self._context.now()
        )
        status: Raw = {"conditions": conditions}
        has_failed = outcome.kind == "Failed"
        if not has_failed:
            status["completionTime"] = rfc3339(self._context.now())
        with suppress(NotFoundError):
            await self._patch(task, status)
        uid = str(task["metadata"]["uid"])
        self._outcomes.pop(uid, None)
        self._stages.pop(uid, None)
        self._ended[outcome.reason if has_failed else outcome.kind] += 1
        reason = outcome.reason if has_failed else outcome.kind
        self._context.recorder.event(task, TASK, Event(reason, outcome.message, warning=has_failed))
        level = logging.WARNING if has_failed else logging.INFO
        log.log(level, "Task %s: %s: %s", key, reason, bounded(outcome.message), extra={"fields": {"task": str(key)}})

    async def _patch(self, task: Raw, status: Raw) -> None:
        await self._context.patch(TASK, NamespacedName.of(task), {"status": status}, subresource="status")

    # --- how to reach the BMC -----------------------------------------------------------------------------------------

    async def _reach(self, task: Raw) -> tuple[BmcConnection, BmcCredentials]:
        """Return the connection and the credentials of a Task. Raises BmcError, ApiError.

        If the Task has the connection of a Machine, as its Job has copied it, it may use the Secrets of the Machine's
        namespace. Else it may use its own alone: a user who may write Tasks in a namespace must not send Secrets of
        another one to any host.
        """
        spec, machine = as_mapping(task["spec"].get("connection")), self._machine_of(task)
        namespace = NamespacedName.of(machine or task).namespace
        connection = connection_of(spec, await self._context.reader.authority(spec, namespace))
        credentials = await self._context.reader.credentials(spec, namespace)
        keeper = self._keeper(task)
        self._context.connections.logins.restore(keeper.kind, keeper.holder, bmc_of(connection), credentials)
        return connection, credentials

    def _keeper(self, task: Raw) -> LoginKeeper:
        """Return the keeper of a Task's login: its Machine, or the Task itself if it has none."""
        machine = self._machine_of(task)
        return self._context.keeper(TASK, task) if machine is None else self._context.keeper(MACHINE, machine)

    def _machine_of(self, task: Raw) -> Raw | None:
        """Return the Machine whose connection the Job of a Task has copied; None if it has another one by now."""
        owner = _owner_of(task)
        job = self._jobs.get(*owner[0]) if owner is not None else None
        if owner is None or job is None or job["metadata"].get("uid") != owner[1]:
            return None
        reference = as_mapping(job["spec"].get("machineRef"))
        machine = self._machines.get(str(reference.get("namespace")), str(reference.get("name")))
        return machine if machine is not None and _copied(machine) == task["spec"].get("connection") else None
