"""The methods of older agents.

What they are told is chosen by what they do of it:
    FAILED_PRECONDITION  to GetAction alone: nothing to do, for which tink-agent has no line in its log
    an empty answer      to every report that can be understood, also a late one, or one of a Workflow or an action that
                         is not there: tink-agent ends its process for NOT_FOUND, INVALID_ARGUMENT and
                         FAILED_PRECONDITION, tink-worker repeats what is refused for ever, and that of v0.8 gives up
    UNAVAILABLE          the API is away, or this server is stopping: all of them try again
    UNAUTHENTICATED      older agents may not speak for machines here (`--older-agents`)
    PERMISSION_DENIED    the caller's address is not its machine's
    INTERNAL             a message that can't be read
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Never

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from proto import older_pb2 as pb
from proto import oldest_pb2 as pb_oldest
from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.server.agents.auth import AgentAuth, Credentials, NoCredentialsError, OlderAgentAuth, credentials_of
from tink.server.agents.directory import MAX_AGENT_ID, AgentDirectory, UnknownAgentError
from tink.server.callers import Callers, abort, abort_unknown
from tink.server.events import WorkflowGoneError
from tink.server.older.attributes import AttributesKeeper
from tink.server.older.messages import (
    Dialect,
    Report,
    action_response,
    describe_attributes,
    event_of,
    next_action,
    report_of,
    workflow_actions,
    workflow_context,
)
from tink.server.older.polls import Poller, Polls
from tink.server.older.sessions import Sessions
from tink.server.reports import Reports
from tink.server.workflows import WorkflowIndex, hardware_of, uid_of
from tink.workflow.events import ActionStarted
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, name_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Refused = Callable[[NamespacedName, str], Awaitable[None]]
"""Called with a machine whose agent was refused, and why, once in a while."""

SERVICES = (
    pb.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
    pb_oldest.DESCRIPTOR.services_by_name["WorkflowService"].full_name,
)


def refusal(older: OlderAgentAuth, current: AgentAuth) -> str:
    """Why no older agent may speak for a machine; empty if they may."""
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
"""Methods that keep their caller waiting until there is something to do."""

_NOTHING = b""
"""The answer to a report, which is an empty message by any name."""


class OlderAgents:
    """Serves them. `refusal` is why none of them may speak for a machine here; empty if they may."""

    def __init__(
        self,
        callers: Callers,
        reports: Reports,
        polls: Polls,
        sessions: Sessions,
        workflows: WorkflowIndex,
        agents: AgentDirectory,
        attributes: AttributesKeeper,
        *,
        refusal: str,
        refused: Refused,
    ) -> None:
        self._callers = callers
        self._reports = reports
        self._polls = polls
        self._sessions = sessions
        self._workflows = workflows
        self._agents = agents
        self._attributes = attributes
        self._refusal = refusal
        self._refused = refused

    def add_to(self, server: grpc.aio.Server) -> None:
        """Before the server starts, of which there may be several."""
        own, oldest = SERVICES
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    own,
                    {
                        "GetAction": _unary(self.get_action, pb.ActionRequest),
                        "GetWorkflowContexts": _streamed(self._contexts(Dialect.TINK_WORKER)),
                        "GetWorkflowActions": _unary(self.get_workflow_actions, pb.WorkflowActionsRequest),
                        "ReportActionStatus": _raw(self.report_action_status),
                    },
                ),
                grpc.method_handlers_generic_handler(
                    oldest,
                    {
                        "GetWorkflowContexts": _streamed(self._contexts(Dialect.TINK_WORKER_0_8)),
                        "GetWorkflowActions": _unary(self.get_workflow_actions, pb.WorkflowActionsRequest),
                        "ReportActionStatus": _raw(self.report_action_status),
                        "GetWorkflowData": _unary(self.get_workflow_data, pb_oldest.GetWorkflowDataRequest),
                        "UpdateWorkflowData": _unary(self.update_workflow_data, pb_oldest.UpdateWorkflowDataRequest),
                    },
                ),
            )
        )

    # --- work ---------------------------------------------------------------------------------------------------------

    async def get_action(self, request: pb.ActionRequest, context: Context) -> pb.ActionResponse:
        """The next action, for tink-agent."""
        poller = await self._admitted(Dialect.TINK_AGENT, request.agent_id, context, request.agent_attributes)
        del request  # which is larger than all else that waits
        try:
            workflow = await self._polls.next(poller)
        except ApiError as error:
            await _abort_away(error, context)
        action = next_action(workflow) if workflow is not None else None
        if workflow is None or action is None:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, "there is nothing to do")
        return action_response(workflow, action, poller.agent_id)

    def _contexts(self, dialect: Dialect) -> Callable[[pb.WorkflowContextRequest, Context], Awaitable[None]]:
        async def get_workflow_contexts(request: pb.WorkflowContextRequest, context: Context) -> None:
            poller = await self._admitted(dialect, request.worker_id, context)
            try:
                workflow = await self._polls.next(poller)
            except ApiError as error:
                await _abort_away(error, context)
            if workflow is not None:
                await context.write(workflow_context(workflow, request.worker_id))

        return get_workflow_contexts

    async def get_workflow_actions(self, request: pb.WorkflowActionsRequest, context: Context) -> pb.WorkflowActionList:
        """All actions of a Workflow, for tink-worker, which runs those that have its own id."""
        await self._callers.synced(context)
        workflow = self._workflows.get(request.workflow_id)
        if workflow is None:
            await abort_unknown(context, request.workflow_id)
        credentials = credentials_of(context)
        await self._allowed(hardware_of(workflow), "", credentials, context)
        key, _ = await self._callers.agent_of(workflow, credentials, context)
        return workflow_actions(workflow, self._sessions.agent_id(key) or self._agents.id_of(key))

    async def _admitted(
        self, dialect: Dialect, agent_id: str, context: Context, attributes: pb.AgentAttributes | None = None
    ) -> Poller:
        """The agent that asks for work; ends the call of who may not."""
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the agent's id is missing or too long")
        await self._callers.synced(context)
        credentials = credentials_of(context)
        await self._allowed(self._machine(agent_id), agent_id, credentials, context)
        key = await self._callers.admit(agent_id, credentials, context)
        described = describe_attributes(attributes) if attributes is not None else ""
        self._sessions.called(key, dialect, agent_id, context.peer(), _user_agent(context), described)
        if attributes is not None:
            self._attributes.said(key, attributes)
        return Poller(agent_id, credentials, key)

    # --- reports ------------------------------------------------------------------------------------------------------

    async def report_action_status(self, raw: bytes, context: Context) -> bytes:
        """What becomes of an action, from any of them."""
        try:
            report = report_of(raw)
        except DecodeError as error:
            await abort(context, grpc.StatusCode.INTERNAL, f"the report can't be read: {str(error)[:200]}")
        await self._callers.synced(context)
        workflow = self._workflows.get(report.workflow_id)
        if workflow is None:
            log.info("%s reports of a Workflow that is not there", credentials_of(context).peer)
            return _NOTHING
        credentials = credentials_of(context)
        await self._allowed(hardware_of(workflow), "", credentials, context)
        try:
            await self._take(workflow, report, credentials, context)
        except WorkflowGoneError:
            pass
        except UnknownActionError as error:
            log.warning("a report of %s is left aside: %s", credentials.peer, error)
        except InvalidStatusError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return _NOTHING

    async def _take(self, workflow: Raw, report: Report, credentials: Credentials, context: Context) -> None:
        event = event_of(report, workflow)
        if event is None:
            await self._callers.agent_of(workflow, credentials, context)
            log.info("Workflow %s: a report of %s says nothing new", name_of(workflow), credentials.peer)
            return
        key = hardware_of(workflow) or NamespacedName("", "")
        try:
            await self._reports.take(workflow, event, credentials, context)
        except asyncio.CancelledError:
            if isinstance(event, ActionStarted):
                self._polls.unanswered(key, uid_of(workflow), event.action_id)
            raise
        self._polls.answered(key)

    # --- data of a Workflow, which v0.8 writes after every action -----------------------------------------------------

    async def get_workflow_data(
        self, _request: pb_oldest.GetWorkflowDataRequest, _context: Context
    ) -> pb_oldest.GetWorkflowDataResponse:
        """None: a Workflow has no place for it, and no action of ours needs it."""
        return pb_oldest.GetWorkflowDataResponse()

    async def update_workflow_data(
        self, _request: pb_oldest.UpdateWorkflowDataRequest, _context: Context
    ) -> pb_oldest.Empty:
        """Taken for granted: the worker ends its process otherwise."""
        return pb_oldest.Empty()

    # --- who asks -----------------------------------------------------------------------------------------------------

    def _machine(self, agent_id: str) -> NamespacedName | None:
        try:
            return self._agents.find(agent_id)
        except UnknownAgentError:
            return None

    async def _allowed(
        self, key: NamespacedName | None, agent_id: str, credentials: Credentials, context: Context
    ) -> None:
        """End the call if no older agent may speak for a machine here."""
        if not self._refusal:
            return
        key = key or NamespacedName("", "")
        named = agent_id or self._agents.id_of(key)
        if self._callers.note_refusal(named, key, credentials.peer, f"{credentials.peer} {self._refusal}"):
            await self._refused(key, f"{credentials.peer} {self._refusal}")
        error = NoCredentialsError(self._refusal)
        await abort(context, error.code, f"{credentials.peer} {self._refusal}")


async def _abort_away(error: ApiError, context: Context) -> Never:
    await abort(context, grpc.StatusCode.UNAVAILABLE, f"the Kubernetes API can't be asked: {error}")


def _user_agent(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "user-agent" and isinstance(value, str):
            return value
    return ""


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _unary(behaviour: Callable[..., Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=_serialized,
    )


def _streamed(behaviour: Callable[..., Any]) -> Any:
    return grpc.unary_stream_rpc_method_handler(
        behaviour,
        request_deserializer=pb.WorkflowContextRequest.FromString,
        response_serializer=_serialized,
    )


def _raw(behaviour: Callable[..., Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(behaviour)
