"""Expressions of v1alpha1: rewritten where the data moved, untouched elsewhere, refused where it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tink.convert.v1alpha1.expressions import rewrite

CASES = yaml.safe_load((Path(__file__).parent / "expressions.yaml").read_text())


@pytest.mark.parametrize(("old", "new"), [*CASES["moved"], *((text, text) for text in CASES["unchanged"])])
def test_moved_data_is_named_where_it_is_now_and_the_rest_stays_as_it_was_written(old: str, new: str) -> None:
    result = rewrite(old)
    assert (result.text, result.notices, result.errors) == (new, [], [])


@pytest.mark.parametrize(
    ("old", "new", "notice"),
    [(*case, "address") for case in CASES["interfaces"]] + [(*case, "exchanged") for case in CASES["exchanged"]],
)
def test_order_of_interfaces_and_exchange_of_part_and_text_are_told(old: str, new: str, notice: str) -> None:
    result = rewrite(old)
    assert (result.text, result.errors, len(result.notices)) == (new, [], 1)
    assert notice in result.notices[0]


@pytest.mark.parametrize(("text", "error"), CASES["gone"])
def test_what_is_gone_is_an_error_that_names_it(text: str, error: str) -> None:
    assert error in " ".join(rewrite(text).errors)
