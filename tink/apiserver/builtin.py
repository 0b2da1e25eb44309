"""The resources that every Kubernetes cluster has and that kubectl, controllers and leader election rely on.

Namespaces, ConfigMaps, Secrets and Events of the core group, and Leases of coordination.k8s.io. Their schemas hold what
Kubernetes' own types hold (k8s.io/api/core/v1, coordination/v1); the columns are those that kubectl users know.
CustomResourceDefinitions are in `definitions`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tink.apiserver import errors, meta, schema
from tink.apiserver.errors import FieldError
from tink.apiserver.registry import NAME_FIELD, NAMESPACED_FIELDS, Raw, Resource, Rules, only, root_schema
from tink.apiserver.table import AGE, NAME, Column, since

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
    required=["involvedObject"],
)
LEASE = _object(
    {
        "spec": _object(
            {
                "acquireTime": _TIME,
                "holderIdentity": _TEXT,
                "leaseDurationSeconds": {**_INT32, "minimum": 1},
                "leaseTransitions": {**_INT32, "minimum": 0},
                "preferredHolder": _TEXT,
                "renewTime": _TIME,
                "strategy": _TEXT,
            }
        )
    },
    "Lease defines a lease concept.",
)

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
MAX_DATA = 1 << 20
"""Most data in a ConfigMap or Secret, in bytes."""


def _check_data(new: Mapping[str, Any], old: Mapping[str, Any] | None, fields: tuple[str, ...]) -> list[FieldError]:
    """What ConfigMaps and Secrets share: keys, size, and that immutable data stays."""
    found: list[FieldError] = []
    size = 0
    for name in fields:
        for key, value in (new.get(name) or {}).items():
            size += len(value)
            if not _DATA_KEY.fullmatch(key) or key in (".", ".."):
                wrong = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
                found.append(errors.invalid_value(f"{name}[{key}]", key, wrong))
    if size > MAX_DATA * 4 // 3:
        found.append(errors.too_long("", MAX_DATA))
    if old is not None and old.get("immutable"):
        if not new.get("immutable"):
            found.append(errors.forbidden_value("immutable", "field is immutable when `immutable` is set"))
        found += [
            errors.forbidden_value(name, "field is immutable when `immutable` is set")
            for name in fields
            if new.get(name) != old.get(name)
        ]
    return found


def _check_config_map(new: Raw, old: Raw | None) -> list[FieldError]:
    found = _check_data(new, old, ("data", "binaryData"))
    both = set(new.get("data") or {}) & set(new.get("binaryData") or {})
    return found + [errors.invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData") for key in both]


def _prepare_secret(new: Raw, old: Raw | None, now: datetime) -> None:
    texts = new.pop("stringData", None)
    if texts:
        new["data"] = (new.get("data") or {}) | {
            key: base64.b64encode(value.encode()).decode() for key, value in texts.items()
        }
    new.setdefault("type", "Opaque")


_SECRET_KEYS = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _check_secret(new: Raw, old: Raw | None) -> list[FieldError]:
    found = _check_data(new, old, ("data",))
    for key, value in (new.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            found.append(errors.invalid_value(f"data[{key}]", "<secret contents redacted>", "must be base64"))
    if old is not None and new["type"] != old.get("type"):
        found.append(errors.invalid_value("type", new["type"], "field is immutable"))
    found += [
        errors.required(f"data[{key}]")
        for key in _SECRET_KEYS.get(new["type"], ())
        if key not in (new.get("data") or {})
    ]
    return found


SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that always exist."""
_IMMORTAL = frozenset(SYSTEM_NAMESPACES[:3])
"""Those that cannot be deleted (k8s.io/apiserver, pkg/admission/plugin/namespace/lifecycle)."""


def _prepare_namespace(new: Raw, old: Raw | None, now: datetime) -> None:
    """A namespace carries its name as a label, and Kubernetes' finalizer until its objects are gone (`lifecycle`)."""
    new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]
    if old is None:
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        new["spec"] = {"finalizers": [*finalizers, *(["kubernetes"] if "kubernetes" not in finalizers else [])]}
    status = new.setdefault("status", {})
    status["phase"] = "Terminating" if "deletionTimestamp" in new["metadata"] else "Active"


def _limit_namespace(new: Raw, old: Raw, subresource: str, has_status: bool) -> Raw:
    """What the namespace waits for changes through /finalize alone."""
    if subresource == "finalize":
        return only(("spec",), new, old)
    if subresource == "status":
        return only(("status",), new, old)
    return {**{key: value for key, value in new.items() if key not in ("spec", "status")}, **_kept(old)}


