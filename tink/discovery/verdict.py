"""Compares a machine with its line of the lists, its BMC, its cables and all other machines. Pure.

An unknown fact is never a difference: without LLDP there is no verdict on cables, without a BMC none on the BMC. Each
sentence has what was found, what was expected and where that is written, and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tink.api.bounds import MAX_INVENTORY_ITEMS
from tink.api.inventory import clean_text, disk_size, mac_address, serial_number
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.expected import ExpectedMachines, Match
from tink.discovery.identity import (
    BMC_MAC,
    SERIAL,
    Fact,
    FactsIndex,
    known_macs,
    link_is_at,
    neighbour_ports,
    ports_of,
)
from tink.discovery.model import (
    ALL_NAMESPACES,
    ExpectedDisk,
    ExpectedLink,
    ExpectedMachine,
    MachineFacts,
    MachineVerdict,
    VerdictReason,
    counts,
    identifies_machine,
    same_uuid,
    serial_key,
)
from tink.kube.objects import NamespacedName
from tink.printable import printable

MAX_CLOCK_OFFSET_SECONDS: Final = 300.0
"""Certificates and tokens fail with a larger difference (RFC 5280 section 4.1.2.5; Kerberos' usual limit)."""
MAX_SENTENCE_CHARACTERS: Final = 1024
_MIN_SIZE: Final = 0.96
_MAX_SIZE: Final = 1.1
"""Disks of one nominal size differ by a few percent. Hypervisors write GB for GiB, and TB for TiB (10 % more)."""
_MEMORY_SHARE: Final = 0.97
"""Part of the memory that a machine without SMBIOS reports: firmware and kernel keep the rest."""
_SHOWN: Final = 6
_DISK_PATH: Final = re.compile(r"/dev/(sd[a-z]{1,4}|vd[a-z]{1,4}|xvd[a-z]{1,4}|nvme\d{1,4}n\d{1,4}|mmcblk\d{1,4})")

_VOLUME: Final = re.compile(
    r"\b(perc|mr\d{4}|avago|logical volume|smart array|\w*raid|(dell)?boss|virtual drive)",
    re.IGNORECASE,
)
"""The vendor or model of a volume of a RAID controller, as SCSI INQUIRY has it."""
_ABBREVIATED: Final = re.compile("hewlettpackard(enterprise)?|hpe")

_Finding = tuple[VerdictReason, str]
_SharedFacts = Mapping[Fact, tuple[NamespacedName, ...]]
"""Facts of a machine with the other Hardware that have them: `FactsIndex.sharing`."""


def verdict(facts: MachineFacts, match: Match, others: FactsIndex, expected: ExpectedMachines) -> MachineVerdict | None:
    """Return the verdict on a machine; None if it has no inventory, so that nothing is known.

    `match` is the result of `expected.match(facts)`.
    """
    if not facts.in_band and not facts.out_of_band:
        return None
    shared = others.sharing(facts)
    found, line = _identity(facts, match, others, expected, shared)
    found += _bmc(facts, line, others, shared)
    if line is not None:
        found += [*_cables(facts, line, expected), *_parts(facts, line)]
    found += [*_spec(facts, line), *_clock(facts)]
    found = [(reason, printable(text[:MAX_SENTENCE_CHARACTERS], " ")) for reason, text in found]
    order = list(VerdictReason)
    findings = tuple(sorted(found, key=lambda each: order.index(each[0])))
    if not findings:
        if line is None:
            return MachineVerdict(VerdictReason.NO_EXPECTATIONS, "no list of expected machines names this machine")
        return MachineVerdict(VerdictReason.MATCHES, f"the machine is as {line.source} describes it")
    reason, message = findings[0]
    if len(findings) > 1:
        further = ", ".join(dict.fromkeys(each.value for each, _ in findings[1:]))
        message += f"; and {len(findings) - 1} more: {further}"
    return MachineVerdict(reason, message, findings)


# --- which machine is it ----------------------------------------------------------------------------------------------


def _identity(
    facts: MachineFacts, match: Match, others: FactsIndex, expected: ExpectedMachines, shared: _SharedFacts
) -> tuple[list[_Finding], ExpectedMachine | None]:
    """Return what contradicts the identity of a machine, and the line that describes it (None: no line does)."""
    found = list(_shared(facts, shared))
    others_serials = {value for kind, value in shared if kind == SERIAL}
    own = frozenset(serial for serial in facts.serials if serial_key(serial) not in others_serials)
    if own != facts.serials:
        # Nothing tells which machine has the wrong serial number: the other facts have to name the line.
        rest = expected.match(replace(facts, serials=own))
        if rest.machine is not None and not rest.conflict:
            match = rest
        elif not match.conflict:
            return found, None
    if match.conflict:
        return [*found, (VerdictReason.CONFLICT, match.conflict)], None
    line = match.machine
    if line is None:
        named = expected.named(facts.key)
        if named is None:
            if facts.is_discovered and expected.has_lines(facts.lists):
                found.append((VerdictReason.NOT_EXPECTED, _not_expected(facts, expected)))
            return found, None
        if difference := _difference(facts, named):
            text = f"{named.source} has this name, but {difference}: correct the line, or the Hardware"
            return [*found, (VerdictReason.CONFLICT, text)], None
        return found, named
    if line.key != facts.key:
        found += _other_name(facts, match, line, others)
    return found, line


def _shared(facts: MachineFacts, shared: _SharedFacts) -> Iterator[_Finding]:
    """Yield the facts that other Hardware have, too. `_bmc` yields the MAC addresses of BMCs."""
    for (kind, value), keys in shared.items():
        names = ", ".join(map(str, keys[:_SHOWN]))
        if kind == SERIAL:
            text = f"serial number {facts.product_serial} is also that of Hardware {names}"
            remedy = "delete the Hardware whose machine does not exist, or correct the serial number in the firmware"
            yield VerdictReason.DUPLICATE_SERIAL, f"{text}: {remedy}"
        elif kind != BMC_MAC:
            remedy = "delete the Hardware whose machine does not exist"
            yield VerdictReason.CONFLICT, f"{kind} {value} is also that of Hardware {names}: {remedy}"


def _difference(facts: MachineFacts, line: ExpectedMachine) -> str:
    """Return how a machine differs from the line with its name, of which no fact fits; empty if facts are unknown."""
    macs = known_macs(facts.in_band or facts.out_of_band)
    for kind, own, listed in (
        ("serial number", facts.serials, line.serials),
        ("UUID", facts.uuids, line.uuids),
        ("MAC address", macs, line.macs),
    ):
        if own and listed:
            return f"the machine has the {kind} {_listed(sorted(own))}, and the line {_listed(listed)}"
    return ""


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values[:_SHOWN])


