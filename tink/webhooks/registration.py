"""Registers the webhooks in one ValidatingWebhookConfiguration, by default `tinkedge`.

There are two kinds of configuration. The label `app.kubernetes.io/managed-by` distinguishes them:

- Made by tinkedge, which runs with an administrator's rights then. It is written at each start, restored when it
  differs while the webhooks serve, and deleted at a clean stop if the webhooks are on loopback. After an unclean stop
  it points at a closed port: with failurePolicy Ignore a write then costs one refused connection, until the next start.
- Made by the chart or an operator. Only `clientConfig.caBundle` is written, and nothing is deleted: an account that may
  change the rules of a configuration can make the API server send it every Secret of the cluster. Differences from the
  expected webhooks are reported, not repaired.

The embedded API needs no configuration, because it reviews writes in its own process (`ReviewPlugin`). A
configuration that an earlier version left is deleted at the start.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tink.api.annotations import AGENT_ID_ANNOTATION, OWNER_NAME_LABEL, OWNER_NAMESPACE_LABEL
from tink.api.v1alpha2 import GROUP, VERSION, Raw, as_mapping
from tink.errors import TinkedgeError
from tink.kube.client import ApiError, ConflictError, KubeClient, NotFoundError
from tink.kube.resources import ResourceType

CONFIGURATION = ResourceType(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
NAME = "tinkedge"
_MANAGED_BY, _TINKEDGE = "app.kubernetes.io/managed-by", "tinkedge"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""A label that each namespace has, with its own name as the value."""
TIMEOUT_SECONDS = 5
_TRIES = 3
"""Number of attempts before the last one, whose conflict is reported."""

_REVIEWED = {
    "hardware": ("CREATE", "UPDATE", "DELETE"),
    "osies": ("CREATE", "UPDATE", "DELETE"),
    "templates": ("CREATE", "UPDATE", "DELETE"),
    "workflows": ("CREATE", "UPDATE"),
}
_AGENT_ID = f"object.metadata.?annotations[?'{AGENT_ID_ANNOTATION}']"
_OWNER_NAME = f"object.metadata.?labels[?'{OWNER_NAME_LABEL}'].orValue('')"
_OWNER_NAMESPACE = f"object.metadata.?labels[?'{OWNER_NAMESPACE_LABEL}'].orValue('')"
_CLAIMS_CHANGE = (
    "request.operation == 'CREATE' || request.operation == 'UPDATE' && (object.?spec != oldObject.?spec || "
    f"{_AGENT_ID} != {_AGENT_ID.replace('object', 'oldObject')} || "
    f"{_OWNER_NAME} != '' && {_OWNER_NAME.replace('object', 'oldObject')} != '' && "
    f"({_OWNER_NAME} != {_OWNER_NAME.replace('object', 'oldObject')} || "
    f"{_OWNER_NAMESPACE} != {_OWNER_NAMESPACE.replace('object', 'oldObject')}))"
)
"""CEL: true if a write of a Hardware may claim an address or a name, or gives an owned Hardware to another machine.

Optional fields need Kubernetes 1.29.
"""
ADVICE = f"advice.hardware.admission.{GROUP}"
"""The webhook for every other write of a Hardware; it only warns."""


def reviewed(namespaces: Sequence[str] = ()) -> list[Raw]:
    """Return the webhooks without an address, one for each resource, for objects of these namespaces (empty: all)."""
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


