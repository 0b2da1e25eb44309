"""Template in both served versions: the text that is kept, the actions that show it, and the one that counts."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest

from tests.unit.versions.properties import (
    OBJECTS,
    check_down_and_up,
    check_up_and_down,
    damaged,
    partial,
    random_objects,
    refusals,
    without_residue,
)
from tests.unit.versions.rendering import CORPORA, cases, objects_of
from tink.api.annotations import (
    INCOMPLETE_ANNOTATION,
    TEMPLATE_TEXT_ANNOTATION,
    V1ALPHA1_ANNOTATION,
    V1ALPHA2_ANNOTATION,
)
from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, ObjectPlace
from tink.convert.v1alpha1 import actions_of
from tink.convert.v1alpha1.template_text import read as read_text
from tink.convert.v1alpha1.template_text import read_written
from tink.template import parse_fields
from tink.versions import NEW, OLD, convert, text_of
from tink.versions.rendering import render
from tink.versions.template import MAX_PLAIN_BYTES, MAX_SHOWN_CHARACTERS, written

TEXT = """\
version: "0.1"
name: ubuntu
global_timeout: 1800
tasks:
  - name: "os"   # a comment
    worker: "{{.device_1}}"
    volumes: [/dev:/dev]
    actions:
      - name: stream
        image: quay.io/tinkerbell/actions/image2disk:latest
        timeout: 600
        environment: {DEST_DISK: '{{ index .Hardware.Disks 0 }}', IMG_URL: "{{ .url }}"}
