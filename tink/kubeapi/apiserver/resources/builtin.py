"""The built-in resources of every Kubernetes cluster: schemas, rules and columns.

Namespaces, ConfigMaps, Secrets and Events of the core group, Leases of coordination.k8s.io, and Events of
events.k8s.io. Their descriptions are in `discovery/types.yaml`. Words and order of errors are those of
k8s.io/kubernetes, pkg/apis/{core,coordination}/validation, because kubectl prints them. Pure.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from typing import Any, Final

import orjson

from tink.kubeapi.apiserver.resources.registry import NAME_FIELD, NAMESPACED_FIELDS, VERBS, Resource, Rules, only
from tink.kubeapi.apiserver.tables import AGE, NAME, Cell, Column, since
from tink.kubeapi.schema import FieldError, Raw, compile_schema, field_errors, meta, root_schema
from tink.kubeapi.schema.shapes import ANY, BYTES, FLAG, INT32, TEXT, TIME, array, mapping, same, struct, texts

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


def _key_errors(at: str, key: str) -> list[FieldError]:
    wrong = []
    if len(key) > 253:
        wrong.append("must be no more than 253 bytes")
    if not _DATA_KEY.fullmatch(key):
        wrong.append(_DATA_KEY_WORDS)
    elif key in (".", ".."):
        wrong.append(f"must not be '{key}'")
    elif key.startswith(".."):
        wrong.append("must not start with '..'")
    return [field_errors.invalid(f"{at}[{key}]", key, words) for words in wrong]


def _size(value: str, *, encoded: bool) -> int:
    return len(value) * 3 // 4 - value.count("=", -2) if encoded else len(value.encode())


def _immutable_errors(new: Raw, old: Raw | None, fields: tuple[str, ...]) -> list[FieldError]:
    if old is None or not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    changed = [name for name in fields if (new.get(name) or {}) != (old.get(name) or {})]
    kept = [] if new.get("immutable") else ["immutable"]
    return [field_errors.forbidden(name, why) for name in kept + changed]


def check_config_map(new: Raw, old: Raw | None) -> list[FieldError]:
    """Check keys, size, and that immutable data is unchanged."""
    found = _immutable_errors(new, old, ("data", "binaryData"))
    data, binary = new.get("data") or {}, new.get("binaryData") or {}
    for key in sorted(data):
        found += _key_errors("data", key)
        if key in binary:
            found.append(field_errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData"))
    for key in sorted(binary):
        found += _key_errors("binaryData", key)
    size = sum(_size(value, encoded=False) for value in data.values())
    if size + sum(_size(value, encoded=True) for value in binary.values()) > MAX_DATA:
        found.append(field_errors.too_long("", MAX_DATA))
    return found


def complete_secret(new: Raw) -> None:
    """Move stringData into data, and set the default type."""
    texts = new.pop("stringData", None)
    if texts:
        new["data"] = (new.get("data") or {}) | {
            key: base64.b64encode(value.encode()).decode() for key, value in texts.items()
        }
    new["type"] = new.get("type") or "Opaque"


_DOCKER = {"kubernetes.io/dockercfg": ".dockercfg", "kubernetes.io/dockerconfigjson": ".dockerconfigjson"}
_ACCOUNT = "kubernetes.io/service-account.name"


def check_secret(new: Raw, old: Raw | None) -> list[FieldError]:
    """Check keys, size, the requirements of the type, and that immutable data is unchanged."""
    found: list[FieldError] = []
    if old is not None and new["type"] != old.get("type"):
        found.append(field_errors.invalid("type", new["type"], "field is immutable"))
    found += _immutable_errors(new, old, ("data",))
    data: Mapping[str, str] = new.get("data") or {}
    for key in sorted(data):
        found += _key_errors("data", key)
    if sum(_size(value, encoded=True) for value in data.values()) > MAX_DATA:
        found.append(field_errors.too_long("data", MAX_DATA))
    match new["type"]:
        case "kubernetes.io/service-account-token":
            if not (new["metadata"].get("annotations") or {}).get(_ACCOUNT):
                found.append(field_errors.required(f"metadata.annotations[{_ACCOUNT}]"))
        case "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson" as kind:
            found += _check_docker(_DOCKER[kind], data)
        case "kubernetes.io/basic-auth" if "username" not in data and "password" not in data:
            found += [field_errors.required("data[username]"), field_errors.required("data[password]")]
        case "kubernetes.io/ssh-auth" if not data.get("ssh-privatekey"):
            found.append(field_errors.required("data[ssh-privatekey]"))
        case "kubernetes.io/tls":
            found += [field_errors.required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data]
    return found


def _check_docker(key: str, data: Mapping[str, str]) -> list[FieldError]:
    if key not in data:
        return [field_errors.required(f"data[{key}]")]
    try:
        content = orjson.loads(base64.b64decode(data[key]))
    except ValueError:
        return [field_errors.invalid(f"data[{key}]", REDACTED, "must be a JSON object")]
    if isinstance(content, dict):
        return []
    return [field_errors.invalid(f"data[{key}]", REDACTED, "must be a JSON object")]


# --- Namespaces ---------------------------------------------------------------------------------------------------

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that always exist."""
_IMMORTAL = frozenset(SYSTEM_NAMESPACES[:3])
"""Namespaces that cannot be deleted (k8s.io/apiserver, pkg/admission/plugin/namespace/lifecycle)."""


