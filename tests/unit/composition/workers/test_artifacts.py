"""Artifacts in a worker: one download for all, followed from afar; closed when nobody needs it; errors as they were."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edge.artifacts import Artifact, ArtifactCache, NotFoundError, Progress, Source, StorageError, UpstreamError
from edge.composition.workers.borrowing import BorrowedArtifacts, BorrowedSecrets
from edge.composition.workers.lending import Lending
from edge.composition.workers.messages import (
    ArtifactFailed,
    ArtifactFilled,
    ArtifactOpened,
    ArtifactWanted,
    CloseArtifact,
    Message,
    OpenArtifact,
    ReadSecret,
    SecretRead,
)
from tests.support.virtual_time import turns
from tests.unit.artifacts.conftest import Clock, Upstream, clock, make_cache, start_cache, upstream
from tests.waiting import until
from tink.api.v1alpha2 import Raw
from tink.kube.client import NotFoundError as NoSecretError
from tink.kube.client import UnreachableError

URL = "http://upstream/kernel"


class Paced:
    """A download at the pace of its one reader, as of a file that another edge passes through."""

    is_paced = True

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.at = 4

    def progress(self) -> Progress:
        return Progress(URL, self.at, 10, 1)

    async def filled(self, offset: int) -> int:
        self.asked.append(offset)
        return self.at

    async def whole_sha256(self) -> str:
        return "ab"


class Line:
    """A worker's side and the main process's, with no process in between."""

    def __init__(self, cache: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.cache = cache
        self.secrets = BorrowedSecrets(self.to_main)
        self.artifacts = BorrowedArtifacts(self.to_main, clock)
        self.secret: Raw | Exception = AssertionError("no test asks for it")
        self.lending = Lending(cache, self.read, self.to_worker)
        self.questions = 0

    async def read(self, _namespace: str, _name: str) -> Raw:
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret

    def to_main(self, message: Message) -> None:
        match message:
            case OpenArtifact():
                self.questions += 1
                self.lending.open(message)
            case ArtifactWanted():
                self.lending.wanted(message)
            case CloseArtifact():
                self.lending.close(message)
            case ReadSecret():
                self.lending.read(message)

    def to_worker(self, message: Message, files: Sequence[int] = ()) -> None:
        match message:
            case ArtifactOpened():
                self.artifacts.opened(message, os.dup(files[0]))
            case ArtifactFilled():
                self.artifacts.filled(message)
            case ArtifactFailed():
                self.artifacts.failed(message)
            case SecretRead():
                self.secrets.read(message)

    def held(self) -> bool:
        """Whether the cache has a file that is in use."""
        return any(occupant.held for occupant in self.cache._store.occupants())


async def test_what_forgets_what_was_read_is_asked_for_no_more_than_the_reader_in_the_worker_wants(
    tmp_path: Path, start_cache: Callable[..., Awaitable[ArtifactCache]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    paced, cache = Paced(), await start_cache()

    async def passed_through(url: str, *, sha256: str = "") -> Artifact:
        fd = os.open(tmp_path / "file", os.O_RDONLY)
        return Artifact(url, fd, 10, "v1", Source.UPSTREAM, paced, sha256=sha256, released=lambda: None)

    monkeypatch.setattr(cache, "open", passed_through)
    both = Line(cache)
    with await both.artifacts.open(URL) as artifact:
        await turns(10)
        assert paced.asked == [], "the reader has not said where it begins"
        assert await artifact.filled(2) == 4
        paced.at = 10
        await turns(10)
        assert paced.asked == [2], "it has bytes that it has not read"
        assert await artifact.filled(4) == 10
        assert paced.asked == [2, 4]
    await both.lending.stop()


__all__ = ["clock", "make_cache", "start_cache", "upstream"]

FRESH = 10.0
"""Seconds for which the cache does not ask the upstream again."""


async def test_download_is_followed_from_afar_and_fails_as_it_fails_in_the_main_process(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream
) -> None:
    both = Line(await start_cache())
    upstream.gate.clear()
    half = len(upstream.content) // 2
    artifact = await both.artifacts.open(upstream.url)
    assert artifact.progress is not None
    at = 0
    while at < half:
        at = await artifact.filled(at)
    following = asyncio.ensure_future(artifact.filled(half))
    await turns(10)
    assert not following.done()
    upstream.gate.set()
    assert await following > half
    assert await artifact.sha256() == hashlib.sha256(upstream.content).hexdigest()
    artifact.close()
    await until(lambda: both.lending.open_artifacts == 0)
    upstream.mode = "dies"
    with await both.artifacts.open(f"{upstream.url}2") as broken, pytest.raises(UpstreamError):
        await broken.sha256()
    await both.lending.stop()


async def test_errors_are_what_they_were(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Line(await start_cache())
    upstream.mode = "404"
    with pytest.raises(NotFoundError, match=rf"{upstream.url}: 404 Not Found"):
        await both.artifacts.open(upstream.url)

    async def mistaken(*_: Any, **__: Any) -> Artifact:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(both.cache, "open", mistaken)
    with pytest.raises(StorageError, match="internal error"):
        await both.artifacts.open(URL)
    both.secret = {"data": {"a": "Yg=="}}
    assert await both.secrets("default", "s") == {"data": {"a": "Yg=="}}
    both.secret = NoSecretError(404, "NotFound", "no such Secret")
    with pytest.raises(NoSecretError, match="no such Secret"):
        await both.secrets("default", "s")
    both.secret = UnreachableError("the API is away")
    with pytest.raises(UnreachableError, match="away"):
        await both.secrets("default", "s")


@pytest.fixture
async def process(
    start_cache: Callable[..., Awaitable[ArtifactCache]], upstream: Upstream, clock: Clock
) -> AsyncIterator[Line]:
    cache = await start_cache(revalidate_after=FRESH)
    with await cache.open(upstream.url) as artifact:
        await artifact.sha256()
    await until(lambda: cache.stored_files == 1 and not cache._flights)
    cache.counts.opened.clear()
    process = Line(cache, clock)
    yield process
    await process.lending.stop()


async def test_second_machine_has_the_file_of_the_first_without_a_question(process: Line, upstream: Upstream) -> None:
    first = await process.artifacts.open(upstream.url)
    second = await process.artifacts.open(upstream.url)
    assert process.questions == 1
    assert (second.version, second.size, second.source) == (first.version, first.size, Source.CACHE)
    assert await second.sha256() == await first.sha256() != ""
    first.close()
    assert os.pread(second.fd, 256, 256) == upstream.content[256:512], "each has a descriptor of its own"
    second.close()


async def test_file_is_in_use_until_the_last_machine_has_it_and_each_is_counted(
    process: Line, upstream: Upstream
) -> None:
    artifacts = [await process.artifacts.open(upstream.url) for _ in range(3)]
    for artifact in artifacts:
        assert process.held()
        artifact.close()
    await until(lambda: not process.held())
    assert process.cache.counts.opened == {Source.CACHE: 3}
    artifact = await process.artifacts.open(upstream.url)
    assert process.questions == 2, "what was in nobody's use may have gone"
    await process.lending.stop()
    assert not process.held(), "what a worker that died had is closed"
    artifact.close()


async def test_file_that_has_changed_is_not_served_from_memory(process: Line, upstream: Upstream, clock: Clock) -> None:
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


async def test_another_checksum_is_another_question(process: Line, upstream: Upstream) -> None:
    with await process.artifacts.open(upstream.url) as artifact:
        sha256 = await artifact.sha256()
        with await process.artifacts.open(upstream.url, sha256=sha256):
            assert process.questions == 2
            with await process.artifacts.open(upstream.url, sha256=sha256):
                assert process.questions == 2


async def test_file_of_this_machine_is_looked_at_each_time(process: Line, tmp_path: Any) -> None:
    (tmp_path / "kernel").write_bytes(b"one")
    url = (tmp_path / "kernel").as_uri()
    with await process.artifacts.open(url):
        (tmp_path / "kernel").write_bytes(b"other")
        with await process.artifacts.open(url) as changed:
            assert changed.size == 5


async def test_too_many_open_files_are_an_error_and_take_nothing(
    process: Line, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
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


async def test_machine_that_left_before_its_file_came_leaves_nothing_open(process: Line, upstream: Upstream) -> None:
    waiting = asyncio.ensure_future(process.artifacts.open(upstream.url))
    await turns()
    waiting.cancel()
    await until(lambda: process.lending.open_artifacts == 0)
    assert not process.held()
