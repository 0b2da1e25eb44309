"""Compile the trees of a template into closures, and run them (Go: text/template, exec.go).

`compile_text` returns a `TemplateProgram`. It is immutable, holds neither its name nor its data, and several callers
can run it at once. Each node becomes a function of (frame, dot). Everything that the text alone determines (constants,
number of arguments, variable slots, literals that fit a parameter) is decided once, at compile time. Messages and their
places are Go's. Errors that Go reports when it executes a node are reported when the node runs, so an error in a branch
that is never taken has no effect.

A frame is a list: `[write, run, $, variables...]`. `write` appends a piece of output. The slots from `FIRST_SLOT` on
are the variables of the running template, as the parser numbered them.

Bounds: a loop or an invoked template pays for its nodes in each pass, and functions pay for the length of the text that
they make. So the number of steps bounds time and memory. Code without loops is bounded by the length of its own text.
Steps cost the same everywhere; CPU time is bounded too, for the few templates whose steps are slow.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from tink.golang.fmt import text_of
from tink.golang.strconv import byte_length, from_bytes, quote, to_bytes
from tink.golang.values import CallError, Struct, Uint8, Value, type_name
from tink.template import nodes
from tink.template.errors import TemplateExecutionError, place, shortened
from tink.template.functions import FUNCTIONS
from tink.template.parser import FIRST_SLOT, parse
from tink.template.signatures import PYTHON_TYPES, Function, Functions, ParameterType, is_large, text_size
from tink.template.sprig import deep_copy

Frame = list[Any]
Expression = Callable[[Frame, Value], Value]
Statement = Callable[[Frame, Value], object]

WRITE: Final = 0
RUN: Final = 1
_UNTIMED_STEPS: Final = 8  # Cheaper operations do not read the clock, which would take longer than they do.


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """The limits of one budget."""

    steps: int = 100_000  # executed nodes
    output: int = 256 * 1024  # bytes, of each template
    depth: int = 64  # of templates
    seconds: float = 3.0  # of CPU time


class RenderBudget:
    """The steps and the time that are left. Several templates can share one budget."""

    __slots__ = ("_clock", "_end", "limits", "steps")

    def __init__(self, limits: RenderLimits | None = None, clock: Callable[[], float] = time.thread_time) -> None:
        self.limits = limits or RenderLimits()
        self.steps = self.limits.steps
        self._clock = clock
        self._end = clock() + self.limits.seconds

    def exceeded(self) -> str:
        """Return the exceeded limit for a message; "" if none is exceeded."""
        if self.steps < 0:
            return f"{self.limits.steps} steps"
        return f"{self.limits.seconds:g} s" if self._clock() > self._end else ""


class Run:
    """One execution of a program."""

    __slots__ = ("budget", "depth", "name", "output")

    def __init__(self, name: str, budget: RenderBudget) -> None:
        self.name = name
        self.budget = budget
        self.depth = 0
        self.output: list[str] = []

    def frame(self, dot: Value, slots: int) -> Frame:
        """Return a new frame for a template with this number of variables, `$` included."""
        frame: Frame = [self.output.append, self, *[None] * slots]
        frame[FIRST_SLOT] = dot
        return frame


@dataclass(frozen=True, slots=True)
class TreeOrigin:
    """The source of compiled code, for error messages: the text, and the name that `define` gave it."""

    text: str
    tree: str | None

    def error(self, frame: Frame, node: nodes.ParseNode, message: str) -> TemplateExecutionError:
        """Return the error that Go reports for this node. The caller raises it."""
        name = frame[RUN].name
        line, column = place(self.text, node.position)
        executing = name if self.tree is None else self.tree
        return TemplateExecutionError(
            f'template: {name}:{line}:{column}: executing "{executing}" at <{shortened(str(node))}>: {message}',
            name=name,
            line=line,
            column=column,
        )

    def charge(self, frame: Frame, node: nodes.ParseNode, steps: int) -> None:
        """Take steps from the budget. Raises TemplateExecutionError if it is exhausted."""
        budget = frame[RUN].budget
        budget.steps -= steps
        if budget.steps < 0 or steps > _UNTIMED_STEPS:
            exceeded = budget.exceeded()
            if exceeded:
                raise self.error(frame, node, f"the template takes more than {exceeded}")


PANICS = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
"""Exceptions that a function must not raise. If it does, only the calling template fails, as with a panic in Go."""

Check = Callable[[Frame, Value], Value]
"""Returns a value unchanged, or raises TemplateExecutionError."""


_CHEAP: Final = 64  # Printed values up to this length cost no more than the step that prints them.


class _Break(Exception):  # noqa: N818 (control flow, no error)
    pass


class _Continue(Exception):  # noqa: N818 (control flow, no error)
    pass


class _Compiler:
    """Compiles one tree of a program."""

    def __init__(self, origin: TreeOrigin, functions: Functions, program: TemplateProgram) -> None:
        self.origin = origin
        self.functions = functions
        self.program = program
        self.range_dots = 0
        """The number of enclosing range bodies. There, dot is an element, of which Go knows less."""
        self.changes_maps = False
        """True if the compiled code calls functions that change a map."""

    # --- pipelines and commands ---

    def pipe(self, node: nodes.PipeNode) -> Expression:
        """Compile a pipeline with its declarations."""
        value, seen = self._command(node.commands[0], None, node), last_visited(node.commands[0])
        for command in node.commands[1:]:
            value, seen = self._command(command, value, seen), last_visited(command)
        if not node.variables:
            return value
        for variable in node.variables:
            if variable.slot is None:
                return self._fails(last_visited(node), f"undefined variable: {variable.name}", value)
        slots = [variable.slot for variable in node.variables if variable.slot is not None]

        def store(frame: Frame, dot: Value) -> Value:
            result = value(frame, dot)
            for slot in slots:
                frame[slot] = result
            return result

        return store

    def _command(self, node: nodes.CommandNode, final: Expression | None, seen: nodes.ParseNode) -> Expression:
        """Compile one stage of a pipeline.

        `final` computes the value of the previous stage, which becomes the last argument. `seen` is the node that Go
        has visited last.
        """
        first = node.operands[0]
        arguments = node.operands[1:]
        if isinstance(first, nodes.IdentifierNode):
            return self._call(first, node, arguments, final)
        if arguments or final is not None:
            # Arguments for an operand that is no function are an error when it runs.
            if isinstance(first, nodes.FieldNode | nodes.ChainNode) or (
                isinstance(first, nodes.VariableNode) and first.names
            ):
                return self._fields_with_arguments(first, final)
            blamed = seen if isinstance(first, nodes.PipeNode) else first
            return self._fails(blamed, f"can't give argument to non-function {first}", final)
        if isinstance(first, nodes.NilNode):
            return self._fails(first, "nil is not a command")
        return self.operand(first)

    def _fields_with_arguments(
        self, node: nodes.FieldNode | nodes.ChainNode | nodes.VariableNode, final: Expression | None
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
        """Compile an operand of any type."""
        match node:
            case nodes.FieldNode() | nodes.ChainNode():
                return self._walk(node, self._base(node), node.names)
            case nodes.VariableNode():
                base = self._base(node)
                return self._walk(node, base, node.names) if node.names else base
            case nodes.PipeNode():
                return self.pipe(node)
            case nodes.IdentifierNode():
                return self._call(node, node, [], None)
            case nodes.DotNode():
                return _dot
            case nodes.BoolNode():
                return constant(node.value)
            case nodes.StringNode():
                return constant(node.text)
            case nodes.NumberNode():
                if node.imaginary is not None:
                    return constant(node.imaginary)
                if node.is_real:
                    return constant(node.real)
                if node.integer is None:
                    return self._fails(node, f"{node.text} overflows int")
                return constant(node.integer)
            case nodes.NilNode():
                return constant(None)

    def _base(self, node: nodes.FieldNode | nodes.ChainNode | nodes.VariableNode) -> Expression:
        """Compile the value in which the fields of a node are looked up."""
        if isinstance(node, nodes.FieldNode):
            return _dot
        if isinstance(node, nodes.ChainNode):
            return self.operand(node.base)
        if node.slot is None:
            return self._fails(node, f"undefined variable: {node.name}")
        return variable(node.slot)

    def _is_element(self, node: nodes.ParseNode) -> bool:
        return isinstance(node, nodes.FieldNode) and self.range_dots > 0

    def _walk(
        self, node: nodes.FieldNode | nodes.ChainNode | nodes.VariableNode, base: Expression, path: list[str]
    ) -> Expression:
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
        identifier: nodes.IdentifierNode,
        node: nodes.CommandNode | nodes.IdentifierNode,
        arguments: list[nodes.Operand],
        final: Expression | None,
    ) -> Expression:
        function = self.functions[identifier.name]
        self.changes_maps |= function.changing
        total = len(arguments) + (final is not None)
        complaint = function.arity_complaint(len(arguments), total)
        if complaint is not None:
            return self._fails(identifier, complaint, final)
        compiled = [self._argument(operand, function.parameter(index)) for index, operand in enumerate(arguments)]
        if function.name in ("and", "or"):
            wanted = function.name == "or"  # the first argument whose truth decides, else the last one

            def decide(frame: Frame, dot: Value) -> Value:
                last = final(frame, dot) if final is not None else None
                value: Any = None
                for argument in compiled:
                    value = argument(frame, dot)
                    if bool(value) is wanted:
                        return value
                return last if final is not None else value

            return decide
        if final is None:
            return self._invocation(function, node, compiled, None, None)
        blamed = last_visited(arguments[-1]) if arguments else identifier
        check = self._check(function.parameter(total - 1), blamed, elementary=False)
        return self._invocation(function, node, compiled, final, check)

    def _invocation(
        self,
        function: Function,
        node: nodes.CommandNode | nodes.IdentifierNode,
        arguments: list[Expression],
        final: Expression | None,
        check: Check | None,
    ) -> Expression:
        """Compile the call itself. `check` checks the pipeline's value after the arguments are evaluated."""
        origin, name, call, metered = self.origin, function.name, function.call, function.metered

        def call_with(frame: Frame, *values: Value) -> Value:
            try:
                result = call(lambda steps: origin.charge(frame, node, steps), *values) if metered else call(*values)
            except (CallError, *PANICS) as error:
                raise origin.error(frame, node, f"error calling {name}: {shortened(str(error))}") from None
            if is_large(result) or any(map(is_large, values)):
                # Reading or making a large value costs extra steps.
                origin.charge(frame, node, sum(map(text_size, (*values, result))) >> 6)
            return result

        if final is not None:
            # The pipeline's value is computed before the arguments, but passed and checked after them.
            def call_piped(frame: Frame, dot: Value) -> Value:
                last = final(frame, dot)
                values = [argument(frame, dot) for argument in arguments]
                return call_with(frame, *values, last if check is None else check(frame, last))

            return call_piped
        return lambda frame, dot: call_with(frame, *[argument(frame, dot) for argument in arguments])

    def _argument(self, node: nodes.Operand, wanted: ParameterType) -> Expression:
        """Compile an argument for a parameter of this type."""
        if isinstance(node, nodes.NilNode):
            if wanted is ParameterType.MAP:
                return lambda _frame, _dot: {}
            if wanted is ParameterType.ANY:
                return constant(None)
            return self._fails(node, f"cannot assign nil to {wanted.value}")
        if wanted is ParameterType.ANY:
            return self.operand(node)
        if isinstance(node, nodes.BoolNode | nodes.NumberNode | nodes.StringNode):
            return self._literal(node, wanted)
        value = self.operand(node)
        elementary = isinstance(node, nodes.FieldNode | nodes.ChainNode) or (
            isinstance(node, nodes.VariableNode) and node.names != []
        )
        check = self._check(wanted, last_visited(node), elementary=elementary)
        return value if check is None else lambda frame, dot: check(frame, value(frame, dot))

    def _literal(self, node: nodes.BoolNode | nodes.NumberNode | nodes.StringNode, wanted: ParameterType) -> Expression:
        if wanted is ParameterType.STRING and isinstance(node, nodes.StringNode):
            return constant(node.text)
        if wanted is ParameterType.BOOL and isinstance(node, nodes.BoolNode):
            return constant(node.value)
        if wanted is ParameterType.INT and isinstance(node, nodes.NumberNode) and node.integer is not None:
            return constant(node.integer)
        if wanted is ParameterType.FLOAT and isinstance(node, nodes.NumberNode) and node.real is not None:
            return constant(node.real)
        if wanted is ParameterType.MAP:
            return self._fails(node, f"can't handle {node} for arg of type {wanted.value}")
        expected = {ParameterType.INT: "integer", ParameterType.FLOAT: "float"}.get(wanted, wanted.value)
        return self._fails(node, f"expected {expected}; found {node}")

    def _check(self, wanted: ParameterType, blamed: nodes.ParseNode, *, elementary: bool) -> Check | None:
        """Return a check that a value fits a parameter of this type (Go: validateType); None if every value fits."""
        if wanted is ParameterType.ANY:
            return None
        origin, python_type = self.origin, PYTHON_TYPES[wanted]

        def check(frame: Frame, value: Value) -> Value:
            if type(value) is python_type:
                return value
            if value is not None:
                message = f"wrong type for value; expected {wanted.value}; got {type_name(value)}"
            elif elementary:
                message = f"wrong type for value; expected {wanted.value}; got interface {{}}"
            elif wanted is ParameterType.MAP:
                return {}
            else:
                message = f"invalid value; expected {wanted.value}"
            raise origin.error(frame, blamed, message)

        return check

    # --- failures that wait for their turn ---

    def _fails(self, node: nodes.ParseNode, message: str, after: Expression | None = None) -> Expression:
        origin = self.origin

        def fail(frame: Frame, dot: Value) -> Value:
            if after is not None:
                after(frame, dot)
            raise origin.error(frame, node, message)

        return fail

    # --- statements ---

    def block(self, statements: Iterable[nodes.Statement]) -> Statement:
        """Compile a list of statements into one."""
        steps: list[tuple[str, Statement]] = []
        text = ""
        for node in statements:
            if isinstance(node, nodes.TextNode):
                text += node.text
            else:
                steps.append((text, self._statement(node)))
                text = ""
        if not steps:
            return lambda frame, _dot: frame[WRITE](text)
        if len(steps) == 1 and not text and not steps[0][0]:
            return steps[0][1]

        def run(frame: Frame, dot: Value) -> None:
            write = frame[WRITE]
            for before, statement in steps:
                if before:
                    write(before)
                statement(frame, dot)
            if text:
                write(text)

        return run

    def _statement(
        self,
        node: nodes.ActionNode
        | nodes.BranchNode
        | nodes.RangeNode
        | nodes.InvokeNode
        | nodes.BreakNode
        | nodes.ContinueNode,
    ) -> Statement:
        match node:
            case nodes.ActionNode():
                return self._action(node)
            case nodes.BranchNode():
                return self._branch(node)
            case nodes.RangeNode():
                return self._range(node)
            case nodes.InvokeNode():
                return self._invoke(node)
            case nodes.BreakNode():
                return _raise_break
            case nodes.ContinueNode():
                return _raise_continue

    def _action(self, node: nodes.ActionNode) -> Statement:
        value_of = self.pipe(node.pipe)
        if node.pipe.variables:
            return value_of
        origin = self.origin

        def show(frame: Frame, dot: Value) -> None:
            value = value_of(frame, dot)
            if type(value) is str:
                frame[WRITE](value)
                return
            try:
                text = "<no value>" if value is None else text_of(value)
            except CallError as error:
                raise origin.error(frame, node, str(error)) from None
            if len(text) > _CHEAP:
                origin.charge(frame, node, len(text) >> 4)
            frame[WRITE](text)

        return show

    def _branch(self, node: nodes.BranchNode) -> Statement:
        arms = []
        for is_with, pipe, body in node.arms:
            condition = self.pipe(pipe)
            arms.append((is_with, condition, self._scoped(body, 0) if is_with else self.block(body)))
        otherwise = self.block(node.otherwise) if node.otherwise is not None else None

        def choose(frame: Frame, dot: Value) -> None:
            for is_with, condition, body in arms:
                value = condition(frame, dot)
                if value:
                    body(frame, value if is_with else dot)
                    return
            if otherwise is not None:
                otherwise(frame, dot)

        return choose

    def _scoped(self, body: list[nodes.Statement], range_dots: int) -> Statement:
        """Compile a body in which dot is another value: an element of a range (1) or not (0)."""
        outer = self.range_dots
        self.range_dots = range_dots
        compiled = self.block(body)
        self.range_dots = outer
        return compiled

    def _range(self, node: nodes.RangeNode) -> Statement:
        pipe = node.pipe
        subject = self.pipe(pipe)
        body = self._scoped(node.body, 1)
        otherwise = self.block(node.otherwise) if node.otherwise is not None else None
        origin = self.origin
        blamed = last_visited(pipe)
        cost = 1 + weight(node.body)
        slots = [variable.slot for variable in pipe.variables if variable.slot is not None]
        key_slot = slots[0] if len(slots) == 2 else None
        value_slot = slots[-1] if slots else None

        def loop(frame: Frame, dot: Value) -> None:
            value = subject(frame, dot)
            pairs = _pairs(value)
            if pairs is None:
                raise origin.error(frame, blamed, f"range can't iterate over {shortened(text_of(value))}")
            if type(value) in (int, Uint8) and key_slot is not None:
                raise origin.error(frame, blamed, f"can't use {value} to iterate over more than one variable")
            origin.charge(frame, blamed, text_size(value) >> 4)
            budget = frame[RUN].budget
            empty = True
            try:
                for key, item in pairs:
                    empty = False
                    budget.steps -= cost
                    if budget.steps < 0:
                        origin.charge(frame, blamed, 0)
                    if value_slot is not None:
                        frame[value_slot] = item
                        if key_slot is not None:
                            frame[key_slot] = key
                    try:
                        body(frame, item)
                    except _Continue:
                        continue
            except _Break:
                return
            if empty and otherwise is not None:
                otherwise(frame, dot)

        return loop

    def _invoke(self, node: nodes.InvokeNode) -> Statement:
        argument = self.pipe(node.pipe) if node.pipe is not None else None
        origin, program = self.origin, self.program

        def invoke(frame: Frame, dot: Value) -> None:
            run: Run = frame[RUN]
            found = program.find(node.name, run.name)
            if found is None:
                raise origin.error(frame, node, f"template {quote(node.name)} not defined")
            if run.depth >= run.budget.limits.depth:
                raise origin.error(frame, node, f"exceeded maximum template depth ({run.budget.limits.depth})")
            body, slots, cost = found
            origin.charge(frame, node, cost)
            inner = argument(frame, dot) if argument is not None else None
            run.depth += 1
            body(run.frame(inner, slots), inner)
            run.depth -= 1

        return invoke


