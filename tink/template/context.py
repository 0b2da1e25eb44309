"""What a Template can refer to: `.Hardware`, `.hardware`, `.Params`, `.Param`.

`.Hardware` is the spec as the Go struct `v1alpha2.HardwareSpec`, by Go's field names (`.Hardware.StorageDevices`,
`.Hardware.OSIE.Name`): what is absent is Go's zero value, and a field that does not exist is an error.
`.Hardware.Disks` is an alias of StorageDevices, as templates of v1alpha1 wrote. `.hardware` is the same data by JSON
names, as written in the manifest (what is absent is a missing key), with `metadata` and `spec` of the whole object and
the alias `disks`. `.Params` are the Workflow's templateParams; `.Param` is the same, as Tink's renderer calls it.

The tables here are the Go structs of the CRD refactor proposal; a test holds them against `tink.api.v1alpha2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tink.api.v1alpha2 import Raw
from tink.golang.strconv import INT64_MIN, UINT64_MAX
from tink.golang.values import Struct, Value
from tink.template.errors import TemplateError

_DEEPEST: Final = 64

_Convert = Callable[[Any, str], Value]
"""From JSON (None: absent) at a path to a value; raises TemplateError for what has another type."""


@dataclass(frozen=True)
class GoStruct:
    """A Go struct type: its fields in order, each with its JSON name and its type."""

    name: str
    fields: tuple[tuple[str, str, _Convert | GoStruct | MapOf], ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, raw: Any, path: str) -> Struct:
        members = _object(raw, path)
        values = {
            name: convert(members.get(json_name), f"{path}.{json_name}") for name, json_name, convert in self.fields
        }
        return Struct(self.name, values, {alias: values[target] for alias, target in self.aliases.items()})


@dataclass(frozen=True)
class MapOf:
    """A Go map with strings as keys."""

    element: GoStruct

    def __call__(self, raw: Any, path: str) -> Value:
        members = _object(raw, path)
        return {expected(str, key, path): self.element(value, f"{path}[{key}]") for key, value in members.items()}


_JSON_TYPES: Final = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "nothing",
}


def expected(wanted: type, raw: Any, path: str) -> Any:
    """The raw value, if it has exactly this type. Raises TemplateError, which names the path."""
    if type(raw) is not wanted:
        found = _JSON_TYPES.get(type(raw), type(raw).__name__)
        raise TemplateError(f"{path}: want {_JSON_TYPES[wanted]}, found {found}", name=path)
    return raw


def _object(raw: Any, path: str) -> dict[str, Any]:
    """An object; what is absent has no members."""
    members: dict[str, Any] = {} if raw is None else expected(dict, raw, path)
    return members


def _zero_or(zero: Value) -> _Convert:
    """A scalar, or its zero value."""
    return lambda raw, path: zero if raw is None else expected(type(zero), raw, path)


def _strings(raw: Any, path: str) -> Value:
    return [expected(str, item, f"{path}[{index}]") for index, item in enumerate(expected(list, raw or [], path))]


_string = _zero_or("")
_bool = _zero_or(False)
_int = _zero_or(0)

LOCAL_OBJECT_REFERENCE: Final = GoStruct("v1.LocalObjectReference", (("Name", "name", _string),))
DHCP_V6: Final = GoStruct(
    "v1alpha2.DHCPv6",
    (("Address", "address", _string), ("PrefixLength", "prefixLength", _int), ("Nameservers", "nameservers", _strings)),
)
DHCP: Final = GoStruct(
    "v1alpha2.DHCP",
    (
        ("IP", "ip", _string),
        ("Netmask", "netmask", _string),
        ("Gateway", "gateway", _string),
        ("Hostname", "hostname", _string),
        ("VLANID", "vlanId", _string),
        ("Nameservers", "nameservers", _strings),
        ("Timeservers", "timeservers", _strings),
        ("LeaseTimeSeconds", "leaseTimeSeconds", _int),
        ("IPv6", "ipv6", DHCP_V6),
    ),
)
NETWORK_INTERFACE: Final = GoStruct(
    "v1alpha2.NetworkInterface",
    (("DHCP", "dhcp", DHCP), ("DisableDHCP", "disableDhcp", _bool), ("DisableNetboot", "disableNetboot", _bool)),
)
# Content and URL are pointers in Go; here they are their strings, "" for nil.
IPXE: Final = GoStruct("v1alpha2.IPXE", (("Content", "inline", _string), ("URL", "url", _string)))
INSTANCE: Final = GoStruct(
    "v1alpha2.Instance", (("Userdata", "userdata", _string), ("Vendordata", "vendordata", _string))
)
HARDWARE_SPEC: Final = GoStruct(
    "v1alpha2.HardwareSpec",
    (
        ("NetworkInterfaces", "networkInterfaces", MapOf(NETWORK_INTERFACE)),
        ("IPXE", "ipxe", IPXE),
        ("OSIE", "osie", LOCAL_OBJECT_REFERENCE),
        ("KernelParams", "kernelParams", _strings),
        ("Instance", "instance", INSTANCE),
        ("StorageDevices", "storageDevices", _strings),
        ("BMCRef", "bmcRef", LOCAL_OBJECT_REFERENCE),
    ),
    aliases={"Disks": "StorageDevices"},
)


def build_context(hardware: Raw, params: Mapping[str, str]) -> dict[str, Value]:
    """The data of a Template's fields, from a Hardware object as the API serves it and a Workflow's templateParams.

    Raises TemplateError, naming the field, if the Hardware does not have the shape that its schema promises.
    """
    metadata = _plain(_object(hardware.get("metadata"), "metadata"), "metadata", 0)
    spec = _plain(_object(hardware.get("spec"), "spec"), "spec", 0)
    as_json = {**spec, "metadata": metadata, "spec": spec}
    if "storageDevices" in spec:
        as_json["disks"] = spec["storageDevices"]
    given = {
        expected(str, key, "templateParams"): expected(str, value, f"templateParams[{key}]")
        for key, value in params.items()
    }
    return {"Hardware": HARDWARE_SPEC(spec, "spec"), "hardware": as_json, "Params": given, "Param": given}


def _plain(raw: Any, path: str, depth: int) -> Value:
    """A copy that consists of JSON-like values only. Raises TemplateError for anything else."""
    if depth > _DEEPEST:
        raise TemplateError(f"{path}: nested deeper than {_DEEPEST}", name=path)
    if raw is None or type(raw) in (str, bool, float):
        return raw
    if type(raw) is int:
        if not INT64_MIN <= raw <= UINT64_MAX:
            raise TemplateError(f"{path}: the number has more than 64 bits", name=path)
        return raw
    if type(raw) is list:
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(raw)]
    if type(raw) is dict:
        return {expected(str, key, path): _plain(value, f"{path}.{key}", depth + 1) for key, value in raw.items()}
    raise TemplateError(f"{path}: {type(raw).__name__} is no JSON value", name=path)
