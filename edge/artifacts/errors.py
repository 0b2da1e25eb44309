"""Why a kernel or initrd could not be had. Each error names the URL and the reason, in words for an operator."""

from __future__ import annotations

from typing import ClassVar, Self

from tink.net.urls import shown
from tink.printable import printable

MAX_FOREIGN = 100
"""Characters of what an upstream says (a reason phrase, a location) that get into a message."""


class ArtifactError(Exception):
    """An artifact is not available. `str()` is `<url>: <reason>`, without the URL's secrets."""

    kind: ClassVar[str] = "other"
    """What sort of trouble, as metrics count it."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)}: {reason}")
        self.url = url
        self.reason = reason

    def again(self) -> Self:
        """The same error for another who asks: an exception that is raised twice drags its first trace along."""
        return type(self)(self.url, self.reason)


class BadUrlError(ArtifactError):
    """The URL is not one that can be fetched. Mended in the OSIE object."""

    kind = "url"


class RefusedUpstreamError(ArtifactError):
    """The URL, or a redirect, leads to an address that the edge does not fetch from."""

    kind = "refused"


class NotFoundError(ArtifactError):
    """The upstream answered that it has no such file (404, 410), or the local file is missing."""

    kind = "not found"


class ChecksumError(ArtifactError):
    """The bytes are not those that the OSIE, or the file with the checksum beside them, says they are."""

    kind = "checksum"


class UpstreamError(ArtifactError):
    """The upstream is not reachable, or its answer can't be used."""

    kind = "upstream"


class UpstreamTimeoutError(UpstreamError):
    """The upstream does not answer, or stopped sending, or sends too slowly."""

    kind = "timeout"


class WrongContentError(UpstreamError):
    """The upstream answered something that is no kernel or initrd: a web page, nothing, a compressed form."""

    kind = "content"


class TooLargeError(WrongContentError):
    """It is larger than any file that is kept."""


class ChangedError(UpstreamError):
    """The file became another one while it was being fetched, so what came before can't be gone on with."""

    kind = "changed"


class PeerError(UpstreamError):
    """Another edge did not give what it offered; `peer` is which."""

    kind = "peer"

    def __init__(self, url: str, reason: str, peer: str = "") -> None:
        super().__init__(url, reason)
        self.peer = peer


class StorageError(ArtifactError):
    """The edge's own disk: an artifact could not be read or written."""

    kind = "storage"


class NoRoomError(StorageError):
    """The cache or its disk is too small for the artifact."""

    kind = "no room"


KINDS = tuple(
    error.kind
    for error in (
        BadUrlError,
        RefusedUpstreamError,
        NotFoundError,
        ChecksumError,
        UpstreamError,
        UpstreamTimeoutError,
        WrongContentError,
        ChangedError,
        PeerError,
        StorageError,
        NoRoomError,
    )
)


def foreign(text: str) -> str:
    """What somebody else wrote, fit for one log line: short, and without control characters."""
    clean = printable(text[:MAX_FOREIGN])
    return clean if len(text) <= MAX_FOREIGN else f"{clean}…"
