"""Objects that say they are of today's v1alpha2: what they are if that is not so.

Several schemas have had this apiVersion. The proposal's first revision and tinkerbell/tink's Go types differ in a few
fields, which `first_revision` carries over. tinkerbell/tinkerbell's own v1alpha2 (api/v1alpha2/tinkerbell) has
nearly everything elsewhere, and is refused. A field that none of them knows would be dropped by an API server without a
word; here it is told.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tink.api.crds import generate
from tink.api.v1alpha2 import Raw
from tink.convert.fields import Fields, join, says_nothing, type_name
from tink.convert.findings import Findings
from tink.convert.metadata import carried
from tink.convert.v1alpha2.first_revision import convert_first_revision, is_first_revision
from tink.convert.v1alpha2.upstream import UPSTREAM, upstream_fields

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
    elsewhere = next(upstream_fields(obj), None)
    if elsewhere is not None:
        findings.error(elsewhere, UPSTREAM)
        return []
    made = convert_first_revision(obj, findings) if is_first_revision(obj) else [obj]
    made = [{**each, "metadata": carried(Fields(each, findings), findings)} for each in made]
    made = [_checked(each, _schema(each["kind"]), "", findings) for each in made]
    return [] if findings.failed else made


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
