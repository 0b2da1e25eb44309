"""The Kubernetes API client: get, list, create, patch, delete, and the raw watch that the informer reads.

kubernetes-asyncio reads the kubeconfig or the pod's service account, refreshes credentials and builds the TLS
connector. The calls use aiohttp and orjson over that connector, because the library's own calls cost three times as
much and send the wrong content type for patches of custom objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from yarl import URL

from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError
from tink.kube.library import library
from tink.kube.objects import NamespacedName
from tink.kube.resources import NAMESPACE, ResourceType
from tink.metrics import Histograms
from tink.net.outbound import no_answer, through_proxies
from tink.net.proxies import Proxies

MERGE_PATCH = "application/merge-patch+json"
"""RFC 7386: null removes a field, a list is replaced whole."""
_APPLY_PATCH = "application/apply-patch+yaml"

log = logging.getLogger(__name__)

_NO_KUBECONFIG = (OSError, ValueError, TypeError, LookupError, AttributeError, yaml.YAMLError)
"""The exceptions of the library for a file that is not a kubeconfig."""
_NOT_ONE = "not a kubeconfig (YAML or JSON with clusters, users and contexts)"
_GET_ONE = "name one that kubectl works with"
_RECHECK_SECONDS = 1.0
"""Minimum time between two looks at the kubeconfig file."""
_CALL_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_MAX_MESSAGE = 2000
_PROBES = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""TCP keepalive of a watch: seconds of silence until the first probe, seconds between two probes, and the number of
unanswered probes that end the connection."""

_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Histogram bounds in seconds, as in client-go."""
_NO_ANSWER = "<error>"  # client-go's word in place of a status

_BUSY = (429, 503)
"""Too Many Requests and Service Unavailable: with Retry-After, the API has done nothing, so a retry is safe."""
_MAX_RETRIES = 10
_RETRY_SECONDS = 30.0
"""Maximum number of such retries of one call (as in client-go), and their maximum time together."""
_MAX_RETRY_AFTER = 60.0
_REFUSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""Errors of a connection that the API closes before it has read a request, because it has too many."""
_REFUSED_PAUSES = (0.05, 0.2, 0.8)
"""Pauses before further attempts in that case; the API has done nothing, so a retry of any request is safe."""

Authorize = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the headers that authenticate a request; called before each, because tokens expire."""

_UNAVAILABLE = (0, 429)


class KubeConfigError(TinkedgeError):
    """The kubeconfig or the pod's service account can't be used; the message names it and the reason."""


class ApiError(TinkedgeError):
    """The API answered with an error, or did not answer (status 0).

    `status` is the HTTP status, `reason` the machine readable word of the Status object and `message` its sentence.
    `retry_after` is the number of seconds of the header Retry-After; 0 without that.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({reason}, {status})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.has_retry_after = retry_after is not None
        self.retry_after = retry_after or 0.0

    @property
    def is_away(self) -> bool:
        """True if the API did not answer, or answered that it is not able to at this time."""
        return self.status in _UNAVAILABLE or self.status >= 500


class NotFoundError(ApiError):
    """404: the object or its resource type does not exist."""


class ConflictError(ApiError):
    """409: the object has changed since its resourceVersion, or an object of that name exists."""


class UnreachableError(ApiError):
    """The API could not be reached, or the connection broke.

    The API may have processed the request, unless `is_refused`: then it closed the connection before the request.
    """

    def __init__(self, message: str, *, is_refused: bool = False) -> None:
        super().__init__(0, "Unreachable", message)
        self.is_refused = is_refused


def api_error(status: int, body: Any, retry_after: float | None = None) -> ApiError:
    """Return the error of a response or of a watch's ERROR event; `body` is a Status object, or any other content."""
    reason, message = "", ""
    if isinstance(body, dict):
        reason, message = str(body.get("reason") or ""), str(body.get("message") or "")
    elif isinstance(body, bytes):
        message = body.decode("utf-8", "replace").strip()
    reason = reason or {404: "NotFound", 409: "Conflict", 410: "Expired"}.get(status, "Unknown")
    message = (message or f"the API answered with HTTP status {status}")[:_MAX_MESSAGE]
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ApiError)
    return kind(status, reason, message, retry_after)


