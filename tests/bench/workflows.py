"""Workflows: ten thousand idle agents on one server, the delay until an agent has a Workflow, and five hundred at once.

The engine is three processes, as in a cluster but on this machine: `tinkedge apiserver`, `controller` and `server`.
Agents are simulated by one more process (`agents`), each with a connection of its own. No released system runs this
state machine, so the only comparison is the ideal: no time besides the actions' own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench.bed import BenchError, Cable, Server, measured, python
from tests.bench.results import Round, Row, Sample, row, say

AGENTS = 10_000
BUSY = 1000
FREE = 100
PROBES = 300
BUSY_SECONDS = 10.0
BATCH = 500
RACK = 100
ACTIONS = 5
ROUNDS = 3
API_PORT = 6443
GRPC_PORT = 42113
_SETTLE_SECONDS = 5.0
_IDLE_SECONDS = 60.0
_TINKEDGE = [sys.executable, "-m", "edge.cli"]
NO_PEER = "no peer: no released system runs this state machine"
IDEAL = "the ideal"


def run(directory: Path) -> list[Row]:
    """Measure Workflows and return the rows of the table."""
    with ExitStack() as stack:
        engine = _Engine(stack, directory)
        say(f"workflows: {AGENTS:,} Hardware are made")
        engine.ask("machines", count=AGENTS)
        say(f"workflows: {AGENTS:,} idle agents")
        idle_rounds = [Round(_idle(engine), None)]
        say(f"workflows: from creation to receipt, {BUSY:,} agents busy")
        receipt_sample = engine.ask("receipt", busy=BUSY, free=FREE, probes=PROBES, seconds=BUSY_SECONDS)
        receipt = [Round(receipt_sample, None)]
        # Other agents than the busy ones, which disconnected in mid-Workflow: the server still waits for those.
        first = BUSY + FREE
        batches: dict[int, list[Round]] = {RACK: [], BATCH: []}
        for machines, rounds in ((RACK, 1), (BATCH, ROUNDS)):
            for number in range(rounds):
                say(f"workflows: {BATCH} on {machines} agents, {number + 1} of {rounds}")
                ours = engine.ask("batch", first=first, machines=machines, count=BATCH, actions=ACTIONS, seconds=1.0)
                batches[machines].append(Round(ours, {"seconds": float(ACTIONS * BATCH / machines)}))
                first += machines
    return _table(idle_rounds, receipt, batches)


def _table(idle_rounds: list[Round], receipt: list[Round], batches: dict[int, list[Round]]) -> list[Row]:
    many = f"{AGENTS:,} idle agents on one server"
    soon = f"create until the agent has it, {BUSY:,} busy"
    most = receipt[0].ours["most"]
    busy = f"busy: each begins an action every {BUSY_SECONDS:.0f} s; at most {most:.0f} ms; {NO_PEER}"
    together = f"{BATCH} Workflows of {ACTIONS} actions of 1 s"

    def note(rounds: list[Round]) -> str:
        cpu, agents = (max(sample.ours[key] for sample in rounds) for key in ("cpu", "agents"))
        took = f"the engine took {cpu:.1f} s of processor time, those that play the agents {agents:.1f} s"
        return f"from the first create to the last Succeeded; {took}; {NO_PEER}"

    def line(title: str, unit: str, rounds: list[Round], key: str, peer: str = "", note: str = NO_PEER) -> Row:
        return row("workflows", title, unit, rounds, key, peer, less_is_better=True, note=note)

    return [
        line(f"{many}: memory of each", "kB", idle_rounds, "kb"),
        line(f"{many}: CPU", "% core", idle_rounds, "cpu", note=f"pings both ways, every 20 s; {NO_PEER}"),
        line(f"{many}: until all are connected", "s", idle_rounds, "connected"),
        line(f"{soon}: median", "ms", receipt, "median", note=busy),
        line(f"{soon}: p99", "ms", receipt, "p99", note=busy),
        *(
            line(f"{together} on {machines} agents", "s", rounds, "seconds", IDEAL, note(rounds))
            for machines, rounds in batches.items()
        ),
    ]


class _Engine:
    """API, controller and server, each a process, on all cores."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        self._cable = stack.enter_context(Cable())
        self._directory = directory
        state = directory / "state"
        self._kubeconfig = state / "kubeconfig"
        client = ["--kubeconfig", str(self._kubeconfig)]
        network = ["--interface", "lo=127.0.0.1", "--grpc-port", str(GRPC_PORT), "--agent-auth", "none"]
        api = self._start("apiserver", "--data-dir", str(state), "--api-port", str(API_PORT))
        controller = self._start("controller", *client, "--disable", "webhooks")
        self.server = self._start("server", *client, *network)
        self._processes = (api, controller, self.server)

    def _start(self, service: str, *options: str) -> Server:
        log = self._directory / f"{service}.log"
        command = self._cable.anywhere([*_TINKEDGE, service, *options])
        server = Server(command, log, lambda _: b"ready: " in log.read_bytes())
        self._stack.callback(server.stop)
        return server

    def agents(self, do: str, **arguments: object) -> list[str]:
        """Return the command of the agents' process."""
        return self._cable.anywhere(python("agents", do=do, kubeconfig=str(self._kubeconfig), **arguments))

    def ask(self, do: str, **arguments: object) -> dict[str, float]:
        """Run a function of the agents; return its figures, and the engine's CPU time in seconds."""
        before = self._cpu()
        figures: dict[str, float] = measured(self.agents(do, port=GRPC_PORT, **arguments), timeout=300)
        return {**figures, "cpu": self._cpu() - before}

    def _cpu(self) -> float:
        return sum(each.cpu_seconds() for each in self._processes)


def _idle(engine: _Engine) -> Sample:
    """Connect the agents and leave them alone."""
    server = engine.server
    time.sleep(2)  # until the memory for reading the Hardware is released
    memory = server.memory("VmRSS")
    begin = time.monotonic()
    command = engine.agents("idle", port=GRPC_PORT, count=AGENTS)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agents:
        assert agents.stdout is not None
        if not agents.stdout.readline():
            raise BenchError(f"workflows: {AGENTS:,} agents could not connect")
        connected = time.monotonic() - begin
        time.sleep(_SETTLE_SECONDS)
        cpu, since = server.cpu_seconds(), time.monotonic()
        time.sleep(_IDLE_SECONDS)
        share = (server.cpu_seconds() - cpu) / (time.monotonic() - since)
        growth = server.memory("VmRSS") - memory
        agents.communicate()
    if agents.returncode:
        raise BenchError(f"workflows: the agents ended with {agents.returncode}: streams were lost")
    time.sleep(_SETTLE_SECONDS)
    return {"kb": 1000 * growth / AGENTS, "cpu": 100 * share, "connected": connected}
