"""What actions print, on its way to the server, where an operator follows the machine.

`lines.Output` hands every line over as it comes (`action` says whose it is); `run` sends what has gathered, and never
holds an action up. It is for looking at, not for keeping: the newest lines are sent, the ones that have no room are
counted, and the server is told how many they were. The last lines of an action that failed go with its event, whatever
becomes of these. The event that an action has ended waits for its last piece, two seconds at most, so that whoever
reads along sees both in their order; the next action does not wait.

An action's first piece leaves a second after its first line, the next when another tenth of the action's time has
passed (at least a second, at most a minute), the last when it has ended. So an action of a minute has up to 29 pieces,
one of ten minutes 53, and after the 99th only the last is left to be sent: a chatty action does not push the
machine's boot out of the 500 entries of its journey.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio

from proto import output_pb2 as pb
from proto.output_pb2_grpc import OutputServiceStub
from tink.agent.output.lines import line_sink

log = logging.getLogger(__name__)

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
