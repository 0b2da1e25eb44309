"""The inventory of a machine from the Redfish documents of its BMC, in the shape of Rufio's `attributes.outOfBand`.

Pure. The caller fetches documents until no path is left, each path once:

    while paths := next_paths(documents, system_name):
        documents |= {path: await fetch(path) for path in paths}    # None: the BMC did not serve it
    attributes = inventory(documents, system_name)

`inventory` walks from the service root to the System, its Managers and Chassis, and to their parts (DSP2046, DSP0268).
`next_paths` makes the same walk and returns the paths that it did not find in `documents`. So both functions agree, and
a BMC with half of the documents gives half of an inventory.

All values come from a BMC and are hostile: texts are cut off and lose their control characters, lists are cut off,
numbers outside of their range are absent. The result satisfies `tink.api.v1alpha2.Attributes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from tink.api.inventory import MAX_INVENTORY_NUMBER, clean_text, component_order, mac_address, serial_number
from tink.api.v1alpha2 import Raw, as_mapping

SERVICE_ROOT = "/redfish/v1/"
MAX_DOCUMENTS = 512
"""Maximum number of documents that one inventory fetches. A server with 32 memory modules and 24 drives needs 150."""
MAX_VISITS = 2 * MAX_DOCUMENTS
"""Maximum number of documents that one walk reads. References that lead to the same documents again end there."""
MAX_PATH_CHARACTERS = 512
MAX_SYSTEMS = 16
MAX_CHASSIS = 8
MAX_MEMBERS = 64
"""Maximum number of members of a collection, and of items of a list: one collection leaves room for the others."""
MAX_PAGES = 8
"""Maximum number of pages of a collection (DSP0266, `Members@odata.nextLink`)."""

Documents = Mapping[str, Raw | None]
"""Fetched documents by their path; None for a path that the BMC did not serve."""

_PATH = re.compile(r"/redfish/[!-\"$-~]*")
"""Printable ASCII without a fragment (`#`)."""
_ACCELERATORS = ("GPU", "Accelerator", "FPGA", "DSP")
"""Values of ProcessorType that are no central processors."""


def next_paths(documents: Documents, system_name: str = "") -> list[str]:
    """Return the paths of the documents to fetch next, the most useful first; empty if the inventory is complete.

    `system_name` is the Id, Name or host name of the System; empty for the first one. At most MAX_DOCUMENTS paths are
    returned in total, if the caller adds an entry for each of them.
    """
    walk = _Walk(documents)
    _attributes(walk, system_name)
    return list(walk.missing)[: max(0, MAX_DOCUMENTS - len(documents))]


def inventory(documents: Documents, system_name: str = "") -> Raw:
    """Return the attributes of the machine that the documents describe, without `lastUpdated`.

    Empty if the BMC did not serve the System: then the inventory that was read before is the better one.

    Lists are sorted, so that a BMC that changes the order of its members changes no object.
    """
    return _attributes(_Walk(documents), system_name)


class _Walk:
    """One walk over the documents. `missing` has the paths that were not fetched, in the order of the walk."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._visits = 0
        self.missing: dict[str, None] = {}

    def document(self, reference: object) -> Raw:
        """Return the document of a reference, `{"@odata.id": PATH}`; an empty one if it has not been fetched."""
        path = _path(as_mapping(reference).get("@odata.id"))
        return self.at(path) if path else {}

    def at(self, path: str) -> Raw:
        """Return the document at a path; an empty one if it has not been fetched."""
        self._visits += 1
        if self._visits > MAX_VISITS:
            return {}
        if path not in self._documents:
            self.missing[path] = None
            return {}
        return as_mapping(self._documents[path])

    def documents(self, references: object) -> list[Raw]:
        """Return the fetched documents of a list of references."""
        return [found for reference in _items(references) if (found := self.document(reference))]

    def members(self, reference: object) -> list[Raw]:
        """Return the fetched members of a collection, page by page."""
        found: list[Raw] = []
        page = self.document(reference)
        for _ in range(MAX_PAGES):
            found += self.documents(page.get("Members"))
            following = _path(page.get("Members@odata.nextLink"))
            if not following or len(found) >= MAX_MEMBERS:
                break
            page = self.at(following)
        return found[:MAX_MEMBERS]


# --- values of a BMC --------------------------------------------------------------------------------------------------


