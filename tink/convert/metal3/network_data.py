"""Convert OpenStack's network_data.json, as Metal3's networkData Secrets hold it, to what DHCP serves to each
interface.

The document lists links (interfaces, bonds, VLANs), networks (an address on a link, with its routes) and services (name
servers). DHCP serves one IPv4 address with one gateway to an interface. So the rest is reported: a second network on a
link, and routes other than the default route. An address of a bond is served to the member that netboots. An address of
a VLAN is served with that VLAN's ID, if the interface below has no address of its own.

Format: OpenStack Nova, "Network Data" schema (doc/api_schemas/network_data.json). Cluster API's Metal3 provider writes
it as YAML.
"""

from __future__ import annotations

import ipaddress
import json
from contextlib import suppress
from typing import Any

from tink.api import bounds
from tink.api.v1alpha2 import Raw
from tink.api.yaml import YamlError, documents
from tink.convert import constraints
from tink.convert.fields import Fields
from tink.convert.findings import Findings

_TOO_LARGE = "is larger than 256 KiB, which no machine's network takes"
_DHCP_TYPES = ("ipv4_dhcp", "ipv4")
_MAX_LINKS = 256
MAX_BYTES = 256 << 10
"""Maximum bytes of a document, also after its aliases are expanded. One with `_MAX_LINKS` links needs a third."""


def parsed(text: str) -> Any:
    """Return the document, which may be JSON or YAML. Raises ValueError, whose text quotes nothing of the document."""
    if len(text) > MAX_BYTES:
        raise ValueError(_TOO_LARGE)
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    try:
        found = list(documents(text))
    except (YamlError, RecursionError):
        raise ValueError("is neither JSON nor YAML") from None
    if len(found) > 1:
        raise ValueError("must be one document of JSON or YAML")
    if len(json.dumps(found)) > MAX_BYTES:
        raise ValueError(_TOO_LARGE)
    return found[0] if found else None


def served(document: Any, path: str, boot_mac: str, findings: Findings) -> dict[str, Raw]:
    """Return what DHCP serves by MAC address, in the order of the document; {} for interfaces without an address.

    `path` is the place of the document, for the findings. `boot_mac` is the interface that netboots, or "".
    """
    return _Network(Fields(document, findings, path), boot_mac, findings).result()


class _Link:
    """One entry of `links`."""

    def __init__(self, fields: Fields) -> None:
        self.path = fields.path
        self.id = fields.text("id") or ""
        self.kind = fields.text("type") or "phy"
        self.mac = constraints.canonical_mac(fields.text("ethernet_mac_address") or "")
        self.members = [member for _, member in fields.texts("bond_links")][:_MAX_LINKS]
        self.below = fields.text("vlan_link") or ""
        self.vlan = fields.take("vlan_id")
        self.vlan_mac = constraints.canonical_mac(fields.text("vlan_mac_address") or "")
        if self.kind == "bond":
            for key in ("bond_mode", "bond_miimon", "bond_xmit_hash_policy"):
                fields.drop(key, "DHCP does not set up bonds: user-data can")
        fields.drop("mtu", "v1alpha2 serves no MTU")
        fields.ignore("name", "vif_id", "bond_mode", "bond_miimon", "bond_xmit_hash_policy")
        fields.rest("it has no place in what DHCP serves")


