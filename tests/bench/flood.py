"""Benchmark: HTTP requests and DHCP exchanges a second of one machine, with and without a flood of datagrams.

`tinkedge up --ipv6` has one core. A machine on the link sends requests as fast as it can. Meanwhile senders with
invented addresses flood DHCP, DHCPv6, syslog and TFTP (`tests.interop.attacks.datagram_flood`). The machine and the
senders share the other core, so the measured ratio is worse than the edge's own. The peer is the same edge without a
flood.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.bench.bed import BenchError, cores
from tests.bench.results import Row, Sample, alternate, row, say
from tests.interop.attacks import datagram_flood
from tests.interop.attacks.soak.boot import Card, lease
from tests.interop.cloud_init.rack import MetadataRack, Registered
from tests.interop.rack import ADDRESS, IN_EDGE, Process
from tests.waiting import wait_until

SECONDS: Final = 4.0
ROUNDS: Final = 5
AT_ONCE: Final = 8
PER_SECOND: Final = 2_500
"""Datagrams a second of each of the four senders."""
PATH: Final = "/2009-04-04/meta-data/instance-id"
PEER: Final = "no flood"
_LOAD: Final = """
import os, socket, sys, threading, time
address, path, seconds, at_once = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
os.sched_setaffinity(0, [int(sys.argv[5])])
nothing = bytearray(2 << 20)
end, done = time.monotonic() + seconds, []

def get():  # as cloud-init and iPXE do
    with socket.create_connection((address, 7080)) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\\r\\nHost: edge\\r\\nConnection: keep-alive\\r\\n\\r\\n".encode())
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

def run():
    while time.monotonic() < end:
        get()
        done.append(1)

threads = [threading.Thread(target=run) for _ in range(at_once)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(done))
"""
"""Requests on one connection each, as cloud-init makes them; prints their number."""
_MACHINE = Registered("honest", "52:54:00:00:0a:50", "172.31.77.50")


def run(directory: Path) -> list[Row]:
    """Return all rows of this subject."""
    with MetadataRack(directory) as rack:
        rack.up("--ipv6", "--syslog", "on")
        rack.register(_MACHINE)
        rack.add("attacker")
        rack.card("attacker", "eth0", "52:54:00:00:0a:51", "rack0")
        # Otherwise the load searches for a free port among those of closed connections, which takes longer than the
        # request.
        rack.run("honest", "sh", "-c", "echo 64 > /proc/sys/net/ipv4/tcp_max_tw_buckets")
        _pin(rack.process.popen.pid, cores()[0])
        rounds = alternate(ROUNDS, partial(_flooded, rack), partial(_measured, rack))
    sent = sorted(each.ours["sent"] for each in rounds)
    note = f"{sent[0]:,.0f} to {sent[-1]:,.0f} datagrams/s; machine and senders share the other core"
    title = "a flood of DHCP, DHCPv6, syslog and TFTP"
    return [
        row("flood", f"requests during {title}, {AT_ONCE} at a time", "1/s", rounds, "http", PEER, note=note),
        row("flood", f"DHCP exchanges during {title}, one at a time", "1/s", rounds, "dhcp", PEER, note=note),
    ]


def _flooded(rack: MetadataRack) -> Sample:
    with _flood(rack) as senders:
        before, begun = _sent(senders), time.monotonic()
        rates = _measured(rack)
        rate = (_sent(senders) - before) / (time.monotonic() - begun)
        if any(sender.popen.poll() is not None for sender in senders):
            raise BenchError(f"the flood ended: {[sender.err for sender in senders]}")
    return {**rates, "sent": rate}


@contextmanager
def _flood(rack: MetadataRack) -> Iterator[list[Process]]:
    mac = rack.run(IN_EDGE, "cat", "/sys/class/net/rack0/address").out.strip()
    words = str(PER_SECOND), mac, ADDRESS, _MACHINE.mac
    module, core = datagram_flood.__name__, str(cores()[1])
    senders = [
        rack.start("attacker", "taskset", "-c", core, sys.executable, "-m", module, service, *words)
        for service in datagram_flood.POOLS
    ]
    try:
        wait_until(lambda: all(sender.out for sender in senders), lambda: [sender.err for sender in senders])
        yield senders
    finally:
        for sender in senders:
            sender.end()


def _sent(senders: list[Process]) -> int:
    return sum(int(sender.out.split()[-1]) for sender in senders)


def _measured(rack: MetadataRack) -> Sample:
    words = ADDRESS, PATH, str(SECONDS), str(AT_ONCE), str(cores()[1])
    load = rack.run("honest", sys.executable, "-c", _LOAD, *words, timeout=120)
    if load.popen.returncode != 0 or load.err:
        raise BenchError(f"requests: {load.err[-2000:]}")
    exchanges = asyncio.run(_leases(Card(rack.namespaces["honest"], ADDRESS, _MACHINE.mac)))
    rates = {"http": int(load.out) / SECONDS, "dhcp": exchanges}
    say(f"flood: {rates}")
    return rates


async def _leases(card: Card) -> float:
    """Return the number of sequential exchanges that the machine makes in a second."""
    rng, count, begun = random.Random(1), 0, time.monotonic()
    while (lasted := time.monotonic() - begun) < SECONDS:
        await lease(card, rng)
        count += 1
    return count / lasted


def _pin(pid: int, core: int) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), [core])
