"""Real kubectls, the newest and an old one, on the embedded API: every verb, with our resources and others."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import Kubectl
from tests.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.long

HARDWARE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata:
  name: machine-1
  labels: {rack: a}
spec:
  osie: {name: hook}
  storageDevices: [/dev/sda]
  networkInterfaces:
    52:54:00:12:34:56:
      dhcp: {ip: 10.0.0.5, netmask: 255.255.255.0, gateway: 10.0.0.1, hostname: machine-1}
"""
WORKFLOW = """
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: install}
spec: {hardwareRef: {name: machine-1}, templateRef: {name: debian}}
"""
WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"
OSIE = """
apiVersion: tinkerbell.org/v1alpha2
kind: OSIE
metadata: {name: hook}
spec: {kernelUrl: "http://example.org/vmlinuz", initrdUrl: "http://example.org/initrd"}
"""
TEMPLATE = """
apiVersion: tinkerbell.org/v1alpha2
kind: Template
metadata: {name: debian}
spec: {actions: [{name: stream, image: "image2disk:1"}, {name: kexec, image: "kexec:1"}]}
"""
BMC = """
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: m}
spec:
  connection:
    host: 192.0.2.50
    port: 623
    authSecretRef: {name: m, namespace: default}
    insecureTLS: true
    providerOptions: {preferredOrder: [gofish], ipmitool: {cipherSuite: "3"}}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Job
metadata: {name: netboot}
spec:
  machineRef: {name: m, namespace: default}
  tasks:
  - oneTimeBootDeviceAction: {device: [pxe], efiBoot: true}
  - powerAction: "on"
"""
TWO_MISTAKES = TEMPLATE.replace(', image: "image2disk:1"', "").replace("name: kexec", "name: stream")
NO_ACTIONS = TEMPLATE.partition("[")[0] + "[]}"
EVENT = """
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: made, namespace: default}
eventTime: "2026-11-23T23:00:00.000000Z"
regarding: {kind: Hardware, name: machine-1, namespace: default, uid: UID}
reportingController: example.org/controller
reportingInstance: host
action: Make
reason: Making
type: Normal
note: made it
"""
OLD_EVENT = """
apiVersion: v1
kind: Event
metadata: {name: machine-1.1, namespace: default}
involvedObject:
  {apiVersion: tinkerbell.org/v1alpha2, kind: Hardware, name: machine-1, namespace: default, uid: UID}
reason: Booted
message: it is up
type: Warning
lastTimestamp: "2026-01-01T00:00:00Z"
"""
WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.org}
spec:
  group: example.org
  names: {kind: Widget, plural: widgets, shortNames: [wd], categories: [things]}
  scope: Namespaced
  versions:
  - name: v1beta1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}
    schema:
      openAPIV3Schema:
        type: object
        description: A widget of a test.
        properties:
          spec:
            type: object
            required: [color]
            properties:
              color: {type: string, enum: [red, green], default: red}
              replicas: {type: integer, format: int32}
              spare: {type: string, nullable: true}
              port: {x-kubernetes-int-or-string: true}
              any: {x-kubernetes-preserve-unknown-fields: true, type: object}
              labels: {type: object, additionalProperties: {type: string}}
              template: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
          status: {type: object, properties: {replicas: {type: integer}}}
"""
WIDGET = """
apiVersion: example.org/v1
kind: Widget
metadata: {name: w}
spec:
  color: green
  replicas: 1
  spare: null
  port: http
  any: {a: [1, {b: 2}]}
  labels: {x: one}
  template: {apiVersion: v1, kind: ConfigMap, data: {a: b}}
