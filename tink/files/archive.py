"""Archives: tars whose files are announced by name, size and SHA-256, written in order and read without trust.

Bundles (`edge.bundle`) and backups (`tink.backup`) are archives. The headers are those of POSIX.1-1988, and GNU's for
large files, so every tar program lists them. A reader needs little memory. A name, size or byte that was not announced
ends the reading, and so do links and devices.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, ValidationError

from tink.errors import TinkedgeError

_BLOCK = 512
_CHUNK = 1 << 20
_LARGE = 8 << 30
"""Size in bytes from which a header needs GNU's format, which has less room for names."""

Progress = Callable[[str, int, int], None]
"""Called with the kind of work, the bytes done, and all bytes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive: its name, its size in bytes, and its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


UtcTime = Annotated[AwareDatetime, AfterValidator(lambda time: time.astimezone(UTC))]
"""A time with its zone in a manifest."""

Contents = Iterator[tuple[Member, Iterator[bytes]]]
"""Each file with its content. The content is verified when it has been read to its end."""


@dataclass(frozen=True, slots=True)
class ArchiveKind:
    """A kind of archive.

    name: of the kind, for messages.
    listing: the file that names all others, for messages.
    error: the type of all errors, apart from OSError.
    mode: of all files.
    tar_format: that of the headers of files below 8 GiB.
    """

    name: str
    listing: str
    error: type[TinkedgeError]
    mode: int
    tar_format: Literal[0, 1, 2]

    def header(self, name: str, size: int, created: datetime) -> bytes:
        """Return the header of a file."""
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, self.mode, int(created.timestamp())
        block = info.tobuf(self.tar_format if size < _LARGE else tarfile.GNU_FORMAT)
        if len(block) > _BLOCK:
            raise self.error(
                f"{name}: of {size} bytes, and its name is longer than the 100 that so large a file may have"
            )
        return block

    def write_text(self, out: IO[bytes], name: str, content: bytes, created: datetime) -> None:
        """Write a small file."""
        out.write(self.header(name, len(content), created) + content + bytes(-len(content) % _BLOCK))

    def write_files(
        self, out: IO[bytes], files: Iterable[tuple[Member, Path]], created: datetime, written: Callable[[int], None]
    ) -> None:
        """Write the files and the end of the archive. `written` gets the number of bytes of each part."""
        for member, path in files:
            out.write(self.header(member.name, member.size, created))
            digest, left = hashlib.sha256(), member.size
            with path.open("rb") as source:
                while left and (chunk := source.read(min(_CHUNK, left))):
                    digest.update(chunk)
                    out.write(chunk)
                    left -= len(chunk)
                    written(len(chunk))
                if left or source.read(1) or digest.hexdigest() != member.sha256:
                    raise self.error(f"{path}: it changed while it was read; try again")
            out.write(bytes(-member.size % _BLOCK))
        out.write(bytes(2 * _BLOCK))


class ArchiveReader:
    """Reads an archive once, from start to end: `text` for each small file at its start, then `files`."""

    def __init__(self, file: IO[bytes], kind: ArchiveKind) -> None:
        self._file = file
        self._kind = kind
        self._headers: list[tuple[bytes, str, int]] = []
        self._created: datetime | None = None

    def text(self, name: str, max_bytes: int) -> bytes:
        """Return the content of the next file, which must have this name."""
        block, found, size = self._next()
        if found != name:
            raise self._kind.error(f"it is no {self._kind.name}: there is {found!r} where {name} should be")
        if size > max_bytes:
            raise self._kind.error(f"{name} has {size} bytes, and {max_bytes} are the most")
        self._headers.append((block, name, size))
        content = self._exactly(size)
        self._pad(size)
        return content

    def check_headers(self, created: datetime) -> None:
        """Demand the headers that `ArchiveKind.header` makes, which every tar program reads alike."""
        self._created = created
        for header in self._headers:
            self._check_header(*header)

    def files(self, members: Iterable[Member]) -> Contents:
        """Yield the files, which must be these, up to the end of the archive."""
        for member in members:
            block, name, size = self._next()
            if (name, size) != (member.name, member.size):
                raise self._kind.error(
                    f"it has {name!r} of {size} bytes where {member.name!r} of {member.size} should be: it was changed "
                    "or damaged; copy it again"
                )
            self._check_header(block, name, size)
            yield member, self._content(member)
        if any(self._exactly(2 * _BLOCK)):
            raise self._kind.error(f"it has a file more than {self._kind.listing} names: it was changed; copy it again")
        if self._read(1):  # of a gzip file, this also checks the sum at its end
            raise self._kind.error("it goes on after its end: it was changed; copy it again")

    def _check_header(self, block: bytes, name: str, size: int) -> None:
        if self._created is not None and block != self._kind.header(name, size, self._created):
            raise self._kind.error(
                f"{name} in it has another header than tinkedge writes: it was changed; copy it again"
            )

    def _content(self, member: Member) -> Iterator[bytes]:
        digest, left = hashlib.sha256(), member.size
        while left:
            chunk = self._exactly(min(_CHUNK, left))
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if digest.hexdigest() != member.sha256:
            raise self._kind.error(f"{member.name} in it is damaged: its SHA-256 is another; copy it again")
        self._pad(member.size)

    def _pad(self, size: int) -> None:
        if any(self._exactly(-size % _BLOCK)):
            raise self._kind.error("there is something between its files: it was changed or damaged; copy it again")

    def _next(self) -> tuple[bytes, str, int]:
        block = self._exactly(_BLOCK)
        if not any(block):
            raise self._kind.error("it ends too early: it was changed or damaged; copy it again")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise self._kind.error(f"it is no {self._kind.name}, or damaged ({error}); copy it again") from error
        if info.type != tarfile.REGTYPE or info.size < 0:
            raise self._kind.error(f"{info.name!r} in it is no plain file: it was not made by tinkedge")
        return block, info.name, info.size

    def _exactly(self, size: int) -> bytes:
        found = self._read(size)
        if len(found) < size:
            raise self._kind.error("it has been cut off; copy it again")
        return found

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except EOFError as error:
            raise self._kind.error("it has been cut off; copy it again") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._kind.error(f"it is no {self._kind.name}, or damaged ({error}); copy it again") from error


def first_problem(error: Exception) -> str:
    """Return what is wrong with a manifest in one line."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__} {error}"
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def counting(progress: Progress, what: str, total: int) -> Callable[[int], None]:
    """Return a function that adds the bytes of a part to the progress."""
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(what, done, total)

    return add


def measure(name: str, path: Path, read: Callable[[int], None] = lambda _: None) -> Member:
    """Return a file's size and SHA-256. `read` gets the number of bytes of each part. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            read(len(chunk))
    return Member(name, size, digest.hexdigest())


def extract(content: Iterator[bytes], path: Path) -> Iterator[int]:
    """Write a new file of mode 0600, and its folders, and sync it. Yield the size of each part before it is written."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        for chunk in content:
            yield len(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
