"""The file of a backup: a gzipped tar (`tar tzf` lists it) that begins with a manifest of its files.

`manifest.json` has their sizes and SHA-256. A reader needs little memory and trusts nothing: a name, size or byte that
differs from the manifest ends the reading. The tar has plain files only (POSIX.1-1988 headers, GNU's larger sizes), and
no links.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

import orjson

from tink.errors import TinkedgeError

FORMAT = 1
MANIFEST = "manifest.json"
_MAX_MANIFEST = 4 << 20
_MAX_FILES = 10_000
_MAX_SIZE = 1 << 62
_MAX_NAME = 100
"""Maximum length of a name in a tar's header."""
_BLOCK = 512
_CHUNK = 1 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+:=-]*")

Progress = Callable[[str, int, int], None]


class ArchiveError(TinkedgeError):
    """A file is no backup, or is damaged."""


@dataclass(frozen=True, slots=True)
class File:
    """A member: its path within the data directory, its bytes and their SHA-256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a backup.

    It has the release that made it and the time (UTC), the layout of its state and the newest resourceVersion there,
    the number of objects by resource, and its files.
    """

    tinkedge: str
    created: datetime
    layout: int
    version: int
    objects: dict[str, int]
    files: tuple[File, ...]

    def to_json(self) -> bytes:
        """Return the text of manifest.json."""
        fields = {"format": FORMAT, **asdict(self)}
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parse manifest.json. Raises ArchiveError."""
        try:
            fields = orjson.loads(text)
            if fields["format"] != FORMAT:
                raise ArchiveError(f"its format is {fields['format']!r}; this release reads {FORMAT}: use a newer one")
            files = tuple(File(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in fields["files"])
            objects = {str(name): int(count) for name, count in fields["objects"].items()}
            created = datetime.fromisoformat(fields["created"])
            created.timestamp()
            numbers = int(fields["layout"]), int(fields["version"])
            made = cls(str(fields["tinkedge"]), created, *numbers, objects, files)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArchiveError(f"its {MANIFEST} can't be read: {error}") from error
        made.check()
        return made

    def check(self) -> None:
        """Check the names of the files. Raises ArchiveError."""
        if len(self.files) > _MAX_FILES:
            raise ArchiveError(f"{len(self.files)} files are more than the {_MAX_FILES} that a backup may hold")
        for file in self.files:
            if problem := unusable_name(file.name):
                raise ArchiveError(f"{file.name!r} can't be in a backup: {problem}")
            if not 0 <= file.size <= _MAX_SIZE:
                raise ArchiveError(f"{file.name!r} has a size of {file.size}")
        seen: set[str] = set()
        for name in (file.name.casefold() for file in self.files):
            if name in seen:  # On a case-insensitive file system, one file would replace the other.
                raise ArchiveError(f"a name stands twice in it, or in upper and lower case: {name!r}; rename one")
            seen.add(name)
        for file in self.files:
            if above := {str(folder).casefold() for folder in PurePosixPath(file.name).parents} & seen:
                raise ArchiveError(f"{min(above)!r} is a file and a folder in it")


def unusable_name(name: str) -> str:
    """Return why a file of this name can't be in a backup; empty if it can."""
    if len(name.encode()) > _MAX_NAME:
        return f"its name is longer than {_MAX_NAME} bytes"
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        return "its name has other characters than letters, digits and ._@+:=-, or a part that begins with one"
    return ""


def describe(name: str, path: Path) -> File:
    """Measure a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return File(name, size, digest.hexdigest())


def write(out: BinaryIO, manifest: Manifest, paths: Sequence[Path], progress: Progress) -> None:
    """Write a backup of files, in the manifest's order. Raises ArchiveError if one has changed, OSError."""
    text = manifest.to_json()
    total, done = sum(file.size for file in manifest.files), 0
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(_header(MANIFEST, len(text), manifest.created) + text + _padding(len(text)))
        for file, path in zip(manifest.files, paths, strict=True):
            packed.write(_header(file.name, file.size, manifest.created))
            digest, left = hashlib.sha256(), file.size
            with path.open("rb") as source:
                while left and (chunk := source.read(min(_CHUNK, left))):
                    digest.update(chunk)
                    packed.write(chunk)
                    left -= len(chunk)
                    done += len(chunk)
                    progress("packed", done, total)
                if left or source.read(1) or digest.hexdigest() != file.sha256:
                    raise ArchiveError(f"{path}: it changed while it was read; try again")
            packed.write(_padding(file.size))
        packed.write(bytes(2 * _BLOCK))


def _header(name: str, size: int, created: datetime) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(created.timestamp())
    return info.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


class Reader:
    """Reads a backup once, from start to end."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the manifest. Raises ArchiveError, OSError."""
        self._file = gzip.GzipFile(fileobj=file, mode="rb")
        name, size = self._next()
        if name != MANIFEST or size > _MAX_MANIFEST:
            raise ArchiveError(f"it is no backup: it does not begin with {MANIFEST}")
        self.manifest = Manifest.from_json(self._exactly(size))
        self._exactly(-size % _BLOCK)

    def files(self) -> Iterator[tuple[File, Iterator[bytes]]]:
        """Yield each file with its content, which must be read to its end. Raises ArchiveError, OSError."""
        for file in self.manifest.files:
            name, size = self._next()
            if (name, size) != (file.name, file.size):
                raise ArchiveError(f"it has {name!r} of {size} bytes where {file.name!r} of {file.size} should be")
            yield file, self._content(file)
        if any(self._exactly(2 * _BLOCK)):
            raise ArchiveError(f"it has more than its {MANIFEST} says")
        if self._read(1):  # which also checks the sum at the end
            raise ArchiveError("it goes on after its end")

    def _content(self, file: File) -> Iterator[bytes]:
        digest, left = hashlib.sha256(), file.size
        while left:
            chunk = self._exactly(min(_CHUNK, left))
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if digest.hexdigest() != file.sha256:
            raise ArchiveError(f"{file.name!r} in it is damaged: its SHA-256 is another")
        self._exactly(-file.size % _BLOCK)

    def _next(self) -> tuple[str, int]:
        try:
            info = tarfile.TarInfo.frombuf(self._exactly(_BLOCK), "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise ArchiveError(f"it is no backup, or damaged: {error}") from error
        if info.type != tarfile.REGTYPE or info.size < 0:
            raise ArchiveError(f"{info.name!r} in it is no plain file")
        return info.name, info.size

    def _exactly(self, size: int) -> bytes:
        found = self._read(size)
        if len(found) < size:
            raise ArchiveError("it has been cut off")
        return found

    def _read(self, size: int) -> bytes:
        try:
            return cast(Any, self._file).read(size)  # type: ignore[no-any-return] # typed as for text, too
        except EOFError as error:
            raise ArchiveError("it has been cut off") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ArchiveError(f"it is no backup, or damaged: {error}") from error
