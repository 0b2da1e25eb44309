"""The test bed: network namespaces, pinned processes, and their CPU time.

Each side (ours, the peer) has its own pair of namespaces, joined by a virtual cable, with the same addresses; so both
servers can stand ready on the same port while one of them is measured. Servers run on one core, clients on another.
The context managers here create and remove everything, also after errors.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Any

SERVER_IP = "10.67.0.1"
NETWORK, NETMASK = "10.64.0.0/12", "255.240.0.0"
SERVER_IP6, CLIENT_IP6, NETWORK6 = "fd67::1", "fd67::2", "fd67::/64"
_CROWD = ("10.64.0.0/12", "10.67.0.0/17", "10.67.128.0/17")
"""NETWORK, and more narrowly than the cable's own route all that would go by that."""
HTTP_PORT = 7080
CLIENTS = 8
"""How many machines the client can be: so many addresses it has, see `machine_ip`."""

START_SECONDS = 120.0
_CLOCK_OF_PROCESS = 2  # CPUCLOCK_SCHED, kernel/time/posix-timers.h


class BenchError(Exception):
    """A benchmark can't be run, or a side did not do what it should; the message names the side and the reason."""


def cores() -> tuple[int, int]:
    """Return the servers' core and the clients' core. Raises BenchError."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise BenchError("two cores are needed, one for servers and one for clients")
    return usable[0], usable[1]


def installed(program: str) -> str | None:
    """Return the path of a program, also in /usr/sbin and among those of the set-up."""
    own = Path(sys.executable).parent
    return shutil.which(program, path=os.environ.get("PATH", "") + f":{own}:/usr/sbin:/sbin:/usr/local/go/bin")


def machine_ip(number: int) -> str:
    """Return the address in NETWORK of a machine, numbered from 0; the client has the first CLIENTS."""
    return f"10.{67 + number // 50_000}.{number // 200 % 250}.{2 + number % 200}"


def machine_ip6(number: int) -> str:
    """Return the IPv6 address in NETWORK6 of a machine, numbered from 0."""
    return f"fd67::1:{number >> 16:x}:{number & 0xFFFF:x}"


def python(module: str, **arguments: Any) -> list[str]:
    """Return the command that runs a module of this package with `arguments` as JSON."""
    return [sys.executable, "-m", f"tests.bench.{module}", json.dumps(arguments)]


def pinned(core: int, command: list[str]) -> list[str]:
    """Return the command that runs `command` on one core."""
    return ["taskset", "-c", str(core), *command]


def measured(command: list[str], timeout: float = 120) -> Any:
    """Run a command and return its output, parsed as JSON. Raises BenchError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)[:200]}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)


