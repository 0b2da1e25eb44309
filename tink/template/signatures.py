"""Declare template functions: their parameters, and the checks of calls.

Go checks arguments against the parameter types of the called function, and converts constants to them (`printf 1`
reports "expected string; found 1"). The types here are those that this package's functions need. One difference to Go:
its several integer types are one here, so `trunc (add 1 2) .x` needs no `int`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from tink.golang.values import Value


class ParameterType(Enum):
    """A parameter's type, as Go names it."""

    ANY = "interface {}"
    STRING = "string"
    INT = "int"
    FLOAT = "float64"
    BOOL = "bool"
    MAP = "map[string]interface {}"


PYTHON_TYPES: dict[ParameterType, type] = {
    ParameterType.STRING: str,
    ParameterType.INT: int,
    ParameterType.FLOAT: float,
    ParameterType.BOOL: bool,
    ParameterType.MAP: dict,
}


@dataclass(frozen=True, slots=True)
class Function:
    """A template function.

    `call` gets its arguments by position and raises CallError for unsuitable ones. `metered`: the first argument is a
    callable that takes steps from the budget, for functions that take much longer than reading their arguments and
    making their result. `changing`: it changes its map.
    """

    name: str
    call: Callable[..., Any]
    parameters: tuple[ParameterType, ...] = ()
    variadic: ParameterType | None = None
    metered: bool = False
    changing: bool = False

    def arity_complaint(self, written: int, total: int) -> str | None:
        """Return Go's message for `written` arguments, `total` with the pipeline's; None if that is right."""
        if self.variadic is not None:
            least = len(self.parameters)
            if total < least:
                return f"wrong number of args for {self.name}: want at least {least} got {written}"
        elif total != len(self.parameters):
            return f"wrong number of args for {self.name}: want {len(self.parameters)} got {total}"
        return None

    def parameter(self, index: int) -> ParameterType:
        """Return the type of the argument at this index."""
        if index < len(self.parameters):
            return self.parameters[index]
        return self.variadic or ParameterType.ANY


ANY, STRING, INT, FLOAT, BOOL, MAP = (
    ParameterType.ANY,
    ParameterType.STRING,
    ParameterType.INT,
    ParameterType.FLOAT,
    ParameterType.BOOL,
    ParameterType.MAP,
)

Functions = dict[str, Function]


def table(*functions: Function) -> Functions:
    """Return the functions by name."""
    return {function.name: function for function in functions}


SIZED: Final = frozenset({str, list, dict})
FREE: Final = 512


def is_large(value: Value) -> bool:
    """Return True if reading or making a value costs more than the step that does it."""
    return type(value) in SIZED and len(value) > FREE


def text_size(value: Value) -> int:
    """Return the work of reading a value, in characters."""
    return len(value) if type(value) in SIZED else 0
