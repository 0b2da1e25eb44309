"""Whether what tinkedge-backup.timer makes is made: a backup that has failed for weeks is found when it is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from edge.doctor.checks.findings import Finding, note, warning

DIRECTORY: Final = Path("/var/lib/tinkedge-backups")
"""Where the unit puts them (deploy/systemd)."""
_DAY_SECONDS: Final = 86_400.0
_OLD_DAYS: Final = 2.0
"""It makes one a day, at some time within an hour."""


def check_backups(directory: Path = DIRECTORY, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """How old the newest is. Nothing where the unit has never run: backups may be made by other means."""
    name, remedy = f"backups in {directory}", "journalctl -u tinkedge-backup; systemctl status tinkedge-backup.timer"
    try:
        if not directory.is_dir():
            return
        times = [file.stat().st_mtime for file in directory.glob("tinkedge-*.tgz*")]
    except OSError as error:
        yield note(name, f"not looked at: {error.strerror}", "run it as root, or as tinkedge's user")
        return
    if not times:
        yield warning(name, "there is none", remedy)
        return
    days = (now() - max(times)) / _DAY_SECONDS
    age = f"{days:.0f} days" if days >= 1 else "less than a day"
    seen = f"{len(times)}, the newest {age} old"
    yield warning(name, seen, remedy) if days > _OLD_DAYS else Finding(name, ok=True, seen=seen)
