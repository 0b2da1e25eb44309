"""How the controller of v1alpha1 rendered a Template: the whole text first, then YAML. The peer of the conversion.

Written after tinkerbell/tinkerbell (tink/controller/internal/workflow: reconciler.go, template_funcs.go), with the Go
template engine of this project but Sprig's order of operands, and without anything of `tink.convert`.
"""

from __future__ import annotations

from typing import Any

import yaml

from tink.api.v1alpha2 import Raw
from tink.template.compile import compile_text
from tink.template.functions import FUNCTIONS, netmask_to_prefix_length
from tink.template.signatures import STRING, Function, table

_FUNCTIONS = {
    **FUNCTIONS,
    **table(
        Function("contains", lambda part, text: part in text, (STRING, STRING)),
        Function("hasPrefix", lambda part, text: text.startswith(part), (STRING, STRING)),
        Function("hasSuffix", lambda part, text: text.endswith(part), (STRING, STRING)),
        Function("netmaskToCIDR", netmask_to_prefix_length, (STRING,)),
    ),
}


class _AsWritten(yaml.SafeLoader):
    """Loads scalars as they are written, as go-yaml does for string fields, with anchors and merges."""

    yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}  # noqa: RUF012 - PyYAML's protocol


def _interface(raw: Raw) -> Raw:
    dhcp = raw.get("dhcp", {})
    ip = dhcp.get("ip", {})
    return {
        "DisableDHCP": raw.get("disableDHCP", False),
        "DHCP": {
            "MAC": dhcp.get("mac", ""),
            "Hostname": dhcp.get("hostname", ""),
            "LeaseTime": dhcp.get("lease_time", 0),
            "NameServers": dhcp.get("name_servers", []),
            "TimeServers": dhcp.get("time_servers", []),
            "VLANID": dhcp.get("vlan_id", ""),
            "Arch": dhcp.get("arch", ""),
            "IP": {name: ip.get(name.lower(), "") for name in ("Address", "Netmask", "Gateway")},
        },
    }


def data(hardware: Raw, hardware_map: dict[str, str]) -> Raw:
    """Return the data that a template saw."""
    spec = hardware["spec"]
    instance = spec.get("metadata", {}).get("instance", {})
    legacy = {
        "Disks": [disk["device"] for disk in spec.get("disks", [])],
        "Interfaces": [_interface(each) for each in spec.get("interfaces", [])],
        "UserData": spec.get("userData", ""),
        "VendorData": spec.get("vendorData", ""),
        "Metadata": {"Instance": {"ID": instance.get("id", ""), "Hostname": instance.get("hostname", "")}},
    }
    return {**hardware_map, "Hardware": legacy, "hardware": hardware, "references": {}}


def render(template: Raw, hardware: Raw, hardware_map: dict[str, str]) -> list[Raw]:
    """Return the actions that a worker got: name, image, args, env, volumes."""
    text = compile_text(template["spec"]["data"], _FUNCTIONS, "old").render(data(hardware, hardware_map))
    workflow: Any = yaml.load(text, Loader=_AsWritten)
    (task,) = workflow["tasks"]
    return [
        {
            "name": action["name"],
            "image": action["image"],
            "args": action.get("command", []),
            "env": {**task.get("environment", {}), **action.get("environment", {})},
            "volumes": sorted([*task.get("volumes", []), *action.get("volumes", [])]),
            "timeout": int(action.get("timeout", "0")),
        }
        for action in task["actions"]
    ]
