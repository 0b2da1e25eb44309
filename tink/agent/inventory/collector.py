"""Collects the inventory of this machine from /sys, /proc, the SMBIOS table, the kernel and the BMC.

`collect` changes nothing on the machine. Each part is guarded on its own: a file that can't be read costs its part, or
the one disk or card that it belongs to, and the log has the name of the part. All texts come from firmware, and are
cleaned by `tink.api.inventory`; the server cleans them again.

The root of the file system is an argument, so that a test can give the files of another machine.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, TypeVar

from tink.agent.inventory import smbios
from tink.agent.inventory.ioctls import IpmiDevice, driver_firmware, permanent_mac
from tink.agent.inventory.smbios import Facts
from tink.api.bounds import MAX_INVENTORY_ITEMS
from tink.api.inventory import clean_text, mac_address, serial_number
from tink.mac import guid_mac

log = logging.getLogger(__name__)

T = TypeVar("T")
IpmiRequest = Callable[[int, int, bytes], bytes]
"""Sends a network function, a command and data to the BMC, and returns the answer. Raises OSError."""

MAX_FILE_BYTES: Final = 64 << 10
MAX_ENTRIES: Final = 4096
"""Maximum number of entries of one directory that are read."""
_SECTOR_BYTES: Final = 512  # the unit of /sys/block/*/size, whatever the sectors of the disk are

_ETHERNET, _INFINIBAND = "1", "32"  # linux/if_arp.h
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NO_DISK = re.compile(r"(?:loop|ram|zram|dm-|md|sr|fd|nbd|mtdblock)\d.*|mmcblk\d+(?:boot\d+|rpmb)")
_LISTED_CLASSES: Final = ("0x01", "0x02", "0x03", "0x12")
"""PCI base classes that are listed: storage, network, display, processing accelerator (PCI Code and ID Assignment)."""
_BMC_DISPLAYS: Final = frozenset({"0x1a03", "0x102b", "0x1234", "0x1013", "0x1b36", "0x1af4"})
"""Vendors of displays that are no GPU: ASPEED's and Matrox' in BMCs, and the virtual ones of hypervisors."""
_BMC_USB_VENDORS: Final = frozenset({"046b", "04b3", "413c", "03f0", "0b1f"})
"""USB vendors of the cards between a BMC and its host. Some of them have the same MAC address in every machine."""
_ARM_IMPLEMENTERS: Final = {
    0x41: "Arm", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x50: "APM",
    0x51: "Qualcomm", 0x61: "Apple", 0xC0: "Ampere",
}  # fmt: skip
_SECURE_BOOT: Final = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"  # UEFI 2.10 section 3.3


def collect(
    root: Path = Path("/"),
    *,
    architecture: str = "",
    neighbours: Mapping[str, Facts] | None = None,
) -> Facts:
    """Return the inventory in the shape of `tink.api.v1alpha2.Attributes`, as data for JSON.

    root: the root of the file system. For another one than "/" the kernel's network cards and IPMI are left out.
    architecture: as `uname -m`; empty: that of this machine.
    neighbours: the LLDP neighbours of network cards by their names.
    """
    return _Collector(root, architecture or os.uname().machine, neighbours or {}).attributes()


def network_cards(root: Path = Path("/")) -> list[str]:
    """Return the names of the Ethernet cards that can have LLDP neighbours, without virtual ones."""
    cards = (path for path in _entries(root / "sys/class/net") if _line(path / "type") == _ETHERNET)
    return [path.name for path in cards if _guarded(f"network card {path.name}", partial(_is_card, path))]


def network_cards_with_link(root: Path = Path("/")) -> list[str]:
    """Return those Ethernet cards that have a link."""
    return [name for name in network_cards(root) if _line(root / "sys/class/net" / name / "carrier") == "1"]


# --- files ------------------------------------------------------------------------------------------------------------


def _bytes(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the start of a file; empty if it can't be read. Never waits at a FIFO or a device."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb", buffering=0) as file:
            chunks, size = [], 0
            while size < limit and (chunk := file.read(limit - size)):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks)
    except (OSError, ValueError):
        return b""


def _line(path: Path) -> str:
    """Return the text of a file up to the first NUL, without blanks around it; empty if it can't be read."""
    return _bytes(path).partition(b"\0")[0].decode(errors="replace").strip()


