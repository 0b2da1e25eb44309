"""The changes between two in-band inventories of one machine, for Events on its Hardware. Pure.

    after = keep_neighbours(before, reported)      # LLDP comes later than the rest
    for change in changes(before, after): ...

A part is recognised by what belongs to it alone: a drive by its serial number or World Wide Name, a network port by its
MAC address, a memory module by its slot. A value that one of the inventories lacks is no change: firmware that reports
a placeholder, or an agent that could not read a file, changes nothing about the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tink.api.v1alpha2 import Raw, as_mapping

LINK_DOWN: Final = "LinkDown"
"""The value of a port's linkStatus without a link (DSP0268, NetworkDeviceFunction and Port)."""

_MIN_MEMORY_SHARE: Final = 0.05
"""Share by which the total memory must change. Another kernel reserves more or less of the same memory."""
_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20))


@dataclass(frozen=True, slots=True)
class InventoryChange:
    """One change: `reason` is a word in CamelCase, `text` one sentence with the old and the new value.

    is_loss: something that the machine had is gone.
    """

    reason: str
    text: str
    is_loss: bool = False


def changes(before: Raw, after: Raw) -> list[InventoryChange]:
    """Return the changes from one in-band inventory to the next, in a fixed order of the kinds.

    Empty if `before` is empty, or if another kind of agent wrote it (`collectionMethod`): two kinds of agents describe
    the same parts with other words.
    """
    if not before or before.get("collectionMethod") != after.get("collectionMethod"):
        return []
    kinds = (_disks, _memory, _ports, _firmware, _serials, _cables, _boot)
    return [change for kind in kinds for change in kind(before, after)]


def keep_neighbours(before: Raw, reported: Raw) -> Raw:
    """Return a reported inventory with the LLDP neighbours of `before`, if it has none at all.

    Switches send LLDP every 30 s, so the first report of a boot has no neighbours. Until a report has one, each port
    keeps the neighbour that was stored, unless its link is down. A port whose switch has stopped sending LLDP loses its
    neighbour as soon as another port of the machine has one.
    """
    if any(port.get("lldp") for port in _all_ports(reported)):
        return reported
    known = {port["mac"]: port["lldp"] for port in _all_ports(before) if port.get("lldp") and _text(port, "mac")}
    if not known:
        return reported

    def with_neighbour(port: Any) -> Any:
        neighbour = known.get(_text(as_mapping(port), "mac"))
        is_kept = neighbour is not None and port.get("linkStatus") != LINK_DOWN
        return {**port, "lldp": neighbour} if is_kept else port

    adapters = [
        {**adapter, "ports": [with_neighbour(port) for port in adapter["ports"]]} if adapter.get("ports") else adapter
        for adapter in _parts(reported, "networkInterfaces")
    ]
    return {**reported, "networkInterfaces": adapters} if adapters else reported


# --- values -----------------------------------------------------------------------------------------------------------


def _text(part: Raw, name: str) -> str:
    value = part.get(name)
    return value if isinstance(value, str) else ""


def _parts(owner: Raw, name: str) -> list[Raw]:
    value = owner.get(name)
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def _all_ports(inventory: Raw) -> Iterator[Raw]:
    for adapter in _parts(inventory, "networkInterfaces"):
        yield from _parts(adapter, "ports")


def _described(part: Raw) -> str:
    """Return vendor and model of a part, each once."""
    vendor, model = _text(part, "vendor"), _text(part, "model")
    return model if vendor.casefold() in model.casefold() else f"{vendor} {model}".strip()


def _size(part: Raw, name: str = "sizeBytes") -> str:
    """Return a size for people, such as `32 GiB`; empty if it is unknown."""
    value = part.get(name)
    if not isinstance(value, int) or value <= 0:
        return ""
    unit, factor = next((each for each in _UNITS if value >= each[1]), ("B", 1))
    return f"{value / factor:.4g} {unit}"


