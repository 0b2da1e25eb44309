"""CustomResourceDefinitions: reading what a client sent, defaults, and checks of everything but the schemas.

`read` brings a definition into the form of Kubernetes' Go types: it drops unknown fields and nulls, and rejects values
of a wrong type. `SCHEMA` is the schema of definitions (k8s.io/apiextensions-apiserver, apiextensions/v1), without the
schemas in them, which are recursive. `check` checks names, versions, columns, subresources, conversion and approval.

Kubernetes moves what all versions have in common to the top level before its checks, and its errors name
`spec.validation`. Here errors name the field that the client wrote, `spec.versions[0].schema`.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation/validation.go.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tink.kubeapi.schema import shapes, webhooks
from tink.kubeapi.schema.declarations import FieldPathError, field_path
from tink.kubeapi.schema.definition_schemas import check_schema
from tink.kubeapi.schema.field_errors import (
    FieldError,
    duplicate,
    invalid_whole,
    not_supported,
    quote,
    required,
    too_many,
)
from tink.kubeapi.schema.meta import dns1035, subdomain
from tink.kubeapi.schema.shapes import (
    BYTES,
    FLAG,
    INT32,
    INT64,
    TEXT,
    TIME,
    Raw,
    array,
    atomic,
    keyed,
    mapping,
    same,
    struct,
    texts,
)
from tink.kubeapi.schema.structs import GoType, MistypedError, Reading, list_of, map_of, mistyped, struct_of, type_of

Errors = Iterator[FieldError]

MAX_DEPTH = 64
"""Maximum nesting of a schema: deeper than any schema in use, and far below Python's recursion limit."""

_NAMES = texts("kind", "listKind", "plural", "singular") | same(atomic(TEXT), "categories", "shortNames")
_CONDITION = struct(
    {**texts("type", "status", "reason", "message"), "lastTransitionTime": TIME, "observedGeneration": INT64},
    *("type", "status"),
)
_SCALE = struct(
    texts("specReplicasPath", "statusReplicasPath", "labelSelectorPath"), "specReplicasPath", "statusReplicasPath"
)
_COLUMN = struct(
    {**texts("name", "type", "jsonPath", "description", "format"), "priority": INT32}, "name", "type", "jsonPath"
)
_VERSION = struct(
    {
        **texts("name", "deprecationWarning"),
        **same(FLAG, "served", "storage", "deprecated"),
        "schema": struct({"openAPIV3Schema": shapes.ANY}),
        "subresources": struct({"status": struct({}), "scale": _SCALE}),
        "selectableFields": atomic(struct(texts("jsonPath"), "jsonPath")),
        "additionalPrinterColumns": array(_COLUMN),
    },
    *("name", "served", "storage"),
)
_SERVICE = struct({**texts("namespace", "name", "path"), "port": INT32}, "namespace", "name")
_CLIENT = struct({"url": TEXT, "caBundle": BYTES, "service": _SERVICE})
_WEBHOOK = struct({"clientConfig": _CLIENT, "conversionReviewVersions": atomic(TEXT)}, "conversionReviewVersions")
_SPEC = struct(
    {
        **texts("group", "scope"),
        "names": struct(_NAMES, "kind", "plural"),
        "versions": atomic(_VERSION),
        "conversion": struct({"strategy": TEXT, "webhook": _WEBHOOK}, "strategy"),
        "preserveUnknownFields": FLAG,
    },
    *("group", "names", "scope", "versions"),
)
_STATUS = {
    "acceptedNames": struct(_NAMES),
    "conditions": keyed(_CONDITION, "type"),
    "storedVersions": atomic(TEXT),
    "observedGeneration": INT64,
}
SCHEMA = struct({"spec": _SPEC, "status": struct(_STATUS)}, "spec")
"""The schema of definitions."""


