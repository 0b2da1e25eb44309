"""ISC's perfdhcp as the load: systems that begin exchanges at a fixed rate, with or without answers.

Since perfdhcp does not wait for answers, packets arrive singly at a rate that the server can keep. It measures the
cost of an exchange, the delay of both answers, and how many exchanges complete.
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
    cable: Cable, server: Server, family: int, arguments: Sequence[str], rate: int, seconds: int, title: str
) -> Sample:
    """Measure `rate` exchanges a second: how many complete, and the server's processor microseconds for one.

    family: 4 or 6.
    arguments: perfdhcp's options for the server and the clients.

    `delay` in the result is in milliseconds, of both answers together. Raises BenchError, whose message begins with
    `title`.
    """
    program = installed("perfdhcp")
    if program is None:
        raise BenchError(f"{title}: perfdhcp is missing (apt install kea-admin)")
    load = [program, f"-{family}", "-r", str(rate), "-p", str(seconds), "-g", "single", "-W", "200000", *arguments]
    before, begun = server.cpu_seconds(), time.monotonic()
    done = subprocess.run(cable.client(load), capture_output=True, text=True, timeout=seconds + 30, check=False)
    cpu, took = server.cpu_seconds() - before, time.monotonic() - begun
    phases = {match["what"]: match for match in _STATISTICS.finditer(done.stdout)}
    try:
        first, second = (phases[phase] for phase in _PHASES[family])
    except KeyError:
        raise BenchError(f"{title}: perfdhcp: {(done.stdout + done.stderr)[-2000:]}") from None
    ended = int(second["received"]) - int(first["rejected"]) - int(second["rejected"])
    if ended <= 0:
        raise BenchError(f"{title}: no exchange was completed: {done.stdout[-2000:]}")
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
    """Return a note: the load of both servers, and the share of exchanges that did not complete."""
    sides = [[sample.ours for sample in rounds], [sample.peer for sample in rounds if sample.peer is not None]]
    return "; ".join(
        f"{name}: server {max(each['busy'] for each in side):.0%} busy, "
        f"{sum(each['lost'] for each in side):,.0f} of {sum(each['begun'] for each in side):,.0f} lost"
        for name, side in zip(("ours", "the peer's"), sides, strict=True)
        if side
    )
