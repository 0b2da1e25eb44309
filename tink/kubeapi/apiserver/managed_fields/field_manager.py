"""The field manager: updates the list of owners on every write, and implements server-side apply.

`FieldManager.update` runs on creates, updates and patches: each changed field belongs to the writer.
`FieldManager.apply` merges a configuration into the live object. A field that the writer applied before and no longer
applies is removed unless another manager owns it. A changed field of another manager is a conflict.

The live object comes from the store, everything else from a client. The order of the steps is that of Kubernetes
(k8s.io/apimachinery, pkg/util/managedfields; sigs.k8s.io/structured-merge-diff, merge.Updater).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import orjson

from tink import golang
from tink.errors import TinkedgeError
from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.errors import StatusError
from tink.kubeapi.apiserver.managed_fields import fields
from tink.kubeapi.apiserver.managed_fields.fields import Fields, FieldsError
from tink.kubeapi.apiserver.managed_fields.types import METADATA, Difference, ItemError, Map, compile_root, same
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.shapes import Raw

# --- the list of owners -----------------------------------------------------------------------------------------------
#
# The list is read into one `OwnerEntry` for each owner, and written in Kubernetes' order: appliers first, then by time,
# name and version (k8s.io/apimachinery, pkg/util/managedfields/internal). An owner is a manager with its operation and
# subresource; an updater also has its version of the API. `parse_owners` checks a client's list. The list of a stored
# object was written here, and `read_owners` takes it as it is.

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


def owner_of(manager: str, operation: str, version: str, subresource: str) -> Owner:
    """Return the identity of an owner."""
    return (operation, manager or "unknown", version if operation == UPDATE else "", subresource)


def owner_text(who: Owner) -> str:
    """Return the name of an owner for messages, as Kubernetes writes it."""
    operation, manager, version, subresource = who
    text = golang.quote(manager)
    if subresource:
        text += f" with subresource {golang.quote(subresource)}"
    return f"{text} using {version}" if operation == UPDATE else text


def owner_rank(who: Owner) -> str:
    """Return the sort key of an owner in messages: the text by which Kubernetes identifies it."""
    operation, manager, version, subresource = who
    parts = (("manager", manager), ("operation", operation), ("apiVersion", version), ("subresource", subresource))
    return ",".join(f"{golang.quote(name)}:{golang.quote(value)}" for name, value in parts if value)


def _owner_in(raw: Raw) -> Owner:
    operation = raw["operation"]
    version = raw["apiVersion"] if operation == UPDATE else ""
    return (operation, raw.get("manager") or "", version, raw.get("subresource") or "")


def read_owners(listed: Iterable[Raw]) -> Entries:
    """Read the list of a stored object."""
    found: Entries = {}
    try:
        for raw in listed:
            found[_owner_in(raw)] = OwnerEntry(raw["apiVersion"], raw.get("time", ""), raw["fieldsV1"])
    except (KeyError, TypeError, AttributeError):
        return {}  # not written by this program: no field has an owner
    return found


def parse_owners(listed: Any) -> Entries:
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


def write_owners(found: Entries) -> list[Raw]:
    """Return the list in its order."""
    listed = []
    for (operation, manager, _, subresource), entry in sorted(found.items(), key=_rank_in_list):
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


def _rank_in_list(item: tuple[Owner, OwnerEntry]) -> tuple[str, ...]:
    (operation, manager, _, subresource), entry = item
    return (operation, entry.time, manager, entry.version, subresource)


def cap_owners(found: Entries) -> Entries:
    """Merge the oldest owners by Update until at most MAX_UPDATERS are left."""
    updaters = [who for who in found if who[0] == UPDATE]
    if len(updaters) <= MAX_UPDATERS:
        return found
    updaters.sort(key=lambda who: (found[who].time, owner_rank(who)))
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


# --- the field manager -----------------------------------------------------------------------------------------------

BLANK: Mapping[tuple[str, str], Raw] = {
    ("", "ConfigMap"): {},
    ("", "Event"): {
        "eventTime": None,
        "firstTimestamp": None,
        "involvedObject": {},
        "lastTimestamp": None,
        "reportingComponent": "",
        "reportingInstance": "",
        "source": {},
    },
    ("", "Namespace"): {"spec": {}, "status": {}},
    ("", "Secret"): {},
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): {},
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): {},
    ("apiextensions.k8s.io", "CustomResourceDefinition"): {
        "spec": {"names": {}},
        "status": {"acceptedNames": {}, "conditions": None, "storedVersions": None},
    },
    ("coordination.k8s.io", "Lease"): {"spec": {}},
    ("events.k8s.io", "Event"): {
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        "deprecatedSource": {},
        "eventTime": None,
        "regarding": {},
    },
}
"""The parts that always exist in objects of a built-in resource, by group and kind.

