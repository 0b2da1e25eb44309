"""Sets of fields: their form, what clients send, and the operations on them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.apiserver.managed_fields import fields
from tink.apiserver.managed_fields.fields import Fields, FieldsError

ELEMENTS = st.sampled_from(["f:a", "f:b", "f:c", 'k:{"name":"x"}', 'k:{"id":2}', 'k:{"id":10}', 'v:"x"', "v:1", "i:0"])
PATHS = st.lists(st.lists(ELEMENTS, min_size=1, max_size=4).map(tuple), max_size=8).map(set)


def _set(paths: set[tuple[str, ...]]) -> Fields:
    return fields.from_paths(sorted(paths))


def _paths(found: Fields) -> set[tuple[str, ...]]:
    return set(fields.paths(found))


@given(PATHS, PATHS)
def test_operations_are_those_of_sets_of_paths(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> None:
    left, right = _set(one), _set(other)
    assert _paths(left) == one
    assert _paths(fields.union(left, right)) == one | other
    assert _paths(fields.intersection(left, right)) == one & other
    assert _paths(fields.difference(left, right)) == one - other
    below = {path for path in one if any(path[:n] in other for n in range(1, len(path) + 1))}
    assert _paths(fields.recursive_difference(left, right)) == one - below
    assert all(fields.holds(left, path) == (path in one) for path in one | other)


@given(PATHS, PATHS)
def test_results_are_in_normal_form(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> None:
    left, right = _set(one), _set(other)
    for found in (
        left,
        fields.union(left, right),
        fields.intersection(left, right),
        fields.difference(left, right),
        fields.recursive_difference(left, right),
    ):
        assert orjson.dumps(fields.parse(found)) == orjson.dumps(found)


@given(PATHS, PATHS)
def test_operations_leave_their_arguments_alone(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> None:
    left, right = _set(one), _set(other)
    before = orjson.dumps([left, right])
    for operation in (fields.union, fields.intersection, fields.difference, fields.recursive_difference):
        operation(left, right)
    assert orjson.dumps([left, right]) == before


@given(PATHS)
def test_what_is_written_is_read_back(paths: set[tuple[str, ...]]) -> None:
    found = _set(paths)
    assert fields.parse(orjson.loads(orjson.dumps(found))) == found


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


@pytest.mark.parametrize(
    "sent",
    [
        [],
        "x",
        {"f:a": 5},
        {"f:a": []},
        {"": {}},
        {"x": {}},
        {"bad": {}},
        {"v:": {}},
        {"k:[]": {}},
        {"k:{": {}},
        {"i:x": {}},
    ],
)
def test_what_is_no_set_is_refused(sent: Any) -> None:
    with pytest.raises(FieldsError):
        fields.parse(sent)


def test_a_set_that_is_nested_too_deeply_is_refused_and_does_no_harm() -> None:
    deep: Fields = {}
    for _ in range(500):
        deep = {"f:a": deep}
    with pytest.raises(FieldsError, match="too deep"):
        fields.parse(deep)


def test_a_set_that_is_too_large_is_refused() -> None:
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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", '"a"'),
        ('"\\', '"\\"\\\\"'),
        ("\b\f\t", '"\\u0008\\u000c\\t"'),
        ("ä\u2028", '"ä\\u2028"'),
        (2.0, "2"),
        (0.5, "0.5"),
        (1 << 70, str(1 << 70)),
        (None, "null"),
        (True, "true"),
    ],
)
def test_values_in_elements_are_written_as_kubernetes_writes_them(value: object, text: str) -> None:
    assert fields.literal(value) == text
