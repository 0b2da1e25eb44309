"""Decides what the controller does about one Workflow: a pure function of the objects and the time.

`reconcile` looks at a Workflow as it is now and returns the writes that advance it and the time of the next look. It is
level based: it stores nothing between calls, and every deadline is computed from the object's own timestamps, so a
restart or a second controller changes nothing. The caller provides the age of a timestamp (`TimestampAges`), because
clocks differ and jump; without that, `now` decides.

    no state yet     wait for Hardware and Template, render, become Pending; or Failed, with the error
    Pending          the same again if the spec changes, which is possible until the Workflow is dispatched
    Scheduled, Running, Cancelling   enforce the four timeouts
    not ended        restore what was removed by hand: the finalizer, the actions of a Pending Workflow
    deleted          Pending -> Canceled, Scheduled and Running -> Cancelling
    terminal         remove the finalizer after some seconds, or when the Workflow is deleted; delete the Workflow when
                     its time to live is over, or when there are enough newer ones
    without Hardware the Hardware was deleted after the preparation: set the condition HardwareGone; a Workflow that an
                     agent has fails when that lasts
    held             not begun: only delete or cancel; the condition Started has the reason
    paused           nothing: the Workflow continues in another API
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import (
    API_VERSION,
    FINALIZER,
    Action,
    ActionState,
    ConditionStatus,
    Raw,
    WorkflowSpec,
    WorkflowState,
    as_mapping,
)
from tink.controller.settings import ControllerSettings
from tink.exec_limits import unstartable
from tink.kube.objects import NamespacedName, ObjectReference
from tink.template import RenderedTemplate, TemplateError
from tink.timestamps import rfc3339
from tink.workflow import events, machine
from tink.workflow.guards import held, hold_of, paused, protected
from tink.workflow.status import (
    REASON_HELD,
    TO_RELEASE,
    ConditionType,
    Status,
    action_state,
    actions_of,
    condition,
    deleted,
    name_of,
    outdated,
    parse_timestamp,
    set_condition,
    state_of,
    status_of,
    status_patch,
    summary,
    timestamp,
)
from tink.workflow.table import Author

# --- Ages ---


Stamp = tuple[str, float]
"""The path of a field and its time in Unix seconds."""


class _Observation(NamedTuple):
    """A timestamp, its age when it was first seen, and the monotonic time of that."""

    stamp: float
    age: float
    observed_at: float


@dataclass(slots=True)
class _Workflow:
    uid: str
    observed_at: float
    observed: dict[str, _Observation] = field(default_factory=dict)


class TimestampAges:
    """The ages of timestamps of Workflows that have not ended. `wall` and `steady` are clocks, in seconds.

    Every deadline counts from a timestamp in the Workflow, so that it survives a restart of the controller. But
    timestamps come from the clocks of several hosts or were edited by hand, and clocks are adjusted: a clock that jumps
    ahead by a day must not end every running Workflow, and one that is set back must not keep them running without end.

    So the wall clock is read once for each timestamp, when it is first seen; from then on its age grows with the
    monotonic clock. A timestamp in the future has age 0 when it is first seen. A timestamp from a change that this
    process observed is not older than the previous version of the object, however far the writer's clock is behind.
    """

    def __init__(self, wall: Callable[[], float], steady: Callable[[], float]) -> None:
        self._wall = wall
        self._steady = steady
        self._workflows: dict[NamespacedName, _Workflow] = {}

    def __len__(self) -> int:
        return len(self._workflows)

    def observe(self, key: NamespacedName, uid: str, stamps: Iterable[Stamp], *, live: bool) -> None:
        """Record the timestamps of one version of a Workflow. `live`: it arrived as a change, not in the first list."""
        now = self._steady()
        known = self._workflows.get(key)
        if known is None or known.uid != uid:
            known, longest = _Workflow(uid, now), 0.0
        else:
            longest = now - known.observed_at
        observed = {}
        for name, stamp in stamps:
            observation = known.observed.get(name)
            if observation is None or observation.stamp != stamp:
                age = self._by_the_wall_clock(stamp)
                observation = _Observation(stamp, min(age, longest) if live else age, now)
            observed[name] = observation
        known.observed, known.observed_at = observed, now
        self._workflows[key] = known

    def age(self, key: NamespacedName, name: str, stamp: float) -> float:
        """Return the seconds since `stamp`, the value of the field `name`; at least 0."""
        known = self._workflows.get(key)
        observation = known.observed.get(name) if known is not None else None
        if observation is None or observation.stamp != stamp:
            return self._by_the_wall_clock(stamp)
        return observation.age + self._steady() - observation.observed_at

    def forget(self, key: NamespacedName) -> None:
        """Forget a Workflow that has ended or was deleted."""
        self._workflows.pop(key, None)

    def _by_the_wall_clock(self, stamp: float) -> float:
        return max(0.0, self._wall() - stamp)


# --- Decisions ---


Render = Callable[[Raw, Raw, Mapping[str, str]], RenderedTemplate]
"""`render(template, hardware, params)` returns the rendered Template. Raises TemplateError."""

REASON_HARDWARE_NOT_FOUND = "HardwareNotFound"
REASON_TEMPLATE_NOT_FOUND = "TemplateNotFound"
REASON_TEMPLATE_ERROR = "TemplateError"
REASON_INVALID_WORKFLOW = "InvalidWorkflow"
REASON_REFUSED = "RefusedByAPI"
REASON_FIELDS_IGNORED = "FieldsIgnored"
_MAX_MESSAGE = 1024

_GONE_SINCE = f"status.conditions[{ConditionType.HARDWARE_GONE}].lastTransitionTime"

MAX_RENDERED_BYTES = 1_000_000
"""Maximum size of all rendered actions as JSON: the API stores 1.5 MiB, and the status must have room to grow."""
MAX_OBJECT_BYTES = 1_400_000
"""Maximum size of a Workflow including what its actions will add."""
ACTION_GROWTH_BYTES = 800
"""Bytes that an action adds to what was rendered: id, state, times, a reason, and the managers of its fields."""

Age = Callable[[str, float], float]
"""`age(field, timestamp)` returns the age in seconds, at least 0; `field` is the path of the timestamp."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch for the Workflow or, with `subresource`, for its status."""

    body: Raw
    subresource: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a Workflow.

    `patches` are applied in order, each on top of the version that the previous one returned. `requeue_after` is in
    seconds; None: look again when something changes. `waits_for` are missing objects; their creation is such a change.
    `low_priority`: the patches only record that nothing can be done, so the work for other Workflows comes first.
    """

    patches: tuple[Patch, ...] = ()
    requeue_after: float | None = None
    waits_for: tuple[ObjectReference, ...] = ()
    low_priority: bool = False
    delete: str = ""
    """Why this version of the Workflow must be deleted; empty: it stays."""


NOTHING = Decision()


def references(workflow: Raw) -> tuple[ObjectReference, ObjectReference] | None:
    """Return the Hardware and the Template that a Workflow names, or None if its spec is invalid."""
    try:
        spec = _spec(workflow)
    except ValidationError:
        return None
    namespace = workflow["metadata"].get("namespace", "")
    return (
        ObjectReference("Hardware", namespace, spec.hardware_ref.name),
        ObjectReference("Template", namespace, spec.template_ref.name),
    )


def reconcile(
    workflow: Raw,
    hardware: Raw | None,
    template: Raw | None,
    settings: ControllerSettings,
    now: float,
    render: Render,
    age: Age | None = None,
    surplus: bool = False,
) -> Decision:
    """Decide about `workflow` at `now` (Unix seconds), given the objects that it names (None: missing).

    `surplus`: the Workflow has ended and exceeds the history limit. Raises InvalidStatusError for an invalid status.
    """

    def by_the_wall_clock(_: str, stamp: float) -> float:
        return max(0.0, now - stamp)

    context = _Context(settings, now, render, age or by_the_wall_clock, surplus)
    if paused(workflow):
        return NOTHING
    state = state_of(workflow)
    if held(workflow) and not deleted(workflow):
        status: Status = dict(status_of(workflow))
        message = f"{hold_of(workflow) or 'held'}{TO_RELEASE}kubectl annotate -n {workflow['metadata']['namespace']}"
        message += f" workflow {workflow['metadata']['name']} {HOLD_ANNOTATION}-"
        held_by = message[: machine.MAX_MESSAGE]
        set_condition(status, ConditionType.STARTED, ConditionStatus.FALSE, now, REASON_HELD, held_by)
        status["message"] = summary(status)
        return Decision(_status(workflow, status if status != status_of(workflow) else None))
    if state is None:
        if deleted(workflow):
            return _release(workflow)  # never prepared, so there is nothing to cancel
        return _prepare(workflow, hardware, template, context)
    if state.terminal:
        return _ended(workflow, context)
    if deleted(workflow):
        if state is not WorkflowState.CANCELLING:
            return _apply(workflow, events.CancelRequested("the Workflow was deleted"), now)
        noticed = _apply(workflow, events.CancelRequested("the Workflow was deleted while Cancelling"), now)
    elif state is WorkflowState.CANCELLING:
        noticed = _apply(workflow, events.CancelRequested("status.state was set to Cancelling"), now)
    elif to_be_rendered(workflow):
        return _prepare(_unprepared(workflow), hardware, template, context, again=True)
    elif condition(status_of(workflow), ConditionType.STARTED).get("reason") == REASON_HELD:
        status = dict(status_of(workflow))
        set_condition(status, ConditionType.STARTED, ConditionStatus.FALSE, now)
        status["message"] = summary(status)
        noticed = Decision(_status(workflow, status))
    else:
        noticed = NOTHING
    if not noticed.patches:
        noticed = _look_for_hardware(workflow, state, hardware, context)
    outcome = noticed if noticed.patches else _supervise(workflow, state, context)
    if outcome.patches or deleted(workflow):
        return outcome
    # The finalizer may have been removed by hand; without it a deletion would not stop the agent.
    return replace(outcome, patches=(*_finalizers(workflow, present=True), *_summarised(workflow)))


def to_be_rendered(workflow: Raw) -> bool:
    """Return True if `reconcile` renders the Workflow when its references exist, which may take seconds.

    Raises InvalidStatusError.
    """
    state = state_of(workflow)
    if deleted(workflow) or state not in (None, WorkflowState.PENDING) or paused(workflow) or held(workflow):
        return False
    return state is None or outdated(workflow) or not actions_of(status_of(workflow))


def to_be_supervised(workflow: Raw) -> bool:
    """Return True if the Workflow was prepared and has not ended. Raises InvalidStatusError."""
    state = state_of(workflow)
    return state is not None and not state.terminal and not paused(workflow) and not to_be_rendered(workflow)


def timestamps(workflow: Raw) -> Iterator[tuple[str, float]]:
    """Yield the timestamps that deadlines may count from, each with its path. Raises InvalidStatusError."""
    status = status_of(workflow)
    found = [("metadata.creationTimestamp", workflow["metadata"].get("creationTimestamp"))]
    found += [(f"status.{field}", status.get(field)) for field in ("lastTransitioned", "startedAt")]
    found += [(_GONE_SINCE, condition(status, ConditionType.HARDWARE_GONE).get("lastTransitionTime"))]
    running = (action for action in actions_of(status) if action_state(action) is ActionState.RUNNING)
    found += [(_started_at(action), action.get("startedAt")) for action in running]
    for path, value in found:
        stamp = parse_timestamp(value)
        if stamp is not None:
            yield path, stamp


def refused(workflow: Raw, why: str, now: float) -> Decision:
    """Return the decision for a prepared Workflow that the API rejects for good."""
    message = f"Workflow {name_of(workflow)}: the API refuses its rendered actions: {why}"
    return _give_up(_unprepared(workflow), REASON_REFUSED, message, now)


@dataclass(frozen=True, slots=True)
class _Context:
    """The arguments that do not depend on the Workflow."""

    settings: ControllerSettings
    now: float
    render: Render
    age: Age
    surplus: bool


def _unprepared(workflow: Raw) -> Raw:
    """Return the Workflow as if it were not prepared, with its conditions. The patch then replaces the actions."""
    kept = ("id", "conditions", "creationVersion", "lastTransitioned", "boot")
    return {**workflow, "status": {key: value for key, value in status_of(workflow).items() if key in kept}}


def _ended(workflow: Raw, context: _Context) -> Decision:
    """Remove the finalizer of an ended Workflow, or delete the Workflow if it is no longer wanted."""
    summarised = () if status_of(workflow).get("message") else _summarised(workflow)
    ttl, age = time_to_live(workflow), _age(workflow, status_of(workflow), "status.lastTransitioned", context)
    if protected(workflow) and not deleted(workflow) and not context.surplus:
        # This write is not urgent, and many Workflows may be about to end: their ends come first.
        left = min(context.settings.release_after, context.settings.release_after if ttl is None else ttl) - age
        if left > 0:
            return Decision(summarised, requeue_after=left)
    outcome = _release(workflow, *summarised)
    if outcome.patches or deleted(workflow) or hold_of(workflow) is not None:
        return outcome
    if context.surplus:
        limit = context.settings.history_limit
        return Decision(delete=f"its Hardware has {limit} newer ones that have ended (--workflow-history-limit)")
    if ttl is None:
        return outcome
    if ttl > age:
        return Decision(requeue_after=ttl - age)
    return Decision(delete=f"it ended {ttl} s ago (spec.ttlSecondsAfterFinished)")


def time_to_live(workflow: Raw) -> int | None:
    """Return the seconds that a Workflow is kept after its end; None: until it is deleted."""
    ttl = as_mapping(workflow.get("spec")).get("ttlSecondsAfterFinished")
    return ttl if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl >= 0 else None


# --- Preparing ----------------------------------------------------------------------------------------------------


def _prepare(
    workflow: Raw, hardware: Raw | None, template: Raw | None, context: _Context, *, again: bool = False
) -> Decision:
    """Render a Workflow. `again`: it was Pending before, and its spec has changed since."""
    now = context.now
    try:
        spec = _spec(workflow)
    except ValidationError as error:
        problems = "; ".join(f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _give_up(workflow, REASON_INVALID_WORKFLOW, f"Workflow {name_of(workflow)}: {problems}", now)
    if hardware is None or template is None:
        return _await_references(workflow, hardware, template, context, again=again)
    try:
        rendered = context.render(template, hardware, spec.template_params or {})
    except TemplateError as error:
        return _give_up(workflow, REASON_TEMPLATE_ERROR, f"Template {name_of(template)}: {error}", now)
    actions = rendered.actions
    problem = unusable(workflow, actions)
    if problem is not None:
        return _give_up(workflow, REASON_TEMPLATE_ERROR, f"Template {name_of(template)}: {problem}", now)
    prepared = events.Prepared(
        tuple(
            events.PreparedAction(action_id(workflow["metadata"]["uid"], index), action)
            for index, action in enumerate(actions)
        )
    )
    bare = _unprepared(workflow)
    status = machine.apply(bare, prepared, now, Author.CONTROLLER)
    if status is not None and "generation" in workflow["metadata"]:
        status["observedGeneration"] = workflow["metadata"]["generation"]
    if status is not None and rendered.timeout:
        status["timeout"] = rendered.timeout
    if status is not None and rendered.ignored:
        message = f"no effect: {'; '.join(rendered.ignored)}"[:_MAX_MESSAGE]
        set_condition(status, ConditionType.PREPARED, ConditionStatus.TRUE, now, REASON_FIELDS_IGNORED, message)
    # The finalizer first: once an agent may run the Workflow, it must not disappear.
    patches = (*_finalizers(workflow, present=True), *_status(bare, status))
    return Decision(patches)


def action_id(workflow_uid: str, index: int) -> str:
    """Return the id of an action: reproducible, and unique among the actions of all Workflows."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{API_VERSION}/workflows/{workflow_uid}/actions/{index}"))


