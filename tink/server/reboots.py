"""Agents that went with their machines: a last action that reboots the machine leaves nobody to report its end.

When the agent's stream breaks off while such an action runs and does not come back within a grace time, the action has
succeeded, and the Workflow with it. (An agent that does come back says itself what it holds: `streams`.)

A server that was not there when the stream broke off, because it was restarted or because the agent is with another
server, can't know whether the agent is gone. It waits much longer, and never judges before the action's own timeout is
up, when the controller does so too. Nothing is remembered but running timers: they are set anew from the Workflows that
the informer lists.

What that can't tell, where several servers share one API: whether an agent whose stream broke off here is with another
server by now, or has been there all along with an action that gives no timeout. If its rebooting action still takes
longer than the grace, or than ten times that, the Workflow counts as succeeded too early. There, give such actions a
timeout, and let agents stay with their server for as long as it lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from tink.api.v1alpha2 import Raw
from tink.kube.client import ApiError
from tink.server.agents import HardwareKey
from tink.server.events import BusyError, ServerEvent, StaleError, WorkflowGoneError
from tink.server.workflows import WorkflowIndex, hardware_of, uid_of
from tink.workflow.machine import AgentAway, rebooting
from tink.workflow.status import InvalidStatusError, actions_of, name_of, status_of

log = logging.getLogger(__name__)

ELSEWHERE = 10
"""How many times the grace a server waits at least that did not see the agent go."""

_RETRY = 5.0
_LONGEST = 7 * 86400.0
"""Seconds: no timer is set for longer, whatever somebody wrote by hand."""


class Timer(Protocol):
    """Something that is to happen."""

    def cancel(self) -> object:
        """It is not."""


Later = Callable[[float, Callable[[str], None], str], Timer]
"""`later(seconds, call, uid)` calls `call(uid)` after that time."""


class RebootWatch:
    """Waits for agents that do not come back. `grace` is in seconds; `connected` tells whether a machine's agent has a
    stream here; `rebooted` is told of each Workflow that has succeeded by it. For one event loop; `later` stands in
    for its `call_later`."""

    def __init__(
        self,
        workflows: WorkflowIndex,
        *,
        take: Callable[[Raw, ServerEvent], Awaitable[bool]],
        connected: Callable[[HardwareKey], bool],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        rebooted: Callable[[Raw], None],
        grace: float,
        later: Later | None = None,
    ) -> None:
        self._workflows = workflows
        self._take = take
        self._connected = connected
        self._spawn = spawn
        self._rebooted = rebooted
        self._grace = grace
        self._later = later
        self._timers: dict[str, tuple[Timer, float]] = {}

    def look(self, workflow: Raw) -> None:
        """A Workflow was added or changed."""
        uid, key = uid_of(workflow), hardware_of(workflow)
        if not _rebooting(workflow) or key is None or self._connected(key):
            self._cancel(uid)
        elif uid not in self._timers:
            self._set(uid, max(self._grace * ELSEWHERE, _timeout(workflow)))

    def forget(self, workflow: Raw) -> None:
        """A Workflow is gone."""
        self._cancel(uid_of(workflow))

    def opened(self, key: HardwareKey) -> None:
        """The machine's agent has a stream."""
        for workflow in self._workflows.of(key):
            self._cancel(uid_of(workflow))

    def closed(self, key: HardwareKey) -> None:
        """It has none any more."""
        for workflow in self._workflows.of(key):
            if _rebooting(workflow):
                self._set(uid_of(workflow), self._grace)

    def close(self) -> None:
        """Wait no more."""
        for uid in list(self._timers):
            self._cancel(uid)

    def _set(self, uid: str, seconds: float, waited: float | None = None) -> None:
        self._cancel(uid)
        later = self._later or asyncio.get_running_loop().call_later
        timer = later(seconds, self._due, uid)
        self._timers[uid] = (timer, waited if waited is not None else seconds)

    def _cancel(self, uid: str) -> None:
        timer = self._timers.pop(uid, None)
        if timer is not None:
            timer[0].cancel()

    def _due(self, uid: str) -> None:
        _, waited = self._timers.pop(uid)
        workflow = self._workflows.get(uid)
        key = hardware_of(workflow) if workflow is not None else None
        if workflow is not None and key is not None and not self._connected(key) and _rebooting(workflow):
            self._spawn(self._conclude(workflow, waited))

    async def _conclude(self, workflow: Raw, waited: float) -> None:
        try:
            if await self._take(workflow, AgentAway(waited)):
                now = self._workflows.get(uid_of(workflow)) or workflow
                log.info("Workflow %s: its last action reboots the machine, whose agent is gone", name_of(now))
                self._rebooted(now)
        except WorkflowGoneError:
            return
        except (ApiError, BusyError, StaleError) as error:
            log.warning("Workflow %s: its success could not be stored, trying again: %s", name_of(workflow), error)
            self._set(uid_of(workflow), _RETRY, waited)
        except InvalidStatusError as error:
            log.error("%s", error)


def _timeout(workflow: Raw) -> float:
    """The timeout of the Workflow's last action, in seconds; 0 if it gives none."""
    rendered = actions_of(status_of(workflow))[-1].get("rendered")
    seconds = rendered.get("timeout") if isinstance(rendered, dict) else None
    return min(seconds, _LONGEST) if isinstance(seconds, int | float) else 0.0


def _rebooting(workflow: Raw) -> bool:
    try:
        return rebooting(workflow)
    except InvalidStatusError:
        return False  # the agent's stream says what is wrong
