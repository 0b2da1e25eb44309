"""Keeps Workflows going: what `reconcile` decides about one is written to the API.

A Workflow is looked at when it changes, when a Hardware or Template appears or changes that it waits for, and when a
deadline of it has come. Every write carries the resourceVersion that the decision was made from; if the object has
changed since, the write fails, and the Workflow is looked at again when the informer has the change. The queue, the
workers and the delays after failures are `tink.kube.runtime.controller`'s.

Workflows are what tenants write: in the queue and for rendering, which may take seconds, their namespaces take turns.

With leader election, of several replicas one works. The others keep everything ready: they follow the informers, know
what is to be looked at, and begin with that when it is their turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tink.api.v1alpha2 import ConditionStatus, Raw, WorkflowState, as_mapping
from tink.controller.reconcile import (
    Decision,
    Patch,
    Render,
    TimestampAges,
    reconcile,
    references,
    refused,
    time_to_live,
    timestamps,
    to_be_rendered,
    to_be_supervised,
)
from tink.controller.settings import ControllerSettings
from tink.kube.cache import Index, Informer
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.objects import NamespacedName, ObjectReference
from tink.kube.resources import HARDWARE, WORKFLOW
from tink.kube.runtime import (
    DONE,
    Controller,
    Event,
    EventRecorder,
    LeaderElector,
    Result,
    controller_log,
    run_as_leader,
    steady,
    while_leading,
)
from tink.limits import FairSemaphore
from tink.metrics.families import counter, gauge
from tink.workflow.guards import has_ended, hold_of, is_history, paused, protected
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import (
    REASON_CANCEL_TIMEOUT,
    ConditionType,
    InvalidStatusError,
    actions_of,
    condition,
    creation_order,
    deleted,
    parse_timestamp,
    state_of,
    status_of,
    unprepared,
)

log = logging.getLogger(__name__)

# --- History ---


class _Ended(NamedTuple):
    """An ended Workflow: its end (Unix seconds), its place in creation order, and its name."""

    when: float
    created: tuple[str, int, str]
    key: NamespacedName


class WorkflowHistory:
    """Finds the ended Workflows that exceed the history limit: all but the newest `limit` (None: all) of a Hardware."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._by_hardware: dict[NamespacedName, list[_Ended]] = {}
        """Oldest first."""
        self._places: dict[NamespacedName, tuple[NamespacedName, _Ended]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def apply(self, workflow: Raw) -> list[NamespacedName]:
        """Add or update a Workflow, and return those that exceed the limit because of that.

        A held or paused Workflow neither counts nor is returned.
        """
        if self._limit is None:
            return []
        key = NamespacedName.of(workflow)
        self.remove(key)
        hardware = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
        kept = hold_of(workflow) is not None or paused(workflow)
        if not has_ended(workflow) or deleted(workflow) or kept or not isinstance(hardware, str):
            return []
        when = parse_timestamp(status_of(workflow).get("lastTransitioned")) or 0.0
        machine, ended = NamespacedName(key.namespace, hardware), _Ended(when, creation_order(workflow), key)
        row = self._by_hardware.setdefault(machine, [])
        insort(row, ended)
        self._places[key] = machine, ended
        surplus = row[: max(0, len(row) - self._limit)]
        # Only one Workflow exceeds the limit at a time: this one, if it is the oldest, or the one before the limit.
        return [each.key for each in surplus if each is ended or each is surplus[-1]]

    def remove(self, key: NamespacedName) -> None:
        """Remove a deleted Workflow."""
        machine, ended = self._places.pop(key, (None, None))
        if machine is None or ended is None:
            return
        row = self._by_hardware[machine]
        del row[bisect_left(row, ended)]
        if not row:
            del self._by_hardware[machine]

    def is_surplus(self, key: NamespacedName) -> bool:
        """Return True if at least `limit` newer Workflows of the same Hardware have ended."""
        machine, ended = self._places.get(key, (None, None))
        if machine is None or ended is None or self._limit is None:
            return False
        row = self._by_hardware[machine]
        return len(row) - bisect_left(row, ended) > self._limit


# --- Kubernetes Events, for `kubectl describe workflow` ---


COMPONENT = "tinkedge-controller"


def event_for(new: Raw, old: Raw | None) -> Event | None:
    """Return the Event for the change from `old` to `new`, or None if the change needs none.

    `old` is None for objects that existed before this process, which need none either.
    """
    if old is None:
        return None
    status = status_of(new)
    before, after = (None if unprepared(each) else each.get("state") for each in (status_of(old), status))
    prepared = condition(status, ConditionType.PREPARED)
    if after == before:
        waits = prepared.get("status") == ConditionStatus.FALSE
        if waits and prepared != condition(status_of(old), ConditionType.PREPARED):
            return Event(str(prepared.get("reason")), str(prepared.get("message", "")), warning=True)
        gone, was = (condition(each, ConditionType.HARDWARE_GONE) for each in (status, status_of(old)))
        if not gone or gone.get("status") == was.get("status"):
            return None
        if gone.get("status") == ConditionStatus.TRUE:
            return Event(str(gone.get("reason")), str(gone.get("message", "")), warning=True)
        return Event(str(gone.get("reason")), "the Hardware is there again")
    succeeded = condition(status, ConditionType.SUCCEEDED)
    reason, message = str(succeeded.get("reason") or after), str(succeeded.get("message") or "")
    actions = len(actions_of(status))
    match after:
        case WorkflowState.PENDING if before == WorkflowState.SCHEDULED:
            why = condition(status, ConditionType.STARTED)
            text = f"the agent does not take it now: {why.get('reason', '')}: {why.get('message', '')}".rstrip(": ")
            return Event("Returned", text, warning=True)
        case WorkflowState.PENDING:
            return Event("Prepared", f"{actions} actions, waiting for the agent")
        case WorkflowState.SCHEDULED:
            return Event("Scheduled", "given to the agent")
        case WorkflowState.RUNNING:
            return Event("Running", f"the agent has started the first of {actions} actions")
        case WorkflowState.SUCCEEDED:
            return Event("Succeeded", message or f"all {actions} actions have succeeded")
        case WorkflowState.FAILED:
            return Event(reason, message or "the Workflow has failed", warning=True)
        case WorkflowState.CANCELLING:
            return Event("Cancelling", message or "the agent is told to stop")
        case WorkflowState.CANCELED:
            return Event(reason, message or "the Workflow was stopped", reason == REASON_CANCEL_TIMEOUT)
        case _:
            return None


# --- Metrics ---


_UNPREPARED, _INVALID = "Unprepared", "Invalid"


class WorkflowMetrics(Collector):
    """The Workflows by state, and how many came to each. An informer reports every change."""

    def __init__(self) -> None:
        self._states: Counter[str] = Counter({_UNPREPARED: 0, _INVALID: 0, **dict.fromkeys(map(str, WorkflowState), 0)})
        self._transitions: Counter[str] = Counter(dict.fromkeys(map(str, WorkflowState), 0))

    def apply(self, new: Raw, old: Raw | None) -> None:
        """Count a Workflow that is new, or has changed."""
        after, before = _counted_state(new), _counted_state(old) if old is not None else ""
        if after == before:
            return
        self._states[after] += 1
        if before:
            self._states[before] -= 1
            if after in self._transitions:
                self._transitions[after] += 1

    def remove(self, old: Raw) -> None:
        """Count a deleted Workflow."""
        self._states[_counted_state(old)] -= 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for one scrape."""
        states = {(state,): count for state, count in self._states.items()}
        reached = {(state,): count for state, count in self._transitions.items()}
        yield gauge("tinkedge_workflows", "Workflows, by the state in which they are.", ["state"], states)
        yield counter("tinkedge_workflow_transitions", "Workflows that came to a state.", ["to"], reached)


def _counted_state(workflow: Raw) -> str:
    try:
        return str(state_of(workflow) or _UNPREPARED)
    except InvalidStatusError:
        return _INVALID


# --- Controller ---


_LOOKS = 4
"""Maximum number of Workflows that are examined in one turn of the event loop, by all workers together."""

_RENDERS = 2
"""Maximum number of Workflows rendered at once, each in a thread. More would slow the event loop."""

_LOW_PRIORITY_WORKERS = 3
"""Workers that also process low-priority items; the others are reserved for new changes."""

_NEVER_ACCEPTED = (400, 413, 422)
"""Bad Request, Request Entity Too Large, Unprocessable Entity: repeating the same write is useless."""


class _RefusedError(Exception):
    """The API rejects the prepared Workflow for good."""

    def __init__(self, workflow: Raw, error: ApiError) -> None:
        super().__init__(str(error))
        self.workflow = workflow
        """The Workflow after the writes that succeeded."""


class WorkflowController:
    """Reconciles the Workflows of three informers, which the caller runs."""

    def __init__(
        self,
        client: KubeClient,
        *,
        workflows: Informer,
        hardware: Informer,
        templates: Informer,
        settings: ControllerSettings | None = None,
        render: Render | None = None,
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = steady,
        elector: LeaderElector | None = None,
    ) -> None:
        """`clock` returns Unix seconds, `elapsed` monotonic seconds. Without an `elector` this is the only replica."""
        self._client = client
        self._workflows = workflows
        self._hardware = hardware
        self._templates = templates
        self._settings = settings or ControllerSettings()
        if render is None:
            # Imported here, because each command loads the settings of the controller.
            from tink.versions.rendering import render_template

            render = render_template
        self._render: Render = render
        self._clock = clock
        self._elector = elector
        self._ages = TimestampAges(clock, elapsed)
        self._history = WorkflowHistory(self._settings.history_limit)
        self._limited_log = controller_log(log, elapsed)
        self._recorder = EventRecorder(client, COMPONENT, now=clock, clock=elapsed, settle=self._settings.event_settle)
        self.runtime = Controller(
            "Workflow",
            self._reconcile,
            retry_first=self._settings.retry_first,
            retry_longest=self._settings.retry_longest,
            limited_log=self._limited_log,
            workers=self._settings.workers,
            low_priority_workers=_LOW_PRIORITY_WORKERS,
        )
        self._queue = self.runtime.queue
        self._looks = asyncio.Semaphore(_LOOKS)
        self._renders = FairSemaphore(_RENDERS)
        self._following = False
        self._waiting: Index[NamespacedName, ObjectReference] = Index()
        """Workflows, by what they wait for."""
        self._on_hardware: Index[NamespacedName, NamespacedName] = Index()
        """Workflows that have not ended, by their Hardware."""
        self.metrics = WorkflowMetrics()
        workflows.add_event_handler(self._changed, self._gone)
        workflows.add_event_handler(self.metrics.apply, self.metrics.remove)
        hardware.add_event_handler(self._hardware_changed, self._look_at_workflows_of)
        templates.add_event_handler(lambda new, _: self._appeared("Template", new))

    @property
    def remembered(self) -> int:
        """The number of Workflows whose timestamps, and of those whose references, are kept in memory."""
        return len(self._ages) + len(self._waiting) + len(self._on_hardware)

    async def run(self) -> None:
        """Work until cancelled."""
        for informer in (self._hardware, self._templates, self._workflows):
            # A Hardware that has not been listed yet is not missing.
            await informer.wait_for_cache_sync()
        self._following = True
        log.info("controller: %d workflows, %d workers", len(self._workflows), self._settings.workers)
        try:
            await run_as_leader(self._elector, self._lead)
        finally:
            self._queue.shut_down()

    async def _lead(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._settings.events:
                group.create_task(self._recorder.run())
            group.create_task(self.runtime.run())

    # --- event handlers ---------------------------------------------------------------------------------------------

    def _changed(self, new: Raw, old: Raw | None) -> None:
        key = NamespacedName.of(new)
        if old is not None or not is_history(new) or time_to_live(new) is not None:
            self._queue.add(key)
        for surplus in self._history.apply(new):
            self._queue.add(surplus)
        if (event := event_for(new, old)) is not None:
            self._recorder.event(new, WORKFLOW, event)
        self._on_hardware.set(key, () if has_ended(new) else _hardware_of(new))
        try:
            state = state_of(new)
            if state is not None and state.terminal and time_to_live(new) is None and not protected(new):
                self._ages.forget(key)
            else:
                self._ages.observe(key, str(new["metadata"].get("uid")), timestamps(new), live=self._following)
        except InvalidStatusError:
            self._ages.forget(key)  # `_reconcile` logs the error

    def _gone(self, old: Raw) -> None:
        key = NamespacedName.of(old)
        self._queue.add(key)
        self._ages.forget(key)
        self._history.remove(key)
        self._waiting.set(key, ())
        self._on_hardware.set(key, ())

    def _hardware_changed(self, new: Raw, old: Raw | None) -> None:
        self._appeared("Hardware", new)
        if old is None:
            self._look_at_workflows_of(new)  # if it was deleted before, it exists again

    def _look_at_workflows_of(self, hardware: Raw) -> None:
        for key in self._on_hardware.keys(NamespacedName.of(hardware)):
            self._queue.add(key)

    def _appeared(self, kind: str, obj: Raw) -> None:
        for key in self._waiting.keys(ObjectReference(kind, *NamespacedName.of(obj))):
            self._queue.add(key)

    # --- reconciling one --------------------------------------------------------------------------------------------

    async def _reconcile(self, key: NamespacedName) -> Result:
        async with self._looks:
            # Most looks write nothing, and thousands of them must not block the event loop.
            await asyncio.sleep(0)
        workflow = self._workflows.get(*key)
        if workflow is None:
            self._waiting.set(key, ())
            return DONE
        try:
            decision = await self._decide(key, workflow)
        except (InvalidStatusError, UnknownActionError) as error:
            text = "%s; it is ignored until that is corrected"
            self._limited_log.log(logging.ERROR, text, error, owner=key.namespace)
            self._recorder.event(workflow, WORKFLOW, Event("InvalidStatus", str(error), warning=True))
            return DONE
        self._waiting.set(key, decision.waits_for)
        if decision.low_priority and decision.patches and self._queue.lower_priority(key):
            return DONE
        try:
            try:
                await self._write(workflow, decision)
            except _RefusedError as error:
                await self._write(error.workflow, refused(error.workflow, str(error), self._clock()))
            if decision.delete:
                await self._delete(workflow, decision.delete)
        except NotFoundError:
            return DONE  # the Workflow was deleted meanwhile; the informer will report it
        return Result(decision.requeue_after)

    async def _decide(self, key: NamespacedName, workflow: Raw) -> Decision:
        named = references(workflow)
        hardware = template = None
        if named is not None:
            hardware, template = self._hardware.get(*named[0].key), self._templates.get(*named[1].key)
            if hardware is None and to_be_supervised(workflow) and not self._hardware.covers(workflow):
                with suppress(NotFoundError):  # the informer may not list it (`--hardware-selector`)
                    hardware = await self._client.get(HARDWARE, named[0].name, named[0].namespace)
        age, surplus = partial(self._ages.age, key), self._history.is_surplus(key)
        decide = partial(
            reconcile, workflow, hardware, template, self._settings, self._clock(), self._render, age, surplus
        )
        if hardware is None or template is None or not to_be_rendered(workflow):
            return decide()
        async with self._renders.held(key.namespace):
            # Rendering a template may take seconds and must not block the event loop, which the whole process shares.
            return await asyncio.to_thread(decide)

    async def _delete(self, workflow: Raw, why: str) -> None:
        """Delete this version of a Workflow only: a user who has changed it meanwhile may want to keep it."""
        key, metadata = NamespacedName.of(workflow), workflow["metadata"]
        seen = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await while_leading(
            self._elector, partial(self._client.delete, WORKFLOW, key.name, key.namespace, preconditions=seen)
        )
        log.info("Workflow %s: deleted, %s", key, why, extra={"fields": {"workflow": str(key)}})

    async def _write(self, workflow: Raw, decision: Decision) -> None:
        """Apply the patches, each on top of the version that the previous one returned."""
        current = workflow
        for patch in decision.patches:
            before = _shown_state(current)
            key = NamespacedName.of(current)
            body = {
                **patch.body,
                "metadata": {**patch.body["metadata"], "resourceVersion": current["metadata"]["resourceVersion"]},
            }
            try:
                current = await while_leading(
                    self._elector,
                    partial(self._client.patch, WORKFLOW, key.name, key.namespace, body, subresource=patch.subresource),
                )
            except ApiError as error:
                preparing = body.get("status", {}).get("state") == WorkflowState.PENDING
                if preparing and error.status in _NEVER_ACCEPTED:
                    raise _RefusedError(current, error) from error
                raise
            _log(current, patch, before)


def _hardware_of(workflow: Raw) -> tuple[NamespacedName, ...]:
    name = as_mapping(as_mapping(workflow.get("spec")).get("hardwareRef")).get("name")
    return (NamespacedName.of(workflow)._replace(name=name),) if isinstance(name, str) and name else ()


def _log(workflow: Raw, patch: Patch, before: str | None) -> None:
    status, after = status_of(workflow), _shown_state(workflow)
    if patch.subresource != "status":
        return
    if after != before:
        fields = {"workflow": str(NamespacedName.of(workflow)), "state": after or "", "before": before or ""}
        why = _why(status)
        log.info("Workflow %s: %s -> %s%s", fields["workflow"], before or "(new)", after, why, extra={"fields": fields})
    elif not after:
        name = str(NamespacedName.of(workflow))
        log.info("Workflow %s is not prepared yet%s", name, _why(status), extra={"fields": {"workflow": name}})


def _shown_state(workflow: Raw) -> str | None:
    """Return the state in the status, even an invalid one; None before the Workflow is prepared."""
    status = status_of(workflow)
    return None if unprepared(status) else status.get("state")


def _why(status: object) -> str:
    """Return the reason and message of the condition that explains a failure, or an empty string."""
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    for each in conditions:
        if each.get("reason") and each.get("type") in ("Succeeded", "Prepared"):
            return f": {each['reason']}: {each.get('message', '')}"
    return ""
