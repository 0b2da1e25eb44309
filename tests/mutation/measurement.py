"""Runs the tests of a package against its mutants, each in a private copy of the tree."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant, sample, sources

ROOT = Path(__file__).resolve().parents[2]
IDLE_SECONDS = 60
MOST_SECONDS = 3600
"""Wall time of one run, for what neither sleeps nor computes."""


Rows = dict[Mutant, dict[str, Any]]
"""Mutants, each with what is written about it."""


class Tree:
    """A private copy of a commit, where mutants are put into files and tests run."""

    def __init__(self, path: Path, commit: str) -> None:
        self.path = path / "tree"
        self.path.mkdir()
        self._plugins = path / "plugins"
        self._plugins.mkdir()
        shutil.copy(Path(__file__).with_name("mutation_plugin.py"), self._plugins)
        self.notes = path / "notes"
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", self.path], input=archive.stdout, check=True)

    def put(self, file: str, code: str) -> None:
        """Write a file, and drop its compiled copy, which may have the same size and second as the new one."""
        (self.path / file).write_text(code)
        Path(cache_from_source(self.path / file)).unlink(missing_ok=True)

    def run_tests(self, *tests: str, **settings: object) -> str:
        """Run tests until one fails, and return why the run failed, or "" if all passed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "mutation_plugin"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUTATION_")}
        environment |= {name: str(value) for name, value in settings.items()}
        environment |= {"PYTHONPATH": f"{self.path}:{self._plugins}", "PYTHONHASHSEED": "0"}
        with self.notes.with_name("log").open("w") as log:
            child = subprocess.Popen(
                [*command, "--hypothesis-profile=mutation", *tests],
                cwd=self.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return _wait(child)
            finally:
                _end_group(child)

    @property
    def log(self) -> str:
        return self.notes.with_name("log").read_text(errors="replace")


def _wait(child: subprocess.Popen[bytes]) -> str:
    """Wait until the process ends or is stuck. Return "" for success, otherwise what happened."""
    began = busy = time.monotonic()
    used = -1
    while True:
        try:
            status = child.wait(1)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            used_before, (used, is_runnable) = used, _activity(child.pid)
            if is_runnable or used != used_before:
                busy = now
            if now - busy > IDLE_SECONDS:
                return "waits for ever"
            if now - began > MOST_SECONDS:
                return "wall time"
            continue
        if status == -signal.SIGXCPU:
            return "processor time"
        return f"status {status}" if status else ""


def _activity(group: int) -> tuple[int, bool]:
    """Return the clock ticks that the processes of a group have used, and whether one of their threads wants more."""
    used, is_runnable = 0, False
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields_ = stat.read_text().rpartition(")")[2].split()
            if int(fields_[2]) != group:
                continue
            used += int(fields_[11]) + int(fields_[12])
            states = [task.read_text().rpartition(")")[2].split()[0] for task in stat.parent.glob("task/*/stat")]
        except OSError:  # it has ended meanwhile
            continue
        is_runnable |= not {"R", "D"}.isdisjoint(states)
    return used, is_runnable


def _end_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Measurement:
    """Runs the tests of one package against its mutants."""

    def __init__(self, package: str, tests: str, trees: list[Tree]) -> None:
        self._tests = tests
        self._trees = queue.SimpleQueue[Tree]()
        for tree in trees:
            self._trees.put(tree)
        record = trees[0].notes.with_name("record")
        # Tests may fail here, for they are several times as slow: that of a limit of processor time, for example.
        why = trees[0].run_tests(self._tests, "--maxfail=1000", MUTATION_RECORD=record, MUTATION_PACKAGE=package)
        if not record.exists():
            sys.exit(f"{trees[0].log}\n{self._tests} can't be run: {why}")
        recorded = json.loads(record.read_text())
        self._seconds, self._lines = recorded["tests"], recorded["lines"]
        self._names = list(self._seconds)
        if (outcome := self._run(trees[0], list(self._seconds)))["result"] != "survived":
            sys.exit(f"{trees[0].log}\n{self._tests} fails without a mutant: {outcome['by']}")

    def _run(self, tree: Tree, first: list[str]) -> dict[str, str]:
        failed = tree.notes.with_name("failed")
        failed.unlink(missing_ok=True)
        tree.notes.write_text(json.dumps({"seconds": self._seconds, "first": first, "failed": str(failed)}))
        why = tree.run_tests(self._tests, MUTATION_ORDER=tree.notes)
        by = failed.read_text() if failed.exists() else why
        return {"result": "killed", "by": by} if why else {"result": "survived"}

    def try_mutant(self, mutant: Mutant, code: str) -> dict[str, str]:
        """Return whether the tests kill a mutant, and by what: a test's name, or how the run ended."""
        first, last = mutant.lines
        lines = self._lines.get(mutant.file, {})
        numbers = {number for line in range(first, last + 1) for number in lines.get(str(line), ())}
        if not numbers:
            return {"result": "survived", "by": "not covered"}
        covering = [self._names[number] for number in sorted(numbers - {-1})]
        tree = self._trees.get()
        original = (tree.path / mutant.file).read_text()
        try:
            tree.put(mutant.file, code)
            outcome = self._run(tree, covering)
            is_by_another = outcome.get("by") in self._seconds and outcome["by"] not in covering
            if is_by_another and numbers != {-1}:
                outcome = self._run(tree, covering)
        finally:
            tree.put(mutant.file, original)
            self._trees.put(tree)
        return outcome


def known_mutants(path: Path) -> Rows:
    """Return the mutants in a file that --out wrote, and what was written about each."""
    names = {each.name for each in fields(Mutant)}
    rows = json.loads(path.read_text())["mutants"]
    return {Mutant(**{name: row[name] for name in names} | {"lines": tuple(row["lines"])}): row for row in rows}


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the score of these mutants, with one line for each operator."""
    tried = [row for row in rows if row["result"] != "gone"]
    groups = Counter((row["operator"], row["result"]) for row in tried)
    lines = [
        f"  {operator:34} {groups[operator, 'killed']:4} of {groups[operator, 'killed'] + groups[operator, 'survived']}"
        for operator in sorted({row["operator"] for row in tried})
    ]

    def score(key: str) -> str:
        killed = sum(row[key] == "killed" for row in tried)
        return f"{killed} of {len(tried)} killed ({100 * killed / max(len(tried), 1):.1f} %)"

    compared = f"; before: {score('before_result')}" if tried and "before_result" in tried[0] else ""
    not_covered = sum(row.get("by") == "not covered" for row in tried)
    gone = len(rows) - len(tried)
    return "\n".join([*lines, f"{score('result')}, {not_covered} of them not covered, {gone} gone{compared}"])


def measure(package: str, tests: str, commit: str, options: argparse.Namespace, rows: Rows) -> None:
    """Try the mutants of one package, and add what became of each to `rows` and to the file of --out."""

    def note(mutant: Mutant, outcome: dict[str, str]) -> None:
        rows[mutant] = asdict(mutant) | outcome
        if mutant in earlier:
            rows[mutant]["before_result"] = earlier[mutant]["result"]
        if options.out:
            document = json.dumps({"commit": commit, "seed": options.seed, "mutants": list(rows.values())}, indent=1)
            options.out.with_suffix(".new").write_text(document)
            options.out.with_suffix(".new").replace(options.out)
        where = f"{outcome['result']:8} {mutant.file}:{mutant.line} {mutant.operator}"
        print(f"{where}: {mutant.before[:60]} -> {mutant.after[:60]}  [{outcome.get('by', '')}]", flush=True)

    earlier = known_mutants(options.mutants) if options.mutants else {}
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        for number in range(options.jobs):
            (Path(place) / str(number)).mkdir()
        trees = [Tree(Path(place) / str(number), commit) for number in range(options.jobs)]
        files = sources(trees[0].path, package)
        if options.mutants:
            here = {mutant: mutant for source in files.values() for mutant in source.mutants}
            wanted = [mutant for mutant in earlier if mutant.file.startswith(f"{package}/")]
            drawn = {here[each]: files[each.file].mutated(here[each]) or "" for each in wanted if each in here}
            for mutant in wanted:
                if mutant not in here:
                    note(mutant, {"result": "gone"})
        else:
            drawn = sample(files, options.sample, f"{options.seed} {package}")
        measurement = Measurement(package, tests, trees)
        todo = {mutant: code for mutant, code in drawn.items() if rows.get(mutant, {}).get("result") is None}
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, outcome in zip(todo, pool.map(measurement.try_mutant, todo, todo.values()), strict=True):
                note(mutant, outcome)
    chosen = [row for row in rows.values() if row["file"].startswith(f"{package}/")]
    print(f"{package} at {commit[:10]}:\n{summary(chosen)}", flush=True)
