"""HTTP clients for URLs of other authors: addresses in all forms, names, redirects, proxies, limits of answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from edge.neighbour.route import is_own
from tests.interop.authority import Authority
from tests.ports import free_port
from tests.support.proxy import http_proxy
from tink.net.addresses import carried, is_link_local, is_link_local_packed, special
from tink.net.outbound import Reach, RefusedAddressError, WastefulAnswerError, refusal, session

SPECIAL = {
    "loopback": "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::",
    "link-local": "169.254.169.254 64:ff9b::a9fe:a9fe fe80::1 febf:ffff::1",
    "unspecified": "0.0.0.0 0.1.2.3 :: ::ffff:0.0.0.0",
    "multicast": "224.0.0.1 ff02::1",
    "reserved": "240.0.0.1 255.255.255.255",
    "cloud": "fd00:ec2::254 100.100.100.200",
    "": """10.0.0.1 192.168.1.2 100.64.0.1 126.255.255.255 128.0.0.0 169.253.255.255 8.8.8.8 fd00::1 fec0::1 2001:db8::1
        64:ff9b::a00:1""",
}


@pytest.mark.parametrize(
    ("kind", "address"), [(kind, each) for kind, addresses in SPECIAL.items() for each in addresses.split()]
)
def test_special_address_is_known_in_whatever_form(address: str, kind: str) -> None:
    assert kind in special(ip_address(address))
    assert bool(special(ip_address(address))) == bool(kind)


@given(st.ip_addresses(v=4))
def test_ipv4_address_is_as_special_as_it_is_when_ipv6_carries_it(address: Any) -> None:
    for prefix in ("::ffff:", "64:ff9b::"):
        other = ip_address(f"{prefix}{address}")
        assert carried(other) == address
        assert special(other) == special(address)


HERE = ip_address("192.0.2.7")
PORT = frozenset({7081})


@pytest.mark.parametrize(
    ("allowed", "address", "port", "said"),
    [
        ((), "192.0.2.8", 80, ""),
        ((), "192.0.2.7", 80, "192.0.2.7 is an address of this host"),
        ((), "::ffff:192.0.2.7", 80, "is an address of this host"),
        ((), "fe80::1%eth0", 80, "is a link-local address"),
        ((), "example.org", 80, "is not an IP address"),
        (("192.0.2.0/24",), "192.0.2.7", 80, ""),
        (("192.0.2.0/24",), "::ffff:192.0.2.7", 80, ""),
        (("192.0.2.0/24",), "192.0.2.7", 7081, "port 7081 is tinkedge's own"),
        (("0.0.0.0/0",), "127.0.0.1", 80, ""),
        (("0.0.0.0/0",), "127.0.0.1", 7081, "port 7081 is tinkedge's own"),
        (("0.0.0.0/0",), "0.0.0.0", 7081, "port 7081 is tinkedge's own"),
        (("0.0.0.0/0",), "::ffff:127.0.0.1", 7081, "port 7081 is tinkedge's own"),
        (("::/0",), "::", 7081, "port 7081 is tinkedge's own"),
        (("0.0.0.0/0",), "::1", 80, "is a loopback address"),
        ((), "192.0.2.8", 7081, ""),
        (("127.0.0.0/8",), "169.254.169.254", 80, "is a link-local address"),
    ],
)
def test_only_what_was_allowed_is_reached_and_never_the_own_ports(
    allowed: tuple[str, ...], address: str, port: int, said: str
) -> None:
    reach = Reach(tuple(map(ip_network, allowed)), lambda each: each == HERE, PORT)
    if not said:
        reach.check(address, port)
        return
    with pytest.raises(RefusedAddressError, match=said) as caught:
        reach.check(address, port)
    by = address.removeprefix("::ffff:").partition("%")[0]
    assert caught.value.allowable == ("" if "own" in said or "an IP" in said else by)


def test_kernel_tells_which_addresses_are_this_hosts() -> None:
    for address in ("127.0.0.1", "127.3.4.5", "0.0.0.0", "255.255.255.255", "::1"):
        assert is_own(ip_address(address)), address
    for address in ("198.51.100.7", "2001:db8::7", "169.254.169.254"):
        assert not is_own(ip_address(address)), address


# --- the HTTP client ---


@pytest.fixture
async def service() -> AsyncIterator[str]:
    """The URL of a service on loopback; `/to?URL` redirects."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/to":
            raise web.HTTPFound(request.query_string)
        logins = [request.headers.get(name, "") for name in ("Authorization", "Proxy-Authorization")]
        return web.Response(text=" ".join(["reached", *filter(None, logins)]))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/"))
    await server.close()