def _differs(before: Raw, after: Raw, name: str) -> tuple[str, str] | None:
    """Return the two texts of a field that both have, if they differ."""
    old, new = _text(before, name), _text(after, name)
    return (old, new) if old and new and old != new else None


def _remaining(before: list[Raw], after: list[Raw], key: Callable[[Raw], object]) -> tuple[list[Raw], list[Raw]]:
    """Return the parts of both lists that have no partner with the same key. A part with an empty key has none."""
    partners: dict[object, list[Raw]] = {}
    for part in before:
        if key(part):
            partners.setdefault(key(part), []).append(part)
    unmatched = []
    for part in after:
        found = partners.get(key(part)) if key(part) else None
        if found:
            found.pop(0)
        else:
            unmatched.append(part)
    left = {id(part) for parts in partners.values() for part in parts}
    return [part for part in before if id(part) in left or not key(part)], unmatched


# --- kinds of changes -------------------------------------------------------------------------------------------------


def _identity(part: Raw) -> str:
    """Return what identifies a drive or a memory module: its serial number, else its World Wide Name."""
    return _text(part, "serialNumber") or _text(part, "wwn")


def _disk(disk: Raw) -> str:
    serial = _identity(disk)
    facts = (_described(disk), _size(disk), f"serial {serial}" if serial else "")
    return ", ".join(filter(None, facts)) or "of unknown model"


