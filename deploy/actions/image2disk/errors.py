"""The reasons of a failed action: a word for programs and a sentence for people.

    InvalidSetting      a variable of the environment is missing or wrong
    DiskNotFound        DEST_DISK is not a block device
    DiskBusy            something holds the disk or a partition of it
    DiskUnsuitable      the image does not fit the disk: size or sector size
    DownloadFailed      the server does not serve the whole image
    ChecksumMismatch    the server served other bytes than IMG_SHA256 or the digest says
    DecompressFailed    the compressed data are damaged
    NotAnImage          the file is something else: a web page, an archive, a program
    ImageDamaged        the image contradicts itself
    ImageUnsupported    a disk image in a format, or with a feature, that the action does not write
    NotStreamable       a qcow2 image that is not in the order in which it can be streamed
    WriteFailed         the disk or the kernel refuses a request

Nothing has been written to the disk at InvalidSetting, DiskNotFound, NotAnImage and DiskUnsuitable, except by a qcow2
image with clusters below 8 KiB, whose partition table is compared at its end.
"""

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
    # The first process of a container ignores a TERM without a handler.
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
    # Threads may be in the middle of a read: end without waiting; the container's end stops child processes.
    os._exit(128 + number)
