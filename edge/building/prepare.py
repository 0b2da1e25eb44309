"""The steps of `tinkedge prepare`: build the parts, put them into the data directory, apply the OSIE objects.

The edge serves these files of the data directory:

    osie/NAME/kernel, initrd, osie.yaml      the OSIE, and its object
    images/                                  the actions, an image index for each (OCI image layout)
    files/NAME, NAME.sha256                  the disk image

A file is written whole or not at all, belongs to the owner of the directory, and stays untouched if it is the same.
All sources are opened before root becomes that owner, who can't read root's cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from edge.artifacts.layout import INDEX_TYPE, REFERENCE, ImageLayout, LayoutError, image_index, merged_index
from edge.building.builder import Builder, Part, locked
from edge.building.screen import Screen
from edge.building.shell import CommandError
from edge.journey.events import Outcome
from tink.api.v1alpha2 import API_VERSION
from tink.errors import TinkedgeError
from tink.files import data_directory, private_files
from tink.files.data_directory import DataDirectoryError
from tink.kube.client import ApiError, KubeClient, KubeConfigError, NotFoundError, UnreachableError
from tink.kube.manifests import DEFAULT_NAMESPACE, ManifestError, apply_object, with_last_applied
from tink.kube.resources import OSIE

_RESERVE = 64 << 20
"""Bytes that stay free on the disk."""
_CHUNK = 1 << 20
_PULL_SECONDS = 86400.0
"""Seconds for which replaced blobs stay: an agent that has read an image's manifest may still pull them."""
_LAYOUT = b'{"imageLayoutVersion": "1.0.0"}'
"""The file `oci-layout` (OCI image layout specification 1.0)."""


class PrepareError(TinkedgeError):
    """`tinkedge prepare` failed; the message has the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class File:
    """A file for the data directory: its path there, and its content or the content's path."""

    name: str
    source: bytes | Path

    def open(self) -> BinaryIO:
        """Open its content. Raises OSError."""
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


@dataclass(frozen=True, slots=True)
class Actions:
    """Action images: the manifests of each name (`actions/inspect:1`) by platform, and their blobs."""

    manifests: Mapping[str, Mapping[str, dict[str, Any]]]
    blobs: Sequence[File]


def read_actions(directories: Sequence[Path]) -> Actions:
    """Read the image layouts of the recipe; a directory has one layout per action for one architecture.

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
    """Act as the owner of the data directory, which is created if missing. Raises DataDirectoryError, OSError."""
    with data_directory.as_owner(directory, make=True):
        data_directory.claim(directory)
        yield


def place(
    directory: Path, groups: Sequence[Sequence[File]], actions: Actions | None, clock: Callable[[], float] = time.time
) -> list[str]:
    """Bring groups of files and the actions into the data directory; return the names of the files that were written.

    The files of a group replace older ones together, when all of them are on the disk. The index of the images is last.
    Then blobs of replaced images are removed, except young ones, which an agent may still pull. `clock` returns seconds
    since the epoch. Raises PrepareError, DataDirectoryError, LayoutError, OSError.
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
            with suppress(LayoutError, FileNotFoundError):  # an image is not whole: then all blobs stay
                for blob in ImageLayout(directory / "images").unused():
                    if blob.stat().st_mtime < clock() - _PULL_SECONDS:
                        blob.unlink()
    return written


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
            entry = {"mediaType": INDEX_TYPE, "digest": digest, "size": len(content)}
            brought[name] = {**entry, "annotations": {REFERENCE: name}}
        if all(entries.get(name) == entry for name, entry in brought.items()) and (images / "oci-layout").is_file():
            return []
        index = merged_index(there, brought)
    except LayoutError as error:
        raise PrepareError(f"{images}: {error}; it is no image layout: move it aside") from error
    _write(directory, blobs)
    _write(directory, {"images/oci-layout": io.BytesIO(_LAYOUT)})
    _write(directory, {"images/index.json": io.BytesIO(index)})
    return ["images/index.json"]


