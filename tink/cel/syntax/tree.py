"""The syntax tree of an expression.

The parser builds it, the checker writes the types and the chosen overloads into it, the estimator and the
compiler read it. Every node has the offset in the source that errors point at.
"""

from typing import Any

from tink.cel.types import ERROR, Type


class Node:
    """One expression. `offset` is where errors point; `type` is known after the check."""

    __slots__ = ("offset", "type")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.type: Type = ERROR


class Literal(Node):
    """A constant; `kind` names its type, `value` is its value as evaluation uses it."""

    __slots__ = ("kind", "value")

    def __init__(self, offset: int, kind: str, value: Any) -> None:
        super().__init__(offset)
        self.kind = kind
        self.value = value


class Ident(Node):
    """A name. After the check, `names_type` tells that it names a type, not a variable."""

    __slots__ = ("name", "names_type")

    def __init__(self, offset: int, name: str) -> None:
        super().__init__(offset)
        self.name = name
        self.names_type = False


class Select(Node):
    """`operand.field`, or `has(operand.field)` with `test`. `named` is set when the whole chain names a type."""

    __slots__ = ("field", "named", "operand", "test")

    def __init__(self, offset: int, operand: Node, field: str, *, test: bool = False) -> None:
        super().__init__(offset)
        self.operand = operand
        self.field = field
        self.test = test
        self.named = False


class Call(Node):
    """A function or operator. `overloads` are the ids the checker found possible."""

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(self, offset: int, function: str, args: list[Node], target: Node | None = None) -> None:
        super().__init__(offset)
        self.function = function
        self.args = args
        self.target = target
        self.overloads: list[str] = []


class ListNode(Node):
    """A list literal; the elements at `optionals` are left out when they are optional.none()."""

    __slots__ = ("elements", "optionals")

    def __init__(self, offset: int, elements: list[Node], optionals: frozenset[int] = frozenset()) -> None:
        super().__init__(offset)
        self.elements = elements
        self.optionals = optionals


class Entry:
    """One `key: value` of a map literal."""

    __slots__ = ("key", "offset", "optional", "value")

    def __init__(self, offset: int, key: Node, value: Node, *, optional: bool) -> None:
        self.offset = offset
        self.key = key
        self.value = value
        self.optional = optional


class MapNode(Node):
    """A map literal."""

    __slots__ = ("entries",)

    def __init__(self, offset: int, entries: list[Entry]) -> None:
        super().__init__(offset)
        self.entries = entries


class StructNode(Node):
    """`Name{field: value}`. Kubernetes declares no message types, so the checker refuses it."""

    __slots__ = ("fields", "name")

    def __init__(self, offset: int, name: str, fields: list[tuple[int, str, Node]]) -> None:
        super().__init__(offset)
        self.name = name
        self.fields = fields


class Comprehension(Node):
    """A loop, as the macros expand to it. `macro` names the macro, which tells the compiler what the loop does."""

    __slots__ = ("accumulator", "condition", "initial", "macro", "range", "result", "step", "variable", "variable2")

    def __init__(
        self,
        offset: int,
        macro: str,
        over: Node,
        variables: tuple[str, str],
        accumulator: tuple[str, Node],
        loop: tuple[Node, Node, Node],
    ) -> None:
        super().__init__(offset)
        self.macro = macro
        self.range = over
        self.variable, self.variable2 = variables
        self.accumulator, self.initial = accumulator
        self.condition, self.step, self.result = loop
