"""The operators with rules of their own: `&&`, `||`, `? :`, `==`, order, `in` and the arithmetic of whole numbers.

Each comes in a quick form for types that the check has settled, and in a general one.
"""

import operator
from collections.abc import Callable
from typing import Any

from tink.kubeapi.cel import values
from tink.kubeapi.cel.code import ABSORBED, Code, Frame, Run, as_error, charged, constant, overdrawn
from tink.kubeapi.cel.cost.charges import smaller
from tink.kubeapi.cel.cost.traversal import OBJECT, Glance, Traversal, look_sooner
from tink.kubeapi.cel.equality import contains, equal, lists_equal
from tink.kubeapi.cel.errors import EvaluationError
from tink.kubeapi.cel.evaluate.access import reader
from tink.kubeapi.cel.library.conversions import signed
from tink.kubeapi.cel.types import ListType, MapType, ObjectType, Type
from tink.kubeapi.cel.values import no_overload


def logical(terms: list[Code], *, stop: bool) -> Code:
    """`||` (`stop` is True) or `&&` (False): the first term that is `stop` decides; errors count only if none is."""
    runs = [(0, terms[0].run), *((term.cost, term.run) for term in terms[1:])]

    def run(frame: Frame) -> bool:
        failed: BaseException | None = None
        for cost, term in runs:
            frame[0] -= cost
            if frame[0] < 0:
                overdrawn(frame)
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
    """`!x`."""
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
    """`a ? b : c`; a branch that only reads a variable is cheaper by that read."""
    branches = [charged(code, code.cost - 1 if code.attribute else code.cost) for code in (truthy, falsy)]
    decide, yes, no = test.run, branches[0], branches[1]

    def run(frame: Frame) -> Any:
        value = decide(frame)
        if value is True:
            return yes(frame)
        if value is False:
            return no(frame)
        raise no_overload()

    # The fixed cost of 0 with attribute=True would be taken off again by an outer condition, hence the plain Code.
    return Code(run, test.cost)


# equality


def _plain(t: Type) -> bool:
    """Whether Python's == does for JSON values of the type."""
    if isinstance(t, ListType):
        return t.kind == "atomic" and _plain(t.element)
    if isinstance(t, MapType):
        return _plain(t.value)
    if isinstance(t, ObjectType):
        return all(_plain(f.type) for f in t.fields.values())
    return t.shape in ("int", "bool", "string", "double")


def equality(t: Type) -> Callable[[Any, Any], bool]:
    """The equality of values of a declared type that come from an object, and so are as large as they look."""
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


def _equality_in_frame(t: Type) -> Callable[[Frame, Any, Any], bool]:
    """The same for values that rules may have made: what is walked through is counted."""
    same = equality(t)
    if isinstance(t, ObjectType) and t.fields:

        def objects_equal(frame: Frame, a: Any, b: Any) -> bool:
            look_sooner(frame, OBJECT)
            return same(a, b)

        return objects_equal
    if isinstance(t, ListType) and isinstance(t.element, ObjectType) and t.element.fields:
        element = equality(t.element)
        return lambda frame, a, b: Glance(frame).lists_equal(a, b, element)
    return _walked


_DEEP = frozenset((list, values.SetList, values.MapList, dict, values.Optional))


def _walked(frame: Frame, a: Any, b: Any) -> bool:
    return Traversal(frame, (a, b)).equal(a, b) if type(a) in _DEEP else equal(a, b)


def equals(left: Code, right: Code, t: Type, other: Type, *, wanted: bool) -> Code:
    """`==` (`wanted` is True) and `!=`. `t` and `other` are the types of the sides."""
    a, b = left.run, right.run
    fixed = left.cost + right.cost
    known = t.shape == other.shape and t.shape not in ("dyn", "typevar")
    if known and t.shape in ("int", "bool"):
        return Code(lambda frame: (a(frame) == b(frame)) is wanted, fixed + 1)
    same = _equality_in_frame(t) if known else _walked
    opaque = t.shape == "opaque" or (isinstance(t, ObjectType) and not t.fields)
    if wanted and known and opaque and getattr(t, "name", "") != "optional_type":
        return Code(lambda frame: same(frame, a(frame), b(frame)) is wanted, fixed + 1)
    if known and t.shape == "string":
        return Code(_string_equality(a, b, wanted=wanted), fixed)

    def run(frame: Frame) -> bool:
        x, y = a(frame), b(frame)
        frame[0] -= 1 if wanted and isinstance(x, values.OpaqueValue) else smaller(x, y)
        return same(frame, x, y) is wanted

    return Code(run, fixed)


def _string_equality(a: Run, b: Run, *, wanted: bool) -> Run:
    def run(frame: Frame) -> bool:
        x, y = a(frame), b(frame)
        size = min(len(x), len(y))
        frame[0] -= 1 if 0 < size <= 10 else values.cost_of(size)
        return (x == y) is wanted

    return run


# order

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "_<_": operator.lt,
    "_<=_": operator.le,
    "_>_": operator.gt,
    "_>=_": operator.ge,
}
_WANTED: dict[str, tuple[int, ...]] = {"_<_": (-1,), "_<=_": (-1, 0), "_>_": (1,), "_>=_": (1, 0)}


def ordered(function: str, left: Code, right: Code, t: Type, other: Type, overloads: list[str]) -> Code:
    """`<`, `<=`, `>`, `>=`."""
    a, b = left.run, right.run
    fixed = left.cost + right.cost
    if t.shape == other.shape and t.shape in ("int", "uint"):
        test = _ORDER[function]
        return Code(lambda frame: test(a(frame), b(frame)), fixed + 1)
    wanted = _WANTED[function]
    sized = len(overloads) == 1 and t.shape in ("string", "bytes")

    def run(frame: Frame) -> bool:
        x, y = a(frame), b(frame)
        if sized:
            frame[0] -= smaller(x, y)
        if type(x) not in values.COMPARABLE:
            raise EvaluationError(f"no such overload: {function}")
        return values.compare(x, y) in wanted

    return Code(run, fixed if sized else fixed + 1)


# membership


def member_of_constant(value: Code, items: list[Any]) -> Code | None:
    """`x in [constants]` as one look-up, as Kubernetes plans it; None if the constants do not allow it."""
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


# arithmetic on whole numbers

_WHOLE = {"add_int64": operator.add, "subtract_int64": operator.sub, "multiply_int64": operator.mul}


def whole(overload: str, left: Code, right: Code) -> Code | None:
    """`+`, `-`, `*` on integers; None for other overloads."""
    compute = _WHOLE.get(overload)
    if compute is None:
        return None
    a, b = left.run, right.run

    def run(frame: Frame) -> int:
        return signed(compute(a(frame), b(frame)))

    return Code(run, left.cost + right.cost + 1)
