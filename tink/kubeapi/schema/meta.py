"""The metadata of objects of every kind (Kubernetes API conventions, "Metadata").

Checks of names, labels, annotations, owners and finalizers with Kubernetes' rules and words (k8s.io/apimachinery,
pkg/api/validation), and the fields that an update may change. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from tink.kubeapi.cel import NAMED_FORMATS
from tink.kubeapi.schema.field_errors import FieldError, forbidden, invalid, quote, required, too_long
from tink.kubeapi.schema.shapes import ANY, FLAG, INT64, TEXT, TIME, Raw, array, keyed, mapping, same, struct, texts

MAX_ANNOTATIONS = 256 << 10
"""Maximum size in bytes of all annotations of an object together."""

NameRule = Callable[[str], str | None]
"""Returns an error for a name, or None."""


def _by_format(name: str) -> NameRule:
    check = NAMED_FORMATS[name].check
    return lambda text: next(iter(check(text)), None)


subdomain = _by_format("dns1123Subdomain")
"""Names of most objects: RFC 1123 subdomains."""
label = _by_format("dns1123Label")
"""Names of namespaces: RFC 1123 labels."""
dns1035 = _by_format("dns1035Label")
"""Names in definitions: RFC 1035 labels."""
qualified = _by_format("qualifiedName")
"""Keys of labels or annotations, and finalizers: an optional DNS prefix and a name."""
wrong_keys = NAMED_FORMATS["qualifiedName"].check
"""Return all errors of a key of labels or annotations, or a finalizer."""
wrong_values = NAMED_FORMATS["labelValue"].check
"""Return all errors of the value of a label."""


def path_segment(name: str) -> str | None:
    """Check a name that only has to fit into a path. Return an error or None."""
    if name in (".", ".."):
        return f"may not be '{name}'"
    return next((f"may not contain '{sign}'" for sign in "/%" if sign in name), None)


STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")


def check(meta: Mapping[str, Any], rule: NameRule, at: str = "metadata") -> list[FieldError]:
    """Return the errors in the metadata of an object before it is stored. `at` is the path of the metadata."""
    return list(_errors(meta, rule, at))


def _errors(meta: Mapping[str, Any], rule: NameRule, at: str) -> Iterator[FieldError]:
    name, prefix = meta.get("name", ""), meta.get("generateName")
    # A prefix may end with a dash, because a generated suffix follows.
    if prefix and (wrong := rule(f"{prefix[:-1]}a" if prefix.endswith("-") else prefix)):
        yield invalid(f"{at}.generateName", prefix, wrong)
    if not name:
        yield required(f"{at}.name", "name or generateName is required")
    elif wrong := rule(name):
        yield invalid(f"{at}.name", name, wrong)
    for key, value in (meta.get("labels") or {}).items():
        for words in wrong_keys(key):
            yield invalid(f"{at}.labels", key, words)
        for words in wrong_values(value):
            yield invalid(f"{at}.labels", value, words)
    size = 0
    for key, value in (meta.get("annotations") or {}).items():
        size += sum(len(text.encode(errors="surrogatepass")) for text in (key, value))
        for words in wrong_keys(key.lower()):
            yield invalid(f"{at}.annotations", key, words)
    if size > MAX_ANNOTATIONS:
        yield too_long(f"{at}.annotations", MAX_ANNOTATIONS)
    finalizers = meta.get("finalizers") or []
    for item in finalizers:
        for words in wrong_keys(item):
            yield invalid(f"{at}.finalizers", item, words)
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        both = "finalizer orphan and foregroundDeletion cannot be both set"
        yield invalid(f"{at}.finalizers", finalizers, both)
    if owners := meta.get("ownerReferences"):
        yield from _owner_errors(owners, f"{at}.ownerReferences")


def check_core_finalizers(meta: Mapping[str, Any]) -> list[FieldError]:
    """Return errors for finalizers without a domain, which only custom resources may have."""
    why = "name is neither a standard finalizer name nor is it fully qualified"
    return [
        invalid(f"metadata.finalizers[{index}]", item, why)
        for index, item in enumerate(meta.get("finalizers") or ())
        if "/" not in item and item not in STANDARD_FINALIZERS
    ]


def warn_finalizers(meta: Mapping[str, Any]) -> list[str]:
    """Return warnings for finalizers without a domain, which other writers may use as well."""
    why = "prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers"
    return [
        f"metadata.finalizers: {quote(item)}: {why}"
        for item in meta.get("finalizers") or ()
        if "/" not in item and item not in STANDARD_FINALIZERS and not wrong_keys(item)
    ]


def _owner_errors(owners: list[Raw], at: str) -> Iterator[FieldError]:
    controller = ""
    for owner in owners:
        version = owner.get("apiVersion", "")
        if not version or version.count("/") > 1 or version.endswith("/"):
            yield invalid(f"{at}.apiVersion", version, "version must not be empty")
        for key in ("kind", "name", "uid"):
            if not owner.get(key):
                yield invalid(f"{at}.{key}", owner.get(key, ""), "must not be empty")
        if version == "v1" and owner.get("kind") == "Event":
            yield invalid(at, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get("controller"):
            name = f"{owner.get('kind', '')}/{owner.get('name', '')}"
            if controller:
                both = f'Found "true" in references for {controller} and {name}'
                yield invalid(at, owners, f"Only one reference can have Controller set to true. {both}")
            controller = controller or name


def type_problem(name: str, value: str) -> str | None:
    """Return what is wrong with an apiVersion or a kind of an object, or None."""
    if not value:
        return "must not be empty"
    if name == "apiVersion":
        return f"unexpected GroupVersion string: {value}" if value.count("/") > 1 else None
    wrong = dns1035(value.lower())
    return wrong and f"may have mixed case, but should otherwise match: {wrong}"


OWNED = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace")
"""Fields that only the server sets. An update keeps their values."""


def timestamp(when: datetime) -> str:
    """Return a time in UTC as metadata contain it (metav1.Time)."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def keep_owned(new: Raw, old: Raw) -> None:
    """Copy the fields from `old` to `new` that no client may change."""
    for key in OWNED:
        if key in old:
            new[key] = old[key]
        else:
            new.pop(key, None)
    new.pop("selfLink", None)
    if new.get("generateName") is None and "generateName" in old:
        new["generateName"] = old["generateName"]


