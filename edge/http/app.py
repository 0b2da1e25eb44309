"""The HTTP server of booting machines (port 7080): scripts, boot programs, kernels, initrds, metadata, health.

In the order of a boot: `edge.http.boot` (script, boot program), `edge.http.osie` (kernel, initrd), then, when the
installed system comes up, `edge.http.metadata`. `edge.http.routes` says which path is whose. There are no directory
listings and no redirects, and nothing here tells a machine about another one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from edge.artifacts.cache import ArtifactCache
from edge.callers import Callers
from edge.http.body import BodySender
from edge.http.boot import BootScripts, binary
from edge.http.context import Binaries, Context, OsieLookup, text
from edge.http.metadata import MetadataService
from edge.http.osie import OsieFiles
from edge.http.routes import Place, Route, route
from edge.inventory import Inventory
from edge.journey.events import Recorder
from edge.once_per import OncePer
from edge.policy import NetbootPolicy
from ipxe.scripts import BootSettings, Scripts

MAX_BODY = 64 * 1024
"""Bytes of a request body. Only cloud-init's report has one; it holds three public keys."""

SAY_AGAIN_SECONDS = 60.0
"""After which time the same refusal, or the same document for the same machine, is worth another line."""

Answer = Callable[[web.Request, Route], Awaitable[web.StreamResponse]]


def build_app(
    *,
    inventory: Inventory,
    callers: Callers,
    policy: NetbootPolicy,
    osie: OsieLookup,
    cache: ArtifactCache,
    binaries: Binaries,
    record: Recorder,
    settings: BootSettings,
    ready: Callable[[], str] = lambda: "",
    clock: Callable[[], float] = time.monotonic,
    sender: BodySender | None = None,
) -> web.Application:
    """The application; `machine_runner` serves it. The cache must be started before, and stopped after it.

    `osie(namespace, name)` looks an OSIE up; `ready()` gives why the edge can't serve yet, or an empty string; `clock`
    gives monotonic seconds.
    """
    context = Context(
        inventory=inventory,
        callers=callers,
        policy=policy,
        osie=osie,
        cache=cache,
        binaries=binaries,
        record=record,
        clock=clock,
        ready=ready,
        said=OncePer(SAY_AGAIN_SECONDS, 16384),
        refusals=OncePer(SAY_AGAIN_SECONDS, 1024),
    )
    bodies = sender or BodySender()
    dispatch = _Dispatch(context, Scripts(settings), bodies)

    async def threads(_: web.Application) -> AsyncIterator[None]:
        yield
        bodies.close()

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_route("*", "/{path:.*}", dispatch.answer)
    app.cleanup_ctx.append(threads)
    return app


def machine_runner(app: web.Application) -> web.AppRunner:
    """A runner with the limits that strangers on the network call for: line and header sizes, idle connections."""
    return web.AppRunner(
        app,
        access_log=None,  # the journey says it better
        handle_signals=False,
        keepalive_timeout=30.0,
        max_line_size=4096,
        max_field_size=4096,
        max_headers=64,
        lingering_time=2.0,
        shutdown_timeout=2.0,
    )


class _Dispatch:
    """From the path to the handler."""

    def __init__(self, context: Context, scripts: Scripts, sender: BodySender) -> None:
        self._context = context
        metadata = MetadataService(context)
        osie_files = OsieFiles(context, sender)
        self._answers: dict[Place, Answer] = {
            Place.SCRIPT: BootScripts(context, scripts, osie_files.failure).answer,
            Place.BINARY: self._binary,
            Place.OSIE: osie_files.answer,
            Place.EC2: metadata.ec2,
            Place.NOCLOUD: metadata.nocloud,
            Place.PHONE_HOME: metadata.phone_home,
            Place.HEALTH: self._health,
            Place.READY: self._ready,
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        found = route(request.rel_url.raw_path)
        if found is None:
            return text("not found", status=404)
        methods = ("POST",) if found.place is Place.PHONE_HOME else ("GET", "HEAD")
        if request.method not in methods:
            response = text(f"the method must be {' or '.join(methods)}", status=405)
            response.headers["Allow"] = ", ".join(methods)
            return response
        return await self._answers[found.place](request, found)

    async def _binary(self, request: web.Request, found: Route) -> web.StreamResponse:
        return await binary(self._context, request, found)

    async def _health(self, _request: web.Request, _found: Route) -> web.StreamResponse:
        """The process answers."""
        return text("ok")

    async def _ready(self, _request: web.Request, _found: Route) -> web.StreamResponse:
        """It can serve machines."""
        problem = self._context.ready()
        return text("ok") if not problem else text(f"not ready: {problem}", status=503)
