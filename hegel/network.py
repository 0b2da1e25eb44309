"""A machine's interfaces and its network configuration."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv4Address

from tink.api.v1alpha2 import DHCP, Hardware
from tink.mac import is_mac

_NO_RESERVATION = DHCP()


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """One interface. `number` counts from 0, in the Hardware's order; `by_dhcp` is True if DHCP would be answered.

    `dhcp` is its reservation, an empty one if the Hardware has none.
    """

    number: int
    mac: str
    dhcp: DHCP
    by_dhcp: bool

    @property
    def is_addressed(self) -> bool:
        """Return True if the interface has an address."""
        return self.dhcp.ip is not None or self.dhcp.ipv6 is not None


def links(hardware: Hardware) -> list[InterfaceFacts]:
    """Return all interfaces with a valid MAC. Older schemas allowed invalid ones, which the inventory logs."""
    return [
        InterfaceFacts(number, mac, one.dhcp or _NO_RESERVATION, not one.disable_dhcp)
        for number, (mac, one) in enumerate(hardware.spec.network_interfaces.items())
        if is_mac(mac)
    ]


def primary(all_links: list[InterfaceFacts]) -> InterfaceFacts | None:
    """Return the interface that gives the machine its name and address: the first with an address, else the first."""
    return next((link for link in all_links if link.is_addressed), all_links[0] if all_links else None)


# --- Network configuration ---
#
# NoCloud's `network-config`, version 2, has the shape of netplan. cloud-init renders it for netplan, systemd-networkd,
# NetworkManager, ifupdown and sysconfig. All of them render this subset correctly:
#   * interfaces are matched by MAC address and keep their names. A new name would need an idle interface, and the one
#     that fetched this document is busy. Only the interface below a VLAN gets one (`set-name`), because ifupdown and
#     sysconfig know it by its name alone;
#   * the default route is `0.0.0.0/0`: netplan before 0.103 does not know `default`;
#   * several default routes need metrics, or netplan rejects them: 100, 200, ... in the Hardware's order;
#   * an IPv6 address comes by DHCPv6 (`dhcp6`), and its routes from router advertisements. If DHCP is not answered, the
#     address is static;
#   * an address that several interfaces have is left to DHCP if that is answered there: a static one would be on each
#     of them, also on one without a link;
#   * DHCP clients can reach a gateway outside the subnet; a static route of ifupdown or sysconfig can't. Such an
#     interface is left to DHCP if that is answered there.


_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+", re.ASCII)


def network_config(all_links: list[InterfaceFacts]) -> bytes:
    """Return the document; empty if no interface can be configured (cloud-init then uses DHCP on one interface)."""
    # There must be an address, and either a netmask for it or a DHCP server that provides one.
    configured = [
        link for link in all_links if (link.dhcp.ip and (link.dhcp.netmask or link.by_dhcp)) or link.dhcp.ipv6
    ]
    gateways = [link for link in configured if link.dhcp.ip and link.dhcp.gateway is not None]
    metrics = {link.mac: 100 * place for place, link in enumerate(gateways, 1)} if len(gateways) > 1 else {}
    counts = Counter(link.dhcp.ip for link in configured)
    ethernets: list[str] = []
    vlans: list[str] = []
    for link in configured:
        name = f"nic{link.number}"
        ethernets += [f"  {name}:", "    match:", f'      macaddress: "{link.mac}"']
        addressing = _addressing(link, metrics.get(link.mac), is_shared=counts[link.dhcp.ip] > 1)
        vlan = link.dhcp.vlan_id
        if vlan is None:
            ethernets += addressing
        else:
            # At most 15 characters fit into a name (Linux, IFNAMSIZ): "nic63.4094" does.
            ethernets += [f"    set-name: {name}"]
            vlans += [f"  {name}.{vlan}:", f"    id: {vlan}", f"    link: {name}", *addressing]
    if not ethernets:
        return b""
    lines = ["version: 2", "ethernets:", *ethernets, *(["vlans:", *vlans] if vlans else []), ""]
    return "\n".join(lines).encode()


def _addressing(link: InterfaceFacts, metric: int | None, *, is_shared: bool) -> list[str]:
    """Return the lines of an interface: the address that DHCP would assign, as a static one where possible."""
    dhcp = link.dhcp
    lines, addresses, servers = [], [], []
    is_on_link = dhcp.gateway is None or _same_subnet(dhcp)
    if dhcp.ip is not None and (dhcp.netmask is None or ((is_shared or not is_on_link) and link.by_dhcp)):
        if link.by_dhcp:
            lines.append("    dhcp4: true")
            lines += ["    dhcp4-overrides:", f"      route-metric: {metric}"] if metric is not None else []
    elif dhcp.ip is not None and dhcp.netmask is not None:
        addresses.append(f"{dhcp.ip}/{int(IPv4Address(dhcp.netmask)).bit_count()}")
        # Host names of nameservers are for DHCP's readers: a resolver takes addresses only.
        servers += [server for server in dict.fromkeys(dhcp.nameservers or ()) if _IPV4.fullmatch(server)]
    if dhcp.ipv6 is not None and link.by_dhcp:
        lines.append("    dhcp6: true")
    elif dhcp.ipv6 is not None:
        addresses.append(f"{dhcp.ipv6.address}/{dhcp.ipv6.prefix_length}")
        servers += dhcp.ipv6.nameservers or []
    if addresses:
        lines += ["    addresses:", *(f'    - "{address}"' for address in addresses)]
    if addresses and dhcp.gateway is not None and dhcp.netmask is not None and "." in addresses[0]:
        lines += ["    routes:", '    - to: "0.0.0.0/0"', f'      via: "{dhcp.gateway}"']
        if metric is not None:
            lines.append(f"      metric: {metric}")
        if not is_on_link:
            lines.append("      on-link: true")
    if servers:
        lines += ["    nameservers:", "      addresses:", *(f'      - "{server}"' for server in servers)]
    return lines


def _same_subnet(dhcp: DHCP) -> bool:
    """Return True if gateway and address are in the same network."""
    if dhcp.netmask is None or dhcp.ip is None or dhcp.gateway is None:
        return False
    ip, gateway, netmask = (int(IPv4Address(each)) for each in (dhcp.ip, dhcp.gateway, dhcp.netmask))
    return not (ip ^ gateway) & netmask
