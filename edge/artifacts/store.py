"""The directory of the artifact cache: complete artifacts by URL, and unfinished downloads.

Four kinds of files, named by a hash of the request (the URL, and the checksum if the OSIE has one):

    <key>.<id>.part      a download in progress, or an unfinished one; never served after a restart
    <key>.<id>.journal   how much of it is safely on disk, and how to ask the upstream for the rest
    <key>.<id>.blob      a complete artifact: written, checked, fsynced and renamed from its .part
    <key>.json           the URL's entry: its blob, size, checksum, and the upstream's ETag and Last-Modified

An artifact exists from the moment its .json is renamed into place. After a crash before that, the next start deletes
the files, or continues the download from a .part with a .journal. After that moment, everything is on disk. A blob is
not served if its size differs from its entry. The modification time of a blob is the time of its last use.

`open`, `commit` and `checkpoint` block on the disk: `edge.artifacts.cache` calls them in a thread. All other methods
use memory, and change at most a directory entry.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from edge.artifacts.eviction import Occupant, Room
from tink.errors import TinkedgeError
from tink.files.private_files import sync_directory
from tink.net.urls import shown

log = logging.getLogger(__name__)


TOUCH_SECONDS = 60.0
"""Interval in which the last use of a blob is written to disk."""

KEEP_UNFINISHED_SECONDS = 7 * 24 * 3600.0
"""An unfinished download that is older is dropped."""

_MAX_ENTRY_BYTES = 1 << 20
"""Size of an entry or a journal. A URL has at most 2,048 bytes."""

_BLOB = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\.blob")
_PART = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\.part")
_OURS = (".part", ".journal", ".tmp", ".blob")


class DirectoryInUseError(TinkedgeError):
    """Another process uses the same directory, and would delete the downloads of this one."""


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A complete artifact on disk.

    size: in bytes.
    sha256: the checksum of the bytes.
    etag, last_modified: as the upstream sent them, or empty.
    pin: the checksum that the OSIE demanded when the file was fetched, or empty.
    """

    url: str
    blob: str
    size: int
    sha256: str
    etag: str = ""
    last_modified: str = ""
    pin: str = ""

    @property
    def key(self) -> str:
        """The name of the artifact, see `key_of`."""
        return key_of(self.url, self.pin)

    @property
    def version(self) -> str:
        """Identifies exactly these bytes; machines get it as a strong validator."""
        return self.blob.split(".")[1]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An unfinished download: the first `received` bytes of `part` are on disk and have the checksum `sha256`.

    `size` is that of the whole file. `etag` and `last_modified` identify it; at least one is a strong validator.
    """

    url: str
    part: str
    size: int
    received: int
    sha256: str
    etag: str
    last_modified: str
    validator: str
    pin: str = ""

    @property
    def key(self) -> str:
        """The name of the artifact that it will become, see `key_of`."""
        return key_of(self.url, self.pin)

    @property
    def version(self) -> str:
        """The version of that artifact."""
        return self.part.split(".")[1]


class ArtifactStore:
    """The files in `directory`, which is created if it is missing."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._directory = directory
        self._clock = clock
        # Both in the order of use, the least recently used first.
        self._index: dict[str, StoredArtifact] = {}
        self._unfinished: dict[str, Unfinished] = {}
        self._claims: dict[str, tuple[int, int]] = {}
        """For each download in progress, its reserved bytes and how many of them the disk has not allocated yet."""
        self._holders: Counter[str] = Counter()
        self._touched: dict[str, float] = {}
        self._lock_fd = -1

    def open(self) -> None:
        """Lock the directory, read the entries, delete leftovers. Raises DirectoryInUseError, OSError."""
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True)
        lock = self._directory / ".lock"
        try:
            self._lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            # On a read-only disk, artifacts are served and leftovers stay.
            if error.errno != errno.EROFS:
                raise
            self._lock_fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            message = f"{self._directory} is used by another tinkedge process: stop it, or use another data directory"
            raise DirectoryInUseError(message) from None
        self._index = self._read_index()
        self._unfinished = self._read_journals()
        known = {stored.blob for stored in self._index.values()}
        for unfinished in self._unfinished.values():
            known |= {unfinished.part, self._journal(unfinished.part).name}
        for path in self._directory.iterdir():
            if path.suffix in _OURS and path.name not in known:
                log.info("artifact cache: removing leftover %s", path.name)
                _remove(path)

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- complete artifacts ---

    def get(self, key: str) -> StoredArtifact | None:
        """Return the complete artifact of this key (`key_of`), or None."""
        return self._index.get(key)

    def fetched(self, key: str, sha256: str = "") -> StoredArtifact | None:
        """Return the artifact that the URL behind `key` (see `key_of`) brought here, or None.

        With `sha256`, only a file with that checksum counts, whatever checksum was required when the URL was fetched. A
        file that another URL brought never counts: knowing a checksum gives no permission to read the file.
        """
        stored = self._index.get(key)
        if stored is not None and sha256 in ("", stored.sha256):
            return stored
        alike = (each for each in self._index.values() if sha256 and each.sha256 == sha256)
        return next((each for each in alike if key_of(each.url, sha256) == key), None)

    def whole(self) -> list[StoredArtifact]:
        """Return all complete artifacts, least recently used first."""
        return list(self._index.values())

    def path(self, stored: StoredArtifact) -> Path:
        """Return the path of an artifact's file."""
        return self._directory / stored.blob

    def hold(self, stored: StoredArtifact) -> int:
        """Open an artifact for a reader. It can't be evicted until the reader calls `release`. Raises OSError."""
        fd = _open_regular(self.path(stored), os.O_RDONLY, stored.size)
        self._holders[stored.blob] += 1
        if self._index.get(stored.key) is stored:
            self._index[stored.key] = self._index.pop(stored.key)
        now = self._clock()
        if now - self._touched.get(stored.blob, -TOUCH_SECONDS) >= TOUCH_SECONDS:
            self._touched[stored.blob] = now
            with suppress(OSError):  # the disk may be read-only
                os.utime(self.path(stored))
        return fd

    def release(self, blob: str) -> None:
        """Record that a reader has closed its file."""
        self._holders[blob] -= 1
        if self._holders[blob] <= 0:
            del self._holders[blob]

    def forget(self, stored: StoredArtifact) -> None:
        """Delete an artifact whose bytes are missing or wrong."""
        if self._index.get(stored.key) == stored:
            del self._index[stored.key]
            _remove(self._entry(stored.key))
        self._touched.pop(stored.blob, None)
        _remove(self.path(stored))

    def commit(self, stored: StoredArtifact, part: Path, fd: int) -> None:
        """Turn the downloaded `part` (open as `fd`) into the blob of `stored`. Raises OSError without any change."""
        os.fsync(fd)
        entry = self._entry(stored.key)
        try:
            part.rename(self.path(stored))
            _write_durably(entry, stored)
            sync_directory(self._directory)
        except OSError:
            entry.with_suffix(".tmp").unlink(missing_ok=True)
            self.path(stored).unlink(missing_ok=True)
            raise

    def adopt(self, stored: StoredArtifact, part: Path) -> None:
        """Serve `stored`, which was committed from `part`. Readers of a replaced artifact keep their open file."""
        replaced = self._index.pop(stored.key, None)
        self._index[stored.key] = stored
        self._claims.pop(part.name, None)
        self._journal(part.name).unlink(missing_ok=True)
        if replaced is not None and replaced.blob != stored.blob:
            self._touched.pop(replaced.blob, None)
            self.path(replaced).unlink(missing_ok=True)

    # --- downloads ---

    def part_path(self, url: str, version: str, pin: str = "") -> Path:
        """Return the path for a download of `url`."""
        return self._directory / f"{key_of(url, pin)}.{version}.part"

    def claim(self, part: Path, size: int, *, given: int) -> None:
        """Reserve `size` bytes in all for `part`, of which the disk has allocated `given` already."""
        self._claims[part.name] = (size, size - given)

    def claimed(self, part: Path) -> int:
        """Return the number of bytes that are reserved for a download."""
        return self._claims.get(part.name, (0, 0))[0]

    def location(self, unfinished: Unfinished) -> Path:
        """Return the path of an unfinished download."""
        return self._directory / unfinished.part

    def reopen(self, unfinished: Unfinished) -> int:
        """Open an unfinished download, to continue it. Raises OSError."""
        return _open_regular(self.location(unfinished), os.O_RDWR)

    def take_unfinished(self, url: str, pin: str = "") -> Unfinished | None:
        """Return the unfinished download of `url`, or None. The caller continues it, or calls `discard`."""
        unfinished = self._unfinished.pop(key_of(url, pin), None)
        if unfinished is not None:
            # Only the written bytes are certainly allocated: the file system may have dropped the rest of the
            # allocation.
            self.claim(self._directory / unfinished.part, unfinished.size, given=unfinished.received)
        return unfinished

    def checkpoint(self, unfinished: Unfinished, fd: int) -> None:
        """Fsync the download in `fd` and write its journal. Raises OSError."""
        os.fdatasync(fd)
        _write_durably(self._journal(unfinished.part), unfinished)

    def keep_unfinished(self, unfinished: Unfinished) -> None:
        """Keep an interrupted download, after its last checkpoint."""
        self._claims.pop(unfinished.part, None)
        self._unfinished[unfinished.key] = unfinished

    def discard(self, part: Path) -> None:
        """Delete an unusable download."""
        self._claims.pop(part.name, None)
        self._journal(part.name).unlink(missing_ok=True)
        part.unlink(missing_ok=True)

    # --- room ---

    def room(self, budget: int | None) -> Room:
        """Return the room of the cache and its disk. Raises OSError."""
        disk, promised = os.statvfs(self._directory), sum(promised for _, promised in self._claims.values())
        return Room(budget, self.used, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, promised)

    @property
    def used(self) -> int:
        """Bytes of the budget in use: by complete artifacts, downloads in progress and unfinished ones."""
        whole = sum(stored.size for stored in self._index.values())
        return (
            whole
            + sum(claimed for claimed, _ in self._claims.values())
            + sum(each.size for each in self._unfinished.values())
        )

    def occupants(self) -> Iterator[Occupant]:
        """Yield the files that may be evicted, in that order."""
        for unfinished in self._unfinished.values():
            yield Occupant(unfinished.part, unfinished.size, held=False)
        for stored in self._index.values():
            yield Occupant(stored.blob, stored.size, held=stored.blob in self._holders)

    def label(self, name: str) -> str:
        """Return the URL of a file, for a log line."""
        urls = {each.blob: each.url for each in self._index.values()}
        urls |= {each.part: each.url for each in self._unfinished.values()}
        return shown(urls[name]) if name in urls else name

    def evict(self, name: str) -> list[Path]:
        """Forget a file. Return the paths to delete; the caller deletes them in a thread, since that may take long."""
        for key, unfinished in self._unfinished.items():
            if unfinished.part == name:
                del self._unfinished[key]
                self._journal(name).unlink(missing_ok=True)
                return [self._directory / name]
        for key, stored in self._index.items():
            if stored.blob == name:
                del self._index[key]
                self._touched.pop(name, None)
                self._entry(key).unlink(missing_ok=True)
                return [self.path(stored)]
        return []

    # --- files ---

    def _entry(self, key: str) -> Path:
        return self._directory / f"{key}.json"

    def _journal(self, part: str) -> Path:
        return self._directory / (part.removesuffix(".part") + ".journal")

    def _read_index(self) -> dict[str, StoredArtifact]:
        found = []
        for path in self._directory.glob("*.json"):
            try:
                stored = _read(StoredArtifact, path)
                if not _BLOB.fullmatch(stored.blob) or path.stem != stored.key:
                    raise ValueError("it is of another file")
                status = self.path(stored).lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_size != stored.size:
                    raise ValueError(f"{stored.blob} is no file of {stored.size} bytes")
            except (OSError, ValueError) as error:
                log.warning("artifact cache: %s can't be used (%s); its file will be fetched again", path.name, error)
                _remove(path)
            else:
                found.append((status.st_mtime_ns, stored.key, stored))
        return {key: stored for _, key, stored in sorted(found, key=lambda each: each[:2])}

    def _read_journals(self) -> dict[str, Unfinished]:
        found = []
        oldest = time.time() - KEEP_UNFINISHED_SECONDS
        for path in self._directory.glob("*.journal"):
            try:
                unfinished = _read(Unfinished, path)
                key, part = unfinished.key, unfinished.part
                if not _PART.fullmatch(part) or path != self._journal(part) or not part.startswith(f"{key}."):
                    continue
                status = (self._directory / part).lstat()
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                written = path.stat().st_mtime
            except (OSError, ValueError) as error:
                log.warning("artifact cache: %s can't be used (%s); its download starts over", path.name, error)
                continue
            if 0 < unfinished.received <= min(size, unfinished.size) and written > oldest:
                found.append((written, key, unfinished))
        return {key: unfinished for _, key, unfinished in sorted(found, key=lambda each: each[:2])}


