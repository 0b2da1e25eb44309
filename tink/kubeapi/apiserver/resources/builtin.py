"""The built-in resources of every Kubernetes cluster: schemas, rules and columns.

Namespaces, ConfigMaps, Secrets and Events of the core group, Leases of coordination.k8s.io, and Events of
events.k8s.io. Their descriptions are in `discovery/types.yaml`. Words and order of errors are those of
k8s.io/kubernetes, pkg/apis/{core,coordination}/validation, because kubectl prints them. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, Final

import orjson

from tink.kubeapi.apiserver.resources import registry
from tink.kubeapi.apiserver.tables import AGE, NAME, Cell, Column, since
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.field_errors import FieldError
from tink.kubeapi.schema.shapes import ANY, BYTES, FLAG, INT32, TEXT, TIME, Raw, array, mapping, same, struct, texts

_REFERENCE = struct(
    texts("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid"),
    **{"x-kubernetes-map-type": "atomic"},
)
NAMESPACE = struct(
    {
        "spec": struct({"finalizers": array(TEXT)}),
        "status": struct({"phase": {"type": "string", "enum": ["Active", "Terminating"]}, "conditions": array(ANY)}),
    }
)
CONFIG_MAP = struct({"data": mapping(TEXT), "binaryData": mapping(BYTES), "immutable": FLAG})
SECRET = struct({"data": mapping(BYTES), "stringData": mapping(TEXT), "immutable": FLAG, "type": TEXT})
EVENT = struct(
    {
        **texts("action", "message", "reason", "reportingComponent", "reportingInstance", "type"),
        **same(TIME, "eventTime", "firstTimestamp", "lastTimestamp"),
        **same(_REFERENCE, "involvedObject", "related"),
        "count": INT32,
        "series": struct({"count": INT32, "lastObservedTime": TIME}),
        "source": struct(texts("component", "host")),
    }
)
LEASE = struct(
    {
        "spec": struct(
            {
                **same(TIME, "acquireTime", "renewTime"),
                **same(INT32, "leaseDurationSeconds", "leaseTransitions"),
                **texts("holderIdentity", "preferredHolder", "strategy"),
            }
        )
    }
)


_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_DATA_KEY_WORDS = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
MAX_DATA = 1 << 20
"""Maximum size of the data in a ConfigMap or Secret, in bytes."""
REDACTED = "<secret contents redacted>"

# --- ConfigMaps and Secrets ---------------------------------------------------------------------------------------


def _key_errors(at: str, key: str) -> Iterator[FieldError]:
    if len(key) > 253:
        yield field_errors.invalid(f"{at}[{key}]", key, "must be no more than 253 bytes")
    if not _DATA_KEY.fullmatch(key):
        yield field_errors.invalid(f"{at}[{key}]", key, _DATA_KEY_WORDS)
    elif key in (".", ".."):
        yield field_errors.invalid(f"{at}[{key}]", key, f"must not be '{key}'")
    elif key.startswith(".."):
        yield field_errors.invalid(f"{at}[{key}]", key, "must not start with '..'")


def _size(value: str, *, encoded: bool) -> int:
    return len(value) * 3 // 4 - value.count("=", -2) if encoded else len(value.encode())


def _immutable_errors(new: Raw, old: Raw | None, *fields: str) -> Iterator[FieldError]:
    if old is not None and old.get("immutable"):
        changed = [name for name in fields if (new.get(name) or {}) != (old.get(name) or {})]
        for name in [*([] if new.get("immutable") else ["immutable"]), *changed]:
            yield field_errors.forbidden(name, "field is immutable when `immutable` is set")


def _check_config_map(new: Raw, old: Raw | None) -> Iterator[FieldError]:
    yield from _immutable_errors(new, old, "data", "binaryData")
    data, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in sorted(data):
        yield from _key_errors("data", key)
        if key in binary:
            yield field_errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in sorted(binary):
        yield from _key_errors("binaryData", key)
    size = sum(_size(value, encoded=False) for value in data.values())
    if size + sum(_size(value, encoded=True) for value in binary.values()) > MAX_DATA:
        yield field_errors.too_long("", MAX_DATA)


def _complete_secret(new: Raw) -> None:
    texts = new.pop("stringData", None)
    if texts:
        new["data"] = (new.get("data") or {}) | {
            key: base64.b64encode(value.encode()).decode() for key, value in texts.items()
        }
    new["type"] = new.get("type") or "Opaque"


_DOCKER = {"kubernetes.io/dockercfg": ".dockercfg", "kubernetes.io/dockerconfigjson": ".dockerconfigjson"}
_ACCOUNT = "kubernetes.io/service-account.name"


def _check_secret(new: Raw, old: Raw | None) -> Iterator[FieldError]:
    if old is not None and new["type"] != old.get("type"):
        yield field_errors.invalid("type", new["type"], "field is immutable")
    yield from _immutable_errors(new, old, "data")
    data: Mapping[str, str] = new.get("data") or {}
    for key in sorted(data):
        yield from _key_errors("data", key)
    if sum(_size(value, encoded=True) for value in data.values()) > MAX_DATA:
        yield field_errors.too_long("data", MAX_DATA)
    match new["type"]:
        case "kubernetes.io/service-account-token":
            if not (new["metadata"].get("annotations") or {}).get(_ACCOUNT):
                yield field_errors.required(f"metadata.annotations[{_ACCOUNT}]")
        case "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson" as kind:
            yield from _check_docker(_DOCKER[kind], data)
        case "kubernetes.io/basic-auth" if "username" not in data and "password" not in data:
            yield from (field_errors.required(f"data[{key}]") for key in ("username", "password"))
        case "kubernetes.io/ssh-auth" if not data.get("ssh-privatekey"):
            yield field_errors.required("data[ssh-privatekey]")
        case "kubernetes.io/tls":
            yield from (field_errors.required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data)


def _check_docker(key: str, data: Mapping[str, str]) -> Iterator[FieldError]:
    if key not in data:
        yield field_errors.required(f"data[{key}]")
        return
    content = None
    with suppress(ValueError):
        content = orjson.loads(base64.b64decode(data[key]))
    if not isinstance(content, dict):
        yield field_errors.invalid(f"data[{key}]", REDACTED, "must be a JSON object")


# --- Namespaces ---------------------------------------------------------------------------------------------------

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")  # Namespaces that always exist
_IMMORTAL = frozenset(SYSTEM_NAMESPACES[:3])
"""Namespaces that cannot be deleted (k8s.io/apiserver, pkg/admission/plugin/namespace/lifecycle)."""


def _complete_namespace(new: Raw) -> None:
    if name := new["metadata"].get("name"):
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def _prepare_namespace(new: Raw, old: Raw | None, _now: datetime) -> None:
    """Set the finalizer, which stays until the namespace is empty, and the phase."""
    if old is None:
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        new["spec"] = {"finalizers": [*finalizers, *(["kubernetes"] if "kubernetes" not in finalizers else [])]}
    status = new.setdefault("status", {})
    status["phase"] = "Terminating" if "deletionTimestamp" in new["metadata"] else "Active"


def _limit_namespace(new: Raw, old: Raw, subresource: str, _has_status: bool) -> Raw:
    """Return the allowed change: only /finalize changes the finalizers, only /status the status."""
    if subresource == "finalize":
        return registry.only(("spec",), new, old)
    if subresource == "status":
        return registry.only(("status",), new, old)
    kept = {key: old[key] for key in ("spec", "status") if key in old}
    return {key: value for key, value in new.items() if key not in ("spec", "status")} | kept


# --- Leases -------------------------------------------------------------------------------------------------------


def _prepare_lease(new: Raw, _old: Raw | None, _now: datetime) -> None:
    """Drop the fields of coordinated leader election, which is off by default in Kubernetes, too."""
    for name in ("strategy", "preferredHolder"):
        new["spec"].pop(name, None)


def _check_lease(new: Raw, _old: Raw | None) -> Iterator[FieldError]:
    duration, transitions = (new["spec"].get(name, 1) for name in ("leaseDurationSeconds", "leaseTransitions"))
    if duration <= 0:
        yield field_errors.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions < 0:
        yield field_errors.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


# --- Events ------------------------------------------------------------------------------------------------------

EVENTS_GROUP: Final = "events.k8s.io"
OLD, NEW = "v1", f"{EVENTS_GROUP}/v1"
"""The two versions of Events, as apiVersion.

