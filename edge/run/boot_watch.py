"""Applies the expectations of boots to all machines once a second, and shows the findings on their Hardware.

journey --sweep--> edge.journey.expectations --finding--> the journey, and `edge.machines.BootProblemWriter`
inventory, Workflows, networks --facts--^    `--progress of each machine--> `edge.machines.StateWriter`
DHCP packets of each machine --edge.journey.boots--> its last boot --------------------^
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import InitVar, dataclass
from ipaddress import IPv4Network, IPv6Address
from itertools import islice
from typing import Final
from uuid import UUID

from edge.journey.boots import Boot, is_boot_packet, last_boot
from edge.journey.events import Milestone, Outcome, Step
from edge.journey.expectations import NOT_RUN, Diagnosis, Expectations, Facts, KnownNetworks, Registered, Story, read
from edge.journey.history import Happened, detail_of, is_heard, is_printed, milestone, outcome_of, step_of
from edge.journey.recorder import Journey, News
from edge.machines import (
    BootProblem,
    BootProblemWriter,
    Inventory,
    Machine,
    MachineState,
    PendingWorkflows,
    StateWriter,
)
from edge.neighbour.arrivals import Arrivals
from edge.neighbour.host import NetworkState
from edge.neighbour.links import other_ethernets
from edge.neighbour.router_advertisement import Solicitations
from edge.neighbour.table import delivery_problem
from edge.page import due_at
from edge.run.networks.follow import HostNetworks
from tink.api.v1alpha2 import PowerState, Raw, as_mapping
from tink.kube.objects import NamespacedName
from tink.limits import Newest

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
MAX_UUIDS: Final = 20_000
MAX_RELAYS: Final = 1024
TROUBLE_SECONDS: Final = 2.0
"""Lifetime of the kernel's answer about the route to a relay, because many machines are behind one relay."""
MAX_STRANGERS: Final = 1024
"""Maximum number of unregistered machines whose problems are shown on the Hardware of others."""
MAX_STATES_PER_SWEEP: Final = 500
"""Maximum number of machines whose state is computed in one sweep; the others follow in the next."""
MAX_EVENTS: Final = 150
"""Maximum number of a machine's events that are read to distinguish an OSIE from an installed system."""
MAX_BOOT_EVENTS: Final = 250
"""Maximum number of the events of one card that are read to find the machine's last boot."""
MAX_STORED: Final = 100_000
"""Maximum number of machines whose power-off is stored, and of those whose last boot is."""
_AMBIGUOUS: Final = frozenset(
    {Milestone.OS_OFFERED, Milestone.OS_LEASED, Milestone.WORKFLOW_ENDED, Milestone.METADATA_READ}
)
"""Milestones that have several meanings: the earlier events of the boot decide."""
_OFFERED: Final = frozenset({Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED})
IPXE_SECONDS: Final = 30.0  # time after iPXE's last DHCP message in which it is taken to be configuring itself
MAX_RECENT_EVENTS: Final = 20
_IPXE: Final = "iPXE"  # the stage of iPXE in the details of DHCP events
_DHCPV6: Final = frozenset({"advertise", "reply"})
_LATE: Final = frozenset({Milestone.PROGRAM_BEGUN, Milestone.PROGRAM_SENT})
"""Milestones that may be recorded after the machine's next step, because the end of a transfer is known late."""
_SHARED: Final = ("", "")  # stands for the owner of a UUID that several machines report
_NO_UUIDS: Final = frozenset({UUID(int=0), UUID(int=(1 << 128) - 1), UUID("03000200-0400-0500-0006-000700080009")})
"""UUIDs of boards whose manufacturer gave them none."""
_DIGITS: Final = "0123456789abcdef"
_REST_FACTOR: Final = 49.0
"""Ratio of the pause after a sweep to the time of the sweep: sweeps use a fiftieth of a processor."""
MAX_REST_SECONDS: Final = 4.0
LOOKED_SECONDS: Final = 4.0  # time of counting from which on no packet means that none has arrived
MAX_OTHER_INTERFACES: Final = 16  # maximum number of interfaces without machines on which packets are counted


def rest_after(spent: float) -> float:
    """Return the pause after a sweep that used `spent` seconds of a processor: a second, longer if DHCP needs the
    processor.
    """
    return min(max(SWEEP_SECONDS, spent * _REST_FACTOR), MAX_REST_SECONDS)


