"""Records of objects that are history, beside a plain dictionary; and the store that keeps them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import orjson
import pytest

from tink.api.v1alpha2 import Raw
from tink.kube.cache.archive import MAX_LENGTH, Archive
from tink.kube.cache.store import Store
from tink.kube.objects import NamespacedName


def test_it_is_a_mapping_however_much_comes_and_goes() -> None:
    archive, plain, lot = Archive(), dict[bytes, bytes](), random.Random(7)
    for _ in range(20_000):
        key = str(lot.randrange(700)).encode()  # one key is the beginning of another
        if lot.random() < 0.6:
            value = lot.randbytes(lot.randrange(12)) + key
            archive.put(key, value)
            plain[key] = value
        else:
            assert archive.pop(key) == plain.pop(key, None)
        assert len(archive) == len(plain)
    assert dict(archive.items()) == plain
    assert all(archive.get(key) == value for key, value in plain.items())
    assert archive.get(b"another") is None


def test_it_takes_hardly_more_than_the_bytes() -> None:
    archive = Archive()
    for number in range(10_000):
        archive.put(f"default/w{number:05}".encode(), bytes(46))
    assert sum(map(sys.getsizeof, archive._blocks)) + sys.getsizeof(archive._blocks) < 10_000 * (14 + 46 + 20)


@pytest.mark.parametrize("key", [b"", bytes(MAX_LENGTH)])
def test_the_shortest_and_the_longest_fit(key: bytes) -> None:
    archive = Archive()
    archive.put(key, bytes(MAX_LENGTH))
    assert archive.pop(key) == bytes(MAX_LENGTH)
    with pytest.raises(OverflowError):
        archive.put(key, bytes(MAX_LENGTH + 1))
    assert len(archive) == 0


class Short:
    """Keeps the uid and the version of what is `old`."""

    def pack(self, obj: Raw) -> bytes | None:
        return orjson.dumps(obj["metadata"]) if obj.get("old") else None

    def unpack(self, key: NamespacedName, packed: bytes) -> Raw:
        metadata = orjson.loads(packed)
        assert (metadata["namespace"], metadata["name"]) == key
        return {"metadata": metadata, "short": True}


def test_a_store_gives_of_history_what_the_format_keeps(obj: Callable[..., Raw]) -> None:
    store = Store(archive_format=Short())
    new, old = NamespacedName("d", "new"), NamespacedName("d", "old")
    store.put(new, obj("new", 1, spec={"n": 1}))
    store.put(old, obj("old", 2, old=True, spec={"n": 2}))
    found = store.get(old)
    assert found is not None
    assert (found["short"], found["metadata"]["resourceVersion"]) == (True, "2")
    assert (len(store), set(store.keys())) == (2, {new, old})
    assert sorted((each["metadata"]["name"], each.get("short", False)) for each in store.list()) == [
        ("new", False),
        ("old", True),
    ]


def test_what_becomes_history_and_comes_back_is_there_once(obj: Callable[..., Raw]) -> None:
    store, key = Store(archive_format=Short()), NamespacedName("d", "w")
    for version, old in enumerate([False, True, False, True], start=1):
        store.put(key, obj("w", version, old=old))
        found = store.get(key)
        assert found is not None
        assert (found.get("short", False), found["metadata"]["resourceVersion"]) == (old, str(version))
        assert (len(store), list(store.keys())) == (1, [key])
    store.delete(key)
    assert (len(store), store.get(key)) == (0, None)
