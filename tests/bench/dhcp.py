"""DHCP: exchanges a second of UEFI PXE ROMs behind a relay, and their latency, against Kea and dnsmasq.

The load is a relay's (`tests/bench/load/dhcp.c`): the relay's address is in giaddr, so that answers come unicast to its
port 67; a bounded number of machines wait for one at any time, or exchanges begin at a given rate. Every answer is
checked. All servers write their log to a file, at their default level. The peers run without functions that would slow
them: dnsmasq without the ping before an offer, both without a lease file, Kea without raw sockets (the requests come
from a relay) and with reservations by hardware address only. ISC's perfdhcp also begins exchanges at a fixed rate
(`tests.bench.perfdhcp`), to measure the cost of packets that arrive singly.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench import perfdhcp
from tests.bench.bed import (
    NETMASK,
    NETWORK,
    SERVER_IP,
    BenchError,
    Cable,
    Server,
    installed,
    machine_ip,
    measured,
    python,
)
from tests.bench.compiled import compiled
from tests.bench.results import Round, Row, Sample, alternate, row, say

FEW, MANY, MOST = 100, 10_000, 100_000
ROUNDS = 5
SECONDS = 1.0
SYSTEMS_SECONDS = 2
COLD_SECONDS = 60.0  # at most; a few, on a quiet machine
OUTSTANDING = 64
RATE = 10_000
"""Exchanges a second of systems (perfdhcp): some three quarters of what Kea can do."""
EQUAL_LOAD = 0.6
"""Latencies are compared at this share of the slower server's maximum rate."""

FIRST = 200
"""The number of the first machine; the numbers before are the client's own addresses."""

PORT = 67
RELAY = machine_ip(0)

_DNSMASQ = """
port=0
interface=srv0
bind-interfaces
user=root
log-facility={directory}/dnsmasq.log
dhcp-authoritative
no-ping
leasefile-ro
dhcp-lease-max=200000
dhcp-range={network},static,{netmask},1h
dhcp-option=option:router,{server}
dhcp-hostsfile={directory}/hosts
dhcp-match=set:uefi,option:client-arch,7
dhcp-boot=tag:uefi,snponly.efi,,{server}
"""

# --- the servers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """One server and the load on it."""

    name: str
    cable: Cable
    server: Server
    count: int
    macs: Path

    def most(self) -> Sample:
        """Measure the maximum: exchanges a second, processor microseconds for one, and how busy both cores were."""
        return self._load("closed", OUTSTANDING, SECONDS)

    def cold(self) -> Sample:
        """Measure the first exchange of every machine."""
        sample = self._load("once", OUTSTANDING, COLD_SECONDS)
        if sample["exchanges"] < self.count:
            say(f"dhcp: {self.name} served {sample['exchanges']:.0f} of {self.count} machines: the others are not warm")
        return sample

    def at(self, rate: float) -> Sample:
        """Measure the latency when `rate` exchanges a second begin."""
        sample = self._load("open", rate, SECONDS)
        if sample["rate"] < 0.9 * rate:
            say(f"dhcp: {self.name} did {sample['rate']:.0f} of {rate:.0f} exchanges a second that were begun")
        return sample

    def systems(self) -> Sample:
        """Measure the cost of an exchange at a fixed rate of RATE a second, with or without answers."""
        client_options = ["-l", RELAY, "-R", str(self.count), "-M", str(self.macs), SERVER_IP]
        return perfdhcp.systems(self.cable, self.server, 4, client_options, RATE, SYSTEMS_SECONDS, f"DHCP: {self.name}")

    def _load(self, mode: str, value: float, seconds: float) -> Sample:
        load = [str(compiled("dhcp")), SERVER_IP, RELAY, str(FIRST), str(self.count), mode, str(value), str(seconds)]
        return exchanges(self.cable, self.server, load, f"DHCP: {self.name} with {self.count} reservations")


