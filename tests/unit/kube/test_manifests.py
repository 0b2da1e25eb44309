"""Manifests from files: what is read, what is sent to the API, and which file is named when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import objects as builders
from tests.support.api import InProcessApi
from tink.api.crds import generate
from tink.kube.client import ApiError
from tink.kube.manifests import ManifestError, apply, apply_object, load
from tink.kube.resources import CRD, HARDWARE, OSIE

TEXT = """
apiVersion: tinkerbell.org/v1alpha2
kind: OSIE
metadata: {name: NAME}
spec: {kernelUrl: http://h/k, initrdUrl: http://h/i}
"""


def osie(name: str) -> str:
    return TEXT.replace("NAME", name)


@pytest.fixture
def api() -> Any:
    return InProcessApi()


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


def test_mac_address_without_quotes_is_one_and_a_list_is_taken_apart(tmp_path: Path) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("apiVersion: v1\nkind: K\nmetadata: {name: h}\nspec: {52:54:00:12:34:56: {}, vlan: 0123}\n")
    ((_, obj),) = load(file)
    assert obj["spec"] == {"52:54:00:12:34:56": {}, "vlan": 0o123}
    items = [{"apiVersion": "v1", "kind": "K", "metadata": {"name": name}} for name in ("x", "y")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert names(load(file)) == [("h.yaml", "x"), ("h.yaml", "y")]
    with pytest.raises(ManifestError, match="absent: No such file or directory"):
        load(tmp_path / "absent")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b": {", "not YAML"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"just text", "document 1 is no Kubernetes object"),
        (b"{apiVersion: v1, kind: K}", "K: metadata.name is missing"),
        (b"{apiVersion: v1, kind: K, metadata: text}", "K: metadata.name is missing"),
        (b"{apiVersion: v1, kind: K, metadata: {name: 5}}", "metadata.name must be a string, not 5"),
        (b"{apiVersion: v1, kind: K, metadata: {name: no}}", "metadata.name must be a string, not False"),
        (b"{apiVersion: v1, kind: K, metadata: {name: a, namespace: [x]}}", "metadata.namespace must be a string"),
        (b"{apiVersion: v1, kind: List, items: [5]}", "an item of a List is not a Kubernetes object"),
        (b"{apiVersion: v1, kind: List, items: [{kind: K}]}", "an item of a List is not a Kubernetes object"),
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


# --- applying ---------------------------------------------------------------------------------------------------------


def objects(tmp_path: Path, *texts: str) -> list[tuple[Path, Any]]:
    file = tmp_path / "m.yaml"
    file.write_text("---\n".join(texts))
    return load(file)


async def test_object_is_created_or_merged_into_the_one_that_is_there(api: Any, tmp_path: Path) -> None:
    there = objects(tmp_path, osie("a").replace("{name: a}", "{name: a, namespace: elsewhere}"))
    api.put(builders.osie("a", namespace="elsewhere", metadata={"labels": {"kept": "yes"}}))
    await apply(api, [*objects(tmp_path, osie("a")), *there])
    assert [(call.verb, call.name or call.body["metadata"]["name"]) for call in api.calls] == [
        ("patch", "a"),
        ("create", "a"),
        ("patch", "a"),
    ]
    created, merged = (api.read(OSIE, "a", namespace) for namespace in ("default", "elsewhere"))
    assert merged["metadata"]["labels"] == {"kept": "yes"}
    assert created["spec"] == merged["spec"] == {"kernelUrl": "http://h/k", "initrdUrl": "http://h/i"}


async def test_object_that_another_replica_creates_at_that_moment_is_merged_into(api: Any, tmp_path: Path) -> None:
    async def other() -> None:
        api.put(builders.osie("a"))

    api.around("create", before=other)
    await apply(api, objects(tmp_path, osie("a")))
    assert [call.verb for call in api.calls] == ["patch", "create", "patch"]
    assert api.read(OSIE, "a")["spec"]["kernelUrl"] == "http://h/k"


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (osie("b").replace("http://h/k", "k"), r"OSIE b: OSIE\.tinkerbell\.org .b. is invalid: spec\.kernelUrl"),
        (
            osie("b").replace("v1alpha2", "v1alpha1"),
            r"tinkerbell\.org/v1alpha1 OSIE is not a resource of this program",
        ),
        (
            osie("b").replace("v1alpha2", "v1alpha1").replace("OSIE", "Hardware"),
            r"Hardware b: .*: if this API does not serve .*v1alpha1, convert it with .*tinkedge convert -f",
        ),
        (osie("unavailable"), "OSIE unavailable: later"),
    ],
)
async def test_first_object_that_is_refused_is_named_with_its_file_and_the_reason(api, tmp_path, second, said) -> None:
    if "unavailable" in second:
        api.fail("create", ApiError(503, "ServiceUnavailable", "later"))
    texts = [second] if "unavailable" in second else [osie("a"), second, osie("c")]
    with pytest.raises(ManifestError, match=rf"m\.yaml: {said}"):
        await apply(api, objects(tmp_path, *texts))
    assert [each["metadata"]["name"] for each in api.objects(OSIE)] == ["a"][: len(texts) - 1]


async def test_definition_has_no_namespace() -> None:
    api: Any = InProcessApi(definitions=[])
    definition = next(d for d in generate() if d["spec"]["names"]["plural"] == HARDWARE.plural)
    await apply_object(api, CRD, definition, "tinkedge")
    assert "namespace" not in api.read(CRD, "hardware.tinkerbell.org")["metadata"]
