"""Admits the callers of the agents' services or rejects their calls, and stores the events that they report."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Never

import grpc
import grpc.aio

from proto import metadata
from tink.api.v1alpha2 import Raw
from tink.kube.cache import Informer
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.limits import LimitedLog
from tink.printable import printable
from tink.server.activity import ActivityKind, AgentActivity
from tink.server.auth import Credentials, ForeignAgentError, RefusedCallerError
from tink.server.events import BusyError, PausedError, StaleError
from tink.server.streams import AgentStreams, ServerParts
from tink.server.workflows import describe, hardware_of, uid_of
from tink.workflow.events import AgentEvent
from tink.workflow.status import InvalidStatusError, name_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_MAX_DETAILS = 1000
"""Maximum length of a status message, in characters."""
_OF_ONE_MACHINE = 64
"""Maximum number of lines in a minute about callers that name the same machine, from all addresses."""
_MAX_METHOD = 200
_SYNC_SECONDS = 10.0
"""Seconds that an agent waits for the server's first listing of Hardware and Workflows."""


class Callers:
    """Admits callers that `parts.authorizer` accepts, and aborts the calls of others."""

    def __init__(self, parts: ServerParts, streams: AgentStreams, informers: tuple[Informer, Informer]) -> None:
        self.parts = parts
        self.streams = streams
        self._informers = informers
        self._closed = False
        self._machine_log = LimitedLog(log, time.monotonic, capacity=1024, share=_OF_ONE_MACHINE)
        self._stranger_log = LimitedLog(log, time.monotonic, capacity=256)

    def close(self) -> None:
        """Abort new calls with UNAVAILABLE, so that agents try another server."""
        self._closed = True

    async def synced(self, context: Context) -> None:
        """Wait until the informers have listed all objects: before that, no object is known to be missing."""
        if self._closed:
            await abort(context, grpc.StatusCode.UNAVAILABLE, metadata.STOPPING)
        if all(informer.has_synced for informer in self._informers):
            return
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                for informer in self._informers:
                    await informer.wait_for_cache_sync()
        except TimeoutError:
            await abort(context, grpc.StatusCode.UNAVAILABLE, "the server can't reach the Kubernetes API yet")

    async def workflow(self, workflow_id: str, context: Context) -> Raw:
        """Return the Workflow with this uid, or abort the call with NOT_FOUND."""
        await self.synced(context)
        workflow = self.parts.workflows.get(workflow_id)
        if workflow is None:
            await abort(context, grpc.StatusCode.NOT_FOUND, f"there is no Workflow {workflow_id[:64]!r}")
        return workflow

    async def admit(self, agent_id: str, credentials: Credentials, context: Context) -> NamespacedName:
        """Return the Hardware that the agent with this id may act for, or abort the call."""
        try:
            return self.parts.authorizer.admit(agent_id, credentials)
        except RefusedCallerError as error:
            known = isinstance(error, ForeignAgentError)
            named = self.parts.agents.find(agent_id) if known else NamespacedName("", "")
            await self.refuse(context, agent_id, named, credentials, error)

    async def agent_of(self, workflow: Raw, credentials: Credentials, context: Context) -> tuple[NamespacedName, str]:
        """Return the Hardware of a Workflow and the id of its agent; abort the call if the caller is not that agent."""
        key = hardware_of(workflow) or NamespacedName("", "")
        stream = self.streams.of(key)
        agent_id = stream.agent_id if stream is not None else self.parts.agents.id_of(key)
        try:
            self.parts.authorizer.authorise(key, credentials)
        except ForeignAgentError as error:
            await self.refuse(context, agent_id, key, credentials, error)
        return key, agent_id

    async def take(self, workflow: Raw, event: AgentEvent, credentials: Credentials, context: Context) -> None:
        """Store an event of a Workflow. Aborts the call if the caller may not report it, or if trying again may help.

        Raises WorkflowGoneError, UnknownActionError and InvalidStatusError if trying again is useless.
        """
        key, agent_id = await self.agent_of(workflow, credentials, context)
        try:
            changed = await self.parts.events.take(workflow, event)
        except InvalidStatusError as error:
            self._machine_log.log(logging.ERROR, "event refused: %s", error, key=("status", key))
            raise
        except PausedError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except StaleError as error:
            await abort(context, grpc.StatusCode.ABORTED, str(error))
        except BusyError as error:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ApiError as error:
            text = "Workflow %s: an event could not be stored: %s"
            self._stranger_log.warning(text, name_of(workflow), error, key="API")  # for all agents alike
            await abort(context, grpc.StatusCode.UNAVAILABLE, f"the event could not be stored: {error}")
        if changed:
            story, name, peer = describe(workflow, event), name_of(workflow), credentials.peer
            elsewhere = peer not in self.parts.agents.addresses(key)
            if elsewhere:  # the agent was admitted by a token or a certificate, or without credentials
                story += f" (so says {peer})"
            fields = {"workflow": name, "agent": agent_id, "hardware": str(key), "address": peer}
            log.info("Workflow %s: agent %s: %s", name, agent_id, story, extra={"fields": fields})
            kind = ActivityKind.EVENT
            self.parts.observe(AgentActivity(agent_id, peer, kind, story, str(key), name, elsewhere=elsewhere))
        stream = self.streams.of(key)
        if stream is not None:
            stream.note_report(uid_of(workflow), event)

    async def refuse(
        self, context: Context, agent_id: str, key: NamespacedName, credentials: Credentials, error: RefusedCallerError
    ) -> Never:
        """Abort the call with the public part of `error`, and report the full error to the operator."""
        self.note_refusal(agent_id, key, credentials.peer, str(error))
        await abort(context, error.code, error.public_message)

    def unknown_method(self, peer: str, method: str) -> None:
        """Log a call of an unknown method at a limited rate, and report it on the journey of the caller's machine."""
        why = f"calls {printable(method, '')[:_MAX_METHOD]}, which this server does not have"
        if self._stranger_log.warning("%s %s", peer, why, key=("method", peer)):
            key = self.parts.agents.at(peer) or NamespacedName("", "")
            agent_id = self.parts.agents.id_of(key)
            self.parts.observe(AgentActivity(agent_id, peer, ActivityKind.REFUSED, f"{peer} {why}", str(key)))

    def note_refusal(self, agent_id: str, key: NamespacedName, peer: str, why: str) -> bool:
        """Log a refusal and report it on the journey, at a limited rate for each address. Return whether it was logged.

        Machines and unknown callers have separate limits. The journey belongs to the machine that was named, so `why`
        names the caller.
        """
        why = why if peer in why else f"{peer} asked as {agent_id!r}: {why}"
        limited, limit_key = (self._machine_log, (key, peer)) if any(key) else (self._stranger_log, peer)
        fields = {"agent": agent_id, "hardware": str(key) if any(key) else "", "address": peer, "outcome": "refused"}
        owner = str(key) if any(key) else None
        text = "agent %r at %s refused: %s"
        logged = limited.warning(text, agent_id, peer, why, key=limit_key, owner=owner, fields=fields)
        if logged:
            self.parts.observe(AgentActivity(agent_id, peer, ActivityKind.REFUSED, why, str(key)))
        return logged


async def abort(context: Context, code: grpc.StatusCode, message: str) -> Never:
    """Abort the call with this status."""
    await context.abort(code, message[:_MAX_DETAILS])
    raise AssertionError("unreachable: abort raises")
