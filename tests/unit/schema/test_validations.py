"""CEL rules of schemas: what a real kube-apiserver says, recorded; and bounds, order, memory, the reach of ratcheting.

The answers are in data/validations; data/record.py asked for them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests import recordings
from tests.implementation_details import in_common
from tink.schema.field_errors import FieldError
from tink.schema.outcome import Outcome
from tink.schema.structural.compiler import compile_schema, root_schema
from tink.schema.validations import Validations, compile_rules, ratcheted
from tink.schema.validations import tree as tree_module
from tink.schema.validations.correlation import Correlation, identical, steps_of
from tink.schema.validations.declarations import escaped
from tink.schema.validations.paths import FieldPathError, field_path
from tink.schema.validations.tree import MAX_ERRORS

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
    rules = compile_rules(schema)
    assert rules is not None
    return rules


def messages(errors: list[FieldError]) -> list[str]:
    return [str(error) for error in errors]


def test_schema_without_rules_costs_a_write_nothing() -> None:
    assert compile_rules(under(a=STRING, b={"type": "array", "items": STRING})) is None


def test_answer_about_an_object_with_thousands_of_errors_stays_small() -> None:
    rules = compiled(under(l={"type": "array", "items": ruled(INTEGER, "self > 1")}))
    assert len(rules.check({"l": [0] * 5000})) == MAX_ERRORS


def test_rules_of_the_root_see_name_kind_and_version_only() -> None:
    rules = compiled(
        ruled(under(a=STRING), "self.metadata.name == self.a && self.kind == 'K' && self.apiVersion == 'v'")
    )
    obj = {"apiVersion": "v", "kind": "K", "metadata": {"name": "x", "labels": {}}, "a": "x"}
    assert rules.check(obj) == []
    assert messages(rules.check({**obj, "a": "y"}))[0].startswith("<nil>: Invalid value: failed rule: ")


def test_rule_that_a_newer_server_stored_and_this_one_cannot_compile_refuses_the_object() -> None:
    rules = compiled(under(a=ruled(STRING, "self.fromTheFuture()")))
    assert "rule compile error: compilation failed: ERROR" in messages(rules.check({"a": "x"}))[0]


def test_object_that_was_right_once_is_right_again_without_running_its_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = compiled(under(a=ruled(INTEGER, "self > 1"), b=STRING))
    assert rules.check({"a": 5, "b": "x"}) == []

    def boom(*_: object) -> None:
        raise AssertionError("a rule was run")

    monkeypatch.setattr(tree_module, "_evaluate", boom)
    assert rules.check({"a": 5, "b": "x"}) == []
    with pytest.raises(AssertionError):
        rules.check({"a": 6, "b": "x"})


def test_remembered_value_is_not_taken_for_one_of_another_type() -> None:
    rules = compiled(under(a=ruled({"x-kubernetes-int-or-string": True}, "type(self) == int")))
    assert rules.check({"a": 5}) == []
    assert rules.check({"a": "5"}) != []


def test_remembered_value_of_one_field_says_nothing_about_another() -> None:
    rules = compiled(under(a=ruled(INTEGER, "self > 1"), b=ruled(INTEGER, "self > 5")))
    assert rules.check({"a": 3}) == []
    assert rules.check({"b": 3}) != []


def test_wrong_value_that_was_spared_once_is_not_remembered_as_right() -> None:
    rules = compiled(under(a=ruled(INTEGER, "self > 1"), b=STRING))
    assert rules.check({"a": 0, "b": "y"}, {"a": 0, "b": "x"}) == []
    assert rules.check({"a": 0, "b": "y"}) != []


def test_transition_rule_is_run_for_a_value_that_was_seen_before() -> None:
    rules = compiled(under(a=ruled(INTEGER, "self >= oldSelf")))
    assert rules.check({"a": 3}, {"a": 2}) == []
    assert rules.check({"a": 3}, {"a": 4}) != []


def test_memory_of_right_values_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "MAX_KEPT", 2000)
    rules = compiled(under(a=ruled(STRING, "self.size() > 1")))
    for index in range(200):
        assert rules.check({"a": f"value {index}"}) == []
    kept = [text for node in (rules._root, rules._root.properties[0][1]) for text in node.kept]
    assert 0 < len(kept) <= 2000 // 200
    assert sum(map(len, kept)) < 2000
    assert not rules._root.kept, "a whole object is never the same again: its metadata change"


def test_long_values_are_not_remembered() -> None:
    rules = compiled(under(a=ruled(STRING, "self.size() > 1"), b=ruled(INTEGER, "self > 1")))
    assert rules.check({"a": "x" * (tree_module.MAX_TEXT + 1), "b": 2}) == []
    kept = [text for node in (rules._root, *(child for _, child in rules._root.properties)) for text in node.kept]
    assert kept == [b"2"]


def test_cost_of_remembered_values_still_counts() -> None:
    rules = compiled(under(a=ruled({"type": "array", "items": INTEGER, "maxItems": 50}, "self.all(x, x > 0)")))
    obj = {"a": [1] * 50}
    assert rules.check(obj) == []
    assert "running out of cost budget" in messages(rules.check(obj, budget=100))[0]


def test_integers_that_json_libraries_cannot_write_do_not_break_the_check() -> None:
    rules = compiled(under(a=ruled({"type": "object", "x-kubernetes-preserve-unknown-fields": True}, "true")))
    assert rules.check({"a": {"big": 1 << 70}}) == []


def test_rules_are_not_run_over_values_of_types_that_they_do_not_expect() -> None:
    rules = compiled(under(a=ruled(INTEGER, "self > 1")))
    wrong = FieldError("b", "FieldValueTypeInvalid", "x")
    found = rules.check_after([wrong], {"a": 0})
    assert [error.field for error in found] == ["<nil>"]
    pattern = FieldError("b", "FieldValueInvalid", "x")
    assert [error.field for error in rules.check_after([pattern], {"a": 0})] == ["a"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("spec", "spec"),
        ("a-b.c/d", "a__dash__b__dot__c__slash__d"),
        ("a__b", "a__underscores__b"),
        ("a_b", "a_b"),
        (".x", "__dot__x"),
        ("namespace", "__namespace__"),
        ("1a", None),
        ("", None),
        ("ä", None),
        ("a b", None),
    ],
)
def test_property_is_named_in_rules_as_in_kubernetes(name: str, known: str | None) -> None:
    assert escaped(name) == known


@pytest.mark.parametrize(
    ("path", "steps", "text"),
    [
        (".a", ("a",), "a"),
        (".a.b", ("a", "b"), "a.b"),
        ("['a']['b']", ("a", "b"), "a.b"),
        (".m['x.y']", ("m", "x.y"), "m[x.y]"),
        (".m['it\\'s']", ("m", "it's"), "m[it's]"),
    ],
)
def test_path_of_a_rule_leads_to_its_field(path: str, steps: tuple[str, ...], text: str) -> None:
    schema = under(a=under(b=STRING), m={"type": "object", "additionalProperties": STRING})
    found = field_path(path, schema)
    assert (found.steps, found.text) == (steps, text)


@pytest.mark.parametrize("path", ["a", ".z", ".a[", ".a['b'", ".a[b]", ".a['\\q']", ".a..b", ".m['x", ".", "]"])
def test_path_that_leads_nowhere_is_refused(path: str) -> None:
    schema = under(a=under(b=STRING), m={"type": "object", "additionalProperties": STRING})
    with pytest.raises(FieldPathError):
        field_path(path, schema)


def test_values_are_the_same_only_with_their_types() -> None:
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


def test_item_of_a_map_list_is_kept_wherever_it_moves() -> None:
    old = {"l": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]}
    new = {"l": [{"k": "b", "v": "2"}, {"k": "a", "v": "9"}, {"k": "c", "v": "3"}]}
    correlation = Correlation(new, old, under(l=LIST))
    assert correlation.kept(["l", 0, "v"])
    assert not correlation.kept(["l", 1, "v"])
    assert correlation.kept(["l", 1, "k"])
    assert not correlation.kept(["l", 2])
    assert not correlation.kept(["l"])
    swapped = {"l": [old["l"][1], old["l"][0]]}
    assert Correlation(swapped, old, under(l=LIST)).kept(["l"])


def test_item_with_a_boolean_key_is_not_the_one_with_the_number() -> None:
    old: Raw = {"l": [{"k": 1, "v": "1"}]}
    assert not Correlation({"l": [{"k": True, "v": "1"}]}, old, under(l=LIST)).kept(["l", 0])


def test_version_and_kind_never_count_as_unchanged() -> None:
    obj = {"apiVersion": "v1", "kind": "K"}
    correlation = Correlation(obj, copy.deepcopy(obj), under(apiVersion=STRING, kind=STRING))
    assert not correlation.kept(["kind"])
    assert correlation.kept([])


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("spec.a.b", ["spec", "a.b"]),
        ("spec.a.b.c", ["spec", "a.b", "c"]),
        ("spec.l[1].x", ["spec", "l", 1, "x"]),
        ("spec.l[7].x", ["spec", "l"]),
        ("spec.missing", ["spec", "missing"]),
        ("", []),
    ],
)
def test_path_of_an_error_is_found_again_in_the_object(path: str, steps: list[str | int]) -> None:
    assert steps_of(path, {"spec": {"a": 1, "a.b": {"c": 2}, "l": [0, {"x": 1}]}}) == steps


def test_errors_in_metadata_are_never_spared() -> None:
    error = FieldError("metadata.name", "FieldValueInvalid", "x")
    obj = {"metadata": {"name": "A"}}
    assert ratcheted([error], obj, copy.deepcopy(obj), under(metadata={"type": "object"})) == [error]


def test_errors_of_a_new_object_are_never_spared() -> None:
    error = FieldError("a", "FieldValueInvalid", "x")
    assert ratcheted([error], {"a": 1}, None, under(a=INTEGER)) == [error]


def test_lists_in_a_set_that_differ_in_order_are_no_old_duplicates() -> None:
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
def test_operator_reads_what_a_cluster_would_say_about_an_object(group: str, case: dict[str, Any]) -> None:
    if group not in COMPILED:
        rules = compile_rules(SCHEMAS[group])
        assert rules is not None
        COMPILED[group] = rules
    new = thing(case["new"])
    old = None if case["old"] is None else thing(case["old"])
    walk = Outcome()
    NODES[group](new, None, walk)
    if old is not None:
        NODES[group](old, None, Outcome())
    found = ratcheted(walk.errors, new, old, SCHEMAS[group])
    found = found + COMPILED[group].check_after(found, new, old)
    said = [[error.reason, error.field, error.message] for error in found]
    assert sorted(in_common(said)) == sorted(in_common(case["causes"]))