def _one_line(error: Exception) -> str:
    """Return the message of an error without line breaks, which YAML's errors have and a log writes as escapes."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        return f"line {mark.line + 1}: {problem}"
    return " ".join(str(error).split())


def _kubeconfig(path: Path) -> dict[str, Any]:
    """Return the content of a kubeconfig. Raises KubeConfigError, OSError or yaml.YAMLError."""
    found = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    if not isinstance(found, dict):
        raise KubeConfigError(f"kubeconfig {path}: {_NOT_ONE}; {_GET_ONE}")
    return found


async def _configuration(kubeconfig: Path | None, context: str | None) -> Any:
    """Return the library's configuration of a kubeconfig, or of the pod without one. Raises KubeConfigError."""
    kubernetes = library()
    configuration = kubernetes.configuration()
    try:
        if kubeconfig is None:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
            return configuration
        if not kubeconfig.is_file():  # noqa: ASYNC240 - at start, and when it has changed
            what = "is a directory" if kubeconfig.is_dir() else "no such file"  # noqa: ASYNC240 - as above
            raise KubeConfigError(f"kubeconfig {kubeconfig}: {what}; {_GET_ONE}")
        await kubernetes.kubeconfig_loader(str(kubeconfig), _kubeconfig(kubeconfig), context).load_and_set(
            configuration
        )
    except kubernetes.config.ConfigException as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig is not None else "service account of this pod"
        remedy = "; outside of a cluster, give --kubeconfig FILE" if kubeconfig is None else f"; {_GET_ONE}"
        raise KubeConfigError(f"{where}: {_one_line(error).rstrip('.')}{remedy}") from error
    except OSError as error:
        raise KubeConfigError(f"kubeconfig {kubeconfig}: can't be read: {error.strerror or error}") from error
    except _NO_KUBECONFIG as error:
        raise KubeConfigError(f"kubeconfig {kubeconfig}: {_NOT_ONE}: {_one_line(error)}; {_GET_ONE}") from error
    return configuration


class _Credentials:
    """The headers that authenticate. The credentials of a changed kubeconfig are read again, but not its server."""

    def __init__(self, api: Any, kubeconfig: Path | None, context: str | None) -> None:
        self._api, self._kubeconfig, self._context = api, kubeconfig, context
        self._checked_at = time.monotonic()
        self._state = self._stat()

    async def __call__(self) -> Mapping[str, str]:
        if self._kubeconfig is not None and time.monotonic() - self._checked_at >= _RECHECK_SECONDS:
            self._checked_at = time.monotonic()
            state = self._stat()
            if state != self._state:
                self._state = state
                await self._reread()
        headers: dict[str, str] = {}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def _reread(self) -> None:
        try:
            found = await _configuration(self._kubeconfig, self._context)
        except KubeConfigError as error:
            log.error("the credentials stay unchanged: %s", error)
            return
        for name in ("api_key", "api_key_prefix", "refresh_api_key_hook"):
            setattr(self._api.configuration, name, getattr(found, name))
        log.info("kubeconfig %s has changed: its credentials are used from now on", self._kubeconfig)

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._kubeconfig.stat() if self._kubeconfig is not None else None
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else ()


