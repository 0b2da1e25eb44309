"""Compares a machine with its line of the lists, its BMC, its cables and all other machines. Pure.

An unknown fact is never a difference: without LLDP there is no verdict on cables, without a BMC none on the BMC. Each
sentence has what was found, what was expected and where that is written, and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tink.api.inventory import clean_text, serial_number
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.expected import ExpectedMachines, Match
from tink.discovery.identity import BMC_MAC, SERIAL, FactsIndex, neighbour_ports, ports_of
from tink.discovery.model import (
    ExpectedDisk,
    ExpectedMachine,
    MachineFacts,
    MachineVerdict,
    VerdictReason,
    same_uuid,
    serial_key,
)

MAX_CLOCK_OFFSET_SECONDS: Final = 300.0
"""Certificates and tokens fail with a larger difference (RFC 5280 section 4.1.2.5; Kerberos' usual limit)."""
_SIZE_TOLERANCE: Final = 0.05
"""Disks of one nominal size differ by a few percent."""
_MEMORY_SHARE: Final = 0.97
"""Part of the memory that a machine without SMBIOS reports: firmware and kernel keep the rest."""
_SHOWN: Final = 6
_DISK_PATH: Final = re.compile(r"/dev/(sd[a-z]+|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+)")

_Finding = tuple[VerdictReason, str]


def verdict(facts: MachineFacts, match: Match, others: FactsIndex, expected: ExpectedMachines) -> MachineVerdict | None:
    """Return the verdict on a machine; None if it has no inventory, so that nothing is known.

    `match` is the result of `expected.match(facts)`.
    """
    if not facts.in_band and not facts.out_of_band:
        return None
    line = match.machine or expected.named(facts.key)
    found = [*_conflicts(facts, match, others, expected), *_bmc(facts, line, others)]
    if line is None:
        if facts.is_discovered and len(expected) and not match.conflict:
            found.append((VerdictReason.NOT_EXPECTED, _not_expected(facts)))
    elif not match.conflict:
        found += [*_cables(facts, line, expected), *_parts(facts, line)]
    found += [*_storage_devices(facts), *_clock(facts)]
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


def _conflicts(facts: MachineFacts, match: Match, others: FactsIndex, expected: ExpectedMachines) -> Iterator[_Finding]:
    if match.conflict:
        yield VerdictReason.CONFLICT, match.conflict
    for (kind, value), keys in others.sharing(facts).items():
        names = ", ".join(map(str, keys[:_SHOWN]))
        if kind == BMC_MAC:
            continue  # `_bmc`
        if kind == SERIAL:
            text = f"serial number {facts.product_serial} is also that of Hardware {names}"
            yield VerdictReason.DUPLICATE_SERIAL, f"{text}: delete the one that is not there, or correct the firmware"
        else:
            remedy = "delete the Hardware that is not there"
            yield VerdictReason.CONFLICT, f"{kind} {value} is also that of Hardware {names}: {remedy}"
    named = expected.named(facts.key)
    if match.machine is None:
        if named is not None and not match.conflict and _is_known(facts):
            own = ", ".join(sorted([*facts.serials, *facts.macs])[:_SHOWN])
            text = f"{named.source} has this name, but the machine has none of its identifiers (it has {own})"
            yield VerdictReason.CONFLICT, f"{text}: correct the line, or the Hardware"
        return
    if match.machine.key == facts.key or match.conflict:
        return
    other = others.facts(match.machine.key)
    if other is not None and not other.is_terminating:
        text = f"{match.by} is that of {match.machine.source}, but Hardware {match.machine.key} exists already"
        yield VerdictReason.CONFLICT, f"{text}: delete that one, or correct the line"
    elif not facts.is_discovered:
        text = f"{match.by} is that of {match.machine.key} ({match.machine.source}), not of this Hardware"
        yield VerdictReason.CONFLICT, f"{text}: the machine is in another place, or has another name"


def _is_known(facts: MachineFacts) -> bool:
    """Return True if the machine itself has reported an identifier, not only its Hardware."""
    return bool(facts.serials or facts.uuids or facts.macs - set(facts.boot_macs))


def _not_expected(facts: MachineFacts) -> str:
    own = ", ".join(sorted([*facts.serials, *facts.macs])[:_SHOWN])
    return f"no list of expected machines has one of its identifiers ({own}): add a line, or delete this Hardware"


def _bmc(facts: MachineFacts, line: ExpectedMachine | None, others: FactsIndex) -> Iterator[_Finding]:
    """Yield what shows that the BMC belongs to another machine."""
    text = _other_machine(facts.in_band, facts.out_of_band)
    if text:
        yield (
            VerdictReason.OTHER_BMC,
            f"{text}: bmcRef names the BMC of another machine, or the cables of BMCs are swapped",
        )
    for (kind, value), keys in others.sharing(facts).items():
        if kind == BMC_MAC:
            names = ", ".join(map(str, keys[:_SHOWN]))
            yield VerdictReason.OTHER_BMC, f"the BMC with the MAC address {value} is also that of Hardware {names}"
    if line is not None and line.bmc_macs and facts.bmc_macs and not facts.bmc_macs & set(line.bmc_macs):
        found, wanted = ", ".join(sorted(facts.bmc_macs)), ", ".join(line.bmc_macs)
        yield VerdictReason.OTHER_BMC, f"its BMC has the MAC address {found}, expected {wanted} ({line.source})"


def _other_machine(in_band: Raw, out_of_band: Raw) -> str:
    """Return how the machine that the BMC describes differs from the one that the agent describes; empty if not."""
    inside, outside = as_mapping(in_band.get("product")), as_mapping(out_of_band.get("product"))
    own, other = serial_number(inside.get("serialNumber")), serial_number(outside.get("serialNumber"))
    if own and other:
        if serial_key(own) != serial_key(other):
            return f"the BMC is that of a machine with serial number {other}, this one has {own}"
        return ""
    own, other = (clean_text(part.get("uuid")).lower() for part in (inside, outside))
    if own and other and own not in same_uuid(other):
        return f"the BMC is that of a machine with UUID {other}, this one has {own}"
    return ""


# --- cables -----------------------------------------------------------------------------------------------------------


def _cables(facts: MachineFacts, line: ExpectedMachine, expected: ExpectedMachines) -> Iterator[_Finding]:
    ports = [port for port in ports_of(facts.in_band) if neighbour_ports(port)]
    wanted = {(link.switch.casefold(), link.port.casefold()): link for link in line.links}
    at = {place for port in ports for place in neighbour_ports(port)}
    for port in ports:
        places, mac = neighbour_ports(port), str(port.get("mac") or "")
        own = [link for link in line.links if link.mac == mac]
        is_right = any(wanted[place].mac in ("", mac) for place in places if place in wanted)
        if is_right:
            continue
        where = _place(port)
        foreign = [(machine, link) for place in places for machine, link in expected.at_port(*place) if link.mac != mac]
        if own:
            due = " or ".join(f"{link.switch}/{link.port}" for link in own)
            text = f"port {mac} is at {where}, expected at {due} ({line.source})"
        elif foreign and line.links and not _is_satisfied(line, at):
            due = ", ".join(f"{link.switch}/{link.port}" for link in line.links[:_SHOWN])
            text = f"port {mac} is at {where}, expected at {due} ({line.source})"
        else:
            continue
        if foreign:
            machine, _ = foreign[0]
            whose = "another port of this machine" if machine.key == line.key else f"{machine.key} ({machine.source})"
            yield VerdictReason.SWAPPED_CABLES, f"{text}; {where} is the place of {whose}: swap the cables"
        else:
            yield VerdictReason.WRONG_PORT, f"{text}: move the cable or the machine, or correct the line"
    yield from _missing_links(facts, line, expected, ports, at)
    yield from _vlans(facts, line)


def _is_satisfied(line: ExpectedMachine, at: set[tuple[str, str]]) -> bool:
    """Return True if the machine is at each switch port that its line names without a MAC address."""
    return all((link.switch.casefold(), link.port.casefold()) in at for link in line.links if not link.mac)


def _missing_links(
    facts: MachineFacts,
    line: ExpectedMachine,
    expected: ExpectedMachines,
    ports: list[Raw],
    at: set[tuple[str, str]],
) -> Iterator[_Finding]:
    """Yield the switch port of a line without MAC addresses that no port of the machine is at."""
    all_ports = list(ports_of(facts.in_band))
    is_complete = bool(ports) and all(neighbour_ports(each) for each in all_ports if each.get("linkStatus") == "LinkUp")
    foreign = any(expected.at_port(*place) and place not in _places(line) for place in at)
    if not is_complete or foreign:
        return  # a neighbour may still be unknown, or the cable is reported as swapped
    for link in line.links:
        if not link.mac and (link.switch.casefold(), link.port.casefold()) not in at:
            found = ", ".join(_place(port) for port in ports[:_SHOWN])
            text = f"no port is at {link.switch}/{link.port} as {line.source} has it, but at {found}"
            yield VerdictReason.WRONG_PORT, f"{text}: move the cable or the machine, or correct the line"


def _places(line: ExpectedMachine) -> set[tuple[str, str]]:
    return {(link.switch.casefold(), link.port.casefold()) for link in line.links}


def _place(port: Raw) -> str:
    """Return the switch port of a network port for people."""
    lldp = as_mapping(port.get("lldp"))
    switch = clean_text(lldp.get("systemName")) or clean_text(lldp.get("chassisID"))
    return f"{switch}/{clean_text(lldp.get('portID')) or clean_text(lldp.get('portDescription'))}"


def _vlans(facts: MachineFacts, line: ExpectedMachine) -> Iterator[_Finding]:
    if not line.access_vlan:
        return
    boot = {line.boot_mac} if line.boot_mac else set(facts.boot_macs)
    for port in ports_of(facts.in_band):
        vlan = as_mapping(port.get("lldp")).get("vlanID")
        if port.get("mac") in boot and isinstance(vlan, int) and vlan and vlan != line.access_vlan:
            text = f"port {port['mac']} is in VLAN {vlan} at {_place(port)}, expected VLAN {line.access_vlan}"
            yield VerdictReason.WRONG_VLAN, f"{text} ({line.source}): set the port's untagged VLAN"


# --- parts ------------------------------------------------------------------------------------------------------------


def _parts(facts: MachineFacts, line: ExpectedMachine) -> Iterator[_Finding]:
    source = facts.in_band or facts.out_of_band
    product, where = as_mapping(source.get("product")), f"({line.source})"
    for name, wanted in (("vendor", line.vendor), ("model", line.model)):
        own = clean_text(product.get(name))
        if wanted and own and not (wanted.casefold() in own.casefold() or own.casefold() in wanted.casefold()):
            yield VerdictReason.WRONG_MODEL, f"its {name} is {own}, expected {wanted} {where}"
    mode = as_mapping(facts.in_band.get("firmware")).get("mode")
    if line.firmware is not None and mode and mode != line.firmware.value:
        text = f"its firmware has booted in mode {clean_text(mode)}, expected {line.firmware.value} {where}"
        yield VerdictReason.WRONG_FIRMWARE_MODE, f"{text}: change the boot mode in the firmware's setup"
    cores = _number(as_mapping(source.get("cpu")).get("totalCores"))
    if cores and cores < line.cores:
        yield VerdictReason.PROCESSOR_SHORT, f"it has {cores} cores, expected {line.cores} {where}"
    memory = _number(as_mapping(source.get("memory")).get("totalBytes"))
    if memory and memory < _MEMORY_SHARE * line.memory_bytes:
        have, wanted = f"{memory / 2**30:.4g} GiB", f"{line.memory_bytes / 2**30:.4g} GiB"
        yield VerdictReason.MEMORY_SHORT, f"it has {have} of memory, expected {wanted} {where}: look for a lost module"
    if line.disks and "blockDevices" in source:
        yield from _disks(source["blockDevices"], line)


def _number(value: object) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def _disks(devices: Any, line: ExpectedMachine) -> Iterator[_Finding]:
    """Yield the expected disks that are missing, or have another size."""
    free = [each for each in map(as_mapping, devices if isinstance(devices, list) else []) if _size(each)]
    missing: list[tuple[ExpectedDisk, int]] = []
    for wanted in sorted(line.disks, key=lambda each: (not each.type, -each.size_bytes)):
        fitting = [each for each in free if _has_type(each, wanted.type) and _has_size(each, wanted.size_bytes)]
        taken = fitting[: wanted.count]
        free = [each for each in free if not any(each is other for other in taken)]
        if len(taken) < wanted.count:
            missing.append((wanted, len(taken)))
    for wanted, count in missing:
        lacking = wanted.count - count
        instead = [each for each in free if _has_type(each, wanted.type)][:lacking]
        free = [each for each in free if not any(each is other for other in instead)]
        due = f"{wanted.count} disks of {_decimal(wanted.size_bytes)}{f' ({wanted.type})' if wanted.type else ''}"
        if instead:
            found = ", ".join(
                f"{clean_text(each.get('name')) or 'one'} has {_decimal(_size(each))}" for each in instead
            )
            yield VerdictReason.DISK_SIZE, f"{found}, expected {due} ({line.source})"
        if lacking > len(instead):
            text = f"{lacking - len(instead)} of {due} missing ({line.source})"
            yield VerdictReason.DISK_MISSING, f"{text}: look for a drive that is not plugged in or has failed"


def _size(device: Raw) -> float:
    return _number(device.get("sizeBytes"))


def _has_type(device: Raw, kind: str) -> bool:
    """Return True if a drive is of a type, or of an unknown one."""
    drive, controller = str(device.get("driveType") or ""), str(device.get("controllerType") or "")
    if kind == "NVMe":
        return not controller or controller.casefold() == "nvme"
    return not kind or not drive or drive == kind


def _has_size(device: Raw, size: int) -> bool:
    return abs(_size(device) - size) <= _SIZE_TOLERANCE * size


def _decimal(size: float) -> str:
    """Return a size as the manufacturer of a disk writes it."""
    return f"{size / 1e12:.3g} TB" if size >= 1e12 else f"{size / 1e9:.3g} GB"


def _storage_devices(facts: MachineFacts) -> Iterator[_Finding]:
    """Yield the disks that spec.storageDevices names and the machine does not have."""
    devices = facts.in_band.get("blockDevices")
    names = {clean_text(as_mapping(each).get("name")) for each in devices} if isinstance(devices, list) else set()
    if not names - {""}:
        return
    if lacking := [each for each in facts.storage_devices if _DISK_PATH.fullmatch(each) and each not in names]:
        found = ", ".join(sorted(filter(None, names))[:_SHOWN])
        text = f"spec.storageDevices names {', '.join(lacking[:_SHOWN])}, but the machine has {found}"
        yield VerdictReason.DISK_MISSING, f"{text}: correct the Hardware, or look for the drive"


def _clock(facts: MachineFacts) -> Iterator[_Finding]:
    offset = facts.in_band.get("clockOffsetSeconds")
    if isinstance(offset, int | float) and not isinstance(offset, bool) and abs(offset) > MAX_CLOCK_OFFSET_SECONDS:
        direction = "ahead of" if offset > 0 else "behind"
        text = f"its clock was {abs(offset):.0f} s {direction} the server's"
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
