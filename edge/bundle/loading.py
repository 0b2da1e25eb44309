"""Loads a bundle into a data directory: OSIEs, container images, files, boot programs, objects.

The whole bundle is first unpacked and checked in a staging place within the data directory. Only then are the files
moved to their places, each as a whole, and the index of the images last. Files of earlier bundles stay if this bundle
does not have them.

`bundle.json` records which bundle was loaded last. An older bundle is rejected: its signature is still valid, but it
could bring back files that were replaced for a reason.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from edge.artifacts.layout import ImageLayout, LayoutError, merged_index
from edge.bundle.archive import BOOT, FILES, IMAGES, LOADED, OBJECTS, OSIE, BundleError, BundleReader, Manifest, time_of
from tink.api.v1alpha2 import API_VERSION
from tink.files import data_directory, private_files
from tink.files.archive import Progress, counting, extract

RECORD = data_directory.BUNDLE
_MAX_RECORD = 4096
_TIME = "%Y-%m-%d %H:%M:%S"
_INDEX = f"{IMAGES}index.json"
_RESERVE = 64 << 20
"""Bytes that stay free on the disk."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded bundle; `files` are paths in the data directory."""

    manifest: Manifest
    files: tuple[str, ...]

    def has(self, folder: str) -> bool:
        """Return True if the bundle has files in this folder."""
        return any(name.startswith(folder) for name in self.files)


def check(reader: BundleReader, progress: Progress, into: Path | None = None) -> list[str]:
    """Read all of a bundle; write the files for a data directory below `into`, if given, and return their names.

    Raises BundleError, OSError.
    """
    names = []
    checked = counting(progress, "checked, in bytes", sum(reader.manifest.sizes.values()))
    for member, content in reader.files():
        sizes: Iterator[int] = map(len, content)
        if into is not None and member.name.startswith(LOADED):
            sizes = extract(content, into / member.name)
            names.append(member.name)
        for size in sizes:
            checked(size)
    return names


def load(reader: BundleReader, directory: Path, progress: Progress, *, allow_older: bool = False) -> Loaded:
    """Load a bundle. Nothing changes until its last byte is checked. Raises BundleError, DataDirectoryError, OSError.

    `allow_older` accepts a bundle that is older than the one loaded last. A process of root acts as the owner of the
    directory, because the owner could have put links there.
    """
    with data_directory.as_owner(directory, make=True):
        data_directory.claim(directory)
        _check_age(reader.manifest, directory, allow_older=allow_older)
        needed = _RESERVE + sum(size for name, size in reader.manifest.sizes.items() if name.startswith(LOADED))
        free = shutil.disk_usage(directory).free
        if free < needed:
            raise BundleError(f"{directory}: {needed / 1e6:.0f} MB are needed there, and {free / 1e6:.0f} MB are free")
        with private_files.directory(directory, "bundle") as staging:
            names = [*check(reader, progress, staging), *_osie_objects(reader, staging, directory)]
            if _INDEX in names:
                # Keep the images in the data directory that have other names.
                old = directory / _INDEX
                try:
                    merged = merged_index(ImageLayout(old.parent), ImageLayout((staging / _INDEX).parent).entries())
                except LayoutError as error:
                    raise BundleError(f"{old}: {error}; it is no image layout: move it aside") from error
                (staging / _INDEX).write_bytes(merged)
                names.remove(_INDEX)
                names.append(_INDEX)
            # Record first: after a power loss before the end, older bundles are rejected; this one can be loaded again.
            said = {"created": reader.manifest.created, "tinkedge": reader.manifest.tinkedge, "signer": reader.signer}
            record = orjson.dumps(said, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z) + b"\n"
            private_files.write(directory / RECORD, record)
            for name in names:
                target = directory / name
                _directories(directory, target.parent)
                (staging / name).replace(target)
            for folder in sorted({(directory / name).parent for name in names}):
                private_files.sync_directory(folder)
    return Loaded(reader.manifest, tuple(names))


def _check_age(manifest: Manifest, directory: Path, *, allow_older: bool) -> None:
    """Reject a bundle that is older than the one loaded last. Raises BundleError, OSError."""
    loaded = None if allow_older else _loaded(directory / RECORD)
    if loaded is not None and manifest.created < loaded:
        raise BundleError(
            f"it was made {manifest.created:{_TIME}} UTC, and {directory} has a bundle of {loaded:{_TIME}} UTC: an "
            "older one would bring back what was replaced since. Load the newer one, or make this one again; "
            "--allow-older goes back on purpose"
        )


def _loaded(path: Path) -> datetime | None:
    """Return the creation time of the bundle loaded last, or None if no bundle was loaded. Raises BundleError,
    OSError."""
    try:
        with path.open("rb") as file:
            created = orjson.loads(file.read(_MAX_RECORD))["created"]
    except FileNotFoundError:
        return None
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise BundleError(f"{path}: it can't be read ({error}); give --allow-older to replace it") from error
    try:
        return time_of(created)
    except (TypeError, ValueError) as error:
        raise BundleError(f"{path}: created: {error}; give --allow-older to replace it") from error


def _osie_objects(reader: BundleReader, staging: Path, directory: Path) -> list[str]:
    """Write an OSIE object for each OSIE, with the hashes of its files."""
    names = []
    for osie in reader.manifest.osies:
        files = {part: f"{OSIE}{osie}/{part}" for part in ("kernel", "initrd")}
        notes = {f"tinkerbell.org/{part}-sha256": reader.sha256[name] for part, name in files.items()}
        urls = {f"{part}Url": (directory.absolute() / name).as_uri() for part, name in files.items()}
        made = {
            "apiVersion": API_VERSION,
            "kind": "OSIE",
            "metadata": {"name": osie, "namespace": "default", "annotations": notes},
            "spec": urls,
        }
        name = f"{OBJECTS}osie-{osie}.json"
        (staging / OBJECTS).mkdir(mode=0o700, exist_ok=True)
        (staging / name).write_bytes(orjson.dumps(made, option=orjson.OPT_INDENT_2) + b"\n")
        (staging / name).chmod(0o600)
        names.append(name)
    return names


def _directories(directory: Path, wanted: Path) -> None:
    """Create folders below the data directory. Raises BundleError if one is a link, past which nothing is written."""
    for folder in [*reversed([one for one in wanted.parents if directory in one.parents]), wanted]:
        if folder.is_symlink():
            raise BundleError(f"{folder}: it is a link; what a bundle brings goes nowhere else")
        folder.mkdir(mode=0o700, exist_ok=True)


def next_steps(loaded: Loaded, directory: Path) -> list[str]:
    """Return the operator's next steps, in lines."""
    said = {
        OBJECTS: f"objects: TINKEDGE_MANIFESTS={directory}/manifests in /etc/default/tinkedge, or kubectl apply",
        BOOT: f"boot programs: TINKEDGE_IPXE_DIR={directory}/ipxe in /etc/default/tinkedge",
        IMAGES: "images: Templates name them HOST:7080/NAME:TAG, HOST being this host's address where the machines are",
        FILES: "files: http://HOST:7080/files/NAME",
    }
    steps = [line for folder, line in said.items() if loaded.has(folder)]
    if loaded.has(OBJECTS) or loaded.has(BOOT):
        steps.append("then: systemctl restart tinkedge (it reads objects and boot programs when it starts)")
    return steps
