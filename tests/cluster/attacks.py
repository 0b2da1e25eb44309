"""Attacks on a real API server with the tokens of the release's service accounts. All of them must be rejected.

`deploy/rbac*.yaml` grants rights, ValidatingAdmissionPolicies narrow them; tests/unit/chart/test_rights.py has both as
a table.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from edge.building.shell import CommandError
from tests.cluster.node import Node
from tink.api.annotations import AGENT_ATTRIBUTES_ANNOTATION, AUTO_DISCOVERED_LABEL
from tink.discovery.admission import discovered_hardware, read_rule
from tink.kube.client import ApiError, KubeClient
from tink.kube.resources import CRD, HARDWARE, LEASE, SECRET
from tink.versions import DEFINITIONS, OLD
from tink.webhooks.registration import CONFIGURATION
from tink.webhooks.server import MAX_REVIEW_BYTES

Raw = dict[str, Any]

WEBHOOKS = "tinkedge-webhooks.tinkedge"
_SECRETS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}
_ALL = {
    "name": "all.example.com",
    "rules": [_SECRETS],
    "clientConfig": {"url": "https://192.0.2.1/"},
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
_FORBIDDEN = "is forbidden: User"
_STOLEN = {
    "metadata": {"name": "stolen", "annotations": {"kubernetes.io/service-account.name": "tinkedge-edge"}},
    "apiVersion": "v1",
    "kind": "Secret",
    "type": "kubernetes.io/service-account-token",
}
_THIEF = {"spec": {"holderIdentity": "thief"}}
_RULE = read_rule("range=172.31.77.240-172.31.77.249/24,osie=default/lab")
_OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"}


@dataclass(frozen=True)
class Attack:
    """A request of an account, and the expected words of its rejection."""

    account: str
    action: str
    request: Callable[[KubeClient], Awaitable[object]]
    words: str


class Thief:
    """An attacker with the tokens of the release's service accounts."""

    def __init__(self, node: Node, namespace: str, pod: str) -> None:
        """Use the tokens of a namespace. `pod` is the edge's: its token names the pod, as the kubelet's tokens do."""
        self._node = node
        self._namespace = namespace
        self._pod = pod

    async def attack(self, hardware: str) -> int:
        """Send all attacks and return their number. Raises CommandError for one that is not rejected.

        `hardware` is the name of a Hardware in the namespace `default`.
        """
        async with await KubeClient.connect(self._node.kubeconfig) as administrator:
            webhooks = (await administrator.get(CONFIGURATION, WEBHOOKS, None))["webhooks"]
        attacks = [*self._of_the_controller(webhooks), *_of_the_server(hardware), *self._of_the_edge(hardware)]
        return await self._send(attacks)

    async def attack_discovery(self, hardware: str) -> int:
        """Send the attacks with the further rights of discovery, as `attack` does.

        `hardware` is the name of a Hardware in the namespace `default` that was not discovered.
        """
        return await self._send(_with_discovery(hardware))

    async def attack_v1alpha1(self) -> int:
        """Send the attacks with the further right of v1alpha1, as `attack` does."""
        return await self._send(_with_v1alpha1())

    async def _send(self, attacks: list[Attack]) -> int:
        for each in attacks:
            async with await self.client(each.account) as client:
                try:
                    await each.request(client)
                except ApiError as error:
                    if each.words not in str(error):
                        raise CommandError(f"{each.account}, {each.action}: {error}") from None
                else:
                    raise CommandError(f"the token of {each.account} may {each.action}")
        return len(attacks)

    async def works(self, hardware: str) -> None:
        """Make the writes that the server and an edge need. Raises CommandError."""
        try:
            async with await self.client("server") as client:
                annotations = {"annotations": {AGENT_ATTRIBUTES_ANNOTATION: "{}"}}
                await client.patch(HARDWARE, hardware, "default", {"metadata": annotations})
            async with await self.client("edge") as client:
                lease = self._lease(self._pod)
                await client.apply(LEASE, self._pod, self._namespace, lease, manager="test", force=True)
        except ApiError as error:
            raise CommandError(f"the chart does not let a role do its work: {error}") from error

    async def client(self, account: str) -> KubeClient:
        """Return a client with the token of a service account."""
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={self._pod}") if account == "edge" else ()
        token = await self._node.kubectl("create", "token", f"tinkedge-{account}", "-n", self._namespace, *bound)
        content = yaml.safe_load(self._node.kubeconfig.read_text())
        content["users"][0]["user"] = {"token": token}
        path: Path = self._node.directory / f"{account}.kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return await KubeClient.connect(path)

    def _of_the_controller(self, webhooks: list[Raw]) -> list[Attack]:
        def patched(*changed: Raw) -> Callable[[KubeClient], Awaitable[object]]:
            return lambda client: client.patch(CONFIGURATION, WEBHOOKS, None, {"webhooks": [*changed]})

        first, *others = webhooks
        evil = {"metadata": {"name": "evil"}, "webhooks": [_ALL]}
        namespace, pod = self._namespace, self._pod
        wider = {**first, "rules": [*first["rules"], _SECRETS]}
        elsewhere = {**first, "clientConfig": {"url": "https://192.0.2.1/"}}
        bundle = "nothing but webhooks[].clientConfig.caBundle"
        attacks = {
            "create another webhook configuration": (lambda c: c.create(CONFIGURATION, evil), _FORBIDDEN),
            "have Secrets reviewed": (patched(wider, *others), bundle),
            "add a webhook": (patched(first, *others, _ALL), bundle),
            "have another host asked": (patched(elsewhere, *others), bundle),
            "remove a webhook": (patched(*others), bundle),
            "delete the webhook configuration": (lambda c: c.delete(CONFIGURATION, WEBHOOKS, None), _FORBIDDEN),
            "keep it from being deleted": (
                lambda c: c.patch(CONFIGURATION, WEBHOOKS, None, {"metadata": {"finalizers": ["example.com/stay"]}}),
                "changes no labels, finalizers",
            ),
            "make a Secret with the edge's token": (lambda c: c.create(SECRET, _STOLEN, namespace), _FORBIDDEN),
            "read Secrets": (lambda c: c.list(SECRET, namespace), _FORBIDDEN),
            "write an edge's Lease": (lambda c: c.patch(LEASE, pod, namespace, _THIEF), _FORBIDDEN),
        }
        return [Attack("controller", action, *each) for action, each in attacks.items()]

    def _of_the_edge(self, hardware: str) -> list[Attack]:
        namespace, pod, leader = self._namespace, self._pod, "tinkedge-controller"
        other = self._lease("tinkedge-edge-other")
        own = "but that with the name of its own pod"
        attacks = {
            "take the controllers' Lease": (lambda c: c.patch(LEASE, leader, namespace, _THIEF), own),
            "write another edge's Lease": (lambda c: c.create(LEASE, other, namespace), own),
            "delete the controllers' Lease": (lambda c: c.delete(LEASE, leader, namespace), _FORBIDDEN),
            "delete Leases of edges": (lambda c: c.delete(LEASE, pod, namespace), _FORBIDDEN),
            "write a Hardware": (lambda c: c.patch(HARDWARE, hardware, "default", {"spec": {}}), _FORBIDDEN),
            "read Secrets": (lambda c: c.list(SECRET, namespace), _FORBIDDEN),
        }
        return [Attack("edge", action, *each) for action, each in attacks.items()]

    def _lease(self, name: str) -> Raw:
        metadata = {"name": name, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}


