"""Controller, server and edge with the roles of deploy/rbac.yaml: the API refuses no request, and no rule is unused.

    component --- gate (of this test) --- embedded API

Each component is a process of `tinkedge` with a gate of its own between it and the API. The gate notes every request by
verb, resource and name, and refuses with 403 what the component's roles do not allow, as RBAC decides it. On a real
cluster the roles are tried by tests/cluster.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml

from edge.peers.leases import EdgeLeases, addresses
from proto import inventory_pb2, older_pb2
from proto.inventory_pb2_grpc import InventoryServiceStub
from tests.api import serving
from tests.interop.conftest import in_namespace
from tests.interop.privileges import ROLES, Gate, Upstream, Wish, grants
from tests.interop.rack import ADDRESS, IN_EDGE, Namespaces, Process, tinkedge
from tests.ports import free_port
from tests.support.bmc import PASSWORD, USER, FakeBmc, serve
from tests.support.objects import hardware
from tests.waiting import PATIENCE_SECONDS, until
from tink.api.annotations import (
    AGENT_ATTRIBUTES_ANNOTATION,
    AUTO_DISCOVERED_LABEL,
    EXPECTED_MACHINES_LABEL,
    JOB_TTL_ANNOTATION,
    REFRESH_INVENTORY_ANNOTATION,
)
from tink.api.crds import generate, generate_bmc
from tink.api.v1alpha2 import API_VERSION, FINALIZER, Raw
from tink.discovery.model import DISCOVERY_FINALIZER, discovered_name
from tink.kube.client import KubeClient, NotFoundError
from tink.kube.manifests import apply_object
from tink.kube.resources import (
    CONFIG_MAP,
    EVENT,
    HARDWARE,
    JOB,
    LEASE,
    MACHINE,
    SECRET,
    TASK,
    TEMPLATE,
    WORKFLOW,
    ResourceType,
)
from tink.kube.runtime import Pod
from tink.webhooks.certificates import AUTHORITY_LIFE, renewed
from tink.webhooks.registration import CONFIGURATION

ROLES_FOR_SECRETS = ROLES.with_name("rbac-secrets.yaml")
"""Applied to a namespace, for an edge."""
ROLES_FOR_PEERS = ROLES.with_name("rbac-peers.yaml")
ROLES_FOR_BMC = ROLES.with_name("rbac-bmc.yaml")
ROLES_FOR_DISCOVERY = ROLES.with_name("rbac-discovery.yaml")
ROLES_FOR_ADMISSION = ROLES.with_name("rbac-edge-discovery.yaml")
ROLES_FOR_ATTRIBUTES = ROLES.with_name("rbac-attributes.yaml")
WEBHOOKS = ROLES.with_name("webhooks.yaml")
"""The Service of the webhooks, the Secret of their authority, and their configuration."""
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
ACCOUNT = {"username": USER, "password": PASSWORD}
"""The account of a BMC."""
LOOPBACK = ("--interface", "lo=127.0.0.1")


class Site:
    """An API with our definitions, its administrator, and gates for service accounts."""

    def __init__(self, kubeconfig: Path, client: KubeClient, directory: Path, exits: contextlib.AsyncExitStack) -> None:
        self._upstream = Upstream.read(kubeconfig)
        self.client = client
        self.directory = directory
        self._exits = exits

    async def gate(self, account: str, namespace: str = "") -> Gate:
        """Start the gate of a service account, on loopback in this network namespace; empty: in the test's own."""
        gate_of_account = Gate(account, self._upstream, self.directory)
        self._exits.push_async_callback(gate_of_account.stop)
        listener = partial(socket.create_server, ("127.0.0.1", 0))
        await gate_of_account.start(in_namespace(namespace, listener) if namespace else listener())
        return gate_of_account

    def start(self, *words: str | Path, namespace: str = "") -> Process:
        process = tinkedge(self.directory, *words, namespace=namespace)
        self._exits.callback(process.end)
        return process

    async def ready(self, *processes: Process) -> None:
        for process in processes:
            await self.until(lambda process=process: "ready: " in process.err, process)

    async def until(self, holds: Callable[[], Any], *processes: Process, within: float = PATIENCE_SECONDS) -> None:
        await until(holds, lambda: "\n".join(process.err for process in processes), within=within, every=0.05)

    async def create(self, resource: ResourceType, name: str, spec: Raw) -> None:
        metadata = {"name": name, "namespace": WORK}
        body = {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": metadata, "spec": spec}
        await self.client.create(resource, body)

    async def references(self) -> None:
        interface = {"dhcp": {"ip": "127.0.0.2", "netmask": "255.0.0.0"}}
        await self.create(HARDWARE, "machine", {"networkInterfaces": {MAC: interface}})
        await self.create(TEMPLATE, "one", {"actions": [{"name": "a", "image": "i", "cmd": "/bin/true"}]})

    async def workflow(self, name: str, **spec: Any) -> None:
        references = {"hardwareRef": {"name": "machine"}, "templateRef": {"name": "one"}}
        await self.create(WORKFLOW, name, {**references, **spec})

    async def state(self, name: str) -> str:
        status = (await self.client.get(WORKFLOW, name, WORK)).get("status", {})
        return (
            str(status.get("state")) if "actions" in status else ""
        )  # "": created, but not yet accepted by the controller

    async def is_gone(self, workflow: str) -> bool:
        try:
            await self.client.get(WORKFLOW, workflow, WORK)
        except NotFoundError:
            return True
        return False

    async def has_event(self, name: str, reason: str = "") -> bool:
        """Return True if the object has an Event of this reason. Events are written late and outlive their object."""
        events = (await self.client.list(EVENT, WORK))["items"]
        return any(one["involvedObject"]["name"] == name and reason in ("", one["reason"]) for one in events)

    async def has_inventory(self, name: str, serial: str) -> bool:
        """Return True if the in-band inventory of the Hardware has this serial number."""
        status = (await self.client.get(HARDWARE, name, WORK)).get("status", {})
        found: Raw = status.get("inventory", {}).get("inBand", {}).get("product", {})
        return found.get("serialNumber") == serial

    async def has_job(self, name: str) -> bool:
        return name in [each["metadata"]["name"] for each in (await self.client.list(JOB, WORK))["items"]]

    async def holder(self) -> str:
        try:
            lease = await self.client.get(LEASE, "tinkedge-controller", HOME)
        except NotFoundError:
            return ""
        return str(lease["spec"].get("holderIdentity"))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with (
        serving(tmp_path / "api", (*generate(), *generate_bmc())) as (api, client),
        contextlib.AsyncExitStack() as exits,
    ):
        namespaces = ResourceType("", "v1", "namespaces", "Namespace", namespaced=False)
        for name in (HOME, WORK):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await apply_object(client, namespaces, body, "test")
        yield Site(api.kubeconfig, client, tmp_path, exits)


def check(gate: Gate, *processes: Process) -> None:
    """Check that the API refused no request and that every rule was used."""
    for process in processes:
        assert "orbidden" not in process.err, process.err
        assert "Traceback" not in process.err, process.err
    assert gate.refused == []
    assert gate.unused() == []


async def test_two_controllers_elect_take_over_and_review_with_their_role_and_need_every_rule(site: Site) -> None:
    made = {each["kind"]: each for each in yaml.safe_load_all(WEBHOOKS.read_text()) if each}
    registered = made["ValidatingWebhookConfiguration"]
    await apply_object(site.client, SECRET, made["Secret"], "test")
    await apply_object(site.client, CONFIGURATION, registered, "test")
    # No server answers behind that Service here: `review` sends the requests of the API server.
    ignoring = [{**webhook, "failurePolicy": "Ignore"} for webhook in registered["webhooks"]]
    await site.client.patch(CONFIGURATION, REGISTERED, None, {"webhooks": ignoring})
    gate = await site.gate("tinkedge-controller")
    options: list[str | Path] = ["controller", "--kubeconfig", gate.kubeconfig, "--lease-namespace", HOME]
    options += ["--webhook-service", f"{HOME}/tinkedge-webhooks", "--webhook-configuration", REGISTERED]
    port = free_port()
    reviewing = site.start(*options, "--webhook-port", str(port))
    await site.ready(reviewing)
    await site.until(site.holder, reviewing)
    # The webhook reads the Workflow's references: they may be missing, or not yet in its cache.
    warnings = await _review(port, {"hardwareRef": {"name": "late"}, "templateRef": {"name": "later"}})
    assert len(warnings) == 2, warnings
    await site.references()
    await site.workflow("first")
    await site.until(lambda: _is(site, "first", "Pending"), reviewing)
    await site.client.delete(WORKFLOW, "first", WORK)
    await site.until(lambda: site.is_gone("first"), reviewing)
    await site.until(lambda: site.has_event("first", "Prepared"), reviewing)

    await site.workflow("brief", ttlSecondsAfterFinished=0)
    await site.until(lambda: _is(site, "brief", "Pending"), reviewing)
    await site.client.patch(WORKFLOW, "brief", WORK, {"status": {"state": "Cancelling"}}, subresource="status")
    await site.until(lambda: site.is_gone("brief"), reviewing)

    before = await site.holder()
    other = site.start(*options, "--webhook-port", str(free_port()))
    await site.ready(other)
    assert await site.holder() == before, "there are two"
    assert await asyncio.to_thread(reviewing.terminate) == 0

    async def taken_over() -> bool:
        return await site.holder() not in (before, "None")

    await site.until(taken_over, other)
    await site.workflow("second")
    await site.until(lambda: _is(site, "second", "Pending"), other)
    assert FINALIZER in (await site.client.get(WORKFLOW, "second", WORK))["metadata"]["finalizers"]
    assert await asyncio.to_thread(other.terminate) == 0
    assert ": released" in other.err
    assert await site.holder() == "None"

    old = renewed(None, datetime.now(UTC) - AUTHORITY_LIFE + timedelta(days=30))
    kept = {"ca.crt": old.bundle(), "ca.key": old.private()}
    body = {"data": {name: base64.b64encode(pem).decode() for name, pem in kept.items()}}
    await site.client.patch(SECRET, AUTHORITY, HOME, body)
    third = site.start(*options, "--webhook-port", str(free_port()))
    await site.ready(third)
    assert await asyncio.to_thread(third.terminate) == 0
    authority = (await site.client.get(SECRET, AUTHORITY, HOME))["data"]["ca.crt"]
    found = (await site.client.get(CONFIGURATION, REGISTERED, None))["webhooks"]
    assert [webhook["clientConfig"]["caBundle"] for webhook in found] == [authority] * len(registered["webhooks"])
    assert [webhook["rules"] for webhook in found] == [webhook["rules"] for webhook in registered["webhooks"]]
    check(gate, reviewing, other, third)


async def _review(port: int, spec: dict[str, Any]) -> list[str]:
    """Send a review of a new Workflow as an API server does, and return the warnings."""
    workflow = {"metadata": {"name": "early", "namespace": WORK}, "spec": spec}
    kind = {"group": "tinkerbell.org", "version": "v1alpha2", "kind": "Workflow"}
    review_request = {
        "uid": "1",
        "kind": kind,
        "name": "early",
        "namespace": WORK,
        "operation": "CREATE",
        "object": workflow,
    }
    url = f"https://127.0.0.1:{port}/admission"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"kind": "AdmissionReview", "request": review_request}, ssl=False) as answer,
    ):
        warnings: list[str] = (await answer.json())["response"]["warnings"]
        return warnings


