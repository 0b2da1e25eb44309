"""What the compiler makes: closures over a frame, with the part of their cost that is always the same.

A frame is a list: at 0 the cost that may be spent before the clock is looked at, at 1 the cost that may be spent after
that, at 2 the budget, from `VARIABLES` on the variables, then the loops' variables. A closure does not charge its fixed
cost itself; whoever runs it for certain adds it to his own, and where something runs only sometimes (the right side of
`&&`, a loop's body) it is charged there. So a straight expression is charged once, by the program.

Costs stand for time, but not well: some operations that cost the same take a hundred times as long. So the clock is
looked at after every `SLICE` of cost, and an evaluation that takes too long ends as one that costs too much.


----
Counting what is walked through, against the budget of an evaluation.

Kubernetes' costs count no more than the outermost size of what is compared, formatted or flattened. So what is nested
is counted here: some thousand nodes of each traversal are free and only bring the next look at the clock nearer; more
cost 1 each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tink.kubeapi.cel.errors import BudgetExceededError, EvaluationError
from tink.kubeapi.cel.values import TEXT, Comparison, Optional

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


FREE_NODES = 4_096
"""Nodes of one traversal that cost nothing."""
STRIDE = 256
"""Nodes after which they are charged. A traversal that is shorter is not charged at all."""
OBJECT = SLICE // 16 + 1
"""Nodes that an object of a declared type counts for, which Python compares in one go, however large it is."""


class Traversal(Comparison):
    """One traversal of the arguments of a call. Their own elements are free, too, for Kubernetes' cost counts them."""

    __slots__ = ("_args", "_frame", "_free", "_left")

    def __init__(self, frame: Frame, args: tuple[Any, ...]) -> None:
        self._frame = frame
        self._args = args
        self._left = STRIDE
        self._free = -1

    def visit(self, nodes: int) -> None:
        """Counts nodes. Raises BudgetExceededError: the traversal costs too much, or takes too long."""
        self._left -= nodes
        if self._left < 0:
            self._charge()

    def _charge(self) -> None:
        if self._free < 0:  # counted only now: most walks are short
            self._free = FREE_NODES + sum(len(arg) for arg in self._args if isinstance(arg, list | dict))
        seen, self._left = STRIDE - self._left, STRIDE
        free = min(seen, self._free)
        self._free -= free
        frame = self._frame
        frame[0] -= seen - free
        look_sooner(frame, free)

    def text(self, text: Any) -> None:
        """Counts a text that is about to be copied."""
        if len(text) > TEXT:
            self.visit(len(text) // TEXT)

    def texts(self, items: list[Any], times: int = 1) -> None:
        """Counts the long texts of a list, each of which is about to be looked at `times`; not its other elements."""
        lengths = sum(len(item) // TEXT for item in items if type(item) is str or type(item) is bytes)
        if lengths:
            self.visit(lengths * times)

    def through(self, items: Any) -> None:
        """Counts all that is in a list, map or optional, for those who look at all of it."""
        self.visit(len(items) + 1)
        for item in items if isinstance(items, list) else items.values():
            inside = item
            while type(inside) is Optional and inside.present:
                inside = inside.value
            if isinstance(inside, list | dict):
                self.through(inside)


class Glance(Comparison):
    """The comparison of lists of objects of a declared type, whose insides are not counted: it looks at the clock."""

    __slots__ = ("_frame",)

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def visit(self, nodes: int) -> None:
        """Counts objects. Raises BudgetExceededError: the evaluation takes too long."""
        look_sooner(self._frame, nodes * OBJECT)


def look_sooner(frame: Frame, nodes: int) -> None:
    """Brings the next look at the clock nearer by work that costs nothing.

    Raises BudgetExceededError: the evaluation takes too long, or costs too much.
    """
    frame[0] -= nodes
    frame[1] += nodes
    frame[2].due -= nodes
    if frame[0] < 0:
        overdrawn(frame)
