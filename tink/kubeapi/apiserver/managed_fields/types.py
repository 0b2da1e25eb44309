"""What a schema says about merging: which values are replaced as a whole, and how the items of a list are told apart.

`openapi` makes a tree of types out of the schema of whole objects. Each type can do with its values what managing
fields needs: say which fields a value has, how two values differ, merge one into the other, take fields away, find what
is wrong. The rules are those of sigs.k8s.io/structured-merge-diff (packages typed and schema):

- scalars, lists that are not said to be sets or maps, and maps of type `atomic` are leaves, replaced as a whole;
- structs, other maps, sets and lists of type `map` (`lists`) are merged field by field and item by item;
- where the schema says nothing (fields that are preserved, int-or-string) the value decides: maps are merged, lists and
  scalars are leaves.

Values that do not fit their type (a status from the time of an older schema) count as leaves; `check` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tink import golang
from tink.kubeapi.apiserver.managed_fields.fields import Fields, is_member

Difference = tuple[Fields | None, Fields | None]
"""What was added or has another value, and what is gone; None when nothing is."""

MAX_ERRORS = 100
"""After so many errors the rest is not looked for."""


class ItemError(ValueError):
    """An item of a list cannot be told apart from others. The message is Kubernetes'."""


_FITTING: Mapping[str, frozenset[type]] = {
    "numeric": frozenset({int, float}),
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "any scalar": frozenset({int, float, str, bool}),
}


class Type:
    """What can be done with the values of a type; here, of one that is replaced as a whole.

    Sets of fields are what is below the element that leads to the value.
    """

    settles = False
    """Whether `settle` can change anything."""
    loose = False
    """Whether a value may hold 1 where it held true, which Python takes for the same."""

    def everything(self, _value: Any) -> Fields:
        """Give all that appears when the value appears."""
        return {}

    def applied(self, _value: Any) -> Fields | None:
        """Give what somebody who applies the value owns: the leaves, items and keys of maps. None for nothing."""
        return {}

    def compare(self, _old: Any, _new: Any) -> Difference:
        """Give what is different, when something is. Raises ItemError."""
        return {}, None

    def merge(self, _old: Any, new: Any) -> Any:
        """Give the old value with what the new one says. Raises ItemError."""
        return new

    def without(self, value: Any, _fields: Fields) -> Any:
        """Give the value without these fields; None when nothing is left."""
        return value

    def named(self, fields: Fields) -> Fields:
        """Add the fields of structs that lead to what is in the set."""
        return fields

    def settle(self, fields: Fields) -> Fields:
        """Bring a set of the time before the value became atomic up to date: the value as a whole is owned."""
        return fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find where the value does not fit the type."""


class Scalar(Type):
    """A number, text or truth value; `kind` says which."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fitting = _FITTING[kind]

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find a value of another kind; null is none."""
        if value is not None and type(value) not in self.fitting:
            report(found, path, f"expected {self.kind}, got {golang.json_kind(value)}")


class Atomic(Type):
    """A list or a map that is replaced as a whole; `inner` checks what is in it."""

    settles = True

    def __init__(self, inner: Type) -> None:
        self.inner = inner
        self.loose = inner.loose

    def without(self, _value: Any, _fields: Fields) -> Any:
        """Give nothing: what is owned is all of it."""
        return None

    def settle(self, _fields: Fields) -> Fields:
        """Give the value as a whole."""
        return {}

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find what is wrong inside."""
        self.inner.check(value, path, found)


