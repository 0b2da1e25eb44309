"""Unknown machines of a fleet: the list that expects them, what their agents report, and planted errors. Pure.

Each machine is ordered alike and has a line on a list of expected machines. Its agent reports its inventory at once,
and again with the switch port when LLDP frames have arrived. A planted error is a difference between the line and the
machine; the verdict on each affected machine must have its reason, and no other machine may have any.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from statistics import quantiles
from typing import Final

from edge.fleet.population import Identity
from tink.api.annotations import DISCOVERED_AS_ANNOTATION
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.model import VerdictReason, discovered_name, is_discovered

RANGE_SPARE: Final = 16
"""Addresses of the range beyond one for each machine."""
MAX_LISTED_AT_ONCE: Final = 2500
"""Maximum number of machines of one ConfigMap, which has at most 1 MiB."""
MAX_LLDP_SECONDS: Final = 30.0
"""The interval of LLDP frames (IEEE 802.1AB-2016 section 9.2.5.7, msgTxInterval)."""
_PORTS_PER_SWITCH: Final = 40
_FREE_PORT: Final = "Ethernet1/48"
_SECOND_PORT, _BMC_PORT = 1, 9
_COLUMNS: Final = "name,serial,mac,bmc_mac,ip,gateway,vendor,model,cores,memory,disks,firmware,links,access_vlan"
_GIB: Final = 1 << 30
_NOT_APPROVED: Final = frozenset({VerdictReason.CONFLICT, VerdictReason.DUPLICATE_SERIAL, VerdictReason.OTHER_BMC})


@dataclass(slots=True)
class Introduction:
    """The report of a machine about itself.

    attributes: its inventory (`status.inventory.inBand`), without LLDP. neighbour: the switch port of its first card.
    lldp_seconds: from the start of the agent to the first LLDP frame. clock_ahead: seconds by which its clock is ahead.
    reasons: of the planted errors.
    """

    attributes: Raw
    neighbour: Raw
    lldp_seconds: float
    clock_ahead: float = 0.0
    reasons: set[VerdictReason] = field(default_factory=set)

    @property
    def is_approved(self) -> bool:
        """Return False if the list must not approve the machine."""
        return not self.reasons & _NOT_APPROVED

    def with_neighbour(self) -> Raw:
        """Return the inventory with the switch port of the first card."""
        (adapter,) = self.attributes["networkInterfaces"]
        first, *others = adapter["ports"]
        return self.attributes | {"networkInterfaces": [{"ports": [first | {"lldp": self.neighbour}, *others]}]}


@dataclass(frozen=True, slots=True)
class DiscoveryPlan:
    """The unknown machines of a run. `planted`: the numbers of the machines with an error, by the kind of error."""

    machines: Sequence[Identity]
    network: IPv4Network
    gateway: str
    introductions: Sequence[Introduction]
    planted: Mapping[str, Sequence[int]]

    def unapproved(self) -> frozenset[str]:
        """Return the names of the machines that the list must not approve."""
        pairs = zip(self.machines, self.introductions, strict=True)
        return frozenset(machine.name for machine, introduction in pairs if not introduction.is_approved)

    def lists(self) -> Iterator[str]:
        """Yield the lists of expected machines (CSV), each small enough for one ConfigMap."""
        for first in range(0, len(self.machines), MAX_LISTED_AT_ONCE):
            numbers = range(first, min(first + MAX_LISTED_AT_ONCE, len(self.machines)))
            yield "\n".join([_COLUMNS, *(self._line(number) for number in numbers)]) + "\n"

    def _line(self, number: int) -> str:
        machine = self.machines[number]
        macs = f"{machine.mac_text} {_mac(machine, _SECOND_PORT)}"
        address = f"{machine.address}/{self.network.prefixlen}"
        return (
            f"{machine.name},{_serial(number)},{macs},{_mac(machine, _BMC_PORT)},{address},{self.gateway},"
            "Fleet Systems,F100,32,256Gi,2x480GB SSD|1x3.84TB NVMe,UEFI,"
            f"{machine.mac_text}@{_switch(number)}/{_port(number)},7"
        )


def rule(network: IPv4Network, machines: int, gateway: str, osie: str) -> str:
    """Return the rule of `--discover` for the last addresses of the machines' network. Raises ValueError without room.

    `osie` is NAMESPACE/NAME.
    """
    last = network.broadcast_address - 1
    first = IPv4Address(int(last) - machines - RANGE_SPARE)
    if first not in network:
        raise ValueError(f"{network} has no room for a range of {machines} discovered machines")
    return f"range={first}-{last}/{network.prefixlen},gateway={gateway},osie={osie},only=listed,name=fleet"


def plan(machines: Sequence[Identity], network: IPv4Network, gateway: str, errors: int, seed: int) -> DiscoveryPlan:
    """Return the plan of a run with `errors` planted errors, of all kinds in turn."""
    rng = random.Random(f"discovery:{seed}")
    introductions = [
        Introduction(_attributes(each, number), _neighbour(number), rng.uniform(1.0, MAX_LLDP_SECONDS))
        for number, each in enumerate(machines)
    ]
    # Some errors affect the next machine, too, which must be at the same switch and have no error of its own.
    places = [each for each in range(0, len(machines) - 1, 2) if each % _PORTS_PER_SWITCH < _PORTS_PER_SWITCH - 1]
    kinds = list(_ERRORS)
    planted: dict[str, list[int]] = {}
    for count, number in enumerate(sorted(rng.sample(places, min(errors, len(places))))):
        kind = kinds[count % len(kinds)]
        change, reason, affected = _ERRORS[kind]
        change(machines, introductions, number)
        for each in affected:
            introductions[number + each].reasons.add(reason)
        planted.setdefault(kind, []).append(number)
    return DiscoveryPlan(machines, network, gateway, introductions, planted)


# --- the machines -----------------------------------------------------------------------------------------------------


def _mac(machine: Identity, port: int) -> str:
    return (machine.mac[:2] + bytes((port,)) + machine.mac[3:]).hex(":")


def _serial(number: int) -> str:
    return f"FS{number:06}"


def _switch(number: int) -> str:
    return f"switch-{number // _PORTS_PER_SWITCH}"


def _port(number: int) -> str:
    return f"Ethernet1/{number % _PORTS_PER_SWITCH + 1}"


def _neighbour(number: int) -> Raw:
    return {"systemName": _switch(number), "portID": _port(number), "vlanID": 7}


def _attributes(machine: Identity, number: int) -> Raw:
    ports: list[Raw] = [
        {"name": "eno1", "mac": machine.mac_text, "linkStatus": "LinkUp", "speedMbps": 25_000},
        {"name": "eno2", "mac": _mac(machine, _SECOND_PORT), "linkStatus": "LinkDown"},
    ]
    ssd = {"sizeBytes": 480_103_981_056, "driveType": "SSD", "controllerType": "SATA"}
    nvme = {"sizeBytes": 3_840_755_982_336, "driveType": "SSD", "controllerType": "NVMe"}
    return {
        "architecture": "x86_64",
        "firmware": {"mode": "UEFI", "secureBoot": False},
        "product": {
            "vendor": "Fleet Systems",
            "model": "F100",
            "serialNumber": _serial(number),
            "uuid": f"f1ee7000-0000-4000-8000-{number:012x}",
        },
        "bmc": {"nic": {"ports": [{"mac": _mac(machine, _BMC_PORT)}]}},
        "cpu": {"totalCores": 32, "totalThreads": 64},
        "memory": {"totalBytes": 256 * _GIB},
        "blockDevices": [
            {"name": "/dev/sda", "serialNumber": f"A{number}", **ssd},
            {"name": "/dev/sdb", "serialNumber": f"B{number}", **ssd},
            {"name": "/dev/nvme0n1", "serialNumber": f"N{number}", **nvme},
        ],
        "networkInterfaces": [{"ports": ports}],
    }


# --- planted errors ---------------------------------------------------------------------------------------------------

_Machines = Sequence[Identity]
_Introductions = Sequence[Introduction]
_Change = Callable[[_Machines, _Introductions, int], None]


def _swap_cables(_machines: _Machines, found: _Introductions, number: int) -> None:
    one, two = found[number], found[number + 1]
    one.neighbour, two.neighbour = two.neighbour, one.neighbour


def _move(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].neighbour |= {"portID": _FREE_PORT}


def _lose_disk(_machines: _Machines, found: _Introductions, number: int) -> None:
    del found[number].attributes["blockDevices"][1]


def _other_disk(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].attributes["blockDevices"][1]["sizeBytes"] = 240_057_409_536


def _lose_memory(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].attributes["memory"]["totalBytes"] = 240 * _GIB


def _same_serial(_machines: _Machines, found: _Introductions, number: int) -> None:
    for each in found[number : number + 2]:
        each.attributes["product"]["serialNumber"] = f"FD{number:06}"


def _bios(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].attributes["firmware"] = {"mode": "BIOS"}


def _vlan(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].neighbour |= {"vlanID": 1}


def _other_bmc(machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].attributes["bmc"]["nic"]["ports"][0]["mac"] = _mac(machines[number], _BMC_PORT + 1)


def _clock(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].clock_ahead = -86_400.0


def _model(_machines: _Machines, found: _Introductions, number: int) -> None:
    found[number].attributes["product"]["model"] = "B200"


_ERRORS: Final[Mapping[str, tuple[_Change, VerdictReason, tuple[int, ...]]]] = {
    "swapped cables": (_swap_cables, VerdictReason.SWAPPED_CABLES, (0, 1)),
    "wrong port": (_move, VerdictReason.WRONG_PORT, (0,)),
    "disk missing": (_lose_disk, VerdictReason.DISK_MISSING, (0,)),
    "disk of another size": (_other_disk, VerdictReason.DISK_SIZE, (0,)),
    "memory short": (_lose_memory, VerdictReason.MEMORY_SHORT, (0,)),
    "duplicate serial number": (_same_serial, VerdictReason.DUPLICATE_SERIAL, (0, 1)),
    "firmware mode": (_bios, VerdictReason.WRONG_FIRMWARE_MODE, (0,)),
    "VLAN": (_vlan, VerdictReason.WRONG_VLAN, (0,)),
    "BMC of another machine": (_other_bmc, VerdictReason.OTHER_BMC, (0,)),
    "clock": (_clock, VerdictReason.CLOCK_WRONG, (0,)),
    "model": (_model, VerdictReason.WRONG_MODEL, (0,)),
}
"""Each kind of error with its reason, and the affected machines, counted from the one where it is planted."""


# --- times ------------------------------------------------------------------------------------------------------------


class ReadyTimes:
    """The times at which discovered machines had reported their first inventory, and at which they were approved."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds of any epoch."""
        self._clock = clock
        self._reported: dict[str, float] = {}
        self._ready: dict[str, float] = {}

    def observe(self, hardware: Raw) -> None:
        """Take note of a Hardware that was created or has changed."""
        name = str(hardware["metadata"]["name"])
        if not is_discovered(hardware):
            former = as_mapping(hardware["metadata"].get("annotations")).get(DISCOVERED_AS_ANNOTATION)
            if isinstance(former, str):
                self._ready.setdefault(former, self._clock())
        elif as_mapping(hardware.get("status")).get("inventory"):
            self._reported.setdefault(name, self._clock())

    def seconds(self) -> list[float]:
        """Return the seconds from the first inventory in the API to the approved Hardware, of each machine."""
        return [max(0.0, at - self._reported[name]) for name, at in self._ready.items() if name in self._reported]


