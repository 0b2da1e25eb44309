"""Do pyproject.toml, deploy/requirements.txt and the environment say the same? Pure."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from deploy.supply.packages import Installed, Locked, Project, closure

_INSTALLER = {"pip"}
"""Comes with Python's own venv, not from an index."""

_ONLY_WHERE_ASKED_FOR = "go"
"""The extra that `make venv` leaves out: `make test-all` installs it."""


def disagreements(project: Project, locked: dict[NormalizedName, Locked], here: Installed) -> list[str]:
    """Return a line with the remedy for each disagreement; empty if all sources agree."""
    problems = [line for one in project.all_needs if (line := _unmet(one, locked))]
    may_be_missing = {canonicalize_name(one.name) for one in project.extras.get(_ONLY_WHERE_ASKED_FOR, ())}
    for name, package in locked.items():
        if package.version is None or not package.hashes:
            problems.append(f"deploy/requirements.txt: {name} needs one version and hashes; run `make lock`")
        elif name in may_be_missing and name not in here:
            continue
        elif _wanted_here(package) and (name not in here or here[name].version != str(package.version)):
            found = here[name].version if name in here else "missing"
            problems.append(f"{name} is {found} in this environment, not {package.version}; run `make venv`")
    needed = closure(project.all_needs, here)
    for name in sorted(needed.keys() - locked.keys()):
        users = ", ".join(sorted(user for user, names in needed.items() if name in names)) or project.name
        problems.append(f"deploy/requirements.txt: {name}, which {users} needs, is not in it; run `make lock`")
    for name in sorted(name for name in locked.keys() - needed.keys() if _wanted_here(locked[name])):
        problems.append(f"deploy/requirements.txt: nothing needs {name}; run `make lock`")
    for name in sorted(here.keys() - locked.keys() - needed.keys() - _INSTALLER - {canonicalize_name(project.name)}):
        problems.append(f"{name} is in this environment and nothing needs it: remove it with `pip uninstall {name}`")
    return problems


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
