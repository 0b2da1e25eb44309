"""Map the fields of a Hardware between v1alpha1 and v1alpha2.

`_up` and `_down` are lossy and pure; `tink.versions.residue` keeps the rest. A field is mapped only if the other
version has the same meaning for it and would accept the value: the checks are those of `tink.convert.constraints`.

| v1alpha1 | v1alpha2 |
|---|---|
| `interfaces[]`, by `dhcp.mac` | `networkInterfaces`, by MAC address; order and others are residue |
| `netboot.allowPXE`; absent means false | `disableNetboot`, inverted |
| ipxe and kernelParams of the first interface with `allowPXE` | `ipxe`, `kernelParams` of the machine |
| `disks[].device` | `storageDevices` |
| `userData`, `vendorData` | `instance.userdata`, `instance.vendordata` |
| `bmcRef.name` of a Machine | `bmcRef.name` |
| the site's only OSIE, in Tinkerbell's settings | `osie`, named DEFAULT_OSIE unless v1alpha2 names another one |
| `agentID`, `metadata` | annotations, where v1alpha2 has no field (`tink.api.annotations`) |
| `status.attributes.outOfBand` | `status.inventory.outOfBand` |

In the v1alpha1 view `metadata.instance.id` is never absent, because CAPT reads it unchecked: the default is the name,
as in the metadata service.

v1alpha2 requires no field of a Hardware, so nothing is filled in: a Hardware without a usable MAC address has no
`networkInterfaces`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any, Final

import orjson

from tink.api import bounds
from tink.api.annotations import (
    AGENT_ID_ANNOTATION,
    INSTANCE_ID_ANNOTATION,
    METADATA_ANNOTATION,
    SSH_PUBLIC_KEYS_ANNOTATION,
    STORAGE_ANNOTATION,
    V1ALPHA1_ANNOTATION,
)
from tink.api.v1alpha2 import RUFIO_GROUP, Raw, as_mapping
from tink.convert import constraints
from tink.convert.constraints import Check
from tink.convert.fields import says_nothing
from tink.mac import is_mac
from tink.versions.residue import MISSING, NEW, OLD, PLAIN, UNIT, Kind, Structure, canonical, translate

_DEFAULT_LEASE_SECONDS: Final = 86400
_DEFAULT_PREFIX_LENGTH: Final = 64
DEFAULT_OSIE: Final = "default"
"""The OSIE of machines that are written in v1alpha1, in their namespace. v1alpha1 has no reference to an OSIE:
Tinkerbell boots the one of its settings. An operator may name another one in v1alpha2.
"""
MAX_STORAGE_CHARACTERS: Final = 128 << 10
"""Maximum size of the storage annotation. All annotations of an object together may have 256 KiB."""
_ANNOTATIONS: Final = frozenset(
    {
        AGENT_ID_ANNOTATION,
        INSTANCE_ID_ANNOTATION,
        METADATA_ANNOTATION,
        SSH_PUBLIC_KEYS_ANNOTATION,
        STORAGE_ANNOTATION,
    }
)
_FACILITY: Final = (("facility", "facility_code"), ("plan", "plan_slug"))
_SYSTEM: Final = ("distro", "image_tag", "slug", "version")
_TEXTS: Final = (("hostname", "hostname", constraints.hostname), ("vlan_id", "vlanId", constraints.vlan))
_SERVERS: Final = (("name_servers", "nameservers"), ("time_servers", "timeservers"))
_DATA: Final = (("userData", "userdata"), ("vendorData", "vendordata"))


# --- values of any type


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(value: Any) -> list[str]:
    return [each for each in _list(value) if isinstance(each, str)]


def _good(value: Any, check: Check) -> bool:
    return isinstance(value, str) and value != "" and check(value) is None


def _dumped(value: Raw) -> str:
    """Return canonical JSON; empty if JSON has no place for the value (an integer of more than 64 bits)."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return ""


def _parsed(value: Any) -> Raw:
    """Return the mapping in the JSON of an annotation; empty if it has another content."""
    try:
        return as_mapping(orjson.loads(value) if isinstance(value, str) else value)
    except ValueError:
        return {}


