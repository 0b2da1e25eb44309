"""The workers of an edge stay as many as they are to be, whatever becomes of one at whatever moment."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edge.composition.settings import EdgeSettings, Service, StackSettings
from edge.composition.workers import pool as pools
from edge.composition.workers import worker as workers
from edge.composition.workers.channel import Channel
from edge.composition.workers.inbox import Inbox
from edge.composition.workers.messages import Up
from edge.composition.workers.pool import Pool
from edge.composition.workers.worker import Begin, Sources, Worker


async def no_secret(_namespace: str, _name: str) -> dict[str, Any]:
    return {}


SOURCES = Sources({}, None, no_secret)


class Process:
    """Of a worker that serves at once, until it is ended."""

    pid = 1

    def __init__(self, channel: int) -> None:
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.returncode: int | None = None
        self.channel = Channel(socket.socket(fileno=os.dup(channel)), lambda *_: None, lambda: None)
        self.channel.send(Up())

    async def wait(self) -> int:
        self.returncode = await asyncio.shield(self.status)
        return self.returncode

    def kill(self) -> None:
        if not self.status.done():
            self.status.set_result(-9)
            self.channel.close()


class Life:
    """Says how each process after the first begins, and has those that there were."""

    def __init__(self) -> None:
        self.begins: list[Exception] = []
        self.processes: list[Process] = []

    async def process(self, _module: str, begin: Begin, channel: int) -> Process:
        if self.processes and self.begins:
            raise self.begins.pop(0)
        self.processes.append(Process(channel))
        return self.processes[-1]


@pytest.fixture
async def life(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Life, Pool]]:
    life = Life()
    monkeypatch.setattr(workers, "start_process", life.process)
    monkeypatch.setattr(pools, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(workers, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(workers, "_LAST_WORDS_SECONDS", 0.01)
    settings = StackSettings(frozenset({Service.HTTP}), edge=EdgeSettings(workers=1))
    inbox = Inbox(lambda *_, **__: None, lambda: None, lambda *_: None)
    pool = Pool(settings, SOURCES, inbox, ready=lambda: "", learnt=list, announce=lambda _: None)
    await pool.start()
    yield life, pool
    await pool.stop()


async def replaced(life: Life, count: int) -> None:
    async with asyncio.timeout(10):
        while len(life.processes) < count:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("unable to perform operation on <WriteUnixTransport closed=True>; the handler is closed"),
        OSError(errno.EAGAIN, "Resource temporarily unavailable"),
        BrokenPipeError(),
    ],
    ids=["the event loop's", "no process", "a pipe"],
)
async def test_a_worker_that_could_not_be_started_is_tried_again(
    life: tuple[Life, Pool], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    lives, _ = life
    lives.begins = [error, error]
    lives.processes[0].kill()
    await replaced(lives, 2)
    assert caplog.text.count("worker 1 can't be started: ") >= 2


async def test_a_worker_that_can_not_be_told_of_changes_is_replaced(
    life: tuple[Life, Pool], caplog: pytest.LogCaptureFixture
) -> None:
    lives, pool = life
    (worker,) = pool._workers.values()
    worker.feed.change("hardware", {"metadata": {"name": "m", "namespace": "n"}, "number": 1 << 80})
    await replaced(lives, 2)
    assert "worker 1 can't be told of what changes: it is ended" in caplog.text


async def test_a_program_that_ends_at_once_is_a_worker_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    begin = Begin(StackSettings(frozenset()), 1, 1, logging.INFO)
    for _ in range(5):
        worker = await Worker.started(begin, SOURCES, lambda *_: None)
        async with asyncio.timeout(10):
            assert await worker.ended() == 7
