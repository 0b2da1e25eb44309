"""Objects that say they are of today's v1alpha2: what they are if that is not so.

Several schemas have had this apiVersion. The proposal's first revision and tinkerbell/tink's Go types differ in a few
fields, which `first_revision` carries over. tinkerbell/tinkerbell's own v1alpha2 (api/v1alpha2/tinkerbell) has
nearly everything elsewhere, and is refused. A field that none of them knows would be dropped by an API server without a
word; here it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tink.api.v1alpha2 import VERSION, Raw, as_mapping
from tink.convert.fields import Fields, join, says_nothing
from tink.convert.findings import Findings
from tink.convert.metadata import carried
from tink.convert.v1alpha2.first_revision import convert_first_revision, is_first_revision

if TYPE_CHECKING:
    from tink.kubeapi import Checker

_UNKNOWN = "v1alpha2 has no such field"
_STRUCTURE = ("FieldValueTypeInvalid", "FieldValueRequired")
"""What no user of an API server meant. All else that is wrong with a value is left to the server, which says it."""


def convert(obj: Raw, findings: Findings) -> list[Raw]:
    """The object as today's API takes it; nothing if there is an error."""
    elsewhere = next(upstream_fields(obj), None)
    if elsewhere is not None:
        findings.error(elsewhere, UPSTREAM)
        return []
    made = convert_first_revision(obj, findings) if is_first_revision(obj) else [obj]
    made = [{**each, "metadata": carried(Fields(each, findings), findings)} for each in made]
    made = [_checked(each, findings) for each in made]
    return [] if findings.failed else made


@cache
def _checkers() -> dict[str, Checker]:
    """The checker of each kind, without CEL rules."""
    # Here, because they take 0.3 s to load, and only objects of this version need them.
    from tink.api.crds import generate
    from tink.kubeapi import compile_definition

    compiled = [compile_definition(definition)[VERSION] for definition in generate()]
    return {checker.kind: replace(checker, validations=None) for checker in compiled}


def _checked(obj: Raw, findings: Findings) -> Raw:
    """The object without fields that the API does not know, and without its defaults; wrong types are errors."""
    checked = _checkers()[obj["kind"]].check(obj)
    errors = [error for error in checked.errors if error.reason in _STRUCTURE]
    paths = dict(_paths(obj, "", "")) if errors else {}
    for error in errors:
        parent, _, name = error.field.rpartition(".")
        path = paths.get(error.field) or join(paths.get(parent, parent), name)
        # A wrong type's message repeats the path: "spec.osie in body must be of type object".
        findings.error(path, error.message.rpartition(" in body ")[2])
    known: Raw = _known(obj, checked.object, "", findings)
    return known


def _paths(value: Any, at: str, path: str) -> Iterator[tuple[str, str]]:
    """Each field's path as the API writes it (`spec.a.52:54.b`), and as findings have it (`spec.a["52:54"].b`)."""
    yield at, path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, f"{at}.{key}" if at else key, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, f"{at}[{index}]", join(path, index))


def _known(value: Any, stored: Any, path: str, findings: Findings) -> Any:
    """What of a value is also in what an API would store of it; what it would drop is told. Null is no value."""
    if isinstance(value, list) and isinstance(stored, list):
        pairs = zip(value, stored, strict=True)
        return [_known(item, kept, join(path, index), findings) for index, (item, kept) in enumerate(pairs)]
    if not (isinstance(value, dict) and isinstance(stored, dict)):
        return value
    result: Raw = {}
    for key, item in value.items():
        if key in stored:
            result[key] = _known(item, stored[key], join(path, key), findings)
        elif not says_nothing(item):
            findings.dropped(join(path, key), _UNKNOWN)
    return result


UPSTREAM_KINDS = ("Policy", "Task")
"""Kinds that tinkerbell/tinkerbell's v1alpha2 has and today's has not."""
UPSTREAM = (
    "tinkerbell/tinkerbell has another schema under the same apiVersion, and this is of that one: convert the v1alpha1 "
    "object, or write its fields anew"
)

_FIELDS = {
    "Hardware": ("agentID", "arch", "attributes", "auto", "bmc", "references"),
    "Workflow": ("disabled", "globals", "references", "tasks", "timeoutSeconds", "vars"),
}
_OF_INSTANCE = ("lookupID", "metadata", "networkConfig", "osie", "sshKeys", "vars")
_OF_INTERFACE = ("ipam", "isoboot", "netboot")
_OF_DHCP = ("ipv4", "ipv6", "v4", "v6")


def upstream_fields(obj: Raw) -> Iterator[str]:
    """The paths of fields that only tinkerbell/tinkerbell's v1alpha2 has, or has in this form."""
    spec = as_mapping(obj.get("spec"))
    for key in _FIELDS.get(obj["kind"], ()):
        if not says_nothing(spec.get(key)):
            yield f"spec.{key}"
    if obj["kind"] != "Hardware":
        return
    for key in _OF_INSTANCE:
        if key in as_mapping(spec.get("instance")):
            yield f"spec.instance.{key}"
    for mac, interface in as_mapping(spec.get("networkInterfaces")).items():
        at = join("spec.networkInterfaces", mac)
        for key in _OF_INTERFACE:
            if key in as_mapping(interface):
                yield f"{at}.{key}"
        dhcp = as_mapping(as_mapping(interface).get("dhcp"))
        for key in _OF_DHCP:
            if key in dhcp and not (key == "ipv6" and "address" in as_mapping(dhcp[key])):  # today's has that, too
                yield f"{at}.dhcp.{key}"
    devices = spec.get("storageDevices")
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        if isinstance(device, dict):
            yield f"spec.storageDevices[{index}]"
