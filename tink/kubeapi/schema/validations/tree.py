"""The rules of a schema as a tree, walked beside the object that they check.

Only branches that have rules are in the tree, and only the rule-bearing fields of an object are looked at. Rules of
null values do not run; rules about `oldSelf` run only where there is an old value (or with `optionalOldSelf`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tink.kubeapi.cel import (
    ABSENT,
    Budget,
    BudgetExceededError,
    EvaluationError,
    ListType,
    MapType,
    ObjectType,
    Optional,
    Type,
)
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole
from tink.kubeapi.schema.validations.correlation import Correlation, Step, by_key, key_of, map_keys
from tink.kubeapi.schema.validations.declarations import declare, embedded, escaped
from tink.kubeapi.schema.validations.rule import OBJECT_BUDGET, Rule, StopRulesError, compile_rule

Schema = Mapping[str, Any]
Path = tuple["Path", Step, bool] | None
"""Where a value is: above it, its step, and whether the step is the key of a map."""

MAX_ERRORS = 100
"""After so many failed rules the rest is not reported: an answer should not be larger than what caused it."""

MAX_KEPT = 2 << 20
"""So many bytes of values that keep their rules are remembered for each version of a definition."""
MAX_TEXT = 8 << 10
"""Longest value that is remembered, in bytes."""
_ENTRY = 200
"""What remembering costs apart from the text, in bytes, about."""

BLOCKING = frozenset(
    (
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    )
)
"""Reasons of schema errors after which rules cannot be run: the object is not of the types that they rely on."""

_NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation"
)


@dataclass(slots=True)
class Node:
    """The rules at one schema and below it."""

    rules: tuple[Rule, ...]
    properties: tuple[tuple[str, Node], ...] = ()
    extra: Node | None = None
    items: Node | None = None
    keys: Sequence[str] = ()
    timeless: bool = True
    """No rule here or below asks for the old value, so a value that keeps them always does."""
    remembers: bool = False
    """Whether it is worth while to remember values: not where one node below does it as well, as for whole objects,
    whose metadata are always new."""
    kept: dict[str | bytes, int] = field(default_factory=dict)
    """Values that were found to keep the rules, with what that cost: most of an update is as it was. A text is its own
    key, other values are by their JSON."""


class _Kept:
    """The nodes that remember values. They forget everything when it becomes much."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._size = 0

    def note(self, node: Node, text: str | bytes, cost: int) -> None:
        """Note that a value keeps the rules of a node."""
        self._size += len(text) + _ENTRY
        if self._size > MAX_KEPT:
            for full in self._nodes.values():
                full.kept.clear()
            self._size = len(text) + _ENTRY
        if not node.kept:
            self._nodes[id(node)] = node
        node.kept[text] = cost


@dataclass(slots=True)
class _Run:
    """One check of one object."""

    known: _Kept
    budget: Budget
    new: Any
    old: Any
    schema: Schema
    errors: list[FieldError] = field(default_factory=list)
    correlation: Correlation | None = None
    spared: int = 0
    """How many rules were broken by values that the update leaves as they were."""

    def kept(self, path: Path) -> bool:
        """Whether an update leaves the value at a path as it was."""
        if self.old is None:
            return False
        if self.correlation is None:
            self.correlation = Correlation(self.new, self.old, self.schema)
        return self.correlation.kept([step for step, _ in steps(path)])


class Validations:
    """The rules of a definition's version. `check` is what `verbs` calls for each write."""

    def __init__(self, root: Node, schema: Schema) -> None:
        self._root, self._schema = root, schema
        self._known = _Kept()

    def check(
        self, new: Any, old: Any = None, *, budget: int = OBJECT_BUDGET, ratchet: bool = True
    ) -> list[FieldError]:
        """Find the rules that an object breaks; `old` is its state before an update.

        With `ratchet`, errors of values that an update leaves as they were are left out.
        """
        run = _Run(self._known, Budget(budget), new, old if ratchet else None, self._schema)
        try:
            _walk(self._root, new, old, None, run)
        except StopRulesError as stop:
            run.errors.append(stop.args[0])
        return run.errors

    def check_after(self, errors: list[FieldError], new: Any, old: Any = None) -> list[FieldError]:
        """Find the rules that an object breaks that the schema has found `errors` in.

        After errors that make rules meaningless it only says so, as Kubernetes does.
        """
        if any(error.reason in BLOCKING for error in errors):
            return [invalid_whole("<nil>", None, _NOT_CHECKED)]
        return self.check(new, old)


def steps(path: Path) -> Iterator[tuple[Step, bool]]:
    """Give the steps of a path from the root."""
    found = []
    while path is not None:
        path, step, key = path
        found.append((step, key))
    return reversed(found)


def render(path: Path) -> str:
    """Write a path as Kubernetes does: `spec.ports[0].name`, `spec.labels[a.b]`."""
    text = ""
    for step, key in steps(path):
        if key:
            text += f"[{step}]"
        else:
            text += f".{step}" if text else f"{step}"
    return text