def exchanges(cable: Cable, server: Server, load: list[str], title: str) -> Sample:
    """Run `load`, a program of `tests/bench/load`, against the server; return the exchanges and their cost.

    Raises BenchError, whose message begins with `title`.
    """
    before = server.cpu_seconds()
    result: dict[str, float] = measured(cable.client(load))
    cpu = server.cpu_seconds() - before
    if not result["exchanges"]:
        raise BenchError(f"{title}: no exchange came to an end")
    return {
        "exchanges": result["exchanges"],
        "rate": result["exchanges"] / result["seconds"],
        "cpu": cpu * 1e6 / result["exchanges"],
        "busy": cpu / result["seconds"],
        "generator_busy": result["busy"],
        "resent": result["resent"],
        "p50": result["p50_us"],
        "p99": result["p99_us"],
    }


def _serve(stack: ExitStack, name: str, home: Path, count: int, command: list[str]) -> _Side:
    home.mkdir(exist_ok=True)
    cable = stack.enter_context(Cable())
    macs = home / f"macs-{count}"
    macs.write_text("".join(f"{mac(number)}\n" for number in range(FIRST, FIRST + count)))
    server = cable.serve(command, home / f"{name}-{count}.log", port=PORT, protocol="udp")
    return _Side(name, cable, server, count, macs)


def _ours(stack: ExitStack, home: Path, count: int) -> _Side:
    home.mkdir(exist_ok=True)
    command = python("ours", server="dhcp", directory=str(home), first=FIRST, count=count)
    return _serve(stack, "ours", home, count, command)


def _dnsmasq(stack: ExitStack, home: Path, count: int) -> _Side | None:
    program = installed("dnsmasq")
    if program is None:
        return None
    home.mkdir(exist_ok=True)
    hosts = "".join(
        f"{mac(number)},{machine_ip(number)},machine-{number},1h\n" for number in range(FIRST, FIRST + count)
    )
    (home / "hosts").write_text(hosts)
    config = home / "dnsmasq.conf"
    network = NETWORK.partition("/")[0]
    config.write_text(_DNSMASQ.format(directory=home, server=SERVER_IP, network=network, netmask=NETMASK))
    command = [program, "--keep-in-foreground", f"--conf-file={config}", f"--pid-file={home}/pid"]
    return _serve(stack, "dnsmasq", home, count, command)


def _kea(stack: ExitStack, home: Path, count: int) -> _Side | None:
    program = installed("kea-dhcp4")
    if program is None:
        return None
    home.mkdir(exist_ok=True)
    config = home / "kea.json"
    config.write_text(json.dumps({"Dhcp4": _kea_config(home, count)}))
    where = [f"KEA_{name}_DIR={home}" for name in ("PIDFILE", "LOCKFILE")]
    return _serve(stack, "Kea", home, count, ["env", *where, program, "-c", str(config)])


def _kea_config(home: Path, count: int) -> dict[str, object]:
    reservations = [
        {"hw-address": mac(number), "ip-address": machine_ip(number), "hostname": f"machine-{number}"}
        for number in range(FIRST, FIRST + count)
    ]
    return {
        "interfaces-config": {"interfaces": ["srv0"], "dhcp-socket-type": "udp"},
        "lease-database": {"type": "memfile", "persist": False},
        "multi-threading": {"enable-multi-threading": False},  # it has one core
        "valid-lifetime": 3600,
        "match-client-id": False,
        "host-reservation-identifiers": ["hw-address"],
        "reservations-global": False,
        "reservations-in-subnet": True,
        "reservations-out-of-pool": True,
        "client-classes": [
            {
                "name": "uefi",
                "test": "option[93].hex == 0x0007",
                "next-server": SERVER_IP,
                "boot-file-name": "snponly.efi",
            }
        ],
        "subnet4": [
            {
                "id": 1,
                "subnet": NETWORK,
                "option-data": [{"name": "routers", "data": SERVER_IP}],
                "reservations": reservations,
            }
        ],
        "loggers": [{"name": "kea-dhcp4", "severity": "INFO", "output_options": [{"output": str(home / "kea.log")}]}],
    }


def mac(number: int) -> str:
    """Return the MAC of a machine, as `tests.bench.ours` registers it."""
    return f"52:54:00:{number.to_bytes(3, 'big').hex(':')}"


# --- the subject ---------------------------------------------------------------------------------------------------


