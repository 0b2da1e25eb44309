"""Unpacks images and stores them on disk (OCI image specification 1.1)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

from tink.agent.images.registry import ATTEMPTS, AbortedError, Registries, Session, TransientError, parse, retry_backoff
from tink.agent.model import ActionError, AgentError, Reason
from tink.agent.output import PullProgress, thread_safe_sink
from tink.registry.manifests import MANIFEST_LIMIT_BYTES, is_made_for, json_object, own_platform, resolve
from tink.registry.names import RegistryError, is_digest
from tink.waiting import done_before

log = logging.getLogger(__name__)

# --- Layers ---
#
# Unpacks image layers into a root file system, and bounds what an untrusted tar archive may do.
#
# A layer is a tar archive, plain or compressed with gzip or zstd; `store` applies the layers of an image one after the
# other to one directory. Names are relative to that directory. `..` is rejected, and a symbolic link on the way is
# followed as if the directory were `/`, so no entry ends up outside, whatever earlier entries made. Whiteouts
# (`.wh.NAME`, `.wh..wh..opq`) remove entries of lower layers. Nothing else writes to the directory meanwhile, so a path
# that has been checked stays checked.
#
# Limits: the bytes and entries of the whole image in the file system, the names that are kept in memory, the headers of
# one entry and the global headers, and the depth of directories. Sparse files are rejected. Of the extended attributes
# only file capabilities are applied: others may mean something to overlayfs, or nothing at all.
#
# Source: OCI image specification 1.0, "Image Layer Filesystem Changeset".


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
"""The errors of tarfile and gzip for invalid archives."""

_LINK_DEPTH = 40
_DIRECTORY_DEPTH = 256
_COPY_BYTES = 256 * 1024


class UnpackError(AgentError):
    """A layer cannot be unpacked; the message names the entry."""


class OutOfSpaceError(UnpackError):
    """There is no room for the image."""


@dataclass(slots=True)
class ImageBudget:
    """The remaining limits of an image, shared by its layers.

    `bytes`: in the file system. `hidden`: entries that whiteouts of directories may visit. `names`: characters of names
    that are kept in memory while a layer is unpacked.
    """

    bytes: int
    entries: int = 500_000
    hidden: int = 5_000_000
    names: int = 128 << 20

    def spend(self, size: int) -> None:
        """Count an entry with `size` bytes of content. Raises OutOfSpaceError, UnpackError."""
        self.bytes -= INODE_BYTES + -(-size // PAGE_BYTES) * PAGE_BYTES
        self.entries -= 1
        if self.bytes < 0:
            raise OutOfSpaceError("the image needs more space than there is")
        if self.entries < 0:
            raise UnpackError("the image has more than half a million files")

    def hide(self) -> None:
        """Count an entry that a whiteout visits. Raises UnpackError."""
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
    """A compressed stream as a file for tarfile: `tell`, and `seek` forward by reading.

    tarfile calls `read` for headers and trusts the sizes in them, so the bytes of one entry's headers are limited. The
    content of files is read with `content`.
    """

    def __init__(self, stream: _Readable, check: Callable[[], None]) -> None:
        self._stream = stream
        self._check = check
        self._position = 0
        self.header_bytes = 0
        """The bytes of the current entry's headers."""

    def read(self, size: int) -> bytes:
        self.header_bytes += size
        if size < 0 or self.header_bytes > HEADER_LIMIT_BYTES:
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
        """Return the next `size` bytes; fewer only at the end."""
        self._check()
        parts = []
        while size > 0 and (part := self._stream.read(size)):
            parts.append(part)
            size -= len(part)
            self._position += len(part)
        return b"".join(parts)

    def _padded(self, size: int) -> bytes:
        """Return `content` with the zeros that should fill the last block: `umoci insert` omits them."""
        data = self.content(size)
        missing = min(size - len(data), -self._position % tarfile.BLOCKSIZE)
        self._position += missing
        return data + bytes(missing)