def _await_references(
    workflow: Raw, hardware: Raw | None, template: Raw | None, context: _Context, *, again: bool
) -> Decision:
    named = references(workflow)
    found = {"Hardware": hardware, "Template": template}
    missing = tuple(reference for reference in named or () if found[reference.kind] is None)
    reason = REASON_HARDWARE_NOT_FOUND if hardware is None else REASON_TEMPLATE_NOT_FOUND
    message = f"Workflow {name_of(workflow)}: " + "; ".join(
        f"spec.{each.kind.lower()}Ref.name: there is no {each}" for each in missing
    )
    noted = condition(status_of(workflow), ConditionType.PREPARED).get("status") == ConditionStatus.FALSE
    if not again:
        waited = _age(workflow, workflow["metadata"], "metadata.creationTimestamp", context)
    elif noted:
        waited = _age(workflow, status_of(workflow), "status.lastTransitioned", context)
    else:
        waited = 0.0  # the spec of an old Workflow has just changed to name a missing object
    left = context.settings.reference_timeout - waited
    if left <= 0:
        message += f" (waited {context.settings.reference_timeout:g} s; create the Workflow again when it is there)"
        return replace(_give_up(workflow, reason, message, context.now), low_priority=True)
    if not again and waited < context.settings.reference_note_after and not noted:
        # The next object of the same `kubectl apply` may be the missing one.
        return Decision(requeue_after=min(left, context.settings.reference_note_after - waited), waits_for=missing)
    status: Status = dict(status_of(workflow))
    set_condition(status, ConditionType.PREPARED, ConditionStatus.FALSE, context.now, reason, message)
    if not condition(status, ConditionType.STARTED):
        set_condition(status, ConditionType.STARTED, ConditionStatus.FALSE, context.now)
        set_condition(status, ConditionType.SUCCEEDED, ConditionStatus.UNKNOWN, context.now)
    if again and not noted:
        status["lastTransitioned"] = timestamp(context.now)
    changed = status != status_of(workflow)
    if changed:
        status["state"] = WorkflowState.PENDING.value
        status["message"] = summary(status)
    return Decision(
        _status(workflow, status if changed else None), requeue_after=left, waits_for=missing, low_priority=True
    )


