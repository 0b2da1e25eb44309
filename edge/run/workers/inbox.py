"""What workers have seen, taken in by the main process: into its journey, its log and its other services.

Events are put in order before: those that have come in one turn of the event loop go by their time, for a machine may
have asked one worker after the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from edge.journey.events import Outcome, Recorder, Step
from edge.run.workers.messages import Connection, Event, Failure, LogLine, LogsWanted, Message, Said

if TYPE_CHECKING:
    from edge.run.workers.worker import Worker

Shared = Callable[["Said | Failure", "Worker"], None]
TakeOver = Callable[[socket.socket, bytes], None]
"""Goes on with a connection that has sent this."""


class Inbox:
    """Belongs to one event loop."""

    def __init__(self, record: Recorder, logs_wanted: Callable[[], None], take_over: TakeOver) -> None:
        """`logs_wanted()`: a machine was told to send its log lines; `take_over` takes connections of other edges."""
        self._record = record
        self._logs_wanted = logs_wanted
        self._take_over = take_over
        self._shared: Shared = lambda _message, _source: None
        self._events: list[Event] = []

    def on_shared(self, handler: Shared) -> None:
        """Call `handler` with what the other workers are to know."""
        self._shared = handler

    def heard(self, worker: Worker, message: Message, files: list[int]) -> None:
        """A worker has said this."""
        match message:
            case Event():
                if not self._events:
                    asyncio.get_running_loop().call_soon(self.flush)
                self._events.append(message)
            case LogLine():
                say(message)
            case Said() | Failure():
                self._shared(message, worker)
            case LogsWanted():
                self._logs_wanted()
            case Connection() if files:
                self._take_over(socket.socket(fileno=files.pop()), message.received.encode("latin-1"))
        for fd in files:
            os.close(fd)

    def flush(self) -> None:
        """Record what has come."""
        events, self._events = self._events, []
        for event in sorted(events, key=lambda event: event.at):
            self._record(event.mac, Step(event.step), Outcome(event.outcome), event.message, **event.detail)


def say(line: LogLine) -> None:
    """Log a line of another process in this process."""
    logger = logging.getLogger(line.logger)
    if logger.isEnabledFor(line.level):
        fields = line.fields | ({"exception": line.trace} if line.trace else {})
        record = logger.makeRecord(line.logger, line.level, "", 0, line.text, (), None, extra={"fields": fields})
        record.stack_info = line.trace or None
        logger.handle(record)