def _path(value: object) -> str:
    """Return the path of a resource on this BMC; empty if it is none."""
    if not isinstance(value, str) or len(value) > MAX_PATH_CHARACTERS:
        return ""
    path = value.partition("#")[0]
    is_inside = _PATH.fullmatch(path) is not None and "/../" not in f"{path}/"
    return path if is_inside else ""


def _items(value: object) -> list[object]:
    return value[:MAX_MEMBERS] if isinstance(value, list) else []


def _number(*values: object, factor: float = 1) -> int:
    """Return the first positive number times `factor`, as an integer of 63 bits; 0 if there is none."""
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_INVENTORY_NUMBER:
            product = value * factor
            if math.isfinite(product) and 1 <= product <= MAX_INVENTORY_NUMBER:
                return int(product)
    return 0


def _present(fields: Raw) -> Raw:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value}


def _listed(entries: Iterable[Raw]) -> list[Raw]:
    """Return the entries that are not empty, in an order that does not depend on the BMC's."""
    return sorted((entry for entry in entries if entry), key=component_order)[:MAX_MEMBERS]


def _is_installed(document: Raw) -> bool:
    """Return False for an empty slot (DSP0268, Status.State)."""
    return bool(document) and as_mapping(document.get("Status")).get("State") != "Absent"


def _component(document: Raw) -> Raw:
    """Return the fields that most components have."""
    return {
        "vendor": clean_text(document.get("Manufacturer")),
        "model": clean_text(document.get("Model")),
        "serialNumber": serial_number(document.get("SerialNumber")),
        "firmwareVersion": clean_text(document.get("FirmwareVersion")),
    }


def _status(document: Raw) -> Raw:
    status = as_mapping(document.get("Status"))
    return _present({"health": clean_text(status.get("Health")), "state": clean_text(status.get("State"))})


# --- the walk ---------------------------------------------------------------------------------------------------------


def _attributes(walk: _Walk, system_name: str) -> Raw:
    """Return the attributes. The order of the walk is the order in which documents are fetched."""
    root = walk.at(SERVICE_ROOT)
    system = _system(walk, root, system_name)
    if not system:
        return {}
    links = as_mapping(system.get("Links"))
    # Huawei's 1288H has no ManagedBy: its BMC has one Manager.
    managers = walk.documents(links.get("ManagedBy")) or walk.members(root.get("Managers"))
    linked = links.get("Chassis")
    chassis = (walk.documents(linked) if _items(linked) else walk.members(root.get("Chassis")))[:MAX_CHASSIS]
    network_interfaces = _network_interfaces(walk, system, chassis)
    processors = [each for each in walk.members(system.get("Processors")) if _is_installed(each)]
    found = {
        "product": _product(system),
        "bios": _present({"firmwareVersion": clean_text(system.get("BiosVersion"))}),
        "bmc": _bmc(walk, managers),
        "baseboard": _baseboard(system, chassis),
        "chassis": _enclosure(chassis),
        "networkInterfaces": network_interfaces,
        "cpu": _cpu(processors),
        "memory": _memory(walk, system),
        **_storage(walk, system),
        "psus": _listed(each for one in chassis for each in _power_supplies(walk, one)),
        "tpms": _tpms(walk, system, chassis),
        "gpuDevices": _listed(_accelerator(each) for each in processors if _is_accelerator(each)),
        "pciDevices": _pci_devices(walk, system, chassis),
    }
    return {"collectionMethod": "redfish"} | _present(found)


def _system(walk: _Walk, root: Raw, name: str) -> Raw:
    """Return the System of this name, or the first one: the choice of the Redfish client."""
    members = _items(walk.document(root.get("Systems")).get("Members"))
    paths = [path for each in members if (path := _path(as_mapping(each).get("@odata.id")))]
    if name:
        named = [path for path in paths if path.rstrip("/").rpartition("/")[2] == name]
        # The System may have another Id, or be known by its Name or host name.
        for path in named or paths[:MAX_SYSTEMS]:
            system = walk.at(path)
            if named or name in (system.get("Id"), system.get("Name"), system.get("HostName")):
                return system
        return {}
    return walk.at(paths[0]) if paths else {}


def _is_dell(system: Raw) -> bool:
    return clean_text(system.get("Manufacturer")).casefold().startswith("dell")


