"""Makes a bundle on a host with a route: collects the parts, hashes them, signs the list, and adds an SBOM."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import orjson

from edge.artifacts.layout import ImageLayout, LayoutError
from edge.bundle.archive import (
    BOOT,
    FILES,
    IMAGES,
    INSTALL,
    OBJECTS,
    OSIE,
    PACKAGES,
    PROGRAMS,
    SBOM,
    WHEELS,
    BundledImage,
    BundledProgram,
    BundleError,
    Manifest,
    Sign,
    unusable,
    write,
)
from edge.bundle.sources import Say, Wanted, download, fetch_image, is_url, needed_packages, program_of, run
from ipxe.binaries import BOOT_FILE_SUFFIXES
from tink.files import private_files
from tink.files.archive import Progress, measure
from tink.kube import manifests
from tink.net.urls import shown

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Osie:
    """An OSIE: its name and its two files (paths or URLs)."""

    name: str
    kernel: str
    initrd: str

    @classmethod
    def of(cls, text: str) -> Osie:
        """Parse `NAME=DIR`, with `kernel` and `initrd` in DIR, or `NAME=KERNEL,INITRD`. Raises BundleError."""
        name, given, where = text.partition("=")
        if not given or not where or not _NAME.fullmatch(name):
            raise BundleError(f"--osie {text}: write NAME=DIR or NAME=KERNEL,INITRD, with NAME that of the OSIE object")
        kernel, two, initrd = where.partition(",")
        if two and kernel and initrd:
            return cls(name, kernel, initrd)
        base = where.rstrip("/")
        return cls(name, f"{base}/kernel", f"{base}/initrd")


@dataclass(frozen=True, slots=True)
class Contents:
    """The wanted content of a bundle. Files and OSIEs may be paths or URLs; with `packages` None, apt finds them."""

    deb: Path | None = None
    packages: tuple[Path, ...] | None = None
    wheels: Path | None = None
    kubectl: Path | None = None
    osies: tuple[Osie, ...] = ()
    images: tuple[Wanted, ...] = ()
    platform: str = "amd64"
    insecure: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    objects: tuple[Path, ...] = ()
    boot_programs: Path | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The tools for a bundle.

    These are the recipes (`deploy/`), a directory for downloads, the release, the time (UTC), and two callbacks for
    progress.
    """

    recipes: Path
    cache: Path
    release: str
    now: datetime
    progress: Progress
    say: Say


@dataclass(slots=True)
class _Parts:
    """The files of the bundle, by their names in it."""

    paths: dict[str, Path] = field(default_factory=dict)

    def add(self, name: str, path: Path) -> None:
        """Add a file. Raises BundleError."""
        if problem := unusable(name):
            raise BundleError(f"{path}: {name!r} can't be in a bundle: {problem}")
        if not path.is_file():
            raise BundleError(f"{path}: there is no such file")
        if self.paths.get(name, path) != path:
            raise BundleError(f"{path} and {self.paths[name]} would both be {name} in the bundle: rename one")
        self.paths[name] = path


def create(contents: Contents, out: Path, sign: Sign, around: Surroundings) -> Manifest:
    """Write the bundle, whole or not at all. Raises BundleError, OSError."""
    parts = _Parts()
    with TemporaryDirectory(prefix="tinkedge-bundle.") as work:
        program = _program(contents, parts, around)
        for osie in contents.osies:
            for part, where in (("kernel", osie.kernel), ("initrd", osie.initrd)):
                name = f"{OSIE}{osie.name}/{part}"
                if name in parts.paths:
                    raise BundleError(f"--osie {osie.name}: there are two of this name")
                parts.add(name, _local(where, around))
        _objects(contents, parts)
        for name in contents.files:
            last = name.partition("?")[0].rstrip("/").rpartition("/")[2]
            parts.add(FILES + last, _local(name, around))
        _boot_programs(contents, parts)
        found = _images(contents, parts, Path(work), around)
        if not parts.paths:
            raise BundleError("there is nothing in it: name what the site needs, such as --deb, --osie, --image")
        around.say("the list of what is in it")
        paths = {name: path for name, path in parts.paths.items() if not name.startswith(f"{IMAGES}blobs/")}
        listed = [(name, measure(name, path).sha256) for name, path in paths.items()]
        (Path(work) / SBOM).write_bytes(sbom(listed, found, contents.deb, around.now))
        parts.add(SBOM, Path(work) / SBOM)
        sizes = {name: path.stat().st_size for name, path in parts.paths.items()}
        osies = tuple(one.name for one in contents.osies)
        manifest = Manifest(around.release, around.now, program, osies, found, sizes)
        with private_files.stream(out) as file:
            write(file, manifest, parts.paths, sign, around.progress)
    return manifest


