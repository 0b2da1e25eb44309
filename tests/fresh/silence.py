"""Listen to a command as its user does, and measure how long it says nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Silence:
    """A pause in the output: no line for `seconds`, from `began` (seconds since the start), between two lines."""

    seconds: float
    began: float
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.seconds:5.1f} s of silence at {self.began:.0f} s, after {self.before!r}, until {self.after!r}"


@dataclass(slots=True)
class Listener:
    """Hears pieces of output with the time at which they came (seconds, any clock that does not jump)."""

    began: float
    silences: list[Silence] = field(default_factory=list)
    _last: float = 0.0
    _said: str = "the start"

    def __post_init__(self) -> None:
        self._last = self.began

    def record(self, text: str, now: float) -> None:
        """`text` came at `now`; progress that is rewritten in place (carriage returns) counts, as it does for eyes."""
        lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
        first, last = (lines[0], lines[-1]) if lines else ("", self._said)
        self.silences.append(Silence(now - self._last, self._last - self.began, self._said, first))
        self._last, self._said = now, last

    def longest(self, count: int) -> list[Silence]:
        """The longest ones, longest first."""
        return sorted(self.silences, key=lambda one: -one.seconds)[:count]


@dataclass(frozen=True, slots=True)
class Run:
    """The run of a command: its exit status, seconds on the clock and of processors, and its silences."""

    status: int
    seconds: float
    processor_seconds: float
    listener: Listener


def listen(command: Sequence[str], say: Callable[[str], None], *, terminal: bool = False) -> Run:
    """Run `command` and give its output to `say` as it comes: through a pipe or, with `terminal`, a terminal.

    Processor time is that of the command and of all below it that was waited for (wait4(2)). Raises OSError if it can't
    be started.
    """
    reading, writing = pty.openpty() if terminal else os.pipe()
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing)
    os.close(writing)
    listener = Listener(began)
    try:
        while chunk := _read(reading):
            text = chunk.decode("utf-8", "replace")
            listener.record(text, time.monotonic())
            say(text)
    finally:
        os.close(reading)
    _, status, used = os.wait4(process.pid, 0)
    listener.record("the end", time.monotonic())
    process.returncode = os.waitstatus_to_exitcode(status)
    return Run(process.returncode, time.monotonic() - began, used.ru_utime + used.ru_stime, listener)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _READ_BYTES)
    except OSError:  # how a terminal ends (EIO)
        return b""
