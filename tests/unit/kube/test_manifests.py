"""Manifests from files: what is read, what is sent to the API, and which file is named when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tink.api.crds import generate
from tink.kube.client import KubeClient
from tink.kube.manifests import ManifestError, apply, apply_object, load
from tink.kube.resources import CRD, HARDWARE

OSIE = "apiVersion: tinkerbell.org/v1alpha2\nkind: OSIE\nmetadata: {name: NAME}\nspec: {kernelUrl: k, initrdUrl: i}\n"
NOT_FOUND = (404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such object"})
CONFLICT = (409, {"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "is there already"})
INVALID = (422, {"kind": "Status", "code": 422, "reason": "Invalid", "message": 'OSIE "a" is invalid: spec.kernelUrl'})
PATH = "/apis/tinkerbell.org/v1alpha2/namespaces/default/osies"

Api = Any


def osie(name: str) -> str:
    return OSIE.replace("NAME", name)


def names(found: list[tuple[Path, Any]]) -> list[tuple[str, str]]:
    return [(file.name, obj["metadata"]["name"]) for file, obj in found]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_directory_is_read_in_name_order_and_only_manifests_of_it(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(osie("b"))
    (tmp_path / "a.yaml").write_text(osie("a1") + "---\n---\n" + osie("a2"))
    (tmp_path / "c.json").write_text(json.dumps({"apiVersion": "v1", "kind": "K", "metadata": {"name": "c"}}))
    (tmp_path / "README.md").write_text("not a manifest")
    (tmp_path / "a.yaml~").write_text(": broken {")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.yaml").write_text(osie("d"))
    (tmp_path / "e.yaml").mkdir()
    assert names(load(tmp_path)) == [("a.yaml", "a1"), ("a.yaml", "a2"), ("b.yml", "b"), ("c.json", "c")]
    assert names(load(tmp_path / "b.yml")) == [("b.yml", "b")]


def test_mac_address_without_quotes_is_a_mac_address(tmp_path: Path) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("apiVersion: v1\nkind: K\nmetadata: {name: h}\nspec: {52:54:00:12:34:56: {}, vlan: 0123}\n")
    ((_, obj),) = load(file)
    assert obj["spec"] == {"52:54:00:12:34:56": {}, "vlan": 0o123}


def test_list_is_taken_apart(tmp_path: Path) -> None:
    file = tmp_path / "list.yaml"
    items = [{"apiVersion": "v1", "kind": "K", "metadata": {"name": name}} for name in ("x", "y")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert names(load(file)) == [("list.yaml", "x"), ("list.yaml", "y")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b": {", "not YAML"),
        (b"\xff\xfe\x00", "utf-8"),
        (b"just text", "document 1 is no Kubernetes object"),
        (b"{apiVersion: v1, kind: K}", "K: metadata.name is missing"),
        (b"{apiVersion: v1, kind: K, metadata: text}", "K: metadata.name is missing"),
        (b"{apiVersion: v1, kind: K, metadata: {name: 5}}", "metadata.name must be a string, not 5"),
        (b"{apiVersion: v1, kind: K, metadata: {name: no}}", "metadata.name must be a string, not False"),
        (b"{apiVersion: v1, kind: K, metadata: {name: a, namespace: [x]}}", "metadata.namespace must be a string"),
        (b"{apiVersion: v1, kind: List, items: [5]}", "an item of a List is no Kubernetes object"),
        (b"{apiVersion: v1, kind: List, items: [{kind: K}]}", "an item of a List is no Kubernetes object"),
        (b"#" * (3 * 1024 * 1024 + 1), "larger than 3145728 bytes"),
    ],
)
def test_invalid_file_is_named_with_its_fault(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "a-good.yaml").write_text(osie("a"))
    (tmp_path / "wrong.yaml").write_bytes(text)
    with pytest.raises(ManifestError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'wrong.yaml'}: ")
    assert said in str(caught.value)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="absent: No such file or directory"):
        load(tmp_path / "absent")


# --- applying ---------------------------------------------------------------------------------------------------------


def objects(tmp_path: Path, *texts: str) -> list[tuple[Path, Any]]:
    file = tmp_path / "m.yaml"
    file.write_text("---\n".join(texts))
    return load(file)


async def test_new_object_is_created_in_the_default_namespace(api: Api, client: KubeClient, tmp_path: Path) -> None:
    api.lists = [NOT_FOUND, (201, {})]
    await apply(client, objects(tmp_path, osie("a")))
    assert [(asked.method, asked.path) for asked in api.asked] == [("PATCH", f"{PATH}/a"), ("POST", PATH)]
    assert api.asked[1].body["metadata"] == {"name": "a", "namespace": "default"}
    assert api.asked[1].body["spec"] == {"kernelUrl": "k", "initrdUrl": "i"}


async def test_object_that_is_there_is_merged_into(api: Api, client: KubeClient, tmp_path: Path) -> None:
    await apply(client, objects(tmp_path, osie("a").replace("{name: a}", "{name: a, namespace: elsewhere}")))
    (asked,) = api.asked
    assert (asked.method, asked.path) == ("PATCH", f"{PATH}/a".replace("/default/", "/elsewhere/"))
    assert asked.headers["content-type"] == "application/merge-patch+json"


async def test_object_that_another_replica_creates_at_that_moment_is_merged_into(api, client, tmp_path) -> None:
    api.lists = [NOT_FOUND, CONFLICT, (200, {})]
    await apply(client, objects(tmp_path, osie("a")))
    assert [asked.method for asked in api.asked] == ["PATCH", "POST", "PATCH"]


async def test_refused_object_is_named_with_its_file_and_the_apis_words(api, client, tmp_path) -> None:
    api.lists = [(200, {}), NOT_FOUND, INVALID]
    with pytest.raises(ManifestError, match=r'm\.yaml: OSIE b: OSIE "a" is invalid: spec\.kernelUrl'):
        await apply(client, objects(tmp_path, osie("a"), osie("b"), osie("c")))
    assert len(api.asked) == 3, "nothing is applied after the first that is refused"


async def test_resource_of_others_is_refused_by_name(api: Api, client: KubeClient, tmp_path: Path) -> None:
    with pytest.raises(
        ManifestError,
        match=r"m\.yaml: tinkerbell\.org/v1alpha1 OSIE is no resource of this program: .*tinkedge convert -f",
    ):
        await apply(client, objects(tmp_path, osie("a").replace("v1alpha2", "v1alpha1")))
    assert api.asked == []


async def test_definition_has_no_namespace(api: Api, client: KubeClient) -> None:
    definition = next(d for d in generate() if d["spec"]["names"]["plural"] == HARDWARE.plural)
    await apply_object(client, CRD, definition, "tinkedge")
    (asked,) = api.asked
    assert asked.path == "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hardware.tinkerbell.org"
    assert "namespace" not in asked.body["metadata"]


async def test_unavailable_api_is_reported_with_the_file(client: KubeClient, api: Api, tmp_path: Path) -> None:
    api.lists = [(503, {"kind": "Status", "reason": "ServiceUnavailable", "message": "later"})]
    with pytest.raises(ManifestError, match=r"m\.yaml: OSIE a: later"):
        await apply(client, objects(tmp_path, osie("a")))
