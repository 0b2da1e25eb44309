"""x"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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

from edge.artifacts import ArtifactCache, Timeouts
from edge.callers import UNSEEN, Callers, MetadataTokens, Neighbours, Networks, TrustedNetworks, token_keys
from edge.http import MachineApp, MetadataSettings, machine_runner
from edge.http.boot import osie
from edge.http.files.body import BodySender
from edge.http.transport.connections import Limits
from edge.journey.events import JourneyEvent, Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import Artifacts, DhcpMode, Inventory, MachineScripts, NetbootPolicy, OsieFiles
from ipxe.scripts import BootSettings, Scripts
from tests.unit.http.conftest import Rack
from tink.files.key_file import KeyFile
from tink.kube.client import NotFoundError
from tink.net.outbound import Reach

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """Bodies are sent around the event loop, to the socket itself: those tests run with both loops."""
    loops: dict[str, LoopFactory] = {"uvloop": uvloop.new_event_loop}
    if item.path.name in ("test_osie.py", "test_sendfile.py"):
        loops["asyncio"] = asyncio.new_event_loop
    return loops


MAC, IP = "52:54:00:00:00:01", "127.0.0.5"
OTHER_MAC, OTHER_IP = "52:54:00:00:00:02", "127.0.0.6"


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


class Upstream:
    """Serves `content` for every path; `mode`: a status, or "dies" in the middle; `gate` holds the second half."""

    def __init__(self) -> None:
        self.content = bytes(range(256)) * 16384  # 4 MiB
        self.mode = ""
        self.kind = "application/octet-stream"
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(".sha256"):
            return web.Response(status=404)
        self.requests += 1
        if self.mode.isdigit():
            return web.Response(status=int(self.mode))
        response = web.StreamResponse(headers={"ETag": '"v1"', "Content-Type": self.kind})
        response.content_length = len(self.content)
        await response.prepare(request)
        half = len(self.content) // 2
        await response.write(self.content[:half])
        await self.gate.wait()
        if self.mode == "dies" and request.transport is not None:
            request.transport.close()
            return response
        await response.write(self.content[half:])
        return response


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
    secrets: dict[tuple[str, str], Any] = field(default_factory=dict)
    """Secrets by namespace and name, or errors to raise."""
    secrets_read: int = 0
    secret_reader: Callable[[str, str], Awaitable[Any]] | None = None
    """What reads them instead."""
    problem: str = ""
    runner: Any = None
    cache: Any = None
    sessions: dict[str, aiohttp.ClientSession] = field(default_factory=dict)
    writers: list[Any] = field(default_factory=list)
    """Of connections that tests made by hand."""

    def register(self, name: str = "m1", mac: str = MAC, ip: str | None = IP, **spec: Any) -> None:
        """Apply a Hardware with one interface; `spec` may override anything, `interface` adds to the interface, and
        `annotations` are the object's."""
        interface = {"dhcp": {"ip": ip, "hostname": name}} | spec.pop("interface", {})
        if ip is None:
            del interface["dhcp"]
        metadata = {"name": name, "namespace": "default", "annotations": spec.pop("annotations", {})}
        self.inventory.apply(
            {"metadata": metadata, "spec": {"networkInterfaces": {mac: interface}, "osie": {"name": "lab"}} | spec}
        )

    async def read_secret(self, namespace: str, name: str) -> Any:
        self.secrets_read += 1
        if self.secret_reader is not None:
            return await self.secret_reader(namespace, name)
        found = self.secrets.get((namespace, name), NotFoundError(404, "NotFound", f'secrets "{name}" not found'))
        if isinstance(found, Exception):
            raise found
        return found

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
    """On a busy host any download takes half a second: tests that look at its progress say when it is told."""
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
    limits: Limits | None = None,
    neighbours: Neighbours = UNSEEN,
    idle_seconds: float = 60,
    fast_path: bool = True,
    depot: Path | None = None,
    beyond: Artifacts | None = None,
    ipxe_dir: Path = Path("/nonexistent"),
    nearest: Callable[[str], str] = lambda _ip: "",
    **metadata: Any,
) -> AsyncIterator[Rack]:
    """`idle_seconds`: after which a machine that takes nothing is given up, which on a busy host any of a test may be
    that means well; `metadata`: settings of the metadata
    service."""
    upstream = Upstream()
    upstream_app = web.Application()
    upstream_app.router.add_get("/{path:.*}", upstream.answer)
    upstream_server = TestServer(upstream_app)
    await upstream_server.start_server(shutdown_timeout=0.05)
    osie_spec = {part + "Url": str(upstream_server.make_url(f"/{part}")) for part in ("kernel", "initrd")}
    cache = ArtifactCache(
        tmp_path / "artifacts",
        clock=time.monotonic,
        timeouts=Timeouts(connect=5, silence=1, retries=0),
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
        inventory=inventory,
        callers=callers,
        policy=policy,
        scripts=scripts,
        osie_files=OsieFiles(osie, cache),
        binaries=rack.binaries,
        record=record,
        metadata=MetadataSettings(keys, rack.read_secret, **metadata),
        default_osie=default_osie,
        ready=lambda: rack.problem,
        sender=BodySender(threads=2, idle_seconds=idle_seconds),
        fast_path=fast_path,
        depot=depot,
        beyond=beyond,
        ipxe_dir=ipxe_dir,
        nearest=nearest,
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
    for writer in rack.writers:  # of a test that failed, too
        writer.transport.abort()
    for session in rack.sessions.values():
        await session.close()
    if rack.runner.server is not None:
        await rack.runner.cleanup()
    await cache.stop()
    await upstream_server.close()


SPARE_MAC = "52:54:00:00:00:0d"
PROXY, SECOND_PROXY, NAT, STRANGER = "127.0.1.1", "127.0.1.2", "127.0.2.1", "127.0.0.99"
MODES = [DhcpMode.RESERVATION, DhcpMode.PROXY, DhcpMode.AUTO_PROXY, DhcpMode.OFF]


def networks(*texts: str) -> Networks:
    return tuple(ipaddress.ip_network(text) for text in texts)


PROXIES = networks("127.0.1.0/24")
TRUSTED = TrustedNetworks(proxies=PROXIES, nat=networks("127.0.2.0/24"))

OtherRack = Callable[..., AbstractAsyncContextManager[Any]]


def hardware(name: str, mac: str, ip: str | None, *, namespace: str = "default", **annotations: str) -> dict[str, Any]:
    word = f"secret-of-{name}"
    interface = {"dhcp": {"ip": ip, "hostname": word}} if ip is not None else {}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {"tinkerbell.org/instance-id": word} | annotations,
        },
        "spec": {
            "networkInterfaces": {mac: interface},
            "osie": {"name": "lab"},
            "kernelParams": [word],
            "instance": {"userdata": word, "vendordata": word},
        },
    }


def fill(rack: Rack) -> Any:
    rack.inventory.apply(hardware("m1", MAC, IP))
    rack.inventory.apply(hardware("m2", OTHER_MAC, OTHER_IP))
    rack.inventory.apply(hardware("spare", SPARE_MAC, None))
    return rack


def tokens(rack: Rack, **settings: Any) -> MetadataTokens:
    return MetadataTokens(rack.keys, **settings)


async def raw(rack: Rack, request: bytes, ip: str = OTHER_IP) -> bytes:
    """Everything that is answered to these bytes, until the connection ends or there is silence."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rack.port, local_addr=(ip, 0))
    writer.write(request)
    answer = b""
    try:
        while part := await asyncio.wait_for(reader.read(65536), 0.3 if answer else 5):
            answer += part
    except (TimeoutError, ConnectionError):
        pass
    writer.close()
    return answer
