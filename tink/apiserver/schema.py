"""Structural schemas, compiled: one walk prunes unknown fields, fills in defaults and finds everything that is wrong.

A schema becomes a tree of closures once, when its CustomResourceDefinition is installed; each object then costs one
walk and no look at the schema. The walk changes the object in place. Paths are chains of (parent, step) and become text
only when something is wrong. Patterns run in RE2, whose time is linear in the text, because they and the texts come
from outside. The order at each object is Kubernetes': unknown fields are dropped, nulls that may not be null are
dropped, defaults are filled in, then values are checked (k8s.io/apiextensions-apiserver, pkg/apiserver/schema).

The wording of errors is that of k8s.io/kube-openapi, pkg/validation/errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import re2

from tink.apiserver import errors
from tink.apiserver.errors import FieldError
from tink.apiserver.formats import CHECKS

Path = tuple["Path", str | int] | None
Node = Callable[[Any, Path, "Walk"], None]
"""Walks a value that is of the schema's type or not; changes it in place; reports to the walk."""

MAX_ERRORS = 100
"""After so many errors the rest is not reported: an answer should not be larger than what caused it."""


@dataclass(slots=True)
class Walk:
    """What one walk found: errors, and the paths of fields that were dropped because the schema does not know them."""

    errors: list[FieldError] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def report(self, error: FieldError) -> None:
        """Note an error."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    def drop(self, path: Path, name: str) -> None:
        """Note an unknown field."""
        if len(self.unknown) < MAX_ERRORS:
            self.unknown.append(render((path, name)))


def render(path: Path) -> str:
    """Write a path as Kubernetes does: `spec.actions[0].name`."""
    steps: list[str | int] = []
    while path is not None:
        path, step = path
        steps.append(step)
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def compile_schema(schema: Mapping[str, Any]) -> Node:
    """Compile a structural schema that `structural.check` has found right."""
    return _compile(schema, prune=True)


def compile_pattern(pattern: str) -> Any:
    """Compile an RE2 pattern. Raises ValueError with RE2's own words."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        words = error.args[0] if error.args else b""
        raise ValueError(words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)) from error


