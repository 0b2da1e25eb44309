"""The syntax tree of an expression.

The parser builds it, the checker writes the types and the chosen overloads into it, the estimator and the
compiler read it. Every node has the offset in the source that errors point at.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tink.kubeapi.cel.types import ERROR, Type

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Node:
    """One expression. `offset` is where errors point; `type` is known after the check."""

    offset: int
    type: Type = dataclasses.field(default=ERROR, init=False)


@dataclass(slots=True, eq=False)
class Literal(Node):
    """A constant; `kind` names its type, `value` is its value as evaluation uses it."""

    kind: str
    value: Any


@dataclass(slots=True, eq=False)
class Ident(Node):
    """A name. After the check, `names_type` tells that it names a type, not a variable."""

    name: str
    names_type: bool = dataclasses.field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Select(Node):
    """`operand.field`, or `has(operand.field)` with `test`. `named` is set when the whole chain names a type."""

    operand: Node
    field: str
    test: bool = False
    named: bool = dataclasses.field(default=False, init=False)


@dataclass(slots=True, eq=False)
class Call(Node):
    """A function or operator. `overloads` are the ids the checker found possible."""

    function: str
    args: list[Node]
    target: Node | None = None
    overloads: list[str] = dataclasses.field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class ListNode(Node):
    """A list literal; the elements at `optionals` are left out when they are optional.none()."""

    elements: list[Node]
    optionals: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Entry:
    """One `key: value` of a map literal."""

    offset: int
    key: Node
    value: Node
    optional: bool


@dataclass(slots=True, eq=False)
class MapNode(Node):
    """A map literal."""

    entries: list[Entry]


@dataclass(slots=True, eq=False)
class StructNode(Node):
    """`Name{field: value}`. Kubernetes declares no message types, so the checker refuses it."""

    name: str
    fields: list[tuple[int, str, Node]]


@dataclass(slots=True, eq=False)
class Comprehension(Node):
    """A loop, as the macros expand to it. `macro` names the macro, which tells the compiler what the loop does.

    `variable2` is "" where there is one variable. `initial` is what the accumulator begins with, `step` what a round
    makes of it while `condition` holds, `result` what it gives in the end.
    """

    macro: str
    range: Node
    variable: str
    variable2: str
    accumulator: str
    initial: Node
    condition: Node
    step: Node
    result: Node


_METHODS: dict[type[Node], str] = {
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
    """Has a method for each kind of node, named as in `_METHODS`."""

    def visit(self, node: Node) -> T:
        """What the method for a node's kind makes of it."""
        made: T = getattr(self, _METHODS[type(node)])(node)
        return made
