"""Commands that take long: their progress on standard error, and their end by a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

T = TypeVar("T")

_DRAW_SECONDS = 0.2  # seconds, on a terminal
_LOG_SECONDS = 10.0  # seconds, elsewhere


class ProgressLine:
    """Shows the progress of a command: one line that is drawn again on a terminal, else a line now and then."""

    def __init__(self, *, shown: bool = True) -> None:
        """With `shown` False, show nothing."""
        self._shown = shown
        self._terminal = sys.stderr.isatty()
        self._every = _DRAW_SECONDS if self._terminal else _LOG_SECONDS
        self._next = time.monotonic() + self._every
        self._drawn = False

    def __call__(self, what: str, count: int, total: int) -> None:
        """Show that `count` of `total` objects are done (0: the total is not known); `what` is what was done."""
        now = time.monotonic()
        if now < self._next or not self._shown:
            return
        self._next = now + self._every
        text = f"{what}: {count} of {total}" if total else f"{what}: {count}"
        click.echo(f"\r{text}\x1b[K" if self._terminal else text, nl=not self._terminal, err=True)
        self._drawn = self._terminal

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._drawn:
            click.echo("\r\x1b[K", nl=False, err=True)
        self._drawn = False


@contextmanager
def errors_shown(
    progress: ProgressLine | None = None, file: Path | None = None, *errors: type[Exception]
) -> Iterator[None]:
    """Turn OSError and `errors` into messages of click about `file`, and clear the progress."""
    try:
        yield
    except errors as error:
        raise click.ClickException(f"{file}: {error}" if file is not None else str(error)) from error
    except OSError as error:
        place = error.filename or file
        raise click.ClickException(f"{f'{place}: ' if place else ''}{error.strerror or error}") from error
    finally:
        if progress is not None:
            progress.clear()


def run_interruptible(work: Coroutine[Any, Any, T], run: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run) -> T:
    """Run a coroutine with `run`; SIGINT, SIGTERM and SIGHUP cancel it, so that it cleans up. Raises CancelledError
    then.
    """

    async def cancellable() -> T:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    return run(cancellable())
