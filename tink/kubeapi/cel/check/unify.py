"""When one type can stand for another: assignability and the substitution of type variables.

The rules are those of CEL's type checker (cel-spec; cel-go, checker/types.go): dyn goes with everything,
null with every object, opaque and time type, and a type variable with the first type it meets.
"""

from collections.abc import Mapping

from tink.kubeapi.cel.types import DYN, Opaque, Type, TypeVar, rebuilt, same


class Substitution(dict[str, Type]):
    """What type variables stand for, with a trail by which an attempt that fails is taken back."""

    __slots__ = ("trail",)

    def __init__(self, given: Mapping[str, Type] | None = None) -> None:
        super().__init__(given or {})
        self.trail: list[tuple[str, Type | None]] = []

    def bind(self, name: str, t: Type) -> None:
        """Lets a variable stand for a type."""
        self.trail.append((name, self.get(name)))
        self[name] = t

    def undo(self) -> None:
        """Takes back what was bound since the trail was last empty."""
        while self.trail:
            name, before = self.trail.pop()
            if before is None:
                del self[name]
            else:
                self[name] = before


_NULLABLE = frozenset(("opaque", "object", "duration", "timestamp"))


def substitute(bound: Substitution, t: Type, *, free_to_dyn: bool = False) -> Type:
    """`t` with its bound variables replaced; with `free_to_dyn` the others become dyn."""
    if isinstance(t, TypeVar):
        found = bound.get(t.name)
        if found is not None:
            return substitute(bound, found, free_to_dyn=free_to_dyn)
        return DYN if free_to_dyn else t
    params = t.params
    if not params:
        return t
    replaced = tuple(substitute(bound, p, free_to_dyn=free_to_dyn) for p in params)
    return t if all(a is b for a, b in zip(params, replaced, strict=True)) else rebuilt(t, replaced)


def is_dyn(t: Type) -> bool:
    """Whether the type is known only at evaluation."""
    return t.shape == "dyn"


def _general(a: Type, b: Type) -> bool:
    """Whether `a` is equal to `b` or says less."""
    if is_dyn(a) or isinstance(a, TypeVar):
        return True
    if is_dyn(b) or isinstance(b, TypeVar) or a.shape != b.shape:
        return False
    if a.shape == "type":
        return True
    if a.params:
        names = getattr(a, "name", "") == getattr(b, "name", "")
        return names and len(a.params) == len(b.params) and all(map(_general, a.params, b.params))
    return same(a, b)


def most_general(a: Type, b: Type) -> Type:
    """The one of two fitting types that says less."""
    return a if _general(a, b) else b


def _occurs(bound: Substitution, variable: TypeVar, t: Type) -> bool:
    if isinstance(t, TypeVar):
        if t.name == variable.name:
            return True
        found = bound.get(t.name)
        return found is not None and _occurs(bound, variable, found)
    return any(_occurs(bound, variable, p) for p in t.params)


def _bind(bound: Substitution, t: Type, variable: TypeVar) -> tuple[bool, bool]:
    """Whether `variable` can stand for `t`, and whether it was bound before."""
    if isinstance(t, TypeVar) and t.name == variable.name:
        return True, True
    found = bound.get(variable.name)
    if found is None:
        if _occurs(bound, variable, t):
            return False, False
        bound.bind(variable.name, t)
        return True, False
    if same(t, found):
        return True, True
    if _fits(bound, t, found):
        general = most_general(t, found)
        if not _occurs(bound, variable, general):
            bound.bind(variable.name, general)
        return True, True
    return False, True


def _fits(bound: Substitution, a: Type, b: Type) -> bool:
    if isinstance(b, TypeVar):
        valid, had = _bind(bound, a, b)
        if valid or had:
            return valid
    if isinstance(a, TypeVar):
        return _bind(bound, b, a)[0]
    left, right = a.shape, b.shape
    if left in ("dyn", "!error!") or right in ("dyn", "!error!"):
        return True
    if left == "null":
        return right == "null" or right in _NULLABLE
    if right == "null":
        return left in _NULLABLE
    if left != right:
        return False
    if left == "type":
        return True
    if left in ("list", "map", "opaque"):
        if isinstance(a, Opaque) and isinstance(b, Opaque) and a.name != b.name:
            return False
        pairs = zip(a.params, b.params, strict=False)
        return len(a.params) == len(b.params) and all(_fits(bound, x, y) for x, y in pairs)
    return same(a, b)


def assignable(bound: Substitution, given: list[Type], wanted: list[Type]) -> bool:
    """Whether every given type can stand for the wanted one; binds what is needed for it."""
    if len(given) != len(wanted):
        return False
    bound.trail.clear()
    if all(_fits(bound, a, b) for a, b in zip(given, wanted, strict=True)):
        return True
    bound.undo()
    return False