Kubernetes keeps built-in objects in Go structs, in which a struct that is not behind a pointer always exists. Setting a
field in it does not create the struct, so the struct itself has no owner (k8s.io/api).
"""

MAX_CAUSES = 1000  # Maximum number of listed conflicts, so that the answer is not larger than the request


class Conflicts(TinkedgeError):  # noqa: N818 - the name that Kubernetes gives them
    """The fields that an apply would change although other managers own them, by owner. False if there are none."""

    def __init__(self, owned: Mapping[Owner, Fields]) -> None:
        super().__init__("conflicts")
        self.owned = owned

    def __bool__(self) -> bool:
        return bool(self.owned)

    def without(self, allowed: Fields) -> Conflicts:
        """Return the conflicts about fields outside a set."""
        left: dict[Owner, Fields] = {}
        for who, owned in self.owned.items():
            rest = fields.from_paths([path for path in fields.paths(owned) if not fields.holds(allowed, path)])
            if rest:
                left[who] = rest
        return Conflicts(left)

    def error(self) -> StatusError:
        """Return the refusal (409), with a cause for each field."""
        causes = []
        blocks = []
        count = 0
        for who in sorted(self.owned, key=owner_rank):
            listed = [fields.render(path) for path in fields.paths(self.owned[who])]
            count += len(listed)
            message = f"conflict with {owner_text(who)}"
            causes += [{"reason": "FieldManagerConflict", "message": message, "field": path} for path in listed]
            blocks.append("\n".join([f"conflicts with {owner_text(who)}:", *(f"- {path}" for path in listed)]))
        if count == 1:
            text = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
        else:
            text = f"Apply failed with {count} conflicts: " + "\n".join(blocks)
        return StatusError(409, "Conflict", text, {"causes": causes[:MAX_CAUSES]})


_INVALID = (
    ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating "
    "admission controller; please fix your requests: {}"
)


def keep_times(new: Raw, old: Raw) -> None:
    """Restore the old times in the list of owners if an update changes nothing else, so that it is no change.

    Called on every update just before the objects are compared (k8s.io/apiserver, pkg/endpoints/handlers,
    fieldmanager.IgnoreManagedFieldsTimestampsTransformer).
    """
    after, before = new["metadata"].get("managedFields"), old["metadata"].get("managedFields")
    if not after or not before or len(after) != len(before) or after == before:
        return
    if any({**one, "time": ""} != {**other, "time": ""} for one, other in zip(after, before, strict=True)):
        return
    if {**new, "metadata": None} != {**old, "metadata": None}:
        return
    if {**new["metadata"], "managedFields": None} == {**old["metadata"], "managedFields": None}:
        new["metadata"]["managedFields"] = before


def valid_or_before(new: Raw, before: list[Raw] | None) -> list[str]:
    """Check and normalise the list of owners after mutating admission.

    `before` is the list before admission. An invalid list is replaced by it, and the warning about that is returned
    (k8s.io/apiserver, fieldmanager.NewManagedFieldsValidatingAdmissionController).
    """
    metadata = new["metadata"]
    listed = metadata.pop("managedFields", None)
    found, warnings = before, list[str]()
    if listed != before:
        try:
            found = write_owners(parse_owners(listed)) if listed else None
        except FieldsError as error:
            warnings.append(_INVALID.format(error))
    if found:
        metadata["managedFields"] = found
    return warnings


KUBECTL = "kubectl"
BEFORE_APPLY = "before-first-apply"
"""The owner of all fields of an object that had no owners when it was first applied to."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_UNOWNED = (
    *("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName"),
    *("generation", "managedFields", "resourceVersion"),
)
"""Metadata without owners (k8s.io/apimachinery, stripMetaManager)."""


