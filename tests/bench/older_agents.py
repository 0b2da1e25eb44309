"""Tinkerbell's older agents: a thousand idle ones, against a thousand of today's.

    API --- server --- 1,000 x tink-agent's polls, each held for a day
        |-- server --- the same, with attributes of their machines
        `-- server --- 1,000 x a command stream

All servers are measured during the same period. The older agents' polls are spread as if the agents had connected one
by one, so that as many polls end in that period as in any other.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.bed import BenchError, Cable, Server, measured, python
from tests.bench.results import Round, Row, Sample, row, say

AGENTS = 1000
KINDS = {"older": 42113, "telling": 42114, "todays": 42115}
PEER = "today's agents"
API_PORT = 6443
WINDOW_SECONDS = 120.0
_SETTLE_SECONDS = 60.0
"""Seconds until the server has stored the agents' attributes and is idle."""
_TINKEDGE = [sys.executable, "-m", "edge.cli"]


def run(directory: Path) -> list[Row]:
    """Measure idle agents and return the rows of the table."""
    samples = idle(directory)
    rounds, telling = [Round(samples["older"], samples["todays"])], [Round(samples["telling"], samples["todays"])]
    title = f"{AGENTS:,} idle older agents on one server"
    described = "with what each says of its machine, which is kept on its Hardware"
    return [
        row("older", f"{title}: memory of each", "kB", rounds, "kb", PEER, less_is_better=True),
        row("older", f"{title}: the same, telling", "kB", telling, "kb", PEER, less_is_better=True, note=described),
        row("older", f"{title}: CPU", "s/min", rounds, "cpu", PEER, less_is_better=True),
        row("older", f"{title}: the same, telling", "s/min", telling, "cpu", PEER, less_is_better=True),
    ]


def idle(directory: Path) -> dict[str, Sample]:
    """Measure memory (kB) and CPU time (seconds a minute) of each kind."""
    with ExitStack() as stack:
        cable, state = stack.enter_context(Cable()), directory / "state"
        kubeconfig = str(state / "kubeconfig")
        start = _Start(stack, cable, directory)
        start("apiserver", "apiserver", "--data-dir", str(state), "--api-port", str(API_PORT))
        measured(cable.anywhere(python("agents", do="machines", kubeconfig=kubeconfig, port=0, count=AGENTS)))
        common = ["--kubeconfig", kubeconfig, "--interface", "lo=127.0.0.1", "--agent-auth", "none"]
        common += ["--metrics-address", "none"]
        servers = {
            kind: start(kind, "server", *common, "--grpc-port", str(port), settles=True) for kind, port in KINDS.items()
        }
        before = {kind: server.memory("VmRSS") for kind, server in servers.items()}
        say(f"older: {AGENTS:,} idle agents of each kind, for {WINDOW_SECONDS:.0f} s")
        for kind, port in KINDS.items():
            stack.enter_context(_agents(cable, kind, port))
        time.sleep(_SETTLE_SECONDS)
        cpu, since = {kind: server.cpu_seconds() for kind, server in servers.items()}, time.monotonic()
        time.sleep(WINDOW_SECONDS)
        minutes = (time.monotonic() - since) / 60
        return {
            kind: {
                "kb": 1000 * (server.memory("VmRSS") - before[kind]) / AGENTS,
                "cpu": (server.cpu_seconds() - cpu[kind]) / minutes,
            }
            for kind, server in servers.items()
        }


class _Start:
    def __init__(self, stack: ExitStack, cable: Cable, directory: Path) -> None:
        self._stack, self._cable, self._directory = stack, cable, directory

    def __call__(self, name: str, service: str, *options: str, settles: bool = False) -> Server:
        log = self._directory / f"{name}.log"
        command = self._cable.anywhere([*_TINKEDGE, service, *options])
        server = Server(command, log, lambda _: b"ready: " in log.read_bytes())
        self._stack.callback(server.stop)
        if settles:
            time.sleep(2)  # until the memory for reading the Hardware is released
        return server


@contextmanager
def _agents(cable: Cable, kind: str, port: int) -> Iterator[None]:
    command = cable.anywhere([sys.executable, "-m", "tests.bench.idle_agents", kind, str(port), str(AGENTS)])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as agents:
        try:
            assert agents.stdout is not None
            if not agents.stdout.readline():
                raise BenchError(f"older: {AGENTS:,} agents could not connect")
            yield
            if agents.poll() is not None:
                raise BenchError(f"older: the agents ({kind}) ended with {agents.returncode}")
        finally:
            agents.kill()
