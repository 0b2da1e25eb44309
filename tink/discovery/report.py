"""Reads an inventory as hostile data: from an agent, or from a file (`tinkedge discover adopt`). Pure.

A wrong part is left out, never the whole. The models of `tink.api.v1alpha2` are the only list of fields: a field's type
chooses how its value is read.
"""

from __future__ import annotations

import ipaddress
import re
import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, get_args, get_origin

import orjson

from tink.api.bounds import MAX_INVENTORY_ITEMS
from tink.api.inventory import MAX_INVENTORY_NUMBER, clean_text, component_order, mac_address, serial_number
from tink.api.v1alpha2 import Attributes, Model, Raw
from tink.errors import TinkedgeError

MAX_REPORT_BYTES: Final = 256 << 10
"""Maximum size of a report. A server with 24 drives and 200 PCI devices needs 50 KB."""
_MAX_ITEMS_READ: Final = 4 * MAX_INVENTORY_ITEMS
"""Maximum number of items of a list that are read. They are sorted, and the first MAX_INVENTORY_ITEMS are stored."""
_MAX_PROBLEMS: Final = 5
"""Maximum number of problems of a report that the log names."""
_SERVERS_OWN: Final = frozenset({"lastUpdated", "collectionMethod", "clockOffsetSeconds"})
"""The fields of an inventory that the server writes."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NO_UUID: Final = re.compile(r"[0-]+|[f-]+")
"""Firmware without a UUID reports zeros or ones (SMBIOS 3.7 section 7.2.1)."""


class CollectionMethod(StrEnum):
    """The program that an in-band inventory comes from."""

    AGENT = "agent"
    TINK_AGENT = "tink-agent"  # Tinkerbell's older agent: rounded sizes, no serial numbers of network adapters


class UnreadableReportError(TinkedgeError, ValueError):
    """A report is no JSON object, or has no part that can be stored: the stored inventory is the better one."""


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was read: the attributes, without the server's own fields, and what was left out of them.

    problems: at most _MAX_PROBLEMS sentences; they contain names of fields and no text of the report.
    """

    attributes: Raw
    problems: tuple[str, ...] = ()


def read_report(text: bytes) -> Report:
    """Read a report of at most MAX_REPORT_BYTES (RFC 8259: UTF-8). Raises UnreadableReportError.

    NaN and Infinity are no JSON. orjson limits the depth to 1024.
    """
    try:
        raw = orjson.loads(text)
    except (orjson.JSONDecodeError, RecursionError) as error:
        # The message of orjson may contain a part of the document.
        raise UnreadableReportError("the inventory is no JSON in UTF-8") from error
    if not isinstance(raw, dict):
        raise UnreadableReportError("the inventory is no JSON object")
    report = read_attributes(raw)
    if not report.attributes:
        raise UnreadableReportError("the inventory has no part that can be stored")
    return report


def read_attributes(raw: Mapping[str, object]) -> Report:
    """Return the valid parts of an inventory in the shape of `Attributes`. Wrong parts are left out, never the whole.

    A problem names a field by its path, such as `blockDevices[3].sizeBytes`. A placeholder of firmware is no problem.
    """
    reader = _Reader()
    attributes = reader.model(Attributes, {name: raw[name] for name in raw if name not in _SERVERS_OWN}, "")
    return Report(attributes, tuple(reader.problems))


class _Reader:
    """Reads values by the types of the models' fields. Each method returns None or an empty value for a wrong one."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def model(self, kind: type[Model], raw: object, path: str) -> Raw:
        if not isinstance(raw, dict):
            self._note(path, "is no object")
            return {}
        found = {}
        for name, (field, of) in _fields(kind).items():
            value = raw.get(name)
            read = self.value(of, field, value, f"{path}.{name}" if path else name) if value is not None else None
            # An empty list is a fact: no drive is left.
            if (value == [] and get_origin(of) is list) or (read is not None and read not in ("", [], {})):
                found[name] = read
        return found

    def value(self, of: Any, field: str, raw: object, path: str) -> Any:
        if get_origin(of) is list:
            return self._list(get_args(of)[0], raw, path)
        if issubclass(of, Model):
            return self.model(of, raw, path)
        if issubclass(of, StrEnum):
            return self._checked(raw, path, isinstance(raw, str) and raw in list(of), "is none of its values")
        if of is bool:
            return self._checked(raw, path, isinstance(raw, bool), "is neither true nor false")
        if of is int:
            is_amount = type(raw) is int and 0 <= raw <= MAX_INVENTORY_NUMBER
            return self._checked(raw, path, is_amount, f"is no integer from 0 to {MAX_INVENTORY_NUMBER}")
        return self._text(field, raw, path)

    def _list(self, of: type[Model], raw: object, path: str) -> list[Raw]:
        if not isinstance(raw, list):
            self._note(path, "is no list")
            return []
        if len(raw) > MAX_INVENTORY_ITEMS:
            self._note(path, f"has {len(raw)} items, of which {MAX_INVENTORY_ITEMS} are stored")
        found = [self.model(of, each, f"{path}[{at}]") for at, each in enumerate(raw[:_MAX_ITEMS_READ])]
        return sorted(filter(None, found), key=component_order)[:MAX_INVENTORY_ITEMS]

    def _text(self, field: str, raw: object, path: str) -> str:
        if not isinstance(raw, str):
            self._note(path, "is no text")
            return ""
        match field:
            case "serial_number":
                return serial_number(raw)
            case "mac":
                return self._normal(mac_address(raw), path, "is no MAC address")
            case "address":
                with suppress(ValueError):
                    return str(ipaddress.ip_address(raw))
                return self._normal("", path, "is no IP address")
            case "uuid":
                text = clean_text(raw).lower()
                return text if _UUID.fullmatch(text) and not _NO_UUID.fullmatch(text) else ""
        return clean_text(raw)

    def _normal(self, text: str, path: str, problem: str) -> str:
        if not text:
            self._note(path, problem)
        return text

    def _checked(self, raw: object, path: str, is_valid: bool, problem: str) -> object:
        if is_valid:
            return raw
        self._note(path, problem)
        return None

    def _note(self, path: str, problem: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(f"{path} {problem}")


@cache
def _fields(kind: type[Model]) -> dict[str, tuple[str, Any]]:
    """Return the fields of a model by their JSON name, each with its name in Python and its type without None."""
    found = {}
    for name, info in kind.model_fields.items():
        of = info.annotation
        if isinstance(of, types.UnionType):
            (of,) = (each for each in get_args(of) if each is not type(None))
        found[info.alias or name] = name, of
    return found
