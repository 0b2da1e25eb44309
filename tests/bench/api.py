"""The embedded API with as many objects as a large site has, against kube-apiserver and etcd.

Both speak HTTP/1.1 over TLS on loopback of a namespace of their own, have the same CustomResourceDefinitions and the
same Hardware, and put every write on the disk before they answer it. All of a server's processes share one core, the
client has the other. If the peer is not installed, its column shows a floor for some rows: how many successive
transactions a second SQLite commits to this disk, and how fast the objects are serialised as JSON.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson

from tests.bench import kubernetes
from tests.bench.api_client import GROUP, hardware
from tests.bench.bed import BenchError, Cable, Server, cores, measured, pinned, python
from tests.bench.kubernetes import Kubernetes
from tests.bench.results import Round, Row, Sample, alternate, row, say

OBJECTS = 100_000
FEW = 100
COUNT = 1000
ALONE = 300
WATCHERS = 100
WRITES = 40
ROUNDS = 3
PORT = 6443
PEER = f"kube-apiserver {kubernetes.VERSION}"
FLOOR = "floor: SQLite, JSON"

# --- the two sides -------------------------------------------------------------------------------------------------


class _Side:
    """A server and the requests to it. `start` starts it (again) and waits until `ready` is true."""

    kubeconfig: Path
    server: Server

    def __init__(self, cable: Cable, directory: Path) -> None:
        self._cable = cable
        self._directory = directory

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        raise NotImplementedError

    def fill(self, count: int) -> None:
        """Create `count` Hardware named seed-0, seed-1... The first one exists already."""
        raise NotImplementedError

    def memory(self, what: str) -> float:
        return self.server.memory(what)

    def cpu(self) -> float:
        return self.server.cpu_seconds()

    def ask(self, do: str, **arguments: Any) -> dict[str, float]:
        """Run one function of the client and return its figures."""
        figures: dict[str, float] = measured(self._cable.neighbour(self.command(do, **arguments)))
        return figures

    def command(self, do: str, **arguments: Any) -> list[str]:
        return python("api_client", do=do, kubeconfig=str(self.kubeconfig), **arguments)

    def seconds_to_start(self, name: str) -> float:
        """Start the server; return the seconds until a client that retries continuously can read an object."""
        command = self._cable.neighbour(self.command("ready", name=name))
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            time.sleep(1.5)  # until the client has imported its modules
            begin = time.time()
            self.start()
            output, _ = client.communicate(timeout=120)
        return float(json.loads(output)["at"] - begin)


class _Ours(_Side):
    def __init__(self, cable: Cable, directory: Path) -> None:
        super().__init__(cable, directory)
        self._state = directory / "state"
        self.kubeconfig = self._state / "kubeconfig"
        self.start()

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        command = python("ours", server="api", directory=str(self._state))
        log = self._directory / "ours.log"
        self.server = self._cable.serve(command, log, port=PORT, ready=self.kubeconfig.exists)

    def fill(self, count: int) -> None:
        """Fill the store in a process that is killed at the end: the next start finds a long write-ahead log."""
        self.server.stop()
        command = python("api_client", do="fill", directory=str(self._state), first="seed-0", count=count)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != -signal.SIGKILL:
            raise BenchError(f"the store could not be filled: {done.stderr[-2000:]}")


class _Peer(_Side):
    def __init__(self, cable: Cable, directory: Path) -> None:
        super().__init__(cable, directory)
        self._kubernetes = Kubernetes(cable, directory / "peer")
        self.kubeconfig = self._kubernetes.kubeconfig
        self.server = self._kubernetes.server

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        self.server = self._kubernetes.start(ready)

    def fill(self, count: int) -> None:
        """Fill etcd while kube-apiserver does not run."""
        self.server.stop()
        self.ask("fill_etcd", first="seed-0", count=count)

    def memory(self, what: str) -> float:
        return super().memory(what) + self._kubernetes.etcd.memory(what)

    def cpu(self) -> float:
        return super().cpu() + self._kubernetes.etcd.cpu_seconds()


# --- the subject ---------------------------------------------------------------------------------------------------


def run(directory: Path, objects: int = OBJECTS) -> list[Row]:
    """Measure the API and return its rows of the table."""
    with ExitStack() as stack:
        ours: _Side = _Ours(stack.enter_context(Cable()), directory)
        peer: _Side | None = None
        if kubernetes.available():
            peer = _Peer(stack.enter_context(Cable()), directory)
        else:
            say(f"api: no {PEER} (python -m tests.bench --build-peer makes it) or no etcd: compared with the floor")
        sides = [ours, *([peer] if peer else [])]
        for side in sides:
            side.ask("define")
            side.ask("make", names=[f"seed-{number}" for number in range(FEW)])
        say(f"api: {FEW} objects")
        few = _rounds(ours, peer, lambda side: side.ask("single", count=ALONE, names=_some(FEW)))
        say(f"api: {objects:,} objects are made")
        for side in sides:
            side.fill(objects)
        name = f"seed-{objects - 1}"
        start = _rounds(ours, peer, lambda side: _started(side, name), rounds=1)
        for side in sides:
            side.server.stop()
        again = _rounds(ours, peer, lambda side: _started(side, name), rounds=1)
        idle = _rounds(ours, peer, lambda side: {"mb": side.memory("VmRSS")}, rounds=1)
        say("api: one at a time")
        many = _rounds(ours, peer, lambda side: side.ask("single", count=ALONE, names=_some(objects)))
        say("api: lists")
        lists = _rounds(ours, peer, lambda side: side.ask("list", path=f"{GROUP}/hardware"))
        say(f"api: {WATCHERS} watches")
        watch = {"watchers": WATCHERS, "writes": WRITES, "name": "seed-7"}
        watched = _rounds(ours, peer, lambda side: side.ask("watched", **watch))
        say("api: 32 at a time")
        turn = iter(range(100))
        load = _rounds(ours, peer, lambda side: _load(side, f"load-{next(turn)}"))
        most = _rounds(ours, peer, lambda side: {"mb": side.memory("VmHWM")}, rounds=1)
    floor = _floor(directory)
    if peer is None:
        load = [Round(ours, {"create": floor["commits"], "patch": floor["commits"]}) for ours, _ in load]
        lists = [Round(ours, {"rate": floor["encode"]}) for ours, _ in lists]
    return _table(few, many, start, again, idle, most, lists, watched, load, floor, objects, is_peer=peer is not None)


def _table(
    few: list[Round],
    many: list[Round],
    start: list[Round],
    again: list[Round],
    idle: list[Round],
    most: list[Round],
    lists: list[Round],
    watched: list[Round],
    load: list[Round],
    floor: Sample,
    objects: int,
    *,
    is_peer: bool,
) -> list[Row]:
    peer_or_none, other = (PEER, PEER) if is_peer else ("", FLOOR)
    size = max(sample.ours["mb"] for sample in lists)
    disk = f"the floor: {floor['commits']:,.0f} single commits a second of one such object, SQLite, synchronous=FULL"
    text = f"{size:,.0f} MB; the floor: orjson makes {floor['encode']:,.0f} MB/s of such objects"
    client = f"the client kept its core {max(sample.ours['busy'] for sample in load):.0%} busy"

    def line(
        title: str, unit: str, rounds: list[Round], key: str, name: str, note: str = "", less: bool = False
    ) -> Row:
        return row("api", title, unit, rounds, key, name, less_is_better=less, note=note)

    only = [sample._replace(peer=None) for sample in load] if not is_peer else load
    amount = f"{objects:,} objects"
    return [
        line(f"start with {amount}, after kill -9 at a long log", "s", start, "seconds", peer_or_none, less=True),
        line(f"start with {amount}, after a stop", "s", again, "seconds", peer_or_none, less=True),
        line(f"list of {amount}", "MB/s", lists, "rate", other, text),
        line("create Hardware, 32 at a time", "1/s", load, "create", other, disk),
        line("patch Hardware, 32 at a time", "1/s", load, "patch", other, disk),
        line("patch the status of Workflows, 32 at a time", "1/s", only, "status", peer_or_none, disk),
        line("get Hardware, 32 at a time", "1/s", only, "get", peer_or_none, client),
        line("CPU for one of these requests", "us", only, "cpu", peer_or_none, less=True),
        line(f"a write until a watch has it, {WATCHERS} watches", "ms", watched, "one", peer_or_none, less=True),
        line(f"a write until the last has it, {WATCHERS} watches", "ms", watched, "last", peer_or_none, less=True),
        line(f"get, {FEW} objects", "ms", few, "get", peer_or_none, less=True),
        line(f"get, {amount}", "ms", many, "get", peer_or_none, less=True),
        line(f"update, {FEW} objects", "ms", few, "update", peer_or_none, less=True),
        line(f"update, {amount}", "ms", many, "update", peer_or_none, less=True),
        line(f"memory with {amount}, after the start", "MB", idle, "mb", peer_or_none, less=True),
        line(f"memory with {amount}, at most", "MB", most, "mb", peer_or_none, "of all its processes", less=True),
    ]


def _rounds(ours: _Side, peer: _Side | None, measure: Callable[[_Side], Sample], rounds: int = ROUNDS) -> list[Round]:
    return alternate(rounds, lambda: measure(ours), None if peer is None else lambda: measure(peer))


def _some(count: int) -> list[str]:
    return [f"seed-{number * (count - 1) // 50}" for number in range(50)]


def _started(side: _Side, name: str) -> Sample:
    return {"seconds": side.seconds_to_start(name)}


def _load(side: _Side, prefix: str) -> Sample:
    before = side.cpu()
    figures = side.ask("rates", prefix=prefix, workers=32, count=COUNT)
    return {**figures, "cpu": (side.cpu() - before) * 1e6 / (5 * COUNT)}


def _floor(directory: Path) -> Sample:
    figures: dict[str, float] = measured(pinned(cores()[0], python("api", directory=str(directory))))
    return figures


def _measure_floor(directory: str) -> dict[str, float]:
    """Measure commits a second, each of one Hardware in its own transaction; and MB/s of serialising it as JSON."""
    path = Path(directory) / "floor.db"
    machines = [hardware(f"floor-{number}", number) for number in range(COUNT)]
    start = time.perf_counter()
    bodies = [orjson.dumps(machine) for machine in machines]
    encode = sum(map(len, bodies)) / 1e6 / (time.perf_counter() - start)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE objects (name TEXT PRIMARY KEY, body BLOB NOT NULL)")
    start = time.perf_counter()
    for number, body in enumerate(bodies):
        db.execute("INSERT INTO objects VALUES (?, ?)", (f"floor-{number}", body))
    seconds = time.perf_counter() - start
    db.close()
    path.unlink()
    return {"commits": COUNT / seconds, "encode": encode}


if __name__ == "__main__":
    print(json.dumps(_measure_floor(**json.loads(sys.argv[1]))))
