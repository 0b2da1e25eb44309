"""The interfaces of a host: the one that netboots, those that inspection found, and what DHCP serves to each."""

from __future__ import annotations

from tink.api import bounds
from tink.api.v1alpha2 import Raw
from tink.convert import constraints
from tink.convert.fields import Fields, join
from tink.convert.findings import Findings
from tink.convert.metal3 import network_data
from tink.convert.metal3.surroundings import NETWORK_DATA, Surroundings


def interfaces_of(spec: Fields, around: Surroundings, hostname: str, findings: Findings) -> dict[str, Raw]:
    """`spec.networkInterfaces` of the Hardware; `spec` is the host's. Whether it may netboot is not decided here."""
    return _Interfaces(spec, around, findings).result(hostname)


class _Interfaces:
    def __init__(self, spec: Fields, around: Surroundings, findings: Findings) -> None:
        self._spec = spec
        self._around = around
        self._findings = findings
        self._details, self._details_path = around.details, around.details_path

    def result(self, hostname: str) -> dict[str, Raw]:
        interfaces: dict[str, Raw] = {}
        boot = self._boot_mac()
        nics = self._nics()
        if boot:
            interfaces[boot] = {}
        for mac, nic in nics.items():
            interfaces.setdefault(mac, {} if nic.get("pxe") is True else {"disableNetboot": True})
        if boot and nics and boot not in nics:
            self._findings.changed("spec.bootMACAddress", f"inspection found no interface with {boot}")
        document = self._around.document(NETWORK_DATA)
        served = network_data.served(document, f"spec.{NETWORK_DATA}", boot, self._findings) if document else {}
        for mac in served:
            interfaces.setdefault(mac, {"disableNetboot": True})
        if not interfaces:
            if not self._findings.failed:
                self._findings.error(
                    "spec.bootMACAddress", "neither it nor HardwareData names a MAC address: the machine is not known"
                )
            return interfaces
        netboots = [mac for mac, each in interfaces.items() if "disableNetboot" not in each]
        if not netboots:
            self._findings.changed(
                "spec.bootMACAddress", "there is none, and no interface with pxe: it cannot netboot by MAC address"
            )
        for mac in list(interfaces)[bounds.MAX_INTERFACES :]:
            del interfaces[mac]
            self._findings.dropped(
                f"{self._details_path}.nics", f"{mac}: v1alpha2 takes {bounds.MAX_INTERFACES} interfaces"
            )
        self._addresses(interfaces, served, nics)
        named = (netboots or list(interfaces))[0]
        if hostname and named in interfaces:
            interface = interfaces[named]
            interfaces[named] = {**interface, "dhcp": {**interface.get("dhcp", {}), "hostname": hostname}}
        return interfaces

    def _boot_mac(self) -> str:
        said = self._spec.text("bootMACAddress") or ""
        mac = constraints.canonical_mac(said)
        if said and (refusal := constraints.mac(mac)):
            self._findings.error("spec.bootMACAddress", f"{refusal}; it is {said[:60]!r}")
            return ""
        self._findings.moved("spec.bootMACAddress", join("spec.networkInterfaces", mac))
        return mac

    def _nics(self) -> dict[str, Raw]:
        """The inspected interfaces by MAC address. One with an IPv4 and an IPv6 address stands there twice."""
        path = f"{self._details_path}.nics"
        nics = self._details.get("nics")
        if nics is not None and not isinstance(nics, list):
            self._findings.dropped(path, "must be a list")
        found: dict[str, Raw] = {}
        for index, nic in enumerate(nics if isinstance(nics, list) else []):
            mac = nic.get("mac") if isinstance(nic, dict) else None
            if not isinstance(mac, str) or not mac:
                continue  # a virtual one, such as a tunnel
            mac = constraints.canonical_mac(mac)
            if refusal := constraints.mac(mac):
                self._findings.dropped(f"{join(path, index)}.mac", refusal)
                continue
            there = found.setdefault(mac, {})
            there["pxe"] = there.get("pxe") is True or nic.get("pxe") is True
            for key, value in (("ip", nic.get("ip")), ("vlanId", nic.get("vlanId"))):
                if key not in there and value not in (None, "", 0) and not (key == "ip" and ":" in str(value)):
                    there[key] = value
        return found

    def _addresses(self, interfaces: dict[str, Raw], served: dict[str, Raw], nics: dict[str, Raw]) -> None:
        taken = {dhcp["ip"] for dhcp in served.values() if "ip" in dhcp}
        for mac, interface in interfaces.items():
            dhcp = dict(served.get(mac, {}))
            nic = nics.get(mac, {})
            ip = nic.get("ip")
            usable = isinstance(ip, str) and not (constraints.ipv4(ip) or constraints.unicast(ip))
            if "ip" not in dhcp and usable and ip not in taken:
                dhcp["ip"] = ip
                taken.add(ip)
                self._findings.changed(
                    f"{self._details_path}.nics",
                    f"{ip} is the address that {mac} had when it was inspected; its netmask and gateway are not known",
                )
            vlan = nic.get("vlanId")
            if isinstance(vlan, int) and "vlanId" not in dhcp:
                if refusal := constraints.vlan(str(vlan)):
                    self._findings.dropped(f"{self._details_path}.nics", f"vlanId of {mac}: {refusal}")
                else:
                    dhcp["vlanId"] = str(vlan)
            if dhcp:
                interfaces[mac] = {"dhcp": dhcp, **interface}
