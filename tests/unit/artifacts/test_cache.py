"""The artifact cache: one fetch for all, no partial file ever, and every trouble of an upstream in words."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edge.artifacts import (
    Artifact,
    ArtifactCache,
    BadUrlError,
    DirectoryInUseError,
    NotFoundError,
    Source,
    StorageError,
    UpstreamError,
    UpstreamTimeoutError,
)
from edge.artifacts.errors import shown
from tests.unit.artifacts.conftest import chunks
from tests.waiting import until

Fetch = Callable[..., Awaitable[tuple[Source, bytes]]]
Read = Callable[[Artifact], Awaitable[bytes]]
Files = Callable[[], list[str]]


async def test_second_machine_is_served_from_disk(cache, upstream, fetch):
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert await fetch(cache, upstream.url) == (Source.CACHE, upstream.content)
    assert len(upstream.requests) == 1


async def test_fifty_cold_machines_cost_one_fetch(cache, upstream, fetch):
    results = await asyncio.gather(*(fetch(cache, upstream.url) for _ in range(50)))
    assert all(content == upstream.content for _, content in results)
    assert len(upstream.requests) == 1


async def test_machine_gets_first_bytes_before_the_last_have_come(cache, upstream, read):
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


async def test_machine_that_leaves_does_not_stop_the_fetch_for_the_others(cache, upstream, fetch):
    upstream.mode = "chunked"  # all wait for the end
    upstream.gate.clear()
    first, second = (asyncio.create_task(fetch(cache, upstream.url)) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.sleep(0)
    upstream.gate.set()
    assert (await second)[1] == upstream.content
    assert first.cancelled()


async def test_machine_that_leaves_before_the_headers_leaves_the_question_to_the_others(cache, upstream, fetch):
    upstream.headers_gate.clear()
    first, second = (asyncio.create_task(fetch(cache, upstream.url)) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    await asyncio.sleep(0)
    upstream.headers_gate.set()
    assert (await second)[1] == upstream.content
    assert len(upstream.requests) == 1


async def test_length_unknown_to_the_upstream_is_known_to_the_machine(cache, upstream, read):
    upstream.mode = "chunked"
    artifact = await cache.open(upstream.url)
    assert artifact.size == len(upstream.content)
    assert await read(artifact) == upstream.content


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("404", NotFoundError, "404 Not Found"),
        ("410", NotFoundError, "410 Gone"),
        ("503", UpstreamError, "503 Service Unavailable"),
        ("403", UpstreamError, "403 Forbidden"),
        ("304", UpstreamError, "304 Not Modified"),
        ("silent", UpstreamTimeoutError, "no answer within 0.3 s"),
        ("empty", UpstreamError, "an empty file"),
        ("gzip", UpstreamError, "sent Content-Encoding gzip though identity was asked for"),
    ],
)
async def test_upstream_that_gives_no_file_is_named_with_the_reason(start_cache, upstream, mode, kind, reason, files):
    cache = await start_cache({"silence": 0.3} if mode == "silent" else None)
    upstream.mode = mode
    with pytest.raises(kind) as caught:
        await cache.open(upstream.url)
    assert str(caught.value) == f"{upstream.url}: {reason}"
    assert files() == []


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("dies", UpstreamError, r"connection broke after \d+ bytes"),
        ("stalls", UpstreamTimeoutError, "stopped sending after 524288 bytes"),
    ],
)
async def test_upstream_that_fails_midway_leaves_nothing_and_can_be_tried_again(
    start_cache, upstream, mode, kind, reason, fetch, files
):
    cache = await start_cache({"silence": 1.0} if mode == "stalls" else None)
    upstream.mode, upstream.etag = mode, ""  # nothing to go on from: there is no telling whether it is the same file
    with pytest.raises(kind, match=reason):
        await fetch(cache, upstream.url)
    assert files() == []
    upstream.mode = ""
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


async def test_refused_connection_and_unknown_host_are_told_apart(cache, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UpstreamError, match="no connection: Connection refused"):
        await cache.open(f"http://127.0.0.1:{port}/kernel")

    def unresolved(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    with pytest.raises(UpstreamError, match=r"host name kernel\.invalid can't be resolved"):
        await cache.open("http://kernel.invalid/kernel")


async def test_upstream_that_accepts_nobody_does_not_hang_the_boot(start_cache):
    cache = await start_cache({"connect": 0.5})
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(UpstreamTimeoutError, match="no connection"):
            await cache.open(f"http://127.0.0.1:{port}/kernel")


@pytest.mark.parametrize("url", ["ftp://h/k", "kernel", "http://", "http://[::1/k", "file://host/k", "file:k"])
async def test_url_that_cannot_be_fetched_is_the_osies_fault(cache, url):
    with pytest.raises(BadUrlError):
        await cache.open(url)


def test_secrets_of_a_url_are_not_shown():
    assert shown("http://user:secret@host:81/k?sig=secret") == "http://host:81/k?…"
    assert "secret" not in str(UpstreamError("http://user:secret@host/k?sig=secret", "down"))


# --- revalidation ---


async def test_unchanged_upstream_is_asked_but_not_fetched_again(cache, upstream, clock, fetch):
    await fetch(cache, upstream.url)
    clock.now += 11
    assert (await fetch(cache, upstream.url))[0] is Source.CACHE
    assert upstream.requests[1].headers["If-None-Match"] == '"v1"'
    assert (await fetch(cache, upstream.url))[0] is Source.CACHE
    assert len(upstream.requests) == 2


async def test_new_kernel_upstream_reaches_the_next_boot(cache, upstream, clock, tmp_path, fetch, read, files):
    old = await cache.open(upstream.url)
    await fetch(cache, upstream.url)
    reader = await cache.open(upstream.url)
    previous, upstream.content, upstream.etag = upstream.content, b"new" * 1000, '"v2"'
    clock.now += 11
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert await read(reader) == previous  # who had begun with the old one ends with it
    assert await read(old) == previous
    assert files() == [".blob", ".json"]


@pytest.mark.parametrize("mode", ["503", "silent", "empty"])
async def test_stored_kernel_boots_machines_while_the_upstream_is_down(start_cache, upstream, clock, mode, fetch):
    cache = await start_cache({"silence": 1.0} if mode == "silent" else None)
    await fetch(cache, upstream.url)
    clock.now += 11
    upstream.mode = mode
    assert await fetch(cache, upstream.url) == (Source.STALE, upstream.content)
    assert await fetch(cache, upstream.url) == (Source.STALE, upstream.content)
    assert len(upstream.requests) == 2  # the second machine does not wait for the dead upstream again


async def test_stored_kernel_is_served_after_the_new_one_broke_off(cache, upstream, clock, fetch):
    previous = upstream.content
    await fetch(cache, upstream.url)
    upstream.content, upstream.etag, upstream.mode = b"new" * 1000, '"v2"', "dies"
    clock.now += 11
    with pytest.raises(UpstreamError):
        await fetch(cache, upstream.url)
    assert await fetch(cache, upstream.url) == (Source.STALE, previous)


async def test_kernel_removed_upstream_is_not_booted_from_the_cache(cache, upstream, clock, fetch):
    await fetch(cache, upstream.url)
    clock.now += 11
    upstream.mode = "404"
    with pytest.raises(NotFoundError):
        await fetch(cache, upstream.url)


# --- restarts ---


async def test_restart_serves_what_was_whole(make_cache, upstream, fetch, read):
    first = make_cache()
    await first.start()
    await fetch(first, upstream.url)
    await first.stop()
    second = make_cache()
    await second.start()
    artifact = await second.open(upstream.url)
    assert (artifact.source, await read(artifact)) == (Source.CACHE, upstream.content)
    assert upstream.requests[1].headers["If-None-Match"] == '"v1"'
    await second.stop()


async def test_killed_in_mid_fill_serves_no_partial_file(make_cache, upstream, tmp_path, fetch, files):
    directory = tmp_path / "artifacts"
    first = make_cache()
    await first.start()
    await fetch(first, upstream.url)
    await first.stop()
    (blob,) = directory.glob("*.blob")
    # What a kill leaves: a download begun; one renamed whose entry was never written; an entry half written; and,
    # worst, a blob that the disk lost the end of.
    (directory / f"{'0' * 32}.aa.part").write_bytes(b"half")
    (directory / f"{'0' * 32}.bb.blob").write_bytes(b"whole, but nobody knows of what")
    (directory / f"{'0' * 32}.tmp").write_bytes(b"{")
    (directory / f"{'1' * 32}.json").write_bytes(b'{"url": "http')
    os.truncate(blob, 1000)
    second = make_cache()
    await second.start()
    assert files() == []
    assert await fetch(second, upstream.url) == (Source.UPSTREAM, upstream.content)
    await second.stop()


async def test_entry_that_points_elsewhere_is_not_followed(make_cache, upstream, tmp_path, fetch):
    first = make_cache()
    await first.start()
    await fetch(first, upstream.url)
    await first.stop()
    (entry,) = (tmp_path / "artifacts").glob("*.json")
    (blob,) = (tmp_path / "artifacts").glob("*.blob")
    (tmp_path / "secret").write_bytes(b"s" * len(upstream.content))
    entry.write_text(entry.read_text().replace(blob.name, "../secret"))
    second = make_cache()
    await second.start()
    assert await fetch(second, upstream.url) == (Source.UPSTREAM, upstream.content)
    await second.stop()


@pytest.mark.parametrize(("etag", "left"), [("", []), ('"v1"', [".journal", ".part"])])
async def test_stop_in_mid_fill_tells_the_reader_and_keeps_what_can_be_gone_on_with(
    cache, upstream, read, files, etag, left
):
    upstream.etag = etag
    upstream.gate.clear()
    artifact = await cache.open(upstream.url)
    reader = asyncio.create_task(read(artifact))
    await until(lambda: cache.downloads()[0].received == len(upstream.content) // 2)
    await cache.stop()
    with pytest.raises(UpstreamError, match="the edge is stopping"):
        await reader
    assert files() == left


async def test_two_processes_do_not_share_a_directory(cache, make_cache):
    with pytest.raises(DirectoryInUseError, match="another tinkedge process"):
        await make_cache().start()


async def test_blob_deleted_behind_our_back_is_fetched_anew(cache, upstream, tmp_path, fetch):
    await fetch(cache, upstream.url)
    for blob in (tmp_path / "artifacts").glob("*.blob"):
        blob.unlink()
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


async def test_full_disk_is_a_storage_error(cache, upstream, monkeypatch, tmp_path, fetch, files):
    def full(fd, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="No space left on device"):
        await fetch(cache, upstream.url)
    assert files() == []


async def test_no_descriptor_is_left_open(cache, upstream, fetch):
    await fetch(cache, upstream.url)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await fetch(cache, upstream.url)
    upstream.mode = "dies"
    with pytest.raises(UpstreamError):
        await fetch(cache, upstream.url + "2")
    # The upstream's idle connection may come or go.
    await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 1)


# --- local files ---


async def test_local_file_is_served_without_a_copy(cache, tmp_path, fetch, files):
    path = tmp_path / "a kernel"
    path.write_bytes(b"bzImage")
    assert await fetch(cache, path.as_uri()) == (Source.FILE, b"bzImage")
    assert files() == []


async def test_local_file_that_is_none_is_named(cache, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    with pytest.raises(NotFoundError, match="no such file on the edge's machine"):
        await cache.open((tmp_path / "missing").as_uri())
    (tmp_path / "directory").mkdir()
    for name in ("fifo", "empty", "directory"):
        with pytest.raises(BadUrlError, match=r"not a regular file|an empty file"):
            await cache.open((tmp_path / name).as_uri())
    with pytest.raises(StorageError):
        await cache.open("file:///bad%00name")


async def test_file_outside_of_the_root_is_never_served(cache, tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    for url in (
        "file:///etc/passwd",
        (tmp_path / "link").as_uri(),
        f"{tmp_path.as_uri()}/../../../../etc/passwd",
        f"{tmp_path.as_uri()}/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        f"{tmp_path.as_uri()}-other/kernel",
    ):
        with pytest.raises(BadUrlError, match="--osie-dir"):
            await cache.open(url)


async def test_without_a_root_no_file_is_served(tmp_path):
    (tmp_path / "kernel").write_bytes(b"bzImage")
    with pytest.raises(BadUrlError, match="--osie-dir"):
        await ArtifactCache(tmp_path / "artifacts").open((tmp_path / "kernel").as_uri())
