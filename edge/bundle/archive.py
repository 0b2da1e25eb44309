"""The file of a bundle, and what it says about itself.

A bundle is a plain tar, which Debian's `tar` unpacks. Its headers are those of POSIX.1-1988, and GNU's for files of 8
GiB and more. A reader takes no other header, so a change of the headers is another FORMAT. The files are:

    SHA256SUMS, SHA256SUMS.sig, manifest.json, and the files in the order of SHA256SUMS

A signature covers only `SHA256SUMS`, which `sha256sum --check` reads: lines of a hash and a name. The first
file that it names is `manifest.json`, which describes the others.

A reader trusts nothing. It checks the signature before it looks at anything else, then every file against its hash. An
unsigned name, size or byte ends the reading. It accepts no links and no devices.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from tink.errors import TinkedgeError

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


@dataclass(frozen=True, slots=True)
class Program:
    """The tinkedge that a bundle installs: its version and its Debian (empty: the bundle has wheels)."""

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
    """The description of a bundle: the release that made it, its time (UTC), and its files with sizes in bytes.

    `sizes` has the order of the files in the bundle, and of SHA256SUMS.
    """

    tinkedge: str
    created: datetime
    program: Program | None
    osies: tuple[str, ...]
    images: tuple[Image, ...]
    sizes: dict[str, int]

    def to_json(self) -> bytes:
        """Return the text of manifest.json."""
        return orjson.dumps({"format": FORMAT, **asdict(self)}, option=orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z)

    @classmethod
    def from_json(cls, text: bytes) -> Manifest:
        """Parse manifest.json. Raises BundleError."""
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
    """Return SHA256SUMS of pairs of name and SHA-256 in hex, in the format of `sha256sum`."""
    return "".join(f"{digest}  {name}\n" for name, digest in sums).encode()


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


def agree(manifest: Manifest, sums: dict[str, str]) -> None:
    """Check that both name the same files. Raises BundleError."""
    named = [name for name in sums if name != MANIFEST]
    if named != list(manifest.sizes):
        differ = sorted(set(named) ^ set(manifest.sizes)) or ["their order"]
        raise BundleError(f"{MANIFEST} and {SUMS} name different files: {', '.join(differ[:3])}; make the bundle again")


def unusable(name: str) -> str:
    """Return why a file of this name can't be in a bundle; empty if it can.

    A valid name stays within its directory, and has no character that is special to a shell or a program.
    """
    folder, _, last = name.rpartition("/")
    if len(last.encode()) > MAX_NAME_BYTES or len(folder.encode()) > MAX_FOLDER_BYTES:
        return f"its name is longer than {MAX_NAME_BYTES} bytes, or its folder than {MAX_FOLDER_BYTES}"
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        return "its name has other characters than letters, digits and ._@+:=~%-, or a part that begins with one"
    if "/" in name:
        return "" if name.startswith(FOLDERS) else f"there is no folder {name.partition('/')[0]!r} in a bundle"
    return "" if name in (MANIFEST, INSTALL, SBOM) else "a bundle has no such file at its top"


_BLOCK = 512
_CHUNK = 1 << 20
_LARGE = 8 << 30
"""Size in bytes from which a header needs GNU's format, which has less room for names."""

Progress = Callable[[str, int, int], None]
"""Called with the kind of work, the bytes done, and all bytes."""
Verify = Callable[[bytes, bytes], str]
"""Returns the signer of a text by its signature. Raises BundleError."""
Sign = Callable[[bytes], bytes]


