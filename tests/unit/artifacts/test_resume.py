"""Downloads that break off: gone on with by Range, or by comparing, never by gluing two versions together."""

import json
import os

import pytest
from aiohttp import web

from edge.artifacts import flight
from edge.artifacts.artifact import NotFoundError, Source, UpstreamError, UpstreamTimeoutError
from edge.artifacts.download import Download
from edge.artifacts.upstream import strong_validator
from tests.unit.artifacts.conftest import fetch, for_ever
from tests.waiting import until

THIRD = 300_000


def ranges(upstream):
    return [request.headers.get("Range", "") for request in upstream.requests]


# --- within one life ---


@pytest.mark.parametrize(
    ("has_ranges", "etag", "asked", "sent"),
    [
        (True, '"v1"', [f"bytes={THIRD}-", f"bytes={2 * THIRD}-"], 0),
        (False, '"v1"', [f"bytes={THIRD}-", f"bytes={THIRD}-"], 2 * THIRD),
        (True, "", ["", ""], 2 * THIRD),
        (True, 'W/"v1"', ["", ""], 2 * THIRD),
    ],
    ids=["ranges", "no ranges", "no validator", "weak validator"],
)
async def test_machine_does_not_notice_that_the_upstream_broke_off_and_sends_the_rest_or_all_again(
    start_cache, upstream, has_ranges, etag, asked, sent
):
    cache = await start_cache({"retries": 2})
    upstream.ranges, upstream.etag = has_ranges, etag
    upstream.answers = [upstream.breaks_after(THIRD)] * 2
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert ranges(upstream) == ["", *asked]
    assert upstream.sent == sent + len(upstream.content)
    assert (cache.counts.resumptions, cache.counts.downloads) == (0 if sent else 2, 1)
    assert (await fetch(cache, upstream.url))[1] == upstream.content


@pytest.mark.parametrize("position", [0, THIRD - 1])
async def test_two_versions_are_never_glued_together(start_cache, upstream, files, position):
    cache = await start_cache({"retries": 2})
    changed = bytearray(upstream.content)
    changed[position] ^= 1
    upstream.answers = [upstream.breaks_after(THIRD), upstream.changes_to(bytes(changed))]
    with pytest.raises(UpstreamError, match="became another file"):
        await fetch(cache, upstream.url)
    assert files() == []
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, bytes(changed))


async def test_new_version_that_begins_the_same_is_taken_whole(start_cache, upstream):
    cache, changed = await start_cache({"retries": 2}), upstream.content[:-1] + b"?"
    changing = upstream.changes_to(changed, then=upstream.breaks_after(2 * THIRD))
    upstream.answers = [upstream.breaks_after(THIRD), changing]
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, changed)
    assert upstream.requests[2].headers["If-Range"] == '"v2"'


async def test_new_version_of_another_length_or_none_is_not_waited_for(start_cache, upstream):
    cache = await start_cache({"retries": 2})
    upstream.answers = [upstream.breaks_after(THIRD), upstream.changes_to(upstream.content + b"more")]
    with pytest.raises(UpstreamError, match="has 1048580 bytes now; it had 1048576"):
        await fetch(cache, upstream.url)

    async def gone(_request):
        return web.Response(status=404)

    upstream.answers = [upstream.breaks_after(THIRD), gone]
    with pytest.raises(NotFoundError):
        await fetch(cache, upstream.url)


async def test_attempts_without_progress_end_and_received_bytes_are_kept(start_cache, upstream, files):
    cache = await start_cache({"retries": 3})
    upstream.answers = [upstream.breaks_after(THIRD)] + [upstream.breaks_after(0)] * 3
    with pytest.raises(UpstreamError, match="connection broke after 0 bytes"):
        await fetch(cache, upstream.url)
    assert len(upstream.requests) == 4
    assert files() == [".journal", ".part"]
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert upstream.sent == len(upstream.content)
    assert files() == [".blob", ".json"]


async def test_upstream_that_brings_something_each_time_is_asked_on_and_on(start_cache, upstream, monkeypatch):
    monkeypatch.setattr(flight, "PROGRESS_BYTES", 100_000)
    cache = await start_cache({"retries": 1})
    upstream.answers = [upstream.breaks_after(100_000)] * 8
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


async def test_download_has_an_end_however_often_it_goes_on(start_cache, upstream, clock, monkeypatch):
    monkeypatch.setattr(flight, "PROGRESS_BYTES", 1)
    cache = await start_cache({"retries": 1, "total": 100.0})

    async def crumb(request):
        clock.now += 30
        return await upstream.breaks_after(10)(request)

    upstream.answers = [crumb] * 20
    with pytest.raises(UpstreamError):
        await fetch(cache, upstream.url)
    assert len(upstream.requests) == 4


