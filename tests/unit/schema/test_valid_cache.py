"""What is remembered of values must not change what is found in them, nor grow without end."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.apiserver.requests import MERGE_PATCH, decode_patch
from tink.apiserver.serializer import duplicate_fields
from tink.schema.outcome import Outcome
from tink.schema.structural import compiler
from tink.schema.structural.compiler import compile_schema

ITEM = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "maxLength": 2},
        "on": {"type": "boolean", "default": True},
        "size": {"type": "integer", "minimum": 1},
        "at": {"type": "string", "format": "date-time"},
        "more": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
        "words": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": ITEM,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
        }
    },
}
NODE = compile_schema(SCHEMA)

values = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 1.0, 2]),
    st.sampled_from(["a", "b", "long", "2026-01-02T03:04:05Z"]),
)
items = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "id": st.one_of(st.sampled_from(["a", "b", "c"]), values),
            "on": values,
            "size": values,
            "at": values,
            "odd": values,
            "more": st.lists(
                st.one_of(values, st.fixed_dictionaries({}, optional={"n": values, "x": values})), max_size=2
            ),
        },
    ),
)


def walked(node: Any, value: Any) -> tuple[bytes, list[Any], list[str]]:
    found = Outcome()
    value = copy.deepcopy(value)
    node(value, None, found)
    return orjson.dumps(value), found.errors, found.unknown


@given(st.lists(st.fixed_dictionaries({"items": st.lists(items, max_size=4)}), max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_walk_finds_what_it_would_have_found_if_it_had_seen_nothing_before(objects: list[Any]) -> None:
    """`NODE` remembers what all the examples had in them; true is not 1, and 1.0 is not 1."""
    for obj in objects:
        assert walked(NODE, obj) == walked(compile_schema(SCHEMA), obj)


def test_an_item_that_was_right_is_not_walked_again() -> None:
    node, item = compile_schema(SCHEMA), {"id": "a", "on": True, "at": "2026-01-02T03:04:05Z"}
    walks = 0

    class Told(dict[str, Any]):
        """Says when somebody looks into it."""

        def items(self) -> Any:
            nonlocal walks
            walks += 1
            return super().items()

    for value, expected in ((item, 1), (item, 1), ({**item, "size": 2}, 2), ({**item, "size": 0}, 3)):
        node({"items": [Told(value)]}, None, Outcome())
        assert walks == expected
    node({"items": [Told(item, size=0)]}, None, Outcome())
    assert walks == 4, "what is wrong is found each time"


def test_items_that_have_changed_or_can_not_be_remembered_are_looked_at_each_time() -> None:
    """As in a patch of a status, with which all the others come again."""
    node = compile_schema(SCHEMA)
    many = [{"id": f"{number:x}", "size": 1} for number in range(200)]
    assert walked(node, {"items": many})[1] == []
    many[150] = {**many[150], "size": 0}
    (error,) = walked(node, {"items": many})[1]
    assert "items[150].size" in str(error)
    for _ in range(2):
        found = Outcome()
        node({"items": [{"id": "long", "size": 1 << 70}]}, None, found)
        assert any("items[0].id" in str(error) for error in found.errors)
        value = {"items": [{"id": "a"}]}
        node(value, None, Outcome())
        assert value == {"items": [{"id": "a", "on": True}]}, "its default is filled in each time"


def test_what_an_older_definition_found_right_the_newer_one_looks_at_again() -> None:
    item = {"id": "a", "size": 7}
    older, newer = copy.deepcopy(SCHEMA), copy.deepcopy(SCHEMA)
    newer["properties"]["items"]["items"]["properties"]["size"]["maximum"] = 5  # type: ignore[index]
    for node, wrong in ((compile_schema(older), 0), (compile_schema(newer), 1), (compile_schema(older), 0)):
        for _ in range(2):
            assert len(walked(node, {"items": [item]})[1]) == wrong


def test_an_item_that_stands_twice_is_told_and_one_that_does_not_is_not() -> None:
    for ids, wrong in ((["a", "b"], 0), (["a", "a"], 1), (["a", "b", "a", "a"], 1), ([1, 1], 3)):
        found = Outcome()
        NODE({"items": [{"id": each} for each in ids]}, None, found)
        assert len(found.errors) == wrong, ids


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_KNOWN_BYTES", 2_000)
    walk = compiler._remembering(lambda _value, _path, _found: None)
    for number in range(200):
        walk({"size": number}, None, Outcome())
    (known,) = [cell.cell_contents for cell in walk.__closure__ or () if isinstance(cell.cell_contents, set)]
    assert 0 < len(known) <= 1 + 2_000 // compiler._ENTRY_BYTES
    walk({"text": "x" * compiler._LONGEST_KNOWN}, None, Outcome())
    assert len(max(known, key=len)) < 100, "what is long is not kept"


def test_what_stands_twice_is_told_however_the_text_is_written() -> None:
    for raw, wanted in (
        (b'{"a":1,"b":{"c":[1,2.5,true]}}', ()),
        (b'{"a": 1, "b": 1}', ()),
        (b'{"a":1,"a":1}', ('duplicate field "a"',)),
        (b'{"a":{"b":1,"b":2}}', ('duplicate field "a.b"',)),
        (b'{"a":1e2,"b":{"x":"\\u0041"},"b":1}', ('duplicate field "b"',)),
        (b'{"n":1180591620717411303424,"n":1}', ('duplicate field "n"',)),
    ):
        assert decode_patch(MERGE_PATCH, raw, strict=True).duplicates == wanted
        assert [f'duplicate field "{path}"' for path in duplicate_fields(raw)] == list(wanted)
        assert decode_patch(MERGE_PATCH, raw).duplicates == ()
