"""HTTP: an initrd from the warm artifact cache, one that it is still fetching, and small requests, against nginx.

nginx has `sendfile` and one worker; for uncached files it is a caching proxy that fetches each once.
The clients are `load/http.c`.
"""

from __future__ import annotations

import filecmp
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from operator import methodcaller
from pathlib import Path
from typing import Any

from tests.bench.bed import CLIENTS, HTTP_PORT, SERVER_IP, BenchError, Cable, Server, installed, measured, python
from tests.bench.compiled import compiled
from tests.bench.ours import UPSTREAM_PORT
from tests.bench.results import Row, Sample, alternate, idle_note, row, say

SIZE = 256 << 20
FRESH_SIZE = 64 << 20
INITRD = "/osie/lab/initrd"
FRESH = "/osie/fresh-{number}/initrd"
"""An initrd without an earlier request, so without a cached copy; `ours` and nginx find its upstream by the name."""
SMALL = "/2009-04-04/meta-data/instance-id"
SCRIPT = "/ipxe/script/52:54:00:00:00:00/auto.ipxe"
DOWNLOADS_MEANWHILE = 4
MEANWHILE_SECONDS = 2.0
ALONE_SECONDS = 1.0
PEER = "nginx, 1 worker"
PROXY = "nginx, caching proxy"

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; default_type application/octet-stream;
  client_body_temp_path {directory}/tmp; proxy_temp_path {directory}/cache/tmp; fastcgi_temp_path {directory}/tmp;
  uwsgi_temp_path {directory}/tmp; scgi_temp_path {directory}/tmp;
  proxy_cache_path {directory}/cache keys_zone=osie:1m; proxy_cache_lock on; proxy_cache_valid 1h;
  server {{
    listen {address}:{port}; root {directory}/www;
    location /osie/fresh- {{ proxy_cache osie; proxy_pass http://127.0.0.1:{upstream_port}; }}
  }}
}}
"""

_UPSTREAM = """
daemon off; master_process off; worker_processes 1; pid {directory}/upstream-{name}.pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on; default_type application/octet-stream;
  client_body_temp_path {directory}/tmp; proxy_temp_path {directory}/tmp; fastcgi_temp_path {directory}/tmp;
  uwsgi_temp_path {directory}/tmp; scgi_temp_path {directory}/tmp;
  server {{ listen 127.0.0.1:{port}; location / {{ root {directory}; try_files /fresh =404; }} }}
}}
"""

# --- the subject ---------------------------------------------------------------------------------------------------


class _Side:
    """One server and its clients."""

    def __init__(self, cable: Cable, server: Server) -> None:
        self._cable = cable
        self._server = server
        self._numbers = itertools.count()

    def check(self, target: Path, expected: dict[str, Path]) -> None:
        """Check that the server sends every document whole. Raises BenchError."""
        for path, whole in expected.items():
            command = ["curl", "-sSf", "-o", str(target), f"http://{SERVER_IP}:{HTTP_PORT}{path}"]
            done = subprocess.run(self._cable.client(command), capture_output=True, text=True, check=False, timeout=60)
            if done.returncode != 0 or not filecmp.cmp(whole, target, shallow=False):
                raise BenchError(f"HTTP: {path} did not arrive whole: {done.stderr}")
        target.unlink()

    def fetch(self, path: str) -> bytes:
        """Fetch a path and return the response's body."""
        command = ["curl", "-sSf", f"http://{SERVER_IP}:{HTTP_PORT}{path}"]
        return subprocess.run(self._cable.client(command), capture_output=True, check=True, timeout=60).stdout

    def download(self, path: str, clients: int, each: int) -> Sample:
        """Measure megabytes a second, CPU milliseconds for a megabyte, fairness, and the load of the server's core."""
        before = self._server.cpu_seconds()
        result = measured(self._load(path, clients, requests=each))
        cpu, megabytes = self._server.cpu_seconds() - before, result["bytes"] / 1e6
        return {
            "speed": megabytes / result["seconds"],
            "cpu": cpu * 1e3 / megabytes,
            "busy": cpu / result["seconds"],
            "fair": result["first"] / result["last"],
        }

    def fresh(self, clients: int) -> Sample:
        """Measure the download of a file that the server has to fetch from the upstream."""
        return self.download(FRESH.format(number=next(self._numbers)), clients, 1)

    def meanwhile(self) -> Sample:
        """Measure the milliseconds of small requests during downloads, and the megabytes a second of the downloads."""
        job = self._load(INITRD, DOWNLOADS_MEANWHILE, seconds=MEANWHILE_SECONDS + 1)
        downloads = subprocess.Popen(job, stdout=subprocess.PIPE)
        try:
            time.sleep(0.5)
            # Start before the downloads' clients on this core, so that their turn does not count as the server's time.
            ask = ["chrt", "--fifo", "1", *self._command(SMALL, 1, seconds=MEANWHILE_SECONDS, pause=1000)]
            result = measured(self._cable.client(ask))
            output, _ = downloads.communicate(timeout=60)
        finally:
            downloads.kill()
        downloaded = json.loads(output)
        return {**result, "speed": downloaded["bytes"] / 1e6 / downloaded["seconds"]}

    def small(self, path: str, clients: int) -> Sample:
        """Measure small requests alone at the maximum rate: the rate, and the milliseconds of each."""
        result = measured(self._load(path, clients, seconds=ALONE_SECONDS))
        return {**result, "rate": result["requests"] / result["seconds"]}

    def _load(self, path: str, clients: int, **how: Any) -> list[str]:
        return self._cable.client(self._command(path, clients, **how))

    @staticmethod
    def _command(path: str, clients: int, *, requests: int = 0, seconds: float = 0.0, pause: int = 0) -> list[str]:
        words = (SERVER_IP, HTTP_PORT, path, CLIENTS if clients > 1 else 1, clients, requests, seconds, pause)
        return [str(compiled("http")), *(str(word) for word in words)]


