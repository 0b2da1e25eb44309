"""The schemas of the built-in types: what Kubernetes' own types hold (k8s.io/api/core/v1, coordination/v1)."""

from __future__ import annotations

from typing import Any

from tink.schema import Raw

_TEXT: Raw = {"type": "string"}
_TIME: Raw = {"type": "string", "format": "date-time"}
_INT32: Raw = {"type": "integer", "format": "int32"}
_BYTES: Raw = {"type": "string", "format": "byte"}
_FLAG: Raw = {"type": "boolean"}


def _object(properties: Raw, text: str = "", **more: Any) -> Raw:
    return {"type": "object", "properties": properties, **({"description": text} if text else {}), **more}


def _map(values: Raw, text: str = "") -> Raw:
    return {"type": "object", "additionalProperties": values, **({"description": text} if text else {})}


def _list(items: Raw, text: str = "") -> Raw:
    return {"type": "array", "items": items, **({"description": text} if text else {})}


_REFERENCE = _object(
    dict.fromkeys(("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"), _TEXT),
    "ObjectReference contains enough information to let you inspect or modify the referred object.",
    **{"x-kubernetes-map-type": "atomic"},
)

NAMESPACE = _object(
    {
        "spec": _object({"finalizers": _list(_TEXT)}, "What the namespace waits for when it is deleted."),
        "status": _object(
            {
                "phase": {"type": "string", "enum": ["Active", "Terminating"]},
                "conditions": _list({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
            }
        ),
    },
    "Namespace provides a scope for Names.",
)
CONFIG_MAP = _object(
    {
        "data": _map(_TEXT, "Data contains the configuration data: UTF-8 text by key."),
        "binaryData": _map(_BYTES, "BinaryData contains the binary data, as base64, by key."),
        "immutable": {**_FLAG, "description": "If true, the data cannot be updated."},
    },
    "ConfigMap holds configuration data for pods to consume.",
)
SECRET = _object(
    {
        "data": _map(_BYTES, "Data contains the secret data, as base64, by key."),
        "stringData": _map(_TEXT, "Write-only: data as text; merged into data when it is written."),
        "immutable": {**_FLAG, "description": "If true, the data cannot be updated."},
        "type": {"type": "string", "description": "Used to facilitate programmatic handling of secret data."},
    },
    "Secret holds secret data of a certain type.",
)
EVENT = _object(
    {
        "action": _TEXT,
        "count": _INT32,
        "eventTime": _TIME,
        "firstTimestamp": _TIME,
        "involvedObject": _REFERENCE,
        "lastTimestamp": _TIME,
        "message": _TEXT,
        "reason": _TEXT,
        "related": _REFERENCE,
        "reportingComponent": _TEXT,
        "reportingInstance": _TEXT,
        "series": _object({"count": _INT32, "lastObservedTime": _TIME}),
        "source": _object({"component": _TEXT, "host": _TEXT}),
        "type": _TEXT,
    },
    "Event is a report of an event somewhere in the cluster.",
)
LEASE = _object(
    {
        "spec": _object(
            {
                "acquireTime": _TIME,
                "holderIdentity": _TEXT,
                "leaseDurationSeconds": _INT32,
                "leaseTransitions": _INT32,
                "preferredHolder": _TEXT,
                "renewTime": _TIME,
                "strategy": _TEXT,
            }
        )
    },
    "Lease defines a lease concept.",
)
