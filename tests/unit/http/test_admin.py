"""The operators' API: machines, journeys, the live stream, metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge

from edge.http.admin import LIMITS, MAX_STREAMS, AdminApp, admin_runner
from edge.http.connections import HttpLimits
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import Inventory
from tests.support.objects import MAC, OTHER_MAC, hardware
from tests.waiting import until

STRANGER = "02:00:00:00:00:09"
TOKEN = "a" * 64
BEARER = {"Authorization": f"Bearer {TOKEN}"}
GUARDED = ["/api/v1/machines", f"/api/v1/machines/{MAC}/events", "/api/v1/events"]


@dataclass
class Desk:
    client: Any
    journey: Journey
    inventory: Inventory

    async def ask(self, path: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, str]:
        async with self.client.request(method, path, data=data, headers=headers) as response:
            return response.status, await response.text()

    async def json(self, path: str) -> Any:
        status, body = await self.ask(path)
        assert status == 200
        return json.loads(body)

    def offer(self, message: str = "offer", mac: str = MAC) -> None:
        self.journey.record(mac, Step.DHCP, Outcome.OK, message)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    times = iter(range(1000, 100_000))
    journey, inventory = Journey(lambda: float(next(times))), Inventory()
    for number, mac in enumerate((MAC, OTHER_MAC), 1):
        inventory.apply(hardware(f"m{number}", mac, f"10.0.0.{number}"))
    async with admin_client(journey, inventory, heartbeat_seconds=0.05) as client:
        yield Desk(client, journey, inventory)


class NoNetworks:
    def shown(self) -> list[dict[str, object]]:
        return []

    def notices(self) -> list[Any]:
        return []


@asynccontextmanager
async def admin_client(
    journey: Journey, inventory: Inventory, limits: HttpLimits = LIMITS, networks: Any = None, **settings: Any
) -> AsyncIterator[aiohttp.ClientSession]:
    """The server on loopback, and a client that has the token. The server ends first."""
    runner = admin_runner(
        AdminApp(journey, inventory, networks or NoNetworks(), lambda token: token == TOKEN, **settings), limits
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with aiohttp.ClientSession(base, headers=BEARER, connector=aiohttp.TCPConnector(limit=0)) as client:
        try:
            yield client
        finally:
            await runner.cleanup()


async def sse(response: aiohttp.ClientResponse, count: int, *, heartbeats: bool = False) -> list[str]:
    """The next `count` blocks of a Server-Sent Events stream."""
    blocks: list[str] = []
    while len(blocks) < count:
        block = (await response.content.readuntil(b"\n\n")).decode().strip()
        if heartbeats or block != ": heartbeat":
            blocks.append(block)
    return blocks


def messages(blocks: list[str]) -> list[str]:
    return [json.loads(block.removeprefix("data: "))["message"] for block in blocks]


async def test_active_machines_come_first_and_strangers_have_their_manifest(desk):
    desk.offer()
    desk.journey.record(STRANGER, Step.SEEN, Outcome.INFO, "seen, not registered", manifest="kind: Hardware\n")
    stranger, heard, silent = await desk.json("/api/v1/machines")
    seen = {"step": "seen", "outcome": "info", "message": "seen, not registered", "manifest": "kind: Hardware\n"}
    assert stranger == {"mac": STRANGER, "registered": False, "first_seen": 1001.0, "last_seen": 1001.0, **seen}
    known = {"registered": True, "ipv6": None, "namespace": "default"}
    dhcp = {"first_seen": 1000.0, "last_seen": 1000.0, "step": "dhcp", "outcome": "ok", "message": "offer"}
    assert heard == {"mac": MAC, "ip": "10.0.0.1", "name": "m1", **known, **dhcp}
    assert silent == {"mac": OTHER_MAC, "ip": "10.0.0.2", "name": "m2", **known}
    desk.journey.record(OTHER_MAC, Step.WORKFLOW, Outcome.INFO, "workflow default/w: Pending", state="Pending")
    assert (await desk.json("/api/v1/machines"))[-1] == silent, "its Workflow did that, and no machine was heard"


async def test_journey_of_one_machine(desk):
    desk.journey.record(MAC, Step.KERNEL, Outcome.OK, "kernel sent", size_bytes=5)
    reported = {"step": "kernel", "outcome": "ok", "message": "kernel sent", "detail": {"size_bytes": 5}}
    expected = [{"time": 1000.0, "mac": MAC, **reported}]
    for mac, events in ((MAC, expected), (MAC.replace(":", "-"), expected), (OTHER_MAC, [])):
        assert await desk.json(f"/api/v1/machines/{mac}/events") == events
    assert (await desk.ask("/api/v1/machines/02:00:00:00:00:77/events"))[0] == 404


async def test_stream_starts_now_or_with_all_that_is_kept(desk):
    desk.offer("past")
    async with desk.client.get("/api/v1/events") as now, desk.client.get("/api/v1/events?since=all") as everything:
        assert now.headers["Content-Type"] == "text/event-stream"
        desk.journey.record(STRANGER, Step.SEEN, Outcome.INFO, "present")
        hello, block = await sse(now, 2)
        assert (hello, messages([block])) == (": journey", ["present"])
        assert messages((await sse(everything, 3))[1:]) == ["past", "present"]
    assert await desk.ask("/api/v1/events?since=yesterday") == (400, "since must be now or all\n")


async def test_quiet_stream_has_a_heartbeat_and_does_not_hold_up_the_end():
    async with admin_client(Journey(lambda: 0.0), Inventory(), heartbeat_seconds=0.05) as client:
        assert await (await client.get("/api/v1/machines")).json() == []
        stream = await client.get("/api/v1/events")
        assert await sse(stream, 3, heartbeats=True) == [": journey", ": heartbeat", ": heartbeat"]


async def test_readers_that_leave_make_room_and_too_many_are_refused(desk):
    streams = [await desk.client.get("/api/v1/events") for _ in range(MAX_STREAMS)]
    assert (await desk.ask("/api/v1/events"))[0] == 503
    for stream in streams:
        stream.close()

    async def is_open() -> bool:
        async with desk.client.get("/api/v1/events") as reply:
            return reply.status == 200

    await until(is_open)


async def test_slow_reader_gets_the_number_of_lost_events_each_time(desk):
    async with desk.client.get("/api/v1/events") as stream:
        await sse(stream, 1)
        for beyond in (500, 200):
            for number in range(1_000 + beyond):
                desk.offer(str(number))
            lost, *blocks = await sse(stream, 1_001)
            assert lost == f"event: lost\ndata: {beyond}"
            assert messages(blocks[-1:]) == [str(999 + beyond)]


async def test_stream_of_many_is_in_the_order_of_time_with_nothing_twice_or_missing(desk):
    for number in range(1_000):
        desk.offer(str(number), f"52:54:00:00:01:{number % 50:02x}")
    async with desk.client.get("/api/v1/events?since=all") as stream:
        blocks = await sse(stream, 500)
        desk.offer("1000")
        blocks += await sse(stream, 502)
    assert messages(blocks[1:]) == [str(number) for number in range(1_001)]


async def test_many_machines_are_one_document(desk, monkeypatch):
    for number in range(700):
        desk.offer(mac=f"52:54:00:01:{number >> 8:02x}:{number & 255:02x}")
    shown = await desk.json("/api/v1/machines")
    assert len({machine["mac"] for machine in shown}) == len(shown) == 702
    heard = desk.journey.macs()
    monkeypatch.setattr(desk.journey, "macs", lambda: ["02:ff:ff:ff:ff:ff", *heard])  # forgotten meanwhile
    assert await desk.json("/api/v1/machines") == shown


async def test_metrics_count_steps_by_outcome_and_bytes_beside_those_of_other_servers():
    registry = CollectorRegistry()
    Gauge("tftp_transfers", "In progress.", registry=registry).set(3)
    journey = Journey(lambda: 0.0)
    journey.record(MAC, Step.KERNEL, Outcome.OK, "kernel sent", size_bytes=5)
    journey.record(MAC, Step.KERNEL, Outcome.FAILED, "kernel broken off", size_bytes=2)
    inventory = Inventory()
    inventory.apply(hardware("m1"))
    async with admin_client(journey, inventory, registry=registry) as client:
        shown = (await (await client.get("/metrics")).text()).splitlines()
    assert {
        'tinkedge_journey_events_total{outcome="ok",step="kernel"} 1.0',
        'tinkedge_journey_events_total{outcome="failed",step="kernel"} 1.0',
        'tinkedge_journey_events_total{outcome="refused",step="tftp"} 0.0',
        'tinkedge_sent_bytes_total{step="kernel"} 7.0',
        "tinkedge_machines 1.0",
        "tftp_transfers 3.0",
        f"tinkedge_journey_kept_bytes {float(journey.kept_bytes)}",
    } < set(shown)
    assert journey.kept_bytes > 0


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "shown", ["", "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff\xfe"]
)
async def test_answers_that_name_machines_need_the_token(desk, path, shown):
    desk.journey.record(MAC, Step.ACTION, Outcome.INFO, "password: 1234")
    async with desk.client.get(path, headers={"Authorization": shown}) as response:
        body = await response.text()
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, 'Bearer realm="tinkedge"')
    assert "admin-token" in body
    assert "1234" not in body


async def test_prometheus_and_probes_need_no_token(desk):
    desk.journey.record(MAC, Step.KERNEL, Outcome.OK, "kernel sent")
    assert await desk.ask("/healthz", Authorization="") == (200, "ok\n")
    status, body = await desk.ask("/metrics", Authorization="")
    assert (status, [secret for secret in (MAC, "m1", "10.0.0.1") if secret in body]) == (200, [])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1:7081", "127.0.0.1", "localhost:7081", "LocalHost", "[::1]:7081")),
        *((host, 403) for host in ("attacker.example:7081", "127.0.0.1.attacker.example", "[attacker", "")),
        ("localhost.attacker.example:7081", 403),
    ],
)
async def test_browser_led_here_by_another_name_is_sent_away(desk, host, status):
    """DNS rebinding: a page of attacker.example asks its own name, which now leads to loopback."""
    assert (await desk.ask("/metrics", Authorization="", Host=host))[0] == status
    assert (await desk.ask("/metrics", Host=host))[0] == 200, "a proxy that shows the token may pass on any name"


async def test_unknown_paths_and_writing_methods_are_rejected(desk):
    for path in ("/", "/api", "/api/v1/machines/x", "/api/v1/machines/x/y/events"):
        assert (await desk.ask(path))[0] == 404
    for path in (*GUARDED, "/metrics"):
        assert (await desk.ask(path, "POST", b"x" * 5000))[0] == 405


async def test_browser_at_a_path_that_is_not_there_is_led_to_the_page(desk):
    status, body = await desk.ask("/nothing", Accept="text/html,*/*", Authorization="")
    assert (status, "The page is at /" in body) == (404, True)
    assert await desk.ask("/nothing", Authorization="") == (404, "not found\n")


async def test_idle_connections_of_a_stranger_keep_no_operator_out():
    """Loopback is one address for all users of the host, so a share for each does not help: the idle ones go."""
    journey = Journey(lambda: 0.0)
    async with admin_client(journey, Inventory(), HttpLimits(connections=16, per_address=8)) as client:
        stream = await client.get("/api/v1/events")
        assert await sse(stream, 1) == [": journey"]
        opened = [await asyncio.open_connection("127.0.0.1", stream.url.port) for _ in range(100)]
        for number, (_, writer) in enumerate(opened):
            if number % 2 and not writer.is_closing():
                writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # and never the rest
        async with client.get("/api/v1/machines") as response:
            assert response.status == 200
        assert [await reader.read(1) for reader, _ in opened[:80]] == [b""] * 80
        journey.record(MAC, Step.DHCP, Outcome.OK, "still told")
        assert messages(await sse(stream, 1)) == ["still told"]
        for _, writer in opened:
            writer.transport.abort()
