"""What Prometheus and probes are told of a whole stack, and of one whose API has gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edge.composition import readiness
from edge.composition.settings import EdgeSettings, Service, StackSettings
from edge.composition.stack import Stack
from tests.ports import free_port
from tests.waiting import until
from tink.api.crds import generate
from tink.apiserver import ApiServer
from tink.kube.client import KubeClient
from tink.kube.manifests import apply_object
from tink.kube.resources import CRD, HARDWARE, TEMPLATE, WORKFLOW
from tink.server import ServerSettings
from tink.server import server as grpc_server

PAPER = (Path(__file__).resolve().parents[3] / "docs" / "operating.md").read_text()
_ROW = re.compile(r"^\| `([a-z_]+)` \| (gauge|counter|histogram) \| (.*?) \|", re.MULTILINE)
_OF_THE_PROCESS = ("process_", "python_")

Make = Callable[..., Stack]

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
tinkedge_journey_events_total tinkedge_journey_kept_bytes tinkedge_machines tinkedge_network_carrier
tinkedge_boot_step_duration_seconds tinkedge_provision_duration_seconds tinkedge_traces_boots_total
tinkedge_peer_events_total tinkedge_peer_event_batch_failures_total
tinkedge_network_ready tinkedge_peer_living tinkedge_peer_lookups_total tinkedge_peer_refused_total
tinkedge_peer_served_bytes_total tinkedge_peer_served_total
tinkedge_ready tinkedge_sent_bytes_total tinkedge_server_memory_limit_bytes tinkedge_server_resident_memory_bytes
tinkedge_server_restarts_total tinkedge_server_up tinkedge_syslog_lines_total
tinkedge_worker_cpu_seconds_total tinkedge_worker_dropped_events_total tinkedge_worker_resident_memory_bytes
tinkedge_worker_restarts_total tinkedge_worker_up
tinkedge_workflow_transitions_total tinkedge_workflows
workqueue_adds_total workqueue_depth workqueue_longest_running_processor_seconds workqueue_queue_duration_seconds
workqueue_retries_total workqueue_unfinished_work_seconds workqueue_work_duration_seconds
tinkedge_open_guard tinkedge_reviewed_writes_total tinkedge_unreviewed_writes_total
"""


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """A stack on loopback with ports, and a boot program, of its own."""
    made: list[Stack] = []
    boot_programs = tmp_path / "ipxe"
    boot_programs.mkdir()
    (boot_programs / "snponly.efi").write_bytes(b"MZ")

    def stack(*services: Service, workers: int = 1, **settings: Any) -> Stack:
        ports = {"http_port": free_port(), "admin_port": free_port()}
        edge = EdgeSettings(
            ipxe_dir=boot_programs,
            peers=("127.0.0.99:7080",),
            otlp_endpoint="http://127.0.0.1:9",
            workers=workers,
            **ports,
        )
        given = {"data_dir": tmp_path / "data", "edge": edge, "grpc_port": free_port(), "api_port": free_port()}
        made.append(Stack(StackSettings(frozenset(services), **{**given, **settings})))
        return made[-1]

    yield stack
    for each in made:
        await each.stop()


def scraped(stack: Stack) -> dict[str, Any]:
    """The families by the names that series have; each once, as Prometheus demands."""
    families = list(text_string_to_metric_families(generate_latest(stack.metrics).decode()))
    names = [family.name + ("_total" if family.type == "counter" else "") for family in families]
    assert len(set(names)) == len(names)
    return dict(zip(names, families, strict=True))


def value(stack: Stack, name: str, /, **labels: str) -> float | None:
    return stack.metrics.get_sample_value(name, labels)


@asynccontextmanager
async def with_a_workflow(stack: Stack) -> AsyncIterator[KubeClient]:
    """A client of the stack's own API, which has a Workflow that is prepared."""
    client = await KubeClient.connect(stack._settings.data_dir / "kubeconfig")
    try:
        spec = {"networkInterfaces": {"52:54:00:00:00:01": {"dhcp": {"ip": "127.0.0.1", "netmask": "255.0.0.0"}}}}
        actions = {"actions": [{"name": "a", "image": "i"}]}
        references = {"hardwareRef": {"name": "x"}, "templateRef": {"name": "x"}}
        for resource, of in ((HARDWARE, spec), (TEMPLATE, actions), (WORKFLOW, references)):
            obj = {
                "apiVersion": resource.api_version, "kind": resource.kind, "spec": of,
                "metadata": {"name": "x", "namespace": "default"},
            }  # fmt: skip
            await apply_object(client, resource, obj, "test")
        await until(lambda: value(stack, "tinkedge_workflows", state="Pending") == 1)
        yield client
    finally:
        await client.close()


async def test_every_metric_keeps_its_name_and_is_in_the_paper(make: Make) -> None:
    services = set(Service) - {Service.DHCP, Service.TFTP}
    server = ServerSettings(memory=400_000_000)
    stack = make(*services, workers=2, leader_elect=True, server=server, server_apart=True)
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


