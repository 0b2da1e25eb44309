"""Process 1 of the OSIE, as process 1 of a PID namespace, in which reboot(2) ends that namespace and nothing else.

Needs root. Source of how it ends: pid_namespaces(7), "reboot(2)".
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "osie" / "files" / "process-one"


@pytest.mark.parametrize(
    ("asked", "name", "ended"),
    [("TERM", "reboot", "SIGHUP"), ("USR2", "poweroff", "SIGINT"), ("USR1", "halt", "SIGINT")],
)
def test_action_that_asks_process_1_for_a_restart_as_busybox_reboot_does_gets_it(
    asked: str, name: str, ended: str, tmp_path: Path
) -> None:
    """The last action of the playground's templates is `reboot` in alpine: a signal to process 1, and success."""
    agent = tmp_path / "tinkedge"
    agent.write_text(f"#!/bin/sh\n[ $PPID = 1 ] && kill -{asked} 1\nsleep 60\n")
    agent.chmod(0o755)
    shell = f'say() {{ echo "osie: $*"; }}; PATH={tmp_path}:$PATH; . {SCRIPT}'
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", "busybox", "sh", "-c", shell],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"osie: {name}, requested by an action" in done.stdout, done.stderr
    # unshare ends as the process that it has started.
    assert (done.returncode, done.stderr) == (-signal.Signals[ended], "")
