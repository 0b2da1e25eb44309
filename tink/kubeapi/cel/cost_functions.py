"""The estimated cost of each function from the sizes its arguments can have
(k8s.io/apiserver, pkg/cel/library/cost.go; cel-go, checker/cost.go and the extensions).

An estimate is a cost and, where the result has a size, that size.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tink.kubeapi.cel.cost_charges import PATTERN
from tink.kubeapi.cel.cost_sizes import LIMIT, ONE, UNKNOWN, Cost, fixed
from tink.kubeapi.cel.tree import Literal, Node
from tink.kubeapi.cel.types import Type

_PER_CHARACTER = 0.1
_LONGEST_PATTERN = 128


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument as the estimator knows it. `size` is None where nothing is known; `element` is the size of a list's
    elements."""

    node: Node
    type: Type
    size: Cost | None
    element: Cost | None = None

    @property
    def extent(self) -> Cost:
        """The size, or the largest that there is where none is known."""
        return self.size or UNKNOWN


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of a call without that of its arguments, and the size of its result."""

    cost: Cost
    size: Cost | None = None


Estimator = Callable[[list[Argument]], Estimate | None]
"""From the receiver, if there is one, and the arguments."""


def _scan(at: int, factor: float = 1.0, *, sized: bool = False) -> Estimator:
    def estimate(args: list[Argument]) -> Estimate:
        size = args[at].extent
        return Estimate(size.scaled(factor * _PER_CHARACTER), size if sized else None)

    return estimate


def _traversal(args: list[Argument]) -> Estimate:
    target = args[0]
    if not target.type.params:
        return Estimate(target.extent.scaled(_PER_CHARACTER))
    cost = ONE
    if target.type.params[0].shape in ("string", "bytes"):
        cost = cost + (target.element or UNKNOWN).scaled(_PER_CHARACTER)
    return Estimate(target.extent * cost)


def _replace(args: list[Argument]) -> Estimate:
    text, old, new = (arg.extent for arg in args[:3])
    most, kept_most = _replaced(text.max, old.min, longer=new.max > old.min)
    least, kept_least = _replaced(text.min, old.max, longer=old.max > new.min)
    size = Cost(least, most) * new + Cost(kept_least, kept_most)
    return Estimate(text.scaled(2 * _PER_CHARACTER), size)


def _replaced(text: int, part: int, *, longer: bool) -> tuple[int, int]:
    """How often a part is replaced in the extreme case, and how much of the text is kept beside."""
    if part == 0:
        return (text + 1 if text < LIMIT else text), text
    if not longer:
        return 0, text
    count = float(text) / float(part)
    whole = int(count)
    return min(whole if whole == count else whole + 1, LIMIT), 0


def _split(args: list[Argument]) -> Estimate:
    size = args[0].extent
    most = size.max
    if len(args) > 2 and isinstance(args[2].node, Literal) and args[2].node.kind == "int":
        most = args[2].node.value % 2**64
    return Estimate(size.scaled(2 * _PER_CHARACTER), Cost(0, most))


def _join(args: list[Argument]) -> Estimate:
    items = args[0].extent
    size = items * (args[0].element or UNKNOWN)
    if len(args) > 1:
        size = size + args[1].extent * Cost(max(items.min - 1, 0), max(items.max - 1, 0))
    return Estimate(size.scaled(_PER_CHARACTER), size)


def _find(args: list[Argument]) -> Estimate:
    size = args[0].extent
    cost = (size + ONE).scaled(_PER_CHARACTER) * args[1].extent.scaled(PATTERN)
    return Estimate(cost, Cost(0, size.max))


_IN_IP = Cost(8, 32).scaled(_PER_CHARACTER)
_IN_CIDR = _IN_IP + Cost(4, 16).scaled(_PER_CHARACTER) + ONE


def _compared_bits(cost: Cost, *, text: bool) -> Estimator:
    """The cost of comparing prefixes, and of reading the second one if it is a text."""
    if not text:
        return lambda _: Estimate(cost)
    return lambda args: Estimate(cost + args[1].extent.scaled(_PER_CHARACTER))


def _validate(args: list[Argument]) -> Estimate:
    return Estimate(args[1].extent.scaled(_PER_CHARACTER).scaled(_LONGEST_PATTERN * PATTERN))


def _one(_: list[Argument]) -> Estimate:
    return Estimate(ONE)


_BY_FUNCTION: dict[str, Estimator] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal),
    "url": _scan(0, sized=True),
    **{name: _scan(0, sized=True) for name in ("lowerAscii", "upperAscii", "substring", "trim")},
    "replace": _replace,
    "split": _split,
    "join": _join,
    "find": _find,
    "findAll": _find,
    **{name: _scan(0) for name in ("cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver")},
    "ip.isCanonical": _scan(0, 2),
    "validate": _validate,
}


# cel-go's own functions, by overload


def _allocated(factor: float, size: Cost) -> Estimate:
    return Estimate(size.scaled(factor) + fixed(11), size)


def _number(arg: Argument, default: int) -> int:
    if isinstance(arg.node, Literal) and arg.node.kind == "int":
        return max(int(arg.node.value), 0)
    return default


def _slice(args: list[Argument]) -> Estimate:
    return _allocated(1, fixed((_number(args[2], args[0].extent.max) - _number(args[1], 0)) % 2**64))


def _flatten(args: list[Argument]) -> Estimate:
    return _allocated(float(_number(args[1], LIMIT) if len(args) > 1 else 1), args[0].extent)


def _squared(at: int, factor: float) -> Estimator:
    return lambda args: _allocated(factor, args[at].extent * args[at].extent)


def _sets(factor: int) -> Estimator:
    return lambda args: Estimate((args[0].extent * args[1].extent).scaled(factor) + ONE)


def _to_bytes(args: list[Argument]) -> Estimate:
    size = args[0].extent
    return Estimate(size.scaled(_PER_CHARACTER), Cost(size.min, size.max * 4 % 2**64))


def _from_bytes(args: list[Argument]) -> Estimate:
    size = args[0].extent
    return Estimate(size.scaled(_PER_CHARACTER), Cost(size.min // 4, size.max))


def _quote(args: list[Argument]) -> Estimate:
    size = args[0].extent
    return Estimate(size.scaled(_PER_CHARACTER), Cost((size.min + 2) % 2**64, (size.max * 2 + 2) % 2**64))


def _in_list(args: list[Argument]) -> Estimate:
    return Estimate(args[1].extent.scaled(1))


def _match(args: list[Argument]) -> Estimate:
    return Estimate((args[0].extent + ONE).scaled(_PER_CHARACTER) * args[1].extent.scaled(PATTERN))


def _contains(args: list[Argument]) -> Estimate:
    return Estimate(args[0].extent.scaled(_PER_CHARACTER) * args[1].extent.scaled(_PER_CHARACTER))


def _compare(args: list[Argument]) -> Estimate:
    most = min(args[0].extent.max, args[1].extent.max)
    return Estimate(Cost(1 if most else 0, most).scaled(_PER_CHARACTER))


_ELEMENTS = (
    "int",
    "uint",
    "double",
    "bool",
    "google.protobuf.Duration",
    "google.protobuf.Timestamp",
    "string",
    "bytes",
)
_BY_OVERLOAD: dict[str, Estimator] = {
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "lists_range": lambda args: _allocated(1, fixed(_number(args[0], LIMIT))),
    "list_reverse": lambda args: _allocated(1, args[0].extent),
    "list_distinct": _squared(0, 2.0),
    **{f"list_{t}_sort": _squared(0, 2.1 if t in ("string", "bytes") else 2.0) for t in _ELEMENTS},
    **{
        f"list_{t}_sortByAssociatedKeys": _squared(1, 2.1 if t in ("string", "bytes") else 2.0) for t in _ELEMENTS
    },
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
    "string_format": _scan(0),
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _from_bytes,
    "strings_quote": _quote,
    "starts_with_string": _scan(1),
    "ends_with_string": _scan(1),
    "in_list": _in_list,
    "cidr_contains_ip_string": _compared_bits(_IN_IP, text=True),
    "cidr_contains_ip_ip": _compared_bits(_IN_IP, text=False),
    "cidr_contains_cidr_string": _compared_bits(_IN_CIDR, text=True),
    "cidr_contains_cidr": _compared_bits(_IN_CIDR, text=False),
    "matches_string": _match,
    "contains_string": _contains,
    **{
        f"{word}_{t}": _compare
        for word in ("less", "less_equals", "greater", "greater_equals")
        for t in ("string", "bytes")
    },
    "not_equals": _compare,
}  # fmt: skip


def _equals(args: list[Argument]) -> Estimate:
    left, right = args[0].type, args[1].type
    name = getattr(left, "name", "")
    if name == getattr(right, "name", "") and left.shape in ("opaque", "object"):
        if name in ("net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"):
            return Estimate(ONE)
        if name == "kubernetes.NamedFormat":
            return Estimate(Cost(1, 64).scaled(_PER_CHARACTER))
        if name == "kubernetes.URL":
            size = args[1].size or ONE
            return Estimate(Cost(1, size.max).scaled(_PER_CHARACTER))
    return _compare(args)


def estimate_call(function: str, overload: str, args: list[Argument]) -> Estimate:
    """The estimate of one overload of a function."""
    if overload == "equals":
        return _equals(args)
    estimator: Estimator | None = None
    if overload in _BY_OVERLOAD and overload.startswith("list"):
        estimator = _BY_OVERLOAD[overload]
    elif function == "ip":
        estimator = _one if overload == "cidr_ip" else _scan(0)
    else:
        estimator = _BY_FUNCTION.get(function) or _BY_OVERLOAD.get(overload)
    return (estimator(args) if estimator else None) or Estimate(ONE)
