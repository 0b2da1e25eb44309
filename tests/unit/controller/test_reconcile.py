"""What the controller does about a Workflow, and when it looks again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tink.api.v1alpha2 import FINALIZER, Raw, WorkflowStatus
from tink.controller.reconcile import MAX_OBJECT_BYTES, Outcome, Reference, action_id, reconcile, refused, timestamps
from tink.controller.settings import ControllerSettings
from tink.template.errors import TemplateError
from tink.workflow.guards import unconfirmed
from tink.workflow.status import InvalidStatusError

CREATED = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00.000Z"
SETTINGS = ControllerSettings()
Make = Callable[..., Raw]
Rendered = Callable[..., list[Raw]]


def never(*_: Any) -> list[Raw]:
    raise AssertionError("rendered without need")


def look(workflow: Raw, now: float, settings: ControllerSettings = SETTINGS) -> Outcome:
    """Reconcile a Workflow that has been prepared: what it refers to does not matter any more."""
    return reconcile(workflow, None, None, settings, now, never)


def status_in(outcome: Outcome) -> Raw:
    bodies = [patch.body["status"] for patch in outcome.patches if patch.subresource == "status"]
    assert len(bodies) == 1, outcome
    status: Raw = bodies[0]
    return status


def condition(status: Raw, kind: str) -> Raw:
    return next(c for c in status["conditions"] if c["type"] == kind)


def finalizers_in(outcome: Outcome) -> list[str] | None:
    lists = [patch.body["metadata"].get("finalizers") for patch in outcome.patches if patch.subresource is None]
    return lists[0] if lists else None


# --- preparing --------------------------------------------------------------------------------------------------


def test_a_new_workflow_is_rendered_and_becomes_pending(
    make_workflow: Make, hardware: Raw, template: Raw, render: Rendered
) -> None:
    workflow = make_workflow(spec={"templateParams": {"k": "v"}})
    outcome = reconcile(workflow, hardware, template, SETTINGS, CREATED, render)
    assert [patch.subresource for patch in outcome.patches] == [None, "status"], "finalizer before state"
    assert finalizers_in(outcome) == [FINALIZER]
    status = status_in(outcome)
    WorkflowStatus.model_validate(status)
    assert status["state"] == "Pending"
    assert [action["state"] for action in status["actions"]] == ["Pending", "Pending"]
    assert status["actions"][0]["rendered"] == {"name": "first", "image": "t/h:k=v"}
    assert condition(status, "Started")["status"] == "False"
    assert condition(status, "Succeeded")["status"] == "Unknown"
    assert condition(status, "Prepared")["status"] == "True"


def test_pending_workflow_whose_spec_changed_is_rendered_anew_before_anybody_may_run_it(
    make_workflow: Make, hardware: Raw, template: Raw, render: Rendered
) -> None:
    workflow = make_workflow(spec={"templateParams": {"k": "v"}})
    workflow["metadata"]["generation"] = 1
    first = status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED, render))
    assert first["observedGeneration"] == 1
    del first["state"]
    workflow = make_workflow("Pending", spec={"templateParams": {"k": "w"}}, **first)
    workflow["metadata"]["generation"] = 1
    assert reconcile(workflow, hardware, template, SETTINGS, CREATED, never) == Outcome()
    workflow["metadata"]["generation"] = 2
    again = status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED, render))
    assert again["actions"][0]["rendered"]["image"] == "t/h:k=w"
    assert again["observedGeneration"] == 2
    missing = reconcile(workflow, None, template, SETTINGS, CREATED, never)
    assert condition(status_in(missing), "Prepared")["reason"] == "HardwareNotFound"
    assert missing.waits_for == (Reference("Hardware", "d", "h"),)
    workflow["status"] |= status_in(missing)
    assert not reconcile(workflow, None, template, SETTINGS, CREATED, never).patches, "it is said once"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_workflow_that_has_been_dispatched_is_not_rendered_again(make_workflow: Make, state: str) -> None:
    actions = [{"id": "a0", "rendered": {"name": "n", "image": "i"}, "state": "Pending"}]
    workflow = make_workflow(state, observedGeneration=1, startedAt=STAMP, actions=actions)
    workflow["metadata"]["generation"] = 2
    assert not look(workflow, CREATED).patches


def test_action_ids_are_the_same_each_time_and_no_two_are_alike(
    make_workflow: Make, hardware: Raw, template: Raw, render: Rendered
) -> None:
    def ids(name: str) -> list[str]:
        outcome = reconcile(make_workflow(name=name), hardware, template, SETTINGS, CREATED, render)
        return [action["id"] for action in status_in(outcome)["actions"]]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b")}) == 4
    assert len(action_id("u", 0)) == 36


def test_finalizers_of_others_are_kept(make_workflow: Make, hardware: Raw, template: Raw, render: Rendered) -> None:
    workflow = make_workflow()
    workflow["metadata"]["finalizers"] = ["other/one"]
    outcome = reconcile(workflow, hardware, template, SETTINGS, CREATED, render)
    assert finalizers_in(outcome) == ["other/one", FINALIZER]


@pytest.mark.parametrize(
    ("with_hardware", "with_template", "reason", "says", "waits"),
    [
        (False, True, "HardwareNotFound", ["spec.hardwareRef.name: there is no Hardware d/h"], ["Hardware"]),
        (True, False, "TemplateNotFound", ["spec.templateRef.name: there is no Template d/t"], ["Template"]),
        (False, False, "HardwareNotFound", ["no Hardware d/h", "no Template d/t"], ["Hardware", "Template"]),
    ],
)
def test_a_missing_reference_is_waited_for_and_then_named(
    make_workflow: Make,
    hardware: Raw,
    template: Raw,
    with_hardware: bool,
    with_template: bool,
    reason: str,
    says: list[str],
    waits: list[str],
) -> None:
    found = (hardware if with_hardware else None, template if with_template else None)
    workflow = make_workflow()
    early = reconcile(workflow, *found, SETTINGS, CREATED + 20, never)
    assert early.requeue_after == pytest.approx(40)
    assert [reference.kind for reference in early.waits_for] == waits
    prepared = condition(status_in(early), "Prepared")
    assert (prepared["status"], prepared["reason"]) == ("False", reason)
    assert all(text in prepared["message"] for text in says)
    assert "state" not in status_in(early)
    assert finalizers_in(early) is None, "a Workflow that waits can be deleted at any time"

    workflow["status"] = status_in(early)
    again = reconcile(workflow, *found, SETTINGS, CREATED + 30, never)
    assert again.patches == (), "said once"
    assert again.requeue_after == pytest.approx(30)

    late = reconcile(workflow, *found, SETTINGS, CREATED + 60, never)
    status = status_in(late)
    assert status["state"] == "Failed"
    for kind in ("Prepared", "Succeeded"):
        assert condition(status, kind)["reason"] == reason
        assert all(text in condition(status, kind)["message"] for text in says)
    assert finalizers_in(late) is None


def test_a_reference_that_appears_in_time_is_used(
    make_workflow: Make, hardware: Raw, template: Raw, render: Rendered
) -> None:
    workflow = make_workflow()
    workflow["status"] = status_in(reconcile(workflow, None, template, SETTINGS, CREATED + 2, never))
    status = status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED + 5, render))
    assert status["state"] == "Pending"
    assert condition(status, "Prepared") == {"type": "Prepared", "status": "True"}


def test_what_is_waited_for_has_namespace_and_name(make_workflow: Make) -> None:
    outcome = reconcile(make_workflow(), None, None, SETTINGS, CREATED, never)
    assert outcome.waits_for == (Reference("Hardware", "d", "h"), Reference("Template", "d", "t"))


def test_a_template_error_fails_the_workflow_at_once_with_its_text(
    make_workflow: Make, hardware: Raw, template: Raw
) -> None:
    def broken(*_: Any) -> list[Raw]:
        raise TemplateError("template: spec.actions[0].image:1:3: no such thing")

    outcome = reconcile(make_workflow(), hardware, template, SETTINGS, CREATED, broken)
    status = status_in(outcome)
    assert status["state"] == "Failed"
    succeeded = condition(status, "Succeeded")
    assert succeeded["reason"] == "TemplateError"
    assert succeeded["message"] == "Template d/t: template: spec.actions[0].image:1:3: no such thing"
    assert finalizers_in(outcome) is None


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ([], "there are no actions"),
        ([{"name": "a", "image": "x" * 1_000_001}], "the most that a Workflow can hold is 1000000"),
        ([{"name": "a", "image": ""}], r"spec.actions[0], rendered: image: String should have at least 1 character"),
        ([{"name": "a"}], "spec.actions[0], rendered: image: Field required"),
    ],
)
def test_rendered_actions_that_the_api_would_refuse_fail_the_workflow(
    make_workflow: Make, hardware: Raw, template: Raw, actions: list[Raw], says: str
) -> None:
    def give(_: Raw, __: Raw, ___: Mapping[str, str]) -> list[Raw]:
        return actions

    status = status_in(reconcile(make_workflow(), hardware, template, SETTINGS, CREATED, give))
    assert status["state"] == "Failed"
    assert says in condition(status, "Succeeded")["message"]


@pytest.mark.parametrize("spec", [{"hardwareRef": None}, {"templateRef": 5}, {"templateParams": ["x"]}])
def test_a_spec_that_can_not_be_read_fails_the_workflow_and_names_the_field(make_workflow: Make, spec: Raw) -> None:
    status = status_in(reconcile(make_workflow(spec=spec), None, None, SETTINGS, CREATED, never))
    assert status["state"] == "Failed"
    assert f"spec.{next(iter(spec))}" in condition(status, "Succeeded")["message"]


def rendering(*actions: Raw) -> Rendered:
    return lambda *_: list(actions)


def plain(index: int, **more: Any) -> Raw:
    return {"name": f"a{index}", "image": "i", **more}


def test_an_action_that_reboots_must_be_the_last(make_workflow: Make, hardware: Raw, template: Raw) -> None:
    first = rendering(plain(0, reboots=True), plain(1))
    status = status_in(reconcile(make_workflow(), hardware, template, SETTINGS, CREATED, first))
    assert status["state"] == "Failed"
    message = condition(status, "Succeeded")["message"]
    assert message.startswith("Template d/t: spec.actions[0].reboots: only the last action may restart the machine")
    last = rendering(plain(0, reboots=False), plain(1, reboots=True))
    status = status_in(reconcile(make_workflow(), hardware, template, SETTINGS, CREATED, last))
    assert status["state"] == "Pending"


@pytest.mark.parametrize(
    ("params", "actions"),
    [({}, [plain(index) for index in range(5000)]), ({"k": "x" * 900_000}, [plain(0, cmd="x" * 600_000)])],
)
def test_a_workflow_that_would_outgrow_what_the_api_stores_fails_before_the_api_says_so(
    make_workflow: Make, hardware: Raw, template: Raw, params: Raw, actions: list[Raw]
) -> None:
    workflow = make_workflow(spec={"templateParams": params})
    status = status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED, rendering(*actions)))
    assert status["state"] == "Failed"
    message = condition(status, "Succeeded")["message"]
    assert "bytes, and the API stores 1400000" in message
    assert f"{len(actions)} rendered actions" in message


def test_a_workflow_that_just_fits_is_run(make_workflow: Make, hardware: Raw, template: Raw) -> None:
    workflow = make_workflow(spec={"templateParams": {"k": "x" * 900_000}})

    def prepared(length: int) -> Raw:
        actions = rendering(plain(0, cmd="x" * length))
        return status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED, actions))

    message = condition(prepared(600_000), "Succeeded")["message"]
    found = re.search(r"would have (\d+) bytes", message)
    assert found is not None
    fits = 600_000 - (int(found[1]) - MAX_OBJECT_BYTES)
    assert [prepared(length)["state"] for length in (fits, fits + 1)] == ["Pending", "Failed"]


def test_a_megabyte_of_nonsense_in_the_spec_does_not_come_back_in_the_message(make_workflow: Make) -> None:
    workflow = make_workflow(spec={"templateParams": {str(n): n for n in range(50_000)}})
    status = status_in(reconcile(workflow, None, None, SETTINGS, CREATED, never))
    assert len(condition(status, "Succeeded")["message"]) <= 4096


def test_what_the_api_refuses_fails_the_workflow_with_its_words(make_workflow: Make) -> None:
    outcome = refused(make_workflow(finalizer=True), "status.actions: Too many (Invalid, 422)", CREATED)
    status = status_in(outcome)
    assert status["state"] == "Failed"
    assert condition(status, "Succeeded")["reason"] == "RefusedByAPI"
    assert "status.actions: Too many (Invalid, 422)" in condition(status, "Succeeded")["message"]
    assert finalizers_in(outcome) == ["other/one"]


def test_a_workflow_that_failed_before_it_started_says_that_it_has_not(make_workflow: Make) -> None:
    status = status_in(reconcile(make_workflow(spec={"hardwareRef": 5}), None, None, SETTINGS, CREATED, never))
    assert condition(status, "Started") == {"type": "Started", "status": "False"}
    waiting = status_in(reconcile(make_workflow(), None, None, SETTINGS, CREATED + 2, never))
    assert condition(waiting, "Started") == {"type": "Started", "status": "False"}
    assert condition(waiting, "Succeeded") == {"type": "Succeeded", "status": "Unknown"}


def test_the_next_object_of_the_same_file_is_waited_for_in_silence(make_workflow: Make, hardware: Raw) -> None:
    outcome = reconcile(make_workflow(), hardware, None, SETTINGS, CREATED + 0.25, never)
    assert outcome == Outcome(requeue_after=0.75, waits_for=(Reference("Template", "d", "t"),))


def test_to_say_that_nothing_can_be_done_can_wait_for_what_can_be_done(make_workflow: Make, hardware: Raw) -> None:
    assert reconcile(make_workflow(), hardware, None, SETTINGS, CREATED + 2, never).patient
    assert reconcile(make_workflow(), hardware, None, SETTINGS, CREATED + 99, never).patient
    assert not look(make_workflow("Pending", deleted=True), CREATED).patient


def test_a_spec_changed_long_after_its_creation_has_the_whole_time_for_its_new_reference(
    make_workflow: Make, hardware: Raw
) -> None:
    workflow = make_workflow("Pending", observedGeneration=1, actions=[{"id": "a"}])
    workflow["metadata"]["generation"] = 2
    late = CREATED + 86_400
    outcome = reconcile(workflow, hardware, None, SETTINGS, late, never)
    assert outcome.requeue_after == 60
    workflow["status"] |= status_in(outcome)
    assert reconcile(workflow, hardware, None, SETTINGS, late + 59, never).requeue_after == pytest.approx(1)
    assert status_in(reconcile(workflow, hardware, None, SETTINGS, late + 60, never))["state"] == "Failed"


@pytest.mark.parametrize("actions", [None, [], "none"])
def test_pending_written_by_hand_is_prepared_all_the_same(
    make_workflow: Make, hardware: Raw, template: Raw, render: Rendered, actions: Any
) -> None:
    workflow = make_workflow("Pending", finalizer=False, actions=actions)
    outcome = reconcile(workflow, hardware, template, SETTINGS, CREATED, render)
    assert len(status_in(outcome)["actions"]) == 2
    assert finalizers_in(outcome) == [FINALIZER]


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Cancelling"])
def test_a_finalizer_taken_away_by_hand_is_put_back_while_an_agent_may_run_it(make_workflow: Make, state: str) -> None:
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]
    more: Raw = {"actions": [{"id": "a"}], "startedAt": STAMP, "conditions": conditions}
    outcome = look(make_workflow(state, finalizer=False, **more), CREATED)
    assert finalizers_in(outcome) == [FINALIZER]
    going = look(make_workflow(state, finalizer=False, deleted=True, **more), CREATED)
    assert finalizers_in(going) is None, "Kubernetes takes none while an object is being deleted"


# --- deletion -----------------------------------------------------------------------------------------------------


def test_deleting_a_pending_workflow_cancels_it_and_lets_it_go(make_workflow: Make) -> None:
    outcome = look(make_workflow("Pending", deleted=True), CREATED)
    assert status_in(outcome)["state"] == "Canceled"
    assert finalizers_in(outcome) == ["other/one"]
    assert [patch.subresource for patch in outcome.patches] == ["status", None], "the end state must be seen first"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_deleting_a_dispatched_workflow_starts_cancelling_and_keeps_it(make_workflow: Make, state: str) -> None:
    outcome = look(make_workflow(state, deleted=True, startedAt=STAMP), CREATED)
    assert status_in(outcome)["state"] == "Cancelling"
    assert finalizers_in(outcome) is None


def test_deleting_a_workflow_that_was_never_prepared_lets_it_go(make_workflow: Make) -> None:
    outcome = look(make_workflow(None, deleted=True, finalizer=True), CREATED)
    assert finalizers_in(outcome) == ["other/one"]
    assert look(make_workflow(None, deleted=True), CREATED) == Outcome()


@pytest.mark.parametrize("state", ["Succeeded", "Failed", "Canceled"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_terminal_workflow_gives_up_our_finalizer_only(make_workflow: Make, state: str, deleted: bool) -> None:
    outcome = look(make_workflow(state, deleted=deleted), CREATED)
    assert finalizers_in(outcome) == ["other/one"]
    assert len(outcome.patches) == 1
    assert look(make_workflow(state, deleted=deleted, finalizer=False), CREATED) == Outcome()


# --- timeouts -----------------------------------------------------------------------------------------------------


def test_scheduled_for_too_long_fails(make_workflow: Make) -> None:
    workflow = make_workflow("Scheduled")
    assert look(workflow, CREATED + 100) == Outcome(requeue_after=200)
    outcome = look(workflow, CREATED + 300)
    assert condition(status_in(outcome), "Succeeded")["reason"] == "StartTimeout"
    assert status_in(outcome)["state"] == "Failed"
    assert finalizers_in(outcome) == ["other/one"]


def test_cancelling_for_too_long_is_canceled_by_force_with_reason_and_message(make_workflow: Make) -> None:
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]
    workflow = make_workflow("Cancelling", deleted=True, conditions=conditions, dispatched=True)
    assert look(workflow, CREATED + 299) == Outcome(requeue_after=1)
    outcome = look(workflow, CREATED + 300)
    assert status_in(outcome)["state"] == "Canceled"
    assert condition(status_in(outcome), "Succeeded")["reason"] == "CancelTimeout"
    assert finalizers_in(outcome) == ["other/one"]


ACTIONS = [{"id": "a0", "rendered": {"name": "n", "image": "i"}, "state": "Pending"}]
BEGUN = [{**ACTIONS[0], "state": "Running", "startedAt": STAMP}]


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    "status",
    [
        {},  # before anybody looked at it
        {"conditions": [{"type": "Prepared", "status": "False", "reason": "HardwareNotFound"}]},
        {"actions": ACTIONS, "dispatched": False},
        {"actions": ACTIONS, "dispatched": False, "rejections": 2, "dispatchAfter": STAMP},
        {"actions": ACTIONS, "dispatched": False, "claimedAt": STAMP},  # taken back
        # Noted by somebody who did not know.
        {
            "actions": ACTIONS,
            "dispatched": False,
            "conditions": [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}],
        },
    ],
    ids=["new", "waits", "prepared", "rejected", "taken back", "noted"],
)
def test_what_no_agent_has_ends_at_once_when_it_is_set_to_cancelling(
    make_workflow: Make, status: Raw, deleted: bool
) -> None:
    outcome = look(make_workflow("Cancelling", deleted=deleted, **status), CREATED + 1)
    assert status_in(outcome)["state"] == "Canceled"
    assert condition(status_in(outcome), "Succeeded")["reason"] == "Canceled"
    assert finalizers_in(outcome) == ["other/one"]


@pytest.mark.parametrize(
    "status",
    [
        {"actions": ACTIONS, "dispatched": True},
        {"actions": ACTIONS},  # prepared by an older version: it may have been dispatched by one, too
        {"actions": BEGUN, "dispatched": False},  # the claim was taken back, the command had arrived
        {"actions": ACTIONS, "dispatched": False, "startedAt": STAMP},
        {"dispatched": True},  # somebody took the actions away
    ],
    ids=["dispatched", "older version", "begun", "started", "no actions"],
)
def test_what_an_agent_may_have_is_not_canceled_at_once(make_workflow: Make, status: Raw) -> None:
    changed = status_in(look(make_workflow("Cancelling", **status), CREATED + 1))
    assert "state" not in changed
    assert condition(changed, "Succeeded")["reason"] == "Cancelling"


@pytest.mark.parametrize("deleted", [False, True])
def test_cancelling_set_by_hand_long_after_the_last_transition_gives_the_agent_its_time(
    make_workflow: Make, deleted: bool
) -> None:
    workflow = make_workflow("Cancelling", deleted=deleted, dispatched=True)
    status = status_in(look(workflow, CREATED + 4000))
    assert "state" not in status
    workflow["status"] |= status
    assert look(workflow, CREATED + 4100) == Outcome(requeue_after=200)


def running(make_workflow: Make, *, timeout: int = 0, action: Raw | None = None) -> Raw:
    actions = [
        {"id": "a0", "state": "Succeeded", "startedAt": STAMP, "rendered": {"name": "x", "timeout": 1}},
        {"id": "a1", "state": "Running", "startedAt": "2027-01-15T08:01:40.000Z", "rendered": action or {"name": "y"}},
        {"id": "a2", "state": "Pending", "rendered": {"name": "z", "timeout": 1}},
    ]
    return make_workflow("Running", startedAt=STAMP, actions=actions, spec={"timeout": timeout})


def test_without_timeouts_a_workflow_runs_for_ever(make_workflow: Make) -> None:
    assert look(running(make_workflow), CREATED + 1e7) == Outcome()


def test_workflow_timeout_counts_from_the_start_of_the_first_action(make_workflow: Make) -> None:
    workflow = running(make_workflow, timeout=600)
    assert look(workflow, CREATED + 500) == Outcome(requeue_after=100)
    status = status_in(look(workflow, CREATED + 600))
    assert status["state"] == "Failed"
    assert condition(status, "Succeeded")["reason"] == "WorkflowTimeout"
    assert [action["state"] for action in status["actions"]] == ["Succeeded", "Failed", "Pending"]


def test_action_timeout_counts_from_the_start_of_that_action(make_workflow: Make) -> None:
    workflow = running(make_workflow, timeout=6000, action={"name": "y", "timeout": 50})
    assert look(workflow, CREATED + 140) == Outcome(requeue_after=10)
    status = status_in(look(workflow, CREATED + 150))
    assert condition(status, "Succeeded")["reason"] == "ActionTimeout"
    assert "'y'" in condition(status, "Succeeded")["message"]


def test_the_default_action_timeout_is_for_actions_that_give_none(make_workflow: Make) -> None:
    settings = ControllerSettings(action_timeout=20)
    assert look(running(make_workflow), CREATED + 110, settings) == Outcome(requeue_after=10)
    own = running(make_workflow, action={"name": "y", "timeout": 50})
    assert look(own, CREATED + 130, settings) == Outcome(requeue_after=20)
    assert status_in(look(running(make_workflow), CREATED + 120, settings))["state"] == "Failed"


def test_a_timestamp_taken_away_by_hand_does_not_stop_the_clock(make_workflow: Make) -> None:
    workflow = make_workflow("Scheduled")
    workflow["status"]["lastTransitioned"] = "whenever"
    assert status_in(look(workflow, CREATED + 300))["state"] == "Failed"


@pytest.mark.parametrize("states", [None, (), ("Succeeded", "Succeeded"), ("Succeeded", "Failed")])
def test_a_running_workflow_whose_actions_were_edited_away_does_not_block_its_machine_for_ever(
    make_workflow: Make, states: tuple[str, ...] | None
) -> None:
    actions = states and [{"id": f"a{index}", "state": state} for index, state in enumerate(states)]
    workflow = make_workflow("Running", startedAt=STAMP, actions=actions)
    outcome = look(workflow, CREATED)
    succeeded = condition(status_in(outcome), "Succeeded")
    assert (status_in(outcome)["state"], succeeded["reason"]) == ("Failed", "InvalidStatus")
    assert "somebody edited its status" in succeeded["message"]
    workflow["status"] |= status_in(outcome)
    assert unconfirmed(workflow), "an agent that still runs it is told to stop"


@pytest.mark.parametrize(("timeout", "action"), [(600, 0), (0, 500)])
def test_the_time_of_a_last_action_that_reboots_is_up_when_the_machine_has_gone(
    make_workflow: Make, timeout: int, action: int
) -> None:
    workflow = running(make_workflow, timeout=timeout, action={"name": "y", "reboots": True, "timeout": action})
    workflow["status"]["actions"].pop()
    outcome = look(workflow, CREATED + 600)
    assert status_in(outcome)["state"] == "Succeeded"
    assert finalizers_in(outcome) == ["other/one"]


FUTURE = "2999-01-01T00:00:00Z"


@pytest.mark.parametrize("state", ["Scheduled", "Cancelling"])
def test_a_time_in_the_future_is_looked_at_again_within_the_timeout(make_workflow: Make, state: str) -> None:
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]
    workflow = make_workflow(state, lastTransitioned=FUTURE, conditions=conditions, dispatched=True)
    assert look(workflow, CREATED) == Outcome(requeue_after=300)


def test_who_knows_better_says_how_old_each_timestamp_is(make_workflow: Make) -> None:
    asked: list[str] = []

    def age(path: str, _: float) -> float:
        asked.append(path)
        return 45.0

    workflow = running(make_workflow, timeout=600, action={"name": "y", "timeout": 50})
    assert reconcile(workflow, None, None, SETTINGS, CREATED + 1e9, never, age) == Outcome(requeue_after=5)
    assert asked == ["status.actions[a1].startedAt", "status.startedAt"]
    assert set(asked) < {path for path, _ in timestamps(workflow)}
    assert reconcile(make_workflow("Scheduled"), None, None, SETTINGS, 0, never, age) == Outcome(requeue_after=255)
    assert reconcile(make_workflow(), None, None, SETTINGS, 0, never, age).requeue_after == 15
    assert set(asked) == {path for path, _ in timestamps(workflow)}


def test_timestamps_that_nobody_can_read_are_none(make_workflow: Make) -> None:
    workflow = make_workflow("Running", lastTransitioned="soon", startedAt=7)
    assert list(timestamps(workflow)) == [("metadata.creationTimestamp", CREATED)]


def test_an_unknown_state_is_left_alone_with_an_error(make_workflow: Make) -> None:
    with pytest.raises(InvalidStatusError, match="d/w"):
        look(make_workflow("Paused"), CREATED)


@pytest.mark.parametrize("setting", [{"scheduled_timeout": 0}, {"action_timeout": -1}, {"workers": 0}])
def test_senseless_settings_are_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        ControllerSettings(**setting)
