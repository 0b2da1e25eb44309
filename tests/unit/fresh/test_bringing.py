"""What `make run` brings beside Debian's packages: whoever fails is heard, and nothing goes on without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

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


def test_end_of_a_short_command_runs_nothing_that_is_for_the_end_of_the_script(tmp_path: Path) -> None:
    script = """
    set -euo pipefail
    . deploy/setup/undo.sh
    . deploy/setup/progress.sh
    undo[mark]="echo undone"
    for number in $(seq 30); do watched "a short command" "$LOG" true true; done
    echo end
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LOG": str(tmp_path / "log")}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "end\nundone\n", done.stderr
