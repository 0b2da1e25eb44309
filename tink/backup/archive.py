"""The file of a backup: a gzipped archive (`tink.files.archive`; `tar tzf` lists it) that begins with its manifest."""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import orjson
from pydantic import TypeAdapter

from tink.errors import TinkedgeError
from tink.files.archive import ArchiveKind, ArchiveReader, Contents, Member, Progress, UtcTime, counting, first_problem

FORMAT = 1
MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_FILES = 10_000
_MAX_SIZE = 1 << 62
_MAX_NAME = 100
"""Maximum length of a name in a tar's header."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+:=-]*")


class ArchiveError(TinkedgeError):
    """A file is no backup, or is damaged."""


BACKUP = ArchiveKind("backup", MANIFEST, ArchiveError, 0o600, tarfile.GNU_FORMAT)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a backup.

    It has the release that made it and the time (UTC), the layout of its state and the newest resourceVersion there,
    the number of objects by resource, and its files.
    """

    tinkedge: str
    created: UtcTime
    layout: int
    version: int
    objects: dict[str, int]
    files: tuple[Member, ...]

    def to_json(self) -> bytes:
        """Return the text of manifest.json."""
        return orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parse manifest.json. Raises ArchiveError."""
        try:
            number = orjson.loads(text)["format"]
            if number != FORMAT:
                raise ArchiveError(f"its format is {number!r}; this release reads {FORMAT}: use a newer one")
            made = TypeAdapter(cls).validate_json(text, strict=True)
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveError(f"its {MANIFEST} can't be read: {first_problem(error)}") from error
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


def write(out: BinaryIO, manifest: Manifest, paths: Sequence[Path], progress: Progress) -> None:
    """Write a backup of files, in the manifest's order. Raises ArchiveError if one has changed, OSError."""
    packed = counting(progress, "packed", sum(file.size for file in manifest.files))
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=1, mtime=0) as zipped:
        BACKUP.write_text(cast(BinaryIO, zipped), MANIFEST, manifest.to_json(), manifest.created)
        files = zip(manifest.files, paths, strict=True)
        BACKUP.write_files(cast(BinaryIO, zipped), files, manifest.created, packed)


def read(file: BinaryIO) -> tuple[Manifest, Contents]:
    """Return the manifest of a backup, and its files. Raises ArchiveError, OSError; so does the iterator."""
    reader = ArchiveReader(cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb")), BACKUP)
    manifest = Manifest.from_json(reader.text(MANIFEST, _MAX_MANIFEST_BYTES))
    return manifest, reader.files(manifest.files)
