"""The other side of `borrowing`: what the main process opens and reads for one worker, and closes when that ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from edge.artifacts import Artifact, ArtifactCache, ArtifactError, Source
from edge.machines import ReadSecret as SecretReader
from edge.run.workers.messages import (
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
from tink.kube.client import ApiError

log = logging.getLogger(__name__)

_TELL_SECONDS: Final = 0.02
"""How often a worker is told how far a download is: machines wait for the first bytes, not for each."""

Send = Callable[[Message, Sequence[int]], None]


class Lending:
    """What one worker has. Belongs to one event loop."""

    def __init__(self, cache: ArtifactCache | None, read_secret: SecretReader, send: Send) -> None:
        self._cache = cache
        self._read_secret = read_secret
        self._send = send
        self._artifacts: dict[int, asyncio.Task[None]] = {}
        self._sources: dict[int, Source] = {}
        self._secrets: set[asyncio.Task[None]] = set()
        self._wanted: dict[int, asyncio.Queue[int]] = {}

    @property
    def open_artifacts(self) -> int:
        """How many it has open, or waits for."""
        return len(self._artifacts)

    def open(self, asked: OpenArtifact) -> None:
        """Open an artifact for it, and keep it until it says that it needs it no more."""
        task = asyncio.get_running_loop().create_task(self._lend(asked))
        self._artifacts[asked.number] = task
        task.add_done_callback(lambda _: self._forget(asked.number))

    def wanted(self, asked: ArtifactWanted) -> None:
        """Its reader has come so far."""
        if (wanted := self._wanted.get(asked.number)) is not None:
            wanted.put_nowait(asked.offset)

    def close(self, asked: CloseArtifact) -> None:
        """It needs it no more."""
        if asked.again and self._cache is not None and (source := self._sources.get(asked.number)) is not None:
            self._cache.counts.opened[source] += asked.again
        task = self._artifacts.get(asked.number)
        if task is not None:
            task.cancel()

    def read(self, asked: ReadSecret) -> None:
        """Read a Secret for it."""
        task = asyncio.get_running_loop().create_task(self._read(asked))
        self._secrets.add(task)
        task.add_done_callback(self._secrets.discard)

    async def stop(self) -> None:
        """The worker has ended: close everything."""
        tasks = [*self._artifacts.values(), *self._secrets]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, number: int) -> None:
        self._artifacts.pop(number, None)
        self._sources.pop(number, None)

    async def _lend(self, asked: OpenArtifact) -> None:
        """Until it is cancelled, or fails."""
        number = asked.number
        try:
            if self._cache is None:
                raise ArtifactError(asked.url, "there is no cache here")
            with await self._cache.open(asked.url, sha256=asked.sha256) as artifact:
                whole = artifact.progress is None
                about = artifact.size, artifact.version, artifact.source.value
                sha256 = await artifact.sha256() if whole else ""
                until = self._cache.same_until(asked.url, asked.sha256, artifact.version) if whole else 0.0
                filled = artifact.size if whole else 0
                opened = ArtifactOpened(number, *about, sha256, filled, until, is_paced=artifact.is_paced)
                self._sources[number] = artifact.source
                if artifact.is_paced:
                    self._wanted[number] = asyncio.Queue()
                self._send(opened, [artifact.fd])
                if artifact.is_paced:
                    await self._keep_pace(number, artifact, self._wanted[number])
                elif not whole:
                    await self._follow(number, artifact)
                await asyncio.get_running_loop().create_future()
        except ArtifactError as error:
            self._send(ArtifactFailed(number, type(error).__name__, error.url, error.reason), ())
        except Exception as error:
            log.exception("opening an artifact for a worker")
            self._send(ArtifactFailed(number, "StorageError", asked.url, f"internal error: {error!r}"), ())
        finally:
            self._wanted.pop(number, None)

    async def _keep_pace(self, number: int, artifact: Artifact, wanted: asyncio.Queue[int]) -> None:
        filled = 0
        while filled < artifact.size:
            filled = await artifact.filled(await wanted.get())
            self._send(ArtifactFilled(number, filled, ""), ())

    async def _follow(self, number: int, artifact: Artifact) -> None:
        filled = 0
        while filled < artifact.size:
            filled = await artifact.filled(filled)
            sha256 = await artifact.sha256() if filled >= artifact.size else ""
            self._send(ArtifactFilled(number, filled, sha256), ())
            await asyncio.sleep(_TELL_SECONDS)

    async def _read(self, asked: ReadSecret) -> None:
        try:
            secret = await self._read_secret(asked.namespace, asked.name)
        except ApiError as error:
            answer = SecretRead(asked.number, None, error.status, error.reason, error.message)
        except Exception as error:
            log.exception("reading a Secret for a worker")
            answer = SecretRead(asked.number, None, 0, "", f"internal error: {error!r}")
        else:
            answer = SecretRead(asked.number, secret)
        self._send(answer, ())