def _product(system: Raw) -> Raw:
    # Dell's SerialNumber is that of the board; SKU is the service tag, which SMBIOS has as the system's serial number.
    serial = serial_number(system.get("SKU"), system.get("SerialNumber")) if _is_dell(system) else ""
    return _present({
        "name": clean_text(system.get("Name")),
        "vendor": clean_text(system.get("Manufacturer")),
        "model": clean_text(system.get("Model")),
        "serialNumber": serial or serial_number(system.get("SerialNumber")),
        "status": _status(system),
    })  # fmt: skip


def _bmc(walk: _Walk, managers: list[Raw]) -> Raw:
    if not managers:
        return {}
    manager = managers[0]
    ports = [_ethernet_port(each) for each in walk.members(manager.get("EthernetInterfaces"))]
    nic = _present({"ports": _listed(port for port in ports if "mac" in port)})
    return _present(_component(manager) | {"nic": nic, "status": _status(manager)})


def _baseboard(system: Raw, chassis: list[Raw]) -> Raw:
    """Return the board. Redfish has no resource for it: only Dell's and Supermicro's are known here."""
    if _is_dell(system):
        board = {
            "serialNumber": serial_number(system.get("SerialNumber")),
            "model": clean_text(system.get("PartNumber")),
        }
        return _present(board | {"vendor": clean_text(system.get("Manufacturer"))})
    for each in chassis:
        oem = as_mapping(as_mapping(each.get("Oem")).get("Supermicro"))
        board = {"serialNumber": serial_number(oem.get("BoardSerialNumber")), "model": clean_text(oem.get("BoardID"))}
        if any(board.values()):
            return _present(board | {"vendor": clean_text(each.get("Manufacturer"))})
    return {}


def _enclosure(chassis: list[Raw]) -> Raw:
    for each in chassis:
        component = _component(each)
        component.pop("firmwareVersion")
        if any(component.values()):
            return _present(component)
    return {}


# --- network ----------------------------------------------------------------------------------------------------------


def _network_interfaces(walk: _Walk, system: Raw, chassis: list[Raw]) -> list[Raw]:
    """Return the adapters with their ports, and the ports that only the System reports, each as an adapter.

    Lenovo's XCC reports the boot card's MAC address only at Ports of the Chassis' NetworkAdapters; BlueField's
    EthernetInterfaces may be missing. So both places are read, and ports are joined by their MAC address.
    """
    ethernet: dict[str, Raw] = {}
    for document in walk.members(system.get("EthernetInterfaces")):
        if mac := _permanent_mac(document):
            ethernet.setdefault(mac, _ethernet_port(document))
    adapters = [each for one in chassis for each in walk.members(one.get("NetworkAdapters"))]
    if not adapters:
        interfaces = walk.members(system.get("NetworkInterfaces"))
        adapters = walk.documents([as_mapping(each.get("Links")).get("NetworkAdapter") for each in interfaces])
    found: list[Raw] = []
    for adapter in adapters:
        if not _is_installed(adapter):
            continue
        ports = []
        for port in _adapter_ports(walk, adapter):
            ports.append(ethernet.pop(port.get("mac", ""), {}) | port)
        firmware = (as_mapping(each).get("FirmwarePackageVersion") for each in _items(adapter.get("Controllers")))
        found.append(
            _present(_component(adapter) | {"firmwareVersion": clean_text(*firmware), "ports": _listed(ports)})
        )
    found += [{"ports": [port]} for port in ethernet.values()]
    return sorted((each for each in found if each), key=_first_port)[:MAX_MEMBERS]


def _first_port(adapter: Raw) -> tuple[str, str]:
    return min((port.get("mac", "") for port in adapter.get("ports", ())), default=""), str(adapter)


def _adapter_ports(walk: _Walk, adapter: Raw) -> list[Raw]:
    """Return an adapter's ports, one for each MAC address."""
    before = len(walk.missing)
    documents = walk.members(adapter.get("Ports") or adapter.get("NetworkPorts"))
    ports = [port for document in documents for port in _ports_of(document)]
    # The functions are many documents: they are read only if no port has a MAC address.
    if len(walk.missing) == before and not any("mac" in port for port in ports):
        functions = walk.members(adapter.get("NetworkDeviceFunctions"))
        ports = [port for each in functions if "mac" in (port := _function_port(each))] or ports
    return ports


