"""The machines' HTTP server on loopback, as it is run, and machines with addresses of 127.0.0.0/8 that talk to it.

`Rack` is the test's view: an inventory to fill, an upstream that can misbehave, and requests from a chosen address.
`fill` registers machines that have secrets from each other: m1 (127.0.0.5), m2 (127.0.0.6) and spare (no address); each
has the word "secret-of-<name>" in all that is its own. However a request is made, only its own machine gets that word.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from edge.artifacts.cache import ArtifactCache
from edge.artifacts.upstream import Timeouts
from edge.callers import UNSEEN, Callers, MetadataTokens, Neighbours, TrustedNetworks, token_keys
from edge.http import osie
from edge.http.app import MachineApp, machine_runner
from edge.http.connections import HttpLimits
from edge.http.context import HttpServices, MetadataSettings
from edge.http.files import BodySender
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import Artifacts, DhcpMode, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from ipxe.scripts import BootSettings, Scripts
from tests.support import objects, virtual_time
from tests.support.api import InProcessApi
from tests.support.objects import MAC, OTHER_MAC
from tests.unit.artifacts.conftest import Upstream
from tink.files.key_file import KeyFile
from tink.kube.resources import SECRET
from tink.net.outbound import Reach

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """Bodies are sent around the event loop, to the socket itself: those tests run with both loops."""
    loops: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("looptime"):
        del loops["uvloop"]
    elif item.path.name != "test_osie.py":
        del loops["asyncio"]
    return loops


IP, OTHER_IP = "127.0.0.5", "127.0.0.6"
SPARE_MAC = "52:54:00:00:00:0d"
PROXY, SECOND_PROXY, NAT, STRANGER = "127.0.1.1", "127.0.1.2", "127.0.2.1", "127.0.0.99"
MODES = [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY, DhcpMode.OFF]
PROXIES = (ip_network("127.0.1.0/24"),)
TRUSTED = TrustedNetworks(proxies=PROXIES, nat=(ip_network("127.0.2.0/24"),))
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
KERNEL = b"GET /osie/lab/kernel HTTP/1.1\r\nHost: x\r\n\r\n"
OtherRack = Callable[..., AbstractAsyncContextManager[Any]]


@dataclass
class Binary:
    content: bytes
    etag: str


@dataclass
class Reply:
    status: int
    headers: Any
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Connection:
    """One made by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.read, self.write = reader.readexactly, writer.write

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def ask(self, request: bytes = HEALTH) -> bytes:
        """Send it; gives the next answer, whose length its head says."""
        self.write(request)
        head = await self.head()
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await self.read(length)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection, however that comes."""
        received = b""
        with suppress(ConnectionError):
            while part := await self.reader.read(65536):
                received += part
        return received

    async def is_closed(self, turns: int = 200) -> bool:
        """Return True if the server, which runs in the same loop, closes the connection within so many turns."""
        for _ in range(turns):
            if self.reader.at_eof() or self.reader.exception() is not None:
                return True
            await virtual_time.turns()
        return False


async def at_once(work: Awaitable[Any]) -> Any:
    """Await what sockets bring while virtual time stands still."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await virtual_time.turns()
    return task.result()


def secret(name: str = "s1", content: bytes = b"", key: str = "userData", **fields: Any) -> dict[str, Any]:
    """Return a Secret of the namespace default, whose `key` has `content`."""
    data = {key: base64.b64encode(content).decode()}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data, **fields}


def reader(api: InProcessApi) -> Callable[[str, str], Awaitable[Any]]:
    """Return what reads Secrets by namespace and name, as the edge does."""
    return lambda namespace, name: api.get(SECRET, name, namespace)