def read(definition: Raw) -> list[str]:
    """Read spec and status of a definition, in place. Return the paths of unknown fields.

    Raises MistypedError for a value of the wrong type.
    """
    reading = Reading()
    for name, kind in _PARTS.items():
        if definition.get(name) is None:
            definition.pop(name, None)
        else:
            definition[name] = kind.read(definition[name], name, reading)
    for index, version in enumerate((definition.get("spec") or {}).get("versions") or ()):
        holder = version.get("schema") or {}
        if "openAPIV3Schema" in holder:
            at = f"spec.versions[{index}].schema.openAPIV3Schema"
            holder["openAPIV3Schema"] = _read_schema(holder["openAPIV3Schema"], at, reading)
    return reading.unknown


def _read_schema(value: Any, path: str, reading: Reading) -> Any:
    if reading.depth > MAX_DEPTH:
        raise MistypedError(f"{path}: schemas may be nested at most {MAX_DEPTH} deep")
    reading.depth += 1
    schema = _KEYWORDS.read(value, path, reading)
    reading.depth -= 1
    return schema


def _read_silently(value: Any, path: str, reading: Reading) -> Any:
    """Read a schema whose unknown fields Kubernetes does not report, so that no definition is rejected for them."""
    reading.silent += 1
    schema = _read_schema(value, path, reading)
    reading.silent -= 1
    return schema


def _read_either(value: Any, path: str, reading: Reading) -> Any:
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise mistyped(path, "a schema or a boolean", value)
    return _read_silently(value, path, reading)


def _read_items(value: Any, path: str, reading: Reading) -> Any:
    if isinstance(value, list):
        return [_read_silently(item, path, reading) for item in value if isinstance(item, dict)]
    return _read_silently(value, path, reading) if isinstance(value, dict) else {}


_SCHEMA, _EITHER = GoType(_read_schema, dict), GoType(_read_either, dict)
_RULE = struct({**texts("rule", "message", "messageExpression", "reason", "fieldPath"), "optionalOldSelf": FLAG})
_PLAIN = {
    **texts("id", "$schema", "$ref", "description", "type", "format", "title", "pattern"),
    **texts("x-kubernetes-list-type", "x-kubernetes-map-type"),
    **same(array(TEXT), "required", "x-kubernetes-list-map-keys"),
    **same({"type": "number"}, "maximum", "minimum", "multipleOf"),
    **same(INT64, "maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"),
    **same(FLAG, "exclusiveMaximum", "exclusiveMinimum", "uniqueItems", "nullable", "x-kubernetes-int-or-string"),
    **same(FLAG, "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"),
    "x-kubernetes-validations": array(_RULE),
    **same({}, "default", "example"),
    "enum": array({}),
    "dependencies": mapping({}),
    "externalDocs": struct(texts("description", "url")),
}
_KEYWORDS = struct_of(
    {name: type_of(schema) for name, schema in _PLAIN.items()}
    | dict.fromkeys(("allOf", "oneOf", "anyOf"), list_of(_SCHEMA))
    | dict.fromkeys(("properties", "patternProperties", "definitions"), map_of(_SCHEMA))
    | dict.fromkeys(("additionalProperties", "additionalItems"), _EITHER)
    | {"not": _SCHEMA, "items": GoType(_read_items, dict)}
)
_PARTS = {name: type_of(schema) for name, schema in SCHEMA["properties"].items()}


MAX_SELECTABLE = 8
APPROVED = "api-approved.kubernetes.io"
"""The annotation that allows a definition in a group that belongs to Kubernetes."""

_PROPOSAL = "see https://github.com/kubernetes/enhancements/pull/1111"
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")


@dataclass(frozen=True, slots=True)
class Past:
    """The leniency towards an update, for faults that the old definition has already. A new definition gets none."""

    known_reviews: bool = True
    any_bundle: bool = True
    unchanged: frozenset[str] = frozenset()
    selectable: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, new: Raw, old: Raw | None) -> Past:
        """Compare a definition with its old state."""
        if old is None:
            return cls()
        before = {version.get("name"): version for version in old["spec"].get("versions") or ()}
        unchanged = frozenset(
            version.get("name", "")
            for version in new.get("spec", {}).get("versions") or ()
            if version.get("name") in before and before[version["name"]].get("schema") == version.get("schema")
        )
        conversion = old["spec"].get("conversion")
        return cls(
            webhooks.knows_reviews(conversion),
            not is_true(old, "Established") or bool(webhooks.bundle_problem(conversion)),
            unchanged,
            {name: version.get("selectableFields") for name, version in before.items()},
        )


