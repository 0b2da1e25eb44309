"""The index from owners to their dependents."""

from __future__ import annotations

import pytest

from tests.unit.apiserver.store.conftest import Open, key
from tink.apiserver.store import (
    MismatchError,
)


async def test_dependents_are_found_by_the_uid_of_their_owner(desk: Open) -> None:
    d = await desk()
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


async def test_everything_that_has_owners_is_given_piece_by_piece(desk: Open) -> None:
    d = await desk()
    for number in range(7):
        await d.put(key(f"n{number}"), owners=("u1", f"u{number % 3}"))
    found, after = [], None
    while part := await d.store.owned(after, 2):
        found += part
        after = part[-1]
    assert found == sorted(found)
    assert len(found) == 7 + 5
    assert {owned.key for owned in found if owned.uid == "u2"} == {key("n2"), key("n5")}


async def test_failed_write_leaves_no_owner_behind(desk: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    d = await desk()
    with pytest.raises(MismatchError):
        await d.put(key("a"), owners=("u1",), expected=5)
    assert await d.store.owned() == []
