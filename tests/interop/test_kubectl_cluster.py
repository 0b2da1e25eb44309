"""Real kubectls, the newest and an old one, ask the embedded API what any cluster is asked: what there is and what it
is, who may do what; and use the verbs that work on sets of objects: cascades, prune, kustomize, edit, scale."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import Kubectl
from tests.waiting import PATIENCE_SECONDS

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


def config_map(name: str, *owners: dict[str, Any], **data: str) -> str:
    metadata: dict[str, Any] = {"name": name, "labels": {"set": "one"}}
    if owners:
        metadata["ownerReferences"] = list(owners)
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


async def owner(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Create a ConfigMap and give the reference to it that its dependents carry."""
    await kubectl("create", "-f", "-", stdin=config_map(name))
    uid = (await kubectl.object("cm", name))["metadata"]["uid"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": True}


async def names(kubectl: Kubectl, *arguments: str) -> list[str]:
    return [str(line).rpartition("/")[2] for line in (await kubectl("get", *arguments, "-o", "name")).split()]


async def gone(kubectl: Kubectl, *what: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await kubectl.run("get", *what)).code == 0:
            await asyncio.sleep(0.05)


# --- what there is ---


async def test_api_resources_lists_short_names_scopes_and_reviews(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    rows = {tuple(line.split()) for line in (await bare("api-resources")).splitlines()}
    assert {
        ("configmaps", "cm", "v1", "true", "ConfigMap"),
        ("namespaces", "ns", "v1", "false", "Namespace"),
        ("customresourcedefinitions", "crd,crds", "apiextensions.k8s.io/v1", "false", "CustomResourceDefinition"),
        ("leases", "coordination.k8s.io/v1", "true", "Lease"),
        ("selfsubjectaccessreviews", "authorization.k8s.io/v1", "false", "SelfSubjectAccessReview"),
        ("widgets", "wd", "example.org/v1", "true", "Widget"),
    } <= rows
    # A second question is answered out of kubectl's cache, which the server only confirms (304).
    again = {tuple(line.split()) for line in (await bare("api-resources", "--cached=false")).splitlines()}
    assert again == rows
    listed = await bare("api-resources", "--verbs=list,watch", "--namespaced=true", "-o", "name")
    assert "widgets.example.org" in listed
    assert "reviews" not in listed


async def test_api_versions_and_the_version_of_the_server_are_printed(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    versions = (await bare("api-versions")).split()
    assert versions == sorted(versions)
    assert {"v1", "apiextensions.k8s.io/v1", "authorization.k8s.io/v1", "example.org/v1", "example.org/v1beta1"} <= {
        *versions
    }
    version = json.loads(await bare("version", "-o", "json"))["serverVersion"]
    assert (version["major"], int(version["minor"]) >= 32) == ("1", True)
    assert json.loads(await bare("get", "--raw", "/api"))["versions"] == ["v1"]
    assert json.loads(await bare("get", "--raw", "/openapi/v2"))["swagger"] == "2.0"


async def test_new_definition_is_known_to_the_next_command_and_a_deleted_one_is_not(bare: Kubectl) -> None:
    await bare("api-resources")
    await bare("create", "-f", "-", stdin=WIDGETS)
    await bare("wait", "--for=condition=Established", "crd/widgets.example.org", "--timeout=10s")
    await bare("apply", "-f", "-", stdin=WIDGET)
    assert "w" in await names(bare, "things")
    await bare("delete", "crd", "widgets.example.org", "--timeout=20s")
    # An old kubectl still has the name in its cache; then it is the server that says no.
    said = (await bare.run("get", "wd")).err
    assert "the server doesn't have a resource type" in said or "could not find the requested resource" in said


EXPLAINED = {
    "configmap.data": "Text (UTF-8) by key",
    "secret.stringData": "never shown",
    "namespace.status.phase": "Terminating while it is being removed",
    "event.involvedObject.fieldPath": "The part of the object that is meant",
    "lease.spec.holderIdentity": "Who holds it",
    "crd.spec.versions.schema.openAPIV3Schema.x-kubernetes-validations.rule": "The rule; self is the value",
    "cm.metadata.ownerReferences.blockOwnerDeletion": "deleted in the foreground",
    "widget": "A widget of a test.",
    "widget.spec.color": "color",
    "widget.metadata.labels": "by which objects are selected",
}


async def test_explain_has_a_text_for_every_field(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    for path, said in EXPLAINED.items():
        assert said in " ".join((await bare("explain", path)).split()), path


async def test_explain_recursive_shows_the_whole_tree(bare: Kubectl) -> None:
    out = await bare("explain", "configmap", "--recursive")
    assert {"binaryData", "data", "immutable", "managedFields", "fieldsV1", "uid"} <= {*out.split()}
    out = await bare("explain", "crd", "--recursive")
    assert {"additionalPrinterColumns", "x-kubernetes-validations", "storedVersions"} <= {*out.split()}


# --- who may do what ---


async def test_everything_is_allowed_to_the_one_user(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    assert (await bare("auth", "can-i", "delete", "widgets")).strip() == "yes"
    assert (await bare("auth", "can-i", "get", "/healthz")).strip() == "yes"
    rows = [line.split() for line in (await bare("auth", "can-i", "--list")).splitlines()]
    assert ["*.*", "[]", "[]", "[*]"] in rows
    assert ["[*]", "[]", "[*]"] in rows
    if bare.minor >= 28:
        assert "system:masters" in await bare("auth", "whoami")


# --- what kubectl itself knows how to make ---


async def test_namespaces_config_maps_and_secrets_are_created_from_the_command_line(bare: Kubectl) -> None:
    await bare("create", "namespace", "rack-b")
    await bare("-n", "rack-b", "create", "configmap", "settings", "--from-literal=a=1", "--from-literal=b=")
    assert (await bare.object("-n", "rack-b", "cm", "settings"))["data"] == {"a": "1", "b": ""}
    await bare("-n", "rack-b", "create", "secret", "generic", "key", "--from-literal=password=hunter2")
    assert (await bare.object("-n", "rack-b", "secret", "key"))["data"] == {"password": "aHVudGVyMg=="}
    assert "rack-b" in await bare("describe", "namespace", "rack-b")
    assert "password:  7 bytes" in await bare("-n", "rack-b", "describe", "secret", "key")
    dry = await bare("create", "namespace", "tried", "--dry-run=server", "-o", "name")
    assert dry.strip() == "namespace/tried"
    assert "tried" not in await names(bare, "ns")


async def test_events_of_an_object_are_listed(bare: Kubectl) -> None:
    about = {"apiVersion": "v1", "kind": "ConfigMap", "name": "cm-1", "namespace": "default", "uid": "u-1"}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "cm-1.1"},
        "involvedObject": about,
        "reason": "Booted",
        "message": "it is up",
        "type": "Warning",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    await bare("create", "-f", "-", stdin=json.dumps(event))
    assert "it is up" in await bare("get", "events", "--field-selector=involvedObject.name=cm-1,type=Warning")
    assert "No resources" in (await bare.run("get", "ev", "--field-selector=type=Normal")).err
    if bare.minor >= 28:
        assert "ConfigMap/cm-1" in await bare("events", "--for", "configmap/cm-1", "--types=Warning")


# --- how it is shown ---


async def test_objects_are_printed_in_every_form(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    for name, replicas in (("b", 1), ("a", 3), ("c", 2)):
        widget = WIDGET.replace("name: w", f"name: {name}").replace("replicas: 1", f"replicas: {replicas}")
        await bare("create", "-f", "-", stdin=widget)
    by_size = await bare("get", "wd", "--sort-by=.spec.replicas", "-o", "jsonpath={.items[*].metadata.name}")
    assert by_size.split() == ["b", "c", "a"]
    columns = await bare("get", "wd", "a", "-o", "custom-columns=N:.metadata.name,C:.spec.color")
    assert columns.split() == ["N", "C", "a", "green"]
    assert "kind: Widget" in await bare("get", "wd", "a", "-o", "yaml")
    wide = (await bare("get", "wd", "-o", "wide", "--show-labels")).splitlines()
    assert wide[0].split() == ["NAME", "AGE", "LABELS"]
    assert len(wide) == 4
    chunked = (await bare("get", "wd", "--chunk-size=1", "--no-headers")).splitlines()
    assert [line.split()[0] for line in chunked] == ["a", "b", "c"]
    assert await names(bare, "wd", "--field-selector=metadata.name!=a") == ["b", "c"]
    beta = json.loads(await bare("get", "widgets.v1beta1.example.org", "a", "-o", "json"))
    assert beta["apiVersion"] == "example.org/v1beta1"
    assert "Replicas:  3" in await bare("describe", "wd", "a")


async def test_watch_shows_changes_and_the_end_of_an_object(bare: Kubectl) -> None:
    await bare("create", "configmap", "seen", "--from-literal=a=1")
    watch = await bare.start("get", "cm", "-w", "--output-watch-events")

    async def line() -> list[str]:
        assert watch.stdout is not None
        return (await asyncio.wait_for(watch.stdout.readline(), PATIENCE_SECONDS)).decode().split()[:3]

    try:
        await line()  # the head of the table
        assert await line() == ["ADDED", "seen", "1"]
        await bare("patch", "cm", "seen", "-p", '{"data": {"b": "2"}}')
        assert await line() == ["MODIFIED", "seen", "2"]
        await bare("delete", "cm", "seen")
        assert await line() == ["DELETED", "seen", "2"]
    finally:
        watch.kill()
        await watch.wait()


# --- changing it ---


async def test_edit_sends_what_the_editor_leaves(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    await bare("create", "-f", "-", stdin=WIDGET)
    out = await bare("edit", "wd", "w", KUBE_EDITOR="sed -i s/green/red/")
    assert "edited" in out
    assert (await bare.object("wd", "w"))["spec"]["color"] == "red"
    ran = await bare.run("edit", "wd", "w", KUBE_EDITOR="sed -i s/red/red/")
    assert "no changes made" in ran.out + ran.err


async def test_replace_force_makes_the_object_anew(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=config_map("again", a="1"))
    first = (await bare.object("cm", "again"))["metadata"]["uid"]
    await bare("replace", "--force", "-f", "-", stdin=config_map("again", a="2"))
    second = await bare.object("cm", "again")
    assert (second["data"], second["metadata"]["uid"] != first) == ({"a": "2"}, True)


async def test_scale_changes_the_number_of_replicas(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    await bare("create", "-f", "-", stdin=WIDGET)
    assert "scaled" in await bare("scale", "wd/w", "--replicas=5", "--current-replicas=1")
    assert (await bare.object("wd", "w"))["spec"]["replicas"] == 5


async def test_diff_tells_by_its_code_whether_anything_would_change(bare: Kubectl) -> None:
    await bare("create", "-f", "-", stdin=WIDGETS)
    assert (await bare.run("diff", "-f", "-", stdin=WIDGET)).code == 1
    await bare("apply", "-f", "-", stdin=WIDGET)
    assert (await bare.run("diff", "-f", "-", stdin=WIDGET)).code == 0
    ran = await bare.run("diff", "-f", "-", stdin=WIDGET.replace("green", "red"))
    assert (ran.code, "+  color: red" in ran.out) == (1, True)
    assert (await bare.run("diff", "-f", "-", stdin=WIDGET.replace("green", "blue"))).code > 1
    assert (await bare.run("diff", "--server-side", "-f", "-", stdin=WIDGET)).code in (0, 1)


async def test_old_clients_find_missing_and_unknown_fields_themselves(bare: Kubectl) -> None:
    """They read OpenAPI 2 in protobuf for that; what its conversion must leave open, they must not refuse."""
    await bare("create", "-f", "-", stdin=WIDGETS)
    assert "created" in await bare("apply", "-f", "-", stdin=WIDGET)
    ran = await bare.run("create", "-f", "-", stdin=WIDGET.replace("port:", "prot:"))
    assert (ran.code, 'unknown field "' in ran.err) == (1, True)
    ran = await bare.run("create", "--validate=true", "-f", "-", stdin=config_map("x").replace('"data"', '"dada"'))
    assert (ran.code, 'unknown field "dada"' in ran.err) == (1, True)


# --- sets of objects ---


@pytest.mark.parametrize("cascade", ["background", "foreground"])
async def test_delete_takes_the_dependents_along(bare: Kubectl, cascade: str) -> None:
    reference = await owner(bare, "owner")
    await bare("create", "-f", "-", stdin=config_map("dependent", reference))
    await bare("delete", "cm", "owner", f"--cascade={cascade}", "--timeout=20s")
    if cascade == "foreground":
        assert await names(bare, "cm", "-l", "set=one") == []
    await gone(bare, "cm", "dependent")


async def test_delete_leaves_orphans_when_told_to(bare: Kubectl) -> None:
    reference = await owner(bare, "owner")
    await bare("create", "-f", "-", stdin=config_map("dependent", reference))
    await bare("delete", "cm", "owner", "--cascade=orphan", "--timeout=20s")
    assert "ownerReferences" not in (await bare.object("cm", "dependent"))["metadata"]


async def test_apply_prune_deletes_what_is_no_longer_in_the_files(bare: Kubectl, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(config_map(name, a="1"))
    prune = ("apply", "-f", str(tmp_path), "--prune", "-l", "set=one")
    # kubectl looks for kinds that are not served here unless it is told where to look.
    allowed = "--prune-allowlist" if bare.minor >= 26 else "--prune-whitelist"
    ran = await bare.run(*prune, f"{allowed}=core/v1/ConfigMap")
    assert ran.code == 0, ran.err
    (tmp_path / "two.json").unlink()
    ran = await bare.run(*prune, f"{allowed}=core/v1/ConfigMap")
    assert "configmap/two pruned" in ran.out
    assert await names(bare, "cm", "-l", "set=one") == ["one"]


async def test_kustomization_is_applied(bare: Kubectl, tmp_path: Path) -> None:
    (tmp_path / "cm.json").write_text(config_map("base", a="1"))
    kustomization = "resources: [cm.json]\nnamePrefix: edge-\nconfigMapGenerator: [{name: made, literals: [x=y]}]\n"
    (tmp_path / "kustomization.yaml").write_text(kustomization)
    assert (await bare("apply", "-k", str(tmp_path))).count("created") == 2
    assert (await bare("apply", "-k", str(tmp_path))).count("unchanged") == 2
    assert (await bare.object("cm", "edge-base"))["data"] == {"a": "1"}


async def test_all_objects_of_a_label_go_at_once(bare: Kubectl) -> None:
    for name in ("one", "two"):
        await bare("create", "-f", "-", stdin=config_map(name))
    await bare("create", "configmap", "other")
    out = await bare("delete", "cm", "-l", "set=one", "--wait=false")
    assert out.count("deleted") == 2
    assert "other" in await names(bare, "cm")
