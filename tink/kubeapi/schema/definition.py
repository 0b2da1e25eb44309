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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tink.kubeapi.schema import definition_schemas, field_errors, shapes, webhooks
from tink.kubeapi.schema.declarations import FieldPathError, field_path
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole
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
from tink.kubeapi.schema.structs import MistypedError, Reading, Type, list_of, map_of, mistyped, struct_of, type_of

MAX_DEPTH = 64
"""Maximum nesting of a schema: deeper than any schema in use, and far below Python's recursion limit."""

_NAMES = texts("kind", "listKind", "plural", "singular") | same(atomic(TEXT), "categories", "shortNames")
_CONDITION = struct(
    {**texts("type", "status", "reason", "message"), "lastTransitionTime": TIME, "observedGeneration": INT64},
    "type",
    "status",
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
    "name",
    "served",
    "storage",
)
_SERVICE = struct({**texts("namespace", "name", "path"), "port": INT32}, "namespace", "name")
_WEBHOOK = struct(
    {
        "clientConfig": struct({"url": TEXT, "caBundle": BYTES, "service": _SERVICE}),
        "conversionReviewVersions": atomic(TEXT),
    },
    "conversionReviewVersions",
)
_SPEC = struct(
    {
        **texts("group", "scope"),
        "names": struct(_NAMES, "kind", "plural"),
        "versions": atomic(_VERSION),
        "conversion": struct({"strategy": TEXT, "webhook": _WEBHOOK}, "strategy"),
        "preserveUnknownFields": FLAG,
    },
    "group",
    "names",
    "scope",
    "versions",
)
_STATUS = struct(
    {
        "acceptedNames": struct(_NAMES),
        "conditions": keyed(_CONDITION, "type"),
        "storedVersions": atomic(TEXT),
        "observedGeneration": INT64,
    }
)
SCHEMA = struct({"spec": _SPEC, "status": _STATUS}, "spec")
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
    try:
        return _KEYWORDS.read(value, path, reading)
    finally:
        reading.depth -= 1


def _read_silently(value: Any, path: str, reading: Reading) -> Any:
    """Read a schema whose unknown fields Kubernetes does not report, so that no definition is rejected for them."""
    reading.silent += 1
    try:
        return _read_schema(value, path, reading)
    finally:
        reading.silent -= 1


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


_SCHEMA, _EITHER = Type(_read_schema, dict), Type(_read_either, dict)
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
    | {"not": _SCHEMA, "items": Type(_read_items, dict)}
)
_PARTS = {name: type_of(schema) for name, schema in SCHEMA["properties"].items()}


MAX_SELECTABLE = 8
APPROVED = "api-approved.kubernetes.io"
"""The annotation that allows a definition in a group that belongs to Kubernetes."""