def _disks(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    old, new = _remaining(_parts(before, "blockDevices"), _parts(after, "blockDevices"), _identity)
    # A drive without a serial number, such as one of a virtual machine, is the same if nothing else differs. Linux may
    # give it another name at the next boot.
    old, new = _remaining(old, new, lambda disk: not _identity(disk) and (_described(disk), _size(disk)))
    by_name = {name: disk for disk in old if (name := _text(disk, "name"))}
    for disk in new:
        name = _text(disk, "name")
        replaced = by_name.pop(name, None)
        if replaced is None:
            yield InventoryChange("DiskAdded", f"Disk {name or 'without a name'} was added: {_disk(disk)}.")
            continue
        old = [each for each in old if each is not replaced]
        if not _is_same(replaced, disk):
            yield InventoryChange(
                "DiskReplaced", f"Disk {name} was replaced: now {_disk(disk)}; before {_disk(replaced)}."
            )
    for disk in old:
        yield InventoryChange("DiskRemoved", f"Disk {_text(disk, 'name')} was removed: {_disk(disk)}.", is_loss=True)


def _is_same(old: Raw, new: Raw) -> bool:
    """Return True if two parts in one place may be the same: only one of them has a serial number."""
    known = _identity(old), _identity(new)
    return not all(known) and (_described(old), old.get("sizeBytes")) == (_described(new), new.get("sizeBytes"))


def _memory(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    owners = as_mapping(before.get("memory")), as_mapping(after.get("memory"))
    old, new = ({_text(module, "slot"): module for module in _parts(owner, "modules")} for owner in owners)
    if not old or not new:
        yield from _total_memory(*owners)
        return
    for slot in sorted(old.keys() | new.keys()):
        gone, come = old.get(slot), new.get(slot)
        if gone is not None and come is not None:
            is_same = _identity(gone) == _identity(come) if _identity(gone) and _identity(come) else True
            if is_same and _size(gone) == _size(come):
                continue
        for module, verb, reason in ((gone, "removed", "MemoryRemoved"), (come, "added", "MemoryAdded")):
            if module is not None:
                facts = filter(None, (_size(module), _described(module), _serial(module)))
                text = f"Memory module {slot or 'without a slot'} was {verb}: {', '.join(facts) or 'of unknown size'}."
                yield InventoryChange(reason, text, is_loss=module is gone)


def _serial(part: Raw) -> str:
    return f"serial {_text(part, 'serialNumber')}" if _text(part, "serialNumber") else ""


def _total_memory(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    old, new = before.get("totalBytes"), after.get("totalBytes")
    if isinstance(old, int) and isinstance(new, int) and abs(new - old) > _MIN_MEMORY_SHARE * max(old, new):
        reason = "MemoryAdded" if new > old else "MemoryRemoved"
        sizes = f"{_size(after, 'totalBytes')}; before {_size(before, 'totalBytes')}"
        yield InventoryChange(reason, f"The size of the memory is now {sizes}.", is_loss=new < old)


def _named_port(port: Raw) -> str:
    name, mac = _text(port, "name"), _text(port, "mac")
    return f"{name} ({mac})" if name else mac


def _adapters_by_mac(inventory: Raw) -> dict[str, tuple[Raw, Raw]]:
    """Return adapter and port of each MAC address."""
    adapters = _parts(inventory, "networkInterfaces")
    return {mac: (each, port) for each in adapters for port in _parts(each, "ports") if (mac := _text(port, "mac"))}


def _ports(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    old, new = _adapters_by_mac(before), _adapters_by_mac(after)
    for mac in sorted(new.keys() - old.keys()):
        adapter, port = new[mac]
        text = f"Network port {_named_port(port)} was added: {_described(adapter) or 'of unknown model'}."
        yield InventoryChange("NicAdded", text)
    for mac in sorted(old.keys() - new.keys()):
        adapter, port = old[mac]
        text = f"Network port {_named_port(port)} was removed: {_described(adapter) or 'of unknown model'}."
        yield InventoryChange("NicRemoved", text, is_loss=True)


def _firmware(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    field = "firmwareVersion"
    if found := _differs(as_mapping(before.get("bios")), as_mapping(after.get("bios")), field):
        yield InventoryChange("FirmwareUpdated", f"The machine's firmware is now {found[1]}; before {found[0]}.")
    old, new = _adapters_by_mac(before), _adapters_by_mac(after)
    reported = set[int]()
    for mac in sorted(old.keys() & new.keys()):
        adapter, port = new[mac]
        found = _differs(old[mac][0], adapter, field)
        if found and id(adapter) not in reported:  # one change for all ports of an adapter
            reported.add(id(adapter))
            text = f"The firmware of network port {_named_port(port)} is now {found[1]}; before {found[0]}."
            yield InventoryChange("FirmwareUpdated", text)


def _serials(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    names = {"product": "machine", "chassis": "chassis", "baseboard": "main board"}
    for part, name in names.items():
        if found := _differs(as_mapping(before.get(part)), as_mapping(after.get(part)), "serialNumber"):
            yield InventoryChange(
                "SerialChanged", f"The serial number of the {name} is now {found[1]}; before {found[0]}."
            )


def _cables(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    old, new = _adapters_by_mac(before), _adapters_by_mac(after)
    for mac in sorted(old.keys() & new.keys()):
        there, here = as_mapping(old[mac][1].get("lldp")), as_mapping(new[mac][1].get("lldp"))
        switch = "chassisID" if there.get("chassisID") and here.get("chassisID") else "systemName"
        if _differs(there, here, switch) or _differs(there, here, "portID"):
            port = _named_port(new[mac][1])
            text = f"Network port {port} is now connected to {_neighbour(here)}; before to {_neighbour(there)}."
            yield InventoryChange("CablesChanged", text)


def _neighbour(neighbour: Raw) -> str:
    """Return the name of a switch port, such as `switch-7 Ethernet1/7`."""
    switch = _text(neighbour, "systemName") or _text(neighbour, "chassisID") or "a switch"
    return f"{switch} {_text(neighbour, 'portID')}".strip()


def _boot(before: Raw, after: Raw) -> Iterator[InventoryChange]:
    there, here = as_mapping(before.get("firmware")), as_mapping(after.get("firmware"))
    then, now = there.get("secureBoot"), here.get("secureBoot")
    if (then, now) in ((True, False), (False, True)):
        text = f"Secure Boot is now {'on' if now else 'off'}; before {'on' if then else 'off'}."
        yield InventoryChange("SecureBootChanged", text)
    if found := _differs(there, here, "mode"):
        yield InventoryChange("FirmwareModeChanged", f"The machine now boots in mode {found[1]}; before in {found[0]}.")
