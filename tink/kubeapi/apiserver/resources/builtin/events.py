"""Events: one object under two names, `v1` of the core group and `events.k8s.io/v1`, in which client-go records today.

They are stored as those of the core group, whoever wrote them; `CONVERSION` gives their fields the other names. By the
newer name more is asked: an Event says when it happened, by whom and what was done, and of one that is there only the
series changes. Words and order are those of k8s.io/kubernetes, pkg/apis/core/validation/events.go, which names the
fields as the core group does, whatever the request said. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import orjson

from tink.kubeapi.apiserver.resources.builtin.schemas import EVENT
from tink.kubeapi.apiserver.resources.registry import NAMESPACED_FIELDS
from tink.kubeapi.apiserver.tables import NAME, Cell, Column, since
from tink.kubeapi.schema import FieldError, Raw, field_errors, meta

GROUP: Final = "events.k8s.io"
OLD, NEW = "v1", f"{GROUP}/v1"
"""The two versions, as apiVersion."""
_TO_NEW: Final[Mapping[str, str]] = {
    "count": "deprecatedCount",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "involvedObject": "regarding",
    "lastTimestamp": "deprecatedLastTimestamp",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
}
_TO_OLD: Final = {new: old for old, new in _TO_NEW.items()}
NEW_EVENT: Final[Raw] = {
    **EVENT,
    "properties": {_TO_NEW.get(name, name): schema for name, schema in EVENT["properties"].items()},
}
"""The schema of the newer version."""

# --- the two versions ---


def to_new(event: Mapping[str, Any]) -> Raw:
    """Give an Event of the core group in the newer version."""
    made = {_TO_NEW.get(name, name): value for name, value in event.items()} | {"apiVersion": NEW}
    for name in ("reportingController", "reportingInstance", "note", "deprecatedCount"):
        if not made.get(name, True):
            del made[name]  # what the one version shows be it empty, the other does not
    if made.get("series") is not None:
        made["series"] = {"count": 0, "lastObservedTime": None, **made["series"]}
    complete_new(made)
    return made


def to_old(event: Mapping[str, Any]) -> Raw:
    """Give an Event of the newer version in that of the core group."""
    made = {_TO_OLD.get(name, name): value for name, value in event.items()} | {"apiVersion": OLD}
    if made.get("series") is not None:
        made["series"] = {name: value for name, value in made["series"].items() if value}
    complete(made)
    return made


class EventConversion:
    """From one name to the other, as `tink.kubeapi.apiserver.conversion` asks for it."""

    by_webhook = False
    versions = (OLD, NEW)

    def completed(self, body: bytes) -> bytes:
        """Give a stored Event as it is: its type does not change."""
        return body

    def complete(self, event: Raw) -> None:
        """Fill in what always shows, in place."""
        (complete_new if event["apiVersion"] == NEW else complete)(event)

    def translate(self, event: Raw, api_version: str) -> Raw:
        """Give an Event in a version; the same object when it is in that one."""
        if event.get("apiVersion") == api_version:
            return event
        return (to_new if api_version == NEW else to_old)(event)

    async def convert(self, events: list[Raw], api_version: str) -> list[Raw]:
        """Give Events in a version."""
        return [self.translate(event, api_version) for event in events]

    async def moved(self, api_version: str, bodies: Sequence[bytes]) -> list[bytes]:
        """Give stored Events as text in a version."""
        return [orjson.dumps(self.translate(orjson.loads(body), api_version)) for body in bodies]


CONVERSION: Final = EventConversion()

# --- what always shows ---


def complete(new: Raw) -> None:
    """Fields that an Event always shows, be they empty."""
    for name in ("involvedObject", "source"):
        new.setdefault(name, {})
    for name in ("reportingComponent", "reportingInstance"):
        new.setdefault(name, "")
    for name in ("eventTime", "firstTimestamp", "lastTimestamp"):
        new.setdefault(name, None)


def complete_new(new: Raw) -> None:
    """The same, of the newer version."""
    for name in ("regarding", "deprecatedSource"):
        new.setdefault(name, {})
    for name in ("eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"):
        new.setdefault(name, None)


# --- rules ---

_LONGEST: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_UNCHANGING: Final = (
    *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type"),
    *("eventTime", "action", "related", "reportingComponent", "reportingInstance"),
)
_OTHERWISE: Final = {"reportingComponent": "reportingController"}
"""The one field that Kubernetes names by the version of the request."""


def check(new: Raw, _old: Raw | None) -> list[FieldError]:
    """Events live beside what they are about; those that have an eventTime say more."""
    return _check(new, "reportingComponent")


def _check(new: Raw, controller: str) -> list[FieldError]:
    own, about = new["metadata"].get("namespace", ""), new["involvedObject"].get("namespace", "")
    elsewhere = field_errors.invalid("involvedObject.namespace", about, "does not match event.namespace")
    if not new.get("eventTime"):
        return [elsewhere] if (about or "default") != own else []
    found = [elsewhere] if not about and own not in ("default", "kube-system") else []
    who = new.get("reportingComponent") or ""
    found += [field_errors.required(controller)] if not who else []
    found += [field_errors.invalid(controller, who, words) for words in meta.wrong_keys(who)]
    for name, longest in _LONGEST.items():
        value = new.get(name) or ""
        if not value and name != "message":
            found.append(field_errors.required(name))
        if len(value) > longest:
            found.append(field_errors.invalid(name, "", f"can have at most {longest} characters"))
    return found


def check_new(new: Raw, old: Raw | None) -> list[FieldError]:
    """By the newer name they say it all, and only their series goes on."""
    new = to_old(new)
    found = _check(new, "reportingController")
    if old is None:
        return found + _check_series(new) + _check_created(new)
    old = to_old(old)
    if new.get("series") != old.get("series"):
        found += _check_series(new)
    return found + [
        field_errors.invalid(_OTHERWISE.get(name, name), new.get(name), "field is immutable")
        for name in _UNCHANGING
        if (new.get(name) or None) != (old.get(name) or None)
    ]


def _check_series(new: Raw) -> list[FieldError]:
    series = new.get("series")
    if series is None:
        return []
    found = []
    if series.get("count", 0) < 2:
        found.append(field_errors.invalid("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        found.append(field_errors.required("series.lastObservedTime"))
    return found


def _check_created(new: Raw) -> list[FieldError]:
    found = [] if new.get("eventTime") else [field_errors.required("eventTime")]
    kind = new.get("type", "")
    if kind not in ("Normal", "Warning"):
        found.append(field_errors.invalid("type", "", f"has invalid value: {kind}"))
    return found + [
        field_errors.invalid(name, "", "needs to be unset")
        for name in ("firstTimestamp", "lastTimestamp", "count", "source")
        if new.get(name)
    ]


# --- what can be selected ---

SELECTABLE: Final[Mapping[str, tuple[str, ...]]] = {
    **NAMESPACED_FIELDS,
    **{
        f"involvedObject.{key}": ("involvedObject", key)
        for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}
NEW_SELECTABLE: Final = {
    name.replace("involvedObject", "regarding").replace("Component", "Controller"): path
    for name, path in SELECTABLE.items()
    if name != "source"
}
"""Field -> where it stands in what is stored."""

# --- what kubectl shows ---


def last_seen(event: Mapping[str, Any]) -> str:
    """When it happened last, as far as it says so; else when it was first seen, or ""."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), *(event.get(name) for name in ("lastTimestamp", "eventTime")))
    return next(filter(None, times), "")


