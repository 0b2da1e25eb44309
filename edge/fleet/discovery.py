"""Unknown machines of a fleet: the list that expects them, what their agents report, and planted errors. Pure.

Each machine has a line on a list of expected machines, and is as that line orders it (`as_ordered`). Its agent reports
its inventory at once, and again with the switch port when LLDP frames have arrived. A planted error is a difference
between the line and the machine; the verdict on each affected machine must have its reason, and no other machine may
have any.
"""

from __future__ import annotations

import copy
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from statistics import quantiles
from typing import Final
from uuid import NAMESPACE_OID, uuid5

from edge.fleet.population import Identity
from tink.api.annotations import DISCOVERED_AS_ANNOTATION
from tink.api.v1alpha2 import FirmwareMode, Raw, as_mapping
from tink.discovery.expected import read_list
from tink.discovery.model import ExpectedDisk, ExpectedMachine, VerdictReason, discovered_name, is_discovered

RANGE_SPARE: Final = 16
"""Addresses of the range beyond one for each machine."""
MAX_LISTED_AT_ONCE: Final = 2500
"""Maximum number of machines of one ConfigMap, which has at most 1 MiB."""
MAX_LLDP_SECONDS: Final = 30.0
"""The interval of LLDP frames (IEEE 802.1AB-2016 section 9.2.5.7, msgTxInterval)."""
_PORTS_PER_SWITCH: Final = 40
_SECOND_PORT, _BMC_PORT = 1, 9
COLUMNS: Final = "name,serial,mac,bmc_mac,ip,gateway,vendor,model,cores,memory,disks,firmware,links,access_vlan"
"""The header of the lists of a run."""
_GIB: Final = 1 << 30
_NOT_APPROVED: Final = frozenset({VerdictReason.CONFLICT, VerdictReason.DUPLICATE_SERIAL, VerdictReason.OTHER_BMC})


# --- a machine --------------------------------------------------------------------------------------------------------


def as_ordered(line: ExpectedMachine) -> Raw:
    """Return the inventory (`status.inventory.inBand`) of a machine that is as its line orders it.

    Its first MAC address is that of the port with a link. Each link without a MAC address is that of the next port.
    A size of a disk is that of real disks with this nominal size.
    """
    macs = iter(line.macs)
    links = {link.mac or next(macs): link for link in line.links}
    ports: list[Raw] = []
    for number, mac in enumerate(dict.fromkeys([*line.macs, *links])):
        port: Raw = {"name": f"eno{number + 1}", "mac": mac, "linkStatus": "LinkDown"}
        if link := links.get(mac):
            neighbour: Raw = {"systemName": link.switch, "portID": link.port}
            if line.access_vlan:
                neighbour["vlanID"] = line.access_vlan
            port |= {"linkStatus": "LinkUp", "speedMbps": 25_000, "lldp": neighbour}
        ports.append(port)
    product: Raw = {
        "vendor": line.vendor,
        "model": line.model,
        "serialNumber": next(iter(line.serials), ""),
        "uuid": next(iter(line.uuids), "") or str(uuid5(NAMESPACE_OID, str(line.key))),
    }
    attributes: Raw = {
        "architecture": "x86_64",
        "firmware": {"mode": str(line.firmware or FirmwareMode.UEFI), "secureBoot": False},
        "product": {name: value for name, value in product.items() if value},
        "blockDevices": list(_disks(line)),
        "networkInterfaces": [{"ports": ports}],
    }
    if line.bmc_macs:
        attributes["bmc"] = {"nic": {"ports": [{"mac": line.bmc_macs[0]}]}}
    if line.cores:
        attributes["cpu"] = {"totalCores": line.cores, "totalThreads": 2 * line.cores}
    if line.memory_bytes:
        attributes["memory"] = {"totalBytes": line.memory_bytes}
    return attributes


def _disks(line: ExpectedMachine) -> Iterator[Raw]:
    serial = next(iter(line.serials), line.key.name)
    counts = Counter[str]()
    for disk in line.disks:
        for _ in range(disk.count):
            is_nvme = disk.type == "NVMe"
            number = counts["nvme" if is_nvme else "sd"]
            counts["nvme" if is_nvme else "sd"] += 1
            yield {
                "name": f"/dev/nvme{number}n1" if is_nvme else f"/dev/sd{chr(ord('a') + number)}",
                "serialNumber": f"{serial}-{counts.total()}",
                "sizeBytes": _sold_bytes(disk),
                "driveType": "HDD" if disk.type == "HDD" else "SSD",
                "controllerType": "NVMe" if is_nvme else "SATA",
            }