def unusable(workflow: Raw, actions: list[Raw]) -> str | None:
    """Return why these rendered actions can't be run or stored, or None."""
    if not actions:
        return "spec.actions: there are no actions to run"
    for index, action in enumerate(actions):
        try:
            Action.model_validate(action)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            return f"spec.actions[{index}], rendered: {problems}"
        if excess := unstartable(action, f"spec.actions[{index}]"):
            return f"{excess[0]} (rendered)"
        if action.get("reboots") and index + 1 < len(actions):
            return (
                f"spec.actions[{index}].reboots: only the last action may restart the machine, because nobody is left "
                f"to run spec.actions[{index + 1}]: make it the last one, or take reboots away"
            )
    size = len(orjson.dumps(actions))
    if size > MAX_RENDERED_BYTES:
        return f"the rendered actions have {size} bytes; the most that a Workflow can hold is {MAX_RENDERED_BYTES}"
    spec = len(orjson.dumps(workflow.get("spec")))
    whole = spec + size + ACTION_GROWTH_BYTES * len(actions)
    if whole > MAX_OBJECT_BYTES:
        return (
            f"the Workflow would have {whole} bytes, and the API stores {MAX_OBJECT_BYTES}: {size} of {len(actions)} "
            f"rendered actions, {ACTION_GROWTH_BYTES} for the state of each, and {spec} of its spec"
        )
    return None


