"""Room: the least recently used goes first, what is in use never, and what can't fit is said at the start."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.artifacts import NoRoomError, Source, StorageError
from edge.artifacts.storage import room as room_module
from edge.artifacts.storage.eviction import FLOOR_BYTES, Occupant, Room, ShortageError, leaving

Fetch = Callable[..., Awaitable[tuple[Source, bytes]]]
Files = Callable[[], list[str]]

MIB = 1 << 20


def occupants(*sizes, held=()):
    return [Occupant(str(at), size, at in held) for at, size in enumerate(sizes)]


def test_oldest_go_first_and_no_more_than_needed():
    room = Room(budget=100, used=90, free=1000, disk=1000)
    assert leaving(occupants(30, 30, 30), 10, room) == []
    assert leaving(occupants(30, 30, 30), 11, room) == ["0"]
    assert leaving(occupants(30, 30, 30), 41, room) == ["0", "1"]


def test_what_is_in_use_stays():
    room = Room(budget=100, used=90, free=1000, disk=1000)
    assert leaving(occupants(30, 30, 30, held=(0,)), 20, room) == ["1"]
    with pytest.raises(ShortageError, match=r"no room for 80 bytes: the cache may hold 100 bytes \(see --cache-size\)"):
        leaving(occupants(30, 30, 30, held=(0,)), 80, room)


def test_file_larger_than_the_cache_says_so_and_throws_nothing_out():
    room = Room(budget=100, used=90, free=1000, disk=1000)
    with pytest.raises(ShortageError, match="101 bytes are more than the whole cache may hold, 100"):
        leaving(occupants(90), 101, room)


def test_disk_keeps_a_floor_without_any_budget():
    assert Room(budget=None, used=0, free=0, disk=1 << 50).floor == FLOOR_BYTES
    room = Room(budget=None, used=90, free=60, disk=1000)
    assert leaving(occupants(30, 60), 10, room) == []
    assert leaving(occupants(30, 60), 11, room) == ["0"]
    with pytest.raises(ShortageError, match="its disk has 60 bytes free, of which 50 are to stay free"):
        leaving(occupants(30, 60), 101, room)


def test_room_that_downloads_were_promised_is_not_given_twice():
    room = Room(budget=None, used=90, free=60, disk=1000, promised=8)
    assert leaving(occupants(30, 60), 2, room) == []
    assert leaving(occupants(30, 60), 3, room) == ["0"]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=8),
    st.integers(0, 120),
    st.one_of(st.none(), st.integers(0, 200)),
    st.integers(0, 100),
    st.integers(0, 30),
)
@settings(max_examples=300, deadline=None)
def test_after_eviction_there_is_room_or_nothing_was_touched(files, need, budget, free, promised):
    there = [Occupant(str(at), size, held) for at, (size, held) in enumerate(files)]
    room = Room(budget=budget, used=sum(each.size for each in there), free=free, disk=1000, promised=promised)

    def fits(gone):
        in_budget = budget is None or room.used - gone + need <= budget
        return in_budget and free + gone - promised - need >= room.floor

    may_go = [each for each in there if not each.held]
    try:
        names = leaving(there, need, room)
    except ShortageError:
        assert not fits(sum(each.size for each in may_go))
        return
    gone = [each for each in may_go if each.name in names]
    assert len(gone) == len(names)
    assert fits(sum(each.size for each in gone))
    if gone:
        assert not fits(sum(each.size for each in gone[:-1]))
        assert [each.name for each in may_go if each.size][: len(names)] == names


# --- in the cache ---


def url(upstream, name):
    return f"{upstream.url}-{name}"


async def sources(cache, upstream, names):
    """Of which of them a copy is here, without a question to the upstream."""
    return "".join(name for name in names if cache._store.get(url(upstream, name)) is not None)


async def test_least_recently_booted_makes_room(start_cache, upstream, fetch, files):
    cache = await start_cache(budget=3 * MIB)
    for name in "abc":
        await fetch(cache, url(upstream, name))
    await fetch(cache, url(upstream, "a"))
    await fetch(cache, url(upstream, "d"))
    assert await sources(cache, upstream, "abcd") == "acd"
    assert files() == [".blob", ".blob", ".blob", ".json", ".json", ".json"]
    assert (cache.counts.evictions, cache.stored_files, cache.stored_bytes) == (1, 3, 3 * MIB)
    assert await fetch(cache, url(upstream, "b")) == (Source.UPSTREAM, upstream.content)


async def test_use_is_remembered_over_a_restart(start_cache, upstream, fetch, clock, tmp_path):
    cache = await start_cache(budget=3 * MIB)
    for name in "abc":
        await fetch(cache, url(upstream, name))
        await asyncio.sleep(0.01)
    clock.now += 61
    await fetch(cache, url(upstream, "a"))
    cache = await start_cache(budget=3 * MIB)
    await fetch(cache, url(upstream, "d"))
    assert await sources(cache, upstream, "abcd") == "acd"


async def test_file_that_is_being_sent_is_not_evicted(start_cache, upstream, fetch):
    cache = await start_cache(budget=2 * MIB)
    await fetch(cache, url(upstream, "a"))
    with await cache.open(url(upstream, "a")), await cache.open(url(upstream, "a")) as twice:
        await fetch(cache, url(upstream, "b"))
        await fetch(cache, url(upstream, "c"))
        assert await sources(cache, upstream, "abc") == "ac"
        twice.close()
        twice.close()
        await fetch(cache, url(upstream, "d"))
        assert await sources(cache, upstream, "abcd") == "ad"
    await fetch(cache, url(upstream, "e"))
    await fetch(cache, url(upstream, "f"))
    assert await sources(cache, upstream, "adef") == "ef"


async def test_download_and_its_readers_are_not_evicted_and_the_next_is_told_why(start_cache, upstream, fetch, read):
    cache = await start_cache(budget=2 * MIB)
    upstream.gate.clear()
    first, second = [await cache.open(url(upstream, name)) for name in "ab"]
    with pytest.raises(NoRoomError, match=r"no room for 1048576 bytes: the cache may hold 2097152 bytes"):
        await cache.open(url(upstream, "c"))
    upstream.gate.set()
    assert await read(first) == await read(second) == upstream.content


async def test_kernel_larger_than_the_cache_is_refused_before_anything_goes(start_cache, upstream, fetch, files):
    cache = await start_cache(budget=MIB + 100)
    await fetch(cache, url(upstream, "a"))
    upstream.content += bytes(1000)
    with pytest.raises(NoRoomError, match=r"1049576 bytes are more than the whole cache may hold.*--cache-size"):
        await cache.open(url(upstream, "b"))
    assert files() == [".blob", ".json"]


async def test_length_that_the_upstream_did_not_say_is_bounded_too(start_cache, upstream, fetch, files, monkeypatch):
    monkeypatch.setattr(room_module, "STEP_BYTES", 100_000)
    cache = await start_cache(budget=MIB + 200_000)
    await fetch(cache, url(upstream, "a"))
    upstream.mode = "chunked"
    assert await fetch(cache, url(upstream, "b")) == (Source.CACHE, upstream.content)
    assert await sources(cache, upstream, "ab") == "b"
    upstream.content *= 2
    with pytest.raises(NoRoomError):
        await fetch(cache, url(upstream, "c"))
    assert files() == []
    assert cache._store.used == 0


async def test_smaller_budget_than_before_is_kept_from_the_start(start_cache, upstream, fetch):
    cache = await start_cache()
    for name in "abc":
        await fetch(cache, url(upstream, name))
        await asyncio.sleep(0.01)
    cache = await start_cache(budget=2 * MIB)
    assert await sources(cache, upstream, "abc") == "bc"


async def test_what_was_broken_off_counts_and_goes_first(start_cache, upstream, fetch, files):
    cache = await start_cache(budget=2 * MIB)
    await fetch(cache, url(upstream, "a"))
    upstream.answers = [upstream.breaks_after(300_000)]
    with pytest.raises(Exception, match="broke"):
        await fetch(cache, url(upstream, "b"))
    assert cache._store.used == 2 * MIB
    cache = await start_cache(budget=2 * MIB)
    assert cache._store.used == 2 * MIB
    await fetch(cache, url(upstream, "c"))
    assert await sources(cache, upstream, "ac") == "ac"
    assert files() == [".blob", ".blob", ".json", ".json"]


async def test_disk_that_is_full_at_the_start_of_a_download_gets_room(start_cache, upstream, fetch, monkeypatch):
    cache = await start_cache()
    await fetch(cache, url(upstream, "a"))
    refusals = [True]

    def allocate(fd, offset, size):
        if refusals:
            refusals.pop()
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    await fetch(cache, url(upstream, "b"))
    assert await sources(cache, upstream, "ab") == "b"
    refusals[:] = [True]
    with await cache.open(url(upstream, "b")), pytest.raises(NoRoomError):
        await cache.open(url(upstream, "c"))
    assert await sources(cache, upstream, "bc") == "b"
    refusals[:] = [True, True]
    with pytest.raises(NoRoomError, match="no room on the cache's disk for 1048576 bytes"):
        await cache.open(url(upstream, "c"))
    assert cache._store.used == 0


async def test_disk_that_fails_is_not_called_full(start_cache, upstream, fetch, monkeypatch):
    cache = await start_cache()

    def allocate(fd, offset, size):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    with pytest.raises(StorageError, match="can't be written to the cache: Input/output error"):
        await cache.open(upstream.url)


async def test_machine_that_maps_the_file_finds_its_whole_length(cache, upstream):
    upstream.gate.clear()
    with await cache.open(upstream.url) as artifact:
        assert os.fstat(artifact.fd).st_size == artifact.size == len(upstream.content)
        assert cache._store.room(None).promised == 0
    upstream.gate.set()


async def test_full_disk_does_not_hurt_the_downloads_that_have_their_room(
    start_cache, upstream, fetch, read, monkeypatch
):
    cache = await start_cache()
    upstream.gate.clear()
    first = await cache.open(url(upstream, "a"))
    monkeypatch.setattr(
        room_module.os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    )
    with pytest.raises(NoRoomError):
        await cache.open(url(upstream, "b"))
    upstream.gate.set()
    assert await read(first) == upstream.content
