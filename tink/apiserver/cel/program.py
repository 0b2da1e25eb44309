"""The engine's front: compile an expression once, evaluate it many times within a budget."""

from collections.abc import Mapping
from typing import Any

from .checker import check
from .code import ABSORBED, Frame, as_error
from .compiler import Compiler
from .errors import BudgetExceededError, CelError, EvaluationError, Source
from .estimate import estimate_tree
from .parser import MAX_DEPTH, parse
from .sizes import Cost
from .types import Type, same, text_of

PER_CALL_LIMIT = 1_000_000
"""The greatest cost of one evaluation (Kubernetes' PerCallLimit)."""

PER_OBJECT_LIMIT = 10_000_000
"""The greatest cost of all rules of one object together (Kubernetes' RuntimeCELCostBudget)."""


class Budget:
    """What evaluations may still cost together. `used` counts on as programs run."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = PER_OBJECT_LIMIT) -> None:
        self.limit = limit
        self.used = 0

    @property
    def remaining(self) -> int:
        """The cost that is left."""
        return max(self.limit - self.used, 0)


class Program:
    """A compiled expression. It holds no state of its evaluations and may be shared between tasks.

    Attributes:
        source: the expression.
        type: the type of its result.
        variables: the variables that it uses.
    """

    __slots__ = ("_run", "_size", "_slots", "_tree", "_types", "cost", "source", "type", "variables")

    def __init__(self, source: str, variables: Mapping[str, Type]) -> None:
        text = Source(source)
        tree = parse(text)
        self.type, self.variables = check(tree, text, variables)
        self.source = source
        self._types = {name: variables[name] for name in sorted(self.variables)}
        self._slots = {name: at for at, name in enumerate(self._types, 1)}
        compiler = Compiler(dict(self._slots), self._types)
        code = compiler.compile(tree)
        self._run, self.cost, self._size = code.run, code.cost, compiler.size
        self._tree = tree

    def uses(self, name: str) -> bool:
        """Whether the expression refers to a variable."""
        return name in self.variables

    def __call__(self, bindings: Mapping[str, Any], budget: Budget) -> Any:
        """The value for variables' values, which are plain JSON.

        Raises:
            EvaluationError: it has none.
            BudgetExceededError: it costs more than one evaluation may, or than the budget has left.
        """
        limit = budget.limit - budget.used
        if limit > PER_CALL_LIMIT:
            limit = PER_CALL_LIMIT
        frame: Frame = [None] * self._size
        frame[0] = limit - self.cost
        for name, slot in self._slots.items():
            try:
                frame[slot] = bindings[name]
            except KeyError:
                raise EvaluationError(f"no such attribute(s): {name}") from None
        try:
            result = self._run(frame)
        except ABSORBED as error:
            raise as_error(error) from None
        except BudgetExceededError:
            raise BudgetExceededError(exhausted=limit < PER_CALL_LIMIT) from None
        finally:
            budget.used += limit - frame[0]
        if frame[0] < 0:
            raise BudgetExceededError(exhausted=limit < PER_CALL_LIMIT)
        return result

    def estimate(self) -> Cost:
        """The least and greatest cost that the declared sizes allow."""
        return estimate_tree(self._tree, self._types)


def compile_expression(source: str, variables: Mapping[str, Type], *, expected: Type | None = None) -> Program:
    """Compiles an expression over variables of declared types.

    Raises:
        CelError: it is wrong, or its type is not the expected one; the text is Kubernetes'.
    """
    try:
        program = Program(source, variables)
    except RecursionError:
        text = f"ERROR: <input>:-1:0: expression recursion limit exceeded: {MAX_DEPTH}"
        raise CelError(text) from None
    if expected is not None and not same(program.type, expected):
        raise CelError(f"cel expression must evaluate to a {text_of(expected)}")
    return program


def estimate(program: Program) -> Cost:
    """The least and greatest cost of a program that the declared sizes allow."""
    return program.estimate()
