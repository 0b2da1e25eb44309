"""Kernels and initrds: fetched once from where an OSIE says they are, kept on disk, streamed while they arrive.

`cache` is what others use; `fetch` gets files from their upstreams, `storage` keeps them. `local` and `layout` are of
files that are here already: single ones, and container images; `shared` lets other edges have them.
"""

from edge.artifacts.artifact import (
    Artifact,
    ArtifactError,
    BadUrlError,
    ChecksumError,
    NoRoomError,
    NotFoundError,
    PeerError,
    Progress,
    Source,
    StorageError,
    TooLargeError,
    UpstreamError,
    UpstreamTimeoutError,
    open_file,
)
from edge.artifacts.cache import ArtifactCache, FailedFetch, cache_metrics
from edge.artifacts.checksum import normalized
from edge.artifacts.layout import (
    INDEX_TYPE,
    MAX_MANIFEST_BYTES,
    REFERENCE,
    Descriptor,
    ImageLayout,
    ImageManifest,
    LayoutError,
    NoImageError,
    image_index,
    is_digest,
    is_name,
    merged_index,
)
from edge.artifacts.shared import SCHEME, SharedFiles, blob_url, file_url, manifest_url
from edge.artifacts.store import DirectoryInUseError
from edge.artifacts.upstream import TRAILER_BYTES, Copy, Offer, PeerCaches, PeerResponse, Timeouts

__all__ = [
    "INDEX_TYPE",
    "MAX_MANIFEST_BYTES",
    "REFERENCE",
    "SCHEME",
    "TRAILER_BYTES",
    "Artifact",
    "ArtifactCache",
    "ArtifactError",
    "BadUrlError",
    "ChecksumError",
    "Copy",
    "Descriptor",
    "DirectoryInUseError",
    "FailedFetch",
    "ImageLayout",
    "ImageManifest",
    "LayoutError",
    "NoImageError",
    "NoRoomError",
    "NotFoundError",
    "Offer",
    "PeerCaches",
    "PeerError",
    "PeerResponse",
    "Progress",
    "SharedFiles",
    "Source",
    "StorageError",
    "Timeouts",
    "TooLargeError",
    "UpstreamError",
    "UpstreamTimeoutError",
    "blob_url",
    "cache_metrics",
    "file_url",
    "image_index",
    "is_digest",
    "is_name",
    "manifest_url",
    "merged_index",
    "normalized",
    "open_file",
]
