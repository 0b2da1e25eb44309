"""A simulated agent: its connection, its Workflow and its events, as `tink.agent` behaves.

Actions are pauses, with the results and the output of the profile. Events go out in order, up to eight at once, and are
repeated until the server acknowledges them. The first and the last action start after the server has acknowledged that.
After a lost connection the agent connects again and repeats unacknowledged events. The real agent's file on disk is
memory here: OSIEs run from memory, so a power cut erases it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from edge.fleet.discovery import Introduction
from edge.fleet.machine import BootError, GaveUpError
from edge.fleet.population import ActionProfile, action_seconds
from edge.fleet.protocols import http
from edge.fleet.protocols.grpc import UNAVAILABLE, Call, Field, GrpcConnection
from edge.fleet.results import FleetStep, Question
from proto import inventory_pb2 as inventory_pb
from proto import metadata
from proto import output_pb2 as output_pb
from proto import workflow_pb2 as pb
from tink.agent import AgentSettings
from tink.api.v1alpha2 import Raw
from tink.limits import Backoff

if TYPE_CHECKING:
    from edge.fleet.machine import SimulatedMachine


_CONNECT_SECONDS: Final = 10.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 10.0
"""Pauses before a retry.

They are those of `tink.agent.connection.RetryPolicy`: a slow server gets as many calls as from real agents.
"""


class Channel:
    """The agent's connection to the gRPC server. Calls `connected()` each time it is established."""

    __slots__ = (
        "_backoff", "_connected", "_connecting", "_connection", "_context", "_loop", "_machine", "_retry", "_settings",
        "is_open",
    )  # fmt: skip

    def __init__(self, machine: SimulatedMachine, settings: AgentSettings, connected: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._settings = settings
        self._connected = connected
        self._context: ssl.SSLContext | None = None
        self._connection: GrpcConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.is_open = False
        """True if calls can be made."""
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)

    async def open(self) -> None:
        """Start to connect.

        Raises BootError, HttpError if the server is not allowed or its authority can't be fetched.
        """
        self._machine.around.check(self._settings.server.rpartition(":")[0])
        if self._settings.tls:
            self._context = await self._trusted()
        self._connect()

    def call(self, method: bytes, message: bytes, fields: tuple[Field, ...], call: Call) -> None:
        """Make a call, which ends with UNAVAILABLE if there is no connection."""
        if self._connection is None or not self.is_open:
            call.ended(UNAVAILABLE, "there is no connection")
        else:
            self._connection.call(method, message, fields, call)

    def close(self) -> None:
        """Close."""
        self.is_open = False
        if self._retry is not None:
            self._retry.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.close()

    # --- the connection ---

    def _established(self) -> None:
        self.is_open = True
        self._backoff.reset()
        self._connected()

    def _lost(self, why: str) -> None:
        self.is_open = False
        self._connection = None
        self._machine.error(f"the connection to the gRPC server is lost: {why}")
        self._again()

    def _again(self) -> None:
        self._retry = self._loop.call_later(self._backoff.next(), self._connect)

    def _connect(self) -> None:
        self._retry = None
        self._connecting = self._loop.create_task(self._try())

    async def _try(self) -> None:
        host, _, port = self._settings.server.rpartition(":")
        clock_check = self._clock_check if self._context else None
        self._connection = GrpcConnection(self._settings.server, self._established, self._lost, clock_check)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                sock = await http.connected_socket(self._machine.identity.address, host, int(port))
                connection = self._connection
                # A connection that fails closes the socket.
                await self._loop.create_connection(
                    lambda: connection, sock=sock, ssl=self._context, server_hostname=host if self._context else None
                )
        except OSError as error:
            self._connection = None
            reason = http.why(error) if str(error) else "it does not answer"
            self._machine.error(f"the gRPC server can't be reached: {reason}")
            self._again()
        finally:
            self._connecting = None

    # --- TLS ---

    async def _trusted(self) -> ssl.SSLContext:
        """Return the TLS context of the authority that the kernel command line names. Raises BootError, HttpError."""
        contexts = self._machine.around.contexts
        url, _, digest = self._settings.tls_ca_url.partition("#sha256=")
        if not url:
            return contexts.setdefault("", _context(None))
        self._machine.around.check(http.Url.of(url).host)
        found = await http.get(self._machine.identity.address, url)
        if hashlib.sha256(found.body).hexdigest() != digest.lower():
            raise BootError(f"{url} is not the authority that the kernel command line names")
        if digest not in contexts:
            contexts[digest] = _context(found.body.decode("ascii", "replace"))
        return contexts[digest]

    def _clock_check(self, certificate: dict[str, Any]) -> str:
        """Return why the machine's clock rejects a certificate (RFC 5280 section 4.1.2.5); empty if it is valid."""
        now = time.time() + self._machine.traits.clock_error
        try:
            early = now < ssl.cert_time_to_seconds(certificate["notBefore"])
            late = now > ssl.cert_time_to_seconds(certificate["notAfter"])
        except (KeyError, ValueError):
            return "the server's certificate has no dates"
        if not early and not late:
            return ""
        if self._machine.traits.clock_error:
            self._machine.blame_fleet()
        return f"by the machine's clock the server's certificate {'is not valid yet' if early else 'has expired'}"


