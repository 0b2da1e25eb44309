"""Clients of Tinkerbell's v1alpha1, unchanged, on an API that serves it beside v1alpha2.

kubectl, an old and a new one, does what people, Helm and Argo CD do. In a rack, a real `tinkedge up` runs Workflows
that were created in v1alpha1, with our agent and with simulated agents of HookOS.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import pytest
from kubernetes_asyncio import client, config, watch

from tests.api import serving
from tests.interop.conftest import Kubectl
from tests.interop.rack import ADDRESS, IN_EDGE, TINKEDGE, Process, clean_environment
from tests.interop.rack import Kubectl as RackKubectl
from tests.interop.test_kubectl import Watch, wait_until_gone
from tests.interop.test_up import IN_MACHINE, Rack
from tests.waiting import wait_until
from tink import versions
from tink.api.crds import generate
from tink.api.yaml import objects
from tink.kube.resources import HARDWARE
from tink.kube.resources import OLD_HARDWARE as OLD_HARDWARE_TYPE

pytestmark = pytest.mark.long

OLD = "tinkerbell.org/v1alpha1"
CORPORA = Path(__file__).resolve().parents[1] / "unit" / "convert" / "corpora"
OLD_HARDWARE, OLD_TEMPLATES, OLD_WORKFLOWS = (
    f"{plural}.v1alpha1.tinkerbell.org" for plural in ("hardware", "templates", "workflows")
)
SERVER_WRITTEN = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "finalizers")
MAC = "52:54:00:12:34:56"
IMAGE = "127.0.0.1:5000/shell:1"
MACHINE: Final[dict[str, Any]] = {
    "apiVersion": OLD,
    "kind": "Hardware",
    "metadata": {"name": "hw1", "labels": {"type": "cp"}},
    "spec": {
        "disks": [{"device": "/dev/vda"}],
        "interfaces": [
            {
                "dhcp": {
                    "arch": "x86_64",
                    "hostname": "hw1",
                    "ip": {"address": "172.31.77.50", "gateway": "172.31.77.1", "netmask": "255.255.255.0"},
                    "lease_time": 86400,
                    "mac": MAC,
                    "name_servers": ["1.1.1.1"],
                    "uefi": True,
                },
                "netboot": {"allowPXE": True, "allowWorkflow": True},
            }
        ],
        "metadata": {"facility": {"facility_code": "onprem"}, "instance": {"hostname": "hw1", "id": MAC}},
    },
}
TEMPLATE: Final[dict[str, Any]] = {
    "apiVersion": OLD,
    "kind": "Template",
    "metadata": {"name": "install"},
    "spec": {
        "data": """version: "0.1"
name: install
global_timeout: 600
tasks:
  - name: "os"
    worker: "{{.device_1}}"
    actions:
      - name: "look"  # a comment stays
        image: IMAGE
        timeout: 60
        command: ["/bin/sh", "-c", "test {{ index .Hardware.Disks 0 }} = /dev/vda"]
      - name: "write"
        image: IMAGE
        timeout: 60
        command: ["/bin/sh", "-c", "echo $WORD"]
        environment: {WORD: "{{ .word }}"}
