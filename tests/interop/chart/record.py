"""Records what a real API server says that the objects of the chart may have: its OpenAPI schemas, without prose.

`make record SUBJECT=chart`. Kinds that definitions of others bring (ServiceMonitor, Certificate) are not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peer import Peer

HERE = Path(__file__).parent
GROUPS = {
    "v1": "api/v1",
    **{
        group: f"apis/{group}"
        for group in (
            *("admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "apps/v1", "networking.k8s.io/v1"),
            *("policy/v1", "rbac.authorization.k8s.io/v1", "scheduling.k8s.io/v1"),
        )
    },
}
"""apiVersion -> where its schemas are."""
KINDS = frozenset(
    {
        *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "CustomResourceDefinition", "DaemonSet", "Deployment"),
        *("Namespace", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PriorityClass", "Role", "RoleBinding"),
        *("Secret", "Service", "ServiceAccount", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
        "ValidatingWebhookConfiguration",
    }
)


def record(kubeconfig: Path) -> None:
    """Write schemas.json."""
    peer = Peer(kubeconfig)
    schemas: dict[str, Any] = {}
    for path in GROUPS.values():
        schemas |= peer.ask("GET", f"/openapi/v3/{path}").json["components"]["schemas"]
    wanted: dict[str, Any] = {}
    todo = [name for name, schema in schemas.items() if _kinds(schema) & KINDS]
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted[name] = _plain(schemas[name])
            todo += _named(wanted[name])
    text = json.dumps(wanted, indent=1, sort_keys=True)
    (HERE / "schemas.json").write_text(f"{text}\n")


def _kinds(schema: Any) -> set[str]:
    """`kind`s that a schema is for, of the groups above."""
    of = schema.get("x-kubernetes-group-version-kind", [])
    return {each["kind"] for each in of if "/".join(filter(None, (each["group"], each["version"]))) in GROUPS}


def _named(schema: Any) -> Iterator[str]:
    """Schemas that this one refers to."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].rpartition("/")[2]
        for value in schema.values():
            yield from _named(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _named(value)


def _plain(schema: Any, *, names: bool = False) -> Any:
    """Without descriptions, defaults and Kubernetes' own marks, but for the kinds. `names`: keys are fields' names."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(value, names=key == "properties" and not names)
        for key, value in schema.items()
        if names
        or key == "x-kubernetes-group-version-kind"
        or not (key in ("description", "default") or key[:2] == "x-")
    }
