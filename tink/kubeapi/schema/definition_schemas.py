"""The checks of the schemas in a CustomResourceDefinition.

- `check_structural`: every field has one type, outside of allOf, anyOf, oneOf and not. `structural`, `rules` and the
  OpenAPI documents rely on it (pkg/apiserver/schema: validation.go, complete.go, convert.go).
- `check_defaults`: a default must match its own schema and have no unknown fields. Metadata of embedded objects are not
  checked (pkg/apiserver/schema/defaulting/validation.go).
- `check_keywords`: which keywords are allowed, and their values. The CEL rules at a schema are compiled only if this
  schema and those below it are valid. Their estimated costs are limited, of each rule and of all together
  (pkg/apis/apiextensions/validation: validation.go, cel_validation.go).

The schemas come from `definition.read`, so their keywords are known and have the right types. The sources are in
k8s.io/apiextensions-apiserver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tink.kubeapi.cel import ListType, MapType, ObjectType, PatternError, Type, check_pattern, min_json_size
from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.declarations import FieldPathError, declare, embedded, escaped, field_path
from tink.kubeapi.schema.field_errors import FieldError, Outcome, invalid_whole
from tink.kubeapi.schema.meta import dns1035
from tink.kubeapi.schema.rules import OBJECT_BUDGET, Rule, compile_at, compile_rule
from tink.kubeapi.schema.shapes import deep_copy
from tink.kubeapi.schema.structural import compile_schema

Schema = Mapping[str, Any]

ROOT, ITEM, FIELD = "at the root", "for specified array items", "for specified object fields"

_EITHER = [{"type": "integer"}, {"type": "string"}]
"""How controller tools write int-or-string. No other types are allowed inside allOf, anyOf, oneOf and not."""

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
"""Keywords that are forbidden if present. The others are forbidden only if their value is not empty."""

_UNSUPPORTED = ("id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems", "definitions")
_NAMED = {"$schema": "schema"}


def unsupported(schema: Schema) -> str:
    """Return an error for a keyword that no structural schema can have, or ""."""
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


def check_structural(schema: Schema, at: str) -> list[FieldError]:
    """Return the errors because of which a schema is not structural. `at` is its path within the definition."""
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
    """Check the declarations of apiVersion, kind and metadata of whole objects."""
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
    """Check that fields inside allOf, anyOf, oneOf and not at the root are also defined outside of them."""
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


_META = ("metadata", "kind", "apiVersion")
_IGNORED = ("default", "x-kubernetes-list-type", "x-kubernetes-int-or-string")
"""Keywords that Kubernetes ignores here: defaults within defaults, keys of items, the types of int-or-string."""


def check_defaults(node: Schema, at: str, *, root: bool = True, in_metadata: bool = False) -> list[FieldError]:
    """Return the errors in the defaults of a structural schema and below."""
    found: list[FieldError] = []
    whole = root or embedded(node)
    if whole:
        in_metadata = False
    if node.get("default") is not None and not in_metadata:
        found += _default(node, f"{at}.default", whole=whole)
    if isinstance(node.get("items"), Mapping):
        found += check_defaults(node["items"], f"{at}.items", root=False, in_metadata=in_metadata)
    for name, child in (node.get("properties") or {}).items():
        inside = in_metadata or (whole and name in _META)
        found += check_defaults(child, f"{at}.properties[{name}]", root=False, in_metadata=inside)
    return found


def _default(node: Schema, at: str, *, whole: bool) -> list[FieldError]:
    found: list[FieldError] = []
    value = deep_copy({"default": node["default"]})["default"]
    walk = Outcome()
    bare = _without_ignored(node)
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
        # As an update without changes, and as a new object: rules with optionalOldSelf can differ.
        broken = rules.check(node["default"], node["default"], budget=OBJECT_BUDGET, ratchet=False)
        broken = broken or rules.check(node["default"], None, budget=OBJECT_BUDGET)
        found += [_below_default(error, at) for error in broken]
    return found


def _below_default(error: FieldError, at: str) -> FieldError:
    """Return an error found within a default with the path of the default before its own."""
    below = "" if error.field == "<nil>" else error.field
    path = at + below if below.startswith("[") else f"{at}.{below}" if below else at
    return FieldError(path, error.reason, error.message)


def _without_ignored(node: Schema) -> dict[str, Any]:
    """Return a schema without the keywords that are ignored here."""
    kept = {key: value for key, value in node.items() if key not in _IGNORED}
    if node.get("properties"):
        kept["properties"] = {name: _without_ignored(child) for name, child in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), Mapping):
            kept[key] = _without_ignored(node[key])
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


RULE_LIMIT = 10_000_000
"""Maximum estimated cost of one rule, for all values in an object that it applies to."""
TOTAL_LIMIT = 100_000_000
"""Maximum estimated cost of all rules of a version."""
MAX_COST = (1 << 64) - 1
MAX_REQUEST = 3 << 20

TYPES = ("array", "boolean", "integer", "number", "object", "string")
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_LINE_BREAKS = re.compile(r"[\n\r]")
_RULES = "x-kubernetes-validations"
_LIST, _KEYS, _MAP = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"


@dataclass(slots=True)
class Costs:
    """The total cost of the rules of a version, and the most expensive rules."""

    total: int = 0
    rules: list[tuple[int, str]] = field(default_factory=list)

    def add(self, at: str, cost: int) -> None:
        """Add the cost of an expression."""
        self.total = min(self.total + cost, MAX_COST)
        if cost >= TOTAL_LIMIT // 100:
            self.rules.append((cost, at))

    def errors(self, at: str) -> list[FieldError]:
        """Return the errors if the rules cost too much together."""
        if self.total <= TOTAL_LIMIT:
            return []
        why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        most_expensive = sorted(self.rules, key=lambda rule: -rule[0])[:4]
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        return [field_errors.forbidden(where, why) for _, where in most_expensive] + [
            field_errors.forbidden(at, exceeds_limit(what, self.total, TOTAL_LIMIT))
        ]


def exceeds_limit(what: str, cost: int, limit: int) -> str:
    """Return the message that a cost exceeds its limit, with the factor."""
    factor = cost / limit
    by = "more than 100x" if factor > 100 else f"{factor:.6f}x" if factor < 1.5 else f"{factor:.1f}x"
    return (
        f"{what} exceeds budget by factor of {by} (try simplifying the rule, or adding maxItems, maxProperties, and "
        "maxLength where arrays, maps, and strings are declared)"
    )


class _UndeclaredError(Exception):
    """Rules cannot see the values of the schema."""


@dataclass(slots=True)
class Scope:
    """The view of rules at a schema: the CEL type, created on demand, and the number of such values in an object.

    `count` is None if the schema does not limit it.
    """

    schema: Schema
    count: int | None
    costs: Costs
    above: Scope | None = None
    name: str = ""
    ruled: bool = False
    _kind: Type | None = None

    @classmethod
    def root(cls, schema: Schema) -> Scope:
        """Return the scope of a whole schema."""
        return cls(schema, 1, Costs(), ruled=bool(schema.get(_RULES)))

    def below(self, schema: Schema, name: str) -> Scope:
        """Return the scope of a field (`name` is `.field`), of items (`[]`) or of map values (`{}`)."""
        count = None
        limit = _most(self.schema)
        if self.count is not None and limit is not None:
            count = min(self.count * limit, MAX_COST)
        return Scope(schema, count, self.costs, self, name, self.ruled or bool(schema.get(_RULES)))

    def kind(self) -> Type:
        """Return the CEL type. Raises _UndeclaredError."""
        if self._kind is None:
            found = None
            if self.above is not None and self.above.ruled:
                found = _part(self.above.kind(), self.name)
            if found is None:
                found = declare(self.schema, root=self.above is None or embedded(self.schema))
            if found is None:
                raise _UndeclaredError
            self._kind = found
        return self._kind


def _part(kind: Type, name: str) -> Type | None:
    if isinstance(kind, ListType):
        return kind.element
    if isinstance(kind, MapType):
        return kind.value
    if isinstance(kind, ObjectType) and name.startswith("."):
        found = kind.fields.get(escaped(name[1:]) or "")
        return None if found is None else found.type
    return None


def _most(schema: Schema) -> int | None:
    """Return the maximum number of values directly below, or None if the schema does not limit it."""
    match schema.get("type"):
        case "object" if schema.get("additionalProperties") is not None:
            limit = schema.get("maxProperties")
        case "array":
            limit = schema.get("maxItems")
        case _:
            return 1
    return None if limit is None else max(limit, 0)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply at a place of a schema.

    `no_default` is the reason why defaults are forbidden. `uncorrelated` is the path of the schema whose parts have no
    old
    value in an update. `free` allows any cost, because the schema has not changed.
    """

    no_default: str | None = None
    in_metadata: bool = False
    uncorrelated: str = ""
    free: bool = False

    def without_old(self, at: str) -> Rules:
        """Forbid `oldSelf` from here on."""
        return self if self.uncorrelated else replace(self, uncorrelated=at)