def _number(path: Path, base: int = 10) -> int:
    """Return the positive number in a file; 0 if there is none."""
    try:
        return max(0, int(_line(path)[:20], base))
    except ValueError:
        return 0


def _entries(directory: Path) -> list[Path]:
    """Return the entries of a directory in the order of their names; none if it does not exist."""
    with suppress(OSError):
        return sorted(itertools.islice(directory.iterdir(), MAX_ENTRIES), key=_natural)
    return []


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the sort key of a name: cpu2 comes before cpu10."""
    parts = re.split(r"([0-9]{1,9})", path.name)
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)]


def _pci_parents(path: Path) -> list[str]:
    """Return the PCI addresses on the way to a device, its own or its controller's first."""
    with suppress(OSError):
        return [part for part in reversed(path.resolve().parts) if _PCI_ADDRESS.fullmatch(part)]
    return []


def _present(**fields: Any) -> Facts:
    return {name: value for name, value in fields.items() if value}


def _is_card(path: Path) -> bool:
    """Return True for a network card of the machine itself: no virtual one, none of its BMC, no SR-IOV function."""
    device = path / "device"
    if _line(path / "type") not in (_ETHERNET, _INFINIBAND) or not device.exists() or (device / "physfn").exists():
        return False
    usb = device.resolve().parent
    if (usb / "idVendor").exists():
        octets = _line(path / "address").split(":")
        is_local = bool(octets[0]) and bool(int(octets[0], 16) & 2)
        return not is_local and _line(usb / "idVendor") not in _BMC_USB_VENDORS
    return True


def _guarded(name: str, read: Callable[[], T]) -> T | None:
    """Return the result of `read`; log the part's name and return None if it fails."""
    try:
        return read()
    except Exception as error:  # a driver may serve anything; the other parts are reported
        log.warning("inventory: %s can't be read: %s: %s", name, type(error).__name__, error)
        return None


# --- the collector ----------------------------------------------------------------------------------------------------


