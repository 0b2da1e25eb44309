"""Which of Metal3's resources an API serves: a cluster may have hosts in either version, or none for a while."""

from __future__ import annotations

from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.resources import HOST_V1ALPHA1, HOST_V1BETA1, ResourceType

HOSTS = (HOST_V1ALPHA1, HOST_V1BETA1)
"""In the order in which they are asked for: v1alpha1, while it is there, is mostly what is stored. What is not stored
can't be read while the conversion webhook is away."""


async def is_served(client: KubeClient, resource: ResourceType, namespace: str | None) -> bool:
    """Whether the API has such a resource. Raises ApiError."""
    try:
        await client.list(resource, namespace, limit=1)
    except NotFoundError:
        return False
    return True


async def served_hosts(client: KubeClient, namespace: str | None) -> ResourceType | None:
    """The version of BareMetalHost to use: one that can be read at this moment; None if the API has none.

    Raises ApiError: it has one, which can't be read.
    """
    failed: ApiError | None = None
    for resource in HOSTS:
        try:
            if await is_served(client, resource, namespace):
                return resource
        except ApiError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None