async def _is(site: Site, workflow: str, state: str) -> bool:
    return await site.state(workflow) == state


async def test_server_runs_a_workflow_with_its_role_and_needs_every_rule(site: Site) -> None:
    controller, gate = await site.gate("tinkedge-controller"), await site.gate("tinkedge-server")
    alone = ["--disable", "webhooks", "--no-leader-elect"]
    preparing = site.start("controller", "--kubeconfig", controller.kubeconfig, *alone)
    port = str(free_port())
    alone = ["--agent-auth", "none", "--grpc-port", port]
    server = site.start("server", "--kubeconfig", gate.kubeconfig, *LOOPBACK, *alone)
    await site.ready(server, preparing)
    faster: list[Wish] = []

    async def interfere(wish: Wish) -> None:
        """Change the Workflow before the server stores the agent's first report, so that the server has to retry."""
        if wish.verb == "patch" and not faster and await _is(site, wish.name, "Scheduled"):
            faster.append(wish)
            await site.client.patch(WORKFLOW, wish.name, WORK, {"metadata": {"annotations": {"somebody": "else"}}})

    gate.before = interfere
    await site.references()
    words = ["--agent-id", MAC, "--server", f"127.0.0.1:{port}", "--runtime", "process"]
    agent = site.start("agent", *words, "--state-dir", site.directory / "agent")
    await site.workflow("run")
    await site.until(lambda: _is(site, "run", "Succeeded"), server, agent)
    assert faster
    await asyncio.to_thread(agent.end)

    async def is_kept() -> bool:
        annotations = (await site.client.get(HARDWARE, "machine", WORK))["metadata"].get("annotations", {})
        return AGENT_ATTRIBUTES_ANNOTATION in annotations

    # What has changed between two inventories is an Event. The agent is admitted without credentials here.
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for serial in (b"S1", b"S2"):
            found = b'{"product": {"serialNumber": "%s"}}' % serial
            await InventoryServiceStub(channel).ReportInventory(
                inventory_pb2.ReportInventoryRequest(agent_id=MAC, attributes=found), timeout=PATIENCE_SECONDS
            )
            await site.until(lambda serial=serial: site.has_inventory("machine", serial.decode()), server)
    await site.until(lambda: site.has_event("machine", "SerialChanged"), server)

    # tink-agent reports its machine's attributes with each poll. To store them, the server needs one more role.
    gate.allow(grants("tinkedge-server", ROLES_FOR_ATTRIBUTES))
    cpu = older_pb2.AgentAttributes.CPU(total_cores=8)
    poll = older_pb2.ActionRequest(agent_id=MAC, agent_attributes=older_pb2.AgentAttributes(cpu=cpu))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/proto.WorkflowService/GetAction")(poll.SerializeToString())
        await site.until(is_kept, server)
        call.cancel()
    check(gate, server)


