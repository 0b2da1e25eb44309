"""How the program logs: lines for people, or JSON for collectors; to standard error.

A line is made where it is logged, for what it tells of may change, and written by a thread, many at once: a reader of
standard error that has stopped reading must not stop the servers. What waits is bounded; lines beyond that are lost,
and a line says how many. Errors are written before the program goes on, if standard error takes them, and the program
ends when everything is written, or a second has passed.

Lines for the journal have its priority in front, and no time of their own.

A record may carry `fields` (`extra={"fields": {...}}`), which JSON lines have beside the message, and the journal as
fields of its own (`journal`).
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TextIO

import orjson

from tink.printable import escaped

log = logging.getLogger(__name__)

_NOISY = ("aiohttp.access", "asyncio")

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Lines that wait for a standard error that is blocked."""

_GATHER_SECONDS = 0.02  # after a batch: the next lines are written together
_ERROR_SECONDS = 0.1
_END_SECONDS = 1.0

PRIORITIES: Final = ("<7>", "<7>", "<6>", "<4>", "<3>", "<2>")
"""Those of syslog, by a tenth of the level: debug, info, warning, err, crit."""

_NO_FIELDS: Final[dict[str, Any]] = {}


class _Seconds:
    """A second as text, made once for all the lines of that second."""

    def __init__(self, form: str, zone: Callable[[float], time.struct_time]) -> None:
        self._form, self._zone = form, zone
        self._second, self._text = -1, ""

    def text(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._text = second, time.strftime(self._form, self._zone(second))
        return self._text


class _TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO    edge.journey: message`, in local time."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%d %H:%M:%S", time.localtime)

    def format(self, record: logging.LogRecord) -> str:
        date = self._seconds.text(record)
        return f"{date},{int(record.msecs):03d} {record.levelname:<7} " + "\n".join(lines_of(record, self))


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the record's fields, the exception where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%dT%H:%M:%S", time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": f"{self._seconds.text(record)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in getattr(record, "fields", _NO_FIELDS).items():
            entry.setdefault(name, value)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(entry).decode()
        except TypeError:
            # What is not valid Unicode (file names can be anything) is refused by JSON: show it escaped.
            return orjson.dumps(_safe(entry)).decode()


def lines_of(record: logging.LogRecord, form: logging.Formatter) -> list[str]:
    """Logger and message in one line, then those of an exception and a stack."""
    message = record.getMessage()
    lines = [f"{record.name}: {escaped(message)}"]
    if record.exc_info:
        lines += form.formatException(record.exc_info).splitlines()
    if record.stack_info:
        lines += record.stack_info.splitlines()
    return lines


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {_safe(str(key)): _safe(entry) for key, entry in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if isinstance(value, int | float | None) else _safe(str(value))


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
        if self._taken_bytes - self._written_bytes > self._max_waiting_bytes:
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
            self._stuck = not self._written_within(_ERROR_SECONDS)

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


class _JournalFormatter(logging.Formatter):
    """A line for the journal, which has the time itself: `<4>edge.journey: message`, with sd-daemon(3)'s priority.

    Each line of an exception has the priority, for each is an entry of its own.
    """

    def __init__(self, form: logging.Formatter | None = None) -> None:
        """`form` makes the rest of the line; None: logger and message."""
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        prefix = PRIORITIES[min(record.levelno // 10, 5)]
        if self._form is not None:
            return prefix + self._form.format(record)
        return "\n".join(prefix + line for line in lines_of(record, self))


def _to_journal(stream: TextIO, variable: str) -> bool:
    """Whether the stream is the one that JOURNAL_STREAM names (systemd.exec(5)): DEVICE:INODE."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return variable == f"{found.st_dev}:{found.st_ino}"


def _file_of(stream: TextIO) -> str:
    """The name of the regular file that a stream is written to; empty: it is something else."""
    with suppress(OSError, ValueError):
        descriptor = stream.fileno()
        found = os.fstat(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISREG(found.st_mode) and os.path.samestat(found, name.stat()):
            return str(name)
    return ""


def reopen() -> None:
    """Open the file that standard error is written to again, by the name that it had at the start: logrotate(8).

    What can't be opened is said, and lines go where they went.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StreamWriter):
            try:
                handler.reopen()
            except OSError as error:
                log.warning("the log file can't be opened again, and lines go where they went: %s", error)


def _handler(formatter: logging.Formatter | None) -> StreamWriter:
    """To the journal with its own fields, if it is there and lines are for people; else to standard error."""
    from edge.composition.journal import SOCKET, JournalWriter

    journal = _to_journal(sys.stderr, os.environ.get("JOURNAL_STREAM", ""))
    if journal and formatter is None and SOCKET.is_socket():
        return JournalWriter(sys.stderr)
    handler = StreamWriter(sys.stderr)
    handler.setFormatter(_JournalFormatter(formatter) if journal else formatter or _TextFormatter())
    return handler


def set_up(level: str, form: str) -> None:
    """`level` as in logging's names, any case; `form` is `text` or `json`."""
    formatter = _JsonFormatter() if form == "json" else None
    handler = _handler(formatter)
    root = logging.getLogger()
    for before in root.handlers:
        if isinstance(before, StreamWriter):
            before.close()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    # What no line shows is not looked up for each record: the caller, which takes a walk up the stack, the thread, the
    # process ("Optimization" in the logging HOWTO).
    if "_srcfile" in vars(logging):
        vars(logging)["_srcfile"] = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
