"""SHA-256 checksums of kernels and initrds: how people write them, and the one computation for all who want to know.

A checksum comes from the OSIE (an annotation, given to `ArtifactCache.open`) or from a file beside the artifact, whose
URL is the artifact's with `.sha256` at the end of its path, in any of the forms that checksum programs print.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Hashable
from concurrent.futures import Executor
from urllib.parse import unquote, urlsplit, urlunsplit

from edge.artifacts.artifact import in_thread
from tink.limits.newest import Newest

MAX_SIDECAR_BYTES = 1 << 16
"""Bytes of a checksum file that are looked at."""

REMEMBERED = 1024
"""Files whose checksum `FileSums` keeps in mind."""

_READ_BYTES = 1 << 20

_DIGITS = r"[0-9a-fA-F]{64}"
_PLAIN = re.compile(rf"\\?({_DIGITS})(?:[ \t]+[*]?(.*))?")
"""coreutils' sha256sum: digest, two blanks or a blank and `*`, name; a backslash first if the name is escaped."""
_TAGGED = re.compile(rf"\\?SHA(?:2-)?256 ?\((.*)\) ?= ?({_DIGITS})")
"""sha256sum --tag, the BSDs, and `openssl dgst`."""


def normalized(sha256: str) -> str:
    """The checksum as 64 lower-case digits; empty if there is none. Raises ValueError if it is none."""
    bare = sha256.strip().removeprefix("sha256:").lower()
    if bare and not re.fullmatch(r"[0-9a-f]{64}", bare):
        raise ValueError("a SHA-256 checksum is 64 hexadecimal digits")
    return bare


def sidecar_url(url: str) -> str:
    """Where the checksum of `url` may be: beside it. A query (some upstreams want a token there) stays."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}.sha256"))


def from_sidecar(content: bytes, url: str) -> str:
    """The checksum that a checksum file gives for `url`. Raises ValueError if it gives none.

    A file with one line is about the artifact whatever name it mentions (it may have been renamed when it was
    published); of several lines, that with the artifact's name counts.
    """
    lines = content.decode("utf-8-sig", "replace").splitlines()
    entries = [entry for line in lines if (entry := _entry(line.strip())) is not None]
    if len(entries) == 1:
        return entries[0][0]
    if not entries:
        raise ValueError("it has no line with a SHA-256 checksum")
    wanted = unquote(urlsplit(url).path).rpartition("/")[2]
    named = {digest for digest, name in entries if name.replace("\\", "/").rpartition("/")[2] == wanted}
    if len(named) != 1:
        count = "no line" if not named else "more than one checksum"
        raise ValueError(f"it has {count} for {wanted}")
    return named.pop()


def _entry(line: str) -> tuple[str, str] | None:
    """The digest and the name (may be empty) of one line."""
    if plain := _PLAIN.fullmatch(line):
        return plain[1].lower(), plain[2] or ""
    if tagged := _TAGGED.fullmatch(line):
        return tagged[2].lower(), tagged[1]
    return None


def hash_file(fd: int, size: int) -> hashlib._Hash:
    """SHA-256 over the first `size` bytes of the file, or as many as it has. Blocks: about 1 s for a gigabyte."""
    digest = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, min(_READ_BYTES, size - offset), offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest


class FileSums:
    """Checksums of files on this machine, each computed once, in a thread of `pool`, whoever asks, however many."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._known: Newest[Hashable, str] = Newest(REMEMBERED)
        self._computing: dict[Hashable, asyncio.Task[str]] = {}

    def learn(self, identity: Hashable, sha256: str) -> None:
        """Keep in mind what somebody else has computed."""
        self._known[identity] = sha256

    async def of(self, identity: Hashable, fd: int, size: int) -> str:
        """The checksum of the file `fd`, 64 hexadecimal digits. `identity` changes when the bytes do. Raises OSError.

        `fd` remains the caller's, who may close it as soon as this returns or is cancelled.
        """
        if known := self._known.get(identity):
            return known
        computing = self._computing.get(identity)
        if computing is None:
            computing = asyncio.create_task(self._compute(identity, os.dup(fd), size))
            self._computing[identity] = computing
        return await asyncio.shield(computing)

    async def stop(self) -> None:
        """Wait for what is being computed."""
        await asyncio.gather(*self._computing.values(), return_exceptions=True)

    async def _compute(self, identity: Hashable, fd: int, size: int) -> str:
        try:
            digest = (await in_thread(self._pool, hash_file, fd, size)).hexdigest()
        finally:
            os.close(fd)
            del self._computing[identity]
        self.learn(identity, digest)
        return digest
