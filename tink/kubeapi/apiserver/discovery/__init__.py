"""Descriptions of the server for clients: discovery, OpenAPI, version."""

from tink.kubeapi.apiserver.discovery.documents import DocumentRequest, Documents

__all__ = ["DocumentRequest", "Documents"]
