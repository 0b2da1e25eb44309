"""What an action prints, line by line: to the agent's log, to the server, and the last of it for a failure message.

The log is what the machine's console and the OSIE's syslog show. Runtimes feed an `Output` with bytes as they come; it
hands each line to the sink of its context as well, where `sender` gathers them for the server.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextvars import ContextVar

from tink.printable import printable

log = logging.getLogger(__name__)

TAIL_LIMIT_BYTES = 2048
LINE_LIMIT_BYTES = 4096
LINES_PER_SECOND = 100
"""More than that is counted, not logged: a serial console carries about as much."""

LineSink = Callable[[str], None]
"""Takes one line of an action's output. Must neither block nor raise."""

line_sink: ContextVar[LineSink | None] = ContextVar("line_sink", default=None)
"""Where an `Output` made in this context hands its lines to, beside the log: `agent` knows whose they are, a runtime
need not."""


class Output:
    """The output of one action: logged by line under the action's `name`; `tail` is the last of it.

    A carriage return ends a line too, as progress bars use it. Lines are cut at 4 KiB.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._sink = line_sink.get()
        self._partial = b""
        self._tail = bytearray()
        self._window = 0.0
        self._logged = 0
        self._dropped = 0

    @property
    def tail(self) -> str:
        """The last lines, at most 2 KiB."""
        return self._tail.decode(errors="replace").strip()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes that the action wrote."""
        *lines, self._partial = re.split(rb"\r\n|\n|\r", self._partial + chunk)
        for line in lines:
            self._line(line)
        while len(self._partial) > LINE_LIMIT_BYTES:
            self._line(self._partial[:LINE_LIMIT_BYTES])
            self._partial = self._partial[LINE_LIMIT_BYTES:]

    def finish(self) -> None:
        """There is no more."""
        self._line(self._partial)
        self._partial = b""
        self._report_dropped()

    def _line(self, line: bytes) -> None:
        text = line[:LINE_LIMIT_BYTES].decode(errors="replace").strip()
        if not text:
            return
        self._tail += text.encode() + b"\n"
        del self._tail[:-TAIL_LIMIT_BYTES]
        if self._sink is not None:
            self._sink(text)
        now = self._clock()
        if now - self._window >= 1.0:
            self._report_dropped()
            self._window, self._logged = now, 0
        if self._logged >= LINES_PER_SECOND:
            self._dropped += 1
            return
        self._logged += 1
        log.info("%s: %s", self._name, printable(text, keep="\t"))

    def _report_dropped(self) -> None:
        if self._dropped:
            log.info("%s: (%d more lines in that second)", self._name, self._dropped)
            self._dropped = 0
