"""Lines for systemd's journal with fields of their own: `journalctl TINKEDGE_MAC=52:54:00:12:34:56`.

The journal's native protocol (systemd.io, "Native Journal Protocol"): a datagram for each entry, NAME=VALUE or, where a
value has line breaks, NAME, its length (64 bit, little endian) and itself. What the journal does not take, for it is
away or the entry is too large, goes to standard error, which leads to the journal as well.
"""

from __future__ import annotations

import logging
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

import orjson

from edge.run.logs.formats import PRIORITIES, lines_of
from edge.run.logs.writer import StreamWriter

SOCKET: Final = Path("/run/systemd/journal/socket")

_LENGTH: Final = struct.Struct("<Q")
_MESSAGE: Final = b"MESSAGE\n"
_NO_NAME: Final = re.compile(r"[^A-Z0-9_]")
_NO_FIELDS: Final[Mapping[str, Any]] = {}


class JournalWriter(StreamWriter):
    """As `StreamWriter`, to the journal; `stream` is what remains when that takes nothing."""

    def __init__(self, stream: TextIO, path: Path = SOCKET) -> None:
        super().__init__(stream)
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        super().close()
        self._socket.close()

    def line(self, record: logging.LogRecord) -> bytes:
        """The entry of a record."""
        lines = lines_of(record, self.formatter or logging.Formatter())
        priority = PRIORITIES[min(record.levelno // 10, 5)][1:2]
        return entry(priority, "\n".join(lines), {"logger": record.name, **getattr(record, "fields", _NO_FIELDS)})

    def missing(self, count: int) -> bytes:
        """The entry that says that so many are missing."""
        return entry("4", f"{count} log lines are missing here: the journal did not take them fast enough", _NO_FIELDS)

    def write_lines(self, lines: Sequence[bytes]) -> None:
        """Called by the thread."""
        for line in lines:
            try:
                self._socket.sendto(line, self._path)
            except OSError:  # away, restarting, or the entry is too large
                super().write_lines([_plain(line)])


def entry(priority: str, message: str, fields: Mapping[str, Any]) -> bytes:
    """A datagram; `fields` by their names in JSON lines, in capitals behind our prefix."""
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
    except TypeError:  # what is not valid Unicode: file names can be anything
        return str(value).encode("utf-8", "backslashreplace")


def _plain(made: bytes) -> bytes:
    """The lines of an entry as standard error takes them, each with its priority (sd-daemon(3))."""
    priority = made[len(b"PRIORITY=") :][:1]
    begin = made.index(_MESSAGE) + len(_MESSAGE)
    (length,) = _LENGTH.unpack_from(made, begin)
    text = made[begin + _LENGTH.size :][:length]
    return b"".join(b"<" + priority + b">" + line + b"\n" for line in text.split(b"\n"))