class _Collector:
    def __init__(self, root: Path, architecture: str, neighbours: Mapping[str, Facts]) -> None:
        self._root = root
        self._sys = root / "sys"
        self._architecture = architecture
        self._neighbours = neighbours
        self._has_kernel = root == Path("/")
        dmi = self._sys / "firmware/dmi/tables"
        self._table = _guarded("smbios", lambda: smbios.structures(_bytes(dmi / "DMI", smbios.MAX_TABLE_BYTES))) or []
        self._smbios_version = _guarded("smbios", lambda: _smbios_version(_bytes(dmi / "smbios_entry_point"))) or (3, 0)

    def attributes(self) -> Facts:
        parts: dict[str, Callable[[], Any]] = {
            "firmware": self._firmware,
            "product": self._product,
            "bios": lambda: smbios.bios(self._table) | self._dmi(vendor="bios_vendor", firmwareVersion="bios_version"),
            "bmc": self._bmc,
            "baseboard": lambda: (
                smbios.baseboard(self._table)
                | self._dmi(vendor="board_vendor", model="board_name", serialNumber="board_serial")
            ),
            "chassis": lambda: (
                smbios.chassis(self._table) | self._dmi(vendor="chassis_vendor", serialNumber="chassis_serial")
            ),
            "cpu": self._cpu,
            "memory": self._memory,
            "blockDevices": self._block_devices,
            "networkInterfaces": self._network_interfaces,
            "gpuDevices": self._gpu_devices,
            "pciDevices": self._pci_devices,
            "tpms": self._tpms,
        }
        found: Facts = {"collectionMethod": "agent", "architecture": self._architecture}
        for name, read in parts.items():
            value = _guarded(name, read)
            if value:
                found[name] = value[:MAX_INVENTORY_ITEMS] if isinstance(value, list) else value
        if (self._sys / "block").exists():
            found.setdefault("blockDevices", [])  # no drive is a fact, too: the only one may have failed
        return found

    # --- the machine ---

    def _dmi(self, **files: str) -> Facts:
        """Return the fields of /sys/class/dmi/id, which the kernel has read from the same table."""
        directory = self._sys / "class/dmi/id"
        read = {name: serial_number if name == "serialNumber" else clean_text for name in files}
        return _present(**{name: read[name](_line(directory / file)) for name, file in files.items()})

    def _firmware(self) -> Facts:
        efi = self._sys / "firmware/efi"
        if efi.exists():
            found: Facts = {"mode": "UEFI"}
            # Four bytes of attributes come before the value (Documentation/filesystems/efivarfs.rst).
            variable = _bytes(efi / "efivars" / _SECURE_BOOT)
            if len(variable) >= 5:
                return found | {"secureBoot": variable[4] == 1}
            # x86 without efivarfs: 2 is off, 3 is on (Documentation/arch/x86/zero-page.rst, secure_boot).
            parameters = _bytes(self._sys / "kernel/boot_params/data")
            if len(parameters) > 0x1EC and parameters[0x1EC] in (2, 3):
                return found | {"secureBoot": parameters[0x1EC] == 3}
            return found
        return {"mode": "BIOS"} if self._architecture in ("x86_64", "i686", "i386") else {}

    def _product(self) -> Facts:
        found = smbios.product(self._table, self._smbios_version)
        found |= self._dmi(vendor="sys_vendor", model="product_name", serialNumber="product_serial")
        if uuid := clean_text(_line(self._sys / "class/dmi/id/product_uuid")).lower():
            found["uuid"] = uuid
        return found if found else self._device_tree()

    def _device_tree(self) -> Facts:
        """Return the machine as a board without SMBIOS describes it (Devicetree Specification 0.4 section 2.3)."""
        tree = self._sys / "firmware/devicetree/base"
        vendor, comma, _ = _line(tree / "compatible").partition(",")
        return _present(
            vendor=clean_text(vendor) if comma else "",
            model=clean_text(_line(tree / "model")),
            serialNumber=serial_number(_line(tree / "serial-number")),
        )

    def _tpms(self) -> list[Facts]:
        kinds = {"1": "TPM1_2", "2": "TPM2_0"}
        found = []
        for path in _entries(self._sys / "class/tpm"):
            kind = kinds.get(_line(path / "tpm_version_major"), "")
            found.append(_present(interfaceType=kind, model=clean_text(_line(path / "device/description"))))
        return [each for each in found if each]

    # --- processors and memory ---

    def _cpu(self) -> Facts:
        described = smbios.processors(self._table)
        threads: Counter[int] = Counter()
        cores: dict[int, set[str]] = {}
        for path in _entries(self._sys / "devices/system/cpu"):
            topology = path / "topology"
            if re.fullmatch(r"cpu\d+", path.name) and topology.exists():
                # Boards with a device tree report -1, or the number of a cluster.
                package = _number(topology / "physical_package_id")
                threads[package] += 1
                siblings = _line(topology / "core_cpus_list") or _line(topology / "thread_siblings_list")
                cores.setdefault(package, set()).add(siblings or path.name)
        if not threads:
            return self._described_cpu(described)
        vendor, model, is_number = _processor_name(_bytes(self._root / "proc/cpuinfo").decode(errors="replace"))
        sockets = []
        for at, package in enumerate(sorted(threads)):
            # The table lists sockets, and Linux packages: they correspond if there are equally many.
            more = described[at] if len(described) == len(threads) else {}
            named = _present(vendor=vendor, model=model)
            counted = {"cores": len(cores[package]), "threads": threads[package]}
            sockets.append((named | more if is_number else more | named) | counted)
        total = sum(map(len, cores.values()))
        return {"totalCores": total, "totalThreads": threads.total(), "sockets": sockets[:MAX_INVENTORY_ITEMS]}

    def _described_cpu(self, described: list[Facts]) -> Facts:
        return _present(
            totalCores=sum(each.get("cores", 0) for each in described),
            totalThreads=sum(each.get("threads", 0) for each in described),
            sockets=described[:MAX_INVENTORY_ITEMS],
        )

    def _memory(self) -> Facts:
        modules = smbios.memory_modules(self._table)
        total = sum(module["sizeBytes"] for module in modules)
        return _present(totalBytes=total or self._memory_bytes(), modules=modules[:MAX_INVENTORY_ITEMS])

    def _memory_bytes(self) -> int:
        """Return the size of the memory without SMBIOS: that of its blocks, else what the kernel manages."""
        directory = self._sys / "devices/system/memory"
        blocks = [path for path in _entries(directory) if re.fullmatch(r"memory\d+", path.name)]
        if blocks and len(blocks) < MAX_ENTRIES and (size := _number(directory / "block_size_bytes", base=16)):
            return size * len(blocks)
        total = re.search(r"^MemTotal:\s+(\d{1,15}) kB", _bytes(self._root / "proc/meminfo").decode("ascii", "replace"))
        return int(total[1]) * 1024 if total else 0

    # --- disks ---

    def _block_devices(self) -> list[Facts]:
        found = []
        for path in _entries(self._sys / "block"):
            if not _NO_DISK.fullmatch(path.name):
                disk = _guarded(f"disk {path.name}", partial(self._disk, path))
                if disk:
                    found.append(disk)
        return found

    def _disk(self, path: Path) -> Facts:
        """Return a disk; empty for one that is none of the machine's own: removable, hidden, empty or virtual."""
        device = path / "device"
        size = _number(path / "size") * _SECTOR_BYTES
        if not size or not device.exists() or _line(path / "removable") == "1" or _line(path / "hidden") == "1":
            return {}
        rotational = _line(path / "queue/rotational")
        protocol = _protocol(path)
        kind = {"0": "SSD", "1": "HDD"}.get(rotational, "")
        vendor = clean_text(_line(device / "vendor"))
        return _present(
            name=f"/dev/{path.name.replace('!', '/')}",
            # libata reports ATA as the vendor of every disk; virtio has the number of its PCI vendor there.
            vendor="" if vendor == "ATA" or vendor.startswith("0x") else vendor,
            model=clean_text(_line(device / "model"), _line(device / "name") if protocol == "MMC" else ""),
            serialNumber=serial_number(_disk_serial(path)),
            firmwareVersion=clean_text(_line(device / "firmware_rev"), _line(device / "rev")),
            controllerType=protocol,
            # virtio reports every disk as rotational.
            driveType="" if protocol == "virtio" else kind,
            wwn=_wwn(path),
            sizeBytes=size,
            physicalBlockSizeBytes=_number(path / "queue/physical_block_size"),
            logicalBlockSizeBytes=_number(path / "queue/logical_block_size"),
        )

    # --- network ---

    def _network_interfaces(self) -> list[Facts]:
        """Return the adapters. The ports of one PCI device are one adapter."""
        adapters: dict[str, Facts] = {}
        for path in _entries(self._sys / "class/net"):
            if not _guarded(f"network card {path.name}", partial(_is_card, path)):
                continue
            port = _guarded(f"network card {path.name}", partial(self._port, path))
            if not port:
                continue
            address = port.get("pciAddress", "")
            adapter = adapters.setdefault(address.rpartition(".")[0] or path.name, {})
            if not adapter:
                adapter |= _guarded(f"network card {path.name}", partial(self._adapter, path, address)) or {}
            adapter.setdefault("ports", []).append(port)
        return list(adapters.values())

    def _adapter(self, path: Path, address: str) -> Facts:
        device = self._sys / "bus/pci/devices" / address if address else path / "device"
        firmware = ""
        if self._has_kernel:
            with suppress(OSError):
                firmware = driver_firmware(path.name)
        return _present(
            vendor=clean_text(_line(device / "vendor")),
            model=clean_text(_line(device / "device")),
            firmwareVersion=clean_text(firmware),
        )

    def _port(self, path: Path) -> Facts:
        mac = self._mac(path)
        parents = _pci_parents(path / "device")
        return {} if not mac else _present(
            name=clean_text(path.name),
            pciAddress=parents[0] if parents else "",
            mac=mac,
            speedMbps=speed if (speed := _number(path / "speed")) < 0xFFFFFFFF else 0,
            mtu=_number(path / "mtu"),
            linkStatus={"1": "LinkUp", "0": "LinkDown"}.get(_line(path / "carrier"), ""),
            lldp=self._neighbours.get(path.name),
        )  # fmt: skip

    def _mac(self, path: Path) -> str:
        """Return the permanent MAC address of a card, or the present one if the driver does not know another."""
        address = _line(path / "address")
        if _line(path / "type") == _INFINIBAND:
            octets = bytes.fromhex(address.replace(":", ""))
            return mac_address(guid_mac(octets[-8:]).hex(":")) if len(octets) == 20 else ""
        permanent = ""
        if self._has_kernel:
            with suppress(OSError):
                permanent = permanent_mac(path.name)
        slave = mac_address(_line(path / "bonding_slave/perm_hwaddr"))
        return permanent or slave or mac_address(address)

    # --- PCI ---

    def _pci(self) -> Iterator[tuple[str, Path]]:
        """Yield class and directory of the listed PCI devices, without SR-IOV functions."""
        for path in sorted(_entries(self._sys / "bus/pci/devices")):  # hexadecimal, and of equal lengths
            code = _line(path / "class")
            if code.startswith(_LISTED_CLASSES) and not (path / "physfn").exists():
                yield code, path

    def _pci_devices(self) -> list[Facts]:
        found = []
        for code, path in self._pci():
            driver = path / "driver"
            found.append(
                _present(
                    vendor=clean_text(_line(path / "vendor")),
                    model=clean_text(_line(path / "device")),
                    pciAddress=clean_text(path.name),
                    classCode=clean_text(code),
                    driver=clean_text(driver.resolve().name) if driver.exists() else "",
                )
            )
        return found

    def _gpu_devices(self) -> list[Facts]:
        found = []
        for code, path in self._pci():
            vendor = clean_text(_line(path / "vendor"))
            if code.startswith(("0x03", "0x12")) and vendor not in _BMC_DISPLAYS:
                found.append(
                    _present(vendor=vendor, model=clean_text(_line(path / "device")), description=clean_text(path.name))
                )
        return found

    # --- BMC ---

    def _bmc(self) -> Facts:
        found = smbios.bmc(self._table)
        if self._has_kernel:
            device = next((path for path in map(Path, ("/dev/ipmi0", "/dev/ipmi/0")) if path.exists()), None)
            if device is not None:
                with IpmiDevice(device) as ipmi:
                    found |= _guarded("bmc by IPMI", lambda: bmc_facts(ipmi.request)) or {}
        return found


