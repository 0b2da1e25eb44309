"""Checksums: a wrong kernel never boots, whatever the source and the form of the checksum."""

import asyncio
import hashlib
import json

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.artifacts.artifact import ArtifactError, ChecksumError, Source, UpstreamError
from edge.artifacts.checksum import from_sidecar, normalized, sidecar_url
from edge.artifacts.download import TAIL_BYTES
from tests.unit.artifacts.conftest import fetch
from tests.waiting import until


def digest(content):
    return hashlib.sha256(content).hexdigest()


HEX, OTHER = digest(b"kernel"), digest(b"other")
URL = "http://h/images/vmlinuz%20a?token=x"

# --- how it is written ---


@pytest.mark.parametrize(
    "content",
    [
        f"{HEX}",
        f"{HEX}\n",
        f"{HEX.upper()}\r\n",
        f"  {HEX}  \n\n",
        f"{HEX}  vmlinuz a\n",
        f"{HEX} *vmlinuz a\n",
        f"{HEX}  renamed-since\n",
        f"\\{HEX}  odd\\nname\n",
        f"SHA256 (vmlinuz a) = {HEX}\n",
        f"SHA256(vmlinuz a)= {HEX}\n",
        f"SHA2-256(vmlinuz a)= {HEX}\n",
        f"\ufeff{HEX}  vmlinuz a\n",
        f"# made by a build\n{HEX}  vmlinuz a\n",
        f"{OTHER}  initrd\n{HEX}  ./images/vmlinuz a\n",
        f"{OTHER}  initrd\nSHA256 (vmlinuz a) = {HEX}\n",
        f"{HEX}  vmlinuz a\n{HEX} *vmlinuz a\n",
    ],
)
def test_every_common_form_of_a_checksum_file_is_understood(content):
    assert from_sidecar(content.encode(), URL) == HEX


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "no line with"),
        ("<!DOCTYPE html><html>no such file</html>", "no line with"),
        (f"<html>{HEX}</html>", "no line with"),
        (HEX[:-1], "no line with"),
        (HEX + "0", "no line with"),
        (f"SHA512 (x) = {HEX}", "no line with"),
        (f"{OTHER}  a\n{HEX}  b\n", "no line for vmlinuz a"),
        (f"{OTHER}  vmlinuz a\n{HEX}  vmlinuz a\n", "more than one checksum for vmlinuz a"),
    ],
)
def test_text_without_a_checksum_is_rejected_with_the_reason(content, reason):
    with pytest.raises(ValueError, match=reason):
        from_sidecar(content.encode(), URL)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_beside_a_kernel_give_a_checksum_or_a_reason(content):
    try:
        found = from_sidecar(content, URL)
    except ValueError:
        return
    assert normalized(found) == found


def test_checksum_file_is_looked_for_beside_the_file():
    assert sidecar_url("http://h/a/kernel") == "http://h/a/kernel.sha256"
    assert sidecar_url(URL) == "http://h/images/vmlinuz%20a.sha256?token=x"


def test_annotation_is_taken_in_any_case_and_with_its_prefix():
    assert normalized(f" sha256:{HEX.upper()}\n") == HEX
    assert normalized("") == ""
    for wrong in ("x", HEX[1:], f"{HEX}0", f"md5:{HEX}"):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            normalized(wrong)


# --- the OSIE's checksum ---


async def test_wrong_kernel_reaches_no_machine_whole_and_is_not_kept(cache, upstream, files):
    withheld = len(upstream.content) - TAIL_BYTES
    with await cache.open(upstream.url, sha256=HEX) as artifact:
        while await artifact.filled(withheld - 1) < withheld:
            pass
        with pytest.raises(ChecksumError) as caught:
            await artifact.filled(withheld)
    assert str(caught.value) == (
        f"{upstream.url}: wrong SHA-256: the OSIE says {HEX}, but what came has {digest(upstream.content)}"
    )
    await until(lambda: files() == [])
    upstream.content = b"small"  # is all tail, and withheld whole
    with await cache.open(upstream.url, sha256=HEX) as artifact, pytest.raises(ChecksumError):
        await artifact.filled(0)


async def test_no_machine_gets_the_end_before_all_is_there(cache, upstream):
    upstream.gate.clear()
    half = len(upstream.content) // 2
    with await cache.open(upstream.url, sha256=digest(upstream.content)) as artifact:
        while await artifact.filled(half - 2) < half:
            pass
        waiting = asyncio.create_task(artifact.filled(len(upstream.content) - TAIL_BYTES))
        upstream.gate.set()
        assert await waiting == len(upstream.content)


