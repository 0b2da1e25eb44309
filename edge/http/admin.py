"""The operators' HTTP API (port 7081, on loopback unless told otherwise): the journey as JSON, stream and metrics.

    /api/v1/machines                  every machine: registered, or only heard (then with a manifest to register it);
                                      what is awaited of it, and what is wrong with it
    /api/v1/machines/<mac>/events     the journey of one machine, oldest event first
    /api/v1/events?since=now|all      the journey of all, live (Server-Sent Events); `all` sends what is kept first.
                                      `event: notice` is about the edge itself: a network that it can't serve
    /api/v1/networks                  the networks that face machines: address, link, and what keeps one from serving
    /api/v1/page-code                 what lets a browser in, once (`tinkedge page`)
    /metrics                          Prometheus
    /healthz, /livez, /readyz         as on the machines' port, which goes with its address
    /, /machine/..., /edge            pages for people: `edge.page`

What names a machine is for those who have the token (`edge.admin_token`, `Authorization: Bearer`): loopback
is open to every user of the host, and to every program that fetches what it is told to. Metrics are numbers without
names. A browser that was led here by a name of somebody else's (DNS rebinding) is sent away.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from edge.http.connections import BoundedServer, Limits, Runner, has_ended
from edge.http.context import for_people, local_address, not_allowed, text
from edge.journey.events import JourneyEvent, Notice
from edge.journey.metrics import journey_metrics
from edge.journey.recorder import Journey, MachineSummary
from edge.journey.subscription import Subscription
from edge.machines import Inventory, Machine
from tink.limits.once_per import OncePer
from tink.mac import from_any
from tink.metrics.families import Scraped

log = logging.getLogger(__name__)

MAX_STREAMS = 64
"""Event streams at one time; each holds a backlog in memory."""

LIMITS = Limits(connections=256, per_address=128, body=1024)
"""Of connections. Streams are not closed for new ones; whoever has no token keeps none that would not be."""

HEARTBEAT_SECONDS = 15.0
"""A comment is sent after so long a silence: browsers keep the stream then, and a reader that is gone is noticed."""

_SAY_AGAIN_SECONDS = 60.0

T = TypeVar("T")

_PORTION = 200  # machines, or events, that are made into JSON in one turn of the event loop: DHCP is served by it too

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Networks(Protocol):
    """The networks that face machines, and what keeps one from being served."""

    def shown(self) -> list[dict[str, object]]:
        """Each of them, as JSON."""

    def notices(self) -> list[Notice]:
        """What is wrong now."""


class Pages(Protocol):
    """What people see with a browser (`edge.page.Site`)."""

    def find(self, path: str) -> Callable[[web.Request, bool], Awaitable[web.StreamResponse]] | None:
        """The handler of a path, of a request and whether it shows the token; None: it is none of theirs."""

    async def code(self, request: web.Request) -> web.StreamResponse:
        """What lets a browser in, for who has the token."""

    def close(self) -> None:
        """Let the streams end."""


class AdminApp:
    """From a request to its answer, if whoever asks may have it."""

    def __init__(
        self,
        journey: Journey,
        inventory: Inventory,
        networks: Networks,
        admits: Callable[[str], bool],
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        registry: CollectorRegistry | None = None,
        ready: Callable[[], str] = lambda: "",
        note: Callable[[], str] = lambda: "",
        notices: Callable[[], list[Notice]] = list,
        awaited: Callable[[str], Mapping[str, object]] = lambda _mac: {},
        pages: Pages | None = None,
    ) -> None:
        """`admits(token)`: whether a token is good. `registry` has the metrics of the other servers; the journey's are
        added. `ready()` gives why machines can't be served, or an empty string, `note()` what operators are told
        beside "ok"; `notices()` what was announced of the edge and is still so, besides the networks'. `awaited(mac)`
        is what is awaited of a machine, and what was found wrong with it, for its entry.
        """
        self._metrics = registry if registry is not None else CollectorRegistry()
        self._metrics.register(Scraped(partial(journey_metrics, journey, inventory)))
        self._journey = journey
        self._inventory = inventory
        self._networks = networks
        self._heartbeat_seconds = heartbeat_seconds
        self._notices = notices
        self._awaited = awaited
        self._streams: set[Subscription] = set()
        self._ready = ready
        self._note = note
        self._admits = admits
        self._pages = pages
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
            "/api/v1/networks": self.networks,
        }
        if pages is not None:
            self._guarded["/api/v1/page-code"] = pages.code

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        shown = _token(request)
        known = bool(shown) and self._admits(shown)
        if not known and not _named_here(request):
            return text(
                "this is not the name of the edge: ask for its address, or localhost, or show the token", status=403
            )
        path = request.rel_url.path.rstrip("/") or "/"
        page = self._pages.find(path) if self._pages is not None else None
        if page is not None:
            return await page(request, known) if request.method in ("GET", "HEAD") else not_allowed(("GET", "HEAD"))
        handler = self._open.get(path)
        if handler is None:
            handler = self._guarded.get(path) or self._of_machine(path)
            if handler is None:
                return for_people(request, "Nothing is at this path.", "The page is at /, and the metrics at /metrics.")
            if not known:
                return self._unknown(request, shown)
        methods = ("GET",) if handler == self.events else ("GET", "HEAD")
        if request.method not in methods:
            return not_allowed(methods)
        return await handler(request)

    def close(self) -> None:
        """Let the streams end, so that a stopping server does not wait for them."""
        for subscription in list(self._streams):
            subscription.close()
        if self._pages is not None:
            self._pages.close()

    def _unknown(self, request: web.Request, shown: str) -> web.Response:
        who = request.remote or "somebody"
        if self._refused.due(who, time.monotonic()):
            log.warning(
                "%s: refused on the operators' port: %s", who, "a wrong token" if shown else "without the token"
            )
        response = text(
            "this needs the token in the edge's DATA_DIR/admin-token, as 'Authorization: Bearer TOKEN'; "
            "'tinkedge watch' sends it",
            status=401,
        )
        response.headers["WWW-Authenticate"] = 'Bearer realm="tinkedge"'
        return response

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _request: web.Request) -> web.Response:
        return text("ok")

    async def _readiness(self, _request: web.Request) -> web.Response:
        problem = self._ready()
        if problem:
            return text(f"not ready: {problem}", status=503)
        return text(": ".join(filter(None, ("ok", self._note()))))

    # --- for those who have the token --------------------------------------------------------------------------------

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
        # Several Hardware may claim a MAC. Show the one that is served with it.
        silent = {each.mac: self._inventory.by_mac(each.mac) or each for each in self._inventory.machines()}
        for mac in self._journey.macs():
            summary = self._journey.summary(mac)
            if mac in silent and not self._journey.was_heard(mac):
                continue  # so far, its Workflow alone has done something
            if summary is not None:  # else it was forgotten between two portions
                silent.pop(mac, None)
                yield self._heard_json(summary)
        for _, machine in sorted(silent.items()):
            yield _machine_json(machine)

    def _of_machine(self, path: str) -> _Handler | None:
        """The handler of a machine's path."""
        match path.split("/"):
            case ["", "api", "v1", "machines", mac, "events"]:
                return partial(self.machine_events, mac)
        return None

    async def machine_events(self, spelled: str, _request: web.Request) -> web.Response:
        """GET /api/v1/machines/<mac>/events."""
        mac = from_any(spelled) or spelled
        events = self._journey.events(mac)
        if not events and self._inventory.by_mac(mac) is None:
            return text("no machine with this MAC address was heard, and no Hardware has it", status=404)
        return _json([event_json(event) for event in events])

    async def networks(self, _request: web.Request) -> web.Response:
        """GET /api/v1/networks."""
        return _json(self._networks.shown())

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
                await response.write(b"".join(map(_sse, [*self._notices(), *self._networks.notices()])))
                if past is not None:
                    await self._send_past(response, past)
                await self._stream(request, response, subscription)
            except ConnectionError:
                pass  # the reader went away, which is how streams end
            finally:
                self._streams.discard(subscription)
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, subscription: Subscription) -> None:
        told_of = 0
        while not has_ended(request):
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
            **self._awaited(summary.mac),
        }


def admin_runner(app: AdminApp, limits: Limits = LIMITS) -> web.BaseRunner:
    """A runner of the application, for any number of sites. Needs a running loop."""
    return Runner(BoundedServer(app.answer, limits, time.monotonic), app.close)


def _token(request: web.Request) -> str:
    """What `Authorization: Bearer` shows (RFC 6750 section 2.1); empty if nothing."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _named_here(request: web.Request) -> bool:
    """Whether the Host may be ours: on loopback, no other name leads here but by somebody's trick.

    On other addresses the network may have names for this host that are not known here.
    """
    host = request.headers.get("Host")
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
    """An event as the API shows it."""
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


def _sse(event: JourneyEvent | Notice) -> bytes:
    if isinstance(event, Notice):
        return b"event: notice\ndata: " + orjson.dumps(event) + b"\n\n"
    return b"data: " + orjson.dumps(event_json(event)) + b"\n\n"


def _portions(items: Iterator[T]) -> Iterator[list[T]]:
    while portion := list(islice(items, _PORTION)):
        yield portion