class FieldManager:
    """Manages the fields of one resource in one version.

    `schema` is that of whole objects (`root_schema`). `status` is True if there is a status subresource. `kind` is the
    required kind of configurations, if given. `blank` holds the parts of a built-in object that always exist, as in
    Kubernetes' Go types; it is None for custom resources. `others` are the other served versions with their schemas, or
    None for a version behind a webhook. Entries in versions that are not served are removed, as in Kubernetes. If
    `others` is None, and for versions behind a webhook, entries stay as they are. `convert` returns an object in a
    version (an apiVersion); without it, all versions have the same fields.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        api_version: str,
        *,
        status: bool,
        kind: str = "",
        blank: Raw | None = None,
        others: Mapping[str, Mapping[str, Any] | None] | None = None,
        convert: Callable[[Raw, str], Raw] | None = None,
    ) -> None:
        self._convert = convert
        self._version = api_version
        self._kind = kind
        self._blank = blank
        self._others = others
        self._schemas = {api_version: schema} | {v: s for v, s in (others or {}).items() if s is not None}
        self._left_out: dict[str, tuple[str, ...]] = {"": ("status",) if status else ()}
        # /status writes only the status; of built-in objects also the metadata.
        self._left_out["status"] = ("spec",) if blank is not None else ("metadata", "spec")
        self._typed_in = cache(lambda version: compile_root(self._schemas[version]))
        self._tracked_in = cache(self._make_tracked_type)

    # --- update ---

    def update(self, live: Raw | None, new: Raw, manager: str, subresource: str, now: str) -> None:
        """Set `new["metadata"]["managedFields"]` for a create, update or patch by `manager`.

        `live` is None for a create, or has no uid. `new` is the object to be stored, with its defaults. `subresource`
        is "" for the resource itself. `now` is RFC 3339 in UTC with whole seconds. Never raises for a client's input:
        an object that cannot be tracked loses its list, as in Kubernetes.
        """
        metadata = new["metadata"]
        sent = metadata.pop("managedFields", None)
        managed = self._decode(live, sent, subresource)
        if not managed and live is not None and live["metadata"].get("uid"):
            return  # written before fields were tracked, or reset: tracked after the first apply
        try:
            managed = self._update_entries(
                live, new, managed, owner_of(manager, UPDATE, self._version, subresource), now
            )
        except (ItemError, RecursionError):
            return
        if managed:
            metadata["managedFields"] = write_owners(managed)

    def _decode(self, live: Raw | None, sent: Any, subresource: str) -> Entries:
        """Return the valid list: the client's, unless it is empty or wrong. `[{}]` resets it. `[]` resets it too, but
        not for custom resources: there it is lost when the body is read."""
        stored = live["metadata"].get("managedFields") or [] if live is not None else []
        if sent is None or subresource or (sent == stored and sent):
            return read_owners(stored)
        if sent == [{}] or (sent == [] and self._blank is not None):
            return {}
        try:
            return parse_owners(sent) or read_owners(stored)
        except FieldsError:
            return read_owners(stored)

    def _update_entries(self, live: Raw | None, new: Raw, managed: Entries, who: Owner, now: str) -> Entries:
        managed = self._settle(managed)
        subresource = who[3]
        changed, removed = self._compare(live, new, self._version, subresource)
        managed = self._take(live, new, managed, subresource, (changed, removed), None)
        if changed:
            before = managed.get(who)
            owned = changed if before is None else fields.union(before.fields, changed)
            managed[who] = OwnerEntry(self._version, now, owned)
        return cap_owners(managed)

    def _take(
        self, live: Raw | None, new: Raw, managed: Entries, subresource: str, own: Difference, spared: Owner | None
    ) -> Entries:
        """Remove changed and deleted fields from all owners but one. Owners without fields are removed."""
        left: Entries = {}
        found = {self._version: own}
        for who, entry in managed.items():
            if who == spared:
                left[who] = entry
                continue
            if entry.version not in found:
                if entry.version not in self._schemas:
                    left[who] = entry
                    continue
                found[entry.version] = self._compare(live, new, entry.version, subresource)
            owned = entry.fields
            for gone in found[entry.version]:
                if gone and owned:
                    owned = fields.difference(owned, gone)
            if owned:
                left[who] = entry if owned is entry.fields or owned == entry.fields else replace(entry, fields=owned)
        return left

    def _compare(self, live: Raw | None, new: Raw, version: str, subresource: str) -> Difference:
        """Return the changes of a write, in some version. Raises ItemError."""
        if version != self._version:
            live, new = self._in_version(live, version) if live is not None else None, self._in_version(new, version)
        blank = self._blank
        old = blank or {} if live is None else {**blank, **live} if blank else live
        return self._tracked_in(version, subresource).compare(old, {**blank, **new} if blank else new)

    def _in_version(self, obj: Raw, version: str) -> Raw:
        return obj if self._convert is None or obj.get("apiVersion") == version else self._convert(obj, version)

    def _make_tracked_type(self, version: str, subresource: str) -> _TrackedType:
        left_out = self._left_out.get(subresource, ())
        if subresource and version != self._version and self._blank is None:
            left_out = self._left_out["status"]
        return _TrackedType(self._typed_in(version), left_out)

    def _settle(self, managed: Entries) -> Entries:
        """Drop entries of versions that are not served, and adapt the others to today's schema."""
        left: Entries = {}
        for who, entry in managed.items():
            if entry.version in self._schemas:
                settled = self._typed_in(entry.version).settle(entry.fields)
                left[who] = entry if settled is entry.fields else replace(entry, fields=settled)
            elif self._others is None or entry.version in self._others:
                left[who] = entry
        return left

    # --- apply ---

    def apply(self, live: Raw | None, config: Raw, manager: str, subresource: str, now: str, *, force: bool) -> Raw:
        """Merge the configuration of `manager` into the live object (None if there is none). Returns a new object.

        `config` is the client's, neither pruned nor completed. With `force`, fields of other owners are taken over.
        Raises StatusError: 400 for another version or a config with managedFields, 409 with a cause for each conflict,
        500 in Kubernetes' words for a config that does not fit the schema.
        """
        try:
            return self._apply(live, config, manager, subresource, now, force=force)
        except ItemError as error:
            raise _unknown(f"failed to merge config: {error}") from error
        except RecursionError as error:
            raise errors.bad_request("the configuration is nested too deeply") from error

    def _apply(self, live: Raw | None, config: Raw, manager: str, subresource: str, now: str, *, force: bool) -> Raw:
        version, kind = str(config.get("apiVersion") or ""), str(config.get("kind") or "")
        if version != self._version or kind != (self._kind or kind):
            raise errors.bad_request(f"invalid object type: {_kind_text(version, kind)}")
        stored = live
        if live is None:
            live = {"apiVersion": self._version, "kind": kind, **(self._blank or {}), "metadata": {}}
        elif self._blank:
            live = {**self._blank, **live}
        managed = read_owners(live["metadata"].get("managedFields") or [])
        if not managed and stored is not None:
            before = owner_of(BEFORE_APPLY, UPDATE, self._version, subresource)
            managed = self._update_entries(None, live, managed, before, now)
        config_metadata = config.get("metadata")
        if isinstance(config_metadata, dict) and config_metadata.get("managedFields") is not None:
            raise errors.bad_request("metadata.managedFields must be nil")
        found: list[str] = []
        self._typed_in(self._version).check(config, "", found)
        if found:
            named = config_metadata if isinstance(config_metadata, dict) else {}
            at = f"{named.get('namespace', '')}/{named.get('name', '')}; {_kind_text(self._version, kind)}"
            listed = found[0] if len(found) == 1 else "\n  ".join(["errors:", *found])
            raise _unknown(f"failed to create typed patch object ({at}): {listed}")
        who = owner_of(manager, APPLY, self._version, subresource)
        try:
            new, owners = self._merge(live, config, managed, who, force=force)
        except Conflicts as conflicts:
            rest = conflicts.without(self._allowed_takeovers(live)) if manager == KUBECTL else conflicts
            if rest:
                raise rest.error() from conflicts
            new, owners = self._merge(live, config, managed, who, force=True)
        if new is not None and who in owners:
            owners[who] = OwnerEntry(self._version, now, owners[who].fields)
        out: Raw = orjson.loads(orjson.dumps(live if new is None else new))
        metadata = out["metadata"] = out.get("metadata") or {}
        metadata.pop("managedFields", None)
        if owners:
            metadata["managedFields"] = write_owners(owners)
        if manager == KUBECTL and (metadata.get("annotations") or {}).get(LAST_APPLIED):
            _set_last_applied(metadata["annotations"], config)
        return out

    def _merge(
        self, live: Raw, config: Raw, managed: Entries, who: Owner, *, force: bool
    ) -> tuple[Raw | None, Entries]:
        """Return the merged object, or None if nothing changed, and the owners. Raises Conflicts, ItemError."""
        managed = self._settle(managed)
        new = self._typed_in(self._version).merge(live, config)
        last = managed.get(who)
        tracked = self._tracked_in(self._version, who[3])
        mine = tracked.applied(config)
        if last is not None and (
            last.version != self._version or (last.fields != mine and fields.difference(last.fields, mine))
        ):
            left_out = tuple("f:" + name for name in self._left_out.get(who[3], ()))
            wanted = self._typed_in(self._version).applied(config) or {}
            wanted = {element: below for element, below in wanted.items() if element not in left_out}
            new = self._prune(new, managed | {who: OwnerEntry(self._version, "", wanted)}, last)
        managed[who] = OwnerEntry(self._version, last.time if last else "", mine)
        difference = self._compare(live, new, self._version, who[3])
        if not force and (conflicts := self._conflicts(live, new, managed, who, difference[0])):
            raise conflicts
        left = self._take(live, new, managed, who[3], difference, who)
        if not left[who].fields:
            del left[who]
        return (None if live == new and same(live, new) else new), left

    def _conflicts(self, live: Raw, new: Raw, managed: Entries, who: Owner, changed: Fields | None) -> Conflicts:
        found = {self._version: changed}
        conflicts: dict[Owner, Fields] = {}
        for other, entry in managed.items():
            if other == who or entry.version not in self._schemas:
                continue
            if entry.version not in found:
                found[entry.version] = self._compare(live, new, entry.version, who[3])[0]
            both = fields.intersection(entry.fields, found[entry.version] or {})
            if both:
                conflicts[other] = both
        return Conflicts(conflicts)

    def _prune(self, merged: Raw, managed: Entries, last: OwnerEntry) -> Raw:
        """Remove the fields that the applier applied last time, unless an owner has them now."""
        if last.version not in self._schemas:
            return merged
        kind = self._typed_in(last.version)
        dropped = kind.named(last.fields)
        merged = self._in_version(merged, last.version)
        pruned = kind.without(merged, dropped) or {}
        everything = kind.named(kind.applied(merged) or {})
        by_version: dict[str, Fields] = {}
        for entry in managed.values():
            by_version[entry.version] = fields.union(by_version.get(entry.version, {}), entry.fields)
        for version in sorted(by_version, key=lambda version: version != last.version):
            if version not in self._schemas:
                continue
            other = self._typed_in(version)
            whole, pruned = self._in_version(merged, version), self._in_version(pruned, version)
            kept = fields.union(other.named(other.applied(pruned) or {}), other.named(by_version[version]))
            gone = fields.difference(other.named(other.applied(whole) or {}), kept)
            pruned = other.without(whole, gone) or {}
        pruned = self._in_version(pruned, last.version)
        gone = fields.difference(everything, kind.named(kind.applied(pruned) or {}))
        result: Raw = kind.without(merged, fields.intersection(gone, dropped)) or {}
        return self._in_version(result, self._version)

    def _allowed_takeovers(self, live: Raw) -> Fields:
        """Return the fields that kubectl may take over: those that it last applied client-side, if unchanged since."""
        text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
        if not text:
            return {}
        try:
            last = orjson.loads(text)
        except orjson.JSONDecodeError:
            return {}
        if not isinstance(last, dict) or last.get("apiVersion") != self._version:
            return {}
        found: list[str] = []
        self._typed_in(self._version).check(last, "", found)
        if found:
            return {}
        allowed = self._typed_in(self._version).applied(last) or {}
        for gone in self._typed_in(self._version).compare(last, live):
            allowed = fields.difference(allowed, gone or {})
        return allowed


