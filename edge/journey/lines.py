"""The journey in the log: a line for each event, and in a storm a line a second that says how many more there were.

A rack that is powered on is worth a line for each step of each machine. Ten thousand machines that ask for their
addresses at the same moment are not: such lines would take longer to write than the packets to answer. So of each kind
of event (step and outcome) a bounded number of lines is written in a second; the others are counted, and the journey
has them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from edge.journey.events import KINDS, Note, Outcome

log = logging.getLogger("edge.journey")

PERIOD_SECONDS: Final = 1.0

ROUTINE_LINES: Final = 500
"""Of one kind (step and outcome), in a period."""

WARNING_LINES: Final = 200
"""The same for what was refused, failed, or did not come."""

_LEVEL: Final = {
    Outcome.OK: logging.INFO,
    Outcome.INFO: logging.INFO,
    Outcome.WARNING: logging.WARNING,
    Outcome.REFUSED: logging.WARNING,
    Outcome.FAILED: logging.WARNING,
}
_LEVELS: Final = [_LEVEL[outcome] for _, outcome in KINDS]
_LINES: Final = [ROUTINE_LINES if level == logging.INFO else WARNING_LINES for level in _LEVELS]

_NOT_BEGUN: Final = -1.0


class Lines:
    """Writes the lines, and knows which were not written."""

    def __init__(self, counts: list[int], clock: Callable[[], float]) -> None:
        """`counts` has, by kind, how many events there were; it is the journey's, which goes on counting."""
        self.until = list(_LINES)
        """By kind: up to this count events have a line of their own. Whoever calls `say` or `beyond` compares."""
        self._counts = counts
        self._clock = clock
        self._began = _NOT_BEGUN  # with the first line of the period
        self._unsaid: list[set[str]] = [set() for _ in KINDS]  # the machines whose events had no line
        self._timer: asyncio.TimerHandle | None = None

    def say(self, mac: str, note: Note, now: float) -> None:
        """A line of its own for this event."""
        if self._began == _NOT_BEGUN:
            self._began = now
        level = _LEVELS[note.kind]
        if log.isEnabledFor(level):
            step, outcome = note.step.value, note.outcome.value
            fields = {"mac": mac, "step": step, "outcome": outcome, "detail": note.detail}
            log.log(level, "%s %s %s: %s", mac, step, outcome, note.message, extra={"fields": fields})

    def beyond(self, mac: str, note: Note, now: float) -> None:
        """An event, not counted yet, that is beyond `until`: it has no line, unless a new period has begun."""
        if 0 <= now - self._began < PERIOD_SECONDS:  # below 0: the clock was set back
            unsaid = self._unsaid[note.kind]
            if not unsaid:
                self._end_in_time()
            unsaid.add(mac)
        else:
            self.end_period()
            self.say(mac, note, now)

    def end_period(self) -> None:
        """Say how many events had no line, and begin a new period."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seconds = self._clock() - self._began
        self._began = _NOT_BEGUN
        for kind, unsaid in enumerate(self._unsaid):
            if unsaid:
                self._sum_up(kind, self._counts[kind] - self.until[kind], len(unsaid), seconds)
                unsaid.clear()
            self.until[kind] = self._counts[kind] + _LINES[kind]

    def _sum_up(self, kind: int, count: int, machines: int, seconds: float) -> None:
        step, outcome = KINDS[kind]
        log.log(
            _LEVELS[kind],
            "%s more %s events (%s) of %s machines in %.1f s are in the journey, without a line here",
            f"{count:,}",
            step.value,
            outcome.value,
            f"{machines:,}",
            seconds,
            extra={"fields": {"step": step.value, "outcome": outcome.value, "events": count, "machines": machines}},
        )

    def _end_in_time(self) -> None:
        """The last period of a storm is to end too, when no event comes to end it."""
        if self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # nothing runs that could wait; `flush` will say it
            self._timer = loop.call_later(PERIOD_SECONDS, self.end_period)
