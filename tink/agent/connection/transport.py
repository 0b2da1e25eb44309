"""The agent's two calls to the server: the command stream that is always open, and the events.

`commands` keeps `GetWorkflows` open for ever: at boot it waits for the server to appear, and after every break it
connects again, sooner at first, later every ten seconds. `publish` sends the events of the spool in order, each
until it is acknowledged; the server treats a repeated event as one. Neither waits for the other, and executing
actions waits for none of them.

What a status means to the agent:
    UNAVAILABLE and the like              the way is broken: try again, backing off
    PERMISSION_DENIED, NOT_FOUND, ...     the server does not know this machine, or not with this address. An operator
                                          can mend that while the machine waits, so it is tried again slowly. An event
                                          that stays refused belongs to a workflow that is gone, and would hold up
                                          those behind it: it is dropped after five minutes, and after half a one if
                                          the server says NOT_FOUND and takes the command stream, so that it knows the
                                          machine. Then the others of that workflow are tried once each
    INVALID_ARGUMENT for an event         it will never be taken: dropped

The log has one line for each change of the connection, not one for each attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from proto import metadata
from proto import workflow_pb2 as pb
from proto.workflow_pb2_grpc import WorkflowServiceStub
from tink.agent.connection.sockets import probe_often
from tink.agent.connection.wire import UnusableCommandError, command_from_wire, event_to_wire, held_workflows_metadata
from tink.agent.durable import Spool
from tink.agent.model import ActionStarted, ActionSucceeded, Command, Event
from tink.limits.backoff import Backoff

log = logging.getLogger(__name__)

REFUSALS = frozenset(
    {
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Statuses that say that the server was reached and does not want to."""


_HUNG_UP: Final = ("Socket closed", "Connection reset", "CERTIFICATE_REQUIRED")
"""gRPC's words for a server that went when all seemed well; the last one's is a server that says why."""

_MOVING: Final = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
"""What gRPC says of calls that come just when a server stops: once, that is nothing to worry about."""

_GONE_WORKFLOWS: Final = 64

WINDOW: Final = 8
"""Events that are under way at once. The server lets 16 of one machine wait (`tink.server.events`)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When calls are tried again, and given up; all in seconds. Refusals are those of `REFUSALS`."""

    initial_backoff: float = 0.2
    max_backoff: float = 10.0
    refused_backoff: float = 10.0
    publish_timeout: float = 15.0
    refusal_timeout: float = 300.0
    gone_timeout: float = 30.0
    established_after: float = 1.0
    """A stream that has lived this long without a word is taken to be accepted."""
    patience: float = 5.0
    """A server that has not answered for so long is said to be out of reach."""


class Transport:
    """One agent's connection. `commands` and `publish` run for ever, side by side, until they are cancelled.

    `held_workflows`: those that the agent runs or has events of; the server is told with each command stream.
    `anonymous`: the channel speaks TLS, and has no certificate to show; `certificate`: the file of the one it shows.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        server: str,
        agent_id: str,
        spool: Spool,
        held_workflows: Callable[[], Iterable[str]] = tuple,
        anonymous: bool = False,
        certificate: Path | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._channel = channel
        self._server = server
        self._agent_id = agent_id
        self._spool = spool
        self._held_workflows = held_workflows
        self._anonymous = anonymous
        self._certificate = certificate
        self._policy = policy or RetryPolicy()
        self._refused_backoff = Backoff(self._policy.refused_backoff, self._policy.refused_backoff)
        self._stub = WorkflowServiceStub(channel)
        self._condition = ""
        self._ahead: dict[int, asyncio.Task[bool]] = {}
        """Events, by their number, that were sent before they were the oldest: whether they were acknowledged."""
        self._gone: deque[str] = deque(maxlen=_GONE_WORKFLOWS)
        """Workflows whose last event was dropped because it was refused."""

    async def commands(self, handle: Callable[[Command], None]) -> None:
        """Call `handle` for every command of the server, for ever."""
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
        """Send the spool's events, for ever, each until it is acknowledged or refused for good.

        One after the other; but what a workflow's actions begin and end with goes ahead as it comes, up to `WINDOW`
        events. So a server that has much to do finds several that it can store together.
        """
        self._spool.on_append(self._send_ahead)
        try:
            while True:
                number, event = await self._spool.head()
                self._send_ahead()
                sent = self._ahead.pop(number, None)
                delivered = (sent is not None and await sent) or await self._deliver(event)
                self._spool.settle(number, delivered=delivered)
        finally:
            self._spool.on_append(lambda: None)
            for sent in self._ahead.values():
                sent.cancel()
            self._ahead.clear()

    def _send_ahead(self) -> None:
        """Send what need not wait until the oldest event is acknowledged, each once."""
        if self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            return  # gRPC would let them wait, and send them in any order
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
            established.cancel()
            call.cancel()

    async def _establish(self, backoff: Backoff) -> None:
        """Take the stream for accepted when nothing was said against it, counted from when there is a connection."""
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
        """Whether the server acknowledges `event` at once. If not, it is delivered when it is the oldest."""
        try:
            await self._stub.PublishEvent(event_to_wire(event), timeout=self._policy.publish_timeout)
        except grpc.aio.AioRpcError:
            return False
        log.debug("delivered %s", _describe(event))
        return True

    async def _deliver(self, event: Event) -> bool:
        """True when the server has acknowledged `event`, False when it never will."""
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
        """Seconds for which `event` may be refused."""
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
        """In TLS 1.3 a server refuses a certificate, or that there is none, when the client takes the handshake for
        done (RFC 8446, section 4.4.2.4), and gRPC says no more of it than that the connection is gone."""
        if not any(words in (error.details() or "") for words in _HUNG_UP):
            return ""
        if self._anonymous:
            asks = "if the server asks for a certificate, as with its --agent-auth=mtls"
            return f" ({asks}, give --tls-cert and --tls-key)"
        if self._certificate is not None:
            refuses = f"if the server refuses the certificate {self._certificate}"
            return f" ({refuses}: has it ended or not begun, by either's clock, or is its --grpc-client-ca another?)"
        return ""

    def _report(self, condition: str, level: int, message: str) -> None:
        if condition != self._condition:
            self._condition = condition
            log.log(level, "%s", message)


def reorderable(event: Event, after: Event) -> bool:
    """Whether it does no harm if the server hears `after` first: it knows of such reports in any order."""
    harmless = ActionStarted | ActionSucceeded
    return isinstance(event, harmless) and isinstance(after, harmless) and event.workflow_id == after.workflow_id


def _describe(event: Event) -> str:
    action = getattr(event, "action_id", "")
    return f"{type(event).__name__} of workflow {event.workflow_id}" + (f" action {action}" if action else "")