# --- values -----------------------------------------------------------------------------------------------------------


def _smbios_version(entry_point: bytes) -> tuple[int, int]:
    """Return the version of SMBIOS (DSP0134 sections 5.2.1 and 5.2.2); 3.0 if it is unknown."""
    if entry_point.startswith(b"_SM3_") and len(entry_point) >= 9:
        return entry_point[7], entry_point[8]
    return (entry_point[6], entry_point[7]) if entry_point.startswith(b"_SM_") and len(entry_point) >= 8 else (3, 0)


def _processor_name(cpuinfo: str) -> tuple[str, str, bool]:
    """Return vendor and model of the first processor, and True if the model is but a part number, as on Arm."""
    first = dict(re.findall(r"^([^\t\n:]+?)\s*: ?(.*)$", cpuinfo.partition("\n\n")[0], re.MULTILINE))
    vendor = clean_text(first.get("vendor_id"))
    if implementer := first.get("CPU implementer", ""):
        vendor = _ARM_IMPLEMENTERS.get(int(implementer[:6], 16), clean_text(implementer))
    return vendor, clean_text(first.get("model name"), first.get("CPU part")), "model name" not in first


def _protocol(path: Path) -> str:
    """Return the protocol of a disk in Redfish's words, if it has one there; empty if it is unknown."""
    way = str(path.resolve())
    if path.name.startswith("nvme"):
        return "NVMe"
    if path.name.startswith("mmcblk"):
        return "MMC"
    if "/usb" in way:
        return "USB"
    if path.name.startswith("vd") or "/virtio" in way:
        return "virtio"
    if _line(path / "device/vendor") == "ATA":
        return "SATA"
    return "SAS" if "/end_device-" in way or (path / "device/sas_address").exists() else ""


