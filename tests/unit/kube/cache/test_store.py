"""What informers keep objects in: the store, its archive, packed objects, and the index of values."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tink.api.v1alpha2 import Raw
from tink.kube.cache import Index, ObjectCompressor
from tink.kube.cache.archive import MAX_LENGTH, Archive
from tink.kube.cache.compression import strip
from tink.kube.cache.store import Store
from tink.kube.objects import NamespacedName

# --- the archive, beside a plain dictionary; and the store over it ---


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


def test_store_returns_archived_objects_as_the_format_keeps_them(obj: Callable[..., Raw]) -> None:
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


def test_object_that_enters_and_leaves_the_archive_is_stored_once(obj: Callable[..., Raw]) -> None:
    store, key = Store(archive_format=Short()), NamespacedName("d", "w")
    for version, old in enumerate([False, True, False, True], start=1):
        store.put(key, obj("w", version, old=old))
        found = store.get(key)
        assert found is not None
        assert (found.get("short", False), found["metadata"]["resourceVersion"]) == (old, str(version))
        assert (len(store), list(store.keys())) == (1, [key])
    store.delete(key)
    assert (len(store), store.get(key)) == (0, None)


# --- packed objects ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abäö.~", max_size=5), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text("abc", max_size=3), VALUES, max_size=5)


@given(st.lists(OBJECTS, min_size=1, max_size=5))
def test_packed_objects_are_unpacked_unchanged(objects: list[dict[str, Any]]) -> None:
    compressor = ObjectCompressor()
    packed = [compressor.compress(obj) for obj in objects]
    assert [compressor.decompress(one) for one in packed] == objects


def test_objects_that_resemble_the_first_take_few_bytes() -> None:
    compressor = ObjectCompressor()

    def machine(number: int) -> dict[str, Any]:
        return {"name": f"machine-{number}", "spec": {f"field-{i}": f"what all machines say {i}" for i in range(50)}}

    first = compressor.compress(machine(0))
    assert len(compressor.compress(machine(1))) < len(orjson.dumps(machine(1))) / 20
    assert len(first) < 100
    assert compressor.decompress(first) == machine(0)


def test_objects_larger_than_the_window_come_back() -> None:
    compressor = ObjectCompressor()
    large = [{"text": "".join(str(i * k) for i in range(30_000))} for k in (7, 11, 13)]
    assert [compressor.decompress(packed) for packed in [compressor.compress(obj) for obj in large]] == large


def test_an_object_packed_twice_in_a_row_has_one_copy() -> None:
    compressor, obj = ObjectCompressor(), {"a": 1}
    packed = compressor.compress(obj)
    assert compressor.compress(obj) is packed
    assert compressor.decompress(compressor.compress({"a": 2})) == {"a": 2}


def test_strip_leaves_the_annotations_of_others() -> None:
    last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    obj = {"metadata": {"managedFields": [], "annotations": last | {"a": "b"}}, "spec": {"managedFields": 1}}
    assert strip(obj) == {"metadata": {"annotations": {"a": "b"}}, "spec": {"managedFields": 1}}
    assert strip({"metadata": {"annotations": None}}) == {"metadata": {"annotations": None}}
    assert strip({"metadata": {"annotations": {}}}) == {"metadata": {"annotations": {}}}


# --- the index: which keys have a value ---


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 4)))))
def test_every_value_has_the_keys_that_have_it_now_and_no_others(steps: list[tuple[int, set[int]]]) -> None:
    index: Index[int, int] = Index()
    now: dict[int, set[int]] = {}
    for key, values in steps:
        assert index.set(key, values) == now.get(key, set()) - values
        now[key] = values
        for value in range(5):
            assert set(index.keys(value)) == {key for key, values in now.items() if value in values}
    assert len(index) == sum(1 for values in now.values() if values)
    for key in now:
        index.set(key, ())
    assert (index._keys, index._values) == ({}, {})


def test_keys_of_a_value_are_in_the_order_they_got_it() -> None:
    index: Index[str, str] = Index()
    for key in ("b", "a", "c"):
        index.set(key, ["v"])
    index.set("b", ["v", "w"])
    assert list(index.keys("v")) == ["b", "a", "c"]
