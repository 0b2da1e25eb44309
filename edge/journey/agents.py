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
from tink.server.observation import AgentObservation, ObservationKind

_OUTCOME = {
    ObservationKind.CONNECTED: Outcome.OK,
    ObservationKind.DISCONNECTED: Outcome.INFO,
    ObservationKind.REFUSED: Outcome.REFUSED,
    ObservationKind.EVENT: Outcome.INFO,
    ObservationKind.OUTPUT: Outcome.INFO,
}


class AgentJourney:
    """Turns observations into journey events of the machine that the agent runs on, or says it does."""

    def __init__(self, record: Recorder, inventory: Inventory) -> None:
        self._record = record
        self._inventory = inventory

    def observe(self, observation: AgentObservation) -> None:
        """Called by the gRPC server."""
        outcome = _OUTCOME.get(observation.kind)
        if outcome is None or (observation.kind is ObservationKind.EVENT and not observation.elsewhere):
            return
        machine = self._machine(observation)
        if machine is None:
            return
        if observation.kind is ObservationKind.OUTPUT:
            self._printed(machine, observation)
            return
        if observation.kind is ObservationKind.EVENT:
            detail: dict[str, Value] = {"workflow": observation.workflow, "from": observation.peer}
            self._record(machine.mac, Step.AGENT, outcome, _so_says(observation), **detail)
            return
        if observation.kind is ObservationKind.REFUSED:
            # Somebody who is not that machine, perhaps: who it was stands beside what it wanted.
            peer = observation.peer
            message = observation.message if peer in observation.message else f"{observation.message} (asked by {peer})"
            self._record(machine.mac, Step.AGENT, outcome, message, **{"from": peer})
            return
        self._record(machine.mac, Step.AGENT, outcome, observation.message, peer=observation.peer)

    def _printed(self, machine: Machine, observation: AgentObservation) -> None:
        """`message` has the newest line; the others are in the detail `output`, as they came."""
        detail: dict[str, Value] = {"workflow": observation.workflow, "action": observation.action}
        detail["output"] = "\n".join(observation.lines)
        if observation.dropped:
            detail["dropped_lines"] = observation.dropped
        message = observation.message
        if observation.elsewhere:
            detail["from"] = observation.peer
            message = _so_says(observation)
        self._record(machine.mac, Step.ACTION, Outcome.INFO, message, **detail)

    def _machine(self, observation: AgentObservation) -> Machine | None:
        machine = self._inventory.by_mac(observation.agent_id.lower())
        at_peer = self._inventory.by_ip(observation.peer)
        if machine is None and "/" in observation.hardware:
            # Who is refused has named a machine, and calls from the address of another.
            namespace, name = observation.hardware.split("/", 1)
            if at_peer is None or (at_peer.namespace, at_peer.name) != (namespace, name):
                machine = next(iter(self._inventory.by_name(name, namespace)), None)
        return machine or at_peer


def _so_says(observation: AgentObservation) -> str:
    """The message and who says so, which is there however long the message is."""
    who = f" (so says {observation.peer})"
    said, room = observation.message.removesuffix(who), MAX_MESSAGE - len(who)
    return (said if len(said) <= room else said[: room - 1] + "…") + who
