"""Webhooks: their address, the conversion of a definition, and match conditions.

`ClientConfig` and the checks of `clientConfig` and review versions serve webhook configurations and definitions with a
conversion webhook (k8s.io/apiserver, pkg/util/webhook/validation.go; k8s.io/apiextensions-apiserver,
pkg/apis/apiextensions/validation).

Match conditions are CEL expressions that must all be true before a webhook is called. Their variables are `object`,
`oldObject` (null if there is none), `request` (the AdmissionRequest without its objects) and `namespaceObject` (always
null). Their costs are limited as in Kubernetes (k8s.io/apiserver, pkg/admission/plugin/cel and
plugin/webhook/matchconditions). There is no `authorizer`, because this API server has one user. Pure.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography import x509

from tink.errors import TinkedgeError
from tink.kubeapi import cel
from tink.kubeapi.cel import text_of
from tink.kubeapi.schema import field_errors, meta
from tink.kubeapi.schema.field_errors import FieldError, invalid_whole

REVIEW_VERSIONS = ("v1", "v1beta1")
"""The supported versions of AdmissionReview and ConversionReview."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The address of a webhook. `trust` are certificates in PEM, or b"" for the system's. `missing` names an absent
    Service.
    """

    url: str
    trust: bytes = b""
    missing: str = ""

    @staticmethod
    def of(config: Mapping[str, Any]) -> ClientConfig:
        """Read the clientConfig of a webhook, which was checked before it was stored."""
        try:
            trust = base64.b64decode(config.get("caBundle") or "").strip()
        except binascii.Error:
            trust = b"no base64"  # an invalid certificate, so that only calls fail
        service = config.get("service")
        if service is None:
            parts = urlsplit(config.get("url") or "")
            return ClientConfig(f"{parts.scheme}://{parts.netloc}{_clean(parts.path)}", trust)
        name, namespace, port = service.get("name", ""), service.get("namespace", ""), service.get("port") or 443
        return ClientConfig(f"https://{name}.{namespace}.svc:{port}{_clean(service.get('path') or '')}", trust, name)


def _clean(path: str) -> str:
    """Clean a path as client-go does when it joins paths: no empty, `.` or `..` steps, and no slash at the end."""
    return posixpath.normpath("/" + path.lstrip("/"))


# --- checks ------------------------------------------------------------------------------------------------------

_NEVER = re.compile(r"[\x00-\x1f\x7f]|//[^/]*[ \"<>\\^`{|}]")
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_FORM = "; desired format: https://host[/path]"


def check_client(client: Mapping[str, Any], at: str) -> list[FieldError]:
    """Check the address of a webhook: exactly one of url and service."""
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        return [field_errors.required(at, "exactly one of url or service is required")]
    if url is not None:
        return _check_url(url, f"{at}.url")
    return _check_service(service or {}, f"{at}.service")


def _check_url(url: str, at: str) -> list[FieldError]:
    try:
        parts = urlsplit(url)
        valid = parts.port is None or parts.port >= 0
    except ValueError:
        valid = False
    if not valid or _NEVER.search(url) or _BAD_ESCAPE.search(parts.path):
        return [field_errors.required(at, f"url must be a valid URL{_FORM}")]
    user, at_sign, host = parts.netloc.rpartition("@")
    found: list[FieldError] = []
    if parts.scheme != "https":
        found.append(field_errors.invalid(at, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}"))
    if not host:
        found.append(field_errors.invalid(at, host, f"host must be specified{_FORM}"))
    if at_sign:
        found.append(field_errors.invalid(at, user, "user information is not permitted in the URL"))
    if parts.fragment:
        found.append(field_errors.invalid(at, unquote(parts.fragment), "fragments are not permitted in the URL"))
    if parts.query:
        found.append(field_errors.invalid(at, parts.query, "query parameters are not permitted in the URL"))
    return found


def _check_service(service: Mapping[str, Any], at: str) -> list[FieldError]:
    found = [field_errors.required(f"{at}.{key}") for key in ("name", "namespace") if not service.get(key)]
    port = service.get("port", 443)
    if not 1 <= port <= 65535:
        why = "port is not valid: must be between 1 and 65535, inclusive"
        found.append(field_errors.invalid(f"{at}.port", port, why))
    return found + _check_path(service.get("path") or "", f"{at}.path")


def _check_path(path: str, at: str) -> list[FieldError]:
    if path in ("", "/"):
        return []
    if path == "//":
        return [field_errors.invalid(at, path, "segment[0] may not be empty")]
    found: list[FieldError] = []
    if not path.startswith("/"):
        found.append(field_errors.invalid(at, path, "must start with a '/'"))
    for index, step in enumerate(path[1:].removesuffix("/").split("/")):
        if not step:
            found.append(field_errors.invalid(at, path, f"segment[{index}] may not be empty"))
        elif wrong := meta.subdomain(step):
            found.append(field_errors.invalid(at, path, f"segment[{index}]: {wrong}"))
    return found


def check_review_versions(versions: Sequence[str], at: str, *, known: bool, advice: str = "") -> list[FieldError]:
    """Return the errors in review versions. `known` requires a supported one. `advice` is for an empty list."""
    if not versions:
        return [field_errors.required(at, advice)]
    found = []
    for index, version in enumerate(versions):
        if version in versions[:index]:
            found.append(invalid_whole(f"{at}[{index}]", version, "duplicate version"))
        elif wrong := meta.dns1035(version):
            found.append(invalid_whole(f"{at}[{index}]", version, wrong))
    if known and not set(versions) & set(REVIEW_VERSIONS):
        found.append(invalid_whole(at, list(versions), f"must include at least one of {', '.join(REVIEW_VERSIONS)}"))
    return found


Conversion = Mapping[str, Any]

_ONLY = "should not be set when strategy is not set to Webhook"


def knows_reviews(conversion: Conversion | None) -> bool:
    """Return True if a stored conversion names a supported review version, or none at all."""
    listed = ((conversion or {}).get("webhook") or {}).get("conversionReviewVersions") or ()
    return not listed or any(version in REVIEW_VERSIONS for version in listed)


def bundle_problem(conversion: Conversion | None) -> str:
    """Return what is wrong with the certificates of a conversion webhook, or ""."""
    config = ((conversion or {}).get("webhook") or {}).get("clientConfig") or {}
    text = config.get("caBundle")
    if not text:
        return ""
    try:
        pem = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        return str(error)
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError:
        why = "unable to parse bytes as PEM block" if b"-----BEGIN " not in pem else "failed to parse certificates"
        return f"unable to load root certificates: {why}"
    return ""


def check_conversion(conversion: Conversion, at: str, *, known_reviews: bool, any_bundle: bool) -> list[FieldError]:
    """Return the errors in spec.conversion.

    `known_reviews` requires a supported review version. `any_bundle` allows invalid certificates.
    """
    strategy, webhook = conversion.get("strategy", ""), conversion.get("webhook") or {}
    config, reviews = webhook.get("clientConfig"), webhook.get("conversionReviewVersions") or []
    found: list[FieldError] = []
    if not strategy:
        found.append(field_errors.required(f"{at}.strategy"))
    elif strategy not in ("None", "Webhook"):
        found.append(field_errors.not_supported(f"{at}.strategy", strategy, ("None", "Webhook")))
    if strategy != "Webhook":
        if config is not None:
            found.append(field_errors.forbidden(f"{at}.webhookClientConfig", _ONLY))
        if reviews:
            found.append(field_errors.forbidden(f"{at}.conversionReviewVersions", _ONLY))
        return found
    where = f"{at}.webhookClientConfig"
    if config is None:
        found.append(field_errors.required(where, "required when strategy is set to Webhook"))
    else:
        found += check_client(config, where)
        if not any_bundle and (why := bundle_problem(conversion)):
            found.append(invalid_whole(f"{where}.caBundle", config["caBundle"], why))
    return found + check_review_versions(reviews, f"{at}.conversionReviewVersions", known=known_reviews)


MAX_COST = 2_500_000
"""Maximum cost of all conditions of a webhook together (RuntimeCELCostBudgetMatchConditions)."""
MAX_EACH = 1_000_000
"""Maximum cost of one condition (PerCallLimit)."""


class ConditionError(TinkedgeError):
    """The conditions could not be evaluated. The message is Kubernetes'."""


