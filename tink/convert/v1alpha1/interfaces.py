"""The interfaces of a v1alpha1 Hardware: each one's DHCP, and what it says of netbooting.

v1alpha1 has iPXE overrides and the OSIE for each interface, v1alpha2 once for the machine: `Netboot` is what one
interface asks for, `tink.convert.v1alpha1.hardware` decides between them.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from tink.api import bounds
from tink.api.v1alpha2 import Raw
from tink.convert import constraints
from tink.convert.fields import Fields, join, put_checked, put_text, shown
from tink.convert.findings import Findings

UNUSED = "nothing used it, and v1alpha2 has no place for it"
_NOT_OURS = "v1alpha2 serves its own netboot only"
_ARCHITECTURES = {"": "x86_64", "x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(slots=True)
class Netboot:
    """What one interface asks for that a machine has once in v1alpha2, with the paths for what is said about it."""

    path: str
    allowed: bool = False
    ipxe: dict[str, str] = field(default_factory=dict)
    """`spec.ipxe`."""
    osie: tuple[str, str] | None = None
    """The URLs of kernel and initrd."""
    params: list[str] = field(default_factory=list)


class Interfaces:
    """The conversion of one Hardware's interfaces: `result` is `spec.networkInterfaces`, `netboots` the wishes."""

    def __init__(self, interfaces: list[Fields], findings: Findings) -> None:
        self._findings = findings
        self._macs: dict[str, str] = {}
        """MAC address -> its path."""
        self.result: Raw = {}
        self.netboots: list[Netboot] = []
        for interface in interfaces:
            self._interface(interface)
        if not self.result and not findings.failed:
            findings.error("spec.interfaces", "no interface has a MAC address, by which v1alpha2 knows machines")
        elif len(self.result) > bounds.MAX_INTERFACES:
            findings.error("spec.interfaces", f"v1alpha2 takes {bounds.MAX_INTERFACES} interfaces of a machine")

    def _interface(self, interface: Fields) -> None:
        dhcp = interface.fields("dhcp")
        mac = self._mac(interface, dhcp)
        if mac is None:
            return
        at = join("spec.networkInterfaces", mac)
        self._findings.moved(interface.path, at)
        self._findings.moved(dhcp.at("mac"), at)
        result: Raw = {}
        if served := self._dhcp(dhcp, f"{at}.dhcp"):
            result["dhcp"] = served
            self._findings.moved(dhcp.path, f"{at}.dhcp")
        disabled = bool(interface.flag("disableDhcp"))
        if disabled:
            result["disableDhcp"] = True
            self._findings.moved(interface.at("disableDhcp"), f"{at}.disableDhcp")
        netboot = self._netboot(interface, disabled=disabled, arch=_arch(dhcp))
        if not netboot.allowed:
            result["disableNetboot"] = True
            self._findings.moved(join(netboot.path, "allowPXE"), f"{at}.disableNetboot")
            self._findings.moved(netboot.path, f"{at}.disableNetboot")
        self.netboots.append(netboot)
        self.result[mac] = result
        interface.drop("isoboot", "v1alpha2 has no boot from virtual media")
        interface.rest()

    def _mac(self, interface: Fields, dhcp: Fields) -> str | None:
        """The interface's key; None if it has none: a finding says so."""
        path = dhcp.at("mac")
        said = dhcp.text("mac")
        if not said:
            self._findings.dropped(interface.path, "it has no dhcp.mac, by which v1alpha2 knows interfaces")
            return None
        mac = constraints.canonical_mac(said)
        if refusal := constraints.mac(mac):
            self._findings.error(path, f"{refusal}; it is {shown(said)}")
            return None
        if mac in self._macs:
            self._findings.error(
                path, f"{mac} stands at {self._macs[mac]} too: no two interfaces can have one MAC address"
            )
            return None
        if mac != said:
            self._findings.changed(path, f"v1alpha2 writes MAC addresses in lower case with colons: {mac}")
        self._macs[mac] = path
        return mac

    # --- DHCP

    def _dhcp(self, dhcp: Fields, at: str) -> Raw:
        result: Raw = {}
        self._address(dhcp, result, at)
        put_text(self._findings, dhcp, "hostname", constraints.hostname, result, at, "hostname")
        vlan = dhcp.take("vlan_id")
        if isinstance(vlan, int) and not isinstance(vlan, bool):
            vlan = str(vlan)
        put_checked(self._findings, dhcp.at("vlan_id"), vlan, constraints.vlan, result, at, "vlanId")
        for key, to in (("name_servers", "nameservers"), ("time_servers", "timeservers")):
            servers = self._servers(dhcp, key, result, at)
            if servers:
                result[to] = servers
                self._findings.moved(dhcp.at(key), f"{at}.{to}")
        self._lease(dhcp, result, at)
        dhcp.drop("arch", "the machine's firmware tells it in each DHCP request")
        dhcp.drop("uefi", "the machine's firmware tells it in each DHCP request")
        dhcp.drop("iface_name", UNUSED)
        dhcp.drop("domain_name", "v1alpha2 serves no domain name; a hostname may have one in it")
        dhcp.drop("classless_static_routes", "v1alpha2 serves no static routes")
        dhcp.drop("tftp_server_name", _NOT_OURS)
        dhcp.drop("boot_file_name", _NOT_OURS)
        dhcp.rest()
        return result

    def _address(self, dhcp: Fields, result: Raw, at: str) -> None:
        ip = dhcp.fields("ip")
        family = ip.integer("family")
        address = ip.text("address")
        if family == 6 or _is_ipv6(address):
            self._address6(ip, address or "", result, at)
            return
        if family not in (None, 0, 4):
            self._findings.dropped(ip.at("family"), f"must be 4 or 6, is {family}")
        if put_checked(self._findings, ip.at("address"), address, constraints.ipv4, result, at, "ip") and address:
            self._findings.moved(ip.path, f"{at}.ip")
        put_text(self._findings, ip, "netmask", constraints.netmask, result, at, "netmask")
        gateway = ip.text("gateway")
        if _is_ipv6(gateway):
            self._findings.dropped(ip.at("gateway"), constraints.ROUTERS_SAY_IT)
        elif (
            gateway
            and "ip" in result
            and "netmask" in result
            and constraints.ipv4(gateway) is None
            and (refusal := constraints.gateway_of(result["ip"], result["netmask"], gateway))
        ):
            self._findings.dropped(ip.at("gateway"), refusal)
        else:
            put_checked(self._findings, ip.at("gateway"), gateway, constraints.ipv4, result, at, "gateway")
        ip.rest()

    def _address6(self, ip: Fields, address: str, result: Raw, at: str) -> None:
        """`dhcp.ipv6` of an address, which may have its prefix behind it, and a netmask of either form."""
        if not _is_ipv6(address):
            self._findings.dropped(ip.path, "its family is 6, and its address is not of IPv6")
            return
        address, _, bits = address.partition("/")
        address = str(ipaddress.IPv6Address(address))
        served: Raw = {}
        if not put_checked(
            self._findings, ip.at("address"), address, constraints.ipv6, served, f"{at}.ipv6", "address"
        ):
            return
        netmask = ip.text("netmask") or bits
        length = constraints.prefix_length(netmask)
        if netmask and length is None:
            self._findings.dropped(ip.at("netmask"), constraints.NO_NETMASK6)
        elif length is not None:
            served["prefixLength"] = length
            self._findings.moved(ip.at("netmask"), f"{at}.ipv6.prefixLength")
        if ip.text("gateway"):
            self._findings.dropped(ip.at("gateway"), constraints.ROUTERS_SAY_IT)
        result["ipv6"] = served
        self._findings.moved(ip.path, f"{at}.ipv6")
        self._findings.changed(ip.path, "DHCPv6 serves it, where the edge is told --ipv6")
        ip.rest()

    def _servers(self, dhcp: Fields, key: str, result: Raw, at: str) -> list[str]:
        """Those of IPv4 and names. Those of IPv6 go with the address of that."""
        found: list[str] = []
        for path, server in dhcp.texts(key):
            if not server:
                continue
            if _is_ipv6(server):
                self._server6(path, server, result, at, served=key == "name_servers")
            elif refusal := constraints.server(server):
                self._findings.dropped(path, refusal)
            elif len(found) == bounds.MAX_SERVERS:
                self._findings.dropped(path, f"v1alpha2 takes {bounds.MAX_SERVERS} of them")
            else:
                found.append(server)
        return found

    def _server6(self, path: str, server: str, result: Raw, at: str, *, served: bool) -> None:
        ipv6, address = result.get("ipv6"), server.lower()
        if not served:
            self._findings.dropped(path, constraints.NOT_OVER_IPV6)
        elif ipv6 is None:
            self._findings.dropped(path, constraints.NO_IPV6_ADDRESS)
        elif refusal := constraints.ipv6(address):
            self._findings.dropped(path, refusal)
        elif len(ipv6.get("nameservers", ())) == bounds.MAX_SERVERS:
            self._findings.dropped(path, f"v1alpha2 takes {bounds.MAX_SERVERS} of them")
        else:
            ipv6.setdefault("nameservers", []).append(address)
            self._findings.moved(path, f"{at}.ipv6.nameservers")

    def _lease(self, dhcp: Fields, result: Raw, at: str) -> None:
        path = dhcp.at("lease_time")
        seconds = dhcp.integer("lease_time")
        if seconds is None:
            return
        self._findings.moved(path, f"{at}.leaseTimeSeconds")
        if seconds == 0:
            self._findings.changed(path, "a lease of 0 seconds is no lease: v1alpha2's default is taken, 24 hours")
        elif seconds < 0:
            self._findings.dropped(path, f"must not be less than 0, is {seconds}")
        elif seconds > bounds.MAX_LEASE_SECONDS:
            self._findings.changed(
                path, f"{bounds.MAX_LEASE_SECONDS} is the longest lease there is, and means for ever"
            )
            result["leaseTimeSeconds"] = bounds.MAX_LEASE_SECONDS
        else:
            result["leaseTimeSeconds"] = seconds

    # --- netboot

    def _netboot(self, interface: Fields, *, disabled: bool, arch: str) -> Netboot:
        """What allowPXE says (unset meant that it was not allowed), and what the machine is to boot."""
        fields = interface.fields("netboot")
        netboot = Netboot(fields.path)
        pxe, workflow = fields.flag("allowPXE"), fields.flag("allowWorkflow")
        netboot.allowed = bool(pxe)
        if not fields:
            if not disabled:
                self._findings.changed(
                    fields.path,
                    "without it v1alpha1 answered no DHCP at all: now the interface gets its address, but no netboot",
                )
            return netboot
        if pxe is None:
            self._findings.changed(fields.at("allowPXE"), "unset meant not allowed: disableNetboot is true")
        if workflow is not None and workflow != netboot.allowed:
            self._findings.changed(
                fields.at("allowWorkflow"),
                "v1alpha2 has no such switch: a machine that netboots runs its Workflows, another one does not",
            )
        if pxe and disabled:
            self._findings.changed(interface.at("disableDhcp"), "v1alpha2's disableDhcp implies disableNetboot")
        fields.drop("pxelinux", "v1alpha2 has no place for u-boot's configuration")
        fields.drop("rpi", "v1alpha2 has no place for the Raspberry Pi's own netboot")
        netboot.ipxe = self._ipxe(fields.fields("ipxe"))
        osie = fields.fields("osie")
        netboot.params = self._params(osie)
        netboot.osie = self._osie(osie, arch)
        fields.rest()
        return netboot

    def _ipxe(self, ipxe: Fields) -> dict[str, str]:
        found: dict[str, str] = {}
        put_text(self._findings, ipxe, "url", constraints.http_url, found, "spec.ipxe", "url")
        put_text(self._findings, ipxe, "contents", constraints.script, found, "spec.ipxe", "inline")
        if len(found) == 2:
            del found["inline"]
            self._findings.dropped(ipxe.at("contents"), "v1alpha1 chained to url before it came here; so it stays")
        ipxe.drop("binary", "v1alpha2 picks the iPXE binary by the firmware's architecture")
        ipxe.rest()
        return found

    def _params(self, osie: Fields) -> list[str]:
        params: list[str] = []
        for path, param in osie.texts("kernelParams"):
            if refusal := constraints.kernel_param(param):
                self._findings.dropped(path, refusal)
            elif len(params) == bounds.MAX_KERNEL_PARAMS:
                self._findings.dropped(path, f"v1alpha2 takes {bounds.MAX_KERNEL_PARAMS} of them")
            else:
                params.append(param)
        return params

    def _osie(self, osie: Fields, arch: str) -> tuple[str, str] | None:
        base, kernel, initrd = (osie.text(key) for key in ("baseURL", "kernel", "initrd"))
        osie.rest()
        if not base:
            for key, value in (("kernel", kernel), ("initrd", initrd)):
                if value:
                    self._findings.dropped(
                        osie.at(key), "without baseURL it was relative to Smee's own OSIE URL: add that as baseURL"
                    )
            return None
        if not kernel or not initrd:
            kernel = kernel or f"vmlinuz-{arch}"
            initrd = initrd or f"initramfs-{arch}"
            self._findings.changed(osie.path, f"file names that are not given are Smee's: {kernel} and {initrd}")
        urls = (_joined(base, kernel), _joined(base, initrd))
        for url in urls:
            if refusal := constraints.artifact_url(url):
                self._findings.dropped(osie.path, f"{shown(url)}: {refusal}")
                return None
        return urls


def _arch(dhcp: Fields) -> str:
    """The architecture in the names of Smee's own OSIE files; v1alpha1's default is x86_64."""
    arch = dhcp.peek("arch")
    return _ARCHITECTURES.get(arch, "x86_64") if isinstance(arch, str) else "x86_64"


def _joined(base: str, name: str) -> str:
    return f"{base.rstrip('/')}/{name.lstrip('/')}"


def _is_ipv6(text: str | None) -> bool:
    if not text or ":" not in text:
        return False
    try:
        ipaddress.IPv6Interface(text)
    except ValueError:
        return False
    return True
