"""`--workers 2` beside one process: what a request costs in processor time, and how evenly two workers share it.

How much faster two are is not measured: that takes processors for the load generator, too. Measured is the time of the
edge's processes for each request (/proc/PID/stat), all of them on one core and the load on the other, so that what they
take from each other on the machine's few cores is not in it. From that the ratio is computed that two processors could
reach: bounded by all that is to be done for a request, and by the share of the busiest worker.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edge.composition.workers import cpu_seconds
from tests.bench.bed import BenchError, cores
from tests.bench.results import Row, say
from tests.interop.site.machine import Machine
from tests.interop.site.site import Site, address_of

SECONDS = 3.0
ROUNDS = 3
AT_ONCE = 8
SUBJECTS = {
    "metadata": ("/2009-04-04/meta-data/instance-id", "a document on a connection of its own"),
    "http": ("/osie/lab/initrd", "an initrd of 1.5 MB"),
    "tftp": ("undionly.kpxe", "a boot program of 77 kB, window 16"),
}
_LOAD = """
import os, socket, struct, sys, threading, time
kind, address, name, seconds, at_once = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
os.sched_setaffinity(0, [int(sys.argv[6])])
end, done = time.monotonic() + seconds, []

def get():  # as cloud-init and iPXE do
    with socket.create_connection((address, 7080)) as sock:
        sock.sendall(f"GET {name} HTTP/1.1\\r\\nHost: edge\\r\\nConnection: keep-alive\\r\\n\\r\\n".encode())
        answer = b""
        while b"\\r\\n\\r\\n" not in answer:
            more = sock.recv(1 << 20)
            assert more, answer
            answer += more
        head, _, body = answer.partition(b"\\r\\n\\r\\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        size, length = int(head.lower().partition(b"content-length: ")[2].split()[0]), len(body)
        nothing = bytearray(1 << 20)
        while length < size:  # counted in the kernel, and copied nowhere (MSG_TRUNC, tcp(7))
            part = sock.recv_into(nothing, 0, socket.MSG_TRUNC)
            assert part, (length, size)
            length += part

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
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for number in range(ROUNDS):
        for workers in (1, 2) if number % 2 else (2, 1):
            for kind, figures in _round(directory, workers).items():
                found.setdefault((workers, kind), []).append(figures)
    return [_row(kind, what, found[1, kind], found[2, kind]) for kind, (_, what) in SUBJECTS.items()]


def _round(directory: Path, workers: int) -> dict[str, tuple[float, float]]:
    """What a request of each kind costs, see `_measured`."""
    with tempfile.TemporaryDirectory(dir=directory) as work, Site(Path(work), edges=1, machines=1) as site:
        site.up(1, "--workers", str(workers))
        site.is_ready(1)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_boot, site).result()
        for pid in site.inside("edge1"):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), [cores()[0]])
        say(f"workers: {workers} of them")
        return {kind: _measured(site, kind, path) for kind, (path, _) in SUBJECTS.items()}


def _row(kind: str, what: str, one: list[tuple[float, float]], two: list[tuple[float, float]]) -> Row:
    cost = [statistics.median(whole for whole, _ in rounds) for rounds in (one, two)]
    gains = [min(single / busiest, 2 * single / both) for (single, _), (both, busiest) in zip(one, two, strict=True)]
    share = statistics.median(busiest / both for both, busiest in two)
    gain, least, most = statistics.median(gains), min(gains), max(gains)
    return Row(
        "workers",
        f"{kind}: processor time of {what}",
        "us",
        cost[1] * 1e6,
        cost[0] * 1e6,
        "1 process",
        [single / both for (single, _), (both, _) in zip(one, two, strict=True)],
        f"the busiest worker has {share:.0%} of it; computed: two processors do {gain:.2f} times the work, "
        f"{least:.2f} to {most:.2f} by rounds",
    )


def _boot(site: Site) -> None:
    """A machine has its address, and the cache its files."""
    machine = Machine(site, 1)
    machine.enter()
    if not machine.boot().ok:
        raise BenchError(f"the machine did not boot: {site.said()[-2000:]}")


def _measured(site: Site, kind: str, path: str) -> tuple[float, float]:
    """Processor time of a request in seconds: of all processes of the edge, and of the busiest one."""
    before = _times(site)
    load = site.run(
        "m1", sys.executable, "-c", _LOAD, kind, address_of(1), path, str(SECONDS), str(AT_ONCE), str(cores()[1])
    )
    if load.popen.returncode != 0 or load.err:
        raise BenchError(f"{kind}: {load.err[-2000:]}")
    count = int(load.out)
    spent = [after - before[pid] for pid, after in _times(site).items() if pid in before]
    say(f"workers: {kind}: {count} requests, {[round(each, 2) for each in spent]} s")
    return sum(spent) / count, max(spent) / count


def _times(site: Site) -> dict[int, float]:
    return {pid: seconds for pid in site.inside("edge1") if (seconds := cpu_seconds(pid)) is not None}