def _give_up(workflow: Raw, reason: str, message: str, now: float) -> Decision:
    status: Status = dict(status_of(workflow))
    if not condition(status, ConditionType.STARTED):
        # The default of the condition (CRD refactor proposal, "Workflow Started condition").
        set_condition(status, ConditionType.STARTED, ConditionStatus.FALSE, now)
    return _apply(workflow, events.PreparationFailed(reason, message), now, {**workflow, "status": status})


# --- Supervising --------------------------------------------------------------------------------------------------


def _supervise(workflow: Raw, state: WorkflowState, context: _Context) -> Decision:
    """Enforce the deadline that has passed, or return the time until the next one."""
    final = (ActionState.SUCCEEDED, ActionState.FAILED)
    if state is WorkflowState.RUNNING and all(action_state(each) in final for each in actions_of(status_of(workflow))):
        return _apply(workflow, events.NothingLeft(), context.now)
    soonest: float | None = None
    for left, event in _deadlines(workflow, state, context):
        if left <= 0:
            return _apply(workflow, event, context.now)
        soonest = left if soonest is None else min(soonest, left)
    return Decision(requeue_after=soonest)


def _look_for_hardware(workflow: Raw, state: WorkflowState, hardware: Raw | None, context: _Context) -> Decision:
    """Record on a prepared Workflow that its Hardware was deleted, or exists again."""
    if hardware is not None:
        return _apply(workflow, events.HardwareBack(), context.now)
    named = references(workflow)
    if named is None:
        return NOTHING
    since = _gone_since(workflow) if _is_without_hardware(workflow) else context.now
    match state:
        case WorkflowState.PENDING:
            then = "apply it again, or delete this Workflow"
        case WorkflowState.CANCELLING:
            then = "nobody hears from its agent whether it has stopped"
        case _ if since is None:  # the CRDs of an older release drop the time, so there is no deadline
            then = "apply it again"
        case _:
            until = rfc3339(since + context.settings.hardware_gone_timeout)
            then = f"apply it again before {until}, or the Workflow fails"
    return _apply(workflow, events.HardwareMissing(f"{named[0]} is gone: {then}"), context.now)