def check_keywords(
    schema: Schema, at: str, rules: Rules, scope: Scope | None, *, root: bool = True
) -> tuple[list[FieldError], list[FieldError]]:
    """Return the errors in keywords, and the errors in CEL rules, of a schema and everything below it."""
    found: list[FieldError] = []
    about_rules: list[FieldError] = []

    def descend(child: Any, step: str, holds: Rules, below: Scope | None) -> None:
        mine, theirs = check_keywords(child, f"{at}.{step}", holds, below, root=False)
        found.extend(mine)
        about_rules.extend(theirs)

    found += _forbidden(schema, at, rules)
    extra, items = schema.get("additionalProperties"), schema.get("items")
    if extra is not None:
        if schema.get("properties") and extra is not True:
            where = f"{at}.additionalProperties"
            found.append(field_errors.forbidden(where, "additionalProperties and properties are mutual exclusive"))
        if isinstance(extra, Mapping):
            holds = rules
            if rules.in_metadata:
                holds = replace(rules, no_default="inside additionalProperties applying to object metadata")
            descend(extra, "additionalProperties", holds, scope and scope.below(extra, "{}"))
    uncorrelated = schema.get(_MAP) not in (None, "granular", "atomic")
    for name, child in (schema.get("properties") or {}).items():
        holds = rules.without_old(at) if uncorrelated else rules
        if name in _META and (root or schema.get("x-kubernetes-embedded-resource")):
            holds = replace(holds, in_metadata=True)
            if root:
                holds = replace(holds, no_default=f"in top-level {name}")
        descend(child, f"properties[{name}]", holds, scope and scope.below(child, f".{name}"))
    if schema.get("not") is not None:
        descend(schema["not"], "not", rules, None)
    for key in ("allOf", "oneOf", "anyOf"):
        for index, child in enumerate(schema.get(key) or ()):
            descend(child, f"{key}[{index}]", rules, None)
    for name, child in (schema.get("definitions") or {}).items():
        descend(child, f"definitions[{name}]", rules, None)
    if items is not None:
        holds = rules if schema.get(_LIST) == "map" else rules.without_old(at)
        for index, child in enumerate(items if isinstance(items, list) else [items]):
            step = f"items[{index}]" if isinstance(items, list) else "items"
            descend(child, step, holds, scope and scope.below(child, "[]"))
    found += _extensions(schema, at) + _map_list(schema, at) + _map_keys(schema, at)
    for index, rule in enumerate(schema.get(_RULES) or ()):
        found += _rule(rule, schema, f"{at}.{_RULES}[{index}]")
    if schema.get(_RULES) and not found and scope is not None:
        about_rules += _compiled(schema, at, rules, scope)
    return found, about_rules


