"""Logs the standard error of the gRPC server's process: lines of gRPC's core and of a dying process.

No logger formats or limits these lines at their source.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Final

from tink.limits import LimitedLog
from tink.printable import printable

log = logging.getLogger(__name__)

MAX_LINES: Final = 60
"""Maximum number of lines in a minute, from different places in gRPC's source: a stack of all threads fits."""
MAX_LINE_BYTES: Final = 1000  # maximum length of a line: a remote host can influence the length
_READ_BYTES: Final = 64 << 10
_LEVELS: Final = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.WARNING, "F": logging.ERROR}
_CORE: Final = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([\w./-]+:\d+)\] (.*)")
"""Abseil's form: `E1129 02:13:26.392442   31373 hpack_encoder.cc:618] text`."""


class CoreLog:
    """Reads lines from a pipe until `close`. Each place in gRPC's source is logged once a minute."""

    def __init__(self, pipe: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Take over `pipe`, the reading end. Needs a running loop."""
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._log = LimitedLog(log, clock, capacity=MAX_LINES)
        self._rest = b""
        self.lacks_memory = False  # True if the process has reported that it can't get memory
        self._skips = False  # True if the rest of a line that was too long has not arrived yet
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._readable)

    def close(self) -> None:
        """Log the pending lines and close the pipe."""
        self._loop.remove_reader(self._pipe)
        while self._read():
            pass
        self.take(b"\n")
        os.close(self._pipe)

    def _readable(self) -> None:
        if not self._read():
            self._loop.remove_reader(self._pipe)  # all writers have ended

    def _read(self) -> bool:
        """Read once. Return False if there is nothing to read."""
        try:
            content = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        self.take(content)
        return bool(content)

    def take(self, content: bytes) -> None:
        """Log the lines that are complete now."""
        *lines, rest = (self._rest + content).split(b"\n")
        for line in lines:
            if not self._skips:
                self._log_line(line)
            self._skips = False
        if len(rest) > MAX_LINE_BYTES:
            if not self._skips:
                self._log_line(rest)
            self._skips, rest = True, b""
        self._rest = rest

    def _log_line(self, line: bytes) -> None:
        text = printable(line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip())
        if not text:
            return
        self.lacks_memory = self.lacks_memory or "std::bad_alloc" in text or "MemoryError" in text
        if (found := _CORE.match(text)) is not None:
            level, place, message = found.groups()
            self._log.log(_LEVELS[level], "%s: %s", place, message, key=place)
        else:
            self._log.warning("%s", text)
