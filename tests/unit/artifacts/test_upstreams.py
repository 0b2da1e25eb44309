"""Upstreams that answer, and should not be believed; and that no kernel, disk, memory or log suffers from them."""

import asyncio
import base64
import gzip
import logging
import socket
import ssl
from base64 import b64encode
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from cryptography import x509

from edge.artifacts import download as download_module
from edge.artifacts.artifact import (
    KINDS,
    ArtifactError,
    BadUrlError,
    NotFoundError,
    Source,
    UpstreamError,
    UpstreamTimeoutError,
    WrongContentError,
    foreign,
)
from tests.interop.authority import Authority
from tests.ports import free_port
from tests.unit.artifacts.conftest import MIB, fetch
from tests.waiting import until


@asynccontextmanager
async def raw(answer, *, then_close=True, tls=None):
    """A server that answers every request with these bytes; its URL."""
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        request = await reader.read(65536)
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n" if b".sha256 " in request else answer)
        if then_close:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/kernel"
    finally:
        for writer in writers:
            writer.close()
        server.close()


# --- what is no kernel ---


@pytest.mark.parametrize(
    ("kind", "content", "is_page"),
    [
        ("text/html", b"<!DOCTYPE html><html>Please log in</html>", True),
        ("text/html", b"\n\n  <div>Please log in</div>", True),
        ("text/html", b"\xef\xbb\xbf<!-- login -->", True),
        ("application/xhtml+xml", b'<?xml version="1.0"?><html/>', True),
        ("application/octet-stream", b"<!doctype HTML>\n<title>Not found</title>", True),
        ("application/octet-stream", b"<HTML><body>Not found", True),
        ("text/plain", b"\r\n<html lang=en>", True),
        ("text/html", b"MZ" + bytes(100), False),
        ("text/html; charset=utf-8", gzip.compress(b"cpio", mtime=0), False),
        ("text/html", b"070701", False),
        ("text/xml", b"<notes/>", False),
        ("application/octet-stream", b"<htm", False),
        ("application/octet-stream", b"\x00<html>", False),
    ],
)
async def test_web_page_is_rejected_and_a_kernel_is_accepted_with_any_media_type(
    cache, upstream, files, kind, content, is_page
):
    upstream.kind, upstream.content = kind.partition(";")[0], content
    if not is_page:
        assert await fetch(cache, upstream.url) == (Source.UPSTREAM, content)
        return
    page = rf"the upstream answered with a web page \({kind.replace('+', '.')}"
    with pytest.raises(WrongContentError, match=page):
        await cache.open(upstream.url)
    assert files() == []


@pytest.mark.parametrize(
    ("encoding", "ending", "refused"),
    [
        ("x-gzip", ".img", ""),
        ("gzip", ".GZ?y", ""),
        ("zstd", ".zst", ""),
        ("none", "", ""),
        (" , Identity", "", ""),
        ("gzip", ".img", "gzip"),
        ("gzip, br", ".gz", "br"),
        ("zstd", ".gz", "zstd"),
    ],
)
async def test_file_is_kept_as_it_is_when_the_encoding_is_the_files_own(cache, upstream, encoding, ending, refused):
    upstream.encoding = encoding
    if not refused:
        assert await fetch(cache, upstream.url + ending) == (Source.UPSTREAM, upstream.content)
        return
    with pytest.raises(WrongContentError, match=f"sent Content-Encoding {refused} though identity was asked for$"):
        await cache.open(upstream.url + ending)


