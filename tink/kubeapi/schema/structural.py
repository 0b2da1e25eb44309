"""Structural schemas compiled to functions: one walk prunes unknown fields, fills in defaults and reports errors.

A schema becomes a tree of closures once, when its CustomResourceDefinition is installed. Each object then costs one
walk. The walk changes the object in place and reports to a `WalkResult`. The order at each object is Kubernetes': drop
unknown fields, drop nulls that are not allowed, fill in defaults, check values (k8s.io/apiextensions-apiserver,
pkg/apiserver/schema).

`VALUE_CHECKS` are the keywords for single values. Each becomes a closure that ignores values of other JSON types, since
`type` has its own check. Patterns run in RE2 in linear time, because they and the texts come from clients. The words of
errors are those of k8s.io/kube-openapi, pkg/validation/errors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tink.kubeapi.cel import pattern_tester
from tink.kubeapi.schema import meta, structs
from tink.kubeapi.schema.field_errors import (
    CompiledSchema,
    FieldError,
    Path,
    WalkResult,
    duplicate,
    invalid,
    not_supported,
    quote,
    render,
    required,
    too_long,
    too_many,
    type_invalid,
)
from tink.kubeapi.schema.formats import CHECKS
from tink.kubeapi.schema.shapes import TYPES, Raw, is_integer, json_text, type_name
from tink.limits import shrink_to_fit

Make = Callable[[Any, Mapping[str, Any]], CompiledSchema]
Compare = Callable[[Any, Any], bool]
Error = Callable[[str, str, Any], FieldError]
"""A function of the path, its name in the text of the message, and the value."""


def _rule(applies: type | tuple[type, ...], holds: Callable[[Any], bool], error: str | Error) -> CompiledSchema:
    """Return a check of values of some JSON types. It ignores other values, since `type` has its own check.

    `error` is the text of the error, or a function that returns the error.
    """
    make = error if callable(error) else lambda at, name, value: invalid(at, value, f"{name} in body {error}")

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if isinstance(value, applies) and not isinstance(value, bool) and not holds(value):
            found.report(make(render(path), found.name(path), value))

    return apply


_NUMBER = (int, float)


def _limit(exclusive: str, words: str, strictly: Compare, at_most: Compare) -> Make:
    """Return the check of `minimum` or `maximum`."""

    def make(bound: Any, schema: Mapping[str, Any]) -> CompiledSchema:
        test, more = (strictly, "") if schema.get(exclusive) else (at_most, " or equal to")
        # Kubernetes cuts the bound to an integer for integer values, whatever the schema says.
        cut = bound if schema.get("type") == "integer" else int(bound)
        text = f"should be {words} than{more} {bound}"
        return _rule(_NUMBER, lambda value: test(value, cut if isinstance(value, int) else bound), text)

    return make


def _multiple_of(step: Any, _: Mapping[str, Any]) -> CompiledSchema:
    return _rule(
        _NUMBER,
        lambda value: value % step == 0 if isinstance(value, int) else math.isclose(value / step, round(value / step)),
        f"should be a multiple of {step}",
    )


def _pattern(pattern: Any, _: Mapping[str, Any]) -> CompiledSchema:
    return _rule(str, pattern_tester(pattern), f"should match '{pattern}'")


def _format(name: Any, _: Mapping[str, Any]) -> CompiledSchema:
    def error(at: str, field: str, value: Any) -> FieldError:
        return type_invalid(at, value, f"{field} in body must be of type {name}: {quote(value)}")

    return _rule(str, CHECKS.get(name, lambda _: True), error)


def _min_length(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
    return _rule(str, lambda value: len(value) >= limit, f"should be at least {limit} chars long")


def _max_length(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if isinstance(value, str) and len(value) > limit:
            found.report(too_long(render(path), limit))

    return apply


def _at_most(applies: type[Any]) -> Make:
    def make(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
        return _rule(applies, lambda value: len(value) <= limit, lambda at, _, value: too_many(at, len(value), limit))

    return make


def _at_least(applies: type[Any], unit: str) -> Make:
    def make(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
        def error(at: str, name: str, value: Any) -> FieldError:
            return invalid(at, len(value), f"{name} in body should have at least {limit} {unit}")

        return _rule(applies, lambda value: len(value) >= limit, error)

    return make


def mark(value: Any) -> str | bytes:
    """Return a text that is equal for equal JSON values: 1.0 is 1. A string is returned as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
        return str(value).encode() if abs(value) >= 1 << 63 else orjson.dumps(value)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _enum(allowed: Any, _: Mapping[str, Any]) -> CompiledSchema:
    # true == 1 in Python, but not in JSON.
    marks = {mark(item) for item in allowed}

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if mark(value) not in marks:
            found.report(not_supported(render(path), value, allowed))

    return apply


