"""Admits the callers of the agents' services, or rejects their calls and reports that to the operator."""

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
from tink.kube.objects import NamespacedName
from tink.limits.log import LimitedLog
from tink.printable import printable
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.auth import AgentAuthorizer, AgentDirectory, Credentials, ForeignAgentError, RefusedError
from tink.server.streams import AgentStreams
from tink.server.workflows import hardware_of

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
    """Admits callers that `authorizer` accepts, and aborts the calls of others."""

    def __init__(
        self,
        agents: AgentDirectory,
        authorizer: AgentAuthorizer,
        streams: AgentStreams,
        *,
        informers: tuple[Informer, Informer],
        observe: ActivityObserver,
    ) -> None:
        self._agents = agents
        self._authorizer = authorizer
        self._streams = streams
        self._informers = informers
        self._observe = observe
        self._closed = False
        self.of_machines = LimitedLog(log, time.monotonic, capacity=1024, share=_OF_ONE_MACHINE)
        self.of_strangers = LimitedLog(log, time.monotonic, capacity=256)

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

    async def admit(self, agent_id: str, credentials: Credentials, context: Context) -> NamespacedName:
        """Return the Hardware that the agent with this id may act for, or abort the call."""
        try:
            return self._authorizer.admit(agent_id, credentials)
        except RefusedError as error:
            known = isinstance(error, ForeignAgentError)
            named = self._agents.find(agent_id) if known else NamespacedName("", "")
            await self.refuse(context, agent_id, named, credentials, error)

    async def agent_of(self, workflow: Raw, credentials: Credentials, context: Context) -> tuple[NamespacedName, str]:
        """Return the Hardware of a Workflow and the id of its agent, or abort the call if the caller is not that
        agent.
        """
        key = hardware_of(workflow) or NamespacedName("", "")
        stream = self._streams.of(key)
        agent_id = stream.agent_id if stream is not None else self._agents.id_of(key)
        try:
            self._authorizer.authorise(key, credentials)
        except ForeignAgentError as error:
            await self.refuse(context, agent_id, key, credentials, error)
        return key, agent_id

    async def refuse(
        self, context: Context, agent_id: str, key: NamespacedName, credentials: Credentials, error: RefusedError
    ) -> Never:
        """Abort the call with the public part of `error`, and report the full error to the operator."""
        self.note_refusal(agent_id, key, credentials.peer, str(error))
        await abort(context, error.code, error.public_message)

    def unknown_method(self, peer: str, method: str) -> None:
        """Log a call of an unknown method, at a limited rate, and report it on the journey of the machine at
        that address.
        """
        why = f"calls {printable(method, '')[:_MAX_METHOD]}, which this server does not have"
        if self.of_strangers.warning("%s %s", peer, why, key=("method", peer)):
            key = self._agents.at(peer) or NamespacedName("", "")
            agent_id = self._agents.id_of(key)
            self._observe(AgentActivity(agent_id, peer, ActivityKind.REFUSED, f"{peer} {why}", str(key)))

    def note_refusal(self, agent_id: str, key: NamespacedName, peer: str, why: str) -> bool:
        """Log a refusal and report it on the journey, at a limited rate for each address. Return whether it was logged.

        Machines and unknown callers have separate limits. The journey belongs to the machine that was named, so `why`
        names the caller.
        """
        why = why if peer in why else f"{peer} asked as {agent_id!r}: {why}"
        limited, limit_key = (self.of_machines, (key, peer)) if any(key) else (self.of_strangers, peer)
        fields = {"agent": agent_id, "hardware": str(key) if any(key) else "", "address": peer, "outcome": "refused"}
        owner = str(key) if any(key) else None
        text = "agent %r at %s refused: %s"
        logged = limited.warning(text, agent_id, peer, why, key=limit_key, owner=owner, fields=fields)
        if logged:
            self._observe(AgentActivity(agent_id, peer, ActivityKind.REFUSED, why, str(key)))
        return logged


async def abort(context: Context, code: grpc.StatusCode, message: str) -> Never:
    """Abort the call with this status."""
    await context.abort(code, message[:_MAX_DETAILS])
    raise AssertionError("unreachable: abort raises")


async def abort_unknown(context: Context, workflow_id: str) -> Never:
    """Abort the call with NOT_FOUND for an unknown Workflow."""
    await abort(context, grpc.StatusCode.NOT_FOUND, f"there is no Workflow {workflow_id[:64]!r}")
