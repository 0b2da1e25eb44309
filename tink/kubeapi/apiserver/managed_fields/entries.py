"""The list `metadata.managedFields`: the owners of fields (Kubernetes API reference, ManagedFieldsEntry).

The list is read into one `OwnerEntry` for each owner, and written in Kubernetes' order: appliers first, then by time,
name and version (k8s.io/apimachinery, pkg/util/managedfields/internal). An owner is a manager with its operation and
subresource; an updater also has its version of the API. `parse` checks a client's list. The list of a stored object was
written here, and `read` takes it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tink import golang
from tink.kubeapi.apiserver.managed_fields import fields
from tink.kubeapi.apiserver.managed_fields.fields import Fields, FieldsError
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.shapes import Raw

APPLY = "Apply"
UPDATE = "Update"

Owner = tuple[str, str, str, str]  # Operation, manager, version ("" for Apply), subresource

MAX_UPDATERS = 10  # Maximum number of owners by Update; older ones are merged (DefaultMaxUpdateManagers)
ANCIENT = "ancient-changes"  # The manager of merged owners


@dataclass(frozen=True, slots=True)
class OwnerEntry:
    """The fields of one owner, and their version of the API. `time` is RFC 3339 in UTC with whole seconds, or ""."""

    version: str
    time: str
    fields: Fields


Entries = dict[Owner, OwnerEntry]


def owner(manager: str, operation: str, version: str, subresource: str) -> Owner:
    """Return the identity of an owner."""
    return (operation, manager or "unknown", version if operation == UPDATE else "", subresource)


def shown(who: Owner) -> str:
    """Return the name of an owner for messages, as Kubernetes writes it."""
    operation, manager, version, subresource = who
    text = golang.quote(manager)
    if subresource:
        text += f" with subresource {golang.quote(subresource)}"
    return f"{text} using {version}" if operation == UPDATE else text


def rank(who: Owner) -> str:
    """Return the sort key of an owner in messages: the text by which Kubernetes identifies it."""
    operation, manager, version, subresource = who
    parts = (("manager", manager), ("operation", operation), ("apiVersion", version), ("subresource", subresource))
    return ",".join(f"{golang.quote(name)}:{golang.quote(value)}" for name, value in parts if value)


def _owner_in(raw: Raw) -> Owner:
    operation = raw["operation"]
    version = raw["apiVersion"] if operation == UPDATE else ""
    return (operation, raw.get("manager") or "", version, raw.get("subresource") or "")


def read(listed: Iterable[Raw]) -> Entries:
    """Read the list of a stored object."""
    found: Entries = {}
    try:
        for raw in listed:
            found[_owner_in(raw)] = OwnerEntry(raw["apiVersion"], raw.get("time", ""), raw["fieldsV1"])
    except (KeyError, TypeError, AttributeError):
        return {}  # not written by this program: no field has an owner
    return found


def parse(listed: Any) -> Entries:
    """Parse a list from a client. Raises FieldsError with Kubernetes' words."""
    if not isinstance(listed, list):
        raise FieldsError("managedFields must be a list")
    found: Entries = {}
    for index, raw in enumerate(listed):
        texts = ("manager", "operation", "apiVersion", "time", "fieldsType", "subresource")
        if not isinstance(raw, dict) or any(not isinstance(raw.get(name) or "", str) for name in texts):
            raise FieldsError(f"entry {index} of managedFields is of the wrong type")
        operation, version, kind = raw.get("operation"), raw.get("apiVersion"), raw.get("fieldsType")
        if operation not in (APPLY, UPDATE):
            raise FieldsError("operation must be `Apply` or `Update`")
        if not version:
            raise FieldsError("apiVersion must not be empty")
        if not kind:
            raise FieldsError(f"missing fieldsType in managed fields entry {index}")
        if kind != "FieldsV1":
            raise FieldsError(f"invalid fieldsType {golang.quote(kind)} in managed fields entry {index}")
        found[_owner_in(raw)] = OwnerEntry(version, _time(raw.get("time")), fields.parse(raw.get("fieldsV1")))
    return found


def _time(text: str | None) -> str:
    if not text:
        return ""
    try:
        when = datetime.fromisoformat(text)
        if when.tzinfo is None:
            raise ValueError("no time zone")
        return meta.timestamp(when.astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise FieldsError(f"time {text[:64]!r} is not RFC 3339") from error


def write(found: Entries) -> list[Raw]:
    """Return the list in its order."""
    listed = []
    for (operation, manager, _, subresource), entry in sorted(found.items(), key=_place):
        raw: Raw = {"apiVersion": entry.version, "fieldsType": "FieldsV1", "fieldsV1": entry.fields}
        if manager:
            raw["manager"] = manager
        raw["operation"] = operation
        if subresource:
            raw["subresource"] = subresource
        if entry.time:
            raw["time"] = entry.time
        listed.append(raw)
    return listed


def _place(item: tuple[Owner, OwnerEntry]) -> tuple[str, ...]:
    (operation, manager, _, subresource), entry = item
    return (operation, entry.time, manager, entry.version, subresource)


def cap(found: Entries) -> Entries:
    """Merge the oldest owners by Update until at most MAX_UPDATERS are left."""
    updaters = [who for who in found if who[0] == UPDATE]
    if len(updaters) <= MAX_UPDATERS:
        return found
    updaters.sort(key=lambda who: (found[who].time, rank(who)))
    found = dict(found)
    first: dict[str, Owner] = {}
    count = len(updaters)
    for who in updaters:
        if count <= MAX_UPDATERS:
            break
        entry = found[who]
        bucket: Owner = (UPDATE, ANCIENT, entry.version, "")
        if entry.version not in first:
            first[entry.version] = who
            continue
        if bucket not in found or who == bucket:
            entry_of_first = found.pop(first[entry.version])
            found[bucket] = entry_of_first if who != bucket else _joined(entry_of_first, entry)
        if who != bucket:
            found[bucket] = _joined(found[bucket], found.pop(who))
        count -= 1
    return found


def _joined(older: OwnerEntry, newer: OwnerEntry) -> OwnerEntry:
    return OwnerEntry(newer.version, newer.time, fields.union(newer.fields, older.fields))