@dataclass(eq=False)
class BootWatch:
    """Compares each machine's progress with its expectations. `run` it beside the servers, on their event loop.

    `relayed()` are the networks of known relays, `ports` those of HTTP and gRPC, `clock` is the journey's. `api_away()`
    says since when the Kubernetes API is away; empty if it answers.
    """

    journey: Journey
    inventory: Inventory
    workflows: PendingWorkflows
    networks: HostNetworks
    relayed: Callable[[], tuple[IPv4Network, ...]]
    problems: BootProblemWriter
    ports: InitVar[tuple[int, int]]
    clock: Callable[[], float] = time.time
    api_away: Callable[[], str] = str
    states: StateWriter | None = None

    def __post_init__(self, ports: tuple[int, int]) -> None:
        self._http_port, self._grpc_port = ports
        self._uuids: Newest[str, tuple[str, str]] = Newest(MAX_UUIDS)
        """Hardware and MAC by UUID; _SHARED if several machines report the same UUID."""
        self._strangers: Newest[str, str] = Newest(MAX_UUIDS)
        """Unregistered MACs by their UUID, while no registered machine has reported it."""
        self._shown_on: Newest[str, tuple[NamespacedName, ...]] = Newest(MAX_STRANGERS)
        """The Hardware that show the problem of an unregistered machine, by its MAC."""
        self.relays: Newest[str, str] = Newest(
            MAX_RELAYS
        )  # the last relay of each link that is not one of our networks
        self._troubles: Newest[str, tuple[float, str]] = Newest(MAX_RELAYS)
        """By relay: the time of the last check of its route, and why answers don't reach it (empty: they do)."""
        self.solicitations = Solicitations(self.clock)  # the last router solicitation of each machine
        self.on_not_started: Callable[[str], None] = lambda _mac: None
        """Called with the MAC of a machine whose firmware has fetched its boot program and did not run it."""
        self.is_moving: Callable[[str], bool] = lambda _mac: False
        """Returns True for the MAC of an approved machine whose new Hardware is not here yet."""
        self._knocks = Knocks(lambda: self.networks.states, *ports)
        self.inventory.on_change(self._machine_changed)
        self.inventory.on_power_change(self._power_changed)
        self._boots: Newest[NamespacedName, float] = Newest(MAX_STORED)
        """The time (Unix seconds) of the first packet of the last boot of a Hardware."""
        self._off: Newest[NamespacedName, float] = Newest(MAX_STORED)
        """The time (Unix seconds) at which the BMC of a Hardware began to report that the machine is off."""
        self._packets = News(self.journey, is_boot_packet, self.clock)
        self.expectations = Expectations(self.journey, self._facts, self._show, self.clock)
        self._moved = self.expectations.changes()
        self._changed: dict[str, None] = {}  # MACs of machines whose state may have changed

    async def run(self) -> None:
        """Sweep until cancelled."""
        rest = SWEEP_SECONDS
        try:
            while True:
                await asyncio.sleep(rest)
                rest = rest_after(await self._sweep())
        finally:
            self._knocks.close()
            self._packets.close()

    async def _sweep(self) -> float:
        """Sweep once. Return the processor time that it took, in seconds."""
        spent, began = 0.0, time.thread_time()
        try:
            for work in (self.find_boots, self.expectations.sweep, self._count_knocks, self.place):
                for _ in work():
                    spent += time.thread_time() - began
                    await asyncio.sleep(0)
                    began = time.thread_time()
        except Exception:
            # An error in the explanation of boots must not end the boots.
            log.exception("the expectations of machines can't be checked")
        return spent + time.thread_time() - began

    def shown(self, mac: str) -> dict[str, object]:
        """Return the step that a machine waits for, for programs. Times are Unix seconds, or None."""
        awaited, last = self.expectations.of(mac), self.journey.last_sign(mac)
        if awaited is None:
            return {}
        finding = awaited.finding
        due = due_at(last, awaited) if last is not None else 0.0
        return {
            "waiting_for": awaited.next or None if due else None,
            "since": awaited.since or None,
            "deadline": due or None,
            "finding": {
                "reason": finding.rule,
                "message": finding.message,
                "began": finding.began or None,
                "facts": finding.facts,
                "causes": [str(cause) for cause in finding.causes],
                "checks": list(finding.checks),
            }
            if finding is not None
            else None,
        }

    def is_ipxe_waiting(self, mac: str) -> bool:
        """Return True if this edge answered the machine's iPXE by DHCPv4 a moment ago, and sent nothing since."""
        # A ProxyDHCP offer is an answer too, and so is one to a machine that may not netboot. Neither is a milestone.
        for _, entry in reversed(self.journey.after(mac, self.clock() - IPXE_SECONDS, MAX_RECENT_EVENTS)):
            reached, detail = milestone(entry), dict(detail_of(entry))
            if step_of(entry) is Step.DHCP and detail.get("stage") == _IPXE:
                return detail.get("dhcp") not in _DHCPV6
            if reached is not None and reached not in _LATE:
                return False
        return False

    def _machine_changed(self, mac: str) -> None:
        is_gone = not self.inventory.claimants(mac) and not self.is_moving(mac)
        if is_gone and self.journey.last_seen(mac) is not None:
            self.expectations.forget(mac)
        if mac in self._shown_on:
            self.expectations.look_at(mac)  # the card may have another owner now, or none

    def _show(self, mac: str, finding: Diagnosis | None) -> None:
        """Show a finding, or its end, on the machine's Hardware, or else on the Hardware that it concerns."""
        problem = None
        if finding is not None:
            if finding.rule in NOT_RUN:
                self.on_not_started(mac)
            problem = BootProblem(finding.rule, finding.message, warning=finding.outcome is not Outcome.INFO)
        machine = self.inventory.by_mac(mac)
        if machine is not None and (problem is not None or self.journey.was_heard(mac)):
            self.problems.found(machine, problem)
        about = finding.about if finding is not None and machine is None else ()
        shown = tuple(NamespacedName(*name.split("/", 1)) for name in about)
        for key in shown:
            self.problems.found_of_another(key, mac, problem)
        for key in self._shown_on.pop(mac, ()):
            if key not in shown:
                self.problems.found_of_another(key, mac, None)
        if shown:
            self._shown_on[mac] = shown

    def approved(self, mac: str) -> None:
        """Show the state and the problem of a machine on the Hardware that it has become."""
        awaited, machine = self.expectations.of(mac), self.inventory.by_mac(mac)
        if awaited is not None and awaited.finding is not None and machine is not None:
            self._show(mac, awaited.finding)
        self._changed[mac] = None

    def _power_changed(self, hardware: NamespacedName, power: str, before: str) -> None:
        """Record a change of the power state on the journey of the card that sent the last packet."""
        if power == PowerState.OFF:
            self._off[hardware] = self.clock()
        cards = [machine.mac for machine in self.inventory.by_name(hardware.name, hardware.namespace)]
        if cards and before and power in (PowerState.ON, PowerState.OFF):
            mac = max(cards, key=lambda card: self.journey.last_seen(card) or 0.0)
            message = f"the BMC reports that the machine is {power}"
            self.journey.record(mac, Step.POWER, Outcome.INFO, message, power=power)
        for mac in cards:
            self.expectations.look_at(mac)

    def find_boots(self) -> Iterator[None]:
        """Pass new boots to the writer of states. The caller runs other work between the steps."""
        for number, happened in enumerate(self._packets.take(), start=1):
            machine = self.inventory.by_mac(happened[-1].mac)
            boot = self._last_boot(machine) if machine is not None else None
            card = self.inventory.by_mac(boot.mac) if boot is not None else None
            if boot is not None and boot.is_seen_here and card is not None and self.states is not None:
                self.states.booted(card, boot.time, boot.client)
            if number % 20 == 0:
                yield

    def _last_boot(self, machine: Machine) -> Boot | None:
        key = NamespacedName(machine.namespace, machine.name)
        # The events from the first packet of the known boot on give the same last boot as the whole journey.
        since = math.nextafter(self._boots.get(key, 0.0), 0.0)
        boot = last_boot(self._events_of(machine, since))
        if boot is not None:
            self._boots[key] = boot.time
        return boot

    def _events_of(self, machine: Machine, since: float) -> Iterator[Happened]:
        """Yield the last events of all cards of a machine after a time, without the lines that it has printed."""
        for card in self.inventory.by_name(machine.name, machine.namespace):
            for at, entry in self.journey.after(card.mac, since, MAX_BOOT_EVENTS):
                if not is_printed(entry):
                    yield Happened(at, card.mac, entry)

    def place(self) -> Iterator[None]:
        """Write the changed states of machines. The caller runs other work between the steps."""
        self._changed |= dict.fromkeys(self._moved.take())
        for number, mac in enumerate([*islice(self._changed, MAX_STATES_PER_SWEEP)], start=1):
            del self._changed[mac]
            machine = self.inventory.by_mac(mac)
            if machine is not None and self.states is not None and (state := self._state(machine)) is not None:
                self.states.seen(machine, state)
            if number % 20 == 0:
                yield

    def _state(self, machine: Machine) -> MachineState | None:
        """Return the state of a machine. None if this edge has no event of it, or another edge has newer ones."""
        awaited = self.expectations.of(machine.mac)
        at = awaited.at if awaited is not None else None
        if at is None or not self.journey.was_heard(machine.mac) or self.journey.is_elsewhere(machine.mac):
            return None
        if at in _AMBIGUOUS:
            return _state_of(read(machine.mac, self.journey.newest(machine.mac, MAX_EVENTS, earlier=True)))
        if at <= Milestone.KERNEL_STARTED:
            return MachineState.NETBOOTING
        if at is Milestone.AGENT_CONNECTED and not self.workflows.pending(machine.namespace, machine.name):
            return MachineState.WAITING
        return MachineState.WORKING if at > Milestone.AGENT_CONNECTED else MachineState.IN_OSIE

    def hardware_gone(self, old: Raw) -> None:
        """Record on a machine's journey that its Hardware was deleted while it has a Workflow."""
        namespace, name = NamespacedName.of(old)
        workflow = self.workflows.pending(namespace, name)
        macs = list(as_mapping(as_mapping(old.get("spec")).get("networkInterfaces")))
        if not workflow or not macs:
            return
        message = f"workflow {workflow}: its Hardware {namespace}/{name} was deleted: nothing is served to this "
        message += "machine, and its agent is not heard, until the Hardware is applied again"
        heard = max(macs, key=lambda mac: self.journey.last_seen(mac) or 0.0)
        self.journey.record(heard, Step.WORKFLOW, Outcome.WARNING, message, workflow=workflow)

    def _count_knocks(self) -> Iterator[None]:
        """Count packets in front of the firewall while the next request of some machine is missing."""
        if not self.expectations.knocks_count:
            self._knocks.close()
            return
        self._knocks.look()
        for ip in self._knocks.repeated():
            for machine in self.inventory.claimants_of_ip(ip):
                self.expectations.look_at(machine.mac)
        yield

    # --- facts for the expectations -----------------------------------------------------------------------------------

    def _facts(self, story: Story, now: float, limit: Callable[[Milestone], float]) -> Facts:
        mac = story.mac
        machine = self.inventory.by_mac(mac)
        claimants = () if machine is not None else self.inventory.claimants(mac)
        name = (machine.namespace, machine.name) if machine is not None else ("", "")
        hardware = "/".join(name) if machine is not None else ""
        uuid = _canonical(str(story.boot.detail_of("uuid")))
        unknown = machine is None and not claimants
        over_ipv6 = story.boot.detail_of("dhcp") in ("advertise", "reply")
        ip = (machine.ipv6 if over_ipv6 else machine.ip) if machine is not None else None
        since = story.boot.since
        relay = self._relay(machine) if machine is not None and story.boot.at in _OFFERED else ""
        if machine is not None and uuid:
            known = self._uuids.get(uuid)
            self._uuids[uuid] = (hardware, mac) if known is None or known[0] == hardware else _SHARED
            stranger = self._strangers.pop(uuid, None)
            if stranger is not None:
                self.expectations.look_at(stranger)  # it came before this one, and now its owner is known
        elif unknown and uuid and uuid not in self._uuids:
            self._strangers[uuid] = mac
        same = self._uuids.get(uuid, _SHARED)
        return Facts(
            now=now,
            registered=self._registered(hardware, machine) if machine is not None else None,
            network=self._network(machine),
            limit=limit,
            claimants=tuple(sorted(f"{one.namespace}/{one.name}" for one in claimants)),
            near=self._near(mac) if unknown else None,
            same_uuid=same if unknown and uuid and same != _SHARED else None,
            workflow=self.workflows.pending(*name) if machine is not None else "",
            workflow_message=self.workflows.message(*name) if machine is not None else "",
            unheard_workflow=self._unheard_workflow(machine.namespace)
            if machine is not None and story.boot.at is Milestone.AGENT_CONNECTED
            else None,
            no_workflow=self.workflows.why_none(*name) if machine is not None else "",
            done=self.workflows.why_done(*name) if machine is not None else "",
            arrived=self._knocks.asked(ip, since) if ip else None,
            answered=self._knocks.answered(ip, since) if ip else {},
            strayed=self._knocks.strayed(ip, since) if ip else {},
            relay=relay,
            relay_trouble=self._trouble(relay, now) if relay else "",
            behind_router=ip if ip and ":" in ip and self._is_behind_router(ip) else "",
            solicited=self.solicitations.get(mac),
            api_away=self.api_away(),
            is_off=machine is not None and self._is_off(machine),
            http_port=self._http_port,
            grpc_port=self._grpc_port,
        )

    def _registered(self, hardware: str, machine: Machine) -> Registered:
        dhcp, inventory = machine.interface.dhcp, self.inventory
        return Registered(
            hardware,
            machine.ip or machine.ipv6 or "",
            (dhcp.netmask if dhcp is not None else "") or "",
            (dhcp.gateway if dhcp is not None else "") or "",
            is_discovered=machine.is_discovered,
            is_introduced=inventory.is_introduced(machine),
            difference=inventory.difference(machine),
        )

    def _is_off(self, machine: Machine) -> bool:
        """Return True if the BMC has reported that a machine is off, and none of its cards has sent a packet since."""
        off = self._off.get(NamespacedName(machine.namespace, machine.name))
        if off is None or self.inventory.power(machine) != PowerState.OFF:
            return False
        cards = self.inventory.by_name(machine.name, machine.namespace)
        later = (entry for card in cards for _, entry in self.journey.after(card.mac, off, MAX_RECENT_EVENTS))
        # The end of an agent's connection is noticed long after its machine was switched off.
        return not any(
            is_heard(entry) and (step_of(entry) is not Step.AGENT or outcome_of(entry) is not Outcome.INFO)
            for entry in later
        )

    def _relay(self, machine: Machine) -> str:
        """Return the last relay of the machine's network; empty if there is none."""
        network = self._registered("", machine).network if machine.interface.dhcp is not None else None
        relays = (self.relays[link] for link in reversed(self.relays) if network and _holds(network, link))
        return next(relays, "")

    def _trouble(self, relay: str, now: float) -> str:
        """Return why answers don't reach a relay; empty if they do."""
        known = self._troubles.get(relay)
        if known is None or not 0 <= now - known[0] < TROUBLE_SECONDS:
            interfaces = [state.interface for state in self.networks.states]
            known = self._troubles[relay] = (now, delivery_problem(relay, interfaces))
        return known[1]

    def _is_behind_router(self, ip: str) -> bool:
        """Return True if an IPv6 address is in none of this edge's networks."""
        networks = [network for state in self.networks.states for network in state.networks6]
        return bool(networks) and not any(IPv6Address(ip) in network for network in networks)

    def _network(self, machine: Machine | None) -> KnownNetworks:
        states = self.networks.states
        served = tuple(dict.fromkeys(network for state in states for network in state.networks))
        interface = states[0].interface if len(states) == 1 else ""
        address = next(iter(states[0].addresses), "") if len(states) == 1 else ""
        if machine is not None and machine.ip is not None and len(states) > 1:
            for state in states:
                if any(_holds(network, machine.ip) for network in state.networks):
                    interface, address = state.interface, state.address
        return KnownNetworks(served, self.relayed(), address, interface)

    def _near(self, mac: str) -> tuple[str, str] | None:
        """Return the one silent Hardware whose MAC differs in one digit; None if there is none, or several."""
        found = [
            machine
            for at, digit in enumerate(mac)
            if digit != ":"
            for other in _DIGITS
            if other != digit
            and (machine := self.inventory.by_mac(mac[:at] + other + mac[at + 1 :])) is not None
            and not self.journey.was_heard(machine.mac)
        ]
        return (f"{found[0].namespace}/{found[0].name}", found[0].mac) if len(found) == 1 else None

    def _unheard_workflow(self, namespace: str) -> tuple[str, str] | None:
        """Return the one Workflow of the namespace whose Hardware is silent, with that Hardware; else None."""
        found = [
            (f"{namespace}/{workflow}", f"{namespace}/{hardware}")
            for workflow, hardware in self.workflows.few(namespace)
            if not any(self.journey.was_heard(one.mac) for one in self.inventory.by_name(hardware, namespace))
        ]
        return found[0] if len(found) == 1 else None