async def test_metrics_name_no_object_and_no_machine(make: Make) -> None:
    """Whoever may read them learns nothing of tenants, and the number of series is bounded."""
    stack = make(Service.APISERVER, Service.CONTROLLER, Service.WEBHOOKS)
    await stack.start()
    async with with_a_workflow(stack) as client:
        before = generate_latest(stack.metrics).decode()
        for index in range(20):
            metadata = {"name": f"tenant-{index}", "namespace": "default"}
            obj = {"apiVersion": TEMPLATE.api_version, "kind": "Template", "metadata": metadata}
            await client.create(TEMPLATE, obj | {"spec": {"actions": [{"name": "a", "image": "i"}]}})
            await client.get(TEMPLATE, f"tenant-{index}", "default")
    after = generate_latest(stack.metrics).decode()
    assert "tenant" not in after
    assert len(after.splitlines()) - len(before.splitlines()) < 100, "series that come with objects"


async def test_workflows_are_counted_by_state_also_when_they_go(make: Make) -> None:
    stack = make(Service.APISERVER, Service.CONTROLLER)
    await stack.start()
    async with with_a_workflow(stack) as client:
        assert value(stack, "tinkedge_workflow_transitions_total", to="Pending") == 1
        await client.delete(WORKFLOW, "x", "default")
        await until(lambda: not any(sample.value for sample in scraped(stack)["tinkedge_workflows"].samples))
        assert value(stack, "tinkedge_workflow_transitions_total", to="Canceled") == 1


async def test_standby_is_ready_and_says_who_leads(make: Make) -> None:
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


async def test_guard_that_lets_writes_pass_is_reported(make: Make) -> None:
    guarded = make(Service.APISERVER, Service.CONTROLLER, Service.WEBHOOKS)
    await guarded.start()
    assert guarded.readiness.text == "ok"
    assert value(guarded, "tinkedge_open_guard", guard="reviews") == 0
    away = make(Service.CONTROLLER, Service.WEBHOOKS, kubeconfig=guarded._settings.data_dir / "kubeconfig")
    await away.start()
    assert "writes are not reviewed: the cluster can't reach this" in away.readiness.text
    assert value(away, "tinkedge_open_guard", guard="reviews") == 1


async def test_edge_that_can_not_read_the_neighbours_reports_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("netlink is filtered")

    services = (Service.APISERVER, Service.HTTP)
    seeing = make(*services)
    await seeing.start()
    assert value(seeing, "tinkedge_open_guard", guard="neighbours") == 0
    await seeing.stop()
    monkeypatch.setattr("edge.composition.neighbours.NeighbourTable", refused)
    blind = make(*services)
    await blind.start()
    assert "the kernel's neighbours can't be read: machines are known by address alone" in blind.readiness.text
    assert value(blind, "tinkedge_open_guard", guard="neighbours") == 1


async def test_dhcp_that_can_send_no_probe_reports_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make(Service.APISERVER, Service.HTTP)
    await stack.start()
    assert value(stack, "tinkedge_open_guard", guard="declines") == 0
    monkeypatch.setattr("edge.composition.networks.NetworkServices.unprobed", ["DHCP on eth0", "DHCPv6 on eth0"])
    assert "DHCP on eth0, DHCPv6 on eth0: no probe can be sent, so a forged decline" in stack.readiness.text
    assert value(stack, "tinkedge_open_guard", guard="declines") == 1


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    """An API with the definitions, beside the stack: to be stopped, and started again at the same place."""
    port = free_port()
    servers = [ApiServer(tmp_path / "api", port=port)]
    await servers[0].start()
    client = await KubeClient.connect(servers[0].kubeconfig)
    for definition in generate():
        await apply_object(client, CRD, definition, "test")
    await client.close()

    async def again() -> None:
        servers.append(ApiServer(tmp_path / "api", port=port))
        await servers[-1].start()

    yield lambda: (servers[-1], again)
    await servers[-1].stop()


@pytest.mark.parametrize("role", [Service.SERVER, Service.CONTROLLER])
async def test_who_writes_to_the_api_is_not_ready_without_it(
    role: Service, make: Make, api: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.1)
    monkeypatch.setattr(grpc_server, "AWAY_SECONDS", 0.1)
    running, again = api()
    stack = make(role, kubeconfig=running.kubeconfig)
    await stack.start()
    assert stack.not_ready == ""
    await running.stop()
    await until(lambda: stack.not_ready.startswith("the Kubernetes API has not answered since 20"))
    assert value(stack, "tinkedge_ready") == 0
    assert value(stack, "tinkedge_informer_behind_seconds", resource="workflows") > 0
    await again()
    await until(lambda: stack.not_ready == "")
    assert value(stack, "tinkedge_informer_behind_seconds", resource="workflows") == 0


async def test_edge_serves_without_the_api_and_says_since_when(
    make: Make, api: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.1)
    running, again = api()
    stack = make(Service.HTTP, Service.ADMIN, kubeconfig=running.kubeconfig)
    await stack.start()
    with stack.journey.subscribe() as told:
        await running.stop()
        said = await asyncio.wait_for(anext(told), 20)
        assert said.message.startswith("serving from what was known at 20")
        assert stack.not_ready == ""
        assert stack.readiness.text.startswith("ok: serving from what was known at 20")
        await again()
        assert "answers again" in (await asyncio.wait_for(anext(told), 30)).message
    assert stack.readiness.text == "ok"
