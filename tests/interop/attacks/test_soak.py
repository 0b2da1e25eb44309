"""A soak: `tinkedge up` while machines arrive, are installed and leave continuously; no resource may grow.

    edge's namespace: soak0 172.31.77.1/16 --- bridge --- eth0 of each machine; MAC and address change

`make soak` runs it for an hour, or for SOAK_SECONDS, with SOAK_RATE machines a second (default 2). `make test` runs a
short one with a process that leaks: all machines must be installed, and the soak must detect the leak.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.interop.attacks.soak.verdict import Bounds, Sample, complaints, table
from tests.interop.rack import ADDRESS, IN_EDGE, Namespaces, Process

PLACES = 12
SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS") or 3600)
SOAK_RATE = float(os.environ.get("SOAK_RATE") or 2)
Enough = Callable[[dict[str, Any]], bool]
_KERNEL, _INITRD = 300_000, 900_000


class Soak(Namespaces):
    """The rack, its processes, and the samples of their resources."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.data_dir = directory / "data"
        self.samples: list[Sample] = []
        self._socket = directory / "inside"
        self._pid = 0

    def build(self) -> None:
        machines = {f"m{number}": f"52:54:00:ff:00:{number:02x}" for number in range(PLACES)}
        self.network("soak0", machines, prefix=16)

    def up(self, **env: str) -> Process:
        """Start `tinkedge up` with the counting code inside."""
        osie = self.data_dir / "osie"
        osie.mkdir(parents=True, mode=0o700)
        self.data_dir.chmod(0o700)
        for name, size in (("kernel", _KERNEL), ("initrd", _INITRD)):
            (osie / name).write_bytes(os.urandom(size))
        words = ["up", "--interface", "soak0", "--public-ip", ADDRESS, "--data-dir", str(self.data_dir)]
        inside = ["-m", "tests.interop.attacks.soak.process", str(self._socket)]
        process = self.start(IN_EDGE, sys.executable, *inside, *words, **env)
        self.ready(process, within=60)
        self._pid = process.popen.pid  # `ip netns exec` has replaced itself by it
        return process

    def sample(self, seconds: float, lives: int, *, kinds: bool) -> Sample:
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()  # the gRPC server
        processes = [Path(f"/proc/{pid}") for pid in (self._pid, *children)]
        texts = [(process / "status").read_text() for process in processes]
        statuses = [dict(line.split(":", 1) for line in text.splitlines()) for text in texts]
        sizes = [int(status[name].split()[0]) for status in statuses for name in ("RssAnon", "RssShmem")]
        ticks = [(process / "stat").read_text().rpartition(")")[2].split()[11:13] for process in processes]
        files = [path.stat().st_size for path in self.data_dir.rglob("*") if _is_file(path)]
        new_sample = Sample(
            seconds=seconds,
            memory=1024 * sum(sizes),
            descriptors=sum(len(list((process / "fd").iterdir())) for process in processes),
            threads=sum(int(status["Threads"]) for status in statuses),
            files=len(files),
            disk_bytes=sum(files),
            cpu=sum(map(int, chain(*ticks))) / os.sysconf("SC_CLK_TCK"),
            lives=lives,
            **self._ask("kinds\n" if kinds else "look\n"),
        )
        self.samples.append(new_sample)
        return new_sample

    def _ask(self, word: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self._socket))
            connection.sendall(word.encode())
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
            return answer

    def run_for(
        self, seconds: float, rate: float, *services: Process, enough: Enough = lambda _: False
    ) -> dict[str, Any]:
        """Run the load and take samples until `enough` is true. Return the load's counts."""
        given = {
            "server_ip": ADDRESS, "rate": rate, "kubeconfig": str(self.data_dir / "kubeconfig"),
            "namespaces": [self.namespaces[f"m{number}"] for number in range(PLACES)],
            **{name: str(self.data_dir / "osie" / name) for name in ("kernel", "initrd")},
        }  # fmt: skip
        words = ["-m", "tests.interop.attacks.soak.machines", json.dumps(given)]
        load = self.start(IN_EDGE, sys.executable, *words)
        begin = time.monotonic()
        every, next_kinds = max(0.5, seconds / 720), 0.0
        counted: dict[str, Any] = {}
        with (self.directory / "samples").open("w") as output:
            while (at := time.monotonic() - begin) < seconds and not enough(counted):
                for process in (load, *services):
                    assert process.popen.poll() is None, f"it ended: {process.err[-3000:]}"
                counted = self._counted(load)
                kinds = at >= next_kinds
                next_kinds += seconds / 60 if kinds else 0
                new_sample = self.sample(at, counted.get("lives", 0), kinds=kinds)
                print(json.dumps(asdict(new_sample)), file=output, flush=True)
                time.sleep(every)
        assert load.terminate() == 0, load.err
        return self._counted(load)

    @staticmethod
    def _counted(load: Process) -> dict[str, Any]:
        lines = load.out.splitlines(keepends=True)
        whole = [line for line in lines[-2:] if line.endswith("\n")]
        return json.loads(whole[-1]) if whole else {}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # gone meanwhile
        return False


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    with Soak(tmp_path) as running:
        yield running


def test_soak_installs_machines_without_a_failure_and_sees_what_leaks(soak: Soak) -> None:
    process = soak.up(SOAK_LEAK="1")

    def enough(counted: dict[str, Any]) -> bool:
        return len(soak.samples) >= 12 and counted.get("lives", 0) >= 10 and counted.get("agents", 0) >= 1

    # Some seconds; on a machine that is very busy it takes longer.
    counted = soak.run_for(60, 3, process, enough=enough)
    print(table(soak.samples))
    assert counted["failures"] == []
    assert enough(counted)
    assert soak.samples[-1].journey_bytes > 0
    assert "Traceback" not in process.err
    problems = "\n".join(complaints(soak.samples, Bounds()))
    for grown in ("bytes of memory", "descriptors", "objects of __main__.Leak"):
        assert grown in problems


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_grows_while_machines_come_and_go_for_an_hour(soak: Soak) -> None:
    process = soak.up()
    counted = soak.run_for(SOAK_SECONDS, SOAK_RATE, process)
    print(table(soak.samples), json.dumps(counted), sep="\n")
    assert counted["failures"] == []
    assert counted["lives"] > 0.5 * SOAK_RATE * SOAK_SECONDS
    assert "Traceback" not in process.err
    assert complaints(soak.samples, Bounds()) == []
    assert process.terminate() == 0
