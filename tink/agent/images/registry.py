"""Fetches images from registries (OCI distribution specification 1.1)."""

from __future__ import annotations

import http.client
import io
import json
import logging
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tink.agent.model import ActionError, AgentError, Reason
from tink.limits import Backoff
from tink.net.proxies import NONE, Proxies, ProxyError
from tink.net.urls import as_written, redacted, shown, without_login
from tink.printable import printable
from tink.registry.login import Credentials, Login, credentials_for
from tink.registry.manifests import MANIFEST_LIMIT_BYTES, MANIFEST_TYPES
from tink.registry.names import Reference, RegistryError, host_of
from tink.registry.names import parse as parse_name

log = logging.getLogger(__name__)

# --- Connections ---
#
# One connection to a registry or to a redirect's target: only to permitted addresses, and only while data arrives.
#
# It goes through the proxy in the settings for its URL, by CONNECT for https. The proxy's own address is not checked,
# because the operator chose it. The target of a registry's redirect is checked if its name can be resolved here.
#
# A registry may redirect, and name a token service. Unless the registry itself is on this machine or its links, their
# addresses may not be there either: services there (a cloud's metadata service, a daemon on loopback) are for this
# machine, not for registries. An engine such as Docker guards its own pulls.
#
# The time limit counts useful bytes (`LowSpeedLimit`, curl's term): less than `LOW_SPEED_BYTES_PER_SECOND` over
# `LOW_SPEED_SECONDS` counts as silence, however many other bytes arrive (interim answers, trailers, parts of chunks).


TIMEOUT_SECONDS = 30.0
"""Maximum seconds for connecting, and between two bytes."""
LOW_SPEED_SECONDS = 60.0
LOW_SPEED_BYTES_PER_SECOND = 1024


class ForbiddenAddressError(AgentError):
    """A host has only addresses that are not permitted."""


class ProxyRefusedError(AgentError):
    """The proxy refuses to connect. `status` is its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class LowSpeedLimit:
    """The minimum speed of answers, one after the other."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start to measure a new answer."""
        self._since, self._useful = time.monotonic(), 0

    def useful(self, count: int) -> None:
        """Count bytes of the requested content."""
        self._useful += count

    def check(self) -> None:
        """Raise TimeoutError if the useful bytes arrive too slowly."""
        waited = time.monotonic() - self._since
        if waited < LOW_SPEED_SECONDS:
            return
        if self._useful < LOW_SPEED_BYTES_PER_SECOND * waited:
            raise TimeoutError(f"too slow: {self._useful} useful bytes in {waited:.0f} s")
        self.begin()


class _LimitedReader(io.RawIOBase):
    """The bytes of a socket, as long as they arrive fast enough."""

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
    """The part of a socket that http.client uses."""

    def __init__(self, sock: socket.socket, low_speed: LowSpeedLimit) -> None:
        self._sock = sock
        self._low_speed = low_speed
        self.sendall, self.shutdown, self.close = sock.sendall, sock.shutdown, sock.close

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_LimitedReader(self._sock.makefile("rb", buffering=0), self._low_speed))


