"""v1alpha2 as the CRD refactor proposal had it first, and as tinkerbell/tink built it, to its final revision.

All have one apiVersion, so an object is known by its fields. What differs: Hardware's `osie` had the reference and
the kernel's parameters in it, and `leaseTime` became `leaseTimeSeconds`; Workflow's `templateData` held anything and
is now `templateParams`, of strings; its `timeout` was a Go duration and is now seconds; conditions had a severity and a
time; tinkerbell/tink's actions have `namespaces`. What is not named here is the same in all, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tink.api import bounds
from tink.api.v1alpha2 import Raw, as_mapping
from tink.convert.fields import Fields, says_nothing
from tink.convert.findings import Findings
from tink.convert.params import check_params, param_text
from tink.golang.durations import SECOND, parse_duration

_LEAST_DURATION = 10**6
"""Go writes a duration to JSON as nanoseconds; a number below a millisecond was meant as seconds."""
_OF_CONDITIONS = ("severity", "lastTransitionTime")


def is_first_revision(obj: Raw) -> bool:
    """Whether an object of v1alpha2 has a field or a value that only the first revision knew."""
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
            or any(key in condition for condition in _conditions(obj) for key in _OF_CONDITIONS)
        )
    return obj.get("kind") == "Template" and any("namespaces" in action for _, action in _actions(spec))


def convert_first_revision(obj: Raw, findings: Findings) -> list[Raw]:
    """The object in the final revision; nothing if there is an error."""
    result: Raw = _copy(obj)
    if isinstance(result.get("spec"), dict):
        _SPECS[obj["kind"]](result["spec"], findings)
    for index, condition in enumerate(_conditions(result)):
        for key in _OF_CONDITIONS:
            if not says_nothing(condition.pop(key, None)):
                findings.dropped(f"status.conditions[{index}].{key}", "conditions of the final revision do not have it")
    return [] if findings.failed else [result]


def _copy(value: Any) -> Any:
    """Mappings and lists anew; what aliases share becomes two."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _leases(spec: Raw) -> Iterator[tuple[str, Raw]]:
    """MAC address and DHCP of each interface that has one."""
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
    """Put values under new names at the old one's place."""
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
        if timeout < _LEAST_DURATION:
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
