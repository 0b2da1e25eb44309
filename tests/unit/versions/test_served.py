"""v1alpha1 and v1alpha2 served from one set of objects: the requests of Cluster API's provider (CAPT) and of Rufio.

Both programs sent these requests to the embedded API, in this order. `capt.json` has the writes of a
run of CAPT's manager with three machines, and those of the components around it (`python -m tests.capt --record`).
`capt_move.json` has those of a run in which `clusterctl move` takes two machines to another API.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support import objects
from tests.support.api import InProcessApi
from tink.api.annotations import MAX_ANNOTATIONS_BYTES, OVERSIZED_LABEL, V1ALPHA2_ANNOTATION
from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.kube.manifests import LAST_APPLIED
from tink.kube.resources import (
    HARDWARE,
    JOB,
    MACHINE,
    OLD_HARDWARE,
    OLD_TEMPLATE,
    OLD_WORKFLOW,
    TEMPLATE,
    WORKFLOW,
    ResourceType,
)
from tink.versions import (
    DEFINITIONS,
    NEW,
    OLD,
    ConversionError,
    convert,
    convert_within_limits,
    keep_served,
    text_of,
)
from tink.webhooks.admission import ReviewPlugin

RECORDED: list[Raw] = json.loads((Path(__file__).parent / "capt.json").read_text())
MOVED: list[Raw] = json.loads((Path(__file__).parent / "capt_move.json").read_text())
RESOURCES = {
    each.path("default"): each for each in (HARDWARE, OLD_HARDWARE, OLD_TEMPLATE, OLD_WORKFLOW, WORKFLOW, JOB, MACHINE)
}
MAC = "52:54:00:12:34:56"
FINALIZER = "infrastructure.cluster.x-k8s.io/tinkerbellmachine"
OWNER = {"v1alpha1.tinkerbell.org/ownerName": "tm1", "v1alpha1.tinkerbell.org/ownerNamespace": "default"}
MACHINE_LABELS = {"capt.tinkerbell.org/machine-name": "tm1", "capt.tinkerbell.org/machine-namespace": "default"}
REFERENCE = {
    "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
    "kind": "TinkerbellMachine",
    "name": "tm1",
    "uid": "c8b9d3a4-0000-4000-8000-000000000001",
    "controller": True,
}
TEXT = """version: "0.1"
name: tm1
global_timeout: 6000
tasks:
  - name: "tm1"
    worker: "{{.device_1}}"
    volumes:
      - /dev:/dev
    actions:
      - name: "stream image"
        image: quay.io/tinkerbell/actions/oci2disk
        timeout: 1200
        environment:
          IMG_URL: registry.example/ubuntu:v1
          DEST_DISK: {{ index .Hardware.Disks 0 }}
