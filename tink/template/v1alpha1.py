"""Render the text of a v1alpha1 Template as Tinkerbell's controller does: the whole text at once, before it is YAML.

The data that such a text sees (tinkerbell/tinkerbell, tink/controller/internal/workflow/reconciler.go):

- the keys of the Workflow's hardwareMap, at the top;
- `.Hardware`: a Go struct with Disks, Interfaces, UserData, Metadata and VendorData, whose types are those of
  Tinkerbell's api/v1alpha1. A pointer that is nil is null here, and a field of it is an error, as in Go;
- `.hardware`: the whole Hardware under its JSON names. Its numbers are floats, as Go reads them from JSON;
- `.references`: the objects that `spec.references` of the Hardware names. Tinkerbell denies all of them unless its
  operator lists the permitted ones, and no component of ours reads other objects for a template: it is empty.

The functions are `V1ALPHA1_FUNCTIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tink.api.v1alpha2 import Raw, as_mapping
from tink.golang.strconv import byte_length
from tink.golang.values import Struct, Value
from tink.template.compile import ProgramCache, RenderLimits, render
from tink.template.errors import TemplateError
from tink.template.fields import GoStruct, expected, plain_value
from tink.template.functions import V1ALPHA1_FUNCTIONS

_NAME: Final = "workflow-template"
"""The name that Tinkerbell gives the template, which its error messages repeat."""

NO_REFERENCES: Final = (
    "spec.references of the Hardware is not read, so .references is empty: give the values in spec.hardwareMap of the "
    "Workflow"
)
"""The reason why a template has no references, and the remedy."""
_MISSING_KEY: Final = re.compile(r'<[^<>]*>: map has no entry for key "([^"]*)"')
_cache: Final = ProgramCache(functions=V1ALPHA1_FUNCTIONS)


def render_v1alpha1(text: str, hardware: Raw, hardware_map: Mapping[str, str]) -> str:
    """Return a v1alpha1 Template's text, rendered with a v1alpha1 Hardware and a Workflow's hardwareMap.

    At most 256 KiB are rendered, as by Tinkerbell. Raises TemplateError: for the text, for a Hardware with a value of
    another type than its definition's, and for an exceeded limit. An error that comes of a denied reference names it.
    """
    if "{{" not in text and byte_length(text) > RenderLimits().output:
        raise TemplateError(f"template: {_NAME}: the output is larger than {RenderLimits().output} bytes", name=_NAME)
    try:
        return render(text, _data(hardware, hardware_map), _NAME, cache=_cache)
    except TemplateError as error:
        references = as_mapping(as_mapping(hardware.get("spec")).get("references"))
        missing = _MISSING_KEY.search(str(error))
        if missing is None or not (missing[1] in references or ".references." in missing[0]):
            raise
        raise TemplateError(
            f"reference {missing[1]} denied: {NO_REFERENCES}: {error}",
            name=error.name,
            line=error.line,
            column=error.column,
        ) from None


def _data(hardware: Raw, hardware_map: Mapping[str, str]) -> dict[str, Value]:
    spec = as_mapping(hardware.get("spec"))
    disks = expected(list, spec.get("disks") or [], "spec.disks")
    legacy = {
        "Disks": [_disk(disk, f"spec.disks[{index}]") for index, disk in enumerate(disks)],
        "Interfaces": _list_of(_INTERFACE)(spec.get("interfaces"), "spec.interfaces"),
        "UserData": _text(spec.get("userData"), "spec.userData"),
        "Metadata": _METADATA(spec.get("metadata"), "spec.metadata"),
        "VendorData": _text(spec.get("vendorData"), "spec.vendorData"),
    }
    # The structs `auto` and `status` are in Go's JSON even if they are empty.
    whole = {**hardware, "spec": {"auto": {}, **spec}, "status": as_mapping(hardware.get("status"))}
    return {
        **{
            expected(str, key, "hardwareMap"): _text(value, f"hardwareMap.{key}") for key, value in hardware_map.items()
        },
        "hardware": _as_from_json(plain_value(whole, "hardware")),
        "Hardware": Struct("workflow.templateHardwareData", legacy),
        "references": {},
    }


def _as_from_json(value: Value) -> Value:
    """Return a JSON-like value as Go's encoding/json reads it into a map: all numbers are float64."""
    if type(value) is int:
        return float(value)
    if type(value) is list:
        return [_as_from_json(item) for item in value]
    if type(value) is dict:
        return {key: _as_from_json(item) for key, item in value.items()}
    return value


