"""How far a command is, on standard error: a line that is drawn again on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

import click

_DRAW_SECONDS = 0.2  # seconds, on a terminal
_LOG_SECONDS = 10.0  # seconds, elsewhere


class Progress:
    """Called with what is done, how much of it, and how much there is (0: nobody knows).

    `shown` False: says nothing.
    """

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._terminal = sys.stderr.isatty()
        self._every = _DRAW_SECONDS if self._terminal else _LOG_SECONDS
        self._next = time.monotonic() + self._every
        self._drawn = False

    def __call__(self, what: str, count: int, total: int) -> None:
        """Told after each object, or a few of them."""
        now = time.monotonic()
        if now < self._next or not self._shown:
            return
        self._next = now + self._every
        text = f"{what}: {count} of {total}" if total else f"{what}: {count}"
        click.echo(f"\r{text}\x1b[K" if self._terminal else text, nl=not self._terminal, err=True)
        self._drawn = self._terminal

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._drawn = False