def _of_the_server(hardware: str) -> list[Attack]:
    def patched(patch: Raw) -> Callable[[KubeClient], Awaitable[object]]:
        return lambda client: client.patch(HARDWARE, hardware, "default", patch)

    attacks = {
        "write a Hardware's user-data": (patched({"spec": {"instance": {"userdata": "#!/bin/sh"}}}), "changes no spec"),
        "write another annotation": (
            patched({"metadata": {"annotations": {"tinkerbell.org/agent-id": "x"}}}),
            "writes no annotation",
        ),
        "move a Hardware to another site": (patched({"metadata": {"labels": {"a": "b"}}}), "changes no labels"),
        "delete a Hardware": (lambda client: client.delete(HARDWARE, hardware, "default"), _FORBIDDEN),
    }
    return [Attack("server", action, *each) for action, each in attacks.items()]


def _with_discovery(hardware: str) -> list[Attack]:
    def patched(patch: Raw) -> Callable[[KubeClient], Awaitable[object]]:
        return lambda client: client.patch(HARDWARE, hardware, "default", patch)

    def created(**changes: Any) -> Callable[[KubeClient], Awaitable[object]]:
        made = discovered_hardware("52:54:00:77:00:ff", _RULE, _RULE.first)
        made["metadata"] |= changes
        return lambda client: client.create(HARDWARE, made, "default")

    not_discovered = "but that of a discovered machine"
    attacks = {
        "delete a Hardware": (lambda c: c.delete(HARDWARE, hardware, "default"), "may delete only discovered"),
        "relabel a Hardware": (patched({"metadata": {"labels": {"a": "b"}}}), "of discovered Hardware alone"),
        "call a Hardware discovered": (
            patched({"metadata": {"labels": {AUTO_DISCOVERED_LABEL: "true"}}}),
            "of discovered Hardware alone",
        ),
        "write a Hardware's user-data": (
            patched({"spec": {"instance": {"userdata": "#!/bin/sh"}}}),
            "only disableNetboot of the interfaces",
        ),
    }
    attacks_of_edge = {
        "create a Hardware that was not discovered": (created(labels={}), not_discovered),
        "create a Hardware that the garbage collector deletes": (created(ownerReferences=[_OWNER]), not_discovered),
        "create a Hardware of another name": (created(name="db-1"), "after which it is named"),
        "change a Hardware": (patched({"metadata": {"labels": {"a": "b"}}}), _FORBIDDEN),
        "delete a Hardware": (lambda c: c.delete(HARDWARE, hardware, "default"), "deletes only discovered Hardware"),
    }
    return [
        Attack(account, action, *each)
        for account, found in (("controller", attacks), ("edge", attacks_of_edge))
        for action, each in found.items()
    ]


