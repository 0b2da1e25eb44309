"""The CEL rules of a schema (x-kubernetes-validations): compiled once, and checked on every write.

- A `CompiledRule` is one compiled rule and the error that it reports.
- `Validations` holds the rules of a schema as a tree, which is walked beside the object. The tree contains only
  branches with rules. Rules are not run for null values; rules about `oldSelf` run only if there is an old value, or
  with `optionalOldSelf`.
- A `Correlation` finds the old value for a value in an update. Fields and map entries correlate by name, items of lists
  with x-kubernetes-list-type map by their keys, items of other lists not at all. Rules need it for `oldSelf`, and
  ratcheting needs it: an update is not rejected for errors in values that it leaves unchanged.

Sources: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel (compilation.go, validation.go) and
pkg/apiserver/validation/ratcheting.go; k8s.io/apiserver, pkg/cel/common (equality.go, maplist.go).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tink.errors import TinkedgeError
from tink.golang import bad_value
from tink.kubeapi import cel
from tink.kubeapi.cel import types
from tink.kubeapi.schema.declarations import FieldPathError, declare, embedded, escaped, field_path, part_type
from tink.kubeapi.schema.field_errors import MAX_ERRORS, FieldError, Path, invalid_whole, render, steps
from tink.kubeapi.schema.shapes import json_text
from tink.limits import shrink_to_fit

Schema = Mapping[str, Any]
Key = tuple[tuple[type, Any], ...]

_SCALARS = (str, bool, int, float)


def key_of(item: Any, keys: Sequence[str]) -> Key | None:
    """Return the key of an item of a map list, or None if a part of it is missing or not a scalar."""
    if not isinstance(item, dict):
        return None
    values = [item.get(key) for key in keys]
    return tuple((type(value), value) for value in values) if all(isinstance(v, _SCALARS) for v in values) else None


def by_key(items: Any, keys: Sequence[str]) -> dict[Key, Any]:
    """Return the items of a map list by key. The first of several items with one key counts."""
    found: dict[Key, Any] = {}
    if isinstance(items, list) and keys:
        for item in items:
            key = key_of(item, keys)
            if key is not None:
                found.setdefault(key, item)
    return found


def identical(a: Any, b: Any) -> bool:
    """Return True if two JSON values and their types are the same: 1 is neither 1.0 nor true."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


def map_keys(schema: Schema) -> Sequence[str]:
    """Return the keys of a map list's schema, or () for other schemas."""
    if schema.get("type") != "array" or schema.get("x-kubernetes-list-type") != "map":
        return ()
    return schema.get("x-kubernetes-list-map-keys") or ()


def child_schema(schema: Schema, name: str) -> Schema | None:
    """Return the schema of a field, or None."""
    found = (schema.get("properties") or {}).get(name)
    if found is None:
        found = schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else None


class Correlation:
    """An object before and after an update, with its schema. Results of comparisons are cached."""

    def __init__(self, new: Any, old: Any, schema: Schema) -> None:
        self._root = (new, old, schema)
        self._same: dict[int, bool] = {}
        self._keyed: dict[int, dict[Key, Any]] = {}

    def is_unchanged(self, steps: Sequence[str | int]) -> bool:
        """Return True if an update leaves the value at a path unchanged.

        If the value has no old value, the nearest value above it that has one decides.
        """
        if not steps or steps[0] in ("apiVersion", "kind"):
            # Both states are converted to the version of the request, so these two never differ.
            return not steps and self._unchanged(*self._root)
        node = self._root
        for step in steps:
            child = self._child(*node, step)
            if child is None:
                break
            node = child
        return self._unchanged(*node)

    def _child(self, new: Any, old: Any, schema: Schema, step: str | int) -> tuple[Any, Any, Schema] | None:
        if isinstance(step, str):
            if not isinstance(new, dict) or not isinstance(old, dict) or step not in new or step not in old:
                return None
            below = child_schema(schema, step)
            return None if below is None else (new[step], old[step], below)
        keys, items = map_keys(schema), schema.get("items")
        if not keys or not isinstance(items, Mapping) or not isinstance(new, list) or not isinstance(old, list):
            return None
        keyed = self._keyed.get(id(old))
        if keyed is None:
            keyed = self._keyed[id(old)] = by_key(old, keys)
        key = key_of(new[step], keys) if step < len(new) else None
        before = None if key is None else keyed.get(key)
        return None if before is None else (new[step], before, items)

    def _unchanged(self, new: Any, old: Any, schema: Schema) -> bool:
        if not isinstance(new, dict | list) or not isinstance(old, dict | list):
            return identical(new, old)
        if type(new) is not type(old) or len(new) != len(old):
            return False
        known = self._same.get(id(new))
        if known is None:
            known = self._same[id(new)] = self._compare(new, old, schema)
        return known

    def _compare(self, new: Any, old: Any, schema: Schema) -> bool:
        if isinstance(new, list) and not (schema.get("x-kubernetes-list-type") == "map" and new):
            return identical(new, old)
        for step in range(len(new)) if isinstance(new, list) else new:
            child = self._child(new, old, schema, step)
            if child is None or not self._unchanged(*child):
                return False
        return True


