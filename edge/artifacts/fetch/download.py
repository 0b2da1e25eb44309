"""A file that is being filled, its checksum so far, and the machines that read it meanwhile.

`edge.artifacts.fetch.flight` fills it with what the upstream sends; readers wait here for it to grow. The end of the
file is withheld until somebody has said that the whole is right (`release`): what was sent to a machine can't be taken
back, but a file that lacks its end does not boot.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

from edge.artifacts.artifact import Artifact, Progress, Source
from edge.artifacts.errors import ArtifactError
from edge.artifacts.fetch.upstream import UpstreamResponse
from edge.artifacts.storage.store import Unfinished

TAIL_BYTES = 1 << 16
"""Bytes at the end of a file that no machine gets before the checksum was found right."""


class Download:
    """One file being filled. `size` in bytes (None: the upstream did not say).

    `written` bytes are in the file, `hashed` in the checksum, which may lag behind by a chunk; `etag`, `last_modified`
    and `validator` name what they are of. `source` is where they come from; `sha256` is there when the whole is.
    """

    def __init__(self, url: str, pin: str, version: str, part: Path, fd: int) -> None:
        """Takes over `fd`, the open file `part`."""
        self.url = url
        self.pin = pin
        self.version = version
        self.part = part
        self.fd = fd
        self.size: int | None = None
        self.etag = self.last_modified = self.validator = ""
        self.written = self.hashed = 0
        self.resumed = 0
        self.readers = 0
        self.source = Source.UPSTREAM
        self.sha256 = ""
        self.ended = False
        self.failure: ArtifactError | None = None
        self._digest = hashlib.sha256()
        self._whole_allowed = False
        self._news = asyncio.Event()

    # --- filling ---

    def describe(self, answer: UpstreamResponse) -> None:
        """Take over from the upstream's headers what the file is."""
        self.size = answer.size
        self.etag, self.last_modified, self.validator = answer.etag, answer.last_modified, answer.validator

    def go_on_from(self, unfinished: Unfinished, digest: hashlib._Hash) -> None:
        """Take over what an earlier download left in the file; `digest` is over that."""
        self.size = unfinished.size
        self.etag, self.last_modified = unfinished.etag, unfinished.last_modified
        self.validator = unfinished.validator
        self.written = self.hashed = self.resumed = unfinished.received
        self._digest = digest

    def write(self, chunk: bytes) -> None:
        """Append to the file. Blocks; in a thread, one call at a time. Raises OSError."""
        view = memoryview(chunk)
        offset = self.written
        while view:
            count = os.pwrite(self.fd, view, offset)
            view = view[count:]
            offset += count
        self.written = offset

    def hash(self, chunk: bytes) -> None:
        """Take a chunk that was written into the checksum. Takes long; in a thread, in the chunks' order."""
        self._digest.update(chunk)
        self.hashed += len(chunk)

    def tell(self) -> None:
        """Let those who wait see what has changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def release(self) -> None:
        """The end of the file may be read too: its checksum is right, or there is none."""
        self._whole_allowed = True
        self.tell()

    def withhold(self) -> None:
        """The end is to wait after all: it comes from somebody whose word for it is still missing."""
        self._whole_allowed = False

    def end(self, failure: ArtifactError | None) -> None:
        """Nothing more will come. Readers keep their own descriptors."""
        self.ended = True
        self.failure = failure
        os.close(self.fd)
        self.fd = -1
        self.tell()

    def digest(self) -> hashlib._Hash:
        """Of what is hashed. Not while `hash` is running."""
        return self._digest.copy()

    def unfinished(self) -> Unfinished | None:
        """What could be gone on with if the download broke off now. None if nothing could.

        Not of all bytes: the rest that is asked for then must be one byte at least. Not while `hash` is running.
        """
        if not self.validator or self.size is None or not 0 < self.hashed < self.size:
            return None
        return Unfinished(
            url=self.url,
            part=self.part.name,
            size=self.size,
            received=self.hashed,
            sha256=self._digest.hexdigest(),
            etag=self.etag,
            last_modified=self.last_modified,
            validator=self.validator,
            pin=self.pin,
        )

    # --- reading ---

    def reader(self) -> Artifact:
        """A reader with a descriptor of its own. Only while the download has a known size and has not ended."""
        size = self.size if self.size is not None else self.written
        self.readers += 1
        return Artifact(self.url, os.dup(self.fd), size, self.version, self.source, self, released=self._reader_gone)

    async def filled(self, offset: int) -> int:
        """Bytes that can be read, as soon as they are more than `offset`. Raises the failure, if they will never be."""
        while self._readable <= offset and not self.ended:
            await self._news.wait()
        if self._readable <= offset and self.failure is not None:
            raise self.failure.again()
        return self._readable

    async def whole_sha256(self) -> str:
        """Wait for the end, and give the checksum. Raises the failure."""
        await self.whole()
        if self.failure is not None:
            raise self.failure.again()
        return self.sha256

    async def whole(self) -> None:
        """Wait for the end. A failure is in `failure`."""
        while not self.ended:
            await self._news.wait()

    def progress(self) -> Progress:
        """How far it is now."""
        return Progress(self.url, self.written, self.size, self.readers)

    @property
    def _readable(self) -> int:
        if self._whole_allowed:
            return self.written
        return max(0, min(self.written, self.size - TAIL_BYTES)) if self.size is not None else 0

    def _reader_gone(self) -> None:
        self.readers -= 1