class KubeClient:
    """A client of one Kubernetes API. Create it with `connect`, use it in one event loop, and `close` it."""

    def __init__(
        self,
        url: str,
        connector: aiohttp.BaseConnector,
        authorize: Authorize,
        *,
        proxy: str | None = None,
        server_hostname: str | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        cluster: frozenset[str] = frozenset(),
    ) -> None:
        """Create a client. `clock` (seconds) measures durations, `sleep` waits before retries of a busy API, and
        `cluster` has the identities of the cluster (`cluster_ids`)."""
        self._clock = clock
        self._sleep = sleep
        self.cluster = cluster or cluster_ids(url, None)
        self._host = URL(url).authority
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """Number of requests by status, method and host."""
        self.retries: Counter[tuple[str, str, str]] = Counter()
        """Number of requests that were repeated, by status, method and host."""
        self.durations = Histograms(_BUCKETS)
        """Seconds until an answer began, by method and host."""
        self.url = url.rstrip("/")
        self._authorize = authorize
        self._proxy = proxy
        self._server_hostname = server_hostname
        self._close = close
        self._session = aiohttp.ClientSession(
            connector=connector,
            connector_owner=close is None,
            # The environment of a process does not change, and most have no proxy.
            middlewares=(through_proxies,) if Proxies.of(os.environ) else (),
            cookie_jar=aiohttp.DummyCookieJar(),  # an API sets none, and each request would look for them
            headers={"User-Agent": "tinkedge"},  # names the field manager of patches, and stands in audit logs
        )

    @classmethod
    async def connect(cls, kubeconfig: Path | None, context: str | None = None) -> KubeClient:
        """Return a client for a context of `kubeconfig` (default: its current one), or of this pod's cluster.

        Nothing is sent yet. Raises KubeConfigError.
        """
        configuration = await _configuration(kubeconfig, context)
        try:
            api = library().api_client(configuration)
        except _NO_KUBECONFIG as error:  # its certificates
            raise KubeConfigError(f"kubeconfig {kubeconfig}: {error}") from error
        authorize = _Credentials(api, kubeconfig, context)
        connector = api.rest_client.pool_manager.connector
        if not configuration.host or connector is None:
            raise KubeConfigError(f"kubeconfig {kubeconfig}: the current context has no server")
        return cls(
            configuration.host,
            connector,
            authorize,
            proxy=configuration.proxy,
            server_hostname=configuration.tls_server_name,
            close=api.close,
            cluster=cluster_ids(configuration.host, configuration.ssl_ca_cert),
        )

    async def __aenter__(self) -> KubeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Calls in progress raise UnreachableError."""
        await self._session.close()
        if self._close is not None:
            await self._close()

    async def get(self, resource: ResourceType, name: str, namespace: str | None) -> Raw:
        """Read one object. Raises NotFoundError, ApiError."""
        return await self._call("GET", resource.path(namespace, name))

    async def list(
        self,
        resource: ResourceType,
        namespace: str | None = None,
        *,
        limit: int = 0,
        after: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Raw:
        """Return the List of a collection with `items` and the `metadata.resourceVersion` to watch from.

        Without `namespace` it has the objects of all namespaces. With `limit` it is a page of so many objects, and its
        `metadata.continue` is `after` for the next page. Raises ApiError (410 if a page is requested too late after the
        first).
        """
        query = {"limit": str(limit)} if limit else {}
        if after:
            query["continue"] = after
        if label_selector:
            query["labelSelector"] = label_selector
        if field_selector:
            query["fieldSelector"] = field_selector
        return await self._call("GET", resource.path(namespace), query=query)

    async def create(self, resource: ResourceType, obj: Raw, namespace: str | None = None) -> Raw:
        """Create an object and return it; the default namespace is the object's own.

        Raises ConflictError if it exists, ApiError.
        """
        namespace = namespace or obj.get("metadata", {}).get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"{resource.kind}: metadata.namespace is missing")
        return await self._call("POST", resource.path(namespace), body=obj)

    async def patch(
        self, resource: ResourceType, name: str, namespace: str | None, patch: Raw, *, subresource: str | None = None
    ) -> Raw:
        """Merge `patch` into an object (RFC 7386) and return the result.

        A patch with `metadata.resourceVersion` applies to that version only; for another one ConflictError is raised.
        Raises NotFoundError, ConflictError, ApiError.
        """
        return await self._call("PATCH", resource.path(namespace, name, subresource), body=patch, content=MERGE_PATCH)

    async def apply(
        self, resource: ResourceType, name: str, namespace: str | None, obj: Raw, *, manager: str, force: bool = False
    ) -> Raw:
        """Apply an object on the server side and return the result; it is created if it does not exist.

        `obj` has all fields that the field manager `manager` owns. Raises ConflictError for fields that another manager
        owns with other values, unless `force` takes them over; ApiError.
        """
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        path = resource.path(namespace, name)
        return await self._call("PATCH", path, query=query, body=obj, content=_APPLY_PATCH)

    async def delete(
        self,
        resource: ResourceType,
        name: str,
        namespace: str | None,
        *,
        preconditions: Mapping[str, str] | None = None,
    ) -> Raw:
        """Delete an object; an object with finalizers is only marked for deletion.

        ConflictError is raised if the object has not the `uid` and `resourceVersion` of `preconditions`. Raises
        NotFoundError, ConflictError, ApiError.
        """
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        return await self._call("DELETE", resource.path(namespace, name), body=options if preconditions else None)

    @asynccontextmanager
    async def watch(
        self,
        resource: ResourceType,
        namespace: str | None,
        resource_version: str,
        seconds: int,
        *,
        name: str = "",
        label_selector: str = "",
        send_initial_events: bool = False,
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a watch and yield its raw stream, with a line of JSON for each event.

        The API ends it after about `seconds`. With `name` it has the events of that object alone, which needs the right
        to watch only that one. With `send_initial_events` it starts with all objects, up to a bookmark that marks their
        end (Kubernetes API concepts, "Streaming lists"); an API that does not support that answers with 422 or similar.

        Longer silence, or 50 s without an answer to TCP keepalive, raises UnreachableError. Raises ApiError.
        """
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        if label_selector:
            query["labelSelector"] = label_selector
        if send_initial_events:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=seconds + 15)
        async with self._request("GET", resource.path(namespace), timeout=timeout, query=query) as response:
            _probe(response)
            yield response.content

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content: str = "application/json",
    ) -> Raw:
        """Return the object of an answer; repeat the request if a busy API asks for that with Retry-After.

        The limits are those of client-go (rest.Request). Raises ApiError.
        """
        until, attempt = self._clock() + _RETRY_SECONDS, 0
        pauses = iter(_REFUSED_PAUSES)
        while True:
            request = self._request(method, path, timeout=_CALL_TIMEOUT, query=query, body=body, content=content)
            try:
                async with request as response:
                    answer = orjson.loads(await response.read())
                    break
            except orjson.JSONDecodeError as error:
                raise ApiError(200, "InvalidAnswer", f"{method} {path}: the answer is not JSON") from error
            except UnreachableError as error:
                pause = next(pauses, None) if error.is_refused else None
                if pause is None:
                    raise
                self.retries[_NO_ANSWER, method, self._host] += 1
                await self._sleep(pause)
            except ApiError as error:
                attempt += 1
                late = attempt > _MAX_RETRIES or self._clock() + error.retry_after > until
                if error.status not in _BUSY or not error.has_retry_after or late:
                    raise
                self.retries[str(error.status), method, self._host] += 1
                await self._sleep(error.retry_after)
        if not isinstance(answer, dict):
            raise ApiError(200, "InvalidAnswer", f"{method} {path}: the answer is not an object")
        return answer

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp enforces it, connect and reads apart
        query: Mapping[str, str] | None = None,
        body: Raw | None = None,
        content: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Accept": "application/json", **await self._authorize()}
        if body is not None:
            headers["Content-Type"] = content
        begun, code = self._clock(), _NO_ANSWER
        try:
            async with self._session.request(
                method,
                URL(self.url + path, encoded=True),
                params=query,
                headers=headers,
                data=orjson.dumps(body) if body is not None else None,
                timeout=timeout,
                proxy=self._proxy,
                server_hostname=self._server_hostname,
                allow_redirects=False,
            ) as response:
                code = str(response.status)
                self._answered(code, method, begun)
                if response.status >= 300:
                    raise await _error(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            is_refused = isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, _REFUSED)
            message = f"{method} {self.url}{path}: {no_answer(error)}"
            raise UnreachableError(message, is_refused=is_refused) from error
        except (AssertionError, RuntimeError) as error:
            # aiohttp raises these if its session is closed while it is about to repeat a request.
            if not self._session.closed:
                raise
            raise UnreachableError(f"{method} {self.url}{path}: this client is closed") from error
        finally:
            if code == _NO_ANSWER:
                self._answered(code, method, begun)

    def _answered(self, code: str, method: str, begun: float) -> None:
        self.requests[code, method, self._host] += 1
        self.durations[method, self._host].observe(self._clock() - begun)


