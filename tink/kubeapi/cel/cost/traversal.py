"""Counting what is walked through, against the budget of an evaluation.

Kubernetes' costs count no more than the outermost size of what is compared, formatted or flattened. So what is nested
is counted here: some thousand nodes of each traversal are free and only bring the next look at the clock nearer; more
cost 1 each.
"""

from typing import Any

from tink.kubeapi.cel.code import SLICE, Frame, overdrawn
from tink.kubeapi.cel.equality import TEXT, Comparison
from tink.kubeapi.cel.values import Optional

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