def _sold_bytes(disk: ExpectedDisk) -> int:
    """Return the size of a real disk with this nominal size (IDEMA LBA1-03: logical blocks of 512 bytes)."""
    gigabytes = disk.size_bytes // 10**9
    return (97_696_368 + 1_953_504 * (gigabytes - 50)) * 512 if gigabytes >= 50 else disk.size_bytes


@dataclass(slots=True)
class Introduction:
    """The report of a machine about itself.

    attributes: its inventory (`status.inventory.inBand`), complete. lldp_seconds: from the start of the agent to the
    first LLDP frame. reasons: of the planted errors.
    """

    attributes: Raw
    lldp_seconds: float
    reasons: set[VerdictReason] = field(default_factory=set)

    @property
    def is_approved(self) -> bool:
        """Return False if the list must not approve the machine."""
        return not self.reasons & _NOT_APPROVED

    @property
    def clock_ahead(self) -> float:
        """Return the seconds by which its clock is ahead."""
        return float(self.attributes.get("clockOffsetSeconds") or 0.0)

    def report(self, *, has_lldp: bool) -> Raw:
        """Return the inventory as the agent reports it. The server computes the offset of the clock."""
        found = copy.deepcopy(self.attributes)
        found.pop("clockOffsetSeconds", None)
        if not has_lldp:
            for port in _ports(found):
                port.pop("lldp", None)
        return found


# --- planted errors ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlantedError:
    """A kind of error in what a machine reports.

    change: plants the error, in the inventories of all machines, at the machine with this number.
    reason: the verdict on each affected machine has this reason.
    column: the column of the list that disagrees; empty if no column does.
    affected: the affected machines, counted from the one where the error is planted.
    """

    change: Callable[[Sequence[Raw], int], None]
    reason: VerdictReason
    column: str
    affected: tuple[int, ...] = (0,)


def _ports(attributes: Raw) -> list[Raw]:
    found: list[Raw] = attributes["networkInterfaces"][0]["ports"]
    return found


def _swap_cables(machines: Sequence[Raw], number: int) -> None:
    one, two = (_ports(machines[each])[0] for each in (number, number + 1))
    one["lldp"], two["lldp"] = two["lldp"], one["lldp"]


def _move(machines: Sequence[Raw], number: int) -> None:
    port = _ports(machines[number])[0]
    port["lldp"] = port["lldp"] | {"portID": "Ethernet1/48"}


def _lose_disk(machines: Sequence[Raw], number: int) -> None:
    del machines[number]["blockDevices"][1]


def _other_disk(machines: Sequence[Raw], number: int) -> None:
    machines[number]["blockDevices"][1]["sizeBytes"] = 240_057_409_536


def _lose_memory(machines: Sequence[Raw], number: int) -> None:
    machines[number]["memory"]["totalBytes"] -= 16 * _GIB


def _same_serial(machines: Sequence[Raw], number: int) -> None:
    """Give two machines a serial number that no line has, as copied firmware settings do."""
    for each in machines[number : number + 2]:
        each["product"]["serialNumber"] = f"COPY-{number:06}"


def _bios(machines: Sequence[Raw], number: int) -> None:
    machines[number]["firmware"] = {"mode": FirmwareMode.BIOS.value}


def _vlan(machines: Sequence[Raw], number: int) -> None:
    port = _ports(machines[number])[0]
    port["lldp"] = port["lldp"] | {"vlanID": 1}


def _other_bmc(machines: Sequence[Raw], number: int) -> None:
    port = machines[number]["bmc"]["nic"]["ports"][0]
    port["mac"] = f"{port['mac'][:6]}ee{port['mac'][8:]}"  # no machine's


def _clock(machines: Sequence[Raw], number: int) -> None:
    machines[number]["clockOffsetSeconds"] = -86_400


def _model(machines: Sequence[Raw], number: int) -> None:
    machines[number]["product"]["model"] = "B200"


