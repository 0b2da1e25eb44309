"""The agent's connection to the server: TLS and sockets, protobuf messages, and the calls with their retries."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import re
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import grpc.aio

from proto import metadata
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tink.agent.journal import Spool
from tink.agent.model import (
    ActionFailed,
    ActionStarted,
    ActionSucceeded,
    AgentError,
    AgentSettingsError,
    Command,
    Event,
    RenderedAction,
    StartWorkflow,
    StopWorkflow,
    Workflow,
)
from tink.agent.settings import AgentSettings
from tink.limits import Backoff
from tink.net.urls import redacted, shown
from tink.waiting import done_before

log = logging.getLogger(__name__)

# --- Sockets ---
#
# TCP keepalive on the agent's connections: the kernel checks every few seconds whether the server is there.
#
# gRPC pings every 20 s, and each ping costs the server a message. The kernel's keepalive (tcp(7), TCP_KEEPIDLE) costs
# no process anything. It detects an address that has moved to another host (a VIP): the new host answers with RST
# because it does not know the connection, and the agent connects again. gRPC's Python API has no option for it, so the
# sockets are looked up in /proc.


_DESCRIPTORS: Final = "/proc/self/fd"


def probe_often(port: int) -> int:
    """Turn on TCP keepalive for all connections to this port. Return their number, without those that end meanwhile."""
    found = 0
    with suppress(OSError):
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - numbers are enough
            with suppress(OSError, ValueError):
                found += _probe(int(name), port)
    return found


def _probe(fd: int, port: int) -> bool:
    """Turn on keepalive for one descriptor. Raises OSError if it is not a socket."""
    copy = os.dup(fd)
    try:
        sock = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return False
        if sock.getpeername()[1] != port:
            return False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)  # seconds until the first probe
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
        return True


# --- Channel ---
#
# The agent's gRPC channel to the server: keepalive, encryption, and credentials.
#
# `connect` creates it from the settings. If there is a token, every call carries it. The server sends a new one
# whenever the command stream opens; it is used from then on, and stored in the state directory for a restarted agent.
#
# With TLS the server is verified against the authority in the settings: a file, or a URL with the SHA-256 of its
# content (`tinkerbell_tls_ca` on the kernel command line). The hash makes plain HTTP as safe as that command line. The
# agent waits for this file as it waits for the server, without limit.


CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # A machine may lose its switch without a FIN, so ping every 20 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # This also limits the wait for the answer to a keepalive ping; the default is a minute.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own reconnect delays; "min" is also the time limit of one connection attempt.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 10_000),
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # The server is on the machine's own network; proxies in the environment are for images.
    ("grpc.enable_http_proxy", 0),
)

_CA_LIMIT_BYTES = 256 << 10
_FETCH_SECONDS = 10.0
_PAUSE_SECONDS = 5.0
_REGISTRY_CA_SECONDS = 60.0


async def connect(settings: AgentSettings, end: asyncio.Event) -> grpc.aio.Channel | None:
    """Return a channel to the server; None if `end` is set before. Raises AgentSettingsError for an unreadable file."""
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
        # With several addresses gRPC would require a certificate that names all of them. All servers share one.
        options += (("grpc.ssl_target_name_override", settings.server.rpartition(":")[0]),)
    return grpc.aio.secure_channel(target, credentials, options=options, interceptors=interceptors)


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
        raise AgentSettingsError(f"{path}: {error.strerror}") from error


async def registry_authorities(settings: AgentSettings, end: asyncio.Event) -> dict[str, str]:
    """Return the certificates (PEM) that sign those of registries, by host[:port].

    Waits for those of the edge, but not without limit: perhaps no registry of the Workflow needs them. Raises
    AgentSettingsError for an unreadable file.
    """
    found: dict[str, str] = {}
    if settings.registry_ca_url:
        cache, what = settings.state_dir / "registry-ca.json", "the authorities of registries"
        fetching = asyncio.create_task(fetch_pinned(settings.registry_ca_url, cache, edges=settings.edges, what=what))
        if await done_before(fetching, end, _REGISTRY_CA_SECONDS):
            try:
                found = {host: pem for host, pem in json.loads(fetching.result()).items() if isinstance(pem, str)}
            except (ValueError, AttributeError, RecursionError):
                log.warning("%s are not a JSON object: only those of this system are trusted", what)
        else:
            fetching.cancel()
            log.warning("%s did not come: only those of this system are trusted", what)
    for host, path in settings.registry_cas:
        found[host] = _file(path).decode(errors="replace")
    return found


async def fetch_pinned(
    pinned: str,
    cache: Path,
    pause: float = _PAUSE_SECONDS,
    *,
    edges: Sequence[str] = (),
    what: str = "the server's authority",
) -> bytes:
    """Return the content of the URL before `#sha256=`, or of its path on one of the `edges`, once its SHA-256 matches.

    Retries about every `pause` seconds, without limit. `cache` is the file with the content for a restarted agent.
    """
    url, _, digest = pinned.partition("#sha256=")
    parts = urlsplit(url)
    urls = itertools.cycle([url, *(parts._replace(netloc=edge).geturl() for edge in edges)])
    backoff = Backoff(pause, pause)
    logged = ""
    with suppress(OSError):
        content = await asyncio.to_thread(cache.read_bytes)
        if hashlib.sha256(content).hexdigest() == digest.lower():
            return content
    for number, url in enumerate(urls, 1):
        try:
            content = await asyncio.to_thread(_get, url)
        except (OSError, ValueError) as error:
            problem = f"{what} can't be fetched from {shown(url)} yet: {redacted(str(error))}"
        else:
            if hashlib.sha256(content).hexdigest() == digest.lower():
                with suppress(OSError):  # with a full disk the next start downloads it again
                    await asyncio.to_thread(cache.write_bytes, content)
                return content
            problem = f"{shown(url)} is not {what} that the kernel command line names: its SHA-256 is another"
        if problem != logged:
            log.warning("%s; asking again", problem)
            logged = problem
        if number % (len(edges) + 1) == 0:
            await asyncio.sleep(backoff.next())
    raise AssertionError("unreachable: the URLs repeat")


def _get(url: str) -> bytes:
    """In a thread. Raises OSError, ValueError."""
    import urllib.error  # imported here: it takes a second on a slow machine, and few agents need it
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


class _Token:
    """The newest token. `file` stores it for a restart, with the SHA-256 of the token that this boot began with."""

    def __init__(self, given: str, file: Path) -> None:
        self._file = file
        self._boot = hashlib.sha256(given.encode()).hexdigest()
        self._newest = given
        with suppress(OSError, ValueError):
            boot, newest = file.read_text(encoding="ascii").split()
            if boot == self._boot:
                self._newest = newest

    def on(self, details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        """Return the details of a call with the token added."""
        others = [(key, value) for key, value in details.metadata or () if key != metadata.AUTHORIZATION]
        with_token = grpc.aio.Metadata(*others, (metadata.AUTHORIZATION, f"Bearer {self._newest}"))
        return grpc.aio.ClientCallDetails(
            details.method, details.timeout, with_token, details.credentials, details.wait_for_ready
        )

    async def renew_from(self, call: Any) -> None:
        """Use the token that the server sends with its first metadata, if it sends one."""
        try:
            given = dict(await call.initial_metadata() or ()).get(metadata.TOKEN)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.CancelledError):
            return  # the call's reader gets the error
        if isinstance(given, str) and given and given.isascii() and not any(c.isspace() for c in given):
            self._newest = given
            try:
                await asyncio.to_thread(self._store, given)
            except OSError as error:
                log.warning("the renewed token can't be kept for a restart of this agent: %s", error)

    def _store(self, given: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_name(f"{self._file.name}.new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{self._boot} {given}\n")
        fresh.replace(self._file)


_Continuation = Callable[[grpc.aio.ClientCallDetails, Any], Awaitable[Any]]


class _Authorization:
    """Puts the token into the calls of one kind. grpc.aio needs a class for each kind."""

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


# --- Messages ---
#
# Converts between the messages of `proto/workflow.proto` and the agent's own `model`.


MAX_HELD = 64
"""Maximum number of Workflows that a call names: servers accept no larger headers."""

_HEADER_VALUE = re.compile(r"[!-~]{1,128}")


class UnusableCommandError(AgentError):
    """A command that can't be answered, because it names no workflow or is of an unknown kind."""


