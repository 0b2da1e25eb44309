"""Ranges of sizes and costs, and the limits they saturate at (cel-go, checker/cost.go)."""

from dataclasses import dataclass

LIMIT = 2**64 - 1
_TWO_64 = 2.0**64


def _add(a: int, b: int) -> int:
    return min(a + b, LIMIT)


def _times(a: int, b: int) -> int:
    return min(a * b, LIMIT)


def _scaled(value: int, factor: float) -> int:
    as_double = float(value)
    if as_double > 0 and factor > 0 and as_double > _TWO_64 / factor:
        return LIMIT
    product = as_double * factor
    if product >= _TWO_64:
        return LIMIT
    whole = int(product)
    return whole if whole == product else whole + 1


@dataclass(frozen=True, slots=True)
class Cost:
    """A range, of sizes or of costs; both ends stop at 2**64-1."""

    min: int
    max: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(_add(self.min, other.min), _add(self.max, other.max))

    def __mul__(self, other: "Cost") -> "Cost":
        return Cost(_times(self.min, other.min), _times(self.max, other.max))

    def scaled(self, factor: float) -> "Cost":
        """Both ends times a factor, rounded up."""
        return Cost(_scaled(self.min, factor), _scaled(self.max, factor))

    def union(self, other: "Cost") -> "Cost":
        """The range that holds both."""
        return Cost(min(self.min, other.min), max(self.max, other.max))


def fixed(value: int) -> Cost:
    """A range of one value."""
    return Cost(value, value)


UNKNOWN = Cost(0, LIMIT)
EMPTY = Cost(LIMIT, 0)
"""What a union begins with."""
NOTHING = fixed(0)
ONE = fixed(1)
