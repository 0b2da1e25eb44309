"""Run pytest, then run the failed tests of `tests/interop` and `tests/boot` once more, alone.

    python -m tests.second_look PYTEST_OPTION... PATH...

These tests start real clients, firmware and services side by side, so one of them may fail on a busy machine for a
reason that is not the product's. A test that passes when it runs alone is flaky: it is listed at the end, and in
`build/flaky.txt` with its first failure, and the run succeeds. More than three flaky tests fail the run. Unit tests get
no second look.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

FLAKY_FILE = Path("build/flaky.txt")
MOST_FLAKY = 3
_SECOND_LOOK = ("tests/interop/", "tests/boot/")


@dataclass(eq=False)  # pluggy puts plugins into sets
class Failures:
    """The failed tests of a run: a pytest plugin in the process that collects the results."""

    first_report: dict[str, pytest.TestReport] = field(default_factory=dict)
    """The failures by node id, in their order."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the first failure of each test."""
        if report.failed:
            self.first_report.setdefault(report.nodeid, report)

    def causes(self) -> set[str]:
        """Return node ids. A fixture that failed for several tests of a file counts once, under the file's name."""
        return {
            node.partition("::")[0] if report.when == "setup" else node for node, report in self.first_report.items()
        }


def deserves_second_look(failed: Collection[str]) -> bool:
    """Return True if all failed tests, at least one, are of a kind that gets a second look."""
    return bool(failed) and all(node.startswith(_SECOND_LOOK) for node in failed)


def main(arguments: list[str]) -> int:
    """Return the exit status: pytest's own, or 0 if the second look found nothing but a few flaky tests."""
    FLAKY_FILE.unlink(missing_ok=True)
    failures = Failures()
    status = int(pytest.main(arguments, plugins=[failures]))
    failed = [*failures.first_report]
    if status != pytest.ExitCode.TESTS_FAILED or not deserves_second_look(failed):
        return status
    if len(failures.causes()) > MOST_FLAKY:
        print(f"\n{len(failures.causes())} tests failed: too many for a second look")
        return status
    print(f"\nsecond look: running {len(failed)} failed test(s) once more, alone", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", *failed], check=False)
    if again.returncode != 0:
        return again.returncode
    listed = "\n".join(f"{node}\n{report.longreprtext}\n" for node, report in failures.first_report.items())
    FLAKY_FILE.parent.mkdir(exist_ok=True)
    FLAKY_FILE.write_text(listed)
    print("\nflaky: failed beside other tests, passed alone (first failures in build/flaky.txt)")
    print("\n".join(f"  {node}" for node in failed))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
