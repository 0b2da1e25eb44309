"""Images on this machine: pulled from a registry, unpacked, kept by digest.

`state_dir/images/<digest>/` holds `rootfs/` and `config.json` of one image, named by the digest of its manifest, so
what is there is complete and true: it is renamed into place after every layer has been verified and unpacked. A tag
is always asked for anew, because it may have moved; only then is the cache consulted. Where that is not answered, what
the last pull of the same name brought is used, as with a container engine. `runc` mounts a `rootfs` as the lower,
read-only side of a container.

Layers are fetched one at a time into a file, continued where a broken connection left off, and checked against their
digest before they are opened. When there is no room, the other images are removed and the pull is tried once more.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tink.agent.images.registry import (
    ATTEMPTS,
    AbortedError,
    Registries,
    Session,
    TransientError,
    parse,
    retry_backoff,
)
from tink.agent.images.unpack import Budget, OutOfSpaceError, UnpackError, apply_layer
from tink.agent.model import ActionError, AgentError, Reason
from tink.agent.output import PullProgress, thread_safe_sink
from tink.registry import (
    MANIFEST_LIMIT_BYTES,
    Reference,
    RegistryError,
    is_digest,
    is_made_for,
    json_object,
    own_platform,
    resolve,
)
from tink.waiting import done_before

log = logging.getLogger(__name__)

LAYER_LIMIT = 256
PROGRESS_BYTES = 64 * 1024
"""What a transfer must bring before it breaks for that not to count as another vain attempt."""
_ABORT_SECONDS = 2.0
_RESERVE_BYTES = 16 * 1024 * 1024
"""Room that is left for the rest of the system: in the OSIE, images live in memory."""


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image: its root file system, not to be written to, and its configuration as it stands in the OCI
    image specification ("Image Configuration")."""

    rootfs: Path
    config: Mapping[str, Any]


class ImageStore:
    """The images under `state_dir`, and how new ones get there. One pull at a time.

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
        self._images = state_dir / "images"
        self._work = state_dir / "pulls"
        self._registries = registries
        self._architecture = architecture or own_platform()
        self._sleep = sleep
        self._by_name: dict[str, str] = {}

    def prepare(self) -> None:
        """Make the directories; remove what an interrupted pull has left."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._images.mkdir(parents=True, exist_ok=True)
        self._work.mkdir(parents=True)

    def get(self, image: str) -> Image:
        """The image that the last `pull` of `image` brought. Raises ActionError."""
        digest = self._by_name.get(image)
        if digest is None:
            raise ActionError(Reason.IMAGE_PULL_FAILED, f"image {image}: it has not been pulled")
        directory = self._images / digest
        return Image(directory / "rootfs", json.loads((directory / "config.json").read_bytes()))

    async def pull(self, image: str, stop: asyncio.Event) -> None:
        """Have `image` as the registry has it now; without it when `stop` is set meanwhile. Raises ActionError."""
        reference = parse(image)
        progress = PullProgress(image, thread_safe_sink())
        session = Session(reference, self._registries, self._sleep, progress.note)
        pull = _Pull(image, reference, session, self._images, self._work, self._architecture, progress)
        work = asyncio.create_task(asyncio.to_thread(pull.run))
        silences = asyncio.create_task(progress.tell_silences())
        try:
            if not await done_before(work, stop):
                session.abort()
                # Longer only where nothing can be interrupted (a connection being made, a name being looked up).
                await asyncio.wait({work}, timeout=_ABORT_SECONDS)
                work.add_done_callback(_forget)
                return
            self._by_name[image] = work.result()
        except AbortedError:
            return
        except (AgentError, RegistryError) as error:
            if self._is_here(image):
                progress.note(f"cannot be pulled ({error}); the copy of the last pull is used")
                return
            raise ActionError(Reason.IMAGE_PULL_FAILED, f"image {image}: {error}") from error
        except OSError as error:
            raise ActionError(Reason.IMAGE_PULL_FAILED, f"image {image}: {error.filename}: {error.strerror}") from error
        finally:
            silences.cancel()

    def _is_here(self, image: str) -> bool:
        """Whether an earlier pull of `image` brought something that is still there."""
        digest = self._by_name.get(image)
        return digest is not None and (self._images / digest).exists()


def _forget(work: asyncio.Task[str]) -> None:
    if not work.cancelled() and (error := work.exception()) and not isinstance(error, AbortedError):
        log.info("after the pull was stopped: %s", error)


@dataclass(frozen=True, slots=True)
class _Blob:
    """A descriptor of the OCI image specification, as far as it is needed."""

    digest: str
    size: int


