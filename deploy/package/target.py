"""The target of a build: a Debian release, its Python, its processor."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass

from packaging.markers import default_environment

_PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""Debian's names of releases, and the version of their python3."""
_NUMBERS = {"bookworm": 12, "trixie": 13}
_PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names, and Debian's."""
_GLIBC = {"bookworm": 36, "trixie": 41}
"""The minor version of their C library: the newest supported manylinux (PEP 600)."""


class PackageError(Exception):
    """A build failed; the message has the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Target:
    """A Debian release on a processor."""

    suite: str
    machine: str

    @classmethod
    def of(cls, suite: str) -> Target:
        """Return the target for a suite on this machine's processor. Raises PackageError for an unknown suite."""
        if suite not in _PYTHONS:
            raise PackageError(f"SUITE={suite}: there are {', '.join(_PYTHONS)}")
        machine = platform.machine()
        if machine not in _PROCESSORS:
            raise PackageError(f"this machine is {machine}: packages are made for {', '.join(_PROCESSORS)}")
        return cls(suite, machine)

    @property
    def python(self) -> str:
        """Return the version of Debian's python3, as `3.11`."""
        return _PYTHONS[self.suite]

    @property
    def next_python(self) -> str:
        """Return the first Python version that the environment does not support."""
        major, minor = self.python.split(".")
        return f"{major}.{int(minor) + 1}"

    @property
    def architecture(self) -> str:
        """Return Debian's name of the processor."""
        return _PROCESSORS[self.machine]

    @property
    def release(self) -> int:
        """Return Debian's number, 12 for bookworm."""
        return _NUMBERS[self.suite]

    @property
    def platforms(self) -> list[str]:
        """Return the platform tags (PEP 600) of supported wheels, the newest first."""
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in range(_GLIBC[self.suite], 16, -1)]
        return [*names, f"manylinux2014_{self.machine}"]

    def markers(self) -> dict[str, str]:
        """Return the environment for the evaluation of markers (PEP 508)."""
        here = {key: str(value) for key, value in default_environment().items()}
        return here | {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_version": f"{self.python}.0",
            "platform_machine": self.machine,
            "extra": "",
        }


def run(command: list[str], *, what: str, env: dict[str, str] | None = None, cwd: str | None = None) -> str:
    """Run a program and return its output. Raises PackageError with its last lines, and its purpose (`what`)."""
    if shutil.which(command[0]) is None:
        raise PackageError(f"{what}: there is no {command[0]} on PATH")
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    if ran.returncode:
        last = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[-15:])
        raise PackageError(f"{what}: {command[0]} ended with {ran.returncode}:\n{last}")
    return ran.stdout
