"""The licences of the packages that the project needs, and the check that they are allowed.

The project is Apache-2.0. Packages that it needs to run must permit all that this licence permits: permissive licences,
and MPL-2.0 (its files stay under it, which does not affect ours). GPL-2.0-only is incompatible with Apache-2.0: scapy
is for diagnosis and tests only, and import-linter keeps it off the serving path.
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
"""Packages that may have one more licence, and the extras that may bring them."""

_WORDS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "MIT License": "MIT",
}
"""Known values of the old free-text field."""

_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Trove classifiers. `BSD License` is ambiguous, and all of its licences are allowed."""

_SPDX = get_spdx_licensing()


def licence(package: Distribution) -> str:
    """Return the SPDX expression of a package's licence from its metadata; empty if that is unreliable.

    The order is License-Expression (PEP 639), the free text if it is a known name, and the classifiers. Several
    classifiers count as all of them at once.
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
    """Return True if an SPDX expression leaves a choice of only these licences."""
    if not expression:
        return False
    names = frozenset(allowed)

    def met(node: Any) -> bool:
        if not node.args:
            return str(node) in names
        return (all if isinstance(node, _SPDX.AND) else any)(map(met, node.args))

    return met(_SPDX.parse(expression))


def refusals(project: Project, here: Installed) -> list[str]:
    """Return the packages whose licence is not allowed for their purpose, each with the remedy."""
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