def fill_in(new: Raw) -> None:
    """Fill in what a definition leaves out, in place (k8s.io/apiextensions-apiserver, apiextensions/v1/defaults.go)."""
    spec = new.setdefault("spec", {})
    names = spec.setdefault("names", {})
    if not names.get("singular") and names.get("kind"):
        names["singular"] = names["kind"].lower()
    if not names.get("listKind") and names.get("kind"):
        names["listKind"] = names["kind"] + "List"
    spec.setdefault("conversion", {"strategy": "None"})
    service = ((spec["conversion"].get("webhook") or {}).get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)
    if not spec.get("preserveUnknownFields"):
        spec.pop("preserveUnknownFields", None)


def is_true(definition: Mapping[str, Any], condition: str) -> bool:
    """Return True if a condition of a definition is True."""
    return any(
        item.get("type") == condition and item.get("status") == "True"
        for item in (definition.get("status") or {}).get("conditions") or ()
    )


def check(new: Raw, old: Raw | None) -> list[FieldError]:
    """Return the errors in a definition. `old` is its state before an update."""
    return list(_errors(new, old))


def _errors(new: Raw, old: Raw | None) -> Errors:
    spec = new.get("spec") or {}
    names, name = spec.get("names") or {}, new["metadata"].get("name", "")
    if old is None and name != f"{names.get('plural', '')}.{spec.get('group', '')}":
        yield invalid_whole("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    yield from _spec(spec, Past.of(new, old))
    if old is not None:
        yield from _immutable(spec, old)
    yield from _stored(new)
    yield from _approval(new, old)
    if spec.get("preserveUnknownFields"):
        instead = "set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        yield invalid_whole("spec.preserveUnknownFields", True, f"cannot set to true, {instead}")


def _immutable(spec: Raw, old: Raw) -> Errors:
    paths = [("group",), ("names", "plural")]
    if is_true(old, "Established"):
        paths = [("scope",), ("names", "kind"), *paths]
    for path in paths:
        ours: Any = spec
        theirs: Any = old["spec"]
        for step in path:
            ours, theirs = (ours or {}).get(step, ""), (theirs or {}).get(step, "")
        if ours != theirs:
            yield invalid_whole(f"spec.{'.'.join(path)}", ours, "field is immutable")


def _spec(spec: Raw, past: Past) -> Errors:
    group, scope = spec.get("group", ""), spec.get("scope", "")
    if not group:
        yield required("spec.group")
    elif problem := subdomain(group):
        yield invalid_whole("spec.group", group, problem)
    elif "." not in group:
        yield invalid_whole("spec.group", group, "should be a domain with at least one dot")
    if not scope:
        yield required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        yield not_supported("spec.scope", scope, ("Cluster", "Namespaced"))
    versions = spec.get("versions") or []
    for index, version in enumerate(versions):
        yield from _version(version, f"spec.versions[{index}]", past)
    named = [version.get("name", "") for version in versions]
    if len(set(named)) < len(named):
        yield invalid_whole("spec.versions", named, "must contain unique version names")
    storing = [version.get("name", "") for version in versions if version.get("storage")]
    if len(storing) != 1:
        yield invalid_whole("spec.versions", storing, "must have exactly one version marked as storage version")
    names = spec.get("names") or {}
    for key in ("plural", "singular", "kind", "listKind"):
        if not names.get(key):
            yield required(f"spec.names.{key}")
    yield from _names(names, "spec.names")
    conversion = spec.get("conversion")
    if conversion is not None:
        if conversion.get("strategy", "") != "None" and spec.get("preserveUnknownFields"):
            detail = "must be None if spec.preserveUnknownFields is true"
            yield invalid_whole("spec.conversion.strategy", conversion.get("strategy", ""), detail)
        yield from webhooks.check_conversion(
            conversion, "spec.conversion", known_reviews=past.known_reviews, any_bundle=past.any_bundle
        )


def _version(version: Raw, at: str, past: Past) -> Errors:
    name, subresources = version.get("name", ""), version.get("subresources") or {}
    openapi, where = (version.get("schema") or {}).get("openAPIV3Schema"), f"{at}.schema.openAPIV3Schema"
    if problem := dns1035(name):
        yield invalid_whole(f"{at}.name", name, problem)
    for detail in _warning_problems(version):
        yield invalid_whole(f"{at}.deprecationWarning", version["deprecationWarning"], detail)
    if openapi is None:
        yield required(where)
    else:
        unchanged = name in past.unchanged
        yield from check_schema(openapi, where, has_status="status" in subresources, unchanged=unchanged)
    yield from _subresources(subresources, f"{at}.subresources")
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        yield from _column(column, f"{at}.additionalPrinterColumns[{index}]")
    if version.get("selectableFields"):
        where = f"{at}.selectableFields"
        if openapi is None:
            yield invalid_whole(where, "", "may only be set when validations.schema is included")
        else:
            old = None if past.selectable is None else past.selectable.get(name)
            yield from _selectable(version["selectableFields"], openapi, where, old)


def _warning_problems(version: Raw) -> Iterator[str]:
    text = version.get("deprecationWarning")
    if text is None:
        return
    if not version.get("deprecated"):
        yield "can only be set for deprecated versions"
        return
    if len(text.encode()) > 256:
        yield "must be <= 256 characters long"
    if not text:
        yield "must not be an empty string"
    for index, char in enumerate(text):
        # Go's unicode.IsPrint: letters, marks, numbers, punctuation, symbols and the space.
        if char != " " and unicodedata.category(char)[0] not in "LMNPS":
            why = "must only contain printable UTF-8 characters; non-printable character found at index"
            yield f"{why} {len(text[:index].encode())}"
            break


def _names(names: Mapping[str, Any], at: str) -> Errors:
    for key in ("plural", "singular"):
        if names.get(key) and (problem := dns1035(names[key])):
            yield invalid_whole(f"{at}.{key}", names[key], problem)
    for key in ("kind", "listKind"):
        if names.get(key) and (problem := dns1035(names[key].lower())):
            detail = f"may have mixed case, but should otherwise match: {problem}"
            yield invalid_whole(f"{at}.{key}", names[key], detail)
    yield from _listed_names(names, "shortNames", at)
    if names.get("kind") and names["kind"] == names.get("listKind"):
        yield invalid_whole(f"{at}.listKind", names["listKind"], "kind and listKind may not be the same")
    yield from _listed_names(names, "categories", at)


def _listed_names(names: Mapping[str, Any], key: str, at: str) -> Errors:
    for index, name in enumerate(names.get(key) or ()):
        if problem := dns1035(name):
            yield invalid_whole(f"{at}.{key}[{index}]", name, problem)


def _column(column: Raw, at: str) -> Errors:
    kind, form, path = column.get("type", ""), column.get("format", ""), column.get("jsonPath", "")
    one_of = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not column.get("name"):
        yield required(f"{at}.name")
    if not kind:
        yield required(f"{at}.type", one_of)
    elif kind not in _COLUMN_TYPES:
        yield invalid_whole(f"{at}.type", kind, one_of)
    if form and form not in _COLUMN_FORMATS:
        yield invalid_whole(f"{at}.format", form, f"must be one of {','.join(_COLUMN_FORMATS)}")
    if not path:
        yield required(f"{at}.JSONPath")
    yield from _json_path(path, f"{at}.JSONPath")


def _json_path(path: str, at: str, starts: tuple[str, ...] = ("",), detail: str = "") -> Errors:
    if path and not path.startswith("."):
        yield invalid_whole(at, path, "must be a simple json path starting with .")
    elif path and not path.startswith(starts):
        yield invalid_whole(at, path, detail)


def _subresources(subresources: Raw, at: str) -> Errors:
    scale = subresources.get("scale")
    if scale is None:
        return
    for key, part in (("specReplicasPath", "spec"), ("statusReplicasPath", "status")):
        where, path = f"{at}.scale.{key}", scale.get(key, "")
        if not path:
            yield required(where)
        yield from _json_path(path, where, (f".{part}.",), f"should be a json path under .{part}")
    where, path = f"{at}.scale.labelSelectorPath", scale.get("labelSelectorPath") or ""
    detail = "should be a json path under either .spec or .status"
    yield from _json_path(path, where, (".spec.", ".status."), detail)


def _selectable(fields: list[Raw], schema: Raw, at: str, old: Any) -> Errors:
    seen: set[str] = set()
    for index, item in enumerate(fields):
        where, path = f"{at}[{index}].jsonPath", item.get("jsonPath", "")
        if not path:
            yield required(where)
            continue
        try:
            known = field_path(path, schema, brackets=False)
        except FieldPathError as error:
            yield invalid_whole(where, path, f"is an invalid path: {error}")
            continue
        if known.steps[0] == "metadata":
            yield invalid_whole(where, path, "must not point to fields in metadata")
        if known.schema.get("type") not in ("string", "boolean", "integer"):
            types = "must point to a field of type string, boolean or integer"
            yield invalid_whole(where, path, f"{types}. Enum string fields and strings with formats are allowed.")
        if known.text in seen:
            yield duplicate(where, path)
        seen.add(known.text)
    if len(seen) > MAX_SELECTABLE and old != fields:
        yield too_many(at, len(seen), MAX_SELECTABLE)


def _stored(new: Raw) -> Errors:
    """Check that every version with stored objects is still declared."""
    at, versions = "status.storedVersions", (new.get("spec") or {}).get("versions") or ()
    stored = (new.get("status") or {}).get("storedVersions")
    if not stored:
        yield invalid_whole(at, stored, "must have at least one stored version")
        return
    for version in versions:
        if version.get("storage") and version.get("name", "") not in stored:
            yield invalid_whole(at, stored, f"must have the storage version {version.get('name', '')}")
    named = {version.get("name", "") for version in versions}
    for index, name in enumerate(stored):
        if name not in named and name not in stored[index + 1 :]:
            detail = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and removes "
                f"{name} from status.storedVersions"
            )
            yield invalid_whole(f"{at}[{index}]", name, detail)


