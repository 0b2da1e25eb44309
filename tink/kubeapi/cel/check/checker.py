"""The type check: gives every node its type and every call its overloads, or says what is wrong and where.

Kubernetes checks the expressions of a CustomResourceDefinition when it is created, so users know these
messages: undefined fields, undeclared references, overloads that do not exist.
"""

from collections.abc import Mapping

from tink.kubeapi.cel.check.signatures import FUNCTIONS, TYPE_NAMES, Overload
from tink.kubeapi.cel.check.unify import Substitution, assignable, is_dyn, most_general, substitute
from tink.kubeapi.cel.check.validate import validate
from tink.kubeapi.cel.errors import CelError, Issue, Source
from tink.kubeapi.cel.syntax.tree import (
    Call,
    Comprehension,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    StructNode,
    Visitor,
)
from tink.kubeapi.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    UINT,
    ListType,
    MapType,
    ObjectType,
    Opaque,
    Type,
    TypeType,
    TypeVar,
    declared_field,
    optional_of,
    same,
    text_of,
)

_LITERALS: dict[str, Type] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "null": NULL,
}


def qualified(node: Node) -> str | None:
    """`a.b.c` for a chain of plain selections on a name, else None."""
    names: list[str] = []
    while isinstance(node, Select):
        if node.test:
            return None
        names.append(node.field)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    names.append(node.name)
    return ".".join(reversed(names))


def _unwrapped(t: Type) -> tuple[Type, bool]:
    if isinstance(t, Opaque) and t.name == "optional_type":
        return t.params[0], True
    return t, False


def _signature(args: list[Type], *, member: bool) -> str:
    shown = [text_of(t) for t in args]
    return f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"


