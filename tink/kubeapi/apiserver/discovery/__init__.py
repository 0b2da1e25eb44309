"""Descriptions of the server for clients: discovery, OpenAPI, version."""