class RegistrationError(TinkedgeError):
    """A configuration can't be used as it is. The message names the object, the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The result of `register`: `written` is True if something was written, `differences` names the differences."""

    written: bool
    differences: tuple[str, ...] = ()


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
    """Return the ValidatingWebhookConfiguration.

    `failure_policy` applies to writes of Hardware that may claim something. All other writes are admitted while no
    webhook answers: deletions, removals of finalizers, and kinds whose reviews only warn or report early what the
    controller reports anyway. So Fail keeps no object from being removed.
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
        "metadata": {"name": name, "labels": {_MANAGED_BY: _TINKEDGE}},
        "webhooks": [hardware, advice, *webhooks[1:]],
    }


def _condition(name: str, expression: str) -> Raw:
    return {"name": name, "expression": expression}


async def register(client: KubeClient, wanted: Raw) -> Registered:
    """Register `wanted`: as a whole where tinkedge made the configuration, else its caBundle alone.

    Raises RegistrationError, ApiError.
    """
    for _ in range(_TRIES):
        try:
            return await _register(client, wanted)
        except ConflictError:
            continue  # another replica wrote the same bundle
    return await _register(client, wanted)


async def _register(client: KubeClient, wanted: Raw) -> Registered:
    name = wanted["metadata"]["name"]
    try:
        found = await client.get(CONFIGURATION, name, None)
    except NotFoundError:
        try:
            await client.create(CONFIGURATION, wanted)
        except ConflictError:  # another replica was faster, with the same content
            return Registered(written=False)
        except ApiError as error:
            if error.status != 403:
                raise
            raise RegistrationError(
                f"{_named(wanted)} does not exist, and this account may not create it: run `helm upgrade`, or apply "
                "deploy/webhooks.yaml"
            ) from error
        return Registered(written=True)
    if as_mapping(as_mapping(found.get("metadata")).get("labels")).get(_MANAGED_BY) != _TINKEDGE:
        return await _trust(client, found, wanted)
    if holds(found.get("webhooks"), wanted["webhooks"]):
        return Registered(written=False)
    await client.patch(CONFIGURATION, name, None, {"webhooks": wanted["webhooks"]})
    return Registered(written=True)


async def _trust(client: KubeClient, found: Raw, wanted: Raw) -> Registered:
    """Write the caBundle of `wanted` into the webhooks of `found` that have the same address."""
    expected = {webhook["name"]: webhook for webhook in wanted["webhooks"]}
    webhooks: list[Raw] = [dict(webhook) for webhook in found.get("webhooks") or []]
    where = {k: v for k, v in wanted["webhooks"][0]["clientConfig"].items() if k != "caBundle"}
    ours = [each for each in webhooks if each.get("name") in expected and holds(each.get("clientConfig"), where)]
    if not ours:
        service = as_mapping(where.get("service"))
        address = str(where.get("url"))
        if service:
            address = f"Service {service['namespace']}/{service['name']}:{service['port']}{service['path']}"
        raise RegistrationError(
            f"{_named(wanted)}: none of its webhooks is asked at {address}: correct webhooks[].clientConfig, or give "
            "--webhook-configuration the name of another one"
        )
    bundle = wanted["webhooks"][0]["clientConfig"]["caBundle"]
    old = [webhook["clientConfig"].get("caBundle") for webhook in ours]
    for webhook in ours:
        webhook["clientConfig"] = webhook["clientConfig"] | {"caBundle": bundle}
    differences = tuple(_differences(webhooks, expected))
    if all(each == bundle for each in old):
        return Registered(written=False, differences=differences)
    # A merge patch replaces a list as a whole (RFC 7386), so the patch is bound to the version of the object that was
    # read.
    metadata = {"resourceVersion": found["metadata"]["resourceVersion"]}
    await client.patch(CONFIGURATION, wanted["metadata"]["name"], None, {"metadata": metadata, "webhooks": webhooks})
    return Registered(written=True, differences=differences)


def _differences(webhooks: list[Raw], expected: dict[str, Raw]) -> Iterator[str]:
    """Yield descriptions of the differences between these webhooks and the expected ones."""
    found = {str(webhook.get("name")): webhook for webhook in webhooks}
    for name, webhook in expected.items():
        if name not in found:
            yield f"{name} is missing"
            continue
        for field, value in webhook.items():
            if not holds(found[name].get(field), value):
                yield f"{name} has another {field}"


def _named(configuration: Raw) -> str:
    return f"{CONFIGURATION.kind} {configuration['metadata']['name']}"


async def unregister(client: KubeClient, name: str = NAME) -> None:
    """Delete the configuration. Raises ApiError."""
    try:
        await client.delete(CONFIGURATION, name, None)
    except NotFoundError:
        return


def holds(found: Any, wanted: Any) -> bool:
    """Return True if `found` contains everything in `wanted`; the API server adds defaults.

    An empty value in `wanted` must be empty in `found`: an empty selector selects everything.
    """
    if isinstance(wanted, dict) and not wanted:
        return not found
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(holds(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(holds, found, wanted))
    return bool(found == wanted)
