"""What a newcomer looks for: it is there, and says the same as everything else."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAPERS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("README.md")]
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)|\]\(#([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(paper: str) -> set[str]:
    """How headings are named in links to them."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(paper))
    return {word.replace(" ", "-") for word in words}


def test_version_is_the_same_in_the_changelog_the_package_and_what_is_installed():
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert newest is not None
    assert newest[1] == project["version"] == version("tinkedge")


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: str(paper.relative_to(ROOT)))
def test_links_between_papers_lead_somewhere(paper):
    broken = []
    for target, anchor, here in _LINK.findall(paper.read_text()):
        if "://" in target:
            continue
        other = (paper.parent / target).resolve() if target else paper
        if not other.exists():
            broken.append(target)
        elif (anchor or here) and other.suffix == ".md" and (anchor or here) not in anchors(other.read_text()):
            broken.append(f"{target}#{anchor or here}")
    assert broken == []


def test_every_package_says_that_it_is_typed():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert [each for each in packages if not (ROOT / each / "py.typed").exists()] == []
