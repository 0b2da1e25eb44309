"""The operators that have rules of their own, and the reading of data.

The first part reads variables, fields and indexes. Data stay as they are; a single value is converted when it is read,
and only if the schema gives a string another meaning (times, bytes), a number another type (double) or a list another
kind (set, map). The second part has `&&`, `||`, `? :`, `==`, order, `in` and the arithmetic of integers, each in a
fast form for types that the checker knows, and in a general form.
"""

import operator
from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel import values
from tink.kubeapi.cel.costs import comparison_cost
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.frame import (
    ABSORBED,
    OBJECT,
    ClockedComparison,
    Code,
    Frame,
    Run,
    Traversal,
    as_error,
    bring_clock_nearer,
    charged,
    constant,
    end_slice,
)
from tink.kubeapi.cel.library.conversions import json_duration, json_timestamp, signed
from tink.kubeapi.cel.library.named_formats import decoded
from tink.kubeapi.cel.types import CelType, ListType, MapType, ObjectType
from tink.kubeapi.cel.values import (
    ABSENT,
    MapList,
    Optional,
    SetList,
    UInt,
    contains,
    equal,
    lists_equal,
    no_overload,
    shown,
    type_name,
)

Reader = Callable[[Any], Any]


def missing_key(key: Any) -> EvaluationError:
    """Return the error for a missing key or field."""
    return EvaluationError(f"no such key: {shown(key)}")


def _json_bytes(value: Any) -> Any:
    data = decoded(value) if type(value) is str else value
    if data is None and value is not None:
        raise EvaluationError(f"Invalid byte formatted string {value}")
    return data


_SCALARS: dict[str, Reader] = {
    "timestamp": json_timestamp,
    "duration": json_duration,
    "bytes": _json_bytes,
    "double": lambda value: float(value) if type(value) is int else value,
}


def reader(t: CelType) -> Reader | None:
    """Return a function that converts a JSON value of a declared type, or None if such values need no conversion."""
    if isinstance(t, MapType):
        read_value = reader(t.value)
        if read_value is None:
            return None
        read = read_value
        return lambda items: {key: read(value) for key, value in items.items()} if type(items) is dict else items
    if not isinstance(t, ListType):
        return _SCALARS.get(t.shape)
    read_element, keys = reader(t.element), t.keys
    if t.kind == "set":
        return lambda items: SetList(map(read_element, items) if read_element else items)
    if t.kind == "map":
        return lambda items: MapList(items, keys)
    if read_element is None:
        return None
    convert = read_element
    return lambda items: [convert(item) for item in items] if type(items) is list else items


def read_slot(slot: int, t: CelType | None = None) -> Code:
    """Return code that reads a place in the frame: a loop's variable, or a variable of a declared type."""
    read = reader(t) if t else None
    if read is None:
        return Code(lambda frame: frame[slot], 1, attribute=True)
    convert = read
    return Code(lambda frame: convert(frame[slot]), 1, attribute=True)


# fields of declared objects


def read_field(operand: Run, name: str, t: CelType, known_as: str) -> Run:
    """Return a function that reads a declared field. A null field counts as absent.

    Errors contain `known_as`, the name of the field in the expression.
    """
    read = reader(t)

    def plain(frame: Frame) -> Any:
        value = operand(frame).get(name)
        if value is None:
            raise missing_key(known_as)
        return value

    if read is None:
        return plain
    convert = read
    return lambda frame: convert(plain(frame))


# keys and indexes


def _place(at: Any) -> int:
    if type(at) is int or type(at) is UInt:
        return int(at)
    if type(at) is float:
        if at == int(at):
            return int(at)
        raise EvaluationError(f"unsupported index value {shown(at)} in list")
    raise EvaluationError(f"unsupported index type '{type_name(at)}' in list")


_NOTHING = object()


_KEYS = frozenset((str, int, UInt, bool, float))


def checked_key(key: Any) -> None:
    """Check that a value can be an index or key. Raises EvaluationError for a list, null and so on."""
    if type(key) not in _KEYS:
        raise EvaluationError(f"invalid qualifier type: {type_name(key)}")


def _find(value: Any, key: Any) -> Any:
    """Return the value at an index or key of a list or map, or of an optional one; or _NOTHING."""
    if type(value) is Optional:
        value = value.value
    if type(value) is dict:
        found = value.get(key, _NOTHING)
        if found is not _NOTHING and type(key) in (bool, int, UInt, float):
            # True and 1 are one key in Python.
            is_bool = type(key) is bool
            return found if any(k == key and (type(k) is bool) is is_bool for k in value) else _NOTHING
        return found
    if isinstance(value, list):
        at = _place(key)
        return value[at] if 0 <= at < len(value) else _NOTHING
    return _NOTHING


