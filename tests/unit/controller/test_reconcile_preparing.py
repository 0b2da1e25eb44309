"""How a Workflow is prepared, and what keeps it from that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.controller.outcomes import (
    CREATED,
    SETTINGS,
    STAMP,
    Rendered,
    condition,
    finalizers_in,
    hardware,
    look,
    make_workflow,
    never,
    render,
    status_in,
    template,
)
from tink.api.v1alpha2 import FINALIZER, UNPREPARED, Raw, WorkflowStatus
from tink.controller.reconcile import MAX_OBJECT_BYTES, Outcome, action_id, reconcile, refused
from tink.kube.objects import ObjectReference
from tink.template import TemplateError
from tink.workflow.status import state_of

FIRST_STATUS = {"state": "Pending", "message": UNPREPARED}
"""What the API says of a Workflow by default."""


@pytest.mark.parametrize("deleted", [False, True])
def test_a_workflow_that_is_pending_by_default_alone_is_new(deleted: bool) -> None:
    workflow = {**make_workflow(deleted=deleted, finalizer=True), "status": FIRST_STATUS}
    outcome = reconcile(workflow, hardware, template, SETTINGS, CREATED, render)
    if deleted:
        assert finalizers_in(outcome) == ["other/one"]
        assert len(outcome.patches) == 1
        return
    status = status_in(outcome)
    assert status["state"] == "Pending", "the controller knows by that what it may not be refused"
    assert status["message"] == "waits for the machine's agent"
    waits = reconcile(workflow, None, template, SETTINGS, CREATED + 20, never)
    assert waits.requeue_after == pytest.approx(40), "counted from its creation"


def test_a_new_workflow_is_rendered_and_becomes_pending() -> None:
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


def test_pending_workflow_whose_spec_changed_is_rendered_anew_before_anybody_may_run_it() -> None:
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
    assert missing.waits_for == (ObjectReference("Hardware", "d", "h"),)
    workflow["status"] |= status_in(missing)
    assert not reconcile(workflow, None, template, SETTINGS, CREATED, never).patches, "it is said once"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_workflow_that_has_been_dispatched_is_not_rendered_again(state: str) -> None:
    actions = [{"id": "a0", "rendered": {"name": "n", "image": "i"}, "state": "Pending"}]
    workflow = make_workflow(state, observedGeneration=1, startedAt=STAMP, actions=actions)
    workflow["metadata"]["generation"] = 2
    assert not look(workflow, CREATED).patches


def test_action_ids_are_the_same_each_time_and_no_two_are_alike() -> None:
    def ids(name: str) -> list[str]:
        outcome = reconcile(make_workflow(name=name), hardware, template, SETTINGS, CREATED, render)
        return [action["id"] for action in status_in(outcome)["actions"]]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b")}) == 4
    assert len(action_id("u", 0)) == 36


def test_finalizers_of_others_are_kept() -> None:
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
    with_hardware: bool, with_template: bool, reason: str, says: list[str], waits: list[str]
) -> None:
    found = (hardware if with_hardware else None, template if with_template else None)
    workflow = make_workflow()
    early = reconcile(workflow, *found, SETTINGS, CREATED + 20, never)
    assert early.requeue_after == pytest.approx(40)
    assert [reference.kind for reference in early.waits_for] == waits
    prepared = condition(status_in(early), "Prepared")
    assert (prepared["status"], prepared["reason"]) == ("False", reason)
    assert all(text in prepared["message"] for text in says)
    assert status_in(early)["state"] == "Pending"
    assert state_of({**workflow, "status": status_in(early)}) is None, "it is not prepared, whatever is shown"
    assert all(text in status_in(early)["message"] for text in says)
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


def test_a_reference_that_appears_in_time_is_used() -> None:
    workflow = make_workflow()
    workflow["status"] = status_in(reconcile(workflow, None, template, SETTINGS, CREATED + 2, never))
    status = status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED + 5, render))
    assert status["state"] == "Pending"
    assert condition(status, "Prepared") == {"type": "Prepared", "status": "True"}


def test_what_is_waited_for_has_namespace_and_name() -> None:
    outcome = reconcile(make_workflow(), None, None, SETTINGS, CREATED, never)
    assert outcome.waits_for == (ObjectReference("Hardware", "d", "h"), ObjectReference("Template", "d", "t"))


def test_a_template_error_fails_the_workflow_at_once_with_its_text() -> None:
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
def test_rendered_actions_that_the_api_would_refuse_fail_the_workflow(actions: list[Raw], says: str) -> None:
    def give(_: Raw, __: Raw, ___: Mapping[str, str]) -> list[Raw]:
        return actions

    status = status_in(reconcile(make_workflow(), hardware, template, SETTINGS, CREATED, give))
    assert status["state"] == "Failed"
    assert says in condition(status, "Succeeded")["message"]


@pytest.mark.parametrize("spec", [{"hardwareRef": None}, {"templateRef": 5}, {"templateParams": ["x"]}])
def test_a_spec_that_can_not_be_read_fails_the_workflow_and_names_the_field(spec: Raw) -> None:
    status = status_in(reconcile(make_workflow(spec=spec), None, None, SETTINGS, CREATED, never))
    assert status["state"] == "Failed"
    assert f"spec.{next(iter(spec))}" in condition(status, "Succeeded")["message"]


def rendering(*actions: Raw) -> Rendered:
    return lambda *_: list(actions)


def plain(index: int, **more: Any) -> Raw:
    return {"name": f"a{index}", "image": "i", **more}


def test_an_action_that_reboots_must_be_the_last() -> None:
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
    params: Raw, actions: list[Raw]
) -> None:
    workflow = make_workflow(spec={"templateParams": params})
    status = status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED, rendering(*actions)))
    assert status["state"] == "Failed"
    message = condition(status, "Succeeded")["message"]
    assert "bytes, and the API stores 1400000" in message
    assert f"{len(actions)} rendered actions" in message


def test_a_workflow_that_just_fits_is_run() -> None:
    workflow = make_workflow(spec={"templateParams": {"k": "x" * 900_000}})

    def prepared(length: int) -> Raw:
        actions = rendering(plain(0, cmd="x" * length))
        return status_in(reconcile(workflow, hardware, template, SETTINGS, CREATED, actions))

    message = condition(prepared(600_000), "Succeeded")["message"]
    found = re.search(r"would have (\d+) bytes", message)
    assert found is not None
    fits = 600_000 - (int(found[1]) - MAX_OBJECT_BYTES)
    assert [prepared(length)["state"] for length in (fits, fits + 1)] == ["Pending", "Failed"]


def test_a_megabyte_of_nonsense_in_the_spec_does_not_come_back_in_the_message() -> None:
    workflow = make_workflow(spec={"templateParams": {str(n): n for n in range(50_000)}})
    status = status_in(reconcile(workflow, None, None, SETTINGS, CREATED, never))
    assert len(condition(status, "Succeeded")["message"]) <= 4096


def test_what_the_api_refuses_fails_the_workflow_with_its_words() -> None:
    outcome = refused(make_workflow(finalizer=True), "status.actions: Too many (Invalid, 422)", CREATED)
    status = status_in(outcome)
    assert status["state"] == "Failed"
    assert condition(status, "Succeeded")["reason"] == "RefusedByAPI"
    assert "status.actions: Too many (Invalid, 422)" in condition(status, "Succeeded")["message"]
    assert finalizers_in(outcome) == ["other/one"]


def test_a_workflow_that_failed_before_it_started_says_that_it_has_not() -> None:
    status = status_in(reconcile(make_workflow(spec={"hardwareRef": 5}), None, None, SETTINGS, CREATED, never))
    assert condition(status, "Started") == {"type": "Started", "status": "False"}
    waiting = status_in(reconcile(make_workflow(), None, None, SETTINGS, CREATED + 2, never))
    assert condition(waiting, "Started") == {"type": "Started", "status": "False"}
    assert condition(waiting, "Succeeded") == {"type": "Succeeded", "status": "Unknown"}


def test_the_next_object_of_the_same_file_is_waited_for_in_silence() -> None:
    outcome = reconcile(make_workflow(), hardware, None, SETTINGS, CREATED + 0.25, never)
    assert outcome == Outcome(requeue_after=0.75, waits_for=(ObjectReference("Template", "d", "t"),))


def test_to_say_that_nothing_can_be_done_can_wait_for_what_can_be_done() -> None:
    assert reconcile(make_workflow(), hardware, None, SETTINGS, CREATED + 2, never).low_priority
    assert reconcile(make_workflow(), hardware, None, SETTINGS, CREATED + 99, never).low_priority
    assert not look(make_workflow("Pending", deleted=True), CREATED).low_priority


def test_a_spec_changed_long_after_its_creation_has_the_whole_time_for_its_new_reference() -> None:
    workflow = make_workflow("Pending", observedGeneration=1, actions=[{"id": "a"}])
    workflow["metadata"]["generation"] = 2
    late = CREATED + 86_400
    outcome = reconcile(workflow, hardware, None, SETTINGS, late, never)
    assert outcome.requeue_after == 60
    workflow["status"] |= status_in(outcome)
    assert reconcile(workflow, hardware, None, SETTINGS, late + 59, never).requeue_after == pytest.approx(1)
    assert status_in(reconcile(workflow, hardware, None, SETTINGS, late + 60, never))["state"] == "Failed"


@pytest.mark.parametrize("actions", [None, [], "none"])
def test_pending_written_by_hand_is_prepared_all_the_same(actions: Any) -> None:
    workflow = make_workflow("Pending", finalizer=False, actions=actions)
    outcome = reconcile(workflow, hardware, template, SETTINGS, CREATED, render)
    assert len(status_in(outcome)["actions"]) == 2
    assert finalizers_in(outcome) == [FINALIZER]


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Cancelling"])
def test_a_finalizer_taken_away_by_hand_is_put_back_while_an_agent_may_run_it(state: str) -> None:
    conditions = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]
    more: Raw = {"actions": [{"id": "a"}], "startedAt": STAMP, "conditions": conditions}
    outcome = look(make_workflow(state, finalizer=False, **more), CREATED)
    assert finalizers_in(outcome) == [FINALIZER]
    going = look(make_workflow(state, finalizer=False, deleted=True, **more), CREATED)
    assert finalizers_in(going) is None, "Kubernetes takes none while an object is being deleted"
