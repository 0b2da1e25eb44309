"""Talking to a registry: manifests and layers of an image over HTTP, for `store`.

Blocking calls of the standard library, to be made in a thread; `Session.abort` ends them from another. A session
belongs to one pull: it holds the connection, the token and the last error.

Authentication: a registry answers 401 with `WWW-Authenticate`; `Basic` is answered with the configured credentials,
`Bearer` with a token fetched from the realm it names. Credentials go to the one registry they were configured for (and
the realm it names), never along a redirect to another host. Where it may send us, and how long it may take, is
`connection`'s.

Sources: OCI distribution specification 1.0; Docker registry token authentication.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tink.agent.images.connection import Connection, LowSpeedLimit, RefusedError
from tink.agent.images.reference import DEFAULT_HOST, Reference
from tink.agent.model import AgentError
from tink.limits.backoff import Backoff
from tink.net.urls import as_written
from tink.printable import printable

log = logging.getLogger(__name__)

ATTEMPTS = 5
RETRY_AFTER_LIMIT_SECONDS = 60.0
"""How long a registry that says when to come again (Retry-After) is obeyed."""
CHUNK_BYTES = 128 * 1024
MANIFEST_LIMIT_BYTES = 4 * 1024 * 1024
"""The distribution specification's own limit for a manifest."""
MAX_VALUES = 100_000
"""Maximum number of values in a manifest or configuration: two bytes of JSON take some 70 bytes in Python."""

MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHALLENGE_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,]+))')


class RegistryError(AgentError):
    """The registry said no, or what it sent is not what it should be; trying again will not help."""


class TransientError(AgentError):
    """The network or the registry failed in a way that may pass, in `wait` seconds if the registry said so."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class AbortedError(AgentError):
    """`Session.abort` was called."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user of the registry `host`."""

    host: str
    username: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        pair = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


