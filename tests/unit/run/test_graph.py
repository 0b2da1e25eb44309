"""The composition root: the order in which parts start and stop, a start while the API is away, and the metrics."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edge.checkpoint import checkpoint
from edge.journey.events import Outcome, Step
from edge.neighbour.host import Network
from edge.run import outage, readiness, serving
from edge.run.errors import StackError
from edge.run.graph import Stack
from edge.run.reviews import Reviews
from edge.settings.model import EdgeSettings, Service, StackSettings
from tests.ports import free_port
from tests.support import objects
from tests.support.informer import InMemoryInformer
from tests.support.virtual_time import elapse, turns
from tests.waiting import until
from tink.api.crds import generate
from tink.controller import WorkflowController
from tink.discovery.admission import read_rule
from tink.kube.cache.informer import Reflector
from tink.kube.client import KubeClient, KubeConfigError
from tink.kube.manifests import apply_object
from tink.kube.resources import CONFIG_MAP, CRD, HARDWARE, JOB, MACHINE, OSIE, SECRET, TASK, TEMPLATE, WORKFLOW
from tink.kubeapi import ApiServer
from tink.server import ServerSettings
from tink.server import server as grpc_server

pytestmark = pytest.mark.long

Make = Callable[..., Stack]


def mac(number: int) -> str:
    return f"52:54:00:00:00:{number:02x}"


def hardware(number: int, ip: str = "") -> dict[str, Any]:
    ip, osie = ip or f"127.0.1.{number}", {"name": "osie"}
    return objects.hardware(f"m{number}", mac(number), ip, dhcp={"netmask": "255.0.0.0"}, osie=osie)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Stacks on loopback with ports of their own, one boot program, and a data directory that stays."""
    made: list[Stack] = []
    (tmp_path / "ipxe").mkdir()
    (tmp_path / "ipxe" / "snponly.efi").write_bytes(b"MZ")

    def make(*services: Service, **settings: Any) -> Stack:
        ports = {name: free_port() for name in ("http_port", "admin_port", "grpc_port", "api_port")}
        given = {"ipxe_dir": tmp_path / "ipxe", "data_dir": tmp_path / "data", **ports, **settings}
        edge = {each.name: given.pop(each.name) for each in fields(EdgeSettings) if each.name in given}
        made.append(Stack(StackSettings(frozenset(services), edge=EdgeSettings(**edge), **given)))
        return made[-1]

    yield make
    for each in made:
        await each.stop()


