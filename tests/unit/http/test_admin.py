"""The operators' API: machines, journeys, the live stream, metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Gauge

from edge.http.admin import MAX_STREAMS, build_admin_app
from edge.inventory import Inventory
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey

MAC = "52:54:00:00:00:01"
STRANGER = "02:00:00:00:00:09"


@dataclass
class Desk:
    client: Any
    journey: Journey
    inventory: Inventory

    async def json(self, path: str) -> Any:
        async with self.client.get(path) as response:
            assert response.status == 200
            return await response.json()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    times = iter(range(1000, 100_000))
    journey, inventory = Journey(lambda: float(next(times))), Inventory()
    for number in (1, 2):
        interface = {"dhcp": {"ip": f"10.0.0.{number}"}}
        hardware = {
            "metadata": {"name": f"m{number}", "namespace": "default"},
            "spec": {"networkInterfaces": {f"52:54:00:00:00:0{number}": interface}},
        }
        inventory.apply(hardware)
    app = build_admin_app(journey, inventory, heartbeat_seconds=0.05)
    async with TestClient(TestServer(app)) as client:
        yield Desk(client, journey, inventory)


async def sse(response: aiohttp.ClientResponse, count: int, *, heartbeats: bool = False) -> list[str]:
    """The next `count` blocks of a Server-Sent Events stream."""
    blocks: list[str] = []
    async with asyncio.timeout(15):
        while len(blocks) < count:
            block = (await response.content.readuntil(b"\n\n")).decode().strip()
            if heartbeats or block != ": heartbeat":
                blocks.append(block)
    return blocks


async def test_machines_heard_come_first_and_strangers_have_their_manifest(desk: Desk) -> None:
    desk.journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    desk.journey.record(STRANGER, Step.SEEN, Outcome.INFO, "seen, not registered", manifest="kind: Hardware\n")
    stranger, heard, silent = await desk.json("/api/v1/machines")
    assert stranger == {
        "mac": STRANGER,
        "registered": False,
        "manifest": "kind: Hardware\n",
        "first_seen": 1001.0,
        "last_seen": 1001.0,
        "step": "seen",
        "outcome": "info",
        "message": "seen, not registered",
    }
    assert heard["mac"] == MAC
    assert (heard["registered"], heard["ip"], heard["name"], heard["namespace"]) == (True, "10.0.0.1", "m1", "default")
    assert (heard["step"], heard["outcome"], heard["last_seen"]) == ("dhcp", "ok", 1000.0)
    assert silent == {
        "mac": "52:54:00:00:00:02",
        "registered": True,
        "ip": "10.0.0.2",
        "name": "m2",
        "namespace": "default",
    }


async def test_journey_of_one_machine(desk: Desk) -> None:
    desk.journey.record(MAC, Step.KERNEL, Outcome.OK, "kernel sent", size_bytes=5)
    expected = {
        "time": 1000.0,
        "mac": MAC,
        "step": "kernel",
        "outcome": "ok",
        "message": "kernel sent",
        "detail": {"size_bytes": 5},
    }
    assert await desk.json(f"/api/v1/machines/{MAC}/events") == [expected]
    assert await desk.json("/api/v1/machines/52-54-00-00-00-01/events") == [expected]
    assert await desk.json("/api/v1/machines/52:54:00:00:00:02/events") == []
    async with desk.client.get("/api/v1/machines/02:00:00:00:00:77/events") as response:
        assert response.status == 404


async def test_stream_starts_now_or_with_all_that_is_kept(desk: Desk) -> None:
    desk.journey.record(MAC, Step.DHCP, Outcome.OK, "past")
    async with (
        desk.client.get("/api/v1/events") as now,
        desk.client.get("/api/v1/events?since=all") as everything,
    ):
        assert now.headers["Content-Type"] == "text/event-stream"
        desk.journey.record(STRANGER, Step.SEEN, Outcome.INFO, "present")
        hello, block = await sse(now, 2)
        assert hello == ": journey"
        assert json.loads(block.removeprefix("data: "))["message"] == "present"
        blocks = await sse(everything, 3)
        assert [json.loads(block.removeprefix("data: "))["message"] for block in blocks[1:]] == ["past", "present"]


async def test_quiet_stream_has_a_heartbeat(desk: Desk) -> None:
    async with desk.client.get("/api/v1/events") as stream:
        assert await sse(stream, 3, heartbeats=True) == [": journey", ": heartbeat", ": heartbeat"]


async def test_readers_that_leave_make_room_and_too_many_are_refused(desk: Desk) -> None:
    streams = [await desk.client.get("/api/v1/events") for _ in range(MAX_STREAMS)]
    assert (await desk.client.get("/api/v1/events")).status == 503
    for stream in streams:
        stream.close()
    async with asyncio.timeout(20):
        while (reply := await desk.client.get("/api/v1/events")).status == 503:
            await asyncio.sleep(0.05)
    assert reply.status == 200
    reply.close()


async def test_slow_reader_is_told_each_time_how_many_it_lost(desk: Desk) -> None:
    async with desk.client.get("/api/v1/events") as stream:
        await sse(stream, 1)
        for beyond in (500, 200):
            for number in range(1_000 + beyond):
                desk.journey.record(MAC, Step.DHCP, Outcome.OK, str(number))
            lost, *blocks = await sse(stream, 1_001)
            assert lost == f"event: lost\ndata: {beyond}"
            assert json.loads(blocks[-1].removeprefix("data: "))["message"] == str(999 + beyond)


async def test_stream_of_many_is_in_the_order_of_time_with_nothing_twice_or_missing(desk: Desk) -> None:
    for number in range(1_000):
        desk.journey.record(f"52:54:00:00:01:{number % 50:02x}", Step.DHCP, Outcome.OK, str(number))
    async with desk.client.get("/api/v1/events?since=all") as stream:
        blocks = await sse(stream, 500)
        desk.journey.record(MAC, Step.DHCP, Outcome.OK, "1000")
        blocks += await sse(stream, 502)
    messages = [json.loads(block.removeprefix("data: "))["message"] for block in blocks[1:]]
    assert messages == [str(number) for number in range(1_001)]


async def test_many_machines_are_one_document(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(700):
        desk.journey.record(f"52:54:00:01:{number >> 8:02x}:{number & 255:02x}", Step.DHCP, Outcome.OK, "offer")
    shown = await desk.json("/api/v1/machines")
    assert len({machine["mac"] for machine in shown}) == len(shown) == 702
    heard = desk.journey.macs()
    monkeypatch.setattr(desk.journey, "macs", lambda: ["02:ff:ff:ff:ff:ff", *heard])  # forgotten meanwhile
    assert await desk.json("/api/v1/machines") == shown


async def test_no_machines_are_an_empty_list() -> None:
    async with TestClient(TestServer(build_admin_app(Journey(lambda: 0.0), Inventory()))) as client:
        assert await (await client.get("/api/v1/machines")).json() == []


async def test_metrics_of_other_servers_are_shown_beside_the_journey() -> None:
    registry = CollectorRegistry()
    Gauge("tftp_transfers", "In progress.", registry=registry).set(3)
    journey = Journey(lambda: 0.0)
    journey.record(MAC, Step.DHCP, Outcome.OK, "offer")
    async with TestClient(TestServer(build_admin_app(journey, Inventory(), registry=registry))) as client:
        shown = (await (await client.get("/metrics")).text()).splitlines()
    assert "tftp_transfers 3.0" in shown
    assert f"tinkedge_journey_kept_bytes {float(journey.kept_bytes)}" in shown
    assert journey.kept_bytes > 0


async def test_bad_since_says_what_is_allowed(desk: Desk) -> None:
    async with desk.client.get("/api/v1/events?since=yesterday") as response:
        assert (response.status, await response.text()) == (400, "since must be now or all\n")


async def test_metrics_count_steps_by_outcome_and_bytes(desk: Desk) -> None:
    desk.journey.record(MAC, Step.KERNEL, Outcome.OK, "kernel sent", size_bytes=5)
    desk.journey.record(MAC, Step.KERNEL, Outcome.FAILED, "kernel broken off", size_bytes=2)
    async with desk.client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    assert 'tinkedge_journey_events_total{outcome="ok",step="kernel"} 1.0' in lines
    assert 'tinkedge_journey_events_total{outcome="failed",step="kernel"} 1.0' in lines
    assert 'tinkedge_journey_events_total{outcome="refused",step="tftp"} 0.0' in lines
    assert 'tinkedge_sent_bytes_total{step="kernel"} 7.0' in lines
    assert "tinkedge_machines 2.0" in lines


async def test_open_stream_does_not_hold_up_the_end() -> None:
    journey = Journey(lambda: 0.0)
    server = TestServer(build_admin_app(journey, Inventory()))
    client = TestClient(server)
    await client.start_server()
    stream = await client.get("/api/v1/events")
    await sse(stream, 1)
    async with asyncio.timeout(20):
        await server.close()
    await client.close()


async def test_healthz(desk: Desk) -> None:
    async with desk.client.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok\n")
