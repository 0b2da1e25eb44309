"""The sources of images: a file of this host or a URL, and the checksum that a distribution publishes for it.

A download continues where its connection broke, as long as the server's file is the same. Certificates are checked
against the authorities of this host. Redirects, logins in a URL and proxies are those of `tink.net`.

A file of checksums has lines of coreutils (Ubuntu, Debian, Flatcar) or of BSD (Rocky, AlmaLinux, Fedora), or a checksum
alone (`edge.artifacts.checksum`). Lines of other forms are skipped, such as comments and signatures.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from edge.artifacts.checksum import checksums
from edge.disk_images.action import (
    HEADER_BYTES,
    ActionError,
    AnswerError,
    ChangedError,
    Download,
    UntrustedError,
    Web,
    compression_of,
    unpacked,
)
from tink.errors import TinkedgeError
from tink.net.proxies import Proxies
from tink.net.urls import shown, without_login


class ImageError(TinkedgeError):
    """A file can't be imported, listed or removed. The message names it, and what to do."""


MAX_CHECKSUMS_BYTES: Final = 1 << 20
"""Maximum size of a file of checksums."""
_ALGORITHMS: Final = {64: "sha256", 128: "sha512"}
_ALONE: Final = re.compile(r"[0-9a-fA-F]{64}|[0-9a-fA-F]{128}")
_MAX_NAMED: Final = 8


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


def find_checksum(text: str, name: str, where: str) -> Checksum:
    """Return the strongest checksum of the file `name` that the file of checksums `where` has. Raises ImageError."""
    found: list[Checksum] = []
    alone: list[Checksum] = []
    names: dict[str, None] = {}
    for digest, path in checksums(text):
        checksum, short = Checksum(_ALGORITHMS[len(digest)], digest), path.rpartition("/")[2]
        if not path:
            alone.append(checksum)
            continue
        names.setdefault(short)
        if short == name:
            found.append(checksum)
    if not found and not names and len(alone) == 1:
        return alone[0]
    if not found:
        there = ", ".join(list(names)[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
        has = f"it has those of {there}" if names else "it has no SHA-256 or SHA-512 of any file"
        raise ImageError(f"{where}: has no checksum of {name}: {has}")
    best = max(found, key=lambda each: len(each.digest))
    if any(each.algorithm == best.algorithm and each.digest != best.digest for each in found):
        raise ImageError(f"{where}: has two checksums of {name}: give the right one, in hex")
    return best


READ_BYTES: Final = 1 << 20
_RETRIES: Final = 8
_IDNA: Final = codecs.lookup("idna")
"""Loaded now, for the socket module: while root acts as another user, Python may not be able to read its modules."""
_SCHEMES: Final = ("http://", "https://")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image to read once: the file's own name, and the name that messages show.

    `begin` returns the bytes, and their number if it is known. Raises ImageError, OSError; so does the iterator.
    """

    name: str
    shown: str
    begin: Callable[[], tuple[Iterator[bytes], int | None]]


@contextmanager
def opened(
    text: str, *, say: Callable[[str], None], is_proved: bool, sleep: Callable[[float], None] = time.sleep
) -> Iterator[ImageSource]:
    """Open the file or URL that `text` is. `is_proved`: the checksum is compared.

    `sleep` waits for so many seconds between two attempts at a download. Raises ImageError, OSError.
    """
    if text.startswith(_SCHEMES):
        download = Download(
            _Web(), text, retries=_RETRIES, is_proved=is_proved, authorization=_login(text), say=say, sleep=sleep
        )
        yield _by_url(text, download)
        return
    if "://" in text:
        raise ImageError(f"{shown(text)}: is neither a file nor an http:// or https:// URL")
    path = Path(text).expanduser()
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: is no file; give the file of a disk image")
        pieces = iter(lambda: file.read(READ_BYTES), b"")
        yield ImageSource(path.name, str(path), lambda: (pieces, status.st_size))


def checksum_of(text: str, name: str) -> Checksum:
    """Return the checksum of the file `name` that `text` gives: in hex, or in a file or URL. Raises ImageError."""
    if (found := Checksum.of(text)) is not None:
        return found
    if text.startswith(_SCHEMES):
        web = _Web()
        try:
            with web.get_as(text, {}, _login(text)) as response:
                content = web.content(response, MAX_CHECKSUMS_BYTES)
        except (AnswerError, OSError, HTTPException) as error:
            raise ImageError(f"{shown(text)}: {error}") from error
        where = shown(text)
    else:
        path = Path(text).expanduser()
        if not path.is_file():
            what = "is neither a SHA-256 (64 hexadecimal digits) or SHA-512 (128), nor a file or URL that has these"
            raise ImageError(f"{text[:200]!r}: {what}")
        with path.open("rb") as file:
            content = file.read(MAX_CHECKSUMS_BYTES + 1)
        where = str(path)
    if len(content) > MAX_CHECKSUMS_BYTES:
        raise ImageError(f"{where}: is larger than {MAX_CHECKSUMS_BYTES} bytes: it is no file of checksums")
    return find_checksum(content.decode(errors="replace"), name, where)


class _Web(Web):
    """The action's HTTP client, which trusts the authorities of this host alone."""

    def __init__(self) -> None:
        super().__init__(check_certificates=True, proxies=Proxies.of(os.environ))

    def get(self, url: str, headers: Mapping[str, str], authorization: str = "") -> HTTPResponse:
        """Request a URL like the action, with another remedy for an untrusted certificate. Raises AnswerError."""
        try:
            return super().get(url, headers, authorization)
        except UntrustedError as error:
            remedy = "if it is right, add its authority to those of this host (update-ca-certificates)"
            raise AnswerError(f"{error}; {remedy}", 400) from None


def _login(url: str) -> Callable[[AnswerError | None], str]:
    """Return the authorization of a URL. `Web` itself sends the login in the URL."""

    def authorization(refusal: AnswerError | None) -> str:
        if refusal is None:
            return ""
        remedy = "write a user and password into the URL, https://USER:PASSWORD@HOST/..., percent-encoded"
        if without_login(url)[1]:
            remedy = "the server does not take the user and password of the URL"
        raise AnswerError(f"{refusal}: {remedy}", refusal.status)

    return authorization


def _by_url(url: str, download: Download) -> ImageSource:
    name = unquote(urlsplit(url).path).rpartition("/")[2]

    def begin() -> tuple[Iterator[bytes], int | None]:
        chunks = _errors(download.chunks(), shown(url))
        first = next(chunks, b"")
        whole = itertools.chain([first], chunks)
        coding, size = download.coding, download.size
        if not coding or coding == compression_of(name) or len(first) < HEADER_BYTES:
            return whole, size  # Apache names the compression of a file itself in Content-Encoding, too
        return _errors(unpacked(whole, coding, shown(url)), shown(url)), None

    return ImageSource(name, shown(url), begin)


def _errors(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    try:
        yield from chunks
    except ChangedError as error:
        raise ImageError(f"{where}: has changed on the server meanwhile ({error}); run the command again") from error
    except ActionError as error:
        raise ImageError(error.message) from error