class Api:
    """A cluster's API that goes, and comes back at the same place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._server: ApiServer | None = None
        self.kubeconfig = directory / "kubeconfig"

    async def come(self) -> None:
        self._server = ApiServer(self._directory, port=self._port)
        await self._server.start()

    async def go(self) -> None:
        if self._server is not None:
            await self._server.stop()
        self._server = None

    @property
    def is_away(self) -> bool:
        return self._server is None

    async def client(self) -> KubeClient:
        return await KubeClient.connect(self.kubeconfig)


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Api]:
    """An API without our definitions."""
    api = Api(tmp_path / "api")
    await api.come()
    yield api
    await api.go()


@pytest.fixture
async def api(bare: Api) -> Api:
    """An API with two machines, their OSIE, and a Workflow for one of them."""
    async with await bare.client() as client:
        for definition in generate():
            await apply_object(client, CRD, definition, "test")
        await client.create(HARDWARE, hardware(1))
        await client.create(HARDWARE, hardware(2))
        await client.create(OSIE, objects.osie("osie"))
        await client.create(WORKFLOW, objects.workflow())
    return bare


# --- Start and stop ---------------------------------------------------------------------------------------------------


async def test_machines_are_served_only_after_the_inventory_is_filled(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = tmp_path / "hardware.json"
    manifests.write_text(json.dumps(hardware(1)))
    first = make(Service.APISERVER, manifests=manifests)
    await first.start()
    await first.stop()
    known: list[int] = []
    original = serving.machine_runner

    def listening(app: Any) -> Any:
        known.append(len(again.inventory))
        return original(app)

    monkeypatch.setattr(serving, "machine_runner", listening)
    again = make(Service.APISERVER, Service.HTTP)
    await again.start()
    assert known == [1], "a machine that boots while the edge restarts would be told that it is not registered"


async def test_embedded_api_serves_machines_and_jobs_of_bmcs_from_its_start(make: Make, tmp_path: Path) -> None:
    manifests = tmp_path / "job.json"
    spec = {"machineRef": {"name": "m", "namespace": "default"}, "tasks": [{"powerAction": "off"}]}
    manifests.write_text(
        json.dumps({"apiVersion": JOB.api_version, "kind": JOB.kind, "metadata": {"name": "off"}, "spec": spec})
    )
    stack = make(Service.APISERVER, manifests=manifests)
    await stack.start()
    async with await KubeClient.connect(tmp_path / "data" / "kubeconfig") as client:
        assert (await client.get(JOB, "off", "default"))["spec"] == spec
        for resource in (MACHINE, TASK):
            assert (await client.list(resource))["items"] == []


async def test_machine_of_a_labelled_list_is_approved_and_other_config_maps_are_no_lists(
    make: Make, tmp_path: Path
) -> None:
    stack = make(Service.APISERVER, Service.DISCOVERY)
    await stack.start()
    name = "discovery-52-54-00-00-00-01"
    async with await KubeClient.connect(tmp_path / "data" / "kubeconfig") as client:
        for listed, labels in (("m1", {"tinkerbell.org/expected-machines": "true"}), ("m2", {})):
            metadata = {"name": listed, "namespace": "default", "labels": labels}
            text = f"name,serial,ip\n{listed},ABC1234,192.0.2.2/24\n"
            await client.create(CONFIG_MAP, {"metadata": metadata, "data": {"list.csv": text}})
        metadata = {
            "labels": {"tinkerbell.org/auto-discovered": "true"},
            "finalizers": ["tinkerbell.org/discovery"],
        }
        discovered = objects.hardware(name, mac(1), "127.0.1.1", metadata=metadata)
        await client.create(HARDWARE, discovered)
        facts = {"inventory": {"inBand": {"product": {"serialNumber": "ABC1234"}}}}
        await client.patch(HARDWARE, name, "default", {"status": facts}, subresource="status")

        async def names() -> list[str]:
            return [each["metadata"]["name"] for each in (await client.list(HARDWARE))["items"]]

        async def is_approved() -> bool:
            return await names() == ["m1"]

        await until(is_approved)
    assert value(stack, "tinkedge_discovery_approved_total", by="list") == 1
    assert value(stack, "tinkedge_discovery_expected_machines") == 1


async def test_bad_manifest_keeps_no_machine_from_being_served_and_is_named_by_readyz(
    make: Make, tmp_path: Path
) -> None:
    directory = tmp_path / "objects"
    directory.mkdir()
    (directory / "a.json").write_text('{"half": ')
    (directory / "b.json").write_text(json.dumps(hardware(1)))
    stack = make(Service.APISERVER, Service.HTTP, manifests=directory)
    await stack.start()
    assert len(stack.inventory) == 1
    assert f"1 of --manifests not applied, and tried again: {directory}/a.json" in stack.readiness.text
    assert not stack.readiness.problem
    (directory / "a.json").unlink()
    await until(lambda: "a.json" not in stack.readiness.text)


async def test_missing_kubeconfig_and_missing_crds_are_named(
    make: Make, bare: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeConfigError, match="give --kubeconfig FILE"):
        await make(Service.CONTROLLER).start()
    monkeypatch.setattr(outage, "SYNC_SECONDS", 0.05)
    with pytest.raises(StackError, match=r"has not listed \w+\.tinkerbell\.org .*tinkedge crds"):
        await make(Service.CONTROLLER, kubeconfig=bare.kubeconfig).start()


async def test_wrong_token_is_the_reason_on_readyz_and_of_the_failed_start(
    make: Make, bare: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, `/readyz` answered "starting" for half a minute, and again after each restart."""
    monkeypatch.setattr(outage, "SYNC_SECONDS", 600.0)
    kubeconfig = tmp_path / "wrong.kubeconfig"
    token = (tmp_path / "api" / "token").read_text().strip()
    kubeconfig.write_text(bare.kubeconfig.read_text().replace(token, "tinkedge.wrong"))
    one = make(Service.CONTROLLER, kubeconfig=kubeconfig)
    starting = asyncio.create_task(one.start())
    await until(lambda: "Unauthorized" in one.not_ready)
    assert one.not_ready.startswith("starting: the API does not let tinkedge read ")
    monkeypatch.setattr(outage, "SYNC_SECONDS", 0.0)  # the time is over
    with pytest.raises(StackError, match=r"Unauthorized.*: give a --kubeconfig .*that may"):
        await starting


