"""The operators' HTTP API (port 7081, on loopback by default): the journey as JSON, stream and metrics.

    /api/v1/machines                  every machine: registered, or seen on the network (then with a manifest to
                                      register it), with its expected steps and its problems
    /api/v1/machines/<mac>/events     the journey of one machine, oldest event first
    /api/v1/events?since=now|all      the journeys of all machines, live (Server-Sent Events); `all` sends the stored
                                      events first. `event: notice` is about the edge itself: a network without service
    /api/v1/networks                  the networks that face machines: address, link, and problems
    /api/v1/page-code                 a code that lets a browser in once (`tinkedge page`)
    /metrics                          Prometheus
    /healthz, /livez, /readyz         as on the machines' port, which may move with its address
    /, /machine/..., /edge            pages for people: `edge.page`

Answers that name machines need the token (`edge.admin_token`, `Authorization: Bearer`): every user and program of the
host can reach loopback. Metrics are numbers without names. A browser that another site's name led here (DNS rebinding)
is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from edge.http.answers import for_people, local_address, not_allowed, text
from edge.http.connections import BoundedServer, HttpLimits, Runner, has_ended
from edge.journey.events import JourneyEvent, Notice
from edge.journey.recorder import Journey, MachineSummary
from edge.journey.subscription import Subscription
from edge.machines import Inventory, Machine
from tink.limits import OncePer
from tink.mac import from_any
from tink.metrics.families import Scraped, counter, gauge

log = logging.getLogger(__name__)

MAX_STREAMS = 64
"""Number of event streams at one time. Each holds a backlog in memory."""

LIMITS = HttpLimits(connections=256, per_address=128, body=1024)
"""Streams are never closed for new connections, but only clients with the token have them."""

HEARTBEAT_SECONDS = 15.0
"""Interval of comments in a silent stream. They keep the browser connected and reveal a client that has left."""

_SAY_AGAIN_SECONDS = 60.0

T = TypeVar("T")

_PORTION = 200  # machines or events that are serialised in one turn of the event loop, which also serves DHCP

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Networks(Protocol):
    """The networks that face machines, and their problems."""

    def shown(self) -> list[dict[str, object]]:
        """Return each network as JSON."""

    def notices(self) -> list[Notice]:
        """Return the current problems."""


class Pages(Protocol):
    """The pages for browsers (`edge.page.Site`)."""

    def find(self, path: str) -> Callable[[web.Request, bool], Awaitable[web.StreamResponse]] | None:
        """Return the handler of a path, or None. Its arguments: the request, and True if that shows the token."""

    async def code(self, request: web.Request) -> web.StreamResponse:
        """Return a code that lets a browser in."""

    def close(self) -> None:
        """End the streams."""


@dataclass(eq=False)
class AdminApp:
    """Answers the operators' requests, if they may have the answer.

    admits: returns True for a valid token.
    registry: has the metrics of the other servers; those of the journey are added.
    ready: returns why machines can't be served, or an empty string.
    note: returns a remark that `/readyz` adds to "ok".
    notices: returns the current notices about the edge, apart from those about networks.
    awaited: returns the expected step and the problems of a machine by MAC, for its entry.
    """

    journey: Journey
    inventory: Inventory
    networks: Networks
    admits: Callable[[str], bool]
    _: KW_ONLY
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    ready: Callable[[], str] = lambda: ""
    note: Callable[[], str] = lambda: ""
    notices: Callable[[], list[Notice]] = list
    awaited: Callable[[str], Mapping[str, object]] = lambda _mac: {}
    pages: Pages | None = None

    def __post_init__(self) -> None:
        self.registry.register(Scraped(partial(_journey_metrics, self.journey, self.inventory)))
        self._streams: set[Subscription] = set()
        self._refused = OncePer(_SAY_AGAIN_SECONDS, 256)
        self._open: dict[str, _Handler] = {
            "/metrics": self._show_metrics,
            "/healthz": self._health,
            "/livez": self._health,
            "/readyz": self._readiness,
        }
        self._guarded: dict[str, _Handler] = {
            "/api/v1/machines": self.machines,
            "/api/v1/events": self.events,
            "/api/v1/networks": self._show_networks,
        }
        if self.pages is not None:
            self._guarded["/api/v1/page-code"] = self.pages.code

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        # The token in `Authorization: Bearer` (RFC 6750 section 2.1).
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        shown = shown.strip() if scheme.lower() == "bearer" else ""
        known = bool(shown) and self.admits(shown)
        if not known and not _named_here(request):
            return text(
                "the Host header does not name this edge: request its address or localhost, or send the token",
                status=403,
            )
        path = request.rel_url.path.rstrip("/") or "/"
        page = self.pages.find(path) if self.pages is not None else None
        if page is not None:
            return await page(request, known) if request.method in ("GET", "HEAD") else not_allowed(("GET", "HEAD"))
        handler = self._open.get(path)
        if handler is None:
            handler = self._guarded.get(path)
            match path.split("/"):
                case ["", "api", "v1", "machines", mac, "events"]:
                    handler = partial(self.machine_events, mac)
            if handler is None:
                return for_people(request, "Nothing is at this path.", "The page is at /, and the metrics at /metrics.")
            if not known:
                return self._unknown(request, shown)
        methods = ("GET",) if handler == self.events else ("GET", "HEAD")
        if request.method not in methods:
            return not_allowed(methods)
        return await handler(request)

    def close(self) -> None:
        """End the streams, so that a stopping server does not wait for them."""
        for subscription in list(self._streams):
            subscription.close()
        if self.pages is not None:
            self.pages.close()

    def _unknown(self, request: web.Request, shown: str) -> web.Response:
        who = request.remote or "an unknown client"
        if self._refused.due(who, time.monotonic()):
            log.warning(
                "%s: refused on the operators' port: %s", who, "a wrong token" if shown else "without the token"
            )
        return text(
            "this needs the token in the edge's DATA_DIR/admin-token, as 'Authorization: Bearer TOKEN'; "
            "'tinkedge watch' sends it",
            status=401,
            headers={"WWW-Authenticate": 'Bearer realm="tinkedge"'},
        )

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _request: web.Request) -> web.Response:
        return text("ok")

    async def _readiness(self, _request: web.Request) -> web.Response:
        if problem := self.ready():
            return text(f"not ready: {problem}", status=503)
        return text(": ".join(filter(None, ("ok", self.note()))))

    # --- with the token ----------------------------------------------------------------------------------------------

    async def machines(self, request: web.Request) -> web.StreamResponse:
        """Answer GET /api/v1/machines: the most recently active machine first, then those without activity."""
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
        # Several Hardware may claim a MAC. Show the one that is served with it.
        silent = {each.mac: self.inventory.by_mac(each.mac) or each for each in self.inventory.machines()}
        for mac in self.journey.macs():
            summary = self.journey.summary(mac)
            if mac in silent and not self.journey.was_heard(mac):
                continue  # so far only its Workflow was active
            if summary is not None:  # the journey may forget a machine between two portions
                silent.pop(mac, None)
                yield self._heard_json(summary)
        for _, machine in sorted(silent.items()):
            yield _machine_json(machine)

    async def machine_events(self, spelled: str, _request: web.Request) -> web.Response:
        """Answer GET /api/v1/machines/<mac>/events."""
        mac = from_any(spelled) or spelled
        events = self.journey.events(mac)
        if not events and self.inventory.by_mac(mac) is None:
            return text("the edge has received no packet from this MAC address, and no Hardware has it", status=404)
        return _json([event_json(event) for event in events])

    async def _show_networks(self, _request: web.Request) -> web.Response:
        return _json(self.networks.shown())

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Answer GET /api/v1/events."""
        since = request.query.get("since", "now")
        if since not in ("now", "all"):
            return text("since must be now or all", status=400)
        if len(self._streams) >= MAX_STREAMS:
            return text(f"{MAX_STREAMS} event streams are open already", status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        with contextlib.closing(self.journey.subscribe()) as subscription:
            past = self.journey.past() if since == "all" else None  # taken now: later events are in the stream
            self._streams.add(subscription)
            try:
                await response.prepare(request)
                await response.write(b": journey\n\n")
                await response.write(b"".join(map(_sse, [*self.notices(), *self.networks.notices()])))
                if past is not None:
                    for portion in _portions(past):
                        await response.write(b"".join(map(_sse, portion)))
                        await asyncio.sleep(0)
                await self._stream(request, response, subscription)
            except ConnectionError:
                pass  # the client has left: the normal end of a stream
            finally:
                self._streams.discard(subscription)
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, subscription: Subscription) -> None:
        reported = 0
        while not has_ended(request):
            try:
                async with asyncio.timeout(self.heartbeat_seconds):
                    event = await anext(subscription)
            except TimeoutError:
                await response.write(b": heartbeat\n\n")
                continue
            except StopAsyncIteration:
                return
            if subscription.dropped > reported:
                lost, reported = subscription.dropped - reported, subscription.dropped
                await response.write(f"event: lost\ndata: {lost}\n\n".encode())
            await response.write(_sse(event))

    def _heard_json(self, summary: MachineSummary) -> dict[str, object]:
        machine = self.inventory.by_mac(summary.mac)
        shown = _machine_json(machine) if machine is not None else {"mac": summary.mac, "registered": False}
        if machine is None:
            # The Hardware manifest that DHCP proposed for an unregistered machine.
            proposed = (each.detail.get("manifest") for each in reversed(self.journey.events(summary.mac)))
            shown["manifest"] = next((each for each in proposed if isinstance(each, str)), None)
        last = summary.last
        return shown | {
            "first_seen": summary.first_seen,
            "last_seen": summary.last_seen,
            "step": last.step.value,
            "outcome": last.outcome.value,
            "message": last.message,
            **self.awaited(summary.mac),
        }