def held_workflows_metadata(workflow_ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the metadata of GetWorkflows that names the workflows which the agent holds."""
    # A header can't contain blanks or characters beyond ASCII. No uid has them.
    held = [workflow_id for workflow_id in workflow_ids if _HEADER_VALUE.fullmatch(workflow_id)][:MAX_HELD]
    return tuple((metadata.WORKFLOW, workflow_id) for workflow_id in held or [""])


def command_from_wire(message: pb.GetWorkflowsResponse | None) -> Command:
    """Return the command in `message`. Raises UnusableCommandError."""
    if message is None:  # grpc's value for bytes that it can't parse
        raise UnusableCommandError("a message that is not valid protobuf")
    kind = message.WhichOneof("cmd")
    if kind == "start_workflow":
        workflow = message.start_workflow.workflow
        if not workflow.workflow_id:
            raise UnusableCommandError("StartWorkflow without workflow.workflow_id")
        actions = tuple(
            RenderedAction(
                id=action.id,
                name=action.name or action.id,
                image=action.image,
                cmd=action.cmd,
                args=tuple(action.args),
                env=dict(action.env),
                volumes=tuple(action.volumes),
                pid_namespace=action.ns.pid,
                network_namespace=action.ns.net,
            )
            for action in workflow.actions
        )
        return StartWorkflow(Workflow(workflow.workflow_id, actions))
    if kind == "stop_workflow":
        if not message.stop_workflow.workflow_id:
            raise UnusableCommandError("StopWorkflow without workflow_id")
        return StopWorkflow(message.stop_workflow.workflow_id)
    raise UnusableCommandError("a command of a kind that this agent does not know; is the server newer than the OSIE?")


def event_to_wire(event: Event) -> pb.PublishEventRequest:
    """Return the request that publishes `event`."""
    message = pb.Event(workflow_id=event.workflow_id)
    if isinstance(event, ActionStarted):
        message.action_started.action_id = event.action_id
    elif isinstance(event, ActionSucceeded):
        message.action_succeeded.action_id = event.action_id
    elif isinstance(event, ActionFailed):
        message.action_failed.action_id = event.action_id
        message.action_failed.failure_reason = event.reason
        message.action_failed.failure_message = event.message
    else:
        message.workflow_rejected.failure_reason = event.reason
        message.workflow_rejected.failure_message = event.message
    return pb.PublishEventRequest(event=message)


# --- Calls ---
#
# The agent's calls to the server: the command stream, which is always open, and the events.
#
# `commands` keeps `GetWorkflows` open: at boot it waits for the server, and after every break it reconnects, with a
# delay that grows to ten seconds. `publish` sends the events of the spool in order, each until it is acknowledged; the
# server treats a repeated event as one. Neither waits for the other, and running actions wait for neither.
#
# How the agent handles a status:
#     UNAVAILABLE and the like              the connection is broken: try again with backoff
#     PERMISSION_DENIED, NOT_FOUND, ...     the server does not know this machine, or not at this address. An operator
#                                           can correct that, so try again slowly. An event that stays rejected
#                                           belongs to a deleted workflow and would delay those behind it: it is dropped
#                                           after five minutes. If the server says NOT_FOUND and accepts the command
#                                           stream, it knows the machine, so the event is dropped after half a minute.
#                                           Then the other events of that workflow are tried once each
#     INVALID_ARGUMENT for an event         the event is dropped, because it will never be accepted
#
# Each change of the connection is logged once, not each attempt.


REFUSALS = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Status codes with which a reachable server rejects the agent."""

_HUNG_UP: Final = ("Socket closed", "Connection reset", "CERTIFICATE_REQUIRED")
"""gRPC's messages for a connection that the server closed; the last one includes the reason."""

_MOVING: Final = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
"""gRPC's status codes for calls that come while a server stops. A single one is harmless."""

_GONE_WORKFLOWS: Final = 64

WINDOW: Final = 8
"""Maximum number of unacknowledged events. The server lets 16 of one machine wait (`tink.server.events`)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When calls are repeated and given up, in seconds. "refused" refers to the codes in `REFUSALS`."""

    initial_backoff: float = 0.2
    max_backoff: float = 10.0
    refused_backoff: float = 10.0
    publish_timeout: float = 15.0
    refusal_timeout: float = 300.0
    gone_timeout: float = 30.0
    established_after: float = 1.0
    """Seconds without a message after which an open stream counts as accepted."""
    patience: float = 5.0
    """Seconds without an answer after which a server is logged as unreachable."""


class Transport:
    """One agent's connection. `commands` and `publish` run side by side until they are cancelled.

    `held_workflows` returns the workflows that the agent runs or has unsent events of; the server receives them with
    each command stream.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        settings: AgentSettings,
        spool: Spool,
        held_workflows: Callable[[], Iterable[str]],
        policy: RetryPolicy | None = None,
    ) -> None:
        self._channel = channel
        self._settings = settings
        self._server = settings.server
        self._agent_id = settings.agent_id
        self._spool = spool
        self._held_workflows = held_workflows
        self._policy = policy or RetryPolicy()
        self._refused_backoff = Backoff(self._policy.refused_backoff, self._policy.refused_backoff)
        self._stub = WorkflowServiceStub(channel)
        self._condition = ""
        self.connected = asyncio.Event()
        """Set while the server serves the command stream."""
        self._ahead: dict[int, asyncio.Task[bool]] = {}
        """Tasks that send events before they are the oldest, by event number; each returns True if acknowledged."""
        self._gone: deque[str] = deque(maxlen=_GONE_WORKFLOWS)
        """Workflows with an event that was dropped because the server kept rejecting it."""

    async def commands(self, handle: Callable[[Command], None]) -> None:
        """Call `handle` for every command of the server. Never returns."""
        backoff = Backoff(self._policy.initial_backoff, self._policy.max_backoff)
        while True:
            try:
                await self._stream(handle, backoff)
            except grpc.aio.AioRpcError as error:
                refused = error.code() in REFUSALS
                if error.code() is grpc.StatusCode.UNAVAILABLE and error.details() == metadata.STOPPING:
                    self._report("moving", logging.INFO, f"the server {self._server} is stopping; going to the next")
                else:
                    self._report_break(error, refused=refused)
                pause = (self._refused_backoff if refused else backoff).next()
            else:
                self._report(
                    "ended", logging.WARNING, f"the server {self._server} ended the command stream; reconnecting"
                )
                pause = backoff.next()
            await asyncio.sleep(pause)
            await self._reachable()

    async def publish(self) -> None:
        """Send the spool's events in order, each until it is acknowledged or rejected for good. Never returns.

        The starts and successes of a workflow's actions are sent ahead, up to `WINDOW` events: a busy server can then
        store several together.
        """
        self._spool.on_append = self._send_ahead
        try:
            while True:
                number, event = await self._spool.head()
                self._send_ahead()
                sent = self._ahead.pop(number, None)
                delivered = (sent is not None and await sent) or await self._deliver(event)
                self._spool.settle(number, delivered=delivered)
        finally:
            self._spool.on_append = lambda: None
            for sent in self._ahead.values():
                sent.cancel()
            self._ahead.clear()

    def _send_ahead(self) -> None:
        """Send the events that need not wait for the oldest one, each once."""
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            return  # gRPC would queue them and send them in any order
        (_, oldest), *others = self._spool.first(WINDOW)
        for number, event in others:
            if not reorderable(oldest, event):
                return
            if number not in self._ahead:
                self._ahead[number] = asyncio.create_task(self._try(event))

    async def _stream(self, handle: Callable[[Command], None], backoff: Backoff) -> None:
        held = held_workflows_metadata(self._held_workflows())
        call = self._stub.GetWorkflows(pb.GetWorkflowsRequest(agent_id=self._agent_id), metadata=held)
        established = asyncio.create_task(self._establish(backoff))
        try:
            async for message in call:
                self._established(backoff)
                try:
                    command = command_from_wire(message)
                except UnusableCommandError as error:
                    log.error("ignored a command of the server %s: %s", self._server, error)
                    continue
                handle(command)
        finally:
            self.connected.clear()
            established.cancel()
            call.cancel()

    async def _establish(self, backoff: Backoff) -> None:
        """Count the stream as accepted if it gets no error within a time after the connection was made."""
        try:
            async with asyncio.timeout(self._policy.patience):
                await self._reachable()
        except TimeoutError:
            silent = f"nothing has answered there for {self._policy.patience:.0f} s"
            self._report("broken", logging.WARNING, f"cannot reach the server {self._server} yet: {silent}")
            await self._reachable()
        await asyncio.sleep(self._policy.established_after)
        self._established(backoff)

    def _established(self, backoff: Backoff) -> None:
        self.connected.set()
        backoff.reset()
        port = self._server.rpartition(":")[2]
        if port.isdecimal():
            probe_often(int(port))
        self._report("connected", logging.INFO, f"connected to the server {self._server} as {self._agent_id}")

    async def _reachable(self) -> None:
        """Wait until the channel is connected, so that calls do not fail while gRPC itself backs off."""
        state = self._channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)

    async def _try(self, event: Event) -> bool:
        """Send `event` once and return whether it was acknowledged. `_deliver` repeats it when it is the oldest."""
        try:
            await self._stub.PublishEvent(event_to_wire(event), timeout=self._policy.publish_timeout)
        except grpc.aio.AioRpcError:
            return False
        log.debug("delivered %s", _describe(event))
        return True

    async def _deliver(self, event: Event) -> bool:
        """Send `event` until the server acknowledges it (True) or has rejected it for good (False)."""
        backoff = Backoff(self._policy.initial_backoff, self._policy.max_backoff)
        loop = asyncio.get_running_loop()
        refused_since: float | None = None
        reported, moved = None, False
        request = event_to_wire(event)
        while True:
            try:
                await self._stub.PublishEvent(request, timeout=self._policy.publish_timeout)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                described = f"{_describe(event)}: {code.name}: {error.details()}"
                if code is grpc.StatusCode.INVALID_ARGUMENT:
                    log.error("the server will never take %s; dropped", described)
                    return False
                if code in REFUSALS:
                    refused_since = loop.time() if refused_since is None else refused_since
                    if loop.time() - refused_since >= self._patience(event, code):
                        log.error("the server keeps refusing %s; dropped", described)
                        self._gone.append(event.workflow_id)
                        return False
                    pause = self._refused_backoff.next()
                else:
                    refused_since = None
                    pause = backoff.next()
                if code is not reported and (code not in _MOVING or moved):
                    log.warning("not delivered yet, trying again: %s", described)
                    reported = code
                moved = True
            else:
                log.debug("delivered %s", _describe(event))
                return True
            await asyncio.sleep(pause)
            await self._reachable()

    def _patience(self, event: Event, refusal: grpc.StatusCode) -> float:
        """Return the seconds for which `event` may be rejected before it is dropped."""
        if event.workflow_id in self._gone:
            return 0.0
        machine_is_known = self._condition == "connected"
        if refusal is grpc.StatusCode.NOT_FOUND and machine_is_known:
            return self._policy.gone_timeout
        return self._policy.refusal_timeout

    def _report_break(self, error: grpc.aio.AioRpcError, *, refused: bool) -> None:
        cause = f"{error.code().name}: {error.details()}"
        if refused:
            message = f"the server {self._server} refuses this machine, {self._agent_id}: {cause}; asking again slowly"
            self._report(f"refused {cause}", logging.ERROR, message)
        elif self._condition == "connected":
            self._report("broken", logging.WARNING, f"lost the server {self._server}: {cause}; reconnecting")
        elif self._condition not in ("broken", "ended"):
            message = f"cannot reach the server {self._server} yet: {cause}{self._hint(error)}; waiting for it"
            self._report("broken", logging.WARNING, message)

    def _hint(self, error: grpc.aio.AioRpcError) -> str:
        """Return a hint for a connection that the server closed during or right after the TLS handshake.

        In TLS 1.3 the server rejects a missing or bad certificate after the client considers the handshake complete
        (RFC 8446, section 4.4.2.4), and gRPC only reports a closed connection.
        """
        if not self._settings.tls or not any(words in (error.details() or "") for words in _HUNG_UP):
            return ""
        if self._settings.tls_cert is None:
            asks = "if the server asks for a certificate, as with its --agent-auth=mtls"
            return f" ({asks}, give --tls-cert and --tls-key)"
        refuses = f"if the server refuses the certificate {self._settings.tls_cert}"
        return f" ({refuses}: has it ended or not begun, by either's clock, or is its --grpc-client-ca another?)"

    def _report(self, condition: str, level: int, message: str) -> None:
        if condition != self._condition:
            self._condition = condition
            log.log(level, "%s", message)


def reorderable(event: Event, after: Event) -> bool:
    """Return True if the server may receive `after` before `event`, because it handles such events in any order."""
    harmless = ActionStarted | ActionSucceeded
    return isinstance(event, harmless) and isinstance(after, harmless) and event.workflow_id == after.workflow_id


def _describe(event: Event) -> str:
    action = getattr(event, "action_id", "")
    return f"{type(event).__name__} of workflow {event.workflow_id}" + (f" action {action}" if action else "")
