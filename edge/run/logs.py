"""How the program logs: lines for people or JSON for collectors on standard error, or entries of systemd's journal.

    record -> formatter -> StreamWriter (a thread) -> standard error
                        -> JournalWriter           -> the journal: `journalctl TINKEDGE_MAC=52:54:00:12:34:56`

A record may carry `fields` (`extra={"fields": {...}}`). JSON lines have them beside the message, and the journal as
fields of its own.
"""

from __future__ import annotations

import logging
import os
import re
import select
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TextIO

import orjson

from tink.printable import escaped

log = logging.getLogger(__name__)

PRIORITIES: Final = ("<7>", "<7>", "<6>", "<4>", "<3>", "<2>")
"""Syslog's priorities, indexed by a tenth of the log level: debug, info, warning, err, crit."""

_INDENT: Final = "    "
_NO_FIELDS: Final[dict[str, Any]] = {}


@lru_cache(maxsize=2)
def _second(form: str, zone: Callable[[float], time.struct_time], second: int) -> str:
    """Format a second, once for all lines of that second."""
    return time.strftime(form, zone(second))


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO    edge.journey: message`, in local time."""

    def format(self, record: logging.LogRecord) -> str:
        date = _second("%Y-%m-%d %H:%M:%S", time.localtime, int(record.created))
        return f"{date},{int(record.msecs):03d} {record.levelname:<7} " + "\n".join(lines_of(record, self))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the record's fields, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        date = _second("%Y-%m-%dT%H:%M:%S", time.gmtime, int(record.created))
        entry: dict[str, Any] = {
            "time": f"{date}.{int(record.msecs):03d}Z",
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
            # JSON can't hold text that is not valid Unicode, such as some file names: escape it.
            return orjson.dumps(_safe(entry)).decode()


def lines_of(record: logging.LogRecord, form: logging.Formatter) -> list[str]:
    """Return logger and message in one line, then the indented lines of an exception and a stack."""
    # A client may control the text of an exception. Without the indent, a line break in it would forge a log line.
    traces = [form.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        traces.append(record.stack_info)
    rest = [_INDENT + escaped(line) for trace in traces for line in trace.splitlines()]
    return [f"{record.name}: {escaped(record.getMessage())}", *rest]


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {_safe(str(key)): _safe(entry) for key, entry in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if isinstance(value, int | float | None) else _safe(str(value))


class JournalFormatter(logging.Formatter):
    """A line for the journal, without the time: `<4>edge.journey: message`, with the priority of sd-daemon(3)."""

    def __init__(self, form: logging.Formatter | None = None) -> None:
        """`form` formats the rest of the line; None stands for logger and message."""
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        prefix = PRIORITIES[min(record.levelno // 10, 5)]
        if self._form is not None:
            return prefix + self._form.format(record)
        # Each line of an exception has the priority too, because the journal makes an entry of each line.
        return "\n".join(prefix + line for line in lines_of(record, self))


# --- standard error ---------------------------------------------------------------------------------------------------

MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of the lines that wait while standard error is blocked. `reserved` lines have twice as much room."""

_GATHER_SECONDS = 0.02  # after a batch: the next lines are written together
_ERROR_SECONDS = 0.1
_END_SECONDS = 1.0


class StreamWriter(logging.Handler):
    """Writes formatted lines to a stream, in order, from a thread of its own.

    A line is formatted where it is logged, because its objects may change. The thread writes many lines at once: a
    reader of standard error that has stopped must not stop the servers. The size of the waiting lines is bounded; a
    line reports the number of dropped ones. After an error the program waits a moment until it is written; at its end
    it waits up to a second for all lines.
    """

    def __init__(self, stream: TextIO, *, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        """Write to the file descriptor of `stream`, or to `stream` itself if it has none."""
        super().__init__()
        self._stream = stream
        try:
            self._descriptor = stream.fileno()
        except (OSError, ValueError):
            self._descriptor = -1
        self._file = _file_of(stream)
        self._max_waiting_bytes = max_waiting_bytes
        # Lines; events, which are set when all lines before them are written; None, which ends the thread.
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        # Each counter is changed by one thread only. Their difference is the size of the waiting lines.
        self._taken_bytes = 0
        self._written_bytes = 0
        self._lost = 0
        self._stuck = False
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record. logging holds the handler's lock during this call."""
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

    # --- the form of a line, which subclasses override --------------------------------------------------------------

    def line(self, record: logging.LogRecord) -> bytes:
        """Return the bytes of a record."""
        return self.format(record).encode("utf-8", "backslashreplace") + b"\n"

    def missing(self, count: int) -> bytes:
        """Return the line that reports the number of dropped lines."""
        return b"%d log lines are missing here: standard error was not read fast enough\n" % count

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Write all waiting lines. The thread calls it."""
        self._write(b"".join(lines))

    # -----------------------------------------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Open a log file again by its name, and create it if it is missing. Raises OSError."""
        if not self._file:
            return
        opened = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.dup2(opened, self._descriptor)
        finally:
            os.close(opened)

    def flush(self) -> None:
        """Wait until all lines are written, at most a second. logging calls it when the program ends."""
        self._written_within(_END_SECONDS)

    def close(self) -> None:
        """Write the waiting lines, and end the thread."""
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
            # A closed stream or a full disk can't be reported anywhere.
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
            except BlockingIOError:  # another process that shares the terminal or pipe has made it non-blocking
                select.select([], [self._descriptor], [])


def _file_of(stream: TextIO) -> str:
    """Return the name of the regular file that a stream writes to; empty if it is something else."""
    with suppress(OSError, ValueError):
        descriptor = stream.fileno()
        found = os.fstat(descriptor)
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISREG(found.st_mode) and os.path.samestat(found, name.stat()):
            return str(name)
    return ""


# --- systemd's journal ------------------------------------------------------------------------------------------------

SOCKET: Final = Path("/run/systemd/journal/socket")

_LENGTH: Final = struct.Struct("<Q")
_MESSAGE: Final = b"MESSAGE\n"
_NO_NAME: Final = re.compile(r"[^A-Z0-9_]")


class JournalWriter(StreamWriter):
    """Writes entries in the journal's native protocol (systemd.io, "Native Journal Protocol").

    An entry is a datagram of NAME=VALUE lines; a value with line breaks is NAME, its length (64 bit, little endian) and
    the value. An entry that the journal does not accept goes to `stream`: standard error, which leads there as well.
    """

    def __init__(self, stream: TextIO, path: Path = SOCKET) -> None:
        super().__init__(stream)
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        """Write the waiting lines, and end the thread."""
        super().close()
        self._socket.close()

    def line(self, record: logging.LogRecord) -> bytes:
        """Return the entry of a record."""
        lines = lines_of(record, self.formatter or logging.Formatter())
        priority = PRIORITIES[min(record.levelno // 10, 5)][1:2]
        return entry(priority, "\n".join(lines), {"logger": record.name, **getattr(record, "fields", _NO_FIELDS)})

    def missing(self, count: int) -> bytes:
        """Return the entry that reports the number of dropped lines."""
        return entry("4", f"{count} log lines are missing here: the journal did not take them fast enough", _NO_FIELDS)

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Write all waiting entries. The thread calls it."""
        for line in lines:
            try:
                self._socket.sendto(line, self._path)
            except OSError:  # the journal is away, or the entry is too large
                super().write_lines([_plain(line)])


def entry(priority: str, message: str, fields: Mapping[str, Any]) -> bytes:
    """Return a datagram. `fields` get the prefix TINKEDGE_ and upper-case names."""
    text = message.encode("utf-8", "backslashreplace")
    parts = [b"PRIORITY=", priority.encode(), b"\n", _MESSAGE, _LENGTH.pack(len(text)), text]
    parts.append(b"\nSYSLOG_IDENTIFIER=tinkedge\n")
    for name, value in fields.items():
        key = f"TINKEDGE_{_NO_NAME.sub('_', name.upper())}"[:64].encode()
        shown = _shown(value)
        if b"\n" in shown:
            parts += [key, b"\n", _LENGTH.pack(len(shown)), shown, b"\n"]
        elif shown:
            parts += [key, b"=", shown, b"\n"]
    return b"".join(parts)


def _shown(value: Any) -> bytes:
    if isinstance(value, str | int | float):
        return str(value).encode("utf-8", "backslashreplace")
    try:
        return orjson.dumps(value, default=str)
    except TypeError:  # not valid Unicode, such as some file names
        return str(value).encode("utf-8", "backslashreplace")


def _plain(made: bytes) -> bytes:
    """Return the lines of an entry for standard error, each with its priority (sd-daemon(3))."""
    priority = made[len(b"PRIORITY=") :][:1]
    begin = made.index(_MESSAGE) + len(_MESSAGE)
    (length,) = _LENGTH.unpack_from(made, begin)
    text = made[begin + _LENGTH.size :][:length]
    return b"".join(b"<" + priority + b">" + line + b"\n" for line in text.split(b"\n"))


# --- the root logger --------------------------------------------------------------------------------------------------


def reopen() -> None:
    """Open the log file again by the name that it had at the start, after logrotate(8) has moved it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StreamWriter):
            try:
                handler.reopen()
            except OSError as error:
                log.warning("the log file can't be opened again, and lines go to the old file: %s", error)


def _handler(formatter: logging.Formatter | None) -> StreamWriter:
    """Return a writer to the journal, if it is there and lines are for people; else to standard error."""
    journal = False
    with suppress(OSError, ValueError):
        found = os.fstat(sys.stderr.fileno())
        # systemd.exec(5): DEVICE:INODE of the stream that leads to the journal
        journal = os.environ.get("JOURNAL_STREAM", "") == f"{found.st_dev}:{found.st_ino}"
    if journal and formatter is None and SOCKET.is_socket():
        return JournalWriter(sys.stderr)
    handler = StreamWriter(sys.stderr)
    handler.setFormatter(JournalFormatter(formatter) if journal else formatter or TextFormatter())
    return handler


def log_with(handler: logging.Handler, level: str | int) -> None:
    """Make `handler` the only handler of the root logger, and set the levels."""
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("aiohttp.access", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def set_up(level: str, form: str) -> None:
    """Set up the root logger. `level` is a name of logging's in any case; `form` is `text` or `json`."""
    formatter = JsonFormatter() if form == "json" else None
    handler = _handler(formatter)
    for before in logging.getLogger().handlers:
        if isinstance(before, StreamWriter):
            before.close()
    log_with(handler, level.upper())
    # No line shows the caller, thread or process, so logging need not find them for each record ("Optimization" in the
    # logging HOWTO).
    if "_srcfile" in vars(logging):
        vars(logging)["_srcfile"] = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