def _get(value: Any, key: Any) -> Any:
    """Return the value at an index or key. An optional gives an optional. Raises EvaluationError if there is none."""
    checked_key(key)
    if type(value) is Optional:
        return _get_optional(value, key)
    found = _find(value, key)
    if found is _NOTHING:
        raise EvaluationError(f"index out of bounds: {shown(key)}") if isinstance(value, list) else missing_key(key)
    return found


def _get_optional(value: Any, key: Any) -> Optional:
    """Return the value at an index or key as an optional."""
    checked_key(key)
    found = _find(value, key)
    return ABSENT if found is _NOTHING else Optional(found)


def read_string_key(operand: Run, name: str) -> Run:
    """Return a function that reads a key of a map, or of a value whose type is known only at evaluation."""

    def run(frame: Frame) -> Any:
        value = operand(frame)
        if type(value) is dict:
            found = value.get(name, _NOTHING)
            if found is not _NOTHING:
                return found
            raise missing_key(name)
        return _get(value, name)

    return run


def has_key(operand: Run, name: str) -> Run:
    """Return a function that tests if a map has a key. A value that is not a map has none."""
    return lambda frame: _find(operand(frame), name) is not _NOTHING


def read_index(operand: Run, at: Run) -> Run:
    """Return a function that reads by an index or key of any type."""

    def run(frame: Frame) -> Any:
        items, place = operand(frame), at(frame)
        if type(items) is list and type(place) is int and 0 <= place < len(items):
            return items[place]  # the most frequent case by far
        return _get(items, place)

    return run


def read_optional_index(operand: Run, at: Run) -> Run:
    """Return a function that reads an optional by index or key. It charges only if the value is present."""

    def run(frame: Frame) -> Optional:
        found = _get_optional(operand(frame), at(frame))
        if found.present:
            frame[0] -= 1
        return found

    return run


def read_optional_field(operand: Run, name: str, target: CelType, t: CelType) -> Run:
    """Return a function that reads an optional by field or key. It charges only if the value is present."""
    declared = isinstance(target, ObjectType)
    read = reader(t) if declared else None

    def run(frame: Frame) -> Optional:
        found = _find(operand(frame), name)
        if found is _NOTHING or (declared and found is None):
            return ABSENT
        frame[0] -= 1
        return Optional(read(found) if read else found)

    return run


def logical(terms: list[Code], *, stop: bool) -> Code:
    """Compile `||` (`stop` is True) or `&&` (`stop` is False).

    The first term equal to `stop` decides. An error counts only if no term decides.
    """
    runs = [(0, terms[0].run), *((term.cost, term.run) for term in terms[1:])]

    def run(frame: Frame) -> bool:
        failed: BaseException | None = None
        for cost, term in runs:
            frame[0] -= cost
            if frame[0] < 0:
                end_slice(frame)
            try:
                value: Any = term(frame)
                if value is stop:
                    return bool(value)
                if type(value) is not bool:
                    raise no_overload()
            except ABSORBED as error:
                failed = failed or error
        if failed is not None:
            raise as_error(failed)
        return not stop

    return Code(run, terms[0].cost)


def negation(code: Code) -> Code:
    """Compile `!x`."""
    inner = code.run

    def run(frame: Frame) -> bool:
        value = inner(frame)
        if value is True:
            return False
        if value is False:
            return True
        raise no_overload()

    return Code(run, code.cost + 1)