@pytest.mark.parametrize(
    ("mode", "kind", "reason"),
    [
        ("404", NotFoundError, "404 Not Found"),
        ("410", NotFoundError, "410 Gone"),
        ("503", UpstreamError, "503 Service Unavailable"),
        ("403", UpstreamError, "403 Forbidden"),
        ("silent", UpstreamTimeoutError, "no answer within 0.3 s"),
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
    start_cache, upstream, mode, kind, reason, files
):
    cache = await start_cache({"silence": 1.0} if mode == "stalls" else None)
    upstream.mode, upstream.etag = mode, ""  # nothing to go on from: there is no telling whether it is the same file
    with pytest.raises(kind, match=reason):
        await fetch(cache, upstream.url)
    assert files() == []
    upstream.mode = ""
    assert await fetch(cache, upstream.url) == (Source.UPSTREAM, upstream.content)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "an empty file"),
        (OK + b"Content-Length: 0\r\n\r\n", "an empty file"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "204 No Content"),
        (b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\nx", "206 Partial Content"),
        (
            b"HTTP/1.1 301 M\r\nLocation: /kernel\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "more than 5 redirects",
        ),
        (b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/passwd\r\n\r\n", "redirects to what is not an http"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://h/k\r\n\r\n", "redirects to what is not an http"),
        (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nkernel", "no usable answer"),
        (OK + b"Content-Length: minus\r\n\r\n", "no usable answer"),
        (OK + b"X: " + b"x" * 20_000 + b"\r\nContent-Length: 1\r\n\r\nk", "no usable answer"),
        (OK + b"X: y\r\n" * 1000 + b"Content-Length: 1\r\n\r\nk", "no usable answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no usable answer"),
        (b"\x00\xff" * 1000, "no usable answer"),
        (b"", "no usable answer: it closed the connection"),
        (OK + b"Content-Length: 1000\r\n\r\nkernel", "connection broke after"),
        (b"HTTP/1.1 500 bad\x1b[2J" + b"!" * 500 + b"\r\nContent-Length: 0\r\n\r\n", "500 bad"),
    ],
)
async def test_unusable_answer_is_an_error_with_words_for_the_log(cache, files, answer, reason):
    async with raw(answer) as url:
        with pytest.raises(UpstreamError, match=reason) as caught:
            await fetch(cache, f"{url}?sig=secret")
        assert "secret" not in str(caught.value)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < (200 if "500" in reason else 250)
    assert [suffix for suffix in files() if suffix != ".part"] == []


def test_foreign_text_is_short_and_printable_and_a_url_is_shown_without_its_secrets():
    assert foreign("a\r\nb\x1b") == "a??b?"
    assert foreign("x" * 101) == "x" * 100 + "…"
    assert "secret" not in str(UpstreamError("http://user:secret@host/k?sig=secret", "down"))


@pytest.mark.parametrize("length", [b"", b"Content-Length: %d\r\n" % (32 * MIB)])
async def test_body_is_complete_if_its_connection_closes_at_once(cache, length):
    """An HTTP/1.0 server may announce no length; the library holds some megabytes unread when the connection ends."""
    content = bytes(range(256)) * (32 << 12)
    async with raw(b"HTTP/1.0 200 OK\r\n" + length + b"\r\n" + content) as url:
        assert (await fetch(cache, url))[1] == content


async def test_body_that_is_longer_than_announced_is_not_booted_with_its_rest(cache, upstream):
    async def longer(request):
        response, _ = await upstream.begun(request, 6)
        await response.write(b"kernel")
        await until(lambda: [one.received for one in cache.downloads()] == [6])
        request.transport.write(b" and more")
        return response

    upstream.answers = [longer]
    assert (await fetch(cache, upstream.url))[1] == b"kernel"


async def test_endless_body_of_a_liar_needs_no_memory_and_ends(start_cache, upstream, files):
    cache = await start_cache(budget=64 * MIB)

    async def endless(request):
        response, _ = upstream.begin(request)
        response.enable_chunked_encoding()
        await response.prepare(request)
        while True:
            await response.write(bytes(MIB))

    upstream.answers = [endless]
    with pytest.raises(ArtifactError, match="no room for"):
        await fetch(cache, upstream.url)
    await until(lambda: files() == [])
    cache = await start_cache({"total": 0.5}, budget=64 * MIB)
    upstream.mode = "stalls"
    with pytest.raises(UpstreamTimeoutError, match=r"too slow: only \d+ bytes when time was up"):
        await fetch(cache, upstream.url)


async def test_upstream_may_not_announce_or_send_more_than_any_machine_can_hold(
    start_cache, upstream, files, monkeypatch
):
    """Otherwise the files of others would be evicted for it."""
    cache = await start_cache(budget=8 * MIB)
    async with raw(OK + b"Content-Length: 900000000000000000\r\n\r\nMZ", then_close=False) as url:
        with pytest.raises(ArtifactError, match="it has 900000000000000000 bytes or more, and 17179869184 is the most"):
            await cache.open(url)
    monkeypatch.setattr(download_module, "MAX_FILE_BYTES", 6 * MIB)
    for number in range(4):
        assert await fetch(cache, f"{upstream.url}-{number}") == (Source.UPSTREAM, upstream.content)
    upstream.content = bytes(7 * MIB)
    with pytest.raises(UpstreamError, match=f"it has {7 * MIB} bytes or more, and {6 * MIB} is the most that is kept"):
        await cache.open(f"{upstream.url}-announced")
    assert len(cache.stored()) == 4
    upstream.mode = "chunked"
    with pytest.raises(UpstreamError, match="is the most that is kept"):
        await cache.open(f"{upstream.url}-unannounced")
    assert ".part" not in files()


