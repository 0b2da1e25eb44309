"""The values of CEL: classes for those that JSON does not have, and type, size, equality and order of all values.

JSON values stay as they are: None, bool, int, float, str, list, dict; bytes as well. The other classes are here and in
the modules of `library`.

Equality is deep. A list `[a, a]` that is put into itself n times is small in memory and has 2**n parts, so a comparison
counts the nodes that it visits (`frame.Traversal`). The function `equal` does not count; it is for data, whose size in
memory is their real size.
"""

import itertools
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tink.golang.strconv import format_float
from tink.kubeapi.cel.errors import EvaluationError

MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
MAX_UINT = 2**64 - 1
TRAVERSAL_COST = 0.1
"""Cost of reading one character."""


def no_overload() -> EvaluationError:
    """Return the error for arguments of types that a function does not accept."""
    return EvaluationError("no such overload")


class UInt(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


class SetList(list[Any]):
    """A list whose schema calls it a set: `==` ignores the order, `+` is the union."""

    __slots__ = ()


class MapList(list[Any]):
    """A list whose schema identifies its elements by `keys`: `==` ignores the order, `+` merges by keys."""

    __slots__ = ("keys",)

    def __init__(self, items: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(items)
        self.keys = keys

    def key(self, item: Any) -> Any:
        """Return the key of an element."""
        return tuple(hashable(item.get(key)) for key in self.keys)


@dataclass(slots=True, unsafe_hash=True)
class TypeValue:
    """A type as a value, the result of `type(x)`."""

    name: str


class Optional:
    """A value that may be absent."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any, *, present: bool = True) -> None:
        self.value = value
        self.present = present

    def get(self) -> Any:
        """Return the value. Raises EvaluationError if it is absent."""
        if not self.present:
            raise EvaluationError("optional.none() dereference")
        return self.value


ABSENT = Optional(None, present=False)


@dataclass(slots=True, order=True, unsafe_hash=True)
class Duration:
    """A span of time in nanoseconds, within 64 bits."""

    ns: int


@dataclass(slots=True, order=True, unsafe_hash=True)
class Timestamp:
    """An instant in nanoseconds since 1970 in UTC. `offset` in minutes is the time zone of its text."""

    ns: int
    offset: int = field(default=0, compare=False)


class OpaqueValue:
    """The base of values that only functions can read. `type_name` is their type."""

    __slots__ = ()
    type_name: ClassVar[str] = ""

    def size_for_cost(self) -> int:
        """Return the size of the value for costs."""
        return 1


_TYPE_NAMES: dict[type, str] = {
    type(None): "null_type",
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    SetList: "list",
    MapList: "list",
    dict: "map",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    TypeValue: "type",
    Optional: "optional_type",
}


def type_name(value: Any) -> str:
    """Return the name of a value's type at evaluation, where objects are maps."""
    name = _TYPE_NAMES.get(type(value))
    return name if name is not None else str(getattr(value, "type_name", "dyn"))


def size_for_cost(value: Any) -> int:
    """Return the size of a value for costs: elements, characters, bytes; 1 for values without size."""
    kind = type(value)
    if kind is str or kind is list or kind is dict or kind is bytes or kind is SetList or kind is MapList:
        return len(value)
    if kind is Optional:
        return size_for_cost(value.value) if value.present else 1
    return value.size_for_cost() if isinstance(value, OpaqueValue) else 1


def rounded_up(value: float) -> int:
    """Round a number that is not negative up to an integer."""
    whole = int(value)
    return whole if whole == value else whole + 1


def cost_of(size: float) -> int:
    """Return the cost of reading `size` characters, rounded up."""
    cost = size * TRAVERSAL_COST
    whole = int(cost)
    return whole if whole == cost else whole + 1


def traversal(value: Any) -> int:
    """Return the cost of reading a value and everything in it (k8s.io/apiserver, pkg/cel/library/cost.go)."""
    kind = type(value)
    if kind is str:
        return int((len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))) * TRAVERSAL_COST)
    if kind is bytes:
        return int(len(value) * TRAVERSAL_COST)
    if isinstance(value, list):
        total = 0
        for item in value:
            total += len(item) // 10 if type(item) is str and item.isascii() else traversal(item)
        return total
    if kind is dict:
        return sum(traversal(k) + traversal(v) for k, v in value.items())
    return 1


# equality


def hashable(value: Any) -> Any:
    """Return a key that is equal only for equal scalars. true and 1 differ."""
    return (bool, value) if value is True or value is False else value


NUMBERS = (int, float, UInt)
"""The Python types of numbers."""


# order

_ORDERED = frozenset((str, bytes, bool, Timestamp, Duration))
COMPARABLE = _ORDERED | frozenset(NUMBERS)
"""The Python types of values that have an order."""