"""


def machine() -> Raw:
    """Return a Hardware as sites of CAPT write it."""
    return {
        "apiVersion": "tinkerbell.org/v1alpha1",
        "kind": "Hardware",
        "metadata": {"name": "hw1", "namespace": "default", "labels": {"type": "cp"}},
        "spec": {
            "bmcRef": {"apiGroup": "bmc.tinkerbell.org", "kind": "Machine", "name": "bmc1"},
            "disks": [{"device": "/dev/sda"}],
            "interfaces": [
                {
                    "dhcp": {
                        "arch": "x86_64",
                        "hostname": "hw1",
                        "ip": {"address": "10.0.0.5", "gateway": "10.0.0.1", "netmask": "255.255.255.0"},
                        "lease_time": 86400,
                        "mac": MAC,
                        "name_servers": ["1.1.1.1"],
                        "uefi": True,
                    },
                    "disableDhcp": False,
                    "netboot": {"allowPXE": True, "allowWorkflow": True},
                }
            ],
            "metadata": {
                "facility": {"facility_code": "onprem"},
                "instance": {"hostname": "hw1", "id": MAC, "operating_system": {"distro": "ubuntu"}},
            },
        },
    }


class Site:
    """The embedded API with its admission reviews, and CAPT as its client."""

    def __init__(self) -> None:
        kinds = {"tinkerbell.org/hardware": HARDWARE}

        async def find(key: str, namespace: str, name: str) -> Raw | None:
            return self.api.read(kinds[key], name, namespace) if key in kinds else None

        plugin = ReviewPlugin(find)
        plugin.synced()
        self.api = InProcessApi(serve_v1alpha1=True, plugin=plugin)

    async def make(self, obj: Raw, resource: ResourceType) -> Raw:
        return await self.api.create(resource, obj, "default")

    async def patch(self, resource: ResourceType, name: str, body: Raw, **more: Any) -> Raw:
        return await self.api.patch(resource, name, "default", body, **more)

    async def get(self, resource: ResourceType, name: str) -> Raw:
        return await self.api.get(resource, name, "default")

    async def replay(self, request: Raw) -> None:
        """Send a recorded request. Raises ApiError."""
        parts = request["path"].split("/")
        resource, (name, subresource) = RESOURCES["/".join(parts[:7])], [*parts[7:], "", ""][:2]
        match request["method"]:
            case "POST":
                await self.make(request["body"], resource)
            case "PATCH" if request["content_type"] == "application/json-patch+json":
                await self.api.send("PATCH", resource, name, request["body"], content=request["content_type"])
            case "PATCH":
                assert request["content_type"] == "application/merge-patch+json"
                await self.patch(resource, name, request["body"], subresource=subresource or None)
            case "DELETE":
                await self.api.delete(resource, name, "default")

    async def take(self, owner: str = "tm1") -> Raw:
        """Take the Hardware for a TinkerbellMachine, as CAPT does: without a resourceVersion."""
        labels = OWNER | {"v1alpha1.tinkerbell.org/ownerName": owner}
        return await self.patch(OLD_HARDWARE, "hw1", {"metadata": {"finalizers": [FINALIZER], "labels": labels}})


@pytest.fixture
def site() -> Site:
    return Site()


async def test_life_of_a_cluster_machine(site: Site) -> None:
    made = await site.make(machine(), OLD_HARDWARE)
    assert made["spec"] == machine()["spec"]
    today = (await site.get(HARDWARE, "hw1"))["spec"]
    assert today["networkInterfaces"][MAC]["dhcp"]["ip"] == "10.0.0.5"
    assert today["storageDevices"] == ["/dev/sda"]
    assert (today["bmcRef"], today["osie"]) == ({"name": "bmc1"}, {"name": "default"})

    await site.take()
    user_data = "#cloud-config\nruncmd: [kubeadm join]\n"
    taken = await site.patch(OLD_HARDWARE, "hw1", {"spec": {"userData": user_data}})
    assert taken["spec"] == machine()["spec"] | {"userData": user_data}
    found = await site.get(HARDWARE, "hw1")
    assert found["spec"] == today | {"instance": {"userdata": user_data}}
    assert found["metadata"]["labels"]["v1alpha1.tinkerbell.org/ownerName"] == "tm1"

    metadata = {"name": "tm1", "namespace": "default", "labels": MACHINE_LABELS, "ownerReferences": [REFERENCE]}
    kinds = {"apiVersion": "tinkerbell.org/v1alpha1", "metadata": metadata}
    text = await site.make({**kinds, "kind": "Template", "spec": {"data": TEXT}}, OLD_TEMPLATE)
    assert text["spec"] == {"data": TEXT}
    spec = {
        "bootOptions": {"bootMode": "netboot", "toggleAllowNetboot": True},
        "hardwareMap": {"device_1": MAC},
        "hardwareRef": "hw1",
        "templateRef": "tm1",
    }
    created = await site.make({**kinds, "kind": "Workflow", "spec": spec}, OLD_WORKFLOW)
    assert created["spec"] == spec
    workflow = await site.get(WORKFLOW, "tm1")
    assert workflow["spec"]["hardwareRef"] == {"name": "hw1"}
    assert workflow["spec"]["templateRef"] == {"name": "tm1"}
    assert workflow["spec"]["bootOptions"] == spec["bootOptions"]
    (action,) = (await site.get(TEMPLATE, "tm1"))["spec"]["actions"]
    assert action["image"] == "quay.io/tinkerbell/actions/oci2disk"

    states = []
    for state in ("Pending", "Scheduled", "Running", "Succeeded"):
        await site.patch(
            WORKFLOW,
            "tm1",
            {"status": {"state": state, "lastTransitioned": "2026-12-01T04:00:00Z"}},
            subresource="status",
        )
        states.append((await site.get(OLD_WORKFLOW, "tm1"))["status"]["state"])
    assert states == ["PREPARING", "PREPARING", "RUNNING", "SUCCESS"]
    provisioned = {"v1alpha1.tinkerbell.org/provisioned": "true"}
    await site.patch(OLD_HARDWARE, "hw1", {"metadata": {"annotations": provisioned}})

    await site.api.delete(OLD_TEMPLATE, "tm1", "default")
    await site.api.delete(OLD_WORKFLOW, "tm1", "default")
    job: Raw = {"apiVersion": JOB.api_version, "kind": "Job", "metadata": {"name": "tm1-poweroff"}}
    job["spec"] = {"machineRef": {"name": "bmc1", "namespace": "default"}, "tasks": [{"powerAction": "off"}]}
    await site.make(job, JOB)
    nothing = {"annotations": dict.fromkeys(provisioned), "labels": dict.fromkeys(OWNER)}
    await site.patch(OLD_HARDWARE, "hw1", {"metadata": {**nothing, "finalizers": None}})
    released = await site.get(OLD_HARDWARE, "hw1")
    assert released["spec"] == machine()["spec"] | {"userData": user_data}
    assert released["metadata"]["labels"] == {"type": "cp"}


def merged(target: Any, patch: Any) -> Any:
    """Return a value after a JSON merge patch (RFC 7386 section 2)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def written(obj: Raw) -> Raw:
    """Return the parts of a Hardware of v1alpha1 that its clients wrote, without residue and defaults."""
    spec = copy.deepcopy(obj["spec"])
    for interface in spec.get("interfaces", []):
        if interface.get("disableDhcp") is False:
            del interface["disableDhcp"]
    annotations = obj["metadata"].get("annotations", {})
    own = {key: value for key, value in annotations.items() if not key.startswith("tinkerbell.org/")}
    parts = {key: obj["metadata"].get(key) for key in ("labels", "finalizers")} | {"annotations": own}
    return {"spec": spec, **{key: value for key, value in parts.items() if value}}


