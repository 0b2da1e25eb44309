"""The agent's gRPC channel to the server: how it is kept alive, encrypted, and who the agent says it is.

`connect` makes it from the settings. With a token, every call carries it; the server gives a new one each time that the
command stream is opened, which is used from then on and kept in the state directory for an agent that is restarted.

With TLS the server is checked against the authority that the settings name: a file, or a URL with the SHA-256 of what
is there (`tinkerbell_tls_ca` on the kernel command line), so that plain HTTP will do: the file is no safer and no less
safe than that command line. The agent waits for it as it waits for the server, for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from proto import metadata
from tink.agent.model import SettingsError
from tink.agent.settings import AgentSettings
from tink.limits.backoff import Backoff
from tink.net.urls import redacted, shown
from tink.waiting import done_before

log = logging.getLogger(__name__)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A machine in a rack loses its switch without a FIN: ask every 20 s whether the server is still there.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC measures the answer to a keepalive's ping by this one, which is a minute otherwise.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own reconnecting; its "min" is also how long one attempt to connect may take.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # The server is on the machine's own network; a proxy in the environment is for images.
    ("grpc.enable_http_proxy", 0),
)

_CA_LIMIT_BYTES = 256 << 10
_FETCH_SECONDS = 10.0
_PAUSE_SECONDS = 5.0
_REGISTRY_CA_SECONDS = 60.0


async def connect(settings: AgentSettings, end: asyncio.Event) -> grpc.aio.Channel | None:
    """The channel of these settings; None if `end` was set before it could be made.

    Raises SettingsError for files that can't be read.
    """
    credentials = None
    if settings.tls:
        making = asyncio.create_task(_credentials(settings))
        if not await done_before(making, end):
            making.cancel()
            return None
        credentials = making.result()
    interceptors: list[grpc.aio.ClientInterceptor] = []
    if settings.token:
        shown = _Token(settings.token, settings.state_dir / "token")
        interceptors = [_StreamAuthorization(shown), _UnaryAuthorization(shown), _UploadAuthorization(shown)]
    target = settings.target
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS, interceptors=interceptors)
    options: tuple[tuple[str, int | str], ...] = CHANNEL_OPTIONS
    if target != settings.server:
        # Of several addresses, gRPC would look for all at once in a certificate: that of the servers is one, for all.
        options += (("grpc.ssl_target_name_override", settings.server.rpartition(":")[0]),)
    return grpc.aio.secure_channel(target, credentials, options=options, interceptors=interceptors)


# --- whom the agent trusts ------------------------------------------------------------------------------------------


async def _credentials(settings: AgentSettings) -> grpc.ChannelCredentials:
    if settings.tls_ca_url:
        cache = settings.state_dir / "server-ca.pem"
        roots: bytes | None = await fetch_pinned(settings.tls_ca_url, cache, edges=settings.edges)
    else:
        roots = _file(settings.tls_roots) if settings.tls_roots.exists() else None
    key, chain = (_file(path) if path is not None else None for path in (settings.tls_key, settings.tls_cert))
    return grpc.ssl_channel_credentials(roots, key, chain)


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error


async def registry_authorities(settings: AgentSettings, end: asyncio.Event) -> dict[str, str]:
    """Return the certificates (PEM) that sign those of registries, by host[:port].

    Those of the edge are waited for up to `_REGISTRY_CA_SECONDS`, or until `end` is set: a Workflow whose registries
    need none of them can do without. Raises SettingsError for a file that cannot be read.
    """
    found: dict[str, str] = {}
    if settings.registry_ca_url:
        cache, what = settings.state_dir / "registry-ca.json", "the authorities of registries"
        fetching = asyncio.create_task(fetch_pinned(settings.registry_ca_url, cache, edges=settings.edges, what=what))
        ended = asyncio.create_task(end.wait())
        await asyncio.wait({fetching, ended}, timeout=_REGISTRY_CA_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if fetching.done():
            found = _registries(fetching.result())
        else:
            fetching.cancel()
            log.warning("%s did not come: only those of this system are trusted", what)
    for host, path in settings.registry_cas:
        found[host] = _file(path).decode(errors="replace")
    return found


def _registries(content: bytes) -> dict[str, str]:
    try:
        value = json.loads(content)
        return {host: pem for host, pem in value.items() if isinstance(pem, str)}
    except (ValueError, AttributeError, RecursionError):
        log.warning("the authorities of registries are not a JSON object: only those of this system are trusted")
        return {}


async def fetch_pinned(
    pinned: str,
    cache: Path,
    pause: float = _PAUSE_SECONDS,
    *,
    edges: Sequence[str] = (),
    what: str = "the server's authority",
) -> bytes:
    """What is at the URL before `#sha256=`, or at its path on one of the `edges`, once it has that SHA-256. Asks for
    ever, every `pause` seconds or so.

    The file `cache` has it for the next time, so that an agent that is started again need not wait for the edge.
    """
    url, _, digest = pinned.partition("#sha256=")
    parts = urlsplit(url)
    urls = itertools.cycle([url, *(parts._replace(netloc=edge).geturl() for edge in edges)])
    backoff = Backoff(pause, pause)
    logged = ""
    with suppress(OSError):
        content = await asyncio.to_thread(cache.read_bytes)
        if _is(content, digest):
            return content
    for number, url in enumerate(urls, 1):
        try:
            content = await asyncio.to_thread(_get, url)
        except (OSError, ValueError) as error:
            problem = f"{what} can't be fetched from {shown(url)} yet: {redacted(str(error))}"
        else:
            if _is(content, digest):
                with suppress(OSError):  # a full disk: the next start asks again
                    await asyncio.to_thread(cache.write_bytes, content)
                return content
            problem = f"{shown(url)} is not {what} that the kernel command line names: its SHA-256 is another"
        if problem != logged:
            log.warning("%s; asking again", problem)
            logged = problem
        if number % (len(edges) + 1) == 0:
            await asyncio.sleep(backoff.next())
    raise AssertionError("there is no end to them")


def _is(content: bytes, digest: str) -> bool:
    return hashlib.sha256(content).hexdigest() == digest.lower()


def _get(url: str) -> bytes:
    """In a thread. Raises OSError, ValueError."""
    import urllib.error  # here, for it costs a second on a slow machine, and few need it
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_FETCH_SECONDS) as answer:
            content: bytes = answer.read(_CA_LIMIT_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise
    if len(content) > _CA_LIMIT_BYTES:
        raise ValueError(f"it is larger than {_CA_LIMIT_BYTES} bytes")
    return content


# --- who the agent says it is ---------------------------------------------------------------------------------------


class _Token:
    """The newest token. `file` has it for the next start, beside the SHA-256 of the one that this boot began with."""

    def __init__(self, given: str, file: Path) -> None:
        self._file = file
        self._boot = hashlib.sha256(given.encode()).hexdigest()
        self._newest = given
        with suppress(OSError, ValueError):
            boot, newest = file.read_text(encoding="ascii").split()
            if boot == self._boot:
                self._newest = newest

    def on(self, details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        """The details of a call, with the token."""
        others = [(key, value) for key, value in details.metadata or () if key != metadata.AUTHORIZATION]
        with_token = grpc.aio.Metadata(*others, (metadata.AUTHORIZATION, f"Bearer {self._newest}"))
        return grpc.aio.ClientCallDetails(
            details.method, details.timeout, with_token, details.credentials, details.wait_for_ready
        )

    async def renew_from(self, call: Any) -> None:
        """Take the token that the server gives with its first metadata, if it gives one."""
        try:
            given = dict(await call.initial_metadata() or ()).get(metadata.TOKEN)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.CancelledError):
            return  # the call's reader hears of it
        if isinstance(given, str) and given and given.isascii() and not any(c.isspace() for c in given):
            self._newest = given
            try:
                await asyncio.to_thread(self._keep, given)
            except OSError as error:
                log.warning("the renewed token can't be kept for a restart of this agent: %s", error)

    def _keep(self, given: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_name(f"{self._file.name}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{self._boot} {given}\n")
        fresh.replace(self._file)


_Continuation = Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]]


class _Authorization:
    """Puts the token into the calls of one kind. gRPC wants a class for each."""

    def __init__(self, token: _Token) -> None:
        self._token = token


class _UnaryAuthorization(_Authorization, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: _Continuation, client_call_details: grpc.aio.ClientCallDetails, request: Any
    ) -> Any:
        return await continuation(self._token.on(client_call_details), request)


class _UploadAuthorization(_Authorization, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(
        self, continuation: _Continuation, client_call_details: grpc.aio.ClientCallDetails, request_iterator: Any
    ) -> Any:
        return await continuation(self._token.on(client_call_details), request_iterator)


class _StreamAuthorization(_Authorization, grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, token: _Token) -> None:
        super().__init__(token)
        self._renewing: set[asyncio.Task[None]] = set()

    async def intercept_unary_stream(
        self, continuation: _Continuation, client_call_details: grpc.aio.ClientCallDetails, request: Any
    ) -> Any:
        call = await continuation(self._token.on(client_call_details), request)
        task = asyncio.ensure_future(self._token.renew_from(call))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)
        return call
