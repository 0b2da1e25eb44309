"""CEL rules of schemas: recorded answers of a real kube-apiserver; limits, order, the cache, and ratcheting.

`data/validations` holds the recorded answers; `data/record.py` records them.
"""

from __future__ import annotations

import copy
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.kubeapi.schema import rules as rules_module
from tink.kubeapi.schema.declarations import FieldPathError, escaped, field_path
from tink.kubeapi.schema.field_errors import FieldError, WalkResult
from tink.kubeapi.schema.rules import (
    MAX_ERRORS,
    Correlation,
    Validations,
    compile_rules,
    identical,
    ratcheted,
    steps_of,
)
from tink.kubeapi.schema.structural import compile_schema, root_schema

Raw = dict[str, Any]
INTEGER: Raw = {"type": "integer"}
STRING: Raw = {"type": "string"}


def ruled(schema: Raw, *rules: str | Raw) -> Raw:
    return {
        **schema,
        "x-kubernetes-validations": [{"rule": rule} if isinstance(rule, str) else rule for rule in rules],
    }


def under(**properties: Raw) -> Raw:
    return {"type": "object", "properties": properties}


def compiled(schema: Raw) -> Validations:
    return compile_rules(schema)


def messages(errors: list[FieldError]) -> list[str]:
    return [str(error) for error in errors]


def test_schema_without_rules_thousands_of_errors_and_huge_integers() -> None:
    assert compile_rules(under(a=STRING, b={"type": "array", "items": STRING})) is None
    rules = compiled(under(l={"type": "array", "items": ruled(INTEGER, "self > 1")}))
    assert len(rules.check({"l": [0] * 5000})) == MAX_ERRORS
    rules = compiled(under(a=ruled({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, "true")))
    assert rules.check({"a": {"big": 1 << 70}}) == []


def test_rules_at_the_root_see_only_name_kind_and_version() -> None:
    rules = compiled(
        ruled(under(a=STRING), "self.metadata.name == self.a && self.kind == 'K' && self.apiVersion == 'v'")
    )
    obj = {"apiVersion": "v", "kind": "K", "metadata": {"name": "x", "labels": {}}, "a": "x"}
    assert rules.check(obj) == []
    assert messages(rules.check({**obj, "a": "y"}))[0].startswith("<nil>: Invalid value: failed rule: ")


def test_stored_rule_that_does_not_compile_rejects_the_object() -> None:
    rules = compiled(under(a=ruled(STRING, "self.fromTheFuture()")))
    assert "rule compile error: compilation failed: ERROR" in messages(rules.check({"a": "x"}))[0]


def test_cached_object_is_valid_without_running_its_rules(monkeypatch) -> None:
    rules = compiled(under(a=ruled(INTEGER, "self > 1"), b=STRING))
    assert rules.check({"a": 5, "b": "x"}) == []

    def boom(*_: object) -> None:
        raise AssertionError("a rule was run")

    monkeypatch.setattr(rules_module, "_evaluate", boom)
    assert rules.check({"a": 5, "b": "x"}) == []
    with pytest.raises(AssertionError):
        rules.check({"a": 6, "b": "x"})


IS_INTEGER = ruled({"x-kubernetes-int-or-string": True}, "type(self) == int")


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        pytest.param({"a": IS_INTEGER}, ({"a": 5},), ({"a": "5"},), id="of another type"),
        pytest.param(
            {"a": ruled(INTEGER, "self > 1"), "b": ruled(INTEGER, "self > 5")}, ({"a": 3},), ({"b": 3},), id="elsewhere"
        ),
        pytest.param(
            {"a": ruled(INTEGER, "self > 1"), "b": STRING},
            ({"a": 0, "b": "y"}, {"a": 0, "b": "x"}),
            ({"a": 0, "b": "y"},),
            id="that was ratcheted once",
        ),
        pytest.param(
            {"a": ruled(INTEGER, "self >= oldSelf")}, ({"a": 3}, {"a": 2}), ({"a": 3}, {"a": 4}), id="with a transition"
        ),
    ],
)
def test_invalid_value_is_not_confused_with_a_cached_one(fields: Raw, right: Any, wrong: Any) -> None:
    rules = compiled(under(**fields))
    assert rules.check(*right) == []
    assert rules.check(*wrong) != []


