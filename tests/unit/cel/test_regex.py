"""Regular expressions: the same by way of RE2's private names and of its public ones."""

from __future__ import annotations

import pytest
import re2

from tink.cel.library import regex


@pytest.mark.parametrize("missing", ["_re2", "_Regexp"])
def test_expressions_match_the_same_without_the_private_names_of_the_library(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("ab", "b", "", "äbä", "abab", "x\ny")
    patterns = ("b", "^b", "b*", "[^a]", "ä")

    def all_of_it() -> object:
        return [
            (regex.pattern_tester(p)(t), regex.find_all(p, t), regex.find_all(p, t, 1)) for p in patterns for t in texts
        ]

    before = all_of_it()
    assert regex._match_of is not regex._public_match
    if missing == "_re2":
        monkeypatch.delattr(re2, missing)
    else:  # a pattern whose inner match means something else
        monkeypatch.setattr(re2, "compile", lambda *_, **__: type("Pattern", (), {"_regexp": None})())
    match_of, anywhere = regex._choose_match()
    assert (match_of, anywhere) == (regex._public_match, None)
    monkeypatch.undo()
    monkeypatch.setattr(regex, "_match_of", match_of)
    monkeypatch.setattr(regex, "_ANYWHERE", anywhere)
    assert all_of_it() == before
