"""Convert objects whose apiVersion is v1alpha2 already, but whose fields are not today's.

Several schemas have had this apiVersion, so an object is recognised by its fields:

- The first revision of the CRD refactor proposal, and tinkerbell/tink's Go types. They differ in a few fields, which
  are converted: Hardware's `osie` held the reference and the kernel parameters; `leaseTime` is now `leaseTimeSeconds`;
  Workflow's `templateData` held values of any type and is now `templateParams`, of strings; its `timeout` was a Go
  duration and is now seconds; conditions had a severity and a time; tinkerbell/tink's actions have `namespaces`. Fields
  that are not listed here are the same in all revisions and are copied.
- tinkerbell/tinkerbell's own v1alpha2 (api/v1alpha2/tinkerbell). Nearly every field has another place there, so these
  objects are refused.

An API server silently drops a field that it does not know. Here such a field is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tink.api import bounds
from tink.api.v1alpha2 import VERSION, Raw, as_mapping
from tink.convert.fields import Fields, carried, check_params, join, param_text, says_nothing
from tink.convert.findings import Findings
from tink.golang.durations import SECOND, parse_duration

if TYPE_CHECKING:
    from tink.kubeapi import Checker

_MIN_DURATION = 10**6
"""Go writes a duration to JSON as nanoseconds. A number below a millisecond was meant as seconds."""
_CONDITION_FIELDS = ("severity", "lastTransitionTime")


def is_first_revision(obj: Raw) -> bool:
    """Return True if an object of v1alpha2 has a field or a value that only the first revision had."""
    spec = as_mapping(obj.get("spec"))
    if obj.get("kind") == "Hardware":
        osie = spec.get("osie")
        return (isinstance(osie, dict) and ("osieRef" in osie or "kernelParams" in osie)) or any(
            "leaseTime" in dhcp for _, dhcp in _leases(spec)
        )
    if obj.get("kind") == "Workflow":
        timeout = spec.get("timeout")
        return (
            "templateData" in spec
            or isinstance(timeout, str)
            or (isinstance(timeout, int) and timeout >= SECOND)
            or any(key in condition for condition in _conditions(obj) for key in _CONDITION_FIELDS)
        )
    return obj.get("kind") == "Template" and any("namespaces" in action for _, action in _actions(spec))


def convert_first_revision(obj: Raw, findings: Findings) -> list[Raw]:
    """Return the object in the final revision; nothing if there is an error."""
    result: Raw = _copy(obj)
    if isinstance(result.get("spec"), dict):
        _SPECS[obj["kind"]](result["spec"], findings)
    for index, condition in enumerate(_conditions(result)):
        for key in _CONDITION_FIELDS:
            if not says_nothing(condition.pop(key, None)):
                findings.dropped(f"status.conditions[{index}].{key}", "conditions of the final revision do not have it")
    return [] if findings.failed else [result]


def _copy(value: Any) -> Any:
    """Return a deep copy of mappings and lists, in which no part is shared."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _leases(spec: Raw) -> Iterator[tuple[str, Raw]]:
    """Yield MAC address and DHCP of each interface that has DHCP."""
    for mac, interface in as_mapping(spec.get("networkInterfaces")).items():
        dhcp = as_mapping(interface).get("dhcp")
        if isinstance(dhcp, dict):
            yield mac, dhcp


def _actions(spec: Raw) -> Iterator[tuple[int, Raw]]:
    actions = spec.get("actions")
    for index, action in enumerate(actions if isinstance(actions, list) else ()):
        if isinstance(action, dict):
            yield index, action


