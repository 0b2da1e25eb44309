"""Kernels, initrds, images and files: fetched once from their upstream, stored on disk, streamed while they arrive.

artifact    an open artifact, the errors, and files of `file://` URLs
cache       `ArtifactCache`, which other packages use
flight      a request to an upstream and the download that follows; it continues where it broke off
upstream    HTTP to upstreams, and to the caches of other edges
download    a file that is being filled, its readers, and its room
store       the directory of artifacts
eviction    which files and downloads give way to others (pure)
passing     a file of another edge that is too large for the cache
checksum    SHA-256: as people write it, and of files
layout      OCI image layouts
shared      files and images that other edges may have
"""

from edge.artifacts.artifact import (
    Artifact,
    ArtifactError,
    BadUrlError,
    ChecksumError,
    DownloadProgress,
    NoRoomError,
    NotFoundError,
    PeerError,
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
    "DownloadProgress",
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