def _other_name(facts: MachineFacts, match: Match, line: ExpectedMachine, others: FactsIndex) -> Iterator[_Finding]:
    other = others.facts(line.key)
    if other is not None and not other.is_terminating:
        if _is_shared(facts, other):
            return  # one fact of both Hardware is reported already
        text = f"{match.by} is that of {line.source}, but Hardware {line.key} exists already"
        yield VerdictReason.CONFLICT, f"{text}: delete that one, or correct the line"
    elif not facts.is_discovered:
        text = f"{match.by} is that of {line.key} ({line.source}), not of this Hardware"
        yield VerdictReason.CONFLICT, f"{text}: the machine is in another place, or has another name"


def _is_shared(facts: MachineFacts, other: MachineFacts) -> bool:
    same_serial = facts.product_serial and serial_key(facts.product_serial) == serial_key(other.product_serial)
    return bool(same_serial or facts.uuids & other.uuids or facts.macs & other.macs)


def _not_expected(facts: MachineFacts, expected: ExpectedMachines) -> str:
    own = _listed(sorted([*facts.serials, *facts.macs]))
    where = "" if ALL_NAMESPACES in facts.lists else f" in namespace {_listed(sorted(facts.lists))}"
    text = (
        f"no list of expected machines{where} has one of its identifiers ({own}): add a line, or delete this Hardware"
    )
    count = expected.problems_of(facts.lists)
    return f"{text} (the lists have {count} {'problem' if count == 1 else 'problems'})" if count else text