LOOPBACK = Reach(allowed=(ip_network("127.0.0.1/32"),))


async def asked(reach: Reach, url: str, *, roots: Path | None = None, **settings: Any) -> str:
    """Return the body of the answer, or the reason of the refusal."""
    async with session(reach, **settings) as client:
        try:
            async with client.get(url, ssl=roots is None or ssl.create_default_context(cafile=roots)) as response:
                return await response.text()
        except (aiohttp.ClientError, OSError) as error:
            refused = refusal(error)
            return str(refused) if refused is not None else repr(error)


def named(monkeypatch: pytest.MonkeyPatch, port: int, *addresses: str) -> list[str]:
    """Resolve every name to these addresses; return the list of names that are looked up."""
    lookups: list[str] = []

    async def lookup(host: str, _port: Any, **_: Any) -> list[Any]:
        lookups.append(host)
        kinds = {True: (socket.AF_INET6, (0, 0)), False: (socket.AF_INET, ())}
        found = [(*kinds[":" in address], address) for address in addresses]
        return [(family, socket.SOCK_STREAM, 6, "", (address, port, *more)) for family, more, address in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup)
    return lookups


async def test_redirect_is_checked_like_the_url(service: str) -> None:
    port = service.rpartition(":")[2].strip("/")
    assert await asked(LOOPBACK, service) == "reached"
    assert await asked(LOOPBACK, f"{service}to?{service}") == "reached"
    assert "127.0.0.2 is a loopback" in await asked(LOOPBACK, f"{service}to?http://127.0.0.2:{port}/")
    assert "::1 is a loopback" in await asked(LOOPBACK, f"{service}to?http://[::1]:{port}/")


