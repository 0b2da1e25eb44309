"""Pipelines to closures: operands, field access, function calls (Go: text/template, exec.go, "eval" functions).

Each node is translated once into a function of (frame, dot); what can be known from the text (constants, arity, which
slot, which literal fits which parameter) is known there, and only what depends on values is left to the run.
Messages and their places are Go's. Mistakes that Go reports when it executes a node are reported when we do, not
when we compile: a wrong branch that is never taken harms nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tink.golang.values import CallError, Struct, Value, type_name
from tink.template import nodes
from tink.template.errors import shortened
from tink.template.execution import Expression, Frame, Origin
from tink.template.signatures import PYTHON_TYPES, Function, Functions, Type, is_large, text_size

PANICS = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""What a function must not raise, but if one does, only the template fails that calls it, as with a panic in Go."""

Check = Callable[[Frame, Value], Value]
"""Passes a value on, or raises TemplateExecutionError."""


class ExpressionCompiler:
    """Translates the expressions of one tree."""

    def __init__(self, origin: Origin, functions: Functions) -> None:
        self.origin = origin
        self.functions = functions
        self.range_dots = 0
        """How many range bodies enclose the current place: there, dot is an element, of which Go knows less."""
        self.changes_maps = False
        """Whether what was compiled calls functions that change a map."""

    # --- pipelines and commands ---

    def pipe(self, node: nodes.Pipe) -> Expression:
        """A pipeline, with its declarations."""
        value, seen = self._command(node.commands[0], None, node), last_visited(node.commands[0])
        for command in node.commands[1:]:
            value, seen = self._command(command, value, seen), last_visited(command)
        if not node.variables:
            return value
        return self._stored(node, value)

    def _stored(self, node: nodes.Pipe, value: Expression) -> Expression:
        for variable in node.variables:
            if variable.slot is None:
                return self._fails_after(value, last_visited(node), f"undefined variable: {variable.name}")
        slots = [variable.slot for variable in node.variables if variable.slot is not None]

        def store(frame: Frame, dot: Value) -> Value:
            result = value(frame, dot)
            for slot in slots:
                frame[slot] = result
            return result

        return store

    def _command(self, node: nodes.Command, final: Expression | None, seen: nodes.Node) -> Expression:
        """One stage; `final` computes the value of the stage before, which becomes the last argument; `seen` is the
        node that Go has visited last."""
        first = node.operands[0]
        arguments = node.operands[1:]
        if isinstance(first, nodes.Identifier):
            return self._call(first, node, arguments, final)
        if arguments or final is not None:
            return self._misapplied(first, final, seen)
        if isinstance(first, nodes.Nil):
            return self._fails(first, "nil is not a command")
        return self.operand(first)

    def _misapplied(self, first: nodes.Operand, final: Expression | None, seen: nodes.Node) -> Expression:
        """Arguments for what is no function."""
        if isinstance(first, nodes.Field | nodes.Chain) or (isinstance(first, nodes.Variable) and first.names):
            return self._fields_with_arguments(first, final)
        complaint = f"can't give argument to non-function {first}"
        blamed = seen if isinstance(first, nodes.Pipe) else first
        return self._fails_after(final, blamed, complaint) if final else self._fails(blamed, complaint)

    def _fields_with_arguments(
        self, node: nodes.Field | nodes.Chain | nodes.Variable, final: Expression | None
    ) -> Expression:
        *names, last = node.names
        base = self._base(node)
        walk = self._walk(node, base, names) if names else base
        origin, elementary = self.origin, bool(names) or self._is_element(node)
        blamed = last_visited(node)

        def fail(frame: Frame, dot: Value) -> Value:
            if final is not None:
                final(frame, dot)
            value = walk(frame, dot)
            if type(value) is dict:
                raise origin.error(frame, blamed, f"{last} is not a method but has arguments")
            if type(value) is Struct and last in value.members:
                raise origin.error(frame, blamed, f"{last} has arguments but cannot be invoked as function")
            raise origin.error(frame, blamed, no_field(value, last, elementary=elementary))

        return fail

    # --- operands ---

    def operand(self, node: nodes.Operand) -> Expression:
        """A value where any type will do."""
        match node:
            case nodes.Field() | nodes.Chain():
                return self._walk(node, self._base(node), node.names)
            case nodes.Variable():
                base = self._base(node)
                return self._walk(node, base, node.names) if node.names else base
            case nodes.Pipe():
                return self.pipe(node)
            case nodes.Identifier():
                return self._call(node, node, [], None)
            case nodes.Dot():
                return _dot
            case nodes.Bool():
                return constant(node.value)
            case nodes.String():
                return constant(node.text)
            case nodes.Number():
                if node.imaginary is not None:
                    return constant(node.imaginary)
                if node.is_real:
                    return constant(node.real)
                if node.integer is None:
                    return self._fails(node, f"{node.text} overflows int")
                return constant(node.integer)
            case nodes.Nil():
                return constant(None)

    def _base(self, node: nodes.Field | nodes.Chain | nodes.Variable) -> Expression:
        """What the fields of a node are looked up in."""
        if isinstance(node, nodes.Field):
            return _dot
        if isinstance(node, nodes.Chain):
            return self.operand(node.base)
        if node.slot is None:
            return self._fails(node, f"undefined variable: {node.name}")
        return variable(node.slot)

    def _is_element(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Field) and self.range_dots > 0

    def _walk(self, node: nodes.Field | nodes.Chain | nodes.Variable, base: Expression, path: list[str]) -> Expression:
        names = tuple(path)
        origin, element, blamed = self.origin, self._is_element(node), last_visited(node)

        def fields(frame: Frame, dot: Value) -> Value:
            value = base(frame, dot)
            for name in names:
                try:
                    if type(value) is dict:
                        value = value[name]
                        continue
                    if type(value) is Struct:
                        value = value.members[name]
                        continue
                except KeyError:
                    pass
                elementary = element or name is not names[0]
                raise origin.error(frame, blamed, no_field(value, name, elementary=elementary))
            return value

        return fields

    # --- calls ---

    def _call(
        self,
        identifier: nodes.Identifier,
        node: nodes.Command | nodes.Identifier,
        arguments: list[nodes.Operand],
        final: Expression | None,
    ) -> Expression:
        function = self.functions[identifier.name]
        self.changes_maps |= function.changing
        total = len(arguments) + (final is not None)
        complaint = function.arity_complaint(len(arguments), total)
        if complaint is not None:
            return self._fails_after(final, identifier, complaint) if final else self._fails(identifier, complaint)
        compiled = [self._argument(operand, function.parameter(index)) for index, operand in enumerate(arguments)]
        if function.name in ("and", "or"):
            return _short_circuit(function.name == "or", compiled, final)
        if final is None:
            return self._invocation(function, node, compiled, None, None)
        blamed = last_visited(arguments[-1]) if arguments else identifier
        check = self._check(function.parameter(total - 1), blamed, elementary=False)
        return self._invocation(function, node, compiled, final, check)

    def _invocation(
        self,
        function: Function,
        node: nodes.Command | nodes.Identifier,
        arguments: list[Expression],
        final: Expression | None,
        check: Check | None,
    ) -> Expression:
        """The call itself; `check` looks at the pipeline's value, once the arguments are there."""
        origin, name, call, metered = self.origin, function.name, function.call, function.metered

        def call_with(frame: Frame, *values: Value) -> Value:
            try:
                result = call(lambda steps: origin.charge(frame, node, steps), *values) if metered else call(*values)
            except (CallError, *PANICS) as error:
                raise origin.error(frame, node, f"error calling {name}: {shortened(str(error))}") from None
            if is_large(result) or any(map(is_large, values)):
                # Large values that are read or made are paid for.
                origin.charge(frame, node, sum(map(text_size, (*values, result))) >> 6)
            return result

        if final is not None:
            # The pipeline's value is computed before the arguments, but passed, and looked at, after them.
            def call_piped(frame: Frame, dot: Value) -> Value:
                last = final(frame, dot)
                values = [argument(frame, dot) for argument in arguments]
                return call_with(frame, *values, last if check is None else check(frame, last))

            return call_piped
        return lambda frame, dot: call_with(frame, *[argument(frame, dot) for argument in arguments])

    def _argument(self, node: nodes.Operand, wanted: Type) -> Expression:
        """An argument for a parameter of this type."""
        if isinstance(node, nodes.Nil):
            if wanted is Type.MAP:
                return lambda _frame, _dot: {}
            if wanted is Type.ANY:
                return constant(None)
            return self._fails(node, f"cannot assign nil to {wanted.value}")
        if wanted is Type.ANY:
            return self.operand(node)
        if isinstance(node, nodes.Bool | nodes.Number | nodes.String):
            return self._literal(node, wanted)
        return self._checked(self.operand(node), wanted, node)

    def _literal(self, node: nodes.Bool | nodes.Number | nodes.String, wanted: Type) -> Expression:
        if wanted is Type.STRING and isinstance(node, nodes.String):
            return constant(node.text)
        if wanted is Type.BOOL and isinstance(node, nodes.Bool):
            return constant(node.value)
        if wanted is Type.INT and isinstance(node, nodes.Number) and node.integer is not None:
            return constant(node.integer)
        if wanted is Type.FLOAT and isinstance(node, nodes.Number) and node.real is not None:
            return constant(node.real)
        if wanted is Type.MAP:
            return self._fails(node, f"can't handle {node} for arg of type {wanted.value}")
        expected = {Type.INT: "integer", Type.FLOAT: "float"}.get(wanted, wanted.value)
        return self._fails(node, f"expected {expected}; found {node}")

    def _checked(self, value: Expression, wanted: Type, node: nodes.Operand) -> Expression:
        elementary = isinstance(node, nodes.Field | nodes.Chain) or (
            isinstance(node, nodes.Variable) and node.names != []
        )
        check = self._check(wanted, last_visited(node), elementary=elementary)
        return value if check is None else lambda frame, dot: check(frame, value(frame, dot))

    def _check(self, wanted: Type, blamed: nodes.Node, *, elementary: bool) -> Check | None:
        """Whether a value fits a parameter of this type (Go: validateType); None: everything does."""
        if wanted is Type.ANY:
            return None
        origin, python_type = self.origin, PYTHON_TYPES[wanted]

        def check(frame: Frame, value: Value) -> Value:
            if type(value) is python_type:
                return value
            if value is not None:
                message = f"wrong type for value; expected {wanted.value}; got {type_name(value)}"
            elif elementary:
                message = f"wrong type for value; expected {wanted.value}; got interface {{}}"
            elif wanted is Type.MAP:
                return {}
            else:
                message = f"invalid value; expected {wanted.value}"
            raise origin.error(frame, blamed, message)

        return check

    # --- failures that wait for their turn ---

    def _fails(self, node: nodes.Node, message: str) -> Expression:
        origin = self.origin

        def fail(frame: Frame, _dot: Value) -> Value:
            raise origin.error(frame, node, message)

        return fail

    def _fails_after(self, value: Expression, node: nodes.Node, message: str) -> Expression:
        origin = self.origin

        def fail(frame: Frame, dot: Value) -> Value:
            value(frame, dot)
            raise origin.error(frame, node, message)

        return fail


