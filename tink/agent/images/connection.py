"""One connection to a registry, or to where it sends us: only to addresses that it may send us to, and only while it
brings something.

It goes through the proxy that the settings name for its URL, by CONNECT for https. The proxy's own address is the
operator's, and not checked. What a registry's redirect leads to is checked as far as its name can be resolved here.

A registry may redirect, and name a token service. Where it is not on this machine or its links itself, those may not be
either: what answers there (a cloud's metadata service, a daemon on loopback) is for this machine, not for registries.
What an engine such as Docker pulls is its own to guard.

Time is bounded by what of an answer is of use (`LowSpeedLimit`, as curl calls it): less than
`LOW_SPEED_BYTES_PER_SECOND` over `LOW_SPEED_SECONDS` is as good as silence, however much comes besides (interim
answers, trailers, parts of chunks).
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from typing import Any

from tink.agent.model import AgentError
from tink.net.proxies import NONE, Proxies, Proxy
from tink.printable import printable

TIMEOUT_SECONDS = 30.0
"""How long is waited for the connection, and for the next byte."""
LOW_SPEED_SECONDS = 60.0
LOW_SPEED_BYTES_PER_SECOND = 1024


class RefusedError(AgentError):
    """A host is only at addresses that are not connected to."""


class ProxyRefusedError(AgentError):
    """The proxy does not connect. `status` is its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class LowSpeedLimit:
    """Of one answer after the other."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Something is asked for."""
        self._since, self._useful = time.monotonic(), 0

    def useful(self, count: int) -> None:
        """So many bytes came that were asked for."""
        self._useful += count

    def check(self) -> None:
        """Raises TimeoutError if too few came for too long."""
        waited = time.monotonic() - self._since
        if waited < LOW_SPEED_SECONDS:
            return
        if self._useful < LOW_SPEED_BYTES_PER_SECOND * waited:
            raise TimeoutError(f"too slow: {self._useful} useful bytes in {waited:.0f} s")
        self.begin()


class _LimitedReader(io.RawIOBase):
    """What comes from a socket, as long as it comes fast enough."""

    def __init__(self, raw: Any, low_speed: LowSpeedLimit) -> None:
        self._raw = raw
        self._low_speed = low_speed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._low_speed.check()
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Socket:
    """As much of a socket as http.client uses."""

    def __init__(self, sock: socket.socket, low_speed: LowSpeedLimit) -> None:
        self._sock = sock
        self._low_speed = low_speed
        self.sendall = sock.sendall
        self.shutdown = sock.shutdown
        self.close = sock.close

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_LimitedReader(self._sock.makefile("rb", buffering=0), self._low_speed))


class Connection:
    """To `host` over `scheme`, made at once, through a proxy if `proxies` names one. `local`: whether that may be this
    machine, or one of its links.

    `context`: whom to trust over https; None: the system's authorities. `handshake_seconds`: how long is waited for
    each message of the TLS handshake. Raises OSError, HTTPException, RefusedError, ProxyRefusedError, and ProxyError.
    """

    def __init__(
        self,
        scheme: str,
        host: str,
        port: int | None,
        low_speed: LowSpeedLimit,
        *,
        local: bool,
        context: ssl.SSLContext | None = None,
        handshake_seconds: float = TIMEOUT_SECONDS,
        proxies: Proxies = NONE,
    ) -> None:
        kind = http.client.HTTPConnection if scheme == "http" else http.client.HTTPSConnection
        self._http = kind(host, port or kind.default_port, timeout=TIMEOUT_SECONDS)
        self._low_speed = low_speed
        low_speed.begin()
        authority = f"[{host}]" if ":" in host else host
        proxy = proxies.proxy_of(f"{scheme}://{authority}:{self._http.port}/", with_tls=False)
        self._prefix, self._headers = "", {}
        if proxy is None:
            self._socket = _connected(host, self._http.port, local=local)
            self.is_local = bool(_kind(self._socket.getpeername()[0]))
        else:
            if not local:
                _check_name(host, self._http.port)
            try:
                self._socket = _connected(proxy.host, proxy.port, local=True)
            except OSError as error:
                raise ConnectionError(f"the proxy {proxy.url}: {error.strerror or error}") from error
            self.is_local = bool(_kind(host))
        if proxy is not None and scheme == "http":
            self._prefix = f"http://{authority}" if port is None else f"http://{authority}:{port}"
            self._headers = _login(proxy)
        elif proxy is not None:
            self._tunnel(f"{authority}:{self._http.port}", proxy)
        if scheme != "http":
            self._socket.settimeout(handshake_seconds)
            self._socket = _encrypted(self._socket, host, context or ssl.create_default_context())
            self._socket.settimeout(TIMEOUT_SECONDS)
        self._http.sock = _Socket(self._socket, low_speed)

    def _tunnel(self, authority: str, proxy: Proxy) -> None:
        """Connect through the proxy (RFC 9110 section 9.3.6)."""
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in _login(proxy).items()]
        try:
            self._socket.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii"))
            # The server says nothing before TLS begins: the reader takes no byte that is not the proxy's.
            answer = http.client.HTTPResponse(_Socket(self._socket, self._low_speed), method="CONNECT")  # type: ignore[arg-type]
            answer.begin()
            answer.close()
            if not 200 <= answer.status < 300:
                reason = printable(f"{answer.status} {answer.reason}")[:200]
                raise ProxyRefusedError(f"the proxy {proxy.url} refuses to connect: {reason}", answer.status)
        except BaseException:
            self._socket.close()
            raise

    def get(self, target: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Ask, and wait for the headers of the answer. Raises OSError, HTTPException, ValueError."""
        self._low_speed.begin()
        self._http.request("GET", self._prefix + target, headers={**headers, **self._headers})
        return self._http.getresponse()

    def cut(self) -> None:
        """Make whoever reads from it stop. From any thread."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # not connected any more

    def close(self) -> None:
        """Close it."""
        self._http.close()


def _kind(address: str) -> str:
    from tink.net import addresses

    found = addresses.parsed(address)
    return addresses.special(found) if found is not None else ""


def _login(proxy: Proxy) -> dict[str, str]:
    return {"Proxy-Authorization": proxy.authorization} if proxy.authorization else {}


def _check_name(host: str, port: int) -> None:
    """Raise RefusedError if `host` means a special address here. What means nothing here is for the proxy to judge."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, where in found:
        if why := _kind(str(where[0])):
            raise _refusal(f"{where[0]}, {why}")


def _refusal(where: str) -> RefusedError:
    return RefusedError(f"it sends us to {where}, which registries may not")


def _encrypted(sock: socket.socket, host: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


def _connected(host: str, port: int, *, local: bool) -> socket.socket:
    """As `socket.create_connection`, but to no address of this machine or its links, unless they are allowed."""
    refused = ""
    error: OSError | None = None
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        why = "" if local else _kind(str(where[0]))
        if why:
            refused = f"{where[0]}, {why}"
            continue
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(TIMEOUT_SECONDS)
            sock.connect(where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as failed:
            sock.close()
            error = failed
        else:
            return sock
    if error is not None:
        raise error
    raise _refusal(refused)
