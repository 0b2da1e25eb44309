"""The file of a bundle: a signed archive (`tink.files.archive`), which Debian's `tar` unpacks.

A reader takes no other headers than these, so a change of the headers is another FORMAT. The files are:

    SHA256SUMS, SHA256SUMS.sig, manifest.json, and the files in the order of SHA256SUMS

A signature covers only `SHA256SUMS`, which `sha256sum --check` reads: lines of a hash and a name. The first
file that it names is `manifest.json`, which describes the others.

A reader checks the signature before it looks at anything else, then every file against its hash.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import orjson
from pydantic import NonNegativeInt, TypeAdapter

from tink.errors import TinkedgeError
from tink.files.archive import (
    ArchiveKind,
    ArchiveReader,
    Contents,
    Member,
    Progress,
    UtcTime,
    counting,
    first_problem,
    measure,
)

FORMAT = 1
SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
MANIFEST = "manifest.json"
INSTALL = "install.sh"
SBOM = "sbom.cdx.json"

PACKAGES, WHEELS, PROGRAMS = "debian/", "wheels/", "bin/"
"""Folders of files that `install.sh` installs."""
OSIE, IMAGES, FILES, BOOT, OBJECTS = "osie/", "images/", "files/", "ipxe/", "manifests/"
"""Folders that `tinkedge bundle load` writes into a data directory, under these names."""
LOADED = (OSIE, IMAGES, FILES, BOOT, OBJECTS)
FOLDERS = (PACKAGES, WHEELS, PROGRAMS, *LOADED)

MAX_TEXT_BYTES = 4 << 20
"""Maximum size of SHA256SUMS, and of manifest.json."""
MAX_SIGNATURE_BYTES = 64 << 10
MAX_FILES = 20_000
MAX_NAME_BYTES, MAX_FOLDER_BYTES = 100, 155
"""Maximum lengths in a tar's header: of the last part of a name, and of the folders before it."""

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+:=~%-]*")
_OLDER = "it was made by an older tinkedge: make it again with `tinkedge bundle create`"


class BundleError(TinkedgeError):
    """A bundle, or a part of a new one, can't be used; the message names the part, the cause and the remedy."""


BUNDLE = ArchiveKind("bundle of tinkedge", SUMS, BundleError, 0o644, tarfile.USTAR_FORMAT)


@dataclass(frozen=True, slots=True)
class BundledProgram:
    """The tinkedge that a bundle installs: its version and its Debian (empty: the bundle has wheels)."""

    version: str
    suite: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class BundledImage:
    """A container image: `name` and `tag` as machines ask for it, the digest of its manifest, its platforms."""

    name: str
    tag: str
    digest: str
    platforms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a bundle: the release that made it, its time (UTC), and its files with sizes in bytes.

    `sizes` has the order of the files in the bundle, and of SHA256SUMS.
    """

    tinkedge: str
    created: UtcTime
    program: BundledProgram | None
    osies: tuple[str, ...]
    images: tuple[BundledImage, ...]
    sizes: dict[str, NonNegativeInt]

    def to_json(self) -> bytes:
        """Return the text of manifest.json."""
        return orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parse manifest.json. Raises BundleError."""
        try:
            number = orjson.loads(text)["format"]
            if number != FORMAT:
                do = "use a newer one" if isinstance(number, int) and number > FORMAT else _OLDER
                raise BundleError(f"{MANIFEST}: format is {number!r}, and this release reads {FORMAT}: {do}")
            return TypeAdapter(cls).validate_json(text, strict=True)
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{MANIFEST} can't be read: {first_problem(error)}") from error


