"""A Template becomes actions, field by field. Templates see a Hardware under Go's names and JSON's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tink.api import v1alpha2
from tink.template import fields
from tink.template.compile import render
from tink.template.errors import TemplateError, TemplateExecutionError, TemplateSyntaxError
from tink.template.fields import GoStruct, build_context, parse_fields, render_actions

HARDWARE: dict[str, Any] = {"metadata": {"name": "m1"}, "spec": {"storageDevices": ["/dev/nvme0n1"]}}


def template(*actions: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t"}, "spec": {"actions": list(actions), **spec}}


def action(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "image": "img", **fields}


def rendered(*actions: dict[str, Any], params: dict[str, str] | None = None, **spec: Any) -> list[dict[str, Any]]:
    return render_actions(template(*actions, **spec), HARDWARE, params or {})


def test_every_field_but_name_and_timeout_is_a_template() -> None:
    field = "{{.Params.x}}"
    shared: dict[str, Any] = {"env": {"B": "b"}}
    given_action = action(
        reboots=True,
        name="{{.Params.x}}",
        image=field,
        cmd=field,
        args=["-d", "{{formatPartition (index .Hardware.Disks 0) 1}}"],
        env={"{{.Params.x}}_DISK": "{{index .hardware.disks 0}}"},
        volumes=["/dev:/{{.Params.x}}"],
        networkNamespace=field,
        pidNamespace=field,
        timeout=60,
    )
    before = orjson.dumps([given_action, shared, HARDWARE])
    assert rendered(given_action, params={"x": "v"}, **shared) == [
        {
            "name": "{{.Params.x}}",
            "image": "v",
            "cmd": "v",
            "args": ["-d", "/dev/nvme0n1p1"],
            "env": {"B": "b", "v_DISK": "/dev/nvme0n1"},
            "reboots": True,
            "volumes": ["/dev:/v"],
            "networkNamespace": "v",
            "pidNamespace": "v",
            "timeout": 60,
        }
    ]
    assert orjson.dumps([given_action, shared, HARDWARE]) == before, "rendering changes nothing of what it is given"


def test_fields_that_are_absent_stay_absent() -> None:
    assert rendered(action(cmd=None, args=None, env=None, volumes=None)) == [action()]
    assert rendered(action(args=[], cmd="", env={}, volumes=[])) == [action(args=[], cmd="")]


def test_env_of_the_template_reaches_every_action_and_the_actions_own_wins() -> None:
    actions = rendered(
        action(env={"A": "own"}), action(), env={"A": "shared {{.Params.x}}", "B": "b"}, params={"x": "1"}
    )
    assert [one["env"] for one in actions] == [{"A": "own", "B": "b"}, {"A": "shared 1", "B": "b"}]


def test_volumes_of_the_template_reach_every_action_unless_it_mounts_the_same_path() -> None:
    actions = rendered(
        action(volumes=["/own:/b/:ro", "cache:/c"]), action(), volumes=["/dev:/dev", "/shared:/b", "/anonymous"]
    )
    assert actions[0]["volumes"] == ["/dev:/dev", "/anonymous", "/own:/b/:ro", "cache:/c"]
    assert actions[1]["volumes"] == ["/dev:/dev", "/shared:/b", "/anonymous"]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_values_with_yaml_or_template_syntax_arrive_unchanged_and_nowhere_else(value: str) -> None:
    for nasty in (value, f'x: "\n- {value}', f"{{{{.Params.y}}}}{value}", f"a\n  image: evil{value}\n#"):
        (only,) = rendered(action(args=["{{.Params.x}}"], env={"X": "{{.Params.x}}"}), params={"x": nasty})
        assert only == {"name": "a", "image": "img", "args": [nasty], "env": {"X": nasty}}


@pytest.mark.parametrize(
    ("bad", "path", "message"),
    [
        (
            action(image="{{.Hardware.Foo}}"),
            "spec.actions[0].image",
            "can't evaluate field Foo in type v1alpha2.HardwareSpec",
        ),
        (action(cmd="{{.Params.nope}}"), "spec.actions[0].cmd", 'at <.Params.nope>: map has no entry for key "nope"'),
        (action(args=["ok", "{{"]), "spec.actions[0].args[1]", "unclosed action"),
        (action(env={"D": "{{fail `no disk`}}"}), "spec.actions[0].env[D]", "no disk"),
        (action(env={"{{.x}}": "v"}), "spec.actions[0].env[{{.x}}]", "map has no entry"),
        (action(volumes=["/a:/b", "{{.x}}"]), "spec.actions[0].volumes[1]", "map has no entry"),
        (action(networkNamespace="{{.x}}"), "spec.actions[0].networkNamespace", "map has no entry"),
        (action(pidNamespace="{{.x}}"), "spec.actions[0].pidNamespace", "map has no entry"),
        (action(image="{{if false}}x{{end}} "), "spec.actions[0].image", "renders to nothing, but must be an image"),
        (action(volumes=["{{print}}"]), "spec.actions[0].volumes[0]", "renders to nothing"),
        (action(env={"{{print}}": "v"}), "spec.actions[0].env[{{print}}]", "renders to nothing"),
        (
            action(env={"A": "1", "{{`A`}}": "2"}),
            "spec.actions[0].env[{{`A`}}]",
            "another variable renders to the same name",
        ),
        (action(env={"A=B": "1"}), "spec.actions[0].env[A=B]", "must not hold '='"),
        (action(volumes=["/x:/b", "/y:/b/"]), "spec.actions[0].volumes[1]", "is mounted on /b, too"),
        (action(cmd='{{"a\\x00b"}}'), "spec.actions[0].cmd", "NUL"),
        (action(cmd='{{"\\xff"}}'), "spec.actions[0].cmd", "no UTF-8"),
        (action(env={"N": 5}), "spec.actions[0].env[N]", "want a string, found an integer"),
        (action(args="ls"), "spec.actions[0].args", "want a list, found a string"),
        (action(timeout="5"), "spec.actions[0].timeout", "want an integer, found a string"),
        (action(image=None), "spec.actions[0].image", "want a string, found nothing"),
        (action(reboots="{{true}}"), "spec.actions[0].reboots", "want a boolean"),
        (action(cmd="{{range 1000000}}{{end}}"), "spec.actions[0].cmd", "more than 100000 steps"),
    ],
)
def test_wrong_field_is_refused_with_its_path(bad: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(bad)
    assert caught.value.name == path
    assert path in str(caught.value)
    assert message in str(caught.value)


def test_second_action_and_shared_fields_are_named_by_their_places() -> None:
    for broken, path in (
        (template(action(), action(image="{{.x}}")), "spec.actions[1].image"),
        (template(action(), env={"DEST_DISK": "\n {{.x}}"}), "spec.env[DEST_DISK]"),
        (template(action(), volumes=["{{.x}}"]), "spec.volumes[0]"),
    ):
        with pytest.raises(TemplateError) as caught:
            render_actions(broken, HARDWARE, {})
        assert caught.value.name == path
    with pytest.raises(TemplateError) as caught:
        rendered(action(), env={"DEST_DISK": "\n {{.x}}"})
    assert (caught.value.line, caught.value.column) == (2, 3)
    for broken in ({}, {"spec": None}, {"spec": {}}, {"spec": {"actions": {}}}, {"spec": {"actions": ["x"]}}):
        with pytest.raises(TemplateError, match=r"^spec"):
            render_actions(broken, HARDWARE, {})
    with pytest.raises(TemplateError, match="larger than 1048576 bytes"):  # than a status can be
        rendered(*[action(name=str(n)) for n in range(200)], env={"X": "{{repeat 10000 `x`}}"})


def test_syntax_errors_are_found_without_rendering_one_for_each_field() -> None:
    broken = template(
        action(image="{{", cmd="{{.x}}", env={"{{if}}": "{{end}}"}, args=["{{nope}}", 5]), volumes=["{{("], env=None
    )
    errors = parse_fields(broken)
    assert all(isinstance(error, TemplateSyntaxError) for error in errors)
    assert [error.name for error in errors] == [
        "spec.volumes[0]",
        "spec.actions[0].image",
        "spec.actions[0].args[0]",
        "spec.actions[0].env[{{if}}]",
        "spec.actions[0].env[{{if}}]",
    ]
    assert parse_fields(template(action(image="{{.Hardware.Foo}}"))) == []


MAC = "52:54:00:12:34:56"
NODE: dict[str, Any] = {
    "apiVersion": "tinkerbell.org/v1alpha2",
    "kind": "Hardware",
    "metadata": {"name": "node-1", "namespace": "rack", "labels": {"role": "worker"}},
    "spec": {
        "networkInterfaces": {
            MAC: {
                "dhcp": {
                    "ip": "10.0.0.5",
                    "netmask": "255.255.255.0",
                    "nameservers": ["1.1.1.1"],
                    "vlanId": "100",
                    "leaseTimeSeconds": 86400,
                },
                "disableNetboot": True,
            }
        },
        "ipxe": {"inline": "#!ipxe\nboot"},
        "osie": {"name": "hook"},
        "kernelParams": ["console=ttyS0", "quiet"],
        "instance": {"userdata": "#cloud-config\n"},
        "storageDevices": ["/dev/nvme0n1", "/dev/sda"],
        "bmcRef": {"name": "bmc-1"},
    },
}


def shown(text: str, hardware: dict[str, Any] = NODE, params: dict[str, str] | None = None) -> str:
    return render(text, build_context(hardware, params or {}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{index .Hardware.StorageDevices 0}}", "/dev/nvme0n1"),
        ("{{formatPartition ( index .Hardware.Disks 0 ) 1}}", "/dev/nvme0n1p1"),
        ("{{.Hardware.OSIE.Name}} {{.Hardware.BMCRef.Name}}", "hook bmc-1"),
        ("{{.Hardware.Instance.Userdata}}{{.Hardware.Instance.Vendordata}}", "#cloud-config\n"),
        ("{{.Hardware.IPXE.Content}}{{.Hardware.IPXE.URL}}", "#!ipxe\nboot"),
        ("{{range .Hardware.KernelParams}}{{.}} {{end}}", "console=ttyS0 quiet "),
        (f'{{{{(index .Hardware.NetworkInterfaces "{MAC}").DHCP.IP}}}}', "10.0.0.5"),
        ("{{range $mac, $nic := .Hardware.NetworkInterfaces}}{{$mac}} {{$nic.DHCP.VLANID}}{{end}}", f"{MAC} 100"),
        ("{{range .Hardware.NetworkInterfaces}}{{.DisableNetboot}}{{.DisableDHCP}}{{end}}", "truefalse"),
        (
            "{{range .Hardware.NetworkInterfaces}}{{.DHCP}}{{end}}",
            "{10.0.0.5 255.255.255.0   100 [1.1.1.1] [] 86400 { 0 []}}",
        ),
        ("{{.hardware.metadata.name}} {{.hardware.metadata.labels.role}}", "node-1 worker"),
        ("{{.hardware.osie.name}} {{.hardware.spec.osie.name}} {{index .hardware.disks 1}}", "hook hook /dev/sda"),
    ],
)
def test_template_reaches_the_hardware_by_go_names_and_by_json_names(text: str, expected: str) -> None:
    assert shown(text) == expected


DRIVES = [
    {"name": "/dev/sda", "sizeBytes": 100},
    {"name": "/dev/nvme0n1", "controllerType": "NVMe", "sizeBytes": 960},
    {"name": "/dev/nvme1n1", "controllerType": "NVMe", "sizeBytes": 480},
    {"name": "/dev/nvme2n1", "controllerType": "NVMe"},
]


def test_example_of_the_docs_finds_the_smallest_nvme_drive() -> None:
    docs = (Path(__file__).parents[3] / "docs/workflows.md").read_text()
    text = yaml.safe_load(docs.partition("smallest NVMe drive")[2].split("```")[1].removeprefix("yaml"))["env"][
        "DEST_DISK"
    ]

    def chosen(drives: list[dict[str, Any]]) -> str:
        return shown(text, NODE | {"status": {"inventory": {"inBand": {"blockDevices": drives}}}})

    assert chosen(DRIVES) == "/dev/nvme1n1"
    assert chosen(DRIVES[:2]) == "/dev/nvme0n1"
    with pytest.raises(TemplateExecutionError, match="the machine has no NVMe drive"):
        chosen(DRIVES[:1])
    with pytest.raises(TemplateExecutionError, match='map has no entry for key "status"'):
        shown(text)


def test_params_go_by_both_of_their_names_and_absent_fields_are_zero_values_by_go_names() -> None:
    bare: dict[str, Any] = {"metadata": {"name": "bare"}, "spec": {"osie": None}}
    for text, expected in (
        ("{{.Params.os}} {{.Param.os}}", "ubuntu ubuntu"),
        ("{{.Hardware.OSIE.Name}}|{{.Hardware.Instance.Userdata}}|{{.Hardware.IPXE.URL}}", "||"),
        ("{{len .Hardware.Disks}}{{len .Hardware.NetworkInterfaces}}{{range .Hardware.KernelParams}}x{{end}}", "00"),
        ("{{if .Hardware.Instance.Userdata}}yes{{else}}no{{end}}", "no"),
    ):
        assert shown(text, bare, {"os": "ubuntu"}) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{.Hardware.Foo}}", "can't evaluate field Foo in type v1alpha2.HardwareSpec"),
        ("{{.Hardware.storageDevices}}", "can't evaluate field storageDevices in type v1alpha2.HardwareSpec"),
        ("{{.Hardware.OSIE.name}}", "can't evaluate field name in type v1.LocalObjectReference"),
        ("{{.Hardware.OSIE.Name.x}}", "can't evaluate field x in type interface {}"),
        ("{{.hardware.foo}}", 'map has no entry for key "foo"'),
        ("{{.hardware.instance.vendordata}}", 'map has no entry for key "vendordata"'),
        ("{{.Params.os}}", 'map has no entry for key "os"'),
        ("{{(index .Hardware.NetworkInterfaces `aa:bb`).DHCP}}", 'nil data; no entry for key "DHCP"'),
        ("{{len .Hardware}}", "len of type v1alpha2.HardwareSpec"),
        ("{{.Hardware.OSIE.Name 1}}", "Name has arguments but cannot be invoked as function"),
    ],
)
def test_missing_data_is_an_error(text: str, message: str) -> None:
    with pytest.raises(TemplateExecutionError) as caught:
        shown(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ({"spec": []}, "spec: want an object, found a list"),
        ({"spec": {"osie": "hook"}}, "spec.osie: want an object, found a string"),
        ({"spec": {"storageDevices": ["/dev/sda", 1]}}, "spec.storageDevices[1]: want a string, found an integer"),
        ({"spec": {"kernelParams": "quiet"}}, "spec.kernelParams: want a list, found a string"),
        ({"spec": {"networkInterfaces": {MAC: {"dhcp": {"ip": 5}}}}}, f"spec.networkInterfaces[{MAC}].dhcp.ip: want a"),
        ({"spec": {"x": {1: 2}}}, "spec.x: want a string, found an integer"),
        ({"spec": {"x": object()}}, "spec.x: object is no JSON value"),
        ({"spec": {"x": 2**70}}, "spec.x: the number has more than 64 bits"),
    ],
)
def test_hardware_of_another_shape_is_refused_with_the_path(hardware: dict[str, Any], message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        build_context(hardware, {})
    assert str(caught.value).startswith(message)
    endless: dict[str, Any] = {}
    endless["x"] = endless
    with pytest.raises(TemplateError, match="nested deeper"):
        build_context({"spec": endless}, {})


@pytest.mark.parametrize(
    ("struct", "model"),
    [
        (fields.HARDWARE_SPEC, v1alpha2.HardwareSpec),
        (fields.NETWORK_INTERFACE, v1alpha2.NetworkInterface),
        (fields.DHCP, v1alpha2.DHCP),
        (fields.DHCP_V6, v1alpha2.DHCPv6),
        (fields.IPXE, v1alpha2.IPXE),
        (fields.INSTANCE, v1alpha2.Instance),
        (fields.LOCAL_OBJECT_REFERENCE, v1alpha2.LocalObjectReference),
    ],
)
def test_every_field_of_the_api_can_be_reached_by_its_go_name(struct: GoStruct, model: type[BaseModel]) -> None:
    known = {json_name for _, json_name, _ in struct.fields}
    assert known == {field.alias for field in model.model_fields.values()}