# --- Go's types -------------------------------------------------------------------------------------------------------

_Convert = Callable[[Any, str], Value]


def _scalar(zero: Value) -> _Convert:
    return lambda raw, path: zero if raw is None else expected(type(zero), raw, path)


def _pointer(struct: GoStruct) -> _Convert:
    return lambda raw, path: None if raw is None else struct(raw, path)


def _list_of(element: _Convert) -> _Convert:
    return lambda raw, path: [
        element(item, f"{path}[{index}]") for index, item in enumerate(expected(list, raw or [], path))
    ]


def _bool_pointer(raw: Any, path: str) -> Value:
    """Return a *bool: nil, or a value that prints as the boolean and is always true in `if`, as a pointer in Go."""
    return None if raw is None else Struct("*bool", {}, text="true" if expected(bool, raw, path) else "false")


def _disk(raw: Any, path: str) -> Value:
    return _text(expected(dict, raw, path).get("device"), f"{path}.device")


_text, _int, _bool = _scalar(""), _scalar(0), _scalar(False)
_texts: Final = _list_of(_text)


def _struct(name: str, *fields: tuple[str, str, _Convert]) -> GoStruct:
    return GoStruct(f"tinkerbell.{name}", fields)


_IP: Final = _struct(
    "IP", ("Address", "address", _text), ("Netmask", "netmask", _text), ("Gateway", "gateway", _text),
    ("Family", "family", _int),
)  # fmt: skip
_ROUTE: Final = _struct(
    "ClasslessStaticRoute", ("DestinationDescriptor", "destination_descriptor", _text), ("Router", "router", _text)
)
_DHCP: Final = _struct(
    "DHCP", ("MAC", "mac", _text), ("Hostname", "hostname", _text), ("DomainName", "domain_name", _text),
    ("LeaseTime", "lease_time", _int), ("NameServers", "name_servers", _texts), ("TimeServers", "time_servers", _texts),
    ("Arch", "arch", _text), ("UEFI", "uefi", _bool), ("IfaceName", "iface_name", _text), ("IP", "ip", _pointer(_IP)),
    ("VLANID", "vlan_id", _text), ("ClasslessStaticRoutes", "classless_static_routes", _list_of(_ROUTE)),
    ("TFTPServerName", "tftp_server_name", _text), ("BootFileName", "boot_file_name", _text),
)  # fmt: skip
_IPXE: Final = _struct("IPXE", ("URL", "url", _text), ("Contents", "contents", _text), ("Binary", "binary", _text))
_OSIE: Final = _struct(
    "OSIE", ("BaseURL", "baseURL", _text), ("Kernel", "kernel", _text), ("Initrd", "initrd", _text),
    ("KernelParams", "kernelParams", _texts),
)  # fmt: skip
_PXELINUX: Final = _struct("PXELINUX", ("Config", "config", _text))
_RPI: Final = _struct(
    "RPI", ("ConfigTxt", "configTxt", _text), ("FirmwarePath", "firmwarePath", _text), ("SerialNum", "serialNum", _text)
)
_NETBOOT: Final = _struct(
    "Netboot", ("AllowPXE", "allowPXE", _bool_pointer), ("AllowWorkflow", "allowWorkflow", _bool_pointer),
    ("IPXE", "ipxe", _pointer(_IPXE)), ("OSIE", "osie", _pointer(_OSIE)), ("PXELINUX", "pxelinux", _pointer(_PXELINUX)),
    ("RPI", "rpi", _pointer(_RPI)),
)  # fmt: skip
_ISOBOOT: Final = _struct("Isoboot", ("SourceISO", "sourceISO", _text))
_INTERFACE: Final = _struct(
    "Interface", ("Netboot", "netboot", _pointer(_NETBOOT)), ("Isoboot", "isoboot", _pointer(_ISOBOOT)),
    ("DHCP", "dhcp", _pointer(_DHCP)), ("DisableDHCP", "disableDhcp", _bool),
)  # fmt: skip

