"""What a call costs when it is evaluated.

Sources: k8s.io/apiserver, pkg/cel/library/cost.go; cel-go, interpreter/runtimecost.go.

Most calls cost 1 always. The others cost by the sizes of their arguments or result; those are here, as
functions of the arguments and the result. They count no more than the outermost size of a value; what is walked
through within it is counted by `traversal`.
"""

from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel.values import cost_of, size_for_cost, traversal

Charge = Callable[[tuple[Any, ...], Any], int]

LIST_BASE = 10
MAP_BASE = 30
FREE_LENGTH = 64
"""A longer list costs what it is longer, when it is made of others. Kubernetes, which copies nothing, takes 1."""
PATTERN = 0.25
"""Cost of one character of a regular expression for each unit of text."""


def _up(size: float) -> int:
    whole = int(size)
    return whole if whole == size else whole + 1


def _first(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0]))


def _first_twice(args: tuple[Any, ...], _: Any) -> int:
    return _up(size_for_cost(args[0]) * 2 * 0.1)


def smaller(a: Any, b: Any) -> int:
    """The cost of comparing two values: of looking at the smaller one."""
    return cost_of(min(size_for_cost(a), size_for_cost(b)))


def _smaller(args: tuple[Any, ...], _: Any) -> int:
    return smaller(args[0], args[1])


def _sum(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0]) + size_for_cost(args[1]))


def pattern_cost(text: Any, pattern_size: int) -> int:
    """The cost of matching a text with a pattern of a size."""
    return _up((1.0 + size_for_cost(text)) * 0.1) * _up(pattern_size * PATTERN)


def _sum_of_lists(_: tuple[Any, ...], result: Any) -> int:
    return 1 + max(0, len(result) - FREE_LENGTH)


def _sum_of_any(_: tuple[Any, ...], result: Any) -> int:
    """Of values of types known only now, whose sums cost 1 in Kubernetes."""
    if isinstance(result, list):
        return 1 + max(0, len(result) - FREE_LENGTH)
    if isinstance(result, str | bytes):
        return 1 + max(0, cost_of(len(result)) - FREE_LENGTH)
    return 1


def _match(args: tuple[Any, ...], _: Any) -> int:
    return pattern_cost(args[0], size_for_cost(args[1]))


def _contains(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0])) * cost_of(size_for_cost(args[1]))


def _traversal(args: tuple[Any, ...], _: Any) -> int:
    return traversal(args[0])


def _in_list(args: tuple[Any, ...], _: Any) -> int:
    return size_for_cost(args[1])


def _join(_: tuple[Any, ...], result: Any) -> int:
    return _up(size_for_cost(result) * 2 * 0.1)


def _validate(args: tuple[Any, ...], _: Any) -> int:
    return pattern_cost(args[1], args[0].pattern_size)


def _contains_ip(args: tuple[Any, ...], _: Any) -> int:
    return cost_of(size_for_cost(args[0]) * 2)


def _and_text(charge: Charge) -> Charge:
    """A charge with that of reading the second argument, a text."""
    return lambda args, result: charge(args, result) + cost_of(size_for_cost(args[1]))


def _contains_cidr(args: tuple[Any, ...], _: Any) -> int:
    return _contains_ip(args, None) + cost_of(size_for_cost(args[0])) + 1


def _sets(factor: int) -> Charge:
    return lambda args, _: 1 + size_for_cost(args[0]) * size_for_cost(args[1]) * factor


def _allocated(size: float) -> int:
    return int(size) + 1 + LIST_BASE


def _output(_: tuple[Any, ...], result: Any) -> int:
    return _allocated(size_for_cost(result))


def _flatten(args: tuple[Any, ...], _: Any) -> int:
    return _allocated(size_for_cost(args[0]) * max(args[1] if len(args) == 2 else 1, 0))


def _compared(items: Any) -> int:
    size = size_for_cost(items)
    factor = 2.1 if size and type(items[0]) in (str, bytes) else 2.0
    return _allocated(size * size * factor)


_ORDERS = ("less", "less_equals", "greater", "greater_equals")
_BY_OVERLOAD: dict[str, Charge] = {
    **dict.fromkeys(("starts_with_string", "ends_with_string", "string_to_bytes", "bytes_to_string"), _first),
    **dict.fromkeys(("strings_quote", "string_format"), _first),
    "in_list": _in_list,
    "cidr_contains_ip_string": _and_text(_contains_ip),
    "cidr_contains_cidr_string": _and_text(_contains_cidr),
    **{f"{word}_{t}": _smaller for word in _ORDERS for t in ("string", "bytes")},
    "add_string": _sum,
    "add_bytes": _sum,
    "add_list": _sum_of_lists,
    "matches_string": _match,
    "contains_string": _contains,
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "list_slice": _output,
    "lists_range": _output,
    "list_reverse": _output,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": lambda args, _: _compared(args[0]),
}  # fmt: skip
_BY_FUNCTION: dict[str, Charge] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _first),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _first_twice),
    "join": _join,
    "find": _match,
    "findAll": _match,
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _first),
    "containsIP": _contains_ip,
    "containsCIDR": _contains_cidr,
    "validate": _validate,
    "sort": lambda args, _: _compared(args[0]),
    "@sortByAssociatedKeys": lambda args, _: _compared(args[1]),
}


def charge_for(function: str, overloads: list[str]) -> Charge | None:
    """How a call is charged; None is 1. Overloads count only if there is no choice left for evaluation."""
    overload = overloads[0] if len(overloads) == 1 else ""
    if overload == "cidr_ip":
        return None
    if function in ("sort", "@sortByAssociatedKeys") and not overload:
        return None
    if function == "_+_" and not overload:
        return _sum_of_any
    return _BY_OVERLOAD.get(overload) or _BY_FUNCTION.get(function)
