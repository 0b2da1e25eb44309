"""The command streams of all agents that are connected, one for each machine; and what it means when there is none.

Of two agents of one machine the newest is served. A stream ends when its agent may no longer speak for the machine, and
in time for its token to be renewed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import grpc

from proto import metadata
from tink.api.v1alpha2 import Raw
from tink.kube.objects import NamespacedName
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.agents.auth import AgentAuthorizer, Credentials, RefusedError
from tink.server.agents.directory import AgentDirectory
from tink.server.agents.tokens import TokenError
from tink.server.dispatch.decision import Start, Stop
from tink.server.dispatch.reboots import RebootWatch
from tink.server.dispatch.stream import CommandStream, Ending, Spawn
from tink.server.events import EventStore
from tink.server.settings import ServerSettings
from tink.server.workflows import WorkflowIndex, hardware_of
from tink.workflow.status import name_of, status_of

log = logging.getLogger(__name__)


class Outlet(Protocol):
    """Where the commands of a stream go: the context of a call, for one."""

    async def send_initial_metadata(self, initial_metadata: Any, /) -> None:
        """What is said before the first of them."""

    async def write(self, message: Any, /) -> None:
        """One command."""


class AgentStreams:
    """Opens and ends the streams of one server. `spawn` runs what outlives a stream; `clock` gives Unix seconds."""

    def __init__(
        self,
        workflows: WorkflowIndex,
        agents: AgentDirectory,
        authorizer: AgentAuthorizer,
        events: EventStore,
        *,
        settings: ServerSettings,
        observe: ActivityObserver,
        older: Callable[[NamespacedName], bool] = lambda _: False,
        spawn: Spawn,
        clock: Callable[[], float],
    ) -> None:
        self._workflows = workflows
        self._agents = agents
        self._authorizer = authorizer
        self._events = events
        self._rejection_longest = settings.rejection_longest
        self._observe = observe
        self._spawn = spawn
        self._clock = clock
        self._streams: dict[NamespacedName, CommandStream] = {}
        self._credentials: dict[NamespacedName, Credentials] = {}
        self._closed = False
        self._reboots = RebootWatch(
            workflows,
            take=events.take,
            connected=lambda key: key in self._streams or older(key),
            spawn=spawn,
            rebooted=self._rebooted,
            grace=settings.reboot_grace,
        )

    def of(self, key: NamespacedName) -> CommandStream | None:
        """The stream of a machine's agent; None if it has none here."""
        return self._streams.get(key)

    def __len__(self) -> int:
        """Agents that are connected here."""
        return len(self._streams)

    def close(self) -> None:
        """From now on that an agent is gone means nothing: the server is."""
        self._closed = True
        self._reboots.close()

    def end_all(self, code: grpc.StatusCode, message: str) -> None:
        """End every stream."""
        for stream in [*self._streams.values()]:
            stream.end(code, message)

    # --- what changes -----------------------------------------------------------------------------------------------

    def workflow_changed(self, new: Raw, old: Raw | None) -> None:
        """A Workflow was added or changed; the index has it."""
        self._reboots.look(new)
        self._wake(new)
        if old is not None and hardware_of(old) != hardware_of(new):
            self._wake(old)

    def workflow_gone(self, old: Raw) -> None:
        """A Workflow is gone; from the index, too."""
        self._reboots.forget(old)
        stream = self._of_workflow(old)
        if stream is not None:
            stream.gone(old)

    def hardware_changed(self, key: NamespacedName) -> None:
        """End the stream of an agent that may no longer speak for its machine."""
        stream = self._streams.get(key)
        if stream is None:
            return
        try:
            self._authorizer.admit(stream.agent_id, self._credentials[key])
        except RefusedError as error:
            stream.end(error.code, error.public_message)

    def _wake(self, workflow: Raw) -> None:
        stream = self._of_workflow(workflow)
        if stream is not None:
            stream.wake()

    def _of_workflow(self, workflow: Raw) -> CommandStream | None:
        key = hardware_of(workflow)
        return self._streams.get(key) if key is not None else None

    # --- one stream -------------------------------------------------------------------------------------------------

    async def serve(
        self,
        agent_id: str,
        credentials: Credentials,
        key: NamespacedName,
        holds: frozenset[str] | None,
        outlet: Outlet,
        *,
        quiet: bool = False,
    ) -> Ending:
        """Send commands to an agent that may speak for the Hardware `key` until one side ends the stream.

        `quiet`: of an agent that comes and goes all the time, of which others tell.
        """
        stream = self._open(agent_id, credentials, key, holds, quiet=quiet)
        token, renewal = self._renewal(stream, credentials)
        try:
            # Headers at once, so that an agent for which there is nothing to do knows that it was accepted.
            await outlet.send_initial_metadata(((metadata.TOKEN, token),) if token else ())
            return await stream.run(outlet.write)
        finally:
            if renewal is not None:
                renewal.cancel()
            self._close(stream, quiet=quiet)

    def _renewal(self, stream: CommandStream, credentials: Credentials) -> tuple[str, asyncio.TimerHandle | None]:
        """A new token for the agent, and the end of its stream when it is time for the next."""
        try:
            renewed = self._authorizer.renewed(credentials)
        except TokenError:
            return "", None  # its time ended a moment ago; the agent is told when it calls again
        if renewed is None:
            return "", None
        token, seconds = renewed
        # The one that was shown may end before the stream does.
        self._credentials[stream.key] = replace(credentials, token=token)
        again = (grpc.StatusCode.UNAVAILABLE, "connect again, and the token is renewed")
        spread = seconds * random.uniform(0.8, 1.0)  # noqa: S311 - a rack that booted together need not come together
        return token, asyncio.get_running_loop().call_later(spread, stream.end, *again)

    def _open(
        self, agent_id: str, credentials: Credentials, key: NamespacedName, holds: frozenset[str] | None, *, quiet: bool
    ) -> CommandStream:
        peer = credentials.peer
        stream = CommandStream(
            agent_id,
            peer,
            key,
            holds=holds,
            workflows=self._workflows,
            writer=self._events,
            spawn=self._spawn,
            sent=self._sent,
            lost=self._lost,
            clock=self._clock,
            rejection_longest=self._rejection_longest,
        )
        older = self._streams.get(key)
        if older is not None:
            message = f"another agent connected as {agent_id!r} from {peer}; only the newest is served"
            older.end(grpc.StatusCode.ABORTED, message)
        self._streams[key] = stream
        self._credentials[key] = credentials
        self._reboots.opened(key, holds)
        if not quiet:
            log.info("agent %s connected from %s, for Hardware %s", agent_id, peer, key)
            self._tell(stream, ActivityKind.CONNECTED, f"agent connected from {peer}")
        return stream

    def _close(self, stream: CommandStream, *, quiet: bool) -> None:
        if not quiet:
            log.info("agent %s at %s disconnected", stream.agent_id, stream.peer)
        if self._streams.get(stream.key) is not stream:
            return  # a newer stream speaks for the machine
        del self._streams[stream.key], self._credentials[stream.key]
        if not self._closed:
            self._reboots.closed(stream.key)
        if not quiet:
            self._tell(stream, ActivityKind.DISCONNECTED, f"agent at {stream.peer} disconnected")

    # --- what the floor above hears of it -----------------------------------------------------------------------------

    def _sent(self, stream: CommandStream, command: Start | Stop) -> None:
        if isinstance(command, Start):
            name = name_of(command.workflow)
            log.info("Workflow %s: sent to agent %s", name, stream.agent_id)
            self._tell(stream, ActivityKind.STARTED, f"workflow {name} sent to the agent", name)
        else:
            log.info("Workflow %s: agent %s told to stop it", command.name, stream.agent_id)
            self._tell(stream, ActivityKind.STOPPED, f"agent told to stop workflow {command.name}", command.name)

    def _lost(self, stream: CommandStream, workflow: Raw) -> None:
        name = name_of(workflow)
        story = f"agent came back without workflow {name}, which is {status_of(workflow).get('state')}"
        log.warning("Workflow %s: %s", name, story)
        self._tell(stream, ActivityKind.EVENT, story, name)

    def _rebooted(self, workflow: Raw) -> None:
        name, key = name_of(workflow), hardware_of(workflow) or NamespacedName("", "")
        story = f"agent is gone with the last action of workflow {name}, which reboots the machine"
        self._observe(AgentActivity(self._agents.id_of(key), "", ActivityKind.EVENT, story, str(key), name))

    def _tell(self, stream: CommandStream, kind: ActivityKind, message: str, workflow: str = "") -> None:
        self._observe(AgentActivity(stream.agent_id, stream.peer, kind, message, str(stream.key), workflow))
