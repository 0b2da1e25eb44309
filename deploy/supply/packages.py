"""Packages as they are wanted (pyproject.toml), locked (deploy/requirements.txt) and installed (this environment)."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

_HASH = re.compile(r"sha256:[0-9a-f]{64}")

Installed = Mapping[NormalizedName, importlib.metadata.Distribution]


@dataclass(frozen=True)
class Locked:
    """One package of the requirements file."""

    requirement: Requirement
    hashes: tuple[str, ...]
    """The hash of each file of this version, as `sha256:` and hexadecimal digits."""

    @property
    def version(self) -> Version | None:
        """The version that the requirement pins; None if it allows several."""
        exact = [one for one in self.requirement.specifier if one.operator == "=="]
        return Version(exact[0].version) if len(exact) == 1 and len(self.requirement.specifier) == 1 else None


@dataclass(frozen=True)
class Project:
    """The project, and what it asks for."""

    name: str
    version: str
    licence: str
    needs: tuple[Requirement, ...]
    """Always."""
    extras: Mapping[str, tuple[Requirement, ...]]
    build: tuple[Requirement, ...]

    @classmethod
    def of(cls, pyproject: Mapping[str, Any]) -> Project:
        """From pyproject.toml, read."""
        project = pyproject["project"]
        extras = project.get("optional-dependencies", {})
        return cls(
            project["name"],
            project["version"],
            project["license"],
            _requirements(project["dependencies"]),
            {name: _requirements(lines) for name, lines in extras.items()},
            _requirements(pyproject["build-system"]["requires"]),
        )

    @property
    def all_needs(self) -> tuple[Requirement, ...]:
        """For whatever purpose."""
        return (*self.needs, *self.build, *(one for extra in self.extras.values() for one in extra))


def _requirements(lines: Iterable[str]) -> tuple[Requirement, ...]:
    return tuple(map(Requirement, lines))


def read_requirements(text: str) -> dict[NormalizedName, Locked]:
    """A requirements file with hashes. Raises ValueError for a line that is something else."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found: dict[NormalizedName, Locked] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        wanted, *hashes = re.split(r"\s+--hash=", line.strip())
        if not wanted:
            continue
        try:
            requirement = Requirement(wanted)
        except InvalidRequirement as error:
            raise ValueError(f"requirements: can't read {line!r}") from error
        if not all(map(_HASH.fullmatch, hashes)):
            raise ValueError(f"requirements: {requirement.name} has a hash that is no SHA-256")
        found[canonicalize_name(requirement.name)] = Locked(requirement, tuple(hashes))
    return found


def installed() -> dict[NormalizedName, importlib.metadata.Distribution]:
    """Return the distributions installed in this environment, by name."""
    return {canonicalize_name(one.name): one for one in importlib.metadata.distributions()}


def closure(wanted: Iterable[Requirement], here: Installed) -> dict[NormalizedName, set[NormalizedName]]:
    """Return the direct and indirect dependencies of `wanted` in this environment, each with its own dependencies.

    A package that is not installed is included, with no dependencies.
    """
    found: dict[NormalizedName, set[NormalizedName]] = {}
    waiting = [(canonicalize_name(one.name), frozenset(one.extras)) for one in wanted if _applies(one, frozenset())]
    done = set()
    while waiting:
        name, extras = entry = waiting.pop()
        found.setdefault(name, set())
        if entry in done or name not in here:
            continue
        done.add(entry)
        for line in here[name].requires or ():
            one = Requirement(line)
            if _applies(one, extras):
                found[name].add(canonicalize_name(one.name))
                waiting.append((canonicalize_name(one.name), frozenset(one.extras)))
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    environment = {key: str(value) for key, value in default_environment().items()}
    return marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in (*extras, ""))