async def test_recorded_requests_of_capt_have_the_effect_in_v1alpha1_that_they_had_if_it_were_stored(
    site: Site,
) -> None:
    """A Hardware of v1alpha1 always is the created one with CAPT's merge patches; v1alpha2 follows."""
    expected: dict[str, Raw] = {}
    created: dict[str, Raw] = {}
    for request in RECORDED:
        if request["status"] >= 400:
            with pytest.raises(ApiError) as refused:
                await site.replay(request)
            assert (refused.value.status, refused.value.message) == (request["status"], request["message"])
            continue
        await site.replay(request)
        if not request["path"].startswith(OLD_HARDWARE.path("default")):
            continue
        name = request["body"]["metadata"]["name"] if request["method"] == "POST" else request["path"].split("/")[-1]
        expected[name] = merged(expected.get(name), request["body"])
        today = await site.get(HARDWARE, name)
        created.setdefault(name, today["spec"])
        assert written(await site.get(OLD_HARDWARE, name)) == written(expected[name])
        user_data = expected[name]["spec"].get("userData")
        instance = {} if user_data is None else {"instance": {"userdata": user_data}}
        assert today["spec"] == created[name] | instance
        assert today["metadata"]["labels"] == expected[name]["metadata"]["labels"]
    assert sorted(expected) == ["hw-0", "hw-1", "hw-2"]
    assert [each.get("metadata", {}).get("labels") for each in expected.values()] == [{"type": "node"}] * 3
    assert [site.api.objects(each) for each in (TEMPLATE, WORKFLOW)] == [[], []]


async def test_workflows_of_the_recorded_run_are_read_as_v1alpha1_when_their_states_change(site: Site) -> None:
    words = {"Pending": "PREPARING", "Scheduled": "PREPARING", "Running": "RUNNING", "Succeeded": "SUCCESS"}
    changes = 0
    for request in RECORDED:
        if request["status"] >= 400:
            continue
        await site.replay(request)
        state = request.get("body", {}).get("status", {}).get("state") if request["by"] == "tinkedge" else None
        if state is not None:
            name = request["path"].split("/")[-2]
            old = await site.get(OLD_WORKFLOW, name)
            assert (name, old["status"]["state"]) == (name, words[state])
            changes += 1
    assert changes == 12


