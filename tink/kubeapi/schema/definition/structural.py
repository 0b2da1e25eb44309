"""Whether a schema is structural: every field has one type, outside of allOf, anyOf, oneOf and not.

Checked when a definition is written, so that everything behind (`structural`, `validations`, OpenAPI) can rely on it.
Schemas come from `definition.typed`: their keywords have the right types and there are no unknown ones.

Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema (validation.go, complete.go, convert.go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tink.kubeapi.cel import PatternError, check_pattern
from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole

Schema = Mapping[str, Any]

ROOT, ITEM, FIELD = "at the root", "for specified array items", "for specified object fields"

_EITHER = [{"type": "integer"}, {"type": "string"}]
"""How controller tools write int-or-string; the only types that may stand in a junctor."""

_NOT_IN_JUNCTORS = (
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
)
_EXPECTED_PRESENT = ("additionalProperties", "default", "x-kubernetes-list-type", "x-kubernetes-map-type")
"""Of these the presence counts, of the others that they say something."""

_UNSUPPORTED = ("id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions")
_NAMED = {"$schema": "schema"}


def unsupported(schema: Schema) -> str:
    """Say which keyword keeps a schema from being a structural one at all; "" when none does."""
    for keyword in _UNSUPPORTED:
        if schema.get(keyword) or (keyword == "additionalItems" and keyword in schema):
            return f"OpenAPIV3Schema '{_NAMED.get(keyword, keyword)}' is not supported"
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        return "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
    if isinstance(schema.get("items"), list) and schema["items"]:
        return "OpenAPIV3Schema 'items' must be a schema, but is an array"
    return next((why for child in _children(schema) if (why := unsupported(child))), "")


def _children(schema: Schema) -> Iterator[Schema]:
    for keyword in ("allOf", "anyOf", "oneOf"):
        yield from schema.get(keyword) or ()
    yield from (schema.get("properties") or {}).values()
    for keyword in ("not", "items", "additionalProperties"):
        if isinstance(schema.get(keyword), Mapping):
            yield schema[keyword]


def check(schema: Schema, at: str) -> list[FieldError]:
    """Find what keeps a schema from being structural; `at` is its path within the definition."""
    found: list[FieldError] = []
    _node(schema, ROOT, at, found)
    _complete(schema, schema, at, at, found)
    return sorted(found, key=str)


def _node(schema: Schema, level: str, at: str, found: list[FieldError]) -> None:
    kind = schema.get("type", "")
    items = schema.get("items")
    if kind == "array" and items is None:
        found.append(field_errors.required(f"{at}.items", "must be specified"))
    if isinstance(items, Mapping):
        _node(items, ITEM, f"{at}.items", found)
    for name, child in (schema.get("properties") or {}).items():
        _node(child, FIELD, f"{at}.properties[{name}]", found)
    extra = schema.get("additionalProperties")
    if extra is not None:
        if level is ROOT:
            found.append(field_errors.forbidden(f"{at}.additionalProperties", "must not be used at the root"))
        if isinstance(extra, Mapping):
            _node(extra, FIELD, f"{at}.additionalProperties", found)
    if schema.get("x-kubernetes-int-or-string"):
        for key in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if schema.get(key):
                found.append(invalid_whole(f"{at}.{key}", True, "must be false if x-kubernetes-int-or-string is true"))
    every = schema.get("allOf") or ()
    _values(schema, at, found, skip_any=schema.get("anyOf") == _EITHER, skip_first=bool(every and _is_either(every[0])))
    _kind(schema, level, at, found)
    _resource(schema, level, at, found)


def _is_either(schema: Schema) -> bool:
    return schema.get("anyOf") == _EITHER


def _kind(schema: Schema, level: str, at: str, found: list[FieldError]) -> None:
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-embedded-resource") and kind != "object":
        detail = "must be object if x-kubernetes-embedded-resource is true"
        found.append(invalid_whole(f"{at}.type", kind, detail) if kind else field_errors.required(f"{at}.type", detail))
    elif not kind and not any(
        schema.get(key) for key in ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    ):
        found.append(field_errors.required(f"{at}.type", f"must not be empty {level}"))
    if level is ROOT and kind not in ("", "object"):
        found.append(invalid_whole(f"{at}.type", kind, "must be object at the root"))


def _resource(schema: Schema, level: str, at: str, found: list[FieldError]) -> None:
    """Check what a schema says about apiVersion, kind and metadata of whole objects."""
    is_embedded = schema.get("x-kubernetes-embedded-resource")
    whole = level is ROOT or is_embedded
    properties = schema.get("properties") or {}
    if is_embedded and schema.get("additionalProperties") is not None:
        detail = "must not be used if x-kubernetes-embedded-resource is set"
        found.append(field_errors.forbidden(f"{at}.additionalProperties", detail))
    for name in ("kind", "apiVersion"):
        if whole and name in properties and properties[name].get("type", "") != "string":
            where = f"{at}.properties[{name}].type"
            found.append(invalid_whole(where, properties[name].get("type", ""), "must be string"))
    if "metadata" in properties:
        _metadata(properties["metadata"], level, f"{at}.properties[metadata]", found, whole=bool(whole))
    if is_embedded and not schema.get("x-kubernetes-preserve-unknown-fields") and not properties:
        detail = (
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        )
        found.append(field_errors.required(f"{at}.properties", detail))


def _metadata(schema: Schema, level: str, at: str, found: list[FieldError], *, whole: bool) -> None:
    if whole and schema.get("type", "") != "object":
        found.append(invalid_whole(f"{at}.type", schema.get("type", ""), "must be object"))
    if level is not ROOT:
        return
    names = set(schema.get("properties") or {})
    beside = {key for key, value in schema.items() if key not in ("type", "default", "properties") and value}
    if beside or not names <= {"name", "generateName"}:
        detail = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        found.append(field_errors.forbidden(at, detail))


def _values(schema: Schema, at: str, found: list[FieldError], *, skip_any: bool, skip_first: bool) -> None:
    if not skip_any:
        for index, child in enumerate(schema.get("anyOf") or ()):
            _junctor(child, f"{at}.anyOf[{index}]", found)
    for index, child in enumerate(schema.get("allOf") or ()):
        _junctor(child, f"{at}.allOf[{index}]", found, skip_any=skip_first and index == 0)
    for index, child in enumerate(schema.get("oneOf") or ()):
        _junctor(child, f"{at}.oneOf[{index}]", found)
    if schema.get("not") is not None:
        _junctor(schema["not"], f"{at}.not", found)
    if pattern := schema.get("pattern"):
        try:
            check_pattern(pattern)
        except PatternError as error:
            detail = f"must be a valid regular expression, but isn't: {error}"
            found.append(invalid_whole(f"{at}.pattern", pattern, detail))


def _junctor(schema: Schema, at: str, found: list[FieldError], *, skip_any: bool = False) -> None:
    _values(schema, at, found, skip_any=skip_any, skip_first=False)
    if isinstance(schema.get("items"), Mapping):
        _junctor(schema["items"], f"{at}.items", found)
    properties = schema.get("properties") or {}
    for name, child in properties.items():
        _junctor(child, f"{at}.properties[{name}]", found)
    for key, detail in _NOT_IN_JUNCTORS:
        value = schema.get(key)
        if key == "additionalProperties" and value is False:
            continue
        if value if key not in _EXPECTED_PRESENT else value is not None:
            found.append(field_errors.forbidden(f"{at}.{key}", detail))
    if "metadata" in properties:
        found.append(field_errors.forbidden(f"{at}.properties[metadata]", "must not be specified in a nested context"))


def _complete(values: Schema, schema: Schema | None, at: str, where: str, found: list[FieldError]) -> None:
    """Check that what the junctors at the root speak about is also defined outside of them."""
    for key in ("not", "allOf", "anyOf", "oneOf"):
        content = values.get(key)
        for index, child in enumerate(content if isinstance(content, list) else [content] if content else []):
            step = f"{where}.{key}" if key == "not" else f"{where}.{key}[{index}]"
            _nested(child, schema, at, step, found)


def _nested(values: Schema, schema: Schema | None, at: str, where: str, found: list[FieldError]) -> None:
    if schema is None:
        found.append(field_errors.required(at, f"because it is defined in {where}"))
        return
    _complete(values, schema, at, where, found)
    if isinstance(values.get("items"), Mapping):
        _nested(values["items"], schema.get("items"), f"{at}.items", f"{where}.items", found)
    properties = schema.get("properties") or {}
    for name, child in (values.get("properties") or {}).items():
        _nested(child, properties.get(name), f"{at}.properties[{name}]", f"{where}.properties[{name}]", found)