def _ports_of(document: Raw) -> Iterator[Raw]:
    """Yield a Port (DSP0268, Port; before 2020 NetworkPort), once for each of its MAC addresses."""
    speed = _number(document.get("CurrentLinkSpeedMbps")) or _number(document.get("CurrentSpeedGbps"), factor=1000)
    port = _present({
        "portID": clean_text(document.get("Id")),
        "speedMbps": speed,
        "linkStatus": clean_text(document.get("LinkStatus")),
    })  # fmt: skip
    ethernet = as_mapping(document.get("Ethernet"))
    addresses = _items(ethernet.get("AssociatedMACAddresses")) or _items(document.get("AssociatedNetworkAddresses"))
    macs = dict.fromkeys(mac for address in addresses if (mac := mac_address(address)))
    if not macs:
        yield port
    for mac in macs:
        yield port | {"mac": mac}


def _function_port(document: Raw) -> Raw:
    """Return the port of a NetworkDeviceFunction."""
    ethernet = as_mapping(document.get("Ethernet"))
    return _present({
        "portID": clean_text(document.get("Id")),
        "mac": _permanent_mac(ethernet),
        "mtu": _number(ethernet.get("MTUSize")),
    })  # fmt: skip


def _permanent_mac(document: Raw) -> str:
    return mac_address(document.get("PermanentMACAddress")) or mac_address(document.get("MACAddress"))


def _ethernet_port(document: Raw) -> Raw:
    """Return the port of an EthernetInterface."""
    return _present({
        "portID": clean_text(document.get("Id")),
        "mac": _permanent_mac(document),
        "speedMbps": _number(document.get("SpeedMbps")),
        "mtu": _number(document.get("MTUSize")),
        "linkStatus": clean_text(document.get("LinkStatus")),
    })  # fmt: skip


# --- processors, memory, storage --------------------------------------------------------------------------------------


def _is_accelerator(processor: Raw) -> bool:
    return processor.get("ProcessorType") in _ACCELERATORS


def _accelerator(processor: Raw) -> Raw:
    description = clean_text(processor.get("Name"), processor.get("Id"))
    return _present(_component(processor) | {"description": description, "status": _status(processor)})


def _cpu(processors: list[Raw]) -> Raw:
    sockets = [_socket(each) for each in processors if not _is_accelerator(each)]
    return _present({
        "totalCores": min(sum(socket.get("cores", 0) for socket in sockets), MAX_INVENTORY_NUMBER),
        "totalThreads": min(sum(socket.get("threads", 0) for socket in sockets), MAX_INVENTORY_NUMBER),
        "sockets": _listed(sockets),
    })  # fmt: skip


def _socket(processor: Raw) -> Raw:
    fields = {
        "slot": clean_text(processor.get("Socket"), processor.get("Id")),
        "cores": _number(processor.get("TotalCores")),
        "threads": _number(processor.get("TotalThreads")),
        "clockSpeedMHz": _number(processor.get("MaxSpeedMHz"), processor.get("OperatingSpeedMHz")),
    }
    return _present(fields | _component(processor))


def _memory(walk: _Walk, system: Raw) -> Raw:
    modules = [_module(each) for each in walk.members(system.get("Memory")) if _is_installed(each)]
    modules = [module for module in modules if "sizeBytes" in module]
    summary = as_mapping(system.get("MemorySummary")).get("TotalSystemMemoryGiB")
    total = sum(module["sizeBytes"] for module in modules) or _number(summary, factor=1 << 30)
    return _present({"totalBytes": min(total, MAX_INVENTORY_NUMBER), "modules": _listed(modules)})


def _module(memory: Raw) -> Raw:
    fields = {
        "slot": clean_text(memory.get("DeviceLocator"), memory.get("Name"), memory.get("Id")),
        "partNumber": serial_number(memory.get("PartNumber")),
        "sizeBytes": _number(memory.get("CapacityMiB"), factor=1 << 20),
        "speedMHz": _number(memory.get("OperatingSpeedMhz")),
        "formFactor": clean_text(memory.get("BaseModuleType")),
    }
    return _present(fields | _component(memory) | {"firmwareVersion": clean_text(memory.get("FirmwareRevision"))})


