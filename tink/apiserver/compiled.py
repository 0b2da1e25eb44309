"""Schemas of definitions, compiled: kept, because a definition is written again whenever its conditions change.

What a definition describes is compiled when it is checked, in a thread where it is large (`beside`); when the change is
on the disk and is served, on the event loop, the work has been done.
"""

from __future__ import annotations

import threading
from typing import Any

import orjson

from tink.apiserver import schema, walks
from tink.apiserver.registry import Raw, root_schema
from tink.apiserver.validations import compile_rules

MAX_KEPT = 8 << 20
"""Bytes of schemas that are kept compiled beyond those that are served."""

_kept: dict[bytes, tuple[walks.Node, Any]] = {}
_lock = threading.Lock()


def compiled(openapi: Raw) -> tuple[walks.Node, Any]:
    """Compile the schema of a version and its rules (None when there are none), or give what was compiled before."""
    text = bytes(memoryview(orjson.dumps(openapi)))
    with _lock:
        made = _kept.pop(text, None)
    if made is None:
        made = schema.compile_schema(root_schema(openapi)), compile_rules(openapi)
    with _lock:
        _kept[text] = made
        while sum(map(len, _kept)) > MAX_KEPT and len(_kept) > 1:
            del _kept[next(iter(_kept))]
    return made
