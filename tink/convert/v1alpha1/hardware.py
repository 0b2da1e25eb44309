"""Hardware of v1alpha1 to v1alpha2, with the OSIE objects that it needs.

What the fields of v1alpha1 did is what Smee, Hegel and the Tink server did with them (tinkerbell/tinkerbell,
api/v1alpha1): most of `spec.metadata` was served or not even that. A value that v1alpha2 would refuse is dropped with
v1alpha2's own reason; the machine keeps what is left. The Hardware is refused as a whole only where it would boot
otherwise than it did: no interface, a MAC address that is none, one MAC address twice.
"""

from __future__ import annotations

import hashlib
import ipaddress
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
from tink.api.v1alpha2 import API_VERSION, RUFIO_GROUP, Raw
from tink.convert import constraints
from tink.convert.fields import Fields, join, put_text, says_nothing, type_name
from tink.convert.findings import Findings
from tink.convert.metadata import carried
from tink.convert.v1alpha1.interfaces import UNUSED, Interfaces, Netboot

_SERVED = "the metadata service does not serve it"
MAX_STORAGE_CHARACTERS = 128 * 1024
"""All annotations of an object have 256 KiB."""


def convert_hardware(obj: Raw, findings: Findings) -> list[Raw]:
    """The Hardware, and the OSIE that it refers to if it has one; nothing if there is an error."""
    return _Machine(Fields(obj, findings), findings).result()


