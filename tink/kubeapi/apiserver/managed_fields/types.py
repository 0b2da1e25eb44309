"""Types of values for merging: which values are replaced as a whole, and what identifies list items.

`compile_root` makes a tree of types from a schema. A type lists the fields of a value, compares two values, merges one
into the other, removes fields, and finds errors. The rules are those of sigs.k8s.io/structured-merge-diff (packages
typed and schema) and k8s.io/kube-openapi, pkg/schemaconv:

- scalars, lists that are neither sets nor maps, and maps of type `atomic` are leaves, replaced as a whole;
- structs, other maps, sets and lists of type `map` are merged field by field and item by item;
- where the schema says nothing (preserved fields, int-or-string) the value decides: maps are merged, lists and scalars
  are leaves.

Values that do not fit their type (a status from the time of an older schema) count as leaves; `check` reports them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tink import golang
from tink.errors import TinkedgeError
from tink.kubeapi.apiserver.managed_fields.fields import Fields, is_member, key_element, literal, render_element
from tink.kubeapi.schema import meta

Difference = tuple[Fields | None, Fields | None]
"""The added or changed fields, and the removed fields; None if there are none."""

MAX_ERRORS = 100  # Maximum number of reported errors


class ItemError(TinkedgeError, ValueError):
    """A list item cannot be identified. The message is Kubernetes'."""


_FITTING: Mapping[str, frozenset[type]] = {
    "numeric": frozenset({int, float}),
    "string": frozenset({str}),
    "boolean": frozenset({bool}),
    "any scalar": frozenset({int, float, str, bool}),
}


class ValueType:
    """A type, and the operations on its values; here for values that are replaced as a whole.

    Sets of fields are those below the element that leads to the value.
    """

    settles = False  # True if `settle` can change anything
    loose = False  # True if a value may contain 1 where it contained true, which are equal in Python

    def everything(self, _value: Any) -> Fields:
        """Return all fields that appear with the value."""
        return {}

    def applied(self, _value: Any) -> Fields | None:
        """Return the fields that the applier of the value owns: leaves, items and keys of maps. None if there are
        none."""
        return {}

    def compare(self, _old: Any, _new: Any) -> Difference:
        """Return the differences of two unequal values. Raises ItemError."""
        return {}, None

    def merge(self, _old: Any, new: Any) -> Any:
        """Return the old value with the changes of the new one. Raises ItemError."""
        return new

    def without(self, value: Any, _fields: Fields) -> Any:
        """Return the value without these fields; None if nothing is left."""
        return value

    def named(self, fields: Fields) -> Fields:
        """Add the fields of structs that lead to the elements of the set."""
        return fields

    def settle(self, fields: Fields) -> Fields:
        """Update a set from before the value became atomic: the value is owned as a whole."""
        return fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Report where the value does not fit the type."""


class Scalar(ValueType):
    """A number, text or truth value; `kind` says which."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fitting = _FITTING[kind]

    def check(self, value: Any, path: str, found: list[str]) -> None:
        if value is not None and type(value) not in self.fitting:
            report(found, path, f"expected {self.kind}, got {golang.json_kind(value)}")


class Atomic(ValueType):
    """A list or map that is replaced as a whole; `inner` checks its contents."""

    settles = True

    def __init__(self, inner: ValueType) -> None:
        self.inner = inner
        self.loose = inner.loose

    def without(self, _value: Any, _fields: Fields) -> Any:
        return None

    def settle(self, _fields: Fields) -> Fields:
        return {}

    def check(self, value: Any, path: str, found: list[str]) -> None:
        self.inner.check(value, path, found)


class Container(ValueType):
    """A type whose values have parts with types of their own; `shape` is the Python type of the values."""

    shape: type = list

    def at(self, _element: str) -> ValueType | None:
        """Return the type behind a path element."""
        return None

    def merge(self, old: Any, new: Any) -> Any:
        if not old and not new:
            return new
        if not isinstance(old, self.shape):
            return new or old
        if not isinstance(new, self.shape):
            return old if new is None else new
        return self.merge_parts(old, new)

    def merge_parts(self, _old: Any, new: Any) -> Any:
        """Merge two values of this shape."""
        return new

    def settle(self, fields: Fields) -> Fields:
        if not self.settles:
            return fields
        out = None
        for element, below in fields.items():
            kind = self.at(element) if below else None
            settled = kind.settle(below) if kind is not None and kind.settles else below
            if settled is not below:
                out = out or dict(fields)
                out[element] = settled
        return out or fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        if isinstance(value, self.shape):
            self.check_parts(value, path, found)
        elif value is not None:
            report(found, path, f"expected {'map' if self.shape is dict else 'list'}, got {golang.json_kind(value)}")

    def check_parts(self, value: Any, path: str, found: list[str]) -> None:
        """Report where the parts do not fit their types."""


