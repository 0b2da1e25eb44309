"""The action: settings from the environment, then the copy, then what the Workflow is told of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TextIO

from image2disk.disk import opened
from image2disk.errors import ActionError
from image2disk.run import Copying, reporting
from image2disk.settings import read

_REASONS = Path("/tinkerbell")


def main() -> int:
    """The exit status."""
    # The first process of a container does not die of a TERM that it does not handle.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    try:
        _copy()
    except ActionError as failure:
        _say(f"{failure.reason}: {failure.message}", sys.stderr)
        _tell(failure)
        return 1
    return 0


def _copy() -> None:
    settings = read(os.environ)
    disk = opened(settings.disk)
    began = time.monotonic()
    _say(f"writing {settings.url} to {settings.disk}")
    copying = Copying(settings, disk, _say)
    ended = reporting(copying, _say)
    try:
        size, sha256 = copying.run()
        is_read = disk.finish()
    finally:
        ended()
    if not is_read:
        _say("the kernel did not read the new partition table; a reboot does")
    seconds = time.monotonic() - began
    zeroed = f", {disk.zeroed} of them zeros by the disk itself" if disk.zeroed else ""
    _say(f"{size} bytes written to {settings.disk} in {seconds:.0f} s{zeroed}, SHA-256 of the download {sha256}")


def _say(line: str, to: TextIO = sys.stdout) -> None:
    to.write(f"{line}\n")
    to.flush()


def _tell(failure: ActionError) -> None:
    try:
        (_REASONS / "failure-reason").write_text(f"{failure.reason}\n")
        (_REASONS / "failure-message").write_text(f"{failure.message}\n")
    except OSError as error:
        _say(f"{_REASONS} can't be written: {error.strerror}", sys.stderr)


def _stopped(number: int, _frame: FrameType | None) -> None:
    # Threads may be in the middle of a read: nothing is waited for, and what runs beside ends with the container.
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