_PROPOSAL = "see https://github.com/kubernetes/enhancements/pull/1111"
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_AT_ROOT = (
    "description", "type", "format", "title", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "multipleOf", "required", "items", "properties",
    "externalDocs", "example", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-validations",
)  # fmt: skip
"""Keywords that the root of a schema may have if status is a subresource."""


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
    spec = new.get("spec") or {}
    found: list[FieldError] = []
    names = spec.get("names") or {}
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    name = new["metadata"].get("name", "")
    if old is None and name != expected:
        found.append(invalid_whole("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    found += _spec(spec, Past.of(new, old))
    if old is not None:
        found += _immutable(spec, old)
    found += _stored(new)
    found += _approval(new, old)
    if spec.get("preserveUnknownFields"):
        detail = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        found.append(invalid_whole("spec.preserveUnknownFields", True, detail))
    return found


def _immutable(spec: Raw, old: Raw) -> list[FieldError]:
    paths = [("group",), ("names", "plural")]
    if is_true(old, "Established"):
        paths = [("scope",), ("names", "kind"), *paths]
    found = []
    for path in paths:
        ours: Any = spec
        theirs: Any = old["spec"]
        for step in path:
            ours, theirs = (ours or {}).get(step, ""), (theirs or {}).get(step, "")
        if ours != theirs:
            found.append(invalid_whole(f"spec.{'.'.join(path)}", ours, "field is immutable"))
    return found


def _spec(spec: Raw, past: Past) -> list[FieldError]:
    found: list[FieldError] = []
    group = spec.get("group", "")
    if not group:
        found.append(field_errors.required("spec.group"))
    elif problem := subdomain(group):
        found.append(invalid_whole("spec.group", group, problem))
    elif "." not in group:
        found.append(invalid_whole("spec.group", group, "should be a domain with at least one dot"))
    scope = spec.get("scope", "")
    if not scope:
        found.append(field_errors.required("spec.scope"))
    elif scope not in ("Cluster", "Namespaced"):
        found.append(field_errors.not_supported("spec.scope", scope, ("Cluster", "Namespaced")))
    versions = spec.get("versions") or []
    for index, version in enumerate(versions):
        found += _version(version, f"spec.versions[{index}]", past)
    named = [version.get("name", "") for version in versions]
    if len(set(named)) < len(named):
        found.append(invalid_whole("spec.versions", named, "must contain unique version names"))
    storing = [version.get("name", "") for version in versions if version.get("storage")]
    if len(storing) != 1:
        detail = "must have exactly one version marked as storage version"
        found.append(invalid_whole("spec.versions", storing, detail))
    names = spec.get("names") or {}
    found += [
        field_errors.required(f"spec.names.{key}")
        for key in ("plural", "singular", "kind", "listKind")
        if not names.get(key)
    ]
    found += _names(names, "spec.names")
    conversion = spec.get("conversion")
    if conversion is not None:
        if conversion.get("strategy", "") != "None" and spec.get("preserveUnknownFields"):
            detail = "must be None if spec.preserveUnknownFields is true"
            found.append(invalid_whole("spec.conversion.strategy", conversion.get("strategy", ""), detail))
        found += webhooks.check_conversion(
            conversion, "spec.conversion", known_reviews=past.known_reviews, any_bundle=past.any_bundle
        )
    return found


def _version(version: Raw, at: str, past: Past) -> list[FieldError]:
    name, subresources = version.get("name", ""), version.get("subresources") or {}
    openapi = (version.get("schema") or {}).get("openAPIV3Schema")
    found: list[FieldError] = []
    if problem := dns1035(name):
        found.append(invalid_whole(f"{at}.name", name, problem))
    warned = version.get("deprecationWarning")
    found += [invalid_whole(f"{at}.deprecationWarning", warned, detail) for detail in _warning_problems(version)]
    if openapi is None:
        found.append(field_errors.required(f"{at}.schema.openAPIV3Schema"))
    else:
        where = f"{at}.schema.openAPIV3Schema"
        found += _validation(openapi, where, status="status" in subresources, free=name in past.unchanged)
    found += _subresources(subresources, f"{at}.subresources")
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        found += _column(column, f"{at}.additionalPrinterColumns[{index}]")
    if version.get("selectableFields"):
        where = f"{at}.selectableFields"
        if openapi is None:
            found.append(invalid_whole(where, "", "may only be set when validations.schema is included"))
        else:
            old = None if past.selectable is None else past.selectable.get(name)
            found += _selectable(version["selectableFields"], openapi, where, old)
    return found


def _warning_problems(version: Raw) -> list[str]:
    text = version.get("deprecationWarning")
    if text is None:
        return []
    if not version.get("deprecated"):
        return ["can only be set for deprecated versions"]
    found = []
    if len(text.encode()) > 256:
        found.append("must be <= 256 characters long")
    if not text:
        found.append("must not be an empty string")
    for index, char in enumerate(text):
        if not _printable(char):
            at = len(text[:index].encode())
            why = "must only contain printable UTF-8 characters; non-printable character found at index"
            found.append(f"{why} {at}")
            break
    return found


def _printable(char: str) -> bool:
    """Return True for the characters of Go's unicode.IsPrint: letters, marks, numbers, punctuation, symbols and the
    space.
    """
    return char == " " or unicodedata.category(char)[0] in "LMNPS"


def _validation(schema: Raw, at: str, *, status: bool, free: bool) -> list[FieldError]:
    """Check a schema. `status` is True if status is a subresource, `free` if the schema has not changed."""
    found = _root_keywords(schema, at) if status else []
    if schema.get("nullable"):
        found.append(field_errors.forbidden(f"{at}.nullable", "nullable cannot be true at the root"))
    scope = None
    unusable = definition_schemas.unsupported(schema)
    if not unusable:
        shape = definition_schemas.check_structural(schema, at) or definition_schemas.check_defaults(schema, at)
        found += shape
        if not shape:
            scope = definition_schemas.Scope.root(schema)
    schema_errors, rule_errors = definition_schemas.check_keywords(
        schema, at, definition_schemas.Rules(free=free), scope
    )
    found += schema_errors + rule_errors
    if not found and unusable:
        found.append(invalid_whole(at, "", unusable))
    if scope is not None:
        found += scope.costs.errors(at)
    return found


def _root_keywords(schema: Raw, at: str) -> list[FieldError]:
    if schema.get("type", "object") not in ("", "object"):
        detail = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        return [invalid_whole(f"{at}.type", schema["type"], detail)]
    others = [name for name, value in schema.items() if name not in _AT_ROOT and value not in ("", False)]
    if not others:
        return []
    allowed = f"only [{' '.join(_AT_ROOT)}] fields are allowed"
    return [invalid_whole(at, others, f"{allowed} at the root of the schema if the status subresource is enabled")]


def _names(names: Mapping[str, Any], at: str) -> list[FieldError]:
    found = []
    for key in ("plural", "singular"):
        if names.get(key) and (problem := dns1035(names[key])):
            found.append(invalid_whole(f"{at}.{key}", names[key], problem))
    for key in ("kind", "listKind"):
        if names.get(key) and (problem := dns1035(names[key].lower())):
            detail = f"may have mixed case, but should otherwise match: {problem}"
            found.append(invalid_whole(f"{at}.{key}", names[key], detail))
    for index, name in enumerate(names.get("shortNames") or ()):
        if problem := dns1035(name):
            found.append(invalid_whole(f"{at}.shortNames[{index}]", name, problem))
    if names.get("kind") and names["kind"] == names.get("listKind"):
        found.append(invalid_whole(f"{at}.listKind", names["listKind"], "kind and listKind may not be the same"))
    for index, name in enumerate(names.get("categories") or ()):
        if problem := dns1035(name):
            found.append(invalid_whole(f"{at}.categories[{index}]", name, problem))
    return found


def _column(column: Raw, at: str) -> list[FieldError]:
    found = []
    if not column.get("name"):
        found.append(field_errors.required(f"{at}.name"))
    kind, form, path = column.get("type", ""), column.get("format", ""), column.get("jsonPath", "")
    one_of = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not kind:
        found.append(field_errors.required(f"{at}.type", one_of))
    elif kind not in _COLUMN_TYPES:
        found.append(invalid_whole(f"{at}.type", kind, one_of))
    if form and form not in _COLUMN_FORMATS:
        found.append(invalid_whole(f"{at}.format", form, f"must be one of {','.join(_COLUMN_FORMATS)}"))
    if not path:
        found.append(field_errors.required(f"{at}.JSONPath"))
    return found + _json_path(path, f"{at}.JSONPath")


def _json_path(path: str, at: str, starts: Sequence[str] = (), detail: str = "") -> list[FieldError]:
    if path and not path.startswith("."):
        return [invalid_whole(at, path, "must be a simple json path starting with .")]
    if path and starts and not path.startswith(tuple(starts)):
        return [invalid_whole(at, path, detail)]
    return []


def _subresources(subresources: Raw, at: str) -> list[FieldError]:
    scale = subresources.get("scale")
    if scale is None:
        return []
    found = []
    for key, part in (("specReplicasPath", "spec"), ("statusReplicasPath", "status")):
        where, path = f"{at}.scale.{key}", scale.get(key, "")
        if not path:
            found.append(field_errors.required(where))
        found += _json_path(path, where, (f".{part}.",), f"should be a json path under .{part}")
    where, path = f"{at}.scale.labelSelectorPath", scale.get("labelSelectorPath") or ""
    return found + _json_path(
        path, where, (".spec.", ".status."), "should be a json path under either .spec or .status"
    )


def _selectable(fields: list[Raw], schema: Raw, at: str, old: Any) -> list[FieldError]:
    found = []
    seen: set[str] = set()
    for index, item in enumerate(fields):
        where, path = f"{at}[{index}].jsonPath", item.get("jsonPath", "")
        if not path:
            found.append(field_errors.required(where))
            continue
        try:
            known = field_path(path, schema, brackets=False)
        except FieldPathError as error:
            found.append(invalid_whole(where, path, f"is an invalid path: {error}"))
            continue
        if known.steps[0] == "metadata":
            found.append(invalid_whole(where, path, "must not point to fields in metadata"))
        if known.schema.get("type") not in ("string", "boolean", "integer"):
            detail = (
                "must point to a field of type string, boolean or integer. Enum string fields and strings with formats "
                "are allowed."
            )
            found.append(invalid_whole(where, path, detail))
        if known.text in seen:
            found.append(field_errors.duplicate(where, path))
        seen.add(known.text)
    if len(seen) > MAX_SELECTABLE and old != fields:
        found.append(field_errors.too_many(at, len(seen), MAX_SELECTABLE))
    return found


def _stored(new: Raw) -> list[FieldError]:
    """Check that every version with stored objects is still declared."""
    at = "status.storedVersions"
    stored = (new.get("status") or {}).get("storedVersions") or []
    if not stored:
        listed = (new.get("status") or {}).get("storedVersions")
        return [invalid_whole(at, listed, "must have at least one stored version")]
    versions = (new.get("spec") or {}).get("versions") or ()
    found = [
        invalid_whole(at, stored, f"must have the storage version {version.get('name', '')}")
        for version in versions
        if version.get("storage") and version.get("name", "") not in stored
    ]
    named = {version.get("name", "") for version in versions}
    for index, name in enumerate(stored):
        if name not in named and name not in stored[index + 1 :]:
            detail = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and removes "
                f"{name} from status.storedVersions"
            )
            found.append(invalid_whole(f"{at}[{index}]", name, detail))
    return found


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
        return "Unapproved", f"not approved: {field_errors.quote(note)}"
    try:
        parts = urlsplit(note)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme and parts.netloc:
        return "Approved", f"approved in {note}"
    how = 'with either a URL or a reason starting with "unapproved"'
    return "Invalid", f'protected groups must have approval annotation "{APPROVED}" {how}, {_PROPOSAL}'


def _approval(new: Raw, old: Raw | None) -> list[FieldError]:
    if not protected((new.get("spec") or {}).get("group", "")):
        return []
    annotations = new["metadata"].get("annotations") or {}
    state, message = approval(annotations)
    if old is not None and approval(old["metadata"].get("annotations") or {})[0] == state:
        return []
    at = f"metadata.annotations[{APPROVED}]"
    if state == "Missing":
        return [field_errors.required(at, message)]
    return [invalid_whole(at, annotations[APPROVED], message)] if state == "Invalid" else []
