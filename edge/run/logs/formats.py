"""What a line of the log is: for people, for the journal, or JSON for collectors.

A record may carry `fields` (`extra={"fields": {...}}`), which JSON lines have beside the message, and the journal as
fields of its own (`edge.run.logs.journal`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import orjson

from tink.printable import escaped

PRIORITIES: Final = ("<7>", "<7>", "<6>", "<4>", "<3>", "<2>")
"""Those of syslog, by a tenth of the level: debug, info, warning, err, crit."""

_INDENT: Final = "    "
_NO_FIELDS: Final[dict[str, Any]] = {}


class _Seconds:
    """A second as text, made once for all the lines of that second."""

    def __init__(self, form: str, zone: Callable[[float], time.struct_time]) -> None:
        self._form, self._zone = form, zone
        self._second, self._text = -1, ""

    def text(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._text = second, time.strftime(self._form, self._zone(second))
        return self._text


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO    edge.journey: message`, in local time."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%d %H:%M:%S", time.localtime)

    def format(self, record: logging.LogRecord) -> str:
        date = self._seconds.text(record)
        return f"{date},{int(record.msecs):03d} {record.levelname:<7} " + "\n".join(lines_of(record, self))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the record's fields, the exception where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = _Seconds("%Y-%m-%dT%H:%M:%S", time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": f"{self._seconds.text(record)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in getattr(record, "fields", _NO_FIELDS).items():
            entry.setdefault(name, value)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(entry).decode()
        except TypeError:
            # What is not valid Unicode (file names can be anything) is refused by JSON: show it escaped.
            return orjson.dumps(_safe(entry)).decode()


def lines_of(record: logging.LogRecord, form: logging.Formatter) -> list[str]:
    """Return logger and message in one line, then the indented lines of an exception and a stack.

    A client may control the text of an exception. Without the indent, a line break in it would forge a log line.
    """
    traces = [form.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        traces.append(record.stack_info)
    rest = [_INDENT + escaped(line) for trace in traces for line in trace.splitlines()]
    return [f"{record.name}: {escaped(record.getMessage())}", *rest]


def _safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {_safe(str(key)): _safe(entry) for key, entry in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if isinstance(value, int | float | None) else _safe(str(value))


class JournalFormatter(logging.Formatter):
    """A line for the journal, which has the time itself: `<4>edge.journey: message`, with sd-daemon(3)'s priority.

    Each line of an exception has the priority, for each is an entry of its own.
    """

    def __init__(self, form: logging.Formatter | None = None) -> None:
        """`form` makes the rest of the line; None: logger and message."""
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        prefix = PRIORITIES[min(record.levelno // 10, 5)]
        if self._form is not None:
            return prefix + self._form.format(record)
        return "\n".join(prefix + line for line in lines_of(record, self))
