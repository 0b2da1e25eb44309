"""JSON as Kubernetes reads it, and the fields that stand in an object twice.

orjson reads what is right. What it refuses is tried once more by the standard library, because Go's decoder takes some
of it: bytes that are no UTF-8 and halves of surrogate pairs become U+FFFD. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

_SURROGATES = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """A text that is no JSON; the message says where."""


def load_json(raw: bytes) -> Any:
    """Read JSON. Raises JsonError."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        refused = error
        if raw.isascii() and b"\\u" not in raw:
            raise JsonError(str(error)) from error
    try:
        # What orjson does not read of that either is no JSON: infinite numbers, and what is nested too deep.
        return orjson.loads(json.dumps(_mended(json.loads(raw.decode("utf-8", "replace")))))
    except (ValueError, RecursionError):
        raise JsonError(str(refused)) from refused


def _mended(value: Any) -> Any:
    """Put U+FFFD in the place of halves of surrogate pairs."""
    if isinstance(value, str):
        return _SURROGATES.sub("�", value)
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return [_mended(item) for item in value] if isinstance(value, list) else value


def duplicate_fields(raw: bytes, most: int = 100) -> list[str]:
    """Give the paths of fields that stand in an object twice, in the order of the text: `spec.actions[0].name`.

    `raw` is JSON. Fast when nothing stands twice.
    """
    seen_twice = False

    def pairs(items: list[tuple[str, Any]]) -> list[tuple[str, Any]] | dict[str, Any]:
        nonlocal seen_twice
        made = dict(items)
        if len(made) == len(items):
            return made
        seen_twice = True
        return _Pairs(items)

    value = json.loads(raw.decode("utf-8", "replace"), object_pairs_hook=pairs)
    found: list[str] = []
    if seen_twice:
        for path in _twice(value, ""):
            if len(found) == most:
                break
            found.append(path)
    return found


class _Pairs(list[tuple[str, Any]]):
    """An object in which something stands twice."""


def _twice(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict | _Pairs):
        seen: set[str] = set()
        for key, item in value.items() if isinstance(value, dict) else value:
            at = f"{path}.{key}" if path else key
            if key in seen:
                yield at
            seen.add(key)
            yield from _twice(item, at)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _twice(item, f"{path}[{index}]")