def _bmc(
    facts: MachineFacts, line: ExpectedMachine | None, others: FactsIndex, shared: _SharedFacts
) -> Iterator[_Finding]:
    """Yield what shows that the BMC belongs to another machine."""
    if text := _other_machine(facts.in_band, facts.out_of_band):
        remedy = "bmcRef names the BMC of another machine, or the cables of BMCs are swapped"
        yield VerdictReason.OTHER_BMC, f"{text}: {remedy}"
    for (kind, value), keys in shared.items():
        # The nodes of one chassis share its manager. Only agents know the BMC of their own machine.
        having = [key for key in keys if facts.in_band or ((other := others.facts(key)) and other.in_band)]
        if kind == BMC_MAC and having:
            names = _listed([str(key) for key in having])
            text = f"the BMC with the MAC address {value} is also that of Hardware {names}"
            yield VerdictReason.OTHER_BMC, f"{text}: correct spec.bmcRef, or the cables of the BMCs"
    if line is not None and line.bmc_macs and facts.bmc_macs and not facts.bmc_macs & set(line.bmc_macs):
        own, wanted = _listed(sorted(facts.bmc_macs)), _listed(line.bmc_macs)
        text = f"the BMC of the machine has the MAC address {own}, expected {wanted}"
        yield (
            VerdictReason.OTHER_BMC,
            f"{text} ({line.source}): correct the line, or find the machine that it describes",
        )


def _other_machine(in_band: Raw, out_of_band: Raw) -> str:
    """Return how the machine that the BMC describes differs from the one that the agent describes; empty if not.

    A BMC may report the serial number of the board or of the chassis as that of the System. So any serial number may
    fit, and the same UUID is the same machine.
    """
    inside, outside = as_mapping(in_band.get("product")), as_mapping(out_of_band.get("product"))
    own, other = (clean_text(part.get("uuid")).lower() for part in (inside, outside))
    is_same_uuid = identifies_machine(own) and own in same_uuid(other)
    own_serials, other_serials = (_serials(part, "product", "baseboard") for part in (in_band, out_of_band))
    if own_serials and other_serials:
        # The nodes of one chassis share its serial number: two equal ones of chassis prove nothing.
        own_chassis, other_chassis = (_serials(part, "chassis") for part in (in_band, out_of_band))
        is_same = own_serials.keys() & (other_serials.keys() | other_chassis.keys())
        if is_same_uuid or is_same or other_serials.keys() & own_chassis.keys():
            return ""
        found, wanted = (_listed(list(serials.values())) for serials in (other_serials, own_serials))
        return f"the BMC is that of a machine with serial number {found}, this one has {wanted}"
    if identifies_machine(own) and identifies_machine(other) and not is_same_uuid:
        return f"the BMC is that of a machine with UUID {other}, this one has {own}"
    return ""


def _serials(attributes: Raw, *parts: str) -> dict[str, str]:
    """Return the serial numbers of parts of a machine, by their keys."""
    found = (serial_number(as_mapping(attributes.get(part)).get("serialNumber")) for part in parts)
    return {serial_key(serial): serial for serial in found if serial}


# --- cables -----------------------------------------------------------------------------------------------------------


