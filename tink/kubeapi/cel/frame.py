"""The frame of an evaluation: the compiled closures, their cost, and the count of nested values.

A frame is a list. Item 0 is the cost that the evaluation may spend before it must read the clock, item 1 the cost that
it may spend after that, item 2 the budget. From `VARIABLES` on follow the variables, then the variables of loops.

A closure does not charge its own fixed cost. The closure that always runs it adds the cost to its own. Where a part
runs only sometimes (the right side of `&&`, the body of a loop), the cost is charged there. So the program charges a
straight expression once.

Cost is a poor measure of time: some operations of the same cost take a hundred times as long as others. Therefore an
evaluation reads the clock after every `SLICE` of cost, and one that takes too long ends like one that costs too much.
Kubernetes' costs count only the outermost size of a value that is compared, formatted or flattened. `Traversal` counts
the nested values: the first 4,096 nodes of a traversal are free and only bring the next reading of the clock nearer,
each further node costs 1.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tink.kubeapi.cel.errors import BudgetExceededError, EvaluationError
from tink.kubeapi.cel.values import TEXT, Comparison, Optional

VARIABLES = 3
"""Index of the first variable in a frame."""

SLICE = 1_000
"""Cost after which an evaluation reads the clock: usually about a millisecond."""


PER_OBJECT_LIMIT = 10_000_000
"""Maximum cost of all rules of one object together (Kubernetes' RuntimeCELCostBudget)."""

MAX_SECONDS = 1.0
"""Maximum time in seconds of all evaluations with one budget, which PER_OBJECT_LIMIT is meant to take."""


class CostBudget:
    """The cost that evaluations may spend together. `used` grows as programs run.

    After `MAX_SECONDS` the budget is spent. `clock` returns seconds. The default is the time of the thread, so that a
    busy machine does not cause errors. `due` is the used cost at which the next evaluation reads the clock.
    """

    __slots__ = ("_clock", "_since", "due", "limit", "used")

    def __init__(self, limit: int = PER_OBJECT_LIMIT, *, clock: Callable[[], float] = time.thread_time) -> None:
        self.limit = limit
        self.used = 0
        self.due = SLICE
        self._clock = clock
        self._since: float | None = None

    @property
    def remaining(self) -> int:
        """The remaining cost."""
        return max(self.limit - self.used, 0)

    def look(self) -> None:
        """Read the clock, which is due when `used` reaches `due`. Raises BudgetExceededError if the time is over."""
        now = self._clock()
        if self._since is None:  # starts one slice late, so that short rules never read the clock
            self._since = now
        elif now - self._since > MAX_SECONDS:
            self.limit = 0
            raise BudgetExceededError(exhausted=True)


Frame = list[Any]
Run = Callable[[Frame], Any]

ABSORBED = (EvaluationError, TypeError, AttributeError, KeyError, IndexError, ValueError, OverflowError, RecursionError)
"""The exceptions that `||`, `&&` and loops treat as evaluation errors. Python's own occur if data contradict their
schema.
"""


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled expression.

    `attribute` is True if it reads a variable or a part of one, which costs treat differently. `constant` is True if it
    has no variables; then `value` is its value.
    """

    run: Run
    cost: int
    attribute: bool = False
    constant: bool = False
    value: Any = None


def constant(value: Any) -> Code:
    """Return code for a value that is known at compile time. It costs nothing."""
    return Code(lambda _: value, 0, constant=True, value=value)


def charged(code: Code, cost: int | None = None) -> Run:
    """Return a closure that charges the fixed cost itself, for parts that do not always run."""
    run, amount = code.run, code.cost if cost is None else cost
    if not amount:
        return run

    def charging(frame: Frame) -> Any:
        frame[0] -= amount
        if frame[0] < 0:
            end_slice(frame)
        return run(frame)

    return charging


def end_slice(frame: Frame) -> None:
    """Read the clock at the end of a slice. Before the end of a slice this does nothing.

    Raises BudgetExceededError if the evaluation has spent its cost or takes too long.
    """
    if frame[0] >= 0:
        return
    if frame[0] + frame[1] < 0:
        raise BudgetExceededError
    budget: CostBudget = frame[2]
    budget.look()
    more = min(frame[1], SLICE - frame[0])
    frame[0] += more
    frame[1] -= more


def as_error(error: BaseException) -> EvaluationError:
    """Return the evaluation error for an absorbed exception."""
    if isinstance(error, EvaluationError):
        return error
    return EvaluationError("no such overload")


FREE_NODES = 4_096
"""Number of nodes of one traversal that cost nothing."""
STRIDE = 256
"""Number of nodes after which a traversal is charged. A shorter traversal is not charged at all."""
OBJECT = SLICE // 16 + 1
"""Number of nodes that an object of a declared type counts for. Python compares it in one step, whatever its size."""


class Traversal(Comparison):
    """One traversal of the arguments of a call. The elements of the arguments are free: Kubernetes' cost counts them
    already.
    """

    __slots__ = ("_args", "_frame", "_free", "_left")

    def __init__(self, frame: Frame, args: tuple[Any, ...]) -> None:
        self._frame = frame
        self._args = args
        self._left = STRIDE
        self._free = -1

    def visit(self, nodes: int) -> None:
        """Count nodes. Raises BudgetExceededError if the traversal costs too much or takes too long."""
        self._left -= nodes
        if self._left < 0:
            self._charge()

    def _charge(self) -> None:
        if self._free < 0:  # counted this late because most traversals are short
            self._free = FREE_NODES + sum(len(arg) for arg in self._args if isinstance(arg, list | dict))
        seen, self._left = STRIDE - self._left, STRIDE
        free = min(seen, self._free)
        self._free -= free
        frame = self._frame
        frame[0] -= seen - free
        bring_clock_nearer(frame, free)

    def text(self, text: Any) -> None:
        """Count a text that is about to be copied."""
        if len(text) > TEXT:
            self.visit(len(text) // TEXT)

    def texts(self, items: list[Any], times: int = 1) -> None:
        """Count the long texts of a list, each read `times` times. The other elements are not counted."""
        lengths = sum(len(item) // TEXT for item in items if type(item) is str or type(item) is bytes)
        if lengths:
            self.visit(lengths * times)

    def through(self, items: Any) -> None:
        """Count everything in a list, map or optional, for functions that read all of it."""
        self.visit(len(items) + 1)
        for item in items if isinstance(items, list) else items.values():
            inside = item
            while type(inside) is Optional and inside.present:
                inside = inside.value
            if isinstance(inside, list | dict):
                self.through(inside)


class ClockedComparison(Comparison):
    """A comparison of lists of objects of a declared type. It does not count their contents but reads the clock."""

    __slots__ = ("_frame",)

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def visit(self, nodes: int) -> None:
        """Count objects. Raises BudgetExceededError if the evaluation takes too long."""
        bring_clock_nearer(self._frame, nodes * OBJECT)


def bring_clock_nearer(frame: Frame, nodes: int) -> None:
    """Bring the next reading of the clock nearer, for work that costs nothing.

    Raises BudgetExceededError if the evaluation takes too long or costs too much.
    """
    frame[0] -= nodes
    frame[1] += nodes
    frame[2].due -= nodes
    if frame[0] < 0:
        end_slice(frame)
