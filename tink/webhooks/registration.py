"""Tells the API server where to ask and whom to trust: one ValidatingWebhookConfiguration, mostly `tinkedge`.

It is written at each start, looked after while we serve (somebody may edit or delete it), and, where the webhooks are
on loopback, deleted at a clean stop. After an unclean one it points at a port where nobody answers: with failurePolicy
Ignore a write then costs one refused connection, and the next start mends it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """The ValidatingWebhookConfiguration: one webhook for each resource, so that an answer names what it is about. They
    are asked about objects of these namespaces; none: of all."""
    chosen = {"key": _NAMESPACE_LABEL, "operator": "In", "values": sorted(set(namespaces))}
    return {
        "apiVersion": CONFIGURATION.api_version,
        "kind": CONFIGURATION.kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "tinkedge"}},
        "webhooks": [
            {
                "name": f"{plural}.admission.{GROUP}",
                "admissionReviewVersions": ["v1"],
                "clientConfig": address.client_config(bundle),
                "failurePolicy": failure_policy,
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
        ],
    }


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
