"""The measured memory of the caches is the memory that they count."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import orjson

from tink.kubeapi.apiserver.store.objects import Event, Key, ObjectCache
from tink.limits import shrink_to_fit

LONG = "x" * 1000


def taken(texts: Iterable[bytes]) -> float:
    """Bytes of memory for each byte of these texts, which are too long for Python's own arenas."""
    size = ctypes.CDLL(None).malloc_usable_size
    size.restype, size.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    long = [text for text in texts if len(text) > 600]
    assert long
    return sum(size(id(text)) for text in long) / sum(map(len, long))


def recent() -> list[bytes]:
    kept = ObjectCache(1 << 20)
    for number in range(20):
        key = Key("events", "default", str(number))
        kept.apply(Event(number, key, "ADDED", orjson.dumps({"message": LONG}), None))
    return [kept.get(Key("events", "default", str(number))).body for number in range(20)]


def test_cache_takes_no_more_memory_than_it_counts():
    assert taken(recent()) < 1.2


def test_exact_gives_the_same_bytes_in_their_own_memory():
    text = orjson.dumps({"message": LONG})
    assert shrink_to_fit(text) == text
    assert taken([shrink_to_fit(text)]) < 1.2