def apply_layer(root: Path, archive: Path, budget: ImageBudget, check: Callable[[], None] = lambda: None) -> None:
    """Unpack the layer in file `archive` over `root`. Raises UnpackError, also for errors of the file system.

    `check` is called again and again; an exception of it ends the unpacking.
    """
    try:
        with _decompressed(archive) as stream:
            _apply(root, _ForwardFile(stream, check), budget)
    except _INVALID as error:
        raise UnpackError(f"not a valid archive: {error}") from error


@contextlib.contextmanager
def _decompressed(archive: Path) -> Iterator[_Readable]:
    # By the first bytes, because registries and builders do not always agree on the media type. Unbuffered, because
    # zstd gets the descriptor and reads from its position.
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
            # Only padding follows the archive's end. A zstd that sends more than that is not waited for.
            if len(process.stdout.read(1024 * 1024)) < 1024 * 1024 and process.wait() != 0:
                raise UnpackError("not a valid zstd stream")
        finally:
            process.kill()


def _apply(root: Path, file: _ForwardFile, budget: ImageBudget) -> None:
    written: set[str] = set()
    with tarfile.TarFile(fileobj=file, mode="r", errorlevel=2) as archive:  # type: ignore[arg-type]  # all that it uses
        while (member := archive.next()) is not None:
            file.header_bytes = 0
            archive.members.clear()  # type: ignore[attr-defined]  # or it keeps every header of a large image
            headers = archive.pax_headers or {}
            if len(headers) > GLOBAL_HEADERS or sum(map(len, (*headers, *headers.values()))) > GLOBAL_HEADER_BYTES:
                limits = f"{GLOBAL_HEADERS} global headers, or {GLOBAL_HEADER_BYTES} characters of them"
                raise UnpackError(f"more than {limits}")
            if member.size < 0:
                raise UnpackError(f"{member.name!r}: a negative size")
            # tarfile skips the content of entries whose type it does not know.
            has_content = member.isreg() or member.type not in tarfile.SUPPORTED_TYPES
            budget.spend(member.size if has_content else 0)
            try:
                _entry(root, member, file, written, budget)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise OutOfSpaceError(f"{member.name!r}: {error.strerror}") from error
                raise UnpackError(f"{member.name!r}: {error.strerror}") from error


def _entry(root: Path, member: tarfile.TarInfo, file: _ForwardFile, written: set[str], budget: ImageBudget) -> None:
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
        target = split_name(member.linkname)
        if not target:
            raise UnpackError(f"{member.name!r}: a hard link to nothing")
        os.link(path_in_root(root, "/".join(target[:-1])) / target[-1], path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path, 0o600)
    elif member.isdev():
        kind = stat.S_IFCHR if member.ischr() else stat.S_IFBLK
        os.mknod(path, kind | 0o600, os.makedev(member.devmajor, member.devminor))
    else:
        raise UnpackError(f"{member.name!r}: an entry of type {member.type!r}")
    _note(written, root, path, budget)
    if not member.islnk():
        _set_attributes(path, member)


def split_name(name: str) -> list[str]:
    """Return the parts of an entry's name, which is relative even with a leading slash. Raises UnpackError for `..`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise UnpackError(f"{name!r}: leads out of the image")
    return parts


def path_in_root(root: Path, name: str) -> Path:
    """Return the path of `name` for a process whose root is `root`: follow symbolic links as that process would.

    Parts that do not exist are used as they are. Raises UnpackError for too many links.
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


