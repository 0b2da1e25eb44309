"""Reports of the inventory: at once, with neighbours, after changes, and through failures of the server."""

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import time
from functools import partial

import grpc
import grpc.aio
import pytest

from proto import inventory_pb2 as pb
from proto.inventory_pb2_grpc import InventoryServiceServicer, add_InventoryServiceServicer_to_server
from tests.ports import free_port
from tests.support.virtual_time import elapse
from tests.unit.agent import workflow_service
from tests.unit.agent.inventory import trees
from tests.unit.agent.inventory.test_lldp import frame
from tests.waiting import until
from tink.agent.connection import connect
from tink.agent.inventory.reporter import (
    MAX_REPORT_BYTES,
    InventoryReporter,
    LocalMachine,
    ReportSchedule,
    encoded,
    in_daemon_thread,
)
from tink.agent.settings import AgentSettings
from tink.api.v1alpha2 import Attributes

pytestmark = pytest.mark.looptime
real_time = pytest.mark.looptime(False)  # for a test with a thread that hangs


class Server:
    """The service behind a channel of gRPC, in the time of the event loop."""

    def __init__(self, *refusals):
        self.refusals, self.calls, self.reports = list(refusals), [], []

    def unary_unary(self, *_, **__):
        return self._call

    async def _call(self, request, timeout):
        self.calls.append(asyncio.get_running_loop().time())
        if self.refusals:
            code = self.refusals.pop(0)
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="by the test")
        self.reports.append(request)
        return pb.ReportInventoryResponse()

    @property
    def neighbours(self):
        """Return the port IDs by card, one entry for each report."""
        return [json.loads(request.attributes).get("neighbours") for request in self.reports]


class PlayedMachine:
    """A machine with two cards, of which the second one gets its link at a time."""

    def __init__(self, link=("eno1", "eno2")):
        self.prepared, self.link, self.speed = 0, list(link), 0

    def prepare(self):
        self.prepared += 1

    def cards(self):
        return []  # no sockets: the test calls `receive`

    def cards_with_link(self):
        return self.link

    def attributes(self, neighbours):
        return {"speed": self.speed, "neighbours": {card: facts["portID"] for card, facts in neighbours.items()}}


async def at_once():
    """Return like the connection of an agent that is connected."""


@contextlib.asynccontextmanager
async def reporting(server, machine=None, **more):
    machine = machine or PlayedMachine()
    given = {"connected": at_once, "clock": lambda: 1_800_000_000.5, "in_background": asyncio.to_thread} | more
    reporter = InventoryReporter(server, "52:54:00:aa:00:01", machine, **given)
    running = asyncio.create_task(reporter.run())
    try:
        yield reporter, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_first_report_is_sent_at_once_without_neighbours():
    server, machine = Server(), PlayedMachine()
    async with reporting(server, machine):
        await elapse(0.1)
    (report,) = server.reports
    assert (report.agent_id, report.clock_unix_seconds) == ("52:54:00:aa:00:01", 1_800_000_000.5)
    assert json.loads(report.attributes) == {"speed": 0, "neighbours": {}}
    assert machine.prepared == 1


async def test_report_waits_for_the_command_stream():
    server, connected = Server(grpc.StatusCode.UNAVAILABLE), asyncio.Event()
    async with reporting(server, connected=connected.wait):
        await elapse(600)
        assert server.calls == []
        connected.set()
        await elapse(0.1)
        connected.clear()
        await elapse(600)
        assert len(server.calls) == 1, "a retry waits for it, too"
        connected.set()
        await elapse(0.1)
    assert len(server.reports) == 1


async def test_second_report_follows_when_all_cards_with_link_have_neighbours():
    server = Server()
    async with reporting(server) as (reporter, _):
        await elapse(3)
        reporter.receive("eno1", frame(b"\x05one"))
        await elapse(10)
        assert len(server.reports) == 1, "the other card may have a neighbour, too"
        reporter.receive("eno2", frame(b"\x05two"))
        await elapse(5)
    assert server.neighbours == [{}, {"eno1": "one", "eno2": "two"}]


