"""JSON-like values and the names of their types in Go.

A value is a dict with string keys, a list, a str, an int, a float, a bool or None; beside these there are `Struct`
(the typed `.Hardware`, whose fields are fixed), `Uint8` (what `index "text" 0` gives in Go) and complex, which only a
constant in a template can be. Nothing else is a value, and no attribute or method of any Python object can be reached:
every access in this package goes by exact type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, final

from tink.errors import TinkedgeError


class CallError(TinkedgeError):
    """A template function was called with wrong arguments; the caller adds the place in the template."""


Value = Any
"""One of the types above. (Python's type language cannot say "JSON-like or Struct" without costing every caller.)"""


class Uint8(int):
    """A byte of a Go string."""

    __slots__ = ()


@final
class Struct:
    """A Go struct: named fields in order, always true, printed as `{a b}`.

    `aliases` can be used like fields but are not printed (`.Hardware.Disks`). A `text` is printed instead of the fields
    (such as a version, for Go a fmt.Stringer).
    """

    __slots__ = ("fields", "members", "text", "type_name")

    def __init__(
        self,
        type_name: str,
        fields: Mapping[str, Value],
        aliases: Mapping[str, Value] | None = None,
        text: str | None = None,
    ) -> None:
        self.type_name = type_name
        self.text = text
        self.fields = dict(fields)
        self.members = {**self.fields, **(aliases or {})}


BOOL: Final = "bool"
INT: Final = "int"
UINT: Final = "uint8"
FLOAT: Final = "float64"
COMPLEX: Final = "complex128"
STRING: Final = "string"
SLICE: Final = "slice"
MAP: Final = "map"
STRUCT: Final = "struct"
NIL: Final = "invalid"

KINDS: Final[dict[type, str]] = {
    bool: BOOL,
    int: INT,
    Uint8: UINT,
    float: FLOAT,
    complex: COMPLEX,
    str: STRING,
    list: SLICE,
    dict: MAP,
    Struct: STRUCT,
    type(None): NIL,
}

_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    Uint8: "uint8",
    float: "float64",
    complex: "complex128",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
    type(None): "<nil>",
}


def kind(value: Value) -> str:
    """Return Go's kind of a value: one of the constants above. Raises CallError for any other object."""
    try:
        return KINDS[type(value)]
    except KeyError:
        raise CallError(f"a {type(value).__name__} is no template value") from None


def type_name(value: Value) -> str:
    """Return the text that `printf "%T"` prints for a value."""
    if type(value) is Struct:
        return value.type_name
    return _TYPE_NAMES.get(type(value), "?")
