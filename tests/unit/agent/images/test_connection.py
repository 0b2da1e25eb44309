"""Connections to registries by way of a proxy, and where a registry may send us by it."""

import base64
import http.server
import ssl
import threading
from contextlib import contextmanager

import pytest
from cryptography import x509

from tests.interop.authority import Authority
from tests.ports import free_port
from tests.support.proxy import http_proxy
from tink.agent.images.registry import ForbiddenAddressError, LowSpeedLimit, ProxyRefusedError, RegistryConnection
from tink.net.proxies import Proxies, ProxyError


class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        login = self.headers.get("Proxy-Authorization", "no login")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} {login}".encode())

    def log_message(self, *_):
        pass


@contextmanager
def serving(context=None):
    """Run a registry on loopback. Yield its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def got(connection):
    try:
        return connection.get("/v2/x?y=z", {}).read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_registry_is_asked_through_the_proxy_and_does_not_see_its_login(scheme, tmp_path, monkeypatch):
    authority, context = Authority(tmp_path), None
    if scheme == "https":
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*authority.sign("registry", x509.DNSName("reg.invalid")))
    with serving(context) as port, http_proxy() as proxy:
        proxy.hosts, proxy.login = {"reg.invalid:5000": ("127.0.0.1", port)}, "Basic cDpxQA=="
        proxies = Proxies(*[proxy.url.replace("//", "//p:q%40@")] * 2, no_proxy="127.0.0.0/8")
        for local in (True, False):
            connection = RegistryConnection(scheme, "reg.invalid", 5000, LowSpeedLimit(), local=local, proxies=proxies)
            assert not connection.is_local
            assert got(connection) == "/v2/x?y=z no login"
        way = "GET http://reg.invalid:5000/v2/x?y=z" if scheme == "http" else "CONNECT reg.invalid:5000"
        assert proxy.asked == [way] * 2
        proxy.login = base64.b64encode(b"another").decode()
        if scheme == "https":
            with pytest.raises(ProxyRefusedError, match=r"^the proxy http://127.* refuses to connect: 407 Proxy"):
                RegistryConnection(scheme, "reg.invalid", 5000, LowSpeedLimit(), local=True, proxies=proxies)


def test_registry_that_no_proxy_names_is_asked_directly():
    with serving() as port:
        proxies = Proxies(f"http://127.0.0.1:{free_port()}", no_proxy="localhost.invalid,127.0.0.0/8")
        assert got(
            RegistryConnection("http", "127.0.0.1", port, LowSpeedLimit(), local=True, proxies=proxies)
        ).startswith("/")
        with pytest.raises(ConnectionError, match=r"^the proxy http://127.0.0.1:\d+: Connection refused$"):
            RegistryConnection("http", "reg.invalid", port, LowSpeedLimit(), local=True, proxies=proxies)


def test_registry_sends_us_to_no_special_address_by_way_of_the_proxy_either():
    with http_proxy() as proxy:
        for host in ("169.254.169.254", "fe80::1", "0xa9fea9fe"):
            with pytest.raises(ForbiddenAddressError, match=r"it sends us to .*, which registries may not"):
                RegistryConnection("http", host, 80, LowSpeedLimit(), local=False, proxies=Proxies(proxy.url))
        assert proxy.asked == []
    with pytest.raises(ProxyError, match="HTTP_PROXY is socks5://s:1: SOCKS is not supported"):
        RegistryConnection("http", "reg.invalid", 80, LowSpeedLimit(), local=True, proxies=Proxies("socks5://u:p@s:1"))
