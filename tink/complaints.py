"""Warnings at a bounded rate: thousands of Workflows in the same trouble must not fill the log."""

from __future__ import annotations

import logging
from collections.abc import Callable


class Complaints:
    """Passes `most` lines in `seconds`; the next line that passes says how many did not."""

    def __init__(
        self, log: logging.Logger, clock: Callable[[], float], *, most: int = 20, seconds: float = 10.0
    ) -> None:
        self._log = log
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._since = clock()
        self._passed = 0
        self._withheld = 0

    def warn(self, message: str, *args: object, level: int = logging.WARNING, exc_info: bool = False) -> None:
        """Log a line, unless there were enough already."""
        now = self._clock()
        if now - self._since >= self._seconds:
            if self._withheld:
                self._log.warning("%d more lines like the last ones were left out", self._withheld)
            self._since, self._passed, self._withheld = now, 0, 0
        if self._passed >= self._most:
            self._withheld += 1
            return
        self._passed += 1
        self._log.log(level, message, *args, exc_info=exc_info)
