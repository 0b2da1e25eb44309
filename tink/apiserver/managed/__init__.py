"""Managed fields."""

from __future__ import annotations

from typing import Any

from tink.apiserver import errors


class FieldManager:
    def __init__(self, schema: dict[str, Any], api_version: str, *, status: bool) -> None:
        pass

    def update(self, live: Any, new: dict[str, Any], manager: str, subresource: str, now: str) -> None:
        new["metadata"].pop("managedFields", None)

    def apply(self, live: Any, config: Any, manager: str, subresource: str, now: str, *, force: bool) -> Any:
        raise errors.unsupported_media_type("application/apply-patch+yaml", ())