def _make_parent(root: Path, parts: list[str], budget: ImageBudget) -> Path:
    parent = path_in_root(root, "/".join(parts))
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
    """Remove the entry of a lower layer, or an earlier one, at `path`; a directory stays for a directory."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif not keep_directory:
        shutil.rmtree(path)


def _whiteout(parent: Path, name: str, written: set[str], budget: ImageBudget) -> None:
    if name == OPAQUE:
        _hide(parent, written, budget)
    elif not name.startswith(WHITEOUT + WHITEOUT):  # aufs uses these names for itself
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", ".."):
            raise UnpackError(f"{name!r}: a whiteout of nothing")
        path = parent / hidden
        if str(path) not in written:
            _clear_way(path, keep_directory=False)
        elif path.is_dir() and not path.is_symlink():
            _hide(path, written, budget)


def _hide(directory: Path, written: set[str], budget: ImageBudget) -> None:
    """Remove the entries of lower layers in `directory`, but none of this layer."""
    for path in list(directory.iterdir()):
        budget.hide()
        if str(path) not in written:
            _clear_way(path, keep_directory=False)
        elif path.is_dir() and not path.is_symlink():
            _hide(path, written, budget)


def _note(written: set[str], root: Path, path: Path, budget: ImageBudget) -> None:
    while path != root and (name := str(path)) not in written:
        budget.remember(name)
        written.add(name)
        path = path.parent


def _write_file(path: Path, size: int, file: _ForwardFile) -> None:
    # Exclusive and without following links: `_clear_way` has removed any other entry.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as target:
        while size > 0:
            chunk = file.content(min(size, _COPY_BYTES))
            if not chunk:
                raise UnpackError(f"{path.name!r}: the archive ends early")
            target.write(chunk)
            size -= len(chunk)


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
    """Set the file capabilities (setcap(8)). After the owner, because chown removes them."""
    value = member.pax_headers.get("SCHILY.xattr.security.capability")
    if value is None:
        return
    try:
        os.setxattr(path, "security.capability", value.encode(errors="surrogateescape"), follow_symlinks=False)
    except OSError as error:
        # A ramfs can't store capabilities, and without CAP_SETFCAP they can't be set. Actions run as root and need
        # none.
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise


# --- Store ---
#
# Images on this machine: pulled from a registry, unpacked, stored by digest.
#
# `state_dir/images/<digest>/` contains `rootfs/` and `config.json` of one image, named by the digest of its manifest.
# It is renamed into place after every layer is verified and unpacked, so it is always complete. A tag is always
# requested from the registry, because it may have moved; then the cache is consulted. If the registry does not answer,
# the result of the last pull of the same name is used, as in a container engine. `runc` mounts a `rootfs` as the lower,
# read-only side of a container.
#
# Layers are fetched one at a time into a file, continued where a broken connection left off, and checked against their
# digest before they are opened. When there is no room, the other images are removed and the pull is tried once more.


LAYER_LIMIT = 256
PROGRESS_BYTES = 64 * 1024
"""Number of bytes that a broken transfer must deliver to not count as a failed attempt."""
_ABORT_SECONDS = 2.0
_RESERVE_BYTES = 16 * 1024 * 1024
"""Room that is left for the rest of the system: in the OSIE, images live in memory."""


@dataclass(frozen=True, slots=True)
class UnpackedImage:
    """An unpacked image: its read-only root file system, and its Image Configuration (OCI image specification)."""

    rootfs: Path
    config: Mapping[str, Any]


class ImageStore:
    """Pulls images and stores them under `state_dir`. One pull at a time.

    `architecture`: the processor, with its variant (`arm/v7`); None: this machine's.
    """

    def __init__(
        self,
        state_dir: Path,
        registries: Registries,
        *,
        architecture: str | None = None,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.images = state_dir / "images"
        self.work = state_dir / "pulls"
        self._registries = registries
        self.architecture = architecture or own_platform()
        self._sleep = sleep
        self._by_name: dict[str, str] = {}

    def prepare(self) -> None:
        """Make the directories; remove the files of an interrupted pull."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.images.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True)

    def get(self, image: str) -> UnpackedImage:
        """Return the result of the last `pull` of `image`. Raises ActionError."""
        digest = self._by_name.get(image)
        if digest is None:
            raise ActionError(Reason.IMAGE_PULL_FAILED, f"image {image}: it has not been pulled")
        directory = self.images / digest
        return UnpackedImage(directory / "rootfs", json.loads((directory / "config.json").read_bytes()))

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        """Pull `image` in the registry's current version; return without it if `stop` is set. Raises ActionError."""
        progress = PullProgress(image, thread_safe_sink())
        session = Session(parse(image), self._registries, self._sleep, progress.note)
        pull = _Pull(self, image, session, progress)
        work = asyncio.create_task(asyncio.to_thread(pull.run))
        silences = asyncio.create_task(progress.report_silences())
        try:
            if not await done_before(work, stop):
                session.abort()
                # Connecting and looking up a name can't be interrupted, so the thread may end later.
                await asyncio.wait({work}, timeout=_ABORT_SECONDS)
                work.add_done_callback(_log_late_failure)
                return
            self._by_name[image] = work.result()
        except AbortedError:
            return
        except (AgentError, RegistryError) as error:
            if (digest := self._by_name.get(image)) is not None and (self.images / digest).exists():
                progress.note(f"cannot be pulled ({error}); the copy of the last pull is used")
                return
            raise ActionError(Reason.IMAGE_PULL_FAILED, f"image {image}: {error}") from error
        except OSError as error:
            raise ActionError(Reason.IMAGE_PULL_FAILED, f"image {image}: {error.filename}: {error.strerror}") from error
        finally:
            silences.cancel()