def complete_namespace(new: Raw) -> None:
    """Add the label with the namespace's name."""
    if name := new["metadata"].get("name"):
        new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def prepare_namespace(new: Raw, old: Raw | None, _now: datetime) -> None:
    """Set the finalizer, which stays until the namespace is empty, and the phase."""
    if old is None:
        finalizers = (new.get("spec") or {}).get("finalizers") or []
        new["spec"] = {"finalizers": [*finalizers, *(["kubernetes"] if "kubernetes" not in finalizers else [])]}
    status = new.setdefault("status", {})
    status["phase"] = "Terminating" if "deletionTimestamp" in new["metadata"] else "Active"


def limit_namespace(new: Raw, old: Raw, subresource: str, _has_status: bool) -> Raw:
    """Return the allowed change: only /finalize changes the finalizers, only /status the status."""
    if subresource == "finalize":
        return only(("spec",), new, old)
    if subresource == "status":
        return only(("status",), new, old)
    kept = {key: old[key] for key in ("spec", "status") if key in old}
    return {key: value for key, value in new.items() if key not in ("spec", "status")} | kept


def may_delete_namespace(name: str) -> str | None:
    """Return why a namespace must stay; None if it may be deleted."""
    return "this namespace may not be deleted" if name in _IMMORTAL else None


def waits(namespace: Raw) -> bool:
    """Return True if a namespace has finalizers."""
    return bool((namespace.get("spec") or {}).get("finalizers"))


# --- Leases -------------------------------------------------------------------------------------------------------


def complete_lease(new: Raw) -> None:
    """Add the spec that a Lease always has."""
    new.setdefault("spec", {})


def prepare_lease(new: Raw, _old: Raw | None, _now: datetime) -> None:
    """Drop the fields of coordinated leader election, which is off by default in Kubernetes, too."""
    for name in ("strategy", "preferredHolder"):
        new["spec"].pop(name, None)


