"""Strings that stay the strings they are, whatever a reader of YAML 1.1 would take them for."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hegel.yamltext import quoted


@pytest.mark.parametrize(
    "odd", ["", "on", "0x1f", "1:30", "a: b # c", '\\"', "\x00\x7f\x85", "\u2028\ufeff", "\U0001f511", "\n"]
)
def test_string_reads_back_as_itself(odd: str) -> None:
    assert yaml.safe_load(quoted(odd)) == odd


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_string_is_one_line_and_reads_back_as_itself(text: str) -> None:
    assert len(quoted(text).splitlines()) == 1
    assert yaml.safe_load(quoted(text)) == text
