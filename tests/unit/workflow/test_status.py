"""Reading and writing the fields of a status, the line that operators read of it, and the finalizer of Workflows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.objects import action, workflow
from tests.unit.workflow.cases import in_state
from tink.api.annotations import PAUSED_ANNOTATION
from tink.api.v1alpha2 import FINALIZER, ConditionStatus, Raw, WorkflowState
from tink.workflow.guards import protect, protected
from tink.workflow.status import (
    MAX_SUMMARY,
    ConditionType,
    InvalidStatusError,
    check_states,
    dispatch_after,
    name_of,
    parse_timestamp,
    rejections,
    set_condition,
    status_patch,
    summary,
    timestamp,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2027-01-15T08:00:00Z", 1_800_000_000),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000),
        ("2027-01-15T08:00:00.987Z", pytest.approx(1_800_000_000.987)),
        *((value, None) for value in (None, "", "yesterday", 5, "2027-13-01T00:00:00Z", [], "0000-00-00")),
    ],
)
def test_timestamps_of_kubernetes_and_ours_are_read_and_others_count_as_absent(value: object, seconds: Any) -> None:
    assert parse_timestamp(value) == seconds
    assert timestamp(1_800_000_000.987) == "2027-01-15T08:00:00.987Z", "short timeouts must not fire early"


@pytest.mark.parametrize(
    ("status", "count", "after"),
    [
        ({}, 0, 0.0),
        ({"rejections": 3, "dispatchAfter": "2027-01-15T08:00:00.500Z"}, 3, 1_800_000_000.5),
        ({"rejections": "3", "dispatchAfter": "soon"}, 0, 0.0),
        ({"rejections": -3, "dispatchAfter": 5}, 0, 0.0),
        ({"rejections": True, "dispatchAfter": None}, 0, 0.0),
    ],
)
def test_rejection_count_and_dispatch_time_are_read_or_absent(status, count, after) -> None:
    assert rejections(status) == count
    assert dispatch_after(status) == after


def test_a_state_that_is_none_is_named_with_its_object() -> None:
    check_states(in_state("Running", "RP"))
    check_states(in_state(None))
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.state is 'Runing'"):
        check_states(in_state("Runing"))
    odd = in_state("Running")
    odd["status"]["actions"][1]["state"] = "Odd"
    with pytest.raises(InvalidStatusError, match=r"Workflow default/w: status.actions\[a1\].state is 'Odd'"):
        check_states(odd)
    assert name_of({"metadata": {"name": "w"}}) == "/w"


def test_patch_has_changed_fields_and_removes_absent_ones() -> None:
    before = in_state("Running", extra="x", currentAction="a")
    status = {k: v for k, v in before["status"].items() if k != "extra"} | {"state": "Failed"}
    assert status_patch(before, status) == {
        "metadata": {"resourceVersion": "7"},
        "status": {"state": "Failed", "extra": None},
    }


def test_a_condition_takes_the_place_of_the_one_of_its_type_and_leaves_the_shared_list_alone() -> None:
    old = [{"type": "Started", "status": "False"}, {"type": "Foreign", "status": "True"}]
    status: dict[str, Any] = {"conditions": old}
    set_condition(status, ConditionType.STARTED, ConditionStatus.TRUE, 1_800_000_000.0)
    new = {"type": "Started", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"}
    assert status["conditions"] == [new, {"type": "Foreign", "status": "True"}]
    assert old[0]["status"] == "False"


def test_a_condition_keeps_its_time_while_only_reason_and_message_change() -> None:
    status: dict[str, Any] = {}
    set_condition(status, ConditionType.STARTED, ConditionStatus.FALSE, 1_800_000_000.0)
    set_condition(status, ConditionType.STARTED, ConditionStatus.FALSE, 1_800_000_060.0, "Held", "by hand")
    (held,) = status["conditions"]
    assert (held["reason"], held["lastTransitionTime"]) == ("Held", "2027-01-15T08:00:00Z")
    set_condition(status, ConditionType.STARTED, ConditionStatus.TRUE, 1_800_000_060.0)
    assert status["conditions"][0]["lastTransitionTime"] == "2027-01-15T08:01:00Z"
    # A release without the field has written this one, so its age is unknown.
    status = {"conditions": [{"type": "Started", "status": "True"}]}
    set_condition(status, ConditionType.STARTED, ConditionStatus.TRUE, 1_800_000_000.0)
    assert status["conditions"][0]["lastTransitionTime"] == "2027-01-15T08:00:00Z"


# --- the finalizer of Workflows ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [FINALIZER]),
        (None, [FINALIZER]),
        (["other/one"], ["other/one", FINALIZER]),
        ([FINALIZER, "other/one"], [FINALIZER, "other/one"]),
    ],
)
def test_a_new_workflow_has_it_once_and_keeps_those_of_others(before: Any, after: list[str]) -> None:
    new = workflow(metadata={"finalizers": before})
    protect(new)
    assert new["metadata"]["finalizers"] == after
    assert protected(new)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "Hardware"},
        {"apiVersion": "tinkerbell.org/v1alpha1"},
        {"apiVersion": "argoproj.io/v1alpha1"},
        {"metadata": {"name": "w", "annotations": {PAUSED_ANNOTATION: "moved from here"}}},
    ],
)
def test_nothing_else_gets_it_and_no_copy_of_a_workflow_that_is_moved(other: Raw) -> None:
    obj = workflow() | other
    protect(obj)
    assert not protected(obj)


# --- MESSAGE in `kubectl get workflows`: one line, never empty, whatever stands in the status ---


def status(state: str | None = None, *condition: str, actions: str = "", **more: Any) -> Raw:
    """A status with a condition (type, status, reason, message), and actions in these states (their first letters)."""
    fields = zip(("type", "status", "reason", "message"), condition, strict=False)
    conditions = [dict(fields)] if condition else []
    made = in_state(state or "Pending", actions)["status"]["actions"]
    return {**({"state": state} if state else {}), "conditions": conditions, "actions": made, **more}


LOST = "Workflow d/w: spec.hardwareRef.name: there is no Hardware d/h"
RELEASE = "; to let it run: kubectl annotate"
CASES: dict[str, Raw] = {
    "waits for the controller": {},
    "spec.hardwareRef.name: there is no Hardware d/h": status("Pending", "Prepared", "False", "HardwareNotFound", LOST),
    "waits for the machine's agent": status("Pending", actions="PP"),
    "the agent does not take it now: Busy: runs another": status(
        "Pending", "Started", "False", "Busy", "runs another", actions="PP"
    ),
    "the agent does not take it now: Busy": status("Pending", "Started", "False", "Busy", actions="PP"),
    "its agent is refused: its request has no token": status(
        "Pending", "Started", "False", "AgentRefused", "its request has no token", actions="PP"
    ),
    "held (tinkerbell.org/hold): restored": status(
        "Pending", "Started", "False", "Held", f"restored{RELEASE}", actions="PP"
    ),
    "held (tinkerbell.org/hold): not before noon": status(
        None, "Started", "False", "Held", f"not before noon{RELEASE}"
    ),
    "held (tinkerbell.org/hold): given, not begun": status(
        "Scheduled", "Started", "False", "Held", f"given, not begun{RELEASE}", actions="PP"
    ),
    "given to the agent, which has not begun yet": status("Scheduled", actions="PP"),
    "action 2 of 2: action-1": status("Running", actions="SR"),
    "action 1 of 1: a0": {"state": "Running", "actions": [action(state="Running", name="")]},
    "the agent has begun": status("Running", actions="PP"),
    "the Workflow was deleted: waits for the agent to stop": status(
        "Cancelling", "Succeeded", "Unknown", "Cancelling", "the Workflow was deleted"
    ),
    "waits for the agent to stop": status("Cancelling"),
    "all 2 actions have succeeded": status("Succeeded", actions="PP"),
    "NoDisk: there is none": status("Failed", "Succeeded", "False", "NoDisk", "there\nis  none"),
    "the Workflow has failed": status("Failed"),
    "the Workflow was stopped": status("Canceled"),
}


@pytest.mark.parametrize("said", CASES)
def test_operator_reads_where_the_workflow_is(said: str) -> None:
    assert summary(CASES[said]) == said


@pytest.mark.parametrize("state", [None, *WorkflowState, "Broken", 7])
@pytest.mark.parametrize(
    "broken",
    [
        *({}, {"actions": 7}, {"actions": [{}], "conditions": ["x", {"type": "Prepared"}]}),
        {"conditions": status("Failed", "Succeeded", "False", "R", "long " * 1000)["conditions"]},
    ],
    ids=["empty", "number", "odd", "long"],
)
def test_it_is_never_empty_nor_longer_than_a_line(state: object, broken: Any) -> None:
    said = summary({"state": state, **broken})
    assert 0 < len(said) <= MAX_SUMMARY
    assert said == " ".join(said.split())


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "exit code 1 | Archive2Disk - Archive streamer | ------------------------ | "
            "Mounted [/dev/sda1] -> [/mountAction] | processing file [/mountAction/etc/passwd] | digest mismatch",
            "NonZeroExit: exit code 1 | …[/dev/sda1] -> [/mountAction] | "
            "processing file [/mountAction/etc/passwd] | digest mismatch",
        ),
        ("one word " * 40, "NonZeroExit: " + ("one word " * 40)[:106].rstrip() + "…"),
        ("h" * 100 + " | tail " + "t" * 100, "NonZeroExit: " + "h" * 100 + " | tai…"),
    ],
    ids=["what was said last", "one line", "no room"],
)
def test_long_failure_message_keeps_the_last_lines_of_output(message: str, said: str) -> None:
    assert summary(status("Failed", "Succeeded", "False", "NonZeroExit", message)) == said
    assert len(said) <= MAX_SUMMARY