def _probe(response: aiohttp.ClientResponse) -> None:
    """Enable TCP keepalive, to notice a peer that is gone without closing, such as a node that lost its power.

    Until then the watched objects seem unchanged, and a host that must not netboot any more still does.
    """
    connection = response.connection
    if connection is None or connection.transport is None:
        return  # the answer has ended
    reached = connection.transport.get_extra_info("socket")
    reached.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        reached.setsockopt(socket.IPPROTO_TCP, option, value)


async def _error(response: aiohttp.ClientResponse) -> ApiError:
    raw, header = await response.read(), response.headers.get("Retry-After", "")
    # A date is ignored, as by client-go, because it is right only if the clocks agree.
    again = min(float(header[:9]), _MAX_RETRY_AFTER) if header.isascii() and header.isdecimal() else None
    try:
        return api_error(response.status, orjson.loads(raw), again)
    except orjson.JSONDecodeError:
        return api_error(response.status, raw, again)


# --- whole collections, namespaces, clusters --------------------------------------------------------------------------

PAGE_SIZE = 500
"""Objects per page. Fewer mean more requests; with more, at 10 kB each, reading one takes half as long again."""
_EXPIRED = 410
_MAX_LIST_ATTEMPTS = 3


async def each_list_item(
    client: KubeClient,
    resource: ResourceType,
    namespace: str | None = None,
    *,
    page_size: int = PAGE_SIZE,
    label_selector: str = "",
) -> AsyncIterator[Raw]:
    """Yield the objects of a namespace, or of all, with their apiVersion and kind, page by page.

    If the API has forgotten the first page when a later one is requested, start again and leave out the objects that
    were yielded before. Objects created or changed since may be missing then. Raises ApiError.
    """
    given: set[NamespacedName] = set()
    for attempt in range(1, _MAX_LIST_ATTEMPTS + 1):
        after = ""
        try:
            while True:
                page = await client.list(
                    resource, namespace, limit=page_size, after=after, label_selector=label_selector
                )
                for item in page.get("items") or []:
                    key = NamespacedName.of(item)
                    if key not in given:
                        given.add(key)
                        yield {"apiVersion": resource.api_version, "kind": resource.kind} | item
                after = (page.get("metadata") or {}).get("continue") or ""
                if not after:
                    return
        except ApiError as error:
            if error.status != _EXPIRED or attempt == _MAX_LIST_ATTEMPTS:
                raise


