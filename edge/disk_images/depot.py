"""DATA_DIR/files, which the edge serves to machines at /files/NAME. An image is stored whole or not at all."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from edge.disk_images.action import ENDINGS, compression_of
from edge.disk_images.reading import DiskImage, read_image
from edge.disk_images.sources import READ_BYTES, Checksum, ImageError, ImageSource
from tink.files import data_directory, private_files
from tink.files.archive import Progress

MAX_LISTED: Final = 10_000
"""Maximum number of files that `entries` returns."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~-]{0,199}", re.ASCII)
_RESERVE: Final = 64 << 20
"""Bytes of the disk that stay free."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A file in the depot. `image` is None if any file was accepted; `was_there`: nothing was written."""

    path: Path
    size: int
    sha256: str
    image: DiskImage | None
    was_there: bool = False


class ImageDepot:
    """The files of a data directory. Root acts as the owner of the directory, as all commands do."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._files = data_dir / "files"

    def put(
        self,
        source: ImageSource,
        name: str,
        progress: Progress,
        *,
        checksum: Checksum | None = None,
        is_any: bool = False,
        replaces: bool = False,
    ) -> StoredImage:
        """Store an image after all of it was read and its checksum was verified. `is_any`: it may be no image.

        A file of this name stays unless `replaces`, and is returned if it has the checksum.
        Raises ImageError, DataDirectoryError, OSError; then nothing has changed.
        """
        if not _NAME.fullmatch(name):
            what = "give --name with a name of letters, digits and . _ + ~ -, which begins with a letter or digit"
            raise ImageError(f"{name[:200]!r}: a file can't be served by this name; {what}")
        with data_directory.as_owner(self._data_dir):
            data_directory.claim(self._data_dir)
            self._files.mkdir(mode=0o700, exist_ok=True)
            path = self._files / name
            if path.exists() and not replaces:
                if checksum is not None and (there := self._there(path, checksum, progress, is_any=is_any)) is not None:
                    return there
                what = f"is there already{', with another checksum' if checksum is not None else ''}"
                raise ImageError(f"{path}: {what}. --force replaces it; --name gives this one another name")
            return self._write(source, path, progress, checksum, is_any=is_any)

    def entries(self) -> list[tuple[str, int, float]]:
        """Return name, size in bytes and time of the last change of each file, by name. Raises OSError."""
        found = list[tuple[str, int, float]]()
        with data_directory.as_owner(self._data_dir):
            if not self._files.is_dir():
                return []
            for path in sorted(self._files.iterdir()):
                if len(found) < MAX_LISTED and path.is_file() and not path.name.startswith("."):
                    status = path.stat()
                    found.append((path.name, status.st_size, status.st_mtime))
        return found

    def remove(self, name: str) -> Path:
        """Remove a file. Raises ImageError, OSError."""
        path = self._files / name
        with data_directory.as_owner(self._data_dir):
            if not _NAME.fullmatch(name) or not path.is_file():
                raise ImageError(f"{path}: there is no such file; `tinkedge image list` shows those that there are")
            path.unlink()
            private_files.sync_directory(self._files)
        return path

    def _write(
        self, source: ImageSource, path: Path, progress: Progress, checksum: Checksum | None, *, is_any: bool
    ) -> StoredImage:
        chunks, size = source.begin()
        self._check_room(size or 0)
        with private_files.stream(path) as out:
            reading = _Reading(chunks, source.shown, size or 0, progress, checksum)
            image = reading.run(out, path.name, self._check_room, is_any=is_any)
            if checksum is not None and reading.digest != checksum.digest:
                what = f"has the SHA-{checksum.algorithm[3:]} {reading.digest}, not {checksum.digest}"
                raise ImageError(f"{source.shown}: {what}; nothing was kept")
        return StoredImage(path, reading.size, reading.sha256, image)

    def _there(self, path: Path, checksum: Checksum, progress: Progress, *, is_any: bool) -> StoredImage | None:
        """Return a file that is there already, or None if it has another checksum."""
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(READ_BYTES), b"")
            reading = _Reading(pieces, str(path), path.stat().st_size, progress, checksum)
            image = reading.run(None, path.name, lambda _needed: None, is_any=is_any)
        if reading.digest != checksum.digest:
            return None
        return StoredImage(path, reading.size, reading.sha256, image, was_there=True)

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._files).free
        if free < needed + _RESERVE:
            room = f"{needed / 1e6:.0f} MB and a reserve of {_RESERVE / 1e6:.0f} MB are needed there"
            remedy = "`tinkedge image remove NAME` makes room"
            raise ImageError(f"{self._files}: {room}, and {free / 1e6:.0f} MB are free; {remedy}")


class _Reading:
    """One pass over the bytes of a file: its checksums, a copy, and its kind of image."""

    def __init__(
        self, chunks: Iterator[bytes], shown: str, total: int, progress: Progress, checksum: Checksum | None
    ) -> None:
        self._chunks = chunks
        self._shown = shown
        self._total = total
        self._progress = progress
        self._algorithm = checksum.algorithm if checksum is not None else "sha256"
        self._hashes = {name: hashlib.new(name) for name in ("sha256", self._algorithm)}
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hashes["sha256"].hexdigest()

    @property
    def digest(self) -> str:
        """The checksum of the bytes, by the algorithm of the given one."""
        return self._hashes[self._algorithm].hexdigest()

    def run(
        self, out: BinaryIO | None, name: str, check_room: Callable[[int], None], *, is_any: bool
    ) -> DiskImage | None:
        """Read all, for a file that is called `name` in the depot. Raises ImageError, OSError."""
        chunks = self._copied(out, check_room)
        image = None if is_any else read_image(chunks, self._shown, lambda kind: _check_ending(name, kind))
        for _ in chunks:  # bytes after the image
            pass
        return image

    def _copied(self, out: BinaryIO | None, check_room: Callable[[int], None]) -> Iterator[bytes]:
        checked = 0
        for chunk in self._chunks:
            for each in self._hashes.values():
                each.update(chunk)
            if out is not None:
                out.write(chunk)
                if not self._total and self.size - checked >= _RESERVE // 2:
                    checked = self.size
                    check_room(0)
            self.size += len(chunk)
            self._progress(f"{self._shown}, in bytes", self.size, self._total)
            yield chunk


def _check_ending(name: str, compression: str) -> None:
    """Check the end of a name, by which image2disk knows the compression. Raises ImageError."""
    named = compression_of(name)
    if named == compression:
        return
    if compression:
        ending = next(ending for ending, kind in ENDINGS.items() if kind == compression)
        raise ImageError(f"{name}: the file is compressed with {compression}; give --name {name}{ending}")
    stem = name.rpartition(".")[0]
    raise ImageError(f"{name}: the name says that the file is compressed ({named}), and it is not; give --name {stem}")
