"""Bars: what a run must reach, as the command line says it. `dhcp-offer.p99<1s`, `failed=0`, `succeeded>=99%`. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_BAR: Final = re.compile(r"([a-z][a-z-]*(?:\.[a-z0-9]+)?)\s*(<=|>=|<|>|=)\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|%)?")
_FACTORS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "%": 0.01, None: 1.0}
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class BarError(ValueError):
    """A bar that can't be read, or of something that is not measured."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `text` is as it was given."""

    text: str
    name: str
    comparison: str
    value: float

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Whether the numbers of a run reach it. Raises BarError for a name that there is not."""
        if self.name not in numbers:
            raise BarError(f"{self.text}: there is no {self.name}; there are {', '.join(numbers)}")
        return _OPERATORS[self.comparison](numbers[self.name], self.value)


DEFAULT_BARS: Final = ("failed-without-fault=0", "twice=0")


def parse(text: str) -> Bar:
    """A bar of its text. Raises BarError."""
    match = _BAR.fullmatch(text.strip())
    if match is None:
        raise BarError(f"{text!r} is no bar: NAME<VALUE, such as dhcp-offer.p99<1s, failed=0, succeeded>=99%")
    name, comparison, value, unit = match.groups()
    return Bar(text.strip(), name, comparison, float(value) * _FACTORS[unit])