class _Network:
    def __init__(self, top: Fields, boot_mac: str, findings: Findings) -> None:
        self._top = top
        self._boot_mac = boot_mac
        self._findings = findings
        self._links: dict[str, _Link] = {}
        self._served: dict[str, Raw] = {}
        self._servers6: list[tuple[str, str]] = []
        """IPv6 name servers with their paths. They are served with IPv6 addresses only."""

    def result(self) -> dict[str, Raw]:
        for fields in self._top.each("links")[:_MAX_LINKS]:
            link = _Link(fields)
            self._links[link.id] = link
            if link.kind not in ("bond", "vlan") and link.mac:
                if refusal := constraints.mac(link.mac):
                    self._findings.dropped(f"{link.path}.ethernet_mac_address", refusal)
                else:
                    self._served.setdefault(link.mac, {})
        networks = self._top.each("networks")[:_MAX_LINKS]
        # Untagged networks and networks with a default route come first.
        for network in sorted(networks, key=self._rank):
            self._network(network)
        servers, clocks = self._services(self._top)
        for dhcp in self._served.values():
            _add_services(dhcp, servers, clocks)
        ipv6_leases = [dhcp["ipv6"] for dhcp in self._served.values() if "ipv6" in dhcp]
        for path, server in self._servers6:
            refusal = constraints.ipv6(server.lower()) if ipv6_leases else constraints.NO_IPV6_ADDRESS
            if refusal:
                self._findings.dropped(path, refusal)
            for ipv6 in [] if refusal else ipv6_leases:
                _add(ipv6, "nameservers", [server.lower()])
        self._top.rest("it has no place in what DHCP serves")
        return self._served

    def _rank(self, network: Fields) -> tuple[bool, bool, bool]:
        link = network.peek("link")
        tagged = isinstance(link, str) and link in self._links and self._links[link].kind == "vlan"
        routes = network.peek("routes")
        leads_out = bool(network.peek("gateway")) or any(
            isinstance(route, dict) and _is_default(route.get("network"), route.get("netmask"))
            for route in (routes if isinstance(routes, list) else [])
        )
        return _is_ipv6(network), tagged, not leads_out

    def _network(self, network: Fields) -> None:
        kind = network.text("type") or "ipv4"
        address = network.text("ip_address") or ""
        link = network.text("link") or ""
        if _is_ipv6(network):
            self._network6(network, address, link)
            return
        if kind not in _DHCP_TYPES:
            network.dropped("type", f"must be ipv4 or ipv4_dhcp, is {kind[:60]!r}")
            return
        network.ignore("id", "network_id")
        target = self._target(link)
        if isinstance(target, str):
            self._findings.dropped(network.path, target)
            return
        mac, vlan, note = target
        dhcp = self._served.setdefault(mac, {})
        if "ip" in dhcp or dhcp.get("vlanId", vlan) != vlan:
            self._findings.dropped(network.path, f"DHCP serves one address to {mac}, and another network's is taken")
            return
        if address and self._address(network, address, dhcp):
            if vlan:
                dhcp["vlanId"] = vlan
            if note:
                self._findings.changed(network.path, f"{note} {mac}")
        self._routes(network, dhcp)
        servers, clocks = self._services(network)
        own = [server for path, server in network.texts("dns_nameservers") if self._server(path, server)]
        _add_services(dhcp, [*own, *servers], clocks)
        network.rest("it has no place in what DHCP serves")

    def _network6(self, network: Fields, address: str, link: str) -> None:
        """Set `dhcp.ipv6` of an interface. Routes are not served: IPv6 routers advertise themselves."""
        network.ignore("id", "network_id")
        dns, _ = self._services(network)
        for path, server in [*network.texts("dns_nameservers"), *((network.at("services"), each) for each in dns)]:
            self._server(path, server)
        target = self._target6(link)
        address, _, bits = address.partition("/")
        refusal = "" if address else "it has no address to be reserved: the machine asks routers and DHCPv6"
        with suppress(ValueError):
            address = str(ipaddress.IPv6Address(address))
        if isinstance(target, str):
            self._findings.dropped(network.path, target)
            return
        if refusal := refusal or constraints.ipv6(address) or "":
            self._findings.dropped(network.at("ip_address") if address else network.path, refusal)
            return
        dhcp, note = target
        if "ipv6" in dhcp:
            self._findings.dropped(network.path, "DHCPv6 serves an interface one address")
            return
        dhcp["ipv6"] = {"address": address}
        given = network.take("netmask")
        netmask = str(bits if given in (None, "") else given)
        length = constraints.prefix_length(netmask)
        if length is not None:
            dhcp["ipv6"]["prefixLength"] = length
        elif netmask:
            network.dropped("netmask", constraints.NO_NETMASK6)
        self._findings.changed(network.path, f"DHCPv6 serves it{note}, if the edge runs with --ipv6")
        for key in ("gateway", "routes"):
            network.drop(key, constraints.ROUTERS_ADVERTISE)
        network.rest("it has no place in what DHCP serves")

    def _target6(self, name: str) -> tuple[Raw, str] | str:
        """Return what DHCP serves to a link's interface, with a note; or a string, the reason why it serves nothing."""
        link = self._links.get(name)
        if link is not None and link.kind == "vlan":
            below = self._links.get(link.below)
            mac = self._member(below) if below is not None and below.kind == "bond" else below.mac if below else ""
            if self._served.get(mac, {}).get("vlanId") == str(link.vlan):
                return self._served[mac], ""
        target = self._target(name)
        if isinstance(target, str):
            return target
        mac, vlan, note = target
        dhcp = self._served.setdefault(mac, {})
        if dhcp.get("vlanId", "") != vlan and ("ip" in dhcp or "ipv6" in dhcp):
            return f"DHCP serves {mac} in one network, and another one's address is taken"
        if vlan:
            dhcp["vlanId"] = vlan
        return dhcp, f" ({note} {mac})" if note else ""

    def _target(self, name: str) -> tuple[str, str, str] | str:
        """Return MAC address, VLAN ID and a note about them; or the reason (a string) why DHCP can't serve the link."""
        link = self._links.get(name)
        if link is None:
            return f"there is no link {name[:60]!r}" if name else "it names no link"
        if link.kind == "vlan":
            return self._vlan_target(link)
        if link.kind == "bond":
            mac = self._member(link)
            return (mac, "", "the bond's address is served to") if mac else "none of the bond's links has a MAC address"
        if link.mac not in self._served:
            return f"its link {name[:60]!r} has no MAC address"
        return link.mac, "", ""

    def _vlan_target(self, link: _Link) -> tuple[str, str, str] | str:
        below = self._links.get(link.below)
        vlan = str(link.vlan)
        if below is None or below.kind == "vlan":
            return f"its VLAN stands on no link: vlan_link is {link.below[:60]!r}"
        if refusal := constraints.vlan(vlan):
            return f"its VLAN's vlan_id {refusal}"
        mac = self._member(below) if below.kind == "bond" else below.mac
        if mac not in self._served:
            return "the link of its VLAN has no MAC address"
        if link.vlan_mac and link.vlan_mac != mac:
            return "its VLAN has a MAC address of its own, which does not netboot"
        if "ip" in self._served[mac]:
            return f"it is tagged, and DHCP serves the untagged address of {mac}: user-data can set up VLANs"
        return mac, vlan, f"DHCP serves it in VLAN {vlan} to"

    def _member(self, bond: _Link) -> str:
        """Return the MAC address of the bond's member that netboots, else the member with the bond's MAC."""
        macs = [self._links[name].mac for name in bond.members if name in self._links]
        macs = [mac for mac in macs if mac in self._served]
        for mac in (self._boot_mac, bond.mac):
            if mac and mac in macs:
                return mac
        return macs[0] if macs else ""

    def _address(self, network: Fields, address: str, dhcp: Raw) -> bool:
        """Set address and netmask: a number of bits, or behind the address. Return False if refused."""
        address, _, bits = address.partition("/")
        given = network.take("netmask")
        netmask = _dotted(bits if given in (None, "") else given)
        if refusal := constraints.ipv4(address) or constraints.unicast(address):
            network.dropped("ip_address", refusal)
            return False
        dhcp["ip"] = address
        if netmask is None or (netmask and constraints.netmask(netmask)):
            network.dropped("netmask", "must be a netmask, such as 255.255.255.0")
        elif netmask:
            dhcp["netmask"] = netmask
        return True

    def _routes(self, network: Fields, dhcp: Raw) -> None:
        gateways = [(network.at("gateway"), network.text("gateway"))]
        for route in network.each("routes"):
            to, netmask, gateway = (route.take(key) for key in ("network", "netmask", "gateway"))
            _add_services(dhcp, *self._services(route))
            route.rest("it has no place in what DHCP serves")
            if not _is_default(to, netmask):
                self._findings.dropped(route.path, "v1alpha2 serves no routes but the gateway: user-data can add them")
            elif isinstance(gateway, str):
                gateways.append((route.at("gateway"), gateway))
        for path, gateway in gateways:
            if not gateway:
                continue
            refusal = constraints.ipv4(gateway)
            if not refusal and "ip" not in dhcp:
                refusal = "there is no address that it could be the gateway of"
            elif not refusal and dhcp.get("gateway", gateway) != gateway:
                refusal = f"DHCP serves one gateway, and {dhcp['gateway']} is taken"
            elif not refusal and "netmask" in dhcp:
                refusal = constraints.gateway_of(dhcp["ip"], dhcp["netmask"], gateway)
            if refusal:
                self._findings.dropped(path, refusal)
            else:
                dhcp["gateway"] = gateway

    def _services(self, fields: Fields) -> tuple[list[str], list[str]]:
        """Return the name servers and the time servers."""
        found: dict[str, list[str]] = {"dns": [], "ntp": []}
        for service in fields.each("services"):
            kind, address = service.text("type") or "", service.text("address") or ""
            service.rest("it has no place in what DHCP serves")
            if kind not in found:
                self._findings.dropped(service.path, f"v1alpha2 serves no {kind[:60]!r}, only dns and ntp")
            elif kind == "ntp" and ":" in address:
                service.dropped("address", constraints.NOT_OVER_IPV6)
            elif self._server(service.at("address"), address):
                found[kind].append(address)
        return found["dns"], found["ntp"]

    def _server(self, path: str, server: str) -> bool:
        if ":" in server:
            self._servers6.append((path, server))
            return False
        if refusal := constraints.server(server):
            self._findings.dropped(path, refusal)
        return not refusal


