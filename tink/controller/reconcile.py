"""What the controller does about one Workflow: a pure function of the objects and the time.

`reconcile` looks at a Workflow as it is now and returns the writes that bring it forward and when to look again.
It is level based: nothing is remembered between calls, every deadline is computed from the object's own timestamps, so
a restart of the controller (or a second one) changes nothing.

    no state yet     wait for Hardware and Template, render, become Pending; or Failed, with what is wrong
    Pending          the same again if the spec was changed, which it may be until the Workflow is dispatched
    Scheduled, Running, Cancelling   enforce the four timeouts
    deleted          Pending -> Canceled, Scheduled and Running -> Cancelling
    terminal         give up the finalizer, so that a deletion can go through
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from tink.api.v1alpha2 import (
    API_VERSION,
    FINALIZER,
    Action,
    ActionState,
    ConditionStatus,
    Raw,
    WorkflowSpec,
    WorkflowState,
)
from tink.controller.settings import ControllerSettings
from tink.template.errors import TemplateError
from tink.workflow import machine
from tink.workflow.machine import Author
from tink.workflow.status import (
    ConditionType,
    Status,
    action_state,
    actions_of,
    deleted,
    name_of,
    outdated,
    parse_timestamp,
    set_condition,
    state_of,
    status_of,
    status_patch,
)

Render = Callable[[Raw, Raw, Mapping[str, str]], list[Raw]]
"""`render(template, hardware, params)`: the rendered actions. Raises TemplateError."""

REASON_HARDWARE_NOT_FOUND = "HardwareNotFound"
REASON_TEMPLATE_NOT_FOUND = "TemplateNotFound"
REASON_TEMPLATE_ERROR = "TemplateError"
REASON_INVALID_WORKFLOW = "InvalidWorkflow"

MAX_RENDERED_BYTES = 1_000_000
"""Of all rendered actions as JSON: the API stores objects of up to 1.5 MiB, and the status needs room to grow."""


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that a Workflow names: `kind` is Hardware or Template."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch for the Workflow or, with `subresource`, for its status."""

    body: Raw
    subresource: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to do. `patches` are applied in order, each on top of the version that the one before made, the first on
    the version that was looked at. `requeue_after` is in seconds; None: look again when something changes.
    `waits_for` are the objects whose appearance is such a change."""

    patches: tuple[Patch, ...] = ()
    requeue_after: float | None = None
    waits_for: tuple[Reference, ...] = ()


NOTHING = Outcome()


def references(workflow: Raw) -> tuple[Reference, Reference] | None:
    """The Hardware and the Template that a Workflow names; None if its spec can't be read."""
    try:
        spec = _spec(workflow)
    except ValidationError:
        return None
    namespace = workflow["metadata"].get("namespace", "")
    return (
        Reference("Hardware", namespace, spec.hardware_ref.name),
        Reference("Template", namespace, spec.template_ref.name),
    )


def reconcile(
    workflow: Raw,
    hardware: Raw | None,
    template: Raw | None,
    settings: ControllerSettings,
    now: float,
    render: Render,
) -> Outcome:
    """What to do about `workflow` at `now` (seconds since the epoch), given the objects it names (None: missing).

    Raises InvalidStatusError for a status that no component of this program wrote.
    """
    state = state_of(workflow)
    if state is None:
        if deleted(workflow):
            return _release(workflow)  # never prepared: there is nothing to cancel
        return _prepare(workflow, hardware, template, settings, now, render)
    if state.terminal:
        return _release(workflow)
    if deleted(workflow):
        if state is not WorkflowState.CANCELLING:
            return _apply(workflow, machine.CancelRequested("the Workflow was deleted"), now)
        noticed = _apply(workflow, machine.CancelRequested("the Workflow was deleted while Cancelling"), now)
    elif state is WorkflowState.CANCELLING:
        noticed = _apply(workflow, machine.CancelRequested("status.state was set to Cancelling"), now)
    elif state is WorkflowState.PENDING and outdated(workflow):
        # As if nothing had been prepared but the conditions; the merge patch puts the new actions in place of the old.
        conditions = {key: value for key, value in status_of(workflow).items() if key == "conditions"}
        return _prepare({**workflow, "status": conditions}, hardware, template, settings, now, render)
    else:
        noticed = NOTHING
    return noticed if noticed.patches else _supervise(workflow, state, settings, now)


