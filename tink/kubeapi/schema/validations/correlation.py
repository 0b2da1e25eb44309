"""What a value was before an update, and whether it is still the same.

Fields and map entries correlate by name, items of lists with x-kubernetes-list-type map by their keys, items of other
lists not at all. Two uses: the `oldSelf` of rules, and ratcheting: an update is not refused for errors of a value that
it leaves as it was. Nothing here runs before an error was found.

Source: k8s.io/apiserver, pkg/cel/common/equality.go and maplist.go; k8s.io/apiextensions-apiserver,
pkg/apiserver/validation/ratcheting.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tink.kubeapi.schema.field_errors import FieldError

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
