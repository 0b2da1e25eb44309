"""Messages of the proto, to and from the state machine."""

from __future__ import annotations

import pytest

from proto import workflow_pb2 as pb
from tink.api.v1alpha2 import Raw
from tink.server.workflows import MalformedEventError, UnsendableError, describe, event_of, start_command
from tink.workflow import events


def test_start_command_carries_all_of_an_action() -> None:
    rendered = {
        "name": "n",
        "image": "i",
        "cmd": "c",
        "args": ["x", "y"],
        "env": {"K": "v"},
        "volumes": ["/a:/b:ro"],
        "networkNamespace": "host",
        "pidNamespace": "host",
        "timeout": 5,
    }
    # In a namespace of its own, reboot(2) ends the container, and kexec is refused.
    plain, reboots = {"name": "m", "image": "j", "reboots": False}, {"name": "m", "image": "j", "reboots": True}
    actions = [{"id": f"a{at}", "rendered": each} for at, each in enumerate((rendered, plain, reboots))]
    workflow = {"metadata": {"uid": "u"}, "status": {"actions": actions}}
    message = start_command(workflow).start_workflow.workflow
    full = pb.Workflow.Action(
        id="a0", name="n", image="i", cmd="c", args=["x", "y"], env={"K": "v"}, volumes=["/a:/b:ro"]
    )
    full.ns.net = full.ns.pid = "host"
    restarting = pb.Workflow.Action(id="a2", name="m", image="j")
    restarting.ns.pid = "host"
    others = [pb.Workflow.Action(id="a1", name="m", image="j"), restarting]
    assert message == pb.Workflow(workflow_id="u", actions=[full, *others])
    assert not message.actions[1].HasField("cmd")
    assert not message.actions[1].HasField("ns")


def test_events_of_all_kinds() -> None:
    def event(**kind: object) -> events.AgentEvent:
        return event_of(pb.Event(workflow_id="u", **kind))  # type: ignore[arg-type] # one of the kinds

    assert event(action_started=pb.Event.ActionStarted(action_id="a")) == events.ActionStarted("a")
    assert event(action_succeeded=pb.Event.ActionSucceeded(action_id="a")) == events.ActionSucceeded("a")
    failed = pb.Event.ActionFailed(action_id="a", failure_reason="R", failure_message="m")
    assert event(action_failed=failed) == events.ActionFailed("a", "R", "m")
    rejected = pb.Event.WorkflowRejected(failure_message="m")
    assert event(workflow_rejected=rejected) == events.Rejected("", "m")


@pytest.mark.parametrize(
    "event",
    [
        pb.Event(),
        pb.Event(workflow_id="u"),
        pb.Event(action_started=pb.Event.ActionStarted(action_id="a")),
        pb.Event(workflow_id="u", action_failed=pb.Event.ActionFailed()),
    ],
)
def test_nonsense_is_named(event: pb.Event) -> None:
    with pytest.raises(MalformedEventError, match=r"missing|no kind"):
        event_of(event)


@pytest.mark.parametrize(
    "action", [{"rendered": {}}, {"id": "a", "rendered": "x"}, {"id": "a", "rendered": {"env": 5}}]
)
def test_an_action_that_no_program_wrote_is_named(action: Raw) -> None:
    workflow = {"metadata": {"uid": "u", "name": "w", "namespace": "d"}, "status": {"actions": [action]}}
    with pytest.raises(UnsendableError, match=r"Workflow d/w: status.actions\[0\] can't be sent"):
        start_command(workflow)


def test_what_a_container_wrote_is_one_short_line_in_the_log() -> None:
    nasty = "\x1b[2J line\r\n2026 ERROR forged\u2028 \x00" + "x" * 100_000
    workflow: Raw = {"status": {"actions": [{"id": "a", "rendered": {"name": "first"}}]}}
    for event in (events.ActionFailed("a", nasty, nasty), events.Rejected(nasty, nasty)):
        story = describe(workflow, event)
        assert story.isprintable()
        assert len(story) < 1200
        assert "[2J line 2026 ERROR forged x" in story
    assert describe(workflow, events.ActionFailed("a", "R", "m")) == "action 'first' failed: R: m"
    assert describe(workflow, events.Rejected("", "m")) == "rejected the Workflow: no reason given: m"