def _kept(old: Raw) -> Raw:
    return {key: old[key] for key in ("spec", "status") if key in old}


def _may_delete_namespace(name: str) -> str | None:
    return "this namespace may not be deleted" if name in _IMMORTAL else None


def _waits(namespace: Raw) -> bool:
    return bool((namespace.get("spec") or {}).get("finalizers"))


def _check_event(new: Raw, old: Raw | None) -> list[FieldError]:
    """Events live beside what they are about; those about cluster-scoped objects in `default`."""
    about = new["involvedObject"].get("namespace") or "default"
    if new["metadata"].get("namespace") == about:
        return []
    return [errors.invalid_value("involvedObject.namespace", about, "does not match event.namespace")]


_EVENT_FIELDS = {
    **NAMESPACED_FIELDS,
    **{
        f"involvedObject.{key}": ("involvedObject", key)
        for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}


def _last_seen(obj: Mapping[str, Any], now: datetime) -> str:
    series = obj.get("series") or {}
    return since(
        series.get("lastObservedTime") or obj.get("lastTimestamp") or obj.get("eventTime") or obj.get("firstTimestamp"),
        now,
    )


def _event_object(obj: Mapping[str, Any], _: datetime) -> str:
    about = obj.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _data_count(obj: Mapping[str, Any], _: datetime) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _core(
    plural: str,
    kind: str,
    openapi: Raw,
    short: tuple[str, ...],
    columns: tuple[Column, ...],
    rules: Rules,
    **more: Any,
) -> Resource:
    return _resource("", plural, kind, openapi, short, columns, rules, **more)


def _resource(
    group: str,
    plural: str,
    kind: str,
    openapi: Raw,
    short: tuple[str, ...],
    columns: tuple[Column, ...],
    rules: Rules,
    **more: Any,
) -> Resource:
    return Resource(
        group,
        "v1",
        plural,
        kind,
        openapi,
        schema.compile_schema(root_schema(openapi)),
        singular=kind.lower(),
        list_kind=f"{kind}List",
        short_names=short,
        columns=columns,
        rules=rules,
        **more,
    )


def resources() -> list[Resource]:
    """Give the built-in resources, the core group first."""
    return [
        _core(
            "namespaces",
            "Namespace",
            NAMESPACE,
            ("ns",),
            (NAME, Column("Status", lambda obj, _: obj.get("status", {}).get("phase"), "Active or Terminating."), AGE),
            Rules(
                name=meta.label,
                holds=_waits,
                may_delete=_may_delete_namespace,
                limit=_limit_namespace,
                prepare=_prepare_namespace,
                selectable={**NAME_FIELD, "status.phase": ("status", "phase")},
            ),
            namespaced=False,
            status=True,
            subresources=("finalize",),
        ),
        _core(
            "configmaps",
            "ConfigMap",
            CONFIG_MAP,
            ("cm",),
            (NAME, Column("Data", _data_count, "Number of keys.", "integer"), AGE),
            Rules(check=_check_config_map),
        ),
        _core(
            "secrets",
            "Secret",
            SECRET,
            (),
            (
                NAME,
                Column("Type", lambda obj, _: obj.get("type"), "Kind of data."),
                Column("Data", _data_count, "Number of keys.", "integer"),
                AGE,
            ),
            Rules(prepare=_prepare_secret, check=_check_secret, selectable={**NAMESPACED_FIELDS, "type": ("type",)}),
        ),
        _core(
            "events",
            "Event",
            EVENT,
            ("ev",),
            (
                Column("Last Seen", _last_seen, "When it happened last."),
                Column("Type", lambda obj, _: obj.get("type", ""), "Normal or Warning."),
                Column("Reason", lambda obj, _: obj.get("reason", ""), "Short reason."),
                Column("Object", _event_object, "What it is about."),
                Column("Message", lambda obj, _: obj.get("message", "").strip(), "What happened."),
                Column("Name", NAME.cell, NAME.description, format="name", priority=1),
            ),
            Rules(check=_check_event, selectable=_EVENT_FIELDS),
        ),
        _resource(
            "coordination.k8s.io",
            "leases",
            "Lease",
            LEASE,
            (),
            (NAME, Column("Holder", lambda obj, _: obj.get("spec", {}).get("holderIdentity"), "Who holds it."), AGE),
            Rules(),
        ),
    ]