class _Checker(Visitor[Type]):
    def __init__(self, source: Source, variables: Mapping[str, Type]) -> None:
        self.source = source
        self.scopes: list[Mapping[str, Type]] = [variables]
        self.bound = Substitution()
        self.free = 0
        self.nodes: list[Node] = []
        self.issues: list[Issue] = []
        self.used: set[str] = set()

    def report(self, offset: int, message: str) -> None:
        self.issues.append(Issue(offset, message))

    def mismatch(self, node: Node, expected: Type, actual: Type) -> None:
        self.report(node.offset, f"expected type '{text_of(expected)}' but found '{text_of(actual)}'")

    def set(self, node: Node, t: Type) -> Type:
        node.type = t
        self.nodes.append(node)
        return t

    def resolved(self, t: Type) -> Type:
        return substitute(self.bound, t)

    def variable(self) -> TypeVar:
        self.free += 1
        return TypeVar(f"_var{self.free - 1}")

    def fits(self, given: Type, wanted: Type) -> bool:
        return assignable(self.bound, [given], [wanted])

    # names

    def lookup(self, name: str) -> tuple[Type | None, bool]:
        """The type of a name and whether it names a type."""
        for scope in reversed(self.scopes):
            if name in scope:
                if scope is self.scopes[0]:
                    self.used.add(name)
                return scope[name], False
        named = TYPE_NAMES.get(name)
        return (TypeType(named), True) if named is not None else (None, False)

    def literal(self, node: Literal) -> Type:
        return self.set(node, _LITERALS[node.kind])

    def ident(self, node: Ident) -> Type:
        name = node.name.removeprefix(".")
        found, names_type = self.lookup(name)
        if found is None:
            self.report(node.offset, f"undeclared reference to '{node.name}' (in container '')")
            return self.set(node, ERROR)
        node.name, node.names_type = name, names_type
        return self.set(node, found)

    def struct(self, node: StructNode) -> Type:
        self.report(node.offset, f"undeclared reference to '{node.name}' (in container '')")
        return self.set(node, ERROR)

    # fields

    def select(self, node: Select) -> Type:
        name = qualified(node)
        if name is not None:
            found, names_type = self.lookup(name)
            if found is not None and names_type:
                node.named = True
                return self.set(node, found)
        result = self.field(node, node.operand, node.field, optional=False)
        return self.set(node, BOOL if node.test else self.resolved(result))

    def field(self, node: Node, operand: Node, name: str, *, optional: bool) -> Type:
        target, was_optional = _unwrapped(self.resolved(self.visit(operand)))
        result: Type = DYN
        if isinstance(target, MapType):
            result = target.value
        elif isinstance(target, ObjectType):
            declared = declared_field(target, name)
            if declared is None and not target.fields and target.name.startswith("kubernetes."):
                self.report(node.offset, f"unexpected failed resolution of '{target.name}'")
            elif declared is None:
                self.report(node.offset, f"undefined field '{name}'")
            result = declared.type if declared else ERROR
        elif isinstance(target, TypeVar):
            self.fits(DYN, target)
        elif not is_dyn(target) and target is not ERROR:
            self.report(node.offset, f"type '{text_of(target)}' does not support field selection")
        return optional_of(result) if optional or was_optional else result

    # calls

    def call(self, node: Call) -> Type:
        if node.function == "_?._":
            name = node.args[1]
            assert isinstance(name, Literal)  # noqa: S101 - the parser makes no other
            result = self.field(node, node.args[0], name.value, optional=True)
            self.set(name, STRING)
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

    def overloaded(self, node: Call, target: Node | None) -> Type:
        overloads = FUNCTIONS.get(node.function)
        if overloads is None:
            self.report(node.offset, f"undeclared reference to '{node.function}' (in container '')")
            return self.set(node, ERROR)
        if node.function in ("_&&_", "_||_"):
            return self.logical(node, overloads[0])
        given = [arg.type for arg in ([target, *node.args] if target else node.args)]
        result: Type | None = None
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
            elif not is_dyn(result) and not same(found, result):
                result = DYN
        if result is None:
            shown = [substitute(self.bound, t, free_to_dyn=True) for t in given]
            signature = _signature(shown, member=target is not None)
            self.report(node.offset, f"found no matching overload for '{node.function}' applied to '{signature}'")
            return self.set(node, ERROR)
        return self.set(node, result)

    def attempt(self, overload: Overload, given: list[Type]) -> Type | None:
        """The result type if the overload takes the given types; binds type variables then."""
        wanted, result = list(overload.args), overload.result
        if overload.variables:
            fresh = Substitution({name: self.variable() for name in overload.variables})
            wanted = [substitute(fresh, t) for t in wanted]
            result = substitute(fresh, result)
        return self.resolved(result) if assignable(self.bound, given, wanted) else None

    def logical(self, node: Call, overload: Overload) -> Type:
        node.overloads = [overload.id]
        failed = False
        for arg in node.args:
            if not self.fits(arg.type, BOOL):
                self.mismatch(arg, BOOL, arg.type)
                failed = True
        return self.set(node, ERROR if failed else BOOL)

    # literals

    def join(self, before: Type | None, now: Type) -> Type:
        if before is None:
            return now
        if self.fits(before, now):
            return most_general(before, now)
        return DYN

    def optional_value(self, node: Node, t: Type) -> Type:
        inner, optional = _unwrapped(t)
        if not optional and not is_dyn(inner):
            self.mismatch(node, optional_of(inner), inner)
        return inner

    def list_literal(self, node: ListNode) -> Type:
        joined: Type | None = None
        for at, element in enumerate(node.elements):
            t = self.visit(element)
            if at in node.optionals:
                t = self.optional_value(element, t)
            joined = self.join(joined, t)
        return self.set(node, ListType(joined or self.variable()))

    def map_literal(self, node: MapNode) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for entry in node.entries:
            keys = self.join(keys, self.visit(entry.key))
            t = self.visit(entry.value)
            if entry.optional:
                t = self.optional_value(entry.value, t)
            values = self.join(values, t)
        return self.set(node, MapType(keys or self.variable(), values or self.variable()))

    # loops

    def comprehension(self, node: Comprehension) -> Type:
        self.visit(node.range)
        initial = self.visit(node.initial)
        first, second = self.loop_types(node)
        self.scopes.append({node.accumulator: initial})
        self.scopes.append({node.variable: first, node.variable2: second} if node.variable2 else {node.variable: first})
        for part, wanted in ((node.condition, BOOL), (node.step, initial)):
            found = self.visit(part)
            if not self.fits(wanted, found):
                self.mismatch(part, wanted, found)
        self.scopes.pop()
        result = self.visit(node.result)
        self.scopes.pop()
        return self.set(node, self.resolved(result))

    def loop_types(self, node: Comprehension) -> tuple[Type, Type]:
        over = self.resolved(node.range.type)
        if isinstance(over, ListType):
            return (INT, over.element) if node.variable2 else (over.element, ERROR)
        if isinstance(over, MapType):
            return over.key, over.value
        if is_dyn(over) or over is ERROR or isinstance(over, TypeVar):
            self.fits(DYN, over)
            return DYN, DYN
        shown = text_of(over)
        self.report(
            node.range.offset,
            f"expression of type '{shown}' cannot be range of a comprehension (must be list, map, or dynamic)",
        )
        return ERROR, ERROR


def check(tree: Node, source: Source, variables: Mapping[str, Type]) -> tuple[Type, frozenset[str]]:
    """The type of the whole expression and the variables it uses; the tree's nodes get their types.

    Raises CelError: with the text of every error found.
    """
    checker = _Checker(source, variables)
    checker.visit(tree)
    if checker.issues:
        raise CelError(source.report(checker.issues))
    for node in checker.nodes:
        node.type = substitute(checker.bound, node.type, free_to_dyn=True)
    issues = validate(tree)
    if issues:
        raise CelError(source.report(issues))
    return tree.type, frozenset(checker.used)
