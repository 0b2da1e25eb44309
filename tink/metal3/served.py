"""Which of Metal3's resources an API serves: a cluster may have hosts in either version, or none for a while."""

from __future__ import annotations

from tink.api.metal3 import GROUP
from tink.api.v1alpha2 import Raw
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.resources import ResourceType

HOSTS = tuple(ResourceType(GROUP, version, "baremetalhosts", "BareMetalHost") for version in ("v1alpha1", "v1beta1"))
"""In the order in which they are asked for: v1alpha1, while it is there, is mostly what is stored."""
HARDWARE_DATA = ResourceType(GROUP, "v1alpha1", "hardwaredata", "HardwareData")
MACHINE = ResourceType("bmc.tinkerbell.org", "v1alpha1", "machines", "Machine")


async def is_served(client: KubeClient, resource: ResourceType, namespace: str | None) -> bool:
    """Whether the API has such a resource. Raises ApiError."""
    try:
        await client.list(resource, namespace, limit=1)
    except NotFoundError:
        return False
    return True


async def served_hosts(client: KubeClient, namespace: str | None) -> ResourceType | None:
    """The version of BareMetalHost to use; None if there is none. Raises ApiError."""
    for resource in HOSTS:
        if await is_served(client, resource, namespace):
            return resource
    return None


def complete(obj: Raw, resource: ResourceType) -> Raw:
    """An object of a list, with the type that lists leave out."""
    return {"apiVersion": resource.api_version, "kind": resource.kind} | obj
