"""DHCP: four-way exchanges a second of UEFI PXE ROMs behind a relay, against dnsmasq.

The load is a relay's: every packet is prebuilt, with the relay's address in giaddr, so that replies come unicast to its
port 67, and a bounded number of machines wait for an answer at any time. Both servers write a line for each packet to
a log file, as they do by default. dnsmasq is spared what would only slow it: the ping before an offer and the lease
file.
"""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.bed import SERVER_IP, BenchError, Cable, Server, installed, machine_ip, measured, python
from tests.bench.results import Round, Row, Sample, alternate, row, say

COUNTS = (100, 10_000)
ROUNDS = 5
SECONDS = 1.5
OUTSTANDING = 64
FIRST = 200
"""The number of the first machine; those before are the client's own addresses."""

PORT = 67
RELAY = machine_ip(0)
PEER = "dnsmasq"

_DNSMASQ = """
port=0
interface=srv0
bind-interfaces
user=root
log-facility={directory}/dnsmasq.log
dhcp-authoritative
no-ping
leasefile-ro
dhcp-lease-max=100000
dhcp-range=10.67.0.0,static,255.255.0.0,1h
dhcp-option=option:router,{server}
dhcp-hostsfile={directory}/hosts
dhcp-match=set:uefi,option:client-arch,7
dhcp-boot=tag:uefi,snponly.efi,,{server}
"""

# --- the subject ---------------------------------------------------------------------------------------------------


class _Side:
    """One server and the load on it."""

    def __init__(self, cable: Cable, server: Server, count: int) -> None:
        self._cable = cable
        self._server = server
        self._count = count

    def warm(self) -> None:
        """Every machine once, if that takes no longer than ten rounds."""
        self._load(SECONDS * 10, once=True)

    def load(self) -> Sample:
        """Exchanges a second, the server's processor microseconds for one, and how busy both cores were."""
        before = self._server.cpu_seconds()
        found = self._load(SECONDS)
        cpu = self._server.cpu_seconds() - before
        return {
            "rate": found["exchanges"] / found["seconds"],
            "cpu": cpu * 1e6 / found["exchanges"],
            "busy": cpu / found["seconds"],
            "generator_busy": found["busy"],
            "resent": found["resent"],
        }

    def _load(self, seconds: float, once: bool = False) -> dict[str, float]:
        command = python("dhcp", count=self._count, seconds=seconds, once=once)
        found: dict[str, float] = measured(self._cable.client(command))
        if not found["exchanges"]:
            raise BenchError(f"DHCP: no exchange came to an end with {self._count} reservations")
        return found


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
    return [found for count in COUNTS for found in _rows(directory, count)]


def _rows(directory: Path, count: int) -> list[Row]:
    say(f"dhcp: {count} reservations")
    home = directory / str(count)
    home.mkdir()
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        command = python("ours", server="dhcp", directory=str(home), first=FIRST, count=count)
        ours = _Side(cable, cable.serve(command, home / "ours.log", port=PORT, protocol="udp"), count)
        ours.warm()
        peer = None
        if dnsmasq := installed("dnsmasq"):
            cable = stack.enter_context(Cable())
            command = _dnsmasq(dnsmasq, home, count)
            peer = _Side(cable, cable.serve(command, home / "peer.log", port=PORT, protocol="udp"), count)
            peer.warm()
        rounds = alternate(ROUNDS, ours.load, peer.load if peer is not None else None)
    what = f"four-way exchanges, {count:,} reservations"
    return [
        row("dhcp", what, "1/s", rounds, "rate", PEER, note=_note(rounds)),
        row("dhcp", f"{what}: CPU", "us", rounds, "cpu", PEER, less_is_better=True),
    ]


def _note(rounds: list[Round]) -> str:
    sides = [("ours", [found.ours for found in rounds])]
    if any(found.peer for found in rounds):
        sides.append(("the peer's", [found.peer for found in rounds if found.peer is not None]))
    parts = []
    for name, samples in sides:
        server = max(sample["busy"] for sample in samples)
        generator = max(sample["generator_busy"] for sample in samples)
        limit = ", so the generator is the limit" if generator > 0.9 > server else ""
        resent = sum(sample["resent"] for sample in samples)
        parts.append(f"{name}: server {server:.0%} busy, generator {generator:.0%}{limit}, {resent:.0f} packets resent")
    return "; ".join(parts)


