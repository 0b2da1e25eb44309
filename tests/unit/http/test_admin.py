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


async def sse(response: aiohttp.ClientResponse, count: int) -> list[str]:
    """The next `count` blocks of a Server-Sent Events stream."""
    blocks = []
    async with asyncio.timeout(5):
        while len(blocks) < count:
            blocks.append((await response.content.readuntil(b"\n\n")).decode().strip())
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
        assert await sse(stream, 3) == [": journey", ": heartbeat", ": heartbeat"]


async def test_readers_that_leave_make_room_and_too_many_are_refused(desk: Desk) -> None:
    streams = [await desk.client.get("/api/v1/events") for _ in range(MAX_STREAMS)]
    assert (await desk.client.get("/api/v1/events")).status == 503
    for stream in streams:
        stream.close()
    async with asyncio.timeout(5):
        while (reply := await desk.client.get("/api/v1/events")).status == 503:
            await asyncio.sleep(0.05)
    assert reply.status == 200
    reply.close()


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
    async with asyncio.timeout(2):
        await server.close()
    await client.close()


async def test_healthz(desk: Desk) -> None:
    async with desk.client.get("/healthz") as response:
        assert (response.status, await response.text()) == (200, "ok\n")