def _dot(_frame: Frame, dot: Value) -> Value:
    return dot


def constant(value: Value) -> Expression:
    """Return an expression with a constant value."""
    return lambda _frame, _dot: value


def variable(slot: int) -> Expression:
    """Return an expression that reads a slot of the frame."""
    return lambda frame, _dot: frame[slot]


def no_field(value: Value, name: str, *, elementary: bool) -> str:
    """Return the error message for a missing field.

    `elementary`: the value is from a map or list, where Go only knows that it is an interface.
    """
    if type(value) is dict:
        return f'map has no entry for key "{name}"'
    if value is None:
        if elementary:
            return f"nil pointer evaluating interface {{}}.{name}"
        return f'nil data; no entry for key "{name}"'
    known = "interface {}" if elementary and type(value) is not Struct else type_name(value)
    return f"can't evaluate field {name} in type {known}"


def last_visited(node: nodes.ParseNode) -> nodes.ParseNode:
    """Return the node that Go has visited last after it evaluated `node`. Go reports following errors there."""
    while True:
        if isinstance(node, nodes.PipeNode):
            node = node.commands[-1]
        elif isinstance(node, nodes.ChainNode):
            node = node.base
        elif isinstance(node, nodes.CommandNode):
            node = node.operands[-1 if isinstance(node.operands[0], nodes.IdentifierNode) else 0]
        else:
            return node