def _by_platform(layout: ImageLayout, known: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of an existing image; none if a part of it is missing."""
    if name not in known:
        return {}
    try:
        return layout.by_platform(known[name])
    except (LayoutError, FileNotFoundError):
        return {}


def _folders(directory: Path, wanted: Path) -> None:
    for folder in [*reversed([one for one in wanted.parents if directory in one.parents]), wanted]:
        if folder.is_symlink():
            raise PrepareError(f"{folder}: it is a link; name the directory that it leads to as --data-dir, or move it")
        folder.mkdir(mode=0o700, exist_ok=True)


def _sha256(source: BinaryIO) -> str:
    total = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        total.update(chunk)
    return total.hexdigest()


def _is(path: Path, digest: str, size: int) -> bool:
    """Return True if the file exists with this content."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == size and _sha256(file) == digest
    except (FileNotFoundError, NotADirectoryError):
        return False


def _room(directory: Path, size: int) -> None:
    needed, free = size + _RESERVE, shutil.disk_usage(directory).free
    if free < needed:
        raise PrepareError(
            f"{directory}: {needed / 1e6:.0f} MB are needed there, and {free / 1e6:.0f} MB are free; remove what is "
            "not used any more from its osie, images and files"
        )


def osie_manifest(name: str, directory: Path) -> dict[str, Any]:
    """Return the OSIE object of files in the data directory.

    It has no hashes: the files are this edge's own, and may be replaced while no API answers.
    """
    urls = {f"{part}Url": (directory.absolute() / "osie" / name / part).as_uri() for part in ("kernel", "initrd")}
    return {"apiVersion": API_VERSION, "kind": "OSIE", "metadata": {"name": name}, "spec": urls}


def osie_yaml(manifest: Mapping[str, Any]) -> bytes:
    """Return the object as a file for `kubectl apply`."""
    spec = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in manifest["spec"].items())
    return (
        "# The OSIE that `tinkedge prepare` made here. It applies this object by itself if the API answers.\n"
        f"apiVersion: {manifest['apiVersion']}\nkind: OSIE\nmetadata:\n  name: {manifest['metadata']['name']}\n"
        f"spec:\n{spec}"
    ).encode()


IMAGE_NAME = "debian-12-amd64.raw.zst"
_API_SECONDS = 20.0
_MEASURED = {
    # MB to download, seconds, and MB of room in the cache meanwhile; on two processors that do nothing else.
    Part.OSIE: (25, 35, 1500),
    Part.ACTIONS: (0, 10, 300),
    Part.IMAGE: (65, 80, 2500),
}
_PART_NAMES = {Part.OSIE: "OSIE", Part.ACTIONS: "actions", Part.IMAGE: "disk image"}
_KERNEL_MB = 70
_FOREIGN_MB = 25
"""MB of package lists, and of packages for another processor."""
_USUAL_RATE = 10
"""MB/s of a mirror."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parts to prepare, and their places."""

    data_dir: Path
    cache: Path
    parts: frozenset[Part]
    arches: tuple[str, ...]
    """Debian's names of the machines' processors."""
    host_arch: str
    kernel: str = ""
    """The kernel's Debian package; empty: the one for real hardware."""
    kubeconfig: Path | None = None
    """The kubeconfig of the API; None: the one in the data directory."""
    again: bool = False

    def kernel_for(self, arch: str) -> str:
        """Return the kernel package for machines of an architecture."""
        return self.kernel or f"linux-image-{arch}"

    def osie_name(self, arch: str) -> str:
        """Return the name of the OSIE object: `tinkedge` for machines that are like this host."""
        return "tinkedge" if arch == self.host_arch else f"tinkedge-{arch}"

    def parts_for(self, arch: str) -> frozenset[Part]:
        """Return the parts that are made for an architecture: the disk image is amd64's alone."""
        return self.parts if arch == "amd64" == self.host_arch else self.parts - {Part.IMAGE}


def check(settings: Settings) -> None:
    """Reject settings that contradict each other. Raises PrepareError."""
    if settings.kernel and len(settings.arches) > 1:
        raise PrepareError(
            f"--kernel {settings.kernel} is a package for one processor: run tinkedge prepare once for each --arch"
        )
    if not any(settings.parts_for(arch) for arch in settings.arches):
        raise PrepareError(
            f"--only image --arch {' --arch '.join(settings.arches)}: the disk image is made for amd64 alone, on a "
            "host that is amd64; for others take the distribution's own cloud image"
        )