# --- groups that belong to Kubernetes ---

_PROTECTED = re.compile(r"(^|\.)(k8s|kubernetes)\.io$")


def protected(group: str) -> bool:
    """Return True if a group belongs to Kubernetes, so that its definitions need an approval."""
    return _PROTECTED.search(group) is not None


def approval(annotations: Mapping[str, str]) -> tuple[str, str]:
    """Return the state of a definition's approval (Approved, Unapproved, Missing, Invalid), and a message about it."""
    note = annotations.get(APPROVED, "")
    if not note:
        return "Missing", f'protected groups must have approval annotation "{APPROVED}", {_PROPOSAL}'
    if note.startswith("unapproved"):
        return "Unapproved", f"not approved: {quote(note)}"
    try:
        parts = urlsplit(note)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme and parts.netloc:
        return "Approved", f"approved in {note}"
    how = 'with either a URL or a reason starting with "unapproved"'
    return "Invalid", f'protected groups must have approval annotation "{APPROVED}" {how}, {_PROPOSAL}'


def _approval(new: Raw, old: Raw | None) -> Errors:
    if not protected((new.get("spec") or {}).get("group", "")):
        return
    annotations = new["metadata"].get("annotations") or {}
    state, message = approval(annotations)
    at = f"metadata.annotations[{APPROVED}]"
    if old is not None and approval(old["metadata"].get("annotations") or {})[0] == state:
        return
    if state == "Missing":
        yield required(at, message)
    elif state == "Invalid":
        yield invalid_whole(at, annotations[APPROVED], message)
