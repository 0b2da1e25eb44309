"""The artifact cache: one fetch for all, no partial file ever, and what is kept is asked about again in time."""

import asyncio
import os
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from edge.artifacts.artifact import (
    ArtifactError,
    ChecksumError,
    DownloadProgress,
    NotFoundError,
    Source,
    StorageError,
    UpstreamError,
)
from edge.artifacts.cache import MAX_FAILED_FETCHES, cache_metrics
from edge.artifacts.eviction import Candidate, download_to_preempt
from edge.artifacts.store import DirectoryInUseError
from tests.unit.artifacts.conftest import MIB, chunks, fetch, for_ever, read
from tests.waiting import until
from tink.metrics.families import Scraped


async def test_fifty_cold_machines_cost_one_fetch_and_the_next_none(cache, upstream):
    results = await asyncio.gather(*(fetch(cache, upstream.url) for _ in range(50)))
    assert results == [(Source.UPSTREAM, upstream.content)] * 50
    assert await fetch(cache, upstream.url) == (Source.CACHE, upstream.content)
    assert len(upstream.requests) == 1


async def test_machine_gets_first_bytes_before_the_last_have_come(cache, upstream):
    upstream.gate.clear()
    artifact = await cache.open(upstream.url)
    half = len(upstream.content) // 2
    assert artifact.size == len(upstream.content)
    coming = chunks(artifact)
    received = b""
    while len(received) < half:
        received += await anext(coming)
    assert received == upstream.content[:half]
    late = await cache.open(upstream.url)
    upstream.gate.set()
    assert received + b"".join([chunk async for chunk in coming]) == upstream.content
    artifact.close()
    assert await read(late) == upstream.content
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("before", ["headers", "end"])
async def test_machine_that_leaves_does_not_stop_the_fetch_for_the_others(cache, upstream, before):
    upstream.mode = "chunked"  # all wait for the end
    gate = upstream.headers_gate if before == "headers" else upstream.gate
    gate.clear()
    first, second = (asyncio.create_task(cache.open(upstream.url)) for _ in range(2))
    await until(lambda: upstream.requests)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    gate.set()
    artifact = await second
    assert artifact.size == len(upstream.content), "the machine knows the length though the upstream did not say it"
    assert await read(artifact) == upstream.content
    assert first.cancelled()
    assert len(upstream.requests) == 1


async def test_no_descriptor_is_left_open(cache, upstream):
    await fetch(cache, upstream.url)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await fetch(cache, upstream.url)
    upstream.mode = "dies"
    with pytest.raises(UpstreamError):
        await fetch(cache, upstream.url + "2")
    # The upstream's idle connection may come or go.
    await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 1)


async def test_full_disk_is_a_storage_error(cache, upstream, monkeypatch, files):
    def full(fd, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="No space left on device"):
        await fetch(cache, upstream.url)
    assert files() == []


# --- revalidation ---


async def test_unchanged_upstream_is_asked_but_not_fetched_again(cache, upstream, clock):
    await fetch(cache, upstream.url)
    clock.now += 11
    for _ in range(2):
        assert (await fetch(cache, upstream.url))[0] is Source.CACHE
        assert len(upstream.requests) == 2
    assert upstream.requests[1].headers["If-None-Match"] == '"v1"'


async def test_new_kernel_upstream_reaches_the_next_boot(cache, upstream, clock, files):
    old = await cache.open(upstream.url)
    await fetch(cache, upstream.url)
    reader = await cache.open(upstream.url)
    previous, upstream.content, upstream.etag = upstream.content, b"new" * 1000, '"v2"'
    clock.now += 11
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert [await read(each) for each in (reader, old)] == [previous] * 2  # who had begun with the old one ends with it
    assert files() == [".blob", ".json"]


@pytest.mark.parametrize("mode", ["503", "silent", "empty", "page"])
async def test_stored_kernel_boots_machines_while_the_upstream_is_down(start_cache, upstream, mode):
    await fetch(await start_cache(), upstream.url)
    cache = await start_cache({"silence": 0.05} if mode == "silent" else None)
    kernel, upstream.mode = upstream.content, mode
    if mode == "page":
        upstream.kind, upstream.content, upstream.etag = "text/html", b"<html>maintenance</html>", ""
    for _ in range(2):
        assert await fetch(cache, upstream.url) == (Source.STALE, kernel)
    assert len(upstream.requests) == 2  # the second machine does not wait for the dead upstream again


