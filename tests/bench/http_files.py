"""HTTP: an initrd from the warm artifact cache, against nginx with sendfile, and small requests meanwhile.

The clients throw the bytes away in the kernel (MSG_TRUNC, tcp(7)), so that the servers are what is measured.
"""

from __future__ import annotations

import filecmp
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.bed import (
    CLIENTS,
    HTTP_PORT,
    SERVER_IP,
    BenchError,
    Cable,
    Server,
    installed,
    machine_ip,
    measured,
    python,
)
from tests.bench.results import Row, Sample, alternate, idle_note, row, say

SIZE = 256 << 20
ROUNDS = 5
INITRD = "/osie/lab/initrd"
SMALL = "/2009-04-04/meta-data/instance-id"
DOWNLOADS_MEANWHILE = 4
MEANWHILE_SECONDS = 2.0
PEER = "nginx, 1 worker"

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; default_type application/octet-stream;
  client_body_temp_path {directory}/tmp; proxy_temp_path {directory}/tmp; fastcgi_temp_path {directory}/tmp;
  uwsgi_temp_path {directory}/tmp; scgi_temp_path {directory}/tmp;
  server {{ listen {address}:{port}; root {directory}/www; }}
}}
"""

# --- the subject ---------------------------------------------------------------------------------------------------


class _Side:
    """One server and its clients."""

    def __init__(self, cable: Cable, server: Server) -> None:
        self._cable = cable
        self._server = server

    def check(self, initrd: Path, got: Path) -> None:
        """Both documents must come, whole. Raises BenchError."""
        url = f"http://{SERVER_IP}:{HTTP_PORT}"
        command = ["curl", "-sSf", "-o", str(got), url + INITRD, "-o", f"{got}.small", url + SMALL]
        done = subprocess.run(self._cable.client(command), capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0 or not filecmp.cmp(initrd, got, shallow=False):
            raise BenchError(f"HTTP: {INITRD} and {SMALL} did not both arrive whole: {done.stderr}")
        if (small := Path(f"{got}.small").read_text()) != "machine-0":
            raise BenchError(f"HTTP: {SMALL} is {small!r}")
        got.unlink()

    def download(self, clients: int, each: int) -> Sample:
        """Megabytes a second, and milliseconds of the server's processor for a megabyte."""
        before = self._server.cpu_seconds()
        found = measured(self._cable.client(python("http_files", do="download", clients=clients, each=each)))
        cpu, megabytes = self._server.cpu_seconds() - before, found["bytes"] / 1e6
        return {
            "speed": megabytes / found["seconds"],
            "cpu": cpu * 1e3 / megabytes,
            "busy": cpu / found["seconds"],
        }

    def meanwhile(self) -> Sample:
        """Milliseconds for small requests while downloads run, and megabytes a second of those."""
        job = python("http_files", do="download", clients=DOWNLOADS_MEANWHILE, seconds=MEANWHILE_SECONDS + 1)
        downloads = subprocess.Popen(self._cable.client(job), stdout=subprocess.PIPE)
        try:
            time.sleep(0.5)
            found = measured(self._cable.client(python("http_files", do="ask", seconds=MEANWHILE_SECONDS)))
            output, _ = downloads.communicate(timeout=60)
        finally:
            downloads.kill()
        got = json.loads(output)
        return {**found, "speed": got["bytes"] / 1e6 / got["seconds"]}


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
    initrd = directory / "initrd"
    with initrd.open("wb") as file:
        for _ in range(SIZE >> 20):
            file.write(os.urandom(1 << 20))
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        ours = _Side(cable, _start_ours(cable, directory))
        ours.check(initrd, directory / "got")
        peer = None
        if nginx := installed("nginx"):
            cable = stack.enter_context(Cable())
            peer = _Side(cable, _start_nginx(cable, nginx, directory, initrd))
            peer.check(initrd, directory / "got")
        return [row for clients in (1, CLIENTS) for row in _downloads(ours, peer, clients)] + _meanwhile(ours, peer)


def _start_ours(cable: Cable, directory: Path) -> Server:
    return cable.serve(python("ours", server="http", directory=str(directory)), directory / "ours.log", port=HTTP_PORT)


