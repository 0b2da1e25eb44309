"""Single calls to a Kubernetes API: get, list, create, patch, delete, and the raw watch that the informer reads.

kubernetes-asyncio reads the kubeconfig or the pod's service account, refreshes credentials and builds the TLS
connector. The calls themselves go over that connector with aiohttp and orjson, because its own calls cost three times
as much and name the wrong content type for patches of custom objects.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from yarl import URL

from tink.api.v1alpha2 import Raw
from tink.errors import TinkedgeError
from tink.kube.identity import cluster_ids
from tink.kube.library import library
from tink.kube.resources import ResourceType
from tink.metrics import Histograms
from tink.net.outbound import no_answer, through_proxies

MERGE_PATCH = "application/merge-patch+json"
"""RFC 7386: null removes a field, a list is replaced whole."""
_APPLY_PATCH = "application/apply-patch+yaml"

log = logging.getLogger(__name__)

_NO_KUBECONFIG = (OSError, ValueError, TypeError, LookupError, AttributeError, yaml.YAMLError)
"""What the library raises of a file that is none."""
_NOT_ONE = "not a kubeconfig (YAML or JSON with clusters, users and contexts)"
_GET_ONE = "name one that kubectl works with"
_RECHECK_SECONDS = 1.0
"""For which a kubeconfig is taken to be as it was."""
_CALL_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
_MESSAGE_LIMIT = 2000
_PROBES = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""Seconds of silence after which the other end of a watch is asked for a sign of life, seconds between two questions,
and how many are left without an answer."""

_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Bounds in seconds, those of Kubernetes' own clients."""
_NO_ANSWER = "<error>"  # client-go's word in the place of a status

_BUSY = (429, 503)
"""Too Many Requests, Service Unavailable: with Retry-After nothing has been done, and it may be asked again."""
_MAX_RETRIES = 10
_RETRY_SECONDS = 30.0
"""How often a call is repeated because of that (client-go's number), and for how long altogether."""
_LONGEST_RETRY_AFTER = 60.0
_TURNED_AWAY = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""How a connection ends while it begins, before anything was asked: an API does that which has too many."""
_TURNED_AWAY_SECONDS = (0.05, 0.2, 0.8)
"""How long is waited before another try then: nothing has been done, so any question may be asked again."""

Authorize = Callable[[], Awaitable[Mapping[str, str]]]
"""Gives the headers that authenticate a request; asked before each, because tokens expire."""


_NOT_NOW = (0, 429)


class KubeConfigError(TinkedgeError):
    """The kubeconfig, or the pod's service account, can't be used; the message says which and why."""


class ApiError(TinkedgeError):
    """The API answered with an error, or (status 0) did not answer.

    `status` is the HTTP status, `reason` the machine readable word of the Status object, `message` its sentence.
    `retry_after`: for how many seconds it wants to be left alone (Retry-After); 0: it does not say.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({reason}, {status})" if status else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.says_when = retry_after is not None
        self.retry_after = retry_after or 0.0

    @property
    def is_away(self) -> bool:
        """Whether there was no answer, or one that says that the API is not able to give any at this time."""
        return self.status in _NOT_NOW or self.status >= 500


class NotFoundError(ApiError):
    """404: no such object, or no such resource type."""


class ConflictError(ApiError):
    """409: the object changed since its resourceVersion, or an object of that name exists already."""


class UnreachableError(ApiError):
    """The API could not be reached, or broke off. Whether it did what it was asked is unknown, unless it `turned_away`
    who wanted to ask, and heard nothing."""

    def __init__(self, message: str, *, turned_away: bool = False) -> None:
        super().__init__(0, "Unreachable", message)
        self.turned_away = turned_away