def _version(address: Any) -> int:
    """Return 4 or 6 for the text of an IP address, and 0 for any other value."""
    try:
        return ipaddress.ip_address(address).version if isinstance(address, str) else 0
    except ValueError:
        return 0


def _given(view: Raw) -> Raw:
    """Return the annotations of a view that have a home in v1alpha1."""
    return {name: value for name, value in as_mapping(view.get("annotations")).items() if name in _ANNOTATIONS}


def _mac_of(interface: Any) -> str | None:
    """Return the MAC address of a v1alpha1 interface in v1alpha2's form; None if it has no valid one."""
    written = as_mapping(as_mapping(interface).get("dhcp")).get("mac")
    mac = constraints.canonical_mac(written) if isinstance(written, str) else ""
    return mac if is_mac(mac) else None


# --- v1alpha1 to v1alpha2


def _up(view: Raw, metadata: Raw) -> Raw:
    """Return the v1alpha2 view of a v1alpha1 view (`residue.Kind`)."""
    given = _given(view)
    if METADATA_ANNOTATION in given:
        given[METADATA_ANNOTATION] = canonical(given[METADATA_ANNOTATION])
    if "spec" not in view:
        return {"annotations": given} if given else {}
    spec = as_mapping(view["spec"])
    interfaces: Raw = {}
    machine: Raw | None = None
    for each in _list(spec.get("interfaces")):
        mac = _mac_of(each)
        if mac is None or mac in interfaces or len(interfaces) == bounds.MAX_INTERFACES:
            continue
        interfaces[mac] = _interface(each)
        if machine is None and "disableNetboot" not in interfaces[mac]:
            machine = as_mapping(each["netboot"])
    new: Raw = {"networkInterfaces": interfaces, "osie": {"name": DEFAULT_OSIE}} if interfaces else {}
    if machine is not None:
        new |= _netboot(machine)
    disks = (as_mapping(each).get("device") for each in _list(spec.get("disks")))
    if devices := _accepted(disks, constraints.disk, bounds.MAX_DISKS):
        new["storageDevices"] = devices
    instance = {name: spec[old] for old, name in _DATA if _is_data(spec.get(old))}
    if instance:
        new["instance"] = instance
    reference = as_mapping(spec.get("bmcRef"))
    if _is_machine(reference):
        new["bmcRef"] = {"name": reference["name"]}
    annotations = _annotations(spec, interfaces, metadata) | given
    return {"spec": new} | ({"annotations": annotations} if annotations else {})


def _is_data(value: Any) -> bool:
    return isinstance(value, str) and constraints.long_text(value) is None


def _is_machine(reference: Raw) -> bool:
    refusal = constraints.machine_reference(reference.get("apiGroup"), reference.get("kind"))
    return refusal is None and _good(reference.get("name"), constraints.object_name)


def _accepted(values: Iterable[Any], check: Check, most: int) -> list[str]:
    """Return the first values that v1alpha2 accepts, at most `most`."""
    return [each for each in values if _good(each, check)][:most]


def _interface(old: Raw) -> Raw:
    """Return the v1alpha2 interface of a v1alpha1 interface."""
    new: Raw = {}
    if dhcp := _dhcp(as_mapping(old.get("dhcp"))):
        new["dhcp"] = dhcp
    if old.get("disableDhcp") is True:
        new["disableDhcp"] = True
    if as_mapping(old.get("netboot")).get("allowPXE") is not True:
        new["disableNetboot"] = True
    return new


def _dhcp(old: Raw) -> Raw:
    ip = as_mapping(old.get("ip"))
    address = ip.get("address")
    new = _ipv6(ip) if _integer(ip.get("family")) == 6 or constraints.is_ipv6(address) else _ipv4(ip)
    for name, to, check in _TEXTS:
        value = old.get(name)
        if name == "vlan_id" and _integer(value) is not None:
            value = str(value)
        if _good(value, check):
            new[to] = value
    for name, to in _SERVERS:
        servers = _texts(old.get(name))
        if found := _accepted((each for each in servers if ":" not in each), constraints.server, bounds.MAX_SERVERS):
            new[to] = found
        if name == "name_servers" and "ipv6" in new:
            lowered = (each.lower() for each in servers if ":" in each)
            if found := _accepted(lowered, constraints.ipv6, bounds.MAX_SERVERS):
                new["ipv6"]["nameservers"] = found
    seconds = _integer(old.get("lease_time")) or 0
    # v1alpha1's 0 means the default. RFC 2132 section 9.2: the largest number is a lease that never expires.
    if seconds > 0 and seconds != _DEFAULT_LEASE_SECONDS:
        new["leaseTimeSeconds"] = min(seconds, bounds.MAX_LEASE_SECONDS)
    return new


