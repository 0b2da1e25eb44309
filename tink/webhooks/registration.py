"""Tells the API server where to ask and whom to trust: one ValidatingWebhookConfiguration, mostly `tinkedge`.

It is written at each start and looked after while we serve: somebody may edit or delete it. The embedded API needs
none, for it reviews writes in its own process (`plugin`); one that an earlier version left is deleted at the start.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tink.api.annotations import AGENT_ID_ANNOTATION
from tink.api.v1alpha2 import GROUP, VERSION, Raw
from tink.kube.client import ConflictError, KubeClient, NotFoundError
from tink.kube.resources import ResourceType

CONFIGURATION = ResourceType(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
NAME = "tinkedge"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Each namespace has it, with its own name."""
TIMEOUT_SECONDS = 5

_REVIEWED = {
    "hardware": ("CREATE", "UPDATE", "DELETE"),
    "osies": ("CREATE", "UPDATE", "DELETE"),
    "templates": ("CREATE", "UPDATE", "DELETE"),
    "workflows": ("CREATE", "UPDATE"),
}
_AGENT_ID = f"object.metadata.?annotations[?'{AGENT_ID_ANNOTATION}']"
_CLAIMS_CHANGE = (
    "request.operation == 'CREATE' || request.operation == 'UPDATE' && (object.?spec != oldObject.?spec || "
    f"{_AGENT_ID} != {_AGENT_ID.replace('object', 'oldObject')})"
)
"""CEL: whether a write of a Hardware may claim an address or a name (optional fields: Kubernetes 1.29)."""
ADVICE = f"advice.hardware.admission.{GROUP}"
"""The webhook that is asked about every other write of a Hardware, for warnings."""


def reviewed(namespaces: Sequence[str] = ()) -> list[Raw]:
    """The webhooks without an address: one for each resource, so that an answer names what it is about. They are asked
    about objects of these namespaces; none: of all."""
    chosen = {"key": _NAMESPACE_LABEL, "operator": "In", "values": sorted(set(namespaces))}
    return [
        {
            "name": f"{plural}.admission.{GROUP}",
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchExpressions": [chosen]} if namespaces else {},
            "rules": [
                {
                    "apiGroups": [GROUP],
                    "apiVersions": [VERSION],
                    "operations": list(operations),
                    "resources": [plural],
                    "scope": "Namespaced",
                }
            ],
            "sideEffects": "None",
            "timeoutSeconds": TIMEOUT_SECONDS,
        }
        for plural, operations in _REVIEWED.items()
    ]


@dataclass(frozen=True, slots=True)
class Address:
    """Where the API server reaches the webhooks: `url`, or else the Service `name` in `namespace` at `port`."""

    path: str
    url: str = ""
    namespace: str = ""
    name: str = ""
    port: int = 443

    def client_config(self, bundle: bytes) -> Raw:
        """`clientConfig` of a webhook (admissionregistration.k8s.io/v1, WebhookClientConfig)."""
        config: Raw = {"caBundle": base64.b64encode(bundle).decode()}
        if self.url:
            return config | {"url": self.url + self.path}
        service = {"namespace": self.namespace, "name": self.name, "port": self.port, "path": self.path}
        return config | {"service": service}


def configuration(
    address: Address, bundle: bytes, failure_policy: str, namespaces: Sequence[str] = (), name: str = NAME
) -> Raw:
    """The ValidatingWebhookConfiguration.

    `failure_policy` is that of writes of Hardware that may claim something. Everything else is let in while no webhook
    answers: deletions, finalizers that are removed, and kinds whose reviews only warn or find early what the controller
    finds anyway. So Fail locks nobody out of an object that is to go.
    """
    webhooks = reviewed(namespaces)
    hardware = webhooks[0]
    advice = hardware | {"name": ADVICE, "matchConditions": [_condition("no-claim-changes", f"!({_CLAIMS_CHANGE})")]}
    for webhook in (*webhooks, advice):
        webhook |= {"clientConfig": address.client_config(bundle), "failurePolicy": "Ignore"}
    hardware |= {
        "failurePolicy": failure_policy,
        "rules": [hardware["rules"][0] | {"operations": ["CREATE", "UPDATE"]}],
        "matchConditions": [_condition("claims-change", _CLAIMS_CHANGE)],
    }
    return {
        "apiVersion": CONFIGURATION.api_version,
        "kind": CONFIGURATION.kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "tinkedge"}},
        "webhooks": [hardware, advice, *webhooks[1:]],
    }


def _condition(name: str, expression: str) -> Raw:
    return {"name": name, "expression": expression}


async def register(client: KubeClient, wanted: Raw) -> bool:
    """Have the API server use `wanted`; whether something had to be written. Raises ApiError."""
    name = wanted["metadata"]["name"]
    try:
        found = await client.get(CONFIGURATION, name, None)
    except NotFoundError:
        try:
            await client.create(CONFIGURATION, wanted)
        except ConflictError:  # another replica was faster, with the same content
            return False
        return True
    # Whoever made the object, such as Helm, keeps his labels: only what is asked is ours.
    if holds(found.get("webhooks"), wanted["webhooks"]):
        return False
    await client.patch(CONFIGURATION, name, None, {"webhooks": wanted["webhooks"]})
    return True


async def unregister(client: KubeClient, name: str = NAME) -> None:
    """Have the API server ask no more. Raises ApiError."""
    try:
        await client.delete(CONFIGURATION, name, None)
    except NotFoundError:
        return


def holds(found: Any, wanted: Any) -> bool:
    """Whether `found` says all that `wanted` says; the API server adds defaults. What is wanted to be empty has to be:
    a selector, which selects everything then."""
    if isinstance(wanted, dict) and not wanted:
        return not found
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(holds, found, wanted))
    return bool(found == wanted)