class RegistryConnection:
    """A connection to `host` over `scheme`, made at once, through a proxy if `proxies` names one.

    `local`: the host may be this machine or on its links. `context`: the trust for https; None: the system's
    authorities. `handshake_seconds`: time limit for each message of the TLS handshake. Raises OSError, HTTPException,
    ForbiddenAddressError, ProxyRefusedError, and ProxyError.
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
        self._prefix, self._headers = "", dict[str, str]()
        proxy_headers = {"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else {}
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
            self._headers = proxy_headers
        elif proxy is not None:
            self._tunnel(f"{authority}:{self._http.port}", proxy.url, proxy_headers)
        if scheme != "http":
            plain, context = self._socket, context or ssl.create_default_context()
            plain.settimeout(handshake_seconds)
            try:
                self._socket = context.wrap_socket(plain, server_hostname=host)
            except BaseException:
                plain.close()
                raise
            self._socket.settimeout(TIMEOUT_SECONDS)
        self._http.sock = _Socket(self._socket, low_speed)

    def _tunnel(self, authority: str, proxy_url: str, headers: Mapping[str, str]) -> None:
        """Connect through the proxy (RFC 9110 section 9.3.6)."""
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        try:
            self._socket.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii"))
            # The server is silent until TLS begins, so the reader only consumes the proxy's bytes.
            answer = http.client.HTTPResponse(_Socket(self._socket, self._low_speed), method="CONNECT")  # type: ignore[arg-type]
            answer.begin()
            answer.close()
            if not 200 <= answer.status < 300:
                reason = printable(f"{answer.status} {answer.reason}")[:200]
                raise ProxyRefusedError(f"the proxy {proxy_url} refuses to connect: {reason}", answer.status)
        except BaseException:
            self._socket.close()
            raise

    def get(self, target: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        """Send a request and wait for the headers of the answer. Raises OSError, HTTPException, ValueError."""
        self._low_speed.begin()
        self._http.request("GET", self._prefix + target, headers={**headers, **self._headers})
        return self._http.getresponse()

    def cut(self) -> None:
        """Interrupt a read in another thread."""
        with suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


def _kind(address: str) -> str:
    from tink.net import addresses

    found = addresses.parsed(address)
    return addresses.special(found) if found is not None else ""


def _check_name(host: str, port: int) -> None:
    """Raise ForbiddenAddressError if `host` has a special address. The proxy judges names that are unknown here."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    for *_, where in found:
        if why := _kind(str(where[0])):
            raise _forbidden(f"{where[0]}, {why}")


def _forbidden(where: str) -> ForbiddenAddressError:
    return ForbiddenAddressError(f"it sends us to {where}, which registries may not")


def _connected(host: str, port: int, *, local: bool) -> socket.socket:
    """Connect as `socket.create_connection` does; to this machine or its links only if `local`."""
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
    raise _forbidden(refused)


# --- Registries ---
#
# Requests manifests and layers of an image from a registry over HTTP, for `store`.
#
# Blocking calls of the standard library, made in a thread; `Session.abort` interrupts them from another. A session
# belongs to one pull: it holds the connection, the token and the last error.
#
# `tink.registry` decides how to answer a 401, and which manifest of an index fits this machine. Credentials are sent
# only to the registry that they are configured for, and its realm, never along a redirect to another host. The section
# "Connections" limits redirects and time.
#
# An insecure registry is meant as in Docker: HTTPS without verifying the certificate, and plain HTTP if the registry
# does not speak TLS.
#
# Sources: OCI distribution specification 1.1; Docker's daemon options (`insecure-registries`, `certs.d`).


ATTEMPTS = 5
PROBE_SECONDS = 3.0
"""How long an insecure registry may be silent in the TLS handshake before it is asked over plain HTTP. Some HTTP
servers wait for the end of a header that never comes."""
RETRY_AFTER_LIMIT_SECONDS = 60.0
"""Maximum delay in seconds that a registry may request (Retry-After)."""
CHUNK_BYTES = 128 * 1024
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NAME_MISMATCH = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""
_OUT_OF_DATE = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class TransientError(AgentError):
    """A failure of the network or the registry that may pass; `wait` is the registry's requested delay in seconds."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class AbortedError(AgentError):
    """`Session.abort` was called."""


def parse(image: str) -> Reference:
    """Parse the name of an action's image. Raises ActionError."""
    try:
        return parse_name(image)
    except RegistryError as error:
        raise ActionError(Reason.IMAGE_PULL_FAILED, str(error)) from error