def digest_of(path: Path, progress: Callable[[int], None] = lambda _: None) -> str:
    """Return the SHA-256 of a file, in hex. `progress` gets the number of bytes of each part. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def write(out: BinaryIO, manifest: Manifest, paths: Mapping[str, Path], sign: Sign, progress: Progress) -> None:
    """Write a bundle; `paths` has the files by their names in the manifest. Raises BundleError, OSError."""
    text, total, done = manifest.to_json(), sum(manifest.sizes.values()), 0
    sums = {MANIFEST: hashlib.sha256(text).hexdigest()}
    for name in manifest.sizes:

        def hashed(size: int) -> None:
            nonlocal done
            done += size
            progress("hashed, in bytes", done, total)

        sums[name] = digest_of(paths[name], hashed)
    signed = write_sums(sums.items())
    for name, content in ((SUMS, signed), (SIGNATURE, sign(signed)), (MANIFEST, text)):
        out.write(_header(name, len(content), manifest.created) + content + _padding(len(content)))
    done = 0
    for name, size in manifest.sizes.items():
        out.write(_header(name, size, manifest.created))
        digest, left = hashlib.sha256(), size
        with paths[name].open("rb") as source:
            while left and (chunk := source.read(min(_CHUNK, left))):
                digest.update(chunk)
                out.write(chunk)
                left -= len(chunk)
                done += len(chunk)
                progress("written, in bytes", done, total)
            if left or source.read(1) or digest.hexdigest() != sums[name]:
                raise BundleError(f"{paths[name]}: it changed while it was read; try again")
        out.write(_padding(size))
    out.write(bytes(2 * _BLOCK))


def _header(name: str, size: int, created: datetime) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, int(created.timestamp())
    if size < _LARGE:
        return info.tobuf(tarfile.USTAR_FORMAT)
    block = info.tobuf(tarfile.GNU_FORMAT)
    if len(block) > _BLOCK:
        raise BundleError(f"{name}: of {size} bytes, and its name is longer than the 100 that so large a file may have")
    return block


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


class Reader:
    """Reads a bundle once, from start to end. `signer` is the result of `verify`."""

    def __init__(self, file: BinaryIO, verify: Verify) -> None:
        """Check the signature and read the manifest. Raises BundleError, OSError."""
        self._file = file
        self._headers: list[bytes] = []
        sums = self._text(SUMS, MAX_TEXT_BYTES)
        signature = self._text(SIGNATURE, MAX_SIGNATURE_BYTES)
        self.signer = verify(sums, signature)
        self._sums = read_sums(sums)
        text = self._text(MANIFEST, MAX_TEXT_BYTES)
        if hashlib.sha256(text).hexdigest() != self._sums[MANIFEST]:
            raise BundleError(f"{MANIFEST} is damaged: its SHA-256 is not the one that was signed")
        self.manifest = Manifest.from_json(text)
        agree(self.manifest, self._sums)
        names = ((SUMS, len(sums)), (SIGNATURE, len(signature)), (MANIFEST, len(text)))
        for block, (name, size) in zip(self._headers, names, strict=True):
            self._same(block, name, size)

    def sha256(self, name: str) -> str:
        """Return the signed SHA-256 of a file, in hex."""
        return self._sums[name]

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield each file with its content. The content is verified when it has been read to its end.

        Raises BundleError, OSError.
        """
        for name, size in self.manifest.sizes.items():
            *found, block = self._next()
            if found != [name, size]:
                raise BundleError(
                    f"it has {found[0]!r} of {found[1]} bytes where {name!r} of {size} should be: it was changed or "
                    "damaged; copy it again"
                )
            self._same(block, name, size)
            yield name, self._content(name, size)
        if any(self._exactly(2 * _BLOCK)):
            raise BundleError(f"it has a file more than {SUMS} names: it was changed; copy it again")
        if self._file.read(1):
            raise BundleError("it goes on after its end: it was changed; copy it again")

    def _content(self, name: str, size: int) -> Iterator[bytes]:
        digest, left = hashlib.sha256(), size
        while left:
            chunk = self._exactly(min(_CHUNK, left))
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if digest.hexdigest() != self._sums[name]:
            raise BundleError(f"{name} in it is damaged: its SHA-256 is not the one that was signed; copy it again")
        self._pad(size)

    def _text(self, wanted: str, most: int) -> bytes:
        name, size, block = self._next()
        if name != wanted:
            raise BundleError(f"it is no bundle of tinkedge: there is {name!r} where {wanted} should be")
        if size > most:
            raise BundleError(f"{wanted} has {size} bytes, and {most} are the most")
        self._headers.append(block)
        text = self._exactly(size)
        self._pad(size)
        return text

    def _same(self, block: bytes, name: str, size: int) -> None:
        """Check that a header has the bytes that `write` makes, so that every tar program reads it alike."""
        if block != _header(name, size, self.manifest.created):
            raise BundleError(f"{name} in it has another header than tinkedge writes: it was changed; copy it again")

    def _pad(self, size: int) -> None:
        if any(self._exactly(-size % _BLOCK)):
            raise BundleError("there is something between its files: it was changed or damaged; copy it again")

    def _next(self) -> tuple[str, int, bytes]:
        block = self._exactly(_BLOCK)
        if not any(block):
            raise BundleError("it ends too early: it was changed or damaged; copy it again")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BundleError(f"it is no bundle of tinkedge, or damaged ({error}); copy it again") from error
        if info.type != tarfile.REGTYPE or info.size < 0:
            raise BundleError(f"{info.name!r} in it is no plain file: it was not made by tinkedge")
        return info.name, info.size, block

    def _exactly(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise BundleError("it has been cut off; copy it again")
        return found