async def test_connection_that_breaks_after_the_last_byte_is_no_failure(cache, upstream):
    async def all_of_it(request):
        response, body = await upstream.begun(request)
        await response.write(body)
        await until(lambda: [one.received for one in cache.downloads()] == [len(body)])
        request.transport.close()
        return response

    upstream.answers = [all_of_it]
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert (await fetch(cache, upstream.url))[0] is Source.CACHE


async def test_stalled_upstream_is_left_and_asked_again(start_cache, upstream):
    cache = await start_cache({"retries": 1, "silence": 0.5})

    async def stall(request):
        response, body = await upstream.begun(request)
        await upstream.write(response, body[:THIRD])
        await for_ever()

    upstream.answers = [stall]
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


async def test_trickling_upstream_is_given_up(start_cache, upstream, clock):
    cache = await start_cache({"slow_window": 20.0, "slowest": 10.0})

    async def drip(request):
        response, _ = await upstream.begun(request, 1000)
        for number in range(1, 1000):
            await response.write(b".")
            await until(lambda number=number: [one.received for one in cache.downloads()] == [number])
            clock.now += 1

    upstream.answers = [drip]
    with pytest.raises(UpstreamTimeoutError, match=r"too slow: \d+ bytes in \d+ s"):
        await fetch(cache, upstream.url)


# --- answers to Range ---


def lying(status, content_range, length=(1 << 20) - THIRD, **headers):
    async def answer(request):
        response = web.StreamResponse(
            status=status, headers={name.replace("_", "-"): headers[name] for name in headers}
        )
        if content_range is not None:
            response.headers["Content-Range"] = content_range
        response.content_length = length
        await response.prepare(request)
        await response.write(b"x" * length)
        return response

    return answer


@pytest.mark.parametrize(
    "lie",
    [
        lying(206, None),
        lying(206, "bytes 0-1048575/1048576"),
        lying(206, f"bytes {THIRD}-1048575/*"),
        lying(206, f"bytes {THIRD}-1048575/1048577"),
        lying(206, f"bytes {THIRD}-1048574/1048576"),
        lying(206, f"bytes {THIRD}-1048576/1048577"),
        lying(206, f"bytes {THIRD}-1048576/1048577", length=(1 << 20) - THIRD + 1),
        lying(206, f"bytes {THIRD + 1}-1048575/1048576"),
        lying(206, f"bytes {THIRD + 1}-1048575/1048576", length=(1 << 20) - THIRD - 1),
        lying(206, f"bytes {THIRD - 1}-1048575/1048576", length=(1 << 20) - THIRD + 1),
        lying(206, f"bytes {THIRD}-1048575/1048576", ETag='"v2"'),
        lying(416, "bytes */1048576"),
    ],
)
async def test_wrong_answer_to_a_range_makes_all_come_again(start_cache, upstream, lie):
    cache = await start_cache({"retries": 1})
    upstream.answers = [upstream.breaks_after(THIRD), lie]
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert ranges(upstream) == ["", f"bytes={THIRD}-", ""]


async def test_upstream_that_ignores_if_range_is_detected_by_its_validators(start_cache, upstream):
    cache = await start_cache({"retries": 1})
    upstream.etag, upstream.modified = "", 1_700_000_000.0
    newer = lying(206, f"bytes {THIRD}-1048575/1048576", Last_Modified="Wed, 15 Nov 2023 00:00:00 GMT")
    upstream.answers = [upstream.breaks_after(THIRD), newer]
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert upstream.requests[1].headers["If-Range"] == "Tue, 14 Nov 2023 22:13:20 GMT"


@pytest.mark.parametrize(
    ("etag", "modified", "date", "validator"),
    [
        ('"a"', "", "", '"a"'),
        ('"a"', "Tue, 14 Nov 2023 22:13:20 GMT", "", '"a"'),
        ('W/"a"', "Tue, 14 Nov 2023 22:13:20 GMT", "Wed, 15 Nov 2023 22:13:20 GMT", ""),
        ("a", "", "", ""),
        ("", "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:14:20 GMT", "Tue, 14 Nov 2023 22:13:20 GMT"),
        ("", "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:14:19 GMT", ""),
        ("", "Tue, 14 Nov 2023 22:13:20 GMT", "", ""),
        ("", "Tue, 14 Nov 2023 22:13:20 GMT", "yesterday", ""),
        ("", "Tue, 14 Nov 2023 22:13:20", "Tue, 14 Nov 2023 22:14:20 GMT", ""),
        ("", "", "", ""),
    ],
)
def test_only_a_strong_validator_goes_into_if_range(etag, modified, date, validator):
    assert strong_validator(etag, modified, date) == validator


# --- over restarts ---


def test_download_of_which_all_has_come_is_not_noted_as_unfinished(tmp_path):
    """There would be no byte left to ask for, and upstreams answer 416 then."""
    fd = os.open(tmp_path / "part", os.O_RDWR | os.O_CREAT)
    download = Download("u", "", "v", tmp_path / "part", fd)
    download.size, download.validator = 6, '"v"'
    assert download.unfinished() is None
    download.write(b"ker")
    assert download.unfinished() is None
    download.hash(b"ker")
    assert download.unfinished().received == 3
    download.write(b"nel")
    download.hash(b"nel")
    assert download.unfinished() is None
    download.end(None)


