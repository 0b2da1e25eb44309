"""Bring what was built into a data directory, where the edge serves it.

    osie/NAME/kernel, initrd, osie.yaml      the OSIE, and its object
    images/                                  the actions, an image index for each (OCI image layout)
    files/NAME, NAME.sha256                  the disk image

A file is written whole or not at all, belongs to the owner of the directory, and is left alone if it is the same.
Sources are opened before root becomes that owner, who could not read root's cache.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edge.artifacts import INDEX_TYPE, REFERENCE, ImageLayout, LayoutError, image_index, merged_index
from tink.api.v1alpha2 import API_VERSION
from tink.files import data_directory, private_files

_RESERVE = 64 << 20
"""Bytes that are left for what else is on the disk."""
_CHUNK = 1 << 20
_PULL_SECONDS = 86400.0
"""An agent that has read the manifest of an image may pull its blobs for so long, in seconds."""
_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
"""The file `oci-layout` (OCI image layout specification 1.0)."""


class PlacingError(Exception):
    """The data directory can't take what was built; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class File:
    """A file for the data directory: its path there, and its content or where that is."""

    name: str
    source: bytes | Path

    def open(self) -> BinaryIO:
        """Open its content. Raises OSError."""
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


@dataclass(frozen=True, slots=True)
class Actions:
    """Action images: for each name (`actions/inspect:1`) its manifests by platform, and the blobs that they have."""

    manifests: Mapping[str, Mapping[str, dict[str, Any]]]
    blobs: Sequence[File]


def read_actions(directories: Sequence[Path]) -> Actions:
    """Read the layouts that the recipe made, a directory with one for each action for each architecture.

    Raises LayoutError, OSError.
    """
    manifests: dict[str, dict[str, dict[str, Any]]] = {}
    blobs: dict[str, Path] = {}
    for directory in directories:
        for layout_directory in sorted(path for path in directory.iterdir() if (path / "index.json").is_file()):
            layout = ImageLayout(layout_directory)
            image = layout.only()
            manifests.setdefault(f"actions/{layout_directory.name}:1", {}).update(layout.by_platform(image))
            blobs |= {blob.digest: layout.path(blob.digest) for blob in layout.blobs(image)}
    return Actions(manifests, [File(_blob(digest), path) for digest, path in sorted(blobs.items())])


