"""Artifacts and Secrets in a worker: the main process has the cache and the API, and hands over what it is asked for.

An artifact comes as an open file. If it is still being downloaded, the main process tells how far it is; so the
upstream is asked once, whichever workers want the file, and what a worker leaves behind is closed by the main process.

A whole file that a machine is being sent is handed to the next machine without asking, for as long as the main process
would give it again. It is closed with the last of them, as if each had asked: the cache knows what is in use.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import edge.artifacts as artifacts
from edge.artifacts import Artifact, ArtifactError, Progress, Source, StorageError
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
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, UnreachableError, api_error

_ERRORS = {
    name: kind for name, kind in vars(artifacts).items() if isinstance(kind, type) and issubclass(kind, ArtifactError)
}


class _Filling:
    """A download of the main process, as far as it has told."""

    def __init__(self, url: str, size: int, want: Callable[[int], None] | None = None) -> None:
        """`want(offset)` asks for what comes there; None: it is told without that."""
        self.is_paced = want is not None
        self._want = want
        self._wanted = -1
        self._url = url
        self._size = size
        self._filled = 0
        self._sha256: str | None = None
        self._failure: ArtifactError | None = None
        self._news = asyncio.Event()

    def told(self, filled: int, sha256: str) -> None:
        self._filled = filled
        if filled >= self._size:
            self._sha256 = sha256
        self._tell()

    def failed(self, failure: ArtifactError) -> None:
        self._failure = failure
        self._tell()

    def progress(self) -> Progress:
        return Progress(self._url, self._filled, self._size, 1)

    async def filled(self, offset: int) -> int:
        if self._want is not None and offset > self._wanted:
            self._wanted = offset
            self._want(offset)
        while self._filled <= offset and self._filled < self._size:
            if self._failure is not None:
                raise self._failure.again()
            await self._news.wait()
        return self._filled

    async def whole_sha256(self) -> str:
        while self._sha256 is None:
            if self._failure is not None:
                raise self._failure.again()
            await self._news.wait()
        return self._sha256

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class _Shared:
    """A whole file that machines are being sent. `fd` is its own; each of its `readers` has another."""

    def __init__(self, opened: ArtifactOpened, fd: int) -> None:
        self.opened = opened
        self.fd = fd
        self.readers = 0
        self.again = 0
        """How often it was opened without asking."""


_Key = tuple[str, str]
"""A URL, and the checksum that is wanted."""


class BorrowedArtifacts:
    """The cache of the main process. Belongs to one event loop."""

    def __init__(self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds by the clock of `ArtifactOpened.until`."""
        self._send = send
        self._clock = clock
        self._shared: dict[_Key, _Shared] = {}
        """The newest of each."""
        self._numbers = count(1)
        self._asked: dict[int, tuple[_Key, asyncio.Future[Artifact]]] = {}
        self._filling: dict[int, _Filling] = {}

    async def open(self, url: str, *, sha256: str = "") -> Artifact:
        """As `edge.artifacts.ArtifactCache.open`. Raises ArtifactError."""
        key = url, sha256
        shared = self._shared.get(key)
        if shared is not None and self._clock() < shared.opened.until:
            artifact = self._reader(key, shared)
            shared.again += 1
            return artifact
        number = next(self._numbers)
        answer: asyncio.Future[Artifact] = asyncio.get_running_loop().create_future()
        self._asked[number] = key, answer
        self._send(OpenArtifact(number, url, sha256))
        try:
            return await answer
        except BaseException:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()
            else:
                self._send(CloseArtifact(number))
            raise
        finally:
            self._asked.pop(number, None)

    def opened(self, message: ArtifactOpened, fd: int) -> None:
        """The answer has come, with the file."""
        key, answer = self._asked.pop(message.number, (("", ""), None))
        if answer is None or answer.done():
            os.close(fd)  # the main process was told
        elif message.filled < message.size:
            answer.set_result(self._growing(key[0], message, fd))
        else:
            shared = self._shared[key] = _Shared(message, fd)
            try:
                answer.set_result(self._reader(key, shared))
            except ArtifactError as error:
                answer.set_exception(error)

    def _growing(self, url: str, message: ArtifactOpened, fd: int) -> Artifact:
        want = self._wanting(message.number) if message.is_paced else None
        filling = self._filling[message.number] = _Filling(url, message.size, want)
        filling.told(message.filled, "")

        def released() -> None:
            self._filling.pop(message.number, None)
            self._send(CloseArtifact(message.number))

        return _artifact(url, message, fd, filling, released)

    def _reader(self, key: _Key, shared: _Shared) -> Artifact:
        """Another one of a whole file. Raises StorageError."""
        shared.readers += 1
        try:
            fd = os.dup(shared.fd)
        except OSError as error:  # too many open files
            self._released(key, shared)
            raise StorageError(key[0], f"can't be opened: {error.strerror}") from error
        return _artifact(key[0], shared.opened, fd, None, lambda: self._released(key, shared))

    def _released(self, key: _Key, shared: _Shared) -> None:
        shared.readers -= 1
        if shared.readers:
            return
        os.close(shared.fd)
        if self._shared.get(key) is shared:
            del self._shared[key]
        self._send(CloseArtifact(shared.opened.number, shared.again))

    def _wanting(self, number: int) -> Callable[[int], None]:
        return lambda offset: self._send(ArtifactWanted(number, offset))

    def filled(self, message: ArtifactFilled) -> None:
        """A download has come further."""
        filling = self._filling.get(message.number)
        if filling is not None:
            filling.told(message.filled, message.sha256)

    def failed(self, message: ArtifactFailed) -> None:
        """There is none, or no more of it."""
        failure = _ERRORS.get(message.error, StorageError)(message.url, message.reason)
        _, answer = self._asked.pop(message.number, ("", None))
        filling = self._filling.get(message.number)
        if answer is not None and not answer.done():
            answer.set_exception(failure)
        elif filling is not None:
            filling.failed(failure)


def _artifact(
    url: str, about: ArtifactOpened, fd: int, filling: _Filling | None, released: Callable[[], None]
) -> Artifact:
    source = Source(about.source)
    return Artifact(url, fd, about.size, about.version, source, filling, sha256=about.sha256, released=released)


class BorrowedSecrets:
    """The Kubernetes API of the main process, as far as Secrets go: a `edge.machines.ReadSecret`."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Raw]] = {}

    async def __call__(self, namespace: str, name: str) -> Raw:
        """The Secret. Raises ApiError."""
        number = next(self._numbers)
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send(ReadSecret(number, namespace, name))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    def read(self, message: SecretRead) -> None:
        """The answer has come."""
        answer = self._asked.pop(message.number, None)
        if answer is None or answer.done():
            return
        if message.secret is not None:
            answer.set_result(message.secret)
        else:
            answer.set_exception(_api_error(message))


def _api_error(message: SecretRead) -> ApiError:
    if not message.status:
        return UnreachableError(message.message)
    body: dict[str, Any] = {"reason": message.reason, "message": message.message}
    return api_error(message.status, body)
