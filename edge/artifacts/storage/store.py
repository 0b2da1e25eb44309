"""The artifact cache's directory: which files of which URLs are there, whole, and which were broken off.

Four kinds of files, all named by a hash of what was asked for (the URL, and the checksum if the OSIE has one):

    <key>.<id>.part      a download in progress, or broken off; never served after a restart
    <key>.<id>.journal   how much of it is safely on disk, and how to ask the upstream for the rest
    <key>.<id>.blob      a whole artifact, written, checked, fsynced and renamed from its .part
    <key>.json           says which blob is the URL's, its size and checksum, the upstream's ETag and Last-Modified

The rename of the .json is the moment at which an artifact exists. A crash before it leaves files that the next start
sweeps away, or a .part with a .journal, from which a download goes on; after it, everything is on disk. A blob whose
size is not what the .json says is not served. A blob's modification time is when it was last used.

`open`, `commit` and `checkpoint` block on the disk: `edge.artifacts.cache` calls them in a thread. The rest is memory
and at most a directory entry.
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

from edge.artifacts.storage.eviction import Occupant, Room
from tink.errors import TinkedgeError
from tink.files.private_files import sync_directory
from tink.net.urls import shown

log = logging.getLogger(__name__)

TOUCH_SECONDS = 60.0
"""A blob's last use is written down once in so many seconds."""

KEEP_UNFINISHED_SECONDS = 7 * 24 * 3600.0
"""What nobody has asked for since is not gone on with."""

_MAX_ENTRY_BYTES = 1 << 20
"""Bytes of an entry or a journal; a URL has 2,048 at most."""

_BLOB = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\.blob")
_PART = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\.part")
_OURS = (".part", ".journal", ".tmp", ".blob")


class DirectoryInUseError(TinkedgeError):
    """Another process serves from the same directory, and would sweep away what this one downloads."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A whole artifact on disk. `size` in bytes; `etag` and `last_modified` as the upstream sent them, or empty.

    `sha256` is what its bytes were found to have; `pin` what the OSIE demanded when it was fetched.
    """

    url: str
    blob: str
    size: int
    sha256: str
    etag: str = ""
    last_modified: str = ""
    pin: str = ""

    @property
    def version(self) -> str:
        """Names these bytes and no others; a strong validator for the machines."""
        return self.blob.split(".")[1]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A download that was broken off: the first `received` bytes of `part` are on disk, and `sha256` is theirs.

    `size` is of the whole. `etag` and `last_modified` name what was being fetched; at least one is a strong validator.
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
    def version(self) -> str:
        """As that of the artifact that it becomes."""
        return self.part.split(".")[1]