def run(directory: Path) -> list[Row]:
    """Measure HTTP and return its rows of the table."""
    initrd, fresh = _file(directory / "initrd", SIZE), _file(directory / "fresh", FRESH_SIZE)
    name = directory / "name"
    name.write_bytes(b"machine-0")
    expected = {INITRD: initrd, FRESH.format(number="check"): fresh, SMALL: name}
    nginx = installed("nginx")
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        ours = _Side(cable, _start_ours(cable, directory))
        if nginx:
            stack.callback(_start_upstream(cable, nginx, directory, "ours").stop)
            ours.check(directory / "got", expected)
            script = ours.fetch(SCRIPT)
            cable = stack.enter_context(Cable())
            stack.callback(_start_upstream(cable, nginx, directory, "peer").stop)
            peer = _Side(cable, _start_nginx(cable, nginx, directory, initrd, script))
            peer.check(directory / "got", expected)
        else:
            del expected[FRESH.format(number="check")]
            ours.check(directory / "got", expected)
            peer = None
        rows = []
        for clients, each, rounds in ((1, 4, 5), (8, 1, 5), (50, 1, 3)):
            rows += _downloads(ours, peer, clients, each, rounds)
        rows += _meanwhile(ours, peer)
        rows += _alone(ours, peer)
        if peer is not None:
            rows += _fresh(ours, peer, 10)
        return rows


