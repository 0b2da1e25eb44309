"""MutatingWebhookConfiguration and ValidatingWebhookConfiguration: schemas, defaults and checks.

Built-in resources of admissionregistration.k8s.io/v1, of cluster scope. Defaults and checks are those of
k8s.io/kubernetes, pkg/apis/admissionregistration; `admission` compiles the stored ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from tink.kubeapi import cel
from tink.kubeapi.apiserver.resources.registry import NAME_FIELD, Resource, Rules, builtin_resource
from tink.kubeapi.apiserver.tables import AGE, NAME, Column
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.field_errors import FieldError
from tink.kubeapi.schema.shapes import BYTES, INT32, TEXT, Raw, atomic, keyed, mapping, same, struct, texts
from tink.kubeapi.schema.structural import compile_schema, root_schema
from tink.kubeapi.schema.webhooks import REVIEW_VERSIONS, check_client, check_review_versions, compile_condition

GROUP = "admissionregistration.k8s.io"
MAX_CONDITIONS = 64
"""Maximum number of matchConditions of one webhook."""

_TEXTS = atomic(TEXT)
_SELECTOR = struct(
    {"matchLabels": mapping(TEXT), "matchExpressions": atomic(struct({**texts("key", "operator"), "values": _TEXTS}))}
)
_SERVICE = struct({**texts("name", "namespace", "path"), "port": {**INT32, "default": 443}})
_RULE = struct(
    {**same(_TEXTS, "apiGroups", "apiVersions", "operations", "resources"), "scope": {**TEXT, "default": "*"}}
)
_WEBHOOK: Raw = {
    "admissionReviewVersions": _TEXTS,
    "clientConfig": struct({"caBundle": BYTES, "service": _SERVICE, "url": TEXT}),
    "failurePolicy": {**TEXT, "default": "Fail"},
    "matchConditions": keyed(struct(texts("name", "expression")), "name"),
    "matchPolicy": {**TEXT, "default": "Equivalent"},
    "name": TEXT,
    "namespaceSelector": {**_SELECTOR, "default": {}},
    "objectSelector": {**_SELECTOR, "default": {}},
    "rules": atomic(_RULE),
    "sideEffects": TEXT,
    "timeoutSeconds": {**INT32, "default": 10},
}
VALIDATING = struct({"webhooks": keyed(struct(_WEBHOOK), "name")})
_MUTATING = _WEBHOOK | {"reinvocationPolicy": {**TEXT, "default": "Never"}}
MUTATING = struct({"webhooks": keyed(struct(_MUTATING), "name")})


@cache
def resources() -> tuple[Resource, ...]:
    """Return the two resources, compiled once in a process."""
    return _resource("Mutating", MUTATING), _resource("Validating", VALIDATING)


def _resource(word: str, openapi: Raw) -> Resource:
    kind = f"{word}WebhookConfiguration"
    return builtin_resource(
        *(GROUP, f"{kind.lower()}s", kind, openapi),
        Rules(generation=True, unconditional=False, prepare=_prepare, check=_check, warn=_warn, selectable=NAME_FIELD),
        compile_schema(root_schema(_without_lists(openapi))),
        namespaced=False,
        categories=("api-extensions",),
        columns=(
            NAME,
            Column(
                "Webhooks",
                lambda obj, _: len(obj.get("webhooks") or ()),
                "Webhooks indicates the number of webhooks registered in this configuration",
                "integer",
            ),
            AGE,
        ),
    )


def _without_lists(openapi: Any) -> Any:
    """Return the schema without list types: `_check` finds duplicate names, in Kubernetes' words."""
    if isinstance(openapi, dict):
        return {
            key: _without_lists(value) for key, value in openapi.items() if not key.startswith("x-kubernetes-list-")
        }
    return openapi


def _prepare(new: Raw, _old: Raw | None, _now: datetime) -> None:
    """Add fields that Kubernetes always writes, and drop empty lists that it never writes."""
    if not new.get("webhooks"):
        new.pop("webhooks", None)
        return
    for webhook in new["webhooks"]:
        webhook.setdefault("clientConfig", {})
        for key in ("rules", "matchConditions"):
            if not webhook.get(key):
                webhook.pop(key, None)


