"""What a value was before an update, and whether it is still the same.

Fields and map entries correlate by name, items of lists with x-kubernetes-list-type map by their keys, items of other
lists not at all. Two uses: the `oldSelf` of rules, and ratcheting: an update is not refused for errors of a value that
it leaves as it was. Nothing here runs before an error was found.

Source: k8s.io/apiserver, pkg/cel/common/equality.go and maplist.go; k8s.io/apiextensions-apiserver,
pkg/apiserver/validation/ratcheting.go.


----
One rule of x-kubernetes-validations: compiled, and what it says when an object breaks it.

Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel (compilation.go, validation.go).


----
The rules of a schema as a tree, walked beside the object that they check.

Only branches that have rules are in the tree, and only the rule-bearing fields of an object are looked at. Rules of
null values do not run; rules about `oldSelf` run only where there is an old value (or with `optionalOldSelf`).
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from tink.golang import bad_value
from tink.kubeapi.cel import (
    ABSENT,
    BOOL,
    Budget,
    BudgetExceededError,
    CelError,
    EvaluationError,
    ListType,
    MapType,
    ObjectType,
    Optional,
    Program,
    Type,
    compile_expression,
    optional_of,
)
from tink.kubeapi.schema.declarations import FieldPathError, declare, embedded, escaped, field_path
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole

Schema = Mapping[str, Any]
Step = str | int
Key = tuple[tuple[type, Any], ...]

_SCALARS = (str, bool, int, float)


def key_of(item: Any, keys: Sequence[str]) -> Key | None:
    """Give what identifies an item of a map list; None when a key is missing or no scalar."""
    if not isinstance(item, dict):
        return None
    found = []
    for key in keys:
        value = item.get(key)
        if not isinstance(value, _SCALARS):
            return None
        found.append((type(value), value))
    return tuple(found)


def by_key(items: Any, keys: Sequence[str]) -> dict[Key, Any]:
    """Give the items of a map list by what identifies them; of equal ones the first."""
    found: dict[Key, Any] = {}
    if isinstance(items, list) and keys:
        for item in items:
            key = key_of(item, keys)
            if key is not None:
                found.setdefault(key, item)
    return found


def identical(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same, with their types: 1 is neither 1.0 nor true."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(value, b[key]) for key, value in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(a == b)


def map_keys(schema: Schema) -> Sequence[str]:
    """Give the keys of a map list's schema; nothing for other schemas."""
    if schema.get("type") != "array" or schema.get("x-kubernetes-list-type") != "map":
        return ()
    return schema.get("x-kubernetes-list-map-keys") or ()


def child_schema(schema: Schema, name: str) -> Schema | None:
    """Give the schema of a field; None when there is none."""
    found = (schema.get("properties") or {}).get(name)
    if found is None:
        found = schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else None


class Correlation:
    """An object before and after an update, and its schema. Remembers what it has compared."""

    def __init__(self, new: Any, old: Any, schema: Schema) -> None:
        self._root = (new, old, schema)
        self._same: dict[int, bool] = {}
        self._keyed: dict[int, dict[Key, Any]] = {}

    def kept(self, steps: Sequence[Step]) -> bool:
        """Whether the value at a path is as it was: it, or what is nearest above it that has an old value."""
        if not steps or steps[0] in ("apiVersion", "kind"):
            # Both states are converted to the version of the request, so these two cannot show a change.
            return not steps and self._unchanged(*self._root)
        node = self._root
        for step in steps:
            child = self._child(*node, step)
            if child is None:
                break
            node = child
        return self._unchanged(*node)

    def _child(self, new: Any, old: Any, schema: Schema, step: Step) -> tuple[Any, Any, Schema] | None:
        if isinstance(step, int):
            return self._item(new, old, schema, step)
        if not isinstance(new, dict) or not isinstance(old, dict) or step not in new or step not in old:
            return None
        below = child_schema(schema, step)
        return None if below is None else (new[step], old[step], below)

    def _item(self, new: Any, old: Any, schema: Schema, index: int) -> tuple[Any, Any, Schema] | None:
        keys = map_keys(schema)
        items = schema.get("items")
        if not keys or not isinstance(items, Mapping) or not isinstance(new, list) or not isinstance(old, list):
            return None
        if index >= len(new):
            return None
        keyed = self._keyed.get(id(old))
        if keyed is None:
            keyed = self._keyed[id(old)] = by_key(old, keys)
        key = key_of(new[index], keys)
        before = None if key is None else keyed.get(key)
        return None if before is None else (new[index], before, items)

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
    """Take away the errors of an update that lie in values that are as they were.

    `errors` are what the schema walk found in `new`; `openapi` is the schema of the definition. Errors of metadata,
    apiVersion and kind stay. Items that stand twice are no error where the old state already had some.
    """
    if not errors or old is None:
        return errors
    correlation = Correlation(new, old, openapi)
    had: bool | None = None
    left = []
    for error in errors:
        steps = steps_of(error.field, new)
        if not steps or steps[0] in ("metadata", "apiVersion", "kind"):
            left.append(error)
        elif error.reason == "FieldValueDuplicate":
            if had is None:
                had = _repeats(old, openapi)
            if not had:
                left.append(error)
        elif not correlation.kept(steps):
            left.append(error)
    return left