Entry = TypeVar("Entry", StoredArtifact, Unfinished)


def _read(kind: type[Entry], path: Path) -> Entry:
    """Read an entry. Raises OSError, ValueError."""
    try:
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
            raw: Any = json.loads(file.read(_MAX_ENTRY_BYTES))
    except RecursionError:
        raise ValueError("not an entry") from None
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the file is bad, not an argument
    # Fields of a later version are ignored, missing ones get their default.
    given = {field.name: raw[field.name] for field in fields(kind) if field.name in raw}
    for field in fields(kind):
        if field.name in given and type(given[field.name]).__name__ != field.type:
            raise ValueError(f"{field.name} is not of type {field.type}")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _open_regular(path: Path, mode: int, size: int | None = None) -> int:
    """Open a regular file, of `size` bytes if given. Raises OSError."""
    fd = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    # Opening a pipe would wait for its writer, and a link may leave the directory.
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (size is not None and status.st_size != size):
        os.close(fd)
        raise OSError(errno.EIO, "not the file that was stored", str(path))
    return fd


def _remove(path: Path) -> None:
    """Delete a file, or whatever else has its name."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError as error:  # harmless: no name is used twice
        log.warning("artifact cache: %s can't be removed: %s", path.name, error.strerror)


def _write_durably(path: Path, entry: StoredArtifact | Unfinished) -> None:
    """Write an entry by way of a temporary file with the suffix .tmp. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    # Mode 0600: URLs may contain passwords.
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(entry), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def key_of(url: str, pin: str) -> str:
    """Return the name of an artifact: 32 hexadecimal digits. It does not reveal the URL, which may contain a secret."""
    wanted = f"{url}\n{pin}" if pin else url
    return hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).hexdigest()[:32]