def _log_late_failure(work: asyncio.Task[str]) -> None:
    if not work.cancelled() and (error := work.exception()) and not isinstance(error, AbortedError):
        log.info("after the pull was stopped: %s", error)


@dataclass(frozen=True, slots=True)
class _Blob:
    """A descriptor of the OCI image specification, as far as it is needed."""

    digest: str
    size: int


class _Pull:
    """One pull into `store`, in a thread of its own."""

    def __init__(self, store: ImageStore, image: str, session: Session, progress: PullProgress) -> None:
        self._store = store
        self._image = image
        self._session = session
        self._progress = progress
        self._done = 0
        self._total = 0

    def run(self) -> str:
        """Pull the image and return the name of its directory. Raises AgentError, RegistryError, OSError."""
        reference, store = self._session.reference, self._store
        try:
            self._progress.waits_for(reference.host)
            digest, manifest = resolve(
                reference.version, self._session.manifest, self._session.config, own=store.architecture
            )
            self._progress.waits_for("")
            name = digest.partition(":")[2]
            directory = store.images / name
            if directory.exists():
                self._progress.note("is here already")
                return name
            try:
                self._fetch(manifest, directory)
            except OutOfSpaceError:
                # No other image is in use, because actions run one after the other.
                others = list(store.images.iterdir())
                if not others:
                    raise
                for each in others:
                    shutil.rmtree(each)
                self._progress.note("no room; the other images were removed, trying again")
                self._fetch(manifest, directory)
            return name
        finally:
            self._session.close()

    def _fetch(self, manifest: dict[str, Any], directory: Path) -> None:
        layers = manifest.get("layers")
        if manifest.get("schemaVersion") != 2 or not isinstance(layers, list) or len(layers) > LAYER_LIMIT:
            raise RegistryError(
                "its manifest is neither an OCI image nor Docker schema 2; push it again with newer tools"
            )
        blobs = [_blob(layer) for layer in layers]
        self._done, self._total = 0, sum(blob.size for blob in blobs)
        with tempfile.TemporaryDirectory(dir=self._store.work) as scratch:
            config = self._config(_blob(manifest.get("config")), Path(scratch))
            made = Path(scratch, "image")
            rootfs = made / "rootfs"
            rootfs.mkdir(parents=True)
            rootfs.chmod(0o755)
            (made / "config.json").write_text(json.dumps(config))
            budget = ImageBudget(0)  # `_layer` sets the bytes
            try:
                for blob in blobs:
                    self._layer(blob, rootfs, Path(scratch, "layer"), budget)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise OutOfSpaceError(f"{self._store.work}: {error.strerror}") from error
                raise
            made.rename(directory)
        log.info("image %s: %.1f MB pulled", self._image, self._total / 1e6)

    def _config(self, blob: _Blob, scratch: Path) -> dict[str, Any]:
        if blob.size > MANIFEST_LIMIT_BYTES:
            raise RegistryError(f"its configuration has {blob.size} bytes")
        path = scratch / "config"
        self._download(blob, path, counted=False)
        config = json_object(path.read_bytes(), "its configuration")
        own = self._store.architecture
        if not is_made_for(own, config):
            made_for = config.get("architecture")
            log.warning("image %s: says that it is for %s; this machine is %s", self._image, made_for, own)
        return config

    def _layer(self, blob: _Blob, rootfs: Path, path: Path, budget: ImageBudget) -> None:
        # The room at this moment, because other files grow as well, without the packed layer itself.
        room = _room(self._store.work)
        if blob.size > room:
            raise OutOfSpaceError(f"a layer of {blob.size / 1e6:.0f} MB, and room for {room / 1e6:.0f} MB")
        budget.bytes = room - blob.size
        self._download(blob, path, counted=True)
        try:
            apply_layer(rootfs, path, budget, self._session.check_aborted)
        except OutOfSpaceError as error:
            raise OutOfSpaceError(f"layer {blob.digest}: {error}") from error
        except UnpackError as error:
            raise UnpackError(f"layer {blob.digest}: {error}") from error
        path.unlink()

    def _download(self, blob: _Blob, path: Path, *, counted: bool) -> None:
        """Write `blob` to `path` and verify it. Continue broken transfers; progress renews the number of attempts."""
        attempt, backoff = 1, retry_backoff(1.0)
        with path.open("w+b") as file:
            while True:
                begun = file.tell()
                try:
                    self._transfer(blob, file, counted=counted)
                    break
                except TransientError as error:
                    attempt += 1
                    if file.tell() - begun >= PROGRESS_BYTES:
                        attempt = 1
                        backoff.reset()
                    if attempt > ATTEMPTS:
                        raise
                    self._progress.note(f"{error}; continuing at byte {file.tell()}")
                    self._session.retry_pause(backoff, error.wait)
            self._progress.waits_for("")
            file.seek(0)
            found = hashlib.file_digest(file, blob.digest.partition(":")[0]).hexdigest()
        if found != blob.digest.partition(":")[2]:
            raise RegistryError(f"blob {blob.digest}: what the registry sent has the digest {found}")

    def _transfer(self, blob: _Blob, file: Any, *, counted: bool) -> None:
        self._progress.waits_for(self._session.reference.host)
        position, chunks = self._session.blob(blob.digest, file.tell())
        if counted:
            self._done -= file.tell() - position
        file.seek(position)
        file.truncate()
        for chunk in chunks:
            if file.tell() + len(chunk) > blob.size:
                self._session.close()
                raise RegistryError(f"blob {blob.digest}: it is longer than the {blob.size} bytes that were announced")
            file.write(chunk)
            if counted:
                self._done += len(chunk)
                self._progress.bytes(self._done, self._total)
        if file.tell() < blob.size:
            self._session.close()
            raise TransientError(f"the connection ended after {file.tell()} of {blob.size} bytes")