@dataclass(frozen=True, slots=True)
class Registries:
    """The configuration of registries. Hosts may be written as URLs.

    `insecure`: hosts, host:port or networks in CIDR notation. As with Docker, this machine itself is always insecure.
    `credentials`: users, each of a registry or of a path in one. `authorities`: certificates (PEM) that a registry's
    own may be signed by, besides those of the system; by host[:port]. `plain`: insecure ones, by host[:port], that are
    known to speak no TLS.
    """

    insecure: tuple[str, ...] = ()
    credentials: tuple[Credentials, ...] = ()
    authorities: Mapping[str, str] = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    proxies: Proxies = NONE

    def is_insecure(self, host: str) -> bool:
        """Return True if the registry `host[:port]` needs no TLS and no valid certificate."""
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        name = name.strip("[]")
        hosts = {host_of(each) for each in self.insecure}
        if host in hosts or name in hosts or name == "localhost":
            return True
        import ipaddress

        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        if address.is_loopback:
            return True
        for item in self.insecure:
            with suppress(ValueError):  # a host name, compared above
                if address in ipaddress.ip_network(item, strict=False):
                    return True
        return False

    def credentials_for(self, reference: Reference) -> Credentials | None:
        """Return the credentials that the repository of `reference` may see."""
        return credentials_for(reference, self.credentials)

    def authority_of(self, host: str) -> str:
        """Return the certificates (PEM) that sign the registry `host[:port]`'s own; empty: the system's alone."""
        known = {host_of(name).removesuffix(":443"): pem for name, pem in self.authorities.items()}
        return known.get(host.removesuffix(":443"), "")


