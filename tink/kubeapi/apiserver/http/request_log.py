"""What is wrong with requests, in the log: each once a minute, however often it is repeated.

A controller that repeats a bad request every second, or a scanner that sends what is no HTTP, should be heard of, and
should not fill the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from ipaddress import IPv6Network, ip_address

from tink.limits.log import LimitedLog

INTERVAL_SECONDS = 60.0
"""How long the same is not told again."""
CAPACITY = 200
"""Most different lines in that time; of more it only says how many there were."""
SHARE = 50
"""Maximum number of these lines about requests of one user."""
STRANGERS = 20
STRANGERS_SHARE = 5
"""Maximum number of lines about requests without a valid token: in all, and from one address (IPv6: a /64 network)."""
FAULTS = 10
"""Maximum number of stack traces of this server's own faults, which a client could cause again and again."""
MAX_PATH = 500
"""Maximum number of logged characters of a path."""


class RequestLog:
    """Writes what is wrong with requests to a log. `clock` gives seconds."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = LimitedLog(log, clock, capacity=CAPACITY, interval=INTERVAL_SECONDS, share=SHARE)
        # A separate budget: unauthenticated clients must not suppress the lines about users.
        self._strangers = LimitedLog(log, clock, capacity=STRANGERS, interval=INTERVAL_SECONDS, share=STRANGERS_SHARE)
        self._faults = LimitedLog(log, clock, capacity=FAULTS, interval=INTERVAL_SECONDS)

    def refused(self, method: str, path: str, what: str, user: str = "") -> None:
        """Log a request of `user`, unless the same line was logged within the last minute."""
        path = path[:MAX_PATH]
        self._log.log(logging.INFO, "%s %s: %s", method, path, what, key=(method, path, what), owner=user or None)

    def failed(self, method: str, path: str) -> None:
        """Log the stack trace of the exception that is being handled: a fault of this server."""
        self._faults.log(logging.ERROR, "%s %s: a fault of this server", method, path[:MAX_PATH], exc_info=True)

    def unauthorized(self, address: str, message: str) -> None:
        """Somebody has no token, or a wrong one: a line for each address now and then."""
        what = message.removeprefix("Unauthorized").removeprefix(": ") or "no token, or one that is not known"
        line = "%s: 401 Unauthorized: %s"
        self._strangers.log(logging.INFO, line, address, what, key=(address, what), owner=_network(address))


def _network(address: str) -> str:
    """Return the unit that one unauthenticated client controls: an IPv4 address, or an IPv6 /64 network."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return address if found.version == 4 else str(IPv6Network((int(found) >> 64 << 64, 64)))


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
    logger = logging.getLogger("tink.kubeapi.apiserver.http")
    for old in [one for one in logger.filters if isinstance(one, NotHttp)]:
        logger.removeFilter(old)
    logger.addFilter(NotHttp(requests))
    return logger
