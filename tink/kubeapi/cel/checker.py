"""The type check: sets the type of every node and the possible overloads of every call, or reports compile errors.

Kubernetes checks the expressions of a CustomResourceDefinition when a client creates it, so users know these messages:
undefined fields, undeclared references, overloads that do not exist. The file has three parts: assignability of types,
the check of constants after the type check, and the type check itself.

The rules for types are those of CEL (cel-spec; cel-go, checker/types.go): dyn fits everything, null fits every object,
opaque and time type, and a type variable is bound to the first type that it meets.
"""

from collections.abc import Iterator, Mapping

from tink.kubeapi.cel import types
from tink.kubeapi.cel.errors import CelError, EvaluationError, Issue, report
from tink.kubeapi.cel.library.functions import FUNCTIONS, OVERLOADS, TYPE_NAMES, Overload
from tink.kubeapi.cel.library.regex import PatternError, compile_pattern
from tink.kubeapi.cel.library.strings import ClauseError, allowed, clauses
from tink.kubeapi.cel.tree import (
    Call,
    Comprehension,
    Expr,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Select,
    StructNode,
    Visitor,
    children,
    qualified,
)


class _Substitution(dict[str, types.CelType]):
    """The types of type variables. A trail records the bindings of an attempt, so that it can be undone."""

    __slots__ = ("trail",)

    def __init__(self, given: Mapping[str, types.CelType] | None = None) -> None:
        super().__init__(given or {})
        self.trail: list[tuple[str, types.CelType | None]] = []

    def bind(self, name: str, t: types.CelType) -> None:
        """Bind a variable to a type."""
        self.trail.append((name, self.get(name)))
        self[name] = t

    def undo(self) -> None:
        """Undo the bindings since the trail was last cleared."""
        while self.trail:
            name, before = self.trail.pop()
            if before is None:
                del self[name]
            else:
                self[name] = before


_NULLABLE = frozenset(("opaque", "object", "duration", "timestamp"))


def _substitute(bound: _Substitution, t: types.CelType, *, free_to_dyn: bool = False) -> types.CelType:
    """Return a type with its bound variables replaced. With `free_to_dyn` the other variables become dyn."""
    if isinstance(t, types.TypeVar):
        found = bound.get(t.name)
        if found is not None:
            return _substitute(bound, found, free_to_dyn=free_to_dyn)
        return types.DYN if free_to_dyn else t
    params = t.params
    if not params:
        return t
    replaced = tuple(_substitute(bound, p, free_to_dyn=free_to_dyn) for p in params)
    return t if all(a is b for a, b in zip(params, replaced, strict=True)) else types.with_params(t, replaced)


def _general(a: types.CelType, b: types.CelType) -> bool:
    """Return True if `a` is equal to `b` or more general."""
    if a.shape == "dyn" or isinstance(a, types.TypeVar):
        return True
    if b.shape == "dyn" or isinstance(b, types.TypeVar) or a.shape != b.shape:
        return False
    if a.shape == "type":
        return True
    if a.params:
        names = getattr(a, "name", "") == getattr(b, "name", "")
        return names and len(a.params) == len(b.params) and all(map(_general, a.params, b.params))
    return types.same(a, b)


def _occurs(bound: _Substitution, variable: types.TypeVar, t: types.CelType) -> bool:
    if isinstance(t, types.TypeVar):
        if t.name == variable.name:
            return True
        found = bound.get(t.name)
        return found is not None and _occurs(bound, variable, found)
    return any(_occurs(bound, variable, p) for p in t.params)


def _bind(bound: _Substitution, t: types.CelType, variable: types.TypeVar) -> tuple[bool, bool]:
    """Bind a variable to a type. Return whether they fit, and whether the variable was bound before."""
    if isinstance(t, types.TypeVar) and t.name == variable.name:
        return True, True
    found = bound.get(variable.name)
    if found is None:
        if _occurs(bound, variable, t):
            return False, False
        bound.bind(variable.name, t)
        return True, False
    if types.same(t, found):
        return True, True
    if _fits(bound, t, found):
        general = t if _general(t, found) else found
        if not _occurs(bound, variable, general):
            bound.bind(variable.name, general)
        return True, True
    return False, True


def _fits(bound: _Substitution, a: types.CelType, b: types.CelType) -> bool:
    if isinstance(b, types.TypeVar):
        valid, had = _bind(bound, a, b)
        if valid or had:
            return valid
    if isinstance(a, types.TypeVar):
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
        if isinstance(a, types.Opaque) and isinstance(b, types.Opaque) and a.name != b.name:
            return False
        pairs = zip(a.params, b.params, strict=False)
        return len(a.params) == len(b.params) and all(_fits(bound, x, y) for x, y in pairs)
    return types.same(a, b)


