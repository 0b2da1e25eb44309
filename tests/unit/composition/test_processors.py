"""The default number of workers of an edge, and the default memory of the gRPC server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edge.composition.processors import default_server_memory, default_workers, memory, processors
from edge.composition.settings import EDGE, Service


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (2, 1), (3, 1), (4, 3), (5, 4), (64, 4)])
def test_small_machines_have_one_process_and_large_ones_a_few_workers(count: int, workers: int) -> None:
    assert default_workers(EDGE, count) == workers


def test_where_all_runs_in_one_process_it_stays_one() -> None:
    assert default_workers(frozenset(Service), 64) == 1


def test_limits_of_control_groups_count(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/pods/edge\n")
    group = tmp_path / "fs" / "pods" / "edge"
    group.mkdir(parents=True)
    here = len(os.sched_getaffinity(0))
    assert processors(tmp_path / "fs", own) == here
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("100000 100000\n")
    assert processors(tmp_path / "fs", own) == 1
    (group.parent / "cpu.max").write_text("50000 100000\n")
    assert processors(tmp_path / "fs", own) == 1, "never none"
    assert processors(tmp_path / "fs", tmp_path / "nothing") == here


@pytest.mark.parametrize(
    ("total", "most"),
    [(512_000_000, 400_000_000), (4_000_000_000, 1_000_000_000), (64_000_000_000, 4_000_000_000)],
)
def test_grpc_server_beside_others_may_have_a_quarter_of_the_memory_within_bounds(total: int, most: int) -> None:
    assert default_server_memory(alone=False, total=total) == most
    assert default_server_memory(alone=True, total=total) == total


def test_memory_is_limited_by_the_smallest_control_group_around_the_process(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/pods/edge\n")
    group = tmp_path / "fs" / "pods" / "edge"
    group.mkdir(parents=True)
    host = memory(tmp_path / "fs", tmp_path / "nothing")
    (group / "memory.max").write_text("max\n")
    assert memory(tmp_path / "fs", own) == host
    (group.parent / "memory.max").write_text("536870912\n")
    assert memory(tmp_path / "fs", own) == 536_870_912
