"""Racks of labs that were killed are cleared away; those of labs that run are not touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edge.lab import namespaces as made
from edge.lab.namespaces import remove_abandoned
from edge.lab.rack import PREFIX
from edge.lab.shell import CommandError


@pytest.fixture
def gone():
    """The pid of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def namespaces(tmp_path, monkeypatch):
    directory = tmp_path / "netns"
    directory.mkdir()
    monkeypatch.setattr(made, "NAMESPACES", directory)

    async def run(command, **_):
        assert command[:3] == ["ip", "netns", "delete"]
        (directory / command[3]).unlink()
        return ""

    monkeypatch.setattr(made, "run", run)
    return directory


def left(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


async def test_only_namespaces_of_ended_labs_are_removed(namespaces, gone):
    others = {f"{PREFIX}{os.getpid()}", f"{PREFIX}x", PREFIX, f"other-{gone}", str(gone)}
    for name in (f"{PREFIX}{gone}", *others):
        (namespaces / name).touch()
    await remove_abandoned(PREFIX)
    assert left(namespaces) == others


async def test_host_without_any_namespace_is_fine(namespaces):
    namespaces.rmdir()
    await remove_abandoned(PREFIX)


async def test_two_labs_that_clear_up_at_once_are_not_in_each_others_way(namespaces, gone, monkeypatch):
    entry = namespaces / f"{PREFIX}{gone}"
    entry.touch()

    async def another_was_faster(*_):
        entry.unlink()
        raise CommandError("ip netns delete: No such file or directory")

    monkeypatch.setattr(made, "run", another_was_faster)
    await remove_abandoned(PREFIX)


async def test_namespace_that_can_not_be_removed_is_an_error(namespaces, gone, monkeypatch):
    (namespaces / f"{PREFIX}{gone}").touch()

    async def refused(*_):
        raise CommandError("ip netns delete: Operation not permitted")

    monkeypatch.setattr(made, "run", refused)
    with pytest.raises(CommandError, match="not permitted"):
        await remove_abandoned(PREFIX)
