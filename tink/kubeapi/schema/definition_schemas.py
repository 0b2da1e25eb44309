"""The checks of the schemas in a CustomResourceDefinition.

`check_schema` does all of this for one schema:

- `check_structural`: every field has one type, outside of allOf, anyOf, oneOf and not. `structural`, `rules` and the
  OpenAPI documents rely on it (pkg/apiserver/schema: validation.go, complete.go, convert.go).
- `_defaults`: a default must match its own schema and have no unknown fields. Metadata of embedded objects are not
  checked (pkg/apiserver/schema/defaulting/validation.go).
- `_keywords`: which keywords are allowed, and their values. The CEL rules at a schema are compiled only if this
  schema and those below it are valid. Their estimated costs are limited, of each rule and of all together
  (pkg/apis/apiextensions/validation: validation.go, cel_validation.go).

The schemas come from `definition.read`, so their keywords are known and have the right types. The sources are in
k8s.io/apiextensions-apiserver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from tink.kubeapi.cel import PatternError, compile_pattern, types
from tink.kubeapi.schema.declarations import FieldPathError, declare, embedded, field_path, part_type
from tink.kubeapi.schema.field_errors import (
    FieldError,
    WalkResult,
    forbidden,
    invalid,
    invalid_whole,
    not_supported,
    required,
)
from tink.kubeapi.schema.meta import type_problem
from tink.kubeapi.schema.rules import CompiledRule, compile_rule, compile_rules
from tink.kubeapi.schema.shapes import child_schemas, deep_copy
from tink.kubeapi.schema.structural import compile_schema

Schema = Mapping[str, Any]

ROOT, ITEM, FIELD = "at the root", "for specified array items", "for specified object fields"

_EITHER = [{"type": "integer"}, {"type": "string"}]
"""How controller tools write int-or-string. No other types are allowed inside allOf, anyOf, oneOf and not."""

_NOT_IN_JUNCTORS = {
    "empty": ("type", "title", "description", "x-kubernetes-list-map-keys", "x-kubernetes-validations"),
    "undefined": ("additionalProperties", "default", "x-kubernetes-list-type", "x-kubernetes-map-type"),
    "false": (
        *("nullable", "x-kubernetes-preserve-unknown-fields"),
        *("x-kubernetes-embedded-resource", "x-kubernetes-int-or-string"),
    ),
}
"""Keywords that are forbidden inside allOf, anyOf, oneOf and not, by the value that they must have there."""

Errors = Iterator[FieldError]

_UNSUPPORTED = ("id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions")
_NAMED = {"$schema": "schema"}


def _unsupported(schema: Schema) -> str:
    """Return an error for a keyword that no structural schema can have, or ""."""
    for keyword in _UNSUPPORTED:
        if schema.get(keyword) or (keyword == "additionalItems" and keyword in schema):
            return f"OpenAPIV3Schema '{_NAMED.get(keyword, keyword)}' is not supported"
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        return "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
    if isinstance(schema.get("items"), list) and schema["items"]:
        return "OpenAPIV3Schema 'items' must be a schema, but is an array"
    return next((why for child in child_schemas(schema) if (why := _unsupported(child))), "")


def check_schema(schema: Schema, at: str, *, has_status: bool, unchanged: bool) -> list[FieldError]:
    """Return the errors in the schema of a version at a path.

    `has_status` is True if status is a subresource. An `unchanged` schema of an update may have any cost.
    """
    errors = list(_root_keywords(schema, at)) if has_status else []
    if schema.get("nullable"):
        errors.append(forbidden(f"{at}.nullable", "nullable cannot be true at the root"))
    scope = None
    if not (unsupported := _unsupported(schema)):
        structural = check_structural(schema, at) or list(_defaults(schema, at, root=True))
        errors += structural
        scope = None if structural else Scope(schema, 1, has_rules=bool(schema.get(_RULES)))
    found = _Findings()
    _keywords(schema, at, SchemaPlace(any_cost=unchanged), scope, found, root=True)
    errors += found.errors + found.rule_errors
    if not errors and unsupported:
        errors.append(invalid_whole(at, "", unsupported))
    return [*errors, *found.total_cost_errors(at)]


_AT_ROOT = (
    "description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "required", "items", "properties",
    "externalDocs", "example", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
)  # fmt: skip
"""Keywords that the root of a schema may have if status is a subresource."""


def _root_keywords(schema: Schema, at: str) -> Errors:
    why = "at the root of the schema if the status subresource is enabled"
    others = [name for name, value in schema.items() if name not in _AT_ROOT and value not in ("", False)]
    if schema.get("type", "object") not in ("", "object"):
        yield invalid_whole(f"{at}.type", schema["type"], f'only "object" is allowed as the type {why}')
    elif others:
        yield invalid_whole(at, others, f"only [{' '.join(_AT_ROOT)}] fields are allowed {why}")


def check_structural(schema: Schema, at: str) -> list[FieldError]:
    """Return the errors because of which a schema is not structural. `at` is its path within the definition."""
    return sorted([*_node(schema, ROOT, at), *_complete(schema, schema, at, at)], key=str)


def _node(schema: Schema, level: str, at: str) -> Errors:
    kind, items, extra = schema.get("type", ""), schema.get("items"), schema.get("additionalProperties")
    if kind == "array" and items is None:
        yield required(f"{at}.items", "must be specified")
    if isinstance(items, Mapping):
        yield from _node(items, ITEM, f"{at}.items")
    for name, child in (schema.get("properties") or {}).items():
        yield from _node(child, FIELD, f"{at}.properties[{name}]")
    if extra is not None and level is ROOT:
        yield forbidden(f"{at}.additionalProperties", "must not be used at the root")
    if isinstance(extra, Mapping):
        yield from _node(extra, FIELD, f"{at}.additionalProperties")
    if schema.get("x-kubernetes-int-or-string"):
        for key in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if schema.get(key):
                yield invalid_whole(f"{at}.{key}", True, "must be false if x-kubernetes-int-or-string is true")
    every = schema.get("allOf") or ()
    skip_first = bool(every and every[0].get("anyOf") == _EITHER)
    yield from _values(schema, at, skip_any=schema.get("anyOf") == _EITHER, skip_first=skip_first)
    if schema.get("x-kubernetes-embedded-resource") and kind != "object":
        detail = "must be object if x-kubernetes-embedded-resource is true"
        yield invalid_whole(f"{at}.type", kind, detail) if kind else required(f"{at}.type", detail)
    elif not kind and not any(
        schema.get(key) for key in ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    ):
        yield required(f"{at}.type", f"must not be empty {level}")
    if level is ROOT and kind not in ("", "object"):
        yield invalid_whole(f"{at}.type", kind, "must be object at the root")
    yield from _resource(schema, level, at)


def _resource(schema: Schema, level: str, at: str) -> Errors:
    """Check the declarations of apiVersion, kind and metadata of whole objects."""
    is_embedded = embedded(schema)
    whole = level is ROOT or is_embedded
    properties = schema.get("properties") or {}
    if is_embedded and schema.get("additionalProperties") is not None:
        yield forbidden(f"{at}.additionalProperties", "must not be used if x-kubernetes-embedded-resource is set")
    for name in ("kind", "apiVersion"):
        if whole and name in properties and properties[name].get("type", "") != "string":
            yield invalid_whole(f"{at}.properties[{name}].type", properties[name].get("type", ""), "must be string")
    if "metadata" in properties:
        metadata, where = properties["metadata"], f"{at}.properties[metadata]"
        if whole and metadata.get("type", "") != "object":
            yield invalid_whole(f"{where}.type", metadata.get("type", ""), "must be object")
        names = set(metadata.get("properties") or {})
        beside = any(value for key, value in metadata.items() if key not in ("type", "default", "properties"))
        if level is ROOT and (beside or not names <= {"name", "generateName"}):
            detail = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            yield forbidden(where, detail)
    if is_embedded and not schema.get("x-kubernetes-preserve-unknown-fields") and not properties:
        condition = "x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        yield required(f"{at}.properties", f"must not be empty if {condition}")


def _values(schema: Schema, at: str, *, skip_any: bool, skip_first: bool) -> Errors:
    for key in ("anyOf", "allOf", "oneOf"):
        for index, child in enumerate(schema.get(key) or ()):
            if key != "anyOf" or not skip_any:
                first = skip_first and key == "allOf" and index == 0
                yield from _junctor(child, f"{at}.{key}[{index}]", skip_any=first)
    if schema.get("not") is not None:
        yield from _junctor(schema["not"], f"{at}.not")
    if pattern := schema.get("pattern"):
        try:
            compile_pattern(pattern)
        except PatternError as error:
            detail = f"must be a valid regular expression, but isn't: {error}"
            yield invalid_whole(f"{at}.pattern", pattern, detail)


def _junctor(schema: Schema, at: str, *, skip_any: bool = False) -> Errors:
    yield from _values(schema, at, skip_any=skip_any, skip_first=False)
    if isinstance(schema.get("items"), Mapping):
        yield from _junctor(schema["items"], f"{at}.items")
    properties = schema.get("properties") or {}
    for name, child in properties.items():
        yield from _junctor(child, f"{at}.properties[{name}]")
    for expected, keywords in _NOT_IN_JUNCTORS.items():
        for key in keywords:
            value = schema.get(key)
            if key == "additionalProperties" and value is False:
                continue
            if value or (expected == "undefined" and value is not None):
                yield forbidden(f"{at}.{key}", f"must be {expected} to be structural")
    if "metadata" in properties:
        yield forbidden(f"{at}.properties[metadata]", "must not be specified in a nested context")


def _complete(values: Schema, schema: Schema | None, at: str, where: str) -> Errors:
    """Check that fields inside allOf, anyOf, oneOf and not at the root are also defined outside of them."""
    for key in ("not", "allOf", "anyOf", "oneOf"):
        content = values.get(key)
        for index, child in enumerate(content if isinstance(content, list) else [content] if content else []):
            yield from _nested(child, schema, at, f"{where}.{key}" if key == "not" else f"{where}.{key}[{index}]")


def _nested(values: Schema, schema: Schema | None, at: str, where: str) -> Errors:
    if schema is None:
        yield required(at, f"because it is defined in {where}")
        return
    yield from _complete(values, schema, at, where)
    if isinstance(values.get("items"), Mapping):
        yield from _nested(values["items"], schema.get("items"), f"{at}.items", f"{where}.items")
    properties = schema.get("properties") or {}
    for name, child in (values.get("properties") or {}).items():
        step = f"properties[{name}]"
        yield from _nested(child, properties.get(name), f"{at}.{step}", f"{where}.{step}")


_META = ("metadata", "kind", "apiVersion")
_IGNORED = ("default", "x-kubernetes-list-type", "x-kubernetes-int-or-string")
"""Keywords that Kubernetes ignores here: defaults within defaults, keys of items, the types of int-or-string."""


def _defaults(node: Schema, at: str, *, root: bool = False, in_metadata: bool = False) -> Errors:
    """Check the defaults of a structural schema and below."""
    whole = root or embedded(node)
    in_metadata = in_metadata and not whole
    if node.get("default") is not None and not in_metadata:
        yield from _default(node, f"{at}.default", whole=whole)
    if isinstance(node.get("items"), Mapping):
        yield from _defaults(node["items"], f"{at}.items", in_metadata=in_metadata)
    for name, child in (node.get("properties") or {}).items():
        inside = in_metadata or (whole and name in _META)
        yield from _defaults(child, f"{at}.properties[{name}]", in_metadata=inside)


def _default(node: Schema, at: str, *, whole: bool) -> Errors:
    value = deep_copy({"default": node["default"]})["default"]
    walk = WalkResult()
    bare = _without_ignored(node)
    if whole:
        known = {name: {"x-kubernetes-preserve-unknown-fields": True} for name in _META}
        bare["properties"] = known | (bare.get("properties") or {})
    compile_schema(bare)(value, None, walk)
    if walk.unknown:
        yield invalid_whole(at, node["default"], "must not have unknown fields")
    if missing := list(_resources(node["default"], node, at, whole=whole)):
        yield from missing
        return
    if walk.errors:
        yield from (replace(error, field=f"{at}.{error.field}" if error.field else at) for error in walk.errors)
        return
    rules = compile_rules(node, root=whole)
    if rules is None:
        return
    # As an update without changes, and as a new object: rules with optionalOldSelf can differ.
    broken = rules.check(node["default"], node["default"], ratchet=False)
    for error in broken or rules.check(node["default"], None):
        below = "" if error.field == "<nil>" else error.field
        yield replace(error, field=at + below if below.startswith("[") else f"{at}.{below}" if below else at)


def _without_ignored(node: Schema) -> dict[str, Any]:
    """Return a schema without the keywords that are ignored here."""
    kept = {key: value for key, value in node.items() if key not in _IGNORED}
    if node.get("properties"):
        kept["properties"] = {name: _without_ignored(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), Mapping):
            kept[key] = _without_ignored(node[key])
    return kept


def _resources(value: Any, node: Schema, at: str, *, whole: bool) -> Errors:
    """Check apiVersion and kind of the whole objects within a default."""
    if isinstance(value, list):
        items = node.get("items")
        if isinstance(items, Mapping):
            for index, item in enumerate(value):
                yield from _resources(item, items, f"{at}[{index}]", whole=embedded(items))
        return
    if not isinstance(value, dict):
        return
    if whole:
        yield from (required(f"{at}.{name}") for name in ("apiVersion", "kind") if name not in value)
        for name in ("apiVersion", "kind"):
            given = value.get(name, "v1")
            if wrong := type_problem(name, given) if isinstance(given, str) else "must be a string":
                yield invalid_whole(f"{at}.{name}", given, wrong)
    properties, extra = node.get("properties") or {}, node.get("additionalProperties")
    for name, item in value.items():
        if name in properties:
            below = properties[name]
            yield from _resources(item, below, f"{at}.{name}", whole=embedded(below))
        elif isinstance(extra, Mapping):
            yield from _resources(item, extra, f"{at}[{name}]", whole=embedded(extra))


RULE_LIMIT = 10_000_000
"""Maximum estimated cost of one rule, for all values in an object that it applies to."""
TOTAL_LIMIT = 100_000_000
"""Maximum estimated cost of all rules of a version."""
MAX_COST = (1 << 64) - 1

TYPES = ("array", "boolean", "integer", "number", "object", "string")
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_LINE_BREAKS = re.compile(r"[\n\r]")
_RULES = "x-kubernetes-validations"
_LIST, _KEYS, _MAP = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"


@dataclass(slots=True)
class _Findings:
    """The errors in keywords and in CEL rules, the total cost of all rules, and the most expensive rules."""

    errors: list[FieldError] = field(default_factory=list)
    rule_errors: list[FieldError] = field(default_factory=list)
    total: int = 0
    expensive: list[tuple[int, str]] = field(default_factory=list)

    def add_cost(self, at: str, cost: int) -> None:
        """Add the cost of an expression."""
        self.total = min(self.total + cost, MAX_COST)
        if cost >= TOTAL_LIMIT // 100:
            self.expensive.append((cost, at))

    def total_cost_errors(self, at: str) -> Errors:
        """Return the errors if the rules cost too much together."""
        if self.total > TOTAL_LIMIT:
            why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
            yield from (forbidden(where, why) for _, where in sorted(self.expensive, key=lambda rule: -rule[0])[:4])
            what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
            yield forbidden(at, exceeds_limit(what, self.total, TOTAL_LIMIT))


def exceeds_limit(what: str, cost: int, limit: int) -> str:
    """Return the message that a cost exceeds its limit, with the factor."""
    factor = cost / limit
    by = "more than 100x" if factor > 100 else f"{factor:.6f}x" if factor < 1.5 else f"{factor:.1f}x"
    return (
        f"{what} exceeds budget by factor of {by} (try simplifying the rule, or adding maxItems, maxProperties, and "
        "maxLength where arrays, maps, and strings are declared)"
    )


@dataclass(slots=True)
class Scope:
    """The view of rules at a schema: the CEL type, created on demand, and the number of such values in an object.

    `count` is None if the schema does not limit it. `has_rules` is True if the schema or one above it has rules.
    """

    schema: Schema
    count: int | None
    above: Scope | None = None
    name: str = ""
    has_rules: bool = False
    _kind: types.CelType | None = None

    def below(self, schema: Schema, name: str) -> Scope:
        """Return the scope of a field (`name` is `.field`), of items (`[]`) or of map values (`{}`)."""
        limit: int | None = 1
        kind = self.schema.get("type")
        if kind == "array" or (kind == "object" and self.schema.get("additionalProperties") is not None):
            limit = self.schema.get("maxItems" if kind == "array" else "maxProperties")
        count = None if self.count is None or limit is None else min(self.count * max(limit, 0), MAX_COST)
        return Scope(schema, count, self, name, self.has_rules or bool(schema.get(_RULES)))

    def kind(self) -> types.CelType | None:
        """Return the CEL type, or None if rules cannot see the values."""
        if self._kind is None:
            above = self.above.kind() if self.above and self.above.has_rules else None
            if above is None and self.above and self.above.has_rules:
                return None
            root = self.above is None or embedded(self.schema)
            self._kind = part_type(above, self.name) or declare(self.schema, root=root)
        return self._kind


@dataclass(frozen=True, slots=True)
class SchemaPlace:
    """The place of a schema, as far as it decides which keywords are allowed.

    `no_default` is the reason why defaults are forbidden. `uncorrelated` is the path of the schema whose parts have no
    old value in an update. `any_cost` is True if the schema has not changed, so that rules may have any cost.
    """

    no_default: str | None = None
    in_metadata: bool = False
    uncorrelated: str = ""
    any_cost: bool = False

    def without_old(self, at: str) -> SchemaPlace:
        """Forbid `oldSelf` from here on."""
        return self if self.uncorrelated else replace(self, uncorrelated=at)


def _keywords(
    schema: Schema, at: str, place: SchemaPlace, scope: Scope | None, found: _Findings, *, root: bool = False
) -> None:
    """Check the keywords and CEL rules of a schema and everything below it."""

    def descend(child: Any, step: str, place: SchemaPlace = place, name: str = "") -> None:
        _keywords(child, f"{at}.{step}", place, scope.below(child, name) if scope and name else None, found)

    errors = found.errors
    before = len(errors)
    errors += _forbidden(schema, at, place)
    extra, items = schema.get("additionalProperties"), schema.get("items")
    if extra is not None:
        if schema.get("properties") and extra is not True:
            detail = "additionalProperties and properties are mutual exclusive"
            errors.append(forbidden(f"{at}.additionalProperties", detail))
        if isinstance(extra, Mapping):
            inside = place
            if place.in_metadata:
                inside = replace(place, no_default="inside additionalProperties applying to object metadata")
            descend(extra, "additionalProperties", inside, "{}")
    uncorrelated = schema.get(_MAP) not in (None, "granular", "atomic")
    for name, child in (schema.get("properties") or {}).items():
        inside = place.without_old(at) if uncorrelated else place
        if name in _META and (root or embedded(schema)):
            inside = replace(inside, in_metadata=True)
            if root:
                inside = replace(inside, no_default=f"in top-level {name}")
        descend(child, f"properties[{name}]", inside, f".{name}")
    if schema.get("not") is not None:
        descend(schema["not"], "not")
    for key in ("allOf", "oneOf", "anyOf"):
        for index, child in enumerate(schema.get(key) or ()):
            descend(child, f"{key}[{index}]")
    for name, child in (schema.get("definitions") or {}).items():
        descend(child, f"definitions[{name}]")
    if items is not None:
        inside = place if schema.get(_LIST) == "map" else place.without_old(at)
        for index, child in enumerate(items if isinstance(items, list) else [items]):
            descend(child, f"items[{index}]" if isinstance(items, list) else "items", inside, "[]")
    errors += chain(_extensions(schema, at), _map_list(schema, at), _map_keys(schema, at))
    for index, rule in enumerate(schema.get(_RULES) or ()):
        errors += _rule(rule, schema, f"{at}.{_RULES}[{index}]")
    if schema.get(_RULES) and len(errors) == before and scope is not None:
        found.rule_errors += _compile_rules(schema, f"{at}.{_RULES}", place, scope, found)


_NOT_SUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")


def _forbidden(schema: Schema, at: str, place: SchemaPlace) -> Errors:
    kind = schema.get("type", "")
    if kind and kind not in TYPES:
        yield not_supported(f"{at}.type", kind, TYPES)
    if schema.get("default") is not None and place.no_default is not None:
        yield forbidden(f"{at}.default", f"must not be set {place.no_default}".strip())
    for keyword in _NOT_SUPPORTED:
        if schema.get(keyword) or (keyword in ("additionalItems", "dependencies", "$ref") and keyword in schema):
            yield forbidden(f"{at}.{keyword}", f"{keyword} is not supported")
    if kind == "null":
        yield forbidden(f"{at}.type", "type cannot be set to null, use nullable as an alternative")
    if isinstance(schema.get("items"), list) and schema["items"]:
        yield forbidden(f"{at}.items", "items must be a schema object and not an array")
    if place.in_metadata and embedded(schema):
        yield forbidden(f"{at}.x-kubernetes-embedded-resource", "must not be used inside of resource meta")
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{at}.uniqueItems", detail)


def _typed(schema: Schema, at: str, wanted: str, detail: str) -> Errors:
    kind = schema.get("type", "")
    if kind != wanted:
        yield invalid_whole(f"{at}.type", kind, detail) if kind else required(f"{at}.type", detail)


def _extensions(schema: Schema, at: str) -> Errors:
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        yield invalid_whole(f"{at}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    map_type, list_type, items = schema.get(_MAP), schema.get(_LIST), schema.get("items")
    if map_type is not None:
        yield from _typed(schema, at, "object", f"must be object if {_MAP} is specified")
        if map_type not in ("atomic", "granular"):
            yield not_supported(f"{at}.{_MAP}", map_type, ("atomic", "granular"))
    if list_type is None:
        return
    if schema.get("type", "") != "array":
        yield from _typed(schema, at, "array", f"must be array if {_LIST} is specified")
    elif list_type == "set" and isinstance(items, Mapping):
        detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
        if items.get("type") == "array" and items.get(_LIST) not in (None, "atomic"):
            yield invalid_whole(f"{at}.items.{_LIST}", items.get(_LIST), detail)
        elif items.get("type") == "object" and items.get(_MAP) != "atomic":
            yield invalid_whole(f"{at}.items.{_MAP}", items.get(_MAP), detail)
    if list_type not in ("atomic", "set", "map"):
        yield not_supported(f"{at}.{_LIST}", list_type, ("atomic", "set", "map"))


def _map_list(schema: Schema, at: str) -> Errors:
    keys, list_type, items = schema.get(_KEYS) or (), schema.get(_LIST), schema.get("items")
    if list_type != "map":
        if keys:
            where, detail = f"{at}.{_LIST}", f"must be map if {_KEYS} is non-empty"
            yield required(where, detail) if list_type is None else invalid_whole(where, list_type, detail)
        return
    if not keys:
        yield required(f"{at}.{_KEYS}", f"must not be empty if {_LIST} is map")
    if items is None:
        yield required(f"{at}.items", f"must have a schema if {_LIST} is map")
    if not isinstance(items, Mapping):
        return
    if items.get("type", "") != "object":
        yield invalid_whole(
            f"{at}.items.type", items.get("type", ""), f"must be object if parent array's {_LIST} is map"
        )
        return
    properties = items.get("properties") or {}
    for index, key in enumerate(keys):
        if key not in properties:
            yield invalid_whole(f"{at}.{_KEYS}", list(keys), "entries must all be names of item properties")
        elif properties[key].get("type") in ("array", "object"):
            detail = f"must be a scalar type if parent array's {_LIST} is map"
            yield invalid_whole(f"{at}.items.properties[{key}].type", "object", detail)
        if key in keys[:index]:
            yield invalid_whole(f"{at}.{_KEYS}", list(keys), "must not contain duplicate entries")


def _map_keys(schema: Schema, at: str) -> Errors:
    """Check that items of sets, and keys of map lists, are never absent."""
    items, list_type = schema.get("items"), schema.get(_LIST)
    if not isinstance(items, Mapping) or list_type not in ("set", "map"):
        return
    if items.get("nullable"):
        yield forbidden(f"{at}.items.nullable", f"cannot be nullable when {_LIST} is {list_type}")
    for key in (schema.get(_KEYS) or ()) if list_type == "map" else ():
        child = (items.get("properties") or {}).get(key)
        if child is None:
            continue
        where, named = f"{at}.items.properties[{key}]", f"this property is in {_KEYS}, so it"
        if key not in (items.get("required") or ()) and child.get("default") is None:
            yield required(f"{where}.default", f"{named} must have a default or be a required property")
        if child.get("nullable"):
            yield forbidden(f"{where}.nullable", f"{named} cannot be nullable")


def _rule(rule: Schema, schema: Schema, at: str) -> Errors:
    """Check the fields of a rule, apart from its expressions."""
    source, message, path = rule.get("rule", "").strip(), rule.get("message", ""), rule.get("fieldPath", "")
    if not source:
        yield required(f"{at}.rule", "rule is not specified")
    elif message and not message.strip():
        yield invalid_whole(f"{at}.message", message, "must be non-empty if specified")
    elif _LINE_BREAKS.search(message.strip()):
        yield invalid_whole(f"{at}.message", message, "must not contain line breaks")
    elif _LINE_BREAKS.search(source) and not message.strip():
        yield required(f"{at}.message", "message must be specified if rule contains line breaks")
    if rule.get("messageExpression") and not rule["messageExpression"].strip():
        yield required(f"{at}.messageExpression", "messageExpression must be non-empty if specified")
    if rule.get("reason") is not None and rule["reason"] not in REASONS:
        yield not_supported(f"{at}.reason", rule["reason"], REASONS)
    if path and not path.strip():
        yield invalid_whole(f"{at}.fieldPath", path, "must be non-empty if specified")
    if _LINE_BREAKS.search(path):
        yield invalid_whole(f"{at}.fieldPath", path, "must not contain line breaks")
    if path:
        try:
            field_path(path, schema)
        except FieldPathError:
            yield invalid_whole(f"{at}.fieldPath", path, "must be a valid path")


def _compile_rules(schema: Schema, at: str, place: SchemaPlace, scope: Scope, found: _Findings) -> Errors:
    """Compile the rules at a schema, and check their expressions and costs."""
    kind = scope.kind()
    if kind is None:
        why = "internal error: failed to construct type information for x-kubernetes-validations rules: "
        why += "unable to convert structural schema to CEL declarations"
        yield FieldError(at, "InternalError", f"Internal error: {why}")
        return
    count = types.MAX_REQUEST_BYTES // (types.min_json_size(kind) + 1) if scope.count is None else scope.count
    for index, raw in enumerate(schema[_RULES]):
        rule = compile_rule(raw, kind, schema)
        yield from _expression(rule, raw, f"{at}[{index}]", min(rule.cost * count, MAX_COST), place, found)


def _expression(rule: CompiledRule, raw: Schema, at: str, cost: int, place: SchemaPlace, found: _Findings) -> Errors:
    if not place.any_cost and cost > RULE_LIMIT:
        yield forbidden(f"{at}.rule", exceeds_limit("estimated rule cost", cost, RULE_LIMIT))
    found.add_cost(f"{at}.rule", cost)
    if rule.error:
        yield invalid(f"{at}.rule", raw["rule"], rule.error)
    if rule.message_error:
        yield invalid(f"{at}.messageExpression", raw["messageExpression"], rule.message_error)
    elif rule.message_program is not None:
        if not place.any_cost and rule.message_cost > RULE_LIMIT:
            detail = exceeds_limit("estimated messageExpression cost", rule.message_cost, RULE_LIMIT)
            yield forbidden(f"{at}.messageExpression", detail)
        found.add_cost(f"{at}.messageExpression", rule.message_cost)
    if rule.uses_old:
        if place.uncorrelated:
            detail = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {place.uncorrelated}"
            yield invalid_whole(f"{at}.rule", raw["rule"], detail)
    elif raw.get("optionalOldSelf") is not None:
        detail = "may not be set if oldSelf is not used in rule"
        yield invalid_whole(f"{at}.optionalOldSelf", raw["optionalOldSelf"], detail)
