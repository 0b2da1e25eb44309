"""An API that keeps a few objects, and counts writes."""

from __future__ import annotations

import copy
from typing import Any

from tink.api.v1alpha2 import Raw
from tink.kube.client import ConflictError, NotFoundError


class FakeApi:
    """The calls that keepers and the registration make, over a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {}
        self.writes = 0
        self.rival: Raw | None = None

    async def get(self, resource: Any, name: str, namespace: str | None) -> Raw:
        if name not in self.objects:
            raise NotFoundError(404, "NotFound", name)
        return self.objects[name]

    async def create(self, resource: Any, obj: Raw, namespace: str | None = None) -> Raw:
        name = obj["metadata"]["name"]
        if self.rival is not None:
            self.objects[name], self.rival = self.rival, None
        if name in self.objects:
            raise ConflictError(409, "AlreadyExists", name)
        return self._put(name, obj)

    async def patch(self, resource: Any, name: str, namespace: str | None, patch: Raw) -> Raw:
        old = self.objects[name]
        return self._put(name, {**old, **patch, "metadata": {**old["metadata"], **patch.get("metadata", {})}})

    async def delete(self, resource: Any, name: str, namespace: str | None) -> Raw:
        if self.objects.pop(name, None) is None:
            raise NotFoundError(404, "NotFound", name)
        return {}

    def _put(self, name: str, obj: Raw) -> Raw:
        self.writes += 1
        metadata = {**obj["metadata"], "name": name, "resourceVersion": str(self.writes)}
        self.objects[name] = copy.deepcopy({**obj, "metadata": metadata})
        return self.objects[name]
