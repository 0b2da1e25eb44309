"""Workflow: references, parameters and boot options in both versions, and v1alpha1's status made of v1alpha2's.

| v1alpha1 | v1alpha2 |
|---|---|
| `hardwareRef`, `templateRef` (names) | `hardwareRef.name`, `templateRef.name` |
| `hardwareMap` | `templateParams` |
| `bootOptions` | `bootOptions`, as `tinkedge convert` maps them (`tink.convert.v1alpha1.workflow`) |
| `disabled: true` | the annotation HOLD_ANNOTATION with the text DISABLED |
| `status.v1alpha2` | the whole status |

A reference that v1alpha1 lacks is the name UNSET in v1alpha2. Boot options that v1alpha2 refuses are left out as a
whole, except for toggleAllowNetboot, because a part of them would boot the machine in another way.
INCOMPLETE_ANNOTATION reports both.

v1alpha1's own fields of the status are for its clients to read. The sources of their meaning are
tinkerbell/tinkerbell, api/v1alpha1/tinkerbell/workflow.go and tink/controller/internal/workflow. Two of them have no
source here: the ids of agents and the Jobs of boot options, because BMC control creates no Jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tink.api import bounds
from tink.api.annotations import HOLD_ANNOTATION, INCOMPLETE_ANNOTATION
from tink.api.v1alpha2 import BOOT_FINALIZER, ActionState, ConditionStatus, Raw, WorkflowState, as_mapping
from tink.convert import constraints
from tink.convert.findings import FindingKind, Findings, ObjectPlace
from tink.convert.v1alpha1 import convert_workflow
from tink.printable import printable
from tink.timestamps import rfc3339
from tink.versions.residue import MAX_DEPTH, MISSING, Kind
from tink.workflow.guards import awaits_boot
from tink.workflow.status import (
    REASON_ACTION_TIMEOUT,
    REASON_START_TIMEOUT,
    REASON_WORKFLOW_TIMEOUT,
    ConditionType,
    action_name,
    actions_of,
    condition,
    parse_timestamp,
    unprepared,
)

UNSET: Final = "unset"
"""The name in a reference of v1alpha2 that the v1alpha1 Workflow does not have."""
DISABLED: Final = "spec.disabled is true in v1alpha1"
"""The text of HOLD_ANNOTATION that stands for `disabled: true`."""

_MAX_SENTENCE: Final = 300
_SOURCE: Final = ObjectPlace("", 0, "Workflow")
_REFERENCES: Final = (("hardwareRef", "Hardware"), ("templateRef", "Template"))
_PANICS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that a converter does not raise. If one does, only the boot options are not used."""


# --- v1alpha1 to v1alpha2 ---------------------------------------------------------------------------------------------


def up(view: Raw, _metadata: Raw) -> Raw:
    """Return the v1alpha2 view of a v1alpha1 view."""
    old = as_mapping(view.get("spec"))
    spec: Raw = {}
    incomplete: list[str] = []
    for key, kind in _REFERENCES:
        name = old.get(key)
        if isinstance(name, str) and name and not constraints.object_name(name):
            spec[key] = {"name": name}
        else:
            spec[key] = {"name": UNSET}
            incomplete.append(f"spec.{key}.name: the v1alpha1 Workflow names no {kind}")
    if params := _params(old.get("hardwareMap")):
        spec["templateParams"] = params
    options, problem = _boot_options(old.get("bootOptions"))
    if options:
        spec["bootOptions"] = options
    if problem:
        incomplete.append(f"spec.bootOptions: only toggleAllowNetboot is used: {problem}")
    annotations = _hold(view)
    if old.get("disabled") is True:
        annotations.setdefault(HOLD_ANNOTATION, DISABLED)
    if incomplete:
        annotations[INCOMPLETE_ANNOTATION] = "; ".join(incomplete)
    return {"spec": spec, **({"annotations": annotations} if annotations else {})}


def _hold(view: Raw) -> Raw:
    annotations = as_mapping(view.get("annotations"))
    return {HOLD_ANNOTATION: annotations[HOLD_ANNOTATION]} if HOLD_ANNOTATION in annotations else {}


def _params(given: Any) -> dict[str, str]:
    """Return the parameters that v1alpha2 takes, at most MAX_TEMPLATE_PARAMS of them."""
    good = [
        (key, value)
        for key, value in as_mapping(given).items()
        if isinstance(value, str) and len(value) <= bounds.MAX_TEXT_CHARACTERS
    ]
    return dict(good if len(good) <= bounds.MAX_TEMPLATE_PARAMS else sorted(good)[: bounds.MAX_TEMPLATE_PARAMS])