_NOT_SUPPORTED = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")


def _forbidden(schema: Schema, at: str, rules: Rules) -> list[FieldError]:
    found = []
    kind = schema.get("type", "")
    if kind and kind not in TYPES:
        found.append(field_errors.not_supported(f"{at}.type", kind, TYPES))
    if schema.get("default") is not None and rules.no_default is not None:
        found.append(field_errors.forbidden(f"{at}.default", f"must not be set {rules.no_default}".strip()))
    for keyword in _NOT_SUPPORTED:
        if schema.get(keyword) or (keyword in ("additionalItems", "dependencies", "$ref") and keyword in schema):
            found.append(field_errors.forbidden(f"{at}.{keyword}", f"{keyword} is not supported"))
    if kind == "null":
        detail = "type cannot be set to null, use nullable as an alternative"
        found.append(field_errors.forbidden(f"{at}.type", detail))
    if isinstance(schema.get("items"), list) and schema["items"]:
        found.append(field_errors.forbidden(f"{at}.items", "items must be a schema object and not an array"))
    if rules.in_metadata and schema.get("x-kubernetes-embedded-resource"):
        where = f"{at}.x-kubernetes-embedded-resource"
        found.append(field_errors.forbidden(where, "must not be used inside of resource meta"))
    if schema.get("uniqueItems"):
        detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        found.append(field_errors.forbidden(f"{at}.uniqueItems", detail))
    return found


