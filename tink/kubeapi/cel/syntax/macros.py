"""The macros: `has`, the loops over lists and maps with one or two variables, `optMap`, `sortBy`.

A macro becomes plain syntax before types are checked. Which macros there are, what they expand to (it shows
in error texts and in costs) and their own errors are Kubernetes 1.36's.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from tink.kubeapi.cel.syntax.tree import (
    Call,
    Comprehension,
    Entry,
    Ident,
    ListNode,
    Literal,
    MapNode,
    Node,
    Select,
    StructNode,
)

ACCUMULATOR = "@result"
_FORBIDDEN = (ACCUMULATOR, "__result__")
MAX_COPIED = 5_000
"""Nodes that copies of macro targets may add to one expression; nested optMap doubles its target each time."""


class MacroError(Exception):
    """A macro's arguments are not what it needs."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message


class _Copier:
    def __init__(self) -> None:
        self.left = MAX_COPIED

    def copy(self, value: Any) -> Any:
        """A node, or what stands in one; what the check writes into nodes is not there yet."""
        if isinstance(value, list | tuple):
            return type(value)(map(self.copy, value))
        if not isinstance(value, Node | Entry):
            return value
        if isinstance(value, Node):
            self.left -= 1
            if self.left < 0:
                raise MacroError(value.offset, "expression size limit exceeded")
        given = [each.name for each in fields(value) if each.init]
        return replace(value, **{name: self.copy(getattr(value, name)) for name in given})


def copy(node: Node) -> Node:
    """A tree of new nodes like the given one."""
    made: Node = _Copier().copy(node)
    return made


def _variable(node: Node, message: str) -> str:
    if not isinstance(node, Ident):
        raise MacroError(node.offset, message)
    if node.name in _FORBIDDEN:
        raise MacroError(node.offset, "iteration variable overwrites accumulator variable")
    return node.name


def _variables(args: list[Node]) -> tuple[str, str]:
    for arg in args[:2]:
        if not isinstance(arg, Ident):
            raise MacroError(arg.offset, "argument must be a simple name")
    first, second = args[0], args[1]
    if isinstance(first, Ident) and isinstance(second, Ident) and first.name == second.name:
        raise MacroError(second.offset, f"duplicate variable name: {first.name}")
    message = "argument must be a simple name"
    return _variable(first, message), _variable(second, message)


def _quantifier(at: int, macro: str, target: Node, variables: tuple[str, str], predicate: Node) -> Node:
    def accumulated() -> Ident:
        return Ident(at, ACCUMULATOR)

    condition: Node
    if macro == "all":
        initial = Literal(at, "bool", True)
        condition = Call(at, "@not_strictly_false", [accumulated()])
        step = Call(at, "_&&_", [accumulated(), predicate])
        result: Node = accumulated()
    elif macro == "exists":
        initial = Literal(at, "bool", False)
        condition = Call(at, "@not_strictly_false", [Call(at, "!_", [accumulated()])])
        step = Call(at, "_||_", [accumulated(), predicate])
        result = accumulated()
    else:
        initial = Literal(at, "int", 0)
        condition = Literal(at, "bool", True)
        one_more = Call(at, "_+_", [accumulated(), Literal(at, "int", 1)])
        step = Call(at, "_?_:_", [predicate, one_more, accumulated()])
        result = Call(at, "_==_", [accumulated(), Literal(at, "int", 1)])
    return Comprehension(at, macro, target, *variables, ACCUMULATOR, initial, condition, step, result)


def _collect(
    at: int, macro: str, target: Node, variables: tuple[str, str], initial: Node, step: Node, predicate: Node | None
) -> Node:
    """A loop that gathers values: `step` adds one, only where `predicate` holds."""
    if predicate is not None:
        step = Call(at, "_?_:_", [predicate, step, Ident(at, ACCUMULATOR)])
    loop = (Literal(at, "bool", True), step, Ident(at, ACCUMULATOR))
    return Comprehension(at, macro, target, *variables, ACCUMULATOR, initial, *loop)


def _list_step(at: int, value: Node) -> Node:
    return Call(at, "_+_", [Ident(at, ACCUMULATOR), ListNode(at, [value])])


def _one_variable(at: int, macro: str, target: Node, args: list[Node]) -> Node:
    variable = _variable(args[0], "argument must be a simple name")
    return _quantifier(at, macro, target, (variable, ""), args[1])


def _two_variables(at: int, macro: str, target: Node, args: list[Node]) -> Node:
    return _quantifier(at, macro, target, _variables(args), args[2])


