"""Texts of v1alpha1 Templates, rendered and read as Go, Sprig, Tinkerbell's types and yaml.v3 do (recorded)."""

from __future__ import annotations

import json
import posixpath
from typing import Any

import pytest

from tests.unit.versions.rendering import RECORDED, cases
from tink.api.v1alpha2 import Raw
from tink.template import TemplateError, render_v1alpha1
from tink.versions.rendering import ERROR, RenderedTemplate, render

CASES = cases()
GO: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text())
DIFFERENT = {
    "eksa-ubuntu-0": "Tinkerbell has no netmaskToCIDR, which EKS Anywhere's Tinkerbell has",
    "empty-text": "without a task, Tinkerbell's own check fails after yaml.v3",
    "scalars-are-taken-as-written": "a variable with = in its name is an error here",
    "refused-0": "Tinkerbell runs each task on the machine of its worker, and a Workflow here has one machine",
}
"""Cases whose outcome is not Go's, with the reason."""
OTHER_WORDS = {"denied-reference", "nil-instance", "nil-pointer", "unknown-field-of-the-struct"}
"""Cases whose message names another type than Go's, or the denied reference."""
RENDERED = sorted(name for name, go in GO.items() if "stage" not in go and name not in DIFFERENT)
FAILED = sorted(name for name, go in GO.items() if "stage" in go and name not in DIFFERENT)
TASK = "name: t\ntasks:\n- name: t\n  worker: w\n  actions:\n"


def render_case(name: str) -> RenderedTemplate:
    case = CASES[name]
    return render(case.text, case.hardware, case.hardware_map)


def expected(go: Raw) -> list[Raw]:
    """Return the actions of a text that yaml.v3 has read, for an action that neither reboots nor is waitdaemon."""
    found = []
    for task in go["tasks"]:
        for action in task["actions"]:
            volumes = {}
            for volume in [*(task["volumes"] or ()), *(action["volumes"] or ())]:
                target = posixpath.normpath(volume.split(":")[1])
                volumes.pop(target, None)
                volumes[target] = volume
            found.append(
                {
                    "name": action["name"],
                    "image": action["image"],
                    "args": action["command"] or [],
                    "env": {**(task["environment"] or {}), **(action["environment"] or {})},
                    "volumes": list(volumes.values()),
                    "timeout": action["timeout"],
                    "networkNamespace": action["namespaces"]["network"],
                    "pidNamespace": "host" if (action["namespaces"]["pid"] or action["pid"]) == "host" else "",
                }
            )
    return found


def test_recording_has_each_case() -> None:
    assert GO.keys() == CASES.keys()
    assert DIFFERENT.keys() <= GO.keys()


@pytest.mark.parametrize("name", RENDERED)
def test_text_is_rendered_and_read_as_go_does(name: str) -> None:
    case = CASES[name]
    assert render_v1alpha1(case.text, case.hardware, case.hardware_map) == GO[name].get("rendered", "")
    made = render_case(name)
    empty = {"args": [], "env": {}, "volumes": [], "timeout": 0, "networkNamespace": "", "pidNamespace": ""}
    wanted = expected(GO[name]["workflow"])
    for ours, go in zip(made.actions, wanted, strict=True):
        if "reboots" not in ours:
            assert {**empty, **ours} == go
    assert made.timeout == GO[name]["workflow"]["global_timeout"]


@pytest.mark.parametrize("name", FAILED)
def test_text_that_go_refuses_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render_case(name)
    message = str(caught.value)
    assert message.startswith(ERROR)
    assert "\n" not in message
    if GO[name]["stage"] in ("parse", "execute") and name not in OTHER_WORDS:
        assert message == ERROR + GO[name]["error"]


def test_denied_reference_is_named_with_its_field_and_the_remedy() -> None:
    denied = (
        r"^error rendering template: reference lvm denied: spec\.references of the Hardware is not read, "
        r"so \.references is empty: give the values in spec\.hardwareMap of the Workflow: "
        r"template: .*<\.references\.lvm"
    )
    with pytest.raises(TemplateError, match=denied):
        render_case("denied-reference")
    with pytest.raises(TemplateError, match=r": reference other denied: spec\.references of the Hardware is not read"):
        render(f"{TASK}  - {{name: a, image: i, command: ['{{{{ .references.other.spec }}}}']}}\n", {}, {})
    with pytest.raises(TemplateError, match=r"^error rendering template: template: .*<\.lvm>: map has no entry"):
        render(f"{TASK}  - {{name: a, image: i, command: ['{{{{ .lvm }}}}']}}\n", {}, {})


@pytest.mark.parametrize(
    ("expression", "is_listed"),
    [
        ("{{ index .references `lvm` }}", True),
        ("{{ range $name, $each := .references }}{{ $name }}{{ end }}", True),
        ("{{ if $.references }}yes{{ end }}", True),
        ("{{ toYaml (dict) }} {{/* .x */}}{{ get .references `lvm` }}", True),
        ("{{ .hardware.spec.references.lvm.name }}", False),
        ("{{ (.hardware.spec).references.lvm.name }}", False),
        ("no.references }} and .references", False),
    ],
)
def test_template_that_renders_without_its_references_lists_them_as_ignored(expression: str, is_listed: bool) -> None:
    hardware = {"spec": {"references": {"lvm": {"name": "lvm1"}}}}
    text = f"{TASK}  - name: a\n    image: i\n    command:\n    - |\n      {expression}\n"
    listed = [".references: spec.references of the Hardware is not read, so .references is empty: give the values in "]
    found = render(text, hardware, {}).ignored
    assert [each.partition("spec.hardwareMap")[0] for each in found] == (listed if is_listed else [])


def test_netmask_function_of_eks_anywhere_exists() -> None:
    assert render_case("eksa-ubuntu-0").actions