class TemplateProgram:
    """A compiled template with the templates that it defines.

    `changes_maps`: it may change maps in its data.
    """

    def __init__(self, text: str, trees: dict[str | None, nodes.Tree], functions: Functions) -> None:
        self.text = text
        self._slots = {name: tree.slots for name, tree in trees.items()}
        self._costs = {name: 10 + tree.slots + weight(tree.body) for name, tree in trees.items()}
        compilers = {name: _Compiler(TreeOrigin(text, name), functions, self) for name in trees}
        self._bodies = {name: compilers[name].block(tree.body) for name, tree in trees.items()}
        self.changes_maps = any(compiler.changes_maps for compiler in compilers.values())

    def find(self, name: str, main: str) -> tuple[Statement, int, int] | None:
        """Return body, number of slots and cost of a defined template; None if undefined. `main` names the main one."""
        key = name if name in self._bodies else None
        if key is None and name != main:
            return None
        return self._bodies[key], self._slots[key], self._costs[key]

    def render(self, dot: Value, name: str = "template", budget: RenderBudget | None = None) -> str:
        """Execute the template. Errors call it `name`.

        The result may hold bytes that are not UTF-8 (as lone surrogates), if the template makes such bytes. Raises
        TemplateExecutionError for values that do not fit the template, and for an exceeded limit.
        """
        run = Run(name, budget or RenderBudget())
        try:
            self._bodies[None](run.frame(dot, self._slots[None]), dot)
        except RecursionError:
            raise TemplateExecutionError(f"template: {name}: templates are nested too deeply", name=name) from None
        output = run.output
        limit = run.budget.limits.output
        # Before joining: the pieces may be many references to one large value.
        if sum(map(len, output)) <= limit:
            result = "".join(output)
            if not result.isascii():
                result = from_bytes(to_bytes(result))
            if byte_length(result) <= limit:
                return result
        raise TemplateExecutionError(f"template: {name}: the output is larger than {limit} bytes", name=name)