async def start_edge(site: Site, gate: Gate) -> tuple[Process, Callable[[str], Any]]:
    """Start an edge; return it and a function that returns status and body of a machine's request."""
    port = free_port()
    words = ["--disable", "dhcp", "--disable", "tftp", "--http-port", str(port), "--admin-port", str(free_port())]
    data = site.directory / "edge"
    edge = site.start("edge", "--kubeconfig", gate.kubeconfig, *LOOPBACK, *words, "--data-dir", data)
    await site.ready(edge)

    async def get(path: str) -> tuple[int, str]:
        machine = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        url = f"http://127.0.0.1:{port}{path}"
        async with aiohttp.ClientSession(connector=machine) as session, session.get(url) as answer:
            return answer.status, await answer.text()

    return edge, get


async def test_edge_serves_with_its_role_and_needs_every_rule(site: Site) -> None:
    await site.references()
    message = f"127.0.0.2 is used by another host: {MAC} declined it; it is not offered until 2024-01-01T00:00:00Z"
    condition = {"type": "AddressConflict", "status": "True", "reason": "DeclinedByClient", "message": message}
    stamped = {**condition, "lastTransitionTime": "2024-01-01T00:00:00Z"}
    await site.client.patch(HARDWARE, "machine", WORK, {"status": {"conditions": [stamped]}}, subresource="status")
    gate = await site.gate("tinkedge-edge")
    edge, get = await start_edge(site, gate)

    async def ended() -> bool:
        conditions = (await site.client.get(HARDWARE, "machine", WORK))["status"]["conditions"]
        return bool(conditions[0]["status"] == "False")

    await site.until(ended, edge)
    # There is no OSIE: an Event reports why the machine does not boot.
    await get(f"/ipxe/script/{MAC}/auto.ipxe")
    await site.until(lambda: site.has_event("machine"), edge)
    check(gate, edge)