def _context(authority: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority)
    context.set_alpn_protocols(["h2"])
    return context


WINDOW: Final = 8
_GET_WORKFLOWS: Final = b"/internal.proto.workflow.v2.WorkflowService/GetWorkflows"
_PUBLISH_EVENT: Final = b"/internal.proto.workflow.v2.WorkflowService/PublishEvent"
_REPORT_INVENTORY: Final = b"/tinkedge.inventory.v1.InventoryService/ReportInventory"
_WRITE_OUTPUT: Final = b"/tinkedge.output.v1.OutputService/WriteOutput"
_REFUSALS: Final = frozenset({5, 7, 9, 12, 16})
"""NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED, UNAUTHENTICATED: retried slowly."""
_INVALID_ARGUMENT: Final = 3
_REFUSED_SECONDS: Final = 10.0
_FIRST_OUTPUT_SECONDS: Final = 1.0
_PATIENCE_WITHOUT_POWER: Final = 60.0
"""Seconds that an agent waits after a power cut: its Workflow has most likely failed."""


async def work(machine: SimulatedMachine, settings: AgentSettings) -> None:
    """Run the agent until its Workflow has Succeeded and the server has acknowledged that.

    Raises BootError, GaveUpError.
    """
    with contextlib.closing(Agent(machine, settings)) as agent:
        machine.at(FleetStep.AGENT)
        await agent.work()


@dataclass(eq=False, slots=True)
class _Event:
    request: bytes
    in_flight: bool = False
    acknowledged: bool = False
    sent: float = 0.0
    backoff: Backoff | None = None
    """Set after the server refused the event, which is then repeated when it is the oldest."""
    pauses: bool = False
    done: asyncio.Future[None] | None = None


