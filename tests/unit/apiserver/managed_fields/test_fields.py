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


@given(PATHS, PATHS)
def test_operations_are_those_of_sets_of_paths_and_their_results_are_in_normal_form(one, other) -> None:
    left, right = _set(one), _set(other)
    before = orjson.dumps([left, right])
    below = {path for path in one if any(path[:n] in other for n in range(1, len(path) + 1))}
    for found, wanted in (
        (left, one),
        (fields.union(left, right), one | other),
        (fields.intersection(left, right), one & other),
        (fields.difference(left, right), one - other),
        (fields.recursive_difference(left, right), one - below),
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


def test_what_is_no_set_is_refused() -> None:
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
