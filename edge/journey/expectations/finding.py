"""What is said of a machine that does not get on: facts first, then likely causes, then what to look at."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge.journey.events import one_line
from edge.journey.steps import Outcome, Step


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it may be so. `evidence` is what speaks for it; empty where nothing does but that it is possible."""

    text: str
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.evidence})" if self.evidence else self.text


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis, in words for an operator.

    `rule` is a word in CamelCase for programs: the reason of the Hardware's condition and of Events. `facts` are what
    was seen, which is true whatever the cause; `causes` come likeliest first; `checks` say what to look at or to do.
    `began` is since when it is so (seconds since the epoch; 0: not known). `step` is the part of the journey that it is
    about. `outcome` is INFO for what may well be as it is wanted. With
    `reported` the journey has an event that says it already. `about` are the Hardware (NAMESPACE/NAME) that it is to be
    seen on, where the machine is none of them.
    """

    rule: str
    step: Step
    facts: str
    causes: tuple[Cause, ...] = ()
    checks: tuple[str, ...] = ()
    outcome: Outcome = Outcome.WARNING
    reported: bool = False
    about: tuple[str, ...] = ()
    began: float = field(default=0.0, compare=False)

    @property
    def why(self) -> tuple[str, ...]:
        """The causes, without what speaks for them: where they are others, that is news."""
        return tuple(cause.text for cause in self.causes)

    @property
    def message(self) -> str:
        """All of it in one printable line, whatever machines and objects have put into the names in it."""
        line = self.facts
        if self.causes:
            # A reported failure ends like a sentence of its own.
            line = f"{line.rstrip('.')}: likely " if self.reported else f"{line}: "
            line += ", or ".join(map(str, self.causes))
        if self.checks:
            line += ("" if line.endswith(".") else ".") + " " + "; ".join(self.checks)
        return one_line(line)
