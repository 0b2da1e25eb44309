"""Tables: what `kubectl get` asks for (`application/json;as=Table;v=v1;g=meta.k8s.io`) and prints as it comes.

A column is a name, a type and a function from an object to a cell. Columns of custom resources come from the
`additionalPrinterColumns` of their definition; those of built-in resources stand in `builtin`. The rules for cells are
those of k8s.io/apiextensions-apiserver, pkg/registry/customresource/tableconvertor: the first value that the JSONPath
finds, dates as the time since then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from tink.schema import compile_path

Cell = Callable[[Mapping[str, Any], datetime], Any]
"""From an object and the time now to what the cell shows."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Priority 0 is always shown, more only with `-o wide`."""

    name: str
    cell: Cell
    description: str = ""
    type: str = "string"
    format: str = ""
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        """Give the TableColumnDefinition (meta.k8s.io/v1)."""
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


NAME = Column("Name", lambda obj, _: obj["metadata"]["name"], "Name must be unique within a namespace.", format="name")


def age(obj: Mapping[str, Any], now: datetime) -> str:
    """The time since an object was created."""
    return since(obj["metadata"].get("creationTimestamp"), now)


AGE = Column("Age", age, "Time since the object was created.")
CUSTOM_AGE = Column("Age", age, AGE.description, type="date")
"""What custom resources show when their definition names no columns."""


def since(timestamp: object, now: datetime) -> str:
    """Write the time since an RFC 3339 timestamp as kubectl does: `5m12s`, `3h`, `<unknown>` when there is none."""
    if not timestamp:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(str(timestamp))
        return human((now - then).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"


def human(seconds: float) -> str:
    """Write a duration with two or three significant digits (k8s.io/apimachinery, pkg/util/duration, HumanDuration)."""
    s = int(seconds)
    if seconds < -2:
        return "<invalid>"
    if s < 0:
        return "0s"
    m, h, d, y = s // 60, s // 3600, s // 86400, s // (86400 * 365)
    if s < 120:
        return f"{s}s"
    if m < 10:
        return f"{m}m{s % 60}s" if s % 60 else f"{m}m"
    if m < 180:
        return f"{m}m"
    if h < 8:
        return f"{h}h{m % 60}m" if m % 60 else f"{h}h"
    if h < 48:
        return f"{h}h"
    if d < 8:
        return f"{d}d{h % 24}h" if h % 24 else f"{d}d"
    if d < 365 * 2:
        return f"{d}d"
    if y < 8:
        return f"{y}y{d % 365}d" if d % 365 else f"{y}y"
    return f"{y}y"


def printer_column(definition: Mapping[str, Any]) -> Column:
    """Compile one of `additionalPrinterColumns`. Raises JSONPathError."""
    find = compile_path(definition["jsonPath"])
    kind = definition["type"]

    def cell(obj: Mapping[str, Any], now: datetime) -> Any:
        values = find(obj)
        return _show(values[0], kind, now) if values else None

    return Column(
        definition["name"],
        cell,
        definition.get("description", ""),
        kind,
        definition.get("format", ""),
        definition.get("priority", 0),
    )


def _show(value: Any, kind: str, now: datetime) -> Any:
    match kind:
        case "date":
            return since(value, now)
        case "string":
            return value if isinstance(value, str) else None if value is None else orjson.dumps(value).decode()
        case "integer":
            return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "number":
            return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        case "boolean":
            return value if isinstance(value, bool) else None
    return None


def row(obj: Mapping[str, Any], columns: Sequence[Column], now: datetime, include: str) -> dict[str, Any]:
    """Give the row of one object; `include` is None, Metadata or Object, as in the query `includeObject`."""
    made: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    made["object"] = obj if include == "Object" else None if include == "None" else partial(obj)
    return made


def partial(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Give the PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(columns: Sequence[Column], rows: Iterable[dict[str, Any]], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Give a Table (meta.k8s.io/v1)."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in columns],
        "rows": list(rows),
    }
