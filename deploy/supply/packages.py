"""Packages that are wanted (pyproject.toml), locked (deploy/requirements.txt) and installed (this environment).

Pure, except for `installed`.
"""

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
        """Return the only allowed version; None if several are allowed."""
        exact = [one for one in self.requirement.specifier if one.operator == "=="]
        return Version(exact[0].version) if len(exact) == 1 and len(self.requirement.specifier) == 1 else None


@dataclass(frozen=True)
class Project:
    """The project and its requirements."""

    name: str
    version: str
    licence: str
    needs: tuple[Requirement, ...]
    """Requirements without extras."""
    extras: Mapping[str, tuple[Requirement, ...]]
    build: tuple[Requirement, ...]

    @classmethod
    def of(cls, pyproject: Mapping[str, Any]) -> Project:
        """Read the parsed pyproject.toml."""
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
        """Return all requirements: runtime, build, and of all extras."""
        return (*self.needs, *self.build, *(one for extra in self.extras.values() for one in extra))


def _requirements(lines: Iterable[str]) -> tuple[Requirement, ...]:
    return tuple(map(Requirement, lines))


def read_requirements(text: str) -> dict[NormalizedName, Locked]:
    """Parse a requirements file with hashes. Raises ValueError for any other line."""
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
    """Return the packages in this environment."""
    return {canonicalize_name(one.name): one for one in importlib.metadata.distributions()}


def closure(wanted: Iterable[Requirement], here: Installed) -> dict[NormalizedName, set[NormalizedName]]:
    """Return all packages that these need in this environment, directly or not, each with its own needs.

    A package that is not installed is included, without needs.
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


_INSTALLER = {"pip"}
"""Packages of Python's own venv, which come from no index."""

_ONLY_WHERE_ASKED_FOR = "go"
"""The extra that `make venv` leaves out: `make test-all` installs it."""


def disagreements(project: Project, locked: dict[NormalizedName, Locked], here: Installed) -> list[str]:
    """Return the disagreements of pyproject.toml, deploy/requirements.txt and the environment, each with the remedy."""
    said = [line for one in project.all_needs if (line := _unmet(one, locked))]
    may_be_missing = {canonicalize_name(one.name) for one in project.extras.get(_ONLY_WHERE_ASKED_FOR, ())}
    for name, package in locked.items():
        if package.version is None or not package.hashes:
            said.append(f"deploy/requirements.txt: {name} needs one version and hashes; run `make lock`")
        elif name in may_be_missing and name not in here:
            continue
        elif _wanted_here(package) and (name not in here or here[name].version != str(package.version)):
            found = here[name].version if name in here else "missing"
            said.append(f"{name} is {found} in this environment, not {package.version}; run `make venv`")
    needed = closure(project.all_needs, here)
    for name in sorted(needed.keys() - locked.keys()):
        users = ", ".join(sorted(user for user, names in needed.items() if name in names)) or project.name
        said.append(f"deploy/requirements.txt: {name}, which {users} needs, is not in it; run `make lock`")
    for name in sorted(name for name in locked.keys() - needed.keys() if _wanted_here(locked[name])):
        said.append(f"deploy/requirements.txt: nothing needs {name}; run `make lock`")
    for name in sorted(here.keys() - locked.keys() - needed.keys() - _INSTALLER - {canonicalize_name(project.name)}):
        said.append(f"{name} is in this environment and nothing needs it: remove it with `pip uninstall {name}`")
    return said


def _unmet(requirement: Requirement, locked: dict[NormalizedName, Locked]) -> str:
    package = locked.get(canonicalize_name(requirement.name))
    if package is None:
        return f"deploy/requirements.txt: {requirement.name} of pyproject.toml is not in it; run `make lock`"
    version = package.version
    if version is not None and not requirement.specifier.contains(version, prereleases=True):
        return f"deploy/requirements.txt has {package.requirement}, pyproject.toml wants {requirement}; run `make lock`"
    return ""


def _wanted_here(package: Locked) -> bool:
    marker = package.requirement.marker
    return marker is None or marker.evaluate()