def _program(contents: Contents, parts: _Parts, around: Surroundings) -> BundledProgram | None:
    """Add the files for install.sh. Raises BundleError."""
    program = None
    if contents.deb is not None:
        program = program_of(contents.deb)
        packages = contents.packages
        if packages is None:
            packages = tuple(needed_packages(contents.deb, program, around.cache, around.say))
        # apt writes an epoch's colon this way in names of files.
        version = program.version.replace(":", "%3a")
        parts.add(f"{PACKAGES}tinkedge_{version}_{program.architecture}.deb", contents.deb)
        for path in packages:
            parts.add(PACKAGES + path.name, path)
    if contents.wheels is not None:
        listed = contents.wheels / "requirements.txt"
        if not listed.is_file():
            raise BundleError(
                f"--wheels {contents.wheels}: there is no requirements.txt in it; `make wheels` makes one"
            )
        for path in sorted(contents.wheels.rglob("*")):
            if path.is_file():
                parts.add(WHEELS + str(path.relative_to(contents.wheels)), path)
        parts.add(f"{WHEELS}{INSTALL}", around.recipes / INSTALL)
        said = re.search(r"^tinkedge==(\S+)", listed.read_text(), re.MULTILINE)
        program = program or BundledProgram(said[1] if said else around.release)
    if contents.kubectl is not None:
        parts.add(f"{PROGRAMS}kubectl", contents.kubectl)
    if program is not None or contents.kubectl is not None:
        parts.paths = {INSTALL: around.recipes / "bundle" / INSTALL, **parts.paths}
    return program


def _objects(contents: Contents, parts: _Parts) -> None:
    ours = {one.name for one in contents.osies}
    for given in contents.objects:
        try:
            found = manifests.load(given)
        except manifests.ManifestError as error:
            raise BundleError(f"--objects {error}") from error
        for path, each in found:
            name = each["metadata"]["name"]
            if each["kind"] == "OSIE" and name in ours:
                raise BundleError(f"{path}: OSIE {name}: the bundle makes that object, for --osie {name}: take it out")
            parts.add(OBJECTS + path.name, path)


def _boot_programs(contents: Contents, parts: _Parts) -> None:
    directory = contents.boot_programs
    if directory is not None:
        found = [path for path in sorted(directory.rglob("*")) if path.suffix in BOOT_FILE_SUFFIXES and path.is_file()]
        if not found:
            raise BundleError(f"--boot-programs {directory}: there is no file in it that firmware boots (.efi, .kpxe)")
        for path in found:
            parts.add(BOOT + str(path.relative_to(directory)), path)