def time_of(text: str) -> datetime:
    """Parse a time with its zone. Raises TypeError, ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return found.astimezone(UTC)


def read_sums(text: bytes) -> dict[str, str]:
    """Parse SHA256SUMS: SHA-256 in hex by name, `manifest.json` first. Raises BundleError."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise BundleError(f"{SUMS}, line {number}: it is no hash and name")
        digest, name = found.groups()
        if problem := unusable(name):
            raise BundleError(f"{SUMS}, line {number}: {name!r} can't be in a bundle: {problem}")
        if name in sums:
            raise BundleError(f"{SUMS}, line {number}: {name!r} stands there twice")
        sums[name] = digest
    if next(iter(sums), "") != MANIFEST:
        raise BundleError(f"{SUMS}: it does not begin with {MANIFEST}: {_OLDER}")
    if len(sums) > MAX_FILES:
        raise BundleError(f"{SUMS}: {len(sums)} files are more than the {MAX_FILES} that a bundle may hold")
    return sums


def unusable(name: str) -> str:
    """Return why a file of this name can't be in a bundle; empty if it can."""
    folder, _, last = name.rpartition("/")
    if len(last.encode()) > MAX_NAME_BYTES or len(folder.encode()) > MAX_FOLDER_BYTES:
        return f"its name is longer than {MAX_NAME_BYTES} bytes, or its folder than {MAX_FOLDER_BYTES}"
    # Such a name stays within its directory, and has no character that is special to a shell or a program.
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        return "its name has other characters than letters, digits and ._@+:=~%-, or a part that begins with one"
    if "/" in name:
        return "" if name.startswith(FOLDERS) else f"there is no folder {name.partition('/')[0]!r} in a bundle"
    return "" if name in (MANIFEST, INSTALL, SBOM) else "a bundle has no such file at its top"


Verify = Callable[[bytes, bytes], str]
"""Returns the signer of a text by its signature. Raises BundleError."""
Sign = Callable[[bytes], bytes]


def write(out: BinaryIO, manifest: Manifest, paths: Mapping[str, Path], sign: Sign, progress: Progress) -> None:
    """Write a bundle; `paths` has the files by their names in the manifest. Raises BundleError, OSError."""
    text, total = manifest.to_json(), sum(manifest.sizes.values())
    hashed, written = (counting(progress, f"{what}, in bytes", total) for what in ("hashed", "written"))
    members = [measure(name, paths[name], hashed) for name in manifest.sizes]
    sums = {MANIFEST: hashlib.sha256(text).hexdigest(), **{member.name: member.sha256 for member in members}}
    signed = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
    for name, content in ((SUMS, signed), (SIGNATURE, sign(signed)), (MANIFEST, text)):
        BUNDLE.write_text(out, name, content, manifest.created)
    BUNDLE.write_files(out, ((member, paths[member.name]) for member in members), manifest.created, written)


class BundleReader:
    """Reads a bundle once, from start to end. `signer` is the result of `verify`, `sha256` has the signed sums."""

    def __init__(self, file: BinaryIO, verify: Verify) -> None:
        """Check the signature and read the manifest. Raises BundleError, OSError."""
        self._archive = ArchiveReader(file, BUNDLE)
        sums = self._archive.text(SUMS, MAX_TEXT_BYTES)
        self.signer = verify(sums, self._archive.text(SIGNATURE, MAX_SIGNATURE_BYTES))
        self.sha256 = read_sums(sums)
        text = self._archive.text(MANIFEST, MAX_TEXT_BYTES)
        if hashlib.sha256(text).hexdigest() != self.sha256[MANIFEST]:
            raise BundleError(f"{MANIFEST} is damaged: its SHA-256 is not the one that was signed")
        self.manifest = Manifest.from_json(text)
        self._archive.check_headers(self.manifest.created)
        named, sizes = [name for name in self.sha256 if name != MANIFEST], self.manifest.sizes
        if named != list(sizes):
            differ = ", ".join((sorted(set(named) ^ set(sizes)) or ["their order"])[:3])
            raise BundleError(f"{MANIFEST} and {SUMS} name different files: {differ}; make the bundle again")

    def files(self) -> Contents:
        """Yield each file with its content, which is verified when it has been read. Raises BundleError, OSError."""
        sizes = self.manifest.sizes.items()
        return self._archive.files(Member(*each, self.sha256[each[0]]) for each in sizes)