def _disk_serial(path: Path) -> str:
    """Return the serial number of a disk: of the NVMe controller, of virtio, or the SCSI page 80h (SPC-5 7.7.20)."""
    text = _line(path / "device/serial") or _line(path / "serial")
    if text:
        return text
    page = _bytes(path / "device/vpd_pg80", 512)
    size = int.from_bytes(page[2:4], "big") if page[1:2] == b"\x80" else 0
    return page[4 : 4 + size].decode(errors="replace").strip("\0 ")


def _wwn(path: Path) -> str:
    """Return the World Wide Name of a disk, NAA or EUI-64 in hexadecimal, as a BMC's DurableName (DSP0268)."""
    for name in (_line(path / "device/wwid"), _line(path / "wwid")):
        match = re.fullmatch(r"(?:naa|eui)\.([0-9a-f]{16,32})", name.lower())
        if match is not None and match[1].strip("0"):
            return match[1]
    return ""


_APPLICATION, _TRANSPORT = 0x06, 0x0C
_GET_DEVICE_ID, _GET_CHANNEL_INFO, _GET_LAN_PARAMETERS = 0x01, 0x42, 0x02
_LAN: Final = 4
_CHANNELS: Final = range(1, 12)
_ADDRESS, _MAC = 3, 5


def bmc_facts(request: IpmiRequest) -> Facts:
    """Return firmware version, address and MAC address of the BMC (IPMI 2.0 sections 20.1, 22.24 and 23.2).

    Raises OSError if it does not answer.
    """
    device = request(_APPLICATION, _GET_DEVICE_ID, b"")
    found: Facts = {}
    if len(device) >= 5 and device[0] == 0:
        found["firmwareVersion"] = f"{device[3] & 0x7F}.{device[4]:02x}"
    for channel in _lan_channels(request):
        address = _lan_parameter(request, channel, _ADDRESS)
        mac = mac_address(_lan_parameter(request, channel, _MAC)[:6].hex(":"))
        if len(address) >= 4 and smbios.is_reachable(IPv4Address(address[:4])):
            found["address"] = str(IPv4Address(address[:4]))
        if mac:
            found["nic"] = {"ports": [{"mac": mac}]}
        if "address" in found or mac:
            break
    return found


def _lan_channels(request: IpmiRequest) -> Iterable[int]:
    for channel in _CHANNELS:
        answer = request(_APPLICATION, _GET_CHANNEL_INFO, bytes((channel,)))
        if len(answer) >= 3 and answer[0] == 0 and answer[2] & 0x7F == _LAN:
            yield channel


def _lan_parameter(request: IpmiRequest, channel: int, parameter: int) -> bytes:
    """Return a parameter of a LAN channel, without completion code and revision; empty if there is none."""
    answer = request(_TRANSPORT, _GET_LAN_PARAMETERS, bytes((channel, parameter, 0, 0)))
    return answer[2:] if answer[:1] == b"\0" else b""
