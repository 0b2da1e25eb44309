"""The HTTP server of booting machines (port 7080): scripts, boot programs, kernels, initrds, metadata, health.

In the order of a boot: `edge.http.boot.scripts` (script, boot program), `edge.http.boot.osie` (kernel, initrd),
`edge.http.boot.signs` (what it says on the way), `edge.http.boot.media` (what it may be started from instead of by its
network card),
`edge.http.depot` (images and files of actions), then, when the installed system comes up, `edge.http.metadata.full`.
`edge.http.routes` says which path is whose, `edge.http.transport.connections` what strangers may take. There are no
directory listings and no redirects, and nothing here tells a machine about another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
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
from edge.http.boot.media import BootMedia
from edge.http.boot.osie import OsieDownloads
from edge.http.boot.scripts import BootScripts
from edge.http.boot.signs import Signs
from edge.http.context import Context, for_people, local_address, not_allowed, not_found, text
from edge.http.depot import Depot
from edge.http.files.body import BodySender
from edge.http.metadata import FastPath, MetadataCache, MetadataService, MetadataSettings, not_to_keep
from edge.http.peers import PeerRequests
from edge.http.routes import Place, Route, route
from edge.http.transport.connections import BoundedServer, Limits, Runner, nothing_is_plain
from edge.http.transport.fast_path import HandOn, ResponseLookup
from edge.journey.events import Recorder
from edge.machines import Artifacts, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from edge.peers import Peers
from ipxe.binaries import BootBinaries
from tink.limits.newest import Newest
from tink.limits.once_per import OncePer
from tink.net.addresses import is_link_local

SAY_AGAIN_SECONDS = 60.0
"""After which time the same refusal, or the same document for the same machine, is worth another line."""
MAX_SAID, MAX_REFUSALS = 16384, 1024
"""Lines about machines, and about strangers, in that time."""
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
"""Where the path may say who asks."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What was said of machines and of strangers, and why the last file of a machine did not come, by MAC (None: it is
    kept where it is needed)."""

    said: OncePer = field(default_factory=lambda: OncePer(SAY_AGAIN_SECONDS, MAX_SAID, MAX_SAID_OF_ONE))
    refusals: OncePer = field(default_factory=lambda: OncePer(SAY_AGAIN_SECONDS, MAX_REFUSALS))
    failures: Newest[str, str] | None = None


class MachineApp:
    """From a request to its handler; `machine_runner` serves it."""

    def __init__(
        self,
        *,
        inventory: Inventory,
        callers: Callers,
        policy: NetbootPolicy,
        scripts: MachineScripts,
        osie_files: OsieFiles,
        binaries: BootBinaries,
        record: Recorder,
        metadata: MetadataSettings,
        agent_ca: bytes = b"",
        registry_authorities: bytes = b"",
        default_osie: tuple[str, str] | None = None,
        ready: Callable[[], str] = lambda: "",
        sender: BodySender | None = None,
        fast_path: bool = True,
        depot: Path | None = None,
        beyond: Artifacts | None = None,
        peers: Peers | None = None,
        ipxe_dir: Path = Path("/usr/lib/ipxe"),
        nearest: Callable[[str], str] = lambda _ip: "",
        memory: Memory | None = None,
    ) -> None:
        """The cache of `osie_files` must be started before, and stopped after. `inventory` is to call
        `machine_changed`, and `callers` `callers_changed`.

        `agent_ca` is what agents trust the gRPC server by (PEM), `registry_authorities` what they trust registries by
        (JSON). `default_osie` is the namespace and name of the OSIE
        that machines without a Hardware may have; `ready()` gives why the edge can't serve yet, or an empty string.
        `depot` is the directory that has `images` and `files`; None: neither is served. `beyond` gets from another edge
        those that are not there (None: there is none). `peers`: the other edges, which may ask here; None: nobody may.
        `ipxe_dir` has what boot media are made of, and `nearest(ip)` is the address of ours in the network of a
        machine's one (empty: none is), which they name. Without `fast_path` every request is
        answered in full, which changes nothing but the time. `memory` is what was said and what went wrong, where
        several processes serve the same machines (None: where this one does alone).
        """
        memory = memory or Memory()
        tokens = MetadataTokens(metadata.keys, metadata.token_lifetime)
        self._context = context = Context(
            inventory=inventory,
            callers=RequestCallers(inventory, callers, tokens, metadata.trusted),
            policy=policy,
            osie_files=osie_files,
            default_osie=default_osie,
            binaries=binaries,
            record=record,
            clock=time.monotonic,
            ready=ready,
            said=memory.said,
            refusals=memory.refusals,
        )
        self._sender = sender = sender or BodySender()
        self._peers = PeerRequests(context, sender, peers) if peers is not None else None
        self._began = context.clock()
        self._agent_ca = agent_ca
        self._registry_authorities = registry_authorities
        self._osie = OsieDownloads(context, sender, memory.failures)
        boot = BootScripts(context, scripts, self._osie.failure)
        compiled = MetadataCache()
        files = Depot(context, sender, depot and depot / "images", depot and depot / "files", beyond)
        self._metadata = service = MetadataService(context, metadata, compiled)
        self._fast_path: FastPath | None = None
        if fast_path and not metadata.imds_required:  # a session token has to be looked at
            self._fast_path = FastPath(inventory, context.callers, compiled, service.sent, boot.live, context.clock)
        self._handlers: dict[Place, Handler] = {
            Place.SCRIPT: boot.script,
            Place.GRUB: boot.grub,
            Place.BINARY: boot.binary,
            Place.OSIE: self._osie.file,
            Place.MEDIUM: BootMedia(context, scripts, MediumTokens(metadata.keys), ipxe_dir, nearest).image,
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
        """Abort the bodies that are being sent, and cancel the checks of user-data."""
        self._sender.close()
        self._metadata.close()

    def machine_changed(self, mac: str) -> None:
        """Make anew what was made of a machine's Hardware: for the inventory, which calls it after each change."""
        self._osie.machine_changed(mac)
        self._metadata.machine_changed(mac)
        self.callers_changed()

    def callers_changed(self) -> None:
        """Somebody may be at another address than a moment ago: for `edge.callers`, which calls it often."""
        if self._fast_path is not None:
            self._fast_path.forget_callers()

    @property
    def responses(self) -> ResponseLookup:
        """What plain requests on connections from an address get on the fast path, by target."""
        return self._fast_path.responses if self._fast_path is not None else nothing_is_plain

    @property
    def proxies(self) -> Networks:
        """From where connections bring the requests of many machines."""
        return self._context.callers.proxies

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
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
        return not_to_keep(answer) if of_metadata and isinstance(answer, web.Response) else answer

    def trust(self, tls_ca: bytes, registry_authorities: bytes) -> None:
        """Replace what agents are to trust: `agent_ca` and `registry_authorities` of the constructor."""
        self._agent_ca, self._registry_authorities = tls_ca, registry_authorities

    def _ca(self) -> web.Response:
        """What an agent trusts the gRPC server by; no secret."""
        if not self._agent_ca:
            return text("the gRPC server of this edge has no certificate", status=404)
        return web.Response(body=self._agent_ca, content_type="application/x-pem-file")

    def _registries(self) -> web.Response:
        """The certificates that agents trust registries by; no secret."""
        if not self._registry_authorities:
            return text("this edge has no authorities of registries (--registry-ca)", status=404)
        return web.Response(body=self._registry_authorities, content_type="application/json")

    def _health_of_smee(self) -> web.Response:
        """GET /healthcheck: Smee's words, for probes that were written for it; threads are what is like goroutines."""
        seconds = round(self._context.clock() - self._began, 3)
        shown = {"git_rev": version("tinkedge"), "uptime_seconds": seconds, "goroutines": threading.active_count()}
        return web.json_response(shown)

    def _ready(self) -> web.Response:
        """It can serve machines."""
        problem = self._context.ready()
        return text("ok") if not problem else text(f"not ready: {problem}", status=503)


def machine_runner(app: MachineApp, limits: Limits | None = None, hand_on: HandOn | None = None) -> Runner:
    """A runner of the application, for any number of sites. Needs a running loop; `cleanup` takes a second at most.

    `hand_on`: where connections of other edges go; None: they are served here.
    """
    limits = replace(limits or Limits(), proxies=app.proxies)
    # A body, above all: nobody can wait for all of a kernel.
    return Runner(BoundedServer(app.handle, limits, time.monotonic, app.responses, hand_on), app.close)
