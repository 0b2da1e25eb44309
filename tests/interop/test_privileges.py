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
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import yaml

from edge.peers import EdgeLeases
from edge.peers.leases import addresses
from proto import older_pb2
from tests.interop.privileges import (
    AUTHORITY,
    CLUSTER,
    HOME,
    KINDS,
    MAC,
    POD,
    REGISTERED,
    ROLES,
    ROLES_FOR_ATTRIBUTES,
    ROLES_FOR_PEERS,
    ROLES_FOR_SECRETS,
    TAKEOVER,
    USERDATA,
    WEBHOOKS,
    WORK,
    Site,
    Wish,
    check,
    grants,
    served,
)
from tests.ports import free_port
from tink.api.annotations import AGENT_ATTRIBUTES_ANNOTATION
from tink.api.crds import generate
from tink.api.v1alpha2 import FINALIZER
from tink.apiserver import ApiServer
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, EVENT, HARDWARE, LEASE, SECRET, WORKFLOW
from tink.kube.runtime import Pod
from tink.webhooks.certificates import AUTHORITY_LIFE, renewed
from tink.webhooks.registration import CONFIGURATION


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


async def test_two_controllers_elect_take_over_and_review_with_their_role_and_need_all_of_it(site: Site) -> None:
    made = await site.apply(WEBHOOKS)
    (registered,) = [each for each in made if each["kind"] == "ValidatingWebhookConfiguration"]
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
    # The review of a Workflow asks whether what it names is not there, or only not known yet.
    warnings = await _review(port, {"hardwareRef": {"name": "late"}, "templateRef": {"name": "later"}})
    assert len(warnings) == 2, warnings
    await site.references()
    await site.workflow("first")
    await site.until(lambda: _is(site, "first", "Pending"), reviewing)
    await site.client.delete(WORKFLOW, "first", WORK)
    await site.until(lambda: site.gone(WORKFLOW, "first"), reviewing)
    await site.until(lambda: _told(site, "first", "Prepared"), reviewing)

    references = {"hardwareRef": {"name": "machine"}, "templateRef": {"name": "one"}}
    await site.create(WORKFLOW, "brief", references | {"ttlSecondsAfterFinished": 0})
    await site.until(lambda: _is(site, "brief", "Pending"), reviewing)
    await site.client.patch(WORKFLOW, "brief", WORK, {"status": {"state": "Cancelling"}}, subresource="status")
    await site.until(lambda: site.gone(WORKFLOW, "brief"), reviewing)

    before = await site.holder()
    other = site.start(*options, "--webhook-port", str(free_port()))
    await site.ready(other)
    assert await site.holder() == before, "there are two"
    stopped = time.monotonic()
    if CLUSTER:
        reviewing.popen.kill()  # test_controllers does this with a shorter Lease
    else:
        assert await asyncio.to_thread(reviewing.terminate) == 0
    await site.until(lambda: _holds(site, before), other, within=TAKEOVER)
    print(f"takeover after {time.monotonic() - stopped:.1f} s")
    await site.workflow("second")
    await site.until(lambda: _is(site, "second", "Pending"), other)
    assert FINALIZER in (await site.client.get(WORKFLOW, "second", WORK))["metadata"]["finalizers"]
    assert await asyncio.to_thread(other.terminate) == 0
    assert ": given back" in other.err
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
    asked = {"uid": "1", "kind": kind, "name": "early", "namespace": WORK, "operation": "CREATE", "object": workflow}
    url = f"https://127.0.0.1:{port}/admission"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"kind": "AdmissionReview", "request": asked}, ssl=False) as answer,
    ):
        warnings: list[str] = (await answer.json())["response"]["warnings"]
        return warnings


async def _is(site: Site, workflow: str, state: str) -> bool:
    return await site.state(workflow) == state


async def _told(site: Site, workflow: str, reason: str) -> bool:
    """Events come a moment after what they tell of, and outlive it."""
    events = (await site.client.list(EVENT, WORK))["items"]
    return any(one["involvedObject"]["name"] == workflow and one["reason"] == reason for one in events)


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

    # tink-agent reports its machine's attributes with each poll. To store them, the server needs one more role.
    if CLUSTER:
        await site.apply(ROLES_FOR_ATTRIBUTES)
    gate.allow(grants("tinkedge-server", ROLES_FOR_ATTRIBUTES))
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
    uid = "00000000-0000-0000-0000-000000000000"
    if CLUSTER:
        await site.apply(ROLES_FOR_PEERS)
        container = {"name": "edge", "image": "tinkedge"}
        spec = {"serviceAccountName": "tinkedge-edge", "containers": [container]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": HOME}, "spec": spec}
        uid = (await site.client.create(KINDS["Pod"], body))["metadata"]["uid"]
    gate = await site.gate("tinkedge-edge", pod=POD)
    gate.allow(granted)
    async with await KubeClient.connect(gate.kubeconfig) as client:
        leases = EdgeLeases(
            client,
            namespace=HOME,
            group="rack",
            identity="one",
            own=lambda: ["127.0.0.1:7080"],
            found=lambda _: None,
            pod=Pod(POD, uid),
        )
        running = asyncio.create_task(leases.run())
        await site.until(lambda: any((wish.verb, wish.resource) == ("list", "leases") for wish in gate.wishes))
        assert addresses(await site.client.get(LEASE, POD, HOME)) == {"127.0.0.1:7080"}
        running.cancel()
        await asyncio.wait([running])
    assert addresses(await site.client.get(LEASE, POD, HOME)) == set()
    assert gate.refused == []
    # To apply what is not there takes `create`, too, which only a real API server asks for.
    assert {grant.verb for grant in gate.unused() if grant in granted} <= {"create"}
    await site.client.delete(LEASE, POD, HOME)
    if CLUSTER:
        await site.client.delete(KINDS["Pod"], POD, HOME)


async def test_server_that_runs_apart_finds_edges_with_the_role_for_that(site: Site) -> None:
    granted = grants("tinkedge-server", ROLES_FOR_PEERS)
    assert [grant.verb for grant in granted] == ["list"]
    if CLUSTER:
        await site.apply(ROLES_FOR_PEERS)
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
    if CLUSTER:
        await site.apply(ROLES_FOR_SECRETS, WORK)
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
