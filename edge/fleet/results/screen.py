"""What is shown while a fleet runs: one line on a terminal, drawn again; elsewhere a line now and then. Pure but for
the terminal's width."""

from __future__ import annotations

import shutil
import sys
import time

import click

from edge.fleet.results.recorder import Recorder
from edge.fleet.results.steps import Step, Whole

DRAW_SECONDS = 1.0
_LOG_SECONDS = 15.0


class Screen:
    """Prints to standard error; colours on a terminal only (click takes them out elsewhere)."""

    def __init__(self, recorder: Recorder, *, shown: bool = True) -> None:
        self._recorder = recorder
        self._shown = shown
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + (DRAW_SECONDS if self._terminal else _LOG_SECONDS)
        self._before = (self._began, 0, 0)
        self._drawn = False

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._shown:
            self.clear()
            click.echo(text, err=True)

    def draw(self) -> None:
        """Called about once a second."""
        now = time.monotonic()
        if now < self._next or not self._shown:
            return
        self._next = now + (DRAW_SECONDS if self._terminal else _LOG_SECONDS)
        text = self._line(now)
        if not self._terminal:
            click.echo(click.unstyle(text), err=True)
            return
        # Cut to the terminal: a line that wraps can't be written over.
        width = shutil.get_terminal_size().columns - 1
        click.echo(
            f"\r{text if len(click.unstyle(text)) <= width else click.unstyle(text)[:width]}\x1b[K", nl=False, err=True
        )
        self._drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._drawn = False

    def _line(self, now: float) -> str:
        recorder = self._recorder
        before, packets, events = self._before
        passed = max(now - before, 0.001)
        self._before = (now, recorder.packets, recorder.events)
        shown = [step for step in Step if recorder.at[step] and step not in (Step.DONE, Step.FAILED)]
        steps = " ".join(f"{step}:{recorder.at[step]}" for step in shown)
        done = click.style(f"provisioned {len(recorder.seconds[Whole.PROVISIONED])}/{recorder.machines}", fg="green")
        failed = f"failed {len(recorder.failures)}"
        rates = (
            f"{(recorder.packets - packets) / passed:.0f} packets/s {(recorder.events - events) / passed:.0f} events/s"
        )
        return (
            f"{now - self._began:6.0f} s  {done} done {recorder.at[Step.DONE]} "
            f"{click.style(failed, fg='red') if recorder.failures else failed} errors {recorder.errors.total()}  "
            f"{rates}  {steps}"
        )
