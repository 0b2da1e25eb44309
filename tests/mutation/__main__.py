"""Mutation testing: break the product in small ways, and count how often the tests of the package notice.

    python -m tests.mutation [--package tink/kube] [--sample 200] [--seed 30] [--jobs 1] [--commit HEAD] [--out FILE]
    python -m tests.mutation --mutants FILE [--commit HEAD] [--out FILE]

It draws mutants of the package at random (mutmut's operators; equal seeds draw equal mutants) and runs the tests of
that package against each, in a private copy of the commit: uncommitted changes count for nothing. A mutant that a test
fails on is killed; the score is the share of killed ones. Those that survive show what no test looks at.

The first run records which tests run which lines. These run first, then all others, since what is computed once for
many tests (fixtures, caches) counts as covered by the first of them only. A mutant on a line that nothing runs
survives without a run. A test that loops endlessly is ended by a limit of processor time, one that waits endlessly when
all its processes have slept for a minute, so a busy machine gives the same result. If a test fails that does not
run the mutated line, the mutant is tried once more.

To compare two commits, write the first measurement with --out, and give that file as --mutants of the second one.
Mutants are found again by their statement, not by their line number; those whose statement changed are reported as
gone, and both scores leave them out. If --out names a file of the same commit, its results are kept, so a measurement
that was interrupted goes on, and one of 100 mutants is the first half of one of 200.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = {
    "tink/kubeapi/apiserver": "tests/unit/kubeapi/apiserver",
    "tink/kubeapi/schema": "tests/unit/kubeapi/schema",
    "tink/kubeapi/cel": "tests/unit/kubeapi/cel",
    "edge/dhcp": "tests/unit/dhcp",
    "tink/workflow": "tests/unit/workflow",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--package", choices=TESTS, action="append", help="may be repeated; all of them without it")
    parser.add_argument("--sample", type=int, default=200, metavar="N", help="mutants to draw of each package")
    parser.add_argument("--seed", default="30", help="what the sample is drawn from")
    parser.add_argument("--mutants", type=Path, metavar="FILE", help="try the mutants that --out wrote, and no others")
    parser.add_argument("--commit", default="HEAD", help="the commit to measure")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants to try at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the mutants and results as JSON")
    options = parser.parse_args()
    try:
        from tests.mutation import measurement
    except ImportError as error:
        sys.exit(f"{error}\nmutation tests need more than `make test` installs: pip install 'mutmut>=3.8,<4'")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end the running tests and remove the copies
    name = ["git", "rev-parse", "--verify", f"{options.commit}^{{commit}}"]
    found = subprocess.run(name, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"git knows no commit {options.commit!r}")
    commit = found.stdout.strip()
    rows: measurement.Rows = {}
    if options.out and options.out.exists() and json.loads(options.out.read_text())["commit"] == commit:
        rows = measurement.known_mutants(options.out)
    for package in options.package or TESTS:
        measurement.measure(package, TESTS[package], commit, options, rows)


if __name__ == "__main__":
    main()