def _cables(facts: MachineFacts, line: ExpectedMachine, expected: ExpectedMachines) -> Iterator[_Finding]:
    yield from _vlans(facts, line)
    ports = [port for port in ports_of(facts.in_band) if neighbour_ports(port)]
    if not line.links or not ports:
        return
    met = [link for link in line.links if any(_fits(link, port) for port in ports)]
    is_swapped = False
    for port in ports:
        mac = mac_address(port.get("mac"))
        own = [link for link in line.links if link.mac and link.mac == mac]
        if any(_fits(link, port) is not False for link in own) or any(_fits(link, port) for link in line.links):
            continue
        foreign = _foreign(port, line, expected, facts.lists)
        if not own and (not foreign or len(met) == len(line.links)):
            continue
        due = _listed([f"{link.switch}/{link.port}" for link in own or line.links if link not in met])
        text = f"port {mac} is at {_place(port)}, expected at {due} ({line.source})"
        if foreign:
            is_swapped = True
            machine, _ = foreign[0]
            whose = "another port of this machine" if machine.key == line.key else f"{machine.key} ({machine.source})"
            yield VerdictReason.SWAPPED_CABLES, f"{text}; that is the place of {whose}: swap the cables"
        else:
            yield VerdictReason.WRONG_PORT, f"{text}: move the cable or the machine, or correct the line"
    if not is_swapped:
        yield from _missing_links(facts, line, ports)


def _fits(link: ExpectedLink, port: Raw) -> bool | None:
    """Return True if a port is at the other end of an expected cable, False if it is elsewhere, None if unknown."""
    mac = mac_address(port.get("mac"))
    if link.mac and mac and link.mac != mac:
        return False
    place = link_is_at(link, port)
    return None if place and link.mac and not mac else place


def _foreign(
    port: Raw, line: ExpectedMachine, expected: ExpectedMachines, namespaces: Collection[str]
) -> list[tuple[ExpectedMachine, ExpectedLink]]:
    """Return the lines of namespaces that expect another machine, or another port of this one, where a port is."""
    mac = mac_address(port.get("mac"))
    found = []
    for place in neighbour_ports(port):
        for machine, link in expected.at_port(*place):
            is_other = machine.key != line.key or bool(link.mac and mac and link.mac != mac)
            if is_other and counts(machine.key.namespace, namespaces) and link_is_at(link, port):
                found.append((machine, link))
    return found


def _missing_links(facts: MachineFacts, line: ExpectedMachine, ports: list[Raw]) -> Iterator[_Finding]:
    """Yield the switch ports that a line names without a MAC address, and that no port of the machine is at."""
    # A port without a known neighbour may be at any switch port, unless its link is down.
    if any(not neighbour_ports(port) and port.get("linkStatus") != "LinkDown" for port in ports_of(facts.in_band)):
        return
    for link in line.links:
        if not link.mac and all(_fits(link, port) is False for port in ports):
            found = _listed([_place(port) for port in ports])
            text = f"no port is at {link.switch}/{link.port} as {line.source} has it, but at {found}"
            yield VerdictReason.WRONG_PORT, f"{text}: move the cable or the machine, or correct the line"


def _place(port: Raw) -> str:
    """Return the switch port of a network port for people."""
    lldp = as_mapping(port.get("lldp"))
    switch = clean_text(lldp.get("systemName")) or clean_text(lldp.get("chassisID"))
    return f"{switch}/{clean_text(lldp.get('portID')) or clean_text(lldp.get('portDescription'))}"


def _vlans(facts: MachineFacts, line: ExpectedMachine) -> Iterator[_Finding]:
    """Yield the port that the machine boots from, if it is in another VLAN. Other ports may be in any VLAN."""
    macs = {line.boot_mac or facts.last_boot_mac} - {""} or set(facts.boot_macs)
    found = []
    for port in ports_of(facts.in_band):
        vlan = as_mapping(port.get("lldp")).get("vlanID")
        if mac_address(port.get("mac")) in macs and _number(vlan):
            found.append((port, vlan))
    if not line.access_vlan or not found or any(vlan == line.access_vlan for _, vlan in found):
        return
    port, vlan = found[0]
    text = f"port {mac_address(port.get('mac'))} is in VLAN {vlan} at {_place(port)}, expected VLAN {line.access_vlan}"
    yield VerdictReason.WRONG_VLAN, f"{text} ({line.source}): set the port's untagged VLAN"