def _start_nginx(cable: Cable, nginx: str, directory: Path, initrd: Path) -> Server:
    home = directory / "nginx"
    for path, content in ((INITRD, None), (SMALL, b"machine-0")):
        place = home / "www" / path[1:]
        place.parent.mkdir(parents=True)
        if content is None:
            place.hardlink_to(initrd)
        else:
            place.write_bytes(content)
    config = home / "nginx.conf"
    config.write_text(_NGINX.format(directory=home, address=SERVER_IP, port=HTTP_PORT))
    command = [nginx, "-p", str(home), "-e", "stderr", "-c", str(config)]
    return cable.serve(command, directory / "nginx.log", port=HTTP_PORT)


def _downloads(ours: _Side, peer: _Side | None, clients: int) -> list[Row]:
    say(f"http: {SIZE >> 20} MiB to {clients} client{'s' * (clients > 1)}")
    each = 2 if clients > 1 else 4
    rounds = alternate(
        ROUNDS,
        lambda: ours.download(clients, each),
        (lambda: peer.download(clients, each)) if peer is not None else None,
    )
    what = f"initrd of {SIZE >> 20} MiB, {clients} client{'s' * (clients > 1)}"
    return [
        row("http", what, "MB/s", rounds, "speed", PEER, note=idle_note(rounds)),
        row("http", f"{what}: CPU", "ms/MB", rounds, "cpu", PEER, less_is_better=True),
    ]


def _meanwhile(ours: _Side, peer: _Side | None) -> list[Row]:
    say(f"http: small requests while {DOWNLOADS_MEANWHILE} downloads run")
    rounds = alternate(ROUNDS, ours.meanwhile, peer.meanwhile if peer is not None else None)
    during = f"during {DOWNLOADS_MEANWHILE} downloads"
    return [
        row("http", f"instance-id {during}: p50", "ms", rounds, "p50", PEER, less_is_better=True),
        row("http", f"instance-id {during}: p99", "ms", rounds, "p99", PEER, less_is_better=True),
        row("http", f"the {DOWNLOADS_MEANWHILE} downloads meanwhile", "MB/s", rounds, "speed", PEER),
    ]


# --- the clients, a process of their own ---------------------------------------------------------------------------


class _Connection:
    """One keep-alive connection of one machine."""

    def __init__(self, number: int) -> None:
        self._socket = socket.create_connection((SERVER_IP, HTTP_PORT), 30, (machine_ip(number), 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(4 << 20)

    def get(self, path: str) -> int:
        """Ask and take the whole answer; gives the length of the body. Raises BenchError."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: {SERVER_IP}\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self._take(4096)
        headers, _, body = head.partition(b"\r\n\r\n")
        lines = headers.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if not headers.startswith(b"HTTP/1.1 200") or length is None:
            raise BenchError(f"HTTP: {path}: {headers.decode(errors='replace')}")
        missing = length - len(body)
        while missing > 0:
            count = self._socket.recv_into(self._buffer, min(missing, len(self._buffer)), socket.MSG_TRUNC)
            if count == 0:
                raise BenchError(f"HTTP: {path}: {missing} of {length} bytes are missing")
            missing -= count
        return length

    def _take(self, size: int) -> bytes:
        received = self._socket.recv(size)
        if not received:
            raise BenchError("HTTP: the server closed the connection")
        return received


def _download(clients: int, each: int = 0, seconds: float = 0.0) -> dict[str, float]:
    """Each client downloads `each` times, or again and again for `seconds`."""
    connections = [_Connection(number) for number in range(clients)]
    barrier = threading.Barrier(clients + 1)

    def client(connection: _Connection) -> int:
        barrier.wait()
        if each:
            return sum(connection.get(INITRD) for _ in range(each))
        total = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            total += connection.get(INITRD)
        return total

    with ThreadPoolExecutor(clients) as pool:
        found = [pool.submit(client, connection) for connection in connections]
        barrier.wait()
        start = time.perf_counter()
        total = sum(future.result() for future in found)
        return {"bytes": total, "seconds": time.perf_counter() - start}


def _ask(seconds: float) -> dict[str, float]:
    """Small requests, one after the other with a millisecond between, as a machine of its own."""
    # Before the downloads' clients on this core: their turn is not to count as the server's time.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connection = _Connection(CLIENTS - 1)
    times = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        connection.get(SMALL)
        times.append((time.perf_counter() - start) * 1e3)
        time.sleep(0.001)
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100], "requests": len(times)}


def _client(arguments: dict[str, Any]) -> dict[str, float]:
    clients: dict[str, Callable[..., dict[str, float]]] = {"download": _download, "ask": _ask}
    return clients[arguments.pop("do")](**arguments)


if __name__ == "__main__":
    print(json.dumps(_client(json.loads(sys.argv[1]))))