class _Pull:
    """One pull, in a thread of its own."""

    def __init__(
        self,
        image: str,
        reference: Reference,
        session: Session,
        images: Path,
        work: Path,
        architecture: str,
        progress: PullProgress,
    ) -> None:
        self._image = image
        self._reference = reference
        self._session = session
        self._images = images
        self._work = work
        self._architecture = architecture
        self._progress = progress
        self._done = 0
        self._total = 0

    def run(self) -> str:
        """The name of the image's directory. Raises AgentError, RegistryError, OSError."""
        try:
            digest, manifest = self._select()
            name = digest.partition(":")[2]
            directory = self._images / name
            if directory.exists():
                self._progress.note("is here already")
                return name
            try:
                self._fetch(manifest, directory)
            except OutOfSpaceError:
                if not self._remove_others():
                    raise
                self._progress.note("no room; the other images were removed, trying again")
                self._fetch(manifest, directory)
            return name
        finally:
            self._session.close()

    def _select(self) -> tuple[str, dict[str, Any]]:
        """The digest and content of the manifest for this machine, through indexes if there are any."""
        self._progress.waits_for(self._reference.host)
        found = resolve(self._reference.version, self._session.manifest, self._session.config, own=self._architecture)
        self._progress.waits_for("")
        return found

    def _fetch(self, manifest: dict[str, Any], directory: Path) -> None:
        layers = manifest.get("layers")
        if manifest.get("schemaVersion") != 2 or not isinstance(layers, list) or len(layers) > LAYER_LIMIT:
            raise RegistryError(
                "its manifest is neither an OCI image nor Docker schema 2; push it again with newer tools"
            )
        blobs = [_blob(layer) for layer in layers]
        self._done, self._total = 0, sum(blob.size for blob in blobs)
        with tempfile.TemporaryDirectory(dir=self._work) as scratch:
            config = self._config(_blob(manifest.get("config")), Path(scratch))
            made = Path(scratch, "image")
            rootfs = made / "rootfs"
            rootfs.mkdir(parents=True)
            rootfs.chmod(0o755)
            (made / "config.json").write_text(json.dumps(config))
            budget = Budget(0)  # of bytes: `_layer` asks what there is
            try:
                for blob in blobs:
                    self._layer(blob, rootfs, Path(scratch, "layer"), budget)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise OutOfSpaceError(f"{self._work}: {error.strerror}") from error
                raise
            made.rename(directory)
        log.info("image %s: %.1f MB pulled", self._image, self._total / 1e6)

    def _config(self, blob: _Blob, scratch: Path) -> dict[str, Any]:
        if blob.size > MANIFEST_LIMIT_BYTES:
            raise RegistryError(f"its configuration has {blob.size} bytes")
        path = scratch / "config"
        self._download(blob, path, counted=False)
        config = json_object(path.read_bytes(), "configuration")
        if not is_made_for(self._architecture, config):
            made_for = config.get("architecture")
            log.warning(
                "image %s: says that it is for %s; this machine is %s", self._image, made_for, self._architecture
            )
        return config

    def _layer(self, blob: _Blob, rootfs: Path, path: Path, budget: Budget) -> None:
        # What is there now, because other things of the machine grow too, and without the packed layer itself.
        room = _room(self._work)
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
        """Write `blob` to `path`, verified; a broken transfer is continued. Progress renews the number of attempts."""
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
        self._progress.waits_for(self._reference.host)
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

    def _remove_others(self) -> bool:
        """Remove all images; whether there were any. None is in use: actions run one after the other."""
        found = list(self._images.iterdir())
        for directory in found:
            shutil.rmtree(directory)
        return bool(found)


def _blob(descriptor: Any) -> _Blob:
    if isinstance(descriptor, dict):
        digest, size = descriptor.get("digest"), descriptor.get("size")
        if isinstance(digest, str) and is_digest(digest) and isinstance(size, int) and size >= 0:
            return _Blob(digest, size)
    raise RegistryError("its manifest has a descriptor without a sha256 or sha512 digest and a size")


def _room(directory: Path) -> int:
    """Bytes that an image may take in `directory`'s file system."""
    status = os.statvfs(directory)
    room = status.f_bavail * status.f_frsize if status.f_blocks else 1 << 40  # a ramfs knows no limit
    kind = file_system_of(directory.stat().st_dev, Path("/proc/self/mountinfo").read_text())
    if kind in ("tmpfs", "ramfs", "rootfs"):
        # A tmpfs may be larger than what is left of the memory that it is in.
        room = min(room, available_memory(Path("/proc/meminfo").read_text()))
    return max(0, room - _RESERVE_BYTES)


def file_system_of(device: int, mountinfo: str) -> str:
    """The type of the mounted file system `device` (st_dev), by the text of /proc/self/mountinfo; "" if unknown."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2:3] == [wanted]:
            return kind.split(" ")[0]
    return ""


def available_memory(meminfo: str) -> int:
    """Bytes of memory that programs can still have, by the text of /proc/meminfo."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 30
