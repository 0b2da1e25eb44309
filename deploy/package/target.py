"""The target of a build: a Debian release, its Python version and the processor architecture."""

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
"""The minor version of their C library: the newest manylinux (PEP 600) that runs there."""


class PackageError(Exception):
    """Something could not be built; the text says what and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """A Debian release on a processor."""

    suite: str
    machine: str

    @classmethod
    def of(cls, suite: str) -> Target:
        """A suite on this machine's processor. Raises PackageError for one that is not known."""
        if suite not in _PYTHONS:
            raise PackageError(f"SUITE={suite}: there are {', '.join(_PYTHONS)}")
        machine = platform.machine()
        if machine not in _PROCESSORS:
            raise PackageError(f"this machine is {machine}: packages are made for {', '.join(_PROCESSORS)}")
        return cls(suite, machine)

    @property
    def python(self) -> str:
        """The version of Debian's python3 there, as `3.11`."""
        return _PYTHONS[self.suite]

    @property
    def next_python(self) -> str:
        """The first version that the environment is not made for."""
        major, minor = self.python.split(".")
        return f"{major}.{int(minor) + 1}"

    @property
    def architecture(self) -> str:
        """Debian's name of the processor."""
        return _PROCESSORS[self.machine]

    @property
    def release(self) -> int:
        """Debian's number, 12 for bookworm."""
        return _NUMBERS[self.suite]

    @property
    def platforms(self) -> list[str]:
        """The platform tags (PEP 600) of wheels that run there, the newest first."""
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in range(_GLIBC[self.suite], 16, -1)]
        return [*names, f"manylinux2014_{self.machine}"]

    def markers(self) -> dict[str, str]:
        """The environment in which markers (PEP 508) are evaluated for it."""
        here = {key: str(value) for key, value in default_environment().items()}
        return here | {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_version": f"{self.python}.0",
            "platform_machine": self.machine,
            "extra": "",
        }


def run(command: list[str], *, what: str, env: dict[str, str] | None = None, cwd: str | None = None) -> str:
    """Run a program and give its output. Raises PackageError with its last lines, and `what` it was to do."""
    if shutil.which(command[0]) is None:
        raise PackageError(f"{what}: there is no {command[0]} on PATH")
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=cwd)
    if ran.returncode:
        last = "\n".join((ran.stderr or ran.stdout).strip().splitlines()[-15:])
        raise PackageError(f"{what}: {command[0]} ended with {ran.returncode}:\n{last}")
    return ran.stdout
