"""Agents as steps of a machine's journey: what the gRPC server observes of them.

What agents report of actions is in the Workflow's status; `edge.journey.workflows` tells that. What actions print comes
this way: one entry for each piece that the agent sends (`tink.agent.output` says how seldom), with all its lines.

What is said of a machine from an address that is none of its own (by an agent behind NAT with a token or a certificate;
by anybody, where nothing is asked) has that address: `(so says ADDRESS)`, and `from` in the detail, which no agent can
write. The status does not say who changed it, so such a report is an entry beside that of the change.
"""

from __future__ import annotations

from edge.journey.events import MAX_MESSAGE, Outcome, Recorder, Step, Value
from edge.machines import Inventory, Machine
from tink.mac import is_mac
from tink.server import ActivityKind, AgentActivity

_OUTCOME = {
    ActivityKind.CONNECTED: Outcome.OK,
    ActivityKind.DISCONNECTED: Outcome.INFO,
    ActivityKind.REFUSED: Outcome.REFUSED,
    ActivityKind.EVENT: Outcome.INFO,
    ActivityKind.OUTPUT: Outcome.INFO,
}


class AgentJourney:
    """Turns activities into journey events of the machine that the agent runs on, or says it does."""

    def __init__(self, record: Recorder, inventory: Inventory) -> None:
        self._record = record
        self._inventory = inventory

    def observe(self, activity: AgentActivity) -> None:
        """Called by the gRPC server."""
        outcome = _OUTCOME.get(activity.kind)
        if outcome is None or (activity.kind is ActivityKind.EVENT and not activity.elsewhere):
            return
        machine = self._machine(activity)
        if activity.kind is ActivityKind.REFUSED:
            self._refused(machine.mac if machine is not None else activity.agent_id.lower(), activity)
            return
        if machine is None:
            return
        if activity.kind is ActivityKind.OUTPUT:
            self._printed(machine, activity)
            return
        if activity.kind is ActivityKind.EVENT:
            detail: dict[str, Value] = {"workflow": activity.workflow, "from": activity.peer}
            self._record(machine.mac, Step.AGENT, outcome, _so_says(activity), **detail)
            return
        self._record(machine.mac, Step.AGENT, outcome, activity.message, peer=activity.peer)

    def _refused(self, mac: str, activity: AgentActivity) -> None:
        """Somebody who is not that machine, perhaps: who it was stands beside what it wanted.

        A machine that is not registered has a journey, too. The server says few of these, so nobody makes up many.
        """
        if not is_mac(mac):
            return
        peer = activity.peer
        message = activity.message if peer in activity.message else f"{activity.message} (asked by {peer})"
        self._record(mac, Step.AGENT, Outcome.REFUSED, message, **{"from": peer})

    def _printed(self, machine: Machine, activity: AgentActivity) -> None:
        """`message` has the newest line; the others are in the detail `output`, as they came."""
        detail: dict[str, Value] = {"workflow": activity.workflow, "action": activity.action}
        detail["output"] = "\n".join(activity.lines)
        if activity.dropped:
            detail["dropped_lines"] = activity.dropped
        message = activity.message
        if activity.elsewhere:
            detail["from"] = activity.peer
            message = _so_says(activity)
        self._record(machine.mac, Step.ACTION, Outcome.INFO, message, **detail)

    def _machine(self, activity: AgentActivity) -> Machine | None:
        machine = self._inventory.by_mac(activity.agent_id.lower())
        if machine is not None and activity.hardware not in ("", f"{machine.namespace}/{machine.name}"):
            machine = None  # The agent of another Hardware uses this id.
        at_peer = self._inventory.by_ip(activity.peer)
        if machine is None and "/" in activity.hardware:
            # Who is refused has named a machine, and calls from the address of another.
            namespace, name = activity.hardware.split("/", 1)
            if at_peer is None or (at_peer.namespace, at_peer.name) != (namespace, name):
                machine = next(iter(self._inventory.by_name(name, namespace)), None)
        return machine or at_peer


def _so_says(activity: AgentActivity) -> str:
    """The message and who says so, which is there however long the message is."""
    who = f" (so says {activity.peer})"
    said, room = activity.message.removesuffix(who), MAX_MESSAGE - len(who)
    return (said if len(said) <= room else said[: room - 1] + "…") + who