def is_integer(value: object) -> bool:
    """Whether a JSON number is an integer; Kubernetes takes 1.0 for one."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def type_name(value: object) -> str:
    """Name the JSON type of a value."""
    if value is None:
        return "null"
    if is_integer(value):
        return "integer"
    return next((name for name, holds in _TYPES.items() if holds(value)), "unknown")


def _compile(schema: Mapping[str, Any], *, prune: bool) -> Node:
    """Compile a schema; without `prune` it only checks (the schemas inside allOf, anyOf, oneOf, not)."""
    checks: list[Node] = []
    kind = schema.get("type", "")
    either = schema.get("x-kubernetes-int-or-string", False)
    nullable = schema.get("nullable", False)
    if (
        (prune and kind == "object")
        or "properties" in schema
        or "required" in schema
        or "additionalProperties" in schema
    ):
        checks.append(_object(schema, prune=prune))
    if kind == "array" or "items" in schema:
        checks.append(_array(schema, prune=prune))
    checks += [make(schema[key], schema) for key, make in _VALUE_CHECKS.items() if key in schema]
    checks += _combined(schema)
    holds = _TYPES.get(kind)

    def walk(value: Any, path: Path, found: Walk) -> None:
        if value is None and nullable:
            return
        if either and not (isinstance(value, str) or is_integer(value)):
            _wrong_type(found, path, "integer,string", value)
            return
        if holds is not None and not holds(value):
            _wrong_type(found, path, kind, value)
            return
        for check in checks:
            check(value, path, found)

    return walk


def _wrong_type(found: Walk, path: Path, kind: str, value: object) -> None:
    at, got = render(path), type_name(value)
    found.report(errors.type_invalid(at, got, f'{at} in body must be of type {kind}: "{got}"'))


@dataclass(frozen=True, slots=True)
class _Property:
    node: Node
    nullable: bool
    default: bytes | None


def _property(schema: Mapping[str, Any], *, prune: bool) -> _Property:
    default = orjson.dumps(schema["default"]) if prune and "default" in schema else None
    nullable = schema.get("nullable", False) or (
        schema.get("x-kubernetes-preserve-unknown-fields") and not schema.get("type")
    )
    return _Property(_compile(schema, prune=prune), bool(nullable), default)


_EMBEDDED = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def _object(schema: Mapping[str, Any], *, prune: bool) -> Node:
    known = dict(schema.get("properties") or {})
    if schema.get("x-kubernetes-embedded-resource"):
        known = _EMBEDDED | known
    properties = {name: _property(child, prune=prune) for name, child in known.items()}
    extra = schema.get("additionalProperties")
    others = _property(extra, prune=prune) if isinstance(extra, Mapping) else None
    keeps = not prune or bool(schema.get("x-kubernetes-preserve-unknown-fields")) or extra is True
    defaults = [(name, found.default) for name, found in properties.items() if found.default is not None]
    required = tuple(schema.get("required") or ())

    def walk(value: Any, path: Path, found: Walk) -> None:
        if not isinstance(value, dict):
            return
        for name in list(value):
            child = properties.get(name, others)
            if child is None:
                if not keeps:
                    del value[name]
                    found.drop(path, name)
            elif value[name] is None and prune and not child.nullable:
                del value[name]
        for name, default in defaults:
            if name not in value:
                value[name] = orjson.loads(default)
        for name, content in value.items():
            child = properties.get(name, others)
            if child is not None:
                child.node(content, (path, name), found)
        for name in required:
            if name not in value:
                found.report(errors.required(render((path, name))))

    return walk


def _array(schema: Mapping[str, Any], *, prune: bool) -> Node:
    items = _compile(schema["items"], prune=prune) if "items" in schema else None
    kind = schema.get("x-kubernetes-list-type", "atomic")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())

    def walk(value: Any, path: Path, found: Walk) -> None:
        if not isinstance(value, list):
            return
        if items is not None:
            for index, item in enumerate(value):
                items(item, (path, index), found)
        if kind == "atomic":
            return
        seen: set[bytes] = set()
        for index, item in enumerate(value):
            if kind == "map":
                if not isinstance(item, dict):
                    continue
                item = {key: item.get(key) for key in keys}
            mark = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
            if mark in seen:
                found.report(errors.duplicate(render((path, index)), item))
            seen.add(mark)

    return walk


def _combined(schema: Mapping[str, Any]) -> list[Node]:
    """Compile allOf, anyOf, oneOf and not. Their schemas check values only; they neither prune nor fill in."""
    checks: list[Node] = [_compile(part, prune=False) for part in schema.get("allOf") or ()]

    def passes(node: Node, value: Any, path: Path) -> bool:
        walk = Walk()
        node(value, path, walk)
        return not walk.errors

    if schema.get("anyOf"):
        some = [_compile(part, prune=False) for part in schema["anyOf"]]

        def any_of(value: Any, path: Path, found: Walk) -> None:
            if not any(passes(node, value, path) for node in some):
                at = render(path)
                found.report(errors.invalid_value(at, "", f'"{at}" must validate at least one schema (anyOf)'))

        checks.append(any_of)
    if schema.get("oneOf"):
        one = [_compile(part, prune=False) for part in schema["oneOf"]]

        def one_of(value: Any, path: Path, found: Walk) -> None:
            count = sum(passes(node, value, path) for node in one)
            if count != 1:
                at = render(path)
                why = "Found none valid" if count == 0 else f"Found {count} valid alternatives"
                message = f'"{at}" must validate one and only one schema (oneOf). {why}'
                found.report(errors.invalid_value(at, "", message))

        checks.append(one_of)
    if schema.get("not"):
        never = _compile(schema["not"], prune=False)

        def none_of(value: Any, path: Path, found: Walk) -> None:
            if passes(never, value, path):
                at = render(path)
                found.report(errors.invalid_value(at, "", f'"{at}" must not validate the schema (not)'))

        checks.append(none_of)
    return checks


Make = Callable[[Any, Mapping[str, Any]], Node]


def _rule(applies: type | tuple[type, ...], holds: Callable[[Any], bool], words: str) -> Node:
    """A check of values of some JSON type; others pass, because `type` has its own check."""

    def walk(value: Any, path: Path, found: Walk) -> None:
        if isinstance(value, applies) and not isinstance(value, bool) and not holds(value):
            at = render(path)
            found.report(errors.invalid_value(at, value, f"{at} in body {words}"))

    return walk


_NUMBER = (int, float)


def _minimum(bound: Any, schema: Mapping[str, Any]) -> Node:
    if schema.get("exclusiveMinimum"):
        return _rule(_NUMBER, lambda value: value > bound, f"should be greater than {bound}")
    return _rule(_NUMBER, lambda value: value >= bound, f"should be greater than or equal to {bound}")


def _maximum(bound: Any, schema: Mapping[str, Any]) -> Node:
    if schema.get("exclusiveMaximum"):
        return _rule(_NUMBER, lambda value: value < bound, f"should be less than {bound}")
    return _rule(_NUMBER, lambda value: value <= bound, f"should be less than or equal to {bound}")


def _multiple_of(step: Any, _: Mapping[str, Any]) -> Node:
    return _rule(
        _NUMBER,
        lambda value: value % step == 0 if isinstance(value, int) else math.isclose(value / step, round(value / step)),
        f"should be a multiple of {step}",
    )


def _pattern(pattern: Any, _: Mapping[str, Any]) -> Node:
    regex = compile_pattern(pattern)
    return _rule(str, lambda value: regex.search(value) is not None, f"should match '{pattern}'")


def _format(name: Any, schema: Mapping[str, Any]) -> Node:
    if name == "int32":
        return _rule(int, lambda value: -(1 << 31) <= value < 1 << 31, "must be of type int32")
    check = CHECKS.get(name)

    def walk(value: Any, path: Path, found: Walk) -> None:
        if check is not None and isinstance(value, str) and not check(value):
            at = render(path)
            found.report(errors.type_invalid(at, value, f"{at} in body must be of type {name}: {errors.quote(value)}"))

    return walk


def _max_length(limit: Any, _: Mapping[str, Any]) -> Node:
    def walk(value: Any, path: Path, found: Walk) -> None:
        if isinstance(value, str) and len(value) > limit:
            found.report(errors.too_long(render(path), limit))

    return walk


def _at_most(applies: type[Any]) -> Make:
    def make(limit: Any, _: Mapping[str, Any]) -> Node:
        def walk(value: Any, path: Path, found: Walk) -> None:
            if isinstance(value, applies) and len(value) > limit:
                found.report(errors.too_many(render(path), len(value), limit))

        return walk

    return make


def _at_least(applies: type[Any], unit: str) -> Make:
    def make(limit: Any, _: Mapping[str, Any]) -> Node:
        def walk(value: Any, path: Path, found: Walk) -> None:
            if isinstance(value, applies) and (size := len(value)) < limit:
                at = render(path)
                found.report(errors.invalid_value(at, size, f"{at} in body should have at least {limit} {unit}"))

        return walk

    return make


def _enum(allowed: Any, _: Mapping[str, Any]) -> Node:
    # true == 1 in Python, but not in JSON.
    marks = {orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in allowed}

    def walk(value: Any, path: Path, found: Walk) -> None:
        if orjson.dumps(value, option=orjson.OPT_SORT_KEYS) not in marks:
            found.report(errors.unsupported(render(path), value, allowed))

    return walk


def _unique(wanted: Any, _: Mapping[str, Any]) -> Node:
    return _rule(
        list,
        lambda value: not wanted or len({orjson.dumps(v, option=orjson.OPT_SORT_KEYS) for v in value}) == len(value),
        "shouldn't contain duplicates",
    )


_VALUE_CHECKS: dict[str, Make] = {
    "enum": _enum,
    "pattern": _pattern,
    "format": _format,
    "minLength": lambda limit, _: _rule(
        str, lambda value: len(value) >= limit, f"should be at least {limit} chars long"
    ),
    "maxLength": _max_length,
    "minimum": _minimum,
    "maximum": _maximum,
    "multipleOf": _multiple_of,
    "minItems": _at_least(list, "items"),
    "maxItems": _at_most(list),
    "uniqueItems": _unique,
    "minProperties": _at_least(dict, "properties"),
    "maxProperties": _at_most(dict),
}
