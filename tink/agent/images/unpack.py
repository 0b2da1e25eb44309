"""Unpacks image layers into a root file system, and bounds what an untrusted tar archive may do.

A layer is a tar archive, plain or compressed with gzip or zstd; `store` applies the layers of an image one after the
other to one directory. Names are relative to that directory. `..` is rejected, and a symbolic link on the way is
followed as if the directory were `/`, so no entry ends up outside, whatever earlier entries made. Whiteouts
(`.wh.NAME`, `.wh..wh..opq`) remove entries of lower layers. Nothing else writes to the directory meanwhile, so a path
that has been checked stays checked.

Limits: the bytes and entries of the whole image in the file system, the names that are kept in memory, the headers of
one entry and the global headers, and the depth of directories. Sparse files are rejected. Of the extended attributes
only file capabilities are applied: others may mean something to overlayfs, or nothing at all.

Source: OCI image specification 1.0, "Image Layer Filesystem Changeset".
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import shutil
import stat
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from tink.agent.model import AgentError

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
HEADER_LIMIT_BYTES = 256 * 1024
"""All headers of one entry together: a long name, extended attributes, a map of a sparse file."""
GLOBAL_HEADERS = 64
GLOBAL_HEADER_BYTES = 16 * 1024
"""Maximum size of the global headers (pax `g`): tarfile copies them to each entry."""
INODE_BYTES = 1024
PAGE_BYTES = 4096
"""Size of an entry in a tmpfs without its content, and the block size of its content."""

_INVALID = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError, RecursionError)
"""What tarfile and gzip raise for archives that are none."""

_LINK_DEPTH = 40
_DIRECTORY_DEPTH = 256
_COPY_BYTES = 256 * 1024


class UnpackError(AgentError):
    """A layer cannot be unpacked; the message names the entry."""


class OutOfSpaceError(UnpackError):
    """There is no room for the image."""


@dataclass(slots=True)
class Budget:
    """The remaining limits of an image, shared by its layers.

    `bytes` are those in the file system. `hidden` is the number of entries that whiteouts of directories may visit.
    `names` is the number of characters of names that are kept in memory while a layer is unpacked.
    """

    bytes: int
    entries: int = 500_000
    hidden: int = 5_000_000
    names: int = 128 << 20

    def spend(self, size: int) -> None:
        """Count one more entry of `size` bytes with its size in the file system. Raises OutOfSpaceError,
        UnpackError."""
        self.bytes -= INODE_BYTES + -(-size // PAGE_BYTES) * PAGE_BYTES
        self.entries -= 1
        if self.bytes < 0:
            raise OutOfSpaceError("the image needs more space than there is")
        if self.entries < 0:
            raise UnpackError("the image has more than half a million files")

    def hide(self) -> None:
        """Count one more that a whiteout looks at. Raises UnpackError."""
        self.hidden -= 1
        if self.hidden < 0:
            raise UnpackError("the image has more whiteouts of directories than can be followed")

    def remember(self, name: str) -> None:
        """Count a name that is kept in memory. Raises UnpackError."""
        self.names -= len(name)
        if self.names < 0:
            raise UnpackError("the names of the image's files are too long to be kept in mind together")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _ForwardFile:
    """A compressed stream as tarfile wants it: `tell`, and `seek` forward by reading.

    tarfile calls `read` for headers, and believes the sizes in them; the bytes it may read for one entry are limited.
    The content of files is read with `content`.
    """

    def __init__(self, stream: _Readable, check: Callable[[], None]) -> None:
        self._stream = stream
        self._check = check
        self._position = 0
        self._header_bytes = 0

    def begin_entry(self) -> None:
        """What is read from now on belongs to the next entry."""
        self._header_bytes = 0

    def read(self, size: int) -> bytes:
        self._header_bytes += size
        if size < 0 or self._header_bytes > HEADER_LIMIT_BYTES:
            raise UnpackError(f"the headers of one entry are longer than {HEADER_LIMIT_BYTES} bytes")
        return self._padded(size)

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise UnpackError("the archive points backwards")
        while self._position < position:
            if not self._padded(min(_COPY_BYTES, position - self._position)):
                raise UnpackError("the archive ends early")

    def content(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        self._check()
        parts = []
        while size > 0 and (part := self._stream.read(size)):
            parts.append(part)
            size -= len(part)
            self._position += len(part)
        return b"".join(parts)

    def _padded(self, size: int) -> bytes:
        """As `content`, with the zeros that should fill the last block: `umoci insert` leaves them out."""
        data = self.content(size)
        missing = min(size - len(data), -self._position % tarfile.BLOCKSIZE)
        self._position += missing
        return data + bytes(missing)


def apply_layer(root: Path, archive: Path, budget: Budget, check: Callable[[], None] = lambda: None) -> None:
    """Unpack the layer in file `archive` over `root`.

    `check` is called again and again; what it raises ends the unpacking. Raises UnpackError; OSError of the file system
    underneath is turned into it too.
    """
    try:
        with _decompressed(archive) as stream:
            _apply(root, _ForwardFile(stream, check), budget)
    except _INVALID as error:
        raise UnpackError(f"not a valid archive: {error}") from error


@contextlib.contextmanager
def _decompressed(archive: Path) -> Iterator[_Readable]:
    # By the first bytes, not by the media type: registries and builders do not always agree on that.
    # Unbuffered, because zstd gets the descriptor and reads from where that stands.
    with archive.open("rb", buffering=0) as file:
        magic = file.read(4)
        file.seek(0)
        if magic[:2] == b"\x1f\x8b":
            with gzip.open(file, "rb") as stream:
                yield stream
        # Some tools put a skippable frame first (RFC 8878 section 3.1.2): its magic is 0x184D2A50 to 0x184D2A5F.
        elif magic == b"\x28\xb5\x2f\xfd" or (magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50):
            with _zstd(file) as stream:
                yield stream
        else:
            yield file


@contextlib.contextmanager
def _zstd(file: FileIO) -> Iterator[_Readable]:
    program = shutil.which("zstd")
    if program is None:
        raise UnpackError("compressed with zstd, and this system has no zstd program; push it with gzip")
    with subprocess.Popen([program, "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None  # noqa: S101 - PIPE was asked for above
        try:
            yield process.stdout
            # Behind the archive's end there is only padding. If zstd has more than that to say, it is not waited for.
            if len(process.stdout.read(1024 * 1024)) < 1024 * 1024 and process.wait() != 0:
                raise UnpackError("not a valid zstd stream")
        finally:
            process.kill()


def _apply(root: Path, file: _ForwardFile, budget: Budget) -> None:
    written: set[str] = set()
    with tarfile.TarFile(fileobj=file, mode="r", errorlevel=2) as archive:  # type: ignore[arg-type]  # all that it uses
        while (member := archive.next()) is not None:
            file.begin_entry()
            archive.members.clear()  # type: ignore[attr-defined]  # or it keeps every header of a large image
            _check_global_headers(archive.pax_headers)
            if member.size < 0:
                raise UnpackError(f"{member.name!r}: a negative size")
            # What tarfile does not know has content for it, and is read over.
            has_content = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
            budget.spend(member.size if has_content else 0)
            try:
                _entry(root, member, file, written, budget)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise OutOfSpaceError(f"{member.name!r}: {error.strerror}") from error
                raise UnpackError(f"{member.name!r}: {error.strerror}") from error


def _check_global_headers(headers: Mapping[str, str] | None) -> None:
    if not headers:
        return
    if len(headers) > GLOBAL_HEADERS or sum(map(len, (*headers, *headers.values()))) > GLOBAL_HEADER_BYTES:
        raise UnpackError(f"more than {GLOBAL_HEADERS} global headers, or {GLOBAL_HEADER_BYTES} characters of them")


def _entry(root: Path, member: tarfile.TarInfo, file: _ForwardFile, written: set[str], budget: Budget) -> None:
    parts = split_name(member.name)
    if not parts:
        if member.isdir():
            root.chmod(member.mode & 0o7777)
        return
    name = parts[-1]
    parent = _make_parent(root, parts[:-1], budget)
    if name.startswith(WHITEOUT):
        _whiteout(parent, name, written, budget)
        return
    path = parent / name
    _clear_way(path, keep_directory=member.isdir())
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.issparse():
        raise UnpackError(f"{member.name!r}: sparse files are not supported")
    elif member.isreg():
        _write_file(path, member.size, file)
    elif member.issym():
        path.symlink_to(member.linkname)
    elif member.islnk():
        _hard_link(root, member, path)
    elif member.isdev():
        _make_node(path, member)
    else:
        raise UnpackError(f"{member.name!r}: an entry of type {member.type!r}")
    _note(written, root, path, budget)
    if not member.islnk():
        _set_attributes(path, member)


def split_name(name: str) -> list[str]:
    """The components of an entry's name, which is relative to the root even with a leading slash.

    Raises UnpackError for `..`.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UnpackError(f"{name!r}: leads out of the image")
    return parts


