"""The cost of calls: the charge at evaluation, and the estimate before any data are seen.

A `Price` holds both for one overload. Most calls cost 1; the other prices depend on the sizes of the arguments or of
the result. A size is the number of elements, characters or bytes of the outermost value only. `frame.Traversal` counts
the work on nested values.

Sources: k8s.io/apiserver, pkg/cel/library/cost.go; cel-go, checker/cost.go and interpreter/runtimecost.go.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tink.kubeapi.cel.tree import Expr, Literal
from tink.kubeapi.cel.types import CelType
from tink.kubeapi.cel.values import TRAVERSAL_COST, cost_of, rounded_up, size_for_cost, traversal

MAX_COST = 2**64 - 1
_TWO_64 = 2.0**64

LIST_BASE = 10
"""Cost of making a list."""
MAP_BASE = 30
"""Cost of making a map."""
FREE_LENGTH = 64
"""Length of a sum of lists up to which it costs 1. Kubernetes, which does not copy lists, charges 1 for any length."""
PATTERN = 0.25
"""Cost of one character of a regular expression for each unit of text."""
_MAX_FORMAT_PATTERN = 128
"""Length of the longest pattern of a named format, as Kubernetes assumes it."""


# Ranges


def _scaled(value: int, factor: float) -> int:
    as_double = float(value)
    if as_double > 0 and factor > 0 and as_double > _TWO_64 / factor:
        return MAX_COST
    product = as_double * factor
    return MAX_COST if product >= _TWO_64 else rounded_up(product)


@dataclass(frozen=True, slots=True)
class Cost:
    """A range of sizes or costs. Both ends are limited to `MAX_COST`, like cel-go's."""

    min: int
    max: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(min(self.min + other.min, MAX_COST), min(self.max + other.max, MAX_COST))

    def __mul__(self, other: "Cost") -> "Cost":
        return Cost(min(self.min * other.min, MAX_COST), min(self.max * other.max, MAX_COST))

    def scaled(self, factor: float) -> "Cost":
        """Multiply both ends by a factor and round them up."""
        return Cost(_scaled(self.min, factor), _scaled(self.max, factor))

    def union(self, other: "Cost") -> "Cost":
        """Return the smallest range that covers both ranges."""
        return Cost(min(self.min, other.min), max(self.max, other.max))


def fixed(value: int) -> Cost:
    """Return a range with one value."""
    return Cost(value, value)


UNKNOWN = Cost(0, MAX_COST)
EMPTY = Cost(MAX_COST, 0)
"""The neutral element of `Cost.union`."""
NOTHING = fixed(0)
ONE = fixed(1)


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call as the estimator knows it.

    `size` is None if nothing is known about it. `element` is the size of the elements of a list.
    """

    node: Expr
    type: CelType
    size: Cost | None
    element: Cost | None = None

    @property
    def extent(self) -> Cost:
        """The size, or the range of all sizes if nothing is known."""
        return self.size or UNKNOWN


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a call without its arguments, and the size of its result if it has one."""

    cost: Cost
    size: Cost | None = None


Charge = Callable[[tuple[Any, ...], Any], int]
"""Returns the cost of a call from its arguments (the receiver first) and its result."""
Estimator = Callable[[list[Argument]], Estimate]
"""Returns the estimate of a call from its arguments, the receiver first."""


@dataclass(frozen=True, slots=True)
class Price:
    """The charge of an overload at evaluation (None means that it always costs 1), and its estimate."""

    charge: Charge | None = None
    estimate: Estimator = lambda _: Estimate(ONE)


UNIT = Price()
"""The price of calls that always cost 1."""


# Reading texts once


def _charge_first(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0]))


def _charge_first_twice(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0]) * 2)


def _estimate_scan(at: int = 0, factor: float = 1.0, size: Callable[[Cost], Cost] | None = None) -> Estimator:
    """Estimate the reading of one argument. `size` returns the size of the result from that of the argument."""

    def estimate(args: list[Argument]) -> Estimate:
        extent = args[at].extent
        return Estimate(extent.scaled(factor * TRAVERSAL_COST), size(extent) if size else None)

    return estimate