def test_cache_of_valid_values_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "MAX_CACHED", 2000)
    rules = compiled(under(a=ruled(STRING, "self.size() > 1")))
    for index in range(200):
        assert rules.check({"a": f"value {index}"}) == []
    cached = [text for node in (rules._root, rules._root.properties[0][1]) for text in node.valid]
    assert 0 < len(cached) <= 2000 // 200
    assert sum(map(len, cached)) < 2000
    assert not rules._root.valid, "a whole object is never the same again: its metadata change"


def test_cached_values_take_about_as_much_memory_as_they_count() -> None:
    part = {"type": "object", "properties": {name: {"type": "string"} for name in "ab"}}
    rules = compiled(under(a=ruled(part, "self.a.size() > 1")))
    values = [{"a": {"a": f"value {index}", "b": "x" * 500}} for index in range(300)]
    assert rules.check(values.pop()) == []
    tracemalloc.start()
    try:
        for value in values:
            assert rules.check(value) == []
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 300 * 500 < taken < 300 * 1500


def test_long_values_are_not_cached() -> None:
    rules = compiled(under(a=ruled(STRING, "self.size() > 1"), b=ruled(INTEGER, "self > 1")))
    assert rules.check({"a": "x" * (rules_module.MAX_TEXT + 1), "b": 2}) == []
    cached = [text for node in (rules._root, *(child for _, child in rules._root.properties)) for text in node.valid]
    assert cached == [b"2"]


def test_cost_of_cached_values_counts() -> None:
    rules = compiled(under(a=ruled({"type": "array", "items": INTEGER, "maxItems": 50}, "self.all(x, x > 0)")))
    obj = {"a": [1] * 50}
    assert rules.check(obj) == []
    assert "running out of cost budget" in messages(rules.check(obj, budget=100))[0]


def test_rules_do_not_run_for_values_of_wrong_types() -> None:
    rules = compiled(under(a=ruled(INTEGER, "self > 1")))
    wrong = FieldError("b", "FieldValueTypeInvalid", "x")
    found = rules.check_after([wrong], {"a": 0})
    assert [error.field for error in found] == ["<nil>"]
    pattern = FieldError("b", "FieldValueInvalid", "x")
    assert [error.field for error in rules.check_after([pattern], {"a": 0})] == ["a"]


def test_property_names_are_escaped_as_in_kubernetes() -> None:
    names = {"spec": "spec", "a-b.c/d": "a__dash__b__dot__c__slash__d", "a__b": "a__underscores__b", "a_b": "a_b"}
    names |= {".x": "__dot__x", "namespace": "__namespace__"}
    assert {name: escaped(name) for name in names} == names
    assert [escaped(name) for name in ("1a", "", "ä", "a b", "$x")] == [None] * 5


def test_field_path_of_a_rule_leads_to_a_field_or_is_rejected() -> None:
    schema = under(a=under(b=STRING), m={"type": "object", "additionalProperties": STRING})
    for path, steps, text in (
        (".a", ("a",), "a"),
        (".a.b", ("a", "b"), "a.b"),
        ("['a']['b']", ("a", "b"), "a.b"),
        (".m['x.y']", ("m", "x.y"), "m[x.y]"),
        (".m['it\\'s']", ("m", "it's"), "m[it's]"),
    ):
        found = field_path(path, schema)
        assert (found.steps, found.text) == (steps, text)
    for path in ("a", ".z", ".a[", ".a['b'", ".a[b]", ".a['\\q']", ".a..b", ".m['x", ".", "]"):
        with pytest.raises(FieldPathError):
            field_path(path, schema)


def test_values_of_different_types_are_not_identical() -> None:
    assert not identical(1, True)
    assert not identical(1, 1.0)
    assert not identical({"a": [1]}, {"a": [True]})
    assert identical({"a": [1, None]}, {"a": [1, None]})


LIST: Raw = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["k"],
    "items": under(k=STRING, v=STRING),
}


