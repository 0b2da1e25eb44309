"""What the compiler makes: closures over a frame, with the part of their cost that is always the same.

A frame is a list: at 0 the cost that may be spent before the clock is looked at, at 1 the cost that may be spent after
that, at 2 the budget, from `VARIABLES` on the variables, then the loops' variables. A closure does not charge its fixed
cost itself; whoever runs it for certain adds it to his own, and where something runs only sometimes (the right side of
`&&`, a loop's body) it is charged there. So a straight expression is charged once, by the program.

Costs stand for time, but not well: some operations that cost the same take a hundred times as long. So the clock is
looked at after every `SLICE` of cost, and an evaluation that takes too long ends as one that costs too much.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tink.kubeapi.cel.errors import BudgetExceededError, EvaluationError

VARIABLES = 3
"""Where the variables begin in a frame."""

SLICE = 1_000
"""Cost after which the clock is looked at: about a millisecond, mostly."""


class Clock(Protocol):
    """What a frame has at 2. `due` is the cost that later evaluations may come to before they look."""

    due: int

    def look(self) -> None:
        """Stops an evaluation that takes too long. Raises BudgetExceededError: it does."""


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
        if frame[0] < 0:
            overdrawn(frame)
        return run(frame)

    return charging


def overdrawn(frame: Frame) -> None:
    """Stops an evaluation that has spent all, or takes too long; does nothing before the end of a slice.

    Raises BudgetExceededError: it is stopped.
    """
    if frame[0] >= 0:
        return
    if frame[0] + frame[1] < 0:
        raise BudgetExceededError
    clock: Clock = frame[2]
    clock.look()
    more = min(frame[1], SLICE - frame[0])
    frame[0] += more
    frame[1] -= more


def as_error(error: BaseException) -> EvaluationError:
    """The evaluation error that an absorbed exception stands for."""
    if isinstance(error, EvaluationError):
        return error
    return EvaluationError("no such overload")