def api_error(status: int, body: Any, retry_after: float | None = None) -> ApiError:
    """The error in a response or a watch's ERROR event; `body` is a Status object, or the bytes that came instead."""
    reason, message = "", ""
    if isinstance(body, dict):
        reason, message = str(body.get("reason") or ""), str(body.get("message") or "")
    elif isinstance(body, bytes):
        message = body.decode("utf-8", "replace").strip()
    reason = reason or {404: "NotFound", 409: "Conflict", 410: "Expired"}.get(status, "Unknown")
    message = (message or f"the API answered with HTTP status {status}")[:_MESSAGE_LIMIT]
    kind = {404: NotFoundError, 409: ConflictError}.get(status, ApiError)
    return kind(status, reason, message, retry_after)


def _one_line(error: Exception) -> str:
    """Return the message of an error without line breaks, which YAML's errors have: a log writes them as escapes."""
    if isinstance(error, UnicodeError):
        return "it is no text in UTF-8"
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
    """What the library makes of it. Raises KubeConfigError."""
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
    """The headers that authenticate. A kubeconfig that has changed is read again: its token, not where it leads to."""

    def __init__(self, api: Any, kubeconfig: Path | None, context: str | None) -> None:
        self._api, self._kubeconfig, self._context = api, kubeconfig, context
        self._looked = time.monotonic()
        self._state = self._stat()

    async def __call__(self) -> Mapping[str, str]:
        if self._kubeconfig is not None and time.monotonic() - self._looked >= _RECHECK_SECONDS:
            self._looked = time.monotonic()
            await self._reread()
        headers: dict[str, str] = {}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    async def _reread(self) -> None:
        state = self._stat()
        if state == self._state:
            return
        self._state = state
        try:
            found = await _configuration(self._kubeconfig, self._context)
        except KubeConfigError as error:
            log.error("the credentials stay as they were: %s", error)
            return
        for name in ("api_key", "api_key_prefix", "refresh_api_key_hook"):
            setattr(self._api.configuration, name, getattr(found, name))
        log.info("kubeconfig %s read again", self._kubeconfig)

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self._kubeconfig.stat() if self._kubeconfig is not None else None
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else ()


