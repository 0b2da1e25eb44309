"""The high-water mark: the version of the newest write, beside the state. It tells when answered writes are missing.

SQLite ends its log without a word at the first frame that is not right, and takes a log that is missing for an empty
one. What was answered after that would be gone, and its versions given out again. So the writer puts the newest version
into a file of its own after each commit and before the answers. That is flushed with checkpoints only, for with each
write it would double the cost: after a power cut the file may tell an older version, never one that was not on the
disk.

    tinkedge-state 1 00000000000000004711 1c291ca3
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from pathlib import Path

from tink.files import private_files

_LINE = re.compile(rb"(tinkedge-state 1 ([0-9]{20})) ([0-9a-f]{8})\n")


def path_beside(state: Path) -> Path:
    """Give the path of the mark of a state."""
    return state.with_suffix(".newest")


def read(path: Path) -> int | None:
    """Give the version; None when there is no file. Raises OSError, and ValueError when it is garbled."""
    try:
        with path.open("rb") as file:
            content = file.read(200)
    except FileNotFoundError:
        return None
    match = _LINE.fullmatch(content)
    if match is None or int(match[3], 16) != zlib.crc32(match[1]):
        raise ValueError("it is garbled")
    return int(match[2])


class HighWaterMark:
    """The open file, for the one writer."""

    def __init__(self, path: Path, version: int) -> None:
        """Make the file, or open it, and have it say `version`. Raises OSError."""
        try:
            there = read(path)
        except ValueError:
            there = None
        if there is None:
            private_files.write(path, _line(version))
        self._handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self.record(version)

    def record(self, version: int) -> None:
        """Take a version that is on the disk. Where that fails the file tells an older one, which is never wrong."""
        with suppress(OSError):
            os.pwrite(self._handle, _line(version), 0)  # as long as what it replaces: it needs no room

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._handle)


def sync(path: Path) -> None:
    """Have what was recorded survive a power cut, if the disk lets it."""
    with suppress(OSError):
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _line(version: int) -> bytes:
    text = b"tinkedge-state 1 %020d" % version
    return b"%s %08x\n" % (text, zlib.crc32(text))
