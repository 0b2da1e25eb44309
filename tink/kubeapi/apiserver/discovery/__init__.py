"""What the server says of itself: discovery, OpenAPI, version."""

from tink.kubeapi.apiserver.discovery.documents import DocumentRequest, Documents

__all__ = ["DocumentRequest", "Documents"]
