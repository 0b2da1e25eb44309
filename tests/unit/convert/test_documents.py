"""Documents: every readable one is read, and every written one is read back with the same meaning and its comments."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.api import reference_yaml
from tink.api import yaml as kubernetes_yaml
from tink.api.v1alpha2 import Raw
from tink.api.yaml import MAX_BYTES, YamlError
from tink.convert.documents import (
    Converted,
    InputDocument,
    collect,
    file_name,
    json_text,
    read,
    write_whole,
    yaml_document,
)
from tink.convert.findings import ConversionFinding, FindingKind, ObjectPlace
from tink.convert.run import convert_documents

JSON = '{"apiVersion": "v1", "kind": "K", "metadata": {"name": "a"}, "x": '
GOOD = "apiVersion: v1\nkind: Good\nmetadata: {name: %s}\n"


def found(text: str | bytes, file: str = "in.yaml") -> list[InputDocument | ConversionFinding]:
    return list(read(file, text.encode() if isinstance(text, str) else text))


def names(text: str | bytes, file: str = "in.yaml") -> list[str]:
    """Return the names of the documents, and `document path: reason` of the findings."""
    return [
        each.obj["metadata"]["name"]
        if isinstance(each, InputDocument)
        else f"{each.source.document} {each.path}: {each.reason}".replace(" : ", ": ")
        for each in found(text, file)
    ]


def error(text: str | bytes, file: str = "in.yaml") -> ConversionFinding:
    (finding,) = found(text, file)
    assert isinstance(finding, ConversionFinding)
    assert finding.kind is FindingKind.ERROR
    return finding


# --- streams


@pytest.mark.parametrize(
    "stream",
    [
        "{a}---\n{b}",
        "---\n{a}---\n{b}",
        "# head\n---\n{a}---\n{b}",
        "%YAML 1.1\n---\n{a}...\n%YAML 1.1\n# and\n---\n{b}",
        "--- # first\n{a}--- # second\n{b}...\n",
        "{a}---\n---\n# nothing\n---\n{b}---\n",
        "\ufeff{a}---\n{b}",
        "{a}--- {{apiVersion: v1, kind: K, metadata: {{name: b}}}}\n",
    ],
)
def test_every_way_to_part_documents_gives_them_all(stream: str) -> None:
    assert names(stream.format(a=GOOD % "a", b=GOOD % "b")) == ["a", "b"]
    crlf = stream.format(a=GOOD % "a", b=GOOD % "b").replace("\n", "\r\n")
    assert names(crlf) == ["a", "b"]


def test_documents_are_counted_as_a_person_would() -> None:
    text = "# head\n---\n" + GOOD % "a" + "---\n\n---\n" + GOOD % "b" + "...\n---\n" + GOOD % "c" + "---\n" + GOOD % "d"
    assert [*zip(names(text), [each.source.document for each in found(text)], strict=True)] == [
        *zip("abcd", (1, 3, 4, 5), strict=True)
    ]


@pytest.mark.parametrize(
    ("broken", "line", "word"),
    [
        ("a: [\n", 0, "expected"),
        ("a: 1\nb: 2\n\ta: 3\n", 3, ""),
        ("a: 1\na: 2\n", 2, "given twice"),
        ("x: y\na: *nobody\n", 2, "undefined alias"),
        ("a: 1\nb: &a\n- *a\n", 3, "contains itself"),
        ("a: .inf\n", 1, "JSON"),
        ("a: 1e999\n", 1, "too large"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        ("a: !!int x\n", 1, "tag"),
        ("{[a]: b}\n", 1, "key"),
        ("a: {<<: 1}\n", 1, "<<"),
        ("a: \x01\n", 0, ""),
        ("a: '\n", 0, ""),
        ("a: " + "[" * 101 + "]" * 101 + "\n", 0, "deeper"),
        (JSON + "[" * 200 + "]" * 200 + "}\n", 0, "deeper"),
        ("[" * 200_000 + "\n", 0, "deeper"),
        ("".join("- " * i + "a:\n" for i in range(1, 99)), 0, ""),
    ],
)
def test_broken_document_is_named_with_its_line_and_its_neighbours_are_read(broken: str, line: int, word: str) -> None:
    text = GOOD % "a" + "---\n" + broken + "---\n" + GOOD % "b"
    first, finding, last = found(text)
    assert isinstance(finding, ConversionFinding)
    assert (finding.kind, finding.source.document, finding.source.file) == (FindingKind.ERROR, 2, "in.yaml")
    assert word in finding.reason
    if line:
        assert f"line {4 + line}: " in finding.reason
    assert [each.obj["metadata"]["name"] for each in (first, last)] == ["a", "b"]  # type: ignore[union-attr]


def test_files_of_powershell_are_read_and_bytes_that_are_no_text_are_named_with_their_line() -> None:
    for code in ("utf-16", "utf-8-sig"):
        assert names((GOOD % "a" + "---\n" + GOOD % "b").encode(code)) == ["a", "b"]
    content = (GOOD % "a" + "---\n").encode() + b"a: b\nc: \xff\n---\n" + (GOOD % "b").encode()
    assert names(content) == ["a", "2: line 6: not UTF-8 (byte 0xff)", "b"]
    assert "UTF-16" in error((GOOD % "a").encode("utf-16")[:-1]).reason
    assert "line 3: " in error("a: \xa0\nb: c\nd: e\0f\n").reason


def test_few_bytes_of_aliases_do_not_fill_memory() -> None:
    pairs = zip("abcdefgh", "bcdefghi", strict=True)
    bomb = "a: &a [0,0,0,0,0,0,0,0,0]\n" + "\n".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]" for a, b in pairs)
    assert "values" in error(bomb).reason
    merged = "a: &a {x: 1}\n" + "".join(f"{b}: &{b} {{p: *{a}, q: *{a}}}\n" for a, b in zip("abc", "bcd", strict=True))
    assert "apiVersion" in error(merged).path, "a few aliases are fine"


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ("- a\n", "", "must be a Kubernetes object, is a list"),
        ("x\n", "", "must be a Kubernetes object, is a string"),
        ("7\n", "", "must be a Kubernetes object, is a number"),
        ("yes\n", "", "must be a Kubernetes object, is a boolean"),
        ("kind: K\nmetadata: {name: a}\n", "apiVersion", ""),
        ("apiVersion: 1\nkind: K\nmetadata: {name: a}\n", "apiVersion", ""),
        ("apiVersion: v1\nmetadata: {name: a}\n", "kind", ""),
        ("apiVersion: v1\nkind: ''\nmetadata: {name: a}\n", "kind", ""),
        ("apiVersion: v1\nkind: K\n", "metadata", ""),
        ("apiVersion: v1\nkind: K\nmetadata: []\n", "metadata", ""),
        ("apiVersion: v1\nkind: K\nmetadata: {}\n", "metadata.name", ""),
        (GOOD % "012", "metadata.name", "put it in quotes"),
        ("apiVersion: v1\nkind: K\nmetadata: {name: a, namespace: 7}\n", "metadata.namespace", ""),
        ("apiVersion: v1\nkind: K\nmetadata: {name: a, namespace: a.b}\n", "metadata.namespace", "no API server takes"),
        *(
            (GOOD % name, "metadata.name", "no API server takes")
            for name in ('"../../x"', "a/b", "UPPER", '"a\\nb"', "é", "-a", "l" * 254, "a/status")
        ),
    ],
)
def test_document_that_is_no_object_of_an_api_is_named_with_the_field(text: str, path: str, reason: str) -> None:
    finding = error(text)
    assert (finding.path, finding.source.document) == (path, 1)
    assert reason in finding.reason
    assert len(finding.reason) < 250


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n\n", "# only a comment\n", "---\n", "null\n", "---\n...\n---\n"),
        *(f"apiVersion: v1\nkind: List\n{items}\n" for items in ("", "items: null", "items: []")),
    ],
)
def test_nothing_is_nothing(text: str) -> None:
    assert found(text) == []


# --- JSON and Lists


def obj(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Good", "metadata": {"name": name}, **more}


def test_json_is_read_alone_in_a_row_and_with_tabs() -> None:
    assert names(json.dumps(obj("a")), "in.json") == ["a"]
    assert names(json.dumps(obj("a"), indent="\t") + "\n" + json.dumps(obj("b"))) == ["a", "b"]
    assert names("{apiVersion: v1, kind: K, metadata: {name: a}}\n---\n" + GOOD % "b") == ["a", "b"]


@pytest.mark.parametrize("broken", ['{"a": ', '{"a": NaN}', '{"a": "\\ud800"}', "{" + '"a": {' * 100_000])
def test_broken_json_is_named_with_its_line_and_the_next_object_is_read(broken: str) -> None:
    found = names(f"{json.dumps(obj('a'))}\n{broken}\n{json.dumps(obj('b'))}", "in.json")
    assert (found[0], found[-1]) == ("a", "b")
    assert "not JSON: line " in found[1]


def test_repeated_key_in_json_is_an_error_as_in_yaml() -> None:
    twice = '{"apiVersion": "v1", "kind": "K", "metadata": {"name": "a", "labels": {"x": "1", "x": "2"}}}'
    assert "line 1: in the value that begins there, key 'x' is given twice" in error(twice, "in.json").reason
    assert "key 'x' is given twice" in error(twice, "in.yaml").reason


def test_list_is_split_and_items_keep_their_places() -> None:
    inner = {"apiVersion": "v1", "kind": "List", "items": [obj("b"), 5]}
    outer = {**inner, "metadata": {"resourceVersion": ""}, "items": [obj("a"), inner, {}, obj("c")]}
    found = list(read("in.json", orjson.dumps(outer)))
    places = [(each.prefix if isinstance(each, InputDocument) else each.path) for each in found]
    assert places == ["items[0]", "items[1].items[0]", "items[1].items[1]", "items[2].apiVersion", "items[3]"]
    assert {each.source.document for each in found} == {1}


def test_list_as_the_api_answers_it_gives_its_items_their_kind() -> None:
    items = "[{metadata: {name: a}}, {kind: Other, metadata: {name: b}}]"
    one, two = found(f"apiVersion: tinkerbell.org/v1alpha1\nkind: HardwareList\nitems: {items}")
    assert isinstance(one, InputDocument)
    assert isinstance(two, InputDocument)
    assert (one.obj["apiVersion"], one.obj["kind"]) == ("tinkerbell.org/v1alpha1", "Hardware")
    assert two.obj["kind"] == "Other"


def test_nested_lists_have_a_maximum_depth() -> None:
    nested: Any = obj("a")
    for _ in range(150):
        nested = {"apiVersion": "v1", "kind": "List", "items": [nested]}
    assert "deeper" in error(json.dumps(nested), "in.json").reason


# --- size


def test_object_larger_than_an_api_server_takes_is_named_with_its_largest_field_though_a_list_may_be_larger() -> None:
    finding = error(GOOD % "big" + "spec:\n  small: x\n  data: |\n    " + "x" * 10_000_000 + "\n")
    assert (finding.path, finding.source.name) == ("spec.data", "big")
    assert str(MAX_BYTES) in finding.reason
    items = [obj(f"n{index}", data="x" * 1_000_000) for index in range(5)] + [obj("big", data=["x" * 2_000_000] * 2)]
    found = list(read("in.json", orjson.dumps({"apiVersion": "v1", "kind": "List", "items": items})))
    assert [isinstance(each, InputDocument) for each in found] == [True] * 5 + [False]
    assert isinstance(found[-1], ConversionFinding)
    assert found[-1].path == "items[5].data[0]"


# --- the same as kubectl


def attempted(read: Callable[[str], Any], text: str) -> Any:
    try:
        return list(read(text))
    except (YamlError, reference_yaml.RefusedError):
        return YamlError


_PIECES = st.sampled_from(
    ["a", "b: ", "- ", "? ", "\n", "  ", " ", ": ", "[", "]", "{", "}", ", ", "'", '"', "|\n", ">-\n", "&x ", "*x",
     "<<: ", "1", "0x1F", "0o7", "1e3", "yes", "~", "null", "52:54:00:12:34:56", "2001-01-01", ".5", "+", "-", "0", "_",
     "!!str ", "!!int ", "# c\n", "---\n", "...\n", "\t", "é", "08", "0b1", "=", "\\"]
)  # fmt: skip


@pytest.mark.parametrize("text", ["{<<: *x, b: own}", "{b: own, <<: *x}", "{<<: [*x, {b: late, c: 3}], b: own}"])
def test_merged_key_does_not_replace_the_own_one(text: str) -> None:
    text = f"d: &x {{b: merged, c: 2}}\ne: {text}\n"
    assert next(iter(kubernetes_yaml.read(text)))["e"] == {"b": "own", "c": 2}


@settings(max_examples=500, deadline=None)
@given(st.lists(_PIECES, max_size=14).map("".join))
def test_values_equal_what_kubectl_reads(text: str) -> None:
    expected, found = (attempted(reader, text) for reader in (reference_yaml.documents, kubernetes_yaml.read))
    if found is YamlError or expected is YamlError or "!!" in text:
        return  # what is refused may differ (collections as keys, tags); nothing may raise anything else
    assert repr(found) == repr(expected)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_bring_the_reader_down(content: bytes) -> None:
    for each in read("in.yaml", content):
        assert isinstance(each, InputDocument | ConversionFinding)
    for each in read("in.json", b"{" + content):
        assert isinstance(each, InputDocument | ConversionFinding)


def written(obj: Raw) -> str:
    return yaml_document(Converted(obj))


_TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(st.sampled_from("ab01:-#'\"\\ \n\t\r{}[],&*!|>%@`?=~yn.+_\x85\u2028\ufeff\U0001f600\x7f\x00"), max_size=10),
    st.sampled_from(["yes", "No", "null", "~", "", "1e3", "0x1F", "0o17", "1_000", "12:30:45", "2001-01-01", ".inf",
                     "=", "<<", "a: b", "a #b", "- a", "---", "...", "a\n", "a\n\n", "\na", " a\nb", "a\n b\n", "  \na",
                     "a \nb", "y", "52:54:00:12:34:56"]),
)  # fmt: skip
_VALUES = st.recursive(
    st.one_of(
        _TEXTS, st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(_TEXTS, _VALUES, max_size=3))
def test_written_yaml_is_read_back_by_kubernetes_rules_and_by_yaml_1_1(obj: Raw) -> None:
    text = written(obj)
    assert list(kubernetes_yaml.documents(text)) == [obj]
    assert list(yaml.load_all(text, Loader=yaml.CSafeLoader)) == [obj]
    assert json.loads(json_text(obj)) == obj


def test_user_data_stays_readable_and_macs_are_quoted() -> None:
    obj = {"userdata": "#cloud-config\na: b\n", "mac": "52:54:00:12:34:56", "ip": "10.0.0.1"}
    obj |= {"url": "http://a/b?c", "n": "1"}
    assert written(obj) == (
        "---\nuserdata: |\n  #cloud-config\n  a: b\n"
        'mac: "52:54:00:12:34:56"\nip: 10.0.0.1\nurl: "http://a/b?c"\n"n": "1"\n'
    )


# --- comments


def test_comments_of_one_document_stay_out_of_the_others() -> None:
    secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: %s}\n"
    text = "# a\n" + secret % "a" + secret % "b" + "# b\n"
    first, second = (yaml_document(each) for each in convert_documents(read("in.yaml", text.encode())).converted)
    assert first.startswith("---\n# a\napiVersion")
    assert "# b" not in first
    assert second.endswith("name: b\n# b\n")


_LINES = st.lists(
    st.sampled_from(
        ["# c1", "a: b", "a: b # c2", "l:", "- x", "- x: y # c3", "  k: v", "  # c4", "  t: |", "    text # no",
         "    # no", "q: 'x # no", "  # no'", "f: {a: b} # c5", "g: [1, # c6", "  2] # c7", "", "? k # c8", ": v",
         "e: *x", "n: &x {y: 1}"]
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(_LINES)
def test_comments_change_no_value_and_stay_when_written_again(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    try:
        (obj,) = kubernetes_yaml.documents(text)
    except ValueError:
        return
    if not isinstance(obj, dict):
        return
    source = ObjectPlace("in.yaml", 1)
    once = yaml_document(Converted(obj, InputDocument(source, obj, text=text)))
    assert list(kubernetes_yaml.documents(once)) == [obj]
    kept = sorted(comment.text for comment in collect(text))
    assert sorted(comment.text for comment in collect(once)) == kept
    twice = yaml_document(Converted(obj, InputDocument(source, obj, text=once)))
    assert twice == once


# --- files


def test_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.yaml"
    path.write_text("before")
    path.chmod(0o640)

    def texts() -> Any:
        yield "half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(path, texts())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, ["after", "wards"])
    assert path.read_text() == "afterwards"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", ["x"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_objects_of_any_name_are_written_into_the_directory_and_no_two_into_one_file() -> None:
    assert file_name({"kind": "OSIE", "metadata": {"name": "x"}}, ".json") == "osie-default-x.json"
    objects: list[Any] = [("K", "a-b", "c"), ("K", "a", "b-c"), ("K-a", "b", "c")]
    objects += [("K", None, name) for name in ("a_b", "a/b", "A_b")]
    objects += [("K", "../x", name) for name in ("../../etc/passwd", "a/b", "..", "x" * 1000, "\0", "é")]
    files = {
        file_name({"kind": kind, "metadata": {"name": name, "namespace": namespace}}, ".yaml")
        for kind, namespace, name in objects
    }
    assert len(files) == len(objects)
    assert all(file.startswith("k-") and len(file.encode()) < 255 and not {*"/\0"} & {*file} for file in files)