def _gone_since(workflow: Raw) -> float | None:
    gone = condition(status_of(workflow), ConditionType.HARDWARE_GONE)
    return parse_timestamp(gone.get("lastTransitionTime"))


def _is_without_hardware(workflow: Raw) -> bool:
    return condition(status_of(workflow), ConditionType.HARDWARE_GONE).get("status") == ConditionStatus.TRUE


def _deadlines(workflow: Raw, state: WorkflowState, context: _Context) -> Iterator[tuple[float, events.Event]]:
    """Yield the seconds left to each deadline, and its event."""
    status, settings = status_of(workflow), context.settings
    is_timed = _is_without_hardware(workflow) and _gone_since(workflow) is not None
    named = references(workflow) if is_timed else None
    if named is not None and state in (WorkflowState.SCHEDULED, WorkflowState.RUNNING):
        gone, timeout = condition(status, ConditionType.HARDWARE_GONE), settings.hardware_gone_timeout
        message = f"{named[0]} was deleted while the agent had the Workflow, and was not there again within {timeout:g}"
        yield timeout - _age(workflow, gone, _GONE_SINCE, context), events.HardwareTimedOut(f"{message} s")
    if state is WorkflowState.SCHEDULED and named is None:
        timeout = settings.scheduled_timeout
        yield timeout - _age(workflow, status, "status.lastTransitioned", context), events.StartTimedOut(timeout)
    elif state is WorkflowState.CANCELLING:
        timeout = settings.cancelling_timeout
        yield timeout - _age(workflow, status, "status.lastTransitioned", context), events.CancelTimedOut(timeout)
    elif state is WorkflowState.RUNNING:
        # The action first: it is the more precise reason if both have passed.
        for action in actions_of(status):
            own = _seconds(as_mapping(action.get("rendered")).get("timeout"))
            seconds = settings.action_timeout if own is None else own
            if seconds is not None and action_state(action) is ActionState.RUNNING:
                left = seconds - _age(workflow, action, _started_at(action), context)
                yield left, events.ActionTimedOut(str(action.get("id")), seconds)
        limit = _seconds(workflow.get("spec", {}).get("timeout")) or _seconds(status.get("timeout"))
        if limit is not None:
            yield limit - _age(workflow, status, "status.startedAt", context), events.WorkflowTimedOut(limit)