def _ipv4(ip: Raw) -> Raw:
    new: Raw = {}
    for name, to, check in (("address", "ip", constraints.ipv4), ("netmask", "netmask", constraints.netmask)):
        if _good(ip.get(name), check):
            new[to] = ip[name]
    gateway = _text(ip.get("gateway"))
    if _good(gateway, constraints.ipv4) and not (
        "ip" in new and "netmask" in new and constraints.gateway_of(new["ip"], new["netmask"], gateway)
    ):
        new["gateway"] = gateway
    return new


def _ipv6(ip: Raw) -> Raw:
    """Return the `dhcp` with an IPv6 address. The prefix length is the netmask, or stands behind the address."""
    written = ip.get("address")
    if not constraints.is_ipv6(written):
        return {}
    address, _, bits = str(written).partition("/")
    if "%" in address:
        return {}
    address = str(ipaddress.IPv6Address(address))
    if constraints.ipv6(address) is not None:
        return {}
    new: Raw = {"address": address}
    length = constraints.prefix_length(_text(ip.get("netmask")) or bits)
    if length is not None and length != _DEFAULT_PREFIX_LENGTH:
        new["prefixLength"] = length
    return {"ipv6": new}


def _netboot(old: Raw) -> Raw:
    """Return the fields of the machine that v1alpha1 has in an interface's `netboot`."""
    new: Raw = {}
    ipxe = as_mapping(old.get("ipxe"))
    # v1alpha1 chains to the URL if it has both, and v1alpha2 refuses to choose.
    if _good(ipxe.get("url"), constraints.http_url):
        new["ipxe"] = {"url": ipxe["url"]}
    elif _good(ipxe.get("contents"), constraints.script):
        new["ipxe"] = {"inline": ipxe["contents"]}
    params = _texts(as_mapping(old.get("osie")).get("kernelParams"))
    if accepted := _accepted(params, constraints.kernel_param, bounds.MAX_KERNEL_PARAMS):
        new["kernelParams"] = accepted
    return new


def _annotations(spec: Raw, interfaces: Raw, metadata: Raw) -> Raw:
    """Return the annotations of a v1alpha1 spec, and set the hostname of the first interface if none has one."""
    machine = as_mapping(spec.get("metadata"))
    instance = as_mapping(machine.get("instance"))
    found: Raw = {}
    instance_id = _text(instance.get("id"))
    if instance_id and instance_id != metadata.get("name"):
        found[INSTANCE_ID_ANNOTATION] = instance_id
    keys = [key for key in map(str.strip, _texts(instance.get("ssh_keys"))) if key and not {"\n", "\r"} & {*key}]
    if keys:
        found[SSH_PUBLIC_KEYS_ANNOTATION] = "\n".join(keys)
    if served := _served(instance, as_mapping(machine.get("facility"))):
        found[METADATA_ANNOTATION] = served
    storage = instance.get("storage")
    if isinstance(storage, dict) and not says_nothing(storage):
        text = _dumped(storage)
        if text and len(text) <= MAX_STORAGE_CHARACTERS:
            found[STORAGE_ANNOTATION] = text
    agent_id = _text(spec.get("agentID")).strip()
    # The MAC addresses of a machine identify its agent anyway.
    if _good(agent_id, constraints.agent_id) and constraints.canonical_mac(agent_id) not in interfaces:
        found[AGENT_ID_ANNOTATION] = agent_id
    hostname = instance.get("hostname")
    if interfaces and _good(hostname, constraints.hostname):
        names = [each.get("dhcp", {}).get("hostname") for each in interfaces.values()]
        if not any(names):
            first = next(iter(interfaces.values()))
            first["dhcp"] = first.get("dhcp", {}) | {"hostname": hostname}
    return found