async def test_part_that_ends_by_itself_ends_the_stack_and_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: WorkflowController) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(WorkflowController, "run", broken)
    stack = make(Service.APISERVER, Service.CONTROLLER)
    await stack.start()
    with pytest.raises(StackError, match="controller ended: RuntimeError"):
        await stack.run(asyncio.Event())


@pytest.mark.parametrize(
    ("service", "port", "logged"),
    [
        (Service.APISERVER, "api_port", "choose another port with --api-port"),
        (Service.HTTP, "http_port", "choose another port with --http-port"),
        (Service.ADMIN, "admin_port", "choose another port with --admin-port"),
        (Service.SERVER, "grpc_port", "choose another port with --grpc-port"),
    ],
)
async def test_taken_port_is_named_with_what_to_do_and_nothing_is_left_running(
    make: Make, service: Service, port: str, logged: str
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        stack = make(Service.APISERVER, service, **{port: number})
        with pytest.raises(Exception, match=rf"127\.0\.0\.1:{number}.*{logged}"):
            await stack.start()
    # Everything that had started is down again: the same data directory can be used at once.
    again = make(Service.APISERVER, service)
    await again.start()


async def test_address_of_another_host_is_waited_for_and_named(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    stack = make(Service.APISERVER, Service.HTTP, networks=(Network("lo", "192.0.2.1"), Network("absent0")))
    await stack.start()
    why = stack.not_ready
    assert why.startswith("192.0.2.1 is no address of this host (lo has 127.0.0.1); there is no interface absent0 (")
    assert "192.0.2.1 is no address of this host (lo has 127.0.0.1): machines on lo are not served" in caplog.messages


async def test_operator_who_does_not_read_the_stream_does_not_delay_the_stop(make: Make) -> None:
    port = free_port()
    stack = make(Service.APISERVER, Service.ADMIN, admin_port=port)
    await stack.start()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.setblocking(False)
        reader.sendall(b"GET /api/v1/events?since=now HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.get_running_loop().sock_recv(reader, 1)
        for _ in range(20):
            for _ in range(100):
                stack.journey.record(mac(1), Step.DHCP, Outcome.INFO, "x" * 400, fill="x" * 4000)
            await turns(20)
        await stack.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_stop_while_starting_takes_down_what_had_started(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make(Service.APISERVER, Service.CONTROLLER, Service.HTTP)
    reached = asyncio.Event()

    async def forever(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Stack, "_follow_api", forever)
        starting = asyncio.create_task(stack.start())
        await reached.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    await make(Service.APISERVER).start()


# --- A start while the API of a cluster is away -----------------------------------------------------------------------


@pytest.fixture
def beside(make: Make, api: Api, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Stacks beside that API. One that is away is waited for no longer, and one that is there as long as it takes."""
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.1)
    monkeypatch.setattr(grpc_server, "AWAY_SECONDS", 0.1)

    def beside(*services: Service, **settings: Any) -> Stack:
        monkeypatch.setattr(outage, "SHORT_SECONDS", 0.0 if api.is_away else 600.0)
        monkeypatch.setattr(outage, "SYNC_SECONDS", 0.05 if api.is_away else 600.0)
        return make(*services, kubeconfig=api.kubeconfig, **settings)

    return beside


async def known(beside: Make, **settings: Any) -> None:
    """An edge has run and ended well."""
    first = beside(Service.HTTP, Service.ADMIN, **settings)
    await first.start()
    await until(lambda: len(first.inventory) == 2)
    await first.stop()


def macs(one: Stack) -> list[str]:
    return sorted(machine.mac for machine in one.inventory.machines())


async def fetch(one: Stack, path: str, machine: str = "127.0.0.1") -> tuple[int, str]:
    url = f"http://127.0.0.1:{one._settings.edge.http_port}{path}"
    connector = aiohttp.TCPConnector(local_addr=(machine, 0))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def reported(one: Stack, path: str) -> str:
    """Return the beginning of the operators' answer."""
    token = (one._settings.data_dir / "admin-token").read_text().strip()
    url = f"http://127.0.0.1:{one._settings.edge.admin_port}{path}"
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        found = b""
        while b"\n\n" not in found.removeprefix(b": journey\n\n") and (more := await answer.content.readany()):
            found += more
        return found.decode()


async def test_edge_serves_its_saved_state_reports_it_and_follows_the_api_when_it_is_back(
    beside: Make, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await known(beside)
    await api.go()
    one = beside(Service.HTTP, Service.ADMIN)
    await one.start()
    assert macs(one) == [mac(1), mac(2)]
    assert one._pending.has_pending("default", "m1")
    assert not one._pending.has_pending("default", "m2")
    assert one._informers[OSIE].get("default", "osie") is not None
    status, script = await fetch(one, f"/ipxe/script/{mac(1)}/auto.ipxe", "127.0.1.1")
    assert status == 200, script
    logged = "serving from what was known at 20"
    assert one.not_ready == ""
    assert one.readiness.text.startswith(f"ok: {logged}")
    await until(lambda: any(line.startswith(logged) for line in caplog.messages))
    assert (await reported(one, "/readyz")).startswith(f"ok: {logged}")
    assert logged in await reported(one, "/api/v1/events?since=now"), "also for who looks later"
    await api.come()
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
        await client.patch(HARDWARE, "m1", "default", {"spec": hardware(1, "127.0.1.99")["spec"]})
        await client.create(HARDWARE, hardware(3))
    await until(lambda: macs(one) == [mac(1), mac(3)])
    await until(lambda: one.inventory.by_ip("127.0.1.99"))
    assert one.inventory.by_ip("127.0.1.1") is None
    await until(lambda: one.readiness.text == "ok")
    await until(lambda: any("answers again" in line for line in caplog.messages))


async def test_restart_of_a_large_edge_serves_its_saved_state_until_the_api_has_listed(
    beside: Make, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for no list, and reads a machine when it asks."""
    monkeypatch.setattr(outage, "LARGE", 1)
    monkeypatch.setattr(checkpoint, "_MAX_AT_ONCE", 0)
    await known(beside)
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
        await client.create(HARDWARE, hardware(3))
    listing, asked = asyncio.Event(), Reflector.run

    async def late(reflector: Reflector) -> None:
        await listing.wait()
        await asked(reflector)

    monkeypatch.setattr(Reflector, "run", late)
    one = beside(Service.HTTP, Service.ADMIN)
    await one.start()
    informer = one._informers[HARDWARE]
    assert (len(informer), informer.has_synced) == (1, False), "m1 has a Workflow"
    assert (await fetch(one, f"/ipxe/script/{mac(1)}/auto.ipxe", "127.0.1.1"))[0] == 200
    # Nothing is wrong with the API.
    note = "some Hardware are still to be read: each is when its machine asks, lists lack it"
    assert one.readiness.text == f"ok: {note}"
    assert one.inventory.by_mac(mac(2)) is not None
    assert len(informer) == 2
    listing.set()
    await until(lambda: macs(one) == [mac(1), mac(3)], lambda: macs(one))
    await until(lambda: one.readiness.text == "ok", lambda: one.readiness.text)


async def test_old_or_small_saved_state_is_not_served_at_a_restart(
    beside: Make, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known(beside)
    async with await api.client() as client:
        await client.delete(HARDWARE, "m2", "default")
    small = beside(Service.HTTP)
    await small.start()
    assert len(small.inventory) == 1
    monkeypatch.setattr(outage, "LARGE", 1)
    await small.stop()
    async with await api.client() as client:
        await client.delete(HARDWARE, "m1", "default")
    monkeypatch.setattr(outage.Checkpoint, "age", outage.RECENT_SECONDS + 10)
    late = beside(Service.HTTP)
    await late.start()
    assert len(late.inventory) == 0


async def test_checkpoint_of_another_cluster_or_a_damaged_one_is_not_served(
    beside: Make, api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await known(beside)
    await api.go()
    other = Api(tmp_path / "other")
    await other.come()
    await other.go()
    kubeconfig, api.kubeconfig = api.kubeconfig, other.kubeconfig
    with pytest.raises(StackError, match="the API has not listed"):
        await beside(Service.HTTP).start()
    assert "checkpoint/objects.db is of another cluster: it is ignored, and replaced when" in caplog.text
    api.kubeconfig = kubeconfig
    (tmp_path / "data" / "checkpoint" / "objects.db").write_bytes(b"junk" * 1000)
    with pytest.raises(StackError, match="the API has not listed"):
        await beside(Service.HTTP).start()
    assert "checkpoint/objects.db is damaged" in caplog.text


async def test_edge_without_checkpoint_removes_its_saved_state(beside: Make, api: Api, tmp_path: Path) -> None:
    await known(beside)
    await known(beside, checkpoint=False)
    assert not (tmp_path / "data" / "checkpoint").exists()
    await api.go()
    with pytest.raises(StackError, match="the API has not listed"):
        await beside(Service.HTTP, checkpoint=False).start()


async def test_user_data_of_a_secret_is_served_without_the_api_if_allowed(beside: Make, api: Api) -> None:
    async with await api.client() as client:
        metadata = {"name": "s", "namespace": "default"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"userData": "aHVzaA=="}}
        await client.create(SECRET, secret)
        annotations = {"metadata": {"annotations": {"tinkerbell.org/userdata-secret": "s"}}}
        await client.patch(HARDWARE, "m1", "default", annotations | {"spec": hardware(1, "127.0.0.1")["spec"]})
    first = beside(Service.HTTP, checkpoint_secrets=True)
    await first.start()
    directory = first._settings.data_dir / "checkpoint" / "secrets"
    await until(lambda: directory.is_dir() and any(not path.name.startswith(".") for path in directory.iterdir()))
    await first.stop()
    await api.go()
    one = beside(Service.HTTP, checkpoint_secrets=True)
    await one.start()
    assert await fetch(one, "/latest/user-data") == (200, "hush")
    await one.stop()
    without = beside(Service.HTTP)
    await without.start()
    assert (await fetch(without, "/latest/user-data"))[0] == 503


@pytest.mark.parametrize("role", [Service.SERVER, Service.CONTROLLER])
async def test_controller_and_server_are_not_ready_without_the_api_and_do_not_end(
    role: Service, beside: Make, api: Api
) -> None:
    """A process that ends is started again more and more seldom, and would be late when the API is back."""
    await api.go()
    one = beside(role)
    await one.start()
    assert "the Kubernetes API has not" in one.not_ready
    assert one.starting == ""
    await api.come()
    await until(lambda: one.not_ready == "")
    await api.go()
    await until(lambda: one.not_ready.startswith("the Kubernetes API has not answered since 20"))
    assert value(one, "tinkedge_ready") == 0
    assert value(one, "tinkedge_informer_behind_seconds", resource="workflows") > 0
    await api.come()
    await until(lambda: one.not_ready == "")
    assert value(one, "tinkedge_informer_behind_seconds", resource="workflows") == 0


async def test_running_edge_serves_without_the_api_and_reports_since_when(
    beside: Make, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one = beside(Service.HTTP, Service.ADMIN)
    await one.start()
    with closing(one.journey.subscribe()) as reported:
        await api.go()
        assert (await anext(reported)).message.startswith("serving from what was known at 20")
        assert one.not_ready == ""
        assert one.readiness.text.startswith("ok: serving from what was known at 20")
        await api.come()
        assert "answers again" in (await anext(reported)).message
    assert one.readiness.text == "ok"


async def test_webhooks_and_manifests_start_when_the_api_is_back(
    beside: Make, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed = asyncio.Event()

    async def seen(*_: Any) -> None:
        reviewed.set()

    await known(beside)
    await api.go()
    monkeypatch.setattr(Reviews, "start", seen)
    one = beside(Service.HTTP)
    await one.start()
    assert not reviewed.is_set()
    await api.come()
    await reviewed.wait()
    await until(lambda: one.readiness.text == "ok")
    assert not one._tasks.failure, "what has done its work may end"


async def listed(informer: InMemoryInformer, *, alone: bool = True) -> bool:
    return await outage.follow_api({HARDWARE: informer}, tuple, None, alone=alone)


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("informer", "away", "logged"),
    [
        ({"is_unreachable": True, "failing_for": 4.0}, True, "has not listed hardware"),
        ({}, True, "has not listed hardware"),
        ({"failing_for": 4.0}, False, "Are the CRDs installed"),
        ({"failing_for": 4.0, "denied": "the API does not let tinkedge read"}, False, "give a --kubeconfig .* may"),
    ],
    ids=["refused", "swallowed", "404", "403"],
)
async def test_silent_api_is_away_and_one_that_refuses_is_not(
    informer: dict[str, Any], away: bool, logged: str
) -> None:
    silent = InMemoryInformer(HARDWARE, synced=False)
    for name, state in informer.items():
        setattr(silent, name, state)
    if away:
        assert await listed(silent) is False
    with pytest.raises(StackError, match=logged):
        await listed(silent, alone=not away)


@pytest.mark.looptime
async def test_api_that_is_slow_is_waited_for() -> None:
    slow = InMemoryInformer(HARDWARE, synced=False)
    waiting = asyncio.create_task(listed(slow))
    for number in range(20):
        slow.put(hardware(number))
        await elapse(outage.SHORT_SECONDS - 1)
    assert not waiting.done()
    slow.listed()
    assert await waiting is True


# --- Metrics and probes -----------------------------------------------------------------------------------------------

PAPER = (Path(__file__).resolve().parents[3] / "docs" / "operating.md").read_text()
_ROW = re.compile(r"^\| `([a-z_]+)` \| (gauge|counter|histogram) \| (.*?) \|", re.MULTILINE)
_OF_THE_PROCESS = ("process_", "python_")
_VALUES: dict[str, tuple[list[str], set[str]]] = {
    "controller_runtime_reconcile_total": (["controller", "result"], {"host", "host-safety"}),
    "tinkedge_artifact_failures_total": (["kind"], set()),
    "tinkedge_artifact_opens_total": (["source"], set()),
    "tinkedge_discovery_approved_total": (["by"], set()),
    "tinkedge_discovery_expired_total": (["reason"], set()),
    "tinkedge_open_guard": (["guard"], set()),
    "tinkedge_peer_events_total": (["direction"], set()),
    "tinkedge_peer_lookups_total": (["result"], set()),
    "tinkedge_peer_refused_total": (["reason"], set()),
    "tinkedge_provision_duration_seconds": (["outcome"], set()),
    "tinkedge_reviewed_writes_total": (["outcome"], {"refused", "busy", "failed"}),
    "tinkedge_syslog_lines_total": (["outcome"], set()),
    "tinkedge_traces_boots_total": (["result"], set()),
    "tinkedge_unreviewed_writes_total": (["reason"], {"failed", "late"}),
    "tinkedge_upstream_edge_lookups_total": (["result"], set()),
    "tinkedge_workflow_transitions_total": (["to"], set()),
    "tinkedge_workflows": (["state"], set()),
}
"""Labels with a fixed set of values, which the tables list, and the values that the stack of the test does not have."""

# Dashboards and alerts of others ask for these names: one that is renamed is a change for users.
NAMES = """
apiserver_current_inflight_requests apiserver_longrunning_requests apiserver_request_aborts_total
apiserver_request_duration_seconds apiserver_request_total
controller_runtime_active_workers controller_runtime_max_concurrent_reconciles controller_runtime_reconcile_errors_total
controller_runtime_reconcile_time_seconds controller_runtime_reconcile_total controller_runtime_webhook_latency_seconds
controller_runtime_webhook_requests_total
grpc_server_handled_total grpc_server_handling_seconds grpc_server_started_total leader_election_master_status
rest_client_request_duration_seconds rest_client_request_retries_total rest_client_requests_total
tinkedge_agents_connected tinkedge_agents_served tinkedge_apiserver_read_only tinkedge_apiserver_state_bytes
tinkedge_artifact_downloads_expected_bytes tinkedge_artifact_downloads_in_progress
tinkedge_artifact_downloads_received_bytes tinkedge_artifact_downloads_total tinkedge_artifact_evictions_total
tinkedge_artifact_failures_total tinkedge_artifact_fetched_bytes_total tinkedge_artifact_machines_waiting
tinkedge_artifact_opens_total tinkedge_artifact_peer_bytes_total tinkedge_artifact_peer_downloads_total
tinkedge_artifact_resumptions_total tinkedge_artifact_revalidations_total
tinkedge_artifact_stored_bytes tinkedge_artifact_stored_files
tinkedge_api_known_timestamp_seconds tinkedge_build_info tinkedge_certificate_expiration_timestamp_seconds
tinkedge_checkpoint_failing tinkedge_checkpoint_size_bytes tinkedge_datagrams_lost_total
tinkedge_informer_behind_seconds tinkedge_informer_objects tinkedge_informer_synced
tinkedge_journey_events_total tinkedge_journey_kept_bytes tinkedge_machines tinkedge_manifests_refused
tinkedge_network_carrier
tinkedge_boot_step_duration_seconds tinkedge_provision_duration_seconds tinkedge_traces_boots_total
tinkedge_peer_events_total tinkedge_peer_event_batch_failures_total
tinkedge_network_ready tinkedge_peer_living tinkedge_peer_lookups_total tinkedge_peer_refused_total
tinkedge_peer_served_bytes_total tinkedge_peer_served_total
tinkedge_upstream_edge_lookups_total tinkedge_upstream_edge_used
tinkedge_ready tinkedge_sent_bytes_total tinkedge_server_memory_limit_bytes tinkedge_server_resident_memory_bytes
tinkedge_server_restarts_total tinkedge_server_up tinkedge_syslog_lines_total
tinkedge_tinkerbell_conflict tinkedge_workflow_transitions_total tinkedge_workflows
tinkedge_bmc_connections tinkedge_bmc_contactable tinkedge_bmc_leads tinkedge_bmc_machines tinkedge_bmc_polls_total
tinkedge_bmc_boots_total tinkedge_bmc_refused_logins_total tinkedge_bmc_running_boots tinkedge_bmc_running_tasks
tinkedge_bmc_tasks_total tinkedge_bmc_waits_for_rufio
tinkedge_discovery_admitted_total tinkedge_discovery_errors_total tinkedge_discovery_free_addresses
tinkedge_discovery_not_admitted_total tinkedge_discovery_waiting tinkedge_discovery_displaced_total
tinkedge_discovery_approved_total tinkedge_discovery_as_expected tinkedge_discovery_expected_machines
tinkedge_discovery_expired_total tinkedge_discovery_hardware tinkedge_discovery_list_problems
workqueue_adds_total workqueue_depth workqueue_longest_running_processor_seconds workqueue_queue_duration_seconds
workqueue_retries_total workqueue_unfinished_work_seconds workqueue_work_duration_seconds
tinkedge_open_guard tinkedge_reviewed_writes_total tinkedge_unreviewed_writes_total
tinkedge_webhook_rejected_certificates_total
"""


def scraped(stack: Stack) -> dict[str, Any]:
    """The families by the names that series have; each once, as Prometheus demands."""
    families = list(text_string_to_metric_families(generate_latest(stack.metrics).decode()))
    names = [family.name + ("_total" if family.type == "counter" else "") for family in families]
    assert len(set(names)) == len(names)
    return dict(zip(names, families, strict=True))


def value(stack: Stack, name: str, /, **labels: str) -> Any:
    return stack.metrics.get_sample_value(name, labels)


@asynccontextmanager
async def with_a_workflow(stack: Stack) -> AsyncIterator[KubeClient]:
    """A client of the stack's own API, which has a Workflow that is prepared."""
    async with await KubeClient.connect(stack._settings.data_dir / "kubeconfig") as client:
        work = {HARDWARE: hardware(1), TEMPLATE: objects.template(), WORKFLOW: objects.workflow()}
        for resource, obj in work.items():
            await apply_object(client, resource, obj, "test")
        await until(lambda: value(stack, "tinkedge_workflows", state="Pending") == 1)
        yield client


async def test_every_metric_keeps_its_name_and_is_documented(make: Make) -> None:
    services = set(Service) - {Service.DHCP, Service.TFTP}
    server = ServerSettings(memory=400_000_000)
    edge = {
        "peers": ("127.0.0.99:7080",),
        "upstream_edge": "127.0.0.98:7080",
        "otlp_endpoint": "http://127.0.0.1:9",
        "discover": (read_rule("range=192.0.2.10-192.0.2.20/24,osie=default/hook"),),
    }
    stack = make(*services, leader_elect=True, server=server, server_apart=True, **edge)
    await stack.start()
    async with with_a_workflow(stack):
        await until(lambda: "tinkedge_agents_connected" in scraped(stack))
    found = {name: family for name, family in scraped(stack).items() if not name.startswith(_OF_THE_PROCESS)}
    assert set(found) == set(NAMES.split())
    rows = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in _ROW.findall(PAPER)}
    assert set(rows) == set(found)
    assert {name: kind for name, (kind, _) in rows.items()} == {name: family.type for name, family in found.items()}
    for name, family in found.items():
        used = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert used <= rows[name][1], f"labels of {name} that the paper does not have"
    for name, (labels, elsewhere) in _VALUES.items():
        (meaning,) = re.findall(rf"^\| `{name}` \| .*? \| .*? \| (.*) \|$", PAPER, re.MULTILINE)
        written = set(re.findall(r"`([A-Za-z]\w*(?:-\w+)*)`", meaning))
        made = {sample.labels[label] for sample in found[name].samples for label in labels}
        assert made - written == set(), f"values of labels of {name} that the paper does not have"
        assert written - made <= elsewhere, f"values that the paper has for {name}, and no series"


async def test_metrics_name_no_object_and_no_machine_and_count_workflows_also_when_they_go(make: Make) -> None:
    """A reader of the metrics learns nothing about tenants, and the number of series is bounded."""
    stack = make(Service.APISERVER, Service.CONTROLLER, Service.WEBHOOKS)
    await stack.start()
    async with with_a_workflow(stack) as client:
        before = generate_latest(stack.metrics).decode()
        for index in range(20):
            await client.create(TEMPLATE, objects.template(name=f"tenant-{index}"))
            await client.get(TEMPLATE, f"tenant-{index}", "default")
        after = generate_latest(stack.metrics).decode()
        assert "tenant" not in after
        assert len(after.splitlines()) - len(before.splitlines()) < 100, "series that come with objects"
        assert value(stack, "tinkedge_workflow_transitions_total", to="Pending") == 1
        await client.delete(WORKFLOW, "w", "default")
        await until(lambda: not any(sample.value for sample in scraped(stack)["tinkedge_workflows"].samples))
        assert value(stack, "tinkedge_workflow_transitions_total", to="Canceled") == 1


async def test_standby_is_ready_and_names_the_leader(make: Make) -> None:
    first = make(Service.APISERVER, Service.CONTROLLER, leader_elect=True)
    await first.start()
    second = make(Service.CONTROLLER, leader_elect=True, kubeconfig=first._settings.data_dir / "kubeconfig")
    await until(lambda: "this replica leads" in first.readiness.text)
    await second.start()
    await until(lambda: " leads" in second.readiness.text and "nobody" not in second.readiness.text)
    assert second.readiness.text.startswith("ok: this replica is on standby; ")
    lease = {"name": "tinkedge-controller"}
    assert (value(first, "leader_election_master_status", **lease), value(first, "tinkedge_ready")) == (1, 1)
    assert (value(second, "leader_election_master_status", **lease), value(second, "tinkedge_ready")) == (0, 1)


async def test_definition_that_a_tinkerbell_replaces_is_a_note_of_readiness(make: Make) -> None:
    name = "machines.bmc.tinkerbell.org"
    stack = make(Service.APISERVER, Service.CONTROLLER, Service.BMC, Service.WEBHOOKS)
    await stack.start()
    await until(lambda: value(stack, "tinkedge_tinkerbell_conflict", object=name) == 0)
    assert stack.readiness.text == "ok"
    async with await KubeClient.connect(stack._settings.data_dir / "kubeconfig") as client:
        versions = (await client.get(CRD, name, None))["spec"]["versions"]
        del versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["connection"]
        await client.patch(CRD, name, None, {"spec": {"versions": versions}})
    await until(lambda: stack.readiness.text != "ok")
    assert stack.readiness.text.startswith(f"ok: {name}: its v1alpha1 lacks spec.connection, which the API removes")
    assert value(stack, "tinkedge_tinkerbell_conflict", object=name) == 1
    replica = make(Service.CONTROLLER, kubeconfig=stack._settings.data_dir / "kubeconfig")
    await replica.start()
    assert value(replica, "tinkedge_tinkerbell_conflict", object=name) is None, "the right comes with v1alpha1"


async def test_guard_that_lets_writes_pass_is_reported(make: Make) -> None:
    guarded = make(Service.APISERVER, Service.CONTROLLER, Service.WEBHOOKS)
    await guarded.start()
    assert guarded.readiness.text == "ok"
    assert value(guarded, "tinkedge_open_guard", guard="reviews") == 0
    away = make(Service.CONTROLLER, Service.WEBHOOKS, kubeconfig=guarded._settings.data_dir / "kubeconfig")
    await away.start()
    assert "writes are not reviewed: the cluster can't reach this" in away.readiness.text
    assert value(away, "tinkedge_open_guard", guard="reviews") == 1


async def test_edge_that_can_not_read_the_neighbours_or_send_probes_reports_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("netlink is filtered")

    services = (Service.APISERVER, Service.HTTP)
    seeing = make(*services)
    await seeing.start()
    guards = ("neighbours", "declines")
    assert [value(seeing, "tinkedge_open_guard", guard=each) for each in guards] == [0, 0]
    await seeing.stop()
    monkeypatch.setattr("edge.run.graph.NeighbourTable", refused)
    blind = make(*services)
    await blind.start()
    assert "the kernel's neighbours can't be read: machines are known by address alone" in blind.readiness.text
    assert value(blind, "tinkedge_open_guard", guard="neighbours") == 1
    monkeypatch.setattr("edge.run.networks.services.NetworkServices.unprobed", ["DHCP on eth0", "DHCPv6 on eth0"])
    assert "DHCP on eth0, DHCPv6 on eth0: no probe can be sent, so a forged decline" in blind.readiness.text
    assert value(blind, "tinkedge_open_guard", guard="declines") == 1
