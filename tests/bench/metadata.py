"""Metadata: machines that crawl it all at the same time, as cloud-init does, against nginx and a Go server.

What cloud-init sends was recorded, 22.4.2 and 25.x alike: a connection for each document, HTTP/1.1, the request in one
segment with `Connection: keep-alive`, and the client closes as soon as it has the answer; three of the requests are for
newer versions of the EC2 tree, which must be 404. Other clients (Ignition, curl, Go programs) keep their connection, so
there are rows for both. Each machine asks from an address of its own; the clients are `load/metadata.c`.

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
"""How many Hardware there are."""
CROWD = 10_000
"""Machines that crawl, where there are so many: each once for the first time."""
CRAWLS = 1_000
"""In a round that is not the first."""
AT_ONCE = 64
"""Machines: what a server has at one time of a crowd that takes its time."""
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
    """One request of a crawl, and what machine 0 gets."""

    path: str
    status: int
    body: bytes


class _Side:
    """One server and the crowd that asks it."""

    def __init__(self, cable: Cable, server: Server, machines: int, *, same: bool = False) -> None:
        """`same`: it has the answers of machine 0 for all."""
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
        """Requests a second and for a second of the server's processor, milliseconds of them, and how busy it was."""
        words = [word for target in targets for word in (str(target.status), self._path(target))]
        how = (SERVER_IP, HTTP_PORT, min(self._machines, CROWD), crawls, AT_ONCE, int(keep), AGENT)
        before = self._server.cpu_seconds()
        found = measured(self._cable.client([str(compiled("metadata")), *map(str, how), *words]), timeout=300)
        cpu = self._server.cpu_seconds() - before
        return {
            **found,
            "rate": found["requests"] / found["seconds"],
            "core": found["requests"] / cpu,
            "busy": cpu / found["seconds"],
        }

    def _path(self, target: _Target) -> str:
        """Return the path pattern for the load generator; `{mac}` stands for each machine's MAC address."""
        return target.path if self._same else target.path.replace(mac(0), "{mac}")

    def memory(self) -> float:
        """Megabytes that are resident now."""
        return self._server.memory("VmRSS")


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
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
        what = f"{machines:,} Hardware, a connection for each {'crawl' if keep else 'request'}"
        say(f"metadata: {what}, {name}")
        rounds = alternate(
            ROUNDS,
            partial(ours.crawl, targets, CRAWLS, keep=keep),
            partial(peer.crawl, targets, CRAWLS, keep=keep) if peer is not None else None,
        )
        rows += [
            row("metadata", what, "1/s", rounds, "rate", name, note=idle_note(rounds)),
            row("metadata", f"{what}: for a second of CPU", "1/s", rounds, "core", name),
            row("metadata", f"{what}: p99", "ms", rounds, "p99", name, less_is_better=True),
        ]
    return rows


def _first(ours: _Side, targets: Sequence[_Target], machines: int) -> list[Row]:
    """The first crawl of each, for which its answers have to be compiled, and what stays of it in memory."""
    crowd = min(machines, CROWD)
    before = ours.memory()
    rounds = alternate(1, lambda: ours.crawl(targets, crowd, keep=False), None)
    grown = (ours.memory() - before) * 1e3 / crowd
    what = f"{machines:,} Hardware, the first crawl of each"
    return [
        row("metadata", what, "1/s", rounds, "rate", "", note=idle_note(rounds)),
        row("metadata", f"{what}: p99", "ms", rounds, "p99", ""),
        Row("metadata", f"{what}: memory of each", "kB", grown, None, "-"),
        Row("metadata", f"{machines:,} Hardware: memory of the server", "MB", ours.memory(), None, "-"),
    ]


def _side(stack: ExitStack, command: list[str], log: Path, machines: int, *, same: bool = False) -> _Side:
    cable = stack.enter_context(Cable())
    cable.crowd(mac(0))
    return _Side(cable, cable.serve(command, log, port=HTTP_PORT), machines, same=same)


# --- what is asked for, and who else answers it ----------------------------------------------------------------------


def _targets(fetch: Callable[[str], _Target]) -> list[_Target]:
    """The requests that cloud-init makes of a server, in its order: directories before the values beside them."""
    probes = [VERSION, *NEWER]
    found = [fetch(f"{version}/meta-data/instance-id") for version in probes] + [fetch(f"{VERSION}/user-data")]

    def below(directory: str) -> None:
        listing = fetch(directory)
        found.append(listing)
        names = sorted(listing.body.decode().split("\n"), key=lambda name: not name.endswith("/"))
        for name in names:
            if name.endswith("/"):
                below(directory + name)
            elif "=" in name:
                found.append(fetch(f"{directory}{name.partition('=')[0]}/openssh-key"))
            else:
                found.append(fetch(directory + name))

    below(f"{VERSION}/meta-data/")
    statuses = [target.status for target in found]
    if statuses != [200, 404, 404, 404] + [200] * (len(found) - 4):
        raise BenchError(f"metadata: the crawl of machine 0 got {statuses}")
    return found


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
    """Machine 0's answer, or path, as that of any machine."""
    body = body.replace("machine-0", "machine-{number}").replace(machine_ip(0), "{address}")
    return body.replace(mac(0), "{mac}")