def builder_for(settings: Settings, arch: str, screen: Screen) -> Builder:
    """Return the builder for an architecture."""

    def say(line: str) -> None:
        screen.step("build", line if arch == settings.host_arch else f"{line} ({arch})", Outcome.INFO)

    return Builder(settings.cache, say, arch=arch, kernel=settings.kernel_for(arch), again=settings.again)


def outdated(settings: Settings, screen: Screen) -> dict[str, set[Part]]:
    """Return the outdated parts, by architecture."""
    return {arch: builder_for(settings, arch, screen).outdated(settings.parts_for(arch)) for arch in settings.arches}


def announcement(todo: dict[str, set[Part]], host_arch: str, packages_mb: int = 0) -> str:
    """Return a text with the size of the downloads and the time; empty if all parts are current."""
    mb, seconds = packages_mb, 20 if packages_mb else 0
    for arch, parts in todo.items():
        foreign = arch != host_arch
        mb += sum(_MEASURED[part][0] for part in parts) + (_KERNEL_MB if parts - {Part.ACTIONS} else 0)
        mb += _FOREIGN_MB * len(parts) if foreign else 0
        seconds += sum(_MEASURED[part][1] for part in parts)
    if not mb and not seconds:
        return ""
    seconds += mb // _USUAL_RATE
    minutes = max(1, round(seconds / 60))
    return f"up to {mb} MB to download, and {minutes} minute{'s' if minutes > 1 else ''} (at {_USUAL_RATE} MB/s)"


@contextmanager
def _reported(place: Path) -> Iterator[None]:
    """Turn the errors of work at a path into PrepareError."""
    try:
        yield
    except (CommandError, DataDirectoryError) as error:
        raise PrepareError(str(error)) from error
    except OSError as error:
        raise PrepareError(f"{error.filename or place}: {error.strerror or error}") from error


def check_directory(data_dir: Path) -> None:
    """Create the data directory, or check that it can be used, before the long work. Raises PrepareError."""
    with _reported(data_dir), owned(data_dir):
        pass


def _check_room(cache: Path, todo: dict[str, set[Part]]) -> None:
    """Check that the cache has room for the work. Raises PrepareError, OSError."""
    needed = max((sum(_MEASURED[part][2] for part in parts) for parts in todo.values()), default=0)
    free = shutil.disk_usage(cache).free // 1_000_000
    if free < needed:
        raise PrepareError(
            f"{cache}: about {needed} MB are needed there while it is made, and {free} MB are free; make room, or name "
            "another place with --cache-dir"
        )


def bring(settings: Settings, made: dict[str, dict[Part, Path]], screen: Screen) -> list[dict[str, Any]]:
    """Put the parts into the data directory; return the OSIE objects. Raises PrepareError."""
    groups: list[list[File]] = []
    osies = []
    for arch, parts in made.items():
        if (osie := parts.get(Part.OSIE)) is not None:
            name = settings.osie_name(arch)
            osies.append(osie_manifest(name, settings.data_dir))
            files = [File(f"osie/{name}/{file}", osie / file) for file in ("kernel", "initrd")]
            groups.append([*files, File(f"osie/{name}/osie.yaml", osie_yaml(osies[-1]))])
        if (image := parts.get(Part.IMAGE)) is not None:
            digest = image.with_name(f"{image.name}.sha256").read_text().split()[0]
            sums = f"{digest}  {IMAGE_NAME}\n".encode()
            groups.append([File(f"files/{IMAGE_NAME}", image), File(f"files/{IMAGE_NAME}.sha256", sums)])
    try:
        layouts = [parts[Part.ACTIONS] for parts in made.values() if Part.ACTIONS in parts]
        actions = read_actions(layouts) if layouts else None
        written = place(settings.data_dir, groups, actions)
    except OSError as error:
        raise PrepareError(_unwritable(error, settings.data_dir)) from error
    except (LayoutError, DataDirectoryError) as error:
        raise PrepareError(str(error)) from error
    for name, what in _places(groups, actions):
        changed = any(file.startswith(name) for file in written)
        where = settings.data_dir / name
        screen.step("files", f"{what}: {where} {'written' if changed else 'is up to date'}")
    return osies


