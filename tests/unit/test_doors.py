"""Each room that has a door has a contract of import-linter, so that `make check` finds who reaches past it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP = ("edge", "hegel", "ipxe", "tink")
TOOLBOXES = {"tink.golang", "tink.metrics"}
"""Their modules are for whoever needs one of them."""


def _doors() -> list[str]:
    """Packages that export something."""
    found = []
    for path in sorted(file for top in TOP for file in (ROOT / top).rglob("__init__.py")):
        tree = ast.parse(path.read_text())
        assigned = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in assigned):
            found.append(".".join(path.parent.relative_to(ROOT).parts))
    return found


def test_nobody_reaches_past_a_door_unseen():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = {
        module.rpartition(".")[0]
        for contract in contracts
        if contract["type"] == "protected"
        for module in contract["protected_modules"]
    }
    assert [door for door in _doors() if door not in held | TOOLBOXES] == [], "give it a contract in pyproject.toml"
