"""What agents report, whatever they speak: stored, logged, and told to who watches."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import grpc.aio

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.server.activity import ActivityKind, ActivityObserver, AgentActivity
from tink.server.agents.auth import Credentials
from tink.server.agents.directory import AgentDirectory
from tink.server.callers import Callers, abort
from tink.server.dispatch.streams import AgentStreams
from tink.server.events import BusyError, EventStore, PausedError, StaleError
from tink.server.messages import describe
from tink.server.workflows import uid_of
from tink.workflow.events import AgentEvent
from tink.workflow.status import InvalidStatusError, name_of

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class Reports:
    """Takes events of agents that `callers` lets in, into `events`."""

    def __init__(
        self,
        callers: Callers,
        agents: AgentDirectory,
        events: EventStore,
        streams: AgentStreams,
        *,
        observe: ActivityObserver,
    ) -> None:
        self._callers = callers
        self._agents = agents
        self._events = events
        self._streams = streams
        self._observe = observe

    async def take(self, workflow: Raw, event: AgentEvent, credentials: Credentials, context: Context) -> None:
        """Store what an agent reports of a Workflow; ends the call of who may not, and where to try again may help.

        Raises WorkflowGoneError, UnknownActionError and InvalidStatusError, where it does not.
        """
        key, agent_id = await self._callers.agent_of(workflow, credentials, context)
        if await self._store(workflow, event, key, context):
            self._tell(workflow, event, key, agent_id, credentials.peer)
        stream = self._streams.of(key)
        if stream is not None:
            stream.heard(uid_of(workflow), event)

    async def _store(self, workflow: Raw, event: AgentEvent, key: NamespacedName, context: Context) -> bool:
        """Whether the event changes the Workflow."""
        try:
            return await self._events.take(workflow, event)
        except InvalidStatusError as error:
            self._callers.of_machines.log(logging.ERROR, "event refused: %s", error, key=("status", key))
            raise
        except PausedError as error:
            await abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except StaleError as error:
            await abort(context, grpc.StatusCode.ABORTED, str(error))
        except BusyError as error:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except ApiError as error:
            text = "Workflow %s: an event could not be stored: %s"
            self._callers.of_strangers.warning(text, name_of(workflow), error, key="API")  # for all agents alike
            await abort(context, grpc.StatusCode.UNAVAILABLE, f"the event could not be stored: {error}")

    def _tell(self, workflow: Raw, event: AgentEvent, key: NamespacedName, agent_id: str, peer: str) -> None:
        story, name = describe(workflow, event), name_of(workflow)
        elsewhere = peer not in self._agents.addresses(key)
        if elsewhere:
            story += f" (so says {peer})"  # it has shown something else, or nothing is asked
        fields = {"workflow": name, "agent": agent_id, "hardware": str(key), "address": peer}
        log.info("Workflow %s: agent %s: %s", name, agent_id, story, extra={"fields": fields})
        kind = ActivityKind.EVENT
        self._observe(AgentActivity(agent_id, peer, kind, story, str(key), name, elsewhere=elsewhere))
