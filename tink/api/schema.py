"""Convert a pydantic model to a structural schema, as apiextensions.k8s.io/v1 requires.

Pydantic writes JSON Schema 2020-12; a CustomResourceDefinition accepts a narrow dialect of OpenAPI 3.0 (Kubernetes,
"Specifying a structural schema"). The differences:

- References are inlined, and titles are left out.
- An optional field may be absent, but not null.
- Only scalar defaults are kept, because the API server would write empty parents and lists into every object.
- Exclusive bounds are booleans beside `minimum` and `maximum`.
- Each list says how server-side apply merges it.
- If a field has a CEL rule, the `pattern` that pydantic needs is left out.

A model without a structural form (recursion, unions, tuples) raises an error here, not in a user's cluster.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from pydantic import BaseModel

from tink.errors import TinkedgeError

Schema = dict[str, Any]

_KEPT = (
    "description",
    "type",
    "format",
    "pattern",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "multipleOf",
    "required",
)


class SchemaError(TinkedgeError, ValueError):
    """A model that has no structural schema. The message names the field."""


RULES = "x-kubernetes-validations"
"""Kubernetes' key for CEL rules."""
_LIST_TYPE = "x-kubernetes-list-type"

_UNTYPED = ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string")
"""Keys of a node that has no type."""

UNCHECKED = "x-unchecked"
"""The `json_schema_extra` key of a field that only this program writes: types only, no rules and no maxima below it. A
rule there would not help an operator; it could only prevent a status from being stored.
"""

_BOUNDS = frozenset({"pattern", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model, with the field names on the wire. The caller may change it.

    Raises SchemaError for recursive models, unions and tuples.
    """
    schema: Schema = orjson.loads(_structural(model))
    return schema


@cache
def _structural(model: type[BaseModel]) -> bytes:
    """Return the schema as JSON, cached: a model does not change, and pydantic takes long."""
    source = model.model_json_schema(by_alias=True)
    schema = _convert(source, source.get("$defs", {}), (model.__name__,), ())
    _finish(schema, checked=True)
    return orjson.dumps(schema)


def _finish(node: Schema, *, checked: bool) -> None:
    """Complete a node: decide which checks it keeps, and how its lists are merged."""
    checked = checked and not node.pop(UNCHECKED, False)
    if not checked:
        for key in (RULES, *_BOUNDS):
            node.pop(key, None)
    if RULES in node:
        node.pop("pattern", None)
    if "items" in node:
        # Lists are merged whole by default: the order of arguments, servers and disks has a meaning.
        node.setdefault(_LIST_TYPE, "atomic")
        _finish(node["items"], checked=checked)
    for child in node.get("properties", {}).values():
        _finish(child, checked=checked)
    if "additionalProperties" in node:
        _finish(node["additionalProperties"], checked=checked)


def _convert(node: Schema, defs: dict[str, Schema], path: tuple[str, ...], seen: tuple[str, ...]) -> Schema:
    node, seen = _resolve(node, defs, path, seen)
    out = {key: node[key] for key in _KEPT if key in node}
    out |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-") or key == UNCHECKED}
    if "const" in node:
        out["enum"] = [node["const"]]
    if node.get("type") == "integer":
        out.setdefault("format", "int64")
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            if bound in node:
                raise SchemaError(f"{'.'.join(path)}: both {bound} and {exclusive} are given; keep one")
            out |= {bound: node[exclusive], exclusive: True}
    default = node.get("default")
    if isinstance(default, bool | int | float) or (isinstance(default, str) and default):
        out["default"] = default
    if "properties" in node:
        out["properties"] = {
            name: _convert(child, defs, (*path, name), seen) for name, child in node["properties"].items()
        }
    if "items" in node:
        out["items"] = _convert(node["items"], defs, (*path, "[]"), seen)
    if node.get("type") == "object" and "properties" not in node:
        extra = node.get("additionalProperties", True)
        if isinstance(extra, dict) and extra:
            out["additionalProperties"] = _convert(extra, defs, (*path, "*"), seen)
        else:
            out["x-kubernetes-preserve-unknown-fields"] = True
    if "type" not in out and out.keys().isdisjoint(_UNTYPED):
        raise SchemaError(f"{'.'.join(path)}: has no single type, so no structural schema; give it one type")
    return out


def _resolve(
    node: Schema, defs: dict[str, Schema], path: tuple[str, ...], seen: tuple[str, ...]
) -> tuple[Schema, tuple[str, ...]]:
    """Follow references and unwrap `X | None`. A field's own values override those of its type."""
    while True:
        if "anyOf" in node:
            choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
            if len(choices) != 1:
                raise SchemaError(f"{'.'.join(path)}: unions have no structural schema; give it one type")
            node = _over(choices[0], node, "anyOf")
        elif "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            if name in seen:
                raise SchemaError(f"{'.'.join(path)}: {name} contains itself, so no structural schema")
            seen = (*seen, name)
            node = _over(defs[name], node, "$ref")
        elif "prefixItems" in node or "oneOf" in node or "allOf" in node:
            raise SchemaError(f"{'.'.join(path)}: tuples and combined types have no structural schema")
        else:
            return node, seen


def _over(type_: Schema, field: Schema, link: str) -> Schema:
    """Merge a field's values over those of its type. The rules of both apply."""
    merged = type_ | {key: value for key, value in field.items() if key != link}
    rules = [*type_.get(RULES, ()), *field.get(RULES, ())]
    return merged | {RULES: rules} if rules else merged