def _walk(node: Node, value: Any, old: Any, path: Path, run: _Run) -> None:
    """Check a value and all that is in it, unless it is known to keep its rules."""
    text = (value if type(value) is str else _text(value)) if node.remembers else None
    if text is None:
        _check(node, value, old, path, run)
        return
    budget = run.budget
    cost = node.kept.get(text)
    if cost is not None and cost <= budget.remaining:
        budget.used += cost
        return
    used, wrong = budget.used, len(run.errors) + run.spared
    if text is value:
        _evaluate(node, value, old, path, run)
    else:
        _check(node, value, old, path, run)
    if len(run.errors) + run.spared == wrong and len(text) <= MAX_TEXT:
        run.known.note(node, text, budget.used - used)


def _text(value: Any) -> bytes | None:
    """Give a value as text; None when it is too long to be remembered."""
    try:
        text = orjson.dumps(value)
    except orjson.JSONEncodeError:  # integers of more than 64 bits, and text that is not Unicode
        return None
    return text if len(text) <= MAX_TEXT else None


def _check(node: Node, value: Any, old: Any, path: Path, run: _Run) -> None:
    if node.rules:
        _evaluate(node, value, old, path, run)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else _NOTHING
        for name, child in node.properties:
            below = value.get(name)
            if below is not None:
                _walk(child, below, before.get(name), (path, name, False), run)
        if node.extra is not None:
            for name, below in value.items():
                if below is not None:
                    _walk(node.extra, below, before.get(name), (path, name, True), run)
    elif node.items is not None and isinstance(value, list):
        keyed = by_key(old, node.keys) if node.keys else None
        for index, below in enumerate(value):
            if below is None:
                continue
            key = key_of(below, node.keys) if keyed else None
            _walk(node.items, below, keyed.get(key) if keyed and key else None, (path, index, True), run)


_NOTHING: dict[str, Any] = {}


def _evaluate(node: Node, value: Any, old: Any, path: Path, run: _Run) -> None:
    """Run the rules of one node over one value."""
    bindings: dict[str, Any] = {"self": value}
    if old is not None:
        bindings["oldSelf"] = old
    for rule in node.rules:
        given = bindings
        if rule.uses_old:
            if rule.optional:
                given = {"self": value, "oldSelf": ABSENT if old is None else Optional(old)}
            elif old is None:
                continue
        try:
            if rule.program is None:
                _report(run, rule.wrong(render(path), f"rule compile error: {rule.error}"))
            elif not rule.program(given, run.budget):
                if not rule.uses_old and run.kept(path):
                    run.spared += 1
                    continue
                # On creation the expression of the message has no `oldSelf` at all, whatever the rule has.
                told = bindings if old is None else given
                _report(run, rule.failure(value, told, run.budget, render(path)))
        except EvaluationError as error:
            _report(run, rule.wrong(render(path), rule.fault(error, run.budget)))
        except BudgetExceededError as error:
            raise StopRulesError(rule.wrong(render(path), rule.fault(error, run.budget))) from error


def _report(run: _Run, error: FieldError) -> None:
    run.errors.append(error)
    if len(run.errors) >= MAX_ERRORS:
        raise StopRulesError(run.errors.pop())


def compile_rules(openapi: Schema) -> Validations | None:
    """Compile all rules of a definition's schema; None when it has none."""
    root = _node(openapi, declare(openapi, root=True))
    return None if root is None else Validations(root, openapi)


def compile_at(schema: Schema, *, root: bool) -> Validations | None:
    """Compile the rules of a schema within a definition's; None when it has none."""
    node = _node(schema, declare(schema, root=root))
    return None if node is None else Validations(node, schema)


def _node(schema: Schema, kind: Type | None) -> Node | None:
    rules: tuple[Rule, ...] = ()
    listed = schema.get("x-kubernetes-validations") or ()
    if listed and kind is not None:
        rules = tuple(compile_rule(raw, kind, schema) for raw in listed)
    properties = []
    for name, child in (schema.get("properties") or {}).items():
        below = _node(child, _field(kind, name, child))
        if below is not None:
            properties.append((name, below))
    extra, items = schema.get("additionalProperties"), schema.get("items")
    found = Node(
        tuple(rule for rule in rules if rule.program is not None or rule.error),
        tuple(properties),
        _node(extra, kind.value if isinstance(kind, MapType) else None) if isinstance(extra, Mapping) else None,
        _node(items, kind.element if isinstance(kind, ListType) else None) if isinstance(items, Mapping) else None,
        map_keys(schema),
    )
    children = [child for _, child in properties] + [child for child in (found.extra, found.items) if child]
    found.timeless = not any(rule.uses_old for rule in rules) and all(child.timeless for child in children)
    found.remembers = found.timeless and (bool(found.rules) or len(children) > 1)
    return found if found.rules or children else None


def _field(kind: Type | None, name: str, schema: Schema) -> Type | None:
    """Give the type of a field: as its object has it, or from its schema when no rule above can name it."""
    known = escaped(name)
    if known is None:
        return declare(schema, root=embedded(schema))
    found = kind.fields.get(known) if isinstance(kind, ObjectType) else None
    return None if found is None else found.type