def _served(instance: Raw, facility: Raw) -> Raw:
    """Return the further metadata of the metadata service, as Tinkerbell's own service derived it."""
    found: Raw = {name: facility[old] for name, old in _FACILITY if _text(facility.get(old))}
    if tags := [tag for tag in _texts(instance.get("tags")) if tag]:
        found["tags"] = tags
    system = as_mapping(instance.get("operating_system"))
    if named := {key: system[key] for key in _SYSTEM if _text(system.get(key))}:
        found["operating-system"] = named
    for each in map(as_mapping, _list(instance.get("ips"))):
        version = _version(each.get("address"))
        if version == 6 or (version == 4 and each.get("public") is True):
            found.setdefault(f"public-ipv{version}", each["address"])
    return found


# --- v1alpha2 to v1alpha1


def _down(view: Raw, metadata: Raw) -> Raw:
    """Return the v1alpha1 view of a v1alpha2 view (`residue.Kind`)."""
    given = _given(view)
    if "spec" not in view:
        texts = {name: _dumped(value) if isinstance(value, dict) else value for name, value in given.items()}
        return {"annotations": texts} if texts else {}
    spec = as_mapping(view["spec"])
    old: Raw = {}
    netboot = _old_netboot(spec)
    by_mac = as_mapping(spec.get("networkInterfaces"))
    macs = sorted(mac for mac, each in by_mac.items() if is_mac(mac) and isinstance(each, dict))
    if macs:
        old["interfaces"] = [_old_interface(mac, by_mac[mac], netboot) for mac in macs]
    if devices := _texts(spec.get("storageDevices")):
        old["disks"] = [{"device": each} for each in devices]
    instance = as_mapping(spec.get("instance"))
    old |= {name: instance[new] for name, new in _DATA if isinstance(instance.get(new), str)}
    if name := _text(as_mapping(spec.get("bmcRef")).get("name")):
        old["bmcRef"] = {"apiGroup": RUFIO_GROUP, "kind": "Machine", "name": name}
    if machine := _old_metadata(given, metadata):
        old["metadata"] = machine
    if isinstance(given.get(AGENT_ID_ANNOTATION), str):
        old["agentID"] = given[AGENT_ID_ANNOTATION]
    return {"spec": old}


def _old_netboot(spec: Raw) -> Raw:
    """Return the fields of an interface's `netboot` that v1alpha2 has once for a machine."""
    old: Raw = {}
    ipxe = as_mapping(spec.get("ipxe"))
    if url := _text(ipxe.get("url")):
        old["ipxe"] = {"url": url}
    elif script := _text(ipxe.get("inline")):
        old["ipxe"] = {"contents": script}
    if params := _texts(spec.get("kernelParams")):
        old["osie"] = {"kernelParams": params}
    return old


def _old_interface(mac: str, new: Raw, netboot: Raw) -> Raw:
    old: Raw = {"dhcp": {"mac": mac} | _old_dhcp(as_mapping(new.get("dhcp")))}
    allowed = new.get("disableNetboot") is not True
    old["netboot"] = {"allowPXE": allowed, "allowWorkflow": allowed}
    if allowed:
        # Each interface gets mappings of its own, because a residue changes them.
        old["netboot"] |= {name: dict(value) for name, value in netboot.items()}
    if new.get("disableDhcp") is True:
        old["disableDhcp"] = True
    return old


def _old_dhcp(new: Raw) -> Raw:
    old: Raw = {name: new[to] for name, to, _ in _TEXTS if _text(new.get(to))}
    ip = {
        name: new[to]
        for name, to in (("address", "ip"), ("netmask", "netmask"), ("gateway", "gateway"))
        if _text(new.get(to))
    }
    # v1alpha1 has one address for each interface.
    ipv6 = {} if ip else as_mapping(new.get("ipv6"))
    if address := _text(ipv6.get("address")):
        ip = {"address": address, "family": 6}
        length = _integer(ipv6.get("prefixLength"))
        if length is not None and length != _DEFAULT_PREFIX_LENGTH:
            ip["netmask"] = str(length)
    if ip:
        old["ip"] = ip
    for name, to in _SERVERS:
        servers = _texts(new.get(to)) + (_texts(ipv6.get("nameservers")) if name == "name_servers" else [])
        if servers:
            old[name] = servers
    seconds = _integer(new.get("leaseTimeSeconds")) or 0
    if seconds > 0 and seconds != _DEFAULT_LEASE_SECONDS:
        old["lease_time"] = seconds
    return old


