"""When what is known is written down, and what the next process is given of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edge.checkpoint import Checkpoint, checkpoint, discard
from edge.checkpoint import file as checkpoint_file
from tests.support.informer import InMemoryInformer
from tests.support.virtual_time import elapse
from tink.kube.cache import ObjectCompressor
from tink.kube.objects import NamespacedName
from tink.kube.resources import HARDWARE, WORKFLOW

CLUSTER = frozenset({"ca:1"})


def obj(name: str, version: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec}


class Followed(InMemoryInformer):
    """An informer that is asked about the API in the event loop alone, as the real one."""

    away = 0.0

    @property
    def failing_for(self) -> float:  # type: ignore[override]
        asyncio.get_running_loop()
        return self.away


class Process:
    """What an edge has: informers that hear what a test says, and a clock that it moves."""

    def __init__(self, data_dir: Path) -> None:
        self.now = 5000.0
        self.hardware = Followed(HARDWARE, synced=False, compressor=ObjectCompressor())
        self.workflows = Followed(WORKFLOW, synced=False)
        self.open: list[NamespacedName] = []
        self.checkpoint = Checkpoint(
            data_dir,
            CLUSTER,
            {"hardware": (self.hardware, None), "workflows": (self.workflows, lambda: self.open)},
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def hears(self, *objects: dict[str, Any]) -> None:
        for each in objects:
            self.hardware.feed("MODIFIED", each)

    def listed(self) -> None:
        self.hardware.listed()
        self.workflows.listed()

    def loses_the_api(self) -> None:
        self.hardware.away = self.workflows.away = 10.0

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.checkpoint.look()


@pytest.fixture
async def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def written(data_dir: Path, kind: str = "hardware") -> list[str]:
    path = data_dir / "checkpoint" / kind
    if not path.exists():
        return []
    with checkpoint_file.opened(path, kind, CLUSTER) as content:
        return [entry.key.name for entry in content.entries()]


async def test_changes_that_come_together_are_written_together_and_not_all_the_time(process, tmp_path) -> None:
    process.hears(obj("a"))
    await process.after(60)
    assert not written(tmp_path), "not before all is listed"
    process.listed()
    await process.after(1)
    assert written(tmp_path) == ["a"]
    await process.after(10)
    process.workflows.feed("MODIFIED", obj("runs"))
    process.workflows.feed("MODIFIED", obj("ended"))
    process.open = [NamespacedName("default", "runs"), NamespacedName("default", "just-gone")]
    process.hears(obj("b"))
    await process.after(1)
    assert written(tmp_path) == ["a"], "more may be on its way"
    process.hears(obj("c"))
    await process.after(1)
    assert written(tmp_path) == ["a", "b", "c"]
    assert written(tmp_path, "workflows") == ["runs"], "only those that have not ended"
    process.hears(obj("d"))
    await process.after(5)
    assert written(tmp_path) == ["a", "b", "c"], "ten seconds between two writings"
    await process.after(5)
    assert written(tmp_path) == ["a", "b", "c", "d"]
    process.hears(obj("e"))
    await process.checkpoint.close()
    assert written(tmp_path) == ["a", "b", "c", "d", "e"], "the end writes what waits"
    for _ in range(2):
        discard(tmp_path)
        assert not (tmp_path / "checkpoint").exists()


async def test_large_file_is_written_seldom(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_BYTES_PER_SECOND", 1)
    process.listed()
    process.hears(obj("a"))
    await process.after(2)
    process.hears(obj("b"))
    await process.after(100)
    assert written(tmp_path) == ["a"]
    await process.after(1000)
    assert written(tmp_path) == ["a", "b"]


async def test_next_process_restores_objects_and_the_time_they_were_known(process: Process, tmp_path: Path) -> None:
    process.listed()
    process.hears(obj("a", 4, ip="10.0.0.1"), obj("b", 7))
    await process.after(2)
    await process.after(60)
    until = process.now
    again = Process(tmp_path)
    again.now = until + 3600
    assert again.checkpoint.exists
    assert await again.checkpoint.restore() == until, "nothing has changed since, and the API was there"
    assert again.hardware.get("default", "a") == obj("a", 4, ip="10.0.0.1")
    assert len(again.hardware) == 2
    assert not again.hardware.has_synced


async def test_known_time_stands_still_while_the_api_is_away(process: Process, tmp_path: Path) -> None:
    """Informers are asked in the event loop, whose clock says for how long: elsewhere that would end the edge."""
    process.listed()
    process.hears(obj("a"))
    await process.after(2)
    known = process.now
    process.loses_the_api()
    await process.after(3600)
    again = Process(tmp_path)
    again.now = process.now
    assert await again.checkpoint.restore() == known
    process.hears(obj("b"))
    await process.after(20)
    again = Process(tmp_path)
    again.now = process.now
    assert await again.checkpoint.restore() == process.now - 10, "written during an outage: the time before it"


async def test_full_disk_is_logged_once_and_retried(process, tmp_path, monkeypatch, caplog) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(checkpoint, "_SPARE_BYTES", 1 << 60)
    process.listed()
    process.hears(obj("a"))
    for _ in range(10):
        await process.after(300)
    said = [line for line in caplog.messages if "the checkpoint of hardware can't be written: less than" in line]
    assert len(said) == 1
    assert process.checkpoint.states["hardware"] == (0, True)
    monkeypatch.setattr(checkpoint, "_SPARE_BYTES", 0)
    await process.after(300)
    assert written(tmp_path) == ["a"]
    assert "the checkpoint of hardware is written again" in caplog.messages


@pytest.mark.looptime
async def test_disk_that_refuses_ends_nothing(process, tmp_path, monkeypatch, caplog) -> None:
    """Read-only for now, or broken: `run` would end the whole edge."""

    def refuse(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(checkpoint.private_files, "sweep", refuse)
    monkeypatch.setattr(checkpoint.private_files, "stream", refuse)
    process.listed()
    process.hears(obj("a"))
    process.now += 10
    running = asyncio.create_task(process.checkpoint.run())
    await elapse(5)
    assert "can't be written: Read-only file system" in caplog.text
    assert not running.done()
    running.cancel()
    monkeypatch.setattr(Path, "lstat", refuse)
    assert not process.checkpoint.exists


async def test_damaged_part_costs_that_part_alone(process, tmp_path, caplog) -> None:
    process.listed()
    process.hears(obj("a"))
    process.workflows.feed("MODIFIED", obj("runs"))
    process.open = [NamespacedName("default", "runs")]
    await process.after(2)
    (tmp_path / "checkpoint" / "workflows").write_bytes(b"junk")
    again = Process(tmp_path)
    assert await again.checkpoint.restore() is not None
    assert (len(again.hardware), len(again.workflows)) == (1, 0)
    assert "checkpoint/workflows is damaged" in caplog.text
    (tmp_path / "checkpoint" / "hardware").write_bytes(b"junk")
    assert await Process(tmp_path).checkpoint.restore() is None, "without Hardware there is nothing to serve"