# --- connections ---


async def test_connection_that_can_not_be_made_is_named(start_cache, monkeypatch):
    cache = await start_cache()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for scheme in ("http", "https"):
        with pytest.raises(UpstreamError, match="no connection: Connection refused"):
            await cache.open(f"{scheme}://127.0.0.1:{port}/kernel")
    cache = await start_cache({"connect": 0.5})
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(UpstreamTimeoutError, match="no connection"):
            await cache.open(f"http://127.0.0.1:{port}/kernel")

    def unresolved(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    with pytest.raises(UpstreamError, match=r"host name kernel\.invalid can't be resolved"):
        await cache.open("http://kernel.invalid/kernel")


async def test_upstream_without_tls_or_with_a_certificate_that_this_host_does_not_trust_is_named(cache, tmp_path):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*Authority(tmp_path).sign("server", x509.DNSName("upstream")))
    for tls, reason in ((None, "no TLS connection"), (context, "its TLS certificate is not trusted by this host")):
        async with raw(b"HTTP/1.1 400 Bad Request\r\n\r\n", tls=tls) as url:
            with pytest.raises(UpstreamError, match=reason):
                await cache.open(url.replace("http:", "https:"))


@pytest.mark.parametrize("url", ["ftp://h/k", "kernel", "http://", "http://[::1/k", "file://host/k", "file:k"])
async def test_url_that_cannot_be_fetched_is_the_osies_fault(cache, url):
    with pytest.raises(BadUrlError):
        await cache.open(url)


