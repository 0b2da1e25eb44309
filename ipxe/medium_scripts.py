"""The script on a boot medium: from the medium straight to the machine's own script, which the edge has.

It is the same until the Hardware's interface, or an address of the edge, changes: nothing in it is of the moment, and
nothing is secret. Whoever asks for a part of an image again gets the same bytes.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address

from ipxe.scripts import Origin, ScriptError, Scripts
from tink.api.v1alpha2 import DHCP, Hardware
from tink.printable import printable


class MediumKind(StrEnum):
    """What a machine that was started from a medium says of it when it asks for its script (`?medium=`)."""

    BOOT = "boot"
    """It asks DHCP for an address."""
    STATIC = "static"
    """It has the address from the Hardware."""


class MediumScripts:
    """Renders them, with the settings of `scripts`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def compile(self, mac: str, hardware: Hardware | None, origin: Origin, kind: MediumKind) -> str:
        """What iPXE runs on the interface `mac` of `hardware` (None: of a machine that no Hardware describes).

        A VLAN is gone into first. Raises ScriptError.
        """
        interface = hardware.spec.network_interfaces.get(mac) if hardware is not None else None
        dhcp = (interface.dhcp if interface is not None else None) or DHCP()
        name = f"{hardware.metadata.namespace}/{hardware.metadata.name}" if hardware is not None else ""
        if kind is MediumKind.STATIC and hardware is None:
            raise ScriptError(f"{mac} has no Hardware, and so no address that could stand on a medium")
        field = f"Hardware {name}: spec.networkInterfaces[{mac}].dhcp"
        settings = _settings(field, dhcp) if kind is MediumKind.STATIC else []
        urls = [f"{self._scripts.script_url(mac, each)}?medium={kind}" for each in (origin, *origin.others)]
        who = printable(name or "no Hardware", ascii_only=True)
        values = {"mac": mac, "hardware": who, "vlan": dhcp.vlan_id or "", "settings": settings, "urls": urls}
        return self._scripts.environment.get_template("medium.ipxe.j2").render(values)


def _settings(field: str, dhcp: DHCP) -> list[tuple[str, str]]:
    """The settings of iPXE for a reservation. Raises ScriptError."""
    if not dhcp.ip or not dhcp.netmask:
        raise ScriptError(f"{field} needs ip and netmask, for a medium that does without DHCP")
    given = {
        "ip": dhcp.ip,
        "netmask": dhcp.netmask,
        "gateway": dhcp.gateway,
        "dns": next(filter(_is_ipv4, dhcp.nameservers or ()), None),  # iPXE asks one
    }
    return [(name, value) for name, value in given.items() if value]


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True