"""


@pytest.fixture
async def widgets(bare: Kubectl) -> Kubectl:
    """kubectl on a server with Widgets."""
    await bare("create", "-f", "-", stdin=WIDGETS)
    return bare


def config_map(name: str, *owners: dict[str, Any], **data: str) -> str:
    metadata: dict[str, Any] = {"name": name, "labels": {"set": "one"}}
    if owners:
        metadata["ownerReferences"] = list(owners)
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


async def names(kubectl: Kubectl, *arguments: str) -> list[str]:
    return [str(line).rpartition("/")[2] for line in (await kubectl("get", *arguments, "-o", "name")).split()]


async def wait_until_gone(kubectl: Kubectl, *arguments: str) -> None:
    async def is_gone() -> bool:
        return (await kubectl.run("get", *arguments)).code != 0

    assert await until(is_gone, every=0.05)


class Watch:
    """`kubectl get -w`, line by line."""

    def __init__(self, kubectl: Kubectl, *words: str) -> None:
        self._begin = kubectl.start("get", "-w", *words)

    async def __aenter__(self) -> Watch:
        self._process = await self._begin
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()

    async def line(self) -> list[str]:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)).decode().split()


# --- what there is ---


async def test_crds_from_deploy_are_applied_and_served_at_once(bare: Kubectl) -> None:
    crds = str(Path(__file__).parents[2] / "deploy" / "crds")
    for expected in ("created", "unchanged"):
        assert (await bare("apply", "-f", crds)).count(expected) == 4
    await bare("wait", "--for=condition=Established", "--timeout=20s", "crd", "--all")
    listed = await bare("api-resources", "--api-group=tinkerbell.org")
    assert {tuple(line.split()) for line in listed.splitlines()[1:]} == {
        ("hardware", "hw", "tinkerbell.org/v1alpha2", "true", "Hardware"),
        ("osies", "tinkerbell.org/v1alpha2", "true", "OSIE"),
        ("templates", "tpl", "tinkerbell.org/v1alpha2", "true", "Template"),
        ("workflows", "wf", "tinkerbell.org/v1alpha2", "true", "Workflow"),
    }


async def test_rufios_manifests_are_applied_listed_explained_and_waited_for(bare: Kubectl) -> None:
    definitions = str(Path(__file__).parents[2] / "deploy" / "crds" / "bmc")
    assert (await bare("apply", "-f", definitions)).count("created") == 3
    await bare("wait", "--for=condition=Established", "--timeout=20s", "crd", "--all")
    listed = await bare("api-resources", "--api-group=bmc.tinkerbell.org")
    assert {tuple(line.split()) for line in listed.splitlines()[1:]} == {
        ("machines", "bmc.tinkerbell.org/v1alpha1", "true", "Machine"),
        ("jobs", "j", "bmc.tinkerbell.org/v1alpha1", "true", "Job"),
        ("tasks", "t", "bmc.tinkerbell.org/v1alpha1", "true", "Task"),
    }
    assert (await bare("apply", "-f", "-", stdin=BMC)).count("created") == 2
    assert "Unsupported value: true" in (await bare.run("apply", "-f", "-", stdin=BMC.replace('"on"', "on"))).err
    unknown = BMC.replace('powerAction: "on"', "secureBoot: {enable: true}")
    refused = (await bare.run("apply", "-f", "-", stdin=unknown)).err
    assert "unknown field" in refused
    assert "secureBoot" in refused
    conditions = [{"type": "Running", "status": "True"}, {"type": "Completed", "status": "True"}]
    for plural, name, status in (
        ("machines", "m", {"powerState": "on", "conditions": [{"type": "Contactable", "status": "True"}]}),
        ("jobs", "netboot", {"conditions": conditions}),
    ):
        found = json.loads(await bare("get", f"{plural}.bmc.tinkerbell.org", name, "-o", "json"))
        path = f"/apis/bmc.tinkerbell.org/v1alpha1/namespaces/default/{plural}/{name}/status"
        await bare("replace", "--raw", path, "-f", "-", stdin=json.dumps(found | {"status": status}))
    await bare("wait", "--for=condition=Completed", "--timeout=20s", "job.bmc/netboot")
    assert (await bare("get", "machines.bmc.tinkerbell.org")).splitlines()[1].split()[:3] == ["m", "on", "True"]
    assert (await bare("get", "j")).splitlines()[1].split()[:3] == ["netboot", "Completed", "m"]
    text = " ".join(
        (await bare("explain", "jobs.spec.tasks.powerAction", "--api-version=bmc.tinkerbell.org/v1alpha1")).split()
    )
    assert 'Write "on" and "off" in quotes' in text


async def test_resources_and_versions_of_the_server_are_listed(widgets: Kubectl) -> None:
    rows = {tuple(line.split()) for line in (await widgets("api-resources")).splitlines()}
    assert {
        ("configmaps", "cm", "v1", "true", "ConfigMap"),
        ("namespaces", "ns", "v1", "false", "Namespace"),
        ("customresourcedefinitions", "crd,crds", "apiextensions.k8s.io/v1", "false", "CustomResourceDefinition"),
        ("leases", "coordination.k8s.io/v1", "true", "Lease"),
        ("selfsubjectaccessreviews", "authorization.k8s.io/v1", "false", "SelfSubjectAccessReview"),
        ("widgets", "wd", "example.org/v1", "true", "Widget"),
    } <= rows
    assert sum(row[0] == "events" for row in rows) == 2
    # A second question is answered out of kubectl's cache, which the server only confirms (304).
    again = {tuple(line.split()) for line in (await widgets("api-resources", "--cached=false")).splitlines()}
    assert again == rows
    listed = await widgets("api-resources", "--verbs=list,watch", "--namespaced=true", "-o", "name")
    assert ("widgets.example.org" in listed, "reviews" in listed) == (True, False)
    versions = (await widgets("api-versions")).split()
    assert versions == sorted(versions)
    assert {"v1", "authorization.k8s.io/v1", "example.org/v1", "example.org/v1beta1"} <= {*versions}
    version = json.loads(await widgets("version", "-o", "json"))["serverVersion"]
    assert (version["major"], int(version["minor"]) >= 32) == ("1", True)
    assert json.loads(await widgets("get", "--raw", "/api"))["versions"] == ["v1"]
    assert json.loads(await widgets("get", "--raw", "/openapi/v2"))["swagger"] == "2.0"


@pytest.mark.smoke
async def test_explain_prints_the_descriptions_of_the_models(kubectl: Kubectl) -> None:
    out = await kubectl("explain", "hardware.spec.networkInterfaces.dhcp.leaseTimeSeconds")
    assert "Lease time to serve, in seconds" in out
    assert "currentAction\t<string>" in await kubectl("explain", "workflow.status")
    assert "creationTimestamp" in await kubectl("explain", "hw.metadata")


EXPLAINED = {
    "configmap.data": "Text (UTF-8) by key",
    "secret.stringData": "never shown",
    "namespace.status.phase": "Terminating while it is being removed",
    "event.involvedObject.fieldPath": "The part of the object that is meant",
    "events.note --api-version=events.k8s.io/v1": "What happened",
    "lease.spec.holderIdentity": "Who holds it",
    "crd.spec.versions.schema.openAPIV3Schema.x-kubernetes-validations.rule": "The rule; self is the value",
    "crd --recursive": "x-kubernetes-validations",
    "cm.metadata.ownerReferences.blockOwnerDeletion": "deleted in the foreground",
    "cm --recursive": "immutable",
    "widget": "A widget of a test.",
    "widget.spec.color": "color",
    "widget.metadata.labels": "by which objects are selected",
}


async def test_explain_has_a_text_for_every_field(widgets: Kubectl) -> None:
    for words, expected in EXPLAINED.items():
        assert expected in " ".join((await widgets("explain", *words.split())).split()), words


async def test_definition_is_served_to_the_next_command_and_deleted_with_all_its_objects(widgets: Kubectl) -> None:
    await widgets("wait", "--for=condition=Established", "crd/widgets.example.org", "--timeout=10s")
    await widgets("apply", "-f", "-", stdin=WIDGET)
    assert "w" in await names(widgets, "things")
    await widgets("delete", "crd", "widgets.example.org", "--timeout=20s")
    # An old kubectl still has the name in its cache; then it is the server that says no.
    output = (await widgets.run("get", "wd")).err
    assert "the server doesn't have a resource type" in output or "could not find the requested resource" in output
    await widgets("create", "-f", "-", stdin=WIDGETS)
    assert "No resources found" in (await widgets.run("get", "widgets.example.org")).err


async def test_one_user_may_do_everything_and_a_wrong_token_nothing(widgets: Kubectl) -> None:
    assert (await widgets("auth", "can-i", "delete", "widgets")).strip() == "yes"
    assert (await widgets("auth", "can-i", "get", "/healthz")).strip() == "yes"
    rows = [line.split() for line in (await widgets("auth", "can-i", "--list")).splitlines()]
    assert ["*.*", "[]", "[]", "[*]"] in rows
    assert ["[*]", "[]", "[*]"] in rows
    if widgets.minor >= 28:
        assert "system:masters" in await widgets("auth", "whoami")
    ran = await widgets.run("--token=wrong", "get", "wd")
    assert (ran.code, "You must be logged in to the server" in ran.err) == (1, True)


# --- what is written ---


@pytest.mark.smoke
async def test_apply_of_good_manifests_is_created_then_unchanged_then_configured(kubectl: Kubectl) -> None:
    manifests = "---".join((HARDWARE, OSIE, TEMPLATE, WORKFLOW))
    assert (await kubectl("apply", "-f", "-", stdin=manifests)).count("created") == 4
    assert (await kubectl("apply", "-f", "-", stdin=manifests)).count("unchanged") == 4
    assert "configured" in await kubectl("apply", "-f", "-", stdin=HARDWARE.replace("/dev/sda", "/dev/nvme0n1"))
    out = await kubectl.object("hw", "machine-1")
    assert out["spec"]["storageDevices"] == ["/dev/nvme0n1"]
    assert out["spec"]["networkInterfaces"]["52:54:00:12:34:56"]["dhcp"]["leaseTimeSeconds"] == 86400
    assert out["metadata"]["generation"] == 2


BAD = [
    (
        HARDWARE.replace("10.0.0.5,", "10.0.0.555,"),
        'The Hardware "machine-1" is invalid: spec.networkInterfaces[52:54:00:12:34:56].dhcp.ip: Invalid value: '
        '"10.0.0.555": must be an IPv4 address',
    ),
    (
        HARDWARE.replace("osie: {name: hook}", "osie: {name: 5}"),
        'spec.osie.name: Invalid value: "integer": spec.osie.name in body must be of type string: "integer"',
    ),
    (HARDWARE.replace("osie: {name: hook}", "osy: {name: hook}"), 'strict decoding error: unknown field "spec.osy"'),
    (HARDWARE.replace("name: machine-1\n", "name: Machine_1\n"), "a lowercase RFC 1123 subdomain must consist of"),
    (TWO_MISTAKES, "spec.actions[0].image: Required value"),
    (TWO_MISTAKES, 'spec.actions[1]: Duplicate value: {"name":"stream"}'),
    (NO_ACTIONS, "spec.actions: Invalid value: 0: spec.actions in body should have at least 1 items"),
]


async def test_bad_manifest_gets_the_errors_of_kubernetes_and_is_not_stored(kubectl: Kubectl) -> None:
    for bad, expected in BAD:
        # An old kubectl finds some of it itself, in its own words; without that, it does not ask the server to be
        # strict.
        validate = "--validate=false" if bad == TWO_MISTAKES or kubectl.minor < 27 else "--validate=true"
        if kubectl.minor < 27 and "unknown field" in expected:
            expected = 'ValidationError(Hardware.spec): unknown field "osy" in org.tinkerbell.v1alpha2.Hardware.spec'
            validate = "--validate=true"
        ran = await kubectl.run("apply", "-f", "-", validate, stdin=bad)
        assert (ran.code, expected in ran.err) == (1, True), ran.err
    assert "No resources found" in (await kubectl.run("get", "hardware,templates")).err


async def test_old_clients_find_missing_and_unknown_fields_themselves(widgets: Kubectl) -> None:
    """They read OpenAPI 2 in protobuf for that, and must not refuse fields that its conversion leaves open."""
    assert "created" in await widgets("apply", "-f", "-", stdin=WIDGET)
    ran = await widgets.run("create", "-f", "-", stdin=WIDGET.replace("port:", "prot:"))
    assert (ran.code, 'unknown field "' in ran.err) == (1, True)
    ran = await widgets.run("create", "--validate=true", "-f", "-", stdin=config_map("x").replace('"data"', '"dada"'))
    assert (ran.code, 'unknown field "dada"' in ran.err) == (1, True)


@pytest.mark.smoke
async def test_watch_shows_a_status_that_only_its_subresource_writes(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=WORKFLOW)
    async with Watch(kubectl, "workflow", "install") as watch:
        assert await watch.line() == ["NAME", "STATE", "ACTION", "HARDWARE", "TEMPLATE", "MESSAGE", "AGE"]
        waits = ["waits", "for", "the", "controller"]
        assert (await watch.line())[:8] == ["install", "Pending", "machine-1", "debian", *waits]
        both = '{"status": {"state": "Running"}, "spec": {"timeout": 60}}'
        await kubectl("patch", "wf", "install", "--type=merge", "-p", both)
        first = await kubectl.object("wf", "install")
        assert (first["status"]["state"], first["spec"]["timeout"]) == ("Pending", 60)
        assert (await watch.line())[1] == "Pending"
        running = {"state": "Running", "currentAction": "stream"}
        changed = json.dumps(first | {"status": running, "spec": first["spec"] | {"timeout": 70}})
        await kubectl("replace", "--raw", f"{WORKFLOWS}/install/status", "-f", "-", stdin=changed)
        assert (await watch.line())[:5] == ["install", "Running", "stream", "machine-1", "debian"]
    pending = '{"status": {"state": "Pending"}}'
    await kubectl("patch", "wf", "install", "--type=merge", "-p", pending)
    second = await kubectl.object("wf", "install")
    assert (second["status"], second["spec"]["timeout"], second["metadata"]["generation"]) == (running, 60, 2)
    if kubectl.minor >= 24:  # --subresource
        patch = ("patch", "wf", "install", "--subresource=status", "--type=merge", "-p")
        await kubectl(*patch, '{"status": {"state": "Failed"}}')
        assert (await kubectl.object("wf", "install", "--subresource=status"))["status"]["state"] == "Failed"
        ran = await kubectl.run(*patch, '{"status": {"state": "Dancing"}}')
        assert 'status.state: Unsupported value: "Dancing": supported values: "Pending", "Scheduled"' in ran.err


async def test_objects_are_patched_labelled_edited_replaced_and_scaled(widgets: Kubectl) -> None:
    await widgets("create", "-f", "-", stdin=WIDGET)
    await widgets("patch", "wd", "w", "--type=merge", "-p", '{"spec": {"port": null, "any": {"a": ["a"]}}}')
    await widgets("patch", "wd", "w", "--type=json", "-p", '[{"op": "add", "path": "/spec/any/a/-", "value": "b"}]')
    spec = (await widgets.object("wd", "w"))["spec"]
    assert (spec["any"], "port" in spec) == ({"a": ["a", "b"]}, False)
    ran = await widgets.run("patch", "wd", "w", "-p", '{"spec": {}}')
    new, old = "strategic-merge-patch+json is not supported by example.org/v1", "(UnsupportedMediaType)"
    assert new in ran.err or old in ran.err
    tested = ("--type=json", "-p", '[{"op": "test", "path": "/spec/x", "value": 1}]')
    assert (await widgets.run("patch", "wd", "w", *tested)).code == 1

    before = await widgets.object("wd", "w")
    mine = await widgets("get", "wd", "w", "-o", "json")
    await widgets("label", "wd", "w", "row=7")
    await widgets("annotate", "wd", "w", "note=here it stands")
    fields = (await widgets.object("wd", "w"))["metadata"]
    assert (fields["labels"], fields["annotations"]["note"]) == ({"row": "7"}, "here it stands")
    assert fields["generation"] == before["metadata"]["generation"]
    await widgets("label", "wd", "w", "row-")
    assert not (await widgets.object("wd", "w"))["metadata"].get("labels")
    ran = await widgets.run("label", "wd", "w", "bad=not/allowed")
    assert "a valid label must be an empty string or consist of" in ran.err

    ran = await widgets.run("replace", "-f", "-", stdin=mine)
    assert "the object has been modified; please apply your changes to the latest version and try again" in ran.err
    fresh = await widgets("get", "wd", "w", "-o", "json")
    await widgets("replace", "-f", "-", stdin=fresh.replace("one", "two"))
    assert (await widgets.object("wd", "w"))["spec"]["labels"] == {"x": "two"}
    assert "edited" in await widgets("edit", "wd", "w", KUBE_EDITOR="sed -i s/green/red/")
    assert (await widgets.object("wd", "w"))["spec"]["color"] == "red"
    ran = await widgets.run("edit", "wd", "w", KUBE_EDITOR="sed -i s/red/red/")
    assert "no changes made" in ran.out + ran.err
    assert "scaled" in await widgets("scale", "wd/w", "--replicas=5", "--current-replicas=1")
    assert (await widgets.object("wd", "w"))["spec"]["replicas"] == 5
    assert "replaced" in await widgets("replace", "--force", "-f", "-", stdin=WIDGET)
    assert (await widgets.object("wd", "w"))["metadata"]["uid"] != fields["uid"]


async def test_diff_and_dry_run_show_the_change_and_store_nothing(widgets: Kubectl) -> None:
    assert (await widgets.run("diff", "-f", "-", stdin=WIDGET)).code == 1
    await widgets("apply", "-f", "-", stdin=WIDGET)
    assert (await widgets.run("diff", "-f", "-", stdin=WIDGET)).code == 0
    ran = await widgets.run("diff", "-f", "-", stdin=WIDGET.replace("green", "red"))
    assert (ran.code, "-  color: green" in ran.out, "+  color: red" in ran.out) == (1, True, True)
    assert (await widgets.run("diff", "-f", "-", stdin=WIDGET.replace("green", "blue"))).code > 1
    assert (await widgets.run("diff", "--server-side", "-f", "-", stdin=WIDGET)).code in (0, 1)
    await widgets("create", "--dry-run=server", "-f", "-", stdin=WIDGET.replace("name: w", "name: other"))
    await widgets("delete", "--dry-run=server", "wd", "w")
    assert await names(widgets, "wd") == ["w"]


async def test_server_side_apply_reports_conflicts_and_removes_fields_no_longer_applied(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in await kubectl(*apply, stdin=HARDWARE)
    await kubectl(*apply, stdin=HARDWARE)
    other = HARDWARE.replace("/dev/sda", "/dev/sdb")
    ran = await kubectl.run(*apply, "--field-manager=other", stdin=other)
    assert (ran.code, 'conflict with "kubectl": .spec.storageDevices' in ran.err) == (1, True)
    await kubectl(*apply, "--field-manager=other", "--force-conflicts", stdin=other)
    assert (await kubectl.object("hw", "machine-1"))["spec"]["storageDevices"] == ["/dev/sdb"]
    assert 'conflict with "other"' in (await kubectl.run(*apply, stdin=HARDWARE)).err
    await kubectl(*apply, stdin=config_map("applied", one="1", two="2"))
    await kubectl("patch", "cm", "applied", "-p", '{"data": {"mine": "x"}}')
    await kubectl(*apply, stdin=config_map("applied", one="1"))
    assert (await kubectl.object("cm", "applied"))["data"] == {"one": "1", "mine": "x"}


async def test_core_objects_are_created_from_the_command_line_and_deleted_with_their_namespace(bare: Kubectl) -> None:
    dry = await bare("create", "namespace", "tried", "--dry-run=server", "-o", "name")
    assert dry.strip() == "namespace/tried"
    assert "tried" not in await names(bare, "ns")
    await bare("create", "namespace", "rack-b")
    await bare("-n", "rack-b", "create", "configmap", "settings", "--from-literal=a=1", "--from-literal=b=")
    await bare("-n", "rack-b", "patch", "configmap", "settings", "-p", '{"data": {"c": "2"}}')
    assert (await bare.object("-n", "rack-b", "cm", "settings"))["data"] == {"a": "1", "b": "", "c": "2"}
    await bare("-n", "rack-b", "create", "secret", "generic", "key", "--from-literal=password=hunter2")
    secret = await bare.object("-n", "rack-b", "secret", "key")
    assert (secret["type"], secret["data"]) == ("Opaque", {"password": "aHVudGVyMg=="})
    assert "rack-b" in await bare("describe", "namespace", "rack-b")
    assert "password:  7 bytes" in await bare("-n", "rack-b", "describe", "secret", "key")
    await bare("-n", "rack-b", "apply", "-f", "-", stdin=config_map("applied", one="1"))
    assert "configured" in await bare("-n", "rack-b", "apply", "-f", "-", stdin=config_map("applied", uno="1"))
    assert (await bare.object("-n", "rack-b", "cm", "applied"))["data"] == {"uno": "1"}
    await bare("delete", "namespace", "rack-b", "--timeout=20s")
    assert "No resources found" in (await bare.run("get", "cm", "-A")).err
    ran = await bare.run("-n", "rack-b", "create", "-f", "-", stdin=config_map("late"))
    assert 'namespaces "rack-b" not found' in ran.err


# --- how it is shown ---


async def test_get_knows_short_names_categories_labels_and_fields(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE + "---" + WORKFLOW)
    assert await names(kubectl, "tinkerbell") == ["machine-1", "install"]
    assert "machine-1" in await kubectl("get", "hw", "-A", "-l", "rack in (a, b),rack!=c")
    assert "No resources" in (await kubectl.run("get", "hw", "-l", "rack=b")).err
    assert "machine-1" in await kubectl("get", "hw", "--field-selector=metadata.name=machine-1")
    assert "field label not supported" in (await kubectl.run("get", "hw", "--field-selector=spec.x=1")).err
    ran = await kubectl.run("get", "hw", "nothere")
    assert ran.err.strip() == 'Error from server (NotFound): hardware.tinkerbell.org "nothere" not found'


async def test_events_of_either_kind_are_listed_and_described_with_their_object(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=HARDWARE)
    uid = (await kubectl.object("hw", "machine-1"))["metadata"]["uid"]
    event = EVENT.replace("UID", uid)
    await kubectl("create", "-f", "-", stdin=f"{event}---{OLD_EVENT.replace('UID', uid)}")
    described = await kubectl("describe", "hw", "machine-1")
    for expected in ("Lease Time Seconds:  86400", "it is up", "made it"):
        assert expected in described
    assert "Making" in await kubectl("get", "events")
    assert "made it" in await kubectl("get", "events.v1.events.k8s.io", "-o", "wide")
    listed = await kubectl("get", "events", "--field-selector=involvedObject.name=machine-1,type=Warning")
    assert ("it is up" in listed, "Making" in listed) == (True, False)
    if kubectl.minor >= 28:
        assert "Hardware/machine-1" in await kubectl("events", "--for", "hardware/machine-1", "--types=Warning")
    assert (await kubectl("diff", "-f", "-", stdin=event)) == ""
    await kubectl("delete", "events.events.k8s.io", "made")
    assert "Making" not in await kubectl("get", "events")


async def test_objects_are_printed_in_every_form_and_long_lists_in_chunks(widgets: Kubectl) -> None:
    for name, replicas in (("b", 1), ("a", 3), ("c", 2)):
        widget = WIDGET.replace("name: w", f"name: {name}").replace("replicas: 1", f"replicas: {replicas}")
        await widgets("create", "-f", "-", stdin=widget)
    by_size = await widgets("get", "wd", "--sort-by=.spec.replicas", "-o", "jsonpath={.items[*].metadata.name}")
    assert by_size.split() == ["b", "c", "a"]
    columns = await widgets("get", "wd", "a", "-o", "custom-columns=N:.metadata.name,C:.spec.color")
    assert columns.split() == ["N", "C", "a", "green"]
    assert "kind: Widget" in await widgets("get", "wd", "a", "-o", "yaml")
    wide = (await widgets("get", "wd", "-o", "wide", "--show-labels")).splitlines()
    assert wide[0].split() == ["NAME", "AGE", "LABELS"]
    assert len(wide) == 4
    chunked = (await widgets("get", "wd", "--chunk-size=1", "--no-headers")).splitlines()
    assert [line.split()[0] for line in chunked] == await names(widgets, "wd", "--chunk-size=2") == ["a", "b", "c"]
    assert await names(widgets, "wd", "--field-selector=metadata.name!=a") == ["b", "c"]
    beta = json.loads(await widgets("get", "widgets.v1beta1.example.org", "a", "-o", "json"))
    assert beta["apiVersion"] == "example.org/v1beta1"
    assert "Replicas:  3" in await widgets("describe", "wd", "a")


async def test_watch_shows_changes_and_the_end_of_an_object(bare: Kubectl) -> None:
    await bare("create", "configmap", "seen", "--from-literal=a=1")
    async with Watch(bare, "cm", "--output-watch-events") as watch:
        await watch.line()  # the head of the table
        assert (await watch.line())[:3] == ["ADDED", "seen", "1"]
        await bare("patch", "cm", "seen", "-p", '{"data": {"b": "2"}}')
        assert (await watch.line())[:3] == ["MODIFIED", "seen", "2"]
        await bare("delete", "cm", "seen")
        assert (await watch.line())[:3] == ["DELETED", "seen", "2"]


# --- how it ends, and sets of objects ---


@pytest.mark.smoke
async def test_delete_waits_for_the_finalizer(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=HARDWARE.replace("labels:", "finalizers: [example.org/hold]\n  labels:"))
    deleting = await kubectl.start("delete", "hw", "machine-1", "--timeout=20s")
    try:

        async def is_being_deleted() -> bool:
            return "deletionTimestamp" in (await kubectl.object("hw", "machine-1"))["metadata"]

        assert await until(is_being_deleted, every=0.05)
        assert deleting.returncode is None
        patch = ("patch", "hw", "machine-1", "--type=merge", "-p")
        ran = await kubectl.run(*patch, '{"metadata": {"finalizers": ["example.org/more"]}}')
        assert "no new finalizers can be added if the object is being deleted" in ran.err
        await kubectl(*patch, '{"metadata": {"finalizers": null}}')
        assert await asyncio.wait_for(deleting.wait(), PATIENCE_SECONDS) == 0
    finally:
        if deleting.returncode is None:
            deleting.kill()
    assert "not found" in (await kubectl.run("get", "hw", "machine-1")).err


async def test_wait_for_a_field_and_for_deletion(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", "-", stdin=WORKFLOW)
    if kubectl.minor >= 23:
        waiting = await kubectl.start("wait", "wf/install", "--for=jsonpath={.status.state}=Succeeded", "--timeout=20s")
        await kubectl.set_status(f"{WORKFLOWS}/install", {"state": "Succeeded"})
        assert await asyncio.wait_for(waiting.wait(), PATIENCE_SECONDS) == 0
    waiting = await kubectl.start("wait", "wf/install", "--for=delete", "--timeout=20s")
    await kubectl("delete", "wf", "--all")
    _, err = await asyncio.wait_for(waiting.communicate(), PATIENCE_SECONDS)
    # An old kubectl that comes too late complains that there is nothing to wait for.
    assert waiting.returncode == 0 or (kubectl.minor < 24 and (b"NotFound" in err or b"no matching" in err))


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
async def test_delete_includes_the_dependents_or_orphans_them(bare: Kubectl, cascade: str) -> None:
    await bare("create", "-f", "-", stdin=config_map("owner"))
    uid = (await bare.object("cm", "owner"))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": True}
    await bare("create", "-f", "-", stdin=config_map("dependent", owner))
    await bare("delete", "cm", "owner", f"--cascade={cascade}", "--timeout=20s")
    if cascade == "orphan":
        assert "ownerReferences" not in (await bare.object("cm", "dependent"))["metadata"]
        return
    if cascade == "foreground":
        assert await names(bare, "cm", "-l", "set=one") == []
    await wait_until_gone(bare, "cm", "dependent")


async def test_sets_of_objects_are_applied_pruned_and_deleted(bare: Kubectl, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for name in ("one", "two"):
        (files / f"{name}.json").write_text(config_map(name, a="1"))
    # Without a list, kubectl looks for kinds that are not served here.
    allowed = "--prune-allowlist" if bare.minor >= 26 else "--prune-whitelist"
    prune = ("apply", "-f", str(files), "--prune", "-l", "set=one", f"{allowed}=core/v1/ConfigMap")
    ran = await bare.run(*prune)
    assert ran.code == 0, ran.err
    (files / "two.json").unlink()
    assert "configmap/two pruned" in (await bare.run(*prune)).out
    assert await names(bare, "cm", "-l", "set=one") == ["one"]

    kustomization = "resources: [one.json]\nnamePrefix: edge-\nconfigMapGenerator: [{name: made, literals: [x=y]}]\n"
    (files / "kustomization.yaml").write_text(kustomization)
    for expected in ("created", "unchanged"):
        assert (await bare("apply", "-k", str(files))).count(expected) == 2
    assert (await bare.object("cm", "edge-one"))["data"] == {"a": "1"}
    await bare("create", "configmap", "other")
    assert (await bare("delete", "cm", "-l", "set=one", "--wait=false")).count("deleted") == 2
    assert "other" in await names(bare, "cm")
