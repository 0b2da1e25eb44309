"""A cache whose directory somebody, or a disk, has damaged: no machine gets a wrong byte, and the edge starts."""

import json
import logging
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edge.artifacts import ArtifactError, Source, StorageError

Fetch = Callable[..., Awaitable[tuple[Source, bytes]]]


def blob(directory):
    return next(directory.glob("*.blob"))


def entry(directory):
    return next(directory.glob("*.json"))


def rewritten(directory, **changes):
    path = entry(directory)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flipped(directory):
    """One bit in the middle."""
    content = bytearray(blob(directory).read_bytes())
    content[len(content) // 2] ^= 4
    blob(directory).write_bytes(content)


def replaced_by(directory, make):
    path = blob(directory)
    path.unlink()
    make(path)


def linked(directory):
    """To a file of the host that happens to have the same length."""
    other = directory.parent / "other"
    other.write_bytes(bytes(blob(directory).stat().st_size))
    replaced_by(directory, lambda path: path.symlink_to(other))


DAMAGES = {
    "a bit flipped": flipped,
    "zeroed": lambda directory: blob(directory).write_bytes(bytes(blob(directory).stat().st_size)),
    "cut off": lambda directory: os.truncate(blob(directory), 100),
    "grown": lambda directory: os.truncate(blob(directory), 2 << 20),
    "empty": lambda directory: os.truncate(blob(directory), 0),
    "gone": lambda directory: blob(directory).unlink(),
    "a directory": lambda directory: replaced_by(directory, Path.mkdir),
    "a full directory": lambda directory: replaced_by(directory, lambda path: (path / "x").mkdir(parents=True)),
    "a pipe": lambda directory: replaced_by(directory, os.mkfifo),
    "a link": linked,
    "index of random bytes": lambda directory: entry(directory).write_bytes(random.Random(1).randbytes(300)),
    "index empty": lambda directory: entry(directory).write_bytes(b""),
    "index cut off": lambda directory: os.truncate(entry(directory), 40),
    "index twice": lambda directory: entry(directory).write_text(entry(directory).read_text() * 2),
    "index with another checksum": lambda directory: rewritten(directory, sha256="0" * 64),
    "index with no checksum": lambda directory: rewritten(directory, sha256="x"),
    "index with another size": lambda directory: rewritten(directory, size=7),
    "index of another URL": lambda directory: rewritten(directory, url="http://other/kernel"),
    "index that leads out": lambda directory: rewritten(directory, blob="../../../../etc/passwd"),
    "index of another type": lambda directory: rewritten(directory, size="7", blob=[1]),
    "index nested deeply": lambda directory: entry(directory).write_text("[" * 100_000),
    "index a directory": lambda directory: (entry(directory).unlink(), entry_directory(directory)),
    "index a pipe": lambda directory: os.mkfifo(directory / f"{'0' * 32}.json"),
    "foreign files": lambda directory: (directory / "lost+found").mkdir(),
    "foreign directories named like ours": lambda directory: (directory / "0.part" / "x").mkdir(parents=True),
    "link named like ours": lambda directory: (directory / "1.part").symlink_to("/etc/passwd"),
    "journal a directory": lambda directory: (directory / f"{'0' * 32}.1.journal").mkdir(),
    "unreadable": lambda directory: blob(directory).chmod(0),
}


def entry_directory(directory):
    (directory / f"{'1' * 32}.json" / "x").mkdir(parents=True)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
async def test_no_damage_reaches_a_machine_or_keeps_the_edge_from_serving(
    start_cache, upstream, fetch, tmp_path, clock, name, restarted
):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    if restarted:
        await cache.stop()
    DAMAGES[name](tmp_path / "artifacts")
    if restarted:
        cache = await start_cache()
    clock.now += 11
    in_place = name in ("a bit flipped", "zeroed") and not restarted
    if not in_place:  # what a process has found right is not read again for each machine
        assert (await fetch(cache, upstream.url))[1] == upstream.content
    second = await fetch(cache, f"{upstream.url}-2")
    assert second == (Source.UPSTREAM, upstream.content)


async def test_damage_is_said_with_what_becomes_of_it(start_cache, upstream, fetch, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    cache = await start_cache()
    await fetch(cache, upstream.url)
    flipped(tmp_path / "artifacts")
    cache = await start_cache()
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    said = [record.message for record in caplog.records if "damaged" in record.message]
    assert said == [f"artifact cache: the file of {upstream.url} was damaged on disk; it is fetched anew"]


async def test_damaged_file_is_not_served_though_the_upstream_is_away(start_cache, upstream, fetch, tmp_path):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    flipped(tmp_path / "artifacts")
    upstream.mode = "500"
    cache = await start_cache()
    with pytest.raises(ArtifactError, match="500"):
        await fetch(cache, upstream.url)


async def test_stored_file_is_read_once_after_a_start(start_cache, upstream, fetch, clock, monkeypatch):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    cache = await start_cache()
    from edge.artifacts import checksum

    hashed = []
    hash_file = checksum.hash_file
    monkeypatch.setattr(checksum, "hash_file", lambda fd, size: (hashed.append(size), hash_file(fd, size))[1])
    for _ in range(3):
        clock.now += 11
        assert (await fetch(cache, upstream.url))[0] is Source.CACHE
    assert hashed == [len(upstream.content)]


@pytest.mark.parametrize("what", ["file", "link"])
async def test_directory_that_goes_away_is_an_error_and_nothing_worse(
    start_cache, upstream, fetch, tmp_path, clock, what
):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    directory = tmp_path / "artifacts"
    directory.rename(tmp_path / "moved")
    if what == "file":
        directory.write_bytes(b"")
    else:
        directory.symlink_to("/proc/nothing")
    clock.now += 11
    for url in (upstream.url, f"{upstream.url}-2"):
        with pytest.raises(StorageError, match="can't be written to the cache"):
            await fetch(cache, url)
    directory.unlink()
    (tmp_path / "moved").rename(directory)
    assert (await fetch(cache, f"{upstream.url}-2"))[1] == upstream.content
