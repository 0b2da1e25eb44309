"""Lines of the log on their way to standard error.

A line is made where it is logged, for what it tells of may change, and written by a thread, many at once: a reader of
standard error that has stopped reading must not stop the servers. What waits is bounded; lines beyond that are lost,
and a line says how many. Errors are written before the program goes on, if standard error takes them, and the program
ends when everything is written, or a second has passed.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TextIO

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum number of lines that wait while standard error is blocked. `reserved` lines have twice as much room."""

_GATHER_SECONDS = 0.02  # after a batch: the next lines are written together
_ERROR_SECONDS = 0.1
_END_SECONDS = 1.0


class StreamWriter(logging.Handler):
    """Writes formatted lines to a stream from a thread of its own, in order."""

    def __init__(self, stream: TextIO, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        """`stream`: its file descriptor is what is written to, if it has one."""
        super().__init__()
        self._stream = stream
        try:
            self._descriptor = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = -1
        self._file = _file_of(stream)
        self._max_waiting_bytes = max_waiting_bytes
        # Lines, in between events to be set when all before is written, and None to end the thread.
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        # Each of both is changed by one side only; what waits is the difference.
        self._taken_bytes = 0
        self._written_bytes = 0
        self._lost = 0
        self._stuck = False
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take the line in. logging holds the handler's lock meanwhile."""
        try:
            line = self.line(record)
        except Exception:
            self.handleError(record)
            return
        # Lines about writes to the API (extra={"reserved": True}) have room that a flood of other lines can't use.
        most = self._max_waiting_bytes * (2 if getattr(record, "reserved", False) else 1)
        if self._taken_bytes - self._written_bytes > most:
            self._lost += 1
            return
        if self._lost:
            self._take(self.missing(self._lost))
            self._lost = 0
        self._take(line)
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
            self._thread.start()
        if record.levelno >= logging.ERROR and not self._stuck:
            self._stuck = True  # until the thread has written something
            self._written_within(_ERROR_SECONDS)

    def _take(self, line: bytes) -> None:
        self._taken_bytes += len(line)
        self._queue.put(line)

    # --- what a line is: other writers have others -------------------------------------------------------------------

    def line(self, record: logging.LogRecord) -> bytes:
        """A record as it is written."""
        return self.format(record).encode("utf-8", "backslashreplace") + b"\n"

    def missing(self, count: int) -> bytes:
        """What says that so many are missing."""
        return b"%d log lines are missing here: standard error was not read fast enough\n" % count

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Called by the thread, with all that wait."""
        self._write(b"".join(lines))

    # -----------------------------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """If it is a file: write to what has its name now, which is made if nothing has. Raises OSError."""
        if not self._file:
            return
        anew = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.dup2(anew, self._descriptor)
        finally:
            os.close(anew)

    def flush(self) -> None:
        """Wait until everything is written, but not for ever. logging calls it when the program ends."""
        self._written_within(_END_SECONDS)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self.flush()
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None
        super().close()

    def _written_within(self, seconds: float) -> bool:
        if self._thread is None:
            return True
        written = threading.Event()
        self._queue.put(written)
        self._hurry.set()
        return written.wait(seconds)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            waiting = [self._queue.get()]
            with suppress(Empty):
                while True:
                    waiting.append(self._queue.get_nowait())
            batch = [line for line in waiting if isinstance(line, bytes)]
            # Closed, or a full disk: nobody is left to tell.
            with suppress(OSError, ValueError):
                self.write_lines(batch)
            self._written_bytes += sum(map(len, batch))
            self._stuck = False
            for written in waiting:
                if isinstance(written, threading.Event):
                    written.set()
            if None in waiting:
                return
            self._hurry.wait(_GATHER_SECONDS)
            self._hurry.clear()

    def _write(self, batch: bytes) -> None:
        if self._descriptor < 0:
            self._stream.write(batch.decode())
            self._stream.flush()
            return
        rest = memoryview(batch)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # who shares the terminal or pipe with us has made it non-blocking
                select.select([], [self._descriptor], [])


def _file_of(stream: TextIO) -> str:
    """The name of the regular file that a stream is written to; empty: it is something else."""
    with suppress(OSError, ValueError):
        descriptor = stream.fileno()
        found = os.fstat(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISREG(found.st_mode) and os.path.samestat(found, name.stat()):
            return str(name)
    return ""
