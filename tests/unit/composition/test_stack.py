"""The composition root: in which order parts start and stop, and what is said when one can't or won't."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from edge.composition import outage, serving
from edge.composition.host import Network
from edge.composition.settings import EdgeSettings, Service, StackSettings
from edge.composition.stack import Stack
from edge.composition.tasks import StackError
from edge.journey.events import Outcome, Step
from tests.ports import free_port
from tests.waiting import until
from tink.apiserver import ApiServer
from tink.controller import WorkflowController

MAC = "52:54:00:00:00:01"
HARDWARE = {
    "apiVersion": "tinkerbell.org/v1alpha2",
    "kind": "Hardware",
    "metadata": {"name": "machine"},
    "spec": {"networkInterfaces": {MAC: {"dhcp": {"ip": "127.0.0.1", "netmask": "255.0.0.0"}}}},
}

Make = Callable[..., Stack]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """A stack on loopback with ports, and a boot program, of its own."""
    made: list[Stack] = []
    boot_programs = tmp_path / "ipxe"
    boot_programs.mkdir()
    (boot_programs / "snponly.efi").write_bytes(b"MZ")

    def stack(*services: Service, **settings: Any) -> Stack:
        edge: dict[str, Any] = {"ipxe_dir": boot_programs}
        edge |= {name: settings.pop(name, None) or free_port() for name in ("http_port", "admin_port")}
        ports = {name: free_port() for name in ("grpc_port", "api_port")}
        given: dict[str, Any] = {"data_dir": tmp_path / "data", "edge": EdgeSettings(**edge)} | ports | settings
        stack = Stack(StackSettings(frozenset(services), **given))
        made.append(stack)
        return stack

    yield stack
    for stack_ in made:
        await stack_.stop()


async def test_machines_are_heard_only_when_it_is_known_which_there_are(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = tmp_path / "hardware.json"
    manifests.write_text(json.dumps(HARDWARE))
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


async def test_cluster_without_the_crds_is_said_to_lack_them(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "SYNC_SECONDS", 0.2)
    bare = ApiServer(tmp_path / "bare", port=0)
    await bare.start()
    try:
        with pytest.raises(StackError, match=r"has not listed \w+\.tinkerbell\.org .*tinkedge crds"):
            await make(Service.CONTROLLER, kubeconfig=bare.kubeconfig).start()
    finally:
        await bare.stop()


async def test_outside_of_a_cluster_a_kubeconfig_is_asked_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(StackError, match="give --kubeconfig FILE"):
        await make(Service.CONTROLLER).start()


async def test_part_that_ends_by_itself_ends_the_stack_and_is_named(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: WorkflowController) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(WorkflowController, "run", broken)
    stack = make(Service.APISERVER, Service.CONTROLLER)
    await stack.start()
    with pytest.raises(StackError, match="controller ended: RuntimeError"):
        await asyncio.wait_for(stack.run(asyncio.Event()), 20)


@pytest.mark.parametrize(
    ("service", "port", "said"),
    [
        (Service.APISERVER, "api_port", "the port is taken"),
        (Service.HTTP, "http_port", "choose another port with --http-port"),
        (Service.ADMIN, "admin_port", "choose another port with --admin-port"),
        (Service.SERVER, "grpc_port", "choose another port with --grpc-port"),
    ],
)
async def test_taken_port_is_named_with_what_to_do_and_nothing_is_left_running(
    make: Make, service: Service, port: str, said: str
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        number = other.getsockname()[1]
        stack = make(Service.APISERVER, service, **{port: number})
        with pytest.raises(Exception, match=rf"127\.0\.0\.1:{number}.*{said}"):
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


async def test_operator_who_reads_nothing_does_not_hold_up_the_stop(make: Make) -> None:
    port = free_port()
    stack = make(Service.APISERVER, Service.ADMIN, admin_port=port)
    await stack.start()
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.sendall(b"GET /api/v1/events?since=now HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        for _ in range(20):
            for _ in range(100):
                stack.journey.record(MAC, Step.DHCP, Outcome.INFO, "x" * 400, fill="x" * 4000)
            await asyncio.sleep(0.01)
        await asyncio.wait_for(stack.stop(), 20)


async def test_stop_while_starting_takes_down_what_had_started(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make(Service.APISERVER, Service.CONTROLLER, Service.HTTP)
    reached = asyncio.Event()

    async def forever(*_: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Stack, "_follow_api", forever)
    starting = asyncio.create_task(stack.start())
    await asyncio.wait_for(reached.wait(), 20)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    monkeypatch.undo()
    await make(Service.APISERVER).start()


async def test_wrong_token_is_why_it_is_not_ready_and_what_it_ends_with(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/readyz` said "starting", for half a minute and then again at each restart."""
    monkeypatch.setattr(outage, "SYNC_SECONDS", 5.0)
    api = ApiServer(tmp_path / "api", port=0)
    await api.start()
    try:
        kubeconfig = tmp_path / "wrong.kubeconfig"
        token = (tmp_path / "api" / "token").read_text().strip()
        kubeconfig.write_text(api.kubeconfig.read_text().replace(token, "tinkedge.wrong"))
        one = make(Service.CONTROLLER, kubeconfig=kubeconfig)
        starting = asyncio.create_task(one.start())
        await until(lambda: "Unauthorized" in one.not_ready)
        assert one.not_ready.startswith("starting: the API does not let tinkedge read ")
        with pytest.raises(StackError, match=r"Unauthorized.*: give a --kubeconfig .*that may"):
            await asyncio.wait_for(starting, 30)
    finally:
        await api.stop()
