"""Compiled schemas: pruning, defaulting and checking in one walk, and the cache of valid items."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tink.api.crds import generate
from tink.kubeapi.apiserver.media import MERGE_PATCH, decode_patch
from tink.kubeapi.apiserver.serializer import duplicate_fields
from tink.kubeapi.schema import definition_schemas, structural
from tink.kubeapi.schema.field_errors import MAX_ERRORS, WalkResult
from tink.kubeapi.schema.structural import compile_schema, root_schema


def walk(schema: dict[str, Any], value: Any) -> tuple[Any, list[str], list[str]]:
    found = WalkResult()
    compile_schema(schema)(value, None, found)
    return value, [str(error) for error in found.errors], found.unknown


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def errors_of(schema: dict[str, Any], value: Any) -> list[str]:
    return walk(obj(a=schema), {"a": value})[1]


def test_unknown_fields_are_dropped_and_reported_at_every_depth() -> None:
    schema = obj(a={"type": "array", "items": obj(b={"type": "string"})})
    value, errors, unknown = walk(schema, {"x": 1, "a": [{"b": "1", "y": 2}]})
    assert value == {"a": [{"b": "1"}]}
    assert (errors, unknown) == ([], ["x", "a[0].y"])


def test_unknown_fields_stay_where_the_schema_preserves_them() -> None:
    schema = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"a": obj(b={"type": "string"})},
    }
    value, _, unknown = walk(schema, {"x": {"y": 1}, "a": {"z": 1}})
    assert value == {"x": {"y": 1}, "a": {}}
    assert unknown == ["a.z"]
    value, _, unknown = walk({"type": "object", "additionalProperties": {"type": "integer"}}, {"x": 1})
    assert (value, unknown) == ({"x": 1}, [])


def test_defaults_replace_absent_and_null_fields_of_existing_objects() -> None:
    schema = obj(a=obj(n={"type": "integer", "default": 3}), b=obj(n={"type": "integer", "default": 3}))
    value, errors, _ = walk(schema, {"a": {"n": None}})
    assert (value, errors) == ({"a": {"n": 3}}, [])
    with_parent = obj(a={**obj(n={"type": "integer", "default": 3}), "default": {}})
    first, second = walk(with_parent, {})[0], walk(with_parent, {})[0]
    assert first == {"a": {"n": 3}}
    assert first["a"] is not second["a"]


def test_null_stays_only_where_the_schema_allows_it() -> None:
    schema = obj(a={"type": "string"}, b={"type": "string", "nullable": True})
    assert walk(schema, {"a": None, "b": None}) == ({"b": None}, [], [])


DUPLICATES = {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}
LIST = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "value", "errors"),
    [
        *(
            ({"type": kind}, value, [f'Invalid value: "{found}": a in body must be of type {kind}: "{found}"'])
            for kind, value, found in (
                ("string", 1, "integer"),
                ("integer", "1", "string"),
                ("integer", True, "boolean"),
                ("object", [], "array"),
            )
        ),
        (
            {"type": "integer"},
            1.5,
            [
                'Invalid value: "number": a in body must be of type integer: "number"',
                '<nil>: Invalid value: "": Checked value must be of type integer (default format) in a',
            ],
        ),
        ({"type": "string", "enum": ["x", "y"]}, "z", ['Unsupported value: "z": supported values: "x", "y"']),
        ({"type": "string", "pattern": "^x"}, "y", ["Invalid value: \"y\": a in body should match '^x'"]),
        ({"type": "string", "minLength": 2}, "y", ['Invalid value: "y": a in body should be at least 2 chars long']),
        ({"type": "string", "maxLength": 2}, "yyy", ["Too long: may not be more than 2 bytes"]),
        ({"type": "integer", "minimum": 0}, -1, ["Invalid value: -1: a in body should be greater than or equal to 0"]),
        (
            {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            0,
            ["Invalid value: 0: a in body should be greater than 0"],
        ),
        ({"type": "integer", "maximum": 9}, 10, ["Invalid value: 10: a in body should be less than or equal to 9"]),
        ({"type": "integer", "multipleOf": 5}, 7, ["Invalid value: 7: a in body should be a multiple of 5"]),
        ({**LIST, "minItems": 1}, [], ["Invalid value: 0: a in body should have at least 1 items"]),
        ({**LIST, "maxItems": 1}, ["1", "2"], ["Too many: 2: must have at most 1 item"]),
        ({"type": "object", "minProperties": 1}, {}, ["Invalid value: 0: a in body should have at least 1 properties"]),
        (
            {"type": "string", "format": "date-time"},
            "today",
            ['Invalid value: "today": a in body must be of type date-time: "today"'],
        ),
        (DUPLICATES, ["x", "x"], ['a[1]: Duplicate value: "x"']),
        (LIST, [None], ['a[0]: Invalid value: "null": a[0] in body must be of type string: "null"']),
        (
            {"type": "string", "not": {"enum": ["x"]}},
            "x",
            ['<nil>: Invalid value: "": "a" must not validate the schema (not)'],
        ),
    ],
)
def test_error_messages_are_those_of_kubernetes(schema: dict[str, Any], value: Any, errors: list[str]) -> None:
    named = [error if error.startswith(("a", "<nil>")) else f"a: {error}" for error in errors]
    assert errors_of(schema, value) == named


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"enum": [1], "x-kubernetes-preserve-unknown-fields": True}, True),
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 50_000 + "!"),  # backtracking engines hang
    ],
    ids=["true is not one", "pattern"],
)
def test_invalid_values_are_rejected(schema: dict[str, Any], value: Any) -> None:
    assert errors_of(schema, value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 2.0),
        ({"type": "number"}, 1),
        ({"x-kubernetes-int-or-string": True}, "80%"),
        ({"x-kubernetes-int-or-string": True}, 80),
        ({"type": "string", "format": "date-time"}, "2026-11-21T09:00:00.123456Z"),
        ({"type": "string", "format": "never-heard-of"}, "x"),
        ({"type": "string", "pattern": "b+"}, "abbc"),
        ({"type": "string", "maxLength": 1}, "é"),
        ({"type": "integer", "enum": [1]}, 1),
        ({"x-kubernetes-preserve-unknown-fields": True}, {"any": [None]}),
        ({"type": "string", "anyOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "bc"),
    ],
)
def test_valid_values_are_accepted(schema: dict[str, Any], value: Any) -> None:
    assert errors_of(schema, value) == []


def test_all_errors_are_reported_up_to_the_maximum() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert len(errors_of(schema, ["x"] * 3)) == 3
    assert len(errors_of(schema, ["x"] * 10_000)) == MAX_ERRORS


def test_combined_schemas_only_check_values() -> None:
    schema = obj(
        a={
            **obj(x={"type": "string"}, y={"type": "string"}),
            "oneOf": [{"required": ["x"]}, {"required": ["y"]}],
        }
    )
    assert walk(schema, {"a": {"x": "1"}}) == ({"a": {"x": "1"}}, [], [])
    assert "Found none valid" in walk(schema, {"a": {}})[1][0]
    assert "Found 2 valid alternatives" in walk(schema, {"a": {"x": "", "y": ""}})[1][0]


def test_our_own_definitions_are_structural() -> None:
    for definition in generate():
        assert (
            definition_schemas.check_structural(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "")
            == []
        )


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
_HARDWARE = compile_schema(root_schema(generate()[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
_FIELDS = st.sampled_from(["networkInterfaces", "osie", "ipxe", "storageDevices", "kernelParams", "instance", "x"])


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        _FIELDS, _JSON | st.dictionaries(st.text(), st.dictionaries(st.sampled_from(["dhcp", "disableDhcp"]), _JSON))
    )
)
def test_walk_handles_any_value_and_a_second_walk_changes_nothing(spec: Any) -> None:
    value = {"metadata": {}, "spec": spec}
    first, second = WalkResult(), WalkResult()
    _HARDWARE(value, None, first)
    before = repr(value)
    _HARDWARE(value, None, second)
    assert repr(value) == before
    assert not second.unknown
    assert [str(error) for error in second.errors] == [str(error) for error in first.errors]


# --- the cache must not change the result of a walk, nor grow without limit

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
    found = WalkResult()
    value = copy.deepcopy(value)
    node(value, None, found)
    return orjson.dumps(value), found.errors, found.unknown


@given(st.lists(st.fixed_dictionaries({"items": st.lists(items, max_size=4)}), max_size=6))
@settings(max_examples=150, deadline=None)
def test_cache_does_not_change_the_result_of_a_walk(objects: list[Any]) -> None:
    """`NODE` has cached the items of all earlier examples. true is not 1, and 1.0 is not 1."""
    for obj in objects:
        assert walked(NODE, obj) == walked(compile_schema(SCHEMA), obj)


def test_valid_item_is_not_walked_again() -> None:
    node, item = compile_schema(SCHEMA), {"id": "a", "on": True, "at": "2026-01-02T03:04:05Z"}
    walks = 0

    class Observed(dict[str, Any]):
        """Counts the walks over its items."""

        def items(self) -> Any:
            nonlocal walks
            walks += 1
            return super().items()

    for value, expected in ((item, 1), (item, 1), ({**item, "size": 2}, 2), ({**item, "size": 0}, 3)):
        node({"items": [Observed(value)]}, None, WalkResult())
        assert walks == expected
    node({"items": [Observed(item, size=0)]}, None, WalkResult())
    assert walks == 4, "an invalid item is reported each time"


def test_changed_items_and_items_too_long_for_the_cache_are_walked_each_time() -> None:
    """Like a patch of a status, which sends all other items again."""
    node = compile_schema(SCHEMA)
    many = [{"id": f"{number:x}", "size": 1} for number in range(200)]
    assert walked(node, {"items": many})[1] == []
    many[150] = {**many[150], "size": 0}
    (error,) = walked(node, {"items": many})[1]
    assert "items[150].size" in str(error)
    for _ in range(2):
        found = WalkResult()
        node({"items": [{"id": "long", "size": 1 << 70}]}, None, found)
        assert any("items[0].id" in str(error) for error in found.errors)
        value = {"items": [{"id": "a"}]}
        node(value, None, WalkResult())
        assert value == {"items": [{"id": "a", "on": True}]}, "its default is filled in each time"


def test_newer_definition_does_not_use_the_cache_of_the_older_one() -> None:
    item = {"id": "a", "size": 7}
    older, newer = copy.deepcopy(SCHEMA), copy.deepcopy(SCHEMA)
    newer["properties"]["items"]["items"]["properties"]["size"]["maximum"] = 5  # type: ignore[index]
    for node, wrong in ((compile_schema(older), 0), (compile_schema(newer), 1), (compile_schema(older), 0)):
        for _ in range(2):
            assert len(walked(node, {"items": [item]})[1]) == wrong


def test_repeated_item_is_reported() -> None:
    for ids, wrong in ((["a", "b"], 0), (["a", "a"], 1), (["a", "b", "a", "a"], 1), ([1, 1], 3)):
        found = WalkResult()
        NODE({"items": [{"id": each} for each in ids]}, None, found)
        assert len(found.errors) == wrong, ids


def test_cache_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structural, "_MAX_CACHED_BYTES", 2_000)
    walk = structural._caching(lambda _value, _path, _found: None)
    for number in range(200):
        walk({"size": number}, None, WalkResult())
    (known,) = [cell.cell_contents for cell in walk.__closure__ or () if isinstance(cell.cell_contents, set)]
    assert 0 < len(known) <= 1 + 2_000 // structural._ENTRY_BYTES
    walk({"text": "x" * structural._MAX_CACHED_TEXT}, None, WalkResult())
    assert len(max(known, key=len)) < 100, "what is long is not kept"


def test_duplicate_fields_are_reported_however_the_text_is_written() -> None:
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
