"""`--workers 2` beside one process: what a request costs in processor time.

How much faster two are is not measured: that takes processors for the load generator, too. Measured is the time of the
edge's processes for each request (/proc/PID/stat), all of them on one core and the load on the other, so that what they
take from each other on the machine's few cores is not in it. Of two workers that have a processor each, one is measured
with the main process; the other has been killed until its replacement is a while in coming. Two processors do so many
times the work of one as two requests of the one process cost more than one of such a half. Both workers on the one core
are measured, too: there they take turns, and find fewer packets each time.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edge.run.workers import cpu_seconds
from tests.bench.bed import BenchError, cores
from tests.bench.results import Row, say
from tests.interop.site.machine import Machine
from tests.interop.site.site import Site, address_of
from tests.waiting import wait_until

SECONDS = 2.0
ROUNDS = 5
AT_ONCE = 8
TRIES = 30
SUBJECTS = {
    "metadata": ("/2009-04-04/meta-data/instance-id", "a document on a connection of its own"),
    "http": ("/osie/lab/initrd", "an initrd of 1.5 MB"),
    "tftp": ("undionly.kpxe", "a boot program of 77 kB, window 16"),
}
LOAD = """
import os, socket, struct, sys, threading, time
kind, address, name, seconds, at_once = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
os.sched_setaffinity(0, [int(sys.argv[6])])
nothing = bytearray(2 << 20)
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
        while length < size:  # counted in the kernel, and copied nowhere (MSG_TRUNC, tcp(7))
            part = sock.recv_into(nothing, size - length, socket.MSG_TRUNC | socket.MSG_WAITALL)
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a request, in seconds of processor time: all processes of the edge, and the busiest one."""

    whole: float
    busiest: float


@dataclass(frozen=True, slots=True)
class Round:
    """Of one process, of both workers on one core, of one of them with the main process."""

    one: Cost
    both: Cost
    half: Cost


def run(directory: Path) -> list[Row]:
    """One row each; `ours` is half of an edge with two workers, `peer` one process."""
    found: dict[str, list[Round]] = {kind: [] for kind in SUBJECTS}
    with ExitStack() as stack:
        sites = {workers: stack.enter_context(_site(directory / str(workers), workers)) for workers in (1, 2)}
        for kind in SUBJECTS:
            for number in range(ROUNDS):
                say(f"workers: {kind}, round {number + 1}")
                found[kind].append(Round(_measured(sites[1], kind), _measured(sites[2], kind), _half(sites[2], kind)))
    return [_row(kind, what, found[kind]) for kind, (_, what) in SUBJECTS.items()]


@contextmanager
def _site(directory: Path, workers: int) -> Iterator[Site]:
    directory.mkdir()
    with Site(directory, edges=1, machines=1) as site:
        # Else the load looks for a port among 14,000 that wait (tcp(7), tcp_max_tw_buckets), which takes it longer than
        # the request.
        site.run("m1", "sh", "-c", "echo 64 > /proc/sys/net/ipv4/tcp_max_tw_buckets")
        site.up(1, "--workers", str(workers))
        site.is_ready(1)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_boot, site).result()
        yield site


def _half(site: Site, kind: str) -> Cost:
    """Of the main process and one worker; both are there again at the end."""
    for _ in range(TRIES):
        if _one_is_away(site):
            cost = _measured(site, kind)
            if len(site.inside("edge1")) == 2:
                _wait_for_the_other(site)
                return cost
    raise BenchError("a worker that is killed again and again comes back each time before the other is measured")


def _one_is_away(site: Site) -> bool:
    """Whether the newer worker, which is killed, stays away for a while: longer each time (`edge...workers.pool`)."""
    _, *newer = sorted(site.inside("edge1") - {site.processes[1].popen.pid})
    for pid in newer:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 1
    time.sleep(0.05)
    while len(site.inside("edge1")) == 2:
        if time.monotonic() > until:
            return True
        time.sleep(0.05)
    return False


def _wait_for_the_other(site: Site) -> None:
    process = site.processes[1]
    line = "worker 2 is there again"
    before = process.err.count(line)
    wait_until(lambda: process.err.count(line) > before, lambda: process.err[-2000:], within=30)


def _row(kind: str, what: str, rounds: list[Round]) -> Row:
    ratios = [each.one.whole / each.half.whole for each in rounds]
    turns = [min(each.one.whole / each.both.busiest, 2 * each.one.whole / each.both.whole) for each in rounds]
    share = statistics.median(each.both.busiest / each.both.whole for each in rounds)
    return Row(
        "workers",
        f"{kind}: processor time of {what}",
        "us",
        statistics.median(each.half.whole for each in rounds) * 1e6,
        statistics.median(each.one.whole for each in rounds) * 1e6,
        "1 process",
        ratios,
        f"so two processors do {_range([2 * each for each in ratios])} times the work of one; {_range(turns)} by the "
        f"cost with both workers on one core, of which the busiest has {share:.0%}",
    )


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _boot(site: Site) -> None:
    """A machine has its address, and the cache its files."""
    machine = Machine(site, 1)
    machine.enter()
    if not machine.boot().ok:
        raise BenchError(f"the machine did not boot: {site.said()[-2000:]}")


def _measured(site: Site, kind: str) -> Cost:
    for pid in site.inside("edge1"):
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), [cores()[0]])
    path, _ = SUBJECTS[kind]
    before = _times(site)
    words = kind, address_of(1), path, str(SECONDS), str(AT_ONCE), str(cores()[1])
    load = site.run("m1", sys.executable, "-c", LOAD, *words)
    if load.popen.returncode != 0 or load.err:
        raise BenchError(f"{kind}: {load.err[-2000:]}")
    count = int(load.out)
    spent = [after - before[pid] for pid, after in _times(site).items() if pid in before]
    say(f"workers: {kind}: {count} requests, {[round(each, 2) for each in spent]} s")
    return Cost(sum(spent) / count, max(spent) / count)


def _times(site: Site) -> dict[int, float]:
    return {pid: seconds for pid in site.inside("edge1") if (seconds := cpu_seconds(pid)) is not None}