async def test_operators_netrc_is_not_for_hosts_that_others_name(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login root password secret\ndefault login root password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    assert await asked(LOOPBACK, service, trust_env=True) == "reached"
    assert await asked(LOOPBACK, f"{service}to?{service}", trust_env=True) == "reached"
    with_user = service.replace("://", "://user:pass@")
    assert await asked(LOOPBACK, with_user, trust_env=True) == "reached Basic dXNlcjpwYXNz"


async def test_address_is_refused_if_the_kernel_does_not_list_its_own() -> None:
    def cannot(_address: Any) -> bool:
        raise OSError(1, "Operation not permitted")

    with pytest.raises(RefusedAddressError, match="may be this host's") as caught:
        Reach(is_own=cannot).check("192.0.2.1", 80)
    assert caught.value.allowable == "192.0.2.1"
    Reach((ip_network("192.0.2.0/24"),), is_own=cannot).check("192.0.2.1", 80)


async def test_connection_goes_to_the_address_that_was_checked(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that changes its answer each time is asked once."""
    port = int(service.rpartition(":")[2].strip("/"))
    lookups = named(monkeypatch, port, "127.0.0.1")
    assert await asked(LOOPBACK, f"http://rebound.example:{port}/") == "reached"
    assert lookups == ["rebound.example"]
    named(monkeypatch, port, "127.0.0.2")
    assert "127.0.0.2 is a loopback" in await asked(LOOPBACK, f"http://rebound.example:{port}/")


@pytest.mark.parametrize(
    ("addresses", "said", "allowable"),
    [
        (("::1", "127.0.0.2"), "::1 is a loopback address and 127.0.0.2 is a loopback address", "::1,127.0.0.2"),
        (("127.0.0.2", "127.1.1.1"), "127.0.0.2 is a loopback address and 127.1.1.1 is a", "127.0.0.2,127.1.1.1"),
        # Of these, one is allowed.
        (("::1", "127.0.0.1"), "127.0.0.1 does not answer and ::1 is a loopback address", "::1"),
        (("127.0.0.1", "127.0.0.2"), "127.0.0.1 does not answer and 127.0.0.2 is a loopback address", "127.0.0.2"),
    ],
)
async def test_name_with_several_addresses_that_are_refused_names_them_all(
    addresses: tuple[str, ...], said: str, allowable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    named(monkeypatch, port, *addresses)
    async with session(LOOPBACK) as client:
        with pytest.raises((aiohttp.ClientError, OSError)) as caught:
            await client.get(f"http://both.example:{port}/")
    refused = refusal(caught.value)
    assert refused is not None, repr(caught.value)
    assert str(refused).startswith(said)
    assert refused.allowable == allowable


async def test_address_that_does_not_answer_is_not_called_refused_because_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    named(monkeypatch, port, "127.0.0.2", "127.0.0.1")
    assert "ConnectionRefused" in (said := await asked(LOOPBACK, f"http://both.example:{port}/")) or "111" in said


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """A proxy on loopback in the environment; yields the list of its requests."""
    requests = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        requests.append(head.split("\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nproxied")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield requests
    server.close()


async def test_operators_proxy_may_be_on_this_host_and_what_it_asks_for_may_not(
    proxy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Callable[[str], Any] = lambda url: asked(Reach(), url, trust_env=True)  # noqa: E731
    assert await client("http://192.0.2.1/kernel") == "proxied"
    assert proxy == ["GET http://192.0.2.1/kernel HTTP/1.1"]
    # A name that only the proxy knows is for the proxy to judge.
    assert await client("http://kernels.invalid/kernel") == "proxied"
    del proxy[:]
    for host in ("127.0.0.1:7081", "localhost:7081", "0x7f000001:7081", "[::ffff:127.0.0.1]:7081", "169.254.169.254"):
        assert "is a l" in await client(f"http://{host}/")
    assert proxy == []
    # The request that goes past the proxy is not taken for one to it.
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert "is a loopback" in await client("http://127.0.0.1:7081/")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["http proxy", "https proxy"])
async def test_https_goes_through_the_proxy_by_connect_and_the_login_stays_with_the_proxy(
    is_encrypted: bool, authority: Authority, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = authority.sign("proxy", x509.IPAddress(ip_address("127.0.0.1")))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.sign("far", x509.DNSName("far.invalid")))
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Proxy-Authorization", ""))
        return web.Response(text="far")

    app = web.Application()
    app.router.add_get("/", answer)
    far = TestServer(app)
    await far.start_server(ssl=context)
    try:
        with http_proxy(own if is_encrypted else None) as proxy:
            proxy.hosts = {
                "far.invalid:8443": ("127.0.0.1", far.port or 0),
                "near.invalid": ("127.0.0.1", int(service.rpartition(":")[2].strip("/"))),
            }
            proxy.login = "Basic bWU6cEBzcw=="
            for name in ("HTTP_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(name, proxy.url.replace("://", "://me:p%40ss@"))
            for _ in range(2):
                assert await asked(Reach(), "https://far.invalid:8443/", roots=authority.file, trust_env=True) == "far"
            assert await asked(Reach(), "http://near.invalid/", roots=authority.file, trust_env=True) == "reached"
            assert proxy.asked == ["CONNECT far.invalid:8443"] * 2 + ["GET http://near.invalid/"]
            # What is behind a redirect is asked without a proxy, and without what is for the proxy.
            monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
            there = f"http://near.invalid/to?{service}"
            assert await asked(LOOPBACK, there, roots=authority.file, trust_env=True) == "reached"
            proxy.login = "another"
            assert "407" in await asked(Reach(), "https://far.invalid:8443/", roots=authority.file, trust_env=True)
    finally:
        await far.close()
    assert seen == ["", ""]


# --- limits of answers ---


@contextlib.asynccontextmanager
async def flooding(
    head: bytes, again: bytes, limit: int = 20_000_000
) -> AsyncIterator[tuple[str, list[int], asyncio.Event]]:
    """A server that sends `head` and repeats `again`; yields its URL, the number of sent bytes, and its end."""
    sent, ended = [0], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        with contextlib.suppress(OSError):
            while sent[0] < limit:
                writer.write(again)
                sent[0] += len(again)
                await writer.drain()
        writer.close()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", sent, ended
    finally:
        server.close()


async def read_all(client: aiohttp.ClientSession, url: str, received: list[bytes] | None = None) -> None:
    async with client.get(url) as response:
        while chunk := await response.content.read(1 << 16):
            if received is not None:
                received.append(chunk)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 1000),
        (CHUNKED + b"10;", b"x" * 50_000),
        (CHUNKED, b"1\r\nx\r\n" * 5000),
        (CHUNKED, b"1;" + b"x" * 500 + b"\r\nx\r\n"),
        (CHUNKED + b"1\r\nk\r\n0\r\n", b"X-Trailer: x\r\n" * 20),
        (b"HTTP/1.1 200 OK\r\n", b"X-Header: x\r\n" * 20),
    ],
    ids=["continue", "hints", "extension", "crumbs", "extensions", "trailers", "headers"],
)
async def test_answer_with_hardly_any_body_is_aborted(head: bytes, again: bytes) -> None:
    async with flooding(head, again) as (url, sent, ended), session(LOOPBACK) as client:
        with pytest.raises(aiohttp.ClientError):
            await read_all(client, url)
        await ended.wait()
        assert sent[0] < 10_000_000  # what was on its way


async def test_reason_of_the_abort_is_reported() -> None:
    for head, again in ((b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), (CHUNKED, b"1\r\nx\r\n" * 1000)):
        async with flooding(head, again) as (url, *_), session(LOOPBACK) as client:
            with pytest.raises(WastefulAnswerError):
                await read_all(client, url)


async def test_answer_in_small_chunks_is_read_to_its_end() -> None:
    body = b"1e\r\n" + b"x" * 30 + b"\r\n"
    async with flooding(CHUNKED, body * 1000, limit=3_000_000) as (url, *_), session(LOOPBACK) as client:
        received: list[bytes] = []
        with pytest.raises(aiohttp.ClientPayloadError, match="not completed"):
            await read_all(client, url, received)
        assert sum(map(len, received)) > 2_000_000


async def test_answers_one_after_the_other_are_each_measured(service: str) -> None:
    """The limit is per answer, not per connection."""
    async with session(LOOPBACK) as client:
        for _ in range(1500):  # 300 KB of headers
            async with client.get(service) as response:
                assert await response.text() == "reached"


# --- link-local addresses, compared with `ipaddress` ------------------------------------------------------------------


ADDRESSES = [
    "fe80::1",
    "FE80::1",
    "fe80::",
    "fe9f:1::2",
    "febf::1",
    "fec0::1",
    "fe7f::1",
    "fe8::1",
    "fe80:1::",
    "ff02::1",
]


@pytest.mark.parametrize("address", [*ADDRESSES, "ff02::1", "::fe80"])
def test_text_and_bytes_are_what_they_are_to_ipaddress(address: str) -> None:
    wanted = IPv6Address(address).is_link_local
    assert is_link_local(address) is wanted
    assert is_link_local(f"{address}%eth1") is wanted
    assert is_link_local_packed(socket.inet_pton(socket.AF_INET6, address)) is wanted


@pytest.mark.parametrize("text", ["", "fe", "fe80", "169.254.1.1", "fe8x", "10.0.0.1", "a:b:c:d:e:f:1:2"])
def test_what_is_no_ipv6_address_is_not_link_local(text: str) -> None:
    assert is_link_local(text) is False


def test_four_bytes_are_not_link_local() -> None:
    assert is_link_local_packed(b"\xfe\x80\0\1") is False
