"""SHA-256 checksums of kernels and initrds: the forms in which people write them, and the checksums of local files.

A checksum comes from the OSIE (an annotation, passed to `ArtifactCache.open`) or from a sidecar file. The sidecar's URL
is the artifact's with `.sha256` at the end of its path. It may have any form that checksum programs print.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Hashable, Iterator
from concurrent.futures import Executor
from urllib.parse import unquote, urlsplit, urlunsplit

from edge.artifacts.artifact import in_thread
from tink.limits import Newest

MAX_SIDECAR_BYTES = 1 << 16
"""Bytes of a checksum file that are read."""

MAX_CACHED = 1024
"""Number of files whose checksum `FileSums` caches."""

_READ_BYTES = 1 << 20

_DIGITS = r"([0-9a-fA-F]{64}|[0-9a-fA-F]{128})"
_PLAIN = re.compile(rf"\\?{_DIGITS}(?:[ \t]+[*]?(.*))?")
"""The output of coreutils' sha256sum: digest, two blanks or a blank and `*`, name. A leading backslash means that the
name is escaped."""
_TAGGED = re.compile(rf"\\?SHA(?:2-)?(256|512) ?\((.*)\) ?= ?{_DIGITS}")
"""The output of `sha256sum --tag`, of the BSDs, and of `openssl dgst`."""


def normalized(sha256: str) -> str:
    """Return the checksum as 64 lower-case digits; empty for an empty text. Raises ValueError."""
    bare = sha256.strip().removeprefix("sha256:").lower()
    if bare and not re.fullmatch(r"[0-9a-f]{64}", bare):
        raise ValueError("a SHA-256 checksum is 64 hexadecimal digits")
    return bare


def sidecar_url(url: str) -> str:
    """Return the URL of the checksum file beside `url`. A query stays: some upstreams expect a token there."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}.sha256"))


def from_sidecar(content: bytes, url: str) -> str:
    """Return the checksum of `url` in a checksum file. Raises ValueError if there is none."""
    text = content.decode("utf-8-sig", "replace")
    entries = [(digest, name) for digest, name in checksums(text) if len(digest) == 64]
    # In a file with one line, the name does not matter: the artifact may have been renamed when it was published.
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


def checksums(text: str) -> Iterator[tuple[str, str]]:
    """Yield digest (SHA-256 or SHA-512, lower case) and name (may be empty) of the lines of a checksum file."""
    for line in map(str.strip, text.splitlines()):
        if plain := _PLAIN.fullmatch(line):
            yield plain[1].lower(), plain[2] or ""
        elif (tagged := _TAGGED.fullmatch(line)) and len(tagged[3]) * 4 == int(tagged[1]):
            yield tagged[3].lower(), tagged[2]


def hash_file(fd: int, size: int) -> hashlib._Hash:
    """Return the SHA-256 of the first `size` bytes of a file, or of fewer. Blocks: about 1 s for a gigabyte."""
    digest = hashlib.sha256()
    offset = 0
    while chunk := os.pread(fd, min(_READ_BYTES, size - offset), offset):
        digest.update(chunk)
        offset += len(chunk)
    return digest


class FileSums:
    """Checksums of local files. Each is computed once, in a thread of `pool`, for all callers."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._known: Newest[Hashable, str] = Newest(MAX_CACHED)
        self._computing: dict[Hashable, asyncio.Task[str]] = {}

    def learn(self, identity: Hashable, sha256: str) -> None:
        """Cache a checksum that was computed elsewhere."""
        self._known[identity] = sha256

    async def of(self, identity: Hashable, fd: int, size: int) -> str:
        """Return the checksum of the file `fd`, 64 hexadecimal digits. Raises OSError.

        `identity` must change when the bytes do. The caller may close `fd` as soon as this returns or is cancelled.
        """
        if known := self._known.get(identity):
            return known
        computing = self._computing.get(identity)
        if computing is None:
            computing = self._computing[identity] = asyncio.create_task(self._compute(identity, os.dup(fd), size))
        return await asyncio.shield(computing)

    async def stop(self) -> None:
        """Wait for the running computations."""
        await asyncio.gather(*self._computing.values(), return_exceptions=True)

    async def _compute(self, identity: Hashable, fd: int, size: int) -> str:
        try:
            digest = (await in_thread(self._pool, hash_file, fd, size)).hexdigest()
        finally:
            os.close(fd)
            del self._computing[identity]
        self.learn(identity, digest)
        return digest
