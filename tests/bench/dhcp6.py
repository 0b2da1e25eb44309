"""DHCPv6: four-way exchanges behind a relay, against Kea: their rate, and the cost of one.

Two loads, both as one relay from an address of the machines' network. `tests/bench/load/dhcp6.c` is UEFI PXE ROMs, of
which a bounded number wait for an answer at any time: the server's maximum. ISC's perfdhcp is systems that begin
exchanges at a fixed rate (`tests.bench.perfdhcp`): the cost and latency of an exchange at a rate that both servers can
keep, and the completed exchanges at a rate that neither can. Kea runs without a lease file and with reservations by
DUID only.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench import perfdhcp
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
from tests.bench.compiled import compiled
from tests.bench.dhcp import exchanges, mac
from tests.bench.results import Round, Row, Sample, alternate, idle_note, row, say

FEW, MANY = 1000, 10_000
"""perfdhcp chooses from the few machines at random: it has used all of them after some seconds."""
OUTSTANDING: Final = 64
RATE: Final = 1500
FLOOD: Final = 45_000
"""More exchanges a second than either server can do; about the maximum of perfdhcp itself."""
ROUNDS: Final = 5
SECONDS: Final = 2
COLD_SECONDS: Final = 60.0  # at most; a few, on a quiet machine
PORT: Final = 547


@dataclass(frozen=True)
class _Side:
    """One server and the load on it."""

    name: str
    cable: Cable
    server: Server
    count: int
    macs: Path

    def most(self) -> Sample:
        """Measure the maximum: exchanges of ROMs a second, and processor microseconds for one."""
        return self._roms("closed", SECONDS)

    def cold(self) -> Sample:
        """Measure the first exchange of every machine."""
        return self._roms("once", COLD_SECONDS)

    def _roms(self, mode: str, seconds: float) -> Sample:
        where = [str(compiled("dhcp6")), SERVER_IP6, CLIENT_IP6, "0", str(self.count)]
        load = [*where, mode, str(OUTSTANDING), str(seconds)]
        return exchanges(self.cable, self.server, load, f"DHCPv6: {self.name} with {self.count} reservations")

    def at_rate(self) -> Sample:
        """Measure the CPU microseconds of one exchange, and the milliseconds of both answers together."""
        sample = self._systems(RATE)
        if sample["exchanges"] < 0.9 * RATE * SECONDS:
            raise BenchError(f"DHCPv6: {self.name} ended {sample['exchanges']} exchanges of {RATE * SECONDS}")
        return sample

    def flooded(self) -> Sample:
        """Measure the completed exchanges a second under overload."""
        return self._systems(FLOOD)

    def _systems(self, rate: int) -> Sample:
        where = ["-A1", "-l", CLIENT_IP6, "-L", str(PORT), "-R", str(self.count), "-M", str(self.macs), SERVER_IP6]
        return perfdhcp.systems(self.cable, self.server, 6, where, rate, SECONDS, f"DHCPv6: {self.name}")


def _serve(stack: ExitStack, name: str, home: Path, count: int, command: list[str]) -> _Side:
    cable = stack.enter_context(Cable())
    cable.ipv6()
    macs = home / "macs"
    macs.write_text("".join(f"{mac(number)}\n" for number in range(count)))
    return _Side(name, cable, cable.serve(command, home / f"{name}.log", port=PORT, protocol="udp6"), count, macs)


def _ours(stack: ExitStack, home: Path, count: int) -> _Side:
    home.mkdir()
    return _serve(stack, "ours", home, count, python("ours", server="dhcp6", directory=str(home), count=count))


def _kea(stack: ExitStack, home: Path, count: int) -> _Side | None:
    program = installed("kea-dhcp6")
    if program is None:
        return None
    home.mkdir()
    config = home / "kea.json"
    config.write_text(json.dumps({"Dhcp6": _kea_config(home, count)}))
    where = [f"KEA_{name}_DIR={home}" for name in ("PIDFILE", "LOCKFILE")]
    return _serve(stack, "Kea", home, count, ["env", *where, program, "-c", str(config)])


def _kea_config(home: Path, count: int) -> dict[str, object]:
    reservations = [
        {
            "duid": f"00:03:00:01:{mac(number)}",
            "ip-addresses": [machine_ip6(number)],
            "hostname": f"machine-{number}",
        }
        for number in range(count)
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
        "client-classes": [
            {
                "name": "uefi",
                "test": "option[61].hex == 0x0007",
                "option-data": [{"name": "bootfile-url", "data": f"tftp://[{SERVER_IP6}]/snponly.efi"}],
            }
        ],
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
    """Measure DHCPv6 and return its rows of the table."""
    compiled("dhcp6")
    return [*_rows(directory / "few", FEW, with_systems=True), *_rows(directory / "many", MANY, with_systems=False)]


def _rows(home: Path, count: int, *, with_systems: bool) -> list[Row]:
    say(f"dhcp6: {count:,} reservations, against kea")
    home.mkdir()
    with ExitStack() as stack:
        ours, peer = _ours(stack, home / "ours", count), _kea(stack, home / "kea", count)
        cold = alternate(1, ours.cold, peer.cold if peer is not None else None)
        most = alternate(ROUNDS, ours.most, peer.most if peer is not None else None)
        title = f"{count:,} reservations"
        rows = [
            row("dhcp6", f"first exchange of each, {title}", "1/s", cold, "rate", "Kea"),
            row("dhcp6", f"four-way exchanges, {title}", "1/s", most, "rate", "Kea", note=idle_note(most)),
            row("dhcp6", f"four-way exchanges, {title}: CPU", "us", most, "cpu", "Kea", less_is_better=True),
        ]
        if with_systems:
            theirs = peer.at_rate if peer is not None else None
            alternate(3, ours.at_rate, theirs)  # warm up: both servers see all machines
            even = alternate(ROUNDS, ours.at_rate, theirs)
            flooded = alternate(ROUNDS, ours.flooded, peer.flooded if peer is not None else None)
            rows += _rows_of_systems(even, flooded)
    return rows


def _rows_of_systems(even: list[Round], flooded: list[Round]) -> list[Row]:
    title, flood = f"perfdhcp, {RATE:,} exchanges/s", f"perfdhcp, {FLOOD:,} exchanges/s wanted"
    return [
        row("dhcp6", f"{title}: CPU", "us", even, "cpu", "Kea", less_is_better=True, note=perfdhcp.note(even)),
        row("dhcp6", f"{title}: both answers", "ms", even, "delay", "Kea", less_is_better=True),
        row("dhcp6", f"{flood}: ended", "1/s", flooded, "rate", "Kea", note=perfdhcp.note(flooded)),
    ]
