"""The WAL checkpointer: what was written is moved from the write-ahead log into the file, beside the writes.

A checkpoint takes two flushes, so a thread of its own makes it while writes go on: when much was written, and some
seconds after a write at the latest. The file alone is then a copy of all there is. Only what that leaves over when
writes never cease is moved by the writer itself, between two writes.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

from tink.kubeapi.apiserver.store import database, high_water_mark
from tink.kubeapi.apiserver.store.read_only import describe

log = logging.getLogger(__name__)

CHECKPOINT_BYTES = 2 << 20
"""A checkpoint is begun after so much text was written."""
CHECKPOINT_SECONDS = 5.0
"""And so many seconds after a write at the latest."""


class Checkpointer:
    """Makes the checkpoints of one file, for as long as it has a writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0
        self._failing = False
        self._wanted = threading.Event()
        """There is something to move."""
        self._due = threading.Event()
        """It is to be moved at once."""
        self._ending = False

    def wrote(self, size: int, db: sqlite3.Connection) -> None:
        """Take note of a commit of so many bytes; called by the writer, whose connection is `db`."""
        if not self._wanted.is_set():
            self._wanted.set()
        self._written += size
        if self._written > CHECKPOINT_BYTES:
            self._written = 0
            self._due.set()
            if database.wal_is_long(self._path):
                self._make(db)

    def run(self, db: sqlite3.Connection) -> None:
        """Make checkpoints until the end, the first at once: a killed server leaves a long log."""
        while not self._ending:
            self._wanted.clear()
            self._due.clear()
            high_water_mark.sync(high_water_mark.path_beside(self._path))
            if not self._make(db):
                self._wanted.set()
            self._wanted.wait()
            self._due.wait(CHECKPOINT_SECONDS)

    def end(self) -> None:
        """Have `run` return."""
        self._ending = True
        self._wanted.set()
        self._due.set()

    def _make(self, db: sqlite3.Connection) -> bool:
        """Move what can be moved; False: a reader still needs some of it as it was, or the disk refuses."""
        try:
            whole = database.checkpoint(db)
        except sqlite3.Error as error:  # what is in the log is safe there; a later checkpoint moves it
            if not self._failing:
                log.warning("state %s: no checkpoint could be made: %s", self._path, describe(self._path, error))
            self._failing = True
            return False
        self._failing = False
        return whole
