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
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from aiohttp import web

from edge.callers import (
    Caller,
    Callers,
    ForwardedError,
    MediumTokens,
    MetadataTokens,
    Networks,
    RequestCallers,
    dotted,
)
from edge.http.boot import BootMedia, BootScripts, Signs
from edge.http.connections import BoundedServer, Limits, Runner, nothing_is_plain
from edge.http.context import Context, for_people, local_address, not_allowed, not_found, text
from edge.http.depot import Depot
from edge.http.fast_path import ResponseLookup
from edge.http.files import BodySender
from edge.http.metadata import FastPath, MetadataCache, MetadataService, MetadataSettings, uncached
from edge.http.osie import OsieDownloads
from edge.http.peers import PeerRequests
from edge.http.routes import Place, Route, route
from edge.journey.events import Recorder
from edge.machines import Artifacts, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from edge.peers.site import Peers
from ipxe.binaries import BootBinaries
from tink.limits.once_per import OncePer
from tink.net.addresses import is_link_local

SAY_AGAIN_SECONDS = 60.0
"""Time after which the same refusal, or the same document for the same machine, is logged again."""
MAX_SAID, MAX_REFUSALS = 16384, 1024
"""Number of lines about machines, and about strangers, in that time."""
MAX_SAID_OF_ONE = 256
"""Maximum number of lines about one machine: its requests can't suppress the lines about other machines."""

Handler = Callable[[web.Request, Route, Caller], Awaitable[web.StreamResponse]]

_HERE = "This port of tinkedge is for machines that boot."
_THE_PAGE = (
    "The page for people is on another port, 7081 by default, of this host: "
    "'tinkedge page' on the host prints a link that lets a browser in."
)
_METHODS = {Place.PHONE_HOME: ("POST",), Place.IMDS_TOKEN: ("PUT",)}
_METADATA = frozenset({Place.EC2, Place.IMDS_TOKEN, Place.LEGACY, Place.NOCLOUD, Place.PHONE_HOME})
"""The places whose path may name the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServices:
    """Everything that the machines' HTTP server works with.

    The cache behind `osie_files` must be started before the server, and stopped after it.
    """

    inventory: Inventory
    callers: Callers
    policy: NetbootPolicy
    scripts: MachineScripts
    osie_files: OsieFiles
    binaries: BootBinaries
    record: Recorder
    metadata: MetadataSettings
    agent_ca: bytes = b""
    """The certificates (PEM) by which agents trust the gRPC server."""
    registry_authorities: bytes = b""
    """The certificates (JSON) by which agents trust image registries."""
    default_osie: tuple[str, str] | None = None
    """Namespace and name of the OSIE for machines without a Hardware."""
    ready: Callable[[], str] = lambda: ""
    """Returns why the edge can't serve yet, or an empty string."""
    sender: BodySender | None = None
    fast_path: bool = True
    """False: aiohttp answers every request. The answers are the same."""
    depot: Path | None = None
    """The directory that contains `images` and `files`; None: the edge serves neither."""
    beyond: Artifacts | None = None
    """Fetches images and files that are not in `depot` from another edge."""
    peers: Peers | None = None
    """The other edges of the site, which may send requests to this one."""
    ipxe_dir: Path = Path("/usr/lib/ipxe")
    """The directory with the parts of boot media."""
    nearest: Callable[[str], str] = lambda _ip: ""
    """Returns the edge's address in the network of a machine's address, or an empty string."""