def _typed(schema: Schema, at: str, wanted: str, detail: str) -> list[FieldError]:
    kind = schema.get("type", "")
    if kind == wanted:
        return []
    return [invalid_whole(f"{at}.type", kind, detail) if kind else field_errors.required(f"{at}.type", detail)]


def _extensions(schema: Schema, at: str) -> list[FieldError]:
    found: list[FieldError] = []
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        where = f"{at}.x-kubernetes-preserve-unknown-fields"
        found.append(invalid_whole(where, False, "must be true or undefined"))
    map_type, list_type = schema.get(_MAP), schema.get(_LIST)
    if map_type is not None:
        found += _typed(schema, at, "object", f"must be object if {_MAP} is specified")
        if map_type not in ("atomic", "granular"):
            found.append(field_errors.not_supported(f"{at}.{_MAP}", map_type, ("atomic", "granular")))
    if list_type is None:
        return found
    if mistyped := _typed(schema, at, "array", f"must be array if {_LIST} is specified"):
        found += mistyped
    elif list_type == "set" and isinstance(schema.get("items"), Mapping):
        items = schema["items"]
        detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
        if items.get("type") == "array" and items.get(_LIST) not in (None, "atomic"):
            found.append(invalid_whole(f"{at}.items.{_LIST}", items.get(_LIST), detail))
        elif items.get("type") == "object" and items.get(_MAP) != "atomic":
            found.append(invalid_whole(f"{at}.items.{_MAP}", items.get(_MAP), detail))
    if list_type not in ("atomic", "set", "map"):
        found.append(field_errors.not_supported(f"{at}.{_LIST}", list_type, ("atomic", "set", "map")))
    return found


def _map_list(schema: Schema, at: str) -> list[FieldError]:
    found: list[FieldError] = []
    keys, list_type, items = schema.get(_KEYS) or (), schema.get(_LIST), schema.get("items")
    if keys and list_type != "map":
        detail = f"must be map if {_KEYS} is non-empty"
        where = f"{at}.{_LIST}"
        found.append(
            field_errors.required(where, detail) if list_type is None else invalid_whole(where, list_type, detail)
        )
    if list_type != "map":
        return found
    if not keys:
        found.append(field_errors.required(f"{at}.{_KEYS}", f"must not be empty if {_LIST} is map"))
    if items is None:
        found.append(field_errors.required(f"{at}.items", f"must have a schema if {_LIST} is map"))
    if not isinstance(items, Mapping):
        return found
    if items.get("type", "") != "object":
        detail = f"must be object if parent array's {_LIST} is map"
        return [*found, invalid_whole(f"{at}.items.type", items.get("type", ""), detail)]
    properties = items.get("properties") or {}
    for index, key in enumerate(keys):
        if key not in properties:
            found.append(invalid_whole(f"{at}.{_KEYS}", list(keys), "entries must all be names of item properties"))
        elif properties[key].get("type") in ("array", "object"):
            detail = f"must be a scalar type if parent array's {_LIST} is map"
            found.append(invalid_whole(f"{at}.items.properties[{key}].type", "object", detail))
        if key in keys[:index]:
            found.append(invalid_whole(f"{at}.{_KEYS}", list(keys), "must not contain duplicate entries"))
    return found


def _map_keys(schema: Schema, at: str) -> list[FieldError]:
    """Check that items of sets, and keys of map lists, are never absent."""
    items, list_type = schema.get("items"), schema.get(_LIST)
    if not isinstance(items, Mapping) or list_type not in ("set", "map"):
        return []
    found = []
    if items.get("nullable"):
        detail = f"cannot be nullable when {_LIST} is {list_type}"
        found.append(field_errors.forbidden(f"{at}.items.nullable", detail))
    if list_type == "set":
        return found
    for key in schema.get(_KEYS) or ():
        child = (items.get("properties") or {}).get(key)
        if child is None:
            continue
        where, named = f"{at}.items.properties[{key}]", f"this property is in {_KEYS}, so it"
        if key not in (items.get("required") or ()) and child.get("default") is None:
            found.append(
                field_errors.required(f"{where}.default", f"{named} must have a default or be a required property")
            )
        if child.get("nullable"):
            found.append(field_errors.forbidden(f"{where}.nullable", f"{named} cannot be nullable"))
    return found


