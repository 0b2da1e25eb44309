"""What a running template carries: its output, its budget, and the frame that compiled code works on.

A frame is a list: `[write, run, $, variables...]`. `write` takes a piece of output; slots from `FIRST_SLOT` on are
the variables of the template that runs, as the parser has numbered them. Every compiled node is a function of
(frame, dot).

Bounds: a loop or an invoked template pays for its nodes each time around, and text that functions make is paid by its
length, so the number of steps bounds time and memory; straight-line code is bounded by the length of its own text.
Steps are the same everywhere; for the few templates whose steps are slow, the processor's time is bounded, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tink.golang.values import Value
from tink.template import nodes
from tink.template.errors import TemplateExecutionError, place, shortened
from tink.template.parser import FIRST_SLOT

Frame = list[Any]
Expression = Callable[[Frame, Value], Value]
Statement = Callable[[Frame, Value], None]

WRITE: Final = 0
RUN: Final = 1
_NOT_WORTH_A_LOOK: Final = 8  # What costs fewer steps is over before the clock is read.


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one budget allows: nodes executed, bytes of output of each template, templates within templates, and
    seconds of the processor."""

    steps: int = 100_000
    output: int = 256 * 1024
    depth: int = 64
    seconds: float = 3.0


class Budget:
    """What may still be spent; several templates can share one."""

    __slots__ = ("_clock", "_end", "limits", "steps")

    def __init__(self, limits: Limits | None = None, clock: Callable[[], float] = time.thread_time) -> None:
        self.limits = limits or Limits()
        self.steps = self.limits.steps
        self._clock = clock
        self._end = clock() + self.limits.seconds

    def exceeded(self) -> str:
        """What there is no more of, for a message; "" if there is enough of everything."""
        if self.steps < 0:
            return f"{self.limits.steps} steps"
        return f"{self.limits.seconds:g} s" if self._clock() > self._end else ""


class Run:
    """One execution."""

    __slots__ = ("budget", "depth", "name", "output")

    def __init__(self, name: str, budget: Budget) -> None:
        self.name = name
        self.budget = budget
        self.depth = 0
        self.output: list[str] = []

    def frame(self, dot: Value, slots: int) -> Frame:
        """A new frame for a template with this many variables, `$` among them."""
        frame: Frame = [self.output.append, self, *[None] * slots]
        frame[FIRST_SLOT] = dot
        return frame


@dataclass(frozen=True, slots=True)
class Origin:
    """Where compiled code comes from, to say where it failed: the text, and the name that `define` gave it."""

    text: str
    tree: str | None

    def error(self, frame: Frame, node: nodes.Node, message: str) -> TemplateExecutionError:
        """The error that Go reports for this node; the caller raises it."""
        name = frame[RUN].name
        line, column = place(self.text, node.position)
        executing = name if self.tree is None else self.tree
        return TemplateExecutionError(
            f'template: {name}:{line}:{column}: executing "{executing}" at <{shortened(str(node))}>: {message}',
            name=name,
            line=line,
            column=column,
        )

    def charge(self, frame: Frame, node: nodes.Node, steps: int) -> None:
        """Takes steps from the budget. Raises TemplateExecutionError when it is exhausted."""
        budget = frame[RUN].budget
        budget.steps -= steps
        if budget.steps < 0 or steps > _NOT_WORTH_A_LOOK:
            exceeded = budget.exceeded()
            if exceeded:
                raise self.error(frame, node, f"the template takes more than {exceeded}")
