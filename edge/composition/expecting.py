"""Expectations at work: once a second, with what this edge knows, shown on the Hardware.

journey --sweep--> edge.journey.expectations --finding--> the journey, and `edge.machines.BootProblemWriter`
inventory, Workflows, networks --facts--^
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Final
from uuid import UUID

from edge.composition.networks import HostNetworks
from edge.journey.expectations import Expectations, Facts, Finding, Network, Registered, Story
from edge.journey.recorder import Journey
from edge.journey.steps import Milestone, Outcome
from edge.machines import BootProblemWriter, Inventory, Machine, PendingWorkflows, Problem
from edge.neighbour.arrivals import Arrivals
from tink.limits.newest import Newest

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
MAX_UUIDS: Final = 20_000
_SHARED: Final = ("", "")
_NO_UUIDS: Final = frozenset({UUID(int=0), UUID(int=(1 << 128) - 1), UUID("03000200-0400-0500-0006-000700080009")})
"""What boards say whose maker gave them none."""
_DIGITS: Final = "0123456789abcdef"


class BootWatch:
    """Belongs to one event loop; `run` it beside the servers."""

    def __init__(
        self,
        journey: Journey,
        inventory: Inventory,
        workflows: PendingWorkflows,
        networks: HostNetworks,
        relayed: Callable[[], tuple[IPv4Network, ...]],
        problems: BootProblemWriter,
        ports: tuple[int, int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`relayed()`: the networks whose relays were heard; `ports`: of HTTP and gRPC here; `clock`: the journey's."""
        self._journey = journey
        self._inventory = inventory
        self._workflows = workflows
        self._networks = networks
        self._relayed = relayed
        self._problems = problems
        self._http_port, self._grpc_port = ports
        self._uuids: Newest[str, tuple[str, str]] = Newest(MAX_UUIDS)
        """Hardware and MAC by UUID; _SHARED where several machines say the same."""
        self._strangers: Newest[str, str] = Newest(MAX_UUIDS)
        """MACs that nobody has registered, by their UUID, which nobody else has said so far."""
        self._arrivals: dict[str, Arrivals] = {}
        self._cannot_look = False
        self.expectations = Expectations(journey, self._facts, self._say, clock)

    async def run(self) -> None:
        """Sweep for ever."""
        try:
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                await self._sweep()
        finally:
            self.close()

    async def _sweep(self) -> None:
        try:
            for _ in self.expectations.sweep():
                await asyncio.sleep(0)
            self._look_for_knocks()
        except Exception:
            # What explains boots must not end them.
            log.exception("the expectations of machines can't be looked at")

    def shown(self, mac: str) -> dict[str, object]:
        """What is awaited of a machine, for programs; times are in seconds since the epoch, or None."""
        awaited = self.expectations.of(mac)
        if awaited is None:
            return {}
        finding = awaited.finding
        return {
            "awaited": awaited.next or None,
            "since": awaited.since or None,
            "deadline": awaited.deadline or None,
            "finding": {"reason": finding.rule, "message": finding.message} if finding is not None else None,
        }

    def _say(self, mac: str, finding: Finding | None) -> None:
        machine = self._inventory.by_mac(mac)
        if machine is None:
            return
        problem = None
        if finding is not None:
            problem = Problem(finding.rule, finding.message, warning=finding.outcome is not Outcome.INFO)
        self._problems.found(machine, problem)

    def _look_for_knocks(self) -> None:
        """Have packets counted in front of the firewall, while some machine is to ask something and does not."""
        if not self.expectations.knocks_count:
            self.close()
            return
        for state in self._networks.states:
            if state.address and state.interface not in self._arrivals and not self._cannot_look:
                try:
                    self._arrivals[state.interface] = Arrivals(state.interface, self._http_port, self._grpc_port)
                except OSError as error:
                    self._cannot_look = isinstance(error, PermissionError)
                    log.debug("packets on %s can't be looked at: %s", state.interface, error.strerror)
        for arrivals in self._arrivals.values():
            for ip in arrivals.repeated():
                machine = self._inventory.by_ip(ip)
                if machine is not None:
                    self.expectations.look_at(machine.mac)

    def close(self) -> None:
        """Look at packets no more."""
        for arrivals in self._arrivals.values():
            arrivals.close()
        self._arrivals.clear()

    # --- what is known --------------------------------------------------------------------------------------------

    def _facts(self, story: Story, now: float, limit: Callable[[Milestone], float]) -> Facts:
        mac = story.mac
        machine = self._inventory.by_mac(mac)
        claimants = () if machine is not None else self._inventory.claimants(mac)
        hardware = "/".join((machine.namespace, machine.name)) if machine is not None else ""
        uuid = _canonical(str(story.boot.detail_of("uuid")))
        unknown = machine is None and not claimants
        if machine is not None and uuid:
            self._learn(uuid, hardware, mac)
        elif unknown and uuid and uuid not in self._uuids:
            self._strangers[uuid] = mac
        return Facts(
            now=now,
            registered=_registered(hardware, machine) if machine is not None else None,
            network=self._network(machine),
            limit=limit,
            claimants=tuple(sorted(f"{one.namespace}/{one.name}" for one in claimants)),
            near=self._near(mac) if unknown else None,
            same_uuid=self._same(uuid) if unknown and uuid else None,
            workflow=self._workflows.pending(machine.namespace, machine.name) if machine is not None else "",
            workflow_message=self._workflows.message(machine.namespace, machine.name) if machine is not None else "",
            no_workflow=self._workflows.why_none(machine.namespace, machine.name) if machine is not None else "",
            arrived=self._arrived(machine, story.boot.since),
            answered=self._answered(machine, story.boot.since),
            http_port=self._http_port,
            grpc_port=self._grpc_port,
        )

    def _arrived(self, machine: Machine | None, since: float) -> dict[str, int] | None:
        if machine is None or machine.ip is None or not self._arrivals:
            return None
        counts: Counter[str] = Counter()
        for arrivals in self._arrivals.values():
            counts.update(arrivals.asked(machine.ip, since))
        return dict(counts)

    def _answered(self, machine: Machine | None, since: float) -> dict[str, int]:
        counts: Counter[str] = Counter()
        if machine is not None and machine.ip is not None:
            for arrivals in self._arrivals.values():
                counts.update(arrivals.answered(machine.ip, since))
        return dict(counts)

    def _network(self, machine: Machine | None) -> Network:
        states = self._networks.states
        served = tuple(dict.fromkeys(network for state in states for network in state.networks))
        interface = states[0].interface if len(states) == 1 else ""
        address = states[0].address if len(states) == 1 else ""
        if machine is not None and machine.ip is not None and len(states) > 1:
            for state in states:
                if any(_holds(network, machine.ip) for network in state.networks):
                    interface, address = state.interface, state.address
        return Network(served, self._relayed(), address, interface)

    def _near(self, mac: str) -> tuple[str, str] | None:
        """The one Hardware that was never heard, whose MAC differs in one digit; None if there is none, or several."""
        found = [
            machine
            for at, digit in enumerate(mac)
            if digit != ":"
            for other in _DIGITS
            if other != digit
            and (machine := self._inventory.by_mac(mac[:at] + other + mac[at + 1 :])) is not None
            and self._journey.last_seen(machine.mac) is None
        ]
        return (f"{found[0].namespace}/{found[0].name}", found[0].mac) if len(found) == 1 else None

    def _learn(self, uuid: str, hardware: str, mac: str) -> None:
        known = self._uuids.get(uuid)
        self._uuids[uuid] = (hardware, mac) if known is None or known[0] == hardware else _SHARED
        stranger = self._strangers.pop(uuid, None)
        if stranger is not None:
            self.expectations.look_at(stranger)  # heard before this one: now it is known whose card that is

    def _same(self, uuid: str) -> tuple[str, str] | None:
        known = self._uuids.get(uuid, _SHARED)
        return known if known != _SHARED else None


def _registered(hardware: str, machine: Machine) -> Registered:
    dhcp = machine.interface.dhcp
    if dhcp is None:
        return Registered(hardware, machine.ip or "")
    return Registered(hardware, machine.ip or "", dhcp.netmask or "", dhcp.gateway or "")


def _holds(network: IPv4Network, ip: str) -> bool:
    try:
        return network.overlaps(IPv4Network(ip))
    except ValueError:
        return False


def _canonical(text: str) -> str:
    """A UUID in a spelling that does not depend on the order in which firmware sends its bytes; empty if it is none.

    DHCP's option 97 has the bytes of SMBIOS from EDK2, and those in network order from iPXE.
    """
    try:
        uuid = UUID(text)
    except ValueError:
        return ""
    if uuid in _NO_UUIDS:
        return ""
    return min(str(uuid), str(UUID(bytes_le=uuid.bytes)))
