"""Sets of fields in the stored form (FieldsV1, Kubernetes API reference, `managedFields`).

A set is a dictionary from path elements to the set below them:

- `f:name` is a field of a struct or a key of a map, `k:{"uid":"1"}` the list item with these keys, `v:"a"` the item of
  a set with this value, `i:0` the item at this position;
- an element with an empty dictionary is a member of the set; one with a `.` in its dictionary is a member together with
  the elements below it; any other only leads to the elements below it.

Because this is the stored form, sets are compared without decoding, and an update that changes nothing leaves them byte
for byte unchanged. `parse` checks sets from clients. Sets are never modified: they may share parts.

Elements are sorted by their texts, as the real server writes them for custom resources; `.` comes first. The set
operations are those of sigs.k8s.io/structured-merge-diff, fieldpath.Set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from tink.errors import TinkedgeError

Fields = dict[str, Any]  # A set of fields; values are again `Fields`

MAX_DEPTH = 110  # Maximum depth of a set: a little more than that of a body (`media.MAX_DEPTH`)

MAX_FIELDS = 100_000  # Maximum number of elements in the sets that a client sends with one object


class FieldsError(TinkedgeError, ValueError):
    """A client's value is no set of fields. The message says why."""


IN_HTML = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
"""Go's escapes of characters with a meaning in HTML."""
_ODD = re.compile("[<>&\u2028\u2029\b\f]")


def literal(value: object) -> str:
    """Return the value of a key or item as Kubernetes writes it: JSON that is safe inside HTML."""
    if isinstance(value, str):
        if _ODD.search(value) is None:
            return orjson.dumps(value).decode()
        letters = (f"\\u{ord(c):04x}" if _ODD.match(c) else orjson.dumps(c).decode()[1:-1] for c in value)
        return f'"{"".join(letters)}"'
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        value = int(value)  # 1.0 and 1 are the same item
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return str(value)  # an integer of more than 64 bits


def key_element(keys: dict[str, Any]) -> str:
    """Return the path element of the list item with these keys."""
    return "k:{" + ",".join(f"{orjson.dumps(name).decode()}:{literal(keys[name])}" for name in sorted(keys)) + "}"


def is_member(below: Fields) -> bool:
    """Return True if the element with this dictionary is itself in the set."""
    return not below or "." in below


# --- reading what a client sent ---