def _storage(walk: _Walk, system: Raw) -> Raw:
    """Return the drives and their controllers."""
    drives: list[Raw] = []
    controllers: list[Raw] = []
    for storage in walk.members(system.get("Storage")):
        inline = [as_mapping(each) for each in _items(storage.get("StorageControllers"))]
        controllers += [_controller(each) for each in inline or walk.members(storage.get("Controllers"))]
        drives += [_drive(each) for each in walk.documents(storage.get("Drives")) if _is_installed(each)]
    if not system.get("Storage"):
        simple = walk.members(system.get("SimpleStorage"))
        devices = (as_mapping(device) for each in simple for device in _items(each.get("Devices")))
        drives += [_drive(device) for device in devices if _is_installed(device)]
    return {"blockDevices": _listed(drives), "storageControllers": _listed(controllers)}


def _controller(controller: Raw) -> Raw:
    if not _is_installed(controller):
        return {}
    description = clean_text(controller.get("Name"))
    return _present(_component(controller) | {"description": description, "status": _status(controller)})


def _drive(drive: Raw) -> Raw:
    predicted = drive.get("FailurePredicted")
    fields = {
        "controllerType": clean_text(drive.get("Protocol")),
        "driveType": clean_text(drive.get("MediaType")),
        "wwn": _wwn(drive.get("Identifiers")),
        "sizeBytes": _number(drive.get("CapacityBytes")),
        "physicalBlockSizeBytes": _number(drive.get("BlockSizeBytes")),
        "smartStatus": {True: "predict-failure", False: "ok"}[predicted] if isinstance(predicted, bool) else "",
        "status": _status(drive),
    }
    component = _component(drive)
    component["firmwareVersion"] = component["firmwareVersion"] or clean_text(drive.get("Revision"))
    return _present(fields | component)


def _wwn(identifiers: object) -> str:
    """Return the World Wide Name: the first durable name that Linux has, too."""
    for each in map(as_mapping, _items(identifiers)):
        if each.get("DurableNameFormat") in ("NAA", "EUI", "NGUID"):
            return serial_number(each.get("DurableName")).lower()
    return ""


# --- power supplies, TPMs, PCI devices --------------------------------------------------------------------------------


def _power_supplies(walk: _Walk, chassis: Raw) -> Iterator[Raw]:
    """Yield the power supplies. Power (deprecated) has all in one document; PowerSubsystem is its successor."""
    if chassis.get("Power"):
        documents = [as_mapping(each) for each in _items(walk.document(chassis["Power"]).get("PowerSupplies"))]
    else:
        documents = walk.members(walk.document(chassis.get("PowerSubsystem")).get("PowerSupplies"))
    for each in documents:
        if _is_installed(each):
            watts = _number(each.get("PowerCapacityWatts"))
            fields = {"description": clean_text(each.get("Name")), "powerCapacityWatts": watts, "status": _status(each)}
            yield _present(_component(each) | fields)


def _tpms(walk: _Walk, system: Raw, chassis: list[Raw]) -> list[Raw]:
    """Return the TPMs: the System's TrustedModules, or TrustedComponents of the Chassis that are named so."""
    modules = [as_mapping(each) for each in _items(system.get("TrustedModules"))]
    if not modules:
        components = (each for one in chassis for each in walk.members(one.get("TrustedComponents")))
        modules = [
            each
            for each in components
            if "tpm" in f"{clean_text(each.get('Id'))} {clean_text(each.get('Name'))}".lower()
        ]
    found = []
    for module in modules:
        interface = clean_text(module.get("InterfaceType"))
        if _is_installed(module) and (interface or module.get("Id")):
            found.append(_present(_component(module) | {"interfaceType": interface, "status": _status(module)}))
    return _listed(found)


def _pci_devices(walk: _Walk, system: Raw, chassis: list[Raw]) -> list[Raw]:
    """Return vendor and model of the PCIe devices. They are read last: they are many, and an OSIE knows more."""
    documents = walk.documents(system.get("PCIeDevices"))
    if not system.get("PCIeDevices"):
        documents = [each for one in chassis for each in walk.members(one.get("PCIeDevices"))]
    return _listed(_pci_device(each) for each in documents if _is_installed(each))


def _pci_device(device: Raw) -> Raw:
    return _present(
        {"vendor": clean_text(device.get("Manufacturer")), "model": clean_text(device.get("Model"), device.get("Name"))}
    )
