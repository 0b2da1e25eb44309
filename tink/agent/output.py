"""What actions print: split into lines, shown as progress, and sent to the server."""

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
# What an action prints, line by line: to the agent's log, to the server, and the last of it for a failure message.
#
# The log is what the machine's console and the OSIE's syslog show. Runtimes feed an `Output` with bytes as they come;
# it hands each line to the sink of its context as well, where `sender` gathers them for the server.


TAIL_LIMIT_BYTES = 2048
LINE_LIMIT_BYTES = 4096
LINES_PER_SECOND = 100
"""More than that is counted, not logged: a serial console carries about as much."""

LineSink = Callable[[str], None]
"""Takes one line of an action's output. Must neither block nor raise."""

line_sink: ContextVar[LineSink | None] = ContextVar("line_sink", default=None)
"""Where an `Output` made in this context hands its lines to, beside the log: `agent` knows whose they are, a runtime
need not."""


class Output:
    """The output of one action: logged by line under the action's `name`; `tail` is the last of it.

    A carriage return ends a line too, as progress bars use it. Lines are cut at 4 KiB.
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
        """The last lines, at most 2 KiB."""
        return self._tail.decode(errors="replace").strip()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes that the action wrote."""
        *lines, self._partial = re.split(rb"\r\n|\n|\r", self._partial + chunk)
        for line in lines:
            self._line(line)
        while len(self._partial) > LINE_LIMIT_BYTES:
            self._line(self._partial[:LINE_LIMIT_BYTES])
            self._partial = self._partial[LINE_LIMIT_BYTES:]

    def finish(self) -> None:
        """There is no more."""
        self._line(self._partial)
        self._partial = b""
        self._report_dropped()

    def _line(self, line: bytes) -> None:
        text = line[:LINE_LIMIT_BYTES].decode(errors="replace").strip()
        if not text:
            return
        self._tail += text.encode() + b"\n"
        del self._tail[:-TAIL_LIMIT_BYTES]
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
# How far the pull of an image is, in lines at a bounded rate, for the action's output.
#
# `images.store` counts the bytes itself, `runtimes.docker` learns them from the engine. Lines go where the action's own
# output goes: to the agent's log and, by `lines.line_sink`, to the server.


PROGRESS_SECONDS = 2.0
NOTES_PER_PULL = 50
SILENT_SECONDS = (5.0, 20.0, 60.0)
"""After how long a silence of the registry it is told; then each time the last of them has gone by."""
_LOOK_SECONDS = 1.0


def thread_safe_sink() -> LineSink:
    """Adds lines to the output of the action that the caller pulls for. Call it in the event loop."""
    loop, sink = asyncio.get_running_loop(), line_sink.get()

    def say(text: str) -> None:
        log.info("%s", text)
        if sink is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: a pull that was given up on ends late
                loop.call_soon_threadsafe(sink, text)

    return say