def parse(value: Any) -> Fields:
    """Check a client's set and return its normal form. Elements of unknown kinds are dropped. Raises FieldsError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FieldsError("a set of fields must be an object")
    found, _ = _parse(value, 0, [MAX_FIELDS])
    found.pop(".", None)
    return found


def _parse(node: dict[str, Any], depth: int, left: list[int]) -> tuple[Fields, bool]:
    """Return the set below an element, and True if the element itself is a member."""
    left[0] -= len(node)
    if depth > MAX_DEPTH or left[0] < 0:
        raise FieldsError("the set of fields is too deep or too large")
    found: Fields = {}
    member = False
    for key, child in node.items():
        if key == ".":
            member = True
            continue
        element = _element(key)
        if child is not None and not isinstance(child, dict):
            raise FieldsError(f"expect {{ or n, but found {literal(child)[:20]}")
        if element is None:
            continue
        below, itself = _parse(child, depth + 1, left) if child else ({}, True)
        if itself and below:
            below = {".": {}, **below}
        found[element] = union({element: found[element]}, {element: below})[element] if element in found else below
    if not found:
        return {}, True
    return {key: found[key] for key in sorted(found)}, member


def _element(text: str) -> str | None:
    """Return the normal form of a path element; None if its kind is unknown. Raises FieldsError."""
    if text.startswith("f:"):
        return text
    if len(text) < 2:
        raise FieldsError("key must be 2 characters long:")
    if text[1] != ":":
        raise FieldsError(f"missing colon: {text[:64]}")
    try:
        match text[0]:
            case "v":
                return "v:" + literal(orjson.loads(text[2:]))
            case "k":
                keys = orjson.loads(text[2:])
                if not isinstance(keys, dict):
                    raise FieldsError("a key must be an object")
                return key_element(keys)
            case "i":
                return f"i:{int(text[2:])}"
    except (orjson.JSONDecodeError, ValueError) as error:
        raise FieldsError(f"{text[:64]!r} is no path element: {error}") from error
    return None


# --- set operations ---

_SELF: Fields = {".": {}}


def union(one: Fields, other: Fields) -> Fields:
    """Return the elements of either set."""
    if not other:
        return one
    if not one:
        return other
    out = dict(one)
    grown = False
    for element, theirs in other.items():
        ours = one.get(element)
        if ours is None:
            out[element] = theirs
            grown = True
        elif ours is not theirs and element != "." and (ours or theirs):
            out[element] = union(ours or _SELF, theirs or _SELF)
    return {element: out[element] for element in sorted(out)} if grown else out


def intersection(one: Fields, other: Fields) -> Fields:
    """Return the elements of both sets. An element with others below it must itself be in both."""
    out: Fields = {}
    for element, ours in one.items():
        theirs = other.get(element)
        if theirs is None:
            continue
        if element == ".":
            out["."] = {}
            continue
        if not ours and not theirs:
            out[element] = {}
            continue
        both = intersection(ours or _SELF, theirs or _SELF)
        if both:
            out[element] = {} if len(both) == 1 and "." in both else both
    return out


def difference(one: Fields, other: Fields) -> Fields:
    """Return the elements of the first set that are not in the second. An element of the second set does not remove the
    elements below it."""
    if not other:
        return one
    out: Fields = {}
    for element, ours in one.items():
        theirs = other.get(element)
        if theirs is None:
            out[element] = ours
            continue
        if element == ".":
            continue
        rest = difference(ours or _SELF, theirs or _SELF)
        if rest:
            out[element] = {} if len(rest) == 1 and "." in rest else rest
    return out


def holds(fields: Fields, path: tuple[str, ...]) -> bool:
    """Return True if a path is in the set."""
    below = fields
    for element in path:
        found = below.get(element)
        if found is None:
            return False
        below = found
    return bool(path) and is_member(below)


def from_paths(paths: list[tuple[str, ...]]) -> Fields:
    """Return the set of these paths."""
    found: Fields = {}
    for path in paths:
        below: Fields = {}
        for element in reversed(path):
            below = {element: below}
        found = union(found, below)
    return found


# --- for people ---


def paths(fields: Fields) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a set in Kubernetes' order: at each level the members first, then the paths below."""
    ordered = sorted((element for element in fields if element != "."), key=_rank)
    for element in ordered:
        if is_member(fields[element]):
            yield (element,)
    for element in ordered:
        for path in paths(fields[element]):
            yield (element, *path)


def _rank(element: str) -> tuple[Any, ...]:
    """Return the sort key of an element: fields, then items by key, value and position; numbers as numbers."""
    kind, rest = element[:2], element[2:]
    if kind == "f:":
        return (0, rest)
    if kind == "k:":
        return (1, [(name, _value_rank(value)) for name, value in sorted(orjson.loads(rest).items())])
    if kind == "v:":
        return (2, _value_rank(orjson.loads(rest)))
    return (3, int(rest))


def _value_rank(value: Any) -> tuple[int, Any]:
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (0, value)
    if isinstance(value, str):
        return (1, value)
    return (3, literal(value))


def render(path: tuple[str, ...]) -> str:
    """Return a path as Kubernetes writes it: `.spec.ports[port=80,protocol="TCP"].name`."""
    return "".join(map(render_element, path))


def render_element(element: str) -> str:
    """Return one step of a path as text."""
    kind, rest = element[:2], element[2:]
    if kind == "f:":
        return "." + rest
    if kind == "i:":
        return f"[{rest}]"
    value = orjson.loads(rest)
    if kind == "v:":
        return f"[={shown(value)}]"
    return "[" + ",".join(f"{name}={shown(keys)}" for name, keys in sorted(value.items())) + "]"


def shown(value: Any) -> str:
    """Return a value as paths show it."""
    if isinstance(value, str):
        return orjson.dumps(value).decode()
    if isinstance(value, list):
        return "[" + ",".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "".join(f"{name}={shown(item)}" for name, item in value.items())
    return literal(value)
