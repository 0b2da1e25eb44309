"""Objects of v1alpha2: today's come through as they are, those of other schemas of that name do not unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tink.api.v1alpha2 import Raw
from tink.convert.run import Result

Converting = Callable[..., Result]
MAC = "52:54:00:00:00:01"


def obj(kind: str, spec: Any, **more: Any) -> Raw:
    metadata = {"name": "a", "namespace": "rack"}
    return {"apiVersion": "tinkerbell.org/v1alpha2", "kind": kind, "metadata": metadata, "spec": spec} | more


def said(result: Result) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.path) for finding in result.findings]


CURRENT = [
    obj(
        "Hardware",
        {
            "networkInterfaces": {
                MAC: {"dhcp": {"ip": "10.0.0.1", "leaseTimeSeconds": 60}, "disableDhcp": False},
                "52:54:00:00:00:02": {"dhcp": {"ipv6": {"address": "2001:db8::2", "prefixLength": 56}}},
            },
            "osie": {"name": "hook"},
            "storageDevices": ["/dev/sda"],
            "instance": {"userdata": "x"},
        },
    ),
    obj("OSIE", {"kernelUrl": "http://a/k", "initrdUrl": "http://a/i"}),
    obj(
        "Template",
        {"actions": [{"name": "a", "image": "b", "env": {"any name": "x"}, "timeout": 5, "reboots": True}], "env": {}},
    ),
    obj("Workflow", {"hardwareRef": {"name": "a"}, "templateRef": {"name": "a"}, "templateParams": {"x": "y"}}),
]


@pytest.mark.parametrize("source", CURRENT, ids=lambda source: source["kind"])
def test_object_of_today_stays_as_it_is(converting: Converting, source: Raw) -> None:
    result = converting(source)
    assert (result.objects, result.findings) == ([source], [])


def test_field_that_an_api_would_drop_without_a_word_is_told(converting: Converting) -> None:
    spec = {
        "networkInterfaces": {MAC: {"dhcp": {"ip": "10.0.0.1", "mtu": 9000}}},
        "disks": [],
        "bmcRef": None,
        "rack": {"u": 7},
    }
    result = converting(obj("Hardware", spec, extra="x"))
    assert result.objects == [obj("Hardware", {"networkInterfaces": {MAC: {"dhcp": {"ip": "10.0.0.1"}}}})]
    assert said(result) == [
        ("dropped", f'spec.networkInterfaces["{MAC}"].dhcp.mtu'),
        ("dropped", "spec.rack"),
        ("dropped", "extra"),
    ]


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (obj("Hardware", [1]), "spec"),
        (obj("Hardware", {"networkInterfaces": {MAC: 5}}), f'spec.networkInterfaces["{MAC}"]'),
        (obj("Hardware", {"storageDevices": "/dev/sda"}), "spec.storageDevices"),
        (
            obj("Hardware", {"networkInterfaces": {MAC: {"disableDhcp": 1}}}),
            f'spec.networkInterfaces["{MAC}"].disableDhcp',
        ),
        (obj("Workflow", {"hardwareRef": {"name": "a"}}), "spec.templateRef"),
        (obj("Template", {"actions": [{"name": "a", "image": "b", "timeout": True}]}), "spec.actions[0].timeout"),
        (obj("OSIE", None), "spec"),
    ],
)
def test_object_that_no_api_takes_is_an_error(converting: Converting, source: Raw, path: str) -> None:
    result = converting(source)
    assert (result.objects, said(result)) == ([], [("error", path)])


def test_what_is_wrong_with_an_object_is_said_in_the_api_servers_words(converting: Converting) -> None:
    found = converting(obj("Hardware", {"storageDevices": "/dev/sda"}), obj("Workflow", {"hardwareRef": {"name": "a"}}))
    assert [finding.reason for finding in found.findings] == ['must be of type array: "string"', "Required value"]


def test_what_a_server_wrote_stays_there(converting: Converting) -> None:
    """Else no other server takes what `kubectl get -o yaml` has said."""
    written = {"uid": "u", "resourceVersion": "5", "creationTimestamp": "x", "managedFields": [{}], "generation": 3}
    owners = {"ownerReferences": [{"uid": "z"}]}
    for source in (
        *CURRENT,
        obj("Machine", {}, apiVersion="bmc.tinkerbell.org/v1alpha1"),
        obj("Secret", {}, apiVersion="v1"),
    ):
        result = converting({**source, "metadata": source["metadata"] | written | owners})
        assert (result.objects, said(result)) == ([source], [("dropped", "metadata.ownerReferences")])


# --- tinkerbell/tinkerbell's own v1alpha2


@pytest.mark.parametrize(
    ("kind", "spec", "path"),
    [
        ("Hardware", {"agentID": "1234"}, "spec.agentID"),
        ("Hardware", {"instance": {"osie": {"kernelURL": "http://a/k"}}}, "spec.instance.osie"),
        ("Hardware", {"networkInterfaces": {MAC: {"ipam": {}}}}, f'spec.networkInterfaces["{MAC}"].ipam'),
        (
            "Hardware",
            {"networkInterfaces": {MAC: {"dhcp": {"ipv4": {}}}}},
            f'spec.networkInterfaces["{MAC}"].dhcp.ipv4',
        ),
        (
            "Hardware",
            {"networkInterfaces": {MAC: {"dhcp": {"ipv6": {"nameservers": ["fd00::1"]}}}}},
            f'spec.networkInterfaces["{MAC}"].dhcp.ipv6',
        ),
        ("Hardware", {"storageDevices": ["/dev/sda", {"name": "/dev/sda"}]}, "spec.storageDevices[1]"),
        ("Workflow", {"tasks": [{"taskRef": {"name": "x"}}]}, "spec.tasks"),
        ("Policy", {"rules": {}}, ""),
        ("Task", {"actions": []}, ""),
    ],
)
def test_other_schema_of_the_same_name_is_refused_and_named(
    converting: Converting, kind: str, spec: Raw, path: str
) -> None:
    result = converting(obj(kind, spec))
    assert (result.objects, said(result)) == ([], [("error", path)])
    assert "tinkerbell/tinkerbell" in result.findings[0].reason


# --- tinkerbell/tink's


def test_namespaces_of_tinks_actions_come_along(converting: Converting) -> None:
    text = """\
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: a}
spec:
  actions:
  - name: one
    image: x
    namespaces:
      network: host # the machine's
      pid: host # its processes
  - {name: two, image: x, namespaces: {network: host, pid: 5, ipc: host}, networkNamespace: own}
  - {name: three, image: x, namespaces: {}}
"""
    result = converting(text)
    (made,) = result.objects
    assert [action.get("networkNamespace") for action in made["spec"]["actions"]] == ["host", "own", None]
    assert [action.get("pidNamespace") for action in made["spec"]["actions"]] == ["host", None, None]
    assert not any("namespaces" in action for action in made["spec"]["actions"])
    assert said(result) == [
        ("dropped", "spec.actions[1].namespaces.pid"),
        ("dropped", "spec.actions[1].namespaces.ipc"),
        ("dropped", "spec.actions[1].namespaces.network"),
    ]


def test_results_are_of_today_for_every_corpus(converting: Converting) -> None:
    for path in sorted((Path(__file__).parent.parent / "corpora").glob("*/*.out.yaml")):
        objects = [each for each in yaml.safe_load_all(path.read_text()) if each]
        result = converting(*objects)
        assert (result.objects, result.findings) == (objects, [])
