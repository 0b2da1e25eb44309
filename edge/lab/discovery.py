"""Discovery in the lab: the rule that admits its machine, the list that expects it, and the switch that it hangs on.

The switch is Debian's lldpd at the host's end of the machine's cables. A bridge does not forward LLDP frames (IEEE
802.1D section 7.12.6), so lldpd sends on the taps themselves. It sends every 30 s, as switches do.
"""

from __future__ import annotations

import csv
import io
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import Final

from edge.building.shell import Daemon
from edge.lab.machine import Firmware, MachineSettings
from edge.lab.rack import RackNetwork
from tink.api.v1alpha2 import Raw, as_mapping
from tink.discovery.identity import ports_of
from tink.discovery.model import VerdictReason, condition_of

SECOND_MAC: Final = "52:54:00:12:34:57"
SECOND_TAP: Final = "machine1"
"""The second network card of the machine, and its tap."""
DISKS_MIB: Final = (2048, 3072)
"""The sizes of the machine's disks in MiB."""

SWITCH: Final = "lab-switch"
PORT: Final = "Ethernet1/7"
"""The port that the list names for the card from which the machine boots."""
SECOND_PORT: Final = "Ethernet1/8"
RANGE: Final = ("172.31.77.100", "172.31.77.199")
"""The first and the last address for discovered machines."""
ADDRESS: Final = "172.31.77.50"
"""The address that the list reserves."""

_LLDP_SECONDS: Final = 30
"""The interval of LLDP frames: msgTxInterval of IEEE 802.1AB-2016 section 9.2.5.7."""
# lldpcli reads the configuration as another user, so a copy is where that user may read. With a /run of its own, it
# meets no lldpd of this host.
_START: Final = """\
mount -t tmpfs -o mode=755 tmpfs /run && mkdir /run/lldpd && cp "$1" /run/lldpd.conf
exec lldpd -d -u /run/lldpd.socket -I "$2" -C "$3" -O /run/lldpd.conf
"""


class ApprovalMode(StrEnum):
    """How the lab's machine becomes an ordinary Hardware."""

    RULE = "rule"  # the rule admits every machine, and the lab approves it as an operator does
    LIST = "list"  # the rule admits machines on a list, and the line with its serial number approves it


def rule(mode: ApprovalMode, network: RackNetwork) -> str:
    """Return the rule of `--discover`."""
    parts = [f"range={'-'.join(RANGE)}/{network.prefix}", f"gateway={network.address}", f"nameserver={network.address}"]
    parts += ["osie=default/lab", "name=lab", *(["only=listed"] if mode is ApprovalMode.LIST else [])]
    return ",".join(parts)


def expected_machines(
    name: str, machine: MachineSettings, network: RackNetwork, account: tuple[str, str] | None
) -> str:
    """Return the list with the lab's machine, which it knows by its serial number.

    `account`: user and password of the machine's BMC at the rack's address; None: no BMC.
    """
    line = {
        "name": name,
        "serial": machine.serial,
        "ip": f"{ADDRESS}/{network.prefix}",
        "gateway": network.address,
        "nameservers": network.address,
        "osie": "lab",
        "model": "lab",
        "memory": f"{machine.memory_mib // 1024}Gi" if machine.memory_mib % 1024 == 0 else "",
        "disks": "|".join(f"{size // 1024}GB" for size in machine.disks_mib),
        "firmware": "BIOS" if machine.firmware is Firmware.BIOS else "UEFI",
        "links": f"{SWITCH}/{PORT} {SWITCH}/{SECOND_PORT}",
    }
    if account is not None:
        user, password = account
        line |= {"bmc_address": network.address, "bmc_username": user, "bmc_password": password}
    out = io.StringIO()
    writer = csv.DictWriter(out, list(line))
    writer.writeheader()
    writer.writerow(line)
    return out.getvalue()


def expected_reason(mode: ApprovalMode, port: str) -> VerdictReason:
    """Return the verdict on the lab's machine at a port of the switch, once the machine knows the port."""
    if mode is ApprovalMode.RULE:
        return VerdictReason.NO_EXPECTATIONS
    return VerdictReason.MATCHES if port == PORT else VerdictReason.WRONG_PORT


async def start_switch(stack: AsyncExitStack, tap: str, port: str, directory: Path, logs: Path) -> None:
    """Announce `port` on the cable of `tap`, and the second port on that of the second card, until `stack` ends.

    Raises CommandError if lldpd does not start.
    """
    file = directory / "lldpd.conf"
    file.write_text(
        f"configure system hostname {SWITCH}\n"
        f"configure lldp tx-interval {_LLDP_SECONDS}\n"
        f"configure ports {tap} lldp portidsubtype local {port}\n"
        f"configure ports {SECOND_TAP} lldp portidsubtype local {SECOND_PORT}\n"
    )
    command: list[str | Path] = ["unshare", "--mount", "sh", "-c", _START, "sh", file, f"{tap},{SECOND_TAP}", tap]
    switch = await Daemon.start("lldpd", command, logs / "lldpd.log")
    stack.push_async_callback(switch.stop)


def has_neighbours(hardware: Raw) -> bool:
    """Return True if a machine has reported the LLDP neighbours of all its network cards."""
    ports = [*ports_of(in_band(hardware))]
    return bool(ports) and all(each.get("lldp") for each in ports)


def in_band(hardware: Raw) -> Raw:
    """Return the inventory that the agent of a machine has reported; empty before."""
    status = as_mapping(hardware.get("status"))
    return as_mapping(as_mapping(status.get("inventory")).get("inBand"))


def verdict_of(hardware: Raw) -> str:
    """Return the condition AsExpected in one line; empty before the verdict."""
    condition = condition_of(hardware)
    return f"{condition.get('reason')}: {condition.get('message')}" if condition else ""


def described(hardware: Raw) -> str:
    """Return the facts that a machine has reported in one line."""
    facts = in_band(hardware)
    product = as_mapping(facts.get("product"))
    parts = [f"serial number {product.get('serialNumber')}, UUID {product.get('uuid')}"]
    parts.append(str(as_mapping(facts.get("firmware")).get("mode")))
    parts.append(f"{int(as_mapping(facts.get('memory')).get('totalBytes') or 0) >> 20} MiB")
    for disk in facts.get("blockDevices") or ():
        parts.append(f"{disk.get('name')} {int(disk.get('sizeBytes') or 0) >> 20} MiB {disk.get('serialNumber')}")
    parts += [_port(each) for each in ports_of(facts)]
    return ", ".join(parts)


def _port(port: Raw) -> str:
    neighbour = as_mapping(port.get("lldp"))
    cable = f" at {neighbour.get('systemName')}/{neighbour.get('portID')}" if neighbour else ""
    return f"{port.get('name')} {port.get('mac')}{cable}"


def operators_part(hardware: Raw) -> Raw:
    """Return the parts of a Hardware's spec that no machine and no list knows, such as its user-data."""
    known = ("networkInterfaces", "osie", "bmcRef")
    return {name: value for name, value in as_mapping(hardware.get("spec")).items() if name not in known}
