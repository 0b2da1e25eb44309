"""Spaces beside expressions that print nothing: YAML cut them off after rendering, and a field is rendered by itself.

Every short sequence of pieces in a plain scalar is rendered as v1alpha1 did and as v1alpha2 does. The values are equal,
or the report says that spaces may stay; without control flow they are equal.
"""

from __future__ import annotations

from itertools import product

import pytest

from tests.unit.convert.v1alpha1 import old_renderer
from tink.api.v1alpha2 import Raw
from tink.convert.findings import Findings, Source
from tink.convert.v1alpha1 import template
from tink.template.fields import render_actions

PARAMS = {"word": "w", "empty": ""}
DISKS = ["/dev/sda", "/dev/sdb"]
OLD_HARDWARE: Raw = {"spec": {"disks": [{"device": disk} for disk in DISKS]}}
HARDWARE: Raw = {
    "apiVersion": "tinkerbell.org/v1alpha2",
    "kind": "Hardware",
    "metadata": {"name": "a"},
    "spec": {"networkInterfaces": {"52:54:00:00:00:01": {}}, "storageDevices": DISKS},
}
STRAIGHT = ("a", " ", "{{/* nothing */}}", "{{ $y := .word }}", "{{ .word }}")
TIGHT = "{{ if .word }}b{{ else }}c{{ end }}"
FLOW = (
    "{{ if .word }} b {{ end }}",
    "{{ if .empty }}b{{ else }} c{{ end }}",
    "{{ if .word }}{{ .word }} {{ else }}c{{ end }}",
    "{{ with .word }}{{/* nothing */}} b{{ end }}",
    "{{ if .word }}{{ if .empty }}x{{ end }} b{{ end }}",
    "{{ if .word }}b {{ if .empty }}x{{ end }}{{ end }}",
    "{{ range .Hardware.Disks }} b{{ end }}",
)
AT_ONCE = 200


def sequences(pieces: tuple[str, ...], longest: int) -> list[str]:
    joined = {"".join(each) for length in range(1, longest + 1) for each in product(pieces, repeat=length)}
    return sorted(text for text in joined if text.strip())


def compared(texts: list[str]) -> list[tuple[str, str, str, bool]]:
    """Each text with what it was, what it is, and whether the report warns of spaces."""
    env = "".join(f"      V{index}: {text}\n" for index, text in enumerate(texts))
    data = f"name: t\ntasks:\n- name: t\n  actions:\n  - name: a\n    image: i\n    environment:\n{env}"
    metadata = {"name": "t"}
    old: Raw = {
        "apiVersion": "tinkerbell.org/v1alpha1",
        "kind": "Template",
        "metadata": metadata,
        "spec": {"data": data},
    }
    findings = Findings(Source("in.yaml", 1, "Template", "", "t"))
    (new,) = template.convert_template(old, findings)
    warned = {each.path.rpartition(".")[2] for each in findings if each.reason.startswith("spaces ")}
    (was,) = old_renderer.render(old, OLD_HARDWARE, PARAMS)
    (now,) = render_actions(new, HARDWARE, PARAMS)
    names = [f"V{index}" for index in range(len(texts))]
    return [(text, was["env"][name], now["env"][name], name in warned) for text, name in zip(texts, names, strict=True)]


def all_compared(texts: list[str]) -> list[tuple[str, str, str, bool]]:
    return [one for start in range(0, len(texts), AT_ONCE) for one in compared(texts[start : start + AT_ONCE])]


def test_spaces_beside_silent_expressions_are_those_that_there_were() -> None:
    for text, was, now, warned in all_compared(sequences(STRAIGHT, 4)):
        assert (text, now, warned) == (text, was, False)


@pytest.mark.parametrize("flow", FLOW)
def test_spaces_in_arms_are_those_that_there_were_or_are_told_of(flow: str) -> None:
    for text, was, now, warned in all_compared(sequences((*STRAIGHT, flow), 3)):
        assert warned or (text, now) == (text, was)


def test_arms_without_spaces_at_their_ends_are_not_worth_a_word() -> None:
    for text, was, now, warned in all_compared(sequences(("a b", *STRAIGHT[2:], TIGHT), 3)):
        assert (text, now, warned) == (text, was, False)


def test_spaces_in_the_middle_of_a_text_are_not_worth_a_word() -> None:
    texts = [f"a{one}{flow}{two}z" for flow in FLOW for one in ("", *STRAIGHT[1:]) for two in ("", *STRAIGHT[1:])]
    for text, was, now, warned in all_compared(texts):
        assert (text, now, warned) == (text, was, False)
