"""Workflows of v1alpha1: a waiting one is converted; one that has begun or ended is left out and reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tink.api.annotations import HOLD_ANNOTATION
from tink.api.v1alpha2 import Raw, Workflow
from tink.convert.findings import Findings, ObjectPlace
from tink.convert.run import ConversionResult
from tink.convert.v1alpha1 import workflow

SOURCE = ObjectPlace("in.yaml", 1, "Workflow", "", "w")
SPEC = {"templateRef": "t", "hardwareRef": "h", "hardwareMap": {"device_1": "52:54:00:00:00:01"}}

Refused = Callable[[Raw], list[str]]
Converting = Callable[..., ConversionResult]


def order(spec: Any = None, **more: Any) -> Raw:
    metadata = {"name": "w", "namespace": "lab"}
    kind = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Workflow"}
    return {**kind, "metadata": metadata, "spec": spec or SPEC, **more}


def template(data: Any, **metadata: str) -> Raw:
    kind = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Template"}
    return {**kind, "metadata": {"name": "t", **metadata}, "spec": {"data": data}}


def convert(obj: Raw) -> tuple[list[Raw], list[tuple[str, str]]]:
    findings = Findings(SOURCE)
    result = workflow.convert_workflow(obj, findings, lambda *_: None)
    return result, [(str(each.kind), each.path) for each in findings]


def test_waiting_workflow_refers_to_the_same_objects_with_the_same_parameters(refused: Refused) -> None:
    (made,), found = convert(order())
    assert made == {
        "apiVersion": "tinkerbell.org/v1alpha2",
        "kind": "Workflow",
        "metadata": {"name": "w", "namespace": "lab"},
        "spec": {
            "hardwareRef": {"name": "h"},
            "templateRef": {"name": "t"},
            "templateParams": {"device_1": "52:54:00:00:00:01"},
        },
    }
    assert found == refused(made) == []
    Workflow.model_validate(made)


@pytest.mark.parametrize(
    ("status", "waits"),
    [
        *(({"state": state}, False) for state in ("SUCCESS", "STATE_FAILED", "TIMEOUT", "RUNNING", "STATE_RUNNING")),
        *(({"state": state}, False) for state in ("PREPARING", "POST", 7)),
        *(({"state": "PENDING"}, True), ({"state": "STATE_PENDING", "globalTimeout": 0}, True)),
    ],
)
def test_machine_is_not_installed_a_second_time_and_a_waiting_workflow_leaves_its_status_behind(
    status: Raw, waits: bool
) -> None:
    result, found = convert(order(status=status))
    assert (len(result), found) == ((1, [("changed", "status")]) if waits else (0, [("dropped", "")]))
    assert not any("status" in made for made in result)


@pytest.mark.parametrize(
    ("change", "kind", "path"),
    [
        ({"hardwareRef": ""}, "error", "spec.hardwareRef"),
        ({"hardwareRef": "No Name"}, "error", "spec.hardwareRef"),
        ({"templateRef": None}, "error", "spec.templateRef"),
        ({"disabled": True}, "changed", "spec.disabled"),
        ({"bootOptions": {"toggleAllowNetboot": True}}, "dropped", "spec.bootOptions.toggleAllowNetboot"),
        ({"bootOptions": {"bootMode": "isoboot"}}, "dropped", "spec.bootOptions.bootMode"),
        ({"bootOptions": {"isoURL": "http://a"}}, "dropped", "spec.bootOptions.isoURL"),
        (
            {"bootOptions": {"custombootConfig": {"postActions": [{}, 1]}}},
            "dropped",
            "spec.bootOptions.custombootConfig",
        ),
        ({"bootOptions": {"other": 1}}, "dropped", "spec.bootOptions.other"),
        ({"priority": 1}, "dropped", "spec.priority"),
        ({"hardwareMap": {"n": 3}}, "changed", "spec.hardwareMap.n"),
        ({"hardwareMap": {str(n): "" for n in range(257)}}, "error", "spec.hardwareMap"),
        ({"hardwareMap": {"n": "x" * 131073}}, "error", "spec.hardwareMap.n"),
    ],
)
def test_dropped_field_is_reported_with_its_path(change: Raw, kind: str, path: str) -> None:
    result, found = convert(order({**SPEC, **change}))
    assert found == [(kind, path)]
    assert bool(result) is (kind != "error")


def test_disabled_workflow_is_held(converting: Converting) -> None:
    (made,) = converting(order({**SPEC, "disabled": True})).objects
    assert made["metadata"]["annotations"][HOLD_ANNOTATION] == "spec.disabled was true in v1alpha1"
    held = order({**SPEC, "disabled": True})
    held["metadata"]["annotations"] = {HOLD_ANNOTATION: "own reason", "other": "x"}
    (made,) = converting(held).objects
    assert made["metadata"]["annotations"] == {HOLD_ANNOTATION: "own reason", "other": "x"}


@pytest.mark.parametrize("status", [None, {}, {"state": ""}, {"tasks": []}])
def test_empty_or_false_field_has_no_finding(status: Any) -> None:
    spec = {**SPEC, "disabled": False, "bootOptions": {"toggleAllowNetboot": False}}
    result, found = convert(order(spec, status=status))
    assert (len(result), found) == (1, [])


def test_time_that_the_template_gives_is_the_workflows_now(converting: Converting) -> None:
    data = "global_timeout: 1800\ntasks: [{name: t, worker: '{{.device_1}}', actions: [{name: a, image: i}]}]"
    assert converting(order(), template(data, namespace="lab")).objects[0]["spec"]["timeout"] == 1800
    assert "timeout" not in converting(order(), template(data)).objects[0]["spec"], "it is of another namespace"
    (made,), _ = convert(order(status={"state": "PENDING", "globalTimeout": 600}))
    assert made["spec"]["timeout"] == 600, "the old controller noted it"


@pytest.mark.parametrize("data", [None, 3, "a: [", "global_timeout: soon", "- x", "global_timeout: 0", "{{"])
def test_template_that_gives_no_time_harms_no_workflow(converting: Converting, data: Any) -> None:
    assert "timeout" not in converting(order(), template(data, namespace="lab")).objects[0]["spec"]
