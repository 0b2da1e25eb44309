"""A damaged state is refused with advice and kept unchanged; an intact one is served."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.kubeapi.apiserver.store.conftest import PODS, Open, OpenedStore, key
from tests.waiting import until
from tink.backup.restoration import Restored, salvage
from tink.kubeapi import ApiServerError
from tink.kubeapi.apiserver.store import database, object_store

COUNT = 60
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
DOCUMENT = Path(__file__).parents[5] / "docs" / "api.md"


@pytest.fixture
async def killed(tmp_path: Path, open_store: Open, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a killed server: 60 objects in the file, and changes of 20 of them in the log only."""
    directory = tmp_path / "running"
    directory.mkdir()
    d = await open_store(directory)
    for number in range(COUNT):
        await d.put(key(f"n{number:02}"), f"{number} " * 1000)
    await d.store.close()
    with monkeypatch.context() as patch:
        patch.setattr(object_store.Checkpointer, "run", lambda *_: None)  # nothing moves the log into the file
        d = await open_store(directory)
        for number in range(20):
            await d.put(key(f"n{number:02}"), "changed " * 500)
    return copied(directory, tmp_path / "killed")


def copied(directory: Path, to: Path) -> Path:
    shutil.copytree(directory, to, ignore=shutil.ignore_patterns("*.lock", "*-shm"))
    return to


def files(directory: Path) -> dict[str, bytes]:
    """Return the relevant files, without the index of the log, which SQLite rebuilds, and without an empty log."""
    found = {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix not in (".lock", ".db-shm")}
    return {name: content for name, content in found.items() if content}


def garble(path: Path, at: int, dice: random.Random, count: int = 200) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + count] = dice.randbytes(min(count, len(content) - at))
    path.write_bytes(content)


# --- files that are missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("left", ["state.db-wal", "state.newest"])
async def test_missing_file_beside_its_remains_is_refused_and_nothing_is_discarded(
    killed, open_store, left, empty
) -> None:
    for path in killed.iterdir():
        if path.name != left:
            path.unlink()
    if empty:
        (killed / "state.db").touch()
    before = files(killed)
    with pytest.raises(
        ApiServerError, match=rf"state\.db: it is {'empty' if empty else 'missing'}, but {left} is besi"
    ):
        await open_store(killed)
    assert files(killed) == before


@pytest.mark.parametrize("left", ["nothing", "an empty file", "an empty database"])
async def test_server_that_has_a_token_and_no_state_is_refused(start: Any, tmp_path: Path, left: str) -> None:
    """A copy of an earlier release's state.db without its log is an empty database."""
    server, _ = await start()
    await server.stop()
    for path in (tmp_path / "state").glob("state.*"):
        path.unlink()
    if left != "nothing":
        (tmp_path / "state" / "state.db").touch()
    if left == "an empty database":
        with closing(sqlite3.connect(tmp_path / "state" / "state.db")) as db:
            db.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(ApiServerError, match=r"token and ca\.key are beside it.*move token, ca\.key away"):
        await start()
    shutil.rmtree(tmp_path / "state" / "pki")
    (tmp_path / "state" / "token").unlink()
    await start()


async def test_killed_first_start_is_repaired_and_the_database_of_another_program_refused(
    open_store: Open, tmp_path: Path
) -> None:
    (tmp_path / "state.db").touch()
    await open_store(tmp_path)
    for name, statement in (("empty", "PRAGMA journal_mode = WAL"), ("other", "CREATE TABLE songs (name TEXT)")):
        (tmp_path / name).mkdir()
        with closing(sqlite3.connect(tmp_path / name / "state.db")) as db:
            db.execute(statement)
    await open_store(tmp_path / "empty")
    before = files(tmp_path / "other")
    with pytest.raises(ApiServerError, match=r"a database of another program \(with songs\)"):
        await open_store(tmp_path / "other")
    assert files(tmp_path / "other") == before


