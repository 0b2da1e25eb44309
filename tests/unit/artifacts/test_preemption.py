"""Many downloads at one time: who gives way, and that honest machines are served beside slow upstreams."""

import asyncio

import pytest
from aiohttp import web

from edge.artifacts import Source, UpstreamError
from edge.artifacts import cache as cache_module
from edge.artifacts.fetch.preemption import Candidate, preempted
from tests.unit.artifacts.conftest import chunks

MIB = 1 << 20


def who(*candidates):
    return preempted((number, Candidate(f"http://{host}/k", *rest)) for number, (host, *rest) in enumerate(candidates))


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ([], None),
        ([("a", 0, 0.0)], 0),
        # The upstream with the most of them, however fast they are; of these the slowest.
        ([("a", 0, 100.0), ("b", 900 * MIB, 9.0), ("b", 90 * MIB, 9.0)], 2),
        # One under many names.
        ([("a", 900 * MIB, 30.0), ("b", 60_000, 50.0), ("c", 40 * MIB, 60.0)], 1),
        # Who has begun just now has not been slow yet.
        ([("a", 0, 0.0), ("b", 60_000, 50.0)], 1),
        ([("a", 0, 0.1), ("b", 0, 3.0)], 1),
    ],
)
def test_slowest_of_the_busiest_upstream_gives_way(candidates, expected):
    assert who(*candidates) == expected


async def trickle(request):
    """Enough not to be called too slow."""
    response = web.StreamResponse()
    response.content_length = 10 * MIB
    await response.prepare(request)
    while True:
        await response.write(bytes(70_000))
        await asyncio.sleep(0.05)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(cache_module, "MAX_DOWNLOADS", 8)
    return 8


async def open_all(cache, urls):
    return await asyncio.gather(*(cache.open(url) for url in urls), return_exceptions=True)


async def test_slow_upstream_keeps_no_machine_from_another(cache, upstream, clock, few):
    """120, for an HTTP client has 100 connections unless it is told otherwise."""
    slow = [f"{upstream.url}-{number}" for number in range(120)]
    upstream.answers = [trickle] * few
    artifacts = await open_all(cache, slow[:few])
    clock.now += 5
    for url in slow[few:]:
        upstream.answers = [trickle]
        artifacts += await open_all(cache, [url])
        assert len(cache.downloads()) <= 2 * few
    async with asyncio.timeout(20):
        assert await fetch_one(cache, upstream.url.replace("127.0.0.1", "localhost")) == upstream.content
    with pytest.raises(UpstreamError, match="gave way to another download: it was slow, and"):
        await artifacts[0].filled(9 * MIB)
    for artifact in artifacts:
        artifact.close()


async def fetch_one(cache, url):
    with await cache.open(url) as artifact:
        assert artifact.source is Source.UPSTREAM
        return b"".join([chunk async for chunk in chunks(artifact)])


async def test_more_than_may_be_at_the_same_moment_are_asked_to_come_again(cache, upstream, few):
    upstream.headers_gate.clear()
    opening = asyncio.create_task(open_all(cache, [f"{upstream.url}-{number}" for number in range(20)]))
    await asyncio.sleep(0.2)
    upstream.headers_gate.set()
    found = await opening
    refused = [each for each in found if isinstance(each, UpstreamError)]
    assert len(refused) == 20 - few
    assert "8 other downloads are under way: try again" in str(refused[0])
    for artifact in found:
        if not isinstance(artifact, UpstreamError):
            artifact.close()


async def test_upstream_may_not_announce_or_send_more_than_any_machine_can_hold(
    start_cache, upstream, tmp_path, monkeypatch
):
    """What others have in the cache would be thrown out for it."""
    from edge.artifacts.storage import room

    monkeypatch.setattr(room, "MAX_FILE_BYTES", 6 * MIB)
    cache = await start_cache(budget=8 * MIB)
    stored = [f"{upstream.url}-{number}" for number in range(4)]
    for url in stored:
        assert await fetch_one(cache, url) == upstream.content
    while cache.downloads():
        await asyncio.sleep(0.001)
    upstream.content = bytes(7 * MIB)
    with pytest.raises(UpstreamError, match=f"it has {7 * MIB} bytes or more, and {6 * MIB} is the most that is kept"):
        await cache.open(f"{upstream.url}-announced")
    assert cache.stored_files == 4
    upstream.mode = "chunked"
    with pytest.raises(UpstreamError, match="is the most that is kept"):
        await cache.open(f"{upstream.url}-unannounced")
    assert list((tmp_path / "artifacts").glob("*.part")) == []
