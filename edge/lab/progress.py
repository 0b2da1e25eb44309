"""Whether a machine gets on, between one step of its journey and the next: by what it loads and what it shows.

A slow host may take minutes to load a kernel or to start it; that is no reason to give up. A machine that asks the same
again and again does not get on: small packets do not count, nor do lines that it has shown before.
"""

from __future__ import annotations

import re
from pathlib import Path

_COUNTED_BYTES = 64 * 1024
"""So many bytes to the machine are more than a DHCP server, router advertisements and a script send within minutes."""

_SHOWN_BYTES = 1 << 20
_CHANGING = re.compile(rb"[\d.:]+|\x1b\[[0-9;?=]*[A-Za-z]")
"""What differs in a line that says the same again: dots, counters, cursor movements (ECMA-48)."""


class Progress:
    """Of one machine; `counters` is a file in the form of /proc/net/dev (proc(5)), `tap` the machine's line in it."""

    def __init__(self, screen: Path, tap: str, counters: Path = Path("/proc/thread-self/net/dev")) -> None:
        self._screen = screen
        self._tap = tap
        self._counters = counters
        self._served = 0
        self._read = 0
        self._shown: set[bytes] = set()

    def made(self) -> bool:
        """Whether there was any since the last call."""
        # Both, each time: what one has seen is not to count again later.
        loaded, showed = self._loaded(), self._showed()
        return loaded or showed

    def _loaded(self) -> bool:
        served = self.bytes_sent()
        if served - self._served < _COUNTED_BYTES:
            return False
        self._served = served
        return True

    def bytes_sent(self) -> int:
        """What the machine was sent since it was switched on: nearly all of it is downloads."""
        for line in self._counters.read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == self._tap:
                return int(numbers.split()[8])
        return 0

    def _showed(self) -> bool:
        with self._screen.open("rb") as screen:
            screen.seek(self._read)
            text = screen.read(_SHOWN_BYTES)
        whole, newline, _ = text.rpartition(b"\n")
        self._read += len(whole) + len(newline)
        if len(text) == _SHOWN_BYTES and not newline:
            self._read += len(text)
        lines = {_CHANGING.sub(b"", line).strip() for line in re.split(rb"[\r\n]", whole)} - {b""}
        new = lines - self._shown
        self._shown |= new
        return bool(new)