def _assignable(bound: _Substitution, given: list[types.CelType], wanted: list[types.CelType]) -> bool:
    """Return True if every given type fits the wanted one. Binds the type variables that this needs."""
    if len(given) != len(wanted):
        return False
    bound.trail.clear()
    if all(_fits(bound, a, b) for a, b in zip(given, wanted, strict=True)):
        return True
    bound.undo()
    return False


def _mismatch(node: Expr, expected: types.CelType, actual: types.CelType | None = None) -> Issue:
    return Issue(
        node.offset, f"expected type '{types.text_of(expected)}' but found '{types.text_of(actual or node.type)}'"
    )


def _constant_issues(tree: Expr) -> Iterator[Issue]:
    """Return the errors in the constants and literals of a checked tree."""
    todo = [(tree, False)]
    while todo:
        node, mixed = todo.pop()
        if isinstance(node, Call):
            yield from _call_issues(node)
            mixed = mixed or node.function == "format"  # its arguments may have mixed types
        elif not mixed and isinstance(node, ListNode):
            expected: types.CelType | None = None
            for at, element in enumerate(node.elements):
                t = element.type.params[0] if at in node.optionals and element.type.params else element.type
                if expected is not None and not types.same(expected, t):
                    yield _mismatch(element, expected)
                    break
                expected = expected or t
        elif not mixed and isinstance(node, MapNode):
            keys: types.CelType | None = None
            values: types.CelType | None = None
            for entry in node.entries:
                t = entry.value.type.params[0] if entry.optional and entry.value.type.params else entry.value.type
                if keys is not None and not types.same(keys, entry.key.type):
                    yield _mismatch(entry.key, keys)
                if values is not None and not types.same(values, t):
                    yield _mismatch(entry.value, values)
                keys, values = keys or entry.key.type, values or t
        todo += [(child, mixed) for child in reversed([*children(node)])]


def _call_issues(node: Call) -> Iterator[Issue]:
    """Return the errors in the constant arguments of duration(), timestamp(), matches() and format()."""
    first = node.args[0] if node.args else None
    if node.function in ("duration", "timestamp") and isinstance(first, Literal):
        try:
            run = OVERLOADS[node.overloads[0]].run
            assert run is not None  # noqa: S101 - both are functions of the library
            run(first.value)
        except (EvaluationError, TypeError):
            yield Issue(first.offset, f"invalid {node.function} argument")
    elif node.function == "matches" and isinstance(first, Literal) and first.kind == "string":
        try:
            compile_pattern(first.value)
        except PatternError:
            yield Issue(first.offset, "invalid matches argument")
    elif node.function == "format" and isinstance(node.target, Literal) and isinstance(first, ListNode):
        args = first.elements
        try:
            used = [clause for _, _, clause in clauses(node.target.value, len(args)) if clause]
        except ClauseError as error:
            yield Issue(node.offset, str(error))
            return
        for clause, arg in zip(used, args, strict=False):
            if wrong := _clause_issue(clause, arg):
                yield wrong
                return
        if len(args) > len(used):
            message = f"too many arguments supplied to string.format (expected {len(used)}, got {len(args)})"
            yield Issue(node.offset, message)


def _clause_issue(clause: str, arg: Expr) -> Issue | None:
    if problem := allowed(clause, types.runtime_name(arg.type)):
        return Issue(arg.offset, problem)
    parts = children(arg) if clause == "s" and isinstance(arg, ListNode | MapNode) else ()
    return next((wrong for part in parts if (wrong := _clause_issue("s", part))), None)


_LITERALS: dict[str, types.CelType] = {
    "bool": types.BOOL,
    "int": types.INT,
    "uint": types.UINT,
    "double": types.DOUBLE,
    "string": types.STRING,
    "bytes": types.BYTES,
    "null": types.NULL,
}


def _unwrapped(t: types.CelType) -> tuple[types.CelType, bool]:
    if isinstance(t, types.Opaque) and t.name == "optional_type":
        return t.params[0], True
    return t, False