class Session:
    """One pull from the registry of `reference`. For one thread; `abort` may be called from any other."""

    def __init__(
        self,
        reference: Reference,
        registries: Registries,
        sleep: Callable[[float], object] | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.reference = reference
        self._registries = registries
        self._insecure = registries.is_insecure(reference.host)
        self._credentials = registries.credentials_for(reference)
        self._login = Login(
            reference, self._credentials, insecure=self._insecure, remedy=how_to_log_in(reference, registries)
        )
        # Edges are known to speak plain HTTP; other insecure registries are tried with TLS first.
        self._is_plain = self._is_known_plain = self._insecure and reference.host in registries.plain
        self._is_doubtful = False
        self._handshake_seconds = PROBE_SECONDS
        self._trust: ssl.SSLContext | None = None
        self._aborted = threading.Event()
        self._sleep = sleep or self._aborted.wait
        self._note = note or log.info
        self._connection: RegistryConnection | None = None
        self._connected_to = ("", "")
        self._low_speed = LowSpeedLimit()
        self._local = True  # until we know where the registry is

    def abort(self) -> None:
        """Make the running call, and all later ones, raise AbortedError soon."""
        self._aborted.set()
        connection = self._connection
        if connection is not None:  # else the flag is seen before the next request
            connection.cut()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def manifest(self, version: str) -> bytes:
        """Return a manifest or index by tag or digest. Raises RegistryError, TransientError, AbortedError."""
        return self._document(f"/manifests/{version}", "manifest")

    def config(self, digest: str) -> bytes:
        """Return an image configuration. Raises as `manifest`."""
        return self._document(f"/blobs/{digest}", "configuration")

    def blob(self, digest: str, offset: int) -> tuple[int, Iterator[bytes]]:
        """Return the bytes of a blob, and the offset at which they begin: `offset`, or 0 if the registry can't resume.

        Makes one attempt; the bytes may end early. Raises as `manifest`, also while the bytes are read.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        response = self._request(f"/blobs/{digest}", headers)
        resumed = response.status == 206 and response.getheader("Content-Range", "").startswith(f"bytes {offset}-")
        if response.status not in (200, 206) or (response.status == 206 and not resumed):
            raise self._failure(response, f"blob {digest}")

        def chunks() -> Iterator[bytes]:
            while chunk := self._read(response):
                yield chunk
            response.read()  # nothing: it lets the connection be used again

        return (offset if resumed else 0), chunks()

    def retry_pause(self, backoff: Backoff, least: float = 0.0) -> None:
        """Wait before the next attempt, at least `least` seconds. Raises AbortedError."""
        self._sleep(max(backoff.next(), least))
        self.check_aborted()

    def _document(self, path: str, what: str) -> bytes:
        """Return a document of the repository, after several attempts if necessary."""
        backoff = retry_backoff()
        for _ in range(1, ATTEMPTS):
            try:
                return self._read_document(path, what)
            except TransientError as error:
                self._note(f"{error}; trying again")
                self.retry_pause(backoff, error.wait)
        return self._read_document(path, what)

    def _read_document(self, path: str, what: str) -> bytes:
        response = self._request(path, {"Accept": ", ".join(MANIFEST_TYPES)} if what == "manifest" else {})
        if response.status != 200:
            raise self._failure(response, what)
        return self._read_all(response)

    @property
    def _base(self) -> str:
        scheme = "http" if self._is_plain else "https"
        return f"{scheme}://{self.reference.api_host}/v2/{self.reference.path}"

    def _request(self, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """GET `path` of the repository with the login that the registry wants, following redirects."""
        if self._insecure and not self._is_plain:
            self._find_scheme()
        url = f"{self._base}{path}"
        response = self._follow(url, headers)
        if response.status == http.client.BAD_REQUEST and self._is_doubtful:
            # This is how HTTPS servers answer plain HTTP: the registry speaks TLS and was only slow.
            self.close()
            self._is_plain, self._is_doubtful, self._handshake_seconds = False, False, TIMEOUT_SECONDS
            raise TransientError(f"{self.reference.host}: no answer to TLS in {PROBE_SECONDS:g} s")
        if response.status != 401:
            return response
        if self._connected_to != _split(url)[:2]:
            # Credentials go neither to the target of a redirect nor to the realm that it names.
            raise RegistryError(f"it redirects to {self._connected_to[1]}, which requires its own login")
        challenges = response.headers.get_all("WWW-Authenticate") or []
        self.close()  # drops the rest of the answer
        for _ in self._login.answers(challenges, self._read_token):
            response = self._follow(url, headers)
            if response.status != 401 or self._connected_to != _split(url)[:2]:
                return response
            failure = self._failure(response, path[1:].partition("/")[0].removesuffix("s"))
        raise failure

    def _find_scheme(self) -> None:
        """Connect to an insecure registry by TLS, or by plain HTTP if it does not speak TLS.

        Raises RegistryError, TransientError, AbortedError.
        """
        url = _split(self._base)
        if self._connection is not None and self._connected_to == url[:2]:
            return
        self.check_aborted()
        self.close()
        try:
            self._connect(url, self._handshake_seconds)
        except RegistryError as error:
            if not isinstance(error.__cause__, ProxyRefusedError):
                raise
            self._is_plain = True  # many proxies connect to port 443 alone
        except OSError as error:
            self.check_aborted()
            if self._has_proxy_for_http_alone(url):
                self._is_plain = True
                return
            # The handshake fails with what does not speak TLS. Without a port, plain HTTP is at another one, 80.
            self._is_doubtful = isinstance(error, TimeoutError) and "handshake" in str(error)
            is_refused = isinstance(error, ssl.SSLError | ConnectionResetError | BrokenPipeError)
            if not (is_refused or self._is_doubtful) and (url.port is not None or isinstance(error, socket.gaierror)):
                raise TransientError(f"{url.netloc}: {_cause(error)}") from error
            self._is_plain = True

    def _has_proxy_for_http_alone(self, url: urllib.parse.SplitResult) -> bool:
        """Return True if HTTP_PROXY is for this host and HTTPS_PROXY is not: then TLS may have no route."""
        try:
            with_tls, plain = (
                self._registries.proxies.proxy_of(f"{scheme}://{url.netloc}/", with_tls=False)
                for scheme in ("https", "http")
            )
        except ProxyError:
            return True  # the request itself reports the error
        return with_tls is None and plain is not None

    def _read_token(self, url: str, headers: Mapping[str, str]) -> bytes:
        self.close()
        response = self._get(url, headers)
        if response.status != 200:
            raise self._failure(response, "token")
        return self._read_all(response)

    def _follow(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        home = _split(url)[:2]
        for _ in range(6):
            at_home = self._login.authorization and _split(url)[:2] == home
            response = self._get(url, {**headers, "Authorization": self._login.authorization} if at_home else headers)
            if response.status not in _REDIRECTS:
                return response
            location = response.getheader("Location", "")
            self.close()
            try:
                target = urllib.parse.urljoin(url, as_written(location, "latin-1"))  # http.client decodes so
            except ValueError as error:
                raise RegistryError(f"it redirects to {shown(location)}, which is no URL") from error
            if not self._insecure and not target.startswith("https://"):
                raise RegistryError(f"it redirects to {_shown(target)}, which is not https")
            url = target
        raise RegistryError("it redirects more than five times")

    def _get(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self.check_aborted()
        parts = _split(url)
        if parts.netloc.rpartition("@")[0]:  # of a redirect: Docker sends it as Basic, too
            url, login = without_login(url)
            parts, headers = _split(url), {"Authorization": login, **headers}
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if self._connected_to != (parts.scheme, parts.netloc):
            self.close()
        kept = self._connection is not None
        try:
            connection = self._connection or self._connect(parts)
            return connection.get(target, {"User-Agent": "tinkedge-agent", **headers})
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            self.check_aborted()
            if kept:
                return self._get(url, headers)  # the registry closed it while a layer was unpacked
            self._is_plain = self._is_known_plain  # the next attempt looks again for TLS
            if isinstance(error, ssl.SSLEOFError):  # what a server does that ends, and some that speak no TLS
                raise TransientError(self._explain_tls(error, parts.netloc)) from error
            if isinstance(error, ssl.SSLError):
                raise RegistryError(self._explain_tls(error, parts.netloc)) from error
            raise TransientError(f"{parts.netloc}: {_cause(error)}") from error

    def _explain_tls(self, error: ssl.SSLError, where: str) -> str:
        """Return the reason and the remedy of a TLS failure with the server `where` (host[:port])."""
        host = self.reference.host
        insecure = f"name it with --insecure-registry {host}"
        if not isinstance(error, ssl.SSLCertVerificationError):
            return f"TLS with {where}: {error.reason or error}; if it is an insecure registry, {insecure}"
        if error.verify_code in _NAME_MISMATCH:
            remedy = "use a name that its certificate has"
        elif error.verify_code in _OUT_OF_DATE:
            remedy = "renew its certificate, or set the clock of this machine"
        else:
            remedy = f"give the edge the certificate that signs it, --registry-ca {host}=FILE"
        return f"TLS with {where}: {error.verify_message}; {remedy}, or {insecure}"

    def _context(self) -> ssl.SSLContext:
        """Return the trust of this session, for the registry, its token service and its storage, as in Docker."""
        if self._trust is None:
            self._trust = ssl.create_default_context()
            if self._insecure:
                self._trust.check_hostname = False
                self._trust.verify_mode = ssl.CERT_NONE
            elif authority := self._registries.authority_of(self.reference.host):
                try:
                    self._trust.load_verify_locations(cadata=authority)
                except (ssl.SSLError, ValueError) as error:
                    raise RegistryError(f"the authority of {self.reference.host} is not PEM: {error}") from error
                # As Go's clients do: any certificate that is given is an anchor, and Python 3.13's strict rules for
                # the fields of authorities do not hold.
                self._trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                self._trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return self._trust

    def _connect(
        self, parts: urllib.parse.SplitResult, handshake_seconds: float = TIMEOUT_SECONDS
    ) -> RegistryConnection:
        """Connect to the registry, or to the target of its redirect. Raises OSError, RegistryError."""
        where = (parts.scheme, parts.netloc)
        at_home = where == _split(self._base)[:2]
        try:
            made = RegistryConnection(
                parts.scheme,
                parts.hostname or "",
                parts.port,
                self._low_speed,
                local=at_home or self._local,
                context=self._context() if parts.scheme == "https" else None,
                handshake_seconds=handshake_seconds,
                proxies=self._registries.proxies,
            )
        except (ForbiddenAddressError, ProxyError) as error:
            raise RegistryError(str(error)) from error
        except ProxyRefusedError as error:
            kind = TransientError if error.status in _TRANSIENT else RegistryError
            raise kind(str(error)) from error
        if at_home:
            self._local = made.is_local
        self._connection, self._connected_to = made, where
        return made

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            self.check_aborted()
            chunk = response.read1(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            self.check_aborted()
            raise TransientError(f"{self._connected_to[1]}: {_cause(error)}") from error
        self._low_speed.useful(len(chunk))
        return chunk

    def _read_all(self, response: http.client.HTTPResponse) -> bytes:
        content = bytearray()
        while chunk := self._read(response):
            content += chunk
            if len(content) > MANIFEST_LIMIT_BYTES:
                self.close()
                raise RegistryError(f"it sent more than {MANIFEST_LIMIT_BYTES} bytes where a short answer belongs")
        if response.length:
            self.close()
            raise TransientError(f"{self._connected_to[1]}: the answer ended {response.length} bytes early")
        response.read()  # nothing: else the next request on this connection is made twice
        return bytes(content)

    def _failure(self, response: http.client.HTTPResponse, what: str) -> RegistryError | TransientError:
        """Return the error that `response` means for the request of `what`."""
        status = response.status
        try:
            body = response.read(16 * 1024)
        except (OSError, http.client.HTTPException):
            body = b""
        self.close()
        text = f"{what}: HTTP {status} {response.reason}"
        try:
            error = json.loads(body)["errors"][0]
            text = f"{error.get('message') or error['code']} ({what}, HTTP {status})"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            # Not every registry sends the body that the specification requires.
            if status == http.client.NOT_FOUND and what == "manifest":
                text = "the registry has no such image, or no such tag (HTTP 404)"
        text = _shown(text)
        if status in _TRANSIENT:
            # A date (clocks may be wrong) or an invalid value counts as no request to wait.
            wait = response.getheader("Retry-After", "")
            seconds = float(wait) if re.fullmatch(r"[0-9]{1,9}", wait) else 0.0
            return TransientError(text, min(seconds, RETRY_AFTER_LIMIT_SECONDS))
        if status in (401, 403) and self._credentials:
            text += f"; it refuses the user {_shown(self._credentials.username)}"
        elif status in (401, 403):
            text += f"; if it is private, {how_to_log_in(self.reference, self._registries)}"
        return RegistryError(text)

    def check_aborted(self) -> None:
        """Raise AbortedError if the pull was stopped."""
        if self._aborted.is_set():
            raise AbortedError("stopped")


def retry_backoff(first: float = 0.5) -> Backoff:
    """Return the delays between `ATTEMPTS` in seconds, from `first` to 8; without jitter, so that the last is late."""
    return Backoff(first, 8.0, uniform=max)


def _split(url: str) -> urllib.parse.SplitResult:
    """Split an http or https URL. Raises RegistryError for any other."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise RegistryError(f"it names {shown(url)}, which is no http or https URL")
    return parts


def how_to_log_in(reference: Reference, registries: Registries) -> str:
    """Return the remedy for a login that the registry of `reference` wants."""
    others = ", ".join(_shown(each.scope) for each in registries.credentials)
    note = f" (the credentials given are for {others})" if others else ""
    return f"boot with docker_registry={reference.host}, registry_username= and registry_password={note}"


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or _shown(str(error)) or type(error).__name__


def _shown(text: str) -> str:
    """Return a registry's text for a log line, its URLs without logins and queries, which contain signatures."""
    return printable(redacted(text))[:300]
