"""The input of the rules beside the journey (`Facts`), and their output (`Diagnosis`: facts, likely causes, checks)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from edge.journey.events import Milestone, Outcome, Step, one_line


@dataclass(frozen=True, slots=True)
class Registered:
    """The Hardware of a machine. `hardware` is NAMESPACE/NAME; addresses are dotted, or empty if not given.

    is_discovered: the machine was discovered, and is not approved.
    is_introduced: False if it was discovered and has reported no inventory yet.
    difference: reason and message of the condition AsExpected if it is False, or empty.
    """

    hardware: str
    ip: str = ""
    netmask: str = ""
    gateway: str = ""
    is_discovered: bool = False
    is_introduced: bool = True
    difference: str = ""

    @property
    def network(self) -> IPv4Network | None:
        """The network of its address, or None if the address or the netmask is missing or invalid."""
        try:
            return IPv4Network(f"{self.ip}/{self.netmask}", strict=False) if self.ip and self.netmask else None
        except ValueError:
            return None

    @property
    def unreachable_gateway(self) -> str:
        """A clause that says why the machine can't use its gateway; empty if it can, or has none."""
        network = self.network
        try:
            if network is None or not self.gateway or IPv4Address(self.gateway) in network:
                return ""
        except ValueError:
            return ""
        why = "netmask /32" if network.prefixlen == 32 else f"which is {network}"
        return f"its gateway {self.gateway} is not on its network, {why}"


@dataclass(frozen=True, slots=True)
class KnownNetworks:
    """The networks that this edge knows of.

    `served` are the edge's own networks, `relayed` those whose relays it has heard. `address` and `interface` of the
    edge are where it serves this machine.
    """

    served: tuple[IPv4Network, ...] = ()
    relayed: tuple[IPv4Network, ...] = ()
    address: str = ""
    interface: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of the rules beside the story.

    now: seconds since the epoch.
    limit: `limit(milestone)` returns how many seconds the step after that milestone may take.
    claimants: all Hardware with this MAC, if there are several.
    near: a Hardware and its MAC, which differs from this one in one digit.
    same_uuid: a Hardware and its MAC, whose machine reported the same UUID.
    workflow: NAMESPACE/NAME of its Workflow that has not ended, or empty.
    workflow_message: the message in that Workflow's status.
    no_workflow: a clause that says why there is no Workflow.
    done: a clause that says that its last Workflow succeeded, so that it boots its disk; empty otherwise.
    unheard_workflow: the only Workflow that waits for a Hardware that was never heard, and that Hardware.
    arrived: how many packets of the machine came to a port of this host (`udp/69`, `tcp/7080`) in front of the
        firewall during the capture; None without a capture.
    answered: how many of them this host answered (TCP only).
    strayed: by port, the other interface of this host that its packets came in by, if none came by the right one.
    relay: the DHCP relay (dotted) that the machine's network is heard through.
    relay_trouble: a clause that says why answers do not reach the relay, as far as this host knows.
    behind_router: the machine's IPv6 address if it boots by that from a network that this edge is not on; empty if no
        router is needed, or that is not known.
    solicited: when the machine last solicited an IPv6 router (seconds since the epoch); None if this edge heard none.
    api_away: a clause that says since when the Kubernetes API has not answered; empty if it answers.
    is_off: its BMC has reported that the machine is off, and the machine has sent nothing since.
    """

    now: float
    registered: Registered | None = None
    network: KnownNetworks = KnownNetworks()
    limit: Callable[[Milestone], float] = lambda _: 0.0
    claimants: tuple[str, ...] = ()
    near: tuple[str, str] | None = None
    same_uuid: tuple[str, str] | None = None
    workflow: str = ""
    workflow_message: str = ""
    no_workflow: str = "there is no Workflow for it"
    done: str = ""
    unheard_workflow: tuple[str, str] | None = None
    arrived: Mapping[str, int] | None = None
    answered: Mapping[str, int] = field(default_factory=dict)
    strayed: Mapping[str, str] = field(default_factory=dict)
    relay: str = ""
    relay_trouble: str = ""
    behind_router: str = ""
    solicited: float | None = None
    api_away: str = ""
    is_off: bool = False
    http_port: int = 7080
    grpc_port: int = 42113

    @property
    def is_relayed(self) -> bool:
        """True if the machine's address is in a network behind a relay."""
        network = self.registered.network if self.registered is not None else None
        return network is not None and any(network.overlaps(one) for one in self.network.relayed)

    @property
    def is_elsewhere(self) -> bool:
        """True if the machine's address is in no network that this edge knows of."""
        network = self.registered.network if self.registered is not None else None
        known = (*self.network.served, *self.network.relayed)
        return network is not None and bool(self.network.served) and not any(network.overlaps(one) for one in known)


class LikelyCause(NamedTuple):
    """A possible cause with its evidence, which may be empty. A cause without evidence is also written as a string."""

    text: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.text} ({self.evidence})" if self.evidence else self.text


Causes = tuple[str | LikelyCause, ...]
"""Likeliest first."""
Why = tuple[Causes, tuple[str, ...]]
"""Causes and checks."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a machine does not boot, in words for an operator.

    rule: a word in CamelCase for programs: the reason of the Hardware's condition and of Events.
    step: the part of the journey that the diagnosis is about.
    facts: the observations, which are true whatever the cause.
    checks: what to look at or to do.
    outcome: INFO if the state may be intended.
    reported: the journey already has an event with this message.
    about: the Hardware (NAMESPACE/NAME) that show the diagnosis, if the machine has no Hardware of its own.
    began: since when the problem exists (seconds since the epoch), or 0.
    """

    rule: str
    step: Step
    facts: str
    causes: Causes = ()
    checks: tuple[str, ...] = ()
    outcome: Outcome = Outcome.WARNING
    reported: bool = False
    about: tuple[str, ...] = ()
    began: float = field(default=0.0, compare=False)

    @property
    def why(self) -> tuple[str, ...]:
        """The causes without their evidence: a finding with other causes is new."""
        return tuple(cause if isinstance(cause, str) else cause.text for cause in self.causes)

    @property
    def message(self) -> str:
        """The whole diagnosis in one printable line, whatever characters the names in it have."""
        line = self.facts
        if self.causes:
            # The facts of a reported failure are a sentence of their own.
            line = f"{line.rstrip('.')}: likely " if self.reported else f"{line}: "
            line += ", or ".join(map(str, self.causes))
        if self.checks:
            line += ("" if line.endswith(".") else ".") + " " + "; ".join(self.checks)
        return one_line(line)
