"""A site of discovered machines: its list of expected machines, and what the agents report.

site = Site(1000)
site.config_map()                        the list
site.hardware(7)                         the Hardware of machine 7, with its inventory
plant(site, "memory short", 7)           an error: returns the reason that the verdict must have

Machines and errors are those of a simulated fleet (`edge.fleet.discovery`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from edge.fleet.discovery import COLUMNS, ERRORS, as_ordered
from tink.api.annotations import AUTO_DISCOVERED_LABEL, EXPECTED_MACHINES_LABEL
from tink.api.v1alpha2 import Raw
from tink.discovery.expected import read_list
from tink.discovery.model import ExpectedMachine, VerdictReason, discovered_name


class Site:
    """Machines as they were ordered. `attributes[n]` is the in-band inventory of machine n, which a test may change."""

    def __init__(self, count: int, *, namespace: str = "default", discovered: bool = True) -> None:
        self.count = count
        self.namespace = namespace
        self.discovered = discovered
        machines, problems = read_list(self.text(), namespace, "rack.csv")
        assert not problems
        self.attributes = [_as_ordered(each, number) for number, each in enumerate(machines)]
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


def _as_ordered(machine: ExpectedMachine, number: int) -> Raw:
    found = as_ordered(machine)
    found["collectionMethod"] = "agent"
    found["product"] |= {"vendor": "Dell Inc.", "uuid": f"4c4c4544-0000-1000-8000-{number:012x}"}
    found["networkInterfaces"][0]["ports"][0]["lldp"]["chassisID"] = f"00:1c:73:00:00:{number // 40:02x}"
    return found


def plant(site: Site, error: str, number: int) -> dict[int, VerdictReason]:
    """Plant an error of `edge.fleet.discovery.ERRORS`. Return the reason that each affected machine must have."""
    ERRORS[error].change(site.attributes, number)
    return {number + each: ERRORS[error].reason for each in ERRORS[error].affected}
