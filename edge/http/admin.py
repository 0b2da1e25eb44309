"""The operators' HTTP API (port 7081, on loopback unless told otherwise): the journey as JSON, stream and metrics.

    /api/v1/machines                  every machine: registered, or only heard (then with a manifest to register it)
    /api/v1/machines/<mac>/events     the journey of one machine, oldest event first
    /api/v1/events?since=now|all      the journey of all, live (Server-Sent Events); `all` sends what is kept first
    /metrics                          Prometheus
    /healthz

It shows one machine's affairs to whoever asks, so it is never bound where booting machines can reach it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from edge.http.context import text
from edge.inventory import Inventory, Machine
from edge.journey.events import JourneyEvent
from edge.journey.metrics import JourneyMetrics
from edge.journey.recorder import Journey, MachineSummary
from edge.journey.subscription import Subscription

MAX_STREAMS = 64
"""Event streams at one time; each holds a backlog in memory."""

HEARTBEAT_SECONDS = 15.0
"""A comment is sent after so long a silence: browsers keep the stream then, and a reader that is gone is noticed."""

T = TypeVar("T")

_PORTION = 200  # machines, or events, that are made into JSON in one turn of the event loop: DHCP is served by it too


def build_admin_app(
    journey: Journey,
    inventory: Inventory,
    *,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    registry: CollectorRegistry | None = None,
) -> web.Application:
    """The application. `registry` has the metrics of the other servers, if it is given; the journey's are added."""
    metrics = registry if registry is not None else CollectorRegistry()
    metrics.register(JourneyMetrics(journey, inventory))
    api = _Api(journey, inventory, heartbeat_seconds)

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_request: web.Request) -> web.Response:
        return text("ok")

    app = web.Application(client_max_size=1024)
    app.router.add_get("/api/v1/machines", api.machines)
    app.router.add_get("/api/v1/machines/{mac}/events", api.machine_events)
    app.router.add_get("/api/v1/events", api.events, allow_head=False)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/healthz", health)
    app.on_shutdown.append(api.end_streams)
    return app


def event_json(event: JourneyEvent) -> dict[str, object]:
    """An event as the API shows it."""
    return {
        "time": event.time,
        "mac": event.mac,
        "step": event.step.value,
        "outcome": event.outcome.value,
        "message": event.message,
        "detail": dict(event.detail),
    }


class _Api:
    def __init__(self, journey: Journey, inventory: Inventory, heartbeat_seconds: float) -> None:
        self._journey = journey
        self._inventory = inventory
        self._heartbeat_seconds = heartbeat_seconds
        self._streams: set[Subscription] = set()

    async def machines(self, request: web.Request) -> web.StreamResponse:
        """GET /api/v1/machines: those heard last first, then those never heard."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        before = b"["
        for portion in _portions(self._all_machines()):
            text = orjson.dumps(portion, option=orjson.OPT_INDENT_2)
            await response.write(before + text.removeprefix(b"[").removesuffix(b"\n]"))
            before = b","
            await asyncio.sleep(0)
        await response.write(b"[]\n" if before == b"[" else b"\n]\n")
        return response

    def _all_machines(self) -> Iterator[dict[str, object]]:
        silent = {machine.mac: machine for machine in self._inventory.machines()}
        for mac in self._journey.macs():
            summary = self._journey.summary(mac)
            if summary is not None:  # else it was forgotten between two portions
                silent.pop(mac, None)
                yield self._heard_json(summary)
        for _, machine in sorted(silent.items()):
            yield _machine_json(machine)

    async def machine_events(self, request: web.Request) -> web.Response:
        """GET /api/v1/machines/<mac>/events."""
        mac = request.match_info["mac"].lower().replace("-", ":")
        events = self._journey.events(mac)
        if not events and self._inventory.by_mac(mac) is None:
            return text("no machine with this MAC address was heard, and no Hardware has it", status=404)
        return _json([event_json(event) for event in events])

    async def events(self, request: web.Request) -> web.StreamResponse:
        """GET /api/v1/events."""
        since = request.query.get("since", "now")
        if since not in ("now", "all"):
            return text("since must be now or all", status=400)
        if len(self._streams) >= MAX_STREAMS:
            return text(f"{MAX_STREAMS} event streams are open already", status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        with self._journey.subscribe() as subscription:
            past = self._journey.past() if since == "all" else None  # at once: what happens later is the stream's
            self._streams.add(subscription)
            try:
                await response.prepare(request)
                await response.write(b": journey\n\n")
                if past is not None:
                    await self._send_past(response, past)
                await self._stream(response, subscription)
            except ConnectionError:
                pass  # the reader went away, which is how streams end
            finally:
                self._streams.discard(subscription)
        return response

    async def end_streams(self, _app: web.Application) -> None:
        """Let the streams end, so that a stopping server does not wait for them."""
        for subscription in list(self._streams):
            subscription.close()

    async def _stream(self, response: web.StreamResponse, subscription: Subscription) -> None:
        told_of = 0
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    event = await anext(subscription)
            except TimeoutError:
                await response.write(b": heartbeat\n\n")
                continue
            except StopAsyncIteration:
                return
            if subscription.dropped > told_of:
                lost, told_of = subscription.dropped - told_of, subscription.dropped
                await response.write(f"event: lost\ndata: {lost}\n\n".encode())
            await response.write(_sse(event))

    async def _send_past(self, response: web.StreamResponse, past: Iterator[JourneyEvent]) -> None:
        for portion in _portions(past):
            await response.write(b"".join(map(_sse, portion)))
            await asyncio.sleep(0)

    def _heard_json(self, summary: MachineSummary) -> dict[str, object]:
        machine = self._inventory.by_mac(summary.mac)
        shown = _machine_json(machine) if machine is not None else {"mac": summary.mac, "registered": False}
        if machine is None:
            shown["manifest"] = _manifest(self._journey.events(summary.mac))
        last = summary.last
        return shown | {
            "first_seen": summary.first_seen,
            "last_seen": summary.last_seen,
            "step": last.step.value,
            "outcome": last.outcome.value,
            "message": last.message,
        }


def _machine_json(machine: Machine) -> dict[str, object]:
    return {
        "mac": machine.mac,
        "registered": True,
        "ip": machine.ip,
        "name": machine.name,
        "namespace": machine.namespace,
    }


def _manifest(events: list[JourneyEvent]) -> str | None:
    """The Hardware manifest that whoever heard the machine has proposed."""
    for event in reversed(events):
        manifest = event.detail.get("manifest")
        if isinstance(manifest, str):
            return manifest
    return None


def _json(document: object) -> web.Response:
    body = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, content_type="application/json")


def _sse(event: JourneyEvent) -> bytes:
    return b"data: " + orjson.dumps(event_json(event)) + b"\n\n"


def _portions(items: Iterator[T]) -> Iterator[list[T]]:
    while portion := list(islice(items, _PORTION)):
        yield portion
