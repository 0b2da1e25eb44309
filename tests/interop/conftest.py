"""Fixtures for tests with real clients: two network namespaces joined by a cable, a container registry, kubectl."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest
import uvloop

from edge.journey.events import JourneyEvent, Outcome, Step
from tests.api import serving
from tests.ports import free_port, listens
from tests.waiting import PATIENCE_SECONDS, wait_until
from tink import versions
from tink.api.crds import generate, generate_bmc
from tink.kube.manifests import with_last_applied
from tink.kubeapi import ApiServer

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3

T = TypeVar("T")


class Server(Protocol):
    async def stop(self) -> None: ...


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """Two network namespaces joined by a cable.

    The server has `srv0` with 10.77.6.1/24, the client `eth0` with the MAC 52:54:00:cc:00:01 and no address.
    """

    server_ip = "10.77.6.1"
    client_ip = "10.77.6.50"
    client_mac = "52:54:00:cc:00:01"

    def __init__(self) -> None:
        unique = f"{os.getpid()}-{secrets.token_hex(3)}"
        self.server = f"edge-s-{unique}"
        self.client = f"edge-c-{unique}"
        self.events: list[JourneyEvent] = []
        self._others: list[str] = []

    def build(self) -> None:
        for namespace in (self.server, self.client):
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        self.cable("eth0", "srv0", f"{self.server_ip}/24", mac=self.client_mac)

    def cable(self, client_end: str, server_end: str, address: str, *, mac: str = "") -> None:
        """Join the two by a cable; `address` (with its prefix) is the server's."""
        end = [client_end, *(["address", mac] if mac else []), "type", "veth", "peer", "name", server_end]
        ip("-n", self.client, "link", "add", *end, "netns", self.server)
        ip("-n", self.server, "link", "set", server_end, "up")
        ip("-n", self.server, "addr", "add", address, "dev", server_end)
        ip("-n", self.client, "link", "set", client_end, "up")

    def another(self, name: str) -> str:
        namespace = f"{self.server}-{name}"
        ip("netns", "add", namespace)
        self._others.append(namespace)
        return namespace

    def join(self, one: str, one_end: str, address: str, other: str, other_end: str, other_address: str) -> None:
        """Join two namespaces by a cable, each with an address and its prefix."""
        ip("-n", one, "link", "add", one_end, "type", "veth", "peer", "name", other_end, "netns", other)
        for namespace, end, end_address in ((one, one_end, address), (other, other_end, other_address)):
            ip("-n", namespace, "link", "set", end, "up")
            ip("-n", namespace, "addr", "add", end_address, "dev", end)

    def route(self, namespace: str, to: str, via: str) -> None:
        ip("-n", namespace, "route", "add", to, "via", via)

    def firewall(self, namespace: str, chain: str, *rule: str) -> None:
        command = ["ip", "netns", "exec", namespace, "iptables", "-A", chain, *rule]
        subprocess.run(command, check=True, capture_output=True)

    def remove_cable(self, server_end: str) -> None:
        ip("-n", self.server, "link", "del", server_end)

    def add_address(self, namespace: str, interface: str, address: str) -> None:
        ip("-n", namespace, "addr", "add", address, "dev", interface)

    def remove_address(self, namespace: str, interface: str, address: str) -> None:
        ip("-n", namespace, "addr", "del", address, "dev", interface)

    def set_mac(self, namespace: str, interface: str, mac: str) -> None:
        ip("-n", namespace, "link", "set", interface, "address", mac)

    def mtu(self, namespace: str, interface: str, size: int) -> None:
        ip("-n", namespace, "link", "set", interface, "mtu", str(size))

    def remove(self) -> None:
        for namespace in (self.server, self.client, *self._others):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def inside(self, namespace: str, act: Callable[[], T]) -> T:
        """Call `act` in a thread that has entered the namespace, and return its result. Its sockets stay there."""
        return in_namespace(namespace, act)

    def give_client_its_address(self) -> None:
        ip("-n", self.client, "addr", "add", f"{self.client_ip}/24", "dev", "eth0")

    def meet(self) -> None:
        """Let the client's kernel learn the server's hardware address."""
        with self.inside(self.client, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
            sock.sendto(b"", (self.server_ip, 9))
        show = ["ip", "-n", self.client, "neigh", "show", "to", self.server_ip]
        wait_until(
            lambda: "lladdr" in subprocess.run(show, check=True, capture_output=True, text=True).stdout,
            "the client does not resolve the server's address",
        )

    def datagrams_read(self, namespace: str) -> int:
        """Return the number of UDP datagrams that programs in the namespace have read (InDatagrams of RFC 4113)."""
        lines = self.inside(namespace, Path("/proc/thread-self/net/snmp").read_text).splitlines()
        names, values = (line.split() for line in lines if line.startswith("Udp:"))
        return int(dict(zip(names, values, strict=True))["InDatagrams"])

    @contextmanager
    def dnsmasq(self, directory: Path, *options: str) -> Iterator[None]:
        """Run another DHCP server in the server's namespace."""
        command = [
            "ip", "netns", "exec", self.server, "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--port=0",
            "--user=root", "--interface=srv0", "--bind-interfaces", f"--pid-file={directory}/dnsmasq.pid",
            "--leasefile-ro", "--no-ping", *options,
        ]  # fmt: skip
        with (
            (directory / "dnsmasq.log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                listening = Path(f"/proc/{process.pid}/net/udp")  # of its namespace: 67 is 0x43
                wait_until(lambda: ":0043 " in listening.read_text(), (directory / "dnsmasq.log").read_text)
                yield
            finally:
                process.terminate()

    def sysctl(self, namespace: str, name: str, value: str) -> None:
        command = ["ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"{name}={value}"]
        subprocess.run(command, check=True, capture_output=True)

    def bounce(self, namespace: str, interface: str) -> None:
        """Take an interface down and up, so that the kernel configures it again."""
        ip("-n", namespace, "link", "set", interface, "down")
        ip("-n", namespace, "link", "set", interface, "up")

    def record(self, mac: str, step: Step, outcome: Outcome, message: str, **detail: str | int | float) -> None:
        """Record an event; implements Recorder."""
        self.events.append(JourneyEvent(0.0, mac, step, outcome, message, detail))

    def messages(self) -> list[str]:
        return [event.message for event in self.events]

    def as_client(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.client, *command]

    def run(
        self, *command: str, cwd: Path | None = None, timeout: float = PATIENCE_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.as_client(*command), capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd
        )

    @contextmanager
    def serving(
        self, start: Callable[[], Awaitable[Sequence[Server]]], loop: str = "asyncio", namespace: str = ""
    ) -> Iterator[None]:
        """Run the servers of `start` on an event loop, in a thread in the namespace; the default is the server's."""
        ready, failure = threading.Event(), list[BaseException]()
        new_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop

        async def serve() -> None:
            stopping = asyncio.Event()
            control["stop"] = lambda: control_loop.call_soon_threadsafe(stopping.set)
            control_loop = asyncio.get_running_loop()
            servers = await start()
            ready.set()
            await stopping.wait()
            for server in servers:
                await server.stop()

        def main() -> None:
            try:
                enter_namespace(namespace or self.server)
                with asyncio.Runner(loop_factory=new_loop) as runner:
                    runner.run(serve())
            except BaseException as error:
                failure.append(error)
            finally:
                ready.set()

        control: dict[str, Callable[[], object]] = {}
        thread = threading.Thread(target=main)
        thread.start()
        try:
            assert ready.wait(PATIENCE_SECONDS)
            if not failure:
                yield
        finally:
            if not failure:  # after a failure, the event loop is closed although the thread may still run
                control["stop"]()
            thread.join(PATIENCE_SECONDS)
        if failure:
            raise failure[0]


class Wire:
    """Captures the frames that pass an interface, and sends frames on it."""

    def __init__(self, namespace: str, interface: str) -> None:
        self._socket = in_namespace(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        in_namespace(namespace, lambda: self._socket.bind((interface, _ETH_P_ALL)))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE: frames wait until a test looks
        self._socket.settimeout(0.1)
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def received(self) -> list[bytes]:
        with suppress(TimeoutError):
            while True:
                self.frames.append(self._socket.recv(65536))
        return self.frames

    def close(self) -> None:
        self._socket.close()


def in_namespace(name: str, act: Callable[[], T]) -> T:
    """Call `act` in a thread that has entered the namespace, and return its result. Its sockets stay there."""

    def enter_and_act() -> T:
        enter_namespace(name)
        return act()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter_and_act).result()


def enter_namespace(name: str) -> None:
    """Move the calling thread into a network namespace (os.setns is Python 3.12's)."""
    with Path(f"/run/netns/{name}").open() as handle:
        if _LIBC.setns(handle.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        network.build()
        yield network
    finally:
        network.remove()


@pytest.fixture
def wire(network: Network) -> Iterator[Callable[..., Wire]]:
    """`wire()`: the client's end of the cable; `wire(namespace, interface)`: another."""
    opened: list[Wire] = []

    def open_wire(namespace: str = network.client, interface: str = "eth0") -> Wire:
        opened.append(Wire(namespace, interface))
        return opened[-1]

    yield open_wire
    for one in opened:
        one.close()


@contextmanager
def running_registry(directory: Path, data: Path, more: str = "") -> Iterator[str]:
    """Run a docker-registry over `data` on loopback; its host:port. `more` goes into its configuration of HTTP."""
    port = free_port()
    (directory / "config.yml").write_text(
        "version: 0.1\n"
        "log: {level: error, accesslog: {disabled: true}}\n"
        f"storage: {{filesystem: {{rootdirectory: {data}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'{more}}}\n"
    )
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(directory / "config.yml")], stdout=log, stderr=log)
    try:
        wait_until(lambda: listens(port), (directory / "log").read_text)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def registry_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of `docker_registry`."""
    return tmp_path_factory.mktemp("registry") / "data"


@pytest.fixture(scope="session")
def docker_registry(registry_data: Path) -> Iterator[str]:
    """Start an empty docker-registry on loopback; its host:port."""
    with running_registry(registry_data.parent, registry_data) as host:
        yield host


# --- kubectl ---


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Program:
    """A kubectl on this machine; `minor` is the 32 of v1.32.4."""

    path: str
    minor: int


def _kubectl_files() -> Iterator[Path]:
    """Find files named kubectl* on PATH, beside Python, and beside the targets of links among them."""
    for directory in [*os.environ["PATH"].split(os.pathsep), str(Path(sys.prefix) / "bin")]:
        for file in Path(directory).glob("kubectl*"):
            yield file
            if file.is_symlink():
                yield from file.resolve().parent.glob("kubectl*")


@cache
def kubectl_programs() -> tuple[Program, ...]:
    """Return the newest kubectl on this machine, and the oldest if it is at least five minor versions older."""
    minors: dict[int, str] = {}
    for path in sorted({found.resolve() for found in _kubectl_files()}):
        if not re.fullmatch(r"kubectl([.-]1\.\d+)?", path.name) or not os.access(path, os.X_OK):
            continue
        command = [str(path), "version", "--client", "-o", "json"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r'"gitVersion": *"v1\.(\d+)\.', ran.stdout)
        if found:
            minors.setdefault(int(found[1]), str(path))
    if not minors:
        return ()
    newest, oldest = max(minors), min(minors)
    chosen = [newest, *([oldest] if oldest <= newest - 5 else [])]
    return tuple(Program(minors[minor], minor) for minor in chosen)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that uses kubectl with each version: all kubectl fixtures depend on `program`.

    The mark `since(minor)` names the first kubectl that supports the test's options.
    """
    if "program" in metafunc.fixturenames:
        since = next(metafunc.definition.iter_markers("since"), None)
        programs = [one for one in kubectl_programs() if since is None or one.minor >= since.args[0]]
        assert programs, "there is no kubectl that knows this; bring one with: deploy/setup.sh kubectl"
        metafunc.parametrize("program", programs, ids=[f"1.{program.minor}" for program in programs])


class Kubectl:
    """kubectl with a home and a cache of its own, independent of the user's configuration."""

    def __init__(self, program: Program, kubeconfig: Path, home: Path) -> None:
        self.minor = program.minor
        self.home = home
        self.kubeconfig = kubeconfig
        cache_dir = f"--cache-dir={home / 'cache'}"
        self._command = [program.path, f"--kubeconfig={kubeconfig}", cache_dir, "--request-timeout=20s"]
        self._env = {"PATH": os.environ["PATH"], "HOME": str(home)}

    async def start(self, *arguments: str, **env: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *self._command, *arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=self._env | env
        )

    async def run(self, *arguments: str, stdin: str = "", **env: str) -> Ran:
        process = await self.start(*arguments, **env)
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), PATIENCE_SECONDS)
        return Ran(process.returncode or 0, out.decode(), err.decode())

    async def __call__(self, *arguments: str, stdin: str = "", **env: str) -> str:
        ran = await self.run(*arguments, stdin=stdin, **env)
        assert ran.code == 0, f"kubectl {' '.join(arguments)}: {ran.err}{ran.out}"
        assert "Warning" not in ran.err
        return ran.out

    async def object(self, *arguments: str) -> Any:
        """Get an object as JSON, managed fields left out."""
        obj = json.loads(await self("get", *arguments, "-o", "json"))
        obj["metadata"].pop("managedFields", None)
        return obj

    async def set_status(self, path: str, status: Mapping[str, Any]) -> None:
        """Write the status of the object at a path of the API; kubectl has --subresource only since 1.24."""
        obj = json.loads(await self("get", "--raw", path))
        await self("replace", "--raw", f"{path}/status", "-f", "-", stdin=json.dumps({**obj, "status": status}))


@pytest.fixture
async def bare(program: Program, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl and an API server without our resources."""
    async with serving(tmp_path / "state") as (server, _):
        yield _kubectl(program, server, tmp_path)


@pytest.fixture
async def kubectl(program: Program, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl and an API server with our resources."""
    async with serving(tmp_path / "state", generate()) as (server, _):
        yield _kubectl(program, server, tmp_path)


@pytest.fixture
async def both_versions(program: Program, tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl and an API server that serves v1alpha1 and v1alpha2, with the definitions of `tinkedge up`."""
    definitions = map(with_last_applied, [*generate(serve_v1alpha1=True), *generate_bmc()])
    converters = dict.fromkeys(versions.DEFINITIONS, versions)
    served = serving(tmp_path / "state", definitions, converters=converters, admit=versions.keep_served)
    async with served as (server, _):
        yield _kubectl(program, server, tmp_path)


def _kubectl(program: Program, server: ApiServer, directory: Path) -> Kubectl:
    home = directory / "home"
    home.mkdir()
    return Kubectl(program, server.kubeconfig, home)