SCAN = Price(_charge_first, _estimate_scan())
SCAN_SIZED = Price(_charge_first, _estimate_scan(size=lambda size: size))
SCAN_TWICE = Price(_charge_first_twice, _estimate_scan(factor=2))
AFFIX = Price(_charge_first, _estimate_scan(1))  # startsWith and endsWith; the two models differ in Kubernetes
# The sizes overflow in cel-go as well.
TO_BYTES = Price(_charge_first, _estimate_scan(size=lambda size: Cost(size.min, size.max * 4 % 2**64)))
FROM_BYTES = Price(_charge_first, _estimate_scan(size=lambda size: Cost(size.min // 4, size.max)))
QUOTE = Price(_charge_first, _estimate_scan(size=lambda size: Cost((size.min + 2) % 2**64, (size.max * 2 + 2) % 2**64)))


# Replacing, splitting and joining texts


def _estimate_replace(args: list[Argument]) -> Estimate:
    text, old, new = (arg.extent for arg in args[:3])
    most, kept_most = _replacements(text.max, old.min, longer=new.max > old.min)
    least, kept_least = _replacements(text.min, old.max, longer=old.max > new.min)
    size = Cost(least, most) * new + Cost(kept_least, kept_most)
    return Estimate(text.scaled(2 * TRAVERSAL_COST), size)


def _replacements(text: int, part: int, *, longer: bool) -> tuple[int, int]:
    """Return the number of replacements in the extreme case, and the length of text that stays besides them."""
    if part == 0:
        return (text + 1 if text < MAX_COST else text), text
    return (min(rounded_up(float(text) / float(part)), MAX_COST), 0) if longer else (0, text)


def _estimate_split(args: list[Argument]) -> Estimate:
    size = args[0].extent
    most = size.max
    if len(args) > 2 and isinstance(args[2].node, Literal) and args[2].node.kind == "int":
        most = args[2].node.value % 2**64
    return Estimate(size.scaled(2 * TRAVERSAL_COST), Cost(0, most))


def _estimate_join(args: list[Argument]) -> Estimate:
    items = args[0].extent
    size = items * (args[0].element or UNKNOWN)
    if len(args) > 1:
        size = size + args[1].extent * Cost(max(items.min - 1, 0), max(items.max - 1, 0))
    return Estimate(size.scaled(TRAVERSAL_COST), size)


REPLACE = Price(_charge_first_twice, _estimate_replace)
SPLIT = Price(_charge_first_twice, _estimate_split)
JOIN = Price(lambda _, result: cost_of(size_for_cost(result) * 2), _estimate_join)


# Searching texts


def pattern_cost(text: Any, pattern_size: int) -> int:
    """Return the cost of matching a text with a pattern of the given length."""
    return cost_of(1.0 + size_for_cost(text)) * rounded_up(pattern_size * PATTERN)


def _charge_match(args: tuple[Any, ...], _: Any) -> int:
    return pattern_cost(args[0], size_for_cost(args[1]))


def _estimate_match(args: list[Argument]) -> Estimate:
    return Estimate((args[0].extent + ONE).scaled(TRAVERSAL_COST) * args[1].extent.scaled(PATTERN))


MATCH = Price(_charge_match, _estimate_match)
FIND = Price(_charge_match, lambda args: Estimate(_estimate_match(args).cost, Cost(0, args[0].extent.max)))
CONTAINS = Price(
    lambda args, _: cost_of(size_for_cost(args[0])) * cost_of(size_for_cost(args[1])),
    lambda args: Estimate(args[0].extent.scaled(TRAVERSAL_COST) * args[1].extent.scaled(TRAVERSAL_COST)),
)
VALIDATE = Price(
    lambda args, _: pattern_cost(args[1], args[0].pattern_size),
    lambda args: Estimate(args[1].extent.scaled(TRAVERSAL_COST).scaled(_MAX_FORMAT_PATTERN * PATTERN)),
)


# Comparing


def comparison_cost(a: Any, b: Any) -> int:
    """Return the cost of comparing two values: that of reading the smaller one."""
    return cost_of(min(size_for_cost(a), size_for_cost(b)))


def _estimate_smaller(args: list[Argument]) -> Estimate:
    most = min(args[0].extent.max, args[1].extent.max)
    return Estimate(Cost(1 if most else 0, most).scaled(TRAVERSAL_COST))


def _estimate_equals(args: list[Argument]) -> Estimate:
    left, right = args[0].type, args[1].type
    name = getattr(left, "name", "")
    if name == getattr(right, "name", "") and left.shape in ("opaque", "object"):
        if name in ("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"):
            return Estimate(ONE)
        if name == "kubernetes.NamedFormat":
            return Estimate(Cost(1, 64).scaled(TRAVERSAL_COST))
        if name == "kubernetes.URL":
            return Estimate(Cost(1, (args[1].size or ONE).max).scaled(TRAVERSAL_COST))
    return _estimate_smaller(args)


ORDER = Price(lambda args, _: comparison_cost(args[0], args[1]), _estimate_smaller)
EQUALS = Price(None, _estimate_equals)  # the compiler charges `==` and `!=` itself
NOT_EQUALS = Price(None, _estimate_smaller)
IN_LIST = Price(lambda args, _: size_for_cost(args[1]), lambda args: Estimate(args[1].extent.scaled(1)))


# Sums. The estimator handles `+` itself.


def _charge_lists(_: tuple[Any, ...], result: Any) -> int:
    return 1 + max(0, len(result) - FREE_LENGTH)


def charge_sum_of_any(args: tuple[Any, ...], result: Any) -> int:
    """Charge `a + b` of values whose types are known only at evaluation. Kubernetes charges 1."""
    if isinstance(result, list):
        return _charge_lists(args, result)
    if isinstance(result, str | bytes):
        return 1 + max(0, cost_of(len(result)) - FREE_LENGTH)
    return 1


CONCATENATION = Price(lambda args, _: cost_of(size_for_cost(args[0]) + size_for_cost(args[1])))
ADD_LISTS = Price(_charge_lists)


# Lists


def _estimate_traversal(args: list[Argument]) -> Estimate:
    target = args[0]
    if not target.type.params:
        return Estimate(target.extent.scaled(TRAVERSAL_COST))
    cost = ONE
    if target.type.params[0].shape in ("string", "bytes"):
        cost = cost + (target.element or UNKNOWN).scaled(TRAVERSAL_COST)
    return Estimate(target.extent * cost)


def _sets(factor: int) -> Price:
    """Return the price of looking up each element of a list in another list, `factor` times."""
    return Price(
        lambda args, _: 1 + size_for_cost(args[0]) * size_for_cost(args[1]) * factor,
        lambda args: Estimate((args[0].extent * args[1].extent).scaled(factor) + ONE),
    )


def _allocation(size: float) -> int:
    return int(size) + 1 + LIST_BASE


def _charge_output(_: tuple[Any, ...], result: Any) -> int:
    return _allocation(size_for_cost(result))


def _squared(at: int, factor: float) -> Price:
    """Return the price of comparing all elements of a list with each other. Texts cost more at evaluation, too."""

    def charge(args: tuple[Any, ...], _: Any) -> int:
        items = args[at]
        size = size_for_cost(items)
        return _allocation(size * size * (2.1 if size and type(items[0]) in (str, bytes) else 2.0))

    return Price(charge, lambda args: _estimate_allocation(factor, args[at].extent * args[at].extent))


def _estimate_allocation(factor: float, size: Cost) -> Estimate:
    return Estimate(size.scaled(factor) + fixed(1 + LIST_BASE), size)


def _number(arg: Argument, default: int) -> int:
    if isinstance(arg.node, Literal) and arg.node.kind == "int":
        return max(int(arg.node.value), 0)
    return default


def _estimate_slice(args: list[Argument]) -> Estimate:
    size = _number(args[2], args[0].extent.max) - _number(args[1], 0)
    return _estimate_allocation(1, fixed(size % 2**64))


def _estimate_flatten(args: list[Argument]) -> Estimate:
    depth = _number(args[1], MAX_COST) if len(args) > 1 else 1
    return _estimate_allocation(float(depth), args[0].extent)


TRAVERSAL = Price(lambda args, _: traversal(args[0]), _estimate_traversal)
SETS, SETS_EQUIVALENT = _sets(1), _sets(2)
SLICE = Price(_charge_output, _estimate_slice)
RANGE = Price(_charge_output, lambda args: _estimate_allocation(1, fixed(_number(args[0], MAX_COST))))
REVERSE = Price(_charge_output, lambda args: _estimate_allocation(1, args[0].extent))
FLATTEN = Price(
    lambda args, _: _allocation(size_for_cost(args[0]) * max(args[1] if len(args) == 2 else 1, 0)), _estimate_flatten
)
DISTINCT, SORT, SORT_TEXTS = _squared(0, 2.0), _squared(0, 2.0), _squared(0, 2.1)
SORT_BY, SORT_BY_TEXTS = _squared(1, 2.0), _squared(1, 2.1)


# IP addresses and prefixes

_IN_IP = Cost(8, 32).scaled(TRAVERSAL_COST)
_IN_CIDR = _IN_IP + Cost(4, 16).scaled(TRAVERSAL_COST) + ONE


def _charge_contains_ip(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0]) * 2)


def _charge_contains_cidr(args: tuple[Any, ...], result: Any) -> int:
    return _charge_contains_ip(args, result) + cost_of(size_for_cost(args[0])) + 1


def _with_text(charge: Charge, cost: Cost) -> Price:
    """Return the price of a call whose second argument is a text that has to be read as well."""
    return Price(
        lambda args, result: charge(args, result) + cost_of(size_for_cost(args[1])),
        lambda args: Estimate(cost + args[1].extent.scaled(TRAVERSAL_COST)),
    )


CIDR_HAS_IP = Price(_charge_contains_ip, lambda _: Estimate(_IN_IP))
CIDR_HAS_IP_TEXT = _with_text(_charge_contains_ip, _IN_IP)
CIDR_HAS_CIDR = Price(_charge_contains_cidr, lambda _: Estimate(_IN_CIDR))
CIDR_HAS_CIDR_TEXT = _with_text(_charge_contains_cidr, _IN_CIDR)