An Event is one object under two names: `v1` of the core group, and `events.k8s.io/v1`, in which client-go records
today. It is stored as that of the core group. The newer version requires more: when it happened, the reporter and the
action; and of an existing Event only the series changes. Words and order are those of k8s.io/kubernetes,
pkg/apis/core/validation/events.go, which names fields as the core group does in both versions.
"""
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


def _to_new(event: Mapping[str, Any]) -> Raw:
    made = {_TO_NEW.get(name, name): value for name, value in event.items()} | {"apiVersion": NEW}
    for name in ("reportingController", "reportingInstance", "note", "deprecatedCount"):
        if not made.get(name, True):
            del made[name]  # this version does not show empty values
    if made.get("series") is not None:
        made["series"] = {"count": 0, "lastObservedTime": None, **made["series"]}
    _complete_new_event(made)
    return made


def _to_old(event: Mapping[str, Any]) -> Raw:
    made = {_TO_OLD.get(name, name): value for name, value in event.items()} | {"apiVersion": OLD}
    if made.get("series") is not None:
        made["series"] = {name: value for name, value in made["series"].items() if value}
    _complete_event(made)
    return made


class EventConversion:
    """Converts Events between their two versions (a `conversion.Converter`)."""

    by_webhook = False
    here = None
    versions = (OLD, NEW)

    def restore(self, new: Raw, old: Raw) -> None:
        """Add nothing: both versions hold all fields."""

    def weight(self, _event: Raw, /) -> int:
        """Return 0: a conversion takes a few microseconds."""
        return 0

    def complete(self, event: Raw) -> None:
        """Add the fields that always show, in place."""
        (_complete_new_event if event["apiVersion"] == NEW else _complete_event)(event)

    def translate(self, event: Raw, api_version: str) -> Raw:
        """Return an Event in a version; the same object if it is in that one."""
        if event.get("apiVersion") == api_version:
            return event
        return (_to_new if api_version == NEW else _to_old)(event)

    async def convert(self, events: list[Raw], api_version: str) -> list[Raw]:
        """Return Events in a version."""
        return [self.translate(event, api_version) for event in events]

    async def convert_texts(self, api_version: str, bodies: Sequence[bytes], **_how: object) -> list[bytes]:
        """Return stored Events as text in a version. None is older than their type, which does not change."""
        return [orjson.dumps(self.translate(orjson.loads(body), api_version)) for body in bodies]


EVENT_CONVERSION: Final = EventConversion()

# --- what always shows ---


def _complete_event(new: Raw) -> None:
    """Add the fields that an Event always shows, even if empty."""
    for name in ("involvedObject", "source"):
        new.setdefault(name, {})
    for name in ("reportingComponent", "reportingInstance"):
        new.setdefault(name, "")
    for name in ("eventTime", "firstTimestamp", "lastTimestamp"):
        new.setdefault(name, None)


def _complete_new_event(new: Raw) -> None:
    """Add the fields that an Event of the newer version always shows, even if empty."""
    for name in ("regarding", "deprecatedSource"):
        new.setdefault(name, {})
    for name in ("eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"):
        new.setdefault(name, None)


# --- rules ---

_MAX_CHARACTERS: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
_UNCHANGING: Final = (
    *("involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type"),
    *("eventTime", "action", "related", "reportingComponent", "reportingInstance"),
)
_OTHERWISE: Final = {"reportingComponent": "reportingController"}
"""The one field that Kubernetes names by the version of the request."""


def _check_event(new: Raw, _old: Raw | None, controller: str = "reportingComponent") -> Iterator[FieldError]:
    """Check that an Event is in the namespace of its object, and the further fields of one with an eventTime."""
    own, about = new["metadata"].get("namespace", ""), new["involvedObject"].get("namespace", "")
    is_old = not new.get("eventTime")
    if (about or "default") != own if is_old else not about and own not in ("default", "kube-system"):
        yield field_errors.invalid("involvedObject.namespace", about, "does not match event.namespace")
    if is_old:
        return
    who = new.get("reportingComponent") or ""
    if not who:
        yield field_errors.required(controller)
    for words in meta.wrong_keys(who):
        yield field_errors.invalid(controller, who, words)
    for name, most in _MAX_CHARACTERS.items():
        value = new.get(name) or ""
        if not value and name != "message":
            yield field_errors.required(name)
        if len(value) > most:
            yield field_errors.invalid(name, "", f"can have at most {most} characters")


def _check_new_event(new: Raw, old: Raw | None) -> Iterator[FieldError]:
    """Check the fields that the newer version requires, and that only the series of an existing Event changes."""
    new, old = _to_old(new), None if old is None else _to_old(old)
    yield from _check_event(new, None, "reportingController")
    series = new.get("series")
    if series is not None and (old is None or series != old.get("series")):
        if series.get("count", 0) < 2:
            yield field_errors.invalid("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            yield field_errors.required("series.lastObservedTime")
    if old is not None:
        for name in _UNCHANGING:
            if (new.get(name) or None) != (old.get(name) or None):
                yield field_errors.invalid(_OTHERWISE.get(name, name), new.get(name), "field is immutable")
        return
    if not new.get("eventTime"):
        yield field_errors.required("eventTime")
    if (kind := new.get("type", "")) not in ("Normal", "Warning"):
        yield field_errors.invalid("type", "", f"has invalid value: {kind}")
    for name in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if new.get(name):
            yield field_errors.invalid(name, "", "needs to be unset")


# --- what can be selected ---

EVENT_SELECTABLE: Final[Mapping[str, tuple[str, ...]]] = {
    **registry.NAMESPACED_FIELDS,
    **{
        f"involvedObject.{key}": ("involvedObject", key)
        for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    },
    "reason": ("reason",),
    "reportingComponent": ("reportingComponent",),
    "source": ("source", "component"),
    "type": ("type",),
}
NEW_EVENT_SELECTABLE: Final = {
    name.replace("involvedObject", "regarding").replace("Component", "Controller"): path
    for name, path in EVENT_SELECTABLE.items()
    if name != "source"
}
"""Selectable fields of the newer version, with their paths in the stored object."""

# --- what kubectl shows ---


def last_seen(event: Mapping[str, Any]) -> str:
    """Return the time of the last occurrence, or of the first if there is only that; "" if there is none."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), *(event.get(name) for name in ("lastTimestamp", "eventTime")))
    return next(filter(None, times), "")