def _dnsmasq(program: str, home: Path, count: int) -> list[str]:
    hosts = "".join(
        f"{mac(number).hex(':')},{machine_ip(number)},machine-{number},1h\n" for number in range(FIRST, FIRST + count)
    )
    (home / "hosts").write_text(hosts)
    config = home / "dnsmasq.conf"
    config.write_text(_DNSMASQ.format(directory=home, server=SERVER_IP))
    return [program, "--keep-in-foreground", f"--conf-file={config}", f"--pid-file={home}/pid"]


# --- the load, a process of its own --------------------------------------------------------------------------------


def mac(number: int) -> bytes:
    """The MAC of a machine, as `tests.bench.ours` registers it."""
    return b"\x52\x54\x00" + number.to_bytes(3, "big")


def packet(kind: int, number: int, options: bytes = b"") -> bytes:
    """What EDK2's PXE client sends, as a relay passes it on; the machine's number is the xid."""
    relay = socket.inet_aton(RELAY)
    head = struct.pack("!BBBBIHH12x4s6s202x4s", 1, 1, 6, 1, number, 0, 0, relay, mac(number), b"\x63\x82\x53\x63")
    guid = bytes(13) + number.to_bytes(4, "big")
    return head + b"".join(
        (
            bytes((53, 1, kind)),
            options,
            bytes((57, 2, 0x05, 0xC0)),
            bytes((55, 14, 1, 3, 6, 12, 15, 28, 43, 54, 60, 66, 67, 97, 128, 129)),
            bytes((97, 17)) + guid,
            bytes((94, 3, 1, 3, 16)),
            bytes((93, 2, 0, 7)),
            bytes((60, 32)) + b"PXEClient:Arch:00007:UNDI:003016",
            b"\xff",
        )
    )


def _load(count: int, seconds: float, once: bool) -> dict[str, float]:
    """Exchanges of random machines for `seconds`, or until every machine had its turn."""
    numbers = list(range(FIRST, FIRST + count))
    random.Random(1).shuffle(numbers)
    server = socket.inet_aton(SERVER_IP)
    discovers = {number: packet(1, number) for number in numbers}
    requests = {
        number: packet(3, number, b"\x36\x04" + server + b"\x32\x04" + socket.inet_aton(machine_ip(number)))
        for number in numbers
    }
    addresses = {number: socket.inet_aton(machine_ip(number)) for number in numbers}
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((RELAY, PORT))
    sock.connect((SERVER_IP, PORT))
    sock.settimeout(0.5)

    # Which packet each machine waits for an answer to: the server may answer in any order.
    waiting = {}
    turn = 0
    for turn in range(min(OUTSTANDING, count)):
        waiting[numbers[turn]] = discovers[numbers[turn]]
    exchanges = resent = 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    start = time.perf_counter()
    end = start + seconds
    for first in waiting.values():
        sock.send(first)
    while (now := time.perf_counter()) < end and waiting:
        try:
            reply = sock.recv(2048)
        except TimeoutError:
            resent += len(waiting)
            for again in waiting.values():
                sock.send(again)
            continue
        number = int.from_bytes(reply[4:8], "big")
        if number not in waiting:
            continue  # the second answer to a packet that was sent twice
        kind = reply[242] if reply[240:242] == b"\x35\x01" else 0
        if reply[16:20] != addresses[number] or kind not in (2, 5):
            raise BenchError(f"DHCP: machine {number} was answered {reply.hex()}")
        if kind == 2:
            following = requests[number]
            if waiting[number] is following:
                continue
        else:
            exchanges += 1
            del waiting[number]
            turn += 1
            if once and turn >= count:
                continue
            number = numbers[turn % count]
            following = discovers[number]
        waiting[number] = following
        sock.send(following)
    elapsed = now - start
    spent = resource.getrusage(resource.RUSAGE_SELF)
    busy = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
    return {"exchanges": exchanges, "seconds": elapsed, "busy": busy / elapsed, "resent": resent}


def _client(arguments: dict[str, Any]) -> dict[str, float]:
    return _load(**arguments)


if __name__ == "__main__":
    print(json.dumps(_client(json.loads(sys.argv[1]))))