def _old_metadata(annotations: Raw, metadata: Raw) -> Raw:
    """Return v1alpha1's `spec.metadata` of the annotations."""
    served = _parsed(annotations.get(METADATA_ANNOTATION))
    instance: Raw = {}
    if instance_id := _text(annotations.get(INSTANCE_ID_ANNOTATION)) or _text(metadata.get("name")):
        instance["id"] = instance_id
    keys = [key.strip() for key in _text(annotations.get(SSH_PUBLIC_KEYS_ANNOTATION)).split("\n") if key.strip()]
    if keys:
        instance["ssh_keys"] = keys
    if storage := _parsed(annotations.get(STORAGE_ANNOTATION)):
        instance["storage"] = storage
    if tags := _texts(served.get("tags")):
        instance["tags"] = tags
    system = as_mapping(served.get("operating-system"))
    if named := {key: system[key] for key in _SYSTEM if _text(system.get(key))}:
        instance["operating_system"] = named
    addresses = [
        {"address": served[key], "family": version, "public": True}
        for version in (4, 6)
        if _version(served.get(key := f"public-ipv{version}")) == version
    ]
    if addresses:
        instance["ips"] = addresses
    machine: Raw = {"instance": instance} if instance else {}
    if facility := {old: served[name] for name, old in _FACILITY if _text(served.get(name))}:
        machine["facility"] = facility
    return machine


def _without_defaults(view: Raw) -> Raw:
    """Return a v1alpha2 view without explicit defaults of its interfaces."""
    spec = as_mapping(view.get("spec"))
    interfaces = spec.get("networkInterfaces")
    if not isinstance(interfaces, dict):
        return view
    made = {mac: _interface_without_defaults(each) for mac, each in interfaces.items()}
    return view | {"spec": spec | {"networkInterfaces": made}}


def _interface_without_defaults(interface: Any) -> Any:
    if not isinstance(interface, dict):
        return interface
    made = {
        name: value
        for name, value in interface.items()
        if not (value is False and name in ("disableDhcp", "disableNetboot"))
    }
    if isinstance(made.get("dhcp"), dict):
        made["dhcp"] = dhcp = _without(made["dhcp"], "leaseTimeSeconds", _DEFAULT_LEASE_SECONDS)
        if isinstance(dhcp.get("ipv6"), dict):
            dhcp["ipv6"] = _without(dhcp["ipv6"], "prefixLength", _DEFAULT_PREFIX_LENGTH)
    return made


def _without(mapping: Raw, field: str, default: int) -> Raw:
    """Return a copy of a mapping, without a field if that has its default."""
    is_default = type(mapping.get(field)) is int and mapping[field] == default
    return {name: value for name, value in mapping.items() if not (is_default and name == field)}


# --- status

_STATUS: Final = "v1alpha2"
"""The field of v1alpha1's status that holds v1alpha2's status."""
_SOURCE: Final = "outOfBand"


def _up_status(obj: Raw) -> Any:
    """Return the status of the v1alpha2 object: `status.v1alpha2`, and the inventory that Rufio writes."""
    old = as_mapping(obj.get("status"))
    new = old.get(_STATUS, MISSING)
    observed = as_mapping(old.get("attributes")).get(_SOURCE)
    if not isinstance(observed, dict) or not (new is MISSING or isinstance(new, dict)):
        return new
    status = as_mapping(new)
    return status | {"inventory": as_mapping(status.get("inventory")) | {_SOURCE: _bounded(observed)}}