async def test_edge_registers_with_the_peers_role(site: Site) -> None:
    granted = grants("tinkedge-edge", ROLES_FOR_PEERS)
    gate = await site.gate("tinkedge-edge")
    gate.allow(granted)
    async with await KubeClient.connect(gate.kubeconfig) as client:
        leases = EdgeLeases(
            client, namespace=HOME, group="rack", identity="one", own=lambda: ["127.0.0.1:7080"],
            found=lambda _: None, pod=Pod(POD, "00000000-0000-0000-0000-000000000000"),
        )  # fmt: skip
        running = asyncio.create_task(leases.run())
        await site.until(lambda: any((wish.verb, wish.resource) == ("list", "leases") for wish in gate.wishes))
        assert addresses(await site.client.get(LEASE, POD, HOME)) == {"127.0.0.1:7080"}
        running.cancel()
        await asyncio.wait([running])
    assert addresses(await site.client.get(LEASE, POD, HOME)) == set()
    assert gate.refused == []
    # Apply needs `create` for an absent object, but only a real API server checks it.
    assert {grant.verb for grant in gate.unused() if grant in granted} <= {"create"}


async def test_server_that_runs_apart_finds_edges_with_the_role_for_that(site: Site) -> None:
    granted = grants("tinkedge-server", ROLES_FOR_PEERS)
    assert [grant.verb for grant in granted] == ["list"]
    gate = await site.gate("tinkedge-server")
    gate.allow(granted)
    key = site.directory / "edges.key"
    key.write_text("k" * 64 + "\n")
    key.chmod(0o600)
    words = ["--grpc-port", str(free_port()), "--agent-auth", "none", "--peer-group", "rack", "--lease-namespace", HOME]
    server = site.start("server", "--kubeconfig", gate.kubeconfig, *LOOPBACK, *words, "--reports-key", key)
    await site.ready(server)

    async def looked() -> bool:
        return not [grant for grant in gate.unused() if grant in granted]

    await site.until(looked, server)
    assert gate.refused == []