""".replace("IMAGE", IMAGE)
    },
}
WORKFLOW: Final[dict[str, Any]] = {
    "apiVersion": OLD,
    "kind": "Workflow",
    "metadata": {"name": "install"},
    "spec": {"hardwareMap": {"device_1": MAC, "word": "done"}, "hardwareRef": "hw1", "templateRef": "install"},
}


def changed(obj: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """Return a copy of an object with further metadata."""
    found = deepcopy(obj)
    found["metadata"].update(metadata)
    return found


def corpora() -> list[dict[str, Any]]:
    """Return the v1alpha1 objects of real sites as a repository has them: without what a server wrote.

    Two values differ: upstream's schema refuses a MAC address with capital letters, and Kubernetes refuses a null in
    a server-side apply (tests/unit/kubeapi/apiserver/managed_fields/recorded/nulls.json).
    """
    files = [*CORPORA.glob("hardware/*"), *CORPORA.glob("templates/*.in.yaml")]
    found = [obj for file in sorted(files) for obj in objects(file.read_text()) if obj["apiVersion"] == OLD]
    for obj in found:
        obj["metadata"] = {key: value for key, value in obj["metadata"].items() if key not in SERVER_WRITTEN}
        obj["metadata"].get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
        obj["metadata"].pop("ownerReferences", None)  # the owner is not here, and nothing stays without its owner
        obj.pop("status", None)
        if obj["spec"].get("bmcRef", {}).get("apiGroup", "") is None:
            del obj["spec"]["bmcRef"]["apiGroup"]
        for interface in obj["spec"].get("interfaces", ()):
            interface["dhcp"]["mac"] = interface["dhcp"]["mac"].lower()
    return found


def stream(*several: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": several})


async def apply(kubectl: Kubectl, *several: dict[str, Any]) -> str:
    return await kubectl("apply", "-f", "-", stdin=stream(*several))


async def old(kubectl: Kubectl, plural: str = OLD_HARDWARE, name: str = "hw1") -> Any:
    return await kubectl.object(plural, name)


async def new(kubectl: Kubectl, plural: str = "hardware", name: str = "hw1") -> Any:
    return await kubectl.object(f"{plural}.v1alpha2.tinkerbell.org", name)


def interface(obj: dict[str, Any]) -> Any:
    """Return the interface of a Hardware of either version."""
    found = obj["spec"].get("interfaces") or [obj["spec"]["networkInterfaces"][MAC]]
    return found[0]


# --- GitOps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["client-side", "server-side"])
async def test_diff_of_sites_manifests_is_empty_after_apply_and_another_apply_writes_nothing(
    both_versions: Kubectl, mode: str
) -> None:
    """test_v1alpha1_helm.py has the same for Helm."""
    kubectl, manifests = both_versions, corpora()
    for namespace in {obj["metadata"].get("namespace", "default") for obj in manifests} - {"default"}:
        await kubectl("create", "namespace", namespace)
    options = ["--server-side"] if mode == "server-side" else []
    written = stream(*manifests)

    async def apply() -> list[tuple[str, str]]:
        await kubectl("apply", *options, "-f", "-", stdin=written)
        found = json.loads(await kubectl("get", "-f", "-", "-o", "json", stdin=written))["items"]
        return [(obj["metadata"]["name"], obj["metadata"]["resourceVersion"]) for obj in found]

    first = await apply()
    assert len(first) == len(manifests) > 20
    ran = await kubectl.run("diff", *options, "-f", "-", stdin=written)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert await apply() == first
    found = json.loads(await kubectl("get", "-f", "-", "-o", "json", stdin=written))["items"]
    for obj, manifest in zip(found, manifests, strict=True):
        for each in obj["spec"].get("interfaces", ()):
            assert each.pop("disableDhcp") is False  # upstream's default
        for each in manifest["spec"].get("interfaces", ()):
            each.pop("disableDhcp", None)
        assert obj["spec"] == manifest["spec"]
        assert obj["apiVersion"] == OLD


@pytest.mark.since(30)
@pytest.mark.parametrize("mode", ["client-side", "server-side"])
async def test_server_side_diff_of_argo_cd_is_empty_after_a_sync(both_versions: Kubectl, mode: str) -> None:
    """gitops-engine compares the live object with a forced dry run of its apply, after a sync of either kind.

    Its program of version 3.6.1 found the same (docs/migrating.md). Argo CD marks each object with an annotation.
    """
    kubectl = both_versions
    manifests = [changed(each, annotations={"argocd.argoproj.io/tracking-id": "app:x"}) for each in corpora()]
    for namespace in {obj["metadata"].get("namespace", "default") for obj in manifests} - {"default"}:
        await kubectl("create", "namespace", namespace)
    written, shown = stream(*manifests), ["-o", "json", "--show-managed-fields"]
    on_server = ["--server-side", "--force-conflicts", "--field-manager=argocd-controller"]
    ran = await kubectl.run("apply", *(on_server if mode == "server-side" else []), "-f", "-", stdin=written)
    assert ran.code == 0, ran.err
    live = json.loads(await kubectl("get", "-f", "-", *shown, stdin=written))["items"]
    ran = await kubectl.run("apply", *on_server, "--dry-run=server", *shown, "-f", "-", stdin=written)
    predicted = json.loads(ran.out)["items"]
    for each in (*live, *predicted):
        del each["metadata"]["managedFields"]
    assert len(live) > 20
    # kubectl, and not Argo CD, keeps the annotation of a client-side apply up to date.
    applied = "kubectl.kubernetes.io/last-applied-configuration"
    for each in (*live, *predicted):
        each["metadata"]["annotations"].pop(applied, None)
    assert predicted == live


async def test_server_side_diff_of_a_client_side_apply_conflicts_as_with_the_definitions_of_upstream(
    both_versions: Kubectl,
) -> None:
    """The list of interfaces has one owner, and the API adds `disableDhcp` to its items.

    Kubernetes 1.36 with upstream's definitions alone gives these answers. A manifest with the default has no conflict.
    """
    kubectl = both_versions
    await apply(kubectl, MACHINE)
    ran = await kubectl.run("diff", "--server-side", "-f", "-", stdin=stream(MACHINE))
    assert ran.code > 1
    assert 'conflict with "kubectl-client-side-apply" using tinkerbell.org/v1alpha1: .spec.interfaces' in ran.err
    ran = await kubectl.run("apply", "--server-side", "-f", "-", stdin=stream(MACHINE))
    assert (ran.code, ".spec.interfaces" in ran.err) == (1, True)
    complete = with_default(MACHINE)
    await kubectl("apply", "--server-side", "-f", "-", stdin=stream(complete))
    ran = await kubectl.run("diff", "--server-side", "-f", "-", stdin=stream(complete))
    assert (ran.code, ran.out) == (0, "")


async def test_apply_undoes_an_edit_in_v1alpha2_and_keeps_what_v1alpha1_does_not_have(both_versions: Kubectl) -> None:
    kubectl = both_versions
    await apply(kubectl, MACHINE)
    body = {
        "spec": {"osie": {"name": "hook"}, "networkInterfaces": {MAC: {"dhcp": {"hostname": "other"}}}},
    }
    await kubectl("patch", "hw", "hw1", "--type=merge", "-p", json.dumps(body))
    ran = await kubectl.run("diff", "-f", "-", stdin=stream(MACHINE))
    assert ran.code == 1
    assert [line.split() for line in ran.out.splitlines() if " hostname: " in line and line[0] in "+-"] == [
        ["-", "hostname:", "other"],
        ["+", "hostname:", "hw1"],
    ]
    await apply(kubectl, MACHINE)
    assert interface(await old(kubectl))["dhcp"]["hostname"] == "hw1"
    found = await new(kubectl)
    assert (found["spec"]["osie"], interface(found)["dhcp"]["hostname"]) == ({"name": "hook"}, "hw1")


@pytest.mark.parametrize("mode", ["client-side", "server-side"])
async def test_manifests_change_from_v1alpha1_to_v1alpha2_and_back(both_versions: Kubectl, mode: str) -> None:
    kubectl = both_versions
    options = ["--server-side"] if mode == "server-side" else []
    await kubectl("apply", *options, "-f", "-", stdin=stream(MACHINE))
    spec = (await new(kubectl))["spec"]
    today = {**MACHINE, "apiVersion": "tinkerbell.org/v1alpha2", "spec": {**spec, "osie": {"name": "hook"}}}
    for manifest in (today, MACHINE, MACHINE, today):
        await kubectl("apply", *options, "-f", "-", stdin=stream(manifest))
        ran = await kubectl.run("diff", *options, "-f", "-", stdin=stream(manifest))
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        assert (await new(kubectl))["spec"]["osie"] == {"name": "hook"}, "v1alpha1 has no place for it, and keeps it"
        assert interface(await old(kubectl))["dhcp"] == interface(MACHINE)["dhcp"]


async def test_managers_of_both_versions_conflict_over_one_field_and_share_the_object(both_versions: Kubectl) -> None:
    kubectl = both_versions
    server_side = ("apply", "--server-side", "-f", "-")
    await kubectl(*server_side, "--field-manager=argocd", stdin=stream(MACHINE))

    def mine(**dhcp: Any) -> str:
        interfaces = {MAC: {"dhcp": {"ip": "172.31.77.50", **dhcp}}}
        about = {"apiVersion": "tinkerbell.org/v1alpha2", "kind": "Hardware", "metadata": {"name": "hw1"}}
        return stream({**about, "spec": {"osie": {"name": "hook"}, "networkInterfaces": interfaces}})

    await kubectl(*server_side, "--field-manager=mine", stdin=mine())
    ran = await kubectl.run(*server_side, "--field-manager=mine", stdin=mine(hostname="other"))
    assert ran.code == 1
    assert 'conflict with "argocd": .spec.interfaces' in ran.err
    await kubectl(*server_side, "--field-manager=mine", "--force-conflicts", stdin=mine(hostname="other"))
    assert interface(await old(kubectl))["dhcp"]["hostname"] == "other"
    ran = await kubectl.run(*server_side, "--field-manager=argocd", stdin=stream(MACHINE))
    assert (ran.code, 'conflict with "mine"' in ran.err) == (1, True)
    await kubectl(*server_side, "--field-manager=argocd", "--force-conflicts", stdin=stream(MACHINE))
    found = await new(kubectl)
    assert (found["spec"]["osie"], interface(found)["dhcp"]["hostname"]) == ({"name": "hook"}, "hw1")
    shown = ["--show-managed-fields"] if kubectl.minor >= 21 else []
    managed = json.loads(await kubectl("get", "hw", "hw1", "-o", "json", *shown))["metadata"]["managedFields"]
    versions = {each["manager"]: each["apiVersion"] for each in managed}
    assert versions == {"argocd": OLD, "mine": "tinkerbell.org/v1alpha2"}


# --- people -----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_both_versions_are_listed_and_explained(both_versions: Kubectl) -> None:
    kubectl = both_versions
    await apply(kubectl, MACHINE, TEMPLATE, WORKFLOW)
    rows = [line.split() for line in (await kubectl("get", OLD_HARDWARE)).splitlines()]
    assert rows == [["NAME", "STATE"], ["hw1"]]
    rows = [line.split() for line in (await kubectl("get", OLD_WORKFLOWS)).splitlines()]
    assert rows == [
        ["NAME", "TEMPLATE", "STATE", "ACTION", "AGENT", "HARDWARE"],
        ["install", "install", "hw1"],
    ]
    wide = (await kubectl("get", OLD_WORKFLOWS, "-o", "wide")).splitlines()[0].split()
    assert wide == ["NAME", "TEMPLATE", "STATE", "TASK", "ACTION", "AGENT", "HARDWARE", "TEMPLATE-RENDERING"]
    assert (await kubectl("get", "hw")).split()[:5] == ["NAME", "STATE", "BOOT", "IP", "MAC"]
    versions = (await kubectl("api-versions")).split()
    assert {OLD, "tinkerbell.org/v1alpha2"} <= {*versions}
    at = f"--api-version={OLD}"
    assert "boot_file_name" in await kubectl("explain", "hardware.spec.interfaces.dhcp", at)
    assert "192 KiB" in await kubectl("explain", "template.spec.data", at)
    assert "executionStart" in await kubectl("explain", "workflow.status.tasks.actions", at)
    assert "addAttributes" in await kubectl("explain", "wrs.spec.workflow")
    ran = await kubectl.run("apply", "-f", "-", stdin=stream(MACHINE).replace('"arch"', '"arhc"'))
    assert (ran.code, 'unknown field "' in ran.err) == (1, True)
    assert json.loads(await kubectl("get", "--raw", f"/apis/{OLD}/hardware"))["kind"] == "HardwareList"
    described = await kubectl("describe", OLD_WORKFLOWS, "install")
    assert "Hardware Map" in described


async def test_patch_edit_and_replace_in_one_version_are_seen_in_the_other(both_versions: Kubectl) -> None:
    kubectl = both_versions
    await apply(kubectl, MACHINE, TEMPLATE, WORKFLOW)
    user_data = "#cloud-config\nruncmd: [kubeadm join]\n"
    await kubectl("patch", OLD_HARDWARE, "hw1", "--type=merge", "-p", json.dumps({"spec": {"userData": user_data}}))
    assert (await new(kubectl))["spec"]["instance"] == {"userdata": user_data}
    patch = [
        {"op": "test", "path": "/spec/interfaces/0/dhcp/mac", "value": MAC},
        {"op": "replace", "path": "/spec/interfaces/0/netboot/allowPXE", "value": False},
        {"op": "add", "path": "/spec/disks/-", "value": {"device": "/dev/vdb"}},
    ]
    await kubectl("patch", OLD_HARDWARE, "hw1", "--type=json", "-p", json.dumps(patch))
    found = await new(kubectl)
    assert found["spec"]["storageDevices"] == ["/dev/vda", "/dev/vdb"]
    assert interface(await old(kubectl))["netboot"] == {"allowPXE": False, "allowWorkflow": True}

    assert "edited" in await kubectl("edit", "hw", "hw1", KUBE_EDITOR="sed -i s/172.31.77.50/172.31.77.51/")
    assert interface(await old(kubectl))["dhcp"]["ip"]["address"] == "172.31.77.51"
    assert "edited" in await kubectl("edit", OLD_HARDWARE, "hw1", KUBE_EDITOR="sed -i s/172.31.77.51/172.31.77.52/")
    assert interface(await new(kubectl))["dhcp"]["ip"] == "172.31.77.52"
    assert "edited" in await kubectl("edit", OLD_TEMPLATES, "install", KUBE_EDITOR="sed -i s/shell:1/shell:2/")
    assert [each["image"] for each in (await new(kubectl, "templates", "install"))["spec"]["actions"]] == [
        "127.0.0.1:5000/shell:2"
    ] * 2

    await kubectl("patch", "hw", "hw1", "--type=merge", "-p", '{"spec": {"osie": {"name": "hook"}}}')
    assert "replaced" in await kubectl("replace", "-f", "-", stdin=stream(MACHINE))
    found = await new(kubectl)
    assert (found["spec"]["osie"], found["spec"]["storageDevices"]) == ({"name": "hook"}, ["/dev/vda"])
    assert "instance" not in found["spec"] or "userdata" not in found["spec"]["instance"]
    assert interface(await old(kubectl))["dhcp"]["ip"]["address"] == "172.31.77.50"
    await kubectl("label", OLD_HARDWARE, "hw1", "rack=a")
    await kubectl("annotate", "hw", "hw1", "note=here")
    metadata = (await old(kubectl))["metadata"]
    assert (metadata["labels"], metadata["annotations"]["note"]) == ({"rack": "a", "type": "cp"}, "here")
    assert "hw1" in await kubectl("get", OLD_HARDWARE, "-l", "rack=a")
    stale = json.dumps(changed(MACHINE, resourceVersion="1"))
    assert "the object has been modified" in (await kubectl.run("replace", "-f", "-", stdin=stale)).err


async def test_template_keeps_its_text_byte_for_byte_whatever_is_written_beside_it(both_versions: Kubectl) -> None:
    kubectl = both_versions
    await apply(kubectl, TEMPLATE)
    await kubectl("annotate", "templates.v1alpha2.tinkerbell.org", "install", "note=here")
    assert (await old(kubectl, OLD_TEMPLATES, "install"))["spec"] == TEMPLATE["spec"]
    ran = await kubectl.run("diff", "-f", "-", stdin=stream(TEMPLATE))
    assert (ran.code, ran.out) == (0, "")


async def test_watch_of_each_version_shows_each_change_in_its_version(both_versions: Kubectl) -> None:
    kubectl = both_versions
    old_columns = "custom-columns=V:.apiVersion,H:.spec.interfaces[0].dhcp.hostname"
    new_columns = "custom-columns=V:.apiVersion,D:.spec.storageDevices"
    await apply(kubectl, MACHINE)
    async with (
        Watch(kubectl, OLD_HARDWARE, "--no-headers", "-o", old_columns) as olds,
        Watch(kubectl, "hardware.v1alpha2.tinkerbell.org", "--no-headers", "-o", new_columns) as news,
    ):
        assert await olds.line() == [OLD, "hw1"]
        assert await news.line() == ["tinkerbell.org/v1alpha2", "[/dev/vda]"]
        interfaces = {"networkInterfaces": {MAC: {"dhcp": {"hostname": "other"}}}}
        await kubectl("patch", "hw", "hw1", "--type=merge", "-p", json.dumps({"spec": interfaces}))
        assert await olds.line() == [OLD, "other"]
        assert await news.line() == ["tinkerbell.org/v1alpha2", "[/dev/vda]"]
        disks = {"disks": [{"device": "/dev/sd"}]}
        await kubectl("patch", OLD_HARDWARE, "hw1", "--type=merge", "-p", json.dumps({"spec": disks}))
        assert await olds.line() == [OLD, "other"]
        assert await news.line() == ["tinkerbell.org/v1alpha2", "[/dev/sd]"]


async def test_clients_library_lists_and_watches_v1alpha1_across_a_restart_of_the_server(tmp_path: Path) -> None:
    """kubernetes-asyncio, which lists once and goes on from the list's resourceVersion."""
    converters = dict.fromkeys(versions.DEFINITIONS, versions)
    definitions = generate(serve_v1alpha1=True)
    async with serving(tmp_path / "state", definitions, converters=converters) as (_, kube):
        for number in range(3):
            await kube.create(OLD_HARDWARE_TYPE, changed(MACHINE, name=f"hw{number}"), "default")
        await kube.patch(HARDWARE, "hw1", "default", {"spec": {"osie": {"name": "hook"}}})
    async with serving(tmp_path / "state", converters=converters) as (server, kube):
        settings = client.Configuration()
        await config.load_kube_config(str(server.kubeconfig), client_configuration=settings)
        async with client.ApiClient(settings) as connected:
            api = client.CustomObjectsApi(connected)
            where = {"group": "tinkerbell.org", "version": "v1alpha1", "namespace": "default", "plural": "hardware"}
            listed = await api.list_namespaced_custom_object(**where)
            assert [each["spec"] for each in listed["items"]] == [with_default(MACHINE)["spec"]] * 3
            paged = await api.list_namespaced_custom_object(**where, limit=2)
            assert (len(paged["items"]), paged["metadata"]["remainingItemCount"]) == (2, 1)

            body = {"spec": {"networkInterfaces": {MAC: {"dhcp": {"hostname": "other"}}}}}
            await kube.patch(HARDWARE, "hw1", "default", body)
            await kube.patch(OLD_HARDWARE_TYPE, "hw2", "default", {"spec": {"userData": "#!/bin/sh"}})
            await kube.delete(HARDWARE, "hw0", "default")
            seen = []
            version = listed["metadata"]["resourceVersion"]
            async with watch.Watch() as watching:
                stream = watching.stream(api.list_namespaced_custom_object, **where, resource_version=version)
                async for event in stream:
                    seen.append(event)
                    if len(seen) == 3:
                        break
    first, second, third = seen
    assert [(each["type"], each["object"]["metadata"]["name"]) for each in seen] == [
        ("MODIFIED", "hw1"),
        ("MODIFIED", "hw2"),
        ("DELETED", "hw0"),
    ]
    assert {each["object"]["apiVersion"] for each in seen} == {OLD}
    assert interface(first["object"])["dhcp"] == interface(MACHINE)["dhcp"] | {"hostname": "other"}
    assert second["object"]["spec"] == with_default(MACHINE)["spec"] | {"userData": "#!/bin/sh"}
    assert third["object"]["spec"] == with_default(MACHINE)["spec"]


