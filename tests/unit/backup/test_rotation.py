"""Backups in a directory: named by their time, and not more of them than are wanted."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from edge.cli import main
from edge.commands.state.rotation import name_at, too_many
from tests.unit.backup.conftest import Site

NOW = datetime(2026, 11, 25, 2, 30, tzinfo=timezone(timedelta(hours=3)))
MADE = name_at(NOW, encrypted=False)


def day(number: int) -> str:
    return name_at(datetime(2026, 11, number, tzinfo=UTC), encrypted=number % 2 == 0)


@pytest.mark.parametrize(("keep", "gone"), [(1, [20, 21, 22, 23]), (3, [20, 21]), (5, []), (99, [])])
def test_oldest_ones_go(keep: int, gone: list[int]) -> None:
    assert MADE == "tinkedge-20261124T233000Z.tgz", "whatever the zone of the host"
    assert name_at(NOW, encrypted=True) == f"{MADE}.age"
    names = [MADE, *map(day, (23, 20, 22, 21))]
    assert too_many(names, MADE, keep) == [day(number) for number in gone]
    others = ["notes", "tinkedge-2020-01-01.tgz", "tinkedge-20200101T000000Z.tgz.part", f".{day(20)}"]
    assert too_many([*names, *others], MADE, keep) == [day(number) for number in gone], "other files stay"
    future = ["tinkedge-20990101T000000Z.tgz", "tinkedge-20990102T000000Z.tgz"]
    assert too_many([MADE, day(23), *future], MADE, 2) == future, "those with a future time go first"
    assert too_many([MADE, *future], MADE, 2) == future[:1]


async def test_directory_gets_a_backup_of_its_own_name_and_the_newest_stay(site: Site, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    backups.mkdir()
    (backups / day(20)).write_bytes(b"")
    (backups / "notes").write_bytes(b"")
    words = ["backup", str(backups), "--data-dir", str(site.directory)]
    assert CliRunner().invoke(main, words).exit_code == 0
    assert (backups / day(20)).exists(), "nobody has said how many stay"
    done = CliRunner().invoke(main, [*words, "--keep", "1"])
    assert (done.exit_code, day(20) in done.stderr) == (0, True), done.output
    (made,) = {each.name for each in backups.iterdir()} - {"notes"}
    assert re.fullmatch(r"tinkedge-\d{8}T\d{6}Z\.tgz", made)
    refused = CliRunner().invoke(main, ["backup", str(tmp_path / "file"), "--keep", "1"])
    assert (refused.exit_code, "is no directory" in refused.output) == (2, True)