def ratcheted(errors: list[FieldError], new: Any, old: Any, openapi: Schema) -> list[FieldError]:
    """Return the errors of an update without those in unchanged values.

    `errors` are the results of the schema walk over `new`; `openapi` is the schema of the definition. Errors in
    metadata, apiVersion and kind stay. Repeated items are no error if the old object already has some.
    """
    if not errors or old is None:
        return errors
    correlation = Correlation(new, old, openapi)
    had_repeats: bool | None = None
    left = []
    for error in errors:
        steps = steps_of(error.field, new)
        if not steps or steps[0] in ("metadata", "apiVersion", "kind"):
            left.append(error)
        elif error.reason == "FieldValueDuplicate":
            if had_repeats is None:
                had_repeats = _repeats(old, openapi)
            if not had_repeats:
                left.append(error)
        elif not correlation.is_unchanged(steps):
            left.append(error)
    return left


def steps_of(path: str, obj: Any) -> list[str | int]:
    """Parse a path such as `spec.actions[0].name`. Names may contain dots, so the object decides. The last step may be
    missing.
    """
    found: list[str | int] = []
    rest = path
    while rest:
        if rest[0] == "[" and isinstance(obj, list):
            inner, bracket, rest = rest[1:].partition("]")
            if not bracket or not inner.isdecimal() or int(inner) >= len(obj):
                break
            found.append(int(inner))
            obj = obj[int(inner)]
            continue
        rest = rest.removeprefix(".")
        known = obj if isinstance(obj, dict) else ()
        names = [n for n in known if rest.startswith(n) and rest[len(n) : len(n) + 1] in ("", ".", "[")]
        if not names:
            if rest:
                found.append(rest)  # a missing required field
            break
        name = max(names, key=len)
        found.append(name)
        obj = obj[name]
        rest = rest[len(name) :]
    return found


def _repeats(value: Any, schema: Schema) -> bool:
    """Return True if a value has repeated items where its schema forbids them."""
    if isinstance(value, dict):
        below = ((item, child_schema(schema, name)) for name, item in value.items())
        return any(child is not None and _repeats(item, child) for item, child in below)
    if not isinstance(value, list):
        return False
    items, kind, keys = schema.get("items"), schema.get("x-kubernetes-list-type"), map_keys(schema)
    marks = None
    if kind == "map" and keys:
        marks = [_mark({key: item.get(key) for key in keys}) for item in value if isinstance(item, dict)]
    elif kind == "set":
        marks = [_mark(item) for item in value]
    if marks is not None and len(set(marks)) < len(marks):
        return True
    return isinstance(items, Mapping) and any(_repeats(item, items) for item in value)


