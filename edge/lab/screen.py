"""What the lab shows: one line a step, with the seconds since the machine was switched on."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from edge.journey.events import Outcome

_COLOUR = {Outcome.OK: "green", Outcome.INFO: None, Outcome.REFUSED: "yellow", Outcome.FAILED: "red"}
_SIGN = {Outcome.OK: "✓", Outcome.INFO: "·", Outcome.REFUSED: "!", Outcome.FAILED: "✗"}


class Screen:
    """Prints to standard output; colours only on a terminal (click takes them out elsewhere)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._power_on: float | None = None

    def power_on(self) -> None:
        """From now on times count from here."""
        self._power_on = self._clock()

    def elapsed(self) -> float:
        """Seconds since the lab was started."""
        return self._clock() - self._started

    def since_power_on(self) -> float:
        """Seconds since the machine was switched on; 0 before."""
        return self._clock() - self._power_on if self._power_on is not None else 0.0

    def step(self, name: str, message: str, outcome: Outcome = Outcome.OK) -> None:
        """One line. Before power-on the time is that of the preparation, in brackets."""
        when = f"{self.since_power_on():7.2f} s" if self._power_on is not None else f"[{self.elapsed():6.2f} s]"
        sign = click.style(_SIGN[outcome], fg=_COLOUR[outcome])
        click.echo(f"{when} {sign} {click.style(f'{name:<9}', bold=True)} {message}")

    def block(self, text: str) -> None:
        """Some lines as they are."""
        click.echo(text)

    def error(self, text: str) -> None:
        """What went wrong, on standard error."""
        click.echo(click.style(text, fg="red"), err=True)
