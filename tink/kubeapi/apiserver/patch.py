"""Patches of objects. Pure: an object and a patch in, a new object out; the inputs stay unchanged.

Three kinds: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and for built-in resources the strategic merge patch of
Kubernetes (`sig-api-machinery/strategic-merge-patch.md`), which kubectl sends for types that it knows.
"""

from __future__ import annotations

from typing import Any

import orjson

from tink.errors import TinkedgeError
from tink.golang import json_kind
from tink.kubeapi.apiserver.errors import StatusError, bad_request
from tink.kubeapi.schema.shapes import deep_copy
from tink.kubeapi.schema.structural import mark

MAX_OPERATIONS = 10_000  # Maximum number of operations in one JSON patch (Kubernetes: maxJSONPatchOperations)

MAX_COPIED = 3 << 20
"""Maximum number of bytes that the `copy` operations of one JSON patch create: few copies could double an object
often."""


class PatchError(TinkedgeError):
    """The patch cannot be applied. `unprocessable`: it is well-formed but does not fit the object (422, not 400)."""

    def __init__(self, message: str, *, unprocessable: bool = False) -> None:
        super().__init__(message)
        self.unprocessable = unprocessable

    def status(self) -> StatusError:
        """Return the refusal. For a JSON patch that does not fit, Kubernetes gives no reason."""
        if self.unprocessable:
            return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})
        return bad_request(str(self))


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386 section 2)."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge(out.get(name), value)
    return out


# --- JSON patch -------------------------------------------------------------------------------------------------

# Where github.com/evanphx/json-patch goes beyond RFC 6902, this follows it: indices may be negative, `replace` sets a
# missing value, `copy` copies a missing value as null, and a path without a slash names a field of the whole.


def apply_operations(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902) to a copy. Raises PatchError."""
    if operations is None:
        return deep_copy(target)
    if not isinstance(operations, list):
        raise PatchError(f"error decoding patch: it must be a list, not {json_kind(operations)}")
    if len(operations) > MAX_OPERATIONS:
        raise PatchError(f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}")
    for operation in operations:
        _check_operation(operation)
    out = deep_copy(target)
    copied = 0
    for operation in (each or {} for each in operations):  # null counts as an operation of an unknown kind
        if operation.get("op") == "copy" and isinstance(operation.get("from"), str):
            copied += len(orjson.dumps(_get(*_find(out, operation["from"]))))
            if copied > MAX_COPIED:
                raise _misfit(f"the copy operations make more than {MAX_COPIED} bytes")
        out = _operate(out, operation)
    return out


def _check_operation(operation: Any) -> None:
    if operation is None:
        return
    if not isinstance(operation, dict):
        raise PatchError(f"error decoding patch: an operation must be an object, not {json_kind(operation)}")
    for name in ("op", "path", "from"):
        value = operation.get(name)
        if value is not None and not isinstance(value, str):
            raise PatchError(f"error decoding patch: {name}: must be a string, not {json_kind(value)}")


def _misfit(why: str) -> PatchError:
    return PatchError(why, unprocessable=True)


def _text(operation: dict[str, Any], name: str) -> str:
    value = operation.get(name)
    if not isinstance(value, str):
        raise _misfit(f"{operation.get('op')} operation failed to decode {name}")
    return value


def _operate(target: Any, operation: dict[str, Any]) -> Any:
    op, value = operation.get("op"), operation.get("value")
    match op:
        case "add":
            return _add(target, _text(operation, "path"), deep_copy(value))
        case "remove":
            return _remove(target, _text(operation, "path"))
        case "replace":
            return _replace(target, _text(operation, "path"), deep_copy(value))
        case "test":
            path = _text(operation, "path")
            actual = _get(*_find(target, path)) if path else target
            if not (
                orjson.dumps(actual, option=orjson.OPT_SORT_KEYS) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
            ):
                raise _misfit(f"testing value {path} failed: test failed")
            return target
        case "move":
            source = _text(operation, "from")
            value = _get(*_find(target, source))
            return _add(_remove(target, source), _text(operation, "path"), value)
        case "copy":
            value = _get(*_find(target, _text(operation, "from")))
            return _add(target, _text(operation, "path"), deep_copy(value))
    raise _misfit(f"Unexpected kind: {op or 'unknown'}")


def _find(target: Any, path: str) -> tuple[Any, str]:
    """Return the object or list that a JSON pointer (RFC 6901) leads to, and the name in it."""
    _, *steps = path.split("/")
    if not steps:
        if not path:
            raise _misfit("doc is missing path")
        return target, _decoded(path)
    for step in steps[:-1]:
        target = _get(target, _decoded(step))
        if not isinstance(target, dict | list):
            raise _misfit(f"doc is missing path: {path}")
    return target, _decoded(steps[-1])


def _decoded(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _get(where: Any, key: str) -> Any:
    if isinstance(where, list):
        return where[_index(key, len(where))]
    return where.get(key)


def _index(key: str, size: int) -> int:
    """Parse an index below `size`; negative ones count from the end."""
    digits = key[1:] if key[:1] in ("+", "-") else key
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise _misfit(f"value was not a proper array index: '{key}'")
    index = int(key)
    if not -size <= index < size:
        raise _misfit(f"Unable to access invalid index: {index}")
    return index + size if index < 0 else index


def _add(target: Any, path: str, value: Any) -> Any:
    where, key = _find(target, path)
    if isinstance(where, list):
        where.insert(len(where) if key == "-" else _index(key, len(where) + 1), value)
    else:
        where[key] = value
    return target


def _replace(target: Any, path: str, value: Any) -> Any:
    if not path:
        if not isinstance(value, dict | list):
            raise _misfit("replace operation value must be object or array")
        return value
    where, key = _find(target, path)
    if isinstance(where, list):
        where[_index(key, len(where))] = value
    else:
        where[key] = value
    return target


def _remove(target: Any, path: str) -> Any:
    where, key = _find(target, path)
    if isinstance(where, list):
        del where[_index(key, len(where))]
    elif key in where:
        del where[key]
    else:
        raise _misfit(f"error in remove for path: '{path}': Unable to remove nonexistent key: {key}: missing value")
    return target


# --- strategic merge patch --------------------------------------------------------------------------------------

MERGE_KEYS = {"ownerReferences": "uid", "finalizers": "", "webhooks": "name", "matchConditions": "name"}
"""Lists of built-in resources that are merged, not replaced: by a key of their items, or as sets ("")."""

_GONE: Any = object()
_ORDER, _DELETE, _RETAIN = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys"


def merge_strategic(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch. Raises PatchError for invalid directives."""
    if not isinstance(patch, dict):
        raise PatchError(f"error decoding patch: it must be an object, not {json_kind(patch)}")
    return _strategic(target if isinstance(target, dict) else {}, patch)


