"""What is known of a machine beside its journey, as plain values: what rules may look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from edge.journey.steps import Milestone


@dataclass(frozen=True, slots=True)
class Registered:
    """What the Hardware of a machine says. `hardware` is NAMESPACE/NAME; addresses are dotted, empty if not given."""

    hardware: str
    ip: str = ""
    netmask: str = ""
    gateway: str = ""

    @property
    def network(self) -> IPv4Network | None:
        """The network of its address; None if that can't be told."""
        try:
            return IPv4Network(f"{self.ip}/{self.netmask}", strict=False) if self.ip and self.netmask else None
        except ValueError:
            return None

    @property
    def unreachable_gateway(self) -> str:
        """Why the machine can't use its gateway; empty if it can, or has none."""
        network = self.network
        try:
            if network is None or not self.gateway or IPv4Address(self.gateway) in network:
                return ""
        except ValueError:
            return ""
        why = "netmask /32" if network.prefixlen == 32 else f"which is {network}"
        return f"its gateway {self.gateway} is not on its network, {why}"


@dataclass(frozen=True, slots=True)
class Network:
    """What is known of the networks.

    `served` are those that this edge is on, `relayed` those whose relays it has heard; `address` is the edge's, where
    this machine is served, and `interface` where that is.
    """

    served: tuple[IPv4Network, ...] = ()
    relayed: tuple[IPv4Network, ...] = ()
    address: str = ""
    interface: str = ""


def _usual(_: Milestone) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """All that rules are given beside the story.

    `now` is in seconds since the epoch. `limit(milestone)` is how long the step behind that milestone may take, in
    seconds. `claimants` are all Hardware with this MAC, if they are several. `near` is a Hardware and its MAC that
    differs from this one in one digit; `same_uuid` a Hardware and its MAC that said the same UUID. `workflow` is
    NAMESPACE/NAME of its Workflow that has not ended, if there is one, and `workflow_message` what it says of itself;
    `no_workflow` is why there is none;
    `done` the same of a machine whose last Workflow has succeeded, so that it is to boot its disk (empty: it is not);
    `unheard_workflow` is the one Workflow that waits for a Hardware that was never heard, and that Hardware.
    `arrived` is how often the machine knocked at which port of ours (`udp/69`, `tcp/7080`) while that was looked at;
    None: nobody has looked. `answered` is how often this host answered that, as far as it is TCP's; `strayed` is by
    which other interface of this host the same came in, by port, where none came by the one that machines are served
    on. `relay` is the relay (dotted) that the machine's network is heard through, and `relay_trouble` a clause that
    says why answers do not get there, as far as this host knows. `behind_router` is the machine's IPv6 address, where
    it boots by that and it is of no network that this edge is on; empty: no router is needed, or that is not known.
    `solicited` is when the machine solicited an IPv6 router last (seconds since the epoch); None: it did not, as far as
    this edge could hear.
    `api_away` is a clause that says since when the Kubernetes API has not answered; empty: it does.
    """

    now: float
    registered: Registered | None = None
    network: Network = field(default_factory=Network)
    limit: Callable[[Milestone], float] = _usual
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
    http_port: int = 7080
    grpc_port: int = 42113

    @property
    def is_relayed(self) -> bool:
        """Whether the machine is heard through a relay, as far as its address tells."""
        network = self.registered.network if self.registered is not None else None
        return network is not None and any(network.overlaps(one) for one in self.network.relayed)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its address is of no network that this edge knows of."""
        network = self.registered.network if self.registered is not None else None
        known = (*self.network.served, *self.network.relayed)
        return network is not None and bool(self.network.served) and not any(network.overlaps(one) for one in known)
