"""Keep the fields that only one of two API versions has: the residue of a conversion.

Theory of operation. Two functions map a kind's fields between its versions, `up` (v1alpha1 to v1alpha2) and `down`.
Both are pure, and both lose what the other version has no place for. After a conversion, `translate` maps its result
back, compares that with the source, and writes each difference into an annotation of the result: the residue. The next
conversion in the other direction applies the residue, so the source comes back as it was.

    up:    new = up(old), then the residue in V1ALPHA2_ANNOTATION is applied to it.
           residue = the differences from down(new) to old, written to V1ALPHA1_ANNOTATION of the result.
    down:  the same with the versions exchanged.

The result may be edited before it is converted back, so that each entry has a guard. An entry is

    {"path": ["spec", "interfaces", "52:54:00:12:34:56", "netboot", "allowWorkflow"], "from": true, "to": false}

and means: `down` gave true here, and the object has false. If `down` gives another value later, a client has changed
the field in the other version, and the entry is void. A missing "from" or "to" means that the field is absent. This is
a three-way merge whose units are leaves, the fields that are no mappings. An entry without "from" never
replaces anything, so it is applied only to an empty place.

`Structure` describes where an object differs from plain nested mappings: mappings that are one unit, and
collections. An item of a collection is added and removed as a whole, and an entry below an item applies only if the
item exists. A list whose items have keys is such a collection; its order is kept apart, below the key "".

The annotation V1ALPHA1_ANNOTATION is stored with the object. V1ALPHA2_ANNOTATION appears in the v1alpha1 view alone. A
status has no residue, because a client that drops the annotation must not change a status.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import orjson

from tink.api.annotations import INCOMPLETE_ANNOTATION, V1ALPHA1_ANNOTATION, V1ALPHA2_ANNOTATION
from tink.api.v1alpha2 import API_VERSION, Raw, as_mapping

OLD: Final = "tinkerbell.org/v1alpha1"
NEW: Final = API_VERSION

MAX_PLAIN_BYTES: Final = 64 << 10
"""Maximum bytes of a residue as plain JSON. A longer one is compressed: an object may have 256 KiB of annotations, and
`kubectl apply` stores the same fields in one of its own."""
MAX_RESIDUE_BYTES: Final = 3 << 20
"""Maximum bytes of a residue after decompression: the maximum of an API request. A longer one is ignored."""
MAX_DEPTH: Final = 16
"""Maximum length of a path. A mapping at that depth is one unit."""
_COMPRESSED: Final = "gzip:"
ORDER: Final = ""
"""The key of a keyed list's order among its items."""


class _Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""The value of an absent field. No JSON value equals it."""

Entry = dict[str, Any]
"""One difference: `path`, and `from` and `to` unless the field is absent there."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of a value, as far as it is more than nested mappings of fields.

    `fields` has the structures of its fields; other fields are plain. A `unit` is compared and replaced as a whole.
    `item` makes it a collection, and is the structure of each item. `key` makes the collection a list, and returns the
    key of an item. If that is None or occurred before, the key of the item is its position, such as "#0".
    """

    fields: Mapping[str, Structure] = field(default_factory=dict)
    unit: bool = False
    item: Structure | None = None
    key: Callable[[Any], str | None] | None = None

    def child(self, name: str) -> Structure:
        """Return the structure of a field or an item."""
        return self.item if self.item is not None else self.fields.get(name, PLAIN)


PLAIN: Final = Structure()
UNIT: Final = Structure(unit=True)


def same(one: Any, other: Any) -> bool:
    """Return True if two JSON values are equal. Unlike in Python, true, 1 and 1.0 are different."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return len(one) == len(other) and all(key in other and same(value, other[key]) for key, value in one.items())
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    if kind is float:
        return bool(one.hex() == other.hex())
    return bool(one == other)


# --- keyed lists


def opened(value: Any, structure: Structure) -> Any:
    """Return a value with its keyed lists as mappings of items and their order. The value itself is not changed."""
    if structure.key is not None:
        if isinstance(value, list):
            return _keyed(value, structure.key)
        # A mapping in the place of the list must not look like an opened list.
        return {ORDER: value} if isinstance(value, dict) else value
    if not structure.fields or not isinstance(value, dict):
        return value
    return {name: opened(each, structure.fields.get(name, PLAIN)) for name, each in value.items()}


