"""The root logger of a program: which lines, in which form, and where they go."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from edge.run.logs.formats import JournalFormatter, JsonFormatter, TextFormatter
from edge.run.logs.journal import SOCKET, JournalWriter
from edge.run.logs.writer import StreamWriter

log = logging.getLogger(__name__)

_NOISY = ("aiohttp.access", "asyncio")


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


def _to_journal(stream: TextIO, variable: str) -> bool:
    """Whether the stream is the one that JOURNAL_STREAM names (systemd.exec(5)): DEVICE:INODE."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return variable == f"{found.st_dev}:{found.st_ino}"


def _handler(formatter: logging.Formatter | None) -> StreamWriter:
    """To the journal with its own fields, if it is there and lines are for people; else to standard error."""
    journal = _to_journal(sys.stderr, os.environ.get("JOURNAL_STREAM", ""))
    if journal and formatter is None and SOCKET.is_socket():
        return JournalWriter(sys.stderr)
    handler = StreamWriter(sys.stderr)
    handler.setFormatter(JournalFormatter(formatter) if journal else formatter or TextFormatter())
    return handler


def set_up(level: str, form: str) -> None:
    """`level` as in logging's names, any case; `form` is `text` or `json`."""
    formatter = JsonFormatter() if form == "json" else None
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
