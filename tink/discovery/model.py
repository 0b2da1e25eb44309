"""The types of discovery: rules of admission, expected machines, the facts of a machine, and verdicts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Final
from uuid import UUID

from tink.api.annotations import AUTO_DISCOVERED_LABEL, DISCOVERY_RULE_ANNOTATION
from tink.api.v1alpha2 import FirmwareMode, Raw, as_mapping
from tink.errors import TinkedgeError
from tink.kube.objects import NamespacedName

NAME_PREFIX: Final = "discovery-"
"""The beginning of the name of a discovered Hardware; the MAC address with dashes follows. Tinkerbell's own."""

DISCOVERY_FINALIZER: Final = "tinkerbell.org/discovery"
"""A discovered Hardware has it until its machine is approved under another name, or deleted by an operator."""


AS_EXPECTED: Final = "AsExpected"
"""The condition of a Hardware with the verdict on its machine."""
LISTED_ONLY: Final = "only=listed"
APPROVES_ALL: Final = "approve=all"
"""The part of a rule, and of the annotation discovery-rule, that admits only machines on a list."""
LISTS: Final = "lists="
"""The beginning of the part of a rule, and of the annotation discovery-rule, that names a namespace of lists."""
ALL_NAMESPACES: Final = "*"
"""The namespace in `lists=` for the lists of all namespaces."""


def serial_key(serial: str) -> str:
    """Return a serial number in the form in which two are compared."""
    return serial.strip().casefold()


def same_uuid(uuid: str) -> tuple[str, ...]:
    """Return the two spellings of a UUID (lower case, dashes): firmware before SMBIOS 2.6 swaps the first fields."""
    try:
        value = UUID(uuid)
    except ValueError:
        return ()
    return str(value), str(UUID(bytes=value.bytes_le))


def identifies_machine(uuid: str) -> bool:
    """Return False for a UUID that whole series of boards have: zeros, ones, and the defaults of firmware."""
    spellings = same_uuid(uuid)
    return bool(spellings) and not _PLACEHOLDER_UUIDS & set(spellings)


_PLACEHOLDER_UUIDS: Final = frozenset({
    "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009", "12345678-1234-5678-90ab-cddeefaabbcc",
})  # fmt: skip
"""The third is AMI's default, which many boards were sold with."""


def discovered_name(mac: str) -> str:
    """Return the name of the Hardware of a discovered machine with this MAC address (lower case, colons)."""
    return NAME_PREFIX + mac.replace(":", "-")


def list_namespaces(hardware: Raw) -> frozenset[str]:
    """Return the namespaces whose lists of expected machines count for a Hardware. It may contain ALL_NAMESPACES.

    They are those of the rule that admitted its machine, until the machine is approved; else its own namespace.
    """
    metadata = as_mapping(hardware.get("metadata"))
    rule = (
        str(as_mapping(metadata.get("annotations")).get(DISCOVERY_RULE_ANNOTATION, ""))
        if is_discovered(hardware)
        else ""
    )
    named = frozenset(part.removeprefix(LISTS) for part in rule.split(",") if part.startswith(LISTS))
    return named or frozenset((str(metadata.get("namespace") or ""),))


def counts(namespace: str, namespaces: Collection[str]) -> bool:
    """Return True if a namespace is one of `namespaces`, which may contain ALL_NAMESPACES."""
    return namespace in namespaces or ALL_NAMESPACES in namespaces


def is_discovered(hardware: Raw) -> bool:
    """Return True if a Hardware is that of a discovered machine which is not approved."""
    return as_mapping(as_mapping(hardware.get("metadata")).get("labels")).get(AUTO_DISCOVERED_LABEL) == "true"


def condition_of(hardware: Raw) -> Raw:
    """Return the condition AsExpected of a Hardware; an empty one if it has none."""
    found = as_mapping(hardware.get("status")).get("conditions")
    every = map(as_mapping, found if isinstance(found, list) else ())
    return next((each for each in every if each.get("type") == AS_EXPECTED), {})


ADDRESS_CONFLICT: Final = "AddressConflict"
"""The condition of a Hardware whose machine has declined its address. Edges write it."""
DECLINED: Final = "DeclinedByClient"
"""The reason of ADDRESS_CONFLICT while it is True."""


