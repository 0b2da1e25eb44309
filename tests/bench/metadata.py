"""Metadata: machines that crawl it all at the same time, as cloud-init does, against nginx and a Go server.

The requests were recorded from cloud-init 22.4.2 and 25.x: a connection for each document, HTTP/1.1, the request in one
segment with `Connection: keep-alive`, and the client closes as soon as it has the answer; three of the requests are for
newer versions of the EC2 tree, which must be 404. Other clients (Ignition, curl, Go programs) keep their connection, so
there are rows for both. Each machine has an address of its own; the clients are `load/metadata.c`.

nginx serves one machine's answers to all, as files. The Go server has a map of answers for each address.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.bed import HTTP_PORT, SERVER_IP, BenchError, Cable, Server, installed, machine_ip, measured, python
from tests.bench.compiled import compiled
from tests.bench.ours import mac
from tests.bench.results import Row, Sample, alternate, idle_note, row, say
from tests.interop.go_templates import GO, OFFLINE

SIZES = (100, 10_000, 100_000)
"""Numbers of Hardware."""
CROWD = 10_000
"""Number of machines that crawl in the first round, each for the first time."""
CRAWLS = 1_000
"""Number of crawls in the other rounds."""
AT_ONCE = 64
"""Number of machines that crawl at the same time."""
ROUNDS = 3

AGENT = "Cloud-Init/22.4.2"
VERSION = "/2009-04-04"
NEWER = ("/2021-03-23", "/2018-09-24", "/2016-09-02")
NGINX, GO_SERVER = "nginx, 1 worker", "Go net/http"

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 16384; }}
http {{
  access_log off; log_not_found off; keepalive_requests 1000000; default_type "text/plain; charset=utf-8";
  client_body_temp_path {directory}/tmp; proxy_temp_path {directory}/tmp; fastcgi_temp_path {directory}/tmp;
  uwsgi_temp_path {directory}/tmp; scgi_temp_path {directory}/tmp;
  server {{ listen {address}:{port} backlog=1024; root {directory}/www; index listing; }}
}}
"""


@dataclass(frozen=True)
class _Target:
    """One request of a crawl, and the answer to machine 0."""

    path: str
    status: int
    body: bytes


class _Side:
    """One server and its clients."""

    def __init__(self, cable: Cable, server: Server, machines: int, *, same: bool = False) -> None:
        """`same`: the server sends the answers of machine 0 to all machines."""
        self._same = same
        self._cable = cable
        self._server = server
        self._machines = machines

    def fetch(self, path: str) -> _Target:
        """Fetch a path as machine 0."""
        command = [
            "curl",
            "-sS",
            "--interface",
            machine_ip(0),
            "-w",
            "%{http_code}",
            f"http://{SERVER_IP}:{HTTP_PORT}{path}",
        ]
        done = subprocess.run(self._cable.client(command), capture_output=True, check=True, timeout=60)
        return _Target(path, int(done.stdout[-3:]), done.stdout[:-3])

    def crawl(self, targets: Sequence[_Target], crawls: int, *, keep: bool) -> Sample:
        """Measure requests a second and for a CPU second, their milliseconds, and the load of the server's core."""
        words = [word for target in targets for word in (str(target.status), self._path(target))]
        how = (SERVER_IP, HTTP_PORT, min(self._machines, CROWD), crawls, AT_ONCE, int(keep), AGENT)
        before = self._server.cpu_seconds()
        result = measured(self._cable.client([str(compiled("metadata")), *map(str, how), *words]), timeout=300)
        cpu = self._server.cpu_seconds() - before
        return {
            **result,
            "rate": result["requests"] / result["seconds"],
            "core": result["requests"] / cpu,
            "busy": cpu / result["seconds"],
        }

    def _path(self, target: _Target) -> str:
        """Return the path pattern for the load generator; `{mac}` stands for each machine's MAC address."""
        return target.path if self._same else target.path.replace(mac(0), "{mac}")

    def memory(self) -> float:
        """Return the resident memory in megabytes."""
        return self._server.memory("VmRSS")


def run(directory: Path) -> list[Row]:
    """Measure metadata and return its rows of the table."""
    rows = []
    for machines in SIZES:
        with ExitStack() as stack:
            rows += _size(stack, directory / str(machines), machines)
    return rows


def _size(stack: ExitStack, directory: Path, machines: int) -> list[Row]:
    directory.mkdir()
    say(f"metadata: {machines:,} Hardware")
    command = python("ours", server="metadata", directory=str(directory), count=machines)
    ours = _side(stack, command, directory / "ours.log", machines)
    targets = _targets(ours.fetch)
    peer = None
    if nginx := installed("nginx"):
        peer = _side(stack, _nginx(nginx, directory, targets), directory / "nginx.log", machines, same=True)
    rows = _first(ours, targets, machines) + _modes(ours, peer, targets, machines, NGINX)
    if machines == CROWD:
        go = _side(stack, _go(directory, targets, machines), directory / "go.log", machines) if GO else None
        rows += _modes(ours, go, targets, machines, GO_SERVER)
    return rows