class Store:
    """The files in `directory`, which is made if it is missing."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._directory = directory
        self._clock = clock
        # Both in the order of use, least recently used first.
        self._index: dict[str, Stored] = {}
        self._unfinished: dict[str, Unfinished] = {}
        self._claimed: dict[str, int] = {}
        self._promised: dict[str, int] = {}
        self._holders: Counter[str] = Counter()
        self._touched: dict[str, float] = {}
        self._lock_fd = -1

    def open(self) -> None:
        """Take the directory, sweep leftovers, learn what is there. Raises DirectoryInUseError, OSError.

        On a read-only disk what is there is served, and leftovers stay.
        """
        if not self._directory.is_dir():
            self._directory.mkdir(mode=0o700, parents=True)
        lock = self._directory / ".lock"
        try:
            self._lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
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
            known |= {unfinished.part, _journal(unfinished.part)}
        for path in self._directory.iterdir():
            if path.suffix in _OURS and path.name not in known:
                log.info("artifact cache: removing leftover %s", path.name)
                _remove(path)

    def close(self) -> None:
        """Give the directory up."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    # --- whole artifacts ---

    def get(self, url: str, pin: str = "") -> Stored | None:
        """The whole artifact of `url`, if there is one."""
        return self._index.get(key_of(url, pin))

    def brought(self, key: str, sha256: str = "") -> Stored | None:
        """Return the artifact that the URL behind `key` (see `key_of`) brought here, or None.

        With `sha256`, only a file with that checksum counts, whatever checksum was required when the URL was fetched. A
        file that another URL brought never counts: knowing a checksum gives no permission to read the file.
        """
        stored = self._index.get(key)
        if stored is not None and sha256 in ("", stored.sha256):
            return stored
        alike = (each for each in self._index.values() if sha256 and each.sha256 == sha256)
        return next((each for each in alike if key_of(each.url, sha256) == key), None)

    def whole(self) -> list[Stored]:
        """All artifacts, least recently used first."""
        return list(self._index.values())

    def path(self, stored: Stored) -> Path:
        """Where its bytes are."""
        return self._directory / stored.blob

    def hold(self, stored: Stored) -> int:
        """Open it for a reader, who calls `release` in the end. Raises OSError. Until then it is not evicted."""
        fd = _open_regular(self.path(stored), os.O_RDONLY, stored.size)
        self._holders[stored.blob] += 1
        key = key_of(stored.url, stored.pin)
        if self._index.get(key) is stored:
            self._index[key] = self._index.pop(key)
        now = self._clock()
        if now - self._touched.get(stored.blob, -TOUCH_SECONDS) >= TOUCH_SECONDS:
            self._touched[stored.blob] = now
            with suppress(OSError):  # a disk that has become read-only can be read
                os.utime(self.path(stored))
        return fd

    def release(self, blob: str) -> None:
        """A reader has closed its file."""
        self._holders[blob] -= 1
        if self._holders[blob] <= 0:
            del self._holders[blob]

    def forget(self, stored: Stored) -> None:
        """Drop an artifact: its bytes turned out to be missing or wrong, or it has to make room."""
        key = key_of(stored.url, stored.pin)
        if self._index.get(key) == stored:
            del self._index[key]
            _remove(self._entry(key))
        self._touched.pop(stored.blob, None)
        _remove(self.path(stored))

    def commit(self, stored: Stored, part: Path, fd: int) -> None:
        """Make the downloaded `part` (open as `fd`) the blob of `stored`. Raises OSError; then nothing has changed."""
        os.fsync(fd)
        entry = self._entry(key_of(stored.url, stored.pin))
        temporary = entry.with_suffix(".tmp")
        try:
            part.rename(self.path(stored))
            _write_durably(temporary, stored)
            temporary.rename(entry)
            sync_directory(self._directory)
        except OSError:
            temporary.unlink(missing_ok=True)
            self.path(stored).unlink(missing_ok=True)
            raise

    def adopt(self, stored: Stored, part: Path) -> None:
        """Serve `stored`, which was committed from `part`, from now on.

        Machines that still read the artifact it replaces keep their open file.
        """
        key = key_of(stored.url, stored.pin)
        replaced = self._index.pop(key, None)
        self._index[key] = stored
        self._give_up_claim(part.name)
        self._journal_path(part.name).unlink(missing_ok=True)
        if replaced is not None and replaced.blob != stored.blob:
            self._touched.pop(replaced.blob, None)
            self.path(replaced).unlink(missing_ok=True)

    # --- downloads ---

    def part_path(self, url: str, version: str, pin: str = "") -> Path:
        """Where a download of `url` is to be written."""
        return self._directory / f"{key_of(url, pin)}.{version}.part"

    def claim(self, part: Path, size: int, *, given: int) -> None:
        """A download takes `size` bytes in all for `part`, of which the disk has given `given` already."""
        self._claimed[part.name] = size
        self._promised[part.name] = size - given

    def claimed(self, part: Path) -> int:
        """How many bytes a download has taken."""
        return self._claimed.get(part.name, 0)

    def location(self, unfinished: Unfinished) -> Path:
        """Where its bytes are."""
        return self._directory / unfinished.part

    def reopen(self, unfinished: Unfinished) -> int:
        """Open it, to be gone on with. Raises OSError."""
        return _open_regular(self.location(unfinished), os.O_RDWR)

    def take_unfinished(self, url: str, pin: str = "") -> Unfinished | None:
        """What is there of an earlier download of `url`. It is the caller's now, to go on with or to `discard`."""
        unfinished = self._unfinished.pop(key_of(url, pin), None)
        if unfinished is not None:
            # Of the disk, only what is written is sure: the file system may not have kept the rest for it.
            self.claim(self._directory / unfinished.part, unfinished.size, given=unfinished.received)
        return unfinished

    def checkpoint(self, unfinished: Unfinished, fd: int) -> None:
        """Write down, durably, that so much of the download in `fd` is on disk. Raises OSError."""
        os.fdatasync(fd)
        journal = self._journal_path(unfinished.part)
        temporary = journal.with_suffix(".tmp")
        _write_durably(temporary, unfinished)
        temporary.rename(journal)

    def put_by(self, unfinished: Unfinished) -> None:
        """A download that was checkpointed so is broken off, and kept for later."""
        self._give_up_claim(unfinished.part)
        self._unfinished[key_of(unfinished.url, unfinished.pin)] = unfinished

    def discard(self, part: Path) -> None:
        """Delete a download that can't be used."""
        self._give_up_claim(part.name)
        self._journal_path(part.name).unlink(missing_ok=True)
        part.unlink(missing_ok=True)

    # --- room ---

    def room(self, budget: int | None) -> Room:
        """How full the cache and its disk are. Raises OSError."""
        disk = os.statvfs(self._directory)
        return Room(
            budget=budget,
            used=self.used,
            free=disk.f_bavail * disk.f_frsize,
            disk=disk.f_blocks * disk.f_frsize,
            promised=sum(self._promised.values()),
        )

    @property
    def used(self) -> int:
        """Bytes of the budget that are taken, by what is whole, in progress or broken off."""
        whole = sum(stored.size for stored in self._index.values())
        return whole + sum(self._claimed.values()) + sum(each.size for each in self._unfinished.values())

    def occupants(self) -> Iterator[Occupant]:
        """What could go, in the order in which it should."""
        for unfinished in self._unfinished.values():
            yield Occupant(unfinished.part, unfinished.size, held=False)
        for stored in self._index.values():
            yield Occupant(stored.blob, stored.size, held=stored.blob in self._holders)

    def label(self, name: str) -> str:
        """An occupant for a log line."""
        everything = [(each.blob, each.url) for each in self._index.values()]
        everything += [(each.part, each.url) for each in self._unfinished.values()]
        return next((shown(url) for known, url in everything if known == name), name)

    def evict(self, name: str) -> list[Path]:
        """Take an occupant out; gives the files that are still to be deleted, which may take long (in a thread)."""
        for key, unfinished in self._unfinished.items():
            if unfinished.part == name:
                del self._unfinished[key]
                self._journal_path(name).unlink(missing_ok=True)
                return [self._directory / name]
        for key, stored in self._index.items():
            if stored.blob == name:
                del self._index[key]
                self._touched.pop(name, None)
                self._entry(key).unlink(missing_ok=True)
                return [self.path(stored)]
        return []

    # --- files ---

    def _give_up_claim(self, part: str) -> None:
        self._claimed.pop(part, None)
        self._promised.pop(part, None)

    def _entry(self, key: str) -> Path:
        return self._directory / f"{key}.json"

    def _journal_path(self, part: str) -> Path:
        return self._directory / _journal(part)

    def _read_index(self) -> dict[str, Stored]:
        found = []
        for path in self._directory.glob("*.json"):
            try:
                stored = _read(Stored, path)
                named_rightly = _BLOB.fullmatch(stored.blob) and path.stem == key_of(stored.url, stored.pin)
                if not named_rightly:
                    raise ValueError("it is of another file")
                status = self.path(stored).lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_size != stored.size:
                    raise ValueError(f"{stored.blob} is no file of {stored.size} bytes")
            except (OSError, ValueError) as error:
                log.warning("artifact cache: %s can't be used (%s); it will be fetched anew", path.name, error)
                _remove(path)
            else:
                found.append((status.st_mtime_ns, path.stem, stored))
        return {key: stored for _, key, stored in sorted(found, key=lambda each: each[:2])}

    def _read_journals(self) -> dict[str, Unfinished]:
        found = []
        oldest = time.time() - KEEP_UNFINISHED_SECONDS
        for path in self._directory.glob("*.journal"):
            try:
                unfinished = _read(Unfinished, path)
                key = key_of(unfinished.url, unfinished.pin)
                named_rightly = _PART.fullmatch(unfinished.part) and path.name == _journal(unfinished.part)
                if not named_rightly or not unfinished.part.startswith(f"{key}."):
                    continue
                status = (self._directory / unfinished.part).lstat()
                there = status.st_size if stat.S_ISREG(status.st_mode) else 0
                written = path.stat().st_mtime
            except (OSError, ValueError) as error:
                log.warning("artifact cache: %s can't be used (%s); its download starts over", path.name, error)
                continue
            if 0 < unfinished.received <= min(there, unfinished.size) and written > oldest:
                found.append((written, key, unfinished))
        return {key: unfinished for _, key, unfinished in sorted(found, key=lambda each: each[:2])}


