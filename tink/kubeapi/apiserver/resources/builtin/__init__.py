"""The resources that every Kubernetes cluster has and that kubectl, controllers and leader election rely on.

Namespaces, ConfigMaps, Secrets and Events of the core group, Leases of coordination.k8s.io, and Events under their
newer name: their schemas are in `schemas`, their rules in `rules` and `events`, the columns here are those that kubectl
users know. CustomResourceDefinitions are in `definitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from tink.kubeapi.apiserver.resources.builtin import events, rules
from tink.kubeapi.apiserver.resources.builtin.schemas import CONFIG_MAP, EVENT, LEASE, NAMESPACE, SECRET
from tink.kubeapi.apiserver.resources.registry import NAME_FIELD, NAMESPACED_FIELDS, VERBS, Resource, Rules
from tink.kubeapi.apiserver.tables import AGE, NAME, Column
from tink.kubeapi.schema import Raw, compile_schema, meta, root_schema


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


@cache
def resources() -> tuple[Resource, ...]:
    """Give the built-in resources, the core group first, compiled once in a process."""
    return (
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
            events.COLUMNS,
            Rules(
                typed=True,
                creates=True,
                name=meta.path_segment,
                qualifies=False,
                complete=events.complete,
                check=events.check,
                selectable=events.SELECTABLE,
            ),
            conversion=events.CONVERSION,
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
        _resource(
            "events",
            "Event",
            events.NEW_EVENT,
            ("ev",),
            events.NEW_COLUMNS,
            Rules(
                typed=True,
                creates=True,
                complete=events.complete_new,
                check=events.check_new,
                selectable=events.NEW_SELECTABLE,
            ),
            group=events.GROUP,
            stored_group="",
            conversion=events.CONVERSION,
        ),
    )
