"""Faults of machines that no Hardware describes: a rule of --discover, or a list, is wrong, or the machine is.

Each has a rule of its own, whose range is the address of its machine alone.
"""

from __future__ import annotations

import time
from typing import Any, Final

from tests.interop.faults.machine import Discovered, Fault, Scripted

_CONNECTED: Final = r"connected"
_AFTER: Final = "its agent's connection"
PORT, OTHER_PORT = "Ethernet1/1", "Ethernet1/9"


def _discovers(firmware: Scripted) -> None:
    firmware.discover()


def _boots_until_its_script(firmware: Scripted) -> None:
    firmware.to_ipxe()
    firmware.get(f"/ipxe/script/{firmware.mac}/auto.ipxe")


def _introduces_itself(firmware: Scripted) -> float:
    """Boot to an agent that reports an inventory with one card, which is at OTHER_PORT."""
    firmware.to_osie()
    firmware.agent(inventory=_inventory(firmware.mac))
    return time.time()


def _has_an_old_agent(firmware: Scripted) -> float:
    firmware.to_osie()
    firmware.agent(inventory={})
    return time.time()


def _inventory(mac: str) -> dict[str, Any]:
    neighbour = {"systemName": "switch7", "chassisID": "00:1c:73:00:00:07", "portID": OTHER_PORT}
    return {
        "product": {"vendor": "Dell Inc.", "model": "PowerEdge R650", "serialNumber": f"SN{mac.replace(':', '')}"},
        "memory": {"totalBytes": 1 << 38},
        "networkInterfaces": [{"ports": [{"name": "eno1", "mac": mac, "linkStatus": "LinkUp", "lldp": neighbour}]}],
    }


FAULTS: Final = [
    Fault(
        "the OSIE of the rule is missing",
        _boots_until_its_script,
        "ScriptFailed",
        r"OSIE default/not-there, which Hardware discovery-\S+ names, does not exist",
        registered=False,
        discovered=Discovered(osie="not-there"),
    ),
    Fault(
        "the range of the rule is full",
        _discovers,
        "DhcpRefused",
        r"not admitted: the range \S+ of rule \S+ has no free address",
        registered=False,
        discovered=Discovered(is_full=True),
    ),
    Fault(
        "the line of the list is wrong",
        _introduces_itself,
        "NotExpected",
        r"not as expected: ",
        registered=False,
        discovered=Discovered(line="rack7-99,{mac},10.7.0.300/24,"),
        since=_CONNECTED,
        moment=_AFTER,
    ),
    Fault(
        "the machine is at the wrong port",
        _introduces_itself,
        "WrongPort",
        rf"not as expected: .*{OTHER_PORT}",
        registered=False,
        discovered=Discovered(line=f"rack7-01,{{mac}},,switch7/{PORT}", becomes="rack7-01"),
        since=_CONNECTED,
        moment=_AFTER,
    ),
    Fault(
        "the agent is too old to report",
        _has_an_old_agent,
        "NotIntroduced",
        r"its agent has been connected for \d+ s, but has reported no inventory",
        registered=False,
        discovered=Discovered(),
        since=_CONNECTED,
        plus=75.0,
        moment="75 s after its agent's connection",
    ),
]
