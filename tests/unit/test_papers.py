"""The docs: their links lead somewhere, and they agree with the program."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest

from tests.boot.seen import BY_HAND, NOT_TRIED, SEEN

ROOT = Path(__file__).resolve().parents[2]
PAPERS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("README.md")]
SOURCES = {".py", ".sh", ".yaml", ".service", ".tpl"}
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)|\]\(#([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PATH = re.compile(r"(?<![\w./:@${}<*-])((?:edge|hegel|ipxe|proto|tink|tests|deploy|docs)/[\w./-]*\w)(?![\w*<{$-])")
ELSEWHERE = {"tink/controller/internal/workflow", "tink/controller/internal/workflow/reconciler.go", "ipxe/shim"}
"""Files of other projects."""


def anchors(paper):
    """Return the names of the headings in links to them."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(paper.read_text()))
    return {word.replace(" ", "-") for word in words}


def test_version_is_the_same_in_the_changelog_the_package_and_what_is_installed():
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert newest is not None
    assert newest[1] == project["version"] == version("tinkedge")


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: str(paper.relative_to(ROOT)))
def test_links_and_paths_in_papers_lead_somewhere(paper):
    broken = []
    for target, anchor, here in _LINK.findall(paper.read_text()):
        if "://" in target:
            continue
        other = (paper.parent / target).resolve() if target else paper
        if not other.exists():
            broken.append(target)
        elif (anchor or here) and other.suffix == ".md" and (anchor or here) not in anchors(other):
            broken.append(f"{target}#{anchor or here}")
    for path in set(_PATH.findall(paper.read_text())) - ELSEWHERE:
        is_pattern = re.search(r"[A-Z]{2,}$", path)  # tests/unit/ROOM
        if not (is_pattern or (ROOT / path).exists() or (ROOT / f"{path}.py").exists()):
            broken.append(path)
    assert broken == []


def test_papers_that_messages_and_scripts_name_are_there():
    files = chain(*((ROOT / name).rglob("*") for name in ("edge", "hegel", "ipxe", "tink", "deploy")))
    texts = [path.read_text() for path in files if path.suffix in SOURCES and path.is_file()]
    named = {match for text in texts for match in re.findall(r"\b(docs/[\w-]+\.md)(?:#([\w-]+))?", text)}
    assert named
    assert [paper for paper, _ in named if not (ROOT / paper).exists()] == []
    assert [f"{paper}#{anchor}" for paper, anchor in named if anchor and anchor not in anchors(ROOT / paper)] == []


def test_every_package_declares_that_it_is_typed():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert [each for each in build["packages"] if not (ROOT / each / "py.typed").exists()] == []


# --- docs/engineering/netboot.md: a test does what firmware was seen to do, or the row says that it was done by hand --


def rows():
    """Return the rows of all tables about that, with ` | ` between the cells."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", (ROOT / "docs/engineering/netboot.md").read_text(), re.MULTILINE):
        head, _, *lines = table.splitlines()
        if re.search(r"\bseen\b|\bhow far\b|^\| started from it ", head):
            found += [line.strip("| ") for line in lines]
    return found


def key_of(row):
    return max((key for key in SEEN if row.startswith(key)), key=len, default=None)


def test_each_row_of_what_firmware_was_seen_to_do_is_held_by_a_test_or_shows_that_none_does_it():
    of_rows = [key_of(row) for row in rows()]
    assert None not in of_rows, rows()[of_rows.index(None)]
    assert sorted(of_rows) == sorted(SEEN), "a row has gone, or two begin alike"
    for row in rows():
        held_by = SEEN[key_of(row)]
        assert held_by, row
        for word in (BY_HAND, NOT_TRIED):
            assert (word in row) == (word in held_by), row
            assert word not in held_by or len(held_by) == 1, row


def test_tests_that_hold_the_rows_are_there():
    wanted = {name for names in SEEN.values() for name in names} - {BY_HAND, NOT_TRIED}
    # `-m ""`: those of `make soak`, too
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:cacheprovider", "-m", ""]
    files = sorted({name.partition("::")[0] for name in wanted})
    listed = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {name for line in listed.splitlines() for name in (line, line.partition("[")[0])}
    assert wanted <= there, wanted - there
