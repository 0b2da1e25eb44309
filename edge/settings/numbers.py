"""The types of options that are numbers. They say which numbers are valid; click's own types only name themselves."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import click


class WholeNumber(click.IntRange):
    """An integer within bounds; either bound may be None."""

    def __init__(self, bounds: click.IntRange, noun: str) -> None:
        """`noun` is what the number is, such as `port`."""
        super().__init__(bounds.min, bounds.max, bounds.min_open, bounds.max_open, bounds.clamp)
        self.noun = noun

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises click.BadParameter."""
        try:
            return super().convert(value, None, None)
        except click.BadParameter:
            _refuse(self, self.noun, value, param, ctx)


class Number(click.FloatRange):
    """A finite number within bounds; either bound may be None."""

    def __init__(self, bounds: click.FloatRange) -> None:
        super().__init__(bounds.min, bounds.max, bounds.min_open, bounds.max_open, bounds.clamp)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Raises click.BadParameter."""
        try:
            found = super().convert(value, None, None)
        except click.BadParameter:
            _refuse(self, "number", value, param, ctx)
        if not math.isfinite(found):  # float() reads "nan", which is within all bounds, and "inf"
            _refuse(self, "number", value, param, ctx)
        return found


def worded(option: click.Option, noun: str) -> click.ParamType[Any]:
    """Return the type of an option, or the one of this module that takes its place."""
    if type(option.type) is click.IntRange:
        return WholeNumber(option.type, noun)
    if type(option.type) is click.FloatRange:
        return Number(option.type)
    return option.type


def _refuse(
    kind: click.IntRange | click.FloatRange,
    noun: str,
    value: Any,
    param: click.Parameter | None,
    ctx: click.Context | None,
) -> NoReturn:
    kind.fail(f"{str(value)!r} is no {noun} {_bounds(kind)}", param, ctx)


def _bounds(kind: click.IntRange | click.FloatRange) -> str:
    if kind.min is None:
        return f"up to {kind.max}"
    if kind.max is None:
        return f"{'greater than' if kind.min_open else 'from'} {kind.min}{'' if kind.min_open else ' on'}"
    return f"from {kind.min} to {kind.max}"
