"""ISC's perfdhcp as the load: systems that begin exchanges at a fixed rate, with or without answers.

Since perfdhcp does not wait for answers, packets arrive singly at a rate that the server can keep. It measures the
cost of an exchange, how long the two answers take, and how many exchanges complete.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from tests.bench.bed import BenchError, Cable, Server, installed
from tests.bench.results import Round, Sample

_STATISTICS: Final = re.compile(
    r"\*\*\*Statistics for: (?P<what>[A-Z-]+)\*\*\*.*?sent packets: (?P<sent>\d+)\s+received packets: (?P<received>\d+)"
    r".*?rejected leases: (?P<rejected>\d+).*?avg delay: (?P<delay>[0-9.]+) ms",
    re.DOTALL,
)
_PHASES: Final = {4: ("DISCOVER-OFFER", "REQUEST-ACK"), 6: ("SOLICIT-ADVERTISE", "REQUEST-REPLY")}


def systems(
    cable: Cable, server: Server, family: int, arguments: Sequence[str], rate: int, seconds: int, what: str
) -> Sample:
    """Measure `rate` exchanges a second: how many complete, and the server's processor microseconds for one.

    family: 4 or 6.
    arguments: perfdhcp's options for the server and the clients.

    `delay` in the result is in milliseconds, of both answers together. Raises BenchError, whose message begins with
    `what`.
    """
    program = installed("perfdhcp")
    if program is None:
        raise BenchError(f"{what}: perfdhcp is missing (apt install kea-admin)")
    load = [program, f"-{family}", "-r", str(rate), "-p", str(seconds), "-g", "single", "-W", "200000", *arguments]
    before, begun = server.cpu_seconds(), time.monotonic()
    done = subprocess.run(cable.client(load), capture_output=True, text=True, timeout=seconds + 30, check=False)
    cpu, took = server.cpu_seconds() - before, time.monotonic() - begun
    found = {match["what"]: match for match in _STATISTICS.finditer(done.stdout)}
    try:
        first, second = (found[phase] for phase in _PHASES[family])
    except KeyError:
        raise BenchError(f"{what}: perfdhcp: {(done.stdout + done.stderr)[-2000:]}") from None
    ended = int(second["received"]) - int(first["rejected"]) - int(second["rejected"])
    if ended <= 0:
        raise BenchError(f"{what}: no exchange came to an end: {done.stdout[-2000:]}")
    return {
        "exchanges": ended,
        "begun": int(first["sent"]),
        "rate": ended / seconds,
        "cpu": cpu * 1e6 / ended,
        "busy": cpu / took,
        "lost": int(first["sent"]) - ended,
        "delay": float(first["delay"]) + float(second["delay"]),
    }


def note(rounds: Sequence[Round]) -> str:
    """How busy both were, and how many of the exchanges that perfdhcp began came to no end."""
    sides = [[found.ours for found in rounds], [found.peer for found in rounds if found.peer is not None]]
    return "; ".join(
        f"{name}: server {max(each['busy'] for each in side):.0%} busy, "
        f"{sum(each['lost'] for each in side):,.0f} of {sum(each['begun'] for each in side):,.0f} lost"
        for name, side in zip(("ours", "the peer's"), sides, strict=True)
        if side
    )