async def test_edge_reads_a_machines_secret_with_the_secrets_role_and_names_an_absent_role(
    site: Site,
) -> None:
    body = {"data": {"userData": base64.b64encode(b"#cloud-config\n").decode()}}
    await site.client.create(SECRET, {"metadata": {"name": USERDATA, "namespace": WORK}, **body})
    await site.references()
    refer = {"metadata": {"annotations": {"tinkerbell.org/userdata-secret": USERDATA}}}
    await site.client.patch(HARDWARE, "machine", WORK, refer)
    gate = await site.gate("tinkedge-edge")
    edge, get = await start_edge(site, gate)

    async def served_it() -> bool:
        return bool(await get("/latest/user-data") == (200, "#cloud-config\n"))

    status, user_data = await get("/latest/user-data")
    assert status == 503
    assert f"Secret {WORK}/{USERDATA}" in user_data
    assert "deploy/rbac-secrets.yaml" in user_data
    await site.until(lambda: "deploy/rbac-secrets.yaml" in edge.err, edge)
    needed = {(wish.verb, wish.resource, wish.namespace, wish.name) for wish in gate.refused}
    assert needed == {("get", "secrets", WORK, USERDATA)}

    granted = grants("tinkedge-edge", ROLES_FOR_SECRETS, WORK)
    gate.allow(granted)
    await site.until(served_it, edge)
    assert [grant for grant in gate.unused() if grant in granted] == []


async def test_edge_admits_a_listed_machine_with_the_role_for_that_and_needs_every_rule(site: Site) -> None:
    granted = grants("tinkedge-edge", ROLES_FOR_ADMISSION)
    about = {"name": "rack", "namespace": WORK, "labels": {EXPECTED_MACHINES_LABEL: "true"}}
    await site.client.create(CONFIG_MAP, {"metadata": about, "data": {"rack.csv": f"name,mac\nm1,{MAC}\n"}})
    # A machine that no list names has the only address of the range. It gives way to the listed one.
    other = "52:54:00:00:77:99"
    silent = {"name": discovered_name(other), "namespace": WORK, "labels": {AUTO_DISCOVERED_LABEL: "true"}}
    spec = {"networkInterfaces": {other: {"dhcp": {"ip": "172.31.77.100", "netmask": "255.255.255.0"}}}}
    await site.client.create(
        HARDWARE, {"apiVersion": API_VERSION, "kind": HARDWARE.kind, "metadata": silent, "spec": spec}
    )
    with Namespaces(site.directory) as rack:
        rack.network("rack0", {"machine": MAC})
        gate = await site.gate("tinkedge-edge", rack.namespaces[IN_EDGE])
        gate.allow(granted)
        words = ["--interface", f"rack0={ADDRESS}", "--disable", "tftp", "--data-dir", site.directory / "edge"]
        words += ["--discover", f"name=rack,range=172.31.77.100-172.31.77.100/24,osie={WORK}/osie,only=listed"]
        options = ["edge", "--kubeconfig", gate.kubeconfig, *words]
        edge = site.start(*options, namespace=rack.namespaces[IN_EDGE])
        await site.ready(edge)
        client = ["busybox", "udhcpc", "-i", "eth0", "-f", "-n", "-q", "-s", "/bin/true", "-t", "60", "-T", "2"]
        machine = rack.start("machine", *client, "-V", "PXEClient:Arch:00000:UNDI:002001", "-x", "0x5d:0000")
        await site.until(lambda: machine.popen.poll() is not None, edge, machine)
        assert "lease of 172.31.77.100" in machine.err, machine.err
    await site.client.get(HARDWARE, discovered_name(MAC), WORK)
    assert [grant for grant in gate.unused() if grant in granted] == []
    assert gate.refused == []