class Knocks:
    """Counts the packets that arrive for our ports on this host's interfaces, before the firewall.

    On interfaces with machines the counts distinguish a firewall of this host from one on the way. On the others they
    show that both interfaces are on the same Ethernet: the kernel answers ARP for an address of this host on any of its
    interfaces, and a packet that arrives on the wrong one never reaches a socket that is bound to the right one.

    Belongs to one event loop. Without the privilege for packet sockets it counts nothing.
    """

    def __init__(
        self, states: Callable[[], Sequence[NetworkState]], *tcp_ports: int, clock: Callable[[], float] = time.time
    ) -> None:
        """`states()` are the networks of machines, `tcp_ports` our ports beside udp/69; `clock` gives Unix seconds."""
        self._states = states
        self._clock = clock
        self._since = 0.0
        self._tcp_ports = tcp_ports
        self._here: dict[str, Arrivals] = {}
        self._elsewhere: dict[str, Arrivals] = {}
        self._is_denied = False

    def look(self) -> None:
        """Start counting, on interfaces where it has not started."""
        served = [state.interface for state in self._states() if state.addresses]
        for name in served:
            self._open(name, self._here)
        if served and not self._elsewhere and not self._is_denied:
            try:
                others = other_ethernets(served)[:MAX_OTHER_INTERFACES]
            except OSError as error:
                others = []
                log.debug("this host's interfaces can't be listed: %s", error.strerror)
            for name in others:
                self._open(name, self._elsewhere)

    def close(self) -> None:
        """Stop counting."""
        for arrivals in (*self._here.values(), *self._elsewhere.values()):
            arrivals.close()
        self._here.clear()
        self._elsewhere.clear()

    def _open(self, name: str, where: dict[str, Arrivals]) -> None:
        if name in where or self._is_denied:
            return
        try:
            where[name] = Arrivals(name, *self._tcp_ports, clock=self._clock)
            self._since = self._clock()
        except OSError as error:
            self._is_denied = isinstance(error, PermissionError)
            log.debug("packets on %s can't be counted: %s", name, error.strerror)

    def repeated(self) -> Iterator[str]:
        """Return the addresses that sent more than one packet to a port, on interfaces with machines."""
        return (ip for arrivals in self._here.values() for ip in arrivals.repeated())

    def asked(self, ip: str, since: float) -> dict[str, int] | None:
        """Return the number of packets from `ip` by port since `since` (Unix time); None if counting is too young."""
        if not self._here:
            return None
        counts = sum((Counter(each.asked(ip, since)) for each in self._here.values()), Counter[str]())
        return dict(counts) if counts or self._clock() - self._since >= LOOKED_SECONDS else None

    def answered(self, ip: str, since: float) -> dict[str, int]:
        """Return the number of this host's TCP answers to `ip` by port since `since`."""
        return dict(sum((Counter(each.answered(ip, since)) for each in self._here.values()), Counter()))

    def strayed(self, ip: str, since: float) -> dict[str, str]:
        """Return the ports whose packets from `ip` arrived on another interface only, with its name."""
        here = self.asked(ip, since) or {}
        return {
            port: name
            for name, arrivals in self._elsewhere.items()
            for port, count in arrivals.asked(ip, since).items()
            if count and not here.get(port)
        }


