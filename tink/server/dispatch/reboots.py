"""Agents that went with their machines: a last action that reboots the machine leaves nobody to report its end.

When such an action runs and the agent has had no stream for a grace time, the action has succeeded, and the Workflow
with it. (An agent that does come back says itself what it holds: `streams`.)

Which server has the stream only that one knows. So it says in the Workflow's status that it sees the agent: at once
when the agent comes while the action runs, and several times in each grace for as long as both last. An action that
reboots soon, as they do, is never written of. Any other server waits for the grace, begins anew whenever somebody has
seen the agent, and judges by what the status said; if that has changed, its judgement is void (`machine.AgentAway`).

The server whose stream broke off waits for one grace. Any other waits longer, because it does not know when that was:
it may have been restarted itself, or the one with the stream may have been killed. Nothing is remembered but running
timers: they are set anew from the Workflows that the informer lists. Clocks are not compared; but all servers must have
about the same grace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.kube.objects import NamespacedName
from tink.server.events import BusyError, ServerEvent, StaleError, WorkflowGoneError
from tink.server.workflows import WorkflowIndex, hardware_of, uid_of
from tink.workflow.events import AgentAway, AgentSeen
from tink.workflow.guards import paused, rebooting
from tink.workflow.status import InvalidStatusError, agent_seen, name_of, status_of

log = logging.getLogger(__name__)

ELSEWHERE_GRACES = 3
"""How many graces a server waits that did not see the agent go."""

REPORT_PART = 1 / 3
"""The part of the grace after which a server that sees the agent says so again."""

_RETRY_SECONDS = 5.0
"""Seconds after which what could not be stored is tried again."""


@dataclass(slots=True, eq=False)
class _Watch:
    """Of one Workflow. `here`: its agent is connected here, and this is to be said next; else the agent is taken to be
    gone, after `seconds` in which the status said `seen`."""

    here: bool
    seconds: float
    seen: str
    timer: asyncio.TimerHandle


class RebootWatch:
    """Waits for agents that do not come back. `grace` is in seconds; `connected` tells whether a machine's agent has a
    stream here; `rebooted` is told of each Workflow that has succeeded by it. For one event loop."""

    def __init__(
        self,
        workflows: WorkflowIndex,
        *,
        take: Callable[[Raw, ServerEvent], Awaitable[bool]],
        connected: Callable[[NamespacedName], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        rebooted: Callable[[Raw], None],
        grace: float,
    ) -> None:
        self._workflows = workflows
        self._take = take
        self._connected = connected
        self._spawn = spawn
        self._rebooted = rebooted
        self._grace = grace
        self._watches: dict[str, _Watch] = {}

    def look(self, workflow: Raw) -> None:
        """A Workflow was added or changed."""
        uid, key = uid_of(workflow), hardware_of(workflow)
        if key is None or not _rebooting(workflow):
            self._cancel(uid)
            return
        watch, seen = self._watches.get(uid), agent_seen(status_of(workflow))
        if self._connected(key):
            if watch is None or not watch.here:
                self._set(uid, self._grace * REPORT_PART, seen, here=True)
        elif watch is None or watch.here or watch.seen != seen:
            self._set(uid, self._grace * ELSEWHERE_GRACES, seen)

    def forget(self, workflow: Raw) -> None:
        """A Workflow is gone."""
        self._cancel(uid_of(workflow))

    def opened(self, key: NamespacedName, holds: Collection[str] | None) -> None:
        """The machine's agent has a stream, and said that it holds these Workflows (None: it does not say)."""
        for workflow in self._workflows.of(key):
            if _rebooting(workflow):
                uid = uid_of(workflow)
                # One that it does not hold is over (`Stream._account`): no need to say anything of it.
                soon = 0.0 if holds is None or uid in holds else self._grace * REPORT_PART
                self._set(uid, soon, agent_seen(status_of(workflow)), here=True)

    def closed(self, key: NamespacedName) -> None:
        """It has none any more."""
        for workflow in self._workflows.of(key):
            if _rebooting(workflow):
                self._set(uid_of(workflow), self._grace, agent_seen(status_of(workflow)))

    def close(self) -> None:
        """Wait no more."""
        for uid in list(self._watches):
            self._cancel(uid)

    def _set(self, uid: str, seconds: float, seen: str, *, here: bool = False) -> None:
        self._cancel(uid)
        self._watches[uid] = _Watch(here, seconds, seen, self._call(seconds, uid))

    def _call(self, seconds: float, uid: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._due, uid)

    def _cancel(self, uid: str) -> None:
        watch = self._watches.pop(uid, None)
        if watch is not None:
            watch.timer.cancel()

    def _due(self, uid: str) -> None:
        # The watch stays while its work is under way: nothing is said or judged twice at the same time.
        watch, workflow = self._watches[uid], self._workflows.get(uid)
        key = hardware_of(workflow) if workflow is not None else None
        if workflow is None or key is None or not _rebooting(workflow):
            self._cancel(uid)
        elif self._connected(key) is not watch.here:
            self._cancel(uid)
            self.look(workflow)
        else:
            self._spawn(self._say(workflow, watch) if watch.here else self._conclude(workflow, watch))

    async def _say(self, workflow: Raw, watch: _Watch) -> None:
        """The agent is connected here."""
        try:
            await self._take(workflow, AgentSeen())
        except WorkflowGoneError:
            return
        except (ApiError, BusyError, StaleError, InvalidStatusError) as error:
            log.debug("Workflow %s: that its agent is here could not be stored: %s", name_of(workflow), error)
        self._look_again(workflow, watch)

    async def _conclude(self, workflow: Raw, watch: _Watch) -> None:
        """The agent has been gone for long enough."""
        uid = uid_of(workflow)
        try:
            if await self._take(workflow, AgentAway(watch.seconds, watch.seen)):
                now = self._workflows.get(uid) or workflow
                log.info("Workflow %s: its last action reboots the machine, whose agent is gone", name_of(now))
                self._cancel(uid)
                self._rebooted(now)
            self._look_again(workflow, watch)
        except WorkflowGoneError:
            return
        except (ApiError, BusyError, StaleError) as error:
            log.warning("Workflow %s: its success could not be stored, trying again: %s", name_of(workflow), error)
            if self._watches.get(uid) is watch:
                watch.timer = self._call(_RETRY_SECONDS, uid)
        except InvalidStatusError as error:
            log.error("%s", error)

    def _look_again(self, workflow: Raw, watch: _Watch) -> None:
        """What is said has been said: see what is next, if nothing has come between."""
        uid = uid_of(workflow)
        if self._watches.get(uid) is watch:
            self._cancel(uid)
            now = self._workflows.get(uid)
            if now is not None:
                self.look(now)


def _rebooting(workflow: Raw) -> bool:
    try:
        return rebooting(workflow) and not paused(workflow)
    except InvalidStatusError:
        return False  # the agent's stream says what is wrong
