"""The lines that gRPC's core and a dying process write to standard error, which no logger of ours formats or limits."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Final

from tink.limits.log import LimitedLog
from tink.printable import printable

log = logging.getLogger(__name__)

LINES: Final = 60
"""Lines a minute that are written, of different places in gRPC's source: a stack of all threads fits."""
MOST_BYTES: Final = 1000
"""Of a line: a stranger chooses how long it is."""
_READ_BYTES: Final = 64 << 10
_LEVELS: Final = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.WARNING, "F": logging.ERROR}
_CORE: Final = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([\w./-]+:\d+)\] (.*)")
"""Abseil's form: `E1129 02:13:26.392442   31373 hpack_encoder.cc:618] text`."""


class CoreLog:
    """Reads lines from a pipe until `close`. Each place in gRPC's source is logged once a minute."""

    def __init__(self, pipe: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes over `pipe`, the end to read from. Needs a running loop."""
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()
        self._log = LimitedLog(log, clock, capacity=LINES)
        self._rest = b""
        self.lacks_memory = False
        """Whether the process has said that it can't get memory."""
        self._skips = False
        """Whether the rest of a line is still to come that was too long."""
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._readable)

    def close(self) -> None:
        """Log what was written before, and close the pipe."""
        self._loop.remove_reader(self._pipe)
        while self._read():
            pass
        self.take(b"\n")
        os.close(self._pipe)

    def _readable(self) -> None:
        if not self._read():
            self._loop.remove_reader(self._pipe)  # all who could write to it have ended

    def _read(self) -> bool:
        """Read once; False if there is nothing."""
        try:
            content = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        self.take(content)
        return bool(content)

    def take(self, content: bytes) -> None:
        """Log the lines that are whole now."""
        *lines, rest = (self._rest + content).split(b"\n")
        for line in lines:
            if not self._skips:
                self._say(line)
            self._skips = False
        if len(rest) > MOST_BYTES:
            if not self._skips:
                self._say(rest)
            self._skips, rest = True, b""
        self._rest = rest

    def _say(self, line: bytes) -> None:
        text = printable(line[:MOST_BYTES].decode("utf-8", "replace").rstrip())
        if not text:
            return
        self.lacks_memory = self.lacks_memory or "std::bad_alloc" in text or "MemoryError" in text
        if (found := _CORE.match(text)) is not None:
            level, place, said = found.groups()
            self._log.log(_LEVELS[level], "%s: %s", place, said, key=place)
        else:
            self._log.warning("%s", text)