def _seconds(value: object) -> float | None:
    """Return a timeout of a spec; None for 0, which means no timeout."""
    return float(value) if isinstance(value, int) and value > 0 else None


def _age(workflow: Raw, holder: Mapping[str, Any], path: str, context: _Context) -> float:
    """Return the seconds since the timestamp at `path` in `holder`; if it was removed, since the object's creation."""
    stamp = parse_timestamp(holder.get(path.rpartition(".")[2]))
    if stamp is None:
        path = "metadata.creationTimestamp"
        stamp = parse_timestamp(workflow["metadata"].get("creationTimestamp"))
    return context.age(path, stamp) if stamp is not None else 0.0


def _started_at(action: Mapping[str, Any]) -> str:
    return f"status.actions[{action.get('id')}].startedAt"


# --- Writes -------------------------------------------------------------------------------------------------------


def _apply(workflow: Raw, event: events.Event, now: float, seen_as: Raw | None = None) -> Decision:
    """Return the patches for `event` if it changes the status. In a terminal state they remove the finalizer."""
    status = machine.apply(seen_as or workflow, event, now, Author.CONTROLLER)
    if status is None:
        return NOTHING
    patches = _status(workflow, status)
    if WorkflowState(status["state"]).terminal:
        # Last: a deleted object disappears without the finalizer, and its end state would never be visible.
        patches += _finalizers(workflow, present=False)
    return Decision(patches)