async def test_copy_of_the_file_alone_has_everything_some_seconds_after_a_write(
    open_store, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(object_store, "CHECKPOINT_SECONDS", 0.05)
    d = await open_store(tmp_path)
    for number in range(30):
        await d.put(key(f"n{number}"), "x")
    assert await _alone(open_store, d, tmp_path) == await d.contents()
    await d.put(key("late"), "y")
    assert await _alone(open_store, d, tmp_path) == await d.contents()


async def _alone(open_store: Open, d: OpenedStore, directory: Path) -> dict[str, bytes]:
    """Return the objects in a copy of the file alone, as soon as it has as many as the store."""
    numbers = itertools.count()

    async def whole_copy() -> Path | None:
        copy = directory / f"copy-{await d.store.current()}-{next(numbers)}"
        copy.mkdir()
        shutil.copy(directory / "state.db", copy)
        with suppress(sqlite3.DatabaseError):  # torn, where it was copied while a checkpoint was made
            with closing(sqlite3.connect(f"file:{copy}/state.db?immutable=1", uri=True)) as db:
                is_whole = db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                newest = db.execute("SELECT max(version) FROM states").fetchone()[0] if tables else 0
            return copy if is_whole and newest == await d.store.current() else None
        return None

    copy = await until(whole_copy, "the file alone never has everything", every=0.02)
    return await (await open_store(copy)).contents()


# --- the log -------------------------------------------------------------------------------------------------------


async def test_lost_log_is_refused_until_the_operator_accepts_what_is_left(killed: Path, open_store: Open) -> None:
    (killed / "state.db-wal").unlink()
    with pytest.raises(
        ApiServerError, match=r"ends at version 60, but writes up to 80 were answered.*remove state\.newe"
    ):
        await open_store(killed)
    (killed / "state.newest").unlink()
    d = await open_store(killed)
    assert len(await d.contents()) == COUNT
    assert await d.put(key("new"), "x") == COUNT + 1


async def test_restored_older_copy_is_detected(killed: Path, open_store: Open, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir()
    shutil.copy(killed / "state.db", older)
    d = await open_store(killed)
    await d.store.close()
    shutil.copy(older / "state.db", killed)
    with pytest.raises(ApiServerError, match="or it is an older copy"):
        await open_store(killed)
    assert len(await (await open_store(older)).contents()) == COUNT


async def test_damaged_log_is_refused_and_kept(killed: Path, open_store: Open, tmp_path: Path) -> None:
    dice = random.Random(7)
    whole = await (await open_store(copied(killed, tmp_path / "whole"))).contents()
    refused = 0
    for number in range(30):
        copy = copied(killed, tmp_path / f"garbled-{number}")
        wal = copy / "state.db-wal"
        garble(wal, dice.randrange(wal.stat().st_size - 200), dice)
        before = files(copy)
        try:
            d = await open_store(copy)
        except ApiServerError as error:
            assert "writes up to 80 were answered" in str(error)  # noqa: PT017 - where nothing is lost it may start
            assert files(copy) == before
            refused += 1
        else:
            assert await d.contents() == whole
    assert refused >= 25


async def test_damaged_high_water_mark_is_logged_and_replaced(killed, open_store, caplog) -> None:
    (killed / "state.newest").write_bytes(b"\xff" * 40)
    d = await open_store(killed)
    assert [record.levelname for record in caplog.records if "it cannot be checked whether" in record.message] == [
        "ERROR"
    ]
    assert await d.put(key("n00"), "again") == 81
    assert b" 00000000000000000081 " in (killed / "state.newest").read_bytes()


async def test_high_water_mark_is_written_before_the_answer_and_its_failure_is_harmless(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = await open_store(tmp_path)
    for number in range(5):
        version = await d.put(key("a"), f"{number}")
        assert b" %020d " % version in (tmp_path / "state.newest").read_bytes()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        await d.put(key("a"), "more")
    assert b" %020d " % version in (tmp_path / "state.newest").read_bytes()


# --- garbled bytes in the file -------------------------------------------------------------------------------------


async def test_random_bytes_in_the_file_are_refused_or_change_nothing(
    killed: Path, open_store: Open, tmp_path: Path
) -> None:
    dice = random.Random(11)
    d = await open_store(killed)
    whole = await d.contents()
    history = await d.store.since(PODS, None, 0)
    await d.store.close()
    refused = 0
    for number in range(60):
        copy = copied(killed, tmp_path / f"garbled-{number}")
        garble(copy / "state.db", dice.randrange((copy / "state.db").stat().st_size - 200), dice)
        before = files(copy)
        try:
            d = await open_store(copy)
        except ApiServerError as error:
            assert "state.db: " in str(error)  # noqa: PT017 - where nothing is lost it may start
            assert files(copy) == before
            refused += 1
        else:
            assert await d.contents() == whole
            assert await d.store.since(PODS, None, 0) == history
            await d.store.close()
    assert refused > 20


async def test_damaged_text_is_named_and_the_documented_repair_works(killed: Path, open_store: Open) -> None:
    d = await open_store(killed)
    await d.store.close()
    content = (killed / "state.db").read_bytes()
    at = content.index(b"33 33 33 33")
    (killed / "state.db").write_bytes(content[:at] + b"34" + content[at + 2 :])
    with pytest.raises(ApiServerError, match=r"text of /pods default/n33, version 34, does not have its checksum\. No"):
        await open_store(killed)
    assert salvaged(killed).lost == ["/pods default/n33"]
    found = await (await open_store(killed)).contents()
    assert len(found) == COUNT - 1
    assert "n33" not in found


async def test_object_without_its_state_is_named(killed: Path, open_store: Open) -> None:
    with closing(sqlite3.connect(killed / "state.db", isolation_level=None)) as db:
        db.execute("UPDATE objects SET version = 12 WHERE name = 'n40'")
    with pytest.raises(ApiServerError, match="the stored text of /pods default/n40 is missing"):
        await open_store(killed)


async def test_damaged_index_of_owners_is_refused_and_rebuilt_as_documented(open_store: Open, tmp_path: Path) -> None:
    d = await open_store(tmp_path)
    for name, owners in (("a", ("u1",)), ("b", ("u2",)), ("c", ())):
        await d.put(key(name, ""), owners=owners)
    await d.store.close()
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as db:
        db.execute("UPDATE owners SET uid = 'u?' WHERE name = 'b'")
    with pytest.raises(ApiServerError, match="index of owners contradicts /pods /b"):
        await open_store(tmp_path)
    assert salvaged(tmp_path).lost == []
    d = await open_store(tmp_path)
    assert [await d.store.dependents(uid) for uid in ("u1", "u2")] == [[key("a", "")], [key("b", "")]]
    assert len(await d.store.owned()) == 2


async def test_file_of_the_second_layout_gets_checksums_unless_it_is_damaged(killed, open_store, tmp_path) -> None:
    whole = await (await open_store(copied(killed, tmp_path / "whole"))).contents()
    (killed / "state.newest").unlink()
    with closing(sqlite3.connect(killed / "state.db", isolation_level=None)) as db:
        db.execute("ALTER TABLE states DROP COLUMN sum")
        db.execute("PRAGMA user_version = 2")
    bad = copied(killed, tmp_path / "bad")
    with closing(sqlite3.connect(bad / "state.db", isolation_level=None)) as db:
        db.execute("UPDATE states SET body = CAST('{\"metadata\": ' AS BLOB) WHERE version = 30")
    with pytest.raises(ApiServerError, match="default/n29, version 30, is no JSON"):
        await open_store(bad)
    d = await open_store(killed)
    assert await d.contents() == whole
    await d.store.close()
    with closing(sqlite3.connect(killed / "state.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (database.SCHEMA_VERSION,)
        rows = db.execute("SELECT version, prior, type, resource, namespace, name, body, sum FROM states").fetchall()
    assert len(rows) == 80
    assert all(database.row_checksum(*row[:7]) == row[7] for row in rows)


async def test_file_that_is_malformed_can_be_recovered_as_documented(
    killed: Path, open_store: Open, tmp_path: Path
) -> None:
    d = await open_store(killed)
    whole = await d.contents()
    await d.store.close()
    content = (killed / "state.db").read_bytes()
    page = content.index(b"40 40 40 40") // 8192 * 8192
    (killed / "state.db").write_bytes(content[:page] + b"\xff" * 8192 + content[page + 8192 :])
    with pytest.raises(ApiServerError, match="'When the state is damaged'"):
        await open_store(killed)
    made = salvaged(killed)
    assert 1 <= len(made.lost) <= 4
    found = await (await open_store(killed)).contents()
    assert sorted([*found, *(name.rpartition("/")[2] for name in made.lost)]) == sorted(whole)
    assert all(orjson.loads(found[name])["value"] == orjson.loads(whole[name])["value"] for name in found)


def salvaged(directory: Path) -> Restored:
    """Run `tinkedge restore --salvage DIR --data-dir DIR --force`, as documented."""
    assert "tinkedge restore --salvage /var/lib/tinkedge --data-dir /var/lib/tinkedge --force" in DOCUMENT.read_text()
    return salvage(directory, directory, now=datetime.now(UTC), force=True)