def _unwritable(error: OSError, data_dir: Path) -> str:
    """Return an error with the path, and the remedy if it belongs to another user."""
    path = Path(error.filename) if error.filename else data_dir
    said = f"{path}: {error.strerror or error}"
    if not isinstance(error, PermissionError) or data_dir not in path.parents:
        return said
    folder = shlex.quote(str(data_dir / path.relative_to(data_dir).parts[0]))
    owner = f"the owner of {data_dir} can't use {folder}"
    return f"{said}: {owner}: chown -R --reference={shlex.quote(str(data_dir))} {folder}"


def _places(groups: Sequence[Sequence[File]], actions: Actions | None) -> list[tuple[str, str]]:
    """Return the names for people of the parts, and their paths in the data directory."""
    places = []
    for group in groups:
        first = group[0].name
        if first.startswith("osie/"):
            folder = str(Path(first).parent)
            places.append((folder, f"OSIE {Path(folder).name}"))
        else:
            places.append((first, f"disk image, served as http://EDGE:7080/{first}"))
    if actions is not None:
        names = ", ".join(sorted(name.removeprefix("actions/").removesuffix(":1") for name in actions.manifests))
        places.append(("images", f"actions {names}, served as EDGE:7080/actions/NAME:1"))
    return places


async def apply(settings: Settings, osies: Sequence[dict[str, Any]], screen: Screen) -> None:
    """Apply the OSIE objects if an API answers. Raises PrepareError if the API rejects one."""
    kubeconfig = settings.kubeconfig or settings.data_dir / "kubeconfig"
    if settings.kubeconfig is None and not kubeconfig.is_file():
        _say_later(osies, screen, f"{kubeconfig} is not there yet")
        return
    try:
        async with await KubeClient.connect(kubeconfig) as client, asyncio.timeout(_API_SECONDS):
            for osie in osies:
                screen.step("apply", await _apply(client, osie))
    except TimeoutError:
        _say_later(osies, screen, f"the API of {kubeconfig} does not answer within {_API_SECONDS:.0f} s")
    except UnreachableError as error:
        _say_later(osies, screen, str(error))
    except (ApiError, KubeConfigError, ManifestError) as error:
        if isinstance(error.__cause__, UnreachableError):
            _say_later(osies, screen, str(error.__cause__))
            return
        raise PrepareError(f"{kubeconfig}: {error}") from error


async def _apply(client: KubeClient, osie: dict[str, Any]) -> str:
    name = osie["metadata"]["name"]
    called = f"OSIE {DEFAULT_NAMESPACE}/{name}"
    try:
        there = await client.get(OSIE, name, DEFAULT_NAMESPACE)
    except NotFoundError:
        there = None
    if there is not None and there.get("spec") == osie["spec"]:
        return f"{called} is up to date"
    # With this annotation, a later `kubectl apply` of the examples' file does not warn.
    whole = {**osie, "metadata": {**osie["metadata"], "namespace": DEFAULT_NAMESPACE}}
    await apply_object(client, OSIE, with_last_applied(whole), "tinkedge prepare")
    return f"{called} {'changed' if there is not None else 'created'}"


def _say_later(osies: Sequence[dict[str, Any]], screen: Screen, why: str) -> None:
    names = ", ".join(osie["metadata"]["name"] for osie in osies)
    screen.step(
        "apply",
        f"OSIE {names}: not applied, because {why}. After 'systemctl start tinkedge' run this command again: it takes "
        "seconds, since all is built",
        Outcome.WARNING,
    )


async def run(settings: Settings, todo: dict[str, set[Part]], screen: Screen) -> dict[str, dict[Part, Path]]:
    """Build outdated parts, in a locked cache; return the path of each part, by architecture. Raises PrepareError."""
    made = {}
    with _reported(settings.cache), locked(settings.cache):
        _check_room(settings.cache, todo)
        for arch in settings.arches:
            builder = builder_for(settings, arch, screen)
            async with screen.company(builder.doing):
                made[arch] = await builder.build_parts(settings.parts_for(arch))
    for arch in settings.arches:
        current = settings.parts_for(arch) - todo[arch]
        if names := ", ".join(_PART_NAMES[part] for part in Part if part in current):
            of_arch = "" if arch == settings.host_arch else f" ({arch})"
            screen.step("build", f"{names}{of_arch}: up to date in {settings.cache}")
    return made
