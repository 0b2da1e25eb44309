"""What an edge with very many machines does with its memory: nothing that an administrator forbids, and no harm."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from edge.composition.process import heap

_MAPS = """\
5581a0000000-5581a0001000 r--p 00000000 fd:00 12345                      /usr/bin/python3
5581a1100000-5581a1b00000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000500000 rw-p 00000000 00:00 0 nothing
7f0001000000-7f0001400000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7f0002000000-7f0002400000 rw-p 00000000 fd:00 99                         /usr/lib/libpython3.so
7f0003100000-7f0003200000 rw-p 00000000 00:00 0 nothing
7f0004100000-7f0004400000 rw-p 00000000 00:00 0 nothing
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0                          [stack]
"""

# A heap as an inventory makes it, and how much of it is in huge pages before and after.
_PROGRAM = """
import sys
from pathlib import Path
from edge.composition.process import heap
heap._POLICY = Path(sys.argv[1])
def huge():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHuge"))
objects = [str(number).zfill(100) for number in range(1_400_000)]
before = huge()
heap.settle(huge_pages=True)
assert objects[::100_000] == [str(number).zfill(100) for number in range(0, 1_400_000, 100_000)]
print(before, huge())
"""


def _settled(policy: Path) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(policy)], capture_output=True, text=True, check=True, timeout=60
    )
    before, after = map(int, done.stdout.split())
    return before, after


def test_only_private_memory_without_a_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = tmp_path / "maps"
    maps.write_text(_MAPS.replace("nothing", ""))
    monkeypatch.setattr(heap, "_MAPS", maps)
    assert list(heap._ranges()) == [
        (0x5581A1200000, 0x5581A1A00000),
        (0x7F0000000000, 0x7F0000400000),
        (0x7F0004200000, 0x7F0004400000),
    ]


def test_server_that_no_packet_waits_for_stays_as_small_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)  # of the tests' own process
    asked: list[None] = []
    monkeypatch.setattr(heap, "_ranges", lambda: iter(asked.append(None) or ()))
    heap.settle(huge_pages=False)
    assert asked == []
    heap.settle(huge_pages=True)
    assert asked == [None]


def test_a_large_heap_gets_huge_pages_where_the_kernel_has_them() -> None:
    before, after = _settled(heap._POLICY)
    major, minor = map(int, Path("/proc/sys/kernel/osrelease").read_text().split(".")[:2])
    if heap._allowed() and (major, minor) >= (6, 1):
        assert after > before + 30 * 1024
    else:
        assert after == before


@pytest.mark.parametrize("policy", ["always madvise [never]\n", None], ids=["forbidden", "unknown to the kernel"])
def test_no_huge_pages_where_they_are_not_wanted(tmp_path: Path, policy: str | None) -> None:
    path = tmp_path / "enabled"
    if policy is not None:
        path.write_text(policy)
    before, after = _settled(path)
    assert after <= before
