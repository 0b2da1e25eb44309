"""One condition in a Hardware's status, among those that others write there."""

from __future__ import annotations

from typing import Any

from tink.api.v1alpha2 import ConditionStatus, Raw, as_mapping
from tink.kube.client import ApiError, ConflictError, KubeClient
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE

Condition = dict[str, Any]


def condition_of(hardware: Raw, kind: str) -> Condition:
    """The condition of this type; empty if there is none."""
    return next((one for one in _conditions(hardware) if as_mapping(one).get("type") == kind), {})


def condition(kind: str, status: ConditionStatus, reason: str, message: str) -> Condition:
    """A condition to write."""
    return {"type": kind, "status": status.value, "reason": str(reason), "message": message}


async def write(client: KubeClient, hardware: Raw, wanted: Condition) -> None:
    """Set it and keep all others, if nobody has changed the Hardware meanwhile. Raises ApiError."""
    conditions, current = _conditions(hardware), condition_of(hardware, wanted["type"])
    kept = [wanted if one is current else one for one in conditions]
    if not current:
        kept.append(wanted)
    metadata = {"resourceVersion": hardware["metadata"]["resourceVersion"]}
    key = NamespacedName.of(hardware)
    patch = {"metadata": metadata, "status": {"conditions": kept}}
    await client.patch(HARDWARE, key.name, key.namespace, patch, subresource="status")


def lasts(error: ApiError) -> bool:
    """Whether another attempt would fail as this one did."""
    return 400 <= error.status < 500 and not isinstance(error, ConflictError) and error.status != 429


def _conditions(hardware: Raw) -> list[Any]:
    conditions = as_mapping(hardware.get("status")).get("conditions")
    return conditions if isinstance(conditions, list) else []
