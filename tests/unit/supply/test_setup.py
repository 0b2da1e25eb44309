"""`deploy/setup.sh venv` installs files with the hashes of deploy/requirements.txt, and no others.

It runs in a directory of its own, with one package that a test has made; no index is asked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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

    def publish(self, name: str, text: str) -> Path:
        """What there is to be fetched."""
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

    def venv(self, what: str = "", python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PYTHON": python}
        command = ["bash", str(self.directory / "deploy" / "setup.sh"), "venv", *what.split()]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    @property
    def python(self) -> Path:
        return self.directory / f".venv-{Path(sys.executable).name}" / "bin" / "python"

    def has(self, module: str) -> bool:
        return subprocess.run([self.python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_only_files_with_the_locked_hashes_are_installed(checkout: Checkout) -> None:
    checkout.lock()
    good = checkout.wheel.read_bytes()
    checkout.publish("wanted", "raise SystemExit('somebody else wrote this')")
    refused = checkout.venv()
    assert refused.returncode == 1
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert "If a hash differs, the file is not the one that was tried" in refused.stderr
    assert not checkout.has("wanted")

    checkout.wheel.write_bytes(good)
    checkout.lock("unlocked==1\n")  # a line that somebody wrote by hand
    refused = checkout.venv()
    assert refused.returncode == 1
    assert "Hashes are required" in refused.stderr
    assert not checkout.has("wanted")

    checkout.lock()
    done = checkout.venv()
    assert done.returncode == 0, done.stderr
    assert checkout.has("wanted")
    assert checkout.has("ours")
    assert checkout.venv().stderr == "", "a second time there is nothing to do"
    assert not (checkout.directory / ".venv").exists(), "a Python that was asked for has an environment of its own"


def test_python_that_was_asked_for_and_is_missing_is_named_and_no_other_taken(checkout: Checkout) -> None:
    checkout.lock()
    refused = checkout.venv(python="python3.99")
    assert refused.returncode == 1
    assert "python3.99 is missing, or older than 3.11" in refused.stderr
    assert not list(checkout.directory.glob(".venv*"))


def test_environment_to_run_grows_into_the_whole_one_and_is_made_anew_for_another_python(
    checkout: Checkout,
) -> None:
    checkout.lock(f"unlocked==1 --hash=sha256:{hashlib.sha256(checkout.unlocked.read_bytes()).hexdigest()}\n")
    done = checkout.venv("run")
    assert done.returncode == 0, done.stderr
    assert checkout.has("wanted")
    assert not checkout.has("unlocked"), "running does not need it"
    assert checkout.venv("run").stderr == ""

    done = checkout.venv()
    assert done.returncode == 0, done.stderr
    assert checkout.has("unlocked")
    assert checkout.venv("run").stderr == checkout.venv().stderr == ""

    # After an upgrade of Debian, its link to python3 leads to one that looks elsewhere.
    (library,) = (checkout.python.parents[1] / "lib").glob("python3.*")
    library.rename(library.with_name("python3.1"))
    done = checkout.venv("run")
    assert done.returncode == 0, done.stderr
    assert "made anew" in done.stderr
    assert checkout.has("wanted")
    assert checkout.has("ours")
    assert not checkout.has("unlocked"), "nothing of the old one is left"
