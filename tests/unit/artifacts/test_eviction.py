"""Room: the least recently used file is evicted first, a file in use never, and a file that can't fit is refused."""

import asyncio
import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.artifacts import download as download_module
from edge.artifacts.artifact import NoRoomError, Source, StorageError, UpstreamError
from edge.artifacts.eviction import (
    FLOOR_BYTES,
    Occupant,
    Room,
    RoomClaim,
    ShortageError,
    download_to_end,
    files_to_evict,
)
from tests.unit.artifacts.conftest import MIB, fetch, for_ever, read
from tests.waiting import until

# --- room ---

BUDGET = Room(budget=100, used=90, free=1000, disk=1000)
DISK = Room(budget=None, used=90, free=60, disk=1000)
PROMISED = Room(budget=None, used=90, free=60, disk=1000, promised=8)


@pytest.mark.parametrize(
    ("room", "sizes", "held", "need", "expected"),
    [
        # The oldest go first, and no more than needed.
        (BUDGET, (30, 30, 30), "", 10, []),
        (BUDGET, (30, 30, 30), "", 11, ["0"]),
        (BUDGET, (30, 30, 30), "", 41, ["0", "1"]),
        # What is in use stays.
        (BUDGET, (30, 30, 30), "0", 20, ["1"]),
        (BUDGET, (30, 30, 30), "0", 80, r"no room for 80 bytes: the cache may hold 100 bytes \(see --cache-size\)"),
        # A file larger than the cache throws nothing out.
        (BUDGET, (90,), "", 101, "101 bytes are more than the whole cache may hold, 100"),
        # The disk keeps a floor without any budget.
        (DISK, (30, 60), "", 10, []),
        (DISK, (30, 60), "", 11, ["0"]),
        (DISK, (30, 60), "", 101, "its disk has 60 bytes free, of which 50 are to stay free"),
        # What downloads were promised is not given twice.
        (PROMISED, (30, 60), "", 2, []),
        (PROMISED, (30, 60), "", 3, ["0"]),
    ],
)
def test_oldest_files_are_evicted_until_there_is_room_or_the_reason_is_given(room, sizes, held, need, expected):
    there = [Occupant(str(at), size, str(at) in held) for at, size in enumerate(sizes)]
    if isinstance(expected, list):
        assert files_to_evict(there, need, room) == expected
        return
    with pytest.raises(ShortageError, match=expected):
        files_to_evict(there, need, room)


def test_floor_of_a_large_disk_is_bounded():
    assert Room(budget=None, used=0, free=0, disk=1 << 50).floor == FLOOR_BYTES


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

    def fits(evicted):
        gone = sum(each.size for each in evicted)
        in_budget = budget is None or room.used - gone + need <= budget
        return in_budget and free + gone - promised - need >= room.floor

    may_go = [each for each in there if not each.held]
    try:
        names = files_to_evict(there, need, room)
    except ShortageError:
        assert not fits(may_go)
        return
    gone = [each for each in may_go if each.name in names]
    assert len(gone) == len(names)
    assert fits(gone)
    if gone:
        assert not fits(gone[:-1])
        assert [each.name for each in may_go if each.size][: len(names)] == names


# --- an upstream's share ---


def claim(text):
    """`a 30`: of the host a, 30 bytes; with a question mark the size is not known."""
    host, size = text.removesuffix("?").split()
    return RoomClaim(f"http://{host}/file", int(size), not text.endswith("?"))


@pytest.mark.parametrize(
    ("claims", "wanted", "expected"),
    [
        # The cache has 100 bytes. One upstream holds more than half of them: its largest download gives way.
        (["a 20", "a 60", "a 20"], "b 10", 1),
        # One of unknown size goes first: it may have no end.
        (["a 20?", "a 60", "a 20"], "b 10", 0),
        # Within a half an upstream keeps what it has, and gets no more than that.
        (["a 50", "b 40"], "b 10", None),
        (["a 60", "b 40"], "b 10", 0),
        (["a 60", "b 40"], "b 11", None),
        # An upstream takes no room from itself.
        (["a 60", "a 40"], "a 10", None),
        # With more upstreams each is sure of an equal part.
        (["a 40", "b 40", "c 20"], "d 10", 0),
        (["a 40", "b 60", "c 0"], "d 10", 1),
        (["a 25", "b 25", "c 25", "d 25"], "e 20", 0),
        (["a 25", "b 25", "c 25", "d 25"], "e 21", None),
        # What has no size takes no room from what has one.
        (["a 60", "b 40"], "b 10?", None),
        (["a 60?", "a 40"], "b 10?", 0),
        ([], "b 10", None),
    ],
)
def test_upstream_above_its_share_gives_room_to_one_within_its_own(claims, wanted, expected):
    assert download_to_end(enumerate(map(claim, claims)), claim(wanted), 100) == expected


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60), st.booleans()), max_size=8),
    st.integers(1, 50),
)
@settings(max_examples=300, deadline=None)
def test_no_upstream_is_kept_below_its_share_by_downloads_of_others(claims, size):
    """Downloads end until a file that is within its upstream's share has room."""
    held = {index: RoomClaim(f"http://{host}/f", room, bounded) for index, (host, room, bounded) in enumerate(claims)}
    wanted, capacity = RoomClaim("http://new/f", size, True), 100
    while sum(each.size for each in held.values()) + size > capacity:
        hosts = {each.url for each in held.values() if each.size} | {wanted.url}
        share = capacity // max(2, len(hosts))
        index = download_to_end(held.items(), wanted, capacity)
        if index is None:
            assert size > share
            return
        assert sum(each.size for each in held.values() if each.url == held[index].url) > share
        del held[index]


