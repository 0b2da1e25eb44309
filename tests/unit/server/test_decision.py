"""Which command an agent gets next, and what is known of the agent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import objects
from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import BOOT_FINALIZER, Raw
from tink.server.decision import AgentView, ClaimAndSend, GiveBack, Move, Recall, Start, Stop, Wait, next_move
from tink.workflow.status import InvalidStatusError, timestamp

NOW = 1000.0
LONGEST = 60.0
LATER, LATEST, NEVER = timestamp(NOW + 5), timestamp(NOW + LONGEST), "9999-01-01T00:00:00Z"
ACTIVE = ("Scheduled", "Running", "Cancelling")
TIMED_OUT = {"type": "Succeeded", "status": "False", "reason": "WorkflowTimeout"}


def workflow(
    name: str, state: str | None = "Pending", *, action: str | None = None, metadata: Raw | None = None, **status: Any
) -> Raw:
    """Return a Workflow whose one action is in the state `action`."""
    actions = [{"id": "a", "rendered": {"name": "n", "image": "i"}} | ({"state": action} if action else {})]
    versioned = {"uid": name, "resourceVersion": "1", **(metadata or {})}
    return objects.workflow(name, state, namespace="d", metadata=versioned, **{"actions": actions, **status})


def decide(*workflows: Raw, now: float = NOW, view: AgentView | None = None, **known: Any) -> Move:
    return next_move(workflows, view or AgentView(**known), now, LONGEST)


A, B = workflow("a"), workflow("b")
RUNNING, SCHEDULED, SECOND = workflow("a", "Running"), workflow("a", "Scheduled"), workflow("b", "Scheduled")
RENDERED, CHANGED = (workflow("a", observedGeneration=1, metadata={"generation": number}) for number in (1, 2))
OVER = workflow("a", "Failed", conditions=[TIMED_OUT])
REPORTED = workflow("a", "Failed", action="Failed", conditions=[TIMED_OUT | {"reason": "DiskMissing"}])
BY_HAND = workflow("a", "Failed", action="Running")
BORN = {"creationTimestamp": timestamp(NOW - 3)}
NEW = workflow("new", None, metadata=BORN, actions=[])
HELD = workflow("new", None, metadata=BORN | {"annotations": {HOLD_ANNOTATION: ""}}, actions=[])
GOING = workflow("new", None, metadata=BORN | {"deletionTimestamp": timestamp(NOW)}, actions=[])
CANCELLING = workflow("b", "Cancelling")
REJECTED, PATIENT, MAD = (workflow("a", dispatchAfter=after) for after in (LATER, LATEST, NEVER))
BOOTED = {"type": "BootPrepared", "status": "True", "reason": "Booted"}


def booting(name: str, **status: Any) -> Raw:
    """Return a Workflow whose machine is booted by its BMC first."""
    obj = workflow(name, **status)
    obj["spec"]["bootOptions"] = {"bootMode": "netboot"}
    return obj


UNBOOTED, BOOTING, PREPARED = booting("a"), booting("a", boot={"way": "pxe"}), booting("a", conditions=[BOOTED])
WAITING = {"type": "BootPrepared", "status": "False", "reason": "OtherWorkflow"}
STEPPED_BACK = booting("a", boot={"way": "pxe"}, conditions=[WAITING])


def custom(*finalizers: str) -> Raw:
    """Return an ended Workflow with a custom boot, and its finalizers."""
    obj = booting("a", boot={"way": "custom"}, conditions=[BOOTED], state="Succeeded")
    obj["spec"]["bootOptions"] = {
        "bootMode": "customboot",
        "custombootConfig": {"postActions": [{"powerAction": "off"}]},
    }
    obj["metadata"]["finalizers"] = list(finalizers)
    return obj


POST_ACTIONS_DUE, POST_ACTIONS_DONE = custom(BOOT_FINALIZER), custom()
CASES: dict[str, tuple[list[Raw], dict[str, Any], Move]] = {
    "the oldest is claimed": ([workflow("done", "Succeeded"), workflow("new", None), A, B], {}, ClaimAndSend(A)),
    "one of another spec is rendered first": ([CHANGED], {}, Wait()),
    "one that was rendered is claimed": ([RENDERED], {}, ClaimAndSend(RENDERED)),
    **{
        f"one at a time, {state}": ([workflow("a", state), B], {"started": {"a"}, "stopped": {"a"}}, Wait())
        for state in ACTIVE
    },
    "a younger one is active": ([A, workflow("b", "Running")], {"started": {"b"}}, Wait()),
    "a scheduled one is sent again": ([SCHEDULED], {}, Start(SCHEDULED)),
    "it has been sent": ([SCHEDULED], {"started": {"a"}}, Wait()),
    "a running one is not sent again": ([RUNNING], {}, Wait()),
    **{  # another server, whose connection to the agent is dead, claimed it and can't send it
        f"a second claim is given back, {state}": (
            [workflow("a", state), SECOND],
            {"started": {"a"}, "stopped": {"a"}},
            GiveBack(SECOND),
        )
        for state in ACTIVE
    },
    "of two claims the older one": ([SCHEDULED, SECOND], {}, Start(SCHEDULED)),
    "a claim after the end of another": ([workflow("a", "Succeeded"), SECOND], {}, Start(SECOND)),
    "a new one is not overtaken": ([NEW, A], {}, Wait(NOW + 7)),
    "a new one is overtaken after a while": ([NEW, A], {"now": NOW + 7}, ClaimAndSend(A)),
    "a clock that differs": ([NEW, A], {"now": NOW - 60}, ClaimAndSend(A)),
    "a new one that is held": ([HELD, A], {}, ClaimAndSend(A)),
    "a new one that is deleted": ([GOING, A], {}, ClaimAndSend(A)),
    "stop comes first": ([A, CANCELLING], {}, Stop("b", "d/b")),
    "stop comes once": ([A, CANCELLING], {"stopped": {"b"}}, Wait()),
    "a timeout stops the agent that runs it": ([OVER], {"started": {"a"}}, Stop("a", "d/a")),
    "and stops it once": ([OVER], {"started": {"a"}, "stopped": {"a"}}, Wait()),
    "and no other agent": ([OVER], {}, Wait()),
    "the agent itself said that it is over": ([REPORTED], {"started": {"a"}}, Wait()),
    "somebody ended it by hand": ([BY_HAND], {"started": {"a"}}, Stop("a", "d/a")),
    "what runs and is not held is asked about": ([RUNNING, B], {"says": True}, Recall(RUNNING)),
    "what runs and is held is not": ([RUNNING], {"says": True, "started": {"a"}}, Wait()),
    "first things first": ([RUNNING, CANCELLING], {"says": True}, Stop("b", "d/b")),
    "deleted": ([workflow("a", deleted=True)], {}, Wait()),
    "no actions": ([workflow("a", actions=[])], {}, Wait()),
    "a rejected one is not overtaken": ([REJECTED, B], {}, Wait(NOW + 5)),
    "a rejected one, when it is time": ([REJECTED, B], {"now": NOW + 5}, ClaimAndSend(REJECTED)),
    "a machine that is not booted yet": ([UNBOOTED], {}, Wait()),
    "another one is sent while the boot has not begun": ([UNBOOTED, B], {}, ClaimAndSend(B)),
    "no other one is sent while the machine is being booted": ([BOOTING, B], {}, Wait()),
    "another one is sent while the boot waits for it": ([STEPPED_BACK, B], {}, ClaimAndSend(B)),
    "no other one is sent before the post actions of a custom boot": ([POST_ACTIONS_DUE, B], {}, Wait()),
    "another one is sent after the post actions": ([POST_ACTIONS_DONE, B], {}, ClaimAndSend(B)),
    "a machine that is booted": ([PREPARED, B], {}, ClaimAndSend(PREPARED)),
    "no time": ([workflow("a", dispatchAfter="soon")], {}, ClaimAndSend(workflow("a", dispatchAfter="soon"))),
    "the longest delay": ([PATIENT], {}, Wait(NOW + LONGEST)),
    # A clock that jumps holds a Workflow back for the longest delay at most.
    "a time that this stream has not set": ([MAD], {}, ClaimAndSend(MAD)),
    "a time in the far future": ([MAD], {"offered": {"a": NOW}}, Wait(NOW + LONGEST)),
    "it comes nearer": ([MAD], {"offered": {"a": NOW}, "now": NOW + 59}, Wait(NOW + LONGEST)),
    "it is over": ([MAD], {"offered": {"a": NOW}, "now": NOW + LONGEST}, ClaimAndSend(MAD)),
    "our own clock went back": ([MAD], {"offered": {"a": NOW}, "now": NOW - 3600}, ClaimAndSend(MAD)),
}


@pytest.mark.parametrize("name", CASES)
def test_next_command(name: str) -> None:
    workflows, known, move = CASES[name]
    assert decide(*workflows, **known) == move


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Cancelling", "Failed"])
def test_agent_is_asked_again_only_about_what_runs(state: str) -> None:
    assert not isinstance(decide(workflow("a", state), says=True), Recall)


def test_a_status_edited_by_hand_is_named() -> None:
    with pytest.raises(InvalidStatusError, match="d/a"):
        decide(workflow("a", "Odd"))


def test_a_workflow_that_no_message_can_be_made_of_does_not_hold_up_the_others() -> None:
    view = AgentView()
    view.set_aside(A)
    assert decide(A, B, view=view) == decide(SCHEDULED, B, view=view) == ClaimAndSend(B)
    mended = workflow("a", metadata={"resourceVersion": "2"})
    assert decide(mended, B, view=view) == ClaimAndSend(mended)


def test_a_workflow_that_vanished_while_it_ran_is_stopped() -> None:
    view = AgentView(stopped={"e"}, offered={"a": 1.0}, unsendable={"a": "1"})
    view.runs(["a", "b", "c", "e"])
    timed_out = workflow("c", "Failed", conditions=[TIMED_OUT | {"reason": "StartTimeout"}])
    done, never, cancelled = (
        workflow("b", "Succeeded", action="Succeeded"),
        workflow("never", "Running"),
        workflow("e", "Cancelling"),
    )
    for gone in (RUNNING, done, timed_out, never, cancelled):
        view.forget(gone)
    assert view.orphans == {"a": "d/a", "c": "d/c"}
    assert (view.started, view.given, view.stopped, view.offered, view.unsendable) == (set(), set(), set(), {}, {})
    assert decide(view=view) == Stop("a", "d/a")


def test_view_follows_what_runs_what_is_pending_and_what_is_sent_again() -> None:
    view = AgentView(started={"b", "c"})
    view.see([RUNNING, B, workflow("c", "Scheduled"), workflow("e", "Cancelling")])
    assert view.started == {"a", "c"}, "what is Pending has to be sent anew"
    reported = AgentView(says=True, started={"b"})
    reported.see([RUNNING, B])
    assert reported.started == set(), "only what it said or was sent counts"
    stopped = AgentView(stopped={"a"})
    stopped.sent(A, NOW)
    assert (stopped.started, stopped.stopped, stopped.offered) == ({"a"}, set(), {"a": NOW})
