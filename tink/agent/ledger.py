"""A file of records that outlives a `kill -9`: appended to, checked when it is read, written anew when it has grown.

`journal` keeps in it what the agent does; it knows nothing of that. A record counts as kept when `append` has
returned: it is written and fsynced by then. One line each: CRC-32 in hexadecimal, a blank, the record, a line feed.
The first line says what the file is, and whether it is whole:

    tinkedge-ledger 1 whole
    tinkedge-ledger 1 blind      a record could not be written; what is here is true, but not all that was

What a reader may find, and what is made of it:
    the last line without its line feed   its writer died while writing: the record never counted, and is cut off
    anything else that is not right       the file is damaged: what stands before is given, and `whole` is False

When the disk is full (or broken) the ledger says so once, marks itself blind, which takes no new block, and lets the
agent go on without it; each later `append` tries to write the whole anew, so that it heals when there is room again.
Where not even the mark can be written, because the disk is read-only by now, the file *misleads*: who reads it takes it
for the whole. What would be wrong to do twice must not be done then.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

WHOLE: Final = b"tinkedge-ledger 1 whole\n"
BLIND: Final = b"tinkedge-ledger 1 blind\n"

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a longer file only this much is read: no agent writes such a file, and the OSIE's memory is small."""

GROWN_BYTES: Final = 256 * 1024
"""The file is written anew when it is this much longer than it has to be."""


class Disk:
    """The system calls that a ledger makes; tests put one in that fails, or dies, at any of them. Raise OSError."""

    def read(self, path: Path, limit: int) -> bytes:
        with path.open("rb") as file:
            return file.read(limit)

    def open(self, path: Path, *, new: bool) -> int:
        """A descriptor for writing; `new`: of an empty file."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if new else 0), 0o600)

    def write(self, descriptor: int, content: bytes, offset: int) -> int:
        """Gives how many bytes were written, which may be fewer."""
        return os.pwrite(descriptor, content, offset)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def replace(self, new: Path, path: Path) -> None:
        """Put `new` in the place of `path`, and have that survive a loss of power."""
        new.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@dataclass(frozen=True, slots=True)
class Content:
    """What a ledger's file holds. `length`: the bytes up to the end of the last record that is right."""

    records: tuple[bytes, ...]
    length: int
    whole: bool


class Ledger:
    """The file at `path`, for one writer. `snapshot` gives one record that says what all records so far say."""

    def __init__(self, path: Path, snapshot: Callable[[], bytes], disk: Disk | None = None) -> None:
        self._path = path
        self._snapshot = snapshot
        self._disk = disk or Disk()
        self._descriptor: int | None = None
        self._length = 0
        self._least = 0
        self.kept = True
        """Whether the file has everything. False: the agent goes on in memory."""
        self.misleads = False
        """Whether the file looks as if it had everything, and has not."""

    def read(self) -> Content:
        """What an earlier writer has left; nothing when there is no file. Never raises."""
        try:
            raw = self._disk.read(self._path, MAX_BYTES + 1)
        except FileNotFoundError:
            return Content((), 0, whole=True)
        except OSError as error:
            log.error("%s cannot be read: %s; what the agent did before is not known", self._path, error.strerror)
            return Content((), 0, whole=False)
        content = parse(raw[:MAX_BYTES])
        if len(raw) > MAX_BYTES:
            content = Content(content.records, content.length, whole=False)
        if not content.whole:
            log.error(
                "%s is damaged, or was not written to its end because the disk was full: %d records up to byte %d of "
                "%d are used",
                *(self._path, len(content.records), content.length, len(raw)),
            )
        elif content.length < len(raw):
            log.warning("%s: the last record was cut off while it was written; it is ignored", self._path)
        return content

    def append(self, record: bytes, *, sync: bool = True) -> bool:
        """Keep `record`, which the next snapshot must contain too. False: it is not kept, see `kept`. Never raises.

        Without `sync`, losing it would do no harm.
        """
        if self._descriptor is None or self._length > 2 * self._least + GROWN_BYTES:
            return self.rewrite()
        line = line_of(record)
        try:
            self._write(self._descriptor, line, self._length)
            if sync:
                self._disk.sync(self._descriptor)
        except OSError as error:
            self._fail(error)
            return False
        self._length += len(line)
        return True

    def rewrite(self) -> bool:
        """Put a file with the snapshot alone in the place of this one. False: it is not kept. Never raises."""
        new = self._path.with_suffix(".new")
        content = WHOLE + line_of(self._snapshot())
        try:
            descriptor = self._disk.open(new, new=True)
            try:
                self._write(descriptor, content, 0)
                self._disk.sync(descriptor)
                self._disk.replace(new, self._path)
            except OSError:
                self._disk.close(descriptor)
                raise
        except OSError as error:
            self._fail(error)
            return False
        self.close()
        if not self.kept:
            log.warning("%s: can be written again, and has everything", self._path)
        self._descriptor, self._length, self._least = descriptor, len(content), len(content)
        self.kept, self.misleads = True, False
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # what had to be kept was fsynced
                self._disk.close(self._descriptor)
            self._descriptor = None

    def _write(self, descriptor: int, content: bytes, offset: int) -> None:
        while content:
            count = self._disk.write(descriptor, content, offset)
            if count == 0:
                raise OSError(errno.ENOSPC, "nothing could be written")
            content, offset = content[count:], offset + count

    def _fail(self, error: OSError) -> None:
        """Leave a file that is not taken for the whole, and let the next `append` write it anew."""
        if self.kept:
            log.error(
                "%s cannot be written: %s; the agent goes on, but if it is killed now, what it runs will be reported "
                "as lost. Make room there, or give it another --state-dir",
                *(self._path, error.strerror or error),
            )
        self.kept, self.misleads = False, True
        self.close()
        try:
            descriptor = self._disk.open(self._path, new=False)
        except FileNotFoundError:  # the directory is gone, and the file with it
            self.misleads = False
            return
        except OSError as worse:
            log.error("%s cannot even be marked as incomplete: %s", self._path, worse.strerror or worse)
            return
        try:
            self._write(descriptor, BLIND, 0)
            self._disk.sync(descriptor)
            self.misleads = False
        except OSError as worse:
            log.error("%s cannot even be marked as incomplete: %s", self._path, worse.strerror or worse)
        finally:
            self._disk.close(descriptor)


def line_of(record: bytes) -> bytes:
    """A record, which has no line feed in it, as it stands in the file."""
    return b"%08x %s\n" % (zlib.crc32(record), record)


def parse(raw: bytes) -> Content:
    """What the bytes of a file say."""
    header = raw[: len(WHOLE)]
    if header not in (WHOLE, BLIND):  # also when it is empty: only a full disk leaves a ledger so
        return Content((), 0, whole=False)
    records: list[bytes] = []
    length = len(header)
    while (end := raw.find(b"\n", length)) >= 0:
        line = raw[length : end + 1]
        record = line[9:-1]
        if line != line_of(record):
            return Content(tuple(records), length, whole=False)
        records.append(record)
        length = end + 1
    tail = raw[length:]
    # A writer that died leaves a part of a line. A record that is right, and a byte behind it that is no line feed, is
    # none: that record counted.
    torn = not tail or line_of(tail[9:-1]) != tail[:-1] + b"\n"
    return Content(tuple(records), length, whole=torn and header == WHOLE)
