"""Defaults within a schema: each must be what its own schema allows, without unknown fields.

Defaults of embedded objects' metadata are not looked into. Source: k8s.io/apiextensions-apiserver,
pkg/apiserver/schema/defaulting/validation.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole
from tink.kubeapi.schema.meta import dns1035
from tink.kubeapi.schema.outcome import Outcome
from tink.kubeapi.schema.structural import compile_schema
from tink.kubeapi.schema.validations import OBJECT_BUDGET, compile_at, embedded
from tink.kubeapi.schema.values import deep_copy

Schema = Mapping[str, Any]

_META = ("metadata", "kind", "apiVersion")
_APART = ("default", "x-kubernetes-list-type", "x-kubernetes-int-or-string")
"""What Kubernetes does not look at here: defaults within defaults, keys of items, the types of int-or-string."""


def check(node: Schema, at: str, *, root: bool = True, in_metadata: bool = False) -> list[FieldError]:
    """Find wrong defaults at a structural schema and below."""
    found: list[FieldError] = []
    whole = root or embedded(node)
    if whole:
        in_metadata = False
    if node.get("default") is not None and not in_metadata:
        found += _default(node, f"{at}.default", whole=whole)
    if isinstance(node.get("items"), Mapping):
        found += check(node["items"], f"{at}.items", root=False, in_metadata=in_metadata)
    for name, child in (node.get("properties") or {}).items():
        inside = in_metadata or (whole and name in _META)
        found += check(child, f"{at}.properties[{name}]", root=False, in_metadata=inside)
    return found


def _default(node: Schema, at: str, *, whole: bool) -> list[FieldError]:
    found: list[FieldError] = []
    value = deep_copy({"default": node["default"]})["default"]
    walk = Outcome()
    bare = _bare(node)
    if whole:
        known = {name: {"x-kubernetes-preserve-unknown-fields": True} for name in _META}
        bare["properties"] = known | (bare.get("properties") or {})
    compile_schema(bare)(value, None, walk)
    if walk.unknown:
        found.append(invalid_whole(at, node["default"], "must not have unknown fields"))
    if missing := _resources(node["default"], node, at, whole=whole):
        return found + missing
    if walk.errors:
        below = [
            FieldError(f"{at}.{error.field}" if error.field else at, error.reason, error.message)
            for error in walk.errors
        ]
        return found + below
    rules = compile_at(node, root=whole)
    if rules is not None:
        # As an update that changes nothing, and as a new object: rules with optionalOldSelf may tell them apart.
        broken = rules.check(node["default"], node["default"], budget=OBJECT_BUDGET, ratchet=False)
        broken = broken or rules.check(node["default"], None, budget=OBJECT_BUDGET)
        found += [_moved(error, at) for error in broken]
    return found


def _moved(error: FieldError, at: str) -> FieldError:
    """Put the path of an error found within a default behind the path of the default."""
    below = "" if error.field == "<nil>" else error.field
    path = at + below if below.startswith("[") else f"{at}.{below}" if below else at
    return FieldError(path, error.reason, error.message)


def _bare(node: Schema) -> dict[str, Any]:
    """Give a schema without what is not looked at here."""
    kept = {key: value for key, value in node.items() if key not in _APART}
    if node.get("properties"):
        kept["properties"] = {name: _bare(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), Mapping):
            kept[key] = _bare(node[key])
    return kept


def _resources(value: Any, node: Schema, at: str, *, whole: bool) -> list[FieldError]:
    """Check apiVersion and kind of the whole objects within a default."""
    found: list[FieldError] = []
    if isinstance(value, list):
        items = node.get("items")
        if isinstance(items, Mapping):
            for index, item in enumerate(value):
                found += _resources(item, items, f"{at}[{index}]", whole=embedded(items))
        return found
    if not isinstance(value, dict):
        return found
    if whole:
        found += [field_errors.required(f"{at}.{name}") for name in ("apiVersion", "kind") if name not in value]
        for name in ("apiVersion", "kind"):
            if name in value:
                found += _type_meta(name, value[name], f"{at}.{name}")
    properties, extra = node.get("properties") or {}, node.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            below = properties[name]
            found += _resources(item, below, f"{at}.{name}", whole=embedded(below))
        elif isinstance(extra, Mapping):
            found += _resources(item, extra, f"{at}[{name}]", whole=embedded(extra))
    return found


def _type_meta(name: str, value: Any, at: str) -> list[FieldError]:
    if not isinstance(value, str):
        return [invalid_whole(at, value, "must be a string")]
    if not value:
        return [invalid_whole(at, value, "must not be empty")]
    if name == "apiVersion":
        wrong = f"unexpected GroupVersion string: {value}" if value.count("/") > 1 else None
    else:
        wrong = dns1035(value.lower())
        wrong = wrong and f"may have mixed case, but should otherwise match: {wrong}"
    return [invalid_whole(at, value, wrong)] if wrong else []
