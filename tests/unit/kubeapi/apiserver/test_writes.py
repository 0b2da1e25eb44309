"""Writes and the three kinds of patch beyond the recorded requests of conformance/cases."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.objects import workflow
from tests.unit.kubeapi.apiserver.conftest import CRDS, Client, Start
from tink.api.v1alpha2 import FINALIZER
from tink.kubeapi.apiserver.patch import PatchError, apply_operations, merge, merge_strategic
from tink.workflow.guards import protect

HARDWARE = "/apis/tinkerbell.org/v1alpha2/namespaces/default/hardware"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def test_patches_at_the_same_time_all_take_effect(api: Client) -> None:
    await api("POST", CONFIGMAPS, {"metadata": {"name": "c"}, "data": {}})
    answers = await asyncio.gather(
        *(api.merge(f"{CONFIGMAPS}/c", {"data": {f"k{number}": "x"}}) for number in range(4))
    )
    assert [answer.status for answer in answers] == [200] * 4
    assert len((await api("GET", f"{CONFIGMAPS}/c")).json["data"]) == 4


async def test_annotations_are_limited_in_bytes_of_utf8(api: Client) -> None:
    """Source: k8s.io/apimachinery, pkg/api/validation/objectmeta.go, ValidateAnnotationsSize."""
    for signs, code in ((131_071, 201), (131_072, 422)):
        body = {"metadata": {"name": f"c{signs}", "annotations": {"n": "\N{LATIN SMALL LETTER E WITH ACUTE}" * signs}}}
        assert (await api("POST", CONFIGMAPS, body)).status == code


WORKFLOWS = "/apis/tinkerbell.org/v1alpha2/namespaces/default/workflows"


@pytest.fixture
async def protecting(start: Start, installed: Path, tmp_path: Path) -> Client:
    """A client of a server that gives Workflows their finalizer, as the stack does."""
    shutil.copytree(installed, tmp_path / "state")
    _, client = await start(admit=lambda new, old: protect(new) if old is None else None)
    return client


async def test_new_workflow_has_its_finalizer_from_its_first_version_only(protecting: Client) -> None:
    tried = (await protecting("POST", WORKFLOWS, workflow(), dryRun="All")).json
    assert tried["metadata"]["finalizers"] == [FINALIZER]
    assert (await protecting("GET", f"{WORKFLOWS}/w")).status == 404
    made = (await protecting("POST", WORKFLOWS, workflow(finalizers=["other/one"]))).json
    assert made["metadata"]["finalizers"] == ["other/one", FINALIZER]
    assert (await protecting("GET", f"{WORKFLOWS}/w")).json == made
    after = (await protecting.merge(f"{WORKFLOWS}/w", {"metadata": {"finalizers": None}})).json
    assert "finalizers" not in after["metadata"]
    named = (await protecting("POST", WORKFLOWS, workflow("") | {"metadata": {"generateName": "w-"}})).json
    assert named["metadata"]["finalizers"] == [FINALIZER]
    where = f"{WORKFLOWS}/{named['metadata']['name']}"
    assert (await protecting("DELETE", where)).status == 200
    assert (await protecting("GET", where)).json["metadata"]["deletionTimestamp"], "it waits for a controller"


async def test_finalizer_of_a_new_workflow_has_no_manager_so_no_apply_removes_it(protecting: Client) -> None:
    applied = {"fieldManager": "me", "force": "true"}
    kind, config = "application/apply-patch+yaml", workflow() | {"metadata": {"name": "w"}}
    made = (await protecting("PATCH", f"{WORKFLOWS}/w", config, content=kind, **applied)).json
    assert made["metadata"]["finalizers"] == [FINALIZER]
    assert "f:finalizers" not in str(made["metadata"]["managedFields"])
    again = (await protecting("PATCH", f"{WORKFLOWS}/w", config, content=kind, **applied)).json
    assert again["metadata"]["finalizers"] == [FINALIZER]


def _definition(*, status_subresource: bool) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: dict[str, Any] = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if status_subresource:
        version["subresources"] = {"status": {}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    spec = {"group": "example.org", "names": names, "scope": "Namespaced", "versions": [version]}
    return {"metadata": {"name": "things.example.org"}, "spec": spec}


@pytest.mark.parametrize(
    ("status_subresource", "change", "generation"),
    [
        (False, {"status": {"phase": "Down"}}, 2),
        (False, {"status": None}, 2),
        (False, {"status": {"phase": "Up"}}, 1),
        (False, {"metadata": {"labels": {"a": "b"}}}, 1),
        (True, {"status": {"phase": "Down"}}, 1),
        (True, {"spec": {"number": 2}}, 2),
        (True, {"spec": {"number": True}}, 2),
    ],
)
async def test_generation_counts_changes_of_a_status_only_without_its_subresource(
    bare: Client, status_subresource: bool, change: Any, generation: int
) -> None:
    await bare("POST", CRDS, _definition(status_subresource=status_subresource))
    things = "/apis/example.org/v1/namespaces/default/things"
    thing = {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "t"}}
    await bare("POST", things, {**thing, "spec": {"number": 1}, "status": {"phase": "Up"}})
    changed = await bare.merge(f"{things}/t", change)
    assert (changed.status, changed.json["metadata"]["generation"]) == (200, generation)


# --- patches

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
_OBJECT = st.dictionaries(st.text(max_size=2), _JSON, max_size=4)


@given(_OBJECT, _OBJECT)
def test_merge_patch_twice_is_merge_patch_once_and_changes_no_argument(target: Any, patch: Any) -> None:
    kept = copy.deepcopy((target, patch))
    once = merge(target, patch)
    assert merge(once, patch) == once
    assert (target, patch) == kept


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [  # from RFC 6902, appendix A, what the recorded requests do not show
        ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
        ({"a": ["x", "y", "z"]}, [{"op": "move", "from": "/a/1", "path": "/a/2"}], {"a": ["x", "z", "y"]}),
        ({"/": 9, "~1": 1}, [{"op": "test", "path": "/~01", "value": 1}, {"op": "remove", "path": "/~1"}], {"~1": 1}),
        ({"a": None}, [{"op": "replace", "path": "/a", "value": 1}], {"a": 1}),
        (
            {"a": {"b": 1}},
            [{"op": "copy", "from": "/a", "path": "/c"}, {"op": "replace", "path": "/c/b", "value": 2}],
            {"a": {"b": 1}, "c": {"b": 2}},
        ),
    ],
)
def test_json_patch_does_the_examples_of_the_rfc_and_changes_no_argument(
    target: Any, operations: Any, result: Any
) -> None:
    kept = copy.deepcopy(target)
    assert apply_operations(target, operations) == result
    assert target == kept


def test_json_patch_cannot_double_an_object_without_end() -> None:
    double = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(64)]
    with pytest.raises(PatchError, match="copy operations"):
        apply_operations({"a": {"x": "y" * 100}}, double)
    with pytest.raises(PatchError, match="maximum"):
        apply_operations({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)


@given(
    _OBJECT,
    st.lists(
        st.fixed_dictionaries(
            {"op": st.sampled_from(["add", "remove", "replace", "test"]), "path": st.text("/ab01-~", max_size=5)},
            optional={"value": _JSON},
        )
        | _JSON,
        max_size=4,
    ),
)
def test_json_patch_returns_json_or_an_error(target: Any, operations: Any) -> None:
    with suppress(PatchError):
        assert json.dumps(apply_operations(target, operations))


@pytest.mark.parametrize("there", [5, True, "x", {"x": 1}])
@pytest.mark.parametrize("name", ["$deleteFromPrimitiveList/finalizers", "finalizers", "ownerReferences"])
def test_strategic_merge_patch_of_a_list_where_there_is_none_is_refused(there: Any, name: str) -> None:
    target = {"finalizers": there, "ownerReferences": there}
    with pytest.raises(PatchError, match=f"{name.rpartition('/')[2]} is no list"):
        merge_strategic(target, {name: [{"uid": "x"}]})


def test_strategic_merge_patch_merges_lists_by_key() -> None:
    owners = [{"uid": "1", "name": "a"}, {"uid": "2"}]
    change = [{"uid": "1", "name": "b"}, {"uid": "2", "$patch": "delete"}, {"uid": "3"}]
    merged = merge_strategic({"ownerReferences": owners, "list": [1]}, {"ownerReferences": change, "list": [2]})
    assert merged == {"ownerReferences": [{"uid": "1", "name": "b"}, {"uid": "3"}], "list": [2]}
    change = {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}
    assert merge_strategic({"finalizers": ["a", "b"]}, change) == {"finalizers": ["b"]}


@given(_OBJECT, _OBJECT)
def test_strategic_merge_patch_returns_json_or_an_error(target: Any, patch: Any) -> None:
    names = ["$patch", "$retainKeys", "$deleteFromPrimitiveList/a", "$setElementOrder/a", "finalizers", "webhooks"]
    renamed = dict(zip(names, patch.values(), strict=False))
    with suppress(PatchError):
        assert json.dumps(merge_strategic({"a": target, **target}, {**patch, **renamed, "a": renamed}))