_IMMUTABLE = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds")


def check_immutable(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Return errors for immutable fields that a client has changed, before `keep_owned` restores them."""
    return [
        invalid(f"metadata.{key}", new[key], "field is immutable")
        for key in _IMMUTABLE
        if new.get(key) and new[key] != old.get(key)
    ]


def check_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[FieldError]:
    """Return errors for finalizers that an update adds to an object that is being deleted."""
    added = sorted(set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()))
    if not added or "deletionTimestamp" not in old:
        return []
    listed = f"found new finalizers []string{{{', '.join(map(quote, added))}}}"
    why = f"no new finalizers can be added if the object is being deleted, {listed}"
    return [forbidden("metadata.finalizers", why)]


def ordered(meta: Raw) -> Raw:
    """Return the fields in a readable order."""
    first = ("name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
    return {key: meta[key] for key in first if key in meta} | {k: v for k, v in sorted(meta.items()) if k not in first}


OWNER_SCHEMA = struct({**texts("apiVersion", "kind", "name", "uid"), **same(FLAG, "blockOwnerDeletion", "controller")})
META_SCHEMA = struct(
    {
        **texts("generateName", "name", "namespace", "resourceVersion", "selfLink", "uid"),
        **same(mapping(TEXT), "annotations", "labels"),
        **same(TIME, "creationTimestamp", "deletionTimestamp"),
        **same(INT64, "deletionGracePeriodSeconds", "generation"),
        "finalizers": {**array(TEXT), "x-kubernetes-list-type": "set"},
        "managedFields": array(ANY),
        "ownerReferences": keyed(OWNER_SCHEMA, "uid"),
    }
)
