"""What machines did is known after a restart: the journey in files, whatever killed the edge or broke the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edge.journey.archive import DIRECTORY, Archive
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.journey.records import read

MAC = "52:54:00:00:00:01"
OTHER = "52:54:00:00:00:02"


class Run:
    """One run of an edge after the other, with a clock that a test moves."""

    def __init__(self, data_dir: Path, clock: Any, **bounds: int) -> None:
        self.clock = clock
        clock.now += 10
        self.journey = Journey(clock, began=clock.now)
        self.archive = Archive(self.journey, data_dir, clock, **bounds)

    async def step(self, message: str, mac: str = MAC, **detail: str | int) -> None:
        self.clock.now += 1
        self.journey.record(mac, Step.DHCP, Outcome.OK, message, **detail)
        self.clock.now += 1
        await self.archive.write()

    def told(self, mac: str = MAC) -> list[str]:
        return [event.message for event in self.journey.events(mac)]


async def restarted(data_dir: Path, clock: Any, **bounds: int) -> Run:
    run = Run(data_dir, clock, **bounds)
    await run.archive.restore()
    return run


async def test_after_a_restart_the_journey_goes_on_where_it_was(tmp_path: Path, clock: Any) -> None:
    first = Run(tmp_path, clock)
    await first.step("one", stage="iPXE", size_bytes=7)
    await first.step("two")
    await first.step("of another", OTHER)
    second = await restarted(tmp_path, clock)
    await second.step("three")
    third = await restarted(tmp_path, clock)
    assert third.told() == ["one", "two", "three"]
    assert third.told(OTHER) == ["of another"]
    assert third.journey.events(MAC)[:3] == [*first.journey.events(MAC), *second.journey.events(MAC)[2:]]
    assert third.journey.last_seen(MAC) == second.journey.last_seen(MAC)


async def test_what_an_earlier_run_saw_is_no_ground_for_a_diagnosis(tmp_path: Path, clock: Any) -> None:
    first = Run(tmp_path, clock)
    await first.step("one")
    second = Run(tmp_path, clock)
    asker = second.journey.changes()
    await second.archive.restore()
    assert asker.take() == set()
    await second.step("two")
    assert [event.message for event in second.journey.newest(MAC, 10)] == ["two"]
    assert [event.message for event in second.journey.newest(MAC, 10, earlier=True)] == ["one", "two"]
    assert sum(second.journey.counts().values()) == 1


async def test_files_are_for_their_owner_alone(tmp_path: Path, clock: Any) -> None:
    mask = os.umask(0)
    try:
        await Run(tmp_path, clock).step("one")
    finally:
        os.umask(mask)
    directory = tmp_path / DIRECTORY
    assert (directory.stat().st_mode & 0o777, (directory / "events").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("cut", [1, 5, 20, 40])
async def test_a_piece_that_was_cut_off_by_a_crash_costs_that_piece_alone(tmp_path: Path, clock: Any, cut: int) -> None:
    first = Run(tmp_path, clock)
    await first.step("one")
    await first.step("two")
    file = tmp_path / DIRECTORY / "events"
    os.truncate(file, file.stat().st_size - cut)
    second = await restarted(tmp_path, clock)
    assert second.told() == ["one"]
    await second.step("three")
    assert (await restarted(tmp_path, clock)).told() == ["one", "three"]


async def test_a_damaged_file_is_passed_over_and_said(
    tmp_path: Path, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = Run(tmp_path, clock)
    await first.step("one")
    file = tmp_path / DIRECTORY / "events"
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)
    assert (await restarted(tmp_path, clock)).told() == []
    assert "is damaged" in caplog.text
    file.write_bytes(b"something else")
    second = await restarted(tmp_path, clock)
    assert "another release" in caplog.text
    await second.step("two")
    assert (await restarted(tmp_path, clock)).told() == ["two"]


async def test_a_link_to_elsewhere_is_not_followed(tmp_path: Path, clock: Any) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / DIRECTORY / "events").symlink_to(tmp_path / "elsewhere")
    run = await restarted(tmp_path, clock)
    await run.step("one")
    assert (tmp_path / "elsewhere").read_text() == "precious"


async def test_what_is_kept_is_bounded_and_the_newest(tmp_path: Path, clock: Any) -> None:
    run = Run(tmp_path, clock, max_bytes=2000)
    for number in range(200):
        await run.step(f"{number} {os.urandom(20).hex()}")
    files = {file.name: file.stat().st_size for file in (tmp_path / DIRECTORY).iterdir()}
    assert set(files) <= {"events", "before"}
    assert max(files.values()) < 2300
    told = (await restarted(tmp_path, clock)).told()
    assert told == run.told()[-len(told) :]
    assert len(told) > 10


async def test_a_disk_that_cannot_be_written_is_said_once_and_serves_on(
    tmp_path: Path, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / DIRECTORY).write_text("no directory")
    run = Run(tmp_path, clock)
    await run.step("one")
    await run.step("two")
    assert caplog.text.count("is not kept for the next start") == 1
    assert run.told() == ["one", "two"]


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"time": 1},
        [1, MAC, "dhcp", "ok", "message"],
        ["now", MAC, "dhcp", "ok", "message", {}],
        [float("nan"), MAC, "dhcp", "ok", "message", {}],
        [1, "no mac", "dhcp", "ok", "message", {}],
        [1, MAC, "elsewhere", "ok", "message", {}],
        [1, MAC, ["dhcp"], "ok", "message", {}],
        [1, MAC, "dhcp", "ok", 7, {}],
        [1, MAC, "dhcp", "ok", "message", []],
    ],
)
def test_what_is_no_event_is_none(found: object) -> None:
    assert read(found) is None


def test_an_event_of_somebody_else_is_as_bounded_as_ours() -> None:
    detail = {"text": "x" * 10_000, "a b": 1, "list": [1], "none": None, "great": 2**80, "fine": 1.5}
    found = read(
        [1, MAC, "dhcp", "ok", "line\nbreak \x1b[31m" + "x" * 10_000, detail | {f"n{n}": n for n in range(99)}]
    )
    assert found is not None
    note = found[2]
    assert len(note.message) == 500
    assert "\n" not in note.message
    assert "\x1b" not in note.message
    assert len(note.detail) == 40
    assert {"a b", "list", "none", "great"}.isdisjoint(note.detail)
    assert len(str(note.detail["text"])) == 4000