def compile_text(text: str, functions: Functions, name: str = "template") -> TemplateProgram:
    """Compile a template. Raises TemplateSyntaxError, whose text calls the template `name`."""
    return TemplateProgram(text, parse(text, functions, name), functions)


def _raise_break(_frame: Frame, _dot: Value) -> None:
    raise _Break


def _raise_continue(_frame: Frame, _dot: Value) -> None:
    raise _Continue


def _pairs(value: Value) -> Iterable[tuple[Value, Value]] | None:
    """Return the keys and values to range over; None for a value without elements."""
    kind = type(value)
    if kind is list:
        return enumerate(value)
    if kind is dict:
        return [(key, value[key]) for key in sorted(value)]
    if value is None:
        return ()
    if kind in (int, Uint8):
        return ((None, kind(index)) for index in range(value))
    return None


def weight(statements: Iterable[nodes.Statement]) -> int:
    """Return how many nodes a body executes at most in one pass. Loops and templates inside pay for themselves."""
    total = 0
    for node in statements:
        total += 1
        if isinstance(node, nodes.ActionNode | nodes.InvokeNode | nodes.RangeNode) and node.pipe is not None:
            total += _operands(node.pipe)
        if isinstance(node, nodes.BranchNode):
            total += sum(_operands(pipe) + weight(body) for _, pipe, body in node.arms)
        if isinstance(node, nodes.BranchNode | nodes.RangeNode):
            total += weight(node.otherwise or ())
    return total