async def test_machines_that_clusterctl_moves_are_as_before_and_no_workflow_comes_with_them() -> None:
    source, target = Site(), Site()
    before: dict[str, tuple[Raw, Raw]] = {}

    async def hardware(site: Site) -> dict[str, tuple[Raw, Raw]]:
        names = [each["metadata"]["name"] for each in site.api.objects(HARDWARE)]
        return {
            name: (written(await site.get(OLD_HARDWARE, name)), (await site.get(HARDWARE, name))["spec"])
            for name in names
        }

    for request in MOVED:
        if request["status"] >= 400:
            continue
        if request["by"] == "clusterctl" and not before:
            before = await hardware(source)
        if "delete-for-move" in json.dumps(request.get("body")) and request["path"].endswith("/hw-0"):
            assert await hardware(target) == before
            assert [len(target.api.objects(each)) for each in (MACHINE, TEMPLATE, WORKFLOW, JOB)] == [1, 0, 0, 0]
        await (target if request.get("api") else source).replay(request)
    assert sorted(before) == ["hw-0", "hw-1"]
    for old, _ in before.values():
        assert old["annotations"] == {"v1alpha1.tinkerbell.org/provisioned": "true"}
        assert (old["finalizers"], old["labels"]["type"]) == ([FINALIZER], "node")
    assert [source.api.objects(each) for each in (HARDWARE, MACHINE)] == [[], []]
    assert [each["metadata"]["labels"] for each in target.api.objects(HARDWARE)] == [{"type": "node"}] * 2


async def test_fields_that_an_operator_adds_in_v1alpha2_survive_the_requests_of_capt(site: Site) -> None:
    """CAPT may release with `annotations: null` before it has seen the annotation with these fields."""
    for request in RECORDED:
        if request["status"] >= 400:
            continue
        await site.replay(request)
        if "userData" in request.get("body", {}).get("spec", {}):
            await site.patch(HARDWARE, request["path"].split("/")[-1], {"spec": {"osie": {"name": "hook"}}})
    found = [each["spec"]["osie"] for each in site.api.objects(HARDWARE)]
    assert found == [{"name": "hook"}] * 3


async def test_one_hardware_is_taken_by_one_machine_of_those_that_choose_it_at_once(site: Site) -> None:
    await site.make(machine(), OLD_HARDWARE)
    names = [f"tm{number}" for number in range(20)]
    found = await asyncio.gather(*(site.take(name) for name in names), return_exceptions=True)
    refused = [each for each in found if isinstance(each, ApiError)]
    assert len(refused) == len(names) - 1
    assert "belongs to TinkerbellMachine default/tm" in refused[0].message


async def test_rufio_reports_an_inventory_and_our_status_stays(site: Site) -> None:
    site.api.put(objects.hardware("hw1", MAC, "10.0.0.5") | {"status": {"state": "Installed"}})
    attributes = {"outOfBand": {"product": {"vendor": "HPE", "serialNumber": "C1"}}}
    body: Raw = {"apiVersion": OLD_HARDWARE.api_version, "kind": "Hardware", "metadata": {"name": "hw1"}}
    body["status"] = {"attributes": attributes}
    await site.api.send("PATCH", OLD_HARDWARE, "hw1", body, subresource="status", fieldManager="machine-controller")
    status = (await site.get(HARDWARE, "hw1"))["status"]
    assert (status["state"], status["inventory"]) == ("Installed", attributes)
    assert (await site.get(OLD_HARDWARE, "hw1"))["status"]["attributes"] == attributes


async def test_replacing_a_hardware_in_v1alpha1_keeps_the_fields_of_v1alpha2(site: Site) -> None:
    """`kubectl replace` and full updates send no annotation of ours."""
    site.api.put(objects.hardware("hw1", MAC, "10.0.0.5", osie={"name": "hook"}))
    old = await site.get(OLD_HARDWARE, "hw1")
    del old["metadata"]["annotations"]
    old["spec"]["userData"] = "#!/bin/sh"
    await site.api.send("PUT", OLD_HARDWARE, "hw1", old)
    spec = (await site.get(HARDWARE, "hw1"))["spec"]
    assert (spec["osie"], spec["instance"]) == ({"name": "hook"}, {"userdata": "#!/bin/sh"})


async def test_manifest_in_v1alpha1_names_its_osie_as_in_the_guide(site: Site) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
    (written,) = re.findall(rf"^    {V1ALPHA2_ANNOTATION}: '(.*)'$", guide, re.MULTILINE)
    manifest = machine()
    manifest["metadata"]["annotations"] = {V1ALPHA2_ANNOTATION: written}
    made = await site.make(manifest, OLD_HARDWARE)
    assert made["metadata"]["annotations"][V1ALPHA2_ANNOTATION] == written, "a diff of the manifest is empty"
    found = await site.get(HARDWARE, "hw1")
    assert found["spec"]["osie"] == {"name": "tinkedge"}
    assert V1ALPHA2_ANNOTATION not in found["metadata"]["annotations"]

    address = {"dhcp": {"ipv6": {"address": "2001:db8::5"}}}
    await site.patch(HARDWARE, "hw1", {"spec": {"networkInterfaces": {MAC: address}}})
    await site.patch(OLD_HARDWARE, "hw1", {"spec": {"userData": "#!/bin/sh"}})
    assert "ipv6" in (await site.get(HARDWARE, "hw1"))["spec"]["networkInterfaces"][MAC]["dhcp"]
    await site.patch(OLD_HARDWARE, "hw1", {"metadata": {"annotations": {V1ALPHA2_ANNOTATION: written}}})
    spec = (await site.get(HARDWARE, "hw1"))["spec"]
    assert (spec["osie"], "ipv6" in spec["networkInterfaces"][MAC]["dhcp"]) == ({"name": "tinkedge"}, False)


