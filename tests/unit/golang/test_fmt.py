"""Examples of Go's printf. The complete comparison with Go is in tests/interop."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tink.golang import strconv
from tink.golang.fmt import sprint, sprintf, sprintln
from tink.golang.values import Struct, Uint8


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        ("%s %v %d%%", ["a", "b", 3], "a b 3%"),
        ("%5d|%-5d|%05d|%+d|% d", [42, 42, -42, 42, 42], "   42|42   |-0042|+42| 42"),
        ("%x %X %#x %o %b %c %U %q", [255, 255, 255, 8, 5, 233, 233, 233], "ff FF 0xff 10 101 é U+00E9 'é'"),
        ("%5s|%-5s|%.2s|%05s", ["ab", "ab", "héllo", "ab"], "   ab|ab   |hé|000ab"),
        ("%q %+q %#q %x % x", ['a"\n', "é", "raw", "hi", "hi"], '"a\\"\\n" "\\u00e9" `raw` 6869 68 69'),
        ("%v %v %v %v", [1e6, 1e20, 1e-7, 100000.0], "1e+06 1e+20 1e-07 100000"),
        (
            "%f %.2f %8.3f %e %g %G",
            [2.5, 2.345, 2.5, 2.5, 1e-7, 1e-7],
            "2.500000 2.35    2.500 2.500000e+00 1e-07 1E-07",
        ),
        ("%x %b", [1.5, 1.0], "0x1.8p+00 4503599627370496p-52"),
        ("%v %v %v", [math.inf, -math.inf, math.nan], "+Inf -Inf NaN"),
        ("%06v|% v|%6v", [math.inf, math.inf, math.nan], "  +Inf| Inf|   NaN"),
        ("%t %v", [True, False], "true false"),
        ("%v %+v %#v", [[1, "a", None]] * 3, '[1 a <nil>] [1 a <nil>] []interface {}{1, "a", interface {}(nil)}'),
        ("%v %#v", [{"b": 1, "a": "x"}] * 2, 'map[a:x b:1] map[string]interface {}{"a":"x", "b":1}'),
        ("%T %T %T %T %T", [1, 1.5, "s", [], {}], "int float64 string []interface {} map[string]interface {}"),
        ("%v %+v", [Struct("v1.T", {"A": 1, "B": "x"})] * 2, "{1 x} {A:1 B:x}"),
        ("%v %#v", [Uint8(7), Uint8(7)], "7 0x7"),
        ("%d %s", ["hi", 5], "%!d(string=hi) %!s(int=5)"),
        ("%d %s", [None, [1, "a"]], "%!d(<nil>) [%!s(int=1) a]"),
        ("%d %d", [1], "1 %!d(MISSING)"),
        ("%d", [1, "x", None], "1%!(EXTRA string=x, <nil>)"),
        ("%", [], "%!(NOVERB)"),
        ("%[2]d %[1]d", [1, 2], "2 1"),
        ("%[3]d %[x]d", [1], "%!d(BADINDEX) %!d(BADINDEX)"),
        ("%*d|%-*d|%.*f", [4, 7, 4, 7, 1, 2.55], "   7|7   |2.5"),
        ("%*d", ["x", 7], "%!(BADWIDTH)7"),
    ],
)
def test_printf_prints_what_go_prints(template: str, arguments: list[Any], expected: str) -> None:
    assert sprintf(template, arguments) == expected


def test_print_puts_spaces_only_between_two_that_are_no_strings() -> None:
    assert sprint([1, 2, "a", "b", 3, None]) == "1 2ab3 <nil>"
    assert sprintln([1, "a", None]) == "1 a <nil>\n"


@pytest.mark.parametrize("value", [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 123456789.0, -0.0, 1e21, 2.0**-1022])
@pytest.mark.parametrize("verb", ["e", "f", "g", "x"])
def test_shortest_float_reads_back_as_the_same_float(value: float, verb: str) -> None:
    text = strconv.format_float(value, verb)
    assert strconv.parse_float(text) == value


@pytest.mark.parametrize(
    "literal", ['"a\\tb"', '"\\xff"', '"\\u00e9\\U0001F600"', '"\\\\"', '"\\""', '"\\a\\b\\f\\n\\r\\v"', '"\\x00\\x7f"']
)
def test_quoted_text_reads_back_as_the_same_text(literal: str) -> None:
    text = strconv.unquote(literal)
    assert strconv.unquote(strconv.quote(text)) == text
