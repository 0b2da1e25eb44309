"""The controller prepares a Workflow, and supervises it until it has ended and is deleted."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.support import objects
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
from tink.api.annotations import HOLD_ANNOTATION, PAUSED_ANNOTATION
from tink.api.v1alpha2 import FINALIZER, UNPREPARED, Raw, WorkflowStatus
from tink.controller.controller import WorkflowHistory
from tink.controller.reconcile import MAX_OBJECT_BYTES, Decision, action_id, reconcile, refused, timestamps
from tink.controller.settings import ControllerSettings
from tink.kube.objects import NamespacedName, ObjectReference
from tink.template import RenderedTemplate, TemplateError
from tink.workflow.guards import unconfirmed
from tink.workflow.status import InvalidStatusError, state_of

# --- preparing ---

LATE = CREATED + 1e6
ACTIONS = [{"id": "a0", "rendered": {"name": "n", "image": "i"}, "state": "Pending"}]
CANCELLING = [{"type": "Succeeded", "status": "Unknown", "reason": "Cancelling"}]


def prepare(
    workflow: Raw | None = None,
    now: float = CREATED,
    *,
    hardware: Raw | None = hardware,
    template: Raw | None = template,
    render: Rendered = render,
) -> Decision:
    return reconcile(workflow or make_workflow(), hardware, template, SETTINGS, now, render)


def generation(workflow: Raw, number: int) -> Raw:
    workflow["metadata"]["generation"] = number
    return workflow


FIRST_STATUS = {"state": "Pending", "message": UNPREPARED}
"""The defaults of the API for a Workflow."""


@pytest.mark.parametrize("deleted", [False, True])
def test_a_workflow_that_is_pending_by_default_alone_is_new(deleted: bool) -> None:
    workflow = {**make_workflow(deleted=deleted, finalizer=True), "status": FIRST_STATUS}
    outcome = prepare(workflow)
    if deleted:
        assert finalizers_in(outcome) == ["other/one"]
        assert len(outcome.patches) == 1
        return
    status = status_in(outcome)
    assert status["state"] == "Pending", "the controller knows by that what it may not be refused"
    assert status["message"] == "waits for the machine's agent"
    waits = prepare(workflow, CREATED + 20, hardware=None, render=never)
    assert waits.requeue_after == pytest.approx(40), "counted from its creation"


def test_a_new_workflow_is_rendered_and_becomes_pending() -> None:
    workflow = make_workflow(spec={"templateParams": {"k": "v"}})
    workflow["metadata"]["finalizers"] = ["other/one"]
    outcome = prepare(workflow)
    assert [patch.subresource for patch in outcome.patches] == [None, "status"], "finalizer before state"
    assert finalizers_in(outcome) == ["other/one", FINALIZER]
    assert finalizers_in(prepare()) == [FINALIZER]
    status = status_in(outcome)
    WorkflowStatus.model_validate(status)
    assert status["state"] == "Pending"
    assert [action["state"] for action in status["actions"]] == ["Pending", "Pending"]
    assert status["actions"][0]["rendered"] == {"name": "first", "image": "t/h:k=v"}
    kinds = {kind: condition(status, kind)["status"] for kind in ("Started", "Succeeded", "Prepared")}
    assert kinds == {"Started": "False", "Succeeded": "Unknown", "Prepared": "True"}


def test_pending_workflow_whose_spec_changed_is_rendered_anew_before_anybody_may_run_it() -> None:
    first = status_in(prepare(generation(make_workflow(spec={"templateParams": {"k": "v"}}), 1)))
    assert first["observedGeneration"] == 1
    del first["state"]
    workflow = generation(make_workflow("Pending", spec={"templateParams": {"k": "w"}}, id="where-it-was", **first), 1)
    assert prepare(workflow, render=never) == Decision()
    generation(workflow, 2)
    again = status_in(prepare(workflow))
    assert again["actions"][0]["rendered"]["image"] == "t/h:k=w"
    assert again["observedGeneration"] == 2
    assert "id" not in again, "the one that the agent knows stays as it is"
    missing = prepare(workflow, hardware=None, render=never)
    assert condition(status_in(missing), "Prepared")["reason"] == "HardwareNotFound"
    assert missing.waits_for == (ObjectReference("Hardware", "d", "h"),)
    workflow["status"] |= status_in(missing)
    assert not prepare(workflow, hardware=None, render=never).patches, "it is said once"


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_workflow_that_has_been_dispatched_is_not_rendered_again(state: str) -> None:
    workflow = make_workflow(state, observedGeneration=1, startedAt=STAMP, actions=ACTIONS)
    assert not look(generation(workflow, 2), CREATED).patches


def test_action_ids_are_the_same_each_time_and_no_two_are_alike() -> None:
    def ids(name: str) -> list[str]:
        return [action["id"] for action in status_in(prepare(make_workflow(name=name)))["actions"]]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b")}) == 4
    assert len(action_id("u", 0)) == 36


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (["Hardware"], ["spec.hardwareRef.name: there is no Hardware d/h"]),
        (["Template"], ["spec.templateRef.name: there is no Template d/t"]),
        (["Hardware", "Template"], ["no Hardware d/h", "no Template d/t"]),
    ],
    ids="+".join,
)
def test_a_missing_reference_is_waited_for_and_then_named(missing: list[str], says: list[str]) -> None:
    workflow, reason = make_workflow(), f"{missing[0]}NotFound"
    found: Any = {"Hardware": hardware, "Template": template} | dict.fromkeys(missing)

    def seen(seconds: float) -> Decision:
        there: Any = {"hardware": found["Hardware"], "template": found["Template"]}
        return prepare(workflow, CREATED + seconds, render=never, **there)

    early = seen(20)
    assert early.requeue_after == pytest.approx(40)
    assert early.waits_for == tuple(ObjectReference(kind, "d", kind[0].lower()) for kind in missing)
    prepared = condition(status_in(early), "Prepared")
    assert (prepared["status"], prepared["reason"]) == ("False", reason)
    assert status_in(early)["state"] == "Pending"
    assert state_of({**workflow, "status": status_in(early)}) is None, "it is not prepared, whatever is shown"
    for text in says:
        assert text in prepared["message"]
        assert text in status_in(early)["message"]
    assert finalizers_in(early) is None, "a Workflow that waits can be deleted at any time"

    workflow["status"] = status_in(early)
    again = seen(30)
    assert again.patches == (), "said once"
    assert again.requeue_after == pytest.approx(30)
    in_time = status_in(prepare(workflow, CREATED + 35))
    assert (in_time["state"], condition(in_time, "Prepared")) == ("Pending", {"type": "Prepared", "status": "True"})

    late = seen(60)
    status = status_in(late)
    assert status["state"] == "Failed"
    for kind in ("Prepared", "Succeeded"):
        assert condition(status, kind)["reason"] == reason
        assert all(text in condition(status, kind)["message"] for text in says)
    assert finalizers_in(late) is None


def broken(*_: Any) -> list[Raw]:
    raise TemplateError("template: spec.actions[0].image:1:3: no such thing")


def plain(index: int, **more: Any) -> Raw:
    return {"name": f"a{index}", "image": "i", **more}


# The spec, the rendered actions, and the message.
FAILURES: dict[str, tuple[Raw, list[Raw] | Rendered, list[str]]] = {
    "template": ({}, broken, ["Template d/t: template: spec.actions[0].image:1:3: no such thing"]),
    "no actions": ({}, [], ["there are no actions"]),
    "large": ({}, [plain(0, image="x" * 1_000_001)], ["the most that a Workflow can hold is 1000000"]),
    "empty field": ({}, [plain(0, image="")], ["actions[0], rendered: image: String should have at least 1 character"]),
    "missing field": ({}, [{"name": "a"}], ["spec.actions[0], rendered: image: Field required"]),
    "not the last reboots": (
        {},
        [plain(0, reboots=True), plain(1)],
        ["Template d/t: spec.actions[0].reboots: only the last action may restart the machine"],
    ),
    "large variable": (
        {},
        [plain(0), plain(1, env={"KEY": "{{" + "ä" * 65_533})],
        ['spec.actions[1].env["KEY"] has 131073 bytes with its name', "Linux takes 131072"],
    ),
    "large argument": ({}, [plain(0, args=["", "x" * 131_072])], ["spec.actions[0].args[1] has 131073 bytes"]),
    "long path": ({}, [plain(0, cmd="/" * 4096)], ["spec.actions[0].cmd has 4097 bytes", "PATH_MAX"]),
    "NUL": ({}, [plain(0, args=["a\0b"])], ["spec.actions[0].args[0] contains a NUL character"]),
    "many actions": (
        {},
        [plain(index) for index in range(5000)],
        ["bytes, and the API stores 1400000", "5000 rendered actions"],
    ),
    "large spec": (
        {"templateParams": {"k": "x" * 900_000}},
        [plain(0, image="x" * 600_000)],
        ["bytes, and the API stores 1400000", "1 rendered actions"],
    ),
    "no reference": ({"hardwareRef": None}, never, ["spec.hardwareRef"]),
    "odd reference": ({"templateRef": 5}, never, ["spec.templateRef"]),
    "odd parameters": ({"templateParams": ["x"]}, never, ["spec.templateParams"]),
    "nonsense": ({"templateParams": {str(n): n for n in range(50_000)}}, never, ["spec.templateParams"]),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_can_not_be_rendered_or_stored_fails_the_workflow_at_once_by_name(name: str) -> None:
    spec, rendered, says = FAILURES[name]
    outcome = prepare(
        make_workflow(spec=spec), render=rendered if callable(rendered) else lambda *_: RenderedTemplate(rendered)
    )
    status = status_in(outcome)
    succeeded = condition(status, "Succeeded")
    assert status["state"] == "Failed"
    assert all(text in succeeded["message"] for text in says)
    assert succeeded["reason"] == ("InvalidWorkflow" if rendered is never else "TemplateError")
    assert len(succeeded["message"]) <= 4096, "nonsense does not come back"
    assert finalizers_in(outcome) is None
    assert condition(status, "Started") == {"type": "Started", "status": "False"}


def test_template_of_v1alpha1_gives_its_timeout_and_names_what_has_no_effect() -> None:
    rendered = RenderedTemplate([plain(0)], timeout=600, ignored=("spec.data: on-failure: there are no reactions",))
    status = status_in(prepare(make_workflow(), render=lambda *_: rendered))
    assert (status["state"], status["timeout"]) == ("Pending", 600)
    prepared = condition(status, "Prepared")
    assert (prepared["status"], prepared["reason"]) == ("True", "FieldsIgnored")
    assert prepared["message"] == "no effect: spec.data: on-failure: there are no reactions"
    # The Workflow has that time. Its own spec.timeout comes first.
    workflow = running()
    workflow["status"]["timeout"] = 600
    assert look(workflow, CREATED + 590) == Decision(requeue_after=10)
    workflow["spec"]["timeout"] = 900
    assert look(workflow, CREATED + 590) == Decision(requeue_after=310)


def test_a_workflow_that_just_fits_is_run() -> None:
    workflow = make_workflow(spec={"templateParams": {"k": "x" * 900_000}})

    def prepared(length: int) -> Raw:
        return status_in(
            prepare(workflow, render=lambda *_: RenderedTemplate([plain(0, image="x" * length, reboots=True)]))
        )

    message = condition(prepared(600_000), "Succeeded")["message"]
    found = re.search(r"would have (\d+) bytes", message)
    assert found is not None
    fits = 600_000 - (int(found[1]) - MAX_OBJECT_BYTES)
    assert [prepared(length)["state"] for length in (fits, fits + 1)] == ["Pending", "Failed"]


def test_what_the_api_refuses_fails_the_workflow_with_its_words() -> None:
    outcome = refused(make_workflow(finalizer=True), "status.actions: Too many (Invalid, 422)", CREATED)
    status = status_in(outcome)
    assert status["state"] == "Failed"
    assert condition(status, "Succeeded")["reason"] == "RefusedByAPI"
    assert "status.actions: Too many (Invalid, 422)" in condition(status, "Succeeded")["message"]
    assert finalizers_in(outcome) == ["other/one"]


def test_the_next_object_of_the_same_file_is_waited_for_in_silence_and_then_with_low_priority() -> None:
    silent = prepare(now=CREATED + 0.25, template=None, render=never)
    assert silent == Decision(requeue_after=0.75, waits_for=(ObjectReference("Template", "d", "t"),))
    waiting = prepare(now=CREATED + 2, template=None, render=never)
    assert condition(status_in(waiting), "Started") == {"type": "Started", "status": "False"}
    assert condition(status_in(waiting), "Succeeded") == {"type": "Succeeded", "status": "Unknown"}
    # To say that nothing can be done can wait for what can be done.
    assert waiting.low_priority
    assert prepare(now=CREATED + 99, template=None, render=never).low_priority
    assert not look(make_workflow("Pending", deleted=True), CREATED).low_priority


def test_a_spec_changed_long_after_its_creation_has_the_whole_time_for_its_new_reference() -> None:
    workflow = generation(make_workflow("Pending", observedGeneration=1, actions=[{"id": "a"}]), 2)

    def seen(seconds: float) -> Decision:
        return prepare(workflow, CREATED + 86_400 + seconds, template=None, render=never)

    outcome = seen(0)
    assert outcome.requeue_after == 60
    workflow["status"] |= status_in(outcome)
    assert seen(59).requeue_after == pytest.approx(1)
    assert status_in(seen(60))["state"] == "Failed"


@pytest.mark.parametrize("actions", [None, [], "none"])
def test_pending_written_by_hand_is_prepared_all_the_same(actions: Any) -> None:
    outcome = prepare(make_workflow("Pending", finalizer=False, actions=actions))
    assert len(status_in(outcome)["actions"]) == 2
    assert finalizers_in(outcome) == [FINALIZER]


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Cancelling"])
def test_a_finalizer_taken_away_by_hand_is_put_back_while_an_agent_may_run_it(state: str) -> None:
    more: Raw = {"actions": [{"id": "a"}], "startedAt": STAMP, "conditions": CANCELLING}
    assert finalizers_in(look(make_workflow(state, finalizer=False, **more), CREATED)) == [FINALIZER]
    going = look(make_workflow(state, finalizer=False, deleted=True, **more), CREATED)
    assert finalizers_in(going) is None, "Kubernetes takes none while an object is being deleted"


# --- deletion -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "after", "finalizers"),
    [
        ("Pending", "Canceled", ["other/one"]),
        ("Scheduled", "Cancelling", None),
        ("Running", "Cancelling", None),
        (None, None, ["other/one"]),
    ],
)
def test_deleting_cancels_a_workflow_and_lets_it_go_if_no_agent_has_it(
    state: str | None, after: str | None, finalizers: list[str] | None
) -> None:
    status: Raw = {"startedAt": STAMP} if after == "Cancelling" else {}
    outcome = look(make_workflow(state, deleted=True, finalizer=True, **status), CREATED)
    assert finalizers_in(outcome) == finalizers
    if after is not None:
        assert status_in(outcome)["state"] == after
    kinds = [patch.subresource for patch in outcome.patches]
    assert kinds == ["status"] * (after is not None) + [None] * (finalizers is not None), "the end must be seen first"
    assert look(make_workflow(None, deleted=True), CREATED) == Decision()


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running", "Succeeded", "Failed"])
def test_a_workflow_that_an_older_release_has_written_gets_its_message(state: str) -> None:
    actions = [{"id": "a", "state": "Running", "rendered": {"name": "write"}}]
    workflow = make_workflow(state, actions=actions)
    message = workflow["status"].pop("message")
    outcome = look(workflow, CREATED)
    assert message
    version = {} if state in ("Succeeded", "Failed") else {"creationVersion": "7"}
    assert status_in(outcome) == {"message": message} | version
    if state in ("Succeeded", "Failed"):
        workflow["status"]["message"] = "as it was at its end"
        assert all(patch.subresource is None for patch in look(workflow, CREATED).patches)


# --- timeouts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "after", "reason"),
    [("Scheduled", "Failed", "StartTimeout"), ("Cancelling", "Canceled", "CancelTimeout")],
)
def test_scheduled_or_cancelling_for_too_long_ends_with_its_reason(state: str, after: str, reason: str) -> None:
    conditions = CANCELLING if state == "Cancelling" else []
    workflow = make_workflow(state, deleted=state == "Cancelling", conditions=conditions, dispatched=True)
    assert look(workflow, CREATED + 299) == Decision(requeue_after=1)
    outcome = look(workflow, CREATED + 300)
    assert status_in(outcome)["state"] == after
    assert condition(status_in(outcome), "Succeeded")["reason"] == reason
    assert finalizers_in(outcome) == ["other/one"]
    workflow["status"]["lastTransitioned"] = "2999-01-01T00:00:00Z"
    assert look(workflow, CREATED) == Decision(requeue_after=300), "one in the future is looked at within the timeout"
    workflow["status"]["lastTransitioned"] = "whenever"
    assert status_in(look(workflow, CREATED + 300))["state"] == after, "one taken away by hand stops no clock"


# A Workflow that is set to Cancelling, and whether an agent may have it.
CANCELLED: dict[str, tuple[Raw, bool]] = {
    "new": ({}, False),  # before anybody looked at it
    "waits": ({"conditions": [{"type": "Prepared", "status": "False", "reason": "HardwareNotFound"}]}, False),
    "prepared": ({"actions": ACTIONS, "dispatched": False}, False),
    "rejected": ({"actions": ACTIONS, "dispatched": False, "rejections": 2, "dispatchAfter": STAMP}, False),
    "taken back": ({"actions": ACTIONS, "dispatched": False, "claimedAt": STAMP}, False),
    # by a writer that did not know
    "noted": ({"actions": ACTIONS, "dispatched": False, "conditions": CANCELLING}, False),
    "dispatched": ({"actions": ACTIONS, "dispatched": True}, True),
    "older version": ({"actions": ACTIONS}, True),  # it may have been dispatched by one, too
    # The claim was taken back, the command had arrived.
    "begun": ({"actions": [{**ACTIONS[0], "state": "Running", "startedAt": STAMP}], "dispatched": False}, True),
    "started": ({"actions": ACTIONS, "dispatched": False, "startedAt": STAMP}, True),
    "no actions": ({"dispatched": True}, True),  # another writer removed the actions
}


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("name", CANCELLED)
def test_what_no_agent_has_ends_at_once_when_it_is_set_to_cancelling(name: str, deleted: bool) -> None:
    status, has = CANCELLED[name]
    outcome = look(make_workflow("Cancelling", deleted=deleted, **status), CREATED + 1)
    changed = status_in(outcome)
    if has:
        assert "state" not in changed
        assert condition(changed, "Succeeded")["reason"] == "Cancelling"
    else:
        assert (changed["state"], condition(changed, "Succeeded")["reason"]) == ("Canceled", "Canceled")
        assert finalizers_in(outcome) == ["other/one"]


@pytest.mark.parametrize("deleted", [False, True])
def test_cancelling_set_by_hand_long_after_the_last_transition_gives_the_agent_its_time(deleted: bool) -> None:
    workflow = make_workflow("Cancelling", deleted=deleted, dispatched=True)
    status = status_in(look(workflow, CREATED + 4000))
    assert "state" not in status
    workflow["status"] |= status
    assert look(workflow, CREATED + 4100) == Decision(requeue_after=200)


def running(*, timeout: int = 0, action: Raw | None = None) -> Raw:
    actions = [
        {"id": "a0", "state": "Succeeded", "startedAt": STAMP, "rendered": {"name": "x", "timeout": 1}},
        {"id": "a1", "state": "Running", "startedAt": "2027-01-15T08:01:40.000Z", "rendered": action or {"name": "y"}},
        {"id": "a2", "state": "Pending", "rendered": {"name": "z", "timeout": 1}},
    ]
    return make_workflow("Running", startedAt=STAMP, actions=actions, spec={"timeout": timeout})


@pytest.mark.parametrize(
    ("timeout", "action", "default", "after", "reason"),
    [
        (600, 0, 0, 600, "WorkflowTimeout"),  # counts from the start of the first action
        (6000, 50, 0, 150, "ActionTimeout"),  # from the start of that action
        (0, 0, 20, 120, "ActionTimeout"),
        (0, 50, 20, 150, "ActionTimeout"),  # the default is for actions that give none
        (0, 0, 0, 1e7, ""),
    ],
)
def test_timeouts_of_a_running_workflow(timeout: int, action: int, default: int, after: float, reason: str) -> None:
    workflow = running(timeout=timeout, action={"name": "y", "timeout": action})
    settings = ControllerSettings(action_timeout=default) if default else SETTINGS
    early, late = (look(workflow, CREATED + after - before, settings) for before in (10, 0))
    assert early == Decision(requeue_after=10 if reason else None)
    if not reason:
        assert late == early, "without timeouts it runs for ever"
        return
    status = status_in(late)
    assert (status["state"], condition(status, "Succeeded")["reason"]) == ("Failed", reason)
    assert [each["state"] for each in status["actions"]] == ["Succeeded", "Failed", "Pending"]
    if reason == "ActionTimeout":
        assert "'y'" in condition(status, "Succeeded")["message"]


@pytest.mark.parametrize("states", [None, (), ("Succeeded", "Succeeded"), ("Succeeded", "Failed")])
def test_a_running_workflow_whose_actions_were_edited_away_does_not_block_its_machine_for_ever(
    states: tuple[str, ...] | None,
) -> None:
    actions = states and [{"id": f"a{index}", "state": state} for index, state in enumerate(states)]
    workflow = make_workflow("Running", startedAt=STAMP, actions=actions)
    outcome = look(workflow, CREATED)
    succeeded = condition(status_in(outcome), "Succeeded")
    assert (status_in(outcome)["state"], succeeded["reason"]) == ("Failed", "InvalidStatus")
    assert "its status was edited by hand" in succeeded["message"]
    workflow["status"] |= status_in(outcome)
    assert unconfirmed(workflow), "an agent that still runs it is told to stop"


@pytest.mark.parametrize(("timeout", "action"), [(600, 0), (0, 500)])
def test_the_time_of_a_last_action_that_reboots_is_up_when_the_machine_has_gone(timeout: int, action: int) -> None:
    workflow = running(timeout=timeout, action={"name": "y", "reboots": True, "timeout": action})
    workflow["status"]["actions"].pop()
    outcome = look(workflow, CREATED + 600)
    assert status_in(outcome)["state"] == "Succeeded"
    assert finalizers_in(outcome) == ["other/one"]


def test_who_knows_better_says_how_old_each_timestamp_is() -> None:
    asked: list[str] = []

    def age(path: str, _: float) -> float:
        asked.append(path)
        return 45.0

    workflow = running(timeout=600, action={"name": "y", "timeout": 50})
    assert reconcile(workflow, hardware, None, SETTINGS, CREATED + 1e9, never, age) == Decision(requeue_after=5)
    assert asked == ["status.actions[a1].startedAt", "status.startedAt"]
    assert set(asked) < {path for path, _ in timestamps(workflow)}
    assert reconcile(make_workflow("Scheduled"), hardware, None, SETTINGS, 0, never, age) == Decision(requeue_after=255)
    assert reconcile(make_workflow(), None, None, SETTINGS, 0, never, age).requeue_after == 15
    assert set(asked) == {path for path, _ in timestamps(workflow)}


def test_invalid_timestamps_count_as_absent_and_invalid_states_are_errors() -> None:
    workflow = make_workflow("Running", lastTransitioned="soon", startedAt=7)
    assert list(timestamps(workflow)) == [("metadata.creationTimestamp", CREATED)]
    with pytest.raises(InvalidStatusError, match="d/w"):
        look(make_workflow("Paused"), CREATED)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("scheduled_timeout", 0), ("action_timeout", -1), ("workers", 0), ("history_limit", 0), ("history_limit", -1)],
)
def test_senseless_settings_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        ControllerSettings(**{setting: value})


# --- held, or moved to another API ---


def annotated(workflow: Raw, annotation: str) -> Raw:
    workflow["metadata"]["annotations"] = {annotation: "made from a backup"}
    return workflow


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled"])
def test_held_workflow_is_neither_prepared_nor_timed_out_and_says_why(state: str | None) -> None:
    held = annotated(make_workflow(state), HOLD_ANNOTATION)
    outcome = reconcile(held, hardware, template, SETTINGS, LATE, never)
    said = condition(status_in(outcome), "Started")
    assert (said["status"], said["reason"]) == ("False", "Held")
    assert "made from a backup" in said["message"]
    assert f"kubectl annotate -n d workflow w {HOLD_ANNOTATION}-" in said["message"]
    assert status_in(outcome)["message"] == f"held ({HOLD_ANNOTATION}): made from a backup", "for kubectl get"
    assert "state" not in status_in(outcome)
    assert outcome.requeue_after is None
    held["status"] = {**held.get("status", {}), **status_in(outcome)}
    assert reconcile(held, hardware, template, SETTINGS, LATE, never) == Decision(), "said once"


def test_message_of_a_hold_is_removed_with_the_hold() -> None:
    released = make_workflow(
        "Pending",
        actions=[{"id": "a", "state": "Pending"}],
        conditions=[{"type": "Started", "status": "False", "reason": "Held", "message": "m"}],
        message=f"held ({HOLD_ANNOTATION}): m",
    )
    outcome = reconcile(released, hardware, template, SETTINGS, CREATED, render)
    assert condition(status_in(outcome), "Started") == {"type": "Started", "status": "False"}
    assert status_in(outcome)["message"] == "waits for the machine's agent"


def test_held_workflow_can_be_deleted_and_cancelled_and_what_has_begun_goes_on() -> None:
    deleted = annotated(make_workflow("Pending", deleted=True, dispatched=False), HOLD_ANNOTATION)
    cancelled = annotated(make_workflow("Cancelling", dispatched=False), HOLD_ANNOTATION)
    for workflow in (deleted, cancelled):
        assert status_in(look(workflow, CREATED))["state"] == "Canceled"
    begun = annotated(running(timeout=1), HOLD_ANNOTATION)
    assert status_in(look(begun, LATE))["state"] == "Failed"


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled", "Running", "Cancelling", "Succeeded"])
@pytest.mark.parametrize("deleted", [False, True])
def test_paused_workflow_is_left_alone(state: str | None, deleted: bool) -> None:
    paused = annotated(make_workflow(state, deleted=deleted, spec={"timeout": 1}), PAUSED_ANNOTATION)
    assert reconcile(paused, None, None, SETTINGS, LATE, never) == Decision()


# --- ended ---

STATES = ["Succeeded", "Failed", "Canceled"]


def ended(ttl: int | None = 60, state: str = "Succeeded", name: str = "w", at: str = STAMP) -> Any:
    spec = {} if ttl is None else {"ttlSecondsAfterFinished": ttl}
    return make_workflow(state, name=name, finalizer=False, spec=spec, lastTransitioned=at)


@pytest.mark.parametrize("state", STATES)
def test_it_goes_when_its_time_is_up_and_not_before(state: str) -> None:
    workflow = ended(60, state)
    assert look(workflow, CREATED + 59) == Decision(requeue_after=1.0)
    gone = look(workflow, CREATED + 60)
    assert "spec.ttlSecondsAfterFinished" in gone.delete
    assert gone.patches == ()
    assert look(ended(0, state), CREATED).delete, "at once"
    # The clock that wrote it is ahead of ours, or ours was set back.
    assert look(workflow, CREATED - 1000) == Decision(requeue_after=60.0)


@pytest.mark.parametrize("state", [None, "Pending", "Scheduled", "Running", "Cancelling"])
def test_what_has_not_ended_never_goes(state: str | None) -> None:
    workflow = make_workflow(state, spec={"ttlSecondsAfterFinished": 0})
    settings = replace(SETTINGS, history_limit=1)
    outcome = reconcile(workflow, None, None, settings, CREATED + 1e6, never, surplus=True)
    assert outcome.delete == ""


@pytest.mark.parametrize("annotation", [HOLD_ANNOTATION, PAUSED_ANNOTATION])
@pytest.mark.parametrize("surplus", [False, True])
def test_held_or_moved_workflow_is_not_deleted(annotation: str, surplus: bool) -> None:
    workflow = ended(0)
    workflow["metadata"]["annotations"] = {annotation: "for the record"}
    assert reconcile(workflow, None, None, SETTINGS, CREATED + 1e6, never, surplus=surplus) == Decision()


def test_its_finalizer_goes_first_and_a_deletion_is_asked_for_once() -> None:
    with_finalizer = make_workflow("Succeeded", spec={"ttlSecondsAfterFinished": 0})
    assert (look(with_finalizer, CREATED).delete, len(look(with_finalizer, CREATED).patches)) == ("", 1)
    deleted = make_workflow("Succeeded", finalizer=False, deleted=True, spec={"ttlSecondsAfterFinished": 0})
    assert look(deleted, CREATED) == Decision(), "somebody else's finalizer keeps it"


@pytest.mark.parametrize("state", STATES)
def test_finalizer_is_removed_seconds_after_the_end_and_at_once_after_a_deletion(state: str) -> None:
    assert look(make_workflow(state), CREATED + 4) == Decision(requeue_after=6.0)
    for outcome in (look(make_workflow(state), CREATED + 10), look(make_workflow(state, deleted=True), CREATED + 4)):
        assert finalizers_in(outcome) == ["other/one"]
        assert len(outcome.patches) == 1
    for deleted in (False, True):
        assert look(make_workflow(state, deleted=deleted, finalizer=False), CREATED) == Decision()


def test_the_finalizer_goes_at_once_when_the_workflow_is_to_go() -> None:
    settings = replace(SETTINGS, history_limit=1)
    outcome = reconcile(make_workflow("Failed"), None, None, settings, CREATED, never, surplus=True)
    assert finalizers_in(outcome) == ["other/one"]
    timed = make_workflow("Succeeded", spec={"ttlSecondsAfterFinished": 3})
    assert look(timed, CREATED + 1) == Decision(requeue_after=2.0)
    assert finalizers_in(look(timed, CREATED + 3)) == ["other/one"]


@pytest.mark.parametrize("ttl", [True, -1, "60", 1.5, None])
def test_a_time_that_is_none_deletes_nothing(ttl: Any) -> None:
    workflow = ended(60)
    workflow["spec"]["ttlSecondsAfterFinished"] = ttl
    assert look(workflow, LATE) == look(ended(None), LATE) == Decision()


# --- so many of each Hardware ---


def test_the_newest_of_each_hardware_stay_whatever_order_they_come_in() -> None:
    history, told = WorkflowHistory(2), []
    for day in (3, 1, 5, 2, 4):
        told += history.apply(ended(None, name=f"w{day}", at=f"2027-01-{day:02}T00:00:00Z"))
    other = ended(None, name="other")
    other["spec"]["hardwareRef"] = {"name": "another"}
    assert history.apply(other) == []
    surplus = [day for day in range(1, 6) if history.is_surplus(NamespacedName("d", f"w{day}"))]
    assert surplus == [1, 2, 3]
    assert {key.name for key in told} == {"w1", "w2", "w3"}, "each is told of"
    assert not history.is_surplus(NamespacedName("d", "other"))
    for day in surplus:
        history.remove(NamespacedName("d", f"w{day}"))
    assert (len(history), history.is_surplus(NamespacedName("d", "w4"))) == (3, False)


def test_of_workflows_that_ended_at_one_time_the_one_created_last_stays() -> None:
    history = WorkflowHistory(1)
    for name, version in (("a", "12"), ("b", "9")):
        workflow = ended(None, name=name)
        workflow["metadata"]["resourceVersion"] = version
        history.apply(workflow)
    assert history.is_surplus(NamespacedName("d", "b"))
    assert not history.is_surplus(NamespacedName("d", "a"))


def test_what_is_held_does_not_count() -> None:
    history = WorkflowHistory(1)
    held = ended(None, name="held", at="2027-02-01T00:00:00Z")
    held["metadata"]["annotations"] = {HOLD_ANNOTATION: ""}
    history.apply(held)
    assert history.apply(ended(None, name="w")) == []
    assert not history.is_surplus(NamespacedName("d", "w"))
    del held["metadata"]["annotations"]
    assert history.apply(held) == [NamespacedName("d", "w")]


def test_without_a_limit_nothing_is_kept_and_nothing_goes() -> None:
    history = WorkflowHistory(None)
    assert history.apply(ended()) == []
    assert (len(history), history.is_surplus(NamespacedName("d", "w"))) == (0, False)


# --- the Hardware is gone ---------------------------------------------------------------------------------------------

GONE = "Hardware d/h is gone: "
GONE_AT = CREATED + 100
UNTIL = "2027-01-15T08:06:40Z"
"""GONE_AT and 300 s."""


def without_hardware(workflow: Raw, now: float = GONE_AT) -> Decision:
    return reconcile(workflow, None, template, SETTINGS, now, never)


def noted(state: str, **status: Any) -> Raw:
    """Return a Workflow in this state on which the controller has noted that its Hardware is gone."""
    workflow = make_workflow(state, actions=[objects.action("a0", "Pending")], **status)
    if state == "Running":
        workflow["status"]["actions"] = [objects.action("a0", "Running", name="x")]
    workflow["status"] |= status_in(without_hardware(workflow))
    return workflow


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("Pending", "apply it again, or delete this Workflow"),
        ("Scheduled", f"apply it again before {UNTIL}, or the Workflow fails"),
        ("Running", f"apply it again before {UNTIL}, or the Workflow fails"),
        ("Cancelling", "nobody hears from its agent whether it has stopped"),
    ],
)
def test_workflow_whose_hardware_was_deleted_says_so_and_what_happens_now(state: str, says: str) -> None:
    conditions = CANCELLING if state == "Cancelling" else []
    workflow = noted(state, conditions=conditions, startedAt=STAMP)
    assert workflow["status"]["state"] == state
    assert workflow["status"]["message"] == GONE + says
    gone = condition(workflow["status"], "HardwareGone")
    assert gone == {"type": "HardwareGone", "status": "True", "reason": "HardwareDeleted", "message": GONE + says}
    assert without_hardware(workflow, GONE_AT + 100).patches == (), "once is enough"


@pytest.mark.parametrize("state", ["Pending", "Scheduled", "Running"])
def test_hardware_that_is_applied_again_lets_its_workflow_go_on(state: str) -> None:
    workflow = noted(state)
    status = status_in(look(workflow, GONE_AT + 60))
    back = {"type": "HardwareGone", "status": "False", "reason": "HardwareBack"}
    assert (condition(status, "HardwareGone"), "state" in status) == (back, False)
    assert GONE not in status["message"]
    workflow["status"] |= status
    assert look(workflow, GONE_AT + 61).patches == ()


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_what_an_agent_has_fails_when_its_hardware_stays_away(state: str) -> None:
    workflow = noted(state)
    assert without_hardware(workflow, GONE_AT + 100).requeue_after == pytest.approx(200)
    status = status_in(without_hardware(workflow, GONE_AT + 300))
    succeeded = condition(status, "Succeeded")
    assert (status["state"], succeeded["status"], succeeded["reason"]) == ("Failed", "False", "HardwareGone")
    said = "Hardware d/h was deleted while the agent had the Workflow, and was not there again within 300 s"
    assert (succeeded["message"], status["message"]) == (said, f"HardwareGone: {said}")
    workflow["status"] |= status
    assert unconfirmed(workflow), "an agent that comes back is told to stop"
    assert look(workflow, GONE_AT + 400).patches[0].subresource is None, "the end stays as it is"


def test_pending_workflow_waits_for_its_hardware_without_an_end() -> None:
    assert without_hardware(noted("Pending"), GONE_AT + 1e6) == Decision()


def test_last_action_that_reboots_its_machine_has_done_so_when_the_hardware_stays_away() -> None:
    workflow = make_workflow("Running", actions=[objects.action("a0", "Running", reboots=True)])
    workflow["status"] |= status_in(without_hardware(workflow))
    status = status_in(without_hardware(workflow, GONE_AT + 300))
    assert (status["state"], condition(status, "Succeeded")["reason"]) == ("Succeeded", "RebootAssumed")


@pytest.mark.parametrize("state", ["Scheduled", "Running"])
def test_definitions_that_drop_the_time_of_conditions_give_no_deadline_and_no_end_of_writes(state: str) -> None:
    workflow = noted(state)
    del workflow["status"]["conditions"][-1]["lastTransitionTime"]
    status = status_in(without_hardware(workflow, GONE_AT + 600))
    assert condition(status, "HardwareGone")["message"] == "Hardware d/h is gone: apply it again"
    status["conditions"][-1].pop("lastTransitionTime")
    workflow["status"] |= status
    (again,) = without_hardware(workflow, GONE_AT + 1200).patches
    again.body["status"]["conditions"][-1].pop("lastTransitionTime")
    assert again.body["status"] == {"conditions": status["conditions"], **again.body["status"]}, (
        "the API changes nothing"
    )
    assert "state" not in again.body["status"]
