"""What a bundle says of itself: `SHA256SUMS`, which is signed and which `sha256sum --check` reads, and `manifest.json`,
the first file that it names. Pure.

`SHA256SUMS` is all that a signature covers, so it is the only thing that is read before it is known whose it is, and it
is no more than lines of a hash and a name. What the files are stands in `manifest.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

FORMAT = 1
SUMS = "SHA256SUMS"
SIGNATURE = "SHA256SUMS.sig"
MANIFEST = "manifest.json"
INSTALL = "install.sh"
SBOM = "sbom.cdx.json"

PACKAGES, WHEELS, PROGRAMS = "debian/", "wheels/", "bin/"
"""What `install.sh` installs."""
OSIE, IMAGES, FILES, BOOT, OBJECTS = "osie/", "images/", "files/", "ipxe/", "manifests/"
"""What `tinkedge bundle load` puts into a data directory, under these names."""
LOADED = (OSIE, IMAGES, FILES, BOOT, OBJECTS)
FOLDERS = (PACKAGES, WHEELS, PROGRAMS, *LOADED)

MAX_TEXT_BYTES = 4 << 20
"""Of SHA256SUMS, and of manifest.json."""
MAX_SIGNATURE_BYTES = 64 << 10
MAX_FILES = 20_000
MAX_NAME_BYTES, MAX_FOLDER_BYTES = 100, 155
"""What a tar's header has room for, of the last part of a name and of the folders before it."""

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+:=~%-]*")
_OLDER = "it was made by an older tinkedge: make it anew with `tinkedge bundle create`"


class BundleError(Exception):
    """A bundle, or what it is to be made of, can't be used; the message says which part, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """The tinkedge that a bundle installs: its version, and the Debian that it is for (empty: it is wheels)."""

    version: str
    suite: str = ""
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """A container image: `name` and `tag` as machines ask for it, the digest of its manifest, its platforms."""

    name: str
    tag: str
    digest: str
    platforms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle holds: which release made it and when (UTC), and its files with their sizes in bytes.

    `sizes` is in the order of the files in the bundle, and that of SHA256SUMS.
    """

    tinkedge: str
    created: datetime
    program: Program | None
    osies: tuple[str, ...]
    images: tuple[Image, ...]
    sizes: dict[str, int]

    def to_json(self) -> bytes:
        """Give it as it stands in the file."""
        return orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Read it. Raises BundleError."""
        try:
            fields = orjson.loads(text)
            number = fields["format"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise BundleError(f"{MANIFEST} can't be read: {error}") from error
        if number != FORMAT:
            newer = isinstance(number, int) and number > FORMAT
            do = "use a newer one" if newer else _OLDER
            raise BundleError(f"{MANIFEST}: format is {number!r}, and this release reads {FORMAT}: {do}")
        try:
            return cls._of(fields)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise BundleError(f"{MANIFEST} can't be read: {type(error).__name__} {error}") from error

    @classmethod
    def _of(cls, fields: dict[str, Any]) -> Manifest:
        program = fields["program"]
        return cls(
            tinkedge=str(fields["tinkedge"]),
            created=time_of(fields["created"]),
            program=None if program is None else Program(**{str(key): str(value) for key, value in program.items()}),
            osies=tuple(str(name) for name in fields["osies"]),
            images=tuple(
                Image(str(one["name"]), str(one["tag"]), str(one["digest"]), tuple(map(str, one["platforms"])))
                for one in fields["images"]
            ),
            sizes={str(name): _size(name, size) for name, size in fields["sizes"].items()},
        )


def time_of(text: str) -> datetime:
    """Parse a time with its zone. Raises TypeError, ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return found.astimezone(UTC)


def _size(name: str, size: Any) -> int:
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"sizes.{name} is {size!r}")
    return size


def write_sums(sums: Iterable[tuple[str, str]]) -> bytes:
    """SHA256SUMS of (name, SHA-256 in hex), in the format of `sha256sum`."""
    return "".join(f"{digest}  {name}\n" for name, digest in sums).encode()


def read_sums(text: bytes) -> dict[str, str]:
    """SHA-256 in hex by name, in their order; `manifest.json` is the first. Raises BundleError."""
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


def agree(manifest: Manifest, sums: dict[str, str]) -> None:
    """See that both name the same files. Raises BundleError."""
    named = [name for name in sums if name != MANIFEST]
    if named != list(manifest.sizes):
        differ = sorted(set(named) ^ set(manifest.sizes)) or ["their order"]
        raise BundleError(f"{MANIFEST} and {SUMS} name different files: {', '.join(differ[:3])}; make the bundle anew")


def unusable(name: str) -> str:
    """Say why a file of this name can't be in a bundle; empty: it can.

    No name leads out of the directory that it is unpacked in, or is one that a shell or a program takes for more.
    """
    folder, _, last = name.rpartition("/")
    if len(last.encode()) > MAX_NAME_BYTES or len(folder.encode()) > MAX_FOLDER_BYTES:
        return f"its name is longer than {MAX_NAME_BYTES} bytes, or its folder than {MAX_FOLDER_BYTES}"
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        return "its name has other characters than letters, digits and ._@+:=~%-, or a part that begins with one"
    if "/" in name:
        return "" if name.startswith(FOLDERS) else f"there is no folder {name.partition('/')[0]!r} in a bundle"
    return "" if name in (MANIFEST, INSTALL, SBOM) else "a bundle has no such file at its top"