# --- Preparing ----------------------------------------------------------------------------------------------------


def _prepare(
    workflow: Raw,
    hardware: Raw | None,
    template: Raw | None,
    settings: ControllerSettings,
    now: float,
    render: Render,
) -> Outcome:
    try:
        spec = _spec(workflow)
    except ValidationError as error:
        problems = "; ".join(f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _give_up(workflow, REASON_INVALID_WORKFLOW, f"Workflow {name_of(workflow)}: {problems}", now)
    if hardware is None or template is None:
        return _await_references(workflow, hardware, template, settings, now)
    try:
        actions = render(template, hardware, spec.template_params or {})
    except TemplateError as error:
        return _give_up(workflow, REASON_TEMPLATE_ERROR, f"Template {name_of(template)}: {error}", now)
    problem = _unusable(actions)
    if problem is not None:
        return _give_up(workflow, REASON_TEMPLATE_ERROR, f"Template {name_of(template)}: {problem}", now)
    prepared = machine.Prepared(
        tuple(
            machine.PreparedAction(action_id(workflow["metadata"]["uid"], index), action)
            for index, action in enumerate(actions)
        )
    )
    status = machine.apply(workflow, prepared, now, Author.CONTROLLER)
    if status is not None and "generation" in workflow["metadata"]:
        status["observedGeneration"] = workflow["metadata"]["generation"]
    # The finalizer first: from the moment that an agent may run it, the Workflow must not vanish.
    patches = (*_finalizers(workflow, present=True), *_status(workflow, status))
    return Outcome(patches)


def action_id(workflow_uid: str, index: int) -> str:
    """The id of an action: the same each time it is computed, and unique among the actions of all Workflows."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{API_VERSION}/workflows/{workflow_uid}/actions/{index}"))


def _await_references(
    workflow: Raw, hardware: Raw | None, template: Raw | None, settings: ControllerSettings, now: float
) -> Outcome:
    named = references(workflow)
    found = {"Hardware": hardware, "Template": template}
    missing = tuple(reference for reference in named or () if found[reference.kind] is None)
    reason = REASON_HARDWARE_NOT_FOUND if hardware is None else REASON_TEMPLATE_NOT_FOUND
    message = f"Workflow {name_of(workflow)}: " + "; ".join(
        f"spec.{r.kind.lower()}Ref.name: there is no {r.kind} {r.namespace}/{r.name}" for r in missing
    )
    deadline = _created(workflow, now) + settings.reference_timeout
    if now >= deadline:
        message += f" (waited {settings.reference_timeout:g} s; create the Workflow again when it is there)"
        return _give_up(workflow, reason, message, now)
    status: Status = dict(status_of(workflow))
    set_condition(status, ConditionType.PREPARED, ConditionStatus.FALSE, reason, message)
    changed = status if status != status_of(workflow) else None
    return Outcome(_status(workflow, changed), requeue_after=deadline - now, waits_for=missing)


def _unusable(actions: list[Raw]) -> str | None:
    if not actions:
        return "spec.actions: there are no actions to run"
    for index, action in enumerate(actions):
        try:
            Action.model_validate(action)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            return f"spec.actions[{index}], rendered: {problems}"
    size = len(orjson.dumps(actions))
    if size > MAX_RENDERED_BYTES:
        return f"the rendered actions have {size} bytes; the most that a Workflow can hold is {MAX_RENDERED_BYTES}"
    return None


def _give_up(workflow: Raw, reason: str, message: str, now: float) -> Outcome:
    return _apply(workflow, machine.PreparationFailed(reason, message), now)


# --- Supervising --------------------------------------------------------------------------------------------------


def _supervise(workflow: Raw, state: WorkflowState, settings: ControllerSettings, now: float) -> Outcome:
    """Enforce the deadline that is over, or say how long it is to the next."""
    soonest: float | None = None
    for deadline, event in _deadlines(workflow, state, settings, now):
        if now >= deadline:
            return _apply(workflow, event, now)
        soonest = deadline if soonest is None else min(soonest, deadline)
    return Outcome(requeue_after=None if soonest is None else soonest - now)


def _deadlines(
    workflow: Raw, state: WorkflowState, settings: ControllerSettings, now: float
) -> Iterator[tuple[float, machine.Event]]:
    status = status_of(workflow)
    if state is WorkflowState.SCHEDULED:
        since = _since(workflow, status, "lastTransitioned", now)
        yield since + settings.scheduled_timeout, machine.StartTimedOut(settings.scheduled_timeout)
    elif state is WorkflowState.CANCELLING:
        since = _since(workflow, status, "lastTransitioned", now)
        yield since + settings.cancelling_timeout, machine.CancelTimedOut(settings.cancelling_timeout)
    elif state is WorkflowState.RUNNING:
        # The action first: it is the more telling reason when both are over.
        for action in actions_of(status):
            seconds = _action_timeout(action, settings)
            if seconds is not None and action_state(action) is ActionState.RUNNING:
                since = _since(workflow, action, "startedAt", now)
                yield since + seconds, machine.ActionTimedOut(str(action.get("id")), seconds)
        timeout = _seconds(workflow.get("spec", {}).get("timeout"))
        if timeout is not None:
            yield _since(workflow, status, "startedAt", now) + timeout, machine.WorkflowTimedOut(timeout)


def _action_timeout(action: Mapping[str, Any], settings: ControllerSettings) -> float | None:
    rendered = action.get("rendered")
    own = _seconds(rendered.get("timeout")) if isinstance(rendered, dict) else None
    return own if own is not None else settings.action_timeout


def _seconds(value: object) -> float | None:
    """A timeout of a spec: None for 0, which means none."""
    return float(value) if isinstance(value, int) and value > 0 else None


def _since(workflow: Raw, holder: Mapping[str, Any], field: str, now: float) -> float:
    """A timestamp of the status; the object's creation where somebody took it away, so that deadlines still come."""
    value = parse_timestamp(holder.get(field))
    return value if value is not None else _created(workflow, now)


def _created(workflow: Raw, now: float) -> float:
    value = parse_timestamp(workflow["metadata"].get("creationTimestamp"))
    return value if value is not None else now


# --- Writes -------------------------------------------------------------------------------------------------------


def _apply(workflow: Raw, event: machine.Event, now: float) -> Outcome:
    """Write what `event` makes of the status; in an end state the finalizer goes with it."""
    status = machine.apply(workflow, event, now, Author.CONTROLLER)
    if status is None:
        return NOTHING
    patches = _status(workflow, status)
    if WorkflowState(status["state"]).terminal:
        # Last: without it, an object that is being deleted is gone, and nobody could have seen the end state.
        patches += _finalizers(workflow, present=False)
    return Outcome(patches)


def _release(workflow: Raw) -> Outcome:
    return Outcome(_finalizers(workflow, present=False))


def _status(workflow: Raw, status: Status | None) -> tuple[Patch, ...]:
    return () if status is None else (Patch(status_patch(workflow, status), "status"),)


def _finalizers(workflow: Raw, *, present: bool) -> tuple[Patch, ...]:
    metadata = workflow["metadata"]
    finalizers = metadata.get("finalizers") or []
    if (FINALIZER in finalizers) is present:
        return ()
    wanted = [*finalizers, FINALIZER] if present else [f for f in finalizers if f != FINALIZER]
    return (Patch({"metadata": {"resourceVersion": metadata["resourceVersion"], "finalizers": wanted}}),)


def _spec(workflow: Raw) -> WorkflowSpec:
    """Raises ValidationError."""
    return WorkflowSpec.model_validate(workflow.get("spec") or {})