def _last_seen(event: Mapping[str, Any], now: datetime) -> str:
    return since(last_seen(event) or event.get("firstTimestamp"), now)


def _first_seen(event: Mapping[str, Any], now: datetime) -> str:
    return since(event.get("firstTimestamp") or event.get("eventTime"), now)


def _source(event: Mapping[str, Any], _: datetime) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    return f"{component}, {host}" if host else str(component)


def _count(event: Mapping[str, Any], _: datetime) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


def _object(event: Mapping[str, Any], _: datetime) -> str:
    about = event.get("involvedObject") or {}
    return "/".join(filter(None, (about.get("kind", "").lower(), about.get("name", ""))))


EVENT_COLUMNS: Final = (
    Column("Last Seen", _last_seen, "When it happened last."),
    Column("Type", lambda event, _: event.get("type", ""), "Normal or Warning."),
    Column("Reason", lambda event, _: event.get("reason", ""), "Short reason."),
    Column("Object", _object, "What it is about."),
    Column(
        "Subobject",
        lambda event, _: str((event.get("involvedObject") or {}).get("fieldPath") or ""),
        "The part of the object that it is about.",
        priority=1,
    ),
    Column("Source", _source, "Who reported it.", priority=1),
    Column("Message", lambda event, _: event.get("message", "").strip(), "What happened."),
    Column("First Seen", _first_seen, "When it happened first.", priority=1),
    Column("Count", _count, "How often it happened.", priority=1),
    Column("Name", NAME.cell, NAME.description, format="name", priority=1),
)