class MachineApp:
    """Finds the handler of each request. `machine_runner` serves it.

    The inventory has to call `machine_changed`, and `Callers` has to call `callers_changed`.
    """

    def __init__(self, services: HttpServices) -> None:
        metadata, depot = services.metadata, services.depot
        tokens = MetadataTokens(metadata.keys, metadata.token_lifetime)
        self._context = context = Context(
            inventory=services.inventory,
            callers=RequestCallers(services.inventory, services.callers, tokens, metadata.trusted),
            policy=services.policy,
            osie_files=services.osie_files,
            default_osie=services.default_osie,
            binaries=services.binaries,
            record=services.record,
            clock=time.monotonic,
            ready=services.ready,
            machine_lines=OncePer(SAY_AGAIN_SECONDS, MAX_SAID, MAX_SAID_OF_ONE),
            stranger_lines=OncePer(SAY_AGAIN_SECONDS, MAX_REFUSALS),
        )
        self._sender = sender = services.sender or BodySender()
        self._peers = PeerRequests(context, sender, services.peers) if services.peers is not None else None
        self._began = context.clock()
        self._agent_ca = services.agent_ca
        self._registry_authorities = services.registry_authorities
        self._osie = OsieDownloads(context, sender)
        boot = BootScripts(context, services.scripts, self._osie.failure)
        media = BootMedia(context, services.scripts, MediumTokens(metadata.keys), services.ipxe_dir, services.nearest)
        compiled = MetadataCache()
        files = Depot(context, sender, depot and depot / "images", depot and depot / "files", services.beyond)
        self._metadata = service = MetadataService(context, metadata, compiled)
        self._fast_path: FastPath | None = None
        if services.fast_path and not metadata.imds_required:  # only the full path checks session tokens
            self._fast_path = FastPath(
                services.inventory, context.callers, compiled, service.sent, boot.live, context.clock
            )
        self._handlers: dict[Place, Handler] = {
            Place.SCRIPT: boot.script,
            Place.GRUB: boot.grub,
            Place.BINARY: boot.binary,
            Place.OSIE: self._osie.file,
            Place.MEDIUM: media.image,
            Place.PARAMETERS: boot.parameters,
            Place.SIGN: Signs(context).sign,
            Place.EC2: service.ec2,
            Place.IMDS_TOKEN: service.session,
            Place.LEGACY: service.legacy,
            Place.NOCLOUD: service.nocloud,
            Place.PHONE_HOME: service.phone_home,
            Place.FILE: files.file,
            Place.REGISTRY: files.registry,
        }
        self._for_anybody: dict[Place, Callable[[], web.Response]] = {
            Place.AGENT_CA: self._ca,
            Place.AGENT_REGISTRIES: self._registries,
            Place.HEALTH: lambda: text("ok"),
            Place.HEALTH_OF_SMEE: self._health_of_smee,
            Place.READY: self._ready,
        }

    def close(self) -> None:
        """Abort all bodies, and cancel the checks of user-data."""
        self._sender.close()
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

    @property
    def proxies(self) -> Networks:
        """The networks of trusted proxies, whose connections carry the requests of many machines."""
        return self._context.callers.proxies

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
            caller = self._context.callers.caller(request, found.who if of_metadata else "")
        except ForwardedError as error:
            seen = dotted(request.remote or "")
            return self._context.refuse(400, str(error), seen=seen, why=f"a trusted proxy's request: {error}")
        answer = await self._handlers[found.place](request, found, caller)
        return uncached(answer) if of_metadata and isinstance(answer, web.Response) else answer

    def trust(self, tls_ca: bytes, registry_authorities: bytes) -> None:
        """Replace the certificates that agents trust: `agent_ca` and `registry_authorities` of `HttpServices`."""
        self._agent_ca, self._registry_authorities = tls_ca, registry_authorities

    def _ca(self) -> web.Response:
        """Return the certificates by which agents trust the gRPC server. They are no secret."""
        if not self._agent_ca:
            return text("the gRPC server of this edge has no certificate", status=404)
        return web.Response(body=self._agent_ca, content_type="application/x-pem-file")

    def _registries(self) -> web.Response:
        """Return the certificates by which agents trust registries. They are no secret."""
        if not self._registry_authorities:
            return text("this edge has no authorities of registries (--registry-ca)", status=404)
        return web.Response(body=self._registry_authorities, content_type="application/json")

    def _health_of_smee(self) -> web.Response:
        """Answer GET /healthcheck with Smee's fields, for its probes. Python's threads stand for goroutines."""
        seconds = round(self._context.clock() - self._began, 3)
        shown = {"git_rev": version("tinkedge"), "uptime_seconds": seconds, "goroutines": threading.active_count()}
        return web.json_response(shown)

    def _ready(self) -> web.Response:
        """Answer 200 if the edge can serve machines."""
        problem = self._context.ready()
        return text("ok") if not problem else text(f"not ready: {problem}", status=503)


def machine_runner(app: MachineApp, limits: Limits | None = None) -> Runner:
    """Return a runner of the application, for any number of sites. Needs a running loop; `cleanup` takes a second."""
    limits = replace(limits or Limits(), proxies=app.proxies)
    # Shutdown aborts bodies: sending the rest of a kernel would take too long.
    return Runner(BoundedServer(app.handle, limits, time.monotonic, app.responses), app.close)