def _map(at: int, target: Node, args: list[Node]) -> Node:
    variable = _variable(args[0], "argument is not an identifier")
    predicate = args[1] if len(args) == 3 else None
    return _collect(at, "map", target, (variable, ""), ListNode(at, []), _list_step(at, args[-1]), predicate)


def _filter(at: int, target: Node, args: list[Node]) -> Node:
    variable = _variable(args[0], "argument is not an identifier")
    return _collect(at, "map", target, (variable, ""), ListNode(at, []), _list_step(at, args[0]), args[1])


def _transform_list(at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    return _collect(at, "map", target, names, ListNode(at, []), _list_step(at, args[-1]), predicate)


def _transform_map(at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    step = Call(at, "cel.@mapInsert", [Ident(at, ACCUMULATOR), Ident(at, names[0]), args[-1]])
    return _collect(at, "transformMap", target, names, MapNode(at, []), step, predicate)


def _transform_entry(at: int, target: Node, args: list[Node]) -> Node:
    names = _variables(args)
    predicate = args[2] if len(args) == 4 else None
    step = Call(at, "cel.@mapInsert", [Ident(at, ACCUMULATOR), args[-1]])
    return _collect(at, "transformMap", target, names, MapNode(at, []), step, predicate)


def _bind(at: int, variable: str, value: Node, result: Node) -> Node:
    """`result` with `variable` bound to `value`: a loop over nothing."""
    loop = (Literal(at, "bool", False), Ident(at, variable), result)
    return Comprehension(at, "bind", ListNode(at, []), "#unused", "", variable, value, *loop)


def _opt_map(at: int, target: Node, args: list[Node]) -> Node:
    return _optional(at, target, args, "optMap", lambda bound: Call(at, "optional.of", [bound]))


def _opt_flat_map(at: int, target: Node, args: list[Node]) -> Node:
    return _optional(at, target, args, "optFlatMap", lambda bound: bound)


def _optional(at: int, target: Node, args: list[Node], macro: str, wrap: Callable[[Node], Node]) -> Node:
    if not isinstance(args[0], Ident):
        raise MacroError(args[0].offset, f"{macro}() variable name must be a simple identifier")
    bound = _bind(at, args[0].name, Call(at, "value", [], copy(target)), args[1])
    present = Call(at, "hasValue", [], target)
    return Call(at, "_?_:_", [present, wrap(bound), Call(at, "optional.none", [])])


def _sort_by(at: int, target: Node, args: list[Node]) -> Node:
    if isinstance(target, Literal | MapNode | StructNode):
        message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression"
        raise MacroError(target.offset, message)
    name = "@__sortBy_input__"
    keys = _map(at, Ident(at, name), args)
    return _bind(at, name, target, Call(at, "@sortByAssociatedKeys", [keys], Ident(at, name)))


def _has(at: int, args: list[Node]) -> Node:
    operand = args[0]
    if not isinstance(operand, Select) or operand.test:
        raise MacroError(operand.offset, "invalid argument to has() macro")
    return Select(at, operand.operand, operand.field, test=True)


_RECEIVER: dict[tuple[str, int], Callable[[int, Node, list[Node]], Node]] = {
    ("all", 2): lambda at, target, args: _one_variable(at, "all", target, args),
    ("exists", 2): lambda at, target, args: _one_variable(at, "exists", target, args),
    ("exists_one", 2): lambda at, target, args: _one_variable(at, "exists_one", target, args),
    ("all", 3): lambda at, target, args: _two_variables(at, "all", target, args),
    ("exists", 3): lambda at, target, args: _two_variables(at, "exists", target, args),
    ("exists_one", 3): lambda at, target, args: _two_variables(at, "exists_one", target, args),
    ("existsOne", 3): lambda at, target, args: _two_variables(at, "exists_one", target, args),
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    ("transformList", 3): _transform_list,
    ("transformList", 4): _transform_list,
    ("transformMap", 3): _transform_map,
    ("transformMap", 4): _transform_map,
    ("transformMapEntry", 3): _transform_entry,
    ("transformMapEntry", 4): _transform_entry,
    ("optMap", 2): _opt_map,
    ("optFlatMap", 2): _opt_flat_map,
    ("sortBy", 2): _sort_by,
}


def expand(at: int, name: str, target: Node | None, args: list[Node]) -> Node | None:
    """What a call stands for if it is a macro, else None.

    Raises MacroError: it is one, but its arguments do not fit.
    """
    if target is None:
        return _has(at, args) if name == "has" and len(args) == 1 else None
    macro = _RECEIVER.get((name, len(args)))
    return macro(at, target, args) if macro else None