def test_last_action_that_reboots_gets_reboots_and_waitdaemon_is_unwrapped() -> None:
    text = (
        f"{TASK}  - name: kexec\n    image: quay.io/x/waitdaemon:v0.1\n    pid: host\n    timeout: 90\n"
        "    environment: {IMAGE: quay.io/x/kexec:v1, WAIT_SECONDS: 10, BLOCK_DEVICE: /dev/sda1}\n"
        "    volumes: [/var/run/docker.sock:/var/run/docker.sock]\n"
    )
    (action,) = render(text, {}, {}).actions
    assert action == {
        "name": "kexec",
        "image": "quay.io/x/kexec:v1",
        "env": {"BLOCK_DEVICE": "/dev/sda1"},
        "timeout": 90,
        "reboots": True,
    }


def test_only_the_last_action_of_several_tasks_reboots() -> None:
    wait = "{name: %s, image: quay.io/x/waitdaemon:v0.1, environment: {IMAGE: quay.io/x/reboot:v1}}"
    text = f"{TASK}  - {wait % 'a'}\n- {{name: u, worker: w, actions: [{wait % 'b'}]}}\n"
    first, second = render(text, {}, {}).actions
    assert (first["image"], "reboots" in first) == ("quay.io/x/waitdaemon:v0.1", False)
    assert (second["image"], second["reboots"]) == ("quay.io/x/reboot:v1", True)


def test_fields_without_an_effect_are_listed() -> None:
    text = (
        f"{TASK}  - {{name: a, image: i, on-failure: [x], on-timeout: [], pid: 'container:b', volumes: [/anonymous]}}\n"
    )
    assert [each.partition(":")[0] for each in render(text, {}, {}).ignored] == [
        "tasks[0].actions[0].volumes[0]",
        "tasks[0].actions[0].pid",
        "tasks[0].actions[0].on-failure",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text: must be an object, is null"),
        ("name: t\n", "tasks: there is none: a Template has a task with actions"),
        ("tasks: [{}, {}]", "tasks[0].worker: it is empty, and each of several tasks needs the same one"),
        ("tasks: [{worker: w}, {}]", "tasks[1].worker: it is empty, and each of several tasks needs the same one"),
        (
            "tasks: [{worker: w}, {worker: w}, {worker: x}]",
            "tasks[2].worker: it is not the machine of tasks[0], and a Workflow runs on one machine: make a Template "
            "and a Workflow for each",
        ),
        (f"{TASK}  - {{name: a, image: i}}\n- {{worker: w}}", "tasks[1].actions: there are 1 and 0 of them: 1 to 128 "),
        (
            f"{TASK}  - {{name: a, image: i}}\n- {{worker: w, actions: [{{name: a, image: i}}]}}",
            "tasks[1].actions[0].name: another action has this name, too",
        ),
        ("tasks: [{}]", "tasks[0].actions: there are 0 of them: 1 to 128 can be run"),
        (f"{TASK}  - {{name: a}}", "tasks[0].actions[0].image: must be an OCI image without spaces, such as "),
        (f"{TASK}  - {{image: i}}", "tasks[0].actions[0].name: an action has a name of 1 to 253 characters"),
        (
            f"{TASK}  - {{name: a, image: i}}\n  - {{name: a, image: i}}",
            "tasks[0].actions[1].name: another action has this name, too",
        ),
        (f'{TASK}  - {{name: a, image: i, command: ["\\0"]}}', "tasks[0].actions[0].command[0]: must not hold a NUL"),
        (f"{TASK}  - {{name: a, image: i, timeout: -1}}", "tasks[0].actions[0].timeout: must be a number of seconds"),
        ("x: &a [*a]", "line 1 of the rendered text: the value contains itself, by an alias"),
        ("{{ range until 200000 }}{{ . }}{{ end }}", "takes more than"),
        ('{{ repeat 300000 "x" }}', "the output is larger than 262144 bytes"),
    ],
)
def test_text_that_no_machine_can_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(text, {}, {})
    assert str(caught.value).startswith(ERROR)
    assert message in str(caught.value)


def test_text_without_expressions_is_bounded_too() -> None:
    with pytest.raises(TemplateError, match="the output is larger than 262144 bytes"):
        render(f"name: t # {'x' * (256 * 1024)}", {}, {})


def test_variables_that_all_actions_share_are_counted_for_each() -> None:
    shared = f"  environment: {{A: {'x' * 100_000}}}\n"
    actions = "".join(f"  - {{name: a{index}, image: i}}\n" for index in range(20))
    with pytest.raises(TemplateError, match=r"tasks\[0\].actions\[10\]: the rendered actions are larger"):
        render(f"name: t\ntasks:\n- name: t\n{shared}  actions:\n{actions}", {}, {})


def test_error_of_the_yaml_does_not_repeat_the_data() -> None:
    hardware = {"spec": {"userData": "password: hunter2\n- x"}}
    with pytest.raises(TemplateError) as caught:
        render("name: t\n{{ .Hardware.UserData }}\n", hardware, {})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("hardware", [{}, {"spec": None}, {"spec": "x"}, {"status": []}])
def test_hardware_without_fields_is_an_empty_one(hardware: Raw) -> None:
    assert render(f"{TASK}  - {{name: a, image: '{{{{ len .Hardware.Disks }}}}'}}\n", hardware, {}).actions


@pytest.mark.parametrize("spec", [{"disks": "x"}, {"disks": [1]}, {"interfaces": [1]}, {"metadata": []}])
def test_hardware_of_other_types_is_refused(spec: Raw) -> None:
    with pytest.raises(TemplateError, match=r"^error rendering template: spec\."):
        render(f"{TASK}  - {{name: a, image: i}}\n", {"spec": spec}, {})
