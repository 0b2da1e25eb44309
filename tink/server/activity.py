"""The server's callback for what agents do: one AgentActivity for each happening."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

log = logging.getLogger(__name__)


class ActivityKind(StrEnum):
    """The kind of an activity."""

    CONNECTED = "connected"  # an agent opened its command stream
    DISCONNECTED = "disconnected"  # it is gone, or was replaced
    REFUSED = "refused"  # unknown, or not allowed to act for that machine
    STARTED = "started"  # a Workflow was sent to it
    STOPPED = "stopped"  # a command to stop a Workflow was sent to it
    EVENT = "event"  # it reported something that changed a Workflow
    OUTPUT = "output"  # it sent what an action has printed


@dataclass(frozen=True, slots=True)
class AgentActivity:
    """Something that an agent did.

    `agent_id` is the id that the agent sent; for events it is the MAC address or the name of its Hardware. `peer` is
    the agent's IP address. `hardware` and `workflow` are `namespace/name`, or empty if unknown. `message` is one line
    for an operator.

    OUTPUT also has the name of the `action`, its newest `lines`, and the number of lines `dropped` before them.

    `elsewhere` (EVENT and OUTPUT): `peer` is not an address of the Hardware.
    """

    agent_id: str
    peer: str
    kind: ActivityKind
    message: str
    hardware: str = ""
    workflow: str = ""
    action: str = ""
    lines: tuple[str, ...] = ()
    dropped: int = 0
    elsewhere: bool = False


ActivityObserver = Callable[[AgentActivity], None]


def never_raising(observe: ActivityObserver) -> ActivityObserver:
    """Return a wrapper of `observe` that logs its exceptions instead of raising them."""

    def call(activity: AgentActivity) -> None:
        try:
            observe(activity)
        except Exception:
            log.exception("an observer failed for %s", activity)

    return call