async def test_right_kernel_boots_and_a_malformed_checksum_is_the_osies_fault(cache, upstream):
    with pytest.raises(ChecksumError, match=r"64 hexadecimal digits, and the OSIE says 'abc'"):
        await cache.open(upstream.url, sha256="abc")
    assert upstream.requests == []
    pin = digest(upstream.content)
    assert await fetch(cache, upstream.url, pin.upper()) == (Source.UPSTREAM, upstream.content)
    assert await fetch(cache, upstream.url, pin) == (Source.CACHE, upstream.content)
    assert (len(upstream.requests), len(upstream.sidecar_paths)) == (1, 0)
    upstream.mode = "503"  # and a failed upstream is no wrong file
    with pytest.raises(UpstreamError):
        await cache.open(upstream.url, sha256=HEX)


async def test_wrong_kernel_is_not_downloaded_again_and_again(start_cache, upstream, clock):
    cache = await start_cache(remember_failures=2.0)
    for count, seconds in enumerate((2, 4, 8, 16, 32, 64, 128, 128), start=1):
        for _ in range(3):
            with pytest.raises(ChecksumError):
                await fetch(cache, upstream.url, HEX)
        clock.now += seconds - 0.5
        with pytest.raises(ChecksumError):
            await fetch(cache, upstream.url, HEX)
        assert len(upstream.requests) == count
        clock.now += 0.5


async def test_one_osies_wrong_checksum_does_not_keep_anothers_machines_from_booting(cache, upstream):
    wanted = (HEX, "", digest(upstream.content))
    results = await asyncio.gather(*(fetch(cache, upstream.url, pin) for pin in wanted), return_exceptions=True)
    assert isinstance(results[0], ChecksumError)
    assert results[1:] == [(Source.UPSTREAM, upstream.content)] * 2


async def test_pinned_kernel_boots_though_the_upstream_is_down_or_has_another(cache, upstream, clock):
    kept, pin = upstream.content, digest(upstream.content)
    await fetch(cache, upstream.url, pin)
    upstream.mode = "503"
    clock.now += 1000
    assert await fetch(cache, upstream.url, pin) == (Source.CACHE, kept)
    upstream.mode, upstream.content, upstream.etag = "", b"new", '"v2"'
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, b"new")
    assert await fetch(cache, upstream.url, pin) == (Source.CACHE, kept)


@pytest.mark.parametrize("restarted", [False, True])
async def test_knowing_a_checksum_gives_no_file_that_only_another_url_has_brought(start_cache, upstream, restarted):
    """Tenant A pins the checksum of B's file, which B's URL, with a password in it, brought to this cache."""
    cache, secret = await start_cache(), upstream.content
    b_url, pin = upstream.url.replace("http://", "http://b:password@"), digest(secret)
    await fetch(cache, f"{b_url}?token=b", pin)
    if restarted:
        cache = await start_cache()

    async def not_modified(_request):
        return web.Response(status=304)

    for answer in ("404", "403", "503", "others", "304"):
        upstream.mode, upstream.content = (answer, b"") if answer.isdigit() else ("", b"x" * len(secret))
        upstream.answers = [not_modified] if answer == "304" else []
        for url in (upstream.url, f"{b_url}?token=a"):
            with pytest.raises(ArtifactError):
                await fetch(cache, url, pin)
    asked = len(upstream.requests)
    assert await fetch(cache, f"{b_url}?token=b", pin) == (Source.CACHE, secret)
    assert len(upstream.requests) == asked


async def test_checksum_beside_a_file_gives_no_file_that_only_another_url_has_brought(cache, upstream):
    await fetch(cache, upstream.url)
    upstream.sidecar, upstream.content = f"{digest(upstream.content)}  kernel\n".encode(), b"mine"
    with pytest.raises(ChecksumError):
        await fetch(cache, f"{upstream.url}-of-a")


@pytest.mark.parametrize(("moved", "source", "requests"), [("-moved", Source.UPSTREAM, 2), ("", Source.CACHE, 1)])
async def test_file_is_fetched_once_for_each_url_whether_a_checksum_is_demanded_or_not(
    start_cache, upstream, moved, source, requests
):
    cache, pin = await start_cache(), digest(upstream.content)
    await fetch(cache, upstream.url)
    assert await fetch(cache, upstream.url + moved, pin) == (source, upstream.content)
    assert await fetch(cache, upstream.url + moved, pin) == (Source.CACHE, upstream.content)
    assert await fetch(await start_cache(), upstream.url + moved, pin) == (Source.CACHE, upstream.content)
    assert len(upstream.requests) == requests


