"""The HTTP server of booting machines (port 7080): scripts, boot programs, kernels, initrds, metadata, health.

In the order of a boot: `edge.http.boot.scripts` (script, boot program), `edge.http.boot.osie` (kernel, initrd), then,
when the installed system comes up, `edge.http.metadata.full`. `edge.http.routes` says which path is whose,
`edge.http.transport.connections` what strangers may take. There are no directory listings and no redirects, and nothing
here tells a machine about another one.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from aiohttp import web

from edge.artifacts import ArtifactCache
from edge.callers import Asker, Asking, Callers, ForwardedError, MetadataTokens, Networks, dotted
from edge.http.boot.osie import OsieDownloads
from edge.http.boot.scripts import BootScripts
from edge.http.context import Binaries, Context, not_found, text
from edge.http.files.body import BodySender
from edge.http.metadata.compiled import not_to_keep
from edge.http.metadata.full import MetadataService, MetadataSettings
from edge.http.routes import Place, Route, route
from edge.http.transport.connections import BoundedServer, Limits, Runner
from edge.http.transport.fast_path import Ready
from edge.journey.events import Recorder
from edge.machines import Inventory, NetbootPolicy, OsieFiles, OsieLookup
from ipxe.scripts import BootSettings, Scripts
from tink.limits.once_per import OncePer

SAY_AGAIN_SECONDS = 60.0
"""After which time the same refusal, or the same document for the same machine, is worth another line."""

Answer = Callable[[web.Request, Route, Asker], Awaitable[web.StreamResponse]]

_METHODS = {Place.PHONE_HOME: ("POST",), Place.IMDS_TOKEN: ("PUT",)}
_METADATA = frozenset({Place.EC2, Place.IMDS_TOKEN, Place.LEGACY, Place.NOCLOUD, Place.PHONE_HOME})
"""Where the path may say who asks."""


class MachineApp:
    """From a request to its handler."""

    def __init__(
        self, context: Context, scripts: Scripts, sender: BodySender, agent_ca: bytes, metadata: MetadataSettings
    ) -> None:
        self._context = context
        self._agent_ca = agent_ca
        self._sender = sender
        self._metadata = MetadataService(context, metadata)
        osie = OsieDownloads(context, sender)
        boot = BootScripts(context, scripts, osie.failure)
        self._answers: dict[Place, Answer] = {
            Place.SCRIPT: boot.answer,
            Place.BINARY: boot.binary,
            Place.OSIE: osie.answer,
            Place.EC2: self._metadata.ec2,
            Place.IMDS_TOKEN: self._metadata.session,
            Place.LEGACY: self._metadata.legacy,
            Place.NOCLOUD: self._metadata.nocloud,
            Place.PHONE_HOME: self._metadata.phone_home,
        }
        self._for_anybody: dict[Place, Callable[[], web.Response]] = {
            Place.AGENT_CA: self._ca,
            Place.HEALTH: lambda: text("ok"),
            Place.READY: self._ready,
        }

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        return self._context.clock

    def close(self) -> None:
        """Break off the bodies that are being sent."""
        self._sender.close()

    def table(self, address: str) -> Mapping[bytes, Ready] | None:
        """What plain requests on connections from `address` get, for `edge.http.transport.fast_path`."""
        return self._metadata.table(address)

    @property
    def proxies(self) -> Networks:
        """From where connections bring the requests of many machines."""
        return self._context.asking.proxies

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        found = route(request.rel_url.raw_path)
        if found is None:
            return not_found()
        methods = _METHODS.get(found.place, ("GET", "HEAD"))
        if request.method not in methods:
            response = text(f"the method must be {' or '.join(methods)}", status=405)
            response.headers["Allow"] = ", ".join(methods)
            return response
        if found.place in self._for_anybody:
            return self._for_anybody[found.place]()
        of_metadata = found.place in _METADATA
        try:
            asker = self._context.asking.asker(request, found.who if of_metadata else "")
        except ForwardedError as error:
            seen = dotted(request.remote or "")
            return self._context.refuse(400, str(error), seen=seen, why=f"a trusted proxy's request: {error}")
        answer = await self._answers[found.place](request, found, asker)
        return not_to_keep(answer) if of_metadata and isinstance(answer, web.Response) else answer

    def _ca(self) -> web.Response:
        """What an agent trusts the gRPC server by; no secret."""
        if not self._agent_ca:
            return text("the gRPC server of this edge has no certificate", status=404)
        return web.Response(body=self._agent_ca, content_type="application/x-pem-file")

    def _ready(self) -> web.Response:
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
    metadata: MetadataSettings,
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
    tokens = MetadataTokens(metadata.keys, metadata.token_lifetime)
    context = Context(
        inventory=inventory,
        asking=Asking(inventory, callers, tokens, metadata.rules),
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
    return MachineApp(context, Scripts(settings), sender or BodySender(), settings.tls_ca, metadata)


def machine_runner(app: MachineApp, limits: Limits | None = None) -> web.BaseRunner:
    """A runner of the application, for any number of sites. Needs a running loop; `cleanup` takes a second at most."""
    limits = replace(limits or Limits(), proxies=app.proxies)
    # A body, above all: nobody can wait for all of a kernel.
    return Runner(BoundedServer(app.answer, limits, app.clock, app.table), app.close)
