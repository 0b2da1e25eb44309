"""Workflow in both served versions: fields, guards, and the status that v1alpha1's clients read."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.versions.properties import (
    check_down_and_up,
    check_up_and_down,
    completed,
    damaged,
    partial,
    random_objects,
    refusals,
)
from tests.unit.versions.rendering import CORPORA, objects_of
from tink.api.annotations import HOLD_ANNOTATION, INCOMPLETE_ANNOTATION, V1ALPHA1_ANNOTATION, V1ALPHA2_ANNOTATION
from tink.api.v1alpha2 import BOOT_FINALIZER, Raw
from tink.versions import NEW, OLD, convert
from tink.versions.workflow import DISABLED, UNSET

CAPT: Raw = {
    "bootOptions": {"bootMode": "netboot", "toggleAllowNetboot": True},
    "hardwareMap": {"device_1": "52:54:00:00:00:01"},
    "hardwareRef": "hw1",
    "templateRef": "tm1",
}
"""The spec that Cluster API's provider writes."""
CUSTOM: Raw = {
    "bootMode": "customboot",
    "custombootConfig": {
        "preparingActions": [
            {"powerAction": "off"},
            {"virtualMediaAction": {"kind": "CD", "mediaURL": "http://10.0.0.1/{{ .Hardware.Disks }}.iso"}},
            {"bootDevice": {"device": "cdrom", "efiBoot": True}},
            {"powerAction": "on"},
        ],
        "postActions": [{"virtualMediaAction": {"kind": "CD", "mediaURL": ""}}],
    },
}


