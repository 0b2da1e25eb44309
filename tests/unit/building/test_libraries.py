"""Which installed libraries go into the OSIE, and which have to be fetched (deploy/osie/installed.py)."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "deploy" / "osie" / "installed.py"
FITS = sys.version_info[:2] == (3, 11) and platform.system() == "Linux"


def copied(directory: Path, requirements: str, machine: str = platform.machine()) -> tuple[int, str]:
    file = directory / "requirements.txt"
    file.write_text(requirements)
    command = [sys.executable, "-I", SCRIPT, file, machine, directory / "into"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


@pytest.mark.skipif(not FITS, reason="the OSIE has Python 3.11")
def test_libraries_of_the_same_version_are_copied_without_byte_code_and_can_be_imported(tmp_path):
    lines = "".join(f"{name}=={version(name)} \\\n    --hash=sha256:0\n" for name in ("click", "protobuf", "grpcio"))
    assert copied(tmp_path, lines) == (0, "")
    into = tmp_path / "into"
    assert not list(into.rglob("*.pyc"))
    program = "import click, grpc, google.protobuf.message; print(click.__file__, grpc.__file__)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{into}:{Path(sys.prefix)}/none"},
        check=False,
    )
    # grpcio needs typing-extensions, which was not asked for.
    assert str(into) in done.stdout or "typing_extensions" in done.stderr


@pytest.mark.skipif(not FITS, reason="the OSIE has Python 3.11")
@pytest.mark.parametrize(
    ("requirements", "why"),
    [
        ("click==0.1\n", f"click {version('click')} is installed, not 0.1"),
        ("no-such-library==1\n", "no-such-library is not installed"),
        ("# nothing\n", "requirements.txt pins nothing"),
    ],
)
def test_another_version_is_fetched_and_nothing_is_copied(tmp_path, requirements, why):
    status, reported = copied(
        tmp_path, f"protobuf=={version('protobuf')}\n{requirements}" if "==" in requirements else requirements
    )
    assert status == 3
    assert reported.endswith(why)
    assert not (tmp_path / "into").exists()


def test_another_processor_has_libraries_of_its_own(tmp_path):
    status, reported = copied(tmp_path, f"click=={version('click')}\n", "riscv64")
    assert (status, reported.startswith("the OSIE has Python 3.11 on riscv64, and this is Python 3.")) == (3, True)


@pytest.mark.parametrize(
    ("tag", "runs"),
    [
        ("py3-none-any", True),
        ("cp311-cp311-manylinux_2_17_x86_64", True),
        ("cp311-cp311-manylinux2014_x86_64", True),
        ("cp310-abi3-manylinux2014_x86_64", True),
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp311-cp311-manylinux_2_34_x86_64", False),
        ("cp312-abi3-manylinux2014_x86_64", False),
        ("cp313-cp313-manylinux_2_17_x86_64", False),
        ("cp311-cp311-manylinux_2_17_aarch64", False),
        ("cp311-cp311-linux_x86_64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
    ],
)
def test_wheel_is_judged_by_its_tag(tag, runs):
    program = f"import installed; print(installed.runs_in_osie({tag!r}, 'x86_64'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=SCRIPT.parent
    )
    assert done.stdout.strip() == str(runs)


def test_all_modules_that_the_agent_imports_are_compiled_in_the_osie() -> None:
    root = SCRIPT.parents[2]
    listed = re.search(r"^compiled=\(.*?\)$", (SCRIPT.parent / "build.sh").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    script = f'{listed[0]}; printf "%s\\n" "${{compiled[@]}}"'
    paths = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert [path for path in paths if not (root / path).exists()] == []
    program = "import sys, edge.cli, edge.commands.agent, tink.agent.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    ours = [name.replace(".", "/") for name in done.stdout.split() if name.split(".")[0] in ("edge", "proto", "tink")]
    assert "tink/agent/agent" in ours
    covered = [path.removesuffix(".py").removesuffix("/__init__") for path in paths]
    apart = [name for name in ours if name not in covered and not any(name.startswith(f"{path}/") for path in paths)]
    assert apart == []