def _warn(new: Raw) -> list[str]:
    suffix = ".static.k8s.io"
    if not new["metadata"].get("name", "").endswith(suffix):
        return []
    return [
        f'metadata.name: names ending with "{suffix}" are reserved for static manifest-based configurations and cannot '
        "be managed via the API"
    ]


# --- what is checked --------------------------------------------------------------------------------------------

_NO_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_SIDE_EFFECTS = ("None", "NoneOnDryRun", "Some", "Unknown")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_CHOICES = {"failurePolicy": ("Fail", "Ignore"), "matchPolicy": ("Equivalent", "Exact")}


def _check(new: Raw, old: Raw | None) -> Iterator[FieldError]:
    """Check all webhooks. As in Kubernetes, errors from before an update may stay."""
    webhooks = new.get("webhooks") or []
    before = (old or {}).get("webhooks") or []
    sides = _NO_SIDE_EFFECTS if all(w.get("sideEffects") in _NO_SIDE_EFFECTS for w in before) else _SIDE_EFFECTS
    known = all(set(w.get("admissionReviewVersions") or REVIEW_VERSIONS) & set(REVIEW_VERSIONS) for w in before)
    unique = len({w.get("name") for w in before}) == len(before)
    same = old is not None and _conditions(webhooks) == _conditions(before)
    seen: set[str] = set()
    for index, webhook in enumerate(webhooks):
        at = f"webhooks[{index}]"
        yield from _check_webhook(webhook, at, sides, conditions=not same)
        versions, where = webhook.get("admissionReviewVersions") or [], f"{at}.admissionReviewVersions"
        advice = f"must specify one of {', '.join(REVIEW_VERSIONS)}"
        yield from check_review_versions(versions, where, known=known, advice=advice)
        name = webhook.get("name") or ""
        if unique and name and name in seen:
            yield field_errors.duplicate(f"{at}.name", name)
        seen.add(name)


def _conditions(webhooks: Iterable[Raw]) -> list[Any]:
    return [webhook.get("matchConditions") or [] for webhook in webhooks]


def _check_webhook(webhook: Raw, at: str, sides: Sequence[str], *, conditions: bool) -> Iterator[FieldError]:
    name = webhook.get("name") or ""
    if not name:
        yield field_errors.required(f"{at}.name")
    elif wrong := meta.subdomain(name):
        yield field_errors.invalid(f"{at}.name", name, wrong)
    elif name.count(".") < 2:
        segments = "should be a domain with at least three segments separated by dots"
        yield field_errors.invalid(f"{at}.name", name, segments)
    for index, rule in enumerate(webhook.get("rules") or ()):
        yield from _check_rule(rule, f"{at}.rules[{index}]")
    for key, allowed in _CHOICES.items():
        if key in webhook and webhook[key] not in allowed:
            yield field_errors.not_supported(f"{at}.{key}", webhook[key], allowed)
    side = webhook.get("sideEffects")
    if side is None:
        yield field_errors.required(f"{at}.sideEffects", f"must specify one of {', '.join(sides)}")
    elif side not in sides:
        yield field_errors.not_supported(f"{at}.sideEffects", side, sides)
    timeout = webhook.get("timeoutSeconds", 10)
    if not 1 <= timeout <= 30:
        why = "the timeout value must be between 1 and 30 seconds"
        yield field_errors.invalid(f"{at}.timeoutSeconds", timeout, why)
    for key in ("namespaceSelector", "objectSelector"):
        yield from _check_selector(webhook.get(key) or {}, f"{at}.{key}")
    again = webhook.get("reinvocationPolicy", "Never")
    if again not in ("IfNeeded", "Never"):
        yield field_errors.not_supported(f"{at}.reinvocationPolicy", again, ("IfNeeded", "Never"))
    yield from check_client(webhook.get("clientConfig") or {}, f"{at}.clientConfig")
    if conditions:
        yield from _check_conditions(webhook.get("matchConditions") or [], f"{at}.matchConditions")


