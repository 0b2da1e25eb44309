"""The parse tree (Go: text/template/parse, node.go).

`position` is the character where Go says the node begins (for a chain `.a.b` that is the second dot: error columns
must match). `str(node)` gives the canonical source that Go shows in `at <...>`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tink.golang.strconv import quote


@dataclass(slots=True)
class ParseNode:
    """Any part of a template."""

    position: int


# --- operands ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class BoolNode(ParseNode):
    """true, false"""

    value: bool

    def __str__(self) -> str:
        return "true" if self.value else "false"


@dataclass(slots=True)
class DotNode(ParseNode):
    """The current value: `.`"""

    def __str__(self) -> str:
        return "."


@dataclass(slots=True)
class NilNode(ParseNode):
    """The untyped nil."""

    def __str__(self) -> str:
        return "nil"


@dataclass(slots=True)
class NumberNode(ParseNode):
    """A constant.

    `integer` and `real` are its values of these types; None if it has none. `is_real`: Go reads it as a float if no
    type is required. `imaginary`: it has an i, and is this complex number if no type is required.
    """

    text: str
    integer: int | None
    real: float | None
    is_real: bool = False
    imaginary: complex | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class StringNode(ParseNode):
    """A string constant: its source and its value."""

    quoted: str
    text: str

    def __str__(self) -> str:
        return self.quoted


@dataclass(slots=True)
class IdentifierNode(ParseNode):
    """The name of a function."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True)
class FieldNode(ParseNode):
    """`.a.b`"""

    names: list[str]

    def __str__(self) -> str:
        return "".join(f".{name}" for name in self.names)


@dataclass(slots=True)
class VariableNode(ParseNode):
    """`$x.a.b`. `slot` is the variable's slot in the frame; None if it was never declared."""

    name: str
    names: list[str]
    slot: int | None

    def __str__(self) -> str:
        return ".".join([self.name, *self.names])


@dataclass(slots=True)
class ChainNode(ParseNode):
    """`(pipeline).a.b`, or fields of a function's result."""

    base: Operand
    names: list[str]

    def __str__(self) -> str:
        base = f"({self.base})" if isinstance(self.base, PipeNode) else str(self.base)
        return base + "".join(f".{name}" for name in self.names)


@dataclass(slots=True)
class CommandNode(ParseNode):
    """One stage of a pipeline: operands."""

    operands: list[Operand] = field(default_factory=list)

    def __str__(self) -> str:
        return " ".join(f"({operand})" if isinstance(operand, PipeNode) else str(operand) for operand in self.operands)


@dataclass(slots=True)
class PipeNode(ParseNode):
    """Stages joined by `|`, with the variables that take the result."""

    commands: list[CommandNode] = field(default_factory=list)
    variables: list[VariableNode] = field(default_factory=list)
    is_assignment: bool = False

    def __str__(self) -> str:
        commands = " | ".join(map(str, self.commands))
        if not self.variables:
            return commands
        operator = "=" if self.is_assignment else ":="
        return f"{', '.join(map(str, self.variables))} {operator} {commands}"


Operand = (
    BoolNode
    | DotNode
    | NilNode
    | NumberNode
    | StringNode
    | IdentifierNode
    | FieldNode
    | VariableNode
    | ChainNode
    | PipeNode
)


# --- what stands in a list --------------------------------------------------------------------------------------


@dataclass(slots=True)
class TextNode(ParseNode):
    """Plain text."""

    text: str


@dataclass(slots=True)
class ActionNode(ParseNode):
    """`{{pipeline}}`"""

    pipe: PipeNode

    def __str__(self) -> str:
        return f"{{{{{self.pipe}}}}}"


@dataclass(slots=True)
class BreakNode(ParseNode):
    """`{{break}}`"""


@dataclass(slots=True)
class ContinueNode(ParseNode):
    """`{{continue}}`"""


@dataclass(slots=True)
class BranchNode(ParseNode):
    """`if` or `with` (True): pipelines that are tried in order, each with its body, then the body of `else`."""

    arms: list[tuple[bool, PipeNode, list[Statement]]]
    otherwise: list[Statement] | None = None


@dataclass(slots=True)
class RangeNode(ParseNode):
    """`range`"""

    pipe: PipeNode
    body: list[Statement]
    otherwise: list[Statement] | None = None


@dataclass(slots=True)
class InvokeNode(ParseNode):
    """`{{template "name" pipeline}}`, also in place of a block."""

    name: str
    pipe: PipeNode | None

    def __str__(self) -> str:
        argument = f" {self.pipe}" if self.pipe else ""
        return f"{{{{template {quote(self.name)}{argument}}}}}"


Statement = TextNode | ActionNode | BreakNode | ContinueNode | BranchNode | RangeNode | InvokeNode


@dataclass(slots=True)
class Tree:
    """One template: the main one (name None) or one from `define` or `block`. `slots` is the size of its frame."""

    name: str | None
    body: list[Statement]
    slots: int

    @property
    def is_empty(self) -> bool:
        """True if it holds only white space. Another definition then replaces it (Go: IsEmptyTree)."""
        return all(isinstance(node, TextNode) and not node.text.strip() for node in self.body)
