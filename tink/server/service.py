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

import asyncio
import logging
import time
from typing import Any, Never

import grpc
import grpc.aio

from proto import workflow_pb2 as pb
from proto import workflow_pb2_grpc as pb_grpc
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.limits.log import LimitedLog
from tink.limits.token_bucket import TokenBuckets
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.agents.auth import AgentAuthorizer, Credentials, ForeignAgentError, RefusedError, credentials_of
from tink.server.agents.call_metadata import read_call_metadata
from tink.server.agents.directory import MAX_AGENT_ID, AgentDirectory
from tink.server.dispatch.streams import AgentStreams
from tink.server.events import BusyError, EventStore, PausedError, StaleError, WorkflowGoneError
from tink.server.messages import MalformedEventError, describe, event_of
from tink.server.output import Speaker
from tink.server.workflows import WorkflowIndex, hardware_of
from tink.workflow.events import AgentEvent
from tink.workflow.machine import UnknownActionError
from tink.workflow.status import InvalidStatusError, action_name, actions_of, name_of, status_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_DETAILS = 1000
"""Characters of the message with which a call is ended."""
_STREAMS_AT_ONCE, _STREAMS_PER_SECOND = 20, 1.0
"""How often one machine's agent may open its stream: each time is a line in the log and on the journey."""
_SYNC_SECONDS = 10.0
"""How long an agent is kept waiting for the server's first look at the API."""