async def test_neighbours_are_reported_within_35_seconds_if_one_card_has_none():
    server = Server()
    async with reporting(server) as (reporter, _):
        await elapse(20)
        reporter.receive("eno1", frame(b"\x05one"))
        await elapse(14.9)
        assert len(server.reports) == 1
        await elapse(0.2)
    assert server.neighbours == [{}, {"eno1": "one"}]


async def test_no_second_report_is_sent_if_nothing_differs():
    server, machine = Server(), PlayedMachine()
    async with reporting(server, machine):
        await elapse(3600)
        assert len(server.reports) == 1


async def test_card_that_gets_its_link_late_is_reported_without_a_neighbour():
    server, machine = Server(), PlayedMachine(link=())
    async with reporting(server, machine):
        await elapse(6)
        machine.speed = 25000
        await elapse(30)
    assert [json.loads(request.attributes)["speed"] for request in server.reports] == [0, 25000]


async def test_neighbour_that_changes_or_expires_is_reported():
    server = Server()
    async with reporting(server, PlayedMachine(link=("eno1",))) as (reporter, _):
        reporter.receive("eno1", frame(b"\x05one", ttl=120))
        await elapse(60)
        for _ in range(4):
            reporter.receive("eno1", frame(b"\x05two", ttl=120))
            await elapse(30)
        await elapse(200)
    assert server.neighbours == [{"eno1": "one"}, {"eno1": "two"}, {}]


async def test_neighbour_that_changes_all_the_time_is_reported_every_30_seconds_at_most():
    server = Server()
    async with reporting(server, PlayedMachine(link=("eno1",))) as (reporter, _):
        for number in range(300):
            reporter.receive("eno1", frame(b"\x05%d" % number, ttl=2))
            await elapse(1)
    assert 2 <= len(server.reports) <= 12


async def test_server_without_the_service_gets_one_report(caplog):
    server = Server(grpc.StatusCode.UNIMPLEMENTED)
    with caplog.at_level(logging.INFO):
        async with reporting(server) as (_, running):
            await elapse(3600)
            assert running.done()
            assert running.result() is None
    assert len(server.calls) == 1
    assert "the server does not take inventories" in caplog.text


async def test_failed_report_is_retried_with_growing_pauses(caplog):
    server = Server(*[grpc.StatusCode.UNAVAILABLE] * 12)
    with caplog.at_level(logging.INFO):
        async with reporting(server):
            await elapse(3600)
    assert len(server.reports) == 1
    pauses = [after - before for before, after in zip(server.calls, server.calls[1:], strict=False)]
    assert pauses[0] <= 1
    assert 30 <= max(pauses) <= 60
    assert caplog.text.count("not delivered yet") == 1


async def test_report_that_the_server_refuses_is_not_sent_again():
    server = Server(grpc.StatusCode.INVALID_ARGUMENT)
    async with reporting(server, PlayedMachine(link=("eno1",))) as (reporter, _):
        await elapse(100)
        assert len(server.calls) == 1
        reporter.receive("eno1", frame(b"\x05one"))
        await elapse(100)
    assert server.neighbours == [{"eno1": "one"}]


async def test_clock_is_read_for_each_attempt():
    server, times = Server(grpc.StatusCode.UNAVAILABLE), iter((1.0, 2.0))
    async with reporting(server, clock=lambda: next(times)):
        await elapse(10)
    assert [report.clock_unix_seconds for report in server.reports] == [2.0]


class Service(InventoryServiceServicer):
    """A real service, which stores the reports and their metadata."""

    def __init__(self):
        self.reports, self.metadata = [], []

    async def ReportInventory(self, request, context):  # noqa: N802 - the service's name
        self.metadata.append(dict(context.invocation_metadata()))
        self.reports.append(request)
        return pb.ReportInventoryResponse()


