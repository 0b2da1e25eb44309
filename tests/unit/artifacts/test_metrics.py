"""What operators see of the cache: counters that add up, progress of downloads, and no URL in any label."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from edge.artifacts import ChecksumError, Progress, Source, UpstreamError, cache_metrics
from tink.metrics.families import Scraped

Fetch = Callable[..., Awaitable[tuple[Source, bytes]]]


def scraped(cache):
    """Those that are not zero."""
    registry = CollectorRegistry()
    registry.register(Scraped(partial(cache_metrics, cache)))
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {
        name.removeprefix("tinkedge_artifact_"): float(value)
        for name, _, value in samples
        if float(value) and not name.partition("{")[0].endswith("_created")
    }


async def test_counters_tell_what_machines_and_upstream_cost(start_cache, upstream, fetch, clock):
    cache = await start_cache({"retries": 1})
    size = len(upstream.content)
    upstream.answers = [upstream.breaks_after(300_000)]
    await fetch(cache, upstream.url)
    await fetch(cache, upstream.url)
    clock.now += 11
    await fetch(cache, upstream.url)
    clock.now += 11
    upstream.mode = "503"
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
        "fetched_bytes_total": 2 * size,
        "stored_bytes": size,
        "stored_files": 1,
    }


async def test_download_shows_how_far_it_is_and_for_how_many_machines(cache, upstream):
    size = len(upstream.content)
    upstream.gate.clear()
    first = await cache.open(upstream.url)
    second = await cache.open(upstream.url)
    while (progress := cache.downloads()[0]).received < size // 2:
        await asyncio.sleep(0.001)
    assert progress == Progress(upstream.url, size // 2, size, 2)
    assert first.progress == progress
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
    while cache.downloads():
        await asyncio.sleep(0.001)
    with await cache.open(upstream.url) as third:
        assert third.progress is None


async def test_no_url_is_in_any_label(cache, upstream, fetch):
    await fetch(cache, upstream.url)
    registry = CollectorRegistry()
    registry.register(Scraped(partial(cache_metrics, cache)))
    assert "127.0.0.1" not in generate_latest(registry).decode()
