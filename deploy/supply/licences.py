"""Under which licences the packages are that the project needs, and whether it may need them.

The project is Apache-2.0. What it needs to run must let an operator do whatever that licence lets him do: permissive
licences, and MPL-2.0 (its files stay under it, which says nothing about ours). GPL-2.0-only does not go together with
Apache-2.0: scapy is for diagnosis and tests only, and never imported by what serves (import-linter sees to that).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution
from typing import Any

from license_expression import ExpressionError, get_spdx_licensing
from packaging.utils import NormalizedName, canonicalize_name

from deploy.supply.packages import Installed, Project, closure

PERMISSIVE = frozenset(
    ("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0", "Python-2.0", "Unlicense")
)
ALLOWED = PERMISSIVE | {"MPL-2.0"}
EXCEPTIONS: Mapping[NormalizedName, tuple[str, frozenset[str]]] = {
    canonicalize_name("scapy"): ("GPL-2.0-only", frozenset({"diagnose", "dev"})),
}
"""Packages with one licence more, and the extras that may bring them. Nothing else may."""

_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "MIT License": "MIT",
}
"""SPDX names for the texts that packages write into the old free-text field `License`."""

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Trove classifiers. `BSD License` does not say which; all of them are allowed."""

_SPDX = get_spdx_licensing()


def licence(package: Distribution) -> str:
    """The SPDX expression of a package's licence, out of its metadata; empty if that says nothing one can rely on.

    In this order: License-Expression (PEP 639), the free text if it is a known name, and the classifiers; several of
    those are taken for all of them at once.
    """
    metadata: Any = package.metadata  # its protocol says less than it can
    for field in ("License-Expression", "License"):
        text = (metadata.get(field) or "").strip()
        text = _WORDS.get(text, text)
        if text and "\n" not in text and _known(text):
            return text
    prefix = "License :: OSI Approved :: "
    classified = [one.removeprefix(prefix) for one in metadata.get_all("Classifier") or () if one.startswith(prefix)]
    names = [_CLASSIFIERS.get(one, "") for one in classified]
    return " AND ".join(sorted(names)) if all(names) else ""


def _known(expression: str) -> bool:
    try:
        _SPDX.parse(expression, validate=True, strict=True)
    except ExpressionError:
        return False
    return True


def permits(expression: str, allowed: Iterable[str]) -> bool:
    """Return True if the alternatives of an SPDX expression leave a choice with allowed licences only."""
    if not expression:
        return False
    names = frozenset(allowed)

    def met(node: Any) -> bool:
        if not node.args:
            return str(node) in names
        return (all if isinstance(node, _SPDX.AND) else any)(map(met, node.args))

    return met(_SPDX.parse(expression))


def refusals(project: Project, here: Installed) -> list[str]:
    """Packages whose licence is not allowed for what they are needed for, each with what to do; empty if all are."""
    problems = []
    purposes = {"": (*project.needs, *project.build), **project.extras}
    for extra, wanted in purposes.items():
        needed_for = f"the extra {extra}" if extra else f"{project.name} itself"
        for name in sorted(closure(wanted, here).keys() & here.keys()):
            more, extras = EXCEPTIONS.get(name, ("", frozenset()))
            allowed = ALLOWED | {more} if extra in extras else ALLOWED
            found = licence(here[name])
            if permits(found, allowed):
                continue
            what = f"is under {found}" if found else "does not say under which licence it is"
            remedy = "do without it, or decide and say so in deploy/supply/licences.py"
            problems.append(f"{name} {here[name].version}, for {needed_for}, {what}, which is not allowed: {remedy}")
    return problems
