"""Warnings at a bounded rate: thousands of Workflows in the same trouble must not fill the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable

_SHARE = 4
"""The part of the lines that one may have, of those that are told apart: a quarter."""


class Complaints:
    """Passes `most` lines in `seconds`, a quarter of them of one owner; the next line that passes says how many did
    not."""

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
        self._of: Counter[Hashable] = Counter()

    def warn(
        self,
        message: str,
        *args: object,
        level: int = logging.WARNING,
        exc_info: bool = False,
        whose: Hashable = None,
    ) -> None:
        """Log a line, unless there were enough already; `whose` it is: a namespace's, say."""
        now = self._clock()
        if now - self._since >= self._seconds:
            if self._withheld:
                self._log.warning("%d more lines like the last ones were left out", self._withheld)
            self._since, self._passed, self._withheld = now, 0, 0
            self._of.clear()
        if self._passed >= self._most or (whose is not None and self._of[whose] >= max(1, self._most // _SHARE)):
            self._withheld += 1
            return
        self._passed += 1
        if whose is not None:
            self._of[whose] += 1
        self._log.log(level, message, *args, exc_info=exc_info)