def old(spec: Any, annotations: Raw | None = None, **more: Any) -> Raw:
    metadata: Raw = {"name": "w", "namespace": "n", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": OLD, "kind": "Workflow", "metadata": metadata, "spec": spec, **more}


def new(spec: Any, annotations: Raw | None = None, **more: Any) -> Raw:
    return {**old(spec, annotations, **more), "apiVersion": NEW}


# --- random objects


def _maybe(rng: random.Random, odds: float = 0.5) -> bool:
    return rng.random() < odds


def _bmc_actions(rng: random.Random) -> list[Raw]:
    return [
        rng.choice(
            [
                {"powerAction": rng.choice(["on", "off", "soft", "cycle", "reset", "status", "hard"])},
                {"oneTimeBootDeviceAction": {"device": rng.choice([["pxe"], ["disk", "bios"], [], ["floppy"]])}},
                {"bootDevice": {"device": rng.choice(["pxe", "cdrom", "none"]), "persistent": _maybe(rng)}},
                {"virtualMediaAction": {"kind": "CD", "mediaURL": rng.choice(["", "http://h/i.iso", "ftp://h/i"])}},
                {"virtualMediaAction": {"kind": "C" * 300, "mediaURL": "http://h/{{ .Hardware.Disks }}"}},
            ]
        )
        for _ in range(rng.randrange(3))
    ]


def _boot_options(rng: random.Random) -> Raw:
    found: Raw = {}
    if _maybe(rng):
        found["toggleAllowNetboot"] = _maybe(rng)
    if _maybe(rng, 0.8):
        found["bootMode"] = rng.choice(["netboot", "iso", "isoboot", "customboot"])
    if _maybe(rng, 0.4):
        found["isoURL"] = rng.choice(
            [
                "http://h:7171/iso/52:54:00:00:00:01/hook.iso",
                "http://h/a.iso",
                "not a url",
                "ftp://h/x",
                "http://h/{{ .x }}",
            ]
        )
    if _maybe(rng, 0.4):
        found["custombootConfig"] = {
            key: _bmc_actions(rng) for key in ("preparingActions", "postActions") if _maybe(rng)
        }
    return found


def random_old(rng: random.Random) -> Raw:
    spec: Raw = {}
    for key in ("hardwareRef", "templateRef"):
        if _maybe(rng, 0.9):
            spec[key] = rng.choice(["hw1", "tm1", "", UNSET, "Not A Name", "x" * 300])
    if _maybe(rng, 0.8):
        spec["hardwareMap"] = rng.choice([{}, {"device_1": "a", "my-key": ""}, {f"k{n}": "v" for n in range(300)}])
    if _maybe(rng):
        spec["disabled"] = _maybe(rng)
    if _maybe(rng, 0.7):
        spec["bootOptions"] = _boot_options(rng)
    annotations = {"user": "1"} if _maybe(rng) else {}
    if _maybe(rng, 0.1):
        annotations[HOLD_ANNOTATION] = rng.choice(["why", DISABLED])
    return old(spec, annotations)


def random_new(rng: random.Random) -> Raw:
    spec: Raw = {
        "hardwareRef": {"name": rng.choice(["hw1", UNSET])},
        "templateRef": {"name": rng.choice(["t1", "t2"])},
        "timeout": rng.choice([0, 0, 600]),
    }
    if _maybe(rng):
        spec["templateParams"] = rng.choice([{}, {"a": "1"}, {"a": "", "b": "2"}])
    if _maybe(rng, 0.3):
        spec["ttlSecondsAfterFinished"] = rng.choice([0, 60])
    if _maybe(rng):
        spec["bootOptions"] = rng.choice(
            [
                {},
                {"toggleAllowNetboot": False},
                {"bootMode": "netboot", "toggleAllowNetboot": True},
                {"bootMode": "isoboot", "isoURL": "http://h/{{ .Hardware.StorageDevices }}.iso"},
                {"bootMode": "customboot", "custombootConfig": {"preparingActions": [{"powerAction": "on"}]}},
                {"custombootConfig": {}},
            ]
        )
    annotations = {HOLD_ANNOTATION: rng.choice(["why", DISABLED])} if _maybe(rng, 0.3) else {}
    if _maybe(rng):
        annotations["user"] = "1"
    status = {"state": "Pending", "message": "waits for the controller"}
    return new(spec, annotations, **({"status": status} if _maybe(rng) else {}))


def test_random_objects_of_v1alpha1_come_back_and_are_valid_in_v1alpha2() -> None:
    for obj in random_objects(random_old, 1):
        check_up_and_down(obj)


def test_random_objects_of_v1alpha2_come_back() -> None:
    for obj in random_objects(random_new, 2):
        check_down_and_up(obj)


def test_edits_in_v1alpha2_show_in_v1alpha1_and_come_back() -> None:
    for obj in random_objects(random_old, 3):
        stored = convert(obj, NEW)
        stored["spec"] = {**stored["spec"], "hardwareRef": {"name": "other"}, "templateParams": {"edited": "1"}}
        view = convert(stored, OLD)
        assert view["spec"]["hardwareRef"] == "other"
        assert view["spec"]["hardwareMap"]["edited"] == "1"
        assert view["spec"].get("disabled") == obj["spec"].get("disabled")
        assert view["spec"].get("bootOptions") == obj["spec"].get("bootOptions")
        assert convert(view, NEW)["spec"] == stored["spec"]


def test_edits_in_v1alpha1_show_in_v1alpha2_and_change_nothing_else() -> None:
    for obj in random_objects(random_new, 4):
        view = copy.deepcopy(convert(obj, OLD))
        view["spec"]["templateRef"] = "other"
        view["spec"].setdefault("hardwareMap", {})["edited"] = "1"
        edited = convert(view, NEW)
        wanted = copy.deepcopy(obj["spec"])
        wanted["templateRef"]["name"] = "other"
        wanted.setdefault("templateParams", {})["edited"] = "1"
        assert completed(edited)["spec"] == {"timeout": 0, **wanted}
        assert edited.get("status") == obj.get("status")


def test_damaged_objects_are_converted_in_both_directions() -> None:
    rng = random.Random(5)
    for obj in [*random_objects(random_old, 5), *random_objects(_with_status, 6)]:
        bad = damaged(obj, rng)
        before = copy.deepcopy(bad)
        converted = convert(bad, NEW if bad["apiVersion"] == OLD else OLD)
        assert bad == before
        convert(converted, bad["apiVersion"])
        if bad["apiVersion"] == OLD:
            assert refusals(converted) == []


def test_deeply_nested_objects_are_converted_in_both_directions() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    for spec in (deep, {"bootOptions": deep}, {"templateParams": [deep], "hardwareMap": deep}):
        convert(old(spec), NEW)
        convert(new(spec), OLD)


def test_partial_objects_are_converted_in_both_directions() -> None:
    rng = random.Random(7)
    for obj in [*random_objects(random_old, 8), *random_objects(_with_status, 9)]:
        part = partial(obj, rng)
        target = NEW if part["apiVersion"] == OLD else OLD
        assert convert(part, target) == convert(copy.deepcopy(part), target)


@pytest.mark.parametrize("file", sorted(CORPORA.glob("*.yaml")), ids=lambda path: path.name)
def test_real_workflows_come_back(file: Path) -> None:
    for obj in objects_of(file, "Workflow"):
        if obj["apiVersion"] == OLD:
            check_up_and_down(obj)
        else:
            check_down_and_up(obj)


# --- fields


def test_workflow_of_capt_has_its_references_parameters_and_boot_options() -> None:
    stored = convert(old(CAPT), NEW)
    assert stored["spec"] == {
        "hardwareRef": {"name": "hw1"},
        "templateRef": {"name": "tm1"},
        "templateParams": {"device_1": "52:54:00:00:00:01"},
        "bootOptions": {"bootMode": "netboot", "toggleAllowNetboot": True},
    }
    assert "annotations" not in stored["metadata"]


def test_names_that_are_missing_are_filled_in_and_marked() -> None:
    stored = convert(old({}), NEW)
    assert stored["spec"] == {"hardwareRef": {"name": UNSET}, "templateRef": {"name": UNSET}}
    assert stored["metadata"]["annotations"][INCOMPLETE_ANNOTATION] == (
        "spec.hardwareRef.name: the v1alpha1 Workflow names no Hardware; "
        "spec.templateRef.name: the v1alpha1 Workflow names no Template"
    )
    assert convert(stored, OLD) == old({})


def test_name_that_stands_for_nothing_is_not_shown_in_v1alpha1() -> None:
    assert (
        "hardwareRef" not in convert(new({"hardwareRef": {"name": UNSET}, "templateRef": {"name": "t"}}), OLD)["spec"]
    )


def test_parameter_that_is_too_long_is_kept_for_v1alpha1_alone() -> None:
    obj = old({**CAPT, "hardwareMap": {"a": "x" * 131_073, "b": "y"}})
    stored = convert(obj, NEW)
    assert stored["spec"]["templateParams"] == {"b": "y"}
    assert refusals(stored) == []
    assert convert(stored, OLD) == obj


def test_disabled_holds_the_workflow_and_false_lets_it_go() -> None:
    stored = convert(old({**CAPT, "disabled": True}), NEW)
    assert stored["metadata"]["annotations"] == {HOLD_ANNOTATION: DISABLED}
    view = convert(stored, OLD)
    assert view["spec"]["disabled"] is True
    view["spec"]["disabled"] = False
    assert HOLD_ANNOTATION not in convert(view, NEW)["metadata"].get("annotations", {})


def test_hold_of_an_operator_stays_when_a_workflow_is_enabled() -> None:
    stored = convert(old({**CAPT, "disabled": True}, {HOLD_ANNOTATION: "why"}), NEW)
    assert stored["metadata"]["annotations"][HOLD_ANNOTATION] == "why"
    view = convert(stored, OLD)
    assert view["spec"]["disabled"] is True
    del view["spec"]["disabled"]
    assert convert(view, NEW)["metadata"]["annotations"][HOLD_ANNOTATION] == "why"


def test_hold_that_is_removed_in_v1alpha2_enables_the_workflow_in_v1alpha1() -> None:
    stored = convert(old({**CAPT, "disabled": True}), NEW)
    del stored["metadata"]["annotations"]
    assert "disabled" not in convert(stored, OLD)["spec"]


def test_custom_boot_is_carried_with_its_actions() -> None:
    stored = convert(old({**CAPT, "bootOptions": CUSTOM}), NEW)
    made = stored["spec"]["bootOptions"]
    assert made["bootMode"] == "customboot"
    assert [next(iter(each)) for each in made["custombootConfig"]["preparingActions"]] == [
        "powerAction",
        "virtualMediaAction",
        "bootDevice",
        "powerAction",
    ]
    assert refusals(stored) == []


@pytest.mark.parametrize(
    "options",
    [
        {"bootMode": "customboot"},
        {"bootMode": "isoboot", "isoURL": "ftp://h/x"},
        {"bootMode": "customboot", "custombootConfig": {"preparingActions": [{"powerAction": "explode"}]}},
        {"bootMode": "customboot", "custombootConfig": {"preparingActions": [{"unknown": {}}]}},
    ],
)
def test_boot_options_that_v1alpha2_refuses_are_left_out_with_the_reason(options: Raw) -> None:
    stored = convert(old({**CAPT, "bootOptions": {**options, "toggleAllowNetboot": True}}), NEW)
    assert stored["spec"]["bootOptions"] == {"toggleAllowNetboot": True}
    reason = stored["metadata"]["annotations"][INCOMPLETE_ANNOTATION]
    assert reason.startswith("spec.bootOptions: only toggleAllowNetboot is used: spec.bootOptions.")
    assert convert(stored, OLD)["spec"]["bootOptions"] == {**options, "toggleAllowNetboot": True}


def test_iso_is_isoboot_and_comes_back_as_iso() -> None:
    stored = convert(old({**CAPT, "bootOptions": {"bootMode": "iso", "isoURL": "http://h/a.iso"}}), NEW)
    assert stored["spec"]["bootOptions"] == {"bootMode": "isoboot", "isoURL": "http://h/a.iso"}
    assert convert(stored, OLD)["spec"]["bootOptions"]["bootMode"] == "iso"


def test_fields_of_v1alpha2_alone_are_in_the_view_and_never_stored() -> None:
    stored = new({"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}, "ttlSecondsAfterFinished": 60})
    view = convert(stored, OLD)
    assert set(view["metadata"]["annotations"]) == {V1ALPHA2_ANNOTATION}
    assert convert(view, NEW) == stored


def test_timeout_of_zero_is_no_difference() -> None:
    stored = new({"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}, "timeout": 0})
    view = convert(stored, OLD)
    assert "annotations" not in view["metadata"]
    del stored["spec"]["timeout"]
    assert convert(view, NEW) == stored


# --- the status

ACTIONS: list[Raw] = [
    {
        "id": "a1",
        "rendered": {
            "name": "wipe",
            "image": "wipe:v1",
            "args": ["-f"],
            "env": {"DISK": "/dev/sda"},
            "volumes": ["/dev:/dev"],
            "timeout": 90,
            "networkNamespace": "host",
            "pidNamespace": "host",
        },
        "state": "Succeeded",
        "startedAt": "2026-11-01T10:00:00Z",
        "lastTransitioned": "2026-11-01T10:01:05.040Z",
    },
    {
        "id": "a2",
        "rendered": {"name": "write", "image": "write:v1"},
        "state": "Running",
        "startedAt": "2026-11-01T10:01:05Z",
    },
    {"id": "a3", "rendered": {"name": "kexec", "image": "kexec:v1"}, "state": "Pending"},
]


def stored_status(state: str, **more: Any) -> Raw:
    status = {"state": state, "lastTransitioned": "2026-11-01T10:00:00Z", "actions": ACTIONS}
    return {**status, "startedAt": "2026-11-01T10:00:00Z", **more}


def seen(status: Raw, spec: Raw | None = None, finalizers: list[str] | None = None) -> Raw:
    """Return the status that a client of v1alpha1 sees."""
    obj = new({"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}, **(spec or {})}, status=status)
    obj["metadata"] |= {"uid": "u-1", **({"finalizers": finalizers} if finalizers else {})}
    view: Raw = convert(obj, OLD)["status"]
    assert view["v1alpha2"] == status
    return view


def _with_status(rng: random.Random) -> Raw:
    obj = random_new(rng)
    states = ["Pending", "Scheduled", "Running", "Cancelling", "Succeeded", "Failed", "Canceled"]
    types = ["Prepared", "BootPrepared", "BootCleanedUp", "Started", "Succeeded"]
    conditions = [
        {"type": each, "status": rng.choice(["True", "False"]), "reason": "ActionTimeout", "message": "m"}
        for each in types
        if _maybe(rng)
    ]
    obj["status"] = stored_status(rng.choice(states), conditions=conditions)
    return obj


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("Pending", "", "PENDING"),
        ("Scheduled", "", "PENDING"),
        ("Running", "", "RUNNING"),
        ("Cancelling", "", "RUNNING"),
        ("Succeeded", "RebootAssumed", "SUCCESS"),
        ("Failed", "ActionFailed", "FAILED"),
        ("Failed", "ActionTimeout", "TIMEOUT"),
        ("Failed", "WorkflowTimeout", "TIMEOUT"),
        ("Failed", "StartTimeout", "TIMEOUT"),
        ("Failed", "HardwareGone", "FAILED"),
        ("Canceled", "CancelTimeout", "FAILED"),
        ("Odd", "", None),
    ],
)
def test_state_has_the_words_of_v1alpha1(state: str, reason: str, expected: str | None) -> None:
    conditions = [{"type": "Succeeded", "status": "False", "reason": reason}]
    assert seen(stored_status(state, conditions=conditions)).get("state") == expected


def test_state_is_absent_before_the_template_is_rendered() -> None:
    assert seen({"state": "Pending", "message": "waits for the controller"}).keys() == {"v1alpha2"}


@pytest.mark.parametrize(
    ("options", "condition", "expected"),
    [
        ({"bootMode": "netboot"}, None, "PREPARING"),
        ({"toggleAllowNetboot": True}, "False", "PREPARING"),
        ({"bootMode": "netboot"}, "True", "PENDING"),
        ({}, None, "PENDING"),
    ],
)
def test_state_is_preparing_until_the_bmc_has_booted_the_machine(
    options: Raw, condition: str | None, expected: str
) -> None:
    conditions = [{"type": "BootPrepared", "status": condition}] if condition else []
    assert seen(stored_status("Pending", conditions=conditions), {"bootOptions": options})["state"] == expected


def test_state_is_post_while_the_boot_is_undone() -> None:
    assert seen(stored_status("Succeeded"), finalizers=[BOOT_FINALIZER])["state"] == "POST"
    assert seen(stored_status("Failed"), finalizers=[BOOT_FINALIZER])["state"] == "FAILED"


def test_actions_have_their_states_and_times() -> None:
    status = seen(stored_status("Running"), {"timeout": 6000})
    (task,) = status["tasks"]
    assert task["actions"][0] == {
        "id": "a1",
        "name": "wipe",
        "image": "wipe:v1",
        "timeout": 90,
        "command": ["-f"],
        "volumes": ["/dev:/dev"],
        "namespaces": {"network": "host", "pid": "host"},
        "environment": {"DISK": "/dev/sda"},
        "state": "SUCCESS",
        "executionStart": "2026-11-01T10:00:00Z",
        "executionStop": "2026-11-01T10:01:05.040Z",
        "executionDuration": "1m5s",
    }
    assert [action["state"] for action in task["actions"]] == ["SUCCESS", "RUNNING", "PENDING"]
    assert (task["id"], task["name"], task["agentID"]) == ("u-1", "t", "")
    assert status["currentState"] == {
        "taskID": "u-1",
        "taskName": "t",
        "actionID": "a2",
        "actionName": "write",
        "state": "RUNNING",
    }
    assert status["globalTimeout"] == 6000
    assert status["globalExecutionStop"] == "2026-11-01T11:40:00Z"
    assert status["templateRendering"] == "successful"


def test_failed_action_has_its_reason_as_its_message() -> None:
    failed = {"id": "a", "state": "Failed", "failureReason": "NoDisk", "failureMessage": "there is none"}
    (task,) = seen(stored_status("Failed", actions=[failed]))["tasks"]
    assert task["actions"] == [{"id": "a", "name": "a", "state": "FAILED", "message": "NoDisk: there is none"}]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("2026-11-01T10:00:00Z", "2026-11-01T10:00:00Z", "0s"),
        ("2026-11-01T10:00:00Z", "2026-11-01T10:00:01.560Z", "1s560ms"),
        ("2026-11-01T10:00:00Z", "2026-11-01T12:00:05Z", "2h5s"),
        ("2026-11-01T10:00:00Z", "2026-11-01T09:00:00Z", None),
        ("2026-11-01T10:00:00Z", "soon", None),
    ],
)
def test_duration_has_the_form_of_tinkerbells_agent(start: str, stop: str, expected: str | None) -> None:
    action = {"id": "a", "state": "Succeeded", "startedAt": start, "lastTransitioned": stop}
    (task,) = seen(stored_status("Succeeded", actions=[action]))["tasks"]
    assert task["actions"][0].get("executionDuration") == expected


def test_template_that_can_not_be_rendered_is_a_condition_of_tinkerbells() -> None:
    message = "error rendering template: template: workflow-template:1:2: no"
    at = "2026-11-01T10:00:00Z"
    prepared = {"type": "Prepared", "status": "False", "message": message, "lastTransitionTime": at}
    status = seen({"state": "Failed", "lastTransitioned": at, "conditions": [prepared]})
    assert status["state"] == "FAILED"
    assert status["templateRendering"] == "failed"
    assert status["conditions"] == [
        {"type": "TemplateRenderedSuccess", "status": "False", "reason": "Error", "message": message, "time": at}
    ]


@pytest.mark.parametrize(
    ("state", "booted", "expected"),
    [
        ("Pending", "False", {"TemplateRenderedSuccess", "BootJobRunning"}),
        ("Failed", "False", {"TemplateRenderedSuccess", "BootJobFailed"}),
        ("Running", "True", {"TemplateRenderedSuccess", "AllowNetbootTrue", "BootJobComplete"}),
    ],
)
def test_boot_is_shown_by_tinkerbells_conditions(state: str, booted: str, expected: set[str]) -> None:
    conditions = [{"type": "BootPrepared", "status": booted, "message": "m"}]
    status = seen(stored_status(state, conditions=conditions), {"bootOptions": CAPT["bootOptions"]})
    assert {each["type"] for each in status["conditions"]} == expected


def test_clean_up_is_shown_as_netbooting_that_is_forbidden_again() -> None:
    conditions = [{"type": each, "status": "True"} for each in ("BootPrepared", "BootCleanedUp")]
    status = seen(stored_status("Succeeded", conditions=conditions), {"bootOptions": CAPT["bootOptions"]})
    assert status["bootOptions"] == {"allowNetboot": {"toggledTrue": True, "toggledFalse": True}}
    assert "AllowNetbootFalse" in {each["type"] for each in status["conditions"]}


def test_status_of_v1alpha2_comes_back_whole_without_any_annotation() -> None:
    status = stored_status("Running", boot={"way": "pxe"}, creationVersion="7")
    view = convert(new({"hardwareRef": {"name": "h"}, "templateRef": {"name": "t"}}, status=status), OLD)
    view["metadata"].pop("annotations", None)
    assert convert(view, NEW)["status"] == status


def test_fields_of_v1alpha1s_status_that_a_client_writes_have_no_effect() -> None:
    assert "status" not in convert(old(CAPT, status={"state": "SUCCESS", "tasks": []}), NEW)


def test_old_residue_is_void_after_an_edit_in_v1alpha2() -> None:
    stored = convert(old({**CAPT, "bootOptions": {"bootMode": "iso", "isoURL": "http://h/a.iso"}}), NEW)
    assert V1ALPHA1_ANNOTATION in stored["metadata"]["annotations"]
    stored["spec"]["bootOptions"] = {"bootMode": "netboot"}
    assert convert(stored, OLD)["spec"]["bootOptions"] == {"bootMode": "netboot"}