def _unique(wanted: Any, _: Mapping[str, Any]) -> CompiledSchema:
    return _rule(
        list,
        lambda value: not wanted or len({orjson.dumps(v, option=orjson.OPT_SORT_KEYS) for v in value}) == len(value),
        "shouldn't contain duplicates",
    )


VALUE_CHECKS: dict[str, Make] = {
    "enum": _enum,
    "pattern": _pattern,
    "format": _format,
    "minLength": _min_length,
    "maxLength": _max_length,
    "minimum": _limit("exclusiveMinimum", "greater", operator.gt, operator.ge),
    "maximum": _limit("exclusiveMaximum", "less", operator.lt, operator.le),
    "multipleOf": _multiple_of,
    "minItems": _at_least(list, "items"),
    "maxItems": _at_most(list),
    "uniqueItems": _unique,
    "minProperties": _at_least(dict, "properties"),
    "maxProperties": _at_most(dict),
}


def compile_schema(schema: Mapping[str, Any]) -> CompiledSchema:
    """Compile a schema that `definition_schemas.check_structural` has accepted.

    The walk skips Kubernetes' own metadata, which `structs` has read before.
    """
    properties = schema.get("properties") or {}
    if properties.get("metadata") is meta.META_SCHEMA:
        schema = {**schema, "properties": properties | {"metadata": {"x-kubernetes-preserve-unknown-fields": True}}}
    return _compile(schema, prune=True)


def complete_by_schema(
    compiled: CompiledSchema, new: Raw, read: Callable[[Raw], list[str]], *, keeps_nulls: bool = False, part: str = ""
) -> WalkResult:
    """Prune, complete and check an object in place.

    `read` reads the parts for which Kubernetes has Go types, in place, and returns the paths of their unknown fields.
    `keeps_nulls` and `part`: see `WalkResult`. Raises what `read` raises, and TooMuchAddedError.
    """
    unknown = read(new)
    found = WalkResult(keeps_nulls=keeps_nulls, part=part)
    compiled(new, None, found)
    if unknown or found.unknown or found.late:
        found.unknown = [*unknown, *sorted(found.unknown), *found.late]
    # Kubernetes never writes empty metadata fields.
    new["metadata"] = {key: value for key, value in new["metadata"].items() if value not in ("", [], {})}
    return found


def root_schema(openapi: Mapping[str, Any]) -> Raw:
    """Return the schema of whole objects: the schema of a definition plus Kubernetes' metadata."""
    properties = dict(openapi.get("properties") or {})
    properties |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": meta.META_SCHEMA}
    return {**openapi, "type": "object", "properties": properties}


def _compile(schema: Mapping[str, Any], *, prune: bool) -> CompiledSchema:
    """Compile a schema. Without `prune` it only checks, as inside allOf, anyOf, oneOf and not."""
    checks: list[CompiledSchema] = []
    kind = schema.get("type", "")
    either = schema.get("x-kubernetes-int-or-string", False)
    nullable = schema.get("nullable", False)
    if (prune and kind == "object") or not schema.keys().isdisjoint(("properties", "required", "additionalProperties")):
        checks.append(_object(schema, prune=prune))
    if kind == "array" or "items" in schema:
        checks.append(_array(schema, prune=prune))
    if kind in ("integer", "number"):
        checks.append(_number_range(kind, schema.get("format", "")))
    checks += [make(schema[key], schema) for key, make in VALUE_CHECKS.items() if key in schema]
    checks += _combined(schema)
    holds = TYPES.get(kind)
    wrong_type = _wrong_type(schema, prune=prune)

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if value is None and nullable:
            return
        if either and not (isinstance(value, str) or is_integer(value)):
            wrong_type(value, path, found)
            return
        if holds is not None and not holds(value):
            wrong_type(value, path, found)
            return
        for check in checks:
            check(value, path, found)

    return apply


_UNCHECKED_KEYWORDS = frozenset(("type", "nullable", "default", "description", "title", "x-kubernetes-validations"))
"""Keywords that do not need a check of a string's value. CEL rules are checked separately."""


def _wrong_type(schema: Mapping[str, Any], *, prune: bool) -> CompiledSchema:
    """Report a value of a wrong type. Kubernetes also reports the number and enumeration checks for it."""
    kind = "integer,string" if schema.get("x-kubernetes-int-or-string") else schema.get("type", "")
    form = schema.get("format", "")
    others = [_number_range(kind, form)] if kind in ("integer", "number") else []
    others += [VALUE_CHECKS["enum"](schema["enum"], schema)] if "enum" in schema else []
    loses = prune and not schema.get("x-kubernetes-preserve-unknown-fields")

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        at, got, wanted = render(path), type_name(value), kind
        if form and isinstance(value, int | float | dict):
            # Kubernetes compares formats here, and the format of a number is its Go type.
            is_float = isinstance(value, float) or not is_integer(value)
            wanted, got = form, "" if isinstance(value, bool | dict) else "float64" if is_float else "int64"
        found.report(type_invalid(at, got, f'{found.name(path)} in body must be of type {wanted}: "{got}"'))
        for check in others:
            check(value, path, found)
        if loses and isinstance(value, dict):
            for name in value:
                found.drop(path, name)
            value.clear()

    return apply


