"""The other edges of this site, put together: hello is said once a second to all that are named, by the operator, by
a Lease (`edge.peers.leases`), or by having called here.

    calls -> membership -> who is told of it: DHCP (whose offers are no stranger's, and for whom to stand in), scripts
    questions of others -> signatures -> the cache
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from edge.artifacts import Artifact, ArtifactCache, PeerCaches
from edge.journey.events import Notice, Outcome
from edge.journey.history import EDGE, SERVER
from edge.journey.recorder import Journey
from edge.journey.records import Happened
from edge.peers.caches import Caches, reply
from edge.peers.calls import CallError, Calls, RefusedError
from edge.peers.claims import Claims
from edge.peers.counts import Counts
from edge.peers.membership import Alternative, Change, Membership, Peer
from edge.peers.messages import (
    BatchReceipt,
    CacheQuery,
    Chain,
    Edge,
    EventBatch,
    FetchQuery,
    MessageError,
    Place,
    Place6,
)
from edge.peers.publisher import EventPublisher
from edge.peers.receiver import EventReceiver, Publisher
from edge.peers.signatures import Refusal, Request, Signatures, StrangerError, VerifiedRequest
from edge.peers.upstream_edge import UpstreamEdge, chain_of, fetched
from tink.files.key_file import KeyFile
from tink.limits.once_per import OncePer

log = logging.getLogger(__name__)

HELLO_SECONDS: Final = 1.0
MAX_AUTHORITIES: Final = 128
"""Places where hello is said."""
_SAY_AGAIN_SECONDS: Final = 300.0


Changed = Callable[[frozenset[str], frozenset[str]], None]
"""`changed(living, gone)`: where (dotted) other edges answer DHCP, and where there was one that is gone."""


class Peers:
    """`start` before use, `stop` after; `run` meanwhile."""

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
        """`keys` sign. The ports are this edge's, `server_port` 0 where agents are sent elsewhere; `dhcp`: it answers
        DHCP. `named` are `address:port` of other edges, IPv6 in brackets. `changed` and `announce` hear when one comes
        or goes. What happens to machines is told to the others and heard from them, if there is a `journey`; `kept`
        hears of what they have told. `reports` are the keys of servers that run apart, which tell what agents do, and
        no more. `upstream` is `address:port` of the edge that files are fetched through (empty: none is);
        `downstream`: files are fetched for other edges. `clock` gives monotonic seconds, `now` Unix seconds.
        """
        self.counts = Counts()
        self.signatures = Signatures(keys, now)
        self._reports = Signatures(reports, now) if reports is not None else None
        self.own = Edge(id=self.signatures.edge, places=(), http_port=http_port, server_port=server_port, dhcp=dhcp)
        """What this edge says of itself; its name is another one after each start."""
        self._membership = Membership(self.own.id, clock)
        self._claims = Claims(clock, self._membership.lives)
        self._calls = Calls(self.signatures)
        self.caches: PeerCaches = Caches(self._membership, self._claims, self._calls, self.counts)
        self.upstream: UpstreamEdge | None = None
        if upstream:
            self.caches = self.upstream = UpstreamEdge(
                upstream, self.own.id, self._calls, self.caches, self.counts, clock=clock, announce=self._say_upstream
            )
        self._downstream = downstream
        self._named = frozenset(named)
        self._found: frozenset[str] = frozenset()
        self._changed = changed
        self._announce = announce
        self._clock = clock
        self._now = now
        self._cache: ArtifactCache | None = None
        self._publisher, self._receiver = None, None
        if journey is not None:
            self._receiver = EventReceiver(journey, kept, clock, now)
            self._publisher = EventPublisher(
                journey, self._calls, EDGE, self._name, self._receivers, self.counts, clock=clock, now=now
            )
        self._said = OncePer(_SAY_AGAIN_SECONDS, capacity=256)

    # --- what this edge is ---

    def place(self, places: Iterable[tuple[str, str]]) -> None:
        """This edge is at these addresses now, of both families, each with its network (CIDR)."""
        found, found6 = [], []
        for address, network in places:
            if ":" in address:
                found6.append(Place6(address=address, network=network))
            else:
                found.append(Place(address=address, network=network))
        self.own = self.own.model_copy(update={"places": tuple(found), "places6": tuple(found6)})

    def share(self, cache: ArtifactCache) -> None:
        """Others may have what is in there."""
        self._cache = cache

    def found(self, authorities: Iterable[str]) -> None:
        """Where Leases say that other edges are, each time that these are read."""
        self._found = frozenset(authorities)

    # --- who there is ---

    @property
    def living(self) -> list[Peer]:
        """The others that answer."""
        return self._membership.living

    @property
    def publishers(self) -> list[Publisher]:
        """The edges and servers that have told what machines do, a moment ago."""
        return self._receiver.publishers if self._receiver is not None else []

    def _name(self) -> str:
        return self.own.addresses[0] if self.own.addresses else self.own.id[:8]

    def _receivers(self) -> list[str]:
        return [peer.authority for peer in self.living]

    def alternatives(self, address: str, machine: str) -> tuple[Alternative, ...]:
        """Where `machine`, which has reached this edge at `address`, can go on with another edge."""
        return self._membership.alternatives(self.own, address, machine)

    # --- its life ---

    async def start(self) -> None:
        """Needs a running loop."""
        await self._calls.start()

    async def stop(self) -> None:
        """Ask nobody any more."""
        await self._calls.stop()

    async def run(self) -> None:
        """Say hello again and again, and tell what machines do, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_again_and_again())
            if self.upstream is not None:
                tasks.create_task(self.upstream.run())
            if self._publisher is not None:
                tasks.create_task(self._publisher.run())

    async def publish(self) -> None:
        """Send the other edges what machines have done since the last time; `run` does it again and again."""
        if self._publisher is not None:
            await self._publisher.turn()

    async def _look_again_and_again(self) -> None:
        while True:
            began = self._clock()
            await self.look()
            await asyncio.sleep(max(0.0, HELLO_SECONDS - (self._clock() - began)))

    async def look(self) -> None:
        """Say hello once to everybody, and tell what has changed."""
        there = self._named | self._found | self._membership.authorities
        authorities = sorted(there.difference(self.own.authorities))[:MAX_AUTHORITIES]
        await asyncio.gather(*map(self._hello, authorities))
        self._tell()

    async def _hello(self, authority: str) -> None:
        try:
            edge = await self._calls.hello(authority, self.own)
        except RefusedError:
            self._membership.lost(authority)
        except CallError as error:
            if authority in self._named and self._said.due((authority, str(error)), self._clock()):
                log.warning("the edge at %s is not one of this site: %s", authority, error)
        else:
            self._membership.heard(edge, authority)

    def _tell(self) -> None:
        changes = self._membership.changes()
        if not changes:
            return
        for change in changes:
            self._say(change)
        self._changed(*self._membership.addresses)

    def _say(self, change: Change) -> None:
        where = ", ".join(change.edge.addresses) or change.edge.id[:8]
        if change.living:
            line = f"the edge at {where} is there: it shares its cache, and machines can go on with it"
        else:
            line = f"the edge at {where} does not answer: machines that began with it go on here"
        log.log(logging.INFO if change.living else logging.WARNING, "%s", line)
        outcome = Outcome.OK if change.living else Outcome.FAILED
        self._announce(Notice(self._now(), outcome, line, {"edge": where}))

    def _say_upstream(self, well: bool, line: str) -> None:
        log.log(logging.INFO if well else logging.WARNING, "%s", line)
        where = self.upstream.authority if self.upstream is not None else ""
        self._announce(Notice(self._now(), Outcome.OK if well else Outcome.FAILED, line, {"edge": where}))

    # --- what others ask ---

    def check(self, header: str, request: Request) -> VerifiedRequest:
        """Whether it is an edge that asks so. Raises StrangerError."""
        try:
            return self.signatures.check(header, request)
        except StrangerError as error:
            self.counts.refused[error.refusal] += 1
            raise

    def check_batch(self, header: str, request: Request) -> tuple[VerifiedRequest, Signatures]:
        """The same of HAPPENED, which servers may say, too; what its answer is signed with. Raises StrangerError."""
        try:
            return self.signatures.check(header, request), self.signatures
        except StrangerError as error:
            if self._reports is None or error.refusal is not Refusal.FORGED:
                self.counts.refused[error.refusal] += 1
                raise
        try:
            return self._reports.check(header, request), self._reports
        except StrangerError as error:
            self.counts.refused[error.refusal] += 1
            raise

    def hello(self, content: bytes) -> bytes:
        """The answer to HELLO. Raises MessageError."""
        self._membership.heard(Edge.read(content))
        return self.own.encoded()

    def ask(self, content: bytes, asked: VerifiedRequest) -> bytes:
        """The answer to ASK. Raises MessageError."""
        return reply(CacheQuery.read(content), asked.edge, self._cache, self._claims).encoded()

    def chain(self, content: bytes) -> bytes:
        """The answer to CHAIN. Raises MessageError."""
        Chain.read(content)
        self._fetches_for_others()
        return chain_of(self.upstream, self.own.id).encoded()

    async def fetch(self, content: bytes, asked: VerifiedRequest) -> bytes:
        """The answer to FETCH. Raises MessageError."""
        question = FetchQuery.read(content)
        cache = self._fetches_for_others()
        chain = chain_of(self.upstream, self.own.id).edges
        has_upstream = self.upstream is not None
        return (await fetched(question, asked.edge, chain, has_upstream, cache, self._clock)).encoded()

    def _fetches_for_others(self) -> ArtifactCache:
        if not self._downstream or self._cache is None:
            raise MessageError("this edge has no --downstream-edges")
        return self._cache

    async def happened(self, content: bytes, signatures: Signatures) -> bytes:
        """The answer to HAPPENED, signed with `signatures`. Raises MessageError."""
        batch = EventBatch.read(content)
        if (batch.kind == SERVER) is not (signatures is self._reports):
            raise MessageError("kind: this key is not for it")
        taken = await self._receiver.take(batch) if self._receiver is not None else 0
        self.counts.received += taken
        return BatchReceipt(taken=taken).encoded()

    async def open(self, key: str, pin: str, version: str) -> Artifact | None:
        """What ARTIFACTS names; None: it is not here. Raises ArtifactError."""
        return await self._cache.open_held(key, pin, version) if self._cache is not None else None
