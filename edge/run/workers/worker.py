"""One worker as the main process sees it: the process, the line to it, what it is told and what it has borrowed."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from edge.artifacts import ArtifactCache
from edge.machines import ReadSecret as SecretReader
from edge.run.workers.channel import Channel, pair
from edge.run.workers.feed import Feed
from edge.run.workers.lending import Lending
from edge.run.workers.messages import (
    ArtifactWanted,
    CloseArtifact,
    Message,
    OpenArtifact,
    Ping,
    Pong,
    ReadSecret,
    Up,
)
from edge.settings.model import StackSettings
from tink.kube.cache import Informer
from tink.waiting import failure_is_said

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 5.0
"""How long a worker may take to tell its machines that it stops."""
_LAST_WORDS_SECONDS: Final = 1.0
_OF_THE_SERVICE_MANAGER: Final = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""Variables (sd_notify(3)) that are for the main process."""


@dataclass(frozen=True, slots=True)
class Begin:
    """What a worker begins with: all settings, which of how many it is, and from which level on it has log lines."""

    settings: StackSettings
    number: int
    count: int
    log_level: int


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a worker's questions are answered from. `informers` by the plural of their objects."""

    informers: Mapping[str, Informer]
    cache: ArtifactCache | None
    read_secret: SecretReader


class Worker:
    """Made by `started`; `ended` tells when and how it has ended, `stop` ends it."""

    def __init__(self, begin: Begin, process: asyncio.subprocess.Process, heard: Callable[..., None]) -> None:
        self.number = begin.number
        self.process = process
        self.channel: Channel
        self.feed: Feed
        self.dropped = 0
        self.serves = False
        """Whether it has begun, and was told of everything."""
        self._heard = heard
        self._lending: Lending
        self._telling: asyncio.Task[None]
        self._up = asyncio.Event()
        self._lost = asyncio.Event()
        self._asked = self._answered = 0
        self._after: dict[int, Callable[[], None]] = {}

    @staticmethod
    async def started(begin: Begin, sources: Sources, heard: Callable[[Worker, Message, list[int]], None]) -> Worker:
        """A new process. `heard(worker, message, files)`: what is not answered here. Raises OSError."""
        ours, theirs = pair()
        try:
            with theirs:
                process = await start_process("edge.run.workers", begin, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        worker = Worker(begin, process, heard)
        worker.channel = channel = Channel(ours, worker._take, worker._lost.set)
        worker._lending = Lending(sources.cache, sources.read_secret, channel.send)
        worker.feed = Feed(channel, sources.informers)
        worker._telling = asyncio.create_task(worker.feed.run())
        text = f"worker {begin.number} can't be told of what changes: it is ended"
        failure_is_said(worker._telling, log, text, worker.kill)
        channel.start()
        return worker

    def send(self, message: Message, files: Sequence[int] = ()) -> None:
        """Say something."""
        self.channel.send(message, files)

    def ask(self, then: Callable[[], None] = lambda: None) -> None:
        """Have it say that it is there; call `then` when all that was said before is done."""
        self._asked += 1
        self._after[self._asked] = then
        self.send(Ping(self._asked))

    @property
    def unanswered(self) -> int:
        """How many questions of `ask` it owes an answer to."""
        return self._asked - self._answered

    async def ready(self) -> None:
        """Wait until it can serve."""
        await self._up.wait()
        await self.feed.complete.wait()

    async def ended(self) -> int:
        """Wait until it has ended, and all that it said was heard; its exit status, negative: the signal."""
        waiting = [asyncio.ensure_future(self.process.wait()), asyncio.ensure_future(self._lost.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(waiting, timeout=_LAST_WORDS_SECONDS)
        finally:
            for task in waiting:
                task.cancel()
        await self._clear()
        return await self._exit()

    async def stop(self) -> None:
        """Have it end, and wait for that."""
        self.channel.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.process.wait()
                await self._lost.wait()
        await self._clear()
        await self._exit()

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            self.process.kill()

    async def _exit(self) -> int:
        if self.process.returncode is None:
            self.kill()
        return await self.process.wait()

    async def _clear(self) -> None:
        self.serves = False
        self._telling.cancel()
        await self._lending.stop()
        self.channel.close()

    def _take(self, message: Message, files: list[int]) -> None:
        match message:
            case OpenArtifact():
                self._lending.open(message)
            case ArtifactWanted():
                self._lending.wanted(message)
            case CloseArtifact():
                self._lending.close(message)
            case ReadSecret():
                self._lending.read(message)
            case Up():
                self._up.set()
            case Pong():
                self._answered, self.dropped = message.number, message.dropped
                self._after.pop(message.number, lambda: None)()
            case _:
                self._heard(self, message, files)


async def start_process(
    module: str, begin: object, channel: int, stderr: int | None = None
) -> asyncio.subprocess.Process:
    """Start `python -m module` with the other end of this channel.

    The process reads `begin` (pickled) from standard input. `stderr` is a descriptor, or None for this process'
    standard error. Raises OSError.
    """
    # A file without a name: unlike a pipe it takes what is written, be the worker there to read it or not.
    with open(os.memfd_create("begin"), "w+b") as begins:  # noqa: ASYNC230, PTH123 - memory, and no path
        pickle.dump(begin, begins)
        begins.seek(0)
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I" if sys.flags.isolated else "-P",
            *("-m", module, str(channel)),
            stdin=begins,
            stderr=stderr,
            pass_fds=(channel,),
            env={name: value for name, value in os.environ.items() if name not in _OF_THE_SERVICE_MANAGER},
        )


def how_ended(status: int) -> str:
    """An exit status, for people."""
    if status >= 0:
        return f"with exit status {status}"
    name: Any = -status
    with suppress(ValueError):
        name = signal.Signals(-status).name
    return f"by signal {name}"