def _images(contents: Contents, parts: _Parts, work: Path, around: Surroundings) -> tuple[BundledImage, ...]:
    layout = around.cache / "images"
    reader, entries = ImageLayout(layout), []
    found: list[BundledImage] = []
    for wanted in contents.images:
        if any(wanted.name == f"{one.name}:{one.tag}" for one in found):
            raise BundleError(f"--image: two are named {wanted.name}: give one another name, NAME:TAG=REF")
        around.say(f"image {wanted.name} from {wanted.source}")
        top = fetch_image(wanted, layout, platform=contents.platform, insecure=contents.insecure)
        try:
            for blob in reader.blobs(top):
                parts.add(f"{IMAGES}{reader.path(blob.digest).relative_to(layout)}", reader.path(blob.digest))
            platforms = reader.platforms(top)
            entries.append(reader.entries()[wanted.name])
        except LayoutError as error:
            raise BundleError(f"image {wanted.name}: {error}") from error
        name, _, tag = wanted.name.rpartition(":")
        found.append(BundledImage(name, tag, top.digest, platforms))
    if found:
        for name, value in (
            ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
            ("index.json", {"schemaVersion": 2, "manifests": entries}),
        ):
            (work / name).write_bytes(orjson.dumps(value))
            parts.add(IMAGES + name, work / name)
    return tuple(found)


def _local(name: str, around: Surroundings) -> Path:
    """Return a local file, downloaded if `name` is a URL. Raises BundleError, OSError."""
    if not is_url(name):
        return Path(name)
    around.say(f"fetching {shown(name)}")
    return download(name, around.cache / "downloads", around.progress)


_NAMESPACE = uuid.UUID("1f6f4c8e-3b0f-4c7b-9a57-0f3f7c2b6a11")
_DISTRIBUTION = re.compile(r"/([A-Za-z0-9_.]+)-([^/-]+)\.dist-info/$", re.MULTILINE)
_PACKAGE = re.compile(r"([^_]+)_([^_]+)_([^_]+)\.deb")
_WHEEL = re.compile(r"([A-Za-z0-9_.]+)-([^-]+)-.*\.whl")


def sbom(
    files: Iterable[tuple[str, str]], images: Iterable[BundledImage], deb: Path | None, created: datetime
) -> bytes:
    """Return a CycloneDX 1.6 list (ECMA-424) of a bundle's components. Raises BundleError.

    These are `files` (name in the bundle, SHA-256 in hex), images, and the Python packages in the Debian package.
    """
    components = [*_files(files), *map(_image, images)]
    if deb is not None:  # the Python packages in its environment
        listed = run(["dpkg-deb", "--contents", deb], what=f"{deb}", package="dpkg")
        for name, version in sorted(set(_DISTRIBUTION.findall(listed))):
            package = name.lower().replace("_", "-")
            components.append(_library(package, version, f"pkg:pypi/{package}@{quote(version)}"))
    said = orjson.dumps(components)
    return orjson.dumps(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, said.decode())}",
            "version": 1,
            "metadata": {"timestamp": created.isoformat(), "component": {"type": "data", "name": "tinkedge bundle"}},
            "components": components,
        },
        option=orjson.OPT_INDENT_2,
    )


def _files(files: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for name, digest in files:
        hashes = [{"alg": "SHA-256", "content": digest}]
        last = name.rpartition("/")[2]
        if name.startswith(PACKAGES) and (found := _PACKAGE.fullmatch(last)):
            package, version, architecture = found[1], found[2].replace("%3a", ":"), found[3]
            purl = f"pkg:deb/debian/{quote(package)}@{quote(version)}?arch={architecture}"
            yield {**_library(package, version, purl), "hashes": hashes}
        elif name.startswith(WHEELS) and (found := _WHEEL.fullmatch(last)):
            package = found[1].lower().replace("_", "-")
            yield {**_library(package, found[2], f"pkg:pypi/{package}@{quote(found[2])}"), "hashes": hashes}
        elif not name.startswith("images/blobs/"):  # blobs are listed as images
            yield {"type": "file", "bom-ref": name, "name": name, "hashes": hashes}


def _image(image: BundledImage) -> dict[str, Any]:
    last = image.name.rpartition("/")[2]
    purl = f"pkg:oci/{quote(last)}@{quote(image.digest, safe='')}?tag={quote(image.tag)}"
    component = {"type": "container", "bom-ref": f"image:{image.name}:{image.tag}", "name": image.name}
    return {**component, "version": image.tag, "purl": purl}


def _library(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
