"""The front of the engine: compile an expression once, evaluate it many times within a budget."""

from collections.abc import Mapping
from typing import Any

from tink.kubeapi.cel.checker import check
from tink.kubeapi.cel.compiler import compile_tree
from tink.kubeapi.cel.costs import Cost
from tink.kubeapi.cel.errors import BudgetExceededError, CelError, EvaluationError
from tink.kubeapi.cel.estimate import estimate_tree
from tink.kubeapi.cel.frame import ABSORBED, SLICE, VARIABLES, CostBudget, Frame, as_error
from tink.kubeapi.cel.parser import MAX_DEPTH, parse
from tink.kubeapi.cel.types import CelType

PER_CALL_LIMIT = 1_000_000
"""Maximum cost of one evaluation (Kubernetes' PerCallLimit)."""


class CompiledExpression:
    """A compiled expression. It holds no state of its evaluations, so tasks can share it.

    `source` is the expression, `type` the type of its result, `variables` are the variables that it uses.
    """

    __slots__ = ("_rest", "_run", "_slots", "_tree", "_types", "cost", "source", "type", "variables")

    def __init__(self, source: str, variables: Mapping[str, CelType]) -> None:
        tree = parse(source)
        self.type, self.variables = check(tree, source, variables)
        self.source = source
        self._types = {name: variables[name] for name in sorted(self.variables)}
        slots = {name: at for at, name in enumerate(self._types, VARIABLES)}
        self._slots = tuple(slots.items())
        code, size = compile_tree(tree, slots, self._types)
        self._run, self.cost = code.run, code.cost
        self._rest = (None,) * (size - VARIABLES)
        self._tree = tree

    def __call__(self, bindings: Mapping[str, Any], budget: CostBudget) -> Any:
        """Evaluate the expression. `bindings` are the variables' values in plain JSON.

        Raises EvaluationError if the expression has no value, and BudgetExceededError if it costs more than one
        evaluation may, or more than the rest of the budget.
        """
        used = budget.used
        if used >= budget.due:
            budget.look()
            budget.due = used + SLICE
        limit, now = budget.limit - used, budget.due - used
        if limit > PER_CALL_LIMIT:
            limit = PER_CALL_LIMIT
        if now > limit:
            now = limit
        frame: Frame = [now - self.cost, limit - now, budget, *self._rest]
        for name, slot in self._slots:
            if name not in bindings:
                raise EvaluationError(f"no such attribute(s): {name}")
            frame[slot] = bindings[name]
        try:
            result = self._run(frame)
        except ABSORBED as error:
            raise as_error(error) from None
        except BudgetExceededError as error:
            raise BudgetExceededError(exhausted=error.exhausted or limit < PER_CALL_LIMIT) from None
        finally:
            left = frame[0] + frame[1]
            budget.used = used + limit - left
        if left < 0:
            raise BudgetExceededError(exhausted=limit < PER_CALL_LIMIT)
        return result

    def estimate(self) -> Cost:
        """Return the range of costs that the declared sizes allow."""
        return estimate_tree(self._tree, self._types)


def compile_expression(source: str, variables: Mapping[str, CelType]) -> CompiledExpression:
    """Compile an expression over variables of declared types. Raises CelError if it does not compile."""
    try:
        return CompiledExpression(source, variables)
    except RecursionError:
        text = f"ERROR: <input>:-1:0: expression recursion limit exceeded: {MAX_DEPTH}"
        raise CelError(text) from None