_RANGES = {"int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1)}
_MAX_FLOAT = 3.4028235677973366e38
"""From this number on a float32 is infinite."""


def _number_range(kind: str, form: str) -> CompiledSchema:
    """Check that a number fits its type and format (pkg/validation/validate: IsValueValidAgainstRange)."""
    known = form in (("int32", "int64") if kind == "integer" else ("float", "double"))
    words = f"Checked value must be of type {kind} " + (f"with format {form}" if known else "(default format)")
    low, high = _RANGES["int32" if form == "int32" else "int64"]

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        if kind == "integer":
            fits = is_integer(value) and low <= value <= high
        else:
            fits = form != "float" or abs(value) < _MAX_FLOAT
        if not fits:
            found.report(invalid(found.nowhere, "", f"{words} in {found.name(path)}"))

    return apply


_FREE: dict[str, type] = {"string": str, "boolean": bool}
"""The Python types whose values need no walk, by the type of a schema without further keywords."""


@dataclass(frozen=True, slots=True)
class _Property:
    compiled: CompiledSchema
    nullable: bool
    default: bytes | None
    free: type | None
    """Values of this Python type need no walk."""


def _property(schema: Mapping[str, Any], *, prune: bool) -> _Property:
    default = orjson.dumps(schema["default"]) if prune and "default" in schema else None
    free = _FREE.get(schema.get("type", "")) if schema.keys() <= _UNCHECKED_KEYWORDS else None
    return _Property(_compile(schema, prune=prune), bool(schema.get("nullable", False)), default, free)


_EMBEDDED = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}


def _object(schema: Mapping[str, Any], *, prune: bool) -> CompiledSchema:
    known = dict(schema.get("properties") or {})
    if embedded := prune and bool(schema.get("x-kubernetes-embedded-resource")):
        known = _EMBEDDED | known
    properties = {name: _property(child, prune=prune) for name, child in known.items()}
    extra = schema.get("additionalProperties")
    others = _property(extra, prune=prune) if isinstance(extra, Mapping) else None
    keeps = not prune or bool(schema.get("x-kubernetes-preserve-unknown-fields")) or extra is True
    defaults = [(name, found.default) for name, found in properties.items() if found.default is not None]
    needed = tuple(schema.get("required") or ())
    drops, names = not keeps and others is None, properties.keys()
    by_name = {name: (child.free, child.compiled) for name, child in properties.items()}
    apply_others = (others.free, others.compiled) if others else None

    def clean(value: dict[str, Any], path: Path, found: WalkResult) -> None:
        for name in list(value):
            child = properties.get(name, others)
            if child is None:
                if not keeps:
                    del value[name]
                    found.drop(path, name)
            elif value[name] is None and prune and not child.nullable:
                if child.default is not None and name not in properties:
                    found.add(path, name, len(child.default))
                    value[name] = orjson.loads(child.default)
                elif child.default is not None or not found.keeps_nulls:
                    del value[name]

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if not isinstance(value, dict):
            return
        if (drops and not value.keys() <= names) or None in value.values():
            clean(value, path, found)
        for name, default in defaults:
            if name not in value:
                found.add(path, name, len(default))
                value[name] = orjson.loads(default)  # a new value for each object
        for name, content in value.items():
            child = by_name.get(name, apply_others)
            if child is not None and type(content) is not child[0]:
                child[1](content, (path, name), found)
        for name in needed:
            if name not in value:
                found.report(required(render((path, name))))
        if embedded:
            _check_embedded(value, path, found)

    return apply


def _check_embedded(value: dict[str, Any], path: Path, found: WalkResult) -> None:
    """Check that a value is a whole object (apiextensions-apiserver, pkg/apiserver/schema/objectmeta)."""
    for name in ("apiVersion", "kind"):
        at, given = render((path, name)), value.get(name)
        if name not in value:
            found.report(required(at))
        elif isinstance(given, str) and (wrong := meta.type_problem(name, given)):
            found.report(invalid(at, given, wrong))
    fields = value.get("metadata")
    if isinstance(fields, dict):
        at = render((path, "metadata"))
        try:
            # Reads a copy: the stored value stays as the client wrote it.
            checked, unknown = structs.METADATA.read(fields, at)
        except structs.MistypedError as error:
            found.report(invalid(at, fields, str(error)))
            return
        for name in unknown:
            found.drop_late(name)
            fields.pop(name.removeprefix(f"{at}."), None)
        for broken in meta.check(checked | {"name": checked.get("name") or "x"}, meta.path_segment, at):
            found.report(broken)