def with_default(machine: dict[str, Any]) -> dict[str, Any]:
    """Return a Hardware with the default of upstream's schema."""
    found = deepcopy(machine)
    found["spec"]["interfaces"][0]["disableDhcp"] = False
    return found


# --- definitions ------------------------------------------------------------------------------------------------------


async def test_definitions_of_upstream_are_refused(both_versions: Kubectl) -> None:
    kubectl = both_versions
    await apply(kubectl, MACHINE, TEMPLATE, WORKFLOW)
    machine = await old(kubectl)
    both = generate(serve_v1alpha1=True)
    (version,) = [each for each in both[0]["spec"]["versions"] if each["name"] == "v1alpha1"]
    upstreams = {**both[0], "spec": {**both[0]["spec"], "versions": [{**version, "storage": True}]}}
    ran = await kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=stream(upstreams))
    assert ran.code == 1
    assert "v1alpha2" in ran.err
    assert "status.storedVersions" in ran.err
    assert await old(kubectl) == machine


@pytest.mark.parametrize("command", ["apply", "apply --server-side --force-conflicts", "replace", "delete and create"])
async def test_definitions_of_v1alpha2_alone_do_not_end_v1alpha1(both_versions: Kubectl, command: str) -> None:
    """`tinkedge crds` prints them."""
    kubectl, definitions = both_versions, generate()
    words, text = command.split(), stream(*definitions)
    await apply(kubectl, MACHINE, TEMPLATE, WORKFLOW)
    machine = await old(kubectl)
    if command == "replace":
        await kubectl(*words, "-f", "-", stdin=stream(*await current(kubectl, definitions)))
    elif command == "delete and create":
        await kubectl("delete", "-f", "-", stdin=text)
        await kubectl("create", "-f", "-", stdin=text)
        await apply(kubectl, MACHINE, TEMPLATE, WORKFLOW)
    else:
        await kubectl(*words, "-f", "-", stdin=text)
        ran = await kubectl.run("diff", *words[1:], "-f", "-", stdin=text)
        assert (ran.code, ran.out, ran.err) == (0, "", "")
    found = await old(kubectl)
    assert found["spec"] == machine["spec"]
    await kubectl("label", OLD_HARDWARE, "hw1", "rack=a")
    assert (await new(kubectl))["metadata"]["labels"] == {"rack": "a", "type": "cp"}