@dataclass
class Rack:
    base: str
    port: int
    inventory: Inventory
    callers: Callers
    journey: Journey
    upstream: Upstream
    osies: dict[tuple[str, str], dict[str, Any]]
    binaries: dict[str, Binary]
    keys: KeyFile
    api: InProcessApi = field(default_factory=InProcessApi)
    """Where Secrets are read."""
    problem: str = ""
    runner: Any = None
    cache: Any = None
    sessions: dict[str, aiohttp.ClientSession] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)

    def register(self, name: str = "m1", mac: str = MAC, ip: str | None = IP, **fields: Any) -> None:
        """Apply a Hardware with one interface, whose host name is its own."""
        dhcp = {"hostname": name} if ip else None
        self.inventory.apply(objects.hardware(name, mac, ip, dhcp=dhcp, **({"osie": {"name": "lab"}} | fields)))

    @property
    def open(self) -> Collection[Any]:
        """The connections that the server has."""
        return self.runner.bounded.open

    async def connect(self, ip: str = IP, *, receive_buffer: int = 0) -> Connection:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.bind((ip, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        self.connections.append(Connection(*await asyncio.open_connection(sock=sock, limit=4096)))
        return self.connections[-1]

    async def exchange(self, request: bytes, ip: str = IP, *, half_close: bool = False) -> bytes:
        """Everything that is answered to these bytes until the server closes; `half_close`: they are all."""
        connection = await self.connect(ip)
        connection.write(request)
        if half_close:
            connection.writer.write_eof()
        return await connection.rest()

    async def ask(self, path: str, *, ip: str = IP, method: str = "GET", data: Any = None, **headers: str) -> Reply:
        """One request from `ip`; `If_Match="x"` is the header If-Match."""
        if ip not in self.sessions:
            connector = aiohttp.TCPConnector(local_addr=(ip, 0))
            self.sessions[ip] = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(self.base + path, encoded=True)
        async with self.sessions[ip].request(method, url, data=data, headers=given, allow_redirects=False) as response:
            return Reply(response.status, response.headers, await response.read())

    def lines(self, mac: str = MAC) -> list[tuple[Step, Outcome, str]]:
        """Without the beginnings, of which the ends are enough here."""
        return [(event.step, event.outcome, event.message) for event in self.ends(mac)]

    def ends(self, mac: str = MAC) -> list[JourneyEvent]:
        return [event for event in self.journey.events(mac) if event.detail.get("phase") != "begun"]


@pytest.fixture(autouse=True)
def no_progress_of_what_is_slow_only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report no progress by default, since on a busy host any download takes half a second."""
    monkeypatch.setattr(osie, "FIRST_PROGRESS_SECONDS", 60.0)


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    """As an edge is by default."""
    async with serving(tmp_path) as rack:
        yield rack


@pytest.fixture
def other_rack(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Rack]]:
    """A rack of other settings: `async with other_rack(mode=...) as rack`."""
    return partial(serving, tmp_path)


@asynccontextmanager
async def serving(
    tmp_path: Path,
    *,
    mode: DhcpMode = DhcpMode.RESERVATION,
    default_osie: tuple[str, str] | None = None,
    limits: HttpLimits | None = None,
    neighbours: Neighbours = UNSEEN,
    idle_seconds: float = 600,
    fast_path: bool = True,
    depot: Path | None = None,
    beyond: Artifacts | None = None,
    ipxe_dir: Path = Path("/nonexistent"),
    nearest: Callable[[str], str] = lambda _ip: "",
    silence_seconds: float = 600,
    **metadata: Any,
) -> AsyncIterator[Rack]:
    """`idle_seconds` and `silence_seconds`: after which a machine that takes nothing, and an upstream, are given up;
    `metadata`: settings of the metadata service."""
    upstream = Upstream()
    upstream.content *= 4
    upstream_app = web.Application()
    upstream_app.router.add_route("*", "/{path:.*}", upstream.answer)
    upstream_server = TestServer(upstream_app)
    await upstream_server.start_server(shutdown_timeout=0.05)
    osie_spec = {part + "Url": str(upstream_server.make_url(f"/{part}")) for part in ("kernel", "initrd")}
    cache = ArtifactCache(
        tmp_path / "artifacts",
        clock=time.monotonic,
        timeouts=Timeouts(connect=600, silence=silence_seconds, retries=0),
        remember_failures=0,
        file_root=tmp_path,
        reach=Reach(allowed=(ip_network("127.0.0.0/8"),)),  # where the upstream of these tests is
    )
    await cache.start()

    inventory = Inventory()
    callers = Callers(inventory, mode, neighbours)
    keys = token_keys(tmp_path, None, create=True)
    rack = Rack("", 0, inventory, callers, Journey(time.time), upstream, {}, {}, keys)
    rack.cache = cache
    rack.osies["default", "lab"] = {"metadata": {"name": "lab", "namespace": "default"}, "spec": osie_spec}
    rack.binaries["snponly.efi"] = Binary(b"MZ" + bytes(1000), '"b1"')

    def osie(namespace: str, name: str) -> dict[str, Any] | None:
        return rack.osies.get((namespace, name))

    policy, record = NetbootPolicy(mode), rack.journey.record
    scripts = MachineScripts(inventory, policy, osie, Scripts(BootSettings()), record, default_osie)
    app = MachineApp(
        HttpServices(
            inventory=inventory,
            callers=callers,
            policy=policy,
            scripts=scripts,
            osie_files=OsieFiles(osie, cache),
            binaries=rack.binaries,
            record=record,
            metadata=MetadataSettings(keys, reader(rack.api), **metadata),
            default_osie=default_osie,
            ready=lambda: rack.problem,
            sender=BodySender(threads=2, idle_seconds=idle_seconds),
            fast_path=fast_path,
            depot=depot,
            beyond=beyond,
            ipxe_dir=ipxe_dir,
            nearest=nearest,
        )
    )
    inventory.on_change(scripts.machine_changed)
    inventory.on_change(app.machine_changed)
    callers.on_change(app.callers_changed)
    rack.runner = runner = machine_runner(app, limits)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    rack.port = runner.addresses[0][1]
    rack.base = f"http://127.0.0.1:{rack.port}"
    try:
        yield rack
    finally:
        await _end(rack, cache, upstream_server)


async def _end(rack: Rack, cache: ArtifactCache, upstream_server: TestServer) -> None:
    rack.upstream.gate.set()
    for connection in rack.connections:
        connection.writer.transport.abort()
    for session in rack.sessions.values():
        await session.close()
    if rack.runner.server is not None:
        await rack.runner.cleanup()
    await cache.stop()
    await upstream_server.close()


def hardware(name: str, mac: str, ip: str | None, **fields: Any) -> dict[str, Any]:
    """A machine that has secrets."""
    word = f"secret-of-{name}"
    instance = {"userdata": word, "vendordata": word}
    annotations = {"tinkerbell.org/instance-id": word, **fields.pop("annotations", {})}
    spec = {"osie": {"name": "lab"}, "kernelParams": [word], "instance": instance, **fields}
    return objects.hardware(name, mac, ip, dhcp={"hostname": word} if ip else None, annotations=annotations, **spec)


def fill(rack: Rack) -> Rack:
    for name, mac, ip in (("m1", MAC, IP), ("m2", OTHER_MAC, OTHER_IP), ("spare", SPARE_MAC, None)):
        rack.inventory.apply(hardware(name, mac, ip))
    return rack


@pytest.fixture
def machines(rack: Rack) -> Rack:
    return fill(rack)


@pytest.fixture
async def trusting(tmp_path: Path) -> AsyncIterator[Rack]:
    """Machines at an edge that trusts proxies, and networks behind NAT."""
    async with serving(tmp_path, trusted=TRUSTED) as rack:
        yield fill(rack)


def tokens(rack: Rack, **settings: Any) -> MetadataTokens:
    return MetadataTokens(rack.keys, **settings)
