"""A file that a worker sends to a machine is the next one's without a question, but for no longer than it may be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from edge.artifacts import ArtifactCache, Source, StorageError
from edge.composition.workers.borrowing import BorrowedArtifacts
from edge.composition.workers.lending import Lending
from edge.composition.workers.messages import (
    ArtifactFailed,
    ArtifactFilled,
    ArtifactOpened,
    CloseArtifact,
    Message,
    OpenArtifact,
)
from tests.unit.artifacts.conftest import Clock, Upstream, clock, make_cache, start_cache, upstream
from tests.waiting import until
from tink.api.v1alpha2 import Raw

__all__ = ["clock", "make_cache", "start_cache", "upstream"]

FRESH = 10.0
"""Seconds for which the cache does not ask the upstream again."""


class Process:
    """A worker and its main process, with no process in between; the cache is a real one."""

    def __init__(self, cache: ArtifactCache, clock: Clock) -> None:
        self.cache = cache
        self.artifacts = BorrowedArtifacts(self.to_main, clock)
        self.lending = Lending(cache, self._no_secret, self.to_worker)
        self.questions = 0

    async def _no_secret(self, _namespace: str, _name: str) -> Raw:
        raise AssertionError("nobody asks")

    def to_main(self, message: Message) -> None:
        if isinstance(message, OpenArtifact):
            self.questions += 1
            self.lending.open(message)
        elif isinstance(message, CloseArtifact):
            self.lending.close(message)

    def to_worker(self, message: Message, files: Any = ()) -> None:
        if isinstance(message, ArtifactOpened):
            self.artifacts.opened(message, os.dup(files[0]))
        elif isinstance(message, ArtifactFilled):
            self.artifacts.filled(message)
        elif isinstance(message, ArtifactFailed):
            self.artifacts.failed(message)

    def held(self) -> bool:
        """Whether the cache has a file that is in use."""
        return any(occupant.held for occupant in self.cache._store.occupants())


@pytest.fixture
async def process(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream, clock: Clock
) -> AsyncIterator[Process]:
    cache = await start_cache(revalidate_after=FRESH)
    with await cache.open(upstream.url) as artifact:
        await artifact.sha256()
    await until(lambda: cache.stored_files == 1 and not cache._flights)
    cache.counts.opened.clear()
    process = Process(cache, clock)
    yield process
    await process.lending.stop()


async def test_second_machine_has_the_file_of_the_first_without_a_question(
    process: Process, upstream: Upstream
) -> None:
    first = await process.artifacts.open(upstream.url)
    second = await process.artifacts.open(upstream.url)
    assert process.questions == 1
    assert (second.version, second.size, second.source) == (first.version, first.size, Source.CACHE)
    assert await second.sha256() == await first.sha256() != ""
    first.close()
    assert os.pread(second.fd, 256, 256) == upstream.content[256:512], "each has a descriptor of its own"
    second.close()


async def test_file_is_in_use_until_the_last_machine_has_it_and_each_is_counted(
    process: Process, upstream: Upstream
) -> None:
    artifacts = [await process.artifacts.open(upstream.url) for _ in range(3)]
    for artifact in artifacts:
        assert process.held()
        artifact.close()
    await until(lambda: not process.held())
    assert process.cache.counts.opened == {Source.CACHE: 3}
    with await process.artifacts.open(upstream.url):
        assert process.questions == 2, "what was in nobody's use may have gone"


async def test_file_that_has_changed_is_not_served_from_memory(
    process: Process, upstream: Upstream, clock: Clock
) -> None:
    old = await process.artifacts.open(upstream.url)
    upstream.content, upstream.etag = upstream.content[::-1], '"v2"'
    clock.now += FRESH
    new = await process.artifacts.open(upstream.url)
    await new.sha256()  # it may still be on its way
    assert os.pread(new.fd, 256, 0) == upstream.content[:256]
    assert new.version != old.version
    assert os.pread(old.fd, 256, 0) == upstream.content[::-1][:256], "who has begun has it to the end"
    new.close()
    old.close()
    await until(lambda: not process.held())


async def test_another_checksum_is_another_question(process: Process, upstream: Upstream) -> None:
    with await process.artifacts.open(upstream.url) as artifact:
        sha256 = await artifact.sha256()
        with await process.artifacts.open(upstream.url, sha256=sha256):
            assert process.questions == 2
            with await process.artifacts.open(upstream.url, sha256=sha256):
                assert process.questions == 2


async def test_file_of_this_machine_is_looked_at_each_time(process: Process, tmp_path: Any) -> None:
    (tmp_path / "kernel").write_bytes(b"one")
    url = (tmp_path / "kernel").as_uri()
    with await process.artifacts.open(url):
        (tmp_path / "kernel").write_bytes(b"other")
        with await process.artifacts.open(url) as changed:
            assert changed.size == 5


async def test_too_many_open_files_are_an_error_and_take_nothing(
    process: Process, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_fd: int) -> int:
        raise OSError(24, "Too many open files")

    with await process.artifacts.open(upstream.url):
        with monkeypatch.context() as patch:
            patch.setattr("edge.composition.workers.borrowing.os.dup", none_left)
            with pytest.raises(StorageError, match="Too many open files"):
                await process.artifacts.open(upstream.url)
        assert process.held()
    await until(lambda: not process.held())
    assert process.cache.counts.opened == {Source.CACHE: 1}


async def test_machine_that_left_before_its_file_came_leaves_nothing_open(process: Process, upstream: Upstream) -> None:
    waiting = asyncio.ensure_future(process.artifacts.open(upstream.url))
    await asyncio.sleep(0)
    waiting.cancel()
    await until(lambda: process.lending.open_artifacts == 0)
    assert not process.held()
