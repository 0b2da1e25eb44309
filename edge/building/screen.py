"""The screen of the lab: one line per step, with the seconds since power-on.

A user who sees nothing for a while believes that the lab hangs. So the screen shows something every few seconds: on a
terminal in one line that is redrawn, elsewhere in separate lines.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable

import click

from edge.journey.events import COLOURS, Outcome

_SIGN = {Outcome.OK: "✓", Outcome.INFO: "·", Outcome.WARNING: "?", Outcome.REFUSED: "!", Outcome.FAILED: "✗"}


_SILENT_SECONDS = 2.9  # a look every second, and a busy host is late: five seconds are too long
_TERMINAL_SECONDS = 1.0


class Screen:
    """Prints to standard output; colours on a terminal only (click removes them elsewhere)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, terminal: bool | None = None) -> None:
        self._clock = clock
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self._started = clock()
        self._power_on: float | None = None
        self._spoke = self._started
        self._in_place = False

    def power_on(self) -> None:
        """Count the times from now on."""
        self._power_on = self._clock()

    def elapsed(self) -> float:
        """Return the seconds since the lab was started."""
        return self._clock() - self._started

    def since_power_on(self) -> float:
        """Return the seconds since power-on; 0 before."""
        return self._clock() - self._power_on if self._power_on is not None else 0.0

    def step(self, name: str, message: str, outcome: Outcome = Outcome.OK) -> None:
        """Print a step. Before power-on its time is that of the preparation, in brackets."""
        self._print(self._line(name, message, outcome))

    def _line(self, name: str, message: str, outcome: Outcome) -> str:
        when = f"{self.since_power_on():7.2f} s" if self._power_on is not None else f"[{self.elapsed():6.2f} s]"
        sign = click.style(_SIGN[outcome], fg=COLOURS[outcome])
        return f"{when} {sign} {click.style(f'{name:<9}', bold=True)} {message}"

    def block(self, text: str) -> None:
        """Print lines unchanged."""
        self._print(text)

    def error(self, text: str) -> None:
        """Print an error to standard error."""
        self._clear()
        click.echo(click.style(text, fg="red"), err=True)

    async def keep_company(self, doing: Callable[[], str]) -> None:
        """Run until cancelled; after some seconds without a line, print the current work (`doing`)."""
        while True:
            await asyncio.sleep(_TERMINAL_SECONDS)
            self.waiting(doing)

    def waiting(self, doing: Callable[[], str]) -> None:
        """Print the current work if nothing was printed for long enough."""
        if self._clock() - self._spoke < (_TERMINAL_SECONDS if self._terminal else _SILENT_SECONDS):
            return
        line = self._line("...", doing(), Outcome.INFO)
        if not self._terminal:
            self._print(line)
            return
        self._clear()
        # A wrapped line can't be overwritten, so it is cut to the terminal's width. Styles have no width.
        click.echo(click.unstyle(line)[: shutil.get_terminal_size().columns - 1], nl=False)
        self._in_place = True

    def _print(self, text: str) -> None:
        self._clear()
        click.echo(text)
        self._spoke = self._clock()

    def _clear(self) -> None:
        if self._in_place:
            click.echo("\r\033[K", nl=False, color=True)
            self._in_place = False