async def test_new_annotation_is_compared_with_the_stored_file_and_fetches_the_new_kernel(cache, upstream):
    await fetch(cache, upstream.url)
    with pytest.raises(ChecksumError):
        await fetch(cache, upstream.url, HEX)
    assert await fetch(cache, upstream.url) == (Source.CACHE, upstream.content)
    assert await fetch(cache, upstream.url, digest(upstream.content)) == (Source.CACHE, upstream.content)
    upstream.content, upstream.etag = b"new kernel", '"v2"'
    assert await fetch(cache, upstream.url, digest(b"new kernel")) == (Source.UPSTREAM, b"new kernel")


async def test_file_without_a_stored_checksum_is_fetched_again(start_cache, upstream, directory):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    await cache.stop()
    (entry,) = directory.glob("*.json")
    entry.write_text(
        json.dumps({key: value for key, value in json.loads(entry.read_text()).items() if key != "sha256"})
    )
    cache = await start_cache()
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert await fetch(cache, upstream.url) == (Source.CACHE, upstream.content)


# --- the checksum beside the file ---


@pytest.mark.parametrize("mode", ["", "chunked"])
async def test_kernel_is_compared_with_the_checksum_beside_it(cache, upstream, files, mode):
    upstream.mode, upstream.sidecar = mode, f"{HEX}  kernel\n".encode()
    reason = rf"kernel\.sha256 says {HEX}, but what came has {digest(upstream.content)}"
    with pytest.raises(ChecksumError, match=reason):
        await fetch(cache, upstream.url)
    assert files() == []
    upstream.sidecar = f"{digest(upstream.content)}  kernel\n".encode()
    assert (await fetch(cache, upstream.url))[1] == upstream.content
    assert await fetch(cache, upstream.url) == (Source.CACHE, upstream.content)
    assert len(upstream.sidecar_paths) == 2


async def test_wrong_new_kernel_leaves_the_old_one_and_is_not_tried_on_machines_again_and_again(
    start_cache, upstream, clock
):
    """Each try is a boot that fails, and a download."""
    cache = await start_cache(remember_failures=8.0)
    upstream.sidecar = f"{digest(upstream.content)}  kernel\n".encode()
    old = upstream.content
    await fetch(cache, upstream.url)
    upstream.content, upstream.etag = b"half published", '"v2"'
    clock.now += 11
    for seconds in (10, 16, 32):
        with pytest.raises(ChecksumError):
            await fetch(cache, upstream.url)
        assert await fetch(cache, upstream.url) == (Source.STALE, old)
        clock.now += seconds - 0.5
        assert await fetch(cache, upstream.url) == (Source.STALE, old)
        clock.now += 1


@pytest.mark.parametrize(
    ("content", "status", "mode", "reported"),
    [
        (b"<html>nothing here</html>", 200, "", "kernel.sha256 is ignored"),
        (b"\x00" * 100_000, 200, "", "kernel.sha256 is ignored"),
        (HEX.encode(), 500, "", "kernel.sha256 is ignored"),
        (HEX.encode(), 403, "", ""),
        (b"", 200, "sidecar breaks", "its checksum file"),
        (b"", 200, "sidecar silent", "its checksum file does not come"),
    ],
    ids=["page", "zeros", "500", "403", "breaks", "never comes"],
)
async def test_malformed_checksum_file_is_ignored(start_cache, upstream, caplog, content, status, mode, reported):
    cache = await start_cache({"sidecar": 0.05} if mode == "sidecar silent" else None)
    upstream.sidecar, upstream.sidecar_status, upstream.mode = content, status, mode
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert reported in caplog.text
    assert reported or "is ignored" not in caplog.text


async def test_resumed_kernel_is_checked_as_a_whole(start_cache, upstream):
    cache, pin = await start_cache({"retries": 1}), digest(upstream.content)
    upstream.answers = [upstream.breaks_after(300_000)]
    assert await fetch(cache, upstream.url, pin) == (Source.UPSTREAM, upstream.content)
    upstream.answers = [upstream.breaks_after(300_000)]
    with pytest.raises(ChecksumError):
        await fetch(cache, upstream.url, HEX)