def _boot_options(given: Any) -> tuple[Raw, str]:
    """Return boot options that v1alpha2 takes, and the reason if it does not take all that was asked for."""
    options = as_mapping(given)
    if not options:
        return {}, ""
    findings = Findings(_SOURCE)
    spec = {"hardwareRef": UNSET, "templateRef": UNSET, "bootOptions": options}
    try:
        made = convert_workflow({"metadata": {"name": UNSET}, "spec": spec}, findings, _no_object)
        problem = next((f"{each.path}: {each.reason}" for each in findings if each.kind is FindingKind.ERROR), "")
    except _PANICS as error:
        made, problem = [], str(error) or type(error).__name__
    result: Raw = as_mapping(made[0]["spec"].get("bootOptions")) if made else {}
    if any(len(kind) > bounds.MAX_NAME_CHARACTERS for kind in _media_kinds(result)):
        problem = "the kind of a virtual medium is too long"
    if not problem:
        return result, ""
    toggle = {"toggleAllowNetboot": True} if options.get("toggleAllowNetboot") is True else {}
    return toggle, printable(" ".join(problem.split()))[:_MAX_SENTENCE]


def _media_kinds(options: Raw) -> list[str]:
    custom = options.get("custombootConfig", {})
    actions = [*custom.get("preparingActions", ()), *custom.get("postActions", ())]
    return [action["virtualMediaAction"]["kind"] for action in actions if "virtualMediaAction" in action]


def _no_object(kind: str, namespace: str, name: str) -> Raw | None:  # noqa: ARG001 (a Lookup)
    """Return nothing: a conversion sees no other object, so it does not read the timeout that a Template has."""
    return None


def _up_status(obj: Raw) -> Any:
    return as_mapping(obj.get("status")).get("v1alpha2", MISSING)


# --- v1alpha2 to v1alpha1 ---------------------------------------------------------------------------------------------


def down(view: Raw, _metadata: Raw) -> Raw:
    """Return the v1alpha1 view of a v1alpha2 view."""
    new = as_mapping(view.get("spec"))
    spec: Raw = {}
    annotations = _hold(view)
    if annotations.get(HOLD_ANNOTATION) == DISABLED:
        spec["disabled"] = True
        annotations = {}
    for key, _ in _REFERENCES:
        name = as_mapping(new.get(key)).get("name")
        if isinstance(name, str) and name != UNSET:
            spec[key] = name
    params = as_mapping(new.get("templateParams"))
    if texts := {key: value for key, value in params.items() if isinstance(value, str)}:
        spec["hardwareMap"] = texts
    if options := as_mapping(new.get("bootOptions")):
        spec["bootOptions"] = _copied(options)
    return {**({"spec": spec} if spec else {}), **({"annotations": annotations} if annotations else {})}


def _copied(value: Raw, depth: int = MAX_DEPTH) -> Raw:
    """Return a copy whose nested mappings are new, down to the depth below which a residue changes none."""
    if not depth:
        return value
    return {key: _copied(item, depth - 1) if isinstance(item, dict) else item for key, item in value.items()}


def without_defaults(view: Raw) -> Raw:
    """Return a v1alpha2 view without `timeout: 0`, which the API adds."""
    timeout = as_mapping(view.get("spec")).get("timeout")
    if type(timeout) is not int or timeout != 0:
        return view
    return {**view, "spec": {key: value for key, value in view["spec"].items() if key != "timeout"}}


# --- the status -------------------------------------------------------------------------------------------------------

