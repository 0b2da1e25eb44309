"""One file of a checkpoint: objects of one kind, as an informer knew them at a time.

    tinkedge-checkpoint/2\\n
    {"kind": "hardware", "known": 1795446000.0, "cluster": ["ca:..."], "objects": 3}\\n      JSON, one line
    dictionary, then blocks of objects, each two records: 4 bytes of length (network order), then
        [["default", "m1", 290, ["52:54:00:00:00:01", "10.0.0.1"]], ...]                  JSON: which objects, how many
                                                          bytes of the second record each has, by what it is looked for
        raw deflate of one after the other                                                `tink.kube.cache.compression`
    SHA-256 of all that stands before

So a machine can be found before any object has been read.

It is written beside its place and moved there whole (0600). Its time is moved forward (utime(2)) while what is in it is
still so: that says until when it is known to be right, without writing it again.

Read is only what this very user wrote, nobody else can have changed, and has the right sum. Another version of the
format is no error: it is of another release, and soon replaced.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from tink.api.v1alpha2 import Raw
from tink.files import private_files
from tink.files.data_directory import user_name
from tink.kube.cache import ObjectCompressor, Packed
from tink.kube.objects import NamespacedName

MAX_BYTES: Final = 1 << 30
"""Of a file that is written, or read."""
_MAGIC: Final = b"tinkedge-checkpoint/"
_VERSION: Final = b"2"
_MAX_LINE: Final = 64 << 10
_MAX_RECORD: Final = MAX_BYTES
_BLOCK: Final = 500
"""Objects of a block."""
_LENGTH: Final = struct.Struct("!I")
_DIGEST_BYTES: Final = 32
_PIECE: Final = 1 << 20
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class CheckpointError(Exception):
    """There is nothing to read; the message names the file, and says why and what becomes of it."""


class AbsentError(CheckpointError):
    """There is no file."""


@dataclass(frozen=True, slots=True)
class Head:
    """`known`: Unix seconds; `cluster`: what the API's cluster is known by (`tink.kube.identity`)."""

    kind: str
    known: float
    cluster: frozenset[str]
    objects: int


@dataclass(frozen=True, slots=True)
class LookedUpBy:
    """By what objects are looked for: `known` gives it of one that is compressed as that, if it is at hand; `read` of
    any other. Both are called in a thread."""

    known: Callable[[NamespacedName, bytes], Iterable[str] | None]
    read: Callable[[Raw], Iterable[str]]

    def of(self, key: NamespacedName, obj: bytes | Raw, packer: ObjectCompressor) -> list[str]:
        """All of an object as it is kept; `packer` can read it."""
        if not isinstance(obj, bytes):
            return list(self.read(obj))
        found = self.known(key, obj)
        return list(found if found is not None else self.read(packer.decompress(obj)))


_BY_NOTHING: Final = LookedUpBy(lambda _key, _packed: (), lambda _obj: ())


def write(path: Path, head: Head, packed: Packed, looked_up_by: LookedUpBy = _BY_NOTHING) -> int:
    """Replace the file; gives its bytes. In a thread: it takes a while. Raises OSError."""
    with private_files.stream(path) as file:
        out = _Out(file)
        described = {"kind": head.kind, "known": head.known, "cluster": sorted(head.cluster), "objects": head.objects}
        out.write(_MAGIC + _VERSION + b"\n" + orjson.dumps(described) + b"\n")
        compressor = ObjectCompressor(packed.dictionary)
        objects = list(packed.objects.items())
        if not compressor.dictionary and objects:
            compressor.compress(_raw(objects[0][1]))
        out.record(compressor.dictionary)
        for start in range(0, len(objects), _BLOCK):
            entries, block = [], bytearray()
            for key, obj in objects[start : start + _BLOCK]:
                content = obj if isinstance(obj, bytes) else compressor.compress(obj)
                entries.append((*key, len(content), looked_up_by.of(key, obj, compressor)))
                block += content
            out.record(orjson.dumps(entries))
            out.record(block)
        size = out.end()
    os.utime(path, (head.known, head.known))
    return size


class Entry(NamedTuple):
    """An object, as `Content.packer` has made it, and by what it is looked for."""

    key: NamespacedName
    packed: bytes
    looked_up_by: list[str]


