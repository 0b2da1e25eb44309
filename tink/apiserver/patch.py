"""Patches: what PATCH does to an object. Pure: an object and a patch in, a new object out; neither is changed.

Three kinds: JSON merge patch (RFC 7386), JSON patch (RFC 6902), and for built-in resources the strategic merge patch of
Kubernetes (`sig-api-machinery/strategic-merge-patch.md`), which kubectl sends for types that it knows.
"""

from __future__ import annotations

from typing import Any

import orjson

MAX_OPERATIONS = 10_000
"""Most operations in one JSON patch (Kubernetes: maxJSONPatchOperations)."""

MAX_COPIED = 3 << 20
"""Most bytes that the `copy` operations of one JSON patch may make: a few could double an object without end."""


class PatchError(Exception):
    """The patch cannot be applied. `unprocessable`: it is well-formed but does not fit the object (422, not 400)."""

    def __init__(self, message: str, *, unprocessable: bool = False) -> None:
        super().__init__(message)
        self.unprocessable = unprocessable


def copy(value: Any) -> Any:
    """Copy a JSON value deeply; faster than copy.deepcopy by an order of magnitude."""
    return orjson.loads(orjson.dumps(value))


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


def apply_operations(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902). Raises PatchError; the target stays as it was."""
    if not isinstance(operations, list):
        raise PatchError("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > MAX_OPERATIONS:
        raise PatchError(f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}")
    out = copy(target)
    copied = 0
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise PatchError("every operation of a JSON patch must be an object with op and path")
        if operation.get("op") == "copy":
            copied += len(orjson.dumps(_read(out, _pointer(_source(operation)))))
            if copied > MAX_COPIED:
                raise PatchError(f"the copy operations make more than {MAX_COPIED} bytes", unprocessable=True)
        out = _operate(out, operation)
    return out


def _source(operation: dict[str, Any]) -> str:
    source = operation.get("from")
    if not isinstance(source, str):
        raise PatchError(f"{operation['op']} operation needs from: {operation['path']}")
    return source


def _operate(target: Any, operation: dict[str, Any]) -> Any:
    op, path = operation.get("op"), _pointer(operation["path"])
    match op:
        case "add" | "replace" | "test":
            if "value" not in operation:
                raise PatchError(f"{op} operation needs a value: {operation['path']}")
            value = copy(operation["value"])
            if op == "test":
                if orjson.dumps(_read(target, path), option=orjson.OPT_SORT_KEYS) != orjson.dumps(
                    value, option=orjson.OPT_SORT_KEYS
                ):
                    raise PatchError(f"testing value {operation['path']} failed: test failed", unprocessable=True)
                return target
            if op == "replace":
                _read(target, path)
            return _set(target, path, value, insert=op == "add")
        case "remove":
            return _remove(target, path)
        case "move" | "copy":
            source = _pointer(_source(operation))
            value = copy(_read(target, source))
            if op == "move":
                if path[: len(source)] == source and path != source:
                    raise PatchError(f"cannot move {_source(operation)} into itself", unprocessable=True)
                target = _remove(target, source)
            return _set(target, path, value, insert=True)
    raise PatchError(f"unexpected kind of operation: {op!r}")


def _pointer(text: str) -> list[str]:
    """Read a JSON pointer (RFC 6901)."""
    if not text:
        return []
    if not text.startswith("/"):
        raise PatchError(f"path must begin with a slash: {text}")
    return [step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/")]


def _missing(step: str) -> PatchError:
    return PatchError(f"path is missing: unable to find {step!r}", unprocessable=True)


def _index(array: list[Any], step: str, *, end: bool) -> int:
    if step == "-" and end:
        return len(array)
    if not step.isascii() or not step.isdigit() or len(step) > 9 or (len(step) > 1 and step[0] == "0"):
        raise _missing(step)
    index = int(step)
    if index > len(array) or (index == len(array) and not end):
        raise _missing(step)
    return index


def _read(target: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(target, dict):
            if step not in target:
                raise _missing(step)
            target = target[step]
        elif isinstance(target, list):
            target = target[_index(target, step, end=False)]
        else:
            raise _missing(step)
    return target


def _set(target: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent = _read(target, path[:-1])
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif isinstance(parent, list):
        if insert:
            parent.insert(_index(parent, path[-1], end=True), value)
        else:
            parent[_index(parent, path[-1], end=False)] = value
    else:
        raise _missing(path[-1])
    return target


def _remove(target: Any, path: list[str]) -> Any:
    if not path:
        raise PatchError("the whole object cannot be removed", unprocessable=True)
    parent = _read(target, path[:-1])
    _read(parent, path[-1:])
    if isinstance(parent, dict):
        del parent[path[-1]]
    else:
        del parent[_index(parent, path[-1], end=False)]
    return target


# --- strategic merge patch --------------------------------------------------------------------------------------

MERGE_KEYS = {"ownerReferences": "uid", "finalizers": ""}
"""Lists of built-in resources that are merged rather than replaced: by a key of their items, or as sets ("")."""

_ORDER, _DELETE, _RETAIN = "$setElementOrder/", "$deleteFromPrimitiveList/", "$retainKeys"


def merge_strategic(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch. Raises PatchError for directives that make no sense."""
    if not isinstance(patch, dict):
        raise PatchError("a strategic merge patch must be an object")
    return _strategic(target if isinstance(target, dict) else {}, patch)


def _strategic(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    directive = patch.get("$patch", "merge")
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if directive == "delete":
        return {}
    if directive != "merge":
        raise PatchError(f"unknown directive $patch: {directive!r}")
    out = dict(target)
    if isinstance(retained := patch.get(_RETAIN), list):
        out = {name: value for name, value in out.items() if name in retained}
    for name, value in patch.items():
        if name in ("$patch", _RETAIN) or name.startswith(_ORDER):
            continue
        if name.startswith(_DELETE):
            listed = name.removeprefix(_DELETE)
            gone = value if isinstance(value, list) else []
            out[listed] = [item for item in out.get(listed) or [] if item not in gone]
        elif value is None:
            out.pop(name, None)
        elif isinstance(value, dict):
            old = out.get(name)
            out[name] = _strategic(old if isinstance(old, dict) else {}, value)
        elif isinstance(value, list) and name in MERGE_KEYS:
            out[name] = _merge_list(out.get(name) or [], value, MERGE_KEYS[name])
        else:
            out[name] = value
    return out


def _merge_list(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    if not key:
        return old + [item for item in patch if item not in old]
    out = list(old)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise PatchError(f"items of a merged list must be objects with {key}")
        at = next((i for i, have in enumerate(out) if isinstance(have, dict) and have.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del out[at]
        elif at is None:
            out.append(item)
        else:
            out[at] = _strategic(out[at], item)
    return out
