"""Run the unit tests of what differs from another commit, and of everything that imports it.

    python -m tests.changed [--since origin/main] [--list] [PYTEST_OPTION...]

A changed module of the product selects each test file that imports it, directly or through other modules. A changed
file below `tests` selects the test files that import it, those that pytest gives its fixtures to (`conftest.py`), and,
if it is data, all tests of its package. Everything else that the product is made of (`deploy`, `docs`, set-up) selects
the tests that read such files: those directly below `tests/unit`, and `supply`, `chart`, `fresh` and `package`.

Raises SystemExit with pytest's status, or with a message if git does not know the commit.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[1]
UNIT = ROOT / "tests" / "unit"
PRODUCT = ("edge", "hegel", "ipxe", "proto", "tink")
READERS_OF_FILES = ("supply", "chart", "fresh", "package")
"""Packages below tests/unit that read files of the repository which are no Python modules."""


def changed_files(since: str) -> list[Path]:
    """Return the files that differ from the last commit in common with `since`, committed or not, deleted ones too."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}\nname another commit with --since")
        return done.stdout.split("\0")

    base = git("merge-base", since, "HEAD")[0].strip()
    names = git("diff", "--name-only", "--no-renames", "-z", base) + git(
        "ls-files", "-z", "--others", "--exclude-standard"
    )
    return sorted({ROOT / name for name in names if name})


def module_of(path: Path) -> str:
    """Return the dotted name of a Python file of the repository, `tink.kube` for `tink/kube/__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path) -> Iterator[str]:
    """Yield the dotted names that a Python file imports; for `from a import b`, both `a` and `a.b`."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def needs_of_test(path: Path) -> frozenset[str]:
    """Return the modules that a test needs: its imports, and those of its `conftest.py` and of other test modules."""
    needs, waiting, seen = set[str](), [path], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        conftests = (folder / "conftest.py" for folder in file.parents if (ROOT / "tests") in (folder, *folder.parents))
        waiting += [each for each in conftests if each.exists()]
        for name in imported_names(file):
            needs.add(name)
            source = ROOT / Path(*name.split("."))
            waiting += [
                each
                for each in (source.with_suffix(".py"), source / "__init__.py")
                if each.exists() and "tests" in each.relative_to(ROOT).parts[:1]
            ]
        needs.add(module_of(file))
    return frozenset(needs)


def affected_modules(paths: Iterable[Path]) -> set[str]:
    """Return the modules of these files, and all modules of the product that import one of them, directly or not."""
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    affected = set[str]()
    for path in paths:
        module = module_of(path)
        affected.add(module)
        if module in graph.modules:
            affected |= graph.find_downstream_modules(module)
    return affected


def selected_tests(changed: Iterable[Path]) -> list[Path]:
    """Return the test files below tests/unit that a change of these files may break."""
    changed = list(changed)
    python = [
        path for path in changed if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in (*PRODUCT, "tests")
    ]
    others = [path for path in changed if path not in python]
    affected = affected_modules(python)
    rooms = {path.parents[len(path.parents) - len(UNIT.parents) - 2] for path in others if UNIT in path.parents}
    reads_files = any(UNIT not in path.parents for path in others)

    def is_selected(test: Path) -> bool:
        room = test.parent if test.parent == UNIT else UNIT / test.relative_to(UNIT).parts[0]
        if room in rooms or (reads_files and (room == UNIT or room.name in READERS_OF_FILES)):
            return True
        return not affected.isdisjoint(needs_of_test(test))

    return [test for test in sorted(UNIT.rglob("test_*.py")) if is_selected(test)]


def main() -> int:
    """Return pytest's exit status; 0 if nothing is to be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--since", default="origin/main", help="The commit to compare with (default: origin/main).")
    parser.add_argument("--list", action="store_true", help="Only list the test files.")
    options, for_pytest = parser.parse_known_args()
    changed = changed_files(options.since)
    tests = [str(path.relative_to(ROOT)) for path in selected_tests(changed)]
    print(f"{len(changed)} files differ from {options.since}: {len(tests)} test files", flush=True)
    if options.list or not tests:
        print("\n".join(tests))
        return 0
    return int(pytest.main([*for_pytest, *tests]))


if __name__ == "__main__":
    sys.exit(main())
