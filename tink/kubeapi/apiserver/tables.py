"""Tables for `kubectl get` (`application/json;as=Table;v=v1;g=meta.k8s.io`), which kubectl prints unchanged.

A column is a name, a type and a function from an object to a cell. Columns of custom resources come from the
`additionalPrinterColumns` of their definition. The rules for cells are those of k8s.io/apiextensions-apiserver,
pkg/registry/customresource/tableconvertor: the first value of the JSONPath, dates as the time since then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tink.golang import marshal, strconv
from tink.kubeapi.schema.jsonpath import Byte, JSONPathError, compile_path

Cell = Callable[[Mapping[str, Any], datetime], Any]
"""Function from an object and the present time to the value of a cell."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Priority 0 is always shown, a higher one only with `-o wide`."""

    name: str
    cell: Cell
    description: str = ""
    type: str = "string"
    format: str = ""
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        """Return the TableColumnDefinition (meta.k8s.io/v1)."""
        return {name: getattr(self, name) for name in ("name", "type", "format", "description", "priority")}


NAME = Column("Name", lambda obj, _: obj["metadata"]["name"], "Name must be unique within a namespace.", format="name")


def age(obj: Mapping[str, Any], now: datetime) -> str:
    """Return the time since an object was created."""
    return since(obj["metadata"].get("creationTimestamp"), now)


AGE = Column("Age", age, "Time since the object was created.")
CUSTOM_AGE = Column("Age", age, AGE.description, type="date")
"""The column of custom resources whose definition names no columns."""


def since(timestamp: object, now: datetime) -> str:
    """Return the time since an RFC 3339 timestamp as kubectl writes it: `5m12s`, `3h`, `<unknown>` for ""."""
    if not timestamp:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(str(timestamp))
        return human((now - then).total_seconds())
    except (ValueError, TypeError):
        return "<invalid>"


_HOUR, _DAY, _YEAR = 3600, 86400, 86400 * 365
_DURATIONS = (
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (3 * _HOUR, 60, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", 60, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)
"""Up to a number of seconds: the unit in seconds, its letter, and the smaller unit for the rest (0: none)."""


def human(seconds: float) -> str:
    """Return a duration with two or three significant digits (k8s.io/apimachinery, pkg/util/duration,
    HumanDuration)."""
    if seconds < -2:
        return "<invalid>"
    s = max(0, int(seconds))
    for bound, unit, letter, part, small in _DURATIONS:
        if s < bound:
            rest = s % unit // part if part else 0
            return f"{s // unit}{letter}{f'{rest}{small}' if rest else ''}"
    return f"{s // _YEAR}y"


def printer_column(definition: Mapping[str, Any]) -> Column:
    """Compile one of `additionalPrinterColumns`. Raises JSONPathError."""
    path, kind = definition["jsonPath"], definition["type"]
    find = compile_path(path)

    def cell(obj: Mapping[str, Any], now: datetime) -> Any:
        try:
            values = find(obj)
        except JSONPathError:  # the path does not match the object's shape
            return None
        return _show(values[0], kind, now) if values else None

    return Column(
        definition["name"],
        cell,
        definition.get("description") or f"Custom resource definition column (in JSONPath format): {path}",
        kind,
        definition.get("format", ""),
        definition.get("priority", 0),
    )


def _show(value: Any, kind: str, now: datetime) -> Any:
    """Return a value for a column of this type (tableconvertor.go, ConvertToTable and cellForJSONValue)."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool | Byte)
    match kind:
        case "string":
            return _text(value)
        case "date" if isinstance(value, str):
            # apimachinery, Time.UnmarshalQueryParameter, ConvertToHumanReadableDateType
            if value in ("", "null", "0001-01-01T00:00:00Z"):
                return "<unknown>"
            return since(value, now) if _RFC3339.fullmatch(value) else "<invalid>"
        case "integer" if is_number:
            # Go's result for a float outside int64 (amd64).
            return int(value) if -(1 << 63) <= value < 1 << 63 else -(1 << 63)
        case "number" if is_number:
            # As encoding/json writes a float64: 5, not 5.0.
            return int(value) if float(value).is_integer() and abs(value) < 1 << 53 else float(value)
        case "boolean" if isinstance(value, bool):
            return value
    return None


def _text(value: Any) -> str:
    """Return a value as text, like PrintResults of client-go, util/jsonpath."""
    if value is None:
        return "<no value>"
    if isinstance(value, dict | list):
        return marshal(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return strconv.format_float(value, "g") if isinstance(value, float) else str(value)


# Go's time.RFC3339. `fromisoformat` takes more, such as 20261121T110000Z.
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def row(obj: Mapping[str, Any], columns: Sequence[Column], now: datetime, include: str) -> dict[str, Any]:
    """Return the row of one object; `include` is None, Metadata or Object, as in the query `includeObject`."""
    made: dict[str, Any] = {"cells": [column.cell(obj, now) for column in columns]}
    made["object"] = obj if include == "Object" else None if include == "None" else partial(obj)
    return made


def partial(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return the PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def table(columns: Sequence[Column], rows: Iterable[dict[str, Any]], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Table (meta.k8s.io/v1)."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in columns],
        "rows": list(rows),
    }