class _TrackedType:
    """The type of whole objects, without fields that have no owner or that the write cannot change."""

    def __init__(self, kind: Map, left_out: tuple[str, ...]) -> None:
        self._root = kind.only(("apiVersion", "kind", "metadata", *left_out))
        self._metadata = None if "metadata" in left_out else METADATA.only(_UNOWNED)
        self._rest = {"apiVersion", "kind", "metadata", *left_out}

    def compare(self, old: Raw, new: Raw) -> Difference:
        """Return the differences of two objects. Raises ItemError."""
        rest = self._rest
        changed, removed = self._root.compare(
            {name: value for name, value in old.items() if name not in rest},
            {name: value for name, value in new.items() if name not in rest},
        )
        if self._metadata is not None:
            more, less = self._metadata.compare(old.get("metadata"), new.get("metadata"))
            if more:
                changed = {"f:metadata": more, **(changed or {})}
            if less:
                removed = {"f:metadata": less, **(removed or {})}
        return _top(changed), _top(removed)

    def applied(self, config: Raw) -> Fields:
        """Return the fields that the applier of a configuration owns. Raises ItemError."""
        rest = self._rest
        found = self._root.applied({name: value for name, value in config.items() if name not in rest}) or {}
        below = self._metadata.applied(config.get("metadata")) if self._metadata is not None else None
        return _top({"f:metadata": below, **found} if below else found) or {}


def _top(found: Fields | None) -> Fields | None:
    return {element: found[element] for element in sorted(found)} if found else None


def _kind_text(api_version: str, kind: str) -> str:
    group, slash, version = api_version.rpartition("/")
    return f"{group}/{version}, Kind={kind}" if slash or version else f"/, Kind={kind}"


def _unknown(message: str) -> StatusError:
    """Return the error for a failure for which Kubernetes has no status."""
    return StatusError(500, "", message)


def _set_last_applied(annotations: dict[str, Any], config: Raw) -> None:
    config = orjson.loads(orjson.dumps(config))
    (config["metadata"].get("annotations") or {}).pop(LAST_APPLIED, None)
    text = orjson.dumps(config, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE).decode()
    annotations[LAST_APPLIED] = text.translate(fields.IN_HTML)
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > meta.MAX_ANNOTATIONS:
        del annotations[LAST_APPLIED]
