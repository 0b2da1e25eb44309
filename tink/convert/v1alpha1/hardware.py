"""Convert Hardware of v1alpha1 to v1alpha2, with the OSIE objects that it needs.

The meaning of a v1alpha1 field is what Smee, Hegel and the Tink server did with it (tinkerbell/tinkerbell,
api/v1alpha1): most of `spec.metadata` was only served, or not even that. A value that v1alpha2 would refuse is dropped
with v1alpha2's own reason, and the machine keeps the rest. The whole Hardware is refused only where the machine would
boot differently than before: no interface, an invalid MAC address, the same MAC address twice.

v1alpha1 has iPXE overrides and the OSIE for each interface, v1alpha2 has them once for the machine. `_NetbootRequest`
holds what one interface asks for; `_Machine` chooses among the requests.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, field
from typing import Any

import orjson

from tink.api import bounds
from tink.api.annotations import (
    AGENT_ID_ANNOTATION,
    INSTANCE_ID_ANNOTATION,
    METADATA_ANNOTATION,
    SSH_PUBLIC_KEYS_ANNOTATION,
    STORAGE_ANNOTATION,
)
from tink.api.v1alpha2 import API_VERSION, Raw
from tink.convert import constraints
from tink.convert.fields import Fields, carried, join, put_checked, says_nothing, shown, type_name
from tink.convert.findings import Findings

_UNUSED = "nothing used it, and v1alpha2 has no place for it"
_SERVED = "the metadata service does not serve it"
_NOT_OURS = "v1alpha2 serves its own netboot only"
_ARCHITECTURES = {"": "x86_64", "x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
MAX_STORAGE_CHARACTERS = 128 * 1024
"""Maximum size of the storage annotation. All annotations of an object together may have 256 KiB."""


@dataclass(slots=True)
class _NetbootRequest:
    """The netboot settings of one interface that v1alpha2 has once for a machine, with their paths."""

    path: str
    allowed: bool = False
    ipxe: dict[str, str] = field(default_factory=dict)
    """`spec.ipxe`."""
    osie: tuple[str, str] | None = None
    """The URLs of kernel and initrd."""
    params: list[str] = field(default_factory=list)


def convert_hardware(obj: Raw, findings: Findings) -> list[Raw]:
    """Return the Hardware, followed by its OSIE if it has one; nothing if there is an error."""
    return _Machine(Fields(obj, findings), findings).result()


class _Machine:
    """The conversion of one Hardware."""

    def __init__(self, top: Fields, findings: Findings) -> None:
        self._top = top
        self._findings = findings
        self._macs: dict[str, str] = {}
        """MAC address -> its path."""
        self._interfaces: Raw = {}
        """`spec.networkInterfaces`."""
        self._netboots: list[_NetbootRequest] = []

    def result(self) -> list[Raw]:
        top = self._top
        top.ignore("apiVersion", "kind")
        metadata = carried(top, self._findings)
        spec = top.fields("spec")
        for interface in spec.each("interfaces"):
            self._interface(interface)
        if not self._interfaces and not self._findings.failed:
            spec.error("interfaces", "no interface has a MAC address, by which v1alpha2 knows machines")
        elif len(self._interfaces) > bounds.MAX_INTERFACES:
            spec.error("interfaces", f"v1alpha2 takes {bounds.MAX_INTERFACES} interfaces of a machine")
        self._findings.moved("spec.interfaces", "spec.networkInterfaces")
        result: Raw = {"networkInterfaces": self._interfaces}
        osies = self._netboot(result, metadata)
        self._instance(spec, result, metadata)
        devices: list[str] = []
        for disk in spec.each("disks"):
            device = disk.text("device")
            disk.rest()
            if not device:
                continue
            if refusal := constraints.disk(device):
                disk.dropped("device", refusal)
            elif len(devices) == bounds.MAX_DISKS:
                self._findings.dropped(disk.path, f"v1alpha2 takes {bounds.MAX_DISKS} disks of a machine")
            else:
                self._findings.moved(disk.path, f"spec.storageDevices[{len(devices)}]")
                devices.append(device)
        if devices:
            result["storageDevices"] = devices
            self._findings.moved("spec.disks", "spec.storageDevices")
        self._bmc(spec, result)
        self._agent_id(spec, metadata)
        spec.drop("tinkVersion", _UNUSED)
        spec.drop("resources", "v1alpha2 has no place for what a scheduler would like to know")
        spec.drop("references", "v1alpha2's templates see the Hardware and the Workflow's templateParams only")
        spec.rest()
        if not says_nothing(top.take("status")):
            self._findings.changed("status", "it is written by services, not by users: v1alpha2's have their own")
        top.rest()
        if self._findings.failed:
            return []
        return [{"apiVersion": API_VERSION, "kind": "Hardware", "metadata": metadata, "spec": result}, *osies]

    # --- interfaces

    def _interface(self, interface: Fields) -> None:
        dhcp = interface.fields("dhcp")
        mac = self._mac(interface, dhcp)
        if mac is None:
            return
        at = join("spec.networkInterfaces", mac)
        self._findings.moved(interface.path, at)
        dhcp.moved("mac", at)
        result: Raw = {}
        if served := self._dhcp(dhcp, f"{at}.dhcp"):
            result["dhcp"] = served
            self._findings.moved(dhcp.path, f"{at}.dhcp")
        disabled = bool(interface.flag("disableDhcp"))
        if disabled:
            result["disableDhcp"] = True
            interface.moved("disableDhcp", f"{at}.disableDhcp")
        # The architecture in the file names of Smee's own OSIE; v1alpha1's default is x86_64.
        arch = _ARCHITECTURES.get(str(dhcp.peek("arch")), "x86_64")
        netboot = self._requested(interface, disabled=disabled, arch=arch)
        if not netboot.allowed:
            result["disableNetboot"] = True
            self._findings.moved(join(netboot.path, "allowPXE"), f"{at}.disableNetboot")
            self._findings.moved(netboot.path, f"{at}.disableNetboot")
        self._netboots.append(netboot)
        self._interfaces[mac] = result
        interface.drop("isoboot", "v1alpha2 has no boot from virtual media")
        interface.rest()

    def _mac(self, interface: Fields, dhcp: Fields) -> str | None:
        """Return the MAC address, the interface's key; None with a finding if it has none."""
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
        dhcp.put("hostname", constraints.hostname, result, at, "hostname")
        vlan = dhcp.take("vlan_id")
        if isinstance(vlan, int) and not isinstance(vlan, bool):
            vlan = str(vlan)
        put_checked(self._findings, dhcp.at("vlan_id"), vlan, constraints.vlan, result, at, "vlanId")
        for key, to in (("name_servers", "nameservers"), ("time_servers", "timeservers")):
            servers = self._servers(dhcp, key, result, at)
            if servers:
                result[to] = servers
                dhcp.moved(key, f"{at}.{to}")
        self._lease(dhcp, result, at)
        dhcp.drop("arch", "the machine's firmware tells it in each DHCP request")
        dhcp.drop("uefi", "the machine's firmware tells it in each DHCP request")
        dhcp.drop("iface_name", _UNUSED)
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
        if family == 6 or constraints.is_ipv6(address):
            self._address6(ip, address or "", result, at)
            return
        if family not in (None, 0, 4):
            ip.dropped("family", f"must be 4 or 6, is {family}")
        if put_checked(self._findings, ip.at("address"), address, constraints.ipv4, result, at, "ip") and address:
            self._findings.moved(ip.path, f"{at}.ip")
        ip.put("netmask", constraints.netmask, result, at, "netmask")
        gateway = ip.text("gateway")
        if constraints.is_ipv6(gateway):
            ip.dropped("gateway", constraints.ROUTERS_ADVERTISE)
        elif (
            gateway
            and "ip" in result
            and "netmask" in result
            and constraints.ipv4(gateway) is None
            and (refusal := constraints.gateway_of(result["ip"], result["netmask"], gateway))
        ):
            ip.dropped("gateway", refusal)
        else:
            put_checked(self._findings, ip.at("gateway"), gateway, constraints.ipv4, result, at, "gateway")
        ip.rest()

    def _address6(self, ip: Fields, address: str, result: Raw, at: str) -> None:
        """Set `dhcp.ipv6`. The prefix length may stand behind the address, or in the netmask in either form."""
        if not constraints.is_ipv6(address):
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
            ip.dropped("netmask", constraints.NO_NETMASK6)
        elif length is not None:
            served["prefixLength"] = length
            ip.moved("netmask", f"{at}.ipv6.prefixLength")
        if ip.text("gateway"):
            ip.dropped("gateway", constraints.ROUTERS_ADVERTISE)
        result["ipv6"] = served
        self._findings.moved(ip.path, f"{at}.ipv6")
        self._findings.changed(ip.path, "DHCPv6 serves it, if the edge runs with --ipv6")
        ip.rest()

    def _servers(self, dhcp: Fields, key: str, result: Raw, at: str) -> list[str]:
        """Return the servers with an IPv4 address or a name. IPv6 servers are added to `dhcp.ipv6`."""
        found: list[str] = []
        for path, server in dhcp.texts(key):
            if not server:
                continue
            if constraints.is_ipv6(server):
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
                path, f"{bounds.MAX_LEASE_SECONDS} is the longest lease, and means that it never expires"
            )
            result["leaseTimeSeconds"] = bounds.MAX_LEASE_SECONDS
        else:
            result["leaseTimeSeconds"] = seconds

    # --- netboot

    def _requested(self, interface: Fields, *, disabled: bool, arch: str) -> _NetbootRequest:
        """Read allowPXE (unset meant "not allowed") and the boot files of an interface."""
        fields = interface.fields("netboot")
        netboot = _NetbootRequest(fields.path)
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
            fields.changed("allowPXE", "unset meant not allowed: disableNetboot is true")
        if workflow is not None and workflow != netboot.allowed:
            fields.changed(
                "allowWorkflow",
                "v1alpha2 has no such switch: a machine that netboots runs its Workflows, another one does not",
            )
        if pxe and disabled:
            interface.changed("disableDhcp", "v1alpha2's disableDhcp implies disableNetboot")
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
        ipxe.put("url", constraints.http_url, found, "spec.ipxe", "url")
        ipxe.put("contents", constraints.script, found, "spec.ipxe", "inline")
        if len(found) == 2:
            del found["inline"]
            ipxe.dropped("contents", "v1alpha1 chained to url before it came here; so it stays")
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
                    osie.dropped(key, "without baseURL it was relative to Smee's own OSIE URL: add that as baseURL")
            return None
        if not kernel or not initrd:
            kernel = kernel or f"vmlinuz-{arch}"
            initrd = initrd or f"initramfs-{arch}"
            self._findings.changed(osie.path, f"file names that are not given are Smee's: {kernel} and {initrd}")
        directory = base.rstrip("/")
        urls = (f"{directory}/{kernel.lstrip('/')}", f"{directory}/{initrd.lstrip('/')}")
        for url in urls:
            if refusal := constraints.artifact_url(url):
                self._findings.dropped(osie.path, f"{shown(url)}: {refusal}")
                return None
        return urls

    def _netboot(self, result: Raw, metadata: Raw) -> list[Raw]:
        """Merge the netboot settings of all interfaces: the first one that may netboot wins. Return the OSIE."""
        made: list[Raw] = []
        taken: dict[str, Any] = {}
        for netboot in sorted(self._netboots, key=lambda netboot: not netboot.allowed):
            wishes = {"ipxe": netboot.ipxe, "osie": netboot.osie, "osie.kernelParams": netboot.params}
            for key, wish in wishes.items():
                path = f"{netboot.path}.{key}"
                if not wish:
                    continue
                if taken.setdefault(key, wish) != wish:
                    self._findings.dropped(path, "v1alpha2 has it once for a machine, and another interface's is taken")
                else:
                    self._findings.moved(path, f"spec.{key.rpartition('.')[2]}")
        if ipxe := taken.get("ipxe"):
            result["ipxe"] = ipxe
        if urls := taken.get("osie"):
            made.append(osie(urls[0], urls[1], metadata.get("namespace")))
            result["osie"] = {"name": made[0]["metadata"]["name"]}
        if params := taken.get("osie.kernelParams"):
            result["kernelParams"] = params
        return made

    # --- instance

    def _instance(self, spec: Fields, result: Raw, metadata: Raw) -> None:
        found: Raw = {}
        spec.put("userData", constraints.long_text, found, "spec.instance", "userdata")
        spec.put("vendorData", constraints.long_text, found, "spec.instance", "vendordata")
        if found:
            result["instance"] = found
        machine = spec.fields("metadata")
        instance = machine.fields("instance")
        self._annotation(metadata, instance.at("id"), INSTANCE_ID_ANNOTATION, instance.text("id"))
        path = instance.at("ssh_keys")
        keys: list[str] = []
        for at, key in instance.texts("ssh_keys"):
            key = key.strip()
            if "\n" in key or "\r" in key:
                self._findings.dropped(at, "an SSH public key is one line")
            elif key:
                keys.append(key)
        self._annotation(metadata, path, SSH_PUBLIC_KEYS_ANNOTATION, "\n".join(keys))
        self._hostname(instance)
        served_metadata = self._instance_metadata(instance, machine.fields("facility"))
        self._ips(instance, served_metadata)
        if served_metadata:
            text = orjson.dumps(served_metadata, option=orjson.OPT_SORT_KEYS).decode()
            self._annotation(metadata, machine.path, METADATA_ANNOTATION, text)
        instance.drop(
            "userdata", "nothing served it: put it into spec.userData before converting, or into spec.instance.userdata"
        )
        self._storage(instance, metadata)
        instance.drop("crypted_root_password", f"{_SERVED}: user-data can set passwords")
        for key in ("allow_pxe", "always_pxe"):
            instance.drop(key, "an interface's netboot.allowPXE decided, and decides now as disableNetboot")
        instance.drop("ipxe_script_url", "an interface's netboot.ipxe decided, and decides now as spec.ipxe")
        for key in ("state", "rescue", "network_ready"):
            instance.drop(key, _UNUSED)
        instance.rest()
        machine.drop("state", "v1alpha2 has no state that a user sets: disableNetboot keeps a machine from netbooting")
        for key in ("manufacturer", "custom"):
            machine.drop(key, _SERVED)
        machine.drop("bonding_mode", _UNUSED)
        machine.rest()

    def _instance_metadata(self, instance: Fields, facility: Fields) -> Raw:
        """Return the metadata that Hegel and Tootles served, under the metadata service's names (`hegel.instance`)."""
        served_metadata: Raw = {}
        for key, name in (("facility", "facility_code"), ("plan", "plan_slug")):
            if text := facility.text(name):
                served_metadata[key] = text
        facility.drop("plan_version_slug", _SERVED)
        facility.rest()
        if tags := [tag for _, tag in instance.texts("tags") if tag]:
            served_metadata["tags"] = tags
        system = instance.fields("operating_system")
        named = {key: text for key in ("distro", "image_tag", "slug", "version") if (text := system.text(key))}
        if named:
            served_metadata["operating-system"] = named
        system.drop("os_slug", _SERVED)
        system.rest()
        return served_metadata

    def _storage(self, instance: Fields, metadata: Raw) -> None:
        """Keep partitions and filesystems for rootio, which reads them from the metadata service."""
        storage = instance.take("storage")
        if says_nothing(storage):
            return
        path = instance.at("storage")
        if not isinstance(storage, dict):
            self._findings.dropped(path, f"must be an object, is {type_name(storage)}")
            return
        text = orjson.dumps(storage, option=orjson.OPT_SORT_KEYS).decode()
        if len(text) > MAX_STORAGE_CHARACTERS:
            self._findings.dropped(path, f"longer than {MAX_STORAGE_CHARACTERS} characters of JSON")
            return
        self._annotation(metadata, path, STORAGE_ANNOTATION, text)

    def _annotation(self, metadata: Raw, path: str, name: str, value: str | None) -> None:
        if not value:
            return
        there = metadata.setdefault("annotations", {}).setdefault(name, value)
        if there != value:
            self._findings.dropped(path, f"the annotation {name} says otherwise, and is kept")
        self._findings.moved(path, join("metadata.annotations", name))

    def _hostname(self, instance: Fields) -> None:
        """Use the metadata's hostname as the DHCP hostname of the first interface, if no interface has one."""
        path = instance.at("hostname")
        hostname = instance.text("hostname")
        if not hostname or not self._interfaces:
            return
        mac, first = next(iter(self._interfaces.items()))
        at = join("spec.networkInterfaces", mac) + ".dhcp"
        names = [each.get("dhcp", {}).get("hostname") for each in self._interfaces.values()]
        if hostname in names:
            return
        if any(names):
            self._findings.dropped(
                path, f"the interfaces have others ({', '.join(filter(None, names))}), and keep them"
            )
        elif refusal := constraints.hostname(hostname):
            self._findings.dropped(path, refusal)
        else:
            self._findings.changed(path, f"is now the hostname that DHCP serves to {mac}")
            first["dhcp"] = {"hostname": hostname} | first.get("dhcp", {})
            self._findings.moved(path, f"{at}.hostname")

    def _ips(self, instance: Fields, served_metadata: Raw) -> None:
        """Add the first public addresses to `served_metadata`. Other addresses mostly repeat the
        interfaces'; the rest is lost.
        """
        for address in instance.each("ips"):
            said = {key: address.text(key) for key in ("address", "netmask", "gateway")}
            address.ignore("family")
            public = _public(address)
            if taken := bool(public) and public not in served_metadata:
                served_metadata[public] = said["address"]
            if not taken:
                address.drop("public", "the metadata service has one public address of each family, and it is another")
            if taken or any(
                (
                    bool(said["address"])
                    and all(
                        not said[key] or said[key] == each.get("dhcp", {}).get(to)
                        for key, to in (("address", "ip"), ("netmask", "netmask"), ("gateway", "gateway"))
                    )
                )
                for each in self._interfaces.values()
            ):
                address.ignore("public")
                address.drop("management", _SERVED)
                address.rest()
            elif any(said.values()):
                self._findings.dropped(address.path, "no interface has this address, and only theirs are served")

    # --- disks and BMC

    def _agent_id(self, spec: Fields, metadata: Raw) -> None:
        """Keep the agent id, unless it is a MAC address of the machine, which identifies the agent anyway."""
        agent_id = (spec.text("agentID") or "").strip()
        if constraints.canonical_mac(agent_id) in self._interfaces:
            return
        if refusal := constraints.agent_id(agent_id) if agent_id else None:
            spec.dropped("agentID", refusal)
            return
        self._annotation(metadata, spec.at("agentID"), AGENT_ID_ANNOTATION, agent_id)

    def _bmc(self, spec: Fields, result: Raw) -> None:
        reference = spec.fields("bmcRef")
        group, kind, name = (reference.text(key) for key in ("apiGroup", "kind", "name"))
        reference.rest()
        if not name:
            return
        if refusal := constraints.machine_reference(group, kind):
            self._findings.dropped(reference.path, refusal)
        elif refusal := constraints.object_name(name):
            reference.dropped("name", refusal)
        else:
            result["bmcRef"] = {"name": name}


def _public(address: Fields) -> str:
    """Return the metadata service's name for an address; empty if it has none."""
    said = address.peek("address")
    if not isinstance(said, str):
        return ""
    try:
        version = ipaddress.ip_address(said).version
    except ValueError:
        return ""
    if version == 4:
        return "public-ipv4" if address.peek("public") is True else ""
    return "public-ipv6"


def osie(kernel_url: str, initrd_url: str, namespace: str | None) -> Raw:
    """Return the OSIE of two URLs. The same URLs give the same name, so that Hardware can share an OSIE."""
    digest = hashlib.sha256(f"{kernel_url}\n{initrd_url}".encode()).hexdigest()
    metadata: Raw = {"name": f"osie-{digest[:10]}"}
    if namespace:
        metadata["namespace"] = namespace
    spec = {"kernelUrl": kernel_url, "initrdUrl": initrd_url}
    return {"apiVersion": API_VERSION, "kind": "OSIE", "metadata": metadata, "spec": spec}