def _with_v1alpha1() -> list[Attack]:
    def patched(patch: Raw, name: str = DEFINITIONS[0]) -> Callable[[KubeClient], Awaitable[object]]:
        return lambda client: client.patch(CRD, name, None, patch)

    def converted(**changes: Any) -> Raw:
        return {"spec": {"conversion": {"webhook": {"clientConfig": changes}}}}

    own, alone = "by the webhook's own Service", "nothing but spec.conversion"
    attacks = {
        "have another Service convert": (patched(converted(service={"name": "evil"})), own),
        "have another namespace convert": (patched(converted(service={"namespace": "default"})), own),
        "have another host convert": (patched(converted(service=None, url="https://192.0.2.1/")), own),
        "end the conversion": (patched({"spec": {"conversion": {"strategy": "None", "webhook": None}}}), own),
        "replace the names": (patched({"spec": {"names": {"shortNames": ["pods"]}}}), alone),
        "label a definition": (patched({"metadata": {"labels": {"a": "b"}}}), "changes no labels"),
        "annotate a definition": (patched({"metadata": {"annotations": {"a": "b"}}}), "changes no annotations"),
        "change another definition": (patched({"metadata": {"labels": {}}}, "osies.tinkerbell.org"), _FORBIDDEN),
        "delete a definition": (lambda c: c.delete(CRD, DEFINITIONS[0], None), _FORBIDDEN),
        "list definitions": (lambda c: c.list(CRD, None), _FORBIDDEN),
    }
    return [Attack("controller", action, *each) for action, each in attacks.items()]


# --- the conversion webhook -------------------------------------------------------------------------------------------


def review(objects: bytes, version: str = OLD, uid: bytes = b'"u"') -> bytes:
    """Return a ConversionReview with this JSON text of `objects`."""
    kind = b'{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":'
    return kind + b'{"uid":%b,"desiredAPIVersion":"%b","objects":%b}}' % (uid, version.encode(), objects)


_ODD_OBJECTS = b'[null,7,"x",[],{},{"apiVersion":"%b","kind":"Hardware","spec":[]}]' % OLD.encode()
HOSTILE_REVIEWS: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "half a review": (review(b"[]")[:-5], 400),
    "another kind": (review(b"[]").replace(b"ConversionReview", b"AdmissionReview"), 400),
    "no request": (b'{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"}', 400),
    "a uid that is no text": (review(b"[]", uid=b"7"), 400),
    "objects that are no list": (review(b'"x"'), 400),
    "a nesting of 100,000 levels": (review(b"[" * 100_000), 400),
    "objects that are none": (review(_ODD_OBJECTS), 200),
    "an unknown version": (review(b"[]", "example.com/v1"), 200),
    "another kind of object": (review(b'[{"apiVersion":"v1","kind":"Secret","metadata":{}}]'), 200),
    "as many empty objects as a review holds": (review(b"[%b{}]" % (b"{}," * (MAX_REVIEW_BYTES // 3 - 100))), 200),
    "more than a review may have": (review(b"[]") + b" " * MAX_REVIEW_BYTES, 413),
}
"""Bodies that no API server sends, and the expected code of the answer."""


async def attack_conversion(address: str, port: int, times: int) -> int:
    """Send the hostile reviews `times` at once to a webhook; return their number.

    Anything that reaches its port can do this: API servers send no credentials. Raises CommandError for a wrong code.
    """
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    url = f"https://{address}:{port}/convert-v1alpha1"
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def send(name: str, body: bytes, expected: int) -> None:
            # A file, because aiohttp warns of large bytes.
            async with session.post(url, data=io.BytesIO(body)) as answer:
                text = await answer.text()
                if answer.status != expected:
                    raise CommandError(f"a review of {name} is answered by {answer.status}: {text[:500]}")

        for name, (body, expected) in HOSTILE_REVIEWS.items():
            await asyncio.gather(*(send(name, body, expected) for _ in range(times)))
    return times * len(HOSTILE_REVIEWS)
