"""A whole collection, page by page: an API with 10,000 objects is not asked for all of them at once."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError, KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import ResourceType

PAGE_SIZE = 500
_EXPIRED = 410
_ATTEMPTS = 3


async def each_list_item(
    client: KubeClient, resource: ResourceType, namespace: str | None = None, *, page_size: int = PAGE_SIZE
) -> AsyncIterator[Raw]:
    """The objects of a namespace, or of all, with their apiVersion and kind.

    If the API has forgotten the first page when a later one is asked for, once more from the start, without those that
    have been given already: who was created or changed since may be missing. Raises ApiError.
    """
    given: set[NamespacedName] = set()
    for attempt in range(1, _ATTEMPTS + 1):
        after = ""
        try:
            while True:
                page = await client.list(resource, namespace, limit=page_size, after=after)
                for item in page.get("items") or []:
                    key = NamespacedName.of(item)
                    if key not in given:
                        given.add(key)
                        yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
                after = (page.get("metadata") or {}).get("continue") or ""
                if not after:
                    return
        except ApiError as error:
            if error.status != _EXPIRED or attempt == _ATTEMPTS:
                raise
