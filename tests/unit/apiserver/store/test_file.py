"""The file of the state: older and foreign ones, its lock, its log and what ends up in it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from tests.unit.apiserver.store.conftest import PODS, Desk, Open, key, text
from tests.waiting import until
from tink.apiserver import ApiServerError
from tink.apiserver.store import (
    ExpiredError,
    checkpointer,
    database,
)

_LAYOUT_1 = """
CREATE TABLE objects (
  resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE history (
  version INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  type TEXT NOT NULL, body BLOB NOT NULL, prior BLOB
);
CREATE INDEX history_by_object ON history (resource, namespace, name, version);
PRAGMA user_version = 1;
"""


async def test_file_of_the_first_layout_is_taken_over_with_its_history(desk, tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO)
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_LAYOUT_1)
        for name, version, owners in (("a", 12, ("u1",)), ("b", 3, ()), ("z", 14, ())):
            row = (PODS, "default", name, version, text(version, "now", owners))
            db.execute("INSERT INTO objects VALUES (?, ?, ?, ?, ?)", row)
        for version, name, kind, prior in (
            (11, "a", "MODIFIED", 4),
            (12, "a", "MODIFIED", 11),
            (13, "gone", "DELETED", 5),
            (14, "z", "ADDED", 0),
        ):
            body = text(version, "now" if version != 11 else "then", ("u1",) if version == 12 else ())
            before = text(prior, "then" if prior == 11 else "long ago") if prior else None
            db.execute(
                "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", (version, PODS, "default", name, kind, body, before)
            )
    d = await desk()
    assert await d.names() == ["a", "b", "z"]
    assert await d.store.dependents("u1") == [key("a")]
    assert await d.seen(10) == [("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "gone"), ("ADDED", "z")]
    told = await d.store.since(PODS, None, 10)
    assert [event.before and event.before["value"] for event in told] == ["long ago", "then", "long ago", None]
    assert await d.names(10) == ["a", "b", "gone"]
    assert await d.names(11) == ["a", "b", "gone"]
    with pytest.raises(ExpiredError):
        await d.store.since(PODS, None, 9)
    assert await d.put(key("b")) == 15
    await d.store.close()
    d = await desk()
    assert await d.names(12) == ["a", "b", "gone"]
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["brought from layout 1 to 3"]
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("PRAGMA page_size").fetchone() == (8192,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_refused_file_is_kept_closed_and_can_be_tried_again(desk: Open, tmp_path: Path) -> None:
    """The lock and the threads of a failed start are gone."""
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 99")
    for why in ("a newer release of tinkedge made it", "cannot be used as state: .*move it away to begin anew"):
        before = path.read_bytes()
        with pytest.raises(ApiServerError, match=why):
            await desk()
        assert path.read_bytes() == before
        path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        database.connect(path)
    assert path not in {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    path.rename(tmp_path / "away")
    assert await (await desk()).put(key("a")) == 1


async def test_a_file_that_was_closed_is_whole_without_its_log(tmp_path: Path) -> None:
    for number in range(60):
        path = tmp_path / f"{number}.db"
        d = Desk(path)
        await d.store.open()
        await d.put(key("a"))
        await d.store.close()
        assert not path.with_name(f"{number}.db-wal").exists(), f"round {number}"


async def test_every_connection_flushes_what_it_commits(tmp_path: Path) -> None:
    """SQLite's own default may be less; a write that was answered survives a power cut only with FULL."""
    with closing(database.connect(tmp_path / "state.db")) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_file_is_used_by_one_server_only(desk: Open) -> None:
    d = await desk()
    with pytest.raises(ApiServerError, match="another API server is using it"):
        await desk()
    await d.store.close()
    await desk()


async def test_end_of_the_log_that_was_lost_takes_nothing_else_with_it(desk: Open, tmp_path: Path) -> None:
    """A power cut leaves an incomplete last frame: SQLite ignores it, what was before is whole."""
    d = await desk(tmp_path / "state.db")
    for number in range(20):
        await d.put(key("a"), f"{number}")
    for cut in (1, 24, 4000, 8192 + 24, 3 * 8192):
        copy = tmp_path / f"cut-{cut}"
        copy.mkdir()
        shutil.copy(tmp_path / "state.db", copy)
        log = (tmp_path / "state.db-wal").read_bytes()
        (copy / "state.db-wal").write_bytes(log[:-cut])
        with closing(sqlite3.connect(f"file:{copy}/state.db", uri=True)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        cut_off = await desk(copy / "state.db")
        found = await cut_off.store.get(key("a"))
        assert 15 <= int(orjson.loads(found.body)["value"]) < 20
        assert found.version == await cut_off.store.current()
        assert await cut_off.put(key("b")) == found.version + 1


async def test_log_stays_short_while_writes_never_cease_and_is_moved_into_the_file_beside_them(
    desk: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "CHECKPOINT_BYTES", 100_000)
    monkeypatch.setattr(database, "WAL_BYTES", 2_000_000)
    d = await desk()
    for number in range(60):
        await asyncio.gather(*(d.put(key(f"n{n}"), "x" * 10_000) for n in range(number, number + 30)))
    assert (tmp_path / "state.db-wal").stat().st_size < 5_000_000  # of 25 MB
    for number in range(100):
        await d.put(key(f"m{number}"), "x" * 10_000)
    await until(lambda: (tmp_path / "state.db").stat().st_size > 1_700_000)