def compare(a: Any, b: Any) -> int:
    """Return -1, 0 or 1. Raises EvaluationError for NaN, and for types that have no common order."""
    kind, other = type(a), type(b)
    if kind in NUMBERS and other in NUMBERS:
        if kind is float or other is float:
            if a != a or b != b:
                raise EvaluationError("NaN values cannot be ordered")
            if MIN_INT <= a <= MAX_UINT and MIN_INT <= b <= MAX_UINT:
                a, b = float(a), float(b)
    elif kind is not other or kind not in _ORDERED:
        raise no_overload()
    return -1 if a < b else 0 if a == b else 1


def is_zero(value: Any) -> bool:
    """Return True if a value is the zero value of its type."""
    kind = type(value)
    if kind is Timestamp:
        return bool(value.ns == -62135596800 * 10**9)
    if kind is Duration:
        return bool(value.ns == 0)
    if value is None:
        return True
    return isinstance(value, int | float | str | bytes | list | dict) and not value


# texts


def double_text(value: float) -> str:
    """Return a double like Go's %g: the shortest text, with an exponent from 1e+06 on."""
    return format_float(value, "g")


_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxdict, _brief.maxstring, _brief.maxother = 3, 10, 10, 200, 200


def shown(value: Any) -> str:
    """Return a value for error texts. Long lists and maps are cut."""
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return double_text(value)
    if value is None:
        return "null"
    return _brief.repr(value) if isinstance(value, list | dict) else str(value)


CHUNK = 64
"""Number of list elements that are compared between two counts."""
TEXT = 64
"""Number of characters that count as one node: comparing and copying text is fast, but not free."""

_PLAIN = frozenset((str, bool, int, float, bytes, type(None)))


class Comparison:
    """The comparisons. They call `visit` with the number of nodes before they read them."""

    __slots__ = ()

    def visit(self, nodes: int) -> None:
        """Count nodes. Does nothing here."""

    def equal(self, a: Any, b: Any) -> bool:
        """Return CEL's equality: numbers by value, lists and maps by content. Values of different types differ."""
        kind = type(a)
        other = type(b)
        if kind is other and kind in _PLAIN:
            if (kind is str or kind is bytes) and len(a) > TEXT and len(a) == len(b):
                self.visit(len(a) // TEXT)
            return bool(a == b)
        if kind in NUMBERS:
            if other not in NUMBERS:
                return False
            # Compared as doubles if one of them is a double, as in cel-go.
            return float(a) == float(b) if kind is float or other is float else bool(a == b)
        if isinstance(a, list):
            return isinstance(b, list) and self.lists_equal(a, b)
        if kind is dict:
            return other is dict and self.maps_equal(a, b)
        if kind is Optional:
            return other is Optional and a.present is b.present and (not a.present or self.equal(a.value, b.value))
        return kind is other and bool(a == b)

    def lists_equal(self, a: list[Any], b: list[Any], same: Callable[[Any, Any], bool] | None = None) -> bool:
        """Compare lists by the kind of the left list. `same` compares elements; the default is `equal`."""
        size = len(a)
        if size != len(b):
            return False
        if type(a) is SetList:
            self.visit(size + 1)
            members = set(map(hashable, a))
            return all(hashable(item) in members for item in b)
        same = same or self.equal
        if type(a) is MapList:
            keyed = {a.key(item): item for item in a}
            keys = list(map(a.key, b))
            if not all(key in keyed for key in keys):
                return False
            a = [keyed[key] for key in keys]
        if size <= CHUNK:
            self.visit(size + 1)
            return all(map(same, a, b))
        for at in range(0, size, CHUNK):
            self.visit(CHUNK)
            if not all(map(same, a[at : at + CHUNK], b[at : at + CHUNK])):
                return False
        return True

    def maps_equal(self, a: dict[Any, Any], b: dict[Any, Any]) -> bool:
        """Compare maps."""
        if len(a) != len(b):
            return False
        self.visit(len(a) + 1)
        return all(key in b and self.equal(value, b[key]) for key, value in a.items())

    def contains(self, items: list[Any], value: Any) -> bool:
        """Return True if a list has an element equal to the value."""
        if type(value) is str:
            if len(value) > TEXT:
                alike = sum(type(item) is str and len(item) == len(value) for item in items)
                self.visit(len(value) // TEXT * alike)
            return value in items
        return any(map(self.equal, items, itertools.repeat(value)))


_UNCOUNTED = Comparison()
equal = _UNCOUNTED.equal
lists_equal = _UNCOUNTED.lists_equal
contains = _UNCOUNTED.contains
