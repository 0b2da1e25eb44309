"""Sprig's functions against `sprig.json`: what Sprig v3.3 gives, recorded by tests/interop/gotemplate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.template.sprig_left_out import LEFT_OUT
from tink.template.engine import render
from tink.template.errors import TemplateError
from tink.template.functions import FUNCTIONS
from tink.template.sprig import SPRIG

RECORDED: dict[str, Any] = orjson.loads(Path(__file__).with_name("sprig.json").read_bytes())


@pytest.mark.parametrize("name", sorted(SPRIG))
def test_function_gives_what_sprig_gives_and_fails_in_its_words(name: str) -> None:
    rows = [row for row in RECORDED["rows"] if name in row[0].replace("(", " ").split()]
    assert rows, f"{name} is in no recorded call"
    for expression, output, *error in rows:
        try:
            found = (render(f"{{{{{expression}}}}}", RECORDED["data"], "t"), [])
        except TemplateError as failure:
            found = (None, [str(failure)])  # type: ignore[assignment]
        assert found == (output, error), expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{minf 0 -0.0}} {{minf -0.0 0 1}} {{maxf -0.0 0 -1}} {{maxf 0 -0.0}}", "-0 -0 0 0"),
        ("{{snakecase `ÄİB`}} {{kebabcase `aİ`}} {{camelcase `AİB`}}", "äib a-i Aib"),
        ("{{indent 2 `a\nb`}} {{toJson `<é\n>`}}", '  a\n  b "\\u003cé\\n\\u003e"'),
        ("{{keys .m}} {{values .m}} {{kindIs `string` .s}}", "[a k] [1 v] true"),
        ("{{sha256sum `` | trunc 8}} {{splitList `,` `a,b` | len}} {{trunc (add 1 2) .s}}", "e3b0c442 2 Hel"),
    ],
)
def test_function_gives_in_odd_corners_what_sprig_gives(text: str, expected: str) -> None:
    assert render(text, RECORDED["data"]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{fail `disk missing`}}", "error calling fail: disk missing"),
        ("{{b64dec `%%`}}", "error calling b64dec: illegal base64 data"),
    ],
)
def test_function_refuses_in_the_words_of_sprig(text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(text, RECORDED["data"])


def test_what_is_left_out_of_sprig_is_not_there_and_has_its_reason() -> None:
    assert set(LEFT_OUT) & set(FUNCTIONS) == {"slice", "contains", "hasPrefix", "hasSuffix"}
    assert not set(LEFT_OUT) & set(SPRIG)
    assert all(LEFT_OUT.values())


def test_template_that_changes_a_map_changes_it_for_itself_alone() -> None:
    data = {"m": {"a": {"b": 1}}, "l": [{"x": 1}]}
    text = "{{$_ := set .m.a `b` 2}}{{$_ := set (index .l 0) `x` 2}}{{$_ := unset . `m`}}{{.}}"
    assert render(text, data) == "map[l:[map[x:2]]]"
    assert data == {"m": {"a": {"b": 1}}, "l": [{"x": 1}]}
    assert render("{{$m := merge (dict `a` 1) .m}}{{$m}}", data) == "map[a:1]"
    assert render("{{define `d`}}{{$_ := set . `a` 5}}{{end}}{{template `d` .m}}{{.m}}", data) == "map[a:5]"
    assert data["m"] == {"a": {"b": 1}}