@pytest.fixture
async def restart(start_cache, upstream):
    """Starts a cache over a directory in which a third of the file is, from one that was stopped then."""
    cache = await start_cache()
    upstream.answers = [upstream.breaks_after(THIRD)]
    with await cache.open(upstream.url) as artifact, pytest.raises(UpstreamError):
        await artifact.filled(THIRD)
    await cache.stop()
    upstream.requests.clear()
    upstream.sent = 0
    return start_cache


async def test_machine_that_waits_again_after_a_restart_has_the_same_version(start_cache, upstream):
    cache = await start_cache()
    upstream.gate.clear()
    with await cache.open(upstream.url) as artifact:
        before = artifact.version
        await until(lambda: cache.downloads()[0].received == len(upstream.content) // 2)
    cache = await start_cache()
    upstream.gate.set()
    with await cache.open(upstream.url) as artifact:
        assert artifact.version == before


async def test_restart_asks_for_the_rest_only_however_long_the_upstream_is_down(restart, upstream, files):
    assert files() == [".journal", ".part"]
    cache = await restart()
    upstream.mode = "503"
    for _ in range(2):
        with pytest.raises(UpstreamError, match="503"):
            await fetch(cache, upstream.url)
    upstream.mode = ""
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert ranges(upstream) == [f"bytes={THIRD}-"] * 3
    assert upstream.sent == len(upstream.content) - THIRD
    assert files() == [".blob", ".json"]
    assert await fetch(await restart(), upstream.url) == (Source.CACHE, upstream.content)


async def test_restart_starts_over_when_the_file_has_changed(restart, upstream):
    upstream.content, upstream.etag = b"new" * 400_000, '"v2"'
    assert await fetch(await restart(), upstream.url) == (Source.UPSTREAM, upstream.content)
    assert upstream.sent == len(upstream.content)


@pytest.mark.parametrize(
    "change",
    [
        *({"received": number} for number in (0, -5, 1 << 40, "300000")),
        *({"url": "http://elsewhere/kernel"}, {"part": "../secret"}, {"part": f"{'0' * 32}.00.part"}),
        *({"size": 5}, {"sha256": None}, {}),
    ],
    ids=str,
)
async def test_journal_that_can_not_be_right_or_whose_part_is_damaged_is_not_believed(
    restart, upstream, directory, files, change
):
    (part,), (journal,) = directory.glob("*.part"), directory.glob("*.journal")
    journal.write_text(json.dumps(json.loads(journal.read_text()) | change))
    if not change:
        with part.open("r+b") as file:
            file.seek(THIRD - 1)
            file.write(bytes([upstream.content[THIRD - 1] ^ 1]))
    cache = await restart()
    assert files() == [] or not change
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert ranges(upstream) == [""]


@pytest.mark.parametrize("what", ["end lost", "no part", "no journal", "a week old"])
async def test_restart_deletes_downloads_that_are_not_resumable_or_too_old(restart, directory, files, what):
    (part,), (journal,) = directory.glob("*.part"), directory.glob("*.journal")
    if what == "end lost":
        os.truncate(part, THIRD - 1)
    elif what == "a week old":
        os.utime(journal, (0, 0))
    else:
        (part if what == "no part" else journal).unlink()
    await restart()
    assert files() == []


async def test_download_notes_from_time_to_time_how_far_it_is(start_cache, upstream, directory, monkeypatch):
    """That is what is left when the process is killed."""
    monkeypatch.setattr(flight, "CHECKPOINT_BYTES", 1000)
    cache = await start_cache()
    upstream.gate.clear()
    with await cache.open(upstream.url):
        (journal,) = await until(lambda: list(directory.glob("*.journal")))
        assert 0 < json.loads(journal.read_text())["received"] <= len(upstream.content) // 2
        upstream.gate.set()


async def test_slow_download_notes_how_far_it_is_too(start_cache, upstream, clock, directory, monkeypatch):
    hashed, hash_chunk = [], Download.hash
    monkeypatch.setattr(Download, "hash", lambda download, chunk: hash_chunk(download, chunk) or hashed.append(chunk))
    cache = await start_cache()

    async def pieces(request):
        response, body = await upstream.begun(request)
        await response.write(body[:1000])
        await until(lambda: sum(map(len, hashed)) == 1000)
        clock.now += 2
        await response.write(body[1000:2000])
        await upstream.gate.wait()
        await response.write(body[2000:])
        return response

    upstream.gate.clear()
    upstream.answers = [pieces]
    with await cache.open(upstream.url):
        (journal,) = await until(lambda: list(directory.glob("*.journal")))
        assert json.loads(journal.read_text())["received"] == 1000  # the other thousand is still to be hashed
        upstream.gate.set()
