"""The store: writes, reads, cache, index of owners and history; its file, lock and log."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.support.virtual_time import turns
from tests.unit.kubeapi.apiserver.store.conftest import PODS, Open, OpenedStore, key, text
from tests.waiting import until
from tink.kubeapi import ApiServerError
from tink.kubeapi.apiserver.store import database, history, object_store
from tink.kubeapi.apiserver.store.objects import (
    Event,
    ExpiredError,
    MismatchError,
    ObjectCache,
    StorageError,
    StoredObject,
    Write,
)


async def test_write_that_expects_another_version_is_refused_with_the_actual_one(open_store: Open) -> None:
    d = await open_store()
    first = await d.put(key("a"))
    second = await d.put(key("a"))
    for expected, actual in ((0, second), (first, second)):
        with pytest.raises(MismatchError) as caught:
            await d.put(key("a"), expected=expected)
        assert caught.value.actual == actual
    with pytest.raises(MismatchError) as caught:
        await d.put(key("b"), expected=7)
    assert caught.value.actual == 0
    assert [(event.type, event.version) for event in d.events] == [("ADDED", first), ("MODIFIED", second)]


async def test_queued_writes_are_checked_one_after_the_other(open_store: Open) -> None:
    d = await open_store()
    outcomes = await asyncio.gather(*(d.put(key("a"), n, expected=0) for n in range(8)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [int] + [MismatchError] * 7
    found = await d.store.get(key("a"))
    assert orjson.loads(found.body)["value"] == 0


async def test_read_sees_every_write_that_was_answered(open_store: Open) -> None:
    """From memory, the file or a list: never anything older than the last answer."""
    d = await open_store(cache_bytes=3000)
    answered: dict[str, int] = {}
    done = False

    async def write(name: str) -> None:
        for _ in range(60):
            answered[name] = await d.put(key(name), "x" * 300)

    async def read(name: str) -> None:
        while not done:
            before = answered.get(name, 0)
            found = await d.store.get(key(name))
            assert (found.version if found else 0) >= before
            await asyncio.to_thread(os.sched_yield)  # so that the threads of the store get Python's lock

    async def read_all() -> None:
        while not done:
            before, newest = dict(answered), await d.store.current()
            page = await d.store.page(PODS, None)
            listed = {item.name: item.version for item in page.items}
            assert all(listed[name] >= version for name, version in before.items())
            assert page.version >= newest
            assert all(event.version <= d.events[-1].version for event in await d.store.since(PODS, None, newest))
            for name, version in listed.items():
                found = await d.store.get(key(name))
                assert found.version >= version
            await asyncio.to_thread(os.sched_yield)

    names = [f"n{number}" for number in range(12)]
    readers = [asyncio.create_task(task) for task in (*map(read, names), read_all())]
    await asyncio.gather(*map(write, names))
    done = True
    await asyncio.gather(*readers)


async def test_failing_commit_callback_does_not_stop_the_answers(open_store, caplog) -> None:
    def refuse(_: Event) -> None:
        raise RuntimeError("no")

    d = await open_store(on_commit=refuse)
    assert await d.put(key("a")) == 1
    assert await d.names() == ["a"]
    assert "change 1 could not be delivered" in caplog.text


async def test_failed_commit_changes_nothing_and_is_logged_once(open_store, monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO)
    d = await open_store(history=20)
    for number in range(21):
        await d.put(key("a"), number)

    def broken(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(history.StateWriter, "_trim", broken)
        for _ in range(2):
            outcomes = await asyncio.gather(*(d.put(key(name)) for name in "abc"), return_exceptions=True)
            assert [str(outcome) for outcome in outcomes] == [
                "the state could not be written: database or disk is full"
            ] * 3
    assert await d.names() == ["a"]
    assert len(d.events) == 21
    newest = await d.put(key("b"))
    await d.put(key("c"))
    assert [event.version for event in d.events][-3:] == [21, newest, newest + 1]
    logged = [record.message.partition(": ")[2] for record in caplog.records]
    assert logged == ["writes fail: database or disk is full", "writes are possible again"]


async def test_failed_commit_keeps_the_history_that_it_trimmed(open_store, monkeypatch, tmp_path) -> None:
    d = await open_store(history=20)
    drop = history.StateWriter._trim

    def broken(it: history.StateWriter, events: list[Event]) -> None:
        drop(it, events)
        raise sqlite3.OperationalError("disk I/O error")

    for number in range(40):
        await d.put(key("a"), number)
        with monkeypatch.context() as patch:
            patch.setattr(history.StateWriter, "_trim", broken)
            with pytest.raises(StorageError):
                await d.put(key("a"), "lost")
    oldest = await d.store.since(PODS, None, d.events[-20].version)
    assert [event.version for event in oldest] == [event.version for event in d.events[-19:]]
    await d.store.close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("SELECT count(*) FROM states").fetchone()[0] <= 24


async def test_read_that_is_faster_than_the_notice_of_a_commit_waits_for_it(open_store, monkeypatch) -> None:
    """Otherwise a client could list a change, and then read the older state from memory."""
    d = await open_store(cache_bytes=0)
    await d.put(key("a"), 1)
    commit, on_disk, tell = history.StateWriter.commit, threading.Event(), threading.Event()

    def slow(it: history.StateWriter, changes: list[Write]) -> Any:
        done = commit(it, changes)
        on_disk.set()
        tell.wait()
        return done

    monkeypatch.setattr(history.StateWriter, "commit", slow)
    write = asyncio.create_task(d.put(key("a"), 2, expected=1))
    await asyncio.to_thread(on_disk.wait)
    store = d.store
    reads = {
        asyncio.create_task(read)
        for read in (store.get(key("a")), store.page(PODS, None), store.since(PODS, None, 0), store.current())
    }
    for _ in range(50):  # turns of the loop and of the threads in which the reads are
        await asyncio.to_thread(os.sched_yield)
    assert not any(read.done() for read in reads)
    tell.set()
    await asyncio.gather(write, *reads)
    assert [event.version for event in d.events] == [1, 2]


async def _many(open_store: Open) -> OpenedStore:
    """Return a store of 200 objects of 2 kB that has read none of them yet."""
    d = await open_store(history=20)
    for number in range(200):
        await d.put(key(f"n{number:03}"), "x" * 2000)
    await d.store.close()
    return await open_store(cache_bytes=0, history=20)


async def test_page_that_is_damaged_meanwhile_is_an_error_for_its_readers_only(
    open_store: Open, tmp_path: Path
) -> None:
    d = await _many(open_store)
    path = tmp_path / "state.db"
    at = path.read_bytes().index(b'"resourceVersion":"150"') // 8192 * 8192
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 8192)
    with pytest.raises(StorageError, match="malformed"):
        await d.names()
    assert await d.store.get(key("n003")) is not None
    with pytest.raises(StorageError, match="malformed"):
        await d.store.get(key("n149"))
    await d.store.close()
    with pytest.raises(ApiServerError, match=r"state\.db: .*'When the state is damaged'"):
        await open_store()


async def test_read_error_is_reported_with_its_reason_and_ends_with_its_cause(open_store, tmp_path, caplog) -> None:
    d = await _many(open_store)
    path = tmp_path / "state.db"
    taken = {entry: int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.resolve() == path}
    kept = {number: os.dup(number) for number in taken.values()}
    # What pread(2) says of a descriptor that is for writing only is an input/output error for SQLite.
    blind = os.open(path, os.O_WRONLY)
    for number in kept:
        os.dup2(blind, number)
    asked = (
        d.names,
        lambda: d.store.get(key("n003")),
        lambda: d.store.since(PODS, None, 190),
        lambda: d.store.count(PODS, None, ("", ""), 195),
    )
    for ask in asked:
        with pytest.raises(StorageError, match="the state could not be read: disk I/O error"):
            await ask()
    for number, copy in kept.items():
        os.dup2(copy, number)
        os.close(copy)
    os.close(blind)
    assert {record.message.rpartition(": ")[2] for record in caplog.records} == {"disk I/O error"}
    for ask in asked:
        await ask()


async def test_close_finishes_queued_requests(open_store: Open) -> None:
    d = await open_store()
    writes = [asyncio.create_task(d.put(key(f"n{number}"), expected=0)) for number in range(20)]
    await turns()
    await d.store.close()
    assert sorted(await asyncio.gather(*writes)) == list(range(1, 21))
    with pytest.raises(StorageError, match="stopping"):
        await d.put(key("late"), expected=0)
    with pytest.raises(StorageError, match="stopping"):
        await d.store.page(PODS, None)
    d = await open_store()
    assert len(await d.names()) == 20


def test_read_overtaken_by_a_write_is_not_cached() -> None:
    cache = ObjectCache(10_000)
    old, new = StoredObject("default", "a", 1, b"old"), Event(2, key("a"), "MODIFIED", b"new", b"old")
    token = cache.begin_read(key("a"))
    cache.apply(new)
    second = cache.begin_read(key("a"))
    cache.end_read(key("a"), token, old)
    assert cache.get(key("a")) == StoredObject("default", "a", 2, b"new")
    cache.end_read(key("a"), second, StoredObject("default", "a", 2, b"new"))
    token = cache.begin_read(key("b"))
    cache.apply(Event(3, key("b"), "DELETED", b"last", b"before"))
    cache.end_read(key("b"), token, StoredObject("default", "b", 1, b"before"))
    assert cache.get(key("b")) is None


def test_cache_is_bounded_and_keeps_recently_used_objects() -> None:
    cache = ObjectCache(10_000)
    for number in range(100):
        cache.apply(Event(number, key(f"n{number}"), "ADDED", b"x" * 500, None))
        if number:
            assert cache.get(key("n0")) is not None
    held = [number for number in range(100) if key(f"n{number}") in cache]
    assert held == [0, *range(92, 100)] or held == [0, *range(91, 100)]
    cache.apply(Event(200, key("big"), "ADDED", b"x" * 20_000, None))
    assert key("big") not in cache


async def test_dependents_are_found_by_the_uid_of_their_owner(open_store: Open) -> None:
    d = await open_store()
    await d.put(key("a"), owners=("u1", "u2"))
    await d.put(key("b", resource="x/things"), owners=("u1",))
    await d.put(key("c"), value='"ownerReferences":[')
    await d.put(key("e"), value={"ownerReferences": [{"uid": "u1"}]})
    assert await d.store.dependents("u1") == [key("a"), key("b", resource="x/things")]
    await d.put(key("a"), owners=("u2", "u3"))
    assert [await d.store.dependents(uid) for uid in ("u1", "u2", "u3")] == [
        [key("b", resource="x/things")],
        [key("a")],
        [key("a")],
    ]
    await d.put(key("a"))
    await d.drop(key("b", resource="x/things"))
    assert await d.store.owned() == []


async def test_all_objects_with_owners_are_returned_in_pages(open_store: Open) -> None:
    d = await open_store()
    with pytest.raises(MismatchError):
        await d.put(key("a"), owners=("u1",), expected=5)
    assert await d.store.owned() == [], "a write that failed"
    for number in range(7):
        await d.put(key(f"n{number}"), owners=("u1", f"u{number % 3}"))
    found, after = [], None
    while part := await d.store.owned(after, 2):
        found += part
        after = part[-1]
    assert found == sorted(found)
    assert len(found) == 7 + 5
    assert {owned.key for owned in found if owned.uid == "u2"} == {key("n2"), key("n5")}


async def test_list_shows_an_older_version_as_it_was(open_store: Open) -> None:
    d = await open_store()
    for name in "acegx":
        await d.put(key(name), "old")
    await d.put(key("a", "other"), "old")
    then = await d.put(key("e"), "then")
    await d.put(key("a"), "new")
    await d.put(key("a"), "newer")
    await d.put(key("b"), "new")
    await d.put(key("b"), "newer")
    await d.drop(key("c"))
    await d.put(key("c"), "again")
    await d.drop(key("g"))
    await d.drop(key("x"))
    await d.put(key("ghost"))
    await d.drop(key("ghost"))

    async def state(version: int | None, namespace: str | None, limit: int) -> list[tuple[str, str, str]]:
        found, after = [], ("", "")
        while True:
            page = await d.store.page(PODS, namespace, after=after, limit=limit, version=version)
            found += [(item.namespace, item.name, orjson.loads(item.body)["value"]) for item in page.items]
            if not page.more:
                return found
            after = (page.items[-1].namespace, page.items[-1].name)

    was = [("default", name, "then" if name == "e" else "old") for name in "acegx"]
    for limit in (1, 2, 100):
        assert await state(then, "default", limit) == was
        assert await state(then, None, limit) == [*was, ("other", "a", "old")]
        assert await state(None, "default", limit) == [
            ("default", "a", "newer"),
            ("default", "b", "newer"),
            ("default", "c", "again"),
            ("default", "e", "then"),
        ]


async def test_page_ends_when_it_has_enough_bytes(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_PAGE_BYTES", 1000)
    d = await open_store()
    for name in "abcde":
        await d.put(key(name), "x" * 400)
    for after, names, more in ((("", ""), list("abc"), True), (("default", "c"), list("de"), False)):
        page = await d.store.page(PODS, None, after=after)
        assert ([item.name for item in page.items], page.more) == (names, more)
    assert [event.key.name for event in await d.store.since(PODS, None, 0)] == ["a", "b", "c"]


async def test_history_is_in_order_with_the_state_before(open_store: Open) -> None:
    d = await open_store()
    await d.put(key("a"), 1)
    middle = await d.put(key("a"), 2)
    await d.put(key("x", "other"))
    await d.put(key("y", resource="/secrets"))
    await d.drop(key("a"))
    assert await d.seen(0) == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "x"), ("DELETED", "a")]
    assert await d.seen(0, "other") == [("ADDED", "x")]
    events = await d.store.since(PODS, "default", middle - 1)
    assert [event.before and event.before["value"] for event in events] == [1, 2]
    assert events == [event for event in d.events if event.key == key("a")][1:]


async def test_history_stays_within_its_bounds_and_the_state_complete(open_store: Open, tmp_path: Path) -> None:
    d = await open_store(history=20)
    for name in "abc":
        await d.put(key(name))
    for number in range(60):
        newest = await d.put(key("a"), number)
    await d.drop(key("b"))
    for number in range(60):
        newest = await d.put(key("c"), number)
        await d.put(key("d"))
        newest = await d.drop(key("d"))
    with pytest.raises(ExpiredError) as caught:
        await d.store.since(PODS, None, 3)
    assert newest - 25 < caught.value.oldest < newest - 15
    with pytest.raises(ExpiredError):
        await d.store.page(PODS, None, version=caught.value.oldest - 1)
    assert (await d.names(caught.value.oldest))[:2] == ["a", "c"]
    assert len(await d.store.since(PODS, None, caught.value.oldest)) == newest - caught.value.oldest
    await d.store.close()
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:  # a state that no client can ask for is not kept
        assert db.execute("SELECT count(*) FROM states").fetchone()[0] <= 25
    again = await open_store(history=20)
    assert await again.names() == ["a", "c"]
    with pytest.raises(ExpiredError) as after:
        await again.store.since(PODS, None, caught.value.oldest - 1)
    assert after.value.oldest == caught.value.oldest


async def test_history_of_large_objects_is_bounded_in_bytes(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", 10_000)
    d = await open_store()
    for _ in range(20):
        newest = await d.put(key("a"), "x" * 1000)
    with pytest.raises(ExpiredError) as caught:
        await d.store.since(PODS, None, 0)
    assert newest - 10 <= caught.value.oldest < newest
    await d.put(key("a"), "x" * 20_000)  # larger than all of it: the newest change stays, versions go on from it
    await d.store.close()
    d = await open_store()
    assert await d.put(key("b")) == newest + 2


async def test_versions_are_never_assigned_twice_after_a_restart(open_store: Open) -> None:
    d = await open_store(history=1)
    await d.put(key("a"))
    last = await d.drop(key("a"))
    await d.store.close()
    d = await open_store(history=1)
    assert await d.store.current() == last
    assert await d.put(key("a")) == last + 1


# --- the file

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


async def test_file_of_the_first_layout_is_migrated_with_its_history(open_store, tmp_path, caplog) -> None:
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
    d = await open_store()
    assert await d.names() == ["a", "b", "z"]
    assert await d.store.dependents("u1") == [key("a")]
    assert await d.seen(10) == [("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "gone"), ("ADDED", "z")]
    events = await d.store.since(PODS, None, 10)
    assert [event.before and event.before["value"] for event in events] == ["long ago", "then", "long ago", None]
    assert await d.names(10) == ["a", "b", "gone"]
    assert await d.names(11) == ["a", "b", "gone"]
    with pytest.raises(ExpiredError):
        await d.store.since(PODS, None, 9)
    assert await d.put(key("b")) == 15
    await d.store.close()
    d = await open_store()
    assert await d.names(12) == ["a", "b", "gone"]
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["migrated from layout 1 to 3"]
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("PRAGMA page_size").fetchone() == (8192,)
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_refused_file_is_closed_and_can_be_opened_again(open_store: Open, tmp_path: Path) -> None:
    """The lock and the threads of a failed start are gone."""
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 99")
    for why in (
        "a newer release of tinkedge made it",
        "can't be used as state: .*tinkedge restore FILE .* --force'.*--salvage",
    ):
        before = path.read_bytes()
        with pytest.raises(ApiServerError, match=why):
            await open_store()
        assert path.read_bytes() == before
        path.write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        database.connect(path)
    assert path not in {link.resolve() for link in Path("/proc/self/fd").iterdir()}
    path.rename(tmp_path / "away")
    assert await (await open_store()).put(key("a")) == 1


async def test_a_file_that_was_closed_is_whole_without_its_log(tmp_path: Path) -> None:
    for number in range(60):
        path = tmp_path / f"{number}.db"
        d = OpenedStore(path)
        await d.store.open()
        await d.put(key("a"))
        await d.store.close()
        assert not path.with_name(f"{number}.db-wal").exists(), f"round {number}"


async def test_every_connection_flushes_what_it_commits(tmp_path: Path) -> None:
    """SQLite's default may be weaker; an answered write survives a power cut only with FULL."""
    with closing(database.connect(tmp_path / "state.db")) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_file_is_used_by_one_server_only(open_store: Open) -> None:
    d = await open_store()
    with pytest.raises(ApiServerError, match="another API server is using it"):
        await open_store()
    await d.store.close()
    await open_store()


async def test_lost_end_of_the_log_affects_nothing_else(open_store: Open, tmp_path: Path) -> None:
    """A power cut leaves an incomplete last frame: SQLite ignores it, and everything before it is intact."""
    d = await open_store(tmp_path / "state.db")
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
        cut_off = await open_store(copy / "state.db")
        found = await cut_off.store.get(key("a"))
        assert 15 <= int(orjson.loads(found.body)["value"]) < 20
        assert found.version == await cut_off.store.current()
        assert await cut_off.put(key("b")) == found.version + 1


async def test_log_stays_short_while_writes_never_cease_and_is_moved_into_the_file_beside_them(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "CHECKPOINT_BYTES", 100_000)
    monkeypatch.setattr(database, "MAX_WAL_BYTES", 2_000_000)
    d = await open_store()
    for number in range(60):
        await asyncio.gather(*(d.put(key(f"n{n}"), "x" * 10_000) for n in range(number, number + 30)))
    assert (tmp_path / "state.db-wal").stat().st_size < 5_000_000  # of 25 MB
    for number in range(100):
        await d.put(key(f"m{number}"), "x" * 10_000)
    await until(lambda: (tmp_path / "state.db").stat().st_size > 1_700_000)
