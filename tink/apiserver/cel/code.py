"""What the compiler makes: closures over a frame, with the part of their cost that is always the same.

A frame is a list: at 0 the cost that may still be spent, then the variables, then the loops' variables.
A closure does not charge its fixed cost itself; whoever runs it for certain adds it to his own, and where
something runs only sometimes (the right side of `&&`, a loop's body) it is charged there. So a straight
expression is charged once, by the program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import BudgetExceededError, EvaluationError

Frame = list[Any]
Run = Callable[[Frame], Any]

ABSORBED = (EvaluationError, TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError)
"""What `||`, `&&` and loops take for an error of evaluation: our own, and Python's for data that belie their schema."""


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled expression. `attribute` tells that it reads a variable or what is in one (costs treat it apart);
    `constant` that it has no variables, with its value in `value`."""

    run: Run
    cost: int
    attribute: bool = False
    constant: bool = False
    value: Any = None


def constant(value: Any) -> Code:
    """Code for a value known now; it costs nothing."""
    return Code(lambda _: value, 0, constant=True, value=value)


def charged(code: Code, cost: int | None = None) -> Run:
    """A closure that charges the fixed cost itself, for places that are not always reached."""
    run, amount = code.run, code.cost if cost is None else cost
    if not amount:
        return run

    def charging(frame: Frame) -> Any:
        frame[0] -= amount
        return run(frame)

    return charging


def overdrawn(frame: Frame) -> None:
    """Stops an evaluation whose frame is overdrawn.

    Raises:
        BudgetExceededError: it is.
    """
    if frame[0] < 0:
        raise BudgetExceededError


def as_error(error: BaseException) -> EvaluationError:
    """The evaluation error that an absorbed exception stands for."""
    if isinstance(error, EvaluationError):
        return error
    return EvaluationError("no such overload")