def _conditions(obj: Raw) -> list[Raw]:
    conditions = as_mapping(obj.get("status")).get("conditions")
    return [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []


def _replace(mapping: Raw, old: str, new: Raw) -> None:
    """Replace one entry of a mapping by others, at the same place."""
    items = [pair for key, item in mapping.items() for pair in (new.items() if key == old else [(key, item)])]
    mapping.clear()
    mapping.update(items)


# --- Hardware


def _hardware(spec: Raw, findings: Findings) -> None:
    if isinstance(spec.get("osie"), dict):
        _osie(spec, findings)
    top = Fields(spec, findings, "spec").fields("networkInterfaces")
    for mac, dhcp in _leases(spec):
        if "leaseTime" in dhcp:
            _lease(dhcp, f"{top.at(mac)}.dhcp", findings)


def _osie(spec: Raw, findings: Findings) -> None:
    osie = spec["osie"]
    fields = Fields(osie, findings, "spec.osie")
    reference = fields.fields("osieRef")
    name = reference.text("name")
    reference.rest("a reference has a name only")
    params = fields.take("kernelParams")
    own = fields.take("name")
    fields.rest("the final revision's osie is a reference, which has a name only")
    if name and own and name != own:
        findings.error("spec.osie.osieRef.name", f"spec.osie.name is {own}: take out one of them")
    if name or own:
        spec["osie"] = {"name": name or own}
        findings.moved("spec.osie.osieRef", "spec.osie")
        findings.moved("spec.osie.osieRef.name", "spec.osie.name")
    else:
        del spec["osie"]
    if not says_nothing(params):
        if spec.get("kernelParams") not in (None, [], params):
            findings.error("spec.osie.kernelParams", "spec.kernelParams has others: take out one of them")
        spec["kernelParams"] = params
        findings.moved("spec.osie.kernelParams", "spec.kernelParams")


def _lease(dhcp: Raw, path: str, findings: Findings) -> None:
    seconds = dhcp["leaseTime"]
    at = f"{path}.leaseTime"
    if "leaseTimeSeconds" in dhcp:
        if seconds not in (None, dhcp["leaseTimeSeconds"]):
            findings.dropped(at, f"leaseTimeSeconds says {dhcp['leaseTimeSeconds']}, and is kept")
        del dhcp["leaseTime"]
    elif isinstance(seconds, int) and not isinstance(seconds, bool) and 0 <= seconds <= bounds.MAX_LEASE_SECONDS:
        _replace(dhcp, "leaseTime", {"leaseTimeSeconds": seconds})
        findings.moved(at, f"{path}.leaseTimeSeconds")
    else:
        del dhcp["leaseTime"]
        if seconds is not None:
            findings.dropped(at, f"must be a number of seconds up to {bounds.MAX_LEASE_SECONDS}, is {seconds!r:.80}")


# --- Workflow


def _workflow(spec: Raw, findings: Findings) -> None:
    if "templateData" in spec:
        _params(spec, findings)
    timeout = spec.get("timeout")
    if isinstance(timeout, str) or (isinstance(timeout, int) and not isinstance(timeout, bool)):
        _timeout(spec, timeout, findings)


def _params(spec: Raw, findings: Findings) -> None:
    found: dict[str, str] = {}
    for at, key, value in Fields(spec, findings, "spec").mapping("templateData"):
        if (text := param_text(value, at, findings)) is not None:
            found[key] = text
    there = spec.get("templateParams")
    if isinstance(there, dict):
        for key, value in there.items():
            if (text := param_text(value, f"spec.templateParams.{key}", findings)) is None:
                continue
            if found.setdefault(key, text) != text:
                findings.dropped(f"spec.templateData.{key}", "templateParams says otherwise, and is kept")
                found[key] = text
        del spec["templateParams"]
    check_params(found, "spec.templateData", findings)
    _replace(spec, "templateData", {"templateParams": found})
    findings.moved("spec.templateData", "spec.templateParams")


def _timeout(spec: Raw, timeout: str | int, findings: Findings) -> None:
    if isinstance(timeout, int):
        if timeout < _MIN_DURATION:
            if timeout:
                findings.changed("spec.timeout", f"{timeout} is taken for seconds, not for a duration in nanoseconds")
            return
        nanoseconds: int | None = timeout
    else:
        nanoseconds = parse_duration(timeout)
    if nanoseconds is None or not 0 <= nanoseconds <= bounds.MAX_TIMEOUT_SECONDS * SECOND:
        findings.dropped("spec.timeout", f"must be a duration such as 1h30m, is {timeout!r:.80}")
        del spec["timeout"]
        return
    whole = -(-nanoseconds // SECOND)
    if nanoseconds % SECOND:
        findings.changed("spec.timeout", f"{timeout} is {whole} seconds now: there are whole ones only")
    spec["timeout"] = whole


# --- Template


def _template(spec: Raw, findings: Findings) -> None:
    for index, action in _actions(spec):
        if "namespaces" not in action:
            continue
        path = f"spec.actions[{index}]"
        namespaces = Fields(action, findings, path).fields("namespaces")
        named = {f"{key}Namespace": namespaces.text(key) for key in ("network", "pid")}
        namespaces.rest()
        kept = {}
        for field, text in named.items():
            before, own = f"{path}.namespaces.{field.removesuffix('Namespace')}", action.get(field)
            if text and own not in (None, "", text):
                findings.dropped(before, f"{field} says {own!r:.80}, and is kept")
            elif text:
                kept[field] = text
                findings.moved(before, f"{path}.{field}")
        for field in kept:
            action.pop(field, None)
        _replace(action, "namespaces", kept)
        if kept:
            findings.moved(f"{path}.namespaces", f"{path}.{next(iter(kept))}")


_SPECS = {"Hardware": _hardware, "Workflow": _workflow, "Template": _template}


_NO_SUCH_FIELD = "v1alpha2 has no such field"
_STRUCTURE = ("FieldValueTypeInvalid", "FieldValueRequired")
"""Errors of type and of missing fields. The API server reports all other errors in values."""


def convert(obj: Raw, findings: Findings) -> list[Raw]:
    """Return the object as today's API accepts it; nothing if there is an error."""
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
    """Return the checker of each kind, without CEL rules."""
    # Here, because they take 0.3 s to load, and only objects of this version need them.
    from tink.api.crds import generate
    from tink.kubeapi import compile_definition

    compiled = [compile_definition(definition)[VERSION] for definition in generate()]
    return {checker.kind: replace(checker, validations=None) for checker in compiled}


def _checked(obj: Raw, findings: Findings) -> Raw:
    """Return the object without unknown fields and without defaults. Wrong types are reported as errors."""
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
    """Yield each field's path as the API writes it (`spec.a.52:54.b`), and as findings do (`spec.a["52:54"].b`)."""
    yield at, path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, f"{at}.{key}" if at else key, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, f"{at}[{index}]", join(path, index))


def _known(value: Any, stored: Any, path: str, findings: Findings) -> Any:
    """Return the part of a value that an API server would store. Report fields that it would drop, except null."""
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
            findings.dropped(join(path, key), _NO_SUCH_FIELD)
    return result


UPSTREAM_KINDS = ("Policy", "Task")
"""Kinds that only tinkerbell/tinkerbell's v1alpha2 has."""
UPSTREAM = (
    "tinkerbell/tinkerbell has another schema under the same apiVersion, and this is of that one: convert the v1alpha1 "
    "object, or rewrite its fields"
)

_FIELDS = {
    "Hardware": ("agentID", "arch", "attributes", "auto", "bmc", "references"),
    "Workflow": ("disabled", "globals", "references", "tasks", "timeoutSeconds", "vars"),
}
_INSTANCE_FIELDS = ("lookupID", "metadata", "networkConfig", "osie", "sshKeys", "vars")
_INTERFACE_FIELDS = ("ipam", "isoboot", "netboot")
_DHCP_FIELDS = ("ipv4", "ipv6", "v4", "v6")


def upstream_fields(obj: Raw) -> Iterator[str]:
    """Yield the paths of fields that only tinkerbell/tinkerbell's v1alpha2 has, or has in this form."""
    spec = as_mapping(obj.get("spec"))
    for key in _FIELDS.get(obj["kind"], ()):
        if not says_nothing(spec.get(key)):
            yield f"spec.{key}"
    if obj["kind"] != "Hardware":
        return
    for key in _INSTANCE_FIELDS:
        if key in as_mapping(spec.get("instance")):
            yield f"spec.instance.{key}"
    for mac, interface in as_mapping(spec.get("networkInterfaces")).items():
        at = join("spec.networkInterfaces", mac)
        for key in _INTERFACE_FIELDS:
            if key in as_mapping(interface):
                yield f"{at}.{key}"
        dhcp = as_mapping(as_mapping(interface).get("dhcp"))
        for key in _DHCP_FIELDS:
            if key in dhcp and not (key == "ipv6" and "address" in as_mapping(dhcp[key])):  # today's has that, too
                yield f"{at}.dhcp.{key}"
    devices = spec.get("storageDevices")
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        if isinstance(device, dict):
            yield f"spec.storageDevices[{index}]"
