"""Expectations at work: once a second, with what this edge knows, shown on the Hardware.

journey --sweep--> edge.journey.expectations --finding--> the journey, and `edge.machines.BootProblemWriter`
inventory, Workflows, networks --facts--^    `--how far each machine is--> `edge.machines.StateWriter`
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network, IPv6Address
from itertools import islice
from typing import Final
from uuid import UUID

from edge.journey.expectations import NOT_RUN, Expectations, Facts, Finding, Network, Registered, Story, read
from edge.journey.history import detail_of, milestone, step_of
from edge.journey.recorder import Journey
from edge.journey.steps import Milestone, Outcome, Step
from edge.machines import (
    BootProblemWriter,
    Inventory,
    Machine,
    MachineState,
    PendingWorkflows,
    Problem,
    StateWriter,
)
from edge.neighbour.router_advertisement import Solicitations
from edge.neighbour.table import delivery_problem
from edge.page import due_at
from edge.run.networks import Arriving, HostNetworks
from tink.api.v1alpha2 import Raw, as_mapping
from tink.kube.objects import NamespacedName
from tink.limits.newest import Newest

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
MAX_UUIDS: Final = 20_000
MAX_RELAYS: Final = 1024
TROUBLE_SECONDS: Final = 2.0
"""How long it is believed what the kernel said of the way to a relay, for many machines are behind one."""
MAX_STRANGERS: Final = 1024
"""Machines that nobody has registered whose problems are shown on Hardware of others."""
STATES_PER_SWEEP: Final = 500
"""Machines whose state is looked at in one sweep; the others have their turn in the next."""
_EVENTS: Final = 150
"""So many events of a machine are read to tell an OSIE from an installed system."""
_TOLD_BY_STORY: Final = frozenset(
    {Milestone.OS_OFFERED, Milestone.OS_LEASED, Milestone.WORKFLOW_ENDED, Milestone.METADATA_READ}
)
"""Milestones that mean one thing or another, depending on what came before."""
_OFFERED: Final = frozenset({Milestone.OFFERED, Milestone.IPXE_OFFERED, Milestone.OS_OFFERED})
IPXE_SECONDS: Final = 30.0
"""So long after iPXE's last DHCP message it is taken to be configuring itself."""
_LOOKED_AT: Final = 20
_IPXE: Final = "iPXE"
"""The stage of iPXE in the details of DHCP."""
_DHCPV6: Final = frozenset({"advertise", "reply"})
_TOLD_LATE: Final = frozenset({Milestone.PROGRAM_BEGUN, Milestone.PROGRAM_SENT})
"""The end of a transfer may be known after what the machine did next."""
_SHARED: Final = ("", "")
_NO_UUIDS: Final = frozenset({UUID(int=0), UUID(int=(1 << 128) - 1), UUID("03000200-0400-0500-0006-000700080009")})
"""What boards say whose maker gave them none."""
_DIGITS: Final = "0123456789abcdef"


_RESTS: Final = 49.0
"""After so many times what a sweep took: a fiftieth of a processor for it."""
_LONGEST_REST_SECONDS: Final = 4.0


