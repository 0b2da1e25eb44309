"""The download of an image: every byte once and in order, also when the connection breaks.

    first answer                       its ETag, Last-Modified and length identify the file
    connection breaks                  request the rest of the same file (Range, If-Range; RFC 9110 section 13.1.5)
    206, same file                     continue where the connection broke
    200: the server has no ranges, or
    nothing identifies the file        read everything again, skip the known bytes and compare their SHA-256
    other ETag, length or beginning    ChangedError: bytes of two files are never mixed

An attempt fails if it brings fewer than `PROGRESS_BYTES` new bytes. `patience` limits the number of failed attempts.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from image2disk.errors import ActionError
from image2disk.unpacking import CODINGS, ahead
from image2disk.web import AnswerError, BrokenError, Patience, UntrustedError, Web, said
from tink.net.urls import shown

READ_BYTES: Final = 1 << 20
PROGRESS_BYTES: Final = 64 * 1024
"""Minimum number of new bytes before a broken connection no longer counts as a failed attempt."""
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_STRONG: Final = re.compile(r'"[^"]*"')
_SURE_AFTER: Final = timedelta(seconds=60)
"""Minimum age of a file when it is sent.

Last-Modified of a younger file may be that of two versions (RFC 9110 section 8.8.2.2).
"""


class ChangedError(Exception):
    """The server's file has changed; the message has the evidence."""


class Download:
    """A download. It has received `received` of `size` bytes (None: unknown), with this `sha256`.

    `coding` is its Content-Encoding, as one of `unpacking.CODINGS`, or empty. It is not decoded here.
    """

    def __init__(
        self,
        web: Web,
        url: str,
        *,
        retries: int,
        is_proved: bool,
        authorization: Callable[[AnswerError | None], str] = lambda _: "",
        say: Callable[[str], None] = print,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create a download.

        `is_proved`: the caller compares a checksum at the end, so ranges need no validator. `authorization` as in
        `Web.get_as`.
        """
        self._web = web
        self._url = url
        self._patience = Patience(retries, say=say, sleep=sleep)
        self._is_proved = is_proved
        self._authorization = authorization
        self._say = say
        self._etag = self._modified = self._validator = ""
        self._is_described = False
        self._ranges = True
        self.sha256 = hashlib.sha256()
        self.received = 0
        self.size: int | None = None
        self.coding = ""

    def chunks(self) -> Iterator[bytes]:
        """Yield the whole file. Raises ChangedError, ActionError (DownloadFailed)."""
        before = 0
        while True:
            try:
                for chunk in self._attempt():
                    self.sha256.update(chunk)
                    self.received += len(chunk)
                    yield chunk
            except (BrokenError, AnswerError) as error:
                if self.received - before >= PROGRESS_BYTES:
                    before = self.received
                    self._patience.progressed()
                if not self._patience.lasts(error, f"continues from byte {self.received}"):
                    is_final = isinstance(error, AnswerError) and not error.may_pass
                    there = f"{error}; {self.received} bytes were there"
                    raise self._failed(str(error) if is_final else there) from None
            except UntrustedError as error:
                raise self._failed(f"{error}; set IMG_SHA256, so that the action knows which file is right") from None
            else:
                return

    def _failed(self, why: str) -> ActionError:
        return ActionError("DownloadFailed", f"{shown(self._url)}: {why}")

    def _attempt(self) -> Iterator[bytes]:
        headers = {}
        if self.received and self._ranges and (self._validator or self._is_proved):
            headers["Range"] = f"bytes={self.received}-"
            if self._validator:
                headers["If-Range"] = self._validator
        try:
            response = self._web.get_as(self._url, headers, self._authorization)
        except AnswerError as error:
            if error.status == 416 and headers:
                self._ranges = False  # shorter now, or a server without ranges: read the whole file to find out
                raise BrokenError("the server refuses to continue there (416)") from None
            raise
        with response:
            start = self._start(response, bool(headers))
            left = response.length  # from the header; None: unknown
            body = self._body(response, left)
            yield from body if start else self._beyond(body)

    def _start(self, response: http.client.HTTPResponse, is_range: bool) -> int:
        """Return the offset at which the body starts, after a check that the file is the same."""
        coding = self._coding(response.headers.get_all("Content-Encoding", []))
        etag, modified = response.headers.get("ETag", ""), response.headers.get("Last-Modified", "")
        start, size = 0, response.length
        if response.status == 206:
            span = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if not is_range or span is None or int(span[1]) != self.received or int(span[2]) + 1 != int(span[3]):
                self._ranges = False
                raise BrokenError("the server sends another part than requested")
            start, size = self.received, int(span[3])
        if self._is_described:
            self._compare(etag, modified, size, coding)
            self.size = size if self.size is None else self.size
            return start
        self._is_described = True
        self._etag, self._modified, self.size, self.coding = etag, modified, size, coding
        self._validator = _validator(etag, modified, response.headers.get("Date", ""))
        return start

    def _coding(self, headers: list[str]) -> str:
        """Return how to undo Content-Encoding; empty if there is nothing to undo. Raises ActionError."""
        names = [name.strip().lower() for header in headers for name in header.split(",")]
        named = [name for name in names if name not in ("", "identity", "none")]
        if len(named) > 1 or any(name not in CODINGS for name in named):
            said = ", ".join(named)[:40]
            raise self._failed(f"comes with Content-Encoding {said}, which can't be decoded; serve it without")
        return CODINGS[named[0]] if named else ""

    def _compare(self, etag: str, modified: str, size: int | None, coding: str) -> None:
        if None not in (size, self.size) and size != self.size:
            raise ChangedError(f"it has {size} bytes now, not {self.size}")
        if etag != self._etag:
            raise ChangedError(f"its ETag is {etag[:80] or 'none'} now, not {self._etag[:80] or 'none'}")
        if coding != self.coding:
            raise ChangedError(f"its Content-Encoding is {coding or 'none'} now, not {self.coding or 'none'}")
        if not etag and modified != self._modified:
            raise ChangedError(f"it was modified {modified[:40]}, not {self._modified[:40]}")

    def _body(self, response: http.client.HTTPResponse, length: int | None) -> Iterator[bytes]:
        left = length
        try:
            # Read in a thread: the checksum of one chunk and the arrival of the next take about the same time.
            for chunk in ahead(self._web.body(response, READ_BYTES)):
                if left is not None:
                    left -= len(chunk)
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise BrokenError(f"the connection broke: {said(error)}") from None
        if left:
            raise BrokenError(f"the connection ended {left} bytes early")

    def _beyond(self, body: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the bytes after those received before, which are compared."""
        known_bytes, again = self.received, hashlib.sha256()
        if known_bytes:
            self._say(f"the server sends the whole file again: the first {known_bytes} bytes are compared and skipped")
        for chunk in body:
            known = chunk[:known_bytes]
            known_bytes -= len(known)
            again.update(known)
            if known and not known_bytes and again.digest() != self.sha256.digest():
                raise ChangedError(f"its first {self.received} bytes are different now")
            if len(chunk) > len(known):
                yield chunk[len(known) :]
        if known_bytes:
            raise ChangedError(f"it ends {known_bytes} bytes before where the connection broke")


def _validator(etag: str, modified: str, date: str) -> str:
    """Return the value for If-Range (RFC 9110 sections 8.8.1, 8.8.2.2, 13.1.5); empty if none is safe."""
    if etag:
        return etag if _STRONG.fullmatch(etag) else ""
    try:
        sure = parsedate_to_datetime(date) - parsedate_to_datetime(modified) >= _SURE_AFTER
    except (TypeError, ValueError):
        return ""
    return modified if sure else ""
