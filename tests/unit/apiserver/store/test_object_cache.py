"""The cache of objects alone: never older than what was answered, and bounded."""

from __future__ import annotations

from tests.unit.apiserver.store.conftest import key
from tink.apiserver.store import (
    Event,
    Stored,
)
from tink.apiserver.store.object_cache import ObjectCache


def test_read_that_a_write_overtook_is_not_kept() -> None:
    cache = ObjectCache(10_000)
    old, new = Stored("default", "a", 1, b"old"), Event(2, key("a"), "MODIFIED", b"new", b"old")
    token = cache.begin_read(key("a"))
    cache.apply(new)
    second = cache.begin_read(key("a"))
    cache.end_read(key("a"), token, old)
    assert cache.get(key("a")) == Stored("default", "a", 2, b"new")
    cache.end_read(key("a"), second, Stored("default", "a", 2, b"new"))
    token = cache.begin_read(key("b"))
    cache.apply(Event(3, key("b"), "DELETED", b"last", b"before"))
    cache.end_read(key("b"), token, Stored("default", "b", 1, b"before"))
    assert cache.get(key("b")) is None


def test_memory_is_bounded_and_keeps_what_is_asked_for() -> None:
    cache = ObjectCache(10_000)
    for number in range(100):
        cache.apply(Event(number, key(f"n{number}"), "ADDED", b"x" * 500, None))
        if number:
            assert cache.get(key("n0")) is not None
    held = [number for number in range(100) if key(f"n{number}") in cache]
    assert held == [0, *range(92, 100)] or held == [0, *range(91, 100)]
    cache.apply(Event(200, key("big"), "ADDED", b"x" * 20_000, None))
    assert key("big") not in cache