def _blob(descriptor: Any) -> _Blob:
    if isinstance(descriptor, dict):
        digest, size = descriptor.get("digest"), descriptor.get("size")
        if isinstance(digest, str) and is_digest(digest) and isinstance(size, int) and size >= 0:
            return _Blob(digest, size)
    raise RegistryError("its manifest has a descriptor without a sha256 or sha512 digest and a size")


def _room(directory: Path) -> int:
    """Return the bytes that an image may use in the file system of `directory`."""
    status = os.statvfs(directory)
    room = status.f_bavail * status.f_frsize if status.f_blocks else 1 << 40  # a ramfs knows no limit
    kind = file_system_of(directory.stat().st_dev, Path("/proc/self/mountinfo").read_text())
    if kind in ("tmpfs", "ramfs", "rootfs"):
        # A tmpfs may be larger than the remaining memory.
        room = min(room, available_memory(Path("/proc/meminfo").read_text()))
    return max(0, room - _RESERVE_BYTES)


def file_system_of(device: int, mountinfo: str) -> str:
    """Return the type of the mounted file system `device` (st_dev) from the text of /proc/self/mountinfo, or ""."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return kind.split(" ")[0]
    return ""


def available_memory(meminfo: str) -> int:
    """Return the bytes of memory that programs can still get, from the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 30