async def test_redirect_is_followed_and_password_stays_with_its_host(cache, upstream, caplog, directory):
    caplog.set_level(logging.DEBUG)
    with_password = upstream.url.replace("http://", "http://%C3%BC%40:hunter2%2F€@").replace("127.0.0.1", "localhost")

    async def redirect(_request):
        return web.Response(status=302, headers={"Location": upstream.url + "-there"})

    upstream.answers = [redirect]
    assert await fetch(cache, with_password) == (Source.UPSTREAM, upstream.content)
    assert upstream.requests[0].headers["Authorization"] == "Basic " + b64encode("ü@:hunter2/€".encode()).decode()
    assert "Authorization" not in upstream.requests[1].headers
    for path in directory.iterdir():
        assert path.name == ".lock" or path.stat().st_mode & 0o077 == 0
    upstream.mode = "503"
    with pytest.raises(UpstreamError):
        await fetch(cache, with_password + "-other")
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(("login", "sent"), [("a:p%40%C3%A4", "a:p@ä"), ("%E2%82%AC:%3A", "€::"), ("only", "only:")])
async def test_login_of_a_url_is_sent_for_the_file_and_its_checksum_as_curl_sends_it(cache, upstream, login, sent):
    url = upstream.url.replace("http://", f"http://{login}@") + "?sig=secret"
    assert await fetch(cache, url) == (Source.UPSTREAM, upstream.content)
    given = upstream.requests[0].headers["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(given).decode() == sent
    upstream.mode = "401"
    with pytest.raises(UpstreamError, match=r"/kernel\?…: 401 Unauthorized$"):
        await fetch(cache, url.replace("?", "?x&"))


AS_WRITTEN = {
    "/a%2Fb%2Bc%40d%3Ae+f%20g": "/a%2Fb%2Bc%40d%3Ae+f%20g",
    "/k?Credential=A%2F1%2Fs3&sig=a%2Bb%3D+c;d&e=%7e%2f": "/k?Credential=A%2F1%2Fs3&sig=a%2Bb%3D+c;d&e=%7e%2f",
    "/k?sig=[x]'(y)*!,$": "/k?sig=[x]'(y)*!,$",
    "/my kernel/é?q=ü|": "/my%20kernel/%C3%A9?q=%C3%BC%7C",
    "/100%.img?x=5%zz#part": "/100%25.img?x=5%25zz",
}
"""Paths and queries of URLs, and the request line's target: RFC 3986 section 6.2.2.2."""


@pytest.mark.parametrize(("written", "sent"), AS_WRITTEN.items())
@pytest.mark.parametrize("how", ["own", "proxy", "redirect", "relative redirect"])
async def test_url_is_requested_byte_for_byte(cache, upstream, written, sent, how, monkeypatch):
    async def redirect(_request):
        return web.Response(status=307, headers={"Location": written if how.startswith("rel") else root + written})

    root = upstream.url.removesuffix("/kernel")
    if how == "proxy":
        monkeypatch.setenv("http_proxy", root)
        root = "http://upstream.example"
    if how.endswith("redirect"):
        upstream.answers = [redirect]
    assert (await fetch(cache, upstream.url if upstream.answers else root + written))[1] == upstream.content
    assert upstream.requests[-1].raw_path.removeprefix("http://upstream.example") == sent


async def test_checksum_file_is_requested_beside_the_url_as_written_and_another_spelling_is_another_file(
    cache, upstream
):
    for path in ("/a%2Fb?sig=%2B", "/a/b?sig=%2B", "/a%2Fb?sig=+"):
        assert (await fetch(cache, upstream.url.replace("/kernel", path)))[0] is Source.UPSTREAM
    assert upstream.sidecar_paths == ["/a%2Fb.sha256?sig=%2B", "/a/b.sha256?sig=%2B", "/a%2Fb.sha256?sig=+"]


async def test_edge_behind_a_proxy_fetches_through_it_except_from_no_proxy_hosts(cache, monkeypatch):
    answer = OK + b"Content-Length: %d\r\n\r\n%s"
    async with raw(answer % (7, b"far-off")) as proxy, raw(answer % (4, b"near")) as near:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", "10.0.0.0/8,.near.example")
        assert (await fetch(cache, "http://upstream.example/kernel"))[1] == b"far-off"
        assert (await fetch(cache, near))[1] == b"near"
        monkeypatch.setenv("http_proxy", "socks5://user:secret@127.0.0.1:1080")
        with pytest.raises(UpstreamError, match=r"HTTP_PROXY is socks5://127.0.0.1:1080: SOCKS is not supported"):
            await fetch(cache, "http://upstream.example/other")
        monkeypatch.setenv("http_proxy", f"http://user:secret@127.0.0.1:{free_port()}")
        with pytest.raises(UpstreamError, match=r"no connection to the proxy 127.0.0.1:\d+: Connection refused"):
            await fetch(cache, "http://upstream.example/third")


# --- a dead upstream is left alone ---


async def test_thousand_machines_do_not_hammer_a_dead_upstream(start_cache, upstream, clock):
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
    # And is forgotten: the next failure is remembered for two seconds.
    clock.now += 11
    upstream.mode, upstream.requests = "404", []
    for seconds in (0, 1.9, 0.2):
        clock.now += seconds
        with pytest.raises(NotFoundError):
            await cache.open(upstream.url)
    assert len(upstream.requests) == 2
    upstream.mode = ""
    clock.now += 4
    assert await fetch(cache, upstream.url) == (Source.CACHE, upstream.content)


async def test_memory_of_failures_is_bounded_by_number_and_time(start_cache, upstream, clock, monkeypatch):
    monkeypatch.setattr("edge.artifacts.cache.MAX_FAILURES", 3)
    cache = await start_cache(remember_failures=2.0)
    upstream.mode = "503"

    async def asked(name):
        """Return True if the upstream is asked, False if the failure is remembered."""
        before = len(upstream.requests)
        with pytest.raises(UpstreamError):
            await cache.open(f"{upstream.url}-{name}")
        return len(upstream.requests) > before

    assert [await asked(name) for name in "01234"] == [True] * 5
    assert [await asked(name) for name in "432"] == [False] * 3
    assert [await asked(name) for name in "14"] == [True, False], "the oldest went"
    clock.now += 7
    assert await asked("5")
    clock.now += 2
    assert await asked("4")
    clock.now += 2.5
    assert await asked("4"), "an old failure is forgotten: the new one is the first, and counts for two seconds"


async def test_log_has_one_line_for_the_same_trouble(start_cache, upstream, clock, caplog):
    cache = await start_cache()
    await fetch(cache, upstream.url)
    upstream.mode = "503"
    for seconds, lines in ((11, 1), (11, 1), (31, 2)):
        clock.now += seconds
        assert (await fetch(cache, upstream.url))[0] is Source.STALE
        assert caplog.text.count("the stored file is served, because its upstream can't be asked") == lines


def test_every_kind_of_failure_is_counted():
    def kinds(error):
        return {error.kind}.union(*(kinds(each) for each in error.__subclasses__()))

    assert kinds(ArtifactError) - {"other"} == set(KINDS)
