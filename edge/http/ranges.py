"""Range requests and their conditions, as pure functions (RFC 9110 sections 13.1 and 14).

UEFI firmware resumes a broken HTTP Boot download with `Range: bytes=N-` and `If-Match`; it expects 206, the same
total, and the same ETag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SINGLE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


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


def span(header: str | None, size: int) -> Span:
    """What to send for a Range header. Raises UnsatisfiableError.

    What is not a single byte range is ignored and the whole is sent, as section 14.2 allows.
    """
    match = _SINGLE.fullmatch(header.strip().lower()) if header is not None else None
    if match is None:
        return Span(0, size, size, partial=False)
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last is not None else size)
        if last is not None and int(last) < start:
            return Span(0, size, size, partial=False)
    if start >= end:
        raise UnsatisfiableError
    return Span(start, end, size, partial=True)


def matches(header: str, etag: str) -> bool:
    """Whether `etag` (quoted) is among the tags of an If-Match or If-None-Match header."""
    tags = [tag.strip() for tag in header.split(",")]
    return "*" in tags or etag in [tag.removeprefix("W/") for tag in tags]
