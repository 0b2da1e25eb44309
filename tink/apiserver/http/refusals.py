"""The log's share of what clients do wrong: each refusal is told once a minute, however often it is repeated.

A controller that repeats a bad request every second, or a scanner that sends what is no HTTP, should be heard of, and
should not fill the disk. The clock is an argument.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

INTERVAL_S = 60.0
"""How long the same refusal is not told again, in seconds."""
CAPACITY = 200
"""Most different refusals told in that time; of more it only says that there are."""


class Refusals:
    """Writes refusals to a log."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[Hashable, float] = {}

    def tell(self, method: str, path: str, what: str) -> None:
        """Write one line, unless the same was written within the last minute."""
        if self._is_due((method, path, what)):
            self._log.info("%s %s: %s", method, path, what)

    def _is_due(self, key: Hashable) -> bool:
        now = self._clock()
        while self._told and now - self._told[oldest := next(iter(self._told))] >= INTERVAL_S:
            del self._told[oldest]
        if key in self._told:
            return False
        if len(self._told) >= CAPACITY:
            if None not in self._told:
                self._told[None] = now
                self._log.info("more requests are refused than the log tells of")
            return False
        self._told[key] = now
        return True


class NoHttp(logging.Filter):
    """Turns the stack traces of aiohttp about what is no HTTP into one line now and then."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self._refusals = refusals

    def filter(self, record: logging.LogRecord) -> bool:
        """Let faults of the server pass, and nothing else."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__ != "aiohttp.http_exceptions":
            return True
        self._refusals.tell("?", "?", f"a client sends what is no HTTP: {type(error).__name__}")
        return False


def http_logger(refusals: Refusals) -> logging.Logger:
    """Give the logger that aiohttp's server is to write to."""
    logger = logging.getLogger("tink.apiserver.http")
    for old in [one for one in logger.filters if isinstance(one, NoHttp)]:
        logger.removeFilter(old)
    logger.addFilter(NoHttp(refusals))
    return logger
