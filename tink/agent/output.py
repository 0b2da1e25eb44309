"""Handles what actions print: splits it into lines, shows progress, and sends it to the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from proto import output_pb2 as pb
from proto.output_pb2_grpc import OutputServiceStub
from tink.printable import printable

log = logging.getLogger(__name__)

# --- Lines ---
#
# The lines of an action: for the agent's log, for the server, and the last ones for a failure message.
#
# The log is shown on the machine's console and sent to the OSIE's syslog. Runtimes feed an `Output` with bytes; it also
# passes each line to the sink of its context, where an OutputSender collects them for the server.


MAX_TAIL_BYTES = 2048
MAX_LINE_BYTES = 4096
LINES_PER_SECOND = 100
"""Further lines are counted and not logged: a serial console carries about this many."""

LineSink = Callable[[str], None]
"""Receives one line of an action's output. Must neither block nor raise."""

line_sink: ContextVar[LineSink | None] = ContextVar("line_sink", default=None)
"""The sink of each `Output` that is created in this context, so that a runtime need not know the workflow."""


class Output:
    """The output of one action: logged by line under the action's `name`; `tail` is its end.

    A carriage return also ends a line, as progress bars use it. Lines are cut at 4 KiB.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._sink = line_sink.get()
        self._partial = b""
        self._tail = bytearray()
        self._window = 0.0
        self._logged = 0
        self._dropped = 0

    @property
    def tail(self) -> str:
        """Return the last lines, at most 2 KiB."""
        return self._tail.decode(errors="replace").strip()

    def feed(self, chunk: bytes) -> None:
        """Log the next bytes that the action wrote."""
        *lines, self._partial = re.split(rb"\r\n|\n|\r", self._partial + chunk)
        for line in lines:
            self._line(line)
        while len(self._partial) > MAX_LINE_BYTES:
            self._line(self._partial[:MAX_LINE_BYTES])
            self._partial = self._partial[MAX_LINE_BYTES:]

    def finish(self) -> None:
        """Log the last, unfinished line."""
        self._line(self._partial)
        self._partial = b""
        self._report_dropped()

    def _line(self, line: bytes) -> None:
        text = line[:MAX_LINE_BYTES].decode(errors="replace").strip()
        if not text:
            return
        self._tail += text.encode() + b"\n"
        del self._tail[:-MAX_TAIL_BYTES]
        if self._sink is not None:
            self._sink(text)
        now = self._clock()
        if now - self._window >= 1.0:
            self._report_dropped()
            self._window, self._logged = now, 0
        if self._logged >= LINES_PER_SECOND:
            self._dropped += 1
            return
        self._logged += 1
        log.info("%s: %s", self._name, printable(text, keep="\t"))

    def _report_dropped(self) -> None:
        if self._dropped:
            log.info("%s: (%d more lines in that second)", self._name, self._dropped)
            self._dropped = 0


# --- Progress ---
#
# Progress of pulling an image, in lines at a limited rate, as part of the action's output.
#
# `images.store` counts the bytes itself, `runtimes.docker` gets them from the engine. The lines go to the agent's log
# and, through `line_sink`, to the server.


PROGRESS_SECONDS = 2.0
MAX_NOTES_PER_PULL = 50
SILENT_SECONDS = (5.0, 20.0, 60.0)
"""Seconds of silence after which a registry is reported; then again after each further period of the last length."""
_LOOK_SECONDS = 1.0


def thread_safe_sink() -> LineSink:
    """Return a sink that any thread may call for the current action. Call this function in the event loop."""
    loop, sink = asyncio.get_running_loop(), line_sink.get()

    def report(text: str) -> None:
        log.info("%s", text)
        if sink is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: an abandoned pull may end late
                loop.call_soon_threadsafe(sink, text)

    return report


class PullProgress:
    """Reports the pull of `image` to `sink`: bytes every two seconds at most, and at most 50 notes."""

    def __init__(self, image: str, sink: LineSink, clock: Callable[[], float] = time.monotonic) -> None:
        self._image = image
        self._sink = sink
        self._clock = clock
        self._next = 0.0
        self._done = -1
        self._notes = 0
        self._waits_for = ""
        self._since = 0.0
        self._silences = 0

    def waits_for(self, registry: str) -> None:
        """Note that data is expected from this registry; empty: none is, because the image is being unpacked."""
        self._waits_for, self._since, self._silences = registry, self._clock(), 0

    async def report_silences(self) -> None:
        """Report silences of the registry until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Report a silence if one is due."""
        silent = self._clock() - self._since
        beyond = max(0, self._silences - len(SILENT_SECONDS) + 1)
        due = SILENT_SECONDS[min(self._silences, len(SILENT_SECONDS) - 1)] + beyond * SILENT_SECONDS[-1]
        if self._waits_for and silent >= due:
            self._silences += 1
            self.note(f"{self._waits_for} has sent nothing for {silent:.0f} s")

    def bytes(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes of all layers have arrived."""
        if done != self._done:
            self._since, self._silences = self._clock(), 0
        if done == self._done or (self._clock() < self._next and done != total):
            return
        self._next, self._done = self._clock() + PROGRESS_SECONDS, done
        self._sink(f"image {self._image}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    def note(self, text: str) -> None:
        """Report a happening, such as a repeated transfer or a cached image."""
        self._notes += 1
        if self._notes <= MAX_NOTES_PER_PULL:
            self._sink(f"image {self._image}: {text}")


# --- Sending ---
#
# Sends the output of actions to the server, where an operator follows the machine.
#
# `Output` passes on every line (`action` sets the workflow and action). `run` sends the collected lines, and never
# delays an action. The output is for watching, not for storing: the newest lines are sent, and the lines that do not
# fit are counted and the count is sent. The last lines of a failed action are in its event anyway. The event of an
# action's end waits for the last piece of output, two seconds at most, so that a reader sees both in order; the next
# action does not wait.
#
# An action's first piece is sent a second after its first line, the next one when another tenth of the action's time
# has passed (at least a second, at most a minute), the last one after its end. So an action of one minute has up to 29
# pieces and one of ten minutes 53; after the 99th piece only the last one is sent. A chatty action then does not push
# the machine's boot out of the 500 entries of its journey.


MAX_LINE_CHARACTERS: Final = 400
MAX_PIECE_CHARACTERS: Final = 3600
MAX_PIECE_LINES: Final = 100
MAX_PIECES_PER_ACTION: Final = 100
MAX_ACTIONS_WAITING: Final = 8
"""Maximum number of actions with unsent output; the output of the oldest is dropped for the next."""
_TICK_SECONDS: Final = 0.001
"""A piece that is due within this time is sent now, because a timer may fire early."""


@dataclass(frozen=True, slots=True)
class OutputSchedule:
    """When output is sent, in seconds; `interval_share` is a fraction of the time since the action's first line."""

    min_interval: float = 1.0
    max_interval: float = 60.0
    interval_share: float = 0.1
    call_timeout: float = 15.0
    retry_delay: float = 10.0
    final_wait: float = 2.0
    """Maximum delay of an action's end event for its last piece of output."""


@dataclass(slots=True, eq=False)
class OutputBuffer:
    """The unsent lines of one action.

    `sent` completes soon after the action's end: when the server has all lines, or after a time limit.
    """

    workflow_id: str
    action_id: str
    sent: asyncio.Future[None]
    lines: deque[str] = field(default_factory=deque)
    characters: int = 0
    dropped: int = 0
    pieces: int = 0
    ended: bool = False
    first: float = 0.0
    due: float = 0.0

    def settle(self) -> None:
        """Complete `sent`."""
        if not self.sent.done():
            self.sent.set_result(None)

    @property
    def empty(self) -> bool:
        return not self.lines and not self.dropped

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.characters += len(line)
        while self.characters > MAX_PIECE_CHARACTERS or len(self.lines) > MAX_PIECE_LINES:
            self.characters -= len(self.lines.popleft())
            self.dropped += 1

    def take(self) -> pb.WriteOutputRequest:
        """Remove and return all lines as a message."""
        piece = pb.WriteOutputRequest(
            workflow_id=self.workflow_id, action_id=self.action_id, lines=self.lines, dropped=self.dropped
        )
        self.lines.clear()
        self.characters = self.dropped = 0
        return piece

    def put_back(self, piece: pb.WriteOutputRequest) -> None:
        """Put back a message that was not sent, before the newer lines."""
        newer = list(self.lines)
        self.lines.clear()
        self.characters, self.dropped = 0, self.dropped + piece.dropped
        for line in (*piece.lines, *newer):
            self.add(line)


class OutputSender:
    """Sends the output of actions through `channel`. `run` never returns; cancel it."""

    def __init__(self, channel: grpc.aio.Channel, schedule: OutputSchedule | None = None) -> None:
        self._stub = OutputServiceStub(channel)
        self._schedule = schedule or OutputSchedule()
        self._waiting: list[OutputBuffer] = []
        self._news = asyncio.Event()
        self._wanted = True

    @contextmanager
    def action(self, workflow_id: str, action_id: str) -> Iterator[OutputBuffer]:
        """Collect the lines that the current task's action prints while the context lasts."""
        loop = asyncio.get_running_loop()
        waiting = OutputBuffer(workflow_id, action_id, loop.create_future())
        token = line_sink.set(lambda line: self._take(waiting, line))
        try:
            yield waiting
        finally:
            line_sink.reset(token)
            waiting.ended = True
            if waiting in self._waiting:
                self._news.set()
                loop.call_later(self._schedule.final_wait, waiting.settle)
            else:
                waiting.settle()

    async def run(self) -> None:
        """Send the collected lines when they are due."""
        while True:
            self._news.clear()
            self._forget(lambda waiting: waiting.ended and waiting.empty)
            due = [waiting.due if not waiting.ended else 0.0 for waiting in self._waiting if not waiting.empty]
            delay = min(due, default=float("inf")) - asyncio.get_running_loop().time()
            if delay <= _TICK_SECONDS:
                await self._send()
                continue
            try:
                async with asyncio.timeout(delay if due else None):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _forget(self, over: Callable[[OutputBuffer], bool]) -> None:
        for waiting in self._waiting:
            if over(waiting):
                waiting.settle()
        self._waiting = [waiting for waiting in self._waiting if not over(waiting)]

    def _take(self, waiting: OutputBuffer, line: str) -> None:
        if not self._wanted:
            return
        if waiting not in self._waiting:
            if not waiting.first:
                waiting.first = asyncio.get_running_loop().time()
                waiting.due = waiting.first + self._schedule.min_interval
            if len(self._waiting) >= MAX_ACTIONS_WAITING:
                oldest = self._waiting.pop(0)
                oldest.settle()
                log.warning("the output of action %s of workflow %s is dropped", oldest.action_id, oldest.workflow_id)
            self._waiting.append(waiting)
        if waiting.empty:
            self._news.set()
        waiting.add(line[:MAX_LINE_CHARACTERS])

    async def _send(self) -> None:
        """Send the pieces that are due with one call."""
        now = asyncio.get_running_loop().time()
        soon = now + _TICK_SECONDS
        due = [each for each in self._waiting if not each.empty and (each.ended or each.due <= soon)]
        pieces = [waiting.take() for waiting in due]
        for waiting in due:
            waiting.pieces += 1
            interval = (now - waiting.first) * self._schedule.interval_share
            waiting.due = now + min(max(interval, self._schedule.min_interval), self._schedule.max_interval)
            if waiting.pieces >= MAX_PIECES_PER_ACTION - 1:
                waiting.due = float("inf")
        try:
            await self._stub.WriteOutput(iter(pieces), timeout=self._schedule.call_timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                log.info("the server does not take the output of actions; it is in this log only")
                self._wanted = False
                self._forget(lambda _: True)
                return
            log.debug("output not delivered: %s: %s", error.code().name, error.details())
            if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
                return  # the server will never accept it: the workflow is gone
            for waiting, piece in zip(due, pieces, strict=True):
                waiting.put_back(piece)
            await asyncio.sleep(self._schedule.retry_delay)