async def log_missing_namespaces(client: KubeClient, names: Iterable[str]) -> None:
    """Log each namespace that does not exist, because the API lists nothing in it without an error."""
    for name in names:
        try:
            await client.get(NAMESPACE, name, None)
        except NotFoundError:
            log.warning("--namespaces: there is no namespace %r; its objects are followed once it exists", name)
        except ApiError as error:
            log.debug("namespace %r can't be looked at: %s", name, error)


_MAX_AUTHORITY_BYTES = 1 << 20


def cluster_ids(url: str, authority: str | None) -> frozenset[str]:
    """Return the identities of the cluster of a configuration, without asking it.

    `authority` is the PEM file of the certificate authorities; None: those of this host. Each cluster has
    authorities of its own, so a shared certificate means the same cluster. Without an authority, the URL identifies
    the cluster.
    """
    try:
        if authority is not None:
            # The import takes 0.1 s, so only for those configurations that have an authority.
            from cryptography import x509
            from cryptography.hazmat.primitives.serialization import Encoding

            with Path(authority).open("rb") as file:
                certificates = x509.load_pem_x509_certificates(file.read(_MAX_AUTHORITY_BYTES))
            return frozenset(f"ca:{hashlib.sha256(one.public_bytes(Encoding.DER)).hexdigest()}" for one in certificates)
    except (OSError, ValueError):
        pass  # connecting raises the error
    return frozenset([f"url:{url.rstrip('/')}"])