# --- the result -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiscoveryResult:
    """The verdicts of a run against its plan. Seconds are from a machine's first report to its approved Hardware.

    found: planted errors whose machines all have the reason. missed, false: sentences about the others.
    """

    planted: int
    found: int
    missed: tuple[str, ...]
    false: tuple[str, ...]
    by_kind: Mapping[str, tuple[int, int]]
    ready_seconds: tuple[float, ...] = ()

    def summary(self) -> dict[str, str]:
        """Return the result in words, for the report."""
        kinds = ", ".join(f"{kind} {found}/{planted}" for kind, (planted, found) in self.by_kind.items())
        seconds = sorted(self.ready_seconds)
        ready = "none"
        if len(seconds) > 1:
            ready = (
                f"p50 {seconds[len(seconds) // 2]:.2f}, p99 {quantiles(seconds, n=100)[98]:.2f}, max {seconds[-1]:.2f}"
            )
        found = {
            "planted errors": f"{self.planted} planted, {self.found} found, {len(self.false)} false",
            "by kind": kinds or "none",
            "first report to approved Hardware (s)": ready,
        }
        if self.missed:
            found["missed"] = "; ".join(self.missed[:5])
        if self.false:
            found["false"] = "; ".join(self.false[:5])
        return found


def compare(
    planned: DiscoveryPlan, verdicts: Mapping[str, tuple[str, str]], ready_seconds: Iterable[float] = ()
) -> DiscoveryResult:
    """Compare the verdicts with the plan.

    `verdicts`: reason and message of AsExpected by the name of the Hardware. A message names the reasons of all
    differences.
    """
    missed, false = [], []
    found_at: dict[int, bool] = {}
    for number, introduction in enumerate(planned.introductions):
        machine = planned.machines[number]
        reason, message = verdicts.get(machine.name) or verdicts.get(discovered_name(machine.mac_text)) or ("", "")
        present = {each for each in VerdictReason if each.value == reason or each.value in message}
        present -= {VerdictReason.MATCHES, VerdictReason.NO_EXPECTATIONS}
        found_at[number] = introduction.reasons <= present
        if introduction.reasons and not found_at[number]:
            expected = ", ".join(sorted(introduction.reasons))
            missed.append(f"{machine.name}: expected {expected}, is {reason or 'without a verdict'}")
        if not introduction.reasons and (present or not reason):
            false.append(f"{machine.name}: {reason or 'no verdict'}: {message}")
    by_kind, total = {}, Counter[str]()
    for kind, numbers in planned.planted.items():
        affected = _ERRORS[kind][2]
        found = sum(all(found_at[number + each] for each in affected) for number in numbers)
        by_kind[kind] = (len(numbers), found)
        total.update(planted=len(numbers), found=found)
    return DiscoveryResult(total["planted"], total["found"], tuple(missed), tuple(false), by_kind, tuple(ready_seconds))
