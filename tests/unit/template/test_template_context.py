"""What templates see of a Hardware: Go's names and zero values, JSON's names, and nothing that is not there."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tink.api import v1alpha2
from tink.template import context
from tink.template.context import GoStruct, build_context
from tink.template.engine import render
from tink.template.errors import TemplateError, TemplateExecutionError

MAC = "52:54:00:12:34:56"
HARDWARE: dict[str, Any] = {
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


def shown(text: str, hardware: dict[str, Any] = HARDWARE, params: dict[str, str] | None = None) -> str:
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
def test_what_is_not_there_is_an_error(text: str, message: str) -> None:
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
        (context.HARDWARE_SPEC, v1alpha2.HardwareSpec),
        (context.NETWORK_INTERFACE, v1alpha2.NetworkInterface),
        (context.DHCP, v1alpha2.DHCP),
        (context.DHCP_V6, v1alpha2.DHCPv6),
        (context.IPXE, v1alpha2.IPXE),
        (context.INSTANCE, v1alpha2.Instance),
        (context.LOCAL_OBJECT_REFERENCE, v1alpha2.LocalObjectReference),
    ],
)
def test_every_field_of_the_api_can_be_reached_by_its_go_name(struct: GoStruct, model: type[BaseModel]) -> None:
    known = {json_name for _, json_name, _ in struct.fields}
    assert known == {field.alias for field in model.model_fields.values()}