def test_moved_item_of_a_map_list_counts_as_unchanged() -> None:
    old = {"l": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]}
    new = {"l": [{"k": "b", "v": "2"}, {"k": "a", "v": "9"}, {"k": "c", "v": "3"}]}
    correlation = Correlation(new, old, under(l=LIST))
    assert correlation.is_unchanged(["l", 0, "v"])
    assert not correlation.is_unchanged(["l", 1, "v"])
    assert correlation.is_unchanged(["l", 1, "k"])
    assert not correlation.is_unchanged(["l", 2])
    assert not correlation.is_unchanged(["l"])
    swapped = {"l": [old["l"][1], old["l"][0]]}
    assert Correlation(swapped, old, under(l=LIST)).is_unchanged(["l"])


def test_boolean_key_differs_from_a_number_and_version_and_kind_never_count_as_unchanged() -> None:
    old: Raw = {"l": [{"k": 1, "v": "1"}]}
    assert not Correlation({"l": [{"k": True, "v": "1"}]}, old, under(l=LIST)).is_unchanged(["l", 0])
    obj = {"apiVersion": "v1", "kind": "K"}
    correlation = Correlation(obj, copy.deepcopy(obj), under(apiVersion=STRING, kind=STRING))
    assert not correlation.is_unchanged(["kind"])
    assert correlation.is_unchanged([])


def test_path_of_an_error_is_parsed_by_the_object() -> None:
    obj = {"spec": {"a": 1, "a.b": {"c": 2}, "l": [0, {"x": 1}]}}
    paths: dict[str, list[str | int]] = {
        "spec.a.b": ["spec", "a.b"],
        "spec.a.b.c": ["spec", "a.b", "c"],
        "spec.l[1].x": ["spec", "l", 1, "x"],
        "spec.l[7].x": ["spec", "l"],
        "spec.missing": ["spec", "missing"],
        "": [],
    }
    assert {path: steps_of(path, obj) for path in paths} == paths


def test_errors_in_metadata_and_in_new_objects_are_always_reported() -> None:
    error = FieldError("metadata.name", "FieldValueInvalid", "x")
    obj = {"metadata": {"name": "A"}}
    assert ratcheted([error], obj, copy.deepcopy(obj), under(metadata={"type": "object"})) == [error]
    error = FieldError("a", "FieldValueInvalid", "x")
    assert ratcheted([error], {"a": 1}, None, under(a=INTEGER)) == [error]


def test_lists_in_a_set_that_differ_in_order_are_not_duplicates() -> None:
    schema = under(a={"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "array", "items": STRING}})
    error = FieldError("a[1]", "FieldValueDuplicate", "x")
    new: Raw = {"a": [["x"], ["x"]]}
    assert ratcheted([error], new, {"a": [["x", "y"], ["y", "x"]]}, schema) == [error]
    assert ratcheted([error], new, {"a": [["x", "y"], ["x", "y"]]}, schema) == []


# --- recorded answers ---

GROUPS = list(recordings.read(Path(__file__).parent / "data" / "validations").values())
CASES = [
    pytest.param(group["name"], case, id=f"{group['name']}: {case['name']}")
    for group in GROUPS
    for case in group["cases"]
]

SCHEMAS = {group["name"]: {"type": "object", "properties": {"spec": group["schema"]}} for group in GROUPS}
NODES = {name: compile_schema(root_schema(openapi)) for name, openapi in SCHEMAS.items()}
COMPILED: dict[str, Validations] = {}


def thing(spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": copy.deepcopy(spec)}


@pytest.mark.parametrize(("group", "case"), CASES)
def test_errors_of_an_object_are_the_same_as_in_a_cluster(group: str, case: dict[str, Any]) -> None:
    if group not in COMPILED:
        rules = compile_rules(SCHEMAS[group])
        COMPILED[group] = rules
    new = thing(case["new"])
    old = None if case["old"] is None else thing(case["old"])
    walk = WalkResult()
    NODES[group](new, None, walk)
    if old is not None:
        NODES[group](old, None, WalkResult())
    found = ratcheted(walk.errors, new, old, SCHEMAS[group])
    found = found + COMPILED[group].check_after(found, new, old)
    reported = [[error.reason, error.field, error.message] for error in found]
    assert sorted(in_common(reported)) == sorted(in_common(case["causes"]))
