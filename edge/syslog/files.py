"""The lines of each machine in a file of its own, bounded: `DATA_DIR/machine-logs/<mac>.log`, and `.log.1` before it.

Of more machines than there is room for, the files of those that were quiet for longest go. For their owner alone
(0600): what a machine logs may be secret. Called in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE_BYTES: Final = 512 * 1024
"""Of one file; a machine has two."""
MAX_MACHINES: Final = 1024


class LogFiles:
    """The files of one directory. Raises nothing before the first `append`."""

    def __init__(self, directory: Path, *, file_bytes: int = FILE_BYTES, machines: int = MAX_MACHINES) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._machines = machines
        self._known: dict[str, None] | None = None
        """The machines that have files, the one written last comes last."""

    def append(self, batch: Mapping[str, bytes]) -> None:
        """Add to the files of machines, by MAC (lower case, colons). Raises OSError."""
        known = self._look()
        for mac, text in batch.items():
            self._append(self.path(mac), text[-self._file_bytes :])
            known.pop(mac, None)
            known[mac] = None
        while len(known) > self._machines:
            oldest = next(iter(known))
            del known[oldest]
            for path in (self.path(oldest), self._older(oldest)):
                path.unlink(missing_ok=True)

    def path(self, mac: str) -> Path:
        """Where the newest lines of a machine are."""
        return self._directory / f"{mac.replace(':', '-')}.log"

    def _older(self, mac: str) -> Path:
        path = self.path(mac)
        return path.with_name(f"{path.name}.1")

    def _look(self) -> dict[str, None]:
        if self._known is None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = []
            for path in self._directory.glob("*.log"):
                with suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime, path.stem.replace("-", ":")))
            self._known = dict.fromkeys(mac for _, mac in sorted(found))
        return self._known

    def _append(self, path: Path, text: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(text) > self._file_bytes:
                path.replace(path.with_name(f"{path.name}.1"))
                os.close(descriptor)
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.write(descriptor, text)
        finally:
            os.close(descriptor)
