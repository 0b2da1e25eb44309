"""Run a command while its processes are stopped at random, as on a machine that is short of processors.

    python -m tests.stopped [--seconds 2] [--pause 1] [--seed N] COMMAND...

Every `--pause` seconds one process that the command has started, directly or not, gets SIGSTOP, and SIGCONT after
`--seconds`. Ends with the command's status. A test that fails under it waits for a time instead of a state, or has
found a fault of the product:

    python -m tests.stopped python -m pytest -n 4 --dist loadfile tests/interop

Virtual machines are not stopped: their clock stands still with them. Nor are the processes that run the tests, and
those that a test has stopped itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

NEVER_STOPPED = ("qemu-system-", "pytest", "make")
"""Words in the command lines of processes that are never stopped: virtual machines, and those that run the tests."""


def children(process: int) -> Iterator[int]:
    """Yield the processes that `process` has started, and theirs."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield int(child)
                yield from children(int(child))


def may_be_stopped(process: int) -> bool:
    """Return False for a process that has ended, that is stopped already, or that must not be stopped."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return bool(command) and state != "T" and not any(word in command for word in NEVER_STOPPED)


def main() -> int:
    """Return the command's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.stopped", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="How long a process is stopped (default: 2).")
    parser.add_argument("--pause", type=float, default=1.0, help="Seconds between two of them (default: 1).")
    parser.add_argument("--seed", type=int, default=None, help="Of the choice of processes; printed.")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    print(f"stopped: seed {seed}", flush=True)
    choose, stopped = random.Random(seed), dict[int, float]()
    with subprocess.Popen(options.command) as command:
        try:
            count = 0
            while command.poll() is None:
                time.sleep(options.pause)
                continued = [each for each, until in stopped.items() if until <= time.monotonic()]
                for process in continued:
                    _send(process, signal.SIGCONT)
                    del stopped[process]
                running = [each for each in children(command.pid) if each not in stopped and may_be_stopped(each)]
                candidates = [each for each in running if each not in continued]
                if candidates and len(running) > len(stopped):  # otherwise two processes would never run
                    chosen = choose.choice(candidates)
                    _send(chosen, signal.SIGSTOP)
                    stopped[chosen] = time.monotonic() + options.seconds
                    count += 1
        finally:
            for process in stopped:
                _send(process, signal.SIGCONT)
            if command.poll() is None:
                command.terminate()
    print(f"stopped: {count} processes, {options.seconds:g} s each", flush=True)
    return command.returncode


def _send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


if __name__ == "__main__":
    sys.exit(main())