# --- parts ------------------------------------------------------------------------------------------------------------


def _parts(facts: MachineFacts, line: ExpectedMachine) -> Iterator[_Finding]:
    source = facts.in_band or facts.out_of_band
    product, where = as_mapping(source.get("product")), f"({line.source})"
    for name, wanted, is_same in (("vendor", line.vendor, _is_vendor), ("model", line.model, _is_model)):
        own = clean_text(product.get(name))
        if wanted and own and not is_same(wanted, own):
            text = f"the {name} of the machine is {own}, expected {wanted} {where}"
            yield VerdictReason.WRONG_MODEL, f"{text}: correct the line, or send the machine back"
    mode = clean_text(as_mapping(facts.in_band.get("firmware")).get("mode"))
    if line.firmware is not None and mode and mode != line.firmware.value:
        text = f"the firmware has booted in mode {mode}, expected {line.firmware.value} {where}"
        yield VerdictReason.WRONG_FIRMWARE_MODE, f"{text}: change the boot mode in the firmware's setup"
    cores = _number(as_mapping(source.get("cpu")).get("totalCores"))
    if cores and cores < line.cores:
        text = f"the machine has {cores:.0f} cores, expected {line.cores} {where}"
        yield VerdictReason.PROCESSOR_SHORT, f"{text}: look for a processor or for cores that the firmware disables"
    memory = _number(as_mapping(source.get("memory")).get("totalBytes"))
    if memory and memory < _MEMORY_SHARE * line.memory_bytes:
        have, wanted = f"{memory / 2**30:.4g} GiB", f"{line.memory_bytes / 2**30:.4g} GiB"
        yield (
            VerdictReason.MEMORY_SHORT,
            f"the machine has {have} of memory, expected {wanted} {where}: look for a lost module",
        )
    if line.disks:
        yield from _disks(facts, line)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def _is_vendor(wanted: str, found: str) -> bool:
    """Return True if two names mean the same manufacturer: Supermicro and Super Micro Computer, Inc., HP and HPE."""
    one, other = (_ABBREVIATED.sub("hp", "".join(_words(text))) for text in (wanted, found))
    if one.startswith(other) or other.startswith(one):
        return True
    # Dell EMC and Dell Inc.
    words = _words(wanted), _words(found)
    return bool(words[0] and words[1]) and words[0][0] == words[1][0]


def _is_model(wanted: str, found: str) -> bool:
    """Return True if the words of one name are in the other one: R650 and PowerEdge R650, but not R650 and R650xs."""
    return _has_words(_words(wanted), _words(found)) or _has_words(_words(found), _words(wanted))


def _has_words(few: list[str], many: list[str]) -> bool:
    """Return True if `many` has all words of `few`, or words that give them when they are joined (DL360 Gen10)."""
    runs = {"".join(many[begin:end]) for begin in range(len(many)) for end in range(begin + 1, len(many) + 1)}
    return bool(few) and ("".join(few) in runs or set(few) <= set(many))


