"""The calls of agents: who asks is checked, what they ask is done, and what went wrong is said in gRPC's words.

An event is answered when the status is stored, so an agent that repeats what was not answered loses nothing.

What agents are told:
    NOT_FOUND            an event's Workflow does not exist; where anybody may speak for any machine
                         (AgentAuth.NONE), no Hardware (or several) has this agent id
    UNAUTHENTICATED      the agent shows nothing where a token or a certificate is asked for (`agents.auth`)
    PERMISSION_DENIED    what it shows (its address, by default) is not its machine's, or there is no such machine
    INVALID_ARGUMENT     nonsense: no id, no event, no such action
    FAILED_PRECONDITION  the Workflow's status was edited by hand and can't be read
    UNAVAILABLE          the API is away, or this server is stopping, or the token wants to be renewed, or the Workflow
                         is being moved to another API: try again
    RESOURCE_EXHAUSTED   too many calls, of this address or of all (`connections.concurrency`), or too large a message
    ABORTED              try again at once; for a stream: another one with the same id took its place
"""

from __future__ import annotations

import time
from typing import Any

import grpc
import grpc.aio

from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tink.limits.token_bucket import TokenBuckets
from tink.server.agents.auth import credentials_of
from tink.server.agents.call_metadata import read_call_metadata
from tink.server.agents.directory import MAX_AGENT_ID, AgentDirectory
from tink.server.callers import Callers, abort, abort_unknown
from tink.server.dispatch.streams import AgentStreams
from tink.server.events import WorkflowGoneError
from tink.server.messages import MalformedEventError, event_of
from tink.server.output import Speaker
from tink.server.reports import Reports
from tink.server.workflows import WorkflowIndex
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, action_name, actions_of, name_of, status_of

Context = grpc.aio.ServicerContext[Any, Any]

_STREAMS_AT_ONCE, _STREAMS_PER_SECOND = 20, 1.0
"""How often one machine's agent may open its stream: each time is a line in the log and on the journey."""


class WorkflowService(pb_grpc.WorkflowServiceServicer):
    """The methods by their names in the proto, and `speaker` for the service of output."""

    def __init__(
        self,
        callers: Callers,
        reports: Reports,
        workflows: WorkflowIndex,
        agents: AgentDirectory,
        streams: AgentStreams,
    ) -> None:
        self._callers = callers
        self._reports = reports
        self._workflows = workflows
        self._agents = agents
        self._streams = streams
        self._openings = TokenBuckets(_STREAMS_AT_ONCE, _STREAMS_PER_SECOND)

    # --- command streams --------------------------------------------------------------------------------------------

    async def GetWorkflows(  # type: ignore[override] # noqa: N802 - the stub types the generator form; name of the proto
        self, request: pb.GetWorkflowsRequest, context: Context
    ) -> None:
        credentials, agent_id = credentials_of(context), request.agent_id
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "agent_id is missing or too long")
        await self._callers.synced(context)
        key = await self._callers.admit(agent_id, credentials, context)
        if not self._openings.allows(key, time.monotonic()):
            hurry = "connects too often; are there two agents of this machine?"
            self._callers.note_refusal(agent_id, key, credentials.peer, f"{credentials.peer} {hurry}")
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent {agent_id!r} {hurry}")
        holds = read_call_metadata(context.invocation_metadata()).holds
        ending = await self._streams.serve(agent_id, credentials, key, holds, context)
        await abort(context, ending.code, ending.message)

    # --- events -----------------------------------------------------------------------------------------------------

    async def PublishEvent(  # noqa: N802 - name of the proto
        self, request: pb.PublishEventRequest, context: Context
    ) -> pb.PublishEventResponse:
        message, credentials = request.event, credentials_of(context)
        try:
            event = event_of(message)
        except MalformedEventError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._callers.synced(context)
        workflow = self._workflows.get(message.workflow_id)
        if workflow is None and self._workflows.name_of_gone(message.workflow_id) is not None:
            return pb.PublishEventResponse()  # it ended, and was deleted: nothing changes any more
        if workflow is None:
            await abort_unknown(context, message.workflow_id)
        try:
            await self._reports.take(workflow, event, credentials, context)
        except WorkflowGoneError:
            return pb.PublishEventResponse()
        except UnknownActionError as error:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InvalidStatusError as error:
            await abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PublishEventResponse()

    # --- output -----------------------------------------------------------------------------------------------------

    async def speaker(self, workflow_id: str, context: Context) -> Speaker:
        """Who sends what the actions of a Workflow print; ends the call of anybody who may not."""
        await self._callers.synced(context)
        workflow = self._workflows.get(workflow_id)
        if workflow is None:
            await abort_unknown(context, workflow_id)
        credentials = credentials_of(context)
        key, agent_id = await self._callers.agent_of(workflow, credentials, context)
        actions = {str(action.get("id")): action_name(action) for action in actions_of(status_of(workflow))}
        elsewhere = credentials.peer not in self._agents.addresses(key)
        return Speaker(agent_id, credentials.peer, str(key), name_of(workflow), actions, elsewhere)
