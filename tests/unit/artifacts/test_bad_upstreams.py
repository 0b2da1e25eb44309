"""Upstreams that answer, and should not be believed; and that no kernel, disk, memory or log suffers from them."""

import asyncio
import gzip
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from edge.artifacts import ArtifactError, NotFoundError, Source, UpstreamError
from edge.artifacts import cache as artifact_cache
from edge.artifacts.errors import KINDS, WrongContentError, foreign, shown

Fetch = Callable[..., Awaitable[tuple[Source, bytes]]]
Files = Callable[[], list[str]]


@asynccontextmanager
async def raw(answer, *, then_close=True):
    """A server that answers every request with these bytes; its URL."""
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        request = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n" if b".sha256 " in request else answer)
        if then_close:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/kernel"
    finally:
        for writer in writers:
            writer.close()
        server.close()


# --- what is no kernel ---


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/html", b"<!DOCTYPE html><html>Please log in</html>"),
        ("text/html", b"\n\n  <div>Please log in</div>"),
        ("text/html", b"\xef\xbb\xbf<!-- login -->"),
        ("application/xhtml+xml", b'<?xml version="1.0"?><html/>'),
        ("application/octet-stream", b"<!doctype HTML>\n<title>Not found</title>"),
        ("application/octet-stream", b"<HTML><body>Not found"),
        ("text/plain", b"\r\n<html lang=en>"),
    ],
)
async def test_web_page_is_not_booted(cache, upstream, files, kind, content):
    upstream.kind, upstream.content = kind, content
    with pytest.raises(WrongContentError, match=rf"the upstream answered with a web page \({kind.replace('+', '.')}"):
        await cache.open(upstream.url)
    assert files() == []


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text/html", b"MZ" + bytes(100)),
        ("text/html; charset=utf-8", gzip.compress(b"cpio", mtime=0)),
        ("text/html", b"070701"),
        ("text/xml", b"<notes/>"),
        ("application/octet-stream", b"<htm"),
        ("application/octet-stream", b"\x00<html>"),
    ],
)
async def test_kernel_is_booted_whatever_the_upstream_calls_it(cache, upstream, fetch, kind, content):
    upstream.kind, upstream.content = kind.partition(";")[0], content
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, content)


async def test_web_page_in_place_of_a_stored_kernel_leaves_the_kernel(cache, upstream, fetch, clock):
    kernel = upstream.content
    await fetch(cache, upstream.url)
    upstream.kind, upstream.content, upstream.etag = "text/html", b"<html>maintenance</html>", ""
    clock.now += 11
    assert await fetch(cache, upstream.url) == (Source.STALE, kernel)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "an empty file"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "an empty file"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "204 No Content"),
        (b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\nx", "206 Partial Content"),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: /kernel\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "more than 5 redirects",
        ),
        (b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/passwd\r\n\r\n", "redirects to what is not an http"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://h/k\r\n\r\n", "redirects to what is not an http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nkernel", "no usable answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: minus\r\n\r\n", "no usable answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\nContent-Length: 1\r\n\r\nk", "no usable answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"Content-Length: 1\r\n\r\nk", "no usable answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no usable answer"),
        (b"\x00\xff" * 1000, "no usable answer"),
        (b"", "no usable answer: it closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nkernel", "connection broke after"),
    ],
)
async def test_answer_that_is_none_is_an_error_in_words(cache, fetch, files, answer, reason):
    async with raw(answer) as url:
        with pytest.raises(ArtifactError, match=reason) as caught:
            await fetch(cache, f"{url}?sig=secret")
        assert "secret" not in str(caught.value)
        assert len(str(caught.value)) < 250
    assert [suffix for suffix in files() if suffix != ".part"] == []


