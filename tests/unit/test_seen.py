"""docs/netboot.md says what firmware was seen to do: a test does it, or the row says that it was done by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.boot.seen import BY_HAND, NOT_TRIED, SEEN

ROOT = Path(__file__).resolve().parents[2]
OF_WHAT_WAS_SEEN = re.compile(r"\bseen\b|\bhow far\b|^\| started from it ")
"""What the head of such a table has in it."""


def rows() -> list[str]:
    """Those of all such tables, with ` | ` between the cells."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", (ROOT / "docs/netboot.md").read_text(), re.MULTILINE):
        head, _, *lines = table.splitlines()
        if OF_WHAT_WAS_SEEN.search(head):
            found += [line.strip("| ") for line in lines]
    return found


def key_of(row: str) -> str | None:
    return max((key for key in SEEN if row.startswith(key)), key=len, default=None)


def test_each_row_of_what_firmware_was_seen_to_do_is_held_by_a_test_or_says_that_none_does_it():
    of_rows = [key_of(row) for row in rows()]
    assert None not in of_rows, rows()[of_rows.index(None)]
    assert sorted(map(str, of_rows)) == sorted(SEEN), "a row has gone, or two begin alike"
    for row in rows():
        held_by = SEEN[str(key_of(row))]
        assert held_by, row
        for word in (BY_HAND, NOT_TRIED):
            assert (word in row) == (word in held_by), row
            assert word not in held_by or len(held_by) == 1, row


def test_tests_that_hold_the_rows_are_there():
    wanted = {name for names in SEEN.values() for name in names} - {BY_HAND, NOT_TRIED}
    files = sorted({name.partition("::")[0] for name in wanted})
    # Those of `make soak`, too.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n0",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    there = {name for line in listed for name in (line, line.partition("[")[0])}
    assert wanted <= there, wanted - there