class _Checker(Visitor[types.CelType]):
    def __init__(self, variables: Mapping[str, types.CelType]) -> None:
        self.scopes: list[Mapping[str, types.CelType]] = [variables]
        self.bound = _Substitution()
        self.free = 0
        self.nodes: list[Expr] = []
        self.issues: list[Issue] = []
        self.used: set[str] = set()

    def report(self, offset: int, message: str) -> None:
        self.issues.append(Issue(offset, message))

    def set(self, node: Expr, t: types.CelType) -> types.CelType:
        node.type = t
        self.nodes.append(node)
        return t

    def undeclared(self, node: Expr, name: str) -> types.CelType:
        self.report(node.offset, f"undeclared reference to '{name}' (in container '')")
        return self.set(node, types.ERROR)

    def resolved(self, t: types.CelType) -> types.CelType:
        return _substitute(self.bound, t)

    def variable(self) -> types.TypeVar:
        self.free += 1
        return types.TypeVar(f"_var{self.free - 1}")

    def fits(self, given: types.CelType, wanted: types.CelType) -> bool:
        return _assignable(self.bound, [given], [wanted])

    # names

    def lookup(self, name: str) -> tuple[types.CelType | None, bool]:
        """Return the type of a name, and whether the name denotes a type."""
        for scope in reversed(self.scopes):
            if name in scope:
                if scope is self.scopes[0]:
                    self.used.add(name)
                return scope[name], False
        named = TYPE_NAMES.get(name)
        return (types.TypeType((named,)), True) if named is not None else (None, False)

    def literal(self, node: Literal) -> types.CelType:
        return self.set(node, _LITERALS[node.kind])

    def ident(self, node: Ident) -> types.CelType:
        name = node.name.removeprefix(".")
        found, names_type = self.lookup(name)
        if found is None:
            return self.undeclared(node, node.name)
        node.name, node.names_type = name, names_type
        return self.set(node, found)

    def struct(self, node: StructNode) -> types.CelType:
        return self.undeclared(node, node.name)

    # fields

    def select(self, node: Select) -> types.CelType:
        name = qualified(node)
        if name is not None:
            found, names_type = self.lookup(name)
            if found is not None and names_type:
                node.named = True
                return self.set(node, found)
        result = self.field(node, node.operand, node.field, optional=False)
        return self.set(node, types.BOOL if node.test else self.resolved(result))

    def field(self, node: Expr, operand: Expr, name: str, *, optional: bool) -> types.CelType:
        target, was_optional = _unwrapped(self.resolved(self.visit(operand)))
        result: types.CelType = types.DYN
        if isinstance(target, types.MapType):
            result = target.value
        elif isinstance(target, types.ObjectType):
            declared = types.declared_field(target, name)
            if declared is None and not target.fields and target.name.startswith("kubernetes."):
                self.report(node.offset, f"unexpected failed resolution of '{target.name}'")
            elif declared is None:
                self.report(node.offset, f"undefined field '{name}'")
            result = declared.type if declared else types.ERROR
        elif isinstance(target, types.TypeVar):
            self.fits(types.DYN, target)
        elif target.shape != "dyn" and target is not types.ERROR:
            self.report(node.offset, f"type '{types.text_of(target)}' does not support field selection")
        return types.optional_of(result) if optional or was_optional else result

    # calls

    def call(self, node: Call) -> types.CelType:
        if node.function == "_?._":
            name = node.args[1]
            assert isinstance(name, Literal)  # noqa: S101 - the parser makes no other
            result = self.field(node, node.args[0], name.value, optional=True)
            self.set(name, types.STRING)
            node.overloads = ["select_optional_field"]
            return self.set(node, self.resolved(result))
        for arg in node.args:
            self.visit(arg)
        if node.target is None:
            node.function = node.function.removeprefix(".")
            return self.overloaded(node, None)
        prefix = qualified(node.target)
        if prefix is not None and f"{prefix.removeprefix('.')}.{node.function}" in FUNCTIONS:
            node.function = f"{prefix.removeprefix('.')}.{node.function}"
            node.target = None
            return self.overloaded(node, None)
        self.visit(node.target)
        return self.overloaded(node, node.target)

    def overloaded(self, node: Call, target: Expr | None) -> types.CelType:
        overloads = FUNCTIONS.get(node.function)
        if overloads is None:
            return self.undeclared(node, node.function)
        if node.function in ("_&&_", "_||_"):
            return self.logical(node, overloads[0])
        given = [arg.type for arg in ([target, *node.args] if target else node.args)]
        result: types.CelType | None = None
        node.overloads = []
        for overload in overloads:
            if overload.member != (target is not None):
                continue
            found = self.attempt(overload, given)
            if found is None:
                continue
            node.overloads.append(overload.id)
            if result is None:
                result = found
            elif result.shape != "dyn" and not types.same(found, result):
                result = types.DYN
        if result is None:
            receiver, *shown = [types.text_of(_substitute(self.bound, t, free_to_dyn=True)) for t in given] or [""]
            signature = f"{receiver}.({', '.join(shown)})" if target else f"({', '.join([receiver, *shown])})"
            self.report(node.offset, f"found no matching overload for '{node.function}' applied to '{signature}'")
            return self.set(node, types.ERROR)
        return self.set(node, result)

    def attempt(self, overload: Overload, given: list[types.CelType]) -> types.CelType | None:
        """Return the result type if the overload accepts the given types, else None. Binds type variables."""
        wanted, result = list(overload.args), overload.result
        if overload.variables:
            fresh = _Substitution({name: self.variable() for name in overload.variables})
            wanted = [_substitute(fresh, t) for t in wanted]
            result = _substitute(fresh, result)
        return self.resolved(result) if _assignable(self.bound, given, wanted) else None

    def logical(self, node: Call, overload: Overload) -> types.CelType:
        node.overloads = [overload.id]
        failed = False
        for arg in node.args:
            if not self.fits(arg.type, types.BOOL):
                self.issues.append(_mismatch(arg, types.BOOL, arg.type))
                failed = True
        return self.set(node, types.ERROR if failed else types.BOOL)

    # literals

    def join(self, before: types.CelType | None, now: types.CelType) -> types.CelType:
        if before is None:
            return now
        if not self.fits(before, now):
            return types.DYN
        return before if _general(before, now) else now

    def optional_value(self, node: Expr, t: types.CelType) -> types.CelType:
        inner, optional = _unwrapped(t)
        if not optional and inner.shape != "dyn":
            self.issues.append(_mismatch(node, types.optional_of(inner), inner))
        return inner

    def list_literal(self, node: ListNode) -> types.CelType:
        joined: types.CelType | None = None
        for at, element in enumerate(node.elements):
            t = self.visit(element)
            if at in node.optionals:
                t = self.optional_value(element, t)
            joined = self.join(joined, t)
        return self.set(node, types.ListType(joined or self.variable()))

    def map_literal(self, node: MapNode) -> types.CelType:
        keys: types.CelType | None = None
        values: types.CelType | None = None
        for entry in node.entries:
            keys = self.join(keys, self.visit(entry.key))
            t = self.visit(entry.value)
            if entry.optional:
                t = self.optional_value(entry.value, t)
            values = self.join(values, t)
        return self.set(node, types.MapType(keys or self.variable(), values or self.variable()))

    # loops

    def comprehension(self, node: Comprehension) -> types.CelType:
        self.visit(node.range)
        initial = self.visit(node.initial)
        first, second = self.loop_types(node)
        self.scopes.append({node.accumulator: initial})
        # Without a second variable its name is "", which no expression can contain.
        self.scopes.append({node.variable: first, node.variable2: second})
        for part, wanted in ((node.condition, types.BOOL), (node.step, initial)):
            found = self.visit(part)
            if not self.fits(wanted, found):
                self.issues.append(_mismatch(part, wanted, found))
        self.scopes.pop()
        result = self.visit(node.result)
        self.scopes.pop()
        return self.set(node, self.resolved(result))

    def loop_types(self, node: Comprehension) -> tuple[types.CelType, types.CelType]:
        over = self.resolved(node.range.type)
        if isinstance(over, types.ListType):
            return (types.INT, over.element) if node.variable2 else (over.element, types.ERROR)
        if isinstance(over, types.MapType):
            return over.key, over.value
        if over.shape == "dyn" or over is types.ERROR or isinstance(over, types.TypeVar):
            self.fits(types.DYN, over)
            return types.DYN, types.DYN
        shown = types.text_of(over)
        self.report(
            node.range.offset,
            f"expression of type '{shown}' cannot be range of a comprehension (must be list, map, or dynamic)",
        )
        return types.ERROR, types.ERROR


def check(tree: Expr, source: str, variables: Mapping[str, types.CelType]) -> tuple[types.CelType, frozenset[str]]:
    """Set the types of all nodes. Return the type of the whole expression and the names of the variables that it uses.

    Raises CelError with the text of every error in the expression.
    """
    checker = _Checker(variables)
    checker.visit(tree)
    if checker.issues:
        raise CelError(report(source, checker.issues))
    for node in checker.nodes:
        node.type = _substitute(checker.bound, node.type, free_to_dyn=True)
    if issues := list(_constant_issues(tree)):
        raise CelError(report(source, issues))
    return tree.type, frozenset(checker.used)
