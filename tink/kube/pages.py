"""A whole collection, page by page: an API with 10,000 objects is not asked for all of them at once."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import ResourceType

PAGE = 500
_EXPIRED = 410
_ATTEMPTS = 3


async def each(
    client: KubeClient, resource: ResourceType, namespace: str | None = None, *, page: int = PAGE
) -> AsyncIterator[Raw]:
    """The objects of a namespace, or of all, with their apiVersion and kind.

    If the API has forgotten the first page when a later one is asked for, once more from the start, without those that
    have been given already: who was created or changed since may be missing. Raises ApiError.
    """
    given: set[tuple[str | None, str]] = set()
    for attempt in range(1, _ATTEMPTS + 1):
        after = ""
        try:
            while True:
                answer = await client.list(resource, namespace, limit=page, after=after)
                for item in answer.get("items") or []:
                    key = item["metadata"].get("namespace"), item["metadata"]["name"]
                    if key not in given:
                        given.add(key)
                        yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
                after = (answer.get("metadata") or {}).get("continue") or ""
                if not after:
                    return
        except ApiError as error:
            if error.status != _EXPIRED or attempt == _ATTEMPTS:
                raise
