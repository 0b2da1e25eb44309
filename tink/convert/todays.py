"""Objects that say they are of today's v1alpha2: what they are if that is not so.

Several schemas have had this apiVersion. The proposal's early revision and tinkerbell/tink's Go types differ in a few
fields, which `tink.convert.early` carries over. tinkerbell/tinkerbell's own v1alpha2 (api/v1alpha2/tinkerbell) has
nearly everything elsewhere, and is refused. A field that none of them knows would be dropped by an API server without a
word; here it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert import early
from tink.convert.fields import Fields, join, says_nothing, type_name
from tink.convert.metadata import carried
from tink.convert.report import Findings

FOREIGN_KINDS = ("Policy", "Task")
"""Kinds that tinkerbell/tinkerbell's v1alpha2 has and today's has not."""
FOREIGN = (
    "tinkerbell/tinkerbell has another schema under the same apiVersion, and this is of that one: convert the v1alpha1 "
    "object, or write its fields anew"
)

_FOREIGN_FIELDS = {
    "Hardware": ("agentID", "arch", "attributes", "auto", "bmc", "references"),
    "Workflow": ("disabled", "globals", "references", "tasks", "timeoutSeconds", "vars"),
}
_OF_INSTANCE = ("lookupID", "metadata", "networkConfig", "osie", "sshKeys", "vars")
_OF_INTERFACE = ("ipam", "isoboot", "netboot")
_OF_DHCP = ("ipv4", "ipv6", "v4", "v6")
_UNKNOWN = "v1alpha2 has no such field"
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}
_IN_WORDS = {"object": "an object", "array": "a list", "string": "a string", "boolean": "a boolean"}


def convert(obj: Raw, findings: Findings) -> list[Raw]:
    """The object as today's API takes it; nothing if there is an error."""
    foreign = next(_foreign(obj), None)
    if foreign is not None:
        findings.error(foreign, FOREIGN)
        return []
    made = early.convert(obj, findings) if early.is_early(obj) else [obj]
    made = [{**each, "metadata": carried(Fields(each, findings), findings)} for each in made]
    made = [_checked(each, _schema(each["kind"]), "", findings) for each in made]
    return [] if findings.failed else made


def _foreign(obj: Raw) -> Iterator[str]:
    """The paths of fields that only tinkerbell/tinkerbell's v1alpha2 has, or has in this form."""
    spec = _mapping(obj.get("spec"))
    for key in _FOREIGN_FIELDS.get(obj["kind"], ()):
        if not says_nothing(spec.get(key)):
            yield f"spec.{key}"
    if obj["kind"] != "Hardware":
        return
    for key in _OF_INSTANCE:
        if key in _mapping(spec.get("instance")):
            yield f"spec.instance.{key}"
    for mac, interface in _mapping(spec.get("networkInterfaces")).items():
        at = join("spec.networkInterfaces", mac)
        for key in _OF_INTERFACE:
            if key in _mapping(interface):
                yield f"{at}.{key}"
        for key in _OF_DHCP:
            if key in _mapping(_mapping(interface).get("dhcp")):
                yield f"{at}.dhcp.{key}"
    devices = spec.get("storageDevices")
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        if isinstance(device, dict):
            yield f"spec.storageDevices[{index}]"


@cache
def _schema(kind: str) -> Raw:
    """The schema of a kind, without what every object has."""
    definition = next(each for each in generate() if each["spec"]["names"]["kind"] == kind)
    schema: Raw = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    properties = {**schema["properties"], "apiVersion": {}, "kind": {}, "metadata": {}}
    return {**schema, "properties": properties}


def _checked(value: Any, schema: Raw, path: str, findings: Findings) -> Any:
    """The value without fields that the schema does not know; itself if it has none. Wrong types are errors.

    What the schema says of values is left to the API server, which says it well.
    """
    kind = schema.get("type")
    if value is None or kind is None:
        return value
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        findings.error(path, f"must be {_IN_WORDS.get(kind, 'a number')}, is {type_name(value)}")
    elif kind == "object":
        return _fields(value, schema, path, findings)
    elif kind == "array":
        items = schema["items"]
        return [_checked(item, items, join(path, index), findings) for index, item in enumerate(value)]
    return value


def _fields(mapping: Raw, schema: Raw, path: str, findings: Findings) -> Raw:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        others = {}
    result: Raw = {}
    for key, item in mapping.items():
        at = join(path, key)
        known = properties.get(key, others)
        if known is not None:
            result[key] = _checked(item, known, at, findings)
        elif not says_nothing(item):
            findings.dropped(at, _UNKNOWN)
    for key in schema.get("required", ()):
        if mapping.get(key) is None:
            findings.error(join(path, key), "must be there")
    return result


def _mapping(value: Any) -> Raw:
    return value if isinstance(value, dict) else {}