async def test_reason_phrase_can_not_forge_a_log_line(cache):
    async with raw(b"HTTP/1.1 500 bad\x1b[2J" + b"!" * 500 + b"\r\nContent-Length: 0\r\n\r\n") as url:
        with pytest.raises(UpstreamError) as caught:
            await cache.open(url)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_what_others_wrote_is_short_and_printable():
    assert foreign("a\r\nb\x1b") == "a??b?"
    assert foreign("x" * 101) == "x" * 100 + "…"
    assert shown("http://[::1/k\n?secret") == "http://[::1/k?"
    assert shown("http://user:secret@[::1/k") == "[::1/k"


async def test_body_without_a_length_ends_when_the_connection_does(cache, fetch):
    """HTTP/1.0 servers, of the kind that is started in a directory for an afternoon."""
    async with raw(b"HTTP/1.0 200 OK\r\n\r\n" + b"k" * 300_000) as url:
        assert (await fetch(cache, url))[1] == b"k" * 300_000


async def test_body_that_is_longer_than_announced_is_not_booted_with_its_rest(cache, upstream, fetch):
    async def longer(request):
        response, _ = upstream.begin(request)
        response.content_length = 6
        await response.prepare(request)
        await response.write(b"kernel")
        await asyncio.sleep(0.05)
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.write(b" and more")
        return response

    upstream.answers = [longer]
    assert (await fetch(cache, upstream.url))[1] == b"kernel"


async def test_upstream_that_closes_at_once_after_a_long_body_loses_none_of_it(cache, fetch):
    """The library holds some megabytes that were not read yet when the connection ends."""
    content = bytes(range(256)) * (32 << 12)
    async with raw(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content) as url:
        assert (await fetch(cache, url))[1] == content


async def test_endless_body_of_a_liar_needs_no_memory_and_ends(start_cache, upstream, fetch, files):
    cache = await start_cache({"total": 0.5}, budget=64 << 20)

    async def endless(request):
        response, _ = upstream.begin(request)
        response.enable_chunked_encoding()
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 20))

    upstream.answers = [endless]
    with pytest.raises(ArtifactError, match=r"no room for|too slow: only \d+ bytes when time was up"):
        await fetch(cache, upstream.url)
    await asyncio.sleep(0.05)
    assert files() == []


async def test_length_beyond_any_disk_is_refused_at_the_start(cache, files):
    async with raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900000000000000000\r\n\r\nMZ", then_close=False) as url:
        with pytest.raises(ArtifactError, match="it has 900000000000000000 bytes or more, and 17179869184 is the most"):
            await cache.open(url)
    assert files() == []


async def test_upstream_that_speaks_no_tls_is_named(cache):
    def serve(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UpstreamError, match="no TLS connection"):
            await cache.open(f"https://127.0.0.1:{port}/kernel")


async def test_certificate_that_this_host_does_not_trust_is_named(cache, tmp_path):
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "upstream")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(UpstreamError, match="its TLS certificate is not trusted by this host"):
            await cache.open(f"https://127.0.0.1:{port}/kernel")


# --- redirects and credentials ---


async def test_redirect_is_followed_and_password_stays_with_its_host(cache, upstream, fetch, caplog):
    caplog.set_level(logging.DEBUG)
    with_password = upstream.url.replace("http://", "http://user:hunter2@").replace("127.0.0.1", "localhost")

    async def redirect(request):
        return web.Response(status=302, headers={"Location": upstream.url + "-there"})

    upstream.answers = [redirect]
    assert await fetch(cache, with_password) == (Source.UPSTREAM, upstream.content)
    assert upstream.requests[0].headers["Authorization"].startswith("Basic ")
    assert "Authorization" not in upstream.requests[1].headers
    upstream.mode = "503"
    with pytest.raises(UpstreamError):
        await fetch(cache, with_password + "-other")
    assert "hunter2" not in caplog.text


async def test_files_that_know_passwords_are_for_us_alone(cache, upstream, fetch, tmp_path):
    await fetch(cache, upstream.url)
    for path in (tmp_path / "artifacts").iterdir():
        assert path.name == ".lock" or path.stat().st_mode & 0o077 == 0


# --- a dead upstream is left alone ---