async def test_machine_does_not_wait_long_for_a_hanging_upstream_when_there_is_a_file(start_cache, upstream, clock):
    cache = await start_cache({"patience": 0.1})
    await fetch(cache, upstream.url)
    clock.now += 11
    upstream.headers_gate.clear()
    with await cache.open(upstream.url) as artifact:
        assert artifact.source is Source.STALE
    upstream.headers_gate.set()
    while (await fetch(cache, upstream.url))[0] is not Source.CACHE:
        pass  # the upstream has not answered yet
    assert len(upstream.requests) == 2


async def test_stored_kernel_is_served_after_the_new_one_broke_off_but_not_when_it_was_removed(cache, upstream, clock):
    previous = upstream.content
    await fetch(cache, upstream.url)
    upstream.content, upstream.etag, upstream.mode = b"new" * 1000, '"v2"', "dies"
    clock.now += 11
    with pytest.raises(UpstreamError):
        await fetch(cache, upstream.url)
    assert await fetch(cache, upstream.url) == (Source.STALE, previous)
    clock.now += 11
    upstream.mode = "404"
    with pytest.raises(NotFoundError):
        await fetch(cache, upstream.url)


# --- restarts ---


async def test_killed_in_mid_fill_serves_no_partial_file(start_cache, upstream, directory, files):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    await cache.stop()
    (blob,) = directory.glob("*.blob")
    # What a kill leaves: a download begun; one renamed whose entry was never written; an entry half written; and,
    # worst, a blob that the disk lost the end of.
    (directory / f"{'0' * 32}.aa.part").write_bytes(b"half")
    (directory / f"{'0' * 32}.bb.blob").write_bytes(b"whole, but nobody knows of what")
    (directory / f"{'0' * 32}.tmp").write_bytes(b"{")
    (directory / f"{'1' * 32}.json").write_bytes(b'{"url": "http')
    os.truncate(blob, 1000)
    cache = await start_cache()
    assert files() == []
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