def _blob(digest: str) -> str:
    algorithm, _, name = digest.partition(":")
    return f"images/blobs/{algorithm}/{name}"


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Act as the owner of the data directory, which is made if it is missing. Raises DataDirectoryError, OSError."""
    with data_directory.as_owner(directory, make=True):
        data_directory.claim(directory)
        yield


def place(
    directory: Path,
    groups: Sequence[Sequence[File]],
    actions: Actions | None,
    clock: Callable[[], float] = time.time,
) -> list[str]:
    """Bring groups of files and the actions into the data directory; return the names of the files that were written.

    The files of a group replace older ones together, when all of them are on the disk. The index of the images is last.
    Then blobs of replaced images are removed, except young ones, which an agent may still pull. `clock` returns seconds
    since the epoch. Raises PlacingError, DataDirectoryError, LayoutError, OSError.
    """
    everything = [file for group in groups for file in group] + [*(actions.blobs if actions is not None else ())]
    with ExitStack() as stack:
        opened = {file.name: stack.enter_context(file.open()) for file in everything}
        sums = {name: _sha256(source) for name, source in opened.items()}
        sizes = {name: source.tell() for name, source in opened.items()}
        stack.enter_context(owned(directory))
        stale = {name for name in opened if not _is(directory / name, sums[name], sizes[name])}
        _room(directory, sum(sizes[name] for name in stale))
        blobs = [[file] for file in actions.blobs] if actions is not None else []
        for group in [*groups, *blobs]:
            _write(directory, {file.name: opened[file.name] for file in group if file.name in stale})
        written = sorted(stale)
        if actions is not None:
            written += _index(directory, actions)
            _remove_unused(directory, clock() - _PULL_SECONDS)
    return written


def _remove_unused(directory: Path, before: float) -> None:
    """Remove the blobs that no image needs and that are older than `before`; none if an image is not whole."""
    with suppress(LayoutError, FileNotFoundError):
        for blob in ImageLayout(directory / "images").unused():
            if blob.stat().st_mtime < before:
                blob.unlink()


def _write(directory: Path, sources: Mapping[str, BinaryIO]) -> None:
    with ExitStack() as stack:
        for name, source in sources.items():
            target = directory / name
            _folders(directory, target.parent)
            out = stack.enter_context(private_files.stream(target))
            source.seek(0)
            shutil.copyfileobj(source, out, _CHUNK)


def _index(directory: Path, actions: Actions) -> list[str]:
    """Name the images: an index for each, with the manifests for other platforms that are there already."""
    images = directory / "images"
    there = ImageLayout(images)
    try:
        entries, known = there.entries(), there.images()
        brought: dict[str, dict[str, Any]] = {}
        blobs: dict[str, BinaryIO] = {}
        for name, manifests in actions.manifests.items():
            content = image_index({**_by_platform(there, known, name), **manifests})
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            blobs[_blob(digest)] = io.BytesIO(content)
            brought[name] = {
                "mediaType": INDEX_TYPE,
                "digest": digest,
                "size": len(content),
                "annotations": {REFERENCE: name},
            }
        if all(entries.get(name) == entry for name, entry in brought.items()) and (images / "oci-layout").is_file():
            return []
        index = merged_index(there, brought)
    except LayoutError as error:
        raise PlacingError(f"{images}: {error}; it is no image layout: move it aside") from error
    _write(directory, blobs)
    _write(directory, {"images/oci-layout": io.BytesIO(_LAYOUT)})
    _write(directory, {"images/index.json": io.BytesIO(index)})
    return ["images/index.json"]


def _by_platform(layout: ImageLayout, known: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The manifests of an image that is there; none if a part of it is missing."""
    if name not in known:
        return {}
    try:
        return layout.by_platform(known[name])
    except (LayoutError, FileNotFoundError):
        return {}


def _folders(directory: Path, wanted: Path) -> None:
    for folder in [*reversed([one for one in wanted.parents if directory in one.parents]), wanted]:
        if folder.is_symlink():
            raise PlacingError(f"{folder}: it is a link; name the directory that it leads to as --data-dir, or move it")
        folder.mkdir(mode=0o700, exist_ok=True)


def _sha256(source: BinaryIO) -> str:
    total = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        total.update(chunk)
    return total.hexdigest()


def _is(path: Path, digest: str, size: int) -> bool:
    """Return whether the file is there with this content."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == size and _sha256(file) == digest
    except (FileNotFoundError, NotADirectoryError):
        return False


def _room(directory: Path, size: int) -> None:
    needed, free = size + _RESERVE, shutil.disk_usage(directory).free
    if free < needed:
        raise PlacingError(
            f"{directory}: {needed / 1e6:.0f} MB are needed there, and {free / 1e6:.0f} MB are free; remove what is "
            "not used any more from its osie, images and files"
        )


def osie_manifest(name: str, directory: Path) -> dict[str, Any]:
    """The OSIE object of files in the data directory. It has no hashes: the files are this edge's own, and may be
    replaced while no API answers."""
    urls = {f"{part}Url": (directory.absolute() / "osie" / name / part).as_uri() for part in ("kernel", "initrd")}
    return {"apiVersion": API_VERSION, "kind": "OSIE", "metadata": {"name": name}, "spec": urls}


def osie_yaml(manifest: Mapping[str, Any]) -> bytes:
    """The object as a file for `kubectl apply`."""
    spec = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in manifest["spec"].items())
    return (
        "# The OSIE that `tinkedge prepare` made here. It applies this object by itself if the API answers.\n"
        f"apiVersion: {manifest['apiVersion']}\nkind: OSIE\nmetadata:\n  name: {manifest['metadata']['name']}\n"
        f"spec:\n{spec}"
    ).encode()