async def test_thousand_machines_do_not_hammer_a_dead_upstream(start_cache, upstream, fetch, clock):
    cache = await start_cache(remember_failures=2.0)
    upstream.mode = "503"
    for _ in range(10):
        results = await asyncio.gather(*(cache.open(upstream.url) for _ in range(100)), return_exceptions=True)
        assert all(isinstance(result, UpstreamError) for result in results)
    assert len(upstream.requests) == 1
    for asked, seconds in enumerate((2, 4, 8, 16, 16), start=2):
        clock.now += seconds
        for _ in range(3):
            with pytest.raises(UpstreamError, match="503 Service Unavailable"):
                await cache.open(upstream.url)
        assert len(upstream.requests) == asked
    upstream.mode = ""
    clock.now += 16
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)
    assert cache._failures == {}


async def test_missing_kernel_is_asked_for_again_after_a_moment(start_cache, upstream, fetch, clock):
    cache = await start_cache(remember_failures=2.0)
    upstream.mode = "404"
    for _ in range(2):
        with pytest.raises(NotFoundError):
            await cache.open(upstream.url)
    assert len(upstream.requests) == 1
    upstream.mode = ""
    clock.now += 2
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


async def test_memory_of_failures_is_bounded_by_time(start_cache, upstream, clock):
    cache = await start_cache(remember_failures=2.0)
    upstream.mode = "503"
    for number in range(20):
        with pytest.raises(UpstreamError):
            await cache.open(f"{upstream.url}{number}")
        clock.now += 1
    assert len(cache._failures) <= 7


async def test_log_has_one_line_for_the_same_trouble(start_cache, upstream, fetch, clock, caplog):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    upstream.mode = "503"
    for _ in range(2):
        clock.now += 11
        assert (await fetch(cache, upstream.url))[0] is Source.STALE
    assert caplog.text.count("the stored file is served, for its upstream can't be asked") == 1
    clock.now += 31
    await fetch(cache, upstream.url)
    assert caplog.text.count("the stored file is served, for its upstream can't be asked") == 2


async def test_machine_does_not_wait_long_for_a_hanging_upstream_when_there_is_a_file(
    start_cache, upstream, fetch, clock
):
    cache = await start_cache({"patience": 0.1, "silence": 60.0})
    await fetch(cache, upstream.url)
    clock.now += 11
    upstream.headers_gate.clear()
    async with asyncio.timeout(20):
        with await cache.open(upstream.url) as artifact:
            assert artifact.source is Source.STALE
    upstream.headers_gate.set()
    while cache._flights:
        await asyncio.sleep(0.01)
    assert (await fetch(cache, upstream.url))[0] is Source.CACHE
    assert len(upstream.requests) == 2


def test_every_kind_of_failure_is_counted():
    def kinds(error):
        return {error.kind}.union(*(kinds(each) for each in error.__subclasses__()))

    assert kinds(ArtifactError) - {"other"} == set(KINDS)


async def test_port_that_nobody_listens_on_is_named(cache):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{free.getsockname()[1]}/kernel"
    with pytest.raises(UpstreamError, match="no connection: Connection refused"):
        await cache.open(url)


# --- between the edge and its upstreams ---


async def test_edge_behind_a_proxy_fetches_through_it_but_not_what_is_near(cache, fetch, monkeypatch):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"
    async with raw(answer % (7, b"far-off")) as proxy, raw(answer % (4, b"near")) as near:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert (await fetch(cache, "http://upstream.example/kernel"))[1] == b"far-off"
        assert (await fetch(cache, near))[1] == b"near"


async def test_memory_of_failures_is_bounded_by_number(start_cache, upstream, monkeypatch):
    monkeypatch.setattr(artifact_cache, "MAX_FAILURES", 3)
    cache = await start_cache(remember_failures=2.0)
    upstream.mode = "404"
    for number in range(5):
        with pytest.raises(NotFoundError):
            await cache.open(f"{upstream.url}-{number}")
    assert [url[-1] for url, _ in cache._failures] == ["2", "3", "4"]
