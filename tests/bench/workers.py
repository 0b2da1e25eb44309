"""`--workers 2` beside one process: what a request costs in processor time, and how evenly two workers share it.

How much faster two are is not measured: that takes processors for the load generator, too. Measured is the time of the
edge's processes for each request (/proc/PID/stat), from which the ratio is computed that two processors could reach:
bounded by all that is to be done for a request, and by the share of the busiest worker.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge.composition.workers import cpu_seconds
from tests.bench.bed import BenchError
from tests.bench.results import Row, say
from tests.interop.site.machine import Machine
from tests.interop.site.site import Site, address_of

SECONDS = 5.0
AT_ONCE = 8
SUBJECTS = {
    "metadata": ("/2009-04-04/meta-data/instance-id", "a document on a connection of its own"),
    "http": ("/osie/lab/initrd", "an initrd of 1.5 MB"),
    "tftp": ("undionly.kpxe", "a boot program of 77 kB, window 16"),
}
_LOAD = """
import socket, struct, sys, threading, time
kind, address, name, seconds, at_once = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
end, done = time.monotonic() + seconds, []

def get():
    with socket.create_connection((address, 7080)) as sock:
        sock.sendall(f"GET {name} HTTP/1.1\\r\\nHost: edge\\r\\nConnection: close\\r\\n\\r\\n".encode())
        first = sock.recv(1 << 20)
        assert first.startswith(b"HTTP/1.1 200"), first[:200]
        while sock.recv(1 << 20):
            pass

def tftp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        options = b"blksize\\0001400\\0windowsize\\00016\\0"
        sock.sendto(b"\\0\\1" + name.encode() + b"\\0octet\\0" + options, (address, 69))
        last, since = 0, 0
        while True:
            packet, peer = sock.recvfrom(2048)
            if packet[1] == 6:
                sock.sendto(b"\\0\\4\\0\\0", peer)
                continue
            assert packet[1] == 3, packet
            block = struct.unpack("!H", packet[2:4])[0]
            if block == last + 1:
                last, since = block, since + 1
            if since == 16 or len(packet) < 1404:
                sock.sendto(b"\\0\\4" + struct.pack("!H", last), peer)
                since = 0
                if len(packet) < 1404:
                    return

def run():
    while time.monotonic() < end:
        (tftp if kind == "tftp" else get)()
        done.append(1)

threads = [threading.Thread(target=run) for _ in range(at_once)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(done))
"""


def run(directory: Path) -> list[Row]:
    """One row each; `ours` is with two workers, `peer` one process."""
    found: dict[int, dict[str, tuple[float, float]]] = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory(dir=directory) as work, Site(Path(work), edges=1, machines=1) as site:
            site.up(1, "--workers", str(workers))
            site.is_ready(1)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(_boot, site).result()
            found[workers] = {kind: _measured(site, kind, path) for kind, (path, _) in SUBJECTS.items()}
    rows = []
    for kind, (_, what) in SUBJECTS.items():
        (one, _), (two, busiest) = found[1][kind], found[2][kind]
        ratio = min(one / busiest, 2 * one / two)
        note = (
            f"the busiest worker has {busiest / two:.0%} of it; computed: two processors do {ratio:.2f} times the work"
        )
        rows.append(
            Row(
                "workers",
                f"{kind}: processor time of {what}",
                "us",
                two * 1e6,
                one * 1e6,
                "1 process",
                [one / two],
                note,
            )
        )
    return rows


def _boot(site: Site) -> None:
    """A machine has its address, and the cache its files."""
    machine = Machine(site, 1)
    machine.enter()
    if not machine.boot().ok:
        raise BenchError(f"the machine did not boot: {site.said()[-2000:]}")


def _measured(site: Site, kind: str, path: str) -> tuple[float, float]:
    """Processor time of a request in seconds: of all processes of the edge, and of the busiest one."""
    before = _times(site)
    load = site.run("m1", sys.executable, "-c", _LOAD, kind, address_of(1), path, str(SECONDS), str(AT_ONCE))
    if load.popen.returncode != 0 or load.err:
        raise BenchError(f"{kind}: {load.err[-2000:]}")
    count = int(load.out)
    spent = [after - before[pid] for pid, after in _times(site).items() if pid in before]
    say(f"workers: {kind}: {count} requests, {[round(each, 2) for each in spent]} s")
    return sum(spent) / count, max(spent) / count


def _times(site: Site) -> dict[int, float]:
    return {pid: seconds for pid in site.inside("edge1") if (seconds := cpu_seconds(pid)) is not None}
