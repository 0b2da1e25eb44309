"""`make run`: what it brings beside Debian's packages, and how long a listener hears nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh.silence import Listener, listen

# --- what fails is heard, and nothing goes on without it --------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
set -euo pipefail
die() { echo "setup: $*" >&2; exit 1; }
. deploy/setup/undo.sh
. deploy/setup/progress.sh
. deploy/setup/prepare.sh
setup=$TMPDIR/setup
cat >$setup <<'END'
#!/bin/bash
set -euo pipefail
die() { echo "setup: $*" >&2; exit 1; }
echo "$*"
case $1 in venv) %s ;; kubectl) %s ;; esac
END
chmod 755 $setup
bring_python
await_python
echo "all is there"
"""


def bring(python: str, kubectl: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": str(directory)}
    command = ["bash", "-c", SCRIPT % (python, kubectl)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    (directory / "setup").unlink()
    assert list(directory.iterdir()) == [], "nothing of it is left"
    return done


def test_what_is_brought_at_the_same_time_is_there_at_the_end(tmp_path: Path) -> None:
    done = bring("sleep 0.3; true", "trap true EXIT", tmp_path)
    assert (done.returncode, done.stdout) == (0, "all is there\n"), done.stderr


@pytest.mark.parametrize(
    ("python", "kubectl", "said"),
    [
        ("die 'no index'", "true", "venv run\nsetup: no index\n"),
        ("true", "false; die 'not reached'", "kubectl run\n"),
        ("true", "sleep 0.2; die 'no mirror'", "kubectl run\nsetup: no mirror\n"),
    ],
)
def test_failure_is_told_in_its_own_words_and_ends_it(tmp_path: Path, python: str, kubectl: str, said: str) -> None:
    done = bring(python, kubectl, tmp_path)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.endswith(said)


# --- how long nothing is said, through a pipe and on a terminal -------------------------------------------------------


def test_silence_is_measured_between_what_was_said_last_and_next():
    listener = Listener(100.0)
    listener.heard("one\ntwo\n", 101.0)
    listener.heard("\rthree", 107.5)
    listener.heard("\n", 108.0)
    longest = listener.longest(2)
    assert [(one.seconds, one.began, one.before, one.after) for one in longest] == [
        (6.5, 1.0, "two", "three"),
        (1.0, 0.0, "the start", "one"),
    ]


def test_command_is_heard_as_its_user_hears_it_and_its_end_counts():
    script = "import sys; print(sys.stdout.isatty()); sys.exit(3)"
    for terminal in (False, True):
        said = []
        run = listen([sys.executable, "-c", script], said.append, terminal=terminal)
        assert "".join(said).strip() == str(terminal)
        assert run.status == 3
        assert run.processor_seconds > 0
        assert run.listener.silences[-1].after == "the end"
        assert run.listener.silences[-1].before == str(terminal)