ERRORS: Final[Mapping[str, PlantedError]] = {
    "swapped cables": PlantedError(_swap_cables, VerdictReason.SWAPPED_CABLES, "links", (0, 1)),
    "wrong port": PlantedError(_move, VerdictReason.WRONG_PORT, "links"),
    "disk missing": PlantedError(_lose_disk, VerdictReason.DISK_MISSING, "disks"),
    "disk of another size": PlantedError(_other_disk, VerdictReason.DISK_SIZE, "disks"),
    "memory short": PlantedError(_lose_memory, VerdictReason.MEMORY_SHORT, "memory"),
    "duplicate serial number": PlantedError(_same_serial, VerdictReason.DUPLICATE_SERIAL, "serial", (0, 1)),
    "firmware mode": PlantedError(_bios, VerdictReason.WRONG_FIRMWARE_MODE, "firmware"),
    "VLAN": PlantedError(_vlan, VerdictReason.WRONG_VLAN, "access_vlan"),
    "BMC of another machine": PlantedError(_other_bmc, VerdictReason.OTHER_BMC, "bmc_mac"),
    "clock": PlantedError(_clock, VerdictReason.CLOCK_WRONG, ""),
    "model": PlantedError(_model, VerdictReason.WRONG_MODEL, "model"),
}
"""The kinds of errors."""


# --- the plan of a run ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiscoveryPlan:
    """The unknown machines of a run, and their lines. `planted`: the numbers of the machines with an error, by kind."""

    machines: Sequence[Identity]
    lines: Sequence[str]
    introductions: Sequence[Introduction]
    planted: Mapping[str, Sequence[int]]

    def unapproved(self) -> frozenset[str]:
        """Return the names of the machines that the list must not approve."""
        pairs = zip(self.machines, self.introductions, strict=True)
        return frozenset(machine.name for machine, introduction in pairs if not introduction.is_approved)

    def lists(self) -> Iterator[str]:
        """Yield the lists of expected machines (CSV), each small enough for one ConfigMap."""
        for first in range(0, len(self.lines), MAX_LISTED_AT_ONCE):
            yield _list(self.lines[first : first + MAX_LISTED_AT_ONCE])


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
    lines = [_line(each, number, network, gateway) for number, each in enumerate(machines)]
    expected, _ = read_list(_list(lines), "default", "machines.csv")
    introductions = [Introduction(as_ordered(each), rng.uniform(1.0, MAX_LLDP_SECONDS)) for each in expected]
    attributes = [each.attributes for each in introductions]
    # Some errors affect the next machine, too, which must be at the same switch and have no error of its own.
    places = [each for each in range(0, len(machines) - 1, 2) if each % _PORTS_PER_SWITCH < _PORTS_PER_SWITCH - 1]
    kinds = list(ERRORS)
    planted: dict[str, list[int]] = {}
    for count, number in enumerate(sorted(rng.sample(places, min(errors, len(places))))):
        kind = kinds[count % len(kinds)]
        error = ERRORS[kind]
        error.change(attributes, number)
        for each in error.affected:
            introductions[number + each].reasons.add(error.reason)
        planted.setdefault(kind, []).append(number)
    return DiscoveryPlan(machines, lines, introductions, planted)


def _list(lines: Sequence[str]) -> str:
    return "\n".join([COLUMNS, *lines]) + "\n"


def _line(machine: Identity, number: int, network: IPv4Network, gateway: str) -> str:
    macs = f"{machine.mac_text} {_mac(machine, _SECOND_PORT)},{_mac(machine, _BMC_PORT)}"
    address = f"{machine.address}/{network.prefixlen}"
    link = f"switch-{number // _PORTS_PER_SWITCH}/Ethernet1/{number % _PORTS_PER_SWITCH + 1}"
    return (
        f"{machine.name},FS{number:06},{macs},{address},{gateway},"
        f"Fleet Systems,F100,32,256Gi,2x480GB SSD|1x3.84TB NVMe,UEFI,{machine.mac_text}@{link},7"
    )


def _mac(machine: Identity, port: int) -> str:
    return (machine.mac[:2] + bytes((port,)) + machine.mac[3:]).hex(":")


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
        affected = ERRORS[kind].affected
        found = sum(all(found_at[number + each] for each in affected) for number in numbers)
        by_kind[kind] = (len(numbers), found)
        total.update(planted=len(numbers), found=found)
    return DiscoveryResult(total["planted"], total["found"], tuple(missed), tuple(false), by_kind, tuple(ready_seconds))