def _release(workflow: Raw, *before: Patch) -> Decision:
    return Decision((*before, *_finalizers(workflow, present=False)))


def _summarised(workflow: Raw) -> tuple[Patch, ...]:
    """Add `message` and `creationVersion` to a status of an older release, or one that was edited by hand."""
    status: Status = dict(status_of(workflow))
    status["message"] = summary(status)
    if state_of(workflow) is WorkflowState.PENDING:
        status.setdefault("creationVersion", workflow["metadata"]["resourceVersion"])
    return _status(workflow, status if status != status_of(workflow) else None)


def _status(workflow: Raw, status: Status | None) -> tuple[Patch, ...]:
    """Return the patch for a status. The first non-terminal one records the Workflow's version (`creation_order`)."""
    if status is None:
        return ()
    if not WorkflowState(status.get("state") or WorkflowState.PENDING).terminal:
        status = {"creationVersion": workflow["metadata"]["resourceVersion"], **status}
    return (Patch(status_patch(workflow, status), "status"),)


def _finalizers(workflow: Raw, *, present: bool) -> tuple[Patch, ...]:
    metadata = workflow["metadata"]
    finalizers = metadata.get("finalizers") or []
    if protected(workflow) is present:
        return ()
    wanted = [*finalizers, FINALIZER] if present else [f for f in finalizers if f != FINALIZER]
    return (Patch({"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": wanted}}),)


def _spec(workflow: Raw) -> WorkflowSpec:
    """Parse the spec. Raises ValidationError."""
    return WorkflowSpec.model_validate(workflow.get("spec") or {})