def conditional(test: Code, truthy: Code, falsy: Code) -> Code:
    """Compile `a ? b : c`. A branch that only reads a variable is cheaper by that read, as in cel-go."""
    branches = [charged(code, code.cost - 1 if code.attribute else code.cost) for code in (truthy, falsy)]
    decide, yes, no = test.run, branches[0], branches[1]

    def run(frame: Frame) -> Any:
        value = decide(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise no_overload()

    # Not attribute=True: an outer condition would subtract the cost of reading a variable a second time.
    return Code(run, test.cost)


# equality


def _plain(t: CelType) -> bool:
    """Return True if Python's == is right for JSON values of the type."""
    if isinstance(t, ListType):
        return t.kind == "atomic" and _plain(t.element)
    if isinstance(t, MapType):
        return _plain(t.value)
    if isinstance(t, ObjectType):
        return all(_plain(f.type) for f in t.fields.values())
    return t.shape in ("int", "bool", "string", "double")


def equality(t: CelType) -> Callable[[Any, Any], bool]:
    """Return the equality for values of a declared type that come from an object, whose size in memory is their real
    size.
    """
    if t.shape in ("int", "bool", "string"):
        return operator.eq
    if isinstance(t, ObjectType) and t.fields:
        if _plain(t):
            return operator.eq
        return _object_equality(t)
    if isinstance(t, ListType) and isinstance(t.element, ObjectType):
        same = equality(t.element)
        return lambda a, b: lists_equal(a, b, same)
    return equal


def _object_equality(t: ObjectType) -> Callable[[Any, Any], bool]:
    fields = {f.name_in_json: (equality(f.type), reader(f.type)) for f in t.fields.values()}

    def same(a: Any, b: Any) -> bool:
        if type(a) is not dict or type(b) is not dict or len(a) != len(b):
            return equal(a, b)
        for key, value in a.items():
            other = b.get(key)
            if value is None or other is None:
                if value is not other or key not in b:
                    return False
                continue
            compare, read = fields.get(key, (operator.eq, None))
            if not compare(read(value) if read else value, read(other) if read else other):
                return False
        return True

    return same


def _equality_in_frame(t: CelType) -> Callable[[Frame, Any, Any], bool]:
    """Return the equality for values that rules may have built. It counts the nodes that it visits."""
    same = equality(t)
    if isinstance(t, ObjectType) and t.fields:

        def objects_equal(frame: Frame, a: Any, b: Any) -> bool:
            bring_clock_nearer(frame, OBJECT)
            return same(a, b)

        return objects_equal
    if isinstance(t, ListType) and isinstance(t.element, ObjectType) and t.element.fields:
        element = equality(t.element)
        return lambda frame, a, b: ClockedComparison(frame).lists_equal(a, b, element)
    return _walked


_DEEP = frozenset((list, values.SetList, values.MapList, dict, values.Optional))


def _walked(frame: Frame, a: Any, b: Any) -> bool:
    return Traversal(frame, (a, b)).equal(a, b) if type(a) in _DEEP else equal(a, b)


def equals(left: Code, right: Code, t: CelType, other: CelType, *, wanted: bool) -> Code:
    """Compile `==` (`wanted` is True) and `!=`. `t` and `other` are the types of the sides."""
    a, b = left.run, right.run
    fixed = left.cost + right.cost
    known = t.shape == other.shape and t.shape not in ("dyn", "typevar")
    if known and t.shape in ("int", "bool"):
        return Code(lambda frame: (a(frame) == b(frame)) is wanted, fixed + 1)
    same = _equality_in_frame(t) if known else _walked

    def run_strings(frame: Frame) -> bool:
        x, y = a(frame), b(frame)
        size = min(len(x), len(y))
        frame[0] -= 1 if 0 < size <= 10 else values.cost_of(size)
        return (x == y) is wanted

    def run(frame: Frame) -> bool:
        x, y = a(frame), b(frame)
        frame[0] -= 1 if wanted and isinstance(x, values.OpaqueValue) else comparison_cost(x, y)
        return same(frame, x, y) is wanted

    return Code(run_strings if known and t.shape == "string" else run, fixed)


# order

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
}


def ordered(function: str, left: Code, right: Code, t: CelType, other: CelType, overloads: list[str]) -> Code:
    """Compile `<`, `<=`, `>` and `>=`."""
    a, b = left.run, right.run
    fixed = left.cost + right.cost
    test = _ORDER[function]
    if t.shape == other.shape and t.shape in ("int", "uint"):
        return Code(lambda frame: test(a(frame), b(frame)), fixed + 1)
    sized = len(overloads) == 1 and t.shape in ("string", "bytes")

    def run(frame: Frame) -> bool:
        x, y = a(frame), b(frame)
        if sized:
            frame[0] -= comparison_cost(x, y)
        if type(x) not in values.COMPARABLE:
            raise EvaluationError(f"no such overload: {function}")
        return test(values.compare(x, y), 0)

    return Code(run, fixed if sized else fixed + 1)


# membership


def member_of_constant(value: Code, items: list[Any]) -> Code | None:
    """Compile `x in [constants]` as one look-up, like cel-go. Return None if the constants do not allow it."""
    if not items:
        return constant(False)
    if not all(type(item) in (str, int, bool, float, values.UInt) for item in items):
        return None
    inner = value.run
    if all(type(item) is str for item in items):
        members = frozenset(items)

        def run(frame: Frame) -> bool:
            found = inner(frame)
            return type(found) is str and found in members

        return Code(run, value.cost)
    return Code(lambda frame: contains(items, inner(frame)), value.cost)


# arithmetic on integers

_WHOLE = {"add_int64": operator.add, "subtract_int64": operator.sub, "multiply_int64": operator.mul}


def integer_arithmetic(overload: str, left: Code, right: Code) -> Code | None:
    """Compile `+`, `-` and `*` for integers. Return None for other overloads."""
    compute = _WHOLE.get(overload)
    if compute is None:
        return None
    a, b = left.run, right.run

    def run(frame: Frame) -> int:
        return signed(compute(a(frame), b(frame)))

    return Code(run, left.cost + right.cost + 1)
