"""Why an action failed: a word for programs and a sentence for people."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, TextIO

_REASONS: Final = Path("/tinkerbell")


class ActionError(Exception):
    """Ends the action. `reason` becomes the Workflow's, `message` the sentence beside it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def status_of(work: Callable[[], None]) -> int:
    """Do the work of an action. Return its exit status, and report an ActionError to the Workflow."""
    # The first process of a container does not die of a TERM that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    try:
        work()
    except ActionError as failure:
        say(f"{failure.reason}: {failure.message}", sys.stderr)
        _tell(failure)
        return 1
    return 0


def say(line: str, to: TextIO = sys.stdout) -> None:
    """Print a line at once."""
    to.write(f"{line}\n")
    to.flush()


def _tell(failure: ActionError) -> None:
    try:
        (_REASONS / "failure-reason").write_text(f"{failure.reason}\n")
        (_REASONS / "failure-message").write_text(f"{failure.message}\n")
    except OSError as error:
        say(f"{_REASONS} can't be written: {error.strerror}", sys.stderr)


def _stopped(number: int, _frame: FrameType | None) -> None:
    # Threads may be in the middle of a read: nothing is waited for, and what runs beside ends with the container.
    os._exit(128 + number)
