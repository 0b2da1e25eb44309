"""What a running template carries: its output, its budget, and the frame that compiled code works on.

A frame is a list: `[write, run, $, variables...]`. `write` takes a piece of output; slots from `FIRST_SLOT` on are
the variables of the template that runs, as the parser has numbered them. Every compiled node is a function of
(frame, dot).

Bounds: a loop or an invoked template pays for its nodes each time around, and text that functions make is paid by its
length, so the number of steps bounds time and memory; straight-line code is bounded by the length of its own text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tink.template import nodes
from tink.template.errors import TemplateExecutionError, place
from tink.template.parser import FIRST_SLOT
from tink.template.values import Value

Frame = list[Any]
Expression = Callable[[Frame, Value], Value]
Statement = Callable[[Frame, Value], None]

WRITE: Final = 0
RUN: Final = 1

_LONGEST_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one budget allows: nodes executed, bytes of output of each template, templates within templates."""

    steps: int = 100_000
    output: int = 256 * 1024
    depth: int = 64


class Budget:
    """What may still be spent; several templates can share one."""

    __slots__ = ("limits", "steps")

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.steps = self.limits.steps


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


def shortened(text: str) -> str:
    """Text for a message: what is long would fill the status that the message ends up in."""
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


@dataclass(frozen=True, slots=True)
class Origin:
    """Where compiled code comes from, to say where it failed: the text, and the name that `define` gave it."""

    text: str
    tree: str | None

    def error(self, frame: Frame, node: nodes.Node, message: str) -> TemplateExecutionError:
        """The error that Go reports for this node; the caller raises it."""
        name = frame[RUN].name
        line, column = place(self.text, node.position)
        expression = shortened(str(node))
        executing = name if self.tree is None else self.tree
        return TemplateExecutionError(
            f'template: {name}:{line}:{column}: executing "{executing}" at <{expression}>: {message}',
            name=name,
            line=line,
            column=column,
            expression=expression,
        )

    def charge(self, frame: Frame, node: nodes.Node, steps: int) -> None:
        """Takes steps from the budget. Raises TemplateExecutionError when it is exhausted."""
        budget = frame[RUN].budget
        budget.steps -= steps
        if budget.steps < 0:
            raise self.error(frame, node, f"the template takes more than {budget.limits.steps} steps")
