"""What the server tells the floor above about agents, one happening at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

log = logging.getLogger(__name__)


class ActivityKind(StrEnum):
    """What happened."""

    CONNECTED = "connected"  # an agent opened its command stream
    DISCONNECTED = "disconnected"  # it is gone, or was replaced
    REFUSED = "refused"  # unknown, or not allowed to speak for that machine
    STARTED = "started"  # a Workflow was sent to it
    STOPPED = "stopped"  # it was told to stop a Workflow
    EVENT = "event"  # it reported something that changed a Workflow
    OUTPUT = "output"  # it sent what an action has printed


@dataclass(frozen=True, slots=True)
class AgentActivity:
    """`agent_id` as the agent gave it (for events: the MAC or name of its Hardware); `peer` is its IP address.

    `hardware` and `workflow` are `namespace/name`, empty where unknown; `message` is one line for an operator. OUTPUT
    has more: the name of the `action`, its newest `lines`, and how many lines before them were `dropped`.

    `elsewhere`, of EVENT and OUTPUT: `peer` is none of the addresses of the Hardware that it speaks for.
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
    """`observe`, but an exception in it is logged and goes no further."""

    def call(activity: AgentActivity) -> None:
        try:
            observe(activity)
        except Exception:
            log.exception("an observer failed for %s", activity)

    return call
