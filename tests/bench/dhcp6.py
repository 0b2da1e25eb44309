"""DHCPv6: what a four-way exchange of systems behind a relay costs, against Kea.

The load is ISC's perfdhcp as one relay (`-A1`), from an address of the machines' network: so many exchanges a second
begin, whoever answers, so the processor time for one is compared, and how long an answer takes. It has no way to wait
for answers, so what is the most that a server can do is not measured. Kea is spared the file with the leases and every
kind of reservation but that by DUID.
"""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.bed import (
    CLIENT_IP6,
    NETWORK6,
    SERVER_IP6,
    BenchError,
    Cable,
    Server,
    installed,
    machine_ip6,
    python,
)
from tests.bench.dhcp import mac
from tests.bench.results import Row, Sample, alternate, row, say

MACHINES: Final = 1000
"""perfdhcp chooses them at random: all have been met after the first seconds."""
RATE: Final = 1500
ROUNDS: Final = 5
SECONDS: Final = 2
PORT: Final = 547

_STATISTICS = re.compile(
    r"\*\*\*Statistics for: (?P<what>[A-Z-]+)\*\*\*.*?sent packets: (?P<sent>\d+)\s+received packets: (?P<received>\d+)"
    r".*?rejected leases: (?P<rejected>\d+).*?avg delay: (?P<delay>[0-9.]+) ms",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Side:
    """One server and the load on it."""

    name: str
    cable: Cable
    server: Server
    macs: Path
    program: str

    def at_rate(self) -> Sample:
        """Processor microseconds for one exchange, and milliseconds that the two answers of one take together."""
        before = self.server.cpu_seconds()
        load = [
            self.program,
            "-6",
            "-A1",
            "-r",
            str(RATE),
            "-p",
            str(SECONDS),
            "-R",
            str(MACHINES),
            "-M",
            str(self.macs),
        ]
        place = ["-l", CLIENT_IP6, "-L", str(PORT), "-g", "single", "-W", "200000", SERVER_IP6]
        done = subprocess.run(
            self.cable.client(load + place), capture_output=True, text=True, timeout=SECONDS + 30, check=False
        )
        cpu = self.server.cpu_seconds() - before
        found = {match["what"]: match for match in _STATISTICS.finditer(done.stdout)}
        try:
            first, second = found["SOLICIT-ADVERTISE"], found["REQUEST-REPLY"]
        except KeyError:
            raise BenchError(f"DHCPv6: perfdhcp against {self.name}: {(done.stdout + done.stderr)[-2000:]}") from None
        exchanges = int(second["received"]) - int(first["rejected"]) - int(second["rejected"])
        if exchanges < 0.9 * RATE * SECONDS:
            raise BenchError(
                f"DHCPv6: {self.name} ended {exchanges} exchanges of {RATE * SECONDS}: {done.stdout[-2000:]}"
            )
        return {
            "exchanges": exchanges,
            "cpu": cpu * 1e6 / exchanges,
            "busy": cpu / SECONDS,
            "lost": int(first["sent"]) - exchanges,
            "delay": float(first["delay"]) + float(second["delay"]),
        }


def _serve(stack: ExitStack, name: str, home: Path, command: list[str]) -> _Side:
    program = installed("perfdhcp")
    if program is None:
        raise BenchError("DHCPv6: perfdhcp is missing (apt install kea-admin)")
    cable = stack.enter_context(Cable())
    cable.ipv6()
    macs = home / "macs"
    macs.write_text("".join(f"{mac(number)}\n" for number in range(MACHINES)))
    return _Side(name, cable, cable.serve(command, home / f"{name}.log", port=PORT, protocol="udp6"), macs, program)


def _ours(stack: ExitStack, home: Path) -> _Side:
    home.mkdir()
    return _serve(stack, "ours", home, python("ours", server="dhcp6", directory=str(home), count=MACHINES))


def _kea(stack: ExitStack, home: Path) -> _Side | None:
    program = installed("kea-dhcp6")
    if program is None:
        return None
    home.mkdir()
    config = home / "kea.json"
    config.write_text(json.dumps({"Dhcp6": _kea_config(home)}))
    where = [f"KEA_{name}_DIR={home}" for name in ("PIDFILE", "LOCKFILE")]
    return _serve(stack, "Kea", home, ["env", *where, program, "-c", str(config)])


def _kea_config(home: Path) -> dict[str, object]:
    reservations = [
        {
            "duid": f"00:03:00:01:{mac(number)}",
            "ip-addresses": [machine_ip6(number)],
            "hostname": f"machine-{number}",
        }
        for number in range(MACHINES)
    ]
    return {
        "interfaces-config": {"interfaces": [f"srv0/{SERVER_IP6}"]},
        "server-id": {"type": "LL", "persist": False},
        "lease-database": {"type": "memfile", "persist": False},
        "multi-threading": {"enable-multi-threading": False},  # it has one core
        "preferred-lifetime": 3600,
        "valid-lifetime": 3600,
        "mac-sources": ["duid"],
        "host-reservation-identifiers": ["duid"],
        "reservations-global": False,
        "reservations-in-subnet": True,
        "reservations-out-of-pool": True,
        "subnet6": [
            {
                "id": 1,
                "subnet": NETWORK6,
                "option-data": [{"name": "dns-servers", "data": SERVER_IP6}],
                "reservations": reservations,
            }
        ],
        "loggers": [{"name": "kea-dhcp6", "severity": "INFO", "output_options": [{"output": str(home / "kea.log")}]}],
    }


def run(directory: Path) -> list[Row]:
    """All rows of this subject."""
    say(f"dhcp6: {MACHINES:,} reservations, against kea")
    with ExitStack() as stack:
        ours, peer = _ours(stack, directory / "ours"), _kea(stack, directory / "kea")
        theirs = peer.at_rate if peer is not None else None
        alternate(3, ours.at_rate, theirs)  # so that both have met the machines
        rounds = alternate(ROUNDS, ours.at_rate, theirs)
    sides = [[found.ours for found in rounds], [found.peer for found in rounds if found.peer is not None]]
    note = "; ".join(
        f"{name}: server {max(each['busy'] for each in side):.0%} busy, {sum(each['lost'] for each in side):.0f} lost"
        for name, side in zip(("ours", "the peer's"), sides, strict=True)
        if side
    )
    what = f"four-way exchange, {MACHINES:,} reservations, {RATE:,}/s"
    return [
        row("dhcp6", f"{what}: CPU", "us", rounds, "cpu", "Kea", less_is_better=True, note=note),
        row("dhcp6", f"{what}: both answers", "ms", rounds, "delay", "Kea", less_is_better=True),
    ]
