"""Where documents come from: files, directories, standard input. What can't be read becomes a finding."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tink.convert.documents import Document, read
from tink.convert.report import Finding, Kind, Source

STDIN = "-"
MAX_FILE_BYTES = 256 << 20
"""A rack's inventory is a hundredth of this; a file of it would be an image that lies in the wrong directory."""

_SUFFIXES = (".yaml", ".yml", ".json")


def read_all(paths: Iterable[str]) -> Iterator[Document | Finding]:
    """The documents of files (`-`: standard input) and of all YAML and JSON files below directories, in name order.

    A file that is met twice is read once. Hidden files and directories are passed over; links are followed, loops not.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        for file in [path] if path == STDIN else _files(path, seen):
            try:
                content = _content(file, seen, listed=file != path)
            except OSError as error:
                yield _unreadable(file, error.strerror or str(error))
                continue
            if content is None:
                continue
            if len(content) > MAX_FILE_BYTES:
                yield _unreadable(file, f"larger than {MAX_FILE_BYTES} bytes")
                continue
            yield from read(file, content)


def _files(path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    """The file itself, or the files of a directory, those of the directories below it after them."""
    if not Path(path).is_dir():
        yield path
        return
    pending = [path]
    while pending:
        directory = pending.pop()
        try:
            there = os.stat(directory)  # noqa: PTH116 - os throughout: ten thousand files
            if (there.st_dev, there.st_ino) in seen:
                continue
            seen.add((there.st_dev, there.st_ino))
            with os.scandir(directory) as found:
                entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError:
            yield directory  # which can't be read: the caller says so
            continue
        yield from (entry.path for entry in entries if entry.name.endswith(_SUFFIXES) and not _is_directory(entry))
        pending += [entry.path for entry in reversed(entries) if _is_directory(entry)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _content(file: str, seen: set[tuple[int, int]], *, listed: bool) -> bytes | None:
    """The content, at most a byte more than is allowed; None if it was read already. Raises OSError."""
    if file == STDIN:
        return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    state = os.stat(file)  # noqa: PTH116
    if stat.S_ISREG(state.st_mode):
        if (state.st_dev, state.st_ino) in seen:
            return None
        seen.add((state.st_dev, state.st_ino))
    elif listed:  # a pipe that somebody named is read; one that lies about would be waited for without end
        raise OSError(0, "it is no regular file")
    with open(file, "rb") as stream:  # noqa: PTH123
        return stream.read(MAX_FILE_BYTES + 1)


def _unreadable(file: str, why: str) -> Finding:
    return Finding(Kind.ERROR, Source(file, 1, "", "", ""), "", f"the file can't be read: {why}")
