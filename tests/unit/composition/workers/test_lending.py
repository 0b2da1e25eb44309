"""Artifacts in a worker: one download for all, followed from afar; closed when nobody needs it; errors as they were."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from edge.artifacts import Artifact, NotFoundError, Progress, Source, StorageError
from edge.artifacts.metrics import Counts
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
from tink.api.v1alpha2 import Raw
from tink.kube.client import NotFoundError as NoSecretError
from tink.kube.client import UnreachableError

URL = "http://upstream/kernel"


class Filling:
    """A download that grows when the test says so; `asked` are the offsets that it was asked for."""

    def __init__(self, *, is_paced: bool = False) -> None:
        self.is_paced = is_paced
        self.asked: list[int] = []
        self.at = 0
        self.failure: NotFoundError | None = None
        self.news = asyncio.Event()

    def grow(self, at: int) -> None:
        self.at = at
        self.news.set()

    def progress(self) -> Progress:
        return Progress(URL, self.at, 10, 1)

    async def filled(self, offset: int) -> int:
        self.asked.append(offset)
        while self.at <= offset:
            self.news.clear()
            await self.news.wait()
            if self.failure is not None:
                raise self.failure
        return self.at

    async def whole_sha256(self) -> str:
        return "ab"


class Cache:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.filling: Filling | None = None
        self.closed = 0
        self.failure: Exception | None = None
        self.until = 0.0
        self.counts = Counts()

    def same_until(self, _url: str, _sha256: str, version: str) -> float:
        return self.until if version == "v1" else 0.0

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        self.counts.opened[Source.UPSTREAM] += 1
        if self.failure is not None:
            raise self.failure

        def released() -> None:
            self.closed += 1

        fd = os.open(self.file, os.O_RDONLY)
        return Artifact(url, fd, 10, "v1", Source.UPSTREAM, self.filling, sha256=sha256, released=released)


class Both:
    """Lending and borrowing with no process in between."""

    def __init__(self, cache: Cache) -> None:
        self.secrets = BorrowedSecrets(self.to_main)
        self.artifacts = BorrowedArtifacts(self.to_main)
        self.secret: Raw | Exception = {}
        self.lending = Lending(cast(Any, cache), self.read, self.to_worker)

    async def read(self, _namespace: str, _name: str) -> Raw:
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret

    def to_main(self, message: Message) -> None:
        match message:
            case OpenArtifact():
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


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "file").write_bytes(b"0123456789")
    return Cache(tmp_path / "file")


@pytest.fixture
async def both(cache: Cache) -> AsyncIterator[Both]:
    both = Both(cache)
    yield both
    await both.lending.stop()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_file_that_is_whole_is_lent_until_it_is_closed(both: Both, cache: Cache) -> None:
    artifact = await both.artifacts.open(URL, sha256="cd")
    assert (artifact.size, artifact.version, artifact.source) == (10, "v1", Source.UPSTREAM)
    assert os.pread(artifact.fd, 10, 0) == b"0123456789"
    assert await artifact.sha256() == "cd"
    assert cache.closed == 0
    artifact.close()
    await turns()
    assert cache.closed == 1
    assert both.lending.open_artifacts == 0


async def test_a_download_is_followed_from_afar(both: Both, cache: Cache) -> None:
    filling = cache.filling = Filling()
    artifact = await both.artifacts.open(URL)
    assert artifact.progress is not None
    waiting = asyncio.ensure_future(artifact.filled(0))
    await turns()
    assert not waiting.done()
    filling.grow(4)
    assert await asyncio.wait_for(waiting, 5) == 4
    filling.grow(10)
    assert await asyncio.wait_for(artifact.filled(4), 5) == 10
    assert await asyncio.wait_for(artifact.sha256(), 5) == "ab"
    artifact.close()


async def test_what_forgets_what_was_read_is_asked_for_no_more_than_the_reader_in_the_worker_wants(
    both: Both, cache: Cache
) -> None:
    filling = cache.filling = Filling(is_paced=True)
    filling.grow(4)
    with await both.artifacts.open(URL) as artifact:
        await turns()
        assert filling.asked == [], "the reader has not said where it begins"
        assert await asyncio.wait_for(artifact.filled(2), 5) == 4
        filling.grow(10)
        await turns()
        assert filling.asked == [2], "it has bytes that it has not read"
        assert await asyncio.wait_for(artifact.filled(4), 5) == 10
        assert filling.asked == [2, 4]


async def test_a_download_that_fails_fails_in_the_worker(both: Both, cache: Cache) -> None:
    filling = cache.filling = Filling()
    with await both.artifacts.open(URL) as artifact:
        filling.failure = NotFoundError(URL, "404 Not Found")
        waiting = asyncio.ensure_future(artifact.filled(0))
        await turns()
        filling.news.set()
        with pytest.raises(NotFoundError, match="404"):
            await asyncio.wait_for(waiting, 5)


async def test_errors_are_what_they_were(both: Both, cache: Cache) -> None:
    cache.failure = NotFoundError(URL, "404 Not Found")
    with pytest.raises(NotFoundError, match="http://upstream/kernel: 404 Not Found"):
        await both.artifacts.open(URL)
    cache.failure = RuntimeError("a mistake of ours")
    with pytest.raises(StorageError, match="internal error"):
        await both.artifacts.open(URL)


async def test_what_a_machine_no_longer_waits_for_is_closed(both: Both, cache: Cache) -> None:
    waiting = asyncio.ensure_future(both.artifacts.open(URL))
    await asyncio.sleep(0)
    waiting.cancel()
    await turns()
    assert both.lending.open_artifacts == 0


async def test_what_a_worker_that_died_had_is_closed(both: Both, cache: Cache) -> None:
    artifacts = [await both.artifacts.open(URL) for _ in range(3)]
    await both.lending.stop()
    assert cache.closed == 3
    for artifact in artifacts:
        artifact.close()


async def test_secrets_are_read_by_the_main_process(both: Both) -> None:
    both.secret = {"data": {"a": "Yg=="}}
    assert await both.secrets("default", "s") == {"data": {"a": "Yg=="}}
    both.secret = NoSecretError(404, "NotFound", "no such Secret")
    with pytest.raises(NoSecretError, match="no such Secret"):
        await both.secrets("default", "s")
    both.secret = UnreachableError("the API is away")
    with pytest.raises(UnreachableError, match="away"):
        await both.secrets("default", "s")
