"""Edges of one site in one process: each with a cache, an address of 127.0.0.0/8, and the server that others ask."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from edge.artifacts.artifact import Artifact
from edge.artifacts.cache import ArtifactCache
from edge.artifacts.shared import SharedFiles
from edge.artifacts.upstream import Timeouts
from edge.http.answers import text
from edge.http.connections import BoundedServer, HttpLimits, Runner
from edge.http.files import BodySender
from edge.http.peers import PeerRequests
from edge.http.routes import Place, route
from edge.journey.recorder import Journey
from edge.peers import calls
from edge.peers.site import Peers
from tests.ports import free_ports
from tests.unit.artifacts.conftest import upstream
from tests.waiting import until
from tink.files.key_file import KeyFile
from tink.net.addresses import join_host_port
from tink.net.outbound import Reach

__all__ = ["upstream"]

KEY, REPORTS_KEY = "k" * 64, "r" * 64


@dataclass
class Edge:
    """One of them. `times` are the clocks of its cache and of its peers, which stand still by themselves."""

    address: str
    port: int
    peers: Peers
    cache: ArtifactCache
    directory: Path
    sender: BodySender
    server: BoundedServer
    journey: Journey
    times: list[float]
    notices: list[str]

    @property
    def authority(self) -> str:
        return join_host_port(self.address, self.port)

    async def read(self, url: str, sha256: str = "") -> bytes:
        """All of it, and until it is kept."""
        with await self.cache.open(url, sha256=sha256) as artifact:
            content = await whole(artifact)
        await until(lambda: not self.cache.downloads())
        return content

    async def die(self) -> None:
        """Stop like a killed process: its connections break, and its port is closed."""
        for connection in [*self.server.open]:
            connection.transport.abort()
        await self.stop_serving()

    async def stop_serving(self) -> None:
        await self.runner.cleanup()

    async def serve(self) -> None:
        self.runner = Runner(self.server, lambda: None)
        await self.runner.setup()
        await web.TCPSite(self.runner, self.address, self.port, reuse_address=True).start()


def key_file(path: Path, key: str) -> KeyFile:
    path.write_text(f"{key}\n")
    path.chmod(0o600)
    return KeyFile(path, "key")


async def whole(artifact: Artifact) -> bytes:
    at = 0
    while at < artifact.size:
        at = await artifact.filled(at)
    return os.pread(artifact.fd, artifact.size, 0)


MakeSite = Callable[..., Awaitable[list[Edge]]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no edge that is away."""
    monkeypatch.setattr(calls, "CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(calls, "CALL_SECONDS", 60.0)


@pytest.fixture
async def make_site(tmp_path: Path) -> AsyncIterator[MakeSite]:
    """`make_site(3)`: edges that know each other. `keys` of each, if not the same for all; `ipv6`: without IPv4."""
    edges: list[Edge] = []

    async def make(count: int, keys: Sequence[str] = (), *, ipv6: bool = False) -> list[Edge]:
        if ipv6:  # a host has one address of loopback there
            places = [("::1", port) for port in free_ports(count)]
        else:
            (port,) = free_ports(1)
            places = [(f"127.0.7.{number}", port) for number in range(1, count + 1)]
        authorities = [join_host_port(*place) for place in places]
        for number, place in enumerate(places, 1):
            edges.append(await _edge(tmp_path, number, *place, authorities, keys[number - 1] if keys else KEY))
        for edge in edges:
            await edge.peers.look()
        return edges

    yield make
    await _stopped(edges)


@pytest.fixture
async def make_sites(tmp_path: Path) -> AsyncIterator[MakeSite]:
    """`make_sites({1: 2, 2: 0})`: edges of a site each, by the number of the one that it fetches through (0: none)."""
    edges: list[Edge] = []

    async def make(through: dict[int, int], downstream: bool = True, keys: dict[int, str] | None = None) -> list[Edge]:
        (port,) = free_ports(1)
        for number, other in through.items():
            upstream = f"127.0.7.{other}:{port}" if other else ""
            key = (keys or {}).get(number, KEY)
            more = {"upstream": upstream, "downstream": downstream}
            edges.append(await _edge(tmp_path, number, f"127.0.7.{number}", port, [], key, **more))
        for edge in edges * len(edges):
            if edge.peers.upstream is not None:
                await edge.peers.upstream.look()
        return edges

    yield make
    await _stopped(edges)


@pytest.fixture(params=["of one site", "branch of another site"])
async def pair(request: pytest.FixtureRequest, make_site: MakeSite, make_sites: MakeSite) -> list[Edge]:
    """Two edges. The second asks the first: as another one of its site, or as its upstream edge."""
    return await (make_site(2) if request.param == "of one site" else make_sites({1: 0, 2: 1}))


async def _stopped(edges: list[Edge]) -> None:
    for edge in edges:
        edge.sender.close()
        await edge.stop_serving()
        await edge.cache.stop()
        await edge.peers.calls.stop()


async def _edge(
    directory: Path, number: int, address: str, port: int, authorities: list[str], key: str, **more: Any
) -> Edge:
    times, notices, journey = [0.0, 0.0], list[str](), Journey(time.time)
    peers = Peers(
        key_file(directory / f"key{number}", key),
        http_port=port,
        server_port=42113,
        dhcp=True,
        named=authorities,
        announce=lambda notice: notices.append(notice.message),
        journey=journey,
        clock=lambda: times[1],
        reports=key_file(directory / "reports", REPORTS_KEY),
        **more,
    )
    peers.place([(address, "::1/128" if ":" in address else "127.0.7.0/24")])
    cache = ArtifactCache(
        directory / f"cache{number}",
        clock=lambda: times[0],
        timeouts=Timeouts(connect=60.0, silence=60.0, total=60.0, sidecar=60.0, retries=2, pause=0.01),
        reach=Reach(allowed=(ip_network("127.0.0.0/8"),)),
        remember_failures=0.0,
        revalidate_after=60.0,
        peers=peers.caches,
        shared=SharedFiles(directory / f"files{number}", directory / f"images{number}"),
    )
    peers.share(cache)
    sender = BodySender(threads=1)
    refuse = lambda status, body, *, seen, why: text(body, status=status)  # noqa: E731
    services: Any = SimpleNamespace(refuse=refuse, sender=sender)
    requests = PeerRequests(services, peers)

    async def handle(request: web.Request) -> web.StreamResponse:
        found = route(request.rel_url.raw_path)
        assert found is not None
        assert found.place is Place.PEER
        return await requests.handle(request, found)

    server = BoundedServer(handle, HttpLimits(), time.monotonic)
    await cache.start()
    await peers.calls.start()
    edge = Edge(address, port, peers, cache, directory / f"cache{number}", sender, server, journey, times, notices)
    await edge.serve()
    return edge
