"""A fleet: 1,000 machines boot from `tinkedge up`, from power-on to their installed systems, all within two minutes.

It is `tinkedge fleet` with a stack of its own: the machines are simulated, the stack is whole, and both are on all
cores. No released system has a similar program, so the only comparison is the firmware's timeout; there is none
for the cost of a machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.bench.bed import BenchError
from tests.bench.results import Round, Row, row, say

MACHINES: Final = 1000
PROFILE: Final = """\
power-on: [0, 120]
post: [5, 15]
boot-order: network
actions:
  inspect: {seconds: [1, 3], output: ["disk 0: 960 GB"]}
  write-image: {seconds: [10, 20], disk: true, output: ["{percent} %", "{percent} %", "synced"]}
  write-files: {seconds: [1, 4], disk: true}
  verify: {seconds: [2, 6], disk: true, output: ["checksums match"]}
"""
LIMIT_SECONDS: Final = 900
IPXE_WAITS: Final = 1.0
"""Seconds until iPXE repeats a DHCP packet, the shortest timeout of a boot."""
NO_PEER: Final = "no peer: nobody else boots simulated machines through a whole stack"


def run(directory: Path) -> list[Row]:
    """Boot the fleet and return the rows of the table."""
    profile, report = directory / "profile.yaml", directory / "report.json"
    profile.write_text(PROFILE)
    say(f"fleet: {MACHINES:,} machines boot")
    command = [sys.executable, "-m", "edge.cli", "fleet", "--machines", str(MACHINES), "--profile", str(profile)]
    command += ["--json", str(report), "--limit", str(LIMIT_SECONDS), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS + 120, check=False)
    if done.returncode != 0:
        raise BenchError(f"fleet: exit status {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return _rows(json.loads(report.read_text()))


def _rows(report: dict[str, Any]) -> list[Row]:
    numbers, processes = report["numbers"], {each["name"]: each for each in report["processes"]}
    many = f"{MACHINES:,} machines"
    note = (
        f"power-on spread over 120 s, kernel and initrd of 50 MB whole; {numbers['actions']:.0f} actions, run twice: "
        f"{numbers['twice']:.0f}, failed: {numbers['failed']:.0f}, asked again: {numbers['errors']:.0f}; {NO_PEER}"
    )
    waits = "the least that a client waits"

    def line(title: str, unit: str, value: float, peer: float | None = None) -> Row:
        rounds = [Round({"value": value}, {"value": peer} if peer is not None else None)]
        name = waits if peer else ""
        return row("fleet", f"{many}: {title}", unit, rounds, "value", name, less_is_better=True, note=note)

    return [
        line("power-on to Succeeded, p50", "s", numbers["provisioned.p50"]),
        line("power-on to Succeeded, p99", "s", numbers["provisioned.p99"]),
        line("DHCP offer, p99", "ms", 1000 * numbers["dhcp-offer.p99"], 1000 * IPXE_WAITS),
        line("DHCP acknowledgement, p99", "ms", 1000 * numbers["dhcp-ack.p99"], 1000 * IPXE_WAITS),
        line("script, p99", "ms", 1000 * numbers["script-get.p99"]),
        line("metadata, p99", "ms", 1000 * numbers["metadata-get.p99"]),
        line("event acknowledged, p99", "ms", 1000 * numbers["event.p99"]),
        line("CPU of tinkedge up for each", "ms", 1000 * processes["up"]["cpu_seconds"] / MACHINES),
        line("CPU of the fleet for each", "ms", 1000 * processes["fleet"]["cpu_seconds"] / MACHINES),
        line("memory of tinkedge up, at most", "MB", processes["up"]["peak_mb"]),
    ]