def run(directory: Path) -> list[Row]:
    """Measure DHCP and return its rows of the table."""
    compiled("dhcp")
    rows: list[Row] = []
    for count in (FEW, MANY, MOST):
        rows += _rows(directory, count, _kea, ROUNDS)
        if count < MOST:  # dnsmasq searches its list linearly for each packet
            rows += _rows(directory, count, _dnsmasq, ROUNDS - 2)
    return [*rows, *_growth(directory)]


def _rows(
    directory: Path, count: int, start_peer: Callable[[ExitStack, Path, int], _Side | None], rounds: int
) -> list[Row]:
    say(f"dhcp: {count:,} reservations, against {start_peer.__name__[1:]}")
    title = f"{count:,} reservations"
    with ExitStack() as stack:
        ours = _ours(stack, directory / "ours", count)
        peer = start_peer(stack, directory / start_peer.__name__[1:], count)
        name = peer.name if peer is not None else start_peer.__name__[1:]
        cold = alternate(1, ours.cold, peer.cold if peer is not None else None)
        most = alternate(rounds, ours.most, peer.most if peer is not None else None)
        slower = EQUAL_LOAD * min(median(s["rate"] for s in side) for side in _sides(most))
        equal = alternate(rounds, lambda: ours.at(slower), (lambda: peer.at(slower)) if peer is not None else None)
        with_systems = count == MANY and start_peer is _kea
        systems = alternate(rounds, ours.systems, peer.systems if peer is not None else None) if with_systems else []
    load = f"{title}, {slower:,.0f} exchanges/s"
    easy = _note(equal, flat_out=False)
    return [
        row("dhcp", f"first exchange of each, {title}", "1/s", cold, "rate", name, note=_note(cold)),
        row("dhcp", f"four-way exchanges, {title}", "1/s", most, "rate", name, note=_note(most)),
        row("dhcp", f"four-way exchanges, {title}: CPU", "us", most, "cpu", name, less_is_better=True),
        row("dhcp", f"answer, {load}: p50", "us", equal, "p50", name, less_is_better=True, note=easy),
        row("dhcp", f"answer, {load}: p99", "us", equal, "p99", name, less_is_better=True),
        *(_rows_of_systems(systems, title) if systems else ()),
    ]


def _rows_of_systems(systems: list[Round], title: str) -> list[Row]:
    load = f"perfdhcp, {title}, {RATE:,} exchanges/s"
    note = perfdhcp.note(systems)
    return [
        row("dhcp", f"{load}: CPU", "us", systems, "cpu", "Kea", less_is_better=True, note=note),
        row("dhcp", f"{load}: both answers", "ms", systems, "delay", "Kea", less_is_better=True),
    ]


def _growth(directory: Path) -> list[Row]:
    """Compare the cost of an exchange with the most reservations and with few; our server is on both sides."""
    say(f"dhcp: {MOST:,} reservations, against {FEW}")
    with ExitStack() as stack:
        most, few = (_ours(stack, directory / f"ours-{count}", count) for count in (MOST, FEW))
        for side in (most, few):
            side.cold()
        rounds = alternate(ROUNDS, most.most, few.most)
    title = f"four-way exchanges, {MOST:,} reservations: CPU"
    return [row("dhcp", title, "us", rounds, "cpu", f"ours with {FEW}", less_is_better=True, note=_note(rounds))]


def _sides(rounds: list[Round]) -> list[list[Sample]]:
    sides = [[sample.ours for sample in rounds], [sample.peer for sample in rounds if sample.peer is not None]]
    return [samples for samples in sides if samples]


def _note(rounds: list[Round], *, flat_out: bool = True) -> str:
    """Return a note about the load. `flat_out`: the server should have been the limit."""
    parts = []
    for name, samples in zip(("ours", "the peer's"), _sides(rounds), strict=False):
        server = max(sample["busy"] for sample in samples)
        generator = max(sample["generator_busy"] for sample in samples)
        limit = ""
        if flat_out and server < 0.9:
            limit = ", so the generator is the limit" if generator > 0.9 else ", for others took the core"
        resent = sum(sample["resent"] for sample in samples)
        parts.append(f"{name}: server {server:.0%} busy, generator {generator:.0%}{limit}, {resent:.0f} packets resent")
    return "; ".join(parts)