def has_declined(hardware: Raw) -> bool:
    """Return True if the machine of a Hardware has declined an address of it, and another host was found there."""
    found = as_mapping(hardware.get("status")).get("conditions")
    declines = [each for each in map(as_mapping, found if isinstance(found, list) else ()) if _is_decline(each)]
    interfaces = as_mapping(as_mapping(hardware.get("spec")).get("networkInterfaces")).values()
    # The message has a part for each address, which an operator may have changed meanwhile.
    parts = [part for each in declines for part in str(each.get("message")).split("; ")]
    addresses = [as_mapping(as_mapping(each).get("dhcp")).get("ip") for each in interfaces] if parts else ()
    return any(part.startswith(f"{address} is used by another host") for part in parts for address in addresses)


def _is_decline(condition: Raw) -> bool:
    return [condition.get(name) for name in ("type", "status", "reason")] == [ADDRESS_CONFLICT, "True", DECLINED]


# --- admission --------------------------------------------------------------------------------------------------------


class RuleError(TinkedgeError, ValueError):
    """A rule of admission can't be used. The message names the part of the rule and the remedy."""


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """One rule of `--discover`. A machine is admitted by the first rule that it matches.

    name: names the rule in reports and annotations.
    network: the network of the machines. A DHCP packet matches if it comes from a link of this network: through a
        relay in it, or at an interface of the edge with an address in it.
    first, last: the range of addresses, both included, that is set aside for discovered machines.
    gateway: the router of the network; None if machines need none.
    nameservers: served by DHCP.
    osie: namespace and name of the OSIE that admitted machines boot. Their Hardware is created in this namespace.
    mac_prefixes: in lower case with colons; empty admits every MAC address.
    relays: the addresses of relays (giaddr); empty admits every relay of the network, and packets without a relay.
    listed_only: admit only machines on a list of expected machines.
    approves_all: approve each admitted machine, under the name of its discovery, once it has reported an inventory.
    lists: the namespaces whose lists count for these machines, or ALL_NAMESPACES; empty: the namespace of `osie`.
    """

    name: str
    network: IPv4Network
    first: IPv4Address
    last: IPv4Address
    osie: NamespacedName
    gateway: IPv4Address | None = None
    nameservers: tuple[str, ...] = ()
    mac_prefixes: tuple[str, ...] = ()
    relays: tuple[IPv4Address, ...] = ()
    listed_only: bool = False
    approves_all: bool = False
    lists: tuple[str, ...] = ()

    @property
    def list_namespaces(self) -> frozenset[str]:
        """The namespaces whose lists count for machines of this rule. It may contain ALL_NAMESPACES."""
        return frozenset(self.lists or (self.osie.namespace,))

    @property
    def text(self) -> str:
        """The value of the annotation discovery-rule: the name, and the parts that the controller acts on."""
        flags = ((LISTED_ONLY, self.listed_only), (APPROVES_ALL, self.approves_all))
        return ",".join((self.name, *(word for word, holds in flags if holds), *(LISTS + each for each in self.lists)))


# --- expected machines ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExpectedDisk:
    """Disks that a machine must have: `count` of at least `size_bytes`, of a type (HDD, SSD, NVMe; empty: any)."""

    count: int
    size_bytes: int
    type: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedLink:
    """A cable: the port of a switch, and the MAC address at its other end (empty: any port of the machine)."""

    switch: str
    port: str
    mac: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedMachine:
    """One line of a list of expected machines.

    source: where the line is, for messages, such as `ConfigMap default/rack7, rack7.csv line 12`.
    serials, uuids, macs, bmc_macs: any of them identifies the machine. MAC addresses in lower case with colons, UUIDs
        in lower case, serial numbers as written.
    boot_mac: the interface with the address; empty: the one that the machine booted from.
    address: the reserved address with its mask; None: the Hardware gets no address.
    bmc_address, bmc_secret: host of the BMC, and the name of the Secret with its credentials; may be empty.
    listed_since: Unix seconds at which the list was created; 0 if unknown.
    The other fields are what the machine must have; an empty one is not checked.
    """

    key: NamespacedName
    source: str
    serials: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    macs: tuple[str, ...] = ()
    bmc_macs: tuple[str, ...] = ()
    boot_mac: str = ""
    address: IPv4Interface | None = None
    gateway: IPv4Address | None = None
    nameservers: tuple[str, ...] = ()
    hostname: str = ""
    vlan: str = ""
    osie: str = ""
    kernel_params: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    bmc_address: str = ""
    bmc_secret: str = ""
    vendor: str = ""
    model: str = ""
    cores: int = 0
    memory_bytes: int = 0
    disks: tuple[ExpectedDisk, ...] = ()
    firmware: FirmwareMode | None = None
    links: tuple[ExpectedLink, ...] = ()
    access_vlan: int = 0
    listed_since: float = 0.0

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Serial numbers, UUIDs and MAC addresses of BMC and ports, in this order."""
        return (*self.serials, *self.uuids, *self.bmc_macs, *self.macs)


@dataclass(frozen=True, slots=True)
class ListProblem:
    """A line or a column of a list that can't be used. `text` names the column, the value and the remedy."""

    source: str
    text: str