def _last_seen(event: Mapping[str, Any], now: datetime) -> str:
    return since(last_seen(event) or event.get("firstTimestamp"), now)


def _first_seen(event: Mapping[str, Any], now: datetime) -> str:
    return since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _part(event: Mapping[str, Any], _: datetime) -> str:
    return str((event.get("involvedObject") or {}).get("fieldPath") or "")


def _source(event: Mapping[str, Any], _: datetime) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def _count(event: Mapping[str, Any], _: datetime) -> int:
    series = event.get("series") or {}
    return int(series.get("count") or event.get("count") or 1)


def _object(event: Mapping[str, Any], _: datetime) -> str:
    about = event.get("involvedObject") or {}
    return "/".join(filter(None, (about.get("kind", "").lower(), about.get("name", ""))))


COLUMNS: Final = (
    Column("Last Seen", _last_seen, "When it happened last."),
    Column("Type", lambda event, _: event.get("type", ""), "Normal or Warning."),
    Column("Reason", lambda event, _: event.get("reason", ""), "Short reason."),
    Column("Object", _object, "What it is about."),
    Column("Subobject", _part, "The part of the object that it is about.", priority=1),
    Column("Source", _source, "Who reported it.", priority=1),
    Column("Message", lambda event, _: event.get("message", "").strip(), "What happened."),
    Column("First Seen", _first_seen, "When it happened first.", priority=1),
    Column("Count", _count, "How often it happened.", priority=1),
    Column("Name", NAME.cell, NAME.description, format="name", priority=1),
)


def _of_old(cell: Cell) -> Cell:
    return lambda event, now: cell(to_old(event), now)


NEW_COLUMNS: Final = tuple(replace(column, cell=_of_old(column.cell)) for column in COLUMNS)
