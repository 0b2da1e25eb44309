"""The keywords of a schema: which may be there, what they may say, and the CEL rules among them.

Rules are only looked at where the schema at them and below is right; their estimated costs must fit a budget, each and
all together.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation (validation.go, cel_validation.go).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tink.kubeapi.cel import ListType, MapType, ObjectType, Type, min_json_size
from tink.kubeapi.schema import field_errors
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole
from tink.kubeapi.schema.validations import FieldPathError, Rule, compile_rule, declare, embedded, escaped, field_path

Schema = Mapping[str, Any]

RULE_LIMIT = 10_000_000
"""Highest estimated cost of one rule, for all values that it applies to in an object."""
TOTAL_LIMIT = 100_000_000
"""Highest estimated cost of all rules of a version."""
MAX_COST = (1 << 64) - 1
MAX_REQUEST = 3 << 20

TYPES = ("array", "boolean", "integer", "number", "object", "string")
REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_META = ("metadata", "kind", "apiVersion")
_LINE_BREAKS = re.compile(r"[\n\r]")
_RULES = "x-kubernetes-validations"
_LIST, _KEYS, _MAP = "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"


@dataclass(slots=True)
class Costs:
    """What the rules of a version cost together, and which of them cost most."""

    total: int = 0
    rules: list[tuple[int, str]] = field(default_factory=list)

    def add(self, at: str, cost: int) -> None:
        """Note the cost of an expression."""
        self.total = min(self.total + cost, MAX_COST)
        if cost >= TOTAL_LIMIT // 100:
            self.rules.append((cost, at))

    def errors(self, at: str) -> list[FieldError]:
        """Say which rules cost too much together."""
        if self.total <= TOTAL_LIMIT:
            return []
        why = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        dearest = sorted(self.rules, key=lambda rule: -rule[0])[:4]
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        return [field_errors.forbidden(where, why) for _, where in dearest] + [
            field_errors.forbidden(at, too_dear(what, self.total, TOTAL_LIMIT))
        ]


def too_dear(what: str, cost: int, limit: int) -> str:
    """Say by how much a cost exceeds its limit."""
    factor = cost / limit
    by = "more than 100x" if factor > 100 else f"{factor:.6f}x" if factor < 1.5 else f"{factor:.1f}x"
    return (
        f"{what} exceeds budget by factor of {by} (try simplifying the rule, or adding maxItems, maxProperties, and "
        "maxLength where arrays, maps, and strings are declared)"
    )


class _UndeclaredError(Exception):
    """Rules cannot see values of the schema."""


@dataclass(slots=True)
class Scope:
    """What rules at a schema see: its CEL type, made when it is needed; and how many such values an object can have.

    `count` is None where nothing limits it.
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
        """Give the scope of a whole schema."""
        return cls(schema, 1, Costs(), ruled=bool(schema.get(_RULES)))

    def below(self, schema: Schema, name: str) -> Scope:
        """Give the scope of a field, of items or of map values; `name` says which."""
        count = None
        limit = _most(self.schema)
        if self.count is not None and limit is not None:
            count = min(self.count * limit, MAX_COST)
        return Scope(schema, count, self.costs, self, name, self.ruled or bool(schema.get(_RULES)))

    def kind(self) -> Type:
        """Give the CEL type. Raises _UndeclaredError."""
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
    """Give how many values below it a schema allows; None when it does not limit them."""
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
    """What holds at a place of a schema.

    `no_default` says why defaults are forbidden. `uncorrelated` is the path of the schema whose parts cannot be found
    again after an update. `free` lets rules cost what they want, because they were there before.
    """

    no_default: str | None = None
    in_metadata: bool = False
    uncorrelated: str = ""
    free: bool = False

    def without_old(self, at: str) -> Rules:
        """Forbid `oldSelf` from here on."""
        return self if self.uncorrelated else replace(self, uncorrelated=at)


def check(
    schema: Schema, at: str, rules: Rules, scope: Scope | None, *, root: bool = True
) -> tuple[list[FieldError], list[FieldError]]:
    """Find what is wrong with keywords, and what with CEL rules, at a schema and below."""
    found: list[FieldError] = []
    about_rules: list[FieldError] = []

    def descend(child: Any, step: str, holds: Rules, below: Scope | None) -> None:
        mine, theirs = check(child, f"{at}.{step}", holds, below, root=False)
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
    """Check that items and keys of sets and map lists are always there."""
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
    """Check what a rule consists of, its expressions apart."""
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
    """Compile the rules at a schema and find what is wrong with their expressions and costs."""
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
        found.append(field_errors.forbidden(f"{at}.rule", too_dear("estimated rule cost", cost, RULE_LIMIT)))
    costs.add(f"{at}.rule", cost)
    if rule.error:
        found.append(field_errors.invalid(f"{at}.rule", raw["rule"], rule.error))
    if rule.message_error:
        found.append(field_errors.invalid(f"{at}.messageExpression", raw["messageExpression"], rule.message_error))
    elif rule.message_program is not None:
        if not rules.free and rule.message_cost > RULE_LIMIT:
            detail = too_dear("estimated messageExpression cost", rule.message_cost, RULE_LIMIT)
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