# --- facts and verdicts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts of one Hardware, from its spec and its status.

    serials, uuids, macs, bmc_macs: without placeholders, from the in-band inventory; if there is none, from the
        out-of-band inventory. MAC addresses also from spec.networkInterfaces. Lower case, but for serials.
    product_serial: the serial number of the machine itself, and of no part; empty if unknown.
    boot_macs: the keys of spec.networkInterfaces.
    last_boot_mac: the interface that the machine booted from last, as an edge has seen it; empty if unknown.
    storage_devices: spec.storageDevices.
    in_band, out_of_band: the parts of status.inventory; empty mappings if absent.
    is_discovered: it has the label `tinkerbell.org/auto-discovered: "true"`.
    lists: the namespaces whose lists of expected machines count for it (`list_namespaces`).
    """

    key: NamespacedName
    serials: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    macs: frozenset[str] = frozenset()
    bmc_macs: frozenset[str] = frozenset()
    product_serial: str = ""
    boot_macs: tuple[str, ...] = ()
    last_boot_mac: str = ""
    storage_devices: tuple[str, ...] = ()
    in_band: Raw = field(default_factory=dict)
    out_of_band: Raw = field(default_factory=dict)
    is_discovered: bool = False
    is_terminating: bool = False
    lists: frozenset[str] = frozenset()


class VerdictReason(StrEnum):
    """The reasons of the condition AsExpected, the most serious first."""

    CONFLICT = "Conflict"  # a fact belongs to another Hardware, or to two lines of the lists
    DUPLICATE_SERIAL = "DuplicateSerial"
    OTHER_BMC = "OtherBmc"  # the BMC is that of another machine
    NOT_EXPECTED = "NotExpected"  # discovered, lists exist, and none names it
    SWAPPED_CABLES = "SwappedCables"
    WRONG_PORT = "WrongPort"  # another slot of the rack, or another port
    WRONG_VLAN = "WrongVlan"
    WRONG_MODEL = "WrongModel"
    INTERFACE_MISSING = "InterfaceMissing"  # the Hardware or its line names an interface that the machine does not have
    WRONG_FIRMWARE_MODE = "WrongFirmwareMode"
    DISK_MISSING = "DiskMissing"
    DISK_SIZE = "DiskSize"
    MEMORY_SHORT = "MemoryShort"
    PROCESSOR_SHORT = "ProcessorShort"
    CLOCK_WRONG = "ClockWrong"
    MATCHES = "Matches"  # True: every expectation is met
    NO_EXPECTATIONS = "NoExpectations"  # True: no list names the machine; its own facts do not contradict each other


@dataclass(frozen=True, slots=True)
class MachineVerdict:
    """The condition AsExpected of a machine.

    message: one sentence for the first reason, which names the object, what was found, what was expected, and the
        remedy; then the number of other differences.
    findings: every reason with its sentence, the most serious first.
    """

    reason: VerdictReason
    message: str
    findings: tuple[tuple[VerdictReason, str], ...] = ()

    @property
    def is_expected(self) -> bool:
        """Return True if the status of the condition is True."""
        return self.reason in (VerdictReason.MATCHES, VerdictReason.NO_EXPECTATIONS)