def _file(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    return path


def _start_ours(cable: Cable, directory: Path) -> Server:
    return cable.serve(python("ours", server="http", directory=str(directory)), directory / "ours.log", port=HTTP_PORT)


def _start_upstream(cable: Cable, nginx: str, directory: Path, name: str) -> Server:
    """Start the upstream of fresh files in the server's namespace, but on the clients' core."""
    config = directory / f"upstream-{name}.conf"
    config.write_text(_UPSTREAM.format(directory=directory, name=name, port=UPSTREAM_PORT))
    command = [nginx, "-p", str(directory), "-e", "stderr", "-c", str(config)]
    url = f"http://127.0.0.1:{UPSTREAM_PORT}/"
    look = cable.neighbour(["curl", "-sf", "--head", "-o", "/dev/null", url])
    log = directory / f"upstream-{name}.log"
    return Server(cable.neighbour(command), log, lambda _: subprocess.run(look, check=False).returncode == 0)


def _start_nginx(cable: Cable, nginx: str, directory: Path, initrd: Path, script: bytes) -> Server:
    home = directory / "nginx"
    for path, content in ((INITRD, None), (SMALL, b"machine-0"), (SCRIPT, script)):
        place = home / "www" / path[1:]
        place.parent.mkdir(parents=True)
        if content is None:
            place.hardlink_to(initrd)
        else:
            place.write_bytes(content)
    (home / "cache").mkdir()
    config = home / "nginx.conf"
    config.write_text(_NGINX.format(directory=home, address=SERVER_IP, port=HTTP_PORT, upstream_port=UPSTREAM_PORT))
    command = [nginx, "-p", str(home), "-e", "stderr", "-c", str(config)]
    return cable.serve(command, directory / "nginx.log", port=HTTP_PORT)


def _rounds(count: int, measure: Callable[[_Side], Sample], ours: _Side, peer: _Side | None) -> Any:
    return alternate(count, lambda: measure(ours), (lambda: measure(peer)) if peer is not None else None)


def _downloads(ours: _Side, peer: _Side | None, clients: int, each: int, count: int) -> list[Row]:
    title = f"initrd of {SIZE >> 20} MiB, {clients} client{'s' * (clients > 1)}"
    say(f"http: {title}")
    rounds = _rounds(count, methodcaller("download", INITRD, clients, each), ours, peer)
    rows = [
        row("http", title, "MB/s", rounds, "speed", PEER, note=idle_note(rounds)),
        row("http", f"{title}: CPU", "ms/MB", rounds, "cpu", PEER, less_is_better=True),
    ]
    if clients > 1:
        rows.append(row("http", f"{title}: first done / last done", "", rounds, "fair", PEER))
    return rows


def _meanwhile(ours: _Side, peer: _Side | None) -> list[Row]:
    say(f"http: small requests while {DOWNLOADS_MEANWHILE} downloads run")
    rounds = _rounds(4, methodcaller("meanwhile"), ours, peer)
    during = f"during {DOWNLOADS_MEANWHILE} downloads"
    return [
        row("http", f"instance-id {during}: p50", "ms", rounds, "p50", PEER, less_is_better=True),
        row("http", f"instance-id {during}: p99", "ms", rounds, "p99", PEER, less_is_better=True),
        row("http", f"the {DOWNLOADS_MEANWHILE} downloads meanwhile", "MB/s", rounds, "speed", PEER),
    ]


def _alone(ours: _Side, peer: _Side | None) -> list[Row]:
    rows = []
    for title, path, clients in (("instance-id", SMALL, 32), ("script", SCRIPT, 1)):
        say(f"http: {title}, {clients} at a time")
        rounds = _rounds(3, methodcaller("small", path, clients), ours, peer)
        rows += [
            row("http", f"{title}, {clients} at a time", "1/s", rounds, "rate", PEER),
            row("http", f"{title}, {clients} at a time: p99", "ms", rounds, "p99", PEER, less_is_better=True),
        ]
    return rows


def _fresh(ours: _Side, peer: _Side, clients: int) -> list[Row]:
    title = f"initrd of {FRESH_SIZE >> 20} MiB that is being fetched, {clients} clients"
    say(f"http: {title}")
    rounds = _rounds(4, methodcaller("fresh", clients), ours, peer)
    return [
        row("http", title, "MB/s", rounds, "speed", PROXY),
        row("http", f"{title}: CPU", "ms/MB", rounds, "cpu", PROXY, less_is_better=True),
    ]
