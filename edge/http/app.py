"""The HTTP server of booting machines (port 7080): scripts, boot programs, kernels, initrds, metadata, health.

The handlers in the order of a boot:

    boot       scripts, boot programs, signs of life, boot media
    osie       kernel and initrd
    depot      images and files of actions
    metadata   the installed system's first boot

`edge.http.routes` maps paths to handlers, `edge.http.connections` limits the clients. There are no directory listings
and no redirects, and no answer tells a machine about another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from aiohttp import web

from edge.callers import Caller, ForwardedError, dotted
from edge.http.answers import for_people, local_address, not_allowed, not_found, text, uncached
from edge.http.boot import BootMedia, BootScripts, sign
from edge.http.connections import BoundedServer, HttpLimits, Runner, nothing_is_plain
from edge.http.context import HttpServices
from edge.http.depot import ActionFiles
from edge.http.fast_path import ResponseLookup
from edge.http.metadata import FastPath, MetadataCache, MetadataService
from edge.http.osie import OsieDownloads
from edge.http.peers import PeerRequests
from edge.http.routes import Place, Route, route
from tink.net.addresses import is_link_local

Handler = Callable[[web.Request, Route, Caller], Awaitable[web.StreamResponse]]

_HERE = "This port of tinkedge is for machines that boot."
_THE_PAGE = (
    "The page for people is on another port, 7081 by default, of this host: "
    "'tinkedge page' on the host prints a link that lets a browser in."
)
_METHODS = {Place.PHONE_HOME: ("POST",), Place.IMDS_TOKEN: ("PUT",)}
_METADATA = frozenset({Place.EC2, Place.IMDS_TOKEN, Place.LEGACY, Place.NOCLOUD, Place.PHONE_HOME})
"""The places whose path may name the machine."""


class MachineApp:
    """Finds the handler of each request. `machine_runner` serves it.

    The inventory has to call `machine_changed`, and `Callers` has to call `callers_changed`.
    """

    def __init__(self, services: HttpServices) -> None:
        self.services = services
        self._peers = PeerRequests(services, services.peers) if services.peers is not None else None
        self._began = services.clock()
        self._osie = OsieDownloads(services)
        boot = BootScripts(services, self._osie.failure)
        media, files = BootMedia(services), ActionFiles(services)
        compiled = MetadataCache()
        self._metadata = service = MetadataService(services, compiled)
        self._fast_path: FastPath | None = None
        if services.fast_path and not services.metadata.imds_required:  # only the full path checks session tokens
            self._fast_path = FastPath(services, compiled, service.sent, boot.live)
        self._handlers: dict[Place, Handler] = {
            Place.SCRIPT: boot.script,
            Place.GRUB: boot.grub,
            Place.BINARY: boot.binary,
            Place.OSIE: self._osie.file,
            Place.MEDIUM: media.image,
            Place.PARAMETERS: boot.parameters,
            Place.SIGN: partial(sign, services),
            Place.EC2: service.document,
            Place.IMDS_TOKEN: service.session,
            Place.LEGACY: service.document,
            Place.NOCLOUD: service.document,
            Place.PHONE_HOME: service.phone_home,
            Place.FILE: files.file,
            Place.REGISTRY: files.registry,
        }
        self._for_anybody: dict[Place, Callable[[], web.Response]] = {
            # The certificates by which agents trust the gRPC server and registries. They are no secret.
            Place.AGENT_CA: lambda: _certificates(
                services.agent_ca, "application/x-pem-file", "the gRPC server of this edge has no certificate"
            ),
            Place.AGENT_REGISTRIES: lambda: _certificates(
                services.registry_authorities,
                "application/json",
                "this edge has no authorities of registries (--registry-ca)",
            ),
            Place.HEALTH: lambda: text("ok"),
            Place.HEALTH_OF_SMEE: self._health_of_smee,
            Place.READY: lambda: (
                text(f"not ready: {problem}", status=503) if (problem := services.ready()) else text("ok")
            ),
        }

    def close(self) -> None:
        """Abort all bodies, and cancel the checks of user-data."""
        self.services.sender.close()
        self._metadata.close()

    def machine_changed(self, mac: str) -> None:
        """Drop everything that was derived from a machine's Hardware. The inventory calls this after each change."""
        self._osie.machine_changed(mac)
        self._metadata.machine_changed(mac)
        self.callers_changed()

    def callers_changed(self) -> None:
        """Drop the addresses of machines. `edge.callers` calls this whenever a machine may have moved."""
        if self._fast_path is not None:
            self._fast_path.forget_callers()

    @property
    def responses(self) -> ResponseLookup:
        """The answers of the fast path for a client's address, by target of the request line."""
        return self._fast_path.responses if self._fast_path is not None else nothing_is_plain

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        found = route(request.rel_url.raw_path)
        if found is None and is_link_local(local_address(request)):
            return not_found()
        if found is None:
            return for_people(request, _HERE, _THE_PAGE)
        of_metadata = found.place in _METADATA
        if not of_metadata and is_link_local(local_address(request)):
            return text("here is metadata alone (--link-metadata)", status=404)
        if found.place is Place.PEER:
            return await self._peers.handle(request, found) if self._peers is not None else not_found()
        methods = _METHODS.get(found.place, ("GET", "HEAD"))
        if request.method not in methods:
            return not_allowed(methods)
        if found.place in self._for_anybody:
            return self._for_anybody[found.place]()
        try:
            caller = self.services.request_callers.caller(request, found.who if of_metadata else "")
        except ForwardedError as error:
            seen = dotted(request.remote or "")
            return self.services.refuse(400, str(error), seen=seen, why=f"a trusted proxy's request: {error}")
        answer = await self._handlers[found.place](request, found, caller)
        return uncached(answer) if of_metadata and isinstance(answer, web.Response) else answer

    def trust(self, tls_ca: bytes, registry_authorities: bytes) -> None:
        """Replace the certificates that agents trust: `agent_ca` and `registry_authorities` of `HttpServices`."""
        self.services.agent_ca, self.services.registry_authorities = tls_ca, registry_authorities

    def _health_of_smee(self) -> web.Response:
        """Answer GET /healthcheck with Smee's fields, for its probes. Python's threads stand for goroutines."""
        seconds = round(self.services.clock() - self._began, 3)
        shown = {"git_rev": version("tinkedge"), "uptime_seconds": seconds, "goroutines": threading.active_count()}
        return web.json_response(shown)


def _certificates(content: bytes, content_type: str, missing: str) -> web.Response:
    return web.Response(body=content, content_type=content_type) if content else text(missing, status=404)


def machine_runner(app: MachineApp, limits: HttpLimits | None = None) -> Runner:
    """Return a runner of the application, for any number of sites. Needs a running loop; `cleanup` takes a second."""
    limits = replace(limits or HttpLimits(), proxies=app.services.request_callers.trusted.proxies)
    # Shutdown aborts bodies: sending the rest of a kernel would take too long.
    return Runner(BoundedServer(app.handle, limits, time.monotonic, app.responses), app.close)
