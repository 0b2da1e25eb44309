"""The residue of a conversion: differences of two objects, applied again with guards."""

from __future__ import annotations

import copy
import json
import os
import random
import string
from typing import Any

import orjson
import pytest

from tink.api.annotations import MAX_ANNOTATIONS_BYTES
from tink.api.v1alpha2 import Raw
from tink.versions.residue import (
    MAX_RESIDUE_BYTES,
    MISSING,
    PLAIN,
    UNIT,
    Structure,
    apply,
    closed,
    decode,
    difference,
    encode,
    opened,
    same,
)

OBJECTS = int(os.environ.get("TINKEDGE_VERSIONS_OBJECTS", "300"))
"""Random objects of each property; 100,000 for a long run."""


def _name(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) and name.isalpha() else None


STRUCTURE = Structure(
    {"cards": Structure(item=Structure(), key=_name), "map": Structure(item=Structure({"one": UNIT})), "ref": UNIT}
)


def _value(rng: random.Random, depth: int = 0) -> Any:
    """Return a random JSON value, which often equals another one."""
    if depth < 4 and rng.random() < 0.6:
        if rng.random() < 0.25:
            return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
        return {rng.choice("abc"): _value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return rng.choice([None, True, False, 0, 1, 1.0, -0.0, 0.0, "", "x", "1", [], {}])


def _object(rng: random.Random) -> Raw:
    obj = {key: _value(rng) for key in ("a", "b", "ref", "map", "cards") if rng.random() < 0.5}
    if rng.random() < 0.6:
        obj["cards"] = [_card(rng) for _ in range(rng.randrange(4))]
    if rng.random() < 0.6:
        obj["map"] = {rng.choice("xyz"): _value(rng) for _ in range(rng.randrange(4))}
        if rng.random() < 0.5:
            obj["map"]["x"] = {"one": _value(rng), "two": _value(rng)}
    return obj


def _card(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return _value(rng)
    return {"name": rng.choice(["p", "q", "r", "s", "#0", ""]), "a": _value(rng), "b": _value(rng)}


def _applied(guess: Raw, entries: list[Raw], structure: Structure = STRUCTURE) -> Raw:
    view = opened(copy.deepcopy(guess), structure)
    apply(view, decode(encode(entries)), structure)
    result: Raw = closed(view, structure)
    return result


def _between(truth: Raw, guess: Raw, structure: Structure = STRUCTURE) -> list[Raw]:
    return difference(opened(truth, structure), opened(guess, structure), structure)


@pytest.mark.parametrize("structure", [PLAIN, STRUCTURE], ids=["plain", "collections"])
def test_applied_differences_give_the_other_object(structure: Structure) -> None:
    rng = random.Random(1)
    for _ in range(OBJECTS):
        truth, guess = _object(rng), _object(rng)
        before = copy.deepcopy((truth, guess))
        made = _applied(guess, _between(truth, guess, structure), structure)
        assert same(made, truth), json.dumps([truth, guess, made])
        assert same([*before], [truth, guess])


def test_an_object_differs_from_itself_by_the_order_of_its_lists_alone() -> None:
    rng = random.Random(2)
    for _ in range(OBJECTS):
        truth = _object(rng)
        assert [entry["path"] for entry in _between(truth, copy.deepcopy(truth))] in ([], [["cards", ""]])
        assert _between(truth, copy.deepcopy(truth), PLAIN) == []


def test_differences_do_not_depend_on_the_order_of_fields() -> None:
    rng = random.Random(3)
    for _ in range(OBJECTS):
        truth, guess = _object(rng), _object(rng)
        turned = [dict(reversed(each.items())) for each in (truth, guess)]
        assert encode(_between(truth, guess)) == encode(_between(turned[0], turned[1]))


def test_any_residue_can_be_applied_to_any_object() -> None:
    rng = random.Random(4)
    for _ in range(OBJECTS):
        entries = _between(_object(rng), _object(rng))
        made = _applied(_object(rng), [*entries, {"path": [rng.choice(["", "cards", "map"])] * 3, "to": _value(rng)}])
        assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize(
    ("truth", "guess", "edited", "expected"),
    [
        ({"a": 1}, {"a": 2}, {"a": 3}, {"a": 3}),
        ({}, {"a": 2}, {"a": 3}, {"a": 3}),
        ({"a": 1}, {}, {"a": 3}, {"a": 3}),
        ({"a": 1}, {"a": True}, {"a": 1.0}, {"a": 1.0}),
        ({"a": {"b": 1}}, {}, {"a": "x"}, {"a": "x"}),
        ({"a": "x"}, {}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": {"b": 1, "c": 1}}, {}, {"a": {"b": 2}}, {"a": {"b": 2, "c": 1}}),
        ({"a": {}}, {"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {"b": 2}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": {"b": 1}}, {"a": {}}, {}, {}),
        ({}, {"a": {"b": 1, "c": 1}}, {"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}),
        ({"ref": {"b": 1, "c": 1}}, {"ref": {"b": 1}}, {"ref": {"b": 2}}, {"ref": {"b": 2}}),
        ({"ref": {"b": 1, "c": 1}}, {"ref": {"b": 1}}, {}, {}),
    ],
)
def test_an_edited_field_keeps_its_edit(truth: Raw, guess: Raw, edited: Raw, expected: Raw) -> None:
    assert same(_applied(edited, _between(truth, guess)), expected)


def test_a_removed_item_is_not_revived_by_its_residue() -> None:
    truth = {"map": {"x": {"a": 1, "kept": 1}, "y": {"kept": 2}}}
    entries = _between(truth, {"map": {"x": {"a": 1}, "y": {}}})
    assert _applied({"map": {"y": {}}}, entries) == {"map": {"y": {"kept": 2}}}
    assert _applied({}, entries) == {}


def test_an_item_that_only_one_side_has_returns_whole() -> None:
    entries = _between({"map": {"x": {"a": 1}, "y": {"b": {"c": 1}}}}, {"map": {"x": {"a": 1}}})
    assert _applied({"map": {"z": {}}}, entries) == {"map": {"z": {}, "y": {"b": {"c": 1}}}}
    assert _applied({"map": {"y": {}}}, entries) == {"map": {"y": {}}}


def _cards(*names: str, **fields: Any) -> Raw:
    return {"cards": [{"name": name, **fields} for name in names]}


def test_a_keyed_list_keeps_its_order_and_new_items_come_last() -> None:
    entries = _between(_cards("s", "p", "r"), _cards("p", "r", "s"))
    assert _applied(_cards("q", "r", "s"), entries) == _cards("s", "r", "q")
    assert _applied(_cards("p", "q", "r", "s"), entries) == _cards("s", "p", "r", "q")


def test_new_items_come_last_even_if_the_list_was_in_the_order_of_the_mapping() -> None:
    entries = _between(_cards("q", "r"), _cards("q", "r"))
    assert _applied(_cards("p", "q", "r"), entries) == _cards("q", "r", "p")


def test_an_item_without_a_key_keeps_its_place() -> None:
    truth = {"cards": [{"a": 1}, "text", {"name": "p"}, {"name": "p", "a": 2}]}
    entries = _between(truth, _cards("p"))
    assert _applied(_cards("p"), entries) == truth
    assert _applied(_cards("q"), entries) == {"cards": [{"a": 1}, "text", {"name": "p", "a": 2}, {"name": "q"}]}


def test_a_text_in_the_place_of_a_list_is_carried_until_the_list_changes() -> None:
    structure = Structure({"spec": STRUCTURE})
    entries = _between({"spec": {"cards": "text"}}, {"spec": _cards("p")}, structure)
    assert _applied({"spec": _cards("p")}, entries, structure) == {"spec": {"cards": "text"}}
    assert _applied({"spec": _cards("q")}, entries, structure) == {"spec": _cards("q")}


def test_a_mapping_in_the_place_of_a_list_is_carried() -> None:
    truth = {"cards": {"": ["p"], "p": {}}}
    assert _applied(_cards("p"), _between(truth, _cards("p"))) == truth
    assert _applied({}, _between(truth, {})) == truth


def test_a_long_residue_is_compressed() -> None:
    entries = [{"path": ["a"], "to": "x" * (300 << 10)}]
    text = encode(entries)
    assert text.startswith("gzip:")
    assert len(text) < 2000
    assert text == encode(entries)
    assert decode(text) == entries


def test_a_residue_and_the_annotation_of_kubectl_apply_fit_into_one_object() -> None:
    """`kubectl apply` stores the same fields in an annotation of its own."""
    entries = [{"path": ["a"], "to": "x" * (MAX_ANNOTATIONS_BYTES // 2)}]
    assert len(encode(entries)) < MAX_ANNOTATIONS_BYTES // 4 + 1000


def test_a_residue_that_unpacks_to_more_than_a_request_is_ignored() -> None:
    assert decode(encode([{"path": ["a"], "to": "x" * MAX_RESIDUE_BYTES}])) == []


def test_residue_has_the_short_documented_form() -> None:
    truth, guess = {"a": {"b": False}, "n": 1}, {"a": {"b": True}, "o": 2}
    assert orjson.loads(encode(_between(truth, guess))) == [
        {"from": True, "path": ["a", "b"], "to": False},
        {"path": ["n"], "to": 1},
        {"from": 2, "path": ["o"]},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[", "{}", "null", "[1]", '[{"to": 1}]', '[{"path": [], "to": 1}]', '[{"path": [1], "to": 1}]',
        '[{"path": ["a"]}]', '[{"path": "a", "to": 1}]', "gzip:", "gzip:x", "gzip:AAAA", "\ud800",
        json.dumps([{"path": ["a"] * 17, "to": 1}]), '[{"path": ["a"], "to": ' + "[" * 250 + "]" * 250 + "}]",
        None, 1, ["a"],
    ],
)  # fmt: skip
def test_an_annotation_that_is_no_residue_has_no_entries(text: Any) -> None:
    assert decode(text) == []


def test_a_deep_object_is_carried() -> None:
    deep: Any = "end"
    for letter in string.ascii_lowercase * 4:
        deep = {letter: deep}
    assert _applied({"a": {"z": {"y": 1}}}, _between({"a": deep}, {"a": {"z": {"y": 1}}})) == {"a": deep}


def test_missing_equals_no_value() -> None:
    assert not same(MISSING, None)
    assert same(MISSING, MISSING)
    assert repr(MISSING) == "MISSING"