Entry = TypeVar("Entry", Stored, Unfinished)


def _read(kind: type[Entry], path: Path) -> Entry:
    """Raises OSError, ValueError. Fields of a later version are passed over, missing ones have their default."""
    try:
        with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
            raw: Any = json.loads(file.read(_MAX_ENTRY_BYTES))
    except RecursionError:
        raise ValueError("not an entry") from None
    if not isinstance(raw, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - of the file, as the others
    given = {field.name: raw[field.name] for field in fields(kind) if field.name in raw}
    for field in fields(kind):
        if field.name in given and type(given[field.name]).__name__ != field.type:
            raise ValueError(f"{field.name} is not of type {field.type}")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _open_regular(path: Path, mode: int, size: int | None = None) -> int:
    """Open a file of ours, of `size` bytes if that is given, and nothing else that may be in its place: to open a pipe
    would wait for its writer, and a link leads out of the directory. Raises OSError.
    """
    fd = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (size is not None and status.st_size != size):
        os.close(fd)
        raise OSError(errno.EIO, "not the file that was stored", str(path))
    return fd


def _remove(path: Path) -> None:
    """Remove what has the name of a file of ours, whatever it is."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        shutil.rmtree(path, ignore_errors=True)
    except OSError as error:  # it is in nobody's way: names are not used twice
        log.warning("artifact cache: %s can't be removed: %s", path.name, error.strerror)


def _write_durably(path: Path, entry: Stored | Unfinished) -> None:
    # Readable for us alone: URLs may have passwords.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(entry), file)
        file.flush()
        os.fsync(file.fileno())


def key_of(url: str, pin: str) -> str:
    """Names an artifact, and tells nobody its URL, which may have a secret in it: 32 hexadecimal digits."""
    wanted = f"{url}\n{pin}" if pin else url
    return hashlib.sha256(wanted.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _journal(part: str) -> str:
    return part.removesuffix(".part") + ".journal"