class Agent:
    """The agent of one boot."""

    __slots__ = (
        "_backoff", "_channel", "_established", "_events", "_failed", "_introducing", "_loop", "_machine", "_retry",
        "_settings", "_started", "_stopped", "_token", "_workflow",
    )  # fmt: skip

    def __init__(self, machine: SimulatedMachine, settings: AgentSettings) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._settings = settings
        self._token = settings.token
        self._channel = Channel(machine, settings, self._connected)
        self._events: deque[_Event] = deque()
        self._workflow = ""
        self._introducing: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        """The timer of the next attempt to open the command stream."""
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._established: asyncio.Future[None] = self._loop.create_future()
        self._started: asyncio.Future[pb.Workflow] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        """Gets an exception when the server rejects an event for good."""

    async def work(self) -> None:
        """Run until the Workflow has Succeeded, or an unknown machine without one has introduced itself.

        Raises BootError, GaveUpError.
        """
        await self._channel.open()
        await self._wait(self._established, "the server did not accept the agent")
        if self._machine.introduction is not None:
            self._introducing = self._loop.create_task(self._introduce(self._machine.introduction))
            if not self._machine.is_expected:
                await self._introducing
                return
        self._machine.at(FleetStep.WORKFLOW)
        workflow = await self._wait(self._started, "the agent got no Workflow")
        self._machine.at(FleetStep.ACTIONS)
        await self._run(workflow)
        if self._introducing is not None:
            await self._introducing  # real actions take longer than the first LLDP frame

    def close(self) -> None:
        """Close."""
        if self._retry is not None:
            self._retry.cancel()
        if self._introducing is not None:
            self._introducing.cancel()
        for future in (self._established, self._started, self._stopped, self._failed):
            future.cancel()
        self._channel.close()

    async def _wait(self, awaited: asyncio.Future[Any], without: str) -> Any:
        """Wait for a future. Raises GaveUpError after the profile's patience."""
        patience = self._machine.around.profile.patience
        if self._machine.was_cut:
            patience = min(patience, _PATIENCE_WITHOUT_POWER)
        done, _ = await asyncio.wait((awaited, self._failed), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if self._failed in done:
            self._failed.result()
        if awaited not in done:
            cut = " (its power was cut before)" if self._machine.was_cut else ""
            raise GaveUpError(f"{without} within {patience:.0f} s{cut}", injected=self._machine.was_cut)
        return awaited.result()

    # --- the command stream ---

    def _connected(self) -> None:
        for event in self._events:
            event.in_flight = False
        self._open_stream()
        self._send()

    def _open_stream(self) -> None:
        if self._retry is not None:
            self._retry.cancel()  # a second stream would end the first
        self._retry = None
        request = pb.GetWorkflowsRequest(agent_id=self._settings.agent_id).SerializeToString()
        held = (metadata.WORKFLOW.encode(), self._workflow.encode())
        call = Call(self._stream_ended, self._command, self._stream_opened)
        self._channel.call(_GET_WORKFLOWS, request, (held, *self._authorization()), call)

    def _authorization(self) -> tuple[tuple[bytes, bytes], ...]:
        if not self._token:
            return ()
        return ((metadata.AUTHORIZATION.encode(), f"Bearer {self._token}".encode()),)

    def _stream_opened(self, fields: dict[str, str]) -> None:
        self._token = fields.get(metadata.TOKEN) or self._token
        self._backoff.reset()
        if not self._established.done():
            self._established.set_result(None)

    def _stream_ended(self, status: int, message: str) -> None:
        if not self._channel.is_open:
            return  # the channel reconnects and calls `_connected`
        if status:
            self._machine.error(f"the command stream ended with status {status}: {message}")
        pause = _REFUSED_SECONDS if status in _REFUSALS else self._backoff.next()
        self._retry = self._loop.call_later(pause, self._open_stream)

    def _command(self, message: bytes) -> None:
        command = pb.GetWorkflowsResponse.FromString(message)
        if command.HasField("start_workflow"):
            workflow = command.start_workflow.workflow
            if not self._workflow and not self._started.done():
                self._workflow = workflow.workflow_id
                self._started.set_result(workflow)
            elif workflow.workflow_id != self._workflow:
                self._reject(workflow.workflow_id, "AlreadyRunning", f"workflow {self._workflow} is running")
        elif command.stop_workflow.workflow_id == self._workflow and self._workflow:
            if not self._stopped.done():
                self._stopped.set_result(None)
        else:
            self._reject(command.stop_workflow.workflow_id, "UnknownWorkflow", "it is not running on this machine")

    def _reject(self, workflow: str, reason: str, message: str) -> None:
        rejected = pb.Event.WorkflowRejected(failure_reason=reason, failure_message=message)
        self._publish(pb.Event(workflow_id=workflow, workflow_rejected=rejected))

    # --- the inventory ---

    async def _introduce(self, introduction: Introduction) -> None:
        """Report the inventory at once, and again with the switch port when its first LLDP frame has arrived."""
        began = self._loop.time()
        await self._report(introduction, introduction.report(has_lldp=False))
        await asyncio.sleep(began + introduction.lldp_seconds - self._loop.time())
        await self._report(introduction, introduction.report(has_lldp=True))

    async def _report(self, introduction: Introduction, attributes: Raw) -> None:
        """Report an inventory until the server takes it."""
        text, backoff = orjson.dumps(attributes), Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while True:
            answered: asyncio.Future[int] = self._loop.create_future()
            clock = time.time() + introduction.clock_ahead
            request = inventory_pb.ReportInventoryRequest(
                agent_id=self._settings.agent_id, attributes=text, clock_unix_seconds=clock
            )

            def end(status: int, message: str, answered: asyncio.Future[int] = answered) -> None:
                if status:
                    self._machine.error(f"the inventory was not accepted: status {status}: {message}")
                if not answered.done():
                    answered.set_result(status)

            self._channel.call(_REPORT_INVENTORY, request.SerializeToString(), self._authorization(), Call(end))
            if await answered == 0:
                return
            await asyncio.sleep(backoff.next())

    # --- the Workflow ---

    async def _run(self, workflow: pb.Workflow) -> None:
        """Run the Workflow's actions. Raises GaveUpError if it does not succeed."""
        actions = workflow.actions
        share = self._machine.traits.failing_action
        failing = int(share * len(actions)) if share is not None else -1
        for index, action in enumerate(actions):
            started = pb.Event.ActionStarted(action_id=action.id)
            event = self._publish(pb.Event(workflow_id=workflow.workflow_id, action_started=started))
            if index in (0, len(actions) - 1):
                await self._acknowledged(event)
            self._machine.around.recorder.action_begins(self._machine.identity.name, workflow.workflow_id, action.id)
            profile = self._machine.around.profile.action(action.name)
            if await self._action(workflow.workflow_id, action, profile):
                message = f"stopped while action {action.name} ran, because the workflow was canceled"
                await self._end_badly(workflow.workflow_id, action, "Canceled", message)
                raise GaveUpError(f"the Workflow was canceled while action {action.name} ran")
            if index == failing:
                self._machine.around.recorder.faults["actions failed"] += 1
                await self._end_badly(workflow.workflow_id, action, profile.reason, profile.message)
                raise GaveUpError(f"action {action.name} failed: {profile.reason}", injected=True)
            succeeded = pb.Event.ActionSucceeded(action_id=action.id)
            event = self._publish(pb.Event(workflow_id=workflow.workflow_id, action_succeeded=succeeded))
        await self._acknowledged(event)

    async def _action(self, workflow: str, action: pb.Workflow.Action, profile: ActionProfile) -> bool:
        """Let an action take its time. Return True if the server stopped it."""
        around, traits = self._machine.around, self._machine.traits
        seconds = action_seconds(profile, traits, around.seed, action.name)
        printed = [
            line.replace("{percent}", str(100 * number // len(profile.output)))
            for number, line in enumerate(profile.output, 1)
        ]
        if len(printed) > 1 and seconds > 2 * _FIRST_OUTPUT_SECONDS:
            if await self._is_stopped_within(_FIRST_OUTPUT_SECONDS):
                return True
            seconds -= _FIRST_OUTPUT_SECONDS
            self._print(workflow, action.id, printed[: len(printed) // 2])
            printed = printed[len(printed) // 2 :]
        if await self._is_stopped_within(seconds):
            return True
        if printed:
            self._print(workflow, action.id, printed)
        return False

    async def _is_stopped_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait((self._stopped,), timeout=seconds)
        return bool(done)

    async def _end_badly(self, workflow: str, action: pb.Workflow.Action, reason: str, message: str) -> None:
        failed = pb.Event.ActionFailed(action_id=action.id, failure_reason=reason, failure_message=message)
        await self._acknowledged(self._publish(pb.Event(workflow_id=workflow, action_failed=failed)))

    def _print(self, workflow: str, action: str, printed: list[str]) -> None:
        """Send an action's output once. Lost output is not repeated."""
        piece = output_pb.WriteOutputRequest(workflow_id=workflow, action_id=action, lines=printed)
        call = Call(self._output_ended)
        self._channel.call(_WRITE_OUTPUT, piece.SerializeToString(), self._authorization(), call)

    def _output_ended(self, status: int, message: str) -> None:
        if status and self._channel.is_open:
            self._machine.error(f"output was not accepted: status {status}: {message}")

    # --- events ---

    def _publish(self, event: pb.Event) -> _Event:
        made = _Event(pb.PublishEventRequest(event=event).SerializeToString())
        self._events.append(made)
        self._send()
        return made

    async def _acknowledged(self, event: _Event) -> None:
        """Wait until the server has acknowledged this event and all before it. Raises GaveUpError."""
        if event in self._events:
            event.done = self._loop.create_future()
            await self._wait(event.done, "an event was not acknowledged")

    def _send(self) -> None:
        """Send waiting events, oldest first, up to the window."""
        for number, event in enumerate(self._events):
            if number >= WINDOW or not self._channel.is_open:
                return
            if event.in_flight or event.acknowledged or event.pauses or (event.backoff is not None and number):
                continue
            event.in_flight = True
            event.sent = self._loop.time()
            call = Call(partial(self._answered, event))
            self._channel.call(_PUBLISH_EVENT, event.request, self._authorization(), call)

    def _answered(self, event: _Event, status: int, message: str) -> None:
        event.in_flight = False
        if status == 0:
            self._machine.around.recorder.events += 1
            self._machine.around.recorder.took(Question.EVENT, self._loop.time() - event.sent)
            event.acknowledged = True
            while self._events and self._events[0].acknowledged:
                settled = self._events.popleft()
                if settled.done is not None and not settled.done.done():
                    settled.done.set_result(None)
            self._send()
            return
        if not self._channel.is_open:
            return
        self._machine.error(f"an event was not accepted: status {status}: {message}")
        if status == _INVALID_ARGUMENT and not self._failed.done():
            self._failed.set_exception(GaveUpError(f"the server rejects an event for good: {message}"))
            return
        event.backoff = event.backoff or Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        event.pauses = True
        pause = _REFUSED_SECONDS if status in _REFUSALS else event.backoff.next()
        self._loop.call_later(pause, self._again, event)

    def _again(self, event: _Event) -> None:
        event.pauses = False
        self._send()