def _strategic(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.get("$patch", "merge")
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise PatchError(f"unknown patch type: {directive} in map: map[$patch:{directive}]")
    out = dict(target)
    if isinstance(retained := patch.get(_RETAIN), list):
        kept = {name for name in retained if isinstance(name, str)}
        out = {name: value for name, value in out.items() if name in kept}
    for name, value in patch.items():
        if name in ("$patch", _RETAIN) or name.startswith(_ORDER):
            continue
        if name.startswith(_DELETE):
            listed = name.removeprefix(_DELETE)
            gone = {mark(item) for item in value} if isinstance(value, list) else set()
            out[listed] = [item for item in _list_in(out, listed) if mark(item) not in gone]
        elif value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            out.pop(name, None)
        elif isinstance(value, dict):
            old = out.get(name)
            out[name] = _strategic(old if isinstance(old, dict) else {}, value)
        elif isinstance(value, list) and name in MERGE_KEYS:
            out[name] = _merge_list(_list_in(out, name), value, MERGE_KEYS[name])
        else:
            out[name] = value
    return out


def _list_in(target: dict[str, Any], name: str) -> list[Any]:
    """Return the list of this name, empty if there is none. Raises PatchError for any other value."""
    found = target.get(name)
    if found is not None and not isinstance(found, list):
        raise PatchError(f"{name} is no list, but {json_kind(found)}")
    return found or []


def _merge_list(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    if not key:
        there = {mark(item) for item in patch}
        return [*patch, *(item for item in old if mark(item) not in there)]
    out = list(old)
    places = {mark(have.get(key)): at for at, have in reversed([*enumerate(out)]) if isinstance(have, dict)}
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            out.append(item)  # an item without the key is refused later, when the object is checked
            continue
        at = places.get(mark(item[key]))
        if item.get("$patch") == "delete":
            if at is not None:
                out[at] = _GONE
                del places[mark(item[key])]
        elif at is None:
            places[mark(item[key])] = len(out)
            out.append(item)
        else:
            out[at] = _strategic(out[at], item)
    return [item for item in out if item is not _GONE]