async def test_osie_stays_while_clients_of_v1alpha1_apply_and_replace(site: Site) -> None:
    await site.make(machine(), OLD_HARDWARE)
    await site.patch(HARDWARE, "hw1", {"spec": {"osie": {"name": "tinkedge"}}})
    applied = machine() | {"metadata": {"name": "hw1"}}
    await site.api.send("PATCH", OLD_HARDWARE, "hw1", applied, fieldManager="gitops", force="true")
    await site.take()
    old = await site.get(OLD_HARDWARE, "hw1")
    del old["metadata"]["annotations"]
    await site.api.send("PUT", OLD_HARDWARE, "hw1", old)
    assert (await site.get(HARDWARE, "hw1"))["spec"]["osie"] == {"name": "tinkedge"}


async def test_actions_edited_in_v1alpha2_count_until_a_new_text(site: Site) -> None:
    template = {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Template", "metadata": {"name": "tm1"}}
    await site.make({**template, "spec": {"data": TEXT}}, OLD_TEMPLATE)
    made = await site.get(TEMPLATE, "tm1")
    assert text_of(made) == TEXT
    (action,) = made["spec"]["actions"]
    edited = await site.patch(TEMPLATE, "tm1", {"spec": {"actions": [action | {"timeout": 99}]}})
    assert text_of(edited) is None
    shown = (await site.get(OLD_TEMPLATE, "tm1"))["spec"]["data"]
    assert ("timeout: 99" in shown, "global_timeout" in shown) == (True, False)
    await site.patch(OLD_TEMPLATE, "tm1", {"spec": {"data": TEXT}})
    assert text_of(await site.get(TEMPLATE, "tm1")) == TEXT


# --- annotations ------------------------------------------------------------------------------------------------------


def applied(obj: Raw) -> Raw:
    """Return a manifest as `kubectl apply` creates it on the client's side."""
    made = copy.deepcopy(obj)
    made["metadata"].setdefault("annotations", {})[LAST_APPLIED] = json.dumps(obj)
    return made


def text_template(size: int) -> Raw:
    """Return a Template with a text of so many bytes, which no compression makes much shorter."""
    metadata = {"name": "large", "namespace": "default"}
    spec = {"data": f"#{noise(size - len(TEXT) - 2)}\n{TEXT}"}
    return {"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Template", "metadata": metadata, "spec": spec}


def custom(text: str) -> Raw:
    """Return a Hardware with a text in a field that v1alpha2 has no place for."""
    made = machine()
    made["spec"]["metadata"]["custom"] = {"preinstalled_operating_system_version": {"slug": text}}
    return made


def noise(size: int) -> str:
    return base64.b64encode(Random(1).randbytes(size)).decode()[:size]


@pytest.mark.parametrize(
    ("resource", "manifest", "source"),
    [
        (OLD_TEMPLATE, text_template(160 << 10), "spec.data"),
        (OLD_HARDWARE, custom(noise(160 << 10)), "the fields that v1alpha2 has no place for"),
    ],
)
async def test_object_that_could_not_be_written_as_v1alpha2_is_refused_in_v1alpha1(
    site: Site, resource: ResourceType, manifest: Raw, source: str
) -> None:
    with pytest.raises(ApiError) as refused:
        await site.make(applied(manifest), resource)
    assert refused.value.status == 422
    message = str(refused.value)
    assert "metadata.annotations: the annotations of the stored v1alpha2 object would have" in message
    assert f"use `kubectl apply --server-side`, which does not need {LAST_APPLIED}, or shorten {source}" in message
    await site.make(manifest, resource)


@pytest.mark.parametrize(
    ("resource", "new_resource", "manifest"),
    [
        (OLD_TEMPLATE, TEMPLATE, text_template(100 << 10)),
        (OLD_HARDWARE, HARDWARE, custom(noise(100 << 10))),
        (OLD_HARDWARE, HARDWARE, custom("x" * (150 << 10))),
    ],
)
async def test_large_object_that_is_accepted_in_v1alpha1_can_be_written_in_v1alpha2(
    site: Site, resource: ResourceType, new_resource: ResourceType, manifest: Raw
) -> None:
    await site.make(applied(manifest), resource)
    name = manifest["metadata"]["name"]
    await site.patch(new_resource, name, {"metadata": {"labels": {"a": "b"}}})
    assert (await site.get(resource, name))["spec"] == manifest["spec"]


def full(**spec: Any) -> Raw:
    """Return a Hardware of v1alpha2 with as many annotations as Kubernetes permits."""
    made = objects.hardware("full", MAC, "10.0.0.5", **spec)
    made["metadata"]["annotations"] = {"a": "x" * (MAX_ANNOTATIONS_BYTES - 1)}
    return made


def test_oversized_view_of_v1alpha1_is_marked_and_never_written() -> None:
    """An API server rejects a conversion with more annotations, and with it each list of the objects."""
    stored = full(osie={"name": "hook"})
    view = convert_within_limits(stored, OLD)
    assert view["metadata"]["annotations"] == stored["metadata"]["annotations"]
    assert view["metadata"]["labels"] == {OVERSIZED_LABEL: "true"}
    with pytest.raises(ConversionError, match=r"default/full: .* write the object in v1alpha2, or remove annotations"):
        convert_within_limits(view, NEW)


def test_view_that_fits_is_not_marked() -> None:
    stored = full(osie={"name": "hook"})
    stored["metadata"]["annotations"]["a"] = "x" * (MAX_ANNOTATIONS_BYTES - 1000)
    view = convert_within_limits(stored, OLD)
    assert "labels" not in view["metadata"]
    assert V1ALPHA2_ANNOTATION in view["metadata"]["annotations"]
    assert convert_within_limits(view, NEW)["spec"]["osie"] == {"name": "hook"}
    assert convert_within_limits(view, OLD) == view


def test_object_that_is_too_large_to_be_stored_is_refused_with_the_remedy() -> None:
    manifest = applied(text_template(160 << 10))
    with pytest.raises(ConversionError, match=r"^Template default/large: metadata.annotations: .*--server-side"):
        convert_within_limits(manifest, NEW)
    convert(manifest, NEW)


# --- definitions ------------------------------------------------------------------------------------------------------


def definition(*, serve_v1alpha1: bool) -> Raw:
    """Return the definition of Hardware."""
    return copy.deepcopy(generate(serve_v1alpha1=serve_v1alpha1)[0])


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definition_of_v1alpha2_alone_becomes_that_of_tinkedge_up(name: str) -> None:
    made, expected = (
        next(copy.deepcopy(each) for each in definitions if each["metadata"]["name"] == name)
        for definitions in (generate(), generate(serve_v1alpha1=True))
    )
    keep_served(made, None)
    assert made == expected


def test_definition_of_v1alpha2_alone_keeps_the_v1alpha1_that_is_stored() -> None:
    stored = definition(serve_v1alpha1=True)
    stored["spec"]["versions"][1]["served"] = False
    new = definition(serve_v1alpha1=False)
    keep_served(new, stored)
    assert new == stored


@pytest.mark.parametrize(
    "change", ["has v1alpha1", "stores v1alpha1", "other kind", "other name", "odd versions", "no spec"]
)
def test_other_definitions_are_not_changed(change: str) -> None:
    new = definition(serve_v1alpha1=change in ("has v1alpha1", "stores v1alpha1"))
    match change:
        case "stores v1alpha1":
            new["spec"]["versions"] = [{"name": "v1alpha3", "served": True, "storage": True}]
        case "other kind":
            new["kind"] = "Hardware"
        case "other name":
            new["metadata"]["name"] = "osies.tinkerbell.org"
        case "odd versions":
            new["spec"]["versions"] = {"v1alpha2": 7}
        case "no spec":
            del new["spec"]
    before = copy.deepcopy(new)
    keep_served(new, None)
    assert new == before


def test_definitions_are_not_shared_with_the_stored_ones() -> None:
    new, stored = definition(serve_v1alpha1=False), definition(serve_v1alpha1=True)
    versions = new["spec"]["versions"]
    keep_served(new, stored)
    assert len(versions) == 1, "a definition that another caller may hold"
