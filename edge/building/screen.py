"""Progress on a terminal: the redrawn line of long commands, and the screen of the lab, one line per step.

A user who sees nothing for a while believes that the lab hangs. So the screen shows something every few seconds: on a
terminal in one line that is redrawn, elsewhere in separate lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable

import click

from edge.journey.events import COLOURS, Outcome

_SIGN = {Outcome.OK: "✓", Outcome.INFO: "·", Outcome.WARNING: "?", Outcome.REFUSED: "!", Outcome.FAILED: "✗"}


class ProgressLine:
    """The progress of a command: one line that is redrawn on a terminal, else a line now and then."""

    def __init__(
        self,
        terminal_seconds: float = 0.2,
        log_seconds: float = 10.0,
        *,
        shown: bool = True,
        err: bool = True,
        clock: Callable[[], float] = time.monotonic,
        terminal: bool | None = None,
    ) -> None:
        """Draw every `terminal_seconds` on a terminal, else every `log_seconds`; nothing if `shown` is False.

        `err`: to standard error, not standard output.
        """
        self._shown, self._err, self._clock = shown, err, clock
        self._terminal = (sys.stderr if err else sys.stdout).isatty() if terminal is None else terminal
        self._every = terminal_seconds if self._terminal else log_seconds
        self._drawn = False
        self.postpone()

    def __call__(self, what: str, count: int, total: int) -> None:
        """Show that `count` of `total` objects are done (0: the total is not known); `what` is what was done."""
        if self.is_due():
            self.draw(f"{what}: {count} of {total}" if total else f"{what}: {count}")

    def is_due(self) -> bool:
        """Return True if the line may be drawn again."""
        return self._shown and self._clock() >= self._next

    def postpone(self) -> None:
        """Draw next after a whole interval."""
        self._next = self._clock() + self._every

    def draw(self, text: str) -> None:
        """Draw the line now. Colours go if the terminal is too narrow for it."""
        self.postpone()
        self.clear()
        if not self._terminal:
            click.echo(click.unstyle(text), err=self._err)
            return
        # A wrapped line can't be overwritten, so it is cut to the terminal's width. Styles have no width.
        width, plain = shutil.get_terminal_size().columns - 1, click.unstyle(text)
        click.echo(text if len(plain) <= width else plain[:width], nl=False, err=self._err)
        self._drawn = True

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=self._err, color=True)
        self._drawn = False


_SILENT_SECONDS = 2.9  # a look every second, and a busy host is late: five seconds are too long
_TERMINAL_SECONDS = 1.0


class Screen:
    """Prints to standard output; colours on a terminal only (click removes them elsewhere)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, terminal: bool | None = None) -> None:
        self._clock = clock
        self._started = clock()
        self._power_on: float | None = None
        self._waiting = ProgressLine(_TERMINAL_SECONDS, _SILENT_SECONDS, err=False, clock=clock, terminal=terminal)

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
        self.block(self._line(name, message, outcome))

    def _line(self, name: str, message: str, outcome: Outcome) -> str:
        when = f"{self.since_power_on():7.2f} s" if self._power_on is not None else f"[{self.elapsed():6.2f} s]"
        sign = click.style(_SIGN[outcome], fg=COLOURS[outcome])
        return f"{when} {sign} {click.style(f'{name:<9}', bold=True)} {message}"

    def block(self, text: str) -> None:
        """Print lines unchanged."""
        self._waiting.clear()
        click.echo(text)
        self._waiting.postpone()

    def error(self, text: str) -> None:
        """Print an error to standard error."""
        self._waiting.clear()
        click.echo(click.style(text, fg="red"), err=True)

    @contextlib.asynccontextmanager
    async def company(self, doing: Callable[[], str]) -> AsyncIterator[None]:
        """Print the current work (`doing`) during a block, after some seconds without a line."""

        async def keep() -> None:
            while True:
                await asyncio.sleep(_TERMINAL_SECONDS)
                self.waiting(doing)

        keeping = asyncio.ensure_future(keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])

    def waiting(self, doing: Callable[[], str]) -> None:
        """Print the current work if nothing was printed for long enough."""
        if self._waiting.is_due():
            self._waiting.draw(self._line("...", doing(), Outcome.INFO))