def _check_rule(rule: Raw, at: str) -> Iterator[FieldError]:
    operations, versions = rule.get("operations") or [], rule.get("apiVersions") or []
    yield from _check_star(operations, f"{at}.operations", "operations")
    for index, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            yield field_errors.not_supported(f"{at}.operations[{index}]", operation, _OPERATIONS)
    yield from _check_star(rule.get("apiGroups") or [], f"{at}.apiGroups", "API groups")
    yield from _check_star(versions, f"{at}.apiVersions", "API versions")
    yield from (field_errors.required(f"{at}.apiVersions[{i}]") for i, version in enumerate(versions) if not version)
    yield from _check_resources(rule.get("resources") or [], f"{at}.resources")
    scope = rule.get("scope", "*")
    if scope not in _SCOPES:
        yield field_errors.not_supported(f"{at}.scope", scope, _SCOPES)


def _check_star(items: list[str], at: str, what: str) -> Iterator[FieldError]:
    if not items:
        yield field_errors.required(at)
    elif len(items) > 1 and "*" in items:
        yield field_errors.invalid(at, items, f"if '*' is present, must not specify other {what}")


def _check_resources(items: list[str], at: str) -> Iterator[FieldError]:
    if not items:
        yield field_errors.required(at)
    all_of: set[str] = set()
    of_all: set[str] = set()
    plain = False
    for index, item in enumerate(items):
        if not item:
            yield field_errors.required(f"{at}[{index}]")
            continue
        resource, slash, sub = item.partition("/")
        if not slash:
            plain = item != "*"
            continue
        for present, wider in ((resource in all_of, f"{resource}/*"), (sub in of_all, f"*/{sub}")):
            if present:
                yield field_errors.invalid(f"{at}[{index}]", item, f"if '{wider}' is present, must not specify {item}")
        if sub == "*":
            all_of.add(resource)
        if resource == "*":
            of_all.add(sub)
    if len(items) > 1 and "*/*" in items:
        yield field_errors.invalid(at, items, "if '*/*' is present, must not specify other resources")
    if "*" in items and plain:
        why = "if '*' is present, must not specify other resources without subresources"
        yield field_errors.invalid(at, items, why)


def _check_selector(selector: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from _invalid(f"{at}.matchLabels", key, meta.wrong_keys(key))
        yield from _invalid(f"{at}.matchLabels", value, meta.wrong_values(value))
    for index, item in enumerate(selector.get("matchExpressions") or ()):
        here = f"{at}.matchExpressions[{index}]"
        operator, values = item.get("operator") or "", item.get("values") or []
        if operator in ("In", "NotIn"):
            if not values:
                why = "must be specified when `operator` is 'In' or 'NotIn'"
                yield field_errors.required(f"{here}.values", why)
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield field_errors.forbidden(f"{here}.values", why)
        else:
            yield field_errors.invalid(f"{here}.operator", operator, "not a valid selector operator")
        key = item.get("key") or ""
        yield from _invalid(f"{here}.key", key, meta.wrong_keys(key))
        for place, value in enumerate(values):
            yield from _invalid(f"{here}.values[{place}]", value, meta.wrong_values(value))


def _invalid(at: str, value: str, wrong: Iterable[str]) -> Iterator[FieldError]:
    return (field_errors.invalid(at, value, words) for words in wrong)


def _check_conditions(conditions: list[Raw], at: str) -> Iterator[FieldError]:
    if len(conditions) > MAX_CONDITIONS:
        yield field_errors.too_many(at, len(conditions), MAX_CONDITIONS)
    seen: set[str] = set()
    for index, condition in enumerate(conditions[:MAX_CONDITIONS]):
        here, name = f"{at}[{index}]", condition.get("name") or ""
        expression = (condition.get("expression") or "").strip()
        if not expression:
            yield field_errors.required(f"{here}.expression")
        else:
            try:
                compile_condition(expression)
            except cel.CelError as error:
                yield field_errors.invalid(f"{here}.expression", expression, str(error))
        if not name:
            yield field_errors.required(f"{here}.name")
        elif wrong := meta.qualified(name):
            yield field_errors.invalid(f"{here}.name", name, wrong)
        if name and name in seen:
            yield field_errors.duplicate(f"{here}.name", name)
        seen.add(name)