class Server:
    """A server process on the servers' core; ready when this returns."""

    def __init__(self, command: list[str], log: Path, ready: Callable[[int], bool]) -> None:
        """Wait until `ready(pid)` is true. Raises BenchError with the end of `log`."""
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        give_up = time.monotonic() + START_SECONDS
        while not ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > give_up:
                self.stop()
                raise BenchError(f"{' '.join(command)[:200]} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def memory(self, what: str) -> float:
        """Return the resident memory in MB: now (VmRSS), or its maximum so far (VmHWM)."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) * 1024 / 1e6

    def cpu_seconds(self) -> float:
        """Return the CPU time of all threads so far, including ended ones (clock_getcpuclockid(3))."""
        return time.clock_gettime(~self._process.pid << 3 | _CLOCK_OF_PROCESS)

    def stop(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Cable:
    """A server's and a client's namespace: `srv0` has SERVER_IP, `eth0` the clients' addresses."""

    def __init__(self, clients: int = CLIENTS) -> None:
        """`clients`: the number of the client's addresses."""
        unique = f"{os.getpid()}-{secrets.token_hex(3)}"
        self._clients = clients
        self._server, self._client = f"bench-s-{unique}", f"bench-c-{unique}"
        self._servers: list[Server] = []

    def __enter__(self) -> Cable:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _build(self) -> None:
        for namespace in (self._server, self._client):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self._client, "link", "add", "eth0", "type", "veth", "peer", "name", "srv0", "netns", self._server)
        _ip("-n", self._server, "addr", "add", f"{SERVER_IP}/16", "dev", "srv0")
        for number in range(self._clients):
            _ip("-n", self._client, "addr", "add", f"{machine_ip(number)}/16", "dev", "eth0")
        _ip("-n", self._server, "link", "set", "srv0", "up")
        _ip("-n", self._client, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for server in reversed(self._servers):
            with suppress(OSError):  # remove the others and the namespaces nevertheless
                server.stop()
        for namespace in (self._server, self._client):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def ipv6(self) -> None:
        """Add an IPv6 address to both ends, SERVER_IP6 and CLIENT_IP6."""
        for namespace, name, address in ((self._server, "srv0", SERVER_IP6), (self._client, "eth0", CLIENT_IP6)):
            _ip("-n", namespace, "addr", "add", f"{address}/64", "dev", name, "nodad")

    def crowd(self, mac: str) -> None:
        """Give the client all addresses of NETWORK (`machine_ip` of any number).

        The first machine is on the link, with this MAC, and is the router of the others.
        """
        _ip("-n", self._client, "link", "set", "eth0", "address", mac)
        _ip("-n", self._client, "route", "add", f"{SERVER_IP}/32", "dev", "eth0")
        _ip("-n", self._server, "route", "add", f"{machine_ip(0)}/32", "dev", "srv0")
        for network in _CROWD:
            _ip("-n", self._client, "route", "add", "local", network, "dev", "lo")
            _ip("-n", self._server, "route", "add", network, "via", machine_ip(0))

    def serve(
        self,
        command: list[str],
        log: Path,
        *,
        port: int,
        protocol: str = "tcp",
        ready: Callable[[], bool] | None = None,
    ) -> Server:
        """Start a server and wait until it has `port` open and `ready` is true. Raises BenchError."""

        def is_ready(pid: int) -> bool:
            return _listens(pid, protocol, port) and (ready is None or ready())

        server = Server(self._inside(self._server, pinned(cores()[0], command)), log, is_ready)
        self._servers.append(server)
        return server

    def client(self, command: list[str]) -> list[str]:
        """Return the command that runs `command` in the client's namespace, on the clients' core."""
        return self._inside(self._client, pinned(cores()[1], command))

    def neighbour(self, command: list[str]) -> list[str]:
        """Return the command on the clients' core, but in the server's namespace, for servers on loopback."""
        return self._inside(self._server, pinned(cores()[1], command))

    def anywhere(self, command: list[str]) -> list[str]:
        """Return the command in the server's namespace on any core, to measure all cores together."""
        return self._inside(self._server, command)

    @staticmethod
    def _inside(namespace: str, command: list[str]) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{namespace}", *command]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"ip {' '.join(words)}: {done.stderr.strip()} (network namespaces need root)")


def _listens(pid: int, protocol: str, port: int) -> bool:
    """Return True if the port is open in the process's namespace; `protocol` is tcp, udp or udp6."""
    try:
        lines = Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]
    except OSError:
        return False
    # Before nsenter has entered, these are the host's sockets: check the address of our namespace.
    own = ("0" * 32, _hex6(SERVER_IP6)) if protocol == "udp6" else (_hex(SERVER_IP), _hex("127.0.0.1"), "00000000")
    addresses = {f"{address}:{port:04X}" for address in own}
    return _entered(pid) and any(line.split()[1] in addresses and _open(line, protocol) for line in lines)


def _entered(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def _open(line: str, protocol: str) -> bool:
    return line.split()[3] == ("0A" if protocol == "tcp" else "07")  # LISTEN, or unconnected UDP


def _hex6(address: str) -> str:
    packed = IPv6Address(address).packed
    return "".join(packed[at : at + 4][::-1].hex() for at in range(0, 16, 4)).upper()


def _hex(address: str) -> str:
    return bytes(int(part) for part in reversed(address.split("."))).hex().upper()
