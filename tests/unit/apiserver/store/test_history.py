"""What older versions and watches can be read from: pages, history, its bounds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from tests.unit.apiserver.store.conftest import PODS, Open, key
from tink.apiserver.store import (
    ExpiredError,
    reader,
    writer,
)


async def test_list_shows_an_older_version_as_it_was(desk: Open) -> None:
    d = await desk()
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


async def test_page_ends_when_it_has_enough_bytes(desk: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PAGE_BYTES", 1000)
    d = await desk()
    for name in "abcde":
        await d.put(key(name), "x" * 400)
    page = await d.store.page(PODS, None)
    assert ([item.name for item in page.items], page.more) == (["a", "b", "c"], True)
    page = await d.store.page(PODS, None, after=("default", "c"))
    assert ([item.name for item in page.items], page.more) == (["d", "e"], False)
    assert [event.key.name for event in await d.store.since(PODS, None, 0)] == ["a", "b", "c"]


async def test_history_is_told_in_order_with_the_state_before(desk: Open) -> None:
    d = await desk()
    await d.put(key("a"), 1)
    middle = await d.put(key("a"), 2)
    await d.put(key("x", "other"))
    await d.put(key("y", resource="/secrets"))
    await d.drop(key("a"))
    assert await d.seen(0) == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "x"), ("DELETED", "a")]
    assert await d.seen(0, "other") == [("ADDED", "x")]
    told = await d.store.since(PODS, "default", middle - 1)
    assert [event.before and event.before["value"] for event in told] == [1, 2]
    assert told == [event for event in d.events if event.key == key("a")][1:]


async def test_history_stays_within_its_bounds_and_the_state_complete(desk: Open, tmp_path: Path) -> None:
    d = await desk(history=20)
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
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:  # what nobody can ask for is not kept
        assert db.execute("SELECT count(*) FROM states").fetchone()[0] <= 25
    again = await desk(history=20)
    assert await again.names() == ["a", "c"]
    with pytest.raises(ExpiredError) as after:
        await again.store.since(PODS, None, caught.value.oldest - 1)
    assert after.value.oldest == caught.value.oldest


async def test_history_of_large_objects_is_bounded_in_bytes(desk: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HISTORY_BYTES", 10_000)
    d = await desk()
    for _ in range(20):
        newest = await d.put(key("a"), "x" * 1000)
    with pytest.raises(ExpiredError) as caught:
        await d.store.since(PODS, None, 0)
    assert newest - 10 <= caught.value.oldest < newest
    await d.put(key("a"), "x" * 20_000)  # larger than all of it: the newest change stays, versions go on from it
    await d.store.close()
    d = await desk()
    assert await d.put(key("b")) == newest + 2


async def test_versions_are_never_given_twice_after_a_restart(desk: Open) -> None:
    d = await desk(history=1)
    await d.put(key("a"))
    last = await d.drop(key("a"))
    await d.store.close()
    d = await desk(history=1)
    assert await d.store.current() == last
    assert await d.put(key("a")) == last + 1