_STATES: Final[Mapping[str, str]] = {
    WorkflowState.PENDING: "PENDING",
    WorkflowState.SCHEDULED: "PENDING",
    WorkflowState.RUNNING: "RUNNING",
    WorkflowState.CANCELLING: "RUNNING",
    WorkflowState.SUCCEEDED: "SUCCESS",
    WorkflowState.FAILED: "FAILED",
    WorkflowState.CANCELED: "FAILED",
}
_ACTION_STATES: Final[Mapping[str, str]] = {
    ActionState.PENDING: "PENDING",
    ActionState.RUNNING: "RUNNING",
    ActionState.SUCCEEDED: "SUCCESS",
    ActionState.FAILED: "FAILED",
}
_TIMEOUTS: Final = (REASON_START_TIMEOUT, REASON_WORKFLOW_TIMEOUT, REASON_ACTION_TIMEOUT)
_UNITS: Final = (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_COMPLETE, _ERROR, _CREATED = "Complete", "Error", "Created"
"""Reasons of Tinkerbell's conditions."""


def _down_status(obj: Raw) -> Any:
    """Return v1alpha1's status: the fields that its clients read, and v1alpha2's whole status."""
    if "status" not in obj:
        return MISSING
    return {**_OldStatus(obj).fields(), "v1alpha2": obj["status"]}


class _OldStatus:
    """v1alpha1's fields of the status of one Workflow. Fields of an unexpected type are left out."""

    def __init__(self, obj: Raw) -> None:
        self._obj = obj
        self._status = as_mapping(obj.get("status"))
        self._spec = as_mapping(obj.get("spec"))
        self._metadata = as_mapping(obj.get("metadata"))
        self._options = as_mapping(self._spec.get("bootOptions"))
        self._actions = actions_of(self._status)

    def fields(self) -> Raw:
        """Return the fields. Those without a value are left out."""
        prepared = condition(self._status, ConditionType.PREPARED).get("status")
        is_rendered = bool(self._actions) or prepared == ConditionStatus.TRUE
        timeout = self._timeout()
        toggled = self._toggled()
        found = {
            "state": self._state(),
            "bootOptions": {"allowNetboot": toggled} if toggled else None,
            "templateRendering": "successful" if is_rendered else "failed" if prepared == "False" else None,
            "globalTimeout": timeout,
            "globalExecutionStop": self._global_stop(timeout),
            "currentState": self._current_state(),
            "tasks": [self._task()] if self._actions else None,
            "conditions": self._conditions(is_rendered=is_rendered),
        }
        return {key: value for key, value in found.items() if value}

    def _state(self) -> str:
        """Return the state; "" before the Template is rendered, as in Tinkerbell."""
        state = self._status.get("state")
        if state in (WorkflowState.PENDING, WorkflowState.SCHEDULED):
            if state == WorkflowState.PENDING and unprepared(self._status):
                return ""
            return "PREPARING" if awaits_boot(self._obj) else "PENDING"
        if state == WorkflowState.SUCCEEDED and self._is_being_cleaned_up():
            return "POST"
        if state == WorkflowState.FAILED:
            reason = condition(self._status, ConditionType.SUCCEEDED).get("reason")
            return "TIMEOUT" if reason in _TIMEOUTS else "FAILED"
        return _STATES.get(state, "") if isinstance(state, str) else ""

    def _is_being_cleaned_up(self) -> bool:
        finalizers = self._metadata.get("finalizers")
        return isinstance(finalizers, list) and BOOT_FINALIZER in finalizers

    def _is(self, kind: ConditionType) -> bool:
        return bool(condition(self._status, kind).get("status") == ConditionStatus.TRUE)

    def _toggled(self) -> Raw:
        if self._options.get("toggleAllowNetboot") is not True:
            return {}
        found = {
            "toggledTrue": self._is(ConditionType.BOOT_PREPARED),
            "toggledFalse": self._is(ConditionType.BOOT_CLEANED_UP),
        }
        return {key: True for key, value in found.items() if value}

    def _timeout(self) -> int:
        """Return the seconds that the Workflow has; 0: no limit."""
        found = (self._spec.get("timeout"), self._status.get("timeout"))
        return next((each for each in found if type(each) is int and each > 0), 0)

    def _global_stop(self, timeout: int) -> str:
        started = parse_timestamp(self._status.get("startedAt"))
        try:
            return rfc3339(started + timeout) if started is not None and timeout else ""
        except (OSError, OverflowError, ValueError):
            return ""

    def _task(self) -> Raw:
        return {
            "id": self._task_id(),
            "name": self._task_name(),
            "agentID": "",
            "actions": [_old_action(action) for action in self._actions],
        }

    def _task_id(self) -> str:
        return str(self._status.get("id") or self._metadata.get("uid") or "")

    def _task_name(self) -> str:
        return str(as_mapping(self._spec.get("templateRef")).get("name") or "")

    def _current_state(self) -> Raw:
        """Return the action that runs now, or that ran last."""
        begun = [action for action in self._actions if action.get("state", ActionState.PENDING) != ActionState.PENDING]
        if not begun:
            return {}
        return {
            "taskID": self._task_id(),
            "taskName": self._task_name(),
            "actionID": str(begun[-1].get("id", "")),
            "actionName": action_name(begun[-1]),
            "state": _action_state(begun[-1]),
        }

    # --- conditions

    def _conditions(self, *, is_rendered: bool) -> list[Raw]:
        prepared = condition(self._status, ConditionType.PREPARED)
        found = []
        if is_rendered:
            found.append(_condition("TemplateRenderedSuccess", prepared, _COMPLETE, "template rendered successfully"))
        elif prepared.get("status") == ConditionStatus.FALSE:
            found.append(_condition("TemplateRenderedSuccess", prepared, _ERROR, None, "False"))
        booted, cleaned = (
            condition(self._status, kind) for kind in (ConditionType.BOOT_PREPARED, ConditionType.BOOT_CLEANED_UP)
        )
        if self._options.get("toggleAllowNetboot") is True:
            if booted.get("status") == ConditionStatus.TRUE:
                found.append(_condition("AllowNetbootTrue", booted, _COMPLETE, "set allowPXE to true"))
            if cleaned.get("status") == ConditionStatus.TRUE:
                found.append(_condition("AllowNetbootFalse", cleaned, _COMPLETE, "set allowPXE to false"))
        if booted and self._options.get("bootMode"):
            found.append(self._boot_condition(booted))
        return found

    def _boot_condition(self, booted: Mapping[str, Any]) -> Raw:
        if booted.get("status") == ConditionStatus.TRUE:
            return _condition("BootJobComplete", booted, _COMPLETE, None)
        if self._status.get("state") in (WorkflowState.FAILED, WorkflowState.CANCELED):
            return _condition("BootJobFailed", booted, _ERROR, None)
        return _condition("BootJobRunning", booted, _CREATED, None)


def _condition(name: str, source: Any, reason: str, message: str | None, status: str = "True") -> Raw:
    """Return a condition of v1alpha1 with the time of one of v1alpha2, and its message unless another one is given."""
    found = {"type": name, "status": status, "reason": reason, "message": message or _text(source.get("message"))}
    if time := _time(source.get("lastTransitionTime")):
        found["time"] = time
    return {key: value for key, value in found.items() if value}


def _old_action(action: Raw) -> Raw:
    """Return an action with its state, under v1alpha1's names."""
    rendered = as_mapping(action.get("rendered"))
    start = _time(action.get("startedAt"))
    has_ended = action.get("state") in (ActionState.SUCCEEDED, ActionState.FAILED)
    stop = _time(action.get("lastTransitioned")) if has_ended else ""
    namespaces = {"network": rendered.get("networkNamespace"), "pid": rendered.get("pidNamespace")}
    texts = ("failureReason", "failureMessage")
    found = {
        "name": action_name(action),
        "image": rendered.get("image"),
        "timeout": rendered.get("timeout"),
        "command": rendered.get("args"),
        "volumes": rendered.get("volumes"),
        "namespaces": {key: value for key, value in namespaces.items() if value},
        "environment": rendered.get("env"),
        "state": _action_state(action),
        "executionStart": start,
        "executionStop": stop,
        "executionDuration": _duration(start, stop),
        "message": ": ".join(filter(None, (_text(action.get(key)) for key in texts))),
    }
    return {"id": str(action.get("id", ""))} | {key: value for key, value in found.items() if value}


def _action_state(action: Raw) -> str:
    if action.get("failureReason") == REASON_ACTION_TIMEOUT:
        return "TIMEOUT"
    state = action.get("state") or ActionState.PENDING
    return _ACTION_STATES.get(state, "") if isinstance(state, str) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _time(value: Any) -> str:
    """Return a time; "" for any other value."""
    return value if isinstance(value, str) and parse_timestamp(value) is not None else ""


def _duration(start: str, stop: str) -> str:
    """Return the time between two times in its two largest units, as Tinkerbell's agent writes it: 1m5s, 2s40ms."""
    begun, ended = parse_timestamp(start), parse_timestamp(stop)
    if begun is None or ended is None or ended < begun:
        return ""
    left = round((ended - begun) * 1000)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count and len(parts) < 2:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


WORKFLOW: Final = Kind(
    up,
    down,
    _up_status,
    _down_status,
    annotations=frozenset({HOLD_ANNOTATION}),
    without_defaults=without_defaults,
)
