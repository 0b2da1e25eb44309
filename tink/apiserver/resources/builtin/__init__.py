"""The resources that every Kubernetes cluster has and that kubectl, controllers and leader election rely on.

Namespaces, ConfigMaps, Secrets and Events of the core group, and Leases of coordination.k8s.io: their schemas are in
`schemas`, their rules in `rules`, the columns here are those that kubectl users know. CustomResourceDefinitions are in
`definitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tink.apiserver.resources.builtin import rules
from tink.apiserver.resources.builtin.schemas import CONFIG_MAP, EVENT, LEASE, NAMESPACE, SECRET
from tink.apiserver.resources.registry import NAME_FIELD, NAMESPACED_FIELDS, VERBS, Resource, Rules
from tink.apiserver.tables import AGE, NAME, Column, since
from tink.schema import Raw, compile_schema, meta, root_schema

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


def _first_seen(obj: Mapping[str, Any], now: datetime) -> str:
    return since(obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _event_part(obj: Mapping[str, Any], _: datetime) -> str:
    return str((obj.get("involvedObject") or {}).get("fieldPath") or "")


def _event_source(obj: Mapping[str, Any], _: datetime) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def _event_count(obj: Mapping[str, Any], _: datetime) -> int:
    series = obj.get("series") or {}
    return int(series.get("count") or obj.get("count") or 1)


def _event_object(obj: Mapping[str, Any], _: datetime) -> str:
    about = obj.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _data_count(obj: Mapping[str, Any], _: datetime) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _resource(
    plural: str,
    kind: str,
    openapi: Raw,
    short: tuple[str, ...],
    columns: tuple[Column, ...],
    how: Rules,
    *,
    group: str = "",
    **more: Any,
) -> Resource:
    return Resource(
        group,
        "v1",
        plural,
        kind,
        openapi,
        compile_schema(root_schema(openapi)),
        singular=kind.lower(),
        list_kind=f"{kind}List",
        short_names=short,
        columns=columns,
        rules=how,
        **more,
    )


def resources() -> list[Resource]:
    """Give the built-in resources, the core group first."""
    return [
        _resource(
            "namespaces",
            "Namespace",
            NAMESPACE,
            ("ns",),
            (NAME, Column("Status", lambda obj, _: obj.get("status", {}).get("phase"), "Active or Terminating."), AGE),
            Rules(
                name=meta.label,
                typed=True,
                holds=rules.waits,
                may_delete=rules.may_delete_namespace,
                limit=rules.limit_namespace,
                complete=rules.complete_namespace,
                prepare=rules.prepare_namespace,
                selectable={**NAME_FIELD, "status.phase": ("status", "phase")},
            ),
            verbs=tuple(verb for verb in VERBS if verb != "deletecollection"),
            namespaced=False,
            status=True,
            subresources=("finalize",),
        ),
        _resource(
            "configmaps",
            "ConfigMap",
            CONFIG_MAP,
            ("cm",),
            (NAME, Column("Data", _data_count, "Number of keys."), AGE),
            Rules(typed=True, check=rules.check_config_map),
        ),
        _resource(
            "secrets",
            "Secret",
            SECRET,
            (),
            (
                NAME,
                Column("Type", lambda obj, _: obj.get("type"), "Kind of data."),
                Column("Data", _data_count, "Number of keys."),
                AGE,
            ),
            Rules(
                typed=True,
                complete=rules.complete_secret,
                check=rules.check_secret,
                selectable={**NAMESPACED_FIELDS, "type": ("type",)},
            ),
        ),
        _resource(
            "events",
            "Event",
            EVENT,
            ("ev",),
            (
                Column("Last Seen", _last_seen, "When it happened last."),
                Column("Type", lambda obj, _: obj.get("type", ""), "Normal or Warning."),
                Column("Reason", lambda obj, _: obj.get("reason", ""), "Short reason."),
                Column("Object", _event_object, "What it is about."),
                Column("Subobject", _event_part, "The part of the object that it is about.", priority=1),
                Column("Source", _event_source, "Who reported it.", priority=1),
                Column("Message", lambda obj, _: obj.get("message", "").strip(), "What happened."),
                Column("First Seen", _first_seen, "When it happened first.", priority=1),
                Column("Count", _event_count, "How often it happened.", priority=1),
                Column("Name", NAME.cell, NAME.description, format="name", priority=1),
            ),
            Rules(
                typed=True,
                creates=True,
                complete=rules.complete_event,
                check=rules.check_event,
                selectable=_EVENT_FIELDS,
            ),
        ),
        _resource(
            "leases",
            "Lease",
            LEASE,
            (),
            (NAME, Column("Holder", lambda obj, _: obj.get("spec", {}).get("holderIdentity"), "Who holds it."), AGE),
            Rules(
                typed=True,
                creates=True,
                unconditional=False,
                complete=rules.complete_lease,
                prepare=rules.prepare_lease,
                check=rules.check_lease,
            ),
            group="coordination.k8s.io",
        ),
    ]