# --- in the cache ---


@pytest.fixture
def url(upstream):
    return lambda name: f"{upstream.url}-{name}"


def names(cache):
    """Return the last letters of the URLs of all stored files."""
    return "".join(sorted(stored.url[-1] for stored in cache.stored()))


async def test_least_recently_booted_makes_room(start_cache, upstream, url, files):
    cache = await start_cache(budget=3 * MIB)
    for name in "abcad":
        await fetch(cache, url(name))
    assert names(cache) == "acd"
    assert files() == [".blob", ".blob", ".blob", ".json", ".json", ".json"]
    assert (cache.counts.evictions, len(cache.stored()), sum(each.size for each in cache.stored())) == (1, 3, 3 * MIB)
    assert await fetch(cache, url("b")) == (Source.UPSTREAM, upstream.content)


async def test_use_is_remembered_over_a_restart_and_a_smaller_budget_is_kept_from_the_start(
    start_cache, url, clock, directory
):
    cache = await start_cache(budget=3 * MIB)
    for used, name in enumerate("abc", 1):
        await fetch(cache, url(name))
        (blob,) = (stored.blob for stored in cache.stored() if stored.url == url(name))
        os.utime(directory / blob, (used, used))
    clock.now += 61
    await fetch(cache, url("a"))
    cache = await start_cache(budget=3 * MIB)
    await fetch(cache, url("d"))
    assert names(cache) == "acd"
    assert names(await start_cache(budget=2 * MIB)) == "ad"


async def test_file_that_is_being_sent_is_not_evicted(start_cache, url):
    cache = await start_cache(budget=2 * MIB)
    await fetch(cache, url("a"))
    with await cache.open(url("a")), await cache.open(url("a")) as twice:
        await fetch(cache, url("b"))
        await fetch(cache, url("c"))
        assert names(cache) == "ac"
        twice.close()
        twice.close()
        await fetch(cache, url("d"))
        assert names(cache) == "ad"
    await fetch(cache, url("e"))
    await fetch(cache, url("f"))
    assert names(cache) == "ef"


async def test_download_with_readers_is_not_evicted_and_the_next_download_gets_the_reason(start_cache, upstream, url):
    cache = await start_cache(budget=2 * MIB)
    upstream.gate.clear()
    first, second = [await cache.open(url(name)) for name in "ab"]
    with pytest.raises(NoRoomError, match=r"no room for 1048576 bytes: the cache may hold 2097152 bytes"):
        await cache.open(url("c"))
    upstream.gate.set()
    assert await read(first) == await read(second) == upstream.content


async def test_kernel_larger_than_the_cache_is_refused_whether_its_length_is_known_or_not(
    start_cache, upstream, url, files, monkeypatch
):
    monkeypatch.setattr(download_module, "STEP_BYTES", 100_000)
    cache = await start_cache(budget=MIB + 200_000)
    await fetch(cache, url("a"))
    kernel, upstream.content = upstream.content, upstream.content * 2
    with pytest.raises(NoRoomError, match=r"2097152 bytes are more than the whole cache may hold.*--cache-size"):
        await cache.open(url("b"))
    assert names(cache) == "a", "refused before anything goes"
    upstream.mode, upstream.content = "chunked", kernel
    assert await fetch(cache, url("b")) == (Source.CACHE, upstream.content)
    assert names(cache) == "b"
    upstream.content *= 2
    with pytest.raises(NoRoomError):
        await fetch(cache, url("c"))
    assert files() == []
    upstream.content = bytes(MIB + 200_000)  # all room is there again
    upstream.mode = ""
    assert (await fetch(cache, url("d")))[0] is Source.UPSTREAM


