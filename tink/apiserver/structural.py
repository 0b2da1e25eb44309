"""Whether a schema is structural: what a CustomResourceDefinition may contain (apiextensions.k8s.io/v1, v1 rules).

Checked when a definition is written, so that everything behind (`schema`, `openapi`) can rely on it. The rules are
those of Kubernetes' documentation, "Specifying a structural schema"; an unknown keyword is an error rather than
something that silently has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.apiserver import errors, schema
from tink.apiserver.errors import FieldError

MAX_DEPTH = 64
"""Deepest nesting of a schema. Deeper than any schema in use, and far from the limits of recursion."""

_TYPES = ("object", "array", "string", "boolean", "integer", "number")
_MAPS = ("object",)
_NUMBERS = ("minimum", "maximum", "multipleOf")
_SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_FLAGS = (
    "nullable",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
)
_TEXTS = ("description", "type", "format", "title", "pattern", "x-kubernetes-list-type", "x-kubernetes-map-type")
_OTHER = (
    "properties",
    "additionalProperties",
    "items",
    "required",
    "enum",
    "default",
    "example",
    "externalDocs",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
)
_KNOWN = frozenset(_NUMBERS + _SIZES + _FLAGS + _TEXTS + _OTHER)
_REFUSED = ("$ref", "definitions", "dependencies", "patternProperties", "additionalItems", "$schema", "id")
_NOT_IN_JUNCTORS = ("description", "type", "default", "additionalProperties", "nullable", "title")


def check(openapi: Any, at: str) -> list[FieldError]:
    """Find what keeps a schema from being structural; `at` is its path within the definition."""
    found: list[FieldError] = []
    if not isinstance(openapi, dict):
        return [errors.invalid_value(at, openapi, "must be an object")]
    if openapi.get("type") != "object":
        found.append(errors.invalid_value(f"{at}.type", openapi.get("type", ""), "must be object at the root"))
    _node(openapi, at, 0, found, junctor=False)
    if not found:
        _defaults(openapi, at, found)
    return found


def _node(node: Any, at: str, depth: int, found: list[FieldError], *, junctor: bool) -> None:
    if not isinstance(node, dict):
        found.append(errors.invalid_value(at, node, "must be a schema object"))
        return
    if depth > MAX_DEPTH:
        found.append(errors.forbidden_value(at, f"schemas may be nested at most {MAX_DEPTH} deep"))
        return
    before = len(found)
    _keywords(node, at, found)
    if len(found) > before:
        return
    _type(node, at, found, junctor=junctor)
    _lists(node, at, found)
    for name, child in (node.get("properties") or {}).items():
        _node(child, f"{at}.properties[{name}]", depth + 1, found, junctor=junctor)
    extra = node.get("additionalProperties")
    if isinstance(extra, dict):
        if node.get("properties"):
            found.append(errors.forbidden_value(f"{at}.additionalProperties", "mutually exclusive with properties"))
        _node(extra, f"{at}.additionalProperties", depth + 1, found, junctor=junctor)
    if "items" in node:
        _node(node["items"], f"{at}.items", depth + 1, found, junctor=junctor)
    for key in ("allOf", "anyOf", "oneOf"):
        for index, child in enumerate(node.get(key) or ()):
            _node(child, f"{at}.{key}[{index}]", depth + 1, found, junctor=not node.get("x-kubernetes-int-or-string"))
    if "not" in node:
        _node(node["not"], f"{at}.not", depth + 1, found, junctor=True)


def _keywords(node: Mapping[str, Any], at: str, found: list[FieldError]) -> None:
    """Check that each keyword is known and has a value of its kind."""
    for key, value in node.items():
        where = f"{at}.{key}"
        if key in _REFUSED:
            found.append(errors.forbidden_value(where, f"{key} is not supported in a structural schema"))
        elif key not in _KNOWN:
            found.append(errors.forbidden_value(where, "is not a keyword of apiextensions.k8s.io/v1"))
        elif (
            (key in _TEXTS and not isinstance(value, str))
            or (key in _FLAGS and not isinstance(value, bool))
            or (key in _SIZES and (not isinstance(value, int) or isinstance(value, bool) or value < 0))
            or (key in _NUMBERS and (not isinstance(value, int | float) or isinstance(value, bool)))
            or (key in ("enum", "allOf", "anyOf", "oneOf") and not isinstance(value, list))
            or (key == "properties" and not isinstance(value, dict))
            or (key == "additionalProperties" and not isinstance(value, dict | bool))
            or (key in ("required", "x-kubernetes-list-map-keys") and not _strings(value))
        ):
            found.append(errors.invalid_value(where, value, "is of the wrong type"))
        elif key == "pattern":
            try:
                schema.compile_pattern(value)
            except ValueError as error:
                found.append(
                    errors.invalid_value(where, value, f"must be a valid regular expression, but isn't: {error}")
                )
        elif key == "multipleOf" and value <= 0:
            found.append(errors.invalid_value(where, value, "must be greater than 0"))
    if node.get("uniqueItems"):
        found.append(
            errors.forbidden_value(
                f"{at}.uniqueItems", "uniqueItems cannot be set to true; use x-kubernetes-list-type: set"
            )
        )


def _strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _type(node: Mapping[str, Any], at: str, found: list[FieldError], *, junctor: bool) -> None:
    kind = node.get("type", "")
    if junctor:
        found.extend(
            errors.forbidden_value(f"{at}.{key}", "must not be set inside allOf, anyOf, oneOf or not to be structural")
            for key in _NOT_IN_JUNCTORS
            if key in node
        )
        return
    either = node.get("x-kubernetes-int-or-string")
    if kind and kind not in _TYPES:
        found.append(errors.unsupported(f"{at}.type", kind, _TYPES))
    elif not kind and not either and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.append(errors.required(f"{at}.type", "must not be empty for specified object fields"))
    elif kind and either:
        found.append(errors.invalid_value(f"{at}.type", kind, "must be empty if x-kubernetes-int-or-string is true"))
    if kind == "array" and "items" not in node:
        found.append(errors.required(f"{at}.items", "must be specified"))
    if node.get("x-kubernetes-preserve-unknown-fields") and kind not in ("", "object"):
        found.append(
            errors.invalid_value(f"{at}.type", kind, "must be object if x-kubernetes-preserve-unknown-fields is true")
        )


def _lists(node: Mapping[str, Any], at: str, found: list[FieldError]) -> None:
    kind = node.get("x-kubernetes-list-type")
    keys = node.get("x-kubernetes-list-map-keys")
    if kind is None and keys is None:
        return
    if kind not in ("atomic", "set", "map"):
        found.append(errors.unsupported(f"{at}.x-kubernetes-list-type", kind or "", ("atomic", "set", "map")))
    if kind != "map":
        if keys:
            found.append(errors.forbidden_value(f"{at}.x-kubernetes-list-map-keys", "only allowed for list type map"))
        return
    if not keys:
        found.append(errors.required(f"{at}.x-kubernetes-list-map-keys", "must not be empty if list type is map"))
        return
    items = node.get("items")
    if not isinstance(items, dict) or items.get("type") != "object":
        found.append(errors.invalid_value(f"{at}.items.type", "", "must be object if list type is map"))
        return
    for key in keys:
        child = (items.get("properties") or {}).get(key)
        if not isinstance(child, dict):
            found.append(
                errors.invalid_value(f"{at}.x-kubernetes-list-map-keys", key, "must name a property of the items")
            )
        elif key not in (items.get("required") or []) and "default" not in child:
            found.append(
                errors.required(
                    f"{at}.items.properties[{key}].default",
                    "it is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
                )
            )


def _defaults(node: Any, at: str, found: list[FieldError]) -> None:
    """Check that every default is what its own schema allows. Only called for schemas that are structural."""
    if not isinstance(node, dict):
        return
    if "default" in node:
        walk = schema.Walk()
        wrapper = {"type": "object", "properties": {"default": {k: v for k, v in node.items() if k != "default"}}}
        schema.compile_schema(wrapper)({"default": node["default"]}, None, walk)
        found.extend(errors.invalid_value(f"{at}.default", node["default"], str(error)) for error in walk.errors)
        found.extend(errors.invalid_value(f"{at}.default", node["default"], f"unknown field {f}") for f in walk.unknown)
    for name, child in (node.get("properties") or {}).items():
        _defaults(child, f"{at}.properties[{name}]", found)
    _defaults(node.get("additionalProperties"), f"{at}.additionalProperties", found)
    _defaults(node.get("items"), f"{at}.items", found)


def has_rules(node: Any) -> bool:
    """Whether a schema has CEL rules (x-kubernetes-validations) anywhere."""
    if isinstance(node, dict):
        return bool(node.get("x-kubernetes-validations")) or any(has_rules(child) for child in node.values())
    return isinstance(node, list) and any(has_rules(child) for child in node)