def _array(schema: Mapping[str, Any], *, prune: bool) -> CompiledSchema:
    items = _compile(schema["items"], prune=prune) if "items" in schema else None
    if items is not None and prune and schema["items"].get("type") == "object":
        items = _caching(items)
    of = schema.get("items") or {}
    default = orjson.dumps(of["default"]) if prune and "default" in of and not of.get("nullable") else None
    kind = schema.get("x-kubernetes-list-type", "atomic")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        if not isinstance(value, list):
            return
        if default is not None and None in value:
            for index, item in enumerate(value):
                if item is None:
                    found.add(path, index, len(default))
                    value[index] = orjson.loads(default)
        if items is not None:
            for index, item in enumerate(value):
                items(item, (path, index), found)
        if kind == "atomic":
            return
        seen: dict[bytes, int] = {}
        for index, item in enumerate(value):
            if kind == "map":
                if not isinstance(item, dict):
                    why = "must be an object for an array of list-type map"
                    found.report(invalid(render((path, index)), item, why))
                    return
                item = {key: item[key] for key in keys if key in item}
            mark = orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
            count = seen[mark] = seen.get(mark, 0) + 1
            if count == 2:  # Kubernetes reports only the first repetition
                found.report(duplicate(render((path, index)), item))

    return apply


_MAX_CACHED_TEXT = 8 << 10
_MAX_CACHED_BYTES = 2 << 20
_ENTRY_BYTES = 150
"""Approximate size in bytes of a cache entry without its text."""


def _caching(compiled: CompiledSchema) -> CompiledSchema:
    """Cache the objects that the compiled schema accepted without changes, by their JSON.

    A change of one item in a list of a status sends all items again. JSON distinguishes true from 1 and 1.0 from 1.
    """
    known: set[bytes] = set()
    size = 0

    def apply(value: Any, path: Path, found: WalkResult) -> None:
        nonlocal size
        text = json_text(value)
        if text is not None and text in known:
            return
        compiled(value, path, found)
        if found.errors or found.unknown or found.late or text is None or len(text) > _MAX_CACHED_TEXT:
            return
        if json_text(value) == text:
            if size > _MAX_CACHED_BYTES:
                known.clear()
                size = 0
            size += len(text) + _ENTRY_BYTES
            known.add(shrink_to_fit(text))

    return apply


def _combined(schema: Mapping[str, Any]) -> list[CompiledSchema]:
    """Compile allOf, anyOf, oneOf and not. Their schemas only check values; they neither prune nor fill in."""
    checks: list[CompiledSchema] = []
    parts = {
        key: [_compile(part, prune=False) for part in schema.get(key) or ()] for key in ("allOf", "anyOf", "oneOf")
    }

    def errors_of(compiled: CompiledSchema, value: Any, path: Path, part: str) -> list[FieldError]:
        found = WalkResult(part=part)
        compiled(value, path, found)
        return found.errors

    def report(found: WalkResult, path: Path, words: str, *more: list[FieldError]) -> None:
        found.report(invalid(found.nowhere, "", f'"{found.name(path)}" {words}'))
        for listed in more:
            for error in listed:
                found.report(error)

    def all_of(value: Any, path: Path, found: WalkResult) -> None:
        wrong = [listed for compiled in parts["allOf"] if (listed := errors_of(compiled, value, path, found.part))]
        if wrong:
            none = ". None validated" if len(wrong) == len(parts["allOf"]) else ""
            report(found, path, f"must validate all the schemas (allOf){none}", *wrong)

    def any_of(value: Any, path: Path, found: WalkResult) -> None:
        first: list[FieldError] = []
        for compiled in parts["anyOf"]:
            if not (wrong := errors_of(compiled, value, path, found.part)):
                return
            first = first or wrong
        report(found, path, "must validate at least one schema (anyOf)", first)

    def one_of(value: Any, path: Path, found: WalkResult) -> None:
        tried = [errors_of(compiled, value, path, found.part) for compiled in parts["oneOf"]]
        right = sum(not wrong for wrong in tried)
        words = "must validate one and only one schema (oneOf). Found "
        if right == 0:
            report(found, path, f"{words}none valid", tried[0])
        elif right > 1:
            report(found, path, f"{words}{right} valid alternatives")

    for key, check in (("allOf", all_of), ("anyOf", any_of), ("oneOf", one_of)):
        if parts[key]:
            checks.append(check)
    if schema.get("not"):
        never = _compile(schema["not"], prune=False)

        def none_of(value: Any, path: Path, found: WalkResult) -> None:
            if not errors_of(never, value, path, found.part):
                report(found, path, "must not validate the schema (not)")

        checks.append(none_of)
    return checks
