"""How a template function is declared: what it takes and how calls to it are checked.

Go checks arguments against the parameter types of the function that is called; constants are converted to them
(`printf 1` says "expected string; found 1"). The types here are those that the functions of this package need.
One leniency: Go's several integer types are one here, so `trunc (add 1 2) .x` needs no `int`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tink.golang.values import Value


class Type(Enum):
    """A parameter's type, as Go names it."""

    ANY = "interface {}"
    STRING = "string"
    INT = "int"
    FLOAT = "float64"
    BOOL = "bool"
    MAP = "map[string]interface {}"


PYTHON_TYPES: dict[Type, type] = {Type.STRING: str, Type.INT: int, Type.FLOAT: float, Type.BOOL: bool, Type.MAP: dict}


@dataclass(frozen=True, slots=True)
class Function:
    """A template function. `call` gets its arguments by position and raises CallError for those it cannot take.

    `metered`: the first argument is a callable that takes steps from the budget, for functions that take much longer
    than it takes to read their arguments and to make their result, which the caller pays for. `changing`: it changes a
    map that it is given.
    """

    name: str
    call: Callable[..., Any]
    parameters: tuple[Type, ...] = ()
    variadic: Type | None = None
    metered: bool = False
    changing: bool = False

    def arity_complaint(self, written: int, total: int) -> str | None:
        """What Go says to this many arguments (`written` ones, and with that of the pipeline in `total`)."""
        if self.variadic is not None:
            least = len(self.parameters)
            if total < least:
                return f"wrong number of args for {self.name}: want at least {least} got {written}"
        elif total != len(self.parameters):
            return f"wrong number of args for {self.name}: want {len(self.parameters)} got {total}"
        return None

    def parameter(self, index: int) -> Type:
        """The type of the argument at this index."""
        if index < len(self.parameters):
            return self.parameters[index]
        return self.variadic or Type.ANY


ANY, STRING, INT, FLOAT, BOOL, MAP = Type.ANY, Type.STRING, Type.INT, Type.FLOAT, Type.BOOL, Type.MAP

Functions = dict[str, Function]


def table(*functions: Function) -> Functions:
    """The functions by name."""
    return {function.name: function for function in functions}


SIZED: Final = frozenset({str, list, dict})
FREE: Final = 512


def is_large(value: Value) -> bool:
    """Whether reading or making a value costs more than the step that does it."""
    return type(value) in SIZED and len(value) > FREE


def text_size(value: Value) -> int:
    """How much work a value means to whoever reads it."""
    return len(value) if type(value) in SIZED else 0
