"""What the models of all resources are made of: their base, fields that may be absent, metadata, conditions."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

TIME: JsonDict = {"format": "date-time"}


def map_list(key: str) -> JsonDict:
    """A list whose items have unique keys: the API server refuses duplicates, and server-side apply merges by key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


class Model(BaseModel):
    """Base of every resource model: camelCase on the wire, immutable here, unknown fields left alone."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )


def optional(description: str, *, extra: JsonDict | None = None, **bounds: Any) -> Any:
    """A field that may be absent; it has no default, so the API writes none. `extra` is for its schema (`checked`)."""
    return Field(default=None, description=description, json_schema_extra=extra, **bounds)


class ObjectMeta(Model):
    """The part of Kubernetes' ObjectMeta that this program reads (Kubernetes API conventions, "Metadata")."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    # Factories, because a default value would be copied, deeply, for each of a hundred thousand objects.
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


class ConditionStatus(StrEnum):
    """Kubernetes API conventions, "Typical status properties"."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Model):
    """An observation on a resource that is generally attainable by inspecting other status fields."""

    type: str = Field(description="Type of condition.")
    status: ConditionStatus = Field(description="Status of the condition: True, False or Unknown.")
    reason: str | None = optional("A short CamelCase description of the condition's last transition.")
    message: str | None = optional("A human readable message with details about the last transition.")
    last_transition_time: str | None = optional(
        "When status changed last; a change of reason or message alone leaves it. Absent: it is as it was at first.",
        extra=TIME,
    )