def _keyed(items: list[Any], key_of: Callable[[Any], str | None]) -> Raw:
    found: Raw = {ORDER: []}
    for number, item in enumerate(items):
        key = key_of(item)
        if not key or key in found:
            key = f"#{number}"
        found[key] = item
        found[ORDER].append(key)
    return found


def closed(value: Any, structure: Structure) -> Any:
    """Return an opened value in its own form. Raises nothing: a damaged order leaves the items in any order."""
    if not isinstance(value, dict):
        return value
    if structure.key is not None:
        if isinstance(value.get(ORDER), dict):
            return value[ORDER]
        return [value[key] for key in _order(value.get(ORDER), value)]
    if not structure.fields:
        return value
    return {name: closed(each, structure.fields.get(name, PLAIN)) for name, each in value.items()}


def _order(wanted: Any, items: Raw) -> list[str]:
    """Return the keys of opened items: those in `wanted`, in its order, then the others in their present order."""
    named = [wanted, items.get(ORDER), list(items)]
    keys = chain.from_iterable(each for each in named if isinstance(each, list))
    return list(dict.fromkeys(key for key in keys if isinstance(key, str) and key != ORDER and key in items))


# --- differences


def difference(truth: Raw, guess: Raw, structure: Structure) -> list[Entry]:
    """Return the entries that make `guess` equal to `truth`, sorted by path. Both are opened views of a structure.

    The order of a keyed list is always among them: items that are added later must not come between.
    """
    entries = [*_differences(truth, guess, structure, ()), *_orders(truth, structure, ())]
    entries.sort(key=lambda entry: entry["path"])
    return entries


def _differences(truth: Raw, guess: Raw, structure: Structure, path: tuple[str, ...]) -> Iterator[Entry]:
    for key in guess | truth:
        before, after = guess.get(key, MISSING), truth.get(key, MISSING)
        if same(before, after) or (structure.key is not None and key == ORDER and _is_order(after)):
            continue
        child, at = structure.child(key), (*path, key)
        are_mappings = isinstance(before, dict) and isinstance(after, dict)
        if child.item is not None and _is_collection(before) and _is_collection(after):
            yield from _differences(as_mapping(after), as_mapping(before), child, at)
            # An empty collection has no item that an entry could name.
            if after == {}:
                yield _entry(at, MISSING, after)
            elif before == {} and after is MISSING:
                yield _entry(at, before, after)
        elif are_mappings and not _is_unit(child, at) and (structure.item is not None or (before and after)):
            yield from _differences(after, before, child, at)
        else:
            yield _entry(at, before, after)


def _orders(truth: Any, structure: Structure, path: tuple[str, ...]) -> Iterator[Entry]:
    if not isinstance(truth, dict):
        return
    if structure.key is not None and _is_order(truth.get(ORDER)):
        yield _entry((*path, ORDER), MISSING, truth[ORDER])
    for name, child in structure.fields.items():
        yield from _orders(truth.get(name), child, (*path, name))