@cache
def _variables() -> Mapping[str, cel.Type]:
    def of(name: str, fields: Mapping[str, cel.Type]) -> cel.Type:
        return cel.ObjectType(name, {key: cel.Field(kind, key) for key, kind in fields.items()})

    text, texts = cel.STRING, cel.ListType(cel.STRING)
    kind = of("kubernetes.GroupVersionKind", dict.fromkeys(("group", "version", "kind"), text))
    resource = of("kubernetes.GroupVersionResource", dict.fromkeys(("group", "version", "resource"), text))
    user = of(
        "kubernetes.UserInfo",
        {"username": text, "uid": text, "groups": texts, "extra": cel.MapType(text, texts)},
    )
    names = ("subResource", "requestSubResource", "name", "namespace", "operation")
    request = of(
        "kubernetes.AdmissionRequest",
        {
            **dict.fromkeys(names, text),
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "userInfo": user,
            "dryRun": cel.BOOL,
            "options": cel.DYN,
        },
    )
    return {"object": cel.DYN, "oldObject": cel.DYN, "namespaceObject": cel.DYN, "request": request}


def compile_condition(expression: str) -> cel.Program:
    """Compile one expression. Raises cel.CelError with Kubernetes' message."""
    try:
        program = cel.compile_expression(expression, _variables())
    except cel.CelError as error:
        raise cel.CelError(f"compilation failed: {error}") from error
    if program.type != cel.BOOL:
        raise cel.CelError(f"must evaluate to bool but got {text_of(program.type)}")
    return program


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one webhook: pairs of an expression and its program, or its compile error."""

    items: tuple[tuple[str, cel.Program | str], ...]

    @staticmethod
    def of(conditions: Sequence[Mapping[str, Any]]) -> Conditions | None:
        """Compile the matchConditions of a webhook. Return None if there are none."""
        if not conditions:
            return None
        items: list[tuple[str, cel.Program | str]] = []
        for condition in conditions:
            expression = condition.get("expression", "")
            try:
                items.append((expression, compile_condition(expression)))
            except cel.CelError as error:
                items.append((expression, f"compilation error: {error}"))
        return Conditions(tuple(items))

    def hold(self, bindings: Mapping[str, Any]) -> bool:
        """Return True if all conditions are true. A false condition decides; otherwise a failed one raises
        ConditionError.
        """
        spent = 0
        wrong: list[str] = []
        for expression, program in self.items:
            if isinstance(program, str):
                wrong.append(program)
                continue
            budget = cel.Budget(MAX_EACH)
            holds = True
            try:
                holds = program(bindings, budget) is True
            except (cel.EvaluationError, cel.BudgetExceededError) as error:
                wrong.append(f"expression '{expression}' resulted in error: {error}")
            spent += budget.used
            if spent > MAX_COST:
                raise ConditionError(
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                )
            if not holds:
                return False
        if wrong:
            unique = list(dict.fromkeys(wrong))
            raise ConditionError(unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]")
        return True
