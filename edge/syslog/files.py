"""The log files of machines: `DATA_DIR/machine-logs/<mac>.log`, and the older lines in `<mac>.log.1`.

The size of a file and the number of machines are limited; the files of the machines that were quiet for longest are
deleted. The functions block, so they are called in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_FILE_BYTES: Final = 512 * 1024  # maximum size of one file; a machine has two
MAX_MACHINES: Final = 1024


class LogFiles:
    """The log files in one directory. The directory is not touched before the first `append`."""

    def __init__(self, directory: Path, *, file_bytes: int = MAX_FILE_BYTES, machines: int = MAX_MACHINES) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._machines = machines
        self._known: dict[str, None] | None = None
        """The MACs of machines with files, the one that was written last at the end. None before the first look."""

    def append(self, batch: Mapping[str, bytes]) -> None:
        """Append lines to the files of machines, by MAC (lower case, colons). Raises OSError."""
        known = self._list()
        for mac, text in batch.items():
            self._append(self.path(mac), text[-self._file_bytes :])
            known.pop(mac, None)
            known[mac] = None
        while len(known) > self._machines:
            oldest = next(iter(known))
            del known[oldest]
            newest = self.path(oldest)
            for path in (newest, newest.with_name(f"{newest.name}.1")):
                path.unlink(missing_ok=True)

    def path(self, mac: str) -> Path:
        """Return the path of a machine's newest lines."""
        return self._directory / f"{mac.replace(':', '-')}.log"

    def _list(self) -> dict[str, None]:
        if self._known is None:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = []
            for path in self._directory.glob("*.log"):
                with suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime, path.stem.replace("-", ":")))
            self._known = dict.fromkeys(mac for _, mac in sorted(found))
        return self._known

    def _append(self, path: Path, text: bytes) -> None:
        # Only the owner may read the files, because a machine's log may contain secrets.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(text) > self._file_bytes:
                path.replace(path.with_name(f"{path.name}.1"))
                os.close(descriptor)
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.write(descriptor, text)
        finally:
            os.close(descriptor)