def check_lease(new: Raw, _old: Raw | None) -> list[FieldError]:
    """Check durations and counts."""
    spec = new["spec"]
    found = []
    if spec.get("leaseDurationSeconds", 1) <= 0:
        at = "spec.leaseDurationSeconds"
        found.append(field_errors.invalid(at, spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions", 0) < 0:
        at = "spec.leaseTransitions"
        found.append(field_errors.invalid(at, spec["leaseTransitions"], "must be greater than or equal to 0"))
    return found


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


def to_new(event: Mapping[str, Any]) -> Raw:
    """Return an Event of the core group in the newer version."""
    made = {_TO_NEW.get(name, name): value for name, value in event.items()} | {"apiVersion": NEW}
    for name in ("reportingController", "reportingInstance", "note", "deprecatedCount"):
        if not made.get(name, True):
            del made[name]  # this version does not show empty values
    if made.get("series") is not None:
        made["series"] = {"count": 0, "lastObservedTime": None, **made["series"]}
    complete_new_event(made)
    return made


def to_old(event: Mapping[str, Any]) -> Raw:
    """Return an Event of the newer version in that of the core group."""
    made = {_TO_OLD.get(name, name): value for name, value in event.items()} | {"apiVersion": OLD}
    if made.get("series") is not None:
        made["series"] = {name: value for name, value in made["series"].items() if value}
    complete_event(made)
    return made


class EventConversion:
    """Converts Events between their two versions (a `conversion.Converter`)."""

    by_webhook = False
    versions = (OLD, NEW)

    def complete_text(self, body: bytes) -> bytes:
        """Return the text unchanged: the type of Events does not change."""
        return body

    def complete(self, event: Raw) -> None:
        """Add the fields that always show, in place."""
        (complete_new_event if event["apiVersion"] == NEW else complete_event)(event)

    def translate(self, event: Raw, api_version: str) -> Raw:
        """Return an Event in a version; the same object if it is in that one."""
        if event.get("apiVersion") == api_version:
            return event
        return (to_new if api_version == NEW else to_old)(event)

    async def convert(self, events: list[Raw], api_version: str) -> list[Raw]:
        """Return Events in a version."""
        return [self.translate(event, api_version) for event in events]

    async def convert_texts(self, api_version: str, bodies: Sequence[bytes]) -> list[bytes]:
        """Return stored Events as text in a version."""
        return [orjson.dumps(self.translate(orjson.loads(body), api_version)) for body in bodies]


EVENT_CONVERSION: Final = EventConversion()

# --- what always shows ---


def complete_event(new: Raw) -> None:
    """Add the fields that an Event always shows, even if empty."""
    for name in ("involvedObject", "source"):
        new.setdefault(name, {})
    for name in ("reportingComponent", "reportingInstance"):
        new.setdefault(name, "")
    for name in ("eventTime", "firstTimestamp", "lastTimestamp"):
        new.setdefault(name, None)


def complete_new_event(new: Raw) -> None:
    """Add the fields that an Event of the newer version always shows, even if empty."""
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


def check_event(new: Raw, _old: Raw | None) -> list[FieldError]:
    """Check that an Event is in the namespace of its object, and the further fields of one with an eventTime."""
    return _check_event(new, "reportingComponent")


def _check_event(new: Raw, controller: str) -> list[FieldError]:
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


def check_new_event(new: Raw, old: Raw | None) -> list[FieldError]:
    """Check the fields that the newer version requires, and that only the series of an existing Event changes."""
    new = to_old(new)
    found = _check_event(new, "reportingController")
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

EVENT_SELECTABLE: Final[Mapping[str, tuple[str, ...]]] = {
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


EVENT_COLUMNS: Final = (
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


NEW_EVENT_COLUMNS: Final = tuple(replace(column, cell=_of_old(column.cell)) for column in EVENT_COLUMNS)


def _data_count(obj: Mapping[str, Any], _: datetime) -> int:
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _resource(
    plural: str,
    kind: str,
    openapi: Raw,
    short: tuple[str, ...],
    columns: tuple[Column, ...],
    how: Rules,
    *,
    group: str = "",
    **more: Any,
) -> Resource:
    return Resource(
        group,
        "v1",
        plural,
        kind,
        openapi,
        compile_schema(root_schema(openapi)),
        singular=kind.lower(),
        list_kind=f"{kind}List",
        short_names=short,
        columns=columns,
        rules=how,
        **more,
    )


@cache
def resources() -> tuple[Resource, ...]:
    """Return the built-in resources, the core group first. They are compiled once in a process."""
    return (
        _resource(
            "namespaces",
            "Namespace",
            NAMESPACE,
            ("ns",),
            (NAME, Column("Status", lambda obj, _: obj.get("status", {}).get("phase"), "Active or Terminating."), AGE),
            Rules(
                name=meta.label,
                typed=True,
                holds=waits,
                may_delete=may_delete_namespace,
                limit=limit_namespace,
                complete=complete_namespace,
                prepare=prepare_namespace,
                selectable={**NAME_FIELD, "status.phase": ("status", "phase")},
            ),
            verbs=tuple(verb for verb in VERBS if verb != "deletecollection"),
            namespaced=False,
            status=True,
            subresources=("finalize",),
        ),
        _resource(
            "configmaps",
            "ConfigMap",
            CONFIG_MAP,
            ("cm",),
            (NAME, Column("Data", _data_count, "Number of keys."), AGE),
            Rules(typed=True, check=check_config_map),
        ),
        _resource(
            "secrets",
            "Secret",
            SECRET,
            (),
            (
                NAME,
                Column("Type", lambda obj, _: obj.get("type"), "Kind of data."),
                Column("Data", _data_count, "Number of keys."),
                AGE,
            ),
            Rules(
                typed=True,
                complete=complete_secret,
                check=check_secret,
                selectable={**NAMESPACED_FIELDS, "type": ("type",)},
            ),
        ),
        _resource(
            "events",
            "Event",
            EVENT,
            ("ev",),
            EVENT_COLUMNS,
            Rules(
                typed=True,
                creates=True,
                name=meta.path_segment,
                qualifies=False,
                complete=complete_event,
                check=check_event,
                selectable=EVENT_SELECTABLE,
            ),
            conversion=EVENT_CONVERSION,
        ),
        _resource(
            "leases",
            "Lease",
            LEASE,
            (),
            (NAME, Column("Holder", lambda obj, _: obj.get("spec", {}).get("holderIdentity"), "Who holds it."), AGE),
            Rules(
                typed=True,
                creates=True,
                unconditional=False,
                complete=complete_lease,
                prepare=prepare_lease,
                check=check_lease,
            ),
            group="coordination.k8s.io",
        ),
        _resource(
            "events",
            "Event",
            NEW_EVENT,
            ("ev",),
            NEW_EVENT_COLUMNS,
            Rules(
                typed=True,
                creates=True,
                complete=complete_new_event,
                check=check_new_event,
                selectable=NEW_EVENT_SELECTABLE,
            ),
            group=EVENTS_GROUP,
            stored_group="",
            conversion=EVENT_CONVERSION,
        ),
    )