def rest_after(spent: float) -> float:
    """How long no machine is looked at after a sweep that took so long; both in seconds.

    A second, so that what does not come is said soon; more where tens of thousands of machines do something all the
    time, so that DHCP does not lose by it.
    """
    return min(max(SWEEP_SECONDS, spent * _RESTS), _LONGEST_REST_SECONDS)


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
        api_away: Callable[[], str] = str,
        states: StateWriter | None = None,
    ) -> None:
        """`relayed()`: the networks whose relays were heard; `ports`: of HTTP and gRPC here; `clock`: the journey's.

        `api_away()`: a clause that says since when the Kubernetes API has not answered; empty: it does. `states` writes
        where each machine is; None: nothing does.
        """
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
        self._shown_on: Newest[str, tuple[NamespacedName, ...]] = Newest(MAX_STRANGERS)
        """The Hardware on which the problem of an unregistered machine is shown, by its MAC."""
        self._relays: Newest[str, str] = Newest(MAX_RELAYS)
        """Relays, by the link that they speak for."""
        self._troubles: Newest[str, tuple[float, str]] = Newest(MAX_RELAYS)
        """Why answers don't reach a relay, and since when that is known."""
        self._api_away = api_away
        self._clock = clock
        self.solicitations = Solicitations(clock)
        """Which machine solicited an IPv6 router, and when."""
        self._not_started: Callable[[str], None] = lambda _mac: None
        self._arriving = Arriving(lambda: networks.states, *ports)
        inventory.on_change(self._machine_changed)
        self.expectations = Expectations(journey, self._facts, self._say, clock)
        self._states = states
        self._moved = self.expectations.changes()
        self._to_place: dict[str, None] = {}
        """Machines whose state may be another one than the last."""

    async def run(self) -> None:
        """Sweep for ever."""
        rest = SWEEP_SECONDS
        try:
            while True:
                await asyncio.sleep(rest)
                rest = rest_after(await self._sweep())
        finally:
            self.close()

    async def _sweep(self) -> float:
        """Gives what it took, in seconds of the processor."""
        spent, began = 0.0, time.thread_time()
        try:
            for _ in self.expectations.sweep():
                spent += time.thread_time() - began
                await asyncio.sleep(0)
                began = time.thread_time()
            self._look_for_knocks()
            for _ in self.place():
                spent += time.thread_time() - began
                await asyncio.sleep(0)
                began = time.thread_time()
        except Exception:
            # What explains boots must not end them.
            log.exception("the expectations of machines can't be looked at")
        return spent + time.thread_time() - began

    def shown(self, mac: str) -> dict[str, object]:
        """Return what a machine waits for, for programs; times are in seconds since the epoch, or None."""
        awaited, last = self.expectations.of(mac), self._journey.last_sign(mac)
        if awaited is None:
            return {}
        finding = awaited.finding
        due = due_at(last, awaited) if last is not None else 0.0
        return {
            "waiting_for": awaited.next or None if due else None,
            "since": awaited.since or None,
            "deadline": due or None,
            "finding": _plain(finding) if finding is not None else None,
        }

    def relay_heard(self, link: str, relay: str) -> None:
        """The relay at the address `relay` speaks for a link (both dotted) that is none of ours."""
        self._relays[link] = relay

    def is_ipxe_waiting(self, mac: str) -> bool:
        """Return whether this edge answered the machine's iPXE over DHCPv4 a moment ago, and has sent it nothing since.

        A ProxyDHCP offer is an answer, too, and so is one to a machine that may not netboot: neither is a milestone.
        """
        for _, entry in reversed(self._journey.after(mac, self._clock() - IPXE_SECONDS, _LOOKED_AT)):
            reached, detail = milestone(entry), dict(detail_of(entry))
            if step_of(entry) is Step.DHCP and detail.get("stage") == _IPXE:
                return detail.get("dhcp") not in _DHCPV6
            if reached is not None and reached not in _TOLD_LATE:
                return False
        return False

    def on_not_started(self, handler: Callable[[str], None]) -> None:
        """Call `handler(mac)` when a machine's firmware has fetched its boot program and did not run it."""
        self._not_started = handler

    def _machine_changed(self, mac: str) -> None:
        if self._journey.last_seen(mac) is not None and not self._inventory.claimants(mac):
            self.expectations.forget(mac)
        if mac in self._shown_on:
            self.expectations.look_at(mac)  # whose card it is, or that it is nobody's, may be another matter now

    def _say(self, mac: str, finding: Finding | None) -> None:
        problem = None
        if finding is not None:
            if finding.rule in NOT_RUN:
                self._not_started(mac)
            problem = Problem(finding.rule, finding.message, warning=finding.outcome is not Outcome.INFO)
        machine = self._inventory.by_mac(mac)
        if machine is not None and (problem is not None or self._journey.was_heard(mac)):
            self._problems.found(machine, problem)
        about = finding.about if finding is not None and machine is None else ()
        shown = tuple(NamespacedName(*name.split("/", 1)) for name in about)
        for key in shown:
            self._problems.found_of_another(key, mac, problem)
        for key in self._shown_on.pop(mac, ()):
            if key not in shown:
                self._problems.found_of_another(key, mac, None)
        if shown:
            self._shown_on[mac] = shown

    def place(self) -> Iterator[None]:
        """Hand on the states of machines that have moved. Whoever iterates gives others their turn in between."""
        self._to_place |= dict.fromkeys(self._moved.take())
        for number, mac in enumerate([*islice(self._to_place, STATES_PER_SWEEP)], start=1):
            del self._to_place[mac]
            machine = self._inventory.by_mac(mac)
            state = self._state(machine) if machine is not None and self._states is not None else None
            if machine is not None and state is not None and self._states is not None:
                self._states.seen(machine, state)
            if number % 20 == 0:
                yield

    def _state(self, machine: Machine) -> MachineState | None:
        """Return where a machine is; None if it was not heard, or another edge knows better."""
        awaited = self.expectations.of(machine.mac)
        at = awaited.at if awaited is not None else None
        if at is None or not self._journey.was_heard(machine.mac) or self._journey.is_elsewhere(machine.mac):
            return None
        if at in _TOLD_BY_STORY:
            return _state_of(read(machine.mac, self._journey.newest(machine.mac, _EVENTS, earlier=True)))
        if at <= Milestone.KERNEL_STARTED:
            return MachineState.NETBOOTING
        if at is Milestone.AGENT_CONNECTED and not self._workflows.pending(machine.namespace, machine.name):
            return MachineState.WAITING
        return MachineState.WORKING if at > Milestone.AGENT_CONNECTED else MachineState.IN_OSIE

    def hardware_gone(self, old: Raw) -> None:
        """Note on the journey of a machine that its Hardware was deleted while it has a Workflow."""
        namespace, name = NamespacedName.of(old)
        workflow = self._workflows.pending(namespace, name)
        macs = list(as_mapping(as_mapping(old.get("spec")).get("networkInterfaces")))
        if not workflow or not macs:
            return
        message = f"workflow {workflow}: its Hardware {namespace}/{name} was deleted: nothing is served to this "
        message += "machine, and its agent is not heard, until the Hardware is applied again"
        heard = max(macs, key=lambda mac: self._journey.last_seen(mac) or 0.0)
        self._journey.record(heard, Step.WORKFLOW, Outcome.WARNING, message, workflow=workflow)

    def _look_for_knocks(self) -> None:
        """Have packets counted in front of the firewall, while some machine is to ask something and does not."""
        if not self.expectations.knocks_count:
            self.close()
            return
        self._arriving.look()
        for ip in self._arriving.repeated():
            for machine in self._inventory.claimants_of_ip(ip):
                self.expectations.look_at(machine.mac)

    def close(self) -> None:
        """Look at packets no more."""
        self._arriving.close()

    # --- what is known --------------------------------------------------------------------------------------------

    def _facts(self, story: Story, now: float, limit: Callable[[Milestone], float]) -> Facts:
        mac = story.mac
        machine = self._inventory.by_mac(mac)
        claimants = () if machine is not None else self._inventory.claimants(mac)
        hardware = "/".join((machine.namespace, machine.name)) if machine is not None else ""
        uuid = _canonical(str(story.boot.detail_of("uuid")))
        unknown = machine is None and not claimants
        ip, since = _address(machine, story), story.boot.since
        relay = self._relay(machine) if story.boot.at in _OFFERED else ""
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
            unheard_workflow=self._unheard_workflow(machine) if story.boot.at is Milestone.AGENT_CONNECTED else None,
            no_workflow=self._workflows.why_none(machine.namespace, machine.name) if machine is not None else "",
            done=self._workflows.why_done(machine.namespace, machine.name) if machine is not None else "",
            arrived=self._arriving.asked(ip, since) if ip else None,
            answered=self._arriving.answered(ip, since) if ip else {},
            strayed=self._arriving.strayed(ip, since) if ip else {},
            relay=relay,
            relay_trouble=self._trouble(relay, now) if relay else "",
            behind_router=self._behind_router(ip),
            solicited=self.solicitations.last(mac),
            api_away=self._api_away(),
            http_port=self._http_port,
            grpc_port=self._grpc_port,
        )

    def _relay(self, machine: Machine | None) -> str:
        """The relay that was heard of the machine's network last; empty: none."""
        dhcp = machine.interface.dhcp if machine is not None else None
        network = _registered("", machine).network if machine is not None and dhcp is not None else None
        if network is None:
            return ""
        return next((self._relays[link] for link in reversed(self._relays) if _holds(network, link)), "")

    def _trouble(self, relay: str, now: float) -> str:
        known = self._troubles.get(relay)
        if known is None or not 0 <= now - known[0] < TROUBLE_SECONDS:
            interfaces = [state.interface for state in self._networks.states]
            known = self._troubles[relay] = (now, delivery_problem(relay, interfaces))
        return known[1]

    def _behind_router(self, ip: str | None) -> str:
        """The address by which a machine boots, if it is one of IPv6 and of none of this edge's networks."""
        networks = [network for state in self._networks.states for network in state.networks6]
        if not ip or ":" not in ip or not networks or any(IPv6Address(ip) in network for network in networks):
            return ""
        return ip

    def _network(self, machine: Machine | None) -> Network:
        states = self._networks.states
        served = tuple(dict.fromkeys(network for state in states for network in state.networks))
        interface = states[0].interface if len(states) == 1 else ""
        address = next(iter(states[0].addresses), "") if len(states) == 1 else ""
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
            and not self._journey.was_heard(machine.mac)
        ]
        return (f"{found[0].namespace}/{found[0].name}", found[0].mac) if len(found) == 1 else None

    def _unheard_workflow(self, machine: Machine | None) -> tuple[str, str] | None:
        """The one Workflow of this namespace whose Hardware was never heard; and that Hardware."""
        if machine is None:
            return None
        namespace = machine.namespace
        found = [
            (f"{namespace}/{workflow}", f"{namespace}/{hardware}")
            for workflow, hardware in self._workflows.few(namespace)
            if not any(self._journey.was_heard(one.mac) for one in self._inventory.by_name(hardware, namespace))
        ]
        return found[0] if len(found) == 1 else None

    def _learn(self, uuid: str, hardware: str, mac: str) -> None:
        known = self._uuids.get(uuid)
        self._uuids[uuid] = (hardware, mac) if known is None or known[0] == hardware else _SHARED
        stranger = self._strangers.pop(uuid, None)
        if stranger is not None:
            self.expectations.look_at(stranger)  # heard before this one: now it is known whose card that is

    def _same(self, uuid: str) -> tuple[str, str] | None:
        known = self._uuids.get(uuid, _SHARED)
        return known if known != _SHARED else None


def _state_of(story: Story) -> MachineState:
    """Return the state of a machine whose last milestone alone does not say it."""
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


def _plain(finding: Finding) -> dict[str, object]:
    """Return a finding for programs: the whole message, and its parts. `began` is in seconds since the epoch."""
    return {
        "reason": finding.rule,
        "message": finding.message,
        "began": finding.began or None,
        "facts": finding.facts,
        "causes": [str(cause) for cause in finding.causes],
        "checks": list(finding.checks),
    }


def _address(machine: Machine | None, story: Story) -> str | None:
    """The machine's address, of the family by which it boots."""
    if machine is None:
        return None
    over_ipv6 = story.boot.detail_of("dhcp") in ("advertise", "reply")
    return machine.ipv6 if over_ipv6 else machine.ip


def _registered(hardware: str, machine: Machine) -> Registered:
    dhcp = machine.interface.dhcp
    if dhcp is None:
        return Registered(hardware, machine.ip or "")
    return Registered(hardware, machine.ip or machine.ipv6 or "", dhcp.netmask or "", dhcp.gateway or "")


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
