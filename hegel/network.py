"""cloud-init's network configuration, version 2, derived from a Hardware's interfaces.

Version 2 of NoCloud's `network-config` has the shape of netplan. Interfaces are matched by MAC address, for their
names are the operating system's own affair.
"""

from __future__ import annotations

import ipaddress

from hegel.yamltext import to_yaml
from tink.api.v1alpha2 import DHCP, Hardware


def network_config(hardware: Hardware) -> bytes:
    """The document; empty if the Hardware says nothing about addresses (cloud-init then uses DHCP on one interface)."""
    ethernets: dict[str, object] = {}
    vlans: dict[str, object] = {}
    for number, (mac, interface) in enumerate(hardware.spec.network_interfaces.items()):
        dhcp = interface.dhcp
        if dhcp is None or dhcp.ip is None:
            continue
        name = f"nic{number}"
        link: dict[str, object] = {"match": {"macaddress": mac}}
        if dhcp.vlan_id is None:
            ethernets[name] = link | _addressing(dhcp)
        else:
            ethernets[name] = link
            vlans[f"{name}.{dhcp.vlan_id}"] = {"id": int(dhcp.vlan_id), "link": name} | _addressing(dhcp)
    if not ethernets:
        return b""
    return to_yaml({"version": 2, "ethernets": ethernets} | ({"vlans": vlans} if vlans else {}))


def _addressing(dhcp: DHCP) -> dict[str, object]:
    """The address as DHCP would give it, but static; without a netmask only DHCP itself can tell."""
    if dhcp.netmask is None:
        return {"dhcp4": True}
    prefix = ipaddress.IPv4Network(f"0.0.0.0/{dhcp.netmask}").prefixlen
    addressing: dict[str, object] = {"dhcp4": False, "addresses": [f"{dhcp.ip}/{prefix}"]}
    if dhcp.gateway is not None:
        addressing["routes"] = [{"to": "0.0.0.0/0", "via": dhcp.gateway}]
    nameservers = [server for server in dhcp.nameservers or [] if _is_address(server)]
    if nameservers:
        addressing["nameservers"] = {"addresses": nameservers}
    return addressing


def _is_address(server: str) -> bool:
    try:
        ipaddress.ip_address(server)
    except ValueError:
        return False
    return True