class Content:
    """A file that is whole and ours. Used in `opened` alone."""

    def __init__(self, file: BinaryIO, path: Path, head: Head, end: int) -> None:
        self._file = file
        self._path = path
        self._end = end
        self.head = head
        self.packer = ObjectCompressor()
        """What reads its objects: from the first of its `entries` on."""

    def entries(self) -> Iterator[Entry]:
        """One after the other; the objects themselves are not looked at. Raises CheckpointError, OSError."""
        try:
            self.packer = ObjectCompressor(self._record())
            while self._file.tell() < self._end:
                described, block, at = orjson.loads(self._record()), self._record(), 0
                for namespace, name, size, looked_up_by in described:
                    yield Entry(NamespacedName(namespace, name), block[at : at + size], looked_up_by)
                    at += size
                if at != len(block):
                    raise ValueError("objects are missing")
        except (orjson.JSONDecodeError, TypeError, ValueError) as error:
            raise _ignored(self._path, f"is damaged ({error})") from error

    def _record(self) -> bytes:
        (length,) = _LENGTH.unpack(_exactly(self._file, _LENGTH.size))
        if length > _MAX_RECORD:
            raise ValueError("a record is too large")
        return _exactly(self._file, length)


@contextmanager
def opened(path: Path, kind: str, cluster: frozenset[str]) -> Iterator[Content]:
    """The file, once all of it has been looked at. In a thread: it is read as a whole. Raises CheckpointError."""
    try:
        # No link to elsewhere is followed, and no pipe is waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise AbsentError(f"there is no {path}") from error
    except OSError as error:
        raise _ignored(path, f"can't be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _ignored(path, "is no plain file")
    with os.fdopen(handle, "rb") as file:
        try:
            yield _checked(file, path, kind, cluster)
        except OSError as error:
            raise _ignored(path, f"can't be read: {error.strerror}") from error


def _checked(file: BinaryIO, path: Path, kind: str, cluster: frozenset[str]) -> Content:
    found = os.fstat(file.fileno())
    if found.st_uid != os.geteuid():
        raise _ignored(path, f"belongs to {user_name(found.st_uid)}, who may have put it there")
    if found.st_mode & _OTHERS:
        raise _ignored(path, f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})")
    if found.st_size > MAX_BYTES:
        raise _ignored(path, f"has more than {MAX_BYTES} bytes")
    magic = file.readline(_MAX_LINE)
    if magic.startswith(_MAGIC) and magic.endswith(b"\n") and magic != _MAGIC + _VERSION + b"\n":
        version = magic.removeprefix(_MAGIC).strip()[:20].decode(errors="replace")
        raise _ignored(path, f"is of another release (format {version}, this one has {_VERSION.decode()})")
    end = found.st_size - _DIGEST_BYTES
    if not magic.startswith(_MAGIC) or not _has_sum(file, end):
        raise _ignored(path, "is damaged, or was cut off")
    file.seek(len(magic))
    head = _head(path, file.readline(_MAX_LINE))
    if head.kind != kind:
        raise _ignored(path, f"is one of {head.kind}")
    if not head.cluster & cluster:
        raise _ignored(path, "is of another cluster")
    known = max(head.known, found.st_mtime)
    return Content(file, path, Head(kind, known, head.cluster, head.objects), end)


def _head(path: Path, line: bytes) -> Head:
    try:
        found: dict[str, Any] = orjson.loads(line)
        kind, known, objects = str(found["kind"]), float(found["known"]), int(found["objects"])
        return Head(kind, known, frozenset(map(str, found["cluster"])), objects)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise _ignored(path, f"is damaged ({error})") from error


def _has_sum(file: BinaryIO, end: int) -> bool:
    """Whether the file ends with the sum of its first `end` bytes."""
    file.seek(0)
    digest, left = hashlib.sha256(), end
    while left > 0 and (piece := file.read(min(_PIECE, left))):
        digest.update(piece)
        left -= len(piece)
    return left == 0 and file.read(_DIGEST_BYTES + 1) == digest.digest()


def _ignored(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path} {why}: it is ignored, and written anew when the Kubernetes API answers")


def _exactly(file: BinaryIO, size: int) -> bytes:
    found = file.read(size)
    if len(found) < size:
        raise ValueError("it ends in an object")
    return found


def _raw(obj: bytes | Raw) -> Raw:
    if isinstance(obj, bytes):
        raise TypeError("an object was compressed without a dictionary")
    return obj


class _Out:
    """Writes pieces of a good size, and sums them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._waiting = bytearray()
        self._written = 0

    def record(self, content: bytes | bytearray) -> None:
        self.write(_LENGTH.pack(len(content)))
        self.write(content)

    def write(self, content: bytes | bytearray) -> None:
        self._waiting += content
        if len(self._waiting) >= _PIECE:
            self._flush()

    def end(self) -> int:
        self._flush()
        self._file.write(self._digest.digest())
        return self._written + _DIGEST_BYTES

    def _flush(self) -> None:
        self._digest.update(self._waiting)
        self._file.write(self._waiting)
        self._written += len(self._waiting)
        self._waiting.clear()
        if self._written > MAX_BYTES:
            raise OSError(0, f"there is more than {MAX_BYTES} bytes to write")