def _dot(_frame: Frame, dot: Value) -> Value:
    return dot


def constant(value: Value) -> Expression:
    """Always this value."""
    return lambda _frame, _dot: value


def variable(slot: int) -> Expression:
    """What a slot of the frame holds."""
    return lambda frame, _dot: frame[slot]


def _short_circuit(wanted: bool, arguments: list[Expression], final: Expression | None) -> Expression:
    """and, or: the first argument whose truth decides, else the last."""

    def decide(frame: Frame, dot: Value) -> Value:
        last = final(frame, dot) if final is not None else None
        value: Any = None
        for argument in arguments:
            value = argument(frame, dot)
            if bool(value) is wanted:
                return value
        return last if final is not None else value

    return decide


def no_field(value: Value, name: str, *, elementary: bool) -> str:
    """Why a value has no such field. `elementary`: it was taken out of a map or list, where Go only knows that it is
    an interface."""
    if type(value) is dict:
        return f'map has no entry for key "{name}"'
    if value is None:
        if elementary:
            return f"nil pointer evaluating interface {{}}.{name}"
        return f'nil data; no entry for key "{name}"'
    known = "interface {}" if elementary and type(value) is not Struct else type_name(value)
    return f"can't evaluate field {name} in type {known}"


def last_visited(node: nodes.Node) -> nodes.Node:
    """The node that Go has looked at last once this one is evaluated; errors that follow are blamed on it."""
    while True:
        if isinstance(node, nodes.Pipe):
            node = node.commands[-1]
        elif isinstance(node, nodes.Chain):
            node = node.base
        elif isinstance(node, nodes.Command):
            node = node.operands[-1 if isinstance(node.operands[0], nodes.Identifier) else 0]
        else:
            return node