"""
SHOWN: Raw = {
    "actions": [
        {
            "name": "stream",
            "image": "quay.io/tinkerbell/actions/image2disk:latest",
            "env": {"DEST_DISK": "{{ index .Hardware.Disks 0 }}", "IMG_URL": "{{ .Params.url }}"},
            "timeout": 600,
        }
    ],
    "volumes": ["/dev:/dev"],
}
NATIVE: Raw = {
    "actions": [
        {
            "name": "a b",
            "image": "i:1",
            "args": [
                "x",
                "",
                "~",
                "null",
                "{{ .Params.x }}",
                'it\'s "{{ printf `%s` $.Params.y }}"',
                '{{ printf "o\'clock %s" .Params.x }}',
                "a\nb\n",
                "0600",
            ],
            "env": {"A": "yes", "B": "é\t"},
            "volumes": ["/a:/b:ro"],
            "networkNamespace": "host",
            "timeout": 5,
        },
        {"name": "reboot", "image": "r", "reboots": True},
    ],
    "volumes": ["/dev:/dev"],
    "env": {"X": "{{ .Params.z }}"},
}
"""A spec whose fields v1alpha1 has, too."""


def old(data: Any, annotations: Raw | None = None) -> Raw:
    metadata: Raw = {"name": "t", "namespace": "n", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": OLD, "kind": "Template", "metadata": metadata, "spec": {"data": data}}


def new(spec: Any, annotations: Raw | None = None) -> Raw:
    return {**old("", annotations), "apiVersion": NEW, "spec": spec}


def annotations_of(obj: Raw) -> Raw:
    found: Raw = obj["metadata"].get("annotations", {})
    return found


# --- random objects

_PIECES = [
    *(case.text for case in cases().values()),
    TEXT,
    "",
    "x",
    "{{",
    "{{ .x",
    "tasks: [",
    "name: t\ntasks: []\n",
    "name: [t]\ntasks: [{name: {a: b}, actions: [{name: [a], image: {}}]}]\n",
    "tasks:\n- actions:\n  - {name: a, image: i}\n  - {name: b, image: '{{ .i }}', command: [a, 1, ~]}\n",
]


def random_old(rng: random.Random) -> Raw:
    text = rng.choice(_PIECES)
    if rng.random() < 0.5 and text:  # a cut or a doubled part gives texts that are nearly Templates
        at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        text = text[:at] + rng.choice(["", text[at:end] * 2, "{{", "\n", "'"]) + text[end:]
    obj = old(text, {"user": "1"} if rng.random() < 0.5 else {})
    if rng.random() < 0.1:
        obj["spec"] = rng.choice([{}, {"data": None}, {"data": text, "more": [1]}])
    if rng.random() < 0.1:
        obj["metadata"].setdefault("annotations", {})[TEMPLATE_TEXT_ANNOTATION] = rng.choice(
            ["x", "actions sha256:\nx"]
        )
    return obj


_BEGINNINGS = [
    "",
    "a",
    "~",
    "0600",
    "two\nlines",
    " lead",
    "trail ",
    "'",
    '"',
    "# no",
    "{{ .Params.x }}",
    "a: b",
    "- a",
]
_ENDS = ["", "{{ .Hardware.OSIE.Name }}", '{{ printf "%s" .Params.a }}\'', "\t", "é", "\u2028", "{{ .Param.y }}"]


def _text(rng: random.Random) -> str:
    return rng.choice(_BEGINNINGS) + rng.choice(_ENDS)


def random_new(rng: random.Random) -> Raw:
    actions = []
    for index in range(rng.randrange(1, 4)):
        action: Raw = {"name": f"{rng.choice(['a', 'wipe disk', 'kexec', 'reboot'])}{index}", "image": "i"}
        for key, value in (
            ("args", [_text(rng) for _ in range(rng.randrange(4))]),
            ("env", {f"K{n}": _text(rng) for n in range(rng.randrange(3))}),
            ("volumes", ["/a:/b"] * rng.randrange(2)),
            ("cmd", "/bin/sh"),
            ("timeout", rng.choice([0, 5])),
            ("networkNamespace", "host"),
            ("pidNamespace", rng.choice(["host", "other"])),
            ("reboots", rng.random() < 0.5),
        ):
            if rng.random() < 0.4:
                action[key] = value
        actions.append(action)
    spec: Raw = {"actions": actions}
    if rng.random() < 0.4:
        spec["env"] = {"SHARED": _text(rng)}
    if rng.random() < 0.4:
        spec["volumes"] = ["/dev:/dev"]
    obj = new(spec, {"user": "1"} if rng.random() < 0.5 else {})
    if rng.random() < 0.3:  # was written in v1alpha1, and its actions were changed in v1alpha2 since
        obj = {**obj, "metadata": convert(random_old(rng), NEW)["metadata"]}
    return obj


def test_random_texts_come_back_and_their_actions_are_valid() -> None:
    for obj in random_objects(random_old, 1):
        check_up_and_down(obj)


def test_random_actions_come_back() -> None:
    for obj in random_objects(random_new, 2):
        check_down_and_up(obj)


def test_edits_of_the_text_show_in_v1alpha2_and_come_back() -> None:
    for first, second in zip(random_objects(random_new, 3), random_objects(random_old, 4), strict=True):
        view = copy.deepcopy(convert(first, OLD))
        view["spec"] = second["spec"]
        stored = convert(view, NEW)
        assert refusals(stored) == []
        assert convert(stored, OLD)["spec"] == second["spec"]
        if isinstance(second["spec"].get("data"), str) and first["spec"] != stored["spec"]:
            assert text_of(stored) == second["spec"]["data"]


def test_edits_of_the_actions_show_in_v1alpha1_and_come_back() -> None:
    for first, second in zip(random_objects(random_old, 5), random_objects(random_new, 6), strict=True):
        stored = copy.deepcopy(convert(first, NEW))
        stored["spec"] = second["spec"]
        assert text_of(stored) is None
        view = convert(stored, OLD)
        assert view["spec"].get("data") != first["spec"].get("data")
        assert without_residue(convert(view, NEW)) == without_residue(stored)


def test_damaged_objects_are_converted_in_both_directions() -> None:
    rng = random.Random(7)
    for obj in [*random_objects(random_old, 7), *random_objects(random_new, 8)]:
        bad = damaged(obj, rng)
        before = copy.deepcopy(bad)
        converted = convert(bad, NEW if bad["apiVersion"] == OLD else OLD)
        text_of(bad)
        assert bad == before
        convert(converted, bad["apiVersion"])
        if bad["apiVersion"] == OLD:
            assert refusals(converted) == []


def test_partial_objects_are_converted_in_both_directions() -> None:
    rng = random.Random(9)
    for obj in [*random_objects(random_old, 9), *random_objects(random_new, 10)]:
        part = partial(obj, rng)
        target = NEW if part["apiVersion"] == OLD else OLD
        assert convert(part, target) == convert(copy.deepcopy(part), target)


_ODD = [
    *(
        "a",
        "b ",
        "  c",
        "\n",
        " \n",
        "x: y",
        "- z",
        "# c",
        "'",
        '"',
        "\t",
        "é",
        "\u2028",
        "\r",
        "{",
        "}",
        "{{",
        "}}",
        "~",
    ),
    *("{{ .x }}", "{{ .Params.y }}", "{{- .x }}", "{{ .x -}}", '{{ printf "%s" .x }}', "{{ .x\n }}", "{{ . | quote }}"),
    *("{{ if .x }}", "{{- if .x -}}", "{{ else }}", "{{ end }}", "{{- end }}", "{{ range $i, $n := .l }}", "{{ $i }}"),
    *(
        "{{ $x := 1 }}",
        "{{ $x }}",
        "{{ $x = 2 }}",
        "{{/* c */}}",
        "{{}}",
        '{{ template "t" . }}',
        "tplqv0z",
        "<<",
        "---",
    ),
]


def _odd_text(rng: random.Random) -> str:
    return "".join(rng.choice(_ODD) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5])))


def random_odd(rng: random.Random) -> Raw:
    """Return a spec with odd texts in a few places, and a written text that has to be read only if they are there."""
    places = [("args", [_odd_text(rng)]), ("env", {"K": _odd_text(rng)}), ("env", {_odd_text(rng): "v"})]
    places += [("image", _odd_text(rng)), ("volumes", [_odd_text(rng)]), ("timeout", rng.randrange(9))]
    places += [("pidNamespace", _odd_text(rng)), ("networkNamespace", _odd_text(rng))]
    actions = [{"name": f"a{index}", "image": "i", **dict(rng.sample(places, 2))} for index in range(2)]
    return {"actions": actions, **({"env": {"S": _odd_text(rng)}} if rng.random() < 0.2 else {})}


def test_written_text_has_the_actions_that_reading_it_gives() -> None:
    place = ObjectPlace("", 0, "Template")
    known = 0
    for spec in random_objects(random_odd, 11):
        made = written(spec)
        assert made is not None
        text, body = made["spec"]["data"], made.body
        assert actions_of(text, "t", Findings(place), body) == actions_of(text, "t", Findings(place))
        content = None if body is None else read_written(body)
        if content is not None:
            known += 1
            assert content.value == read_text(text).value
    assert known > OBJECTS // 10


# --- corpora


@pytest.mark.parametrize("file", sorted(CORPORA.glob("*.yaml")), ids=lambda path: path.name)
def test_real_templates_come_back(file: Path) -> None:
    for obj in objects_of(file, "Template"):
        if obj["apiVersion"] == OLD:
            check_up_and_down(obj)
            assert text_of(convert(obj, NEW)) == obj["spec"]["data"]
        else:
            check_down_and_up(obj)


# --- the text counts


def test_text_is_kept_beside_the_actions_that_show_it() -> None:
    stored = convert(old(TEXT), NEW)
    assert stored["spec"] == SHOWN
    assert annotations_of(stored).keys() == {TEMPLATE_TEXT_ANNOTATION}
    assert annotations_of(stored)[TEMPLATE_TEXT_ANNOTATION].partition("\n")[2] == TEXT
    assert text_of(stored) == TEXT


def test_view_of_a_text_has_no_annotation_of_ours() -> None:
    assert convert(convert(old(TEXT), NEW), OLD) == old(TEXT)


def test_text_counts_although_the_api_orders_fields_in_another_way() -> None:
    stored = convert(old(TEXT), NEW)
    action = stored["spec"]["actions"][0]
    stored["spec"] = {"volumes": ["/dev:/dev"], "actions": [dict(sorted(action.items()))]}
    assert text_of(stored) == TEXT


def test_actions_count_after_a_change_in_v1alpha2() -> None:
    stored = convert(old(TEXT), NEW)
    stored["spec"]["actions"][0]["image"] = "other"
    assert text_of(stored) is None
    view = convert(stored, OLD)
    assert "image: other" in view["spec"]["data"]
    assert "{{ .url }}" in view["spec"]["data"]


def test_text_counts_again_after_a_change_in_v1alpha1() -> None:
    stored = convert(old(TEXT), NEW)
    stored["spec"]["actions"][0]["image"] = "other"
    view = convert(stored, OLD)
    view["spec"]["data"] = TEXT
    again = convert(view, NEW)
    assert text_of(again) == TEXT
    assert again["spec"] == SHOWN


def test_native_template_is_a_text_that_gives_the_same_actions() -> None:
    stored = new(NATIVE)
    view = convert(stored, OLD)
    assert "annotations" not in view["metadata"], "v1alpha1 has all of its fields"
    view = old(view["spec"]["data"])
    assert convert(view, NEW) == stored
    assert text_of(stored) is None


def test_native_template_renders_as_a_text_of_v1alpha1() -> None:
    text = convert(new(NATIVE), OLD)["spec"]["data"]
    first, second = render(text, {}, {"x": "1", "y": "2", "z": "3", "device_1": "m"}).actions
    assert first["args"] == ["x", "", "~", "null", "1", 'it\'s "2"', "o'clock 1", "a\nb\n", "0600"]
    assert first["env"] == {"X": "3", "A": "yes", "B": "é\t"}
    assert first["volumes"] == ["/dev:/dev", "/a:/b:ro"]
    assert second["reboots"] is True


def test_fields_of_v1alpha2_alone_are_in_the_view_and_never_stored() -> None:
    stored = new({"actions": [{"name": "a", "image": "i", "cmd": "/bin/sh"}]})
    view = convert(stored, OLD)
    assert annotations_of(view).keys() == {V1ALPHA2_ANNOTATION}
    assert convert(view, NEW) == stored


def test_edited_text_of_a_native_template_counts() -> None:
    view = convert(new({"actions": [{"name": "a", "image": "i", "cmd": "/bin/sh"}]}), OLD)
    view["spec"]["data"] = view["spec"]["data"].replace("image: i", "image: j")
    stored = convert(view, NEW)
    assert text_of(stored) == view["spec"]["data"]
    assert stored["spec"]["actions"][0]["image"] == "j"


def test_new_text_for_a_native_template_does_not_mix_with_its_former_actions() -> None:
    # v1alpha1 has no data for this expression, so the whole spec is in the residue.
    stored = new({**NATIVE, "env": {"CARDS": "{{ .hardware.spec.networkInterfaces }}"}})
    view = convert(stored, OLD)
    assert convert(view, NEW) == stored
    view["spec"] = {"data": TEXT.replace("    volumes: [/dev:/dev]\n", "")}
    again = convert(view, NEW)
    assert again["spec"] == {"actions": SHOWN["actions"]}
    assert text_of(again) == view["spec"]["data"]


def test_image_in_v1alpha1_stays_when_a_client_drops_the_annotation() -> None:
    view = convert(new({"actions": [{"name": "a", "image": "i", "cmd": "/bin/sh"}]}), OLD)
    del view["metadata"]["annotations"]
    assert convert(view, NEW)["spec"] == {"actions": [{"name": "a", "image": "i"}]}


# --- what can't be shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ .x", "no Go template"),
        ("tasks: [", "not YAML"),
        ("name: t\ntasks: []", "there is no task"),
        ("{{ range .l }}\n- a\n{{ end }}", ""),
        ("", "is empty"),
        ("name: [t]\ntasks: [{name: {a: b}, actions: [{name: [a], image: {}}]}]", ""),
    ],
)
def test_text_that_has_no_actions_gets_a_placeholder_and_the_reason(text: str, reason: str) -> None:
    stored = convert(old(text), NEW)
    assert refusals(stored) == []
    (action,) = stored["spec"]["actions"]
    assert ".invalid/" in action["image"]
    said = annotations_of(stored)[INCOMPLETE_ANNOTATION]
    assert said.startswith("spec.actions: the text of the v1alpha1 Template counts, and can't be shown as actions: ")
    assert reason in said
    assert said.isprintable()
    assert len(said) <= 1024
    assert text_of(stored) == text
    assert convert(stored, OLD) == old(text)


def test_reason_that_an_operator_removes_stays_removed_after_a_change_in_v1alpha1() -> None:
    stored = convert(old("{{ .x"), NEW)
    del stored["metadata"]["annotations"][INCOMPLETE_ANNOTATION]
    view = convert(stored, OLD)
    assert convert(view, NEW) == stored


def test_template_without_a_text_gets_a_placeholder_and_comes_back_without_it() -> None:
    obj = old("")
    obj["spec"] = {}
    stored = convert(obj, NEW)
    assert "absent or no text" in annotations_of(stored)[INCOMPLETE_ANNOTATION]
    assert text_of(stored) is None
    assert convert(stored, OLD) == obj


def test_long_text_is_not_shown_but_counts() -> None:
    text = f"{TEXT}# {'x' * MAX_SHOWN_CHARACTERS}\n"
    stored = convert(old(text), NEW)
    assert f"more than {MAX_SHOWN_CHARACTERS}" in annotations_of(stored)[INCOMPLETE_ANNOTATION]
    assert text_of(stored) == text


def test_longest_text_fits_into_the_annotations_of_an_object() -> None:
    rng = random.Random(1)
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=192 << 10))
    stored = convert(old(text), NEW)
    assert sum(len(key) + len(value) for key, value in annotations_of(stored).items()) < 256 << 10
    assert text_of(stored) == text
    assert convert(stored, OLD) == old(text)


def test_compressed_text_is_the_same_each_time() -> None:
    text = f"{TEXT}# {'x' * MAX_PLAIN_BYTES}\n"
    assert convert(old(text), NEW) == convert(old(text), NEW)
    assert len(annotations_of(convert(old(text), NEW))[TEMPLATE_TEXT_ANNOTATION]) < 2048


def test_text_that_is_no_unicode_is_kept() -> None:
    assert convert(convert(old("\ud800"), NEW), OLD) == old("\ud800")


@pytest.mark.parametrize("kept", ["", "x", "actions sha256:", "actions sha256:0\nx", None, 1])
def test_annotation_that_is_not_ours_gives_no_text(kept: Any) -> None:
    assert text_of(new(SHOWN, {TEMPLATE_TEXT_ANNOTATION: kept})) is None


@pytest.mark.parametrize("damage", ["!", "", "AAAA", "H4sIAAAAAAAA"])
def test_damaged_compressed_text_gives_no_text(damage: str) -> None:
    stored = convert(old(f"{TEXT}# {'x' * MAX_PLAIN_BYTES}\n"), NEW)
    mark = annotations_of(stored)[TEMPLATE_TEXT_ANNOTATION].partition("\n")[0]
    stored["metadata"]["annotations"][TEMPLATE_TEXT_ANNOTATION] = f"{mark}\n{damage}"
    assert text_of(stored) in (None, "")
    convert(stored, OLD)


def test_actions_beside_a_text_have_no_syntax_errors() -> None:
    for case in cases().values():
        assert parse_fields(convert(old(case.text), NEW)) == []


def test_annotation_of_ours_that_a_client_of_v1alpha1_writes_comes_back() -> None:
    obj = old(TEXT, {TEMPLATE_TEXT_ANNOTATION: "x", INCOMPLETE_ANNOTATION: "y"})
    stored = convert(obj, NEW)
    assert text_of(stored) == TEXT
    assert V1ALPHA1_ANNOTATION in annotations_of(stored)
    assert convert(stored, OLD) == obj
