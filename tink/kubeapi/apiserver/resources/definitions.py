"""CustomResourceDefinitions: defaults, checks, status, and the resources that they describe.

A stored definition is served at once, in every version that it lists as served. (Kubernetes needs controllers and a few
seconds for that.) Its conditions say so: NamesAccepted and Established. `tink.kubeapi.schema.definition` checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tink.kubeapi.apiserver import errors
from tink.kubeapi.apiserver.resources import registry
from tink.kubeapi.apiserver.tables import AGE, CUSTOM_AGE, NAME, Column, printer_column
from tink.kubeapi.schema import meta
from tink.kubeapi.schema.checker import checkers
from tink.kubeapi.schema.declarations import field_path
from tink.kubeapi.schema.definition import SCHEMA, approval, check, fill_in, is_true, protected, read
from tink.kubeapi.schema.field_errors import FieldError, Path, WalkResult
from tink.kubeapi.schema.formats import format_warnings
from tink.kubeapi.schema.jsonpath import JSONPathError, compile_path
from tink.kubeapi.schema.shapes import Raw
from tink.kubeapi.schema.structs import MistypedError
from tink.kubeapi.schema.structural import compile_schema, root_schema
from tink.kubeapi.schema.webhooks import bundle_problem

GROUP = "apiextensions.k8s.io"
PLURAL = "customresourcedefinitions"
KEY = f"{GROUP}/{PLURAL}"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
"""Keeps a deleted definition until all its objects are gone (`controllers.Lifecycle`)."""


@dataclass(frozen=True, slots=True)
class NamesInUse:
    """Names of a group that other resources have: those in paths (plural, singular, short), and the kinds."""

    resources: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


FindNamesInUse = Callable[[Raw], NamesInUse]  # Function that returns the names that a definition cannot have


def definition_resource(taken: FindNamesInUse) -> registry.Resource:
    """Return the resource of CustomResourceDefinitions."""

    return registry.builtin_resource(
        *(GROUP, PLURAL, "CustomResourceDefinition", SCHEMA),
        registry.Rules(
            generation=True,
            unconditional=False,
            # A deleted definition waits until its objects are gone, a present one until it is marked for deletion.
            holds=lambda definition: "deletionTimestamp" not in definition["metadata"],
            complete=fill_in,
            prepare=lambda new, old, now: _prepare(new, old, now, taken),
            cost=16,
            check=_check,
            warn=_warnings,
            selectable=registry.NAME_FIELD,
        ),
        _walk,
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        columns=(
            NAME,
            Column("Created At", lambda obj, _: obj["metadata"].get("creationTimestamp"), AGE.description, "date"),
        ),
        status=True,
    )


_walk_metadata = compile_schema(
    root_schema({"properties": {key: {"x-kubernetes-preserve-unknown-fields": True} for key in ("spec", "status")}})
)


def _walk(value: Any, path: Path, found: WalkResult) -> None:
    """Read a definition as its Kubernetes type. Raises StatusError (400) for values of wrong types."""
    _walk_metadata(value, path, found)
    try:
        found.unknown += read(value)
    except MistypedError as error:
        kind = "CustomResourceDefinition"
        raise errors.bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from error


def _check(new: Raw, old: Raw | None) -> list[FieldError]:
    """Return the errors of a definition. A correct one is compiled here, since the check may take long."""
    found = check(new, old)
    if not found:
        checkers(new)
    return found


def _prepare(new: Raw, old: Raw | None, now: datetime, taken: FindNamesInUse) -> None:
    deleted = "deletionTimestamp" in new["metadata"]
    if deleted and old is not None and "deletionTimestamp" not in old["metadata"]:
        finalizers = new["metadata"].setdefault("finalizers", [])
        if FINALIZER not in finalizers:
            finalizers.append(FINALIZER)
    status: Raw = {} if old is None else new.get("status") or {}
    versions = (new.get("spec") or {}).get("versions") or ()
    stored = list(status.get("storedVersions") or ())
    storing = next((version.get("name", "") for version in versions if version.get("storage")), None)
    if storing is not None and storing not in stored:
        stored.append(storing)
    names, conditions = _accept_names(new, status, taken(new))
    if deleted:
        why = "CustomResource deletion is in progress"
        conditions.append(_condition("Terminating", "True", "InstanceDeletionInProgress", why))
    new["status"] = {
        **status,
        "acceptedNames": names,
        "conditions": _with_times(conditions, status.get("conditions") or [], now),
    }
    if stored:
        new["status"]["storedVersions"] = stored
    else:
        new["status"].pop("storedVersions", None)


def _accept_names(new: Raw, status: Raw, in_use: NamesInUse) -> tuple[Raw, list[Raw]]:
    """Return the accepted names of a definition, and the conditions about them. Source: k8s.io/apiextensions-apiserver,
    pkg/controller/status, establish and apiapproval."""
    wanted: Raw = (new.get("spec") or {}).get("names") or {}
    before: Raw = status.get("acceptedNames") or {}
    names = dict(before)
    reason, message = "", ""
    for key, used in (
        ("plural", in_use.resources),
        ("singular", in_use.resources),
        ("shortNames", in_use.resources),
        ("kind", in_use.kinds),
        ("listKind", in_use.kinds),
    ):
        asked = wanted.get(key) or []
        listed = asked if isinstance(asked, list) else [asked]
        had = before.get(key) or []
        lost = [name for name in listed if name in used and name not in (had if isinstance(had, list) else [had])]
        if lost:
            reason = f"{key[0].upper()}{key[1:]}Conflict"
            quoted = [f'"{name}" is already in use' for name in dict.fromkeys(lost)]
            message = quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"
        elif asked:
            names[key] = asked
        else:
            names.pop(key, None)
    names.pop("categories", None)
    if wanted.get("categories"):
        names["categories"] = wanted["categories"]
    conditions = [
        _condition("NamesAccepted", "False", reason, message)
        if reason
        else _condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        _establishment(new, status, accepted=not reason),
    ]
    group = (new.get("spec") or {}).get("group", "")
    if protected(group):
        state, about = approval(new["metadata"].get("annotations") or {})
        known = "True" if state == "Approved" else "False"
        conditions.append(_condition("KubernetesAPIApprovalPolicyConformant", known, f"{state}Annotation", about))
    return names, conditions


def _establishment(new: Raw, status: Raw, *, accepted: bool) -> Raw:
    for item in status.get("conditions") or ():
        if item.get("type") == "Established" and (item.get("status") == "True" or not accepted):
            return dict(item)
    if not accepted:
        return _condition("Established", "False", "NotAccepted", "not all names are accepted")
    if bundle_problem((new.get("spec") or {}).get("conversion")):
        return _condition("Established", "False", "InvalidCABundle", "The conversion webhook CABundle is invalid")
    return _condition("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")


def _condition(kind: str, status: str, reason: str, message: str) -> Raw:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _with_times(conditions: list[Raw], before: list[Raw], now: datetime) -> list[Raw]:
    """Return the conditions with the times of their last transitions; conditions of other writers stay."""
    known = {item.get("type"): item for item in before}
    made = []
    for item in conditions:
        same = known.pop(item["type"], None) or {}
        stays = same.get("status") == item["status"] and same.get("lastTransitionTime")
        since = same["lastTransitionTime"] if stays else meta.timestamp(now)
        made.append({**item, "lastTransitionTime": since})
    return made + list(known.values())


def resources(definition: Raw, *, conversion: Any = None, defined_at: int = 0) -> list[registry.Resource]:
    """Compile a stored definition: one resource for each served version. `conversion` and `defined_at` are passed on to
    the resources."""
    described = definition["spec"]
    names = (definition.get("status") or {}).get("acceptedNames") or described["names"]
    stored = next(version["name"] for version in described["versions"] if version.get("storage"))
    namespaced = described["scope"] == "Namespaced"
    made = []
    made_of = checkers(definition)
    served = {f"{described['group']}/{one['name']}": one for one in described["versions"] if one.get("served")}
    schemas = {api_version: one["schema"]["openAPIV3Schema"] for api_version, one in served.items()}
    for api_version, version in served.items():
        openapi = schemas[api_version]
        checker = made_of[version["name"]]
        warning = f"{api_version} {names['kind']} is deprecated{_better(described, version, names['kind'])}"
        made.append(
            registry.Resource(
                described["group"],
                version["name"],
                names["plural"],
                names["kind"],
                openapi,
                checker.compiled,
                singular=names["singular"],
                list_kind=names["listKind"],
                namespaced=namespaced,
                short_names=names.get("shortNames") or (),
                categories=names.get("categories") or (),
                columns=(NAME, *_columns(version)),
                status="status" in (version.get("subresources") or {}),
                subresources=("scale",) if (scale := registry.ScalePaths.of(version)) is not None else (),
                scale=scale,
                stored_version=stored,
                rules=_rules(version, openapi, namespaced=namespaced),
                warning=version.get("deprecationWarning", warning) if version.get("deprecated") else "",
                validations=checker.validations,
                conversion=conversion,
                defined_at=defined_at,
                terminating=is_true(definition, "Terminating"),
                others={name: other for name, other in schemas.items() if name != api_version},
            )
        )
    return made


def _better(described: Raw, version: Raw, kind: str) -> str:
    """Return the advice to use a newer version, for the warning about a deprecated one; "" if there is none."""
    candidates = [
        other["name"]
        for other in described["versions"]
        if other.get("served")
        and not other.get("deprecated")
        and registry.priority(other["name"]) > registry.priority(version["name"])
    ]
    best = max(candidates, key=registry.priority, default="")
    return f"; use {described['group']}/{best} {kind}" if best else ""


def _columns(version: Raw) -> list[Column]:
    """Return the columns of a version, without those whose path can't be read. Kubernetes also omits all columns
    after such a one (tableconvertor.New)."""
    described = version.get("additionalPrinterColumns") or ()
    columns = []
    for column in described:
        with suppress(JSONPathError):
            columns.append(printer_column(column))
    return columns if described else [CUSTOM_AGE]


def _warnings(definition: Raw) -> list[str]:
    """Return warnings for the writer of a definition: unknown formats, and columns that are not shown."""
    found = format_warnings(definition)
    for number, version in enumerate((definition.get("spec") or {}).get("versions") or ()):
        for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
            try:
                compile_path(column.get("jsonPath") or ".")
            except JSONPathError as error:
                at = f"spec.versions[{number}].additionalPrinterColumns[{index}].jsonPath"
                found.append(f"{at}: {column['jsonPath']:.200}: {error}: the column is not shown")
    return found


def _rules(version: Raw, openapi: Raw, *, namespaced: bool) -> registry.Rules:
    selectable = dict(registry.NAMESPACED_FIELDS if namespaced else registry.NAME_FIELD)
    for item in version.get("selectableFields") or ():
        path = field_path(item["jsonPath"], openapi, brackets=False)
        selectable[path.text] = path.steps
    rules = replace(registry.CUSTOM, selectable=selectable)
    scale = (version.get("subresources") or {}).get("scale")
    return rules if scale is None else replace(rules, check=registry.scale_check(scale))


def names_in_use(definition: Raw, others: list[registry.Resource]) -> NamesInUse:
    """Return the names of its group that a definition cannot have, because another resource has them."""
    described = definition.get("spec") or {}
    plural = (described.get("names") or {}).get("plural")
    others = [other for other in others if other.group == described.get("group") and other.plural != plural]
    return NamesInUse(
        frozenset(name for other in others for name in (other.plural, other.singular, *other.short_names)),
        frozenset(kind for other in others for kind in (other.kind, other.list_kind)),
    )