def admin_runner(app: AdminApp, limits: HttpLimits = LIMITS) -> web.BaseRunner:
    """Return a runner of the application, for any number of sites. Needs a running loop."""
    return Runner(BoundedServer(app.answer, limits, time.monotonic), app.close)


def _named_here(request: web.Request) -> bool:
    """Return False if the Host header has a name that can lead to loopback only by DNS rebinding."""
    host = request.headers.get("Host")
    # On other addresses any name is accepted, because the network may have names for this host.
    if host is None or not ipaddress.ip_address(local_address(request) or "127.0.0.1").is_loopback:
        return True
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost" or name.lower().endswith(".localhost"):  # RFC 6761 section 6.3
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def event_json(event: JourneyEvent) -> dict[str, object]:
    """Return an event in the form of the API."""
    return {
        "time": event.time,
        "mac": event.mac,
        "step": event.step.value,
        "outcome": event.outcome.value,
        "message": event.message,
        "detail": dict(event.detail),
    }


def _machine_json(machine: Machine) -> dict[str, object]:
    return {
        "mac": machine.mac,
        "registered": True,
        "ip": machine.ip,
        "ipv6": machine.ipv6,
        "name": machine.name,
        "namespace": machine.namespace,
    }


def _json(document: object) -> web.Response:
    body = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, content_type="application/json")


def _sse(event: JourneyEvent | Notice) -> bytes:
    if isinstance(event, Notice):
        return b"event: notice\ndata: " + orjson.dumps(event) + b"\n\n"
    return b"data: " + orjson.dumps(event_json(event)) + b"\n\n"


def _portions(items: Iterator[T]) -> Iterator[list[T]]:
    while portion := list(islice(items, _PORTION)):
        yield portion


def _journey_metrics(journey: Journey, inventory: Inventory) -> Iterator[Metric]:
    """Yield the counters of journey events as Prometheus metrics."""
    text = "Steps of machines' boots, by step and outcome."
    events = {(step.value, outcome.value): count for (step, outcome), count in journey.counts().items()}
    yield counter("tinkedge_journey_events", text, ["step", "outcome"], events)
    sent = {(step.value,): size for step, size in journey.sent_bytes().items()}
    yield counter("tinkedge_sent_bytes", "Bytes of files sent to machines, by step.", ["step"], sent)
    yield gauge("tinkedge_machines", "Network interfaces of the Hardware known here.", [], {(): len(inventory)})
    text = "Memory that the events of all machines take, about; bounded."
    yield gauge("tinkedge_journey_kept_bytes", text, [], {(): journey.kept_bytes})