class WorkflowService(pb_grpc.WorkflowServiceServicer):
    """The methods by their names in the proto, and `speaker` for the service of output."""

    def __init__(
        self,
        workflows: WorkflowIndex,
        agents: AgentDirectory,
        authorizer: AgentAuthorizer,
        events: EventStore,
        streams: AgentStreams,
        *,
        informers: tuple[Informer, Informer],
        observe: ActivityObserver,
    ) -> None:
        """`informers` feed `workflows` and `agents`."""
        self._workflows = workflows
        self._agents = agents
        self._authorizer = authorizer
        self._events = events
        self._streams = streams
        self._informers = informers
        self._observe = observe
        self._closed = False
        self._openings = TokenBuckets(_STREAMS_AT_ONCE, _STREAMS_PER_SECOND)
        self._of_machines = LimitedLog(log, time.monotonic, capacity=1024)
        self._of_strangers = LimitedLog(log, time.monotonic, capacity=256)

    def close(self) -> None:
        """From now on new calls are sent to another server."""
        self._closed = True

    # --- command streams --------------------------------------------------------------------------------------------

    async def GetWorkflows(  # type: ignore[override] # noqa: N802 - the stub types the generator form; name of the proto
        self, request: pb.GetWorkflowsRequest, context: Context
    ) -> None:
        credentials, agent_id = credentials_of(context), request.agent_id
        if not agent_id or len(agent_id) > MAX_AGENT_ID:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "agent_id is missing or too long")
        await self._synced(context)
        try:
            key = self._authorizer.admit(agent_id, credentials)
        except RefusedError as error:
            known = isinstance(error, ForeignAgentError)
            named = self._agents.find(agent_id) if known else NamespacedName("", "")
            await self._refuse(context, agent_id, named, credentials, error)
        if not self._openings.allows(key, time.monotonic()):
            hurry = "connects too often; are there two agents of this machine?"
            self._note_refusal(agent_id, key, credentials.peer, f"{credentials.peer} {hurry}")
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"agent {agent_id!r} {hurry}")
        holds = read_call_metadata(context.invocation_metadata()).holds
        ending = await self._streams.serve(agent_id, credentials, key, holds, context)
        await _abort(context, ending.code, ending.message)

    # --- events -----------------------------------------------------------------------------------------------------

    async def PublishEvent(  # noqa: N802 - name of the proto
        self, request: pb.PublishEventRequest, context: Context
    ) -> pb.PublishEventResponse:
        message, credentials = request.event, credentials_of(context)
        try:
            event = event_of(message)
        except MalformedEventError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._synced(context)
        workflow = self._workflows.get(message.workflow_id)
        if workflow is None and self._workflows.name_of_gone(message.workflow_id) is not None:
            return pb.PublishEventResponse()  # it ended, and was deleted: nothing changes any more
        if workflow is None:
            await _abort_unknown(context, message.workflow_id)
        key, agent_id = await self._agent_of(workflow, credentials, context)
        try:
            changed = await self._store(workflow, event, key, context)
        except WorkflowGoneError:
            return pb.PublishEventResponse()
        if changed:
            self._tell(workflow, event, key, agent_id, credentials.peer)
        stream = self._streams.of(key)
        if stream is not None:
            stream.heard(message.workflow_id, event)
        return pb.PublishEventResponse()

    async def _store(self, workflow: Raw, event: AgentEvent, key: NamespacedName, context: Context) -> bool:
        """Whether the event changes the Workflow; ends the call if that can't be stored. Raises WorkflowGoneError."""
        try:
            return await self._events.take(workflow, event)
        except UnknownActionError as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InvalidStatusError as error:
            self._of_machines.log(logging.ERROR, "event refused: %s", error, key=("status", key))
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except PausedError as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except StaleError as error:
            await _abort(context, grpc.StatusCode.ABORTED, str(error))
        except BusyError as error:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ApiError as error:
            text = "Workflow %s: an event could not be stored: %s"
            self._of_strangers.warning(text, name_of(workflow), error, key="API")  # for all agents alike
            await _abort(context, grpc.StatusCode.UNAVAILABLE, f"the event could not be stored: {error}")

    def _tell(self, workflow: Raw, event: AgentEvent, key: NamespacedName, agent_id: str, peer: str) -> None:
        story, name = describe(workflow, event), name_of(workflow)
        elsewhere = peer not in self._agents.addresses(key)
        if elsewhere:
            story += f" (so says {peer})"  # it has shown something else, or nothing is asked
        fields = {"workflow": name, "agent": agent_id, "hardware": str(key), "address": peer}
        log.info("Workflow %s: agent %s: %s", name, agent_id, story, extra={"fields": fields})
        kind = ActivityKind.EVENT
        self._observe(AgentActivity(agent_id, peer, kind, story, str(key), name, elsewhere=elsewhere))

    # --- output -----------------------------------------------------------------------------------------------------

    async def speaker(self, workflow_id: str, context: Context) -> Speaker:
        """Who sends what the actions of a Workflow print; ends the call of anybody who may not."""
        await self._synced(context)
        workflow = self._workflows.get(workflow_id)
        if workflow is None:
            await _abort_unknown(context, workflow_id)
        credentials = credentials_of(context)
        key, agent_id = await self._agent_of(workflow, credentials, context)
        actions = {str(action.get("id")): action_name(action) for action in actions_of(status_of(workflow))}
        elsewhere = credentials.peer not in self._agents.addresses(key)
        return Speaker(agent_id, credentials.peer, str(key), name_of(workflow), actions, elsewhere)

    # --- who asks ---------------------------------------------------------------------------------------------------

    async def _synced(self, context: Context) -> None:
        """Wait until it is known what there is: before that, nothing can be said to be unknown."""
        if self._closed:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server is stopping")
        if all(informer.has_synced for informer in self._informers):
            return
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                for informer in self._informers:
                    await informer.wait_for_cache_sync()
        except TimeoutError:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the server can't reach the Kubernetes API yet")

    async def _agent_of(self, workflow: Raw, credentials: Credentials, context: Context) -> tuple[NamespacedName, str]:
        """The machine that a Workflow is for, and its agent's id; ends the call of anybody else."""
        key = hardware_of(workflow) or NamespacedName("", "")
        stream = self._streams.of(key)
        agent_id = stream.agent_id if stream is not None else self._agents.id_of(key)
        try:
            self._authorizer.authorise(key, credentials)
        except ForeignAgentError as error:
            await self._refuse(context, agent_id, key, credentials, error)
        return key, agent_id

    async def _refuse(
        self, context: Context, agent_id: str, key: NamespacedName, credentials: Credentials, error: RefusedError
    ) -> Never:
        self._note_refusal(agent_id, key, credentials.peer, str(error))
        await _abort(context, error.code, error.public_message)

    def _note_refusal(self, agent_id: str, key: NamespacedName, peer: str, why: str) -> None:
        """Into the log and onto the journey, once a while for each address; of machines and of strangers apart.

        A journey is that of the machine which was named: so `why` says who asked.
        """
        why = why if peer in why else f"{peer} asked as {agent_id!r}: {why}"
        limited, what = (self._of_machines, (key, peer)) if any(key) else (self._of_strangers, peer)
        fields = {"agent": agent_id, "hardware": str(key) if any(key) else "", "address": peer, "outcome": "refused"}
        text = "agent %r at %s refused: %s"
        if limited.warning(text, agent_id, peer, why, key=what, fields=fields):
            self._observe(AgentActivity(agent_id, peer, ActivityKind.REFUSED, why, str(key)))


async def _abort(context: Context, code: grpc.StatusCode, message: str) -> Never:
    await context.abort(code, message[:_MAX_DETAILS])
    raise AssertionError("unreachable: abort raises")


async def _abort_unknown(context: Context, workflow_id: str) -> Never:
    await _abort(context, grpc.StatusCode.NOT_FOUND, f"there is no Workflow {workflow_id[:64]!r}")