def _is_order(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_collection(value: Any) -> bool:
    return value is MISSING or isinstance(value, dict)


def _is_unit(structure: Structure, path: tuple[str, ...]) -> bool:
    return structure.unit or len(path) >= MAX_DEPTH


def _entry(path: tuple[str, ...], before: Any, after: Any) -> Entry:
    entry: Entry = {"path": list(path)}
    if before is not MISSING:
        entry["from"] = before
    if after is not MISSING:
        entry["to"] = after
    return entry


# --- application


def apply(view: Raw, entries: list[Entry], structure: Structure) -> None:
    """Apply a residue to an opened view, which is changed. An entry whose guard fails has no effect.

    Removals come first, so that an addition finds its place empty, and the order of lists last.
    """
    view_of = _View(view, structure)
    for entry in entries:
        view_of.remove(tuple(entry["path"]), entry.get("from", MISSING), entry.get("to", MISSING))
    for entry in entries:
        view_of.put(tuple(entry["path"]), entry.get("from", MISSING), entry.get("to", MISSING))
    view_of.set_orders()


class _View:
    """An opened view of an object while a residue is applied to it."""

    def __init__(self, view: Raw, structure: Structure) -> None:
        self._view = view
        self._structure = structure
        self._orders: list[tuple[tuple[str, ...], Any]] = []
        """Paths and values of orders that are set at the end."""

    def remove(self, path: tuple[str, ...], before: Any, after: Any) -> None:
        """Remove the leaves of `before`, if `after` is absent or a leaf in the place of a mapping."""
        found = self._find(path)
        if found is not None and before is not MISSING and (after is MISSING or found.is_tree(before)):
            self._remove(path, before)

    def _remove(self, path: tuple[str, ...], before: Any) -> None:
        found = self._find(path)
        if found is None or found.is_order:
            return
        if found.is_tree(before) and isinstance(found.value, dict):
            for key, value in before.items():
                self._remove((*path, key), value)
            if found.structure.child(path[-1]).key is not None:
                self._remove_list(path)
        elif same(found.value, before):
            del found.container[path[-1]]
            self._prune(path[:-1])

    def _prune(self, path: tuple[str, ...]) -> None:
        """Remove mappings that became empty, but no item of a collection and not the view itself."""
        while path:
            found = self._find(path)
            if found is None or found.value != {} or found.structure.item is not None:
                return
            del found.container[path[-1]]
            path = path[:-1]

    def put(self, path: tuple[str, ...], before: Any, after: Any) -> None:
        """Write `after` where the view has `before`. A mapping in an empty place is merged leaf by leaf."""
        found = self._find(path, create=True)
        if found is None:
            return
        if found.is_order:
            self._orders.append((path, after))
        elif after is MISSING:
            return
        elif before is MISSING or found.is_tree(before):
            self._add(path, after)
        elif same(found.value, before):
            found.container[path[-1]] = after
        elif before == {} and found.is_tree(after) and isinstance(found.value, dict):
            self._add(path, after)

    def _add(self, path: tuple[str, ...], after: Any) -> None:
        found = self._find(path, create=True)
        if found is None:
            return
        if found.is_order:
            self._orders.append((path, after))
        elif found.value is MISSING:
            self._set(path, after)
        elif found.is_tree(after) and isinstance(found.value, dict):
            for key, value in after.items():
                self._add((*path, key), value)

    def _set(self, path: tuple[str, ...], value: Any) -> None:
        """Write a value below mappings that are made if they are absent."""
        container = self._view
        for key in path[:-1]:
            container = container.setdefault(key, {})
        container[path[-1]] = value

    def set_orders(self) -> None:
        """Bring keyed lists into their former order. Items that are new since then come last."""
        for path, wanted in self._orders:
            found = self._find(path, create=True)
            if found is None:
                continue
            if isinstance(wanted, list):
                self._set(path, _order(wanted, found.container))
            elif found.container.keys() <= {ORDER}:
                self._remove_list(path[:-1])
                if wanted is not MISSING:
                    self._set(path, wanted)

    def _remove_list(self, path: tuple[str, ...]) -> None:
        """Remove a keyed list that has no items any more."""
        found = self._find(path)
        if found is not None and isinstance(found.value, dict) and found.value.keys() == {ORDER}:
            del found.container[path[-1]]
            self._prune(path[:-1])

    def _find(self, path: tuple[str, ...], *, create: bool = False) -> _Found | None:
        """Return the place of a path. None if a mapping on the way to it does not exist.

        With `create`, an absent mapping counts as an empty one, unless it would be an item of a collection.
        """
        container: Any = self._view
        structure = self._structure
        for key in path[:-1]:
            child = container.get(key, MISSING)
            if child is MISSING and create and structure.item is None:
                child = {}
            if not isinstance(child, dict) or structure.child(key).unit:
                return None
            container, structure = child, structure.child(key)
        return _Found(container, container.get(path[-1], MISSING), structure, path)


@dataclass(frozen=True, slots=True)
class _Found:
    """A place in a view: its container and the container's structure, and the value or MISSING."""

    container: Raw
    value: Any
    structure: Structure
    path: tuple[str, ...]

    @property
    def is_order(self) -> bool:
        return self.structure.key is not None and self.path[-1] == ORDER

    def is_tree(self, value: Any) -> bool:
        """Return True if a value at this place consists of several leaves: a mapping with fields that is no unit."""
        is_item = self.structure.item is not None
        return bool(
            isinstance(value, dict)
            and value
            and not is_item
            and not _is_unit(self.structure.child(self.path[-1]), self.path)
        )


# --- the text of a residue


def encode(entries: list[Entry]) -> str:
    """Return a residue as text: compact JSON, or `gzip:` and base64 if that is longer than MAX_PLAIN_BYTES.

    The text depends on nothing but the entries. It is empty if they cannot be written as JSON (too deep).
    """
    try:
        plain = orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer of more than 64 bits
        try:
            plain = json.dumps(entries, separators=(",", ":"), sort_keys=True).encode()
        except (RecursionError, ValueError, TypeError):
            return ""
    if len(plain) <= MAX_PLAIN_BYTES:
        return plain.decode()
    return _COMPRESSED + base64.b64encode(gzip.compress(plain, mtime=0)).decode()


def decode(text: Any) -> list[Entry]:
    """Return the entries of a residue. Users can edit the annotation, so anything else than an entry is left out."""
    if not isinstance(text, str):
        return []
    try:
        plain = _decompressed(text) if text.startswith(_COMPRESSED) else text.encode()
        found = orjson.loads(plain) if len(plain) <= MAX_RESIDUE_BYTES else None
        # orjson reads deeper nesting than it writes. A value must be writable at its place in the object, too.
        orjson.dumps(_nested(found))
    except (ValueError, TypeError, zlib.error):
        return []
    return [entry for entry in found if _is_entry(entry)] if isinstance(found, list) else []


def _decompressed(text: str) -> bytes:
    try:
        data = base64.b64decode(text.removeprefix(_COMPRESSED), validate=True)
    except binascii.Error as error:
        raise ValueError from error
    return zlib.decompressobj(wbits=31).decompress(data, MAX_RESIDUE_BYTES + 1)


def _nested(value: Any) -> Any:
    for _ in range(MAX_DEPTH):
        value = [value]
    return value


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not ("from" in entry or "to" in entry):
        return False
    path = entry.get("path")
    return isinstance(path, list) and 0 < len(path) <= MAX_DEPTH and all(isinstance(key, str) for key in path)


# --- the conversion of an object


@dataclass(frozen=True, slots=True)
class Kind:
    """The conversion of a kind: its mappings, and the structure of its views.

    A view of an object is a mapping with its `spec` (absent if the object has none) and those of its `annotations` that
    the conversion makes or reads; others are copied. `up` and `down` get the view, as any JSON, and the metadata, from
    which they may read the name. They return a new view, in which nested mappings are new, too; its leaves may be
    shared. They raise nothing.
    """

    up: Callable[[Raw, Raw], Raw]
    down: Callable[[Raw, Raw], Raw]
    up_status: Callable[[Raw], Any]
    """Returns the status of the v1alpha2 object for the v1alpha1 object, or MISSING."""
    down_status: Callable[[Raw], Any]
    """Returns the status of the v1alpha1 object for the v1alpha2 object, or MISSING."""
    old: Structure = PLAIN
    new: Structure = PLAIN
    annotations: frozenset[str] = frozenset()
    """The annotations of the views. V1ALPHA1_ANNOTATION, V1ALPHA2_ANNOTATION and INCOMPLETE_ANNOTATION are added."""
    json_annotations: frozenset[str] = frozenset()
    """Those of them that are mappings in a v1alpha2 view if their text is canonical JSON (`canonical`)."""
    guard: Callable[[Raw], str] | None = None
    """Returns a text for a v1alpha1 view. The residue of the v1alpha2 form is void as a whole once that has changed."""
    without_defaults: Callable[[Raw], Raw] = lambda view: view
    """Returns a v1alpha2 view without the fields that have v1alpha2's default. The API adds them after a conversion, so
    `up` leaves them out, too."""


_OWN_ANNOTATIONS: Final = frozenset({V1ALPHA1_ANNOTATION, V1ALPHA2_ANNOTATION, INCOMPLETE_ANNOTATION})


def translate(obj: Raw, kind: Kind, api_version: str) -> Raw:
    """Return an object in the other version, `api_version`. The object is not changed; its parts are shared."""
    metadata = as_mapping(obj.get("metadata"))
    annotations = dict(as_mapping(metadata.get("annotations")))
    result = {**obj, "apiVersion": api_version}
    if api_version == NEW:
        residue = annotations.pop(V1ALPHA2_ANNOTATION, None)
        view = _view(obj, annotations, kind, frozenset())
        entries = decode(residue) if kind.guard is None else _guarded(decode(residue), kind.guard(view))
        made = _merged(kind.up(view, metadata), entries, kind.new)
        left = _residue(view, kind.down(made, metadata), kind.old)
        status, name = kind.up_status(obj), V1ALPHA1_ANNOTATION
    else:
        residue = annotations.pop(V1ALPHA1_ANNOTATION, None)
        view = _view(obj, annotations, kind, kind.json_annotations)
        made = _merged(kind.down(view, metadata), decode(residue), kind.old)
        guard = None if kind.guard is None else kind.guard(made)
        left = _residue(kind.without_defaults(view), kind.up(made, metadata), kind.new, guard)
        status, name = kind.down_status(obj), V1ALPHA2_ANNOTATION
    for key, value in (("spec", made.get("spec", MISSING)), ("status", status)):
        if value is MISSING:
            result.pop(key, None)
        else:
            result[key] = value
    kept = {key: value for key, value in annotations.items() if not _is_managed(key, kind)}
    for key, value in as_mapping(made.get("annotations")).items():
        text = _annotation_text(value) if key in kind.json_annotations else value
        # Users can edit a residue, and one annotation that is no text would break each list of the objects.
        if _is_managed(key, kind) and isinstance(text, str):
            kept[key] = text
    if left:
        kept[name] = left
    _set_annotations(result, kept, made.get(_PLACE))
    return result


_GUARD: Final = ["guard"]
"""The path of the entry for `Kind.guard`, which is no place in a view."""
_PLACE: Final = "metadata"
"""The field of a view for metadata of an unusual form: a list of a word and, except after "absent", the value."""


def _is_managed(name: str, kind: Kind) -> bool:
    return name in kind.annotations or name in _OWN_ANNOTATIONS


def _view(obj: Raw, annotations: Raw, kind: Kind, structured: frozenset[str]) -> Raw:
    view: Raw = {}
    if "spec" in obj:
        view["spec"] = obj["spec"]
    managed = {
        key: canonical(value) if key in structured else value
        for key, value in annotations.items()
        if _is_managed(key, kind)
    }
    if managed:
        view["annotations"] = managed
    if "metadata" not in obj:
        view[_PLACE] = ["absent"]
    elif not isinstance(obj["metadata"], dict):
        view[_PLACE] = ["metadata", obj["metadata"]]
    elif obj["metadata"].get("annotations", MISSING) in ({}, None):
        view[_PLACE] = ["annotations", obj["metadata"]["annotations"]]
    return view


def canonical(text: Any) -> Any:
    """Return the mapping that a text is the canonical JSON of (sorted keys, no spaces); any other value unchanged."""
    if isinstance(text, str) and text.startswith("{"):
        try:
            found = orjson.loads(text)
            if isinstance(found, dict) and found and _annotation_text(found) == text:
                return found
        except (ValueError, TypeError):
            pass
    return text


def _annotation_text(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, sort_keys=True)


def _guarded(entries: list[Entry], guard: str) -> list[Entry]:
    """Return the entries of a residue without the guard of the whole; none if that does not have this value."""
    is_same = any(entry["path"] == _GUARD and entry.get("from") == guard for entry in entries)
    return [entry for entry in entries if entry["path"] != _GUARD] if is_same else []


def _merged(made: Raw, entries: list[Entry], structure: Structure) -> Raw:
    """Return a view with the entries of a residue applied to it."""
    if not entries:
        return made
    view = opened(made, structure)
    apply(view, entries, structure)
    return as_mapping(closed(view, structure))


def _residue(truth: Raw, guess: Raw, structure: Structure, guard: str | None = None) -> str:
    """Return the text of the residue; empty if there is no difference. `guard` is that of the whole."""
    entries = difference(opened(truth, structure), opened(guess, structure), structure)
    if entries and guard is not None:
        entries.append({"path": _GUARD, "from": guard})
    return encode(entries) if entries else ""


def _set_annotations(obj: Raw, annotations: Raw, place: Any) -> None:
    """Replace an object's annotations, in new metadata. `place` is the form of the metadata, from a residue."""
    metadata = obj["metadata"] if isinstance(obj.get("metadata"), dict) else {}
    metadata = {key: value for key, value in metadata.items() if key != "annotations"}
    if annotations:
        metadata["annotations"] = annotations
    form, *value = place if isinstance(place, list) and place else [None]
    if value and form == "annotations" and not annotations and value[0] in ({}, None):
        metadata["annotations"] = value[0]
    if metadata or "metadata" in obj:
        obj["metadata"] = metadata
    if not metadata and form == "absent":
        obj.pop("metadata", None)
    elif not metadata and value and form == "metadata":
        obj["metadata"] = value[0]
