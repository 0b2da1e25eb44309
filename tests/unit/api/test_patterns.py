"""The API's patterns mean the same to Python as to RE2, by which an API server asks them."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from tink.api import patterns

PATTERNS = {name: value for name, value in vars(patterns).items() if name.isupper() and isinstance(value, str)}
PATTERNS = {name: value for name, value in PATTERNS.items() if not name.startswith("_")}
PARTS = (
    "10.0.0.1",
    "255",
    "52:54:00:12:34:56",
    "a-b.c",
    "http://a/b?c",
    "file:///a",
    "/dev/sda",
    "/dev/nvme0n1p1",
    "&&",
    ":/a",
)
TEXTS = st.lists(st.sampled_from((*PARTS, *" \t\n\v\f\r\x00\x7f\x85\xa0#;|$é0aZ_/.:-")), max_size=6).map("".join)


@pytest.mark.parametrize("name", PATTERNS)
@given(text=TEXTS)
def test_text_is_judged_by_a_converter_as_by_an_api_server(name: str, text: str) -> None:
    pattern = PATTERNS[name]
    assert (patterns.compiled(pattern).search(text) is None) == (re2.search(pattern, text) is None)
