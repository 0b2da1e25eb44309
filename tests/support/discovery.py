"""A site of discovered machines: its list of expected machines, and what the agents report.

site = Site(1000)
site.config_map()                        the list
site.hardware(7)                         the Hardware of machine 7, with its inventory
plant(site, "memory", 7)                 an error: returns the reason that the verdict must have
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from tink.api.annotations import AUTO_DISCOVERED_LABEL, EXPECTED_MACHINES_LABEL
from tink.api.v1alpha2 import Raw
from tink.discovery.model import VerdictReason, discovered_name

COLUMNS = "name,serial,mac,bmc_mac,ip,gateway,vendor,model,cores,memory,disks,firmware,links,access_vlan"
GIB = 1 << 30


class Site:
    """Machines as they were ordered. `attributes[n]` is the in-band inventory of machine n, which a test may change."""

    def __init__(self, count: int, *, namespace: str = "default", discovered: bool = True) -> None:
        self.count = count
        self.namespace = namespace
        self.discovered = discovered
        self.attributes = [_attributes(number) for number in range(count)]
        self.out_of_band: dict[int, Raw] = {}

    def line(self, number: int) -> str:
        """Return the line of a machine."""
        address = f"10.{7 + number // 62500}.{number // 250 % 250}.{number % 250 + 2}/8"
        return (
            f"{name(number)},SN{number:05},{mac(number)} {mac(number, 1)},{mac(number, 9)},"
            f"{address},10.0.0.1,Dell,PowerEdge R650,32,256Gi,"
            f"2x480GB SSD|1x3.84TB NVMe,UEFI,{mac(number)}@switch-{number // 40}/Ethernet1/{number % 40},7"
        )

    def text(self, lines: Mapping[int, str] | None = None) -> str:
        """Return the list; `lines` replace some of its lines."""
        changed = lines or {}
        return "\n".join([COLUMNS, *(changed.get(each, self.line(each)) for each in range(self.count))]) + "\n"

    def config_map(self, lines: Mapping[int, str] | None = None) -> Raw:
        """Return the ConfigMap with the list."""
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": "rack",
                "namespace": self.namespace,
                "labels": {EXPECTED_MACHINES_LABEL: "true"},
            },
            "data": {"rack.csv": self.text(lines)},
        }

    def hardware(self, number: int) -> Raw:
        """Return the Hardware of a discovered machine, with its inventory; of an approved one with its name."""
        inventory: Raw = {"inBand": copy.deepcopy(self.attributes[number])}
        if number in self.out_of_band:
            inventory["outOfBand"] = self.out_of_band[number]
        metadata: Raw = {
            "name": discovered_name(mac(number)) if self.discovered else name(number),
            "namespace": self.namespace,
            "labels": {AUTO_DISCOVERED_LABEL: "true"} if self.discovered else {},
        }
        return {
            "apiVersion": "tinkerbell.org/v1alpha2",
            "kind": "Hardware",
            "metadata": metadata,
            "spec": {
                "networkInterfaces": {mac(number): {"dhcp": {"ip": f"172.31.{number // 250}.{number % 250 + 2}"}}}
            },
            "status": {"inventory": inventory},
        }


def name(number: int) -> str:
    """Return the name of a machine on the list."""
    return f"rack-{number:04}"


def mac(number: int, port: int = 0) -> str:
    """Return a MAC address of a machine; port 9 is its BMC."""
    return f"b0:26:28:{port:02x}:{number >> 8:02x}:{number & 255:02x}"


def _attributes(number: int) -> Raw:
    neighbour = {
        "chassisID": f"00:1c:73:00:00:{number // 40:02x}",
        "systemName": f"switch-{number // 40}",
        "portID": f"Ethernet1/{number % 40}",
        "vlanID": 7,
    }
    return {
        "collectionMethod": "agent",
        "architecture": "x86_64",
        "firmware": {"mode": "UEFI", "secureBoot": False},
        "product": {
            "vendor": "Dell Inc.",
            "model": "PowerEdge R650",
            "serialNumber": f"SN{number:05}",
            "uuid": f"4c4c4544-0000-1000-8000-{number:012x}",
        },
        "bmc": {"nic": {"ports": [{"mac": mac(number, 9)}]}},
        "cpu": {"totalCores": 32, "totalThreads": 64},
        "memory": {"totalBytes": 256 * GIB},
        "blockDevices": [
            {"name": "/dev/sda", "sizeBytes": 480_103_981_056, "driveType": "SSD", "controllerType": "SATA"},
            {"name": "/dev/sdb", "sizeBytes": 480_103_981_056, "driveType": "SSD", "controllerType": "SATA"},
            {"name": "/dev/nvme0n1", "sizeBytes": 3_840_755_982_336, "driveType": "SSD", "controllerType": "NVMe"},
        ],
        "networkInterfaces": [
            {
                "ports": [
                    {"name": "eno1", "mac": mac(number), "linkStatus": "LinkUp", "lldp": neighbour},
                    {"name": "eno2", "mac": mac(number, 1), "linkStatus": "LinkDown"},
                ]
            }
        ],
    }


# --- planted errors ---------------------------------------------------------------------------------------------------


def _port(site: Site, number: int) -> dict[str, Any]:
    port: dict[str, Any] = site.attributes[number]["networkInterfaces"][0]["ports"][0]
    return port


def _swap_cables(site: Site, number: int) -> None:
    """Exchange the cables of two machines: both are wrong."""
    one, two = _port(site, number), _port(site, number + 1)
    one["lldp"], two["lldp"] = two["lldp"], one["lldp"]


def _move(site: Site, number: int) -> None:
    _port(site, number)["lldp"] = _port(site, number)["lldp"] | {"portID": "Ethernet1/47"}


def _lose_disk(site: Site, number: int) -> None:
    del site.attributes[number]["blockDevices"][1]


def _other_disk(site: Site, number: int) -> None:
    site.attributes[number]["blockDevices"][1]["sizeBytes"] = 240_057_409_536


def _lose_memory(site: Site, number: int) -> None:
    site.attributes[number]["memory"]["totalBytes"] = 240 * GIB


def _same_serial(site: Site, number: int) -> None:
    site.attributes[number]["product"]["serialNumber"] = f"SN{number + 1:05}"


def _bios(site: Site, number: int) -> None:
    site.attributes[number]["firmware"]["mode"] = "BIOS"


def _vlan(site: Site, number: int) -> None:
    _port(site, number)["lldp"] = _port(site, number)["lldp"] | {"vlanID": 1}


def _other_bmc(site: Site, number: int) -> None:
    site.out_of_band[number] = {"product": {"serialNumber": f"SN{number + 7:05}"}}


def _clock(site: Site, number: int) -> None:
    site.attributes[number]["clockOffsetSeconds"] = -86_400


def _model(site: Site, number: int) -> None:
    site.attributes[number]["product"]["model"] = "PowerEdge R450"


ERRORS: Mapping[str, tuple[Callable[[Site, int], None], VerdictReason, tuple[int, ...]]] = {
    "swapped cables": (_swap_cables, VerdictReason.SWAPPED_CABLES, (0, 1)),
    "wrong port": (_move, VerdictReason.WRONG_PORT, (0,)),
    "disk missing": (_lose_disk, VerdictReason.DISK_MISSING, (0,)),
    "disk of another size": (_other_disk, VerdictReason.DISK_SIZE, (0,)),
    "memory short": (_lose_memory, VerdictReason.MEMORY_SHORT, (0,)),
    "duplicate serial": (_same_serial, VerdictReason.DUPLICATE_SERIAL, (0, 1)),
    "firmware mode": (_bios, VerdictReason.WRONG_FIRMWARE_MODE, (0,)),
    "VLAN": (_vlan, VerdictReason.WRONG_VLAN, (0,)),
    "BMC of another machine": (_other_bmc, VerdictReason.OTHER_BMC, (0,)),
    "clock": (_clock, VerdictReason.CLOCK_WRONG, (0,)),
    "model": (_model, VerdictReason.WRONG_MODEL, (0,)),
}
"""Each error with its reason, and the numbers of the affected machines, counted from the one where it is planted."""


def plant(site: Site, error: str, number: int) -> dict[int, VerdictReason]:
    """Plant an error at a machine. Return the reason that each affected machine must have among its findings."""
    change, reason, affected = ERRORS[error]
    change(site, number)
    return {number + each: reason for each in affected}