@pytest.mark.parametrize(("etag", "left"), [("", []), ('"v1"', [".journal", ".part"])])
async def test_stop_during_a_download_fails_its_readers_and_keeps_resumable_bytes(cache, upstream, files, etag, left):
    upstream.etag = etag
    upstream.gate.clear()
    reader = asyncio.create_task(read(await cache.open(upstream.url)))
    await until(lambda: cache.downloads()[0].received == len(upstream.content) // 2)
    await cache.stop()
    with pytest.raises(UpstreamError, match="the edge is stopping"):
        await reader
    assert files() == left


async def test_two_processes_do_not_share_a_directory(cache, make_cache):
    with pytest.raises(DirectoryInUseError, match="another tinkedge process"):
        await make_cache().start()


# --- many downloads at one time ---


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
    numbered = enumerate(Candidate(f"http://{host}/k", *rest) for host, *rest in candidates)
    assert download_to_preempt(numbered) == expected


FEW = 8


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("edge.artifacts.cache.MAX_DOWNLOADS", FEW)


async def open_all(cache, urls):
    return await asyncio.gather(*(cache.open(url) for url in urls), return_exceptions=True)


async def test_slow_upstream_keeps_no_machine_from_another(few, cache, upstream, clock):
    """120, for an HTTP client has 100 connections by default."""

    async def slow(request):
        response, _ = await upstream.begun(request, 10 * MIB)
        await response.write(bytes(70_000))
        await for_ever()

    upstream.answers = [slow] * 120
    urls = [f"{upstream.url}-{number}" for number in range(120)]
    artifacts = await open_all(cache, urls[:FEW])
    clock.now += 5
    for url in urls[FEW:]:
        artifacts += await open_all(cache, [url])
        await until(lambda: len(cache.downloads()) <= 2 * FEW)
    other = upstream.url.replace("127.0.0.1", "localhost")
    with await cache.open(other) as artifact:
        assert artifact.source is Source.UPSTREAM
        assert b"".join([chunk async for chunk in chunks(artifact)]) == upstream.content
    with pytest.raises(UpstreamError, match="gave way to another download: it was slow, and"):
        await artifacts[0].filled(9 * MIB)
    for artifact in artifacts:
        artifact.close()


async def test_more_than_may_be_at_the_same_moment_are_asked_to_come_again(few, cache, upstream):
    upstream.headers_gate.clear()
    opening = asyncio.create_task(open_all(cache, [f"{upstream.url}-{number}" for number in range(20)]))
    await until(lambda: len(upstream.requests) == FEW)
    upstream.headers_gate.set()
    found = await opening
    refused = [each for each in found if isinstance(each, UpstreamError)]
    assert len(refused) == 20 - FEW
    assert "8 other downloads are under way: try again" in str(refused[0])
    for artifact in found:
        if artifact not in refused:
            artifact.close()


# --- what operators see ---


def scraped(cache):
    """Those that are not zero; no label has a URL in it."""
    registry = CollectorRegistry()
    registry.register(Scraped(partial(cache_metrics, cache)))
    text = generate_latest(registry).decode()
    assert "127.0.0.1" not in text
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {
        name.removeprefix("tinkedge_artifact_"): float(value)
        for name, _, value in samples
        if float(value) and not name.partition("{")[0].endswith("_created")
    }


async def test_counters_count_opens_downloads_and_bytes(start_cache, upstream, clock):
    cache = await start_cache({"retries": 1})
    upstream.answers = [upstream.breaks_after(300_000)]
    for seconds, mode in ((0, ""), (0, ""), (11, ""), (11, "503")):
        clock.now += seconds
        upstream.mode = mode
        await fetch(cache, upstream.url)
    with pytest.raises(UpstreamError):
        await cache.open(upstream.url + "2")
    upstream.mode = ""
    with pytest.raises(ChecksumError):
        await fetch(cache, upstream.url, "0" * 64)
    assert scraped(cache) == {
        'opens_total{source="upstream"}': 2,
        'opens_total{source="cache"}': 2,
        'opens_total{source="stale_cache"}': 1,
        'failures_total{kind="upstream"}': 2,
        'failures_total{kind="checksum"}': 1,
        "downloads_total": 2,
        "resumptions_total": 1,
        "revalidations_total": 1,
        "fetched_bytes_total": 2 * len(upstream.content),
        "stored_bytes": len(upstream.content),
        "stored_files": 1,
    }


async def test_download_shows_how_far_it_is_and_for_how_many_machines(cache, upstream):
    size = len(upstream.content)
    upstream.gate.clear()
    first, second = [await cache.open(upstream.url) for _ in range(2)]
    await until(lambda: cache.downloads()[0].received == size // 2)
    assert cache.downloads() == [DownloadProgress(upstream.url, size // 2, size, 2)]
    assert first.progress == cache.downloads()[0]
    assert scraped(cache) == {
        'opens_total{source="upstream"}': 2,
        "downloads_total": 1,
        "fetched_bytes_total": size // 2,
        "downloads_in_progress": 1,
        "downloads_received_bytes": size // 2,
        "downloads_expected_bytes": size,
        "machines_waiting": 2,
    }
    first.close()
    assert cache.downloads()[0].waiting == 1
    second.close()
    upstream.gate.set()
    await until(lambda: not cache.downloads())
    with await cache.open(upstream.url) as third:
        assert third.progress is None


async def test_failed_fetch_is_listed_by_its_url_until_it_succeeds(start_cache, upstream, clock):
    at = 1_700_000_000.0
    cache = await start_cache(wall_clock=lambda: at)
    upstream.mode = "empty"
    for times in (1, 2):
        with pytest.raises(ArtifactError):
            await cache.open(upstream.url)
        (failed,) = cache.failed_fetches()
        assert (failed.url, failed.at, failed.times) == (upstream.url, at, times)
        assert failed.reason
        clock.now += 60
    upstream.mode = ""
    await fetch(cache, upstream.url)
    assert cache.failed_fetches() == []


async def test_failed_fetches_are_bounded_and_the_newest_comes_first(cache):
    for number in range(MAX_FAILED_FETCHES + 20):
        with pytest.raises(ArtifactError):
            await cache.open(f"file:///nowhere/{number}")
    failed = cache.failed_fetches()
    assert len(failed) == MAX_FAILED_FETCHES
    assert failed[0].url.endswith(f"/{MAX_FAILED_FETCHES + 19}")