def _of_old(cell: Cell) -> Cell:
    return lambda event, now: cell(_to_old(event), now)


NEW_EVENT_COLUMNS: Final = tuple(replace(column, cell=_of_old(column.cell)) for column in EVENT_COLUMNS)


def _data_count(obj: Mapping[str, Any], _: datetime) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


@cache
def resources() -> tuple[registry.Resource, ...]:
    """Return the built-in resources, the core group first. They are compiled once in a process."""
    event: Raw = {"short_names": ("ev",), "conversion": EVENT_CONVERSION}
    return (
        registry.builtin_resource(
            *("", "namespaces", "Namespace", NAMESPACE),
            registry.Rules(
                name=meta.label,
                typed=True,
                # It waits for the end of its finalizers.
                holds=lambda namespace: bool((namespace.get("spec") or {}).get("finalizers")),
                may_delete=lambda name: "this namespace may not be deleted" if name in _IMMORTAL else None,
                limit=_limit_namespace,
                complete=_complete_namespace,
                prepare=_prepare_namespace,
                selectable={**registry.NAME_FIELD, "status.phase": ("status", "phase")},
            ),
            short_names=("ns",),
            columns=(
                NAME,
                Column("Status", lambda obj, _: obj.get("status", {}).get("phase"), "Active or Terminating."),
                AGE,
            ),
            verbs=tuple(verb for verb in registry.VERBS if verb != "deletecollection"),
            namespaced=False,
            status=True,
            subresources=("finalize",),
        ),
        registry.builtin_resource(
            *("", "configmaps", "ConfigMap", CONFIG_MAP),
            registry.Rules(typed=True, check=_check_config_map),
            short_names=("cm",),
            columns=(NAME, Column("Data", _data_count, "Number of keys."), AGE),
        ),
        registry.builtin_resource(
            *("", "secrets", "Secret", SECRET),
            registry.Rules(
                typed=True,
                complete=_complete_secret,
                check=_check_secret,
                selectable={**registry.NAMESPACED_FIELDS, "type": ("type",)},
            ),
            columns=(
                NAME,
                Column("Type", lambda obj, _: obj.get("type"), "Kind of data."),
                Column("Data", _data_count, "Number of keys."),
                AGE,
            ),
        ),
        registry.builtin_resource(
            *("", "events", "Event", EVENT),
            registry.Rules(
                typed=True,
                creates=True,
                name=meta.path_segment,
                qualifies=False,
                complete=_complete_event,
                check=_check_event,
                selectable=EVENT_SELECTABLE,
            ),
            columns=EVENT_COLUMNS,
            **event,
        ),
        registry.builtin_resource(
            *("coordination.k8s.io", "leases", "Lease", LEASE),
            registry.Rules(
                typed=True,
                creates=True,
                unconditional=False,
                complete=lambda new: new.setdefault("spec", {}),
                prepare=_prepare_lease,
                check=_check_lease,
            ),
            columns=(
                NAME,
                Column("Holder", lambda obj, _: obj.get("spec", {}).get("holderIdentity"), "Who holds it."),
                AGE,
            ),
        ),
        registry.builtin_resource(
            *(EVENTS_GROUP, "events", "Event", NEW_EVENT),
            registry.Rules(
                typed=True,
                creates=True,
                complete=_complete_new_event,
                check=_check_new_event,
                selectable=NEW_EVENT_SELECTABLE,
            ),
            columns=NEW_EVENT_COLUMNS,
            stored_group="",
            **event,
        ),
    )
