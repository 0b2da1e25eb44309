"""Controller, server and edge as service accounts with the roles of deploy/rbac.yaml: none is refused, none is unused.

    component --- gate (of this test) --- embedded API, or a real cluster

Each component is a process of `tinkedge` with a gate of its own between it and the API. The gate notes every request by
verb, resource and name, and refuses with 403 what the component's roles do not allow, as RBAC decides it. With
TINKEDGE_CLUSTER=KUBECONFIG (of an administrator; better of a cluster for nothing else) the roles are applied there, the
gates pass everything on with a token of the service account, and the cluster decides.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml
from aiohttp import web

from proto import older_pb2
from tests.interop.rack import Process, tinkedge
from tests.ports import free_port
from tests.waiting import until
from tink.api.annotations import AGENT_ATTRIBUTES_ANNOTATION
from tink.api.crds import generate
from tink.api.v1alpha2 import API_VERSION, FINALIZER, Raw
from tink.apiserver import ApiServer
from tink.kube.client import ApiError, KubeClient, NotFoundError
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, EVENT, HARDWARE, LEASE, OSIE, SECRET, TEMPLATE, WORKFLOW, ResourceType
from tink.webhooks.certificates import AUTHORITY_LIFE, renewed
from tink.webhooks.registration import CONFIGURATION, NAME

ROLES = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
ROLES_FOR_SECRETS = ROLES.with_name("rbac-secrets.yaml")
"""Applied to a namespace, for an edge."""
ROLES_FOR_PEERS = ROLES.with_name("rbac-peers.yaml")
CLUSTER = os.environ.get("TINKEDGE_CLUSTER", "")
HOME = "tinkedge"
"""The namespace of the service accounts, and of the Lease."""
WORK = "privileges"
"""The namespace of the Workflows: the roles are for all namespaces."""
MAC = "52:54:00:00:00:01"
USERDATA = "machine-userdata"
"""A Secret."""
TAKEOVER = 60.0
"""Seconds: the Lease's fifteen, a retry, and a slow machine."""
RBAC = "rbac.authorization.k8s.io"
KINDS = {
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

    async def gate(self, account: str) -> Gate:
        token = await self._token(account) if CLUSTER else self._upstream.token
        made = Gate(account, Upstream(self._upstream.url, self._upstream.trust, token), self.directory)
        self._exits.push_async_callback(made.stop)
        await made.start()
        return made

    async def _token(self, account: str) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
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

    async def until(self, holds: Callable[[], Any], *processes: Process, within: float = 60.0) -> None:
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
        kept = (SECRET, "tinkedge-webhook-ca", HOME), (LEASE, "tinkedge-controller", HOME), (SECRET, USERDATA, WORK)
        for resource, name, namespace in kept:
            with contextlib.suppress(NotFoundError):
                await self.client.delete(resource, name, namespace)
        with contextlib.suppress(NotFoundError):
            await self.client.delete(CONFIGURATION, NAME, None)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as exits:
        if CLUSTER:
            kubeconfig = Path(CLUSTER)
        else:
            api = ApiServer(tmp_path / "api", port=0)
            await api.start()
            exits.push_async_callback(api.stop)
            kubeconfig = api.kubeconfig
        client = await KubeClient.connect(kubeconfig)
        exits.push_async_callback(client.close)
        for definition in generate():
            await apply_object(client, CRD, definition, "test")
        for obj in yaml.load_all(ROLES.read_text(), Loader=yaml.CSafeLoader) if CLUSTER else ():
            await apply_object(client, KINDS[obj["kind"]], obj, "test")
        for namespace in (HOME, WORK):
            obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            await apply_object(client, KINDS["Namespace"], obj, "test")
        made = Site(kubeconfig, client, tmp_path, exits)
        await served(client)
        await made.clean()
        exits.push_async_callback(made.clean)
        yield made


async def served(client: KubeClient) -> None:
    """A real API needs a moment from a definition to its resource."""
    for resource in (HARDWARE, OSIE, TEMPLATE, WORKFLOW):
        async with asyncio.timeout(20):
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


# --- the components --------------------------------------------------------------------------------------------------


async def test_two_controllers_elect_take_over_and_review_with_their_role_and_need_all_of_it(site: Site) -> None:
    gate = await site.gate("tinkedge-controller")
    port = free_port()
    options: list[str | Path] = ["controller", "--kubeconfig", gate.kubeconfig, "--lease-namespace", HOME]
    reviewing = site.start(*options, "--webhook-url", f"https://127.0.0.1:{port}", "--webhook-port", str(port))
    await site.ready(reviewing)
    await site.until(site.holder, reviewing)
    # The review of a Workflow asks whether what it names is not there, or only not known yet.
    await site.workflow("early", "late", "later")
    await site.references()
    await site.workflow("first")
    await site.until(lambda: _is(site, "first", "Pending"), reviewing)
    await site.client.delete(WORKFLOW, "first", WORK)
    await site.until(lambda: site.gone(WORKFLOW, "first"), reviewing)
    told = (await site.client.list(EVENT, WORK))["items"]
    assert {"Prepared"} <= {event["reason"] for event in told if event["involvedObject"]["name"] == "first"}

    references = {"hardwareRef": {"name": "machine"}, "templateRef": {"name": "one"}}
    await site.create(WORKFLOW, "brief", references | {"ttlSecondsAfterFinished": 0})
    await site.until(lambda: _is(site, "brief", "Pending"), reviewing)
    await site.client.patch(WORKFLOW, "brief", WORK, {"status": {"state": "Cancelling"}}, subresource="status")
    await site.until(lambda: site.gone(WORKFLOW, "brief"), reviewing)

    before = await site.holder()
    behind = ["--webhook-service", f"{HOME}/hooks", "--webhook-port", str(free_port())]
    other = site.start(*options, *behind)
    await site.ready(other)
    assert await site.holder() == before, "there are two"
    stopped = time.monotonic()
    if CLUSTER:
        reviewing.popen.kill()  # test_controllers does this with a shorter Lease
    else:
        assert await asyncio.to_thread(reviewing.terminate) == 0
    await site.until(lambda: _holds(site, before), other, within=TAKEOVER)
    print(f"takeover after {time.monotonic() - stopped:.1f} s")
    await site.client.delete(CONFIGURATION, NAME, None)  # nobody answers behind that Service
    await site.workflow("second")
    await site.until(lambda: _is(site, "second", "Pending"), other)
    assert FINALIZER in (await site.client.get(WORKFLOW, "second", WORK))["metadata"]["finalizers"]
    assert await asyncio.to_thread(other.terminate) == 0
    assert ": given back" in other.err
    assert await site.holder() == "None"

    old = renewed(None, datetime.now(UTC) - AUTHORITY_LIFE + timedelta(days=30))
    kept = {"ca.crt": old.bundle(), "ca.key": old.private()}
    body = {"data": {name: base64.b64encode(pem).decode() for name, pem in kept.items()}}
    await site.client.patch(SECRET, "tinkedge-webhook-ca", HOME, body)
    third = site.start(*options, *behind)
    await site.ready(third)
    assert await asyncio.to_thread(third.terminate) == 0
    check(gate, reviewing, other, third)


async def _is(site: Site, workflow: str, state: str) -> bool:
    return await site.state(workflow) == state


async def _holds(site: Site, before: str) -> bool:
    return await site.holder() not in (before, "None")


async def test_server_runs_a_workflow_with_its_role_and_needs_all_of_it(site: Site) -> None:
    controller, gate = await site.gate("tinkedge-controller"), await site.gate("tinkedge-server")
    alone = ["--disable", "webhooks", "--no-leader-elect"]
    preparing = site.start("controller", "--kubeconfig", controller.kubeconfig, *alone)
    port = str(free_port())
    server = site.start(
        "server", "--kubeconfig", gate.kubeconfig, "--interface", "lo=127.0.0.1", "--grpc-port", port,
        "--agent-auth", "none",
    )  # fmt: skip
    await site.ready(server)
    await site.ready(preparing)
    faster: list[Wish] = []

    async def interfere(wanted: Wish) -> None:
        """Be faster than the server with the agent's first report: it must look again."""
        if wanted.verb == "patch" and not faster and await _is(site, wanted.name, "Scheduled"):
            faster.append(wanted)
            await site.client.patch(WORKFLOW, wanted.name, WORK, {"metadata": {"annotations": {"somebody": "else"}}})

    gate.before = interfere
    await site.references()
    agent = site.start(
        "agent", "--agent-id", MAC, "--server", f"127.0.0.1:{port}", "--runtime", "process",
        "--state-dir", site.directory / "agent",
    )  # fmt: skip
    await site.workflow("run")
    await site.until(lambda: _is(site, "run", "Succeeded"), server, agent)
    assert faster
    await asyncio.to_thread(agent.end)

    async def kept() -> bool:
        annotations = (await site.client.get(HARDWARE, "machine", WORK))["metadata"].get("annotations", {})
        return AGENT_ATTRIBUTES_ANNOTATION in annotations

    # tink-agent says what its machine has, with each poll.
    cpu = older_pb2.AgentAttributes.CPU(total_cores=8)
    poll = older_pb2.ActionRequest(agent_id=MAC, agent_attributes=older_pb2.AgentAttributes(cpu=cpu))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/proto.WorkflowService/GetAction")(poll.SerializeToString())
        await site.until(kept, server)
        call.cancel()
    check(gate, server)


async def test_edge_serves_with_its_role_and_needs_all_of_it(site: Site) -> None:
    await site.references()
    message = f"127.0.0.2 is used by another host: {MAC} declined it; it is not offered until 2024-01-01T00:00:00Z"
    condition = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": message}
    stamped = {**condition, "lastTransitionTime": "2024-01-01T00:00:00Z"}
    await site.client.patch(HARDWARE, "machine", WORK, {"status": {"conditions": [stamped]}}, subresource="status")
    gate, port = await site.gate("tinkedge-edge"), free_port()
    edge = site.start(
        "edge", "--kubeconfig", gate.kubeconfig, "--disable", "dhcp", "--disable", "tftp",
        "--interface", "lo=127.0.0.1", "--http-port", str(port), "--admin-port", str(free_port()),
        "--data-dir", site.directory / "edge",
    )  # fmt: skip
    await site.ready(edge)

    async def ended() -> bool:
        conditions = (await site.client.get(HARDWARE, "machine", WORK))["status"]["conditions"]
        return bool(conditions[0]["status"] == "False")

    async def told() -> bool:
        events = await site.client.list(EVENT, WORK)
        return any(event["involvedObject"]["name"] == "machine" for event in events["items"])

    await site.until(ended, edge)
    # There is no OSIE: why the machine does not boot is an Event.
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with aiohttp.ClientSession(connector=connector) as session:
        await (await session.get(f"http://127.0.0.1:{port}/ipxe/script/{MAC}/auto.ipxe")).read()
    await site.until(told, edge)
    check(gate, edge)


async def test_edge_is_found_by_others_with_the_role_for_that(site: Site) -> None:
    granted = grants("tinkedge-edge", ROLES_FOR_PEERS)
    for obj in yaml.load_all(ROLES_FOR_PEERS.read_text(), Loader=yaml.CSafeLoader) if CLUSTER else ():
        await apply_object(site.client, KINDS[obj["kind"]], obj, "test")
    gate = await site.gate("tinkedge-edge")
    gate.allow(granted)
    key = site.directory / "edges.key"
    key.write_text("k" * 64 + "\n")
    key.chmod(0o600)
    edge = site.start(
        "edge", "--kubeconfig", gate.kubeconfig, "--disable", "dhcp", "--disable", "tftp",
        "--interface", "lo=127.0.0.1", "--http-port", str(free_port()), "--admin-port", str(free_port()),
        "--data-dir", site.directory / "edge", "--metadata-token-key", key,
        "--peer-group", "rack", "--lease-namespace", HOME,
    )  # fmt: skip
    await site.ready(edge)
    lease = "tinkedge-edge-127-0-0-1"
    await site.until(lambda: _there(site, lease), edge)
    assert await asyncio.to_thread(edge.terminate) == 0  # the gate is of this thread
    assert await site.gone(LEASE, lease, HOME)
    assert gate.refused == []
    # To apply what is not there takes `create`, too, which only a real API server asks for.
    assert {grant.verb for grant in gate.unused() if grant in granted} <= {"create"}


async def test_server_that_runs_apart_finds_edges_with_the_role_for_that(site: Site) -> None:
    granted = grants("tinkedge-server", ROLES_FOR_PEERS)
    assert [grant.verb for grant in granted] == ["list"]
    for obj in yaml.safe_load_all(ROLES_FOR_PEERS.read_text()) if CLUSTER else ():
        await apply_object(site.client, KINDS[obj["kind"]], obj, "test")
    gate = await site.gate("tinkedge-server")
    gate.allow(granted)
    key = site.directory / "edges.key"
    key.write_text("k" * 64 + "\n")
    key.chmod(0o600)
    server = site.start(
        "server", "--kubeconfig", gate.kubeconfig, "--interface", "lo=127.0.0.1", "--grpc-port", str(free_port()),
        "--agent-auth", "none", "--reports-key", key, "--peer-group", "rack", "--lease-namespace", HOME,
    )  # fmt: skip
    await site.ready(server)

    async def looked() -> bool:
        return not [grant for grant in gate.unused() if grant in granted]

    await site.until(looked, server)
    assert gate.refused == []


async def _there(site: Site, lease: str) -> bool:
    return not await site.gone(LEASE, lease, HOME)


async def test_edge_reads_a_secret_for_a_machine_where_the_role_for_that_is_and_says_so_where_not(site: Site) -> None:
    body = {"data": {"userData": base64.b64encode(b"#cloud-config\n").decode()}}
    await site.client.create(SECRET, {"metadata": {"name": USERDATA, "namespace": WORK}, **body})
    await site.references()
    refer = {"metadata": {"annotations": {"tinkerbell.org/userdata-secret": USERDATA}}}
    await site.client.patch(HARDWARE, "machine", WORK, refer)
    gate = await site.gate("tinkedge-edge")
    port = free_port()
    edge = site.start(
        "edge", "--kubeconfig", gate.kubeconfig, "--disable", "dhcp", "--disable", "tftp",
        "--interface", "lo=127.0.0.1", "--http-port", str(port), "--admin-port", str(free_port()),
        "--data-dir", site.directory / "edge",
    )  # fmt: skip
    await site.ready(edge)

    async def user_data() -> tuple[int, str]:
        machine = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        url = f"http://127.0.0.1:{port}/latest/user-data"
        async with aiohttp.ClientSession(connector=machine) as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def served_it() -> bool:
        return await user_data() == (200, "#cloud-config\n")

    status, said = await user_data()
    assert status == 503
    assert f"Secret {WORK}/{USERDATA}" in said
    assert "deploy/rbac-secrets.yaml" in said
    await site.until(lambda: "deploy/rbac-secrets.yaml" in edge.err, edge)
    needed = {(wish.verb, wish.resource, wish.namespace, wish.name) for wish in gate.refused}
    assert CLUSTER or needed == {("get", "secrets", WORK, USERDATA)}

    granted = grants("tinkedge-edge", ROLES_FOR_SECRETS, WORK)
    for obj in yaml.load_all(ROLES_FOR_SECRETS.read_text(), Loader=yaml.CSafeLoader) if CLUSTER else ():
        obj["metadata"]["namespace"] = WORK
        await apply_object(site.client, KINDS[obj["kind"]], obj, "test")
    gate.allow(granted)
    await site.until(served_it, edge)
    assert [grant for grant in gate.unused() if grant in granted] == []


def test_accounts_of_the_roles_are_bound_where_they_are() -> None:
    objects = list(yaml.load_all(ROLES.read_text(), Loader=yaml.CSafeLoader))
    accounts = {
        (obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in objects if obj["kind"] == "ServiceAccount"
    }
    bound = {(subject["namespace"], subject["name"]) for obj in objects for subject in obj.get("subjects", [])}
    assert accounts == bound
    for obj in objects:
        for rule in obj.get("rules", []):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