class Items(Type):
    """A list that is replaced as a whole, inside an `Atomic`: only checks."""

    def __init__(self, element: Type) -> None:
        self.element = element
        self.loose = element.loose

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find what is wrong with items, by their places."""
        if value is None:
            return
        if not isinstance(value, list):
            report(found, path, f"expected list, got {golang.json_kind(value)}")
            return
        for index, item in enumerate(value):
            self.element.check(item, f"{path}[{index}]", found)


class Map(Type):
    """A struct, with its `fields`, or a map whose values are of type `element`, or both.

    `element` is None when other keys are not allowed; values under such keys are passed over, but `check` finds them.
    """

    def __init__(self, fields: Mapping[str, Type], element: Type | None) -> None:
        self.fields = fields
        self.element = element
        inner = [*fields.values(), *([element] if element is not None else [])]
        self.settles = any(kind.settles for kind in inner)
        self.loose = any(kind.loose for kind in inner)

    def only(self, left_out: Sequence[str]) -> Map:
        """Give the type without some fields: values under these keys are passed over."""
        return Map({name: kind for name, kind in self.fields.items() if name not in left_out}, self.element)

    def at(self, element: str) -> Type | None:
        """Give the type of what a path element leads to."""
        return self.fields.get(element[2:], self.element) if element.startswith("f:") else self.element

    def _inside(self, value: Mapping[str, Any]) -> Fields:
        kinds = ((name, self.fields.get(name, self.element)) for name in sorted(value))
        return {"f:" + name: kind.everything(value[name]) for name, kind in kinds if kind is not None}

    def everything(self, value: Any) -> Fields:
        """Give what is in the map, and the map itself unless it is empty."""
        if not value or not isinstance(value, dict):
            return {}
        found = self._inside(value)
        return {".": {}, **found} if found else {}

    def applied(self, value: Any) -> Fields | None:
        """Give what is in the map; keys of maps are owned themselves, fields of structs are not."""
        if not value or not isinstance(value, dict):
            return None
        found: Fields = {}
        for name in sorted(value):
            item = value[name]
            kind = self.fields.get(name, self.element)
            if kind is None:
                continue
            below = kind.applied(item)
            if item is None or item == {} or name not in self.fields:
                below = below if below is not None and is_member(below) else {".": {}, **below} if below else {}
            if below is not None:
                found["f:" + name] = below
        return found or None

    def compare(self, old: Any, new: Any) -> Difference:
        """Compare field by field."""
        if not old and not new:
            return {}, None  # null and empty are different
        old, new = old or {}, new or {}
        if not isinstance(old, dict) or not isinstance(new, dict):
            return {}, None
        changed: Fields = {}
        removed: Fields = {}
        for name, value in new.items():
            before = old.get(name, ABSENT)
            kind = self.fields.get(name, self.element)
            if kind is None or (before == value and (not self.loose or same(before, value))):
                continue
            more, less = (kind.everything(value), None) if before is ABSENT else kind.compare(before, value)
            if more is not None:
                changed["f:" + name] = more
            if less is not None:
                removed["f:" + name] = less
        for name in old:
            kind = self.fields.get(name, self.element)
            if name not in new and kind is not None:
                removed["f:" + name] = kind.everything(old[name])
        return in_order(changed), in_order(removed)

    def merge(self, old: Any, new: Any) -> Any:
        """Merge field by field."""
        if not old and not new:
            return new
        if not isinstance(old, dict):
            return new or old
        if not isinstance(new, dict):
            return old if new is None else new
        out = dict(old)
        for name, value in new.items():
            kind = self.fields.get(name, self.element)
            out[name] = kind.merge(old[name], value) if name in old and kind is not None else value
        return out

    def without(self, value: Any, fields: Fields) -> Any:
        """Leave out members, and what is below the others."""
        if not value or not isinstance(value, dict):
            return None
        out: dict[str, Any] = {}
        for name, item in value.items():
            below = fields.get("f:" + name)
            if below is None:
                out[name] = item
            elif not is_member(below):
                kind = self.fields.get(name, self.element)
                out[name] = kind.without(item, below) if kind is not None else item
        return out or None

    def named(self, fields: Fields) -> Fields:
        """Add the fields of structs that are on the way."""
        out: Fields = {}
        for element, below in fields.items():
            kind = self.at(element)
            if below and kind is not None:
                below = kind.named(below)
                if element[2:] in self.fields and "." not in below:
                    below = {".": {}, **below}
            out[element] = below
        return out

    def settle(self, fields: Fields) -> Fields:
        """Settle what is below."""
        if not self.settles:
            return fields
        out = None
        for element, below in fields.items():
            if not below:
                continue
            kind = self.at(element)
            if kind is None or not kind.settles:
                continue
            settled = kind.settle(below)
            if settled is not below:
                out = out or dict(fields)
                out[element] = settled
        return out or fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find fields that are not declared, up to the first, and what is wrong with the others."""
        if value is None:
            return
        if not isinstance(value, dict):
            report(found, path, f"expected map, got {golang.json_kind(value)}")
            return
        for name in sorted(value):
            kind = self.fields.get(name, self.element)
            if kind is None:
                report(found, f"{path}.{name}", "field not declared in schema")
                return
            kind.check(value[name], f"{path}.{name}", found)


class Untyped(Map):
    """A value that says itself what it is: a map is merged (as `open_map` says), lists and scalars are leaves."""

    def __init__(self, open_map: Map | None = None) -> None:
        super().__init__(open_map.fields if open_map else {}, open_map.element if open_map else self)
        self.settles, self.loose = False, True

    def applied(self, value: Any) -> Fields | None:
        """Give what is in a map; of other values that there is one."""
        return super().applied(value) if isinstance(value, dict) else {} if value is not None else None

    def compare(self, old: Any, new: Any) -> Difference:
        """Compare maps; of a map that becomes something else, or the other way round, all changes."""
        was, now = isinstance(old, dict), isinstance(new, dict)
        if (was and (now or new is None)) or (now and old is None):
            return super().compare(old, new)
        removed = {element: below for element, below in self.everything(old).items() if element != "."}
        return self.everything(new), removed or None

    def merge(self, old: Any, new: Any) -> Any:
        """Merge maps; others are replaced."""
        if isinstance(old, dict) and (isinstance(new, dict) or new is None):
            return super().merge(old, new)
        return new

    def without(self, value: Any, fields: Fields) -> Any:
        """Give a map without the fields, and no list at all."""
        if isinstance(value, dict):
            return super().without(value, fields)
        return None if isinstance(value, list) else value

    def settle(self, fields: Fields) -> Fields:
        """Leave the set as it is: what it says of its fields is the value's own business."""
        return fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Find nothing: everything is allowed."""


ABSENT = object()
"""Stands for a field that is not there."""


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON: true is not 1, but 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and same(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def in_order(fields: Fields) -> Fields | None:
    """Put the elements of a set in order; None when there are none."""
    if not fields:
        return None
    return {element: fields[element] for element in sorted(fields)} if len(fields) > 1 else fields


def report(found: list[str], path: str, wrong: str) -> None:
    """Note what is wrong with the value under a path."""
    if len(found) < MAX_ERRORS:
        found.append(f"{path}: {wrong}" if path else wrong)