class PullProgress:
    """Tells `sink` of the pull of `image`: of bytes every two seconds at most, of what happens at most 50 times."""

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
        """From now on, something of it is to come from this registry; empty: nothing is, for what came is unpacked."""
        self._waits_for, self._since, self._silences = registry, self._clock(), 0

    async def tell_silences(self) -> None:
        """Tell when nothing comes although something is to come, until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Whether there is a silence to tell of."""
        silent = self._clock() - self._since
        beyond = max(0, self._silences - len(SILENT_SECONDS) + 1)
        due = SILENT_SECONDS[min(self._silences, len(SILENT_SECONDS) - 1)] + beyond * SILENT_SECONDS[-1]
        if self._waits_for and silent >= due:
            self._silences += 1
            self.note(f"{self._waits_for} has sent nothing for {silent:.0f} s")

    def bytes(self, done: int, total: int) -> None:
        """`done` of `total` bytes of all layers are here."""
        if done != self._done:
            self._since, self._silences = self._clock(), 0
        if done == self._done or (self._clock() < self._next and done != total):
            return
        self._next, self._done = self._clock() + PROGRESS_SECONDS, done
        self._sink(f"image {self._image}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    def note(self, text: str) -> None:
        """Something happened: a transfer is tried again, the image was here already."""
        self._notes += 1
        if self._notes <= NOTES_PER_PULL:
            self._sink(f"image {self._image}: {text}")


# --- Sending ---
#
# What actions print, on its way to the server, where an operator follows the machine.
#
# `lines.Output` hands every line over as it comes (`action` says whose it is); `run` sends what has gathered, and never
# holds an action up. It is for looking at, not for keeping: the newest lines are sent, the ones that have no room are
# counted, and the server is told how many they were. The last lines of an action that failed go with its event,
# whatever becomes of these. The event that an action has ended waits for its last piece, two seconds at most, so that
# whoever reads along sees both in their order; the next action does not wait.
#
# An action's first piece leaves a second after its first line, the next when another tenth of the action's time has
# passed (at least a second, at most a minute), the last when it has ended. So an action of a minute has up to 29
# pieces, one of ten minutes 53, and after the 99th only the last is left to be sent: a chatty action does not push the
# machine's boot out of the 500 entries of its journey.


LINE_CHARACTERS: Final = 400
PIECE_CHARACTERS: Final = 3600
PIECE_LINES: Final = 100
PIECES_PER_ACTION: Final = 100
ACTIONS_WAITING: Final = 8
"""Actions whose output waits for the server; that of the oldest is dropped for the ninth."""
_TICK_SECONDS: Final = 0.001
"""A piece that is due so soon is sent now: a timer may fire a little early."""


@dataclass(frozen=True, slots=True)
class OutputSchedule:
    """When output is sent; all in seconds, but `interval_share`: of the time since the action's first line."""

    min_interval: float = 1.0
    max_interval: float = 60.0
    interval_share: float = 0.1
    call_timeout: float = 15.0
    retry_delay: float = 10.0
    final_wait: float = 2.0
    """How long the end of an action is not told for its last piece's sake."""


@dataclass(slots=True, eq=False)
class OutputBuffer:
    """The lines of one action that wait to be sent. `sent` is done soon after the action's end: when the server has
    them all, or will not have them in time."""

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
        """Nobody has to wait for them any more."""
        if not self.sent.done():
            self.sent.set_result(None)

    @property
    def empty(self) -> bool:
        return not self.lines and not self.dropped

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.characters += len(line)
        while self.characters > PIECE_CHARACTERS or len(self.lines) > PIECE_LINES:
            self.characters -= len(self.lines.popleft())
            self.dropped += 1

    def take(self) -> pb.WriteOutputRequest:
        """All of it, as the message that sends it."""
        piece = pb.WriteOutputRequest(
            workflow_id=self.workflow_id, action_id=self.action_id, lines=self.lines, dropped=self.dropped
        )
        self.lines.clear()
        self.characters = self.dropped = 0
        return piece

    def put_back(self, piece: pb.WriteOutputRequest) -> None:
        """`piece` was not taken: it is older than what waits now."""
        newer = list(self.lines)
        self.lines.clear()
        self.characters, self.dropped = 0, self.dropped + piece.dropped
        for line in (*piece.lines, *newer):
            self.add(line)


class OutputSender:
    """Sends the output of actions through `channel`. `run` goes on for ever, until it is cancelled."""

    def __init__(self, channel: grpc.aio.Channel, schedule: OutputSchedule | None = None) -> None:
        self._stub = OutputServiceStub(channel)
        self._schedule = schedule or OutputSchedule()
        self._waiting: list[OutputBuffer] = []
        self._news = asyncio.Event()
        self._wanted = True

    @contextmanager
    def action(self, workflow_id: str, action_id: str) -> Iterator[OutputBuffer]:
        """While this lasts, the lines that the current task's action prints are this action's."""
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
        """Send what there is, when it is time."""
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
            self._begin(waiting)
        if waiting.empty:
            self._news.set()
        waiting.add(line[:LINE_CHARACTERS])

    def _begin(self, waiting: OutputBuffer) -> None:
        if not waiting.first:
            waiting.first = asyncio.get_running_loop().time()
            waiting.due = waiting.first + self._schedule.min_interval
        if len(self._waiting) >= ACTIONS_WAITING:
            oldest = self._waiting.pop(0)
            oldest.settle()
            log.warning("the output of action %s of workflow %s is dropped", oldest.action_id, oldest.workflow_id)
        self._waiting.append(waiting)

    async def _send(self) -> None:
        """One call with the pieces that are due."""
        now = asyncio.get_running_loop().time()
        due = [
            waiting
            for waiting in self._waiting
            if not waiting.empty and (waiting.ended or waiting.due <= now + _TICK_SECONDS)
        ]
        pieces = [waiting.take() for waiting in due]
        for waiting in due:
            waiting.pieces += 1
            interval = (now - waiting.first) * self._schedule.interval_share
            waiting.due = now + min(max(interval, self._schedule.min_interval), self._schedule.max_interval)
            if waiting.pieces >= PIECES_PER_ACTION - 1:
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
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT or error.code() is grpc.StatusCode.NOT_FOUND:
                return  # it will never be taken: the workflow is gone
            for waiting, piece in zip(due, pieces, strict=True):
                waiting.put_back(piece)
            await asyncio.sleep(self._schedule.retry_delay)