def _mark(value: Any) -> bytes:
    """Return a hashable stand-in for a JSON value."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


# The rules

log = logging.getLogger(__name__)


MAX_MESSAGE = 5 * 1024
"""Maximum length in bytes of the result of a messageExpression."""

NO_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


class StopRulesError(TinkedgeError):
    """The budget is spent, so no further rules run."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A compiled rule. `error` and `message_error` are the compile errors of its expressions; the costs are estimates.

    `kind` is the type of the schema.
    """

    source: str
    kind: str
    message: str
    message_source: str
    reason: str
    field_path: str
    optional: bool
    program: cel.CompiledExpression | None = None
    message_program: cel.CompiledExpression | None = None
    uses_old: bool = False
    error: str = ""
    message_error: str = ""
    cost: int = 0
    message_cost: int = 0

    @property
    def name(self) -> str:
        """The name of the rule in errors."""
        return self.message.strip() if self.message else self.source.strip()

    def fault_message(self, error: cel.BudgetExceededError | cel.EvaluationError, budget: cel.CostBudget) -> str:
        """Return the message for a rule that could not be evaluated."""
        if isinstance(error, cel.BudgetExceededError):
            if not budget.remaining:
                return NO_BUDGET
            why = "no further validation rules will be run due to call cost exceeds limit for rule"
            return f"'{error}': {why}: {self.name}"
        text = str(error)
        if text.startswith("no such overload"):
            why = "call arguments did not match a supported operator, function or macro signature for rule"
            return f"'{text}': {why}: {self.name}"
        return f"{text} evaluating rule: {self.name}"

    def evaluation_error(self, at: str, why: str) -> FieldError:
        """Return the error for a value for which the rule could not be evaluated."""
        return invalid_whole(at or "<nil>", self.kind, why)

    def failure(self, value: Any, bindings: Mapping[str, Any], budget: cel.CostBudget, at: str) -> FieldError:
        """Return the error for a value that breaks the rule. Raises StopRulesError if its message costs too much."""
        path = at
        if self.field_path:
            path = f"{at}.{self.field_path}" if at else self.field_path
        path = path or "<nil>"
        detail = self._made_message(bindings, budget, path)
        detail = detail or (self.message.strip() if self.message else f"failed rule: {self.name}")
        shows_value = self.kind not in ("object", "array")
        match self.reason:
            case "FieldValueForbidden":
                return FieldError(path, self.reason, f"Forbidden: {detail}")
            case "FieldValueRequired":
                return FieldError(path, self.reason, f"Required value: {detail}")
            case "FieldValueDuplicate":
                shown = f": {bad_value(value)}" if shows_value else ""
                return FieldError(path, self.reason, f"Duplicate value{shown}")
        if shows_value:
            return invalid_whole(path, value, detail)
        return FieldError(path, "FieldValueInvalid", f"Invalid value: {detail}")

    def _made_message(self, bindings: Mapping[str, Any], budget: cel.CostBudget, path: str) -> str:
        """Evaluate messageExpression. Return "" if the result cannot be used."""
        if self.message_program is None:
            return ""
        try:
            made = self.message_program(bindings, budget)
        except cel.BudgetExceededError as error:
            why = "messageExpression evaluation failed due to running out of cost budget, no further validation rules"
            why += " will be run"
            if budget.remaining:
                why = "no further validation rules will be run due to call cost exceeds limit for messageExpression: "
                why += bad_value(self.message_source)
            raise StopRulesError(self.evaluation_error(path, why)) from error
        except cel.EvaluationError as error:
            log.debug("messageExpression evaluation failed due to: %s", error)
            return ""
        text = made.strip() if isinstance(made, str) else ""
        return "" if len(text.encode()) > MAX_MESSAGE or "\n" in text else text


def compile_rule(raw: Mapping[str, Any], kind: types.CelType, schema: Schema) -> CompiledRule:
    """Compile a rule at a schema with the CEL type `kind`. Compile errors are in the result."""
    source, message_source = raw.get("rule") or "", raw.get("messageExpression") or ""
    optional = bool(raw.get("optionalOldSelf"))
    parts: dict[str, Any] = {
        "source": source,
        "kind": schema.get("type") or "",
        "message": raw.get("message") or "",
        "message_source": message_source,
        "reason": raw.get("reason") or "",
        "field_path": "",
        "optional": optional,
    }
    if not source.strip():
        return CompiledRule(**parts)
    variables = {"self": kind, "oldSelf": types.optional_of(kind) if optional else kind}
    try:
        program = cel.compile_expression(source, variables)
    except cel.CelError as error:
        return CompiledRule(**parts, error=f"compilation failed: {error}")
    if program.type != types.BOOL:
        return CompiledRule(**parts, error="cel expression must evaluate to a bool")
    parts |= {"program": program, "uses_old": "oldSelf" in program.variables, "cost": program.estimate().max}
    if message_source:
        try:
            message = cel.compile_expression(message_source, variables)
        except cel.CelError as error:
            parts["message_error"] = f"messageExpression compilation failed: {error}"
        else:
            if message.type.shape == "string":
                parts |= {"message_program": message, "message_cost": message.estimate().max}
            else:
                parts["message_error"] = "messageExpression must evaluate to a string"
    if raw.get("fieldPath") and "message_error" not in parts:
        # The definition's check rejects wrong paths. Kubernetes names the value itself for an old one.
        with contextlib.suppress(FieldPathError):
            parts["field_path"] = field_path(raw["fieldPath"], schema).text
    return CompiledRule(**parts)


# The check of objects

MAX_CACHED = 2 << 20
"""Maximum size in bytes of the cached values for each version of a definition."""
MAX_TEXT = 8 << 10
"""Maximum length in bytes of a cached value."""
_ENTRY_BYTES = 200
"""Approximate size in bytes of a cache entry without its text."""

BLOCKING = frozenset(
    ("FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid")
)
"""Reasons of schema errors after which rules do not run, because the types that they rely on are wrong."""

_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


@dataclass(slots=True)
class RuleTree:
    """The rules at one schema and below it."""

    rules: tuple[CompiledRule, ...]
    properties: tuple[tuple[str, RuleTree], ...] = ()
    extra: RuleTree | None = None
    items: RuleTree | None = None
    keys: Sequence[str] = ()
    ignores_old: bool = True
    """True if no rule here or below reads the old value, so that the result for a value is always the same."""
    is_caching: bool = False
    """True if the node caches valid values. Useless where one child caches the same, and for whole objects, whose
    metadata always change.
    """
    valid: dict[str | bytes, int] = field(default_factory=dict)
    """The cache of valid values with the cost of their rules, because most values of an update are unchanged. The key
    is a string itself, or the JSON of other values.
    """


@dataclass(slots=True)
class _Run:
    """One check of one object."""

    validations: Validations
    budget: cel.CostBudget
    new: Any
    old: Any
    schema: Schema
    errors: list[FieldError] = field(default_factory=list)
    correlation: Correlation | None = None
    forgiven: int = 0
    """Number of rules broken by values that the update leaves unchanged."""

    def is_unchanged(self, path: Path) -> bool:
        """Return True if an update leaves the value at a path unchanged."""
        if self.old is None:
            return False
        if self.correlation is None:
            self.correlation = Correlation(self.new, self.old, self.schema)
        return self.correlation.is_unchanged([step[0] if isinstance(step, tuple) else step for step in steps(path)])


class Validations:
    """The rules of one version of a definition. The API server calls `check` for each write."""

    def __init__(self, root: RuleTree, schema: Schema) -> None:
        self._root, self._schema = root, schema
        self._caching: dict[int, RuleTree] = {}
        self._cached_bytes = 0

    def check(
        self, new: Any, old: Any = None, *, budget: int = cel.PER_OBJECT_LIMIT, ratchet: bool = True
    ) -> list[FieldError]:
        """Return the errors of an object. `old` is its state before an update.

        With `ratchet`, errors in values that an update leaves unchanged are left out.
        """
        run = _Run(self, cel.CostBudget(budget), new, old if ratchet else None, self._schema)
        try:
            _walk(self._root, new, old, None, run)
        except StopRulesError as stop:
            run.errors.append(stop.args[0])
        return run.errors

    def check_after(self, errors: list[FieldError], new: Any, old: Any = None) -> list[FieldError]:
        """Return the errors of an object for which the schema walk has returned `errors`.

        If one of these makes rules meaningless, the result only says that rules were not checked, as in Kubernetes.
        """
        if any(error.reason in BLOCKING for error in errors):
            return [invalid_whole("<nil>", None, _NOT_CHECKED)]
        return self.check(new, old)

    def cache(self, node: RuleTree, text: str | bytes, cost: int) -> None:
        """Cache a valid value of a node. All caches are cleared when they become too large together."""
        if isinstance(text, bytes):
            text = shrink_to_fit(text)
        self._cached_bytes += len(text) + _ENTRY_BYTES
        if self._cached_bytes > MAX_CACHED:
            for full in self._caching.values():
                full.valid.clear()
            self._cached_bytes = len(text) + _ENTRY_BYTES
        if not node.valid:
            self._caching[id(node)] = node
        node.valid[text] = cost


def _walk(node: RuleTree, value: Any, old: Any, path: Path, run: _Run) -> None:
    """Check a value and everything in it, unless the cache contains it."""
    text = (value if type(value) is str else json_text(value)) if node.is_caching else None
    if text is None or (text is not value and len(text) > MAX_TEXT):
        _check(node, value, old, path, run)
        return
    budget = run.budget
    cost = node.valid.get(text)
    if cost is not None and cost <= budget.remaining:
        budget.used += cost
        return
    used, wrong = budget.used, len(run.errors) + run.forgiven
    if text is value:
        _evaluate(node, value, old, path, run)
    else:
        _check(node, value, old, path, run)
    if len(run.errors) + run.forgiven == wrong and len(text) <= MAX_TEXT:
        run.validations.cache(node, text, budget.used - used)


def _check(node: RuleTree, value: Any, old: Any, path: Path, run: _Run) -> None:
    if node.rules:
        _evaluate(node, value, old, path, run)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else _NOTHING
        for name, child in node.properties:
            below = value.get(name)
            if below is not None:
                _walk(child, below, before.get(name), (path, name), run)
        if node.extra is not None:
            for name, below in value.items():
                if below is not None:
                    _walk(node.extra, below, before.get(name), (path, (name,)), run)
    elif node.items is not None and isinstance(value, list):
        keyed = by_key(old, node.keys) if node.keys else None
        for index, below in enumerate(value):
            if below is None:
                continue
            key = key_of(below, node.keys) if keyed else None
            _walk(node.items, below, keyed.get(key) if keyed and key else None, (path, index), run)


_NOTHING: dict[str, Any] = {}


def _evaluate(node: RuleTree, value: Any, old: Any, path: Path, run: _Run) -> None:
    """Run the rules of one node for one value."""
    bindings: dict[str, Any] = {"self": value}
    if old is not None:
        bindings["oldSelf"] = old
    for rule in node.rules:
        given = bindings
        if rule.uses_old:
            if rule.optional:
                given = {"self": value, "oldSelf": cel.ABSENT if old is None else cel.Optional(old)}
            elif old is None:
                continue
        try:
            if rule.program is None:
                _report(run, rule.evaluation_error(render(path), f"rule compile error: {rule.error}"))
            elif not rule.program(given, run.budget):
                if not rule.uses_old and run.is_unchanged(path):
                    run.forgiven += 1
                    continue
                # On creation messageExpression has no `oldSelf`, even if the rule has one.
                message_bindings = bindings if old is None else given
                _report(run, rule.failure(value, message_bindings, run.budget, render(path)))
        except cel.EvaluationError as error:
            _report(run, rule.evaluation_error(render(path), rule.fault_message(error, run.budget)))
        except cel.BudgetExceededError as error:
            raise StopRulesError(rule.evaluation_error(render(path), rule.fault_message(error, run.budget))) from error


def _report(run: _Run, error: FieldError) -> None:
    run.errors.append(error)
    if len(run.errors) >= MAX_ERRORS:
        raise StopRulesError(run.errors.pop())


def compile_rules(schema: Schema, *, root: bool = True) -> Validations | None:
    """Compile all rules of a definition's schema, or of a schema within it. Return None if it has none."""
    node = _node(schema, declare(schema, root=root))
    return None if node is None else Validations(node, schema)


def _node(schema: Schema, kind: types.CelType | None) -> RuleTree | None:
    rules: tuple[CompiledRule, ...] = ()
    listed = schema.get("x-kubernetes-validations") or ()
    if listed and kind is not None:
        rules = tuple(compile_rule(raw, kind, schema) for raw in listed)
    properties = []
    for name, child in (schema.get("properties") or {}).items():
        below = _node(child, part_type(kind, f".{name}") if escaped(name) else declare(child, root=embedded(child)))
        if below is not None:
            properties.append((name, below))
    extra, items = schema.get("additionalProperties"), schema.get("items")
    found = RuleTree(
        tuple(rule for rule in rules if rule.program is not None or rule.error),
        tuple(properties),
        _node(extra, part_type(kind, "{}")) if isinstance(extra, Mapping) else None,
        _node(items, part_type(kind, "[]")) if isinstance(items, Mapping) else None,
        map_keys(schema),
    )
    children = [child for _, child in properties] + [child for child in (found.extra, found.items) if child]
    found.ignores_old = not any(rule.uses_old for rule in rules) and all(child.ignores_old for child in children)
    found.is_caching = found.ignores_old and (bool(found.rules) or len(children) > 1)
    return found if found.rules or children else None
