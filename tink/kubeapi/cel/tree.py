"""The syntax tree of an expression.

The parser builds it, the checker sets the types and the possible overloads, the estimator and the compiler read it.
Every node has the offset in the source at which errors point.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tink.kubeapi.cel.types import ERROR, CelType

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Expr:
    """One expression. `offset` is the place for errors; `type` is known after the check."""

    offset: int
    type: CelType = dataclasses.field(default=ERROR, init=False)


@dataclass(slots=True, eq=False)
class Literal(Expr):
    """A constant. `kind` names its type; `value` is its value at evaluation."""

    kind: str
    value: Any


@dataclass(slots=True, eq=False)
class Ident(Expr):
    """A name. After the check, `names_type` is True if it denotes a type, not a variable."""

    name: str
    names_type: bool = dataclasses.field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Select(Expr):
    """`operand.field`, or `has(operand.field)` with `test`. `named` is True if the whole chain denotes a type."""

    operand: Expr
    field: str
    test: bool = False
    named: bool = dataclasses.field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Call(Expr):
    """A function or operator. `overloads` are the ids of the possible overloads, set by the checker."""

    function: str
    args: list[Expr]
    target: Expr | None = None
    overloads: list[str] = dataclasses.field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class ListNode(Expr):
    """A list literal. `optionals` are the indexes of elements that are omitted if they are optional.none()."""

    elements: list[Expr]
    optionals: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class MapEntry:
    """One `key: value` of a map literal."""

    offset: int
    key: Expr
    value: Expr
    optional: bool


@dataclass(slots=True, eq=False)
class MapNode(Expr):
    """A map literal."""

    entries: list[MapEntry]


@dataclass(slots=True, eq=False)
class StructNode(Expr):
    """`Name{field: value}`. Kubernetes declares no message types, so the checker rejects it."""

    name: str
    fields: list[tuple[int, str, Expr]]


@dataclass(slots=True, eq=False)
class Comprehension(Expr):
    """A loop, the expansion of a macro. `macro` is the macro's name, by which the compiler chooses the loop.

    `variable2` is "" for loops with one variable. The accumulator starts with `initial`; each round sets it to `step`
    while `condition` holds; `result` is the value of the loop.
    """

    macro: str
    range: Expr
    variable: str
    variable2: str
    accumulator: str
    initial: Expr
    condition: Expr
    step: Expr
    result: Expr


def children(node: Expr) -> Iterator[Expr]:
    """Return the nodes directly below a node, in the order of the source."""
    if isinstance(node, Select):
        yield node.operand
    elif isinstance(node, Call):
        if node.target:
            yield node.target
        yield from node.args
    elif isinstance(node, ListNode):
        yield from node.elements
    elif isinstance(node, MapNode):
        for entry in node.entries:
            yield entry.key
            yield entry.value
    elif isinstance(node, Comprehension):
        yield from (node.range, node.initial, node.condition, node.step, node.result)


def qualified(node: Expr) -> str | None:
    """Return `a.b.c` for a chain of plain selections on a name, else None."""
    names: list[str] = []
    while isinstance(node, Select):
        if node.test:
            return None
        names.append(node.field)
        node = node.operand
    return ".".join(reversed([*names, node.name])) if isinstance(node, Ident) else None


_METHODS: dict[type[Expr], str] = {
    Literal: "literal",
    Ident: "ident",
    Select: "select",
    Call: "call",
    ListNode: "list_literal",
    MapNode: "map_literal",
    StructNode: "struct",
    Comprehension: "comprehension",
}


class Visitor(Generic[T]):
    """The base of classes that have one method for each kind of node, named as in `_METHODS`."""

    def visit(self, node: Expr) -> T:
        """Call the method for the node's kind."""
        made: T = getattr(self, _METHODS[type(node)])(node)
        return made
