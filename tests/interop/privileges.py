"""A site whose components ask the API through a gate each, which knows the roles of their service accounts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from tests.interop.rack import Process, tinkedge
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.manifests import apply_object
from tink.kube.resources import HARDWARE, LEASE, OSIE, SECRET, TEMPLATE, WORKFLOW, ResourceType
from tink.webhooks.registration import CONFIGURATION

ROLES = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
ROLES_FOR_SECRETS = ROLES.with_name("rbac-secrets.yaml")
"""Applied to a namespace, for an edge."""
ROLES_FOR_PEERS = ROLES.with_name("rbac-peers.yaml")
ROLES_FOR_ATTRIBUTES = ROLES.with_name("rbac-attributes.yaml")
WEBHOOKS = ROLES.with_name("webhooks.yaml")
"""The Service of the webhooks, the Secret of their authority, and their configuration."""
CLUSTER = os.environ.get("TINKEDGE_CLUSTER", "")
HOME = "tinkedge"
"""The namespace of the service accounts, and of the Lease."""
WORK = "privileges"
"""The namespace of the Workflows: the roles are for all namespaces."""
MAC = "52:54:00:00:00:01"
POD = "tinkedge-edge-abcde"
"""The name of an edge's pod."""
AUTHORITY = "tinkedge-webhooks-ca"
REGISTERED = "tinkedge-webhooks.tinkedge"
USERDATA = "machine-userdata"
"""A Secret."""
TAKEOVER = 60.0
"""Seconds: the Lease's fifteen, a retry, and a slow machine."""
RBAC = "rbac.authorization.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
KINDS = {
    "Pod": ResourceType("", "v1", "pods", "Pod"),
    "Secret": SECRET,
    "Service": ResourceType("", "v1", "services", "Service"),
    "ValidatingAdmissionPolicy": ResourceType(
        ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
    ),
    "ValidatingAdmissionPolicyBinding": ResourceType(
        ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
    ),
    "ValidatingWebhookConfiguration": CONFIGURATION,
    "Namespace": ResourceType("", "v1", "namespaces", "Namespace", namespaced=False),
    "ServiceAccount": ResourceType("", "v1", "serviceaccounts", "ServiceAccount"),
    "Role": ResourceType(RBAC, "v1", "roles", "Role"),
    "RoleBinding": ResourceType(RBAC, "v1", "rolebindings", "RoleBinding"),
    "ClusterRole": ResourceType(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    "ClusterRoleBinding": ResourceType(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
}


# --- roles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """What a request wants (kubernetes.io, "Authorization Overview"); `name` empty: no one object."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Grant:
    """One verb on one resource, in one namespace or (empty) in all, for one object or (empty) for any."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def allows(self, wish: Wish) -> bool:
        same = (self.verb, self.group, self.resource) == (wish.verb, wish.group, wish.resource)
        return same and self.namespace in ("", wish.namespace) and self.name in ("", wish.name)


def wish(method: str, path: str, query: dict[str, str]) -> Wish:
    """Of a request to the API."""
    parts = path.strip("/").split("/")
    group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = [*parts, "", ""][:3]
    verb = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}.get(method, "get")
    if verb == "get" and not name:
        verb = "watch" if query.get("watch") == "true" else "list"
        # A selector for one name is that name, to Kubernetes' authorizers (k8s.io/apiserver, RequestInfoFactory).
        name = query.get("fieldSelector", "").partition("metadata.name=")[2]
    return Wish(verb, group, f"{plural}/{subresource}" if subresource else plural, namespace, name)


def grants(account: str, roles: Path = ROLES, namespace: str = "") -> set[Grant]:
    """Everything that a service account may do by these roles; those without a namespace are applied to `namespace`."""
    objects = list(yaml.load_all(roles.read_text(), Loader=yaml.CSafeLoader))
    rules = {(obj["kind"], obj["metadata"]["name"]): obj["rules"] for obj in objects if "rules" in obj}
    found = set()
    for obj in objects:
        if account not in [subject["name"] for subject in obj.get("subjects", [])]:
            continue
        for rule in rules[obj["roleRef"]["kind"], obj["roleRef"]["name"]]:
            found |= {
                Grant(verb, group, resource, obj["metadata"].get("namespace", namespace), name)
                for verb in rule["verbs"]
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for name in rule.get("resourceNames", [""])
            }
    return found


# --- the gate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upstream:
    """The API behind the gates, and a token for it."""

    url: str
    trust: ssl.SSLContext
    token: str

    @classmethod
    def read(cls, kubeconfig: Path) -> Upstream:
        content = yaml.load(kubeconfig.read_text(), Loader=yaml.CSafeLoader)
        cluster = content["clusters"][0]["cluster"]
        if encoded := cluster.get("certificate-authority-data"):
            trust = ssl.create_default_context(cadata=base64.b64decode(encoded).decode())
        else:
            trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        return cls(cluster["server"], trust, content["users"][0]["user"]["token"])


class Gate:
    """What a component takes for its API. `kubeconfig` leads to it."""

    def __init__(self, account: str, upstream: Upstream, directory: Path) -> None:
        self.kubeconfig = directory / f"kubeconfig-{account}"
        self.wishes: set[Wish] = set()
        self.refused: list[Wish] = []
        self.before: Callable[[Wish], Awaitable[None]] | None = None
        """Called before a request is passed on."""
        self._grants = grants(account)
        self._upstream = upstream
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=upstream.trust), timeout=aiohttp.ClientTimeout(total=None)
        )
        app = web.Application(client_max_size=2**22)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._runner.addresses[0][1]}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    async def stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def allow(self, more: set[Grant]) -> None:
        """From now on, these too."""
        self._grants |= more

    def unused(self) -> list[Grant]:
        return sorted(
            (grant for grant in self._grants if not any(map(grant.allows, self.wishes))),
            key=str,
        )

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if "sendInitialEvents" in request.query:  # as of an API that can't: then it takes both, list and watch
            return web.json_response({"kind": "Status", "code": 422, "reason": "Invalid", "message": "no"}, status=422)
        wanted = wish(request.method, request.path, dict(request.query))
        self.wishes.add(wanted)
        if not any(grant.allows(wanted) for grant in self._grants):
            self.refused.append(wanted)
            if not CLUSTER:
                status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"no role allows {wanted}"}
                return web.json_response(status, status=403)
        if self.before is not None:
            await self.before(wanted)
        headers = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        headers["Authorization"] = f"Bearer {self._upstream.token}"
        async with self._session.request(
            request.method, self._upstream.url + request.path_qs, data=await request.read(), headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                async for piece in answer.content.iter_any():
                    await response.write(piece)
            return response


# --- the site --------------------------------------------------------------------------------------------------------


class Site:
    """An API with our definitions, its administrator, and gates for service accounts."""

    def __init__(self, kubeconfig: Path, client: KubeClient, directory: Path, exits: contextlib.AsyncExitStack) -> None:
        self._upstream = Upstream.read(kubeconfig)
        self.client = client
        self.directory = directory
        self._exits = exits

    async def gate(self, account: str, pod: str = "") -> Gate:
        """Return the gate of a service account. Its token is bound to the pod, if one is given."""
        token = await self._token(account, pod) if CLUSTER else self._upstream.token
        made = Gate(account, Upstream(self._upstream.url, self._upstream.trust, token), self.directory)
        self._exits.push_async_callback(made.stop)
        await made.start()
        return made

    async def _token(self, account: str, pod: str) -> str:
        spec: Raw = {"expirationSeconds": 3600}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        url = f"{self._upstream.url}/api/v1/namespaces/{HOME}/serviceaccounts/{account}/token"
        headers = {"Authorization": f"Bearer {self._upstream.token}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers, ssl=self._upstream.trust) as answer,
        ):
            token: str = (await answer.json())["status"]["token"]
            return token

    def start(self, *words: str | Path) -> Process:
        process = tinkedge(self.directory, *words)
        self._exits.callback(process.end)
        return process

    async def ready(self, process: Process) -> None:
        await self.until(lambda: "ready: " in process.err, process)

    async def until(self, holds: Callable[[], Any], *processes: Process, within: float = PATIENCE_SECONDS) -> None:
        await until(holds, lambda: "\n".join(process.err for process in processes), within=within, every=0.05)

    async def create(self, resource: ResourceType, name: str, spec: Raw, **more: Any) -> None:
        metadata = {"name": name, "namespace": WORK}
        body = {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": metadata, "spec": spec, **more}
        await self.client.create(resource, body)

    async def references(self) -> None:
        interface = {"dhcp": {"ip": "127.0.0.2", "netmask": "255.0.0.0"}}
        await self.create(HARDWARE, "machine", {"networkInterfaces": {MAC: interface}})
        await self.create(TEMPLATE, "one", {"actions": [{"name": "a", "image": "i", "cmd": "/bin/true"}]})

    async def workflow(self, name: str, template: str = "one", hardware: str = "machine") -> None:
        await self.create(WORKFLOW, name, {"hardwareRef": {"name": hardware}, "templateRef": {"name": template}})

    async def state(self, name: str) -> str:
        status = (await self.client.get(WORKFLOW, name, WORK)).get("status", {})
        return str(status.get("state")) if "actions" in status else ""  # "": it was created, and no more

    async def gone(self, resource: ResourceType, name: str, namespace: str = WORK) -> bool:
        try:
            await self.client.get(resource, name, namespace)
        except NotFoundError:
            return True
        return False

    async def apply(self, file: Path, namespace: str = "") -> list[Raw]:
        """Apply the objects of a manifest as the administrator. `namespace` is the default of objects without one."""
        objects = [each for each in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader) if each]
        for obj in objects:
            if CLUSTER or obj["kind"] in ("Secret", "ValidatingWebhookConfiguration"):  # the others are not needed
                if namespace:
                    obj["metadata"]["namespace"] = namespace
                await apply_object(self.client, KINDS[obj["kind"]], obj, "test")
        return objects

    async def holder(self) -> str:
        try:
            lease = await self.client.get(LEASE, "tinkedge-controller", HOME)
        except NotFoundError:
            return ""
        return str(lease["spec"].get("holderIdentity"))

    async def clean(self) -> None:
        """A cluster is left as it was, but for the definitions and the roles."""
        for resource in (WORKFLOW, TEMPLATE, HARDWARE, OSIE):
            for item in (await self.client.list(resource, WORK))["items"]:
                name = item["metadata"]["name"]
                with contextlib.suppress(ApiError):
                    await self.client.patch(resource, name, WORK, {"metadata": {"finalizers": None}})
                    await self.client.delete(resource, name, WORK)
        kept = (SECRET, AUTHORITY, HOME), (LEASE, "tinkedge-controller", HOME), (SECRET, USERDATA, WORK)
        for resource, name, namespace in kept:
            with contextlib.suppress(NotFoundError):
                await self.client.delete(resource, name, namespace)
        with contextlib.suppress(NotFoundError):
            await self.client.delete(CONFIGURATION, REGISTERED, None)


async def served(client: KubeClient) -> None:
    """A real API needs a moment from a definition to its resource."""
    for resource in (HARDWARE, OSIE, TEMPLATE, WORKFLOW):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with contextlib.suppress(ApiError):  # 404, then 429
                    await client.list(resource)
                    break
                await asyncio.sleep(0.1)


def check(gate: Gate, *processes: Process) -> None:
    """Nothing was refused, and every rule was of use."""
    for process in processes:
        assert "orbidden" not in process.err, process.err
        assert "Traceback" not in process.err, process.err
    assert gate.refused == []
    assert gate.unused() == []
