"""Commands that take long: their errors, and their end by a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from edge.building.screen import ProgressLine

T = TypeVar("T")


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
