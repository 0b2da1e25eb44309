"""The other edges of this site: this edge's calls to them, its answers to theirs, and the metrics.

    calls -> membership -> DHCP (which servers are edges, and for which to stand in), scripts (other edges to try)
    requests of other edges -> signatures -> the cache, the journey

Once a second this edge sends hello to every edge that the operator or a Lease (`edge.peers.leases`) names, or that has
called here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import Metric

from edge.artifacts.artifact import Artifact
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.upstream import PeerCaches
from edge.journey.events import Notice, Outcome
from edge.journey.history import EDGE, SERVER, Happened
from edge.journey.recorder import Journey
from edge.peers import messages
from edge.peers.caches import Caches, reply
from edge.peers.calls import CallError, Calls, Counts, NotListeningError
from edge.peers.membership import Alternative, Membership, Peer
from edge.peers.messages import (
    HAPPENED,
    BatchReceipt,
    CacheQuery,
    Edge,
    EventBatch,
    FetchQuery,
    MessageError,
    Place,
    Place6,
    Signatures,
    SignedRequest,
    StrangerError,
    StrangerReason,
    UpstreamChain,
    VerifiedRequest,
)
from edge.peers.publisher import EventPublisher, EventReceiver, Publisher
from edge.peers.upstream_edge import UpstreamEdge, fetched
from tink.files.key_file import KeyFile
from tink.limits import OncePer
from tink.metrics.families import counter, gauge

log = logging.getLogger(__name__)

HELLO_SECONDS: Final = 1.0
MAX_AUTHORITIES: Final = 128
"""Maximum number of addresses that hello is sent to."""
_SAY_AGAIN_SECONDS: Final = 300.0


Changed = Callable[[frozenset[str], frozenset[str]], None]
"""`changed(living, gone)`: IPv4 addresses where other edges answer DHCP, and those of edges that have gone."""


class Peers:
    """The other edges of this site. Start `calls` before use, `run` meanwhile, and stop `calls` at the end."""

    def __init__(
        self,
        keys: KeyFile,
        *,
        http_port: int,
        server_port: int,
        dhcp: bool,
        named: Iterable[str] = (),
        changed: Changed = lambda _living, _gone: None,
        announce: Callable[[Notice], None] = lambda _: None,
        journey: Journey | None = None,
        kept: Callable[[Happened], None] = lambda _: None,
        reports: KeyFile | None = None,
        upstream: str = "",
        downstream: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the site of this edge.

        keys: sign and check messages.
        http_port, server_port: this edge's ports; `server_port` is 0 if another host has the gRPC server.
        dhcp: this edge answers DHCP.
        named: `address:port` of other edges, IPv6 in brackets.
        changed, announce: called when an edge appears or goes.
        journey: events are exchanged with the other edges if it is given.
        kept: called for each new event of another edge.
        reports: keys of separate gRPC servers, which may only publish the events of agents.
        upstream: `address:port` of the edge to fetch files through, or an empty string.
        downstream: this edge fetches files for other edges.
        clock, now: return monotonic seconds and Unix seconds.
        """
        self.signatures = Signatures(keys, now)
        self._reports = Signatures(reports, now) if reports is not None else None
        self.own = Edge(id=self.signatures.edge, places=(), http_port=http_port, server_port=server_port, dhcp=dhcp)
        """The description of this edge that others get; its id changes with each start."""
        self._membership = Membership(self.own.id, clock)
        self.calls = Calls(self.signatures)
        """The client of the other edges."""
        self.counts = self.calls.counts
        self.caches: PeerCaches = Caches(self._membership, self.calls)
        self.upstream: UpstreamEdge | None = None
        if upstream:
            self.caches = self.upstream = UpstreamEdge(
                upstream, self.calls, self.caches, clock=clock, announce=self._say
            )
        self._downstream = downstream
        self._named = frozenset(named)
        self._found: frozenset[str] = frozenset()
        self._changed = changed
        self._announce = announce
        self._clock = clock
        self._now = now
        self._cache: ArtifactCache | None = None
        self.publisher: EventPublisher | None = None
        """Publishes the journey, which `run` does all the time; None if there is no journey."""
        self._receiver: EventReceiver | None = None
        if journey is not None:
            self._receiver = EventReceiver(journey, kept, clock, now)
            edges = lambda: [peer.authority for peer in self.living]  # noqa: E731
            self.publisher = EventPublisher(journey, self.calls, EDGE, self._name, edges, clock=clock, now=now)
        self._logged = OncePer(_SAY_AGAIN_SECONDS, capacity=256)

    # --- this edge ---

    def place(self, places: Iterable[tuple[str, str]]) -> None:
        """Set this edge's current addresses (IPv4 and IPv6), each with its network in CIDR form."""
        found, found6 = [], []
        for address, network in places:
            if ":" in address:
                found6.append(Place6(address=address, network=network))
            else:
                found.append(Place(address=address, network=network))
        self.own = self.own.model_copy(update={"places": tuple(found), "places6": tuple(found6)})

    def share(self, cache: ArtifactCache) -> None:
        """Serve the files of this cache to other edges."""
        self._cache = cache

    def found(self, authorities: Iterable[str]) -> None:
        """Set the `address:port` of the other edges that have a Lease."""
        self._found = frozenset(authorities)

    # --- the other edges ---

    @property
    def living(self) -> list[Peer]:
        """The other edges that answer."""
        return self._membership.living

    @property
    def publishers(self) -> list[Publisher]:
        """The edges and servers that published journey events recently."""
        return self._receiver.publishers if self._receiver is not None else []

    def _name(self) -> str:
        return self.own.addresses[0] if self.own.addresses else self.own.id[:8]

    def alternatives(self, address: str, machine: str) -> tuple[Alternative, ...]:
        """Return where `machine`, which has reached this edge at `address`, can continue with another edge."""
        return self._membership.alternatives(self.own, address, machine)

    # --- running ---

    async def run(self) -> None:
        """Send hello and journey events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_hellos())
            if self.upstream is not None:
                tasks.create_task(self.upstream.run())
            if self.publisher is not None:
                tasks.create_task(self.publisher.run())

    async def _send_hellos(self) -> None:
        while True:
            began = self._clock()
            await self.look()
            await asyncio.sleep(max(0.0, HELLO_SECONDS - (self._clock() - began)))

    async def look(self) -> None:
        """Send hello once to every known address, then announce the changes."""
        there = self._named | self._found | self._membership.authorities
        authorities = sorted(there.difference(self.own.authorities))[:MAX_AUTHORITIES]
        await asyncio.gather(*map(self._hello, authorities))
        changes = self._membership.changes()
        for change in changes:
            where = ", ".join(change.edge.addresses) or change.edge.id[:8]
            line = f"the edge at {where} does not answer: machines that began with it go on here"
            if change.living:
                line = f"the edge at {where} is there: it shares its cache, and machines can go on with it"
            self._say(change.living, line, where)
        if changes:
            self._changed(*self._membership.addresses)

    async def _hello(self, authority: str) -> None:
        try:
            edge = await self.calls.send(authority, messages.HELLO, self.own, Edge)
        except NotListeningError:
            self._membership.lost(authority)
        except CallError as error:
            if authority in self._named and self._logged.due((authority, str(error)), self._clock()):
                log.warning("the edge at %s is not one of this site: %s", authority, error)
        else:
            self._membership.heard(edge, authority)

    def _say(self, well: bool, line: str, edge: str) -> None:
        log.log(logging.INFO if well else logging.WARNING, "%s", line)
        self._announce(Notice(self._now(), Outcome.OK if well else Outcome.FAILED, line, {"edge": edge}))

    # --- requests of other edges ---

    def check(self, header: str, request: SignedRequest) -> VerifiedRequest:
        """Return the request with its sender: an edge of this site, or for HAPPENED a server. Raises StrangerError."""
        try:
            try:
                return self.signatures.check(header, request)
            except StrangerError as error:
                if self._reports is None or request.target != HAPPENED or error.refusal is not StrangerReason.FORGED:
                    raise
                return self._reports.check(header, request)
        except StrangerError as error:
            self.counts.refused[error.refusal] += 1
            raise

    async def answer(self, target: str, content: bytes, asked: VerifiedRequest) -> bytes:
        """Return the answer to a posted message. Raises MessageError."""
        chain = self.upstream.chain if self.upstream is not None else (self.own.id,)
        match target:
            case messages.HELLO:
                self._membership.heard(Edge.read(content))
                return self.own.encoded()
            case messages.ASK:
                return reply(CacheQuery.read(content), asked.edge, self._cache, self._membership).encoded()
            case messages.CHAIN:
                UpstreamChain.read(content)
                self._fetches_for_others()
                return UpstreamChain(edges=chain).encoded()
            case messages.FETCH:
                question, cache = FetchQuery.read(content), self._fetches_for_others()
                has_upstream = self.upstream is not None
                return (await fetched(question, asked.edge, chain, has_upstream, cache, self._clock)).encoded()
        batch = EventBatch.read(content)
        if (batch.kind == SERVER) is not (asked.signatures is self._reports):
            raise MessageError("kind: this key is not for it")
        taken = await self._receiver.take(batch) if self._receiver is not None else 0
        self.counts.received += taken
        return BatchReceipt(taken=taken).encoded()

    def _fetches_for_others(self) -> ArtifactCache:
        if not self._downstream or self._cache is None:
            raise MessageError("this edge has no --downstream-edges")
        return self._cache

    async def open(self, key: str, pin: str, version: str) -> Artifact | None:
        """Open the copy that a path below ARTIFACTS names; None if it is not in the cache. Raises ArtifactError."""
        return await self._cache.open_held(key, pin, version) if self._cache is not None else None


def event_batch_metrics(counts: Counts) -> Iterator[Metric]:
    """Yield the metrics of event batches between edges and servers."""
    text = "Events of machines that other edges of the site were told, and that they told."
    yield counter("tinkedge_peer_events", text, ["direction"], {("sent",): counts.sent, ("received",): counts.received})
    text = "Times that an edge could not be told what machines do."
    yield counter("tinkedge_peer_event_batch_failures", text, [], {(): counts.failed_batches})


def peer_metrics(peers: Peers) -> Iterator[Metric]:
    """Yield the metrics of the other edges."""
    counts = peers.counts
    yield from event_batch_metrics(counts)
    yield gauge("tinkedge_peer_living", "Other edges of this site that answer.", [], {(): len(peers.living)})
    text = "Files that other edges were asked for, by whether one had them."
    lookups = {("hit",): counts.hits, ("miss",): counts.misses, ("damaged",): counts.damaged}
    yield counter("tinkedge_peer_lookups", text, ["result"], lookups)
    if peers.upstream is not None:
        text = "Whether files are fetched through the upstream edge: 0 while it is away or leads in a circle."
        yield gauge("tinkedge_upstream_edge_used", text, [], {(): int(peers.upstream.is_used)})
        text = "Files that the upstream edge was asked for, by whether it had them or could get them."
        lookups = {("hit",): counts.parent_hits, ("miss",): counts.parent_misses}
        yield counter("tinkedge_upstream_edge_lookups", text, ["result"], lookups)
    yield counter("tinkedge_peer_served", "Files that other edges were sent.", [], {(): counts.served})
    text = "Bytes of files that other edges were sent."
    yield counter("tinkedge_peer_served_bytes", text, [], {(): counts.served_bytes})
    text = "Requests that were not taken for those of an edge, by reason."
    refused = {(refusal.value,): counts.refused[refusal] for refusal in StrangerReason}
    yield counter("tinkedge_peer_refused", text, ["reason"], refused)