async def test_controller_controls_bmcs_with_the_role_for_that_and_needs_every_rule(site: Site) -> None:
    granted = grants("tinkedge-controller", ROLES_FOR_BMC)
    gate = await site.gate("tinkedge-controller")
    gate.allow(granted)
    about = {"name": "bmc", "namespace": WORK}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in ACCOUNT.items()}
    await site.client.create(SECRET, {"metadata": about, "data": data})
    spec = {"bmcRef": {"name": "bmc"}, "networkInterfaces": {MAC: {"disableNetboot": True}}}
    await site.create(HARDWARE, "machine", spec)
    await site.create(TEMPLATE, "one", {"actions": [{"name": "a", "image": "i"}]})

    options: list[str | Path] = ["controller", "--bmc", "--kubeconfig", gate.kubeconfig, "--lease-namespace", HOME]
    options += ["--disable", "webhooks", "--no-leader-elect", "--metrics-address", "none"]
    control = site.start(*options)
    await site.ready(control)
    tasks = [{"powerAction": "on"}]

    async def interfere(wish: Wish) -> None:
        """Create a Task of the name that the controller is about to create."""
        if (wish.verb, wish.resource) == ("create", "tasks") and await site.has_job("lost"):
            spec = (await site.client.get(TASK, "on-task-0", WORK))["spec"]
            about = {"name": "lost-task-0", "namespace": WORK}
            await site.client.create(
                TASK, {"apiVersion": TASK.api_version, "kind": TASK.kind, "metadata": about, "spec": spec}
            )

    async def has_inventory() -> bool:
        status = (await site.client.get(HARDWARE, "machine", WORK)).get("status", {})
        return "outOfBand" in status.get("inventory", {})

    async with serve(FakeBmc()) as bmc:
        connection = {"host": "127.0.0.1", "insecureTLS": False, "authSecretRef": about}
        connection |= {"certificateFingerprint": bmc.certificate.fingerprint}
        connection |= {"providerOptions": {"redfish": {"port": bmc.port}}}
        await create_bmc(site, MACHINE, "bmc", {"connection": connection}, REFRESH_INVENTORY_ANNOTATION, "true")
        await create_bmc(site, JOB, "on", {"machineRef": about, "tasks": tasks}, JOB_TTL_ANNOTATION, "3600")
        await site.until(lambda: site.has_event("on", "TasksCompleted"), control)
        assert bmc.bmc.resets == ["On"]
        await site.until(has_inventory, control)
        gate.before = interfere
        await create_bmc(site, JOB, "lost", {"machineRef": about, "tasks": tasks}, JOB_TTL_ANNOTATION, "0")
        await site.until(lambda: site.has_event("lost", "TaskExists"), control)
        absent = {"machineRef": {"name": "absent", "namespace": WORK}, "tasks": tasks}
        await create_bmc(site, JOB, "early", absent, JOB_TTL_ANNOTATION, "0")
        await site.until(lambda: site.has_event("early", "MachineNotFound"), control)

        async def is_deleted() -> bool:
            return not await site.has_job("lost")

        await site.until(is_deleted, control)

        async def may_netboot() -> bool:
            found = (await site.client.get(HARDWARE, "machine", WORK))["spec"]["networkInterfaces"][MAC]
            return not found.get("disableNetboot")

        await site.workflow("boots", bootOptions={"toggleAllowNetboot": True, "bootMode": "netboot"})
        await site.until(may_netboot, control)
        await site.until(lambda: bmc.bmc.boots[-1:] == ["Pxe"], control)
        await site.client.delete(WORKFLOW, "boots", WORK)
        await site.until(lambda: site.is_gone("boots"), control)
        assert not await may_netboot()

    other = site.start(*options)
    await site.until(lambda: "e74dec1a.bmc.tinkerbell.org: tinkedge_" in other.err, other)
    for process in (control, other):
        assert await asyncio.to_thread(process.terminate) == 0
        assert "Traceback" not in process.err, process.err
    assert gate.refused == []
    assert [(grant.verb, grant.resource) for grant in gate.unused() if grant in granted] == []


