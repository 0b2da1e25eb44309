"""What an action has left running, found by its control group. A directory plays the mounted hierarchies."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tink.agent.runtimes.oci import cgroups


def hierarchy(directory: Path, *processes: int) -> None:
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text("".join(f"{process}\n" for process in processes))


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("place", ["c", "c/made/by/action", "memory/c", "unified/c/deep"])
async def test_process_is_killed_in_whatever_hierarchy_it_is(tmp_path, sleeper, place):
    hierarchy(tmp_path / "memory" / "other", os.getpid())
    hierarchy(tmp_path / place, sleeper.pid)
    ending = asyncio.create_task(cgroups.kill_all("c", tmp_path))
    assert await asyncio.to_thread(sleeper.wait, 10) == -9
    (tmp_path / place / "cgroup.procs").write_text("")  # as the kernel does
    assert await ending == 0


async def test_neither_the_agent_nor_what_it_cannot_see_is_killed(tmp_path):
    """A process of a PID namespace elsewhere is shown as 0, and kill(0) would end the agent and its siblings."""
    hierarchy(tmp_path / "c", 0, os.getpid())
    assert await cgroups.kill_all("c", tmp_path) == 0


async def test_process_that_the_kernel_holds_is_counted_and_not_waited_for_without_end(tmp_path, sleeper, monkeypatch):
    monkeypatch.setattr(cgroups, "_ATTEMPTS", 3)
    hierarchy(tmp_path / "c", sleeper.pid)
    assert await cgroups.kill_all("c", tmp_path) == 1


async def test_machine_without_control_groups_has_nothing_to_end(tmp_path):
    assert await cgroups.kill_all("c", tmp_path / "none") == 0
    assert await cgroups.kill_all("c", tmp_path) == 0


async def test_groups_that_are_empty_are_removed_from_within(tmp_path):
    (tmp_path / "memory" / "c" / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "cpu" / "c").mkdir(parents=True)
    assert await cgroups.kill_all("c", tmp_path) == 0
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["cpu", "memory"]
