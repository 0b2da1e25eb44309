"""What a schema says of one value, compiled: ranges, lengths, patterns, formats, enumerations.

Each keyword becomes a closure that looks at values of its own JSON type and lets others pass, because `type` has its
check elsewhere (`compiler`). Patterns run in RE2, whose time is linear in the text, because they and the texts come
from outside. The wording of errors is that of k8s.io/kube-openapi, pkg/validation/errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from tink.kubeapi.cel import pattern_tester
from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.outcome import CompiledSchema, Outcome, Path, render
from tink.kubeapi.schema.structural.formats import CHECKS

Make = Callable[[Any, Mapping[str, Any]], CompiledSchema]


def _rule(applies: type | tuple[type, ...], holds: Callable[[Any], bool], words: str) -> CompiledSchema:
    """A check of values of some JSON type; others pass, because `type` has its own check."""

    def apply(value: Any, path: Path, found: Outcome) -> None:
        if isinstance(value, applies) and not isinstance(value, bool) and not holds(value):
            at = render(path)
            found.report(field_errors.invalid(at, value, f"{at} in body {words}"))

    return apply


_NUMBER = (int, float)


def _bounded(bound: Any, schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Give the bound for a value: Kubernetes cuts it to an integer for integers, whatever the schema meant."""
    if isinstance(bound, int) or schema.get("type") == "integer":
        return lambda _: bound
    return lambda value: int(bound) if isinstance(value, int) else bound


def _minimum(bound: Any, schema: Mapping[str, Any]) -> CompiledSchema:
    at = _bounded(bound, schema)
    if schema.get("exclusiveMinimum"):
        return _rule(_NUMBER, lambda value: value > at(value), f"should be greater than {bound}")
    return _rule(_NUMBER, lambda value: value >= at(value), f"should be greater than or equal to {bound}")


def _maximum(bound: Any, schema: Mapping[str, Any]) -> CompiledSchema:
    at = _bounded(bound, schema)
    if schema.get("exclusiveMaximum"):
        return _rule(_NUMBER, lambda value: value < at(value), f"should be less than {bound}")
    return _rule(_NUMBER, lambda value: value <= at(value), f"should be less than or equal to {bound}")


def _multiple_of(step: Any, _: Mapping[str, Any]) -> CompiledSchema:
    return _rule(
        _NUMBER,
        lambda value: value % step == 0 if isinstance(value, int) else math.isclose(value / step, round(value / step)),
        f"should be a multiple of {step}",
    )


def _pattern(pattern: Any, _: Mapping[str, Any]) -> CompiledSchema:
    return _rule(str, pattern_tester(pattern), f"should match '{pattern}'")


def _format(name: Any, _: Mapping[str, Any]) -> CompiledSchema:
    check = CHECKS.get(name)

    def apply(value: Any, path: Path, found: Outcome) -> None:
        if check is not None and isinstance(value, str) and not check(value):
            at = render(path)
            found.report(
                field_errors.type_invalid(
                    at, value, f"{at} in body must be of type {name}: {field_errors.quote(value)}"
                )
            )

    return apply


def _max_length(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
    def apply(value: Any, path: Path, found: Outcome) -> None:
        if isinstance(value, str) and len(value) > limit:
            found.report(field_errors.too_long(render(path), limit))

    return apply


def _at_most(applies: type[Any]) -> Make:
    def make(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
        def apply(value: Any, path: Path, found: Outcome) -> None:
            if isinstance(value, applies) and len(value) > limit:
                found.report(field_errors.too_many(render(path), len(value), limit))

        return apply

    return make


def _at_least(applies: type[Any], unit: str) -> Make:
    def make(limit: Any, _: Mapping[str, Any]) -> CompiledSchema:
        def apply(value: Any, path: Path, found: Outcome) -> None:
            if isinstance(value, applies) and (size := len(value)) < limit:
                at = render(path)
                found.report(field_errors.invalid(at, size, f"{at} in body should have at least {limit} {unit}"))

        return apply

    return make


def mark(value: Any) -> str | bytes:
    """Write a value so that equal JSON values are equal: 1.0 is 1. A text is its own mark."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
        return str(value).encode() if abs(value) >= 1 << 63 else orjson.dumps(value)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def _enum(allowed: Any, _: Mapping[str, Any]) -> CompiledSchema:
    # true == 1 in Python, but not in JSON.
    marks = {mark(item) for item in allowed}

    def apply(value: Any, path: Path, found: Outcome) -> None:
        if mark(value) not in marks:
            found.report(field_errors.not_supported(render(path), value, allowed))

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
