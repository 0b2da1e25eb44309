"""A machine's metadata over HTTP: in full (`full`), and the fast path beside it, which gives the same (`fast_path`)."""

from edge.http.metadata.compiled import MetadataCache
from edge.http.metadata.fast_path import FastPath
from edge.http.metadata.full import MetadataService, MetadataSettings

__all__ = ["FastPath", "MetadataCache", "MetadataService", "MetadataSettings"]
