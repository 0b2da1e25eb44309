"""What is wrong with requests, in the log: each once a minute, however often it is repeated.

A controller that repeats a bad request every second, or a scanner that sends what is no HTTP, should be heard of, and
should not fill the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tink.limits.log import LimitedLog

INTERVAL_SECONDS = 60.0
"""How long the same is not told again."""
CAPACITY = 200
"""Most different lines in that time; of more it only says how many there were."""
STRANGERS = 20
"""As many about requests without a good token."""


class RequestLog:
    """Writes what is wrong with requests to a log. `clock` gives seconds."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = LimitedLog(log, clock, capacity=CAPACITY, interval=INTERVAL_SECONDS)
        # Of their own: strangers must not crowd out what users are told of.
        self._strangers = LimitedLog(log, clock, capacity=STRANGERS, interval=INTERVAL_SECONDS)

    def refused(self, method: str, path: str, what: str) -> None:
        """Write one line, unless the same was written within the last minute."""
        self._log.log(logging.INFO, "%s %s: %s", method, path, what, key=(method, path, what))

    def unauthorized(self, address: str, message: str) -> None:
        """Somebody has no token, or a wrong one: a line for each address now and then."""
        what = message.removeprefix("Unauthorized").removeprefix(": ") or "no token, or one that is not known"
        self._strangers.log(logging.INFO, "%s: 401 Unauthorized: %s", address, what, key=(address, what))


class NotHttp(logging.Filter):
    """Turns the stack traces of aiohttp about what is no HTTP into one line now and then."""

    def __init__(self, requests: RequestLog) -> None:
        super().__init__()
        self._requests = requests

    def filter(self, record: logging.LogRecord) -> bool:
        """Let faults of the server pass, and nothing else."""
        error = record.exc_info[1] if record.exc_info else None
        if type(error).__module__ != "aiohttp.http_exceptions":
            return True
        self._requests.refused("?", "?", f"a client sends what is no HTTP: {type(error).__name__}")
        return False


def http_logger(requests: RequestLog) -> logging.Logger:
    """Give the logger that aiohttp's server is to write to."""
    logger = logging.getLogger("tink.apiserver.http")
    for old in [one for one in logger.filters if isinstance(one, NotHttp)]:
        logger.removeFilter(old)
    logger.addFilter(NotHttp(requests))
    return logger
