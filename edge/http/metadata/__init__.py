"""A machine's metadata over HTTP."""

from edge.http.metadata.full import MetadataService, MetadataSettings

__all__ = ["MetadataService", "MetadataSettings"]