@contextlib.asynccontextmanager
async def serving():
    """Run both services at a free port."""
    service, port = Service(), free_port()
    add = partial(add_InventoryServiceServicer_to_server, service)
    async with workflow_service.serving(workflow_service.Server(), port, more=add):
        yield service, f"127.0.0.1:{port}"


@real_time
async def test_report_of_this_machine_arrives_with_the_credentials_of_the_agent(tmp_path):
    async with serving() as (service, address):
        settings = AgentSettings("52:54:00:AA:00:01", address, token="v1.a.b", state_dir=tmp_path)
        channel = await connect(settings, asyncio.Event())
        reporter = InventoryReporter(channel, settings.agent_id, LocalMachine(in_osie=False), connected=at_once)
        running = asyncio.create_task(reporter.run())
        await until(lambda: service.reports)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await channel.close()
    assert service.metadata[0]["authorization"] == "Bearer v1.a.b"
    assert service.reports[0].agent_id == "52:54:00:aa:00:01"
    assert service.reports[0].clock_unix_seconds == pytest.approx(time.time(), abs=600)
    Attributes.model_validate_json(service.reports[0].attributes)


@real_time
async def test_agent_reports_its_machine_and_still_ends_at_sigterm(tmp_path):
    async with serving() as (service, address):
        words = [
            "--agent-id",
            "52:54:00:aa:00:01",
            "--server",
            address,
            "--runtime",
            "process",
            "--state-dir",
            tmp_path,
        ]
        command = [sys.executable, "-m", "edge.cli", "agent", *words]
        agent = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        try:
            await until(lambda: service.reports)
            agent.terminate()
            _, err = await agent.communicate()
        finally:
            if agent.returncode is None:
                agent.kill()
    assert agent.returncode == 0
    assert b"the agent ends" in err
    assert b"Traceback" not in err


@real_time
async def test_device_that_does_not_answer_ends_the_reports_and_not_the_agent():
    class Hanging(PlayedMachine):
        def attributes(self, neighbours):
            import threading

            threading.Event().wait()

    schedule = ReportSchedule(collect_timeout=0.05)
    more = {"schedule": schedule, "in_background": in_daemon_thread}
    async with reporting(Server(), Hanging(), **more) as (_, running):
        await until(running.done)
        assert isinstance(running.exception(), TimeoutError)


@real_time
async def test_error_in_the_thread_is_raised_in_the_loop():
    assert await in_daemon_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread(lambda: 1 / 0)


def test_report_has_at_most_256_kib():
    text = "x" * 256
    devices = [{"vendor": text, "model": text, "driver": text, "classCode": text} for _ in range(256)]
    disks = [{"name": text, "model": text} for _ in range(256)]
    assert set(json.loads(encoded({"product": {}, "blockDevices": disks}))) == {"product", "blockDevices"}
    content = encoded({"product": {}, "pciDevices": devices, "blockDevices": disks})
    assert len(content) <= MAX_REPORT_BYTES
    assert set(json.loads(content)) == {"product", "blockDevices"}


def test_machine_outside_of_an_osie_is_left_as_it_is(tmp_path, monkeypatch):
    changed = []
    monkeypatch.setattr("tink.agent.inventory.reporter.set_up", changed.append)
    tree = trees.dell(tmp_path)
    tree.files("sys/class/net/eno1", flags="0x1003")
    tree.files("sys/class/net/eno2", flags="0x1002")
    tree.files("proc/sys/net/ipv6/conf/eno2", accept_ra="1")
    LocalMachine(tmp_path, in_osie=False).prepare()
    assert changed == []
    LocalMachine(tmp_path, in_osie=True).prepare()
    assert changed == ["eno2"], "the other one is up"
    assert (tmp_path / "proc/sys/net/ipv6/conf/eno2/accept_ra").read_text() == "0"
