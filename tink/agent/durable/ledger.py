"""A file of records that outlives a `kill -9`: appended to, checked when it is read, written anew when it has grown.

`journal` keeps in it what the agent does; it knows nothing of that. A record counts as kept when `append` has
returned: it is written and fsynced by then. One line each: CRC-32 in hexadecimal over the record and all before it, a
blank, the record, a line feed. The first line says what the file is, whether it is whole, and how many records count,
which is written after the record:

    tinkedge-ledger 2 whole 0000000017
    tinkedge-ledger 2 blind 0000000017    a record could not be written; what is here is true, but not all that was

What a reader may find, and what is made of it:
    as many records as count, or one more, and then the beginning of a line
                                          its writer died while writing: that record never counted, and is cut off
    anything else                         the file is damaged: what stands before is given, and `whole` is False.
                                          Records that are missing, come twice or in another order are noticed, too

A power loss may leave less of what did not count, in any order; but who reads then finds another boot (`journal`).

When the disk is full (or broken) the ledger says so once, marks itself blind, which takes no new block, and lets the
agent go on without it; each later `append` tries to write the whole anew, so that it heals when there is room again.
Where not even the mark can be written, because the disk is read-only by now, the file is *stale*: who reads it takes it
for the whole. What would be wrong to do twice must not be done then.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

WHOLE: Final = b"tinkedge-ledger 2 whole "
BLIND: Final = b"tinkedge-ledger 2 blind "
_HEADER: Final = re.compile(rb"tinkedge-ledger 2 (whole|blind) ([0-9]{10})\n")

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
        self._count = 0
        self._chain = 0
        self.durable = True
        """Whether the file has everything. False: the agent goes on in memory."""
        self.stale = False
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
                "%s is damaged, or of another version, or was not written to its end because the disk was full: %d "
                "records up to byte %d of %d are used",
                *(self._path, len(content.records), content.length, len(raw)),
            )
        elif content.length < len(raw):
            log.warning("%s: the last record was cut off while it was written; it is ignored", self._path)
        return content

    def append(self, record: bytes, *, sync: bool = True) -> bool:
        """Keep `record`, which the next snapshot must contain too. False: it is not kept, see `durable`. Never raises.

        Without `sync`, losing it would do no harm.
        """
        if self._descriptor is None or self._length > 2 * self._least + GROWN_BYTES:
            return self.rewrite()
        line, chain = line_of(record, self._chain)
        try:
            self._write(self._descriptor, line, self._length)
            self._write(self._descriptor, b"%010d" % (self._count + 1), len(WHOLE))
            if sync:
                self._disk.sync(self._descriptor)
        except OSError as error:
            self._fail(error)
            return False
        self._length += len(line)
        self._count += 1
        self._chain = chain
        return True

    def rewrite(self) -> bool:
        """Put a file with the snapshot alone in the place of this one. False: it is not kept. Never raises."""
        new = self._path.with_suffix(".new")
        content, chain = file_of([self._snapshot()])
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
        if not self.durable:
            log.warning("%s: can be written again, and has everything", self._path)
        self._descriptor, self._length, self._least = descriptor, len(content), len(content)
        self._count, self._chain = 1, chain
        self.durable, self.stale = True, False
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
        if self.durable:
            log.error(
                "%s cannot be written: %s; the agent goes on, but if it is killed now, what it runs will be reported "
                "as lost. Make room there, or give it another --state-dir",
                *(self._path, error.strerror or error),
            )
        self.durable, self.stale = False, True
        self.close()
        try:
            descriptor = self._disk.open(self._path, new=False)
        except FileNotFoundError:  # the directory is gone, and the file with it
            self.stale = False
            return
        except OSError as worse:
            log.error("%s cannot even be marked as incomplete: %s", self._path, worse.strerror or worse)
            return
        try:
            self._write(descriptor, BLIND, 0)
            self._disk.sync(descriptor)
            self.stale = False
        except OSError as worse:
            log.error("%s cannot even be marked as incomplete: %s", self._path, worse.strerror or worse)
        finally:
            self._disk.close(descriptor)


def line_of(record: bytes, chain: int = 0) -> tuple[bytes, int]:
    """A record, which has no line feed in it, as it stands in the file after those with the checksum `chain`.

    Gives the checksum with it, too.
    """
    chain = zlib.crc32(record, chain)
    return b"%08x %s\n" % (chain, record), chain


def file_of(records: Iterable[bytes]) -> tuple[bytes, int]:
    """A whole file of these, and the checksum of all of them."""
    lines, chain = [], 0
    for record in records:
        line, chain = line_of(record, chain)
        lines.append(line)
    return b"%b%010d\n%b" % (WHOLE, len(lines), b"".join(lines)), chain


def parse(raw: bytes) -> Content:
    """What the bytes of a file say."""
    header = _HEADER.match(raw)
    if header is None:  # also when it is empty: only a full disk leaves a ledger so
        return Content((), 0, whole=False)
    kind, counted = header[1], int(header[2])
    records: list[bytes] = []
    length, chain = header.end(), 0
    while (end := raw.find(b"\n", length)) >= 0:
        record = raw[length + 9 : end]
        line, chain = line_of(record, chain)
        if raw[length : end + 1] != line:
            return Content(tuple(records), length, whole=False)
        records.append(record)
        length = end + 1
    return Content(tuple(records), length, whole=kind == b"whole" and len(records) in (counted, counted + 1))
