"""Reports in any order, any number of times: what holds of every Workflow then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.workflow.cases import NOW, author_of, in_state
from tests.unit.workflow.table import TERMINAL, reach
from tink.api.v1alpha2 import ActionState, Raw, WorkflowState, WorkflowStatus
from tink.workflow import events
from tink.workflow.machine import apply
from tink.workflow.status import parse_timestamp
from tink.workflow.table import Author

REPORTS = st.sampled_from(
    [
        make(f"a{i}")
        for i in range(3)
        for make in (events.ActionStarted, events.ActionSucceeded, lambda a: events.ActionFailed(a, "R", "m"))
    ]
    + [events.Rejected(reason, "m", 5) for reason in ("Busy", "UnknownWorkflow", "AlreadyFinished")]
    + [events.AgentLost(), events.AgentAway(30)]
)
SUPERVISION = st.sampled_from(
    [
        events.CancelRequested("m"),
        events.StartTimedOut(1),
        events.CancelTimedOut(1),
        events.WorkflowTimedOut(1),
        events.NothingLeft(),
        *(events.ActionTimedOut(f"a{i}", 1) for i in range(3)),
    ]
)


class AnyOrder(RuleBasedStateMachine):
    """A Workflow of three actions receives any events, in any order, from both components."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.workflow: Raw = {"metadata": {"name": "w", "namespace": "d", "uid": "u", "resourceVersion": "1"}}

    def _apply(self, event: events.Event, author: Author) -> None:
        self.now += 1
        before: Raw = self.workflow.get("status", {})
        after = apply(self.workflow, event, self.now, author)
        if after is None:
            return
        assert before.get("state") not in TERMINAL
        if before.get("state") != after.get("state"):
            assert after["state"] in reach(before.get("state"), author)
            assert parse_timestamp(after["lastTransitioned"]) == self.now
        for old, new in zip(before.get("actions", []), after.get("actions", []), strict=False):
            order = ["Pending", "Running", "Succeeded"]
            assert old["id"] == new["id"]
            assert old["state"] == new["state"] or old["state"] not in ("Succeeded", "Failed")
            assert new["state"] == "Failed" or order.index(new["state"]) >= order.index(old["state"])
        self.workflow["status"] = after
        assert apply(self.workflow, event, self.now + 1, author) is None, "not idempotent"

    @precondition(lambda self: "status" not in self.workflow)
    @rule()
    def prepare(self) -> None:
        reboots: list[Raw] = [{}, {}, {"reboots": True}]
        actions = (events.PreparedAction(f"a{i}", {"name": f"n{i}", "image": "i"} | reboots[i]) for i in range(3))
        self._apply(events.Prepared(tuple(actions)), Author.CONTROLLER)

    @precondition(lambda self: "status" in self.workflow)
    @rule(event=st.sampled_from([events.Dispatched(), events.GivenBack()]) | REPORTS | SUPERVISION)
    def happen(self, event: events.Event) -> None:
        self._apply(event, author_of(event))

    @invariant()
    def status_is_sound(self) -> None:
        if "status" not in self.workflow:
            return
        status = WorkflowStatus.model_validate(self.workflow["status"])
        states = [action.state for action in status.actions or []]
        conditions = {c.type: c.status for c in status.conditions or []}
        assert status.state is not None
        if status.state is WorkflowState.SUCCEEDED:
            assert set(states) == {ActionState.SUCCEEDED}
        if status.state.terminal:
            assert ActionState.RUNNING not in states
            assert conditions["Succeeded"] == ("True" if status.state is WorkflowState.SUCCEEDED else "False")
        if status.state in (WorkflowState.PENDING, WorkflowState.SCHEDULED):
            assert set(states) == {ActionState.PENDING}
        assert (status.started_at is not None) == (conditions["Started"] == "True")
        assert status.started_at is None or (status.rejections, status.dispatch_after) == (None, None)
        assert (status.rejections is None) == (status.dispatch_after is None)
        assert (status.started_at is not None) == any(s is not ActionState.PENDING for s in states)


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(REPORTS, max_size=12))
def test_reports_delivered_twice_have_the_effect_of_once(reports: list[events.AgentEvent]) -> None:
    def play(stream: list[events.AgentEvent]) -> Raw:
        workflow = in_state("Scheduled", "PPP")
        for event in stream:
            workflow["status"] = apply(workflow, event, NOW, Author.SERVER) or workflow["status"]
        return workflow

    assert play(reports) == play([event for event in reports for _ in range(2)])