@dataclass(frozen=True, slots=True)
class Registries:
    """What is configured about registries: which are spoken to in plain HTTP, and credentials for one.

    `insecure`: hosts, host:port or networks in CIDR notation. As with Docker, this machine itself is always insecure.
    """

    insecure: tuple[str, ...] = ()
    credentials: Credentials | None = None

    def is_insecure(self, host: str) -> bool:
        """Whether the registry `host[:port]` is spoken to over plain HTTP."""
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        name = name.strip("[]")
        if host in self.insecure or name in self.insecure or name == "localhost":
            return True
        import ipaddress

        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        if address.is_loopback:
            return True
        for item in self.insecure:
            try:
                if address in ipaddress.ip_network(item, strict=False):
                    return True
            except ValueError:
                continue  # a host name, compared above
        return False

    def credentials_for(self, host: str) -> Credentials | None:
        """The credentials that `host` may see."""
        if self.credentials and self.credentials.host.rstrip("/") == host:
            return self.credentials
        return None


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
        self._credentials = registries.credentials_for(reference.host)
        host = "registry-1.docker.io" if reference.host == DEFAULT_HOST else reference.host
        self._base = f"{'http' if self._insecure else 'https'}://{host}/v2/{reference.path}"
        self._authorization = ""
        self._aborted = threading.Event()
        self._sleep = sleep or self._aborted.wait
        self._note = note or log.info
        self._connection: Connection | None = None
        self._connected_to = ("", "")
        self._low_speed = LowSpeedLimit()
        self._local = True  # until we know where the registry is

    def abort(self) -> None:
        """Make the call that is under way, and all later ones, raise AbortedError soon."""
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
        """The manifest or index `version` (tag or digest). Raises RegistryError, TransientError, AbortedError."""
        return self._retry(lambda: self._manifest(version))

    def blob(self, digest: str, offset: int) -> tuple[int, Iterator[bytes]]:
        """The bytes of blob `digest` from `offset` on, and where they really begin: 0 if it cannot resume.

        One attempt only: the caller knows how much it has got. They may end early. Raises as `manifest`, also while
        the bytes are read.
        """
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        response = self._request(f"{self._base}/blobs/{digest}", headers)
        resumed = response.status == 206 and response.getheader("Content-Range", "").startswith(f"bytes {offset}-")
        if response.status not in (200, 206) or (response.status == 206 and not resumed):
            raise self._failure(response, f"blob {digest}")
        return (offset if resumed else 0), self._chunks(response)

    def retry_pause(self, backoff: Backoff, least: float = 0.0) -> None:
        """Wait before the next attempt, at least `least` seconds. Raises AbortedError."""
        self._sleep(max(backoff.next(), least))
        self.check_aborted()

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        while chunk := self._read(response):
            yield chunk
        response.read()  # nothing: it lets the connection be used again

    def _retry(self, attempt: Callable[[], bytes]) -> bytes:
        backoff = retry_backoff()
        for _ in range(1, ATTEMPTS):
            try:
                return attempt()
            except TransientError as error:
                self._note(f"{error}; trying again")
                self.retry_pause(backoff, error.wait)
        return attempt()

    def _manifest(self, version: str) -> bytes:
        response = self._request(f"{self._base}/manifests/{version}", {"Accept": ", ".join(MANIFEST_TYPES)})
        if response.status != 200:
            raise self._failure(response, "manifest")
        return self._read_all(response)

    def _request(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """GET `url` with what the registry wants for authentication, following redirects."""
        response = self._follow(url, headers)
        if response.status == 401:
            if self._connected_to != _split(url)[:2]:
                # Credentials are not for who the registry sends us to, nor for the realm that such a one names.
                raise RegistryError(f"it redirects to {self._connected_to[1]}, which wants a login of its own")
            challenge = response.getheader("WWW-Authenticate", "")
            self.close()  # with the rest of the answer
            self._authorization = self._authorize(challenge)
            response = self._follow(url, headers)
        return response

    def _follow(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        home = _split(url)[:2]
        for _ in range(6):
            extra = {}
            if self._authorization and _split(url)[:2] == home:
                extra["Authorization"] = self._authorization
            response = self._get(url, {**headers, **extra})
            if response.status not in _REDIRECTS:
                return response
            location = response.getheader("Location", "")
            self.close()
            try:
                target = urllib.parse.urljoin(url, as_written(location, "latin-1"))  # http.client decodes so
            except ValueError as error:
                raise RegistryError(f"it redirects to {_shown(location)}, which is no URL") from error
            if not self._insecure and not target.startswith("https://"):
                raise RegistryError(f"it redirects to {_shown(target)}, which is not https")
            url = target
        raise RegistryError("it redirects more than five times")

    def _get(self, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        self.check_aborted()
        parts = _split(url)
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
            if isinstance(error, ssl.SSLError):
                hint = "" if isinstance(error, ssl.SSLCertVerificationError) else "; is it an insecure registry?"
                raise RegistryError(f"TLS with {parts.netloc}: {error.reason or error}{hint}") from error
            raise TransientError(f"{parts.netloc}: {_cause(error)}") from error

    def _connect(self, parts: urllib.parse.SplitResult) -> Connection:
        """Connect to the registry itself, or to where it sends us. Raises OSError, RegistryError."""
        where = (parts.scheme, parts.netloc)
        at_home = where == _split(self._base)[:2]
        try:
            made = Connection(
                parts.scheme, parts.hostname or "", parts.port, self._low_speed, local=at_home or self._local
            )
        except RefusedError as error:
            raise RegistryError(str(error)) from error
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

    def _authorize(self, challenge: str) -> str:
        """The Authorization header that `challenge` asks for."""
        scheme, _, rest = challenge.partition(" ")
        parameters = {name: quoted or bare for name, quoted, bare in _CHALLENGE_PARAMETER.findall(rest)}
        if scheme.lower() == "basic":
            if not self._credentials:
                raise RegistryError(f"it wants a user and password; {self._how_to_log_in()}")
            if self._authorization:
                raise RegistryError(f"it refuses the user {self._credentials.username}")
            return self._credentials.basic
        realm = parameters.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            raise RegistryError(f"it asks for an authentication that is unknown here: {_shown(challenge)}")
        if not self._insecure and not realm.startswith("https://"):
            raise RegistryError(f"its token service {_shown(realm)} is not https")
        query = {"scope": f"repository:{self.reference.path}:pull"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        headers = {"Authorization": self._credentials.basic} if self._credentials else {}
        separator = "&" if "?" in realm else "?"
        response = self._get(realm + separator + urllib.parse.urlencode(query), headers)
        if response.status != 200:
            raise self._failure(response, "token")
        answer = json_object(self._read_all(response), "token answer")
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise RegistryError("its token service sent no token")
        return f"Bearer {token}"

    def _failure(self, response: http.client.HTTPResponse, what: str) -> AgentError:
        """The error that `response` means for `what` was asked for."""
        status = response.status
        try:
            body = response.read(16 * 1024)
        except (OSError, http.client.HTTPException):
            body = b""  # the status alone has to do
        self.close()
        text = f"{what}: HTTP {status} {response.reason}"
        try:
            error = json.loads(body)["errors"][0]
            text = f"{error.get('message') or error['code']} ({what}, HTTP {status})"
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            # Not every registry explains itself as the specification says.
            if status == http.client.NOT_FOUND and what == "manifest":
                text = "the registry has no such image, or no such tag (HTTP 404)"
        if status in _TRANSIENT:
            return TransientError(_shown(text), _seconds(response.getheader("Retry-After", "")))
        text = _shown(text)
        if status in (401, 403) and not self._credentials:
            text += f"; if it is private, {self._how_to_log_in()}"
        return RegistryError(text)

    def _how_to_log_in(self) -> str:
        given = self._registries.credentials
        others = f" (the credentials given are for {_shown(given.host)})" if given else ""
        return f"boot with docker_registry={self.reference.host}, registry_username= and registry_password={others}"

    def check_aborted(self) -> None:
        """Raise AbortedError if the pull was stopped."""
        if self._aborted.is_set():
            raise AbortedError("stopped")


def retry_backoff(first: float = 0.5) -> Backoff:
    """The pauses between `ATTEMPTS`, in seconds: `first`, and twice as long each time; what an engine is asked, too."""
    return Backoff(first, 8.0, uniform=max)  # without jitter: the last attempt is to be as late as can be waited for


def _split(url: str) -> urllib.parse.SplitResult:
    """The parts of `url`. Raises RegistryError."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise RegistryError(f"it names {_shown(url)}, which is no http or https URL")
    return parts


def _seconds(retry_after: str) -> float:
    """What a Retry-After asks for; 0 for a date, which is right only where the clock is, and for nonsense."""
    return min(float(retry_after), RETRY_AFTER_LIMIT_SECONDS) if re.fullmatch(r"[0-9]{1,9}", retry_after) else 0.0


def json_object(content: bytes, what: str) -> dict[str, Any]:
    """Parse `content`, a JSON object that messages call `what`. Raises RegistryError."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise RegistryError(f"its {what} has more than {MAX_VALUES} values")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"its {what} is not JSON") from error
    if not isinstance(value, dict):
        raise RegistryError(f"its {what} is not a JSON object")
    return value


def _cause(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _shown(text: str) -> str:
    return printable(text)[:300]