def steps_of(path: str, obj: Any) -> list[Step]:
    """Read a path back: `spec.actions[0].name`. Names may contain dots, so the object decides; the last may miss."""
    steps: list[Step] = []
    rest = path
    while rest:
        if rest[0] == "[" and isinstance(obj, list):
            inner, bracket, rest = rest[1:].partition("]")
            if not bracket or not inner.isdecimal() or int(inner) >= len(obj):
                break
            steps.append(int(inner))
            obj = obj[int(inner)]
            continue
        rest = rest.removeprefix(".")
        names = [name for name in obj if _begins(rest, name)] if isinstance(obj, dict) else []
        if not names:
            if rest:
                steps.append(rest)  # a field that is required and missing
            break
        name = max(names, key=len)
        steps.append(name)
        obj = obj[name]
        rest = rest[len(name) :]
    return steps


def _begins(path: str, name: str) -> bool:
    return path.startswith(name) and path[len(name) : len(name) + 1] in ("", ".", "[")


def _repeats(value: Any, schema: Schema) -> bool:
    """Whether a value has items that stand twice where its schema forbids it."""
    if isinstance(value, dict):
        return any(
            _repeats(item, below) for name, item in value.items() if (below := child_schema(schema, name)) is not None
        )
    if not isinstance(value, list):
        return False
    items = schema.get("items")
    kind = schema.get("x-kubernetes-list-type")
    keys = map_keys(schema)
    if kind == "map" and keys:
        found = [_mark({key: item.get(key) for key in keys}) for item in value if isinstance(item, dict)]
        if len(set(found)) < len(found):
            return True
    elif kind == "set" and len({_mark(item) for item in value}) < len(value):
        return True
    return isinstance(items, Mapping) and any(_repeats(item, items) for item in value)


def _mark(value: Any) -> Any:
    """Give a hashable stand-in of a JSON value."""
    if isinstance(value, dict):
        return (dict, frozenset((key, _mark(item)) for key, item in value.items()))
    if isinstance(value, list):
        return (list, tuple(map(_mark, value)))
    return (type(value), value)


log = logging.getLogger(__name__)


OBJECT_BUDGET = 10_000_000
"""What all rules together may cost for one object, in CEL's units of cost."""
MAX_MESSAGE = 5 * 1024
"""Longest message that an expression may make, in bytes."""

_LINE_BREAK = re.compile(r"[\n]+")
NO_BUDGET = "validation failed due to running out of cost budget, no further validation rules will be run"


