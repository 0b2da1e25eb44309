"""The field manager in states that a recording cannot reach, and the list of owners in the later steps of a write."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tink.apiserver.errors import StatusError
from tink.apiserver.managed_fields import FieldManager, blank_of, entries, fields, keep_times, valid_or_before
from tink.apiserver.managed_fields.entries import Entry
from tink.schema.structural.compiler import root_schema

Raw = dict[str, Any]
NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"
API = "managed.example/v1"
OPENAPI = json.loads((Path(__file__).parent / "schemas.json").read_text())["definition"]["spec"]["versions"][0][
    "schema"
]["openAPIV3Schema"]


def _manager(openapi: Raw = OPENAPI, **more: Any) -> FieldManager:
    return FieldManager(root_schema(openapi), API, status=True, **more)


def _thing(**spec: Any) -> Raw:
    return {"apiVersion": API, "kind": "Thing", "metadata": {"name": "x"}, "spec": spec}


def _entry(manager: str = "old", operation: str = "Update", version: str = API, **more: Any) -> Raw:
    return {
        "apiVersion": version,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:text": {}}},
        "manager": manager,
        "operation": operation,
        "time": NOW,
        **more,
    }


def _owners(obj: Raw) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", [])}


# --- a schema that has changed since ---


def test_fields_of_what_has_become_atomic_are_owned_as_a_whole_from_the_next_write_on() -> None:
    # As the real server did when its definition was changed in the same way.
    live = _manager().apply(
        None,
        _thing(text="t", labels={"a": "1"}, ports=[{"port": 1, "protocol": "TCP"}], nested={"inner": {"deep": "1"}}),
        "a",
        "",
        NOW,
        force=False,
    )
    new = copy.deepcopy(live)
    new["spec"]["labels"]["c"] = "3"
    _manager().update(live, new, "m", "", NOW)
    openapi = copy.deepcopy(OPENAPI)
    spec = openapi["properties"]["spec"]["properties"]
    spec["labels"]["x-kubernetes-map-type"] = "atomic"
    spec["ports"]["x-kubernetes-list-type"] = "atomic"
    spec["nested"]["properties"]["inner"]["x-kubernetes-map-type"] = "atomic"
    manager = _manager(openapi)
    last = copy.deepcopy(new)
    last["spec"]["text"] = "u"
    manager.update(new, last, "z", "", LATER)
    assert _owners(last) == {
        "a": {"f:spec": {"f:labels": {}, "f:nested": {"f:inner": {}}, "f:ports": {}}},
        "m": {"f:spec": {"f:labels": {}}},
        "z": {"f:spec": {"f:text": {}}},
    }
    with pytest.raises(StatusError, match="Apply failed with 2 conflicts"):
        manager.apply(last, _thing(labels={"z": "1"}), "b", "", LATER, force=False)
    pruned = manager.apply(last, _thing(text="u"), "a", "", LATER, force=False)
    assert pruned["spec"] == {"labels": {"a": "1", "c": "3"}, "text": "u"}


# --- other versions ---


def test_owners_in_a_version_behind_a_webhook_stay_as_they_are() -> None:
    manager = _manager(others={"managed.example/v2": None})
    live = _thing(text="a")
    live["metadata"]["managedFields"] = [
        _entry(version="managed.example/v2"),
        _entry("gone", version="managed.example/v0"),
    ]
    new = copy.deepcopy(live)
    new["spec"]["text"] = "b"
    manager.update(live, new, "m", "", LATER)
    assert [(entry["manager"], entry["time"]) for entry in new["metadata"]["managedFields"]] == [
        ("old", NOW),
        ("m", LATER),
    ]
    applied = manager.apply(live, _thing(text="c"), "b", "", LATER, force=False)
    assert sorted(_owners(applied)) == ["b", "old"]


def test_owners_in_any_version_stay_when_nobody_says_which_versions_there_are() -> None:
    live = _thing(text="a")
    live["metadata"]["managedFields"] = [_entry(version="managed.example/v0")]
    new = copy.deepcopy(live)
    new["spec"]["text"] = "b"
    _manager().update(live, new, "m", "", LATER)
    assert sorted(_owners(new)) == ["m", "old"]


def test_what_was_last_applied_in_another_version_is_pruned_in_that_version() -> None:
    older = copy.deepcopy(OPENAPI)
    manager = _manager(others={"managed.example/v1beta1": root_schema(older)})
    live = _thing(text="a", number=1)
    live["metadata"]["managedFields"] = [_entry("b", "Apply", "managed.example/v1beta1")]
    applied = manager.apply(live, _thing(number=1), "b", "", LATER, force=False)
    assert applied["spec"] == {"number": 1}
    assert applied["metadata"]["managedFields"] == [
        _entry("b", "Apply", fieldsV1={"f:spec": {"f:number": {}}}, time=LATER)
    ]


# --- built-in resources ---


def test_creator_of_a_definition_owns_what_it_owns_on_a_real_server() -> None:
    text: Raw = {"type": "string"}
    conversion = {"type": "object", "properties": {"strategy": text}}
    names = {"type": "object", "properties": {"kind": text}}
    versions = {"type": "array", "items": {"type": "object"}}
    spec = {"type": "object", "properties": {"conversion": conversion, "group": text, "names": names}}
    spec["properties"]["versions"] = versions
    group, kind = "apiextensions.k8s.io", "CustomResourceDefinition"
    schema = root_schema({"type": "object", "properties": {"spec": spec}})
    manager = FieldManager(schema, f"{group}/v1", status=False, kind=kind, blank=blank_of(group, kind))
    body = {"conversion": {"strategy": "None"}, "group": "a.b", "names": {"kind": "C"}, "versions": [{}]}
    new: Raw = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "x"}, "spec": body}
    manager.update(None, new, "curl", "", NOW)
    owned = {"f:conversion": {".": {}, "f:strategy": {}}, "f:group": {}, "f:names": {"f:kind": {}}, "f:versions": {}}
    assert _owners(new) == {"curl": {"f:spec": owned}}


def test_no_custom_resource_is_taken_for_a_built_in_one() -> None:
    assert blank_of("tinkerbell.org", "Lease") is None


def test_metadata_of_built_in_objects_can_be_owned_through_their_status() -> None:
    manager = FieldManager(root_schema(OPENAPI), API, status=True, blank={})
    live = _thing(text="a")
    live["metadata"]["managedFields"] = [_entry()]
    new = copy.deepcopy(live) | {"status": {"phase": "x"}}
    new["metadata"]["labels"] = {"a": "b"}
    manager.update(live, new, "s", "status", LATER)
    assert _owners(new)["s"] == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:status": {".": {}, "f:phase": {}},
    }


# --- the list ---


@pytest.mark.parametrize("when", ["2025-01-01T00:00:00Z", NOW, LATER])
@pytest.mark.parametrize("count", [10, 11, 14])
def test_the_bucket_for_old_updates_never_loses_anything(when: str, count: int) -> None:
    found = {entries.owner(f"A{n:02}", "Update", API, ""): Entry(API, NOW, {f"f:{n:02}": {}}) for n in range(count)}
    found[entries.owner(entries.ANCIENT, "Update", API, "")] = Entry(API, when, {"f:old": {}})
    capped = entries.cap(found)
    assert len(capped) == entries.MAX_UPDATERS
    owned = {path for entry in capped.values() for path in fields.paths(entry.fields)}
    assert owned == {("f:old",), *((f"f:{n:02}",) for n in range(count))}


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ("x", "managedFields must be a list"),
        ([5], "entry 0 of managedFields is of the wrong type"),
        ([_entry(manager=5)], "entry 0 of managedFields is of the wrong type"),  # type: ignore[arg-type]
        ([_entry(operation="Bad")], "operation must be `Apply` or `Update`"),
        ([_entry(version="")], "apiVersion must not be empty"),
        ([_entry(), _entry(fieldsType="")], "missing fieldsType in managed fields entry 1"),
        ([_entry(fieldsType="V2")], 'invalid fieldsType "V2" in managed fields entry 0'),
        ([_entry(fieldsV1={"bad": {}})], "missing colon: bad"),
        ([_entry(time="yesterday")], "time 'yesterday' is not RFC 3339"),
        ([_entry(time="2020-01-01T00:00:00")], "time '2020-01-01T00:00:00' is not RFC 3339"),
    ],
)
def test_a_wrong_list_is_refused_with_the_reason(listed: Any, why: str) -> None:
    with pytest.raises(fields.FieldsError) as refused:
        entries.parse(listed)
    assert str(refused.value) == why


def test_entries_stand_in_kubernetes_order() -> None:
    listed = [
        _entry("z", "Apply", time=LATER),
        _entry("b", "Apply", time=NOW),
        _entry("a", time=LATER),
        _entry("a", time=NOW, subresource="status"),
        _entry("a", version="managed.example/v0", time=NOW),
        {key: value for key, value in _entry("q").items() if key != "time"},
    ]
    ordered = entries.write(entries.parse(listed))
    assert [(e["operation"], e["manager"], e.get("time"), e["apiVersion"], e.get("subresource")) for e in ordered] == [
        ("Apply", "b", NOW, API, None),
        ("Apply", "z", LATER, API, None),
        ("Update", "q", None, API, None),
        ("Update", "a", NOW, "managed.example/v0", None),
        ("Update", "a", NOW, API, "status"),
        ("Update", "a", LATER, API, None),
    ]


def test_a_write_for_a_time_alone_is_no_write() -> None:
    old = _thing(text="a")
    old["metadata"]["managedFields"] = [_entry(), _entry("b")]
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"][0]["time"] = LATER
    keep_times(new, old)
    assert new == old


@pytest.mark.parametrize("change", ["spec", "metadata", "owner"])
def test_times_move_on_when_something_else_changes_too(change: str) -> None:
    old = _thing(text="a")
    old["metadata"]["managedFields"] = [_entry()]
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"][0]["time"] = LATER
    if change == "spec":
        new["spec"]["text"] = "b"
    elif change == "metadata":
        new["metadata"]["labels"] = {"a": "b"}
    else:
        new["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": {"f:number": {}}}
    keep_times(new, old)
    assert new["metadata"]["managedFields"][0]["time"] == LATER


def test_a_webhook_cannot_break_the_list_and_the_writer_is_told() -> None:
    new = _thing()
    before = [_entry()]
    new["metadata"]["managedFields"] = [_entry(operation="Bad")]
    assert valid_or_before(new, before) == [
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating "
        "admission controller; please fix your requests: operation must be `Apply` or `Update`"
    ]
    assert new["metadata"]["managedFields"] == before


def test_a_webhook_may_take_the_list_away_or_change_it() -> None:
    new = _thing()
    assert valid_or_before(new, [_entry()]) == []
    assert "managedFields" not in new["metadata"]
    new["metadata"]["managedFields"] = [_entry("z"), _entry("a")]
    assert valid_or_before(new, [_entry()]) == []
    assert list(_owners(new)) == ["a", "z"]


# --- what clients may try ---


@pytest.mark.parametrize(
    "last", ["{", "[]", "{}", '{"apiVersion":"managed.example/v1","spec":{"text":5}}', '{"apiVersion":"x"}']
)
def test_an_annotation_of_kubectl_that_makes_no_sense_allows_nothing(last: str) -> None:
    live = _thing(text="a")
    live["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": last}
    live["metadata"]["managedFields"] = [_entry("other")]
    with pytest.raises(StatusError) as refused:
        _manager().apply(live, _thing(text="b"), "kubectl", "", NOW, force=False)
    assert refused.value.code == 409


def test_kubectl_takes_nothing_over_that_it_has_not_applied_from_its_side() -> None:
    live = _thing(text="a")
    live["metadata"]["annotations"] = {"other": "x"}
    live["metadata"]["managedFields"] = [_entry("kubectl-client-side-apply")]
    with pytest.raises(StatusError) as refused:
        _manager().apply(live, _thing(text="b"), "kubectl", "", NOW, force=False)
    assert refused.value.code == 409


def test_configuration_of_another_kind_or_version_is_refused() -> None:
    for other in ({"kind": "Other"}, {"apiVersion": "managed.example/v2"}):
        with pytest.raises(StatusError, match="invalid object type") as refused:
            _manager(kind="Thing").apply(None, _thing(text="a") | other, "m", "", NOW, force=False)
        assert refused.value.code == 400


def test_an_annotation_of_kubectl_that_would_be_too_long_goes() -> None:
    live = _thing(text="a")
    live["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    live["metadata"]["managedFields"] = [_entry("kubectl", "Apply")]
    applied = _manager().apply(live, _thing(text="a" * (300 << 10)), "kubectl", "", NOW, force=False)
    assert applied["metadata"]["annotations"] == {}


def test_a_configuration_that_is_nested_too_deeply_is_refused() -> None:
    deep: Raw = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(StatusError) as refused:
        _manager().apply(None, _thing(free=deep), "m", "", NOW, force=False)
    assert refused.value.code == 400


def test_an_object_that_cannot_be_tracked_loses_its_list_as_on_the_real_server() -> None:
    live = _thing(tags=["a"])
    live["metadata"]["managedFields"] = [_entry()]
    new = copy.deepcopy(live)
    new["spec"]["tags"] = ["a", {"no": "scalar"}]
    _manager().update(live, new, "m", "", NOW)
    assert "managedFields" not in new["metadata"]


def test_what_apply_gives_shares_nothing_with_what_it_was_given() -> None:
    live = _manager().apply(None, _thing(labels={"a": "1"}), "a", "", NOW, force=False)
    config = _thing(nested={"inner": {"deep": "1"}})
    before = copy.deepcopy((live, config))
    new = _manager().apply(live, config, "b", "", NOW, force=False)
    new["spec"]["labels"]["b"] = new["spec"]["nested"]["inner"]["other"] = "2"
    assert (live, config) == before


def test_conflicts_are_listed_by_owner_and_in_kubernetes_order() -> None:
    live = _thing(text="a", number=1, tags=["x"])
    live["metadata"]["managedFields"] = [
        _entry("b", "Apply", fieldsV1={"f:spec": {"f:text": {}, "f:number": {}}}),
        _entry("a", fieldsV1={"f:spec": {"f:text": {}}}, subresource="scale"),
    ]
    with pytest.raises(StatusError) as refused:
        _manager().apply(live, _thing(text="b", number=2), "c", "", NOW, force=False)
    assert refused.value.message == (
        "Apply failed with 3 conflicts: "
        'conflicts with "a" with subresource "scale" using managed.example/v1:\n- .spec.text\n'
        'conflicts with "b":\n- .spec.number\n- .spec.text'
    )
    assert refused.value.reason == "Conflict"


def test_an_object_without_uid_is_one_that_is_being_created() -> None:
    new = _thing(text="a")
    _manager().update({"metadata": {}, "spec": {}}, new, "m", "", NOW)
    assert _owners(new) == {"m": {"f:spec": {"f:text": {}}}}


def test_an_object_from_before_fields_were_tracked_is_not_tracked_until_it_is_applied_to() -> None:
    live = _thing(text="a")
    live["metadata"]["uid"] = "u"
    new = copy.deepcopy(live)
    new["spec"]["number"] = 1
    _manager().update(live, new, "m", "", NOW)
    assert "managedFields" not in new["metadata"]
    applied = _manager().apply(new, _thing(flag=True), "a", "", NOW, force=False)
    assert _owners(applied) == {
        "a": {"f:spec": {"f:flag": {}}},
        "before-first-apply": {"f:spec": {".": {}, "f:number": {}, "f:text": {}}},
    }
