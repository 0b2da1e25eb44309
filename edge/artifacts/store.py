"""The artifact cache's directory: which files of which URLs are there, whole.

Three kinds of files, all named by a hash of the URL:

    <key>.<id>.part   a download in progress; never served after a restart
    <key>.<id>.blob   a whole artifact, written, fsynced and renamed from its .part
    <key>.json        says which blob is the URL's, its size, and the upstream's ETag and Last-Modified

The rename of the .json is the moment at which an artifact exists. A crash before it leaves files that the next start
sweeps away; after it, everything is on disk. A blob whose size is not what the .json says is not served either.

Methods of `Store` block on the disk: `edge.artifacts.cache` calls `commit` from a thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_BLOB = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\.blob")


class DirectoryInUseError(Exception):
    """Another process serves from the same directory, and would sweep away what this one downloads."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A whole artifact on disk. `size` in bytes; `etag` and `last_modified` as the upstream sent them, or empty."""

    url: str
    blob: str
    size: int
    etag: str = ""
    last_modified: str = ""

    @property
    def version(self) -> str:
        """Names these bytes and no others; a strong validator for the machines."""
        return self.blob.split(".")[1]


class Store:
    """The files in `directory`, which is made if it is missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._index: dict[str, Stored] = {}
        self._lock_fd = -1

    def open(self) -> None:
        """Take the directory, sweep leftovers, learn what is there. Raises DirectoryInUseError, OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            message = f"{self._directory} is used by another tinkedge process: stop it, or use another data directory"
            raise DirectoryInUseError(message) from None
        self._index = {stored.url: stored for stored in self._read_all()}
        whole = {stored.blob for stored in self._index.values()}
        for path in self._directory.iterdir():
            leftover = path.suffix in (".part", ".tmp") or (path.suffix == ".blob" and path.name not in whole)
            if leftover:
                log.info("artifact cache: removing leftover %s", path.name)
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the directory up."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def get(self, url: str) -> Stored | None:
        """The whole artifact of `url`, if there is one."""
        return self._index.get(url)

    def path(self, stored: Stored) -> Path:
        """Where its bytes are."""
        return self._directory / stored.blob

    def part_path(self, url: str, version: str) -> Path:
        """Where a download of `url` is to be written."""
        return self._directory / f"{_key(url)}.{version}.part"

    def forget(self, stored: Stored) -> None:
        """Drop an artifact whose bytes turned out to be missing."""
        self._index.pop(stored.url, None)
        (self._directory / f"{_key(stored.url)}.json").unlink(missing_ok=True)

    def commit(self, part: Path, fd: int, url: str, size: int, etag: str, last_modified: str) -> Stored:
        """Make the downloaded `part` (open as `fd`) the artifact of `url`. Raises OSError; then nothing has changed."""
        os.fsync(fd)
        stored = Stored(url=url, blob=part.with_suffix(".blob").name, size=size, etag=etag, last_modified=last_modified)
        part.rename(self.path(stored))
        entry = self._directory / f"{_key(url)}.json"
        temporary = entry.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump(asdict(stored), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(entry)
        self._sync_directory()
        return stored

    def adopt(self, stored: Stored) -> None:
        """Serve `stored` from now on; machines that still read the artifact it replaces keep their open file."""
        replaced = self._index.get(stored.url)
        self._index[stored.url] = stored
        if replaced is not None and replaced.blob != stored.blob:
            self.path(replaced).unlink(missing_ok=True)

    def _read_all(self) -> list[Stored]:
        found = []
        for path in self._directory.glob("*.json"):
            try:
                stored = Stored(**json.loads(path.read_text()))
                named_rightly = _BLOB.fullmatch(stored.blob) is not None and path.stem == _key(stored.url)
                whole = named_rightly and self.path(stored).stat().st_size == stored.size
            except (OSError, ValueError, TypeError) as error:
                log.warning("artifact cache: %s can't be used (%s); it will be fetched anew", path.name, error)
                whole = False
            if whole:
                found.append(stored)
            else:
                path.unlink(missing_ok=True)
        return found

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _key(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:32]
