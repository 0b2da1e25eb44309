"""The field manager in states that a recording cannot reach, the list of owners, and sets of fields."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.managed_fields import fields
from tink.kubeapi.apiserver.managed_fields.field_manager import (
    ANCIENT,
    BLANK,
    MAX_UPDATERS,
    FieldManager,
    OwnerEntry,
    cap_owners,
    keep_times,
    owner_of,
    parse_owners,
    valid_or_before,
    write_owners,
)
from tink.kubeapi.apiserver.managed_fields.fields import Fields, FieldsError
from tink.kubeapi.schema.structural import root_schema

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


def _owned_thing(*owners: Raw, **spec: Any) -> Raw:
    """Return a Thing with entries in its managedFields, as it is stored."""
    made = _thing(**spec)
    made["metadata"]["managedFields"] = list(owners)
    return made


def _changed(live: Raw, **spec: Any) -> Raw:
    made = copy.deepcopy(live)
    made["spec"] |= spec
    return made


def _owners(obj: Raw) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", [])}


# --- a schema that has changed since ---


def test_value_that_became_atomic_is_owned_as_a_whole_after_the_next_write() -> None:
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
    behind, gone = _entry(version="managed.example/v2"), _entry("gone", version="managed.example/v0")
    live = _owned_thing(behind, gone, text="a")
    new = _changed(live, text="b")
    manager.update(live, new, "m", "", LATER)
    assert [(entry["manager"], entry["time"]) for entry in new["metadata"]["managedFields"]] == [
        ("old", NOW),
        ("m", LATER),
    ]
    applied = manager.apply(live, _thing(text="c"), "b", "", LATER, force=False)
    assert sorted(_owners(applied)) == ["b", "old"]
    unknown = _changed(live, text="b")
    _manager().update(live, unknown, "m", "", LATER)  # without a word about which versions there are
    assert sorted(_owners(unknown)) == ["gone", "m", "old"]


def test_last_configuration_of_another_version_is_pruned_in_that_version() -> None:
    manager = _manager(others={"managed.example/v1beta1": root_schema(copy.deepcopy(OPENAPI))})
    live = _owned_thing(_entry("b", "Apply", "managed.example/v1beta1"), text="a", number=1)
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
    manager = FieldManager(schema, f"{group}/v1", status=False, kind=kind, blank=BLANK.get((group, kind)))
    body = {"conversion": {"strategy": "None"}, "group": "a.b", "names": {"kind": "C"}, "versions": [{}]}
    new: Raw = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "x"}, "spec": body}
    manager.update(None, new, "curl", "", NOW)
    owned = {"f:conversion": {".": {}, "f:strategy": {}}, "f:group": {}, "f:names": {"f:kind": {}}, "f:versions": {}}
    assert _owners(new) == {"curl": {"f:spec": owned}}


def test_metadata_of_built_in_objects_can_be_owned_through_their_status() -> None:
    manager = FieldManager(root_schema(OPENAPI), API, status=True, blank={})
    live = _owned_thing(_entry(), text="a")
    new = copy.deepcopy(live) | {"status": {"phase": "x"}}
    new["metadata"]["labels"] = {"a": "b"}
    manager.update(live, new, "s", "status", LATER)
    assert _owners(new)["s"] == {
        "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
        "f:status": {".": {}, "f:phase": {}},
    }
    assert ("tinkerbell.org", "Lease") not in BLANK, "a custom resource is no built-in one"


# --- the list ---


@pytest.mark.parametrize("when", ["2025-01-01T00:00:00Z", NOW, LATER])
@pytest.mark.parametrize("count", [10, 11, 14])
def test_the_bucket_for_old_updates_never_loses_anything(when: str, count: int) -> None:
    found = {owner_of(f"A{n:02}", "Update", API, ""): OwnerEntry(API, NOW, {f"f:{n:02}": {}}) for n in range(count)}
    found[owner_of(ANCIENT, "Update", API, "")] = OwnerEntry(API, when, {"f:old": {}})
    capped = cap_owners(found)
    assert len(capped) == MAX_UPDATERS
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
        parse_owners(listed)
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
    ordered = write_owners(parse_owners(listed))
    assert [(e["operation"], e["manager"], e.get("time"), e["apiVersion"], e.get("subresource")) for e in ordered] == [
        ("Apply", "b", NOW, API, None),
        ("Apply", "z", LATER, API, None),
        ("Update", "q", None, API, None),
        ("Update", "a", NOW, "managed.example/v0", None),
        ("Update", "a", NOW, API, "status"),
        ("Update", "a", LATER, API, None),
    ]


@pytest.mark.parametrize("change", ["", "spec", "metadata", "owner"])
def test_times_move_on_only_when_something_else_changes_too(change: str) -> None:
    old = _owned_thing(_entry(), _entry("b"), text="a")
    new = copy.deepcopy(old)
    new["metadata"]["managedFields"][0]["time"] = LATER
    if change == "spec":
        new["spec"]["text"] = "b"
    elif change == "metadata":
        new["metadata"]["labels"] = {"a": "b"}
    elif change == "owner":
        new["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": {"f:number": {}}}
    keep_times(new, old)
    assert new["metadata"]["managedFields"][0]["time"] == (LATER if change else NOW)
    assert (new == old) is not bool(change)


def test_a_webhook_may_change_the_list_and_cannot_break_it() -> None:
    before = [_entry()]
    broken = _owned_thing(_entry(operation="Bad"))
    assert valid_or_before(broken, before) == [
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating "
        "admission controller; please fix your requests: operation must be `Apply` or `Update`"
    ]
    assert broken["metadata"]["managedFields"] == before
    without = _thing()
    assert valid_or_before(without, before) == []
    assert "managedFields" not in without["metadata"]
    changed = _owned_thing(_entry("z"), _entry("a"))
    assert valid_or_before(changed, before) == []
    assert list(_owners(changed)) == ["a", "z"]


# --- what clients may try ---


LAST = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.mark.parametrize(
    ("owner", "annotations"),
    [
        *(
            ("other", {LAST: last})
            for last in ("{", "[]", "{}", '{"apiVersion":"managed.example/v1","spec":{"text":5}}', '{"apiVersion":"x"}')
        ),
        ("kubectl-client-side-apply", {"other": "x"}),
    ],
)
def test_kubectl_takes_over_only_fields_that_it_applied_client_side(owner: str, annotations: Raw) -> None:
    live = _owned_thing(_entry(owner), text="a")
    live["metadata"]["annotations"] = annotations
    with pytest.raises(StatusError) as refused:
        _manager().apply(live, _thing(text="b"), "kubectl", "", NOW, force=False)
    assert refused.value.code == 409


def test_too_long_annotation_of_kubectl_is_removed() -> None:
    live = _owned_thing(_entry("kubectl", "Apply"), text="a")
    live["metadata"]["annotations"] = {LAST: "{}"}
    applied = _manager().apply(live, _thing(text="a" * (300 << 10)), "kubectl", "", NOW, force=False)
    assert applied["metadata"]["annotations"] == {}


def test_a_configuration_of_another_kind_or_version_or_nested_too_deeply_is_refused() -> None:
    deep: Raw = {}
    for _ in range(5000):
        deep = {"a": deep}
    for config, why in (
        (_thing(text="a") | {"kind": "Other"}, "invalid object type"),
        (_thing(text="a") | {"apiVersion": "managed.example/v2"}, "invalid object type"),
        (_thing(free=deep), None),
    ):
        with pytest.raises(StatusError, match=why) as refused:
            _manager(kind="Thing").apply(None, config, "m", "", NOW, force=False)
        assert refused.value.code == 400


def test_an_object_that_cannot_be_tracked_loses_its_list_as_on_the_real_server() -> None:
    live = _owned_thing(_entry(), tags=["a"])
    new = _changed(live, tags=["a", {"no": "scalar"}])
    _manager().update(live, new, "m", "", NOW)
    assert "managedFields" not in new["metadata"]


def test_result_of_apply_shares_nothing_with_its_arguments() -> None:
    live = _manager().apply(None, _thing(labels={"a": "1"}), "a", "", NOW, force=False)
    config = _thing(nested={"inner": {"deep": "1"}})
    before = copy.deepcopy((live, config))
    new = _manager().apply(live, config, "b", "", NOW, force=False)
    new["spec"]["labels"]["b"] = new["spec"]["nested"]["inner"]["other"] = "2"
    assert (live, config) == before


def test_conflicts_are_listed_by_owner_and_in_kubernetes_order() -> None:
    live = _owned_thing(
        _entry("b", "Apply", fieldsV1={"f:spec": {"f:text": {}, "f:number": {}}}),
        _entry("a", fieldsV1={"f:spec": {"f:text": {}}}, subresource="scale"),
        text="a",
        number=1,
        tags=["x"],
    )
    with pytest.raises(StatusError) as refused:
        _manager().apply(live, _thing(text="b", number=2), "c", "", NOW, force=False)
    assert refused.value.message == (
        "Apply failed with 3 conflicts: "
        'conflicts with "a" with subresource "scale" using managed.example/v1:\n- .spec.text\n'
        'conflicts with "b":\n- .spec.number\n- .spec.text'
    )
    assert refused.value.reason == "Conflict"


def test_an_object_from_before_fields_were_tracked_is_not_tracked_until_it_is_applied_to() -> None:
    created = _thing(text="a")
    _manager().update({"metadata": {}, "spec": {}}, created, "m", "", NOW)  # without a uid: it is being created
    assert _owners(created) == {"m": {"f:spec": {"f:text": {}}}}
    live = _thing(text="a")
    live["metadata"]["uid"] = "u"
    new = _changed(live, number=1)
    _manager().update(live, new, "m", "", NOW)
    assert "managedFields" not in new["metadata"]
    applied = _manager().apply(new, _thing(flag=True), "a", "", NOW, force=False)
    assert _owners(applied) == {
        "a": {"f:spec": {"f:flag": {}}},
        "before-first-apply": {"f:spec": {".": {}, "f:number": {}, "f:text": {}}},
    }


# --- what must hold whatever is sent ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "tags", "ports", "port", "labels", "free", "a", "name", "spec"]), inner
        )
    ),
    max_leaves=12,
)


def _code(manager: FieldManager, live: Raw | None, body: Raw) -> int:
    try:
        manager.apply(live, body, "n", "", LATER, force=True)
    except StatusError as refused:
        return refused.code
    return 200


@given(JSON, JSON)
@settings(max_examples=50, deadline=None)
def test_any_applied_configuration_is_merged_or_refused(config: Any, metadata: Any) -> None:
    manager = _manager(kind="Thing")
    head = {"apiVersion": API, "kind": "Thing"}
    live = manager.apply(None, {**head, "metadata": {"name": "x"}, "spec": {"text": "a"}}, "m", "", LATER, force=False)
    for body in ({**head, "metadata": {"name": "x"}, "spec": config}, {**head, "metadata": metadata, "status": config}):
        for old in (None, live):
            assert _code(manager, old, body) in (200, 400, 409, 500)


@given(JSON, JSON, JSON)
@settings(max_examples=50, deadline=None)
def test_an_update_is_never_refused_for_its_managed_fields(sent: Any, was: Any, spec: Any) -> None:
    manager = _manager()
    new = {"metadata": {"name": "x", "managedFields": [sent]}, "spec": spec, "status": spec}
    live = {"metadata": {"name": "x", "managedFields": [was]}, "spec": was, "status": was}
    manager.update(live, new, "m", "", LATER)
    manager.update(None, new, "m", "", LATER)
    listed = new["metadata"].get("managedFields") or []
    assert write_owners(parse_owners(listed)) == listed


# --- sets of fields

ELEMENTS = st.sampled_from(["f:a", "f:b", "f:c", 'k:{"name":"x"}', 'k:{"id":2}', 'k:{"id":10}', 'v:"x"', "v:1", "i:0"])
PATHS = st.lists(st.lists(ELEMENTS, min_size=1, max_size=4).map(tuple), max_size=8).map(set)


def _set(paths: set[tuple[str, ...]]) -> Fields:
    return fields.from_paths(sorted(paths))


@given(PATHS, PATHS)
def test_operations_are_those_of_sets_of_paths_and_their_results_are_in_normal_form(one, other) -> None:
    left, right = _set(one), _set(other)
    before = orjson.dumps([left, right])
    for found, wanted in (
        (left, one),
        (fields.union(left, right), one | other),
        (fields.intersection(left, right), one & other),
        (fields.difference(left, right), one - other),
    ):
        assert set(fields.paths(found)) == wanted
        written = orjson.dumps(found)
        assert orjson.dumps(fields.parse(orjson.loads(written))) == written
    assert all(fields.holds(left, path) == (path in one) for path in one | other)
    assert orjson.dumps([left, right]) == before, "the arguments are left alone"


@pytest.mark.parametrize(
    ("sent", "normal"),
    [
        ({"f:b": {}, "f:a": {".": {}}}, {"f:a": {}, "f:b": {}}),
        ({"f:a": {"f:b": {}, ".": {"x": 1}}}, {"f:a": {".": {}, "f:b": {}}}),
        ({"f:a": None, ".": {}}, {"f:a": {}}),
        ({"f:a": {"z:future": {}}, "z:future": {"bad": {}}}, {"f:a": {}}),
        ({'k:{"b":1.0,"a":"x"}': {}, 'k: {"a":"x", "b":1}': {"f:c": {}}}, {'k:{"a":"x","b":1}': {".": {}, "f:c": {}}}),
        ({'v:"<&>"': {}, "v:1.50": {}, "i:01": {}}, {"i:1": {}, 'v:"\\u003c\\u0026\\u003e"': {}, "v:1.5": {}}),
        (None, {}),
        ({}, {}),
    ],
)
def test_sets_that_clients_send_get_their_normal_form(sent: Any, normal: Fields) -> None:
    assert orjson.dumps(fields.parse(sent)) == orjson.dumps(normal)


def test_invalid_set_is_refused() -> None:
    odd: list[Any] = [[], "x", {"f:a": 5}, {"f:a": []}]
    odd += [{key: {}} for key in ("", "x", "bad", "v:", "k:[]", "k:{", "i:x")]
    for sent in odd:
        with pytest.raises(FieldsError):
            fields.parse(sent)
    deep: Fields = {}
    for _ in range(500):
        deep = {"f:a": deep}
    with pytest.raises(FieldsError, match="too deep"):
        fields.parse(deep)
    with pytest.raises(FieldsError, match="too large"):
        fields.parse({f"f:{n}": {} for n in range(fields.MAX_FIELDS + 1)})


def test_paths_read_as_kubectl_users_know_them() -> None:
    found = fields.parse(
        {
            "f:spec": {
                "f:ports": {'k:{"port":80,"protocol":"TCP"}': {"f:name": {}}, 'k:{"port":9,"protocol":"TCP"}': {}},
                "f:tags": {'v:"b"': {}, 'v:"a"': {}, "v:10": {}, "v:9": {}, "v:true": {}},
                "f:list": {"i:10": {}, "i:9": {}},
            }
        }
    )
    assert [fields.render(path) for path in fields.paths(found)] == [
        ".spec.list[9]",
        ".spec.list[10]",
        '.spec.ports[port=9,protocol="TCP"]',
        '.spec.ports[port=80,protocol="TCP"].name',
        ".spec.tags[=9]",
        ".spec.tags[=10]",
        '.spec.tags[="a"]',
        '.spec.tags[="b"]',
        ".spec.tags[=true]",
    ]


def test_values_in_elements_are_written_as_kubernetes_writes_them() -> None:
    for value, text in (
        ("a", '"a"'),
        ('"\\', '"\\"\\\\"'),
        ("\b\f\t", '"\\u0008\\u000c\\t"'),
        ("ä\u2028", '"ä\\u2028"'),
        (2.0, "2"),
        (0.5, "0.5"),
        (1 << 70, str(1 << 70)),
        (None, "null"),
        (True, "true"),
    ):
        assert fields.literal(value) == text