def _modes(ours: _Side, peer: _Side | None, targets: Sequence[_Target], machines: int, name: str) -> list[Row]:
    rows = []
    for keep in (False, True):
        title = f"{machines:,} Hardware, a connection for each {'crawl' if keep else 'request'}"
        say(f"metadata: {title}, {name}")
        rounds = alternate(
            ROUNDS,
            partial(ours.crawl, targets, CRAWLS, keep=keep),
            partial(peer.crawl, targets, CRAWLS, keep=keep) if peer is not None else None,
        )
        rows += [
            row("metadata", title, "1/s", rounds, "rate", name, note=idle_note(rounds)),
            row("metadata", f"{title}: for a second of CPU", "1/s", rounds, "core", name),
            row("metadata", f"{title}: p99", "ms", rounds, "p99", name, less_is_better=True),
        ]
    return rows


def _first(ours: _Side, targets: Sequence[_Target], machines: int) -> list[Row]:
    """Measure the first crawl of each machine, which compiles its answers, and the memory that they take."""
    crowd = min(machines, CROWD)
    before = ours.memory()
    rounds = alternate(1, lambda: ours.crawl(targets, crowd, keep=False), None)
    grown = (ours.memory() - before) * 1e3 / crowd
    title = f"{machines:,} Hardware, the first crawl of each"
    return [
        row("metadata", title, "1/s", rounds, "rate", "", note=idle_note(rounds)),
        row("metadata", f"{title}: p99", "ms", rounds, "p99", ""),
        Row("metadata", f"{title}: memory of each", "kB", grown, None, "-"),
        Row("metadata", f"{machines:,} Hardware: memory of the server", "MB", ours.memory(), None, "-"),
    ]


def _side(stack: ExitStack, command: list[str], log: Path, machines: int, *, same: bool = False) -> _Side:
    cable = stack.enter_context(Cable())
    cable.crowd(mac(0))
    return _Side(cable, cable.serve(command, log, port=HTTP_PORT), machines, same=same)


# --- requests, and the peers -----------------------------------------------------------------------------------------


def _targets(fetch: Callable[[str], _Target]) -> list[_Target]:
    """Return cloud-init's requests in its order: directories before the values beside them."""
    probes = [VERSION, *NEWER]
    targets = [fetch(f"{version}/meta-data/instance-id") for version in probes] + [fetch(f"{VERSION}/user-data")]

    def below(directory: str) -> None:
        listing = fetch(directory)
        targets.append(listing)
        names = sorted(listing.body.decode().split("\n"), key=lambda name: not name.endswith("/"))
        for name in names:
            if name.endswith("/"):
                below(directory + name)
            elif "=" in name:
                targets.append(fetch(f"{directory}{name.partition('=')[0]}/openssh-key"))
            else:
                targets.append(fetch(directory + name))

    below(f"{VERSION}/meta-data/")
    statuses = [target.status for target in targets]
    if statuses != [200, 404, 404, 404] + [200] * (len(targets) - 4):
        raise BenchError(f"metadata: the crawl of machine 0 got {statuses}")
    return targets


def _nginx(nginx: str, directory: Path, targets: Sequence[_Target]) -> list[str]:
    home = directory / "nginx"
    for target in targets:
        if target.status == 200:
            place = home / "www" / target.path[1:]
            place = place / "listing" if target.path.endswith("/") else place
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(target.body)
    config = home / "nginx.conf"
    config.write_text(_NGINX.format(directory=home, address=SERVER_IP, port=HTTP_PORT))
    return [nginx, "-p", str(home), "-e", "stderr", "-c", str(config)]


def _go(directory: Path, targets: Sequence[_Target], machines: int) -> list[str]:
    source, program, site = Path(__file__).parent / "gometadata" / "main.go", directory / "go-server", directory / "go"
    command = [str(GO), "build", "-o", str(program), str(source)]
    done = subprocess.run(command, env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{source.name} can't be built: {done.stderr.strip()[-2000:]}")
    bodies = {_form(target.path): _form(target.body.decode()) for target in targets if target.status == 200}
    site.write_text(json.dumps({"Machines": machines, "Bodies": bodies}))
    return [str(program), f"{SERVER_IP}:{HTTP_PORT}", str(site)]


def _form(body: str) -> str:
    """Replace machine 0 in an answer or path by the pattern of any machine."""
    body = body.replace("machine-0", "machine-{number}").replace(machine_ip(0), "{address}")
    return body.replace(mac(0), "{mac}")
