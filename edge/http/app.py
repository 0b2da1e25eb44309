"""The HTTP server of booting machines (port 7080): scripts, boot programs, kernels, initrds, metadata, health.

In the order of a boot: `edge.http.boot` (script, boot program), `edge.http.osie` (kernel, initrd), then, when the
installed system comes up, `edge.http.metadata`. `edge.http.routes` says which path is whose, `edge.http.connections`
what strangers may take. There are no directory listings and no redirects, and nothing here tells a machine about
another one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from edge.artifacts.cache import ArtifactCache
from edge.callers import Callers
from edge.http.body import BodySender
from edge.http.boot import BootScripts
from edge.http.connections import Limits, MachineServer
from edge.http.context import Binaries, Context, text
from edge.http.metadata import MetadataService
from edge.http.osie import OsieDownloads
from edge.http.routes import Place, Route, route
from edge.inventory import Inventory
from edge.journey.events import Recorder
from edge.osie_files import OsieFiles, OsieLookup
from edge.policy import NetbootPolicy
from ipxe.scripts import BootSettings, Scripts
from tink.once_per import OncePer

SAY_AGAIN_SECONDS = 60.0
"""After which time the same refusal, or the same document for the same machine, is worth another line."""

Answer = Callable[[web.Request, Route], Awaitable[web.StreamResponse]]


class MachineApp:
    """From a request to its handler."""

    def __init__(self, context: Context, scripts: Scripts, sender: BodySender, agent_ca: bytes) -> None:
        self._context = context
        self._agent_ca = agent_ca
        self._sender = sender
        metadata = MetadataService(context)
        osie = OsieDownloads(context, sender)
        boot = BootScripts(context, scripts, osie.failure)
        self._answers: dict[Place, Answer] = {
            Place.SCRIPT: boot.answer,
            Place.BINARY: boot.binary,
            Place.OSIE: osie.answer,
            Place.EC2: metadata.ec2,
            Place.NOCLOUD: metadata.nocloud,
            Place.PHONE_HOME: metadata.phone_home,
            Place.AGENT_CA: self._ca,
            Place.HEALTH: self._health,
            Place.READY: self._ready,
        }

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        return self._context.clock

    def close(self) -> None:
        """Break off the bodies that are being sent."""
        self._sender.close()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        found = route(request.rel_url.raw_path)
        if found is None:
            return text("not found", status=404)
        methods = ("POST",) if found.place is Place.PHONE_HOME else ("GET", "HEAD")
        if request.method not in methods:
            response = text(f"the method must be {' or '.join(methods)}", status=405)
            response.headers["Allow"] = ", ".join(methods)
            return response
        return await self._answers[found.place](request, found)

    async def _ca(self, _request: web.Request, _found: Route) -> web.StreamResponse:
        """What an agent trusts the gRPC server by; no secret."""
        if not self._agent_ca:
            return text("the gRPC server of this edge has no certificate", status=404)
        return web.Response(body=self._agent_ca, content_type="application/x-pem-file")

    async def _health(self, _request: web.Request, _found: Route) -> web.StreamResponse:
        """The process answers."""
        return text("ok")

    async def _ready(self, _request: web.Request, _found: Route) -> web.StreamResponse:
        """It can serve machines."""
        problem = self._context.ready()
        return text("ok") if not problem else text(f"not ready: {problem}", status=503)


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
    default_osie: tuple[str, str] | None = None,
    ready: Callable[[], str] = lambda: "",
    clock: Callable[[], float] = time.monotonic,
    sender: BodySender | None = None,
) -> MachineApp:
    """The application; `machine_runner` serves it. The cache must be started before, and stopped after it.

    `osie(namespace, name)` looks an OSIE up; `default_osie` is the namespace and name of the one that machines without
    a Hardware may have; `ready()` gives why the edge can't serve yet, or an empty string; `clock` gives monotonic
    seconds.
    """
    context = Context(
        inventory=inventory,
        callers=callers,
        policy=policy,
        osie=osie,
        osie_files=OsieFiles(osie, cache),
        default_osie=default_osie,
        binaries=binaries,
        record=record,
        clock=clock,
        ready=ready,
        said=OncePer(SAY_AGAIN_SECONDS, 16384),
        refusals=OncePer(SAY_AGAIN_SECONDS, 1024),
    )
    return MachineApp(context, Scripts(settings), sender or BodySender(), settings.tls_ca)


def machine_runner(app: MachineApp, limits: Limits | None = None) -> web.BaseRunner:
    """A runner of the application, for any number of sites. Needs a running loop; `cleanup` takes a second at most."""
    return _Runner(app, MachineServer(app.answer, limits or Limits(), app.clock))


class _Runner(web.ServerRunner):
    """Breaks bodies off first: nobody can wait for all of a kernel when the edge is to stop."""

    def __init__(self, app: MachineApp, server: MachineServer) -> None:
        super().__init__(server, shutdown_timeout=0.5)
        self._machine_app = app

    async def shutdown(self) -> None:
        self._machine_app.close()
