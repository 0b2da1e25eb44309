"""Why a kernel or initrd could not be had. Each error names the URL and the reason, in words for an operator."""

from __future__ import annotations

from urllib.parse import urlsplit


class ArtifactError(Exception):
    """An artifact is not available. `str()` is `<url>: <reason>`, without the URL's secrets."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{shown(url)}: {reason}")
        self.url = url
        self.reason = reason


class BadUrlError(ArtifactError):
    """The URL is not one that can be fetched. Mended in the OSIE object."""


class NotFoundError(ArtifactError):
    """The upstream answered that it has no such file (404, 410), or the local file is missing."""


class UpstreamError(ArtifactError):
    """The upstream is not reachable, or its answer can't be used."""


class UpstreamTimeoutError(UpstreamError):
    """The upstream does not answer, or stopped sending."""


class StorageError(ArtifactError):
    """The edge's own disk: an artifact could not be read or written."""


def shown(url: str) -> str:
    """`url` for logs and screens: without user name and password, and without a query (it may be a signature)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    netloc = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{netloc}{parts.path}" + ("?…" if parts.query else "")
