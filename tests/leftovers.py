"""Remove the processes, namespaces, cgroups and mounts of a killed test run from this machine.

A test ends what it started; one that is killed cannot. Everything that outlives a test has the process id of its test
run in its name, so that the next run recognises what belongs to a dead one: `tests/conftest.py` calls `clear` as root
before the first test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

NAMED_AFTER_A_RUN = re.compile(r"-(?P<pid>\d+)-[0-9a-f]{6}(-|$)")
"""Network namespaces and cgroups of tests: `edge-PID-1a2b3c`."""


def clear() -> list[str]:
    """Remove everything that belongs to dead test runs. Return a line for each thing removed."""
    return [*_network_namespaces(), *_cgroups(), *_mounts()]


def is_of_dead_run(name: str) -> bool:
    """Return True if a namespace or cgroup is named after a test process that no longer exists."""
    found = NAMED_AFTER_A_RUN.search(name)
    return found is not None and not Path("/proc", found["pid"]).exists()


def _network_namespaces() -> Iterator[str]:
    for path in sorted(Path("/run/netns").glob("*")):
        if not is_of_dead_run(path.name):
            continue
        inside = subprocess.run(["ip", "netns", "pids", path.name], capture_output=True, text=True, check=False)
        _kill(map(int, inside.stdout.split()))
        subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)
        yield f"network namespace {path.name}"


def _cgroups() -> Iterator[str]:
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        if mount.split()[2] != "cgroup2":
            continue
        for group in sorted(Path(mount.split()[1]).glob("tinkedge-*")):
            if is_of_dead_run(group.name):
                with suppress(OSError):
                    (group / "cgroup.kill").write_text("1")
                # Groups below it first: one that has others can't be removed.
                for each in sorted(group.rglob("*/"), reverse=True):
                    with suppress(OSError):
                        each.rmdir()
                with suppress(OSError):
                    group.rmdir()
                yield f"cgroup {group}"


def _mounts() -> Iterator[str]:
    """Unmount what is below the temporary directory of a run that has ended; the last mounted first."""
    runs = Path(tempfile.gettempdir())
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        where = Path(line.split()[1].encode().decode("unicode_escape"))
        if runs not in where.parents or len(where.relative_to(runs).parts) < 3:
            continue
        root, run, *_ = where.relative_to(runs).parts
        if root.startswith("pytest-of-") and not _is_running(runs / root / run):
            subprocess.run(["umount", "--lazy", str(where)], capture_output=True, check=False)
            yield f"mount {where}"


def _is_running(directory: Path) -> bool:
    """Return True if pytest's lock of its temporary directory names a live process."""
    with suppress(OSError, ValueError):
        return Path("/proc", str(int((directory / ".lock").read_text()))).exists()
    return False


def _kill(processes: Iterator[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