class KubeClient:
    """Calls to one Kubernetes API. Make one with `connect`; it is used by one event loop and closed with `close`."""

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
        """`clock`, in seconds, says how long answers take; `sleep` waits before an API that is busy is asked again;
        `cluster` is what the API's cluster is known by."""
        self._clock = clock
        self._sleep = sleep
        self.cluster = cluster or cluster_ids(url, None)
        self._host = URL(url).authority
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """How many there were, by status, method and host."""
        self.retries: Counter[tuple[str, str, str]] = Counter()
        """How many of them were repeated, as the API said when to come again, or ended the connection unasked."""
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
            middlewares=(through_proxies,),
            cookie_jar=aiohttp.DummyCookieJar(),  # an API sets none, and each request would look for them
            headers={"User-Agent": "tinkedge"},  # names the field manager of patches, and stands in audit logs
        )

    @classmethod
    async def connect(cls, kubeconfig: Path | None, context: str | None = None) -> KubeClient:
        """A client for a context of `kubeconfig` (None: its current one), or for the cluster whose pod this is (None).

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
        """Close all connections. Calls under way fail with UnreachableError."""
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
    ) -> Raw:
        """Read a collection, of all namespaces without `namespace`: the List object with `items` and the
        `metadata.resourceVersion` to watch from; with `label_selector`, of what it selects.

        With `limit` a page of so many; `metadata.continue` of one page is `after` for the next. Raises ApiError (410
        when a page comes too late after the first).
        """
        query = {"limit": str(limit)} if limit else {}
        if after:
            query["continue"] = after
        if label_selector:
            query["labelSelector"] = label_selector
        return await self._call("GET", resource.path(namespace), query=query)

    async def create(self, resource: ResourceType, obj: Raw, namespace: str | None = None) -> Raw:
        """Create an object, in its own namespace if `namespace` is not given. Raises ConflictError if it exists,
        ApiError."""
        namespace = namespace or obj.get("metadata", {}).get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"{resource.kind}: metadata.namespace is missing")
        return await self._call("POST", resource.path(namespace), body=obj)

    async def patch(
        self,
        resource: ResourceType,
        name: str,
        namespace: str | None,
        patch: Raw,
        *,
        subresource: str | None = None,
    ) -> Raw:
        """Merge `patch` into an object (RFC 7386) and return what it is then.

        With `metadata.resourceVersion` in the patch it applies to that version only: ConflictError otherwise.
        Raises NotFoundError, ConflictError, ApiError.
        """
        return await self._call("PATCH", resource.path(namespace, name, subresource), body=patch, content=MERGE_PATCH)

    async def apply(
        self, resource: ResourceType, name: str, namespace: str | None, obj: Raw, *, manager: str, force: bool = False
    ) -> Raw:
        """Server-side apply: `obj` is all that the field manager `manager` wants of the object, which is created if it
        is not there.

        Raises ConflictError for fields that another manager wants otherwise, unless `force` takes them; ApiError.
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
        """Delete an object; with finalizers it is only marked.

        `preconditions`: `uid` and `resourceVersion` that it must have, or else ConflictError. Raises NotFoundError,
        ConflictError, ApiError.
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
        """The raw stream of a watch (a line of JSON per event) that the API ends after about `seconds`; with `name`, of
        that object alone, for which the right to watch that one suffices; with `label_selector`, of what it selects.

        `send_initial_events`: it begins with all that there is, up to a bookmark that says so (Kubernetes API concepts,
        "Streaming lists"); an API that can't do that answers with 422 or the like.

        Silence longer than that, or 50 s without a sign of life, is a dead connection and raises UnreachableError.
        Raises ApiError.
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
        raw = await self._patiently(method, path, query, body, content)
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise ApiError(200, "InvalidAnswer", f"{method} {path}: the answer is not JSON") from error
        if not isinstance(answer, dict):
            raise ApiError(200, "InvalidAnswer", f"{method} {path}: the answer is not an object")
        return answer

    async def _patiently(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Raw | None, content: str
    ) -> bytes:
        """The answer of an API that may be busy: asked again when it says that it wants to be, for as long as that
        makes sense (client-go, rest.Request). Raises ApiError."""
        until, attempt = self._clock() + _RETRY_SECONDS, 0
        pauses = iter(_TURNED_AWAY_SECONDS)
        while True:
            request = self._request(method, path, timeout=_CALL_TIMEOUT, query=query, body=body, content=content)
            try:
                async with request as response:
                    return await response.read()
            except UnreachableError as error:
                pause = next(pauses, None) if error.turned_away else None
                if pause is None:
                    raise
                self.retries[_NO_ANSWER, method, self._host] += 1
                await self._sleep(pause)
            except ApiError as error:
                attempt += 1
                late = attempt > _MAX_RETRIES or self._clock() + error.retry_after > until
                if error.status not in _BUSY or not error.says_when or late:
                    raise
                self.retries[str(error.status), method, self._host] += 1
                await self._sleep(error.retry_after)

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
            away = isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, _TURNED_AWAY)
            message = f"{method} {self.url}{path}: {no_answer(error)}"
            raise UnreachableError(message, turned_away=away) from error
        except (AssertionError, RuntimeError) as error:
            # How aiohttp answers when its session is closed under a request that it was about to repeat.
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
    """Have it noticed when the other end is gone without a word, as with a node that lost its power: until then what
    is followed looks unchanged, such as a host that may netboot."""
    connection = response.connection
    if connection is None or connection.transport is None:
        return  # the answer has ended already
    reached = connection.transport.get_extra_info("socket")
    reached.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES.items():
        reached.setsockopt(socket.IPPROTO_TCP, option, value)


async def _error(response: aiohttp.ClientResponse) -> ApiError:
    raw, again = await response.read(), _retry_after(response.headers.get("Retry-After", ""))
    try:
        return api_error(response.status, orjson.loads(raw), again)
    except orjson.JSONDecodeError:
        return api_error(response.status, raw, again)


def _retry_after(header: str) -> float | None:
    """Seconds; None for nonsense and for dates, which are right only where clocks agree, as client-go does."""
    if not header.isascii() or not header.isdecimal():
        return None
    return min(float(header[:9]), _LONGEST_RETRY_AFTER)