class Items(Container):
    """The items of a list inside an `Atomic`; only checks."""

    def __init__(self, element: ValueType) -> None:
        self.element = element
        self.loose = element.loose

    def merge(self, _old: Any, new: Any) -> Any:
        return new

    def check_parts(self, value: Any, path: str, found: list[str]) -> None:
        for index, item in enumerate(value):
            self.element.check(item, f"{path}[{index}]", found)


class Map(Container):
    """A struct with its `fields`, a map whose values are of type `element`, or both.

    `element` is None if other keys are not allowed. Values under such keys are ignored, but `check` reports them.
    """

    shape = dict

    def __init__(self, fields: Mapping[str, ValueType], element: ValueType | None) -> None:
        self.fields = fields
        self.element = element
        inner = [*fields.values(), *([element] if element is not None else [])]
        self.settles = any(kind.settles for kind in inner)
        self.loose = any(kind.loose for kind in inner)

    def only(self, left_out: Sequence[str]) -> Map:
        """Return the type without some fields: values under these keys are ignored."""
        return Map({name: kind for name, kind in self.fields.items() if name not in left_out}, self.element)

    def at(self, element: str) -> ValueType | None:
        return self.fields.get(element[2:], self.element) if element.startswith("f:") else self.element

    def everything(self, value: Any) -> Fields:
        if not value or not isinstance(value, dict):
            return {}
        kinds = ((name, self.fields.get(name, self.element)) for name in sorted(value))
        found = {"f:" + name: kind.everything(value[name]) for name, kind in kinds if kind is not None}
        return {".": {}, **found} if found else {}

    def applied(self, value: Any) -> Fields | None:
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

    def merge_parts(self, old: Any, new: Any) -> Any:
        out = dict(old)
        for name, value in new.items():
            kind = self.fields.get(name, self.element)
            out[name] = kind.merge(old[name], value) if name in old and kind is not None else value
        return out

    def without(self, value: Any, fields: Fields) -> Any:
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
        out: Fields = {}
        for element, below in fields.items():
            kind = self.at(element)
            if below and kind is not None:
                below = kind.named(below)
                if element[2:] in self.fields and "." not in below:
                    below = {".": {}, **below}
            out[element] = below
        return out

    def check_parts(self, value: Any, path: str, found: list[str]) -> None:
        for name in sorted(value):
            kind = self.fields.get(name, self.element)
            if kind is None:
                report(found, f"{path}.{name}", "field not declared in schema")
                return
            kind.check(value[name], f"{path}.{name}", found)


class Untyped(Map):
    """A value whose type is its own: a map is merged (by `open_map`), lists and scalars are leaves."""

    def __init__(self, open_map: Map | None = None) -> None:
        super().__init__(open_map.fields if open_map else {}, open_map.element if open_map else self)
        self.settles, self.loose = False, True

    def applied(self, value: Any) -> Fields | None:
        return super().applied(value) if isinstance(value, dict) else {} if value is not None else None

    def compare(self, old: Any, new: Any) -> Difference:
        was, now = isinstance(old, dict), isinstance(new, dict)
        if (was and (now or new is None)) or (now and old is None):
            return super().compare(old, new)
        removed = {element: below for element, below in self.everything(old).items() if element != "."}
        return self.everything(new), removed or None

    def merge(self, old: Any, new: Any) -> Any:
        if isinstance(old, dict) and (isinstance(new, dict) or new is None):
            return super().merge(old, new)
        return new

    def without(self, value: Any, fields: Fields) -> Any:
        if isinstance(value, dict):
            return super().without(value, fields)
        return None if isinstance(value, list) else value

    def settle(self, fields: Fields) -> Fields:
        return fields

    def check(self, value: Any, path: str, found: list[str]) -> None:
        """Report nothing: everything is allowed."""


ABSENT = object()  # Stands for a missing field


