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
from tink.template.compile import render
from tink.template.fields import build_context

SOURCE = ObjectPlace("in.yaml", 1, "Workflow", "", "w")
SPEC = {"templateRef": "t", "hardwareRef": "h", "hardwareMap": {"device_1": "52:54:00:00:00:01"}}

Refused = Callable[[Raw], list[str]]
Converting = Callable[..., ConversionResult]


CUSTOM = "spec.bootOptions.custombootConfig"
ON: Raw = {"powerAction": "on"}


def custom(*actions: Any, post: Any = ()) -> Raw:
    """Return bootOptions with these actions before the Workflow and after it."""
    config = {"preparingActions": [*actions], "postActions": [*post]}
    return {"bootOptions": {"bootMode": "customboot", "custombootConfig": config}}


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
        ({"bootOptions": {"toggleAllowNetboot": "yes"}}, "dropped", "spec.bootOptions.toggleAllowNetboot"),
        ({"bootOptions": {"bootMode": "usb"}}, "dropped", "spec.bootOptions.bootMode"),
        ({"bootOptions": {"isoURL": "nfs://a/x.iso"}}, "error", "spec.bootOptions.isoURL"),
        ({"bootOptions": {"isoURL": "http://a/" + "x" * 2048}}, "error", "spec.bootOptions.isoURL"),
        ({"bootOptions": {"isoURL": "http://a/{{ 1 }}" + "x" * 2048}}, "error", "spec.bootOptions.isoURL"),
        ({"bootOptions": {"isoURL": "http://a/{{ .references.x }}"}}, "error", "spec.bootOptions.isoURL"),
        (
            {"bootOptions": {"isoURL": "http://old/iso/52-54-00-00-00-01/hook.iso"}},
            "changed",
            "spec.bootOptions.isoURL",
        ),
        ({"bootOptions": {"custombootConfig": {"other": 1}}}, "dropped", "spec.bootOptions.custombootConfig.other"),
        ({"bootOptions": {"bootMode": "customboot"}}, "error", f"{CUSTOM}.preparingActions"),
        (custom(*[ON] * 65), "error", f"{CUSTOM}.preparingActions"),
        (custom({}), "error", f"{CUSTOM}.preparingActions[0]"),
        (custom(ON, None), "error", f"{CUSTOM}.preparingActions[1]"),
        (custom({"powerAction": "hard"}), "error", f"{CUSTOM}.preparingActions[0].powerAction"),
        (custom(ON | {"bootDevice": {"device": "pxe"}}), "error", f"{CUSTOM}.preparingActions[0]"),
        (custom(ON | {"later": 1}), "dropped", f"{CUSTOM}.preparingActions[0].later"),
        (custom({"bootDevice": {"efiBoot": True}}), "error", f"{CUSTOM}.preparingActions[0].bootDevice.device"),
        (
            custom({"oneTimeBootDeviceAction": {"device": []}}),
            "error",
            f"{CUSTOM}.preparingActions[0].oneTimeBootDeviceAction.device",
        ),
        (
            custom({"virtualMediaAction": {"kind": "CD", "mediaURL": "//host/x.iso"}}),
            "error",
            f"{CUSTOM}.preparingActions[0].virtualMediaAction.mediaURL",
        ),
        (custom(ON, post=[ON]), "changed", f"{CUSTOM}.postActions"),
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


@pytest.mark.parametrize("mode", ["iso", "isoboot"])
def test_boot_options_keep_their_names_and_the_old_iso_is_isoboot(mode: str, refused: Refused) -> None:
    options = {"toggleAllowNetboot": True, "bootMode": mode, "isoURL": "https://images/x.iso"}
    (made,), found = convert(order({**SPEC, "bootOptions": options}))
    assert made["spec"]["bootOptions"] == {**options, "bootMode": "isoboot"}
    assert found == refused(made) == []


def test_boot_medium_of_smee_becomes_the_machines_own(refused: Refused) -> None:
    url = "http://192.168.1.1:7171/iso/52-54-00-00-00-01/hook.iso"
    (made,), found = convert(order({**SPEC, "bootOptions": {"bootMode": "isoboot", "isoURL": url}}))
    assert made["spec"]["bootOptions"] == {"bootMode": "isoboot"}
    assert found == [("changed", "spec.bootOptions.isoURL")]
    assert refused(made) == []


def test_actions_of_a_bmc_are_kept_in_order_and_expressions_rewritten(refused: Refused) -> None:
    url = 'http://images/{{ (index .Hardware.Interfaces 0).DHCP.MAC | replace ":" "-" }}.iso'
    before = [
        {"powerAction": "off"},
        {"virtualMediaAction": {"kind": "CD", "mediaURL": ""}},
        {"virtualMediaAction": {"kind": "CD", "mediaURL": url}},
        {"oneTimeBootDeviceAction": {"device": ["cdrom", "pxe"], "efiBoot": True}},
        {"bootDevice": {"device": "cdrom", "persistent": False}},
        ON,
    ]
    after = [{"bootDevice": {"device": "disk", "persistent": True, "efiBoot": True}}, {"powerAction": "reset"}]
    (made,), found = convert(order({**SPEC, **custom(*before, post=after)}))
    config = made["spec"]["bootOptions"]["custombootConfig"]
    new = 'http://images/{{ (keys .Hardware.NetworkInterfaces | sortAlpha | first) | replace ":" "-" }}.iso'
    assert config["preparingActions"] == [
        {"powerAction": "off"},
        {"virtualMediaAction": {"kind": "CD"}},
        {"virtualMediaAction": {"kind": "CD", "mediaURL": new}},
        {"oneTimeBootDeviceAction": {"device": ["cdrom"], "efiBoot": True}},
        {"bootDevice": {"device": "cdrom"}},
        ON,
    ]
    assert config["postActions"] == after
    assert found == [
        ("changed", f"{CUSTOM}.preparingActions[2].virtualMediaAction.mediaURL"),
        ("changed", f"{CUSTOM}.postActions"),
    ]
    assert refused(made) == []


def test_rewritten_url_of_a_medium_renders_with_the_converted_hardware() -> None:
    url = 'http://images/{{ (index .Hardware.Interfaces 0).DHCP.MAC | replace ":" "-" }}.iso'
    (made,), _ = convert(order({**SPEC, "bootOptions": {"bootMode": "isoboot", "isoURL": url}}))
    hardware = {"metadata": {"name": "h"}, "spec": {"networkInterfaces": {"52:54:00:00:00:01": {}}}}
    rendered = render(made["spec"]["bootOptions"]["isoURL"], build_context(hardware, {}), "isoURL")
    assert rendered == "http://images/52-54-00-00-00-01.iso"


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
