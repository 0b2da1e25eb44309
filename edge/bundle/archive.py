"""The file of a bundle: a plain tar, which Debian's `tar` unpacks. Its headers are POSIX.1-1988's, GNU's for files of 8
GiB and more; a reader takes no other, so a change of them is another FORMAT.

    SHA256SUMS, SHA256SUMS.sig, manifest.json, and the files in the order of SHA256SUMS

It is read from its beginning to its end with little memory and no trust: the signature before anything else is looked
at, then every file against its hash; a name, a size or a byte that is not signed ends it. Nothing of a tar that could
be followed (links, devices) is known here.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from edge.bundle.manifest import (
    MANIFEST,
    MAX_SIGNATURE_BYTES,
    MAX_TEXT_BYTES,
    SIGNATURE,
    SUMS,
    BundleError,
    Manifest,
    agree,
    read_sums,
    write_sums,
)

_BLOCK = 512
_CHUNK = 1 << 20
_LARGE = 8 << 30
"""Bytes that a header of POSIX has no number for, and GNU's has; but that has less room for names."""

Progress = Callable[[str, int, int], None]
"""Told what is done, how many bytes of it, and how many there are."""
Verify = Callable[[bytes, bytes], str]
"""Of a text and its signature: who signed it. Raises BundleError."""
Sign = Callable[[bytes], bytes]


def digest_of(path: Path, progress: Callable[[int], None] = lambda _: None) -> str:
    """SHA-256 of a file, in hex; `progress` hears of each part of it, in bytes. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(len(chunk))
    return digest.hexdigest()


def write(out: BinaryIO, manifest: Manifest, paths: Mapping[str, Path], sign: Sign, progress: Progress) -> None:
    """Write a bundle of these files, by their names in the manifest. Raises BundleError, OSError."""
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
    """Reads a bundle from its beginning to its end, once. `signer` is what `verify` gave."""

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
        """What was signed of a file, in hex."""
        return self._sums[name]

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Give each file and its content, all of which has to be taken: it is right when it has ended.

        Raises BundleError, OSError.
        """
        for name, size in self.manifest.sizes.items():
            *found, block = self._next()
            if found != [name, size]:
                raise BundleError(
                    f"it has {found[0]!r} of {found[1]} bytes where {name!r} of {size} should be: it was changed or "
                    "damaged; copy it anew"
                )
            self._same(block, name, size)
            yield name, self._content(name, size)
        if any(self._exactly(2 * _BLOCK)):
            raise BundleError(f"it has a file more than {SUMS} names: it was changed; copy it anew")
        if self._file.read(1):
            raise BundleError("it goes on after its end: it was changed; copy it anew")

    def _content(self, name: str, size: int) -> Iterator[bytes]:
        digest, left = hashlib.sha256(), size
        while left:
            chunk = self._exactly(min(_CHUNK, left))
            digest.update(chunk)
            left -= len(chunk)
            yield chunk
        if digest.hexdigest() != self._sums[name]:
            raise BundleError(f"{name} in it is damaged: its SHA-256 is not the one that was signed; copy it anew")
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
        """No byte of a header is another than `write` makes: nobody's tar can take it for something else."""
        if block != _header(name, size, self.manifest.created):
            raise BundleError(f"{name} in it has another header than tinkedge writes: it was changed; copy it anew")

    def _pad(self, size: int) -> None:
        if any(self._exactly(-size % _BLOCK)):
            raise BundleError("there is something between its files: it was changed or damaged; copy it anew")

    def _next(self) -> tuple[str, int, bytes]:
        block = self._exactly(_BLOCK)
        if not any(block):
            raise BundleError("it ends too early: it was changed or damaged; copy it anew")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BundleError(f"it is no bundle of tinkedge, or damaged ({error}); copy it anew") from error
        if info.type != tarfile.REGTYPE or info.size < 0:
            raise BundleError(f"{info.name!r} in it is no plain file: it was not made by tinkedge")
        return info.name, info.size, block

    def _exactly(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise BundleError("it has been cut off; copy it anew")
        return found
