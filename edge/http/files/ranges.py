"""Which bytes of a file a request asks for: ranges and preconditions, as pure functions (RFC 9110 sections 13 and 14).

UEFI firmware resumes a broken HTTP Boot download with `Range: bytes=N-` and `If-Match` (EDK2, HttpBootClient.c); it
expects 206, the same total, and the same ETag. Files have no modification date here, so the conditions that name one
are not considered, as section 13.1 wants it: an entity tag says the same more strictly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from multidict import CIMultiDictProxy

_SINGLE = re.compile(r"bytes=\s*(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


class NotModifiedError(Exception):
    """The client has these bytes: 304."""


class ChangedError(Exception):
    """The client wants the rest of other bytes than these: 412."""


class UnsatisfiableError(Exception):
    """The range lies beyond the end: 416."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to before `end` of a whole of `size`; `partial` if that was asked for by a range."""

    start: int
    end: int
    size: int
    partial: bool

    @property
    def length(self) -> int:
        """How many bytes."""
        return self.end - self.start

    @property
    def content_range(self) -> str:
        """The value of the Content-Range header."""
        return f"bytes {self.start}-{self.end - 1}/{self.size}"


def select(method: str, headers: CIMultiDictProxy[str], etag: str, size: int) -> Span:
    """What a request for a file of `size` bytes with the (strong, quoted) `etag` asks for.

    Conditions are evaluated in the order of section 13.2.2. Raises ChangedError, NotModifiedError, UnsatisfiableError.
    """
    if "If-Match" in headers and not matches(_joined(headers, "If-Match"), etag, weakly=False):
        raise ChangedError
    if "If-None-Match" in headers and matches(_joined(headers, "If-None-Match"), etag, weakly=True):
        raise NotModifiedError
    ranges = headers.getall("Range", [])
    # Range is for GET only (section 14.2); with another If-Range than our tag, a date too, the whole (section 13.1.5).
    if method != "GET" or len(ranges) != 1 or headers.get("If-Range", etag).strip() != etag:
        return Span(0, size, size, partial=False)
    return span(ranges[0], size)


def span(header: str, size: int) -> Span:
    """What to send for a Range header. Raises UnsatisfiableError.

    What is not a single byte range is ignored and the whole is sent, as section 14.2 allows.
    """
    match = _SINGLE.fullmatch(header.strip().lower())
    whole = Span(0, size, size, partial=False)
    if match is None:
        return whole
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last is not None else size)
        if last is not None and int(last) < start:
            return whole
    if start >= end:
        raise UnsatisfiableError
    return Span(start, end, size, partial=True)


def matches(header: str, etag: str, *, weakly: bool) -> bool:
    """Whether `etag` (strong, quoted) is among the tags of an If-Match or If-None-Match header (section 8.8.3.2)."""
    tags = [tag.strip() for tag in header.split(",")]
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return "*" in tags or etag in tags


def _joined(headers: CIMultiDictProxy[str], name: str) -> str:
    """A list header that came in several lines, as one (section 5.3)."""
    return ",".join(headers.getall(name))