def _number(value: object) -> float:
    """Return a positive number of at most 63 bits; 0 for any other value."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 << 63 else 0


# --- disks ------------------------------------------------------------------------------------------------------------


def _disks(facts: MachineFacts, line: ExpectedMachine) -> Iterator[_Finding]:
    """Yield the expected disks that are missing, or have another size."""
    wanted = [replace(each, count=1) for each in line.disks for _ in range(each.count)]
    seen, drives = (_devices(part) for part in (facts.in_band, facts.out_of_band))
    if seen is None:
        seen, drives = drives, None
    if seen is None or not (lacking := _lacking(wanted, seen)[0]):
        return
    volumes = [
        each for each in seen if _VOLUME.search(f"{clean_text(each.get('vendor'))} {clean_text(each.get('model'))}")
    ]
    rest = _lacking(wanted, seen)[1]
    if volumes:
        # The operating system sees the volume of a RAID controller; the BMC sees the drives behind it.
        if not drives:
            return
        known = {serial_key(serial) for each in drives if (serial := serial_number(each.get("serialNumber")))}
        plain = [each for each in seen if each not in volumes]
        plain = [each for each in plain if serial_key(serial_number(each.get("serialNumber"))) not in known]
        lacking, rest = _lacking(wanted, [*drives, *plain])
    missing: list[ExpectedDisk] = []
    for disk in lacking:
        other = next((each for each in rest if _has_type(each, disk.type)), None)
        if other is None:
            missing.append(disk)
            continue
        rest = [each for each in rest if each is not other]
        found = f"disk {clean_text(other.get('name'), other.get('serialNumber')) or 'without a name'}"
        text = f"{found} has {disk_size(_size(other))}, expected {_described(disk)} ({line.source})"
        yield VerdictReason.DISK_SIZE, f"{text}: replace it, or correct the line"
    for disk in dict.fromkeys(missing):
        count, of = missing.count(disk), wanted.count(disk)
        which = "the disk" if of == 1 else f"{count} of {of} disks"
        text = f"{which} of {_described(disk)} {'is' if count == 1 else 'are'} missing ({line.source})"
        yield VerdictReason.DISK_MISSING, f"{text}: look for a drive that is not plugged in or has failed"


def _devices(attributes: Raw) -> list[Raw] | None:
    """Return the drives of an inventory with a known size; None if its drives, or one of their sizes, are unknown."""
    devices = attributes.get("blockDevices")
    if not isinstance(devices, list):
        return None
    found = [each for each in devices[:MAX_INVENTORY_ITEMS] if isinstance(each, dict) and _size(each)]
    return found if len(found) == len(devices) else None


def _lacking(wanted: list[ExpectedDisk], devices: list[Raw]) -> tuple[list[ExpectedDisk], list[Raw]]:
    """Return the expected disks that no device is left for, and the devices that are left.

    This is a maximum matching (augmenting paths), so that no choice takes the device of another expected disk.
    """
    places = {
        disk: [at for at, each in enumerate(devices) if _has_type(each, disk.type) and _has_size(each, disk.size_bytes)]
        for disk in wanted
    }
    taken: dict[int, ExpectedDisk] = {}

    def has_place(disk: ExpectedDisk, tried: set[int]) -> bool:
        free = next((at for at in places[disk] if at not in taken), None)
        if free is not None:
            taken[free] = disk
            return True
        for at in places[disk]:
            if at in tried:
                continue
            tried.add(at)
            if taken[at] != disk and has_place(taken[at], tried):
                taken[at] = disk
                return True
        return False

    lacking: list[ExpectedDisk] = []
    for disk in wanted:
        # An equal disk has found no place before.
        if disk in lacking or not has_place(disk, set()):
            lacking.append(disk)
    return lacking, [each for at, each in enumerate(devices) if at not in taken]


def _described(disk: ExpectedDisk) -> str:
    return f"{disk_size(disk.size_bytes)}{f' ({disk.type})' if disk.type else ''}"


def _size(device: Raw) -> float:
    return _number(device.get("sizeBytes"))


def _has_type(device: Raw, kind: str) -> bool:
    """Return True if a drive is of a type, or of an unknown one. An NVMe drive is an SSD, too."""
    drive, protocol = clean_text(device.get("driveType")), clean_text(device.get("controllerType")).casefold()
    if kind == "NVMe":
        return protocol in ("", "nvme") and drive != "HDD"
    if protocol == "nvme" and kind == "HDD":
        return False
    return not kind or not drive or drive == kind


def _has_size(device: Raw, size: int) -> bool:
    return _MIN_SIZE * size <= _size(device) <= _MAX_SIZE * size


def _spec(facts: MachineFacts, line: ExpectedMachine | None) -> Iterator[_Finding]:
    """Yield the interfaces and disks that the Hardware names and the machine does not have."""
    macs = known_macs(facts.in_band)
    wanted = {line.boot_mac: line.source} if line is not None and line.boot_mac else {}
    if not facts.is_discovered:
        wanted |= dict.fromkeys(facts.boot_macs, "spec.networkInterfaces")
    # The MAC address of an InfiniBand port is derived from its GUID; inventories have Ethernet ports.
    is_infiniband = any(
        clean_text(as_mapping(each).get("classCode")).startswith("0x0207")
        for each in _list(facts.in_band, "pciDevices")
    )
    lacking = [mac for mac in wanted if mac not in macs and mac != facts.last_boot_mac]
    if macs and lacking and not is_infiniband:
        text = (
            f"{wanted[lacking[0]]} names the interface {_listed(lacking)}, but the machine has {_listed(sorted(macs))}"
        )
        yield VerdictReason.INTERFACE_MISSING, f"{text}: correct the MAC address, or look for the network card"
    names = {clean_text(as_mapping(each).get("name")) for each in _list(facts.in_band, "blockDevices")}
    devices = [each for each in facts.storage_devices if _DISK_PATH.fullmatch(each) and each not in names]
    if devices and names and "" not in names:
        text = f"spec.storageDevices names {_listed(devices)}, but the machine has {_listed(sorted(names))}"
        yield VerdictReason.DISK_MISSING, f"{text}: correct the Hardware, or look for the drive"


def _list(attributes: Raw, name: str) -> list[Any]:
    found = attributes.get(name)
    return found[:MAX_INVENTORY_ITEMS] if isinstance(found, list) else []


def _clock(facts: MachineFacts) -> Iterator[_Finding]:
    offset = facts.in_band.get("clockOffsetSeconds")
    if isinstance(offset, int | float) and not isinstance(offset, bool) and abs(offset) > MAX_CLOCK_OFFSET_SECONDS:
        direction = "ahead of" if offset > 0 else "behind"
        text = f"the clock of the machine was {abs(offset):.0f} s {direction} the server's"
        yield VerdictReason.CLOCK_WRONG, f"{text}: set it (timeservers in the Hardware), or replace its battery"


# --- labels -----------------------------------------------------------------------------------------------------------

FACT_LABELS: Final = tuple(f"tinkerbell.org/{name}" for name in ("vendor", "model", "serial", "switch", "port"))
"""The names of the labels with facts of machines."""


def fact_labels(facts: MachineFacts) -> dict[str, str]:
    """Return labels to select discovered machines by: vendor, model, serial, switch and port. Unknown ones are absent.

    Characters that a label value can't have become `-` (Kubernetes, "Labels and Selectors").
    """
    source = facts.in_band or facts.out_of_band
    product = as_mapping(source.get("product"))
    values: dict[str, object] = {name: product.get(name) for name in ("vendor", "model")}
    values["serial"] = facts.product_serial
    port = _boot_port(facts)
    lldp = as_mapping(port.get("lldp"))
    values["switch"] = lldp.get("systemName") or lldp.get("chassisID")
    values["port"] = lldp.get("portID") or lldp.get("portDescription")
    return {f"tinkerbell.org/{name}": text for name, value in values.items() if (text := _label_value(value))}


def _boot_port(facts: MachineFacts) -> Raw:
    """Return the port that the machine booted from, if its neighbour is known; else the first one with a neighbour."""
    ports = [port for port in ports_of(facts.in_band) if neighbour_ports(port)]
    is_boot: Callable[[Raw], bool] = lambda port: port.get("mac") in facts.boot_macs  # noqa: E731
    return next(filter(is_boot, ports), ports[0] if ports else {})


def _label_value(value: object) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", clean_text(value))[:63].strip("-_.")
