"""How the program logs: lines for people, or JSON for collectors; to standard error."""

from __future__ import annotations

import logging
import sys
import time

import orjson

_NOISY = ("aiohttp.access", "asyncio")


class _JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message and, where there is one, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # What is not valid Unicode (file names can be anything) would be refused by JSON: show it escaped.
        safe = {key: str(value).encode("utf-8", "backslashreplace").decode() for key, value in entry.items()}
        return orjson.dumps(safe).decode()


def set_up(level: str, form: str) -> None:
    """`level` as in logging's names, any case; `form` is `text` or `json`."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
