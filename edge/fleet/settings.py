"""The settings of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from edge.fleet.network import MachineLink
from edge.fleet.objects import Boots
from edge.fleet.population import MAX_MACHINES, Profile, capacity
from edge.fleet.results import Bar, BarError, Recorder, judged, numbers
from tink.errors import TinkedgeError

DEFAULT_NETWORK: Final = IPv4Network("10.64.0.0/14")
DIRECT_MACHINES: Final = 1000
"""Size of a Linux server's neighbour table by default (net.ipv4.neigh.default.gc_thresh3)."""


class HardwareSource(StrEnum):
    """The origin of the machines' Hardware objects."""

    GENERATE = "generate"
    CLUSTER = "cluster"


class FleetSettingsError(TinkedgeError):
    """Settings contradict each other."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The settings of a run. Times are seconds, sizes bytes. Raises FleetSettingsError.

    `target`: the edge's address; None starts a stack of the fleet's own. `relay`: the relay agent's address; None is
    the first of the network. `interface`: the link towards the target. With `uplink`, the machines get a namespace of
    their own, with a macvlan on that interface of the host and this address. `netns`: the name of the machines'
    namespace; empty is the current one. `limit`: time after which unfinished machines have failed. `stack_options`:
    options for the fleet's own stack. `bmc`: machines are off until BMC control powers them on. `unknown`: no Hardware
    describes the machines; they are discovered, and a list approves them. `planted`: the number of errors in them.
    """

    machines: int
    profile: Profile
    seed: int = 1
    target: IPv4Address | None = None
    allow: tuple[IPv4Network, ...] = ()
    link: MachineLink = MachineLink.RELAY
    network: IPv4Network = DEFAULT_NETWORK
    relay: IPv4Address | None = None
    interface: str = ""
    uplink: str = ""
    netns: str = ""
    kubeconfig: Path | None = None
    api_namespace: str = "default"
    hardware: HardwareSource = HardwareSource.GENERATE
    selector: str = ""
    boots: Boots = field(default_factory=Boots)
    by_reference: bool = False
    kernel_bytes: int = 10_000_000
    initrd_bytes: int = 40_000_000
    roles: bool = False
    bmc: bool = False
    unknown: bool = False
    planted: int = 0
    stack_options: tuple[str, ...] = ()
    bars: Sequence[Bar] = ()
    limit: float = 7200.0

    def __post_init__(self) -> None:
        if problem := next(self._problems(), ""):
            raise FleetSettingsError(problem)

    def _problems(self) -> Iterator[str]:
        if not 1 <= self.machines <= MAX_MACHINES:
            yield f"--machines must be from 1 to {MAX_MACHINES}"
        if self.hardware is HardwareSource.GENERATE and self.machines > capacity(self.network):
            yield f"{self.network} has room for {capacity(self.network)} machines: give a larger --network"
        if self.link is MachineLink.DIRECT and self.machines > DIRECT_MACHINES:
            yield f"--link direct is for {DIRECT_MACHINES} machines at most: more are behind a relay"
        if self.relay is not None and self.relay not in self.network:
            yield f"--relay-address {self.relay} is not in {self.network}, the machines' network"
        if self.bmc and self.hardware is HardwareSource.CLUSTER:
            yield "--bmc needs --hardware generate: existing Hardware has BMCs of its own"
        yield from self._problems_of_discovery()
        try:
            judged(self.bars, numbers(Recorder(1), 0.0))  # reject unknown names now, not at the end of the run
        except BarError as error:
            yield f"--bar {error}"
        yield from self._problems_of_own_stack() if self.target is None else self._problems_of_target()

    def _problems_of_discovery(self) -> Iterator[str]:
        if self.planted and not self.unknown:
            yield "--planted needs --unknown: the errors are in what unknown machines report"
        if self.unknown and (self.target is not None or self.bmc or self.link is MachineLink.DIRECT):
            yield "--unknown is for a stack of the fleet's own, with --link relay and without --bmc"
        if self.unknown and self.machines * 2 > capacity(self.network):
            yield f"{self.network} has no room for a range of {self.machines} machines: give a larger --network"
        if self.planted * 2 > self.machines:
            yield f"--planted must be at most half of --machines, which is {self.machines}"

    def _problems_of_own_stack(self) -> Iterator[str]:
        if self.hardware is HardwareSource.CLUSTER:
            yield "--hardware cluster needs --target: a stack of the fleet's own has no Hardware yet"
        if self.interface or self.netns or self.kubeconfig is not None or self.boots != Boots():
            yield "--interface, --netns, --kubeconfig and the options for what machines boot need --target"

    def _problems_of_target(self) -> Iterator[str]:
        boots = self.boots
        if self.kubeconfig is None:
            yield "--target needs --kubeconfig, of the API for the machines' objects"
        if self.roles or self.stack_options:
            yield "--roles and --stack-option are for a stack of the fleet's own: without --target"
        if self.hardware is HardwareSource.GENERATE and not boots.osie and not (boots.kernel_url and boots.initrd_url):
            yield "generated machines need something to boot: --osie NAME, or --kernel-url and --initrd-url"
        if self.link is MachineLink.DIRECT and not self.interface:
            yield "--link direct needs --interface, the link of the target"
        if self.uplink and (not self.interface or self.netns):
            yield "--uplink-address needs --interface, and excludes --netns"
        if self.uplink and self.link is MachineLink.DIRECT:
            yield "--link direct needs an interface of its own (--netns): a macvlan takes one MAC only"

    @property
    def relay_address(self) -> str:
        """Return the relay agent's address."""
        return str(self.relay or self.network[1])