def _operands(pipe: nodes.PipeNode) -> int:
    total = 0
    for command in pipe.commands:
        for operand in command.operands:
            base = operand.base if isinstance(operand, nodes.ChainNode) else operand
            total += 1 + (_operands(base) if isinstance(base, nodes.PipeNode) else 0)
    return total


# --- one text, from a cache: a Template of a thousand Workflows is parsed once ----------------------------------------

CACHED_CHARACTERS: Final = 1 << 20
"""Characters of template text in the cache. A compiled character takes about 100 bytes."""


class ProgramCache:
    """A cache of compiled templates by their text. It drops the least recently used template first.

    Templates can call `functions`.
    """

    def __init__(self, capacity: int = CACHED_CHARACTERS, functions: Functions = FUNCTIONS) -> None:
        self._capacity = capacity
        self._functions = functions
        self._size = 0
        self._programs: OrderedDict[str, TemplateProgram] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, text: str, name: str) -> TemplateProgram:
        """Return the program of a text. Raises TemplateSyntaxError, which calls it `name`. Failures are not cached."""
        with self._lock:
            program = self._programs.get(text)
            if program is not None:
                self._programs.move_to_end(text)
                return program
        program = compile_text(text, self._functions, name)
        with self._lock:
            if text not in self._programs and len(text) <= self._capacity:
                self._programs[text] = program
                self._size += len(text)
                while self._size > self._capacity:
                    dropped, _ = self._programs.popitem(last=False)
                    self._size -= len(dropped)
        return program


_cache: Final = ProgramCache()


def check(text: str, name: str = "template") -> None:
    """Raise TemplateSyntaxError if the text is no template."""
    if "{{" in text:
        _cache.get(text, name)


def render(
    text: str, dot: Value, name: str = "template", budget: RenderBudget | None = None, cache: ProgramCache = _cache
) -> str:
    """Render a text with `dot` as its data, which must be JSON-like.

    Errors call the template `name`. The functions are those of `cache`. Raises TemplateSyntaxError and
    TemplateExecutionError.
    """
    if "{{" not in text:
        return text
    program = cache.get(text, name)
    if not program.changes_maps:
        return program.render(dot, name, budget)
    charged = budget or RenderBudget()

    def spend(steps: int) -> None:
        charged.steps -= steps
        if charged.steps < 0:
            raise TemplateExecutionError(
                f"template: {name}: to copy the data takes more than {charged.limits.steps} steps", name=name
            )

    try:  # a copy, so that no other template sees the changes
        own = deep_copy(spend, dot)
    except CallError as error:
        raise TemplateExecutionError(f"template: {name}: {error}", name=name) from None
    return program.render(own, name, budget)