async def test_v1alpha1_ends_on_request_and_comes_back(both_versions: Kubectl) -> None:
    kubectl, name = both_versions, "hardware.tinkerbell.org"
    await apply(kubectl, MACHINE)
    machine = await old(kubectl)

    async def serve(*, old: bool) -> None:
        patch = [{"op": "replace", "path": "/spec/versions/1/served", "value": old}]
        await kubectl("patch", "crd", name, "--type=json", "-p", json.dumps(patch))

    await serve(old=False)
    assert (await kubectl.run("get", OLD_HARDWARE)).code == 1
    assert (await new(kubectl))["spec"]["storageDevices"] == ["/dev/vda"]
    await kubectl("label", "hw", "hw1", "rack=a")
    await serve(old=True)
    found = await old(kubectl)
    assert (found["spec"], found["metadata"]["labels"]) == (machine["spec"], {"rack": "a", "type": "cp"})


async def current(kubectl: Kubectl, definitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return definitions with the resourceVersion that a replacement needs."""
    found = json.loads(await kubectl("get", "crd", *(each["metadata"]["name"] for each in definitions), "-o", "json"))
    versions = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in found["items"]}
    return [changed(each, resourceVersion=versions[each["metadata"]["name"]]) for each in definitions]


# --- owners -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
@pytest.mark.parametrize("owner_version", ["v1alpha1", "v1alpha2"])
async def test_dependents_go_with_an_owner_that_is_referenced_in_either_version(
    both_versions: Kubectl, cascade: str, owner_version: str
) -> None:
    kubectl = both_versions
    await apply(kubectl, TEMPLATE)
    uid = (await old(kubectl, OLD_TEMPLATES, "install"))["metadata"]["uid"]
    owner = {"apiVersion": f"tinkerbell.org/{owner_version}", "kind": "Template", "name": "install", "uid": uid}
    await apply(kubectl, changed(WORKFLOW, ownerReferences=[owner | {"blockOwnerDeletion": True}]))
    stranger = changed(WORKFLOW, name="stranger", ownerReferences=[owner | {"uid": "0-0", "name": "gone"}])
    deleted_in = OLD_TEMPLATES if owner_version == "v1alpha2" else "templates.v1alpha2.tinkerbell.org"
    await kubectl("delete", deleted_in, "install", f"--cascade={cascade}", "--timeout=20s")
    if cascade == "orphan":
        assert "ownerReferences" not in (await old(kubectl, OLD_WORKFLOWS, "install"))["metadata"]
    else:
        await wait_until_gone(kubectl, OLD_WORKFLOWS, "install")
    await kubectl("create", "-f", "-", stdin=stream(stranger))
    await wait_until_gone(kubectl, "workflows", "stranger")


# --- Workflows in a rack ----------------------------------------------------------------------------------------------

AGENTS = {
    "tink-agent": ("tests.interop.old_site.tink_agent",),
    "tink-worker": ("tests.interop.old_site.tink_worker", "proto.WorkflowService"),
    "older tink-worker": (
        "tests.interop.old_site.tink_worker",
        "github.com.tinkerbell.tink.protos.workflow.WorkflowService",
    ),
}


class Site(Rack):
    """A rack whose objects are written in v1alpha1, and a registry on the machine."""

    def build(self) -> None:
        super().build()
        self.objects = self.directory / "objects"
        self.objects.mkdir()
        self.process = self.up(self.directory / "data", "--manifests", self.objects)
        self.ready(self.process)
        self.kubectl = RackKubectl(self, self.directory / "data" / "kubeconfig")

    def workflow(self, name: str) -> dict[str, Any]:
        """Return a Workflow in v1alpha1."""
        found: dict[str, Any] = json.loads(self.kubectl("get", OLD_WORKFLOWS, name, "-o", "json"))
        return found

    def order(self, name: str) -> None:
        self.kubectl.apply(stream(MACHINE, TEMPLATE, changed(WORKFLOW, name=name)))

    def ended(self, name: str, agent: Process) -> dict[str, Any]:
        """Wait for a Workflow's success as clients of v1alpha1 do, and return the Workflow."""

        def state() -> str:
            return self.kubectl("get", OLD_WORKFLOWS, name, "-o", "jsonpath={.status.state}")

        def why() -> object:
            return self.workflow(name), agent.out, agent.err, self.process.err[-3000:]

        wait_until(lambda: state() in ("SUCCESS", "FAILED", "TIMEOUT"), why, every=0.3)
        found = self.workflow(name)
        assert found["status"]["state"] == "SUCCESS", why()
        return found

    def registry(self) -> None:
        """Start a registry on the machine, with an image of a shell."""
        layout, root, config = (self.directory / name for name in ("layout", "root", "registry.yml"))
        (root / "bin").mkdir(parents=True)
        shutil.copy(str(shutil.which("busybox")), root / "bin" / "sh")
        for words in (
            ("umoci", "init", "--layout", layout),
            ("umoci", "new", "--image", f"{layout}:1"),
            ("umoci", "insert", "--image", f"{layout}:1", root, "/"),
        ):
            assert (made := self.run(IN_MACHINE, *words)).popen.returncode == 0, made.err
        config.write_text(
            "version: 0.1\nlog: {level: error}\nhttp: {addr: '127.0.0.1:5000'}\n"
            f"storage: {{filesystem: {{rootdirectory: {self.directory / 'registry'}}}}}\n"
        )
        registry = self.start(IN_MACHINE, "docker-registry", "serve", config)
        copy = (
            "skopeo",
            "copy",
            "--insecure-policy",
            "--dest-tls-verify=false",
            f"oci:{layout}:1",
            f"docker://{IMAGE}",
        )
        wait_until(lambda: self.run(IN_MACHINE, *copy).popen.returncode == 0, lambda: registry.err, every=0.3)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site


def check_success(workflow: dict[str, Any]) -> None:
    """Check what clients of v1alpha1 read of a Workflow that has succeeded."""
    status = workflow["status"]
    assert workflow["spec"] == WORKFLOW["spec"]
    assert (status["state"], status["templateRendering"], status["globalTimeout"]) == ("SUCCESS", "successful", 600)
    (task,) = status["tasks"]
    first, second = task["actions"]
    assert [each["name"] for each in (first, second)] == ["look", "write"]
    assert first["command"] == ["/bin/sh", "-c", "test /dev/vda = /dev/vda"]
    assert second["environment"] == {"WORD": "done"}
    for action in (first, second):
        assert (action["state"], action["image"], action["timeout"]) == ("SUCCESS", IMAGE, 60)
        assert action["executionStart"] <= action["executionStop"]
        assert action["executionDuration"].endswith("s")
    assert status["currentState"] == {
        "taskID": task["id"],
        "taskName": task["name"],
        "actionID": second["id"],
        "actionName": "write",
        "state": "SUCCESS",
    }
    assert {each["type"]: each["status"] for each in status["conditions"]} == {"TemplateRenderedSuccess": "True"}


@pytest.mark.parametrize("dialect", AGENTS)
def test_hookos_agent_runs_a_workflow_that_was_created_in_v1alpha1(site: Site, dialect: str) -> None:
    name = dialect.replace(" ", "-")
    module, *service = AGENTS[dialect]
    states = '{.metadata.name} {.status.state}{"\\n"}'
    watching = site.kubectl.start("get", OLD_WORKFLOWS, "-w", "-o", f"jsonpath={states}")
    agent = site.start(IN_MACHINE, sys.executable, "-m", module, f"{ADDRESS}:42113", MAC, *service)
    site.order(name)
    check_success(site.ended(name, agent))
    wait_until(lambda: f"{name} SUCCESS" in watching.out, lambda: watching.out)
    agent.end()
    watching.end()
    seen = [line.split()[1:] for line in watching.out.splitlines() if line.startswith(f"{name} ")]
    assert list(dict.fromkeys(map("".join, seen))) == ["", "PENDING", "RUNNING", "SUCCESS"]
    # The state of machines and Workflows is no difference to what is in the repository.
    manifests = site.directory / "manifests.json"
    manifests.write_text(stream(MACHINE, TEMPLATE, changed(WORKFLOW, name=name)))
    assert site.kubectl("diff", "-f", manifests) == ""
    ran = [line for line in agent.out.splitlines() if line.startswith("ran ")]
    assert ran == [f"ran look {IMAGE} /bin/sh -c test /dev/vda = /dev/vda", f"ran write {IMAGE} /bin/sh -c echo $WORD"]
    rows = [line.split() for line in site.kubectl("get", OLD_WORKFLOWS, name).splitlines()]
    assert rows[1] == [name, "install", "SUCCESS", "write", "hw1"]


def test_our_agent_runs_a_workflow_that_was_created_in_v1alpha1(site: Site) -> None:
    site.registry()
    # Not by `ip netns exec`, which hides /sys/fs/cgroup from runc.
    inside = ["nsenter", f"--net=/run/netns/{site.namespaces[IN_MACHINE]}", *TINKEDGE, "agent"]
    words = ["--agent-id", MAC, "--server", f"{ADDRESS}:42113", "--state-dir", str(site.directory / "agent")]
    words += ["--runtime", "runc", "--insecure-registry", "127.0.0.1:5000"]
    agent = Process([*inside, *words], site.directory, clean_environment())
    try:
        site.order("ours")
        succeeded = "--for=jsonpath={.status.state}=SUCCESS"
        site.kubectl("wait", "--timeout=60s", succeeded, OLD_WORKFLOWS, "ours")
        site.kubectl("wait", "--timeout=60s", "--for=condition=TemplateRenderedSuccess", OLD_WORKFLOWS, "ours")
        check_success(site.ended("ours", agent))
        events = f"/api/v1/machines/{MAC}/events"
        wait_until(lambda: "done" in site.operators(site.directory / "data", events), "its output")
    finally:
        agent.end()


def test_workflow_of_capt_allows_netboot_until_its_end(site: Site) -> None:
    """CAPT creates each Workflow with toggleAllowNetboot."""
    never = deepcopy(MACHINE)
    never["spec"]["interfaces"][0]["netboot"]["allowPXE"] = False
    wanted = changed(WORKFLOW, name="toggled")
    wanted["spec"]["bootOptions"] = {"toggleAllowNetboot": True}
    site.kubectl.apply(stream(never, TEMPLATE, wanted))

    def netboot() -> Any:
        return interface(json.loads(site.kubectl("get", OLD_HARDWARE, "hw1", "-o", "json")))["netboot"]

    wait_until(lambda: netboot() == {"allowPXE": True, "allowWorkflow": True}, netboot, every=0.3)
    program = ("tests.interop.old_site.tink_agent", f"{ADDRESS}:42113", MAC)
    agent = site.start(IN_MACHINE, sys.executable, "-m", *program)

    def toggled() -> Any:
        return site.workflow("toggled")["status"].get("bootOptions")

    site.ended("toggled", agent)
    wait_until(lambda: toggled() == {"allowNetboot": {"toggledTrue": True, "toggledFalse": True}}, toggled, every=0.3)
    agent.end()
    workflow = site.workflow("toggled")
    conditions = {each["type"]: each["status"] for each in workflow["status"]["conditions"]}
    names = ("TemplateRenderedSuccess", "AllowNetbootTrue", "AllowNetbootFalse")
    assert conditions == dict.fromkeys(names, "True")
    assert netboot() == {"allowPXE": False, "allowWorkflow": True}


# --- the directory of manifests ---------------------------------------------------------------------------------------

RULES: Final[dict[str, Any]] = {
    "apiVersion": OLD,
    "kind": "WorkflowRuleSet",
    "metadata": {"name": "rules"},
    "spec": {"rules": ['{"mac": ["52:54:00:12:34:56"]}'], "workflow": {"namespace": "default"}},
}


def test_manifests_of_v1alpha1_are_applied_at_start_and_after_a_change(site: Site) -> None:
    machine = changed(MACHINE, name="filed")
    machine["spec"]["interfaces"][0]["dhcp"] |= {"mac": "52:54:00:12:34:99", "hostname": "filed"}
    machine["spec"]["interfaces"][0]["dhcp"]["ip"]["address"] = "172.31.77.99"
    bad = changed(machine, name="bad")
    bad["spec"]["interfaces"][0]["dhcp"]["mac"] = "52:54:00:AB:CD:EF"
    file = site.objects / "rack.yaml"
    held = changed(WORKFLOW, name="held")
    held["spec"]["disabled"] = True
    file.write_text("---\n".join(json.dumps(each) + "\n" for each in (machine, TEMPLATE, held, RULES)))
    (site.objects / "bad.json").write_text(json.dumps(bad))
    site.process.popen.send_signal(signal.SIGHUP)

    def get(plural: str, name: str, version: str = "v1alpha1") -> dict[str, Any]:
        ran = site.kubectl.run("get", f"{plural}.{version}.tinkerbell.org", name, "-o", "json")
        return json.loads(ran.out) if ran.popen.returncode == 0 else {}

    wait_until(lambda: get("workflowrulesets", "rules"), lambda: site.process.err, every=0.3)
    assert get("hardware", "filed")["spec"]["interfaces"][0]["dhcp"] == machine["spec"]["interfaces"][0]["dhcp"]
    assert get("workflows", "held")["spec"]["disabled"] is True
    wait_until(lambda: "bad.json: Hardware bad: " in site.process.err, lambda: site.process.err)
    refusal = site.process.err.partition("bad.json: Hardware bad: ")[2].splitlines()[0]
    assert "spec.interfaces[0].dhcp.mac" in refusal
    assert "tinkedge convert" not in refusal
    (site.objects / "bad.json").unlink()

    site.kubectl("patch", "hardware", "filed", "--type=merge", "-p", '{"spec": {"osie": {"name": "hook"}}}')
    file.write_text(file.read_text().replace('"hostname": "filed"', '"hostname": "renamed"'))
    site.process.popen.send_signal(signal.SIGHUP)
    wait_until(
        lambda: get("hardware", "filed")["spec"]["interfaces"][0]["dhcp"]["hostname"] == "renamed",
        lambda: site.process.err,
        every=0.3,
    )
    found = get("hardware", "filed", "v1alpha2")
    assert found["spec"]["osie"] == {"name": "hook"}

    assert site.process.terminate() == 0
    site.process = site.up(site.directory / "data", "--manifests", site.objects)
    site.ready(site.process)
    wait_until(lambda: "Hardware filed: merged" in site.process.err, lambda: site.process.err)
    assert get("hardware", "filed", "v1alpha2")["metadata"]["generation"] == found["metadata"]["generation"]
    assert get("hardware", "filed", "v1alpha2")["spec"] == found["spec"]


def test_definitions_of_v1alpha2_alone_do_not_end_v1alpha1_of_tinkedge_up(site: Site) -> None:
    definitions = site.directory / "definitions.json"
    definitions.write_text(stream(*generate()))
    site.kubectl.apply(stream(changed(TEMPLATE, name="stays")))
    for words in (("apply", "--server-side", "--force-conflicts"), ("apply",)):
        site.kubectl(*words, "-f", str(definitions))
        assert json.loads(site.kubectl("get", OLD_TEMPLATES, "stays", "-o", "json"))["spec"] == TEMPLATE["spec"]


PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
  - kubernetes.core.k8s: {state: present, src: SRC}
  - kubernetes.core.k8s: {state: present, apply: true, src: SRC}
"""


def test_ansible_changes_nothing_in_its_second_run(site: Site) -> None:
    """Debian's Ansible: its module merges, and applies as kubectl does."""
    objects = [changed(each, name=f"ansible-{each['kind'].lower()}") for each in (MACHINE, TEMPLATE, WORKFLOW)]
    interface(objects[0])["dhcp"] |= {"mac": "52:54:00:12:34:98"}
    interface(objects[0])["dhcp"]["ip"]["address"] = "172.31.77.98"
    for each in objects:
        each["metadata"]["namespace"] = "default"
    objects[2]["spec"] |= {"disabled": True, "hardwareRef": "ansible-hardware", "templateRef": "ansible-template"}
    source, playbook = site.directory / "ansible.yaml", site.directory / "playbook.yaml"
    source.write_text("---\n".join(json.dumps(each) + "\n" for each in objects))
    playbook.write_text(PLAYBOOK.replace("SRC", str(source)))
    found = shutil.which("ansible-playbook", path="/usr/bin:/usr/local/bin")
    assert found is not None, "Debian's package ansible is missing: deploy/setup.sh packages test-all"
    environment = {
        "HOME": str(site.directory),
        "ANSIBLE_NOCOLOR": "1",
        "K8S_AUTH_KUBECONFIG": str(site.directory / "data" / "kubeconfig"),
    }
    changes = []
    for _ in range(2):
        ran = site.start(IN_EDGE, found, str(playbook), **environment)
        assert ran.status() == 0, ran.out + ran.err
        changes.append(re.findall(r"changed=(\d+)", ran.out))
    assert changes == [["2"], ["0"]]