def resolve(root: Path, name: str) -> Path:
    """Where `name` leads inside `root`, following symbolic links as a process would whose root is `root`.

    What does not exist is taken as named. Raises UnpackError for too many links.
    """
    path = root
    todo = [part for part in name.split("/") if part not in ("", ".")]
    links = 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            path = path if path == root else path.parent
            continue
        path /= part
        if path.is_symlink():
            links += 1
            if links > _LINK_DEPTH:
                raise UnpackError(f"{name!r}: too many symbolic links")
            target = str(path.readlink())
            path = root if target.startswith("/") else path.parent
            todo = [piece for piece in target.split("/") if piece not in ("", ".")] + todo
    return path


def _make_parent(root: Path, parts: list[str], budget: Budget) -> Path:
    parent = resolve(root, "/".join(parts))
    if len(parent.parts) - len(root.parts) > _DIRECTORY_DEPTH:
        raise UnpackError(f"directories more than {_DIRECTORY_DEPTH} deep")
    if not parent.is_dir():
        for each in (parent, *parent.parents):
            if each.is_dir():
                break
            budget.spend(0)
        parent.mkdir(parents=True)
        parent.chmod(0o755)
    return parent


def _clear_way(path: Path, *, keep_directory: bool) -> None:
    """Remove what a lower layer, or an earlier entry, has put at `path`; a directory stays for a directory."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink()
    elif not keep_directory:
        shutil.rmtree(path)


def _whiteout(parent: Path, name: str, written: set[str], budget: Budget) -> None:
    if name == OPAQUE:
        _hide(parent, written, budget)
    elif not name.startswith(WHITEOUT + WHITEOUT):  # those are bookkeeping of aufs
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", ".."):
            raise UnpackError(f"{name!r}: a whiteout of nothing")
        path = parent / hidden
        if str(path) not in written:
            _clear_way(path, keep_directory=False)
        elif path.is_dir() and not path.is_symlink():
            _hide(path, written, budget)


def _hide(directory: Path, written: set[str], budget: Budget) -> None:
    """Remove what lower layers put into `directory`; what this layer brought, in whatever order, stays."""
    for path in list(directory.iterdir()):
        budget.hide()
        if str(path) not in written:
            _clear_way(path, keep_directory=False)
        elif path.is_dir() and not path.is_symlink():
            _hide(path, written, budget)


def _note(written: set[str], root: Path, path: Path, budget: Budget) -> None:
    while path != root and (name := str(path)) not in written:
        budget.remember(name)
        written.add(name)
        path = path.parent


def _write_file(path: Path, size: int, file: _ForwardFile) -> None:
    # Exclusive and without following links: the way was cleared, and nothing may be in it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as target:
        while size > 0:
            chunk = file.content(min(size, _COPY_BYTES))
            if not chunk:
                raise UnpackError(f"{path.name!r}: the archive ends early")
            target.write(chunk)
            size -= len(chunk)


def _hard_link(root: Path, member: tarfile.TarInfo, path: Path) -> None:
    parts = split_name(member.linkname)
    if not parts:
        raise UnpackError(f"{member.name!r}: a hard link to nothing")
    source = resolve(root, "/".join(parts[:-1])) / parts[-1]
    os.link(source, path, follow_symlinks=False)


def _make_node(path: Path, member: tarfile.TarInfo) -> None:
    if member.isfifo():
        os.mkfifo(path, 0o600)
        return
    kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
    os.mknod(path, kind | 0o600, os.makedev(member.devmajor, member.devminor))


def _set_attributes(path: Path, member: tarfile.TarInfo) -> None:
    if os.geteuid() == 0:
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if member.issym():
        return
    path.chmod(member.mode & 0o7777)
    if member.isreg():
        _set_capability(path, member)
        os.utime(path, (member.mtime, member.mtime))


def _set_capability(path: Path, member: tarfile.TarInfo) -> None:
    """What setcap(8) gave a program. After the owner, whose change takes it away."""
    value = member.pax_headers.get("SCHILY.xattr.security.capability")
    if value is None:
        return
    try:
        os.setxattr(path, "security.capability", value.encode(errors="surrogateescape"), follow_symlinks=False)
    except OSError as error:
        # A ramfs has no room for it, and without CAP_SETFCAP nobody may: root, whom actions run as, needs none.
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
