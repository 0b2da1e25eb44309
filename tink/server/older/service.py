"""The gRPC methods of older agents.

The status codes depend on what the agents do with them:
    FAILED_PRECONDITION  only to GetAction: there is no work. tink-agent does not log this code.
    an empty answer      to every report that can be parsed, even a late one or one of an unknown Workflow or action:
                         tink-agent exits after NOT_FOUND, INVALID_ARGUMENT and FAILED_PRECONDITION, tink-worker
                         repeats a rejected report without end, and tink-worker v0.8 gives up
    UNAVAILABLE          the API does not answer, or this server is stopping: all of them try again
    UNAUTHENTICATED      older agents may not act for machines here (`--older-agents`)
    PERMISSION_DENIED    the caller's address belongs to another machine
    INTERNAL             a message that can't be parsed
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final, Never

import grpc
import grpc.aio
import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from proto import older_pb2 as pb
from proto import oldest_pb2 as pb_oldest
from proto import workflow_pb2
from tink.api.annotations import AGENT_ATTRIBUTES_ANNOTATION
from tink.api.v1alpha2 import Raw, WorkflowState, as_mapping
from tink.discovery.report import CollectionMethod, read_attributes
from tink.kube.client import ApiError, KubeClient
from tink.kube.objects import NamespacedName
from tink.printable import printable
from tink.server.activity import ActivityKind, AgentActivity
from tink.server.auth import (
    MAX_AGENT_ID,
    AgentAuth,
    Credentials,
    NoCredentialsError,
    OlderAgentAuth,
    UnknownAgentError,
    credentials_of,
)
from tink.server.callers import Callers, abort
from tink.server.events import BusyError, StaleError, WorkflowGoneError
from tink.server.inventory import HardwareWriter, InventoryKeeper, Spawn
from tink.server.older.messages import (
    REASON_NOT_EXPRESSIBLE,
    Dialect,
    action_response,
    describe_attributes,
    event_of,
    in_band,
    inexpressible,
    next_action,
    report_of,
    running_action,
    workflow_actions,
    workflow_context,
)
from tink.server.peer import peer_address
from tink.server.settings import ServerSettings
from tink.server.streams import AgentStreams, ServerParts
from tink.server.workflows import hardware_of, uid_of
from tink.workflow.events import ActionFailed, ActionStarted, AgentEvent, AgentRefused, Rejected
from tink.workflow.guards import paused, under_way
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import REASON_UNKNOWN_WORKFLOW, InvalidStatusError, name_of, state_of

log = logging.getLogger(__name__)

# --- Machine attributes ---
#
# Stores the machine attributes that tink-agent reports where Tinkerbell's own server stores them: in an annotation.
#
#     tinkerbell.org/agent-attributes: {"cpu": {"totalCores": 8}, "blockDevices": [{"name": "sda"}], ...}
#
# The agent sends them with every poll; a change is written. An agent can report anything, so texts, lists and the whole
# are bounded. `tink.server.inventory` has the limits of writes, which inventories of current agents share, and what a
# missing right (RBAC) means. The journey and the log contain the attributes in one line in any case.
#
# The same attributes become status.inventory.inBand, unless the Hardware has the inventory of a current agent.


MAX_BYTES: Final = 16 << 10
"""Maximum size of the annotation. Kubernetes allows 256 KiB for all annotations of an object."""
_MAX_TEXT, _MAX_ITEMS = 128, 64
_WRITE_SECONDS = 60.0
"""Minimum time between two writes of the attributes of one machine."""
_NAMES: Final = {"block": "blockDevices", "network": "networkInterfaces"}
"""Tinkerbell's JSON names of lists; its other names are those of protobuf's JSON."""


def as_json(attributes: pb.AgentAttributes) -> str:
    """Return the attributes as JSON for the annotation; empty if the agent sends none."""
    given = MessageToDict(attributes)
    found = {_NAMES.get(name, name): _bounded(value) for name, value in sorted(given.items())}
    found = {name: value for name, value in found.items() if value}
    text = orjson.dumps(found) if found else b""
    left_out: list[str] = []
    while len(text) > MAX_BYTES:  # the largest entries are lists, so drop the largest first
        left_out.append(max(found, key=lambda name: len(orjson.dumps(found[name]))))
        del found[left_out[-1]]
        text = orjson.dumps(found | {"leftOut": ", ".join(left_out)})
    return text.decode()


def _bounded(value: Any) -> Any:
    match value:
        case dict():
            return {name: _bounded(each) for name, each in value.items()}
        case list():
            return [_bounded(each) for each in value[:_MAX_ITEMS]]
        case str():
            return printable(value[:_MAX_TEXT], " ").strip()
    return value


@dataclass(frozen=True, slots=True)
class _AttributesWrite:
    """The text of the annotation, as a pending write."""

    text: str

    @property
    def size(self) -> int:
        return len(self.text)

    def patch(self, hardware: Raw) -> Raw | None:
        annotations = as_mapping(as_mapping(hardware.get("metadata")).get("annotations"))
        if annotations.get(AGENT_ATTRIBUTES_ANNOTATION) == self.text:
            return None
        return {"metadata": {"annotations": {AGENT_ATTRIBUTES_ANNOTATION: self.text}}}

    def written(self, _hardware: Raw, _answer: Raw) -> Raw | None:
        return None


class AttributesKeeper:
    """Writes attributes into annotations, and into `status.inventory.inBand` of Hardware that has no better one.

    `hardware` looks up a Hardware by namespace and name, `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        hardware: Callable[[str, str], Raw | None],
        spawn: Spawn,
        inventories: InventoryKeeper,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inventories = inventories
        self._kept: dict[NamespacedName, int] = {}
        """The hash of the last attributes of each machine."""
        self._writer = HardwareWriter(
            client,
            hardware,
            spawn,
            what="attributes that agents send",
            advice=(
                "the server's role has no patch on hardware "
                "(on a cluster: server.agentAttributes of the chart, or deploy/rbac-attributes.yaml)"
            ),
            interval=_WRITE_SECONDS,
            clock=clock,
            refused=self._kept.clear,
            level=logging.INFO,
        )
        self.close = self._writer.close

    def store(self, key: NamespacedName, attributes: pb.AgentAttributes) -> None:
        """Store the attributes that the machine's agent reports."""
        digest = hash(attributes.SerializeToString(deterministic=True))
        if self._kept.get(key) == digest:
            return
        text = as_json(attributes)
        found = read_attributes(in_band(attributes)).attributes
        if not text or not found:
            return
        is_kept = not self._writer.is_refused and self._writer.put(key, _AttributesWrite(text))
        if self._inventories.store(key, found, CollectionMethod.TINK_AGENT) and is_kept:
            self._kept[key] = digest

    def forget(self, key: NamespacedName) -> None:
        """Forget a deleted Hardware."""
        self._kept.pop(key, None)
        self._writer.forget(key)


# --- Sessions ---
#
# Tracks which older agents are connected. They open no stream that shows that, only calls.
#
# An agent counts as connected while its connection is open, and while an action of its machine runs: the connection may
# be closed as idle during a long action.


_MAX_USER_AGENT = 100


@dataclass(slots=True)
class _Session:
    dialect: Dialect
    agent_id: str
    peer: str
    """gRPC's name of the connection of the last call."""
    described: int = 0
    """The hash of its description of the machine; 0 if it sent none."""


class Sessions:
    """The older agents that have called. `is_open` returns True if the connection with this gRPC peer name is open."""

    def __init__(self, parts: ServerParts, is_open: Callable[[str], bool]) -> None:
        self._parts = parts
        self._is_open = is_open
        self._sessions: dict[NamespacedName, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, key: NamespacedName) -> bool:
        """Return True if the machine's agent has an open connection."""
        session = self._sessions.get(key)
        return session is not None and self._is_open(session.peer)

    def agent_id(self, key: NamespacedName) -> str:
        """Return the id that the machine's agent uses; empty if it has not called."""
        session = self._sessions.get(key)
        return session.agent_id if session is not None else ""

    def called(
        self, key: NamespacedName, dialect: Dialect, agent_id: str, peer: str, user_agent: str, described: str = ""
    ) -> None:
        """Record a call of the machine's agent on the connection `peer`; `described` describes the machine."""
        session = self._sessions.get(key)
        if session is not None and (session.dialect, peer_address(session.peer)) == (dialect, peer_address(peer)):
            session.peer = peer
            if not described or session.described == hash(described):
                return
            session.described = hash(described)
        else:
            session = self._sessions[key] = _Session(dialect, agent_id, peer, hash(described) if described else 0)
        library = printable(user_agent, "")[:_MAX_USER_AGENT]
        story = f"{dialect} connected from {peer_address(peer)}" + (f" ({library})" if library else "")
        self._tell(key, session, ActivityKind.CONNECTED, f"{story}: {described}" if described else story)

    def sweep(self) -> None:
        """Remove the agents whose connection is closed."""
        for key, session in [*self._sessions.items()]:
            if not self._is_open(session.peer) and not any(map(under_way, self._parts.workflows.of(key))):
                del self._sessions[key]
                story = f"{session.dialect} at {peer_address(session.peer)} disconnected"
                self._tell(key, session, ActivityKind.DISCONNECTED, story)

    def _tell(self, key: NamespacedName, session: _Session, kind: ActivityKind, story: str) -> None:
        log.info("agent %s of Hardware %s: %s", session.agent_id, key, story)
        self._parts.observe(AgentActivity(session.agent_id, peer_address(session.peer), kind, story, str(key)))


# --- Polls ---
#
# Finds the next action for a machine's older agent, or waits for one.
#
# A poll is a command stream that lasts until there is something to do. To the dispatch it is an agent that holds
# nothing, because an older agent only polls when it runs nothing. Between two actions the dispatch is not involved: the
# Workflow continues, and its status contains its position. So any server can answer, even one that has just started.
#
# If the agent polls while its action is Running, the agent or its machine has restarted. The action is not run a second
# time, because it may have changed a disk: the Workflow fails with the reason AgentLost, unless the action was to
# reboot the machine. The action is only offered again if the agent cannot have begun, because it cancelled its report
# of the start. Before a Workflow fails, it is read from the API: another server may just have stored the action's end.


HOLD_SECONDS = 86_400.0
"""Seconds that a poll waits when there is nothing to do.

Older agents set no deadline, keepalive pings detect dead ones, and an agent that loses its permission is rejected at
once. Tinkerbell's own server answers within a minute; one poll costs as much as some minutes of waiting.
"""

Command = workflow_pb2.GetWorkflowsResponse
Poller = tuple[str, Credentials, NamespacedName]
"""An agent that polls: its id as it sent it, its credentials, and the Hardware that it may act for."""


class Polls:
    """Answers the polls of older agents. `hold` is in seconds."""

    def __init__(self, parts: ServerParts, streams: AgentStreams, *, hold: float = HOLD_SECONDS) -> None:
        self._parts = parts
        self._streams = streams
        self._hold = hold
        self._unanswered: dict[NamespacedName, tuple[str, str]] = {}

    def unanswered(self, key: NamespacedName, uid: str, action_id: str) -> None:
        """Note that the agent cancelled its report of an action's start: it does not run the action."""
        self._unanswered[key] = uid, action_id

    def answered(self, key: NamespacedName) -> None:
        """Note that the agent's report was answered."""
        self._unanswered.pop(key, None)

    async def next(self, agent_id: str, credentials: Credentials, key: NamespacedName) -> Raw | None:
        """Wait for a Workflow whose next action the agent should run; None if there is none. Raises ApiError."""
        under_way = await self._under_way(key)
        if under_way is not None:
            return under_way
        found: Raw | None = None

        async def obey(command: Command) -> None:
            nonlocal found
            found = await self._obey(command)
            if found is not None:
                stream.end(grpc.StatusCode.OK, "")

        # Everything runs in the call's own task, because thousands of polls may wait.
        with self._streams.opened(agent_id, credentials, key, frozenset(), quiet=True) as (stream, _):
            timer = asyncio.get_running_loop().call_later(self._hold, stream.end, grpc.StatusCode.OK, "")
            try:
                await stream.run(obey)
            finally:
                timer.cancel()
        return found

    async def _under_way(self, key: NamespacedName) -> Raw | None:
        """Return the machine's Workflow that is between two actions, or None."""
        for workflow in self._parts.workflows.of(key):
            with contextlib.suppress(InvalidStatusError):  # the dispatch logs the error
                if paused(workflow) or state_of(workflow) is not WorkflowState.RUNNING:
                    continue
                if self._goes_on(key, workflow):
                    return workflow
                with contextlib.suppress(WorkflowGoneError):
                    fresh = await self._parts.events.fresh(workflow)
                    if self._goes_on(key, fresh):
                        return fresh
        return None

    def _goes_on(self, key: NamespacedName, workflow: Raw) -> bool:
        """Return True if the polling agent can continue the Workflow. Raises InvalidStatusError."""
        if state_of(workflow) is not WorkflowState.RUNNING or next_action(workflow) is None:
            return False
        running = running_action(workflow)
        return running is None or self._unanswered.get(key) == (uid_of(workflow), running)

    async def _obey(self, command: Command) -> Raw | None:
        """Return the Workflow of this command, or None if an older agent can't run it."""
        if command.WhichOneof("cmd") == "stop_workflow":
            workflow = self._parts.workflows.get(command.stop_workflow.workflow_id)
            if workflow is not None:
                await self._report(workflow, Rejected(REASON_UNKNOWN_WORKFLOW, "the agent asks for work"))
            return None
        workflow = self._parts.workflows.get(command.start_workflow.workflow.workflow_id)
        problem = inexpressible(workflow) if workflow is not None else None
        if workflow is None or problem is None:
            return workflow
        action_id, why = problem
        if await self._report(workflow, ActionFailed(action_id, REASON_NOT_EXPRESSIBLE, why)):
            key, name = hardware_of(workflow) or NamespacedName("", ""), name_of(workflow)
            log.warning("Workflow %s: %s", name, why)
            agent_id = self._parts.agents.id_of(key)
            self._parts.observe(AgentActivity(agent_id, "", ActivityKind.EVENT, why, str(key), name))
        return None

    async def _report(self, workflow: Raw, event: AgentEvent) -> bool:
        """Store an event that a current agent would report. If that fails now, the next poll has the same result."""
        try:
            return await self._parts.events.take(workflow, event)
        except WorkflowGoneError:
            return False
        except (ApiError, BusyError, StaleError, InvalidStatusError) as error:
            log.warning("Workflow %s: %s", name_of(workflow), error)
            return False


# --- Methods ---


Context = grpc.aio.ServicerContext[Any, Any]

SERVICES = (
    pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
    pb_oldest.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
)


def refusal(settings: ServerSettings) -> str:
    """Return why no older agent may act for a machine; empty if they may."""
    older, current = settings.older_agents, settings.agent_auth
    if older is OlderAgentAuth.OFF:
        return "is one of Tinkerbell's older agents, which are not served here (--older-agents off)"
    if older is OlderAgentAuth.AUTO and current in (AgentAuth.TOKEN, AgentAuth.MTLS):
        return (
            "is one of Tinkerbell's older agents, which know nothing of what --agent-auth "
            f"{current} asks for: boot an OSIE with the agent of tinkedge, or let older ones in by their address with "
            "--older-agents address"
        )
    return ""


HELD = (f"/{SERVICES[0]}/GetAction",)
"""Methods that wait until there is something to do."""

_NOTHING = b""
"""The answer to a report: an empty message in every version of the protocol."""


class OlderAgents:
    """The gRPC methods of older agents, which `callers` admits."""

    def __init__(self, callers: Callers, sessions: Sessions, attributes: AttributesKeeper) -> None:
        self._callers = callers
        self._parts = callers.parts
        self._polls = Polls(callers.parts, callers.streams)
        self._sessions = sessions
        self._attributes = attributes
        self._refusal = refusal(callers.parts.settings)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the methods to a server that has not started; several servers can share them."""
        actions = _handler(self.get_workflow_actions, pb.WorkflowActionsRequest)
        report: Any = grpc.unary_unary_rpc_method_handler(self.report_action_status)
        methods = (
            {
                "GetAction": _handler(self.get_action, pb.ActionRequest),
                "GetWorkflowContexts": _contexts_handler(self._contexts(Dialect.TINK_WORKER)),
                "GetWorkflowActions": actions,
                "ReportActionStatus": report,
            },
            {
                "GetWorkflowContexts": _contexts_handler(self._contexts(Dialect.TINK_WORKER_0_8)),
                "GetWorkflowActions": actions,
                "ReportActionStatus": report,
                "GetWorkflowData": _handler(self.get_workflow_data, pb_oldest.GetWorkflowDataRequest),
                "UpdateWorkflowData": _handler(self.update_workflow_data, pb_oldest.UpdateWorkflowDataRequest),
            },
        )
        handlers = (grpc.method_handlers_generic_handler(*each) for each in zip(SERVICES, methods, strict=True))
        server.add_generic_rpc_handlers(tuple(handlers))

    # --- work ---------------------------------------------------------------------------------------------------------

    async def get_action(self, request: pb.ActionRequest, context: Context) -> pb.ActionResponse:
        """Return the next action, for tink-agent."""
        poller = await self._admitted(Dialect.TINK_AGENT, request.agent_id, context, request.agent_attributes)
        del request  # frees the largest object of a waiting call
        workflow = await self._next(poller, context)
        action = next_action(workflow) if workflow is not None else None
        if workflow is None or action is None:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "there is nothing to do")
        return action_response(workflow, action, poller[0])

    def _contexts(self, dialect: Dialect) -> Callable[[pb.WorkflowContextRequest, Context], Awaitable[None]]:
        async def get_workflow_contexts(request: pb.WorkflowContextRequest, context: Context) -> None:
            poller = await self._admitted(dialect, request.worker_id, context)
            workflow = await self._next(poller, context)
            if workflow is not None:
                await context.write(workflow_context(workflow, request.worker_id))

        return get_workflow_contexts

    async def get_workflow_actions(self, request: pb.WorkflowActionsRequest, context: Context) -> pb.WorkflowActionList:
        """Return all actions of a Workflow, for tink-worker, which runs those with its own id."""
        workflow, credentials = await self._callers.workflow(request.workflow_id, context), credentials_of(context)
        if self._refusal:
            await self._refuse(hardware_of(workflow), "", credentials, context)
        key, _ = await self._callers.agent_of(workflow, credentials, context)
        return workflow_actions(workflow, self._sessions.agent_id(key) or self._parts.agents.id_of(key))

    async def _admitted(
        self, dialect: Dialect, agent_id: str, context: Context, attributes: pb.AgentAttributes | None = None
    ) -> Poller:
        """Admit the polling agent, or abort the call."""
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the agent's id is missing or too long")
        await self._callers.synced(context)
        credentials = credentials_of(context)
        if self._refusal:
            machine = None
            with contextlib.suppress(UnknownAgentError):
                machine = self._parts.agents.find(agent_id)
            await self._refuse(machine, agent_id, credentials, context)
        key = await self._callers.admit(agent_id, credentials, context)
        described = describe_attributes(attributes) if attributes is not None else ""
        user_agent = next(
            (str(value) for name, value in context.invocation_metadata() or () if name == "user-agent"), ""
        )
        self._sessions.called(key, dialect, agent_id, context.peer(), user_agent, described)
        if attributes is not None:
            self._attributes.store(key, attributes)
        return agent_id, credentials, key

    async def _next(self, poller: Poller, context: Context) -> Raw | None:
        try:
            return await self._polls.next(*poller)
        except ApiError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, f"the Kubernetes API can't be asked: {error}")

    # --- reports ------------------------------------------------------------------------------------------------------

    async def report_action_status(self, raw: bytes, context: Context) -> bytes:
        """Store the report of an action, from any older agent."""
        try:
            report = report_of(raw)
        except DecodeError as error:
            await abort(context, grpc.StatusCode.INTERNAL, f"the report can't be read: {str(error)[:200]}")
        await self._callers.synced(context)
        workflow, credentials = self._parts.workflows.get(report.workflow_id), credentials_of(context)
        if workflow is None:
            log.info("%s reports of a Workflow that is not there", credentials.peer)
            return _NOTHING
        if self._refusal:
            await self._refuse(hardware_of(workflow), "", credentials, context)
        event = event_of(report, workflow)
        if event is None:
            await self._callers.agent_of(workflow, credentials, context)
            log.info("Workflow %s: a report of %s says nothing new", name_of(workflow), credentials.peer)
            return _NOTHING
        key = hardware_of(workflow) or NamespacedName("", "")
        try:
            await self._callers.take(workflow, event, credentials, context)
            self._polls.answered(key)
        except WorkflowGoneError:
            pass
        except UnknownActionError as error:
            log.warning("a report of %s is left aside: %s", credentials.peer, error)
        except InvalidStatusError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except asyncio.CancelledError:
            if isinstance(event, ActionStarted):
                self._polls.unanswered(key, uid_of(workflow), event.action_id)
            raise
        return _NOTHING

    # --- data of a Workflow, which v0.8 writes after every action -----------------------------------------------------

    async def get_workflow_data(
        self, _request: pb_oldest.GetWorkflowDataRequest, _context: Context
    ) -> pb_oldest.GetWorkflowDataResponse:
        """Return no data: a Workflow has no place for it, and no action needs it."""
        return pb_oldest.GetWorkflowDataResponse()

    async def update_workflow_data(
        self, _request: pb_oldest.UpdateWorkflowDataRequest, _context: Context
    ) -> pb_oldest.Empty:
        """Acknowledge the data without storing it: the worker exits otherwise."""
        return pb_oldest.Empty()

    async def _refuse(
        self, key: NamespacedName | None, agent_id: str, credentials: Credentials, context: Context
    ) -> Never:
        """Abort the call, because no older agent may act for a machine here."""
        key, why = key or NamespacedName("", ""), f"{credentials.peer} {self._refusal}"
        named = agent_id or self._parts.agents.id_of(key)
        if self._callers.note_refusal(named, key, credentials.peer, why):
            await self._note_on_pending(key, why)
        await abort(context, NoCredentialsError.code, why)

    async def _note_on_pending(self, key: NamespacedName, why: str) -> None:
        """Record on the machine's next Pending Workflow why its agent is refused, for `kubectl describe workflow`."""
        for workflow in self._parts.workflows.of(key):
            with contextlib.suppress(ApiError, BusyError, StaleError, WorkflowGoneError, InvalidStatusError):
                if state_of(workflow) is WorkflowState.PENDING:
                    await self._parts.events.take(workflow, AgentRefused(why))
                    return


def _handler(behaviour: Callable[..., Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=request.FromString, response_serializer=methodcaller("SerializeToString")
    )


def _contexts_handler(behaviour: Callable[..., Any]) -> Any:
    return grpc.unary_stream_rpc_method_handler(
        behaviour,
        request_deserializer=pb.WorkflowContextRequest.FromString,
        response_serializer=methodcaller("SerializeToString"),
    )
