"""Agents as steps of a machine's journey: what the gRPC server observes of them.

What agents report of actions is in the Workflow's status; `edge.journey.workflows` tells that.
"""

from __future__ import annotations

from edge.inventory import Inventory, Machine
from edge.journey.events import Outcome, Recorder, Step
from tink.server.observation import AgentObservation, ObservationKind

_OUTCOME = {
    ObservationKind.CONNECTED: Outcome.OK,
    ObservationKind.DISCONNECTED: Outcome.INFO,
    ObservationKind.REFUSED: Outcome.REFUSED,
}


class AgentJourney:
    """Turns observations into journey events of the machine that the agent runs on, or says it does."""

    def __init__(self, record: Recorder, inventory: Inventory) -> None:
        self._record = record
        self._inventory = inventory

    def observe(self, observation: AgentObservation) -> None:
        """Called by the gRPC server."""
        outcome = _OUTCOME.get(observation.kind)
        machine = self._machine(observation)
        if outcome is None or machine is None:
            return
        self._record(machine.mac, Step.AGENT, outcome, observation.message, peer=observation.peer)

    def _machine(self, observation: AgentObservation) -> Machine | None:
        machine = self._inventory.by_mac(observation.agent_id.lower()) or self._inventory.by_ip(observation.peer)
        if machine is None and "/" in observation.hardware:
            namespace, name = observation.hardware.split("/", 1)
            machine = next(iter(self._inventory.by_name(name, namespace)), None)
        return machine