def same(one: Any, other: Any) -> bool:
    """Return True if two values are equal in JSON: true is not 1, but 1 is 1.0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and same(item, other[key]) for key, item in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def in_order(fields: Fields) -> Fields | None:
    """Return a sorted set; None if it is empty."""
    if not fields:
        return None
    return {element: fields[element] for element in sorted(fields)} if len(fields) > 1 else fields


def report(found: list[str], path: str, wrong: str) -> None:
    """Add an error about the value at a path."""
    if len(found) < MAX_ERRORS:
        found.append(f"{path}: {wrong}" if path else wrong)


class List(Container):
    """A set of scalars, or a list of maps that `keys` identify, with the defaults of the keys
    (`x-kubernetes-list-type`).

    Lists are compared and merged item by item, regardless of positions (sigs.k8s.io/structured-merge-diff, package
    typed). A duplicate item, which only writers without apply can create, is owned and replaced as a whole.
    """

    def __init__(self, keys: Sequence[str], element: ValueType, defaults: Mapping[str, Any]) -> None:
        self.keys = tuple(keys)
        self.element = element
        self.defaults = defaults
        self.settles = element.settles
        self.loose = element.loose

    def at(self, _element: str) -> ValueType | None:
        return self.element

    def item(self, item: Any) -> str:
        """Return the path element of an item. Raises ItemError."""
        if not self.keys:
            if isinstance(item, dict):
                raise ItemError("associative list without keys has an element that's a map type")
            if isinstance(item, list):
                raise ItemError("not supported: associative list with lists as elements")
            if item is None:
                raise ItemError("associative list without keys has an element that's an explicit null")
            return "v:" + literal(item)
        if item is None:
            raise ItemError("associative list with keys may not have a null element")
        if not isinstance(item, dict):
            raise ItemError("associative list with keys may not have non-map elements")
        keys = {key: item.get(key, self.defaults.get(key)) for key in self.keys}
        found = {key: value for key, value in keys.items() if value is not None or key in item}
        if not found:
            listed = " ".join(map(golang.quote, self.keys))
            raise ItemError(
                f"associative list with keys has an element that omits all key fields [{listed}] "
                "(and doesn't have default values for any key fields)"
            )
        return key_element(found)

    def _grouped(self, items: Sequence[Any]) -> dict[str, list[Any]]:
        groups: dict[str, list[Any]] = {}
        try:
            for item in items:
                groups.setdefault(self.item(item), []).append(item)
        except ItemError as error:
            raise ItemError(f"element {sum(map(len, groups.values()))}: {error}") from error
        return groups

    def everything(self, value: Any) -> Fields:
        if not value or not isinstance(value, list):
            return {}
        groups = self._grouped(value)
        found: Fields = {".": {}}
        for element in sorted(groups):
            items = groups[element]
            # A duplicate item is owned as a whole.
            found[element] = self.element.everything(items[0]) if len(items) == 1 else {}
        return found

    def applied(self, value: Any) -> Fields | None:
        if not value or not isinstance(value, list):
            return None
        groups = self._grouped(value)
        found: Fields = {}
        for element in sorted(groups):
            items = groups[element]
            below = self.element.applied(items[0]) if len(items) == 1 else None
            found[element] = below if below is not None and is_member(below) else {".": {}, **below} if below else {}
        return found

    def compare(self, old: Any, new: Any) -> Difference:
        if not old and not new:
            return {}, None
        old, new = old or [], new or []
        if not isinstance(old, list) or not isinstance(new, list):
            return {}, None
        before, after = self._grouped(old), self._grouped(new)
        changed: Fields = {}
        removed: Fields = {}
        for element, items in after.items():
            was = before.get(element)
            if was is None:
                changed[element] = self.element.everything(items[0]) if len(items) == 1 else {}
            elif len(was) > 1 or len(items) > 1:
                # A duplicate item, before or after, is owned as a whole.
                if len(was) == 1 or len(items) == 1:
                    changed[element] = self.element.everything(items[0]) if len(items) == 1 else {}
                    removed[element] = self.element.everything(was[0]) if len(was) == 1 else {}
                elif not same(was, items):
                    changed[element] = {}
            elif was[0] != items[0] or (self.loose and not same(was[0], items[0])):
                more, less = self.element.compare(was[0], items[0])
                if more is not None:
                    changed[element] = more
                if less is not None:
                    removed[element] = less
        for element, was in before.items():
            if element not in after:
                removed[element] = self.element.everything(was[0]) if len(was) == 1 else {}
        return in_order(changed), in_order(removed)

    def merge_parts(self, old: list[Any], new: list[Any]) -> list[Any]:
        # In the order of the new list; items of the old list alone stay at their places.
        theirs = [self.item(item) for item in new]
        ours = [self.item(item) for item in old]
        after = dict(zip(theirs, new, strict=True))
        before: dict[str, Any] = {}
        for element, item in zip(ours, old, strict=True):
            before[element] = None if element in before else item  # a duplicate item is not merged
        shared = [element for element in theirs if element in before]
        shared.reverse()
        awaited = shared.pop() if shared else None
        done: set[str] = set()
        out: list[Any] = []
        left = right = 0
        while left < len(ours) or right < len(theirs):
            if left < len(ours) and right < len(theirs):
                element = ours[left]
                if element == theirs[right]:
                    done.add(element)
                    out.append(self.element.merge(before[element], after[element]))
                    left, right = left + 1, right + 1
                    awaited = shared.pop() if shared else None
                    continue
                if element in after and awaited is not None and awaited != element:
                    left += 1  # a later iteration adds it
                    continue
            if left < len(ours):
                element = ours[left]
                if element not in after:
                    out.append(old[left])
                    left += 1
                    continue
                if element in done:
                    left += 1
            if right < len(theirs):
                element = theirs[right]
                done.add(element)
                out.append(self.element.merge(before[element], after[element]) if element in before else new[right])
                right += 1
                if awaited == element:
                    awaited = shared.pop() if shared else None
        return out

    def without(self, value: Any, fields: Fields) -> Any:
        if not value or not isinstance(value, list):
            return None
        out = []
        for item in value:
            below = fields.get(self.item(item))
            if below is None:
                out.append(item)
            elif not is_member(below):
                out.append(self.element.without(item, below))
        return out or None

    def named(self, fields: Fields) -> Fields:
        return {
            element: self.element.named(below) if below and element.startswith("k:") else below
            for element, below in fields.items()
        }

    def check_parts(self, value: Any, path: str, found: list[str]) -> None:
        seen = set()
        for index, item in enumerate(value):
            try:
                element = self.item(item)
            except ItemError as error:
                report(found, path, f"element {index}: {error}")
                return
            if element in seen:
                report(found, path, f"duplicate entries for key {render_element(element)}")
            seen.add(element)
            self.element.check(item, path + render_element(element), found)


_NUMERIC, _TEXT, _TRUTH, _ANY = Scalar("numeric"), Scalar("string"), Scalar("boolean"), Scalar("any scalar")
_DEDUCED = Untyped()


def compile_root(schema: Mapping[str, Any]) -> Map:
    """Return the type of whole objects for a schema from `tink.kubeapi.schema.structural.root_schema`.

    Below `x-kubernetes-preserve-unknown-fields` unknown fields are allowed in every struct. A value without a type in
    the schema has its own. Metadata are the same for all resources.
    """
    properties = dict(schema.get("properties") or {}) | {"metadata": {}}
    kind = _map({**schema, "properties": properties}, preserve=bool(schema.get(_PRESERVE)))
    return Map({**kind.fields, "apiVersion": _TEXT, "kind": _TEXT, "metadata": METADATA}, kind.element)


_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def _compile(schema: Mapping[str, Any], *, preserve: bool) -> ValueType:
    preserve = preserve or bool(schema.get(_PRESERVE))
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        kind = ""
    match kind:
        case "integer" | "number":
            return _NUMERIC
        case "boolean":
            return _TRUTH
        case "string":
            return _TEXT if schema.get("format", "") in ("", "byte") else _ANY
        case "array":
            return _list(schema, preserve=preserve)
        case "object":
            found = _map(schema, preserve=preserve)
            return Atomic(found) if schema.get("x-kubernetes-map-type") == "atomic" else found
    if not schema.get("properties") and not schema.get("additionalProperties"):
        return _DEDUCED
    return Untyped(_map(schema, preserve=preserve))


def _map(schema: Mapping[str, Any], *, preserve: bool) -> Map:
    properties = dict(schema.get("properties") or {})
    fields = {name: _compile(child, preserve=preserve) for name, child in properties.items()}
    if schema.get("x-kubernetes-embedded-resource"):
        fields |= {"apiVersion": _TEXT, "kind": _TEXT, "metadata": METADATA}
    extra = schema.get("additionalProperties")
    element: ValueType | None = None
    if isinstance(extra, Mapping):
        element = _compile(extra, preserve=preserve)
    elif extra or (extra is None and (preserve or not fields)):
        element = _DEDUCED
    return Map(fields, element)


def _list(schema: Mapping[str, Any], *, preserve: bool) -> ValueType:
    items = schema.get("items") or {}
    element = _compile(items, preserve=preserve) if items else _DEDUCED
    kind = schema.get("x-kubernetes-list-type", "atomic")
    if kind == "set":
        return List((), element, {})
    if kind == "map":
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        properties = items.get("properties") or {}
        defaults = {key: properties[key]["default"] for key in keys if "default" in (properties.get(key) or {})}
        return List(keys, element, defaults)
    return Atomic(Items(element))


def _metadata() -> Map:
    properties = dict(meta.META_SCHEMA["properties"])
    owners = dict(properties["ownerReferences"])
    # An owner is replaced as a whole (k8s.io/apimachinery, meta/v1: OwnerReference is structType=atomic).
    owners["items"] = {**owners["items"], "x-kubernetes-map-type": "atomic"}
    return _map({**meta.META_SCHEMA, "properties": {**properties, "ownerReferences": owners}}, preserve=False)


METADATA = _metadata()  # The type of `metadata`