class StopRulesError(Exception):
    """The budget is gone: no further rule is to be run."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, compiled. `error` or `message_error` say why one of its expressions could not be; costs are estimates.

    `kind` is the type of the schema; `nested` means that failures do not repeat the value.
    """

    source: str
    kind: str
    message: str
    message_source: str
    reason: str
    field_path: str
    optional: bool
    program: Program | None = None
    message_program: Program | None = None
    uses_old: bool = False
    error: str = ""
    message_error: str = ""
    cost: int = 0
    message_cost: int = 0

    @property
    def nested(self) -> bool:
        """Whether failures do not repeat the value."""
        return self.kind in ("object", "array")

    @property
    def called(self) -> str:
        """How errors name the rule."""
        return self.message.strip() if self.message else self.source.strip()

    def fault(self, error: BudgetExceededError | EvaluationError, budget: Budget) -> str:
        """Say why the rule could not be evaluated."""
        if isinstance(error, BudgetExceededError):
            if not budget.remaining:
                return NO_BUDGET
            why = "no further validation rules will be run due to call cost exceeds limit for rule"
            return f"'{error}': {why}: {self.called}"
        text = str(error)
        if text.startswith("no such overload"):
            why = "call arguments did not match a supported operator, function or macro signature for rule"
            return f"'{text}': {why}: {self.called}"
        return f"{text} evaluating rule: {self.called}"

    def wrong(self, at: str, why: str) -> FieldError:
        """Report a value that a rule cannot be evaluated for."""
        return invalid_whole(at or "<nil>", self.kind, why)

    def failure(self, value: Any, bindings: Mapping[str, Any], budget: Budget, at: str) -> FieldError:
        """Say that a value breaks the rule. Raises StopRulesError when making the message costs too much."""
        path = at
        if self.field_path:
            path = f"{at}.{self.field_path}" if at else self.field_path
        path = path or "<nil>"
        detail = self._made_message(bindings, budget, path)
        if not detail:
            detail = self.message.strip() if self.message else f"failed rule: {self.called}"
        match self.reason:
            case "FieldValueForbidden":
                return FieldError(path, self.reason, f"Forbidden: {detail}")
            case "FieldValueRequired":
                return FieldError(path, self.reason, f"Required value: {detail}")
            case "FieldValueDuplicate":
                return FieldError(
                    path, self.reason, "Duplicate value" + ("" if self.nested else f": {bad_value(value)}")
                )
        return invalid_whole(path, value, detail) if not self.nested else _omitted(path, detail)

    def _made_message(self, bindings: Mapping[str, Any], budget: Budget, path: str) -> str:
        """Evaluate messageExpression; "" when it gives nothing that can be used."""
        if self.message_program is None:
            return ""
        try:
            made = self.message_program(bindings, budget)
        except BudgetExceededError as error:
            why = (
                "messageExpression evaluation failed due to running out of cost budget, no further validation rules "
                "will be run"
                if not budget.remaining
                else "no further validation rules will be run due to call cost exceeds limit for messageExpression: "
                + bad_value(self.message_source)
            )
            raise StopRulesError(self.wrong(path, why)) from error
        except EvaluationError as error:
            log.debug("messageExpression evaluation failed due to: %s", error)
            return ""
        text = made.strip() if isinstance(made, str) else ""
        return "" if len(text.encode()) > MAX_MESSAGE or _LINE_BREAK.search(text) else text


def _omitted(path: str, detail: str) -> FieldError:
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {detail}")


def compile_rule(raw: Mapping[str, Any], kind: Type, schema: Schema) -> Rule:
    """Compile a rule at a schema whose CEL type is `kind`. Errors stand in the rule."""
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
        return Rule(**parts)
    variables = {"self": kind, "oldSelf": optional_of(kind) if optional else kind}
    try:
        program = compile_expression(source, variables)
    except CelError as error:
        return Rule(**parts, error=f"compilation failed: {error}")
    if program.type is not BOOL and program.type != BOOL:
        return Rule(**parts, error="cel expression must evaluate to a bool")
    parts |= {"program": program, "uses_old": program.uses("oldSelf"), "cost": program.estimate().max}
    if message_source:
        parts |= _compile_message(message_source, variables)
    if raw.get("fieldPath") and "message_error" not in parts:
        # A wrong path was refused when the definition was written; Kubernetes then names the value itself.
        with contextlib.suppress(FieldPathError):
            parts["field_path"] = field_path(raw["fieldPath"], schema).text
    return Rule(**parts)


def _compile_message(source: str, variables: Mapping[str, Type]) -> dict[str, Any]:
    try:
        program = compile_expression(source, variables)
    except CelError as error:
        return {"message_error": f"messageExpression compilation failed: {error}"}
    if program.type.shape != "string":
        return {"message_error": "messageExpression must evaluate to a string"}
    return {"message_program": program, "message_cost": program.estimate().max}


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
