"""Sprig's hermetic functions (Masterminds/sprig v3), with its argument order: the subject last.

Hermetic means that the result depends on the arguments alone: no time, no randomness, no environment, no network. A
Workflow that is prepared twice has the same actions. `SPRIG` has all functions. The tests list the functions of Sprig
that are missing here, and why. As in Sprig, failed conversions return zero, numbers from `fromJson` are floats, and
`regexMatch` with a bad pattern is false. Unlike in Sprig, `b64dec` and `b32dec` of invalid text are errors. Sprig
returns the error's text as the result, which could be written to a machine's disk.
"""

from __future__ import annotations

from typing import Final

from tink.golang import fmt
from tink.golang.values import CallError, Value, kind, type_name
from tink.template.signatures import ANY, BOOL, STRING, Function, Functions, table
from tink.template.sprig.collections import LISTS, MAPS
from tink.template.sprig.encodings import ENCODINGS, PATHS
from tink.template.sprig.numbers import DURATIONS, NUMBERS, deep_copy, deep_equal
from tink.template.sprig.text import REGEXES, TEXT
from tink.template.sprig.versions import VERSIONS

__all__ = ["SPRIG", "deep_copy"]


def _fail(message: str) -> Value:
    raise CallError(message)


_CHOICES: Final = table(
    Function("default", lambda fallback, *given: given[0] if given and given[0] else fallback, (ANY,), ANY),
    Function("empty", lambda value: not value, (ANY,)),
    Function("coalesce", lambda *candidates: next((value for value in candidates if value), None), (), ANY),
    Function("all", lambda *values: all(values), (), ANY),
    Function("any", lambda *values: any(values), (), ANY),
    Function("ternary", lambda yes, no, condition: yes if condition else no, (ANY, ANY, BOOL)),
    Function("fail", _fail, (STRING,)),
    Function("kindOf", kind, (ANY,)),
    Function("kindIs", lambda wanted, value: kind(value) == wanted, (STRING, ANY)),
    Function("typeOf", lambda value: fmt.sprintf("%T", [value]), (ANY,)),
    Function("typeIs", lambda wanted, value: type_name(value) == wanted, (STRING, ANY)),
    Function("typeIsLike", lambda wanted, value: type_name(value) in (wanted, f"*{wanted}"), (STRING, ANY)),
    Function("deepEqual", deep_equal, (ANY, ANY), metered=True),
)

SPRIG: Final[Functions] = {
    **_CHOICES,
    **TEXT,
    **LISTS,
    **MAPS,
    **NUMBERS,
    **ENCODINGS,
    **PATHS,
    **REGEXES,
    **VERSIONS,
    **DURATIONS,
}
