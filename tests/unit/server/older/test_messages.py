"""Messages of older agents are recognised and parsed, also if they are cut off, mixed up or invented."""

from __future__ import annotations

import contextlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from proto import older_pb2 as pb
from tink.server.older.messages import ActionReport, event_of, inexpressible, report_of, workflow_actions
from tink.workflow.events import ActionFailed, ActionStarted

OF_AGENT = pb.ActionStatusRequest(
    workflow_id="u",
    agent_id="m",
    task_id="t",
    action_id="a0",
    action_name="n",
    action_state=pb.ActionStatusRequest.FAILED,
)
OF_WORKER = pb.WorkflowActionStatus(
    workflow_id="u", task_name="t", action_name="n", action_status=pb.WORKER_FAILED, seconds=300, worker_id="m"
)
WORKFLOW = {
    "metadata": {"name": "w", "namespace": "d", "uid": "u"},
    "status": {
        "actions": [
            {"id": "a0", "rendered": {"name": "write the disk!", "image": "i"}},
            {"id": "a1", "rendered": {"name": "write-the-disk-", "image": "i"}},
            {"id": "a2", "rendered": {"name": "日本", "image": "i"}},
        ]
    },
}


def test_dialects_of_reports_differ_in_their_fourth_field() -> None:
    assert report_of(OF_AGENT.SerializeToString()) == ActionReport("u", "a0", "n", "FAILED", "")
    assert report_of(OF_WORKER.SerializeToString()) == ActionReport("u", "", "n", "FAILED", "")


def test_fields_that_are_unknown_here_are_no_obstacle() -> None:
    unknown = bytes([0x79, *range(8), 0x7D, *range(4), 0x80, 0x01, 0xFF, 0x01])
    assert report_of(unknown + OF_WORKER.SerializeToString()).action_name == "n"


def test_container_names_of_actions_are_unique() -> None:
    names = [each.name for each in workflow_actions(WORKFLOW, "m").action_list]
    assert names == ["write-the-disk-", "write-the-disk--1", "action-2"]
    for name, action_id in zip(names, ["a0", "a1", "a2"], strict=True):
        assert event_of(ActionReport("u", "", name, "RUNNING", ""), WORKFLOW) == ActionStarted(action_id)
    assert event_of(ActionReport("u", "", "another", "RUNNING", ""), WORKFLOW) is None
    assert event_of(ActionReport("u", "a0", "", "PENDING", ""), WORKFLOW) is None


def test_failure_without_a_message_names_the_place_to_look() -> None:
    event = event_of(ActionReport("u", "a0", "", "FAILED", "action completed"), WORKFLOW)
    assert isinstance(event, ActionFailed)
    assert "log" in event.message


def test_workflow_without_a_cmd_is_expressible() -> None:
    assert inexpressible(WORKFLOW) is None


@st.composite
def cut_off(draw: st.DrawFn) -> bytes:
    raw = draw(st.sampled_from([OF_AGENT, OF_WORKER])).SerializeToString()
    return raw[: draw(st.integers(0, len(raw)))]


@given(st.binary(max_size=200) | cut_off())
def test_anything_is_a_report_or_no_message(raw: bytes) -> None:
    with contextlib.suppress(ValueError, DecodeError):
        report = report_of(raw)
        assert event_of(report, WORKFLOW) is None or report.state


@pytest.mark.parametrize("raw", [b"\xff" * 11, b"\x08", b"\x0b", b"\x0a\x05a"], ids=["number", "cut", "group", "short"])
def test_bytes_that_are_no_message(raw: bytes) -> None:
    with pytest.raises((ValueError, DecodeError)):
        report_of(raw)