def _bounded(value: Any) -> Any:
    """Return a part of an inventory within v1alpha2's bounds. v1alpha1 has none."""
    if isinstance(value, dict):
        # A code of the power-on self-test is the only number that may be negative.
        made = {name: each if name == "postCode" else _bounded(each) for name, each in value.items()}
        return {name: each for name, each in made.items() if each is not MISSING}
    if isinstance(value, list):
        items = (_bounded(each) for each in value[: bounds.MAX_INVENTORY_ITEMS])
        return [each for each in items if each is not MISSING]
    if isinstance(value, str):
        return value[: bounds.MAX_INVENTORY_CHARACTERS]
    return MISSING if isinstance(value, int | float) and value < 0 else value


def _down_status(obj: Raw) -> Any:
    """Return the status of the v1alpha1 object."""
    if "status" not in obj:
        return MISSING
    new = obj["status"]
    if not isinstance(new, dict):
        return {_STATUS: new}
    old: Raw = {}
    inventory = new.get("inventory")
    if isinstance(inventory, dict) and isinstance(inventory.get(_SOURCE), dict):
        old["attributes"] = {_SOURCE: inventory[_SOURCE]}
        rest = {name: value for name, value in inventory.items() if name != _SOURCE}
        new = {name: value for name, value in new.items() if name != "inventory"}
        if rest:
            new["inventory"] = rest
    state = _text(new.get("state"))
    if state == "Failed" or new.get("bootProblem"):
        old["state"] = "Error"
    elif state and state != "Absent":
        old["state"] = "Ready"
    return old | {_STATUS: new}


HARDWARE: Final = Kind(
    up=_up,
    down=_down,
    up_status=_up_status,
    down_status=_down_status,
    old=Structure(
        {"spec": Structure({"interfaces": Structure(item=PLAIN, key=_mac_of), "bmcRef": UNIT})},
    ),
    new=Structure(
        {
            "spec": Structure(
                {
                    "networkInterfaces": Structure(item=Structure({"dhcp": Structure({"ipv6": UNIT})})),
                    "ipxe": UNIT,
                    "osie": UNIT,
                    "bmcRef": UNIT,
                }
            )
        }
    ),
    annotations=_ANNOTATIONS,
    json_annotations=frozenset({METADATA_ANNOTATION}),
    without_defaults=_without_defaults,
)


# --- fields without an effect


IGNORED: Final = (
    *(("dhcp", name) for name in ("boot_file_name", "classless_static_routes", "domain_name", "tftp_server_name")),
    *(("netboot", "osie", name) for name in ("baseURL", "initrd", "kernel")),
    ("netboot", "ipxe", "binary"),
    ("netboot", "pxelinux"),
    ("netboot", "rpi"),
    ("isoboot",),
)
"""The fields of an interface of v1alpha1 that Tinkerbell uses and this program does not (`tink.api.v1alpha1`)."""


def ignored_fields(hardware: Raw) -> list[str]:
    """Return the fields of v1alpha1 that have no effect on a stored Hardware, by path, and its unusable interfaces.

    Raises nothing.
    """
    annotations = as_mapping(as_mapping(hardware.get("metadata")).get("annotations"))
    if V1ALPHA1_ANNOTATION not in annotations:
        return []
    old = translate({**hardware, "apiVersion": NEW}, HARDWARE, OLD)
    found = []
    for number, interface in enumerate(_list(as_mapping(old.get("spec")).get("interfaces"))):
        at = f"spec.interfaces[{number}]"
        found += [f"{at}.{'.'.join(path)}" for path in IGNORED if not says_nothing(_at(interface, path))]
        if _mac_of(interface) is None:
            found.append(f"{at} (it has no usable dhcp.mac)")
    return found


def is_uefi(hardware: Raw) -> bool | None:
    """Return `dhcp.uefi` of a stored Hardware that was written in v1alpha1; None if no interface has it.

    Tinkerbell takes True if one interface has it (tink/controller/internal/workflow/pre.go). Raises nothing.
    """
    old = translate({**hardware, "apiVersion": NEW}, HARDWARE, OLD)
    modes = [_at(each, ("dhcp", "uefi")) for each in _list(as_mapping(old.get("spec")).get("interfaces"))]
    known = [mode for mode in modes if isinstance(mode, bool)]
    return any(known) if known else None


def _at(value: Any, path: Iterable[str]) -> Any:
    for name in path:
        value = as_mapping(value).get(name)
    return value
