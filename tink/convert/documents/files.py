"""Files that documents come from and that results go to.

Sources are files, directories and standard input; what can't be read becomes a finding. A file that is written is there
whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tink.api.v1alpha2 import Raw
from tink.convert.documents.document import DEFAULT_NAMESPACE, Document
from tink.convert.documents.reader import read
from tink.convert.findings import Finding, Kind, Source
from tink.files import private_files

STDIN = "-"
MAX_FILE_BYTES = 256 << 20
"""A rack's inventory is a hundredth of this; a file of it would be an image that lies in the wrong directory."""

_SUFFIXES = (".yaml", ".yml", ".json")
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME = 200


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


def file_name(obj: Raw, suffix: str) -> str:
    """`hardware-default-node-1.yaml`. Whatever the object says, it stays in its directory and is unlike any other."""
    metadata = obj["metadata"]
    namespace = str(metadata.get("namespace") or DEFAULT_NAMESPACE)
    said = f"{obj['kind'].lower()}-{namespace}-{metadata.get('name')}"
    safe = _UNSAFE_IN_NAME.sub("_", said)[:_LONGEST_NAME]
    # Two objects may come to one name: a-b in c, and b-c... of a; the slash tells them apart.
    if safe != said or "-" in namespace or "-" in obj["kind"]:
        safe += "-" + hashlib.sha256(f"{obj['kind']}/{namespace}/{metadata.get('name')}".encode()).hexdigest()[:8]
    return safe + suffix


def write_whole(path: Path, text: Iterable[str]) -> None:
    """Write a text file whole, or leave what was there before. Raises OSError.

    A symbolic link stays one. A device or a pipe (`/dev/stdout`) is not replaced but written to.
    """
    try:
        with private_files.stream(path, private=False) as file:
            file.writelines(each.encode() for each in text)
    except OSError as error:
        error.filename = str(path)  # not that of the temporary file
        raise