def _is_ipv6(network: Fields) -> bool:
    kind, address = network.peek("type"), network.peek("ip_address")
    return (isinstance(kind, str) and "6" in kind) or (isinstance(address, str) and ":" in address)


def _add(dhcp: Raw, key: str, servers: list[str]) -> None:
    there = dhcp.get(key, [])
    there = [*there, *(server for server in dict.fromkeys(servers) if server not in there)][: bounds.MAX_SERVERS]
    if there:
        dhcp[key] = there


def _add_services(dhcp: Raw, servers: list[str], clocks: list[str]) -> None:
    if "ip" in dhcp:
        _add(dhcp, "nameservers", servers)
        _add(dhcp, "timeservers", clocks)


def _is_default(network: Any, netmask: Any) -> bool:
    return network in ("0.0.0.0/0", "default") or (network == "0.0.0.0" and netmask in ("0.0.0.0", "0", 0, None))  # noqa: S104 - a route


def _dotted(netmask: Any) -> str | None:
    """Return a netmask in dotted form, from that or a number of bits; "" if it is empty, None if it is invalid."""
    if netmask == "":
        return ""
    if isinstance(netmask, int) and not isinstance(netmask, bool):
        netmask = str(netmask)
    if not isinstance(netmask, str):
        return None
    bits: str = netmask.removeprefix("/")
    if not bits.isascii() or not bits.isdigit():
        return bits
    if len(bits) > 2 or not 0 < int(bits) <= 32:
        return None
    return str(ipaddress.IPv4Network(f"0.0.0.0/{bits}").netmask)
