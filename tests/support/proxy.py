"""An HTTP proxy on loopback: forwards requests in absolute form, and tunnels with CONNECT."""

from __future__ import annotations

import http.client
import http.server
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass
class HttpProxy:
    """`asked` are its request lines, `logins` the Proxy-Authorization of each. `login` is the one that it demands.

    `hosts` says where host names lead that only the proxy knows: to an address and port on loopback.
    """

    url: str = ""
    login: str = ""
    hosts: dict[str, tuple[str, int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: HttpProxy

    def log_message(self, *_: object) -> None:
        pass

    def _is_welcome(self) -> bool:
        login = self.headers.get("Proxy-Authorization", "")
        self.proxy.asked.append(self.requestline.rpartition(" ")[0])
        self.proxy.logins.append(login)
        self.proxy.headers.append(dict(self.headers))
        if login == self.proxy.login:
            return True
        self.send_response(407)
        self.send_header("Proxy-Authenticate", "Basic")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_GET(self) -> None:
        if not self._is_welcome():
            return
        parts = urlsplit(self.path)
        upstream = http.client.HTTPConnection(*self.proxy.hosts.get(parts.netloc, (parts.netloc,)), timeout=60)
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        upstream.request("GET", parts._replace(scheme="", netloc="").geturl() or "/", headers=headers)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        content = answer.read()
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        upstream.close()

    def do_CONNECT(self) -> None:
        if not self._is_welcome():
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection(self.proxy.hosts.get(self.path, (host.strip("[]"), int(port)))) as upstream:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: upstream, upstream: self.connection}
            while True:
                pending = isinstance(self.connection, ssl.SSLSocket) and self.connection.pending()
                for each in [self.connection] if pending else select.select(ends, [], [], 60)[0]:
                    if not (content := each.recv(65536)):
                        self.close_connection = True
                        return
                    ends[each].sendall(content)


@contextmanager
def http_proxy(certificate: tuple[Path, Path] | None = None) -> Iterator[HttpProxy]:
    """Run a proxy; with `certificate`, a chain and its key, it speaks TLS."""
    proxy = HttpProxy()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    proxy.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