async def test_controller_approves_discovered_machines_with_the_role_for_that_and_needs_every_rule(site: Site) -> None:
    granted = grants("tinkedge-controller", ROLES_FOR_DISCOVERY)
    gate = await site.gate("tinkedge-controller")
    gate.allow(granted)
    about = {"name": "rack", "namespace": WORK, "labels": {EXPECTED_MACHINES_LABEL: "true"}}
    text = "name,serial,ip,bmc_address,bmc_secret\nm1,ABC1234,192.0.2.5/24,192.0.2.105,bmc\n"
    await site.client.create(CONFIG_MAP, {"metadata": about, "data": {"rack.csv": text}})
    metadata = {"labels": {AUTO_DISCOVERED_LABEL: "true"}, "finalizers": [DISCOVERY_FINALIZER]}
    name = discovered_name(MAC)
    await site.client.create(HARDWARE, hardware(name, MAC, "192.0.2.200", namespace=WORK, metadata=metadata))
    facts = {"inventory": {"inBand": {"product": {"serialNumber": "ABC1234"}}}}
    await site.client.patch(HARDWARE, name, WORK, {"status": facts}, subresource="status")
    taken: list[str] = []

    async def interfere(wish: Wish) -> None:
        """Create a Hardware of the name that the controller is about to create."""
        if (wish.verb, wish.resource) == ("create", "hardware") and not taken:
            taken.append("m1")
            await site.client.create(HARDWARE, hardware("m1", "52:54:00:00:00:09", "192.0.2.6", namespace=WORK))

    gate.before = interfere
    options: list[str | Path] = ["controller", "--discovery", "--kubeconfig", gate.kubeconfig]
    options += ["--lease-namespace", HOME, "--disable", "webhooks", "--metrics-address", "none"]
    control = site.start(*options)
    await site.ready(control)
    await site.until(lambda: site.has_event(name, "NotApproved"), control)
    await site.client.delete(HARDWARE, "m1", WORK)

    async def is_approved() -> bool:
        return [each["metadata"]["name"] for each in (await site.client.list(HARDWARE))["items"]] == ["m1"]

    await site.until(is_approved, control)
    await site.client.get(MACHINE, "m1", WORK)

    async def is_judged() -> bool:
        status = (await site.client.get(HARDWARE, "m1", WORK)).get("status", {})
        return "Matches" in [each["reason"] for each in status.get("conditions", [])]

    await site.until(is_judged, control)
    other = site.start(*options)
    await site.until(lambda: [grant for grant in gate.unused() if grant in granted] == [], control, other)
    for process in (control, other):
        assert await asyncio.to_thread(process.terminate) == 0
        assert "Traceback" not in process.err, process.err
    assert gate.refused == []


async def create_bmc(site: Site, resource: ResourceType, name: str, spec: Raw, annotation: str, value: str) -> None:
    metadata = {"name": name, "namespace": WORK, "annotations": {annotation: value}}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec}
    await site.client.create(resource, body)


def test_roles_are_bound_to_their_service_accounts() -> None:
    objects = list(yaml.load_all(ROLES.read_text(), Loader=yaml.CSafeLoader))
    accounts = {
        (obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in objects if obj["kind"] == "ServiceAccount"
    }
    bound = {(subject["namespace"], subject["name"]) for obj in objects for subject in obj.get("subjects", [])}
    assert accounts == bound
    for obj in objects:
        for rule in obj.get("rules", []):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