def _state_of(story: Story) -> MachineState:
    """Return the state of a machine whose last milestone is ambiguous."""
    boot = story.boot
    ended = Milestone.WORKFLOW_ENDED in boot.reached or Milestone.WORKFLOW_RUNNING not in boot.reached
    if boot.at is Milestone.WORKFLOW_ENDED:
        words = {"Failed": MachineState.FAILED, "Canceled": MachineState.WAITING}
        return words.get(str(boot.detail.get("state", "")), MachineState.INSTALLED)
    if not ended:
        return MachineState.WORKING  # an action reads metadata, or renews the lease
    if boot.at in (Milestone.OS_OFFERED, Milestone.OS_LEASED) and boot.boots_osie:
        return MachineState.IN_OSIE
    return MachineState.INSTALLED


def _holds(network: IPv4Network, ip: str) -> bool:
    try:
        return network.overlaps(IPv4Network(ip))
    except ValueError:
        return False


def _canonical(text: str) -> str:
    """Return a UUID in a form that does not depend on the firmware's byte order; empty if `text` is no UUID."""
    try:
        uuid = UUID(text)
    except ValueError:
        return ""
    if uuid in _NO_UUIDS:
        return ""
    # In DHCP option 97, EDK2 sends the byte order of SMBIOS, and iPXE network order.
    return min(str(uuid), str(UUID(bytes_le=uuid.bytes)))
