"""A checksum, or the file of checksums that a distribution publishes beside its images.

    HEX  NAME, HEX *NAME        coreutils: SHA256SUMS (Ubuntu), SHA512SUMS (Debian), DIGESTS (Flatcar)
    SHA256 (NAME) = HEX         BSD: CHECKSUM (Rocky, AlmaLinux, Fedora)
    HEX                         alone in its file: NAME.sha256

Lines of other forms are passed over: comments, and the signature around the lines.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Protocol

from edge.disk_images.errors import ImageError

MAX_BYTES: Final = 1 << 20
"""Maximum size of a file of checksums."""
_ALGORITHMS: Final = {64: "sha256", 128: "sha512"}
_HEX: Final = r"([0-9a-fA-F]{64}|[0-9a-fA-F]{128})"
_ALONE: Final = re.compile(_HEX)
_GNU: Final = re.compile(rf"\\?{_HEX} [ *](\S.*)")
_BSD: Final = re.compile(rf"SHA(?:256|512) \((.+)\) ?= ?{_HEX}")
_MOST_NAMED: Final = 8


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: bytes, /) -> None:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum of a file, in lower case; `algorithm` is sha256 or sha512."""

    algorithm: str
    digest: str

    @classmethod
    def of(cls, text: str) -> Checksum | None:
        """Return the checksum that `text` is, or None if it is something else."""
        text = text.strip()
        return cls(_ALGORITHMS[len(text)], text.lower()) if _ALONE.fullmatch(text) else None

    def new(self) -> Hash:
        """Return a hash of this algorithm."""
        return hashlib.new(self.algorithm)


def find(text: str, name: str, where: str) -> Checksum:
    """Return the strongest checksum of the file `name` that the file of checksums `where` has. Raises ImageError."""
    found: list[Checksum] = []
    alone: list[Checksum] = []
    names: dict[str, None] = {}
    for line in map(str.strip, text.splitlines()):
        if (only := Checksum.of(line)) is not None:
            alone.append(only)
            continue
        if (gnu := _GNU.fullmatch(line)) is not None:
            digest, named = gnu[1], gnu[2]
        elif (bsd := _BSD.fullmatch(line)) is not None:
            named, digest = bsd[1], bsd[2]
        else:
            continue
        short = named.rpartition("/")[2]
        names.setdefault(short)
        if short == name:
            found.append(Checksum(_ALGORITHMS[len(digest)], digest.lower()))
    if not found and not names and len(alone) == 1:
        return alone[0]
    if not found:
        there = ", ".join(list(names)[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
        has = f"it has those of {there}" if names else "it has no SHA-256 or SHA-512 of any file"
        raise ImageError(f"{where}: has no checksum of {name}: {has}")
    best = max(found, key=lambda each: len(each.digest))
    if any(each.algorithm == best.algorithm and each.digest != best.digest for each in found):
        raise ImageError(f"{where}: has two checksums of {name}: give the right one, in hex")
    return best
