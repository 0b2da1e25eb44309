"""Trees to closures: text, actions, if, with, range, template (Go: text/template, exec.go, "walk" functions).

`compile_text` gives a `Program`, which is immutable, knows nothing of its name or its values and can be run by any
number of callers at once; `Program.render` runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tink.golang.fmt import text_of
from tink.golang.strconv import byte_length, from_bytes, quote, to_bytes
from tink.golang.values import CallError, Uint8, Value
from tink.template import nodes
from tink.template.errors import TemplateExecutionError, shortened
from tink.template.execution import RUN, WRITE, Budget, Frame, Origin, Run, Statement
from tink.template.expressions import ExpressionCompiler, last_visited
from tink.template.parser import parse
from tink.template.signatures import Functions, text_size

_CHEAP: Final = 64  # Printed values up to this length cost no more than the step that prints them.


class _Break(Exception):  # noqa: N818 (control flow, no error)
    pass


class _Continue(Exception):  # noqa: N818 (control flow, no error)
    pass


class Program:
    """A compiled template with the templates that it defines.

    `changes_maps`: it may change maps in the values that it is given.
    """

    def __init__(self, text: str, trees: dict[str | None, nodes.Tree], functions: Functions) -> None:
        self.text = text
        self._slots = {name: tree.slots for name, tree in trees.items()}
        self._costs = {name: 10 + tree.slots + weight(tree.body) for name, tree in trees.items()}
        compilers = {name: _StatementCompiler(Origin(text, name), functions, self) for name in trees}
        self._bodies = {name: compilers[name].block(tree.body) for name, tree in trees.items()}
        self.changes_maps = any(compiler.expressions.changes_maps for compiler in compilers.values())

    def find(self, name: str, main: str) -> tuple[Statement, int, int] | None:
        """Body, number of slots and cost of a defined template; the main one goes by the name it runs under."""
        key = name if name in self._bodies else None
        if key is None and name != main:
            return None
        return self._bodies[key], self._slots[key], self._costs[key]

    def render(self, dot: Value, name: str = "template", budget: Budget | None = None) -> str:
        """Executes the template; `name` is what errors call it.

        The result may hold bytes that are no UTF-8 (as lone surrogates), if the template makes such.
        Raises TemplateExecutionError for values that the template cannot take, and when a bound is exceeded.
        """
        run = Run(name, budget or Budget())
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


def compile_text(text: str, functions: Functions, name: str = "template") -> Program:
    """Compiles a template. Raises TemplateSyntaxError, which calls it by `name`."""
    return Program(text, parse(text, functions, name), functions)


class _StatementCompiler:
    """Translates the statements of one tree."""

    def __init__(self, origin: Origin, functions: Functions, program: Program) -> None:
        self.origin = origin
        self.program = program
        self.expressions = ExpressionCompiler(origin, functions)

    def block(self, statements: Iterable[nodes.Statement]) -> Statement:
        """A list of statements as one."""
        steps: list[tuple[str, Statement]] = []
        text = ""
        for node in statements:
            if isinstance(node, nodes.Text):
                text += node.text
            else:
                steps.append((text, self._statement(node)))
                text = ""
        if not steps:
            return _text(text)
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
        self, node: nodes.Action | nodes.Branch | nodes.Range | nodes.Invoke | nodes.Break | nodes.Continue
    ) -> Statement:
        match node:
            case nodes.Action():
                return self._action(node)
            case nodes.Branch():
                return self._branch(node)
            case nodes.Range():
                return self._range(node)
            case nodes.Invoke():
                return self._invoke(node)
            case nodes.Break():
                return _raise_break
            case nodes.Continue():
                return _raise_continue

    def _action(self, node: nodes.Action) -> Statement:
        value_of = self.expressions.pipe(node.pipe)
        if node.pipe.variables:

            def declare(frame: Frame, dot: Value) -> None:
                value_of(frame, dot)

            return declare
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

    def _branch(self, node: nodes.Branch) -> Statement:
        arms = []
        for is_with, pipe, body in node.arms:
            condition = self.expressions.pipe(pipe)
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
        """A body in which dot is another value: an element of a range (1), or not (0)."""
        outer = self.expressions.range_dots
        self.expressions.range_dots = range_dots
        compiled = self.block(body)
        self.expressions.range_dots = outer
        return compiled

    def _range(self, node: nodes.Range) -> Statement:
        pipe = node.pipe
        subject = self.expressions.pipe(pipe)
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

    def _invoke(self, node: nodes.Invoke) -> Statement:
        argument = self.expressions.pipe(node.pipe) if node.pipe is not None else None
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


def _text(text: str) -> Statement:
    def write(frame: Frame, _dot: Value) -> None:
        frame[WRITE](text)

    return write


def _raise_break(_frame: Frame, _dot: Value) -> None:
    raise _Break


def _raise_continue(_frame: Frame, _dot: Value) -> None:
    raise _Continue


def _pairs(value: Value) -> Iterable[tuple[Value, Value]] | None:
    """Keys and values to range over; None for what cannot be."""
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
    """How many nodes a body executes at most in one pass; loops and templates within pay for themselves."""
    total = 0
    for node in statements:
        total += 1
        if isinstance(node, nodes.Action | nodes.Invoke | nodes.Range) and node.pipe is not None:
            total += _operands(node.pipe)
        if isinstance(node, nodes.Branch):
            total += sum(_operands(pipe) + weight(body) for _, pipe, body in node.arms)
        if isinstance(node, nodes.Branch | nodes.Range):
            total += weight(node.otherwise or ())
    return total


def _operands(pipe: nodes.Pipe) -> int:
    total = 0
    for command in pipe.commands:
        for operand in command.operands:
            base = operand.base if isinstance(operand, nodes.Chain) else operand
            total += 1 + (_operands(base) if isinstance(base, nodes.Pipe) else 0)
    return total
