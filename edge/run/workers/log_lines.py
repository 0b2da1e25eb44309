"""The log of a worker: its lines go to the main process, which writes them as its own."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Final, Self

from edge.run.workers.channel import Channel
from edge.run.workers.messages import LogLine

WAITING_BYTES: Final = 4 << 20
_NOISY: Final = ("aiohttp.access", "asyncio")
_FORMATTER: Final = logging.Formatter()


class LogLines(logging.Handler):
    """The only handler of the root logger, while it is entered. Any thread may log."""

    def __init__(self, channel: Channel, level: int) -> None:
        super().__init__()
        self._channel = channel
        self._level = level
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        root = logging.getLogger()
        root.handlers[:] = [self]
        root.setLevel(self._level)
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger().handlers[:] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line on; none, if the main process does not take them."""
        trace = _FORMATTER.formatException(record.exc_info) if record.exc_info else ""
        fields = getattr(record, "fields", {})
        line = LogLine(record.name, record.levelno, record.getMessage(), fields, trace)
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._send(line)
        else:
            self._loop.call_soon_threadsafe(self._send, line)

    def _send(self, line: LogLine) -> None:
        if self._channel.waiting_bytes < WAITING_BYTES:
            self._channel.send(line, can_wait=line.level < logging.WARNING)
