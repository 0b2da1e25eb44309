"""Real boots: `tinkedge lab` as a user runs it, in a process of its own."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from edge.building.builder import default_cache

LAB = [sys.executable, "-m", "edge.cli", "lab"]
RELAYED_LAB = [sys.executable, "-m", "tests.boot.relayed_lab"]

Run = Callable[..., "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a lab ended: its exit status, its standard output, and its standard error."""

    status: int
    shown: str
    error: str


def leftovers(mark: str) -> dict[str, set[str]]:
    """Everything of a lab that could outlive it on this host; its processes by a word in their environment."""
    processes = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                processes.add(f"{entry.name} {command[:60]}")
        except OSError:
            continue
    # Other tests have racks at the same time: what is left is named after a process that is gone.
    racks = {path.name for path in Path("/run/netns").glob("tinkedge-lab-*")}
    alive = {rack for rack in racks if Path("/proc", rack.rpartition("-")[2]).exists()}
    # Those of a lab alone: other tests have overlays of actions, and this machine may have a cluster.
    own = ("tinkedge-lab-", f"{default_cache()}/")
    mounts = {line for line in Path("/proc/mounts").read_text().splitlines() if any(word in line for word in own)}
    return {
        "namespaces": racks - alive,
        "temporary files": {str(path) for path in (default_cache() / "running").glob("*")},
        "mounts": {line for line in mounts if not any(f"/{rack} " in line for rack in alive)},
        "processes": processes,
    }


@pytest.fixture
def lab() -> Run:
    """Run a lab to its end and check that nothing of it is left on the host."""

    def run(*arguments: str | Path, timeout: float = 560, relayed: bool = False) -> Outcome:
        mark = f"LAB_OF_THIS_TEST={secrets.token_hex(8)}"
        before = leftovers(mark)
        name, _, value = mark.partition("=")
        done = subprocess.run(
            [*(RELAYED_LAB if relayed else LAB), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=os.environ | {name: value},
        )
        left = {what: found - before[what] for what, found in leftovers(mark).items()}
        assert not any(left.values()), left  # an older one may have been killed, and this one has cleared up after it
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def manifests(tmp_path: Path) -> Callable[..., Path]:
    """The example manifests with some words replaced, in a directory of their own."""
    examples = Path(__file__).resolve().parents[2] / "deploy" / "examples"

    def changed(*, without: str = "", **replaced: tuple[str, str]) -> Path:
        for source in examples.glob("*.yaml"):
            if source.stem == without:
                continue
            text = source.read_text()
            if source.stem in replaced:
                old, new = replaced[source.stem]
                assert old in text
                text = text.replace(old, new)
            (tmp_path / source.name).write_text(text)
        return tmp_path

    return changed
