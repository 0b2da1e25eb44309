"""A machine's metadata over HTTP: in full (`full`), and the fast path beside it, which gives the same (`fast_path`)."""

from edge.http.metadata.compiled import MetadataCache
from edge.http.metadata.fast_path import FastPath
from edge.http.metadata.full import MetadataService, MetadataSettings
from edge.http.metadata.responses import not_to_keep

__all__ = ["FastPath", "MetadataCache", "MetadataService", "MetadataSettings", "not_to_keep"]
