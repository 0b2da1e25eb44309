"""The read-only fallback: how a state is read that can't be written, because its disk is full, read-only or broken.

SQLite wants to make two files beside it, the log and its index, before it reads anything. Where it can't, there are
ways without them, tried in this order:

    as it is          the index is there, of a server that was killed, or can be made
    immutable         the log is empty, so the file alone has everything (sqlite.org/uri.html#uriimmutable)
    a copy in memory  the log has something that is not in the file, and there is no room for its index

An index on a read-only disk is not used: all connections of a process would share it, and none could write by way of it
when the disk can be written again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tink.files.data_directory import disk_refuses
from tink.kubeapi.apiserver.store.database import wal_path

_MEMORY_DIRECTORY = Path("/dev/shm")  # noqa: S108 - the copy gets a directory of its own there, 0700


class ReadOnlyDatabase:
    """Connections to a state that can't be written. None of them may go on when it is written again."""

    def __init__(self, path: Path) -> None:
        """`find_way` has to be called before `connect`."""
        self._copy: Path | None = None
        self._uri = ""
        self._path = path

    def find_way(self) -> None:
        """Find the way, again if need be. Raises sqlite3.Error, OSError."""
        plain = f"file:{quote(str(self._path))}?mode=ro"
        if self._copy is not None:
            return
        if os.access(self._path, os.W_OK):  # no: it is read-only (access(2): EROFS)
            self._uri = plain
            with suppress(sqlite3.OperationalError):
                self._try()
                return
        log = wal_path(self._path)
        if not log.exists() or not log.stat().st_size:
            self._uri = f"{plain}&immutable=1"
            self._try()
        else:
            self._use_copy()

    def connect(self) -> sqlite3.Connection:
        """Open it for one thread. Raises sqlite3.Error."""
        return sqlite3.connect(self._uri, uri=True, isolation_level=None, cached_statements=64)

    def close(self) -> None:
        """Give the copy up, if there is one. What has it open can go on."""
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy = None

    def _try(self) -> None:
        db = self.connect()
        try:
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            db.close()

    def _use_copy(self) -> None:
        path = self._path
        self._copy = Path(
            tempfile.mkdtemp(dir=_MEMORY_DIRECTORY if _MEMORY_DIRECTORY.is_dir() else None, prefix="tinkedge-")
        )
        try:
            for file in (path, wal_path(path)):
                shutil.copyfile(file, self._copy / file.name)
            self._uri = f"file:{quote(str(self._copy / path.name))}"
            self._try()
        except BaseException:
            self.close()
            raise


def describe(path: Path, error: Exception) -> str:
    """Say why a file can't be read or written: SQLite has the same words for many reasons."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error)
    seen = disk_refuses(path.parent)
    return f"{said}: {seen}" if seen and seen not in said else said
