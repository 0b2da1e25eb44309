"""What an edge knows of its machines, as far as one machine's journey says something about another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from edge.composition.expecting import BootWatch
from edge.composition.networks import HostNetworks
from edge.journey.events import Outcome, Step
from edge.journey.recorder import Journey
from edge.machines import BootProblemWriter, Inventory, PendingWorkflows, Problem
from tests.unit.machines.test_mistakes import MAC, hardware

STRANGER = "52:54:00:ff:ff:01"
UUID = "4c4c4544-0042-3510-8052-b4c04f4a3232"


class Site:
    """An edge with one Hardware; `now` is its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.journey = Journey(lambda: self.now)
        inventory = Inventory()
        inventory.apply(hardware())
        problems = cast(BootProblemWriter, SimpleNamespace(found=self._found))
        networks = cast(HostNetworks, SimpleNamespace(states=()))
        self._watch = BootWatch(
            self.journey, inventory, PendingWorkflows(), networks, tuple, problems, (7080, 42113), lambda: self.now
        )

    def _found(self, _machine: Any, _problem: Problem | None) -> None:
        pass

    def sweep(self) -> None:
        self.now += 1
        list(self._watch.expectations.sweep())

    def starts_kernel(self, mac: str) -> None:
        self.journey.record(mac, Step.BOOT, Outcome.INFO, "iPXE starts the kernel", phase="starting", uuid=UUID)

    def is_seen(self, mac: str) -> None:
        self.journey.record(mac, Step.SEEN, Outcome.INFO, "seen, not registered", uuid=UUID)

    def warnings(self, mac: str) -> list[str]:
        return [event.message for event in self.journey.newest(mac, 50) if event.outcome is Outcome.WARNING]


def test_second_card_is_named_whichever_card_was_heard_first() -> None:
    for order in (Site.starts_kernel, Site.is_seen), (Site.is_seen, Site.starts_kernel):
        site = Site()
        for hear in order:
            hear(site, MAC if hear is Site.starts_kernel else STRANGER)
            site.sweep()
        site.sweep()
        (warning,) = site.warnings(STRANGER)
        assert "has the UUID of Hardware d/a" in warning
