"""The action: settings from the environment; all disks are checked before the first one is wiped."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from image2disk.disk import Disk, opened, wait_for
from image2disk.errors import ActionError, say, status_of
from image2disk.run import reporting

from wipe import holders
from wipe.modes import MODES, check

MAX_DISKS: Final = 256
ATTEMPTS: Final = 3
"""To stop what holds a disk and open it: udev may assemble a RAID again in between."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The names of the disks, and a key of `MODES`."""

    disks: tuple[str, ...]
    mode: str = "metadata"


def read(environment: Mapping[str, str]) -> Settings:
    """Read the settings. Raises ActionError (InvalidSetting)."""
    names = tuple(filter(None, re.split(r"[\s,]+", environment.get("DEST_DISK", ""))))
    mode = environment.get("MODE", "") or "metadata"
    if not names:
        raise _invalid("DEST_DISK is not set: it names the disks to wipe, such as /dev/sda /dev/nvme0n1")
    if len(names) > MAX_DISKS:
        raise _invalid(f"DEST_DISK names {len(names)} disks, more than {MAX_DISKS}")
    for name in names:
        if not name.startswith("/dev/"):
            raise _invalid(f"DEST_DISK has {name[:80]}: name each disk, such as /dev/sda; no word stands for all disks")
    if mode not in MODES:
        raise _invalid(f"MODE is {mode[:40]}, not one of {', '.join(MODES)}")
    return Settings(names, mode)


def wipe(settings: Settings) -> None:
    """Wipe the disks. Raises ActionError."""
    disks = dict[int, str]()
    for name in settings.disks:
        wait_for(name)
        disks.setdefault(Path(name).stat().st_rdev, name)  # one disk may have several names
    for device, name in disks.items():
        holders.check(name, device)
        check(settings.mode, name, device, frozenset(disks))
    for device, name in disks.items():
        _wipe(settings.mode, _taken(name, device))


def _wipe(mode: str, disk: Disk) -> None:
    def progress() -> str:
        return f"{disk.name}: {disk.written // 1_000_000} of {disk.size // 1_000_000} MB wiped"

    began = time.monotonic()
    ended = reporting(progress, say)
    try:
        MODES[mode](disk)
        disk.clear()  # a disk may keep the data of discarded blocks
        remark = disk.finish(say)
    finally:
        ended()
    if remark:
        say(remark)
    say(f"{disk.name}: {disk.size} bytes wiped ({mode}) in {time.monotonic() - began:.0f} s")


def _taken(name: str, device: int) -> Disk:
    for left in reversed(range(ATTEMPTS)):
        for line in holders.stop(name, device):
            say(line)
        try:
            return opened(name, say, held_seconds=0)
        except ActionError as error:
            if not left or error.reason != "DiskBusy":
                raise
        time.sleep(1)
    raise AssertionError("the last attempt returns or raises")


def _invalid(message: str) -> ActionError:
    return ActionError("InvalidSetting", message)


if __name__ == "__main__":
    sys.exit(status_of(lambda: wipe(read(os.environ))))
