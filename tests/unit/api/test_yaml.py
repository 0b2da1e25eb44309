"""YAML means the same here as for kubectl (facts: the column of go-yaml v2)."""

from __future__ import annotations

from typing import Any

import pytest

from tink.api.yaml import YamlError, documents, objects


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("52:54:00:12:34:56", "52:54:00:12:34:56"),  # PyYAML: 41135085296
        ("2001-01-01", "2001-01-01"),  # PyYAML: a date
        *(("12:30:45", "12:30:45"), ('"007"', "007"), ("1.2.3", "1.2.3"), ("172.31.77.1", "172.31.77.1")),
        *(("1e3", 1000), ("0123e4", 1230000), ("08", 8), ("0o17", 15), ("0123", 83), ("0x1F", 31), ("0b11", 3)),
        *(("1_000", 1000), ("-7", -7), ("+5", 5), ("1.5", 1.5)),
        *(("no", False), ("y", True), ("On", True), ("~", None), ("null", None)),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: Any) -> None:
    (document,) = documents(f"- {text}")
    assert document == [value]
    assert type(document[0]) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("52:54:00:12:34:56:\n  dhcp: {ip: 10.0.0.1}", {"52:54:00:12:34:56": {"dhcp": {"ip": "10.0.0.1"}}}),
        ("1: a\ntrue: b\n~: c", {"1": "a", "true": "b", "null": "c"}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
    ],
    ids=["mac", "no-strings", "merged"],
)
def test_keys_are_strings_and_merged(text: str, value: Any) -> None:
    assert list(documents(text)) == [value]


PAIRS = zip("abcdefgh", "bcdefghi", strict=True)
HOSTILE = {
    "unfinished": "a: [",
    "double-key": "a: 1\na: 2",
    "infinity": "a: .inf",
    "cycle": "a: &a [*a]",
    "python-tag": "!!python/object/apply:os.system [ls]",
    "deep": "[" * 101 + "]" * 101,
    "deeper": "[" * 1_000_000 + "]" * 1_000_000,
    "maps": "{a: " * 2000 + "}" * 2000,
    "laughs": "a: &a [0,0,0,0,0,0,0,0,0]\n" + "\n".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]" for a, b in PAIRS),
    "too-large": " " * (3 * 1024 * 1024 + 1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused(name: str) -> None:
    with pytest.raises(YamlError):
        list(documents(HOSTILE[name]))


def test_objects_takes_lists_apart_and_names_a_document_without_kind_by_its_number() -> None:
    text = "---\n---\napiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: A}]\n---\napiVersion: v1\nkind: B\n"
    assert [o["kind"] for o in objects(text)] == ["A", "B"]
    with pytest.raises(YamlError, match="document 2"):
        objects("apiVersion: v1\nkind: A\n---\nfoo: bar\n")


def test_what_a_merge_brings_gives_way_to_the_mappings_own_keys() -> None:
    text = "base: &x {a: 1, b: 2}\nother: &y {b: 3, c: 4}\nmine: {<<: [*x, *y], b: own}\nlast: {b: own, <<: *x}\n"
    (found,) = documents(text)
    assert (found["base"], found["other"]) == ({"a": 1, "b": 2}, {"b": 3, "c": 4})
    assert (found["mine"], found["last"]) == ({"a": 1, "b": "own", "c": 4}, {"a": 1, "b": "own"})
    with pytest.raises(YamlError, match="given twice"):
        list(documents("base: &x {a: 1}\nmine: {<<: *x, b: 1, b: 2}\n"))
