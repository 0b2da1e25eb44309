"""The action: reads settings from the environment, copies the image, reports the result to the Workflow."""

from __future__ import annotations

import os
import sys
import time

from image2disk.disk import opened
from image2disk.errors import say, status_of
from image2disk.run import Copying, reporting
from image2disk.settings import read


def main() -> int:
    """Run the action; return the exit status."""
    return status_of(_copy)


def _copy() -> None:
    settings = read(os.environ)
    disk = opened(settings.disk, say)
    began = time.monotonic()
    say(f"writing {settings.shown_url} to {settings.disk}")
    copying = Copying(settings, disk, say)
    ended = reporting(copying.progress, say)
    try:
        size, sha256 = copying.run()
        remark = disk.finish(say)
    finally:
        ended()
    if remark:
        say(remark)
    seconds = time.monotonic() - began
    zeroed = f", {disk.zeroed} of them zeroed by the disk itself" if disk.zeroed else ""
    say(f"{size} bytes written to {settings.disk} in {seconds:.0f} s{zeroed}, SHA-256 of the download {sha256}")


if __name__ == "__main__":
    sys.exit(main())