async def test_unfinished_downloads_count_and_are_evicted_first(start_cache, upstream, url, files):
    cache = await start_cache(budget=2 * MIB)
    await fetch(cache, url("a"))
    upstream.answers = [upstream.breaks_after(300_000)]
    with pytest.raises(UpstreamError, match="broke"):
        await fetch(cache, url("b"))
    assert files() == [".blob", ".journal", ".json", ".part"]
    cache = await start_cache(budget=2 * MIB)
    await fetch(cache, url("c"))
    assert names(cache) == "ac"
    assert files() == [".blob", ".blob", ".json", ".json"]


@pytest.fixture
def refusals(monkeypatch):
    """The errors that the disk gives for room that is asked for, one each."""
    errors, real = [], os.posix_fallocate

    def allocate(*args):
        if errors:
            raise OSError(errors.pop(0), "refused")
        real(*args)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    return errors


async def test_disk_that_is_full_at_the_start_of_a_download_gets_room_and_one_that_fails_is_named(
    cache, url, refusals, files
):
    await fetch(cache, url("a"))
    refusals[:] = [errno.ENOSPC]
    await fetch(cache, url("b"))
    assert names(cache) == "b"
    refusals[:] = [errno.ENOSPC]
    with await cache.open(url("b")), pytest.raises(NoRoomError):
        await cache.open(url("c"))
    assert names(cache) == "b"
    for errors, kind, message in (
        ([errno.EIO], StorageError, "can't be written to the cache: refused"),
        ([errno.ENOSPC] * 2, NoRoomError, "no room on the cache's disk for 1048576 bytes"),
    ):
        refusals[:] = errors
        with pytest.raises(kind, match=message):
            await cache.open(url("c"))
    assert files() == []


async def test_full_disk_does_not_hurt_the_downloads_that_have_their_room(cache, upstream, url, refusals):
    upstream.gate.clear()
    first = await cache.open(url("a"))
    assert os.fstat(first.fd).st_size == first.size == len(upstream.content), "a machine may map the file"
    assert os.fstat(first.fd).st_blocks * 512 >= first.size
    refusals[:] = [errno.ENOSPC] * 2
    with pytest.raises(NoRoomError):
        await cache.open(url("b"))
    upstream.gate.set()
    assert await read(first) == upstream.content


# --- several upstreams in a cache that is full of downloads ---


@pytest.fixture
def elsewhere(upstream):
    """URLs of another upstream, by name."""
    return lambda name: f"{upstream.url.replace('127.0.0.1', 'localhost')}-{name}"


async def test_upstream_with_more_than_half_of_the_cache_gives_room_to_another(start_cache, upstream, url, elsewhere):
    cache = await start_cache(budget=3 * MIB)
    upstream.gate.clear()
    busy = [await cache.open(url(name)) for name in "abc"]
    with await cache.open(elsewhere("d")) as honest:
        assert honest.source is Source.UPSTREAM
        with pytest.raises(NoRoomError, match="no room for 1048576 bytes"):
            await cache.open(elsewhere("e"))  # more than its half
        upstream.gate.set()
        assert await read(honest) == upstream.content
    ended = []
    for artifact in busy:
        try:
            assert await read(artifact) == upstream.content
        except UpstreamError as error:
            ended.append(error.reason)
    assert ended == [
        "gave way to files of other upstreams: 127.0.0.1 held more than its share of the cache, which may hold "
        "3145728 bytes (see --cache-size)"
    ]


async def test_files_without_an_end_keep_no_file_of_another_upstream_away(
    start_cache, upstream, url, elsewhere, monkeypatch, caplog
):
    monkeypatch.setattr(download_module, "STEP_BYTES", 100_000)
    sent = asyncio.Event()

    async def endless(request):
        response, _ = upstream.begin(request)
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(bytes(2_900_000))
        sent.set()
        await for_ever()
        return response

    cache = await start_cache(budget=3 * MIB)
    upstream.answers = [endless]
    waiting = asyncio.create_task(cache.open(url("endless")))
    await sent.wait()
    await until(lambda: any(one.received == 2_900_000 for one in cache.downloads()))
    for name in "ab":
        assert await fetch(cache, elsewhere(name)) == (Source.UPSTREAM, upstream.content)
    with pytest.raises(UpstreamError, match=r"gave way to files of other upstreams: 127\.0\.0\.1 held more"):
        await waiting
    assert caplog.text.count("gave way to files of other upstreams") == 1
