"""The next test run removes the processes, namespaces and mounts of a killed one."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leftovers import clear, is_of_dead_run
from tests.waiting import wait_until

KILLED_RUN = """
import os, pathlib, signal, subprocess, sys
name, mounted = f"edge-{os.getpid()}-abcdef", pathlib.Path(sys.argv[1])
subprocess.run(["ip", "netns", "add", name], check=True)
command, nowhere = ["ip", "netns", "exec", name, "sleep", "600"], subprocess.DEVNULL
server = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, start_new_session=True)
mounted.mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
(mounted.parent / ".lock").write_text(str(os.getpid()))
print(name, server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, Path]]:
    """The namespace, the server and the mount of a run that was killed in the middle of a test."""
    root = Path(tmp_path_factory.getbasetemp())
    root = next(each for each in (root, *root.parents) if each.name.startswith("pytest-of-"))
    mounted = root / f"pytest-killed-{secrets.token_hex(3)}" / "test"
    ran = subprocess.run([sys.executable, "-c", KILLED_RUN, mounted], capture_output=True, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    name, server = ran.stdout.split()
    yield name, int(server), mounted
    subprocess.run(["umount", "--lazy", mounted], capture_output=True, check=False)
    subprocess.run(["rm", "-rf", mounted.parent], check=True)


def test_processes_namespaces_and_mounts_of_a_killed_run_are_removed(killed: tuple[str, int, Path]) -> None:
    name, server, mounted = killed
    assert mounted.is_mount()
    removed = clear()
    assert {f"network namespace {name}", f"mount {mounted}"} <= set(removed)
    assert not mounted.is_mount()
    assert not Path("/run/netns", name).exists()
    wait_until(lambda: not Path(f"/proc/{server}").exists() or "zombie" in Path(f"/proc/{server}/status").read_text())


def test_things_of_a_live_run_and_of_others_are_left_alone() -> None:
    assert not is_of_dead_run(f"edge-{os.getpid()}-abcdef")
    assert not is_of_dead_run("customer-network")
    assert not is_of_dead_run("tinkedge-lab-4194000")
    assert is_of_dead_run("edge-4194999-abcdef-relay")