def _rule(rule: Schema, schema: Schema, at: str) -> list[FieldError]:
    """Check the fields of a rule, apart from its expressions."""
    found = []
    source, message = rule.get("rule", "").strip(), rule.get("message", "")
    path = rule.get("fieldPath", "")
    if not source:
        found.append(field_errors.required(f"{at}.rule", "rule is not specified"))
    elif message and not message.strip():
        found.append(invalid_whole(f"{at}.message", message, "must be non-empty if specified"))
    elif _LINE_BREAKS.search(message.strip()):
        found.append(invalid_whole(f"{at}.message", message, "must not contain line breaks"))
    elif _LINE_BREAKS.search(source) and not message.strip():
        found.append(field_errors.required(f"{at}.message", "message must be specified if rule contains line breaks"))
    if rule.get("messageExpression") and not rule["messageExpression"].strip():
        found.append(
            field_errors.required(f"{at}.messageExpression", "messageExpression must be non-empty if specified")
        )
    if rule.get("reason") is not None and rule["reason"] not in REASONS:
        found.append(field_errors.not_supported(f"{at}.reason", rule["reason"], REASONS))
    if path and not path.strip():
        found.append(invalid_whole(f"{at}.fieldPath", path, "must be non-empty if specified"))
    if _LINE_BREAKS.search(path):
        found.append(invalid_whole(f"{at}.fieldPath", path, "must not contain line breaks"))
    if path:
        try:
            field_path(path, schema)
        except FieldPathError:
            found.append(invalid_whole(f"{at}.fieldPath", path, "must be a valid path"))
    return found


def _compiled(schema: Schema, at: str, rules: Rules, scope: Scope) -> list[FieldError]:
    """Compile the rules at a schema. Return the errors in their expressions and costs."""
    at = f"{at}.{_RULES}"
    try:
        kind = scope.kind()
    except _UndeclaredError:
        why = (
            "internal error: failed to construct type information for x-kubernetes-validations rules: unable to "
            "convert structural schema to CEL declarations"
        )
        return [FieldError(at, "InternalError", f"Internal error: {why}")]
    count = MAX_REQUEST // (min_json_size(kind) + 1) if scope.count is None else scope.count
    found: list[FieldError] = []
    for index, raw in enumerate(schema[_RULES]):
        rule = compile_rule(raw, kind, schema)
        found += _expression(rule, raw, f"{at}[{index}]", min(rule.cost * count, MAX_COST), rules, scope.costs)
    return found


def _expression(rule: Rule, raw: Schema, at: str, cost: int, rules: Rules, costs: Costs) -> list[FieldError]:
    found = []
    if not rules.free and cost > RULE_LIMIT:
        found.append(field_errors.forbidden(f"{at}.rule", exceeds_limit("estimated rule cost", cost, RULE_LIMIT)))
    costs.add(f"{at}.rule", cost)
    if rule.error:
        found.append(field_errors.invalid(f"{at}.rule", raw["rule"], rule.error))
    if rule.message_error:
        found.append(field_errors.invalid(f"{at}.messageExpression", raw["messageExpression"], rule.message_error))
    elif rule.message_program is not None:
        if not rules.free and rule.message_cost > RULE_LIMIT:
            detail = exceeds_limit("estimated messageExpression cost", rule.message_cost, RULE_LIMIT)
            found.append(field_errors.forbidden(f"{at}.messageExpression", detail))
        costs.add(f"{at}.messageExpression", rule.message_cost)
    if rule.uses_old:
        if rules.uncorrelated:
            detail = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {rules.uncorrelated}"
            found.append(invalid_whole(f"{at}.rule", raw["rule"], detail))
    elif raw.get("optionalOldSelf") is not None:
        detail = "may not be set if oldSelf is not used in rule"
        found.append(invalid_whole(f"{at}.optionalOldSelf", raw["optionalOldSelf"], detail))
    return found