class _Machine:
    """The conversion of one Hardware."""

    def __init__(self, top: Fields, findings: Findings) -> None:
        self._top = top
        self._findings = findings
        self._interfaces: Raw = {}

    def result(self) -> list[Raw]:
        top = self._top
        top.ignore("apiVersion", "kind")
        metadata = carried(top, self._findings)
        spec = top.fields("spec")
        interfaces = Interfaces(spec.each("interfaces"), self._findings)
        self._interfaces = interfaces.result
        self._findings.moved("spec.interfaces", "spec.networkInterfaces")
        result: Raw = {"networkInterfaces": self._interfaces}
        osies = self._netboot(interfaces.netboots, result, metadata)
        self._instance(spec, result, metadata)
        self._disks(spec, result)
        self._bmc(spec, result)
        self._agent_id(spec, metadata)
        spec.drop("tinkVersion", UNUSED)
        spec.drop("resources", "v1alpha2 has no place for what a scheduler would like to know")
        spec.drop("references", "v1alpha2's templates see the Hardware and the Workflow's templateParams only")
        spec.rest()
        if not says_nothing(top.take("status")):
            self._findings.changed("status", "it is written by services, not by users: v1alpha2's have their own")
        top.rest()
        if self._findings.failed:
            return []
        return [{"apiVersion": API_VERSION, "kind": "Hardware", "metadata": metadata, "spec": result}, *osies]

    def _netboot(self, netboots: list[Netboot], result: Raw, metadata: Raw) -> list[Raw]:
        """What interfaces ask for and a machine has once: the first one that may netboot decides. Returns the OSIE."""
        made: list[Raw] = []
        taken: dict[str, Any] = {}
        for netboot in sorted(netboots, key=lambda netboot: not netboot.allowed):
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
        put_text(self._findings, spec, "userData", constraints.long_text, found, "spec.instance", "userdata")
        put_text(self._findings, spec, "vendorData", constraints.long_text, found, "spec.instance", "vendordata")
        if found:
            result["instance"] = found
        machine = spec.fields("metadata")
        instance = machine.fields("instance")
        self._annotation(metadata, instance.at("id"), INSTANCE_ID_ANNOTATION, instance.text("id"))
        self._ssh_keys(instance, metadata)
        self._hostname(instance)
        told = self._instance_metadata(instance, machine.fields("facility"))
        self._ips(instance, told)
        if told:
            text = orjson.dumps(told, option=orjson.OPT_SORT_KEYS).decode()
            self._annotation(metadata, machine.path, METADATA_ANNOTATION, text)
        instance.drop(
            "userdata",
            "nothing served it: put it into spec.userData before converting, or into spec.instance.userdata",
        )
        self._storage(instance, metadata)
        instance.drop("crypted_root_password", f"{_SERVED}: user-data can set passwords")
        for key in ("allow_pxe", "always_pxe"):
            instance.drop(key, "an interface's netboot.allowPXE decided, and decides now as disableNetboot")
        instance.drop("ipxe_script_url", "an interface's netboot.ipxe decided, and decides now as spec.ipxe")
        for key in ("state", "rescue", "network_ready"):
            instance.drop(key, UNUSED)
        instance.rest()
        machine.drop("state", "v1alpha2 has no state that a user sets: disableNetboot keeps a machine from netbooting")
        for key in ("manufacturer", "custom"):
            machine.drop(key, _SERVED)
        machine.drop("bonding_mode", UNUSED)
        machine.rest()

    def _instance_metadata(self, instance: Fields, facility: Fields) -> Raw:
        """What Hegel and Tootles served of it, by the names of the metadata service (`hegel.instance`)."""
        told: Raw = {}
        for key, field in (("facility", "facility_code"), ("plan", "plan_slug")):
            if text := facility.text(field):
                told[key] = text
        facility.drop("plan_version_slug", _SERVED)
        facility.rest()
        if tags := [tag for _, tag in instance.texts("tags") if tag]:
            told["tags"] = tags
        system = instance.fields("operating_system")
        named = {key: text for key in ("distro", "image_tag", "slug", "version") if (text := system.text(key))}
        if named:
            told["operating-system"] = named
        system.drop("os_slug", _SERVED)
        system.rest()
        return told

    def _storage(self, instance: Fields, metadata: Raw) -> None:
        """Partitions and filesystems: for rootio, which reads them from the metadata service."""
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

    def _ssh_keys(self, instance: Fields, metadata: Raw) -> None:
        path = instance.at("ssh_keys")
        keys: list[str] = []
        for at, key in instance.texts("ssh_keys"):
            key = key.strip()
            if "\n" in key or "\r" in key:
                self._findings.dropped(at, "an SSH public key is one line")
            elif key:
                keys.append(key)
        self._annotation(metadata, path, SSH_PUBLIC_KEYS_ANNOTATION, "\n".join(keys))

    def _hostname(self, instance: Fields) -> None:
        """The metadata's hostname is the DHCP's of the first interface if that has none."""
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

    def _ips(self, instance: Fields, told: Raw) -> None:
        """Mostly the interfaces' addresses once more; the first public ones go to `told`, what says more is lost."""
        for address in instance.each("ips"):
            said = {key: address.text(key) for key in ("address", "netmask", "gateway")}
            address.ignore("family")
            public = _public(address)
            if taken := bool(public) and public not in told:
                told[public] = said["address"]
            if not taken:
                address.drop("public", "the metadata service has one public address of each family, and it is another")
            if taken or any(self._is_served(said, each.get("dhcp", {})) for each in self._interfaces.values()):
                address.ignore("public")
                address.drop("management", _SERVED)
                address.rest()
            elif any(said.values()):
                self._findings.dropped(address.path, "no interface has this address, and only theirs are served")

    def _is_served(self, said: dict[str, str | None], dhcp: Raw) -> bool:
        return bool(said["address"]) and all(
            not said[key] or said[key] == dhcp.get(to)
            for key, to in (("address", "ip"), ("netmask", "netmask"), ("gateway", "gateway"))
        )

    # --- disks and BMC

    def _disks(self, spec: Fields, result: Raw) -> None:
        devices: list[str] = []
        for disk in spec.each("disks"):
            device = disk.text("device")
            disk.rest()
            if not device:
                continue
            if refusal := constraints.disk(device):
                self._findings.dropped(disk.at("device"), refusal)
            elif len(devices) == bounds.MAX_DISKS:
                self._findings.dropped(disk.path, f"v1alpha2 takes {bounds.MAX_DISKS} disks of a machine")
            else:
                self._findings.moved(disk.path, f"spec.storageDevices[{len(devices)}]")
                devices.append(device)
        if devices:
            result["storageDevices"] = devices
            self._findings.moved("spec.disks", "spec.storageDevices")

    def _agent_id(self, spec: Fields, metadata: Raw) -> None:
        """What the agent calls itself; by the MAC it is known in any case."""
        agent_id = (spec.text("agentID") or "").strip()
        if constraints.canonical_mac(agent_id) in self._interfaces:
            return
        if refusal := constraints.agent_id(agent_id) if agent_id else None:
            self._findings.dropped(spec.at("agentID"), refusal)
            return
        self._annotation(metadata, spec.at("agentID"), AGENT_ID_ANNOTATION, agent_id)

    def _bmc(self, spec: Fields, result: Raw) -> None:
        reference = spec.fields("bmcRef")
        group, kind, name = (reference.text(key) for key in ("apiGroup", "kind", "name"))
        reference.rest()
        if not name:
            return
        if (group or RUFIO_GROUP) != RUFIO_GROUP or (kind or "Machine") != "Machine":
            self._findings.dropped(
                reference.path, f"v1alpha2 refers to a Machine of {RUFIO_GROUP}, not to {kind or 'one'} of {group}"
            )
        elif refusal := constraints.object_name(name):
            self._findings.dropped(reference.at("name"), refusal)
        else:
            result["bmcRef"] = {"name": name}


def _public(address: Fields) -> str:
    """The name of the metadata service for an address, where it has one."""
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
    """The OSIE of two URLs: with the same name wherever the same URLs are met, so that Hardware shares it."""
    digest = hashlib.sha256(f"{kernel_url}\n{initrd_url}".encode()).hexdigest()
    metadata: Raw = {"name": f"osie-{digest[:10]}"}
    if namespace:
        metadata["namespace"] = namespace
    spec = {"kernelUrl": kernel_url, "initrdUrl": initrd_url}
    return {"apiVersion": API_VERSION, "kind": "OSIE", "metadata": metadata, "spec": spec}
