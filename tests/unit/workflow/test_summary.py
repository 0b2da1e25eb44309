"""MESSAGE in `kubectl get workflows`: one line, never empty, whatever stands in the status."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.v1alpha2 import Raw, WorkflowState
from tink.workflow.summary import MAX_SUMMARY, summary


def action(name: str, state: str) -> Raw:
    return {"id": name, "state": state, "rendered": {"name": name}}


def condition(kind: str, status: str, reason: str = "", message: str = "") -> Raw:
    return {"type": kind, "status": status, "reason": reason, "message": message}


WAITING = [action("write", "Pending"), action("verify", "Pending")]
LOST = "Workflow d/w: spec.hardwareRef.name: there is no Hardware d/h"
CASES: dict[str, Raw] = {
    "waits for the controller": {},
    "spec.hardwareRef.name: there is no Hardware d/h": {
        "state": "Pending",
        "conditions": [condition("Prepared", "False", "HardwareNotFound", LOST)],
    },
    "waits for the machine's agent": {"state": "Pending", "actions": WAITING},
    "the agent does not take it now: Busy: runs another": {
        "state": "Pending",
        "actions": WAITING,
        "conditions": [condition("Started", "False", "Busy", "runs another")],
    },
    "its agent is refused: shows no token": {
        "state": "Pending",
        "actions": WAITING,
        "conditions": [condition("Started", "False", "AgentRefused", "shows no token")],
    },
    "held (tinkerbell.org/hold): restored": {
        "state": "Pending",
        "actions": WAITING,
        "conditions": [condition("Started", "False", "Held", "restored; to let it run: kubectl annotate")],
    },
    "held (tinkerbell.org/hold): not before noon": {
        "conditions": [condition("Started", "False", "Held", "not before noon; to let it run: kubectl annotate")],
    },
    "held (tinkerbell.org/hold): given, not begun": {
        "state": "Scheduled",
        "actions": WAITING,
        "conditions": [condition("Started", "False", "Held", "given, not begun; to let it run: kubectl annotate")],
    },
    "given to the agent, which has not begun yet": {"state": "Scheduled", "actions": WAITING},
    "action 2 of 2: verify": {
        "state": "Running",
        "actions": [action("write", "Succeeded"), action("verify", "Running")],
    },
    "the agent has begun": {"state": "Running", "actions": WAITING},
    "the Workflow was deleted: waits for the agent to stop": {
        "state": "Cancelling",
        "conditions": [condition("Succeeded", "Unknown", "Cancelling", "the Workflow was deleted")],
    },
    "waits for the agent to stop": {"state": "Cancelling"},
    "all 2 actions have succeeded": {"state": "Succeeded", "actions": WAITING},
    "NoDisk: there is none": {
        "state": "Failed",
        "conditions": [condition("Succeeded", "False", "NoDisk", "there\nis  none")],
    },
    "the Workflow has failed": {"state": "Failed"},
    "the Workflow was stopped": {"state": "Canceled"},
}  # fmt: skip


@pytest.mark.parametrize("said", CASES)
def test_operator_reads_where_the_workflow_is(said: str) -> None:
    assert summary(CASES[said]) == said


@pytest.mark.parametrize("state", [None, *WorkflowState, "Broken", 7])
@pytest.mark.parametrize("broken", [{}, {"actions": 7}, {"actions": [{}], "conditions": ["x", {"type": "Prepared"}]}])
def test_it_is_never_empty_nor_longer_than_a_line(state: object, broken: Any) -> None:
    message = {"conditions": [condition("Succeeded", "False", "R", "long " * 1000)]}
    for status in ({"state": state, **broken}, {"state": state, **message}):
        said = summary(status)
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
    status = {"state": "Failed", "conditions": [condition("Succeeded", "False", "NonZeroExit", message)]}
    assert summary(status) == said
    assert len(said) <= MAX_SUMMARY