_OPERATING_SYSTEM: Final = _struct(
    "MetadataInstanceOperatingSystem", ("Slug", "slug", _text), ("Distro", "distro", _text),
    ("Version", "version", _text), ("ImageTag", "image_tag", _text), ("OsSlug", "os_slug", _text),
)  # fmt: skip
_INSTANCE_IP: Final = _struct(
    "MetadataInstanceIP", ("Address", "address", _text), ("Netmask", "netmask", _text), ("Gateway", "gateway", _text),
    ("Family", "family", _int), ("Public", "public", _bool), ("Management", "management", _bool),
)  # fmt: skip
_PARTITION: Final = _struct(
    "MetadataInstanceStorageDiskPartition", ("Label", "label", _text), ("Number", "number", _int),
    ("Size", "size", _int), ("Start", "start", _int), ("TypeGUID", "type_guid", _text),
)  # fmt: skip
_STORAGE_DISK: Final = _struct(
    "MetadataInstanceStorageDisk", ("Device", "device", _text), ("WipeTable", "wipe_table", _bool),
    ("Partitions", "partitions", _list_of(_pointer(_PARTITION))),
)  # fmt: skip
_RAID: Final = _struct(
    "MetadataInstanceStorageRAID", ("Name", "name", _text), ("Level", "level", _text), ("Devices", "devices", _texts),
    ("Spare", "spare", _int),
)  # fmt: skip
_FILE: Final = _struct(
    "MetadataInstanceStorageFile", ("Path", "path", _text), ("Contents", "contents", _text), ("Mode", "mode", _int),
    ("UID", "uid", _int), ("GID", "gid", _int),
)  # fmt: skip
_CREATE: Final = _struct(
    "MetadataInstanceStorageMountFilesystemOptions", ("Force", "force", _bool), ("Options", "options", _texts)
)
_MOUNT: Final = _struct(
    "MetadataInstanceStorageMount", ("Device", "device", _text), ("Format", "format", _text),
    ("Files", "files", _list_of(_pointer(_FILE))), ("Create", "create", _pointer(_CREATE)), ("Point", "point", _text),
)  # fmt: skip
_FILESYSTEM: Final = _struct("MetadataInstanceStorageFilesystem", ("Mount", "mount", _pointer(_MOUNT)))
_STORAGE: Final = _struct(
    "MetadataInstanceStorage", ("Disks", "disks", _list_of(_pointer(_STORAGE_DISK))),
    ("Raid", "raid", _list_of(_pointer(_RAID))), ("Filesystems", "filesystems", _list_of(_pointer(_FILESYSTEM))),
)  # fmt: skip
_INSTANCE: Final = _struct(
    "MetadataInstance", ("ID", "id", _text), ("State", "state", _text), ("Hostname", "hostname", _text),
    ("AllowPxe", "allow_pxe", _bool), ("Rescue", "rescue", _bool),
    ("OperatingSystem", "operating_system", _pointer(_OPERATING_SYSTEM)), ("AlwaysPxe", "always_pxe", _bool),
    ("IpxeScriptURL", "ipxe_script_url", _text), ("Ips", "ips", _list_of(_pointer(_INSTANCE_IP))),
    ("Userdata", "userdata", _text), ("CryptedRootPassword", "crypted_root_password", _text), ("Tags", "tags", _texts),
    ("Storage", "storage", _pointer(_STORAGE)), ("SSHKeys", "ssh_keys", _texts),
    ("NetworkReady", "network_ready", _bool),
)  # fmt: skip
_MANUFACTURER: Final = _struct("MetadataManufacturer", ("ID", "id", _text), ("Slug", "slug", _text))
_CUSTOM: Final = _struct(
    "MetadataCustom",
    ("PreinstalledOperatingSystemVersion", "preinstalled_operating_system_version", _pointer(_OPERATING_SYSTEM)),
    ("PrivateSubnets", "private_subnets", _texts),
)
_FACILITY: Final = _struct(
    "MetadataFacility", ("PlanSlug", "plan_slug", _text), ("PlanVersionSlug", "plan_version_slug", _text),
    ("FacilityCode", "facility_code", _text),
)  # fmt: skip
_METADATA: Final = _struct(
    "HardwareMetadata", ("State", "state", _text), ("BondingMode", "bonding_mode", _int),
    ("Manufacturer", "manufacturer", _pointer(_MANUFACTURER)), ("Instance", "instance", _pointer(_INSTANCE)),
    ("Custom", "custom", _pointer(_CUSTOM)), ("Facility", "facility", _pointer(_FACILITY)),
)  # fmt: skip
