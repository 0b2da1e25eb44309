"""Agents as steps of a machine's journey: what the gRPC server observes of them.

What agents report of actions is in the Workflow's status; `edge.journey.workflows` tells that. What actions print comes
this way: one entry for each piece that the agent sends (`tink.agent.output` says how seldom), with all its lines.
"""

from __future__ import annotations

from edge.inventory import Inventory, Machine
from edge.journey.events import Outcome, Recorder, Step, Value
from tink.server.observation import AgentObservation, ObservationKind

_OUTCOME = {
    ObservationKind.CONNECTED: Outcome.OK,
    ObservationKind.DISCONNECTED: Outcome.INFO,
    ObservationKind.REFUSED: Outcome.REFUSED,
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
        if outcome is None:
            return
        machine = self._machine(observation)
        if machine is None:
            return
        if observation.kind is ObservationKind.OUTPUT:
            self._printed(machine, observation)
            return
        self._record(machine.mac, Step.AGENT, outcome, observation.message, peer=observation.peer)

    def _printed(self, machine: Machine, observation: AgentObservation) -> None:
        """`message` has the newest line; the others are in the detail `output`, as they came."""
        detail: dict[str, Value] = {"workflow": observation.workflow, "action": observation.action}
        detail["output"] = "\n".join(observation.lines)
        if observation.dropped:
            detail["dropped_lines"] = observation.dropped
        self._record(machine.mac, Step.ACTION, Outcome.INFO, observation.message, **detail)

    def _machine(self, observation: AgentObservation) -> Machine | None:
        machine = self._inventory.by_mac(observation.agent_id.lower())
        at_peer = self._inventory.by_ip(observation.peer)
        if machine is None and "/" in observation.hardware:
            # Who is refused has named a machine, and calls from the address of another.
            namespace, name = observation.hardware.split("/", 1)
            if at_peer is None or (at_peer.namespace, at_peer.name) != (namespace, name):
                machine = next(iter(self._inventory.by_name(name, namespace)), None)
        return machine or at_peer
